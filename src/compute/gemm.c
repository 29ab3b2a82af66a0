/* gemm.c — cutting products into panels, ranges of k and groups of rows, and spreading them over workers.
 *
 * A call is two launches (base/record.h), both with all they need in one struct call: x into the forms that the weights want, then the products.
 */
#include "compute/gemm.h"

#include <math.h>

#include "base/record.h"
#include "compute/gemm_kern.h"
#include "compute/gemm_quant.h"
#include "compute/gemm_tiles.h"

enum {
  WEIGHTS_MAX = 8,            /* that share one x in a call */
  STREAM_BYTES = 64 << 10,    /* of weights per item at least, when they are read for few rows */
  CODES_CHUNK_MOST = 16,      /* panels per item of codes that take several passes over k: their sums stay in the second-level cache */
  ITEMS_PER_WORKER = 8,       /* so that uneven workers finish together */
  TILES_ITEMS_PER_WORKER = 4, /* of many rows on tiles: those want many panels */
  WIDE_ROWS_LEAST = 24,       /* of x from which on plain numbers take the way for many rows */
  WIDE_PANELS_LEAST = 8,      /* per item of those: each copies its rows of x */
  ROWS_QUANTISED_BY_ONE = 4,  /* a fork-join costs more than that */
  TILES_X_BYTES = 1280 << 10  /* of x as bf16 per item at most: processors with tiles have 2 MiB of second-level cache */
};

static int panels_of(const struct weight *w) { return div_up(w->rows, GEMM_PANEL); }

/* --- packing ---------------------------------------------------------------------------------------------------------- */

bool gemm_supports(const struct kern *k, enum dtype t, int cols, struct err *e) {
  const struct gemm_format *f = gemm_format_of(t);
  const struct dtype_info *info = t > DTYPE_NONE && t < DTYPE_COUNT ? dtype_info(t) : NULL;
  if (!f) {
    err_set(e, ERR_UNSUPPORTED, "matrix products: type %s is not supported (level %s)", info ? info->name : "none", k->name);
    return false;
  }
  if (cols < 1 || cols % info->block_elems) {
    err_set(e, ERR_UNSUPPORTED, "matrix products: expected a width that is a multiple of %d for %s, found %d", info->block_elems,
            info->name, cols);
    return false;
  }
  return true;
}

static size_t quantised_row_bytes(const struct weight *w) {
  size_t n_bytes;
  CHECK(dtype_row_bytes(w->dtype, (size_t)w->cols, &n_bytes));
  return n_bytes;
}

size_t gemm_packed_bytes(const struct kern *k, const struct weight *w) {
  if (!gemm_is_ref(k))
    return (size_t)panels_of(w) * gemm_panel_bytes(w->dtype, w->cols) + (gemm_on_tiles(k, w->dtype) ? gemm_tails_bytes(w) : 0);
  return w->from ? (size_t)w->rows * quantised_row_bytes(w) : 0;
}

enum { PACK_PANELS = 16 };

struct packing {
  struct weight *w;
  bool tails;
};

static void pack_item(void *ctx, int item, int worker) {
  const struct packing *c = ctx;
  size_t panel_bytes = gemm_panel_bytes(c->w->dtype, c->w->cols);
  int to = MIN(panels_of(c->w), (item + 1) * PACK_PANELS);
  (void)worker;
  for (int p = item * PACK_PANELS; p < to; p++) {
    gemm_pack_panel(c->w, p, (uint8_t *)c->w->packed + (size_t)p * panel_bytes);
    if (c->tails) gemm_tail_make(c->w, p);
  }
}

/* The reference level's own copy in the file's form. */
static void quantise_item(void *ctx, int item, int worker) {
  struct weight *w = ctx;
  size_t row_bytes = quantised_row_bytes(w);
  int to = MIN(w->rows, (item + 1) * PACK_PANELS * GEMM_PANEL);
  (void)worker;
  for (int r = item * PACK_PANELS * GEMM_PANEL; r < to; r++) gemm_quant_row_bytes(w, r, (char *)w->packed + (size_t)r * row_bytes);
}

void gemm_pack(const struct kern *k, struct workers *workers, struct weight *w) {
  if (gemm_is_ref(k) && !w->from) return;
  struct packing packing = {w, gemm_on_tiles(k, w->dtype)};
  int n_items = div_up(panels_of(w), PACK_PANELS);
  if (!gemm_is_ref(k)) {
    workers_run(workers, pack_item, &packing, n_items);
    return;
  }
  workers_run(workers, quantise_item, w, n_items);
  w->source = w->packed;
  w->row_bytes = quantised_row_bytes(w);
  w->from = DTYPE_NONE;
}

void gemm_weight_row(const struct kern *k, const struct weight *w, int row, float *out) {
  if (gemm_is_ref(k) || !w->packed) {
    gemm_quant_row(w, row, out);
    return;
  }
  CHECK(row >= 0 && row < w->rows);
  gemm_unpack_panel_row(w->dtype, w->cols, gemm_panel_at(w, row / GEMM_PANEL), row % GEMM_PANEL, out);
}

