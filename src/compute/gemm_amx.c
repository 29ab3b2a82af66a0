/* gemm_amx.c — products on AMX tiles: of all quantised types and of bf16, with any number of rows.
 *
 * Weights and x become numbers of bf16 (gemm_tiles.h says which), and TDPBF16PS adds their products: 16 rows of x times 16 weight rows times 32 k in 16
 * cycles. A row's sums do not depend on how many rows its tile has, so one row and many go the same way, and nothing is scaled afterwards but by a
 * power of two. Per block, on one core of Emerald Rapids:
 *
 *   many rows   a range of two panels is expanded once, then two groups of 16 rows at a time are multiplied with it: each factor is loaded for two
 *               products, which take 16 cycles each. Weights stay in the first-level cache because x goes past it, x in the second because results
 *               go past that, a few rows between two products
 *   up to 16    a block is expanded while the one before is multiplied; expanding is what takes the time: 44 cycles with 4 bits, 48 - 64 with more
 *
 * Expanding 32 numbers (16 rows, 2 k): clear all but a code, which is then a denormal number in half precision, multiply it with the scale and take the
 * minimum away, round to 8 bits, clear what the shift left over. While tiles are in use one pipe multiplies; bits that straddle bytes go to the other.
 */
#include "compute/half_amx.h"
#include "compute/tiles_amx.h"

#include "compute/gemm_tiles.h"

enum { GROUPS = 8, PAIRS = 16, FAR_BYTES = 8192, NEAR_BYTES = 2048, ROWS = GEMM_TILES_GROUP };

/* Tiles of sums: [group][panel]; two of x, two of weights. */
#define T_C00 0
#define T_C01 1
#define T_C10 2
#define T_C11 3
#define T_X0  4
#define T_X1  5
#define T_W0  6
#define T_W1  7

static void begin(int n_rows) {
  struct tile_shapes s = {0};
  for (int i = T_C00; i <= T_X1; i++) tile_shape(&s, i, n_rows, 64);
  tile_shape(&s, T_W0, PAIRS, 64);
  tile_shape(&s, T_W1, PAIRS, 64);
  tile_begin(&s);
}

static void end(void) {
  tile_end();
  _mm_sfence(); /* stores past the caches come in any order */
}

/* --- from packed codes to bf16 ---------------------------------------------------------------------------------------- */

static ALWAYS_INLINE __m512i set16(int v) { return _mm512_set1_epi16((short)v); }
static ALWAYS_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }

/* Each of 16 words twice: a look-up of bytes is one operation, of words two. */
static ALWAYS_INLINE __m512i pairs(__m256i v) {
  static const uint32_t twice[16] = {0x01000100, 0x03020302, 0x05040504, 0x07060706, 0x09080908, 0x0b0a0b0a, 0x0d0c0d0c, 0x0f0e0f0e,
                                     0x11101110, 0x13121312, 0x15141514, 0x17161716, 0x19181918, 0x1b1a1b1a, 0x1d1c1d1c, 0x1f1e1f1e};
  return _mm512_permutexvar_epi8(load512(twice), _mm512_castsi256_si512(v));
}

/* Each byte of 8 to the right by n bits, to the left for a negative n; what comes in are its neighbours' bits, but for what crosses the end of 8 bytes.
 * This is a shuffle: shifts would wait for the one pipe that multiplies. */
static ALWAYS_INLINE __m512i shift8(__m512i v, const int n) {
  if (n == 0) return v;
#ifdef CYGNET_SIMDE
  return n > 0 ? _mm512_srli_epi64(v, n) : _mm512_slli_epi64(v, -n);
#else
  const uint64_t from = UINT64_C(0x3830282018100800); /* bit 8 i for byte i */
  return _mm512_multishift_epi64_epi8(
      _mm512_set1_epi64((long long)((from + (uint64_t)(n & 63) * UINT64_C(0x0101010101010101)) & UINT64_C(0x3f3f3f3f3f3f3f3f))), v);
#endif
}
/* What lies at p, to the right or left like that: whole bytes cost nothing. */
static ALWAYS_INLINE __m512i load_shifted(const uint8_t *p, const int n) { return n == -8 ? load512(p - 1) : shift8(load512(p), n); }
/* a where the mask has ones, else b. The result takes a's register: the mask is wanted again. */
static ALWAYS_INLINE __m512i select16(int mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(a, b, set16(mask), 0xe4); }

