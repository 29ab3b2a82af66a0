/* t_cpu.c — every operation of the CPU device against loops, with one thread and several, to the same bits. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/device.h"

enum { ROWS_MOST = 96, COLS_MOST = 1024 };

static struct device *devices[8];
static int n_devices;

static int start(void **state) {
  (void)state;
  static const enum isa isas[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
    for (int threads = 1; threads <= 3; threads += 2) { /* even indices have one thread; the next has the same kernels and three */
      struct err e = {0};
      struct device_config c = {.isa = isas[i], .n_threads = threads, .rows_max = ROWS_MOST, .cols_max = COLS_MOST};
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

static struct tensor new_tensor(struct device *d, int rows, int cols, uint64_t *rand) {
  struct err e = {0};
  struct tensor t;
  if (d->ops->alloc(d, &t, rows, cols, "test", &e)) fail_msg("%s", e.msg);
  for (int r = 0; r < rows && rand; r++) {
    for (int c = 0; c < cols; c++) tensor_row(&t, r)[c] = test_rand_normal(rand);
  }
  return t;
}
static void expect_same(const struct tensor *a, const struct tensor *b) {
  for (int r = 0; r < a->rows; r++) assert_memory_equal(tensor_row(a, r), tensor_row(b, r), sizeof(float) * (size_t)a->cols);
}
static float *some_floats(int n, uint64_t *rand) {
  float *x = xcalloc((size_t)n, sizeof *x);
  for (int i = 0; i < n; i++) x[i] = test_rand_normal(rand);
  return x;
}

/* Shapes on both sides of what is worth a fork-join: few rows, many rows, one very wide row. */
static const struct shape { int rows, cols; } shapes[] = {{1, 8}, {3, 40}, {96, 1024 / TEST_LESS}, {1, 40000}, {2, 12000}, {50, 640}};

/* Run op on x with every device: each device's result must be that of its kernels called row by row, whatever the threads. */
typedef void (*op_fn)(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z);
typedef void (*row_fn)(const struct kern *k, float *y, const float *x, const float *z, int n);

static void compare_op(op_fn op, row_fn row) {
  uint64_t rand = 21;
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
      int rows = shapes[s].rows, cols = shapes[s].cols;
      struct tensor x = new_tensor(d, rows, cols, &rand), y = new_tensor(d, rows, cols, &rand), z = new_tensor(d, rows, cols, &rand);
      struct tensor want = new_tensor(d, rows, cols, NULL);
      memcpy(want.data, y.data, y.row_bytes * (size_t)rows);
      for (int r = 0; r < rows; r++) row(d->kern, tensor_row(&want, r), tensor_row(&x, r), tensor_row(&z, r), cols);
      mem_guard_begin("op");
      op(d, &y, &x, &z);
      mem_guard_end();
      expect_same(&y, &want);
      d->ops->free(d, &x);
      d->ops->free(d, &y);
      d->ops->free(d, &z);
      d->ops->free(d, &want);
    }
  }
}

static void op_add(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) { (void)z, d->ops->add(d, y, x); }
static void row_add(const struct kern *k, float *y, const float *x, const float *z, int n) { (void)z, k->add(y, x, n); }
static void op_scale(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  (void)z, d->ops->scale(d, y, x, 0.3f);
}
static void row_scale(const struct kern *k, float *y, const float *x, const float *z, int n) { (void)z, k->scale(y, x, 0.3f, n); }
static void op_gelu(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  d->ops->gated(d, y, x, z, ACT_GELU_TANH);
}
static void row_gelu(const struct kern *k, float *y, const float *x, const float *z, int n) { k->gated(y, x, z, ACT_GELU_TANH, n); }
static void op_silu(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  d->ops->gated(d, y, x, z, ACT_SILU);
}
static void row_silu(const struct kern *k, float *y, const float *x, const float *z, int n) { k->gated(y, x, z, ACT_SILU, n); }
static void op_softcap(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  (void)z, d->ops->softcap(d, y, x, 2);
}
static void row_softcap(const struct kern *k, float *y, const float *x, const float *z, int n) { (void)z, k->softcap(y, x, 2, n); }
static void op_groups(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  (void)z, d->ops->rmsnorm(d, y, x, NULL, 4, 1e-6f);
}
static void row_groups(const struct kern *k, float *y, const float *x, const float *z, int n) {
  (void)z;
  for (int g = 0; g < 4; g++) k->rmsnorm(y + g * (n / 4), x + g * (n / 4), NULL, n / 4, 1e-6f);
}
static void op_add_norm(struct device *d, struct tensor *y, const struct tensor *x, const struct tensor *z) {
  (void)z, d->ops->add_rmsnorm(d, y, x, NULL, 1e-6f);
}
static void row_add_norm(const struct kern *k, float *y, const float *x, const float *z, int n) {
  (void)z, k->add_rmsnorm(y, x, NULL, n, 1e-6f);
}

