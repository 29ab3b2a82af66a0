/* openai_request.c — bodies of /v1/completions and /v1/chat/completions → jobs. Runs on the prep thread. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api.h"

/* The engine's own limits: it would refuse more, too, but knows no names of fields. */
enum { STOP_MAX = 16, STOP_BYTES = 1024, STOP_IDS_MAX = 256, BIAS_MAX = 1024, LOGPROBS_MAX = 20 };

/* ---- getters that know the error object --------------------------------------------------------------------------------- */

static int bad(struct api_error *e, const char *param, const struct err *why) {
  return api_error_set(e, 400, "invalid_value", param, "%s", why->msg);
}

static int get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int *out, struct api_error *e) {
  struct err why;
  int64_t v = 0;
  int r = json_get_int(o, key, lo, hi, &v, "body", &why);
  if (r < 0) return bad(e, key, &why);
  if (r) *out = (int)v;
  return r;
}
static int get_float(const json_t *o, const char *key, double lo, double hi, double *out, struct api_error *e) {
  struct err why;
  int r = json_get_float(o, key, lo, hi, out, "body", &why);
  return r < 0 ? bad(e, key, &why) : r;
}
static int get_bool(const json_t *o, const char *key, bool *out, struct api_error *e) {
  struct err why;
  int r = json_get_bool(o, key, out, "body", &why);
  return r < 0 ? bad(e, key, &why) : r;
}
static int get_array(const json_t *o, const char *key, const json_t **out, struct api_error *e) {
  struct err why;
  int r = json_get_array(o, key, out, "body", &why);
  return r < 0 ? bad(e, key, &why) : r;
}
static int get_object(const json_t *o, const char *key, const json_t **out, struct api_error *e) {
  struct err why;
  int r = json_get_object(o, key, out, "body", &why);
  return r < 0 ? bad(e, key, &why) : r;
}

/* ---- what is known and refused -------------------------------------------------------------------------------------------- */

static bool is_given(const json_t *v) {
  if (!v || json_is_null(v) || json_is_false(v)) return false;
  if (json_is_string(v)) return json_string_length(v) > 0;
  if (json_is_array(v)) return json_array_size(v) > 0;
  if (json_is_object(v)) return json_object_size(v) > 0;
  return true;
}

static int refuse(struct api_error *e, const char *param, const char *why) {
  return api_error_set(e, 400, "unsupported_parameter", param, "body: %s: %s", param, why);
}

static bool asks_for_effort(const json_t *v) { return is_given(v) && !(json_is_string(v) && !strcmp(json_string_value(v), "none")); }

