/* vec_avx512.h — a vector of 16 floats with the operations of vec_avx2.h (which describes them). Only files named *_avx512.c include it.
 *
 * With CYGNET_SIMDE the intrinsics come from SIMDe, so that these kernels can be tested on machines that lack AVX-512; what SIMDe has no
 * twin for is written out below.
 */
#ifndef CYGNET_VEC_AVX512_H
#define CYGNET_VEC_AVX512_H

#ifdef CYGNET_SIMDE
#pragma GCC diagnostic ignored "-Wpsabi"
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#else
#include <immintrin.h>
#endif

#include <math.h>
#include <string.h>

#include "base/base.h"

enum { VEC = 16 };
typedef __m512 vec;

static ALWAYS_INLINE vec vec_zero(void) { return _mm512_setzero_ps(); }
static ALWAYS_INLINE vec vec_set1(float x) { return _mm512_set1_ps(x); }
static ALWAYS_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static ALWAYS_INLINE void vec_store(float *p, vec a) { _mm512_storeu_ps(p, a); }
/* Past the caches, to a whole line; other threads may see it after _mm_sfence. */
static ALWAYS_INLINE void vec_store_past(float *p, vec a) {
#ifdef CYGNET_SIMDE
  vec_store(p, a);
#else
  _mm512_stream_ps(p, a);
#endif
}

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE vec vec_join(__m256 lo, __m256 hi) {
  float x[16];
  _mm256_storeu_ps(x, lo);
  _mm256_storeu_ps(x + 8, hi);
  return vec_load(x);
}
static ALWAYS_INLINE __m256 vec_half(vec a, int half) {
  float x[16];
  vec_store(x, a);
  return _mm256_loadu_ps(x + 8 * half);
}
static ALWAYS_INLINE vec vec_load_n(const float *p, int n, float fill) {
  float x[16];
  for (int i = 0; i < 16; i++) x[i] = i < n ? p[i] : fill;
  return vec_load(x);
}
static ALWAYS_INLINE void vec_store_n(float *p, vec a, int n) {
  float x[16];
  vec_store(x, a);
  memcpy(p, x, sizeof(float) * (size_t)MAX(n, 0));
}
static ALWAYS_INLINE __m256 vec_half_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static ALWAYS_INLINE __m256 vec_half_i8(const int8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static ALWAYS_INLINE vec vec_load_bf16(const uint16_t *p) { return vec_join(vec_half_bf16(p), vec_half_bf16(p + 8)); }
static ALWAYS_INLINE vec vec_load_f16(const uint16_t *p) {
  return vec_join(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static ALWAYS_INLINE vec vec_load_i8(const int8_t *p) { return vec_join(vec_half_i8(p), vec_half_i8(p + 8)); }
static ALWAYS_INLINE vec vec_from_i32(__m512i v) {
  int32_t x[16];
  float y[16];
  _mm512_storeu_si512(x, v);
  for (int i = 0; i < 16; i++) y[i] = (float)x[i];
  return vec_load(y);
}
static ALWAYS_INLINE vec vec_keep_range(vec s, int lo, int hi, float fill) {
  float x[16];
  vec_store(x, s);
  for (int i = 0; i < 16; i++) x[i] = i >= lo && i < hi ? x[i] : fill;
  return vec_load(x);
}
static ALWAYS_INLINE vec vec_zero_below(vec y, vec x, vec limit) {
  float a[16], b[16], c[16];
  vec_store(a, y);
  vec_store(b, x);
  vec_store(c, limit);
  for (int i = 0; i < 16; i++) a[i] = b[i] < c[i] ? 0 : a[i];
  return vec_load(a);
}
static ALWAYS_INLINE unsigned vec_eq_bits(vec a, vec b) {
  unsigned lo = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(vec_half(a, 0), vec_half(b, 0), _CMP_EQ_OQ));
  return lo | (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(vec_half(a, 1), vec_half(b, 1), _CMP_EQ_OQ)) << 8;
}
static ALWAYS_INLINE unsigned vec_not_below_bits(vec a, vec b) {
  unsigned lo = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(vec_half(a, 0), vec_half(b, 0), _CMP_NLT_UQ));
  return lo | (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(vec_half(a, 1), vec_half(b, 1), _CMP_NLT_UQ)) << 8;
}
static ALWAYS_INLINE vec vec_max(vec a, vec b) {
  return vec_join(_mm256_max_ps(vec_half(a, 0), vec_half(b, 0)), _mm256_max_ps(vec_half(a, 1), vec_half(b, 1)));
}
static ALWAYS_INLINE vec vec_min(vec a, vec b) {
  return vec_join(_mm256_min_ps(vec_half(a, 0), vec_half(b, 0)), _mm256_min_ps(vec_half(a, 1), vec_half(b, 1)));
}
static ALWAYS_INLINE vec vec_pow2_of_magic(vec t) {
  uint32_t u[16];
  vec_store((float *)memset(u, 0, sizeof u), t);
  float x[16];
  for (int i = 0; i < 16; i++) {
    uint32_t v = (u[i] << 23) + (127u << 23);
    memcpy(&x[i], &v, 4);
  }
  return vec_load(x);
}
#else
static ALWAYS_INLINE __mmask16 vec_first(int n) { return (__mmask16)((1u << n) - 1); } /* 0 <= n <= 16 */
static ALWAYS_INLINE __m256 vec_half(vec a, int half) { return half ? _mm512_extractf32x8_ps(a, 1) : _mm512_castps512_ps256(a); }
static ALWAYS_INLINE vec vec_load_n(const float *p, int n, float fill) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), vec_first(n), p);
}
static ALWAYS_INLINE void vec_store_n(float *p, vec a, int n) { _mm512_mask_storeu_ps(p, vec_first(n), a); }
static ALWAYS_INLINE vec vec_load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static ALWAYS_INLINE vec vec_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static ALWAYS_INLINE vec vec_load_i8(const int8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static ALWAYS_INLINE vec vec_from_i32(__m512i v) { return _mm512_cvtepi32_ps(v); }
static ALWAYS_INLINE vec vec_keep_range(vec s, int lo, int hi, float fill) {
  __mmask16 keep = (__mmask16)(vec_first(MIN(MAX(hi, 0), VEC)) & ~vec_first(MIN(MAX(lo, 0), VEC)));
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), s);
}
static ALWAYS_INLINE vec vec_zero_below(vec y, vec x, vec limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
static ALWAYS_INLINE unsigned vec_eq_bits(vec a, vec b) { return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static ALWAYS_INLINE unsigned vec_not_below_bits(vec a, vec b) { return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
static ALWAYS_INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static ALWAYS_INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
static ALWAYS_INLINE vec vec_pow2_of_magic(vec t) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(t), 23), _mm512_set1_epi32(127 << 23)));
}
#endif

