/* gemm_vnni512.h — what the variants of avx512 do with a block's integer sums, which begin as gemm_vnni.h says, and how they make codes of rows of x. */
#ifndef CYGNET_GEMM_VNNI512_H
#define CYGNET_GEMM_VNNI512_H

#include "compute/vec_avx512.h"

#include "compute/gemm_vnni.h"

static ALWAYS_INLINE vec vnni_magic_times(vec scale) { return vec_mul(scale, vec_set1(-VNNI_MAGIC)); }

/* Part s of a block: a sum that started at M, times its scale; the second is added to t, the first. magic: of the first scale. */
static ALWAYS_INLINE vec vnni_scaled(vec t, __m512i sum, vec scale, vec magic, const int s) {
  vec v = _mm512_castsi512_ps(sum);
  if (s == 0) return vec_fma(v, scale, magic);
  return vec_fma(vec_sub(v, vec_set1(VNNI_MAGIC)), scale, t);
}

/* --- rows of x as codes: the bits of gemm_vnni.h's vnni_quantise, 16 blocks at a time ------------------------------------------------- */

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE void vnni512_quantise(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x,
                                           int n) {
  vnni_quantise(codes, blocks, group, x, n);
}
#else
/* Lane b: the greatest magnitude of block b, as bits, which order floats by magnitude, NaN above all; 0 from n_blocks on. */
static ALWAYS_INLINE __m512i vnni512_tops(const float *restrict x, int n_blocks) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i top[16];
  GEMM_UNROLL(16)
  for (int b = 0; b < 16; b++) {
    top[b] = _mm512_setzero_si512();
    if (b >= n_blocks) continue;
    const __m512i lo = _mm512_loadu_si512(x + b * GEMM_BLOCK), hi = _mm512_loadu_si512(x + b * GEMM_BLOCK + 16);
    top[b] = _mm512_max_epi32(_mm512_and_si512(lo, magnitude), _mm512_and_si512(hi, magnitude));
  }
  GEMM_UNROLL(8)
  for (int i = 0; i < 8; i++)
    top[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(top[2 * i], top[2 * i + 1]), _mm512_unpackhi_epi32(top[2 * i], top[2 * i + 1]));
  GEMM_UNROLL(4)
  for (int i = 0; i < 4; i++)
    top[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(top[2 * i], top[2 * i + 1]), _mm512_unpackhi_epi64(top[2 * i], top[2 * i + 1]));
  GEMM_UNROLL(2)
  for (int n = 2; n >= 1; n--) { /* quarters */
    GEMM_UNROLL(2)
    for (int i = 0; i < n; i++)
      top[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(top[2 * i], top[2 * i + 1], 0x88),
                                _mm512_shuffle_i32x4(top[2 * i], top[2 * i + 1], 0xdd));
  }
  return top[0];
}

/* Two blocks: codes, less 128 each, and per block a quarter of -sum, -first, -second; its first number is d's place. */
static ALWAYS_INLINE __m512i vnni512_two_blocks(const float *restrict x, float scale0, float scale1, vec *sums) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const vec s0 = vec_set1(scale0), s1 = vec_set1(scale1);
  const __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(vec_mul(vec_load(x), s0)), _mm512_cvtps_epi32(vec_mul(vec_load(x + 16), s0)));
  const __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(vec_mul(vec_load(x + 32), s1)),
                                       _mm512_cvtps_epi32(vec_mul(vec_load(x + 48), s1)));
  const __m512i q = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b)); /* a quarter: half a block */
  __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
  sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0x4e));
  sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0xb1)); /* of the quarter, in each of its lanes */
  const __m512i other = _mm512_shuffle_i32x4(sum, sum, 0xb1);   /* of the block's other half */
  __m512i all = _mm512_mask_mov_epi32(_mm512_add_epi32(sum, other), 0x0404, sum);
  all = _mm512_mask_mov_epi32(all, 0x0808, other);
  *sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_setzero_si512(), all));
  return q;
}

static ALWAYS_INLINE void vnni512_quantise(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x,
                                           int n) {
  const __m512i top_bit = _mm512_set1_epi8(-128);
  for (int at = 0; at < n; at += 16 * GEMM_BLOCK) {
    const int n_blocks = MIN((n - at) / GEMM_BLOCK, 16);
    float d[16], scale[16];
    const __m512i top = n_blocks == 16 ? vnni512_tops(x + at, 16) : vnni512_tops(x + at, n_blocks);
    const vec most = _mm512_castsi512_ps(top), n127 = vec_set1(127);
    const __mmask16 bad = _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(0x7f800000));
    const __mmask16 zero = _mm512_cmp_ps_mask(most, vec_set1(0x1p-120f), _CMP_LT_OQ);
    vec_store(d, _mm512_mask_mov_ps(_mm512_maskz_div_ps((__mmask16)~zero, most, n127), bad, vec_set1(__builtin_nanf(""))));
    vec_store(scale, _mm512_maskz_div_ps((__mmask16) ~(zero | bad), n127, most));
    for (int b = 0; b < n_blocks; b += 2) {
      const bool two = b + 1 < n_blocks;
      float last[2 * GEMM_BLOCK];
      const float *from = x + at + b * GEMM_BLOCK;
      if (!two) from = memcpy(memset(last, 0, sizeof last), from, GEMM_BLOCK * sizeof *last);
      vec sums;
      __m512i q = vnni512_two_blocks(from, scale[b], scale[b + two], &sums);
      /* where all codes are zero, numbers need not be: NaN and infinity times 0 are no numbers */
      const unsigned none = (unsigned)(zero | bad) >> b;
      const __mmask16 halves[4] = {0xffff, 0xff00, 0x00ff, 0};
      if (none & 3) q = _mm512_maskz_mov_epi32(halves[none & 3], q), sums = _mm512_maskz_mov_ps(halves[none & 3], sums);
      q = _mm512_xor_si512(q, top_bit);
      int8_t *to = codes + (size_t)((at / GEMM_BLOCK + b) * group) * GEMM_BLOCK;
      struct gemm_block *to_block = blocks + (at / GEMM_BLOCK + b) * group;
      _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(q));
      _mm_storeu_ps((float *)(void *)to_block, _mm_move_ss(_mm512_castps512_ps128(sums), _mm_load_ss(d + b)));
      if (!two) continue;
      _mm256_storeu_si256((__m256i *)(void *)(to + group * GEMM_BLOCK), _mm512_extracti64x4_epi64(q, 1));
      _mm_storeu_ps((float *)(void *)(to_block + group), _mm_move_ss(_mm512_extractf32x4_ps(sums, 2), _mm_load_ss(d + b + 1)));
    }
  }
}
#endif

#endif
