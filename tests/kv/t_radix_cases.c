/* t_radix_cases.c — the prefix tree in the cases that people meet: windows, conversations, order of eviction, sequences beside each other. */
#include "radix_world.h"

/* ---- directed: windows and conversations ------------------------------------------------------------------------------------- */

/* W = 5 with the query's own key; tokens 0..5 are tombstones, 6..12 live. */
static void test_worked_matches(void **unused) {
  (void)unused;
  world_of(1, 5, PAGES, PAGES);
  struct world_seq *s = &w.seq[0];
  set_tokens(s, 13, 1);
  run(&w, s, 13, 1, true);
  assert_int_equal(match(s, 4).n_usable, 4); /* no tombstone yet: every length */
  assert_true(radix_evict(w.t, (struct kv_short){{0, 6}}));
  assert_int_equal(radix_stats(w.t).n_tombstones, 6);
  static const struct { int shares, usable; } table[] = {{13, 13}, {12, 12}, {11, 11}, {10, 10}, {9, 0}, {6, 0}, {4, 0}, {1, 0}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct radix_match m = match(s, table[i].shares);
    assert_int_equal(m.n_known, table[i].shares);
    assert_int_equal(m.n_usable, table[i].usable);
  }
  empty(&w);
  world_delete(&w);
}

/* The second of two equal prompts computes one token and a longer one the rest, whatever lengths, pages and window: with everything still there, and
 * with nothing but the windows of resume points. */
static void test_no_special_length(void **unused) {
  (void)unused;
  for (int pass = 0; pass < 2; pass++)
    for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
      for (size_t v = 0; v < ARRAY_LEN(windows); v++)
        for (int n = 1; n < TOKENS - 2; n++) {
          world_of(sizes[p], windows[v], PAGES, PAGES);
          struct world_seq *s = &w.seq[0];
          set_tokens(s, n, (uint64_t)n);
          assert_int_equal(run(&w, s, n, 7, true), 0);
          if (pass) evict_loose();
          assert_int_equal(run(&w, s, n, 7, true), n - 1);
          if (pass) evict_loose();
          s->n_total = n + 1;
          assert_int_equal(run(&w, s, n + 1, 7, true), n);
          empty(&w);
          world_delete(&w);
        }
}

/* A conversation whose every turn is the last one, its answer and a few words. Between the turns another one pushes out what it can. */
static void test_turns(void **unused) {
  (void)unused;
  for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
    for (size_t v = 0; v < ARRAY_LEN(windows); v++) {
      world_of(sizes[p], windows[v], PAGES * 2 / 2, PAGES);
      struct world_seq *s = &w.seq[0], *other = &w.seq[1];
      for (int n = 20, before = 0; n + 5 < TOKENS; n += 13) {
        set_tokens(s, n + 5, 1);
        assert_int_equal(run(&w, s, n, 6, true), before);
        before = n + 5;
        set_tokens(other, 3, (uint64_t)n + 99);
        run(&w, other, 3, 6, true);
        evict_loose();
      }
      empty(&w);
      world_delete(&w);
    }
}

/* Asking again for the last answer, and editing the last question: one goes on where the prompt ended or parts, up to the page. */
static void test_regenerate_and_edit(void **unused) {
  (void)unused;
  for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
    for (size_t v = 0; v < ARRAY_LEN(windows); v++) {
      world_of(sizes[p], windows[v], PAGES, PAGES);
      struct world_seq *s = &w.seq[0];
      set_tokens(s, 40, 1);
      run(&w, s, 30, 8, true); /* the first turn */
      evict_loose();
      set_tokens(s, 60, 1);
      assert_int_equal(run(&w, s, 50, 8, true), 40);                    /* the second: ten tokens of question, ten of answer */
      assert_int_equal(radix_stats(w.t).n_nodes, div_up(60, sizes[p])); /* the unfinished end of the first turn is outgrown */
      evict_loose();
      s->tokens[55] = -1;
      assert_int_equal(run(&w, s, 50, 8, true), 49); /* another answer to it */
      evict_loose();
      s->tokens[43] = -2;
      int n_cached = run(&w, s, 50, 8, true); /* the question is another from its fourth token */
      assert_true(n_cached >= 40 && n_cached <= 43);
      evict_loose();
      s->tokens[43] = -3;
      assert_int_equal(run(&w, s, 50, 8, true), 43); /* that was a place where paths part */
      empty(&w);
      world_delete(&w);
    }
}

