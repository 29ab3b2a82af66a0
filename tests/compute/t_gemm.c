/* t_gemm.c — matrix products of every weight type at every level that this machine (or the emulation) can run.
 *
 * Oracle: float64 sums over the same quantised activations and the dequantised weights. Errors are measured against the sum of |products| of that
 * output, so that cancellation does not loosen the bound.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "compute/gemm_tiles.h"

static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,  DTYPE_Q8_0,
                                   DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS};
#define EACH_LEVEL(k)                                                                                                                      \
  for (int level_ = 0; kern_variant(level_); level_++)                                                                                     \
    for (const struct kern *k = kern_variant(level_); k; k = NULL)

static uint64_t seed = 7;

/* --- building cases --------------------------------------------------------------------------------------------------- */

/* Where a block keeps its f16 fields. */
static const struct {
  int n, at[2];
} halves[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = {1, {0}},    [DTYPE_Q4_1] = {2, {0, 2}},   [DTYPE_Q5_0] = {1, {0}},   [DTYPE_Q5_1] = {2, {0, 2}},
    [DTYPE_Q8_0] = {1, {0}},    [DTYPE_Q2_K] = {2, {80, 82}}, [DTYPE_Q3_K] = {1, {108}}, [DTYPE_Q4_K] = {2, {0, 2}},
    [DTYPE_Q5_K] = {2, {0, 2}}, [DTYPE_Q6_K] = {1, {208}},    [DTYPE_IQ4_NL] = {1, {0}}, [DTYPE_IQ4_XS] = {1, {0}},
};

enum fill { RANDOM, ALL_ONES, ALL_ZEROS, TOP_BITS }; /* bits of the codes; top bits: the lowest code where codes are signed bytes */

static void *guarded(size_t n_bytes) { return test_guard_alloc(MAX(n_bytes, (size_t)1)); }
static void unguarded(void *p, size_t n_bytes) { test_guard_free(p, MAX(n_bytes, (size_t)1)); }

static void fill_weight(struct weight *w, enum dtype t, int rows, int cols, enum fill fill) {
  memset(w, 0, sizeof *w);
  w->dtype = t;
  w->rows = rows;
  w->cols = cols;
  assert_true(dtype_row_bytes(t, (size_t)cols, &w->row_bytes));
  uint8_t *p = guarded((size_t)rows * w->row_bytes);
  w->source = p;
  size_t block = (size_t)dtype_info(t)->block_bytes;
  for (size_t i = 0; i < (size_t)rows * w->row_bytes; i += block) {
    if (!dtype_info(t)->quantised) {
      float v = fill == RANDOM ? test_rand_normal(&seed) : fill == ALL_ONES ? 1.0f : 0.0f;
      dtype_from_f32(t, &v, p + i, 1);
      continue;
    }
    for (size_t j = 0; j < block; j++)
      p[i + j] = fill == RANDOM ? (uint8_t)test_rand(&seed) : fill == ALL_ONES ? 255 : fill == TOP_BITS ? 128 : 0;
    if (t == DTYPE_Q6_K && fill != RANDOM) memset(p + i + 192, fill == ALL_ONES ? 127 : 128, 16); /* scales at their ends: 127, -128 */
    for (int h = 0; h < halves[t].n; h++) {
      float v = 0.01f * (fill == RANDOM ? test_rand_normal(&seed) : 1.0f);
      uint16_t half = f32_to_f16(v);
      memcpy(p + i + halves[t].at[h], &half, 2);
    }
  }
}

static void pack(const struct kern *k, struct weight *w) {
  w->packed_bytes = gemm_packed_bytes(k, w);
  if (!w->packed_bytes) return;
  w->packed = guarded(w->packed_bytes);
  memset(w->packed, 0xaa, w->packed_bytes);
  gemm_pack(k, NULL, w);
}

static void unpack_free(struct weight *w) {
  if (w->packed) unguarded(w->packed, w->packed_bytes);
  w->packed = NULL;
}
static void weight_free(struct weight *w) {
  unpack_free(w);
  unguarded((void *)(size_t)w->source, (size_t)w->rows * w->row_bytes);
}

