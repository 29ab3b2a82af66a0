/* t_moe.c — a mixture of experts against one row at a time: to the bit against the device's own products of each matrix, and within bounds against
 * float64 loops. Shapes are random: groups of every length, widths that are no multiple of anything, one expert, all experts, all rows on one expert.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/device.h"

enum { ROWS_MOST = 300, CASES = 400 / TEST_LESS };

struct world { /* one random case on one device */
  struct device *d;
  struct moe_shape shape;
  struct moe m;
  enum dtype in, out;     /* of gate and up, of down */
  struct weight *weights; /* [3 * n_experts] */
  float *scale;
  struct tensor x, y, logits;
};

static const enum dtype plain_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
static const enum dtype block_types[] = {DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q8_0};

static void fill_weight(struct weight *w, enum dtype t, int rows, int cols, uint64_t *rand) {
  *w = (struct weight){.dtype = t, .rows = rows, .cols = cols};
  assert_true(dtype_row_bytes(t, (size_t)cols, &w->row_bytes));
  unsigned char *source = xcalloc((size_t)rows, w->row_bytes);
  float *x = xcalloc((size_t)cols, sizeof *x);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < cols; c++) x[c] = test_rand_normal(rand) / sqrtf((float)cols);
    dtype_from_f32(t, x, source + (size_t)r * w->row_bytes, (size_t)cols);
  }
  free(x);
  w->source = source;
}

/* k NULL: the best that there is. */
static void world_open(struct world *w, const struct kern *k, int threads, const struct moe_shape *shape, enum dtype in, enum dtype out,
                       uint64_t seed) {
  struct err e = {0};
  uint64_t rand = seed;
  int n = shape->n_experts;
  memset(w, 0, sizeof *w);
  w->shape = *shape;
  w->in = in;
  w->out = out;
  struct device_config c = {
      .isa = k ? k->isa : ISA_AUTO, .n_threads = threads, .rows_max = 1, .cols_max = MAX(shape->hidden, shape->ffn), .experts = *shape};
  w->d = device_cpu_ops.open(&c, &e);
  if (!w->d) fail_msg("%s", e.msg);
  if (k) w->d->kern = k; /* any variant of the level */
  w->weights = xcalloc((size_t)(3 * n), sizeof *w->weights);
  w->scale = xcalloc((size_t)n, sizeof *w->scale);
  for (int i = 0; i < n; i++) {
    w->scale[i] = 0.5f + (float)test_rand_int(&rand, 0, 100) / 100;
    fill_weight(&w->weights[i], in, shape->ffn, shape->hidden, &rand);
    fill_weight(&w->weights[n + i], in, shape->ffn, shape->hidden, &rand);
    fill_weight(&w->weights[2 * n + i], out, shape->hidden, shape->ffn, &rand);
  }
  w->m = (struct moe){n, shape->n_used, w->weights, w->weights + n, w->weights + 2 * n, w->scale};
  for (int i = 0; i < 3; i++)
    if (w->d->ops->weight_bind(w->d, w->weights + i * n, n, "experts", &e)) fail_msg("%s", e.msg);
  const struct {
    struct tensor *t;
    int cols;
  } need[] = {{&w->x, shape->hidden}, {&w->y, shape->hidden}, {&w->logits, n}};
  for (size_t i = 0; i < ARRAY_LEN(need); i++)
    if (w->d->ops->alloc(w->d, need[i].t, shape->rows_max, need[i].cols, "test", &e)) fail_msg("%s", e.msg);
}

static void world_close(struct world *w) {
  int n = w->shape.n_experts;
  for (int i = 0; i < 3 * n; i++)
    if (w->d->kern->isa != ISA_REF || !w->weights[i].packed) free((void *)(uintptr_t)w->weights[i].source);
  for (int i = 0; i < 3; i++) w->d->ops->weight_free(w->d, w->weights + i * n, n);
  free(w->weights);
  free(w->scale);
  w->d->ops->close(w->d);
}

