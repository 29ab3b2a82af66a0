/* t_radix.c — the prefix tree under random operations, beside a naive model; its life and its checker. Directed cases: t_radix_cases.c.
 *
 * CYGNET_LONG=1 makes the random test a million steps.
 */
#include "radix_world.h"

/* ---- random operations ------------------------------------------------------------------------------------------------------- */

/* Functions: the macros would roll the dice twice. */
static int least(int a, int b) { return MIN(a, b); }
static int most(int a, int b) { return MAX(a, b); }

static void random_tokens(struct world_seq *s, uint64_t *seed) {
  s->space = spaces[most(0, test_rand_int(seed, -3, 2))];
  int alphabet = test_rand_int(seed, 1, 3), from = 0;
  if (w.n_strings && test_rand_int(seed, 0, 4)) { /* the beginning of one that was there */
    const struct string *like = &w.strings[most(test_rand_int(seed, 0, w.n_strings - 1), test_rand_int(seed, 0, w.n_strings - 1))];
    from = test_rand_int(seed, 0, 2) ? like->n : test_rand_int(seed, 0, like->n);
    memcpy(s->tokens, like->tokens, sizeof s->tokens);
    if (test_rand_int(seed, 0, 5)) s->space = like->space;
  }
  for (int i = from; i < TOKENS; i++) s->tokens[i] = test_rand_int(seed, 1, alphabet);
  s->n_total = least(w.c.tokens_max, from + test_rand_int(seed, 1, test_rand_int(seed, 0, 1) ? 8 : TOKENS));
}

static void operate(uint64_t *seed) {
  struct world_seq *s = &w.seq[test_rand_int(seed, 0, SEQS - 1)];
  int what = test_rand_int(seed, 0, 99), left = s->n_total - s->kv.n_tokens;
  if (!s->kv.pairs) {
    int n_open = 0;
    for (int i = 0; i < SEQS; i++) n_open += w.seq[i].kv.pairs != NULL;
    if (n_open == 0 && what < 30) {
      struct radix_stats before = radix_stats(w.t), after;
      radix_flush(w.t);
      after = radix_stats(w.t);
      assert_int_equal(after.n_nodes + after.n_tombstones + after.n_resume_points, 0);
      assert_memory_equal(after.n_evicted, before.n_evicted, sizeof after.n_evicted);
      w.n_strings = 0;
      w.forgot = false;
      w.n_flushed++;
      struct kv_stats st = kv_stats(w.kv);
      assert_int_equal(st.n_idle[KV_FULL] + st.n_idle[KV_SLIDING], 0);
      return;
    }
    if (n_open == w.c.seqs_max) return;
    random_tokens(s, seed);
    s->careless = test_rand_int(seed, 0, 9) == 0;
    adopt(&w, s, test_rand_int(seed, 0, 4) ? s->n_total - 1 : test_rand_int(seed, 0, s->n_total));
  } else if (what < 65) { /* a step */
    int n = least(left, test_rand_int(seed, 1, test_rand_int(seed, 0, 1) ? 2 : 24));
    if (!reserve(&w, s, n)) {
      if (test_rand_int(seed, 0, 1)) kv_seq_close(w.kv, &s->kv); /* retracted */
      return;
    }
    int n_reserved = s->kv.n_reserved - s->kv.n_tokens;
    if (what < 5) { /* fails: rows were written, nobody may notice */
      compute(&w, s, n_reserved);
      kv_cancel(w.kv, &s->kv);
      return;
    }
    commit(&w, s, what < 10 ? test_rand_int(seed, 0, n_reserved) : n_reserved);
    if (what < 55) insert(&w, s);
    if (left == n) mark(&w, s);
  } else if (what < 75) {
    insert(&w, s);
  } else if (what < 85) {
    mark(&w, s);
  } else if (what < 90) {
    int n = test_rand_int(seed, 0, 2) ? most(0, s->kv.n_tokens - test_rand_int(seed, 0, 6)) : test_rand_int(seed, 0, s->kv.n_tokens);
    if (test_rand_int(seed, 0, 9) == 0) n = 0;
    bool ok = kv_truncate(w.kv, &s->kv, n);
    if (n == 0 || n == s->kv.n_tokens) assert_true(ok);
    if (!ok) return;
    w.n_truncated++;
    for (int i = n; i < TOKENS; i++) s->tokens[i] = test_rand_int(seed, 1, 2); /* and says something else */
    hash_from(s, n);
    s->n_total = MAX(s->n_total, MIN(n + 1, w.c.tokens_max));
  } else if (what < 94 || left <= 0) {
    if (test_rand_int(seed, 0, 2)) mark(&w, s);
    kv_seq_close(w.kv, &s->kv);
  }
}

