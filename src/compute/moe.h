/* moe.h — a mixture of experts: each row goes through the few experts that its router chose.
 *
 *   p = softmax(logits) over all experts;  S = the n_used greatest, the lowest index on ties
 *   y = Σ over e in S, ascending:  (p_e / Σ_S p · scale_e) · Down_e (act(Gate_e x) ⊙ Up_e x)
 *
 * Rows are grouped by expert, so that a matrix is read once for all its rows. A *place* is one pair of row and expert; the places of an expert are
 * its *segment*, they lie one after another, and segments ascend by expert:
 *
 *   rows choose      r0: e1 e4   r1: e1 e2   r2: e1 e4
 *   segments         e1: r0 r1 r2 _    e2: r1    e4: r0 r2 _ _        each begins at a group of the product kernels (gemm_kern.h)
 *
 * Rules
 *   1. Row r of y depends on row r of x and of logits alone, to the bit (gemm.h rule 1); results are those of gemm for each matrix.
 *   2. A row with NaN among its logits, or +infinity, becomes NaN; it still chooses n_used different experts.
 *   3. Nothing is allocated; what depends on the rows' choices is decided inside launches (base/record.h) and kept in the scratch.
 */
#ifndef CYGNET_MOE_H
#define CYGNET_MOE_H

#include "compute/gemm.h"

struct moe { /* experts of one layer; those of a kind have one type, and gate and up are both quantised or of the same plain type */
  int n_experts, n_used;
  struct weight *gate, *up; /* [n_experts] of [ffn, hidden] */
  struct weight *down;      /* [n_experts] of [hidden, ffn] */
  const float *scale;       /* [n_experts] */
};

struct moe_shape { /* of the largest call; n_experts 0 = no experts */
  int rows_max, hidden, ffn, n_experts, n_used;
};

struct moe_place {
  int32_t row;
  float share; /* what the expert's result is multiplied with */
};
struct moe_segment {
  int32_t expert, place, n_rows;
};
struct moe_pair { /* of row and expert, by expert and then row */
  int32_t row, place, segment;
};

struct moe_rows { /* rows of x, or of what comes out of gate and up, place by place, in the form that the products want */
  int cols;
  size_t row_bytes; /* of plain */
  char *plain;      /* float32, or bf16 */
  int8_t *codes;
  struct gemm_block *blocks;
};

struct moe_scratch {
  struct moe_shape shape;
  int n_workers;
  void *data;
  size_t n_bytes;
  /* laid out in data */
  struct moe_plan *plan;
  int32_t *chosen; /* [rows_max, n_used] experts, ascending */
  float *share;    /* [rows_max, n_used] */
  int32_t *counts; /* [n_experts] */
  struct moe_pair *pairs;
  struct moe_place *places;
  struct moe_segment *segments;
  struct moe_rows x, mid;
  struct tensor act; /* [places, ffn]: act(gate) ⊙ up */
  char *per_worker;
  size_t per_worker_bytes;
};

size_t moe_scratch_bytes(const struct moe_shape *shape, int n_workers);
int moe_scratch_init(struct moe_scratch *s, const struct moe_shape *shape, int n_workers, struct err *e);
void moe_scratch_free(struct moe_scratch *s);

/* y [rows, hidden], x [rows, hidden], logits [rows, n_experts]. */
void moe(const struct kern *k, struct workers *workers, struct moe_scratch *s, const struct moe *m, struct tensor *y,
         const struct tensor *x, const struct tensor *logits, enum act act);

/* Choice of one row: n_used experts ascending, and their shares of the sum. */
void moe_route(const float *logits, const float *scale, int n_experts, int n_used, int32_t *chosen, float *share);

#endif
