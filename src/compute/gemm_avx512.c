/* gemm_avx512.c — inner loops of matrix products with AVX-512 VNNI and BF16.
 *
 * Codes of 16 weight rows x 4 k are one register; the activations of those 4 k are one broadcast dword. vpdpbusd multiplies unsigned codes with signed
 * activations and adds four products into int32: nothing saturates. The sum starts at -offset * sum of a, so no correction follows.
 */
#include "compute/gemm_kern.h"
#include "compute/vec_avx512.h"

enum { ROWS_MAX = 8, FEW_MAX = 4, PLAIN_ROWS_MAX = 8, PLAIN_PANELS_MAX = 4, GROUPS = 8, AHEAD_BYTES = 4096 };

static ALWAYS_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

static ALWAYS_INLINE __m512i broadcast4(const void *a) {
  int32_t v;
  memcpy(&v, a, 4);
  return _mm512_set1_epi32(v);
}

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE vec to_float(__m512i v) {
  int32_t x[16];
  _mm512_storeu_si512(x, v);
  return vec_join(_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(void *)x)),
                  _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(void *)(x + 8))));
}
static ALWAYS_INLINE vec load_u8(const uint8_t *p) {
  float x[16];
  for (int i = 0; i < 16; i++) x[i] = (float)p[i];
  return vec_load(x);
}
static ALWAYS_INLINE vec dot_bf16(vec sum, __m512i w, __m512i x) {
  const __m512i odd = _mm512_set1_epi32(-65536);
  sum = vec_fma(_mm512_castsi512_ps(_mm512_and_si512(w, odd)), _mm512_castsi512_ps(_mm512_and_si512(x, odd)), sum);
  return vec_fma(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), sum);
}
static ALWAYS_INLINE void store_bf16(uint16_t *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] = f32_to_bf16(x[i]);
}
#else
static ALWAYS_INLINE vec to_float(__m512i v) { return _mm512_cvtepi32_ps(v); }
static ALWAYS_INLINE vec load_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
static ALWAYS_INLINE vec dot_bf16(vec sum, __m512i w, __m512i x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
/* n <= 16 */
static ALWAYS_INLINE void store_bf16(uint16_t *y, const float *x, int n) {
  __m256bh v = _mm512_cvtneps_pbh(vec_load_n(x, n, 0));
  _mm256_mask_storeu_epi16(y, vec_first(n), (__m256i)v);
}
#endif

/* Shift 16-bit lanes left by n, right for a negative n; bits that cross bytes are masked away by the caller. */
static ALWAYS_INLINE __m512i shift16(__m512i v, const int n) {
  return n > 0 ? _mm512_slli_epi16(v, n) : n < 0 ? _mm512_srli_epi16(v, -n) : v;
}

/* Table values are made unsigned like 8-bit codes. */
static ALWAYS_INLINE int code_offset(const struct gemm_format f) { return f.table ? 128 : f.offset; }

/* --- unpacking -------------------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE void load_codes(const struct gemm_format f, __m512i w[GROUPS], const uint8_t *p) {
  if (f.bits == 8) GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) w[g] = load512(p + g * 64);
  if (f.bits >= 4 && f.bits < 8) {
    GEMM_UNROLL(4)
    for (int j = 0; j < 4; j++) {
      __m512i v = load512(p + j * 64);
      w[j] = _mm512_and_si512(v, _mm512_set1_epi8(15));
      w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
    }
    p += 256;
  }
  if (f.bits == 2 || f.bits == 3 || f.bits == 6) {
    const int at = f.bits == 6 ? 4 : 0;
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) {
      __m512i v = _mm512_and_si512(shift16(load512(p + g / 4 * 64), at - g % 4 * 2), _mm512_set1_epi8((char)(3 << at)));
      w[g] = at ? _mm512_or_si512(w[g], v) : v;
    }
    p += 128;
  }
  if (f.bits == 3 || f.bits == 5) {
    const int at = f.bits == 3 ? 2 : 4;
    __m512i v = load512(p);
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) w[g] = _mm512_or_si512(w[g], _mm512_and_si512(shift16(v, at - g), _mm512_set1_epi8((char)(1 << at))));
  }
  if (f.table) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)gemm_iq4_values));
    table = _mm512_xor_si512(table, _mm512_set1_epi8(-128));
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) w[g] = _mm512_shuffle_epi8(table, w[g]);
  }
}

static ALWAYS_INLINE vec load_f16(const uint8_t *p) { return vec_load_f16((const uint16_t *)(const void *)p); }

/* Scales and minima for block b of a record. */
static ALWAYS_INLINE void load_scales(const struct gemm_format f, vec scale[2], vec min[2], const uint8_t *header, vec d, vec dmin, int b) {
  const int parts = GEMM_BLOCK / f.group;
  const uint8_t *sub = header + (f.mins ? 64 : 32) + b * parts * GEMM_PANEL;
  for (int s = 0; s < parts; s++) {
    scale[s] = f.subs ? vec_mul(d, vec_load_i8((const int8_t *)sub + s * GEMM_PANEL)) : d;
    if (f.mins) min[s] = f.subs ? vec_mul(dmin, load_u8(sub + (f.blocks * parts + s) * GEMM_PANEL)) : dmin;
  }
}

static ALWAYS_INLINE void unpack(const struct gemm_format f, struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    vec d = load_f16(header), dmin = load_f16(header + (f.mins ? 32 : 0));
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes) {
      __m512i w[GROUPS];
      vec scale[2], min[2];
      load_codes(f, w, p);
      GEMM_UNROLL(8)
      for (int g = 0; g < GROUPS; g++) _mm512_store_si512(tile->codes[at + b][g], w[g]);
      load_scales(f, scale, min, header, d, dmin, b);
      for (int s = 0; s < GEMM_BLOCK / f.group; s++) {
        vec_store(tile->scales[at + b][s], scale[s]);
        if (f.mins) vec_store(tile->mins[at + b][s], min[s]);
      }
    }
  }
}

