/* shortlist.c — the copy's making, and the four looks of a product: see shortlist.h. */
#include "compute/shortlist.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/head.h"

enum {
  PANELS_PER_ITEM = 64, /* of bounds: some hundred KiB of codes */
  SAMPLE_PANELS = 256,  /* whose columns are measured */
};
/* Relative to |w| |x|: the float sums of gemm over 32 k at a time and of bounds over segments, for up to 2^14 columns, with room to spare. */
static const float ROUNDING = 0x1p-12f;
/* What stands for "unknown": such a row reaches everything. */
static const float ANYTHING = 0x1p100f;

static int panels_of(const struct weight *w) { return div_up(w->rows, GEMM_PANEL); }
static struct shortlist *shortlist_of(const struct weight *w) { return w->shortlist; }

/* --- memory --------------------------------------------------------------------------------------------------------------- */

/* Where the parts lie behind `base`; with base NULL they are only counted. */
static size_t lay_out(struct shortlist *s, char *base, const struct weight *w) {
  size_t n_panels = (size_t)panels_of(w), cols = (size_t)w->cols, at = align_up(sizeof *s, 64);
  s->n_panels = (int)n_panels;
  s->n_segments = (int)(cols / SHORTLIST_SEGMENT);
  s->panel_bytes = shortlist_panel_bytes(s->n_segments);
  s->finer_bytes = shortlist_finer_bytes(s->n_segments);
#define PART(field, n_bytes)                                                                                                               \
  s->field = (void *)(base ? base + at : NULL);                                                                                            \
  at += align_up(n_bytes, 64)
  PART(panels, n_panels * s->panel_bytes);
  PART(finer, n_panels * s->finer_bytes);
  PART(order, cols * sizeof *s->order);
  PART(x, (cols + SHORTLIST_SEGMENT) * SHORTLIST_ROWS_MAX);
  PART(scales, (size_t)s->n_segments * SHORTLIST_ROWS_MAX * sizeof *s->scales);
  PART(sums, (size_t)s->n_segments * SHORTLIST_ROWS_MAX * sizeof *s->sums);
  PART(low, n_panels * SHORTLIST_ROWS_MAX * sizeof *s->low);
  PART(high, n_panels * SHORTLIST_ROWS_MAX * sizeof *s->high);
  PART(about, n_panels * GEMM_PANEL * SHORTLIST_ROWS_MAX * sizeof *s->about);
  PART(wanted, n_panels);
  PART(best, SHORTLIST_LOOK_MAX * sizeof *s->best);
  PART(best_from, SHORTLIST_ROWS_MAX * SHORTLIST_LOOK_MAX * sizeof *s->best_from);
#undef PART
  return at;
}

/* The copy is worth its memory where it is clearly smaller than the matrix: from 8 bits a weight on. */
size_t shortlist_bytes(const struct kern *k, const struct weight *w) {
  enum { COLS_MAX = 1 << 14, BITS_LEAST = 8 };
  const struct gemm_format *f = gemm_format_of(w->dtype);
  if (!k->shortlist || !gemm_on_tiles(k, w->dtype) || (f->bits < BITS_LEAST && !f->plain_bytes)) return 0;
  if (w->cols % SHORTLIST_SEGMENT || w->cols < 2 * SHORTLIST_SEGMENT || w->cols > COLS_MAX) return 0;
  return lay_out(&(struct shortlist){0}, NULL, w);
}

size_t shortlist_read_bytes(const struct weight *w) {
  const struct shortlist *s = shortlist_of(w);
  return (size_t)s->n_panels * s->panel_bytes;
}

/* --- making --------------------------------------------------------------------------------------------------------------- */

void shortlist_norms(float error[SHORTLIST_PARTS][GEMM_PANEL], float norm[SHORTLIST_PARTS][GEMM_PANEL]) {
  const float up = 1.001f; /* for the roundings of the sums */
  for (int part = 0; part < SHORTLIST_PARTS; part++)
    for (int r = 0; r < GEMM_PANEL; r++) {
      float *lost = &error[part][r], *kept = &norm[part][r];
      bool known = *lost < FLT_MAX && *kept < FLT_MAX;
      *lost = known ? sqrtf(*lost) * up : ANYTHING;
      *kept = known ? sqrtf(*kept) * up + *lost : ANYTHING;
    }
}

struct width {
  float squares;
  int32_t column;
};

static int wider(const void *a, const void *b) {
  const struct width *x = a, *y = b;
  if (x->squares != y->squares) return x->squares > y->squares ? -1 : 1;
  return x->column - y->column;
}

