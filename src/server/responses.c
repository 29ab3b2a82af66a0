/* responses.c — OpenAI's /v1/responses. Nothing is stored: an answer cannot be fetched or continued by its id later.
 *
 * A response object repeats most of what was asked. These fields are written once, by prep, into job.repeated: `"model":"..",...`
 * On the io thread choices[0].blocks are the items of the answer so far: thoughts, messages, calls of functions. .unsent_logprobs are those of tokens
 * that no message has yet. The stream:
 *
 *   created, in_progress, for each item its events, completed | incomplete, or after any of them failed
 *     a message     output_item.added, content_part.added, output_text.delta ..., output_text.done, content_part.done, output_item.done
 *     thoughts      the same with reasoning_text
 *     a call        output_item.added, function_call_arguments.delta, function_call_arguments.done, output_item.done
 *
 * An aborted answer is incomplete with the status "cancelled".
 */
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/parts.h"
#include "server/translate.h"

enum { TOP_LOGPROBS_MAX = 20, METADATA_MAX = 16, METADATA_KEY_MAX = 64, METADATA_VALUE_MAX = 512, LABEL_MAX = 512, TEMPERATURE_MAX = 2 };

/* ---- the request: what is asked besides text ----------------------------------------------------------------------------- */

static const char *const own_fields[] = {"input",
                                         "instructions",
                                         "text",
                                         "tools",
                                         "tool_choice",
                                         "parallel_tool_calls",
                                         "max_tool_calls",
                                         "reasoning",
                                         "include",
                                         "top_logprobs",
                                         "store",
                                         "background",
                                         "background_options",
                                         "previous_response_id",
                                         "conversation",
                                         "prompt",
                                         "context_management",
                                         "moderation",
                                         "image",
                                         "access_programs",
                                         "metadata",
                                         "truncation",
                                         "stream_options",
                                         "user",
                                         "safety_identifier",
                                         "prompt_cache_key",
                                         "prompt_cache_retention",
                                         "prompt_cache_options",
                                         "service_tier",
                                         NULL};
static const struct translate_shape shape = {.list = "input",
                                             .system = "instructions",
                                             .own = own_fields,
                                             .renames = {{"max_output_tokens", "max_tokens"}},
                                             .errors = {{"reasoning", "reasoning_effort"}, {"text.format", "response_format"}}};

/* What is repeated in the answer. */
struct wishes {
  bool parallel_tool_calls, logprobs;
  int top_logprobs, max_tool_calls, max_output_tokens; /* < 0: not given */
  const char *effort, *summary, *truncation;
  const json_t *format; /* NULL: text */
};

static void refuse_unsupported(struct params *p) {
  static const char *const stored[] = {"previous_response_id", "conversation", "prompt"};
  static const char *const others[] = {"background", "background_options", "context_management",  "moderation",
                                       "image",      "access_programs",    "prompt_cache_options"};
  for (size_t i = 0; i < ARRAY_LEN(stored); i++)
    if (params_is_given(json_object_get(p->object, stored[i])))
      params_refuse(p, stored[i], "nothing is stored by this server; send the whole conversation as input");
  params_refuse_all(p, others, ARRAY_LEN(others));
}

/* Thoughts are given as they are, so a summary of any kind can be had. */
static void read_reasoning(struct params *p, struct wishes *w, json_t *chat) {
  static const char *const summaries[] = {"auto", "concise", "detailed", NULL};
  const json_t *reasoning = NULL;
  size_t n;
  params_object(p, "reasoning", &reasoning);
  struct params inner = params_of(reasoning, "body: reasoning", p->e);
  inner.failed = p->failed;
  params_string(&inner, "effort", LABEL_MAX, &w->effort, &n);
  w->summary = translate_word(&inner, "summary", summaries);
  if (!w->summary) w->summary = translate_word(&inner, "generate_summary", summaries);
  p->failed = inner.failed;
  if (p->failed && reasoning) translate_nest(p->e, "reasoning");
  if (w->effort) json_object_set_new(chat, "reasoning_effort", json_string(w->effort));
}