static int refuse_unsupported(const json_t *body, struct api_error *e) {
  static const char *const fields[] = {"tools",
                                       "functions",
                                       "audio",
                                       "web_search_options",
                                       "prediction",
                                       "suffix", /* OpenAI */
                                       "json_schema",
                                       "regex",
                                       "ebnf",
                                       "structural_tag",
                                       "stop_regex",
                                       "custom_logit_processor",
                                       "lora_path",
                                       "input_ids", /* SGLang */
                                       "session_params",
                                       "return_hidden_states",
                                       "input_embeds",
                                       "return_prompt_token_ids",
                                       "return_meta_info", /* SGLang */
                                       "guided_json",
                                       "guided_regex",
                                       "guided_choice",
                                       "guided_grammar",
                                       "structured_outputs",
                                       "grammar",
                                       "prompt_embeds",
                                       "prompt_logprobs",
                                       "allowed_token_ids",
                                       "bad_words",
                                       "chat_template",
                                       "documents", /* vLLM, llama.cpp */
                                       "use_beam_search",
                                       "mirostat",
                                       "typical_p",
                                       "dry_multiplier",
                                       "xtc_probability",
                                       "truncate_prompt_tokens"};
  for (size_t i = 0; i < ARRAY_LEN(fields); i++)
    if (is_given(json_object_get(body, fields[i]))) return refuse(e, fields[i], "not supported by this server");

  const json_t *format = NULL, *modalities = NULL;
  if (get_object(body, "response_format", &format, e) < 0 || get_array(body, "modalities", &modalities, e) < 0) return -1;
  const char *type = json_string_value(json_object_get(format, "type"));
  if (format && (!type || strcmp(type, "text")))
    return refuse(e, "response_format", "only {\"type\": \"text\"} is supported by this server");
  for (size_t i = 0; i < json_array_size(modalities); i++) {
    const char *word = json_string_value(json_array_get(modalities, i));
    if (!word || strcmp(word, "text")) return refuse(e, "modalities", "only [\"text\"] is supported by this model");
  }
  static const char *const choosers[] = {"tool_choice", "function_call"};
  for (size_t i = 0; i < ARRAY_LEN(choosers); i++) {
    const json_t *v = json_object_get(body, choosers[i]);
    const char *word = json_string_value(v);
    if (is_given(v) && (!word || (strcmp(word, "auto") && strcmp(word, "none")))) return refuse(e, choosers[i], "no tools were given");
  }
  const json_t *reasoning = json_object_get(body, "reasoning");
  if (asks_for_effort(json_object_get(body, "reasoning_effort")))
    return refuse(e, "reasoning_effort", "this model does not reason in a separate channel");
  if (asks_for_effort(json_object_get(reasoning, "effort")) || is_given(json_object_get(reasoning, "enabled")))
    return refuse(e, "reasoning", "this model does not reason in a separate channel");
  return 0;
}

/* ---- sampling ------------------------------------------------------------------------------------------------------------- */

static int get_seed(const json_t *body, struct cygnet_sampling *s, struct api_error *e) {
  struct err why;
  int64_t seed;
  int r = json_get_int(body, "seed", INT64_MIN, INT64_MAX, &seed, "body", &why);
  if (r < 0) return bad(e, "seed", &why);
  if (r) {
    s->has_seed = 1;
    s->seed = (uint64_t)seed;
  }
  return 0;
}

static int parse_sampling(const struct api *a, const json_t *body, struct job *j, struct api_error *e) {
  struct cygnet_sampling *s = &j->sampling;
  *s = a->defaults;
  if (get_float(body, "temperature", 0, 100, &s->temperature, e) < 0 || get_float(body, "top_p", 0, 1, &s->top_p, e) < 0 ||
      get_float(body, "min_p", 0, 1, &s->min_p, e) < 0 || get_float(body, "frequency_penalty", -2, 2, &s->frequency_penalty, e) < 0 ||
      get_float(body, "presence_penalty", -2, 2, &s->presence_penalty, e) < 0 ||
      get_float(body, "repetition_penalty", 0, 2, &s->repetition_penalty, e) < 0 || get_int(body, "top_k", -1, INT_MAX, &s->top_k, e) < 0 ||
      get_int(body, "min_tokens", 0, INT_MAX, &s->min_tokens, e) < 0 || get_seed(body, s, e) < 0)
    return -1;
  /* 0 is a legal number for these fields of the engine ("default") and not for the client */
  static const char *const above_zero[] = {"top_p", "repetition_penalty"};
  for (size_t i = 0; i < ARRAY_LEN(above_zero); i++) {
    const json_t *v = json_object_get(body, above_zero[i]);
    if (json_is_number(v) && !(json_number_value(v) > 0))
      return api_error_set(e, 400, "invalid_value", above_zero[i], "body: %s: expected a number above 0", above_zero[i]);
  }
  if (s->temperature < 1e-6) s->temperature = 0;
  if (s->top_k < 0) s->top_k = 0;
  return 0;
}

static int bias_error(struct api_error *e, const char *key, const char *what) {
  char shown[40];
  return api_error_set(e, 400, "invalid_value", "logit_bias", "body: logit_bias: \"%s\": %s", str_escape(str_c(key), shown, sizeof shown),
                       what);
}

