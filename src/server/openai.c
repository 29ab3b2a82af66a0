/* openai.c — engine events → chat.completion, text_completion and their chunks. Runs on the io thread. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/api.h"

enum { BODY_MAX = 256 << 20 };

static bool is_chat(const struct call *c) { return c->dialect == &dialect_chat; }

/* ---- errors ----------------------------------------------------------------------------------------------------------- */

void api_reply_error(struct http_exchange *x, const struct api_error *e) {
  struct buf body;
  buf_init(&body, 0);
  api_error_put(&body, e);
  size_t n = strlen(x->extra);
  if (e->status == 503) snprintf(x->extra + n, sizeof x->extra - n, "Retry-After: 1\r\n");
  if (e->status == 401) snprintf(x->extra + n, sizeof x->extra - n, "WWW-Authenticate: Bearer\r\n");
  http_reply(x, e->status, "application/json", buf_cstr(&body), body.len);
  buf_free(&body);
}

static const char done[] = "[DONE]";

void openai_fail(struct call *c, const struct api_error *e) {
  struct http_exchange *x = c->x;
  if (!c->sse) {
    c->x = NULL;
    api_reply_error(x, e);
    return;
  }
  struct buf body;
  buf_init(&body, 0);
  api_error_put(&body, e);
  if (http_sse_send(x, body.data, body.len) && http_sse_send(x, done, sizeof done - 1)) http_sse_end(x);
  c->x = NULL;
  buf_free(&body);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------------ */

static void put_float(struct buf *out, float f) { /* JSON has no infinity; OpenAI's word for "never" is -9999 */
  buf_printf(out, "%.8g", isfinite(f) ? (double)f : -9999.0);
}

static char *token_text(const struct api *a, int32_t id, size_t *n) { return a->port.decode(a->port.self, &id, 1, 0, n); }

static void put_string(struct buf *out, const char *s, size_t n) {
  buf_putc(out, '"');
  buf_json_escape(out, s, n);
  buf_putc(out, '"');
}

/* "token":"..","logprob":..,"bytes":[..]. A token that is part of a character has no text of its own: U+FFFD, and null for its bytes. */
static void put_chat_token(const struct api *a, struct buf *out, int32_t id, float logprob) {
  size_t n = 0;
  char *text = token_text(a, id, &n);
  buf_puts(out, "\"token\":");
  put_string(out, text ? text : "", n);
  buf_puts(out, ",\"logprob\":");
  put_float(out, logprob);
  if (!text || memmem(text, n, "\xef\xbf\xbd", 3)) {
    buf_puts(out, ",\"bytes\":null");
  } else {
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", (unsigned char)text[i]);
    buf_putc(out, ']');
  }
  a->port.release(text);
}

static void put_chat_logprobs(const struct api *a, struct buf *out, const struct message *m) {
  for (int i = 0; i < m->n_tokens; i++) {
    const struct message_token *t = &m->tokens[i];
    buf_puts(out, out->len ? ",{" : "{");
    put_chat_token(a, out, t->id, t->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int k = 0; k < t->n_top; k++) {
      buf_puts(out, k ? ",{" : "{");
      put_chat_token(a, out, m->tops[t->first_top + k].id, m->tops[t->first_top + k].logprob);
      buf_putc(out, '}');
    }
    buf_puts(out, "]}");
  }
}

static size_t code_points(const char *s, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
  return count;
}

/* {"token": logprob, ...}: the best ones, and the sampled one. Two ids with one spelling would be one key twice: the better one stays. */
static void put_top_map(const struct api *a, struct buf *out, const struct message *m, const struct message_token *t) {
  char *seen[24];
  size_t seen_n[24];
  int n_seen = 0;
  buf_putc(out, '{');
  for (int k = 0; k <= t->n_top && n_seen < (int)ARRAY_LEN(seen); k++) {
    int32_t id = k < t->n_top ? m->tops[t->first_top + k].id : t->id;
    float logprob = k < t->n_top ? m->tops[t->first_top + k].logprob : t->logprob;
    size_t n = 0;
    char *text = token_text(a, id, &n);
    bool again = !text;
    for (int i = 0; i < n_seen && !again; i++) again = seen_n[i] == n && memcmp(seen[i], text, n) == 0;
    if (again) {
      a->port.release(text);
      continue;
    }
    if (n_seen) buf_putc(out, ',');
    put_string(out, text, n);
    buf_putc(out, ':');
    put_float(out, logprob);
    seen[n_seen] = text;
    seen_n[n_seen++] = n;
  }
  buf_putc(out, '}');
  for (int i = 0; i < n_seen; i++) a->port.release(seen[i]);
}

static void put_comma(struct buf *out) {
  if (out->len) buf_putc(out, ',');
}

static void add_legacy_logprobs(const struct api *a, struct choice *o, const struct message *m) {
  for (int i = 0; i < m->n_tokens; i++) {
    const struct message_token *t = &m->tokens[i];
    size_t n = 0;
    char *text = token_text(a, t->id, &n);
    put_comma(&o->logprobs);
    put_string(&o->logprobs, text ? text : "", n);
    put_comma(&o->token_logprobs);
    put_float(&o->token_logprobs, t->logprob);
    put_comma(&o->top_logprobs);
    put_top_map(a, &o->top_logprobs, m, t);
    put_comma(&o->text_offsets);
    buf_printf(&o->text_offsets, "%zu", o->text_offset);
    if (text) o->text_offset += code_points(text, n);
    a->port.release(text);
  }
}

static void add_logprobs(const struct api *a, struct choice *o, const struct message *m) {
  if (is_chat(o->call)) put_chat_logprobs(a, &o->logprobs, m);
  else add_legacy_logprobs(a, o, m);
}

/* "logprobs":... of what was collected. */
static void put_logprobs(struct buf *out, const struct choice *o) {
  if (o->call->job.logprobs < 0) {
    buf_puts(out, "\"logprobs\":null");
  } else if (is_chat(o->call)) {
    buf_printf(out, "\"logprobs\":{\"content\":[%s],\"refusal\":null}", buf_cstr(&o->logprobs));
  } else {
    buf_printf(out, "\"logprobs\":{\"tokens\":[%s],\"token_logprobs\":[%s],", buf_cstr(&o->logprobs), buf_cstr(&o->token_logprobs));
    buf_printf(out, "\"top_logprobs\":[%s],\"text_offset\":[%s]}", buf_cstr(&o->top_logprobs), buf_cstr(&o->text_offsets));
  }
}

static void clear_logprobs(struct choice *o) {
  buf_clear(&o->logprobs);
  buf_clear(&o->token_logprobs);
  buf_clear(&o->top_logprobs);
  buf_clear(&o->text_offsets);
}

/* ---- pieces of answers ------------------------------------------------------------------------------------------------ */

static const char *finish_name(enum cygnet_finish f) {
  switch (f) {
  case CYGNET_FINISH_STOP: return "stop";
  case CYGNET_FINISH_LENGTH: return "length";
  case CYGNET_FINISH_ABORT: return "abort";
  default: return NULL;
  }
}

static void put_finish(struct buf *out, const struct choice *o) {
  const struct job *j = &o->call->job;
  if (!o->finish) {
    buf_puts(out, ",\"finish_reason\":null");
    return;
  }
  buf_printf(out, ",\"finish_reason\":\"%s\",\"matched_stop\":", o->finish);
  if (o->matched_stop >= 0 && o->matched_stop < j->n_stop) put_string(out, j->stop[o->matched_stop], strlen(j->stop[o->matched_stop]));
  else if (o->matched_id >= 0) buf_printf(out, "%d", o->matched_id);
  else buf_puts(out, "null");
}

static void put_usage(struct buf *out, const struct call *c) {
  int64_t prompt = 0, cached = 0, completion = 0;
  for (int i = 0; i < c->n_choices; i++) {
    const struct choice *o = &c->choices[i];
    completion += o->completion_tokens;
    if (i % c->job.n) continue; /* the same prompt again */
    prompt += (int64_t)c->job.prompts[o->prompt].n_ids;
    cached += o->cached_tokens;
  }
  buf_printf(
      out,
      "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
      (long long)prompt, (long long)completion, (long long)(prompt + completion), (long long)cached);
}

static void put_opening(struct buf *out, const struct api *a, const struct call *c, const char *object) {
  buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":\"%s\",\"system_fingerprint\":\"cygnet-%s\",\"choices\":[",
             c->id, object, (long long)c->created, buf_cstr(&a->model_json), CYGNET_VERSION);
}

