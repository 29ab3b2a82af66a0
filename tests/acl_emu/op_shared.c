/* op_shared.c — see op_shared.h. */
#include "op_shared.h"

#include <string.h>

/* ---- phase 1 ---------------------------------------------------------------------------------------------------------------- */

int op_axis(struct emu_plan *p, int slot, int64_t dim) {
  int n = p->t[slot].n_dims > 0 ? p->t[slot].n_dims : 1;
  if (!emu_check(p, dim >= -n && dim < n, EMU_PARAM_INVALID, "dim is %lld, %s %s has axes from %d to %d", (long long)dim, p->t[slot].name,
                 emu_text(&p->t[slot]), -n, n - 1))
    return 0;
  return (int)(dim < 0 ? dim + n : dim);
}

bool op_same_type(struct emu_plan *p, int slot, int as) {
  if (!p->ok) return false;
  const struct emu_tensor *a = &p->t[slot], *b = &p->t[as];
  return emu_check(p, a->type == b->type, EMU_PARAM_INVALID, "%s is %s, it must have the type of %s, %s", a->name, emu_text(a), b->name,
                   emu_type_name(b->type));
}

bool op_same_shape(struct emu_plan *p, int slot, int as) {
  if (!p->ok) return false;
  const struct emu_tensor *a = &p->t[slot], *b = &p->t[as];
  return emu_check(p, emu_same_shape(a, b), EMU_PARAM_INVALID, "%s is %s, it must have the shape of %s, %s", a->name, emu_text(a), b->name,
                   emu_text(b));
}

bool op_rank(struct emu_plan *p, int slot, int least, int most) {
  const struct emu_tensor *t = &p->t[slot];
  return emu_check(p, t->n_dims >= least && t->n_dims <= most, EMU_PARAM_INVALID, "%s is %s, it must have %d to %d dimensions", t->name,
                   emu_text(t), least, most);
}

static int type_kind(int type) { /* bool, integer, float */
  return emu_is_float(type) ? 2 : emu_is_int(type) ? 1 : 0;
}

int op_promote(int a, int b) {
  if (a == b) return a;
  int ka = type_kind(a), kb = type_kind(b);
  if (ka != kb) return ka > kb ? a : b;
  if (ka == 2) return a == EMU_DOUBLE || b == EMU_DOUBLE ? EMU_DOUBLE : EMU_FLOAT;
  int ba = emu_element_bits(a), bb = emu_element_bits(b);
  if (ba == bb) return EMU_INT16; /* INT8 with UINT8 */
  return ba > bb ? a : b;
}

bool op_castable(int from, int to) { return type_kind(from) <= type_kind(to); }

uint64_t op_workspace(const struct emu_plan *p, uint64_t more) {
  uint64_t n_bytes = more;
  for (int i = 0; i < p->n; i++) {
    if (!p->t[i].contiguous) n_bytes += (uint64_t)p->t[i].n * (uint64_t)emu_element_bits(p->t[i].type) / 8 + 32;
  }
  return p->ok ? (n_bytes + 511) / 512 * 512 : 0;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------ */

int64_t op_line_length(const struct emu_tensor *t, int axis) { return t->n_dims > 0 ? t->dims[axis] : 1; }
int64_t op_line_stride(const struct emu_tensor *t, int axis) { return t->n_dims > 0 ? t->strides[axis] : 1; }

int64_t op_line_count(const struct emu_tensor *t, int axis) {
  int64_t n = 1;
  for (int d = 0; d < t->n_dims; d++)
    if (d != axis) n *= t->dims[d];
  return n;
}

int64_t op_line_start(const struct emu_tensor *t, int axis, int64_t line) {
  int64_t at = 0;
  for (int d = t->n_dims - 1; d >= 0; d--) {
    if (d == axis) continue;
    at += line % t->dims[d] * t->strides[d];
    line /= t->dims[d];
  }
  return at;
}

struct emu_tensor op_slice(const struct emu_tensor *t, int axis, int64_t index) {
  struct emu_tensor s = *t;
  s.data += index * t->strides[axis] * emu_element_bits(t->type) / 8;
  s.n_dims--;
  s.n = op_line_count(t, axis);
  s.contiguous = t->contiguous && axis == 0;
  for (int d = axis; d < s.n_dims; d++) {
    s.dims[d] = t->dims[d + 1];
    s.strides[d] = t->strides[d + 1];
  }
  return s;
}

void op_copy(const struct emu_tensor *to, const struct emu_tensor *from) {
  size_t size = (size_t)emu_element_bits(to->type) / 8;
  int axis = to->n_dims > 0 ? to->n_dims - 1 : 0;
  int64_t lines = to->n > 0 ? op_line_count(to, axis) : 0, length = op_line_length(to, axis);
  int64_t to_stride = op_line_stride(to, axis), from_stride = op_line_stride(from, axis);
  for (int64_t i = 0; i < lines; i++) {
    char *y = to->data + op_line_start(to, axis, i) * (int64_t)size;
    const char *x = from->data + op_line_start(from, axis, i) * (int64_t)size;
    if (to_stride == 1 && from_stride == 1) {
      memcpy(y, x, (size_t)length * size);
      continue;
    }
    for (int64_t j = 0; j < length; j++) memcpy(y + j * to_stride * (int64_t)size, x + j * from_stride * (int64_t)size, size);
  }
}

/* ---- products --------------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 8 };                                                         /* columns of w side by side */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias)); /* 4 sums that do not touch one another */

