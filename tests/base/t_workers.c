/* t_workers.c — every item once, on every number of threads, awake or asleep; how many threads a machine gets. */
#include "test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/workers.h"

/* --- runs ----------------------------------------------------------------------------------------------------------- */

struct tally {
  int *counts;  /* [n] times each item was done: plain ints, so that a sanitizer sees an item done twice at once */
  int *workers; /* [n] who did it */
  int n, n_workers;
  int seed; /* what a run left behind must be seen by the next */
};

static void count_item(void *ctx, int item, int worker) {
  struct tally *t = ctx;
  CHECK(item >= 0 && item < t->n && worker >= 0 && worker < t->n_workers);
  t->counts[item] += t->seed;
  t->workers[item] = worker;
}

static void run_and_check(struct workers *w, struct tally *t, int n) {
  t->n = n;
  t->n_workers = workers_count(w);
  memset(t->counts, 0, (size_t)n * sizeof *t->counts);
  workers_run(w, count_item, t, n);
  for (int i = 0; i < n; i++) assert_int_equal(t->counts[i], t->seed);
}

enum { ITEMS_MAX = 5000 };

static void every_item_once(void **state) {
  (void)state;
  uint64_t seed = 2;
  struct tally t = {.counts = calloc(ITEMS_MAX, sizeof(int)), .workers = calloc(ITEMS_MAX, sizeof(int))};
  for (int n_threads = 1; n_threads <= 4; n_threads++) {
    struct workers *w = workers_new(n_threads, NULL);
    assert_non_null(w);
    assert_int_equal(workers_count(w), n_threads);
    uint64_t n_runs = 0;
    for (int round = 0; round < 1500; round++) {
      t.seed = round + 1;
      int n = round % 100 == 0 ? ITEMS_MAX : test_rand_int(&seed, 0, round % 3 ? 9 : 100);
      run_and_check(w, &t, n);
      n_runs += n > 1;
      if (round % 150 == 149) usleep(2000); /* helpers fall asleep */
    }
    assert_int_equal(workers_runs(w), n_runs);
    workers_delete(w);
  }
  t.seed = 1;
  run_and_check(NULL, &t, 100);
  free(t.counts);
  free(t.workers);
}

/* Sleep and wake at every distance from the moment at which helpers give up spinning. */
static void sleep_and_wake(void **state) {
  (void)state;
  int counts[64], who[64];
  struct tally t = {.counts = counts, .workers = who, .seed = 1};
  for (int n_threads = 2; n_threads <= 4; n_threads++) {
    struct workers *w = workers_new(n_threads, NULL);
    for (int i = 0; i < 600; i++) {
      run_and_check(w, &t, 1 + i % 64);
      int64_t until = clock_ns() + i % 150 * 1000;
      while (clock_ns() < until) {}
    }
    workers_delete(w);
  }
}

static void spin_a_while(void *ctx, int item, int worker) {
  (void)item;
  int64_t until = clock_ns() + 200000;
  while (clock_ns() < until) {}
  atomic_fetch_or((_Atomic unsigned *)ctx, 1u << worker);
}

static void helpers_take_part(void **state) {
  (void)state;
  struct workers *w = workers_new(3, NULL);
  _Atomic unsigned seen = 0;
  for (int i = 0; i < 50 && seen != 7; i++) {
    workers_run(w, spin_a_while, &seen, 30);
    usleep(500);
  }
  assert_int_equal(seen, 7);
  workers_delete(w);
}

