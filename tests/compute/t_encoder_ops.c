/* t_encoder_ops.c — the operations that encoders and soft rows need: kernels of every level against double arithmetic, operations of the
 * device against loops with one thread and several, and replayed from a record with other contents. Attention: t_attend.c. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/act_exact.h"
#include "compute/device.h"

enum { ROWS_MOST = 96 };

static struct device *devices[8]; /* even indices have one thread; the next has the same kernels and three */
static int n_devices;

static int start(void **state) {
  (void)state;
  static const enum isa isas[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
    for (int threads = 1; threads <= 3; threads += 2) {
      struct err e = {0};
      struct device_config c = {.isa = isas[i], .n_threads = threads, .rows_max = ROWS_MOST, .cols_max = 64};
      if (kern_available(isas[i]) && !(devices[n_devices++] = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
    }
  }
  return 0;
}
static int stop(void **state) {
  (void)state;
  for (int i = 0; i < n_devices; i++) device_cpu_ops.close(devices[i]);
  return 0;
}

/* --- kernels ------------------------------------------------------------------------------------------------------------- */

#define FOR_EACH_LEVEL(k)                                                                                                                  \
  for (int level_ = 0; level_ < n_devices; level_ += 2)                                                                                    \
    for (const struct kern *k = devices[level_]->kern; k; k = NULL)

static float *guarded(int n, uint64_t *rand, float size) {
  float *x = test_guard_alloc(sizeof(float) * (size_t)n);
  for (int i = 0; i < n; i++) x[i] = size * test_rand_normal(rand);
  return x;
}
static void free_guarded(float *x, int n) { test_guard_free(x, sizeof(float) * (size_t)n); }
static int length(int i) { return i <= 70 ? i : (int[]){127, 128, 129, 640, 768, 1152, 1280, 1281}[i - 71]; }

static void expect(const struct kern *k, const char *what, int n, int i, float got, double want, double rel, double least) {
  double d = fabs((double)got - want);
  if (!(d <= rel * fabs(want) + least)) fail_msg("%s %s n %d at %d: %.9g, expected %.9g", k->name, what, n, i, (double)got, want);
}

static void layernorm(void **state) {
  (void)state;
  uint64_t rand = 1;
  FOR_EACH_LEVEL(k) {
    for (int at = 1; at <= 78; at++) {
      int n = length(at);
      float *x = guarded(n, &rand, 1), *y = guarded(n, &rand, 1), *w = guarded(n, &rand, 1), *b = guarded(n, &rand, 1);
      for (int i = 0; i < n; i++) x[i] += at % 3 ? 0 : 50; /* a mean far from 0 */
      double mean = 0, squares = 0;
      for (int i = 0; i < n; i++) mean += (double)x[i] / n;
      for (int i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
      double f = 1 / sqrt(squares + (double)1e-5f), size = fabs(mean) * f;
      for (int form = 0; form < 4; form++) {
        const float *with_w = form & 1 ? w : NULL, *with_b = form & 2 ? b : NULL;
        k->layernorm(y, x, with_w, with_b, n, 1e-5f);
        for (int i = 0; i < n; i++) {
          double factor = with_w ? (double)w[i] : 1, want = ((double)x[i] - mean) * f * factor + (with_b ? (double)b[i] : 0);
          expect(k, "layernorm", n, i, y[i], want, 1e-6, 1e-6 * (1 + fabs(factor)) * (1 + size));
        }
      }
      k->layernorm(y, x, w, b, n, 1e-5f);
      k->layernorm(x, x, w, b, n, 1e-5f);
      assert_memory_equal(x, y, sizeof(float) * (size_t)n);
      free_guarded(x, n);
      free_guarded(y, n);
      free_guarded(w, n);
      free_guarded(b, n);
    }
  }
}

static void activations(void **state) {
  (void)state;
  uint64_t rand = 2;
  FOR_EACH_LEVEL(k) {
    for (int act = ACT_GELU_TANH; act <= ACT_NONE; act++) {
      for (int at = 1; at <= 78; at++) {
        int n = length(at);
        float *x = guarded(n, &rand, 2), *b = guarded(n, &rand, 1), *y = guarded(n, &rand, 1), *z = guarded(n, &rand, 1);
        memcpy(y, x, sizeof(float) * (size_t)n);
        k->bias_act(y, b, (enum act)act, n);
        for (int i = 0; i < n; i++) expect(k, "bias_act", n, i, y[i], act_exact((enum act)act, (double)(x[i] + b[i])), 2e-6, 3e-7);
        k->gated(z, x, b, (enum act)act, n);
        for (int i = 0; i < n; i++) {
          expect(k, "gated", n, i, z[i], act_exact((enum act)act, (double)x[i]) * (double)b[i], 2e-6, 3e-7 * fabs((double)b[i]));
        }
        for (int i = 0; i < n; i++) b[i] = 1; /* the two are one function */
        k->gated(z, x, b, (enum act)act, n);
        k->bias_act(x, NULL, (enum act)act, n);
        assert_memory_equal(x, z, sizeof(float) * (size_t)n);
        free_guarded(x, n);
        free_guarded(b, n);
        free_guarded(y, n);
        free_guarded(z, n);
      }
    }
  }
}

static void activations_over_their_range(void **state) {
  (void)state;
  FOR_EACH_LEVEL(k) {
    double worst = 0;
    for (int i = -60000; i <= 60000; i++) {
      float x = (float)i * 1e-3f, y = x, z = x;
      double want = act_exact(ACT_GELU_ERF, (double)x), tail = act_exact(ACT_SIGMOID, (double)x);
      k->bias_act(&y, NULL, ACT_GELU_ERF, 1);
      worst = MAX(worst, fabs((double)y - want) / MAX(fabs((double)x), 1e-3));
      expect(k, "gelu_erf", 1, i, y, want, x > -6 ? 4e-6 : 2e-5, 1e-35); /* relative far into the tail, where x²/2 is rounded */
      k->bias_act(&z, NULL, ACT_SIGMOID, 1);
      expect(k, "sigmoid", 1, i, z, tail, 1e-6, 1e-35);
    }
    printf("%s: gelu_erf within %.2g of |x|\n", k->name, worst);
    assert_true(worst < 2e-7);
    for (int act = ACT_GELU_TANH; act <= ACT_NONE; act++) {
      float x[3] = {NAN, INFINITY, 0}, least[3] = {NAN, -3, 7};
      k->bias_act(x, NULL, (enum act)act, 3);
      assert_true(isnan(x[0]));
      assert_true(x[1] == (act == ACT_SIGMOID ? 1 : INFINITY));
      assert_true(x[2] == (act == ACT_SIGMOID ? 0.5f : 0));
      k->clamp(least, least, -1, 2, 3);
      assert_true(isnan(least[0]) && least[1] == -1 && least[2] == 2);
    }
    float x = -INFINITY;
    k->bias_act(&x, NULL, ACT_RELU, 1);
    assert_true(x == 0);
  }
}

static void simple_ones(void **state) {
  (void)state;
  uint64_t rand = 3;
  FOR_EACH_LEVEL(k) {
    for (int at = 1; at <= 78; at++) {
      int n = length(at);
      float *x = guarded(n, &rand, 1), *y = guarded(n, &rand, 1), *z = guarded(n, &rand, 1);
      k->clamp(z, x, -0.5f, 0.7f, n);
      for (int i = 0; i < n; i++) assert_true(z[i] == (x[i] < -0.5f ? -0.5f : x[i] > 0.7f ? 0.7f : x[i]));
      k->clamp(z, x, -INFINITY, INFINITY, n);
      assert_memory_equal(z, x, sizeof(float) * (size_t)n);
      memcpy(z, y, sizeof(float) * (size_t)n);
      k->add_scaled(z, x, 0.3f, n);
      for (int i = 0; i < n; i++) expect(k, "add_scaled", n, i, z[i], (double)y[i] + (double)0.3f * (double)x[i], 2e-7, 1e-7);
      memcpy(z, y, sizeof(float) * (size_t)n);
      k->add_scaled(z, x, 1, n);
      for (int i = 0; i < n; i++) assert_true(z[i] == x[i] + y[i]);
      free_guarded(x, n);
      free_guarded(y, n);
      free_guarded(z, n);
    }
  }
}

/* --- operations ---------------------------------------------------------------------------------------------------------- */

static struct tensor new_tensor(struct device *d, int rows, int cols, uint64_t *rand) {
  struct err e = {0};
  struct tensor t;
  if (d->ops->alloc(d, &t, rows, cols, "test", &e)) fail_msg("%s", e.msg);
  for (int r = 0; r < rows && rand; r++) {
    for (int c = 0; c < cols; c++) tensor_row(&t, r)[c] = test_rand_normal(rand);
  }
  return t;
}
static struct tensor copy_of(struct device *d, const struct tensor *t) {
  struct tensor copy = new_tensor(d, t->rows, t->cols, NULL);
  memcpy(copy.data, t->data, t->row_bytes * (size_t)t->rows);
  return copy;
}
static void expect_same(const struct tensor *a, const struct tensor *b) {
  for (int r = 0; r < a->rows; r++) assert_memory_equal(tensor_row(a, r), tensor_row(b, r), sizeof(float) * (size_t)a->cols);
}

/* What all cases have: y and what the loop says of it, x, numbers per column, and integers per row. */
struct set {
  struct device *d;
  struct tensor y, want, x;
  float *w, *b;
  int32_t ints[16 * ROWS_MOST], more[ROWS_MOST];
};
static struct set new_set(struct device *d, int rows, int cols, uint64_t *rand) {
  struct set s = {.d = d, .y = new_tensor(d, rows, cols, rand), .x = new_tensor(d, rows, cols, rand)};
  s.want = copy_of(d, &s.y);
  s.w = xcalloc((size_t)cols * 8, sizeof(float));
  s.b = xcalloc((size_t)cols, sizeof(float));
  for (int i = 0; i < cols * 8; i++) s.w[i] = test_rand_normal(rand);
  for (int i = 0; i < cols; i++) s.b[i] = test_rand_normal(rand);
  return s;
}
static void free_set(struct set *s) {
  s->d->ops->free(s->d, &s->y);
  s->d->ops->free(s->d, &s->want);
  s->d->ops->free(s->d, &s->x);
  free(s->w);
  free(s->b);
}

typedef void (*case_fn)(struct set *s, uint64_t *rand, struct record *r);

/* Run an operation: now; or recorded with some contents and replayed with the real ones. */
#define RUN(s, r, call)                                                                                                                    \
  do {                                                                                                                                     \
    struct tensor kept_ = copy_of((s)->d, &(s)->y);                                                                                        \
    mem_guard_begin("op");                                                                                                                 \
    if (r) workers_record((s)->d->workers, r);                                                                                             \
    call;                                                                                                                                  \
    if (r) workers_record((s)->d->workers, NULL);                                                                                          \
    mem_guard_end();                                                                                                                       \
    if (r) {                                                                                                                               \
      memcpy((s)->y.data, kept_.data, kept_.row_bytes *(size_t)kept_.rows);                                                                \
      workers_replay((s)->d->workers, r);                                                                                                  \
      record_clear(r);                                                                                                                     \
    }                                                                                                                                      \
    (s)->d->ops->free((s)->d, &kept_);                                                                                                     \
    expect_same(&(s)->y, &(s)->want);                                                                                                      \
  } while (0)

static void do_layernorm(struct set *s, uint64_t *rand, struct record *r) {
  (void)rand;
  for (int i = 0; i < s->x.rows; i++) s->d->kern->layernorm(tensor_row(&s->want, i), tensor_row(&s->x, i), s->w, s->b, s->x.cols, 1e-6f);
  RUN(s, r, s->d->ops->layernorm(s->d, &s->y, &s->x, s->w, s->b, 1e-6f));
}
static void do_bias_act(struct set *s, uint64_t *rand, struct record *r) {
  enum act act = (enum act)test_rand_int(rand, ACT_GELU_TANH, ACT_NONE);
  const float *b = test_rand_int(rand, 0, 3) ? s->b : NULL;
  for (int i = 0; i < s->x.rows; i++) s->d->kern->bias_act(tensor_row(&s->want, i), b, act, s->x.cols);
  RUN(s, r, s->d->ops->bias_act(s->d, &s->y, b, act));
}
static void do_clamp(struct set *s, uint64_t *rand, struct record *r) {
  (void)rand;
  for (int i = 0; i < s->x.rows; i++) s->d->kern->clamp(tensor_row(&s->want, i), tensor_row(&s->x, i), -0.3f, 0.6f, s->x.cols);
  RUN(s, r, s->d->ops->clamp(s->d, &s->y, &s->x, -0.3f, 0.6f));
}
static void do_put_rows(struct set *s, uint64_t *rand, struct record *r) {
  for (int i = 0; i < s->y.rows; i++) {
    s->ints[i] = test_rand_int(rand, -1, s->x.rows - 1);
    if (s->ints[i] >= 0) memcpy(tensor_row(&s->want, i), tensor_row(&s->x, s->ints[i]), sizeof(float) * (size_t)s->x.cols);
  }
  RUN(s, r, s->d->ops->put_rows(s->d, &s->y, &s->x, s->ints));
}
static void do_add_scaled(struct set *s, uint64_t *rand, struct record *r) {
  bool all = test_rand_int(rand, 0, 2) == 0;
  tensor_row(&s->want, 0)[0] = tensor_row(&s->y, 0)[0] = -0.0f; /* kept to the bit where nothing is added */
  for (int i = 0; i < s->y.rows; i++) {
    s->ints[i] = test_rand_int(rand, 0, 9), s->more[i] = test_rand_int(rand, 0, 9);
    if (all || s->ints[i] < s->more[i]) s->d->kern->add_scaled(tensor_row(&s->want, i), tensor_row(&s->x, i), 0.2f, s->x.cols);
    else tensor_row(&s->x, i)[0] = NAN;
  }
  RUN(s, r, s->d->ops->add_scaled(s->d, &s->y, &s->x, 0.2f, all ? NULL : s->ints, all ? NULL : s->more));
}
static void do_pool_rows(struct set *s, uint64_t *rand, struct record *r) {
  int n = test_rand_int(rand, 1, 16);
  const float *b = n % 2 ? s->b : NULL, *w = n % 3 ? s->w : NULL;
  for (int i = 0; i < n * s->y.rows; i++) s->ints[i] = test_rand_int(rand, 0, s->x.rows - 1);
  for (int i = 0; i < s->y.rows; i++) {
    for (int c = 0; c < s->y.cols; c++) {
      float sum = 0;
      for (int j = 0; j < n; j++) sum += tensor_row(&s->x, s->ints[i * n + j])[c];
      tensor_row(&s->want, i)[c] = (sum * 0.37f + (b ? b[c] : 0)) * (w ? w[c] : 1);
    }
  }
  RUN(s, r, s->d->ops->pool_rows(s->d, &s->y, &s->x, s->ints, n, 0.37f, b, w));
}
static void do_conv_rows(struct set *s, uint64_t *rand, struct record *r) {
  int taps = test_rand_int(rand, 1, 8), first = 0;
  for (int i = 0; i < s->y.rows; i++) {
    if (test_rand_int(rand, 0, 5) == 0) first = i;
    s->ints[i] = first;
    for (int c = 0; c < s->y.cols; c++) {
      float sum = 0;
      for (int j = 0; j < taps; j++) {
        int from = i - taps + 1 + j;
        if (from >= first) sum += s->w[c * taps + j] * tensor_row(&s->x, from)[c];
      }
      tensor_row(&s->want, i)[c] = sum;
    }
  }
  RUN(s, r, s->d->ops->conv_rows(s->d, &s->y, &s->x, s->w, taps, s->ints));
}

static void operations(void **state) {
  (void)state;
  static const case_fn cases[] = {do_layernorm, do_bias_act, do_clamp, do_put_rows, do_add_scaled, do_pool_rows, do_conv_rows};
  static const struct shape {
    int rows, cols;
  } shapes[] = {{1, 8}, {3, 40}, {96, 1024 / TEST_LESS}, {2, 12000 / TEST_LESS}, {50, 640}, {7, 1}, {33, 77}};
  struct err e = {0};
  struct record *record = record_new(32, 32 * 512, &e);
  assert_non_null(record);
  uint64_t rand = 4;
  for (int i = 0; i < n_devices; i++) {
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
      for (size_t n = 0; n < 2 * ARRAY_LEN(shapes); n++) {
        struct set s = new_set(devices[i], shapes[n / 2].rows, shapes[n / 2].cols, &rand);
        cases[c](&s, &rand, n % 2 ? record : NULL);
        free_set(&s);
      }
    }
  }
  record_delete(record);
}

/* A record keeps where contents are, not what they were. */
static void replays_read_what_is_there_then(void **state) {
  (void)state;
  struct err e = {0};
  struct record *record = record_new(8, 8 * 512, &e);
  uint64_t rand = 5;
  for (int i = 0; i < n_devices; i++) {
    struct set s = new_set(devices[i], 6, 100, &rand);
    struct device *d = devices[i];
    record_clear(record);
    for (int r = 0; r < 6; r++) s.ints[r] = -1, s.more[r] = -1;
    workers_record(d->workers, record);
    d->ops->put_rows(d, &s.y, &s.x, s.ints);
    d->ops->add_scaled(d, &s.y, &s.x, 2, s.ints, s.more);
    workers_record(d->workers, NULL);
    expect_same(&s.y, &s.want);
    s.ints[1] = 4, s.more[1] = 5; /* a row put in place, then twice x's added */
    s.more[3] = 0;                /* only added */
    workers_replay(d->workers, record);
    for (int c = 0; c < 100; c++) {
      tensor_row(&s.want, 1)[c] = tensor_row(&s.x, 4)[c];
    }
    d->kern->add_scaled(tensor_row(&s.want, 1), tensor_row(&s.x, 1), 2, 100);
    d->kern->add_scaled(tensor_row(&s.want, 3), tensor_row(&s.x, 3), 2, 100);
    expect_same(&s.y, &s.want);
    free_set(&s);
  }
  record_delete(record);
}

/* --- rope ---------------------------------------------------------------------------------------------------------------- */

static void rope_of_two_axes(void **state) {
  (void)state;
  uint64_t rand = 6;
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    for (int n = 0; n < 12; n++) {
      int half = (int[]){2, 8, 16, 32, 36, 40}[n % 6], heads = test_rand_int(&rand, 1, 5), rows = test_rand_int(&rand, 1, ROWS_MOST);
      struct tensor q = new_tensor(d, rows, 2 * half * heads, &rand), before = copy_of(d, &q);
      struct rope_table x, y;
      struct err e = {0};
      int32_t at_x[ROWS_MOST], at_y[ROWS_MOST];
      for (int r = 0; r < rows; r++) at_x[r] = test_rand_int(&rand, 0, 60), at_y[r] = test_rand_int(&rand, 0, 60);
      assert_int_equal(d->ops->rope_init(d, &x, half, 100, 1, 1, &e) | d->ops->rope_init(d, &y, half, 100, 1, 1, &e), 0);
      d->ops->rope_step(d, &x, at_x, rows);
      d->ops->rope_step(d, &y, at_y, rows);
      d->ops->rope2d(d, &q, heads, &x, &y);
      for (int r = 0; r < rows; r++) {
        for (int c = 0; c < q.cols; c += half) {
          int place = c / half % 2 ? at_y[r] : at_x[r];
          for (int p = 0; p < half / 2; p++) {
            double angle = place * pow(100, -2.0 * p / half), a = (double)tensor_row(&before, r)[c + p],
                   b = (double)tensor_row(&before, r)[c + p + half / 2];
            assert_true(fabs((double)tensor_row(&q, r)[c + p] - (a * cos(angle) - b * sin(angle))) < 2e-5);
            assert_true(fabs((double)tensor_row(&q, r)[c + p + half / 2] - (b * cos(angle) + a * sin(angle))) < 2e-5);
          }
        }
      }
      d->ops->rope_free(d, &x);
      d->ops->rope_free(d, &y);
      d->ops->free(d, &q);
      d->ops->free(d, &before);
    }
  }
}

/* Llama 3's bands: theta 500000, 128 wide, factor 8, low 1, high 4, 8192 tokens; and a small one whose bands are all met. */
static void bands_of_rope(void **state) {
  (void)state;
  static const struct {
    int pair;
    double before, after;
  } known[] = {{28, 3.21144599e-3, 3.21144599e-3}, {29, 2.61609925e-3, 2.16657076e-3}, {30, 2.13111954e-3, 1.37189357e-3},
               {32, 1.41421356e-3, 5.24846161e-4}, {35, 7.64496988e-4, 9.55621235e-5}, {63, 2.45514079e-6, 3.06892599e-7}};
  struct device *d = devices[0];
  struct rope_table t;
  struct err e = {0};
  assert_int_equal(d->ops->rope_init(d, &t, 128, 500000, 1, 1, &e), 0);
  for (size_t i = 0; i < ARRAY_LEN(known); i++) assert_true(fabs((double)t.inv_freq[known[i].pair] / known[i].before - 1) < 1e-6);
  d->ops->rope_bands(d, &t, 8, 1, 4, 8192);
  for (size_t i = 0; i < ARRAY_LEN(known); i++) assert_true(fabs((double)t.inv_freq[known[i].pair] / known[i].after - 1) < 1e-6);
  d->ops->rope_free(d, &t);
  assert_int_equal(d->ops->rope_init(d, &t, 8, 1e4, 1, 1, &e), 0);
  d->ops->rope_bands(d, &t, 8, 1, 4, 64);
  static const double small[] = {1, 0.013042256, 0.00125, 0.000125};
  for (int i = 0; i < 4; i++) assert_true(fabs((double)t.inv_freq[i] / small[i] - 1) < 1e-6);
  d->ops->rope_free(d, &t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(layernorm),        cmocka_unit_test(activations),   cmocka_unit_test(activations_over_their_range),
    cmocka_unit_test(simple_ones),      cmocka_unit_test(operations),    cmocka_unit_test(replays_read_what_is_there_then),
    cmocka_unit_test(rope_of_two_axes), cmocka_unit_test(bands_of_rope),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
