/* hand_encoder.h — an encoder without its text model, for encoders' tests: weights, a device, taps kept in memory, media from golden
 * values.
 *
 * Differences are greatest |a - b| over the rms of the reference tensor, as in golden.h.
 */
#ifndef CYGNET_TEST_HAND_ENCODER_H
#define CYGNET_TEST_HAND_ENCODER_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "models/encoder.h"

struct kept { /* a tap: rows in any order, each once */
  char name[24];
  int layer, rows, cols;
  float *x;       /* [rows, cols] */
  uint8_t *times; /* [rows] */
};

struct hand {
  struct safetensors golden;
  struct weights *w;
  struct model m;                  /* config, plan, device and taps alone */
  const struct device_ops *device; /* NULL: the CPU */
  struct encoder *x;
  struct kept kept[64];
  int n_kept;
};

static inline void on_encoder_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct hand *h = ctx;
  struct kept *k = h->kept, *end = k + h->n_kept;
  while (k < end && (strcmp(k->name, name) || k->layer != layer)) k++;
  if (k == end) {
    CHECK(h->n_kept++ < (int)ARRAY_LEN(h->kept));
    *k = (struct kept){.layer = layer, .cols = cols};
    snprintf(k->name, sizeof k->name, "%s", name);
  }
  CHECK(cols == k->cols);
  if (row >= k->rows) {
    k->x = xrealloc(k->x, (size_t)(row + 1) * (size_t)cols * sizeof *k->x);
    k->times = xrealloc(k->times, (size_t)row + 1);
    memset(k->times + k->rows, 0, (size_t)(row + 1 - k->rows));
    k->rows = row + 1;
  }
  memcpy(k->x + (size_t)row * (size_t)cols, x, (size_t)cols * sizeof *x);
  k->times[row]++;
}
static inline void hand_forget(struct hand *h) {
  for (int i = 0; i < h->n_kept; i++) free(h->kept[i].x), free(h->kept[i].times);
  h->n_kept = 0;
}

/* The tap with so many rows, each of which came once. */
static inline const float *hand_tap(const struct hand *h, const char *name, int layer, int rows, int cols) {
  for (int i = 0; i < h->n_kept; i++) {
    const struct kept *k = &h->kept[i];
    if (strcmp(k->name, name) || k->layer != layer) continue;
    if (k->rows != rows || k->cols != cols) fail_msg("%s %d: [%d, %d], expected [%d, %d]", name, layer, k->rows, k->cols, rows, cols);
    for (int r = 0; r < rows; r++)
      if (k->times[r] != 1) fail_msg("%s %d: row %d came %d times", name, layer, r, k->times[r]);
    return k->x;
  }
  fail_msg("no tap %s of layer %d", name, layer);
  return NULL;
}

/* Files at path; the encoder follows in hand_load, so that a test may change the configuration before. */
static inline void hand_open(struct hand *h, const char *path) {
  struct err e = {0};
  memset(h, 0, sizeof *h);
  h->w = weights_open(path, &h->m.config, &e);
  if (!h->w) fail_msg("%s", e.msg);
}
static inline int hand_try_load(struct hand *h, enum media_kind kind, enum isa isa, int threads, struct err *e) {
  const struct model_config *c = &h->m.config;
  struct device_config dc = {.isa = isa,
                             .n_threads = threads,
                             .rows_max = encoder_block_max(c),
                             .cols_max = encoder_cols_max(c),
                             .keys_max = encoder_keys_max(c),
                             .head_dim_max = encoder_head_dim_max(c),
                             .positions_max = 64};
  h->m.plan = (struct model_plan){.isa = isa, .n_threads = threads, .media = true, .quiet = true};
  h->m.dev = (h->device ? h->device : &device_cpu_ops)->open(&dc, e);
  if (!h->m.dev || !(h->x = encoder_open(&h->m, kind, h->w, e))) return -1;
  h->m.tap = on_encoder_tap;
  h->m.tap_ctx = h;
  return 0;
}
static inline void hand_load(struct hand *h, enum media_kind kind, enum isa isa, int threads) {
  struct err e = {0};
  if (hand_try_load(h, kind, isa, threads, &e)) fail_msg("%s", e.msg);
}
static inline void hand_open_golden(struct hand *h, const char *folder) {
  struct err e = {0};
  char path[128];
  snprintf(path, sizeof path, "golden/%s", folder);
  hand_open(h, test_path(path));
  snprintf(path, sizeof path, "golden/%s/golden.safetensors", folder);
  if (safetensors_open(&h->golden, test_path(path), &e)) fail_msg("%s", e.msg);
}
static inline void hand_close(struct hand *h) {
  encoder_close(h->x);
  if (h->m.dev) h->m.dev->ops->close(h->m.dev);
  weights_close(h->w);
  safetensors_close(&h->golden);
  hand_forget(h);
}

