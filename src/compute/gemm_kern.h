/* gemm_kern.h — what an instruction set gives to gemm.c: products of one panel of 16 weight rows with rows of x.
 *
 * gemm.c cuts a product into panels, ranges of k and groups of rows, and spreads it over workers; the functions here are the inner loops.
 * For one output element every function of a level does the same float operations in the same order:
 *
 *   per block of 32 k, ascending:   t = float(sum of codes * a)  * scale              (exact integer sum, correction for the offset included)
 *                                   t = fma(second half's sum, its scale, t)          types with a scale per 16
 *                                   t = float(sum of both halves' sums * sub d) * d   the same in avx2: exact up to the last product
 *                                   t = fma(min, float(-sum of a), t)                 types with minima, per scale
 *                                   acc = fma(t, d of a, acc)
 *
 * so a row's bits do not depend on which function computed it. Rows of x are quantised before: q = round(x / d), d = max|x| / 127 per block. A block
 * with NaN or infinity gets d = NaN and zeros, which makes the row's outputs NaN.
 */
#ifndef CYGNET_GEMM_KERN_H
#define CYGNET_GEMM_KERN_H

#include "compute/gemm_pack.h"

/* Kernels are written as loops over constants that must disappear. Test builds keep the loops, and one body for any number of rows: sanitisers and
 * emulation would take minutes to compile the unrolled ones. The order of operations is the same. */
#ifdef CYGNET_DEBUG
#define GEMM_UNROLL(n)
#define GEMM_BY_ROWS_4(n, f, ...) f(n, __VA_ARGS__)
#define GEMM_BY_ROWS_6(n, f, ...) f(n, __VA_ARGS__)
#define GEMM_BY_ROWS_8(n, f, ...) f(n, __VA_ARGS__)
#else
#define GEMM_PRAGMA(x) _Pragma(#x)
#define GEMM_UNROLL(n) GEMM_PRAGMA(GCC unroll n)
/* f(n, ...) with n a constant. */
#define GEMM_BY_ROWS_4(n, f, ...)                                                                                                          \
  switch (n) {                                                                                                                             \
  case 1: f(1, __VA_ARGS__); break;                                                                                                        \
  case 2: f(2, __VA_ARGS__); break;                                                                                                        \
  case 3: f(3, __VA_ARGS__); break;                                                                                                        \
  case 4: f(4, __VA_ARGS__); break;                                                                                                        \
  }
#define GEMM_BY_ROWS_6(n, f, ...)                                                                                                          \
  switch (n) {                                                                                                                             \
  case 5: f(5, __VA_ARGS__); break;                                                                                                        \
  case 6: f(6, __VA_ARGS__); break;                                                                                                        \
  default: GEMM_BY_ROWS_4(n, f, __VA_ARGS__)                                                                                               \
  }
#define GEMM_BY_ROWS_8(n, f, ...)                                                                                                          \
  switch (n) {                                                                                                                             \
  case 7: f(7, __VA_ARGS__); break;                                                                                                        \
  case 8: f(8, __VA_ARGS__); break;                                                                                                        \
  default: GEMM_BY_ROWS_6(n, f, __VA_ARGS__)                                                                                               \
  }
#endif

/* A block of 32 quantised activations beside its codes, as avx2 has it; another level may keep other sums. Sums are negated: they are only ever
 * used to take an offset or a minimum away. Where avx2 adds products in 16 bits, lane 0 takes k and k + 1 of each four, lane 1 the others. */
struct gemm_block {
  float d;
  float neg_sum;    /* over 32 codes */
  int32_t lanes_16; /* the same by lanes, int16 each, times 16 */
  int32_t first_32; /* of the first 16 codes, times 32; those of the second 16 are 2 * lanes_16 - first_32, whatever wraps */
};

/* From the bits of the greatest magnitude in a block: d, and the factor that makes codes of the values; 0 when all codes are zero. A block whose
 * values are all below 2^-120 counts as zero: the factor would overflow. */
static inline float gemm_block_scale(int32_t top_bits, float *d) {
  float top;
  memcpy(&top, &top_bits, 4);
  if (top_bits >= 0x7f800000) {
    *d = __builtin_nanf("");
    return 0;
  }
  if (top < 0x1p-120f) {
    *d = 0;
    return 0;
  }
  *d = top / 127;
  return 127 / top;
}

