/* metrics.h — what happened to requests, counted, in Prometheus' text format.
 *
 * Names are SGLang's, "sglang:..." (dashboards know them), with its buckets; what it has no name for is "cygnet:...". Everything here is of the io
 * thread: messages carry the times at which the engine thread had them, so no lock is needed and no step is slowed.
 *
 *   time_to_first_token   arrival of the whole body → first message with a token       inter_token_latency   gap / tokens in the message, per token
 *   e2e_request_latency   arrival of the whole body → last message                     queue_time            as the engine reports it
 */
#ifndef CYGNET_METRICS_H
#define CYGNET_METRICS_H

#include "server/call.h"

enum { METRICS_BUCKETS_MAX = 32 };

struct metrics_histogram {
  uint64_t counts[METRICS_BUCKETS_MAX + 1]; /* the last is +Inf */
  double sum;
  uint64_t n;
};

struct metrics; /* opaque */

struct metrics *metrics_new(const char *model);
void metrics_delete(struct metrics *m);
/* A message of one of c's choices, before it is handed to the dialect; c->arrived_ns and the choice's times are kept up to date here. */
void metrics_message(struct metrics *m, struct call *c, const struct message *msg);
/* After the last message. status: of the answer, as HTTP says it. */
void metrics_call_done(struct metrics *m, const struct call *c, int status);

struct metrics_now { /* gauges of this moment */
  const struct cygnet_info *info;
  struct cygnet_stats stats;
  int n_calls, n_preparing, connections;
  double uptime_s;
};
void metrics_put(const struct metrics *m, const struct metrics_now *now, struct buf *out);
/* Tokens generated per second over the last seconds. */
double metrics_gen_throughput(const struct metrics *m);

#endif
