/* t_shortlist.c — the greatest logits without the others, held to all logits: what is there has the same bits, and what is missing could not have been
 * among the greatest. The copy itself is held to what shortlist.h says of its bytes, read one number at a time.
 *
 * Thousands of small matrices: numbers of all sizes, wide columns, rows that are there twice, rows that are zero or not finite; rows of x that are zero or not
 * finite; caps that make many logits equal.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/device.h"
#include "compute/gemm_quant.h"
#include "compute/head_check.h"
#include "compute/shortlist.h"

enum { ROWS = SHORTLIST_ROWS_MAX };
/* Emulated instructions take thousands of times as long. */
#ifdef CYGNET_SIMDE
enum { WORLDS = 6, CALLS = 4, VOCAB_MOST = 200, VOCAB_LARGE = 2000, REPLAYS = 4, COPIES = 2 };
#else
enum { WORLDS = 150 / TEST_LESS, CALLS = 20, VOCAB_MOST = 5000, VOCAB_LARGE = 20000, REPLAYS = 60, COPIES = 20 };
#endif

static const struct kern *kernel(void) {
  const struct kern *k;
  for (int i = 0; (k = kern_variant(i)); i++)
    if (k->shortlist) return k;
  printf("  no variant here has a shortlist\n");
  return NULL;
}

struct shape {
  enum dtype type;
  int vocab, cols;
  float wide;    /* some columns are that much wider than the others */
  bool repeated; /* rows come twice */
  int n_zero, n_bad;
};

static void new_source(struct head_world *w, const struct shape *s, uint64_t *rand) {
  w->w = (struct weight){.dtype = s->type, .rows = s->vocab, .cols = s->cols, .is_head = true};
  assert_true(dtype_row_bytes(s->type, (size_t)s->cols, &w->w.row_bytes));
  w->w.source = w->source = xcalloc((size_t)s->vocab, w->w.row_bytes);
  float *row = xcalloc((size_t)s->cols, sizeof *row), *width = xcalloc((size_t)s->cols, sizeof *width);
  for (int c = 0; c < s->cols; c++) width[c] = test_rand_int(rand, 0, 9) ? 1 : s->wide;
  for (int r = 0; r < s->vocab; r++) {
    char *to = (char *)w->source + (size_t)r * w->w.row_bytes;
    float size = 0.05f * (1 + (float)test_rand_int(rand, 0, 3));
    for (int c = 0; c < s->cols; c++) row[c] = size * width[c] * test_rand_normal(rand);
    if (r < s->n_zero) memset(row, 0, (size_t)s->cols * sizeof *row);
    if (r >= s->n_zero && r < s->n_zero + s->n_bad) row[test_rand_int(rand, 0, s->cols - 1)] = s->type == DTYPE_BF16 ? INFINITY : 1e9f;
    dtype_from_f32(s->type, row, to, (size_t)s->cols);
    if (s->repeated && r % 2) memcpy(to, to - w->w.row_bytes, w->w.row_bytes);
  }
  free(row);
  free(width);
}

static void world_open(struct head_world *w, const struct shape *s, int threads, uint64_t *rand) {
  new_source(w, s, rand);
  head_world_open(w, kernel(), 2 * ROWS, threads);
  assert_non_null(w->w.shortlist);
}

/* One of few columns leads in some rows, as in real hidden states. */
static void fill_x(struct head_world *w, int rows, uint64_t *rand) {
  for (int r = 0; r < rows; r++) {
    float *x = tensor_row(&w->x, r), size = exp2f((float)test_rand_int(rand, -12, 8));
    for (int c = 0; c < w->x.cols; c++) x[c] = size * test_rand_normal(rand);
    if (test_rand_int(rand, 0, 2) == 0) x[test_rand_int(rand, 0, w->x.cols - 1)] *= 30;
    if (test_rand_int(rand, 0, 30) == 0) memset(x, 0, (size_t)w->x.cols * sizeof *x);
    if (test_rand_int(rand, 0, 60) == 0) x[0] = test_rand_int(rand, 0, 1) ? NAN : INFINITY;
    if (test_rand_int(rand, 0, 60) == 0) x[0] = 1e30f;
  }
}

