/* dialect.c — requests written, events read. */
#include "load/dialect.h"

#include <string.h>

#include "files/json.h"

const char *dialect_path(enum load_api api) {
  static const char *const paths[] = {[LOAD_OPENAI] = "/v1/completions", [LOAD_CHAT] = "/v1/chat/completions", [LOAD_SGLANG] = "/generate"};
  return paths[api];
}

void dialect_history_free(struct dialect_history *h) {
  json_decref(h->messages);
  buf_free(&h->text);
  *h = (struct dialect_history){0};
}

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

static json_t *message(const char *role, const char *text, size_t n) {
  json_t *content = json_stringn(text, n);
  return json_pack("{s:s, s:o}", "role", role, "content", content ? content : json_string("")); /* no UTF-8: no text */
}

/* The user's message; its pictures stand in front. */
static json_t *user_message(const struct load_request *q) {
  if (!q->n_pictures) return message("user", q->text, strlen(q->text));
  json_t *parts = json_array();
  for (int i = 0; i < q->n_pictures; i++)
    json_array_append_new(parts, json_pack("{s:s, s:{s:s}}", "type", "image_url", "image_url", "url", q->pictures[i]));
  json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", q->text));
  return json_pack("{s:s, s:o}", "role", "user", "content", parts);
}

static json_t *chat_request(const struct load_request *q, struct dialect_history *h) {
  json_t *messages = h && h->messages ? json_incref(h->messages) : json_array();
  if (q->system && json_array_size(messages) == 0) json_array_append_new(messages, message("system", q->system, strlen(q->system)));
  json_array_append_new(messages, user_message(q));
  if (h && !h->messages) h->messages = json_incref(messages);
  return messages;
}

static json_t *text_request(const struct load_request *q, struct dialect_history *h) {
  struct buf own = {0}, *b = h ? &h->text : &own;
  if (q->system && b->len == 0) buf_printf(b, "%s\n\n", q->system);
  if (q->turn) buf_puts(b, "\n\n");
  buf_puts(b, q->text);
  json_t *v = json_stringn(buf_cstr(b), b->len);
  buf_free(&own);
  return v ? v : json_string("");
}

void dialect_body(const struct load_settings *s, const struct load_request *q, struct dialect_history *h, struct buf *b) {
  json_t *o, *said = s->api == LOAD_CHAT ? chat_request(q, h) : text_request(q, h);
  if (s->api == LOAD_SGLANG)
    o = json_pack("{s:o, s:{s:i, s:f, s:b}, s:b}", "text", said, "sampling_params", "max_new_tokens", q->output_tokens, "temperature", 0.0,
                  "ignore_eos", s->ignore_eos, "stream", 1);
  else {
    json_t *stream = json_pack("{s:b}", "include_usage", 1);
    o = json_pack("{s:s, s:o, s:i, s:f, s:b, s:o}", "model", s->model, s->api == LOAD_CHAT ? "messages" : "prompt", said, "max_tokens",
                  q->output_tokens, "temperature", 0.0, "stream", 1, "stream_options", stream);
    if (s->ignore_eos) { /* a server that knows the one knows the other: tokens of each piece */
      json_object_set_new(o, "ignore_eos", json_true());
      json_object_set_new(stream, "continuous_usage_stats", json_true());
    }
  }
  json_put(b, o);
  json_decref(o);
}

void dialect_answer(enum load_api api, struct dialect_history *h, const char *text, size_t n) {
  if (api == LOAD_CHAT) json_array_append_new(h->messages, message("assistant", text, n));
  else buf_append(&h->text, text, n);
}

/* ---- events -------------------------------------------------------------------------------------------------------------------------- */

static int count_of(const json_t *o, const char *name) {
  const json_t *v = json_object_get(o, name);
  return json_is_integer(v) ? (int)MIN(MAX(json_integer_value(v), 0), INT32_MAX) : 0;
}

/* "error": a sentence, or an object with one. */
static const char *error_of(const json_t *event) {
  const json_t *error = json_object_get(event, "error"), *text = json_is_object(error) ? json_object_get(error, "message") : error;
  if (!error || json_is_null(error)) return NULL;
  return json_is_string(text) ? json_string_value(text) : "an error without a sentence";
}

static void take_text(struct dialect_piece *p, const json_t *v) {
  if (p->text || !json_is_string(v) || json_string_length(v) == 0) return;
  p->text = json_string_value(v);
  p->n_text = json_string_length(v);
}

/* meta_info, or usage: both call the counts alike. */
static void take_counts(struct dialect_piece *p, const json_t *o) {
  if (!json_is_integer(json_object_get(o, "completion_tokens"))) return;
  const json_t *details = json_object_get(o, "prompt_tokens_details");
  p->has_usage = true;
  p->prompt_tokens = count_of(o, "prompt_tokens");
  p->completion_tokens = count_of(o, "completion_tokens");
  p->cached_tokens = count_of(details ? details : o, "cached_tokens");
}

static void take_finish(struct dialect_piece *p, const json_t *finish) {
  const json_t *type = json_is_object(finish) ? json_object_get(finish, "type") : finish; /* SGLang says {"type": "length", ...} */
  if (!json_is_string(type)) return;
  p->ended = true;
  p->aborted = !strcmp(json_string_value(type), "abort");
  if (p->aborted && json_is_string(json_object_get(finish, "message"))) p->error = json_string_value(json_object_get(finish, "message"));
}

bool dialect_read(enum load_api api, const json_t *event, struct dialect_piece *out) {
  *out = (struct dialect_piece){.whole = api == LOAD_SGLANG};
  if (!json_is_object(event)) return false;
  out->error = error_of(event);
  if (out->error) return true;
  if (api == LOAD_SGLANG) {
    const json_t *meta = json_object_get(event, "meta_info");
    take_text(out, json_object_get(event, "text"));
    take_counts(out, meta);
    take_finish(out, json_object_get(meta, "finish_reason"));
    return json_is_object(meta);
  }
  const json_t *choices = json_object_get(event, "choices"), *choice = json_array_get(choices, 0), *usage = json_object_get(event, "usage");
  if (api == LOAD_CHAT) {
    const json_t *delta = json_object_get(choice, "delta");
    take_text(out, json_object_get(delta, "content"));
    take_text(out, json_object_get(delta, "reasoning_content"));
    take_text(out, json_object_get(delta, "reasoning"));
  } else take_text(out, json_object_get(choice, "text"));
  take_counts(out, usage);
  take_finish(out, json_object_get(choice, "finish_reason"));
  return json_is_array(choices) || json_is_object(usage);
}