/* y[0..8) = row x times 8 rows of w: each sum goes in ascending order, as emu_dot does. */
static void products_8(const float *x, int64_t k, const float *w, float *y) {
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
  for (int64_t i = 0; i < k; i++) {
    float v = x[i];
    s0 += v * w[i];
    s1 += v * w[k + i];
    s2 += v * w[2 * k + i];
    s3 += v * w[3 * k + i];
    s4 += v * w[4 * k + i];
    s5 += v * w[5 * k + i];
    s6 += v * w[6 * k + i];
    s7 += v * w[7 * k + i];
  }
  y[0] = s0, y[1] = s1, y[2] = s2, y[3] = s3, y[4] = s4, y[5] = s5, y[6] = s6, y[7] = s7;
}

/* The same for many rows: w is turned to [k, 8] once, in `turned`. */
static void products_of_many(const float *x, int64_t m, int64_t k, const float *w, float *turned, float *y, int64_t y_stride) {
  for (int64_t b = 0; b < BLOCK; b++)
    for (int64_t i = 0; i < k; i++) turned[i * BLOCK + b] = w[b * k + i];
  for (int64_t r = 0; r < m; r++) {
    four lo = {0}, hi = {0};
    for (int64_t i = 0; i < k; i++) {
      lo += x[r * k + i] * *(const four *)(turned + i * BLOCK);
      hi += x[r * k + i] * *(const four *)(turned + i * BLOCK + 4);
    }
    *(four *)(y + r * y_stride) = lo;
    *(four *)(y + r * y_stride + 4) = hi;
  }
}

/* y[r*y_stride + j] = the product of row r of x [m, k] and row j of w [n, k], n up to BLOCK. */
static void products(const float *x, int64_t m, int64_t k, const float *w, int64_t n, float *turned, float *y, int64_t y_stride) {
  if (n == BLOCK && m > 2 && !emu_other_order()) {
    products_of_many(x, m, k, w, turned, y, y_stride);
    return;
  }
  for (int64_t r = 0; r < m; r++) {
    if (n == BLOCK && !emu_other_order()) {
      products_8(x + r * k, k, w, y + r * y_stride);
      continue;
    }
    for (int64_t j = 0; j < n; j++) y[r * y_stride + j] = emu_dot(x + r * k, w + j * k, k);
  }
}

/* y += v x */
static void add_scaled(float *y, const float *x, float v, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) *(four *)(y + i) += v * *(const four *)(x + i);
  for (; i < n; i++) y[i] += v * x[i];
}

void op_operands(enum op_operand as, float *x, int64_t n) {
  for (int64_t i = 0; as != OP_EXACT && i < n; i++) {
    if (as == OP_HALF) {
      x[i] = emu_round(EMU_FLOAT16, x[i]);
      continue;
    }
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) continue;
    bits = (bits + 0x7ffu + (bits >> 12 & 1u)) & ~0xfffu;
    memcpy(&x[i], &bits, sizeof bits);
  }
}

