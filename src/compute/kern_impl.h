/* kern_impl.h — the text of the elementwise kernels, compiled once for each width of vector.
 *
 * Included by kern_avx2.c and kern_avx512.c after vec_*.h. An element's bits depend on that element alone, whatever lane or tail it falls
 * into: tails use the same operations under a mask. Sums run over 4 vectors of partial sums in an order given by n alone.
 */
#include <float.h>
#include <math.h>

#include "compute/kern.h"
#include "compute/vec_exp.h"

/* Σ x and Σ (x - mean)² in 4 * VEC lanes. */
static float kern_sum(const float *x, int n) {
  vec s[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
  int i = 0;
  for (; i + 4 * VEC <= n; i += 4 * VEC) {
    for (int u = 0; u < 4; u++) s[u] = vec_add(s[u], vec_load(x + i + u * VEC));
  }
  for (int u = 0; i < n; i += VEC, u++) s[u] = vec_add(s[u], vec_load_n(x + i, MIN(n - i, VEC), 0));
  return vec_sum(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
}

static float kern_sum_squares(const float *x, int n, float mean) {
  vec s[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()}, m = vec_set1(mean);
  int i = 0;
  for (; i + 4 * VEC <= n; i += 4 * VEC) {
    for (int u = 0; u < 4; u++) {
      vec a = vec_sub(vec_load(x + i + u * VEC), m);
      s[u] = vec_fma(a, a, s[u]);
    }
  }
  for (int u = 0; i < n; i += VEC, u++) {
    vec a = vec_sub(vec_load_n(x + i, MIN(n - i, VEC), mean), m);
    s[u] = vec_fma(a, a, s[u]);
  }
  return vec_sum(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
}

static float kern_norm_factor(const float *x, int n, float eps) { return 1.0f / sqrtf(kern_sum_squares(x, n, 0) / (float)n + eps); }

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

/* Mean first, then the squares of what is left: nothing cancels where the mean is large. */
static void kern_layernorm(float *y, const float *x, const float *w, const float *b, int n, float eps) {
  float mean = kern_sum(x, n) / (float)n;
  vec m = vec_set1(mean), f = vec_set1(1.0f / sqrtf(kern_sum_squares(x, n, mean) / (float)n + eps));
  for (int i = 0; i < n; i += VEC) {
    int part = MIN(n - i, VEC);
    bool whole = part == VEC;
    vec a = vec_mul(vec_sub(whole ? vec_load(x + i) : vec_load_n(x + i, part, 0), m), f);
    if (w) a = vec_mul(a, whole ? vec_load(w + i) : vec_load_n(w + i, part, 0));
    if (b) a = vec_add(a, whole ? vec_load(b + i) : vec_load_n(b + i, part, 0));
    if (whole) vec_store(y + i, a);
    else vec_store_n(y + i, a, part);
  }
}

static void kern_add(float *y, const float *x, int n) {
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_add(vec_load(y + i), vec_load(x + i)));
  if (i < n) vec_store_n(y + i, vec_add(vec_load_n(y + i, n - i, 0), vec_load_n(x + i, n - i, 0)), n - i);
}

static void kern_add_scaled(float *y, const float *x, float s, int n) {
  vec f = vec_set1(s);
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_fma(f, vec_load(x + i), vec_load(y + i)));
  if (i < n) vec_store_n(y + i, vec_fma(f, vec_load_n(x + i, n - i, 0), vec_load_n(y + i, n - i, 0)), n - i);
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
/* x Φ(x), where Φ(-a) = exp(-a²/2) Q(1 / (1 + 0.3 a)) for a >= 0, Q of degree 8 fitted to 6e-8 of it: the tail keeps its relative
 * accuracy. */
static ALWAYS_INLINE vec kern_gelu_erf(vec x) {
  static const float q[] = {0x1.e11edp-18f,  0x1.e96beap-4f, 0x1.f362cep-4f,  0x1.83d298p-4f, 0x1.23ea06p-3f,
                            -0x1.395ffcp-4f, 0x1.d44c44p-3f, -0x1.5a740ap-3f, 0x1.3a6558p-5f};
  vec a = vec_max(vec_sub(vec_zero(), x), x), t = vec_div(vec_set1(1), vec_fma(a, vec_set1(0.3f), vec_set1(1))), p = vec_set1(q[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; i--) p = vec_fma(p, t, vec_set1(q[i]));
  p = vec_mul(p, vec_exp(vec_mul(vec_mul(a, a), vec_set1(-0.5f))));
  return vec_sub(vec_max(vec_zero(), x), vec_mul(vec_min(vec_set1(20), a), p));
}

static ALWAYS_INLINE vec kern_act(enum act act, vec x) {
  switch (act) {
  case ACT_GELU_TANH: return kern_gelu(x);
  case ACT_SILU: return vec_div(x, vec_add(vec_set1(1), vec_exp(vec_sub(vec_zero(), x))));
  case ACT_SIGMOID: return vec_div(vec_set1(1), vec_add(vec_set1(1), vec_exp(vec_sub(vec_zero(), x))));
  case ACT_GELU_ERF: return kern_gelu_erf(x);
  case ACT_RELU: return vec_max(vec_zero(), x);
  case ACT_NONE: break;
  }
  return x;
}

/* f(act, ...) with act a constant. */
#define KERN_BY_ACT(act, f, ...)                                                                                                           \
  switch (act) {                                                                                                                           \
  case ACT_GELU_TANH: f(ACT_GELU_TANH, __VA_ARGS__); break;                                                                                \
  case ACT_SILU: f(ACT_SILU, __VA_ARGS__); break;                                                                                          \
  case ACT_SIGMOID: f(ACT_SIGMOID, __VA_ARGS__); break;                                                                                    \
  case ACT_GELU_ERF: f(ACT_GELU_ERF, __VA_ARGS__); break;                                                                                  \
  case ACT_RELU: f(ACT_RELU, __VA_ARGS__); break;                                                                                          \
  case ACT_NONE: f(ACT_NONE, __VA_ARGS__); break;                                                                                          \
  }

static ALWAYS_INLINE void kern_gated_by(enum act act, float *y, const float *gate, const float *up, int n) {
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_mul(kern_act(act, vec_load(gate + i)), vec_load(up + i)));
  if (i < n) vec_store_n(y + i, vec_mul(kern_act(act, vec_load_n(gate + i, n - i, 0)), vec_load_n(up + i, n - i, 0)), n - i);
}
static void kern_gated(float *y, const float *gate, const float *up, enum act act, int n) {
  KERN_BY_ACT(act, kern_gated_by, y, gate, up, n)
}

static ALWAYS_INLINE void kern_bias_act_by(enum act act, float *y, const float *b, int n) {
  int i = 0;
  for (; i + VEC <= n; i += VEC) {
    vec a = vec_load(y + i);
    vec_store(y + i, kern_act(act, b ? vec_add(a, vec_load(b + i)) : a));
  }
  if (i < n) {
    vec a = vec_load_n(y + i, n - i, 0);
    vec_store_n(y + i, kern_act(act, b ? vec_add(a, vec_load_n(b + i, n - i, 0)) : a), n - i);
  }
}
static void kern_bias_act(float *y, const float *b, enum act act, int n) { KERN_BY_ACT(act, kern_bias_act_by, y, b, n) }

static void kern_clamp(float *y, const float *x, float least, float most, int n) {
  vec lo = vec_set1(least), hi = vec_set1(most);
  int i = 0;
  for (; i + VEC <= n; i += VEC) vec_store(y + i, vec_min(hi, vec_max(lo, vec_load(x + i))));
  if (i < n) vec_store_n(y + i, vec_min(hi, vec_max(lo, vec_load_n(x + i, n - i, 0))), n - i);
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

static ALWAYS_INLINE float kern_peak(const float *x, int n) {
  vec top = vec_set1(-INFINITY), inf = vec_set1(INFINITY);
  unsigned strange = 0;
  for (int i = 0; i < n; i += VEC) {
    vec a = n - i < VEC ? vec_load_n(x + i, n - i, -INFINITY) : vec_load(x + i);
    strange |= vec_not_below_bits(a, inf);
    top = vec_max(a, top);
  }
  for (int i = 0; strange && i < n; i++)
    if (isnan(x[i])) return x[i];
  return vec_largest(top);
}

static void kern_peaks(float *restrict peaks, const float *restrict x, int n) {
  enum { AHEAD = 16 * PEAK_BLOCK, LINE_FLOATS = 16 }; /* a row may come from memory, which by itself is not read as fast as it can be */
  int i = 0;
  for (; i + PEAK_BLOCK <= n; i += PEAK_BLOCK) {
    for (int k = 0; k < PEAK_BLOCK && i + AHEAD < n; k += LINE_FLOATS) __builtin_prefetch(x + i + AHEAD + k);
    peaks[i / PEAK_BLOCK] = kern_peak(x + i, PEAK_BLOCK);
  }
  if (i < n) peaks[i / PEAK_BLOCK] = kern_peak(x + i, n - i);
}
