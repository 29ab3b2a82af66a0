/* t_media_roads.c — requests with pictures and sounds by many roads (roads.h): whatever comes back must be the same to the bit. */
#include "engine/media_asking.h"

/* All engines but the first do less at once: one picture a job, few rows a block. */
static void make_small(struct cygnet *c, struct roads *x) {
  int *n_opened = x->ctx;
  if ((*n_opened)++ == 0) return;
  const struct media_rules *m = &c->limits.media;
  c->encode.block = test_rand_int(&x->rng, 1, 40);
  if (m->cross) c->model->vision->rows_max = *n_opened % 2 ? m->patches_max[0] : media_patches_max(&c->config, MEDIA_IMAGE);
}

/* Every case, some longer than others, with log-probabilities, and each twice so that one finds what the other left. */
static void travel(const struct scene *x, size_t media_bytes, int n_roads, uint64_t seed, struct roads *sum) {
  struct trip trips[2 * SCENE_CASES_MAX];
  int n_opened = 0;
  memset(trips, 0, sizeof trips);
  int n = LESS || on_npu() ? x->n_cases : 2 * x->n_cases;
  for (int i = 0; i < n; i++) {
    const struct scene_case *y = &x->cases[i % x->n_cases];
    trips[i].r = scene_request(y, 3 + (i * 5) % 9);
    if (i % 4 == 1) trips[i].r.prompt_logprobs = 1 + i % y->n;
    if (i % 5 == 4) trips[i].r.cache_salt = "other", trips[i].r.n_cache_salt = 5;
  }
  char path[96];
  snprintf(path, sizeof path, "golden/%s", x->folder);
  struct roads roads = {.base = {.model = test_path(path), .kv_type = "f32", .ctx_tokens = 256, .media_bytes = media_bytes},
                        .trips = trips,
                        .n = n,
                        .n_roads = n_roads,
                        .rng = seed,
                        .opened = make_small,
                        .ctx = &n_opened};
  roads_travel(&roads);
  sum->n_replayed += roads.n_replayed;
  sum->n_retracted += roads.n_retracted;
  sum->n_accepted += roads.n_accepted;
}

static void every_road(void **state) {
  (void)state;
  struct roads sum = {0};
  for (size_t i = 0; i < ARRAY_LEN(scenes); i += on_npu() ? 3 : 1) {
    travel(&scenes[i], 0, on_npu() ? 2 : LESS ? 1 : 4, 100 + i, &sum);
    if (on_npu()) continue;
    struct cygnet *c = scene_engine(&scenes[i], (struct cygnet_options){0});
    size_t row = c->plan.media_row_bytes, least = 0; /* a store that just holds the request with most rows */
    for (int k = 0; k < scenes[i].n_cases; k++) {
      size_t rows = 0;
      for (int m = 0; m < scenes[i].cases[k].n_media; m++)
        rows += align_up((size_t)((const struct media *)scenes[i].cases[k].media[m])->n_rows, 16);
      least = MAX(least, rows * row);
    }
    cygnet_close(c);
    travel(&scenes[i], least, LESS ? 2 : 3, 200 + i, &sum);
  }
  assert_true(sum.n_replayed > (on_npu() ? 0 : 50) && sum.n_retracted > (on_npu() ? 0 : LESS ? 5 : 20));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_road),
};
SCENES_MAIN(tests)
