/* serve.c — the io thread: calls in the house, messages out of it, and the end. */
#include "server/serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/serve_impl.h"

enum { MESSAGES_PER_TURN = 64, DRAIN_TICK_MS = 20, LAST_WORDS_MS = 2000, ORIGIN_BYTES = 300 };

void serve_reply_error(struct http_exchange *x, int status, const char *code, const char *fmt, ...) {
  struct api_error e = {.status = status, .code = code};
  va_list args;
  va_start(args, fmt);
  vsnprintf(e.message, sizeof e.message, fmt, args);
  va_end(args);
  api_reply_error(x, &e);
}

/* Answers that http.c gives by itself wear the same clothes. */
static void on_fault(void *ctx, int status, const char *why, struct buf *body) {
  struct api_error e;
  (void)ctx;
  api_error_set(&e, status, status == 413 ? "request_too_large" : status == 503 ? "busy" : "bad_request", NULL, "%s", why);
  api_error_put(body, &e);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

void serve_call(struct serve *s, struct http_exchange *x, const struct dialect *dialect) {
  if (s->n_calls >= s->options.calls_max) { /* others came while this body was read */
    serve_reply_error(x, 503, "busy", "%d requests are being served; try again later", s->n_calls);
    return;
  }
  struct call *c = call_new(dialect);
  c->body = x->body;
  buf_init(&x->body, 0);
  c->x = x;
  x->user = c;
  c->next = s->calls;
  if (s->calls) s->calls->prev = c;
  s->calls = c;
  s->n_calls++;
  threads_submit(s->threads, c);
}

static void call_done(struct serve *s, struct call *c) {
  CHECK(!c->x);
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
  threads_cancel(s->threads, c);
}

/* prep thread */
static int prepare(void *ctx, struct call *c, struct buf *reply, struct api_error *e) {
  const struct serve *s = ctx;
  return api_prepare(&s->api, c, reply, e);
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
      if (c->x) c->dialect->fail(c, &e);
      threads_cancel(s->threads, c);
    }
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

void serve_stop(struct serve *s) {
  atomic_fetch_add(&s->stops, 1);
  threads_wake(s->threads);
}
static void on_signal(void *ctx) { serve_stop(ctx); }

/* ---- messages --------------------------------------------------------------------------------------------------------- */

static void take_message(struct serve *s, struct message *m) {
  struct call *c = m->call;
  if (c->x) c->dialect->message(&s->api, c, m);
  if (m->last) call_done(s, c);
  message_free(m);
}

static void on_messages(void *ctx) {
  struct serve *s = ctx;
  struct message *m;
  for (int i = 0; i < MESSAGES_PER_TURN && (m = threads_next(s->threads)); i++)
    take_message(s, m); /* the rest: the descriptor stays readable, and sockets get their turn */
  look_for_stop(s);     /* last: finding no message took the wake-up back, which may have been that of a stop */
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static bool is_loopback(const char *host) { return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcmp(host, "localhost"); }

static void api_init(struct api *a, const struct port *port, const struct serve_options *o) {
  a->port = *port;
  port->info(port->self, &a->info);
  const char *name = o->model_name ? o->model_name : a->info.name;
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
  if (s->options.api_key && !*s->options.api_key) s->options.api_key = NULL;
  s->loopback_only = is_loopback(s->options.host);
  atomic_init(&s->stops, 0);
  api_init(&s->api, port, &s->options);
  if (check_origin(s->options.cors_origin, e)) goto fail;
  const struct http_handlers handlers = {
      .on_head = route_head, .on_request = route_request, .on_closed = on_closed, .on_fault = on_fault, .ctx = s};
  s->http = http_listen(s->options.host, s->options.port, NULL, &s->options.limits, &handlers, e);
  if (!s->http) goto fail;
  s->threads = threads_start(port, s->options.calls_max, prepare, s, e);
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
  CHECK(!s->calls);
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
    log_line(LOG_INFO, "server", strchr(host, ':') ? "%s answers at http://[%s]:%d/" : "%s answers at http://%s:%d/", s->api.model, host,
             serve_port(s));
  }
  serve_loop(s);
  serve_close(s);
  return 0;
}
