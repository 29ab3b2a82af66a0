/* t_stats.c — what times and tokens come to, and when requests are due. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "load/stats.h"

static void near(double found, double expected, double by) {
  if (!(fabs(found - expected) <= by)) fail_msg("expected %.9g, found %.9g", expected, found);
}

/* Values whose percentiles were worked out by hand: numpy's default, linear interpolation. */
static void percentiles(void **state) {
  (void)state;
  static const double v[] = {10, 20, 30, 40};
  near(stat_percentile(v, 4, 0), 10, 0);
  near(stat_percentile(v, 4, 50), 25, 1e-12);
  near(stat_percentile(v, 4, 90), 37, 1e-12);
  near(stat_percentile(v, 4, 99), 39.7, 1e-12);
  near(stat_percentile(v, 4, 100), 40, 0);
  near(stat_percentile(v, 1, 99), 10, 0);
  near(stat_percentile(v, 3, 50), 20, 0);
}

static void statistics(void **state) {
  (void)state;
  struct stat_values s = {0};
  assert_int_equal(stat_of(&s).n, 0);
  for (int i = 0; i < 1000; i++) stat_add(&s, (i * 7919) % 1000); /* 0 to 999, in disorder */
  struct stat x = stat_of(&s);
  assert_int_equal(x.n, 1000);
  near(x.mean, 499.5, 1e-9);
  near(x.median, 499.5, 1e-9);
  near(x.std, sqrt((1e6 - 1) / 12), 1e-6); /* of 0 .. n - 1, divided by n */
  near(x.p90, 899.1, 1e-9);
  near(x.p95, 949.05, 1e-9);
  near(x.p99, 989.01, 1e-9);
  near(x.max, 999, 0);
  free(s.v);
}

/* Milliseconds and tokens so far of each piece. */
struct piece {
  int64_t ms;
  int tokens;
};
static struct load_result answer(int64_t sent_ms, const struct piece *p, int n, int64_t last_ms) {
  struct load_result r = {.state = LOAD_DONE,
                          .due_ns = sent_ms * 1000000,
                          .sent_ns = sent_ms * 1000000,
                          .first_ns = p[0].ms * 1000000,
                          .last_ns = last_ms * 1000000,
                          .prompt_tokens = 7,
                          .cached_tokens = 2,
                          .completion_tokens = p[n - 1].tokens,
                          .has_usage = true,
                          .marks = xcalloc((size_t)n, sizeof *r.marks),
                          .n_marks = n};
  for (int i = 0; i < n; i++) r.marks[i] = (struct load_mark){p[i].ms * 1000000, p[i].tokens};
  return r;
}

static void one_answer(void **state) {
  (void)state;
  static const struct piece pieces[] = {{150, 2}, {190, 3}, {250, 3}, {310, 7}};
  struct load_result r = answer(100, pieces, 4, 330);
  struct stat_values itls = {0};
  near(load_ttft_ms(&r), 50, 1e-9);
  near(load_e2e_ms(&r), 230, 1e-9);
  near(load_tpot_ms(&r), 180.0 / 6, 1e-9);
  load_itls_ms(&r, &itls);
  assert_int_equal(itls.n, 5); /* the first piece's two are left out; one without tokens gives its time to the next */
  near(itls.v[0], 40, 1e-9);
  for (int i = 1; i < 5; i++) near(itls.v[i], 120.0 / 4, 1e-9);
  r.completion_tokens = 1;
  near(load_tpot_ms(&r), -1, 0);
  free(itls.v);
  free(r.marks);
}

static void limits(void **state) {
  (void)state;
  static const struct piece pieces[] = {{150, 1}, {310, 9}};
  struct load_result r = answer(100, pieces, 2, 310); /* TTFT 50, TPOT 20, E2E 210 */
  static const struct {
    struct load_limits l;
    bool good;
  } rows[] = {{{0, 0, 0}, true},   {{50, 0, 0}, true},   {{49.9, 0, 0}, false}, {{0, 20, 0}, true},       {{0, 19.9, 0}, false},
              {{0, 0, 210}, true}, {{0, 0, 209}, false}, {{50, 20, 210}, true}, {{50, 19.9, 210}, false}, {{49, 20, 210}, false}};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++)
    if (load_is_good(&r, &rows[i].l) != rows[i].good) fail_msg("row %zu", i);
  r.completion_tokens = 1; /* no TPOT: none that is too long */
  assert_true(load_is_good(&r, &(struct load_limits){0, 1, 0}));
  free(r.marks);
}