/* {"50256": -100, ...} */
static int parse_bias(const struct api *a, const json_t *body, struct job *j, struct api_error *e) {
  const json_t *map = NULL, *v;
  if (get_object(body, "logit_bias", &map, e) < 0) return -1;
  size_t n = json_object_size(map);
  if (n > BIAS_MAX)
    return api_error_set(e, 400, "invalid_value", "logit_bias", "body: logit_bias: expected at most %d entries, found %zu", BIAS_MAX, n);
  if (!n) return 0;
  j->bias = xcalloc(n, sizeof *j->bias);
  const char *key;
  json_object_foreach((json_t *)(uintptr_t)map, key, v) {
    int64_t id;
    if (!str_to_i64(str_c(key), 0, a->info.vocab - 1, &id))
      return bias_error(e, key, "expected a token id of this model's vocabulary as key");
    if (!json_is_number(v) || !(json_number_value(v) >= -100 && json_number_value(v) <= 100))
      return bias_error(e, key, "expected a number from -100 to 100");
    j->bias[j->sampling.n_bias++] = (struct cygnet_bias){(int32_t)id, (float)json_number_value(v)};
  }
  j->sampling.bias = j->bias;
  return 0;
}

/* ---- ends ----------------------------------------------------------------------------------------------------------------- */

static int add_stop(struct job *j, const json_t *v, struct api_error *e) {
  if (!json_is_string(v) || json_string_length(v) == 0)
    return api_error_set(e, 400, "invalid_value", "stop", "body: stop: expected a string that is not empty, or an array of them");
  if (json_string_length(v) > STOP_BYTES)
    return api_error_set(e, 400, "invalid_value", "stop", "body: stop: expected at most %d bytes in one string, found %zu", STOP_BYTES,
                         json_string_length(v));
  j->stop[j->n_stop++] = xstrndup(json_string_value(v), json_string_length(v));
  return 0;
}

static int parse_stop(const struct api *a, const json_t *body, struct job *j, struct api_error *e) {
  const json_t *stop = json_object_get(body, "stop"), *ids = NULL;
  size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
  if (n > STOP_MAX)
    return api_error_set(e, 400, "invalid_value", "stop", "body: stop: expected at most %d strings, found %zu", STOP_MAX, n);
  j->stop = xcalloc(STOP_MAX, sizeof *j->stop);
  if (json_is_array(stop)) {
    for (size_t i = 0; i < n; i++)
      if (add_stop(j, json_array_get(stop, i), e)) return -1;
  } else if (stop && !json_is_null(stop) && add_stop(j, stop, e)) {
    return -1;
  }
  if (get_array(body, "stop_token_ids", &ids, e) < 0) return -1;
  if (json_array_size(ids) > STOP_IDS_MAX)
    return api_error_set(e, 400, "invalid_value", "stop_token_ids", "body: stop_token_ids: expected at most %d ids", STOP_IDS_MAX);
  j->stop_ids = xcalloc(STOP_IDS_MAX, sizeof *j->stop_ids);
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *v = json_array_get(ids, i);
    if (json_is_null(v)) continue;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= a->info.vocab)
      return api_error_set(e, 400, "invalid_value", "stop_token_ids", "body: stop_token_ids[%zu]: expected a token id from 0 to %d", i,
                           a->info.vocab - 1);
    j->stop_ids[j->n_stop_ids++] = (int32_t)json_integer_value(v);
  }
  bool skip_special = true, keep[2] = {false, false};
  if (get_bool(body, "ignore_eos", &j->ignore_eos, e) < 0 || get_bool(body, "skip_special_tokens", &skip_special, e) < 0 ||
      get_bool(body, "no_stop_trim", &keep[0], e) < 0 || get_bool(body, "include_stop_str_in_output", &keep[1], e) < 0)
    return -1;
  j->show_special = !skip_special;
  j->keep_stop = keep[0] || keep[1];
  return 0;
}

