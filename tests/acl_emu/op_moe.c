/* op_moe.c — the ways to the experts and back: MoeGatingTopKSoftmaxV2, MoeInitRoutingV2, MoeFinalizeRoutingV2.
 *
 * R tokens, K experts each of E, rows of H. MoeInitRoutingV2 sorts the R K pairs by expert, equal ones in their order, and says for each pair
 * i K + j to which row of expandedX it went; MoeFinalizeRoutingV2 with dropPadMode 2 goes that way back.
 */
#include "op_shared.h"

#include <math.h>
#include <stdlib.h>

/* ---- MoeGatingTopKSoftmaxV2 ------------------------------------------------------------------------------------------------- */

struct gating {
  int finished, y, experts, softmax; /* slots, -1: none; x is slot 0 */
  int64_t k;
  bool renorm;
};

static void softmax(float *x, int64_t n) {
  float most = -INFINITY;
  for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
  for (int64_t i = 0; i < n; i++) x[i] = expf(x[i] - most);
  float sum = emu_sum(x, n);
  for (int64_t i = 0; i < n; i++) x[i] /= sum;
}

static void gating_run(struct emu_call *c, const void *ctx) {
  const struct gating *g = ctx;
  const struct emu_tensor *x = &c->t[0];
  int64_t n = x->dims[x->n_dims - 1], rows = n > 0 ? x->n / n : 0;
  float *all = emu_floats(c, x), *best = emu_scratch(c, (size_t)(g->k + 1) * sizeof *best);
  for (int64_t r = 0; r < rows; r++) {
    float *row = all + r * n;
    if (!g->renorm) softmax(row, n);
    for (int64_t i = 0; g->softmax >= 0 && i < n; i++) emu_set(&c->t[g->softmax], r * n + i, row[i]);
    bool finished = g->finished >= 0 && emu_get_int(&c->t[g->finished], r) != 0;
    for (int64_t j = 0; j < g->k; j++) {
      int64_t top = -1;
      for (int64_t i = 0; i < n; i++)
        if (row[i] > -INFINITY && (top < 0 || row[i] > row[top])) top = i;
      if (top < 0) top = j; /* nothing is left to choose */
      best[j] = row[top];
      row[top] = -INFINITY;
      emu_set_int(&c->t[g->experts], r * g->k + j, finished ? n : top);
    }
    if (g->renorm) softmax(best, g->k);
    for (int64_t j = 0; j < g->k; j++) emu_set(&c->t[g->y], r * g->k + j, best[j]);
  }
}

