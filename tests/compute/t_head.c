/* t_head.c — logits and their peaks by every road and every variant of the kernels, held to the plain product of all logits.
 *
 * Small matrices: each type that an output matrix comes in, vocabularies that end within a block or a panel, 1 to 20 rows, rows that want all, one, many or
 * none of their logits; numbers that are equal (a cap of 0.01, rows that are there twice), rows of x and of w that are not finite.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/device.h"
#include "compute/gemm_tiles.h"
#include "compute/head_check.h"

enum { ROWS = 20 };
/* Emulated instructions take thousands of times as long. */
#ifdef CYGNET_SIMDE
enum { WORLDS = 3, CALLS = 3, VOCAB_MOST = 700, REPLAYS = 2 };
#else
enum { WORLDS = 40 / TEST_LESS, CALLS = 25, VOCAB_MOST = 6000, REPLAYS = 30 };
#endif

static void new_source(struct head_world *w, enum dtype type, int vocab, int cols, uint64_t *rand) {
  w->w = (struct weight){.dtype = type, .rows = vocab, .cols = cols}; /* no coarse copy: t_shortlist has those */
  assert_true(dtype_row_bytes(type, (size_t)cols, &w->w.row_bytes));
  w->w.source = w->source = xcalloc((size_t)vocab, w->w.row_bytes);
  float *row = xcalloc((size_t)cols, sizeof *row);
  bool twice = test_rand_int(rand, 0, 3) == 0;
  int bad = test_rand_int(rand, 0, 5) ? -1 : test_rand_int(rand, 0, vocab - 1);
  for (int r = 0; r < vocab; r++) {
    char *to = (char *)w->source + (size_t)r * w->w.row_bytes;
    for (int c = 0; c < cols; c++) row[c] = 0.1f * test_rand_normal(rand);
    if (r == bad) row[0] = type == DTYPE_BF16 ? INFINITY : 1e9f;
    dtype_from_f32(type, row, to, (size_t)cols);
    if (twice && r % 2) memcpy(to, to - w->w.row_bytes, w->w.row_bytes);
  }
  free(row);
}

static void world_open(struct head_world *w, const struct kern *k, enum dtype type, int vocab, int cols, int threads, uint64_t *rand) {
  new_source(w, type, vocab, cols, rand);
  head_world_open(w, k, ROWS, threads);
}

static void fill(struct head_world *w, int rows, int32_t *n_best, uint64_t *rand) {
  for (int r = 0; r < rows; r++) {
    float *x = tensor_row(&w->x, r);
    for (int c = 0; c < w->x.cols; c++) x[c] = test_rand_normal(rand);
    if (test_rand_int(rand, 0, 40) == 0) memset(x, 0, (size_t)w->x.cols * sizeof *x);
    if (test_rand_int(rand, 0, 40) == 0) x[0] = test_rand_int(rand, 0, 1) ? NAN : INFINITY;
    n_best[r] = test_rand_int(rand, 0, 2) ? 1 : test_rand_int(rand, -1, 25);
  }
}

/* The plain product; x, which gemm may be given in any form, is read by both. */
static void all_logits(struct head_world *w, const struct tensor *all, const struct tensor *x, float cap) {
  struct tensor y = tensor_rows(*all, x->rows);
  w->d->ops->linear(w->d, 1, (const struct weight *[]){&w->w}, (struct tensor *[]){&y}, x);
  if (cap > 0) w->d->ops->softcap(w->d, &y, &y, cap);
}

/* Returns how many logits were left out. */
static int check(struct head_world *w, int rows, const int32_t *n_best) {
  int n_missing = 0;
  for (int r = 0; r < rows; r++) {
    const float *peaks = tensor_row(&w->peaks, r);
    bool tiles = gemm_on_tiles(w->d->kern, w->w.dtype) && rows <= GEMM_TILES_GROUP;
    if (n_best[r] >= 0 || !tiles)
      n_missing += head_check_row(tensor_row(&w->all, r), tensor_row(&w->some, r), peaks, w->w.rows, MAX(n_best[r], 1), n_best[r] == 0);
    for (int b = 0; n_best[r] < 0 && tiles && b < head_blocks(w->w.rows); b++) assert_true(peaks[b] == -INFINITY);
  }
  return n_missing;
}

static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_BF16, DTYPE_Q4_0, DTYPE_F32};

