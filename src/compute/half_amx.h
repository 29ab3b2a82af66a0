/* half_amx.h — half precision (f16) on 32 lanes of a register, for files named *_amx.c: processors with AMX have AVX512-FP16, too.
 *
 * Rounding is to nearest even; denormal numbers are kept, whatever MXCSR says. With CYGNET_SIMDE plain C does the same.
 */
#ifndef CYGNET_HALF_AMX_H
#define CYGNET_HALF_AMX_H

#include "compute/vec_avx512.h"

#include "base/dtype.h"

#ifdef CYGNET_SIMDE
/* A double to the nearest f16, in one rounding. */
static inline uint16_t half_round(double x) {
  double size = fabs(x);
  if (!isfinite(x) || size >= 65520 || x == 0) return f32_to_f16((float)x);
  double unit = ldexp(1, MAX(ilogb(size), -14) - 10);
  return f32_to_f16((float)(rint(x / unit) * unit));
}
#define HALF_LANES(expression)                                                                                                             \
  uint16_t x[32], y[32], z[32];                                                                                                            \
  memcpy(x, &a, 64), memcpy(y, &b, 64), memcpy(z, &c, 64);                                                                                 \
  for (int i = 0; i < 32; i++) x[i] = half_round(expression);                                                                              \
  memcpy(&a, x, 64);                                                                                                                       \
  return a;
#define HALF_X (double)f16_to_f32(x[i])
#define HALF_Y (double)f16_to_f32(y[i])
#define HALF_Z (double)f16_to_f32(z[i])
static inline __m512i half_fmsub(__m512i a, __m512i b, __m512i c) { HALF_LANES(HALF_X * HALF_Y - HALF_Z) }
static inline __m512i half_fnmadd(__m512i a, __m512i b, __m512i c) { HALF_LANES(HALF_Z - HALF_X * HALF_Y) }
static inline __m512i half_mul(__m512i a, __m512i b) {
  __m512i c = b;
  HALF_LANES(HALF_X * HALF_Y)
}
static inline __m512i half_times_2_to(__m512i a, __m512i b) {
  __m512i c = a;
  HALF_LANES(ldexp(HALF_X, (int)HALF_Y))
}
static inline __m512i half_from_int(__m512i a) {
  __m512i b = a, c = a;
  HALF_LANES((double)(int16_t)x[i])
}
#else
static ALWAYS_INLINE __m512i half_mul(__m512i a, __m512i b) {
  return _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)));
}
/* a * b - c */
static ALWAYS_INLINE __m512i half_fmsub(__m512i a, __m512i b, __m512i c) {
  return _mm512_castph_si512(_mm512_fmsub_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b), _mm512_castsi512_ph(c)));
}
/* c - a * b */
static ALWAYS_INLINE __m512i half_fnmadd(__m512i a, __m512i b, __m512i c) {
  return _mm512_castph_si512(_mm512_fnmadd_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b), _mm512_castsi512_ph(c)));
}
/* a * 2^b, for whole numbers b. */
static ALWAYS_INLINE __m512i half_times_2_to(__m512i a, __m512i b) {
  return _mm512_castph_si512(_mm512_scalef_ph(_mm512_castsi512_ph(a), _mm512_castsi512_ph(b)));
}
/* Of 16-bit integers. */
static ALWAYS_INLINE __m512i half_from_int(__m512i a) { return _mm512_castph_si512(_mm512_cvtepi16_ph(a)); }
#endif

/* 2^n in all lanes, denormal numbers included. */
static ALWAYS_INLINE __m512i half_power(int n) { return _mm512_set1_epi16((short)(n < -14 ? 1 << (n + 24) : (n + 15) << 10)); }

#endif