/* The last row ends at an inaccessible page. */
static size_t tensor_bytes(const struct tensor *t) { return (size_t)(t->rows - 1) * t->row_bytes + (size_t)t->cols * sizeof(float); }
static struct tensor tensor_new(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * sizeof(float), 64)};
  t.data = guarded(tensor_bytes(&t));
  memset(t.data, 0x55, tensor_bytes(&t));
  return t;
}
static void tensor_delete(struct tensor *t, int rows) {
  struct tensor whole = tensor_rows(*t, rows);
  unguarded(t->data, tensor_bytes(&whole));
}
static void fill_x(struct tensor *x) {
  for (int r = 0; r < x->rows; r++)
    for (int c = 0; c < x->cols; c++) tensor_row(x, r)[c] = test_rand_normal(&seed) * (c % 97 == 3 ? 20.0f : 1.0f);
}

static void run(const struct kern *k, struct workers *workers, int n_w, struct weight *w, struct tensor *y, const struct tensor *x) {
  const struct weight *pw[8];
  struct tensor *py[8];
  struct gemm_scratch s = {.rows_max = x->rows, .cols_max = x->cols, .n_workers = workers_count(workers)};
  s.n_bytes = gemm_scratch_bytes(s.rows_max, s.cols_max, s.n_workers);
  s.data = guarded(s.n_bytes);
  memset(s.data, 0xff, s.n_bytes);
  for (int i = 0; i < n_w; i++) {
    pw[i] = &w[i];
    py[i] = &y[i];
  }
  gemm(k, workers, &s, n_w, pw, py, x);
  unguarded(s.data, s.n_bytes);
}

/* --- the oracle ------------------------------------------------------------------------------------------------------- */

/* What the level makes of a row of x before it multiplies. */
static void as_seen(const struct kern *k, enum dtype t, const float *x, double *out, int n) {
  for (int c = 0; c < n; c++) out[c] = x[c];
  if (k->isa == ISA_REF) return;
  if (gemm_on_tiles(k, t)) {
    for (int c = 0; c < n; c++) out[c] = (double)bf16_to_f32(f32_to_bf16(x[c] * GEMM_TILES_X_SCALE)) / (double)GEMM_TILES_X_SCALE;
    return;
  }
  if (!dtype_info(t)->quantised) {
    for (int c = 0; t == DTYPE_BF16 && k->gemm->bf16_row && c < n; c++) out[c] = bf16_to_f32(f32_to_bf16(x[c]));
    return;
  }
  for (int b = 0; b < n; b += 32) {
    float top = 0;
    for (int c = b; c < b + 32; c++) top = fmaxf(top, fabsf(x[c]));
    for (int c = b; c < b + 32; c++) out[c] = top > 0 ? (double)(top / 127) * rintf(x[c] * (127 / top)) : 0;
  }
}

/* What it makes of a row of weights. */
static void weights_as_seen(const struct kern *k, const struct weight *w, int r, float *out) {
  if (gemm_on_tiles(k, w->dtype)) gemm_tiles_row(w, r / GEMM_PANEL, r % GEMM_PANEL, out);
  else dtype_to_f32(w->dtype, (const char *)w->source + (size_t)r * w->row_bytes, out, (size_t)w->cols);
}