/* Byte i % 32 of the result is the upper byte of lane i % 32. */
static ALWAYS_INLINE __m512i upper_bytes(__m512i v) {
  uint16_t words[32];
  uint8_t bytes[64];
  _mm512_storeu_si512(words, v);
  for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)(words[i % 32] >> 8);
  return load512(bytes);
}
/* The upper byte of each lane is table[the lowest 6 bits of index's upper byte], the lower one zero. */
static ALWAYS_INLINE __m512i look_up_upper(__m512i index, __m512i table) {
#ifdef CYGNET_SIMDE
  uint8_t at[64], from[64], to[64];
  _mm512_storeu_si512(at, index);
  _mm512_storeu_si512(from, table);
  for (int i = 0; i < 64; i++) to[i] = i % 2 ? from[at[i] & 63] : 0;
  return load512(to);
#else
  return _mm512_maskz_permutexvar_epi8(UINT64_C(0xaaaaaaaaaaaaaaaa), index, table);
#endif
}

/* What a look-up of the lowest 5 bits of a lane gives, or of the lowest 6 of its upper byte, whatever the bits above a code of 4 are: its value in half
 * precision. */
static ALWAYS_INLINE __m512i values(const struct gemm_format f) {
  static const int16_t lane[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                   16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  if (f.table) {
    __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)gemm_iq4_values));
    return half_from_int(_mm512_inserti64x4(_mm512_castsi256_si512(v), v, 1));
  }
  return upper_bytes(half_from_int(_mm512_sub_epi16(_mm512_and_si512(load512(lane), set16(15)), set16(GEMM_TILES_SHORT_OFFSET))));
}

/* Codes of a block, group g: of k 0 and 2 of each four (half 0), or 1 and 3: to get at those, what is loaded begins a byte later. A code's lowest bit is
 * bit gemm_tiles_code_bit of its lane, all others are zero: such a lane is a denormal number. */
static ALWAYS_INLINE __m512i codes_of(const struct gemm_format f, const uint8_t *p, const int g, const int half) {
  const int at = gemm_tiles_code_bit(&f);
  p += half;
  if (f.bits == 8) return _mm512_ternarylogic_epi32(load512(p + g * 64), set16(0xff), set16(0x80), 0x6a); /* stored signed: code - 128 */
  __m512i v;
  if (f.bits < 4) v = load_shifted(p + g / 4 * 64, g % 4 * 2 - at);
  else v = load_shifted(p + g % 4 * 64, g / 4 * 4 - at);
  if (f.bits == 3) v = select16(4 << at, load_shifted(p + 128, g - 2 - at), v);
  if (f.bits == 5) v = select16(0x10 << at, load_shifted(p + 256, g - 4 - at), v);
  if (f.bits == 6) v = select16(0x30 << at, load_shifted(p + 256 + g / 4 * 64, g % 4 * 2 - 4 - at), v);
  return _mm512_and_si512(v, set16(((1 << f.bits) - 1) << at));
}

/* f16 to bf16 of 2^-112 times the value: sign, then exponent and 7 bits of the fraction 3 places further down, rounded. */
static ALWAYS_INLINE __m512i narrow(__m512i half) { return _mm512_and_si512(_mm512_mulhrs_epi16(half, set16(1 << 12)), set16(0x8fff)); }

/* Per part of a block, 32 lanes, each row's twice: number = lane · scale - min. Of codes that are looked up: value · value_scale - value_min. */
struct scales {
  __m512i scale[2], min[2], value_scale[2], value_min[2];
};

static ALWAYS_INLINE __m512i load_halves(const uint8_t *p, __m512i exponent) {
  return half_times_2_to(pairs(_mm256_loadu_si256((const __m256i *)(const void *)p)), exponent);
}

/* Powers of two of a panel's rows, for their minima and their scales. */
struct exponents {
  __m512i min, scale;
};

static ALWAYS_INLINE struct exponents exponents_of(const struct gemm_format f, const struct gemm_tail *t) {
  __m512i e = pairs(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)t->exponent)));
  return (struct exponents){half_from_int(e), half_from_int(_mm512_add_epi16(e, set16(gemm_tiles_scale_bits(&f))))};
}

