/* sample_impl.h — the text of sample_kern.h's functions, with the compilers' vector extension.
 *
 * Included with SAMPLE_LANES, 4 or 8, defined. Every lane does the same plain operations, so a number's bits do not depend on where it stands.
 */
#include <math.h>
#include <string.h>

#include "engine/sample_kern.h"

typedef float lanes __attribute__((vector_size(4 * SAMPLE_LANES)));
typedef int32_t lane_bits __attribute__((vector_size(4 * SAMPLE_LANES)));

enum { PARTS = 8 / SAMPLE_LANES }; /* vectors that make 8 lanes */

static ALWAYS_INLINE lanes lanes_all(float x) { return x - (lanes){0}; }
static ALWAYS_INLINE lanes lanes_load(const float *p) {
  lanes v;
  memcpy(&v, p, sizeof v);
  return v;
}
static ALWAYS_INLINE lanes lanes_pick(lane_bits mask, lanes yes, lanes no) {
  return (lanes)((mask & (lane_bits)yes) | (~mask & (lane_bits)no));
}
/* a > b ? a : b */
static ALWAYS_INLINE lanes lanes_max(lanes a, lanes b) {
#if SAMPLE_LANES == 8 && defined(__AVX__)
  return __builtin_ia32_maxps256(a, b);
#else
  return lanes_pick(a > b, a, b);
#endif
}

/* exp(z) for z <= 0, relative error < 2e-7; 0 from -86 down and for NaN. exp(z) = 2^n * exp(r), |r| <= ln(2)/2, with the polynomial of
 * Cephes' expf. */
static ALWAYS_INLINE lanes lanes_exp(lanes z) {
  const lanes round_to_int = lanes_all(12582912.0f); /* 1.5 * 2^23: adding it leaves the integer in the low bits */
  lane_bits counts = z > lanes_all(-86.0f);
  lanes x = lanes_max(z, lanes_all(-86.0f));
  lanes shifted = x * 1.44269504f + round_to_int, n = shifted - round_to_int;
  lanes r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  lanes poly = lanes_all(1.9875691500e-4f);
  poly = poly * r + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  poly = poly * (r * r) + r + 1.0f;
  lane_bits exponent = (lane_bits)shifted << 23; /* the constant's own bits fall off the top */
  return (lanes)(((lane_bits)poly + exponent) & counts);
}

static double sum_of_weights(double sum, const float *restrict x, int n_blocks, float max, float f) {
  for (int b = 0; b < n_blocks; b++, x += PEAK_BLOCK) {
    lanes part[PARTS] = {{0}};
    for (int i = 0; i < PEAK_BLOCK; i += 8)
      for (int k = 0; k < PARTS; k++) part[k] += lanes_exp((lanes_load(x + i + k * SAMPLE_LANES) - max) * f);
    float lane[8];
    memcpy(lane, part, sizeof lane);
    for (int i = 0; i < 4; i++) lane[i] += lane[i + 4];
    sum += (double)((lane[0] + lane[1]) + (lane[2] + lane[3]));
  }
  return sum;
}

static void weigh(float *x, int n, float max, float f) {
  for (int i = 0; i < n; i += SAMPLE_LANES) {
    lanes w = lanes_exp((lanes_load(x + i) - max) * f);
    memcpy(x + i, &w, sizeof w);
  }
}