EMU_OPERATOR(MoeGatingTopKSoftmaxV2, const aclTensor *x, const aclTensor *finishedOptional, int64_t k, int64_t renorm,
             bool outputSoftmaxResultFlag, const aclTensor *yOut, const aclTensor *expertIdxOut,
             const aclTensor *softmaxResultOutOptional) {
  EMU_PLAN(p, "MoeGatingTopKSoftmaxV2");
  emu_needs_chip(p, emu_chip() != EMU_310P);
  struct gating g = {.k = k, .renorm = renorm == 1, .softmax = -1};
  int a = emu_reads(p, "x", x);
  g.finished = emu_reads_optional(p, "finishedOptional", finishedOptional);
  g.y = emu_writes(p, "yOut", yOut);
  g.experts = emu_writes(p, "expertIdxOut", expertIdxOut);
  EMU_TYPES(p, a, OP_FLOATS);
  op_same_type(p, g.y, a);
  EMU_TYPES(p, g.experts, EMU_INT32);
  const struct emu_tensor *t = &p->t[a], *y = &p->t[g.y];
  emu_check(p, t->n_dims == 2 || t->n_dims == 3, EMU_TILING, "x is %s, it must have 2 or 3 dimensions", emu_text(t));
  emu_check(p, renorm == 0 || renorm == 1, EMU_TILING, "renorm is %lld, expected 0 or 1", (long long)renorm);
  int64_t n = t->n_dims > 0 ? t->dims[t->n_dims - 1] : 0;
  emu_check(p, n <= 2048, EMU_TILING, "x is %s: at most 2048 experts", emu_text(t));
  emu_check(p, k >= 0 && k <= n && k <= 1024, EMU_TILING, "k is %lld, expected at most 1024 and the number of experts, %lld", (long long)k,
            (long long)n);
  bool right = y->n_dims == t->n_dims;
  for (int d = 0; right && d < t->n_dims; d++) right = y->dims[d] == (d == t->n_dims - 1 ? k : t->dims[d]);
  emu_check(p, right, EMU_TILING, "yOut is %s, expected the shape of x %s with %lld last", emu_text(y), emu_text(t), (long long)k);
  emu_check(p, emu_same_shape(&p->t[g.experts], y), EMU_TILING, "expertIdxOut is %s, yOut is %s", emu_text(&p->t[g.experts]), emu_text(y));
  emu_needs_contiguous(p, g.y, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, g.experts, EMU_PARAM_INVALID);
  if (g.finished >= 0) {
    const struct emu_tensor *f = &p->t[g.finished];
    EMU_TYPES(p, g.finished, EMU_BOOL);
    right = f->n_dims == t->n_dims - 1;
    for (int d = 0; right && d < f->n_dims; d++) right = f->dims[d] == t->dims[d];
    emu_check(p, right, EMU_TILING, "finishedOptional is %s, x is %s", emu_text(f), emu_text(t));
  }
  if (outputSoftmaxResultFlag && renorm == 0) {
    g.softmax = emu_writes(p, "softmaxResultOutOptional", softmaxResultOutOptional);
    emu_check(p, p->t[g.softmax].type == EMU_FLOAT && emu_same_shape(&p->t[g.softmax], t), EMU_TILING,
              "softmaxResultOutOptional is %s, expected FLOAT with the shape of x, %s", emu_text(&p->t[g.softmax]), emu_text(t));
    emu_needs_contiguous(p, g.softmax, EMU_PARAM_INVALID);
  }
  return emu_finish(p, gating_run, &g, sizeof g, op_workspace(p, p->ok ? (uint64_t)t->n * 4 : 0));
}

/* ---- MoeInitRoutingV2 ------------------------------------------------------------------------------------------------------- */

enum { SHAPES = 561103 }; /* what these two operators return for shapes that do not go together */

struct routing {
  int counts; /* slot, -1: none; x, expertIdx, expandedX, expandedRowIdx are 0 to 3 */
  int64_t experts;
  bool cumulative;
};

static void init_run(struct emu_call *c, const void *ctx) {
  const struct routing *o = ctx;
  const struct emu_tensor *x = &c->t[0], *index = &c->t[1], *expanded = &c->t[2], *rows = &c->t[3];
  int64_t *to = emu_scratch(c, (size_t)(o->experts + 1) * sizeof *to);
  for (int64_t e = 0; e <= o->experts; e++) to[e] = 0;
  for (int64_t i = 0; i < index->n; i++) {
    int64_t e = emu_get_int(index, i);
    if (e < 0 || e >= o->experts) {
      emu_fault(c, EMU_AICORE_EXCEPTION, "expertIdx has %lld at %lld, out of 0 to %lld", (long long)e, (long long)i,
                (long long)o->experts - 1);
      return;
    }
    to[e + 1]++;
  }
  for (int64_t e = 0; e < o->experts; e++) {
    if (o->counts >= 0) emu_set_int(&c->t[o->counts], e, to[e + 1] + (o->cumulative ? to[e] : 0));
    to[e + 1] += to[e];
  }
  for (int64_t i = 0; i < index->n; i++) {
    int64_t row = to[emu_get_int(index, i)]++;
    emu_set_int(rows, i, row);
    struct emu_tensor a = op_slice(expanded, 0, row), b = op_slice(x, 0, i / index->dims[1]);
    op_copy(&a, &b);
  }
}