/* Greatest error over the sum of |products|. */
static double worst_error(const struct kern *k, const struct weight *w, const struct tensor *y, const struct tensor *x) {
  size_t n = (size_t)w->cols;
  float *row = xmalloc(n * sizeof *row);
  double *seen = xmalloc(n * sizeof *seen * (size_t)x->rows), worst = 0;
  for (int i = 0; i < x->rows; i++) as_seen(k, w->dtype, tensor_row(x, i), seen + (size_t)i * n, w->cols);
  for (int r = 0; r < w->rows; r++) {
    weights_as_seen(k, w, r, row);
    for (int i = 0; i < x->rows; i++) {
      double sum = 0, size = 1e-30;
      for (size_t c = 0; c < n; c++) {
        sum += seen[(size_t)i * n + c] * row[c];
        size += fabs(seen[(size_t)i * n + c] * row[c]);
      }
      double error = fabs(sum - tensor_row(y, i)[r]) / size;
      if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
  }
  free(row);
  free(seen);
  return worst;
}

/* --- tests ------------------------------------------------------------------------------------------------------------ */

static int random_cols(enum dtype t, int blocks_max) {
  int block = dtype_info(t)->block_elems;
  return block == 1 ? test_rand_int(&seed, 1, 33 * blocks_max)
                    : block * test_rand_int(&seed, 1, block == 256 ? div_up(blocks_max, 4) : blocks_max);
}

static void test_pack_unpack(void **state) {
  (void)state;
  EACH_LEVEL(k) {
    if (k->isa == ISA_REF) continue;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
      for (int n = 0; n < 6; n++) {
        struct weight w;
        fill_weight(&w, types[i], test_rand_int(&seed, 1, 40), random_cols(types[i], 5), RANDOM);
        pack(k, &w);
        float *want = xmalloc((size_t)w.cols * 4), *got = xmalloc((size_t)w.cols * 4);
        for (int r = 0; r < w.rows; r++) {
          dtype_to_f32(w.dtype, (const char *)w.source + (size_t)r * w.row_bytes, want, (size_t)w.cols);
          gemm_weight_row(k, &w, r, got);
          assert_memory_equal(want, got, (size_t)w.cols * 4);
        }
        free(want);
        free(got);
        weight_free(&w);
      }
  }
}

static void test_oracle(void **state) {
  (void)state;
  EACH_LEVEL(k) {
    double worst = 0;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
      for (int n = 0; n < 12; n++) {
        struct weight w;
        fill_weight(&w, types[i], test_rand_int(&seed, 1, 70), random_cols(types[i], n == 0 ? 80 : 12), RANDOM);
        struct tensor x = tensor_new(test_rand_int(&seed, 1, n < 4 ? 1 : 23), w.cols), y = tensor_new(x.rows, w.rows);
        fill_x(&x);
        pack(k, &w);
        run(k, NULL, 1, &w, &y, &x);
        double error = worst_error(k, &w, &y, &x);
        if (error > 1e-6) fail_msg("%s %s [%d, %d] x %d rows: error %g", k->name, dtype_info(w.dtype)->name, w.rows, w.cols, x.rows, error);
        worst = MAX(worst, error);
        tensor_delete(&x, x.rows);
        tensor_delete(&y, y.rows);
        weight_free(&w);
      }
    printf("%s: greatest error / sum of |products| %.2g\n", k->name, worst);
  }
}

/* On tiles the order of all operations is known (tiles_amx.h), so plain C gives the same bits. */
static float as_tiles_add(const float *w, const float *x, int n) {
  float sum = 0;
  for (int b = 0; b < n; b += GEMM_BLOCK) {
    float part[2] = {0, 0};
    for (int pair = 0; pair < GEMM_BLOCK / 2; pair++) { /* of each four k: 0 and 2, then 1 and 3 */
      int k = b + pair / 2 * 4 + pair % 2;
      for (int i = 0; i < 2; i++)
        if (k + 2 * i < n) part[i] = fmaf(bf16_to_f32(f32_to_bf16(x[k + 2 * i])), w[k + 2 * i], part[i]);
    }
    sum += part[0] + part[1];
  }
  return sum;
}

static void test_tiles_to_the_bit(void **state) {
  static const struct {
    int rows_min, rows_max, blocks_max;
  } cases[] = {{1, 1, 80}, {1, 1, 1}, {1, 16, 80}, {1, 16, 12}, {1, 16, 1}, {17, 40, 80}, {17, 40, 12}, {17, 40, 1}};
  (void)state;
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types) && k->gemm->tiles; i++)
      for (size_t n = 0; n < ARRAY_LEN(cases) && gemm_on_tiles(k, types[i]); n++) {
        struct weight w;
        fill_weight(&w, types[i], test_rand_int(&seed, 1, 72), random_cols(types[i], cases[n].blocks_max), RANDOM);
        struct tensor x = tensor_new(test_rand_int(&seed, cases[n].rows_min, cases[n].rows_max), w.cols), y = tensor_new(x.rows, w.rows);
        fill_x(&x);
        pack(k, &w);
        run(k, NULL, 1, &w, &y, &x);
        float *row = xmalloc((size_t)w.cols * sizeof *row);
        for (int r = 0; r < w.rows; r++) {
          gemm_tiles_row(&w, r / GEMM_PANEL, r % GEMM_PANEL, row);
          for (int j = 0; j < x.rows; j++) {
            float want = as_tiles_add(row, tensor_row(&x, j), w.cols), got = tensor_row(&y, j)[r];
            if (memcmp(&want, &got, sizeof want))
              fail_msg("%s [%d, %d] row %d of %d, output %d: %a instead of %a", dtype_info(w.dtype)->name, w.rows, w.cols, j, x.rows, r,
                       (double)got, (double)want);
          }
        }
        free(row);
        tensor_delete(&x, x.rows);
        tensor_delete(&y, y.rows);
        weight_free(&w);
      }
  }
}

