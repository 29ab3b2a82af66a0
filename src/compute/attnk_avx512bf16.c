/* attnk_avx512bf16.c — attention over keys and values of bf16 with vdpbf16ps: struct attn_whole of attn_kern.h.
 *
 * vdpbf16ps multiplies 32 numbers of bf16 with 32 others, exactly, and adds each two products to a float32: twice what a multiply-add of float32 does,
 * and keys and values need no conversion. Queries and weights p = exp(score - max) are rounded to bf16 for it, so each is right to 2^-9 of itself. A query
 * comes from products of 8-bit activations, which are four times as coarse. p is rounded before it is summed: weights add up to 1.
 *
 *   scores   16 sums in registers, lines × keys: 4 × 4, 2 × 8, 1 × 16; lanes are dims, 32 at a time; the lanes of all 16 are added in one tree
 *   softmax  over all keys of the segment at once
 *   values   lines × vectors of dims in registers, over all keys of the segment, two keys at a time: those at even positions and their successors
 *
 * The order of every sum is the same for any number of lines; a key that a line does not see has the weight 0, which adds nothing. So two ways give the
 * same bits:
 *
 *   many   values of the segment are interleaved first; lines go over them in runs, whose scores stay near
 *   few    up to FEW_LINES lines, bound by memory: values are interleaved as they are multiplied
 */
#if defined(__x86_64__)
#include "compute/dot_bf16.h"

#include "compute/attnk_whole.h"

enum {
  RUN_LINES = 48,
  FEW_LINES = 8,
  SUMS = 16,
  SCORE_LINES = 4,
  VALUE_LINES = 8,
  CHUNK_BYTES = 16 << 10, /* of keys that all lines of a run go over together: half of a first-level cache */
  PAIRS = ATTN_SEGMENT / 2,
  PAIR_BYTES = 2 * 64, /* WHOLE_BLOCK dims of two values */
};
_Static_assert(RUN_LINES % VALUE_LINES == 0 && VALUE_LINES % SCORE_LINES == 0, "runs are whole");

struct dot_span { /* keys that any line of a register block sees; lo >= hi: none */
  int lo, hi;
};

struct dot_run { /* of lines; pointers are to its first */
  int n, head_dim;
  const float *q; /* of each line: head_dim numbers of bf16 */
  float *acc, *max, *sum;
  const int *from, *to;
  struct dot_span span[RUN_LINES / VALUE_LINES];
  _Alignas(64) float p[RUN_LINES][ATTN_SEGMENT]; /* scores; then of each line weights of bf16, side by side from its first byte on */
};

