/* t_attend.c — attention of encoders: every level against double arithmetic; and to the bit whatever is beside a row, whoever does it. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "compute/attend.h"
#include "compute/device.h"

enum { KEYS_MOST = 700, ROWS_MOST = 200, HEAD_DIM_MOST = 160 };

static const struct kern *levels[3];
static int n_levels;
static struct workers *pools[5]; /* [threads] */

static int start(void **state) {
  (void)state;
  static const enum isa isas[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  struct err e = {0};
  for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
    if (kern_available(isas[i])) levels[n_levels++] = kern_select(isas[i], &e);
  }
  for (int t = 1; t <= 4; t++) {
    if (!(pools[t] = workers_new(t, &e))) fail_msg("%s", e.msg);
  }
  return 0;
}
static int stop(void **state) {
  (void)state;
  for (int t = 1; t <= 4; t++) workers_delete(pools[t]);
  return 0;
}

/* A call: matrices whose memory ends at an inaccessible page, and the rows' intervals. */
struct call {
  struct tensor q, k, v, out;
  int32_t lo[ROWS_MOST], hi[ROWS_MOST];
  int n_heads;
  float scale;
};

static struct tensor new_matrix(int rows, int cols, uint64_t *rand, float size) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = (size_t)cols * sizeof(float)};
  t.data = test_guard_alloc(t.row_bytes * (size_t)rows);
  for (int i = 0; i < rows * cols; i++) ((float *)t.data)[i] = rand ? size * test_rand_normal(rand) : 1e30f;
  return t;
}
static void free_matrix(struct tensor *t) { test_guard_free(t->data, t->row_bytes * (size_t)t->rows); }

/* How intervals are chosen: all keys, pictures one after the other, or anything. */
enum pattern { WHOLE, PICTURES, ANY, PATTERNS };

static struct call new_call(int rows, int keys, int n_heads, int head_dim, enum pattern p, uint64_t *rand) {
  struct call c = {.n_heads = n_heads, .scale = 1.0f / sqrtf((float)head_dim)};
  float size = (float[]){0.3f, 1, 4}[test_rand_int(rand, 0, 2)];
  c.q = new_matrix(rows, n_heads * head_dim, rand, size);
  c.k = new_matrix(keys, n_heads * head_dim, rand, 1);
  c.v = new_matrix(keys, n_heads * head_dim, rand, 1);
  c.out = new_matrix(rows, n_heads * head_dim, NULL, 0);
  int first = 0, end = keys;
  for (int r = 0; r < rows; r++) {
    if (p == PICTURES && test_rand_int(rand, 0, 9) == 0) first = test_rand_int(rand, 0, keys - 1), end = test_rand_int(rand, first, keys);
    if (p == ANY) first = test_rand_int(rand, 0, keys), end = test_rand_int(rand, 0, keys);
    c.lo[r] = first, c.hi[r] = end;
  }
  return c;
}
static void free_call(struct call *c) {
  free_matrix(&c->q);
  free_matrix(&c->k);
  free_matrix(&c->v);
  free_matrix(&c->out);
}

/* Rows [from, to) of the call, with just enough scratch, filled with NaN. */
static void run(const struct kern *k, int threads, struct call *c, int from, int to) {
  int head_dim = c->q.cols / c->n_heads;
  struct attend_scratch s = {.keys_max = c->k.rows, .head_dim_max = head_dim, .n_workers = threads};
  s.n_bytes = attend_scratch_bytes(s.keys_max, head_dim, threads);
  s.data = test_guard_alloc(s.n_bytes);
  memset(s.data, 0xff, s.n_bytes);
  struct tensor q = c->q, out = c->out;
  q.data = tensor_row(&c->q, from), out.data = tensor_row(&c->out, from);
  q.rows = out.rows = to - from;
  attend(k, pools[threads], &s, &out, &q, &c->k, &c->v, c->n_heads, c->scale, c->lo + from, c->hi + from);
  test_guard_free(s.data, s.n_bytes);
}

/* One head of one row by the book. */
static void twin(const struct call *c, int row, int head, double *out) {
  int n = c->q.cols / c->n_heads;
  const float *q = tensor_row(&c->q, row) + head * n;
  static double p[KEYS_MOST];
  double top = -INFINITY, sum = 0;
  for (int j = c->lo[row]; j < c->hi[row]; j++) {
    p[j] = 0;
    for (int i = 0; i < n; i++) p[j] += (double)q[i] * (double)(tensor_row(&c->k, j) + head * n)[i];
    p[j] *= (double)c->scale;
    top = MAX(top, p[j]);
  }
  for (int i = 0; i < n; i++) out[i] = 0;
  for (int j = c->lo[row]; j < c->hi[row]; j++) {
    p[j] = exp(p[j] - top);
    sum += p[j];
    for (int i = 0; i < n; i++) out[i] += p[j] * (double)(tensor_row(&c->v, j) + head * n)[i];
  }
  for (int i = 0; i < n && sum > 0; i++) out[i] /= sum;
}