/* Weights as tiles see them: 8 bits of each, and nothing lost but what is far below the greatest that a row's scales allow, however small the row is
 * beside others of its panel. */
static void test_tiles_keep_weights(void **state) {
  (void)state;
  enum { COLS = 512 };
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types) && k->gemm->tiles; i++) {
      if (!gemm_on_tiles(k, types[i]) || !dtype_info(types[i])->quantised) continue;
      struct weight w;
      fill_weight(&w, types[i], 16, COLS, RANDOM);
      size_t block = (size_t)dtype_info(types[i])->block_bytes;
      for (int r = 0; r < w.rows; r++)
        for (size_t at = 0; at < w.row_bytes; at += block)
          for (int h = 0; h < halves[types[i]].n; h++) {
            float scale = ldexpf((float)test_rand_int(&seed, 64, 127), r < 8 ? r : -r); /* 2^22 between rows */
            memcpy((char *)(size_t)w.source + (size_t)r * w.row_bytes + at + (size_t)halves[types[i]].at[h], &(uint16_t){f32_to_f16(scale)},
                   2);
          }
      pack(k, &w);
      float want[COLS], got[COLS];
      for (int r = 0; r < w.rows; r++) {
        dtype_to_f32(w.dtype, (const char *)w.source + (size_t)r * w.row_bytes, want, COLS);
        gemm_tiles_row(&w, 0, r, got);
        float top = 0;
        for (int c = 0; c < COLS; c++) top = fmaxf(top, fabsf(want[c]));
        for (int c = 0; c < COLS; c++)
          if (!(fabsf(got[c] - want[c]) <= 0x1.1p-8f * fabsf(want[c]) + 0x1p-9f * top))
            fail_msg("%s: row %d, column %d: %g is %g, the row's greatest %g", dtype_info(w.dtype)->name, r, c, (double)want[c],
                     (double)got[c], (double)top);
      }
      weight_free(&w);
    }
  }
}

/* Against the reference level, whose activations are not rounded. */
static void test_near_reference(void **state) {
  (void)state;
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
      struct weight w;
      fill_weight(&w, types[i], 100, 512, RANDOM);
      struct tensor x = tensor_new(9, 512), y = tensor_new(9, 100), ref = tensor_new(9, 100);
      fill_x(&x);
      run(&kern_ref, NULL, 1, &w, &ref, &x);
      pack(k, &w);
      run(k, NULL, 1, &w, &y, &x);
      double sum = 0, diff = 0;
      for (int r = 0; r < 9; r++)
        for (int c = 0; c < 100; c++) {
          sum += pow(tensor_row(&ref, r)[c], 2);
          diff += pow(tensor_row(&ref, r)[c] - tensor_row(&y, r)[c], 2);
        }
      double bound = k->isa == ISA_REF ? 0 : dtype_info(types[i])->quantised ? 0.03 : 0.005;
      if (sqrt(diff / sum) > bound)
        fail_msg("%s %s: distance from the reference %g", k->name, dtype_info(types[i])->name, sqrt(diff / sum));
      tensor_delete(&x, 9);
      tensor_delete(&y, 9);
      tensor_delete(&ref, 9);
      weight_free(&w);
    }
  }
}

