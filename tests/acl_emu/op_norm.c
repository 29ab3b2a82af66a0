/* op_norm.c — norms and Softmax: RmsNorm, AddRmsNorm, LayerNorm, Softmax. All in float32.
 *
 * The normalised axes are the last ones, as many as gamma has; rstd keeps the others and has 1 in their place, and is FLOAT.
 * RmsNorm and AddRmsNorm write their results end to end, whatever the strides say: without an error. Here it is one.
 */
#include "op_shared.h"

#include <math.h>

struct norm {
  double epsilon;
  int64_t rows, length;
  int gamma, beta, y, mean, rstd, sum; /* slots, -1: none */
};

/* ---- RmsNorm, AddRmsNorm ---------------------------------------------------------------------------------------------------- */

static void rms_run(struct emu_call *c, const void *ctx) {
  const struct norm *n = ctx;
  float *x = emu_floats(c, &c->t[0]), *gamma = emu_floats(c, &c->t[n->gamma]);
  if (n->sum >= 0) { /* the sum is rounded to its type, and the norm sees it rounded */
    const float *more = emu_floats(c, &c->t[1]);
    for (int64_t i = 0; i < n->rows * n->length; i++) x[i] = emu_round(c->t[0].type, x[i] + more[i]);
    emu_put_floats(&c->t[n->sum], x);
  }
  for (int64_t r = 0; r < n->rows; r++) {
    float *row = x + r * n->length;
    float rstd = 1.0f / sqrtf(emu_dot(row, row, n->length) / (float)n->length + (float)n->epsilon);
    for (int64_t i = 0; i < n->length; i++) row[i] = row[i] * rstd * gamma[i];
    emu_set(&c->t[n->rstd], r, rstd);
  }
  emu_put_floats(&c->t[n->y], x);
}

/* gamma covers the last axes of x. */
static void check_gamma(struct emu_plan *p, int x, int gamma, struct norm *n, aclnnStatus code) {
  const struct emu_tensor *a = &p->t[x], *g = &p->t[gamma];
  bool right = g->n_dims >= 1 && g->n_dims <= a->n_dims;
  for (int d = 0; right && d < g->n_dims; d++) right = g->dims[d] == a->dims[a->n_dims - g->n_dims + d];
  emu_check(p, right, code, "%s is %s, it must have the last dimensions of %s, %s", g->name, emu_text(g), a->name, emu_text(a));
  emu_check(p, g->n > 0, code, "%s is empty", g->name);
  n->length = p->ok ? g->n : 1;
  n->rows = p->ok ? a->n / g->n : 0;
}

static void check_statistic(struct emu_plan *p, int x, int gamma_dims, int slot, aclnnStatus code) {
  const struct emu_tensor *a = &p->t[x], *r = &p->t[slot];
  bool right = r->n_dims == a->n_dims;
  for (int d = 0; right && d < r->n_dims; d++) right = r->dims[d] == (d < a->n_dims - gamma_dims ? a->dims[d] : 1);
  emu_check(p, right, code, "%s is %s, it must have the shape of %s, %s, with 1 for its last %d dimensions", r->name, emu_text(r), a->name,
            emu_text(a), gamma_dims);
}

static void check_rstd(struct emu_plan *p, int x, int gamma, int rstd) {
  EMU_TYPES(p, rstd, EMU_FLOAT);
  check_statistic(p, x, p->t[gamma].n_dims, rstd, EMU_TILING);
}

static void check_old_chip(struct emu_plan *p, int gamma) {
  const struct emu_tensor *g = &p->t[gamma];
  if (emu_chip() != EMU_310P) return;
  emu_check(p, g->n * emu_element_bits(g->type) / 8 >= 32, EMU_TILING, "%s is %s: on this chip the normalised axes must have 32 bytes",
            g->name, emu_text(g));
}