/* --- products --------------------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE const int32_t *neg_sum_of(const struct gemm_block *block, const int parts, const int s) {
  return parts == 1 ? &block->neg_sum : s == 0 ? &block->neg_first : &block->neg_second;
}

/* -offset * sum of a: where an integer sum starts. */
static ALWAYS_INLINE __m512i start(const struct gemm_block *block, const int parts, const int s, const int offset) {
  if (!offset) return _mm512_setzero_si512();
  return _mm512_slli_epi32(broadcast4(neg_sum_of(block, parts, s)), (unsigned)__builtin_ctz((unsigned)offset));
}

/* Straight from the packed bytes, for a group of `group` rows of which n_rows are there: while the weights come from memory, unpacking them
 * for each use costs nothing. */
static ALWAYS_INLINE void few(const struct gemm_format f, const int group, const int n_rows, float (*restrict y)[GEMM_PANEL],
                              const uint8_t *restrict p, struct gemm_x x, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  const int parts = GEMM_BLOCK / f.group;
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  vec acc[ROWS_MAX];
  for (int r = 0; r < n_rows; r++) acc[r] = vec_zero();
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    vec d = load_f16(header), dmin = load_f16(header + (f.mins ? 32 : 0));
    for (size_t i = 0; i < header_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes, a += group * GEMM_BLOCK, blocks += group) {
      __m512i w[GROUPS];
      vec scale[2], min[2];
      GEMM_UNROLL(8)
      for (size_t i = 0; i < block_bytes; i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
      load_codes(f, w, p);
      load_scales(f, scale, min, header, d, dmin, b);
      GEMM_UNROLL(1)
      for (int r = 0; r < n_rows; r++) {
        vec t = vec_zero();
        GEMM_UNROLL(2)
        for (int s = 0; s < parts; s++) {
          __m512i sum = start(blocks + r, parts, s, code_offset(f));
          GEMM_UNROLL(8)
          for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++)
            sum = _mm512_dpbusd_epi32(sum, w[g], broadcast4(a + r * GEMM_BLOCK + 4 * g));
          t = s == 0 ? vec_mul(to_float(sum), scale[0]) : vec_fma(to_float(sum), scale[s], t);
        }
        for (int s = 0; s < (f.mins ? parts : 0); s++) t = vec_fma(min[s], to_float(broadcast4(neg_sum_of(blocks + r, parts, s))), t);
        acc[r] = vec_fma(t, vec_set1(blocks[r].d), acc[r]);
      }
    }
  }
  for (int r = 0; r < n_rows; r++) vec_store(y[r], acc[r]);
}

