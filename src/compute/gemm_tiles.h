/* gemm_tiles.h — products on a level that multiplies tiles of bf16 (avx512+amx): what its numbers are, and one panel or two at a time.
 *
 * Every number of a product is bf16; sums are float32.
 *
 *   x        x · 2^96, rounded to nearest even. The power keeps products away from denormal numbers, which tiles take for zeros: products below 2^-108
 *            times a row's greatest weight. Beyond 2^31 x is no longer finite.
 *   weight   of a quantised type, in three roundings: scale = half(d · 2^e · sub scale), min likewise, or offset · scale;
 *            half(code · scale - min), one rounding, or half(value · scale) where values come from a table;
 *            (codes of 4 bits with a minimum, first 16 k of a block: half((code - 8) · scale - half(min - 8 · scale)));
 *            that to 8 bits, halves away from zero. half() is f16; the result is written as bf16 of 2^-112 times its value (the exponents' bits are the
 *            same).
 *   e        of each row. Where there is no table a code is read as a denormal number, code · 2^(bit - 24), so its factor is scale · 2^(24 - bit), and
 *            e is such that no factor reaches 2^16. What is below 2^-14 becomes zero: 2^-13 of a row's greatest possible weight with codes of 4 and 8
 *            bits, 2^-12 with 2 and 3, 2^-14 with 5, 2^-15 with 6. With a table no weight reaches 2^16, so that is 2^-30.
 *   weight   of type BF16: as it is
 *   y        the sum over k in blocks of 32, in the order of TDPBF16PS, times 2^(112 - 96 - e), or 2^-96: exact
 *
 * A row's sum is the same whatever rows lie beside it, so rule 1 of gemm.h holds. A weight row with a scale that is not finite gives NaN.
 *
 * Layouts, in numbers of bf16
 *   x        groups of 16 rows (one row alone: of 1): [group][block][row][32 k]; of each four k the order is 0, 2, 1, 3
 *   weights  a block of a panel, expanded: [16 pairs of k][16 rows][2 k], in the same order; this is a tile
 */
#ifndef CYGNET_GEMM_TILES_H
#define CYGNET_GEMM_TILES_H

#include "compute/gemm_kern.h"

enum {
  GEMM_TILES_GROUP = 16,            /* rows of x in a tile */
  GEMM_TILES_STEP = 32,             /* rows of x that are multiplied together: two groups */
  GEMM_TILES_BLOCKS = 20,           /* of a panel that are expanded at once: two panels' are 40 KiB and stay in a first-level cache of 48 */
  GEMM_TILES_ROWS = 512,            /* of x per product at most */
  GEMM_TILES_KEPT = 64,             /* steps whose sums a worker keeps: 256 KiB */
  GEMM_TILES_X_BYTES = 64,          /* of x per row and block */
  GEMM_TILES_NEAR_BYTES = 512 << 10 /* of results, which are found in a second-level cache beside x */
};
/* Powers of two: what x is multiplied with, and what a half's bits lose when they are read as bf16. */
enum { GEMM_TILES_X_BITS = 96, GEMM_TILES_HALF_BITS = 112 };
#define GEMM_TILES_X_SCALE 0x1p96f

typedef uint16_t gemm_weight_tile[16][2 * GEMM_PANEL];

/* Sums of a step's rows times two panels. */
typedef float gemm_tiles_sums[2][GEMM_TILES_STEP][GEMM_PANEL];

/* One per worker. */
struct gemm_tiles {
  _Alignas(64) gemm_weight_tile w[2][GEMM_TILES_BLOCKS];
  gemm_tiles_sums done[2]; /* of a step, and of the one before, which are being stored */
  union {
    gemm_tiles_sums kept[GEMM_TILES_KEPT];           /* until the next range of k, or the next pass over it */
    float run[2][GEMM_TILES_GROUP][GEMM_TILES_ROWS]; /* results of few rows, for GEMM_TILES_RUN panels of two weights */
  };
};

/* Where the lowest bit of a code is put in 16 bits. */
static ALWAYS_INLINE int gemm_tiles_code_bit(const struct gemm_format *f) { return f->bits == 8 ? 0 : 4; }
/* The power of two between a row's scales and what lanes are multiplied with. */
static ALWAYS_INLINE int gemm_tiles_scale_bits(const struct gemm_format *f) { return f->table ? 0 : 24 - gemm_tiles_code_bit(f); }
/* Codes of 4 bits in the low half of a byte, groups of the first 16 k, need not be shifted: a look-up gives their values less 8, all of whose bits are in
 * the upper byte of a half. */