/* The caller runs out of items long before the helpers are done with theirs. */
static void slow_helper(void *ctx, int item, int worker) {
  (void)item;
  int64_t until = clock_ns() + 500000;
  while (worker > 0 && clock_ns() < until) {}
  atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void returns_when_all_are_done(void **state) {
  (void)state;
  struct workers *w = workers_new(2, NULL);
  for (int i = 0; i < 100; i++) {
    _Atomic int n_done = 0;
    workers_run(w, slow_helper, &n_done, 500);
    assert_int_equal(n_done, 500);
  }
  workers_delete(w);
}

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void idle_pool_uses_no_cpu(void **state) {
  (void)state;
  struct workers *w = workers_new(4, NULL);
  int counts[8], who[8];
  struct tally t = {.counts = counts, .workers = who, .seed = 1};
  run_and_check(w, &t, 8);
  usleep(20000);
  double before = cpu_seconds();
  usleep(100000);
  assert_true(cpu_seconds() - before < 0.02);
  workers_delete(w);
}

static void start_and_stop(void **state) {
  (void)state;
  for (int i = 0; i < 60; i++) {
    struct workers *w = workers_new(1 + i % 4, NULL);
    if (i % 3 == 0) usleep(300);
    workers_delete(w);
  }
  workers_delete(NULL);
  assert_int_equal(workers_count(NULL), 1);
  assert_int_equal(workers_runs(NULL), 0);
  struct err e = {0};
  assert_null(workers_new(-1, &e));
  assert_int_equal(e.code, ERR_BAD_INPUT);
  assert_null(workers_new(1000000, &e));
  struct workers *w = workers_new(0, &e);
  assert_int_equal(workers_count(w), workers_default_threads());
  workers_delete(w);
  for (int n = 1; n <= 2; n++) {
    mem_fail_after(n);
    assert_null(workers_new(3, &e));
    assert_int_equal(e.code, ERR_NO_MEMORY);
  }
}

/* Two items that meet: each waits until the other has begun, so both threads must come. Given up when the machine is busy. */
static void meet(void *ctx, int item, int worker) {
  (void)item, (void)worker;
  _Atomic int *begun = ctx;
  atomic_fetch_add(begun, 1);
  for (int64_t until = clock_ns() + 50000000; atomic_load(begun) < 2 && clock_ns() < until;) {}
}

/* No bound, since the machine may be busy: the figure is for a reader. */
static void fork_join_cost(void **state) {
  (void)state;
  struct workers *w = workers_new(2, NULL);
  int64_t best = INT64_MAX;
  for (int i = 0; i < 300; i++) {
    _Atomic int begun = 0;
    int64_t start = clock_ns();
    workers_run(w, meet, &begun, 2);
    best = MIN(best, clock_ns() - start);
  }
  print_message("fork-join of 2 threads: %d ns\n", (int)best);
  assert_true(best < 50000000);
  workers_delete(w);
}

/* --- how many threads ------------------------------------------------------------------------------------------------ */

static int threads_of(const char *machine, int n_affinity) {
  char proc[512], sys[512];
  snprintf(proc, sizeof proc, "%s/%s/proc", test_tmpdir(), machine);
  snprintf(sys, sizeof sys, "%s/%s/sys", test_tmpdir(), machine);
  return workers_threads_from(proc, sys, n_affinity);
}

static void put_siblings(const char *machine, int cpu, const char *list) {
  char path[256];
  snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", machine, cpu);
  test_put_file(path, list);
}

static void threads_by_mask_and_core(void **state) {
  (void)state;
  assert_int_equal(threads_of("nothing", 3), 3); /* no files at all: the mask */
  assert_int_equal(threads_of("nothing", 0), 1);
  for (int cpu = 0; cpu < 8; cpu++) { /* siblings half the machine apart, as most x86 firmware numbers them */
    char list[32];
    snprintf(list, sizeof list, "%d,%d\n", cpu % 4, cpu % 4 + 4);
    put_siblings("apart", cpu, list);
    snprintf(list, sizeof list, "%d-%d\n", cpu / 2 * 2, cpu / 2 * 2 + 1);
    put_siblings("beside", cpu, list);
  }
  assert_int_equal(threads_of("apart", 8), 4);
  assert_int_equal(threads_of("apart", 6), 4);
  assert_int_equal(threads_of("apart", 3), 3);
  assert_int_equal(threads_of("beside", 8), 4);
  assert_int_equal(threads_of("beside", 5), 3);
  assert_int_equal(threads_of("beside", 1), 1);
  assert_int_equal(threads_of("beside", 10), 6); /* two CPUs without files */
}

static const char mounts_v2[] = "22 1 0:21 / /proc rw - proc proc rw\n"
                                "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

static void threads_by_quota_v2(void **state) {
  (void)state;
  test_put_file("v2/proc/self/mountinfo", mounts_v2);
  test_put_file("v2/proc/self/cgroup", "0::/a/b/c\n");
  assert_int_equal(threads_of("v2", 8), 8); /* folders missing */
  test_put_file("v2/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  assert_int_equal(threads_of("v2", 8), 8);
  test_put_file("v2/sys/fs/cgroup/a/cpu.max", "350000 100000\n"); /* the limit of an outer group */
  assert_int_equal(threads_of("v2", 8), 4);
  test_put_file("v2/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n"); /* smallest wins */
  assert_int_equal(threads_of("v2", 8), 2);
  test_put_file("v2/sys/fs/cgroup/a/b/c/cpu.max", "500000 100000\n");
  assert_int_equal(threads_of("v2", 8), 2);
  test_put_file("v2/sys/fs/cgroup/a/b/c/cpu.max", "1000 100000\n");
  assert_int_equal(threads_of("v2", 8), 1);
  assert_int_equal(threads_of("v2", 1), 1);
  test_put_file("v2/proc/self/cgroup", "0::/\n"); /* a container that sees only itself */
  test_put_file("v2/sys/fs/cgroup/cpu.max", "300000 100000\n");
  assert_int_equal(threads_of("v2", 8), 3);
  for (int cpu = 0; cpu < 8; cpu++) put_siblings("v2", cpu, cpu % 2 ? "1,3,5,7\n" : "0,2,4,6\n");
  assert_int_equal(threads_of("v2", 8), 2); /* two cores are fewer than the quota */
}

static void threads_by_quota_v1(void **state) {
  (void)state;
  test_put_file("v1/proc/self/mountinfo", "33 31 0:30 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                                          "34 31 0:31 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  test_put_file("v1/proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/docker/x/inner\n1:name=systemd:/docker/x\n0::/\n");
  assert_int_equal(threads_of("v1", 8), 8);
  test_put_file("v1/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "-1\n");
  test_put_file("v1/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n");
  assert_int_equal(threads_of("v1", 8), 8);
  test_put_file("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  assert_int_equal(threads_of("v1", 8), 8); /* no period */
  test_put_file("v1/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  assert_int_equal(threads_of("v1", 8), 3);
  test_put_file("v1/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "50000\n");
  assert_int_equal(threads_of("v1", 8), 1);
  test_put_file("v1/proc/self/cgroup", "4:cpu,cpuacct:/elsewhere\n"); /* a group the mount does not show */
  assert_int_equal(threads_of("v1", 8), 3);
}

/* Version 2 mounted beside version 1, which owns the cpu controller. */
static void threads_by_quota_hybrid(void **state) {
  (void)state;
  test_put_file("hybrid/proc/self/mountinfo", "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                                              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  test_put_file("hybrid/proc/self/cgroup", "1:cpu:/jobs/7\n0::/jobs/7\n");
  test_put_file("hybrid/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "200000\n");
  test_put_file("hybrid/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
  assert_int_equal(threads_of("hybrid", 8), 2);
  test_put_file("hybrid/sys/fs/cgroup/unified/jobs/7/cpu.max", "100000 100000\n");
  assert_int_equal(threads_of("hybrid", 8), 1);
}

static void odd_files_are_survived(void **state) {
  (void)state;
  static const char *const texts[] = {"",       "\n",  "x",   "0 0\n", "100000 0", "-5 100000", "999999999999999999999999 1",
                                      "100000", "max", ":::", "0::",   "0:",       "0::/../.."};
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    test_put_file("odd/proc/self/mountinfo", mounts_v2);
    test_put_file("odd/proc/self/cgroup", "0::/\n");
    test_put_file("odd/sys/fs/cgroup/cpu.max", texts[i]);
    put_siblings("odd", 0, texts[i]);
    assert_int_equal(threads_of("odd", 4), 4);
    test_put_file("odd/proc/self/cgroup", texts[i]);
    test_put_file("odd/sys/fs/cgroup/cpu.max", "max 100000");
    assert_int_equal(threads_of("odd", 4), 4);
    test_put_file("odd/proc/self/mountinfo", texts[i]);
    assert_int_equal(threads_of("odd", 4), 4);
  }
}

static void this_machine(void **state) {
  (void)state;
  int n = workers_default_threads();
  assert_true(n >= 1 && n <= (int)sysconf(_SC_NPROCESSORS_CONF));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_item_once),
    cmocka_unit_test(sleep_and_wake),
    cmocka_unit_test(helpers_take_part),
    cmocka_unit_test(returns_when_all_are_done),
    cmocka_unit_test(idle_pool_uses_no_cpu),
    cmocka_unit_test(start_and_stop),
    cmocka_unit_test(fork_join_cost),
    cmocka_unit_test(threads_by_mask_and_core),
    cmocka_unit_test(threads_by_quota_v2),
    cmocka_unit_test(threads_by_quota_v1),
    cmocka_unit_test(threads_by_quota_hybrid),
    cmocka_unit_test(odd_files_are_survived),
    cmocka_unit_test(this_machine),
};
TEST_MAIN(tests)
