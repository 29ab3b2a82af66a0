/* attnk_amx.c — attention over keys and values of bf16 on AMX tiles: struct attn_whole of attn_kern.h.
 *
 * Keys and values are bf16 as they lie. Queries and weights p = exp(score - max) are float32, so each is taken as the sum of two numbers of bf16, hi + lo,
 * which is right to 2^-17 of it; all four products with bf16 factors are exact. So scores and results are about as good as those of float32, at twice
 * the products: still eight times what multiply-adds of 512 bits give.
 *
 *   scores   S [lines × keys] += (q_hi, q_lo) [lines × dims] · Kᵀ [dims × keys]        a tile of Kᵀ: 16 pairs of dims × 16 keys
 *   values   O [lines × dims] += (p_hi, p_lo) [lines × keys] · V  [keys × dims]        a tile of V:  16 pairs of keys × 16 dims
 *
 * Every score runs over blocks of 32 dims upwards, hi before lo, every result over blocks of 32 keys upwards, hi before lo; whatever the processor's
 * order inside a tile's product, it depends on no other line. A block of keys that a line does not see adds zeros, that is nothing. So two ways give the
 * same bits:
 *
 *   many   keys and values of the segment are packed, then lines go over them in groups of 32 (two tiles), whose scores stay in the first-level cache
 *   few    up to 16 lines, bound by memory: scores with keys as they lie, turned afterwards; of values a block of keys × 32 dims is packed while the one
 *          before it is multiplied, in a place that stays in the first-level cache, and the sums of 64 dims stay in tiles over all blocks
 */
#if defined(__x86_64__)
#include "compute/vec_avx512.h"

#include "compute/attnk_whole.h"
#include "compute/tiles_amx.h"

enum {
  SIDE = 16,           /* rows of a tile */
  BLOCK = WHOLE_BLOCK, /* keys or dims of two tiles side by side */
  GROUP = 2 * SIDE,    /* lines */
  TILE_BYTES = 1024,
  PAIR_BYTES = 2 * TILE_BYTES,
  COLUMNS = 4,   /* of few lines, that become columns of a tile and rows again together */
  KEY_TILES = 4, /* whose scores with few lines are summed at once */
};

/* Sums of lines 0 to 15 and 16 to 31 by two tiles of columns; factors. */
#define T_C00 0
#define T_C01 1
#define T_C10 2
#define T_C11 3
#define T_A0  4
#define T_A1  5
#define T_B0  6
#define T_B1  7

struct amx_group { /* of up to GROUP lines; pointers are to its first */
  int n, head_dim;
  const float *q; /* of each line: head_dim numbers hi, then head_dim lo, of bf16 */
  float *acc, *max, *sum;
  const int *from, *to;
  int lo, hi; /* blocks of keys that some line sees */
  /* Scores; then of each block of keys 32 hi and 32 lo of p */
  _Alignas(64) float p[GROUP][ATTN_SEGMENT];
};

/* --- two numbers of bf16 for one of float32 -------------------------------------------------------------------------------- */

#ifdef CYGNET_SIMDE
static void amx_split(uint16_t *hi, uint16_t *lo, const float x[BLOCK]) {
  for (int i = 0; i < BLOCK; i++) {
    hi[i] = f32_to_bf16(x[i]);
    lo[i] = f32_to_bf16(x[i] - bf16_to_f32(hi[i]));
  }
}
static void amx_split_vecs(uint16_t *hi, uint16_t *lo, vec a, vec b) {
  float x[BLOCK];
  vec_store(x, a);
  vec_store(x + VEC, b);
  amx_split(hi, lo, x);
}
#else
static ALWAYS_INLINE void amx_split_vecs(uint16_t *hi, uint16_t *lo, vec a, vec b) {
  const __m512i h = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const vec ah = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)), 16));
  const vec bh = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1)), 16));
  _mm512_storeu_si512(hi, h);
  _mm512_storeu_si512(lo, (__m512i)_mm512_cvtne2ps_pbh(vec_sub(b, bh), vec_sub(a, ah)));
}
#endif