enum {
  GEMM_RANGE_BLOCKS = 32, /* blocks of a panel that are unpacked at once: 16 KiB of codes */
  GEMM_RANGE_SHORT = 20,  /* about as many for few rows: those lie in the first-level cache beside them */
  GEMM_SHORT_ROWS = 16,   /* few rows: up to so many */
  GEMM_DIRECT_ROWS = 16,  /* that go over a block together where nothing is unpacked */
  GEMM_RANGE_PLAIN = 256, /* k of plain numbers walked at once: 16 KiB of float32 */
  GEMM_GROUP_MAX = 16,    /* rows of x that any level wants together */
  GEMM_TILE_ROWS = 256,   /* rows of x per work item at most */
  GEMM_WIDE_ROWS = 132,   /* the same for plain numbers and many rows: their ranges of x, 144 KiB, stay in a second-level cache */
  GEMM_WIDE_STRIDE = GEMM_RANGE_PLAIN +
                     16, /* floats between them; not a power of two, they would fall into few sets of the first-level cache */
};

/* Part of a panel unpacked, and the accumulators of a tile of rows. One per worker. */
struct gemm_tile {
  /* [block][group][row * 4 + k]; what the level's `rows` wants: offset codes or signed values */
  _Alignas(64) uint8_t codes[GEMM_RANGE_BLOCKS][8][64];
  float scales[GEMM_RANGE_BLOCKS][2][GEMM_PANEL];
  float mins[GEMM_RANGE_BLOCKS][2][GEMM_PANEL];
  union {
    int32_t starts[GEMM_RANGE_BLOCKS][2][GEMM_PANEL]; /* what integer sums begin with, on the levels of gemm_vnni.h */
    int32_t subs[GEMM_RANGE_BLOCKS][2][GEMM_PANEL];   /* avx2, types with a scale per 16: sub d twice, in 16 bits each; scales has d */
  };
  float acc[GEMM_TILE_ROWS][GEMM_PANEL];
  /* avx512: where the codes of the first block are, and how far from them the next one's: in `codes`, or in the panel where they lie as they are wanted */
  const uint8_t *codes_at;
  size_t codes_step;
};

/* For products of plain numbers with many rows: a range of k of a tile of rows side by side, and of a panel as float32. One per worker.
 * Sums go on in y from range to range; those of a panel that has fewer than 16 rows, in acc. */
struct gemm_wide {
  float w[GEMM_RANGE_PLAIN][GEMM_PANEL];
  float x[GEMM_WIDE_ROWS][GEMM_WIDE_STRIDE];
  float acc[GEMM_WIDE_ROWS][GEMM_PANEL];
};

/* Quantised rows of x lie in groups of `rows_max` (one row alone: of 1), so that a group is one stream: [group][block][row] of 32 codes, and beside
 * them [group][block][row] of struct gemm_block. Rows missing in the last group have their place; what comes of them is dropped. */
struct gemm_x { /* a group of rows from some block on */
  const int8_t *codes;
  const struct gemm_block *blocks;
};

/* Fetch [p, p + bytes_per_block) of later weights while working on each block; bytes_per_block 0: nothing. */
struct gemm_ahead {
  const uint8_t *p;
  int bytes_per_block;
};

/* Where sums of rows of x with a panel are, row_bytes apart: in y itself, or in a tile where the panel has fewer than 16 rows. */
struct gemm_sums {
  float *at;
  size_t row_bytes;
  bool first; /* they begin here: nothing has been added yet */
};
static ALWAYS_INLINE float *gemm_sums_row(const struct gemm_sums *s, int row) {
  return (float *)(void *)((char *)s->at + (size_t)row * s->row_bytes);
}

struct gemm_tiles_kern;

/* The reference level, which computes from the file's own bytes. */
static inline bool gemm_is_ref(const struct kern *k) { return k->isa == ISA_REF; }