/* One beginning, longer than the window, and many questions. */
static void test_same_beginning(void **unused) {
  (void)unused;
  for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
    for (size_t v = 0; v < ARRAY_LEN(windows); v++)
      for (int pass = 0; pass < 2; pass++) {
        world_of(sizes[p], windows[v], PAGES, PAGES);
        struct world_seq *s = &w.seq[0];
        int n_begin = MIN(3 * windows[v] + 7, TOKENS - 12);
        for (int question = 0; question < 8; question++) {
          set_tokens(s, n_begin + 10, 1);
          for (int i = n_begin; i < TOKENS; i++) s->tokens[i] = -1 - question;
          int n_cached = run(&w, s, n_begin + 5, 9, true);
          if (question > 1 || (question == 1 && pass == 0)) assert_int_equal(n_cached, n_begin);
          assert_true(radix_stats(w.t).n_resume_points <= 2 * (question + 1) + 1); /* ends of prompts and answers, and one place */
          if (pass) evict_loose();
          if (pass) forget();
          if (PAGES - w.t->stats.n_nodes < 30) break;
        }
        empty(&w);
        world_delete(&w);
      }
}

/* The middle of a conversation is dropped: what stands before it is reused, what stood behind it is not. */
static void test_middle_dropped(void **unused) {
  (void)unused;
  for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
    for (size_t v = 0; v < ARRAY_LEN(windows); v++) {
      world_of(sizes[p], windows[v], PAGES, PAGES);
      struct world_seq *s = &w.seq[0];
      set_tokens(s, 60, 1);
      run(&w, s, 55, 9, true);
      memmove(s->tokens + 17, s->tokens + 38, 22 * sizeof *s->tokens);
      s->n_total = 39;
      assert_int_equal(run(&w, s, 35, 9, true), 17);
      s->tokens[17] = -9;
      evict_loose();
      assert_int_equal(run(&w, s, 35, 9, true), 17);
      empty(&w);
      world_delete(&w);
    }
}

static void test_namespaces(void **unused) {
  (void)unused;
  world_of(4, 8, PAGES, PAGES);
  struct world_seq *s = &w.seq[0];
  for (int round = 0; round < 2; round++)
    for (size_t i = 0; i < ARRAY_LEN(spaces); i++) {
      set_tokens(s, 22, 1);
      s->space = spaces[i];
      assert_int_equal(run(&w, s, 18, 5, true), round ? 17 : 0);
    }
  empty(&w);
  world_delete(&w);
}

/* ---- directed: order -------------------------------------------------------------------------------------------------------------- */

/* Sliding pages: loose before worthy; then window by window, and the one that was resumed at last goes last. */
static void test_order_of_sliding(void **unused) {
  (void)unused;
  world_of(2, 6, PAGES, PAGES);
  for (int i = 0; i < 3; i++) {
    set_tokens(&w.seq[i], 20, (uint64_t)i + 1);
    run(&w, &w.seq[i], 20, 4, true);
  }
  static const int all[] = {1, 1, 1}, without_1[] = {1, 0, 1}, without_1_2[] = {1, 0, 0};
  struct radix_match m = match(&w.seq[0], 20); /* the oldest is used again */
  struct kv_copy copies[KV_KINDS];
  assert_true(kv_seq_open(w.kv, &w.seq[0].kv));
  assert_int_equal(radix_adopt(w.t, &m, &w.seq[0].kv, copies), 0);
  kv_seq_close(w.kv, &w.seq[0].kv);
  const struct pages *pool = kv_pool(w.kv, KV_SLIDING);
  while (pages_idle(pool)) {
    bool loose = pool->n_idle[PAGES_LOOSE];
    int n_resume = radix_stats(w.t).n_resume_points;
    const int *usable = n_resume == 3 ? all : n_resume == 2 ? without_1 : without_1_2;
    if (n_resume)
      for (int i = 0; i < 3; i++)
        if (usable[i]) assert_int_equal(match(&w.seq[i], 20).n_usable, 20);
    assert_true(radix_evict(w.t, (struct kv_short){{0, 1}}));
    assert_int_equal(radix_stats(w.t).n_resume_points, loose ? n_resume : n_resume - 1);
    check_world(&w);
  }
  assert_int_equal(radix_stats(w.t).n_nodes, 0); /* tombstones that lead nowhere went with them */
  world_delete(&w);
}

