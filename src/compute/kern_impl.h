/* kern_impl.h — the text of the elementwise kernels, compiled once for each width of vector.
 *
 * Included by kern_avx2.c and kern_avx512.c after vec_*.h. An element's bits depend on that element alone, whatever lane or tail it falls
 * into: tails use the same operations under a mask. Sums run over 4 vectors of partial sums in an order given by n alone.
 */
#include <float.h>
#include <math.h>

#include "compute/kern.h"
#include "compute/vec_exp.h"

/* Σ x² in 4 * VEC lanes. */
static float kern_sum_squares(const float *x, int n) {
  vec s[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
  int i = 0;
  for (; i + 4 * VEC <= n; i += 4 * VEC) {
    for (int u = 0; u < 4; u++) {
      vec a = vec_load(x + i + u * VEC);
      s[u] = vec_fma(a, a, s[u]);
    }
  }
  for (int u = 0; i < n; i += VEC, u++) {
    vec a = vec_load_n(x + i, MIN(n - i, VEC), 0);
    s[u] = vec_fma(a, a, s[u]);
  }
  return vec_sum(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
}

static float kern_norm_factor(const float *x, int n, float eps) { return 1.0f / sqrtf(kern_sum_squares(x, n) / (float)n + eps); }

static void kern_rmsnorm(float *y, const float *x, const float *w, int n, float eps) {
  vec f = vec_set1(kern_norm_factor(x, n, eps));
  int i = 0;
  if (w) {
    for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_mul(vec_mul(vec_load(x + i), f), vec_load(w + i)));
    if (i < n) vec_store_n(y + i, vec_mul(vec_mul(vec_load_n(x + i, n - i, 0), f), vec_load_n(w + i, n - i, 0)), n - i);
  } else {
    for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_mul(vec_load(x + i), f));
    if (i < n) vec_store_n(y + i, vec_mul(vec_load_n(x + i, n - i, 0), f), n - i);
  }
}

static void kern_add_rmsnorm(float *y, const float *x, const float *w, int n, float eps) {
  vec f = vec_set1(kern_norm_factor(x, n, eps)), one = vec_set1(1);
  for (int i = 0; i < n; i += VEC) {
    int m = MIN(n - i, VEC);
    if (m == VEC) {
      vec_store(y + i, vec_fma(vec_mul(vec_load(x + i), f), w ? vec_load(w + i) : one, vec_load(y + i)));
    } else {
      vec b = w ? vec_load_n(w + i, m, 0) : one;
      vec_store_n(y + i, vec_fma(vec_mul(vec_load_n(x + i, m, 0), f), b, vec_load_n(y + i, m, 0)), m);
    }
  }
}

static void kern_add(float *y, const float *x, int n) {
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_add(vec_load(y + i), vec_load(x + i)));
  if (i < n) vec_store_n(y + i, vec_add(vec_load_n(y + i, n - i, 0), vec_load_n(x + i, n - i, 0)), n - i);
}

static void kern_scale(float *y, const float *x, float s, int n) {
  vec f = vec_set1(s);
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_mul(vec_load(x + i), f));
  if (i < n) vec_store_n(y + i, vec_mul(vec_load_n(x + i, n - i, 0), f), n - i);
}

/* x/2 (1 + tanh u) = x / (1 + exp(-2u)), which loses nothing where tanh u is near -1. */
static ALWAYS_INLINE vec kern_gelu(vec x) {
  const float minus_2_sqrt_2_over_pi = -1.5957691216057308f;
  vec t = vec_fma(vec_mul(vec_mul(x, x), x), vec_set1(0.044715f), x);
  return vec_div(x, vec_add(vec_set1(1), vec_exp(vec_mul(t, vec_set1(minus_2_sqrt_2_over_pi)))));
}
static ALWAYS_INLINE vec kern_silu(vec x) { return vec_div(x, vec_add(vec_set1(1), vec_exp(vec_sub(vec_zero(), x)))); }

static ALWAYS_INLINE void kern_gated_by(float *y, const float *gate, const float *up, int n, bool gelu) {
  int i = 0;
  for (; i + VEC <= n; i += VEC) {
    vec g = vec_load(gate + i);
    vec_store(y + i, vec_mul(gelu ? kern_gelu(g) : kern_silu(g), vec_load(up + i)));
  }
  if (i < n) {
    vec g = vec_load_n(gate + i, n - i, 0);
    vec_store_n(y + i, vec_mul(gelu ? kern_gelu(g) : kern_silu(g), vec_load_n(up + i, n - i, 0)), n - i);
  }
}
static void kern_gated(float *y, const float *gate, const float *up, enum act act, int n) {
  if (act == ACT_GELU_TANH) kern_gated_by(y, gate, up, n, true);
  else kern_gated_by(y, gate, up, n, false);
}

static void kern_rope(float *x, const float *cos, const float *sin, int n) {
  int half = n / 2;
  float *lo = x, *hi = x + half;
  int i = 0;
  for (; i + VEC <= half; i += VEC) {
    vec a = vec_load(lo + i), b = vec_load(hi + i), c = vec_load(cos + i), s = vec_load(sin + i);
    vec_store(lo + i, vec_fnma(b, s, vec_mul(a, c)));
    vec_store(hi + i, vec_fma(a, s, vec_mul(b, c)));
  }
  if (i < half) {
    int m = half - i;
    vec a = vec_load_n(lo + i, m, 0), b = vec_load_n(hi + i, m, 0), c = vec_load_n(cos + i, m, 0), s = vec_load_n(sin + i, m, 0);
    vec_store_n(lo + i, vec_fnma(b, s, vec_mul(a, c)), m);
    vec_store_n(hi + i, vec_fma(a, s, vec_mul(b, c)), m);
  }
}

static void kern_softcap(float *y, const float *x, float cap, int n) {
  vec c = vec_set1(cap);
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_mul(c, vec_tanh(vec_div(vec_load(x + i), c))));
  if (i < n) vec_store_n(y + i, vec_mul(c, vec_tanh(vec_div(vec_load_n(x + i, n - i, 0), c))), n - i);
}

/* First the greatest value, then where it stands first. NaNs never win: vec_max(x, best) gives best for them. */
static int kern_argmax(const float *x, int n, bool *bad) {
  vec best = vec_set1(-INFINITY), inf = vec_set1(INFINITY);
  unsigned strange = 0;
  int i = 0;
  for (; i + VEC <= n; i += VEC) {
    vec a = vec_load(x + i);
    strange |= vec_not_below_bits(a, inf);
    best = vec_max(a, best);
  }
  if (i < n) {
    vec a = vec_load_n(x + i, n - i, -INFINITY);
    strange |= vec_not_below_bits(a, inf);
    best = vec_max(a, best);
  }
  *bad = strange != 0;
  vec top = vec_set1(vec_largest(best));
  for (i = 0; i + VEC <= n; i += VEC) {
    unsigned hit = vec_eq_bits(vec_load(x + i), top);
    if (hit) return i + __builtin_ctz(hit);
  }
  unsigned hit = i < n ? vec_eq_bits(vec_load_n(x + i, n - i, NAN), top) : 0;
  return hit ? i + __builtin_ctz(hit) : 0;
}
