/* gemm_quant.h — a matrix of plain numbers (F32, F16, BF16) used as if the file had held a quantised type.
 *
 *   weight from the file ── gemm_quant_mark ──► dtype = the type, from = the file's ── weight_bind (gemm_pack) ──► products
 *                                                                                  └── gemm_quant_row ──► rows that are looked up
 *
 * Every result is, to the bit, that of a file which was quantised beforehand with the same rounding (dtype_from_f32).
 * Fast levels quantise block by block while they pack: there is never a second copy of the matrix. The reference level keeps a quantised copy in
 * `packed` and computes from that. Marking costs nothing; a weight that is only looked up need not be bound.
 */
#ifndef CYGNET_GEMM_QUANT_H
#define CYGNET_GEMM_QUANT_H

#include "compute/tensor.h"

/* Let w (dtype, rows, cols, row_bytes, source as in the file; not bound yet) count as `to`: Q8_0 or Q4_0. Nothing happens where `to` is w's own type.
 * CHECKs that w holds plain numbers and that a row is whole blocks: weights_type decides. */
void gemm_quant_mark(struct weight *w, enum dtype to);
/* n numbers of a row of w's source from col on as float32, rounded as w's type rounds them; col and n are whole blocks. For look-ups, marked or not. */
void gemm_quant_part(const struct weight *w, int row, int col, int n, float *out);
static inline void gemm_quant_row(const struct weight *w, int row, float *out) { gemm_quant_part(w, row, 0, w->cols, out); }

/* For packing. Block b (dtype_info(w->dtype)->block_elems numbers) of a row of a marked weight, in the form of a file; the whole row. */
void gemm_quant_block(const struct weight *w, int row, int b, void *out);
void gemm_quant_row_bytes(const struct weight *w, int row, void *out);

#endif
