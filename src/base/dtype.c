/* dtype.c — number formats: the table, plain numbers, and the formats of 32 elements a block.
 *
 * Written for reading and for exactness, not for speed: one block at a time, each product and sum rounded to float32 in
 * the order of the `gguf` Python package. The 256-element formats are in dtype_kquants.c. Files are little-endian, and so
 * is every machine this runs on.
 */
#include "base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>

#include "base/dtype_blocks.h"

#define GGUF_TYPES 42

static const struct dtype_info infos[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4, false},      [DTYPE_F16] = {"F16", 1, 2, false},        [DTYPE_BF16] = {"BF16", 1, 2, false},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},   [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},     [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},
    [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},   [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},     [DTYPE_Q2_K] = {"Q2_K", 256, 84, true},
    [DTYPE_Q3_K] = {"Q3_K", 256, 110, true}, [DTYPE_Q4_K] = {"Q4_K", 256, 144, true},   [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, true}, [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, true}, [DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [DTYPE_I32] = {"I32", 1, 4, false},      [DTYPE_I64] = {"I64", 1, 8, false},        [DTYPE_U8] = {"U8", 1, 1, false},
    [DTYPE_F64] = {"F64", 1, 8, false},
};

/* Type numbers of GGUF files. A type without a dtype of ours is known by name only, so that a refusal can name it. */
static const struct {
  const char *name;
  enum dtype dtype;
} gguf_types[GGUF_TYPES] = {
    [0] = {"F32", DTYPE_F32},          [1] = {"F16", DTYPE_F16},          [2] = {"Q4_0", DTYPE_Q4_0},
    [3] = {"Q4_1", DTYPE_Q4_1},        [4] = {"Q4_2", DTYPE_NONE},        [5] = {"Q4_3", DTYPE_NONE},
    [6] = {"Q5_0", DTYPE_Q5_0},        [7] = {"Q5_1", DTYPE_Q5_1},        [8] = {"Q8_0", DTYPE_Q8_0},
    [9] = {"Q8_1", DTYPE_NONE},        [10] = {"Q2_K", DTYPE_Q2_K},       [11] = {"Q3_K", DTYPE_Q3_K},
    [12] = {"Q4_K", DTYPE_Q4_K},       [13] = {"Q5_K", DTYPE_Q5_K},       [14] = {"Q6_K", DTYPE_Q6_K},
    [15] = {"Q8_K", DTYPE_NONE},       [16] = {"IQ2_XXS", DTYPE_NONE},    [17] = {"IQ2_XS", DTYPE_NONE},
    [18] = {"IQ3_XXS", DTYPE_NONE},    [19] = {"IQ1_S", DTYPE_NONE},      [20] = {"IQ4_NL", DTYPE_IQ4_NL},
    [21] = {"IQ3_S", DTYPE_NONE},      [22] = {"IQ2_S", DTYPE_NONE},      [23] = {"IQ4_XS", DTYPE_IQ4_XS},
    [24] = {"I8", DTYPE_NONE},         [25] = {"I16", DTYPE_NONE},        [26] = {"I32", DTYPE_I32},
    [27] = {"I64", DTYPE_I64},         [28] = {"F64", DTYPE_F64},         [29] = {"IQ1_M", DTYPE_NONE},
    [30] = {"BF16", DTYPE_BF16},       [31] = {"Q4_0_4_4", DTYPE_NONE},   [32] = {"Q4_0_4_8", DTYPE_NONE},
    [33] = {"Q4_0_8_8", DTYPE_NONE},   [34] = {"TQ1_0", DTYPE_NONE},      [35] = {"TQ2_0", DTYPE_NONE},
    [36] = {"IQ4_NL_4_4", DTYPE_NONE}, [37] = {"IQ4_NL_4_8", DTYPE_NONE}, [38] = {"IQ4_NL_8_8", DTYPE_NONE},
    [39] = {"MXFP4", DTYPE_NONE},      [40] = {"NVFP4", DTYPE_NONE},      [41] = {"Q1_0", DTYPE_NONE},
};

const struct dtype_info *dtype_info(enum dtype t) {
  CHECK(t > DTYPE_NONE && t < DTYPE_COUNT);
  return &infos[t];
}

enum dtype dtype_by_name(const char *name) {
  for (int t = DTYPE_NONE + 1; t < DTYPE_COUNT; t++) {
    if (strcasecmp(infos[t].name, name) == 0) return (enum dtype)t;
  }
  return DTYPE_NONE;
}

enum dtype dtype_from_gguf(uint32_t ggml_type) { return ggml_type < GGUF_TYPES ? gguf_types[ggml_type].dtype : DTYPE_NONE; }

