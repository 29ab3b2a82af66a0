/* link.h — how the shards of one model talk to each other.
 *
 * A model's products may be shared by several devices (docs/scaling.md): each holds some heads and a part of the hidden width of the MLPs, and the rows
 * that come out of a layer's two last products are added over all of them. That sum is all they say to each other.
 *
 *   shard 0   q k v of heads 0..3 ─► attention ─► Wo[:, heads 0..3]  ─┐
 *   shard 1   q k v of heads 4..7 ─► attention ─► Wo[:, heads 4..7]  ─┴─ sum ─► each has the same rows
 *
 * Rules
 *   1. All shards call the same ops on the same shapes in the same order.
 *   2. The sum goes in order of rank, wherever it is computed: the same bits everywhere, every time.
 *   3. A sum that cannot be had (a peer is gone) makes rows of NaN; the step then fails as it does for any NaN.
 *
 * What stands behind a link: threads of one process (below; also the oracle for tests), HCCL's all-reduce on the NPU's stream, MPI between machines.
 */
#ifndef CYGNET_LINK_H
#define CYGNET_LINK_H

#include "base/err.h"
#include "compute/tensor.h"

struct device_link {
  int rank, n; /* n >= 2 */
  void *ctx;
  void (*sum)(void *ctx, struct tensor *y); /* F32 rows on the host; far devices have their own */
};

struct link_threads;
/* Links of n threads of this process, for rows of up to floats_max numbers together. Returns owned. */
struct link_threads *link_threads_new(int n, size_t floats_max, struct err *e);
void link_threads_delete(struct link_threads *t);
const struct device_link *link_of_thread(const struct link_threads *t, int rank);

#endif
