/* tensor.h — a matrix of activations, and a matrix of weights.
 *
 * A tensor has two dimensions; a head axis is a stride, not a third dimension: q of shape [rows, n_q, head_dim] is a tensor of cols = n_q * head_dim.
 * Its memory is the device's (device.h): only where that is near may the host look into it. Parts of a tensor are made by arithmetic on the
 * address alone (tensor_at, tensor_rows, tensor_part).
 */
#ifndef CYGNET_TENSOR_H
#define CYGNET_TENSOR_H

#include "base/dtype.h"

struct tensor {
  enum dtype dtype; /* of activations: the device's choice; F32 on the CPU */
  int rows, cols;
  size_t row_bytes; /* distance of rows; a multiple of 64 */
  void *data;       /* on the device */
};

/* Of plain numbers only. */
static inline size_t tensor_elem_bytes(const struct tensor *t) { return dtype_info(t->dtype)->block_bytes; }
static inline void *tensor_at(const struct tensor *t, int row, int col) {
  return (char *)t->data + (size_t)row * t->row_bytes + (size_t)col * tensor_elem_bytes(t);
}
/* Rows [row, row + rows) and columns [col, col + cols) of the same memory. */
static inline struct tensor tensor_part(struct tensor t, int row, int rows, int col, int cols) {
  t.data = tensor_at(&t, row, col);
  t.rows = rows;
  t.cols = cols;
  return t;
}
/* For the host: of a tensor of F32 that it can read. */
static inline float *tensor_row(const struct tensor *t, int row) { return (float *)((char *)t->data + (size_t)row * t->row_bytes); }
/* The same memory with another number of rows (n <= rows allocated). */
static inline struct tensor tensor_rows(struct tensor t, int n) {
  t.rows = n;
  return t;
}

/* A weight matrix bound for products y = x·Wᵀ and for row look-up: [rows = n_out, cols = n_in].
 * `source` is the file's form (borrowed, mapped, read-only); `packed` is the device's own layout, NULL when the device computes from source. */
struct weight {
  enum dtype dtype; /* that products compute with */
  enum dtype from;  /* none: source has dtype. Else source's own type, and its numbers count as rounded to dtype (gemm_quant.h) */
  int rows, cols;
  size_t row_bytes; /* of source */
  const void *source;
  void *packed; /* owned by the device: device_ops.weight_free */
  size_t packed_bytes;
  int layout;   /* device's own note on packed */
  bool is_head; /* the output matrix: device_ops.head may keep something beside it */
  size_t shortlist_bytes;
  void *shortlist; /* shortlist.h; owned like packed; NULL: there is none */
};

#endif
