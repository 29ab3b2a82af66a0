/* t_banks.c — the store of encoded media beside a twin that is an array, and numbers for keys beside a list. */
#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "kv/banks.h"

enum { TWIN_MAX = 64, KEYS = 24 };

static struct bank_key key_of(int i) {
  struct bank_key k;
  memset(&k, 0, sizeof k);
  k.digest[0] = (uint8_t)(i % 3); /* buckets collide */
  k.digest[31] = (uint8_t)i;
  return k;
}

struct twin { /* one entry */
  int32_t id;
  int key, n_rows, n_held, idle_since;
  bool filled;
  uint64_t serial;
};

struct world {
  struct banks *b;
  int page_rows, n_pages, now;
  struct twin twins[TWIN_MAX];
  int n;
};

static int pages_of(const struct world *w, int n_rows) { return (n_rows + w->page_rows - 1) / w->page_rows; }

static int room_of(const struct world *w) {
  int room = w->n_pages;
  for (int i = 0; i < w->n; i++) room -= w->twins[i].n_held ? pages_of(w, w->twins[i].n_rows) : 0;
  return room;
}

static struct twin *twin_of(struct world *w, int key) {
  for (int i = 0; i < w->n; i++)
    if (w->twins[i].key == key) return &w->twins[i];
  return NULL;
}

static void drop(struct world *w, struct twin *t) { *t = w->twins[--w->n]; }

static void compare(struct world *w) {
  int32_t holders[1024];
  uint8_t seen[256] = {0};
  int n_holders = 0, n_held = 0, n_idle = 0, rows_held = 0, rows_idle = 0;
  struct err e = {0};
  for (int i = 0; i < w->n; i++) {
    const struct twin *t = &w->twins[i];
    struct bank_key key = key_of(t->key);
    int32_t pages[256];
    int64_t slots[256];
    for (int k = 0; k < t->n_held; k++) holders[n_holders++] = t->id;
    assert_int_equal(banks_find(w->b, &key), t->id);
    assert_int_equal(banks_is_filled(w->b, t->id), t->filled);
    assert_int_equal(banks_is_held(w->b, t->id), t->n_held > 0);
    assert_int_equal(banks_n_rows(w->b, t->id), t->n_rows);
    assert_int_equal(banks_serial(w->b, t->id), t->serial);
    int n = banks_pages(w->b, t->id, pages);
    assert_int_equal(n, pages_of(w, t->n_rows));
    for (int k = 0; k < n; k++) {
      assert_true(pages[k] >= 1 && pages[k] <= w->n_pages && !seen[pages[k]]);
      seen[pages[k]] = 1;
    }
    banks_slots(w->b, t->id, 0, t->n_rows, slots);
    for (int k = 0; k < t->n_rows; k++) {
      int64_t one;
      assert_int_equal(slots[k], pages[k / w->page_rows] * w->page_rows + k % w->page_rows);
      banks_slots(w->b, t->id, k, 1, &one);
      assert_int_equal(one, slots[k]);
    }
    *(t->n_held ? &n_held : &n_idle) += n;
    *(t->n_held ? &rows_held : &rows_idle) += t->n_rows;
  }
  struct banks_stats st = banks_stats(w->b);
  assert_int_equal(st.n_pages_held, n_held);
  assert_int_equal(st.n_pages_idle, n_idle);
  assert_int_equal(st.n_rows_held, rows_held);
  assert_int_equal(st.n_rows_idle, rows_idle);
  assert_int_equal(st.n_entries, w->n);
  assert_int_equal(banks_room(w->b), room_of(w));
  if (!banks_check(w->b, holders, n_holders, &e)) fail_msg("%s", e.msg);
  if (n_holders) assert_false(banks_check(w->b, holders, n_holders - 1, &e));
  if (w->n) holders[n_holders] = w->twins[0].id, assert_false(banks_check(w->b, holders, n_holders + 1, &e));
}

static void add(struct world *w, int key, int n_rows, int *n_short, int *n_evicted) {
  struct bank_key k = key_of(key);
  int room = room_of(w), n_free = room;
  int32_t id = banks_add(w->b, &k, n_rows);
  assert_int_equal(id != 0, pages_of(w, n_rows) <= room);
  if (!id) {
    ++*n_short;
    return;
  }
  for (int i = 0; i < w->n; i++) n_free -= w->twins[i].n_held ? 0 : pages_of(w, w->twins[i].n_rows);
  while (n_free < pages_of(w, n_rows)) { /* the oldest idle ones went */
    struct twin *oldest = NULL;
    for (int i = 0; i < w->n; i++)
      if (!w->twins[i].n_held && (!oldest || w->twins[i].idle_since < oldest->idle_since)) oldest = &w->twins[i];
    assert_non_null(oldest);
    n_free += pages_of(w, oldest->n_rows);
    drop(w, oldest);
    ++*n_evicted;
  }
  assert_true(w->n < TWIN_MAX);
  for (int i = 0; i < w->n; i++) assert_true(banks_serial(w->b, id) > w->twins[i].serial);
  w->twins[w->n++] = (struct twin){.id = id, .key = key, .n_rows = n_rows, .n_held = 1, .serial = banks_serial(w->b, id)};
}