static void fill_rows(struct world *w, int rows, bool crowded, uint64_t *rand) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < w->shape.hidden; c++) tensor_row(&w->x, r)[c] = test_rand_normal(rand);
    for (int e = 0; e < w->shape.n_experts; e++)
      tensor_row(&w->logits, r)[e] = 2 * test_rand_normal(rand) + (crowded ? 8.0f * (float)(e % 7) : 0);
    if (test_rand_int(rand, 0, 9) == 0) /* ties */
      for (int e = 0; e < w->shape.n_experts; e++) tensor_row(&w->logits, r)[e] = (float)test_rand_int(rand, 0, 2);
  }
}

/* The n_used greatest, one at a time, the lowest index on ties; ascending. */
static void choose(const float *logits, int n_experts, int n_used, bool *chosen) {
  memset(chosen, 0, (size_t)n_experts);
  for (int i = 0; i < n_used; i++) {
    int best = -1;
    for (int e = 0; e < n_experts; e++)
      if (!chosen[e] && (best < 0 || logits[e] > logits[best])) best = e;
    chosen[best] = true;
  }
}

static struct tensor scratch_row(float *data, int cols) {
  return (struct tensor){DTYPE_F32, 1, cols, align_up((size_t)cols * 4, 64), data};
}

/* y of one row by the device's products of one row; and in float64 from the dequantised weights. */
static void slow_row(struct world *w, const float *x, const float *logits, float *y, double *exact) {
  int n = w->shape.n_experts, hidden = w->shape.hidden, ffn = w->shape.ffn;
  bool *chosen = xcalloc((size_t)n, 1);
  int32_t *list = xcalloc((size_t)w->shape.n_used, sizeof *list);
  float *share = xcalloc((size_t)w->shape.n_used, sizeof *share), *row = xcalloc((size_t)MAX(hidden, ffn), sizeof *row);
  float *buffers = xcalloc(3, (size_t)MAX(hidden, ffn) * sizeof *buffers);
  double *mid = xcalloc((size_t)ffn, sizeof *mid), sum = 0;
  choose(logits, n, w->shape.n_used, chosen);
  moe_route(logits, w->scale, n, w->shape.n_used, list, share);
  memset(y, 0, (size_t)hidden * sizeof *y);
  for (int e = 0; e < n; e++) sum += chosen[e] ? exp((double)logits[e]) : 0;
  for (int c = 0; exact && c < hidden; c++) exact[c] = 0;
  for (int e = 0, at = 0; e < n; e++) {
    if (!chosen[e]) continue;
    assert_int_equal(list[at], e);
    double exact_share = exp((double)logits[e]) / sum * (double)w->scale[e];
    assert_true(fabs(exact_share - (double)share[at]) < 1e-5 * exact_share + 1e-7);
    struct tensor in = scratch_row((float *)(uintptr_t)x, hidden), gate = scratch_row(buffers, ffn),
                  up = scratch_row(buffers + MAX(hidden, ffn), ffn), out = scratch_row(buffers + 2 * MAX(hidden, ffn), hidden);
    w->d->ops->linear(w->d, 2, (const struct weight *[]){&w->m.gate[e], &w->m.up[e]}, (struct tensor *[]){&gate, &up}, &in);
    w->d->ops->gated(w->d, &gate, &gate, &up, ACT_GELU_TANH);
    w->d->ops->linear(w->d, 1, (const struct weight *[]){&w->m.down[e]}, (struct tensor *[]){&out}, &gate);
    for (int c = 0; c < hidden; c++) y[c] += share[at] * tensor_row(&out, 0)[c];
    for (int i = 0; exact && i < ffn; i++) {
      double g = 0, u = 0;
      dtype_to_f32(w->in, (const char *)w->m.gate[e].source + (size_t)i * w->m.gate[e].row_bytes, row, (size_t)hidden);
      for (int c = 0; c < hidden; c++) g += (double)x[c] * (double)row[c];
      dtype_to_f32(w->in, (const char *)w->m.up[e].source + (size_t)i * w->m.up[e].row_bytes, row, (size_t)hidden);
      for (int c = 0; c < hidden; c++) u += (double)x[c] * (double)row[c];
      mid[i] = 0.5 * g * (1 + tanh(0.79788456080286536 * (g + 0.044715 * g * g * g))) * u;
    }
    for (int c = 0; exact && c < hidden; c++) {
      double o = 0;
      dtype_to_f32(w->out, (const char *)w->m.down[e].source + (size_t)c * w->m.down[e].row_bytes, row, (size_t)ffn);
      for (int i = 0; i < ffn; i++) o += mid[i] * (double)row[i];
      exact[c] += exact_share * o;
    }
    at++;
  }
  free(chosen);
  free(list);
  free(share);
  free(row);
  free(buffers);
  free(mid);
}

