/* moe.c — routing, grouping and the products of experts; the rules are in moe.h.
 *
 * Six launches: route every row; group (one item); x into the products' form; gate, up and activation by expert and panels; that into the products'
 * form; down and the weighted sum by panels, over all experts in turn: an output column belongs to one item, so its sum has one order.
 */
#include "compute/moe.h"

#include <math.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/gemm_kern.h"
#include "compute/gemm_tiles.h"

enum {
  ITEMS_PER_WORKER = 16,
  ROUTE_ELEMS = 4096,   /* logits whose routing is worth an item */
  PREPARE_ELEMS = 8192, /* activations likewise */
};

struct moe_plan { /* what a step's choices decide */
  int n_segments;
  int panels_per_item, items_per_segment; /* of gate and up */
  int n_items;
};

/* --- scratch ----------------------------------------------------------------------------------------------------------- */

static size_t pairs_most(const struct moe_shape *s) { return (size_t)s->rows_max * (size_t)s->n_used; }
static size_t segments_most(const struct moe_shape *s) { return MIN((size_t)s->n_experts, pairs_most(s)); }
static size_t places_most(const struct moe_shape *s) {
  return align_up(pairs_most(s) + segments_most(s) * (GEMM_GROUP_MAX - 1), GEMM_GROUP_MAX);
}

/* Odd numbers of cache lines, as in cpu.c. */
static size_t row_stride(int cols) { return (align_up((size_t)cols * sizeof(float), 64) / 64 | 1) * 64; }

struct worker_area {
  union {
    struct {
      struct gemm_tile gate, up;
    };
    struct gemm_tiles tiles;
  };
  float ref[]; /* GEMM_REF_ROWS rows of a weight */
};

static char *take(char *base, size_t *at, size_t n_bytes) {
  char *p = base ? base + *at : NULL;
  *at += align_up(n_bytes, 64);
  return p;
}

static void lay_out_rows(struct moe_rows *r, char *base, size_t *at, size_t n_places, int cols) {
  size_t n_blocks = (size_t)div_up(cols, GEMM_BLOCK);
  r->cols = cols;
  r->row_bytes = row_stride(cols);
  /* a level multiplies by codes or by plain numbers: the forms share the memory */
  size_t codes_bytes = n_places * n_blocks * GEMM_BLOCK, blocks_bytes = n_places * n_blocks * sizeof(struct gemm_block);
  r->plain = take(base, at, MAX(n_places * r->row_bytes, align_up(codes_bytes, 64) + blocks_bytes));
  r->codes = (int8_t *)r->plain;
  r->blocks = base ? (struct gemm_block *)(void *)(r->plain + align_up(codes_bytes, 64)) : NULL;
}

/* Where everything is in base; NULL only counts. Returns the number of bytes. */
static size_t lay_out(struct moe_scratch *s, char *base) {
  const struct moe_shape *h = &s->shape;
  size_t at = 0, n_pairs = pairs_most(h), n_places = places_most(h);
  s->plan = (struct moe_plan *)(void *)take(base, &at, sizeof *s->plan);
  s->chosen = (int32_t *)(void *)take(base, &at, n_pairs * sizeof *s->chosen);
  s->share = (float *)(void *)take(base, &at, n_pairs * sizeof *s->share);
  s->counts = (int32_t *)(void *)take(base, &at, (size_t)h->n_experts * sizeof *s->counts);
  s->pairs = (struct moe_pair *)(void *)take(base, &at, n_pairs * sizeof *s->pairs);
  s->places = (struct moe_place *)(void *)take(base, &at, n_places * sizeof *s->places);
  s->segments = (struct moe_segment *)(void *)take(base, &at, segments_most(h) * sizeof *s->segments);
  lay_out_rows(&s->x, base, &at, n_places, h->hidden);
  lay_out_rows(&s->mid, base, &at, n_places, h->ffn);
  s->act = (struct tensor){.dtype = DTYPE_F32, .rows = (int)n_places, .cols = h->ffn, .row_bytes = row_stride(h->ffn)};
  s->act.data = take(base, &at, n_places * s->act.row_bytes);
  s->per_worker_bytes = align_up(sizeof(struct worker_area) + GEMM_REF_ROWS * (size_t)MAX(h->hidden, h->ffn) * sizeof(float), 4096);
  s->per_worker = take(base, &at, (size_t)s->n_workers * s->per_worker_bytes);
  return at;
}