/* --- scratch ---------------------------------------------------------------------------------------------------------- */

/* One call's x in the forms that the weights want, inside the scratch; then one piece per worker. */
struct rows {
  struct tensor x;
  int group;    /* rows that lie together: gemm_kern.h */
  int n_blocks; /* per row */
  int8_t *codes;
  struct gemm_block *blocks;
  uint16_t *bf16;
  size_t bf16_stride; /* elements */
  uint16_t *tiles;    /* gemm_tiles.h; in the memory of the forms above, which no weight wants then */
  int tile_blocks;    /* per row of those */
  char *per_worker;
  size_t per_worker_bytes;
};

/* Elements; an odd number of cache lines, or rows would fall into few sets of a cache. */
static size_t bf16_stride(int cols) { return (align_up((size_t)cols, 32) / 32 | 1) * 32; }
static size_t worker_bytes(int cols) {
  size_t ref = GEMM_REF_ROWS * (size_t)cols * sizeof(float), codes = MAX(2 * sizeof(struct gemm_tile), sizeof(struct gemm_wide));
  return align_up(MAX(ref, MAX(codes, sizeof(struct gemm_tiles))), 4096);
}

size_t gemm_scratch_bytes(int rows_max, int cols_max, int n_workers) {
  size_t rows = align_up((size_t)rows_max, GEMM_GROUP_MAX), n_blocks = (size_t)div_up(cols_max, GEMM_BLOCK);
  size_t row = n_blocks * (GEMM_BLOCK + sizeof(struct gemm_block)) + bf16_stride(cols_max) * sizeof(uint16_t);
  return align_up(rows * row + 128, 4096) + (size_t)n_workers * worker_bytes(cols_max) + 64;
}

static struct rows lay_out(const struct gemm_kern *k, const struct gemm_scratch *s, const struct tensor *x) {
  struct rows r = {.x = *x, .bf16_stride = bf16_stride(x->cols), .n_blocks = x->cols / GEMM_BLOCK};
  r.group = x->rows == 1 ? 1 : MAX(1, k->rows_max);
  CHECK(r.group <= GEMM_GROUP_MAX);
  size_t n = align_up((size_t)x->rows, (size_t)r.group) * (size_t)r.n_blocks;
  char *at = (char *)align_up((size_t)s->data, 64);
  r.codes = (int8_t *)at;
  at += align_up(n * GEMM_BLOCK, 64);
  r.blocks = (struct gemm_block *)(void *)at;
  at += align_up(n * sizeof(struct gemm_block), 64);
  r.bf16 = (uint16_t *)(void *)at;
  r.tiles = (uint16_t *)(void *)r.codes;
  r.tile_blocks = div_up(x->cols, GEMM_BLOCK);
  r.per_worker_bytes = worker_bytes(s->cols_max);
  r.per_worker = (char *)align_up((size_t)s->data, 64) + (s->n_bytes - 64 - (size_t)s->n_workers * r.per_worker_bytes);
  return r;
}

/* Where block b of a row is, counted in blocks. */
static size_t block_at(const struct rows *r, int row, int b) {
  return ((size_t)(row / r->group) * (size_t)r->n_blocks + (size_t)b) * (size_t)r->group + (size_t)(row % r->group);
}

/* --- one item --------------------------------------------------------------------------------------------------------- */

struct call_weight {
  const struct weight *w; /* the model's: there for as long as the call is recorded */
  struct tensor y;
  int chunk;        /* panels per item */
  int items_before; /* of the weights before this one, within one row tile */
};

struct call {
  const struct kern *kern;
  struct rows rows;
  bool quantise, to_bf16, to_tiles;
  bool wide;             /* all weights are plain numbers, and there are many rows */
  bool prepared;         /* x is in its forms already */
  const uint8_t *wanted; /* [panels], enum gemm_wanted; NULL: all */
  bool gated;            /* the first weight's products are gated by those of the second: y is the first's */
  enum act act;          /* of that */
  int pass_blocks;       /* of k that are gone through for all panels of an item before the next: of codes, and on tiles */
  int rows_per_item;     /* of prepare_rows */
  int tile_rows;         /* of x per item of product_item */
  int items_per_tile;    /* of all weights */
  int tapered_panels;    /* few rows: of all weights, one after the other, cut into items that become smaller and smaller; else 0 */
  int n_w;
  struct call_weight weights[WEIGHTS_MAX]; /* last: those that there are count as the call's context */
};

static void prepare_rows(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct rows *r = &c->rows;
  const struct gemm_kern *k = c->kern->gemm;
  int from = item * c->rows_per_item, to = MIN(from + c->rows_per_item, r->x.rows);
  (void)worker;
  for (int row = from; row < to; row++) {
    const float *x = tensor_row(&r->x, row);
    size_t at = block_at(r, row, 0);
    if (c->quantise) k->quantise_row(r->codes + at * GEMM_BLOCK, r->blocks + at, r->group, x, r->x.cols);
    if (c->to_bf16) k->bf16_row(r->bf16 + (size_t)row * r->bf16_stride, x, r->x.cols);
    if (c->to_tiles)
      k->tiles->x_row(r->tiles + gemm_tiles_x_at(r->x.rows, r->tile_blocks, row), gemm_tiles_x_step(r->x.rows), x, r->x.cols);
  }
}

