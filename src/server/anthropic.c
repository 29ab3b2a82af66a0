/* anthropic.c — Anthropic's /v1/messages and /v1/messages/count_tokens.
 *
 * usage counts as theirs does: input_tokens are those that did not come from the cache, cache_read_input_tokens those that did. The stream:
 *
 *   message_start, content_block_start, ping, content_block_delta ..., content_block_stop, message_delta, message_stop
 *   or at any place  error
 *
 * An answer that was cut off by an abort says max_tokens: of their reasons it is the one that means "not at its end".
 */
#include <limits.h>
#include <string.h>

#include "server/translate.h"

enum { USER_ID_BYTES = 512 };

/* ---- errors ------------------------------------------------------------------------------------------------------------------ */

static const char *error_type(int status) {
  switch (status) {
  case 401: return "authentication_error";
  case 403: return "permission_error";
  case 404: return "not_found_error";
  case 413: return "request_too_large";
  case 429: return "rate_limit_error";
  case 503: return "overloaded_error";
  default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

/* What went wrong inside is not the client's to read. */
static void put_error(struct buf *out, const struct api_error *e) {
  const char *text = e->status >= 500 && e->status != 501 && e->status != 503 ? "internal server error" : e->message;
  buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", error_type(e->status));
  api_put_string(out, text, strlen(text));
  buf_puts(out, "}}");
}

static void fail(struct call *c, const struct api_error *e) {
  struct http_exchange *x = c->x;
  struct buf body;
  buf_init(&body, 0);
  put_error(&body, e);
  if (!c->sse) {
    c->x = NULL;
    api_reply_error_body(x, e->status, &body);
  } else if (http_sse_event(x, "error", body.data, body.len)) {
    api_end_stream(c);
  }
  c->x = NULL;
  buf_free(&body);
}

/* ---- the request --------------------------------------------------------------------------------------------------------------- */

static const char *const own_fields[] = {
    "system",        "metadata",  "tools",         "tool_choice",        "thinking",     "output_config",
    "output_format", "container", "mcp_servers",   "context_management", "diagnostics",  "inference_geo",
    "service_tier",  "speed",     "cache_control", "user_profile_id",    "workspace_id", NULL};
static const struct translate_shape shape = {
    .list = "messages",
    .system = "system",
    .own = own_fields,
    .renames = {{"messages", "messages"}, {"max_tokens", "max_tokens"}, {"stop_sequences", "stop"}}};

static void refuse_unsupported(struct params *p) {
  static const char *const names[] = {"tools",       "output_config",      "output_format", "container",
                                      "mcp_servers", "context_management", "diagnostics",   "inference_geo"};
  const json_t *choice = json_object_get(p->object, "tool_choice"), *thinking = json_object_get(p->object, "thinking");
  const char *type = json_string_value(json_object_get(choice, "type"));
  params_refuse_all(p, names, ARRAY_LEN(names));
  if (params_is_given(choice) && (!type || (strcmp(type, "auto") && strcmp(type, "none"))))
    params_refuse(p, "tool_choice", "no tools were given");
  type = json_string_value(json_object_get(thinking, "type"));
  if (params_is_given(thinking) && (!type || strcmp(type, "disabled")))
    params_refuse(p, "thinking", "this model does not think in a separate channel");
}

static void check_fields(struct params *p) {
  static const char *const tiers[] = {"auto", "standard_only", NULL}, *const speeds[] = {"standard", NULL};
  const json_t *metadata = NULL, *stops = NULL;
  const char *user;
  double temperature;
  int top_k;
  size_t n;
  refuse_unsupported(p);
  translate_word(p, "service_tier", tiers);
  translate_word(p, "speed", speeds);
  params_float(p, "temperature", 0, 1, &temperature);
  params_int(p, "top_k", 0, INT_MAX, &top_k);
  params_array(p, "stop_sequences", &stops);
  params_object(p, "metadata", &metadata);
  if (p->failed) return;
  struct params inner = params_of(metadata, "body: metadata", p->e);
  params_string(&inner, "user_id", USER_ID_BYTES, &user, &n);
  p->failed = inner.failed;
  if (p->failed) translate_nest(p->e, "metadata");
}

static void add_system(struct params *p, struct translation *t) {
  static const char *const types[] = {"text", NULL};
  const json_t *system = json_object_get(p->object, "system");
  json_t *content = params_is_given(system) ? translate_content(p, system, "system", "system", types) : NULL;
  if (content) translate_add(t, "system", content, -1, false);
}

static bool is_empty(const json_t *content) {
  struct buf text;
  buf_init(&text, 0);
  translate_flatten(content, &text);
  bool empty = text.len == 0;
  buf_free(&text);
  return empty;
}

static void add_message(struct params *p, struct translation *t, const json_t *m, size_t i, bool last) {
  static const char *const roles[] = {"user", "assistant", "system", NULL}, *const types[] = {"text", NULL};
  const char *role = json_string_value(json_object_get(m, "role"));
  char path[64], shown[60];
  if (!json_is_object(m)) translate_fail(p, "messages", "messages[%zu]: expected an object", i);
  else if (!translate_is_one(role, roles))
    translate_fail(p, "messages", "messages[%zu].role: expected user or assistant, found \"%s\"", i,
                   str_escape(str_c(role ? role : ""), shown, sizeof shown));
  snprintf(path, sizeof path, "messages[%zu].content", i);
  json_t *content = translate_content(p, json_object_get(m, "content"), path, "messages", types);
  if (!content) return;
  if (!is_empty(content)) {
    translate_add(t, role, content, (int)i, true);
    return;
  }
  json_decref(content);
  if (!last || !i || strcmp(role, "assistant")) /* at the end it is as good as none */
    translate_fail(p, "messages", "%s: expected text that is not empty", path);
}

/* A last turn of the assistant is the beginning of the answer. */
static void add_messages(struct params *p, struct translation *t) {
  const json_t *messages = json_object_get(p->object, "messages");
  size_t n = json_array_size(messages);
  if (!messages || json_is_null(messages)) params_missing(p, "messages");
  else if (!n) params_fail(p, "messages", "expected an array that is not empty");
  for (size_t i = 0; i < n && !p->failed; i++) add_message(p, t, json_array_get(messages, i), i, i == n - 1);
  if (p->failed) return;
  const json_t *last = json_array_get(t->messages, json_array_size(t->messages) - 1);
  if (!strcmp(json_string_value(json_object_get(last, "role")), "assistant"))
    json_object_set_new(t->chat, "continue_final_message", json_true());
}

static void prepare_prompt(struct params *p, const struct api *a, struct call *c, bool for_answer) {
  struct translation t;
  translate_open(p, &t, &shape);
  check_fields(p);
  add_system(p, &t);
  add_messages(p, &t);
  if (for_answer && !params_is_given(json_object_get(p->object, "max_tokens"))) params_missing(p, "max_tokens");
  translate_prepare(p, a, c, &t);
  translate_close(&t);
}

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  (void)reply;
  prepare_prompt(&p, a, c, true);
  if (p.failed && translate_too_long(e)) /* the words that clients look for before they shorten a conversation */
    api_error_set(e, 400, e->code, "messages", "prompt is too long: %zu tokens > %d maximum", c->job.prompts[0].n_ids,
                  a->info.ctx_tokens - 1);
  return params_end(&p);
}

static int prepare_count(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  prepare_prompt(&p, a, c, false);
  if (p.failed && !translate_too_long(e)) return -1; /* counting is how one finds out about that */
  buf_printf(reply, "{\"input_tokens\":%zu}", c->job.prompts[0].n_ids);
  return 1;
}

/* ---- pieces of answers ----------------------------------------------------------------------------------------------------------- */

static void put_stop(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  bool sequence = o->finish && o->matched_stop >= 0 && o->matched_stop < c->job.n_stop;
  const char *reason = sequence ? "stop_sequence" : o->finish && !strcmp(o->finish, "stop") ? "end_turn" : "max_tokens";
  if (!o->finish) buf_puts(out, "\"stop_reason\":null");
  else buf_printf(out, "\"stop_reason\":\"%s\"", reason);
  buf_puts(out, ",\"stop_sequence\":");
  if (sequence) api_put_matched(out, o);
  else buf_puts(out, "null");
}

static void put_usage(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  buf_printf(out, "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d}",
             (long long)c->job.prompts[0].n_ids - o->cached_tokens, o->cached_tokens, o->completion_tokens);
}

/* Without its text: the opening one of a stream. */
static void put_message(struct buf *out, const struct api *a, const struct call *c, bool with_text) {
  const struct choice *o = &c->choices[0];
  buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"%s\",\"content\":[", c->id,
             buf_cstr(&a->model_json));
  if (with_text) {
    buf_puts(out, "{\"type\":\"text\",\"text\":");
    api_put_string(out, buf_cstr(&o->text), o->text.len);
    buf_putc(out, '}');
  }
  buf_puts(out, "],");
  put_stop(out, c);
  buf_putc(out, ',');
  put_usage(out, c);
  buf_putc(out, '}');
}

