/* floor_avx512.c — AVX-512 peaks on registers: vpdpbusd and vdpbf16ps. */
#include "compute/floor.h"

#if defined(__x86_64__)
#ifdef CYGNET_SIMDE /* nothing to measure under emulation */
double floor_int8_avx512(int n) { return (double)n; }
double floor_float_avx512(int n) { return (double)n; }
#else
#include <immintrin.h>

double floor_int8_avx512(int n) {
  __m512i a[16], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-5);
  for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_si512();
  for (int r = 0; r < n; r++) {
    __asm__ volatile("" : "+v"(x), "+v"(y)); /* the products are not loop-invariant */
    for (int i = 0; i < 16; i++) a[i] = _mm512_dpbusd_epi32(a[i], x, y);
  }
  for (int i = 1; i < 16; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
  volatile int keep = _mm512_reduce_add_epi32(a[0]);
  (void)keep;
  return (double)n * 16 * 128;
}

double floor_float_avx512(int n) {
  __m512 a[16];
  __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f)), y = x;
  for (int i = 0; i < 16; i++) a[i] = _mm512_setzero_ps();
  for (int r = 0; r < n; r++) {
    __asm__ volatile("" : "+v"(x), "+v"(y));
    for (int i = 0; i < 16; i++) a[i] = _mm512_dpbf16_ps(a[i], x, y);
  }
  for (int i = 1; i < 16; i++) a[0] = _mm512_add_ps(a[0], a[i]);
  volatile float keep = _mm512_reduce_add_ps(a[0]);
  (void)keep;
  return (double)n * 16 * 64;
}
#endif
#endif