static void store(const struct tensor *y, const struct weight *w, int row, int panel, const float acc[GEMM_PANEL]) {
  float *out = tensor_row(y, row) + panel * GEMM_PANEL;
  if ((panel + 1) * GEMM_PANEL <= w->rows) memcpy(out, acc, GEMM_PANEL * sizeof *acc);
  else memcpy(out, acc, (size_t)(w->rows - panel * GEMM_PANEL) * sizeof *acc);
}

struct part { /* panels [from, to) of a weight times rows [row, row + n_rows) of x */
  const struct weight *w;
  const struct tensor *y;
  int from, to, row, n_rows;
};

/* Of a panel at once: whole records; for few rows ranges alike. */
static int range_blocks(int n_blocks, int n_rows) {
  if (n_rows > GEMM_SHORT_ROWS) return GEMM_RANGE_BLOCKS;
  return div_up(div_up(n_blocks, div_up(n_blocks, GEMM_RANGE_SHORT)), GEMM_RECORD_BLOCKS_MAX) * GEMM_RECORD_BLOCKS_MAX;
}

/* Where the kernels multiply a panel's bytes as they lie. */
static void panel_direct(const struct gemm_type_kern *t, const uint8_t *in, int n_blocks, size_t block_bytes, int n_rows, struct gemm_x x,
                         int group, struct gemm_tile *tile) {
  const int range = range_blocks(n_blocks, n_rows);
  memset(tile->acc, 0, (size_t)n_rows * sizeof tile->acc[0]);
  for (int b = 0, n; b < n_blocks; b += n, in += (size_t)n * block_bytes) {
    n = MIN(range, n_blocks - b);
    for (int i = 0; i < n_rows; i += GEMM_DIRECT_ROWS) {
      size_t at = (size_t)i * (size_t)n_blocks + (size_t)b * (size_t)group;
      struct gemm_x part = {x.codes + at * GEMM_BLOCK, x.blocks + at};
      t->direct(in, n, MIN(GEMM_DIRECT_ROWS, n_rows - i), part, n_blocks, tile->acc + i, i == 0);
    }
  }
}

/* Whether a panel's sums are in y from the first block on, so that passes over k may leave them there. */
static bool sums_in_y(const struct gemm_kern *k, const struct weight *w, int panel) {
  return (panel + 1) * GEMM_PANEL <= w->rows && !k->types[w->dtype].direct;
}

/* Blocks [from, to) of a panel, whole records, that are unpacked first. */
static void panel_unpacked(const struct gemm_type_kern *t, const uint8_t *in, int n_blocks, size_t block_bytes, int n_rows, struct gemm_x x,
                           int group, struct gemm_tile *tile, struct gemm_sums sums, int from, int to) {
  const int range = range_blocks(n_blocks, n_rows);
  for (int b = from, n; b < to; b += n, sums.first = false) {
    n = MIN(range, to - b);
    const uint8_t *p = in + (size_t)b * block_bytes, *next = p + (size_t)n * block_bytes;
    t->unpack(tile, p, n);
    for (int i = 0; i < n_rows; i += group) {
      size_t at = (size_t)i * (size_t)n_blocks + (size_t)b * (size_t)group;
      struct gemm_x part = {x.codes + at * GEMM_BLOCK, x.blocks + at};
      struct gemm_sums of = {gemm_sums_row(&sums, i), sums.row_bytes, sums.first};
      t->rows(tile, n, MIN(n_rows - i, group), part, of, (struct gemm_ahead){next, i ? 0 : (int)block_bytes});
    }
  }
}

/* Blocks [from, to) of k: to y, from its row `row` on; where y is NULL sums stay in the tile. All of k where they are not in y. */
static void panel_codes(const struct gemm_kern *k, const struct weight *w, int panel, struct gemm_x x, int group, int n_rows,
                        struct gemm_tile *tile, const struct tensor *y, int row, int from, int to) {
  const struct gemm_format *f = gemm_format_of(w->dtype);
  const struct gemm_type_kern *t = &k->types[w->dtype];
  const size_t block_bytes = (gemm_header_bytes(f) + f->blocks * gemm_block_bytes(f)) / f->blocks;
  const uint8_t *in = gemm_panel_at(w, panel);
  const int n_blocks = w->cols / GEMM_BLOCK;
  if (y && sums_in_y(k, w, panel)) {
    struct gemm_sums sums = {tensor_row(y, row) + panel * GEMM_PANEL, y->row_bytes, from == 0};
    panel_unpacked(t, in, n_blocks, block_bytes, n_rows, x, group, tile, sums, from, to);
    return;
  }
  if (t->direct) {
    for (int i = 0; i < n_rows && y; i++) __builtin_prefetch(tensor_row(y, row + i) + panel * GEMM_PANEL, 1);
    panel_direct(t, in, n_blocks, block_bytes, n_rows, x, group, tile);
  } else {
    struct gemm_sums sums = {tile->acc[0], sizeof tile->acc[0], true};
    panel_unpacked(t, in, n_blocks, block_bytes, n_rows, x, group, tile, sums, 0, n_blocks);
  }
  for (int i = 0; i < n_rows && y; i++) store(y, w, row + i, panel, tile->acc[i]);
}