static void elementwise_operations(void **state) {
  (void)state;
  compare_op(op_add, row_add);
  compare_op(op_scale, row_scale);
  compare_op(op_gelu, row_gelu);
  compare_op(op_silu, row_silu);
  compare_op(op_softcap, row_softcap);
  compare_op(op_groups, row_groups);
  compare_op(op_add_norm, row_add_norm);
}

static void norm_with_a_weight(void **state) {
  (void)state;
  uint64_t rand = 22;
  float *w = some_floats(640, &rand);
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    struct tensor x = new_tensor(d, 60, 640, &rand), y = new_tensor(d, 60, 640, &rand), before = new_tensor(d, 60, 640, NULL);
    d->ops->rmsnorm(d, &before, &x, w, 1, 1e-6f);
    for (int r = 0; r < 60; r++) {
      double sum = 0;
      for (int c = 0; c < 640; c++) sum += (double)tensor_row(&x, r)[c] * (double)tensor_row(&x, r)[c];
      for (int c = 0; c < 640; c++) {
        double want = (double)tensor_row(&x, r)[c] / sqrt(sum / 640 + 1e-6) * (double)w[c];
        assert_true(fabs((double)tensor_row(&before, r)[c] - want) <= 1e-6 * fabs(want) + 1e-7);
      }
    }
    struct tensor sum = new_tensor(d, 60, 640, NULL);
    memcpy(sum.data, y.data, y.row_bytes * 60);
    d->ops->add_rmsnorm(d, &sum, &x, w, 1e-6f);
    for (int r = 0; r < 60; r++) {
      for (int c = 0; c < 640; c++) {
        double want = (double)tensor_row(&y, r)[c] + (double)tensor_row(&before, r)[c];
        assert_true(fabs((double)tensor_row(&sum, r)[c] - want) <= 1e-6 * (fabs(want) + fabs((double)tensor_row(&y, r)[c])));
      }
    }
    d->ops->rmsnorm(d, &x, &x, w, 1, 1e-6f); /* in place */
    expect_same(&x, &before);
    d->ops->free(d, &x);
    d->ops->free(d, &y);
    d->ops->free(d, &before);
    d->ops->free(d, &sum);
  }
  free(w);
}

static struct weight new_weight(enum dtype t, int rows, int cols, uint64_t *rand) {
  struct weight w = {.dtype = t, .rows = rows, .cols = cols};
  assert_true(dtype_row_bytes(t, (size_t)cols, &w.row_bytes));
  unsigned char *source = xcalloc((size_t)rows, w.row_bytes);
  for (int r = 0; r < rows; r++) {
    float *x = some_floats(cols, rand);
    dtype_from_f32(t, x, source + (size_t)r * w.row_bytes, (size_t)cols);
    free(x);
  }
  w.source = source;
  return w;
}