/* Full pages: from the ends, the path first that was left first. */
static void test_order_of_full(void **unused) {
  (void)unused;
  for (int W = 0; W < 12; W += 5) {
    world_of(2, W, PAGES, PAGES);
    for (int i = 0; i < 3; i++) {
      set_tokens(&w.seq[i], 21, (uint64_t)i + 1);
      memcpy(w.seq[i].tokens, w.seq[0].tokens, 8 * sizeof(int32_t)); /* the first four pages are the same */
      run(&w, &w.seq[i], 21, 4, true);
    }
    forget();
    for (int gone = 1; gone <= 3 * 7 + 4; gone++) {
      assert_true(radix_evict(w.t, (struct kv_short){{1, 0}}));
      for (int i = 0; i < 3; i++) {
        int left = 11 - MAX(0, MIN(7, gone - 7 * i)); /* pages of this path */
        if (gone > 21) left = 4 - (gone - 21);
        assert_int_equal(match(&w.seq[i], 21).n_known, MIN(21, 2 * left));
      }
      check_world(&w);
    }
    assert_false(radix_evict(w.t, (struct kv_short){{1, 0}}));
    world_delete(&w);
  }
}

/* ---- directed: sequences beside each other ------------------------------------------------------------------------------------------ */

static void step(struct world_seq *s, int n) {
  assert_true(reserve(&w, s, n));
  commit(&w, s, n);
  insert(&w, s);
  check_world(&w);
  check_contents(&w);
}

/* A prompt that is still being computed is reused, and both go on; what the second computes in vain is given back at once. */
static void test_running_sequences_share(void **unused) {
  (void)unused;
  world_of(4, 8, PAGES, PAGES);
  struct world_seq *a = &w.seq[0], *b = &w.seq[1], *c = &w.seq[2];
  set_tokens(a, 40, 1), set_tokens(b, 40, 1), set_tokens(c, 40, 1);
  assert_int_equal(adopt(&w, c, 39), 0); /* at the same time: finds nothing yet */
  adopt(&w, a, 39);
  step(a, 14);
  assert_int_equal(adopt(&w, b, 39), 12); /* whole pages: 14 is no end */
  step(a, 9);
  step(b, 20);
  assert_int_equal(kv_stats(w.kv).n_used[KV_FULL], 8 + 1); /* b's eight, and the unfinished page of a */
  step(c, 32);
  assert_int_equal(kv_stats(w.kv).n_used[KV_FULL], 8 + 1);
  for (int i = 0; i < 8; i++) assert_int_equal(b->kv.pairs[i].full, c->kv.pairs[i].full);
  kv_seq_close(w.kv, &b->kv);
  step(a, 17), step(c, 8);
  kv_seq_close(w.kv, &c->kv);
  kv_seq_close(w.kv, &a->kv);
  assert_int_equal(radix_stats(w.t).n_nodes, 10);
  empty(&w);
  world_delete(&w);
}

