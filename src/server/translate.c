/* translate.c — conversations of other APIs → bodies of chat completions. */
#include "server/translate.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

bool translate_is_one(const char *word, const char *const *words) {
  size_t i = 0;
  while (word && words[i] && strcmp(word, words[i])) i++;
  return word && words[i];
}

const char *translate_word(struct params *p, const char *key, const char *const *words) {
  const char *word = NULL;
  struct buf list;
  char shown[60];
  size_t n;
  if (!params_string(p, key, INT_MAX, &word, &n)) return NULL;
  if (translate_is_one(word, words)) return word;
  buf_init(&list, 0);
  for (size_t i = 0; words[i]; i++) buf_printf(&list, i ? ", \"%s\"" : "\"%s\"", words[i]);
  params_fail(p, key, "expected one of %s, found \"%s\"", buf_cstr(&list), str_escape(str_of(word, n), shown, sizeof shown));
  buf_free(&list);
  return NULL;
}

void translate_fail(struct params *p, const char *param, const char *fmt, ...) {
  char text[400];
  va_list args;
  if (p->failed) return;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  p->failed = true;
  api_error_set(p->e, 400, "invalid_value", param, "%s", text);
}

void translate_nest(struct api_error *e, const char *outer) {
  char inner[sizeof e->param];
  memcpy(inner, e->param, sizeof inner);
  snprintf(e->param, sizeof e->param, "%.24s.%.38s", outer, inner);
}

/* ---- fields ------------------------------------------------------------------------------------------------------------ */

/* What a chat completion has and other APIs lack or spell differently. */
static const char *const chat_only[] = {"messages",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "stop",
                                        "logprobs",
                                        "top_logprobs",
                                        "n",
                                        "best_of",
                                        "echo",
                                        "response_format",
                                        "tools",
                                        "tool_choice",
                                        "functions",
                                        "function_call",
                                        "parallel_tool_calls",
                                        "modalities",
                                        "stream_options",
                                        "reasoning",
                                        "reasoning_effort",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        "input_ids",
                                        "prompt_logprobs",
                                        "return_cached_tokens_details",
                                        "return_meta_info",
                                        "return_prompt_token_ids"};

static bool is_own(const struct translate_shape *shape, const char *name) {
  if (translate_is_one(name, shape->own)) return true;
  for (size_t i = 0; i < ARRAY_LEN(shape->renames); i++)
    if (shape->renames[i].own && !strcmp(shape->renames[i].own, name)) return true;
  return false;
}

void translate_open(struct params *p, struct translation *t, const struct translate_shape *shape) {
  const json_t *body = p->object;
  *t = (struct translation){.shape = shape};
  for (size_t i = 0; i < ARRAY_LEN(chat_only); i++)
    if (!is_own(shape, chat_only[i]) && params_is_given(json_object_get(body, chat_only[i])))
      params_refuse(p, chat_only[i], "this API has no such field");
  t->chat = json_copy((json_t *)(uintptr_t)body); /* shallow: the body itself stays as it is */
  for (size_t i = 0; i < ARRAY_LEN(chat_only); i++) json_object_del(t->chat, chat_only[i]);
  for (size_t i = 0; shape->own[i]; i++) json_object_del(t->chat, shape->own[i]);
  for (size_t i = 0; i < ARRAY_LEN(shape->renames) && shape->renames[i].own; i++) {
    json_t *v = json_object_get(body, shape->renames[i].own);
    json_object_del(t->chat, shape->renames[i].own);
    if (v) json_object_set(t->chat, shape->renames[i].chat, v);
  }
  t->messages = json_array();
  json_object_set_new(t->chat, "messages", t->messages);
}

void translate_close(struct translation *t) {
  json_decref(t->chat);
  free(t->origins);
  buf_free(&t->joined);
  *t = (struct translation){0};
}

/* ---- messages ---------------------------------------------------------------------------------------------------------- */

bool translate_has_media(const json_t *content) {
  for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++)
    if (!json_object_get(json_array_get(content, i), "text")) return true;
  return false;
}

json_t *translate_media(const char *type, json_t *where, const char *detail, const char *path, size_t i) {
  char place[96];
  snprintf(place, sizeof place, "%s[%zu]", path, i);
  json_t *part = json_pack("{s:s, s:s}", "type", type, "place", place);
  if (where) json_object_set(part, type, where);
  if (detail) json_object_set_new(part, "detail", json_string(detail));
  return part;
}

