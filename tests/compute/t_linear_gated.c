/* t_linear_gated.c — act(x · gateᵀ) ⊙ (x · upᵀ) in one operation, in every variant of the kernels that this machine has: to the bit what linear and gated
 * give one after the other, whatever the rows and threads, and near loops in float64.
 *
 * y and the room for the second product are parts of larger tensors and hold NaN before: nothing but y's own numbers may change beside that room.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/act_exact.h"
#include "compute/device.h"

enum { ROWS_MOST = 270, EXACT_ROWS = 5, BEYOND = 7 };

/* Descending, for rows of a call are those of the one before. The first is more than a tile of products, and is tried with one activation only. */
static const int row_counts[] = {ROWS_MOST, 40, 17, EXACT_ROWS, 1, 0};
static const enum act acts[] = {ACT_GELU_TANH, ACT_SILU, ACT_SIGMOID, ACT_GELU_ERF, ACT_RELU, ACT_NONE};

/* Both of codes, both plain, one of each; the widest are several items of work even for one row, the others end within a panel. */
static const struct shape {
  enum dtype gate, up;
  int ffn, cols;
} shapes[] = {{DTYPE_F32, DTYPE_F32, 83, 250},   {DTYPE_F16, DTYPE_F16, 33, 64},      {DTYPE_BF16, DTYPE_BF16, 250, 320},
              {DTYPE_Q8_0, DTYPE_Q8_0, 83, 256}, {DTYPE_Q4_0, DTYPE_Q4_0, 1040, 256}, {DTYPE_Q4_K, DTYPE_Q6_K, 96, 512},
              {DTYPE_Q4_0, DTYPE_BF16, 70, 96},  {DTYPE_F32, DTYPE_Q8_0, 16, 64},     {DTYPE_Q8_0, DTYPE_Q4_0, 1, 32}};

struct world { /* one shape: sources, rows, and what float64 makes of the first rows */
  const struct shape *shape;
  struct weight gate, up; /* not bound */
  float *x;               /* [ROWS_MOST, cols] */
  double *g, *u;          /* [EXACT_ROWS, ffn]: the two products */
};

/* --- sources -------------------------------------------------------------------------------------------------------------- */

/* Codes at random, scales of the size that leaves products near 1. */
static void fill_k_blocks(enum dtype t, uint8_t *row, int n_blocks, uint64_t *rand) {
  size_t block_bytes = (size_t)dtype_info(t)->block_bytes;
  for (int b = 0; b < n_blocks; b++, row += block_bytes) {
    for (size_t i = 0; i < block_bytes; i++) row[i] = (uint8_t)test_rand(rand);
    float size = (t == DTYPE_Q6_K ? 0.00004f : 0.0004f) * (1 + (float)test_rand_int(rand, 0, 3));
    uint16_t scale = f32_to_f16(size), least = f32_to_f16(size * 7);
    if (t == DTYPE_Q6_K) memcpy(row + block_bytes - sizeof scale, &scale, sizeof scale);
    else memcpy(row, &scale, sizeof scale), memcpy(row + 2, &least, sizeof least);
  }
}

static struct weight new_weight(enum dtype t, int rows, int cols, uint64_t *rand) {
  struct weight w = {.dtype = t, .rows = rows, .cols = cols};
  assert_true(dtype_row_bytes(t, (size_t)cols, &w.row_bytes));
  uint8_t *source = xcalloc((size_t)rows, w.row_bytes);
  float *x = xcalloc((size_t)cols, sizeof *x);
  for (int r = 0; r < rows; r++) {
    uint8_t *row = source + (size_t)r * w.row_bytes;
    for (int c = 0; c < cols; c++) x[c] = test_rand_normal(rand) / sqrtf((float)cols);
    if (t == DTYPE_Q4_K || t == DTYPE_Q6_K) fill_k_blocks(t, row, cols / dtype_info(t)->block_elems, rand);
    else dtype_from_f32(t, x, row, (size_t)cols);
  }
  free(x);
  w.source = source;
  return w;
}