EMU_OPERATOR(RmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *yOut, const aclTensor *rstdOut) {
  EMU_PLAN(p, "RmsNorm");
  int a = emu_reads(p, "x", x), g = emu_reads(p, "gamma", gamma), y = emu_writes(p, "yOut", yOut), r = emu_writes(p, "rstdOut", rstdOut);
  struct norm n = {.epsilon = epsilon, .gamma = g, .y = y, .rstd = r, .sum = -1};
  EMU_TYPES(p, a, OP_FLOATS);
  EMU_TYPES(p, g, OP_FLOATS);
  op_same_type(p, y, a);
  int type = p->t[a].type, of_gamma = p->t[g].type;
  emu_check(p, of_gamma == type || (of_gamma == EMU_FLOAT && emu_chip() != EMU_310P), EMU_PARAM_INVALID, "gamma is %s with x %s: %s",
            emu_text(&p->t[g]), emu_text(&p->t[a]),
            emu_chip() == EMU_310P ? "this chip wants the same type" : "it must have the same type or be FLOAT");
  op_rank(p, a, 1, EMU_DIMS_MAX);
  check_gamma(p, a, g, &n, EMU_TILING);
  emu_check(p, emu_same_shape(&p->t[y], &p->t[a]), EMU_TILING, "yOut is %s, x is %s", emu_text(&p->t[y]), emu_text(&p->t[a]));
  check_rstd(p, a, g, r);
  check_old_chip(p, g);
  emu_needs_contiguous(p, y, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, r, EMU_PARAM_INVALID);
  return emu_finish(p, rms_run, &n, sizeof n, op_workspace(p, 0));
}

EMU_OPERATOR(AddRmsNorm, const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, double epsilon, aclTensor *yOut,
             aclTensor *rstdOut, aclTensor *xOut) {
  EMU_PLAN(p, "AddRmsNorm");
  int a = emu_reads(p, "x1", x1), b = emu_reads(p, "x2", x2), g = emu_reads(p, "gamma", gamma), y = emu_writes(p, "yOut", yOut);
  int r = emu_writes(p, "rstdOut", rstdOut), s = emu_writes(p, "xOut", xOut);
  struct norm n = {.epsilon = epsilon, .gamma = g, .y = y, .rstd = r, .sum = s};
  EMU_TYPES(p, a, OP_FLOATS);
  op_same_type(p, b, a), op_same_type(p, g, a), op_same_type(p, y, a), op_same_type(p, s, a);
  op_same_shape(p, b, a), op_same_shape(p, y, a), op_same_shape(p, s, a);
  op_rank(p, a, 1, EMU_DIMS_MAX);
  check_gamma(p, a, g, &n, EMU_PARAM_INVALID);
  check_rstd(p, a, g, r);
  check_old_chip(p, g);
  emu_needs_contiguous(p, y, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, r, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, s, EMU_PARAM_INVALID);
  return emu_finish(p, rms_run, &n, sizeof n, op_workspace(p, 0));
}

/* ---- LayerNorm -------------------------------------------------------------------------------------------------------------- */

static void layer_run(struct emu_call *c, const void *ctx) {
  const struct norm *n = ctx;
  float *x = emu_floats(c, &c->t[0]);
  const float *w = n->gamma >= 0 ? emu_floats(c, &c->t[n->gamma]) : NULL, *b = n->beta >= 0 ? emu_floats(c, &c->t[n->beta]) : NULL;
  for (int64_t r = 0; r < n->rows; r++) {
    float *row = x + r * n->length, mean = emu_sum(row, n->length) / (float)n->length;
    for (int64_t i = 0; i < n->length; i++) row[i] -= mean;
    float rstd = 1.0f / sqrtf(emu_dot(row, row, n->length) / (float)n->length + (float)n->epsilon);
    for (int64_t i = 0; i < n->length; i++) row[i] = row[i] * rstd * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
    if (n->mean >= 0) emu_set(&c->t[n->mean], r, mean);
    if (n->rstd >= 0) emu_set(&c->t[n->rstd], r, rstd);
  }
  emu_put_floats(&c->t[n->y], x);
}

/* weight or bias: NULL, or of the normalised shape; of input's type or FLOAT, both alike. */
static void check_affine(struct emu_plan *p, int slot, int x, int64_t n_dims, const int64_t *shape) {
  if (slot < 0 || !p->ok) return;
  const struct emu_tensor *t = &p->t[slot];
  bool right = t->n_dims == n_dims;
  for (int d = 0; right && d < t->n_dims; d++) right = t->dims[d] == shape[d];
  emu_check(p, right, EMU_PARAM_INVALID, "%s is %s, it must have normalizedShape", t->name, emu_text(t));
  emu_check(p, t->type == p->t[x].type || t->type == EMU_FLOAT, EMU_PARAM_INVALID, "%s is %s, it must have the type of input or be FLOAT",
            t->name, emu_text(t));
}

