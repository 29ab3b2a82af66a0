/* t_attend_near.c — attention of a sound's rows to themselves and the few before them: against double loops, cut in every way, from a record, and
 * with what must not be seen. */
#include "test.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compute/attend_near.h"

enum { ROWS_MOST = 60, COLS_MOST = 96, KEYS_MOST = 24 };

static struct device *one, *three;

static int start(void **state) {
  (void)state;
  struct err e = {0};
  struct device_config c = {.n_threads = 1, .rows_max = ROWS_MOST, .cols_max = COLS_MOST};
  if (!(one = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  c.n_threads = 3;
  if (!(three = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  return 0;
}
static int stop(void **state) {
  (void)state;
  device_cpu_ops.close(one);
  device_cpu_ops.close(three);
  return 0;
}

struct problem {
  struct tensor q, k, v, relative, out;
  float head_scale[COLS_MOST];
  int32_t first[ROWS_MOST];
  struct attend_near n;
  int rows;
};

static void fill(struct tensor *t, uint64_t *rand, float size) {
  for (int r = 0; r < t->rows; r++)
    for (int c = 0; c < t->cols; c++) tensor_row(t, r)[c] = size * test_rand_normal(rand);
}

static void problem_init(struct problem *p, uint64_t *rand) {
  memset(p, 0, sizeof *p);
  int heads = test_rand_int(rand, 1, 4), width = test_rand_int(rand, 1, COLS_MOST / heads);
  p->rows = test_rand_int(rand, 1, ROWS_MOST);
  p->n = (struct attend_near){.n_heads = heads, .keys_left = test_rand_int(rand, 1, KEYS_MOST), .row_end = p->rows, .key_scale = 1.25f};
  p->n.cap = test_rand_int(rand, 0, 1) ? 3 : 0;
  struct tensor *all[] = {&p->q, &p->k, &p->v, &p->out, &p->relative};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) {
    int rows = all[i] == &p->relative ? p->n.keys_left + test_rand_int(rand, 0, 2) : p->rows;
    assert_int_equal(device_cpu_ops.alloc(one, all[i], rows, heads * width, "test", NULL), 0);
    fill(all[i], rand, i == 4 ? 0.3f : 1);
  }
  for (int i = 0; i < width; i++) p->head_scale[i] = 0.2f + 0.1f * test_rand_normal(rand);
  for (int r = 0, first = 0; r < p->rows; r++) { /* sounds of a few rows each */
    if (r > 0 && test_rand_int(rand, 0, 14) == 0) first = r;
    p->first[r] = first;
  }
}

static void problem_free(struct problem *p) {
  struct tensor *all[] = {&p->q, &p->k, &p->v, &p->out, &p->relative};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) device_cpu_ops.free(one, all[i]);
}

static void by_the_book(const struct problem *p, int row, int head, double *out) {
  int d = p->q.cols / p->n.n_heads, at = head * d, lo = MAX(p->first[row], row - p->n.keys_left + 1);
  double s[KEYS_MOST], most = -INFINITY, sum = 0;
  for (int j = lo; j <= row; j++) {
    double key = 0, term = 0;
    for (int i = 0; i < d; i++) {
      double q = (double)tensor_row(&p->q, row)[at + i] * (double)p->head_scale[i];
      key += q * (double)tensor_row(&p->k, j)[at + i];
      term += q * (double)tensor_row(&p->relative, row - j)[at + i];
    }
    double x = key * (double)p->n.key_scale + term, cap = (double)p->n.cap;
    s[j - lo] = cap > 0 ? cap * tanh(x / cap) : x;
    most = MAX(most, s[j - lo]);
  }
  for (int i = 0; i < d; i++) out[i] = 0;
  for (int j = lo; j <= row; j++) {
    double e = exp(s[j - lo] - most);
    sum += e;
    for (int i = 0; i < d; i++) out[i] += e * (double)tensor_row(&p->v, j)[at + i];
  }
  for (int i = 0; i < d; i++) out[i] /= sum;
}

/* In place on a copy of q: rows [row, row_end) of it. */
static void run(struct device *d, struct problem *p, int row, int row_end) {
  struct attend_near n = p->n;
  n.row = row;
  n.row_end = row_end;
  d->ops->attend_near(d, &p->out, &p->k, &p->v, &p->relative, p->head_scale, p->first, &n);
}
static void copy_q(struct problem *p) { device_cpu_ops.copy(one, &p->out, &p->q); }

static void against_loops(void **state) {
  (void)state;
  uint64_t rand = 7;
  for (int round = 0; round < 400; round++) {
    struct problem p;
    problem_init(&p, &rand);
    int d = p.q.cols / p.n.n_heads;
    copy_q(&p);
    run(one, &p, 0, p.rows);
    for (int r = 0; r < p.rows; r++) {
      for (int h = 0; h < p.n.n_heads; h++) {
        double want[COLS_MOST];
        by_the_book(&p, r, h, want);
        for (int i = 0; i < d; i++) {
          double got = (double)tensor_row(&p.out, r)[h * d + i];
          if (!(fabs(got - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
            fail_msg("round %d row %d head %d: %g, expected %g", round, r, h, got, want[i]);
        }
      }
    }
    problem_free(&p);
  }
}

/* Bits do not depend on how rows are cut into calls, on threads, or on whether a record did it. */
static void cut_and_recorded(void **state) {
  (void)state;
  uint64_t rand = 11;
  for (int round = 0; round < 100; round++) {
    struct problem p;
    problem_init(&p, &rand);
    copy_q(&p);
    run(one, &p, 0, p.rows);
    size_t bytes = (size_t)p.rows * p.out.row_bytes;
    float *want = xmalloc(bytes);
    memcpy(want, p.out.data, bytes);
    copy_q(&p);
    for (int row = 0, end; row < p.rows; row = end) {
      end = test_rand_int(&rand, row + 1, MIN(p.rows, row + 20));
      run(three, &p, row, end);
    }
    for (int r = 0; r < p.rows; r++)
      assert_memory_equal(tensor_row(&p.out, r), (char *)want + (size_t)r * p.out.row_bytes, sizeof(float) * (size_t)p.out.cols);
    struct err e = {0};
    struct device_record *record = three->ops->record_new(three, 4, 4096, &e);
    assert_non_null(record);
    copy_q(&p);
    three->ops->record_begin(three, record);
    run(three, &p, 0, p.rows);
    three->ops->record_end(three, record);
    copy_q(&p);
    three->ops->record_replay(three, record);
    for (int r = 0; r < p.rows; r++)
      assert_memory_equal(tensor_row(&p.out, r), (char *)want + (size_t)r * p.out.row_bytes, sizeof(float) * (size_t)p.out.cols);
    three->ops->record_delete(three, record);
    free(want);
    problem_free(&p);
  }
}

/* What is not finite in one sound does not reach another, nor rows that are too far away. */
static void stays_where_it_is(void **state) {
  (void)state;
  uint64_t rand = 13;
  for (int round = 0; round < 200; round++) {
    struct problem p;
    problem_init(&p, &rand);
    int bad = test_rand_int(&rand, 0, p.rows - 1);
    for (int c = 0; c < p.k.cols; c++) tensor_row(&p.k, bad)[c] = tensor_row(&p.v, bad)[c] = NAN;
    copy_q(&p);
    run(three, &p, 0, p.rows);
    for (int r = 0; r < p.rows; r++) {
      bool sees = bad <= r && bad >= p.first[r] && bad > r - p.n.keys_left;
      for (int c = 0; c < p.out.cols; c++) assert_int_equal(isnan(tensor_row(&p.out, r)[c]), sees);
    }
    problem_free(&p);
  }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(against_loops), cmocka_unit_test(cut_and_recorded),
                                          cmocka_unit_test(stays_where_it_is)};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