static ALWAYS_INLINE struct scales record_of(const struct gemm_format f, const uint8_t *header, struct exponents e) {
  struct scales s;
  s.scale[0] = s.scale[1] = load_halves(header, e.scale);
  s.min[0] = s.min[1] = f.mins ? load_halves(header + 32, e.min) : s.scale[0];
  return s;
}

/* Of block b of a record. */
static ALWAYS_INLINE struct scales scales_of(const struct gemm_format f, const uint8_t *header, const struct scales *record, int b) {
  const int parts = GEMM_BLOCK / f.group;
  struct scales s = *record;
  const uint8_t *sub = header + (f.mins ? 64 : 32) + b * parts * GEMM_PANEL;
  for (int i = 0; f.subs && i < parts; i++, sub += GEMM_PANEL) {
    __m256i d = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)sub));
    s.scale[i] = half_mul(record->scale[0], half_from_int(pairs(d)));
    if (!f.mins) continue;
    __m256i min = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(sub + f.blocks * parts * GEMM_PANEL)));
    s.min[i] = half_mul(record->min[0], half_from_int(pairs(min)));
  }
  for (int i = 0; i < parts; i++) {
    const int bits = gemm_tiles_scale_bits(&f);
    if (f.table) s.value_scale[i] = s.scale[i];
    else s.value_scale[i] = half_mul(s.scale[i], half_power(-bits));
    if (f.mins) s.value_min[i] = half_fnmadd(s.value_scale[i], half_from_int(set16(GEMM_TILES_SHORT_OFFSET)), s.min[i]);
    else if (f.offset) s.min[i] = half_mul(s.scale[i], half_power(__builtin_ctz(f.offset) - bits));
  }
  return s;
}

/* Numbers of group g in half precision. */
static ALWAYS_INLINE __m512i numbers_of(const struct gemm_format f, __m512i table, const uint8_t *p, const struct scales *s, const int g,
                                        const int half) {
  const int part = f.group == 16 ? g / 4 : 0;
  if (f.table) {
    __m512i index = shift8(load512(p + half + g % 4 * 64), g / 4 * 4);
    return half_mul(_mm512_permutexvar_epi16(index, table), s->value_scale[part]);
  }
  if (gemm_tiles_looked_up(&f, g)) { /* by the upper byte; before the codes there is a header */
    __m512i v = look_up_upper(load512(p - 1 + half + g * 64), table);
    return f.mins ? half_fmsub(v, s->value_scale[part], s->value_min[part]) : half_mul(v, s->value_scale[part]);
  }
  return half_fmsub(codes_of(f, p, g, half), s->scale[part], s->min[part]);
}

/* Of the order in which groups of a block of codes are expanded, places [from, end): two whose codes lie in the same bytes come together. */
static ALWAYS_INLINE void expand_groups(const struct gemm_format f, uint16_t (*restrict to)[2 * GEMM_PANEL], const uint8_t *restrict p,
                                        __m512i table, const struct scales *s, const int from, const int end) {
  GEMM_UNROLL(8)
  for (int i = from; i < end; i++) GEMM_UNROLL(2)
  for (int half = 0; half < 2; half++) {
    const int g = i % 2 * (GROUPS / 2) + i / 2;
    _mm512_store_si512(to[2 * g + half], narrow(numbers_of(f, table, p, s, g, half)));
  }
}

/* Weights that follow: near ahead to the first-level cache, far ahead to the second. Either alone is slower by 5 - 10 %, and those that come from memory
 * by 2 % when they are asked for first: they take the places that the others wait for. */
static ALWAYS_INLINE void fetch(const uint8_t *p, size_t n_bytes) {
  GEMM_UNROLL(16)
  for (size_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)p + NEAR_BYTES + i, _MM_HINT_T0);
  GEMM_UNROLL(16)
  for (size_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)p + FAR_BYTES + i, _MM_HINT_T1);
}