/* A job from begin to end; x->out holds the rows. */
static inline void hand_encode(struct hand *h, const struct media *const *items, int n) {
  hand_forget(h);
  encoder_begin(h->x, items, n);
  while (!encoder_unit(h->x)) continue;
}
/* The same, rows copied; owned. */
static inline float *hand_rows(struct hand *h, const struct media *const *items, int n, size_t *n_floats) {
  hand_encode(h, items, n);
  int cols = h->x->out.cols;
  float *all = xmalloc((size_t)h->x->out.rows * (size_t)cols * sizeof *all);
  for (int r = 0; r < h->x->out.rows; r++) memcpy(all + (size_t)r * (size_t)cols, tensor_row(&h->x->out, r), (size_t)cols * sizeof *all);
  *n_floats = (size_t)h->x->out.rows * (size_t)cols;
  return all;
}

static inline const struct st_tensor *hand_golden(const struct hand *h, const char *medium, int which, const char *name) {
  char full[96];
  snprintf(full, sizeof full, "%s%d.%s", medium, which, name);
  return safetensors_find(&h->golden, full);
}

/* A file of the fixture's folder, decoded: the picture or sound named `file`. */
static inline struct media *hand_media(const struct hand *h, const char *folder, const char *file, enum media_kind kind) {
  struct err e = {0};
  struct image im = {0};
  struct audio au = {0};
  struct media_options none = {0};
  char path[128];
  size_t n;
  snprintf(path, sizeof path, "golden/%s/%s", folder, file);
  char *bytes = test_read(test_path(path), &n);
  struct media *m = NULL;
  if (kind == MEDIA_IMAGE && !image_decode(bytes, n, 0, &im, &e)) m = media_from_image(&h->m.config, &im, &none, &e);
  if (kind == MEDIA_AUDIO && !audio_decode(bytes, n, 0, &au, &e)) m = media_from_audio(&h->m.config, &au, 0, au.n_samples, &e);
  if (!m) fail_msg("%s: %s", path, e.msg);
  image_free(&im);
  audio_free(&au);
  free(bytes);
  return m;
}
/* Frames that somebody else made, as a sound. */
static inline struct media *hand_sound(const float *frames, int n, int cols, int rows) {
  struct media *m = xcalloc(1, sizeof *m);
  *m = (struct media){.kind = MEDIA_AUDIO, .refs = 1, .n_tokens = rows, .n_rows = rows, .n_patches = n, .frame_cols = cols};
  m->frames = xmalloc((size_t)n * (size_t)cols * sizeof *m->frames);
  memcpy(m->frames, frames, (size_t)n * (size_t)cols * sizeof *m->frames);
  return m;
}
static inline void hand_release(struct media **m, int n) {
  for (int i = 0; i < n; i++) media_release(m[i]);
}

/* n floats at `from` of a golden tensor against mine. */
static inline double hand_difference(const float *mine, const struct st_tensor *golden, size_t from, size_t n) {
  double max, l2;
  CHECK((from + n) * sizeof(float) <= golden->n_bytes);
  test_compare(mine, (const float *)golden->data + from, n, &max, &l2);
  return max;
}

/* ---- random checkpoints --------------------------------------------------------------------------------- */
struct hand_maker {
  struct st_write t[256];
  char names[256][160];
  int n;
  uint64_t seed;
};
static inline void hand_add_tensor(struct hand_maker *k, const char *name, int n_dims, const int64_t shape[4], double middle,
                                   double deviation) {
  size_t n = 1;
  for (int i = 0; i < n_dims; i++) n *= (size_t)shape[i];
  float *x = xmalloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = (float)(middle + deviation * (double)test_rand_normal(&k->seed));
  CHECK(k->n < (int)ARRAY_LEN(k->t));
  snprintf(k->names[k->n], sizeof k->names[0], "%s", name);
  struct st_write *t = &k->t[k->n];
  *t = (struct st_write){.name = k->names[k->n], .dtype = DTYPE_F32, .n_dims = n_dims, .data = x};
  for (int i = 0; i < n_dims; i++) t->shape[i] = shape[i];
  k->n++;
}
static inline void hand_add(struct hand_maker *k, const char *prefix, const char *name, int rows, int cols, double middle,
                            double deviation) {
  char full[160];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  hand_add_tensor(k, full, rows ? 2 : 1, rows ? (const int64_t[4]){rows, cols} : (const int64_t[4]){cols}, middle, deviation);
}

/* model.safetensors in the test's folder, beside the text configuration of a fixture. The maker is done with. */
static inline void hand_write(struct hand_maker *k, const char *fixture) {
  struct err e = {0};
  char path[256];
  size_t n;
  snprintf(path, sizeof path, "golden/%s/config.json", fixture);
  char *config = test_read(test_path(path), &n);
  test_write("config.json", config, n);
  free(config);
  snprintf(path, sizeof path, "%s/model.safetensors", test_tmpdir());
  if (safetensors_write(path, k->t, k->n, &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < k->n; i++) free((void *)(uintptr_t)k->t[i].data);
  free(k);
}

/* A tensor by our name as float32, rows 0 a vector; owned. */
static inline float *hand_weights(struct hand *h, const char *name, int rows, int cols) {
  struct err e = {0};
  struct weight_view v;
  if (weights_get(h->w, name, rows, cols, &v, &e)) fail_msg("%s", e.msg);
  size_t n = (size_t)MAX(rows, 1) * (size_t)cols;
  float *out = xmalloc(n * sizeof *out);
  dtype_to_f32(v.dtype, v.data, out, n);
  return out;
}

#endif
