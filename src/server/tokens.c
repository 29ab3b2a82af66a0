/* tokens.c — text ↔ tokens over HTTP: /tokenize, /detokenize, /apply-template. Answered by the prep thread alone. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api.h"

static void put_ids(struct buf *out, const int32_t *ids, size_t n) {
  buf_putc(out, '[');
  for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", ids[i]);
  buf_putc(out, ']');
}

/* {"prompt": text or texts, "add_special_tokens": true} → {"tokens", "count", "max_model_len"}; control spellings stay text unless "special". */
static int prepare_tokenize(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)c;
  bool bos = true, special = false;
  struct err why;
  if (json_get_bool(body, "add_special_tokens", &bos, "body", &why) < 0)
    return api_error_set(e, 400, "invalid_value", "add_special_tokens", "%s", why.msg);
  if (json_get_bool(body, "special", &special, "body", &why) < 0) return api_error_set(e, 400, "invalid_value", "special", "%s", why.msg);
  const json_t *prompt = json_object_get(body, "prompt");
  if (json_object_get(body, "messages"))
    return api_error_set(e, 400, "unsupported_parameter", "messages", "body: messages: not supported here");
  size_t n_texts = json_is_array(prompt) ? json_array_size(prompt) : 1;
  struct buf counts;
  buf_init(&counts, 0);
  buf_puts(reply, json_is_array(prompt) ? "{\"tokens\":[" : "{\"tokens\":");
  for (size_t i = 0; i < n_texts; i++) {
    const json_t *text = json_is_array(prompt) ? json_array_get(prompt, i) : prompt;
    int32_t *ids = NULL;
    size_t n = 0;
    if (!json_is_string(text) ||
        a->port.encode(a->port.self, json_string_value(text), json_string_length(text), special, bos, &ids, &n) < 0) {
      buf_free(&counts);
      return api_error_set(e, 400, "invalid_value", "prompt", "body: prompt: expected a string or an array of strings");
    }
    if (i) buf_putc(reply, ',');
    put_ids(reply, ids, n);
    a->port.release(ids);
    buf_printf(&counts, i ? ",%zu" : "%zu", n);
  }
  buf_printf(reply, json_is_array(prompt) ? "],\"count\":[%s],\"max_model_len\":%d}" : ",\"count\":%s,\"max_model_len\":%d}",
             buf_cstr(&counts), a->info.ctx_tokens);
  buf_free(&counts);
  return 1;
}

/* {"tokens": [..], "skip_special_tokens": true} → {"text"} */
static int prepare_detokenize(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)c;
  bool skip = true;
  struct err why;
  if (json_get_bool(body, "skip_special_tokens", &skip, "body", &why) < 0)
    return api_error_set(e, 400, "invalid_value", "skip_special_tokens", "%s", why.msg);
  const json_t *tokens = json_object_get(body, "tokens");
  if (!json_is_array(tokens)) return api_error_set(e, 400, "invalid_value", "tokens", "body: tokens: expected an array of token ids");
  size_t n = json_array_size(tokens), n_text = 0;
  int32_t *ids = xcalloc(n + 1, sizeof *ids);
  for (size_t i = 0; i < n; i++) {
    const json_t *v = json_array_get(tokens, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= a->info.vocab) {
      free(ids);
      return api_error_set(e, 400, "invalid_value", "tokens", "body: tokens[%zu]: expected a token id from 0 to %d", i, a->info.vocab - 1);
    }
    ids[i] = (int32_t)json_integer_value(v);
  }
  char *text = a->port.decode(a->port.self, ids, n, skip, &n_text);
  free(ids);
  buf_puts(reply, "{\"text\":\"");
  buf_json_escape(reply, text ? text : "", text ? n_text : 0);
  buf_puts(reply, "\"}");
  a->port.release(text);
  return 1;
}

static int prepare_apply_template(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)a, (void)c, (void)body, (void)reply;
  return api_error_set(e, 501, "not_implemented", NULL, "not there yet");
}

const struct dialect dialect_tokenize = {
    .name = "tokenize", .id_prefix = "", .prepare = prepare_tokenize, .message = api_reply_message, .fail = openai_fail};
const struct dialect dialect_detokenize = {
    .name = "detokenize", .id_prefix = "", .prepare = prepare_detokenize, .message = api_reply_message, .fail = openai_fail};
const struct dialect dialect_apply_template = {
    .name = "apply-template", .id_prefix = "", .prepare = prepare_apply_template, .message = api_reply_message, .fail = openai_fail};