/* The first rows of x times one matrix. */
static double *exact_products(const struct weight *w, const float *x) {
  double *y = xcalloc((size_t)EXACT_ROWS * (size_t)w->rows, sizeof *y);
  float *row = xcalloc((size_t)w->cols, sizeof *row);
  for (int n = 0; n < w->rows; n++) {
    dtype_to_f32(w->dtype, (const char *)w->source + (size_t)n * w->row_bytes, row, (size_t)w->cols);
    for (int r = 0; r < EXACT_ROWS; r++)
      for (int c = 0; c < w->cols; c++) y[r * w->rows + n] += (double)x[r * w->cols + c] * (double)row[c];
  }
  free(row);
  return y;
}

static void world_open(struct world *w, const struct shape *s, uint64_t seed) {
  w->shape = s;
  w->gate = new_weight(s->gate, s->ffn, s->cols, &seed);
  w->up = new_weight(s->up, s->ffn, s->cols, &seed);
  w->x = xcalloc((size_t)ROWS_MOST * (size_t)s->cols, sizeof *w->x);
  for (int i = 0; i < ROWS_MOST * s->cols; i++) w->x[i] = 1.5f * test_rand_normal(&seed);
  w->g = exact_products(&w->gate, w->x);
  w->u = exact_products(&w->up, w->x);
}

static void world_close(struct world *w) {
  free((void *)(uintptr_t)w->gate.source);
  free((void *)(uintptr_t)w->up.source);
  free(w->x);
  free(w->g);
  free(w->u);
}

/* --- one device ----------------------------------------------------------------------------------------------------------- */

struct setup { /* a world's weights on a device, and tensors for it */
  struct device *d;
  struct weight gate, up;
  struct tensor x, y, room;    /* [ROWS_MOST, ...]; y has BEYOND rows and columns more, the room is wider */
  struct tensor first, second; /* of linear */
  struct tensor want, whole;   /* of linear and gated; of the most rows, in one operation */
};

