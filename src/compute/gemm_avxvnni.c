/* gemm_avxvnni.c — inner loops of matrix products with AVX-VNNI: vpdpbusd on 256 bits. Plain numbers are as in gemm_avx2.c.
 *
 * Codes of 8 weight rows x 4 k are 32 bytes; the activations of those 4 k are one broadcast dword. Sums start where gemm_vnni.h says. A panel is two
 * halves of 8 rows. 4 rows of x, both halves, and a block take 80 slots of the two pipes that do vpdpbusd and fma, 64 for products.
 */
#include "compute/gemm_codes256.h"
#include "compute/gemm_vnni.h"

enum { ROWS_MAX = 4, FEW_MAX = 4, PLAIN_ROWS_MAX = 6, PLAIN_PANELS_MAX = 3, AHEAD_BYTES = 4096 };

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE __m256i dot(__m256i sum, __m256i u, __m256i w) {
  __m256i lo = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(u)), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)));
  __m256i hi = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(u, 1)),
                                 _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1)));
  return _mm256_add_epi32(sum, _mm256_permute4x64_epi64(_mm256_hadd_epi32(lo, hi), 0xd8));
}
#else
static ALWAYS_INLINE __m256i dot(__m256i sum, __m256i u, __m256i w) { return _mm256_dpbusd_avx_epi32(sum, u, w); }
#endif

/* --- unpacking -------------------------------------------------------------------------------------------------------- */

/* The 8 groups of one half of a block, signed. */
static ALWAYS_INLINE void load_signed(const struct gemm_format f, __m256i w[GROUPS], const uint8_t *p, const int half) {
  load_codes(f, w, p, half);
  if (f.offset && f.bits < 8) GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) w[g] = _mm256_sub_epi8(w[g], _mm256_set1_epi8((char)f.offset));
}

/* 128 * sum of w - M over part s of `parts`. */
static ALWAYS_INLINE __m256i neg_start(const __m256i w[GROUPS], const int parts, const int s) {
  __m256i sum = _mm256_set1_epi32(-VNNI_MAGIC_BITS);
  GEMM_UNROLL(8)
  for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++) sum = dot(sum, _mm256_set1_epi8(-128), w[g]);
  return sum;
}

/* Scales and minima of 8 rows for block b of a record; d and dmin are the record's, read once. */
static ALWAYS_INLINE void load_scales(const struct gemm_format f, __m256 scale[2], __m256 min[2], const uint8_t *header, __m256 d,
                                      __m256 dmin, int b, const int half) {
  const int parts = GEMM_BLOCK / f.group;
  const uint8_t *sub = header + (f.mins ? 64 : 32) + half * 8 + b * parts * GEMM_PANEL;
  for (int s = 0; s < parts; s++) {
    scale[s] = f.subs ? _mm256_mul_ps(d, load_s8(sub + s * GEMM_PANEL)) : d;
    if (f.mins) min[s] = f.subs ? _mm256_mul_ps(dmin, load_u8(sub + (f.blocks * parts + s) * GEMM_PANEL)) : dmin;
  }
}

static ALWAYS_INLINE void unpack(const struct gemm_format f, struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  const int parts = GEMM_BLOCK / f.group;
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes) {
      uint8_t *out = tile->codes[at + b][0];
      GEMM_UNROLL(2)
      for (int half = 0; half < 2; half++) {
        __m256i w[GROUPS];
        __m256 scale[2], min[2];
        load_signed(f, w, p, half);
        GEMM_UNROLL(8)
        for (int g = 0; g < GROUPS; g++) _mm256_store_si256((__m256i *)(void *)(out + g * 64 + half * 32), w[g]);
        load_scales(f, scale, min, header, load_f16(header + half * 16), load_f16(header + (f.mins ? 32 : 0) + half * 16), b, half);
        for (int s = 0; s < parts; s++) {
          __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), neg_start(w, parts, s));
          _mm256_store_si256((__m256i *)(void *)(tile->starts[at + b][s] + half * 8), start);
          _mm256_store_ps(tile->scales[at + b][s] + half * 8, scale[s]);
          if (f.mins) _mm256_store_ps(tile->mins[at + b][s] + half * 8, min[s]);
        }
      }
    }
  }
}

/* --- products --------------------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE __m256 magic_times(__m256 scale) { return _mm256_mul_ps(scale, _mm256_set1_ps(-VNNI_MAGIC)); }

/* Part s of a block: a sum that started at M, times its scale; the second is added to t, the first. */
static ALWAYS_INLINE __m256 scaled(__m256 t, __m256i sum, __m256 scale, __m256 magic, const int s) {
  __m256 v = _mm256_castsi256_ps(sum);
  if (s == 0) return _mm256_fmadd_ps(v, scale, magic);
  return _mm256_fmadd_ps(_mm256_sub_ps(v, _mm256_set1_ps(VNNI_MAGIC)), scale, t);
}

/* Straight from the packed bytes, for a group of `group` rows of which n_rows are there: while the weights come from memory, unpacking them
 * for each use costs nothing. */
