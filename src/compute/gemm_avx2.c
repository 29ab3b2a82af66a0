/* gemm_avx2.c — inner loops of matrix products with AVX2, FMA and F16C.
 *
 * Codes of 8 weight rows x 4 k are 32 bytes; the activations of those 4 k are one broadcast dword. vpmaddubsw multiplies unsigned codes with
 * signed activations and adds pairs into int16; several groups of 4 k are added there before vpmaddwd widens to int32. With |a| <= 127 a pair
 * is at most 2 * 127 * code, so it never saturates. A lane of 16 bits holds the sum of n groups:
 *     offset types   at most 2 * 127 * offset * n in the end: 32512 for offset 16 with 8 groups and for offset 32 with 4. The sum starts at
 *                    -offset * sum of a in its lane; what wraps on the way does not matter
 *     codes to 15    3810 a group,  8 groups 30480
 *     codes to 31    7874           4        31496
 *     8 bits         vpmaddubsw takes |w| <= 128 and a with the sign of w: 2 * 127 * 128 = 32512, widened at once
 * Types with a scale per 16 multiply with sub d while they widen: both halves are at most 2 * 2 * 32512 * 128 < 2^24, exact in float32 too.
 * A panel is two halves of 8 rows.
 */
#include "compute/gemm_codes256.h"

enum { ROWS_MAX = 4, FEW_MAX = 4, PLAIN_ROWS_MAX = 6, PLAIN_PANELS_MAX = 3, AHEAD_BYTES = 4096 };

static ALWAYS_INLINE void store256(void *p, __m256i v) { _mm256_store_si256((__m256i *)p, v); }

/* Hides where v comes from, so that the compiler keeps sums in the order written: reassociated ones need more registers than there are. */
static ALWAYS_INLINE __m256i keep(__m256i v) {
  __asm__("" : "+x"(v));
  return v;
}

/* Bits of a code as the multiplication sees it: 8-bit codes and table values are signed. */
static ALWAYS_INLINE int code_bits(const struct gemm_format f) { return f.table ? 8 : f.bits; }
static ALWAYS_INLINE int code_offset(const struct gemm_format f) { return f.bits == 8 ? 0 : f.offset; }

/* --- unpacking -------------------------------------------------------------------------------------------------------- */

/* Each twice, in 16 bits. */
static ALWAYS_INLINE __m256i load_s8_twice(const uint8_t *p) {
  __m128i v = _mm_loadl_epi64((const __m128i *)p);
  return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(v, v));
}
/* What a block's sums are multiplied with, of 8 rows. */
struct factors {
  __m256 scale;
  __m256i sub[2]; /* a scale per 16: what vpmaddwd widens with; scale is the record's */
  __m256 min[2];
};

/* For block b of a record; d and dmin are the record's, read once. */
static ALWAYS_INLINE struct factors load_factors(const struct gemm_format f, const uint8_t *header, __m256 d, __m256 dmin, int b,
                                                 const int half) {
  const int parts = GEMM_BLOCK / f.group;
  const uint8_t *sub = header + (f.mins ? 64 : 32) + half * 8 + b * parts * GEMM_PANEL;
  struct factors x = {.scale = f.subs && parts == 1 ? _mm256_mul_ps(d, load_s8(sub)) : d};
  for (int s = 0; s < parts; s++) {
    if (parts == 2) x.sub[s] = load_s8_twice(sub + s * GEMM_PANEL);
    if (f.mins) x.min[s] = f.subs ? _mm256_mul_ps(dmin, load_u8(sub + (f.blocks * parts + s) * GEMM_PANEL)) : dmin;
  }
  return x;
}