size_t moe_scratch_bytes(const struct moe_shape *shape, int n_workers) {
  struct moe_scratch s = {.shape = *shape, .n_workers = n_workers};
  return shape->n_experts > 0 ? lay_out(&s, NULL) : 0;
}

int moe_scratch_init(struct moe_scratch *s, const struct moe_shape *shape, int n_workers, struct err *e) {
  *s = (struct moe_scratch){.shape = *shape, .n_workers = n_workers};
  if (shape->n_experts == 0) return 0;
  CHECK(shape->n_used >= 1 && shape->n_used <= shape->n_experts && shape->hidden > 0 && shape->ffn > 0 && shape->rows_max > 0);
  s->n_bytes = lay_out(s, NULL);
  s->data = mem_big_alloc(s->n_bytes, "scratch of experts", e);
  if (!s->data) return -1;
  lay_out(s, s->data);
  return 0;
}

void moe_scratch_free(struct moe_scratch *s) {
  mem_big_free(s->data, s->n_bytes);
  *s = (struct moe_scratch){0};
}

/* --- choice ------------------------------------------------------------------------------------------------------------ */

void moe_route(const float *logits, const float *scale, int n_experts, int n_used, int32_t *chosen, float *share) {
  float top = -INFINITY, total = 0, of_chosen = 0;
  for (int e = 0; e < n_experts; e++) top = fmaxf(top, logits[e]);
  for (int e = 0; e < n_experts; e++) total += expf(logits[e] - top);
  /* the n_used greatest so far, best first; an equal one further on does not displace */
  for (int e = 0, n = 0; e < n_experts; e++) {
    int at = n;
    while (at > 0 && logits[e] > logits[chosen[at - 1]]) at--;
    if (at == n_used) continue;
    n = MIN(n + 1, n_used);
    for (int i = n - 1; i > at; i--) chosen[i] = chosen[i - 1];
    chosen[at] = e;
  }
  for (int i = 1; i < n_used; i++) { /* ascending */
    int32_t e = chosen[i];
    int at = i;
    for (; at > 0 && chosen[at - 1] > e; at--) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  for (int i = 0; i < n_used; i++) of_chosen += share[i] = expf(logits[chosen[i]] - top) / total;
  for (int i = 0; i < n_used; i++) share[i] = share[i] / of_chosen * scale[chosen[i]];
}

struct call { /* of every launch */
  const struct kern *kern;
  struct moe_scratch *s;
  const struct moe *m;
  struct tensor y, x;
  const void *logits; /* [rows, n_experts] */
  size_t logits_row_bytes;
  int n_rows, per_item;
  enum act act;
};

static void route_rows(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct moe *m = c->m;
  (void)worker;
  for (int r = item * c->per_item; r < MIN((item + 1) * c->per_item, c->n_rows); r++) {
    const float *logits = (const float *)(const void *)((const char *)c->logits + (size_t)r * c->logits_row_bytes);
    moe_route(logits, m->scale, m->n_experts, m->n_used, c->s->chosen + (size_t)r * (size_t)m->n_used,
              c->s->share + (size_t)r * (size_t)m->n_used);
  }
}

/* Rows of x that the kernels want together, for a segment of n rows. */
static int group_of(const struct kern *k, int n_rows) {
  return n_rows == 1 ? 1 : k->gemm->tiles ? GEMM_TILES_GROUP : MAX(1, k->gemm->rows_max);
}

/* Count, give each expert its segment, then hand out places: one pass over the pairs each. */
static void group_rows(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  struct moe_scratch *s = c->s;
  struct moe_plan *p = s->plan;
  const struct moe *m = c->m;
  int n_pairs = c->n_rows * m->n_used, place = 0, pair = 0;
  (void)item, (void)worker;
  memset(s->counts, 0, (size_t)m->n_experts * sizeof *s->counts);
  for (int i = 0; i < n_pairs; i++) s->counts[s->chosen[i]]++;
  p->n_segments = 0;
  for (int e = 0; e < m->n_experts; e++) {
    int n = s->counts[e];
    if (n == 0) continue;
    s->segments[p->n_segments] = (struct moe_segment){e, place, n};
    for (int i = 0; i < n; i++) s->pairs[pair + i] = (struct moe_pair){-1, place + i, p->n_segments};
    s->counts[e] = pair; /* from now on: the expert's next pair */
    pair += n;
    place += (int)align_up((size_t)n, (size_t)group_of(c->kern, 2));
    p->n_segments++;
  }
  for (int i = 0; i < n_pairs; i++) {
    struct moe_pair *to = &s->pairs[s->counts[s->chosen[i]]++];
    to->row = i / m->n_used;
    s->places[to->place] = (struct moe_place){to->row, s->share[i]};
  }
  int panels = div_up(s->shape.ffn, GEMM_PANEL), wanted = ITEMS_PER_WORKER * s->n_workers;
  p->panels_per_item = MIN(panels, MAX(1, (int)((int64_t)p->n_segments * panels / wanted)));
  p->items_per_segment = div_up(panels, p->panels_per_item);
  p->n_items = p->n_segments * p->items_per_segment;
}

/* --- forms of rows ----------------------------------------------------------------------------------------------------- */

enum form { FORM_F32, FORM_BF16, FORM_CODES, FORM_TILES };

static enum form form_of(const struct kern *k, const struct weight *w) {
  if (gemm_is_ref(k)) return FORM_F32;
  if (gemm_on_tiles(k, w->dtype)) return FORM_TILES;
  if (!gemm_format_of(w->dtype)->plain_bytes) return FORM_CODES;
  return w->dtype == DTYPE_BF16 && k->gemm->bf16_row ? FORM_BF16 : FORM_F32;
}

/* Where row i of a segment is among the codes, counted in blocks. */
static size_t block_at(const struct moe_rows *r, const struct moe_segment *g, int i, int group) {
  size_t n_blocks = (size_t)(r->cols / GEMM_BLOCK);
  return (size_t)g->place * n_blocks + (size_t)(i / group * group) * n_blocks + (size_t)(i % group);
}

/* Row i of a segment in the form for tiles. */
static uint16_t *tiles_x(const struct moe_rows *r, const struct moe_segment *g, int i) {
  int n_blocks = div_up(r->cols, GEMM_BLOCK);
  uint16_t *all = (uint16_t *)(void *)r->plain;
  return all + (size_t)g->place * (size_t)n_blocks * GEMM_BLOCK + gemm_tiles_x_at(g->n_rows, n_blocks, i);
}

static void prepare(const struct call *c, const struct moe_rows *r, enum form form, const struct moe_pair *p, const float *x) {
  const struct gemm_kern *k = c->kern->gemm;
  const struct moe_segment *g = &c->s->segments[p->segment];
  char *plain = r->plain + (size_t)p->place * r->row_bytes;
  if (form == FORM_TILES) {
    k->tiles->x_row(tiles_x(r, g, p->place - g->place), gemm_tiles_x_step(g->n_rows), x, r->cols);
  } else if (form == FORM_CODES) {
    int group = group_of(c->kern, g->n_rows);
    size_t at = block_at(r, g, p->place - g->place, group);
    k->quantise_row(r->codes + at * GEMM_BLOCK, r->blocks + at, group, x, r->cols);
  } else if (form == FORM_BF16) k->bf16_row((uint16_t *)(void *)plain, x, r->cols);
  else memcpy(plain, x, (size_t)r->cols * sizeof *x);
}

/* One row has the same x in all its places. */
static int pairs_of_x(const struct call *c) { return c->n_rows == 1 ? 1 : c->n_rows * c->m->n_used; }

static void prepare_x(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  enum form form = form_of(c->kern, c->m->gate);
  (void)worker;
  for (int i = item * c->per_item; i < MIN((item + 1) * c->per_item, pairs_of_x(c)); i++) {
    const struct moe_pair *p = &c->s->pairs[i];
    prepare(c, &c->s->x, form, p, tensor_row(&c->x, p->row));
  }
}

static void prepare_act(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  enum form form = form_of(c->kern, c->m->down);
  (void)worker;
  for (int i = item * c->per_item; i < MIN((item + 1) * c->per_item, c->n_rows * c->m->n_used); i++) {
    const struct moe_pair *p = &c->s->pairs[i];
    prepare(c, &c->s->mid, form, p, tensor_row(&c->s->act, p->place));
  }
}

/* --- products ---------------------------------------------------------------------------------------------------------- */

struct product { /* of rows [row, row + n_rows) of a segment with panels [panel, panel + n_panels) of a weight; one of the numbers is 1 */
  const struct weight *w;
  const struct moe_rows *x;
  struct moe_segment segment; /* of x */
  int row, n_rows, panel, n_panels;
};

static void product_ref(const struct product *p, struct gemm_tile *tile, float *scratch) {
  struct weight w = *p->w;
  w.rows = MIN(GEMM_PANEL, w.rows - p->panel * GEMM_PANEL);
  w.source = (const char *)w.source + (size_t)(p->panel * GEMM_PANEL) * w.row_bytes;
  struct tensor x = {DTYPE_F32, p->n_rows, p->x->cols, p->x->row_bytes,
                     p->x->plain + (size_t)(p->segment.place + p->row) * p->x->row_bytes};
  struct tensor y = {DTYPE_F32, p->n_rows, GEMM_PANEL, sizeof tile->acc[0], tile->acc};
  gemm_ref_rows(&w, &y, &x, 0, w.rows, scratch);
}

static void product_plain(const struct kern *k, const struct product *p, enum form form, struct gemm_tile *tile) {
  const char *x = p->x->plain + (size_t)(p->segment.place + p->row) * p->x->row_bytes;
  if (p->n_rows > 1) {
    gemm_panel_plain(k->gemm, p->w, p->panel, x, p->x->row_bytes, form == FORM_BF16 ? 2 : 4, p->n_rows, tile);
    return;
  }
  size_t panel_bytes = gemm_panel_bytes(p->w->dtype, p->w->cols);
  const uint8_t *panel = gemm_panel_at(p->w, p->panel);
  k->gemm->types[p->w->dtype].plain_one(tile->acc, panel, panel_bytes, p->n_panels, x, p->w->cols);
}

static void product_codes(const struct kern *k, const struct product *p, struct gemm_tile *tile) {
  int group = group_of(k, p->segment.n_rows);
  size_t at = block_at(p->x, &p->segment, p->row, group);
  struct gemm_x x = {p->x->codes + at * GEMM_BLOCK, p->x->blocks + at};
  if (p->segment.n_rows > k->gemm->few_max) {
    gemm_panel_codes(k->gemm, p->w, p->panel, x, group, p->n_rows, tile);
    return;
  }
  const uint8_t *panel = gemm_panel_at(p->w, p->panel);
  k->gemm->types[p->w->dtype].few(tile->acc, panel, x, p->x->cols / GEMM_BLOCK, p->n_rows);
}

/* tile->acc[i] = row i of one panel, or panel i of one row. */
static void product(const struct kern *k, const struct product *p, struct gemm_tile *tile, float *scratch) {
  enum form form = form_of(k, p->w);
  if (gemm_is_ref(k)) product_ref(p, tile, scratch);
  else if (form == FORM_CODES) product_codes(k, p, tile);
  else product_plain(k, p, form, tile);
}

/* Panels that are computed at once: several where one row alone would wait for its own sums. */
static int panels_at_once(const struct kern *k, const struct weight *w, int n_rows) {
  return n_rows == 1 && !gemm_is_ref(k) && form_of(k, w) != FORM_CODES ? k->gemm->plain_panels_max : 1;
}

static struct worker_area *area_of(const struct call *c, int worker) {
  return (struct worker_area *)(void *)(c->s->per_worker + (size_t)worker * c->s->per_worker_bytes);
}

/* Of panels [from, to) for a segment whose x is where of_x says. */
static void gate_up_tiles(const struct call *c, const struct moe_segment *g, const struct moe_segment *of_x, int from, int to,
                          struct gemm_tiles *t) {
  const struct gemm_tiles_kern *k = c->kern->gemm->tiles;
  const struct moe_scratch *s = c->s;
  for (int row = 0; row < g->n_rows; row += GEMM_TILES_ROWS) {
    struct gemm_tiles_x x = {tiles_x(&s->x, of_x, row), g->n_rows, MIN(GEMM_TILES_ROWS, g->n_rows - row)};
    k->begin(MIN(x.n_rows, GEMM_TILES_GROUP));
    gemm_tiles_gated(c->kern, &c->m->gate[g->expert], &c->m->up[g->expert], from, to, x, c->act, &s->act, g->place + row, t);
    k->end();
  }
}

static void gate_up_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct moe_scratch *s = c->s;
  const struct moe_plan *plan = s->plan;
  const struct moe_segment *g = &s->segments[item / plan->items_per_segment];
  struct worker_area *a = area_of(c, worker);
  const struct weight *gate = &c->m->gate[g->expert], *up = &c->m->up[g->expert];
  struct moe_segment of_x = *g;
  if (c->n_rows == 1) of_x.place = 0; /* prepare_x */
  int from = item % plan->items_per_segment * plan->panels_per_item;
  int to = MIN(from + plan->panels_per_item, div_up(gate->rows, GEMM_PANEL));
  if (form_of(c->kern, gate) == FORM_TILES) {
    gate_up_tiles(c, g, &of_x, from, to, &a->tiles);
    return;
  }
  int most = MIN(panels_at_once(c->kern, gate, g->n_rows), panels_at_once(c->kern, up, g->n_rows));
  for (int row = 0; row < g->n_rows; row += GEMM_TILE_ROWS) {
    struct product p = {.x = &s->x, .segment = of_x, .row = row, .n_rows = MIN(GEMM_TILE_ROWS, g->n_rows - row)};
    for (int panel = from, n; panel < to; panel += n) {
      n = MIN(most, to - panel);
      p.panel = panel;
      p.n_panels = n;
      p.w = gate;
      product(c->kern, &p, &a->gate, a->ref);
      p.w = up;
      product(c->kern, &p, &a->up, a->ref);
      for (int i = 0; i < MAX(n, p.n_rows); i++) {
        int at = (panel + (n > 1 ? i : 0)) * GEMM_PANEL, place = g->place + row + (n > 1 ? 0 : i);
        c->kern->gated(tensor_row(&s->act, place) + at, a->gate.acc[i], a->up.acc[i], c->act, MIN(GEMM_PANEL, gate->rows - at));
      }
    }
  }
}