static void setup_open(struct setup *b, const struct world *w, const struct kern *k, int threads) {
  struct err e = {0};
  const struct shape *s = w->shape;
  struct device_config c = {.isa = k->isa, .n_threads = threads, .rows_max = ROWS_MOST, .cols_max = s->cols};
  if (!(b->d = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  b->d->kern = k; /* any variant of the level */
  b->gate = w->gate;
  b->up = w->up;
  if (b->d->ops->weight_bind(b->d, &b->gate, 1, "gate", &e) || b->d->ops->weight_bind(b->d, &b->up, 1, "up", &e)) fail_msg("%s", e.msg);
  const struct {
    struct tensor *t;
    int rows, cols;
  } need[] = {{&b->x, ROWS_MOST, s->cols},         {&b->y, ROWS_MOST + BEYOND, s->ffn + BEYOND},
              {&b->room, ROWS_MOST, s->ffn + 100}, {&b->first, ROWS_MOST, s->ffn},
              {&b->second, ROWS_MOST, s->ffn},     {&b->want, ROWS_MOST, s->ffn},
              {&b->whole, ROWS_MOST, s->ffn}};
  for (size_t i = 0; i < ARRAY_LEN(need); i++)
    if (b->d->ops->alloc(b->d, need[i].t, need[i].rows, need[i].cols, "test", &e)) fail_msg("%s", e.msg);
  for (int r = 0; r < ROWS_MOST; r++) memcpy(tensor_row(&b->x, r), w->x + (size_t)r * (size_t)s->cols, (size_t)s->cols * sizeof(float));
}

static void setup_close(struct setup *b) {
  struct tensor *all[] = {&b->x, &b->y, &b->room, &b->first, &b->second, &b->want, &b->whole};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) b->d->ops->free(b->d, all[i]);
  b->d->ops->weight_free(b->d, &b->gate, 1);
  b->d->ops->weight_free(b->d, &b->up, 1);
  b->d->ops->close(b->d);
}

static void fill_with_nan(struct tensor *t, int rows) { memset(t->data, 0xff, (size_t)rows * t->row_bytes); }

/* The first rows, in one operation. Lists and tensors of the call are gone after it. */
static void run(struct setup *b, int rows, enum act act) {
  struct tensor x = tensor_rows(b->x, rows), y = tensor_part(b->y, 0, rows, 0, b->gate.rows),
                room = tensor_part(b->room, 0, rows, 0, b->up.rows);
  b->d->ops->linear_gated(b->d, &y, &b->gate, &b->up, &x, act, &room);
  memset(&x, 0xee, sizeof x), memset(&y, 0xee, sizeof y), memset(&room, 0xee, sizeof room);
}

static void run_apart(struct setup *b, int rows, enum act act) {
  struct tensor x = tensor_rows(b->x, rows), first = tensor_rows(b->first, rows), second = tensor_rows(b->second, rows);
  struct tensor want = tensor_rows(b->want, rows);
  b->d->ops->linear(b->d, 2, (const struct weight *[]){&b->gate, &b->up}, (struct tensor *[]){&first, &second}, &x);
  b->d->ops->gated(b->d, &want, &first, &second, act);
}

/* --- checks --------------------------------------------------------------------------------------------------------------- */

static void expect_rows(const struct setup *b, const struct tensor *want, int rows, enum act act, const char *what) {
  size_t n_bytes = (size_t)b->gate.rows * sizeof(float);
  for (int r = 0; r < rows; r++)
    if (memcmp(tensor_row(&b->y, r), tensor_row(want, r), n_bytes))
      fail_msg("%s, %s and %s, [%d, %d], activation %d: row %d of %d differs from %s", b->d->kern->name, dtype_info(b->gate.dtype)->name,
               dtype_info(b->up.dtype)->name, b->gate.rows, b->gate.cols, act, r, rows, what);
}

static void expect_untouched(const struct setup *b, int rows) {
  for (int r = 0; r < b->y.rows; r++) {
    int from = r < rows ? b->gate.rows : 0;
    const uint8_t *rest = tensor_at(&b->y, r, from);
    size_t n_bytes = (size_t)(b->y.cols - from) * sizeof(float);
    if (rest[0] != 0xff || memcmp(rest, rest + 1, n_bytes - 1)) /* each byte is like the next */
      fail_msg("%s: wrote to row %d from column %d on, beside [%d, %d]", b->d->kern->name, r, from, rows, b->gate.rows);
  }
}

/* Products of codes round activations to 8 bits, those of bf16 to bf16 where the processor can (gemm.h rule 2). */
static double tolerance(const struct kern *k, const struct shape *s) {
  bool codes = dtype_info(s->gate)->quantised || dtype_info(s->up)->quantised;
  bool halves = s->gate == DTYPE_BF16 || s->up == DTYPE_BF16;
  return k->isa == ISA_REF ? 1e-6 : codes ? 2e-2 : halves && k->isa == ISA_AVX512 ? 5e-3 : 2e-6;
}

static double expect_near(const struct setup *b, const struct world *w, enum act act) {
  double squares = 1e-30, differences = 0;
  for (int r = 0; r < EXACT_ROWS; r++)
    for (int n = 0; n < w->shape->ffn; n++) {
      double want = act_exact(act, w->g[r * w->shape->ffn + n]) * w->u[r * w->shape->ffn + n];
      double d = (double)tensor_row(&b->y, r)[n] - want;
      squares += want * want;
      differences += d * d;
    }
  double far = sqrt(differences / squares);
  if (!(far < tolerance(b->d->kern, w->shape)))
    fail_msg("%s, %s and %s, activation %d: %.2g from float64", b->d->kern->name, dtype_info(w->shape->gate)->name,
             dtype_info(w->shape->up)->name, act, far);
  return far;
}

static double check_act(struct setup *b, const struct world *w, enum act act, size_t first) {
  double far = 0;
  for (size_t i = first; i < ARRAY_LEN(row_counts); i++) {
    int rows = row_counts[i];
    fill_with_nan(&b->y, ROWS_MOST + BEYOND);
    fill_with_nan(&b->room, ROWS_MOST);
    mem_guard_begin("linear_gated");
    run(b, rows, act);
    mem_guard_end();
    run_apart(b, rows, act);
    expect_rows(b, &b->want, rows, act, "linear and gated");
    expect_untouched(b, rows);
    for (int r = 0; r < rows && i == first; r++)
      memcpy(tensor_row(&b->whole, r), tensor_row(&b->y, r), (size_t)w->shape->ffn * sizeof(float));
    expect_rows(b, &b->whole, rows, act, "the same row among more");
    if (rows >= EXACT_ROWS) far = MAX(far, expect_near(b, w, act));
  }
  return far;
}

/* --- tests ---------------------------------------------------------------------------------------------------------------- */

static void every_type_and_activation(void **state) {
  (void)state;
  const struct kern *k;
  for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
    struct world w;
    world_open(&w, &shapes[s], 40 + s);
    for (int i = 0; (k = kern_variant(i)); i++) {
      double far = 0;
      for (int threads = 1; threads <= 3; threads += 2) {
        struct setup b;
        setup_open(&b, &w, k, threads);
        for (size_t a = 0; a < ARRAY_LEN(acts); a++) far = MAX(far, check_act(&b, &w, acts[a], a == s % ARRAY_LEN(acts) ? 0 : 1));
        setup_close(&b);
      }
      printf("  %s %s and %s: at most %.2g from float64\n", k->name, dtype_info(shapes[s].gate)->name, dtype_info(shapes[s].up)->name, far);
    }
    world_close(&w);
  }
}

