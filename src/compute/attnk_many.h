/* attnk_many.h — the text of attention's kernel for many lines, compiled once for each width of vector; behind attnk_impl.h and ak_fold, which
 * gives a vector's 8 partial sums.
 *
 * A tile's keys and values were expanded to float32; lines go through it in runs of MANY_LINES, whose scores stay in the first-level cache:
 *
 *   scores   3 lines × 4 keys in registers, over a few keys that stay in the first-level cache, all lines of the run
 *   softmax  over several lines at once
 *   values   6 lines × 2 vectors of head_dim in registers, over the tile's keys; all lines of the run for each two vectors
 *
 * Every sum has the order that tile() has: a score that of vec_sum8, a value's from the first key to the last. Where lines of one register
 * block see different keys, some are added with the weight 0, which changes nothing but the sign of a zero (finish takes that away); only
 * where such a value is infinite or a NaN each line takes its own keys alone.
 */

enum {
  MANY_LINES = 48,
  MANY_SCORE_LINES = 3,
  MANY_SCORE_KEYS = 4,
  MANY_VALUE_LINES = 6,
  MANY_KEYS_FLOATS = 4096 /* of keys that all lines go over together: half of a first-level cache */
};

#define KERNEL __attribute__((noinline)) /* inlined into each other they would run out of registers */

struct many_span { /* keys that lines of a register block see: any of them, all of them (empty where they have nothing in common) */
  int lo, hi, all_lo, all_hi;
};

struct many_run { /* of lines; arrays begin at its first line */
  int n, head_dim;
  const float *q;
  float *acc, *max, *sum;
  const int *from, *to;
  const float *k, *v;
  size_t stride;
  struct many_span span[MANY_LINES / MANY_VALUE_LINES];
  float fade[MANY_LINES];
  _Alignas(64) float p[MANY_LINES][ATTN_TILE];
};

static struct many_span many_span_of(const struct many_run *r, int line, int n_lines) {
  struct many_span s = {ATTN_TILE, 0, 0, ATTN_TILE};
  for (int l = line; l < line + n_lines; l++) {
    s.all_lo = MAX(s.all_lo, r->from[l]), s.all_hi = MIN(s.all_hi, r->to[l]);
    if (r->from[l] >= r->to[l]) continue;
    s.lo = MIN(s.lo, r->from[l]), s.hi = MAX(s.hi, r->to[l]);
  }
  return s;
}

/* --- scores -------------------------------------------------------------------------------------------------------------- */