/* ---- streaming --------------------------------------------------------------------------------------------------------------------- */

static bool send(struct call *c, const char *name, const char *data) { return http_sse_event(c->x, name, data, strlen(data)); }

static bool send_opening(const struct api *a, struct call *c) {
  struct choice *o = &c->choices[0];
  const char *finish = o->finish;
  struct buf event;
  buf_init(&event, 0);
  o->finish = NULL; /* of the end, not of the beginning */
  buf_puts(&event, "{\"type\":\"message_start\",\"message\":");
  put_message(&event, a, c, false);
  buf_putc(&event, '}');
  o->finish = finish;
  bool sent = http_sse_event(c->x, "message_start", event.data, event.len) &&
              send(c, "content_block_start",
                   "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}") &&
              send(c, "ping", "{\"type\":\"ping\"}");
  buf_free(&event);
  return sent;
}

static bool send_delta(struct call *c, const struct buf *text) {
  struct buf event;
  buf_init(&event, API_BODY_MAX);
  buf_puts(&event, "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
  api_put_string(&event, buf_cstr(text), text->len);
  buf_puts(&event, "}}");
  bool sent = http_sse_event(c->x, "content_block_delta", event.data, event.len);
  buf_free(&event);
  return sent;
}

static bool send_ending(struct call *c) {
  struct buf event;
  buf_init(&event, 0);
  buf_puts(&event, "{\"type\":\"message_delta\",\"delta\":{");
  put_stop(&event, c);
  buf_puts(&event, "},");
  put_usage(&event, c);
  buf_putc(&event, '}');
  bool sent = send(c, "content_block_stop", "{\"type\":\"content_block_stop\",\"index\":0}") &&
              http_sse_event(c->x, "message_delta", event.data, event.len) && send(c, "message_stop", "{\"type\":\"message_stop\"}");
  buf_free(&event);
  return sent;
}

static void stream_message(const struct api *a, struct call *c, const struct message *m) {
  struct choice *o = &c->choices[0];
  api_begin_stream(c);
  if (!o->begun && !send_opening(a, c)) return;
  o->begun = true;
  if (m->text.len && !send_delta(c, &m->text)) return;
  if (m->last && send_ending(c)) api_end_stream(c);
}

/* ---- messages ------------------------------------------------------------------------------------------------------------------------ */

static void reply_whole(const struct api *a, struct call *c) {
  struct buf out;
  buf_init(&out, API_BODY_MAX);
  put_message(&out, a, c, true);
  api_reply_body(c, &out);
}

static void message(const struct api *a, struct call *c, const struct message *m) {
  if (api_take_whole(c, m)) return;
  struct choice *o = api_take_numbers(c, m);
  if (c->job.stream) {
    stream_message(a, c, m);
    return;
  }
  buf_append(&o->text, m->text.data, m->text.len);
  if (m->last) reply_whole(a, c);
}

const struct dialect dialect_anthropic = {.name = "anthropic", .id_prefix = "msg_", .prepare = prepare, .message = message, .fail = fail};
const struct dialect dialect_count_tokens = {
    .name = "count-tokens", .id_prefix = "", .prepare = prepare_count, .message = message, .fail = fail};
