/* shortlist_amx.c — the coarse copy of an output matrix, made and multiplied, with vpdpbusd: see shortlist.h.
 *
 * Lanes are the 16 rows of a panel. A group of codes is one operand of vpdpbusd, four columns of x the other, broadcast from memory. For one row a
 * segment costs 16 products and 24 operations that take codes apart, 20 cycles or more where memory gives its 544 bytes in 100.
 */
#include "compute/vec_avx512.h"

#include "compute/shortlist.h"

/* --- making --------------------------------------------------------------------------------------------------------------- */

/* A column of a panel. Of each four columns tiles have the pairs (0, 2) and (1, 3): gemm_tiles.h. */
static ALWAYS_INLINE vec column(const gemm_weight_tile *tiles, int c, vec factor) {
  __m512i pair = _mm512_loadu_si512(tiles[c / GEMM_BLOCK][c % GEMM_BLOCK / 4 * 2 + c % 2]);
  __m512i bits = c % 4 < 2 ? _mm512_slli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000));
  return vec_mul(_mm512_castsi512_ps(bits), factor);
}

static ALWAYS_INLINE vec magnitude(vec v) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}

static void add_squares(float (*squares)[GEMM_PANEL], const gemm_weight_tile *tiles, const float factor[GEMM_PANEL], int n_cols) {
  vec f = vec_load(factor);
  for (int c = 0; c < n_cols; c++) {
    vec w = column(tiles, c, f);
    vec_store(squares[c], vec_fma(w, w, vec_load(squares[c])));
  }
}

enum { COARSE, FINE, LOOKS }; /* without the fifth bit, with it; in segment 0 the same */

struct making { /* of one panel: rows in lanes */
  const gemm_weight_tile *tiles;
  vec factor, error[LOOKS][SHORTLIST_PARTS], norm[LOOKS][SHORTLIST_PARTS]; /* sums of squares */
};

/* Scales of a segment whose greatest code is `most`: as bf16, rounded up, so that no weight is clipped by more than half a step. */
static void segment_scales(const struct making *m, const int32_t *order, float most, uint16_t scales[GEMM_PANEL]) {
  enum { F32_INFINITE = 0x7f800000 };
  vec top = vec_zero();
  for (int i = 0; i < SHORTLIST_SEGMENT; i++) top = vec_max(magnitude(column(m->tiles, order[i], m->factor)), top);
  float tops[GEMM_PANEL];
  vec_store(tops, vec_mul(top, vec_set1(1 / most)));
  for (int r = 0; r < GEMM_PANEL; r++) {
    uint32_t bits;
    memcpy(&bits, &tops[r], 4);
    scales[r] = bits < F32_INFINITE - 0xffff ? (uint16_t)((bits + 0xffff) >> 16) : 0; /* not finite: the row is never left out */
  }
}

static ALWAYS_INLINE void add_look(struct making *m, const int look, const int part, vec w, vec s) {
  vec left = vec_sub(w, s);
  m->error[look][part] = vec_fma(left, left, m->error[look][part]);
  m->norm[look][part] = vec_fma(s, s, m->norm[look][part]);
}

/* Codes of a group, offset added: the lowest 5 or 8 bits of each byte are right. */
static ALWAYS_INLINE __m512i group_codes(struct making *m, const int part, const int32_t order[4], float offset, vec scale, vec inverse) {
  const vec magic = vec_set1(0x1.8p23f), lowest = vec_set1(-offset), highest = vec_set1(offset - 1);
  __m512i bytes = _mm512_setzero_si512();
  for (int j = 0; j < 4; j++) {
    vec w = column(m->tiles, order[j], m->factor);
    vec rounded = vec_add(vec_min(vec_max(vec_mul(w, inverse), lowest), highest), magic); /* its last bits are the code */
    vec number = vec_sub(rounded, magic);
    __m512i code = _mm512_and_si512(_mm512_castps_si512(vec_add(rounded, vec_set1(offset))), _mm512_set1_epi32(0xff));
    add_look(m, FINE, part, w, vec_mul(number, scale));
    if (part > 0) {
      vec last = vec_from_i32(_mm512_and_si512(code, _mm512_set1_epi32(1)));
      add_look(m, COARSE, part, w, vec_mul(vec_add(vec_sub(number, last), vec_set1(0.5f)), scale));
    }
    bytes = _mm512_or_si512(_mm512_slli_epi32(code, 8 * j), bytes);
  }
  return bytes;
}