static ALWAYS_INLINE void unpack(const struct gemm_format f, struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes) {
      uint8_t *out = tile->codes[at + b][0];
      GEMM_UNROLL(2)
      for (int half = 0; half < 2; half++) {
        __m256i w[GROUPS];
        load_codes(f, w, p, half);
        GEMM_UNROLL(8)
        for (int g = 0; g < GROUPS; g++) store256(out + g * 64 + half * 32, w[g]);
        struct factors x = load_factors(f, header, load_f16(header + half * 16), load_f16(header + (f.mins ? 32 : 0) + half * 16), b, half);
        _mm256_store_ps(tile->scales[at + b][0] + half * 8, x.scale);
        for (int s = 0; s < GEMM_BLOCK / f.group; s++) {
          if (f.group == 16) store256(tile->subs[at + b][s] + half * 8, x.sub[s]);
          if (f.mins) _mm256_store_ps(tile->mins[at + b][s] + half * 8, x.min[s]);
        }
      }
    }
  }
}

/* --- products --------------------------------------------------------------------------------------------------------- */

/* -offset * sum of a in every 16-bit lane, for part s of `parts` of a block. */
static ALWAYS_INLINE __m256i start(const struct gemm_block *block, const int parts, const int s, const int offset) {
  if (parts == 1) return _mm256_srai_epi16(_mm256_set1_epi32(block->lanes_16), __builtin_ctz((unsigned)(16 / offset)));
  __m256i v = _mm256_set1_epi32(block->first_32);
  if (s == 1) v = _mm256_sub_epi16(_mm256_slli_epi16(_mm256_set1_epi32(block->lanes_16), 1), v);
  return _mm256_srai_epi16(v, __builtin_ctz((unsigned)(32 / offset)));
}

static ALWAYS_INLINE __m256 neg_sum(const struct gemm_block *block, const int parts, const int s) {
  if (parts == 1) return _mm256_broadcast_ss(&block->neg_sum);
  __m256i lanes = _mm256_srai_epi16(start(block, 2, s, 32), 5);
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(lanes, _mm256_set1_epi16(1)));
}

/* Groups that are added before they are widened. */
static ALWAYS_INLINE int groups_in_16_bits(const int bits, const int offset) { return bits == 8 ? 1 : offset || bits <= 4 ? GROUPS : 4; }

static ALWAYS_INLINE __m256i multiply(const int bits, __m256i w, __m256i a) {
  if (bits == 8) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return _mm256_maddubs_epi16(w, a);
}

/* Exact sums of part s of `parts` of a block, times sub. */
static ALWAYS_INLINE __m256i dot(const int bits, const int offset, const int parts, const int s, const __m256i *w, const int8_t *a,
                                 const struct gemm_block *block, __m256i sub) {
  const int n = GROUPS / parts, chunk = MIN(n, groups_in_16_bits(bits, offset));
  __m256i sum = _mm256_setzero_si256();
  GEMM_UNROLL(8)
  for (int g = 0; g < n; g += chunk) {
    __m256i part = offset ? start(block, parts, s, offset) : _mm256_setzero_si256();
    GEMM_UNROLL(8)
    for (int i = g; i < g + chunk; i++) {
      __m256i p = multiply(bits, w[i], broadcast4(a + 4 * i));
      part = i == g && !offset ? p : _mm256_add_epi16(part, p);
    }
    part = _mm256_madd_epi16(part, sub);
    sum = g == 0 ? part : _mm256_add_epi32(sum, part);
  }
  return sum;
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
        __m256i w[GROUPS];
        load_codes(f, w, p, half);
        struct factors q = load_factors(f, header, load_f16(header + half * 16), load_f16(header + (f.mins ? 32 : 0) + half * 16), b, half);
        GEMM_UNROLL(1)
        for (int r = 0; r < n_rows; r++) {
          __m256i sum = _mm256_setzero_si256();
          GEMM_UNROLL(2)
          for (int s = 0; s < parts; s++) {
            __m256i v = dot(code_bits(f), code_offset(f), parts, s, w + s * GROUPS / parts, a + r * GEMM_BLOCK + s * f.group, blocks + r,
                            parts == 2 ? q.sub[s] : _mm256_set1_epi16(1));
            sum = s == 0 ? v : _mm256_add_epi32(sum, v);
          }
          __m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), q.scale);
          for (int s = 0; s < (f.mins ? parts : 0); s++) t = _mm256_fmadd_ps(q.min[s], neg_sum(blocks + r, parts, s), t);
          acc[r][half] = _mm256_fmadd_ps(t, _mm256_broadcast_ss(&blocks[r].d), acc[r][half]);
        }
      }
    }
  }
  for (int r = 0; r < n_rows; r++) {
    _mm256_storeu_ps(y[r], acc[r][0]);
    _mm256_storeu_ps(y[r] + 8, acc[r][1]);
  }
}