void gemm_panel_codes(const struct gemm_kern *k, const struct weight *w, int panel, struct gemm_x x, int group, int n_rows,
                      struct gemm_tile *tile) {
  panel_codes(k, w, panel, x, group, n_rows, tile, NULL, 0, 0, w->cols / GEMM_BLOCK);
}

void gemm_panel_plain(const struct gemm_kern *k, const struct weight *w, int panel, const void *x, size_t x_bytes, size_t elem_bytes,
                      int n_rows, struct gemm_tile *tile) {
  size_t k_bytes = GEMM_PANEL * (size_t)gemm_format_of(w->dtype)->plain_bytes;
  const uint8_t *in = gemm_panel_at(w, panel);
  int step = div_up(n_rows, div_up(n_rows, k->plain_rows_max)); /* passes alike: 5 rows of at most 4 are 3 + 2 */
  memset(tile->acc, 0, (size_t)n_rows * sizeof tile->acc[0]);
  for (int at = 0; at < w->cols; at += GEMM_RANGE_PLAIN) {
    int n = MIN(GEMM_RANGE_PLAIN, w->cols - at);
    for (int i = 0; i < n_rows; i += step)
      k->types[w->dtype].plain_rows(in + (size_t)at * k_bytes, n, MIN(step, n_rows - i),
                                    (const char *)x + (size_t)i * x_bytes + (size_t)at * elem_bytes, x_bytes, tile->acc + i);
  }
}

/* A panel times all rows of x, which are few. */
static void panel_few(const struct call *c, const struct weight *w, int panel, struct gemm_tile *tile) {
  const struct rows *r = &c->rows;
  c->kern->gemm->types[w->dtype].few(tile->acc, gemm_panel_at(w, panel), (struct gemm_x){r->codes, r->blocks}, r->n_blocks, r->x.rows);
}

static void quantised_few(const struct call *c, const struct part *p, struct gemm_tile *tile) {
  for (int panel = p->from; panel < p->to; panel++) {
    panel_few(c, p->w, panel, tile);
    for (int i = 0; i < p->n_rows; i++) store(p->y, p->w, i, panel, tile->acc[i]);
  }
}

/* Passes over k outermost: x of one lies in the second-level cache while all panels go over it. */
static void quantised_rows(const struct call *c, const struct part *p, struct gemm_tile *tile) {
  const struct gemm_kern *k = c->kern->gemm;
  const struct rows *r = &c->rows;
  size_t at = block_at(r, p->row, 0);
  struct gemm_x x = {r->codes + at * GEMM_BLOCK, r->blocks + at};
  for (int from = 0, to; from < r->n_blocks; from = to) {
    to = MIN(from + c->pass_blocks, r->n_blocks);
    for (int panel = p->from; panel < p->to; panel++) {
      bool whole = sums_in_y(k, p->w, panel);
      if (whole || to == r->n_blocks) panel_codes(k, p->w, panel, x, r->group, p->n_rows, tile, p->y, p->row, whole ? from : 0, to);
    }
  }
}

static const void *plain_x(const struct call *c, const struct weight *w, int row, size_t *row_bytes, size_t *elem_bytes) {
  const struct rows *r = &c->rows;
  if (w->dtype == DTYPE_BF16 && c->to_bf16) {
    *row_bytes = r->bf16_stride * sizeof *r->bf16;
    *elem_bytes = sizeof *r->bf16;
    return r->bf16 + (size_t)row * r->bf16_stride;
  }
  *row_bytes = r->x.row_bytes;
  *elem_bytes = sizeof(float);
  return tensor_row(&r->x, row);
}

static void plain_part(const struct call *c, const struct part *p, struct gemm_tile *tile) {
  const struct gemm_kern *g = c->kern->gemm;
  size_t row_bytes, elem_bytes, panel_bytes = gemm_panel_bytes(p->w->dtype, p->w->cols);
  const char *x = plain_x(c, p->w, p->row, &row_bytes, &elem_bytes);
  const uint8_t *packed = p->w->packed;
  for (int panel = p->from, n; p->n_rows == 1 && panel < p->to; panel += n) {
    n = MIN(g->plain_panels_max, p->to - panel);
    g->types[p->w->dtype].plain_one(tile->acc, packed + (size_t)panel * panel_bytes, panel_bytes, n, x, p->w->cols);
    for (int i = 0; i < n; i++) store(p->y, p->w, p->row, panel + i, tile->acc[i]);
  }
  for (int panel = p->from; p->n_rows > 1 && panel < p->to; panel++) {
    for (int i = 0; i < p->n_rows; i++) __builtin_prefetch(tensor_row(p->y, p->row + i) + panel * GEMM_PANEL, 1);
    gemm_panel_plain(g, p->w, panel, x, row_bytes, elem_bytes, p->n_rows, tile);
    for (int i = 0; i < p->n_rows; i++) store(p->y, p->w, p->row + i, panel, tile->acc[i]);
  }
}