const char *dtype_gguf_name(uint32_t ggml_type) {
  static _Thread_local char unknown[24];
  if (ggml_type < GGUF_TYPES) return gguf_types[ggml_type].name;
  snprintf(unknown, sizeof unknown, "type %u", (unsigned)ggml_type);
  return unknown;
}

bool dtype_row_bytes(enum dtype t, size_t n, size_t *bytes) {
  const struct dtype_info *info = dtype_info(t);
  size_t block = (size_t)info->block_elems;
  return n % block == 0 && !size_mul_overflows(n / block, (size_t)info->block_bytes, bytes);
}

/* --- half precision ------------------------------------------------------------------------------------------------ */

static float f32_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static uint32_t bits_of_f32(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
  if (exponent == 31) return f32_of_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float v = (float)fraction * 0x1p-24f; /* subnormal, or zero: exact */
  return sign ? -v : v;
}

uint16_t f32_to_f16(float f) {
  uint32_t u = bits_of_f32(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
  if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
  if (a < 0x38800000) {
    /* Below the least normal half the unit is 2^-24, which is the last bit of a float in [0.5, 1): adding 0.5 rounds there. */
    return (uint16_t)(sign | (bits_of_f32(f32_of_bits(a) + 0.5f) - 0x3f000000));
  }
  a += 0xfff + (a >> 13 & 1);
  return (uint16_t)(sign | ((a >> 13) - (112 << 10)));
}

uint16_t f32_to_bf16(float f) {
  uint32_t u = bits_of_f32(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* --- blocks of 32: scale d (half), perhaps a minimum m (half), then the numbers --------------------------------------
 * Nibbles: byte i holds element i in its low half and element i + 16 in its high half. */

static void q4_0_block(const uint8_t *b, float *y) { /* d, 16 bytes of nibbles; y = d * (q - 8) */
  float d = block_f16(b);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (float)((b[2 + i] & 15) - 8);
    y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
  }
}

static void q4_1_block(const uint8_t *b, float *y) { /* d, m, 16 bytes of nibbles; y = d * q + m */
  float d = block_f16(b), m = block_f16(b + 2);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (float)(b[4 + i] & 15) + m;
    y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
  }
}

static void q5_0_block(const uint8_t *b, float *y) { /* d, 32 fifth bits, 16 bytes of nibbles; y = d * (q - 16) */
  float d = block_f16(b);
  uint32_t fifth = block_u32(b + 2);
  for (int i = 0; i < 16; i++) {
    int lo = (b[6 + i] & 15) | (int)(fifth >> i & 1) << 4, hi = b[6 + i] >> 4 | (int)(fifth >> (i + 16) & 1) << 4;
    y[i] = d * (float)(lo - 16);
    y[i + 16] = d * (float)(hi - 16);
  }
}

static void q5_1_block(const uint8_t *b, float *y) { /* d, m, 32 fifth bits, 16 bytes of nibbles; y = d * q + m */
  float d = block_f16(b), m = block_f16(b + 2);
  uint32_t fifth = block_u32(b + 4);
  for (int i = 0; i < 16; i++) {
    int lo = (b[8 + i] & 15) | (int)(fifth >> i & 1) << 4, hi = b[8 + i] >> 4 | (int)(fifth >> (i + 16) & 1) << 4;
    y[i] = d * (float)lo + m;
    y[i + 16] = d * (float)hi + m;
  }
}

static void q8_0_block(const uint8_t *b, float *y) { /* d, 32 signed bytes; y = d * q */
  float d = block_f16(b);
  for (int i = 0; i < 32; i++) y[i] = d * (float)(int8_t)b[2 + i];
}

static void iq4_nl_block(const uint8_t *b, float *y) { /* d, 16 bytes of nibbles; y = d * iq4_values[q] */
  float d = block_f16(b);
  for (int i = 0; i < 16; i++) {
    y[i] = d * (float)iq4_values[b[2 + i] & 15];
    y[i + 16] = d * (float)iq4_values[b[2 + i] >> 4];
  }
}

typedef void (*block_reader)(const uint8_t *block, float *y);

static const block_reader readers[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = q4_0_block, [DTYPE_Q4_1] = q4_1_block, [DTYPE_Q5_0] = q5_0_block,     [DTYPE_Q5_1] = q5_1_block,
    [DTYPE_Q8_0] = q8_0_block, [DTYPE_Q2_K] = q2_k_block, [DTYPE_Q3_K] = q3_k_block,     [DTYPE_Q4_K] = q4_k_block,
    [DTYPE_Q5_K] = q5_k_block, [DTYPE_Q6_K] = q6_k_block, [DTYPE_IQ4_NL] = iq4_nl_block, [DTYPE_IQ4_XS] = iq4_xs_block,
};

/* One plain number at p. */
static float plain_to_f32(enum dtype t, const uint8_t *p) {
  double f64;
  int64_t i64;
  switch (t) {
  case DTYPE_F16: return f16_to_f32(block_u16(p));
  case DTYPE_I32: return (float)(int32_t)block_u32(p);
  case DTYPE_I64: memcpy(&i64, p, 8); return (float)i64;
  case DTYPE_U8: return (float)*p;
  case DTYPE_F64: memcpy(&f64, p, 8); return (float)f64;
  default: check_failed(__FILE__, __LINE__, "a number format without conversion");
  }
}

void dtype_to_f32(enum dtype t, const void *src, float *dst, size_t n) {
  const struct dtype_info *info = dtype_info(t);
  const uint8_t *p = src;
  size_t block = (size_t)info->block_elems, block_bytes = (size_t)info->block_bytes;
  CHECK(n % block == 0);
  if (readers[t]) {
    for (size_t i = 0; i < n; i += block, p += block_bytes) readers[t](p, dst + i);
  } else if (t == DTYPE_F32) {
    memcpy(dst, p, n * sizeof *dst);
  } else if (t == DTYPE_BF16) {
    for (size_t i = 0; i < n; i++) dst[i] = bf16_to_f32(block_u16(p + 2 * i));
  } else {
    for (size_t i = 0; i < n; i++, p += block_bytes) dst[i] = plain_to_f32(t, p);
  }
}

/* --- from float32 ---------------------------------------------------------------------------------------------------- */

static void put_u16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }

/* Greatest magnitude among 32. Compared as integers: NaN is above infinity then. */
static float magnitude_32(const float *x) {
  uint32_t u[32], top = 0;
  memcpy(u, x, sizeof u);
  for (int i = 0; i < 32; i++) top = MAX(top, u[i] & 0x7fffffff);
  return f32_of_bits(top);
}

/* 1 / d; 0 where that has no float: a d so small is zero in half precision anyway. */
static float inverse_of(float d) {
  float inverse = 1 / d;
  return isfinite(inverse) ? inverse : 0;
}

/* A block with NaN or infinity gets d = NaN, never something finite. */
static void q8_0_from_f32(const float *x, uint8_t *b) {
  float top = magnitude_32(x), d = isfinite(top) ? top / 127 : NAN, inverse = inverse_of(d);
  int q[32];
  put_u16(b, f32_to_f16(d));
  if (!isfinite(top)) {
    memset(b + 2, 0, 32);
    return;
  }
  for (int i = 0; i < 32; i++) { /* roundf, halves away from zero; the fraction is exact */
    float v = x[i] * inverse;
    int whole = (int)v;
    float rest = v - (float)whole;
    q[i] = whole + (rest >= 0.5f) - (rest <= -0.5f);
  }
  for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)q[i];
}

/* The element of greatest magnitude (the first of equals) becomes exactly -8. */
static void q4_0_from_f32(const float *x, uint8_t *b) {
  float top = magnitude_32(x);
  int at = 0, q[32];
  if (!isfinite(top)) {
    put_u16(b, f32_to_f16(NAN));
    memset(b + 2, 0x99, 16); /* 1 each */
    return;
  }
  while (fabsf(x[at]) != top) at++;
  float d = x[at] / -8, inverse = inverse_of(d);
  put_u16(b, f32_to_f16(d));
  for (int i = 0; i < 32; i++) q[i] = MIN((int)(x[i] * inverse + 8.5f), 15);
  for (int i = 0; i < 16; i++) b[2 + i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

void dtype_from_f32(enum dtype t, const float *src, void *dst, size_t n) {
  const struct dtype_info *info = dtype_info(t);
  uint8_t *p = dst;
  size_t block = (size_t)info->block_elems, block_bytes = (size_t)info->block_bytes;
  CHECK(n % block == 0);
  for (size_t i = 0; i < n; i += block, p += block_bytes) {
    switch (t) {
    case DTYPE_F32: memcpy(p, src + i, 4); break;
    case DTYPE_F16: put_u16(p, f32_to_f16(src[i])); break;
    case DTYPE_BF16: put_u16(p, f32_to_bf16(src[i])); break;
    case DTYPE_Q8_0: q8_0_from_f32(src + i, p); break;
    case DTYPE_Q4_0: q4_0_from_f32(src + i, p); break;
    default: check_failed(__FILE__, __LINE__, "a number format that nothing is rounded into");
    }
  }
}
