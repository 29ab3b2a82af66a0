/* kern.h — the table of hot kernels of one instruction set, chosen once at start.
 *
 * kern_ref.c is plain C and readable; kern_avx2.c and kern_avx512.c fill the same table. Every kernel works on one row (or a
 * fixed small group) in a fixed order of operations, so that a row's bits depend on that row alone. Levels may differ from each other in the last bits.
 * x, y: float32, any alignment unless said. Lengths need not be multiples of anything.
 */
#ifndef CYGNET_KERN_H
#define CYGNET_KERN_H

#include "base/dtype.h"

enum isa { ISA_AUTO, ISA_REF, ISA_AVX2, ISA_AVX512 };
enum { PEAK_BLOCK = 64 }; /* numbers of a row that share a peak */
enum act { ACT_GELU_TANH, ACT_SILU, ACT_SIGMOID, ACT_GELU_ERF, ACT_RELU, ACT_NONE };

struct gemm_kern;      /* gemm_kern.h */
struct attn_kern;      /* attn_kern.h */
struct attend_kern;    /* attend.h */
struct shortlist_kern; /* shortlist.h */

struct kern {
  enum isa isa;
  const char *name; /* of the variant: "ref", "avx2", "avx2+vnni", "avx512", "avx512+bf16", "avx512+amx" */
  const struct gemm_kern *gemm;
  const struct attn_kern *attn;
  const struct attend_kern *attend;
  const struct shortlist_kern *shortlist; /* NULL: there is none */

  /* y = x / sqrt(mean(x²) + eps) ⊙ w; w NULL = 1. y may be x. */
  void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);
  /* y += x / sqrt(mean(x²) + eps) ⊙ w */
  void (*add_rmsnorm)(float *y, const float *x, const float *w, int n, float eps);
  /* y = (x - mean) / sqrt(variance + eps) ⊙ w + b; w, b NULL = 1, 0. y may be x. */
  void (*layernorm)(float *y, const float *x, const float *w, const float *b, int n, float eps);
  void (*add)(float *y, const float *x, int n);
  void (*add_scaled)(float *y, const float *x, float s, int n); /* y += s x */
  void (*scale)(float *y, const float *x, float s, int n);
  /* Activations: GELU_TANH x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))), GELU_ERF x/2 (1 + erf(x / sqrt 2)), SILU x / (1 + exp(-x)),
   * SIGMOID 1 / (1 + exp(-x)), RELU max(x, 0), NONE x. NaN stays NaN. */
  void (*gated)(float *y, const float *gate, const float *up, enum act act, int n); /* y = act(gate) ⊙ up; y may be gate */
  void (*bias_act)(float *y, const float *b, enum act act, int n);                  /* y = act(y + b); b NULL = 0 */
  void (*clamp)(float *y, const float *x, float least, float most, int n);          /* y may be x */
  /* Rotate-half over one head: (x[i], x[i+n/2]) by (cos[i], sin[i]), i < n/2; n even. */
  void (*rope)(float *x, const float *cos, const float *sin, int n);
  /* y = cap · tanh(x / cap) */
  void (*softcap)(float *y, const float *x, float cap, int n);
  /* Index of the greatest value, the lowest on ties; *has_nan set when a NaN or +Inf was met. */
  int (*argmax)(const float *x, int n, bool *bad);
  /* peaks[b] = the greatest number of block b of x, NaN where one of them is; the last block may be a short one. Of two zeros it may be either. */
  void (*peaks)(float *restrict peaks, const float *restrict x, int n);
};

/* What is asked for is a level; which variant of it runs depends on the processor:
 *
 *   level    variant       needs                                   for example
 *   ref      ref           nothing
 *   avx2     avx2          AVX2, FMA, F16C, BMI2                   Haswell; Zen 1 to 3; Skylake-X, whose AVX-512 has no VNNI
 *            avx2+vnni     and AVX-VNNI                            Alder Lake to Arrow Lake
 *   avx512   avx512        AVX-512 F, BW, DQ, VL, VNNI             Cascade Lake, Ice Lake, Tiger Lake
 *            avx512+bf16   and AVX512_BF16                         Cooper Lake, Zen 4, Zen 5
 *            avx512+amx    and AMX_TILE, AMX_INT8, AMX_BF16,       Sapphire Rapids, Emerald Rapids, Granite Rapids
 *                          AVX512_FP16, AVX512_VBMI
 *
 * and registers that the operating system saves; those of AMX it must be asked for. Variants of a level may differ in the last bits: avx512 and
 * avx512+bf16 only where weights, or keys and values, are bf16; avx512+amx everywhere, for it multiplies bf16 instead of 8-bit codes (gemm_tiles.h).
 * ISA_AUTO picks the last one that this machine has. NULL and a sentence when the machine lacks what was asked for. */
const struct kern *kern_select(enum isa isa, struct err *e);
bool kern_available(enum isa isa);

/* The i-th variant that can run here, or under emulation in builds with that; NULL after the last. */
const struct kern *kern_variant(int i);

/* The choice by itself, for any processor: what CPUID and XGETBV say, the features that follow, the variant. NULL: none of the level. */
struct cpu_words {
  unsigned leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, xcr0;
};
enum { CPU_AVX2 = 1, CPU_AVX_VNNI = 2, CPU_AVX512 = 4, CPU_AVX512_BF16 = 8, CPU_AMX = 16 };
unsigned kern_features(const struct cpu_words *w);
const struct kern *kern_choose(enum isa isa, unsigned features);

extern const struct kern kern_ref;
#if defined(__x86_64__)
extern const struct kern kern_avx2, kern_avxvnni;
extern const struct kern kern_avx512, kern_avx512bf16, kern_amx;
#endif

#endif
