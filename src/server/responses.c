/* responses.c — OpenAI's /v1/responses. Nothing is stored: an answer cannot be fetched or continued by its id later.
 *
 * A response object repeats most of what was asked. These fields are written once, by prep, into job.repeated: `"model":"..",...`
 * On the io thread choices[0].text is the answer so far, .logprobs its tokens, .unsent_logprobs those of them that no delta has carried yet.
 * The stream:
 *
 *   created, in_progress, output_item.added, content_part.added, output_text.delta ..., output_text.done, content_part.done,
 *   output_item.done, completed | incomplete, or after any of them failed. An aborted one is incomplete with the status "cancelled".
 */
#include <limits.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
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
static const struct translate_shape shape = {
    .list = "input", .system = "instructions", .own = own_fields, .renames = {{"max_output_tokens", "max_tokens"}}};

/* What is repeated in the answer. */
struct wishes {
  bool parallel_tool_calls, logprobs;
  int top_logprobs, max_tool_calls, max_output_tokens; /* < 0: not given */
  const char *tool_choice, *truncation;
};

static void refuse_unsupported(struct params *p) {
  static const char *const stored[] = {"previous_response_id", "conversation", "prompt"};
  static const char *const others[] = {"background",      "background_options",  "tools", "context_management", "moderation", "image",
                                       "access_programs", "prompt_cache_options"};
  for (size_t i = 0; i < ARRAY_LEN(stored); i++)
    if (params_is_given(json_object_get(p->object, stored[i])))
      params_refuse(p, stored[i], "nothing is stored by this server; send the whole conversation as input");
  params_refuse_all(p, others, ARRAY_LEN(others));
}

static void check_reasoning(struct params *p) {
  const json_t *reasoning = NULL;
  params_object(p, "reasoning", &reasoning);
  params_refuse_reasoning(p);
}

static void check_text(struct params *p) {
  static const char *const levels[] = {"low", "medium", "high", NULL};
  const json_t *text = NULL;
  params_object(p, "text", &text);
  struct params inner = params_of(text, "body: text", p->e);
  if (p->failed) return;
  params_refuse_format(&inner, "format");
  const char *verbosity = translate_word(&inner, "verbosity", levels);
  if (verbosity && strcmp(verbosity, "medium")) params_refuse(&inner, "verbosity", "only \"medium\" is supported by this model");
  p->failed = inner.failed;
  if (p->failed) translate_nest(p->e, "text");
}

static void check_include(struct params *p, struct wishes *w) {
  const json_t *include = NULL;
  char shown[60];
  params_array(p, "include", &include);
  for (size_t i = 0; i < json_array_size(include); i++) {
    const char *name = json_string_value(json_array_get(include, i));
    w->logprobs = name && !strcmp(name, "message.output_text.logprobs");
    if (!w->logprobs)
      params_fail(p, "include", "[%zu]: only \"message.output_text.logprobs\" is supported by this server, found \"%s\"", i,
                  str_escape(str_c(name ? name : ""), shown, sizeof shown));
  }
  if (params_int(p, "top_logprobs", 0, TOP_LOGPROBS_MAX, &w->top_logprobs) && w->top_logprobs && !w->logprobs)
    params_fail(p, "top_logprobs", "only allowed together with \"include\": [\"message.output_text.logprobs\"]");
}

