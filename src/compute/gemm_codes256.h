/* gemm_codes256.h — packed codes and scales (gemm_pack.h) into vectors of 256 bits: of half a panel, 8 weight rows.
 *
 * Only gemm_avx2.c and gemm_avxvnni.c include this: they alone are compiled for these instructions.
 */
#ifndef CYGNET_GEMM_CODES256_H
#define CYGNET_GEMM_CODES256_H

#include <immintrin.h>
#include <string.h>

#include "compute/gemm_kern.h"

enum { GROUPS = GEMM_BLOCK / 4 }; /* of 4 k in a block; one of them, of 8 rows, is a vector */

static ALWAYS_INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

static ALWAYS_INLINE __m256i broadcast4(const int8_t *a) {
  int32_t v;
  memcpy(&v, a, 4);
  return _mm256_set1_epi32(v);
}

/* Shift 16-bit lanes left by n, right for a negative n; bits that cross bytes are masked away by the caller. */
static ALWAYS_INLINE __m256i shift16(__m256i v, const int n) {
  return n > 0 ? _mm256_slli_epi16(v, n) : n < 0 ? _mm256_srli_epi16(v, -n) : v;
}

/* The 8 groups of one half of a block: codes from 0 on, but those of 8 bits and of a table are signed. */
static ALWAYS_INLINE void load_codes(const struct gemm_format f, __m256i w[GROUPS], const uint8_t *p, const int half) {
  p += half * 32;
  if (f.bits == 8) GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) w[g] = load256(p + g * 64);
  if (f.bits >= 4 && f.bits < 8) {
    GEMM_UNROLL(4)
    for (int j = 0; j < 4; j++) {
      __m256i v = load256(p + j * 64);
      w[j] = _mm256_and_si256(v, _mm256_set1_epi8(15));
      w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
    }
    p += 256;
  }
  if (f.bits == 2 || f.bits == 3 || f.bits == 6) {
    const int at = f.bits == 6 ? 4 : 0;
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) {
      __m256i v = _mm256_and_si256(shift16(load256(p + g / 4 * 64), at - g % 4 * 2), _mm256_set1_epi8((char)(3 << at)));
      w[g] = at ? _mm256_or_si256(w[g], v) : v;
    }
    p += 128;
  }
  if (f.bits == 3 || f.bits == 5) {
    const int at = f.bits == 3 ? 2 : 4;
    __m256i v = load256(p);
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) w[g] = _mm256_or_si256(w[g], _mm256_and_si256(shift16(v, at - g), _mm256_set1_epi8((char)(1 << at))));
  }
  if (f.table) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)gemm_iq4_values));
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) w[g] = _mm256_shuffle_epi8(table, w[g]);
  }
}

/* 8 rows' scales, as float32. */
static ALWAYS_INLINE __m256 load_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static ALWAYS_INLINE __m256 load_s8(const uint8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static ALWAYS_INLINE __m256 load_u8(const uint8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

#endif
