/* t_quant.c — weights quantised at load: the same bits as those of a file that was quantised beforehand, on every level and every road. */
#include "test.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "compute/gemm_kern.h"
#include "compute/gemm_quant.h"
#include "compute/gemm_tiles.h"

static const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
#define EACH_LEVEL(k)                                                                                                                      \
  for (size_t level_ = 0; level_ < ARRAY_LEN(levels); level_++)                                                                            \
    for (const struct kern *k = kern_available(levels[level_]) ? kern_select(levels[level_], NULL) : NULL; k; k = NULL)

static uint64_t seed = 11;

/* A matrix of plain numbers, its rows at odd distances, the last byte at an inaccessible page. */
struct plain {
  struct weight w;
  size_t n_bytes;
  void *data;
};
static struct plain plain_new(enum dtype t, int rows, int cols, size_t gap) {
  size_t size = (size_t)dtype_info(t)->block_bytes, row_bytes = (size_t)cols * size + gap * size;
  struct plain p = {.n_bytes = (size_t)(rows - 1) * row_bytes + (size_t)cols * size};
  p.data = test_guard_alloc(p.n_bytes);
  memset(p.data, 0xff, p.n_bytes);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < cols; c++) {
      float v = test_rand_normal(&seed) * (c / 32 % 5 == 3 ? 0 : r % 7 == 2 ? 30.0f : 0.05f); /* blocks of zeros, too */
      dtype_from_f32(t, &v, (char *)p.data + (size_t)r * row_bytes + (size_t)c * size, 1);
    }
  p.w = (struct weight){.dtype = t, .rows = rows, .cols = cols, .row_bytes = row_bytes, .source = p.data};
  return p;
}

/* The same as a file would hold it in type `to`, by the definition. */
static struct weight quantised_file(const struct weight *w, enum dtype to) {
  struct weight q = {.dtype = to, .rows = w->rows, .cols = w->cols};
  assert_true(dtype_row_bytes(to, (size_t)w->cols, &q.row_bytes));
  char *bytes = malloc((size_t)w->rows * q.row_bytes);
  float *row = malloc((size_t)w->cols * sizeof *row);
  for (int r = 0; r < w->rows; r++) {
    dtype_to_f32(w->dtype, (const char *)w->source + (size_t)r * w->row_bytes, row, (size_t)w->cols);
    dtype_from_f32(to, row, bytes + (size_t)r * q.row_bytes, (size_t)w->cols);
  }
  free(row);
  q.source = bytes;
  return q;
}

static void pack(const struct kern *k, struct workers *workers, struct weight *w) {
  w->packed_bytes = gemm_packed_bytes(k, w);
  if (!w->packed_bytes) return;
  w->packed = test_guard_alloc(w->packed_bytes);
  memset(w->packed, 0xaa, w->packed_bytes);
  gemm_pack(k, workers, w);
}
static void unpack(struct weight *w) {
  if (w->packed) test_guard_free(w->packed, w->packed_bytes);
  w->packed = NULL;
}

static void product(const struct kern *k, const struct weight *w, const struct tensor *x, struct tensor *y) {
  struct gemm_scratch s = {.rows_max = x->rows, .cols_max = x->cols, .n_workers = 1};
  s.n_bytes = gemm_scratch_bytes(s.rows_max, s.cols_max, 1);
  s.data = aligned_alloc(64, align_up(s.n_bytes, 64));
  memset(s.data, 0xff, s.n_bytes);
  gemm(k, NULL, &s, 1, &w, &y, x);
  free(s.data);
}

static struct tensor tensor_new(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * sizeof(float), 64)};
  t.data = aligned_alloc(64, (size_t)rows * t.row_bytes);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < cols; c++) tensor_row(&t, r)[c] = test_rand_normal(&seed);
  return t;
}

