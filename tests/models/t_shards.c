/* t_shards.c — a model cut over several devices, which are threads here, against the whole one: the same logits within rounding, the same bits on
 * every shard, in chunks, in batches of several sequences, and recorded. */
#include "test.h"

#include <pthread.h>

#include "compute/rounding.h"
#include "models/golden.h"

enum { SHARDS_MOST = 4, STEPS_MOST = 8 };

static const struct {
  const char *folder, *model;
  int n_shards;
} cuts[] = {{"gemma3-text-tiny", "", 2},     {"gemma3-text-tiny", "", 4}, {"gemma4-e-tiny", "", 2},
            {"gemma4-dense-tiny", "", 2},    {"gemma4-moe-tiny", "", 2},  {"gemma4-e-tiny", "model-q8_0.gguf", 2},
            {"gemma3-text-ropescale", "", 2}};

struct one { /* a shard in its thread */
  struct fixture f;
  const struct device_link *link;
  char path[512];
  const struct batch *steps;
  int n_steps;
  bool recorded; /* the last step once more, from a record */
  float *logits; /* of all steps; owned */
  size_t n;
  struct err failed;
};

static void keep(struct one *o, const struct tensor *y) {
  o->logits = xrealloc(o->logits, (o->n + (size_t)y->rows * (size_t)y->cols) * sizeof *o->logits);
  for (int r = 0; r < y->rows; r++, o->n += (size_t)y->cols) memcpy(o->logits + o->n, tensor_row(y, r), (size_t)y->cols * sizeof(float));
}

static void *run_one(void *ctx) {
  struct one *o = ctx;
  struct model_plan plan = fixture_plan(ISA_AUTO, 2, DTYPE_F32);
  plan.link = o->link;
  o->f.config = xcalloc(1, sizeof *o->f.config);
  o->f.w = weights_open(o->path, o->f.config, &o->failed);
  o->f.m = o->f.w ? model_open(o->f.config, o->f.w, &plan, &o->failed) : NULL;
  struct model *m = o->f.m;
  for (int i = 0; m && i < o->n_steps; i++) {
    struct tensor y = model_forward(m, &o->steps[i]);
    keep(o, &y);
  }
  if (m && o->recorded) {
    const struct batch *b = &o->steps[o->n_steps - 1];
    struct device_record *r = m->dev->ops->record_new(m->dev, 4096, 1 << 20, &o->failed);
    m->dev->ops->record_begin(m->dev, r);
    model_launch(m, b);
    m->dev->ops->record_end(m->dev, r);
    m->attn_ops->prepare(m->attn, b);
    m->dev->ops->record_replay(m->dev, r);
    struct tensor y = model_fetch(m, b->n_out);
    keep(o, &y);
    m->dev->ops->record_delete(m->dev, r);
  }
  model_close(m);
  weights_close(o->f.w);
  free(o->f.config);
  return NULL;
}

static void set_path(struct one *o, const char *folder, const char *model) {
  char relative[256];
  snprintf(relative, sizeof relative, "golden/%s%s%s", folder, model[0] ? "/" : "", model);
  snprintf(o->path, sizeof o->path, "%s", test_path(relative));
}

/* All of a prompt, then the rest of another in two pieces beside it, then one row each. */
static int make_steps(struct batch *steps, const struct model *like, const int32_t *ids, int n) {
  int half = n / 2;
  hand_batch_of(&steps[0], like, &(struct piece){ids, 0, n - 1, 0}, 1);
  hand_batch_of(&steps[1], like, &(struct piece){ids, 0, half, 1}, 1);
  hand_batch_of(&steps[2], like, (struct piece[]){{ids, half, n - 1 - half, 1}, {ids, 0, 3, 2}}, 2);
  hand_batch_of(&steps[3], like, (struct piece[]){{ids, n - 1, 1, 0}, {ids, n - 1, 1, 1}, {ids, 3, 1, 2}}, 3);
  return 4;
}

static void shards_are_the_whole(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
    int n = cuts[i].n_shards;
    struct fixture like;
    struct batch steps[STEPS_MOST];
    fixture_open(&like, cuts[i].folder, cuts[i].model, cuts[i].model[0] ? "golden-q8_0.safetensors" : "golden.safetensors", ISA_AUTO, 1,
                 DTYPE_F32);
    const struct st_tensor *ids = golden_find(&like, 4, "ids");
    int n_steps = make_steps(steps, like.m, (const int32_t *)ids->data, (int)ids->shape[0]);
    struct one whole = {.steps = steps, .n_steps = n_steps, .recorded = true};
    set_path(&whole, cuts[i].folder, cuts[i].model);
    run_one(&whole);
    assert_int_equal(whole.failed.code, ERR_NONE);

    struct err e = {0};
    struct link_threads *links = link_threads_new(n, (size_t)ROWS_MAX * (size_t)like.m->config.hidden, &e);
    struct one shards[SHARDS_MOST];
    pthread_t threads[SHARDS_MOST];
    assert_non_null(links);
    for (int r = 0; r < n; r++) {
      shards[r] = whole;
      shards[r].logits = NULL, shards[r].n = 0;
      shards[r].link = link_of_thread(links, r);
      assert_int_equal(pthread_create(&threads[r], NULL, run_one, &shards[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    double max = 0, l2 = 0;
    for (int r = 0; r < n; r++) {
      if (shards[r].failed.code) fail_msg("%s: shard %d: %s", cuts[i].folder, r, shards[r].failed.msg);
      assert_int_equal(shards[r].n, whole.n);
      assert_memory_equal(shards[r].logits, shards[0].logits, whole.n * sizeof(float));
    }
    test_compare(shards[0].logits, whole.logits, whole.n, &max, &l2);
    printf("  %s/%s over %d: rel-max %.2g rel-L2 %.2g\n", cuts[i].folder, cuts[i].model, n, max, l2);
    /* Other orders of addition leave traces; none would mean that nothing was cut. Tiles of AMX add sums of 32 products, as shards of such widths do. */
    assert_true(l2 > 0 || rounds_to_bf16(ISA_AUTO));
    /* 8-bit activations round by blocks of what a shard has; rounding to bf16 turns another last bit of a sum into 2^-9 */
    if (!(l2 < (cuts[i].model[0] || rounds_to_bf16(ISA_AUTO) ? 2e-2 : 2e-5))) fail_msg("over the bound");
    for (int r = 0; r < n; r++) free(shards[r].logits);
    free(whole.logits);
    link_threads_delete(links);
    for (int s = 0; s < n_steps; s++) hand_batch_free(&steps[s]);
    fixture_close(&like);
  }
}

static void what_cannot_be_cut_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *folder, *says;
    int n;
  } bad[] = {{"gemma3-text-tiny", "query heads", 3}, {"media-mllama", "a model of text alone", 2}, {"gemma4-e-tiny", "query heads", 8}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct one o = {0};
    set_path(&o, bad[i].folder, "");
    struct device_link link = {.rank = 0, .n = bad[i].n};
    o.link = &link;
    run_one(&o);
    assert_int_equal(o.failed.code, ERR_UNSUPPORTED);
    if (!strstr(o.failed.msg, bad[i].says)) fail_msg("%s", o.failed.msg);
  }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(shards_are_the_whole), cmocka_unit_test(what_cannot_be_cut_is_refused)};
TEST_MAIN(tests)
