/* openai.c — engine events → chat.completion, text_completion and their chunks. Runs on the io thread. */
#include <math.h>
#include <string.h>

#include "base/str.h"
#include "server/parts.h"

static bool is_chat(const struct call *c) { return c->dialect == &dialect_chat; }

/* ---- errors ----------------------------------------------------------------------------------------------------------- */

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
  if (http_sse_send(x, body.data, body.len)) api_send_done(c);
  c->x = NULL;
  buf_free(&body);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------------ */

static size_t code_points(const char *s, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
  return count;
}

/* {"token": logprob, ...}: the best ones, and the token itself. Two ids with one spelling would be one key twice: the better one stays. */
static void put_top_map(const struct api *a, struct buf *out, const struct message_token *t, const struct cygnet_logprob *tops) {
  struct buf keys, key; /* those written, each NUL and a JSON string, so that one is found in the others only as a whole */
  buf_init(&keys, 0);
  buf_init(&key, 0);
  buf_putc(out, '{');
  for (int k = 0; k <= t->n_top; k++) {
    struct cygnet_logprob one = k < t->n_top ? tops[t->first_top + k] : (struct cygnet_logprob){t->id, t->logprob};
    buf_clear(&key);
    buf_putc(&key, 0);
    api_put_token(a, &key, one.id);
    if (keys.len && memmem(keys.data, keys.len, key.data, key.len)) continue;
    if (keys.len) buf_putc(out, ',');
    buf_append(&keys, key.data, key.len);
    buf_append(out, key.data + 1, key.len - 1);
    buf_putc(out, ':');
    api_put_logprob(out, one.logprob);
  }
  buf_putc(out, '}');
  buf_free(&keys);
  buf_free(&key);
}

static void add_legacy(const struct api *a, struct choice *o, const struct message_token *t, const struct cygnet_logprob *tops) {
  api_put_comma(&o->logprobs);
  api_put_token(a, &o->logprobs, t->id);
  api_put_comma(&o->token_logprobs);
  api_put_logprob(&o->token_logprobs, t->logprob);
  api_put_comma(&o->top_logprobs);
  if (isnan(t->logprob)) buf_puts(&o->top_logprobs, "null");
  else put_top_map(a, &o->top_logprobs, t, tops);
  api_put_comma(&o->text_offsets);
  buf_printf(&o->text_offsets, "%zu", o->text_offset);
}

/* How many bytes of text a token stands for: none when the text has not got it, as a BOS that was put in front. */
static size_t bytes_in_text(const char *piece, size_t n, const char *text, size_t n_text) {
  if (n <= n_text && memcmp(piece, text, n) == 0) return n;
  return n_text >= 3 && memcmp(text, "\xef\xbf\xbd", 3) == 0 && !utf8_valid(piece, n) ? 3 : 0; /* decoded, and no character */
}

/* Tokens of the prompt, beside the echoed text. */
static void add_prompt_logprobs(const struct api *a, struct choice *o, const struct message *m) {
  const struct job_prompt *p = &o->call->job.prompts[o->prompt];
  size_t at = 0; /* in p->text */
  for (int i = 0; i < m->n_prompt; i++) {
    size_t n = 0;
    const char *piece = a->port.piece(a->port.self, m->prompt[i].id, &n);
    add_legacy(a, o, &m->prompt[i], m->prompt_tops);
    if (!piece) continue;
    n = bytes_in_text(piece, n, p->text + at, p->n_text - at);
    o->text_offset += code_points(p->text + at, n);
    at += n;
  }
  o->text_offset = code_points(p->text, p->n_text);
}

static void add_legacy_logprobs(const struct api *a, struct choice *o, const struct message *m) {
  for (int i = 0; i < m->n_tokens; i++) {
    size_t n = 0, n_shown = 0;
    int32_t id = m->tokens[i].id;
    const char *piece = a->port.piece(a->port.self, id, &n);
    char *shown = a->port.decode(a->port.self, &id, 1, !o->call->job.show_special, &n_shown);
    add_legacy(a, o, &m->tokens[i], m->tops);
    if (piece && n_shown) o->text_offset += code_points(piece, n); /* control tokens may not be shown */
    a->port.release(shown);
  }
}

