/* anthropic.c — Anthropic's /v1/messages and /v1/messages/count_tokens.
 *
 * usage counts as theirs does: input_tokens are those that did not come from the cache, cache_read_input_tokens those that did. The stream:
 *
 *   message_start, content_block_start, ping, content_block_delta ..., content_block_stop, (more blocks,) message_delta, message_stop
 *   or at any place  error
 *
 * An answer that was cut off by an abort says max_tokens: of their reasons it is the one that means "not at its end".
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "server/parts.h"
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
    .renames = {{"messages", "messages"}, {"max_tokens", "max_tokens"}, {"stop_sequences", "stop"}},
    .errors = {{"thinking", "enable_thinking"},
               {"thinking", "thinking_budget"},
               {"output_config", "response_format"},
               {"output_config", "reasoning_effort"}}};

static void refuse_unsupported(struct params *p) {
  static const char *const names[] = {"container", "mcp_servers", "context_management", "diagnostics", "inference_geo"};
  params_refuse_all(p, names, ARRAY_LEN(names));
}

/* {"name", "description", "input_schema"} → OpenAI's form. */
static void add_tool(struct params *p, json_t *tools, const json_t *tool, size_t i) {
  const char *type = json_string_value(json_object_get(tool, "type"));
  json_t *schema = json_object_get(tool, "input_schema");
  char shown[60];
  if (!json_is_object(tool)) params_fail(p, "tools", "[%zu]: expected an object", i);
  else if (type && strcmp(type, "custom"))
    params_fail(p, "tools", "[%zu].type: expected \"custom\", all that this server takes, found \"%s\"", i,
                str_escape(str_c(type), shown, sizeof shown));
  else if (!json_is_object(schema)) params_fail(p, "tools", "[%zu].input_schema: expected a JSON schema, an object", i);
  if (p->failed) return;
  json_array_append_new(tools, translate_tool(tool, "input_schema"));
}

static void add_tools(struct params *p, json_t *chat) {
  const json_t *list = NULL, *choice = NULL;
  bool one = false;
  params_array(p, "tools", &list);
  params_object(p, "tool_choice", &choice);
  json_t *tools = json_array();
  for (size_t i = 0; i < json_array_size(list) && !p->failed; i++) add_tool(p, tools, json_array_get(list, i), i);
  if (json_array_size(tools)) json_object_set(chat, "tools", tools);
  json_decref(tools);
  if (p->failed || !json_object_size(choice)) return;
  const char *type = json_string_value(json_object_get(choice, "type"));
  json_t *name = json_object_get(choice, "name");
  if (type && (!strcmp(type, "auto") || !strcmp(type, "none") || !strcmp(type, "any")))
    json_object_set_new(chat, "tool_choice", json_string(strcmp(type, "any") ? type : "required"));
  else if (!type || strcmp(type, "tool") || !json_is_string(name))
    params_fail(p, "tool_choice", "expected {\"type\": \"auto\", \"any\" or \"none\"} or {\"type\": \"tool\", \"name\": ...}");
  else json_object_set_new(chat, "tool_choice", json_pack("{s:s, s:O}", "type", "function", "name", name));
  struct params inner = params_of(choice, "body: tool_choice", p->e);
  inner.failed = p->failed;
  if (params_bool(&inner, "disable_parallel_tool_use", &one) && one) json_object_set_new(chat, "parallel_tool_calls", json_false());
  p->failed = inner.failed;
}

static bool add_thinking(struct params *p, json_t *chat) {
  static const char *const types[] = {"enabled", "disabled", "adaptive", NULL};
  const json_t *thinking = NULL;
  int budget = -1;
  if (!params_object(p, "thinking", &thinking) || !json_object_size(thinking)) return false;
  struct params inner = params_of(thinking, "body: thinking", p->e);
  const char *type = translate_word(&inner, "type", types);
  if (!type && !inner.failed) params_missing(&inner, "type");
  if (params_int(&inner, "budget_tokens", 1, INT_MAX - 1, &budget)) json_object_set_new(chat, "thinking_budget", json_integer(budget));
  p->failed = inner.failed;
  if (p->failed) translate_nest(p->e, "thinking");
  if (p->failed) return false;
  bool on = strcmp(type, "disabled") != 0;
  if (on && !strcmp(type, "enabled") && budget < 0) params_fail(p, "thinking", "budget_tokens: expected with type \"enabled\", not found");
  json_object_set_new(chat, "enable_thinking", json_boolean(on));
  return on;
}

