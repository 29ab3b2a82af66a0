/* media_patches.c — rows of an encoder's input from 8-bit pixels, on demand: a thousand of them as float32 are four times the picture. */
#include <string.h>

#include "models/media_impl.h"

/* Pixels a side of what makes one row. */
static int side_of(const struct vision_config *v) { return v->kind == VISION_GEMMA4_BLOCKS ? v->patch * v->pool : v->patch; }

int media_cols(const struct model_config *c, enum media_kind kind) {
  if (kind == MEDIA_AUDIO)
    return c->audio.kind == AUDIO_GEMMA4 ? c->audio.n_mel : c->audio.kind == AUDIO_GEMMA4_FRAMES ? c->audio.hidden : 0;
  return c->vision.kind == VISION_NONE ? 0 : 3 * side_of(&c->vision) * side_of(&c->vision);
}

void media_values(const struct vision_config *v, float value[3][256]) {
  for (int colour = 0; colour < 3; colour++)
    for (int i = 0; i < 256; i++) value[colour][i] = (float)((i / 255.0 - (double)v->mean[colour]) / (double)v->std[colour]);
}

/* [y, x, colour] */
static void put_rows(const uint8_t *from, size_t row_bytes, int side, float value[3][256], float *out) {
  for (int y = 0; y < side; y++, from += row_bytes)
    for (int x = 0; x < 3 * side; x += 3, out += 3)
      for (int colour = 0; colour < 3; colour++) out[colour] = value[colour][from[x + colour]];
}

/* [colour, y, x] */
static void put_planes(const uint8_t *from, size_t row_bytes, int side, float value[3][256], float *out) {
  for (int colour = 0; colour < 3; colour++)
    for (int y = 0; y < side; y++)
      for (int x = 0; x < side; x++) *out++ = value[colour][from[(size_t)y * row_bytes + (size_t)(3 * x + colour)]];
}

void media_place(const struct model_config *c, const struct media *m, int patch, int *x, int *y) {
  int wide = m->width / side_of(&c->vision);
  *x = patch % wide;
  *y = patch / wide;
}

void media_patches(const struct model_config *c, const struct media *m, int first, int n, float *out) {
  const struct vision_config *v = &c->vision;
  size_t cols = (size_t)media_cols(c, m->kind);
  CHECK(first >= 0 && n >= 0 && first + n <= m->n_patches);
  if (m->kind == MEDIA_AUDIO) {
    memcpy(out, m->frames + (size_t)first * cols, (size_t)n * cols * sizeof *out);
    return;
  }
  float value[3][256];
  media_values(v, value);
  int side = side_of(v), wide = m->width / side;
  size_t row_bytes = (size_t)m->width * 3;
  for (int i = first; i < first + n; i++, out += cols) {
    int x = i % wide, y = i / wide;
    if (v->kind == VISION_MLLAMA) { /* tile by tile */
      int grid = v->image / side, tile = i / (grid * grid), inside = i % (grid * grid);
      if (tile >= m->tiles_wide * m->tiles_high) {
        memset(out, 0, cols * sizeof *out);
        continue;
      }
      x = tile % m->tiles_wide * grid + inside % grid;
      y = tile / m->tiles_wide * grid + inside / grid;
    }
    const uint8_t *from = m->pixels + (size_t)y * (size_t)side * row_bytes + (size_t)(3 * x * side);
    if (v->kind == VISION_SIGLIP || v->kind == VISION_MLLAMA) put_planes(from, row_bytes, side, value, out);
    else put_rows(from, row_bytes, side, value, out);
  }
}
