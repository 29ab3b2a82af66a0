/* op_elementwise.c — operators that give every element from elements at the same place: arithmetic, activations, casts, copies, masks.
 *
 * One routine walks lines of the output and of the inputs, broadcast to its shape. Floats are computed in float32 and rounded to the promoted
 * type and then to the output's; integers are computed in 64 bits.
 */
#include "op_shared.h"

#include <math.h>

enum kind {
  ADD,         /* x + a y */
  MUL,         /* x y */
  ADDS,        /* x + a */
  MULS,        /* x a */
  CLAMP,       /* a <= x <= b, where there is one */
  COPY,        /* x */
  LESS,        /* x < a */
  GREATER,     /* x > a */
  WHERE,       /* x ? y : z */
  MASKED_FILL, /* y ? a : x */
  FILL,        /* a */
  GELU_ERF,
  GELU_TANH,
  SILU,
  SIGMOID,
  RELU,
  TANH,
};

enum { INPUTS_MAX = 3, CHUNK = 512 };

struct elementwise {
  enum kind kind;
  int n_in, in[INPUTS_MAX], out; /* slots */
  int type;                      /* the promoted one */
  bool has_a, has_b;
  double a, b;
};

/* ---- run -------------------------------------------------------------------------------------------------------------------- */

/* t[0..n_in) are inputs with the shape of t[n_in], the output. */
struct walk {
  struct emu_tensor t[INPUTS_MAX + 1];
  int axis;
  int64_t lines, length;
};

static void walk_begin(struct walk *w, struct emu_call *c, const struct elementwise *e) {
  const struct emu_tensor *out = &c->t[e->out];
  bool flat = out->contiguous;
  w->t[e->n_in] = *out;
  for (int i = 0; i < e->n_in; i++) {
    const struct emu_tensor *in = &c->t[e->in[i]];
    flat = flat && in->contiguous && emu_same_shape(in, out);
    w->t[i] = emu_broadcast(in, out);
  }
  if (flat || out->n_dims == 0) {
    for (int i = 0; i <= e->n_in; i++) {
      w->t[i].n_dims = 1;
      w->t[i].dims[0] = out->n;
      w->t[i].strides[0] = 1;
    }
  }
  w->axis = w->t[e->n_in].n_dims - 1;
  w->lines = out->n > 0 ? op_line_count(&w->t[e->n_in], w->axis) : 0;
  w->length = op_line_length(&w->t[e->n_in], w->axis);
}

