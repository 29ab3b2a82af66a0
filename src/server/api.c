/* api.c — what all dialects share: prompts and choices on the way in, errors and small pieces of JSON on the way out. */
#include "server/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "server/media.h"

/* ---- prompts and choices ---------------------------------------------------------------------------------------------------- */

void api_add_ids(struct job *j, const int32_t *ids, size_t n) {
  struct job_prompt *t = &j->prompts[j->n_prompts++];
  t->ids = xcalloc(n + 1, sizeof *t->ids);
  if (n) memcpy(t->ids, ids, n * sizeof *ids);
  t->n_ids = n;
}

static void add_text(struct params *p, const struct api *a, const json_t *v, const char *param, struct job *j) {
  int32_t *ids = NULL;
  size_t n = 0;
  if (a->port.encode(a->port.self, json_string_value(v), json_string_length(v), 1, 1, &ids, &n) < 0 || !ids) {
    params_fail(p, param, "the text could not be tokenised");
    return;
  }
  api_add_ids(j, ids, n);
  a->port.release(ids);
  struct job_prompt *t = &j->prompts[j->n_prompts - 1];
  if (!j->echo) return;
  t->n_text = json_string_length(v);
  t->text = xstrndup(json_string_value(v), t->n_text);
}

static void add_json_ids(struct params *p, const struct api *a, const json_t *list, const char *param, struct job *j) {
  size_t n;
  int32_t *ids = params_ids(p, param, list, a, &n);
  if (!ids) return;
  struct job_prompt *t = &j->prompts[j->n_prompts++];
  t->ids = ids;
  t->n_ids = n;
  if (!j->echo) return;
  char *text = a->port.decode(a->port.self, t->ids, t->n_ids, 0, &t->n_text);
  t->text = xstrndup(text ? text : "", text ? t->n_text : 0);
  a->port.release(text);
}

/* A string, ids, or an array of either kind. */
int api_prompts(const struct api *a, const json_t *prompt, const char *param, struct job *j, struct api_error *e) {
  struct params p = params_of(NULL, "body", e);
  bool many = json_is_array(prompt) && json_array_size(prompt) && !json_is_integer(json_array_get(prompt, 0));
  size_t n = many ? json_array_size(prompt) : 1;
  if (!json_is_string(prompt) && !json_array_size(prompt))
    params_fail(&p, param, "expected a string, an array of strings, an array of token ids, or an array of such arrays");
  if (n > (size_t)a->choices_max) params_fail(&p, param, "expected at most %d prompts, found %zu", a->choices_max, n);
  if (p.failed) return -1;
  j->prompts = xcalloc(n, sizeof *j->prompts);
  for (size_t i = 0; i < n && !p.failed; i++) {
    const json_t *v = many ? json_array_get(prompt, i) : prompt;
    if (json_is_string(v)) add_text(&p, a, v, param, j);
    else if (json_array_size(v)) add_json_ids(&p, a, v, param, j);
    else params_fail(&p, param, "[%zu]: expected a string or an array of token ids", i);
  }
  return params_end(&p);
}

/* The renderer speaks of messages; here there is one text. */
int api_media_prompt(const struct api *a, struct job *j, const char *text, size_t n, int first, int n_media, const char *param,
                     struct api_error *e) {
  json_t *parts = json_array();
  for (int i = first; i < first + n_media; i++)
    json_array_append_new(parts, json_pack("{s:s}", "type", j->media[i].kind == CYGNET_AUDIO ? "input_audio" : "image_url"));
  json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", json_stringn(text, n)));
  json_t *messages = json_pack("[{s:s, s:o}]", "role", "user", "content", parts);
  struct buf json;
  struct cygnet_error why = {0};
  int32_t *ids = NULL;
  size_t n_ids = 0;
  int thought = 0;
  buf_init(&json, 0);
  json_put(&json, messages);
  json_decref(messages);
  int r = a->port.render(a->port.self, buf_cstr(&json), NULL, "{\"raw\":true,\"special\":true}", &ids, &n_ids, &thought, &why);
  buf_free(&json);
  if (r < 0) return api_error_set(e, why.status >= 400 ? why.status : 400, "invalid_value", param, "body: %s: %s", param, why.message);
  api_add_ids(j, ids, n_ids);
  a->port.release(ids);
  return media_match(a, j, &j->prompts[j->n_prompts - 1], first, n_media, param, e);
}