static void random_operations(void **state) {
  (void)state;
  uint64_t rng = 3;
  int n_short = 0, n_evicted = 0, n_found = 0, n_gone = 0;
  for (int round = 0; round < 60; round++) {
    struct world w = {.page_rows = (int[]){1, 2, 3, 16}[round % 4], .n_pages = test_rand_int(&rng, 1, 40)};
    w.b = banks_new(w.page_rows, w.n_pages, NULL);
    for (int step = 0; step < 300; step++, w.now++) {
      int key = test_rand_int(&rng, 0, KEYS - 1), what = test_rand_int(&rng, 0, 99);
      struct twin *t = twin_of(&w, key);
      if (what < 40) {
        if (!t) add(&w, key, test_rand_int(&rng, 1, 5 * w.page_rows), &n_short, &n_evicted);
        else banks_hold(w.b, t->id), t->n_held++, n_found++;
      } else if (what < 97 && t && t->n_held) {
        if (what % 4) {
          banks_release(w.b, t->id);
          t->idle_since = w.now;
          if (--t->n_held == 0 && !t->filled) drop(&w, t), n_gone++;
        } else {
          banks_fill(w.b, t->id);
          t->filled = true;
        }
      } else if (what == 99) {
        banks_flush(w.b);
        for (int i = w.n - 1; i >= 0; i--)
          if (!w.twins[i].n_held) drop(&w, &w.twins[i]);
      }
      compare(&w);
    }
    banks_delete(w.b);
  }
  assert_true(n_short > 200 && n_evicted > 100 && n_found > 1000 && n_gone > 100);
}

/* Entries that grow as large as the store, one after the other. */
static void one_takes_all(void **state) {
  (void)state;
  struct banks *b = banks_new(4, 10, NULL);
  for (int i = 0; i < 40; i++) {
    struct bank_key key = key_of(i);
    int32_t id = banks_add(b, &key, i + 1);
    assert_true(id > 0);
    banks_fill(b, id);
    banks_release(b, id);
    assert_int_equal(banks_find(b, &key), id);
  }
  struct bank_key key = key_of(99);
  assert_int_equal(banks_add(b, &key, 41), 0);
  assert_int_equal(banks_stats(b).n_rows_idle, 40); /* and what is there was not given up for it */
  assert_true(banks_bytes(1000) > banks_bytes(10));
  banks_delete(b);
  banks_delete(NULL);
}

static void numbers(void **state) {
  (void)state;
  enum { N = 7, USED = 15 };
  uint64_t rng = 5;
  struct names *n = names_new(N, NULL);
  int order[USED + 1], n_order = 0; /* newest last */
  int32_t numbers_of[USED], next = 0;
  memset(numbers_of, -1, sizeof numbers_of);
  for (int step = 0; step < 5000; step++) {
    int i = test_rand_int(&rng, 0, USED - 1), at = 0;
    struct bank_key key = key_of(i);
    int32_t got = names_number(n, &key);
    while (at < n_order && order[at] != i) at++;
    if (at == n_order && n_order == N) at = 0; /* the oldest was forgotten */
    if (at < n_order) {
      if (order[at] != i) numbers_of[order[at]] = -1;
      memmove(order + at, order + at + 1, (size_t)(--n_order - at) * sizeof *order);
    }
    order[n_order++] = i;
    if (numbers_of[i] < 0) numbers_of[i] = next++;
    assert_int_equal(got, numbers_of[i]);
  }
  assert_true(next > 2000);
  names_delete(n);
  names_delete(NULL);
}

static void new_fails_softly(void **state) {
  (void)state;
  for (int n = 1; n <= 6; n++) {
    struct err e = {0};
    mem_fail_after(n);
    struct banks *b = banks_new(16, 100, &e);
    struct names *m = b && mem_fail_pending() ? names_new(NAMES_MAX, &e) : NULL;
    bool failed = !mem_fail_pending();
    mem_fail_after(0);
    assert_int_equal(!b || !m, n <= 5);
    assert_int_equal(failed, n <= 5);
    if (failed) assert_int_equal(e.code, ERR_NO_MEMORY);
    banks_delete(b);
    names_delete(m);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_operations),
    cmocka_unit_test(one_takes_all),
    cmocka_unit_test(numbers),
    cmocka_unit_test(new_fails_softly),
};
TEST_MAIN(tests)
