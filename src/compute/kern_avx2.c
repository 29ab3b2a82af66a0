/* kern_avx2.c — the elementwise kernels and the table of the avx2 level. */
#if defined(__x86_64__)
#include "compute/vec_avx2.h"

#include "compute/kern_impl.h"

#include "compute/attn_kern.h"
#include "compute/gemm_kern.h"

const struct kern kern_avx2 = {
    .isa = ISA_AVX2,
    .name = "avx2",
    .gemm = &gemm_avx2,
    .attn = &attnk_avx2,
    .rmsnorm = kern_rmsnorm,
    .add_rmsnorm = kern_add_rmsnorm,
    .add = kern_add,
    .scale = kern_scale,
    .gated = kern_gated,
    .rope = kern_rope,
    .softcap = kern_softcap,
    .argmax = kern_argmax,
};
#else
typedef int kern_avx2_is_for_x86_64;
#endif