/* Weights of few rows are read once. They are asked for so many bytes before they are used; 0: not at all, for AMD's own fetching of streams does better
 * (docs/speed.md). */
static inline int vec_ahead_bytes(void) { return __builtin_cpu_is("amd") ? 0 : 4096; }
static ALWAYS_INLINE void vec_ask(const void *p, size_t n_bytes, int ahead_bytes) {
  if (!ahead_bytes) return;
  for (size_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)p + ahead_bytes + i, _MM_HINT_T0);
}

/* A single f16 in every lane. */
static ALWAYS_INLINE vec vec_set1_f16(uint16_t h) { return vec_set1(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)))); }

static ALWAYS_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static ALWAYS_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static ALWAYS_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static ALWAYS_INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static ALWAYS_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static ALWAYS_INLINE vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }

static ALWAYS_INLINE __m256 vec_fold(vec a) { return _mm256_add_ps(vec_half(a, 0), vec_half(a, 1)); }
/* Lane i of the result is the sum of a_i in one fixed tree: halves first, then as for 8 lanes. */
static ALWAYS_INLINE __m256 vec_sum8(const vec a[8]) {
  __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(vec_fold(a[0]), vec_fold(a[1])), _mm256_hadd_ps(vec_fold(a[2]), vec_fold(a[3])));
  __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(vec_fold(a[4]), vec_fold(a[5])), _mm256_hadd_ps(vec_fold(a[6]), vec_fold(a[7])));
  return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
static ALWAYS_INLINE float vec_sum(vec a) {
  __m256 h = vec_fold(a);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static ALWAYS_INLINE float vec_largest(vec a) {
  __m256 h = _mm256_max_ps(vec_half(a, 0), vec_half(a, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

#endif