/* Ranges of k outermost: that of the rows lies in the second-level cache while all panels go over it, that of a panel in the first. */
static void wide_part(const struct call *c, const struct part *p, struct gemm_wide *s) {
  const struct gemm_kern *g = c->kern->gemm;
  const struct gemm_type_kern *t = &g->types[p->w->dtype];
  const int cols = p->w->cols;
  size_t k_bytes = GEMM_PANEL * (size_t)gemm_format_of(p->w->dtype)->plain_bytes, panel_bytes = gemm_panel_bytes(p->w->dtype, cols);
  for (int at = 0; at < cols; at += GEMM_RANGE_PLAIN) {
    int n = MIN(GEMM_RANGE_PLAIN, cols - at);
    for (int i = 0; i < p->n_rows; i++) memcpy(s->x[i], tensor_row(&c->rows.x, p->row + i) + at, (size_t)n * sizeof(float));
    for (int panel = p->from; panel < p->to; panel++) {
      const uint8_t *in = (const uint8_t *)p->w->packed + (size_t)panel * panel_bytes + (size_t)at * k_bytes;
      const float *w = (const float *)(const void *)in;
      if (t->plain_expand) t->plain_expand(s->w, in, n), w = s->w[0];
      bool whole = (panel + 1) * GEMM_PANEL <= p->w->rows;
      float *y = whole ? tensor_row(p->y, p->row) + panel * GEMM_PANEL : s->acc[0];
      size_t y_bytes = whole ? p->y->row_bytes : sizeof s->acc[0];
      for (int i = 0; i < p->n_rows; i += g->plain_rows_max) {
        float *to = (float *)(void *)((char *)y + (size_t)i * y_bytes);
        g->wide_rows(w, n, MIN(g->plain_rows_max, p->n_rows - i), s->x[i], to, y_bytes, at == 0);
      }
      for (int i = 0; i < p->n_rows && !whole && at + n == cols; i++) store(p->y, p->w, p->row + i, panel, s->acc[i]);
    }
  }
}

/* Codes of two weights, panel by panel: both products are near when one gates the other. */
static void gated_few(const struct call *c, const struct part *p, struct gemm_tile t[2]) {
  for (int panel = p->from; panel < p->to; panel++) {
    int col = panel * GEMM_PANEL;
    for (int i = 0; i < 2; i++) panel_few(c, c->weights[i].w, panel, &t[i]);
    for (int j = 0; j < p->n_rows; j++)
      c->kern->gated(tensor_row(p->y, j) + col, t[0].acc[j], t[1].acc[j], c->act, MIN(GEMM_PANEL, p->w->rows - col));
  }
}

/* --- on tiles --------------------------------------------------------------------------------------------------------- */

/* Passes over k outermost: x of one lies in the second-level cache while all panels go over it. */
static void tiles_passes(const struct call *c, const struct part *p, struct gemm_tiles_x x, struct gemm_tiles *t) {
  const int n_blocks = c->rows.tile_blocks, n_steps = div_up(p->n_rows, GEMM_TILES_STEP);
  for (int from = 0, to; from < n_blocks; from = to) {
    to = MIN(from + c->pass_blocks, n_blocks);
    gemm_tiles_sums *kept = t->kept;
    for (int panel = p->from; panel < p->to; panel += 2) {
      struct gemm_tiles_pair pair = {MIN(2, p->to - panel), {{p->w, panel}, {p->w, panel + 1}}};
      struct gemm_tiles_sink sink = {.out = gemm_tiles_out(p->y, p->row, panel * GEMM_PANEL, pair.n * GEMM_PANEL)};
      gemm_tiles_product(c->kern, &pair, x, from, to, &sink, kept, t);
      if (c->pass_blocks < n_blocks) kept += n_steps;
    }
  }
}

/* Panels of an item whose sums are kept from pass to pass. */
static int kept_panels(const struct call *c) { return 2 * (GEMM_TILES_KEPT / (c->tile_rows / GEMM_TILES_STEP)); }

static void tiles_part(const struct call *c, const struct part *p, struct gemm_tiles *t) {
  const struct gemm_tiles_kern *k = c->kern->gemm->tiles;
  const struct rows *r = &c->rows;
  struct gemm_tiles_x x = {r->tiles + gemm_tiles_x_at(r->x.rows, r->tile_blocks, p->row), r->x.rows, p->n_rows};
  k->begin(MIN(p->n_rows, GEMM_TILES_GROUP));
  if (c->gated) gemm_tiles_gated(c->kern, p->w, c->weights[1].w, p->from, p->to, x, c->act, p->y, p->row, t);
  else if (p->n_rows <= GEMM_TILES_GROUP)
    gemm_tiles_few(c->kern, p->w, p->from, p->to, x, tensor_row(p->y, p->row) + p->from * GEMM_PANEL, p->y->row_bytes);
  else tiles_passes(c, p, x, t);
  k->end();
}

