/* op_grouped.c — GroupedMatmulV4: rows of x in groups, each times its own weight.
 *
 * Done here: groups along M (groupType 0) of one x and one out, with one weight [E,K,N] or a list of E weights [K,N]; floats, or x of 16 bits
 * with weights of 8 or 4. The group list is read from device memory when the operator runs; rows beyond its total keep what they had.
 */
#include "op_shared.h"

struct grouped {
  int w, n_w, bias, scale, offset, list, y; /* first slots; x is slot 0 */
  int64_t groups, list_type;
};

/* Rows of out up to which group g goes; -1 after a fault. */
static int64_t group_end(struct emu_call *c, const struct grouped *g, int64_t i, int64_t from) {
  const struct emu_tensor *list = &c->t[g->list];
  int64_t m = c->t[0].dims[0], v = emu_get_int(list, i), to = g->list_type == 0 ? v : from + v;
  if (v >= 0 && to >= from && to <= m) return to;
  emu_fault(c, EMU_AICORE_EXCEPTION, "groupList[%lld] is %lld after %lld rows: %s, and all of them at most M, %lld", (long long)i,
            (long long)v, (long long)from, g->list_type == 0 ? "cumulative counts never fall" : "counts are not negative", (long long)m);
  return -1;
}

/* What belongs to group i of a list of tensors, or of one tensor whose first axis is the group. */
static struct emu_tensor of_group(struct emu_call *c, const struct grouped *g, int first, int64_t i) {
  return g->n_w > 1 ? c->t[first + i] : op_slice(&c->t[first], 0, i);
}

static void grouped_run(struct emu_call *c, const void *ctx) {
  const struct grouped *g = ctx;
  const struct emu_tensor *x = &c->t[0], *out = &c->t[g->y];
  int64_t k = x->dims[1], n = out->dims[1], from = 0;
  if (out->n == 0) return;
  float *rows = emu_floats(c, x), *y = emu_scratch(c, (size_t)out->n * sizeof *y);
  for (int64_t i = 0; i < g->groups; i++) {
    int64_t to = group_end(c, g, i, from);
    if (to < 0) return;
    if (to == from) continue;
    struct emu_tensor w = of_group(c, g, g->w, i);
    struct op_scales s = {.type = x->type, .group = k};
    if (g->scale >= 0) {
      struct emu_tensor scale = of_group(c, g, g->scale, i), offset = of_group(c, g, g->offset, i);
      s.scale = emu_floats(c, &scale);
      s.offset = emu_floats(c, &offset);
      if (scale.n_dims == 2) s.group = k / scale.dims[0];
    }
    op_multiply(c, rows + from * k, to - from, &w, OP_EXACT, g->scale >= 0 ? &s : NULL, y + from * n);
    if (g->bias >= 0) {
      struct emu_tensor bias = of_group(c, g, g->bias, i);
      const float *b = emu_floats(c, &bias);
      for (int64_t j = from * n; j < to * n; j++) y[j] += b[j % n];
    }
    for (int64_t r = from; r < to; r++) emu_store_row(out, r * out->strides[0], out->strides[1], n, y + r * n);
    from = to;
  }
}

/* Weights of one shape, one type, and contiguous or transposed alike. */
static void check_weights(struct emu_plan *p, const struct grouped *g) {
  const struct emu_tensor *x = &p->t[0], *first = &p->t[g->w];
  int rank = g->n_w > 1 ? 2 : 3;
  bool transposed = p->ok && !first->contiguous;
  for (int i = g->w; p->ok && i < g->w + g->n_w; i++) {
    const struct emu_tensor *w = &p->t[i];
    op_rank(p, i, rank, rank);
    op_same_type(p, i, g->w);
    if (!p->ok) return;
    int64_t k = w->dims[rank - 2], n = w->dims[rank - 1];
    bool whole = rank == 2 || w->dims[0] == 1 || w->strides[0] == k * n;
    emu_check(p, transposed ? emu_is_transposed(w) && whole : w->contiguous, EMU_PARAM_INVALID,
              "weight is %s: contiguous, or a transposed view of whole matrices, and all alike", emu_text(w));
    emu_check(p, k == x->dims[1], EMU_PARAM_INVALID, "x is %s, weight is %s: the inner dimensions differ", emu_text(x), emu_text(w));
    emu_check(p, n == first->dims[first->n_dims - 1], EMU_PARAM_INVALID, "weight is %s, the first one has another N", emu_text(w));
    int64_t last = transposed ? k : n;
    emu_check(p, last < 65536, EMU_PARAM_INVALID, "weight is %s: its last axis as stored must be below 65536", emu_text(w));
    if (w->type == EMU_INT4)
      emu_check(p, last % 2 == 0, EMU_PARAM_INVALID, "weight is %s: its last axis as stored must be even", emu_text(w));
  }
  emu_check(p, x->dims[1] < 65536, EMU_PARAM_INVALID, "x is %s: its last axis must be below 65536", emu_text(x));
}

