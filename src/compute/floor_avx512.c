/* floor_avx512.c — AVX-512 peaks on registers: vpdpbusd and float32 fused multiply-adds. */
#include "compute/floor.h"

#if defined(__x86_64__)
#ifdef CYGNET_SIMDE /* nothing to measure under emulation */
uint64_t floor_read_avx512(const void *p, size_t n_bytes) { return floor_read_avx2(p, n_bytes); }
double floor_int8_avx512(int n) { return (double)n; }
double floor_float_avx512(int n) { return (double)n; }
#else
#include <immintrin.h>

enum { CHAINS = 16 };
#define FORGET(v) __asm__ volatile("" : "+v"(v)) /* as in floor_avx2.c */

uint64_t floor_read_avx512(const void *p, size_t n_bytes) {
  __m512i sum = _mm512_setzero_si512();
  for (const char *at = p, *end = at + n_bytes; at < end; at += 64) {
    _mm_prefetch(at + FLOOR_READ_NEAR, _MM_HINT_T0);
    _mm_prefetch(at + FLOOR_READ_FAR, _MM_HINT_T1);
    sum = _mm512_add_epi64(sum, _mm512_loadu_si512(at));
  }
  return (uint64_t)_mm512_reduce_add_epi64(sum);
}

double floor_int8_avx512(int n) {
  __m512i a[CHAINS], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-5);
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) a[i] = _mm512_setzero_si512();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      a[i] = _mm512_dpbusd_epi32(a[i], x, y);
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_epi32(a[0], a[i]);
  volatile int keep = _mm512_reduce_add_epi32(a[0]);
  (void)keep;
  return (double)n * CHAINS * 128;
}

double floor_float_avx512(int n) {
  __m512 a[CHAINS], x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) a[i] = _mm512_setzero_ps();
  for (int r = 0; r < n; r++) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      a[i] = _mm512_fmadd_ps(x, y, a[i]);
      FORGET(a[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
  volatile float keep = _mm512_reduce_add_ps(a[0]);
  (void)keep;
  return (double)n * CHAINS * 32;
}
#endif
#endif
