/* t_mem.c — big allocations, the arena, failure on demand, the guard, and what the system says of memory. */
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

/* Run fn in a child; did it abort? */
static bool aborts(void (*fn)(void)) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    close(2);
    signal(SIGABRT, SIG_DFL);
    fn();
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void small_ones(void **state) {
  (void)state;
  free(xmalloc(0));
  free(xcalloc(0, 8));
  char *p = xcalloc(16, 2);
  for (int i = 0; i < 32; i++) assert_int_equal(p[i], 0);
  p = xrealloc(p, 64);
  memset(p, 1, 64);
  free(p);
  char *s = xstrndup("ab\0cd", 5);
  assert_memory_equal(s, "ab\0cd", 6);
  free(s);
  s = xstrdup("swan");
  assert_string_equal(s, "swan");
  free(s);
}

static void overflowing_product(void) { free(xcalloc(SIZE_MAX / 2, 3)); }
static void overflow_aborts(void **state) {
  (void)state;
  assert_true(aborts(overflowing_product));
}

static void big_is_zero_and_aligned(void **state) {
  (void)state;
  struct err e = {0};
  const size_t sizes[] = {1, 4095, 4096, 4097, 1 << 20, (2 << 20) + 1, 4 << 20, (5 << 20) + 12345, 9 << 20};
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
    unsigned char *p = mem_big_alloc(sizes[i], "test", &e);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    if (sizes[i] >= 4 << 20) assert_int_equal((uintptr_t)p % (2 << 20), 0);
    for (size_t k = 0; k < sizes[i]; k += 1000) assert_int_equal(p[k], 0);
    memset(p, 0xee, sizes[i]);
    mem_big_free(p, sizes[i]);
  }
  assert_null(mem_big_alloc(0, "test", &e));
  assert_int_equal(e.code, ERR_NONE);
  mem_big_free(NULL, 100);
}

/* Blocks that share huge pages come and go: always zero, never in one another, wherever the spare memory was cut. */
static void blocks_side_by_side(void **state) {
  (void)state;
  enum { BLOCKS = 24, MARKS = 5 };
  struct {
    unsigned char *p;
    size_t n;
  } blocks[BLOCKS] = {{0}};
  uint64_t rng = 3;
  for (int round = 0; round < 1500; round++) {
    int i = test_rand_int(&rng, 0, BLOCKS - 1), mark = i + 1;
    for (int k = 0; blocks[i].p && k < MARKS; k++) assert_int_equal(blocks[i].p[(blocks[i].n - 1) * (size_t)k / (MARKS - 1)], mark);
    mem_big_free(blocks[i].p, blocks[i].n);
    int size = test_rand_int(&rng, 0, 9); /* most of them small enough to share */
    blocks[i].n = (size_t)(size < 2   ? test_rand_int(&rng, 1, 70000)
                           : size < 8 ? test_rand_int(&rng, 60000, 1 << 20)
                                      : test_rand_int(&rng, 1 << 20, 7 << 20));
    blocks[i].p = round % 2 ? mem_big_alloc(blocks[i].n, "test", NULL) : mem_big_alloc_local(blocks[i].n, "test", NULL);
    assert_non_null(blocks[i].p);
    for (size_t at = 0; at < blocks[i].n; at += 4093) assert_int_equal(blocks[i].p[at], 0);
    for (int k = 0; k < MARKS; k++) blocks[i].p[(blocks[i].n - 1) * (size_t)k / (MARKS - 1)] = (unsigned char)mark;
  }
  for (int i = 0; i < BLOCKS; i++) mem_big_free(blocks[i].p, blocks[i].n);
}