json_t *translate_part(struct params *p, const json_t *part, const char *path, size_t i, const char *param, const char *const *types) {
  char shown[60];
  json_t *text = json_object_get(part, "text");
  const char *type = json_string_value(json_object_get(part, "type"));
  if (!type) translate_fail(p, param, "%s[%zu]: expected an object with a type", path, i);
  else if (!translate_is_one(type, types))
    translate_fail(p, param, "%s[%zu].type: expected \"%s\", all that this model takes, found \"%s\"", path, i, types[0],
                   str_escape(str_c(type), shown, sizeof shown));
  else if (!json_is_string(text)) translate_fail(p, param, "%s[%zu].text: expected a string", path, i);
  return p->failed ? NULL : json_pack("{s:s, s:O}", "type", "text", "text", text);
}

json_t *translate_content_with(struct params *p, const json_t *content, const char *path, const char *param, const char *const *types,
                               translate_media_fn media) {
  if (p->failed) return NULL;
  if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
  if (!json_is_array(content)) {
    translate_fail(p, param, "%s: expected a string or an array of parts", path);
    return NULL;
  }
  json_t *parts = json_array();
  for (size_t i = 0; i < json_array_size(content) && !p->failed; i++) {
    const json_t *from = json_array_get(content, i);
    json_t *part = media ? media(p, from, path, i) : NULL;
    if (!part && !p->failed) part = translate_part(p, from, path, i, param, types);
    if (part) json_array_append_new(parts, part);
  }
  bool text = json_array_size(parts) == 1 && !translate_has_media(parts);
  json_t *whole = p->failed ? NULL : json_incref(text ? json_object_get(json_array_get(parts, 0), "text") : parts);
  json_decref(parts);
  return whole; /* one part is as good as a string */
}

json_t *translate_content(struct params *p, const json_t *content, const char *path, const char *param, const char *const *types) {
  return translate_content_with(p, content, path, param, types, NULL);
}

void translate_flatten(const json_t *content, struct buf *out) {
  if (json_is_string(content)) buf_append(out, json_string_value(content), json_string_length(content));
  for (size_t i = 0; i < json_array_size(content); i++) {
    const json_t *text = json_object_get(json_array_get(content, i), "text");
    buf_append(out, json_string_value(text), json_string_length(text));
  }
}

static bool is_system(const char *role) { return !strcmp(role, "system") || !strcmp(role, "developer"); }

static json_t *last_message(const struct translation *t) {
  size_t n = json_array_size(t->messages);
  return n ? json_array_get(t->messages, n - 1) : NULL;
}

/* What was joined becomes the content of the last message. */
static void end_joining(struct translation *t) {
  if (!t->joining) return;
  json_object_set_new(last_message(t), "content", json_stringn(buf_cstr(&t->joined), t->joined.len));
  buf_clear(&t->joined);
  t->joining = false;
}

static void join(struct translation *t, const json_t *content) {
  if (!t->joining) translate_flatten(json_object_get(last_message(t), "content"), &t->joined);
  t->joining = true;
  if (t->joined.len) buf_puts(&t->joined, "\n\n");
  translate_flatten(content, &t->joined);
}

/* Where there are pictures or sounds the parts stay parts, one after the other. */
static void join_parts(struct translation *t, const json_t *content) {
  end_joining(t);
  json_t *last = last_message(t), *before = json_object_get(last, "content"), *parts = json_array();
  const json_t *both[] = {before, content};
  for (size_t i = 0; i < ARRAY_LEN(both); i++) {
    if (json_is_array(both[i])) json_array_extend(parts, (json_t *)(uintptr_t)both[i]);
    else if (json_string_length(both[i])) json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", both[i]));
  }
  json_object_set_new(last, "content", parts);
}

/* message: taken. Returned, borrowed. */
static json_t *append(struct translation *t, json_t *message, int origin) {
  end_joining(t);
  size_t n = json_array_size(t->messages);
  if (n == t->n_origins) {
    t->n_origins = n ? 2 * n : 16;
    t->origins = xrealloc(t->origins, t->n_origins * sizeof *t->origins);
  }
  t->origins[n] = origin;
  json_array_append_new(t->messages, message);
  return message;
}

static bool last_is(const struct translation *t, const char *role) {
  const char *last = json_string_value(json_object_get(last_message(t), "role"));
  return last && !strcmp(last, role);
}

/* Has nothing but thoughts so far. */
static bool is_bare(const json_t *message) { return !json_object_get(message, "content") && !json_object_get(message, "tool_calls"); }

void translate_add(struct translation *t, const char *role, json_t *content, int origin, bool merge) {
  json_t *last = last_message(t);
  const char *last_role = json_string_value(json_object_get(last, "role"));
  if (last_role && !strcmp(role, "assistant") && last_is(t, role) && is_bare(last) && !t->joining) {
    json_object_set_new(last, "content", content);
  } else if (last_role && (is_system(role) ? is_system(last_role) : merge && !strcmp(role, last_role))) {
    if (translate_has_media(content) || translate_has_media(json_object_get(last, "content"))) join_parts(t, content);
    else join(t, content);
    json_decref(content);
  } else {
    append(t, json_pack("{s:s, s:o}", "role", role, "content", content), origin);
  }
}