static void amx_load_q(float *q, const float *src, float scale, int n, int head_dim) {
  uint16_t *hi = (uint16_t *)q, *lo = hi + head_dim;
  const vec s = vec_set1(scale);
  for (int i = 0; i < head_dim; i += BLOCK) {
    const int a = MIN(MAX(n - i, 0), VEC), b = MIN(MAX(n - i - VEC, 0), VEC);
    amx_split_vecs(hi + i, lo + i, vec_mul(vec_load_n(src + i, a, 0), s), vec_mul(vec_load_n(src + i + VEC, b, 0), s));
  }
}

/* --- packing ----------------------------------------------------------------------------------------------------------------- */

#ifdef CYGNET_SIMDE
/* Row r of a tile: dims 2r and 2r + 1 (of the 32 from byte `at` on) of each of 16 keys. */
static void amx_pack_keys_tile(char *tile, const void *const *k, size_t at) {
  for (int r = 0; r < SIDE; r++)
    for (int j = 0; j < SIDE; j++) memcpy(tile + r * 64 + 4 * j, (const char *)k[j] + at + 4 * (size_t)r, 4);
}
static void amx_pack_columns(char *tile, const void *const row[COLUMNS], size_t at) {
  for (int r = 0; r < SIDE; r++)
    for (int i = 0; i < COLUMNS; i++) memcpy(tile + r * 64 + 4 * i, (const char *)row[i] + at + 4 * (size_t)r, 4);
}
static void amx_turn_scores(float *p, const float *s) {
  for (int l = 0; l < COLUMNS; l++)
    for (int j = 0; j < SIDE; j++) p[l * ATTN_SEGMENT + j] = s[j * SIDE + l];
}
#else
static ALWAYS_INLINE __m512i amx_quarters(const char *a, const char *b, const char *c, const char *d) {
  __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)b), 1);
  x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)c), 2);
  return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)d), 3);
}
/* A transposition of 4 × 4 pairs within each quarter. */
static ALWAYS_INLINE void amx_turn_quarters(__m512i x[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpacklo_epi32(x[2], x[3]);
  const __m512i c = _mm512_unpackhi_epi32(x[0], x[1]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, b), x[1] = _mm512_unpackhi_epi64(a, b);
  x[2] = _mm512_unpacklo_epi64(c, d), x[3] = _mm512_unpackhi_epi64(c, d);
}
/* A transposition of 16 × 16 pairs: quarters of keys i, i + 4, i + 8, i + 12 side by side, then each. */
static ALWAYS_INLINE void amx_pack_keys_tile(char *tile, const void *const *k, size_t at) {
  __m512i x[4][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const char *a = (const char *)k[i] + at, *b = (const char *)k[i + 4] + at, *c = (const char *)k[i + 8] + at,
               *d = (const char *)k[i + 12] + at;
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) x[u][i] = amx_quarters(a + 16 * u, b + 16 * u, c + 16 * u, d + 16 * u);
  }
#pragma GCC unroll 4
  for (int u = 0; u < 4; u++) {
    amx_turn_quarters(x[u]);
#pragma GCC unroll 4
    for (int w = 0; w < 4; w++) _mm512_store_si512(tile + (4 * u + w) * 64, x[u][w]);
  }
}
/* Four columns of a tile: the 16 pairs of each of four rows. */
static ALWAYS_INLINE void amx_pack_columns(char *tile, const void *const row[COLUMNS], size_t at) {
  __m512i x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_si512((const char *)row[i] + at);
  amx_turn_quarters(x);
#pragma GCC unroll 4
  for (int w = 0; w < 4; w++) {
    _mm_store_si128((__m128i *)(tile + w * 64), _mm512_castsi512_si128(x[w]));
    _mm_store_si128((__m128i *)(tile + (4 + w) * 64), _mm512_extracti32x4_epi32(x[w], 1));
    _mm_store_si128((__m128i *)(tile + (8 + w) * 64), _mm512_extracti32x4_epi32(x[w], 2));
    _mm_store_si128((__m128i *)(tile + (12 + w) * 64), _mm512_extracti32x4_epi32(x[w], 3));
  }
}
/* Scores of 16 keys with four lines, [keys][SIDE], as rows of p. */
static ALWAYS_INLINE void amx_turn_scores(float *p, const float *s) {
  __m512i x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const char *key = (const char *)(s + i * SIDE);
    x[i] = amx_quarters(key, key + 4 * 64, key + 8 * 64, key + 12 * 64);
  }
  amx_turn_quarters(x);
