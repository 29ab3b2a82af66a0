/* attnk_impl.h — the text of the attention kernels, compiled once for each width of vector; that for many lines is in attnk_many.h.
 *
 * Included by attnk_avx2.c and attnk_avx512.c after vec_*.h. Lines are taken 4, 2 or 1 at a time; either way 8 vectors of partial sums are in
 * flight: 4 lines × 2 keys, 2 × 4, 1 × 8 for the scores, and the same shapes of lines × vectors of head_dim for the values.
 */
#include <float.h>
#include <math.h>

#include "compute/attn_kern.h"
#include "compute/vec_exp.h"

enum { AK_IN_FLIGHT = 8, AK_TILE_VECS = ATTN_TILE / VEC, AK_Q8_BLOCK_BYTES = 34 };

/* Elements i .. i + VEC - 1 of a row, as float32, exactly. */
static ALWAYS_INLINE vec ak_load(enum dtype t, const void *row, int i) {
  switch (t) {
  case DTYPE_BF16: return vec_load_bf16((const uint16_t *)row + i);
  case DTYPE_F16: return vec_load_f16((const uint16_t *)row + i);
  case DTYPE_Q8_0: {
    const uint8_t *block = (const uint8_t *)row + (size_t)(i / 32) * AK_Q8_BLOCK_BYTES;
    uint16_t d;
    memcpy(&d, block, 2);
    return vec_mul(vec_load_i8((const int8_t *)block + 2 + i % 32), vec_set1_f16(d));
  }
  default: return vec_load((const float *)row + i);
  }
}

/* Memory is far: while this tile is worked on, the rows of the next are asked for, a few at a time. */
static ALWAYS_INLINE void ak_fetch(const void *const *rows, size_t row_bytes, int from, int to) {
  for (int j = from; j < to; j++) {
    for (size_t i = 0; i < row_bytes; i += 64) _mm_prefetch((const char *)rows[j] + i, _MM_HINT_T1);
  }
}

/* score[l][j] = q_l · k_j for the keys j of the groups of 8 that meet [from, to). */
static ALWAYS_INLINE void ak_scores(int n_lines, enum dtype t, const float *q, int head_dim, const void *const *k, int from, int to,
                                    float score[][ATTN_TILE], const struct attn_ahead *ahead) {
  const int n_keys = AK_IN_FLIGHT / n_lines;
  for (int j = from & ~(AK_IN_FLIGHT - 1); j < to; j += n_keys) {
    vec sum[AK_IN_FLIGHT];
    if (ahead) ak_fetch(ahead->k, ahead->row_bytes, j, j + n_keys);
#pragma GCC unroll 8
    for (int u = 0; u < AK_IN_FLIGHT; u++) sum[u] = vec_zero();
    for (int i = 0; i < head_dim; i += VEC) {
#pragma GCC unroll 8
      for (int u = 0; u < n_keys; u++) {
        vec key = ak_load(t, k[j + u], i);
#pragma GCC unroll 4
        for (int l = 0; l < n_lines; l++) sum[l * n_keys + u] = vec_fma(vec_load(q + l * head_dim + i), key, sum[l * n_keys + u]);
      }
    }
    float s[AK_IN_FLIGHT];
    _mm256_storeu_ps(s, vec_sum8(sum));
#pragma GCC unroll 4
    for (int l = 0; l < n_lines; l++) memcpy(&score[l][j], s + l * n_keys, sizeof(float) * (size_t)n_keys);
  }
}