/* From a table's own bytes, and from the packed form of one that is also multiplied with: the same bits, and the bytes are not looked at. */
static void embedding(void **state) {
  (void)state;
  uint64_t rand = 23;
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_0};
  for (size_t t = 0; t < ARRAY_LEN(types); t++) {
    struct weight table = new_weight(types[t], 50, 320, &rand);
    for (int i = 0; i < n_devices; i++) {
      struct device *d = devices[i];
      struct tensor y = new_tensor(d, 80, 320, &rand);
      int32_t ids[80];
      for (int r = 0; r < 80; r++) ids[r] = test_rand_int(&rand, 0, 49);
      for (int scaled = 0; scaled < 2; scaled++) {
        float scale = scaled ? 25.25f : 1, want[320];
        d->ops->embed(d, &y, &table, ids, scale);
        struct weight bound = table;
        assert_int_equal(d->ops->weight_bind(d, &bound, 1, "table", NULL), 0);
        if (bound.packed) bound.source = NULL;
        struct tensor z = new_tensor(d, 80, 320, &rand);
        d->ops->embed(d, &z, &bound, ids, scale);
        for (int r = 0; r < 80; r++) {
          dtype_to_f32(types[t], (const char *)table.source + (size_t)ids[r] * table.row_bytes, want, 320);
          for (int c = 0; c < 320; c++) assert_true(tensor_row(&y, r)[c] == want[c] * scale);
          assert_memory_equal(tensor_row(&y, r), tensor_row(&z, r), sizeof want);
        }
        d->ops->free(d, &z);
        d->ops->weight_free(d, &bound, 1);
      }
      d->ops->free(d, &y);
    }
    free((void *)(uintptr_t)table.source);
  }
}

/* Rows longer than a piece, ids outside the table, and a part of the columns. */
static void embedding_added(void **state) {
  (void)state;
  uint64_t rand = 29;
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0};
  enum { WIDE = 6400, N = 20 };
  for (size_t t = 0; t < ARRAY_LEN(types); t++) {
    struct weight table = new_weight(types[t], 7, WIDE, &rand);
    float *want = xcalloc(WIDE, sizeof *want);
    for (int i = 0; i < n_devices; i++) {
      struct device *d = devices[i];
      static const int cuts[][2] = {{0, WIDE}, {256, 4096}, {7, 1100}, {6390, 10}, {33, 6000}};
      for (size_t cut = 0; cut < ARRAY_LEN(cuts); cut++) {
        int from = cuts[cut][0], cols = cuts[cut][1];
        struct tensor y = new_tensor(d, N, cols, &rand), before = new_tensor(d, N, cols, NULL);
        int32_t ids[N] = {0, 6, 7, -1, INT32_MAX, INT32_MIN};
        for (int r = 6; r < N; r++) ids[r] = test_rand_int(&rand, 0, 8);
        memcpy(before.data, y.data, y.row_bytes * N);
        mem_guard_begin("op");
        d->ops->embed_add(d, &y, &table, from, ids, 11.5f);
        mem_guard_end();
        for (int r = 0; r < N; r++) {
          int id = ids[r] >= 0 && ids[r] < 7 ? ids[r] : 0;
          dtype_to_f32(types[t], (const char *)table.source + (size_t)id * table.row_bytes, want, WIDE);
          for (int c = 0; c < cols; c++) assert_true(tensor_row(&y, r)[c] == tensor_row(&before, r)[c] + want[from + c] * 11.5f);
        }
        d->ops->free(d, &y);
        d->ops->free(d, &before);
      }
    }
    free(want);
    free((void *)(uintptr_t)table.source);
  }
}