#pragma GCC unroll 4
  for (int l = 0; l < 4; l++) _mm512_store_si512(p + l * ATTN_SEGMENT, x[l]);
}
#endif
/* Row r of two tiles: keys 2r and 2r + 1, 32 dims in the order of attnk_whole.h. */
static ALWAYS_INLINE void amx_pack_values_row(char *tiles, const void *even, const void *odd) {
  __m512i x[2];
  whole_interleave(x, even, odd);
  _mm512_store_si512(tiles, x[0]);
  _mm512_store_si512(tiles + TILE_BYTES, x[1]);
}

/* BLOCK keys, all dims: a pair of tiles for each BLOCK dims. n rows ahead are asked for meanwhile. */
static KERNEL void amx_pack_keys(char *out, const void *const *k, int head_dim, struct whole_ahead *ahead, int n) {
  const int each = div_up(n * BLOCK, head_dim);
  for (int i = 0; i < head_dim; i += BLOCK, out += PAIR_BYTES) {
    whole_ask(ahead, each);
    amx_pack_keys_tile(out, k, sizeof(uint16_t) * (size_t)i);
    amx_pack_keys_tile(out + TILE_BYTES, k + SIDE, sizeof(uint16_t) * (size_t)i);
  }
}

/* The same of values. */
static KERNEL void amx_pack_values(char *out, const void *const *v, int head_dim, struct whole_ahead *ahead, int n) {
  const int each = div_up(n, SIDE);
  for (int r = 0; r < SIDE; r++, out += 64) {
    const uint16_t *even = v[2 * r], *odd = v[2 * r + 1];
    char *to = out;
    whole_ask(ahead, each);
    for (int i = 0; i < head_dim; i += BLOCK, to += PAIR_BYTES) amx_pack_values_row(to, even + i, odd + i);
  }
}

/* --- products ---------------------------------------------------------------------------------------------------------------- */

/* Sums of one or two tiles of lines × two of columns: += a [lines × 32 n] · packed [n][2 tiles]; a has hi, and lo at lo_at bytes behind it. */
static ALWAYS_INLINE void amx_products(const bool two, const char *a, size_t a_stride, size_t a_step, size_t lo_at, const char *b,
                                       size_t b_step, int n) {
  for (int i = 0; i < n; i++, a += a_step, b += b_step) {
    TILE_LOAD(T_B0, b, 64);
    TILE_LOAD(T_B1, b + TILE_BYTES, 64);
    TILE_LOAD(T_A0, a, a_stride);
    TILE_BF16(T_C00, T_A0, T_B0);
    TILE_BF16(T_C01, T_A0, T_B1);
    if (two) {
      TILE_LOAD(T_A1, a + SIDE * a_stride, a_stride);
      TILE_BF16(T_C10, T_A1, T_B0);
      TILE_BF16(T_C11, T_A1, T_B1);
    }
    TILE_LOAD(T_A0, a + lo_at, a_stride);
    TILE_BF16(T_C00, T_A0, T_B0);
    TILE_BF16(T_C01, T_A0, T_B1);
    if (two) {
      TILE_LOAD(T_A1, a + SIDE * a_stride + lo_at, a_stride);
      TILE_BF16(T_C10, T_A1, T_B0);
      TILE_BF16(T_C11, T_A1, T_B1);
    }
  }
}

static ALWAYS_INLINE void amx_matrix(const bool two, float *out, size_t out_stride, const char *a, size_t a_stride, size_t a_step,
                                     size_t lo_at, const char *b, size_t b_step, int n) {
  TILE_SEES_MEMORY();
  TILE_ZERO(T_C00);
  TILE_ZERO(T_C01);
  if (two) {
    TILE_ZERO(T_C10);
    TILE_ZERO(T_C11);
  }
  amx_products(two, a, a_stride, a_step, lo_at, b, b_step, n);
  TILE_STORE(T_C00, out, out_stride);
  TILE_STORE(T_C01, out + SIDE, out_stride);
  if (two) {
    char *second = (char *)out + SIDE * out_stride;
    TILE_STORE(T_C10, second, out_stride);
    TILE_STORE(T_C11, second + TILE_BYTES / SIDE, out_stride);
  }
}