EMU_OPERATOR(MoeInitRoutingV2, const aclTensor *x, const aclTensor *expertIdx, int64_t activeNum, int64_t expertCapacity, int64_t expertNum,
             int64_t dropPadMode, int64_t expertTokensCountOrCumsumFlag, bool expertTokensBeforeCapacityFlag, const aclTensor *expandedXOut,
             const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut,
             const aclTensor *expertTokensBeforeCapacityOut) {
  EMU_PLAN(p, "MoeInitRoutingV2");
  bool old = emu_chip() == EMU_310P;
  struct routing o = {.counts = -1, .experts = expertNum, .cumulative = expertTokensCountOrCumsumFlag == 1};
  emu_reads(p, "x", x), emu_reads(p, "expertIdx", expertIdx);
  emu_writes(p, "expandedXOut", expandedXOut), emu_writes(p, "expandedRowIdxOut", expandedRowIdxOut);
  const struct emu_tensor *t = p->t;
  emu_check(p, dropPadMode == 0 || dropPadMode == 1, SHAPES, "dropPadMode is %lld, expected 0 or 1", (long long)dropPadMode);
  emu_check(p, expertTokensCountOrCumsumFlag >= 0 && expertTokensCountOrCumsumFlag <= 2, SHAPES,
            "expertTokensCountOrCumsumFlag is %lld, expected 0, 1 or 2", (long long)expertTokensCountOrCumsumFlag);
  emu_check(p, activeNum >= 0 && expertCapacity >= 0 && expertNum >= 0, SHAPES, "activeNum, expertCapacity or expertNum is negative");
  emu_check(p, dropPadMode == 0 && !expertTokensBeforeCapacityFlag, EMU_TILING, "this emulator does routing without drops only");
  if (!p->ok) return emu_finish(p, init_run, &o, sizeof o, 0);
  if (expertTokensCountOrCumsumFlag > 0) {
    emu_check(p, expertNum > 0, SHAPES, "expertNum is 0, but counts are asked for");
    o.counts = emu_writes(p, "expertTokensCountOrCumsumOut", expertTokensCountOrCumsumOut);
    EMU_TYPES(p, o.counts, EMU_INT32);
    emu_check(p, emu_is_shape(&t[o.counts], 1, expertNum), SHAPES, "expertTokensCountOrCumsumOut is %s, expected [%lld]",
              emu_text(&t[o.counts]), (long long)expertNum);
    emu_needs_contiguous(p, o.counts, EMU_PARAM_INVALID);
  }
  (void)expertTokensBeforeCapacityOut; /* not looked at without its flag */
  EMU_TYPES(p, 0, OP_FLOATS);
  EMU_TYPES(p, 1, EMU_INT32);
  op_same_type(p, 2, 0);
  EMU_TYPES(p, 3, EMU_INT32);
  emu_check(p, t[0].n_dims == 2 && t[1].n_dims == 2 && t[0].dims[0] == t[1].dims[0], SHAPES,
            "x is %s, expertIdx is %s, expected [R,H] and [R,K]", emu_text(&t[0]), emu_text(&t[1]));
  int64_t pairs = t[1].n, h = t[0].dims[1];
  emu_check(p, activeNum == 0 || activeNum >= pairs, EMU_TILING, "activeNum is %lld of %lld: this emulator does all rows only",
            (long long)activeNum, (long long)pairs);
  emu_check(p, !old || h % 32 == 0, SHAPES, "x is %s: on this chip the last axis must be a multiple of 32", emu_text(&t[0]));
  emu_check(p, emu_is_shape(&t[2], 2, pairs, h), SHAPES, "expandedXOut is %s, expected [%lld,%lld]", emu_text(&t[2]), (long long)pairs,
            (long long)h);
  emu_check(p, emu_is_shape(&t[3], 1, pairs), SHAPES, "expandedRowIdxOut is %s, expected [%lld]", emu_text(&t[3]), (long long)pairs);
  emu_needs_contiguous(p, 2, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, 3, EMU_PARAM_INVALID);
  return emu_finish(p, init_run, &o, sizeof o, op_workspace(p, p->ok ? (uint64_t)(pairs + expertNum) * 8 + 512 : 0));
}