/* output_config {"format", "effort"}, and output_format, as format was called first. */
static void add_output(struct params *p, json_t *chat, bool thinks) {
  static const char *const levels[] = {"low", "medium", "high", "xhigh", "max", NULL};
  const json_t *config = NULL, *format = NULL, *old = NULL;
  params_object(p, "output_config", &config);
  params_object(p, "output_format", &old);
  if (p->failed) return;
  struct params inner = params_of(config, "body: output_config", p->e);
  params_object(&inner, "format", &format);
  const char *effort = translate_word(&inner, "effort", levels);
  p->failed = inner.failed;
  if (p->failed) {
    translate_nest(p->e, "output_config");
    return;
  }
  if (json_object_size(format) && json_object_size(old)) params_fail(p, "output_format", "not allowed together with output_config.format");
  if (!json_object_size(format)) format = old;
  if (json_object_size(format)) json_object_set(chat, "response_format", (json_t *)(uintptr_t)format);
  if (effort && thinks) json_object_set_new(chat, "reasoning_effort", json_string(effort));
  else if (effort && strcmp(effort, "high")) params_refuse(p, "output_config", "effort: only \"high\" is supported without thinking");
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
  if (translate_has_media(content)) return false;
  buf_init(&text, 0);
  translate_flatten(content, &text);
  bool empty = text.len == 0;
  buf_free(&text);
  return empty;
}

/* The blocks of one message on their way. */
struct turn {
  const char *role;
  size_t i;
  json_t *parts; /* text that is collected; owned */
  bool found;    /* something that is more than empty text */
};

/* {"type": "image", "source": {"type": "base64", "media_type", "data"} | {"type": "url", "url"}} */
static json_t *media_part(struct params *p, const json_t *part, const char *path, size_t i) {
  const json_t *source = json_object_get(part, "source");
  const char *type = json_string_value(json_object_get(part, "type")), *kind = json_string_value(json_object_get(source, "type"));
  if (!type || strcmp(type, "image")) return NULL;
  bool base64 = kind && !strcmp(kind, "base64"), url = kind && !strcmp(kind, "url");
  json_t *where = json_object_get(source, base64 ? "data" : "url");
  if (!base64 && !url)
    translate_fail(p, "messages", "%s[%zu].source.type: expected \"base64\" or \"url\", all that this server takes", path, i);
  else if (!json_is_string(where)) translate_fail(p, "messages", "%s[%zu].source.%s: expected a string", path, i, base64 ? "data" : "url");
  return p->failed ? NULL : translate_media("image_url", where, NULL, path, i);
}

static void end_text(struct translation *t, struct turn *turn) {
  if (json_array_size(turn->parts)) {
    if (!is_empty(turn->parts)) {
      bool text = json_array_size(turn->parts) == 1 && !translate_has_media(turn->parts);
      json_t *content = text ? json_object_get(json_array_get(turn->parts, 0), "text") : turn->parts;
      translate_add(t, turn->role, json_incref(content), (int)turn->i, true);
      turn->found = true;
    }
    json_decref(turn->parts);
    turn->parts = json_array();
  }
}

