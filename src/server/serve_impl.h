/* serve_impl.h — what the files of the server share. Everything here is of the io thread, but for `stops`, what rid_mutex guards and what threads.h
 * says. */
#ifndef CYGNET_SERVE_IMPL_H
#define CYGNET_SERVE_IMPL_H

#include <pthread.h>

#include "base/log.h"
#include "server/api.h"
#include "server/media.h"
#include "server/metrics.h"
#include "server/serve.h"
#include "server/threads.h"

enum { ABORT_WISHES = 256 };

/* Somebody asked to abort this rid while bodies that may bear it were still unread: whoever prepares those looks here (ops.c). */
struct abort_wish {
  char *rid; /* owned */
  bool prefix;
  int64_t at_ns;
};

struct serve {
  struct serve_options options;
  struct api api;
  struct media_house media;
  struct http_server *http;
  struct threads *threads;
  struct metrics *metrics;
  struct call *calls; /* all in the house */
  int n_calls;
  bool loopback_only;
  atomic_int stops; /* how often serve_stop was called */
  bool draining, cut;
  int64_t started_ns, drain_started_ns;

  struct call *health_waiting; /* exchanges of /health_generate, in calls that never leave the io thread; control.c */
  struct call *health_probe;   /* the one request in the house that is to prove that the engine lives; NULL: none */
  bool health_timer;

  struct log_limit log_limit; /* of lines about calls that generated nothing */

  pthread_mutex_t rid_mutex; /* between an abort by rid and the preparation of what may bear it */
  struct abort_wish wishes[ABORT_WISHES];
  uint64_t n_wishes; /* since the start; wish i is at i % ABORT_WISHES */
};

/* serve.c: hand the whole request to the prep thread. */
void serve_call(struct serve *s, struct http_exchange *x, const struct dialect *dialect);
void serve_reply_error(struct http_exchange *x, int status, const char *code, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* 503 to a client that came when the house was full; Retry-After says when to come again. */
void serve_reply_busy(struct serve *s, struct http_exchange *x);
/* A call into the house; c->x may be NULL. */
void serve_enter(struct serve *s, struct call *c);

/* route.c */
void route_head(void *serve, struct http_exchange *x);
void route_request(void *serve, struct http_exchange *x);
const struct dialect *route_dialect(const struct http_exchange *x); /* NULL: none, or answered at once */

/* ops.c */
void ops_health(struct serve *s, struct http_exchange *x);
void ops_models(struct serve *s, struct http_exchange *x);
void ops_model(struct serve *s, struct http_exchange *x);
void ops_model_info(struct serve *s, struct http_exchange *x);
void ops_server_info(struct serve *s, struct http_exchange *x);
void ops_page(struct serve *s, struct http_exchange *x);
void ops_page_locked(struct serve *s, struct http_exchange *x); /* the same with 401: it holds no secret, and asks for the key */
void ops_ping(struct serve *s, struct http_exchange *x);
void ops_metrics(struct serve *s, struct http_exchange *x); /* Prometheus text (metrics.h) */
void ops_loads(struct serve *s, struct http_exchange *x);
void ops_abort(struct serve *s, struct http_exchange *x); /* {"rid"} exactly, {"rid", "prefix": true}, or {"abort_all": true} */

void ops_prepared(struct serve *s, struct call *c); /* prep thread: its rid is known from now on */
/* The value of name in "a=1&b=2", as it stands. False: not there. */
bool ops_query(const char *query, size_t n, const char *name, struct str *value);

/* control.c: /health_generate on the io thread. */
void control_health(struct serve *s, struct http_exchange *x);
void control_health_closed(struct serve *s, struct call *waiting);
void control_health_message(struct serve *s, const struct message *m); /* of health_probe */
void control_alive(struct serve *s, int64_t at_ns);                    /* the engine produced something then */
void control_health_fail(struct serve *s, const char *why);            /* 503 to all who wait */

#endif