/* Weights that are bound together lie in one block, and multiply as each alone. */
static void weights_in_one_block(void **state) {
  (void)state;
  uint64_t rand = 30;
  enum { N = 9 };
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    struct err e = {0};
    struct weight all[N], alone[N];
    struct tensor x = new_tensor(d, 3, 96, &rand), y = new_tensor(d, 3, 33, NULL), want = new_tensor(d, 3, 33, NULL);
    for (int n = 0; n < N; n++) all[n] = alone[n] = new_weight(n % 2 ? DTYPE_Q4_0 : DTYPE_BF16, 33, 96, &rand);
    if (d->ops->weight_bind(d, all, N, "experts", &e)) fail_msg("%s", e.msg);
    for (int n = 0; n < N; n++) {
      if (d->ops->weight_bind(d, &alone[n], 1, "one", &e)) fail_msg("%s", e.msg);
      if (n > 0 && all[n].packed) assert_ptr_equal(all[n].packed, (char *)all[n - 1].packed + all[n - 1].packed_bytes);
      d->ops->linear(d, 1, (const struct weight *[]){&all[n]}, (struct tensor *[]){&y}, &x);
      d->ops->linear(d, 1, (const struct weight *[]){&alone[n]}, (struct tensor *[]){&want}, &x);
      expect_same(&y, &want);
    }
    for (int n = 0; n < N; n++) {
      free((void *)(uintptr_t)all[n].source);
      d->ops->weight_free(d, &alone[n], 1);
    }
    d->ops->weight_free(d, all, N);
    struct tensor *t[] = {&x, &y, &want};
    for (size_t n = 0; n < ARRAY_LEN(t); n++) d->ops->free(d, t[n]);
  }
}

static void gather(void **state) {
  (void)state;
  uint64_t rand = 24;
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    struct tensor x = new_tensor(d, 90, 640, &rand), y = new_tensor(d, 90, 640, NULL);
    for (int n = 0; n <= 90; n += 45) {
      int32_t rows[90];
      for (int r = 0; r < n; r++) rows[r] = test_rand_int(&rand, 0, 89);
      struct tensor out = tensor_rows(y, n);
      d->ops->gather(d, &out, &x, rows);
      for (int r = 0; r < n; r++) assert_memory_equal(tensor_row(&y, r), tensor_row(&x, rows[r]), 640 * sizeof(float));
    }
    d->ops->free(d, &x);
    d->ops->free(d, &y);
  }
}

static void linear(void **state) {
  (void)state;
  uint64_t rand = 25;
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0};
  for (size_t t = 0; t < ARRAY_LEN(types); t++) {
    for (int i = 0; i < n_devices; i++) {
      struct device *d = devices[i];
      struct err e = {0};
      struct weight w[2] = {new_weight(types[t], 48, 256, &rand), new_weight(types[t], 80, 256, &rand)};
      struct tensor x = new_tensor(d, 20, 256, &rand), y[2] = {new_tensor(d, 20, 48, NULL), new_tensor(d, 20, 80, NULL)};
      for (int n = 0; n < 2; n++) {
        if (d->ops->weight_bind(d, &w[n], 1, "blk.0.w", &e)) fail_msg("%s", e.msg);
      }
      const struct weight *const ws[2] = {&w[0], &w[1]};
      struct tensor *const ys[2] = {&y[0], &y[1]};
      mem_guard_begin("linear");
      d->ops->linear(d, 2, ws, ys, &x);
      mem_guard_end();
      double tolerance = d->kern->isa == ISA_REF || types[t] == DTYPE_F32 ? 1e-5 : 2e-2; /* 8-bit or bf16 activations */
      for (int n = 0; n < 2; n++) {
        for (int r = 0; r < 20; r++) {
          float got[80], want[80], row[256];
          for (int o = 0; o < w[n].rows; o++) {
            dtype_to_f32(types[t], (const char *)w[n].source + (size_t)o * w[n].row_bytes, row, 256);
            double sum = 0;
            for (int c = 0; c < 256; c++) sum += (double)row[c] * (double)tensor_row(&x, r)[c];
            want[o] = (float)sum, got[o] = tensor_row(&y[n], r)[o];
          }
          double rel_max, rel_l2;
          test_compare(got, want, (size_t)w[n].rows, &rel_max, &rel_l2);
          assert_true(rel_l2 < tolerance);
        }
        const void *source = w[n].source;
        d->ops->weight_free(d, &w[n], 1);
        free((void *)(uintptr_t)source);
        d->ops->free(d, &y[n]);
      }
      d->ops->free(d, &x);
    }
  }
}

