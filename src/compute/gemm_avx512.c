/* gemm_avx512.c — inner loops of matrix products with AVX-512 VNNI, and the tables of the variants that have it: bf16 products are in
 * gemm_avx512bf16.c, tiles in gemm_amx.c, as not every machine with VNNI has them.
 *
 * Codes of 16 weight rows x 4 k are one register; the activations of those 4 k are one broadcast dword. Sums start where gemm_vnni.h says. Where two
 * pipes do vpdpbusd and fma, 8 rows of x and a block take 80 of their slots, 64 for products (88 with minima, 96 with scales per 16), and 83 loads.
 */
#include "compute/gemm_vnni512.h"

enum { ROWS_MAX = 8, FEW_MAX = 4, PLAIN_ROWS_MAX = 8, PLAIN_PANELS_MAX = 4, GROUPS = 8 };

static ALWAYS_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

static ALWAYS_INLINE __m512i broadcast4(const void *a) {
  int32_t v;
  memcpy(&v, a, 4);
  return _mm512_set1_epi32(v);
}

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE vec load_u8(const uint8_t *p) {
  float x[16];
  for (int i = 0; i < 16; i++) x[i] = (float)p[i];
  return vec_load(x);
}
#else
static ALWAYS_INLINE vec load_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
#endif

/* Shift 16-bit lanes left by n, right for a negative n; bits that cross bytes are masked away by the caller. */
static ALWAYS_INLINE __m512i shift16(__m512i v, const int n) {
  return n > 0 ? _mm512_slli_epi16(v, n) : n < 0 ? _mm512_srli_epi16(v, -n) : v;
}

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
    GEMM_UNROLL(8)
    for (int g = 0; g < GROUPS; g++) w[g] = _mm512_shuffle_epi8(table, w[g]);
  }
  if (f.offset && f.bits < 8) GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) w[g] = _mm512_sub_epi8(w[g], _mm512_set1_epi8((char)f.offset));
}

/* 128 * sum of w - M over part s of `parts`. */
static ALWAYS_INLINE __m512i neg_start(const __m512i w[GROUPS], const int parts, const int s) {
  __m512i sum = _mm512_set1_epi32(-VNNI_MAGIC_BITS);
  GEMM_UNROLL(8)
  for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++) sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), w[g]);
  return sum;
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
  const bool as_they_lie = f.bits == 8 && f.blocks == 1;
  tile->codes_at = as_they_lie ? p + header_bytes : tile->codes[0][0];
  tile->codes_step = as_they_lie ? header_bytes + block_bytes : sizeof tile->codes[0];
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    vec d = load_f16(header), dmin = load_f16(header + (f.mins ? 32 : 0));
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes) {
      __m512i w[GROUPS];
      vec scale[2], min[2];
      load_codes(f, w, p);
      if (!as_they_lie) GEMM_UNROLL(8)
      for (int g = 0; g < GROUPS; g++) _mm512_store_si512(tile->codes[at + b][g], w[g]);
      load_scales(f, scale, min, header, d, dmin, b);
      for (int s = 0; s < GEMM_BLOCK / f.group; s++) {
        __m512i start = _mm512_sub_epi32(_mm512_setzero_si512(), neg_start(w, GEMM_BLOCK / f.group, s));
        _mm512_store_si512(tile->starts[at + b][s], start);
        vec_store(tile->scales[at + b][s], scale[s]);
        if (f.mins) vec_store(tile->mins[at + b][s], min[s]);
      }
    }
  }
}

/* --- products --------------------------------------------------------------------------------------------------------- */

static ALWAYS_INLINE vec broadcast(const float *x) { return vec_set1(*x); }

/* Straight from the packed bytes, for a group of `group` rows of which n_rows are there: while the weights come from memory, unpacking them
 * for each use costs nothing. */
static ALWAYS_INLINE void few(const struct gemm_format f, const int group, const int n_rows, float (*restrict y)[GEMM_PANEL],
                              const uint8_t *restrict p, struct gemm_x x, int n_blocks) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  const int parts = GEMM_BLOCK / f.group, ahead = vec_ahead_bytes();
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  vec acc[ROWS_MAX];
  for (int r = 0; r < n_rows; r++) acc[r] = vec_zero();
  for (int at = 0; at < n_blocks; at += f.blocks) {
    const uint8_t *header = p;
    vec d = load_f16(header), dmin = load_f16(header + (f.mins ? 32 : 0));
    vec_ask(p, header_bytes, ahead);
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes, a += group * GEMM_BLOCK, blocks += group) {
      __m512i w[GROUPS];
      vec scale[2], min[2];
      vec_ask(p, block_bytes, ahead);
      load_codes(f, w, p);
      load_scales(f, scale, min, header, d, dmin, b);
      __m512i less[2];
      for (int s = 0; s < parts; s++) less[s] = neg_start(w, parts, s);
      vec magic = vnni_magic_times(scale[0]);
      GEMM_UNROLL(1)
      for (int r = 0; r < n_rows; r++) {
        vec t = vec_zero();
        GEMM_UNROLL(2)
        for (int s = 0; s < parts; s++) {
          __m512i sum = _mm512_setzero_si512();
          GEMM_UNROLL(8)
          for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++)
            sum = _mm512_dpbusd_epi32(sum, broadcast4(a + r * GEMM_BLOCK + 4 * g), w[g]);
          t = vnni_scaled(t, _mm512_sub_epi32(sum, less[s]), scale[s], magic, s);
        }
        for (int s = 0; s < (f.mins ? parts : 0); s++) t = vec_fma(min[s], broadcast(vnni_neg_sum(blocks + r, parts, s)), t);
        acc[r] = vec_fma(t, broadcast(&vnni_block(blocks + r)->d), acc[r]);
      }
    }
  }
  for (int r = 0; r < n_rows; r++) vec_store(y[r], acc[r]);
}

