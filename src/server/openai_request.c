/* openai_request.c — bodies of /v1/completions and /v1/chat/completions → jobs. Runs on the prep thread. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/form.h"
#include "server/media.h"
#include "server/thinking.h"

enum { LOGPROBS_MAX = 20 };

static const struct params_names names = {.max_tokens = "max_tokens", .min_tokens = "min_tokens", .seed = "seed"};

/* ---- what is known and refused -------------------------------------------------------------------------------------------- */

static const char *const unsupported[] = {
    /* OpenAI */
    "audio", "web_search_options", "prediction", "suffix",
    /* SGLang */
    "structural_tag", "stop_regex", "custom_logit_processor", "lora_path", "session_params", "return_hidden_states", "input_embeds",
    "return_prompt_token_ids", "return_meta_info", "return_routed_experts",
    /* vLLM, llama.cpp */
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "prompt_embeds", "prompt_logprobs",
    "allowed_token_ids", "bad_words", "chat_template", "documents", "use_beam_search", "mirostat", "typical_p", "dry_multiplier",
    "xtc_probability", "truncate_prompt_tokens"};

static void refuse_unsupported(struct params *p) {
  const json_t *modalities = NULL;
  params_refuse_all(p, unsupported, ARRAY_LEN(unsupported));
  params_array(p, "modalities", &modalities);
  for (size_t i = 0; i < json_array_size(modalities); i++) {
    const char *word = json_string_value(json_array_get(modalities, i));
    if (!word || strcmp(word, "text")) params_refuse(p, "modalities", "only [\"text\"] is supported by this model");
  }
}

/* ---- what both routes have ------------------------------------------------------------------------------------------------ */

static void parse_common(struct params *p, const struct api *a, struct call *c) {
  struct job *j = &c->job;
  const json_t *model = json_object_get(p->object, "model");
  int best_of = 0;
  j->n = 1;
  j->logprobs = j->prompt_logprobs = -1;
  if (model && !json_is_null(model) && !json_is_string(model)) params_fail(p, "model", "expected a string");
  refuse_unsupported(p);
  params_sampling(p, a, &names, j);
  params_stop(p, a, j);
  params_stream(p, j);
  params_service(p, j);
  params_rid(p, &c->rid);
  params_bool(p, "return_cached_tokens_details", &j->cached_details);
  params_int(p, "n", 1, a->choices_max, &j->n);
  if (params_int(p, "best_of", 1, INT_MAX, &best_of) && best_of > j->n)
    params_refuse(p, "best_of", "more than n is not supported by this server");
}

static int parse_max_tokens(struct params *p, int lo, int otherwise) {
  int max_tokens = otherwise;
  params_int(p, "max_tokens", lo, INT_MAX, &max_tokens);
  params_int(p, "max_completion_tokens", lo, INT_MAX, &max_tokens); /* the newer name wins */
  return max_tokens;
}

static int fit(struct params *p, const struct api *a, const char *field, int max_tokens, struct job *j) {
  for (int i = 0; i < j->n_prompts; i++) params_fit(p, a, &names, field, max_tokens, j->sampling.min_tokens, &j->prompts[i]);
  return params_end(p);
}

/* ---- /v1/completions -------------------------------------------------------------------------------------------------------- */

static int prepare_completion(const struct api *a, struct call *c, const json_t *body, struct form *form, struct api_error *e) {
  static const char *const conversations[] = {"custom_params", "enable_thinking", "thinking_budget"};
  struct job *j = &c->job;
  struct params p = params_of(body, "body", e);
  const json_t *prompt = json_object_get(body, "prompt");
  parse_common(&p, a, c);
  params_refuse_all(&p, conversations, ARRAY_LEN(conversations));
  params_refuse_reasoning(&p, "raw text has no channel for thoughts: ask as a conversation");
  form_read(&p, false, form);
  params_bool(&p, "echo", &j->echo);
  int max_tokens = parse_max_tokens(&p, j->echo ? 0 : 1, 16); /* the prompt alone is an answer only where it is shown */
  params_int(&p, "logprobs", 0, LOGPROBS_MAX, &j->logprobs);
  if (p.failed) return -1;
  if (j->echo && j->logprobs >= 0) j->prompt_logprobs = 0;
  if (!prompt) params_missing(&p, "prompt");
  if (p.failed) return -1;
  if (api_prompts(a, prompt, "prompt", j, e) < 0 || api_check_choices(a, j, e) < 0) return -1;
  for (int i = 0; i < j->n_prompts; i++)
    if (media_match(a, j, &j->prompts[i], 0, 0, "prompt", e) < 0) return -1; /* none, so no placeholders either */
  form_compile(&p, a, form, j);
  return fit(&p, a, "prompt", max_tokens, j);
}

