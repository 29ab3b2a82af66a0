/* gemm_ref.c — the reference level: float32 activations times dequantised weights, in plain C.
 *
 * Order of one output: product k goes to lane k mod 8, ascending; lanes are added as a fixed tree. Four weight rows are dequantised once and
 * used for every row of x.
 */
#include "compute/gemm_kern.h"

enum { LANES = 8 };

typedef float quad __attribute__((vector_size(16))); /* lanes 0-3 or 4-7; plain arithmetic, on any machine */

static ALWAYS_INLINE quad load(const float *p) {
  quad v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* x · each of four rows of w, which lie one after another. */
static void dot4(float out[GEMM_REF_ROWS], const float *restrict w, const float *restrict x, int n) {
  const float *w0 = w, *w1 = w0 + n, *w2 = w1 + n, *w3 = w2 + n;
  quad a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
  int whole = n - n % LANES;
  for (int k = 0; k < whole; k += LANES) {
    quad xa = load(x + k), xb = load(x + k + 4);
    a0 += load(w0 + k) * xa;
    b0 += load(w0 + k + 4) * xb;
    a1 += load(w1 + k) * xa;
    b1 += load(w1 + k + 4) * xb;
    a2 += load(w2 + k) * xa;
    b2 += load(w2 + k + 4) * xb;
    a3 += load(w3 + k) * xa;
    b3 += load(w3 + k + 4) * xb;
  }
  const quad a[GEMM_REF_ROWS] = {a0, a1, a2, a3}, b[GEMM_REF_ROWS] = {b0, b1, b2, b3};
  for (int r = 0; r < GEMM_REF_ROWS; r++) {
    float l[LANES];
    memcpy(l, &a[r], sizeof a[r]);
    memcpy(l + 4, &b[r], sizeof b[r]);
    for (int k = whole; k < n; k++) l[k - whole] += w[(size_t)r * (size_t)n + (size_t)k] * x[k];
    out[r] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
  }
}

void gemm_ref_rows(const struct weight *w, const struct tensor *y, const struct tensor *x, int from, int to, float *scratch) {
  size_t cols = (size_t)w->cols;
  for (int row = from; row < to; row += GEMM_REF_ROWS) {
    int n_rows = MIN(GEMM_REF_ROWS, to - row);
    for (int r = 0; r < GEMM_REF_ROWS; r++) {
      float *out = scratch + (size_t)r * cols;
      if (r < n_rows) dtype_to_f32(w->dtype, (const char *)w->source + (size_t)(row + r) * w->row_bytes, out, cols);
      else memset(out, 0, cols * sizeof *out);
    }
    for (int i = 0; i < x->rows; i++) {
      float out[GEMM_REF_ROWS];
      dot4(out, scratch, tensor_row(x, i), w->cols);
      memcpy(tensor_row(y, i) + row, out, (size_t)n_rows * sizeof *out);
    }
  }
}

const struct gemm_kern gemm_ref = {.quantise_row = NULL};