static void read_text(struct params *p, struct wishes *w, json_t *chat) {
  static const char *const levels[] = {"low", "medium", "high", NULL};
  const json_t *text = NULL;
  params_object(p, "text", &text);
  struct params inner = params_of(text, "body: text", p->e);
  if (p->failed) return;
  params_object(&inner, "format", &w->format);
  const char *verbosity = translate_word(&inner, "verbosity", levels);
  if (verbosity && strcmp(verbosity, "medium")) params_refuse(&inner, "verbosity", "only \"medium\" is supported by this model");
  p->failed = inner.failed;
  if (p->failed) translate_nest(p->e, "text");
  else if (w->format) json_object_set(chat, "response_format", (json_t *)(uintptr_t)w->format);
}

static void check_include(struct params *p, struct wishes *w) {
  const json_t *include = NULL;
  char shown[60];
  params_array(p, "include", &include);
  for (size_t i = 0; i < json_array_size(include); i++) {
    const char *name = json_string_value(json_array_get(include, i));
    bool logprobs = name && !strcmp(name, "message.output_text.logprobs");
    w->logprobs |= logprobs;
    /* thoughts are never encrypted here: what is asked for stands in the items' content */
    if (!logprobs && !(name && !strcmp(name, "reasoning.encrypted_content")))
      params_fail(p, "include", "[%zu]: only \"message.output_text.logprobs\" is supported by this server, found \"%s\"", i,
                  str_escape(str_c(name ? name : ""), shown, sizeof shown));
  }
  if (params_int(p, "top_logprobs", 0, TOP_LOGPROBS_MAX, &w->top_logprobs) && w->top_logprobs && !w->logprobs)
    params_fail(p, "top_logprobs", "only allowed together with \"include\": [\"message.output_text.logprobs\"]");
}

/* {"type": "function", "name", ...} → {"type": "function", "function": {"name", ...}} */
static void add_tool(struct params *p, json_t *tools, json_t *tool, size_t i) {
  const char *type = json_string_value(json_object_get(tool, "type"));
  char shown[60];
  if (!json_is_object(tool)) params_fail(p, "tools", "[%zu]: expected an object", i);
  else if (!type || strcmp(type, "function"))
    params_fail(p, "tools", "[%zu].type: expected \"function\", all that this server takes, found \"%s\"", i,
                str_escape(str_c(type ? type : ""), shown, sizeof shown));
  else json_array_append_new(tools, translate_tool(tool, "parameters"));
}

static void read_tools(struct params *p, struct wishes *w, json_t *chat) {
  static const char *const same[] = {"tool_choice", "parallel_tool_calls"};
  const json_t *list = NULL;
  params_array(p, "tools", &list);
  params_bool(p, "parallel_tool_calls", &w->parallel_tool_calls);
  params_int(p, "max_tool_calls", 1, INT_MAX, &w->max_tool_calls); /* of tools that a server runs itself: there are none */
  json_t *tools = json_array();
  for (size_t i = 0; i < json_array_size(list) && !p->failed; i++) add_tool(p, tools, json_array_get(list, i), i);
  if (json_array_size(tools)) json_object_set(chat, "tools", tools);
  json_decref(tools);
  for (size_t i = 0; i < ARRAY_LEN(same); i++) {
    json_t *v = json_object_get(p->object, same[i]);
    if (v) json_object_set(chat, same[i], v);
  }
}

static void check_metadata(struct params *p) {
  const json_t *metadata = NULL, *v;
  const char *key;
  char shown[90];
  params_object(p, "metadata", &metadata);
  if (json_object_size(metadata) > METADATA_MAX)
    params_fail(p, "metadata", "expected at most %d pairs, found %zu", METADATA_MAX, json_object_size(metadata));
  json_object_foreach((json_t *)(uintptr_t)metadata, key, v) {
    str_escape(str_c(key), shown, sizeof shown);
    if (strlen(key) > METADATA_KEY_MAX)
      params_fail(p, "metadata", "\"%s\": expected at most %d bytes in a key, found %zu", shown, METADATA_KEY_MAX, strlen(key));
    if (!json_is_string(v) || json_string_length(v) > METADATA_VALUE_MAX)
      params_fail(p, "metadata", "\"%s\": expected a string of at most %d bytes", shown, METADATA_VALUE_MAX);
  }
}