int openai_prepare_completion(const struct api *a, struct call *c, const json_t *body, struct api_error *e) {
  struct form form;
  int r = prepare_completion(a, c, body, &form, e);
  form_free(&form);
  return r;
}

/* ---- /v1/chat/completions --------------------------------------------------------------------------------------------------- */

/* What a conversation is asked with besides its messages. */
struct asked {
  struct form form;
  struct thinking thinking;
  struct media_list media;
};

/* Options of the renderer, from the request's own fields and from chat_template_kwargs. Those that not every model has are written where they are needed. */
static void render_options(struct params *p, const struct api *a, const struct asked *k, struct buf *out) {
  const json_t *kwargs = NULL;
  bool generation = true, go_on = false, in_user = true;
  params_object(p, "chat_template_kwargs", &kwargs);
  struct params inner = params_of(kwargs, "body: chat_template_kwargs", p->e);
  struct params *sources[] = {p, &inner};
  for (size_t i = 0; i < ARRAY_LEN(sources) && !p->failed; i++) {
    params_bool(sources[i], "add_generation_prompt", &generation);
    params_bool(sources[i], "continue_final_message", &go_on);
    params_bool(sources[i], "tools_in_user_message", &in_user);
    p->failed |= sources[i]->failed;
  }
  if (go_on) generation = false;
  buf_printf(out, "{\"add_generation_prompt\":%s,\"continue_final_message\":%s,\"enable_thinking\":%s", generation ? "true" : "false",
             go_on ? "true" : "false", k->thinking.on ? "true" : "false");
  if (k->thinking.preserve) buf_puts(out, ",\"preserve_thinking\":true");
  if (!in_user) buf_puts(out, ",\"tools_in_user_message\":false");
  if (form_offers_tools(&k->form) && !a->info.chat_tools) buf_puts(out, ",\"describe_tools\":true");
  buf_putc(out, '}');
}

/* A message without content is taken for an empty one only where it carries something else, or says null. */
static int check_contents(const json_t *messages, struct api_error *e) {
  static const char *const instead[] = {"content", "tool_calls", "function_call", "refusal", "reasoning_content"};
  for (size_t i = 0; i < json_array_size(messages); i++) {
    const json_t *message = json_array_get(messages, i);
    bool found = !json_is_object(message); /* the renderer says what is wrong with it */
    for (size_t k = 0; k < ARRAY_LEN(instead) && !found; k++) found = json_object_get(message, instead[k]) != NULL;
    if (!found)
      return api_error_set(e, 400, "invalid_value", "messages", "messages[%zu].content: expected a string or an array of parts, not found",
                           i);
  }
  return 0;
}