/* A list beside the weights: as many tensors, [E, ..., N] for one weight and [..., N] for several. */
static void check_beside(struct emu_plan *p, const struct grouped *g, int first, int count, int type, bool in_groups) {
  const struct emu_tensor *w = &p->t[g->w];
  if (first < 0 || !p->ok) return;
  emu_check(p, count == g->n_w, EMU_PARAM_INVALID, "%s has %d tensors, weight %d", p->t[first].name, count, g->n_w);
  int64_t k = w->dims[w->n_dims - 2], n = w->dims[w->n_dims - 1];
  for (int i = first; p->ok && i < first + count; i++) {
    const struct emu_tensor *t = &p->t[i];
    int lead = g->n_w > 1 ? 0 : 1;
    emu_check(p, t->type == type, EMU_PARAM_INVALID, "%s is %s, expected %s", t->name, emu_text(t), emu_type_name(type));
    bool right = t->n_dims >= lead + 1 && t->dims[t->n_dims - 1] == n && (!lead || t->dims[0] == w->dims[0]);
    bool grouped = in_groups && t->n_dims == lead + 2 && t->dims[lead] > 0 && k % t->dims[lead] == 0;
    emu_check(p, right && (t->n_dims == lead + 1 || grouped), EMU_PARAM_INVALID, "%s is %s, which does not fit weight, %s", t->name,
              emu_text(t), emu_text(w));
  }
}