/* acc_l = acc_l * fade_l + Σ_j p_l[j] v_j, j ascending, for n_vecs vectors of head_dim from i. */
static ALWAYS_INLINE void ak_values_at(int n_lines, int n_vecs, enum dtype t, float *acc, int head_dim, int i, const float p[][ATTN_TILE],
                                       const float *fade, const void *const *v, int from, int to) {
  vec a[AK_IN_FLIGHT];
#pragma GCC unroll 4
  for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 8
    for (int u = 0; u < n_vecs; u++) a[l * n_vecs + u] = vec_mul(vec_load(acc + l * head_dim + i + u * VEC), vec_set1(fade[l]));
  }
  for (int j = from; j < to; j++) {
    vec value[AK_IN_FLIGHT];
#pragma GCC unroll 8
    for (int u = 0; u < n_vecs; u++) value[u] = ak_load(t, v[j], i + u * VEC);
#pragma GCC unroll 4
    for (int l = 0; l < n_lines; l++) {
      vec weight = vec_set1(p[l][j]);
#pragma GCC unroll 8
      for (int u = 0; u < n_vecs; u++) a[l * n_vecs + u] = vec_fma(weight, value[u], a[l * n_vecs + u]);
    }
  }
#pragma GCC unroll 4
  for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 8
    for (int u = 0; u < n_vecs; u++) vec_store(acc + l * head_dim + i + u * VEC, a[l * n_vecs + u]);
  }
}

static ALWAYS_INLINE void ak_values(int n_lines, enum dtype t, float *acc, int head_dim, const float p[][ATTN_TILE], const float *fade,
                                    const void *const *v, int from, int to, const struct attn_ahead *ahead) {
  const int n_vecs = AK_IN_FLIGHT / n_lines, step = n_vecs * VEC;
  int i = 0;
  for (; i + step <= head_dim; i += step) {
    if (ahead) ak_fetch(ahead->v, ahead->row_bytes, ATTN_TILE * i / head_dim, ATTN_TILE * (i + step) / head_dim);
    ak_values_at(n_lines, n_vecs, t, acc, head_dim, i, p, fade, v, from, to);
  }
  if (step == ATTN_PAD) return; /* nothing can be left */
  for (; i < head_dim; i += ATTN_PAD) ak_values_at(n_lines, ATTN_PAD / VEC, t, acc, head_dim, i, p, fade, v, from, to);
}

/* The same for one line and a dtype that is not known when compiling: for the few keys that neighbouring lines do not share. */
static __attribute__((noinline)) void ak_values_of_one(enum dtype t, float *acc, int head_dim, const float p[ATTN_TILE], float fade,
                                                       const void *const *v, int from, int to) {
  const float(*line)[ATTN_TILE] = (const float(*)[ATTN_TILE])p;
  switch (t) {
  case DTYPE_BF16: ak_values(1, DTYPE_BF16, acc, head_dim, line, &fade, v, from, to, NULL); break;
  case DTYPE_F16: ak_values(1, DTYPE_F16, acc, head_dim, line, &fade, v, from, to, NULL); break;
  case DTYPE_Q8_0: ak_values(1, DTYPE_Q8_0, acc, head_dim, line, &fade, v, from, to, NULL); break;
  default: ak_values(1, DTYPE_F32, acc, head_dim, line, &fade, v, from, to, NULL); break;
  }
}

/* The sum over the lanes of each of n <= 8 vectors, in the tree of vec_sum8; sum = sum * fade + that. */
static ALWAYS_INLINE void ak_add_totals(int n, const vec *total, const float *fade, float *sum) {
  vec all[8];
#pragma GCC unroll 8
  for (int l = 0; l < 8; l++) all[l] = l < n ? total[l] : vec_zero();
  float t[8];
  _mm256_storeu_ps(t, vec_sum8(all));
  for (int l = 0; l < n; l++) sum[l] = sum[l] * fade[l] + t[l];
}