static void run(struct world *w, int rows) {
  struct tensor x = tensor_rows(w->x, rows), y = tensor_rows(w->y, rows), logits = tensor_rows(w->logits, rows);
  mem_guard_begin("moe");
  w->d->ops->moe(w->d, &w->m, &y, &x, &logits, ACT_GELU_TANH);
  mem_guard_end();
}

/* The bits of y for rows; owned. */
static float *bits_of(const struct world *w, int rows) {
  size_t hidden = (size_t)w->shape.hidden;
  float *all = xcalloc((size_t)rows * hidden, sizeof *all);
  for (int r = 0; r < rows; r++) memcpy(all + (size_t)r * hidden, tensor_row(&w->y, r), hidden * sizeof *all);
  return all;
}

static struct moe_shape random_shape(uint64_t *rand, bool blocks, int round) {
  struct moe_shape s;
  s.n_experts = test_rand_int(rand, 1, round % 5 == 0 ? 24 : 7);
  s.n_used = round % 4 == 0 ? 1 : round % 4 == 1 ? s.n_experts : test_rand_int(rand, 1, s.n_experts);
  s.hidden = blocks ? 32 * test_rand_int(rand, 1, 4) : test_rand_int(rand, 1, 70);
  s.ffn = blocks ? 32 * test_rand_int(rand, 1, 3) : test_rand_int(rand, 1, 50);
  s.rows_max = round % 23 == 0 ? ROWS_MOST : test_rand_int(rand, 1, 40);
  return s;
}