/* What a tool gave: its text, with a word in front when that is an error. */
static void add_result(struct params *p, struct translation *t, const struct turn *turn, const json_t *block, const char *path) {
  static const char *const types[] = {"text", NULL};
  char inner[96];
  const char *id = json_string_value(json_object_get(block, "tool_use_id"));
  json_t *v = json_object_get(block, "content");
  struct buf text;
  if (strcmp(turn->role, "user")) translate_fail(p, "messages", "%s: a tool_result belongs into a message of the user", path);
  else if (!id) translate_fail(p, "messages", "%s.tool_use_id: expected a string", path);
  snprintf(inner, sizeof inner, "%s.content", path);
  json_t *content = v && !json_is_null(v) ? translate_content_with(p, v, inner, "messages", types, media_part) : json_string("");
  if (p->failed) {
    json_decref(content);
    return;
  }
  buf_init(&text, 0);
  if (json_is_true(json_object_get(block, "is_error"))) buf_puts(&text, "Error: ");
  if (translate_has_media(content)) { /* its pictures stay what they are */
    if (text.len) json_array_insert_new(content, 0, json_pack("{s:s, s:s}", "type", "text", "text", buf_cstr(&text)));
    translate_add_result(t, id, json_incref(content), (int)turn->i);
  } else {
    translate_flatten(content, &text);
    translate_add_result(t, id, json_stringn(buf_cstr(&text), text.len), (int)turn->i);
  }
  buf_free(&text);
  json_decref(content);
}

static void add_use(struct params *p, struct translation *t, const struct turn *turn, const json_t *block, const char *path) {
  const char *id = json_string_value(json_object_get(block, "id")), *name = json_string_value(json_object_get(block, "name"));
  json_t *input = json_object_get(block, "input");
  if (strcmp(turn->role, "assistant")) translate_fail(p, "messages", "%s: a tool_use belongs into a message of the assistant", path);
  else if (!name || !id) translate_fail(p, "messages", "%s.%s: expected a string", path, name ? "id" : "name");
  else if (!json_is_object(input)) translate_fail(p, "messages", "%s.input: expected an object", path);
  else translate_add_call(t, id, name, json_incref(input), (int)turn->i);
}

static void add_block(struct params *p, struct translation *t, struct turn *turn, json_t *block, size_t k) {
  static const char *const types[] = {"text", NULL};
  const char *type = json_string_value(json_object_get(block, "type"));
  const json_t *thinking = json_object_get(block, "thinking");
  char path[80], list[64];
  snprintf(path, sizeof path, "messages[%zu].content[%zu]", turn->i, k);
  snprintf(list, sizeof list, "messages[%zu].content", turn->i);
  bool thought = type && (!strcmp(type, "thinking") || !strcmp(type, "redacted_thinking")), use = type && !strcmp(type, "tool_use"),
       result = type && !strcmp(type, "tool_result");
  if (thought || use || result) end_text(t, turn), turn->found = true;
  if (thought && strcmp(turn->role, "assistant"))
    translate_fail(p, "messages", "%s: thoughts belong into a message of the assistant", path);
  else if (thought && !strcmp(type, "thinking") && !json_is_string(thinking))
    translate_fail(p, "messages", "%s.thinking: expected a string", path);
  else if (thought) translate_add_thought(t, json_string_value(thinking), json_string_length(thinking), (int)turn->i);
  else if (use) add_use(p, t, turn, block, path);
  else if (result) add_result(p, t, turn, block, path);
  else {
    json_t *part = media_part(p, block, list, k);
    if (!part && !p->failed) part = translate_part(p, block, list, k, "messages", types);
    if (part) json_array_append_new(turn->parts, part);
  }
}

static void add_message(struct params *p, struct translation *t, const json_t *m, size_t i, bool last) {
  static const char *const roles[] = {"user", "assistant", "system", NULL};
  const char *role = json_string_value(json_object_get(m, "role"));
  json_t *content = json_object_get(m, "content"), *block;
  char shown[60];
  size_t k;
  if (!json_is_object(m)) translate_fail(p, "messages", "messages[%zu]: expected an object", i);
  else if (!translate_is_one(role, roles))
    translate_fail(p, "messages", "messages[%zu].role: expected user or assistant, found \"%s\"", i,
                   str_escape(str_c(role ? role : ""), shown, sizeof shown));
  else if (!json_is_string(content) && !json_is_array(content))
    translate_fail(p, "messages", "messages[%zu].content: expected a string or an array of parts", i);
  if (p->failed) return;
  struct turn turn = {.role = role, .i = i, .parts = json_array()};
  if (json_is_string(content)) json_array_append_new(turn.parts, json_pack("{s:s, s:O}", "type", "text", "text", content));
  json_array_foreach(content, k, block) {
    if (!p->failed) add_block(p, t, &turn, block, k);
  }
  if (!p->failed) end_text(t, &turn);
  json_decref(turn.parts);
  if (turn.found || p->failed) return;
  if (!i || strcmp(role, "assistant")) translate_fail(p, "messages", "messages[%zu].content: expected text that is not empty", i);
  else if (!last) translate_add(t, role, json_string(""), (int)i, true); /* an answer without anything; at the end it is as good as none */
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
  if (strcmp(json_string_value(json_object_get(last, "role")), "assistant")) return;
  if (json_object_get(last, "tool_calls")) translate_fail(p, "messages", "messages[%zu]: a tool_use without a tool_result after it", n - 1);
  else json_object_set_new(t->chat, "continue_final_message", json_true());
}