/* Panels that one function goes through from the first to the last. */
static void product_part(const struct call *c, const struct part *p, char *scratch) {
  const struct weight *w = p->w;
  if (gemm_is_ref(c->kern))
    gemm_ref_rows(w, p->y, &c->rows.x, p->from * GEMM_PANEL, MIN(w->rows, p->to * GEMM_PANEL), (float *)(void *)scratch);
  else if (gemm_on_tiles(c->kern, w->dtype)) tiles_part(c, p, (struct gemm_tiles *)(void *)scratch);
  else if (c->gated) gated_few(c, p, (struct gemm_tile *)(void *)scratch);
  else if (gemm_format_of(w->dtype)->plain_bytes && c->wide) wide_part(c, p, (struct gemm_wide *)(void *)scratch);
  else if (gemm_format_of(w->dtype)->plain_bytes) plain_part(c, p, (struct gemm_tile *)(void *)scratch);
  else if (c->rows.x.rows <= c->kern->gemm->few_max) quantised_few(c, p, (struct gemm_tile *)(void *)scratch);
  else quantised_rows(c, p, (struct gemm_tile *)(void *)scratch);
}

/* Runs of panels that are wanted. */
static void wanted_parts(const struct call *c, const struct part *p, char *scratch) {
  struct part run = *p;
  for (run.to = p->from; run.to < p->to;) {
    for (run.from = run.to; run.from < p->to && c->wanted[run.from] != GEMM_WANTED; run.from++) {}
    for (run.to = run.from; run.to < p->to && c->wanted[run.to] == GEMM_WANTED; run.to++) {}
    if (run.from < run.to) product_part(c, &run, scratch);
  }
}

/* What is multiplied and goes to a y of its own: of gated weights the first. */
static int n_products(const struct call *c) { return c->gated ? 1 : c->n_w; }
static int panels_of_all(const struct call *c) {
  int panels = 0;
  for (int i = 0; i < n_products(c); i++) panels += panels_of(c->weights[i].w);
  return panels;
}

/* Panels [from, to) of weight i, times a tile of rows from `row` on. */
static void panels_item(const struct call *c, int i, int from, int to, int row, int worker) {
  const struct call_weight *cw = &c->weights[i];
  struct part p = {.w = cw->w, .y = &cw->y, .from = from, .to = to, .row = row, .n_rows = MIN(c->tile_rows, c->rows.x.rows - row)};
  char *scratch = c->rows.per_worker + (size_t)worker * c->rows.per_worker_bytes;
  if (c->wanted) wanted_parts(c, &p, scratch);
  else product_part(c, &p, scratch);
}

/* Where an item begins whose size is in proportion to how many come after it. */
static int tapered_at(const struct call *c, int item) {
  int64_t left = c->items_per_tile - item, n = c->items_per_tile;
  return c->tapered_panels - (int)(c->tapered_panels * left * left / (n * n));
}

static void tapered_item(const struct call *c, int item, int worker) {
  int from = tapered_at(c, item), to = tapered_at(c, item + 1);
  for (int i = 0, before = 0; i < n_products(c); before += panels_of(c->weights[i].w), i++) {
    int at = MAX(from - before, 0), end = MIN(to - before, panels_of(c->weights[i].w));
    if (at < end) panels_item(c, i, at, end, 0, worker);
  }
}

static void product_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  if (c->tapered_panels) {
    tapered_item(c, item, worker);
    return;
  }
  int tile_index = item / c->items_per_tile, i = n_products(c) - 1;
  item %= c->items_per_tile;
  while (item < c->weights[i].items_before) i--;
  const struct call_weight *cw = &c->weights[i];
  int from = (item - cw->items_before) * cw->chunk;
  panels_item(c, i, from, MIN(panels_of(cw->w), from + cw->chunk), tile_index * c->tile_rows, worker);
}

/* --- the whole -------------------------------------------------------------------------------------------------------- */

/* Of a row of quantised x, per block. */
enum { BLOCK_BYTES = GEMM_BLOCK + sizeof(struct gemm_block) };

/* Rows of x per item, and blocks of k per pass. */
static void plan_rows(struct call *c) {
  const struct gemm_kern *k = c->kern->gemm;
  int rows = c->rows.x.rows, n_blocks = div_up(c->rows.x.cols, GEMM_BLOCK);
  c->tile_rows = rows, c->pass_blocks = MAX(n_blocks, 1);
  if (gemm_is_ref(c->kern)) return;
  int most = GEMM_TILE_ROWS, group = c->wide ? k->plain_rows_max : GEMM_GROUP_MAX;
  if (!k->codes_in_passes) most = MIN(most, MAX(16, k->codes_x_bytes / (n_blocks * BLOCK_BYTES) / GEMM_GROUP_MAX * GEMM_GROUP_MAX));
  if (c->wide) most = GEMM_WIDE_ROWS;
  c->tile_rows = div_up(div_up(rows, div_up(rows, most)), group) * group; /* a tile starts with a group */
  int pass = k->codes_x_bytes / (MIN(rows, c->tile_rows) * BLOCK_BYTES);
  if (k->codes_in_passes && pass < n_blocks)
    c->pass_blocks = (int)align_up((size_t)div_up(n_blocks, div_up(n_blocks, pass)), GEMM_RECORD_BLOCKS_MAX);
}