static ALWAYS_INLINE void expand(const struct gemm_format f, gemm_weight_tile *restrict to, const uint8_t *restrict p, int n,
                                 const struct gemm_tail *tail) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  __m512i table = values(f);
  struct exponents e = exponents_of(f, tail);
  for (int at = 0; at < n / GEMM_BLOCK; at += f.blocks) {
    const uint8_t *header = p;
    struct scales record = record_of(f, header, e);
    p += header_bytes;
    for (int b = 0; b < f.blocks; b++, p += block_bytes) {
      struct scales s = scales_of(f, header, &record, b);
      fetch(p, block_bytes);
      expand_groups(f, to[at + b], p, table, &s, 0, GROUPS);
    }
  }
}

/* Of bf16, 8 groups of two pairs: only their order changes. */
static ALWAYS_INLINE void expand_block_bf16(uint16_t (*restrict to)[2 * GEMM_PANEL], const uint8_t *restrict p) {
  GEMM_UNROLL(8)
  for (int g = 0; g < GROUPS; g++) {
    __m512i a = load512(p + g * 128), b = load512(p + g * 128 + 64), low = _mm512_set1_epi32(0xffff);
    _mm512_store_si512(to[2 * g], _mm512_ternarylogic_epi32(low, a, _mm512_slli_epi32(b, 16), 0xca));
    _mm512_store_si512(to[2 * g + 1], _mm512_ternarylogic_epi32(low, _mm512_srli_epi32(a, 16), b, 0xca));
  }
}

/* n columns of a panel from p on are left. */
static ALWAYS_INLINE void expand_bf16_at(uint16_t (*restrict to)[2 * GEMM_PANEL], const uint8_t *restrict p, int n) {
  _Alignas(64) uint8_t end[PAIRS * 64];
  if (n < GEMM_BLOCK) {
    size_t n_bytes = (size_t)div_up(n, 2) * 64;
    memcpy(end, p, n_bytes);
    memset(end + n_bytes, 0, sizeof end - n_bytes);
    p = end;
  }
  expand_block_bf16(to, p);
}

static void expand_bf16(gemm_weight_tile *restrict to, const uint8_t *restrict p, int n, const struct gemm_tail *tail) {
  (void)tail;
  for (int k = 0; k < n; k += GEMM_BLOCK, p += PAIRS * 64) {
    fetch(p, PAIRS * 64);
    expand_bf16_at(*to++, p, n - k);
  }
}

/* --- sums ------------------------------------------------------------------------------------------------------------- */

static void scale(float (*sums)[GEMM_PANEL], int n_rows, const float factor[GEMM_PANEL]) {
  vec f = vec_load(factor);
  for (int r = 0; r < n_rows; r++) vec_store(sums[r], vec_mul(vec_load(sums[r]), f));
}

/* Results on their way to y, past the caches where they are whole lines. If lines were fetched to be written they would push x out of the second level,
 * and a load of a tile waits for every store that has not found its line yet and has the same lower 12 bits of the address. */
struct storing {
  struct gemm_tiles_store left;
  int row;
  bool past;
  vec factor[2];
};

static ALWAYS_INLINE struct storing storing(const struct gemm_tiles_store *s) {
  struct storing t = {.left = *s, .row = 0, .factor = {vec_set1(1), vec_set1(1)}};
  t.past = s->to.past && s->to.n_cols % GEMM_PANEL == 0 && ((size_t)s->to.y | s->to.y_bytes) % 64 == 0;
  for (int i = 0; s->n_rows > 0 && s->factor && i * GEMM_PANEL < s->to.n_cols; i++) t.factor[i] = vec_load(s->factor[i]);
  return t;
}

static ALWAYS_INLINE void store_vec(float *y, vec v, bool past, int n) {
  if (past) vec_store_past(y, v);
  else if (n >= GEMM_PANEL) vec_store(y, v);
  else vec_store_n(y, v, n);
}

/* The next n rows. */
static ALWAYS_INLINE void store_rows(struct storing *t, int n) {
  for (float *y; n > 0 && t->left.n_rows > 0; n--, t->row++, t->left.n_rows--) {
    y = t->left.to.y;
    for (int i = 0, cols = t->left.to.n_cols; cols > 0; i++, y += GEMM_PANEL, cols -= GEMM_PANEL)
      store_vec(y, vec_mul(vec_load((*t->left.sums)[i][t->row]), t->factor[i]), t->past, cols);
    t->left.to.y = (float *)(void *)((char *)t->left.to.y + t->left.to.y_bytes);
  }
}