/* The same sums for n_rows rows and both halves of a panel, of signed codes of 8 bits, 64 bytes a group: products are widened at once, so that no more
 * than two sums in 16 bits take registers. */
static ALWAYS_INLINE void dot_rows_8bit(const int n_rows, __m256i sum[ROWS_MAX][2], const uint8_t *w, const int8_t *a) {
  const __m256i ones = _mm256_set1_epi16(1);
  GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) {
    __m256i w0 = load256(w + g * 64), w1 = load256(w + g * 64 + 32), magnitude0 = _mm256_abs_epi8(w0), magnitude1 = _mm256_abs_epi8(w1);
    GEMM_UNROLL(4)
    for (int r = 0; r < n_rows; r++) {
      __m256i v = broadcast4(a + r * GEMM_BLOCK + 4 * g);
      __m256i p0 = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude0, _mm256_sign_epi8(v, w0)), ones);
      __m256i p1 = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude1, _mm256_sign_epi8(v, w1)), ones);
      sum[r][0] = keep(g == 0 ? p0 : _mm256_add_epi32(sum[r][0], p0));
      sum[r][1] = keep(g == 0 ? p1 : _mm256_add_epi32(sum[r][1], p1));
    }
  }
}

/* The same for codes of any type, from a tile's codes w: 64 bytes a group. sub: [2][8] of the part, or NULL. */
static ALWAYS_INLINE void dot_rows(const int n_rows, const int bits, const int offset, const int parts, const int s,
                                   __m256i sum[ROWS_MAX][2], const uint8_t *w, const int8_t *a, const struct gemm_block *blocks,
                                   const int32_t *sub) {
  if (bits == 8) {
    dot_rows_8bit(n_rows, sum, w, a);
    return;
  }
  const int n = GROUPS / parts, chunk = MIN(n, groups_in_16_bits(bits, offset));
  GEMM_UNROLL(8)
  for (int g = 0; g < n; g += chunk) {
    __m256i part[ROWS_MAX][2];
    if (offset) GEMM_UNROLL(4)
    for (int r = 0; r < n_rows; r++) part[r][0] = part[r][1] = start(blocks + r, parts, s, offset);
    GEMM_UNROLL(8)
    for (int i = g; i < g + chunk; i++) {
      __m256i w0 = load256(w + i * 64), w1 = load256(w + i * 64 + 32);
      GEMM_UNROLL(4)
      for (int r = 0; r < n_rows; r++) {
        __m256i v = broadcast4(a + r * GEMM_BLOCK + 4 * i), p0 = _mm256_maddubs_epi16(w0, v), p1 = _mm256_maddubs_epi16(w1, v);
        part[r][0] = keep(i == g && !offset ? p0 : _mm256_add_epi16(part[r][0], p0));
        part[r][1] = keep(i == g && !offset ? p1 : _mm256_add_epi16(part[r][1], p1));
      }
    }
    GEMM_UNROLL(4)
    for (int r = 0; r < n_rows; r++) GEMM_UNROLL(2)
    for (int half = 0; half < 2; half++) {
      __m256i v = _mm256_madd_epi16(part[r][half], sub ? load256(sub + half * 8) : _mm256_set1_epi16(1));
      sum[r][half] = keep(g == 0 && s == 0 ? v : _mm256_add_epi32(sum[r][half], v));
    }
  }
}

