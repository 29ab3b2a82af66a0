/* batch.h — THE record that the scheduler hands to model and attention for one step.
 *
 * Filled by engine/batch.c, read by everyone, changed by nobody afterwards. Prefill, chunk, decode and any mix of them are the same record with
 * different numbers of rows: there is no mode flag that a kernel could branch on.
 *
 * There are no masks. Every mask of these models is one contiguous interval [lo, hi) of key positions per row and kind:
 *   full layer, causal       [0, p + 1)
 *   sliding layer            [kv_window_lo(p), p + 1)
 *   padding row              empty → output 0 by definition
 *   row of a picture whose rows see each other in layers of this kind:  hi = end of the picture
 *   cross-attention          [first, last) of the sequence's banks, counted in rows of those; empty where no picture is seen
 *
 * Banks: the keys and values of pictures for cross-attention. A sequence's banks lie one after the other, each from a page on of its own.
 * Soft rows: rows of a picture or a sound take the place of a token's embedding. They lie in the model's store (model.h), put there by an
 * encoder.
 */
#ifndef CYGNET_BATCH_H
#define CYGNET_BATCH_H

#include "kv/kv.h"

enum { BATCH_CROSS = KV_KINDS, BATCH_KINDS }; /* kinds of attention layers: KV_FULL, KV_SLIDING, BATCH_CROSS */

struct batch {
  int n_rows, n_seqs, n_out;
  int n_soft;  /* rows with soft >= 0 */
  int n_cross; /* rows that see a bank; 0: cross-attention layers do nothing at all */
  int rows_max, seqs_max, out_max;
  int pages_max[BATCH_KINDS]; /* capacities, fixed at start; 0 = the model has no such layers */

  /* rows [n_rows]: one per token; rows of one sequence are contiguous, positions ascending by one */
  int32_t *token; /* of a row with soft >= 0: what looks up per-layer embeddings and its like, never the row itself */
  int32_t *soft;  /* row of the store, or -1 */
  int32_t *pos;
  int32_t *seq; /* index into the sequences below */

  /* sequences: rows of sequence s are q_start[s] .. q_start[s + 1] */
  int32_t *q_start; /* [n_seqs + 1] */

  /* what a row sees, by kind [n_rows] */
  int32_t *lo[BATCH_KINDS], *hi[BATCH_KINDS];

  /* where a row's key and value go, by kind [n_rows]: page id * P + offset; 0 = nowhere */
  int64_t *slot[KV_KINDS];

  /* page tables by kind [n_seqs, pages_max[kind]]: page of positions [i*P, (i+1)*P). Only entries that some row of the sequence sees are
   * filled. */
  int32_t *page[BATCH_KINDS];

  /* rows whose logits are wanted [n_out], ascending */
  int32_t *out;
  int32_t *n_best; /* [n_out]: how many of a row's greatest logits are wanted; 0: all; -1: none. NULL: all of all rows (device.h head) */
};

#endif