static void store(const struct gemm_tiles_store *s) {
  struct storing t = storing(s);
  store_rows(&t, s->n_rows);
}

/* y = sums ⊙ factor. */
static void store_few(float *restrict y, size_t y_bytes, const float (*sums)[GEMM_PANEL], int n_rows, int n_cols,
                      const float factor[GEMM_PANEL]) {
  vec f = vec_load(factor);
  for (int r = 0; r < n_rows; r++, y = (float *)(void *)((char *)y + y_bytes)) {
    vec v = vec_mul(vec_load(sums[r]), f);
    if (n_cols == GEMM_PANEL) vec_store(y, v);
    else vec_store_n(y, v, n_cols);
  }
}

/* --- products --------------------------------------------------------------------------------------------------------- */

/* Of up to 16 rows through one panel after the other: while a block is expanded, the one before is multiplied. With a panel's first block that is the last
 * one of the panel before, whose sums are then stored, and scaled when this panel is through.
 *
 * Tiles are loaded halfway through an expansion and multiplied after it. Nothing retires before what stands ahead of it, and where a neighbour has half of
 * the core and of its window, the time that a load and the product behind it take together is more than the window holds work for. Then every operation
 * counts, scalar ones too: this loop has eight of them. */
struct walk_room {
  /* Two places, not more: stores to 4 KiB of them would look like what is loaded, by 12 bits of its address. */
  _Alignas(2 * sizeof(gemm_weight_tile)) gemm_weight_tile w[2];
  _Alignas(64) float sums[ROWS][GEMM_PANEL];
};

/* Apart from the room, which tile operations are told the address of: the compiler keeps this in registers. */
struct walk {
  gemm_weight_tile *to; /* where the next block goes; beside the one before */
  const uint16_t *x;    /* of the block that is loaded next */
  size_t x_step;
};

static ALWAYS_INLINE struct walk walk(const struct gemm_few *c, struct walk_room *room) { return (struct walk){room->w, c->x, c->x_step}; }

static ALWAYS_INLINE gemm_weight_tile *beside(gemm_weight_tile *w) { return (gemm_weight_tile *)(void *)((uintptr_t)w ^ sizeof *w); }

/* The block before the one that is being expanded. */
static ALWAYS_INLINE void walk_load(struct walk *s) {
  TILE_SEES_MEMORY();
  TILE_LOAD(T_X0, s->x, 64);
  TILE_LOAD(T_W0, beside(s->to), 64);
  s->x += s->x_step;
}

static ALWAYS_INLINE void walk_store(struct walk_room *room) {
  TILE_STORE(T_C00, room->sums, 64);
  TILE_SEES_MEMORY();
}

/* Halfway through a block, which may be a panel's first. */
static ALWAYS_INLINE void walk_halfway(struct walk *s, const bool first, int panel) {
  if (!first || panel > 0) walk_load(s);
}

/* At its end. */
static ALWAYS_INLINE void walk_on(struct walk *s, const bool first, int panel, const struct gemm_few *c, struct walk_room *room) {
  if (!first || panel > 0) TILE_BF16(T_C00, T_X0, T_W0);
  if (first) {
    if (panel > 0) walk_store(room);
    TILE_ZERO(T_C00);
    s->x = c->x;
  }
  s->to = beside(s->to);
}

/* Sums of a panel to y. Not inlined: the loop over blocks has no registers for it. */
static __attribute__((noinline)) void finish_panel(const struct gemm_few *c, const struct walk_room *room, int panel) {
  float factor[GEMM_PANEL];
  gemm_tail_factor(c->tails + panel, factor);
  store_few(c->y + panel * GEMM_PANEL, c->y_bytes, room->sums, c->n_rows, MIN(GEMM_PANEL, c->n_cols - panel * GEMM_PANEL), factor);
}

/* All blocks of a panel were expanded. */
static ALWAYS_INLINE void walk_through(const struct gemm_few *c, const struct walk_room *room, int panel) {
  if (panel > 0) finish_panel(c, room, panel - 1);
}

