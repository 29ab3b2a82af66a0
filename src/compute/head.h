/* head.h — the output matrix: logits, and what a sampler wants to know of them.
 *
 *     y = cap · tanh(x · wᵀ / cap), cap 0: x · wᵀ                       [rows, vocab]
 *     peaks[r][b] = the greatest logit of block b of row r              [rows, blocks of PEAK_BLOCK]
 *
 * A row of logits is a megabyte, and to say the likeliest token a sampler looks at 64 of them once it knows each block's greatest. So whoever computes
 * logits finds the peaks while they are in its first-level cache, and where no more than the n greatest are wanted, blocks that have none of
 * those are not written to memory at all:
 *
 *     up to 4 rows    most logits are not even computed where there is a coarse copy of w: shortlist.h
 *     up to 16 rows   on tiles: a worker keeps the n greatest peaks of each row that it has met, and drops blocks that are less than all of those
 *     others          all logits, then their peaks
 *
 * Rules
 *   1. Of row r the n_best[r] greatest logits are wanted, 0: all, -1: none; n_best NULL: all of all rows. Those, and whatever equals the least of
 *      them, have the bits of gemm and softcap.
 *   2. A block without any that is wanted may be left out: its peak is -inf, and what y has there means nothing. In other blocks a logit may be left out:
 *      -inf. Where nothing was left out a peak is the greatest of its block, NaN where one of them is.
 *   3. Without peaks (data NULL) a logit that is left out is -inf.
 */
#ifndef CYGNET_HEAD_H
#define CYGNET_HEAD_H

#include "compute/gemm.h"

void head_product(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *w, struct tensor *y,
                  struct tensor *peaks, const struct tensor *x, float cap, const int32_t *n_best);

/* Of one row; NULL where there are none. */
static inline float *head_peaks(const struct tensor *peaks, int row) { return peaks->data ? tensor_row(peaks, row) : NULL; }
static inline int head_blocks(int vocab) { return div_up(vocab, PEAK_BLOCK); }

#endif
