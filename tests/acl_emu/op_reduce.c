/* op_reduce.c — along an axis: ReduceSum, ArgMax, Topk, Cumsum. */
#include "op_shared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ReduceSum -------------------------------------------------------------------------------------------------------------- */

struct sum {
  unsigned axes; /* bit d: axis d is summed over */
};

/* x with the summed axes last, so that a line of the flat view is what makes one sum. */
static void sum_run(struct emu_call *c, const void *ctx) {
  const struct sum *s = ctx;
  const struct emu_tensor *x = &c->t[0], *out = &c->t[1];
  struct emu_tensor view = *x;
  view.contiguous = false;
  int d = 0;
  int64_t length = 1;
  for (int summed = 0; summed < 2; summed++) {
    for (int i = 0; i < x->n_dims; i++) {
      if ((int)(s->axes >> i & 1u) != summed) continue;
      view.dims[d] = x->dims[i];
      view.strides[d++] = x->strides[i];
      if (summed) length *= x->dims[i];
    }
  }
  bool ints = !emu_is_float(out->type);
  float *row = emu_scratch(c, (size_t)(length + 1) * sizeof *row);
  for (int64_t l = 0; l < out->n; l++) {
    int64_t total = 0;
    for (int64_t i = 0; i < length; i++) {
      if (ints) total += emu_get_int(&view, l * length + i);
      else row[i] = (float)emu_get(&view, l * length + i);
    }
    if (ints) emu_set_int(out, l, total);
    else emu_set(out, l, emu_sum(row, length));
  }
}

EMU_OPERATOR(ReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims, aclDataType dtype, aclTensor *out) {
  EMU_PLAN(p, "ReduceSum");
  struct sum s = {0};
  int64_t n = 0;
  int x = emu_reads(p, "self", self);
  const int64_t *axes = emu_ints(p, "dims", dims, &n);
  int y = emu_writes(p, "out", out);
  const struct emu_tensor *a = &p->t[x], *o = &p->t[y];
  EMU_TYPES(p, x, OP_NUMBERS);
  EMU_TYPES(p, y, OP_FLOATS, OP_INTS);
  emu_check(p, o->type == dtype, EMU_PARAM_INVALID, "dtype is %s, out is %s", emu_type_name(dtype), emu_text(o));
  emu_check(p, op_castable(a->type, dtype), EMU_PARAM_INVALID, "self is %s, which cannot become %s", emu_text(a), emu_type_name(dtype));
  for (int64_t i = 0; p->ok && i < n; i++) {
    unsigned bit = 1u << op_axis(p, x, axes[i]);
    emu_check(p, !(s.axes & bit), EMU_PARAM_INVALID, "dims has axis %lld twice", (long long)axes[i]);
    s.axes |= bit;
  }
  if (n == 0) s.axes = (1u << a->n_dims) - 1; /* all */
  bool right = true;
  int d = 0;
  for (int i = 0; i < a->n_dims; i++) {
    bool summed = s.axes >> i & 1u;
    if (summed && !keepDims) continue;
    right = right && d < o->n_dims && o->dims[d] == (summed ? 1 : a->dims[i]);
    d++;
  }
  emu_check(p, right && d == o->n_dims, EMU_PARAM_INVALID, "out is %s, which is not self %s summed %s", emu_text(o), emu_text(a),
            keepDims ? "with its axes kept" : "over dims");
  return emu_finish(p, sum_run, &s, sizeof s, op_workspace(p, 0));
}

/* ---- ArgMax, Topk ----------------------------------------------------------------------------------------------------------- */

struct top {
  int axis;
  int64_t k;
  bool largest;
};

struct candidate {
  double x;
  int64_t index;
};

