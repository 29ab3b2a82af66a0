/* t_topology.c — made-up machines of several memory nodes: who is where, when that is relied on, and how threads and items are shared out. */
#include "test.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/topology.h"
#include "base/workers.h"
#include "base/workers_impl.h"

static void put(const char *machine, const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s/%s", machine, path);
  test_put_file(full, text);
}

static void put_node(const char *machine, int node, const char *cpus, const char *distance) {
  char path[128];
  snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", node);
  put(machine, path, cpus);
  snprintf(path, sizeof path, "devices/system/node/node%d/distance", node);
  put(machine, path, distance);
}

static void put_lists(const char *machine, const char *cpus, const char *nodes, const char *with_memory) {
  put(machine, "devices/system/cpu/online", cpus);
  put(machine, "devices/system/node/online", nodes);
  if (with_memory) put(machine, "devices/system/node/has_memory", with_memory);
}

static int read_machine(struct topology *t, const char *machine, const char *mask_list) {
  char sys[512];
  struct cpu_set_bits mask;
  snprintf(sys, sizeof sys, "%s/%s", test_tmpdir(), machine);
  cpus_parse(&mask, mask_list);
  memset(t, 0x5a, sizeof *t);
  topology_read(t, sys, &mask);
  return t->n_nodes;
}

static void check_node(const struct topology *t, int k, int id, const char *cpus, int n_cores) {
  struct cpu_set_bits want;
  cpus_parse(&want, cpus);
  assert_int_equal(t->nodes[k].id, id);
  assert_int_equal(t->nodes[k].n_cores, n_cores);
  assert_memory_equal(&t->nodes[k].cpus, &want, sizeof want);
}

static void lists_of_cpus(void **state) {
  (void)state;
  static const struct {
    const char *list;
    int count, first, last;
  } rows[] = {{"0\n", 1, 0, 0},
              {"0-3,8\n", 5, 0, 8},
              {"5,7-9,63-65\n", 7, 5, 65},
              {"8000-9000\n", 192, 8000, 8191},
              {"99999999999\n", 0, 0, 0},
              {"", 0, 0, 0},
              {"x", 0, 0, 0},
              {"-3", 0, 0, 0},
              {"7-3\n", 0, 0, 0},
              {"3,x", 1, 3, 3}};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    struct cpu_set_bits s;
    cpus_parse(&s, rows[i].list);
    assert_int_equal(cpus_count(&s), rows[i].count);
    if (rows[i].count) assert_true(cpus_has(&s, rows[i].first) && cpus_has(&s, rows[i].last));
  }
}

static void two_nodes(void **state) {
  (void)state;
  struct topology t;
  put_lists("two", "0-7\n", "0-1\n", "0-1\n");
  put_node("two", 0, "0-1,4-5\n", "10 21\n");
  put_node("two", 1, "2-3,6-7\n", "21 10\n");
  assert_int_equal(read_machine(&t, "two", "0-7"), 2);
  check_node(&t, 0, 0, "0-1,4-5", 4); /* nothing is said of siblings: a CPU is a core */
  check_node(&t, 1, 1, "2-3,6-7", 4);
  for (int cpu = 0; cpu < 8; cpu++) {
    char path[128], list[32];
    snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    snprintf(list, sizeof list, "%d,%d\n", cpu % 4, cpu % 4 + 4);
    put("two", path, list);
  }
  assert_int_equal(read_machine(&t, "two", "0-7"), 2);
  check_node(&t, 0, 0, "0-1,4-5", 2);
  check_node(&t, 1, 1, "2-3,6-7", 2);
  assert_int_equal(read_machine(&t, "two", "0-100"), 2); /* a mask may name CPUs that there are not */
  static const char *const narrower[] = {"0-1,4-5", "2-3,6-7", "0-6", "1-7", "0", ""};
  for (size_t i = 0; i < ARRAY_LEN(narrower); i++) assert_int_equal(read_machine(&t, "two", narrower[i]), 1);
}