static ALWAYS_INLINE void walk_end(struct walk *s, const struct gemm_few *c, struct walk_room *room) {
  walk_load(s);
  TILE_BF16(T_C00, T_X0, T_W0);
  walk_store(room);
  finish_panel(c, room, c->n_panels - 1);
}

struct few {
  const struct gemm_few *call;
  struct walk_room *room;
  struct exponents exponents;
  __m512i table;
  int panel;
};

/* Block b of a record, its codes from p on. */
static ALWAYS_INLINE void few_block(const struct gemm_format f, const struct few *few, struct walk *s, const uint8_t *header,
                                    const struct scales *record, int b, const uint8_t *p, const bool first) {
  struct scales block = scales_of(f, header, record, b);
  if (f.blocks > 1) fetch(p, gemm_block_bytes(&f));
  else fetch(header, gemm_header_bytes(&f) + gemm_block_bytes(&f));
  expand_groups(f, *s->to, p, few->table, &block, 0, GROUPS / 2);
  walk_halfway(s, first, few->panel);
  expand_groups(f, *s->to, p, few->table, &block, GROUPS / 2, GROUPS);
  walk_on(s, first, few->panel, few->call, few->room);
}

/* A record from p on, which may be a panel's first. Returns its end. */
static ALWAYS_INLINE const uint8_t *few_record(const struct gemm_format f, const struct few *few, struct walk *s, const uint8_t *p,
                                               const bool first) {
  const size_t header_bytes = gemm_header_bytes(&f), block_bytes = gemm_block_bytes(&f);
  const uint8_t *header = p;
  struct scales record = record_of(f, header, few->exponents);
  p += header_bytes;
  if (f.blocks > 1) fetch(header, header_bytes);
  if (first) {
    few_block(f, few, s, header, &record, 0, p, true);
    p += block_bytes;
  }
  GEMM_UNROLL(1)
  for (int b = first; b < f.blocks; b++, p += block_bytes) few_block(f, few, s, header, &record, b, p, false);
  return p;
}

static ALWAYS_INLINE void few(const struct gemm_format f, const struct gemm_few *c) {
  const int n_records = c->n / GEMM_BLOCK / f.blocks;
  struct walk_room room;
  struct few few = {.call = c, .room = &room, .table = values(f)};
  struct walk s = walk(c, &room);
  const uint8_t *p = c->p;
  for (int panel = 0; panel < c->n_panels; panel++) {
    few.panel = panel;
    few.exponents = exponents_of(f, c->tails + panel);
    p = few_record(f, &few, &s, p, true);
    for (int i = 1; i < n_records; i++) p = few_record(f, &few, &s, p, false);
    walk_through(c, &room, panel);
  }
  walk_end(&s, c, &room);
}

static void few_bf16(const struct gemm_few *c) {
  const int n_blocks = div_up(c->n, GEMM_BLOCK);
  struct walk_room room;
  struct walk s = walk(c, &room);
  for (int panel = 0; panel < c->n_panels; panel++) {
    const uint8_t *p = c->p + (size_t)panel * c->panel_bytes;
    for (int b = 0; b < n_blocks; b++, p += PAIRS * 64) {
      fetch(p, PAIRS * 64);
      expand_bf16_at(*s.to, p, c->n - b * GEMM_BLOCK);
      walk_halfway(&s, b == 0, panel);
      walk_on(&s, b == 0, panel, c, &room);
    }
    walk_through(c, &room, panel);
  }
  walk_end(&s, c, &room);
}

