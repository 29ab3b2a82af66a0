/* gemm_amx.c — products on AMX tiles: of codes with many rows, of bf16 weights with any number.
 *
 * Codes: a block of a group of 16 rows of x is one tile as it lies, 8 groups of 4 k of a panel (struct gemm_tile) another, and one TDPBUSD makes the
 * 16 x 16 exact sums of the block. From there on a row goes through the operations of gemm_avx512.c's `few` (gemm_vnni.h), so bits are the same. Tiles
 * can only be stored, so sums go through memory. Few rows, and types with a scale per 16, stay with vpdpbusd.
 *
 * Cycles for a block of 16 rows of a panel, Emerald Rapids, each part measured alone: product 16, its store 17, both with the loads of their factors 23,
 * scaling 30 (32 and 16 operations of 512 bits). Where tiles are in use only one of the two pipes multiplies floats (additions and integers have both),
 * so scaling takes 32 cycles at least, 48 with minima. Together: 57, 80 with minima; vpdpbusd 95 and 105. With a scale per 16 two products, two
 * stores and twice the scaling take longer than vpdpbusd.
 *
 * bf16: TDPBF16PS adds products in an order of its own, so one row goes through tiles, too. Of its peak of 512 multiply-adds a cycle a kernel in
 * the first-level cache reaches 70 %, the whole product 20 %: rows of x come from the second-level cache.
 */
#include "compute/gemm_vnni512.h"
#include "compute/tiles_amx.h"

enum {
  ROWS_MAX = GEMM_AMX_ROWS,
  GROUPS = 8,
  LAG = 3,  /* blocks between a product and the use of its sums */
  RING = 4, /* blocks whose sums are in memory */
  PLAIN_TILES = GEMM_AMX_PLAIN_ROWS / ROWS_MAX,
  STEP = 32, /* k of a tile of bf16 */
  PAIR_BYTES = 64,
  AHEAD_BYTES = 4096
};

/* Four tiles of sums, one of x, one of weights. */
#define T_C0 0
#define T_C1 1
#define T_C2 2
#define T_C3 3
#define T_X  4
#define T_W  5

void gemm_amx_begin(enum dtype t, int n_rows) {
  struct tile_shapes s = {0};
  int m = t == DTYPE_BF16 ? MIN(ROWS_MAX, n_rows) : ROWS_MAX;
  if (t == DTYPE_F32 || t == DTYPE_F16 || (t != DTYPE_BF16 && n_rows < GEMM_AMX_LEAST)) return;
  for (int i = 0; i < 4; i++) tile_shape(&s, i, m, 64);
  tile_shape(&s, T_X, m, t == DTYPE_BF16 ? 64 : GEMM_BLOCK);
  tile_shape(&s, T_W, t == DTYPE_BF16 ? 16 : GROUPS, 64);
  tile_begin(&s);
}

void gemm_amx_end(void) { tile_end(); }

/* --- codes ------------------------------------------------------------------------------------------------------------ */

/* Where one of the three is: block b of a panel's range, for the group whose codes and blocks are next. */
struct walk {
  const int8_t *codes;
  const struct gemm_block *blocks;
  int b;
};

/* On to the next block; skip: blocks from the end of the range in one group to its beginning in the next. */
static ALWAYS_INLINE void step(struct walk *w, int n_blocks, size_t skip) {
  size_t n = ROWS_MAX;
  if (++w->b == n_blocks) {
    w->b = 0;
    n += skip;
  }
  w->codes += n * GEMM_BLOCK;
  w->blocks += n;
}

/* acc += a block of a group. What comes of rows that are not there is dropped. */
static ALWAYS_INLINE void add_block(const bool mins, vec acc[ROWS_MAX], const int32_t (*sums)[GEMM_PANEL],
                                    const struct gemm_tile *restrict tile, const struct walk *w) {
  __m512i start = _mm512_load_si512(tile->starts[w->b][0]);
  vec scale = vec_load(tile->scales[w->b][0]), magic = vnni_magic_times(scale), min = mins ? vec_load(tile->mins[w->b][0]) : vec_zero();
  GEMM_UNROLL(16)
  for (int r = 0; r < ROWS_MAX; r++) {
    const struct vnni_block *block = vnni_block(w->blocks + r);
    vec t = vnni_scaled(vec_zero(), _mm512_add_epi32(_mm512_load_si512(sums[r]), start), scale, magic, 0);
    if (mins) t = vec_fma(min, vec_set1(block->neg_sum), t);
    acc[r] = vec_fma(t, vec_set1(block->d), acc[r]);
  }
}

