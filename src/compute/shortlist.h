/* shortlist.h — the greatest logits of a row, without reading all of the output matrix.
 *
 * Who says the likeliest token, or one of the k likeliest, looks at few of 262144 logits, and one user's step reads the whole matrix for them. So beside it
 * lies a coarse copy, s for each weight row w: 4 bits a number, 8 in the 64 columns that are the widest. By Cauchy and Schwarz
 *
 *     |w·x - s·x|  <=  |w - s| |x|          with |w - s| known since the copy was made
 *
 * (for the widest columns, which most of |x| lies in, and for the others apart),
 *
 * and the n greatest logits of a row are found in four looks:
 *
 *     bounds   for each panel, what its 16 logits reach at most, and what the greatest of them is at least            reads the copy
 *     best     the n + 16 panels with the greatest "at least": their logits; t, the n-th greatest of those            reads those panels
 *     finer    for the panels that reach t, what they reach at most by a fifth bit, which lies apart                  reads that bit
 *     rest     the panels that still reach t: their logits                                                            reads those panels
 *
 * Rules
 *   1. Logits that are computed have the bits of gemm (and softcap). The others are left out as head.h says: each is less than n logits that were
 *      computed. So the first n candidates, in the sampler's order, are the same as with all logits.
 *   2. When a row wants all of its logits, or is not finite, all logits of the call are computed. A weight row that is not finite always is.
 *   3. Only where products are of bf16 (gemm_tiles.h): w and x are meant as those see them. Sums are float32; what their rounding can do
 *      is part of the bound.
 *
 * Panel of the copy
 *   float  [parts][16] error, [parts][16] norm   |w - s|, and at least |w| and |s|, in segment 0 and in all others; rounded up
 *   bf16   [segments][16] scale             to a multiple of 64 bytes
 *   codes of segment 0: 1024 bytes          byte g * 64 + i = 128 + code i of group g; a group has 16 rows × 4 columns. s = scale * code
 *   codes of each other segment: 512 bytes  byte j * 64 + i = code i of group j, and of group j + 8 in the high half. s = scale * (code - 7.75) * 2
 * and of what makes it finer
 *   float  [parts][16] error, [parts][16] norm   of s with the fifth bit
 *   bits of each other segment: 128 bytes   byte h * 64 + i: bit t = the bit of code i of group 8h + t. s = scale * (code * 2 + bit - 16)
 * A segment is 64 columns: the first those that `order` begins with.
 */
#ifndef CYGNET_SHORTLIST_H
#define CYGNET_SHORTLIST_H

#include "base/workers.h"
#include "compute/gemm_tiles.h"

enum {
  SHORTLIST_SEGMENT = 64,       /* columns that share a scale */
  SHORTLIST_GROUPS = 16,        /* of 4 columns, in a segment */
  SHORTLIST_PARTS = 2,          /* of a row: segment 0, and the others */
  SHORTLIST_FIRST_OFFSET = 128, /* of codes as they are stored: in segment 0, in the others with their fifth bit */
  SHORTLIST_OFFSET = 16,
  SHORTLIST_ROW_BYTES = 2 * SHORTLIST_PARTS * GEMM_PANEL * sizeof(float),
  SHORTLIST_FIRST_BYTES = 1024, /* codes of a segment of 16 rows: the first, each other, and their fifth bits */
  SHORTLIST_BYTES = 512,
  SHORTLIST_FINER_BYTES = 128,
  SHORTLIST_ROWS_MAX = 4,   /* of x in a call; for more all logits are as fast */
  SHORTLIST_BEST_MAX = 128, /* the most that n may be */
  SHORTLIST_LOOK_MAX = SHORTLIST_BEST_MAX + 16,
};

/* A row of x as the bounds want it, beside its codes. */
struct shortlist_row {
  float norm[SHORTLIST_PARTS];  /* |x| */
  float slack[SHORTLIST_PARTS]; /* times a weight row's norm: what x rounded to codes, and rounding of sums, may add */
};