/* The same on tiles, and blocks of k per pass. What is gated must be complete after one. Several passes: fewer rows, for that is fewer passes, and more
 * panels for which x of one stays near. Few panels for many workers: fewer rows an item, so that each still has panels for which x stays near. */
static void plan_tiles(struct call *c, int n_workers) {
  enum { PANELS_WANTED = 16, ROWS_WANTED = 128, ROWS_OF_PASSES = 256 };
  int rows = c->rows.x.rows, n_blocks = c->rows.tile_blocks, panels = panels_of_all(c), most = GEMM_TILES_ROWS;
  bool plain = false; /* among others: those parts are smaller */
  for (int i = 0; i < c->n_w; i++) plain |= !gemm_on_tiles(c->kern, c->weights[i].w->dtype);
  if (plain) most = GEMM_TILE_ROWS;
  if (c->gated) most = MAX(GEMM_TILES_STEP, MIN(most, TILES_X_BYTES / (n_blocks * GEMM_TILES_X_BYTES) / GEMM_TILES_STEP * GEMM_TILES_STEP));
  else if (most * n_blocks * GEMM_TILES_X_BYTES > TILES_X_BYTES) most = MIN(most, ROWS_OF_PASSES);
  while (most > ROWS_WANTED && panels * div_up(rows, most) < PANELS_WANTED * TILES_ITEMS_PER_WORKER * n_workers) most /= 2;
  most = div_up(most, GEMM_TILES_STEP) * GEMM_TILES_STEP;
  c->tile_rows = div_up(div_up(rows, div_up(rows, most)), GEMM_TILES_STEP) * GEMM_TILES_STEP;
  int pass = TILES_X_BYTES / (MIN(rows, c->tile_rows) * GEMM_TILES_X_BYTES);
  if (c->gated || pass >= n_blocks) c->pass_blocks = n_blocks;
  else c->pass_blocks = (int)align_up((size_t)div_up(n_blocks, div_up(n_blocks, pass)), GEMM_RECORD_BLOCKS_MAX);
}

static int rows_per_item(int rows) { return rows <= ROWS_QUANTISED_BY_ONE ? rows : 1; }

/* Few rows: workers that are not equally fast finish together when the last items are small, and the first may be large, each of which waits for memory
 * when it begins. The first one must not be more than half of a worker's share, so that this is for few workers; the last is a panel. Where memory has
 * several nodes items are shared out by their places among all. */
static bool taper(struct call *c, const struct workers *workers, size_t bytes) {
  const int n_panels = panels_of_all(c);
  int rows = c->rows.x.rows, n_workers = workers_count(workers), n = MIN(ITEMS_PER_WORKER * n_workers, (int)sqrt(n_panels));
  if (rows <= 4) n = (int)MIN((size_t)n, bytes / STREAM_BYTES);
  if (rows > GEMM_TILES_GROUP || rows > c->tile_rows || n < 4 * n_workers || workers_nodes(workers) > 1) return false;
  c->tapered_panels = n_panels;
  c->items_per_tile = n;
  return true;
}

/* Cut into items: all panels of all weights for one tile of rows, then for the next. Returns the number of items. */
static int plan(struct call *c, const struct workers *workers) {
  const int n_workers = workers_count(workers);
  int rows = c->rows.x.rows, cols = c->rows.x.cols, n_w = n_products(c);
  size_t total_bytes = 0;
  c->rows_per_item = rows_per_item(rows);
  c->items_per_tile = 0;
  if (c->to_tiles) plan_tiles(c, n_workers);
  else plan_rows(c);
  int n_tiles = div_up(rows, c->tile_rows), per_worker = c->to_tiles && rows > GEMM_TILES_GROUP ? TILES_ITEMS_PER_WORKER : ITEMS_PER_WORKER;
  for (int i = 0; i < n_w; i++) total_bytes += (size_t)panels_of(c->weights[i].w) * gemm_panel_bytes(c->weights[i].w->dtype, cols);
  if (taper(c, workers, total_bytes)) return c->items_per_tile;
  size_t item_bytes = total_bytes * (size_t)n_tiles / (size_t)(n_workers * per_worker);
  if (rows <= 4) item_bytes = MAX(item_bytes, (size_t)STREAM_BYTES);
  for (int i = 0; i < n_w; i++) {
    struct call_weight *cw = &c->weights[i];
    size_t panels = item_bytes / gemm_panel_bytes(cw->w->dtype, cols);
    cw->chunk = MAX(c->wide ? WIDE_PANELS_LEAST : 1, MIN((int)MIN(panels, (size_t)1 << 20), panels_of(cw->w)));
    if (c->to_tiles && c->pass_blocks < c->rows.tile_blocks) cw->chunk = MIN(cw->chunk, kept_panels(c));
    else if (c->quantise && c->pass_blocks < c->rows.n_blocks) cw->chunk = MIN(cw->chunk, CODES_CHUNK_MOST);
    if (c->to_tiles && !c->gated) cw->chunk += cw->chunk % 2; /* they go in pairs */
    cw->items_before = c->items_per_tile;
    c->items_per_tile += div_up(panels_of(cw->w), cw->chunk);
  }
  return n_tiles * c->items_per_tile;
}

