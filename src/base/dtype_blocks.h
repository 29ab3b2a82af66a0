/* dtype_blocks.h — what dtype.c and dtype_kquants.c share: reading little-endian numbers inside blocks, the 256-element
 * readers. For these two files only. */
#ifndef CYGNET_DTYPE_BLOCKS_H
#define CYGNET_DTYPE_BLOCKS_H

#include "base/dtype.h"

static inline uint16_t block_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
static inline uint32_t block_u32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
static inline float block_f16(const uint8_t *p) { return f16_to_f32(block_u16(p)); }

/* The sixteen levels of IQ4_NL and IQ4_XS: closer together around zero, where weights are dense. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* One block to y[256]. */
void q2_k_block(const uint8_t *b, float *y);
void q3_k_block(const uint8_t *b, float *y);
void q4_k_block(const uint8_t *b, float *y);
void q5_k_block(const uint8_t *b, float *y);
void q6_k_block(const uint8_t *b, float *y);
void iq4_xs_block(const uint8_t *b, float *y);

#endif