/* ---- streaming -------------------------------------------------------------------------------------------------------- */

static const char *chunk_object(const struct call *c) { return is_chat(c) ? "chat.completion.chunk" : "text_completion"; }

static bool send_chunk(struct call *c, struct buf *chunk) {
  if (c->job.continuous_usage) {
    buf_putc(chunk, ',');
    put_usage(chunk, c);
  } else if (c->job.include_usage) {
    buf_puts(chunk, ",\"usage\":null");
  }
  buf_putc(chunk, '}');
  return http_sse_send(c->x, chunk->data, chunk->len);
}

/* One chunk of one choice. role: the opening one of a chat. */
static bool send_delta(const struct api *a, struct choice *o, const char *text, size_t n, bool role) {
  struct buf chunk;
  buf_init(&chunk, 0);
  put_opening(&chunk, a, o->call, chunk_object(o->call));
  buf_printf(&chunk, "{\"index\":%d,", o->index);
  if (is_chat(o->call)) {
    buf_puts(&chunk, "\"delta\":{");
    if (role) buf_puts(&chunk, "\"role\":\"assistant\",");
    if (role || n || !o->finish) {
      buf_puts(&chunk, "\"content\":");
      put_string(&chunk, text, n);
    }
    buf_puts(&chunk, "},");
  } else {
    buf_puts(&chunk, "\"text\":");
    put_string(&chunk, text, n);
    buf_putc(&chunk, ',');
  }
  if (role || (!o->logprobs.len && !n)) buf_puts(&chunk, "\"logprobs\":null");
  else put_logprobs(&chunk, o);
  put_finish(&chunk, o);
  buf_puts(&chunk, "}]");
  bool sent = send_chunk(o->call, &chunk);
  clear_logprobs(o);
  buf_free(&chunk);
  return sent;
}