/* Two with the same unfinished last page: the tree has it once, and either may go on. */
static void test_same_tail(void **unused) {
  (void)unused;
  for (int faster = 0; faster < 2; faster++)
    for (int differ = 0; differ < 2; differ++) {
      world_of(8, 8, PAGES, PAGES);
      struct world_seq *s[2] = {&w.seq[0], &w.seq[1]};
      for (int i = 0; i < 2; i++) set_tokens(s[i], 40, 1);
      s[1]->tokens[14] += differ;
      for (int i = 0; i < 2; i++) adopt(&w, s[i], 0);
      for (int i = 0; i < 2; i++) {
        assert_true(reserve(&w, s[i], 12));
        commit(&w, s[i], 12);
        mark(&w, s[i]);
        check_world(&w);
      }
      assert_int_equal(radix_stats(w.t).n_nodes, 2);
      assert_int_equal(radix_stats(w.t).n_resume_points, 1);
      step(s[faster], 12), step(s[!faster], 12); /* the page of the one that marked it first may turn out to be the duplicate */
      assert_int_equal(radix_stats(w.t).n_nodes, differ ? 5 : 3);
      assert_int_equal(radix_stats(w.t).n_resume_points, 1);
      for (int i = 0; i < 2; i++) kv_seq_close(w.kv, &s[i]->kv);
      empty(&w);
      world_delete(&w);
    }
}

/* A tombstone takes over the sliding page of who computes its tokens again. */
static void test_tombstone_recovers(void **unused) {
  (void)unused;
  world_of(2, 6, PAGES, PAGES);
  struct world_seq *s = &w.seq[0];
  set_tokens(s, 30, 1);
  run(&w, s, 30, 4, true);
  evict_loose();
  forget();
  int n_tombstones = radix_stats(w.t).n_tombstones, n_nodes = radix_stats(w.t).n_nodes;
  assert_int_equal(n_tombstones, 11); /* the last page begins at 28, and a query there sees 23 to 27 */
  assert_int_equal(match(s, 20).n_usable, 0);
  s->n_total = 20;
  assert_int_equal(run(&w, s, 20, 4, true), 0);
  assert_int_equal(radix_stats(w.t).n_nodes, n_nodes);
  assert_int_equal(radix_stats(w.t).n_tombstones, 1);
  assert_int_equal(match(s, 20).n_usable, 20);
  empty(&w);
  world_delete(&w);
}

/* The end of a short prompt where the tree has a longer one whose sliding page is gone: it is entered by itself. */
static void test_mark_beside_a_tombstone(void **unused) {
  (void)unused;
  world_of(4, 6, PAGES, PAGES);
  struct world_seq *s = &w.seq[0];
  set_tokens(s, 30, 1);
  run(&w, s, 30, 4, true);
  assert_int_equal(match(s, 7).n_usable, 7);
  evict_loose();
  forget();
  assert_int_equal(match(s, 7).n_usable, 0);
  s->n_total = 7;
  run(&w, s, 7, 4, true);
  assert_int_equal(match(s, 7).n_usable, 7);
  assert_int_equal(radix_stats(w.t).n_nodes, 8 + 1);
  s->n_total = 6; /* and once is enough */
  assert_int_equal(run(&w, s, 6, 4, true), 5);
  assert_int_equal(radix_stats(w.t).n_nodes, 8 + 1);
  s->n_total = 7;
  assert_int_equal(run(&w, s, 4, 4, false), 3); /* open: the first page anew, and three tokens of the second */
  step(s, 4);
  evict_loose();
  assert_int_equal(match(s, 7).n_usable, 7);
  kv_seq_close(w.kv, &s->kv);
  empty(&w);
  world_delete(&w);

  world_of(4, 6, PAGES, PAGES); /* the one that ended there goes on like the longer one: its page becomes the tombstone's */
  set_tokens(s, 30, 1);
  run(&w, s, 30, 4, true);
  evict_loose();
  forget();
  s->n_total = 7;
  assert_int_equal(run(&w, s, 7, 4, false), 0);
  assert_int_equal(radix_stats(w.t).n_nodes, 8 + 1);
  step(s, 5);
  assert_int_equal(radix_stats(w.t).n_nodes, 8);
  kv_seq_close(w.kv, &s->kv);
  evict_loose();
  assert_int_equal(match(s, 8).n_usable, 8); /* still a resume point */
  empty(&w);
  world_delete(&w);
}