static void random_config(struct kv_config *c, uint64_t *seed) {
  int P = sizes[test_rand_int(seed, 0, 3)], W = windows[test_rand_int(seed, 0, 7)];
  *c = (struct kv_config){.page_tokens = P, .window_tokens = W, .seqs_max = test_rand_int(seed, 0, 4) ? SEQS : 2, .tokens_max = TOKENS};
  int roomy = MIN(PAGES, 3 * TOKENS / P + 1), tight = MIN(roomy, TOKENS / P + 2);
  for (int k = 0; k < (W ? KV_KINDS : 1); k++) {
    int kind = test_rand_int(seed, 0, 9);
    c->n_pages[k] = kind == 0 ? test_rand_int(seed, 1, 4) : kind < 6 ? test_rand_int(seed, 1, tight) : kind == 9 ? PAGES : roomy;
  }
}

static void test_operations(void **unused) {
  (void)unused;
  uint64_t seed = 3;
  const char *wanted = getenv("CYGNET_LONG");
  int n_steps = wanted && *wanted == '1' ? 1000000 : 60000, total[14] = {0};
  for (int step = 0, round = 0; step < n_steps; round++) {
    struct kv_config c;
    random_config(&c, &seed);
    world_new(&w, c);
    if (round % 3 == 0) w.t->n_buckets = 1; /* all chains are one */
    for (int left = test_rand_int(&seed, 20, 600); left > 0; left--, step++) {
      mem_guard_begin("tree");
      operate(&seed);
      mem_guard_end();
      check_world(&w);
      check_contents(&w);
    }
    for (int i = 0; i < SEQS; i++) kv_seq_close(w.kv, &w.seq[i].kv);
    check_world(&w);
    if (round % 2) empty(&w);
    const int counts[] = {w.n_adopted,      w.n_copied,    w.n_fallen_back, w.n_short,  w.n_lost_window, w.n_evictions,
                          w.n_evict_failed, w.n_truncated, w.n_flushed,     w.n_parted, w.n_tombstones,  w.n_given_up};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) total[i] += counts[i];
    world_delete(&w);
  }
  print_message(
      "%d steps: adopted %d, copied %d, fell back %d, short %d, window lost %d, evicted %d (not enough %d), cut %d, flushed %d, parted %d, "
      "tombstones %d, resume points given up %d\n",
      n_steps, total[0], total[1], total[2], total[3], total[4], total[5], total[6], total[7], total[8], total[9], total[10], total[11]);
  for (int i = 0; i < 12; i++) assert_true(total[i] > 30); /* it reaches everything */
}

/* ---- life ----------------------------------------------------------------------------------------------------------------------------- */

