/* t_device_faults.c — a device that fails: the CPU with another table of operations, which lets steps go wrong at random.
 *
 * A step that fails gives NaN, the keys and values that it wrote become NaN, and pages that were copied for it get other contents. Whoever was
 * in it must end with a sentence; everybody else must get the same answer as from a device that never fails, to the bit, also afterwards,
 * when the prefix tree has what was computed meanwhile.
 */
#include "engine/media_asking.h"

#include <fcntl.h>
#include <unistd.h>

static struct faulty { /* one at a time: operations have no place for more */
  struct device_ops ops;
  struct cygnet *c;
  uint64_t rng;
  int one_in;                         /* of so many waits one fails; 0: none */
  int lose_after;                     /* failures from here on until the device is lost; 0: never */
  bool failing;                       /* this step */
  enum { NOTHING, UNIT, ROWS } since; /* the last wait */
  float *nan;                         /* [n_nan] */
  size_t n_nan;
  int n_failed;
} faulty;

static struct tensor all_nan(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * sizeof(float), 64)};
  size_t n = (size_t)rows * t.row_bytes / sizeof(float);
  if (n > faulty.n_nan) {
    faulty.nan = realloc(faulty.nan, n * sizeof(float));
    assert_non_null(faulty.nan);
    faulty.n_nan = n;
  }
  for (size_t i = 0; i < n; i++) faulty.nan[i] = NAN;
  t.data = faulty.nan;
  return t;
}

/* Keys and values of the batch's rows are NaN now. */
static void spoil_rows(const struct batch *b) {
  struct model *m = faulty.c->model;
  struct attn_layer layers[MODEL_LAYERS_MAX];
  int n = model_attn_layers(&m->config, layers);
  m->attn_ops->prepare(m->attn, b);
  for (int l = 0; l < n; l++) {
    const struct attn_layer *y = &layers[l];
    if (y->kind == BATCH_CROSS || y->owner != l) continue;
    struct tensor wide = all_nan(3 * b->n_rows, MAX(y->n_q, y->n_kv) * y->head_dim),
                  kv = tensor_part(wide, b->n_rows, b->n_rows, 0, y->n_kv * y->head_dim),
                  q = tensor_part(wide, 0, b->n_rows, 0, y->n_q * y->head_dim),
                  out = tensor_part(wide, 2 * b->n_rows, b->n_rows, 0, q.cols);
    m->attn_ops->run(m->attn, l, &q, &kv, &kv, &out);
  }
}

static void spoil_copies(const struct sched *s) { /* page 0 is nobody's */
  struct model *m = faulty.c->model;
  for (int i = 0; i < s->n_copies; i++) m->attn_ops->copy_page(m->attn, s->copies[i].kind, 0, s->copies[i].to);
}

static void faulty_step(struct device *d, const struct batch *b) {
  (void)d;
  faulty.since = b ? ROWS : UNIT;
  if (faulty.one_in && test_rand_int(&faulty.rng, 1, faulty.one_in) == 1) faulty.failing = true;
}

static void faulty_fetch(struct device *d, struct tensor *host, const struct tensor *x) {
  (void)d;
  *host = faulty.failing ? all_nan(x->rows, x->cols) : *x;
}

static int faulty_finish(struct device *d, struct err *e) {
  int since = faulty.since;
  faulty.since = NOTHING;
  if (d->lost) return err_set(e, ERR_INTERNAL, "the device was lost before");
  if (!faulty.failing && faulty.one_in && test_rand_int(&faulty.rng, 1, 4 * faulty.one_in) == 1) faulty.failing = true;
  if (!faulty.failing) return 0;
  faulty.failing = false;
  faulty.n_failed++;
  if (since == ROWS) spoil_rows(&faulty.c->batch);
  if (since != UNIT) spoil_copies(&faulty.c->sched);
  if (faulty.lose_after && --faulty.lose_after == 0) d->lost = true;
  return err_set(e, ERR_INTERNAL, "fault %d of the device", faulty.n_failed);
}

static void make_faulty(struct cygnet *c, uint64_t seed, int one_in) {
  free(faulty.nan);
  faulty = (struct faulty){.ops = device_cpu_ops, .c = c, .rng = seed, .one_in = one_in};
  faulty.ops.step = faulty_step;
  faulty.ops.fetch = faulty_fetch;
  faulty.ops.finish = faulty_finish;
  c->model->dev->ops = &faulty.ops;
}

/* ---- asking ---------------------------------------------------------------------------------------------------------------------- */

static struct cygnet_options random_options(uint64_t *rng, const char *model) {
  return (struct cygnet_options){.model = model,
                                 .kv_type = "f32",
                                 .ctx_tokens = 256,
                                 .draft_tokens = (int[]){-1, 0, 3, 16}[test_rand_int(rng, 0, 3)],
                                 .chunk_tokens = test_rand_int(rng, 1, 40),
                                 .page_tokens = (int[]){1, 2, 4, 16}[test_rand_int(rng, 0, 3)],
                                 .max_running = test_rand_int(rng, 1, 6),
                                 .disable_graph = test_rand_int(rng, 0, 1),
                                 .disable_prefix_cache = test_rand_int(rng, 0, 3) == 0};
}

