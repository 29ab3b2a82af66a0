/* shortlist_amx.c — the coarse copy of an output matrix, made and multiplied, with vpdpbusd: see shortlist.h.
 *
 * Lanes are the 16 rows of a panel. A group of codes is one operand of vpdpbusd, four columns of x the other, broadcast from memory. For one row a
 * segment costs 16 products and some 55 operations that take codes apart, 36 cycles or more where memory gives its 672 bytes in 130.
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

struct making { /* of one panel: rows in lanes */
  const gemm_weight_tile *tiles;
  vec factor, error[SHORTLIST_PARTS], norm[SHORTLIST_PARTS]; /* sums of squares */
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

/* Codes of a group, offset added: the lowest 5 or 8 bits of each byte are right. */
static ALWAYS_INLINE __m512i group_codes(struct making *m, const int part, const int32_t order[4], float offset, vec scale, vec inverse) {
  const vec magic = vec_set1(0x1.8p23f), lowest = vec_set1(-offset), highest = vec_set1(offset - 1);
  __m512i bytes = _mm512_setzero_si512();
  for (int j = 0; j < 4; j++) {
    vec w = column(m->tiles, order[j], m->factor);
    vec rounded = vec_add(vec_min(vec_max(vec_mul(w, inverse), lowest), highest), magic); /* its last bits are the code */
    vec s = vec_mul(vec_sub(rounded, magic), scale), left = vec_sub(w, s);
    m->error[part] = vec_fma(left, left, m->error[part]);
    m->norm[part] = vec_fma(s, s, m->norm[part]);
    __m512i code = _mm512_and_si512(_mm512_castps_si512(vec_add(rounded, vec_set1(offset))), _mm512_set1_epi32(0xff));
    bytes = _mm512_or_si512(_mm512_slli_epi32(code, 8 * j), bytes);
  }
  return bytes;
}

static ALWAYS_INLINE __m512i low_bits(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8((char)mask)); }

static void store_5_bits(uint8_t *to, const __m512i codes[SHORTLIST_GROUPS]) {
  enum { HALF = SHORTLIST_GROUPS / 2 };
  for (int j = 0; j < HALF; j++)
    _mm512_storeu_si512(to + j * 64, _mm512_or_si512(low_bits(codes[j], 15), _mm512_slli_epi32(low_bits(codes[j + HALF], 15), 4)));
  for (int h = 0; h < 2; h++) {
    __m512i bits = _mm512_setzero_si512();
    for (int t = 0; t < HALF; t++)
      bits = _mm512_or_si512(bits, _mm512_slli_epi32(low_bits(_mm512_srli_epi32(codes[h * HALF + t], 4), 1), t));
    _mm512_storeu_si512(to + HALF * 64 + h * 64, bits);
  }
}

static void make_panel(const struct shortlist *s, const gemm_weight_tile *tiles, const float factor[GEMM_PANEL], int panel) {
  struct making m = {tiles, vec_load(factor), {vec_zero(), vec_zero()}, {vec_zero(), vec_zero()}};
  uint8_t *p = s->panels + (size_t)panel * s->panel_bytes, *codes_to = p + SHORTLIST_ROW_BYTES + shortlist_scales_bytes(s->n_segments);
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
    if (i == 0) memcpy(codes_to, codes, SHORTLIST_FIRST_BYTES);
    else store_5_bits(codes_to, codes);
    codes_to += i == 0 ? SHORTLIST_FIRST_BYTES : SHORTLIST_BYTES;
  }
  float error[SHORTLIST_PARTS][GEMM_PANEL], norm[SHORTLIST_PARTS][GEMM_PANEL];
  for (int part = 0; part < SHORTLIST_PARTS; part++) vec_store(error[part], m.error[part]), vec_store(norm[part], m.norm[part]);
  shortlist_norms(error, norm);
  memcpy(p, error, sizeof error);
  memcpy(p + sizeof error, norm, sizeof norm);
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

static ALWAYS_INLINE __m512i codes_5(const uint8_t *p, const int g) {
  enum { HALF = SHORTLIST_GROUPS / 2 };
  __m512i low = _mm512_loadu_si512(p + g % HALF * 64), high = _mm512_loadu_si512(p + HALF * 64 + g / HALF * 64);
  if (g >= HALF) low = _mm512_srli_epi32(low, 4);
  high = g % HALF < 4 ? _mm512_slli_epi32(high, 4 - g % HALF) : _mm512_srli_epi32(high, g % HALF - 4);
  return low_bits(_mm512_ternarylogic_epi32(_mm512_set1_epi8(0x10), high, low, 0xca), 0x1f); /* bit 4 is high's, the others low's */
}

