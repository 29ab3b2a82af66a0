/* batch.h — THE record that the scheduler hands to model and attention for one step.
 *
 * Filled by engine/batch.c, read by everyone, changed by nobody afterwards. Prefill, chunk, decode and any mix of them are the same record with
 * different numbers of rows: there is no mode flag that a kernel could branch on.
 *
 * There are no masks. Every mask of these models is one contiguous interval [lo, hi) of key positions per row and kind:
 *   full layer, causal       [0, p + 1)
 *   sliding layer            [kv_window_lo(p), p + 1)
 *   padding row              empty → output 0 by definition
 * (Pictures with attention in both directions move hi to the end of the picture; cross-attention counts in tokens of its bank.)
 */
#ifndef CYGNET_BATCH_H
#define CYGNET_BATCH_H

#include "kv/kv.h"

struct batch {
  int n_rows, n_seqs, n_out;
  int rows_max, seqs_max, out_max, pages_max; /* capacities, fixed at start */

  /* rows [n_rows]: one per token; rows of one sequence are contiguous, positions ascending by one */
  int32_t *token;
  int32_t *pos;
  int32_t *seq; /* index into the sequences below */

  /* sequences: rows of sequence s are q_start[s] .. q_start[s + 1] */
  int32_t *q_start; /* [n_seqs + 1] */

  /* what a row sees, by kind [n_rows] */
  int32_t *lo[KV_KINDS], *hi[KV_KINDS];

  /* where a row's key and value go, by kind [n_rows]: page id * P + offset; 0 = nowhere */
  int64_t *slot[KV_KINDS];

  /* page tables by kind [n_seqs, pages_max]: page of positions [i*P, (i+1)*P). Only entries that some row of the sequence sees are filled. */
  int32_t *page[KV_KINDS];

  /* rows whose logits are wanted [n_out], ascending */
  int32_t *out;
};

#endif
