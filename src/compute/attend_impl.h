/* attend_impl.h — the text of the encoders' attention kernels, compiled once for each width of vector.
 *
 * Included by attend_avx2.c and attend_avx512.c after vec_*.h. A head's panels:
 *
 *   keys     [key / PANEL][head_dim][PANEL]          PANEL = 2 vectors of keys, so that scores come out side by side
 *   values   pieces of 2 vectors of head_dim, the last of 1 or 3; each [key][piece]
 *
 * Keys behind the last one and numbers behind head_dim are zero. Both products are blocks of rows × vectors that fill the registers with
 * sums (AVX2: 6 × 2 and 4 × 3). Rows behind the block's last count as zeros, so that there is one body only; nothing of theirs is stored.
 */
#include <math.h>

#include "compute/attend.h"
#include "compute/vec_exp.h"

enum { ROWS_2 = VEC == 16 ? 12 : 6, ROWS_3 = VEC == 16 ? 8 : 4 };
enum {
  PANEL = 2 * VEC,
  ROWS_STEP = 2 * ROWS_2, /* both divide it, and it divides ATTEND_ROWS */
  SCORES = ATTEND_TILE + PANEL,
};

#define KERNEL __attribute__((noinline)) /* inlined into each other they would run out of registers */

/* The vectors of head_dim go in pieces of 2; 1 or 3 are left for the last. */
static ALWAYS_INLINE int piece_vecs(int vecs_left) { return vecs_left <= 3 ? vecs_left : 2; }
static ALWAYS_INLINE int vecs_of(int head_dim) { return div_up(head_dim, VEC); }

/* --- packing ------------------------------------------------------------------------------------------------------------- */

static const float *row_at(const float *first, size_t n_bytes, int i) {
  return (const float *)(const void *)((const char *)first + (size_t)i * n_bytes);
}

/* out[i * stride + j] = lane i of in[j], 8 x 8. */
static ALWAYS_INLINE void store_transposed(float *out, int stride, const __m256 in[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 4; i++) {
    a[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
    b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
    b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
    b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(b[i], b[4 + i], 0x20));
    _mm256_storeu_ps(out + (4 + i) * stride, _mm256_permute2f128_ps(b[i], b[4 + i], 0x31));
  }
}

/* n <= PANEL keys from `from` on, 8 x 8 numbers at a time. */
static void pack_keys(float *panel, const float *k, size_t k_bytes, int head_dim, int from, int n) {
  if (n < PANEL) memset(panel, 0, sizeof(float) * (size_t)(PANEL * head_dim));
  for (int i = 0; i < n; i += 8) {
    int d = 0;
    for (; d + 8 <= head_dim && i + 8 <= n; d += 8) {
      __m256 in[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) in[j] = _mm256_loadu_ps(row_at(k, k_bytes, from + i + j) + d);
      store_transposed(panel + d * PANEL + i, PANEL, in);
    }
    for (; d < head_dim; d++) {
      for (int j = i; j < MIN(i + 8, n); j++) panel[d * PANEL + j] = row_at(k, k_bytes, from + j)[d];
    }
  }
}

static void attend_pack(float *k_panels, float *v_panels, const float *k, size_t k_bytes, const float *v, size_t v_bytes, int head_dim,
                        int n_keys, int from, int to) {
  for (int j = from; j < to; j += PANEL) pack_keys(k_panels + (size_t)j * (size_t)head_dim, k, k_bytes, head_dim, j, MIN(PANEL, to - j));
  for (int left = vecs_of(head_dim), at = 0; left > 0;) {
    int n = piece_vecs(left), width = n * VEC, whole = MIN(n, (head_dim - at) / VEC);
    for (int j = from; j < to; j++) {
      const float *value = row_at(v, v_bytes, j) + at;
      float *out = v_panels + (size_t)at * (size_t)n_keys + (size_t)j * (size_t)width;
      for (int i = 0; i < whole; i++) vec_store(out + i * VEC, vec_load(value + i * VEC));
      if (whole < n) vec_store(out + whole * VEC, vec_load_n(value + whole * VEC, head_dim - at - whole * VEC, 0));
    }
    left -= n;
    at += width;
  }
}

/* --- a tile -------------------------------------------------------------------------------------------------------------- */

