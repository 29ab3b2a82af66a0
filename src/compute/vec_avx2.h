/* vec_avx2.h — a vector of 8 floats and the few operations on it that the kernel texts (kern_impl.h, attnk_impl.h) are written in.
 *
 * vec_avx512.h gives the same names for 16 floats. Only files named *_avx2.c include this one: they alone are compiled for AVX2, FMA and F16C.
 * A NaN in either argument of vec_max and vec_min gives the second one.
 */
#ifndef CYGNET_VEC_AVX2_H
#define CYGNET_VEC_AVX2_H

#include <immintrin.h>

#include "base/base.h"

enum { VEC = 8 };
typedef __m256 vec;

static ALWAYS_INLINE vec vec_zero(void) { return _mm256_setzero_ps(); }
static ALWAYS_INLINE vec vec_set1(float x) { return _mm256_set1_ps(x); }
static ALWAYS_INLINE vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
static ALWAYS_INLINE void vec_store(float *p, vec a) { _mm256_storeu_ps(p, a); }

/* All bits set in the first n lanes, 0 <= n <= 8. */
static ALWAYS_INLINE __m256i vec_first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/* The first n lanes; the others are `fill`, and their memory is not touched. */
static ALWAYS_INLINE vec vec_load_n(const float *p, int n, float fill) {
  __m256i first = vec_first(n);
  return _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, first), _mm256_castsi256_ps(first));
}
static ALWAYS_INLINE void vec_store_n(float *p, vec a, int n) { _mm256_maskstore_ps(p, vec_first(n), a); }

static ALWAYS_INLINE vec vec_load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static ALWAYS_INLINE vec vec_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static ALWAYS_INLINE vec vec_load_i8(const int8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* A single f16 in every lane. */
static ALWAYS_INLINE vec vec_set1_f16(uint16_t h) { return _mm256_set1_ps(_cvtsh_ss(h)); }

static ALWAYS_INLINE vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static ALWAYS_INLINE vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static ALWAYS_INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static ALWAYS_INLINE vec vec_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static ALWAYS_INLINE vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static ALWAYS_INLINE vec vec_min(vec a, vec b) { return _mm256_min_ps(a, b); }
static ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); } /* a b + c, rounded once */
static ALWAYS_INLINE vec vec_fnma(vec a, vec b, vec c) { return _mm256_fnmadd_ps(a, b, c); }

/* y where x is not below limit (so also where x is NaN), else 0. */
static ALWAYS_INLINE vec vec_zero_below(vec y, vec x, vec limit) { return _mm256_and_ps(y, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ)); }
/* 2^n from a float that holds 1.5 * 2^23 + n. */
static ALWAYS_INLINE vec vec_pow2_of_magic(vec t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(127 << 23)));
}
/* Lanes i with lo <= i < hi keep s, the others become fill. */
static ALWAYS_INLINE vec vec_keep_range(vec s, int lo, int hi, float fill) {
  __m256i keep = _mm256_andnot_si256(vec_first(MIN(MAX(lo, 0), VEC)), vec_first(MIN(MAX(hi, 0), VEC)));
  return _mm256_blendv_ps(_mm256_set1_ps(fill), s, _mm256_castsi256_ps(keep));
}
/* Bit i: lane i of a equals lane i of b; lane i of a is not below b (or a NaN). */
static ALWAYS_INLINE unsigned vec_eq_bits(vec a, vec b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
static ALWAYS_INLINE unsigned vec_not_below_bits(vec a, vec b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ)); }

/* Lane i of the result is the sum of a_i in one fixed tree: ((0+1)+(2+3)) + ((4+5)+(6+7)). */
static ALWAYS_INLINE __m256 vec_sum8(const vec a[8]) {
  __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
static ALWAYS_INLINE float vec_sum(vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static ALWAYS_INLINE float vec_largest(vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

#endif
