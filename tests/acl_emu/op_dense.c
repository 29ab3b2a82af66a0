/* op_dense.c — products of matrices of floats: Mm, BatchMatMul.
 *
 * float32 operands go through the cube unit as HF32 when cubeMathType says so; on 310P as halves always, which cubeMathType must admit.
 */
#include "op_shared.h"

struct dense {
  enum op_operand as;
};

static void check_math_type(struct emu_plan *p, int slot, int cube_math_type, enum op_operand *as) {
  int type = p->t[slot].type;
  bool old = emu_chip() == EMU_310P;
  int most = emu_cann() >= 900 ? 4 : 3;
  emu_check(p, cube_math_type >= 0 && cube_math_type <= most, EMU_PARAM_INVALID, "cubeMathType is %d, expected 0 to %d", cube_math_type,
            most);
  emu_check(p, !(cube_math_type == 2 && type == EMU_BF16), EMU_PARAM_INVALID, "cubeMathType 2 (use fp16) does not go with BF16 operands");
  emu_check(p, !(old && cube_math_type >= 3), EMU_PARAM_INVALID, "cubeMathType is %d: this chip has no HF32", cube_math_type);
  emu_check(p, !(old && type == EMU_FLOAT && cube_math_type == 0), EMU_PARAM_INVALID,
            "cubeMathType 0 (keep the type) with FLOAT operands: this chip multiplies halves only");
  *as = OP_EXACT;
  if (type != EMU_FLOAT) return;
  if (old || cube_math_type == 2) *as = OP_HALF;
  else if (cube_math_type == 1 || cube_math_type == 3) *as = OP_HF32;
}

static void check_operands(struct emu_plan *p, int a, int b, int out, int cube_math_type, enum op_operand *as) {
  EMU_TYPES(p, a, OP_FLOATS);
  op_same_type(p, b, a);
  op_same_type(p, out, a);
  check_math_type(p, a, cube_math_type, as);
}

/* x [m, k] of the view as floats, as the cube sees them. */
static float *left_operand(struct emu_call *c, const struct emu_tensor *x, enum op_operand as) {
  float *f = emu_floats(c, x);
  op_operands(as, f, x->n);
  return f;
}

static void mm_run(struct emu_call *c, const void *ctx) {
  const struct dense *d = ctx;
  const struct emu_tensor *x = &c->t[0], *w = &c->t[1], *out = &c->t[2];
  if (out->n == 0) return;
  float *y = emu_scratch(c, (size_t)out->n * sizeof *y);
  op_multiply(c, left_operand(c, x, d->as), x->dims[0], w, d->as, NULL, y);
  emu_put_floats(out, y);
}

EMU_OPERATOR(Mm, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType) {
  EMU_PLAN(p, "Mm");
  struct dense d = {OP_EXACT};
  if (mat2) emu_allow_nz(p, mat2);
  int x = emu_reads(p, "self", self), w = emu_reads(p, "mat2", mat2), y = emu_writes(p, "out", out);
  const struct emu_tensor *t = p->t;
  op_rank(p, x, 2, 2), op_rank(p, w, 2, 2), op_rank(p, y, 2, 2);
  check_operands(p, x, w, y, cubeMathType, &d.as);
  emu_check(p, t[x].dims[1] == t[w].dims[0], EMU_PARAM_INVALID, "self is %s, mat2 is %s: the inner dimensions differ", emu_text(&t[x]),
            emu_text(&t[w]));
  emu_check(p, t[y].dims[0] == t[x].dims[0] && t[y].dims[1] == t[w].dims[1], EMU_PARAM_INVALID, "out is %s, expected [%lld,%lld]",
            emu_text(&t[y]), (long long)t[x].dims[0], (long long)t[w].dims[1]);
  if (p->ok && t[w].format == EMU_NZ) {
    int inner = t[w].type == EMU_FLOAT ? 8 : 16;
    const int64_t *s = t[w].storage_dims;
    emu_check(p,
              t[w].n_storage_dims == 4 && s[0] == (t[w].dims[1] + inner - 1) / inner && s[1] == (t[w].dims[0] + 15) / 16 && s[2] == 16 &&
                  s[3] == inner,
              EMU_PARAM_INVALID, "mat2 is FRACTAL_NZ %s: its storage must be [%lld,%lld,16,%d]", emu_text(&t[w]),
              (long long)((t[w].dims[1] + inner - 1) / inner), (long long)((t[w].dims[0] + 15) / 16), inner);
  }
  return emu_finish(p, mm_run, &d, sizeof d, op_workspace(p, p->ok ? (uint64_t)t[y].n * 4 : 0));
}

static void batch_run(struct emu_call *c, const void *ctx) {
  const struct dense *d = ctx;
  const struct emu_tensor *x = &c->t[0], *w = &c->t[1], *out = &c->t[2];
  if (out->n == 0) return;
  int64_t m = x->dims[1], k = x->dims[2], n = w->dims[2];
  float *f = left_operand(c, x, d->as), *y = emu_scratch(c, (size_t)out->n * sizeof *y);
  for (int64_t b = 0; b < out->dims[0]; b++) {
    struct emu_tensor one = op_slice(w, 0, w->dims[0] == 1 ? 0 : b);
    op_multiply(c, f + (x->dims[0] == 1 ? 0 : b * m * k), m, &one, d->as, NULL, y + b * m * n);
  }
  emu_put_floats(out, y);
}

EMU_OPERATOR(BatchMatMul, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType) {
  EMU_PLAN(p, "BatchMatMul");
  struct dense d = {OP_EXACT};
  int x = emu_reads(p, "self", self), w = emu_reads(p, "mat2", mat2), y = emu_writes(p, "out", out);
  const struct emu_tensor *t = p->t;
  op_rank(p, x, 3, 3), op_rank(p, w, 3, 3), op_rank(p, y, 3, 3);
  check_operands(p, x, w, y, cubeMathType, &d.as);
  emu_check(p, t[x].dims[2] == t[w].dims[1], EMU_PARAM_INVALID, "self is %s, mat2 is %s: the inner dimensions differ", emu_text(&t[x]),
            emu_text(&t[w]));
  int64_t a = t[x].dims[0], b = t[w].dims[0];
  emu_check(p, a == b || a == 1 || b == 1, EMU_PARAM_INVALID, "self is %s, mat2 is %s: batches must be equal, or one of them 1",
            emu_text(&t[x]), emu_text(&t[w]));
  emu_check(p, t[y].dims[0] == (a == 1 ? b : a) && t[y].dims[1] == t[x].dims[1] && t[y].dims[2] == t[w].dims[2], EMU_PARAM_INVALID,
            "out is %s, expected [%lld,%lld,%lld]", emu_text(&t[y]), (long long)(a == 1 ? b : a), (long long)t[x].dims[1],
            (long long)t[w].dims[2]);
  return emu_finish(p, batch_run, &d, sizeof d, op_workspace(p, p->ok ? (uint64_t)t[y].n * 4 : 0));
}