static void four_nodes(void **state) {
  (void)state;
  struct topology t;
  /* node 2 has no memory, node 7 no CPUs; numbers 3 to 5 are missing, CPU 9 is offline */
  put_lists("four", "0-8,10-11\n", "0-2,6-7\n", "0-1,6-7\n");
  put_node("four", 0, "0-2\n", "10 20 30 40 50\n");
  put_node("four", 1, "3-5\n", "20 10 30 40 50\n");
  put_node("four", 2, "6-7\n", "30 25 10 17 50\n");
  put_node("four", 6, "8,10-11\n", "40 30 17 10 50\n");
  put_node("four", 7, "\n", "50 50 50 50 10\n");
  assert_int_equal(read_machine(&t, "four", "0-11"), 3);
  check_node(&t, 0, 0, "0-2", 3);
  check_node(&t, 1, 1, "3-5", 3);
  check_node(&t, 2, 6, "6-8,10-11", 5);
  put_node("four", 2, "6-7\n", "30 25 10 26 50\n");
  assert_int_equal(read_machine(&t, "four", "0-8,10-11"), 3);
  check_node(&t, 1, 1, "3-7", 5);
  put_node("four", 2, "6-7\n", "30 25 10 26 11\n"); /* the nearest memory is that of node 7, which has no CPUs of its own */
  assert_int_equal(read_machine(&t, "four", "0-11"), 4);
  check_node(&t, 3, 7, "6-7", 2);
  assert_int_equal(read_machine(&t, "four", "0-10"), 1);
}

/* Nothing is relied on where files are missing, contradict one another, or are no lists. */
static void odd_machines(void **state) {
  (void)state;
  struct topology t;
  assert_int_equal(read_machine(&t, "nothing", "0-3"), 1);
  put("bare", "devices/system/cpu/online", "0-3\n");
  assert_int_equal(read_machine(&t, "bare", "0-3"), 1);
  put_lists("one", "0-3\n", "0\n", NULL);
  put_node("one", 0, "0-3\n", "10\n");
  assert_int_equal(read_machine(&t, "one", "0-3"), 1);
  put_lists("partly", "0-5\n", "0-1\n", NULL);
  put_node("partly", 0, "0-1\n", "10 20\n");
  put_node("partly", 1, "2-3\n", "20 10\n");
  assert_int_equal(read_machine(&t, "partly", "0-5"), 1); /* CPUs 4 and 5 are nowhere */
  put_node("partly", 1, "2-5\n", "20 10\n");
  assert_int_equal(read_machine(&t, "partly", "0-5"), 2); /* has_memory is missing: both have some */
  put("partly", "devices/system/node/has_memory", "0\n");
  assert_int_equal(read_machine(&t, "partly", "0-5"), 1); /* all memory is at node 0 */
  put_node("partly", 1, "2-5\n", "no numbers\n");
  assert_int_equal(read_machine(&t, "partly", "0-5"), 1);
  put_lists("many", "0-16\n", "0-16\n", NULL);
  for (int node = 0; node < TOPOLOGY_NODES_MAX + 1; node++) {
    char list[16];
    snprintf(list, sizeof list, "%d\n", node);
    put_node("many", node, list, "10\n");
  }
  assert_int_equal(read_machine(&t, "many", "0-16"), 1); /* more than there is room for */
  put("many", "devices/system/cpu/online", "0-15\n");
  put("many", "devices/system/node/online", "0-15\n");
  assert_int_equal(read_machine(&t, "many", "0-16"), TOPOLOGY_NODES_MAX);
}

static void threads_by_cores(void **state) {
  (void)state;
  uint64_t rng = 5;
  for (int round = 0; round < 3000; round++) {
    struct topology t = {.n_nodes = test_rand_int(&rng, 1, TOPOLOGY_NODES_MAX)};
    int first[TOPOLOGY_NODES_MAX + 1], cores = 0, threads = test_rand_int(&rng, 1, 300);
    for (int k = 0; k < t.n_nodes; k++) cores += t.nodes[k].n_cores = test_rand_int(&rng, 1, 64);
    if (round % 3 == 0) threads = cores;
    topology_threads(&t, threads, first);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[t.n_nodes], threads);
    for (int k = 0; k < t.n_nodes; k++) {
      double share = (double)threads * t.nodes[k].n_cores / cores;
      assert_true(first[k + 1] - first[k] > share - 1 && first[k + 1] - first[k] < share + 1);
      if (threads == cores) assert_int_equal(first[k + 1] - first[k], t.nodes[k].n_cores);
    }
  }
}