static void lower_role(json_t *message) {
  const char *role = json_string_value(json_object_get(message, "role"));
  if (!role || !strpbrk(role, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) return;
  char *lower = xstrdup(role);
  for (char *p = lower; *p; p++) *p = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
  json_object_set_new(message, "role", json_string(lower));
  free(lower);
}

/* One name for each thing: "reasoning" is "reasoning_content", "function_call" one of "tool_calls". */
static void rename_fields(json_t *message) {
  json_t *reasoning = json_object_get(message, "reasoning"), *call = json_object_get(message, "function_call");
  if (json_is_string(reasoning) && !params_is_given(json_object_get(message, "reasoning_content")))
    json_object_set(message, "reasoning_content", reasoning);
  json_object_del(message, "reasoning");
  if (json_is_object(call) && !params_is_given(json_object_get(message, "tool_calls")))
    json_object_set_new(message, "tool_calls", json_pack("[{s:s, s:O}]", "type", "function", "function", call));
  json_object_del(message, "function_call");
}

/* The same conversation as the renderer wants it; returns owned. */
static json_t *tidy(const json_t *messages) {
  json_t *copy = json_copy((json_t *)(uintptr_t)messages);
  for (size_t i = 0; i < json_array_size(copy); i++) {
    json_t *message = json_copy(json_array_get(copy, i)); /* the body itself stays as it is */
    if (json_is_object(message)) {
      lower_role(message);
      rename_fields(message);
    }
    json_array_set_new(copy, i, message);
  }
  return copy;
}

static char *text_of(const json_t *v) {
  struct buf text;
  buf_init(&text, 0);
  json_put(&text, v);
  return buf_take(&text, NULL);
}

static int render(const struct api *a, struct params *p, const struct asked *k, struct job *j) {
  const json_t *messages = json_object_get(p->object, "messages");
  struct buf options;
  struct cygnet_error why = {0};
  int32_t *ids = NULL;
  size_t n = 0;
  int thought = 0;
  if (!messages) params_missing(p, "messages");
  else if (!json_array_size(messages)) params_fail(p, "messages", "expected an array that is not empty");
  if (p->failed || check_contents(messages, p->e) < 0) return -1;
  buf_init(&options, 0);
  render_options(p, a, k, &options);
  int r = params_end(p);
  if (r == 0) {
    json_t *tidied = tidy(messages);
    media_strip(tidied);
    char *text = text_of(tidied), *tools = form_offers_tools(&k->form) ? text_of(k->form.tools) : NULL;
    r = a->port.render(a->port.self, text, tools, buf_cstr(&options), &ids, &n, &thought, &why);
    if (r < 0) {
      bool of_tools = !strncmp(why.message, "tools", 5);
      api_error_set(p->e, why.status >= 400 ? why.status : 400, "invalid_value", of_tools ? k->form.tools_field : "messages", "%s",
                    why.message);
    }
    json_decref(tidied);
    free(text);
    free(tools);
  }
  buf_free(&options);
  if (r < 0) return -1;
  j->prompts = xcalloc(1, sizeof *j->prompts);
  api_add_ids(j, ids, n);
  a->port.release(ids);
  j->in_thought = thought != 0;
  if (!n) params_fail(p, "messages", "nothing to answer");
  return params_end(p);
}

/* Ids instead of messages: the template is the client's business. */
static int take_ids(const struct api *a, struct params *p, const json_t *list, struct job *j) {
  size_t n;
  int32_t *ids = params_ids(p, "input_ids", list, a, &n);
  if (!ids) return -1;
  j->prompts = xcalloc(1, sizeof *j->prompts);
  j->prompts[j->n_prompts++] = (struct job_prompt){.ids = ids, .n_ids = n};
  return 0;
}

/* Control tokens are shown on request, but where they are what the answer is taken apart by. */
static void take_apart(const struct asked *k, struct job *j) {
  bool wanted = form_offers_tools(&k->form) || k->thinking.on;
  j->apart = wanted || !j->show_special;
  if (j->apart) j->show_special = false;
  j->thoughts = j->in_thought ? CYGNET_THOUGHTS_OPEN : k->thinking.on ? CYGNET_THOUGHTS_MAY : CYGNET_THOUGHTS_FREE;
}

/* Pictures and sounds: first what they are said to be, then the conversation around them, then their bytes, which cost time. */
static void collect_media(struct params *p, const struct api *a, struct asked *k) {
  const json_t *messages = json_object_get(p->object, "messages");
  int budget = 0;
  media_budget(p, a, &budget);
  media_collect(p, a, messages, "messages", budget, &k->media);
}

static int load_media(struct params *p, const struct api *a, struct call *c, const struct asked *k, const char *field) {
  if (p->failed) return -1;
  p->failed = media_load(a, c, &k->media, "messages", p->e) < 0 ||
              media_match(a, &c->job, &c->job.prompts[0], 0, c->job.n_media, field, p->e) < 0;
  return params_end(p);
}

static int prepare_chat(const struct api *a, struct call *c, const json_t *body, struct asked *k, struct api_error *e) {
  struct job *j = &c->job;
  struct params p = params_of(body, "body", e);
  const json_t *ids = NULL;
  int top_logprobs = 0;
  bool logprobs = false, echo = false;
  parse_common(&p, a, c);
  form_read(&p, true, &k->form);
  thinking_read(&p, a, &k->thinking, j);
  int max_tokens = parse_max_tokens(&p, 1, -1);
  params_bool(&p, "logprobs", &logprobs);
  if (params_int(&p, "top_logprobs", 0, LOGPROBS_MAX, &top_logprobs) && top_logprobs && !logprobs)
    params_fail(&p, "top_logprobs", "only allowed together with \"logprobs\": true");
  if (params_bool(&p, "echo", &echo) && echo) params_refuse(&p, "echo", "not supported for conversations");
  params_array(&p, "input_ids", &ids);
  collect_media(&p, a, k);
  if (p.failed) return -1;
  if (logprobs) j->logprobs = top_logprobs;
  const char *field = json_array_size(ids) ? "input_ids" : "messages";
  if ((json_array_size(ids) ? take_ids(a, &p, ids, j) : render(a, &p, k, j)) < 0) return -1;
  take_apart(k, j);
  form_compile(&p, a, &k->form, j);
  if (load_media(&p, a, c, k, field) < 0) return -1;
  return fit(&p, a, field, max_tokens, j);
}

int openai_prepare_chat(const struct api *a, struct call *c, const json_t *body, struct api_error *e) {
  struct asked k = {0};
  int r = prepare_chat(a, c, body, &k, e);
  form_free(&k.form);
  media_list_free(&k.media);
  return r;
}