/* A row alone gives the same bits as among others, whatever the number of rows and threads. */
static void test_same_bits(void **state) {
  (void)state;
  enum { ROWS = 40 };
  struct workers *pools[3] = {NULL, workers_new(2, NULL), workers_new(3, NULL)};
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
      struct weight w;
      int cols = dtype_info(types[i])->block_elems == 256 ? 1280 : 1120 + (dtype_info(types[i])->block_elems == 1);
      fill_weight(&w, types[i], 37, cols, RANDOM);
      struct tensor x = tensor_new(ROWS, cols), alone = tensor_new(ROWS, w.rows), y = tensor_new(ROWS, w.rows);
      fill_x(&x);
      pack(k, &w);
      for (int r = 0; r < ROWS; r++) {
        struct tensor xr = tensor_rows(x, 1), yr = tensor_rows(alone, 1);
        xr.data = tensor_row(&x, r);
        yr.data = tensor_row(&alone, r);
        run(k, NULL, 1, &w, &yr, &xr);
      }
      for (int n = 1; n <= ROWS; n++) {
        if (TEST_LESS > 1 && n > 3 && n % 8 > 1) continue;
        struct tensor xn = tensor_rows(x, n), yn = tensor_rows(y, n);
        run(k, pools[n % 3], 1, &w, &yn, &xn);
        for (int r = 0; r < n; r++)
          if (memcmp(tensor_row(&yn, r), tensor_row(&alone, r), (size_t)w.rows * sizeof(float)))
            fail_msg("%s %s: row %d differs beside %d others", k->name, dtype_info(types[i])->name, r, n - 1);
      }
      tensor_delete(&x, ROWS);
      tensor_delete(&y, ROWS);
      tensor_delete(&alone, ROWS);
      weight_free(&w);
    }
  }
  workers_delete(pools[1]);
  workers_delete(pools[2]);
}

/* More rows than one tile, several weights of different types in one call, two threads. */
static void test_many(void **state) {
  (void)state;
  enum { ROWS = 301, COLS = 512 };
  struct workers *workers = workers_new(2, NULL);
  static const enum dtype mixes[][3] = {
      {DTYPE_Q5_0, DTYPE_Q8_0, DTYPE_Q4_K}, {DTYPE_BF16, DTYPE_Q6_K, DTYPE_F16}, {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_IQ4_XS}};
  EACH_LEVEL(k) {
    for (size_t m = 0; m < ARRAY_LEN(mixes); m++) {
      struct weight w[3];
      struct tensor x = tensor_new(ROWS, COLS), y[3];
      fill_x(&x);
      for (int i = 0; i < 3; i++) {
        fill_weight(&w[i], mixes[m][i], 16 * i + 5, COLS, RANDOM);
        pack(k, &w[i]);
        y[i] = tensor_new(ROWS, w[i].rows);
      }
      run(k, workers, 3, w, y, &x);
      for (int i = 0; i < 3; i++) {
        double error = worst_error(k, &w[i], &y[i], &x);
        if (error > 1e-6) fail_msg("%s %s among others: error %g", k->name, dtype_info(w[i].dtype)->name, error);
        static const int some[] = {0, 1, 15, 16, 47, 63, 64, 128, 200, 255, 256, 285, 300}; /* at edges of groups, tiles and passes */
        for (size_t j = 0; j < ARRAY_LEN(some); j++) {
          struct tensor xr = tensor_rows(x, 1), alone = tensor_new(1, w[i].rows);
          xr.data = tensor_row(&x, some[j]);
          run(k, NULL, 1, &w[i], &alone, &xr);
          if (memcmp(tensor_row(&alone, 0), tensor_row(&y[i], some[j]), (size_t)w[i].rows * sizeof(float)))
            fail_msg("%s %s: row %d differs among many", k->name, dtype_info(w[i].dtype)->name, some[j]);
          tensor_delete(&alone, 1);
        }
        tensor_delete(&y[i], ROWS);
        weight_free(&w[i]);
      }
      tensor_delete(&x, ROWS);
    }
  }
  workers_delete(workers);
}

