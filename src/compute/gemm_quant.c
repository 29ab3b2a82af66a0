/* gemm_quant.c — see gemm_quant.h. */
#include "compute/gemm_quant.h"

enum { BLOCK_MAX = 32, BLOCK_BYTES_MAX = 34 };

void gemm_quant_mark(struct weight *w, enum dtype to) {
  CHECK(!w->packed && w->from == DTYPE_NONE);
  if (to == w->dtype) return;
  CHECK(!dtype_info(w->dtype)->quantised && (to == DTYPE_Q8_0 || to == DTYPE_Q4_0) && w->cols % dtype_info(to)->block_elems == 0);
  w->from = w->dtype;
  w->dtype = to;
}

void gemm_quant_block(const struct weight *w, int row, int b, void *out) {
  float x[BLOCK_MAX];
  size_t n = (size_t)dtype_info(w->dtype)->block_elems, size = (size_t)dtype_info(w->from)->block_bytes;
  dtype_to_f32(w->from, (const char *)w->source + (size_t)row * w->row_bytes + (size_t)b * n * size, x, n);
  dtype_from_f32(w->dtype, x, out, n);
}

void gemm_quant_row_bytes(const struct weight *w, int row, void *out) {
  const struct dtype_info *to = dtype_info(w->dtype);
  for (int b = 0; b < w->cols / to->block_elems; b++) gemm_quant_block(w, row, b, (char *)out + (size_t)b * (size_t)to->block_bytes);
}

void gemm_quant_part(const struct weight *w, int row, int col, int n, float *out) {
  const struct dtype_info *info = dtype_info(w->dtype);
  int first = col / info->block_elems, n_blocks = n / info->block_elems;
  CHECK(row >= 0 && row < w->rows && col % info->block_elems == 0 && n % info->block_elems == 0 && col + n <= w->cols);
  if (!w->from) {
    const char *source = (const char *)w->source + (size_t)row * w->row_bytes;
    dtype_to_f32(w->dtype, source + (size_t)first * (size_t)info->block_bytes, out, (size_t)n);
    return;
  }
  uint8_t block[BLOCK_BYTES_MAX];
  for (int b = 0; b < n_blocks; b++) {
    gemm_quant_block(w, row, first + b, block);
    dtype_to_f32(w->dtype, block, out + (size_t)b * (size_t)info->block_elems, (size_t)info->block_elems);
  }
}