/* What the kernels of several rows depend on: scales per block, offset, minima. */
static ALWAYS_INLINE void rows_n(const int n_rows, const int parts, const int offset, const bool mins,
                                 const struct gemm_tile *restrict tile, int n_blocks, struct gemm_x x, float (*restrict y)[GEMM_PANEL],
                                 struct gemm_ahead ahead) {
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  vec acc[ROWS_MAX];
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) acc[r] = vec_load(y[r]);
  for (int b = 0; b < n_blocks; b++, a += ROWS_MAX * GEMM_BLOCK, blocks += ROWS_MAX) {
    for (int i = 0; i < ahead.bytes_per_block; i += 64) _mm_prefetch((const char *)ahead.p + i, _MM_HINT_T0);
    ahead.p += ahead.bytes_per_block;
    vec t[ROWS_MAX];
    GEMM_UNROLL(2)
    for (int s = 0; s < parts; s++) {
      __m512i sum[ROWS_MAX];
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) sum[r] = start(blocks + r, parts, s, offset);
      GEMM_UNROLL(8)
      for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++) {
        __m512i w = load512(tile->codes[b][g]);
        GEMM_UNROLL(8)
        for (int r = 0; r < n_rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], w, broadcast4(a + r * GEMM_BLOCK + 4 * g));
      }
      vec scale = vec_load(tile->scales[b][s]);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) t[r] = s == 0 ? vec_mul(to_float(sum[r]), scale) : vec_fma(to_float(sum[r]), scale, t[r]);
    }
    GEMM_UNROLL(8)
    for (int r = 0; r < n_rows; r++) {
      const struct gemm_block *block = blocks + r;
      for (int s = 0; s < (mins ? parts : 0); s++)
        t[r] = vec_fma(vec_load(tile->mins[b][s]), to_float(broadcast4(neg_sum_of(block, parts, s))), t[r]);
      acc[r] = vec_fma(t[r], vec_set1(block->d), acc[r]);
    }
  }
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) vec_store(y[r], acc[r]);
}

#define ROWS(name, parts, offset, mins)                                                                                                    \
  static void name(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, float(*restrict acc)[GEMM_PANEL],     \
                   struct gemm_ahead ahead) {                                                                                              \
    GEMM_BY_ROWS_8(n_rows, rows_n, parts, offset, mins, tile, n_blocks, x, acc, ahead);                                                    \
  }
ROWS(rows_offset_8, 1, 8, false)
ROWS(rows_offset_16, 1, 16, false)
ROWS(rows_offset_128, 1, 128, false)
ROWS(rows_min, 1, 0, true)
ROWS(rows_halves_min, 2, 0, true)
ROWS(rows_halves_4, 2, 4, false)
ROWS(rows_halves_32, 2, 32, false)

#define KERNELS(name, ...)                                                                                                                 \
  static void few_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, struct gemm_x x, int n_blocks, int n_rows) {       \
    if (n_rows == 1) few((struct gemm_format){__VA_ARGS__, 0}, 1, 1, y, panel, x, n_blocks);                                               \
    else few((struct gemm_format){__VA_ARGS__, 0}, ROWS_MAX, n_rows, y, panel, x, n_blocks);                                               \
  }                                                                                                                                        \
  static void unpack_##name(struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {                                    \
    unpack((struct gemm_format){__VA_ARGS__, 0}, tile, p, n_blocks);                                                                       \
  }
GEMM_QUANTISED(KERNELS)

/* --- plain numbers ---------------------------------------------------------------------------------------------------- */