static float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
/* (1 + tanh u) / 2 is sigmoid(2 u) */
static float gelu_tanh(float x) { return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

static float clamp(const struct elementwise *e, float x) {
  if (e->has_a && x < (float)e->a) x = (float)e->a;
  if (e->has_b && x > (float)e->b) x = (float)e->b;
  return x;
}

static void compute(const struct elementwise *e, float in[][CHUNK], float *out, int64_t n) {
  const float *x = in[0], *y = in[1], *z = in[2], a = (float)e->a;
#define EACH(value)                                                                                                                        \
  for (int64_t i = 0; i < n; i++) out[i] = (value);                                                                                        \
  break
  switch (e->kind) {
  case ADD: EACH(x[i] + a * y[i]);
  case MUL: EACH(x[i] * y[i]);
  case ADDS: EACH(x[i] + a);
  case MULS: EACH(x[i] * a);
  case CLAMP: EACH(clamp(e, x[i]));
  case COPY: EACH(x[i]);
  case LESS: EACH(x[i] < a);
  case GREATER: EACH(x[i] > a);
  case WHERE: EACH(x[i] != 0 ? y[i] : z[i]);
  case MASKED_FILL: EACH(y[i] != 0 ? a : x[i]);
  case FILL: EACH(a);
  case GELU_ERF: EACH(gelu_erf(x[i]));
  case GELU_TANH: EACH(gelu_tanh(x[i]));
  case SILU: EACH(x[i] * sigmoid(x[i]));
  case SIGMOID: EACH(sigmoid(x[i]));
  case RELU: EACH(x[i] > 0 ? x[i] : x[i] != x[i] ? x[i] : 0);
  case TANH: EACH(tanhf(x[i]));
  }
#undef EACH
}

static int64_t compute_int(const struct elementwise *e, const int64_t *in) {
  int64_t x = in[0], y = in[1], a = (int64_t)e->a, b = (int64_t)e->b;
  switch (e->kind) {
  case ADD: return x + a * y;
  case MUL: return x * y;
  case ADDS: return x + a;
  case MULS: return x * a;
  case CLAMP: return e->has_b && x > b ? b : e->has_a && x < a ? a : x;
  case LESS: return (double)x < e->a;
  case GREATER: return (double)x > e->a;
  case WHERE: return x ? y : in[2];
  case MASKED_FILL: return y ? a : x;
  case FILL: return a;
  case RELU: return x > 0 ? x : 0;
  default: return x;
  }
}

static void run_ints(const struct elementwise *e, const struct walk *w) {
  for (int64_t line = 0; line < w->lines; line++) {
    int64_t at[INPUTS_MAX + 1];
    for (int k = 0; k <= e->n_in; k++) at[k] = op_line_start(&w->t[k], w->axis, line);
    for (int64_t i = 0; i < w->length; i++) {
      int64_t in[INPUTS_MAX] = {0};
      for (int k = 0; k < e->n_in; k++) in[k] = emu_load_int(&w->t[k], at[k] + i * w->t[k].strides[w->axis]);
      int64_t y = compute_int(e, in);
      const struct emu_tensor *out = &w->t[e->n_in];
      emu_store_int(out, at[e->n_in] + i * out->strides[w->axis], out->type == EMU_BOOL ? y != 0 : y);
    }
  }
}

static void run_floats(const struct elementwise *e, const struct walk *w) {
  float in[INPUTS_MAX][CHUNK], y[CHUNK];
  const struct emu_tensor *out = &w->t[e->n_in];
  bool half = e->type == EMU_FLOAT16 || e->type == EMU_BF16;
  for (int64_t line = 0; line < w->lines; line++) {
    int64_t at[INPUTS_MAX + 1];
    for (int k = 0; k <= e->n_in; k++) at[k] = op_line_start(&w->t[k], w->axis, line);
    for (int64_t from = 0, n; from < w->length; from += n) {
      n = w->length - from < CHUNK ? w->length - from : CHUNK;
      for (int k = 0; k < e->n_in; k++) {
        int64_t stride = w->t[k].strides[w->axis];
        emu_load_row(&w->t[k], at[k] + from * stride, stride, n, in[k]);
      }
      compute(e, in, y, n);
      for (int64_t i = 0; half && out->type != e->type && i < n; i++) y[i] = emu_round(e->type, y[i]);
      for (int64_t i = 0; out->type == EMU_BOOL && i < n; i++) y[i] = y[i] != 0;
      emu_store_row(out, at[e->n_in] + from * out->strides[w->axis], out->strides[w->axis], n, y);
    }
  }
}

static void elementwise_run(struct emu_call *c, const void *ctx) {
  const struct elementwise *e = ctx;
  struct walk w;
  walk_begin(&w, c, e);
  bool ints = !emu_is_float(e->type) && !emu_is_float(c->t[e->out].type);
  if (ints) run_ints(e, &w);
  else run_floats(e, &w);
}

/* ---- phase 1 ---------------------------------------------------------------------------------------------------------------- */

/* The output has exactly the shape of all inputs broadcast to one another. */
static void check_shape(struct emu_plan *p, const struct elementwise *e) {
  const struct emu_tensor *out = &p->t[e->out];
  int64_t dims[EMU_DIMS_MAX];
  int n_dims = 0;
  for (int d = 0; d < EMU_DIMS_MAX; d++) dims[d] = 1; /* last first */
  for (int i = 0; i < e->n_in; i++) {
    const struct emu_tensor *in = &p->t[e->in[i]];
    emu_check(p, emu_broadcasts_to(in, out), EMU_PARAM_INVALID, "%s is %s, which does not broadcast to %s, %s", in->name, emu_text(in),
              out->name, emu_text(out));
    if (in->n_dims > n_dims) n_dims = in->n_dims;
    for (int d = 0; d < in->n_dims; d++)
      if (in->dims[in->n_dims - 1 - d] != 1) dims[d] = in->dims[in->n_dims - 1 - d];
  }
  bool right = e->n_in == 0 || n_dims == out->n_dims;
  for (int d = 0; right && e->n_in > 0 && d < n_dims; d++) right = out->dims[n_dims - 1 - d] == dims[d];
  emu_check(p, right, EMU_PARAM_INVALID, "%s is %s, which is more than the inputs make", out->name, emu_text(out));
}

static aclnnStatus finish(struct emu_plan *p, const struct elementwise *e) {
  const struct emu_tensor *out = &p->t[e->out];
  emu_check(p, op_castable(e->type, out->type), EMU_PARAM_INVALID, "%s is %s: the result is %s, which cannot become that", out->name,
            emu_text(out), emu_type_name(e->type));
  check_shape(p, e);
  return emu_finish(p, elementwise_run, e, sizeof *e, op_workspace(p, 0));
}

/* The type in which a tensor meets a scalar: only a scalar of a higher kind changes the tensor's. */
static int promote_scalar(int type, const aclScalar *s) {
  int of = emu_scalar_type(s);
  if (emu_is_float(type) || (emu_is_int(type) && !emu_is_float(of))) return type;
  if (emu_is_float(of)) return EMU_FLOAT;
  return of;
}

/* A scalar is a tensor of the promoted type there. */
static double as_type(int type, double x) { return emu_is_float(type) ? (double)emu_round(type, (float)x) : x; }

static aclnnStatus unary(struct emu_plan *p, enum kind kind, const aclTensor *self, const aclTensor *out) {
  struct elementwise e = {.kind = kind, .n_in = 1};
  e.in[0] = emu_reads(p, "self", self);
  e.out = emu_writes(p, "out", out);
  if (kind == RELU) EMU_TYPES(p, e.in[0], OP_FLOATS, EMU_INT8, EMU_INT32, EMU_INT64, EMU_UINT8);
  else EMU_TYPES(p, e.in[0], OP_FLOATS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  op_same_shape(p, e.out, e.in[0]);
  e.type = p->t[e.in[0]].type;
  return finish(p, &e);
}

EMU_OPERATOR(Silu, const aclTensor *self, aclTensor *out) {
  EMU_PLAN(p, "Silu");
  return unary(p, SILU, self, out);
}
EMU_OPERATOR(Sigmoid, const aclTensor *self, aclTensor *out) {
  EMU_PLAN(p, "Sigmoid");
  return unary(p, SIGMOID, self, out);
}
EMU_OPERATOR(Relu, const aclTensor *self, aclTensor *out) {
  EMU_PLAN(p, "Relu");
  return unary(p, RELU, self, out);
}
EMU_OPERATOR(Tanh, const aclTensor *self, aclTensor *out) {
  EMU_PLAN(p, "Tanh");
  return unary(p, TANH, self, out);
}
EMU_OPERATOR(GeluV2, const aclTensor *x, int64_t approximate, aclTensor *y) {
  EMU_PLAN(p, "GeluV2");
  struct elementwise e = {.kind = approximate == 1 ? GELU_TANH : GELU_ERF, .n_in = 1};
  e.in[0] = emu_reads(p, "x", x);
  e.out = emu_writes(p, "y", y);
  emu_check(p, approximate == 0 || approximate == 1, EMU_PARAM_INVALID, "approximate is %lld, expected 0 (erf) or 1 (tanh)",
            (long long)approximate);
  EMU_TYPES(p, e.in[0], OP_FLOATS);
  op_same_type(p, e.out, e.in[0]);
  op_same_shape(p, e.out, e.in[0]);
  e.type = p->t[e.in[0]].type;
  return finish(p, &e);
}
EMU_OPERATOR(InplaceTanh, aclTensor *selfRef) {
  EMU_PLAN(p, "InplaceTanh");
  struct elementwise e = {.kind = TANH, .n_in = 1};
  e.in[0] = e.out = emu_updates(p, "selfRef", selfRef);
  EMU_TYPES(p, e.out, OP_FLOATS);
  e.type = p->t[e.out].type;
  return finish(p, &e);
}

/* Two tensors; out NULL: in place. */
static aclnnStatus binary(struct emu_plan *p, enum kind kind, const aclTensor *self, const aclTensor *other, const aclScalar *alpha,
                          const aclTensor *out, bool in_place) {
  struct elementwise e = {.kind = kind, .n_in = 2, .a = 1};
  e.in[0] = in_place ? emu_updates(p, "selfRef", self) : emu_reads(p, "self", self);
  e.in[1] = emu_reads(p, "other", other);
  e.out = in_place ? e.in[0] : emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], OP_NUMBERS);
  EMU_TYPES(p, e.in[1], OP_NUMBERS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  e.type = op_promote(p->t[e.in[0]].type, p->t[e.in[1]].type);
  if (kind == ADD && emu_scalar(p, "alpha", alpha, &e.a))
    emu_check(p, emu_is_float(e.type) || !emu_is_float(emu_scalar_type(alpha)), EMU_PARAM_INVALID,
              "alpha is %s: it must not be of a higher kind than the tensors, %s", emu_type_name(emu_scalar_type(alpha)),
              emu_type_name(e.type));
  return finish(p, &e);
}

EMU_OPERATOR(Add, const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out) {
  EMU_PLAN(p, "Add");
  return binary(p, ADD, self, other, alpha, out, false);
}
EMU_OPERATOR(InplaceAdd, const aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha) {
  EMU_PLAN(p, "InplaceAdd");
  return binary(p, ADD, selfRef, other, alpha, NULL, true);
}
EMU_OPERATOR(Mul, const aclTensor *self, const aclTensor *other, aclTensor *out) {
  EMU_PLAN(p, "Mul");
  return binary(p, MUL, self, other, NULL, out, false);
}
EMU_OPERATOR(InplaceMul, aclTensor *selfRef, const aclTensor *other) {
  EMU_PLAN(p, "InplaceMul");
  return binary(p, MUL, selfRef, other, NULL, NULL, true);
}

/* A tensor and a number; out NULL: in place. bf16 is multiplied in float32 and rounded once; halves take the number as a half. */
static aclnnStatus scaled(struct emu_plan *p, enum kind kind, const aclTensor *self, const aclScalar *other, const aclScalar *alpha,
                          const aclTensor *out, bool in_place) {
  struct elementwise e = {.kind = kind, .n_in = 1};
  double factor = 1;
  e.in[0] = in_place ? emu_updates(p, "selfRef", self) : emu_reads(p, "self", self);
  e.out = in_place ? e.in[0] : emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], OP_NUMBERS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  op_same_shape(p, e.out, e.in[0]);
  if (emu_scalar(p, "other", other, &e.a) && (kind != ADDS || emu_scalar(p, "alpha", alpha, &factor))) {
    e.type = promote_scalar(p->t[e.in[0]].type, other);
    e.a *= factor;
    if (e.type == EMU_FLOAT16) e.a = as_type(e.type, e.a);
    if (e.type == EMU_BF16) e.type = EMU_FLOAT;
  }
  return finish(p, &e);
}

