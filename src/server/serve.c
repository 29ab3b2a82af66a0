/* serve.c — the io thread: calls in the house, messages out of it, and the end. */
#include "server/serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/media.h"
#include "server/multipart.h"
#include "server/serve_impl.h"

enum { MESSAGES_PER_TURN = 64, DRAIN_TICK_MS = 20, LAST_WORDS_MS = 2000, ORIGIN_BYTES = 300, PREP_THREADS_MAX = 64 };

void serve_reply_error(struct http_exchange *x, int status, const char *code, const char *fmt, ...) {
  struct api_error e = {.status = status, .code = code};
  va_list args;
  va_start(args, fmt);
  vsnprintf(e.message, sizeof e.message, fmt, args);
  va_end(args);
  struct call c = {.dialect = route_dialect(x), .x = x}; /* in the form that the route's other errors have */
  if (c.dialect && c.dialect != &dialect_health_generate) c.dialect->fail(&c, &e);
  else api_reply_error(x, &e);
}

/* Answers that http.c gives by itself wear the same clothes. */
static void on_fault(void *ctx, int status, const char *why, struct buf *body) {
  struct api_error e;
  (void)ctx;
  api_error_set(&e, status, status == 413 ? "request_too_large" : status == 503 ? "busy" : "bad_request", NULL, "%s", why);
  api_error_put(body, &e);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

static void retry_after(const struct serve *s, struct http_exchange *x) {
  struct cygnet_stats stats;
  double step_ms;
  threads_stats(s->threads, &stats, &step_ms);
  http_add_header(x, "Retry-After: %d", metrics_retry_s(s->metrics, stats.n_waiting));
}

void serve_reply_busy(struct serve *s, struct http_exchange *x) {
  retry_after(s, x);
  serve_reply_error(x, 503, "busy", "%d requests are being served; try again later", s->n_calls);
}

void serve_enter(struct serve *s, struct call *c) {
  c->arrived_ns = clock_ns();
  c->next = s->calls;
  if (s->calls) s->calls->prev = c;
  s->calls = c;
  s->n_calls++;
  threads_submit(s->threads, c);
}

void serve_call(struct serve *s, struct http_exchange *x, const struct dialect *dialect) {
  if (dialect == &dialect_health_generate) {
    control_health(s, x);
    return;
  }
  if (s->n_calls >= s->options.calls_max) { /* others came while this body was read */
    serve_reply_busy(s, x);
    return;
  }
  struct call *c = call_new(dialect);
  struct str query = x->head.query;
  if (dialect->empty_body && query.n >= sizeof c->query) {
    serve_reply_error(x, 400, "invalid_value", "the query: expected less than %zu bytes, found %zu", sizeof c->query, query.n);
    call_free(c);
    return;
  }
  if (dialect->empty_body && query.n) memcpy(c->query, query.p, query.n);
  if (dialect->in_parts)
    multipart_boundary(http_head_find(&x->head, "Content-Type", NULL), c->boundary); /* route.c saw that there is one */
  c->body = x->body;
  buf_init(&x->body, 0);
  if (x->request_id[0]) c->rid = xstrdup(x->request_id); /* unless the body has one */
  c->x = x;
  x->user = c;
  serve_enter(s, c);
}

/* For the log: one word without what could be taken for another one. */
static const char *word(const char *s, char out[100]) {
  size_t n = 0;
  for (; *s && n < 99; s++) out[n++] = *s > ' ' && *s < 0x7f && !strchr("\"'=\\", *s) ? *s : '?';
  out[n] = 0;
  return n ? out : "-";
}

static const char *finish_of(const struct message *last) {
  if (last->kind == MESSAGE_GONE) return "gone";
  if (last->kind == MESSAGE_ERROR) return "error";
  if (last->kind == MESSAGE_REPLY) return "reply";
  return cygnet_finish_name(last->finish);
}

static void log_call(struct serve *s, const struct call *c, const struct message *last) {
  int64_t prompt = 0, cached = 0, completion = 0, first_ns = 0;
  char id[100], rid[100], ttft[32] = "-";
  for (int i = 0; i < c->n_choices; i++) {
    const struct choice *o = &c->choices[i];
    completion += o->completion_tokens;
    if (o->first_token_ns && (!first_ns || o->first_token_ns < first_ns)) first_ns = o->first_token_ns;
    if (c->job.n > 1 && i % c->job.n) continue; /* the same prompt again */
    prompt += o->prompt_tokens;
    cached += o->cached_tokens;
  }
  /* calls that generate nothing cost little to send: of them a second has only so many lines, as of other exchanges (http.h) */
  if (!log_has_room(&s->log_limit, first_ns ? 0 : s->options.limits.log_lines, "request")) return;
  if (first_ns) snprintf(ttft, sizeof ttft, "%.1f", (double)(first_ns - c->arrived_ns) / 1e6);
  log_line(LOG_INFO, "request",
           "id=%s rid=%s api=%s status=%d prompt=%lld cached=%lld completion=%lld queue_ms=%.1f ttft_ms=%s total_ms=%.1f finish=%s",
           word(c->id, id), word(c->rid ? c->rid : "", rid), c->dialect->name, c->status, (long long)prompt, (long long)cached,
           (long long)completion, last->queue_ms, ttft, clock_ms_since(c->arrived_ns), finish_of(last));
}

static void call_done(struct serve *s, struct call *c, const struct message *last) {
  CHECK(!c->x);
  if (c == s->health_probe) {
    s->health_probe = NULL;
  } else {
    bool aborted = c->status == 499 || last->kind == MESSAGE_GONE || last->finish == CYGNET_FINISH_ABORT;
    metrics_call_done(s->metrics, c, c->status, aborted);
    if (s->options.log_requests) log_call(s, c, last);
  }
  if (c->prev) c->prev->next = c->next;
  else s->calls = c->next;
  if (c->next) c->next->prev = c->prev;
  s->n_calls--;
  call_free(c);
}

static void on_closed(void *ctx, struct http_exchange *x) {
  struct serve *s = ctx;
  struct call *c = x->user;
  if (!c) return;
  c->x = NULL;
  if (c->dialect == &dialect_health_generate) {
    control_health_closed(s, c);
    return;
  }
  c->status = 499;
  threads_cancel(s->threads, c);
}

/* prep thread */
static int prepare(void *ctx, struct call *c, struct buf *reply, struct api_error *e) {
  struct serve *s = ctx;
  int r = api_prepare(&s->api, c, reply, e);
  ops_prepared(s, c);
  return r;
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

static void drain_tick(void *ctx) {
  struct serve *s = ctx;
  struct http_counts counts;
  double ms = clock_ms_since(s->drain_started_ns);
  if (ms > s->options.grace_ms && !s->cut) {
    s->cut = true;
    struct api_error e;
    api_error_set(&e, 503, "busy", NULL, "the server is shutting down");
    for (struct call *c = s->calls; c; c = c->next) {
      if (c->x) {
        c->status = c->sse ? 200 : 503;
        c->dialect->fail(c, &e);
      }
      threads_cancel(s->threads, c);
    }
    control_health_fail(s, e.message);
  }
  http_counts(s->http, &counts);
  bool quiet = counts.connections == 0 && s->n_calls == 0;
  if (quiet || ms > s->options.grace_ms + LAST_WORDS_MS || (counts.exchanges == 0 && s->n_calls == 0 && ms > LAST_WORDS_MS))
    http_stop(s->http);
  else http_after(s->http, DRAIN_TICK_MS, drain_tick, s);
}

static void look_for_stop(struct serve *s) {
  int stops = atomic_load(&s->stops);
  if (stops && !s->draining) {
    s->draining = true;
    s->drain_started_ns = clock_ns();
    if (!s->options.quiet)
      log_line(LOG_INFO, "server", "stopping: %d requests are being served, at most %d ms more (again: at once)", s->n_calls,
               s->options.grace_ms);
    http_no_keep_alive(s->http);
    drain_tick(s);
  }
  if (stops > 1) http_stop(s->http);
}

/* Without its device the engine answers nobody: whoever watches the program starts it again. */
static void look_for_loss(struct serve *s) {
  struct cygnet_error e;
  if (atomic_load(&s->stops) || !threads_lost(s->threads, &e)) return;
  log_line(LOG_ERROR, "server", "stopping: %s", e.message);
  control_health_fail(s, e.message);
  atomic_fetch_add(&s->stops, 1);
}

void serve_stop(struct serve *s) {
  atomic_fetch_add(&s->stops, 1);
  threads_wake(s->threads);
}
static void on_signal(void *ctx) { serve_stop(ctx); }

/* ---- messages --------------------------------------------------------------------------------------------------------- */

/* Hands a message to the dialect of a client that is still there. */
static void answer(struct serve *s, struct call *c, const struct message *m) {
  int status = m->kind == MESSAGE_ERROR ? m->error.status : m->kind == MESSAGE_GONE ? 503 : 200;
  if (!c->sse) c->status = status; /* a stream has said 200 */
  if (m->kind == MESSAGE_ERROR && status == 503 && !c->sse) retry_after(s, c->x);
  c->dialect->message(&s->api, c, m);
}

static void take_message(struct serve *s, struct message *m) {
  struct call *c = m->call;
  if (m->kind == MESSAGE_EVENT) control_alive(s, m->at_ns);
  if (c == s->health_probe) {
    control_health_message(s, m);
  } else {
    metrics_message(s->metrics, c, m);
    if (c->x) answer(s, c, m);
  }
  if (m->last) call_done(s, c, m);
  message_free(m);
}

static void on_messages(void *ctx) {
  struct serve *s = ctx;
  struct message *m;
  for (int i = 0; i < MESSAGES_PER_TURN && (m = threads_next(s->threads)); i++)
    take_message(s, m); /* the rest: the descriptor stays readable, and sockets get their turn */
  look_for_loss(s);
  look_for_stop(s); /* last: finding no message took the wake-up back, which may have been that of a stop */
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

bool serve_is_loopback(const char *host) { return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcmp(host, "localhost"); }

static void api_init(struct api *a, const struct port *port, const struct serve_options *o) {
  a->port = *port;
  port->info(port->self, &a->info);
  const char *name = o->model_name && *o->model_name ? o->model_name : a->info.name;
  a->model = xstrdup(name && *name ? name : "default");
  buf_init(&a->model_json, 0);
  buf_json_escape(&a->model_json, a->model, strlen(a->model));
  a->created = clock_unix_s();
  a->defaults = o->sampling ? *o->sampling : (struct cygnet_sampling){.temperature = 1};
  a->choices_max = o->choices_max;
}

/* It goes into a header line as it stands. */
static int check_origin(const char *origin, struct err *e) {
  for (const char *p = origin; p && *p; p++)
    if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || p - origin >= ORIGIN_BYTES)
      return err_set(e, ERR_BAD_INPUT, "cors-origin: expected * or one origin like https://example.org, at most %d bytes of ASCII",
                     ORIGIN_BYTES);
  return 0;
}

struct serve *serve_open(const struct port *port, const struct serve_options *o, struct err *e) {
  struct serve *s = xcalloc(1, sizeof *s);
  s->options = *o;
  if (!s->options.host) s->options.host = "127.0.0.1";
  if (s->options.calls_max <= 0) s->options.calls_max = 1024;
  if (s->options.choices_max <= 0) s->options.choices_max = 128;
  if (s->options.grace_ms == 0) s->options.grace_ms = 30000;
  if (s->options.health_ms == 0) s->options.health_ms = 20000;
  if (s->options.prep_threads <= 0) s->options.prep_threads = 2;
  s->options.prep_threads = MIN(s->options.prep_threads, PREP_THREADS_MAX);
  if (s->options.api_key && !*s->options.api_key) s->options.api_key = NULL;
  s->loopback_only = serve_is_loopback(s->options.host);
  s->started_ns = clock_ns();
  atomic_init(&s->stops, 0);
  CHECK(pthread_mutex_init(&s->rid_mutex, NULL) == 0);
  api_init(&s->api, port, &s->options);
  s->api.media = &s->media;
  s->media.folder = -1;
  s->metrics = metrics_new(s->api.model);
  const struct media_limits none = {0};
  if (media_house_open(&s->media, o->media ? o->media : &none, e)) goto fail;
  if (check_origin(s->options.cors_origin, e)) goto fail;
  const struct http_handlers handlers = {
      .on_head = route_head, .on_request = route_request, .on_closed = on_closed, .on_fault = on_fault, .ctx = s};
  const struct http_tls *tls = s->options.tls.certificate_file ? &s->options.tls : NULL;
  s->http = http_listen(s->options.host, s->options.port, tls, &s->options.limits, &handlers, e);
  if (!s->http) goto fail;
  s->threads = threads_start(port, s->options.calls_max + 1, s->options.prep_threads, prepare, s, e); /* one more: health_probe */
  if (!s->threads || http_watch(s->http, threads_fd(s->threads), on_messages, s, e)) goto fail;
  return s;
fail:
  serve_close(s);
  return NULL;
}

int serve_port(const struct serve *s) { return http_port(s->http); }
void serve_loop(struct serve *s) { http_run(s->http); }

void serve_close(struct serve *s) {
  if (!s) return;
  http_delete(s->http); /* cancels what is open */
  if (s->threads) {
    for (struct call *c = s->calls; c; c = c->next) threads_cancel(s->threads, c);
    threads_stop(s->threads);
    for (struct message *m; (m = threads_next(s->threads));) take_message(s, m);
    threads_delete(s->threads);
  }
  CHECK(!s->calls && !s->health_waiting);
  for (int i = 0; i < ABORT_WISHES; i++) free(s->wishes[i].rid);
  pthread_mutex_destroy(&s->rid_mutex);
  metrics_delete(s->metrics);
  media_house_close(&s->media);
  free(s->api.model);
  buf_free(&s->api.model_json);
  free(s);
}

int serve_run(struct cygnet *c, const struct serve_options *o, struct err *e) {
  struct port port = port_of(c);
  if (!o->quiet && log_level() < LOG_INFO) log_set_level(LOG_INFO);
  struct serve *s = serve_open(&port, o, e);
  if (!s) return -1;
  if (http_signal(s->http, SIGTERM, on_signal, s, e) || http_signal(s->http, SIGINT, on_signal, s, e)) {
    serve_close(s);
    return -1;
  }
  if (!o->quiet) {
    const char *host = s->options.host;
    log_line(LOG_INFO, "server", strchr(host, ':') ? "%s answers at %s://[%s]:%d/" : "%s answers at %s://%s:%d/", s->api.model,
             s->options.tls.certificate_file ? "https" : "http", host, serve_port(s));
  }
  serve_loop(s);
  struct cygnet_error lost;
  bool is_lost = threads_lost(s->threads, &lost);
  serve_close(s);
  return is_lost ? err_set(e, ERR_IO, "%s", lost.message) : 0;
}