static int parse_stream(const json_t *body, struct job *j, struct api_error *e) {
  const json_t *options = NULL;
  if (get_bool(body, "stream", &j->stream, e) < 0 || get_object(body, "stream_options", &options, e) < 0) return -1;
  if (is_given(options) && !j->stream)
    return api_error_set(e, 400, "invalid_value", "stream_options", "body: stream_options: only allowed together with \"stream\": true");
  if (options && (get_bool(options, "include_usage", &j->include_usage, e) < 0 ||
                  get_bool(options, "continuous_usage_stats", &j->continuous_usage, e) < 0))
    return -1;
  return 0;
}

static int parse_common(const struct api *a, const json_t *body, struct job *j, struct api_error *e) {
  const json_t *model = json_object_get(body, "model");
  if (model && !json_is_null(model) && !json_is_string(model))
    return api_error_set(e, 400, "invalid_value", "model", "body: model: expected a string");
  int best_of = 0;
  j->n = 1;
  j->prompt_logprobs = -1;
  if (refuse_unsupported(body, e) < 0 || parse_sampling(a, body, j, e) < 0 || parse_bias(a, body, j, e) < 0 ||
      parse_stop(a, body, j, e) < 0 || parse_stream(body, j, e) < 0 || get_int(body, "n", 1, a->choices_max, &j->n, e) < 0 ||
      get_int(body, "best_of", 1, INT_MAX, &best_of, e) < 0)
    return -1;
  return best_of > j->n ? refuse(e, "best_of", "more than n is not supported by this server") : 0;
}

/* ---- prompts -------------------------------------------------------------------------------------------------------------- */

static int add_ids(struct job *j, const int32_t *ids, size_t n) {
  struct job_prompt *p = &j->prompts[j->n_prompts++];
  p->ids = xcalloc(n + 1, sizeof *p->ids);
  if (n) memcpy(p->ids, ids, n * sizeof *ids);
  p->n_ids = n;
  return 0;
}

static int add_text(const struct api *a, const json_t *v, const char *param, struct job *j, struct api_error *e) {
  int32_t *ids = NULL;
  size_t n = 0;
  if (a->port.encode(a->port.self, json_string_value(v), json_string_length(v), 1, 1, &ids, &n) < 0 || !ids)
    return api_error_set(e, 400, "invalid_value", param, "body: %s: the text could not be tokenised", param);
  add_ids(j, ids, n);
  a->port.release(ids);
  struct job_prompt *p = &j->prompts[j->n_prompts - 1];
  if (j->echo) {
    p->n_text = json_string_length(v);
    p->text = xstrndup(json_string_value(v), p->n_text);
  }
  return 0;
}

static int add_json_ids(const struct api *a, const json_t *list, const char *param, struct job *j, struct api_error *e) {
  size_t n = json_array_size(list);
  int32_t *ids = xcalloc(n + 1, sizeof *ids);
  for (size_t i = 0; i < n; i++) {
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= a->info.vocab) {
      free(ids);
      return api_error_set(e, 400, "invalid_value", param, "body: %s[%zu]: expected a token id from 0 to %d", param, i, a->info.vocab - 1);
    }
    ids[i] = (int32_t)json_integer_value(v);
  }
  add_ids(j, ids, n);
  free(ids);
  struct job_prompt *p = &j->prompts[j->n_prompts - 1];
  if (j->echo) {
    char *text = a->port.decode(a->port.self, p->ids, p->n_ids, 0, &p->n_text);
    p->text = xstrndup(text ? text : "", text ? p->n_text : 0);
    a->port.release(text);
  }
  return 0;
}