/* score[row][PANEL] = q · k, over head_dim upwards; q [head_dim][ROWS_2]. */
static KERNEL void scores_of(const float *restrict q, const float *restrict panel, int head_dim, float *restrict score) {
  vec sum[ROWS_2][2];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS_2; r++) sum[r][0] = sum[r][1] = vec_zero();
  for (int d = 0; d < head_dim; d++) {
    vec a = vec_load(panel + d * PANEL), b = vec_load(panel + d * PANEL + VEC);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS_2; r++) {
      vec x = vec_set1(q[d * ROWS_2 + r]);
      sum[r][0] = vec_fma(x, a, sum[r][0]);
      sum[r][1] = vec_fma(x, b, sum[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS_2; r++) {
    vec_store(score + r * SCORES, sum[r][0]);
    vec_store(score + r * SCORES + VEC, sum[r][1]);
  }
}

/* acc[row][n_vecs] = acc fade[row] + Σ_j p[row][j] v[j], j upwards. */
static ALWAYS_INLINE void values_by(const int n_rows, const int n_vecs, const float *restrict p, const float *restrict v, int n_keys,
                                    const float *restrict fade, float *restrict acc, int acc_stride) {
  vec sum[ROWS_2][3];
#pragma GCC unroll 12
  for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 3
    for (int i = 0; i < n_vecs; i++) sum[r][i] = vec_mul(vec_load(acc + r * acc_stride + i * VEC), vec_set1(fade[r]));
  }
  for (int j = 0; j < n_keys; j++, v += n_vecs * VEC) {
    vec value[3];
#pragma GCC unroll 3
    for (int i = 0; i < n_vecs; i++) value[i] = vec_load(v + i * VEC);
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
      vec x = vec_set1(p[r * SCORES + j]);
#pragma GCC unroll 3
      for (int i = 0; i < n_vecs; i++) sum[r][i] = vec_fma(x, value[i], sum[r][i]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 3
    for (int i = 0; i < n_vecs; i++) vec_store(acc + r * acc_stride + i * VEC, sum[r][i]);
  }
}

static KERNEL void values_of(int n_vecs, const float *restrict p, const float *restrict v, int n_keys, const float *restrict fade,
                             float *restrict acc, int acc_stride) {
  if (n_vecs == 2) values_by(ROWS_2, 2, p, v, n_keys, fade, acc, acc_stride);
  else if (n_vecs == 3) values_by(ROWS_3, 3, p, v, n_keys, fade, acc, acc_stride);
  else values_by(ROWS_2, 1, p, v, n_keys, fade, acc, acc_stride);
}

struct state {
  int n_rows, width; /* rows are rounded up to ROWS_STEP, width to vectors */
  float *q, *acc;    /* [n_rows / ROWS_2, head_dim, ROWS_2] with the scale in it, [n_rows, width] */
  float *score;      /* [n_rows, SCORES] */
  float *sum;        /* [n_rows, VEC]: lane i has every VEC-th key of each tile from i on */
  float *max, *fade; /* [ATTEND_ROWS] */
};

/* The greatest score so far of each row, and what its earlier sums are to be multiplied by. A NaN is passed over here. */
static KERNEL void greatest_of(const struct state *s, const float *restrict score, int n, int n_rows) {
  float before[ATTEND_ROWS];
  memcpy(before, s->max, sizeof before);
  for (int r = 0; r < n_rows; r++, score += SCORES) {
    vec top = vec_set1(s->max[r]);
    int i = 0;
    for (; i + VEC <= n; i += VEC) top = vec_max(vec_load(score + i), top);
    if (i < n) top = vec_max(vec_load_n(score + i, n - i, -INFINITY), top);
    s->max[r] = vec_largest(top);
  }
  for (int r = 0; r < n_rows; r += VEC) vec_store(s->fade + r, vec_exp(vec_sub(vec_load(before + r), vec_load(s->max + r))));
}

/* Scores to exp(score - greatest so far), in place. Rows one after the other hang together by nothing, so that many are under way at once. */
static KERNEL void softmax_of(const struct state *s, float *restrict score, int n, int n_rows) {
  for (int r = 0; r < n_rows; r++, score += SCORES) {
    vec top = vec_set1(s->max[r]), total = vec_mul(vec_load(s->sum + r * VEC), vec_set1(s->fade[r]));
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
      vec p = vec_exp(vec_sub(vec_load(score + i), top));
      vec_store(score + i, p);
      total = vec_add(total, p);
    }
    if (i < n) {
      vec p = vec_exp(vec_sub(vec_load_n(score + i, n - i, -INFINITY), top));
      vec_store_n(score + i, p, n - i);
      total = vec_add(total, vec_keep_range(p, 0, n - i, 0));
    }
    vec_store(s->sum + r * VEC, total);
  }
}