/* --- pools on machines that are not this one ---------------------------------------------------------------------------- */

static struct topology nodes_of(int n_nodes, int cores) {
  struct topology t = {.n_nodes = n_nodes};
  for (int k = 0; k < n_nodes; k++) {
    t.nodes[k].id = 2 * k;
    t.nodes[k].n_cores = cores;
  }
  return t;
}

enum { ITEMS_MAX = 3000, WORKERS_MAX = 8 };

struct tally {
  int done[ITEMS_MAX]; /* plain, so that a sanitizer sees an item done twice at once */
  int who[ITEMS_MAX];
  int n, seed;
};

static void count_item(void *ctx, int item, int worker) {
  struct tally *const *t = ctx;
  (*t)->done[item] += (*t)->seed;
  (*t)->who[item] = worker;
}

/* Whatever the nodes, every item is done once, in loops and in lists of loops, some of whose shares are empty. */
static void every_item_once(void **state) {
  (void)state;
  enum { LOOPS = 12 };
  static struct tally tallies[LOOPS];
  uint64_t rng = 9;
  for (int n_nodes = 1; n_nodes <= 4; n_nodes++)
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
      struct topology t = nodes_of(n_nodes, 1);
      struct workers *w = workers_new_on(n_threads, &t, false, NULL);
      struct record *r = record_new(LOOPS, 4096, NULL);
      assert_non_null(w);
      assert_int_equal(workers_nodes(w), n_threads == 1 ? 1 : n_nodes);
      for (int round = 0; round < 120; round++) {
        workers_record(w, r);
        for (int l = 0; l < LOOPS; l++) {
          struct tally *tally = &tallies[l];
          memset(tally, 0, sizeof *tally);
          tally->seed = 1;
          tally->n = round % 40 == 7 ? ITEMS_MAX : test_rand_int(&rng, 0, 9);
          workers_launch(w, count_item, &tally, sizeof tally, tally->n, NULL);
        }
        workers_record(w, NULL);
        for (int l = 0; l < LOOPS; l++) {
          for (int i = 0; i < tallies[l].n; i++) assert_int_equal(tallies[l].done[i], 1);
          tallies[l].seed = 10;
        }
        workers_replay(w, r);
        for (int l = 0; l < LOOPS; l++)
          for (int i = 0; i < tallies[l].n; i++) assert_int_equal(tallies[l].done[i], 11);
        record_clear(r);
      }
      record_delete(r);
      workers_delete(w);
    }
}

/* Rounds in which every worker has one item: nobody goes on before all have begun, so nobody is late. */
struct rounds {
  _Atomic int n_begun, n_elsewhere;
  int n_workers, per_node; /* items */
  int mine[WORKERS_MAX];   /* rounds that a worker has begun */
  int node_of[WORKERS_MAX];
  int *touched; /* [items] worker + 1 */
  bool first;
};

static void in_step(void *ctx, int item, int worker) {
  struct rounds *r = *(struct rounds **)ctx;
  int target = ++r->mine[worker] * r->n_workers;
  atomic_fetch_add(&r->n_begun, 1);
  while (atomic_load(&r->n_begun) < target) sched_yield();
  if (r->first) r->touched[item] = worker + 1;
  if (r->node_of[r->touched[item] - 1] != r->node_of[worker] || item / r->per_node != r->node_of[worker])
    atomic_fetch_add(&r->n_elsewhere, 1);
}

/* What the workers of a node touch first, as weights are when they are packed, they work on later. A worker that is just looking round when a loop
 * opens may see another share before its own, and then somebody's own share is one short in the end: two items for each worker, no more,
 * when all is touched and when it is worked on. */
