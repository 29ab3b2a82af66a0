/* attnk_whole.h — what the kernels of whole segments (struct attn_whole of attn_kern.h) have in common: values of bf16, two rows side by side, rows that
 * are asked for ahead, and what is done about values that are no numbers. Included after vec_avx512.h.
 *
 * Two rows of values are interleaved with unpack instructions, which work within 16 bytes: acc has the dims of each 32 in the order
 *   0-3, 8-11, 16-19, 24-27, 4-7, 12-15, 20-23, 28-31        and whole_finish puts them right.
 */
#ifndef CYGNET_ATTNK_WHOLE_H
#define CYGNET_ATTNK_WHOLE_H

#include <float.h>
#include <math.h>

#include "compute/attn_kern.h"
#include "compute/vec_exp.h"

enum { WHOLE_BLOCK = 32 }; /* dims of two vectors side by side; keys of a step of the softmax */
_Static_assert(ATTN_SEGMENT % WHOLE_BLOCK == 0, "a segment is whole blocks");

#define KERNEL __attribute__((noinline)) /* inlined into each other they would run out of registers */

/* --- rows that are needed soon ------------------------------------------------------------------------------------------------ */

/* They are asked for a few at a time, so that memory is busy while products are. */
struct whole_ahead {
  const void *const *rows;
  int n; /* not yet asked for */
  size_t row_bytes;
};
static ALWAYS_INLINE void whole_ask(struct whole_ahead *a, int n) {
  for (n = MIN(n, a->n), a->n -= n; n > 0; n--, a->rows++) {
    for (size_t i = 0; i < a->row_bytes; i += 64) _mm_prefetch((const char *)*a->rows + i, _MM_HINT_T1);
  }
}
/* This segment's keys and values, and keys of what comes after it. */
static inline struct whole_ahead whole_keys(const struct attn_seen *seen) {
  return (struct whole_ahead){seen->k + seen->lo, seen->hi - seen->lo, seen->row_bytes};
}
static inline struct whole_ahead whole_values(const struct attn_seen *seen) {
  return (struct whole_ahead){seen->v + seen->lo, seen->hi - seen->lo, seen->row_bytes};
}
static inline struct whole_ahead whole_next_keys(const struct attn_seen *seen) {
  return (struct whole_ahead){seen->next_k, seen->n_next, seen->row_bytes};
}

/* --- values ------------------------------------------------------------------------------------------------------------------- */

/* 32 dims of two keys as pairs, in the order above. */
#ifdef CYGNET_SIMDE
static ALWAYS_INLINE void whole_interleave(__m512i out[2], const void *even, const void *odd) {
  char pairs[2][64];
  for (int i = 0; i < WHOLE_BLOCK; i++) {
    char *to = pairs[i / 4 % 2] + 16 * (i / 8) + 4 * (i % 4);
    memcpy(to, (const char *)even + 2 * i, 2);
    memcpy(to + 2, (const char *)odd + 2 * i, 2);
  }
  memcpy(out, pairs, sizeof pairs);
}
#else
static ALWAYS_INLINE void whole_interleave(__m512i out[2], const void *even, const void *odd) {
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  out[0] = _mm512_unpacklo_epi16(a, b);
  out[1] = _mm512_unpackhi_epi16(a, b);
}
#endif

/* Quarters 0 1 2 3 of a and 0 1 2 3 of b, side by side: a0 b0 a1 b1, a2 b2 a3 b3. */
static ALWAYS_INLINE void whole_in_order(float out[WHOLE_BLOCK], vec a, vec b) {
#ifdef CYGNET_SIMDE
  float x[WHOLE_BLOCK];
  vec_store(x, a);
  vec_store(x + VEC, b);
  for (int j = 0; j < WHOLE_BLOCK; j += 8) {
    memcpy(out + j, x + j / 2, 4 * sizeof(float));
    memcpy(out + j + 4, x + VEC + j / 2, 4 * sizeof(float));
  }
#else
  const vec low = _mm512_shuffle_f32x4(a, b, 0x44), high = _mm512_shuffle_f32x4(a, b, 0xee);
  vec_store(out, _mm512_shuffle_f32x4(low, low, 0xd8));
  vec_store(out + VEC, _mm512_shuffle_f32x4(high, high, 0xd8));
#endif
}