/* All blocks of all groups are one sequence, on which three things go on at once: a block is multiplied, the sums of the second before it are stored,
 * and those of the LAG-th before it are scaled. */
static ALWAYS_INLINE void groups(const bool mins, const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x,
                                 int x_blocks, float (*restrict y)[GEMM_PANEL], struct gemm_ahead ahead) {
  _Alignas(64) int32_t sums[RING][ROWS_MAX][GEMM_PANEL];
  const int n = div_up(n_rows, ROWS_MAX) * n_blocks;
  const size_t skip = (size_t)(x_blocks - n_blocks) * ROWS_MAX;
  struct walk multiplied = {x.codes, x.blocks, 0}, scaled = multiplied;
  vec acc[ROWS_MAX];
  TILE_SEES_MEMORY();
#define STAGE(this, before)                                                                                                                \
  {                                                                                                                                        \
    if (i < n) {                                                                                                                           \
      TILE_ZERO(this);                                                                                                                     \
      TILE_LOAD(T_X, multiplied.codes, GEMM_BLOCK);                                                                                        \
      TILE_LOAD(T_W, tile->codes[multiplied.b], 64);                                                                                       \
      TILE_CODES(this, T_X, T_W);                                                                                                          \
      step(&multiplied, n_blocks, skip);                                                                                                   \
    }                                                                                                                                      \
    if (i >= 2 && i - 2 < n) TILE_STORE(before, sums[(i - 2) % RING], 64);                                                                 \
    if (i >= LAG && i - LAG < n) {                                                                                                         \
      if (scaled.b == 0) {                                                                                                                 \
        GEMM_UNROLL(16)                                                                                                                    \
        for (int r = 0; r < ROWS_MAX; r++) acc[r] = vec_load(y[r]);                                                                        \
      }                                                                                                                                    \
      add_block(mins, acc, (const int32_t(*)[GEMM_PANEL])sums[(i - LAG) % RING], tile, &scaled);                                           \
      step(&scaled, n_blocks, skip);                                                                                                       \
      if (scaled.b == 0) {                                                                                                                 \
        GEMM_UNROLL(16)                                                                                                                    \
        for (int r = 0; r < ROWS_MAX; r++) vec_store(y[r], acc[r]);                                                                        \
        y += ROWS_MAX;                                                                                                                     \
      }                                                                                                                                    \
    }                                                                                                                                      \
    i++;                                                                                                                                   \
  }
  for (int i = 0; i < n + LAG;) {
    for (int j = 0; i < n_blocks && j < 4 * ahead.bytes_per_block; j += 64) _mm_prefetch((const char *)ahead.p + j, _MM_HINT_T0);
    ahead.p += 4 * ahead.bytes_per_block;
    STAGE(T_C0, T_C2)
    STAGE(T_C1, T_C3)
    STAGE(T_C2, T_C0)
    STAGE(T_C3, T_C1)
  }
}

void gemm_amx_groups(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, int x_blocks,
                     float (*restrict acc)[GEMM_PANEL], struct gemm_ahead ahead) {
  groups(false, tile, n_blocks, n_rows, x, x_blocks, acc, ahead);
}
void gemm_amx_groups_min(const struct gemm_tile *restrict tile, int n_blocks, int n_rows, struct gemm_x x, int x_blocks,
                         float (*restrict acc)[GEMM_PANEL], struct gemm_ahead ahead) {
  groups(true, tile, n_blocks, n_rows, x, x_blocks, acc, ahead);
}

/* --- bf16 ------------------------------------------------------------------------------------------------------------- */

/* The last step of a panel, padded with zeros; those of x are in its rows (gemm_amx_bf16_row). */
static const uint8_t *padded(uint8_t to[STEP / 2 * PAIR_BYTES], const uint8_t *p, int n) {
  size_t n_bytes = (size_t)div_up(n, 2) * PAIR_BYTES;
  memcpy(to, p, n_bytes);
  memset(to + n_bytes, 0, STEP / 2 * PAIR_BYTES - n_bytes);
  TILE_SEES_MEMORY();
  return to;
}

