/* head.c — which road a product with the output matrix takes, and the two that find peaks: see head.h. */
#include "compute/head.h"

#include <math.h>

#include "base/record.h"
#include "compute/gemm_tiles.h"
#include "compute/shortlist.h"

enum {
  ITEMS_PER_WORKER = 8,
  RUN_COLS = GEMM_TILES_RUN * GEMM_PANEL, /* logits of a row that are near together */
  SIEVE_MAX = 16                          /* greatest peaks that are kept at most; where more are wanted nothing is dropped */
};

struct call {
  const struct kern *kern;
  const struct weight *w;
  struct tensor y, peaks;
  int n_rows;
  float cap;
  const int32_t *n_best;
  struct gemm_tiles_work work; /* of runs */
  int runs_per_item;
};

/* --- runs: up to 16 rows on tiles ----------------------------------------------------------------------------------------- */

/* The n greatest peaks so far, descending, n > 0. A block that is less than all of them has none of the n greatest logits; of one that has a NaN that is
 * never said. n < 0: nothing is wanted. */
struct sieve {
  int n;
  float best[SIEVE_MAX];
};

static struct sieve sieve(int n_best) {
  struct sieve s = {.n = n_best > SIEVE_MAX ? 0 : n_best};
  for (int i = 0; i < SIEVE_MAX; i++) s.best[i] = -INFINITY;
  return s;
}

static bool sieve_keeps(struct sieve *s, float peak) {
  if (s->n < 0 || peak < s->best[s->n - 1]) return false;
  int at = s->n - 1;
  for (; at > 0 && s->best[at - 1] < peak; at--) s->best[at] = s->best[at - 1];
  s->best[at] = peak;
  return true;
}

/* Logits [col, col + n) of a row: to y what is kept. */
static void give_row(const struct call *c, struct sieve *s, int row, int col, int n, float *logits) {
  float *y = tensor_row(&c->y, row) + col, *peaks = tensor_row(&c->peaks, row) + col / PEAK_BLOCK;
  if (c->cap > 0) c->kern->softcap(logits, logits, c->cap, n);
  c->kern->peaks(peaks, logits, n);
  if (s->n == 0) {
    memcpy(y, logits, (size_t)n * sizeof *y);
    return;
  }
  for (int b = 0; b * PEAK_BLOCK < n; b++)
    if (sieve_keeps(s, peaks[b]))
      memcpy(y + b * PEAK_BLOCK, logits + b * PEAK_BLOCK, (size_t)MIN(PEAK_BLOCK, n - b * PEAK_BLOCK) * sizeof *y);
    else peaks[b] = -INFINITY;
}

static void runs_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct gemm_tiles_kern *k = c->kern->gemm->tiles;
  struct gemm_tiles *t = gemm_tiles_room(&c->work, worker);
  struct sieve sieves[GEMM_TILES_GROUP];
  const int n_panels = div_up(c->w->rows, GEMM_PANEL), end = MIN(n_panels, (item + 1) * c->runs_per_item * GEMM_TILES_RUN);
  for (int r = 0; r < c->n_rows; r++) sieves[r] = sieve(c->n_best ? c->n_best[r] : 0);
  k->begin(c->n_rows);
  for (int from = item * c->runs_per_item * GEMM_TILES_RUN; from < end; from += GEMM_TILES_RUN) {
    struct gemm_tiles_x x = {c->work.x, c->n_rows, c->n_rows};
    int col = from * GEMM_PANEL, to = MIN(from + GEMM_TILES_RUN, end);
    gemm_tiles_few(c->kern, c->w, from, to, x, t->run[0][0], sizeof t->run[0][0]);
    for (int r = 0; r < c->n_rows; r++) give_row(c, &sieves[r], r, col, MIN(to * GEMM_PANEL, c->w->rows) - col, t->run[0][r]);
  }
  k->end();
}

static void runs(struct call *c, struct workers *workers, struct gemm_scratch *s, const struct tensor *x) {
  _Static_assert((int)RUN_COLS % (int)PEAK_BLOCK == 0, "a run is whole blocks");
  int n_runs = div_up(c->w->rows, RUN_COLS);
  c->work = gemm_tiles_work(c->kern, workers, s, x);
  c->runs_per_item = div_up(n_runs, MIN(n_runs, workers_count(workers) * ITEMS_PER_WORKER));
  workers_launch(workers, runs_item, c, sizeof *c, div_up(n_runs, c->runs_per_item), NULL);
}

/* --- all logits ----------------------------------------------------------------------------------------------------------- */

enum { PIECES = 16 }; /* of a row */

static void finish_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  int piece = (int)align_up((size_t)div_up(c->w->rows, PIECES), PEAK_BLOCK), row = item / PIECES, col = item % PIECES * piece;
  float *y = tensor_row(&c->y, row) + col;
  (void)worker;
  if (col >= c->w->rows) return;
  int n = MIN(piece, c->w->rows - col);
  if (c->cap > 0) c->kern->softcap(y, y, c->cap, n);
  if (c->peaks.data) c->kern->peaks(tensor_row(&c->peaks, row) + col / PEAK_BLOCK, y, n);
}

void head_product(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *w, struct tensor *y,
                  struct tensor *peaks, const struct tensor *x, float cap, const int32_t *n_best) {
  struct call c = {.kern = k, .w = w, .y = *y, .peaks = *peaks, .n_rows = x->rows, .cap = cap, .n_best = n_best};
  CHECK(w->cols == x->cols && y->cols == w->rows && y->rows >= x->rows);
  CHECK(!peaks->data || (peaks->cols == head_blocks(w->rows) && peaks->rows >= x->rows));
  if (x->rows < 1) return;
  if (w->shortlist && n_best && x->rows <= SHORTLIST_ROWS_MAX) {
    shortlist_product(k, workers, s, w, y, peaks, x, cap, n_best);
    return;
  }
  if (peaks->data && gemm_on_tiles(k, w->dtype) && x->rows <= GEMM_TILES_GROUP) {
    runs(&c, workers, s, x);
    return;
  }
  gemm(k, workers, s, 1, &w, &y, x);
  if (cap > 0 || peaks->data) workers_launch(workers, finish_item, &c, sizeof c, x->rows * PIECES, NULL);
}