static void check_stream_options(struct params *p) {
  const json_t *options = NULL;
  bool stream = false, obfuscation = false;
  params_bool(p, "stream", &stream);
  params_object(p, "stream_options", &options);
  if (params_is_given(options) && !stream) params_fail(p, "stream_options", "only allowed together with \"stream\": true");
  struct params inner = params_of(options, "body: stream_options", p->e);
  if (p->failed) return;
  if (params_bool(&inner, "include_obfuscation", &obfuscation) && obfuscation)
    params_refuse(&inner, "include_obfuscation", "not supported by this server");
  p->failed = inner.failed;
  if (p->failed) translate_nest(p->e, "stream_options");
}

static void check_labels(struct params *p, struct wishes *w) {
  static const char *const names[] = {"user", "safety_identifier", "prompt_cache_key"};
  static const char *const truncations[] = {"disabled", "auto", NULL};
  static const char *const retentions[] = {"in_memory", "in-memory", "24h", NULL};
  static const char *const tiers[] = {"auto", "default", "flex", "scale", "priority", NULL};
  const char *s;
  size_t n;
  bool store;
  for (size_t i = 0; i < ARRAY_LEN(names); i++) params_string(p, names[i], LABEL_MAX, &s, &n);
  params_bool(p, "store", &store); /* whatever it says: the answer says false */
  w->truncation = translate_word(p, "truncation", truncations);
  translate_word(p, "prompt_cache_retention", retentions);
  translate_word(p, "service_tier", tiers);
}

static void read_fields(struct params *p, struct wishes *w, json_t *chat) {
  double temperature;
  refuse_unsupported(p);
  read_reasoning(p, w, chat);
  read_text(p, w, chat);
  check_include(p, w);
  read_tools(p, w, chat);
  check_metadata(p);
  check_stream_options(p);
  check_labels(p, w);
  params_float(p, "temperature", 0, TEMPERATURE_MAX, &temperature);
  params_int(p, "max_output_tokens", 1, INT_MAX, &w->max_output_tokens);
}

/* ---- the request: turns ---------------------------------------------------------------------------------------------------- */

/* {"type": "reasoning", "content": [{"type": "reasoning_text", "text"}], "summary": [{"type": "summary_text", "text"}]} */
static void add_reasoning(struct translation *t, const json_t *item, size_t i) {
  struct buf text;
  buf_init(&text, 0);
  translate_flatten(json_object_get(item, "content"), &text);
  if (!text.len) translate_flatten(json_object_get(item, "summary"), &text);
  if (text.len) translate_add_thought(t, text.data, text.len, (int)i);
  buf_free(&text);
}

static void add_call(struct params *p, struct translation *t, const json_t *item, size_t i) {
  const char *id = json_string_value(json_object_get(item, "call_id")), *name = json_string_value(json_object_get(item, "name"));
  json_t *arguments = json_object_get(item, "arguments");
  if (!name) translate_fail(p, "input", "input[%zu].name: expected a string", i);
  else if (!json_is_string(arguments)) translate_fail(p, "input", "input[%zu].arguments: expected a string", i);
  else translate_add_call(t, id, name, json_incref(arguments), (int)i);
}

/* {"type": "input_image", "image_url", "detail"}, {"type": "input_audio", "input_audio": {"data", "format"}} */
static json_t *media_part(struct params *p, const json_t *part, const char *path, size_t i) {
  const char *type = json_string_value(json_object_get(part, "type")), *detail = json_string_value(json_object_get(part, "detail"));
  bool image = type && !strcmp(type, "input_image"), audio = type && !strcmp(type, "input_audio");
  const json_t *file = json_object_get(part, "file_id");
  if (type && !strcmp(type, "input_file")) translate_fail(p, "input", "%s[%zu]: files are not taken by this server", path, i);
  else if (image && params_is_given(file)) translate_fail(p, "input", "%s[%zu].file_id: nothing is stored by this server", path, i);
  if (p->failed) return NULL;
  if (image) return translate_media("image_url", json_object_get(part, "image_url"), detail, path, i);
  return audio ? translate_media("input_audio", json_object_get(part, "input_audio"), NULL, path, i) : NULL;
}