/* Scores of a group with one block of packed keys. */
static KERNEL void amx_scores(struct amx_group *g, int block, const char *packed) {
  const size_t line = sizeof(float) * (size_t)g->head_dim, lo_at = line / 2;
  const char *q = (const char *)g->q;
  float *out = &g->p[0][block * BLOCK];
  if (g->n > SIDE) amx_matrix(true, out, sizeof g->p[0], q, line, 64, lo_at, packed, PAIR_BYTES, g->head_dim / BLOCK);
  else amx_matrix(false, out, sizeof g->p[0], q, line, 64, lo_at, packed, PAIR_BYTES, g->head_dim / BLOCK);
}

/* BLOCK dims from i on of a group's results; packed: all blocks of values, block_bytes each. */
static KERNEL void amx_values(struct amx_group *g, int i, const char *packed, size_t block_bytes) {
  const size_t line = sizeof(float) * (size_t)g->head_dim;
  const char *p = (const char *)&g->p[0][g->lo * BLOCK], *v = packed + (size_t)g->lo * block_bytes + (size_t)(i / BLOCK) * PAIR_BYTES;
  if (g->n > SIDE) amx_matrix(true, g->acc + i, line, p, sizeof g->p[0], 128, 64, v, block_bytes, g->hi - g->lo);
  else amx_matrix(false, g->acc + i, line, p, sizeof g->p[0], 128, 64, v, block_bytes, g->hi - g->lo);
}

/* q of up to 16 lines as columns, four at a time: a tile hi and a tile lo for each BLOCK dims. */
static void amx_pack_q(char *out, const struct amx_group *g) {
  for (int l = 0; l < g->n; l += COLUMNS) {
    const void *hi[COLUMNS], *lo[COLUMNS];
    char *to = out + sizeof(float) * (size_t)l;
    for (int i = 0; i < COLUMNS; i++) { /* the last line once more where there is none */
      const uint16_t *q = (const uint16_t *)(g->q + (size_t)MIN(l + i, g->n - 1) * (size_t)g->head_dim);
      hi[i] = q, lo[i] = q + g->head_dim;
    }
    for (int i = 0; i < g->head_dim; i += BLOCK, to += PAIR_BYTES) {
      amx_pack_columns(to, hi, sizeof(uint16_t) * (size_t)i);
      amx_pack_columns(to + TILE_BYTES, lo, sizeof(uint16_t) * (size_t)i);
    }
  }
}

/* Rows of keys one after the other as a tile, of which [from, to) count: where they are, or copied there. The others may be anything: a row of keys
 * makes a row of scores, and nobody looks at those. */
static const char *amx_rows_together(char *copy, const void *const *k, int from, int to, size_t row_bytes) {
  bool together = from == 0 && to == SIDE;
  for (int j = 1; j < SIDE; j++) together &= (const char *)k[j] == (const char *)k[0] + (size_t)j * row_bytes;
  if (together) return k[0];
  for (int j = from; j < to; j++) memcpy(copy + (size_t)j * row_bytes, k[j], row_bytes);
  return copy;
}

/* Scores of up to 16 lines with up to four tiles of keys, the other way round: keys × lines, so that keys need no packing. */
#define AMX_FEW_KEYS(c, a, keys)                                                                                                           \
  do {                                                                                                                                     \
    TILE_LOAD(a, keys, row_bytes);                                                                                                         \
    TILE_BF16(c, a, T_B0);                                                                                                                 \
    whole_ask(ahead, each);                                                                                                                \
    TILE_BF16(c, a, T_B1);                                                                                                                 \
  } while (0)