static bool begin_choice(const struct api *a, struct choice *o) {
  const struct job_prompt *p = &o->call->job.prompts[o->prompt];
  const char *finish = o->finish;
  bool sent = true;
  o->begun = true;
  o->finish = NULL; /* not of the opening chunk */
  if (is_chat(o->call)) sent = send_delta(a, o, "", 0, true);
  else if (o->call->job.echo) sent = send_delta(a, o, p->text, p->n_text, false);
  o->finish = finish;
  return sent;
}

static void stream_event(const struct api *a, struct call *c, struct choice *o, const struct message *m) {
  if (!c->sse) http_sse_begin(c->x);
  c->sse = true;
  if (!o->begun && !begin_choice(a, o)) return;
  if (c->job.logprobs >= 0) add_logprobs(a, o, m);
  bool finish = o->finish != NULL;
  if (m->text.len || o->logprobs.len) {
    o->finish = NULL; /* its own chunk, as clients are used to */
    if (!send_delta(a, o, buf_cstr(&m->text), m->text.len, false)) return;
    o->finish = finish_name(m->finish);
  }
  if (finish && !send_delta(a, o, "", 0, false)) return;
  if (!m->last) return;
  if (c->job.include_usage) {
    struct buf chunk;
    buf_init(&chunk, 0);
    put_opening(&chunk, a, c, chunk_object(c));
    buf_puts(&chunk, "],");
    put_usage(&chunk, c);
    buf_putc(&chunk, '}');
    bool sent = http_sse_send(c->x, chunk.data, chunk.len);
    buf_free(&chunk);
    if (!sent) return;
  }
  if (!http_sse_send(c->x, done, sizeof done - 1)) return;
  struct http_exchange *x = c->x;
  c->x = NULL;
  http_sse_end(x);
}