/* A string, ids, or an array of either kind. */
int api_prompts(const struct api *a, const json_t *prompt, const char *param, struct job *j, struct api_error *e) {
  bool many = json_is_array(prompt) && json_array_size(prompt) && !json_is_integer(json_array_get(prompt, 0));
  size_t n = many ? json_array_size(prompt) : 1;
  if (!json_is_string(prompt) && (!json_is_array(prompt) || !json_array_size(prompt)))
    return api_error_set(e, 400, "invalid_value", param,
                         "body: %s: expected a string, an array of strings, an array of token ids, or an array of such arrays", param);
  if (n > (size_t)a->choices_max)
    return api_error_set(e, 400, "invalid_value", param, "body: %s: expected at most %d prompts, found %zu", param, a->choices_max, n);
  j->prompts = xcalloc(n, sizeof *j->prompts);
  for (size_t i = 0; i < n; i++) {
    const json_t *v = many ? json_array_get(prompt, i) : prompt;
    int r = 0;
    if (json_is_string(v)) r = add_text(a, v, param, j, e);
    else if (json_is_array(v) && json_array_size(v)) r = add_json_ids(a, v, param, j, e);
    else return api_error_set(e, 400, "invalid_value", param, "body: %s[%zu]: expected a string or an array of token ids", param, i);
    if (r) return -1;
  }
  return 0;
}

/* Room in the context: the phrase is what clients look for before they shorten a conversation. */
static int fit_prompts(const struct api *a, int max_tokens, const char *param, struct job *j, struct api_error *e) {
  for (int i = 0; i < j->n_prompts; i++) {
    struct job_prompt *p = &j->prompts[i];
    if (p->n_ids >= (size_t)a->info.ctx_tokens)
      return api_error_set(
          e, 400, "context_length_exceeded", param,
          "This model's maximum context length is %d tokens. However, your %s resulted in %zu tokens, and one more is needed for the answer. Please reduce the length of the %s.",
          a->info.ctx_tokens, param, p->n_ids, param);
    int room = a->info.ctx_tokens - (int)p->n_ids;
    p->max_tokens = max_tokens < 0 || max_tokens > room ? room : max_tokens;
    if (j->sampling.min_tokens > p->max_tokens)
      return api_error_set(e, 400, "invalid_value", "min_tokens", "body: min_tokens: expected at most %d, %s, found %d", p->max_tokens,
                           p->max_tokens == max_tokens ? "which is max_tokens" : "the room left in the context", j->sampling.min_tokens);
  }
  return 0;
}

void api_make_choices(struct call *c) {
  c->n_choices = c->job.n_prompts * c->job.n;
  c->choices = xcalloc((size_t)c->n_choices, sizeof *c->choices);
  for (int i = 0; i < c->n_choices; i++)
    c->choices[i] = (struct choice){.call = c, .index = i, .prompt = i / c->job.n, .matched_stop = -1, .matched_id = -1};
}

/* ---- /v1/completions -------------------------------------------------------------------------------------------------------- */

int openai_prepare_completion(const struct api *a, struct call *c, const json_t *body, struct api_error *e) {
  struct job *j = &c->job;
  int max_tokens = 16;
  j->logprobs = -1;
  if (parse_common(a, body, j, e) < 0 || get_int(body, "max_tokens", 1, INT_MAX, &max_tokens, e) < 0 ||
      get_int(body, "max_completion_tokens", 1, INT_MAX, &max_tokens, e) < 0 || get_bool(body, "echo", &j->echo, e) < 0 ||
      get_int(body, "logprobs", 0, LOGPROBS_MAX, &j->logprobs, e) < 0)
    return -1;
  if (j->echo && j->logprobs >= 0) return refuse(e, "logprobs", "echo together with logprobs is not supported by this server");
  if (!json_object_get(body, "prompt"))
    return api_error_set(e, 400, "missing_required_parameter", "prompt", "body: prompt: expected, not found");
  if (api_prompts(a, json_object_get(body, "prompt"), "prompt", j, e) < 0) return -1;
  if (j->n_prompts * j->n > a->choices_max)
    return api_error_set(e, 400, "invalid_value", "n", "body: n: expected at most %d choices over all prompts", a->choices_max);
  return fit_prompts(a, max_tokens, "prompt", j, e);
}

