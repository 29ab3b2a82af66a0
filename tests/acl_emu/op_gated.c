/* op_gated.c — activations that halve an axis: GeGluV3, SwiGlu. */
#include "op_shared.h"

#include <math.h>

enum act { ERF, TANH, SILU };
struct gated {
  enum act act;
  int axis;
  bool left; /* the left half goes through the activation */
};

static float activated(enum act act, float x) {
  if (act == ERF) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  float u = act == SILU ? x : 1.5957691216f * (x + 0.044715f * x * x * x); /* (1 + tanh v) / 2 is sigmoid(2 v) */
  return x / (1.0f + expf(-u));
}

static void gated_run(struct emu_call *c, const void *ctx) {
  const struct gated *g = ctx;
  const struct emu_tensor *x = &c->t[0], *y = &c->t[1], *inner = c->n > 2 ? &c->t[2] : NULL;
  int64_t n = op_line_length(x, g->axis) / 2, lines = x->n > 0 ? op_line_count(x, g->axis) : 0;
  float *row = emu_scratch(c, (size_t)(3 * n + 1) * sizeof *row), *out = row + 2 * n;
  float *act = g->left ? row : row + n, *other = g->left ? row + n : row;
  for (int64_t l = 0; l < lines; l++) {
    emu_load_row(x, op_line_start(x, g->axis, l), op_line_stride(x, g->axis), 2 * n, row);
    for (int64_t i = 0; i < n; i++) {
      act[i] = activated(g->act, act[i]);
      out[i] = act[i] * other[i];
    }
    emu_store_row(y, op_line_start(y, g->axis, l), op_line_stride(y, g->axis), n, out);
    if (inner) emu_store_row(inner, op_line_start(inner, g->axis, l), op_line_stride(inner, g->axis), n, act);
  }
}

/* The shape of x with half of the axis. */
static void check_half(struct emu_plan *p, int slot, int x, int axis) {
  const struct emu_tensor *t = &p->t[slot], *a = &p->t[x];
  op_same_type(p, slot, x);
  bool right = t->n_dims == a->n_dims;
  for (int d = 0; right && d < t->n_dims; d++) right = t->dims[d] == (d == axis ? a->dims[d] / 2 : a->dims[d]);
  emu_check(p, right, EMU_PARAM_INVALID, "%s is %s, expected %s %s with half of axis %d", t->name, emu_text(t), a->name, emu_text(a), axis);
}

static void check_halves(struct emu_plan *p, int x, int64_t dim, int *axis) {
  EMU_TYPES(p, x, OP_FLOATS);
  op_rank(p, x, 1, EMU_DIMS_MAX);
  *axis = op_axis(p, x, dim);
  emu_check(p, op_line_length(&p->t[x], *axis) % 2 == 0, EMU_PARAM_INVALID, "%s is %s: axis %d is not even", p->t[x].name,
            emu_text(&p->t[x]), *axis);
}

EMU_OPERATOR(GeGluV3, const aclTensor *self, int64_t dim, int64_t approximate, bool activateLeft, aclTensor *out, aclTensor *outGelu) {
  EMU_PLAN(p, "GeGluV3");
  int x = emu_reads(p, "self", self), y = emu_writes(p, "out", out), z = emu_writes(p, "outGelu", outGelu);
  struct gated g = {approximate == 0 ? ERF : TANH, 0, activateLeft};
  emu_check(p, approximate == 0 || approximate == 1, EMU_PARAM_INVALID, "approximate is %lld, expected 0 (erf) or 1 (tanh)",
            (long long)approximate);
  check_halves(p, x, dim, &g.axis);
  check_half(p, y, x, g.axis);
  check_half(p, z, x, g.axis);
  return emu_finish(p, gated_run, &g, sizeof g, op_workspace(p, 0));
}

EMU_OPERATOR(SwiGlu, const aclTensor *x, int64_t dim, const aclTensor *out) {
  EMU_PLAN(p, "SwiGlu");
  int a = emu_reads(p, "x", x), y = emu_writes(p, "out", out);
  struct gated g = {SILU, 0, true};
  check_halves(p, a, dim, &g.axis);
  check_half(p, y, a, g.axis);
  emu_needs_contiguous(p, a, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, y, EMU_PARAM_INVALID);
  return emu_finish(p, gated_run, &g, sizeof g, op_workspace(p, 0));
}