EMU_OPERATOR(Muls, const aclTensor *self, const aclScalar *other, aclTensor *out) {
  EMU_PLAN(p, "Muls");
  return scaled(p, MULS, self, other, NULL, out, false);
}
EMU_OPERATOR(InplaceMuls, aclTensor *selfRef, const aclScalar *other) {
  EMU_PLAN(p, "InplaceMuls");
  return scaled(p, MULS, selfRef, other, NULL, NULL, true);
}
EMU_OPERATOR(Adds, const aclTensor *self, const aclScalar *other, const aclScalar *alpha, aclTensor *out) {
  EMU_PLAN(p, "Adds");
  return scaled(p, ADDS, self, other, alpha, out, false);
}

EMU_OPERATOR(Clamp, const aclTensor *self, const aclScalar *min, const aclScalar *max, aclTensor *out) {
  EMU_PLAN(p, "Clamp");
  struct elementwise e = {.kind = CLAMP, .n_in = 1};
  e.in[0] = emu_reads(p, "self", self);
  e.out = emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], OP_FLOATS, OP_INTS);
  op_same_shape(p, e.out, e.in[0]);
  emu_check(p, min || max, EMU_NULLPTR, "min and max are both NULL");
  e.type = p->t[e.in[0]].type;
  e.has_a = min && emu_scalar(p, "min", min, &e.a);
  e.has_b = max && emu_scalar(p, "max", max, &e.b);
  if (e.has_a) e.type = promote_scalar(e.type, min);
  if (e.has_b) e.type = promote_scalar(e.type, max);
  e.a = as_type(e.type, e.a);
  e.b = as_type(e.type, e.b);
  return finish(p, &e);
}

