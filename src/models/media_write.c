/* media_write.c — what an encoder gets of media, as a safetensors file: for comparing with other programs.
 *
 *   SIGLIP    pixel_values [3, image, image]; of several pictures [n, 3, image, image]
 *   GEMMA4    patches [n_patches, cols], positions [n_patches, 2] (column, row)
 *   MLLAMA    pixel_values [n_tiles, 3, image, image], ratio_id [1], tiles [1], tile_mask [n_tiles]
 *   sound     features [frames, cols]
 * and tokens [media], what each takes in the prompt.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "files/safetensors.h"
#include "models/media_impl.h"

enum { TENSORS_MAX = 8 };

struct writer {
  struct st_write tensors[TENSORS_MAX];
  int n;
  void *owned[TENSORS_MAX];
};

/* A tensor's data, zeroed; NULL when there is no memory. Dimensions that are 0 end the shape. */
static void *add(struct writer *w, const char *name, enum dtype type, int64_t a, int64_t b, int64_t c, int64_t d) {
  struct st_write *t = &w->tensors[w->n];
  size_t elem_bytes = (size_t)dtype_info(type)->block_bytes, n_bytes = elem_bytes;
  *t = (struct st_write){.name = name, .dtype = type, .shape = {a, b, c, d}};
  while (t->n_dims < 4 && t->shape[t->n_dims]) n_bytes *= (size_t)t->shape[t->n_dims++];
  t->data = w->owned[w->n++] = mem_try_alloc(n_bytes);
  return (void *)t->data;
}

/* One square of pixels as [colour, y, x]. */
static void put_square(const struct media *m, int left, int top, int side, float value[3][256], float *out) {
  for (int colour = 0; colour < 3; colour++)
    for (int y = top; y < top + side; y++)
      for (int x = left; x < left + side; x++)
        *out++ = value[colour][m->pixels[((size_t)y * (size_t)m->width + (size_t)x) * 3 + (size_t)colour]];
}

static bool add_squares(struct writer *w, const struct vision_config *v, const struct media *const *media, int n) {
  int side = v->image, n_squares = v->kind == VISION_MLLAMA ? v->n_tiles : n;
  size_t square = 3 * (size_t)side * (size_t)side;
  float value[3][256], *out;
  media_values(v, value);
  if (v->kind == VISION_SIGLIP && n == 1) out = add(w, "pixel_values", DTYPE_F32, 3, side, side, 0);
  else out = add(w, "pixel_values", DTYPE_F32, n_squares, 3, side, side);
  if (!out) return false;
  for (int i = 0; i < n && v->kind == VISION_SIGLIP; i++) put_square(media[i], 0, 0, side, value, out + (size_t)i * square);
  if (v->kind == VISION_SIGLIP) return true;
  const struct media *m = media[0];
  int n_used = m->tiles_wide * m->tiles_high;
  for (int i = 0; i < n_used; i++) put_square(m, i % m->tiles_wide * side, i / m->tiles_wide * side, side, value, out + (size_t)i * square);
  int32_t *ratio = add(w, "ratio_id", DTYPE_I32, 1, 0, 0, 0), *tiles = add(w, "tiles", DTYPE_I32, 1, 0, 0, 0);
  int32_t *mask = add(w, "tile_mask", DTYPE_I32, v->n_tiles, 0, 0, 0);
  if (!ratio || !tiles || !mask) return false;
  ratio[0] = m->ratio_id;
  tiles[0] = n_used;
  for (int i = 0; i < n_used; i++) mask[i] = 1;
  return true;
}

static bool add_rows(struct writer *w, const struct model_config *c, const struct media *m) {
  float *out = add(w, m->kind == MEDIA_AUDIO ? "features" : "patches", DTYPE_F32, m->n_patches, media_cols(c, m->kind), 0, 0);
  if (!out) return false;
  media_patches(c, m, 0, m->n_patches, out);
  if (m->kind == MEDIA_AUDIO) return true;
  int32_t *place = add(w, "positions", DTYPE_I32, m->n_patches, 2, 0, 0);
  for (int i = 0; place && i < m->n_patches; i++) media_place(c, m, i, &place[2 * i], &place[2 * i + 1]);
  return place != NULL;
}

int media_write(const struct model_config *c, const struct media *const *media, int n, const char *path, struct err *e) {
  struct writer w = {0};
  bool squares = media[0]->kind != MEDIA_AUDIO && (c->vision.kind == VISION_SIGLIP || c->vision.kind == VISION_MLLAMA);
  CHECK(n == 1 || (n > 1 && c->vision.kind == VISION_SIGLIP));
  bool fits = squares ? add_squares(&w, &c->vision, media, n) : add_rows(&w, c, media[0]);
  int32_t *tokens = fits ? add(&w, "tokens", DTYPE_I32, n, 0, 0, 0) : NULL;
  int rc = -1;
  if (!tokens) err_set(e, ERR_NO_MEMORY, "no memory to write what the encoder gets");
  else {
    for (int i = 0; i < n; i++) tokens[i] = media[i]->n_tokens;
    rc = safetensors_write(path, w.tensors, w.n, e);
  }
  for (int i = 0; i < w.n; i++) free(w.owned[i]);
  return rc;
}
