/* t_pages.c — the page pool beside a twin that is an array of owner counts. */
#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "kv/pages.h"

enum { PAGES_MAX = 70 };

static void check(const struct pages *p) {
  struct err e = {0};
  if (!pages_check(p, &e)) fail_msg("%s", e.msg);
}

struct twin { /* per id */
  int n_seqs; /* that hold it */
  bool kept;
  enum pages_class class;
  int idle_since; /* when it became idle, or changed its class while it was */
};

static int32_t lowest_free(const struct twin *twin, int n) {
  for (int32_t id = 1; id <= n; id++)
    if (!twin[id].n_seqs && !twin[id].kept) return id;
  return 0;
}

static bool is_idle(struct twin t) { return t.kept && !t.n_seqs; }

/* Counts, classes, and both lists from either end. */
static void compare(const struct pages *p, const struct twin *twin) {
  int n_used = 0, n_kept = 0, n_idle[PAGES_CLASSES] = {0};
  for (int32_t id = 1; id <= p->n_pages; id++) {
    assert_int_equal(p->refs[id], twin[id].n_seqs + twin[id].kept);
    assert_int_equal(pages_is_kept(p, id), twin[id].kept);
    assert_int_equal(pages_is_idle(p, id), is_idle(twin[id]));
    if (twin[id].kept) assert_int_equal(pages_class(p, id), twin[id].class);
    n_used += twin[id].n_seqs > 0;
    n_kept += twin[id].kept;
    if (is_idle(twin[id])) n_idle[twin[id].class]++;
  }
  assert_int_equal(pages_used(p), n_used);
  assert_int_equal(p->n_kept, n_kept);
  for (enum pages_class c = 0; c < PAGES_CLASSES; c++) {
    assert_int_equal(p->n_idle[c], n_idle[c]);
    int since = 0, n = 0;
    for (int32_t id = pages_oldest(p, c); id; id = p->links[id].newer, n++) {
      assert_true(is_idle(twin[id]) && twin[id].class == c && twin[id].idle_since > since);
      since = twin[id].idle_since;
    }
    assert_int_equal(n, n_idle[c]);
  }
  assert_int_equal(pages_idle(p), n_idle[PAGES_LOOSE] + n_idle[PAGES_WORTHY]);
  check(p);
}

/* A page that somebody owns: one owner more or less, or another class. */
static void change_owner(struct pages *p, struct twin *t, int32_t id, int what, int now) {
  enum pages_class class = what % 2 ? PAGES_WORTHY : PAGES_LOOSE;
  if (what < 20) {
    pages_ref(p, id);
    t->n_seqs++;
  } else if (what < 40 && !t->kept) {
    pages_keep(p, id, class);
    t->kept = true;
    t->class = class;
  } else if (what < 48 && t->kept) {
    t->kept = false;
    assert_int_equal(pages_unkeep(p, id), t->n_seqs == 0);
  } else if (what < 60 && t->kept) {
    pages_set_class(p, id, class);
    t->class = class;
    t->idle_since = now;
  } else if (t->n_seqs) {
    t->n_seqs--;
    t->idle_since = now;
    assert_int_equal(pages_unref(p, id), !t->n_seqs && !t->kept);
  }
}

static void test_against_twin(void **unused) {
  (void)unused;
  uint64_t seed = 11;
  int n_idle = 0;
  for (int round = 0; round < 400; round++) {
    int n = round % 8 == 0 ? 0 : test_rand_int(&seed, 1, PAGES_MAX);
    struct twin twin[PAGES_MAX + 1] = {0};
    struct pages p;
    assert_int_equal(pages_init(&p, n, NULL), 0);
    int take_bias = test_rand_int(&seed, 10, 60); /* some rounds run full, some stay empty */
    for (int now = 1; now <= 300; now++) {
      int32_t id = n ? test_rand_int(&seed, 1, n) : 0;
      if (test_rand_int(&seed, 0, 99) < take_bias) {
        int32_t expected = lowest_free(twin, n);
        assert_int_equal(pages_take(&p), expected);
        if (expected) twin[expected].n_seqs = 1;
      } else if (id && (twin[id].n_seqs || twin[id].kept)) {
        change_owner(&p, &twin[id], id, test_rand_int(&seed, 0, 99), now);
      }
      compare(&p, twin);
    }
    n_idle += pages_idle(&p);
    pages_free(&p);
    pages_free(&p); /* fine on a zeroed one */
  }
  assert_true(n_idle > 400);
}

static void test_hands_out_low_ids_first(void **unused) {
  (void)unused;
  struct pages p;
  assert_int_equal(pages_init(&p, 5, NULL), 0);
  for (int32_t id = 1; id <= 5; id++) assert_int_equal(pages_take(&p), id);
  assert_int_equal(pages_take(&p), 0);
  const int32_t back[] = {4, 2, 5};
  for (size_t i = 0; i < ARRAY_LEN(back); i++) assert_true(pages_unref(&p, back[i]));
  assert_int_equal(pages_take(&p), 2);
  assert_int_equal(pages_take(&p), 4);
  assert_int_equal(pages_take(&p), 5);
  pages_free(&p);
}

