/* kern_avx512.c — the elementwise kernels and the tables of the avx512 level. */
#if defined(__x86_64__)
#include "compute/vec_avx512.h"

#include "compute/kern_impl.h"

#include "compute/attend.h"
#include "compute/attn_kern.h"
#include "compute/gemm_kern.h"
#include "compute/shortlist.h"

/* The variants of the level differ in their products, that with tiles in attention and the shortlist, too. */
#define KERN(isa_, name_, gemm_, attn_, shortlist_)                                                                                        \
  {                                                                                                                                        \
    .isa = isa_, .name = name_, .gemm = gemm_, .attn = attn_, .shortlist = shortlist_, .attend = &attend_avx512, .rmsnorm = kern_rmsnorm,  \
    .add_rmsnorm = kern_add_rmsnorm, .layernorm = kern_layernorm, .add = kern_add, .add_scaled = kern_add_scaled, .scale = kern_scale,     \
    .gated = kern_gated, .bias_act = kern_bias_act, .clamp = kern_clamp, .rope = kern_rope, .softcap = kern_softcap,                       \
    .argmax = kern_argmax, .peaks = kern_peaks                                                                                             \
  }
const struct kern kern_avx512 = KERN(ISA_AVX512, "avx512", &gemm_avx512, &attnk_avx512, NULL);
const struct kern kern_avx512bf16 = KERN(ISA_AVX512, "avx512+bf16", &gemm_avx512bf16, &attnk_avx512bf16, NULL);
const struct kern kern_amx = KERN(ISA_AVX512, "avx512+amx", &gemm_amx, &attnk_avx512amx, &shortlist_amx);
#else
typedef int kern_avx512_is_for_x86_64;
#endif
