/* floor_avxvnni.c — the peak of vpdpbusd on 256 bits. */
#include "compute/floor.h"

#if defined(__x86_64__)
#ifdef CYGNET_SIMDE /* nothing to measure under emulation */
double floor_int8_avxvnni(int n) { return (double)n; }
#else
#include <immintrin.h>

enum { CHAINS = 12 };
#define FORGET(v) __asm__ volatile("" : "+x"(v)) /* as in floor_avx2.c */

double floor_int8_avxvnni(int n) {
  __m256i a[CHAINS], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-5);
#pragma GCC unroll 12
  for (int i = 0; i < CHAINS; i++) a[i] = _mm256_setzero_si256();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) {
      a[i] = _mm256_dpbusd_avx_epi32(a[i], x, y);
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_epi32(a[0], a[i]);
  volatile int keep = _mm256_extract_epi32(a[0], 0);
  (void)keep;
  return (double)n * CHAINS * 64;
}
#endif
#endif