static ALWAYS_INLINE void few(const struct gemm_format f, const int group, const int n_rows, float (*restrict y)[GEMM_PANEL],
                              const uint8_t *restrict p, struct gemm_x x, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  const int parts = GEMM_BLOCK / f.group;
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  __m256 acc[ROWS_MAX][2];
  for (int r = 0; r < n_rows; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    for (size_t i = 0; i < header_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes, a += group * GEMM_BLOCK, blocks += group) {
      GEMM_UNROLL(8)
      for (size_t i = 0; i < block_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
      GEMM_UNROLL(2)
      for (int half = 0; half < 2; half++) {
        __m256i w[GROUPS], less[2];
        __m256 scale[2], min[2];
        load_signed(f, w, p, half);
        load_scales(f, scale, min, header, load_f16(header + half * 16), load_f16(header + (f.mins ? 32 : 0) + half * 16), b, half);
        for (int s = 0; s < parts; s++) less[s] = neg_start(w, parts, s);
        __m256 magic = magic_times(scale[0]);
        GEMM_UNROLL(1)
        for (int r = 0; r < n_rows; r++) {
          __m256 t = _mm256_setzero_ps();
          GEMM_UNROLL(2)
          for (int s = 0; s < parts; s++) {
            __m256i sum = _mm256_setzero_si256();
            GEMM_UNROLL(8)
            for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++)
              sum = dot(sum, broadcast4(a + r * GEMM_BLOCK + 4 * g), w[g]);
            t = scaled(t, _mm256_sub_epi32(sum, less[s]), scale[s], magic, s);
          }
          for (int s = 0; s < (f.mins ? parts : 0); s++)
            t = _mm256_fmadd_ps(min[s], _mm256_broadcast_ss(vnni_neg_sum(blocks + r, parts, s)), t);
          acc[r][half] = _mm256_fmadd_ps(t, _mm256_broadcast_ss(&vnni_block(blocks + r)->d), acc[r][half]);
        }
      }
    }
  }
  for (int r = 0; r < n_rows; r++) {
    _mm256_storeu_ps(y[r], acc[r][0]);
    _mm256_storeu_ps(y[r] + 8, acc[r][1]);
  }
}

/* Halves [from, to) of a block. Both are done at once where a block has one scale: 8 sums side by side; with two scales there are 8 in each half. */
static ALWAYS_INLINE void block_rows(const int n_rows, const int parts, const bool mins, const int from, const int to,
                                     const struct gemm_tile *restrict tile, int b, const int8_t *restrict a,
                                     const struct gemm_block *restrict blocks, const struct gemm_sums *sums, bool first) {
  __m256i sum[2][ROWS_MAX][2];
  __m256 t[ROWS_MAX][2];
  GEMM_UNROLL(2)
  for (int s = 0; s < parts; s++) {
    GEMM_UNROLL(2)
    for (int h = from; h < to; h++) {
      __m256i start = load256(tile->starts[b][s] + 8 * h);
      GEMM_UNROLL(4)
      for (int r = 0; r < n_rows; r++) sum[s][r][h] = start;
    }
    GEMM_UNROLL(8)
    for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++) {
      __m256i w[2];
      GEMM_UNROLL(2)
      for (int h = from; h < to; h++) w[h] = load256(tile->codes[b][g] + 32 * h);
      GEMM_UNROLL(4)
      for (int r = 0; r < n_rows; r++) {
        __m256i v = broadcast4(a + r * GEMM_BLOCK + 4 * g);
        GEMM_UNROLL(2)
        for (int h = from; h < to; h++) sum[s][r][h] = dot(sum[s][r][h], v, w[h]);
      }
    }
  }
  GEMM_UNROLL(2)
  for (int h = from; h < to; h++) {
    GEMM_UNROLL(2)
    for (int s = 0; s < parts; s++) {
      __m256 scale = _mm256_load_ps(tile->scales[b][s] + 8 * h), magic = magic_times(scale);
      GEMM_UNROLL(4)
      for (int r = 0; r < n_rows; r++) t[r][h] = scaled(t[r][h], sum[s][r][h], scale, magic, s);
    }
    for (int s = 0; s < (mins ? parts : 0); s++) {
      __m256 min = _mm256_load_ps(tile->mins[b][s] + 8 * h);
      GEMM_UNROLL(4)
      for (int r = 0; r < n_rows; r++) t[r][h] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(vnni_neg_sum(blocks + r, parts, s)), t[r][h]);
    }
    GEMM_UNROLL(4)
    for (int r = 0; r < n_rows; r++) {
      float *to_acc = gemm_sums_row(sums, r) + 8 * h;
      __m256 so_far = first ? _mm256_setzero_ps() : _mm256_loadu_ps(to_acc);
      _mm256_storeu_ps(to_acc, _mm256_fmadd_ps(t[r][h], _mm256_broadcast_ss(&vnni_block(blocks + r)->d), so_far));
    }
  }
}

