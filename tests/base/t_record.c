/* t_record.c — lists of launches against a sequential oracle: order, items, numbers read late, any number of threads. */
#include "test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/record.h"

/* --- random programs ------------------------------------------------------------------------------------------------ */

/* Memory of a program: cells that launches read and write. Item i of a launch writes cell to + i, and reads others: plain numbers, so that a
 * sanitizer sees a launch that begins too early, and the result tells of a lost, doubled or misplaced one. */
enum { CELLS = 512, LAUNCHES_MOST = 60, COUNTS = 4 };

struct memory {
  uint64_t cells[CELLS];
  int counts[COUNTS]; /* numbers of items that launches read when they begin */
};

struct step {
  struct memory *m;
  uint64_t salt;
  int to, from, from_n; /* reads [from, from + from_n), apart from where it writes */
  int sets_count;       /* >= 0: and the first item sets this count, for later launches */
  char pad[72];         /* contexts differ in size */
};

static uint64_t mix(uint64_t a, uint64_t b) { return (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu; }

static void step_item(void *ctx, int item, int worker) {
  const struct step *s = ctx;
  struct memory *m = s->m;
  (void)worker;
  uint64_t v = mix(m->cells[s->to + item], s->salt);
  for (int i = 0; i < s->from_n; i++) v = mix(v, m->cells[s->from + i]);
  m->cells[s->to + item] = mix(v, (uint64_t)item);
  if (s->sets_count >= 0 && item == 0) m->counts[s->sets_count] = (int)(v % 40);
}

struct program {
  struct step steps[LAUNCHES_MOST];
  int n_items[LAUNCHES_MOST]; /* -1 - c: counts[c] */
  int n;
};

static void random_program(struct program *p, struct memory *m, uint64_t *rand) {
  p->n = test_rand_int(rand, 0, LAUNCHES_MOST);
  for (int i = 0; i < p->n; i++) {
    struct step *s = &p->steps[i];
    int half = test_rand_int(rand, 0, 1) * CELLS / 2; /* written here, read there */
    *s = (struct step){.m = m, .salt = test_rand(rand), .sets_count = -1};
    s->to = half + test_rand_int(rand, 0, 100);
    s->from = CELLS / 2 - half + test_rand_int(rand, 0, 200);
    s->from_n = test_rand_int(rand, 0, 50);
    int kind = test_rand_int(rand, 0, 9);
    p->n_items[i] = kind < 4    ? 1
                    : kind == 4 ? 0
                    : kind < 7  ? test_rand_int(rand, 2, 5)
                    : kind < 9  ? test_rand_int(rand, 1, 150)
                                : -1 - test_rand_int(rand, 0, COUNTS - 1);
    if (p->n_items[i] > 0 && test_rand_int(rand, 0, 5) == 0) s->sets_count = test_rand_int(rand, 0, COUNTS - 1);
  }
}

static size_t step_bytes(int i) { return sizeof(struct step) - (size_t)(i % 9) * 8; }

static void run_program(const struct program *p, struct memory *m, struct workers *w) {
  for (int i = 0; i < p->n; i++) {
    struct step here = p->steps[i]; /* gone after the call */
    const int *at = p->n_items[i] < 0 ? &m->counts[-1 - p->n_items[i]] : NULL;
    workers_launch(w, step_item, &here, step_bytes(i), at ? *at : p->n_items[i], at);
    memset(&here, 0xee, sizeof here);
  }
}

static void run_by_hand(const struct program *p, struct memory *m) {
  for (int i = 0; i < p->n; i++) {
    int n = p->n_items[i] < 0 ? m->counts[-1 - p->n_items[i]] : p->n_items[i];
    struct step s = p->steps[i];
    s.m = m;
    for (int item = 0; item < n; item++) step_item(&s, item, 0);
  }
}

static void set_memory(struct memory *m, uint64_t *rand) {
  for (int i = 0; i < CELLS; i++) m->cells[i] = test_rand(rand);
  for (int i = 0; i < COUNTS; i++) m->counts[i] = test_rand_int(rand, 0, 40);
}

static void expect_same(const struct memory *got, const struct memory *want) { assert_memory_equal(got, want, sizeof *got); }

static void programs_do_what_one_thread_does(void **state) {
  (void)state;
  uint64_t rand = 3;
  static struct memory m, oracle;
  static struct program p;
  struct err e = {0};
  struct record *r = record_new(LAUNCHES_MOST, LAUNCHES_MOST * sizeof(struct step), &e);
  assert_non_null(r);
  for (int n_threads = 1; n_threads <= 4; n_threads++) {
    struct workers *w = workers_new(n_threads, &e);
    assert_non_null(w);
    for (int round = 0; round < 250; round++) {
      random_program(&p, &m, &rand);
      set_memory(&m, &rand);
      oracle = m;
      run_program(&p, &m, n_threads == 1 && round % 2 ? NULL : w); /* eager */
      run_by_hand(&p, &oracle);
      expect_same(&m, &oracle);
      record_clear(r);
      workers_record(w, r);
      run_program(&p, &m, w); /* recorded while it runs */
      workers_record(w, NULL);
      assert_int_equal(record_launches(r), p.n);
      run_by_hand(&p, &oracle);
      expect_same(&m, &oracle);
      for (int replay = 0; replay < 6; replay++) {
        if (replay % 2) { /* other contents in the same places */
          set_memory(&m, &rand);
          oracle = m;
        }
        uint64_t before = workers_runs(w);
        workers_replay(w, r);
        assert_int_equal(workers_runs(w) - before, 1);
        run_by_hand(&p, &oracle);
        expect_same(&m, &oracle);
      }
      if (round % 50 == 49) usleep(2000); /* helpers fall asleep */
    }
    workers_delete(w);
  }
  record_delete(r);
}

/* --- a long list, many times, and ordinary runs in between ----------------------------------------------------------- */

struct chain {
  _Atomic int *next; /* launch that must be running */
  _Atomic int *done; /* its items so far */
  int index, n_items;
};

static void chain_item(void *ctx, int item, int worker) {
  struct chain *c = ctx;
  (void)item, (void)worker;
  CHECK(atomic_load(c->next) == c->index);
  if (atomic_fetch_add(c->done, 1) + 1 == c->n_items) {
    atomic_store(c->done, 0);
    atomic_store(c->next, c->index + 1);
  }
}

static void sum_item(void *ctx, int item, int worker) {
  (void)worker;
  atomic_fetch_add((_Atomic int *)ctx, item);
}

enum { CHAIN = 200 };

static void long_lists_many_times(void **state) {
  (void)state;
  struct err e = {0};
  struct record *r = record_new(CHAIN, CHAIN * sizeof(struct chain), &e);
  for (int n_threads = 1; n_threads <= 4; n_threads++) {
    struct workers *w = workers_new(n_threads, &e);
    _Atomic int next = 0, done = 0;
    record_clear(r);
    workers_record(w, r);
    for (int i = 0; i < CHAIN; i++) {
      struct chain c = {&next, &done, i, 1 + i * 7 % 5};
      workers_launch(w, chain_item, &c, sizeof c, c.n_items, NULL);
    }
    workers_record(w, NULL);
    for (int i = 0; i < 300; i++) {
      atomic_store(&next, 0);
      workers_replay(w, r);
      assert_int_equal(next, CHAIN);
      _Atomic int sum = 0;
      workers_run(w, sum_item, &sum, 10);
      assert_int_equal(sum, 45);
      if (i % 100 == 99) usleep(1000);
    }
    workers_delete(w);
  }
  record_delete(r);
}

/* An item that takes so long that the other workers fall asleep inside the list. */
static void slow_item(void *ctx, int item, int worker) {
  (void)worker;
  int64_t until = clock_ns() + (item == 0 ? 400000 : 0);
  while (clock_ns() < until) {}
  ++*(int *)*(void **)ctx;
}

static void add_item(void *ctx, int item, int worker) {
  (void)worker;
  atomic_fetch_add(*(_Atomic int **)ctx, item);
}

static void slow_items_let_others_sleep(void **state) {
  (void)state;
  struct err e = {0};
  struct record *r = record_new(8, 8 * sizeof(void *), &e);
  for (int n_threads = 2; n_threads <= 4; n_threads++) {
    struct workers *w = workers_new(n_threads, &e);
    _Atomic int sum = 0;
    int n_slow = 0;
    void *slow = &n_slow, *at = &sum;
    record_clear(r);
    workers_record(w, r);
    for (int i = 0; i < 3; i++) {
      workers_launch(w, slow_item, &slow, sizeof slow, 1, NULL);
      workers_launch(w, add_item, &at, sizeof at, 5, NULL);
    }
    workers_record(w, NULL);
    for (int i = 0; i < 20; i++) workers_replay(w, r);
    assert_int_equal(n_slow, 63);
    assert_int_equal(sum, 63 * 10);
    workers_delete(w);
  }
  record_delete(r);
}

static void nothing_is_allocated(void **state) {
  (void)state;
  struct err e = {0};
  struct workers *w = workers_new(2, &e);
  struct record *r = record_new(4, 64, &e);
  _Atomic int next = 0, done = 0;
  mem_guard_begin("recording");
  workers_record(w, r);
  struct chain c = {&next, &done, 0, 3};
  workers_launch(w, chain_item, &c, sizeof c, 3, NULL);
  workers_record(w, NULL);
  for (int i = 0; i < 10; i++) {
    atomic_store(&next, 0);
    workers_replay(w, r);
  }
  mem_guard_end();
  record_delete(r);
  workers_delete(w);
}

/* --- memory ----------------------------------------------------------------------------------------------------------- */

static void none(void *ctx, int item, int worker) { (void)ctx, (void)item, (void)worker; }

/* What was asked for fits, whatever the sizes of the contexts are. */
static void the_room_asked_for_is_there(void **state) {
  (void)state;
  uint64_t rand = 4;
  struct err e = {0};
  struct workers *w = workers_new(1, &e);
  for (int round = 0; round < 300; round++) {
    static const char ctx[200];
    int n = test_rand_int(&rand, 0, 50), sizes[50];
    size_t total = 0;
    for (int i = 0; i < n; i++) total += (size_t)(sizes[i] = test_rand_int(&rand, 0, 200));
    struct record *r = record_new(n, total, &e);
    assert_non_null(r);
    assert_true(record_bytes(n, total) >= total);
    workers_record(w, r);
    for (int i = 0; i < n; i++) workers_launch(w, none, ctx, (size_t)sizes[i], 1, NULL);
    workers_record(w, NULL);
    assert_int_equal(record_launches(r), n);
    record_clear(r);
    assert_int_equal(record_launches(r), 0);
    record_delete(r);
  }
  workers_delete(w);
  record_delete(NULL);
  mem_fail_after(1);
  assert_null(record_new(4, 64, &e));
  assert_int_equal(e.code, ERR_NO_MEMORY);
  assert_true(record_bytes(10, SIZE_MAX - 5) == SIZE_MAX);
}

/* --- misuse ------------------------------------------------------------------------------------------------------------ */

/* The process ends by abort, not by a crash or a return. */
static void expect_abort(void (*misuse)(void)) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    freopen("/dev/null", "w", stderr);
    signal(SIGABRT, SIG_DFL);
    misuse();
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void open_both(struct workers **w, struct record **r, int n_threads, int launches_max) {
  struct err e;
  *w = workers_new(n_threads, &e);
  *r = record_new(launches_max, 64, &e);
  workers_record(*w, *r);
}

static void run_while_recording(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 2, 4);
  workers_run(w, none, NULL, 3);
}
static void run_of_nothing_while_recording(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 1, 4);
  workers_run(w, none, NULL, 0);
}
static void record_twice(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 1, 4);
  workers_record(w, r);
}
static void replay_while_recording(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 1, 4);
  workers_replay(w, r);
}
static void too_many_launches(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 1, 2);
  for (int i = 0; i < 3; i++) workers_launch(w, none, &w, 1, 1, NULL);
}
static void too_many_bytes(void) {
  struct workers *w;
  struct record *r;
  static const char ctx[200];
  open_both(&w, &r, 1, 2);
  workers_launch(w, none, ctx, sizeof ctx, 1, NULL);
}
static void wrong_number_now(void) {
  struct workers *w;
  struct record *r;
  static const int n = 2;
  open_both(&w, &r, 1, 2);
  workers_launch(w, none, &w, 1, 3, &n);
}
static void inner(void *ctx, int item, int worker) {
  (void)item, (void)worker;
  workers_run(*(struct workers **)ctx, none, NULL, 1);
}
static void nested(void) {
  struct err e;
  struct workers *w = workers_new(1, &e);
  workers_run(w, inner, &w, 2);
}
static void inner_launch(void *ctx, int item, int worker) {
  (void)item, (void)worker;
  workers_launch(*(struct workers **)ctx, none, ctx, 1, 1, NULL);
}
static void nested_launch(void) {
  struct workers *w;
  struct record *r;
  open_both(&w, &r, 1, 4);
  workers_launch(w, inner_launch, &w, sizeof w, 1, NULL);
}