/* ---- /v1/chat/completions --------------------------------------------------------------------------------------------------- */

/* Options of the renderer, from the request's own fields and from chat_template_kwargs. */
static int render_options(const json_t *body, struct buf *out, struct api_error *e) {
  const json_t *kwargs = NULL;
  bool generation = true, go_on = false, thinking = false;
  if (get_object(body, "chat_template_kwargs", &kwargs, e) < 0) return -1;
  const json_t *sources[] = {body, kwargs};
  for (size_t i = 0; i < ARRAY_LEN(sources); i++)
    if (sources[i] &&
        (get_bool(sources[i], "add_generation_prompt", &generation, e) < 0 ||
         get_bool(sources[i], "continue_final_message", &go_on, e) < 0 || get_bool(sources[i], "enable_thinking", &thinking, e) < 0))
      return -1;
  if (go_on) generation = false;
  buf_printf(out, "{\"add_generation_prompt\":%s,\"continue_final_message\":%s,\"enable_thinking\":%s}", generation ? "true" : "false",
             go_on ? "true" : "false", thinking ? "true" : "false");
  return 0;
}

/* A message without content is taken for an empty one only where it carries something else, or says null. */
static int check_contents(const json_t *messages, struct api_error *e) {
  static const char *const instead[] = {"content", "tool_calls", "function_call", "refusal"};
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

static int render(const struct api *a, const json_t *body, struct job *j, struct api_error *e) {
  const json_t *messages = json_object_get(body, "messages");
  struct buf text, options;
  struct cygnet_error why = {0};
  int32_t *ids = NULL;
  size_t n = 0;
  if (!messages) return api_error_set(e, 400, "missing_required_parameter", "messages", "body: messages: expected, not found");
  if (!json_is_array(messages) || !json_array_size(messages))
    return api_error_set(e, 400, "invalid_value", "messages", "body: messages: expected an array that is not empty");
  if (check_contents(messages, e) < 0) return -1;
  buf_init(&text, 0);
  buf_init(&options, 0);
  int r = render_options(body, &options, e);
  if (r == 0) {
    json_put(&text, messages);
    r = a->port.render(a->port.self, buf_cstr(&text), NULL, buf_cstr(&options), &ids, &n, &why);
    if (r < 0) api_error_set(e, why.status >= 400 ? why.status : 400, "invalid_value", "messages", "%s", why.message);
  }
  buf_free(&text);
  buf_free(&options);
  if (r < 0) return -1;
  j->prompts = xcalloc(1, sizeof *j->prompts);
  add_ids(j, ids, n);
  a->port.release(ids);
  if (!n) return api_error_set(e, 400, "invalid_value", "messages", "body: messages: nothing to answer");
  return 0;
}

int openai_prepare_chat(const struct api *a, struct call *c, const json_t *body, struct api_error *e) {
  struct job *j = &c->job;
  int max_tokens = -1, top_logprobs = 0;
  bool logprobs = false;
  if (parse_common(a, body, j, e) < 0 || get_int(body, "max_tokens", 1, INT_MAX, &max_tokens, e) < 0 ||
      get_int(body, "max_completion_tokens", 1, INT_MAX, &max_tokens, e) < 0 || get_bool(body, "logprobs", &logprobs, e) < 0)
    return -1;
  bool echo = false;
  if (get_bool(body, "echo", &echo, e) < 0) return -1;
  if (echo) return refuse(e, "echo", "not supported for conversations");
  int given = get_int(body, "top_logprobs", 0, LOGPROBS_MAX, &top_logprobs, e);
  if (given < 0) return -1;
  if (given && top_logprobs && !logprobs)
    return api_error_set(e, 400, "invalid_value", "top_logprobs", "body: top_logprobs: only allowed together with \"logprobs\": true");
  j->logprobs = logprobs ? top_logprobs : -1;
  if (render(a, body, j, e) < 0) return -1;
  return fit_prompts(a, max_tokens, "messages", j, e);
}