static ALWAYS_INLINE void rows_n(const int n_rows, const int parts, const bool mins, const struct gemm_tile *restrict tile, int n_blocks,
                                 struct gemm_x x, struct gemm_sums sums, struct gemm_ahead ahead) {
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  for (int b = 0; b < n_blocks; b++, a += ROWS_MAX * GEMM_BLOCK, blocks += ROWS_MAX) {
    for (int i = 0; i < ahead.bytes_per_block; i += 64) _mm_prefetch((const char *)ahead.p + i, _MM_HINT_T0);
    ahead.p += ahead.bytes_per_block;
    if (parts == 1) {
      block_rows(n_rows, parts, mins, 0, 2, tile, b, a, blocks, &sums, sums.first && b == 0);
    } else {
      block_rows(n_rows, parts, mins, 0, 1, tile, b, a, blocks, &sums, sums.first && b == 0);
      block_rows(n_rows, parts, mins, 1, 2, tile, b, a, blocks, &sums, sums.first && b == 0);
    }
  }
}

#define ROWS(name, parts, mins)                                                                                                            \
  static void name(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, struct gemm_sums sums,                \
                   struct gemm_ahead ahead) {                                                                                              \
    GEMM_BY_ROWS_4(n_rows, rows_n, parts, mins, tile, n_blocks, x, sums, ahead);                                                           \
  }
ROWS(rows_32, 1, false)
ROWS(rows_32_min, 1, true)
ROWS(rows_16, 2, false)
ROWS(rows_16_min, 2, true)

#define KERNELS(name, ...)                                                                                                                 \
  static void few_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, struct gemm_x x, int n_blocks, int n_rows) {       \
    if (n_rows == 1) few((struct gemm_format){__VA_ARGS__, 0}, 1, 1, y, panel, x, n_blocks);                                               \
    else few((struct gemm_format){__VA_ARGS__, 0}, ROWS_MAX, n_rows, y, panel, x, n_blocks);                                               \
  }                                                                                                                                        \
  static void unpack_##name(struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {                                    \
    unpack((struct gemm_format){__VA_ARGS__, 0}, tile, p, n_blocks);                                                                       \
  }
GEMM_QUANTISED(KERNELS)

static void quantise_row(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x, int n) {
  vnni_quantise(codes, blocks, group, x, n);
}

/* --- plain numbers: gemm_avx2.c's -------------------------------------------------------------------------------------- */

#define PLAIN(name)                                                                                                                        \
  static void plain_one_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels,            \
                               const void *x, int n) {                                                                                     \
    gemm_avx2.types[DTYPE_##name].plain_one(y, panel, panel_bytes, n_panels, x, n);                                                        \
  }                                                                                                                                        \
  static void plain_rows_##name(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,                           \
                                float(*restrict acc)[GEMM_PANEL]) {                                                                        \
    gemm_avx2.types[DTYPE_##name].plain_rows(panel, n, n_rows, x, x_bytes, acc);                                                           \
  }
PLAIN(F32)
PLAIN(F16)
PLAIN(BF16)

static void expand_F16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict panel, int n) {
  gemm_avx2.types[DTYPE_F16].plain_expand(w, panel, n);
}
static void expand_BF16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict panel, int n) {
  gemm_avx2.types[DTYPE_BF16].plain_expand(w, panel, n);
}
static void wide_rows(const float *restrict w, int n, int n_rows, const float *restrict x, float *restrict y, size_t y_bytes, bool first) {
  gemm_avx2.wide_rows(w, n, n_rows, x, y, y_bytes, first);
}

/* clang-format off */
#define TYPE(name, rows_kernel) [DTYPE_##name] = {.few = few_##name, .unpack = unpack_##name, .rows = rows_kernel}
#define TYPE_PLAIN(name, expand) [DTYPE_##name] = {.plain_one = plain_one_##name, .plain_rows = plain_rows_##name, .plain_expand = expand}
const struct gemm_kern gemm_avxvnni = {
    .rows_max = ROWS_MAX,
    .few_max = FEW_MAX,
    .plain_rows_max = PLAIN_ROWS_MAX,
    .plain_panels_max = PLAIN_PANELS_MAX,
    .quantise_row = quantise_row,
    .codes_x_bytes = 192 << 10,
    .wide_rows = wide_rows,
    .types = {
        TYPE(Q4_0, rows_32), TYPE(Q4_1, rows_32_min), TYPE(Q5_0, rows_32), TYPE(Q5_1, rows_32_min),
        TYPE(Q8_0, rows_32), TYPE(Q2_K, rows_16_min), TYPE(Q3_K, rows_16), TYPE(Q4_K, rows_32_min),
        TYPE(Q5_K, rows_32_min), TYPE(Q6_K, rows_16), TYPE(IQ4_NL, rows_32), TYPE(IQ4_XS, rows_32),
        TYPE_PLAIN(F32, NULL), TYPE_PLAIN(F16, expand_F16), TYPE_PLAIN(BF16, expand_BF16),
    },
};
/* clang-format on */