static ALWAYS_INLINE void amx_few_scores_of(const int n, float (*out)[SIDE], const char *q, const char *const k[KEY_TILES], int head_dim,
                                            size_t row_bytes, struct whole_ahead *ahead) {
  const int each = div_up(SIDE * BLOCK, head_dim); /* rows: as many as are worked on */
  TILE_SEES_MEMORY();
  TILE_ZERO(T_C00);
  TILE_ZERO(T_C01);
  TILE_ZERO(T_C10);
  TILE_ZERO(T_C11);
  for (int i = 0; i < head_dim; i += BLOCK, q += PAIR_BYTES) {
    const size_t at = sizeof(uint16_t) * (size_t)i;
    TILE_LOAD(T_B0, q, 64);
    TILE_LOAD(T_B1, q + TILE_BYTES, 64);
    AMX_FEW_KEYS(T_C00, T_A0, k[0] + at);
    if (n > 1) AMX_FEW_KEYS(T_C01, T_A1, k[1] + at);
    if (n > 2) AMX_FEW_KEYS(T_C10, T_A0, k[2] + at);
    if (n > 3) AMX_FEW_KEYS(T_C11, T_A1, k[3] + at);
  }
  TILE_STORE(T_C00, out, 64);
  if (n > 1) TILE_STORE(T_C01, out + SIDE, 64);
  if (n > 2) TILE_STORE(T_C10, out + 2 * SIDE, 64);
  if (n > 3) TILE_STORE(T_C11, out + 3 * SIDE, 64);
  TILE_SEES_MEMORY();
}
static KERNEL void amx_few_scores(int n, float (*out)[SIDE], const char *q, const char *const k[KEY_TILES], int head_dim, size_t row_bytes,
                                  struct whole_ahead *ahead) {
  switch (n) {
  case 1: amx_few_scores_of(1, out, q, k, head_dim, row_bytes, ahead); break;
  case 2: amx_few_scores_of(2, out, q, k, head_dim, row_bytes, ahead); break;
  case 3: amx_few_scores_of(3, out, q, k, head_dim, row_bytes, ahead); break;
  default: amx_few_scores_of(4, out, q, k, head_dim, row_bytes, ahead);
  }
}

/* A block of values, BLOCK dims. */
static ALWAYS_INLINE void amx_few_pack(char *out, const void *const *v, size_t at) {
#pragma GCC unroll 16
  for (int r = 0; r < SIDE; r++) amx_pack_values_row(out + 64 * r, (const char *)v[2 * r] + at, (const char *)v[2 * r + 1] + at);
}

#define AMX_FEW_VALUES(c0, c1, packed)                                                                                                     \
  do {                                                                                                                                     \
    TILE_LOAD(T_B0, packed, 64);                                                                                                           \
    TILE_LOAD(T_B1, (packed) + TILE_BYTES, 64);                                                                                            \
    TILE_BF16(c0, T_A0, T_B0);                                                                                                             \
    TILE_BF16(c1, T_A0, T_B1);                                                                                                             \
    TILE_BF16(c0, T_A1, T_B0);                                                                                                             \
    TILE_BF16(c1, T_A1, T_B1);                                                                                                             \
  } while (0)

/* Dims from i on of the results of up to 16 lines, BLOCK of them or twice as many. Tiles are loaded when what comes after them has been packed: by then
 * the stores that made them are done. */
