/* attn_core.h — what the emulated attention operators share: layouts, lengths, masks, and the one loop that computes.
 *
 * Phase 1 of an operator fills a struct attn_problem, whatever its layout: for every sequence the place of its rows and keys, and which keys a
 * row sees. attn_run computes it; so the same interval by another operator, layout, page size or batch gives the same bits.
 *
 * Numbers: float32, scores by emu_dot, keys ascending (descending with emu_other_order), one rounding on storing. A key that a mask excludes has
 * weight 0, but its value is multiplied like any other: 0 * NaN is NaN, as on the device, where tiles know nothing of single keys. Keys beyond a
 * sequence's length are not touched.
 */
#ifndef ACL_EMU_ATTN_CORE_H
#define ACL_EMU_ATTN_CORE_H

#include "acl_emu/emu.h"

enum { ATTN_COMPRESSED = 2048 }; /* rows and columns of the fixed triangular mask of sparse modes 2, 3, 4 */

/* Which keys row i of a sequence with `rows` rows and `keys` keys sees: */
enum attn_sees {
  ATTN_ALL,    /* all */
  ATTN_UPPER,  /* j <= i */
  ATTN_LOWER,  /* j <= i + keys - rows */
  ATTN_BAND,   /* i + keys - rows - pre <= j <= i + keys - rows + next */
  ATTN_FULL,   /* where the mask holds 0 */
  ATTN_WITHIN, /* where the mask holds 0 and i - pre <= j <= i + next */
};

struct attn_axes { /* strides in elements */
  int64_t b, s, n, d;
};

struct attn_seq {
  int64_t rows, keys;        /* that take part */
  int64_t idle;              /* rows behind them, which come out undefined: NaN here */
  int64_t q, out, k, v, lse; /* first element; k and v not for pages */
};

struct attn_problem {
  int n_seqs, n_q, n_kv, d_qk, d_v;
  float scale;
  bool shift_first;           /* scale * (q·k + shift), not scale * q·k + shift */
  const struct attn_seq *seq; /* [n_seqs]; of emu_keep */
  int q, k, v, out;           /* tensors of the plan */
  bool listed;                /* keys of sequence i are tensor k + i, values v + i */
  struct attn_axes q_at, k_at, v_at, out_at;
  /* pages: table [n_seqs, table_cols] of blocks; element = block * block_stride + ..., d in runs of 16 when nz */
  int table; /* -1: none */
  int64_t table_cols, block_tokens, n_blocks, k_block, v_block;
  bool nz;
  enum attn_sees sees;
  int64_t pre, next;
  int mask; /* -1: none */
  bool compressed;
  struct attn_axes mask_at; /* s: row, d: key */
  int64_t mask_from;        /* keys from here on are seen whatever the mask holds; INT64_MAX */
  int shift;                /* -1: none; [b, n, s, d] by strides */
  struct attn_axes shift_at;
  bool shift_first_head;                                                 /* only head 0 gets it */
  bool shift_breaks;                                                     /* -inf gives NaN */
  enum { ATTN_EMPTY_ZERO, ATTN_EMPTY_NAN, ATTN_EMPTY_FAULT } masked_row; /* a row whose mask hides everything */
  bool uniform;                                                          /* every key weighs the same */
  bool leave_empty;                                                      /* sequences without keys: the output stays as it was */
  int lse;                                                               /* -1: none */
  struct attn_axes lse_at;
  int sum, max; /* softmax's parts, 8 times each; -1 */
  struct attn_axes part_at;
};

void attn_problem_init(struct attn_problem *a);
void attn_run(struct emu_call *c, const void *ctx);
/* [*lo, *hi) that row i sees before the mask is asked. */
void attn_interval(const struct attn_problem *a, const struct attn_seq *s, int64_t i, int64_t *lo, int64_t *hi);

/* Axes of a tensor whose dimensions are letters of B, S, N, D, H (heads by d), T (tokens of all sequences). Sizes that the tensor has are
 * returned; false when the number of dimensions is wrong. n_heads splits H. */
struct attn_dims {
  int64_t b, s, t, n, d;
};
bool attn_view(const struct emu_tensor *t, const char *letters, int64_t n_heads, struct attn_axes *at, struct attn_dims *dims);
bool attn_has(const char *letters, char c);

/* Checks of phase 1. */
void attn_check_compressed(struct emu_plan *p, struct attn_problem *a, int slot);
/* Cumulative lengths of TND: not falling, from 0 to total; single lengths into out [n]. */
void attn_check_cumulative(struct emu_plan *p, const char *name, const int64_t *x, int64_t n, int64_t total, int64_t *out);

#endif
