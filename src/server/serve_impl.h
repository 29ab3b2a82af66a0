/* serve_impl.h — what the files of the server share. Everything here is of the io thread, but for `stops` and what threads.h says. */
#ifndef CYGNET_SERVE_IMPL_H
#define CYGNET_SERVE_IMPL_H

#include "server/api.h"
#include "server/metrics.h"
#include "server/serve.h"
#include "server/threads.h"

struct serve {
  struct serve_options options;
  struct api api;
  struct http_server *http;
  struct threads *threads;
  struct metrics *metrics;
  struct call *calls; /* all in the house */
  int n_calls;
  bool loopback_only;
  atomic_int stops; /* how often serve_stop was called */
  bool draining, cut;
  int64_t drain_started_ns;
};

/* serve.c: hand the whole request to the prep thread. */
void serve_call(struct serve *s, struct http_exchange *x, const struct dialect *dialect);
void serve_reply_error(struct http_exchange *x, int status, const char *code, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* route.c */
void route_head(void *serve, struct http_exchange *x);
void route_request(void *serve, struct http_exchange *x);

/* ops.c */
void ops_health(struct serve *s, struct http_exchange *x);
void ops_models(struct serve *s, struct http_exchange *x);
void ops_model(struct serve *s, struct http_exchange *x);
void ops_model_info(struct serve *s, struct http_exchange *x);
void ops_server_info(struct serve *s, struct http_exchange *x);
void ops_page(struct serve *s, struct http_exchange *x);
void ops_ping(struct serve *s, struct http_exchange *x);
void ops_metrics(struct serve *s, struct http_exchange *x); /* Prometheus text (metrics.h) */
void ops_loads(struct serve *s, struct http_exchange *x);
void ops_abort(struct serve *s, struct http_exchange *x); /* {"rid"} exactly, {"rid", "prefix": true}, or {"abort_all": true} */

/* page.c */
extern const char page_html[];

#endif