static void prepare_prompt(struct params *p, const struct api *a, struct call *c, bool for_answer) {
  struct translation t;
  translate_open(p, &t, &shape);
  check_fields(p);
  add_tools(p, t.chat);
  add_output(p, t.chat, add_thinking(p, t.chat));
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
    api_error_set(e, 400, e->code, "messages", "prompt is too long: %zu tokens > %d maximum", job_prompt_tokens(&c->job.prompts[0]),
                  a->info.ctx_tokens - 1);
  return params_end(&p);
}

static int prepare_count(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  prepare_prompt(&p, a, c, false);
  if (p.failed && !translate_too_long(e)) return -1; /* counting is how one finds out about that */
  buf_printf(reply, "{\"input_tokens\":%zu}", job_prompt_tokens(&c->job.prompts[0]));
  return 1;
}

/* ---- pieces of answers ----------------------------------------------------------------------------------------------------------- */

static void put_stop(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  bool sequence = o->finish && o->matched_stop >= 0 && o->matched_stop < c->job.n_stop;
  const char *reason = !o->finish                         ? ""
                       : !strcmp(o->finish, "tool_calls") ? "tool_use"
                       : sequence                         ? "stop_sequence"
                       : !strcmp(o->finish, "stop")       ? "end_turn"
                                                          : "max_tokens";
  if (!o->finish) buf_puts(out, "\"stop_reason\":null");
  else buf_printf(out, "\"stop_reason\":\"%s\"", reason);
  buf_puts(out, ",\"stop_sequence\":");
  if (sequence) api_put_matched(out, o);
  else buf_puts(out, "null");
}

static void put_usage(struct buf *out, const struct call *c) {
  const struct choice *o = &c->choices[0];
  buf_printf(out, "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d}",
             (long long)job_prompt_tokens(&c->job.prompts[0]) - o->cached_tokens, o->cached_tokens, o->completion_tokens);
}

/* "call_..." as this API's clients know it. */
static void put_use(struct buf *out, const struct answer_call *call) {
  buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":", call->id + strlen("call_"));
  api_put_string(out, call->name, strlen(call->name));
  buf_puts(out, ",\"input\":");
}

