/* report.h — a run for people (table), programs (JSON) and spreadsheets (CSV, a line for each request). */
#ifndef CYGNET_LOAD_REPORT_H
#define CYGNET_LOAD_REPORT_H

#include <stdio.h>

#include "load/stats.h"

struct load_report { /* all borrowed */
  const struct load_run *run;
  const struct load_summary *summary;
  const struct workload_options *options;
  const struct load_limits *limits;
};

/* "random, 100 requests of 512 + 128 tokens, 4 per second": what was sent, in one line. */
void report_describe(const struct load_report *r, struct buf *out);
void report_table(const struct load_report *r, FILE *to);
json_t *report_json(const struct load_report *r); /* owned */
/* Columns: request, group, turn, state, error, due_s, sent_s, ttft_ms, tpot_ms, e2e_ms, prompt_tokens, cached_tokens, completion_tokens, asked_tokens,
 * good, itl_ms (one for each token, blanks between), message. Fields that a request has no value for are empty. */
void report_csv(const struct load_report *r, struct buf *out);

#endif