/* So many panels that few rows go over them in items of many sizes, which end in the middle of weights: the bits of one thread, and each panel once. */
static void test_tapered(void **state) {
  (void)state;
  enum { COLS = 64 };
  static const int heights[] = {801, 40, 330, 7};
  static const enum dtype mix[] = {DTYPE_Q4_0, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q5_0};
  struct workers *workers = workers_new(2, NULL);
  EACH_LEVEL(k) {
    for (int rows = 5; rows <= 16; rows += 11) {
      struct weight w[4];
      struct tensor x = tensor_new(rows, COLS), y[4], alone[4];
      fill_x(&x);
      for (int i = 0; i < 4; i++) {
        fill_weight(&w[i], mix[i], heights[i], COLS, RANDOM);
        pack(k, &w[i]);
        y[i] = tensor_new(rows, heights[i]);
        alone[i] = tensor_new(rows, heights[i]);
      }
      run(k, workers, 4, w, y, &x);
      for (int i = 0; i < 4; i++) run(k, NULL, 1, &w[i], &alone[i], &x);
      for (int i = 0; i < 4; i++) {
        for (int r = 0; r < rows; r++)
          if (memcmp(tensor_row(&y[i], r), tensor_row(&alone[i], r), (size_t)heights[i] * sizeof(float)))
            fail_msg("%s %s: row %d of %d differs among other weights", k->name, dtype_info(mix[i])->name, r, rows);
        tensor_delete(&y[i], rows);
        tensor_delete(&alone[i], rows);
        weight_free(&w[i]);
      }
      tensor_delete(&x, rows);
    }
  }
  workers_delete(workers);
}

/* So wide that k is gone through in passes on tiles, several panels in each, and results go past the caches: the bits of a row alone, and nothing beside y's columns. */
static void test_passes(void **state) {
  (void)state;
  enum { ROWS = 128, PANELS = 16, ROW_BYTES = 4160 };
  static const enum dtype passed[] = {DTYPE_Q4_0, DTYPE_Q4_K, DTYPE_BF16};
  static const int some[] = {0, 31, 32, 100, 127};
  EACH_LEVEL(k) {
    for (size_t i = 0; i<ARRAY_LEN(passed); i += TEST_LESS> 1 ? 2 : 1) {
      struct weight w;
      fill_weight(&w, passed[i], PANELS * GEMM_PANEL - (i == 0 ? 3 : 0), passed[i] == DTYPE_Q4_K ? 5376 : 5216, RANDOM);
      struct tensor x = tensor_new(ROWS, w.cols), y = tensor_new(ROWS, ROW_BYTES / (int)sizeof(float)), yw = y;
      yw.cols = w.rows;
      fill_x(&x);
      pack(k, &w);
      run(k, NULL, 1, &w, &yw, &x);
      for (size_t j = 0; j < ARRAY_LEN(some); j++) {
        struct tensor xr = tensor_rows(x, 1), alone = tensor_new(1, w.rows);
        xr.data = tensor_row(&x, some[j]);
        run(k, NULL, 1, &w, &alone, &xr);
        if (memcmp(tensor_row(&alone, 0), tensor_row(&y, some[j]), (size_t)w.rows * sizeof(float)))
          fail_msg("%s %s: row %d differs among many", k->name, dtype_info(w.dtype)->name, some[j]);
        tensor_delete(&alone, 1);
      }
      for (int r = 0; r < ROWS; r++)
        for (int c = w.rows * (int)sizeof(float); c < ROW_BYTES; c++) assert_int_equal(((char *)tensor_row(&y, r))[c], 0x55);
      tensor_delete(&x, ROWS);
      tensor_delete(&y, ROWS);
      weight_free(&w);
    }
  }
}

/* Rows of x as the levels with vpdpbusd keep them (gemm_vnni.h), number by number: any number of blocks, in groups, with blocks of nothing, of almost nothing
 * and of what is no number. */