static void check_scratch(const struct gemm_scratch *s, const struct tensor *x, struct workers *workers) {
  CHECK(x->rows <= s->rows_max && x->cols <= s->cols_max && workers_count(workers) <= s->n_workers);
}

static void run(struct call *c, struct workers *workers, struct gemm_scratch *s) {
  check_scratch(s, &c->rows.x, workers);
  size_t c_bytes = offsetof(struct call, weights) + (size_t)c->n_w * sizeof c->weights[0];
  int n_items = plan(c, workers);
  if (!c->prepared && (c->quantise || c->to_bf16 || c->to_tiles))
    workers_launch(workers, prepare_rows, c, c_bytes, div_up(c->rows.x.rows, c->rows_per_item), NULL);
  workers_launch(workers, product_item, c, c_bytes, n_items, NULL);
}

struct gemm_tiles_work gemm_tiles_work(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct tensor *x) {
  struct call c = {.kern = k, .rows = lay_out(k->gemm, s, x), .to_tiles = true, .rows_per_item = rows_per_item(x->rows)};
  check_scratch(s, x, workers);
  workers_launch(workers, prepare_rows, &c, offsetof(struct call, weights), div_up(x->rows, c.rows_per_item), NULL);
  return (struct gemm_tiles_work){c.rows.tiles, c.rows.per_worker, c.rows.per_worker_bytes};
}

/* Products of n_w weights, and which forms of x they want. */
static struct call call_of(const struct kern *k, struct gemm_scratch *s, int n_w, const struct weight *const *w, struct tensor *const *y,
                           const struct tensor *x) {
  struct call c = {.kern = k, .rows = lay_out(k->gemm, s, x), .act = ACT_NONE, .n_w = n_w};
  c.wide = k->gemm->wide_rows && x->rows >= WIDE_ROWS_LEAST;
  for (int i = 0; i < n_w; i++) {
    CHECK(w[i]->cols == x->cols && y[i]->rows == x->rows && y[i]->cols == w[i]->rows);
    CHECK(gemm_is_ref(k) || w[i]->packed);
    bool plain = gemm_format_of(w[i]->dtype)->plain_bytes, tiles = gemm_on_tiles(k, w[i]->dtype);
    c.weights[i].w = w[i];
    c.weights[i].y = *y[i];
    c.to_tiles |= tiles;
    c.quantise |= !gemm_is_ref(k) && !plain && !tiles;
    c.wide &= plain;
    c.to_bf16 |= k->gemm->bf16_row && w[i]->dtype == DTYPE_BF16;
  }
  return c;
}

void gemm(const struct kern *k, struct workers *workers, struct gemm_scratch *s, int n_w, const struct weight *const *w,
          struct tensor *const *y, const struct tensor *x) {
  CHECK(n_w >= 1 && n_w <= WEIGHTS_MAX);
  if (x->rows < 1) return;
  struct call c = call_of(k, s, n_w, w, y, x);
  run(&c, workers, s);
}

void gemm_panels(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *w, struct tensor *y,
                 const struct tensor *x, const uint8_t *wanted, bool again) {
  if (x->rows < 1) return;
  struct call c = call_of(k, s, 1, &w, &y, x);
  c.wanted = wanted;
  c.prepared = again;
  run(&c, workers, s);
}

bool gemm_gated_supports(const struct kern *k, const struct weight *gate, const struct weight *up, int rows) {
  if (gemm_is_ref(k) || gemm_on_tiles(k, gate->dtype) != gemm_on_tiles(k, up->dtype)) return false;
  if (gemm_on_tiles(k, gate->dtype)) return true;
  return rows <= k->gemm->few_max && !gemm_format_of(gate->dtype)->plain_bytes && !gemm_format_of(up->dtype)->plain_bytes;
}

void gemm_gated(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *gate, const struct weight *up,
                struct tensor *y, const struct tensor *x, enum act act) {
  CHECK(gemm_gated_supports(k, gate, up, x->rows) && gate->packed && up->packed && y->data != x->data);
  CHECK(gate->cols == x->cols && up->cols == x->cols && gate->rows == up->rows && y->rows == x->rows && y->cols == gate->rows);
  if (x->rows < 1) return;
  struct call c = {.kern = k, .rows = lay_out(k->gemm, s, x), .gated = true, .act = act, .n_w = 2};
  c.to_tiles = gemm_on_tiles(k, gate->dtype);
  c.quantise = !c.to_tiles;
  c.weights[0] = (struct call_weight){.w = gate, .y = *y};
  c.weights[1] = (struct call_weight){.w = up, .y = *y};
  run(&c, workers, s);
}