EMU_OPERATOR(GroupedMatmulV4, const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional,
             const aclTensorList *scaleOptional, const aclTensorList *offsetOptional, const aclTensorList *antiquantScaleOptional,
             const aclTensorList *antiquantOffsetOptional, const aclTensorList *perTokenScaleOptional, const aclTensor *groupListOptional,
             const aclTensorList *activationInputOptional, const aclTensorList *activationQuantScaleOptional,
             const aclTensorList *activationQuantOffsetOptional, int64_t splitItem, int64_t groupType, int64_t groupListType,
             int64_t actType, aclTensorList *out, aclTensorList *activationFeatureOutOptional, aclTensorList *dynQuantScaleOutOptional) {
  EMU_PLAN(p, "GroupedMatmulV4");
  int n_x = 0, n_bias = 0, n_scale = 0, n_offset = 0, n_out = 0;
  struct grouped g = {.list_type = groupListType};
  emu_reads_list(p, "x", x, &n_x);
  g.w = emu_reads_list(p, "weight", weight, &g.n_w);
  g.bias = emu_reads_list_optional(p, "biasOptional", biasOptional, &n_bias);
  g.scale = emu_reads_list_optional(p, "antiquantScaleOptional", antiquantScaleOptional, &n_scale);
  g.offset = emu_reads_list_optional(p, "antiquantOffsetOptional", antiquantOffsetOptional, &n_offset);
  emu_absent(p, "scaleOptional", scaleOptional), emu_absent(p, "offsetOptional", offsetOptional);
  emu_absent(p, "perTokenScaleOptional", perTokenScaleOptional), emu_absent(p, "activationInputOptional", activationInputOptional);
  emu_absent(p, "activationQuantScaleOptional", activationQuantScaleOptional);
  emu_absent(p, "activationQuantOffsetOptional", activationQuantOffsetOptional);
  emu_absent(p, "activationFeatureOutOptional", activationFeatureOutOptional);
  emu_absent(p, "dynQuantScaleOutOptional", dynQuantScaleOutOptional);
  emu_check(p, splitItem >= 0 && splitItem <= 3, EMU_PARAM_INVALID, "splitItem is %lld, expected 0 to 3", (long long)splitItem);
  emu_check(p, groupType == -1 || groupType == 0 || groupType == 2, EMU_PARAM_INVALID, "groupType is %lld, expected -1, 0 or 2",
            (long long)groupType);
  emu_check(p, groupListType == 0 || groupListType == 1, EMU_PARAM_INVALID, "groupListType is %lld, expected 0 (cumulative) or 1 (counts)",
            (long long)groupListType);
  emu_check(p, actType == 0, EMU_PARAM_INVALID, "actType is %lld: only quantised x can have an activation", (long long)actType);
  emu_check(p, groupType == 0 && n_x == 1 && splitItem >= 2, EMU_TILING,
            "groupType %lld, splitItem %lld, %d tensors x: this emulator does groups along M of one x and one out only",
            (long long)groupType, (long long)splitItem, n_x);
  emu_check(p, groupListOptional != NULL, EMU_PARAM_INVALID, "groupListOptional is NULL: groupType 0 with one x needs it");
  g.list = emu_reads_optional(p, "groupListOptional", groupListOptional);
  g.y = emu_writes_list(p, "out", out, &n_out);
  emu_check(p, n_out == 1, EMU_PARAM_INVALID, "out has %d tensors, splitItem %lld makes one", n_out, (long long)splitItem);
  if (!p->ok) return emu_finish(p, grouped_run, &g, sizeof g, 0);

  const struct emu_tensor *t = p->t, *a = &t[0], *w = &t[g.w];
  bool quantised = w->type == EMU_INT8 || w->type == EMU_INT4;
  if (emu_chip() == EMU_310P) EMU_TYPES(p, 0, EMU_FLOAT16);
  else if (quantised) EMU_TYPES(p, 0, EMU_FLOAT16, EMU_BF16);
  else EMU_TYPES(p, 0, OP_FLOATS);
  if (!quantised || emu_chip() == EMU_310P) op_same_type(p, g.w, 0);
  op_same_type(p, g.y, 0);
  op_rank(p, 0, 2, 2), op_rank(p, g.y, 2, 2);
  emu_needs_contiguous(p, 0, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, g.y, EMU_PARAM_INVALID);
  check_weights(p, &g);
  emu_check(p, g.n_w <= 128, EMU_PARAM_INVALID, "weight has %d tensors, at most 128", g.n_w);
  g.groups = g.n_w > 1 ? g.n_w : w->dims[0];
  EMU_TYPES(p, g.list, EMU_INT64);
  emu_check(p, emu_is_shape(&t[g.list], 1, g.groups) && g.groups <= 1024, EMU_PARAM_INVALID,
            "groupListOptional is %s, expected [%lld], at most 1024", emu_text(&t[g.list]), (long long)g.groups);
  check_beside(p, &g, g.bias, n_bias, a->type == EMU_BF16 ? EMU_FLOAT : a->type, false);
  emu_check(p, quantised == (g.scale >= 0) && quantised == (g.offset >= 0), EMU_PARAM_INVALID,
            "weight is %s: antiquantScaleOptional and antiquantOffsetOptional must both be %s", emu_text(w), quantised ? "given" : "NULL");
  check_beside(p, &g, g.scale, n_scale, a->type, w->type == EMU_INT4);
  check_beside(p, &g, g.offset, n_offset, a->type, w->type == EMU_INT4);
  if (quantised) op_same_shape(p, g.offset, g.scale);
  emu_check(p, emu_is_shape(&t[g.y], 2, a->dims[0], w->dims[w->n_dims - 1]), EMU_PARAM_INVALID, "out is %s, expected [%lld,%lld]",
            emu_text(&t[g.y]), (long long)a->dims[0], (long long)w->dims[w->n_dims - 1]);
  return emu_finish(p, grouped_run, &g, sizeof g, op_workspace(p, p->ok ? (uint64_t)g.groups * 64 + 1024 : 0));
}
