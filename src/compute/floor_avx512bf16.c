/* floor_avx512bf16.c — the peak of vdpbf16ps on registers. */
#include "compute/floor.h"

#if defined(__x86_64__)
#ifdef CYGNET_SIMDE /* nothing to measure under emulation */
double floor_bf16_avx512(int n) { return (double)n; }
#else
#include <immintrin.h>

enum { CHAINS = 16 };
#define FORGET(v) __asm__ volatile("" : "+v"(v)) /* as in floor_avx2.c */

double floor_bf16_avx512(int n) {
  __m512 a[CHAINS];
  __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f)), y = x;
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) a[i] = _mm512_setzero_ps();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      a[i] = _mm512_dpbf16_ps(a[i], x, y);
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
  volatile float keep = _mm512_reduce_add_ps(a[0]);
  (void)keep;
  return (double)n * CHAINS * 64;
}
#endif
#endif
