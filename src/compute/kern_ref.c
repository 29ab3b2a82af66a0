/* kern_ref.c — the elementwise kernels in plain C: the definition that the other levels are tested against, and what runs everywhere. */
#include <math.h>

#include "compute/attend.h"
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

static void ref_layernorm(float *y, const float *x, const float *w, const float *b, int n, float eps) {
  double sum = 0, squares = 0;
  for (int i = 0; i < n; i++) sum += (double)x[i];
  double mean = sum / n;
  for (int i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
  double f = 1.0 / sqrt(squares / n + (double)eps);
  for (int i = 0; i < n; i++) y[i] = (float)(((double)x[i] - mean) * f * (w ? (double)w[i] : 1) + (b ? (double)b[i] : 0));
}

static void ref_add(float *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] += x[i];
}

static void ref_add_scaled(float *y, const float *x, float s, int n) {
  for (int i = 0; i < n; i++) y[i] += s * x[i];
}

static void ref_scale(float *y, const float *x, float s, int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] * s;
}

static float ref_gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }
static float ref_act(enum act act, float x) {
  switch (act) {
  case ACT_GELU_TANH: return ref_gelu(x);
  case ACT_SILU: return x / (1.0f + expf(-x));
  case ACT_SIGMOID: return 1.0f / (1.0f + expf(-x));
  case ACT_GELU_ERF: return 0.5f * x * erfcf(-0.70710678118654752f * x);
  case ACT_RELU: return x <= 0 ? 0 : x;
  case ACT_NONE: break;
  }
  return x;
}

static void ref_gated(float *y, const float *gate, const float *up, enum act act, int n) {
  for (int i = 0; i < n; i++) y[i] = ref_act(act, gate[i]) * up[i];
}

static void ref_bias_act(float *y, const float *b, enum act act, int n) {
  for (int i = 0; i < n; i++) y[i] = ref_act(act, b ? y[i] + b[i] : y[i]);
}

static void ref_clamp(float *y, const float *x, float least, float most, int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] < least ? least : x[i] > most ? most : x[i];
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

static void ref_peaks(float *restrict peaks, const float *restrict x, int n) {
  for (int i = 0; i < n; i++) {
    float *peak = &peaks[i / PEAK_BLOCK];
    if (i % PEAK_BLOCK == 0 || isnan(x[i]) || x[i] > *peak) *peak = x[i];
  }
}

const struct kern kern_ref = {
    .isa = ISA_REF,
    .name = "ref",
    .gemm = &gemm_ref,
    .attn = &attnk_ref,
    .attend = &attend_ref,
    .rmsnorm = ref_rmsnorm,
    .add_rmsnorm = ref_add_rmsnorm,
    .layernorm = ref_layernorm,
    .add = ref_add,
    .add_scaled = ref_add_scaled,
    .scale = ref_scale,
    .gated = ref_gated,
    .bias_act = ref_bias_act,
    .clamp = ref_clamp,
    .rope = ref_rope,
    .softcap = ref_softcap,
    .argmax = ref_argmax,
    .peaks = ref_peaks,
};
