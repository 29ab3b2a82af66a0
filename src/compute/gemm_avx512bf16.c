/* gemm_avx512bf16.c — products of bf16 weights with rows rounded to bf16: vdpbf16ps, which adds two products to a float32.
 *
 * One pair of k of 16 weight rows is one register, a row's pair one broadcast dword. Only files named *_avx512bf16.c and *_amx.c may use AVX512_BF16.
 */
#include "compute/dot_bf16.h"

#include "compute/gemm_kern.h"

enum { ROWS_MAX = 8, PANELS_MAX = 4 }; /* as gemm_avx512.c's PLAIN_ROWS_MAX and PLAIN_PANELS_MAX */

#ifdef CYGNET_SIMDE
static ALWAYS_INLINE void store_bf16(uint16_t *y, const float *x, int n) {
  for (int i = 0; i < n; i++) y[i] = f32_to_bf16(x[i]);
}
#else
/* n <= 16 */
static ALWAYS_INLINE void store_bf16(uint16_t *y, const float *x, int n) {
  __m256bh v = _mm512_cvtneps_pbh(vec_load_n(x, n, 0));
  _mm256_mask_storeu_epi16(y, vec_first(n), (__m256i)v);
}
#endif

/* acc[row or panel] += n columns in pairs, ascending. One of n_rows and n_panels is 1. */
static ALWAYS_INLINE void products(const int n_rows, const int n_panels, const uint8_t *restrict p, size_t panel_bytes,
                                   const char *restrict x, size_t x_bytes, int n, float (*restrict acc)[GEMM_PANEL]) {
  const int ahead = vec_ahead_bytes();
  vec sum[ROWS_MAX];
  GEMM_UNROLL(8)
  for (int i = 0; i < n_rows * n_panels; i++) sum[i] = vec_load(acc[i]);
  for (int k = 0; k < n; k += 2, p += 64, x += 4) {
    GEMM_UNROLL(4)
    for (int panel = 0; panel < n_panels; panel++) {
      const uint8_t *at = p + (size_t)panel * panel_bytes;
      __m512i w = _mm512_loadu_si512(at);
      if (n_rows == 1) vec_ask(at, 1, ahead);
      GEMM_UNROLL(8)
      for (int r = 0; r < n_rows; r++) sum[panel + r] = dot(sum[panel + r], w, pair(x + (size_t)r * x_bytes));
    }
  }
  GEMM_UNROLL(8)
  for (int i = 0; i < n_rows * n_panels; i++) vec_store(acc[i], sum[i]);
}

/* One row of x: sums of several panels side by side, because those of one would wait for each other. */
static ALWAYS_INLINE void panels(const int n_panels, const uint8_t *restrict p, size_t panel_bytes, const void *x, int n,
                                 float (*restrict y)[GEMM_PANEL]) {
  products(1, n_panels, p, panel_bytes, x, 0, n, y);
}
void gemm_plain_one_bf16(float (*restrict y)[GEMM_PANEL], const uint8_t *restrict panel, size_t panel_bytes, int n_panels, const void *x,
                         int n) {
  memset(y, 0, (size_t)n_panels * sizeof *y);
  GEMM_BY_ROWS_4(n_panels, panels, panel, panel_bytes, x, n, y);
}

void gemm_plain_rows_bf16(const uint8_t *restrict panel, int n, int n_rows, const void *x, size_t x_bytes,
                          float (*restrict acc)[GEMM_PANEL]) {
  GEMM_BY_ROWS_8(n_rows, products, 1, panel, 0, x, x_bytes, n, acc);
}

void gemm_bf16_row(uint16_t *restrict y, const float *restrict x, int n) {
  for (int i = 0; i < n; i += 16) store_bf16(y + i, x + i, MIN(16, n - i));
  if (n % 2) y[n] = 0;
}