static void misuse_is_refused(void **state) {
  (void)state;
  void (*const all[])(void) = {run_while_recording, run_of_nothing_while_recording,
                               record_twice,        replay_while_recording,
                               too_many_launches,   too_many_bytes,
                               wrong_number_now,    nested,
                               nested_launch};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) expect_abort(all[i]);
}

/* --- figures ------------------------------------------------------------------------------------------------------------- */

struct busy {
  int64_t ns;
};
static void busy_item(void *ctx, int item, int worker) {
  (void)item, (void)worker;
  int64_t until = clock_ns() + ((struct busy *)ctx)->ns;
  while (clock_ns() < until) {}
}

/* No bound, since the machine may be busy: what lies between two loops of two items, one by one and in a list, is for a reader. */
static void cost_of_a_barrier(void **state) {
  (void)state;
  enum { LOOPS = 200, ITEM_NS = 3000 };
  struct err e = {0};
  struct workers *w = workers_new(2, &e);
  struct record *r = record_new(LOOPS, LOOPS * sizeof(struct busy), &e);
  struct busy b = {ITEM_NS};
  workers_record(w, r);
  for (int i = 0; i < LOOPS; i++) workers_launch(w, busy_item, &b, sizeof b, 2, NULL);
  workers_record(w, NULL);
  int64_t runs = INT64_MAX, list = INT64_MAX;
  for (int i = 0; i < 20; i++) {
    int64_t start = clock_ns();
    for (int j = 0; j < LOOPS; j++) workers_launch(w, busy_item, &b, sizeof b, 2, NULL);
    int64_t middle = clock_ns();
    workers_replay(w, r);
    runs = MIN(runs, middle - start), list = MIN(list, clock_ns() - middle);
  }
  print_message("2 threads, loops of 2 items of %d ns: %d ns more each as fork-joins, %d ns in a list\n", ITEM_NS,
                (int)(runs / LOOPS) - ITEM_NS, (int)(list / LOOPS) - ITEM_NS);
  record_delete(r);
  workers_delete(w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(programs_do_what_one_thread_does),
    cmocka_unit_test(long_lists_many_times),
    cmocka_unit_test(slow_items_let_others_sleep),
    cmocka_unit_test(nothing_is_allocated),
    cmocka_unit_test(the_room_asked_for_is_there),
    cmocka_unit_test(misuse_is_refused),
    cmocka_unit_test(cost_of_a_barrier),
};
TEST_MAIN(tests)