/* ((0+1)+(2+3)) + ((4+5)+(6+7)) of each of 4 vectors: vec_sum8's tree, with shuffles that are quicker than horizontal additions. */
static ALWAYS_INLINE __m256 many_pairs(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
static ALWAYS_INLINE __m128 many_sum4(const vec *a) {
  __m256 x = many_pairs(many_pairs(ak_fold(a[0]), ak_fold(a[1])), many_pairs(ak_fold(a[2]), ak_fold(a[3])));
  return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

/* p[line][j] = q · k_j for keys [from, to), a multiple of MANY_SCORE_KEYS of them. */
static ALWAYS_INLINE void many_scores_by(const int n_lines, const float *restrict q, const float *restrict k, size_t stride, int head_dim,
                                         int n_keys, float *restrict p) {
  for (int j = 0; j < n_keys; j += MANY_SCORE_KEYS, k += MANY_SCORE_KEYS * stride) {
    vec sum[MANY_SCORE_LINES][MANY_SCORE_KEYS];
#pragma GCC unroll 3
    for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 4
      for (int u = 0; u < MANY_SCORE_KEYS; u++) sum[l][u] = vec_zero();
    }
    for (int i = 0; i < head_dim; i += VEC) {
      vec x[MANY_SCORE_LINES];
#pragma GCC unroll 3
      for (int l = 0; l < n_lines; l++) x[l] = vec_load(q + l * head_dim + i);
#pragma GCC unroll 4
      for (int u = 0; u < MANY_SCORE_KEYS; u++) {
        vec key = vec_load(k + (size_t)u * stride + i);
#pragma GCC unroll 3
        for (int l = 0; l < n_lines; l++) sum[l][u] = vec_fma(x[l], key, sum[l][u]);
      }
    }
#pragma GCC unroll 3
    for (int l = 0; l < n_lines; l++) _mm_storeu_ps(p + l * ATTN_TILE + j, many_sum4(sum[l]));
  }
}

static KERNEL void many_scores_of(int n_lines, const float *q, const float *k, size_t stride, int head_dim, int n_keys, float *p) {
  if (n_lines == 3) many_scores_by(3, q, k, stride, head_dim, n_keys, p);
  else if (n_lines == 2) many_scores_by(2, q, k, stride, head_dim, n_keys, p);
  else many_scores_by(1, q, k, stride, head_dim, n_keys, p);
}

static void many_scores(struct many_run *r, const struct attn_ahead *ahead) {
  const int step = MAX(MIN(MANY_KEYS_FLOATS / r->head_dim, ATTN_TILE) & ~(MANY_SCORE_KEYS - 1), MANY_SCORE_KEYS);
  for (int at = 0; at < ATTN_TILE; at += step) {
    const int end = MIN(at + step, ATTN_TILE);
    if (ahead) ak_fetch(ahead->k, ahead->row_bytes, at, end);
    for (int l = 0; l < r->n; l += MANY_SCORE_LINES) {
      const int n = MIN(MANY_SCORE_LINES, r->n - l);
      struct many_span s = many_span_of(r, l, n);
      int lo = MAX(at, s.lo & ~(MANY_SCORE_KEYS - 1)), hi = MIN(end, s.hi);
      if (lo >= hi) continue;
      many_scores_of(n, r->q + l * r->head_dim, r->k + (size_t)lo * r->stride, r->stride, r->head_dim,
                     (hi - lo + MANY_SCORE_KEYS - 1) & ~(MANY_SCORE_KEYS - 1), &r->p[l][lo]);
    }
  }
}

/* --- softmax ------------------------------------------------------------------------------------------------------------- */

/* The greatest score so far of each line; scores that a line does not see become -INFINITY as far as its register block goes. */
static KERNEL void many_greatest(struct many_run *r) {
  _Static_assert(MANY_LINES % VEC == 0 && MANY_LINES % MANY_VALUE_LINES == 0, "runs are whole");
  float before[MANY_LINES] = {0}, after[MANY_LINES] = {0};
  for (int l = 0; l < r->n; l++) {
    const struct many_span *s = &r->span[l / MANY_VALUE_LINES];
    const int lo = s->lo / VEC * VEC, hi = (s->hi + VEC - 1) / VEC * VEC;
    vec top = vec_set1(-FLT_MAX);
    if (r->from[l] <= lo && r->to[l] >= hi) {
      for (int j = lo; j < hi; j += VEC) top = vec_max(vec_load(&r->p[l][j]), top);
    } else {
      for (int j = lo; j < hi; j += VEC) {
        vec seen = vec_keep_range(vec_load(&r->p[l][j]), r->from[l] - j, MAX(r->to[l], r->from[l]) - j, -INFINITY);
        vec_store(&r->p[l][j], seen);
        top = vec_max(seen, top);
      }
    }
    const float greatest = vec_largest(top);
    before[l] = r->max[l];
    r->max[l] = after[l] = MAX(r->max[l], greatest);
  }
  for (int l = 0; l < r->n; l += VEC) vec_store(r->fade + l, vec_exp(vec_sub(vec_load(before + l), vec_load(after + l))));
}

/* Scores to exp(score - greatest so far). Lines hang together by nothing, so that several are under way at once. */
static KERNEL void many_softmax(struct many_run *r) {
  for (int first = 0; first < r->n; first += 8) {
    const int n = MIN(8, r->n - first);
    vec total[8];
    for (int l = 0; l < 8; l++) total[l] = vec_zero();
    for (int l = first; l < first + n; l++) {
      const struct many_span *s = &r->span[l / MANY_VALUE_LINES];
      const vec top = vec_set1(r->max[l]);
      vec sum = vec_zero();
      for (int j = s->lo / VEC * VEC; j < s->hi; j += VEC) {
        vec e = vec_exp(vec_sub(vec_load(&r->p[l][j]), top));
        vec_store(&r->p[l][j], e);
        sum = vec_add(sum, e);
      }
      total[l - first] = sum;
    }
    ak_add_totals(n, total, r->fade + first, r->sum + first);
  }
}

/* --- values -------------------------------------------------------------------------------------------------------------- */

/* acc[line][n_vecs] = acc fade[line] + Σ_j p[line][j] v[j], j upwards. */
static ALWAYS_INLINE void many_values_by(const int n_lines, const int n_vecs, const float *restrict p, const float *restrict v,
                                         size_t stride, int n_keys, const float *restrict fade, float *restrict acc, int head_dim) {
  vec sum[MANY_VALUE_LINES][2];
#pragma GCC unroll 6
  for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 2
    for (int i = 0; i < n_vecs; i++) sum[l][i] = vec_mul(vec_load(acc + l * head_dim + i * VEC), vec_set1(fade[l]));
  }
  for (int j = 0; j < n_keys; j++, v += stride) {
    vec value[2];
#pragma GCC unroll 2
    for (int i = 0; i < n_vecs; i++) value[i] = vec_load(v + i * VEC);
#pragma GCC unroll 6
    for (int l = 0; l < n_lines; l++) {
      vec x = vec_set1(p[l * ATTN_TILE + j]);
#pragma GCC unroll 2
      for (int i = 0; i < n_vecs; i++) sum[l][i] = vec_fma(x, value[i], sum[l][i]);
    }
  }
#pragma GCC unroll 6
  for (int l = 0; l < n_lines; l++) {
#pragma GCC unroll 2
    for (int i = 0; i < n_vecs; i++) vec_store(acc + l * head_dim + i * VEC, sum[l][i]);
  }
}