/* What the kernels of several rows depend on: bits of the codes (8: signed), parts with a scale each, offset, minima. */
static ALWAYS_INLINE void rows_n(const int n_rows, const int bits, const int parts, const int offset, const bool mins,
                                 const struct gemm_tile *restrict tile, int n_blocks, struct gemm_x x, struct gemm_sums sums,
                                 struct gemm_ahead ahead) {
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  for (int b = 0; b < n_blocks; b++, a += ROWS_MAX * GEMM_BLOCK, blocks += ROWS_MAX) {
    for (int i = 0; i < ahead.bytes_per_block; i += 64) _mm_prefetch((const char *)ahead.p + i, _MM_HINT_T0);
    ahead.p += ahead.bytes_per_block;
    const bool first = sums.first && b == 0;
    __asm__("" : "+r"(sums.at)); /* or the compiler keeps copies of sums on the stack from block to block */
    __m256i sum[ROWS_MAX][2];
    GEMM_UNROLL(2)
    for (int s = 0; s < parts; s++)
      dot_rows(n_rows, bits, offset, parts, s, sum, tile->codes[b][s * GROUPS / parts], a + s * 16, blocks,
               parts == 2 ? tile->subs[b][s] : NULL);
    GEMM_UNROLL(4)
    for (int r = 0; r < n_rows; r++) GEMM_UNROLL(2)
    for (int half = 0; half < 2; half++) {
      __m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][half]), _mm256_load_ps(tile->scales[b][0] + half * 8));
      for (int s = 0; s < (mins ? parts : 0); s++)
        t = _mm256_fmadd_ps(_mm256_load_ps(tile->mins[b][s] + half * 8), neg_sum(blocks + r, parts, s), t);
      float *to = gemm_sums_row(&sums, r) + half * 8;
      __m256 so_far = first ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
      _mm256_storeu_ps(to, _mm256_fmadd_ps(t, _mm256_broadcast_ss(&blocks[r].d), so_far));
    }
  }
}

#define ROWS(name, bits, parts, offset, mins)                                                                                              \
  static void name(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, struct gemm_sums sums,                \
                   struct gemm_ahead ahead) {                                                                                              \
    GEMM_BY_ROWS_4(n_rows, rows_n, bits, parts, offset, mins, tile, n_blocks, x, sums, ahead);                                             \
  }
ROWS(rows_4bit_offset, 4, 1, 8, false)
ROWS(rows_4bit_min, 4, 1, 0, true)
ROWS(rows_5bit_offset, 5, 1, 16, false)
ROWS(rows_5bit_min, 5, 1, 0, true)
ROWS(rows_8bit, 8, 1, 0, false)
ROWS(rows_2bit_16, 2, 2, 0, true)
ROWS(rows_3bit_16, 3, 2, 4, false)
ROWS(rows_6bit_16, 6, 2, 32, false)

/* A group of rows times one block of 8-bit codes. */
static ALWAYS_INLINE void direct_group(const int n_rows, const uint8_t *restrict codes, __m256 scale0, __m256 scale1, struct gemm_x x,
                                       float (*restrict acc)[GEMM_PANEL]) {
  __asm__("" : "+r"(acc), "+r"(codes)); /* or the compiler keeps a block's magnitudes on the stack */
  __m256i sum[ROWS_MAX][2];
  dot_rows_8bit(n_rows, sum, codes, x.codes);
  GEMM_UNROLL(4)
  for (int r = 0; r < n_rows; r++) GEMM_UNROLL(2)
  for (int half = 0; half < 2; half++) {
    __m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][half]), half ? scale1 : scale0);
    float *to = acc[r] + half * 8;
    _mm256_store_ps(to, _mm256_fmadd_ps(t, _mm256_broadcast_ss(&x.blocks[r].d), _mm256_load_ps(to)));
  }
}

