/* gemm.h — y = x·Wᵀ for every type of weight, and the layouts that make it fast.
 *
 * Rules
 *   1. Row r of y depends on row r of x alone, to the bit: the same whether it is computed beside 0 or 511 other rows, whichever thread does it.
 *      Per output element there is one order: ascending blocks of k, one accumulator. No split over k.
 *   2. Fast levels multiply quantised weights (unpacked to integers) with 8-bit activations: per row and block of 32 a scale d = max|x| / 127
 *      and q = round(x / d). Integer sums inside a block are exact; the only float order is over blocks.
 *      bf16 weights: bf16 products (avx512; denormal numbers count as zeros) or float32 (avx2). f16 and f32 weights: float32.
 *      avx512+amx alone multiplies quantised weights, too, as bf16, by activations in bf16 (gemm_tiles.h).
 *   3. The reference level multiplies float32 activations with dequantised weights straight from the file's bytes: it must meet float32 bounds.
 *   4. Packing keeps every bit of a weight: unpacking gives exactly what dtype_to_f32 gives.
 *   5. NaN or infinity in a row of x makes that row's outputs not finite (fast levels, quantised weights: NaN), never silently finite. Blocks of
 *      activations that are all below 2^-120 count as zeros there.
 *   6. A product is launches (base/record.h) that keep the pointers W[i], and x and y by value.
 *
 * Layout of packed weights (fast levels): panels of GEMM_PANEL = 16 rows; within a panel blocks of 32 k; within a block groups of 4 k × 16 rows = 64
 * bytes of codes (u8, or nibbles plus bit planes), so that one 64-byte (or two 32-byte) loads feed 16 outputs; scales of the 16 rows lie beside
 * the block. Details: gemm_pack.h.
 */
#ifndef CYGNET_GEMM_H
#define CYGNET_GEMM_H

#include "base/workers.h"
#include "compute/kern.h"
#include "compute/tensor.h"

enum { GEMM_PANEL = 16 };

/* Bytes that packing w for this level takes; 0 when the level computes from the file's own bytes. Marked weights (gemm_quant.h): of the type that they
 * count as, on every level. */
size_t gemm_packed_bytes(const struct kern *k, const struct weight *w);
/* Fill w->packed (page-aligned memory of gemm_packed_bytes, given by the caller) from w->source, rows spread over workers. A marked weight of the
 * reference level has its copy for a source afterwards. */
void gemm_pack(const struct kern *k, struct workers *workers, struct weight *w);
/* Row of a bound weight as float32: from its packed form where it has one (rule 4: the same bits), so that the file's pages stay out of memory; else
 * from its source. */
void gemm_weight_row(const struct kern *k, const struct weight *w, int row, float *out);

/* Can this level multiply this type and width? Sentence if not (cols no multiple of the type's block cannot occur). */
bool gemm_supports(const struct kern *k, enum dtype t, int cols, struct err *e);

/* Scratch for products of up to rows_max rows of x, cols_max wide, on n_workers threads. */
struct gemm_scratch {
  void *data;
  size_t n_bytes;
  int rows_max, cols_max, n_workers;
};
size_t gemm_scratch_bytes(int rows_max, int cols_max, int n_workers);

/* y[i] = x · W[i]ᵀ for i < n_w: several weights that share one x (q, k, v; gate, up). x [rows, cols], y[i] [rows, W[i]->rows]. All F32. */
void gemm(const struct kern *k, struct workers *workers, struct gemm_scratch *s, int n_w, const struct weight *const *w,
          struct tensor *const *y, const struct tensor *x);

/* Some panels of one weight: those whose byte is GEMM_WANTED, when the launch runs; columns of y that the others stand for stay as they are. again: x
 * has not changed since the last call of this function, nor has the scratch been used. */
enum gemm_wanted { GEMM_UNWANTED, GEMM_WANTED, GEMM_DONE };
void gemm_panels(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *w, struct tensor *y,
                 const struct tensor *x, const uint8_t *wanted, bool again);

/* y = act(x · gateᵀ) ⊙ (x · upᵀ), without either of the products ever being in memory as a whole: the bits of gemm and kern's gated. y is not x.
 * Only where gemm_gated_supports says so: on tiles, and for few rows of codes. (Many rows of codes are 5 % slower this way.) */
bool gemm_gated_supports(const struct kern *k, const struct weight *gate, const struct weight *up, int rows);
void gemm_gated(const struct kern *k, struct workers *workers, struct gemm_scratch *s, const struct weight *gate, const struct weight *up,
                struct tensor *y, const struct tensor *x, enum act act);

#endif
