/* op_rope.c — RotaryPositionEmbedding: out = x cos + turned(x) sin.
 *
 * cos and sin are of x's rank and broadcast to it in the forms that the kernel knows; which form it is tells the layout of x, and the layout says
 * what is limited. Where several fit (sizes of 1) one that is admitted is enough.
 */
#include "op_shared.h"

struct rope {
  int64_t mode;
};

static void rope_run(struct emu_call *c, const void *ctx) {
  const struct rope *o = ctx;
  const struct emu_tensor *x = &c->t[0], *out = &c->t[3];
  struct emu_tensor cos = emu_broadcast(&c->t[1], x), sin = emu_broadcast(&c->t[2], x);
  int axis = x->n_dims - 1;
  int64_t n = x->dims[axis], lines = x->n > 0 ? op_line_count(x, axis) : 0;
  float *row = emu_scratch(c, (size_t)n * 4 * sizeof *row), *a = row + n, *b = a + n, *y = b + n;
  for (int64_t l = 0; l < lines; l++) {
    emu_load_row(x, op_line_start(x, axis, l), x->strides[axis], n, row);
    emu_load_row(&cos, op_line_start(&cos, axis, l), cos.strides[axis], n, a);
    emu_load_row(&sin, op_line_start(&sin, axis, l), sin.strides[axis], n, b);
    for (int64_t i = 0; i < n; i++) {
      float turned;
      if (o->mode == 0) turned = i < n / 2 ? -row[i + n / 2] : row[i - n / 2];
      else turned = i % 2 == 0 ? -row[i + 1] : row[i - 1];
      y[i] = row[i] * a[i] + turned * b[i];
    }
    emu_store_row(out, op_line_start(out, axis, l), out->strides[axis], n, y);
  }
}

static bool table_is(const struct emu_tensor *t, int64_t a, int64_t b, int64_t c) {
  return t->dims[0] == a && t->dims[1] == b && t->dims[2] == c;
}

/* Is one of the layouts that the tables fit admitted? *known: one fits. */
static bool layout_fits(const struct emu_tensor *x, const struct emu_tensor *t, int64_t mode, bool *known) {
  const int64_t *d = x->dims;
  bool old = emu_chip() == EMU_310P;
  if (x->n_dims == 3) { /* TND */
    *known = (t->dims[0] == d[0] && t->dims[1] == 1) || (mode == 0 && t->dims[0] == d[0] && t->dims[1] == d[1]);
    return *known && d[1] < 1000;
  }
  int64_t size = emu_element_bits(x->type) / 8, n = d[3];
  bool fits = false, full = mode == 0 && table_is(t, d[0], d[1], d[2]);
  *known = false;
  if (full || table_is(t, 1, d[1], 1) || (mode == 0 && table_is(t, d[0], d[1], 1))) { /* BSND */
    *known = true;
    fits |= (mode == 0 ? d[0] < 1000 && d[2] < 1000 : d[0] * d[2] < 1000) && !(old && (d[2] - 1) * n * size / 32 >= 65535);
  }
  if (full || table_is(t, d[0], 1, 1) || (mode == 0 && table_is(t, d[0], d[1], 1))) { /* SBND */
    *known = true;
    fits |= (mode == 0 ? d[1] < 1000 && d[2] < 1000 : d[1] * d[2] < 1000) && !(old && (d[1] * d[2] - 1) * n * size / 32 >= 65535);
  }
  if (full || table_is(t, 1, 1, d[2]) || (mode == 0 && table_is(t, d[0], 1, d[2]))) { /* BNSD */
    *known = true;
    bool few;
    if (old || n / 2 * size % 32 == 0) few = d[0] * d[1] <= 8 * d[2];
    else few = 2 * d[0] * d[1] <= (d[2] + 39) / 40 || n >= 80;
    fits |= mode == 0 ? d[0] < 1000 && d[1] < 1000 && few : d[0] * d[1] < 1000;
  }
  return fits;
}

EMU_OPERATOR(RotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos, const aclTensor *sin, int64_t mode, aclTensor *out) {
  EMU_PLAN(p, "RotaryPositionEmbedding");
  int a = emu_reads(p, "x", x), b = emu_reads(p, "cos", cos), c = emu_reads(p, "sin", sin), y = emu_writes(p, "out", out);
  const struct emu_tensor *t = p->t;
  bool old = emu_chip() == EMU_310P;
  EMU_TYPES(p, a, OP_FLOATS);
  op_same_type(p, b, a), op_same_type(p, c, a), op_same_type(p, y, a);
  op_rank(p, a, 3, 4);
  emu_check(p, mode == 0 || (mode == 1 && !old), EMU_PARAM_INVALID, "mode is %lld, this chip has %s", (long long)mode,
            old ? "0 (half)" : "0 (half) and 1 (interleave)");
  op_same_shape(p, y, a), op_same_shape(p, c, b);
  if (!p->ok) return emu_finish(p, rope_run, NULL, 0, 0);
  int64_t n = t[a].dims[t[a].n_dims - 1];
  emu_check(p, t[b].n_dims == t[a].n_dims && t[b].dims[t[b].n_dims - 1] == n, EMU_TILING,
            "cos is %s, it must have the rank and the last dimension of x, %s", emu_text(&t[b]), emu_text(&t[a]));
  if (old)
    emu_check(p, n <= 128 && n % 32 == 0, EMU_TILING, "x is %s: on this chip the last dimension must be a multiple of 32 up to 128",
              emu_text(&t[a]));
  else emu_check(p, n < 896 && n % 2 == 0, EMU_TILING, "x is %s: the last dimension must be even and below 896", emu_text(&t[a]));
  bool known = false, fits = p->ok && layout_fits(&t[a], &t[b], mode, &known);
  emu_check(p, known, EMU_TILING, "cos is %s: no form for x, %s, in mode %lld", emu_text(&t[b]), emu_text(&t[a]), (long long)mode);
  emu_check(p, fits, EMU_TILING, "x is %s with cos %s: too many batches or heads for that layout", emu_text(&t[a]), emu_text(&t[b]));
  emu_needs_contiguous(p, y, EMU_PARAM_INVALID);
  struct rope o = {mode};
  return emu_finish(p, rope_run, &o, sizeof o, op_workspace(p, 0));
}