/* What the kernels of several rows depend on: scales per block, and minima. */
static ALWAYS_INLINE void rows_n(const int n_rows, const int parts, const bool mins, const struct gemm_tile *restrict tile, int n_blocks,
                                 struct gemm_x x, struct gemm_sums sums, struct gemm_ahead ahead) {
  const int8_t *a = x.codes;
  const struct gemm_block *blocks = x.blocks;
  vec acc[ROWS_MAX];
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) {
    acc[r] = sums.first ? vec_zero() : vec_load(gemm_sums_row(&sums, r));
    __builtin_prefetch(gemm_sums_row(&sums, r), 1);
  }
  const uint8_t *codes = tile->codes_at;
  for (int b = 0; b < n_blocks; b++, codes += tile->codes_step, a += ROWS_MAX * GEMM_BLOCK, blocks += ROWS_MAX) {
    for (int i = 0; i < ahead.bytes_per_block; i += 64) _mm_prefetch((const char *)ahead.p + i, _MM_HINT_T1);
    ahead.p += ahead.bytes_per_block;
    vec t[ROWS_MAX];
    GEMM_UNROLL(2)
    for (int s = 0; s < parts; s++) {
      __m512i sum[ROWS_MAX], start = load512(tile->starts[b][s]);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) sum[r] = start;
      GEMM_UNROLL(8)
      for (int g = s * GROUPS / parts; g < (s + 1) * GROUPS / parts; g++) {
        __m512i w = load512(codes + g * 64);
        GEMM_UNROLL(8)
        for (int r = 0; r < n_rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], broadcast4(a + r * GEMM_BLOCK + 4 * g), w);
      }
      vec scale = vec_load(tile->scales[b][s]), magic = vnni_magic_times(scale);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) t[r] = vnni_scaled(t[r], sum[r], scale, magic, s);
    }
    for (int s = 0; s < (mins ? parts : 0); s++) {
      vec min = vec_load(tile->mins[b][s]);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) t[r] = vec_fma(min, broadcast(vnni_neg_sum(blocks + r, parts, s)), t[r]);
    }
    GEMM_UNROLL(8)
    for (int r = 0; r < n_rows; r++) acc[r] = vec_fma(t[r], broadcast(&vnni_block(blocks + r)->d), acc[r]);
  }
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) vec_store(gemm_sums_row(&sums, r), acc[r]);
}

#define ROWS(name, parts, mins)                                                                                                            \
  static void name(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, struct gemm_sums sums,                \
                   struct gemm_ahead ahead) {                                                                                              \
    GEMM_BY_ROWS_8(n_rows, rows_n, parts, mins, tile, n_blocks, x, sums, ahead);                                                           \
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

/* --- plain numbers ---------------------------------------------------------------------------------------------------- */

/* 16 rows of column k (F32, F16), or of columns k and k + 1 (BF16: even first). */
static ALWAYS_INLINE void load_plain(const enum dtype t, vec w[2], const uint8_t *p) {
  if (t == DTYPE_F32) w[0] = vec_load((const float *)(const void *)p);
  if (t == DTYPE_F16) w[0] = load_f16(p);
  if (t == DTYPE_BF16) {
    __m512i v = load512(p);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536)));
  }
}

