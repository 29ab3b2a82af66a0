/* graph.h — graph mode: decoding steps as recorded lists of launches, one per bucket of rows.
 *
 *   rows live   1 2 3 4 5 6 7 8 9 10 11 12 13 ...        bucket: 1 2 3 4 5 6 7 8 12 16 20 ... max_running
 *
 * A step in which every row wants its logits (each decoding sequence's last token, and guesses behind it), which has no soft rows, and
 * which nobody taps, is padded up to its bucket and replayed from the bucket's record (base/record.h); any other step is eager. The first
 * step of a bucket is run and recorded at the same time, into memory that was taken at start (a device that runs nothing while it records
 * runs it first). A model with cross-attention has two records for each bucket: that of steps in which somebody sees a bank, and that of
 * the others, which leaves those layers out. Where a recording fails, so has the step (device_ops.finish); nothing is recorded any more then.
 *
 * The static buffers of all buckets are the arrays of the one struct batch: batch_build overwrites their contents, attn prepare overwrites the
 * backend's own; no pointer changes. A padding row is token 0 at position 0 of no sequence; it sees nothing, so its attention is 0, and it writes
 * nowhere (slot 0).
 *
 * Rules
 *   1. To the bit the same as eager, for the live rows.
 *   2. The model's code runs while recording only. So it must not decide anything by the contents of the batch, nor may the device: what is recorded
 *      are launches over static memory. An accelerator's stream capture has the same rule.
 *   3. Nothing is allocated after graph_new.
 */
#ifndef CYGNET_GRAPH_H
#define CYGNET_GRAPH_H

#include "models/model.h"

struct graph;

/* m and b are borrowed. rows_max: most rows that a decoding step can have. Returns owned. */
struct graph *graph_new(struct model *m, struct batch *b, int rows_max, struct err *e);
void graph_delete(struct graph *g); /* NULL is fine */
size_t graph_bytes(const struct model_config *c, const struct device_ops *ops, int rows_max);

/* Smallest bucket that holds n rows; 0 = none. */
int graph_bucket(int n_rows, int rows_max);
/* Logits of b's out rows, like model_forward; by replay where that is possible. g NULL = eager. b is as it was afterwards. */
struct tensor graph_forward(struct graph *g, struct model *m, struct batch *b);

struct graph_stats {
  uint64_t n_replayed, n_recorded; /* steps */
  int n_launches;                  /* of the list replayed last */
};
struct graph_stats graph_stats(const struct graph *g);

#endif
