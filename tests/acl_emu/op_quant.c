/* op_quant.c — WeightQuantBatchMatmulV2: y = x ((weight + offset) scale) + bias, weights of 8 or 4 bits.
 *
 * The weight is dequantised to the type of x, rounded, before it is multiplied. Scales are of one of three kinds: one for all [1], one for each
 * column [n] or [1,n], one for each group of rows in each column [ceil(k/group),n]. A weight that is a transposed view wants its group scales
 * transposed as well.
 */
#include "op_shared.h"

struct quant {
  int x, w, scale, offset, bias, y; /* slots, -1: none */
  int64_t group;
};

/* Scales or offsets as [ceil(k / group), n]. */
static float *expanded(struct emu_call *c, const struct emu_tensor *t, int64_t groups, int64_t n) {
  float *given = emu_floats(c, t);
  if (t->n != 1) return given;
  float *all = emu_scratch(c, (size_t)(groups * n) * sizeof *all);
  for (int64_t i = 0; i < groups * n; i++) all[i] = given[0];
  return all;
}

static void quant_run(struct emu_call *c, const void *ctx) {
  const struct quant *q = ctx;
  const struct emu_tensor *x = &c->t[q->x], *w = &c->t[q->w], *out = &c->t[q->y];
  int64_t m = x->dims[0], k = x->dims[1], n = w->dims[1], rows = q->group ? q->group : k, groups = (k + rows - 1) / rows;
  if (out->n == 0) return;
  struct op_scales s = {.scale = expanded(c, &c->t[q->scale], groups, n), .group = rows, .type = x->type};
  if (q->offset >= 0) s.offset = expanded(c, &c->t[q->offset], groups, n);
  float *y = emu_scratch(c, (size_t)(m * n) * sizeof *y);
  op_multiply(c, emu_floats(c, x), m, w, OP_EXACT, &s, y);
  if (q->bias >= 0) {
    const float *bias = emu_floats(c, &c->t[q->bias]);
    for (int64_t i = 0; i < m * n; i++) y[i] += bias[i % n];
  }
  emu_put_floats(out, y);
}

/* [n] or [1,n] */
static bool is_row(const struct emu_tensor *t, int64_t n) { return emu_is_shape(t, 1, n) || emu_is_shape(t, 2, (int64_t)1, n); }

static void check_weight(struct emu_plan *p, const struct quant *q, bool transposed) {
  const struct emu_tensor *w = &p->t[q->w];
  bool nz = w->format == EMU_NZ;
  emu_check(p, w->contiguous || transposed, EMU_PARAM_INVALID, "weight is %s with strides %lld, %lld: contiguous, or a transposed view",
            emu_text(w), (long long)w->strides[0], (long long)w->strides[1]);
  if (w->type == EMU_INT4) {
    int64_t inner = transposed ? w->dims[0] : w->dims[1];
    emu_check(p, inner % 2 == 0, EMU_PARAM_INVALID, "weight is %s: its inner axis has %lld elements, 4-bit ones come in pairs", emu_text(w),
              (long long)inner);
  }
  if (!nz || !p->ok) return;
  emu_check(p, w->type == EMU_INT8 && q->group == 0, EMU_TILING, "weight is FRACTAL_NZ %s: this emulator does INT8 without groups only",
            emu_text(w));
  const int64_t *s = w->storage_dims;
  emu_check(p, w->n_storage_dims == 4 && s[0] == (w->dims[1] + 31) / 32 && s[1] == (w->dims[0] + 15) / 16 && s[2] == 16 && s[3] == 32,
            EMU_PARAM_INVALID, "weight is FRACTAL_NZ %s: its storage must be [%lld,%lld,16,32]", emu_text(w),
            (long long)((w->dims[1] + 31) / 32), (long long)((w->dims[0] + 15) / 16));
}

static void check_scales(struct emu_plan *p, const struct quant *q, bool transposed) {
  const struct emu_tensor *w = &p->t[q->w], *s = &p->t[q->scale];
  int64_t k = w->dims[0], n = w->dims[1];
  op_same_type(p, q->scale, q->x);
  emu_check(p, q->group == 0 || (q->group >= 32 && q->group % 32 == 0 && q->group <= k - 1), EMU_PARAM_INVALID,
            "antiquantGroupSize is %lld, expected 0 or a multiple of 32 from 32 to k-1, %lld", (long long)q->group, (long long)k - 1);
  if (!p->ok) return;
  if (q->group == 0) {
    emu_check(p, emu_is_shape(s, 1, (int64_t)1) || is_row(s, n), EMU_PARAM_INVALID,
              "antiquantScale is %s, expected [1], [%lld] or [1,%lld]", emu_text(s), (long long)n, (long long)n);
  } else {
    int64_t groups = (k + q->group - 1) / q->group;
    emu_check(p, emu_is_shape(s, 2, groups, n), EMU_PARAM_INVALID, "antiquantScale is %s, expected [%lld,%lld]", emu_text(s),
              (long long)groups, (long long)n);
    emu_check(p, transposed ? emu_is_transposed(s) || groups == 1 || n == 1 : s->contiguous, EMU_PARAM_INVALID,
              "antiquantScale has strides %lld, %lld: weight is %s, and its scales must be too", (long long)s->strides[0],
              (long long)s->strides[1], transposed ? "a transposed view" : "contiguous");
  }
  if (q->offset < 0) return;
  op_same_type(p, q->offset, q->x);
  op_same_shape(p, q->offset, q->scale);
}