/* Packed bytes, products and looked-up rows of `from` marked as `to` against those of the quantised file. */
static void same_as_a_file(const struct kern *k, struct workers *workers, enum dtype from, enum dtype to, int rows, int cols) {
  struct plain p = plain_new(from, rows, cols, (size_t)test_rand_int(&seed, 0, 3));
  struct weight file = quantised_file(&p.w, to), looked = p.w;
  const void *file_bytes = file.source;
  gemm_quant_mark(&p.w, to);
  assert_int_equal(p.w.dtype, to);
  pack(k, workers, &p.w);
  pack(k, workers, &file);
  size_t n_bytes = k->isa == ISA_REF ? (size_t)rows * file.row_bytes : file.packed_bytes;
  assert_int_equal(p.w.packed_bytes, n_bytes);
  assert_memory_equal(p.w.packed, k->isa == ISA_REF ? file_bytes : file.packed, n_bytes);
  struct tensor x = tensor_new(test_rand_int(&seed, 1, 9), cols), y = tensor_new(x.rows, rows), z = tensor_new(x.rows, rows);
  product(k, &p.w, &x, &y);
  product(k, &file, &x, &z);
  for (int r = 0; r < x.rows; r++) assert_memory_equal(tensor_row(&y, r), tensor_row(&z, r), (size_t)rows * sizeof(float));
  /* look-ups: of the bound weight, of one that is only marked, in parts */
  gemm_quant_mark(&looked, to);
  float *a = malloc((size_t)cols * sizeof *a), *b = malloc((size_t)cols * sizeof *b);
  for (int round = 0; round < 6; round++) {
    int row = test_rand_int(&seed, 0, rows - 1), cut = test_rand_int(&seed, 0, cols / 32) * 32;
    dtype_to_f32(to, (const char *)file_bytes + (size_t)row * file.row_bytes, a, (size_t)cols);
    gemm_quant_row(round % 2 ? &looked : &p.w, row, b);
    assert_memory_equal(a, b, (size_t)cols * sizeof *a);
    memset(b, 0xff, (size_t)cols * sizeof *b);
    gemm_quant_part(&looked, row, cut, cols - cut, b + cut);
    gemm_quant_part(&looked, row, 0, cut, b);
    assert_memory_equal(a, b, (size_t)cols * sizeof *a);
  }
  free(a);
  free(b);
  free(x.data);
  free(y.data);
  free(z.data);
  unpack(&p.w);
  unpack(&file);
  free((void *)(uintptr_t)file_bytes);
  test_guard_free(p.data, p.n_bytes);
}

static const enum dtype plain_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16}, to_types[] = {DTYPE_Q8_0, DTYPE_Q4_0};

static void the_bits_of_a_quantised_file(void **s) {
  (void)s;
  EACH_LEVEL(k)
  for (size_t f = 0; f < ARRAY_LEN(plain_types); f++)
    for (size_t t = 0; t < ARRAY_LEN(to_types); t++)
      for (int round = 0; round < 40; round++)
        same_as_a_file(k, NULL, plain_types[f], to_types[t], test_rand_int(&seed, 1, 70), 32 * test_rand_int(&seed, 1, 9));
}

/* Items of packing are cut over the workers where there are many panels. */
static void many_panels_by_workers(void **s) {
  (void)s;
  struct workers *workers = workers_new(3, NULL);
  EACH_LEVEL(k)
  for (size_t t = 0; t < ARRAY_LEN(to_types); t++)
    for (int rows = 255; rows <= 1025; rows += 154) same_as_a_file(k, workers, DTYPE_BF16, to_types[t], rows, 64);
  workers_delete(workers);
}

/* Nothing changes when the type is the file's own, and marking keeps the source. */
static void marking(void **s) {
  (void)s;
  struct plain p = plain_new(DTYPE_BF16, 4, 64, 0);
  struct weight w = p.w;
  gemm_quant_mark(&w, DTYPE_BF16);
  assert_memory_equal(&w, &p.w, sizeof w);
  float x[64], y[64];
  gemm_quant_row(&w, 3, x);
  dtype_to_f32(DTYPE_BF16, (const char *)w.source + 3 * w.row_bytes, y, 64);
  assert_memory_equal(x, y, sizeof x);
  gemm_quant_mark(&w, DTYPE_Q8_0);
  assert_int_equal(w.from, DTYPE_BF16);
  assert_ptr_equal(w.source, p.w.source);
  EACH_LEVEL(k) { /* the size is known before anything is read */
    struct weight planned = {.dtype = DTYPE_Q4_0, .from = DTYPE_F32, .rows = 100, .cols = 64};
    size_t tails = gemm_on_tiles(k, DTYPE_Q4_0) ? gemm_tails_bytes(&planned) : 0;
    assert_int_equal(gemm_packed_bytes(k, &planned), k->isa == ISA_REF ? 100 * 2 * 18 : 112 * 2 * 18 + tails);
  }
  test_guard_free(p.data, p.n_bytes);
}

/* A weight that is not a number makes its outputs so, and only those. */
static void nan_stays(void **s) {
  (void)s;
  EACH_LEVEL(k)
  for (size_t t = 0; t < ARRAY_LEN(to_types); t++) {
    struct plain p = plain_new(DTYPE_F32, 20, 64, 0);
    ((float *)p.data)[7 * 64 + 40] = NAN;
    gemm_quant_mark(&p.w, to_types[t]);
    pack(k, NULL, &p.w);
    struct tensor x = tensor_new(2, 64), y = tensor_new(2, 20);
    product(k, &p.w, &x, &y);
    for (int r = 0; r < 2; r++)
      for (int c = 0; c < 20; c++) assert_int_equal(isnan(tensor_row(&y, r)[c]) != 0, c == 7);
    free(x.data);
    free(y.data);
    unpack(&p.w);
    test_guard_free(p.data, p.n_bytes);
  }
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_bits_of_a_quantised_file),
    cmocka_unit_test(many_panels_by_workers),
    cmocka_unit_test(marking),
    cmocka_unit_test(nan_stays),
};
TEST_MAIN(tests)
