/* tiles_amx.h — the tile operations of AMX that the kernels here use. Only files named *_amx.c include it.
 *
 * A thread has eight tiles of up to 16 rows of 64 bytes. Their shapes are set for all of them at once, which clears them and takes about 200 cycles.
 * A thread that is done releases them, or each switch to another thread saves 8 KiB.
 *
 *   TILE_CODES(c, a, b)   c int32 [m][16] += a u8 [m][4k] · b s8 [k][16][4]: row r, column j: sum over i of a[r][i] b[i / 4][j][i % 4], exact
 *   TILE_BF16(c, a, b)    c float [m][16] += a bf16 [m][2k] · b bf16 [k][16][2]: fused multiply-adds from zero on over the even elements and over the
 *                         odd ones, then c + (even + odd); rounded to nearest, denormal factors and sums become zeros, whatever MXCSR says; a row's
 *                         bits do not depend on m
 *
 * Numbers of tiles must be literal. With CYGNET_SIMDE plain C does the same.
 */
#ifndef CYGNET_TILES_AMX_H
#define CYGNET_TILES_AMX_H

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/dtype.h"

/* As LDTILECFG reads it. */
struct tile_shapes {
  uint8_t palette, start_row, zero[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_shapes) == 64, "the processor reads 64 bytes");

static inline void tile_shape(struct tile_shapes *s, int tile, int rows, int row_bytes) {
  s->palette = 1;
  s->rows[tile] = (uint8_t)rows;
  s->row_bytes[tile] = (uint16_t)row_bytes;
}

#ifdef CYGNET_SIMDE
static _Thread_local struct {
  struct tile_shapes shapes;
  uint8_t data[8][16][64];
} tiles_;

static inline void tile_begin(const struct tile_shapes *s) {
  memset(&tiles_, 0, sizeof tiles_);
  tiles_.shapes = *s;
}
static inline void tile_end(void) { memset(&tiles_, 0, sizeof tiles_); }
static inline void tile_zero_(int t) { memset(tiles_.data[t], 0, sizeof tiles_.data[t]); }
static inline void tile_load_(int t, const void *p, size_t stride) {
  tile_zero_(t);
  CHECK(tiles_.shapes.rows[t] > 0);
  for (int r = 0; r < tiles_.shapes.rows[t]; r++)
    memcpy(tiles_.data[t][r], (const char *)p + (size_t)r * stride, tiles_.shapes.row_bytes[t]);
}
static inline void tile_store_(int t, void *p, size_t stride) {
  CHECK(tiles_.shapes.rows[t] > 0);
  for (int r = 0; r < tiles_.shapes.rows[t]; r++) memcpy((char *)p + (size_t)r * stride, tiles_.data[t][r], tiles_.shapes.row_bytes[t]);
}
/* What the processor demands of three shapes. */
static inline void tile_check_(int c, int a, int b) {
  const struct tile_shapes *s = &tiles_.shapes;
  CHECK(s->rows[c] == s->rows[a] && s->row_bytes[c] == s->row_bytes[b] && s->row_bytes[a] == 4 * s->rows[b]);
}
static inline void tile_codes_(int c, int a, int b) {
  tile_check_(c, a, b);
  for (int r = 0; r < tiles_.shapes.rows[c]; r++)
    for (int j = 0; j < tiles_.shapes.row_bytes[c] / 4; j++) {
      int32_t sum;
      memcpy(&sum, tiles_.data[c][r] + 4 * j, 4);
      for (int i = 0; i < tiles_.shapes.row_bytes[a]; i++) sum += tiles_.data[a][r][i] * (int8_t)tiles_.data[b][i / 4][4 * j + i % 4];
      memcpy(tiles_.data[c][r] + 4 * j, &sum, 4);
    }
}
static inline float tile_normal_(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0 : x; }
static inline float tile_bf16_at_(int t, int r, int i) {
  uint16_t v;
  memcpy(&v, tiles_.data[t][r] + 2 * i, 2);
  return tile_normal_(bf16_to_f32(v));
}
static inline void tile_bf16_(int c, int a, int b) {
  tile_check_(c, a, b);
  for (int r = 0; r < tiles_.shapes.rows[c]; r++)
    for (int j = 0; j < tiles_.shapes.row_bytes[c] / 4; j++) {
      float sum, part[2] = {0, 0};
      memcpy(&sum, tiles_.data[c][r] + 4 * j, 4);
      for (int i = 0; i < tiles_.shapes.row_bytes[a] / 2; i++)
        part[i % 2] = tile_normal_(fmaf(tile_bf16_at_(a, r, i), tile_bf16_at_(b, i / 2, 2 * j + i % 2), part[i % 2]));
      sum = tile_normal_(sum + tile_normal_(part[0] + part[1]));
      memcpy(tiles_.data[c][r] + 4 * j, &sum, 4);
    }
}
#define TILE_ZERO(t)                 tile_zero_(t)
#define TILE_LOAD(t, p, stride)      tile_load_(t, p, stride)
#define TILE_LOAD_PAST(t, p, stride) tile_load_(t, p, stride)
#define TILE_STORE(t, p, stride)     tile_store_(t, p, stride)
#define TILE_CODES(c, a, b)          tile_codes_(c, a, b)
#define TILE_BF16(c, a, b)           tile_bf16_(c, a, b)
#define TILE_SEES_MEMORY()
#else
#include <immintrin.h>

/* Loads of tiles do not tell the compiler what memory they read: what was written before must be there. */
#define TILE_SEES_MEMORY()           __asm__ volatile("" ::: "memory")

static inline void tile_begin(const struct tile_shapes *s) {
  TILE_SEES_MEMORY();
  _tile_loadconfig(s);
}
static inline void tile_end(void) { _tile_release(); }
#define TILE_ZERO(t)                 _tile_zero(t)
#define TILE_LOAD(t, p, stride)      _tile_loadd(t, p, stride)
/* Of what will not be wanted again soon: it takes no place in the first-level cache. */
#define TILE_LOAD_PAST(t, p, stride) _tile_stream_loadd(t, p, stride)
#define TILE_STORE(t, p, stride)     _tile_stored(t, p, stride)
#define TILE_CODES(c, a, b)          _tile_dpbusd(c, a, b)
#define TILE_BF16(c, a, b)           _tile_dpbf16ps(c, a, b)
#endif

#endif
