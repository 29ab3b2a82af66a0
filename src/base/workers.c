/* workers.c — fork-join over a pool of threads, for one loop or for a list of them.
 *
 * A loop is one 64-bit word, `tickets`: loop number in the upper half, items not yet taken in the lower. Whoever wants an
 * item takes one by compare-and-swap, which can succeed only in the loop it looked at. Where threads are bound to several memory nodes each
 * node has such a word of its own, for its share of the items: [share_end of the node before, share_end). That gives the invariants:
 *   - fn, ctx, n_items and the list's fields are read only by a worker that holds an item, and nobody overwrites them
 *     before every item is counted out of `n_left`: plain fields, no race.
 *   - A helper that comes late finds no tickets and touches nothing; everybody waits for items, never for helpers. A
 *     helper that the system has put aside, or that sleeps, delays nobody.
 * In a list, whoever counts out the last item of a loop opens the next one: that is the barrier, and it is a single hop. Loops of
 * one item it does at once by itself, with no barrier at all. n_left carries one more while the list goes on, so that the
 * caller, who waits for 0, sees only the end of all.
 *
 * Sleep: a helper counts itself in n_sleeping, looks at tickets again, then waits on the futex `wake_seq`; whoever opens a loop
 * publishes tickets, then looks at n_sleeping. Both sides are sequentially consistent, so one of them sees the other.
 *
 * Helpers are bound to no single CPU: a second process with the same mask would bind to the same ones. Nor is the caller bound to its node: its
 * mask is the program's, and its other threads inherit it. With the helpers bound, the core that is left over is one of node 0.
 */
#include "base/workers.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/workers_impl.h"

enum {
  THREADS_MAX = 1024,
  LINE_BYTES = 64,
  SPIN_US = 60,               /* longer than the serial parts of a decode step, shorter than anyone notices */
  SPIN_US_OVERSUBSCRIBED = 3, /* someone else needs this CPU */
  CLOCK_EVERY = 32,           /* pauses between two looks at the clock */
};

/* A contended word has its cache line. */
struct share {
  _Alignas(LINE_BYTES) _Atomic uint64_t tickets;
};

struct helper {
  struct workers *pool;
  int worker; /* 1 .. n_threads - 1 */
  int node;
  pthread_t thread;
};

struct workers {
  /* Set by whoever opens a loop, constant in it. */
  workers_fn fn;
  void *ctx;
  int share_end[TOPOLOGY_NODES_MAX]; /* items of node k and those before; of the last node: all */
  const struct launch *next, *end;   /* what follows in the list */

  int n_threads;
  int n_nodes;                              /* 1: nothing is bound, nothing shared out */
  int first_thread[TOPOLOGY_NODES_MAX + 1]; /* of node k: [first_thread[k], first_thread[k + 1]) */
  uint64_t memory_nodes;                    /* bits of the nodes' numbers */
  int n_started;                            /* helpers that exist */
  int64_t spin_ns;
  bool oversubscribed;   /* more threads than CPUs */
  bool running;          /* inside workers_run or a list */
  struct record *record; /* open */
  uint64_t n_runs;
  struct helper *helpers; /* [n_threads - 1] */

  struct share shares[TOPOLOGY_NODES_MAX]; /* [n_nodes] */
  _Alignas(LINE_BYTES) _Atomic int n_left; /* items not yet done, and 1 for the rest of the list */
  _Alignas(LINE_BYTES) _Atomic int n_sleeping;
  _Alignas(LINE_BYTES) _Atomic uint32_t wake_seq; /* futex word */
  _Atomic bool stopping;
  _Atomic bool in_list; /* a hint: more comes soon */
};

static ALWAYS_INLINE void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static ALWAYS_INLINE uint32_t tickets_left(uint64_t tickets) { return (uint32_t)tickets; }

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
static void futex_wake(_Atomic uint32_t *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }

static void wake_sleepers(struct workers *w, int n) {
  if (atomic_load(&w->n_sleeping) == 0) return;
  atomic_fetch_add(&w->wake_seq, 1);
  futex_wake(&w->wake_seq, n);
}

/* Nobody holds an item. From the first store of tickets on others take part, and from the last one on they may have done all and have opened
 * the next loop: so nothing of the pool is read then. Empty shares keep the word of some loop before, in which nothing is left. */
static void open_loop(struct workers *w, workers_fn fn, void *ctx, int n_items) {
  const bool goes_on = w->next != w->end;
  int n_share[TOPOLOGY_NODES_MAX], before = 0;
  w->fn = fn;
  w->ctx = ctx;
  for (int k = 0; k < w->n_nodes; k++) {
    int end = k + 1 < w->n_nodes ? (int)((int64_t)n_items * w->first_thread[k + 1] / w->n_threads) : n_items;
    n_share[k] = end - before;
    before = w->share_end[k] = end;
  }
  atomic_store_explicit(&w->n_left, n_items + goes_on, memory_order_relaxed);
  for (int k = 0; k < w->n_nodes; k++) {
    _Atomic uint64_t *tickets = &w->shares[k].tickets;
    if (n_share[k] == 0) continue;
    uint64_t loop = (atomic_load_explicit(tickets, memory_order_relaxed) >> 32) + 1;
    atomic_store(tickets, loop << 32 | (uint32_t)n_share[k]);
  }
  wake_sleepers(w, goes_on ? INT_MAX : n_items - 1);
}

/* Nobody holds an item. Go on in the list up to a loop that is worth sharing. */
static void open_next(struct workers *w, int worker) {
  while (w->next != w->end) {
    const struct launch *l = w->next++;
    int n_items = launch_items(l);
    if (n_items > 1) {
      open_loop(w, l->fn, l->ctx, n_items);
      return;
    }
    if (n_items == 1) l->fn(l->ctx, 0, worker);
  }
  atomic_store_explicit(&w->n_left, 0, memory_order_release);
}

/* Take an item: of the node's own share, then of the shares after it. -1: there is none. */
static ALWAYS_INLINE int take_item(struct workers *w, int node) {
  for (int i = 0, k = node; i < w->n_nodes; i++, k = k + 1 == w->n_nodes ? 0 : k + 1) {
    _Atomic uint64_t *tickets = &w->shares[k].tickets;
    uint64_t seen = atomic_load_explicit(tickets, memory_order_acquire);
    while (tickets_left(seen) > 0)
      if (atomic_compare_exchange_weak_explicit(tickets, &seen, seen - 1, memory_order_acquire, memory_order_acquire))
        return w->share_end[k] - (int)tickets_left(seen);
  }
  return -1;
}

/* Do items until none is left to take; count them all at once. */
static void work(struct workers *w, int worker, int node) {
  for (;;) {
    int n_mine = 0;
    bool goes_on = false;
    for (int item; (item = take_item(w, node)) >= 0; n_mine++) {
      goes_on = w->next != w->end;
      w->fn(w->ctx, item, worker);
    }
    if (n_mine == 0) return;
    int left = atomic_fetch_sub_explicit(&w->n_left, n_mine, memory_order_acq_rel) - n_mine;
    if (!goes_on || left != 1) return;
    open_next(w, worker);
  }
}

static bool items_left(struct workers *w, memory_order order) {
  for (int k = 0; k < w->n_nodes; k++)
    if (tickets_left(atomic_load_explicit(&w->shares[k].tickets, order)) > 0) return true;
  return false;
}

static bool something_to_do(struct workers *w) { return items_left(w, memory_order_seq_cst) || atomic_load(&w->stopping); }

