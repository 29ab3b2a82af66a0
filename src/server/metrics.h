/* metrics.h — what happened to requests, counted, in Prometheus' text format.
 *
 * Names are SGLang's, "sglang:..." (dashboards know them), with its buckets; what it has no name for is "cygnet:...". Everything here is of the io
 * thread: messages carry the times at which the engine thread had them, so no lock is needed and no step is slowed.
 *
 *   time_to_first_token   arrival of the whole body → first message with a token       inter_token_latency   gap / tokens in the message, per token
 *   e2e_request_latency   arrival of the whole body → last message                     queue_time            as the engine reports it
 *
 * A request is a call: with n > 1 or several prompts it is one request, and its prompt tokens count once per prompt. Labels have values from fixed
 * lists only.
 */
#ifndef CYGNET_METRICS_H
#define CYGNET_METRICS_H

#include "server/call.h"

struct metrics; /* opaque */

struct metrics *metrics_new(const char *model);
void metrics_delete(struct metrics *m); /* NULL is fine */
/* A message of one of c's choices, before it is handed to the dialect. The choice's usage and times are kept up to date here, also for a client
 * that is gone. */
void metrics_message(struct metrics *m, struct call *c, const struct message *msg);
/* After the last message. status: of the answer, as HTTP says it; aborted: it ended because somebody wanted it to. */
void metrics_call_done(struct metrics *m, const struct call *c, int status, bool aborted);

struct metrics_now { /* gauges of this moment */
  const struct cygnet_info *info;
  struct cygnet_stats stats;
  int n_calls, n_preparing, connections;
  uint64_t http_requests, http_dropped, media_fetched;
  size_t media_held_bytes;
  double uptime_s;
};
void metrics_put(const struct metrics *m, const struct metrics_now *now, struct buf *out);

/* Tokens generated per second over the last seconds. */
double metrics_gen_throughput(const struct metrics *m);
/* In how many seconds (1 ... 60) n_waiting requests of the usual length may have been served. */
int metrics_retry_s(const struct metrics *m, int n_waiting);
/* Of the fuller pool, 0 ... 1. */
double metrics_token_usage(const struct cygnet_info *info, const struct cygnet_stats *stats);
/* Cached tokens per prompt token since the start, 0 ... 1. */
double metrics_hit_rate(const struct cygnet_stats *stats);

#endif