static void step_all(struct cygnet *c, uint64_t *rng, bool retract) {
  for (int left = retract ? 6 : 0; cygnet_step(c);) {
    check(c);
    if (test_rand_int(rng, 0, 2)) drain(c);
    if (left > 0 && c->sched.running.n && test_rand_int(rng, 0, 7) == 0) {
      left--;
      sched_retract(&c->sched, test_rand_int(rng, 0, 1) ? c->sched.running.last : c->sched.running.first);
      check(c);
    }
  }
  run(c);
}

#define OWN_FAULTS "this device is the CPU with another table; t_npu_faults has those of an NPU"

struct outcomes {
  int n_right, n_failed, n_lost;
};

/* All trips at once; what was not failed is right. */
static void ask_all(struct cygnet *c, struct trip *trips, int n, uint64_t *rng, struct outcomes *sum) {
  struct cygnet_stats before, after;
  cygnet_stats(c, &before);
  int n_failed = 0, n_refused = 0;
  for (int i = 0; i < n; i++) {
    struct cygnet_error e = {0};
    struct answer *a = &trips[i].got;
    answer_init(a, &trips[i].r, false);
    a->number = cygnet_submit(c, &trips[i].r, &e);
    if (!a->number) {
      assert_true(cygnet_lost(c, NULL));
      assert_true(e.status == 503 && e.exit_status == 1 && strstr(e.message, "started again"));
      a->over = true;
      n_refused++;
    }
    if (i % 3 == 0) cygnet_step(c), check(c), drain(c);
  }
  step_all(c, rng, true);
  for (int i = 0; i < n; i++) {
    struct answer *a = &trips[i].got;
    assert_true(a->over);
    if (a->number && a->last.finish == CYGNET_FINISH_ERROR) {
      assert_true(strstr(a->last.error.message, "fault ") && a->last.error.status >= 500 && a->last.error.exit_status == 1);
      assert_true(a->n <= trips[i].want.n &&
                  !memcmp(a->ids, trips[i].want.ids, (size_t)a->n * sizeof a->ids[0])); /* what came before is right */
      n_failed++;
    } else if (a->number) {
      assert_same(&trips[i].want, a, "beside faults");
      sum->n_right++;
    }
    answer_free(a);
  }
  cygnet_stats(c, &after);
  assert_int_equal(after.n_failed - before.n_failed, n_failed);
  if (n_failed) assert_true(after.n_failed_steps > before.n_failed_steps);
  sum->n_failed += n_failed;
  sum->n_lost += n_refused;
}

/* Engines with the trips, faults in the first two passes, none in the last. */
static void travel_with_faults(const char *model, struct trip *trips, int n, int n_engines, uint64_t seed, struct outcomes *sum) {
  uint64_t rng = seed;
  for (int i = 0; i < n_engines; i++) {
    struct cygnet *c = open_with(random_options(&rng, model));
    c->worth_from_ms = INFINITY;
    make_faulty(c, seed + (uint64_t)i, test_rand_int(&rng, 0, 1) ? 8 : 40);
    for (int pass = 0; pass < 2; pass++) ask_all(c, trips, n, &rng, sum);
    faulty.one_in = 0;
    struct outcomes clean = {0};
    ask_all(c, trips, n, &rng, &clean);
    assert_int_equal(clean.n_right, n); /* nothing of what failed is in the tree, or anywhere */
    assert_false(cygnet_lost(c, NULL));
    cygnet_close(c);
  }
}

/* Prompts of some tokens, several of which begin alike. */
enum { TEXTS = 10, TEXT_IDS = 96 };
static void text_trips(struct trip *trips, int32_t (*ids)[TEXT_IDS], uint64_t *rng) {
  memset(trips, 0, TEXTS * sizeof *trips);
  for (int i = 0; i < TEXTS; i++) {
    int n = test_rand_int(rng, 1, TEXT_IDS), shared = i ? test_rand_int(rng, 0, n) : 0;
    random_prompt(rng, ids[i], n);
    if (shared) memcpy(ids[i], ids[test_rand_int(rng, 0, i - 1)], (size_t)shared * sizeof ids[i][0]);
    for (int k = 0; k < n; k++) ids[i][k] = MAX(ids[i][k], 3);
    trips[i].r = (struct cygnet_request){
        .prompt = ids[i], .n_prompt = (size_t)n, .max_tokens = test_rand_int(rng, 1, 20), .ignore_eos = 1, .logprobs = 1 + 2};
    if (i % 4 == 1) trips[i].r.prompt_logprobs = 1 + i % n;
    if (i % 3 == 2) trips[i].r.sampling = (struct cygnet_sampling){.temperature = 1, .has_seed = 1, .seed = (uint64_t)i};
  }
}

