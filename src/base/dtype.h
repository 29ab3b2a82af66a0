/* dtype.h — number formats of tensors: sizes, names, and the reference conversion of each to float32.
 *
 * The conversions here are the definition that every kernel is tested against: plain C, one block at a time, the same
 * float32 operations in the same order as the `gguf` Python package's dequantize, bit for bit.
 * Block layouts are those of the GGUF file format. 32-blocks: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL; 256-blocks: Q2_K ... Q6_K,
 * IQ4_XS; plain numbers are blocks of one.
 */
#ifndef CYGNET_DTYPE_H
#define CYGNET_DTYPE_H

#include <string.h>

#include "base/base.h"
#include "base/err.h"

enum dtype {
  DTYPE_NONE = 0,
  DTYPE_F32,
  DTYPE_F16,
  DTYPE_BF16,
  DTYPE_Q4_0,
  DTYPE_Q4_1,
  DTYPE_Q5_0,
  DTYPE_Q5_1,
  DTYPE_Q8_0,
  DTYPE_Q2_K,
  DTYPE_Q3_K,
  DTYPE_Q4_K,
  DTYPE_Q5_K,
  DTYPE_Q6_K,
  DTYPE_IQ4_NL,
  DTYPE_IQ4_XS,
  DTYPE_I32,
  DTYPE_I64,
  DTYPE_U8,
  DTYPE_F64, /* carried in files, never multiplied */
  DTYPE_COUNT
};

struct dtype_info {
  const char *name; /* "Q4_K", as people write it */
  int block_elems;  /* elements per block: 1, 32 or 256 */
  int block_bytes;
  bool quantised;
};

const struct dtype_info *dtype_info(enum dtype t); /* never NULL for 0 < t < DTYPE_COUNT */
enum dtype dtype_by_name(const char *name);        /* case-blind; DTYPE_NONE if unknown */
enum dtype dtype_from_gguf(uint32_t ggml_type);    /* DTYPE_NONE if not supported */
const char *dtype_gguf_name(uint32_t ggml_type);   /* name also of types we refuse, "type 250" style if unknown; static or thread-local */
/* Bytes of a row of n elements. Returns false when n is no multiple of the block or the product overflows. */
bool dtype_row_bytes(enum dtype t, size_t n, size_t *bytes);

/* Convert n elements (multiple of the block) from src to dst. */
void dtype_to_f32(enum dtype t, const void *src, float *dst, size_t n);
/* Round to nearest even into a plain or Q8_0/Q4_0 format: F32, F16, BF16, Q8_0, Q4_0 (tests, caches, --quant). */
void dtype_from_f32(enum dtype t, const float *src, void *dst, size_t n);

static inline float bf16_to_f32(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t f32_to_bf16(float f); /* nearest even; NaN stays NaN */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

#endif