/* The same sums as few_Q8_0. */
static void direct_8bit(const uint8_t *restrict p, int n_blocks, int n_rows, struct gemm_x x, int x_blocks,
                        float (*restrict acc)[GEMM_PANEL], bool ahead) {
  enum { HEADER_BYTES = 2 * GEMM_PANEL, RECORD_BYTES = HEADER_BYTES + GEMM_BLOCK * GEMM_PANEL };
  for (int b = 0; b < n_blocks; b++, p += RECORD_BYTES) {
    for (int i = 0; i < (ahead ? RECORD_BYTES : 0); i += 64) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
    __m256 scale0 = load_f16(p), scale1 = load_f16(p + GEMM_PANEL);
    for (int r = 0; r < n_rows; r += ROWS_MAX) {
      size_t at = (size_t)r * (size_t)x_blocks + (size_t)(b * ROWS_MAX);
      struct gemm_x group = {x.codes + at * GEMM_BLOCK, x.blocks + at};
      if (n_rows - r >= ROWS_MAX) direct_group(ROWS_MAX, p + HEADER_BYTES, scale0, scale1, group, acc + r);
      else GEMM_BY_ROWS_4(n_rows - r, direct_group, p + HEADER_BYTES, scale0, scale1, group, acc + r);
    }
  }
}

#define FEW(name, ...)                                                                                                                     \
  static void few_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, struct gemm_x x, int n_blocks, int n_rows) {       \
    if (n_rows == 1) few((struct gemm_format){__VA_ARGS__, 0}, 1, 1, y, panel, x, n_blocks);                                               \
    else few((struct gemm_format){__VA_ARGS__, 0}, ROWS_MAX, n_rows, y, panel, x, n_blocks);                                               \
  }
#define UNPACK(name, ...)                                                                                                                  \
  static void unpack_##name(struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks) {                                    \
    unpack((struct gemm_format){__VA_ARGS__, 0}, tile, p, n_blocks);                                                                       \
  }
GEMM_QUANTISED(FEW)
GEMM_QUANTISED_BELOW_8(UNPACK)

/* --- plain numbers ---------------------------------------------------------------------------------------------------- */

/* 8 rows of column k (F32, F16), or of columns k and k + 1 (BF16: even first). */
static ALWAYS_INLINE void load_plain(const enum dtype t, __m256 w[2], const uint8_t *p, const int half) {
  if (t == DTYPE_F32) w[0] = _mm256_loadu_ps((const float *)(const void *)(p + half * 32));
  if (t == DTYPE_F16) w[0] = load_f16(p + half * 16);
  if (t == DTYPE_BF16) {
    __m256i v = load256(p + half * 32);
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(-65536)));
  }
}