static void choose_order(const struct kern *k, const struct weight *w, gemm_weight_tile *tiles, float (*squares)[GEMM_PANEL],
                         struct width *widths) {
  struct shortlist *s = shortlist_of(w);
  memset(squares, 0, (size_t)w->cols * sizeof *squares);
  for (int panel = 0; panel < s->n_panels; panel += MAX(1, s->n_panels / SAMPLE_PANELS)) {
    float factor[GEMM_PANEL];
    gemm_tiles_panel(k, w, panel, tiles, factor);
    k->shortlist->add_squares(squares, tiles, factor, w->cols);
  }
  for (int c = 0; c < w->cols; c++) {
    float sum = 0;
    for (int r = 0; r < GEMM_PANEL; r++) sum += squares[c][r];
    widths[c] = (struct width){sum < FLT_MAX ? sum : FLT_MAX, c};
  }
  qsort(widths, (size_t)w->cols, sizeof *widths, wider);
  for (int i = 0; i < w->cols; i++) s->order[i] = widths[i].column;
}

struct making {
  const struct kern *kern;
  const struct weight *w;
  char *rooms; /* [workers]: tiles of a panel */
  size_t room_bytes;
};

static void make_item(void *ctx, int item, int worker) {
  const struct making *m = ctx;
  const struct shortlist *s = shortlist_of(m->w);
  gemm_weight_tile *tiles = (gemm_weight_tile *)(void *)(m->rooms + (size_t)worker * m->room_bytes);
  for (int panel = item * PANELS_PER_ITEM; panel < MIN(s->n_panels, (item + 1) * PANELS_PER_ITEM); panel++) {
    float factor[GEMM_PANEL];
    gemm_tiles_panel(m->kern, m->w, panel, tiles, factor);
    m->kern->shortlist->make_panel(s, tiles, factor, panel);
  }
}

int shortlist_make(const struct kern *k, struct workers *workers, struct weight *w, struct err *e) {
  struct shortlist *s = shortlist_of(w);
  size_t tiles_bytes = (size_t)w->cols / GEMM_BLOCK * sizeof(gemm_weight_tile), columns_bytes = (size_t)w->cols * sizeof(float[GEMM_PANEL]);
  struct making m = {.kern = k, .w = w, .room_bytes = align_up(tiles_bytes + columns_bytes + (size_t)w->cols * sizeof(struct width), 4096)};
  size_t n_bytes = m.room_bytes * (size_t)workers_count(workers);
  m.rooms = mem_big_alloc(n_bytes, "coarse copy of the output matrix", e);
  if (!m.rooms) return -1;
  lay_out(s, w->shortlist, w);
  s->is_on = false;
  choose_order(k, w, (gemm_weight_tile *)(void *)m.rooms, (float(*)[GEMM_PANEL])(void *)(m.rooms + tiles_bytes),
               (struct width *)(void *)(m.rooms + tiles_bytes + columns_bytes));
  workers_run(workers, make_item, &m, div_up(s->n_panels, PANELS_PER_ITEM));
  mem_big_free(m.rooms, n_bytes);
  return 0;
}

/* --- a product's launches ------------------------------------------------------------------------------------------------- */

struct call {
  const struct kern *kern;
  const struct weight *w;
  struct tensor y, peaks, x;
  float cap;
  const int32_t *n_best;
};

/* A number of x as products see it. */
static float as_multiplied(float x) { return bf16_to_f32(f32_to_bf16(x * GEMM_TILES_X_SCALE)) / GEMM_TILES_X_SCALE; }

/* Segment i of row r of x to codes. To norm and lost the squares of x and of what codes do not say. False: it is not finite, or too large for squares in
 * float32. */
static bool segment_codes(struct shortlist *s, int i, const float *x, int r, int n_rows, double *norm, double *lost) {
  enum { CODE_MAX = 127, STEP = 128 /* of the first of two codes */ };
  float v[SHORTLIST_SEGMENT], top = 0;
  for (int j = 0; j < SHORTLIST_SEGMENT; j++) {
    v[j] = as_multiplied(x[s->order[i * SHORTLIST_SEGMENT + j]]);
    if (!(fabsf(v[j]) < 0x1p60f)) return false;
    top = MAX(top, fabsf(v[j]));
  }
  const float most = CODE_MAX * (i == 0 ? STEP : 1), scale = top / most, inverse = top > 0x1p-100f ? most / top : 0;
  int8_t *to = s->x + ((size_t)(i == 0 ? 0 : i + 1) * (size_t)n_rows + (size_t)r) * SHORTLIST_SEGMENT;
  int32_t sum = 0;
  for (int j = 0; j < SHORTLIST_SEGMENT; j++) {
    int32_t code = (int32_t)lrintf(v[j] * inverse), high = i == 0 ? (code + STEP / 2) >> 7 : 0;
    double left = (double)v[j] - (double)code * (double)scale;
    if (i == 0) to[j] = (int8_t)high;
    to[j + (i == 0 ? n_rows * SHORTLIST_SEGMENT : 0)] = (int8_t)(code - high * STEP);
    *norm += (double)v[j] * (double)v[j];
    *lost += left * left;
    sum += code;
  }
  s->scales[i * n_rows + r] = scale;
  s->sums[i * n_rows + r] = sum;
  return true;
}