/* x goes past the first-level cache, or the weights would not stay there. */
static ALWAYS_INLINE void multiply_by(const int n_panels, const int n_groups, const gemm_weight_tile (*w)[GEMM_TILES_BLOCKS],
                                      const struct gemm_tiles_step *s) {
  const uint16_t *x0 = s->x, *x1 = x0 + s->x_group;
  struct storing before = storing(&s->before);
  const int n_stored = div_up(s->before.n_rows, s->n_blocks);
  TILE_SEES_MEMORY();
#define EACH_SUM(f)                                                                                                                        \
  f(T_C00, 0, 0);                                                                                                                          \
  if (n_panels > 1) f(T_C01, 1, 0);                                                                                                        \
  if (n_groups > 1) f(T_C10, 0, ROWS);                                                                                                     \
  if (n_panels > 1 && n_groups > 1) f(T_C11, 1, ROWS);
#define ZERO(c, i, row) TILE_ZERO(c)
#define LOAD(c, i, row) TILE_LOAD_PAST(c, (*s->from)[i][row], 64)
#define SAVE(c, i, row) TILE_STORE(c, (*s->to)[i][row], 64)
  if (s->from) {
    EACH_SUM(LOAD)
  } else {
    EACH_SUM(ZERO)
  }
  for (int b = 0; b < s->n_blocks; b++, x0 += ROWS * GEMM_BLOCK, x1 += ROWS * GEMM_BLOCK) {
    TILE_LOAD_PAST(T_X0, x0, 64);
    TILE_LOAD(T_W0, w[0][b], 64);
    if (n_panels > 1) TILE_LOAD(T_W1, w[1][b], 64);
    if (n_groups > 1) TILE_LOAD_PAST(T_X1, x1, 64);
    TILE_BF16(T_C00, T_X0, T_W0);
    if (n_panels > 1) TILE_BF16(T_C01, T_X0, T_W1);
    if (n_panels > 1 && n_groups > 1) TILE_BF16(T_C11, T_X1, T_W1);
    if (n_groups > 1) TILE_BF16(T_C10, T_X1, T_W0);
    store_rows(&before, n_stored);
  }
  EACH_SUM(SAVE)
  TILE_SEES_MEMORY();
}

static void multiply(const gemm_weight_tile (*w)[GEMM_TILES_BLOCKS], const struct gemm_tiles_step *s) {
  if (s->n_groups > 1 && s->n_panels > 1) multiply_by(2, 2, w, s);
  else if (s->n_groups > 1) multiply_by(1, 2, w, s);
  else if (s->n_panels > 1) multiply_by(2, 1, w, s);
  else multiply_by(1, 1, w, s);
}

/* --- rows ------------------------------------------------------------------------------------------------------------- */

/* Of each four of k: 0, 2, 1, 3, as codes_of takes them apart. */
static void x_row(uint16_t *restrict to, size_t step, const float *restrict x, int n) {
  static const uint16_t order[32] = {0,  2,  1,  3,  4,  6,  5,  7,  8,  10, 9,  11, 12, 14, 13, 15,
                                     16, 18, 17, 19, 20, 22, 21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
  const vec scale = vec_set1(GEMM_TILES_X_SCALE);
  for (int k = 0; k < n; k += GEMM_BLOCK, to += step) {
    vec a = vec_load_n(x + k, MIN(VEC, n - k), 0), b = vec_load_n(x + k + VEC, MIN(VEC, MAX(n - k - VEC, 0)), 0);
#ifdef CYGNET_SIMDE
    float v[GEMM_BLOCK];
    uint16_t narrowed[GEMM_BLOCK];
    vec_store(v, vec_mul(a, scale));
    vec_store(v + VEC, vec_mul(b, scale));
    for (int i = 0; i < GEMM_BLOCK; i++) narrowed[i] = f32_to_bf16(v[i]);
    __m512i both = load512(narrowed);
#else
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(vec_mul(b, scale), vec_mul(a, scale));
#endif
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(load512(order), both));
  }
}

#define KERNELS(name, ...)                                                                                                                 \
  static void expand_##name(gemm_weight_tile *restrict to, const uint8_t *restrict p, int n, const struct gemm_tail *tail) {               \
    expand((struct gemm_format){__VA_ARGS__, 0}, to, p, n, tail);                                                                          \
  }                                                                                                                                        \
  static void few_##name(const struct gemm_few *c) { few((struct gemm_format){__VA_ARGS__, 0}, c); }
GEMM_QUANTISED(KERNELS)

#define TYPE(name, ...) [DTYPE_##name] = {.expand = expand_##name, .few = few_##name},
const struct gemm_tiles_kern gemm_amx_tiles = {
    .begin = begin,
    .end = end,
    .x_row = x_row,
    .multiply = multiply,
    .store = store,
    .scale = scale,
    .types = {GEMM_QUANTISED(TYPE)[DTYPE_BF16] = {.expand = expand_bf16, .few = few_bf16}},
};