int api_check_choices(const struct api *a, const struct job *j, struct api_error *e) {
  if (j->n_prompts * j->n <= a->choices_max) return 0;
  return api_error_set(e, 400, "invalid_value", "n", "body: n: expected at most %d choices over all prompts", a->choices_max);
}

static void make_choices(struct call *c) {
  c->n_choices = c->job.n_prompts * c->job.n;
  c->choices = xcalloc((size_t)c->n_choices, sizeof *c->choices);
  for (int i = 0; i < c->n_choices; i++)
    c->choices[i] = (struct choice){.call = c, .index = i, .prompt = i / c->job.n, .matched_stop = -1, .matched_id = -1};
}

int api_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e) {
  struct err why;
  c->api = a;
  reply->max_bytes = API_BODY_MAX;
  json_t *body = c->dialect->in_parts ? json_null()
                 : c->dialect->empty_body && c->body.len == 0
                     ? json_object()
                     : json_load_text(c->body.data ? c->body.data : "", c->body.len, false, "body", &why);
  if (!body) return api_error_set(e, err_http_status(why.code), "invalid_json", NULL, "%s", why.msg);
  int r = json_is_object(body) || c->dialect->in_parts ? c->dialect->prepare(a, c, body, reply, e)
                                                       : api_error_set(e, 400, "invalid_json", NULL, "body: expected a JSON object");
  json_decref(body);
  if (r > 0 && reply->overflow)
    return api_error_set(e, 413, "request_too_large", NULL, "body: the answer would be larger than %d bytes", API_BODY_MAX);
  if (r == 0 && c->n_choices == 0) make_choices(c);
  return r;
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

void api_reply_error(struct http_exchange *x, const struct api_error *e) {
  struct buf body;
  buf_init(&body, 0);
  api_error_put(&body, e);
  api_reply_error_body(x, e->status, &body);
  buf_free(&body);
}

void api_reply_error_body(struct http_exchange *x, int status, const struct buf *body) {
  if (status == 503 && !http_has_header(x, "Retry-After")) http_add_header(x, "Retry-After: 1");
  if (status == 401) http_add_header(x, "WWW-Authenticate: Bearer");
  http_reply(x, status, "application/json", buf_cstr(body), body->len);
}

void api_reply_body(struct call *c, struct buf *out) {
  struct http_exchange *x = c->x;
  if (out->overflow) {
    struct api_error e;
    api_error_set(&e, 500, "internal_error", NULL, "the answer is larger than %zu bytes", out->max_bytes);
    c->dialect->fail(c, &e);
  } else {
    c->x = NULL;
    http_reply(x, 200, "application/json", buf_cstr(out), out->len);
  }
  buf_free(out);
}

bool api_take_whole(struct call *c, const struct message *m) {
  struct http_exchange *x = c->x;
  struct api_error e;
  switch (m->kind) {
  case MESSAGE_GONE:
    api_error_set(&e, 503, "busy", NULL, "the server is shutting down");
    c->dialect->fail(c, &e);
    return true;
  case MESSAGE_ERROR: c->dialect->fail(c, &m->error); return true;
  case MESSAGE_REPLY:
    c->x = NULL;
    http_reply(x, 200, "application/json", buf_cstr(&m->text), m->text.len);
    return true;
  case MESSAGE_EVENT: break;
  }
  return false;
}

void api_reply_message(const struct api *a, struct call *c, const struct message *m) {
  (void)a;
  api_take_whole(c, m);
}

struct choice *api_take_numbers(struct call *c, const struct message *m) {
  struct choice *o = &c->choices[m->choice];
  o->finish = m->finish ? cygnet_finish_name(m->finish) : NULL;
  o->matched_stop = m->matched_stop;
  o->matched_id = m->matched_id;
  o->prompt_tokens = m->prompt_tokens;
  o->cached_tokens = m->cached_tokens;
  o->completion_tokens = m->completion_tokens;
  o->n_retractions = m->n_retractions;
  o->reasoning_tokens = m->reasoning_tokens;
  o->n_media_cached = m->n_media_cached;
  o->encode_ms = m->encode_ms;
  o->queue_ms = m->queue_ms;
  o->prefill_ms = m->prefill_ms;
  o->decode_ms = m->decode_ms;
  return o;
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------- */

void api_begin_stream(struct call *c) {
  if (!c->sse) http_sse_begin(c->x);
  c->sse = true;
}

void api_end_stream(struct call *c) {
  struct http_exchange *x = c->x;
  c->x = NULL;
  http_sse_end(x);
}

bool api_send_done(struct call *c) {
  static const char done[] = "[DONE]";
  if (!http_sse_send(c->x, done, sizeof done - 1)) return false;
  api_end_stream(c);
  return true;
}

/* ---- pieces of answers ------------------------------------------------------------------------------------------------------ */

void api_put_media_usage(struct buf *out, const struct call *c) {
  int64_t image = 0, audio = 0, media = 0, cached = 0;
  for (int i = 0; i < c->n_choices; i += c->job.n) { /* the others are the same prompts again */
    const struct job_prompt *t = &c->job.prompts[c->choices[i].prompt];
    image += t->image_tokens;
    audio += t->audio_tokens;
    media += t->n_media;
    cached += c->choices[i].n_media_cached;
  }
  if (!media) return;
  buf_printf(out, ",\"image_tokens\":%lld,\"audio_tokens\":%lld,\"media\":%lld,\"media_cached\":%lld", (long long)image, (long long)audio,
             (long long)media, (long long)cached);
}

void api_put_comma(struct buf *out) {
  if (out->len) buf_putc(out, ',');
}

void api_put_ids(struct buf *out, const int32_t *ids, size_t n) {
  buf_putc(out, '[');
  for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", ids[i]);
  buf_putc(out, ']');
}

void api_put_string(struct buf *out, const char *s, size_t n) {
  buf_putc(out, '"');
  buf_json_escape(out, s, n);
  buf_putc(out, '"');
}

void api_put_token(const struct api *a, struct buf *out, int32_t id) {
  size_t n = 0;
  const char *piece = a->port.piece(a->port.self, id, &n);
  api_put_string(out, piece ? piece : "", n);
}

void api_put_logprob(struct buf *out, float f) {
  if (isnan(f)) buf_puts(out, "null");
  else buf_printf(out, "%.8g", isfinite(f) ? (double)f : -9999.0);
}

/* The bytes are the token's own; the text of one that is a part of a character is U+FFFD. */
static void put_chat_token(const struct api *a, struct buf *out, int32_t id, float logprob) {
  size_t n = 0;
  const char *piece = a->port.piece(a->port.self, id, &n);
  buf_puts(out, "\"token\":");
  api_put_string(out, piece ? piece : "", n);
  buf_puts(out, ",\"logprob\":");
  api_put_logprob(out, logprob);
  buf_puts(out, ",\"bytes\":[");
  for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", (unsigned char)piece[i]);
  buf_putc(out, ']');
}

void api_put_chat_logprobs(const struct api *a, struct buf *out, const struct message *m) {
  for (int i = 0; i < m->n_tokens; i++) {
    const struct message_token *t = &m->tokens[i];
    api_put_comma(out);
    buf_putc(out, '{');
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

void api_put_matched(struct buf *out, const struct choice *o) {
  const struct job *j = job_of_prompt(&o->call->job, o->prompt);
  if (o->matched_stop >= 0 && o->matched_stop < j->n_stop) api_put_string(out, j->stop[o->matched_stop], strlen(j->stop[o->matched_stop]));
  else if (o->matched_id >= 0) buf_printf(out, "%d", o->matched_id);
  else buf_puts(out, "null");
}