static void add_output(struct params *p, struct translation *t, const json_t *item, size_t i) {
  static const char *const types[] = {"input_text", "output_text", "text", NULL};
  char path[64];
  snprintf(path, sizeof path, "input[%zu].output", i);
  json_t *content = translate_content_with(p, json_object_get(item, "output"), path, "input", types, media_part);
  if (content) translate_add_result(t, json_string_value(json_object_get(item, "call_id")), content, (int)i);
}

static void add_message(struct params *p, struct translation *t, const json_t *item, size_t i) {
  static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
  static const char *const types[] = {"input_text", "output_text", "text", NULL};
  const char *role = json_string_value(json_object_get(item, "role"));
  char path[64], shown[60];
  snprintf(path, sizeof path, "input[%zu].content", i);
  if (!translate_is_one(role, roles)) {
    translate_fail(p, "input", "input[%zu].role: expected user, assistant, system or developer, found \"%s\"", i,
                   str_escape(str_c(role ? role : ""), shown, sizeof shown));
    return;
  }
  json_t *content = translate_content_with(p, json_object_get(item, "content"), path, "input", types, media_part);
  if (content) translate_add(t, role, content, (int)i, false);
}

static void add_item(struct params *p, struct translation *t, const json_t *item, size_t i) {
  const char *type = json_string_value(json_object_get(item, "type")), *role = json_string_value(json_object_get(item, "role"));
  char shown[60];
  if (!json_is_object(item)) translate_fail(p, "input", "input[%zu]: expected an object", i);
  else if (type ? !strcmp(type, "item_reference") : !role && json_object_get(item, "id"))
    translate_fail(p, "input", "input[%zu]: nothing is stored by this server, so there is no item to refer to", i);
  else if (!type || !strcmp(type, "message")) add_message(p, t, item, i);
  else if (!strcmp(type, "reasoning")) add_reasoning(t, item, i);
  else if (!strcmp(type, "function_call")) add_call(p, t, item, i);
  else if (!strcmp(type, "function_call_output")) add_output(p, t, item, i);
  else
    translate_fail(p, "input",
                   "input[%zu].type: expected \"message\", \"reasoning\", \"function_call\" or \"function_call_output\", found \"%s\"", i,
                   str_escape(str_c(type), shown, sizeof shown));
}

static void add_turns(struct params *p, struct translation *t) {
  json_t *input = json_object_get(p->object, "input"), *instructions = json_object_get(p->object, "instructions");
  if (params_is_given(instructions) && !json_is_string(instructions)) params_fail(p, "instructions", "expected a string");
  if (p->failed) return;
  if (params_is_given(instructions)) translate_add(t, "system", json_incref(instructions), -1, false);
  if (json_is_string(input) && json_string_length(input)) translate_add(t, "user", json_incref(input), 0, false);
  else if (!input || json_is_null(input)) params_missing(p, "input");
  else if (!json_array_size(input)) params_fail(p, "input", "expected a string or an array of items that is not empty");
  for (size_t i = 0; i < json_array_size(input) && !p->failed; i++) add_item(p, t, json_array_get(input, i), i);
}

/* ---- the request: as a whole ------------------------------------------------------------------------------------------------ */

static json_t *copy_or_null(const json_t *body, const char *key) {
  json_t *v = json_object_get(body, key);
  return json_is_string(v) ? json_incref(v) : json_null();
}
static json_t *int_or_null(int v) { return v < 0 ? json_null() : json_integer(v); }
static json_t *word_or(const char *word, const char *instead) { return json_string(word ? word : instead); }