static void one_case(const struct kern *k, uint64_t *rand, int round, double *worst) {
  bool blocks = round % 2 == 0;
  struct moe_shape shape = random_shape(rand, blocks, round);
  enum dtype in = blocks ? block_types[test_rand_int(rand, 0, 3)] : plain_types[test_rand_int(rand, 0, 2)];
  enum dtype out = blocks ? block_types[test_rand_int(rand, 0, 3)] : plain_types[test_rand_int(rand, 0, 2)];
  struct world w;
  world_open(&w, k, 1 + round % 3, &shape, in, out, (uint64_t)round + 1);
  fill_rows(&w, shape.rows_max, round % 3 == 0, rand);
  run(&w, shape.rows_max);
  float *all = bits_of(&w, shape.rows_max), *y = xcalloc((size_t)shape.hidden, sizeof *y);
  double *exact = xcalloc((size_t)shape.hidden, sizeof *exact);
  size_t row_bytes = (size_t)shape.hidden * sizeof(float);
  for (int r = 0; r < shape.rows_max; r++) {
    bool in_float64 = k->isa == ISA_REF && (r < 3);
    slow_row(&w, tensor_row(&w.x, r), tensor_row(&w.logits, r), y, in_float64 ? exact : NULL);
    if (memcmp(all + (size_t)r * (size_t)shape.hidden, y, row_bytes))
      fail_msg("round %d: %s, %d experts, %d used, %d x %d, %s and %s, row %d of %d differs from products of one row", round,
               w.d->kern->name, shape.n_experts, shape.n_used, shape.hidden, shape.ffn, dtype_info(in)->name, dtype_info(out)->name, r,
               shape.rows_max);
    double size = 0;
    for (int c = 0; c < shape.hidden; c++) size += exact[c] * exact[c];
    for (int c = 0; in_float64 && c < shape.hidden; c++)
      *worst = MAX(*worst, fabs(exact[c] - (double)y[c]) / (sqrt(size / shape.hidden) + 1e-3));
  }
  for (int i = 0; i < 3; i++) { /* fewer rows, and only one of them: the same bits */
    int rows = test_rand_int(rand, 1, shape.rows_max), first = test_rand_int(rand, 0, shape.rows_max - rows);
    struct tensor x = tensor_rows(w.x, rows), z = tensor_rows(w.y, rows), logits = tensor_rows(w.logits, rows);
    x.data = tensor_row(&w.x, first);
    logits.data = tensor_row(&w.logits, first);
    w.d->ops->moe(w.d, &w.m, &z, &x, &logits, ACT_GELU_TANH);
    for (int r = 0; r < rows; r++) assert_memory_equal(tensor_row(&w.y, r), all + (size_t)(first + r) * (size_t)shape.hidden, row_bytes);
  }
  free(all);
  free(y);
  free(exact);
  world_close(&w);
}

static void random_cases(void **state) {
  (void)state;
  const struct kern *k;
  for (int i = 0; (k = kern_variant(i)); i++) {
    uint64_t rand = 77;
    double worst = 0;
    for (int round = 0; round < CASES; round++) one_case(k, &rand, round, &worst);
    if (k->isa == ISA_REF) printf("  %d cases, worst difference from float64 %.2g of the rms\n", CASES, worst);
    assert_true(worst < 1e-4);
  }
}

/* More rows on one expert than a tile of products holds. */
static void all_rows_on_one_expert(void **state) {
  (void)state;
  uint64_t rand = 78;
  for (int blocks = 0; blocks < 2; blocks++) {
    struct moe_shape shape = {ROWS_MOST, 64, 96, 5, 2};
    struct world w;
    world_open(&w, NULL, 2, &shape, blocks ? DTYPE_Q4_0 : DTYPE_BF16, blocks ? DTYPE_Q8_0 : DTYPE_F32, 3);
    fill_rows(&w, ROWS_MOST, false, &rand);
    for (int r = 0; r < ROWS_MOST; r++) tensor_row(&w.logits, r)[3] = 50, tensor_row(&w.logits, r)[r % 2] = 40;
    run(&w, ROWS_MOST);
    float y[64];
    for (int r = 0; r < ROWS_MOST; r++) {
      slow_row(&w, tensor_row(&w.x, r), tensor_row(&w.logits, r), y, NULL);
      assert_memory_equal(tensor_row(&w.y, r), y, sizeof y);
    }
    world_close(&w);
  }
}