EMU_OPERATOR(WeightQuantBatchMatmulV2, const aclTensor *x, const aclTensor *weight, const aclTensor *antiquantScale,
             const aclTensor *antiquantOffsetOptional, const aclTensor *quantScaleOptional, const aclTensor *quantOffsetOptional,
             const aclTensor *biasOptional, int antiquantGroupSize, const aclTensor *y) {
  EMU_PLAN(p, "WeightQuantBatchMatmulV2");
  bool old = emu_chip() == EMU_310P;
  if (weight) emu_allow_nz(p, weight);
  struct quant q = {.group = antiquantGroupSize};
  q.x = emu_reads(p, "x", x);
  q.w = emu_reads(p, "weight", weight);
  q.scale = emu_reads(p, "antiquantScale", antiquantScale);
  q.offset = emu_reads_optional(p, "antiquantOffsetOptional", antiquantOffsetOptional);
  emu_absent(p, "quantScaleOptional", quantScaleOptional);
  emu_absent(p, "quantOffsetOptional", quantOffsetOptional);
  q.bias = emu_reads_optional(p, "biasOptional", biasOptional);
  q.y = emu_writes(p, "y", y);
  const struct emu_tensor *t = p->t, *a = &t[q.x], *w = &t[q.w];
  if (old) {
    EMU_TYPES(p, q.x, EMU_FLOAT16);
    EMU_TYPES(p, q.w, EMU_INT8);
    emu_check(p, q.group == 0, EMU_PARAM_INVALID, "antiquantGroupSize is %lld: this chip has no groups", (long long)q.group);
  } else {
    EMU_TYPES(p, q.x, EMU_FLOAT16, EMU_BF16);
    EMU_TYPES(p, q.w, EMU_INT8, EMU_INT4);
  }
  op_same_type(p, q.y, q.x);
  op_rank(p, q.x, 2, 2), op_rank(p, q.w, 2, 2);
  emu_check(p, a->dims[1] == w->dims[0], EMU_PARAM_INVALID, "x is %s, weight is %s: the inner dimensions differ", emu_text(a), emu_text(w));
  for (int d = 0; p->ok && d < 2; d++)
    emu_check(p, w->dims[d] >= 1 && w->dims[d] <= 65535, EMU_PARAM_INVALID, "weight is %s: k and n must be from 1 to 65535", emu_text(w));
  emu_check(p, a->contiguous || (emu_is_transposed(a) && a->dims[0] <= 65535), EMU_PARAM_INVALID,
            "x is %s with strides %lld, %lld: contiguous, or a transposed view of up to 65535 rows", emu_text(a), (long long)a->strides[0],
            (long long)a->strides[1]);
  bool transposed = p->ok && !w->contiguous && emu_is_transposed(w);
  check_weight(p, &q, transposed);
  check_scales(p, &q, transposed);
  if (q.bias >= 0) {
    const struct emu_tensor *b = &t[q.bias];
    int type = a->type == EMU_BF16 ? EMU_FLOAT : EMU_FLOAT16;
    emu_check(p, b->type == type, EMU_PARAM_INVALID, "biasOptional is %s, expected %s with x %s", emu_text(b), emu_type_name(type),
              emu_text(a));
    emu_check(p, is_row(b, w->dims[1]), EMU_PARAM_INVALID, "biasOptional is %s, expected [%lld] or [1,%lld]", emu_text(b),
              (long long)w->dims[1], (long long)w->dims[1]);
  }
  emu_check(p, emu_is_shape(&t[q.y], 2, a->dims[0], w->dims[1]), EMU_PARAM_INVALID, "y is %s, expected [%lld,%lld]", emu_text(&t[q.y]),
            (long long)a->dims[0], (long long)w->dims[1]);
  emu_needs_contiguous(p, q.y, EMU_PARAM_INVALID);
  return emu_finish(p, quant_run, &q, sizeof q, op_workspace(p, p->ok ? (uint64_t)t[q.y].n * 4 + 1024 : 0));
}