static aclnnStatus compare(struct emu_plan *p, enum kind kind, const aclTensor *self, const aclScalar *other, const aclTensor *out) {
  struct elementwise e = {.kind = kind, .n_in = 1};
  e.in[0] = emu_reads(p, "self", self);
  e.out = emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], OP_NUMBERS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  op_same_shape(p, e.out, e.in[0]);
  if (emu_scalar(p, "other", other, &e.a)) {
    e.type = promote_scalar(p->t[e.in[0]].type, other);
    e.a = as_type(e.type, e.a);
  }
  return emu_finish(p, elementwise_run, &e, sizeof e, op_workspace(p, 0)); /* a BOOL may become anything */
}

EMU_OPERATOR(LtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out) {
  EMU_PLAN(p, "LtScalar");
  return compare(p, LESS, self, other, out);
}
EMU_OPERATOR(GtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out) {
  EMU_PLAN(p, "GtScalar");
  return compare(p, GREATER, self, other, out);
}

EMU_OPERATOR(Cast, const aclTensor *self, aclDataType dtype, aclTensor *out) {
  EMU_PLAN(p, "Cast");
  struct elementwise e = {.kind = COPY, .n_in = 1};
  e.in[0] = emu_reads(p, "self", self);
  e.out = emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], OP_NUMBERS, EMU_UINT16, EMU_UINT32, EMU_UINT64, EMU_DOUBLE);
  EMU_TYPES(p, e.out, OP_NUMBERS, EMU_UINT16, EMU_UINT32, EMU_UINT64, EMU_DOUBLE);
  emu_check(p, p->t[e.out].type == dtype, EMU_PARAM_INVALID, "dtype is %s, out is %s", emu_type_name(dtype), emu_text(&p->t[e.out]));
  op_same_shape(p, e.out, e.in[0]);
  if (p->t[e.in[0]].type == EMU_BOOL) emu_needs_contiguous(p, e.in[0], EMU_PARAM_INVALID);
  e.type = emu_is_float(p->t[e.in[0]].type) ? EMU_FLOAT : EMU_BOOL; /* anything may become anything */
  return emu_finish(p, elementwise_run, &e, sizeof e, op_workspace(p, 0));
}