EMU_OPERATOR(LayerNorm, const aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *weightOptional,
             const aclTensor *biasOptional, double eps, aclTensor *out, aclTensor *meanOutOptional, aclTensor *rstdOutOptional) {
  EMU_PLAN(p, "LayerNorm");
  emu_needs_chip(p, emu_chip() != EMU_310P);
  struct norm n = {.epsilon = eps, .sum = -1, .length = 1};
  int64_t n_dims = 0;
  int x = emu_reads(p, "input", input);
  const int64_t *shape = emu_ints(p, "normalizedShape", normalizedShape, &n_dims);
  n.gamma = emu_reads_optional(p, "weightOptional", weightOptional);
  n.beta = emu_reads_optional(p, "biasOptional", biasOptional);
  n.y = emu_writes(p, "out", out);
  n.mean = emu_writes_optional(p, "meanOutOptional", meanOutOptional);
  n.rstd = emu_writes_optional(p, "rstdOutOptional", rstdOutOptional);
  const struct emu_tensor *t = p->t;
  EMU_TYPES(p, x, OP_FLOATS);
  op_same_type(p, n.y, x), op_same_shape(p, n.y, x);
  bool right = n_dims >= 1 && n_dims <= t[x].n_dims;
  for (int d = 0; right && d < n_dims; d++) {
    right = shape[d] == t[x].dims[t[x].n_dims - n_dims + d];
    n.length *= shape[d];
  }
  emu_check(p, right && n.length > 0, EMU_PARAM_INVALID, "normalizedShape does not give the last dimensions of input, %s", emu_text(&t[x]));
  check_affine(p, n.gamma, x, n_dims, shape);
  check_affine(p, n.beta, x, n_dims, shape);
  if (n.gamma >= 0 && n.beta >= 0) op_same_type(p, n.beta, n.gamma);
  int statistics[] = {n.mean, n.rstd};
  for (int i = 0; i < 2; i++) {
    if (statistics[i] < 0) continue;
    op_same_type(p, statistics[i], x);
    check_statistic(p, x, (int)n_dims, statistics[i], EMU_PARAM_INVALID);
  }
  n.rows = p->ok ? t[x].n / n.length : 0;
  return emu_finish(p, layer_run, &n, sizeof n, op_workspace(p, 0));
}

/* ---- Softmax ---------------------------------------------------------------------------------------------------------------- */

struct softmax {
  int axis;
};

static void softmax_run(struct emu_call *c, const void *ctx) {
  const struct softmax *s = ctx;
  const struct emu_tensor *x = &c->t[0], *y = &c->t[1];
  int64_t n = op_line_length(x, s->axis), lines = x->n > 0 ? op_line_count(x, s->axis) : 0;
  float *row = emu_scratch(c, (size_t)(n + 1) * sizeof *row);
  for (int64_t l = 0; l < lines; l++) {
    emu_load_row(x, op_line_start(x, s->axis, l), op_line_stride(x, s->axis), n, row);
    float most = -INFINITY;
    for (int64_t i = 0; i < n; i++) most = row[i] > most || row[i] != row[i] ? row[i] : most;
    for (int64_t i = 0; i < n; i++) row[i] = expf(row[i] - most); /* all -inf: NaN, as on the chip */
    float sum = emu_sum(row, n);
    for (int64_t i = 0; i < n; i++) row[i] /= sum;
    emu_store_row(y, op_line_start(y, s->axis, l), op_line_stride(y, s->axis), n, row);
  }
}

EMU_OPERATOR(Softmax, const aclTensor *self, int64_t dim, aclTensor *out) {
  EMU_PLAN(p, "Softmax");
  int x = emu_reads(p, "self", self), y = emu_writes(p, "out", out);
  EMU_TYPES(p, x, OP_FLOATS);
  EMU_TYPES(p, y, OP_FLOATS);
  op_same_shape(p, y, x);
  struct softmax s = {op_axis(p, x, dim)};
  return emu_finish(p, softmax_run, &s, sizeof s, op_workspace(p, 0));
}