/* What they say when nothing fails. */
static void ask_plainly(struct cygnet *c, struct trip *trips, int n) {
  for (int i = 0; i < n; i++) ask(c, &trips[i].r, &trips[i].want, false);
}

static void forget(struct trip *trips, int n) {
  for (int i = 0; i < n; i++) answer_free(&trips[i].want);
}

static void texts(void **state) {
  (void)state;
  CPU_ONLY(OWN_FAULTS);
  static struct trip trips[TEXTS];
  static int32_t ids[TEXTS][TEXT_IDS];
  uint64_t rng = 7;
  struct outcomes sum = {0};
  for (int round = 0; round < (LESS ? 2 : 6); round++) {
    text_trips(trips, ids, &rng);
    struct cygnet *c = open_with(
        (struct cygnet_options){.model = narrow(), .kv_type = "f32", .ctx_tokens = 256, .disable_prefix_cache = 1});
    ask_plainly(c, trips, TEXTS);
    cygnet_close(c);
    travel_with_faults(narrow(), trips, TEXTS, LESS ? 2 : 6, 1000 + 10 * (uint64_t)round, &sum);
    forget(trips, TEXTS);
  }
  printf("  %d right, %d failed\n", sum.n_right, sum.n_failed);
  assert_true(sum.n_right > sum.n_failed / 4 && sum.n_failed > (LESS ? 20 : 200));
}

static void pictures_and_sounds(void **state) {
  (void)state;
  CPU_ONLY(OWN_FAULTS);
  struct outcomes sum = {0};
  for (size_t i = 0; i < ARRAY_LEN(scenes); i++) {
    static struct trip trips[SCENE_CASES_MAX];
    const struct scene *x = &scenes[i];
    memset(trips, 0, sizeof trips);
    for (int k = 0; k < x->n_cases; k++) trips[k].r = scene_request(&x->cases[k], 2 + k % 5);
    struct cygnet *c = scene_engine(x, (struct cygnet_options){0});
    char folder[96];
    snprintf(folder, sizeof folder, "golden/%s", x->folder);
    ask_plainly(c, trips, x->n_cases);
    cygnet_close(c);
    travel_with_faults(test_path(folder), trips, x->n_cases, LESS ? 1 : 3, 2000 + 10 * (uint64_t)i, &sum);
    forget(trips, x->n_cases);
  }
  printf("  %d right, %d failed\n", sum.n_right, sum.n_failed);
  assert_true(sum.n_right > 0 && sum.n_failed > 10);
}

/* The device goes for good in the middle: everybody hears of it, and whoever comes later, too. */
static void lost(void **state) {
  (void)state;
  CPU_ONLY(OWN_FAULTS);
  static struct trip trips[TEXTS];
  static int32_t ids[TEXTS][TEXT_IDS];
  uint64_t rng = 70;
  text_trips(trips, ids, &rng);
  struct cygnet *plain = open_with((struct cygnet_options){.model = narrow(), .kv_type = "f32", .ctx_tokens = 256});
  ask_plainly(plain, trips, TEXTS);
  cygnet_close(plain);
  for (int i = 0; i < (LESS ? 10 : 40); i++) {
    struct outcomes sum = {0};
    struct cygnet_error e = {0};
    struct cygnet_stats st;
    struct cygnet *c = open_with(random_options(&rng, narrow()));
    make_faulty(c, (uint64_t)i, 10);
    faulty.lose_after = 1 + i % 4;
    assert_false(cygnet_lost(c, &e));
    for (int pass = 0; pass < 3; pass++) ask_all(c, trips, TEXTS, &rng, &sum);
    while (!cygnet_lost(c, &e)) ask_all(c, trips, TEXTS, &rng, &sum);
    assert_true(e.status == 503 && e.exit_status == 1 && strstr(e.message, "fault "));
    sum.n_lost = 0;
    ask_all(c, trips, TEXTS, &rng, &sum);
    assert_int_equal(sum.n_lost, TEXTS);
    assert_int_equal(cygnet_step(c), 0);
    cygnet_stats(c, &st);
    assert_true(st.n_running + st.n_waiting == 0 && st.n_failed_steps >= 1);
    cygnet_close(c);
  }
  forget(trips, TEXTS);
}

static int close_all(void **state) {
  free(faulty.nan);
  return scenes_close(state);
}

/* Every fault is a line in the log, which is right, and no use here. */
static int hush(void **state) {
  static int saved;
  saved = dup(STDERR_FILENO);
  int to = open("/dev/null", O_WRONLY);
  dup2(to, STDERR_FILENO);
  close(to);
  *state = &saved;
  return 0;
}
static int speak(void **state) {
  dup2(*(int *)*state, STDERR_FILENO);
  close(*(int *)*state);
  return 0;
}

#define QUIET(test) cmocka_unit_test_setup_teardown(test, hush, speak)
static const struct CMUnitTest tests[] = {QUIET(texts), QUIET(pictures_and_sounds), QUIET(lost)};
int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, scenes_open, close_all) ? 1 : 0;
}
