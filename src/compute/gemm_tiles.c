/* gemm_tiles.c — see gemm_tiles.h. */
#include "compute/gemm_tiles.h"

#include <math.h>

enum { TOP = 16 }; /* 11 bits below 2^16 are a finite half */

/* --- tails ------------------------------------------------------------------------------------------------------------ */

static struct gemm_tail *tails_of(const struct weight *w) { /* panels are whole numbers of 32 bytes */
  return (struct gemm_tail *)(size_t)gemm_panel_at(w, div_up(w->rows, GEMM_PANEL));
}

/* What scales and minima inside a record are at most, a power of two: 4, 6 or 8 bits. */
static float sub_max(const struct gemm_format *f) {
  if (!f->subs) return 1;
  if (f->mins) return f->bits == 2 ? 16 : 64;
  return f->bits == 6 ? 128 : 32;
}

/* The greatest e with which |factor|, max|d| times what is in a record and this format's power of two, and |min| stay below 2^TOP. */
static int8_t exponent_of(const struct gemm_format *f, uint16_t top_d, uint16_t top_min) {
  enum { TABLE_MAX = 128 };
  float sub = sub_max(f), d = f16_to_f32(top_d) * sub * (f->table ? TABLE_MAX : ldexpf(1, gemm_tiles_scale_bits(f)));
  float bound = fmaxf(d, f16_to_f32(top_min) * sub);
  int exponent = TOP;
  if (bound > 0) frexpf(bound, &exponent); /* bound < 2^exponent */
  return (int8_t)(TOP - exponent);
}

void gemm_tail_make(const struct weight *w, int panel) {
  enum { INFINITE = 0x7c00 };
  const struct gemm_format *f = gemm_format_of(w->dtype);
  struct gemm_tail t = {.not_finite = 0};
  size_t record_bytes = gemm_header_bytes(f) + f->blocks * gemm_block_bytes(f);
  const uint8_t *p = gemm_panel_at(w, panel);
  uint16_t top[2][GEMM_PANEL] = {{0}}; /* of |d| and |min|: bits of f16 are ordered as their values */
  int n_records = f->plain_bytes ? 0 : w->cols / (GEMM_BLOCK * f->blocks);
  for (int i = 0; i < n_records; i++, p += record_bytes)
    for (int m = 0; m <= f->mins; m++) {
      uint16_t halves[GEMM_PANEL];
      memcpy(halves, p + m * 2 * GEMM_PANEL, sizeof halves);
      for (int r = 0; r < GEMM_PANEL; r++) top[m][r] = MAX(top[m][r], halves[r] & 0x7fff);
    }
  for (int r = 0; r < GEMM_PANEL; r++) {
    const bool finite = top[0][r] < INFINITE && top[1][r] < INFINITE;
    if (!finite) t.not_finite |= (uint16_t)(1 << r);
    t.exponent[r] = (int8_t)(f->plain_bytes ? GEMM_TILES_HALF_BITS : finite ? exponent_of(f, top[0][r], top[1][r]) : 0);
  }
  tails_of(w)[panel] = t;
}

/* --- products --------------------------------------------------------------------------------------------------------- */

/* Blocks of k, whole records, that are expanded at once. */
static int range_of(const struct gemm_tiles_pair *pair, int n_blocks) {
  int record = 1;
  for (int i = 0; i < pair->n; i++) record = MAX(record, gemm_format_of(pair->of[i].w->dtype)->blocks);
  int most = GEMM_TILES_BLOCKS / record * record;
  int n = div_up(n_blocks, div_up(n_blocks, most)); /* ranges alike */
  return div_up(n, record) * record;
}

/* Columns of block b of a panel begin so many bytes after its first. */
static size_t block_offset(enum dtype t, int b) {
  const struct gemm_format *f = gemm_format_of(t);
  if (f->plain_bytes) return (size_t)b * GEMM_BLOCK * GEMM_PANEL * f->plain_bytes;
  return (size_t)(b / f->blocks) * (gemm_header_bytes(f) + f->blocks * gemm_block_bytes(f));
}

/* Blocks [b, b + n) of a pair's panels, whole records. */
static void expand(const struct gemm_tiles_kern *k, const struct gemm_tiles_pair *pair, int b, int n, struct gemm_tiles *t) {
  for (int i = 0; i < pair->n; i++) {
    const struct weight *w = pair->of[i].w;
    const uint8_t *p = gemm_panel_at(w, pair->of[i].panel) + block_offset(w->dtype, b);
    k->types[w->dtype].expand(t->w[i], p, MIN(n * GEMM_BLOCK, w->cols - b * GEMM_BLOCK), tails_of(w) + pair->of[i].panel);
  }
}