struct gemm_type_kern {
  /* y[n_rows][16] = panel · x for a group of at most rows_max rows, or for one row that is alone. */
  void (*few)(float (*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, struct gemm_x x, int n_blocks, int n_rows);
  /* Records from p on to the tile: n_blocks <= GEMM_RANGE_BLOCKS, whole records. */
  void (*unpack)(struct gemm_tile *restrict tile, const uint8_t *restrict p, int n_blocks);
  /* sums += tile · x over n_blocks; n_rows <= rows_max. */
  void (*rows)(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, struct gemm_sums sums,
               struct gemm_ahead ahead);
  /* Where a panel's bytes are multiplied as they lie: acc[n_rows][16] += n_blocks blocks from p on · x, each block for all rows before the next.
   * x lies x_blocks blocks a row. ahead: fetch what follows. NULL: unpack, then rows. */
  void (*direct)(const uint8_t *restrict p, int n_blocks, int n_rows, struct gemm_x x, int x_blocks, float (*restrict acc)[GEMM_PANEL],
                 bool ahead);
  /* Plain numbers. x is float32, or bf16 pairs where the level has bf16_row. y[p][16] = panels p < n_panels <= plain_panels_max · one row. */
  void (*plain_one)(float (*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels, const void *x, int n);
  /* acc[n_rows][16] += n columns of a panel · x; n even but for the last range. */
  void (*plain_rows)(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes, float (*restrict acc)[GEMM_PANEL]);
  /* n columns of a panel to float32; NULL: they are float32 already, one after the other. */
  void (*plain_expand)(float (*restrict w)[GEMM_PANEL], const uint8_t *restrict panel, int n);
};

struct gemm_kern {
  int rows_max, plain_rows_max, plain_panels_max;
  int codes_x_bytes;    /* of quantised x that an item goes over at once: it stays in a second-level cache beside the weights */
  bool codes_in_passes; /* over k where x of many rows is more than that; else fewer rows */
  int few_max;          /* up to so many rows `few` is faster than unpacking once; <= rows_max */
  /* n, a multiple of 32, floats to codes and blocks, each block `group` rows after the one before. NULL: the level works from the file's bytes
   * with gemm_ref_rows. */
  void (*quantise_row)(int8_t *restrict codes, struct gemm_block *restrict blocks, int group, const float *restrict x, int n);
  /* To bf16, an odd n padded with a zero. NULL: bf16 weights take float32 rows. */
  void (*bf16_row)(uint16_t *restrict y, const float *restrict x, int n);
  /* y[n_rows][16] = w · x, or += when there was a range before; n <= GEMM_RANGE_PLAIN, n_rows <= plain_rows_max, x GEMM_WIDE_STRIDE apart,
   * y y_bytes. The same sums as plain_rows. NULL: the level does not have it. */
  void (*wide_rows)(const float *restrict w, int n, int n_rows, const float *restrict x, float *restrict y, size_t y_bytes, bool first);
  struct gemm_type_kern types[DTYPE_COUNT];
  const struct gemm_tiles_kern *tiles; /* goes before `types` where it has a type (gemm_tiles.h). NULL: there are none */
};

/* tile->acc = panel · n_rows <= GEMM_TILE_ROWS rows of x, for the levels that pack: what gemm.c and moe.c have in common (gemm.c).
 * Of codes: x from the start of a group on, `group` rows in each. Of plain numbers: rows x_bytes apart, of elements of elem_bytes. */
void gemm_panel_codes(const struct gemm_kern *k, const struct weight *w, int panel, struct gemm_x x, int group, int n_rows,
                      struct gemm_tile *tile);
void gemm_panel_plain(const struct gemm_kern *k, const struct weight *w, int panel, const void *x, size_t x_bytes, size_t elem_bytes,
                      int n_rows, struct gemm_tile *tile);

/* The reference level: weight rows [from, to) of w times all rows of x, in float32 from the file's bytes. scratch: GEMM_REF_ROWS * cols floats. */
enum { GEMM_REF_ROWS = 4 };
void gemm_ref_rows(const struct weight *w, const struct tensor *y, const struct tensor *x, int from, int to, float *scratch);

extern const struct gemm_kern gemm_ref;
#if defined(__x86_64__)
extern const struct gemm_kern gemm_avx2;
extern const struct gemm_kern gemm_avxvnni;
extern const struct gemm_kern gemm_avx512, gemm_avx512bf16, gemm_amx;
/* gemm_avx512bf16.c, for the latter */
void gemm_plain_one_bf16(float (*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels, const void *x,
                         int n);
void gemm_plain_rows_bf16(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,
                          float (*restrict acc)[GEMM_PANEL]);
void gemm_bf16_row(uint16_t *restrict y, const float *restrict x, int n);
extern const struct gemm_tiles_kern gemm_amx_tiles;
#endif

#endif
