/* attn.h — THE attention interface: storage of keys and values, and softmax(q·kᵀ·scale)·v over intervals.
 *
 * Rules
 *   1. prepare looks at the batch once per step and builds whatever tables the backend wants, in memory taken at start. run allocates nothing and
 *      decides nothing. A step may prepare a second time, for a batch of some of its rows that writes nothing, once all that is written has been:
 *      the runs that follow are that batch's.
 *   2. run learns everything about masks from lo/hi. A backend that cannot express an interval refuses in `open`; it never approximates.
 *   3. A row with an empty interval gives zeros.
 *   4. Page 0 of each pool is never handed out; its memory exists and absorbs stray writes. Slot 0 = the row writes nothing.
 *   5. The result of a row depends on its own q, its interval and the keys and values in it; to the bit it does not depend on other rows, on
 *      how the prompt was cut, on page size, or on threads: keys are walked in tiles and segments at absolute positions (ATTN_TILE,
 *      ATTN_SEGMENT), ascending; a key outside the interval contributes exactly nothing. In banks, which begin at pages, positions are
 *      counted from the row's first key instead.
 *   6. A stored key is stored as it would be recomputed: rounding to the cache's type happens per row and head (Q8_0: per 32 values).
 *   7. Rows of this step write before any row reads: a row may see other rows of the same step.
 *   8. Graph mode: prepare overwrites the contents of memory taken in open and moves none of it, so it is what refreshes a recorded step; run is
 *      nothing but launches (base/record.h) whose counts are read from that memory.
 *   9. A cross-attention layer is called with k = v = NULL: it reads banks, which fill wrote before; its query is never padded, its keys
 *      know no causality and no window, and their number has nothing to do with that of text rows (one query against thousands of keys is
 *      the ordinary case). No interval reaches over more than the pool holds.
 *  (5 holds for near devices. On an accelerator the shape of a call decides how its library adds up: there the same numbers come out within
 *  rounding, and to the bit only for the same batch by the same road.)
 *  10. Of the rows of a sequence, intervals need not grow with the row: rows of a picture end together, some see nothing, some another
 *      bank. In layers of text, whatever lies between two intervals of a step is seen by some row between those rows.
 * Every backend is compared with attn_ref by tests/compute/t_attn.c.
 */
#ifndef CYGNET_ATTN_H
#define CYGNET_ATTN_H

#include "base/workers.h"
#include "compute/batch.h"
#include "compute/kern.h"
#include "compute/tensor.h"

enum {
  ATTN_TILE = 32,     /* keys per softmax tile, at absolute positions */
  ATTN_SEGMENT = 256, /* keys per independently computed partial result, at absolute positions; a multiple of ATTN_TILE */
  ATTN_HEAD_DIM_MAX = 4096,
};

struct attn_layer {
  int kind;                /* KV_FULL, KV_SLIDING, BATCH_CROSS */
  int n_q, n_kv, head_dim; /* query head i uses kv head i / (n_q / n_kv) */
  float scale;
  int owner; /* layer whose keys and values are read; the layer itself unless it shares a donor's */
};

struct attn_config {
  const struct attn_layer *layers; /* copied */
  int n_layers;
  enum dtype kv_dtype; /* F32, F16, BF16, Q8_0 */
  int page_tokens;
  int n_pages[BATCH_KINDS];           /* without page 0 */
  int rows_max, seqs_max, tokens_max; /* tokens of a sequence: keys of text */
  int window;                         /* most keys that a row of a sliding layer sees; 0 = as many as there are. Sizes only: rule 2 */
  const struct kern *kern;
  struct workers *workers; /* borrows; may be NULL */
  struct device *device;   /* borrows; backends of far devices only */
};

struct attn;
struct attn_ops {
  const char *name;                                                 /* "cpu", "ref" */
  struct attn *(*open)(const struct attn_config *c, struct err *e); /* takes all memory; refuses what it cannot do with a sentence */
  void (*close)(struct attn *a);
  size_t (*bytes)(const struct attn_config *c);           /* that open takes, of the device's memory; SIZE_MAX when that is not a size */
  const char *(*no_records)(const struct attn *a);        /* NULL, or why its steps cannot be recorded, for a person; not there: they can */
  void (*prepare)(struct attn *a, const struct batch *b); /* b must live until the step's last run; for replay: be the same one each time */
  /* Contents of one page, in all layers of that kind. Before the step's first run. */
  void (*copy_page)(struct attn *a, enum kv_kind kind, int32_t from, int32_t to);
  /* Keys and values of a bank, k and v [rows, n_kv * head_dim], to slots of the cross pool. Between steps. */
  void (*fill)(struct attn *a, int layer, const struct tensor *k, const struct tensor *v, const int64_t *slot);
  /* q [n_rows, n_q * head_dim]; k, v [n_rows, n_kv * head_dim], or NULL when the layer reads a donor; out like q. In the device's type. */
  void (*run)(struct attn *a, int layer, const struct tensor *q, const struct tensor *k, const struct tensor *v, struct tensor *out);
};

extern const struct attn_ops attn_cpu_ops;    /* paged, tiled, online softmax, kernels of the chosen instruction set */
extern const struct attn_ops attn_ref_ops;    /* the oracle: float64 loops over the interval, ten lines of arithmetic */
extern const struct attn_ops attn_ascend_ops; /* ascend/attn.h */

/* What every backend asks of a configuration: types, shapes, donors. */
int attn_check(const struct attn_config *c, struct err *e);

/* Most keys that a row of a layer of that kind sees. */
size_t attn_keys_max(const struct attn_config *c, int kind);

/* Bytes of one token's keys and values in one layer, and of all that attn_cpu_ops.open would take; SIZE_MAX when that is not a size. */
size_t attn_slot_bytes(enum dtype kv_dtype, int n_kv, int head_dim);
size_t attn_bytes(const struct attn_config *c);

#endif