struct gemm_tiles_out gemm_tiles_out(const struct tensor *y, int row, int col, int n_cols) {
  return (struct gemm_tiles_out){
      .y = tensor_row(y, row) + col,
      .y_bytes = y->row_bytes,
      .n_cols = MIN(n_cols, y->cols - col),
      .past = (size_t)y->rows * y->row_bytes > (size_t)GEMM_TILES_NEAR_BYTES,
  };
}

/* Sums of a step are complete. Returns what is stored while the next one is multiplied. */
static struct gemm_tiles_store give(const struct gemm_tiles_kern *k, const struct gemm_tiles_sink *sink, int n_panels, int row, int n_rows,
                                    float factor[2][GEMM_PANEL], gemm_tiles_sums *sums) {
  struct gemm_tiles_store s = {sink->out, n_rows, (const gemm_tiles_sums *)sums, (const float(*)[GEMM_PANEL])factor};
  if (sink->give) {
    for (int i = 0; i < n_panels; i++) k->scale((*sums)[i], n_rows, factor[i]);
    sink->give(sink->ctx, row, n_rows, *sums);
    s.factor = NULL;
  }
  if (s.to.y) s.to.y += (size_t)row * (s.to.y_bytes / sizeof *s.to.y);
  else s.n_rows = 0;
  return s;
}

void gemm_tiles_product(const struct kern *kern, const struct gemm_tiles_pair *pair, struct gemm_tiles_x x, int from, int to,
                        const struct gemm_tiles_sink *sink, gemm_tiles_sums *kept, struct gemm_tiles *t) {
  const struct gemm_tiles_kern *k = kern->gemm->tiles;
  const int n_blocks = div_up(pair->of[0].w->cols, GEMM_BLOCK), range = range_of(pair, to - from);
  const size_t block = GEMM_TILES_GROUP * GEMM_BLOCK, group = (size_t)n_blocks * block;
  struct gemm_tiles_store before = {.n_rows = 0};
  float factor[2][GEMM_PANEL];
  for (int i = 0; i < pair->n; i++) gemm_tail_factor(tails_of(pair->of[i].w) + pair->of[i].panel, factor[i]);
  for (int b = from, n; b < to; b += n) {
    n = MIN(range, to - b);
    expand(k, pair, b, n, t);
    for (int row = 0, i = 0; row < x.n_rows; row += GEMM_TILES_STEP, i++) {
      const bool last = b + n == n_blocks;
      const int n_rows = MIN(GEMM_TILES_STEP, x.n_rows - row);
      struct gemm_tiles_step step = {
          .n_panels = pair->n,
          .n_blocks = n,
          .n_groups = div_up(n_rows, GEMM_TILES_GROUP),
          .x = x.x + (size_t)(row / GEMM_TILES_GROUP) * group + (size_t)b * block,
          .x_group = group,
          .from = b > 0 ? (const gemm_tiles_sums *)&kept[i] : NULL,
          .to = last ? &t->done[i % 2] : &kept[i],
          .before = before,
      };
      k->multiply((const gemm_weight_tile(*)[GEMM_TILES_BLOCKS])t->w, &step);
      if (last) before = give(k, sink, pair->n, row, n_rows, factor, step.to);
    }
  }
  k->store(&before);
}

void gemm_tiles_few(const struct kern *k, const struct weight *w, int from, int to, struct gemm_tiles_x x, float *y, size_t y_bytes) {
  struct gemm_few c = {
      .p = gemm_panel_at(w, from),
      .panel_bytes = gemm_panel_bytes(w->dtype, w->cols),
      .tails = tails_of(w) + from,
      .n_panels = to - from,
      .n = w->cols,
      .x = x.x,
      .x_step = gemm_tiles_x_step(x.x_rows),
      .y = y,
      .y_bytes = y_bytes,
      .n_rows = x.n_rows,
      .n_cols = MIN(to * GEMM_PANEL, w->rows) - from * GEMM_PANEL,
  };
  k->gemm->tiles->types[w->dtype].few(&c);
}

/* --- gated ------------------------------------------------------------------------------------------------------------ */

struct gated {
  const struct kern *k;
  enum act act;
};

static void give_gated(const void *ctx, int row, int n_rows, gemm_tiles_sums sums) {
  const struct gated *c = ctx;
  (void)row;
  c->k->gated(sums[0][0], sums[0][0], sums[1][0], c->act, n_rows * GEMM_PANEL);
}

