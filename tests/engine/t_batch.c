/* t_batch.c — the batch against the definitions in compute/batch.h, entry by entry, over the random loads of world.h. */
#include "engine/world.h"

static void fill(struct batch *b, const struct batch_shape *s) { /* what is not written must not be read */
  memset(b->token, 0x7f, (size_t)s->rows_max * sizeof *b->token);
  memset(b->soft, 0x7f, (size_t)s->rows_max * sizeof *b->soft);
  memset(b->pos, 0x7f, (size_t)s->rows_max * sizeof *b->pos);
  memset(b->seq, 0x7f, (size_t)s->rows_max * sizeof *b->seq);
  memset(b->q_start, 0x7f, ((size_t)s->seqs_max + 1) * sizeof *b->q_start);
  memset(b->out, 0x7f, (size_t)s->out_max * sizeof *b->out);
  for (int k = 0; k < KV_KINDS; k++) memset(b->slot[k], 0x7f, (size_t)s->rows_max * sizeof *b->slot[k]);
  for (int k = 0; k < BATCH_KINDS; k++) {
    memset(b->lo[k], 0x7f, (size_t)s->rows_max * sizeof *b->lo[k]);
    memset(b->hi[k], 0x7f, (size_t)s->rows_max * sizeof *b->hi[k]);
    memset(b->page[k], 0x7f, (size_t)s->seqs_max * (size_t)b->pages_max[k] * sizeof *b->page[k]);
  }
}

static void check_row(const struct world *w, const struct batch *b, int row) {
  const struct sched_pick *p = &w->sched.picks[b->seq[row]];
  const struct request *r = p->r;
  int pos = r->n_computed + row - b->q_start[b->seq[row]];
  assert_int_equal(b->pos[row], pos);
  assert_int_equal(b->token[row], r->tokens[pos]);
  for (int k = 0; k < KV_KINDS; k++) {
    if (!w->kc.n_pages[k]) {
      assert_int_equal(b->lo[k][row], b->hi[k][row]);
      assert_int_equal(b->slot[k][row], 0);
      continue;
    }
    int lo = 0; /* by the rule, key by key */
    while (k == KV_SLIDING && pos - lo >= w->kc.window_tokens) lo++;
    assert_int_equal(b->lo[k][row], lo);
    assert_int_equal(b->hi[k][row], pos + 1);
    assert_int_equal(b->slot[k][row], kv_slot(w->kv, &r->kv, k, pos));
    assert_true(b->slot[k][row] >= w->kc.page_tokens);
    const int32_t *table = b->page[k] + b->seq[row] * b->pages_max[k];
    for (int key = lo; key <= pos; key++)
      assert_int_equal((int64_t)table[key / w->kc.page_tokens] * w->kc.page_tokens + key % w->kc.page_tokens,
                       kv_slot(w->kv, &r->kv, k, key));
  }
}

static void check_batch(const struct world *w, const struct batch *b) {
  int row = 0, out = 0;
  assert_int_equal(b->n_seqs, w->sched.n_picks);
  for (int s = 0; s < b->n_seqs; s++) {
    const struct sched_pick *p = &w->sched.picks[s];
    assert_int_equal(b->q_start[s], row);
    for (int i = 0; i < p->n; i++, row++) {
      assert_int_equal(b->seq[row], s);
      check_row(w, b, row);
      if (i >= p->n - p->n_out) assert_int_equal(b->out[out++], row);
    }
  }
  assert_int_equal(b->q_start[b->n_seqs], row);
  assert_int_equal(b->n_rows, row);
  assert_int_equal(b->n_out, out);
}

static void random_loads(void **state) {
  (void)state;
  uint64_t rng = 7;
  int rows_most = 0;
  for (int round = 0; round < 150; round++) {
    struct kv_config kc;
    struct sched_config sc;
    int tokens_max = test_rand_int(&rng, 4, 24);
    world_random(&rng, tokens_max, &kc, &sc);
    struct world w;
    struct batch b;
    struct batch_shape shape = {.rows_max = sc.rows_max,
                                .seqs_max = sc.max_running,
                                .out_max = sc.out_max,
                                .tokens_max = tokens_max,
                                .page_tokens = kc.page_tokens};
    world_open(&w, &kc, &sc, round % 2);
    assert_int_equal(batch_init(&b, &shape, NULL), 0);
    for (int i = 0; i < 12; i++) {
      int prompt = test_rand_int(&rng, 1, tokens_max);
      struct request *r = world_request(&w, prompt, test_rand_int(&rng, 0, tokens_max - prompt), test_rand_int(&rng, 0, 1),
                                        test_rand_int(&rng, 0, 2) == 0);
      if (i && i % 3) world_begin_like(r, w.requests[i - 1], test_rand_int(&rng, 1, prompt));
      assert_true(sched_add(&w.sched, r));
    }
    while (sched_next(&w.sched) > 0) {
      fill(&b, &shape);
      batch_build(&b, w.kv, (struct batch_media){0}, w.sched.picks, w.sched.n_picks);
      check_batch(&w, &b);
      rows_most = MAX(rows_most, b.n_rows);
      world_finish_step(&w);
    }
    batch_free(&b);
    world_close(&w);
  }
  assert_true(rows_most > 6);
}

static void init_fails_softly(void **state) {
  (void)state;
  struct batch_shape shape = {.rows_max = 9, .seqs_max = 3, .out_max = 4, .tokens_max = 100, .page_tokens = 4};
  for (int n = 1;; n++) {
    struct batch b;
    struct err e = {0};
    mem_fail_after(n);
    int rc = batch_init(&b, &shape, &e);
    bool failed = !mem_fail_pending();
    mem_fail_after(0);
    assert_int_equal(rc, failed ? -1 : 0);
    batch_free(&b);
    if (!failed) {
      assert_int_equal(n, 19);
      return;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_loads),
    cmocka_unit_test(init_fails_softly),
};
TEST_MAIN(tests)