static void summary(void **state) {
  (void)state;
  static const struct piece first[] = {{500, 1}, {900, 3}, {1100, 4}}, second[] = {{1500, 1}, {1600, 2}};
  struct load_request requests[5] = {
      {.output_tokens = 4}, {.output_tokens = 3}, {.output_tokens = 9}, {.output_tokens = 9}, {.output_tokens = 9}};
  struct workload w = {.v = requests, .n = 5};
  struct load_result results[5] = {answer(0, first, 3, 1100), answer(1000, second, 2, 2000)};
  char message[] = "HTTP 500: as scripted";
  for (int i = 2; i < 4; i++)
    results[i] = (struct load_result){.state = LOAD_FAILED, .kind = "HTTP 500", .message = message, .sent_ns = 5000000};
  struct load_run run = {.work = &w, .results = results, .duration_ns = INT64_C(2500000000), .peak = 3};
  struct load_summary s;
  load_summarise(&s, &run, &(struct load_limits){.ttft_ms = 500, .e2e_ms = 1050});
  assert_int_equal(s.total, 5);
  assert_int_equal(s.done, 2);
  assert_int_equal(s.failed, 2);
  assert_int_equal(s.unsent, 1);
  assert_int_equal(s.shorter, 1);
  assert_int_equal(s.n_kinds, 1);
  assert_int_equal(s.kinds[0].n, 2);
  assert_string_equal(s.kinds[0].message, message);
  assert_int_equal(s.prompt_tokens, 14);
  assert_int_equal(s.cached_tokens, 4);
  assert_int_equal(s.completion_tokens, 6);
  near(s.requests_s, 2 / 2.5, 1e-9);
  near(s.input_s, 14 / 2.5, 1e-9);
  near(s.output_s, 6 / 2.5, 1e-9);
  near(s.all_s, 20 / 2.5, 1e-9);
  near(s.concurrency, (1.1 + 1.0) / 2.5, 1e-9);
  near(s.peak_output_s, 3, 0); /* seconds 0: three; 1: one and two */
  assert_int_equal(s.good, 1); /* the first one's E2E is 1100 */
  near(s.goodput_s, 1 / 2.5, 1e-9);
  assert_int_equal(s.n_seconds, 3);
  near(s.running_of_second[0], 1, 1e-9);
  near(s.running_of_second[1], 1.1, 1e-9);
  near(s.held.max, 5, 1e-9);
  load_summary_free(&s);
  free(results[0].marks);
  free(results[1].marks);
}

/* Gaps of a Poisson process: mean and standard deviation 1 / rate, a share of 1/e longer than the mean, and no gap like its neighbour. */
static void gaps(void **state) {
  (void)state;
  enum { N = 20000 };
  double sum = 0, squares = 0, products = 0, before = 0;
  int longer = 0;
  for (int i = 1; i <= N; i++) {
    double gap = load_gap(5, i, 4);
    assert_true(gap >= 0);
    sum += gap;
    squares += gap * gap;
    products += (gap - 0.25) * (before - 0.25);
    longer += gap > 0.25;
    before = gap;
  }
  double mean = sum / N, variance = squares / N - mean * mean;
  near(mean, 0.25, 0.25 * 4 / sqrt(N)); /* four standard errors */
  near(variance, 0.0625, 0.0625 * 4 * sqrt(8.0 / N));
  near((double)longer / N, exp(-1), 4 * sqrt(0.25 / N));
  near(products / N / variance, 0, 4 / sqrt(N));
  near(load_gap(5, 17, 4), load_gap(5, 17, 4), 0);
  near(load_gap(5, 17, 8), load_gap(5, 17, 4) / 2, 1e-12);
  assert_true(load_gap(6, 17, 4) != load_gap(5, 17, 4));
  near(load_gap(5, 17, INFINITY), 0, 0);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(percentiles), cmocka_unit_test(statistics), cmocka_unit_test(one_answer),
                                          cmocka_unit_test(limits),      cmocka_unit_test(summary),    cmocka_unit_test(gaps)};
TEST_MAIN(tests)
