/* kern_avx2.c — the elementwise kernels and the tables of the avx2 level. */
#if defined(__x86_64__)
#include "compute/vec_avx2.h"

#include "compute/kern_impl.h"

#include "compute/attend.h"
#include "compute/attn_kern.h"
#include "compute/gemm_kern.h"

/* The variants of the level differ in their products. */
#define KERN(isa_, name_, gemm_)                                                                                                           \
  {                                                                                                                                        \
    .isa = isa_, .name = name_, .gemm = gemm_, .attn = &attnk_avx2, .attend = &attend_avx2, .rmsnorm = kern_rmsnorm,                       \
    .add_rmsnorm = kern_add_rmsnorm, .layernorm = kern_layernorm, .add = kern_add, .add_scaled = kern_add_scaled, .scale = kern_scale,     \
    .gated = kern_gated, .bias_act = kern_bias_act, .clamp = kern_clamp, .rope = kern_rope, .softcap = kern_softcap,                       \
    .argmax = kern_argmax, .peaks = kern_peaks                                                                                             \
  }
const struct kern kern_avx2 = KERN(ISA_AVX2, "avx2", &gemm_avx2);
const struct kern kern_avxvnni = KERN(ISA_AVX2, "avx2+vnni", &gemm_avxvnni);
#else
typedef int kern_avx2_is_for_x86_64;
#endif