/* acc[row or panel][half] += n columns, ascending. One of n_rows and n_panels is 1. */
static ALWAYS_INLINE void plain(const int n_rows, const int n_panels, const enum dtype t, const uint8_t *restrict p, size_t panel_bytes,
                                const char *restrict x, size_t x_bytes, int n, float (*restrict acc)[GEMM_PANEL]) {
  const int step = t == DTYPE_BF16 ? 2 : 1, bytes = t == DTYPE_F16 ? 32 : 64;
  __m256 sum[PLAIN_ROWS_MAX][2];
  GEMM_UNROLL(6)
  for (int i = 0; i < n_rows * n_panels; i++) {
    sum[i][0] = _mm256_load_ps(acc[i]);
    sum[i][1] = _mm256_load_ps(acc[i] + 8);
  }
  for (int k = 0; k < n; k += step, p += bytes) {
    const bool odd_end = step == 2 && k + 1 == n;
    GEMM_UNROLL(2)
    for (int panel = 0; panel < n_panels; panel++) {
      __m256 w0[2], w1[2];
      load_plain(t, w0, p + (size_t)panel * panel_bytes, 0);
      load_plain(t, w1, p + (size_t)panel * panel_bytes, 1);
      if (n_rows == 1) _mm_prefetch((const char *)p + (size_t)panel * panel_bytes + AHEAD_BYTES, _MM_HINT_T0);
      GEMM_UNROLL(6)
      for (int r = 0; r < n_rows; r++) {
        const float *xr = (const float *)(const void *)(x + (size_t)r * x_bytes) + k;
        const int i = panel + r;
        __m256 v = _mm256_broadcast_ss(xr);
        sum[i][0] = _mm256_fmadd_ps(w0[0], v, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(w1[0], v, sum[i][1]);
        if (step == 1 || odd_end) continue;
        v = _mm256_broadcast_ss(xr + 1);
        sum[i][0] = _mm256_fmadd_ps(w0[1], v, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(w1[1], v, sum[i][1]);
      }
    }
  }
  GEMM_UNROLL(6)
  for (int i = 0; i < n_rows * n_panels; i++) {
    _mm256_store_ps(acc[i], sum[i][0]);
    _mm256_store_ps(acc[i] + 8, sum[i][1]);
  }
}

/* One row of x: sums of several panels side by side, because those of one would wait for each other. */
static ALWAYS_INLINE void plain_panels(const int n_panels, const enum dtype t, const uint8_t *restrict p, size_t panel_bytes, const void *x,
                                       int n, float (*restrict y)[GEMM_PANEL]) {
  plain(1, n_panels, t, p, panel_bytes, x, 0, n, y);
}

/* Columns of a panel as float32, [n][16]. */
static ALWAYS_INLINE void expand(const enum dtype t, float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) {
  const int step = t == DTYPE_BF16 ? 2 : 1, bytes = t == DTYPE_F16 ? 32 : 64;
  for (int k = 0; k < n; k += step, p += bytes) {
    for (int half = 0; half < 2; half++) {
      __m256 v[2];
      load_plain(t, v, p, half);
      _mm256_store_ps(w[k] + 8 * half, v[0]);
      if (step == 2 && k + 1 < n) _mm256_store_ps(w[k + 1] + 8 * half, v[1]);
    }
  }
}
static void expand_F16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) { expand(DTYPE_F16, w, p, n); }
static void expand_BF16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) { expand(DTYPE_BF16, w, p, n); }

static ALWAYS_INLINE void wide(const int n_rows, const float *restrict w, int n, const float *restrict x, float *restrict y, size_t y_bytes,
                               bool first) {
  __m256 sum[PLAIN_ROWS_MAX][2];
  GEMM_UNROLL(6)
  for (int r = 0; r < n_rows; r++) {
    const float *from = (const float *)(const void *)((const char *)y + (size_t)r * y_bytes);
    sum[r][0] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(from);
    sum[r][1] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(from + 8);
    _mm_prefetch((const char *)y + (size_t)(PLAIN_ROWS_MAX + r) * y_bytes, _MM_HINT_T0); /* the next rows' */
  }
  for (int k = 0; k < n; k++, w += GEMM_PANEL) {
    __m256 a = _mm256_load_ps(w), b = _mm256_load_ps(w + 8);
    GEMM_UNROLL(6)
    for (int r = 0; r < n_rows; r++) {
      __m256 v = _mm256_broadcast_ss(x + r * GEMM_WIDE_STRIDE + k);
      sum[r][0] = _mm256_fmadd_ps(a, v, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(b, v, sum[r][1]);
    }
  }
  GEMM_UNROLL(6)
  for (int r = 0; r < n_rows; r++) {
    float *to = (float *)(void *)((char *)y + (size_t)r * y_bytes);
    _mm256_storeu_ps(to, sum[r][0]);
    _mm256_storeu_ps(to + 8, sum[r][1]);
  }
}
static void wide_rows(const float *restrict w, int n, int n_rows, const float *restrict x, float *restrict y, size_t y_bytes, bool first) {
  GEMM_BY_ROWS_6(n_rows, wide, w, n, x, y, y_bytes, first);
}

#define PLAIN(name)                                                                                                                        \
  static void plain_one_##name(float(*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels,            \
                               const void *x, int n) {                                                                                     \
    memset(y, 0, (size_t)n_panels * sizeof *y);                                                                                            \
    GEMM_BY_ROWS_4(n_panels, plain_panels, DTYPE_##name, panel, panel_bytes, x, n, y);                                                     \
  }                                                                                                                                        \
  static void plain_rows_##name(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,                           \
                                float(*restrict acc)[GEMM_PANEL]) {                                                                        \
    GEMM_BY_ROWS_6(n_rows, plain, 1, DTYPE_##name, panel, 0, x, x_bytes, n, acc);                                                          \
  }
PLAIN(F32)
PLAIN(F16)
PLAIN(BF16)

/* --- activations ------------------------------------------------------------------------------------------------------ */

static ALWAYS_INLINE int32_t max_8(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
/* The sums of a block, from its codes. */
static ALWAYS_INLINE void block_sums(struct gemm_block *block, __m256i codes) {
  __m256i v = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes); /* pairs */
  v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
  v = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1))); /* lanes of each half */
  __m128i first = _mm256_castsi256_si128(v), both = _mm_add_epi16(first, _mm256_extracti128_si256(v, 1));
  block->lanes_16 = _mm_cvtsi128_si32(_mm_slli_epi16(both, 4));
  block->first_32 = _mm_cvtsi128_si32(_mm_slli_epi16(first, 5));
  block->neg_sum = (float)_mm_cvtsi128_si32(_mm_madd_epi16(both, _mm_set1_epi16(1)));
}