static void check_tool_fields(struct params *p, struct wishes *w) {
  const json_t *choice = json_object_get(p->object, "tool_choice");
  params_refuse_choice(p, "tool_choice");
  if (params_is_given(choice)) w->tool_choice = json_string_value(choice);
  params_bool(p, "parallel_tool_calls", &w->parallel_tool_calls);
  params_int(p, "max_tool_calls", 1, INT_MAX, &w->max_tool_calls);
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

static void read_fields(struct params *p, struct wishes *w) {
  double temperature;
  refuse_unsupported(p);
  check_reasoning(p);
  check_text(p);
  check_include(p, w);
  check_tool_fields(p, w);
  check_metadata(p);
  check_stream_options(p);
  check_labels(p, w);
  params_float(p, "temperature", 0, TEMPERATURE_MAX, &temperature);
  params_int(p, "max_output_tokens", 1, INT_MAX, &w->max_output_tokens);
}

/* ---- the request: turns ---------------------------------------------------------------------------------------------------- */

static void add_item(struct params *p, struct translation *t, const json_t *item, size_t i) {
  static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
  static const char *const types[] = {"input_text", "output_text", "text", NULL};
  const char *type = json_string_value(json_object_get(item, "type")), *role = json_string_value(json_object_get(item, "role"));
  char path[64], shown[60];
  snprintf(path, sizeof path, "input[%zu].content", i);
  if (!json_is_object(item)) {
    translate_fail(p, "input", "input[%zu]: expected an object", i);
  } else if (type ? !strcmp(type, "item_reference") : !role && json_object_get(item, "id")) {
    translate_fail(p, "input", "input[%zu]: nothing is stored by this server, so there is no item to refer to", i);
  } else if (type && strcmp(type, "message")) {
    translate_fail(p, "input", "input[%zu].type: expected \"message\", found \"%s\"", i, str_escape(str_c(type), shown, sizeof shown));
  } else if (!translate_is_one(role, roles)) {
    translate_fail(p, "input", "input[%zu].role: expected user, assistant, system or developer, found \"%s\"", i,
                   str_escape(str_c(role ? role : ""), shown, sizeof shown));
  } else {
    json_t *content = translate_content(p, json_object_get(item, "content"), path, "input", types);
    if (content) translate_add(t, role, content, (int)i, false);
  }
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
  json_t *o = json_object(), *metadata = json_object_get(body, "metadata");
  json_object_set_new(o, "model", json_string(a->model));
  for (size_t i = 0; i < ARRAY_LEN(copied); i++) json_object_set_new(o, copied[i], copy_or_null(body, copied[i]));
  json_object_set_new(o, "metadata", json_is_object(metadata) ? json_incref(metadata) : json_object());
  json_object_set_new(o, "background", json_false());
  json_object_set_new(o, "store", json_false());
  json_object_set_new(o, "previous_response_id", json_null());
  json_object_set_new(o, "max_output_tokens", int_or_null(w->max_output_tokens));
  json_object_set_new(o, "max_tool_calls", int_or_null(w->max_tool_calls));
  json_object_set_new(o, "parallel_tool_calls", json_boolean(w->parallel_tool_calls));
  json_object_set_new(o, "tool_choice", word_or(w->tool_choice, "auto"));
  json_object_set_new(o, "tools", json_array());
  json_object_set_new(o, "temperature", json_real(j->sampling.temperature));
  json_object_set_new(o, "top_p", json_real(j->sampling.top_p > 0 ? j->sampling.top_p : 1));
  json_object_set_new(o, "top_logprobs", json_integer(w->top_logprobs));
  json_object_set_new(o, "truncation", word_or(w->truncation, "disabled"));
  json_object_set_new(o, "service_tier", json_string("default"));
  json_object_set_new(o, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
  json_object_set_new(o, "text", json_pack("{s:{s:s}, s:s}", "format", "type", "text", "verbosity", "medium"));
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
  read_fields(&p, &w);
  add_turns(&p, &t);
  if (w.logprobs) {
    json_object_set_new(t.chat, "logprobs", json_true());
    json_object_set_new(t.chat, "top_logprobs", json_integer(w.top_logprobs));
  }
  translate_prepare(&p, a, c, &t);
  if (p.failed && translate_too_long(e))
    api_error_set(e, 400, e->code, "input", "your input is too long for this model's context window: %zu tokens, and at most %d fit",
                  c->job.prompts[0].n_ids, a->info.ctx_tokens - 1);
  if (!p.failed) c->job.repeated = repeated_fields(a, body, &c->job, &w);
  translate_close(&t);
  return params_end(&p);
}

/* ---- pieces of answers -------------------------------------------------------------------------------------------------------- */

enum stage { STAGE_EMPTY, STAGE_WHOLE }; /* of a part that was added, and of one that is done */

static void put_part(struct buf *out, const struct choice *o, enum stage stage) {
  buf_puts(out, "{\"type\":\"output_text\",\"text\":");
  if (stage == STAGE_WHOLE) api_put_string(out, buf_cstr(&o->text), o->text.len);
  else buf_puts(out, "\"\"");
  buf_printf(out, ",\"annotations\":[],\"logprobs\":[%s]}", stage == STAGE_WHOLE ? buf_cstr(&o->logprobs) : "");
}

static const char *item_hex(const struct call *c) { return c->id + strlen(c->dialect->id_prefix); }

static void put_item(struct buf *out, const struct call *c, const char *status, enum stage stage) {
  buf_printf(out, "{\"id\":\"msg_%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", item_hex(c), status);
  if (stage == STAGE_WHOLE) put_part(out, &c->choices[0], stage);
  buf_puts(out, "]}");
}

static void put_usage(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  size_t input = c->job.prompts[0].n_ids;
  buf_printf(out, "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0},", input,
             o->cached_tokens);
  buf_printf(out, "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%zu}", o->completion_tokens,
             input + (size_t)o->completion_tokens);
}

/* The object at an end (finish or failure) or, with neither, before the first token. */
static void put_response(struct buf *out, const struct call *c, const char *finish, const struct api_error *failure) {
  const char *status = failure                    ? "failed"
                       : !finish                  ? "in_progress"
                       : !strcmp(finish, "stop")  ? "completed"
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
  if (ended) put_item(out, c, completed ? "completed" : "incomplete", STAGE_WHOLE);
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
static bool send_item(struct buf *out, struct call *c, const char *name, const char *status, enum stage stage) {
  begin_event(out, c, name);
  buf_puts(out, ",\"output_index\":0,\"item\":");
  put_item(out, c, status, stage);
  return send_event(out, c, name);
}
static void begin_part_event(struct buf *out, struct call *c, const char *name) {
  begin_event(out, c, name);
  buf_printf(out, ",\"item_id\":\"msg_%s\",\"output_index\":0,\"content_index\":0", item_hex(c));
}
static bool send_part(struct buf *out, struct call *c, const char *name, enum stage stage) {
  begin_part_event(out, c, name);
  buf_puts(out, ",\"part\":");
  put_part(out, &c->choices[0], stage);
  return send_event(out, c, name);
}
/* field: "delta" or "text". */
static bool send_text(struct buf *out, struct call *c, const char *name, const char *field, const struct buf *text,
                      const struct buf *logprobs) {
  begin_part_event(out, c, name);
  buf_printf(out, ",\"%s\":", field);
  api_put_string(out, buf_cstr(text), text->len);
  buf_printf(out, ",\"logprobs\":[%s]", buf_cstr(logprobs));
  return send_event(out, c, name);
}

static bool send_opening(struct buf *out, struct call *c) {
  return send_response(out, c, "response.created", NULL, NULL) && send_response(out, c, "response.in_progress", NULL, NULL) &&
         send_item(out, c, "response.output_item.added", "in_progress", STAGE_EMPTY) &&
         send_part(out, c, "response.content_part.added", STAGE_EMPTY);
}
static bool send_ending(struct buf *out, struct call *c, const char *finish) {
  const struct choice *o = &c->choices[0];
  bool completed = !strcmp(finish, "stop");
  return send_text(out, c, "response.output_text.done", "text", &o->text, &o->logprobs) &&
         send_part(out, c, "response.content_part.done", STAGE_WHOLE) &&
         send_item(out, c, "response.output_item.done", completed ? "completed" : "incomplete", STAGE_WHOLE) &&
         send_response(out, c, completed ? "response.completed" : "response.incomplete", finish, NULL);
}

static void stream_message(struct call *c, const struct message *m) {
  struct choice *o = &c->choices[0];
  struct buf event;
  buf_init(&event, API_BODY_MAX);
  api_begin_stream(c);
  bool sent = o->begun || send_opening(&event, c);
  o->begun = true;
  if (sent && (m->text.len || (o->finish && o->unsent_logprobs.len))) {
    sent = send_text(&event, c, "response.output_text.delta", "delta", &m->text, &o->unsent_logprobs);
    buf_clear(&o->unsent_logprobs);
  }
  if (sent && m->last && send_ending(&event, c, o->finish ? o->finish : "abort")) api_end_stream(c);
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
  buf_append(&o->text, m->text.data, m->text.len);
  if (c->job.logprobs >= 0) {
    api_put_chat_logprobs(a, &o->logprobs, m);
    api_put_chat_logprobs(a, &o->unsent_logprobs, m);
  }
  if (c->job.stream) stream_message(c, m);
  else if (m->last) reply_whole(c);
}

const struct dialect dialect_responses = {.name = "responses", .id_prefix = "resp_", .prepare = prepare, .message = message, .fail = fail};
