/* media_asking.h — fixtures tests/golden/media-* through an engine: their cases as requests, with the pictures and sounds that belong to
 * them. */
#ifndef TEST_MEDIA_ASKING_H
#define TEST_MEDIA_ASKING_H

#include <stdio.h>

#include "base/mem.h"
#include "engine/roads.h"
#include "files/json.h"
#include "files/safetensors.h"

enum { SCENE_CASES_MAX = 12, SCENE_MEDIA_MAX = 8, SCENE_ROWS_MAX = 192, SCENE_GREEDY = 8 };

struct scene_case {
  const char *name;
  int32_t ids[64];
  int n;
  const struct cygnet_media *media[4];
  int n_media;
};

struct scene {
  const char *folder;
  json_t *json;
  struct safetensors golden;
  struct cygnet_media *files[2 * SCENE_MEDIA_MAX]; /* as pictures, video frames or sounds: one for each use */
  int n_files;
  struct scene_case cases[SCENE_CASES_MAX];
  int n_cases;
};

static inline struct cygnet *scene_engine(const struct scene *x, struct cygnet_options o) {
  char path[96];
  snprintf(path, sizeof path, "golden/%s", x->folder);
  o.model = test_path(path);
  o.kv_type = o.kv_type ? o.kv_type : "f32";
  o.ctx_tokens = o.ctx_tokens ? o.ctx_tokens : 256;
  return open_with(o);
}

static inline struct cygnet_media *scene_load(struct scene *x, const struct cygnet *c, enum cygnet_media_kind kind, const char *file) {
  char path[160];
  size_t n;
  struct cygnet_error e = {0};
  snprintf(path, sizeof path, "golden/%s/%s", x->folder, file);
  char *bytes = test_read(test_path(path), &n);
  struct cygnet_media *m = cygnet_media_new(c, kind, bytes, n, &(struct cygnet_media_options){0}, &e);
  if (!m) fail_msg("%s: %s", file, e.message);
  free(bytes);
  assert_true(x->n_files < 2 * SCENE_MEDIA_MAX);
  return x->files[x->n_files++] = m;
}

static inline void scene_read_case(struct scene *x, const struct cygnet *c, const char *name, const json_t *json) {
  struct scene_case *y = &x->cases[x->n_cases++];
  struct cygnet_info info;
  cygnet_info(c, &info);
  y->name = name;
  const json_t *ids = json_object_get(json, "ids");
  size_t n_seen[2] = {0, 0};
  assert_true(x->n_cases <= SCENE_CASES_MAX && json_array_size(ids) <= ARRAY_LEN(y->ids));
  for (size_t i = 0; i < json_array_size(ids); i++) {
    int32_t id = y->ids[y->n++] = (int32_t)json_integer_value(json_array_get(ids, i));
    bool sound = id == info.audio_id, frame = id == info.video_id;
    if (!sound && !frame && id != info.image_id) continue;
    const json_t *names = json_object_get(json, sound ? "sounds" : "pictures");
    assert_true(y->n_media < (int)ARRAY_LEN(y->media));
    y->media[y->n_media++] = scene_load(x, c,
                                        sound   ? CYGNET_AUDIO
                                        : frame ? CYGNET_VIDEO_FRAME
                                                : CYGNET_IMAGE,
                                        json_string_value(json_array_get(names, n_seen[sound]++)));
  }
  assert_int_equal(n_seen[0], json_array_size(json_object_get(json, "pictures")));
  assert_int_equal(n_seen[1], json_array_size(json_object_get(json, "sounds")));
}

static inline void scene_open(struct scene *x, const char *folder) {
  struct err e = {0};
  char path[128];
  memset(x, 0, sizeof *x);
  x->folder = folder;
  snprintf(path, sizeof path, "golden/%s/cases.json", folder);
  x->json = json_load_path(test_path(path), 1 << 20, &e);
  if (!x->json) fail_msg("%s", e.msg);
  snprintf(path, sizeof path, "golden/%s/golden.safetensors", folder);
  if (safetensors_open(&x->golden, test_path(path), &e)) fail_msg("%s", e.msg);
  struct cygnet *c = scene_engine(x, (struct cygnet_options){0});
  json_t *cases = json_object_get(x->json, "cases"), *one;
  const char *name;
  json_object_foreach(cases, name, one) scene_read_case(x, c, name, one);
  assert_true(x->n_cases >= 3);
  cygnet_close(c);
}

static inline void scene_close(struct scene *x) {
  for (int i = 0; i < x->n_files; i++) {
    assert_int_equal(((const struct media *)x->files[i])->refs, 1); /* nobody else kept one */
    cygnet_media_free(x->files[i]);
  }
  safetensors_close(&x->golden);
  json_decref(x->json);
}

static inline const struct scene_case *scene_case(const struct scene *x, const char *name) {
  for (int i = 0; i < x->n_cases; i++)
    if (!strcmp(x->cases[i].name, name)) return &x->cases[i];
  fail_msg("%s: no case %s", x->folder, name);
  return NULL;
}

static inline struct cygnet_request scene_request(const struct scene_case *y, int max_tokens) {
  return (struct cygnet_request){.prompt = y->ids,
                                 .n_prompt = (size_t)y->n,
                                 .media = y->media,
                                 .n_media = (size_t)y->n_media,
                                 .max_tokens = max_tokens,
                                 .ignore_eos = 1,
                                 .logprobs = 1 + N_TOP};
}

/* As answer_init, with the logits of all rows. */
static inline void scene_answer_init(struct answer *a, struct cygnet_request *r, bool logits) {
  answer_init(a, r, false);
  if (!logits) return;
  a->logits = xcalloc((size_t)SCENE_ROWS_MAX * VOCAB, sizeof(float));
  r->on_logits = on_logits;
  r->callback_ctx = a;
}

static inline void scene_ask(struct cygnet *c, const struct scene_case *y, int max_tokens, struct answer *a, bool logits) {
  struct cygnet_request r = scene_request(y, max_tokens);
  scene_answer_init(a, &r, logits);
  submit(c, &r);
  run(c);
  assert_true(a->over);
}

/* ---- all of them -------------------------------------------------------------------------------------------------------------- */

static const char *const scene_folders[] = {"media-gemma3",     "media-gemma4-31b", "media-gemma4-26b", "media-gemma4-e2b",
                                            "media-gemma4-12b", "media-mllama",     "media-mllama-long"};
static struct scene scenes[ARRAY_LEN(scene_folders)];
#ifdef CYGNET_DEBUG
enum { LESS = 1 }; /* every step takes long: fewer roads */
#else
enum { LESS = 0 };
#endif
enum { GEMMA3, G31B, G26B, E2B, G12B, MLLAMA, MLLAMA_LONG };

static inline int scenes_open(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scene_folders); i++) scene_open(&scenes[i], scene_folders[i]);
  return 0;
}

static inline int scenes_close(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(scene_folders); i++) scene_close(&scenes[i]);
  return 0;
}

#define SCENES_MAIN(tests)                                                                                                                 \
  int main(void) {                                                                                                                         \
    const char *filter = getenv("CYGNET_TEST_FILTER");                                                                                     \
    if (filter && *filter) cmocka_set_test_filter(filter);                                                                                 \
    return cmocka_run_group_tests(tests, scenes_open, scenes_close) ? 1 : 0;                                                               \
  }

#endif