static ALWAYS_INLINE __m512i low_bits(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8((char)mask)); }

enum { HALF = SHORTLIST_GROUPS / 2 };

static void store_codes(uint8_t *to, uint8_t *finer_to, const __m512i codes[SHORTLIST_GROUPS]) {
  for (int j = 0; j < HALF; j++)
    _mm512_storeu_si512(to + j * 64,
                        _mm512_or_si512(low_bits(_mm512_srli_epi32(codes[j], 1), 15), _mm512_slli_epi32(low_bits(codes[j + HALF], 30), 3)));
  for (int h = 0; h < 2; h++) {
    __m512i bits = _mm512_setzero_si512();
    for (int t = 0; t < HALF; t++) bits = _mm512_or_si512(bits, _mm512_slli_epi32(low_bits(codes[h * HALF + t], 1), t));
    _mm512_storeu_si512(finer_to + h * 64, bits);
  }
}

static void store_norms(uint8_t *to, const struct making *m, int look) {
  float error[SHORTLIST_PARTS][GEMM_PANEL], norm[SHORTLIST_PARTS][GEMM_PANEL];
  for (int part = 0; part < SHORTLIST_PARTS; part++) {
    const int from = part == 0 ? FINE : look;
    vec_store(error[part], m->error[from][part]), vec_store(norm[part], m->norm[from][part]);
  }
  shortlist_norms(error, norm);
  memcpy(to, error, sizeof error);
  memcpy(to + sizeof error, norm, sizeof norm);
}

static void make_panel(const struct shortlist *s, const gemm_weight_tile *tiles, const float factor[GEMM_PANEL], int panel) {
  const vec zero = vec_zero();
  struct making m = {tiles, vec_load(factor), {{zero, zero}, {zero, zero}}, {{zero, zero}, {zero, zero}}};
  uint8_t *p = s->panels + (size_t)panel * s->panel_bytes, *codes_to = p + SHORTLIST_ROW_BYTES + shortlist_scales_bytes(s->n_segments);
  uint8_t *finer = s->finer + (size_t)panel * s->finer_bytes, *finer_to = finer + SHORTLIST_ROW_BYTES;
  for (int i = 0; i < s->n_segments; i++) {
    const int32_t *order = s->order + i * SHORTLIST_SEGMENT;
    const float offset = i == 0 ? SHORTLIST_FIRST_OFFSET : SHORTLIST_OFFSET;
    uint16_t scales[GEMM_PANEL];
    float scale[GEMM_PANEL], inverse[GEMM_PANEL];
    segment_scales(&m, order, offset - 0.5f, scales);
    for (int r = 0; r < GEMM_PANEL; r++) scale[r] = bf16_to_f32(scales[r]), inverse[r] = scales[r] ? 1 / scale[r] : 0;
    memcpy(p + SHORTLIST_ROW_BYTES + (size_t)i * sizeof scales, scales, sizeof scales);
    __m512i codes[SHORTLIST_GROUPS];
    for (int g = 0; g < SHORTLIST_GROUPS; g++) codes[g] = group_codes(&m, i > 0, order + 4 * g, offset, vec_load(scale), vec_load(inverse));
    if (i == 0) {
      memcpy(codes_to, codes, SHORTLIST_FIRST_BYTES);
      codes_to += SHORTLIST_FIRST_BYTES;
      continue;
    }
    store_codes(codes_to, finer_to, codes);
    codes_to += SHORTLIST_BYTES, finer_to += SHORTLIST_FINER_BYTES;
  }
  store_norms(p, &m, COARSE);
  store_norms(finer, &m, FINE);
}

/* --- multiplying ---------------------------------------------------------------------------------------------------------- */

/* What follows: far ahead to the second-level cache, near ahead to the first. */
static ALWAYS_INLINE void fetch(const uint8_t *p, int n_bytes) {
  enum { FAR_BYTES = 16384, NEAR_BYTES = 2048 };
  for (int i = 0; i < n_bytes; i += 64) {
    _mm_prefetch((const char *)p + FAR_BYTES + i, _MM_HINT_T1);
    _mm_prefetch((const char *)p + NEAR_BYTES + i, _MM_HINT_T0);
  }
}

