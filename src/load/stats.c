/* stats.c — definitions of stats.h. */
#include "load/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- values -------------------------------------------------------------------------------------------------------------------------- */

void stat_add(struct stat_values *s, double v) {
  if (s->n == s->cap) s->v = xrealloc(s->v, (size_t)(s->cap = MAX(64, 2 * s->cap)) * sizeof *s->v);
  s->v[s->n++] = v;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double stat_percentile(const double *sorted, int n, double p) {
  double at = (n - 1) * p / 100;
  int i = (int)at;
  return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

struct stat stat_of(struct stat_values *s) {
  struct stat out = {.n = s->n};
  double squares = 0;
  if (!s->n) return out;
  qsort(s->v, (size_t)s->n, sizeof *s->v, compare_doubles);
  for (int i = 0; i < s->n; i++) out.mean += s->v[i] / s->n;
  for (int i = 0; i < s->n; i++) squares += (s->v[i] - out.mean) * (s->v[i] - out.mean);
  out.std = sqrt(squares / s->n);
  out.median = stat_percentile(s->v, s->n, 50);
  out.p90 = stat_percentile(s->v, s->n, 90);
  out.p95 = stat_percentile(s->v, s->n, 95);
  out.p99 = stat_percentile(s->v, s->n, 99);
  out.max = s->v[s->n - 1];
  return out;
}

/* ---- one answer ---------------------------------------------------------------------------------------------------------------------- */

double load_ttft_ms(const struct load_result *r) { return (double)(r->first_ns - r->sent_ns) / 1e6; }
double load_e2e_ms(const struct load_result *r) { return (double)(r->last_ns - r->sent_ns) / 1e6; }
double load_tpot_ms(const struct load_result *r) {
  return r->completion_tokens > 1 ? (load_e2e_ms(r) - load_ttft_ms(r)) / (r->completion_tokens - 1) : -1;
}

void load_itls_ms(const struct load_result *r, struct stat_values *out) {
  for (int i = 1, last = 0; i < r->n_marks; i++) {
    int tokens = r->marks[i].tokens - r->marks[last].tokens;
    if (tokens <= 0) continue; /* its time belongs to the next piece with tokens */
    double each = (double)(r->marks[i].ns - r->marks[last].ns) / 1e6 / tokens;
    for (int k = 0; k < tokens; k++) stat_add(out, each);
    last = i;
  }
}

bool load_is_good(const struct load_result *r, const struct load_limits *l) {
  return (!l->ttft_ms || load_ttft_ms(r) <= l->ttft_ms) && (!l->tpot_ms || load_tpot_ms(r) <= l->tpot_ms) &&
         (!l->e2e_ms || load_e2e_ms(r) <= l->e2e_ms);
}

/* ---- all of them --------------------------------------------------------------------------------------------------------------------- */

static void count_kind(struct load_summary *s, const struct load_result *r) {
  int i = 0;
  while (i < s->n_kinds && strcmp(s->kinds[i].kind, r->kind)) i++;
  if (i == s->n_kinds) {
    s->kinds = xrealloc(s->kinds, (size_t)(s->n_kinds + 1) * sizeof *s->kinds);
    s->kinds[s->n_kinds++] = (struct load_kind){.kind = r->kind, .message = r->message};
  }
  s->kinds[i].n++;
}

static int by_frequency(const void *a, const void *b) { return ((const struct load_kind *)b)->n - ((const struct load_kind *)a)->n; }

/* Tokens where they came, and the request over the seconds in which it was on its way. */
static void spread(struct load_summary *s, const struct load_result *r) {
  for (int i = 0, before = 0; i < r->n_marks; i++) {
    int second = MIN((int)(r->marks[i].ns / 1000000000), s->n_seconds - 1);
    s->output_of_second[second] += MAX(r->marks[i].tokens - before, 0);
    before = MAX(before, r->marks[i].tokens);
  }
  for (int64_t at = r->sent_ns; at < r->last_ns;) {
    int64_t second = at / 1000000000, end = MIN((second + 1) * 1000000000, r->last_ns);
    if (second < s->n_seconds) s->running_of_second[second] += (double)(end - at) / 1e9;
    at = end;
  }
}

static void add_answer(struct load_summary *s, const struct load_result *r, const struct load_request *q, const struct load_limits *l,
                       struct stat_values *tpots, struct stat_values *e2es) {
  s->done++;
  s->without_usage += !r->has_usage;
  s->shorter += r->has_usage && r->completion_tokens < q->output_tokens;
  s->prompt_tokens += r->prompt_tokens;
  s->cached_tokens += r->cached_tokens;
  s->completion_tokens += r->completion_tokens;
  s->good += load_is_good(r, l);
  stat_add(&s->ttfts, load_ttft_ms(r));
  stat_add(e2es, load_e2e_ms(r));
  if (load_tpot_ms(r) >= 0) stat_add(tpots, load_tpot_ms(r));
  load_itls_ms(r, &s->itls);
  spread(s, r);
}

static void set_rates(struct load_summary *s, const struct load_run *r) {
  double seconds = MAX(s->duration_s, 1e-9), e2e_s = 0;
  for (int i = 0; i < s->total; i++)
    if (r->results[i].state == LOAD_DONE) e2e_s += load_e2e_ms(&r->results[i]) / 1000;
  s->requests_s = s->done / seconds;
  s->input_s = (double)s->prompt_tokens / seconds;
  s->output_s = (double)s->completion_tokens / seconds;
  s->all_s = (double)(s->prompt_tokens + s->completion_tokens) / seconds;
  s->goodput_s = s->good / seconds;
  s->concurrency = e2e_s / seconds;
  for (int i = 0; i < s->n_seconds; i++) s->peak_output_s = MAX(s->peak_output_s, s->output_of_second[i]);
}

void load_summarise(struct load_summary *s, const struct load_run *r, const struct load_limits *l) {
  struct stat_values tpots = {0}, e2es = {0}, helds = {0};
  *s = (struct load_summary){.total = r->work->n,
                             .duration_s = (double)r->duration_ns / 1e9,
                             .peak_requests = r->peak,
                             .has_limits = l->ttft_ms > 0 || l->tpot_ms > 0 || l->e2e_ms > 0,
                             .n_seconds = (int)(r->duration_ns / 1000000000) + 1};
  s->output_of_second = xcalloc((size_t)s->n_seconds, sizeof *s->output_of_second);
  s->running_of_second = xcalloc((size_t)s->n_seconds, sizeof *s->running_of_second);
  for (int i = 0; i < s->total; i++) {
    const struct load_result *x = &r->results[i];
    if (x->state == LOAD_DONE) add_answer(s, x, &r->work->v[i], l, &tpots, &e2es);
    else if (x->state == LOAD_FAILED) {
      s->failed++;
      count_kind(s, x);
    } else s->unsent++;
    if (x->state == LOAD_DONE || x->state == LOAD_FAILED) stat_add(&helds, (double)(x->sent_ns - x->due_ns) / 1e6);
  }
  s->ttft = stat_of(&s->ttfts);
  s->itl = stat_of(&s->itls);
  s->tpot = stat_of(&tpots);
  s->e2e = stat_of(&e2es);
  s->held = stat_of(&helds);
  set_rates(s, r);
  if (s->n_kinds) qsort(s->kinds, (size_t)s->n_kinds, sizeof *s->kinds, by_frequency);
  free(tpots.v);
  free(e2es.v);
  free(helds.v);
}

void load_summary_free(struct load_summary *s) {
  free(s->ttfts.v);
  free(s->itls.v);
  free(s->output_of_second);
  free(s->running_of_second);
  free(s->kinds);
  *s = (struct load_summary){0};
}