/* --- products of bf16 ----------------------------------------------------------------------------------------------------------- */

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE __m512i to_bf16(vec a, vec b) {
  float x[WHOLE_BLOCK];
  uint16_t y[WHOLE_BLOCK];
  vec_store(x, a);
  vec_store(x + VEC, b);
  for (int i = 0; i < WHOLE_BLOCK; i++) y[i] = f32_to_bf16(x[i]);
  return _mm512_loadu_si512(y);
}
/* Lane i is the sum of s[i], by the tree of the other version. */
static ALWAYS_INLINE vec sums_of(vec s[SUMS]) {
  float y[SUMS];
  for (int i = 0; i < SUMS; i++) {
    float x[VEC], quarter[4];
    vec_store(x, s[i]);
    for (int j = 0; j < 4; j++) quarter[j] = (x[4 * j] + x[4 * j + 2]) + (x[4 * j + 1] + x[4 * j + 3]);
    y[i] = (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
  }
  return vec_load(y);
}
#else
static ALWAYS_INLINE __m512i to_bf16(vec a, vec b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }
static ALWAYS_INLINE vec sums_of(vec s[SUMS]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) s[i] = vec_add(_mm512_unpacklo_ps(s[2 * i], s[2 * i + 1]), _mm512_unpackhi_ps(s[2 * i], s[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512d a = _mm512_castps_pd(s[2 * i]), b = _mm512_castps_pd(s[2 * i + 1]);
    s[i] = vec_add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
#pragma GCC unroll 3
  for (int n = 2; n >= 1; n--) { /* quarters 0 1, 2 3 of each; then those two */
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
      s[i] = vec_add(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x88), _mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xdd));
  }
  return s[0];
}
#endif

static ALWAYS_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

static void dot_load_q(float *q, const float *src, float scale, int n, int head_dim) {
  const vec s = vec_set1(scale);
  char *out = (char *)q;
  for (int i = 0; i < head_dim; i += WHOLE_BLOCK, out += 64) {
    const int a = MIN(MAX(n - i, 0), VEC), b = MIN(MAX(n - i - VEC, 0), VEC);
    _mm512_storeu_si512(out, to_bf16(vec_mul(vec_load_n(src + i, a, 0), s), vec_mul(vec_load_n(src + i + VEC, b, 0), s)));
  }
}

/* --- scores --------------------------------------------------------------------------------------------------------------------- */

/* p[line][j] = q · k[j] for SUMS / SCORE_LINES keys, or more where there are fewer lines. */
static ALWAYS_INLINE void scores_at(const int n_lines, const char *q, size_t line_bytes, const void *const *k, int head_dim, float *p) {
  const int n_keys = SUMS / (n_lines == 3 ? 4 : n_lines);
  vec sum[SUMS];
#pragma GCC unroll 16
  for (int i = 0; i < SUMS; i++) sum[i] = vec_zero();
  for (size_t i = 0; i < sizeof(uint16_t) * (size_t)head_dim; i += 64) {
    __m512i x[SCORE_LINES];
#pragma GCC unroll 4
    for (int l = 0; l < n_lines; l++) x[l] = load512(q + (size_t)l * line_bytes + i);
#pragma GCC unroll 16
    for (int u = 0; u < n_keys; u++) {
      const __m512i key = load512((const char *)k[u] + i);
#pragma GCC unroll 4
      for (int l = 0; l < n_lines; l++) sum[l * n_keys + u] = dot(sum[l * n_keys + u], x[l], key);
    }
  }
  float s[SUMS];
  vec_store(s, sums_of(sum));
#pragma GCC unroll 4
  for (int l = 0; l < n_lines; l++) memcpy(p + l * ATTN_SEGMENT, s + l * n_keys, sizeof(float) * (size_t)n_keys);
}

/* Keys from lo, a multiple of SUMS, to hi or a few more. Values are asked for meanwhile. */
static ALWAYS_INLINE void scores_by(const int n_lines, const char *q, size_t line_bytes, const void *const *k, int head_dim, int lo, int hi,
                                    float *p, struct whole_ahead *ahead) {
  const int n_keys = SUMS / (n_lines == 3 ? 4 : n_lines);
  for (int j = lo; j < hi; j += n_keys) {
    whole_ask(ahead, n_keys);
    scores_at(n_lines, q, line_bytes, k + j, head_dim, p + j);
  }
}

static KERNEL void scores_of(int n_lines, const char *q, size_t line_bytes, const void *const *k, int head_dim, int lo, int hi, float *p,
                             struct whole_ahead *ahead) {
  switch (n_lines) {
  case 1: scores_by(1, q, line_bytes, k, head_dim, lo, hi, p, ahead); break;
  case 2: scores_by(2, q, line_bytes, k, head_dim, lo, hi, p, ahead); break;
  case 3: scores_by(3, q, line_bytes, k, head_dim, lo, hi, p, ahead); break;
  default: scores_by(4, q, line_bytes, k, head_dim, lo, hi, p, ahead);
  }
}

static void dot_scores(struct dot_run *r, const void *const *k, struct whole_ahead *ahead) {
  const size_t line_bytes = sizeof(float) * (size_t)r->head_dim;
  const int n_keys = MAX(CHUNK_BYTES / (2 * r->head_dim) / SUMS * SUMS, SUMS);
  for (int at = 0; at < ATTN_SEGMENT; at += n_keys) {
    for (int l = 0; l < r->n; l += SCORE_LINES) {
      const struct dot_span *s = &r->span[l / VALUE_LINES];
      const int lo = MAX(at, s->lo / SUMS * SUMS), hi = MIN(at + n_keys, s->hi);
      if (lo < hi)
        scores_of(MIN(SCORE_LINES, r->n - l), (const char *)r->q + (size_t)l * line_bytes, line_bytes, k, r->head_dim, lo, hi, r->p[l],
                  ahead);
    }
  }
}

/* --- softmax ---------------------------------------------------------------------------------------------------------------------- */

/* Scores to p = exp(score - max) in bf16. n rows are asked for with each block of keys. */
static KERNEL void dot_softmax(struct dot_run *r, struct whole_ahead *ahead, int n) {
  const __m512i ones = _mm512_set1_epi32(0x3f803f80);
  for (int l = 0; l < r->n; l++) {
    const struct dot_span *s = &r->span[l / VALUE_LINES];
    const int lo = s->lo / WHOLE_BLOCK * WHOLE_BLOCK, hi = (s->hi + WHOLE_BLOCK - 1) / WHOLE_BLOCK * WHOLE_BLOCK;
    uint16_t *p = (uint16_t *)r->p[l];
    vec sum = vec_zero();
    r->max[l] = whole_greatest(r->p[l], lo, hi, r->from[l], r->to[l]);
    const vec top = vec_set1(r->max[l]);
    for (int j = lo; j < hi; j += WHOLE_BLOCK) {
      const __m512i e = to_bf16(vec_exp(vec_sub(vec_load(&r->p[l][j]), top)), vec_exp(vec_sub(vec_load(&r->p[l][j + VEC]), top)));
      _mm512_storeu_si512(p + j, e);
      sum = dot(sum, e, ones);
      whole_ask(ahead, n);
    }
    r->sum[l] = vec_sum(sum);
  }
}

/* --- values ----------------------------------------------------------------------------------------------------------------------- */

/* All values of a segment, interleaved: [head_dim / WHOLE_BLOCK][PAIRS][2 vectors]. */
static KERNEL void dot_pack_values(char *out, const void *const *v, int from, int to, int head_dim, struct whole_ahead *ahead, int n) {
  for (int j = from; j < to; j++) {
    const uint16_t *even = v[2 * j], *odd = v[2 * j + 1];
    char *at = out + j * PAIR_BYTES;
    whole_ask(ahead, n);
    for (int i = 0; i < head_dim; i += WHOLE_BLOCK, at += PAIRS * PAIR_BYTES) {
      __m512i x[2];
      whole_interleave(x, even + i, odd + i);
      _mm512_store_si512(at, x[0]);
      _mm512_store_si512(at + 64, x[1]);
    }
  }
}

/* acc[line] of WHOLE_BLOCK dims; packed: n_pairs pairs of them; p: of the first pair. */
static ALWAYS_INLINE void values_at(const int n_lines, const char *p, const char *packed, int n_pairs, float *acc, int head_dim) {
  vec sum[VALUE_LINES][2];
#pragma GCC unroll 8
  for (int l = 0; l < n_lines; l++) sum[l][0] = sum[l][1] = vec_zero();
  for (int j = 0; j < n_pairs; j++, packed += PAIR_BYTES, p += 4) {
    const __m512i a = load512(packed), b = load512(packed + 64);
#pragma GCC unroll 8
    for (int l = 0; l < n_lines; l++) {
      const __m512i x = pair(p + (size_t)l * sizeof(float) * ATTN_SEGMENT);
      sum[l][0] = dot(sum[l][0], x, a);
      sum[l][1] = dot(sum[l][1], x, b);
    }
  }
#pragma GCC unroll 8
  for (int l = 0; l < n_lines; l++) {
    vec_store(acc + (size_t)l * (size_t)head_dim, sum[l][0]);
    vec_store(acc + (size_t)l * (size_t)head_dim + VEC, sum[l][1]);
  }
}
static KERNEL void values_of(int n_lines, const char *p, const char *packed, int n_pairs, float *acc, int head_dim) {
  switch (n_lines) {
  case 1: values_at(1, p, packed, n_pairs, acc, head_dim); break;
  case 2: values_at(2, p, packed, n_pairs, acc, head_dim); break;
  case 3: values_at(3, p, packed, n_pairs, acc, head_dim); break;
  case 4: values_at(4, p, packed, n_pairs, acc, head_dim); break;
  case 5: values_at(5, p, packed, n_pairs, acc, head_dim); break;
  case 6: values_at(6, p, packed, n_pairs, acc, head_dim); break;
  case 7: values_at(7, p, packed, n_pairs, acc, head_dim); break;
  default: values_at(8, p, packed, n_pairs, acc, head_dim);
  }
}

static void dot_values(struct dot_run *r, const char *packed) {
  for (int i = 0; i < r->head_dim; i += WHOLE_BLOCK, packed += PAIRS * PAIR_BYTES) {
    for (int l = 0; l < r->n; l += VALUE_LINES) {
      const struct dot_span *s = &r->span[l / VALUE_LINES];
      const int from = s->lo / 2, to = (s->hi + 1) / 2;
      if (from < to)
        values_of(MIN(VALUE_LINES, r->n - l), (const char *)r->p[l] + 4 * from, packed + from * PAIR_BYTES, to - from,
                  r->acc + (size_t)l * (size_t)r->head_dim + i, r->head_dim);
    }
  }
}

/* n_blocks × WHOLE_BLOCK dims of the results of a few lines, from values as they lie, `at` bytes into each row. */
static ALWAYS_INLINE void few_values_at(const int n_lines, const int n_blocks, const char *p, const void *const *v, size_t at, int n_pairs,
                                        float *acc, int head_dim, struct whole_ahead *ahead, int each) {
  vec sum[SUMS];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * n_blocks * n_lines; i++) sum[i] = vec_zero();
  for (int j = 0; j < n_pairs; j++, p += 4) {
    const char *even = (const char *)v[2 * j] + at, *odd = (const char *)v[2 * j + 1] + at;
    __m512i x[SUMS / 2];
#pragma GCC unroll 4
    for (int i = 0; i < n_blocks; i++) whole_interleave(x + 2 * i, even + 64 * i, odd + 64 * i);
#pragma GCC unroll 8
    for (int l = 0; l < n_lines; l++) {
      const __m512i weight = pair(p + (size_t)l * sizeof(float) * ATTN_SEGMENT);
#pragma GCC unroll 8
      for (int i = 0; i < 2 * n_blocks; i++) sum[2 * n_blocks * l + i] = dot(sum[2 * n_blocks * l + i], weight, x[i]);
    }
    whole_ask(ahead, each);
  }
#pragma GCC unroll 8
  for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * n_blocks; i++) vec_store(acc + (size_t)l * (size_t)head_dim + i * VEC, sum[2 * n_blocks * l + i]);
  }
}

