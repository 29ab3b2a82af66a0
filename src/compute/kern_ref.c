/* kern_ref.c — the elementwise kernels in plain C: the definition that the other levels are tested against, and what runs everywhere. */
#include <math.h>

#include "compute/attn_kern.h"
#include "compute/gemm_kern.h"
#include "compute/kern.h"

static float ref_norm_factor(const float *x, int n, float eps) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return (float)(1.0 / sqrt(sum / n + (double)eps));
}

static void ref_rmsnorm(float *y, const float *x, const float *w, int n, float eps) {
  float f = ref_norm_factor(x, n, eps);
  for (int i = 0; i < n; i++) y[i] = w ? x[i] * f * w[i] : x[i] * f;
}

static void ref_add_rmsnorm(float *y, const float *x, const float *w, int n, float eps) {
  float f = ref_norm_factor(x, n, eps);
  for (int i = 0; i < n; i++) y[i] += w ? x[i] * f * w[i] : x[i] * f;
}

static void ref_add(float *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] += x[i];
}

static void ref_scale(float *y, const float *x, float s, int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] * s;
}

static float ref_gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }
static float ref_silu(float x) { return x / (1.0f + expf(-x)); }

static void ref_gated(float *y, const float *gate, const float *up, enum act act, int n) {
  for (int i = 0; i < n; i++) y[i] = (act == ACT_GELU_TANH ? ref_gelu(gate[i]) : ref_silu(gate[i])) * up[i];
}

static void ref_rope(float *x, const float *cos, const float *sin, int n) {
  int half = n / 2;
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

static void ref_softcap(float *y, const float *x, float cap, int n) {
  for (int i = 0; i < n; i++) y[i] = cap * tanhf(x[i] / cap);
}

static int ref_argmax(const float *x, int n, bool *bad) {
  int best = 0;
  *bad = false;
  for (int i = 0; i < n; i++) {
    if (!(x[i] < INFINITY)) *bad = true;
    if (x[i] > x[best] || isnan(x[best])) best = i;
  }
  return best;
}

const struct kern kern_ref = {
    .isa = ISA_REF,
    .name = "ref",
    .gemm = &gemm_ref,
    .attn = &attnk_ref,
    .rmsnorm = ref_rmsnorm,
    .add_rmsnorm = ref_add_rmsnorm,
    .add = ref_add,
    .scale = ref_scale,
    .gated = ref_gated,
    .rope = ref_rope,
    .softcap = ref_softcap,
    .argmax = ref_argmax,
};