/* Values of the specification for a width of 512 and of 256, and the rotation of several heads. */
static void rope(void **state) {
  (void)state;
  uint64_t rand = 26;
  for (int i = 0; i < n_devices; i++) {
    struct device *d = devices[i];
    struct err e = {0};
    struct rope_table t;
    assert_int_equal(d->ops->rope_init(d, &t, 512, 1e6, 1, 0.25, &e), 0);
    assert_int_equal(t.n_rotated, 64);
    assert_true(t.inv_freq[0] == 1 && t.inv_freq[1] == 0.947463526f && t.inv_freq[32] == 0.177827941f && t.inv_freq[63] == 0.033376247f);
    assert_true(t.inv_freq[64] == 0 && t.inv_freq[255] == 0);
    d->ops->rope_free(d, &t);
    assert_int_equal(d->ops->rope_init(d, &t, 256, 1e6, 8, 1, &e), 0);
    assert_true(t.n_rotated == 128 && t.inv_freq[0] == 0.125f && t.inv_freq[64] == 0.001f / 8);
    d->ops->rope_free(d, &t);
    assert_int_equal(d->ops->rope_init(d, &t, 256, 1e4, 1, 1, &e), 0);
    assert_true(t.inv_freq[1] == 0.930572041f && t.inv_freq[64] == 0.01f && fabsf(t.inv_freq[127] - 0.000107461f) < 1e-9f);
    int32_t pos[ROWS_MOST];
    for (int r = 0; r < ROWS_MOST; r++) pos[r] = test_rand_int(&rand, 0, r % 2 ? 100 : 262143);
    d->ops->rope_step(d, &t, pos, ROWS_MOST);
    struct tensor x = new_tensor(d, ROWS_MOST, 3 * 256, &rand), y = new_tensor(d, ROWS_MOST, 3 * 256, NULL);
    memcpy(y.data, x.data, x.row_bytes * ROWS_MOST);
    d->ops->rope(d, &y, &t);
    for (int r = 0; r < ROWS_MOST; r++) {
      for (int h = 0; h < 3; h++) {
        for (int j = 0; j < 128; j++) {
          double angle = (double)((float)pos[r] * t.inv_freq[j]);
          double a = (double)tensor_row(&x, r)[h * 256 + j], b = (double)tensor_row(&x, r)[h * 256 + 128 + j];
          assert_true(fabs((double)tensor_row(&y, r)[h * 256 + j] - (a * cos(angle) - b * sin(angle))) < 1e-6);
          assert_true(fabs((double)tensor_row(&y, r)[h * 256 + 128 + j] - (b * cos(angle) + a * sin(angle))) < 1e-6);
        }
      }
    }
    d->ops->free(d, &x);
    d->ops->free(d, &y);
    d->ops->rope_free(d, &t);
    assert_int_equal(d->ops->rope_init(d, &t, 255, 1e4, 1, 1, &e), -1);
    assert_int_equal(d->ops->rope_init(d, &t, 256, 0, 1, 1, &e), -1);
  }
}

/* --- recorded operations ----------------------------------------------------------------------------------------------- */

enum { STEP_ROWS = 40, STEP_COLS = 512, STEP_VOCAB = 64 };

struct step { /* every operation after the other, on buffers that stay */
  struct device *d;
  struct weight table, w[4];
  struct rope_table rope;
  float norm[STEP_COLS];
  int32_t ids[STEP_ROWS], pos[STEP_ROWS], out[STEP_ROWS];
  struct tensor h, x, q, up, y, last;
};