/* ---- MoeFinalizeRoutingV2 --------------------------------------------------------------------------------------------------- */

struct finalize {
  int x1, x2, bias, scales, experts, out; /* slots, -1: none; expandedX and expandedRowIdx are 0 and 1 */
  int64_t k;
  bool by_row; /* the row of pair (i, j) stands at i K + j; else at i + j R */
};

/* Row `row` of an optional [R,H] added to sum. */
static void add_row(struct emu_call *c, int slot, int64_t row, int64_t h, float *more, float *sum) {
  if (slot < 0) return;
  emu_load_row(&c->t[slot], row * c->t[slot].strides[0], c->t[slot].strides[1], h, more);
  for (int64_t i = 0; i < h; i++) sum[i] += more[i];
}

static void finalize_run(struct emu_call *c, const void *ctx) {
  const struct finalize *f = ctx;
  const struct emu_tensor *expanded = &c->t[0], *rows = &c->t[1], *out = &c->t[f->out];
  int64_t n_rows = out->dims[0], h = out->dims[1];
  float *sum = emu_scratch(c, (size_t)(3 * h + 1) * sizeof *sum), *more = sum + h, *bias = more + h;
  for (int64_t i = 0; i < n_rows; i++) {
    for (int64_t e = 0; e < h; e++) sum[e] = 0;
    add_row(c, f->x1, i, h, more, sum);
    add_row(c, f->x2, i, h, more, sum);
    for (int64_t j = 0; j < f->k; j++) {
      int64_t row = emu_get_int(rows, f->by_row ? i * f->k + j : i + j * n_rows);
      int64_t expert = f->experts >= 0 ? emu_get_int(&c->t[f->experts], i * f->k + j) : 0;
      if (row < 0 || row >= expanded->dims[0] || (f->bias >= 0 && (expert < 0 || expert >= c->t[f->bias].dims[0]))) {
        emu_fault(c, EMU_AICORE_EXCEPTION, "token %lld, choice %lld: row %lld of %lld, expert %lld", (long long)i, (long long)j,
                  (long long)row, (long long)expanded->dims[0], (long long)expert);
        return;
      }
      float scale = f->scales >= 0 ? (float)emu_get(&c->t[f->scales], i * f->k + j) : 1.0f;
      emu_load_row(expanded, row * expanded->strides[0], expanded->strides[1], h, more);
      for (int64_t e = 0; e < h; e++) bias[e] = 0;
      add_row(c, f->bias, expert, h, bias, more);
      for (int64_t e = 0; e < h; e++) sum[e] += scale * more[e];
    }
    emu_store_row(out, i * out->strides[0], out->strides[1], h, sum);
  }
}