EMU_OPERATOR(InplaceCopy, aclTensor *selfRef, const aclTensor *src) {
  EMU_PLAN(p, "InplaceCopy");
  struct elementwise e = {.kind = COPY, .n_in = 1};
  e.in[0] = emu_reads(p, "src", src);
  e.out = emu_writes(p, "selfRef", selfRef);
  EMU_TYPES(p, e.in[0], OP_NUMBERS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  e.type = emu_is_float(p->t[e.in[0]].type) ? EMU_FLOAT : EMU_BOOL;
  const struct emu_tensor *x = &p->t[e.in[0]], *y = &p->t[e.out];
  emu_check(p, emu_broadcasts_to(x, y), EMU_PARAM_INVALID, "src is %s, which does not broadcast to selfRef, %s", emu_text(x), emu_text(y));
  return emu_finish(p, elementwise_run, &e, sizeof e, op_workspace(p, 0));
}

EMU_OPERATOR(SWhere, const aclTensor *condition, const aclTensor *self, const aclTensor *other, aclTensor *out) {
  EMU_PLAN(p, "SWhere");
  struct elementwise e = {.kind = WHERE, .n_in = 3};
  e.in[0] = emu_reads(p, "condition", condition);
  e.in[1] = emu_reads(p, "self", self);
  e.in[2] = emu_reads(p, "other", other);
  e.out = emu_writes(p, "out", out);
  EMU_TYPES(p, e.in[0], EMU_BOOL, EMU_UINT8);
  EMU_TYPES(p, e.in[1], OP_NUMBERS);
  EMU_TYPES(p, e.in[2], OP_NUMBERS);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  e.type = op_promote(p->t[e.in[1]].type, p->t[e.in[2]].type);
  return finish(p, &e);
}

EMU_OPERATOR(InplaceMaskedFillScalar, aclTensor *selfRef, const aclTensor *mask, const aclScalar *value) {
  EMU_PLAN(p, "InplaceMaskedFillScalar");
  struct elementwise e = {.kind = MASKED_FILL, .n_in = 2};
  e.in[0] = e.out = emu_updates(p, "selfRef", selfRef);
  e.in[1] = emu_reads(p, "mask", mask);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  EMU_TYPES(p, e.in[1], EMU_BOOL);
  e.type = p->t[e.out].type;
  if (emu_scalar(p, "value", value, &e.a)) {
    emu_check(p, op_castable(emu_scalar_type(value), e.type), EMU_PARAM_INVALID, "value is %s, which cannot become %s",
              emu_type_name(emu_scalar_type(value)), emu_type_name(e.type));
    e.a = as_type(e.type, e.a);
  }
  return finish(p, &e);
}

EMU_OPERATOR(InplaceFillScalar, aclTensor *selfRef, const aclScalar *value) {
  EMU_PLAN(p, "InplaceFillScalar");
  struct elementwise e = {.kind = FILL};
  e.out = emu_writes(p, "selfRef", selfRef);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  e.type = p->t[e.out].type;
  if (emu_scalar(p, "value", value, &e.a))
    emu_check(p, op_castable(emu_scalar_type(value), e.type), EMU_PARAM_INVALID, "value is %s, which cannot become %s",
              emu_type_name(emu_scalar_type(value)), emu_type_name(e.type));
  return finish(p, &e);
}

EMU_OPERATOR(InplaceZero, aclTensor *selfRef) {
  EMU_PLAN(p, "InplaceZero");
  struct elementwise e = {.kind = FILL};
  e.out = emu_writes(p, "selfRef", selfRef);
  EMU_TYPES(p, e.out, OP_NUMBERS);
  e.type = p->t[e.out].type;
  return finish(p, &e);
}