static ALWAYS_INLINE void many_values_vecs(const int n_vecs, int n_lines, const float *p, const float *v, size_t stride, int n_keys,
                                           const float *fade, float *acc, int head_dim) {
  switch (n_lines) {
  case 6: many_values_by(6, n_vecs, p, v, stride, n_keys, fade, acc, head_dim); break;
  case 5: many_values_by(5, n_vecs, p, v, stride, n_keys, fade, acc, head_dim); break;
  case 4: many_values_by(4, n_vecs, p, v, stride, n_keys, fade, acc, head_dim); break;
  case 3: many_values_by(3, n_vecs, p, v, stride, n_keys, fade, acc, head_dim); break;
  case 2: many_values_by(2, n_vecs, p, v, stride, n_keys, fade, acc, head_dim); break;
  default: many_values_by(1, n_vecs, p, v, stride, n_keys, fade, acc, head_dim);
  }
}
static KERNEL void many_values_of(int n_vecs, int n_lines, const float *p, const float *v, size_t stride, int n_keys, const float *fade,
                                  float *acc, int head_dim) {
  if (n_vecs == 2) many_values_vecs(2, n_lines, p, v, stride, n_keys, fade, acc, head_dim);
  else many_values_vecs(1, n_lines, p, v, stride, n_keys, fade, acc, head_dim);
}

/* Whether values [from, to) are all finite. */
static bool many_finite(const struct many_run *r, int from, int to) {
  vec nothing = vec_zero(); /* 0 x is 0, or a NaN */
  for (int j = from; j < to; j++) {
    for (int i = 0; i < r->head_dim; i += VEC) nothing = vec_fma(vec_load(r->v + (size_t)j * r->stride + i), vec_zero(), nothing);
  }
  return vec_eq_bits(nothing, vec_zero()) == (1u << VEC) - 1;
}

/* Whether a register block may take all keys that any of its lines sees; else each line takes its own. */
static bool many_together(const struct many_run *r, const struct many_span *s) {
  if (s->lo == s->all_lo && s->hi == s->all_hi) return true;
  if (s->all_lo >= s->all_hi) return many_finite(r, s->lo, s->hi);
  return many_finite(r, s->lo, s->all_lo) && many_finite(r, s->all_hi, s->hi);
}

/* n_vecs vectors of head_dim from i on, for a register block of lines or one line of it. */
static ALWAYS_INLINE void many_values_at(struct many_run *r, int line, int n_lines, int from, int to, int i, int n_vecs) {
  many_values_of(n_vecs, n_lines, &r->p[line][from], r->v + (size_t)from * r->stride + i, r->stride, to - from, r->fade + line,
                 r->acc + line * r->head_dim + i, r->head_dim);
}

static void many_values(struct many_run *r, const struct attn_ahead *ahead) {
  bool together[MANY_LINES / MANY_VALUE_LINES];
  for (int g = 0; g * MANY_VALUE_LINES < r->n; g++) together[g] = many_together(r, &r->span[g]);
  for (int i = 0; i < r->head_dim; i += 2 * VEC) {
    const int n_vecs = MIN(2, (r->head_dim - i) / VEC), next = i + n_vecs * VEC;
    if (ahead) ak_fetch(ahead->v, ahead->row_bytes, ATTN_TILE * i / r->head_dim, ATTN_TILE * next / r->head_dim);
    for (int g = 0, line = 0; line < r->n; g++, line += MANY_VALUE_LINES) {
      const struct many_span *s = &r->span[g];
      const int n = MIN(MANY_VALUE_LINES, r->n - line);
      if (together[g] && s->lo < s->hi) many_values_at(r, line, n, s->lo, s->hi, i, n_vecs);
      for (int l = line; !together[g] && l < line + n; l++) {
        if (r->from[l] < r->to[l]) many_values_at(r, l, 1, r->from[l], r->to[l], i, n_vecs);
      }
    }
  }
}

static void ak_many(const struct attn_lines *s, const int *from, const int *to, const float *k, const float *v, size_t stride,
                    const struct attn_ahead *ahead) {
  struct many_run r;
  for (int line = 0; line < s->n; line += MANY_LINES) {
    const size_t at = (size_t)line * (size_t)s->head_dim;
    bool seen = false;
    r.n = MIN(MANY_LINES, s->n - line), r.head_dim = s->head_dim;
    r.q = s->q + at, r.acc = s->acc + at, r.max = s->max + line, r.sum = s->sum + line;
    r.from = from + line, r.to = to + line, r.k = k, r.v = v, r.stride = stride;
    for (int g = 0; g * MANY_VALUE_LINES < r.n; g++) {
      r.span[g] = many_span_of(&r, g * MANY_VALUE_LINES, MIN(MANY_VALUE_LINES, r.n - g * MANY_VALUE_LINES));
      seen |= r.span[g].lo < r.span[g].hi;
    }
    if (!seen) continue;
    many_scores(&r, ahead);
    many_greatest(&r);
    many_softmax(&r);
    many_values(&r, ahead);
    ahead = NULL; /* once is enough */
  }
}