static void test_roads(void **state) {
  (void)state;
  const struct kern *k;
  uint64_t rand = 21;
  for (int i = 0; (k = kern_variant(i)); i++) {
    long n_missing = 0, n_all = 0;
    for (int j = 0; j < WORLDS; j++) {
      struct head_world w;
      int vocab = test_rand_int(&rand, 1, j % 4 ? VOCAB_MOST / 5 : VOCAB_MOST);
      world_open(&w, k, types[j % 4], vocab, 32 * test_rand_int(&rand, 1, 4), 1 + j % 3, &rand);
      for (int call = 0; call < CALLS; call++) {
        static const float caps[] = {0, 0, 30, 0.01f};
        int rows = test_rand_int(&rand, 1, ROWS);
        float cap = caps[test_rand_int(&rand, 0, 3)];
        int32_t n_best[ROWS];
        fill(&w, rows, n_best, &rand);
        struct tensor x = tensor_rows(w.x, rows), some = tensor_rows(w.some, rows), peaks = tensor_rows(w.peaks, rows);
        memset(some.data, 0xff, (size_t)rows * some.row_bytes);
        memset(peaks.data, 0xff, (size_t)rows * peaks.row_bytes);
        all_logits(&w, &w.all, &x, cap);
        if (call % 5 == 0) memset(n_best, 0, sizeof n_best);
        w.d->ops->head(w.d, &some, &peaks, &w.w, &x, cap, call % 5 == 0 ? NULL : n_best);
        n_missing += check(&w, rows, n_best);
        n_all += (long)rows * vocab;
      }
      head_world_close(&w);
    }
    printf("  %s: %ld of %ld logits left out\n", k->name, n_missing, n_all);
    if (!k->gemm->tiles) assert_int_equal(n_missing, 0);
  }
}

/* Sixteen greedy rows of a vocabulary with many blocks: nearly nothing is stored. */
static void test_most_is_left_out(void **state) {
  (void)state;
  const struct kern *k;
  uint64_t rand = 4;
  for (int i = 0; (k = kern_variant(i)); i++) {
    if (!k->gemm->tiles) continue;
    struct head_world w;
    world_open(&w, k, DTYPE_Q8_0, 16 * VOCAB_MOST / 3, 64, 1, &rand);
    int32_t n_best[16];
    fill(&w, 16, n_best, &rand);
    for (int r = 0; r < 16; r++) {
      n_best[r] = 1;
      for (int c = 0; c < 64; c++) tensor_row(&w.x, r)[c] = test_rand_normal(&rand);
    }
    struct tensor x = tensor_rows(w.x, 16), some = tensor_rows(w.some, 16), peaks = tensor_rows(w.peaks, 16);
    all_logits(&w, &w.all, &x, 0);
    w.d->ops->head(w.d, &some, &peaks, &w.w, &x, 0, n_best);
    long n_missing = check(&w, 16, n_best);
    printf("  %s: %ld of %d\n", k->name, n_missing, 16 * w.w.rows);
    if (VOCAB_MOST > 1000) assert_true(n_missing > 16L * w.w.rows * 8 / 10);
    head_world_close(&w);
  }
}

/* A recorded product looks at x and at what is wanted when it is replayed. */
static void test_recorded(void **state) {
  (void)state;
  const struct kern *k;
  uint64_t rand = 3;
  for (int i = 0; (k = kern_variant(i)); i++) {
    struct err e = {0};
    struct head_world w;
    world_open(&w, k, DTYPE_Q8_0, VOCAB_MOST / 4, 96, 2, &rand);
    int32_t n_best[ROWS];
    enum { N = 9 };
    struct tensor x = tensor_rows(w.x, N), some = tensor_rows(w.some, N), peaks = tensor_rows(w.peaks, N);
    struct device_record *r = w.d->ops->record_new(w.d, 10, 10 * 512, &e);
    assert_non_null(r);
    fill(&w, N, n_best, &rand);
    w.d->ops->record_begin(w.d, r);
    w.d->ops->head(w.d, &some, &peaks, &w.w, &x, 30, n_best);
    w.d->ops->record_end(w.d, r);
    for (int j = 0; j < REPLAYS; j++) {
      fill(&w, N, n_best, &rand);
      w.d->ops->record_replay(w.d, r);
      all_logits(&w, &w.all, &x, 30);
      check(&w, N, n_best);
    }
    w.d->ops->record_delete(w.d, r);
    head_world_close(&w);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_roads),
    cmocka_unit_test(test_most_is_left_out),
    cmocka_unit_test(test_recorded),
};

TEST_MAIN(tests)
