/* gemm_pack.c — from the file's blocks to panels, and back for tests. The layout is drawn in gemm_pack.h. */
#include "compute/gemm_pack.h"

#include "compute/gemm_quant.h"

const int8_t gemm_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

#define FORMAT(name, ...) [DTYPE_##name] = {__VA_ARGS__, 0},
static const struct gemm_format formats[DTYPE_COUNT] = {
    GEMM_QUANTISED(FORMAT)[DTYPE_F32] = {.plain_bytes = 4},
    [DTYPE_F16] = {.plain_bytes = 2},
    [DTYPE_BF16] = {.plain_bytes = 2},
};

const struct gemm_format *gemm_format_of(enum dtype t) {
  if (t <= DTYPE_NONE || t >= DTYPE_COUNT) return NULL;
  const struct gemm_format *f = &formats[t];
  return f->bits || f->plain_bytes ? f : NULL;
}

size_t gemm_panel_bytes(enum dtype t, int cols) {
  const struct gemm_format *f = gemm_format_of(t);
  size_t n = (size_t)cols;
  if (f->plain_bytes) return (t == DTYPE_BF16 ? align_up(n, 2) : n) * GEMM_PANEL * f->plain_bytes;
  size_t record = gemm_header_bytes(f) + f->blocks * gemm_block_bytes(f);
  return n / (size_t)(GEMM_BLOCK * f->blocks) * record;
}

/* --- one block of the file -------------------------------------------------------------------------------------------- */

struct record { /* one row's part of a record, taken apart */
  uint16_t d, min;
  uint8_t codes[GEMM_BLOCK * GEMM_RECORD_BLOCKS_MAX];
  int8_t sub_d[16];
  uint8_t sub_min[16];
};

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* 32 codes whose low 4 bits are nibbles: the first 16 in the low halves. */
static void nibbles_32(uint8_t *codes, const uint8_t *q) {
  for (int i = 0; i < 16; i++) {
    codes[i] = q[i] & 15;
    codes[i + 16] = q[i] >> 4;
  }
}

/* 64 codes whose low 4 bits are nibbles: the first 32 in the low halves. */
static void nibbles_64(uint8_t *codes, const uint8_t *q) {
  for (int i = 0; i < 32; i++) {
    codes[i] = q[i] & 15;
    codes[i + 32] = q[i] >> 4;
  }
}