typedef float quad __attribute__((vector_size(16))); /* plain arithmetic, on any machine */

/* y[n] += share * x[n], product and sum rounded apart. */
static ALWAYS_INLINE void add_shared(float *restrict y, const float *restrict x, float share, int n) {
  int k = 0;
  for (; k + 4 <= n; k += 4) {
    quad a, b;
    memcpy(&a, y + k, sizeof a);
    memcpy(&b, x + k, sizeof b);
    a += share * b;
    memcpy(y + k, &a, sizeof a);
  }
  for (; k < n; k++) y[k] += share * x[k];
}

/* A segment's rows lie anywhere in y: their lines are on the way while the product is computed. */
static void fetch_outputs(const struct call *c, int place, int n_rows, int panel) {
  for (int i = 0; i < n_rows; i++) __builtin_prefetch(tensor_row(&c->y, c->s->places[place + i].row) + panel * GEMM_PANEL, 1);
}

/* y[rows of a segment] += shares ⊙ acc, for the columns of panels [from, to); rows of acc lie acc_stride panels apart. */
static void add_panels(const struct call *c, int place, int n_rows, int from, int to, const float (*acc)[GEMM_PANEL], int acc_stride) {
  int at = from * GEMM_PANEL, n = MIN(to * GEMM_PANEL, c->y.cols) - at;
  for (int i = 0; i < n_rows; i++) {
    const struct moe_place *row = &c->s->places[place + i];
    add_shared(tensor_row(&c->y, row->row) + at, acc[i * acc_stride], row->share, n);
  }
}