/* Each kind of damage must be seen. */
static void test_check_sees_damage(void **unused) {
  (void)unused;
  for (int damage = 0; damage < 15; damage++) {
    struct pages p;
    struct err e = {0};
    assert_int_equal(pages_init(&p, 12, NULL), 0);
    for (int i = 0; i < 7; i++) pages_take(&p); /* 1..7 out, 8..12 free */
    for (int32_t id = 4; id <= 7; id++) pages_keep(&p, id, id == 4 ? PAGES_WORTHY : PAGES_LOOSE);
    for (int32_t id = 6; id >= 4; id--) pages_unref(&p, id); /* idle: 6, 5 loose, 4 worthy; 7 is kept and held */
    check(&p);
    if (damage == 0) p.heap[1] = p.heap[2];                                  /* twice */
    if (damage == 1) p.refs[9] = 1;                                          /* free and owned */
    if (damage == 2) p.refs[3] = 0;                                          /* lost */
    if (damage == 3) p.heap[0] = 12, p.heap[4] = 8;                          /* order */
    if (damage == 4) p.n_free = 13;                                          /* count */
    if (damage == 5) p.heap[2] = 13;                                         /* range */
    if (damage == 6) p.refs[0] = 1;                                          /* page 0 handed out */
    if (damage == 7) p.kept[9] = 1;                                          /* free and kept */
    if (damage == 8) p.kept[7] = 0;                                          /* count of kept ones */
    if (damage == 9) p.kept[5] |= 2;                                         /* in the list of another class */
    if (damage == 10) p.links[6].newer = 0;                                  /* a list that ends early */
    if (damage == 11) p.links[5].older = 0;                                  /* torn */
    if (damage == 12) p.links[5].newer = 6;                                  /* a ring */
    if (damage == 13) p.n_idle[PAGES_WORTHY] = 0, p.n_idle[PAGES_LOOSE] = 3; /* miscounted */
    if (damage == 14) p.refs[5] = 2;                                         /* listed and held */
    if (pages_check(&p, &e)) fail_msg("damage %d was not seen", damage);
    assert_int_equal(e.code, ERR_INTERNAL);
    assert_true(strlen(e.msg) > 10);
    pages_free(&p);
  }
}

/* Oldest first, loose and worthy apart; a page that is used again goes to the end of its line, and so does one that changes it. */
static void test_order_of_idle_pages(void **unused) {
  (void)unused;
  struct pages p;
  assert_int_equal(pages_init(&p, 8, NULL), 0);
  for (int32_t id = 1; id <= 6; id++) pages_take(&p), pages_keep(&p, id, id > 4 ? PAGES_WORTHY : PAGES_LOOSE);
  for (int32_t id = 6; id >= 1; id--) assert_false(pages_unref(&p, id));
  assert_int_equal(pages_used(&p), 0);
  assert_int_equal(pages_oldest(&p, PAGES_LOOSE), 4);
  assert_int_equal(pages_oldest(&p, PAGES_WORTHY), 6);
  pages_ref(&p, 4);
  assert_int_equal(pages_oldest(&p, PAGES_LOOSE), 3);
  assert_int_equal(pages_used(&p), 1);
  pages_unref(&p, 4);
  pages_set_class(&p, 6, PAGES_LOOSE);
  static const int32_t loose[] = {3, 2, 1, 4, 6};
  for (size_t i = 0; i < ARRAY_LEN(loose); i++) {
    assert_int_equal(pages_oldest(&p, PAGES_LOOSE), loose[i]);
    assert_true(pages_unkeep(&p, loose[i]));
  }
  assert_int_equal(pages_oldest(&p, PAGES_LOOSE), 0);
  assert_int_equal(pages_oldest(&p, PAGES_WORTHY), 5);
  check(&p);
  pages_free(&p);
}

static void test_init_fails_cleanly(void **unused) {
  (void)unused;
  struct err e = {0};
  struct pages p;
  assert_int_equal(pages_init(&p, -1, &e), -1);
  assert_int_equal(e.code, ERR_BAD_INPUT);
  int n_failed = 0;
  for (int64_t n = 1;; n++) {
    mem_fail_after(n);
    int rc = pages_init(&p, 100, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (rc == 0) {
      assert_true(pending);
      break;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
    assert_null(p.heap);
    n_failed++;
  }
  assert_true(n_failed >= 2);
  pages_free(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_against_twin),        cmocka_unit_test(test_hands_out_low_ids_first), cmocka_unit_test(test_check_sees_damage),
    cmocka_unit_test(test_order_of_idle_pages), cmocka_unit_test(test_init_fails_cleanly),
};
TEST_MAIN(tests)