/* Returns owned. */
static char *repeated_fields(const struct api *a, const json_t *body, const struct job *j, const struct wishes *w) {
  static const char *const copied[] = {"instructions", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"};
  struct buf text;
  json_t *o = json_object(), *metadata = json_object_get(body, "metadata"), *tools = json_object_get(body, "tools"),
         *choice = json_object_get(body, "tool_choice");
  json_object_set_new(o, "model", json_string(a->model));
  for (size_t i = 0; i < ARRAY_LEN(copied); i++) json_object_set_new(o, copied[i], copy_or_null(body, copied[i]));
  json_object_set_new(o, "metadata", json_is_object(metadata) ? json_incref(metadata) : json_object());
  json_object_set_new(o, "background", json_false());
  json_object_set_new(o, "store", json_false());
  json_object_set_new(o, "previous_response_id", json_null());
  json_object_set_new(o, "max_output_tokens", int_or_null(w->max_output_tokens));
  json_object_set_new(o, "max_tool_calls", int_or_null(w->max_tool_calls));
  json_object_set_new(o, "parallel_tool_calls", json_boolean(w->parallel_tool_calls));
  json_object_set_new(o, "tool_choice", params_is_given(choice) ? json_incref(choice) : json_string("auto"));
  json_object_set_new(o, "tools", json_is_array(tools) ? json_incref(tools) : json_array());
  json_object_set_new(o, "temperature", json_real(j->sampling.temperature));
  json_object_set_new(o, "top_p", json_real(j->sampling.top_p > 0 ? j->sampling.top_p : 1));
  json_object_set_new(o, "top_logprobs", json_integer(w->top_logprobs));
  json_object_set_new(o, "truncation", word_or(w->truncation, "disabled"));
  json_object_set_new(o, "service_tier", json_string("default"));
  json_object_set_new(o, "reasoning", json_pack("{s:s?, s:s?}", "effort", w->effort, "summary", w->summary));
  json_t *format = json_object_size(w->format) ? json_incref((json_t *)(uintptr_t)w->format) : json_pack("{s:s}", "type", "text");
  json_object_set_new(o, "text", json_pack("{s:o, s:s}", "format", format, "verbosity", "medium"));
  buf_init(&text, 0);
  json_put(&text, o);
  json_decref(o);
  char *fields = xstrndup(text.data + 1, text.len - 2); /* without its braces */
  buf_free(&text);
  return fields;
}

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct wishes w = {.parallel_tool_calls = true, .max_tool_calls = -1, .max_output_tokens = -1};
  struct params p = params_of(body, "body", e);
  struct translation t;
  (void)reply;
  translate_open(&p, &t, &shape);
  read_fields(&p, &w, t.chat);
  add_turns(&p, &t);
  if (w.logprobs) {
    json_object_set_new(t.chat, "logprobs", json_true());
    json_object_set_new(t.chat, "top_logprobs", json_integer(w.top_logprobs));
  }
  translate_prepare(&p, a, c, &t);
  if (p.failed && translate_too_long(e))
    api_error_set(e, 400, e->code, "input", "your input is too long for this model's context window: %zu tokens, and at most %d fit",
                  job_prompt_tokens(&c->job.prompts[0]), a->info.ctx_tokens - 1);
  if (!p.failed) c->job.repeated = repeated_fields(a, body, &c->job, &w);
  translate_close(&t);
  return params_end(&p);
}

/* ---- pieces of answers -------------------------------------------------------------------------------------------------------- */

enum stage { STAGE_EMPTY, STAGE_WHOLE }; /* of an item or a part that was added, and of one that is done */

/* Of a message or a thought. */
static void put_part(struct buf *out, const struct block *b, enum stage stage) {
  struct str text = stage == STAGE_WHOLE ? str_of(buf_cstr(&b->text), b->text.len) : str_c("");
  bool message = b->kind == CYGNET_PART_CONTENT;
  buf_printf(out, "{\"type\":\"%s\",\"text\":", message ? "output_text" : "reasoning_text");
  api_put_string(out, text.p, text.n);
  if (message) buf_printf(out, ",\"annotations\":[],\"logprobs\":[%s]", stage == STAGE_WHOLE ? buf_cstr(&b->logprobs) : "");
  buf_putc(out, '}');
}