static int compare(struct head_world *w, int rows, float cap, const int32_t *n_best, bool with_peaks) {
  struct tensor x = tensor_rows(w->x, rows), all = tensor_rows(w->all, rows), some = tensor_rows(w->some, rows), none = {0};
  struct tensor peaks = with_peaks ? tensor_rows(w->peaks, rows) : none;
  memset(some.data, 0xff, (size_t)rows * some.row_bytes);
  if (with_peaks) memset(peaks.data, 0xff, (size_t)rows * peaks.row_bytes);
  w->d->ops->head(w->d, &all, &none, &w->w, &x, cap, NULL);
  w->d->ops->head(w->d, &some, &peaks, &w->w, &x, cap, n_best);
  bool all_wanted = rows > ROWS && !with_peaks;
  for (int r = 0; r < rows; r++) all_wanted |= rows <= ROWS && n_best[r] == 0;
  int n_missing = 0;
  for (int r = 0; r < rows; r++)
    if (n_best[r] >= 0 || all_wanted)
      n_missing += head_check_row(tensor_row(&all, r), tensor_row(&some, r), with_peaks ? tensor_row(&peaks, r) : NULL, w->w.rows,
                                  n_best[r], all_wanted || n_best[r] == 0);
  return n_missing;
}

static void test_greatest(void **state) {
  (void)state;
  if (!kernel()) skip();
  uint64_t rand = 11;
  long n_missing = 0, n_all = 0;
  for (int i = 0; i < WORLDS; i++) {
    struct shape s = {.type = test_rand_int(&rand, 0, 2) ? DTYPE_Q8_0 : DTYPE_BF16,
                      .vocab = test_rand_int(&rand, 1, i % 10 ? VOCAB_MOST / 7 : VOCAB_MOST),
                      .cols = SHORTLIST_SEGMENT * test_rand_int(&rand, 2, 6),
                      .wide = (float)test_rand_int(&rand, 1, 30),
                      .repeated = test_rand_int(&rand, 0, 4) == 0,
                      .n_zero = test_rand_int(&rand, 0, 5) ? 0 : 40,
                      .n_bad = test_rand_int(&rand, 0, 9) ? 0 : 2};
    struct head_world w;
    world_open(&w, &s, 1 + i % 3, &rand);
    for (int j = 0; j < CALLS; j++) {
      static const float caps[] = {0, 0, 30, 1, 0.01f};
      int rows = test_rand_int(&rand, 1, j == 0 ? 2 * ROWS : ROWS);
      int32_t n_best[2 * ROWS];
      for (int r = 0; r < rows; r++) n_best[r] = test_rand_int(&rand, 0, 2) ? 1 : test_rand_int(&rand, -1, SHORTLIST_BEST_MAX + 5);
      fill_x(&w, rows, &rand);
      n_missing += compare(&w, rows, caps[test_rand_int(&rand, 0, 4)], n_best, j % 2);
      n_all += (long)rows * s.vocab;
    }
    head_world_close(&w);
  }
  printf("  %ld of %ld logits left out\n", n_missing, n_all);
}

/* Where there is something to gain: one user, a large vocabulary. */
static void test_most_is_left_out(void **state) {
  (void)state;
  if (!kernel()) skip();
  uint64_t rand = 5;
  struct shape s = {.type = DTYPE_Q8_0, .vocab = VOCAB_LARGE, .cols = 640, .wide = 8};
  struct head_world w;
  world_open(&w, &s, 2, &rand);
  for (int c = 0; c < s.cols; c++) tensor_row(&w.x, 0)[c] = test_rand_normal(&rand);
  int n_missing = compare(&w, 1, 0, (const int32_t[]){1}, true);
  printf("  %d of %d\n", n_missing, s.vocab);
  assert_true(n_missing > s.vocab * 3 / 4);
  head_world_close(&w);
}

/* A recorded product looks at x and at what is wanted when it is replayed. */
static void test_recorded(void **state) {
  (void)state;
  if (!kernel()) skip();
  uint64_t rand = 3;
  struct err e = {0};
  struct shape s = {.type = DTYPE_BF16, .vocab = VOCAB_MOST, .cols = 256, .wide = 4};
  struct head_world w;
  world_open(&w, &s, 2, &rand);
  int32_t n_best[2] = {1, 0};
  struct tensor x = tensor_rows(w.x, 2), all = tensor_rows(w.all, 2), some = tensor_rows(w.some, 2), peaks = tensor_rows(w.peaks, 2),
                none = {0};
  struct device_record *r = w.d->ops->record_new(w.d, 40, 40 * 256, &e);
  assert_non_null(r);
  fill_x(&w, 2, &rand);
  w.d->ops->record_begin(w.d, r);
  w.d->ops->head(w.d, &some, &peaks, &w.w, &x, 30, n_best);
  w.d->ops->record_end(w.d, r);
  for (int i = 0; i < REPLAYS; i++) {
    for (int k = 0; k < 2; k++) n_best[k] = test_rand_int(&rand, 0, 3);
    fill_x(&w, 2, &rand);
    w.d->ops->record_replay(w.d, r);
    w.d->ops->head(w.d, &all, &none, &w.w, &x, 30, NULL);
    for (int k = 0; k < 2; k++)
      head_check_row(tensor_row(&all, k), tensor_row(&some, k), tensor_row(&peaks, k), s.vocab, n_best[k],
                     n_best[0] == 0 || n_best[1] == 0);
  }
  w.d->ops->record_delete(w.d, r);
  head_world_close(&w);
}

