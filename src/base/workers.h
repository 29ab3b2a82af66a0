/* workers.h — the thread pool: one caller, n_threads - 1 helpers, fork-join in about a microsecond.
 *
 * Rules
 *   1. The calling thread is worker 0. A pool of one thread starts no threads and takes no locks.
 *   2. workers_run calls fn(ctx, item, worker) exactly once for every item in [0, n_items), in any order on any
 *      worker, and returns when all are done. Results must not depend on which worker did what.
 *   3. Between runs helpers spin for spin_us and then sleep on a futex: an idle process uses no CPU.
 *   4. workers_run is not reentrant and belongs to one thread.
 *   5. On a machine with several memory nodes (topology.h) each helper is bound to the CPUs of one, and the items of a loop are shared out over the nodes
 *      in order, by their threads: whoever is at a node takes of its share first, then of the others'. So what the items of one loop wrote
 *      first is near those who do the same part of another loop. On any other machine nothing is bound and there is one share.
 *
 * Number of threads: as many as this process may really use: min(CPUs in the affinity mask, cgroup v1/v2 quota
 * rounded up), and among those one per physical core. Never what the host has.
 */
#ifndef CYGNET_WORKERS_H
#define CYGNET_WORKERS_H

#include "base/base.h"
#include "base/err.h"

struct workers;

typedef void (*workers_fn)(void *ctx, int item, int worker);

/* n_threads 0 = workers_default_threads(). Returns owned; NULL and *e on failure. */
struct workers *workers_new(int n_threads, struct err *e);
void workers_delete(struct workers *w);
int workers_count(const struct workers *w); /* NULL counts as 1 */

/* w may be NULL: then everything runs here, in order. */
void workers_run(struct workers *w, workers_fn fn, void *ctx, int n_items);
/* Number of fork-joins so far, for counting them per step. */
uint64_t workers_runs(const struct workers *w);

/* Memory nodes that threads are bound to, 1: none; and the bits of their numbers, 0: none. */
int workers_nodes(const struct workers *w);
uint64_t workers_memory_nodes(const struct workers *w);
/* Pools made from now on take every machine for one with a single memory. One switch for the process. */
void workers_ignore_nodes(bool on);

int workers_default_threads(void);
/* The same from explicit places, for tests: roots that replace "/proc", "/sys"; the mask is the first n_affinity CPUs. */
int workers_threads_from(const char *proc_root, const char *sys_root, int n_affinity);

#endif