static void add_logprobs(const struct api *a, struct choice *o, const struct message *m) {
  if (o->call->job.logprobs < 0) return;
  if (is_chat(o->call)) api_put_chat_logprobs(a, &o->logprobs, m);
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

static void put_finish(struct buf *out, const struct choice *o) {
  if (!o->finish) {
    buf_puts(out, ",\"finish_reason\":null");
    return;
  }
  buf_printf(out, ",\"finish_reason\":\"%s\",\"matched_stop\":", o->finish);
  api_put_matched(out, o);
}

static void put_usage(struct buf *out, const struct call *c) {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
  for (int i = 0; i < c->n_choices; i++) {
    const struct choice *o = &c->choices[i];
    completion += o->completion_tokens;
    reasoning += o->reasoning_tokens;
    if (i % c->job.n) continue; /* the same prompt again */
    prompt += (int64_t)job_prompt_tokens(&c->job.prompts[o->prompt]);
    cached += o->cached_tokens;
  }
  buf_printf(out, "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"reasoning_tokens\":%lld,",
             (long long)prompt, (long long)completion, (long long)(prompt + completion), (long long)reasoning);
  buf_printf(out, "\"prompt_tokens_details\":{\"cached_tokens\":%lld", (long long)cached);
  api_put_media_usage(out, c);
  buf_printf(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}", (long long)reasoning);
}

/* What SGLang says beyond OpenAI, after usage or choices. */
static void put_cached_details(struct buf *out, const struct call *c) {
  int64_t cached = 0;
  for (int i = 0; i < c->n_choices; i += c->job.n) cached += c->choices[i].cached_tokens;
  buf_printf(out, ",\"sglext\":{\"cached_tokens_details\":{\"device\":%lld,\"host\":0}}", (long long)cached);
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

static void put_call(struct buf *out, const struct answer_call *call, int index, const char *arguments, size_t n) {
  buf_putc(out, '{');
  if (index >= 0) buf_printf(out, "\"index\":%d,", index);
  buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", call->id);
  api_put_string(out, call->name, strlen(call->name));
  buf_puts(out, ",\"arguments\":");
  api_put_string(out, arguments, n);
  buf_puts(out, "}}");
}

/* What is new of a choice: the inside of "delta", or "text". */
static void put_text(struct buf *out, const struct choice *o, enum cygnet_part_kind kind, const char *text, size_t n) {
  if (!is_chat(o->call)) buf_puts(out, "\"text\":");
  else buf_puts(out, kind == CYGNET_PART_REASONING ? "\"reasoning_content\":" : "\"content\":");
  api_put_string(out, text, n);
}

/* One chunk of one choice. fields: what put_text and the like wrote; may be empty. */
static bool send_delta(const struct api *a, struct choice *o, const struct buf *fields, bool with_logprobs) {
  struct buf chunk;
  buf_init(&chunk, 0);
  put_opening(&chunk, a, o->call, chunk_object(o->call));
  buf_printf(&chunk, "{\"index\":%d,", o->index);
  buf_puts(&chunk, is_chat(o->call) ? "\"delta\":{" : "");
  buf_append(&chunk, buf_cstr(fields), fields->len);
  buf_puts(&chunk, is_chat(o->call) ? "}," : ",");
  if (with_logprobs) put_logprobs(&chunk, o);
  else buf_puts(&chunk, "\"logprobs\":null");
  put_finish(&chunk, o);
  buf_puts(&chunk, "}]");
  bool sent = send_chunk(o->call, &chunk);
  if (with_logprobs) clear_logprobs(o);
  buf_free(&chunk);
  return sent;
}

static bool send_text(const struct api *a, struct choice *o, enum cygnet_part_kind kind, struct str text, bool with_logprobs) {
  struct buf fields;
  buf_init(&fields, 0);
  put_text(&fields, o, kind, text.p, text.n);
  bool sent = send_delta(a, o, &fields, with_logprobs);
  buf_free(&fields);
  return sent;
}

/* A call in two chunks, as clients are used to: who it is, then its arguments. */
static bool send_call(const struct api *a, struct choice *o, int index, bool with_logprobs) {
  const struct answer_call *call = &o->calls[index];
  struct buf fields;
  buf_init(&fields, 0);
  buf_puts(&fields, "\"tool_calls\":[");
  put_call(&fields, call, index, "", 0);
  buf_putc(&fields, ']');
  bool sent = send_delta(a, o, &fields, with_logprobs);
  if (sent) {
    buf_clear(&fields);
    buf_printf(&fields, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", index);
    api_put_string(&fields, call->arguments, call->n_arguments);
    buf_puts(&fields, "}}]");
    sent = send_delta(a, o, &fields, false);
  }
  buf_free(&fields);
  return sent;
}

/* The opening of a conversation's answer, or the prompt that is to be shown. */
static bool begin_choice(const struct api *a, struct choice *o, const struct message *m) {
  const struct job_prompt *p = &o->call->job.prompts[o->prompt];
  const char *finish = o->finish;
  bool sent = true;
  o->begun = true;
  o->finish = NULL; /* not of the opening chunk */
  if (is_chat(o->call)) {
    struct buf fields;
    buf_init(&fields, 0);
    buf_puts(&fields, "\"role\":\"assistant\",\"content\":\"\"");
    sent = send_delta(a, o, &fields, false);
    buf_free(&fields);
  } else if (o->call->job.echo) {
    add_prompt_logprobs(a, o, m);
    sent = send_text(a, o, CYGNET_PART_CONTENT, str_of(p->text, p->n_text), o->logprobs.len || p->n_text);
  }
  o->finish = finish;
  return sent;
}

/* After all choices: usage and the like, one chunk without choices. */
static bool send_totals(const struct api *a, struct call *c) {
  struct buf chunk;
  if (!c->job.include_usage && !c->job.cached_details) return true;
  buf_init(&chunk, 0);
  put_opening(&chunk, a, c, chunk_object(c));
  buf_putc(&chunk, ']');
  if (c->job.include_usage) {
    buf_putc(&chunk, ',');
    put_usage(&chunk, c);
  }
  if (c->job.cached_details) put_cached_details(&chunk, c);
  buf_putc(&chunk, '}');
  bool sent = http_sse_send(c->x, chunk.data, chunk.len);
  buf_free(&chunk);
  return sent;
}

/* Each part in a chunk of its own; the message's log-probabilities go with the first, or alone. */
static bool send_parts(const struct api *a, struct choice *o) {
  bool sent = true;
  for (int i = 0; i < o->n_parts && sent; i++) {
    const struct part *p = &o->parts[i];
    if (p->kind == CYGNET_PART_CALL) sent = send_call(a, o, p->call, i == 0);
    else sent = send_text(a, o, p->kind, parts_text(o, p), i == 0);
  }
  if (!o->n_parts && o->logprobs.len) sent = send_text(a, o, CYGNET_PART_CONTENT, str_of("", 0), true);
  return sent;
}

static bool send_finish(const struct api *a, struct choice *o) {
  struct buf fields;
  buf_init(&fields, 0);
  if (!is_chat(o->call)) buf_puts(&fields, "\"text\":\"\"");
  bool sent = send_delta(a, o, &fields, false);
  buf_free(&fields);
  return sent;
}

static void stream_event(const struct api *a, struct call *c, struct choice *o, const struct message *m) {
  const char *finish = o->finish;
  api_begin_stream(c);
  if (!o->begun && !begin_choice(a, o, m)) return;
  add_logprobs(a, o, m);
  o->finish = NULL; /* in a chunk of its own, as clients are used to */
  if (!send_parts(a, o)) return;
  o->finish = finish;
  if (finish && !send_finish(a, o)) return;
  if (m->last && send_totals(a, c)) api_send_done(c);
}

/* ---- whole answers ---------------------------------------------------------------------------------------------------- */

static void put_choice(struct buf *out, const struct choice *o) {
  const struct job_prompt *p = &o->call->job.prompts[o->prompt];
  buf_printf(out, "{\"index\":%d,", o->index);
  if (is_chat(o->call)) {
    buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    api_put_string(out, buf_cstr(&o->text), o->text.len);
    buf_puts(out, ",\"refusal\":null,\"reasoning_content\":");
    if (o->reasoning.len) api_put_string(out, o->reasoning.data, o->reasoning.len);
    else buf_puts(out, "null");
    for (int i = 0; i < o->n_calls; i++) {
      buf_puts(out, i ? "," : ",\"tool_calls\":[");
      put_call(out, &o->calls[i], -1, o->calls[i].arguments, o->calls[i].n_arguments);
    }
    buf_puts(out, o->n_calls ? "]}," : "},");
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
  buf_init(&out, API_BODY_MAX);
  put_opening(&out, a, c, is_chat(c) ? "chat.completion" : "text_completion");
  for (int i = 0; i < c->n_choices; i++) {
    if (i) buf_putc(&out, ',');
    put_choice(&out, &c->choices[i]);
  }
  buf_puts(&out, "],");
  put_usage(&out, c);
  if (c->job.cached_details) put_cached_details(&out, c);
  buf_puts(&out, ",\"metadata\":{\"weight_version\":\"default\"}}");
  api_reply_body(c, &out);
}

static void message(const struct api *a, struct call *c, const struct message *m) {
  if (api_take_whole(c, m)) return;
  struct choice *o = api_take_numbers(c, m);
  parts_take(a, o, m, !c->job.stream);
  if (c->job.stream) {
    stream_event(a, c, o, m);
    return;
  }
  if (!o->begun && c->job.echo) add_prompt_logprobs(a, o, m);
  o->begun = true;
  add_logprobs(a, o, m);
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
    .name = "chat", .id_prefix = "chatcmpl-", .prepare = prepare_chat, .message = message, .fail = openai_fail};
const struct dialect dialect_completion = {
    .name = "completion", .id_prefix = "cmpl-", .prepare = prepare_completion, .message = message, .fail = openai_fail};