/* What few lines have in registers at once: as many vectors as there is room for. */
static int few_blocks(int n_lines) { return n_lines <= 2 ? 4 : n_lines <= 4 ? 2 : 1; }

static KERNEL void few_values_of(int n_lines, int n_blocks, const char *p, const void *const *v, size_t at, int n_pairs, float *acc,
                                 int head_dim, struct whole_ahead *ahead, int each) {
#define FEW(lines, blocks)                                                                                                                 \
  case 16 * (lines) + (blocks): few_values_at(lines, blocks, p, v, at, n_pairs, acc, head_dim, ahead, each); break
  switch (16 * n_lines + n_blocks) {
    FEW(1, 4);
    FEW(2, 4);
    FEW(3, 2);
    FEW(4, 2);
    FEW(1, 1);
    FEW(2, 1);
    FEW(3, 1);
    FEW(4, 1);
    FEW(5, 1);
    FEW(6, 1);
    FEW(7, 1);
    FEW(8, 1);
  }
#undef FEW
}

/* n rows are asked for on the way. */
static void dot_few_values(struct dot_run *r, const void *const *v, struct whole_ahead *ahead) {
  const int from = r->span[0].lo / 2, to = (r->span[0].hi + 1) / 2, most = few_blocks(r->n);
  for (int i = 0, n; i < r->head_dim; i += n * WHOLE_BLOCK) {
    n = i + most * WHOLE_BLOCK <= r->head_dim ? most : 1;
    few_values_of(r->n, n, (const char *)r->p[0] + 4 * from, v + 2 * from, sizeof(uint16_t) * (size_t)i, to - from, r->acc + i, r->head_dim,
                  ahead, div_up(ahead->n * n * WHOLE_BLOCK, (r->head_dim - i) * (to - from)));
  }
}