static ALWAYS_INLINE void fetch_step(const uint8_t *p) {
  GEMM_UNROLL(16)
  for (int i = 0; i < STEP / 2 * PAIR_BYTES; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

#define EACH_TILE(f) f(0) f(1) f(2) f(3)

/* One row in n_panels panels. */
static ALWAYS_INLINE void one_row(const int n_panels, const uint8_t *restrict p, size_t panel_bytes, const char *restrict x, int n,
                                  float (*restrict y)[GEMM_PANEL]) {
  _Alignas(64) uint8_t end[STEP / 2 * PAIR_BYTES];
  TILE_SEES_MEMORY();
#define ZERO(i)                                                                                                                            \
  if (i < n_panels) TILE_ZERO(T_C##i);
  EACH_TILE(ZERO)
  for (int k = 0; k < n; k += STEP, p += STEP / 2 * PAIR_BYTES, x += 2 * STEP) {
    TILE_LOAD(T_X, x, 64);
#define MULTIPLY(i)                                                                                                                        \
  if (i < n_panels) {                                                                                                                      \
    const uint8_t *at = p + (size_t)i * panel_bytes;                                                                                       \
    fetch_step(at + AHEAD_BYTES);                                                                                                          \
    TILE_LOAD(T_W, k + STEP > n ? padded(end, at, n - k) : at, PAIR_BYTES);                                                                \
    TILE_BF16(T_C##i, T_X, T_W);                                                                                                           \
  }
    EACH_TILE(MULTIPLY)
#undef MULTIPLY
  }
#define STORE(i)                                                                                                                           \
  if (i < n_panels) TILE_STORE(T_C##i, y[i], 64);
  EACH_TILE(STORE)
#undef STORE
}

/* n_rows rows in n_tiles tiles of one panel. Where they do not fill them, the last two have rows in common and do the same with those. */
static ALWAYS_INLINE void rows_in(const int n_tiles, const uint8_t *restrict p, const char *restrict x, size_t x_bytes, int n_rows, int n,
                                  float (*restrict acc)[GEMM_PANEL]) {
  _Alignas(64) uint8_t end[STEP / 2 * PAIR_BYTES];
  int row[PLAIN_TILES];
  for (int i = 0; i < n_tiles; i++) row[i] = MIN(i * ROWS_MAX, MAX(0, n_rows - ROWS_MAX));
  TILE_SEES_MEMORY();
#define LOAD(i)                                                                                                                            \
  if (i < n_tiles) TILE_LOAD(T_C##i, acc[row[i]], 64);
  EACH_TILE(LOAD)
  for (int k = 0; k < n; k += STEP, p += STEP / 2 * PAIR_BYTES, x += 2 * STEP) {
    fetch_step(p + AHEAD_BYTES);
    TILE_LOAD(T_W, k + STEP > n ? padded(end, p, n - k) : p, PAIR_BYTES);
#define MULTIPLY(i)                                                                                                                        \
  if (i < n_tiles) {                                                                                                                       \
    TILE_LOAD(T_X, x + (size_t)row[i] * x_bytes, x_bytes);                                                                                 \
    TILE_BF16(T_C##i, T_X, T_W);                                                                                                           \
  }
    EACH_TILE(MULTIPLY)
#undef MULTIPLY
  }
#define STORE(i)                                                                                                                           \
  if (i < n_tiles) TILE_STORE(T_C##i, acc[row[i]], 64);
  EACH_TILE(STORE)
#undef STORE
}

void gemm_amx_plain_one(float (*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels, const void *x,
                        int n) {
  GEMM_BY_ROWS_4(n_panels, one_row, panel, panel_bytes, x, n, y);
}

void gemm_amx_plain_rows(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,
                         float (*restrict acc)[GEMM_PANEL]) {
  GEMM_BY_ROWS_4(div_up(n_rows, ROWS_MAX), rows_in, panel, x, x_bytes, n_rows, n, acc);
}

void gemm_amx_bf16_row(uint16_t *restrict y, const float *restrict x, int n) {
  gemm_bf16_row(y, x, n);
  memset(y + n, 0, (align_up((size_t)n, STEP) - (size_t)n) * sizeof *y);
}