/* Row r of x to codes. False: it has none. */
static bool x_codes(struct shortlist *s, const float *x, int r, int n_rows) {
  const float up = 1.001f;
  double norm[SHORTLIST_PARTS] = {0}, lost[SHORTLIST_PARTS] = {0};
  for (int i = 0; i < s->n_segments; i++)
    if (!segment_codes(s, i, x, r, n_rows, &norm[i > 0], &lost[i > 0])) return false;
  for (int part = 0; part < SHORTLIST_PARTS; part++) {
    float size = (float)sqrt(norm[part]) * up;
    s->rows[r].norm[part] = size;
    s->rows[r].slack[part] = (float)sqrt(lost[part]) * up + (float)sqrt(norm[0] + norm[1]) * ROUNDING;
  }
  return true;
}

/* Look 0: is there anything to leave out? If not, all panels are wanted now. */
static void begin_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  struct shortlist *s = shortlist_of(c->w);
  (void)item, (void)worker;
  s->is_on = true;
  for (int r = 0; r < c->x.rows; r++) {
    s->n_best[r] = c->n_best[r];
    s->is_on &= s->n_best[r] != 0 && s->n_best[r] <= MIN(SHORTLIST_BEST_MAX, s->n_panels);
  }
  for (int r = 0; s->is_on && r < c->x.rows; r++) s->is_on = s->n_best[r] < 0 || x_codes(s, tensor_row(&c->x, r), r, c->x.rows);
  memset(s->wanted, s->is_on ? GEMM_UNWANTED : GEMM_WANTED, (size_t)s->n_panels);
}

static void bounds_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct shortlist *s = shortlist_of(c->w);
  (void)worker;
  if (!s->is_on) return;
  int from = item * PANELS_PER_ITEM;
  c->kern->shortlist->bounds(s, from, MIN(s->n_panels, from + PANELS_PER_ITEM), c->x.rows);
}

/* A heap of the n greatest of what was offered, the least of them on top; from: where each came from. */
struct greatest {
  float *value;
  int32_t *from;
  int n, n_max;
};

static void offer(struct greatest *g, float value, int32_t from) {
  int at = g->n;
  if (g->n < g->n_max) {
    g->n++;
    for (int up; at > 0 && g->value[up = (at - 1) / 2] > value; at = up) g->value[at] = g->value[up], g->from[at] = g->from[up];
  } else {
    if (!(value > g->value[0])) return;
    at = 0;
    for (int down; (down = 2 * at + 1) < g->n; at = down) {
      if (down + 1 < g->n && g->value[down + 1] < g->value[down]) down++;
      if (value <= g->value[down]) break;
      g->value[at] = g->value[down], g->from[at] = g->from[down];
    }
  }
  g->value[at] = value, g->from[at] = from;
}

static int32_t *best_from(const struct shortlist *s, int r) { return s->best_from + r * SHORTLIST_LOOK_MAX; }

/* Look 1: the panels that promise most. Some more than must be raise the threshold: with top-k 64 of the sample model half as many panels reach it. */
static void best_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  struct shortlist *s = shortlist_of(c->w);
  (void)item, (void)worker;
  for (int r = 0; s->is_on && r < c->x.rows; r++) {
    if (s->n_best[r] < 0) continue;
    struct greatest g = {s->best, best_from(s, r), 0, MIN(s->n_panels, s->n_best[r] + SHORTLIST_LOOK_MAX - SHORTLIST_BEST_MAX)};
    const float *low = s->low + (size_t)r * (size_t)s->n_panels;
    for (int panel = 0; panel < s->n_panels; panel++) offer(&g, low[panel], panel);
    for (int i = 0; i < g.n; i++) s->wanted[g.from[i]] = GEMM_WANTED;
    s->n_looked_at[r] = g.n;
  }
}

/* What a logit must be before the cap so that after it, whatever rounding does, it is less than t is then. */
static float below_cap(float t, float cap) {
  const double room = 1e-5;
  double capped = tanh((double)t / (double)cap) - room;
  return capped > -1 ? (float)MIN((double)t, (double)cap * atanh(capped)) : -INFINITY;
}

/* The n-th greatest of the logits of row r that are known; NaN where one of them is. */
static float threshold(const struct call *c, int r) {
  const struct shortlist *s = shortlist_of(c->w);
  int32_t nowhere[SHORTLIST_BEST_MAX];
  struct greatest g = {s->best, nowhere, 0, s->n_best[r]};
  const float *y = tensor_row(&c->y, r);
  for (int i = 0; i < s->n_looked_at[r]; i++) {
    int panel = best_from(s, r)[i];
    for (int col = panel * GEMM_PANEL; col < MIN((panel + 1) * GEMM_PANEL, c->w->rows); col++) {
      if (isnan(y[col])) return y[col];
      offer(&g, y[col], 0);
    }
  }
  return c->cap > 0 ? below_cap(g.value[0], c->cap) : g.value[0];
}