/* NaN stands above everything; equals keep their order. */
static int compare_candidates(const void *a, const void *b) {
  const struct candidate *x = a, *y = b;
  bool nan_x = isnan(x->x), nan_y = isnan(y->x);
  if (nan_x != nan_y) return nan_x ? -1 : 1;
  if (!nan_x && x->x != y->x) return x->x > y->x ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

static void argmax_run(struct emu_call *c, const void *ctx) {
  const struct top *t = ctx;
  const struct emu_tensor *x = &c->t[0], *out = &c->t[1];
  int64_t n = op_line_length(x, t->axis), stride = op_line_stride(x, t->axis);
  for (int64_t l = 0; l < out->n; l++) {
    int64_t start = op_line_start(x, t->axis, l);
    struct candidate best = {emu_load(x, start), 0};
    for (int64_t i = 1; i < n; i++) {
      struct candidate next = {emu_load(x, start + i * stride), i};
      if (compare_candidates(&next, &best) < 0) best = next;
    }
    emu_set_int(out, l, best.index);
  }
}

EMU_OPERATOR(ArgMax, const aclTensor *self, int64_t dim, bool keepdim, aclTensor *out) {
  EMU_PLAN(p, "ArgMax");
  int x = emu_reads(p, "self", self), y = emu_writes(p, "out", out);
  const struct emu_tensor *a = &p->t[x], *o = &p->t[y];
  EMU_TYPES(p, x, OP_FLOATS, OP_INTS);
  EMU_TYPES(p, y, EMU_INT32, EMU_INT64);
  struct top t = {.axis = op_axis(p, x, dim)};
  emu_check(p, op_line_length(a, t.axis) > 0, EMU_PARAM_INVALID, "self is %s: axis %d is empty", emu_text(a), t.axis);
  bool right = true;
  int d = 0;
  for (int i = 0; i < a->n_dims; i++) {
    if (i == t.axis && !keepdim) continue;
    right = right && d < o->n_dims && o->dims[d] == (i == t.axis ? 1 : a->dims[i]);
    d++;
  }
  emu_check(p, right && d == o->n_dims, EMU_PARAM_INVALID, "out is %s, which is not self %s without axis %d", emu_text(o), emu_text(a),
            t.axis);
  return emu_finish(p, argmax_run, &t, sizeof t, op_workspace(p, 0));
}

static void topk_run(struct emu_call *c, const void *ctx) {
  const struct top *t = ctx;
  const struct emu_tensor *x = &c->t[0], *values = &c->t[1], *indices = &c->t[2];
  int64_t n = op_line_length(x, t->axis), lines = values->n > 0 ? op_line_count(x, t->axis) : 0;
  struct candidate *all = emu_scratch(c, (size_t)(n + 1) * sizeof *all);
  for (int64_t l = 0; l < lines; l++) {
    int64_t start = op_line_start(x, t->axis, l), v = op_line_start(values, t->axis, l), w = op_line_start(indices, t->axis, l);
    for (int64_t i = 0; i < n; i++) {
      double value = emu_load(x, start + i * op_line_stride(x, t->axis));
      all[i] = (struct candidate){t->largest ? value : -value, i};
    }
    qsort(all, (size_t)n, sizeof *all, compare_candidates);
    for (int64_t i = 0; i < t->k; i++) {
      emu_store(values, v + i * op_line_stride(values, t->axis), t->largest ? all[i].x : -all[i].x);
      emu_store_int(indices, w + i * op_line_stride(indices, t->axis), all[i].index);
    }
  }
}

EMU_OPERATOR(Topk, const aclTensor *self, int64_t k, int64_t dim, bool largest, bool sorted, aclTensor *valuesOut, aclTensor *indicesOut) {
  EMU_PLAN(p, "Topk");
  int x = emu_reads(p, "self", self), v = emu_writes(p, "valuesOut", valuesOut), i = emu_writes(p, "indicesOut", indicesOut);
  const struct emu_tensor *a = &p->t[x];
  EMU_TYPES(p, x, OP_FLOATS, OP_INTS);
  op_same_type(p, v, x);
  EMU_TYPES(p, i, EMU_INT64);
  struct top t = {op_axis(p, x, dim), k, largest};
  emu_check(p, sorted, EMU_PARAM_INVALID, "sorted is false: this chip gives sorted results only");
  emu_check(p, k >= 0 && k <= op_line_length(a, t.axis), EMU_PARAM_INVALID, "k is %lld, self is %s with %lld along axis %d", (long long)k,
            emu_text(a), (long long)op_line_length(a, t.axis), t.axis);
  const struct emu_tensor *o = &p->t[v];
  bool right = o->n_dims == a->n_dims;
  for (int d = 0; right && d < o->n_dims; d++) right = o->dims[d] == (d == t.axis ? k : a->dims[d]);
  emu_check(p, right, EMU_PARAM_INVALID, "valuesOut is %s, expected self %s with %lld along axis %d", emu_text(o), emu_text(a),
            (long long)k, t.axis);
  op_same_shape(p, i, v);
  return emu_finish(p, topk_run, &t, sizeof t, op_workspace(p, p->ok ? (uint64_t)a->n * 4 : 0));
}

/* ---- Cumsum ----------------------------------------------------------------------------------------------------------------- */

static void cumsum_run(struct emu_call *c, const void *ctx) {
  const struct top *t = ctx;
  const struct emu_tensor *x = &c->t[0], *out = &c->t[1];
  int64_t n = op_line_length(x, t->axis), lines = x->n > 0 ? op_line_count(x, t->axis) : 0;
  bool ints = !emu_is_float(out->type);
  for (int64_t l = 0; l < lines; l++) {
    int64_t from = op_line_start(x, t->axis, l), to = op_line_start(out, t->axis, l), total = 0;
    float sum = 0;
    for (int64_t i = 0; i < n; i++, from += op_line_stride(x, t->axis), to += op_line_stride(out, t->axis)) {
      if (ints) emu_store_int(out, to, total += emu_load_int(x, from));
      else emu_store(out, to, sum += (float)emu_load(x, from));
    }
  }
}

EMU_OPERATOR(Cumsum, const aclTensor *self, int64_t dim, aclDataType dtype, aclTensor *out) {
  EMU_PLAN(p, "Cumsum");
  int x = emu_reads(p, "self", self), y = emu_writes(p, "out", out);
  EMU_TYPES(p, x, OP_NUMBERS);
  EMU_TYPES(p, y, OP_FLOATS, OP_INTS);
  emu_check(p, p->t[y].type == dtype, EMU_PARAM_INVALID, "dtype is %s, out is %s", emu_type_name(dtype), emu_text(&p->t[y]));
  emu_check(p, op_castable(p->t[x].type, dtype), EMU_PARAM_INVALID, "self is %s, which cannot become %s", emu_text(&p->t[x]),
            emu_type_name(dtype));
  op_same_shape(p, y, x);
  struct top t = {.axis = op_axis(p, x, dim)};
  return emu_finish(p, cumsum_run, &t, sizeof t, op_workspace(p, 0));
}
