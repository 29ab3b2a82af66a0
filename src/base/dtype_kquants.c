/* dtype_kquants.c — the formats of 256 elements a block.
 *
 * A block is cut into groups of 16 or 32 elements. Each group has a small integer scale (and for Q2_K, Q4_K, Q5_K a small
 * integer minimum) that multiplies the block's half-precision d (and dmin). The scale of a group is rounded to float32
 * before it meets an element: y = (d * scale) * q - (dmin * minimum).
 */
#include "base/dtype_blocks.h"

/* Byte offsets: scales[16] 0, 2-bit numbers[64] 16, d 80, dmin 82. scales: low nibble scale, high nibble minimum of 16 elements.
 * Each run of 32 bytes holds 128 elements: bits 0-1 the first 32, bits 2-3 the next, ... */
void q2_k_block(const uint8_t *b, float *y) {
  float d = block_f16(b + 80), dmin = block_f16(b + 82);
  for (int g = 0; g < 16; g++) {
    float scale = d * (float)(b[g] & 15), minimum = dmin * (float)(b[g] >> 4);
    const uint8_t *q = b + 16 + g / 8 * 32 + g % 2 * 16;
    int shift = g % 8 / 2 * 2;
    for (int i = 0; i < 16; i++) y[g * 16 + i] = scale * (float)(q[i] >> shift & 3) - minimum;
  }
}

/* Byte offsets: third bits[32] 0, 2-bit numbers[64] 32, scales[12] 96, d 108.
 * scales: 16 of 6 bits, less 32; low 4 bits in bytes 0-7 (groups 0-7 low nibbles, 8-15 high), high 2 bits in bytes 8-11.
 * The third bit of element e is bit e / 32 of byte e % 32; q = 2 bits - (third bit clear ? 4 : 0). */
void q3_k_block(const uint8_t *b, float *y) {
  float d = block_f16(b + 108);
  for (int g = 0; g < 16; g++) {
    int low = b[96 + g % 8] >> (g / 8 * 4) & 15, high = b[104 + g % 4] >> (g / 4 * 2) & 3;
    float scale = d * (float)((low | high << 4) - 32);
    const uint8_t *q = b + 32 + g / 8 * 32 + g % 2 * 16, *third = b + g % 2 * 16;
    int shift = g % 8 / 2 * 2;
    for (int i = 0; i < 16; i++) {
      int v = (q[i] >> shift & 3) - (third[i] >> (g / 2) & 1 ? 0 : 4);
      y[g * 16 + i] = scale * (float)v;
    }
  }
}

/* Scale and minimum of group g of 8 from the 12 bytes of Q4_K and Q5_K, 6 bits each: groups 0-3 in the low 6 bits of bytes
 * 0-3 (scale) and 4-7 (minimum); groups 4-7 have their low nibbles in bytes 8-11 and their high 2 bits atop bytes 0-7. */
static void scale_and_minimum(const uint8_t *s, int g, int *scale, int *minimum) {
  if (g < 4) {
    *scale = s[g] & 63;
    *minimum = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    *minimum = s[g + 4] >> 4 | s[g] >> 6 << 4;
  }
}

/* Byte offsets: d 0, dmin 2, scales[12] 4, nibbles[128] 16. Each run of 32 bytes holds two groups of 32: low nibbles, then high. */
void q4_k_block(const uint8_t *b, float *y) {
  float d = block_f16(b), dmin = block_f16(b + 2);
  for (int g = 0; g < 8; g++) {
    int s, m;
    scale_and_minimum(b + 4, g, &s, &m);
    float scale = d * (float)s, minimum = dmin * (float)m;
    const uint8_t *q = b + 16 + g / 2 * 32;
    int shift = g % 2 * 4;
    for (int i = 0; i < 32; i++) y[g * 32 + i] = scale * (float)(q[i] >> shift & 15) - minimum;
  }
}

/* Byte offsets: d 0, dmin 2, scales[12] 4, fifth bits[32] 16, nibbles[128] 48. As Q4_K; the fifth bit of group g is bit g. */
void q5_k_block(const uint8_t *b, float *y) {
  float d = block_f16(b), dmin = block_f16(b + 2);
  for (int g = 0; g < 8; g++) {
    int s, m;
    scale_and_minimum(b + 4, g, &s, &m);
    float scale = d * (float)s, minimum = dmin * (float)m;
    const uint8_t *fifth = b + 16, *q = b + 48 + g / 2 * 32;
    int shift = g % 2 * 4;
    for (int i = 0; i < 32; i++) {
      int v = (q[i] >> shift & 15) | (fifth[i] >> g & 1) << 4;
      y[g * 32 + i] = scale * (float)v - minimum;
    }
  }
}

/* Byte offsets: nibbles[128] 0, high 2 bits[64] 128, signed scales[16] 192 (one per 16 elements), d 208.
 * Each half block of 128 elements: 64 bytes of nibbles (64 elements low, 64 high), 32 bytes of high bits (4 times 32 elements). */
void q6_k_block(const uint8_t *b, float *y) {
  float d = block_f16(b + 208);
  for (int e = 0; e < 256; e++) {
    int half = e / 128, in_half = e % 128;
    int low = b[half * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
    int high = b[128 + half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3;
    float scale = d * (float)(int8_t)b[192 + e / 16];
    y[e] = scale * (float)((low | high << 4) - 32);
  }
}

/* Byte offsets: d 0, high 2 bits of scales 2 (u16), low 4 bits of scales[4] 4, nibbles[128] 8. Groups of 32, scale less 32;
 * nibbles as in IQ4_NL: 16 bytes a group, low halves first. */
void iq4_xs_block(const uint8_t *b, float *y) {
  float d = block_f16(b);
  uint16_t highs = block_u16(b + 2);
  for (int g = 0; g < 8; g++) {
    int low = b[4 + g / 2] >> (g % 2 * 4) & 15, high = highs >> (2 * g) & 3;
    float scale = d * (float)((low | high << 4) - 32);
    const uint8_t *q = b + 8 + g * 16;
    for (int i = 0; i < 16; i++) {
      y[g * 32 + i] = scale * (float)iq4_values[q[i] & 15];
      y[g * 32 + i + 16] = scale * (float)iq4_values[q[i] >> 4];
    }
  }
}