static void down_few(const struct call *c, const struct weight *w, struct gemm_tiles_x x, int place, int from, int to,
                     struct gemm_tiles *t) {
  for (int end; from < to; from = end) {
    end = MIN(from + GEMM_TILES_RUN, to);
    gemm_tiles_few(c->kern, w, from, end, x, t->run[0][0], sizeof t->run[0][0]);
    add_panels(c, place, x.n_rows, from, end, (const float(*)[GEMM_PANEL])t->run[0], GEMM_TILES_RUN);
  }
}

struct down {
  const struct call *c;
  int place, panel, n_panels;
};

static void give_down(const void *ctx, int row, int n_rows, gemm_tiles_sums sums) {
  const struct down *d = ctx;
  for (int i = 0; i < d->n_panels; i++)
    add_panels(d->c, d->place + row, n_rows, d->panel + i, d->panel + i + 1, (const float(*)[GEMM_PANEL])sums[i], 1);
}

static void down_many(const struct call *c, const struct weight *w, struct gemm_tiles_x x, int place, int from, int to,
                      struct gemm_tiles *t) {
  for (int panel = from; panel < to; panel += 2) {
    struct gemm_tiles_pair pair = {MIN(2, to - panel), {{w, panel}, {w, panel + 1}}};
    struct down d = {c, place, panel, pair.n};
    struct gemm_tiles_sink sink = {.give = give_down, .ctx = &d};
    for (int i = 0; i < pair.n; i++) fetch_outputs(c, place, x.n_rows, panel + i);
    gemm_tiles_product(c->kern, &pair, x, 0, div_up(w->cols, GEMM_BLOCK), &sink, t->kept, t);
  }
}