/* What is recorded works on the same memory with other rows in it. */
static void recorded(void **state) {
  (void)state;
  struct err e = {0};
  const struct kern *k;
  struct record *r = record_new(8, 8 * 512, &e);
  if (!r) fail_msg("%s", e.msg);
  for (int i = 0; (k = kern_variant(i)); i++) {
    for (size_t s = 2; s < 5; s += 2) { /* plain; codes */
      for (size_t n = 1; n < ARRAY_LEN(row_counts) - 1; n++) {
        struct world w;
        struct setup b;
        uint64_t seed = 50 + n;
        world_open(&w, &shapes[s], seed);
        setup_open(&b, &w, k, 2);
        record_clear(r);
        workers_record(b.d->workers, r);
        run(&b, row_counts[n], ACT_SILU);
        workers_record(b.d->workers, NULL);
        for (int j = 0; j < row_counts[n] * b.x.cols; j++) tensor_row(&b.x, j / b.x.cols)[j % b.x.cols] = test_rand_normal(&seed);
        fill_with_nan(&b.y, ROWS_MOST + BEYOND);
        fill_with_nan(&b.room, ROWS_MOST);
        mem_guard_begin("replay");
        workers_replay(b.d->workers, r);
        mem_guard_end();
        run_apart(&b, row_counts[n], ACT_SILU);
        expect_rows(&b, &b.want, row_counts[n], ACT_SILU, "linear and gated");
        expect_untouched(&b, row_counts[n]);
        setup_close(&b);
        world_close(&w);
      }
    }
  }
  record_delete(r);
}

/* What is not finite stays so, in its row alone. */
static void not_finite(void **state) {
  (void)state;
  const struct kern *k;
  struct world w;
  world_open(&w, &shapes[0], 60);
  for (int i = 0; (k = kern_variant(i)); i++) {
    struct setup b;
    setup_open(&b, &w, k, 2);
    tensor_row(&b.x, 1)[3] = NAN;
    tensor_row(&b.x, 3)[5] = INFINITY;
    fill_with_nan(&b.y, ROWS_MOST + BEYOND);
    run(&b, EXACT_ROWS, ACT_GELU_TANH);
    for (int r = 0; r < EXACT_ROWS; r++)
      for (int c = 0; c < b.gate.rows; c++) assert_int_equal(isfinite(tensor_row(&b.y, r)[c]) != 0, r != 1 && r != 3 ? 1 : 0);
    setup_close(&b);
  }
  world_close(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_type_and_activation),
    cmocka_unit_test(recorded),
    cmocka_unit_test(not_finite),
};
TEST_MAIN(tests)
