/* gemm_vnni.h — what the levels with vpdpbusd have in common: the form of quantised rows, and where integer sums start.
 *
 * vpdpbusd multiplies unsigned bytes with signed ones and adds four products into int32; nothing saturates. Activations q in [-127, 127] are kept as
 * u = q + 128 and weights are unpacked to signed w = code - offset, so that what the 128 adds does not depend on the row of x:
 *
 *     sum of q w = sum of u w - 128 * sum of w
 *
 * A sum starts at M - 128 * sum of w, M the bits of 1.5 * 2^23 as float32. |sum of q w| <= 32 * 127 * 128 < 2^22, so its last value is the bits
 * of 1.5 * 2^23 + sum of q w, and
 *
 *     fma(that, scale, -1.5 * 2^23 * scale)
 *
 * is scale * sum, rounded once: neither a conversion nor a correction is left for a row. (-1.5 * 2^23 * scale is exact: a scale has 19 bits.)
 */
#ifndef CYGNET_GEMM_VNNI_H
#define CYGNET_GEMM_VNNI_H

#include "compute/gemm_kern.h"

#define VNNI_MAGIC_BITS 0x4b400000
#define VNNI_MAGIC      0x1.8p23f

/* What these levels keep in a struct gemm_block: sums are only ever multiplied with minima, so they are floats. */
struct vnni_block {
  float d, neg_sum, neg_first, neg_second; /* -sum of q over 32, and over each half */
};
_Static_assert(sizeof(struct vnni_block) <= sizeof(struct gemm_block), "a block of these levels must fit");

static ALWAYS_INLINE const struct vnni_block *vnni_block(const struct gemm_block *b) { return (const struct vnni_block *)(const void *)b; }

/* Part s of `parts` of a block. */
static ALWAYS_INLINE const float *vnni_neg_sum(const struct gemm_block *b, const int parts, const int s) {
  return parts == 1 ? &vnni_block(b)->neg_sum : s == 0 ? &vnni_block(b)->neg_first : &vnni_block(b)->neg_second;
}

static ALWAYS_INLINE int32_t vnni_max_8(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
static ALWAYS_INLINE int32_t vnni_sum_8(__m256i v) {
  __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* struct gemm_kern's quantise_row. */
static ALWAYS_INLINE void vnni_quantise(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x,
                                        int n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), top_bit = _mm256_set1_epi8(-128);
  for (int k = 0; k < n; k += GEMM_BLOCK, blocks += group, codes += group * GEMM_BLOCK) {
    struct vnni_block block;
    __m256 v[4];
    __m256i q[4], top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
      v[i] = _mm256_loadu_ps(x + k + i * 8);
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude)); /* orders floats by magnitude, NaN above all */
    }
    float scale = gemm_block_scale(vnni_max_8(top), &block.d);
    if (scale == 0) {
      block.neg_sum = block.neg_first = block.neg_second = 0;
      memset(codes, 128, GEMM_BLOCK);
    } else {
      for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(scale)));
      block.neg_first = (float)-vnni_sum_8(_mm256_add_epi32(q[0], q[1]));
      block.neg_second = (float)-vnni_sum_8(_mm256_add_epi32(q[2], q[3]));
      block.neg_sum = block.neg_first + block.neg_second;
      __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
      bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
      _mm256_storeu_si256((__m256i *)(void *)codes, _mm256_xor_si256(bytes, top_bit));
    }
    memcpy(blocks, &block, sizeof block);
  }
}

#endif