static void quantise_row(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x, int n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int k = 0; k < n; k += GEMM_BLOCK, blocks += group, codes += group * GEMM_BLOCK) {
    __m256 v[4];
    __m256i q[4], top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
      v[i] = _mm256_loadu_ps(x + k + i * 8);
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude)); /* orders floats by magnitude, NaN above all */
    }
    float scale = gemm_block_scale(max_8(top), &blocks->d);
    if (scale == 0) {
      memset(codes, 0, GEMM_BLOCK);
      *blocks = (struct gemm_block){.d = blocks->d};
      continue;
    }
    for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(scale)));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)codes, bytes);
    block_sums(blocks, bytes);
  }
}

/* clang-format off */
#define TYPE(name, rows_kernel) [DTYPE_##name] = {.few = few_##name, .unpack = unpack_##name, .rows = rows_kernel}
#define TYPE_PLAIN(name, expand) [DTYPE_##name] = {.plain_one = plain_one_##name, .plain_rows = plain_rows_##name, .plain_expand = expand}
const struct gemm_kern gemm_avx2 = {
    .rows_max = ROWS_MAX,
    .few_max = FEW_MAX,
    .plain_rows_max = PLAIN_ROWS_MAX,
    .plain_panels_max = PLAIN_PANELS_MAX,
    .quantise_row = quantise_row,
    .codes_x_bytes = 192 << 10,
    .wide_rows = wide_rows,
    .types = {
        TYPE(Q4_0, rows_4bit_offset), TYPE(Q4_1, rows_4bit_min), TYPE(Q5_0, rows_5bit_offset), TYPE(Q5_1, rows_5bit_min),
        TYPE(Q2_K, rows_2bit_16), TYPE(Q3_K, rows_3bit_16), TYPE(Q4_K, rows_4bit_min),
        TYPE(Q5_K, rows_5bit_min), TYPE(Q6_K, rows_6bit_16), TYPE(IQ4_NL, rows_8bit), TYPE(IQ4_XS, rows_8bit),
        [DTYPE_Q8_0] = {.few = few_Q8_0, .direct = direct_8bit},
        TYPE_PLAIN(F32, NULL), TYPE_PLAIN(F16, expand_F16), TYPE_PLAIN(BF16, expand_BF16),
    },
};
/* clang-format on */
