/* t_ascend_ops.c — the NPU's operations on the emulated device, in every profile, against the CPU device and loops in float64.
 *
 * A matrix exists twice, with the same numbers (those that the NPU's type can hold). Often it is part of a larger one, at odd places: then the rest
 * must stay as it was. Results may differ by what rounding to the NPU's type explains.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "compute/act_exact.h"
#include "compute/ascend/ascend.h"
#include "compute/gemm_quant.h"
#include "npu.h"

enum { ROWS_MAX = 40, COLS_MAX = 4096, POSITIONS = 300, HIDDEN = 64, FFN = 96, EXPERTS = 8, USED = 2 };

static struct device *npu, *cpu;
static uint64_t seed;
static double eps; /* half a unit in the last place, of 1 */
static struct device_look seen;

static const struct device_ops *N(void) { return npu->ops; }
static const struct device_ops *C(void) { return cpu->ops; }

static struct device_config config(void) {
  return (struct device_config){.n_threads = 2,
                                .rows_max = ROWS_MAX,
                                .cols_max = COLS_MAX,
                                .experts = {ROWS_MAX, HIDDEN, FFN, EXPERTS, USED},
                                .positions_max = POSITIONS,
                                .look = &seen};
}

static void open_both(void) {
  struct err e = {0};
  struct device_config c = config();
  if (device_ascend_ops.look(0, &seen, &e)) fail_msg("%s", e.msg);
  if (!(npu = device_ascend_ops.open(&c, &e))) fail_msg("%s", e.msg);
  if (!(cpu = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  eps = ascend_of(npu)->dtype == DTYPE_BF16 ? 1.0 / 256 : 1.0 / 2048;
  seed = 7;
}
static void close_both(void) {
  N()->close(npu);
  C()->close(cpu);
  npu_check_clean();
}

static void well(const char *what) {
  struct err e = {0};
  if (N()->finish(npu, &e)) fail_msg("%s: %s", what, e.msg);
}

/* ---- matrices ------------------------------------------------------------------------------------------------------------------ */

struct pair {
  struct tensor n, c;         /* the part that is worked on */
  struct tensor n_all, c_all; /* what it is a part of */
  struct tensor host;         /* what came from the NPU, all of it */
  int row, col;
};

static float round_to(float x) {
  uint16_t half;
  dtype_from_f32(ascend_of(npu)->dtype, &x, &half, 1);
  dtype_to_f32(ascend_of(npu)->dtype, &half, &x, 1);
  return x;
}

static void put(struct pair *p) { /* the CPU's numbers, rounded, to both */
  struct tensor s = N()->stage(npu, &p->n_all);
  for (int r = 0; r < p->c_all.rows; r++)
    for (int c = 0; c < p->c_all.cols; c++) tensor_row(&s, r)[c] = tensor_row(&p->c_all, r)[c] = round_to(tensor_row(&p->c_all, r)[c]);
  N()->send(npu, &p->n_all, &s);
}

static struct pair make(int rows, int cols, bool part, double size) {
  struct err e = {0};
  struct pair p = {.row = part ? test_rand_int(&seed, 0, 2) : 0, .col = part ? test_rand_int(&seed, 0, 9) : 0};
  int all_rows = rows + (part ? 3 : 0), all_cols = cols + (part ? 12 : 0);
  if (N()->alloc(npu, &p.n_all, all_rows, all_cols, "test", &e) || C()->alloc(cpu, &p.c_all, all_rows, all_cols, "test", &e) ||
      N()->host_alloc(npu, &p.host, all_rows, all_cols, "test", &e))
    fail_msg("%s", e.msg);
  for (int r = 0; r < all_rows; r++)
    for (int c = 0; c < all_cols; c++) tensor_row(&p.c_all, r)[c] = (float)size * test_rand_normal(&seed);
  put(&p);
  p.n = tensor_part(p.n_all, p.row, rows, p.col, cols);
  p.c = tensor_part(p.c_all, p.row, rows, p.col, cols);
  return p;
}
static void drop(struct pair *p) {
  N()->free(npu, &p->n_all);
  C()->free(cpu, &p->c_all);
  N()->host_free(npu, &p->host);
}

/* Inside the part: |npu - cpu| <= roundings · eps · (|cpu| + size); outside: the same bits. */
static void same(struct pair *p, double roundings, double size, const char *what) {
  N()->fetch(npu, &p->host, &p->n_all);
  well(what);
  for (int r = 0; r < p->c_all.rows; r++) {
    for (int c = 0; c < p->c_all.cols; c++) {
      double got = (double)tensor_row(&p->host, r)[c], want = (double)tensor_row(&p->c_all, r)[c];
      bool inside = r >= p->row && r < p->row + p->c.rows && c >= p->col && c < p->col + p->c.cols;
      double bound = inside && roundings > 0 ? roundings * eps * (fabs(want) + size) + 0x1p-24 : 0; /* fp16's smallest number */
      if (isnan(want) && isnan(got)) continue;
      if (!(fabs(got - want) <= bound))
        fail_msg("%s: row %d of %d, column %d of %d%s: expected %g, found %g, bound %g", what, r - p->row, p->c.rows, c - p->col, p->c.cols,
                 inside ? "" : " (outside)", want, got, bound);
    }
  }
}

static float *numbers(int n, double size) {
  float *x = xcalloc((size_t)n, sizeof *x);
  for (int i = 0; i < n; i++) x[i] = (float)size * test_rand_normal(&seed);
  return x;
}
static bool coin(void) { return test_rand(&seed) & 1; }
static int rand_rows(void) { return coin() ? test_rand_int(&seed, 1, 4) : test_rand_int(&seed, 1, ROWS_MAX); }

/* Half of the time a vector is held. */
static bool maybe_hold(const float *w, int n) {
  struct err e = {0};
  if (!coin()) return false;
  if (N()->hold(npu, w, (size_t)n, &e)) fail_msg("%s", e.msg);
  return true;
}

/* ---- elementwise ------------------------------------------------------------------------------------------------------------------ */

static void elementwise(void) {
  static const enum act acts[] = {ACT_GELU_TANH, ACT_SILU, ACT_SIGMOID, ACT_GELU_ERF, ACT_RELU, ACT_NONE};
  for (int round = 0; round < 60; round++) {
    int rows = rand_rows(), cols = test_rand_int(&seed, 1, 200);
    struct pair x = make(rows, cols, coin(), 1), y = make(rows, cols, coin(), 1), z = make(rows, cols, coin(), 1);
    float s = test_rand_normal(&seed);
    N()->add(npu, &y.n, &x.n), C()->add(cpu, &y.c, &x.c);
    same(&y, 1, 0, "add");
    put(&y);
    N()->scale(npu, &z.n, &x.n, s), C()->scale(cpu, &z.c, &x.c, s);
    same(&z, 2, 0, "scale"); /* fp16 takes the factor as a half */
    put(&z);
    N()->scale(npu, &z.n, &z.n, s), C()->scale(cpu, &z.c, &z.c, s);
    same(&z, 2, 0, "scale in place");
    put(&z);
    N()->softcap(npu, &y.n, &x.n, 2.5f), C()->softcap(cpu, &y.c, &x.c, 2.5f);
    same(&y, 4, 0.01, "softcap");
    put(&y);
    N()->softcap(npu, &y.n, &y.n, 30), C()->softcap(cpu, &y.c, &y.c, 30);
    same(&y, 4, 0.01, "softcap in place");
    put(&y);
    N()->add_scaled(npu, &y.n, &x.n, s, NULL, NULL), C()->add_scaled(cpu, &y.c, &x.c, s, NULL, NULL);
    same(&y, 2, 1, "add_scaled");
    put(&y);
    for (size_t i = 0; i < ARRAY_LEN(acts); i++) {
      N()->gated(npu, &y.n, &x.n, &z.n, acts[i]), C()->gated(cpu, &y.c, &x.c, &z.c, acts[i]);
      same(&y, 3, 0.02, "gated");
      put(&y);
    }
    enum act act = acts[test_rand_int(&seed, 0, 5)];
    N()->gated(npu, &y.n, &y.n, &z.n, act), C()->gated(cpu, &y.c, &y.c, &z.c, act);
    same(&y, 3, 0.02, "gated over the gate");
    put(&y);
    N()->gated(npu, &z.n, &x.n, &z.n, act), C()->gated(cpu, &z.c, &x.c, &z.c, act);
    same(&z, 3, 0.02, "gated over the other factor");
    put(&z);
    N()->copy(npu, &z.n, &y.n), C()->copy(cpu, &z.c, &y.c);
    same(&z, 0, 0, "copy");
    drop(&x), drop(&y), drop(&z);
  }
}

/* gate and up in one matrix, as a merged product gives them */
static void gated_together(void) {
  for (int round = 0; round < 20; round++) {
    int rows = rand_rows(), half = 32 * test_rand_int(&seed, 1, 4);
    struct pair both = make(rows, 2 * half, false, 1), y = make(rows, half, coin(), 1);
    struct tensor ng = tensor_part(both.n, 0, rows, 0, half), nu = tensor_part(both.n, 0, rows, half, half);
    struct tensor cg = tensor_part(both.c, 0, rows, 0, half), cu = tensor_part(both.c, 0, rows, half, half);
    for (int act = ACT_GELU_TANH; act <= ACT_GELU_ERF; act++) {
      N()->gated(npu, &y.n, &ng, &nu, (enum act)act), C()->gated(cpu, &y.c, &cg, &cu, (enum act)act);
      same(&y, 3, 0.02, "gated side by side");
      put(&y);
    }
    drop(&both), drop(&y);
  }
}

static void norms(void) {
  for (int round = 0; round < 60; round++) {
    int groups = test_rand_int(&seed, 1, 5), n = 2 * test_rand_int(&seed, 8, 70), rows = rand_rows();
    struct pair x = make(rows, groups * n, coin(), 3), y = make(rows, groups * n, coin(), 1);
    float *w = numbers(groups * n, 1);
    for (int i = 0; i < groups * n; i++) w[i] = round_to(w[i]);
    bool held = maybe_hold(w, groups * n);
    N()->rmsnorm(npu, &y.n, &x.n, w, groups, 1e-6f), C()->rmsnorm(cpu, &y.c, &x.c, w, groups, 1e-6f);
    same(&y, 2, 1e-3, "rmsnorm");
    put(&y);
    N()->rmsnorm(npu, &y.n, &x.n, NULL, groups, 1e-6f), C()->rmsnorm(cpu, &y.c, &x.c, NULL, groups, 1e-6f);
    same(&y, 2, 1e-3, "rmsnorm without weight");
    put(&y);
    N()->add_rmsnorm(npu, &y.n, &x.n, w, 1e-5f), C()->add_rmsnorm(cpu, &y.c, &x.c, w, 1e-5f);
    same(&y, 2, 3, "add_rmsnorm");
    put(&y);
    N()->rmsnorm(npu, &x.n, &x.n, w + (groups - 1) * n, groups, 1e-6f), C()->rmsnorm(cpu, &x.c, &x.c, w + (groups - 1) * n, groups, 1e-6f);
    same(&x, 2, 1e-3, "rmsnorm in place");
    if (held) N()->drop(npu, w);
    free(w);
    drop(&x), drop(&y);
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------------- */

static void rows_moved(void) {
  for (int round = 0; round < 60; round++) {
    int of = test_rand_int(&seed, 1, ROWS_MAX), rows = rand_rows(), cols = test_rand_int(&seed, 1, 150);
    struct pair x = make(of, cols, coin(), 1), y = make(rows, cols, coin(), 1);
    int32_t index[ROWS_MAX], hi[ROWS_MAX];
    for (int r = 0; r < rows; r++) index[r] = test_rand_int(&seed, 0, of - 1);
    N()->gather(npu, &y.n, &x.n, index), C()->gather(cpu, &y.c, &x.c, index);
    same(&y, 0, 0, "gather");
    int run = test_rand_int(&seed, 0, 2); /* scattered, with gaps, one picture */
    for (int r = 0; r < rows; r++) {
      index[r] = run == 2             ? (r >= rows / 3 && r - rows / 3 < of ? r - rows / 3 : -1)
                 : run == 1 && coin() ? -1
                                      : test_rand_int(&seed, 0, of - 1);
    }
    N()->put_rows(npu, &y.n, &x.n, index), C()->put_rows(cpu, &y.c, &x.c, index);
    same(&y, 0, 0, "put_rows");
    struct pair z = make(rows, cols, coin(), 1);
    for (int r = 0; r < rows; r++) {
      index[r] = test_rand_int(&seed, 0, 3), hi[r] = test_rand_int(&seed, 0, 3);
      if (index[r] >= hi[r]) tensor_row(&z.c, r)[0] = NAN, tensor_row(&y.c, r)[0] = -0.0f;
    }
    put(&z), put(&y);
    N()->add_scaled(npu, &y.n, &z.n, -0.7f, index, hi), C()->add_scaled(cpu, &y.c, &z.c, -0.7f, index, hi);
    same(&y, 2, 1, "add_scaled of some rows");
    for (int r = 0; r < rows; r++) {
      if (index[r] < hi[r]) continue;
      assert_true(signbit(tensor_row(&y.host, y.row + r)[y.col]));
      for (int c = 1; c < cols; c++) assert_true(tensor_row(&y.host, y.row + r)[y.col + c] == tensor_row(&y.c, r)[c]);
    }
    drop(&x), drop(&y), drop(&z);
  }
}

static void argmax(void) {
  for (int round = 0; round < 60; round++) {
    int rows = rand_rows(), cols = test_rand_int(&seed, 1, 300);
    struct pair x = make(rows, cols, coin(), 1);
    int32_t got[ROWS_MAX];
    for (int r = 0; r < rows; r++) {
      float *row = tensor_row(&x.c, r);
      int kind = test_rand_int(&seed, 0, 7);
      if (kind == 0) row[test_rand_int(&seed, 0, cols - 1)] = NAN;
      if (kind == 1) row[test_rand_int(&seed, 0, cols - 1)] = INFINITY;
      if (kind == 2) row[test_rand_int(&seed, 0, cols - 1)] = -INFINITY;
      for (int c = 0; kind == 3 && c < cols; c++) row[c] = NAN;
      for (int c = 0; kind == 4 && c < cols; c++) row[c] = (float)test_rand_int(&seed, 0, 3);
    }
    put(&x);
    N()->argmax(npu, got, &x.n);
    for (int r = 0; r < rows; r++) {
      const float *row = tensor_row(&x.c, r);
      int want = -1;
      for (int c = 0; c < cols; c++)
        if (!isnan(row[c]) && (want < 0 || row[c] > row[want])) want = c;
      if (want < 0) assert_true(got[r] < 0);
      else assert_int_equal(got[r], want);
    }
    well("argmax");
    drop(&x);
  }
}

/* ---- weights ------------------------------------------------------------------------------------------------------------------------- */

static struct weight make_weight(enum dtype type, enum dtype mark, int rows, int cols) {
  struct weight w = {.dtype = type, .rows = rows, .cols = cols};
  const struct dtype_info *info = dtype_info(type);
  if (!dtype_row_bytes(type, (size_t)cols, &w.row_bytes)) fail_msg("rows of %d", cols);
  unsigned char *source = xcalloc((size_t)rows, w.row_bytes);
  bool from_floats = !info->quantised || type == DTYPE_Q8_0 || type == DTYPE_Q4_0;
  float *x = numbers(cols, 1);
  for (int r = 0; r < rows; r++) {
    unsigned char *row = source + (size_t)r * w.row_bytes;
    for (int c = 0; c < cols; c++) x[c] = test_rand_normal(&seed);
    if (from_floats) dtype_from_f32(type, x, row, (size_t)cols);
    for (size_t i = 0; !from_floats && i < w.row_bytes; i++) row[i] = (unsigned char)test_rand_int(&seed, 0, 255);
    for (int b = 0; !from_floats && b < cols / info->block_elems; b++) { /* Q6_K: the scale is at its end */
      uint16_t half = f32_to_f16(0.001f * (float)test_rand_int(&seed, 1, 9));
      memcpy(row + (size_t)(b + 1) * (size_t)info->block_bytes - 2, &half, 2);
    }
  }
  free(x);
  w.source = source;
  if (mark) gemm_quant_mark(&w, mark);
  return w;
}
static void free_source(const void *source) { free((void *)(uintptr_t)source); }

static const struct weight_kind {
  enum dtype type, mark;
} kinds[] = {
    {DTYPE_F32, 0},  {DTYPE_F16, 0},          {DTYPE_BF16, 0},          {DTYPE_Q8_0, 0},
    {DTYPE_Q4_0, 0}, {DTYPE_F32, DTYPE_Q8_0}, {DTYPE_BF16, DTYPE_Q4_0}, {DTYPE_Q6_K, 0},
};

/* y = x Wᵀ by float64; *bound: what rounding of weights, of scales and of the result explains. */
static void product(const struct weight *w, const struct tensor *x, int row, int n, double *y, double *bound) {
  float *rows = xcalloc((size_t)w->cols, sizeof *rows);
  gemm_quant_row(w, n, rows);
  double sum = 0, squares = 0;
  for (int c = 0; c < w->cols; c++) {
    double one = (double)tensor_row(x, row)[c] * (double)rows[c];
    sum += one, squares += one * one;
  }
  free(rows);
  *y = sum;
  *bound = eps * (8 * sqrt(squares) + fabs(sum));
}

static void linear(void) {
  for (int round = 0; round < 64; round++) {
    struct weight_kind kind = kinds[(size_t)round % ARRAY_LEN(kinds)];
    int block = kind.type == DTYPE_Q6_K ? 256 : kind.mark || dtype_info(kind.type)->quantised ? 32 : 1;
    int rows = rand_rows(), cols = block * test_rand_int(&seed, 1, MAX(320 / block, 1)), n = 3;
    struct weight w[3];
    const struct weight *weights[3];
    struct tensor *out[3];
    struct pair x = make(rows, cols, coin(), 1), y[3];
    struct err e = {0};
    for (int i = 0; i < n; i++) {
      w[i] = make_weight(kind.type, kind.mark, test_rand_int(&seed, i == 1 ? 0 : 1, 90), cols);
      weights[i] = &w[i];
      y[i] = make(rows, MAX(w[i].rows, 1), coin(), 1);
      y[i].n.cols = y[i].c.cols = w[i].rows;
      out[i] = &y[i].n;
    }
    struct device_config c = config();
    size_t planned = 0;
    for (int i = 0; i < n; i++) planned += N()->weight_bytes(&c, &w[i]);
    const void *sources[3] = {w[0].source, w[1].source, w[2].source};
    struct acl_emu_counts before, after;
    npu_emu()->counts(&before);
    if (N()->weight_bind(npu, w, n, "w", &e)) fail_msg("%s", e.msg);
    npu_emu()->counts(&after);
    if (after.calls > 0) /* a real device is not asked; this one rounds, and adds what kernels may read */
      assert_in_range(after.device_bytes - before.device_bytes, planned, planned + 64 + 32);
    for (int i = 0; i < n; i++) planned -= w[i].packed_bytes;
    assert_int_equal(planned, 0);
    N()->linear(npu, n, weights, out, &x.n);
    for (int i = 0; i < n; i++) {
      N()->fetch(npu, &y[i].host, &y[i].n_all);
      well("linear");
      for (int r = 0; r < rows; r++) {
        for (int j = 0; j < w[i].rows; j++) {
          double want, bound, got = (double)tensor_row(&y[i].host, y[i].row + r)[y[i].col + j];
          product(&w[i], &x.c, r, j, &want, &bound);
          if (!(fabs(got - want) <= bound))
            fail_msg("linear, %s%s [%d, %d], row %d, column %d: expected %g, found %g, bound %g", dtype_info(kind.type)->name,
                     kind.mark ? " marked" : "", w[i].rows, cols, r, j, want, got, bound);
        }
      }
      drop(&y[i]);
    }
    N()->weight_free(npu, w, n);
    for (int i = 0; i < n; i++) free_source(sources[i]);
    drop(&x);
  }
}

/* act(gate) ⊙ up of products that are off by g_bound and u_bound. No activation is steeper than 1.2. */
static void expect_gated(const struct pair *y, enum act act, const struct weight *gate, const struct weight *up, const struct pair *x) {
  for (int r = 0; r < y->c_all.rows; r++)
    for (int c = 0; c < y->c_all.cols; c++) {
      int row = r - y->row, col = c - y->col;
      double got = (double)tensor_row(&y->host, r)[c], want = (double)tensor_row(&y->c_all, r)[c], bound = 0;
      if (row >= 0 && row < y->c.rows && col >= 0 && col < y->c.cols) {
        double g, u, g_bound, u_bound;
        product(gate, &x->c, row, col, &g, &g_bound);
        product(up, &x->c, row, col, &u, &u_bound);
        want = act_exact(act, g) * u;
        bound = 1.2 * g_bound * (fabs(u) + u_bound) + fabs(act_exact(act, g)) * u_bound + 3 * eps * (fabs(want) + 0.02 * fabs(u)) + 0x1p-24;
      }
      if (!(fabs(got - want) <= bound))
        fail_msg("linear_gated, %s and %s [%d, %d], activation %d, row %d of %d, column %d: expected %g, found %g, bound %g",
                 dtype_info(gate->dtype)->name, dtype_info(up->dtype)->name, gate->rows, gate->cols, act, row, y->c.rows, col, want, got,
                 bound);
    }
}

/* What the NPU makes of the same by linear and gated: the same bits. */
static void expect_as_apart(struct pair *y, enum act act, const struct weight *gate, const struct weight *up, const struct pair *x) {
  int rows = y->c.rows, cols = y->c.cols;
  struct pair g = make(rows, cols, coin(), 1), u = make(rows, cols, coin(), 1);
  N()->linear(npu, 2, (const struct weight *[]){gate, up}, (struct tensor *[]){&g.n, &u.n}, &x->n);
  N()->gated(npu, &g.n, &g.n, &u.n, act);
  N()->fetch(npu, &g.host, &g.n_all);
  well("linear and gated");
  for (int r = 0; r < rows; r++)
    assert_memory_equal(tensor_row(&y->host, y->row + r) + y->col, tensor_row(&g.host, g.row + r) + g.col, sizeof(float) * (size_t)cols);
  drop(&g), drop(&u);
}

/* Products as wide as a half of fp16 allows, and gate and up of the same kind or of two. */
static void linear_gated(void) {
  static const int row_counts[] = {1, 5, ROWS_MAX};
  for (int round = 0; round < 48; round++) {
    struct weight_kind kind = kinds[(size_t)round % ARRAY_LEN(kinds)], other = coin() ? kind : kinds[test_rand_int(&seed, 0, 6)];
    int rows = row_counts[round % 3], cols = kind.type == DTYPE_Q6_K ? 256 : 32 * test_rand_int(&seed, 1, 10);
    int ffn = test_rand_int(&seed, 1, 60);
    enum act act = (enum act)(round / 8 % 6);
    struct weight w[2] = {make_weight(kind.type, kind.mark, ffn, cols), make_weight(other.type, other.mark, ffn, cols)};
    const void *sources[2] = {w[0].source, w[1].source};
    struct pair x = make(rows, cols, coin(), 0.25), y = make(rows, ffn, coin(), 1), room = make(rows, ffn, coin(), 1);
    struct err e = {0};
    if (N()->weight_bind(npu, &w[0], 1, "gate", &e) || N()->weight_bind(npu, &w[1], 1, "up", &e)) fail_msg("%s", e.msg);
    N()->linear_gated(npu, &y.n, &w[0], &w[1], &x.n, act, &room.n);
    N()->fetch(npu, &y.host, &y.n_all);
    well("linear_gated");
    expect_gated(&y, act, &w[0], &w[1], &x);
    expect_as_apart(&y, act, &w[0], &w[1], &x);
    for (int i = 0; i < 2; i++) N()->weight_free(npu, &w[i], 1), free_source(sources[i]);
    drop(&x), drop(&y), drop(&room);
  }
}

/* A head beyond the limit of grouped products is split. */
static void wide_head(void) {
  enum { VOCAB = 65504 * 2 + 70 };
  struct weight w = make_weight(DTYPE_Q4_0, 0, VOCAB, 64);
  const struct weight *ws[] = {&w};
  const void *source = w.source;
  struct pair x = make(2, 64, false, 1), y = make(2, VOCAB, false, 1);
  struct err e = {0};
  if (N()->weight_bind(npu, &w, 1, "head", &e)) fail_msg("%s", e.msg);
  N()->linear(npu, 1, ws, (struct tensor *[]){&y.n}, &x.n);
  N()->fetch(npu, &y.host, &y.n_all);
  well("wide head");
  for (int i = 0; i < 4000; i++) {
    int r = test_rand_int(&seed, 0, 1), j = i < 200 ? 65400 + i : i < 400 ? 65504 * 2 - 330 + i : test_rand_int(&seed, 0, VOCAB - 1);
    double want, bound, got;
    product(&w, &x.c, r, j, &want, &bound);
    got = (double)tensor_row(&y.host, r)[j];
    if (!(fabs(got - want) <= bound)) fail_msg("wide head, column %d: expected %g, found %g", j, want, got);
  }
  N()->weight_free(npu, &w, 1);
  free_source(source);
  drop(&x), drop(&y);
}

static void embed(void) {
  for (int round = 0; round < 64; round++) {
    struct weight_kind kind = kinds[(size_t)round % ARRAY_LEN(kinds)];
    int block = kind.type == DTYPE_Q6_K ? 256 : kind.mark || dtype_info(kind.type)->quantised ? 32 : 1;
    int rows = rand_rows(), cols = block * test_rand_int(&seed, 1, MAX(320 / block, 1)), vocab = test_rand_int(&seed, 1, 90);
    struct weight w = make_weight(kind.type, kind.mark, vocab, cols), near = w;
    const void *source = w.source;
    bool table = coin();
    struct pair y = make(rows, cols, coin(), 1);
    int32_t ids[ROWS_MAX];
    struct err e = {0};
    struct device_config c = config();
    size_t planned = table ? N()->table_bytes(&c, &w) : N()->weight_bytes(&c, &w);
    if (table ? N()->table_bind(npu, &w, "table", &e) : N()->weight_bind(npu, &w, 1, "table", &e)) fail_msg("%s", e.msg);
    assert_int_equal(planned, w.packed_bytes);
    for (int r = 0; r < rows; r++) ids[r] = test_rand_int(&seed, 0, vocab - 1);
    N()->embed(npu, &y.n, &w, ids, 1), C()->embed(cpu, &y.c, &near, ids, 1);
    same(&y, 2, 0, "embed");
    put(&y);
    N()->embed(npu, &y.n, &w, ids, 8.5f), C()->embed(cpu, &y.c, &near, ids, 8.5f);
    same(&y, 3, 0, "embed, scaled");
    put(&y);
    if (!kind.mark) {
      int from = test_rand_int(&seed, 0, cols - 1), n = test_rand_int(&seed, 1, cols - from);
      struct pair z = make(rows, n, coin(), 1);
      for (int r = 0; r < rows; r++) ids[r] = test_rand_int(&seed, -3, vocab + 3);
      N()->embed_add(npu, &z.n, &w, from, ids, -1.5f), C()->embed_add(cpu, &z.c, &near, from, ids, -1.5f);
      same(&z, 3, 3, "embed_add");
      drop(&z);
    }
    N()->weight_free(npu, &w, 1);
    free_source(source);
    drop(&y);
  }
}

/* ---- rope -------------------------------------------------------------------------------------------------------------------------------- */

static void rope(void) {
  static const int widths[] = {2, 36, 64, 128, 160, 256, 512, 960};
  for (int round = 0; round < 40; round++) {
    int width = widths[(size_t)round % ARRAY_LEN(widths)], heads = test_rand_int(&seed, 1, 5), rows = rand_rows();
    struct rope_table n, c;
    struct err e = {0};
    double rotated = round % 3 ? 1 : 0.25, factor = round % 2 ? 1 : 8;
    if (N()->rope_init(npu, &n, width, 10000, factor, rotated, &e) || C()->rope_init(cpu, &c, width, 10000, factor, rotated, &e))
      fail_msg("%s", e.msg);
    if (round % 4 == 0) N()->rope_bands(npu, &n, 8, 1, 4, 128), C()->rope_bands(cpu, &c, 8, 1, 4, 128);
    int32_t pos[ROWS_MAX];
    struct pair x = make(rows, heads * width, coin(), 1);
    int most = round % 5 ? POSITIONS - 1 : 4 * POSITIONS;
    for (int r = 0; r < rows; r++) pos[r] = test_rand_int(&seed, 0, most);
    N()->rope_step(npu, &n, pos, rows), C()->rope_step(cpu, &c, pos, rows);
    N()->rope(npu, &x.n, &n), C()->rope(cpu, &x.c, &c);
    same(&x, 2, 2.5, "rope");
    drop(&x);
    N()->rope_free(npu, &n), C()->rope_free(cpu, &c);
  }
  struct rope_table t;
  struct err e = {0};
  assert_int_equal(N()->rope_init(npu, &t, 7, 10000, 1, 1, &e), -1);
  /* more heads than one operator takes */
  if (N()->rope_init(npu, &t, 4, 10000, 1, 1, &e)) fail_msg("%s", e.msg);
  struct rope_table c;
  if (C()->rope_init(cpu, &c, 4, 10000, 1, 1, &e)) fail_msg("%s", e.msg);
  struct pair x = make(2, 1003 * 4, false, 1);
  N()->rope_step(npu, &t, (int32_t[]){5, 250}, 2), C()->rope_step(cpu, &c, (int32_t[]){5, 250}, 2);
  N()->rope(npu, &x.n, &t), C()->rope(cpu, &x.c, &c);
  same(&x, 2, 2.5, "rope of many heads");
  drop(&x);
  N()->rope_free(npu, &t), C()->rope_free(cpu, &c);
}

/* ---- experts ----------------------------------------------------------------------------------------------------------------------------- */

static void product_row(const struct weight *w, const double *x, double *y) {
  float *row = xcalloc((size_t)w->cols, sizeof *row);
  for (int n = 0; n < w->rows; n++) {
    gemm_quant_row(w, n, row);
    y[n] = 0;
    for (int c = 0; c < w->cols; c++) y[n] += x[c] * (double)row[c];
  }
  free(row);
}

static void experts(void) {
  for (int round = 0; round < 12; round++) {
    struct weight_kind kind = kinds[(size_t)round % 7];
    enum act act = coin() ? ACT_GELU_TANH : ACT_SILU;
    struct weight gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    const void *sources[3 * EXPERTS];
    float *scale = numbers(EXPERTS, 1);
    struct moe m = {EXPERTS, USED, gate, up, down, scale};
    struct err e = {0};
    for (int i = 0; i < EXPERTS; i++) {
      sources[3 * i] = (gate[i] = make_weight(kind.type, kind.mark, FFN, HIDDEN)).source;
      sources[3 * i + 1] = (up[i] = make_weight(kind.type, kind.mark, FFN, HIDDEN)).source;
      sources[3 * i + 2] = (down[i] = make_weight(kind.type, kind.mark, HIDDEN, FFN)).source;
      scale[i] = round_to(scale[i]);
    }
    if (N()->weight_bind(npu, gate, EXPERTS, "gate", &e) || N()->weight_bind(npu, up, EXPERTS, "up", &e) ||
        N()->weight_bind(npu, down, EXPERTS, "down", &e))
      fail_msg("%s", e.msg);
    bool held = maybe_hold(scale, EXPERTS);
    int rows = rand_rows();
    struct pair x = make(rows, HIDDEN, coin(), 1), logits = make(rows, EXPERTS, coin(), 2), y = make(rows, HIDDEN, coin(), 1);
    if (rows > 1) { /* such a row is lost, and no other */
      tensor_row(&logits.c, 0)[EXPERTS / 2] = tensor_row(&x.c, 0)[5] = NAN;
      put(&logits), put(&x);
    }
    N()->moe(npu, &m, &y.n, &x.n, &logits.n, act);
    N()->fetch(npu, &y.host, &y.n);
    well("moe");
    double in[HIDDEN], g[FFN], u[FFN], out[HIDDEN], want[HIDDEN];
    for (int r = 0; r < rows; r++) {
      int32_t chosen[USED];
      float share[USED];
      double size = 0; /* of what is added up */
      moe_route(tensor_row(&logits.c, r), scale, EXPERTS, USED, chosen, share);
      for (int i = 0; i < HIDDEN; i++) in[i] = (double)tensor_row(&x.c, r)[i], want[i] = 0;
      for (int k = 0; k < USED; k++) {
        double squares = 0;
        product_row(&gate[chosen[k]], in, g), product_row(&up[chosen[k]], in, u);
        for (int i = 0; i < FFN; i++) g[i] = act_exact(act, g[i]) * u[i];
        product_row(&down[chosen[k]], g, out);
        for (int i = 0; i < HIDDEN; i++) want[i] += (double)share[k] * out[i], squares += out[i] * out[i];
        size += fabs((double)share[k]) * sqrt(squares / HIDDEN);
      }
      for (int i = 0; i < HIDDEN; i++) {
        double got = (double)tensor_row(&y.host, r)[i];
        if (r == 0 && rows > 1) assert_true(isnan(got));
        else if (!(fabs(got - want[i]) <= 8 * eps * size + eps * fabs(want[i])))
          fail_msg("experts, %s, row %d of %d, column %d: expected %g, found %g, size %g", dtype_info(kind.type)->name, r, rows, i, want[i],
                   got, size);
      }
    }
    if (held) N()->drop(npu, scale);
    N()->weight_free(npu, gate, EXPERTS), N()->weight_free(npu, up, EXPERTS), N()->weight_free(npu, down, EXPERTS);
    for (int i = 0; i < 3 * EXPERTS; i++) free_source(sources[i]);
    free(scale);
    drop(&x), drop(&logits), drop(&y);
  }
}

/* ---- roads ------------------------------------------------------------------------------------------------------------------------------- */

/* What the chip has an operator for goes by that operator. */
static void roads(void) {
  const struct acl_emu *emu = npu_emu();
  bool old = ascend_of(npu)->profile.chip == ASCEND_310P;
  struct pair x = make(4, 2 * 256, false, 1), y = make(4, 256, false, 1), q = make(4, 2 * 256, false, 1);
  struct tensor gate = tensor_part(x.n, 0, 4, 0, 256), up = tensor_part(x.n, 0, 4, 256, 256);
  struct rope_table t;
  struct err e = {0};
  emu->reset();
  N()->gated(npu, &y.n, &gate, &up, ACT_GELU_TANH);
  N()->gated(npu, &y.n, &gate, &up, ACT_SILU);
  assert_int_equal(emu->called("GeGluV3"), 1);
  assert_int_equal(emu->called("SwiGlu"), 1);
  assert_int_equal(emu->called("InplaceMul"), 0);
  if (N()->rope_init(npu, &t, 256, 10000, 1, 1, &e)) fail_msg("%s", e.msg);
  N()->rope_step(npu, &t, (int32_t[]){0, 1, 2, 3}, 4);
  N()->rope(npu, &q.n, &t);
  assert_int_equal(emu->called("RotaryPositionEmbedding"), !old);
  N()->put_rows(npu, &q.n, &x.n, (int32_t[]){-1, 0, 1, 2}); /* one run */
  assert_int_equal(emu->called("InplaceIndexCopy"), 0);
  struct pair many = make(12, 2 * 256, false, 1);
  N()->put_rows(npu, &many.n, &x.n, (int32_t[]){3, -1, 0, -1, 3, 1, 3, 1, -1, 2, 0, -1});
  assert_int_equal(emu->called("InplaceIndexCopy"), !old);
  for (int i = 0; i < 4; i++) {
    static const struct {
      enum dtype type;
      int rows, cols;
      bool groups;
    } w[] = {{DTYPE_Q8_0, 6, 64, true}, {DTYPE_Q4_0, 6, 64, true}, {DTYPE_Q8_0, 6, 32, false}, {DTYPE_Q8_0, 2, 65536, false}};
    struct weight one = make_weight(w[i].type, 0, w[i].rows, w[i].cols);
    const struct weight *ones[] = {&one};
    const void *source = one.source;
    struct pair in = make(1, w[i].cols, false, 1), out = make(1, w[i].rows, false, 1);
    uint64_t before = emu->called("WeightQuantBatchMatmulV2"), dense = emu->called("Mm");
    if (N()->weight_bind(npu, &one, 1, "w", &e)) fail_msg("%s", e.msg);
    N()->linear(npu, 1, ones, (struct tensor *[]){&out.n}, &in.n);
    bool groups = w[i].groups && !old;
    assert_int_equal(emu->called("WeightQuantBatchMatmulV2") - before, groups);
    assert_int_equal(emu->called("Mm") - dense, !groups);
    N()->fetch(npu, &out.host, &out.n);
    well("linear");
    for (int n = 0; n < w[i].rows; n++) {
      double want, bound;
      product(&one, &in.c, 0, n, &want, &bound);
      assert_true(fabs((double)tensor_row(&out.host, 0)[n] - want) <= bound);
    }
    N()->weight_free(npu, &one, 1);
    free_source(source);
    drop(&in), drop(&out);
  }
  N()->rope_free(npu, &t);
  drop(&x), drop(&y), drop(&q), drop(&many);
}

/* ---- recorded ---------------------------------------------------------------------------------------------------------------------------- */

struct small { /* a step of one of everything that may be recorded */
  struct batch b;
  int32_t *arrays[12];
  struct weight embed, table, w, gate[EXPERTS], up[EXPERTS], down[EXPERTS];
  const void *sources[3 + 3 * EXPERTS];
  float *vectors; /* scale of the experts, a norm */
  struct rope_table rope;
  struct tensor h, q, u, room, logits, out, host;
};

enum { STEP_ROWS = 6, STEP_OUT = 3, VOCAB = 50 };

static void small_batch(struct small *s, bool other) {
  struct batch *b = &s->b;
  b->n_rows = STEP_ROWS, b->n_seqs = 1, b->n_out = STEP_OUT;
  for (int r = 0; r < STEP_ROWS; r++) {
    b->token[r] = (other ? 7 * r + 3 : r * r) % VOCAB;
    b->seq[r] = r == 4 && other ? 1000 : b->token[r]; /* what is looked up in a smaller table */
    b->pos[r] = other ? 200 + r : r;
    b->lo[BATCH_CROSS][r] = 1, b->hi[BATCH_CROSS][r] = (r + other) % 2 ? 3 : 0;
    b->soft[r] = other ? r : STEP_ROWS - r;
  }
  for (int i = 0; i < STEP_OUT; i++) b->out[i] = other ? 2 * i + 1 : i;
}

static void small_open(struct small *s) {
  struct err e = {0};
  memset(s, 0, sizeof *s);
  struct batch *b = &s->b;
  int32_t **fields[] = {&b->token, &b->soft, &b->pos, &b->seq, &b->q_start, &b->out, &b->lo[BATCH_CROSS], &b->hi[BATCH_CROSS]};
  for (size_t i = 0; i < ARRAY_LEN(fields); i++) *fields[i] = s->arrays[i] = xcalloc(ROWS_MAX + 1, sizeof(int32_t));
  b->rows_max = ROWS_MAX, b->seqs_max = 4, b->out_max = ROWS_MAX;
  s->vectors = numbers(EXPERTS + HIDDEN, 1);
  s->sources[0] = (s->embed = make_weight(DTYPE_Q8_0, 0, VOCAB, HIDDEN)).source;
  s->sources[1] = (s->table = make_weight(DTYPE_Q4_0, 0, VOCAB, 2 * HIDDEN)).source;
  s->sources[2] = (s->w = make_weight(DTYPE_Q4_0, 0, HIDDEN, HIDDEN)).source;
  for (int i = 0; i < EXPERTS; i++) {
    s->sources[3 + 3 * i] = (s->gate[i] = make_weight(DTYPE_F32, 0, FFN, HIDDEN)).source;
    s->sources[4 + 3 * i] = (s->up[i] = make_weight(DTYPE_F32, 0, FFN, HIDDEN)).source;
    s->sources[5 + 3 * i] = (s->down[i] = make_weight(DTYPE_F32, 0, HIDDEN, FFN)).source;
  }
  if (N()->weight_bind(npu, &s->embed, 1, "embed", &e) || N()->table_bind(npu, &s->table, "table", &e) ||
      N()->weight_bind(npu, &s->w, 1, "w", &e) || N()->weight_bind(npu, s->gate, EXPERTS, "gate", &e) ||
      N()->weight_bind(npu, s->up, EXPERTS, "up", &e) || N()->weight_bind(npu, s->down, EXPERTS, "down", &e) ||
      N()->rope_init(npu, &s->rope, HIDDEN / 2, 10000, 1, 1, &e) || N()->hold(npu, s->vectors, EXPERTS + HIDDEN, &e) ||
      N()->hold_batch(npu, b, &e))
    fail_msg("%s", e.msg);
  struct tensor *ts[] = {&s->h, &s->q, &s->u, &s->room, &s->out};
  for (size_t i = 0; i < ARRAY_LEN(ts); i++)
    if (N()->alloc(npu, ts[i], STEP_ROWS, HIDDEN, "step", &e)) fail_msg("%s", e.msg);
  if (N()->alloc(npu, &s->logits, STEP_ROWS, EXPERTS, "logits", &e) || N()->host_alloc(npu, &s->host, STEP_ROWS, HIDDEN, "out", &e))
    fail_msg("%s", e.msg);
  s->out.rows = STEP_OUT;
  small_batch(s, false);
}

static void small_close(struct small *s) {
  struct err e = {0};
  struct tensor *ts[] = {&s->h, &s->q, &s->u, &s->room, &s->out, &s->logits};
  for (size_t i = 0; i < ARRAY_LEN(ts); i++) N()->free(npu, ts[i]);
  N()->host_free(npu, &s->host);
  N()->hold_batch(npu, NULL, &e);
  N()->drop(npu, s->vectors);
  N()->rope_free(npu, &s->rope);
  N()->weight_free(npu, &s->embed, 1), N()->weight_free(npu, &s->table, 1), N()->weight_free(npu, &s->w, 1);
  N()->weight_free(npu, s->gate, EXPERTS), N()->weight_free(npu, s->up, EXPERTS), N()->weight_free(npu, s->down, EXPERTS);
  for (size_t i = 0; i < ARRAY_LEN(s->sources); i++) free_source(s->sources[i]);
  for (int i = 0; i < 8; i++) free(s->arrays[i]);
  free(s->vectors);
}

static void small_ops(struct small *s) {
  const struct batch *b = &s->b;
  const struct device_ops *n = N();
  const float *norm = s->vectors + EXPERTS;
  const struct weight *w = &s->w;
  struct tensor *q = &s->q;
  struct tensor first = tensor_part(s->u, 0, STEP_ROWS, 0, EXPERTS);
  struct moe m = {EXPERTS, USED, s->gate, s->up, s->down, s->vectors};
  n->embed(npu, &s->h, &s->embed, b->token, 8);
  n->embed_add(npu, &s->h, &s->table, 32, b->seq, 2);
  n->rope_step(npu, &s->rope, b->pos, STEP_ROWS);
  n->rmsnorm(npu, &s->u, &s->h, norm, 1, 1e-6f);
  n->linear(npu, 1, &w, &q, &s->u);
  n->rmsnorm(npu, q, q, NULL, 2, 1e-6f);
  n->rope(npu, q, &s->rope);
  n->gated(npu, q, q, &s->u, ACT_GELU_TANH);
  n->add_rmsnorm(npu, &s->h, q, norm, 1e-6f);
  n->add_scaled(npu, &s->h, &s->u, 0.5f, b->lo[BATCH_CROSS], b->hi[BATCH_CROSS]);
  n->linear_gated(npu, q, w, w, &s->u, ACT_SIGMOID, &s->room);
  n->add(npu, &s->h, q);
  n->rmsnorm(npu, &s->u, &s->h, norm, 1, 1e-6f);
  n->copy(npu, &s->logits, &first);
  n->moe(npu, &m, q, &s->u, &s->logits, ACT_SILU);
  n->add(npu, &s->h, q);
  n->scale(npu, &s->h, &s->h, 0.7f);
  n->gather(npu, &s->out, &s->h, b->out);
  n->softcap(npu, &s->out, &s->out, 30);
}

static void small_result(struct small *s, float out[STEP_OUT * HIDDEN]) {
  N()->fetch(npu, &s->host, &s->out);
  for (int r = 0; r < STEP_OUT; r++) memcpy(out + r * HIDDEN, tensor_row(&s->host, r), HIDDEN * sizeof *out);
}

static void small_step(struct small *s, bool other, float out[STEP_OUT * HIDDEN]) {
  small_batch(s, other);
  N()->step(npu, &s->b);
  small_ops(s);
  small_result(s, out);
  well("step");
}

static void recorded(void) {
  struct small s;
  struct err e = {0};
  float first[STEP_OUT * HIDDEN], second[STEP_OUT * HIDDEN], again[STEP_OUT * HIDDEN];
  small_open(&s);
  small_step(&s, true, second);
  small_step(&s, false, first);
  assert_memory_not_equal(first, second, sizeof first);
  for (int i = 0; i < STEP_OUT * HIDDEN; i++) assert_true(isfinite(first[i]) && isfinite(second[i]));
  if (!N()->no_records(npu)) {
    struct device_record *r = N()->record_new(npu, 1000, 1024, &e);
    if (!r) fail_msg("%s", e.msg);
    N()->step(npu, &s.b);
    N()->record_begin(npu, r);
    small_ops(&s);
    N()->record_end(npu, r);
    well("record");
    assert_true(N()->record_launches(r) > 0);
    for (int i = 0; i < 5; i++) {
      small_batch(&s, i % 2 == 0);
      N()->step(npu, &s.b);
      N()->record_replay(npu, r);
      small_result(&s, again);
      well("replay");
      assert_memory_equal(again, i % 2 ? first : second, sizeof again);
    }
    N()->record_delete(npu, r);
    well("record_delete");
  }
  small_close(&s);
}

/* Whichever operator refuses, or fails later, finish says so once and names it, and the next step is right again. */
static void failures(void) {
  static const char *const operators[] = {"Embedding",
                                          "IndexSelect",
                                          "InplaceMuls",
                                          "Cast",
                                          "Mul",
                                          "InplaceCopy",
                                          "LtScalar",
                                          "GtScalar",
                                          "InplaceMaskedFillScalar",
                                          "InplaceAdd",
                                          "RmsNorm",
                                          "RotaryPositionEmbedding",
                                          "GeluV2",
                                          "InplaceMul",
                                          "Add",
                                          "SWhere",
                                          "MoeInitRoutingV2",
                                          "GroupedMatmulV4",
                                          "MoeFinalizeRoutingV2",
                                          "Silu",
                                          "Sigmoid",
                                          "InplaceTanh"};
  const struct acl_emu *emu = npu_emu();
  struct small s;
  float right[STEP_OUT * HIDDEN], got[STEP_OUT * HIDDEN];
  small_open(&s);
  small_step(&s, false, right);
  for (size_t i = 0; i < ARRAY_LEN(operators); i++) {
    struct err e = {0};
    char where[80];
    snprintf(where, sizeof where, "op %s", operators[i]);
    emu->fault(where, 1, 561103);
    N()->step(npu, &s.b);
    small_ops(&s);
    small_result(&s, got);
    for (int k = 0; k < STEP_OUT * HIDDEN; k++) assert_true(isnan(got[k]));
    int failed = N()->finish(npu, &e);
    emu->fault(NULL, 0, 0);
    if (!failed || !strstr(e.msg, operators[i])) fail_msg("%s refuses: finish says \"%s\"", operators[i], e.msg);
    small_step(&s, false, got);
    assert_memory_equal(got, right, sizeof got);
  }
  small_close(&s);
}

/* Whenever memory runs out or a copy fails while weights are bound: a sentence, and nothing is kept. */
static void binding_fails(void) {
  const struct acl_emu *emu = npu_emu();
  static const char *const calls[] = {"aclrtMalloc", "aclrtMallocHost", "aclrtMemcpy"};
  struct acl_emu_counts before, after;
  emu->counts(&before);
  for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
    for (int n = 1; n < 6; n++) {
      struct err e = {0};
      struct weight w[2] = {make_weight(DTYPE_Q8_0, 0, 40, 64), make_weight(DTYPE_Q4_0, 0, 40, 64)};
      const void *sources[] = {w[0].source, w[1].source};
      emu->fault(calls[i], n, 207001);
      int rc = N()->weight_bind(npu, w, 2, "some.weight", &e);
      emu->fault(NULL, 0, 0);
      if (rc) assert_true(strlen(e.msg) > 20 && strstr(e.msg, "some.weight") && !w[0].packed && !w[1].packed);
      else N()->weight_free(npu, w, 2);
      for (int k = 0; k < 2; k++) free_source(sources[k]);
      well("binding");
    }
  }
  struct err e = {0};
  int32_t source[4] = {0};
  struct weight w = {.dtype = DTYPE_I32, .rows = 1, .cols = 4, .row_bytes = 16, .source = source};
  assert_int_equal(N()->weight_bind(npu, &w, 1, "whole.numbers", &e), -1);
  assert_non_null(strstr(e.msg, "whole.numbers"));
  emu->counts(&after);
  assert_int_equal(before.device_blocks, after.device_blocks);
  assert_int_equal(before.host_blocks, after.host_blocks);
}

/* The same when the device works as late as it may, and adds up in another order. */
static void late(void) {
  npu_emu()->lazy(1);
  npu_emu()->other_order(1);
  rows_moved();
  embed();
  experts();
  recorded();
}

/* Each in every profile, from open to close. */
#define EACH_PROFILE(name)                                                                                                                 \
  static void name##_body(void) {                                                                                                          \
    open_both();                                                                                                                           \
    name();                                                                                                                                \
    close_both();                                                                                                                          \
  }                                                                                                                                        \
  static void test_##name(void **state) {                                                                                                  \
    (void)state;                                                                                                                           \
    npu_each_profile(name##_body);                                                                                                         \
  }
EACH_PROFILE(elementwise)
EACH_PROFILE(gated_together)
EACH_PROFILE(norms)
EACH_PROFILE(rows_moved)
EACH_PROFILE(argmax)
EACH_PROFILE(linear)
EACH_PROFILE(linear_gated)
EACH_PROFILE(wide_head)
EACH_PROFILE(embed)
EACH_PROFILE(rope)
EACH_PROFILE(experts)
EACH_PROFILE(roads)
EACH_PROFILE(recorded)
EACH_PROFILE(failures)
EACH_PROFILE(binding_fails)
EACH_PROFILE(late)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_elementwise),  cmocka_unit_test(test_gated_together), cmocka_unit_test(test_norms),
    cmocka_unit_test(test_rows_moved),   cmocka_unit_test(test_argmax),         cmocka_unit_test(test_linear),
    cmocka_unit_test(test_linear_gated), cmocka_unit_test(test_wide_head),      cmocka_unit_test(test_embed),
    cmocka_unit_test(test_rope),         cmocka_unit_test(test_experts),        cmocka_unit_test(test_roads),
    cmocka_unit_test(test_recorded),     cmocka_unit_test(test_failures),       cmocka_unit_test(test_binding_fails),
    cmocka_unit_test(test_late),
};
TEST_MAIN(tests)