/* Begins the memory that weight.shortlist points to; the rest of it follows. One product at a time. */
struct shortlist {
  int n_panels, n_segments;
  size_t panel_bytes, finer_bytes;
  uint8_t *panels, *finer; /* [panel] */
  int32_t *order;          /* [cols]: place in the copy → column */
  bool is_on;              /* in this call: not all logits are wanted */
  int8_t *x;               /* codes. Segment 0: [2][row][64], x = scale * (128 * first + second); each other: [row][64], x = scale * code */
  float *scales;           /* [segment][row] */
  int32_t *sums;           /* [segment][row]: of x's codes, which make up for codes of the copy that are stored with an offset */
  float *low, *high;       /* [row][panel]: of the greatest logit */
  float *about;            /* [row][panel][16]: logits by the copy */
  uint8_t *wanted;         /* [panel]: enum gemm_wanted */
  float *best;             /* [SHORTLIST_LOOK_MAX], a heap */
  int32_t *best_from;      /* [SHORTLIST_ROWS_MAX][SHORTLIST_LOOK_MAX]: panels */
  int n_best[SHORTLIST_ROWS_MAX], n_looked_at[SHORTLIST_ROWS_MAX];
  float threshold[SHORTLIST_ROWS_MAX]; /* t */
  struct shortlist_row rows[SHORTLIST_ROWS_MAX];
};

struct shortlist_kern {
  /* squares[n_cols][16] += the squares of a panel's weights, which are tiles times factor. */
  void (*add_squares)(float (*squares)[GEMM_PANEL], const gemm_weight_tile *tiles, const float factor[GEMM_PANEL], int n_cols);
  void (*make_panel)(const struct shortlist *s, const gemm_weight_tile *tiles, const float factor[GEMM_PANEL], int panel);
  /* low, high and about of panels [from, to) for n_rows rows. */
  void (*bounds)(const struct shortlist *s, int from, int to, int n_rows);
  /* What a panel reaches at most for row r of n_rows, by all five bits. */
  float (*finer)(const struct shortlist *s, int panel, int r, int n_rows);
};

#if defined(__x86_64__)
extern const struct shortlist_kern shortlist_amx;
#endif

/* Memory of the copy and of the work with it; 0: there is none for such a weight on this level. */
size_t shortlist_bytes(const struct kern *k, const struct weight *w);
/* What a product reads of it at least. */
size_t shortlist_read_bytes(const struct weight *w);
/* w is packed, w->shortlist 64-byte aligned memory of that size. -1: no memory for the making. */
int shortlist_make(const struct kern *k, struct workers *workers, struct weight *w, struct err *e);

/* Logits and peaks as head.h says, of at most SHORTLIST_ROWS_MAX rows. s: for the products. */
void shortlist_product(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *w, struct tensor *y,
                       struct tensor *peaks, const struct tensor *x, float cap, const int32_t *n_best);

/* Sums of squares of what is lost and of what is kept, for 16 rows, to what a panel has. */
void shortlist_norms(float error[SHORTLIST_PARTS][GEMM_PANEL], float norm[SHORTLIST_PARTS][GEMM_PANEL]);

/* Pieces of the layout. */
static inline size_t shortlist_scales_bytes(int n_segments) { return align_up((size_t)n_segments * GEMM_PANEL * 2, 64); }
static inline size_t shortlist_panel_bytes(int n_segments) {
  return SHORTLIST_ROW_BYTES + shortlist_scales_bytes(n_segments) + SHORTLIST_FIRST_BYTES + (size_t)(n_segments - 1) * SHORTLIST_BYTES;
}
static inline size_t shortlist_finer_bytes(int n_segments) {
  return SHORTLIST_ROW_BYTES + (size_t)(n_segments - 1) * SHORTLIST_FINER_BYTES;
}
#endif