static void step_open(struct step *s, struct device *d, enum dtype t) {
  struct err e = {0};
  uint64_t rand = 31;
  memset(s, 0, sizeof *s);
  s->d = d;
  s->table = new_weight(t, STEP_VOCAB, STEP_COLS, &rand);
  for (size_t i = 0; i < ARRAY_LEN(s->w); i++) {
    s->w[i] = new_weight(i == 1 ? DTYPE_BF16 : t, STEP_COLS, STEP_COLS, &rand);
    if (d->ops->weight_bind(d, &s->w[i], 1, "w", &e)) fail_msg("%s", e.msg);
  }
  for (int i = 0; i < STEP_COLS; i++) s->norm[i] = test_rand_normal(&rand);
  assert_int_equal(d->ops->rope_init(d, &s->rope, 64, 1e4, 1, 1, &e), 0);
  struct tensor *all[] = {&s->h, &s->x, &s->q, &s->up, &s->y, &s->last};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) *all[i] = new_tensor(d, STEP_ROWS, STEP_COLS, NULL);
}

static void step_close(struct step *s) {
  struct device *d = s->d;
  free((void *)(uintptr_t)s->table.source);
  for (size_t i = 0; i < ARRAY_LEN(s->w); i++) {
    const void *source = s->w[i].source;
    d->ops->weight_free(d, &s->w[i], 1);
    free((void *)(uintptr_t)source);
  }
  d->ops->rope_free(d, &s->rope);
  struct tensor *all[] = {&s->h, &s->x, &s->q, &s->up, &s->y, &s->last};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) d->ops->free(d, all[i]);
}

static void step_fill(struct step *s, uint64_t seed) {
  for (int r = 0; r < STEP_ROWS; r++) {
    s->ids[r] = test_rand_int(&seed, 0, STEP_VOCAB - 1);
    s->pos[r] = test_rand_int(&seed, 0, 5000);
    s->out[r] = test_rand_int(&seed, 0, r / 2);
  }
}

/* Tensors and lists of pointers are gone after the call. */
static void step_run(struct step *s, int rows) {
  struct device *d = s->d;
  const struct device_ops *o = d->ops;
  struct tensor h = tensor_rows(s->h, rows), x = tensor_rows(s->x, rows), q = tensor_rows(s->q, rows), up = tensor_rows(s->up, rows);
  struct tensor y = tensor_rows(s->y, rows), last = tensor_rows(s->last, div_up(rows, 2));
  o->rope_step(d, &s->rope, s->pos, rows);
  o->embed(d, &h, &s->table, s->ids, 3);
  o->rmsnorm(d, &x, &h, s->norm, 1, 1e-6f);
  {
    const struct weight *w[] = {&s->w[0], &s->w[1], &s->w[2]};
    struct tensor *to[] = {&q, &up, &y};
    o->linear(d, 3, w, to, &x);
    memset(w, 0xee, sizeof w);
    memset(to, 0xee, sizeof to);
  }
  o->rmsnorm(d, &q, &q, NULL, STEP_COLS / 64, 1e-6f);
  o->rope(d, &q, &s->rope);
  o->gated(d, &q, &q, &up, ACT_SILU);
  o->add(d, &q, &y);
  o->scale(d, &q, &q, 0.5f);
  o->add_rmsnorm(d, &h, &q, s->norm, 1e-6f);
  o->gather(d, &last, &h, s->out);
  struct tensor up_last = tensor_rows(up, last.rows);
  o->linear(d, 1, (const struct weight *[]){&s->w[3]}, (struct tensor *[]){&up_last}, &last);
  o->softcap(d, &last, &up_last, 30);
  struct tensor *locals[] = {&h, &x, &q, &up, &y, &last, &up_last};
  for (size_t i = 0; i < ARRAY_LEN(locals); i++) memset(locals[i], 0xee, sizeof *locals[i]);
}

