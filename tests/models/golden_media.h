/* golden_media.h — models with pictures and sounds against golden values: fixtures tests/golden/media-*, whose cases.json says which files
 * a case has.
 *
 * Differences are greatest |a - b| over the rms of the reference tensor, as in golden.h.
 */
#ifndef CYGNET_TEST_GOLDEN_MEDIA_H
#define CYGNET_TEST_GOLDEN_MEDIA_H

#include "files/json.h"
#include "models/encoder.h"
#include "models/golden.h"

enum { MEDIA_FILES_MAX = 8 };

struct media_fixture {
  struct fixture f;
  json_t *cases;                           /* cases.json */
  struct media *pictures[MEDIA_FILES_MAX]; /* image{k} of the golden values */
  int n_pictures;
};

static inline struct media *picture_open(const struct model_config *c, const char *path) {
  struct err e = {0};
  struct image im = {0};
  size_t n;
  char *bytes = test_read(path, &n);
  if (image_decode(bytes, n, 0, &im, &e)) fail_msg("%s: %s", path, e.msg);
  struct media *m = media_from_image(c, &im, &(struct media_options){0}, &e);
  if (!m) fail_msg("%s: %s", path, e.msg);
  image_free(&im);
  free(bytes);
  return m;
}

/* The model in the folder, its encoders where the plan wants them, and its pictures. */
static inline void media_fixture_open(struct media_fixture *x, const char *folder, const struct model_plan *plan) {
  struct err e = {0};
  char text[256];
  memset(x, 0, sizeof *x);
  snprintf(text, sizeof text, "golden/%s", folder);
  fixture_open_at(&x->f, test_path(text), folder, "golden.safetensors", plan);
  if (model_open_media(x->f.m, x->f.w, &e)) fail_msg("%s: %s", folder, e.msg);
  snprintf(text, sizeof text, "golden/%s/cases.json", folder);
  x->cases = json_load_path(test_path(text), 1 << 20, &e);
  if (!x->cases) fail_msg("%s", e.msg);
  const json_t *names = json_object_get(x->cases, "pictures");
  for (size_t i = 0; i < json_array_size(names); i++) {
    snprintf(text, sizeof text, "golden/%s/%s", folder, json_string_value(json_array_get(names, i)));
    CHECK(x->n_pictures < MEDIA_FILES_MAX);
    x->pictures[x->n_pictures++] = picture_open(x->f.config, test_path(text));
  }
}

static inline void media_fixture_close(struct media_fixture *x) {
  for (int i = 0; i < x->n_pictures; i++) media_release(x->pictures[i]);
  json_decref(x->cases);
  fixture_close(&x->f);
}

static inline const struct st_tensor *media_golden(const struct media_fixture *x, const char *who, const char *what) {
  char name[96];
  snprintf(name, sizeof name, "%s.%s", who, what);
  return safetensors_find(&x->f.golden, name);
}

static inline double media_rms(const struct st_tensor *t) {
  double sum = 0;
  size_t n = t->n_bytes / sizeof(float);
  for (size_t i = 0; i < n; i++) sum += (double)((const float *)t->data)[i] * (double)((const float *)t->data)[i];
  return sqrt(sum / (double)n);
}

/* Everything that x makes of one job; the last unit's output is in x->out. */
static inline void encode(struct encoder *x, const struct media *const *items, int n) {
  encoder_begin(x, items, n);
  while (!encoder_unit(x)) {}
}

#endif
