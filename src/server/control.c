/* control.c — what asks the engine to do something else than to answer: forget the prefix cache, prove that it lives.
 *
 * /health_generate: whoever asks waits on the io thread (serve.health_waiting) until the engine has produced anything for anybody since the question
 * came. One request of one token (serve.health_probe) is in the house meanwhile, however many ask, so that an idle engine has something to produce;
 * when the engine refuses it because its queue is full, those in the queue are the proof. It needs no place among calls_max.
 */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/serve_impl.h"

static const double flush_wait_s_max = 3600;

/* ---- /flush_cache?timeout=SECONDS --------------------------------------------------------------------------------------- */

static int flush_timeout(const struct call *c, const json_t *body, double *out, struct api_error *e) {
  const json_t *in_body = json_object_get(body, "timeout");
  struct str value;
  bool good = true;
  *out = 0;
  if (ops_query(c->query, strlen(c->query), "timeout", &value)) good = str_to_f64(value, out);
  else if (json_is_number(in_body)) *out = json_number_value(in_body);
  else good = !in_body || json_is_null(in_body);
  if (good && *out >= 0 && *out <= flush_wait_s_max) return 0;
  return api_error_set(e, 400, "invalid_value", "timeout", "timeout: expected a number of seconds from 0 to %.0f", flush_wait_s_max);
}

static int prepare_flush(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  double timeout_s;
  (void)a, (void)reply;
  if (flush_timeout(c, body, &timeout_s, e)) return -1;
  c->control = CONTROL_FLUSH;
  c->control_deadline_ns = clock_ns() + (int64_t)(timeout_s * 1e9);
  return 1;
}

static void flush_message(const struct api *a, struct call *c, const struct message *m) {
  static const char text[] = "Cache flushed.\n";
  if (m->kind != MESSAGE_REPLY) {
    api_reply_message(a, c, m);
    return;
  }
  struct http_exchange *x = c->x;
  c->x = NULL;
  http_reply(x, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}

const struct dialect dialect_flush = {
    .name = "flush", .id_prefix = "flush-", .empty_body = true, .prepare = prepare_flush, .message = flush_message, .fail = openai_fail};

/* ---- /health_generate --------------------------------------------------------------------------------------------------- */

static int prepare_health(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct job *j = &c->job;
  int32_t *ids = NULL;
  size_t n = 0;
  (void)body, (void)reply, (void)e;
  j->prompts = xcalloc(1, sizeof *j->prompts);
  j->n_prompts = j->n = 1;
  j->prompts[0] = (struct job_prompt){.ids = xcalloc(1, sizeof(int32_t)), .n_ids = 1, .max_tokens = 1};
  if (a->port.encode(a->port.self, "", 0, 0, 1, &ids, &n) == 0 && n > 0) j->prompts[0].ids[0] = ids[0]; /* BOS; else id 0 */
  a->port.release(ids);
  j->logprobs = j->prompt_logprobs = -1;
  j->ignore_eos = true;
  return 0;
}

static void unlink_waiting(struct serve *s, struct call *w) {
  if (w->prev) w->prev->next = w->next;
  else s->health_waiting = w->next;
  if (w->next) w->next->prev = w->prev;
}

void control_health_closed(struct serve *s, struct call *w) {
  unlink_waiting(s, w);
  call_free(w);
}

/* Ends the wait of one. why: NULL, all is well. */
static void health_answer(struct serve *s, struct call *w, const char *why) {
  struct http_exchange *x = w->x;
  control_health_closed(s, w);
  x->user = NULL;
  if (why) serve_reply_error(x, 503, "unhealthy", "%s", why);
  else http_reply(x, 200, NULL, NULL, 0);
}

void control_alive(struct serve *s, int64_t at_ns) {
  for (struct call *w = s->health_waiting, *next; w; w = next) {
    next = w->next;
    if (w->arrived_ns <= at_ns) health_answer(s, w, NULL);
  }
}

void control_health_fail(struct serve *s, const char *why) {
  while (s->health_waiting) health_answer(s, s->health_waiting, why);
}

void control_health_message(struct serve *s, const struct message *m) {
  if (m->kind == MESSAGE_ERROR && m->error.status != 503) control_health_fail(s, m->error.message);
}

static void health_tick(void *ctx) {
  struct serve *s = ctx;
  int64_t first_ns = INT64_MAX, now = clock_ns();
  for (struct call *w = s->health_waiting, *next; w; w = next) {
    int64_t end_ns = w->arrived_ns + (int64_t)s->options.health_ms * 1000000;
    next = w->next;
    if (end_ns <= now) health_answer(s, w, "the engine has produced nothing for too long");
    else first_ns = MIN(first_ns, end_ns);
  }
  s->health_timer = s->health_waiting != NULL;
  if (s->health_timer) http_after(s->http, (int)((first_ns - now) / 1000000) + 1, health_tick, s);
}

void control_health(struct serve *s, struct http_exchange *x) {
  struct call *w = call_new(&dialect_health_generate);
  w->arrived_ns = clock_ns();
  w->x = x;
  x->user = w;
  w->next = s->health_waiting;
  if (w->next) w->next->prev = w;
  s->health_waiting = w;
  if (!s->health_timer) http_after(s->http, s->options.health_ms, health_tick, s);
  s->health_timer = true;
  if (s->health_probe) return;
  s->health_probe = call_new(&dialect_health_generate);
  serve_enter(s, s->health_probe);
}

/* For the probe: nobody reads what comes of it. */
static void health_message(const struct api *a, struct call *c, const struct message *m) { (void)a, (void)c, (void)m; }
static void health_no_fail(struct call *c, const struct api_error *e) { (void)c, (void)e; }

const struct dialect dialect_health_generate = {.name = "health",
                                                .id_prefix = "health-",
                                                .empty_body = true,
                                                .prepare = prepare_health,
                                                .message = health_message,
                                                .fail = health_no_fail};