static double expect_twin(const struct kern *k, const struct call *c) {
  int n = c->q.cols / c->n_heads;
  double want[HEAD_DIM_MOST], worst = 0;
  for (int r = 0; r < c->q.rows; r++) {
    for (int h = 0; h < c->n_heads; h++) {
      twin(c, r, h, want);
      for (int i = 0; i < n; i++) {
        double d = fabs((double)(tensor_row(&c->out, r) + h * n)[i] - want[i]);
        worst = MAX(worst, d);
        if (!(d <= 1e-5)) fail_msg("%s row %d [%d, %d) head %d at %d of %d: off by %g", k->name, r, c->lo[r], c->hi[r], h, i, n, d);
      }
    }
  }
  return worst;
}

static const int dims[] = {1, 4, 7, 8, 9, 15, 16, 20, 24, 32, 33, 40, 48, 56, 64, 72, 80, 88, 100, 128, 160};

static void agrees_with_the_book(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 5;
    double worst = 0;
    for (int n = 0; n < 3 * 21 * PATTERNS; n++) {
      int head_dim = dims[n % 21], rows = test_rand_int(&rand, 1, n % 5 ? 30 : 120), keys = test_rand_int(&rand, 1, n % 7 ? 60 : 400);
      struct call c = new_call(rows, keys, test_rand_int(&rand, 1, 5), head_dim, (enum pattern)(n / 21 % PATTERNS), &rand);
      run(levels[level], 1 + n % 3, &c, 0, rows);
      worst = MAX(worst, expect_twin(levels[level], &c));
      free_call(&c);
    }
    printf("%s: within %.2g\n", levels[level]->name, worst);
  }
}

/* Rows alone, in pieces of any size, on one to four threads, with the first key elsewhere: the same bits. */
static void a_row_depends_on_nothing_else(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 6;
    for (int n = 0; n < 24 / TEST_LESS; n++) {
      int rows = test_rand_int(&rand, 1, ROWS_MOST), keys = test_rand_int(&rand, 1, 500);
      struct call c = new_call(rows, keys, test_rand_int(&rand, 1, 3), dims[test_rand_int(&rand, 0, 16)], (enum pattern)(n % PATTERNS),
                               &rand);
      run(levels[level], 1, &c, 0, rows);
      struct tensor want = c.out;
      c.out = new_matrix(rows, want.cols, NULL, 0);
      run(levels[level], 2 + n % 3, &c, 0, rows);
      assert_memory_equal(c.out.data, want.data, want.row_bytes * (size_t)rows);
      for (int i = 0; i < rows * want.cols; i++) ((float *)c.out.data)[i] = 1e30f;
      for (int from = 0, to; from < rows; from = to) {
        int n_rows = test_rand_int(&rand, 1, n % 2 ? 70 : 3);
        to = MIN(rows, from + n_rows);
        run(levels[level], 1 + n % 4, &c, from, to);
      }
      assert_memory_equal(c.out.data, want.data, want.row_bytes * (size_t)rows);
      free_matrix(&want);
      free_call(&c);
    }
  }
}

/* The same keys behind others: everything shifts by a number that divides nothing. */
static void a_row_does_not_know_where_its_keys_are(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 7;
    for (int n = 0; n < 40 / TEST_LESS; n++) {
      int rows = test_rand_int(&rand, 1, 60), keys = test_rand_int(&rand, 1, 300), before = test_rand_int(&rand, 0, 200);
      struct call c = new_call(rows, keys, 2, dims[n % 21], (enum pattern)(n % PATTERNS), &rand), moved = c;
      run(levels[level], 1, &c, 0, rows);
      moved.k = new_matrix(before + keys, c.k.cols, &rand, 1);
      moved.v = new_matrix(before + keys, c.v.cols, &rand, 1);
      moved.out = new_matrix(rows, c.out.cols, NULL, 0);
      memcpy(tensor_row(&moved.k, before), c.k.data, c.k.row_bytes * (size_t)keys);
      memcpy(tensor_row(&moved.v, before), c.v.data, c.v.row_bytes * (size_t)keys);
      for (int r = 0; r < rows; r++) moved.lo[r] += before, moved.hi[r] += before;
      run(levels[level], 1, &moved, 0, rows);
      assert_memory_equal(moved.out.data, c.out.data, c.out.row_bytes * (size_t)rows);
      free_matrix(&moved.k);
      free_matrix(&moved.v);
      free_matrix(&moved.out);
      free_call(&c);
    }
  }
}

static bool all_nan(const float *x, int n) {
  for (int i = 0; i < n; i++)
    if (!isnan(x[i])) return false;
  return true;
}