/* Scores of a few lines become exp(score - max), those outside [from, to) 0; max and sum move on. fade: the factors for what was summed before. */
static ALWAYS_INLINE void ak_softmax(int n_lines, float p[][ATTN_TILE], const int *from, const int *to, float *max, float *sum,
                                     float *fade) {
  vec total[4];
  for (int l = 0; l < n_lines; l++) {
    vec s[AK_TILE_VECS], top = vec_set1(-FLT_MAX);
    for (int u = 0; u < AK_TILE_VECS; u++) {
      s[u] = vec_load(p[l] + u * VEC);
      if (from[l] > 0 || to[l] < ATTN_TILE) s[u] = vec_keep_range(s[u], from[l] - u * VEC, to[l] - u * VEC, -INFINITY);
      top = vec_max(s[u], top);
    }
    float new_max = vec_largest(top), f[VEC];
    new_max = MAX(max[l], new_max);
    vec_store(f, vec_exp(vec_set1(max[l] - new_max)));
    fade[l] = f[0], max[l] = new_max;
    total[l] = vec_zero();
    for (int u = 0; u < AK_TILE_VECS; u++) {
      s[u] = vec_exp(vec_sub(s[u], vec_set1(new_max)));
      vec_store(p[l] + u * VEC, s[u]);
      total[l] = vec_add(total[l], s[u]);
    }
  }
  ak_add_totals(n_lines, total, fade, sum);
}

/* n_lines neighbouring lines, each of which sees something of the tile. */
static ALWAYS_INLINE void ak_group(int n_lines, enum dtype t, const struct attn_lines *s, int line, const int *from, const int *to,
                                   const void *const *k, const void *const *v, const struct attn_ahead *ahead) {
  const int head_dim = s->head_dim;
  _Alignas(64) float p[4][ATTN_TILE];
  float fade[4], *acc = s->acc + (size_t)line * head_dim;
  int lo = ATTN_TILE, hi = 0, all_lo = 0, all_hi = ATTN_TILE; /* seen by any, seen by all */
  for (int l = 0; l < n_lines; l++) {
    lo = MIN(lo, from[line + l]), hi = MAX(hi, to[line + l]);
    all_lo = MAX(all_lo, from[line + l]), all_hi = MIN(all_hi, to[line + l]);
  }
  if (lo > 0 || hi < ATTN_TILE) memset(p, 0, sizeof p);
  ak_scores(n_lines, t, s->q + (size_t)line * head_dim, head_dim, k, lo, hi, p, ahead);
  ak_softmax(n_lines, p, from + line, to + line, s->max + line, s->sum + line, fade);
  /* Where lines see different keys, each takes its own before and after the common ones. */
  const bool differ = lo < all_lo || hi > all_hi;
  if (all_lo >= all_hi) all_lo = all_hi = ATTN_TILE;
  for (int l = 0; differ && l < n_lines; l++) {
    int own_to = MIN(all_lo, to[line + l]);
    ak_values_of_one(t, acc + l * head_dim, head_dim, p[l], fade[l], v, from[line + l], own_to);
    fade[l] = 1;
  }
  ak_values(n_lines, t, acc, head_dim, (const float(*)[ATTN_TILE])p, fade, v, all_lo, all_hi, ahead);
  for (int l = 0; differ && l < n_lines; l++) {
    int own_from = MAX(all_hi, from[line + l]);
    if (own_from < to[line + l]) ak_values_of_one(t, acc + l * head_dim, head_dim, p[l], 1, v, own_from, to[line + l]);
  }
}

static ALWAYS_INLINE void ak_tile_of(enum dtype t, const struct attn_lines *s, const int *from, const int *to, const void *const *k,
                                     const void *const *v, const struct attn_ahead *ahead) {
  for (int line = 0; line < s->n;) {
    int n = 0; /* neighbours that see something */
    while (n < 4 && line + n < s->n && from[line + n] < to[line + n]) n++;
    if (n == 4) {
      ak_group(4, t, s, line, from, to, k, v, ahead);
    } else if (n >= 2) {
      ak_group(2, t, s, line, from, to, k, v, ahead);
      n = 2;
    } else if (n == 1) {
      ak_group(1, t, s, line, from, to, k, v, ahead);
    }
    if (n > 0) ahead = NULL; /* once is enough */
    line += MAX(n, 1);
  }
}