/* Spin for a while; true when there is something to do. Within a list a helper gives its CPU away rather than sleep. */
static bool spin_for_work(struct workers *w) {
  int64_t start_ns = 0, spin_ns = w->spin_ns;
  do {
    for (int i = 0; i < CLOCK_EVERY; i++) {
      if (something_to_do(w)) return true;
      cpu_pause();
    }
    if (w->oversubscribed) sched_yield();
    if (start_ns == 0) start_ns = clock_ns();
    if (atomic_load_explicit(&w->in_list, memory_order_relaxed)) spin_ns = SPIN_US * 1000;
  } while (clock_ns() - start_ns < spin_ns);
  return false;
}

static void sleep_for_work(struct workers *w) {
  uint32_t seen = atomic_load(&w->wake_seq);
  atomic_fetch_add(&w->n_sleeping, 1);
  if (!something_to_do(w)) futex_wait(&w->wake_seq, seen);
  atomic_fetch_sub(&w->n_sleeping, 1);
}

static void *helper_main(void *arg) {
  struct helper *h = arg;
  struct workers *w = h->pool;
  for (;;) {
    work(w, h->worker, h->node);
    if (spin_for_work(w)) {
      if (atomic_load_explicit(&w->stopping, memory_order_acquire)) return NULL;
    } else {
      sleep_for_work(w);
    }
  }
}

/* Take part until all is done. The last items may be with helpers: they take microseconds as a rule; if not, or if a helper waits
 * for a CPU, let go of ours. */
static void work_until_done(struct workers *w) {
  for (int64_t spins = 0; atomic_load_explicit(&w->n_left, memory_order_acquire) != 0; spins++) {
    if (items_left(w, memory_order_relaxed)) {
      work(w, 0, 0);
      spins = 0;
    } else if (spins > (w->oversubscribed ? 200 : 20000)) {
      sched_yield();
    } else {
      cpu_pause();
    }
  }
}

void workers_run_now(struct workers *w, workers_fn fn, void *ctx, int n_items) {
  if (!w) {
    for (int i = 0; i < n_items; i++) fn(ctx, i, 0);
    return;
  }
  CHECK(!w->running);
  w->running = true;
  w->n_runs += n_items > 1;
  if (w->n_threads == 1 || n_items <= 1) {
    for (int i = 0; i < n_items; i++) fn(ctx, i, 0);
  } else {
    open_loop(w, fn, ctx, n_items);
    work_until_done(w);
  }
  w->running = false;
}

void workers_run(struct workers *w, workers_fn fn, void *ctx, int n_items) {
  CHECK(!w || !w->record); /* the list would lack it */
  workers_run_now(w, fn, ctx, n_items);
}

void workers_run_list(struct workers *w, const struct launch *list, int n_launches) {
  CHECK(!w->running);
  w->running = true;
  w->n_runs++;
  if (w->n_threads == 1) {
    for (int i = 0; i < n_launches; i++) {
      int n_items = launch_items(&list[i]);
      for (int item = 0; item < n_items; item++) list[i].fn(list[i].ctx, item, 0);
    }
  } else {
    w->next = list;
    w->end = list + n_launches;
    atomic_store_explicit(&w->n_left, 1, memory_order_relaxed);
    atomic_store_explicit(&w->in_list, true, memory_order_relaxed);
    open_next(w, 0);
    work_until_done(w);
    atomic_store_explicit(&w->in_list, false, memory_order_relaxed);
  }
  w->running = false;
}

struct record *workers_recording(const struct workers *w) {
  return w ? w->record : NULL;
}
void workers_set_recording(struct workers *w, struct record *r) { w->record = r; }

/* Signals belong to the program's own threads: helpers block them all. Errors come back as errno values. */
static int start_helper(struct helper *h) {
  sigset_t all, before;
  char name[16];
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&h->thread, NULL, helper_main, h);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != 0) return code;
  snprintf(name, sizeof name, "worker-%d", h->worker);
  pthread_setname_np(h->thread, name);
  return 0;
}