/* A NaN reaches those who see it, and nobody else. */
static void strange_numbers_stay_where_they_are(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 8;
    for (int n = 0; n < 60 / TEST_LESS; n++) {
      int rows = test_rand_int(&rand, 2, 60), keys = test_rand_int(&rand, 2, 200), head_dim = dims[n % 21];
      struct call c = new_call(rows, keys, 2, head_dim, (enum pattern)(n % PATTERNS), &rand);
      run(levels[level], 1, &c, 0, rows);
      struct tensor want = c.out;
      c.out = new_matrix(rows, want.cols, NULL, 0);
      int row = test_rand_int(&rand, 0, rows - 1), key = test_rand_int(&rand, 0, keys - 1), value = test_rand_int(&rand, 0, keys - 1);
      tensor_row(&c.q, row)[test_rand_int(&rand, 0, head_dim - 1)] = NAN;            /* first head */
      tensor_row(&c.k, key)[head_dim + test_rand_int(&rand, 0, head_dim - 1)] = NAN; /* second head */
      tensor_row(&c.v, value)[head_dim] = n % 2 ? NAN : INFINITY;
      run(levels[level], 1, &c, 0, rows);
      for (int r = 0; r < rows; r++) {
        bool sees = c.lo[r] < c.hi[r], sees_key = key >= c.lo[r] && key < c.hi[r], sees_value = value >= c.lo[r] && value < c.hi[r];
        const float *got = tensor_row(&c.out, r), *old = tensor_row(&want, r);
        if (r == row && sees) assert_true(all_nan(got, head_dim));
        else assert_memory_equal(got, old, sizeof(float) * (size_t)head_dim);
        got += head_dim, old += head_dim;
        if (sees_key) assert_true(all_nan(got, head_dim));
        else if (sees_value) assert_false(isfinite(got[0]) && (n % 2 || head_dim == 1));
        else assert_memory_equal(got, old, sizeof(float) * (size_t)head_dim);
      }
      free_matrix(&want);
      free_call(&c);
    }
  }
}

static void nothing_seen_gives_zeros(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 9;
    struct call c = new_call(5, 40, 2, 24, WHOLE, &rand);
    c.hi[0] = 0, c.lo[2] = 40, c.lo[4] = 7, c.hi[4] = 3;
    run(levels[level], 2, &c, 0, 5);
    for (int r = 0; r < 5; r++) {
      for (int i = 0; i < 48; i++) assert_true((tensor_row(&c.out, r)[i] == 0) == (r % 2 == 0));
    }
    free_call(&c);
  }
}

/* Scores far apart, far from 0, all alike; and out in the place of q. */
static void extremes(void **state) {
  (void)state;
  for (int level = 0; level < n_levels; level++) {
    uint64_t rand = 10;
    for (int n = 0; n < 30; n++) {
      struct call c = new_call(20, 300, 2, dims[n % 21], WHOLE, &rand);
      c.scale = (float[]){0, 1e-20f, 30, -1}[n % 4];
      if (n % 3 == 0) memcpy(c.out.data, c.q.data, c.q.row_bytes * 20);
      struct call same = c;
      if (n % 3 == 0) same.q = c.out;
      run(levels[level], 1, &same, 0, 20);
      if (n % 4 != 2) expect_twin(levels[level], &c); /* there rounding of scores counts: only that it is finite */
      for (int i = 0; i < 20 * c.out.cols; i++) assert_true(isfinite(((float *)c.out.data)[i]));
      free_call(&c);
    }
  }
}

/* Through the device: its own scratch, launches only, nothing allocated. */
static void the_devices_own(void **state) {
  (void)state;
  uint64_t rand = 11;
  struct call c = new_call(130, KEYS_MOST, 3, 72, PICTURES, &rand);
  for (int level = 0; level < n_levels; level++) {
    struct err e = {0};
    struct device_config config = {
        .isa = levels[level]->isa, .n_threads = 3, .rows_max = 16, .cols_max = 64, .keys_max = KEYS_MOST, .head_dim_max = 80};
    run(levels[level], 1, &c, 0, 130);
    struct tensor want = c.out;
    c.out = new_matrix(130, want.cols, NULL, 0);
    for (int fail = 1;; fail++) {
      mem_fail_after(fail);
      struct device *d = device_cpu_ops.open(&config, &e);
      bool failed = !mem_fail_pending();
      mem_fail_after(0);
      if (!d) assert_true(failed);
      if (!d) continue;
      mem_guard_begin("attend");
      d->ops->attend(d, &c.out, &c.q, &c.k, &c.v, 3, c.scale, c.lo, c.hi);
      mem_guard_end();
      d->ops->close(d);
      if (!failed) break;
    }
    assert_memory_equal(c.out.data, want.data, want.row_bytes * 130);
    free_matrix(&want);
  }
  free_call(&c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(agrees_with_the_book),
    cmocka_unit_test(a_row_depends_on_nothing_else),
    cmocka_unit_test(a_row_does_not_know_where_its_keys_are),
    cmocka_unit_test(strange_numbers_stay_where_they_are),
    cmocka_unit_test(nothing_seen_gives_zeros),
    cmocka_unit_test(extremes),
    cmocka_unit_test(the_devices_own),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