/* Of panels [from, to) for one segment. */
static void down_tiles(const struct call *c, const struct moe_segment *g, int from, int to, struct gemm_tiles *t) {
  const struct gemm_tiles_kern *k = c->kern->gemm->tiles;
  const struct weight *w = &c->m->down[g->expert];
  for (int row = 0; row < g->n_rows; row += GEMM_TILES_ROWS) {
    struct gemm_tiles_x x = {tiles_x(&c->s->mid, g, row), g->n_rows, MIN(GEMM_TILES_ROWS, g->n_rows - row)};
    k->begin(MIN(x.n_rows, GEMM_TILES_GROUP));
    (x.n_rows <= GEMM_TILES_GROUP ? down_few : down_many)(c, w, x, g->place + row, from, to, t);
    k->end();
  }
}

static void down_item(void *ctx, int item, int worker) {
  const struct call *c = ctx;
  const struct moe_scratch *s = c->s;
  struct worker_area *a = area_of(c, worker);
  int hidden = c->y.cols, from = item * c->per_item, to = MIN(from + c->per_item, div_up(hidden, GEMM_PANEL));
  enum form form = form_of(c->kern, c->m->down);
  struct moe_rows act = s->mid;
  if (form == FORM_F32) { /* as it came */
    act.plain = s->act.data;
    act.row_bytes = s->act.row_bytes;
  }
  int col = from * GEMM_PANEL, n_cols = MIN(to * GEMM_PANEL, hidden) - col;
  for (int r = 0; r < c->n_rows; r++) memset(tensor_row(&c->y, r) + col, 0, (size_t)n_cols * sizeof(float));
  for (int i = 0; i < s->plan->n_segments; i++) {
    const struct moe_segment *g = &s->segments[i];
    const struct weight *w = &c->m->down[g->expert];
    if (form == FORM_TILES) {
      down_tiles(c, g, from, to, &a->tiles);
      continue;
    }
    int most = panels_at_once(c->kern, w, g->n_rows);
    for (int row = 0; row < g->n_rows; row += GEMM_TILE_ROWS) {
      struct product p = {.w = w, .x = &act, .segment = *g, .row = row, .n_rows = MIN(GEMM_TILE_ROWS, g->n_rows - row)};
      for (int panel = from, n; panel < to; panel += n) {
        n = MIN(most, to - panel);
        p.panel = panel;
        p.n_panels = n;
        fetch_outputs(c, g->place + row, p.n_rows, panel);
        product(c->kern, &p, &a->gate, a->ref);
        for (int j = 0; j < MAX(n, p.n_rows); j++) {
          const struct moe_place *place = &s->places[g->place + row + (n > 1 ? 0 : j)];
          int at = (panel + (n > 1 ? j : 0)) * GEMM_PANEL;
          add_shared(tensor_row(&c->y, place->row) + at, a->gate.acc[j], place->share, MIN(GEMM_PANEL, hidden - at));
        }
      }
    }
  }
}