enum { GEMM_TILES_SHORT_OFFSET = 8 };
static ALWAYS_INLINE bool gemm_tiles_looked_up(const struct gemm_format *f, int group) { return f->bits == 4 && !f->table && group < 4; }

/* What follows the panels of a packed weight: one for each. */
struct gemm_tail {
  int8_t exponent[GEMM_PANEL]; /* e; of type BF16, whose weights lose nothing: GEMM_TILES_HALF_BITS */
  uint16_t not_finite;         /* bit r: row r has a scale that is not */
};

/* A product of up to 16 rows of x, as many as begin was told: y[n_rows][n_cols] = x · n columns of n_panels panels. */
struct gemm_few {
  const uint8_t *p; /* the first panel */
  size_t panel_bytes;
  const struct gemm_tail *tails; /* from the first panel's on */
  int n_panels, n;
  const uint16_t *x;
  size_t x_step; /* between blocks */
  float *y;
  size_t y_bytes;
  int n_rows, n_cols;
};

/* Where results go: rows of n_cols, one panel's or two's. */
struct gemm_tiles_out {
  float *y;
  size_t y_bytes;
  int n_cols;
  bool past; /* the caches, which have no room for all of them */
};

/* The first n_rows rows: sums ⊙ factor. */
struct gemm_tiles_store {
  struct gemm_tiles_out to;
  int n_rows;
  const gemm_tiles_sums *sums;
  const float (*factor)[GEMM_PANEL]; /* of each panel. NULL: 1 */
};

/* Up to GEMM_TILES_STEP rows, a group or two, times a range of one or two panels. */
struct gemm_tiles_step {
  int n_panels, n_blocks, n_groups;
  const uint16_t *x; /* from a block on, groups x_group numbers apart */
  size_t x_group;
  const gemm_tiles_sums *from; /* NULL: zero */
  gemm_tiles_sums *to;
  struct gemm_tiles_store before; /* results of the step before, if any: stored row by row between products */
};

struct gemm_tiles_kern {
  /* What a thread does before and after; n_rows <= 16: of x in each tile. Others see what was stored after `end`. */
  void (*begin)(int n_rows);
  void (*end)(void);
  /* n numbers to bf16, each block `step` numbers after the one before; the last one is padded with zeros. */
  void (*x_row)(uint16_t *restrict to, size_t step, const float *restrict x, int n);
  /* to[i] = from[i] + x · w[i], i < n_panels; and s->before. After begin(16). */
  void (*multiply)(const gemm_weight_tile (*w)[GEMM_TILES_BLOCKS], const struct gemm_tiles_step *s);
  void (*store)(const struct gemm_tiles_store *s);
  /* sums[n_rows] ⊙= factor */
  void (*scale)(float (*sums)[GEMM_PANEL], int n_rows, const float factor[GEMM_PANEL]);
  struct gemm_tiles_type_kern { /* NULL: the type is not multiplied this way */
    /* n columns of a panel (whole records, but for the last ones of BF16) from p on. */
    void (*expand)(gemm_weight_tile *restrict to, const uint8_t *restrict p, int n, const struct gemm_tail *tail);
    void (*few)(const struct gemm_few *c); /* panels one after the other, expanded as they are read */
  } types[DTYPE_COUNT];
};

/* Is this type multiplied on tiles? */
static inline bool gemm_on_tiles(const struct kern *k, enum dtype t) { return k->gemm->tiles && k->gemm->tiles->types[t].few; }

/* Numbers of x for n_rows rows, one group or more. */
static inline int gemm_tiles_group(int n_rows) { return n_rows == 1 ? 1 : GEMM_TILES_GROUP; }
/* Where row r of n_rows begins, and how far apart its blocks are. */
static inline size_t gemm_tiles_x_at(int n_rows, int n_blocks, int r) {
  int group = gemm_tiles_group(n_rows);
  return ((size_t)(r / group) * (size_t)n_blocks * (size_t)group + (size_t)(r % group)) * GEMM_BLOCK;
}
static inline size_t gemm_tiles_x_step(int n_rows) { return (size_t)gemm_tiles_group(n_rows) * GEMM_BLOCK; }