/* struct attn_whole's finish. */
static void whole_finish(float *out, const float *acc, float sum, int n) {
  const vec d = vec_set1(sum), zero = vec_zero(); /* which makes -0 to 0 */
  for (int i = 0; i < n; i += WHOLE_BLOCK) {
    const vec a = vec_add(vec_div(vec_load(acc + i), d), zero), b = vec_add(vec_div(vec_load(acc + i + VEC), d), zero);
    float y[WHOLE_BLOCK];
    if (n - i >= WHOLE_BLOCK) {
      whole_in_order(out + i, a, b);
      continue;
    }
    whole_in_order(y, a, b);
    memcpy(out + i, y, sizeof(float) * (size_t)(n - i));
  }
}

/* --- softmax ------------------------------------------------------------------------------------------------------------------- */

/* The greatest of a line's scores; those of keys [lo, hi), whole blocks, that it does not see become -INFINITY. */
static ALWAYS_INLINE float whole_greatest(float *p, int lo, int hi, int from, int to) {
  vec top = vec_set1(-FLT_MAX);
  to = MAX(to, from);
  for (int j = lo; j < hi; j += VEC) {
    vec s = vec_load(p + j);
    if (j < from || j + VEC > to) {
      s = vec_keep_range(s, from - j, to - j, -INFINITY);
      vec_store(p + j, s);
    }
    top = vec_max(s, top);
  }
  return vec_largest(top);
}

/* --- a segment ----------------------------------------------------------------------------------------------------------------- */

/* Whether values [from, to) are all finite. */
static bool whole_finite(const struct attn_lines *s, const void *const *v, int from, int to) {
  vec nothing = vec_zero(); /* 0 x is 0, or a NaN */
  for (int j = from; j < to; j++) {
    for (int i = 0; i < s->head_dim; i += VEC) nothing = vec_fma(vec_load_bf16((const uint16_t *)v[j] + i), vec_zero(), nothing);
  }
  return vec_eq_bits(nothing, vec_zero()) == (1u << VEC) - 1;
}

/* Whether every line may meet all keys that any of them sees, with the weight 0 where it does not. */
static bool whole_together(const struct attn_lines *s, const struct attn_seen *seen) {
  int all_lo = 0, all_hi = ATTN_SEGMENT;
  for (int l = 0; l < s->n; l++) all_lo = MAX(all_lo, seen->from[l]), all_hi = MIN(all_hi, seen->to[l]);
  if (all_lo >= all_hi) return whole_finite(s, seen->v, seen->lo, seen->hi);
  return whole_finite(s, seen->v, seen->lo, all_lo) && whole_finite(s, seen->v, all_hi, seen->hi);
}

/* struct attn_whole's segment; lines() takes keys that all lines may meet. */
static ALWAYS_INLINE void whole_segment(const struct attn_lines *s, const struct attn_seen *seen,
                                        void (*lines)(const struct attn_lines *s, const struct attn_seen *seen)) {
  if (whole_together(s, seen)) {
    lines(s, seen);
    return;
  }
  /* a value is infinite or a NaN: each line by itself, other values replaced */
  for (int l = 0; l < s->n; l++) {
    const size_t at = (size_t)l * (size_t)s->head_dim;
    const struct attn_lines line = {1, s->head_dim, s->q + at, s->acc + at, s->max + l, s->sum + l};
    const void *v[ATTN_SEGMENT];
    struct attn_seen own = *seen;
    if (seen->from[l] >= seen->to[l]) continue;
    for (int j = 0; j < ATTN_SEGMENT; j++) v[j] = j >= seen->from[l] && j < seen->to[l] ? seen->v[j] : seen->zero_row;
    own.v = v, own.n_next = 0, own.from = seen->from + l, own.to = seen->to + l, own.lo = seen->from[l], own.hi = seen->to[l];
    lines(&line, &own);
  }
}

#endif