/* What is written soon by others is neither taken nor spread now; the rest is. */
static void taken_at_once(void **state) {
  (void)state;
  enum { BYTES = 32 << 20 };
  mem_big_spread(1); /* node 0 is everywhere, and where it is not the wish is refused */
  mem_big_take_at_once(true);
  size_t before = mem_resident_bytes();
  char *later = mem_big_alloc_local(BYTES, "test", NULL);
  size_t between = mem_resident_bytes();
  char *now = mem_big_alloc(BYTES, "test", NULL);
  size_t after = mem_resident_bytes();
  mem_big_take_at_once(false);
  mem_big_spread(0);
  assert_true(later && now);
  assert_true(between < before + BYTES / 2);
  assert_true(after >= between + BYTES / 2);
  for (size_t i = 0; i < BYTES; i += 4096) assert_true(later[i] == 0 && now[i] == 0);
  mem_big_free(later, BYTES);
  mem_big_free(now, BYTES);
}

static void huge_pages_or_never(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool want;
  } rows[] = {{"always madvise [never]\n", false}, {"always [madvise] never\n", true}, {"[always] madvise never\n", true}, {"odd\n", true}};
  char path[512];
  assert_true(mem_huge_pages("/nonexistent"));
  snprintf(path, sizeof path, "%s/kernel", test_tmpdir());
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/kernel/mm", test_tmpdir());
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/kernel/mm/transparent_hugepage", test_tmpdir());
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/kernel/mm/transparent_hugepage/enabled", test_tmpdir());
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(rows[i].text, f);
    fclose(f);
    assert_int_equal(mem_huge_pages(test_tmpdir()), rows[i].want);
  }
}

static void too_big_is_an_error(void **state) {
  (void)state;
  struct err e = {0};
  assert_null(mem_big_alloc((size_t)1 << 60, "weights", &e));
  assert_int_equal(e.code, ERR_NO_MEMORY);
  assert_string_equal(e.msg, "weights: cannot get 1.0 EiB: Cannot allocate memory");
  assert_null(mem_big_alloc(SIZE_MAX, "weights", &e));
  assert_null(mem_big_alloc(SIZE_MAX - 4096, "weights", NULL));
}

static void arena_bumps(void **state) {
  (void)state;
  struct arena a;
  assert_int_equal(arena_init(&a, 1000, "scratch", NULL), 0);
  unsigned char *p = arena_alloc(&a, 1), *q = arena_alloc(&a, 100);
  assert_int_equal(q - p, 64);
  size_t mark = arena_mark(&a);
  void *r = arena_alloc(&a, 700);
  assert_int_equal((uintptr_t)r % 64, 0);
  arena_reset(&a, mark);
  assert_ptr_equal(arena_alloc(&a, 8), r);
  assert_int_equal(a.peak_bytes, 192 + 700);
  arena_reset(&a, 0);
  assert_ptr_equal(arena_alloc(&a, 1000), p); /* exactly full */
  arena_free(&a);
  assert_int_equal(arena_init(&a, 0, "scratch", NULL), 0);
  arena_free(&a);
}

static void take_too_much(void) {
  struct arena a;
  arena_init(&a, 1000, "scratch", NULL);
  arena_alloc(&a, 900);
  arena_alloc(&a, 41); /* 960 + 41 > 1000 */
}
static void take_very_much(void) {
  struct arena a;
  arena_init(&a, 1000, "scratch", NULL);
  arena_alloc(&a, 900);
  arena_alloc(&a, SIZE_MAX - 10);
}
static void arena_overrun_aborts(void **state) {
  (void)state;
  assert_true(aborts(take_too_much));
  assert_true(aborts(take_very_much));
}

/* The n-th call fails, once, whichever kind it is. */
static void fails_on_demand(void **state) {
  (void)state;
  for (int n = 1; n <= 4; n++) {
    struct err e = {0};
    struct arena a;
    mem_fail_after(n);
    void *first = mem_try_alloc(10);
    void *second = mem_big_alloc(10, "second", &e);
    int third = arena_init(&a, 10, "third", &e);
    assert_int_equal(first == NULL, n == 1);
    assert_int_equal(second == NULL, n == 2);
    assert_int_equal(third != 0, n == 3);
    assert_int_equal(e.code, n == 2 || n == 3 ? ERR_NO_MEMORY : ERR_NONE);
    assert_int_equal(mem_fail_pending(), n == 4);
    mem_fail_after(0);
    free(first);
    mem_big_free(second, 10);
    arena_free(&a);
  }
  assert_false(mem_fail_pending());
}

