/* element.c — numbers: roundings, sums, and a tensor's elements of every type as floats and integers. No state of its own: what operators spend their
 * time with, which is why the search for races leaves it out (Makefile). */
#include "acl_emu/core.h"

#include <math.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------------------------------------------- */

uint16_t emu_to_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  if ((u & 0x7fffffffU) > 0x7f800000U) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float emu_from_bf16(uint16_t x) {
  uint32_t u = (uint32_t)x << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t emu_to_fp16(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffffU;
  if (a > 0x7f800000U) return (uint16_t)(sign | 0x7e00);
  if (a >= 0x47800000U) return (uint16_t)(sign | 0x7c00); /* 65536 and up */
  if (a < 0x38800000U) {                                  /* below the smallest normal: in units of 2^-24 */
    float scaled;
    memcpy(&scaled, &a, 4);
    return (uint16_t)(sign | (uint32_t)lrintf(scaled * 16777216.0F));
  }
  uint32_t r = a - 0x38000000U;
  r = (r + 0xfff + (r >> 13 & 1)) >> 13;
  return (uint16_t)(sign | (r > 0x7c00 ? 0x7c00 : r));
}
float emu_from_fp16(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000) << 16, e = x >> 10 & 31, m = x & 0x3ff, u;
  float f;
  if (e == 0) {
    f = (float)m * (1.0F / 16777216.0F);
    memcpy(&u, &f, 4);
    u |= sign;
  } else {
    u = e == 31 ? sign | 0x7f800000U | m << 13 : sign | (e + 112) << 23 | m << 13;
  }
  memcpy(&f, &u, 4);
  return f;
}
float emu_round(int type, float x) {
  return type == EMU_BF16 ? emu_from_bf16(emu_to_bf16(x)) : type == EMU_FLOAT16 ? emu_from_fp16(emu_to_fp16(x)) : x;
}

float emu_dot(const float *a, const float *b, int64_t n) {
  if (!emu.order) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
  }
  float strand[8] = {0}, sum = 0;
  for (int64_t i = n - 1; i >= 0; i--) strand[i & 7] += a[i] * b[i];
  for (int i = 0; i < 8; i++) sum += strand[i];
  return sum;
}
float emu_sum(const float *a, int64_t n) {
  if (!emu.order) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i];
    return sum;
  }
  float strand[8] = {0}, sum = 0;
  for (int64_t i = n - 1; i >= 0; i--) strand[i & 7] += a[i];
  for (int i = 0; i < 8; i++) sum += strand[i];
  return sum;
}

/* ---- elements ------------------------------------------------------------------------------------------------------------------- */

int64_t emu_at(const struct emu_tensor *t, int64_t i) {
  int64_t at = 0;
  if (t->contiguous) return i;
  for (int d = t->n_dims - 1; d >= 0; d--) {
    at += i % t->dims[d] * t->strides[d];
    i /= t->dims[d];
  }
  return at;
}
int64_t emu_index(const struct emu_tensor *t, const int64_t *index) {
  int64_t at = 0;
  for (int d = 0; d < t->n_dims; d++) at += index[d] * t->strides[d];
  return at;
}

