/* attend.h — attention of encoders: all rows of one matrix against the keys and values of another, dense, without a cache.
 *
 *   out[r] = Σ_j softmax_j(scale · q[r] · k[j]) v[j],  j in [lo[r], hi[r]),  for every head
 *
 * Rules
 *   1. A row's bits depend on its own q, its interval and the keys and values in it: not on rows beside it, on how rows are cut into calls,
 *      or on threads. Keys are walked in tiles of ATTEND_TILE counted from lo[r]; sums over head_dim and over keys run upwards in one
 *      accumulator each.
 *   2. What a row does not see is not even multiplied by 0: a NaN there stays there. A NaN in q makes that row and head NaN, and nothing
 *      else.
 *   3. An empty interval gives zeros.
 *
 * How it is fast. Keys and values of a few heads at a time are packed into panels (attend_impl.h); a block of rows with the same interval
 * then takes each tile of keys as two matrix products with register blocks, q kᵀ and p v, with the softmax between. A run of rows with one
 * interval is what makes a block.
 */
#ifndef CYGNET_ATTEND_H
#define CYGNET_ATTEND_H

#include "base/workers.h"
#include "compute/kern.h"
#include "compute/tensor.h"

enum {
  ATTEND_TILE = 64,         /* keys per step of the softmax, from lo[r] on */
  ATTEND_ROWS = 48,         /* of a block at most */
  ATTEND_HEAD_DIM_MAX = 512 /* the widest that encoders have is 80 */
};

/* Panels of the heads in flight and each worker's block, for calls of up to keys_max keys with heads of head_dim_max numbers. */
struct attend_scratch {
  void *data;
  size_t n_bytes;
  int keys_max, head_dim_max, n_workers;
};
size_t attend_scratch_bytes(int keys_max, int head_dim_max, int n_workers);

/* q, out [rows, n_heads * head_dim]; k, v [keys, the same]; 0 <= lo[r], hi[r] <= keys. out may be q, but neither k nor v. lo and hi are
 * read in the launches. */
void attend(const struct kern *kern, struct workers *workers, const struct attend_scratch *s, struct tensor *out, const struct tensor *q,
            const struct tensor *k, const struct tensor *v, int n_heads, float scale, const int32_t *lo, const int32_t *hi);

/* --- what a level gives --------------------------------------------------------------------------------------------------- */

struct attend_block { /* one head of n_rows <= ATTEND_ROWS rows that see keys [lo, hi), lo < hi */
  int n_rows, head_dim, lo, hi;
  float scale;
  const float *q;
  float *out;
  size_t q_bytes, out_bytes; /* between rows */
  const float *k, *v;        /* the head's panels; or, not packed, the head's part of key 0 and value 0 */
  size_t k_bytes, v_bytes;   /* between keys, not packed */
  int n_keys;                /* that were packed */
  float *scratch;            /* attend_block_floats of them */
};

struct attend_kern {
  bool packs;
  /* Keys [from, to) of a head of n_keys, from a multiple of ATTEND_TILE, to too or the last. k, v: the head's part of key 0 and value 0. */
  void (*pack)(float *k_panels, float *v_panels, const float *k, size_t k_bytes, const float *v, size_t v_bytes, int head_dim, int n_keys,
               int from, int to);
  void (*block)(const struct attend_block *b);
};

extern const struct attend_kern attend_ref;
#if defined(__x86_64__)
extern const struct attend_kern attend_avx2;
extern const struct attend_kern attend_avx512;
#endif

enum { ATTEND_PANEL_MAX = 32 }; /* keys that lie side by side in a panel, and numbers that widths are rounded up to, at most */
static inline size_t attend_panel_floats(int n_keys, int head_dim) { /* of the keys of a head, or of its values */
  return align_up((size_t)n_keys, ATTEND_PANEL_MAX) * align_up((size_t)head_dim, ATTEND_PANEL_MAX);
}
static inline size_t attend_block_floats(int head_dim) { /* q, sums; scores of a tile that begins inside a panel; state */
  size_t width = align_up((size_t)head_dim, ATTEND_PANEL_MAX);
  return ATTEND_ROWS * (2 * width + ATTEND_TILE + ATTEND_PANEL_MAX + ATTEND_PANEL_MAX / 2 + 2);
}

#endif