static void test_codes_of_rows(void **state) {
  (void)state;
  enum { BLOCKS_MAX = 37 };
  EACH_LEVEL(k) {
    if (!strstr(k->name, "vnni") && k->isa != ISA_AVX512) continue;
    if (!k->gemm->quantise_row) continue;
    for (int n_blocks = 1; n_blocks <= BLOCKS_MAX; n_blocks++)
      for (int group = 1; group <= 8; group += 7) {
        const size_t n = (size_t)n_blocks * GEMM_BLOCK, places = ((size_t)(n_blocks - 1) * (size_t)group + 1) * GEMM_BLOCK;
        float *x = guarded(n * sizeof *x);
        int8_t *codes = guarded(places);
        struct gemm_block *blocks = guarded(places / GEMM_BLOCK * sizeof *blocks);
        memset(codes, 0x55, places);
        for (size_t i = 0; i < n; i++) x[i] = test_rand_normal(&seed);
        for (int b = 0; b < n_blocks; b++) {
          float *at = x + b * GEMM_BLOCK;
          const int kind = test_rand_int(&seed, 0, 9), place = test_rand_int(&seed, 0, GEMM_BLOCK - 1);
          if (kind == 0) at[place] = NAN;
          if (kind == 1) at[place] = -INFINITY;
          for (int i = 0; i < GEMM_BLOCK && kind >= 2 && kind <= 4; i++) at[i] *= kind == 2 ? 0 : kind == 3 ? 0x1p-124f : 0x1p-110f;
        }
        k->gemm->quantise_row(codes, blocks, group, x, (int)n);
        for (int b = 0; b < n_blocks; b++) {
          float top = 0, d, scale, got[4];
          bool bad = false;
          int sums[2] = {0, 0};
          for (int i = 0; i < GEMM_BLOCK; i++) top = fmaxf(top, fabsf(x[b * GEMM_BLOCK + i])), bad |= !isfinite(x[b * GEMM_BLOCK + i]);
          d = bad ? NAN : top < 0x1p-120f ? 0 : top / 127, scale = d > 0 ? 127 / top : 0;
          for (int i = 0; i < GEMM_BLOCK; i++) {
            int code = scale > 0 ? (int)lrintf(x[b * GEMM_BLOCK + i] * scale) : 0;
            sums[i / 16] -= code;
            if ((uint8_t)codes[b * group * GEMM_BLOCK + i] != code + 128)
              fail_msg("%s: %d blocks, block %d, number %d: code %d, expected %d", k->name, n_blocks, b, i,
                       (uint8_t)codes[b * group * GEMM_BLOCK + i], code + 128);
          }
          memcpy(got, &blocks[b * group], sizeof got);
          const float want[4] = {d, (float)(sums[0] + sums[1]), (float)sums[0], (float)sums[1]};
          for (int i = 0; i < 4; i++) assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
        }
        for (size_t i = 0; i < places; i++) assert_true(i / GEMM_BLOCK % (size_t)group == 0 || codes[i] == 0x55);
        unguarded(x, n * sizeof *x);
        unguarded(codes, places);
        unguarded(blocks, places / GEMM_BLOCK * sizeof *blocks);
      }
  }
}

/* Codes on tiles are denormal numbers, whose products with x have 16 powers of two less (gemm_tiles.h). */
static float smallest(const struct kern *k, enum dtype t) {
  bool denormal = gemm_on_tiles(k, t) && dtype_info(t)->quantised && gemm_tiles_scale_bits(gemm_format_of(t)) > 0;
  return denormal ? 0x1p-84f : 1e-30f;
}

/* Codes, scales and activations at their ends: nothing may saturate, and what wraps must come back. */
static void test_extremes(void **state) {
  (void)state;
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
      for (int fill = RANDOM; fill <= TOP_BITS; fill++)
        for (int kind = 0; kind < 5; kind++)
          for (int rows = 1; rows <= 5; rows += 4) {
            struct weight w;
            fill_weight(&w, types[i], 18, 512, (enum fill)fill);
            struct tensor x = tensor_new(rows, 512), y = tensor_new(rows, 18);
            for (int r = 0; r < rows; r++)
              for (int c = 0; c < 512; c++)
                tensor_row(&x, r)[c] = kind == 0   ? 1.0f                                          /* all 127 */
                                       : kind == 1 ? -1.0f                                         /* all -127 */
                                       : kind == 2 ? (c % 2 ? 1.0f : -1.0f)                        /* alternating */
                                       : kind == 3 ? (c / 32 % 2 ? 0.0f : test_rand_normal(&seed)) /* blocks of zeros */
                                                   : test_rand_normal(&seed) * smallest(k, types[i]);
            pack(k, &w);
            run(k, NULL, 1, &w, &y, &x);
            double error = worst_error(k, &w, &y, &x);
            if (error > 1e-6) fail_msg("%s %s fill %d x %d: error %g", k->name, dtype_info(w.dtype)->name, fill, kind, error);
            tensor_delete(&x, rows);
            tensor_delete(&y, rows);
            weight_free(&w);
          }
  }
}