/* "msg_...", "rs_...", "fc_..." with the call's own digits; the second and later ones of an answer have a number, too. */
static void put_item_id(struct buf *out, const struct call *c, int i) {
  static const char *const prefixes[] = {[CYGNET_PART_CONTENT] = "msg_", [CYGNET_PART_REASONING] = "rs_", [CYGNET_PART_CALL] = "fc_"};
  buf_printf(out, "%s%s", prefixes[c->choices[0].blocks[i].kind], c->id + strlen(c->dialect->id_prefix));
  if (i) buf_printf(out, "_%d", i);
}

static void put_item(struct buf *out, const struct call *c, int i, const char *status, enum stage stage) {
  const struct choice *o = &c->choices[0];
  const struct block *b = &o->blocks[i];
  buf_puts(out, "{\"id\":\"");
  put_item_id(out, c, i);
  if (b->kind == CYGNET_PART_CALL) {
    const struct answer_call *call = &o->calls[b->call];
    buf_printf(out, "\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":", status, call->id);
    api_put_string(out, call->name, strlen(call->name));
    buf_puts(out, ",\"arguments\":");
    api_put_string(out, call->arguments, stage == STAGE_WHOLE ? call->n_arguments : 0);
    buf_putc(out, '}');
    return;
  }
  bool message = b->kind == CYGNET_PART_CONTENT;
  buf_printf(out, "\",\"type\":\"%s\",\"status\":\"%s\",%s\"content\":[", message ? "message" : "reasoning", status,
             message ? "\"role\":\"assistant\"," : "\"summary\":[],");
  if (stage == STAGE_WHOLE) put_part(out, b, stage);
  buf_puts(out, "]}");
}

static void put_usage(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  size_t input = job_prompt_tokens(&c->job.prompts[0]);
  buf_printf(out, "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0", input, o->cached_tokens);
  api_put_media_usage(out, c);
  buf_puts(out, "},");
  buf_printf(out, "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%zu}", o->completion_tokens,
             o->reasoning_tokens, input + (size_t)o->completion_tokens);
}

static bool is_natural(const char *finish) { return !strcmp(finish, "stop") || !strcmp(finish, "tool_calls"); }

/* All but the last item of an answer are complete whatever happened. */
static const char *status_of(const struct call *c, int i, bool completed) {
  return completed || i + 1 < c->choices[0].n_blocks ? "completed" : "incomplete";
}

/* The object at an end (finish or failure) or, with neither, before the first token. */
static void put_response(struct buf *out, const struct call *c, const char *finish, const struct api_error *failure) {
  const char *status = failure                    ? "failed"
                       : !finish                  ? "in_progress"
                       : is_natural(finish)       ? "completed"
                       : !strcmp(finish, "abort") ? "cancelled"
                                                  : "incomplete";
  bool completed = !strcmp(status, "completed"), ended = finish || failure;
  buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"completed_at\":", c->id,
             (long long)c->created, status);
  if (completed) buf_printf(out, "%lld", (long long)clock_unix_s());
  else buf_puts(out, "null");
  buf_puts(out, ",\"error\":");
  if (failure) {
    buf_printf(out, "{\"code\":\"%s\",\"message\":", failure->status < 500 ? "invalid_prompt" : "server_error");
    api_put_string(out, failure->message, strlen(failure->message));
    buf_putc(out, '}');
  } else {
    buf_puts(out, "null");
  }
  buf_printf(out, ",\"incomplete_details\":%s,\"output\":[", !strcmp(status, "incomplete") ? "{\"reason\":\"max_output_tokens\"}" : "null");
  for (int i = 0; ended && i < c->choices[0].n_blocks; i++) {
    if (i) buf_putc(out, ',');
    put_item(out, c, i, status_of(c, i, completed), STAGE_WHOLE);
  }
  buf_puts(out, "],\"usage\":");
  if (ended) put_usage(out, c);
  else buf_puts(out, "null");
  buf_printf(out, ",%s}", c->job.repeated);
}

/* ---- streaming --------------------------------------------------------------------------------------------------------------- */