static ALWAYS_INLINE __m512i four_columns(const int8_t *x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

/* sums[r] += scale * x_scales[r] * (whole numbers). */
static ALWAYS_INLINE void add_scaled(const int n_rows, const __m512i *products, vec scale, const float *x_scales, vec *sums) {
  for (int r = 0; r < n_rows; r++) sums[r] = vec_fma(vec_from_i32(products[r]), vec_mul(scale, vec_set1(x_scales[r])), sums[r]);
}

struct x_at { /* x of a segment */
  const int8_t *x;
  const float *scales;
  const int32_t *starts;
};

static ALWAYS_INLINE void first_segment(const int n_rows, const uint8_t *p, const struct x_at *at, vec scale, vec *sums) {
  __m512i high[SHORTLIST_ROWS_MAX], low[SHORTLIST_ROWS_MAX];
  for (int r = 0; r < n_rows; r++) high[r] = _mm512_setzero_si512(), low[r] = _mm512_set1_epi32(at->starts[r]);
  GEMM_UNROLL(2)
  for (int g = 0; g < SHORTLIST_GROUPS; g++) {
    __m512i codes = _mm512_loadu_si512(p + g * 64);
    for (int r = 0; r < n_rows; r++) {
      high[r] = _mm512_dpbusd_epi32(high[r], codes, four_columns(at->x + r * SHORTLIST_SEGMENT + 4 * g));
      low[r] = _mm512_dpbusd_epi32(low[r], codes, four_columns(at->x + (n_rows + r) * SHORTLIST_SEGMENT + 4 * g));
    }
  }
  for (int r = 0; r < n_rows; r++) low[r] = _mm512_add_epi32(_mm512_slli_epi32(high[r], 7), low[r]);
  add_scaled(n_rows, low, scale, at->scales, sums);
}

static ALWAYS_INLINE void segment(const int n_rows, const uint8_t *p, const struct x_at *at, vec scale, vec *sums) {
  __m512i products[SHORTLIST_ROWS_MAX];
  for (int r = 0; r < n_rows; r++) products[r] = _mm512_set1_epi32(at->starts[r]);
  GEMM_UNROLL(16)
  for (int g = 0; g < SHORTLIST_GROUPS; g++) {
    __m512i codes = codes_5(p, g);
    for (int r = 0; r < n_rows; r++)
      products[r] = _mm512_dpbusd_epi32(products[r], codes, four_columns(at->x + r * SHORTLIST_SEGMENT + 4 * g));
  }
  add_scaled(n_rows, products, scale, at->scales, sums);
}

static ALWAYS_INLINE void store_bounds(const struct shortlist *s, int panel, int r, vec about) {
  const float *errors = (const float *)(const void *)(s->panels + (size_t)panel * s->panel_bytes),
              *norms = errors + SHORTLIST_PARTS * GEMM_PANEL;
  const struct shortlist_row *row = &s->rows[r];
  vec width = vec_zero();
  for (int part = 0; part < SHORTLIST_PARTS; part++) {
    width = vec_fma(vec_load(errors + part * GEMM_PANEL), vec_set1(row->norm[part]), width);
    width = vec_fma(vec_load(norms + part * GEMM_PANEL), vec_set1(row->slack[part]), width);
  }
  size_t at = (size_t)r * (size_t)s->n_panels + (size_t)panel;
  s->low[at] = vec_largest(vec_sub(about, width));
  s->high[at] = vec_largest(vec_add(about, width));
}

static ALWAYS_INLINE void panel_bounds(const int n_rows, const struct shortlist *s, int panel) {
  const uint8_t *p = s->panels + (size_t)panel * s->panel_bytes, *scales = p + SHORTLIST_ROW_BYTES;
  const uint8_t *codes = scales + shortlist_scales_bytes(s->n_segments);
  struct x_at at = {s->x, s->scales, s->starts};
  vec sums[SHORTLIST_ROWS_MAX];
  for (int r = 0; r < n_rows; r++) sums[r] = vec_zero();
  fetch(p, (int)(codes - p) + SHORTLIST_FIRST_BYTES);
  first_segment(n_rows, codes, &at, vec_load_bf16((const uint16_t *)(const void *)scales), sums);
  codes += SHORTLIST_FIRST_BYTES;
  at.x += n_rows * SHORTLIST_SEGMENT; /* the second codes of segment 0 */
  for (int i = 1; i < s->n_segments; i++, codes += SHORTLIST_BYTES) {
    at.x += n_rows * SHORTLIST_SEGMENT, at.scales += n_rows, at.starts += n_rows, scales += 2 * GEMM_PANEL;
    fetch(codes, SHORTLIST_BYTES);
    segment(n_rows, codes, &at, vec_load_bf16((const uint16_t *)(const void *)scales), sums);
  }
  for (int r = 0; r < n_rows; r++) store_bounds(s, panel, r, sums[r]);
}

static ALWAYS_INLINE void bounds_by(const int n_rows, const struct shortlist *s, int from, int to) {
  for (int panel = from; panel < to; panel++) panel_bounds(n_rows, s, panel);
}

static void bounds(const struct shortlist *s, int from, int to, int n_rows) { GEMM_BY_ROWS_4(n_rows, bounds_by, s, from, to); }

const struct shortlist_kern shortlist_amx = {.add_squares = add_squares, .make_panel = make_panel, .bounds = bounds};