/* Many prompts have a few first tokens in common: one of them is remembered for it, the one that was used last. */
static void test_many_part_in_one_page(void **unused) {
  (void)unused;
  world_of(8, 6, PAGES, PAGES);
  struct world_seq *s = &w.seq[0];
  for (int i = 0; i < 6; i++) {
    set_tokens(s, 4, 1);
    s->tokens[3] = -i;
    run(&w, s, 4, 4, true);
    assert_int_equal(radix_stats(w.t).n_nodes, i + 1);
    assert_int_equal(radix_stats(w.t).n_resume_points, i + 1); /* by their ends */
  }
  struct radix_match m = match(s, 3);
  assert_int_equal(m.n_usable, 3);
  int32_t first = m.node;
  while (radix_stats(w.t).n_resume_points > 1)
    radix_unresume(w.t, w.t->resume_first == first ? w.t->nodes[first].later : w.t->resume_first);
  radix_unresume(w.t, first);
  int32_t oldest = first;
  while (w.t->nodes[oldest].next) oldest = w.t->nodes[oldest].next;
  radix_resume(w.t, oldest);
  s->tokens[3] = -99;
  m = match(s, 4);
  assert_true(m.parts && m.n_known == 3 && m.known_node == oldest && m.node == oldest);
  run(&w, s, 3, 4, true); /* ends in there: no new one; then at a fourth token of its own */
  assert_int_equal(radix_stats(w.t).n_resume_points, 2);
  empty(&w);
  world_delete(&w);
}

/* A pool full of what others left is as good as an empty one. */
static void test_adopting_makes_room(void **unused) {
  (void)unused;
  world_of(4, 6, 12, 12);
  struct world_seq *s = &w.seq[0], *other = &w.seq[1];
  set_tokens(other, 20, 2), set_tokens(s, 27, 1);
  run(&w, other, 20, 8, true);
  run(&w, s, 27, 8, true);
  assert_int_equal(kv_stats(w.kv).n_idle[KV_FULL], 12);
  s->tokens[26] = -1;
  assert_int_equal(adopt(&w, s, 27), 26);
  assert_int_equal(kv_stats(w.kv).n_used[KV_FULL], 7);
  assert_int_equal(match(other, 20).n_known, 16);
  kv_seq_close(w.kv, &s->kv);
  empty(&w);
  world_delete(&w);
}

/* Pools in which one sequence barely fits: reuse never stands in the way. */
static void test_tiny_pools(void **unused) {
  (void)unused;
  for (size_t p = 0; p < ARRAY_LEN(sizes); p++)
    for (size_t v = 0; v < ARRAY_LEN(windows); v++)
      for (int n = 1; n <= 40; n += 3) {
        struct kv_config c = {sizes[p], {PAGES, windows[v] ? PAGES : 0}, windows[v], 1, TOKENS};
        struct kv *kv = kv_new(&c, NULL);
        struct kv_short need = kv_pages_for(kv, n, 5);
        kv_delete(kv);
        world_of(sizes[p], windows[v], need.pages[KV_FULL], need.pages[KV_SLIDING]);
        struct world_seq *s = &w.seq[0];
        for (int round = 0; round < 4; round++) {
          set_tokens(s, n, 1 + (uint64_t)round / 2);
          for (int half = 0; half < 2; half++) { /* run() fails the test when a page is missing */
            int n_cached = run(&w, s, n, 5, true);
            assert_true(n_cached < n);
            if (half && sizes[p] > 1 && !windows[v]) assert_true(n_cached >= (n - 1) / sizes[p] * sizes[p]);
          }
        }
        empty(&w);
        world_delete(&w);
      }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_worked_matches),
    cmocka_unit_test(test_no_special_length),
    cmocka_unit_test(test_turns),
    cmocka_unit_test(test_regenerate_and_edit),
    cmocka_unit_test(test_same_beginning),
    cmocka_unit_test(test_middle_dropped),
    cmocka_unit_test(test_namespaces),
    cmocka_unit_test(test_order_of_sliding),
    cmocka_unit_test(test_order_of_full),
    cmocka_unit_test(test_running_sequences_share),
    cmocka_unit_test(test_same_tail),
    cmocka_unit_test(test_tombstone_recovers),
    cmocka_unit_test(test_mark_beside_a_tombstone),
    cmocka_unit_test(test_many_part_in_one_page),
    cmocka_unit_test(test_adopting_makes_room),
    cmocka_unit_test(test_tiny_pools),
};
TEST_MAIN(tests)