/* --- the copy, byte by byte ------------------------------------------------------------------------------------------------- */

/* A number of the copy over its scale: by what the first look reads, or with the fifth bit. */
static double number_of(const struct shortlist *list, int row, int c, bool is_finer) {
  int segment = c / SHORTLIST_SEGMENT, group = c % SHORTLIST_SEGMENT / 4, panel = row / GEMM_PANEL, i = row % GEMM_PANEL * 4 + c % 4;
  const uint8_t *codes = list->panels + (size_t)panel * list->panel_bytes + SHORTLIST_ROW_BYTES + shortlist_scales_bytes(list->n_segments);
  if (segment == 0) return codes[group * 64 + i] - 128;
  codes += SHORTLIST_FIRST_BYTES + (segment - 1) * SHORTLIST_BYTES;
  int code = codes[group % 8 * 64 + i] >> (group < 8 ? 0 : 4) & 15;
  const uint8_t *bits = list->finer + (size_t)panel * list->finer_bytes + SHORTLIST_ROW_BYTES + (segment - 1) * SHORTLIST_FINER_BYTES;
  int bit = bits[group / 8 * 64 + i] >> group % 8 & 1;
  return is_finer ? code * 2 + bit - 16 : (code - 7.75) * 2;
}

static double scale_of(const struct shortlist *list, int row, int segment) {
  uint16_t scale;
  memcpy(&scale,
         list->panels + (size_t)(row / GEMM_PANEL) * list->panel_bytes + SHORTLIST_ROW_BYTES + 32 * segment + 2 * (row % GEMM_PANEL),
         sizeof scale);
  return (double)bf16_to_f32(scale);
}

/* Row r of the copy against the row that gemm multiplies. */
static void check_copy_row(const struct shortlist *list, const float *weights, int cols, int r, bool is_finer) {
  const uint8_t *panel = list->panels + (size_t)(r / GEMM_PANEL) * list->panel_bytes;
  const uint8_t *norms = is_finer ? list->finer + (size_t)(r / GEMM_PANEL) * list->finer_bytes : panel;
  double lost[SHORTLIST_PARTS] = {0}, all[SHORTLIST_PARTS] = {0}, kept[SHORTLIST_PARTS] = {0};
  for (int c = 0; c < cols; c++) {
    int segment = c / SHORTLIST_SEGMENT, part = segment > 0;
    double scale = scale_of(list, r, segment), v = scale * number_of(list, r, c, is_finer);
    double weight = (double)weights[list->order[c]], left = weight - v;
    lost[part] += left * left, all[part] += weight * weight, kept[part] += v * v;
    assert_true(fabs(left) <= scale * (part && !is_finer ? 1.0001 : 0.5001)); /* half a step */
  }
  for (int part = 0; part < SHORTLIST_PARTS; part++) {
    float error, norm;
    memcpy(&error, norms + 64 * part + 4 * (r % GEMM_PANEL), 4);
    memcpy(&norm, norms + 64 * (SHORTLIST_PARTS + part) + 4 * (r % GEMM_PANEL), 4);
    assert_true(sqrt(lost[part]) <= (double)error && (double)error <= sqrt(lost[part]) * 1.01 + 1e-30);
    assert_true(sqrt(all[part]) <= (double)norm && sqrt(kept[part]) <= (double)norm);
  }
}

static void test_copy(void **state) {
  (void)state;
  if (!kernel()) skip();
  uint64_t rand = 9;
  for (int i = 0; i < COPIES; i++) {
    struct shape s = {.type = i % 2 ? DTYPE_BF16 : DTYPE_Q8_0, .vocab = 40, .cols = 64 * (2 + i % 5), .wide = 20, .n_zero = i % 3};
    struct head_world w;
    world_open(&w, &s, 1, &rand);
    const struct shortlist *list = w.w.shortlist;
    bool seen[64 * 6] = {false};
    for (int c = 0; c < s.cols; c++) {
      assert_in_range(list->order[c], 0, s.cols - 1);
      assert_false(seen[list->order[c]]);
      seen[list->order[c]] = true;
    }
    float *weights = xcalloc((size_t)s.cols, sizeof *weights);
    for (int r = 0; r < s.vocab; r++) {
      gemm_tiles_row(&w.w, r / GEMM_PANEL, r % GEMM_PANEL, weights);
      check_copy_row(list, weights, s.cols, r, false);
      check_copy_row(list, weights, s.cols, r, true);
    }
    free(weights);
    head_world_close(&w);
  }
}