/* acc[row or panel] += n columns, ascending (BF16: pairs, x in bf16). One of n_rows and n_panels is 1. */
static ALWAYS_INLINE void plain(const int n_rows, const int n_panels, const enum dtype t, const uint8_t *restrict p, size_t panel_bytes,
                                const char *restrict x, size_t x_bytes, int n, float (*restrict acc)[GEMM_PANEL]) {
  const int step = t == DTYPE_BF16 ? 2 : 1, bytes = t == DTYPE_F16 ? 32 : 64;
  vec sum[PLAIN_ROWS_MAX];
  GEMM_UNROLL(8)
  for (int i = 0; i < n_rows * n_panels; i++) sum[i] = vec_load(acc[i]);
  for (int k = 0; k < n; k += step, p += bytes, x += 4) {
    GEMM_UNROLL(4)
    for (int panel = 0; panel < n_panels; panel++) {
      const uint8_t *at = p + (size_t)panel * panel_bytes;
      vec w = t == DTYPE_F16 ? load_f16(at) : vec_load((const float *)(const void *)at);
      if (n_rows == 1) _mm_prefetch((const char *)at + AHEAD_BYTES, _MM_HINT_T0);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) {
        __m512i v = broadcast4(x + (size_t)r * x_bytes);
        const int i = panel + r;
        if (t == DTYPE_BF16) sum[i] = dot_bf16(sum[i], _mm512_castps_si512(w), v);
        else sum[i] = vec_fma(w, _mm512_castsi512_ps(v), sum[i]);
      }
    }
  }
  GEMM_UNROLL(8)
  for (int i = 0; i < n_rows * n_panels; i++) vec_store(acc[i], sum[i]);
}

/* One row of x: sums of several panels side by side, because those of one would wait for each other. */
static ALWAYS_INLINE void plain_panels(const int n_panels, const enum dtype t, const uint8_t *restrict p, size_t panel_bytes, const void *x,
                                       int n, float (*restrict y)[GEMM_PANEL]) {
  plain(1, n_panels, t, p, panel_bytes, x, 0, n, y);
}

#define PLAIN(name)                                                                                                                        \
  static void plain_one_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels,            \
                               const void *x, int n) {                                                                                     \
    memset(y, 0, (size_t)n_panels * sizeof *y);                                                                                            \
    GEMM_BY_ROWS_4(n_panels, plain_panels, DTYPE_##name, panel, panel_bytes, x, n, y);                                                     \
  }                                                                                                                                        \
  static void plain_rows_##name(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,                           \
                                float(*restrict acc)[GEMM_PANEL]) {                                                                        \
    GEMM_BY_ROWS_8(n_rows, plain, 1, DTYPE_##name, panel, 0, x, x_bytes, n, acc);                                                          \
  }
PLAIN(F32)
PLAIN(F16)
PLAIN(BF16)

static void bf16_row(uint16_t *restrict y, const float *restrict x, int n) {
  for (int i = 0; i < n; i += 16) store_bf16(y + i, x + i, MIN(16, n - i));
  if (n % 2) y[n] = 0;
}

/* clang-format off */
#define TYPE(name, rows_kernel) [DTYPE_##name] = {.few = few_##name, .unpack = unpack_##name, .rows = rows_kernel}
#define TYPE_PLAIN(name)        [DTYPE_##name] = {.plain_one = plain_one_##name, .plain_rows = plain_rows_##name}
const struct gemm_kern gemm_avx512 = {
    .rows_max = ROWS_MAX,
    .few_max = FEW_MAX,
    .plain_rows_max = PLAIN_ROWS_MAX,
    .plain_panels_max = PLAIN_PANELS_MAX,
    .quantise_row = gemm_quantise_row_avx2,
    .bf16_row = bf16_row,
    .types = {
        TYPE(Q4_0, rows_offset_8), TYPE(Q4_1, rows_min), TYPE(Q5_0, rows_offset_16), TYPE(Q5_1, rows_min),
        TYPE(Q8_0, rows_offset_128), TYPE(Q2_K, rows_halves_min), TYPE(Q3_K, rows_halves_4), TYPE(Q4_K, rows_min),
        TYPE(Q5_K, rows_min), TYPE(Q6_K, rows_halves_32), TYPE(IQ4_NL, rows_offset_128), TYPE(IQ4_XS, rows_offset_128),
        TYPE_PLAIN(F32), TYPE_PLAIN(F16), TYPE_PLAIN(BF16),
    },
};
/* clang-format on */