static void touched_and_worked_on_at_one_node(void **state) {
  (void)state;
  static const struct { int n_nodes, cores, per_worker; } machines[] = {{2, 1, 60}, {2, 2, 50}, {4, 1, 50}, {4, 2, 30}, {3, 1, 50}};
  for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
    struct topology t = nodes_of(machines[m].n_nodes, machines[m].cores);
    int n_workers = t.n_nodes * machines[m].cores, n = n_workers * machines[m].per_worker;
    struct workers *w = workers_new_on(n_workers, &t, false, NULL);
    int *touched = mem_big_alloc_local((size_t)n * sizeof *touched, "touched", NULL);
    assert_int_equal(workers_nodes(w), t.n_nodes);
    uint64_t bits = 0;
    int n_elsewhere = 0;
    for (int k = 0; k < t.n_nodes; k++) bits |= UINT64_C(1) << (2 * k);
    assert_true(workers_memory_nodes(w) == bits);
    for (int pass = 0; pass < 6; pass++) {
      struct rounds r = {.n_workers = n_workers, .per_node = n / t.n_nodes, .touched = touched, .first = pass == 0}, *at = &r;
      for (int i = 0; i < n_workers; i++) r.node_of[i] = i / machines[m].cores;
      if (pass % 2) {
        struct record *list = record_new(1, 64, NULL);
        workers_record(w, list);
        workers_launch(w, in_step, &at, sizeof at, n, NULL);
        workers_record(w, NULL);
        atomic_store(&r.n_begun, 0);
        atomic_store(&r.n_elsewhere, 0);
        memset(r.mine, 0, sizeof r.mine);
        workers_replay(w, list);
        record_delete(list);
      } else {
        workers_run(w, in_step, &at, n);
      }
      for (int i = 0; i < n_workers; i++) assert_int_equal(r.mine[i], machines[m].per_worker);
      assert_true(r.n_elsewhere <= 4 * n_workers);
      n_elsewhere += r.n_elsewhere;
    }
    print_message("%d nodes, %d threads: %d of %d items elsewhere\n", t.n_nodes, n_workers, n_elsewhere, 6 * n);
    mem_big_free(touched, (size_t)n * sizeof *touched);
    workers_delete(w);
  }
}

/* The helper of node 1 is kept in its first item until the caller has done all others, those of its share, too. */
struct late {
  _Atomic int n_done, n_helper;
  int n;
};

static void wait_if_helper(void *ctx, int item, int worker) {
  struct late *l = ctx;
  if (worker == 0 && item == 0) {
    while (atomic_load(&l->n_helper) == 0) sched_yield();
  }
  if (worker == 1) {
    atomic_fetch_add(&l->n_helper, 1);
    while (atomic_load(&l->n_done) < l->n - 1) sched_yield();
  }
  atomic_fetch_add(&l->n_done, 1);
}

static void a_late_node_is_helped(void **state) {
  (void)state;
  struct topology t = nodes_of(2, 1);
  struct workers *w = workers_new_on(2, &t, false, NULL);
  for (int round = 0; round < 50; round++) {
    struct late l = {.n = 40};
    workers_run(w, wait_if_helper, &l, l.n);
    assert_int_equal(l.n_done, l.n);
    assert_int_equal(l.n_helper, 1);
  }
  workers_delete(w);
}

static void this_machine(void **state) {
  (void)state;
  struct cpu_set_bits mask;
  struct topology t;
  cpus_own_mask(&mask);
  topology_read(&t, "/sys", &mask);
  assert_true(t.n_nodes >= 1 && t.n_nodes <= TOPOLOGY_NODES_MAX);
  workers_ignore_nodes(true);
  struct workers *w = workers_new(4, NULL);
  assert_int_equal(workers_nodes(w), 1);
  assert_true(workers_memory_nodes(w) == 0);
  workers_delete(w);
  workers_ignore_nodes(false);
  t = nodes_of(2, 1);
  t.nodes[0].cpus = t.nodes[1].cpus = mask; /* binding to what is allowed works, and to nothing is refused without harm */
  for (int i = 0; i < 2; i++) {
    struct rounds r = {.n_workers = 2, .per_node = 1, .touched = (int[2]){0}, .node_of = {0, 1}, .first = true}, *at = &r;
    w = workers_new_on(2, &t, true, NULL);
    workers_run(w, in_step, &at, 2);
    workers_delete(w);
    memset(&t.nodes[1].cpus, 0, sizeof t.nodes[1].cpus);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(lists_of_cpus),
    cmocka_unit_test(two_nodes),
    cmocka_unit_test(four_nodes),
    cmocka_unit_test(odd_machines),
    cmocka_unit_test(threads_by_cores),
    cmocka_unit_test(every_item_once),
    cmocka_unit_test(touched_and_worked_on_at_one_node),
    cmocka_unit_test(a_late_node_is_helped),
    cmocka_unit_test(this_machine),
};
TEST_MAIN(tests)