/* What the kernels say of a panel, against sums over the copy's numbers one by one. x has whole numbers, which its codes hold exactly. */
static void check_panel(const struct shortlist *list, const struct tensor *x, int panel, int r, bool is_finer) {
  const float *norms = (const float *)(const void *)((is_finer ? list->finer : list->panels) +
                                                     (size_t)panel * (is_finer ? list->finer_bytes : list->panel_bytes));
  double low = -INFINITY, high = -INFINITY, size = 0;
  for (int i = 0; i < GEMM_PANEL; i++) {
    double about = 0, width = 0;
    for (int c = 0; c < x->cols; c++)
      about += scale_of(list, panel * GEMM_PANEL + i, c / SHORTLIST_SEGMENT) * number_of(list, panel * GEMM_PANEL + i, c, is_finer) *
               (double)tensor_row(x, r)[list->order[c]];
    for (int part = 0; part < SHORTLIST_PARTS; part++) {
      double error = (double)norms[part * GEMM_PANEL + i], norm = (double)norms[(SHORTLIST_PARTS + part) * GEMM_PANEL + i];
      width += error * (double)list->rows[r].norm[part] + norm * (double)list->rows[r].slack[part];
      size += norm * (double)list->rows[r].norm[part];
    }
    low = MAX(low, about - width), high = MAX(high, about + width);
  }
  size_t at = (size_t)r * (size_t)list->n_panels + (size_t)panel;
  double near = size * 1e-5;
  if (is_finer) assert_true(fabs((double)kernel()->shortlist->finer(list, panel, r, x->rows) - high) <= near);
  else assert_true(fabs((double)list->low[at] - low) <= near && fabs((double)list->high[at] - high) <= near);
}

static void test_bounds(void **state) {
  (void)state;
  if (!kernel()) skip();
  uint64_t rand = 10;
  for (int i = 0; i < COPIES; i++) {
    struct shape s = {.type = i % 2 ? DTYPE_BF16 : DTYPE_Q8_0, .vocab = 48, .cols = 64 * (2 + i % 5), .wide = 20};
    struct head_world w;
    world_open(&w, &s, 1, &rand);
    const struct shortlist *list = w.w.shortlist;
    struct tensor x = tensor_rows(w.x, 1 + i % ROWS), y = tensor_rows(w.some, 1 + i % ROWS), none = {0};
    for (int r = 0; r < x.rows; r++)
      for (int c = 0; c < s.cols; c++) tensor_row(&x, r)[list->order[c]] = (float)(c % 64 ? test_rand_int(&rand, -127, 127) : 127);
    w.d->ops->head(w.d, &y, &none, &w.w, &x, 0, (const int32_t[]){1, 1, 1, 1});
    assert_true(list->is_on);
    for (int at = 0; at < 2 * list->n_panels * x.rows; at++) check_panel(list, &x, at / 2 / x.rows, at / 2 % x.rows, at % 2);
    head_world_close(&w);
  }
}

/* Only where it is worth its memory, and where there is a kernel. */
static void test_where(void **state) {
  (void)state;
  const struct kern *k;
  for (int i = 0; (k = kern_variant(i)); i++) {
    bool has = k->shortlist != NULL;
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_Q8_0, .rows = 1000, .cols = 640}) > 0, has);
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_BF16, .rows = 17, .cols = 128}) > 0, has);
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_Q6_K, .rows = 1000, .cols = 512}), 0);
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_Q4_0, .rows = 1000, .cols = 640}), 0);
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_Q8_0, .rows = 1000, .cols = 96}), 0);
    assert_int_equal(shortlist_bytes(k, &(struct weight){.dtype = DTYPE_F32, .rows = 1000, .cols = 640}), 0);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_greatest), cmocka_unit_test(test_most_is_left_out), cmocka_unit_test(test_recorded),
    cmocka_unit_test(test_copy),     cmocka_unit_test(test_bounds),           cmocka_unit_test(test_where),
};

TEST_MAIN(tests)