static ALWAYS_INLINE void amx_few_values_of(const bool wide, struct amx_group *g, int i, const void *const *v, struct whole_ahead *ahead,
                                            int each) {
  _Alignas(64) char low[PAIR_BYTES], high[PAIR_BYTES];
  const size_t line = sizeof(float) * (size_t)g->head_dim, at = sizeof(uint16_t) * (size_t)i;
  float *acc = g->acc + i;
  TILE_ZERO(T_C00);
  TILE_ZERO(T_C01);
  TILE_ZERO(T_C10);
  TILE_ZERO(T_C11);
  for (int b = g->lo; b < g->hi; b++) {
    const char *p = (const char *)&g->p[0][b * BLOCK];
    amx_few_pack(low, v + b * BLOCK, at);
    TILE_SEES_MEMORY();
    if (wide && b > g->lo) AMX_FEW_VALUES(T_C10, T_C11, high);
    whole_ask(ahead, each);
    if (wide) amx_few_pack(high, v + b * BLOCK, at + 2 * BLOCK);
    TILE_SEES_MEMORY();
    TILE_LOAD(T_A0, p, sizeof g->p[0]);
    TILE_LOAD(T_A1, p + 64, sizeof g->p[0]);
    AMX_FEW_VALUES(T_C00, T_C01, low);
  }
  TILE_STORE(T_C00, acc, line);
  TILE_STORE(T_C01, acc + SIDE, line);
  if (wide) {
    AMX_FEW_VALUES(T_C10, T_C11, high);
    TILE_STORE(T_C10, acc + BLOCK, line);
    TILE_STORE(T_C11, acc + BLOCK + SIDE, line);
  }
}
static KERNEL void amx_few_values(struct amx_group *g, int i, const void *const *v, struct whole_ahead *ahead, int each) {
  if (i + 2 * BLOCK <= g->head_dim) amx_few_values_of(true, g, i, v, ahead, each);
  else amx_few_values_of(false, g, i, v, ahead, each);
}

/* --- softmax ----------------------------------------------------------------------------------------------------------------- */

/* Scores to p = exp(score - max), each block of 32 as 32 hi and 32 lo in its place. n rows are asked for with each. */
static KERNEL void amx_softmax(struct amx_group *g, struct whole_ahead *ahead, int n) {
  for (int l = 0; l < g->n; l++) {
    g->max[l] = whole_greatest(g->p[l], g->lo * BLOCK, g->hi * BLOCK, g->from[l], g->to[l]);
    const vec top = vec_set1(g->max[l]);
    vec even = vec_zero(), odd = vec_zero();
    for (int j = g->lo * BLOCK; j < g->hi * BLOCK; j += BLOCK) {
      uint16_t *p = (uint16_t *)&g->p[l][j];
      const vec a = vec_exp(vec_sub(vec_load(&g->p[l][j]), top)), b = vec_exp(vec_sub(vec_load(&g->p[l][j + VEC]), top));
      even = vec_add(even, a), odd = vec_add(odd, b);
      amx_split_vecs(p, p + BLOCK, a, b);
      whole_ask(ahead, n);
    }
    g->sum[l] = vec_sum(vec_add(even, odd));
  }
}

/* --- a segment --------------------------------------------------------------------------------------------------------------- */

/* Of n lines in two tiles, or up to 16 in each of four sums and two factors. */
static void amx_shape(int n) {
  struct tile_shapes s = {0};
  const int first = MIN(n, SIDE), second = n > SIDE ? n - SIDE : n;
  tile_shape(&s, T_C00, first, 64);
  tile_shape(&s, T_C01, first, 64);
  tile_shape(&s, T_A0, first, 64);
  tile_shape(&s, T_C10, second, 64);
  tile_shape(&s, T_C11, second, 64);
  tile_shape(&s, T_A1, second, 64);
  tile_shape(&s, T_B0, SIDE, 64);
  tile_shape(&s, T_B1, SIDE, 64);
  tile_begin(&s);
}

static size_t amx_packed_bytes(int head_dim) { return sizeof(uint16_t) * ATTN_SEGMENT * (size_t)head_dim; }
static size_t amx_scratch_bytes(int head_dim) { return 2 * amx_packed_bytes(head_dim); }

/* Lines of a group, and what they see; false: nothing. */
static bool amx_group_of(struct amx_group *g, const struct attn_lines *s, const struct attn_seen *seen, int line) {
  const size_t at = (size_t)line * (size_t)s->head_dim;
  int lo = ATTN_SEGMENT, hi = 0;
  g->n = MIN(GROUP, s->n - line), g->head_dim = s->head_dim;
  g->q = s->q + at, g->acc = s->acc + at, g->max = s->max + line, g->sum = s->sum + line;
  g->from = seen->from + line, g->to = seen->to + line;
  for (int l = 0; l < g->n; l++) {
    if (g->from[l] >= g->to[l]) continue;
    lo = MIN(lo, g->from[l]), hi = MAX(hi, g->to[l]);
  }
  g->lo = lo / BLOCK, g->hi = (hi + BLOCK - 1) / BLOCK;
  return lo < hi;
}