/* --- the whole ---------------------------------------------------------------------------------------------------------- */

/* n things of elems numbers each, `worth` numbers an item at least. */
static void spread(struct workers *w, workers_fn fn, struct call *c, int n, int elems, int worth) {
  int most = MAX(1, (int)MIN((int64_t)n * elems / worth, (int64_t)ITEMS_PER_WORKER * workers_count(w)));
  c->per_item = div_up(n, most);
  workers_launch(w, fn, c, sizeof *c, div_up(n, c->per_item), NULL);
}

void moe(const struct kern *k, struct workers *workers, struct moe_scratch *s, const struct moe *m, struct tensor *y,
         const struct tensor *x, const struct tensor *logits, enum act act) {
  const struct moe_shape *h = &s->shape;
  CHECK(x->rows <= h->rows_max && x->cols == h->hidden && y->cols == h->hidden && y->rows >= x->rows && y->data != x->data);
  CHECK(logits->cols == m->n_experts && logits->rows >= x->rows && m->n_experts <= h->n_experts && m->n_used == h->n_used);
  CHECK(m->gate->rows == h->ffn && m->down->cols == h->ffn && m->gate->cols == h->hidden && workers_count(workers) <= s->n_workers);
  CHECK(form_of(k, m->gate) == form_of(k, m->up));
  if (x->rows < 1) return;
  struct call c = {.kern = k, .s = s, .m = m, .y = *y, .x = *x, .n_rows = x->rows, .act = act};
  c.logits = logits->data;
  c.logits_row_bytes = logits->row_bytes;
  spread(workers, route_rows, &c, c.n_rows, m->n_experts, ROUTE_ELEMS);
  workers_launch(workers, group_rows, &c, sizeof c, 1, NULL);
  spread(workers, prepare_x, &c, pairs_of_x(&c), h->hidden, PREPARE_ELEMS);
  workers_launch(workers, gate_up_item, &c, sizeof c, s->plan->n_items, &s->plan->n_items);
  if (form_of(k, m->down) != FORM_F32) spread(workers, prepare_act, &c, c.n_rows * m->n_used, h->ffn, PREPARE_ELEMS);
  int panels = div_up(h->hidden, GEMM_PANEL);
  c.per_item = MAX(1, panels / (ITEMS_PER_WORKER * workers_count(workers)));
  workers_launch(workers, down_item, &c, sizeof c, div_up(panels, c.per_item), NULL);
}