/* `{"type":NAME,"sequence_number":N`, to go on with a comma. */
static void begin_event(struct buf *out, struct call *c, const char *name) {
  buf_clear(out);
  buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%d", name, c->n_events++);
}
static bool send_event(struct buf *out, struct call *c, const char *name) {
  buf_putc(out, '}');
  return http_sse_event(c->x, name, out->data, out->len);
}

static bool send_response(struct buf *out, struct call *c, const char *name, const char *finish, const struct api_error *failure) {
  begin_event(out, c, name);
  buf_puts(out, ",\"response\":");
  put_response(out, c, finish, failure);
  return send_event(out, c, name);
}
static bool send_item(struct buf *out, struct call *c, int i, const char *name, const char *status, enum stage stage) {
  begin_event(out, c, name);
  buf_printf(out, ",\"output_index\":%d,\"item\":", i);
  put_item(out, c, i, status, stage);
  return send_event(out, c, name);
}
/* Of item i, and of its one part if it has parts. */
static void begin_item_event(struct buf *out, struct call *c, int i, const char *name) {
  begin_event(out, c, name);
  buf_puts(out, ",\"item_id\":\"");
  put_item_id(out, c, i);
  buf_printf(out, "\",\"output_index\":%d", i);
  if (c->choices[0].blocks[i].kind != CYGNET_PART_CALL) buf_puts(out, ",\"content_index\":0");
}
static bool send_part(struct buf *out, struct call *c, int i, const char *name, enum stage stage) {
  begin_item_event(out, c, i, name);
  buf_puts(out, ",\"part\":");
  put_part(out, &c->choices[0].blocks[i], stage);
  return send_event(out, c, name);
}
/* field: "delta", "text" or "arguments". logprobs: of a message. */
static bool send_text(struct buf *out, struct call *c, int i, bool done, struct str text, const struct buf *logprobs) {
  static const char *const names[][2] = {
      [CYGNET_PART_CONTENT] = {"response.output_text.delta", "response.output_text.done"},
      [CYGNET_PART_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done"},
      [CYGNET_PART_CALL] = {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
  };
  const struct choice *o = &c->choices[0];
  enum cygnet_part_kind kind = o->blocks[i].kind;
  begin_item_event(out, c, i, names[kind][done]);
  if (done && kind == CYGNET_PART_CALL) {
    buf_puts(out, ",\"name\":");
    api_put_string(out, o->calls[o->blocks[i].call].name, strlen(o->calls[o->blocks[i].call].name));
  }
  buf_printf(out, ",\"%s\":", !done ? "delta" : kind == CYGNET_PART_CALL ? "arguments" : "text");
  api_put_string(out, text.p, text.n);
  if (kind == CYGNET_PART_CONTENT) buf_printf(out, ",\"logprobs\":[%s]", buf_cstr(logprobs));
  return send_event(out, c, names[kind][done]);
}

static bool send_begin(struct buf *out, struct call *c, int i) {
  c->choices[0].block_open = true;
  return send_item(out, c, i, "response.output_item.added", "in_progress", STAGE_EMPTY) &&
         (c->choices[0].blocks[i].kind == CYGNET_PART_CALL || send_part(out, c, i, "response.content_part.added", STAGE_EMPTY));
}
/* The last item is over. */
static bool send_end(struct buf *out, struct call *c, const char *status) {
  struct choice *o = &c->choices[0];
  int i = o->n_blocks - 1;
  const struct block *b = &o->blocks[i];
  bool call = b->kind == CYGNET_PART_CALL;
  struct str text = call ? str_of(o->calls[b->call].arguments, o->calls[b->call].n_arguments) : str_of(buf_cstr(&b->text), b->text.len);
  o->block_open = false;
  return send_text(out, c, i, true, text, &b->logprobs) && (call || send_part(out, c, i, "response.content_part.done", STAGE_WHOLE)) &&
         send_item(out, c, i, "response.output_item.done", status, STAGE_WHOLE);
}

/* ---- parts to items -------------------------------------------------------------------------------------------------------------- */

/* Log-probabilities wait for text of a message. */
static void take_logprobs(struct choice *o, struct block *b) {
  if (b->kind != CYGNET_PART_CONTENT || !o->unsent_logprobs.len) return;
  api_put_comma(&b->logprobs);
  buf_append(&b->logprobs, o->unsent_logprobs.data, o->unsent_logprobs.len);
}

/* A part (NULL: content without text) into its item, and if there is a stream, what that makes of events. */
static bool take_part(struct buf *event, struct call *c, const struct part *p) {
  struct choice *o = &c->choices[0];
  enum cygnet_part_kind kind = p ? p->kind : CYGNET_PART_CONTENT;
  bool begun, stream = c->job.stream, other = o->n_blocks && (kind == CYGNET_PART_CALL || o->blocks[o->n_blocks - 1].kind != kind);
  if (stream && other && o->block_open && !send_end(event, c, "completed")) return false;
  int i = parts_block(o, p, &begun);
  struct block *b = &o->blocks[i];
  take_logprobs(o, b);
  bool sent = !stream || !begun || send_begin(event, c, i);
  struct str text = kind == CYGNET_PART_CALL ? str_of(o->calls[b->call].arguments, o->calls[b->call].n_arguments)
                    : p                      ? parts_text(o, p)
                                             : str_c("");
  if (sent && stream && (p || o->unsent_logprobs.len)) sent = send_text(event, c, i, false, text, &o->unsent_logprobs);
  if (kind == CYGNET_PART_CONTENT) buf_clear(&o->unsent_logprobs);
  return sent;
}

/* An answer without anything is an empty message; tokens without text are a delta without text. */
static bool take_parts(struct buf *event, struct call *c) {
  struct choice *o = &c->choices[0];
  bool sent = true;
  for (int i = 0; i < o->n_parts && sent; i++) sent = take_part(event, c, &o->parts[i]);
  if (!sent || !o->finish) return sent;
  bool message = o->n_blocks && o->blocks[o->n_blocks - 1].kind == CYGNET_PART_CONTENT;
  return !o->n_blocks || (message && o->unsent_logprobs.len) ? take_part(event, c, NULL) : true;
}

static void stream_message(struct call *c, const struct message *m) {
  struct choice *o = &c->choices[0];
  struct buf event;
  buf_init(&event, API_BODY_MAX);
  api_begin_stream(c);
  bool sent = o->begun ||
              (send_response(&event, c, "response.created", NULL, NULL) && send_response(&event, c, "response.in_progress", NULL, NULL));
  o->begun = true;
  sent = sent && take_parts(&event, c);
  if (sent && m->last) {
    const char *finish = o->finish ? o->finish : "abort";
    bool completed = is_natural(finish);
    sent = (!o->block_open || send_end(&event, c, completed ? "completed" : "incomplete")) &&
           send_response(&event, c, completed ? "response.completed" : "response.incomplete", finish, NULL);
    if (sent) api_end_stream(c);
  }
  buf_free(&event);
}

static void fail(struct call *c, const struct api_error *e) {
  struct http_exchange *x = c->x;
  struct buf event;
  if (!c->sse) {
    c->x = NULL;
    api_reply_error(x, e);
    return;
  }
  buf_init(&event, API_BODY_MAX);
  if (send_response(&event, c, "response.failed", NULL, e)) api_end_stream(c);
  c->x = NULL;
  buf_free(&event);
}

/* ---- messages ------------------------------------------------------------------------------------------------------------------ */

static void reply_whole(struct call *c) {
  struct buf out;
  buf_init(&out, API_BODY_MAX);
  put_response(&out, c, c->choices[0].finish, NULL);
  api_reply_body(c, &out);
}

static void message(const struct api *a, struct call *c, const struct message *m) {
  if (api_take_whole(c, m)) return;
  struct choice *o = api_take_numbers(c, m);
  parts_take(a, o, m, false);
  if (c->job.logprobs >= 0) api_put_chat_logprobs(a, &o->unsent_logprobs, m);
  if (c->job.stream) {
    stream_message(c, m);
    return;
  }
  take_parts(NULL, c);
  if (m->last) reply_whole(c);
}

const struct dialect dialect_responses = {.name = "responses", .id_prefix = "resp_", .prepare = prepare, .message = message, .fail = fail};
