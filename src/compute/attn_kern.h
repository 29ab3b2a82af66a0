/* attn_kern.h — the kernels of attn_cpu.c for one instruction set.
 *
 * A line is one query head of one row. Its running state over the keys of a segment is the usual one of online softmax:
 *   max   greatest score so far         sum   Σ exp(score - max)         acc   Σ exp(score - max) v
 * tile() takes up to ATTN_TILE keys into the state of several lines. Rules, so that a line's bits are its own:
 *   1. A score is summed in lanes over head_dim by one fixed tree, the same for any number of lines.
 *   2. Keys enter sum and acc in ascending order; a key outside [from, to) of a line is not even multiplied by 0 (its value may be a NaN).
 *   3. Rows of keys and values in any dtype give the bits that their float32 copies would give: every conversion is exact.
 * head_dim here is padded to a multiple of ATTN_PAD; the padding of q, k, v is zero.
 *
 * Where a processor multiplies bf16, alone or in tiles of matrices, keys and values of bf16 go another way (struct attn_whole): all keys of a segment at once, for one
 * line as for many. q and acc are then in a form that only these kernels know. Rules 1 and 2 hold; denormal numbers among keys and values count as 0; queries
 * and weights are rounded to bf16 (attnk_avx512bf16.c) or to two numbers of it each (attnk_amx.c).
 */
#ifndef CYGNET_ATTN_KERN_H
#define CYGNET_ATTN_KERN_H

#include "compute/attn.h"

enum { ATTN_PAD = 16 };

struct attn_lines {
  int n, head_dim;
  float *q, *acc;   /* [n, head_dim]; q is already multiplied by the scale */
  float *max, *sum; /* [n]; -FLT_MAX and 0 at the start of a segment */
};

struct attn_ahead {                /* rows of the tile after this one, to be fetched from memory meanwhile */
  const void *const *k, *const *v; /* [ATTN_TILE] */
  size_t row_bytes;
};

struct attn_seen {                 /* of a segment, in positions from its first on; all [ATTN_SEGMENT] */
  const void *const *k, *const *v; /* rows of keys and values; where nobody sees one, a row of zeros */
  int lo, hi;                      /* what lines see together */
  const int *from, *to;            /* [n]: what each line sees; from >= to: nothing, and its state is left as it is */
  bool asked;                      /* the keys were fetched meanwhile, as next_k of the call before */
  const void *const *next_k;       /* [n_next]: keys that the next call is expected to need, to be fetched meanwhile */
  int n_next;
  size_t row_bytes;
  const void *zero_row;
  void *scratch; /* scratch_bytes of it, aligned to 64 */
};

struct attn_whole {
  int head_dim_step; /* padded head_dim is a multiple of it */
  int lines_most;    /* of 256 wide heads, in one call; as many as share what is done once for a segment's keys and values */
  size_t (*scratch_bytes)(int head_dim);
  void (*load_q)(float *q, const float *src, float scale, int n, int head_dim); /* n numbers, zeros up to head_dim */
  void (*segment)(const struct attn_lines *s, const struct attn_seen *seen);    /* max, sum and acc are written, whatever they were */
  void (*finish)(float *out, const float *acc, float sum, int n);
};

struct attn_kern {
  int many_lines; /* from so many lines on, many() is to be called instead of tile() */

  /* k, v [ATTN_TILE]: rows of the tile's keys and values in the given dtype. Entries outside the widest [from, to) must be readable and finite.
   * from, to [n]: what each line sees of the tile; from >= to leaves the line as it is. ahead may be NULL. */
  void (*tile)(const struct attn_lines *s, const int *from, const int *to, enum dtype t, const void *const *k, const void *const *v,
               const struct attn_ahead *ahead);
  /* The same for keys and values that were expanded to float32, row j at k + j * stride and v + j * stride. All ATTN_TILE rows of keys must be
   * readable. */
  void (*many)(const struct attn_lines *s, const int *from, const int *to, const float *k, const float *v, size_t stride,
               const struct attn_ahead *ahead);
  /* (max, sum, acc) becomes what it would be with the later segment (seg_max, seg_sum, seg_acc) behind it. n is padded. */
  void (*merge)(float *max, float *sum, float *acc, float seg_max, float seg_sum, const float *seg_acc, int n);
  void (*finish)(float *out, const float *acc, float sum, int n);   /* out = acc / sum; n is not padded */
  void (*load_q)(float *q, const float *src, float scale, int n);   /* q = src * scale; n is not padded */
  void (*expand)(float *out, const void *row, enum dtype t, int n); /* n is padded */
  void (*store)(void *row, const float *src, enum dtype t, int n);  /* as dtype_from_f32, bit for bit; n is not padded */
  const struct attn_whole *whole_bf16;                              /* or NULL */
};

extern const struct attn_kern attnk_ref;
#if defined(__x86_64__)
extern const struct attn_kern attnk_avx2;
extern const struct attn_kern attnk_avx512;
extern const struct attn_kern attnk_avx512bf16, attnk_avx512amx; /* attnk_avx512 with a whole_bf16: these */
extern const struct attn_whole attnk_dot, attnk_amx;
#endif

#endif