#define AS(type_, at_) (((type_ *)(void *)t->data)[at_])
static int nibble(const struct emu_tensor *t, int64_t at) {
  unsigned byte = (unsigned char)t->data[at >> 1];
  int v = (int)(at & 1 ? byte >> 4 : byte & 15);
  return v < 8 ? v : v - 16;
}
double emu_load(const struct emu_tensor *t, int64_t at) {
  switch (t->type) {
  case EMU_FLOAT: return (double)AS(float, at);
  case EMU_FLOAT16: return (double)emu_from_fp16(AS(uint16_t, at));
  case EMU_BF16: return (double)emu_from_bf16(AS(uint16_t, at));
  case EMU_DOUBLE: return AS(double, at);
  default: return (double)emu_load_int(t, at);
  }
}
int64_t emu_load_int(const struct emu_tensor *t, int64_t at) {
  switch (t->type) {
  case EMU_INT8: return AS(int8_t, at);
  case EMU_UINT8: return AS(uint8_t, at);
  case EMU_BOOL: return AS(uint8_t, at) != 0;
  case EMU_INT16: return AS(int16_t, at);
  case EMU_UINT16: return AS(uint16_t, at);
  case EMU_INT32: return AS(int32_t, at);
  case EMU_UINT32: return AS(uint32_t, at);
  case EMU_INT64: return AS(int64_t, at);
  case EMU_UINT64: return (int64_t)AS(uint64_t, at);
  case EMU_INT4: return nibble(t, at);
  default: return (int64_t)emu_load(t, at);
  }
}
static int64_t bounded(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }
void emu_store_int(const struct emu_tensor *t, int64_t at, int64_t x) {
  switch (t->type) {
  case EMU_INT8: AS(int8_t, at) = (int8_t)bounded(x, INT8_MIN, INT8_MAX); break;
  case EMU_UINT8: AS(uint8_t, at) = (uint8_t)bounded(x, 0, UINT8_MAX); break;
  case EMU_BOOL: AS(uint8_t, at) = x != 0; break;
  case EMU_INT16: AS(int16_t, at) = (int16_t)bounded(x, INT16_MIN, INT16_MAX); break;
  case EMU_UINT16: AS(uint16_t, at) = (uint16_t)bounded(x, 0, UINT16_MAX); break;
  case EMU_INT32: AS(int32_t, at) = (int32_t)bounded(x, INT32_MIN, INT32_MAX); break;
  case EMU_UINT32: AS(uint32_t, at) = (uint32_t)bounded(x, 0, UINT32_MAX); break;
  case EMU_INT64:
  case EMU_UINT64: AS(int64_t, at) = x; break;
  case EMU_INT4: {
    unsigned char *byte = (unsigned char *)&t->data[at >> 1], v = (unsigned char)(bounded(x, -8, 7) & 15);
    *byte = (unsigned char)(at & 1 ? (*byte & 15) | v << 4 : (*byte & 0xf0) | v);
    break;
  }
  default: emu_store(t, at, (double)x);
  }
}
void emu_store(const struct emu_tensor *t, int64_t at, double x) {
  switch (t->type) {
  case EMU_FLOAT: AS(float, at) = (float)x; break;
  case EMU_FLOAT16: AS(uint16_t, at) = emu_to_fp16((float)x); break;
  case EMU_BF16: AS(uint16_t, at) = emu_to_bf16((float)x); break;
  case EMU_DOUBLE: AS(double, at) = x; break;
  case EMU_BOOL: AS(uint8_t, at) = x != 0; break;
  default: emu_store_int(t, at, isnan(x) ? 0 : x >= 9.2e18 ? INT64_MAX : x <= -9.2e18 ? INT64_MIN : (int64_t)x);
  }
}

void emu_load_row(const struct emu_tensor *t, int64_t at, int64_t stride, int64_t n, float *out) {
  if (t->type == EMU_FLOAT && stride == 1) memcpy(out, &AS(float, at), sizeof *out * (size_t)n);
  else if (t->type == EMU_FLOAT)
    for (int64_t i = 0; i < n; i++) out[i] = AS(float, at + i * stride);
  else if (t->type == EMU_BF16)
    for (int64_t i = 0; i < n; i++) out[i] = emu_from_bf16(AS(uint16_t, at + i * stride));
  else if (t->type == EMU_FLOAT16)
    for (int64_t i = 0; i < n; i++) out[i] = emu_from_fp16(AS(uint16_t, at + i * stride));
  else
    for (int64_t i = 0; i < n; i++) out[i] = (float)emu_load(t, at + i * stride);
}
void emu_store_row(const struct emu_tensor *t, int64_t at, int64_t stride, int64_t n, const float *x) {
  if (t->type == EMU_FLOAT && stride == 1) memcpy(&AS(float, at), x, sizeof *x * (size_t)n);
  else if (t->type == EMU_BF16)
    for (int64_t i = 0; i < n; i++) AS(uint16_t, at + i * stride) = emu_to_bf16(x[i]);
  else if (t->type == EMU_FLOAT16)
    for (int64_t i = 0; i < n; i++) AS(uint16_t, at + i * stride) = emu_to_fp16(x[i]);
  else
    for (int64_t i = 0; i < n; i++) emu_store(t, at + i * stride, (double)x[i]);
}
#undef AS

float *emu_floats(struct emu_call *c, const struct emu_tensor *t) {
  float *x = emu_scratch(c, sizeof *x * (size_t)(t->n ? t->n : 1));
  int64_t last = t->n_dims ? t->dims[t->n_dims - 1] : 1, stride = t->n_dims ? t->strides[t->n_dims - 1] : 1;
  if (t->contiguous) emu_load_row(t, 0, 1, t->n, x);
  else
    for (int64_t i = 0; i < t->n; i += last) emu_load_row(t, emu_at(t, i), stride, last, x + i);
  return x;
}
void emu_put_floats(const struct emu_tensor *t, const float *x) {
  int64_t last = t->n_dims ? t->dims[t->n_dims - 1] : 1, stride = t->n_dims ? t->strides[t->n_dims - 1] : 1;
  if (t->contiguous) emu_store_row(t, 0, 1, t->n, x);
  else
    for (int64_t i = 0; i < t->n; i += last) emu_store_row(t, emu_at(t, i), stride, last, x + i);
}