/* Column j of the view [k, n], which lies as [ceil(n / inner), ceil(k / 16), 16, inner] with inner rows of 32 bytes. */
static void nz_column(const struct emu_tensor *w, int64_t j, float *out) {
  int64_t k = w->dims[0], inner = w->storage_dims[w->n_storage_dims - 1], tall = w->storage_dims[w->n_storage_dims - 3] * 16;
  for (int64_t i = 0; i < k; i++) out[i] = (float)emu_load(w, j / inner * tall * inner + i * inner + j % inner);
}

static float round_to(int type, float x) {
  if (type != EMU_BF16) return emu_round(type, x);
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x; /* infinities and NaN are bf16 as they are, but for lost bits of a NaN */
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void load_codes(const struct emu_tensor *w, int64_t at, int64_t stride, int64_t n, float *out) {
  if (w->type == EMU_INT8) {
    const signed char *codes = (const signed char *)w->data;
    for (int64_t i = 0; i < n; i++) out[i] = (float)codes[at + i * stride];
  } else if (w->type == EMU_INT4) {
    for (int64_t i = 0; i < n; i++, at += stride) {
      int code = (unsigned char)w->data[at / 2] >> (at & 1) * 4 & 15;
      out[i] = (float)((code ^ 8) - 8);
    }
  } else {
    emu_load_row(w, at, stride, n, out);
  }
}

/* Row i of w [k, n]. */
static void dequantise_row(const struct op_scales *s, int64_t n, int64_t i, float *w) {
  const float *scale = s->scale + i / s->group * n, *offset = s->offset ? s->offset + i / s->group * n : NULL;
  for (int64_t j = 0; j < n; j++) w[j] = round_to(s->type, (w[j] + (offset ? offset[j] : 0.0f)) * scale[j]);
}

/* Column j of w [k, n]. */
static void dequantise_column(const struct op_scales *s, int64_t k, int64_t n, int64_t j, float *w) {
  for (int64_t from = 0, at = j; from < k; from += s->group, at += n) {
    int64_t to = from + s->group < k ? from + s->group : k;
    float scale = s->scale[at], offset = s->offset ? s->offset[at] : 0.0f;
    for (int64_t i = from; i < to; i++) w[i] = round_to(s->type, (w[i] + offset) * scale);
  }
}

/* Rows of w lie in order: add them one by one, which makes the same sums. */
static void multiply_by_rows(struct emu_call *c, const float *x, int64_t m, const struct emu_tensor *w, enum op_operand as,
                             const struct op_scales *scales, float *y) {
  int64_t k = w->dims[0], n = w->dims[1];
  float *row = emu_scratch(c, (size_t)n * sizeof *row);
  memset(y, 0, (size_t)(m * n) * sizeof *y);
  for (int64_t i = 0; i < k; i++) {
    load_codes(w, i * w->strides[0], 1, n, row);
    if (scales) dequantise_row(scales, n, i, row);
    op_operands(as, row, n);
    for (int64_t r = 0; r < m; r++) add_scaled(y + r * n, row, x[r * k + i], n);
  }
}

void op_multiply(struct emu_call *c, const float *x, int64_t m, const struct emu_tensor *w, enum op_operand as,
                 const struct op_scales *scales, float *y) {
  int64_t k = w->dims[0], n = w->dims[1];
  bool nz = w->format == EMU_NZ;
  if (!nz && w->strides[1] == 1 && n > 1 && !emu_other_order()) {
    multiply_by_rows(c, x, m, w, as, scales, y);
    return;
  }
  float *columns = emu_scratch(c, (size_t)(2 * BLOCK * k + 1) * sizeof *columns), *turned = columns + BLOCK * k;
  for (int64_t j = 0; j < n; j += BLOCK) {
    int64_t some = n - j < BLOCK ? n - j : BLOCK;
    for (int64_t b = 0; b < some; b++) {
      float *column = columns + b * k;
      if (nz) nz_column(w, j + b, column);
      else load_codes(w, (j + b) * w->strides[1], w->strides[0], k, column);
      if (scales) dequantise_column(scales, k, n, j + b, column);
    }
    op_operands(as, columns, some * k);
    products(x, m, k, columns, some, turned, y + j, n);
  }
}