void translate_add_thought(struct translation *t, const char *text, size_t n, int origin) {
  end_joining(t);
  json_t *last = last_message(t);
  if (!last_is(t, "assistant") || !is_bare(last)) last = append(t, json_pack("{s:s}", "role", "assistant"), origin);
  const json_t *before = json_object_get(last, "reasoning_content");
  struct buf whole;
  buf_init(&whole, 0);
  buf_append(&whole, json_string_value(before), json_string_length(before));
  buf_append(&whole, text, n);
  json_object_set_new(last, "reasoning_content", json_stringn(buf_cstr(&whole), whole.len));
  buf_free(&whole);
}

void translate_add_call(struct translation *t, const char *id, const char *name, json_t *arguments, int origin) {
  end_joining(t);
  json_t *last = last_message(t), *calls, *call;
  if (!last_is(t, "assistant")) last = append(t, json_pack("{s:s}", "role", "assistant"), origin);
  calls = json_object_get(last, "tool_calls");
  if (!calls) json_object_set_new(last, "tool_calls", calls = json_array());
  call = json_pack("{s:s, s:{s:s, s:o}}", "type", "function", "function", "name", name, "arguments", arguments);
  if (id) json_object_set_new(call, "id", json_string(id));
  json_array_append_new(calls, call);
}

void translate_add_result(struct translation *t, const char *id, json_t *content, int origin) {
  json_t *message = append(t, json_pack("{s:s, s:o}", "role", "tool", "content", content), origin);
  if (id) json_object_set_new(message, "tool_call_id", json_string(id));
}

json_t *translate_tool(const json_t *tool, const char *parameters) {
  const char *const names[][2] = {{"name", "name"}, {"description", "description"}, {parameters, "parameters"}, {"strict", "strict"}};
  json_t *function = json_object();
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    json_t *v = json_object_get(tool, names[i][0]);
    if (v && !json_is_null(v)) json_object_set(function, names[i][1], v);
  }
  return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

/* ---- preparing, and errors on their way back ------------------------------------------------------------------------------ */

/* "messages[4].role: ..." → "input[3].role: ..." */
static void move_place(const struct translation *t, struct api_error *e) {
  char message[sizeof e->message];
  char *end;
  if (strncmp(e->message, "messages[", 9)) return;
  if (e->placed) return;
  unsigned long i = strtoul(e->message + 9, &end, 10);
  if (*end != ']' || i >= json_array_size(t->messages)) return;
  if (t->origins[i] < 0) snprintf(message, sizeof message, "%s%s", t->shape->system, end + 1);
  else snprintf(message, sizeof message, "%s[%d]%s", t->shape->list, t->origins[i], end + 1);
  if (t->origins[i] < 0) snprintf(e->param, sizeof e->param, "%s", t->shape->system);
  memcpy(e->message, message, sizeof message);
}

/* "body: max_tokens: ..." → "body: max_output_tokens: ..." */
static void rename_field(struct api_error *e, const char *chat, const char *own) {
  char message[sizeof e->message];
  size_t n = strlen(chat);
  if (strcmp(e->param, chat)) return;
  snprintf(e->param, sizeof e->param, "%s", own);
  if (strncmp(e->message, "body: ", 6) || strncmp(e->message + 6, chat, n) || !strchr(":.", e->message[6 + n])) return;
  snprintf(message, sizeof message, "body: %s%s", own, e->message + 6 + n);
  memcpy(e->message, message, sizeof message);
}

void translate_prepare(struct params *p, const struct api *a, struct call *c, struct translation *t) {
  end_joining(t);
  if (p->failed || openai_prepare_chat(a, c, t->chat, p->e) == 0) return;
  p->failed = true;
  for (size_t i = 0; i < ARRAY_LEN(t->shape->renames) && t->shape->renames[i].own; i++)
    rename_field(p->e, t->shape->renames[i].chat, t->shape->renames[i].own);
  for (size_t i = 0; i < ARRAY_LEN(t->shape->errors) && t->shape->errors[i].own; i++)
    rename_field(p->e, t->shape->errors[i].chat, t->shape->errors[i].own);
  rename_field(p->e, "messages", t->shape->list);
  move_place(t, p->e);
}

bool translate_too_long(const struct api_error *e) { return e->code && !strcmp(e->code, "context_length_exceeded"); }