/* Byte i of the result is bit i of b. */
static uint64_t spread_bits(uint8_t b) {
  uint64_t v = b * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
  return (v + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
}

static void fifth_bits_32(uint8_t *codes, const uint8_t *q) {
  for (int i = 0; i < 4; i++) {
    uint64_t eight;
    memcpy(&eight, codes + 8 * i, 8);
    eight |= spread_bits(q[i]) << 4;
    memcpy(codes + 8 * i, &eight, 8);
  }
}

/* 128 codes in 32 bytes: bits 0-1 the first 32, and so on. */
static void pairs_128(uint8_t *codes, const uint8_t *q) {
  for (int part = 0; part < 4; part++)
    for (int i = 0; i < 32; i++) codes[part * 32 + i] = q[i] >> (part * 2) & 3;
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K). */
static void scales_6bit(struct record *r, const uint8_t *s) {
  for (int i = 0; i < 4; i++) {
    r->sub_d[i] = (int8_t)(s[i] & 63);
    r->sub_min[i] = s[i + 4] & 63;
    r->sub_d[i + 4] = (int8_t)((s[i + 8] & 15) | (s[i] >> 6) << 4);
    r->sub_min[i + 4] = (uint8_t)((s[i + 8] >> 4) | (s[i + 4] >> 6) << 4);
  }
}

static void take_q2_k(struct record *r, const uint8_t *b) {
  const uint8_t *q = b + 16;
  for (int i = 0; i < 16; i++) {
    r->sub_d[i] = (int8_t)(b[i] & 15);
    r->sub_min[i] = b[i] >> 4;
  }
  pairs_128(r->codes, q);
  pairs_128(r->codes + 128, q + 32);
  r->d = read_u16(b + 80);
  r->min = read_u16(b + 82);
}

static void take_q3_k(struct record *r, const uint8_t *b) {
  const uint8_t *q = b + 32, *s = b + 96;
  for (int i = 0; i < 16; i++) {
    int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    r->sub_d[i] = (int8_t)((low | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
  }
  pairs_128(r->codes, q);
  pairs_128(r->codes + 128, q + 32);
  for (int part = 0; part < 8; part++)
    for (int i = 0; i < 32; i++) r->codes[part * 32 + i] |= (uint8_t)((b[i] >> part & 1) << 2);
  r->d = read_u16(b + 108);
}

static void take_q6_k(struct record *r, const uint8_t *b) {
  const uint8_t *low = b, *high = b + 128;
  for (int half = 0; half < 2; half++, low += 64, high += 32) {
    uint8_t *codes = r->codes + half * 128;
    for (int i = 0; i < 32; i++) {
      codes[i] = (uint8_t)((low[i] & 15) | (high[i] & 3) << 4);
      codes[i + 32] = (uint8_t)((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
      codes[i + 64] = (uint8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      codes[i + 96] = (uint8_t)(low[i + 32] >> 4 | (high[i] >> 6) << 4);
    }
  }
  memcpy(r->sub_d, b + 192, 16);
  r->d = read_u16(b + 208);
}

static void take_iq4_xs(struct record *r, const uint8_t *b) {
  unsigned high = read_u16(b + 2);
  r->d = read_u16(b);
  for (int i = 0; i < 8; i++) {
    int low = b[4 + i / 2] >> (i % 2 * 4) & 15;
    r->sub_d[i] = (int8_t)((low | (int)(high >> (2 * i) & 3) << 4) - 32);
    nibbles_32(r->codes + 32 * i, b + 8 + 16 * i);
  }
}

static void take_block(enum dtype t, struct record *r, const uint8_t *b) {
  r->d = read_u16(b);
  switch (t) {
  case DTYPE_Q4_0:
  case DTYPE_IQ4_NL: nibbles_32(r->codes, b + 2); break;
  case DTYPE_Q4_1:
    r->min = read_u16(b + 2) ^ 0x8000; /* the file adds it, we subtract */
    nibbles_32(r->codes, b + 4);
    break;
  case DTYPE_Q5_0:
    nibbles_32(r->codes, b + 6);
    fifth_bits_32(r->codes, b + 2);
    break;
  case DTYPE_Q5_1:
    r->min = read_u16(b + 2) ^ 0x8000;
    nibbles_32(r->codes, b + 8);
    fifth_bits_32(r->codes, b + 4);
    break;
  case DTYPE_Q8_0: memcpy(r->codes, b + 2, 32); break;
  case DTYPE_Q4_K:
  case DTYPE_Q5_K:
    r->min = read_u16(b + 2);
    scales_6bit(r, b + 4);
    for (int i = 0; i < 4; i++) nibbles_64(r->codes + 64 * i, b + (t == DTYPE_Q4_K ? 16 : 48) + 32 * i);
    if (t == DTYPE_Q5_K)
      for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++) r->codes[part * 32 + i] |= (uint8_t)((b[16 + i] >> part & 1) << 4);
    break;
  case DTYPE_Q2_K: take_q2_k(r, b); break;
  case DTYPE_Q3_K: take_q3_k(r, b); break;
  case DTYPE_Q6_K: take_q6_k(r, b); break;
  case DTYPE_IQ4_XS: take_iq4_xs(r, b); break;
  default: CHECK(!"a quantised type that has no panel form");
  }
}

/* --- planes ----------------------------------------------------------------------------------------------------------- */

/* c: 512 codes of a block, group after group; eight at a time. */
static void write_codes(int bits, uint8_t *restrict out, const uint8_t *restrict c) {
  enum { WORDS = 8 }; /* of 8 codes in a group */
  const uint64_t ones = UINT64_C(0x0101010101010101);
  uint64_t w[8][WORDS], v[4][WORDS];
  if (bits == 8) {
    memcpy(out, c, 512);
    return;
  }
  memcpy(w, c, sizeof w);
  if (bits >= 4) {
    for (int g = 0; g < 4; g++)
      for (int i = 0; i < WORDS; i++) v[g][i] = (w[g][i] & 15 * ones) | (w[g + 4][i] & 15 * ones) << 4;
    memcpy(out, v, 256);
    out += 256;
  }
  if (bits == 2 || bits == 3 || bits == 6) {
    int at = bits == 6 ? 4 : 0;
    for (int half = 0; half < 2; half++)
      for (int i = 0; i < WORDS; i++) {
        v[half][i] = 0;
        for (int t = 0; t < 4; t++) v[half][i] |= (w[half * 4 + t][i] >> at & 3 * ones) << (2 * t);
      }
    memcpy(out, v, 128);
    out += 128;
  }
  if (bits == 3 || bits == 5) {
    int at = bits == 3 ? 2 : 4;
    for (int i = 0; i < WORDS; i++) {
      v[0][i] = 0;
      for (int g = 0; g < 8; g++) v[0][i] |= (w[g][i] >> at & ones) << g;
    }
    memcpy(out, v, 64);
  }
}

/* Code i of group g of a block. */
static int read_code(int bits, const uint8_t *p, int g, int i) {
  if (bits == 8) return p[g * 64 + i] ^ 0x80;
  int code = 0;
  if (bits >= 4) {
    code = p[g % 4 * 64 + i] >> (g / 4 * 4) & 15;
    p += 256;
  }
  if (bits == 2 || bits == 3 || bits == 6) {
    code |= (p[g / 4 * 64 + i] >> (g % 4 * 2) & 3) << (bits == 6 ? 4 : 0);
    p += 128;
  }
  if (bits == 3 || bits == 5) code |= (p[i] >> g & 1) << (bits == 3 ? 2 : 4);
  return code;
}

/* --- panels ----------------------------------------------------------------------------------------------------------- */

static void pack_record(const struct gemm_format *f, const struct record *rows, uint8_t *out) {
  int n_subs = f->subs ? f->blocks * GEMM_BLOCK / f->group : 0;
  for (int r = 0; r < GEMM_PANEL; r++) memcpy(out + 2 * r, &rows[r].d, 2);
  out += 2 * GEMM_PANEL;
  if (f->mins) {
    for (int r = 0; r < GEMM_PANEL; r++) memcpy(out + 2 * r, &rows[r].min, 2);
    out += 2 * GEMM_PANEL;
  }
  for (int s = 0; s < n_subs; s++, out += GEMM_PANEL)
    for (int r = 0; r < GEMM_PANEL; r++) out[r] = (uint8_t)rows[r].sub_d[s];
  for (int s = 0; f->mins && s < n_subs; s++, out += GEMM_PANEL)
    for (int r = 0; r < GEMM_PANEL; r++) out[r] = rows[r].sub_min[s];
  for (int b = 0; b < f->blocks; b++, out += gemm_block_bytes(f)) {
    uint8_t codes[512];
    for (int g = 0; g < 8; g++)
      for (int r = 0; r < GEMM_PANEL; r++) memcpy(codes + g * 64 + r * 4, rows[r].codes + b * GEMM_BLOCK + g * 4, 4);
    write_codes(f->bits, out, codes);
  }
}

/* n items of one row to every 16th place. A constant size makes each copy one move. */
static ALWAYS_INLINE void scatter(uint8_t *restrict out, const uint8_t *restrict in, int n, const size_t size) {
  for (int k = 0; k < n; k++) memcpy(out + (size_t)k * GEMM_PANEL * size, in + (size_t)k * size, size);
}

static void pack_plain(const struct weight *w, int panel, uint8_t *out) {
  enum { STEP = 64 }; /* columns that are gone through for all rows while their lines are near */
  size_t size = gemm_format_of(w->dtype)->plain_bytes;
  int n_rows = MIN(GEMM_PANEL, w->rows - panel * GEMM_PANEL), cols = w->cols;
  memset(out, 0, gemm_panel_bytes(w->dtype, cols));
  for (int k = 0; k < cols; k += STEP)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *in = (const uint8_t *)w->source + (size_t)(panel * GEMM_PANEL + r) * w->row_bytes + (size_t)k * size;
      uint8_t *to = out + (size_t)k * GEMM_PANEL * size;
      int n = MIN(STEP, cols - k);
      if (w->dtype == DTYPE_F32) scatter(to + r * 4, in, n, 4);
      if (w->dtype == DTYPE_F16) scatter(to + r * 2, in, n, 2);
      if (w->dtype == DTYPE_BF16) {
        scatter(to + r * 4, in, n / 2, 4);
        if (n % 2) memcpy(to + (size_t)(n / 2) * GEMM_PANEL * 4 + r * 4, in + (size_t)(n - 1) * 2, 2);
      }
    }
}

void gemm_pack_panel(const struct weight *w, int panel, uint8_t *out) {
  const struct gemm_format *f = gemm_format_of(w->dtype);
  if (f->plain_bytes) {
    pack_plain(w, panel, out);
    return;
  }
  int elems = GEMM_BLOCK * f->blocks;
  int n_rows = MIN(GEMM_PANEL, w->rows - panel * GEMM_PANEL);
  size_t in_bytes = (size_t)dtype_info(w->dtype)->block_bytes;
  size_t out_bytes = gemm_header_bytes(f) + f->blocks * gemm_block_bytes(f);
  struct record rows[GEMM_PANEL] = {0};
  for (int i = 0; i < w->cols / elems; i++, out += out_bytes) {
    for (int r = 0; r < n_rows; r++) {
      int row = panel * GEMM_PANEL + r;
      uint8_t quantised[34];
      const uint8_t *block = (const uint8_t *)w->source + (size_t)row * w->row_bytes + (size_t)i * in_bytes;
      if (w->from) {
        gemm_quant_block(w, row, i, quantised);
        block = quantised;
      }
      take_block(w->dtype, &rows[r], block);
    }
    pack_record(f, rows, out);
  }
}

static void unpack_plain_row(enum dtype t, int cols, const uint8_t *panel, int r, float *out) {
  size_t size = gemm_format_of(t)->plain_bytes;
  int pair = t == DTYPE_BF16 ? 2 : 1;
  for (int k = 0; k < cols; k++) {
    size_t at = (size_t)(k / pair * GEMM_PANEL * pair + r * pair + k % pair);
    dtype_to_f32(t, panel + at * size, out + k, 1);
  }
}

struct gemm_element gemm_element_of(const struct gemm_format *f, const uint8_t *panel, int r, int k) {
  size_t header_bytes = gemm_header_bytes(f), block_bytes = gemm_block_bytes(f);
  int record = GEMM_BLOCK * f->blocks, n_subs = record / f->group;
  const uint8_t *head = panel + (size_t)(k / record) * (header_bytes + f->blocks * block_bytes);
  const uint8_t *block = head + header_bytes + (size_t)(k % record / GEMM_BLOCK) * block_bytes;
  const uint8_t *sub = head + (f->mins ? 64 : 32) + k % record / f->group * GEMM_PANEL + r;
  int code = read_code(f->bits, block, k % GEMM_BLOCK / 4, r * 4 + k % 4);
  return (struct gemm_element){
      .d = f16_to_f32(read_u16(head + 2 * r)),
      .min = f->mins ? f16_to_f32(read_u16(head + 32 + 2 * r)) : 0,
      .sub_d = f->subs ? (int8_t)*sub : 1,
      .sub_min = f->subs && f->mins ? sub[n_subs * GEMM_PANEL] : 1,
      .value = f->table ? gemm_iq4_values[code] : code - f->offset,
  };
}

void gemm_unpack_panel_row(enum dtype t, int cols, const uint8_t *panel, int r, float *out) {
  const struct gemm_format *f = gemm_format_of(t);
  if (f->plain_bytes) {
    unpack_plain_row(t, cols, panel, r, out);
    return;
  }
  size_t header_bytes = gemm_header_bytes(f), block_bytes = gemm_block_bytes(f);
  int n_subs = f->subs ? f->blocks * GEMM_BLOCK / f->group : 0, alike = f->subs ? f->group : GEMM_BLOCK; /* codes that share a scale */
  for (int first = 0; first < cols; first += alike) {
    const uint8_t *head = panel + (size_t)(first / (GEMM_BLOCK * f->blocks)) * (header_bytes + f->blocks * block_bytes);
    const uint8_t *block = head + header_bytes + (size_t)(first / GEMM_BLOCK % f->blocks) * block_bytes;
    float scale = f16_to_f32(read_u16(head + 2 * r)), min = f->mins ? f16_to_f32(read_u16(head + 32 + 2 * r)) : 0;
    if (f->subs) {
      const uint8_t *sub = head + (f->mins ? 64 : 32) + first % (GEMM_BLOCK * f->blocks) / f->group * GEMM_PANEL + r;
      scale *= (float)(int8_t)*sub;
      if (f->mins) min *= (float)sub[n_subs * GEMM_PANEL];
    }
    for (int k = first; k < first + alike; k++) {
      int code = read_code(f->bits, block, k % GEMM_BLOCK / 4, r * 4 + k % 4);
      float value = scale * (float)(f->table ? gemm_iq4_values[code] : code - f->offset);
      out[k] = f->mins ? value - min : value;
    }
  }
}