/* acc[row or panel] += n columns, ascending. One of n_rows and n_panels is 1. */
static ALWAYS_INLINE void plain(const int n_rows, const int n_panels, const enum dtype t, const uint8_t *restrict p, size_t panel_bytes,
                                const char *restrict x, size_t x_bytes, int n, float (*restrict acc)[GEMM_PANEL]) {
  const int step = t == DTYPE_BF16 ? 2 : 1, bytes = t == DTYPE_F16 ? 32 : 64, ahead = vec_ahead_bytes();
  vec sum[PLAIN_ROWS_MAX];
  GEMM_UNROLL(8)
  for (int i = 0; i < n_rows * n_panels; i++) sum[i] = vec_load(acc[i]);
  for (int k = 0; k < n; k += step, p += bytes) {
    const bool odd_end = step == 2 && k + 1 == n;
    GEMM_UNROLL(4)
    for (int panel = 0; panel < n_panels; panel++) {
      const uint8_t *at = p + (size_t)panel * panel_bytes;
      vec w[2];
      load_plain(t, w, at);
      if (n_rows == 1) vec_ask(at, 1, ahead);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) {
        const float *xr = (const float *)(const void *)(x + (size_t)r * x_bytes) + k;
        sum[panel + r] = vec_fma(w[0], broadcast(xr), sum[panel + r]);
        if (step == 1 || odd_end) continue;
        sum[panel + r] = vec_fma(w[1], broadcast(xr + 1), sum[panel + r]);
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

/* Columns of a panel as float32, [n][16]. */
static ALWAYS_INLINE void expand(const enum dtype t, float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) {
  const int step = t == DTYPE_BF16 ? 2 : 1, bytes = t == DTYPE_F16 ? 32 : 64;
  for (int k = 0; k < n; k += step, p += bytes) {
    vec v[2];
    load_plain(t, v, p);
    vec_store(w[k], v[0]);
    if (step == 2 && k + 1 < n) vec_store(w[k + 1], v[1]);
  }
}
static void expand_F16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) { expand(DTYPE_F16, w, p, n); }
static void expand_BF16(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict p, int n) { expand(DTYPE_BF16, w, p, n); }

static ALWAYS_INLINE void wide(const int n_rows, const float *restrict w, int n, const float *restrict x, float *restrict y, size_t y_bytes,
                               bool first) {
  vec sum[PLAIN_ROWS_MAX];
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) {
    const float *from = (const float *)(const void *)((const char *)y + (size_t)r * y_bytes);
    sum[r] = first ? vec_zero() : vec_load(from);
    _mm_prefetch((const char *)y + (size_t)(PLAIN_ROWS_MAX + r) * y_bytes, _MM_HINT_T0); /* the next rows' */
  }
  for (int k = 0; k < n; k++, w += GEMM_PANEL) {
    vec v = vec_load(w);
    GEMM_UNROLL(8)
    for (int r = 0; r < n_rows; r++) sum[r] = vec_fma(v, broadcast(x + r * GEMM_WIDE_STRIDE + k), sum[r]);
  }
  GEMM_UNROLL(8)
  for (int r = 0; r < n_rows; r++) vec_store((float *)(void *)((char *)y + (size_t)r * y_bytes), sum[r]);
}
static void wide_rows(const float *restrict w, int n, int n_rows, const float *restrict x, float *restrict y, size_t y_bytes, bool first) {
  GEMM_BY_ROWS_8(n_rows, wide, w, n, x, y, y_bytes, first);
}

static void quantise_row(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x, int n) {
  vnni512_quantise(codes, blocks, group, x, n);
}

/* clang-format off */
#define TYPE(name, rows_kernel) [DTYPE_##name] = {.few = few_##name, .unpack = unpack_##name, .rows = rows_kernel}
#define TYPE_PLAIN(name, expand) [DTYPE_##name] = {.plain_one = plain_one_##name, .plain_rows = plain_rows_##name, .plain_expand = expand}
#define TYPES_QUANTISED(T)                                                                                                                 \
  T(Q4_0, rows_32), T(Q4_1, rows_32_min), T(Q5_0, rows_32), T(Q5_1, rows_32_min), T(Q8_0, rows_32), T(Q2_K, rows_16_min),                  \
  T(Q3_K, rows_16), T(Q4_K, rows_32_min), T(Q5_K, rows_32_min), T(Q6_K, rows_16), T(IQ4_NL, rows_32), T(IQ4_XS, rows_32)
#define COMMON                                                                                                                             \
  .rows_max = ROWS_MAX, .few_max = FEW_MAX, .plain_rows_max = PLAIN_ROWS_MAX, .plain_panels_max = PLAIN_PANELS_MAX,                        \
  .quantise_row = quantise_row, .codes_x_bytes = 448 << 10, .codes_in_passes = true

const struct gemm_kern gemm_avx512 = {
    COMMON,
    .wide_rows = wide_rows,
    .types = {TYPES_QUANTISED(TYPE), TYPE_PLAIN(F32, NULL), TYPE_PLAIN(F16, expand_F16), TYPE_PLAIN(BF16, expand_BF16)},
};

const struct gemm_kern gemm_avx512bf16 = {
    COMMON,
    .bf16_row = gemm_bf16_row,
    .types = {TYPES_QUANTISED(TYPE), TYPE_PLAIN(F32, NULL), TYPE_PLAIN(F16, expand_F16),
              [DTYPE_BF16] = {.plain_one = gemm_plain_one_bf16, .plain_rows = gemm_plain_rows_bf16}},
};

const struct gemm_kern gemm_amx = {
    COMMON,
    .types = {TYPE_PLAIN(F32, NULL), TYPE_PLAIN(F16, expand_F16)},
    .tiles = &gemm_amx_tiles,
};
/* clang-format on */