static _Atomic int n_failed;
static void *allocate_often(void *arg) {
  (void)arg;
  for (int i = 0; i < 1000; i++) {
    void *p = mem_try_alloc(8);
    if (!p) atomic_fetch_add(&n_failed, 1);
    free(p);
  }
  return NULL;
}

static void fails_once_among_threads(void **state) {
  (void)state;
  pthread_t threads[4];
  mem_fail_after(1500);
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, allocate_often, NULL);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  assert_int_equal(n_failed, 1);
}

static void allocate_under_guard(void) {
  mem_guard_begin("decode");
  free(xmalloc(1));
}
static void allocate_big_under_guard(void) {
  mem_guard_begin("decode");
  mem_big_alloc(1, "x", NULL);
}
static void allocate_after_guard(void) {
  struct arena a;
  arena_init(&a, 100, "x", NULL);
  mem_guard_begin("decode");
  arena_alloc(&a, 10); /* planned memory is not an allocation */
  mem_guard_end();
  free(xmalloc(1));
}
static void *allocate_in_thread(void *arg) {
  free(xmalloc(1));
  return arg;
}
static void allocate_elsewhere(void) {
  pthread_t thread;
  mem_guard_begin("decode");
  pthread_create(&thread, NULL, allocate_in_thread, NULL);
  pthread_join(thread, NULL);
}

static void guard(void **state) {
  (void)state;
  assert_true(aborts(allocate_under_guard));
  assert_true(aborts(allocate_big_under_guard));
  assert_false(aborts(allocate_after_guard));
  assert_false(aborts(allocate_elsewhere));
}

static void human(void **state) {
  (void)state;
  static const struct {
    size_t n;
    const char *text;
  } rows[] = {{0, "0 B"},
              {640, "640 B"},
              {1023, "1023 B"},
              {1024, "1.0 KiB"},
              {1048524, "1023.9 KiB"},
              {1048575, "1.0 MiB"},
              {265289728, "253.0 MiB"},
              {(size_t)5 << 28, "1.2 GiB"},
              {SIZE_MAX, "16.0 EiB"}};
  char buf[32];
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) assert_string_equal(mem_human(rows[i].n, buf), rows[i].text);
}

static void what_there_is(void **state) {
  (void)state;
  enum { BYTES = 32 << 20 };
  size_t before = mem_resident_bytes();
  assert_true(before > 100000);
  char *p = mem_big_alloc(BYTES, "test", NULL);
  assert_non_null(p);
  memset(p, 1, BYTES);
  assert_true(mem_resident_bytes() >= before + BYTES / 2);
  mem_big_free(p, BYTES);
  assert_true(mem_peak_resident_bytes() >= before + BYTES / 2);
  assert_true(mem_peak_resident_bytes() >= mem_resident_bytes());
  assert_true(mem_available_bytes() > 0 && mem_available_bytes() < (size_t)1 << 50);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(small_ones),
    cmocka_unit_test(overflow_aborts),
    cmocka_unit_test(big_is_zero_and_aligned),
    cmocka_unit_test(blocks_side_by_side),
    cmocka_unit_test(taken_at_once),
    cmocka_unit_test(huge_pages_or_never),
    cmocka_unit_test(too_big_is_an_error),
    cmocka_unit_test(arena_bumps),
    cmocka_unit_test(arena_overrun_aborts),
    cmocka_unit_test(fails_on_demand),
    cmocka_unit_test(fails_once_among_threads),
    cmocka_unit_test(guard),
    cmocka_unit_test(human),
    cmocka_unit_test(what_there_is),
};
TEST_MAIN(tests)