static void thresholds_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  struct shortlist *s = shortlist_of(c->w);
  (void)item, (void)worker;
  for (int r = 0; s->is_on && r < c->x.rows; r++)
    if (s->n_best[r] >= 0) s->threshold[r] = threshold(c, r);
}

/* Does the panel, by the copy's four bits and by all five, reach the n-th greatest logit of a row? */
static bool reaches(const struct call *c, int panel) {
  const struct shortlist *s = shortlist_of(c->w);
  for (int r = 0; r < c->x.rows; r++) {
    float t = s->threshold[r];
    if (s->n_best[r] < 0 || s->high[(size_t)r * (size_t)s->n_panels + (size_t)panel] < t) continue;
    if (!(c->kern->shortlist->finer(s, panel, r, c->x.rows) < t)) return true;
  }
  return false;
}

/* Looks 2 and 3: the panels that reach the n-th greatest logit. */
static void rest_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct shortlist *s = shortlist_of(c->w);
  (void)worker;
  for (int panel = item * PANELS_PER_ITEM; panel < MIN(s->n_panels, (item + 1) * PANELS_PER_ITEM); panel++) {
    uint8_t *wanted = &s->wanted[panel];
    if (*wanted == GEMM_WANTED) *wanted = GEMM_DONE;
    else if (s->is_on && *wanted == GEMM_UNWANTED && reaches(c, panel)) *wanted = GEMM_WANTED;
  }
}

/* Panel of a row as it is to be found in y. */
static void finish_panel(const struct call *c, float *y, int panel) {
  int n = MIN(GEMM_PANEL, c->w->rows - panel * GEMM_PANEL);
  if (shortlist_of(c->w)->wanted[panel] == GEMM_UNWANTED)
    for (int i = 0; i < n; i++) y[i] = -INFINITY;
  else if (c->cap > 0) c->kern->softcap(y, y, c->cap, n);
}

/* A block of which nothing is wanted has a peak that says so, and no more is done to it. */
static void finish_block(const struct call *c, int row, int block) {
  const uint8_t *wanted = shortlist_of(c->w)->wanted;
  int col = block * PEAK_BLOCK, n = MIN(PEAK_BLOCK, c->w->rows - col), from = col / GEMM_PANEL, to = div_up(col + n, GEMM_PANEL);
  float *y = tensor_row(&c->y, row), *peaks = head_peaks(&c->peaks, row);
  bool any = !peaks;
  for (int panel = from; panel < to; panel++) any |= wanted[panel] != GEMM_UNWANTED;
  for (int panel = from; any && panel < to; panel++) finish_panel(c, y + panel * GEMM_PANEL, panel);
  if (peaks && any) c->kern->peaks(peaks + block, y + col, n);
  else if (peaks) peaks[block] = -INFINITY;
}

static void finish_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  int from = item * PANELS_PER_ITEM * GEMM_PANEL / PEAK_BLOCK,
      to = MIN(from + PANELS_PER_ITEM * GEMM_PANEL / PEAK_BLOCK, head_blocks(c->w->rows));
  (void)worker;
  for (int r = 0; r < c->x.rows; r++)
    for (int block = from; block < to; block++) finish_block(c, r, block);
}

void shortlist_product(const struct kern *k, struct workers *workers, struct gemm_scratch *scratch, const struct weight *w,
                       struct tensor *y, struct tensor *peaks, const struct tensor *x, float cap, const int32_t *n_best) {
  CHECK(w->shortlist && x->rows <= SHORTLIST_ROWS_MAX && n_best);
  const struct shortlist *s = shortlist_of(w);
  const struct call c = {k, w, *y, *peaks, *x, cap, n_best};
  int n_items = div_up(s->n_panels, PANELS_PER_ITEM);
  if (x->rows < 1) return;
  workers_launch(workers, begin_item, &c, sizeof c, 1, NULL);
  workers_launch(workers, bounds_item, &c, sizeof c, n_items, NULL);
  workers_launch(workers, best_item, &c, sizeof c, 1, NULL);
  gemm_panels(k, workers, scratch, w, y, x, s->wanted, false);
  workers_launch(workers, thresholds_item, &c, sizeof c, 1, NULL);
  workers_launch(workers, rest_item, &c, sizeof c, n_items, NULL);
  gemm_panels(k, workers, scratch, w, y, x, s->wanted, true);
  workers_launch(workers, finish_item, &c, sizeof c, n_items, NULL);
}
