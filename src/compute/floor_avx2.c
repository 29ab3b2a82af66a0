/* floor_avx2.c — AVX2 peaks on registers: products of unsigned and signed bytes summed in 16 bits; float32 fused multiply-adds. */
#include "compute/floor.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { CHAINS = 10 }; /* sums that do not wait for each other; with two factors and a product they fit the 16 registers */

/* The compiler must neither share a product between chains nor lift it out of the loop: it may not know that v stays the same. */
#define FORGET(v) __asm__ volatile("" : "+x"(v))

uint64_t floor_read_avx2(const void *p, size_t n_bytes) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (const char *at = p, *end = at + n_bytes; at < end; at += 64) {
    _mm_prefetch(at + FLOOR_READ_NEAR, _MM_HINT_T0);
    _mm_prefetch(at + FLOOR_READ_FAR, _MM_HINT_T1);
    a = _mm256_add_epi64(a, _mm256_loadu_si256((const __m256i *)(const void *)at));
    b = _mm256_add_epi64(b, _mm256_loadu_si256((const __m256i *)(const void *)(at + 32)));
  }
  uint64_t lanes[4], sum = 0;
  _mm256_storeu_si256((__m256i *)(void *)lanes, _mm256_add_epi64(a, b));
  for (int i = 0; i < 4; i++) sum += lanes[i];
  return sum;
}

double floor_int8_avx2(int n) {
  __m256i a[CHAINS], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
#pragma GCC unroll 10
  for (int i = 0; i < CHAINS; i++) a[i] = _mm256_setzero_si256();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++) {
      FORGET(x);
      a[i] = _mm256_add_epi16(a[i], _mm256_maddubs_epi16(x, y));
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 10
  for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_epi16(a[0], a[i]);
  volatile int keep = _mm256_extract_epi32(a[0], 0);
  (void)keep;
  return (double)n * CHAINS * 64;
}

double floor_float_avx2(int n) {
  __m256 a[CHAINS], x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
#pragma GCC unroll 10
  for (int i = 0; i < CHAINS; i++) a[i] = _mm256_setzero_ps();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 10
    for (int i = 0; i < CHAINS; i++) {
      a[i] = _mm256_fmadd_ps(x, y, a[i]);
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 10
  for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
  volatile float keep = _mm256_cvtss_f32(a[0]);
  (void)keep;
  return (double)n * CHAINS * 16;
}
#endif