/* whole: with all that it holds; else as it begins. */
static void put_block(struct buf *out, const struct choice *o, const struct block *b, bool whole) {
  struct str text = whole ? str_of(buf_cstr(&b->text), b->text.len) : str_c("");
  if (b->kind == CYGNET_PART_CALL) {
    put_use(out, &o->calls[b->call]);
    buf_printf(out, "%s}", whole ? o->calls[b->call].arguments : "{}");
    return;
  }
  buf_puts(out,
           b->kind == CYGNET_PART_REASONING ? "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
  api_put_string(out, text.p, text.n);
  buf_putc(out, '}');
}

/* Without its content: the opening one of a stream. */
static void put_message(struct buf *out, const struct api *a, const struct call *c, bool with_content) {
  const struct choice *o = &c->choices[0];
  buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"%s\",\"content\":[", c->id,
             buf_cstr(&a->model_json));
  for (int i = 0; i < o->n_blocks && with_content; i++) {
    if (i) buf_putc(out, ',');
    put_block(out, o, &o->blocks[i], true);
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
  bool sent = http_sse_event(c->x, "message_start", event.data, event.len);
  buf_free(&event);
  return sent;
}

static bool send_stop(struct call *c) {
  struct choice *o = &c->choices[0];
  struct buf event;
  if (!o->block_open) return true;
  buf_init(&event, 0);
  buf_printf(&event, "{\"type\":\"content_block_stop\",\"index\":%d}", o->n_blocks - 1);
  bool sent = http_sse_event(c->x, "content_block_stop", event.data, event.len);
  buf_free(&event);
  o->block_open = false;
  return sent;
}

/* Block i has just begun; the one before is over. */
static bool send_start(struct call *c, int i) {
  struct choice *o = &c->choices[0];
  struct buf event;
  buf_init(&event, 0);
  buf_printf(&event, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":", i);
  put_block(&event, o, &o->blocks[i], false);
  buf_putc(&event, '}');
  bool sent = http_sse_event(c->x, "content_block_start", event.data, event.len) && (i || send(c, "ping", "{\"type\":\"ping\"}"));
  buf_free(&event);
  o->block_open = true;
  return sent;
}

static bool send_delta(struct call *c, int i, struct str text) {
  static const char *const types[] = {[CYGNET_PART_CONTENT] = "\"text_delta\",\"text\":",
                                      [CYGNET_PART_REASONING] = "\"thinking_delta\",\"thinking\":",
                                      [CYGNET_PART_CALL] = "\"input_json_delta\",\"partial_json\":"};
  struct buf event;
  buf_init(&event, API_BODY_MAX);
  buf_printf(&event, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":%s", i, types[c->choices[0].blocks[i].kind]);
  api_put_string(&event, text.p, text.n);
  buf_puts(&event, "}}");
  bool sent = http_sse_event(c->x, "content_block_delta", event.data, event.len);
  buf_free(&event);
  return sent;
}

/* A part (NULL: content without text) into its block, and if there is a stream, what that makes of events. */
static bool take_part(struct call *c, const struct part *p) {
  struct choice *o = &c->choices[0];
  bool begun, stream = c->job.stream;
  if (stream && p && o->n_blocks && (p->kind == CYGNET_PART_CALL || o->blocks[o->n_blocks - 1].kind != p->kind) && !send_stop(c))
    return false;
  int i = parts_block(o, p, &begun);
  if (!stream) return true;
  if (begun && !send_start(c, i)) return false;
  if (!p) return true;
  const struct answer_call *call = p->kind == CYGNET_PART_CALL ? &o->calls[p->call] : NULL;
  return send_delta(c, i, call ? str_of(call->arguments, call->n_arguments) : parts_text(o, p));
}

/* An answer without anything is an empty text. */
static bool take_parts(struct call *c, bool last) {
  struct choice *o = &c->choices[0];
  bool sent = true;
  for (int i = 0; i < o->n_parts && sent; i++) sent = take_part(c, &o->parts[i]);
  return sent && (!last || o->n_blocks || take_part(c, NULL));
}

static bool send_ending(struct call *c) {
  struct buf event;
  buf_init(&event, 0);
  buf_puts(&event, "{\"type\":\"message_delta\",\"delta\":{");
  put_stop(&event, c);
  buf_puts(&event, "},");
  put_usage(&event, c);
  buf_putc(&event, '}');
  bool sent = send_stop(c) && http_sse_event(c->x, "message_delta", event.data, event.len) &&
              send(c, "message_stop", "{\"type\":\"message_stop\"}");
  buf_free(&event);
  return sent;
}

static void stream_message(const struct api *a, struct call *c, const struct message *m) {
  struct choice *o = &c->choices[0];
  api_begin_stream(c);
  if (!o->begun && !send_opening(a, c)) return;
  o->begun = true;
  if (take_parts(c, m->last) && m->last && send_ending(c)) api_end_stream(c);
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
  parts_take(a, api_take_numbers(c, m), m, false);
  if (c->job.stream) {
    stream_message(a, c, m);
    return;
  }
  take_parts(c, m->last);
  if (m->last) reply_whole(a, c);
}

const struct dialect dialect_anthropic = {.name = "anthropic", .id_prefix = "msg_", .prepare = prepare, .message = message, .fail = fail};
const struct dialect dialect_count_tokens = {
    .name = "count-tokens", .id_prefix = "", .prepare = prepare_count, .message = message, .fail = fail};