/* --- a segment -------------------------------------------------------------------------------------------------------------------- */

static size_t dot_scratch_bytes(int head_dim) { return (size_t)(head_dim / WHOLE_BLOCK) * PAIRS * PAIR_BYTES; }

/* A run of lines and what they see; false: nothing. */
static bool dot_run_of(struct dot_run *r, const struct attn_lines *s, const struct attn_seen *seen, int line) {
  const size_t at = (size_t)line * (size_t)s->head_dim;
  bool any = false;
  r->n = MIN(RUN_LINES, s->n - line), r->head_dim = s->head_dim;
  r->q = s->q + at, r->acc = s->acc + at, r->max = s->max + line, r->sum = s->sum + line;
  r->from = seen->from + line, r->to = seen->to + line;
  for (int g = 0; g * VALUE_LINES < r->n; g++) {
    struct dot_span span = {ATTN_SEGMENT, 0};
    for (int l = g * VALUE_LINES; l < MIN(r->n, (g + 1) * VALUE_LINES); l++) {
      if (r->from[l] < r->to[l]) span.lo = MIN(span.lo, r->from[l]), span.hi = MAX(span.hi, r->to[l]);
    }
    r->span[g] = span;
    any |= span.lo < span.hi;
  }
  return any;
}

static void dot_many(const struct attn_lines *s, const struct attn_seen *seen) {
  struct dot_run r;
  char *values = seen->scratch;
  struct whole_ahead none = {0}, own = whole_values(seen), next = whole_next_keys(seen);
  const int from = seen->lo / 2, to = (seen->hi + 1) / 2;
  whole_ask(&own, own.n);
  dot_pack_values(values, seen->v, from, to, s->head_dim, &next, div_up(next.n, to - from));
  for (int line = 0; line < s->n; line += RUN_LINES) {
    if (!dot_run_of(&r, s, seen, line)) continue;
    dot_scores(&r, seen->k, &none);
    dot_softmax(&r, &none, 0);
    dot_values(&r, values);
  }
}

static void dot_few(const struct attn_lines *s, const struct attn_seen *seen) {
  struct dot_run r;
  struct whole_ahead keys = whole_keys(seen), values = whole_values(seen), next = whole_next_keys(seen);
  if (!dot_run_of(&r, s, seen, 0)) return;
  if (!seen->asked) whole_ask(&keys, keys.n);
  dot_scores(&r, seen->k, &values);
  dot_softmax(&r, &next, 1);
  dot_few_values(&r, seen->v, &next);
}

static void dot_lines(const struct attn_lines *s, const struct attn_seen *seen) {
  if (s->n > FEW_LINES) dot_many(s, seen);
  else dot_few(s, seen);
}
static void dot_segment(const struct attn_lines *s, const struct attn_seen *seen) { whole_segment(s, seen, dot_lines); }

const struct attn_whole attnk_dot = {
    .head_dim_step = WHOLE_BLOCK,
    .lines_most = 96,
    .scratch_bytes = dot_scratch_bytes,
    .load_q = dot_load_q,
    .segment = dot_segment,
    .finish = whole_finish,
};
#else
typedef int attnk_avx512bf16_is_for_x86_64;
#endif