static void ak_tile(const struct attn_lines *s, const int *from, const int *to, enum dtype t, const void *const *k, const void *const *v,
                    const struct attn_ahead *ahead) {
  switch (t) {
  case DTYPE_BF16: ak_tile_of(DTYPE_BF16, s, from, to, k, v, ahead); break;
  case DTYPE_F16: ak_tile_of(DTYPE_F16, s, from, to, k, v, ahead); break;
  case DTYPE_Q8_0: ak_tile_of(DTYPE_Q8_0, s, from, to, k, v, ahead); break;
  default: ak_tile_of(DTYPE_F32, s, from, to, k, v, ahead); break;
  }
}

static void ak_merge(float *max, float *sum, float *acc, float seg_max, float seg_sum, const float *seg_acc, int n) {
  float top = MAX(*max, seg_max);
  vec a = vec_exp(vec_set1(*max - top)), b = vec_exp(vec_set1(seg_max - top));
  float a1[VEC], b1[VEC];
  vec_store(a1, a);
  vec_store(b1, b);
  for (int i = 0; i < n; i += VEC) vec_store(acc + i, vec_fma(vec_load(seg_acc + i), b, vec_mul(vec_load(acc + i), a)));
  *sum = *sum * a1[0] + seg_sum * b1[0];
  *max = top;
}

static void ak_finish(float *out, const float *acc, float sum, int n) {
  vec d = vec_set1(sum), zero = vec_zero(); /* which makes -0 to 0: a sum that a key was added to with the weight 0 is never -0 */
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(out + i, vec_add(vec_div(vec_load(acc + i), d), zero));
  if (i < n) vec_store_n(out + i, vec_add(vec_div(vec_load_n(acc + i, n - i, 0), d), zero), n - i);
}

static void ak_load_q(float *q, const float *src, float scale, int n) {
  vec s = vec_set1(scale);
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(q + i, vec_mul(vec_load(src + i), s));
  if (i < n) vec_store_n(q + i, vec_mul(vec_load_n(src + i, n - i, 0), s), n - i);
}

static void ak_expand(float *out, const void *row, enum dtype t, int n) {
  switch (t) {
  case DTYPE_BF16:
    for (int i = 0; i < n; i += VEC) vec_store(out + i, ak_load(DTYPE_BF16, row, i));
    break;
  case DTYPE_F16:
    for (int i = 0; i < n; i += VEC) vec_store(out + i, ak_load(DTYPE_F16, row, i));
    break;
  case DTYPE_Q8_0:
    for (int i = 0; i < n; i += VEC) vec_store(out + i, ak_load(DTYPE_Q8_0, row, i));
    break;
  default: memcpy(out, row, sizeof(float) * (size_t)n);
  }
}

static void ak_store_bf16(uint16_t *restrict row, const float *restrict src, int n) {
  for (int i = 0; i < n; i++) {
    uint32_t u;
    memcpy(&u, src + i, 4);
    uint32_t nan = u >> 16 | 0x40, number = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    row[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : number);
  }
}

static void ak_store_f16(uint16_t *row, const float *src, int n) {
  for (int i = 0; i < n; i += 8) {
    int m = MIN(n - i, 8);
    float x[8] = {0};
    uint16_t h[8];
    memcpy(x, src + i, sizeof(float) * (size_t)m);
    _mm_storeu_si128((__m128i *)h, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
    memcpy(row + i, h, sizeof(uint16_t) * (size_t)m);
  }
}

static void ak_store(void *row, const float *src, enum dtype t, int n) {
  if (t == DTYPE_F32) memcpy(row, src, sizeof(float) * (size_t)n);
  else if (t == DTYPE_BF16) ak_store_bf16(row, src, n);
  else if (t == DTYPE_F16) ak_store_f16(row, src, n);
  else dtype_from_f32(t, src, row, (size_t)n);
}