static void amx_many(const struct attn_lines *s, const struct attn_seen *seen) {
  struct amx_group g;
  char *keys = seen->scratch, *values = keys + amx_packed_bytes(s->head_dim);
  const size_t block_bytes = (size_t)(s->head_dim / BLOCK) * PAIR_BYTES;
  int shaped = 0;
  struct whole_ahead own = whole_values(seen), next = whole_next_keys(seen);
  const int first = seen->lo / BLOCK, end = div_up(seen->hi, BLOCK), each = div_up(next.n, end - first);
  for (int b = first; b < end; b++) amx_pack_keys(keys + (size_t)b * block_bytes, seen->k + b * BLOCK, s->head_dim, &own, BLOCK);
  for (int b = first; b < end; b++) amx_pack_values(values + (size_t)b * block_bytes, seen->v + b * BLOCK, s->head_dim, &next, each);
  for (int line = 0; line < s->n; line += GROUP) {
    if (!amx_group_of(&g, s, seen, line)) continue;
    if (g.n != shaped) amx_shape(shaped = g.n);
    for (int b = g.lo; b < g.hi; b++) amx_scores(&g, b, keys + (size_t)b * block_bytes);
    amx_softmax(&g, &next, 0);
    for (int i = 0; i < s->head_dim; i += BLOCK) amx_values(&g, i, values, block_bytes);
  }
  tile_end();
}

/* The scores of a group of up to 16 lines, to p. */
static void amx_few_all_scores(struct amx_group *g, const struct attn_seen *seen) {
  _Alignas(64) float s[ATTN_SEGMENT][SIDE];
  char *q = seen->scratch, *copies = q + (size_t)(g->head_dim / BLOCK) * PAIR_BYTES;
  struct whole_ahead keys = whole_keys(seen), values = whole_values(seen);
  const int first = seen->lo / SIDE, end = div_up(seen->hi, SIDE); /* tiles of keys */
  if (!seen->asked) whole_ask(&keys, keys.n);
  amx_pack_q(q, g);
  amx_shape(SIDE);
  for (int t = first, n; t < end; t += n) {
    const char *k[KEY_TILES];
    n = MIN(end - t, KEY_TILES);
    for (int i = 0; i < n; i++) {
      const int at = (t + i) * SIDE;
      k[i] = amx_rows_together(copies + (size_t)(i * SIDE) * seen->row_bytes, seen->k + at, MAX(seen->lo - at, 0), MIN(seen->hi - at, SIDE),
                               seen->row_bytes);
    }
    amx_few_scores(n, &s[t * SIDE], q, k, g->head_dim, seen->row_bytes, &values);
  }
  for (int t = first; t < end; t++) {
    for (int l = 0; l < g->n; l += COLUMNS) amx_turn_scores(&g->p[l][t * SIDE], &s[t * SIDE][l]);
  }
}

static void amx_few(const struct attn_lines *s, const struct attn_seen *seen) {
  struct amx_group g;
  struct whole_ahead next = whole_next_keys(seen);
  if (!amx_group_of(&g, s, seen, 0)) return;
  amx_few_all_scores(&g, seen);
  amx_softmax(&g, &next, 1);
  amx_shape(g.n);
  const int each = div_up(next.n * 2 * BLOCK, s->head_dim * (g.hi - g.lo));
  for (int i = 0; i < s->head_dim; i += 2 * BLOCK) amx_few_values(&g, i, seen->v, &next, each);
  tile_end();
}

static void amx_lines(const struct attn_lines *s, const struct attn_seen *seen) {
  if (s->n > SIDE) amx_many(s, seen);
  else amx_few(s, seen);
}

static void amx_segment(const struct attn_lines *s, const struct attn_seen *seen) { whole_segment(s, seen, amx_lines); }

const struct attn_whole attnk_amx = {
    .head_dim_step = BLOCK,
    .lines_most = 192,
    .scratch_bytes = amx_scratch_bytes,
    .load_q = amx_load_q,
    .segment = amx_segment,
    .finish = whole_finish,
};
#else
typedef int attnk_amx_is_for_x86_64;
#endif