/* Replayed with other ids, positions and wanted rows, and with NaN in every buffer before. */
static void recorded_operations(void **state) {
  (void)state;
  static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_F16};
  static const int rows[] = {1, 2, 5, STEP_ROWS};
  struct err e = {0};
  struct record *r = record_new(32, 32 * 512, &e);
  for (int i = 0; i < n_devices; i++) {
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
      static struct step s;
      step_open(&s, devices[i], types[t]);
      for (size_t n = 0; n < ARRAY_LEN(rows); n++) {
        record_clear(r);
        step_fill(&s, 1);
        workers_record(s.d->workers, r);
        step_run(&s, rows[n]);
        workers_record(s.d->workers, NULL);
        for (uint64_t seed = 2; seed < 5; seed++) {
          static float want[STEP_ROWS * STEP_COLS];
          int n_last = div_up(rows[n], 2);
          step_fill(&s, seed);
          step_run(&s, rows[n]);
          for (int row = 0; row < n_last; row++) memcpy(want + row * STEP_COLS, tensor_row(&s.last, row), STEP_COLS * sizeof *want);
          struct tensor *all[] = {&s.h, &s.x, &s.q, &s.up, &s.y, &s.last, &s.rope.cos, &s.rope.sin};
          for (size_t j = 0; j < ARRAY_LEN(all); j++) memset(all[j]->data, 0xff, (size_t)STEP_ROWS * all[j]->row_bytes);
          mem_guard_begin("replay");
          workers_replay(s.d->workers, r);
          mem_guard_end();
          for (int row = 0; row < n_last; row++)
            assert_memory_equal(tensor_row(&s.last, row), want + row * STEP_COLS, STEP_COLS * sizeof *want);
        }
      }
      step_close(&s);
    }
  }
  record_delete(r);
}

static void memory_shortage_is_an_error(void **state) {
  (void)state;
  uint64_t rand = 27;
  struct weight w = new_weight(DTYPE_Q8_0, 32, 64, &rand);
  const void *source = w.source;
  for (int n = 1;; n++) {
    struct err e = {0};
    struct device_config c = {.isa = ISA_AUTO, .n_threads = 2, .rows_max = 8, .cols_max = 64};
    struct tensor t = {0};
    struct rope_table rope = {0};
    mem_fail_after(n);
    struct device *d = device_cpu_ops.open(&c, &e);
    bool ok = d && !d->ops->alloc(d, &t, 3, 5, "test", &e) && !d->ops->rope_init(d, &rope, 64, 1e4, 1, 1, &e) &&
              !d->ops->weight_bind(d, &w, 1, "w", &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (d) {
      d->ops->weight_free(d, &w, 1);
      d->ops->rope_free(d, &rope);
      d->ops->free(d, &t);
      d->ops->close(d);
      w = (struct weight){.dtype = DTYPE_Q8_0, .rows = 32, .cols = 64, .row_bytes = 68, .source = source};
    }
    if (pending) {
      assert_true(ok && n > 3);
      break;
    }
    assert_false(ok);
    assert_int_equal(e.code, ERR_NO_MEMORY);
  }
  free((void *)(uintptr_t)source);
}

static void tensors_start_zeroed_and_may_change_their_rows(void **state) {
  (void)state;
  struct err e = {0};
  struct device *d = devices[0];
  struct tensor t;
  assert_int_equal(d->ops->alloc(d, &t, 7, 33, "test", &e), 0);
  assert_true(t.row_bytes % 64 == 0 && t.dtype == DTYPE_F32);
  for (int r = 0; r < 7; r++) {
    for (int c = 0; c < 33; c++) assert_true(tensor_row(&t, r)[c] == 0);
  }
  t.rows = 2;
  d->ops->free(d, &t);
  assert_null(t.data);
  d->ops->free(d, &t); /* a zeroed one is fine */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(elementwise_operations),
    cmocka_unit_test(norm_with_a_weight),
    cmocka_unit_test(embedding),
    cmocka_unit_test(embedding_added),
    cmocka_unit_test(weights_in_one_block),
    cmocka_unit_test(gather),
    cmocka_unit_test(linear),
    cmocka_unit_test(rope),
    cmocka_unit_test(recorded_operations),
    cmocka_unit_test(memory_shortage_is_an_error),
    cmocka_unit_test(tensors_start_zeroed_and_may_change_their_rows),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