static ALWAYS_INLINE __m512i codes_4(const uint8_t *p, const int g) {
  __m512i pair = _mm512_loadu_si512(p + g % HALF * 64);
  return low_bits(g < HALF ? pair : _mm512_srli_epi32(pair, 4), 15);
}

static ALWAYS_INLINE __m512i four_columns(const int8_t *x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

struct x_at { /* x of a segment */
  const int8_t *x;
  const float *scales;
  const int32_t *sums;
};

/* sums += scale * x's scale * a whole number. */
static ALWAYS_INLINE vec add_scaled(__m512i product, vec scale, float x_scale, vec sums) {
  return vec_fma(vec_from_i32(product), vec_mul(scale, vec_set1(x_scale)), sums);
}

static ALWAYS_INLINE void first_segment(const int n_rows, const uint8_t *p, const struct x_at *at, vec scale, vec *sums) {
  __m512i high[SHORTLIST_ROWS_MAX], low[SHORTLIST_ROWS_MAX];
  for (int r = 0; r < n_rows; r++) high[r] = _mm512_setzero_si512(), low[r] = _mm512_set1_epi32(-SHORTLIST_FIRST_OFFSET * at->sums[r]);
  GEMM_UNROLL(2)
  for (int g = 0; g < SHORTLIST_GROUPS; g++) {
    __m512i codes = _mm512_loadu_si512(p + g * 64);
    for (int r = 0; r < n_rows; r++) {
      high[r] = _mm512_dpbusd_epi32(high[r], codes, four_columns(at->x + r * SHORTLIST_SEGMENT + 4 * g));
      low[r] = _mm512_dpbusd_epi32(low[r], codes, four_columns(at->x + (n_rows + r) * SHORTLIST_SEGMENT + 4 * g));
    }
  }
  for (int r = 0; r < n_rows; r++)
    sums[r] = add_scaled(_mm512_add_epi32(_mm512_slli_epi32(high[r], 7), low[r]), scale, at->scales[r], sums[r]);
}

/* Numbers are scale * (code - 7.75) * 2: whole ones are 4 * code - 31, of half the scale. */
static ALWAYS_INLINE void segment(const int n_rows, const uint8_t *p, const struct x_at *at, vec scale, vec *sums) {
  __m512i products[SHORTLIST_ROWS_MAX];
  const vec half = vec_mul(scale, vec_set1(0.5f));
  for (int r = 0; r < n_rows; r++) products[r] = _mm512_setzero_si512();
  GEMM_UNROLL(16)
  for (int g = 0; g < SHORTLIST_GROUPS; g++) {
    __m512i codes = codes_4(p, g);
    for (int r = 0; r < n_rows; r++)
      products[r] = _mm512_dpbusd_epi32(products[r], codes, four_columns(at->x + r * SHORTLIST_SEGMENT + 4 * g));
  }
  for (int r = 0; r < n_rows; r++)
    sums[r] = add_scaled(_mm512_sub_epi32(_mm512_slli_epi32(products[r], 2), _mm512_set1_epi32((2 * SHORTLIST_OFFSET - 1) * at->sums[r])),
                         half, at->scales[r], sums[r]);
}

/* How far logits can be from what the copy says; norms: the beginning of a panel. */
static ALWAYS_INLINE vec uncertainty(const uint8_t *norms, const struct shortlist_row *row) {
  vec width = vec_zero();
  for (int part = 0; part < SHORTLIST_PARTS; part++) {
    const float *error = (const float *)(const void *)norms + part * GEMM_PANEL, *norm = error + SHORTLIST_PARTS * GEMM_PANEL;
    width = vec_fma(vec_load(error), vec_set1(row->norm[part]), width);
    width = vec_fma(vec_load(norm), vec_set1(row->slack[part]), width);
  }
  return width;
}

static ALWAYS_INLINE void store_bounds(const struct shortlist *s, int panel, int r, vec about) {
  vec width = uncertainty(s->panels + (size_t)panel * s->panel_bytes, &s->rows[r]);
  size_t at = (size_t)r * (size_t)s->n_panels + (size_t)panel;
  s->low[at] = vec_largest(vec_sub(about, width));
  s->high[at] = vec_largest(vec_add(about, width));
  vec_store(s->about + at * GEMM_PANEL, about);
}

static ALWAYS_INLINE void panel_bounds(const int n_rows, const struct shortlist *s, int panel) {
  const uint8_t *p = s->panels + (size_t)panel * s->panel_bytes, *scales = p + SHORTLIST_ROW_BYTES;
  const uint8_t *codes = scales + shortlist_scales_bytes(s->n_segments);
  struct x_at at = {s->x, s->scales, s->sums};
  vec sums[SHORTLIST_ROWS_MAX];
  for (int r = 0; r < n_rows; r++) sums[r] = vec_zero();
  fetch(p, (int)(codes - p) + SHORTLIST_FIRST_BYTES);
  first_segment(n_rows, codes, &at, vec_load_bf16((const uint16_t *)(const void *)scales), sums);
  codes += SHORTLIST_FIRST_BYTES;
  at.x += n_rows * SHORTLIST_SEGMENT; /* the second codes of segment 0 */
  for (int i = 1; i < s->n_segments; i++, codes += SHORTLIST_BYTES) {
    at.x += n_rows * SHORTLIST_SEGMENT, at.scales += n_rows, at.sums += n_rows, scales += 2 * GEMM_PANEL;
    fetch(codes, SHORTLIST_BYTES);
    segment(n_rows, codes, &at, vec_load_bf16((const uint16_t *)(const void *)scales), sums);
  }
  for (int r = 0; r < n_rows; r++) store_bounds(s, panel, r, sums[r]);
}

static ALWAYS_INLINE void bounds_by(const int n_rows, const struct shortlist *s, int from, int to) {
  for (int panel = from; panel < to; panel++) panel_bounds(n_rows, s, panel);
}

static void bounds(const struct shortlist *s, int from, int to, int n_rows) { GEMM_BY_ROWS_4(n_rows, bounds_by, s, from, to); }

/* The fifth bits of a segment: scale * (bit - 0.5), half the scale's 2 * bit - 1. */
static ALWAYS_INLINE vec segment_bits(const uint8_t *p, const struct x_at *at, vec scale, vec sum) {
  __m512i products = _mm512_setzero_si512();
  GEMM_UNROLL(16)
  for (int g = 0; g < SHORTLIST_GROUPS; g++) {
    __m512i bits = low_bits(_mm512_srli_epi32(_mm512_loadu_si512(p + g / HALF * 64), g % HALF), 1);
    products = _mm512_dpbusd_epi32(products, bits, four_columns(at->x + 4 * g));
  }
  products = _mm512_sub_epi32(_mm512_slli_epi32(products, 1), _mm512_set1_epi32(at->sums[0]));
  return add_scaled(products, vec_mul(scale, vec_set1(0.5f)), at->scales[0], sum);
}

static float finer(const struct shortlist *s, int panel, int r, int n_rows) {
  const uint8_t *p = s->finer + (size_t)panel * s->finer_bytes, *bits = p + SHORTLIST_ROW_BYTES;
  const uint16_t *scales = (const uint16_t *)(const void *)(s->panels + (size_t)panel * s->panel_bytes + SHORTLIST_ROW_BYTES);
  vec about = vec_load(s->about + ((size_t)r * (size_t)s->n_panels + (size_t)panel) * GEMM_PANEL);
  for (int i = 1; i < s->n_segments; i++, bits += SHORTLIST_FINER_BYTES) {
    int at = i * n_rows + r; /* segment 0 has two codes a number */
    struct x_at x = {s->x + (size_t)(at + n_rows) * SHORTLIST_SEGMENT, s->scales + at, s->sums + at};
    about = segment_bits(bits, &x, vec_load_bf16(scales + i * GEMM_PANEL), about);
  }
  return vec_largest(vec_add(about, uncertainty(p, &s->rows[r])));
}

const struct shortlist_kern shortlist_amx = {.add_squares = add_squares, .make_panel = make_panel, .bounds = bounds, .finer = finer};
