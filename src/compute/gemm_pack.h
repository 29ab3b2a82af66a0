/* gemm_pack.h — how weights lie in memory for the fast levels (avx2 and avx512 read the same bytes).
 *
 * A packed weight is a sequence of panels of 16 rows (the last one padded with zero rows); a panel is read once, front to back.
 *
 * Quantised types: a panel is a sequence of records; a record is a header and `blocks` blocks of 32 k (blocks: 1, or 8 for the 256-element types).
 *
 *   header   d       f16 [16 rows]
 *            min     f16 [16]                          where the type has minima
 *            sub d   s8  [blocks][32 / group][16]      where the type has scales inside a record: scale = d * sub d
 *            sub min u8  [blocks][32 / group][16]      and minima:                                min = min * sub min
 *   block    codes, `bits` bits each, for 8 groups of 4 k; a group has 64 codes, code i = row * 4 + k:
 *            bits 8      512 bytes  byte g * 64 + i = code i of group g, less 128: signed, as it is multiplied
 *            bits 4 5 6  256 bytes  byte j * 64 + i = low 4 bits of code i of group j, and of group j + 4 in the high half
 *            bits 2 3    128 bytes  byte h * 64 + i: bits 2t..2t+1 = low 2 bits of code i of group 4h + t
 *            bits 6     +128 bytes  the same for bits 4 and 5 of the codes
 *            bits 3 5   + 64 bytes  byte i: bit g = highest bit of code i of group g
 *
 * So one 64-byte load (or two of 32) feeds four products of 16 rows, nothing is shuffled, and the bytes are about the file's.
 * value = scale * (code - offset) - min, or scale * table[code] for the IQ4 types. scale and min are exact in float32: 11 bits times 8.
 *
 * Plain numbers: F32 and F16 [cols][16 rows]; BF16 [cols / 2 rounded up][16 rows][2 k], the odd one out zero.
 */
#ifndef CYGNET_GEMM_PACK_H
#define CYGNET_GEMM_PACK_H

#include "compute/gemm.h"

enum { GEMM_BLOCK = 32, GEMM_RECORD_BLOCKS_MAX = 8 };

struct gemm_format {
  uint8_t bits;   /* of a code; 0 for plain numbers and for types that are not multiplied */
  uint8_t group;  /* k that share a scale: 16 or 32 */
  uint8_t blocks; /* per record */
  uint8_t offset;
  bool table; /* the code is an index into gemm_iq4_values */
  bool mins;
  bool subs;           /* scales (and minima) per group inside a record */
  uint8_t plain_bytes; /* of a plain number, else 0 */
};

/* The quantised types: X(name, bits, group, blocks, offset, table, mins, subs). Kernels are made from the same list. */
#define GEMM_QUANTISED(X)                                                                                                                  \
  X(Q8_0, 8, 32, 1, 128, false, false, false)                                                                                              \
  GEMM_QUANTISED_BELOW_8(X)
#define GEMM_QUANTISED_BELOW_8(X)                                                                                                          \
  X(Q4_0, 4, 32, 1, 8, false, false, false)                                                                                                \
  X(Q4_1, 4, 32, 1, 0, false, true, false)                                                                                                 \
  X(Q5_0, 5, 32, 1, 16, false, false, false)                                                                                               \
  X(Q5_1, 5, 32, 1, 0, false, true, false)                                                                                                 \
  X(Q2_K, 2, 16, 8, 0, false, true, true)                                                                                                  \
  X(Q3_K, 3, 16, 8, 4, false, false, true)                                                                                                 \
  X(Q4_K, 4, 32, 8, 0, false, true, true)                                                                                                  \
  X(Q5_K, 5, 32, 8, 0, false, true, true)                                                                                                  \
  X(Q6_K, 6, 16, 8, 32, false, false, true)                                                                                                \
  X(IQ4_NL, 4, 32, 1, 0, true, false, false)                                                                                               \
  X(IQ4_XS, 4, 32, 8, 0, true, false, true)

extern const int8_t gemm_iq4_values[16];

/* Format of a type that can be packed, else NULL. */
const struct gemm_format *gemm_format_of(enum dtype t);
static ALWAYS_INLINE size_t gemm_header_bytes(const struct gemm_format *f) {
  size_t subs = f->subs ? (size_t)(f->blocks * (GEMM_BLOCK / f->group) * GEMM_PANEL) : 0;
  return (f->mins ? 2 : 1) * (2 * GEMM_PANEL + subs);
}
static ALWAYS_INLINE size_t gemm_block_bytes(const struct gemm_format *f) { return (size_t)f->bits * GEMM_PANEL * GEMM_BLOCK / 8; }
size_t gemm_panel_bytes(enum dtype t, int cols);
/* Where a panel of a packed weight begins. */
static inline const uint8_t *gemm_panel_at(const struct weight *w, int panel) {
  return (const uint8_t *)w->packed + (size_t)panel * gemm_panel_bytes(w->dtype, w->cols);
}

/* Rows panel*16 ... of w->source to out [gemm_panel_bytes]. */
void gemm_pack_panel(const struct weight *w, int panel, uint8_t *out);
/* Row r < 16 of a packed panel as float32 [cols]. */
void gemm_unpack_panel_row(enum dtype t, int cols, const uint8_t *panel, int r, float *out);
/* Element k of row r of a panel of codes, taken apart: value = code - offset, or table[code]; the subs are 1 where there are none. */
struct gemm_element {
  float d, min;
  int sub_d, sub_min, value;
};
struct gemm_element gemm_element_of(const struct gemm_format *f, const uint8_t *panel, int r, int k);

#endif