/* A panel of each at a time. */
static void gated_many(const struct kern *k, const struct weight *gate, const struct weight *up, int from, int to, struct gemm_tiles_x x,
                       enum act act, const struct tensor *y, int row, struct gemm_tiles *t) {
  const struct gated c = {k, act};
  for (int panel = from; panel < to; panel++) {
    struct gemm_tiles_pair pair = {2, {{gate, panel}, {up, panel}}};
    struct gemm_tiles_sink sink = {give_gated, &c, gemm_tiles_out(y, row, panel * GEMM_PANEL, GEMM_PANEL)};
    gemm_tiles_product(k, &pair, x, 0, div_up(gate->cols, GEMM_BLOCK), &sink, t->kept, t);
  }
}

/* Both products of a run of panels are there before they are gated. */
static void gated_few(const struct kern *k, const struct weight *gate, const struct weight *up, int from, int to, struct gemm_tiles_x x,
                      enum act act, const struct tensor *y, int row, struct gemm_tiles *t) {
  for (int end; from < to; from = end) {
    end = MIN(from + GEMM_TILES_RUN, to);
    gemm_tiles_few(k, gate, from, end, x, t->run[0][0], sizeof t->run[0][0]);
    gemm_tiles_few(k, up, from, end, x, t->run[1][0], sizeof t->run[1][0]);
    int n_cols = MIN(end * GEMM_PANEL, gate->rows) - from * GEMM_PANEL;
    for (int r = 0; r < x.n_rows; r++) k->gated(tensor_row(y, row + r) + from * GEMM_PANEL, t->run[0][r], t->run[1][r], act, n_cols);
  }
}

void gemm_tiles_gated(const struct kern *k, const struct weight *gate, const struct weight *up, int from, int to, struct gemm_tiles_x x,
                      enum act act, const struct tensor *y, int row, struct gemm_tiles *t) {
  (x.n_rows <= GEMM_TILES_GROUP ? gated_few : gated_many)(k, gate, up, from, to, x, act, y, row, t);
}

void gemm_tiles_panel(const struct kern *k, const struct weight *w, int panel, gemm_weight_tile *to, float factor[GEMM_PANEL]) {
  const struct gemm_tail *tail = tails_of(w) + panel;
  k->gemm->tiles->types[w->dtype].expand(to, gemm_panel_at(w, panel), w->cols, tail);
  gemm_tail_factor(tail, factor);
  for (int r = 0; r < GEMM_PANEL; r++) factor[r] *= GEMM_TILES_X_SCALE; /* that of x is in it */
}

/* --- the slow twin ---------------------------------------------------------------------------------------------------- */

/* To nearest even, in one rounding. */
static double half(double x) {
  double size = fabs(x), unit = ldexp(1, MAX(size > 0 ? ilogb(size) : -14, -14) - 10);
  return rint(x / unit) * unit;
}

/* A half to 8 bits, halves away from zero; what is denormal there is zero. */
static double narrow(double x) {
  double size = fabs(x);
  if (size < 0x1p-14) return floor(size / 0x1p-21 + 0.5) * 0x1p-21 < 0x1p-14 ? 0 : copysign(0x1p-14, x);
  double unit = ldexp(1, ilogb(size) - 7);
  return copysign(floor(size / unit + 0.5) * unit, x);
}

void gemm_tiles_row(const struct weight *w, int panel, int r, float *out) {
  const struct gemm_format *f = gemm_format_of(w->dtype);
  const uint8_t *p = gemm_panel_at(w, panel);
  if (f->plain_bytes) {
    gemm_unpack_panel_row(w->dtype, w->cols, p, r, out);
    return;
  }
  const int e = tails_of(w)[panel].exponent[r], bits = gemm_tiles_scale_bits(f);
  for (int k = 0; k < w->cols; k++) {
    struct gemm_element v = gemm_element_of(f, p, r, k);
    double scale = half(ldexp(v.d, e + bits)), min = half(ldexp(v.min, e));
    if (f->subs) scale = half(scale * v.sub_d), min = half(min * v.sub_min);
    if (!f->table && !gemm_tiles_looked_up(f, k % GEMM_BLOCK / 4)) { /* a code, not its value, and exactly scaled */
      if (!f->mins) min = half(ldexp(scale * f->offset, -bits));
      v.value += f->offset;
      scale = ldexp(scale, -bits);
    } else {
      scale = half(ldexp(scale, -bits));
      if (f->mins) min = half(min - GEMM_TILES_SHORT_OFFSET * scale), v.value -= GEMM_TILES_SHORT_OFFSET;
    }
    out[k] = (float)ldexp(narrow(half(v.value * scale - min)), -e);
  }
}
