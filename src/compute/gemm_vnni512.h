/* gemm_vnni512.h — what the variants of avx512 do with a block's integer sums, which begin as gemm_vnni.h says. */
#ifndef CYGNET_GEMM_VNNI512_H
#define CYGNET_GEMM_VNNI512_H

#include "compute/vec_avx512.h"

#include "compute/gemm_vnni.h"

static ALWAYS_INLINE vec vnni_magic_times(vec scale) { return vec_mul(scale, vec_set1(-VNNI_MAGIC)); }

/* Part s of a block: a sum that started at M, times its scale; the second is added to t, the first. magic: of the first scale. */
static ALWAYS_INLINE vec vnni_scaled(vec t, __m512i sum, vec scale, vec magic, const int s) {
  vec v = _mm512_castsi512_ps(sum);
  if (s == 0) return vec_fma(v, scale, magic);
  return vec_fma(vec_sub(v, vec_set1(VNNI_MAGIC)), scale, t);
}

#endif
