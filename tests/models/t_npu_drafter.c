/* t_npu_drafter.c — a Gemma 4 target and its drafter on the emulated NPU against the CPU: the same prompts, hidden rows kept, rounds of guesses. A
 * sequence's round is compared as far as both say the same: of random weights, whose logits lie close together, roundings part some. */
#include "test.h"

#include "models/drafter.h"
#include "models/drafter_maker.h"
#include "models/golden.h"
#include "npu.h"

enum { STEPS = 3, ROUNDS = 6 };

struct pair { /* a target with its drafter on one device */
  struct model_config config, drafter_config;
  struct weights *w, *drafter_w;
  struct model *m;
  struct drafter *d;
};

static void pair_open(struct pair *p, const char *target, const char *drafter, const struct model_plan *plan) {
  struct err e = {0};
  struct model_plan with = *plan;
  p->w = weights_open(target, &p->config, &e);
  p->drafter_w = p->w ? weights_open_drafter(drafter, &p->drafter_config, &e) : NULL;
  if (!p->drafter_w || drafter_check(&p->drafter_config, &p->config, &e)) fail_msg("%s", e.msg);
  with.drafter = &p->drafter_config;
  p->m = model_open(&p->config, p->w, &with, &e);
  if (!p->m) fail_msg("%s", e.msg);
  p->d = drafter_open(&p->drafter_config, p->drafter_w, p->m, SEQS_MAX, &e);
  if (!p->d) fail_msg("%s", e.msg);
}
static void pair_close(struct pair *p) {
  drafter_close(p->d);
  model_close(p->m);
  weights_close(p->drafter_w);
  weights_close(p->w);
}

static void finish(struct pair *p) {
  struct err e = {0};
  if (p->m->dev->ops->finish(p->m->dev, &e)) fail_msg("%s", e.msg);
}

struct prompt {
  int32_t ids[PAGES_EACH * PAGE];
  int n; /* computed; ids[n] is the newest token */
};

static void round_of(struct pair *p, const struct prompt *x, int n_seqs, int32_t guesses[STEPS][SEQS_MAX]) {
  struct piece pieces[SEQS_MAX] = {0};
  struct batch b;
  int32_t slots[SEQS_MAX];
  for (int i = 0; i < n_seqs; i++) pieces[i] = (struct piece){x[i].ids, 0, x[i].n, i};
  hand_batch_of(&b, p->m, pieces, n_seqs);
  for (int i = 0; i < n_seqs; i++) b.out[i] = b.q_start[i + 1] - 1;
  b.n_out = n_seqs;
  model_forward(p->m, &b);
  for (int i = 0; i < n_seqs; i++) drafter_keep(p->d, slots[i] = (i + 2) % SEQS_MAX, i);
  finish(p);
  hand_batch_free(&b);

  for (int i = 0; i < n_seqs; i++) pieces[i] = (struct piece){x[i].ids, x[i].n, 1, i};
  hand_batch_of(&b, p->m, pieces, n_seqs);
  b.n_out = 0;
  for (int i = 0; i < n_seqs; i++)
    for (int k = 0; k < KV_KINDS; k++) b.hi[k][i] = x[i].n, b.slot[k][i] = 0;
  p->m->dev->ops->step(p->m->dev, &b);
  drafter_begin(p->d, &b, slots);
  for (int s = 0, rows = n_seqs; s < STEPS; s++, rows = MAX(1, rows - 1)) drafter_step(p->d, rows, guesses[s]);
  finish(p);
  hand_batch_free(&b);
}

static void check(bool clusters) {
  static const struct drafter_shape shape = {"sssf", 16, 24, 4, 20, 6, 0};
  struct model_config config;
  struct drafter_maker maker;
  struct err e = {0};
  struct pair cpu, npu;
  struct model_plan plan = fixture_plan(ISA_AVX2, 1, strncmp(npu_current(), "310P", 4) ? DTYPE_BF16 : DTYPE_F16);
  const char *target = test_path("golden/gemma4-e-tiny");
  struct weights *w = weights_open(target, &config, &e);
  if (!w) fail_msg("%s", e.msg);
  maker_init(&maker, &config, &shape, 3);
  const char *drafter = clusters ? maker_write_folder(&maker, "drafter", NULL, NULL) : maker_write_gguf(&maker, "drafter.gguf", false);
  weights_close(w);
  pair_open(&cpu, target, drafter, &plan);
  assert_int_equal(cpu.drafter_config.n_centroids > 0, clusters);
  plan.device = &device_ascend_ops;
  pair_open(&npu, target, drafter, &plan);

  uint64_t rand = 9;
  int n = 0, n_same = 0;
  for (int round = 0; round < ROUNDS; round++) {
    struct prompt x[SEQS_MAX];
    int32_t want[STEPS][SEQS_MAX] = {0}, got[STEPS][SEQS_MAX] = {0};
    int n_seqs = test_rand_int(&rand, 1, SEQS_MAX);
    for (int i = 0; i < n_seqs; i++) {
      x[i].n = test_rand_int(&rand, 1, 24);
      for (int j = 0; j <= x[i].n; j++) x[i].ids[j] = test_rand_int(&rand, 0, config.vocab - 1);
    }
    round_of(&cpu, x, n_seqs, want);
    round_of(&npu, x, n_seqs, got);
    for (int i = 0; i < n_seqs; i++) {
      for (int s = 0; s < STEPS && i < MAX(1, n_seqs - s); s++) {
        n++;
        n_same += got[s][i] == want[s][i];
        if (got[s][i] != want[s][i]) break;
      }
    }
  }
  printf("  %s%s: %d of %d guesses are the same\n", npu_current(), clusters ? ", clusters" : "", n_same, n);
  assert_true(n_same * 100 >= n * (plan.kv_dtype == DTYPE_F16 ? 92 : 80));
  maker_free(&maker);
  pair_close(&cpu);
  pair_close(&npu);
  npu_check_clean();
}

static void all_of_the_table(void) { check(false); }
static void in_clusters(void) { check(true); }

static void test_table(void **state) {
  (void)state;
  npu_profile("A2-8.5", all_of_the_table);
  npu_profile("310P-8.5", all_of_the_table);
}
static void test_clusters(void **state) {
  (void)state;
  npu_profile("A2-8.5", in_clusters);
  npu_profile("310P-8.5", in_clusters);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_clusters)};
TEST_MAIN(tests)