static void test_life(void **unused) {
  (void)unused;
  struct err e = {0};
  struct kv *kv = kv_new(&(struct kv_config){.page_tokens = 4, .n_pages = {0, 9}, .window_tokens = 5, .seqs_max = 1, .tokens_max = 32},
                         NULL);
  assert_null(radix_new(kv, &e));
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  kv_delete(kv);
  kv = kv_new(&(struct kv_config){.page_tokens = 4, .n_pages = {20, 9}, .window_tokens = 5, .seqs_max = 1, .tokens_max = 32}, NULL);
  int n_failed = 0;
  for (int64_t n = 1;; n++) {
    mem_fail_after(n);
    struct radix *t = radix_new(kv, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (t) {
      assert_true(pending);
      radix_delete(t);
      break;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
    n_failed++;
  }
  assert_true(n_failed >= 7);
  kv_delete(kv);
  radix_delete(NULL);
  assert_true(radix_bytes(1000, 10, 16) > 1000 * 16 * sizeof(int32_t));
  assert_true(radix_bytes(1000, 10, 16) < 1000 * (16 * sizeof(int32_t) + 160));
}

/* Each broken rule must be seen by radix_check. */
static void test_check_sees_damage(void **unused) {
  (void)unused;
  enum { DAMAGES = 26 };
  for (int damage = 0; damage < DAMAGES; damage++) {
    world_of(4, 6, 30, 30);
    struct world_seq *a = &w.seq[0], *b = &w.seq[1];
    set_tokens(a, 30, 1), set_tokens(b, 30, 1);
    run(&w, a, 18, 5, true);
    b->tokens[9] = -1;
    run(&w, b, 18, 5, false); /* open: shares two pages and the beginning of the third */
    struct radix *t = w.t;
    int32_t first = b->kv.pairs[0].full, third = b->kv.pairs[2].full, last = b->kv.pairs[7].full;
    int32_t idle = t->nodes[third].next; /* a's third page */
    assert_true(idle && t->nodes[last].n_tokens == 2 && t->nodes[last].resume);
    struct radix_node *d = &t->nodes[third];
    if (damage == 0) d->parent = first;
    if (damage == 1) d->index++;
    if (damage == 2) d->n_tokens = 0;
    if (damage == 3) d->n_tokens = 3;
    if (damage == 4) t->nodes[last].n_tokens = 3;
    if (damage == 5) t->nodes[last].child = idle;
    if (damage == 6) d->next = 0;
    if (damage == 7) d->prev = last;
    if (damage == 8) radix_page(t, third)[1]++;
    if (damage == 9) b->tokens[1]++;
    if (damage == 10) b->tokens[29]++;
    if (damage == 11) d->n_windows++;
    if (damage == 12) t->nodes[last].resume = false;
    if (damage == 13) t->nodes[idle].resume ^= true;
    if (damage == 14) t->resume_last = 0;
    if (damage == 15) t->stats.n_resume_points--;
    if (damage == 16) t->stats.n_nodes++;
    if (damage == 17) t->stats.n_tombstones++;
    if (damage == 18) pages_set_class(t->pool[KV_SLIDING], t->nodes[last].swa, PAGES_LOOSE);
    if (damage == 19) pages_set_class(t->pool[KV_FULL], third, PAGES_WORTHY);
    if (damage == 20) t->node_of_swa[t->nodes[last].swa] = third;
    if (damage == 21) t->nodes[last].swa = t->nodes[t->nodes[last].parent].swa;
    if (damage == 22) *radix_bucket(t, d->parent, b->space, radix_page(t, third)) = 0;
    if (damage == 23) b->kv.n_entered -= 4, b->kv.own_from -= 4;
    if (damage == 24)
      pages_ref(t->pool[KV_FULL], idle),
          pages_unref(t->pool[KV_FULL], idle); /* becomes the newest: its child is older, which is right ... */
    if (damage == 24)
      pages_ref(t->pool[KV_FULL], t->nodes[idle].child), pages_unref(t->pool[KV_FULL], t->nodes[idle].child); /* ... and now not */
    if (damage == 25) pages_unkeep(t->pool[KV_FULL], idle);
    struct err e = {0};
    if (radix_check(t, (struct kv_seq *[]){&b->kv}, (const int32_t *[]){b->tokens}, 1, &e)) fail_msg("damage %d was not seen", damage);
    assert_int_equal(e.code, ERR_INTERNAL);
    assert_true(strlen(e.msg) > 20);
    kv_delete(w.kv); /* the tree is beyond being taken apart */
    w.t->stats.n_nodes = 0;
    radix_delete(w.t);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_operations),
    cmocka_unit_test(test_life),
    cmocka_unit_test(test_check_sees_damage),
};
TEST_MAIN(tests)
