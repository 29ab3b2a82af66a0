/* dot_bf16.h — vdpbf16ps, for files named *_avx512bf16.c: products of 16 pairs of numbers of bf16, the second of each pair added first. */
#ifndef CYGNET_DOT_BF16_H
#define CYGNET_DOT_BF16_H

#include "compute/vec_avx512.h"

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE vec dot(vec sum, __m512i a, __m512i b) {
  const __m512i odd = _mm512_set1_epi32(-65536);
  sum = vec_fma(_mm512_castsi512_ps(_mm512_and_si512(a, odd)), _mm512_castsi512_ps(_mm512_and_si512(b, odd)), sum);
  return vec_fma(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
}
#else
static ALWAYS_INLINE vec dot(vec sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
#endif

/* One pair in every lane. */
static ALWAYS_INLINE __m512i pair(const char *p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

#endif