/* The part-th of n parts of what is read next, towards the caches: panels of a head lie farther away, and runs in them are too short to be guessed. */
static ALWAYS_INLINE void fetch(const float *next, int n_floats, int part, int n) {
  int each = div_up(n_floats, 16 * n) * 16, end = MIN((part + 1) * each, n_floats);
  for (int i = part * each; i < end; i += 16) _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
}

static void tile_of(const struct attend_block *b, const struct state *s, int from, int to) {
  const int first = from / PANEL * PANEL, panel_floats = b->head_dim * PANEL, n_keys = to - from;
  const float *v = b->v + (size_t)from * (size_t)(piece_vecs(s->width / VEC) * VEC);
  for (int j = first; j < to; j += PANEL) {
    const float *panel = b->k + (size_t)j * (size_t)b->head_dim;
    const bool last = j + PANEL >= to;
    for (int r = 0; r < s->n_rows; r += ROWS_2) {
      fetch(last ? v : panel + panel_floats, last ? n_keys * piece_vecs(s->width / VEC) * VEC : panel_floats, r / ROWS_2,
            s->n_rows / ROWS_2);
      scores_of(s->q + r * b->head_dim, panel, b->head_dim, s->score + r * SCORES + (j - first));
    }
  }
  float *score = s->score + (from - first);
  greatest_of(s, score, n_keys, b->n_rows);
  softmax_of(s, score, n_keys, b->n_rows);
  for (int left = s->width / VEC, at = 0; left > 0;) {
    const int n = piece_vecs(left), step = n == 3 ? ROWS_3 : ROWS_2, n_next = piece_vecs(left - n);
    const float *next = b->v + (size_t)(at + n * VEC) * (size_t)b->n_keys + (size_t)from * (size_t)(n_next * VEC);
    int next_floats = n_keys * n_next * VEC;
    if (left == n) next = b->k + (size_t)(to / PANEL * PANEL) * (size_t)b->head_dim, next_floats = to < b->hi ? panel_floats : 0;
    for (int r = 0; r < s->n_rows; r += step) {
      fetch(next, next_floats, r / step, s->n_rows / step);
      values_of(n, score + r * SCORES, v, n_keys, s->fade + r, s->acc + r * s->width + at, s->width);
    }
    v = next;
    left -= n;
    at += n * VEC;
  }
}

static void attend_block(const struct attend_block *b) {
  struct state s = {.n_rows = div_up(b->n_rows, ROWS_STEP) * ROWS_STEP, .width = vecs_of(b->head_dim) * VEC};
  float *at = b->scratch;
  s.score = at, at += s.n_rows * SCORES;
  s.acc = at, at += s.n_rows * s.width;
  s.q = at, at += s.n_rows * b->head_dim;
  s.sum = at, at += s.n_rows * VEC;
  s.max = at, at += ATTEND_ROWS;
  s.fade = at;
  memset(s.acc, 0, sizeof(float) * (size_t)(s.n_rows * s.width));
  memset(s.sum, 0, sizeof(float) * (size_t)(s.n_rows * VEC));
  for (int r = 0; r < ATTEND_ROWS; r++) s.max[r] = -INFINITY, s.fade[r] = 0;
  memset(s.q, 0, sizeof(float) * (size_t)(s.n_rows * b->head_dim));
  for (int r = 0; r < b->n_rows; r++) {
    const float *q = row_at(b->q, b->q_bytes, r);
    float *to = s.q + r / ROWS_2 * ROWS_2 * b->head_dim + r % ROWS_2;
    for (int d = 0; d < b->head_dim; d++) to[d * ROWS_2] = q[d] * b->scale;
  }
  for (int from = b->lo; from < b->hi; from += ATTEND_TILE) tile_of(b, &s, from, MIN(from + ATTEND_TILE, b->hi));
  for (int r = 0; r < b->n_rows; r++) {
    float *out = (float *)(void *)((char *)b->out + (size_t)r * b->out_bytes);
    const float *acc = s.acc + r * s.width;
    vec sum = vec_set1(vec_sum(vec_load(s.sum + r * VEC)));
    int i = 0;
    for (; i + VEC <= b->head_dim; i += VEC) vec_store(out + i, vec_div(vec_load(acc + i), sum));
    if (i < b->head_dim) vec_store_n(out + i, vec_div(vec_load(acc + i), sum), b->head_dim - i);
  }
}