/* Choices are made anew in each replay, and the number of items with them. */
static void recorded(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads++) {
    uint64_t rand = 79;
    struct err e = {0};
    struct moe_shape shape = {9, 64, 96, 12, 3};
    struct world w, eager;
    world_open(&w, NULL, threads, &shape, DTYPE_Q4_0, DTYPE_Q8_0, 4);
    world_open(&eager, NULL, 1, &shape, DTYPE_Q4_0, DTYPE_Q8_0, 4);
    struct record *record = record_new(8, 8 * 256, &e);
    assert_non_null(record);
    for (int step = 0; step < 200; step++) {
      fill_rows(&w, shape.rows_max, step % 3 == 0, &rand);
      if (step % 5 == 0) /* all on the same experts */
        for (int r = 1; r < shape.rows_max; r++) memcpy(tensor_row(&w.logits, r), tensor_row(&w.logits, 0), 12 * sizeof(float));
      for (int r = 0; r < shape.rows_max; r++) {
        memcpy(tensor_row(&eager.x, r), tensor_row(&w.x, r), 64 * sizeof(float));
        memcpy(tensor_row(&eager.logits, r), tensor_row(&w.logits, r), 12 * sizeof(float));
      }
      if (step == 0) {
        workers_record(w.d->workers, record);
        run(&w, shape.rows_max);
        workers_record(w.d->workers, NULL);
      } else workers_replay(w.d->workers, record);
      run(&eager, shape.rows_max);
      for (int r = 0; r < shape.rows_max; r++) assert_memory_equal(tensor_row(&w.y, r), tensor_row(&eager.y, r), 64 * sizeof(float));
    }
    assert_true(record_launches(record) <= 6);
    record_delete(record);
    world_close(&w);
    world_close(&eager);
  }
}

/* What is not a number stays in its row; every row still chooses different experts. */
static void not_finite(void **state) {
  (void)state;
  uint64_t rand = 80;
  struct moe_shape shape = {40, 64, 32, 6, 3};
  struct world w;
  world_open(&w, NULL, 2, &shape, DTYPE_Q8_0, DTYPE_Q8_0, 5);
  fill_rows(&w, 40, false, &rand);
  run(&w, 40);
  float *before = bits_of(&w, 40);
  tensor_row(&w.logits, 7)[2] = NAN;
  tensor_row(&w.logits, 11)[0] = INFINITY;
  for (int i = 0; i < 6; i++) tensor_row(&w.logits, 13)[i] = -INFINITY;
  tensor_row(&w.x, 17)[5] = NAN;
  run(&w, 40);
  for (int r = 0; r < 40; r++) {
    bool bad = r == 7 || r == 11 || r == 13 || r == 17;
    if (!bad) assert_memory_equal(tensor_row(&w.y, r), before + r * 64, 64 * sizeof(float));
    for (int c = 0; bad && c < 64; c++) assert_false(isfinite(tensor_row(&w.y, r)[c]));
  }
  float logits[9], scale[9], share[9];
  int32_t chosen[9];
  for (int round = 0; round < 2000; round++) {
    int n = test_rand_int(&rand, 1, 9), k = test_rand_int(&rand, 1, n);
    for (int i = 0; i < n; i++) {
      int what = test_rand_int(&rand, 0, 6);
      logits[i] = what == 0 ? NAN : what == 1 ? INFINITY : what == 2 ? -INFINITY : test_rand_normal(&rand);
      scale[i] = 1;
    }
    moe_route(logits, scale, n, k, chosen, share);
    for (int i = 0; i < k; i++) assert_true(chosen[i] >= 0 && chosen[i] < n && (i == 0 || chosen[i] > chosen[i - 1]));
  }
  free(before);
  world_close(&w);
}

static void memory_shortage_is_an_error(void **state) {
  (void)state;
  struct moe_shape shape = {40, 64, 32, 6, 3};
  struct moe_scratch s;
  struct err e = {0};
  mem_fail_after(1);
  assert_int_equal(moe_scratch_init(&s, &shape, 2, &e), -1);
  mem_fail_after(0);
  assert_int_equal(e.code, ERR_NO_MEMORY);
  moe_scratch_free(&s);
  assert_int_equal(moe_scratch_init(&s, &shape, 2, &e), 0);
  assert_int_equal(s.n_bytes, moe_scratch_bytes(&shape, 2));
  moe_scratch_free(&s);
  assert_int_equal(moe_scratch_bytes(&(struct moe_shape){0}, 2), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_cases), cmocka_unit_test(all_rows_on_one_expert),      cmocka_unit_test(recorded),
    cmocka_unit_test(not_finite),   cmocka_unit_test(memory_shortage_is_an_error),
};
TEST_MAIN(tests)
