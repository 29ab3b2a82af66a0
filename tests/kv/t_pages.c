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

static int32_t lowest_free(const int *owners, int n) {
  for (int32_t id = 1; id <= n; id++)
    if (!owners[id]) return id;
  return 0;
}

static void test_against_twin(void **unused) {
  (void)unused;
  uint64_t seed = 11;
  for (int round = 0; round < 400; round++) {
    int n = round % 8 == 0 ? 0 : test_rand_int(&seed, 1, PAGES_MAX), owners[PAGES_MAX + 1] = {0}, n_used = 0;
    struct pages p;
    assert_int_equal(pages_init(&p, n, NULL), 0);
    int take_bias = test_rand_int(&seed, 20, 70); /* some rounds run full, some stay empty */
    for (int step = 0; step < 300; step++) {
      int32_t id = n ? test_rand_int(&seed, 1, n) : 0;
      int what = test_rand_int(&seed, 0, 99);
      if (what < take_bias) {
        int32_t expected = lowest_free(owners, n);
        assert_int_equal(pages_take(&p), expected);
        if (expected) owners[expected] = 1, n_used++;
      } else if (id && owners[id] && what < take_bias + 10) {
        pages_ref(&p, id);
        owners[id]++;
      } else if (id && owners[id]) {
        bool freed = --owners[id] == 0;
        assert_int_equal(pages_unref(&p, id), freed);
        n_used -= freed;
      }
      assert_int_equal(pages_used(&p), n_used);
      for (int32_t i = 1; i <= n; i++) assert_int_equal(p.refs[i], owners[i]);
      check(&p);
    }
    pages_free(&p);
    pages_free(&p); /* fine on a zeroed one */
  }
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
  for (int damage = 0; damage < 7; damage++) {
    struct pages p;
    struct err e = {0};
    assert_int_equal(pages_init(&p, 9, NULL), 0);
    for (int i = 0; i < 4; i++) pages_take(&p); /* 1..4 out, 5..9 free */
    check(&p);
    if (damage == 0) p.heap[1] = p.heap[2];        /* twice */
    if (damage == 1) p.refs[7] = 1;                /* free and owned */
    if (damage == 2) p.refs[3] = 0;                /* lost */
    if (damage == 3) p.heap[0] = 9, p.heap[4] = 5; /* order */
    if (damage == 4) p.n_free = 10;                /* count */
    if (damage == 5) p.heap[2] = 10;               /* range */
    if (damage == 6) p.refs[0] = 1;                /* page 0 handed out */
    assert_false(pages_check(&p, &e));
    assert_int_equal(e.code, ERR_INTERNAL);
    assert_true(strlen(e.msg) > 10);
    pages_free(&p);
  }
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
    cmocka_unit_test(test_against_twin),
    cmocka_unit_test(test_hands_out_low_ids_first),
    cmocka_unit_test(test_check_sees_damage),
    cmocka_unit_test(test_init_fails_cleanly),
};
TEST_MAIN(tests)
