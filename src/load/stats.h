/* stats.h — what a run's times and tokens come to.
 *
 *   TTFT   from sending to the first piece with text                                     one for each answer
 *   TPOT   (E2E - TTFT) / (tokens - 1)                                                   one for each answer of two tokens or more
 *   ITL    the time between two pieces, shared evenly by the tokens of the second        one for each token but the first piece's
 *   E2E    from sending to the last byte                                                 one for each answer
 *   held   from when a request was due to when it was sent: how long --max-concurrency, or a busy generator, kept it
 *
 * Rates are sums over answers that came whole, divided by the run's duration: from its beginning to the last answer or failure. Concurrency is the sum of
 * all E2E divided by it. The peak is the most tokens in one of the run's seconds. An answer is good when it keeps all limits that were set;
 * goodput is good answers per second.
 */
#ifndef CYGNET_LOAD_STATS_H
#define CYGNET_LOAD_STATS_H

#include "load/load.h"

struct stat_values {
  double *v; /* owned; ascending after stat_of */
  int n, cap;
};
struct stat {
  int n; /* 0: all others are 0, too */
  double mean, median, std, p90, p95, p99, max;
};
void stat_add(struct stat_values *s, double v);
/* Sorts. std is that of the values themselves (divided by n). */
struct stat stat_of(struct stat_values *s);
/* Of ascending values, 0 <= p <= 100, interpolated between neighbours: at (n - 1) * p / 100. n >= 1. */
double stat_percentile(const double *sorted, int n, double p);

struct load_limits { /* milliseconds; 0: none */
  double ttft_ms, tpot_ms, e2e_ms;
};

struct load_kind {
  const char *kind, *message; /* of the first; borrowed from the run */
  int n;
};

struct load_summary {
  int total, done, failed, unsent;
  int without_usage, shorter; /* answers whose tokens nobody told; that have fewer than were asked for */
  double duration_s;
  int64_t prompt_tokens, cached_tokens, completion_tokens;
  double requests_s, input_s, output_s, all_s; /* per second: answers, tokens */
  double concurrency, peak_output_s;
  int peak_requests;
  bool has_limits;
  int good;
  double goodput_s;
  struct stat ttft, tpot, itl, e2e, held;       /* milliseconds */
  struct stat_values ttfts, itls;               /* ascending */
  double *output_of_second, *running_of_second; /* owned, [n_seconds]; tokens that came; requests on their way, on average */
  int n_seconds;
  struct load_kind *kinds; /* owned; failures, the most frequent first */
  int n_kinds;
};
void load_summarise(struct load_summary *s, const struct load_run *r, const struct load_limits *l);
void load_summary_free(struct load_summary *s);

/* Of one answer that came whole. */
double load_ttft_ms(const struct load_result *r);
double load_e2e_ms(const struct load_result *r);
double load_tpot_ms(const struct load_result *r); /* -1: less than two tokens */
void load_itls_ms(const struct load_result *r, struct stat_values *out);
bool load_is_good(const struct load_result *r, const struct load_limits *l);

#endif