/* ---- whole answers ---------------------------------------------------------------------------------------------------- */

static void put_choice(struct buf *out, const struct choice *o) {
  const struct job_prompt *p = &o->call->job.prompts[o->prompt];
  buf_printf(out, "{\"index\":%d,", o->index);
  if (is_chat(o->call)) {
    buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    put_string(out, buf_cstr(&o->text), o->text.len);
    buf_puts(out, ",\"refusal\":null},");
  } else {
    buf_puts(out, "\"text\":\"");
    if (p->text) buf_json_escape(out, p->text, p->n_text);
    buf_json_escape(out, buf_cstr(&o->text), o->text.len);
    buf_puts(out, "\",");
  }
  put_logprobs(out, o);
  put_finish(out, o);
  buf_putc(out, '}');
}

static void reply_whole(const struct api *a, struct call *c) {
  struct buf out;
  buf_init(&out, BODY_MAX);
  put_opening(&out, a, c, is_chat(c) ? "chat.completion" : "text_completion");
  for (int i = 0; i < c->n_choices; i++) {
    if (i) buf_putc(&out, ',');
    put_choice(&out, &c->choices[i]);
  }
  buf_puts(&out, "],");
  put_usage(&out, c);
  buf_putc(&out, '}');
  struct http_exchange *x = c->x;
  c->x = NULL;
  if (out.overflow) {
    struct api_error e;
    api_error_set(&e, 500, "internal_error", NULL, "the answer is larger than %d bytes", BODY_MAX);
    api_reply_error(x, &e);
  } else {
    http_reply(x, 200, "application/json", out.data, out.len);
  }
  buf_free(&out);
}

void openai_message(const struct api *a, struct call *c, const struct message *m) {
  struct http_exchange *x = c->x;
  switch (m->kind) {
  case MESSAGE_GONE: {
    struct api_error e;
    api_error_set(&e, 503, "busy", NULL, "the server is shutting down");
    openai_fail(c, &e);
    return;
  }
  case MESSAGE_ERROR: openai_fail(c, &m->error); return;
  case MESSAGE_REPLY:
    c->x = NULL;
    http_reply(x, 200, "application/json", buf_cstr(&m->text), m->text.len);
    return;
  case MESSAGE_EVENT: break;
  }
  struct choice *o = &c->choices[m->choice];
  o->finish = finish_name(m->finish);
  o->matched_stop = m->matched_stop;
  o->matched_id = m->matched_id;
  o->cached_tokens = m->cached_tokens;
  o->completion_tokens = m->completion_tokens;
  if (c->job.stream) {
    stream_event(a, c, o, m);
    return;
  }
  buf_append(&o->text, m->text.data, m->text.len);
  if (c->job.logprobs >= 0) add_logprobs(a, o, m);
  if (m->last) reply_whole(a, c);
}

/* ---- dialects --------------------------------------------------------------------------------------------------------- */

static int prepare_chat(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)reply;
  return openai_prepare_chat(a, c, body, e);
}
static int prepare_completion(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)reply;
  return openai_prepare_completion(a, c, body, e);
}

const struct dialect dialect_chat = {
    .name = "chat", .id_prefix = "chatcmpl-", .prepare = prepare_chat, .message = openai_message, .fail = openai_fail};
const struct dialect dialect_completion = {
    .name = "completion", .id_prefix = "cmpl-", .prepare = prepare_completion, .message = openai_message, .fail = openai_fail};