EMU_OPERATOR(MoeFinalizeRoutingV2, const aclTensor *expandedX, const aclTensor *expandedRowIdx, const aclTensor *x1Optional,
             const aclTensor *x2Optional, const aclTensor *biasOptional, const aclTensor *scalesOptional,
             const aclTensor *expertIdxOptional, int64_t dropPadMode, const aclTensor *out) {
  EMU_PLAN(p, "MoeFinalizeRoutingV2");
  bool old = emu_chip() == EMU_310P;
  struct finalize f = {.k = 1, .by_row = dropPadMode == 2};
  emu_reads(p, "expandedX", expandedX), emu_reads(p, "expandedRowIdx", expandedRowIdx);
  f.x1 = emu_reads_optional(p, "x1Optional", x1Optional);
  f.x2 = emu_reads_optional(p, "x2Optional", x2Optional);
  f.bias = emu_reads_optional(p, "biasOptional", biasOptional);
  f.scales = emu_reads_optional(p, "scalesOptional", scalesOptional);
  f.experts = emu_reads_optional(p, "expertIdxOptional", expertIdxOptional);
  f.out = emu_writes(p, "out", out);
  if (!p->ok) return emu_finish(p, finalize_run, &f, sizeof f, 0);
  const struct emu_tensor *t = p->t, *a = &t[0], *y = &t[f.out];
  emu_check(p, dropPadMode >= 0 && dropPadMode <= 3, EMU_PARAM_INVALID, "dropPadMode is %lld, expected 0 to 3", (long long)dropPadMode);
  emu_check(p, !old || dropPadMode == 2, EMU_PARAM_INVALID, "dropPadMode is %lld: this chip has 2 only", (long long)dropPadMode);
  emu_check(p, dropPadMode % 2 == 0, EMU_TILING, "dropPadMode is %lld: this emulator does routing without drops only",
            (long long)dropPadMode);
  emu_check(p, !old || (f.x1 < 0 && f.x2 < 0 && f.bias < 0 && f.experts < 0), EMU_PARAM_INVALID,
            "x1Optional, x2Optional, biasOptional and expertIdxOptional must be NULL on this chip");
  emu_check(p, f.x1 >= 0 || f.x2 < 0, EMU_PARAM_INVALID, "x2Optional is given without x1Optional");
  emu_check(p, f.bias < 0 || f.experts >= 0, EMU_PARAM_INVALID, "biasOptional is given without expertIdxOptional");
  EMU_TYPES(p, 0, OP_FLOATS);
  EMU_TYPES(p, 1, EMU_INT32);
  op_same_type(p, f.out, 0);
  emu_check(p, a->n_dims == 2 && y->n_dims == 2 && a->n > 0 && y->n > 0 && a->dims[1] == y->dims[1], SHAPES,
            "expandedX is %s, out is %s, expected [R K,H] and [R,H], none empty", emu_text(a), emu_text(y));
  emu_check(p, !old || y->dims[1] % 32 == 0, SHAPES, "out is %s: on this chip the last axis must be a multiple of 32", emu_text(y));
  if (f.scales >= 0) {
    const struct emu_tensor *s = &t[f.scales];
    emu_check(p, s->type == a->type || (!old && a->type == EMU_BF16 && s->type == EMU_FLOAT), EMU_PARAM_INVALID,
              "scalesOptional is %s with expandedX %s: the same type, or FLOAT with BF16", emu_text(s), emu_text(a));
    emu_check(p, s->n_dims == 2 && s->dims[0] == y->dims[0], SHAPES, "scalesOptional is %s, out is %s", emu_text(s), emu_text(y));
    f.k = s->dims[1];
  }
  emu_check(p, a->dims[0] == y->dims[0] * f.k && emu_is_shape(&t[1], 1, a->dims[0]), SHAPES,
            "expandedX is %s, expandedRowIdx is %s: expected %lld rows", emu_text(a), emu_text(&t[1]), (long long)(y->dims[0] * f.k));
  int added[] = {f.x1, f.x2};
  for (int i = 0; i < 2; i++) {
    if (added[i] < 0) continue;
    op_same_type(p, added[i], 0);
    emu_check(p, emu_same_shape(&t[added[i]], y), SHAPES, "%s is %s, out is %s", t[added[i]].name, emu_text(&t[added[i]]), emu_text(y));
  }
  if (f.bias >= 0) {
    op_same_type(p, f.bias, 0);
    emu_check(p, emu_is_shape(&t[f.bias], 2, (int64_t)-1, y->dims[1]), SHAPES, "biasOptional is %s, out is %s", emu_text(&t[f.bias]),
              emu_text(y));
  }
  if (f.experts >= 0) {
    EMU_TYPES(p, f.experts, EMU_INT32);
    emu_check(p, emu_is_shape(&t[f.experts], 2, y->dims[0], f.k), SHAPES, "expertIdxOptional is %s, expected [%lld,%lld]",
              emu_text(&t[f.experts]), (long long)y->dims[0], (long long)f.k);
  }
  emu_needs_contiguous(p, f.out, EMU_PARAM_INVALID);
  return emu_finish(p, finalize_run, &f, sizeof f, op_workspace(p, 0));
}