/* A wish: refusal costs speed. */
static void bind_helper(struct helper *h, const struct topology_node *node) {
  cpu_set_t set[CPUS_MAX / CPU_SETSIZE];
  CPU_ZERO_S(sizeof set, set);
  for (int cpu = 0; cpu < CPUS_MAX; cpu++)
    if (cpus_has(&node->cpus, cpu)) CPU_SET_S(cpu, sizeof set, set);
  pthread_setaffinity_np(h->thread, sizeof set, set);
}

static void share_out_nodes(struct workers *w, const struct topology *t) {
  w->n_nodes = t && w->n_threads > 1 ? t->n_nodes : 1;
  if (w->n_nodes == 1) return;
  topology_threads(t, w->n_threads, w->first_thread);
  for (int k = 0; k < w->n_nodes; k++)
    if (t->nodes[k].id < 64) w->memory_nodes |= UINT64_C(1) << t->nodes[k].id;
}

static int node_of(const struct workers *w, int worker) {
  int k = 0;
  while (k + 1 < w->n_nodes && worker >= w->first_thread[k + 1]) k++;
  return k;
}

static bool nodes_ignored;
void workers_ignore_nodes(bool on) { nodes_ignored = on; }

struct workers *workers_new(int n_threads, struct err *e) {
  struct topology t = {.n_nodes = 1};
  struct cpu_set_bits mask;
  cpus_own_mask(&mask);
  if (n_threads != 1 && !nodes_ignored) topology_read(&t, "/sys", &mask);
  return workers_new_on(n_threads, &t, true, e);
}

struct workers *workers_new_on(int n_threads, const struct topology *t, bool bind, struct err *e) {
  if (n_threads < 0 || n_threads > THREADS_MAX) {
    err_set(e, ERR_BAD_INPUT, "threads: expected 0 (as many as there are cores) to %d, found %d", THREADS_MAX, n_threads);
    return NULL;
  }
  if (n_threads == 0) n_threads = workers_default_threads();
  struct workers *w = mem_big_alloc(sizeof *w, "workers", e); /* page aligned, so the lines are lines */
  if (!w) return NULL;
  w->n_threads = n_threads;
  w->oversubscribed = n_threads > cpus_usable();
  w->spin_ns = (w->oversubscribed ? SPIN_US_OVERSUBSCRIBED : SPIN_US) * 1000;
  share_out_nodes(w, t);
  if (n_threads == 1) return w;
  w->helpers = mem_big_alloc((size_t)(n_threads - 1) * sizeof *w->helpers, "workers", e);
  if (!w->helpers) goto fail;
  for (; w->n_started < n_threads - 1; w->n_started++) {
    struct helper *h = &w->helpers[w->n_started];
    *h = (struct helper){.pool = w, .worker = w->n_started + 1, .node = node_of(w, w->n_started + 1)};
    int code = start_helper(h);
    if (code != 0) {
      err_set(e, ERR_IO, "workers: cannot start thread %d of %d: %s", h->worker + 1, n_threads, strerror(code));
      goto fail;
    }
    if (bind && w->n_nodes > 1) bind_helper(h, &t->nodes[h->node]);
  }
  return w;
fail:
  workers_delete(w);
  return NULL;
}

void workers_delete(struct workers *w) {
  if (!w) return;
  atomic_store(&w->stopping, true);
  wake_sleepers(w, INT_MAX);
  for (int i = 0; i < w->n_started; i++) pthread_join(w->helpers[i].thread, NULL);
  if (w->helpers) mem_big_free(w->helpers, (size_t)(w->n_threads - 1) * sizeof *w->helpers);
  mem_big_free(w, sizeof *w);
}

int workers_count(const struct workers *w) { return w ? w->n_threads : 1; }

uint64_t workers_runs(const struct workers *w) { return w ? w->n_runs : 0; }

int workers_nodes(const struct workers *w) { return w ? w->n_nodes : 1; }

uint64_t workers_memory_nodes(const struct workers *w) { return w ? w->memory_nodes : 0; }
