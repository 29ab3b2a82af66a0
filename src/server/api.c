/* api.c — what all dialects share: prompts and choices on the way in, errors and small pieces of JSON on the way out. */
#include "server/api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/params.h"

int api_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e) {
  struct err why;
  json_t *body = c->dialect->empty_body && c->body.len == 0
                     ? json_object()
                     : json_load_text(c->body.data ? c->body.data : "", c->body.len, false, "body", &why);
  if (!body) return api_error_set(e, err_http_status(why.code), "invalid_json", NULL, "%s", why.msg);
  int r = json_is_object(body) ? c->dialect->prepare(a, c, body, reply, e)
                               : api_error_set(e, 400, "invalid_json", NULL, "body: expected a JSON object");
  json_decref(body);
  if (r == 0 && c->n_choices == 0) api_make_choices(c);
  return r;
}

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

int api_check_choices(const struct api *a, const struct job *j, struct api_error *e) {
  if (j->n_prompts * j->n <= a->choices_max) return 0;
  return api_error_set(e, 400, "invalid_value", "n", "body: n: expected at most %d choices over all prompts", a->choices_max);
}

void api_make_choices(struct call *c) {
  c->n_choices = c->job.n_prompts * c->job.n;
  c->choices = xcalloc((size_t)c->n_choices, sizeof *c->choices);
  for (int i = 0; i < c->n_choices; i++)
    c->choices[i] = (struct choice){.call = c, .index = i, .prompt = i / c->job.n, .matched_stop = -1, .matched_id = -1};
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

void api_reply_error(struct http_exchange *x, const struct api_error *e) {
  struct buf body;
  buf_init(&body, 0);
  api_error_put(&body, e);
  size_t n = strlen(x->extra);
  if (e->status == 503 && !strstr(x->extra, "Retry-After:")) snprintf(x->extra + n, sizeof x->extra - n, "Retry-After: 1\r\n");
  if (e->status == 401) snprintf(x->extra + n, sizeof x->extra - n, "WWW-Authenticate: Bearer\r\n");
  http_reply(x, e->status, "application/json", buf_cstr(&body), body.len);
  buf_free(&body);
}

void api_reply_body(struct call *c, struct buf *out) {
  struct http_exchange *x = c->x;
  c->x = NULL;
  if (out->overflow) {
    struct api_error e;
    api_error_set(&e, 500, "internal_error", NULL, "the answer is larger than %zu bytes", out->max_bytes);
    api_reply_error(x, &e);
  } else {
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

static const char *finish_name(enum cygnet_finish f) {
  switch (f) {
  case CYGNET_FINISH_STOP: return "stop";
  case CYGNET_FINISH_LENGTH: return "length";
  case CYGNET_FINISH_ABORT: return "abort";
  default: return NULL;
  }
}

struct choice *api_take_numbers(struct call *c, const struct message *m) {
  struct choice *o = &c->choices[m->choice];
  o->finish = finish_name(m->finish);
  o->matched_stop = m->matched_stop;
  o->matched_id = m->matched_id;
  o->prompt_tokens = m->prompt_tokens;
  o->cached_tokens = m->cached_tokens;
  o->completion_tokens = m->completion_tokens;
  o->n_retractions = m->n_retractions;
  o->queue_ms = m->queue_ms;
  o->prefill_ms = m->prefill_ms;
  o->decode_ms = m->decode_ms;
  return o;
}

/* ---- pieces of answers ------------------------------------------------------------------------------------------------------ */

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

void api_put_matched(struct buf *out, const struct choice *o) {
  const struct job *j = job_of_prompt(&o->call->job, o->prompt);
  if (o->matched_stop >= 0 && o->matched_stop < j->n_stop) api_put_string(out, j->stop[o->matched_stop], strlen(j->stop[o->matched_stop]));
  else if (o->matched_id >= 0) buf_printf(out, "%d", o->matched_id);
  else buf_puts(out, "null");
}

bool api_send_done(struct call *c) {
  static const char done[] = "[DONE]";
  struct http_exchange *x = c->x;
  if (!http_sse_send(x, done, sizeof done - 1)) return false;
  c->x = NULL;
  http_sse_end(x);
  return true;
}