/* NaN or infinity in x reaches every output of its row and no other row. So does a NaN scale of a weight row. */
static void test_not_finite(void **state) {
  (void)state;
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  EACH_LEVEL(k) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
      for (int b = 0; b < 3; b++)
        for (int n = 0; n < 3; n++) {
          const int rows = n == 0 ? 1 : n == 1 ? 6 : 22;
          struct weight w;
          fill_weight(&w, types[i], 21, 512, RANDOM);
          struct tensor x = tensor_new(rows, 512), y = tensor_new(rows, 21);
          fill_x(&x);
          int row = test_rand_int(&seed, 0, rows - 1);
          tensor_row(&x, row)[test_rand_int(&seed, 0, 511)] = bad[b];
          pack(k, &w);
          run(k, NULL, 1, &w, &y, &x);
          for (int r = 0; r < rows; r++)
            for (int c = 0; c < 21; c++) assert_int_equal(isfinite(tensor_row(&y, r)[c]) != 0, r != row);
          tensor_delete(&x, rows);
          tensor_delete(&y, rows);
          weight_free(&w);
        }
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
      if (!halves[types[i]].n) continue;
      struct weight w;
      fill_weight(&w, types[i], 21, 512, RANDOM);
      memcpy((char *)(size_t)w.source + 7 * w.row_bytes + (size_t)halves[types[i]].at[0], &(uint16_t){0x7e00}, 2);
      struct tensor x = tensor_new(3, 512), y = tensor_new(3, 21);
      fill_x(&x);
      pack(k, &w);
      run(k, NULL, 1, &w, &y, &x);
      for (int r = 0; r < 3; r++)
        for (int c = 0; c < 21; c++) assert_int_equal(isnan(tensor_row(&y, r)[c]) != 0, c == 7);
      tensor_delete(&x, 3);
      tensor_delete(&y, 3);
      weight_free(&w);
    }
  }
}

static void test_supports(void **state) {
  (void)state;
  EACH_LEVEL(k) {
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) assert_true(gemm_supports(k, types[i], 512, &e));
    assert_true(gemm_supports(k, DTYPE_BF16, 3, &e));
    assert_false(gemm_supports(k, DTYPE_I32, 512, &e));
    assert_non_null(strstr(e.msg, "I32"));
    assert_false(gemm_supports(k, DTYPE_Q4_K, 32, &e));
    assert_non_null(strstr(e.msg, "256"));
  }
}

static void test_select(void **state) {
  (void)state;
  struct err e = {0};
  const struct kern *best = kern_select(ISA_AUTO, &e);
  assert_non_null(best);
  assert_true(kern_available(best->isa));
  static const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  EACH_LEVEL(k) assert_true(kern_available(k->isa));
  for (size_t i = 0; i < ARRAY_LEN(levels); i++)
    if (!kern_available(levels[i])) {
      assert_null(kern_select(levels[i], &e));
      assert_non_null(strstr(e.msg, "--isa"));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pack_unpack),
    cmocka_unit_test(test_oracle),
    cmocka_unit_test(test_tiles_to_the_bit),
    cmocka_unit_test(test_tiles_keep_weights),
    cmocka_unit_test(test_near_reference),
    cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_many),
    cmocka_unit_test(test_tapered),
    cmocka_unit_test(test_passes),
    cmocka_unit_test(test_codes_of_rows),
    cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_not_finite),
    cmocka_unit_test(test_supports),
    cmocka_unit_test(test_select),
};

TEST_MAIN(tests)
