/* media_golden.h — for tests of media: configurations of the released geometries by hand, fixtures' tensors, pictures. */
#ifndef CYGNET_TEST_MEDIA_GOLDEN_H
#define CYGNET_TEST_MEDIA_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "files/safetensors.h"
#include "models/media_impl.h"

static inline struct model_config *config_new(void) {
  struct model_config *c = xcalloc(1, sizeof *c);
  for (int i = 0; i < 3; i++) c->vision.std[i] = 1;
  return c;
}

static inline struct model_config *config_siglip(int image, int patch, int soft_tokens) {
  struct model_config *c = config_new();
  c->family = FAMILY_GEMMA3;
  c->vision.kind = VISION_SIGLIP;
  c->vision.image = image;
  c->vision.patch = patch;
  c->vision.soft_tokens = soft_tokens;
  for (int i = 0; i < 3; i++) c->vision.mean[i] = c->vision.std[i] = 0.5f;
  return c;
}

static inline struct model_config *config_gemma4(enum vision_kind kind, int patch, int positions, int soft_tokens) {
  struct model_config *c = config_new();
  c->family = FAMILY_GEMMA4;
  c->vision.kind = kind;
  c->vision.patch = patch;
  c->vision.pool = 3;
  c->vision.n_positions = positions;
  c->vision.soft_tokens = soft_tokens;
  c->audio.kind = kind == VISION_GEMMA4 ? AUDIO_GEMMA4 : AUDIO_GEMMA4_FRAMES;
  c->audio.n_mel = 128;
  c->audio.hidden = kind == VISION_GEMMA4 ? 1024 : 640;
  return c;
}

static inline struct model_config *config_mllama(int image, int patch) {
  static const float mean[3] = {0.48145466f, 0.4578275f, 0.40821073f}, std[3] = {0.26862954f, 0.26130258f, 0.27577711f};
  static const int ratios[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}};
  struct model_config *c = config_new();
  c->family = FAMILY_MLLAMA;
  c->vision.kind = VISION_MLLAMA;
  c->vision.image = image;
  c->vision.patch = patch;
  c->vision.pool = 1;
  c->vision.n_tiles = 4;
  c->vision.n_ratios = ARRAY_LEN(ratios);
  memcpy(c->vision.ratios, ratios, sizeof ratios);
  memcpy(c->vision.mean, mean, sizeof mean);
  memcpy(c->vision.std, std, sizeof std);
  return c;
}

/* ---- fixtures --------------------------------------------------------------------------------------------------------------- */

static inline const struct st_tensor *tensor_of(const struct safetensors *s, const char *a, const char *b) {
  char name[200];
  snprintf(name, sizeof name, "%s%s", a, b);
  return safetensors_find(s, name);
}

/* Decoded pictures of a fixture: a JPEG's golden pixels where they are there, so that no decoder's rounding is in the way. */
static inline struct image picture_open(const struct safetensors *golden, const char *path, const char *stem) {
  struct err e = {0};
  struct image im = {0};
  const struct st_tensor *rgb = golden ? tensor_of(golden, stem, ".rgb") : NULL;
  if (rgb) {
    im = (struct image){.width = (int)rgb->shape[1], .height = (int)rgb->shape[0], .rgb = xmalloc(rgb->n_bytes)};
    memcpy(im.rgb, rgb->data, rgb->n_bytes);
    return im;
  }
  size_t n;
  char *bytes = test_read(path, &n);
  if (image_decode(bytes, n, 0, &im, &e)) fail_msg("%s: %s", path, e.msg);
  free(bytes);
  return im;
}

static inline struct media *media_of(const struct model_config *c, const struct image *im, int soft_tokens) {
  struct err e = {0};
  struct media_options o = {.soft_tokens = soft_tokens};
  struct media *m = media_from_image(c, im, &o, &e);
  if (!m) fail_msg("%s", e.msg);
  return m;
}

/* All rows of a medium, owned. */
static inline float *rows_of(const struct model_config *c, const struct media *m) {
  float *rows = xmalloc((size_t)m->n_patches * (size_t)media_cols(c, m->kind) * sizeof *rows);
  media_patches(c, m, 0, m->n_patches, rows);
  return rows;
}

/* Planes [squares, 3, side, side] put together again from rows [colour, y, x], owned. */
static inline float *planes_of(const struct model_config *c, const struct media *m) {
  const struct vision_config *v = &c->vision;
  int grid = v->image / v->patch, patch = v->patch, side = v->image, n = m->n_patches / (grid * grid);
  float *rows = rows_of(c, m), *out = xmalloc((size_t)n * 3 * (size_t)side * (size_t)side * sizeof *out);
  for (int s = 0; s < n; s++)
    for (int colour = 0; colour < 3; colour++)
      for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
          size_t row = (size_t)(s * grid * grid + y / patch * grid + x / patch),
                 col = (size_t)((colour * patch + y % patch) * patch + x % patch);
          out[(((size_t)s * 3 + (size_t)colour) * (size_t)side + (size_t)y) * (size_t)side + (size_t)x] =
              rows[row * 3 * (size_t)(patch * patch) + col];
        }
  free(rows);
  return out;
}

#endif