static inline size_t gemm_tails_bytes(const struct weight *w) { return (size_t)div_up(w->rows, GEMM_PANEL) * sizeof(struct gemm_tail); }
void gemm_tail_make(const struct weight *w, int panel);
/* The power of two for each column of a panel, NaN where its row has a scale that is not finite. */
static ALWAYS_INLINE void gemm_tail_factor(const struct gemm_tail *t, float factor[GEMM_PANEL]) {
  enum { F32_BIAS = 127, F32_FRACTION_BITS = 23 };
  for (int r = 0; r < GEMM_PANEL; r++) {
    int32_t bits = (F32_BIAS - GEMM_TILES_X_BITS + GEMM_TILES_HALF_BITS - t->exponent[r])
                   << F32_FRACTION_BITS; /* normal for any exponent */
    memcpy(factor + r, &bits, sizeof bits);
  }
  for (int r = 0; t->not_finite && r < GEMM_PANEL; r++)
    if (t->not_finite >> r & 1) factor[r] = __builtin_nanf("");
}

/* One panel of each of one or two weights of the same width. */
struct gemm_tiles_pair {
  int n;
  struct {
    const struct weight *w;
    int panel;
  } of[2];
};

/* n_rows <= GEMM_TILES_ROWS rows of the x_rows that were laid out together; x: where the first of them is, a group's first row. */
struct gemm_tiles_x {
  const uint16_t *x;
  int x_rows, n_rows;
};

/* What becomes of complete sums, step by step while they are near. */
struct gemm_tiles_sink {
  /* First, of rows [row, row + n_rows) of x: sums, times their powers of two. NULL: nothing. */
  void (*give)(const void *ctx, int row, int n_rows, gemm_tiles_sums sums);
  const void *ctx;
  struct gemm_tiles_out out; /* then, from the first row of x on. y NULL: nowhere */
};
struct gemm_tiles_out gemm_tiles_out(const struct tensor *y, int row, int col, int n_cols);

/* All of these between begin and end of MIN(n_rows, 16) rows.
 *
 * More rows than 16: x · pair.of[i] over blocks [from, to) of k; from is a multiple of GEMM_RECORD_BLOCKS_MAX. kept[rows in steps] has the sums over
 * the blocks before from, and afterwards those over all before to; when that was the last, they went to the sink. */
void gemm_tiles_product(const struct kern *k, const struct gemm_tiles_pair *pair, struct gemm_tiles_x x, int from, int to,
                        const struct gemm_tiles_sink *sink, gemm_tiles_sums *kept, struct gemm_tiles *t);

/* Up to 16 rows: y = x · panels [from, to) of w, complete. Column 0 of y is the first panel's. */
void gemm_tiles_few(const struct kern *k, const struct weight *w, int from, int to, struct gemm_tiles_x x, float *y, size_t y_bytes);
/* Panels that its results fit t->run[i] for. */
enum { GEMM_TILES_RUN = GEMM_TILES_ROWS / GEMM_TILES_GROUP };

/* Any rows: gate's product gated by up's, to rows from `row` on of y and the columns that panels [from, to) are. */
void gemm_tiles_gated(const struct kern *k, const struct weight *gate, const struct weight *up, int from, int to, struct gemm_tiles_x x,
                      enum act act, const struct tensor *y, int row, struct gemm_tiles *t);

/* What gemm_tiles_few wants of a call, in gemm's scratch until that is used again: x (one launch), and room for each worker. */
struct gemm_tiles_work {
  const uint16_t *x;
  char *rooms;
  size_t room_bytes;
};
struct gemm_tiles_work gemm_tiles_work(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct tensor *x);
static inline struct gemm_tiles *gemm_tiles_room(const struct gemm_tiles_work *w, int worker) {
  return (struct gemm_tiles *)(void *)(w->rooms + (size_t)worker * w->room_bytes);
}

/* A whole panel as tiles [blocks], and what makes weights of their numbers; NaN for a row with a scale that is not finite. */
void gemm_tiles_panel(const struct kern *k, const struct weight *w, int panel, gemm_weight_tile *to, float factor[GEMM_PANEL]);

/* Slow and obvious: the weights of row r of a packed panel as float32, as a product sees them (not yet NaN where a scale is not finite). */
void gemm_tiles_row(const struct weight *w, int panel, int r, float *out);

#endif
