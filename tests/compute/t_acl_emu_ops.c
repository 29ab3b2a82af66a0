/* t_acl_emu_ops.c — the emulated NPU's operators, attention and rows aside: products, elementwise, gated activations, rope, norms. Each against
 * float64 loops over random shapes, strides and types, and each check by a call that breaks it, on every profile.
 */
#include "test.h"

#include "acl_arrays.h"

/* ---- dense products --------------------------------------------------------------------------------------------------------- */

static void test_mm(void) {
  for (int round = 0; round < 120; round++) {
    int64_t m = rnd(1, 9), k = rnd(1, 70), n = rnd(1, 40);
    int type = any_float(), math = type == NPU_FLOAT ? (old_chip ? rnd(1, 2) : rnd(0, 3)) : type == NPU_FLOAT16 ? rnd(0, 2) : rnd(0, 1);
    struct array *x = S(type, m, k), *w = S(type, k, n), *y = S(type, m, n);
    RUN(Mm, x->t, w->t, y->t, (int8_t)math);
    double *want = room(m * n);
    for (int64_t i = 0; i < m * n; i++)
      for (int64_t j = 0; j < k; j++) want[i] += x->x[i / n * k + j] * w->x[j * n + i % n];
    bool rough = type == NPU_FLOAT && (math || old_chip);
    expect(y, want, rough ? NPU_FLOAT16 : type, rough ? 3 : 1, sqrt((double)k));
    release();
  }
  /* the sums of one row do not depend on the others, nor on how the weight lies */
  struct array *x = A(NPU_FLOAT16, 5, 33), *w = A(NPU_FLOAT16, 33, 19), *y = A(NPU_FLOAT16, 5, 19), *z = A(NPU_FLOAT16, 5, 19);
  int64_t turned[] = {1, 33}, whole = 33 * 19;
  struct array *copy = A(NPU_FLOAT16, 19, 33);
  for (int64_t i = 0; i < 33; i++)
    for (int64_t j = 0; j < 19; j++) copy->x[j * 33 + i] = w->x[i * 19 + j];
  send(copy);
  aclTensor *view = a.aclCreateTensor((int64_t[]){33, 19}, 2, NPU_FLOAT16, turned, 0, NPU_ND, &whole, 1, copy->device);
  RUN(Mm, x->t, w->t, y->t, 0);
  RUN(Mm, x->t, view, z->t, 0);
  double *a_row = fetch(y), *b_row = fetch(z);
  assert_memory_equal(a_row, b_row, 5 * 19 * sizeof(double));
  free(a_row);
  free(b_row);
  a.aclDestroyTensor(view);
  release();
}

static void test_mm_nz(void) {
  int64_t k = 37, n = 21, storage[] = {2, 3, 16, 16};
  struct array *x = A(NPU_FLOAT16, 3, k), *w = A(NPU_FLOAT16, k, n), *packed = A(NPU_FLOAT16, 2 * 3 * 16 * 16), *y = A(NPU_FLOAT16, 3, n);
  for (int64_t i = 0; i < k; i++)
    for (int64_t j = 0; j < n; j++) packed->x[((j / 16 * 3 + i / 16) * 16 + i % 16) * 16 + j % 16] = w->x[i * n + j];
  send(packed);
  aclTensor *nz = a.aclCreateTensor((int64_t[]){k, n}, 2, NPU_FLOAT16, NULL, 0, NPU_FRACTAL_NZ, storage, 4, packed->device);
  RUN(Mm, x->t, nz, y->t, 0);
  double *want = room(3 * n);
  for (int64_t i = 0; i < 3 * n; i++)
    for (int64_t j = 0; j < k; j++) want[i] += x->x[i / n * k + j] * w->x[j * n + i % n];
  expect(y, want, NPU_FLOAT16, 1, 6);
  struct array *other = A(NPU_FLOAT16, k, n);
  REFUSED(INVALID, Mul, nz, w->t, other->t);
  REFUSED(INVALID, Mm, nz, w->t, y->t, 0);
  a.aclDestroyTensor(nz);
  storage[1] = 4;
  nz = a.aclCreateTensor((int64_t[]){k, n}, 2, NPU_FLOAT16, NULL, 0, NPU_FRACTAL_NZ, storage, 4, packed->device);
  if (nz) { /* else refused at once */
    REFUSED(INVALID, Mm, x->t, nz, y->t, 0);
    a.aclDestroyTensor(nz);
  }
  release();
}

static void test_mm_refusals(void) {
  struct array *x = A(NPU_FLOAT16, 3, 8), *w = A(NPU_FLOAT16, 8, 5), *y = A(NPU_FLOAT16, 3, 5), *f = A(NPU_FLOAT, 3, 5);
  REFUSED(NULL_POINTER, Mm, NULL, w->t, y->t, 0);
  REFUSED(NULL_POINTER, Mm, x->t, NULL, y->t, 0);
  REFUSED(NULL_POINTER, Mm, x->t, w->t, NULL, 0);
  REFUSED(INVALID, Mm, x->t, w->t, f->t, 0);
  REFUSED(INVALID, Mm, x->t, A(NPU_FLOAT, 8, 5)->t, y->t, 0);
  REFUSED(INVALID, Mm, x->t, A(NPU_FLOAT16, 9, 5)->t, y->t, 0);
  REFUSED(INVALID, Mm, x->t, w->t, A(NPU_FLOAT16, 3, 6)->t, 0);
  REFUSED(INVALID, Mm, A(NPU_FLOAT16, 1, 3, 8)->t, w->t, y->t, 0);
  REFUSED(INVALID, Mm, A(NPU_INT8, 3, 8)->t, A(NPU_INT8, 8, 5)->t, A(NPU_INT8, 3, 5)->t, 0);
  REFUSED(INVALID, Mm, x->t, w->t, y->t, -1);
  REFUSED(INVALID, Mm, x->t, w->t, y->t, 5);
  REFUSED(INVALID, Mm, x->t, A(NPU_FLOAT16, 8, 3)->t, x->t, 0);
  struct array *b = A(NPU_BF16, 3, 8), *c = A(NPU_BF16, 8, 5), *d = A(NPU_BF16, 3, 5);
  if (old_chip) {
    REFUSED(INVALID, Mm, b->t, c->t, d->t, 0);
    REFUSED(INVALID, Mm, A(NPU_FLOAT, 3, 8)->t, A(NPU_FLOAT, 8, 5)->t, f->t, 0);
    REFUSED(INVALID, Mm, A(NPU_FLOAT, 3, 8)->t, A(NPU_FLOAT, 8, 5)->t, f->t, 3);
  } else {
    REFUSED(INVALID, Mm, b->t, c->t, d->t, 2);
    REFUSED(INVALID, Mm, b->t, c->t, f->t, 0);
    REFUSED(INVALID, Mm, b->t, w->t, d->t, 0);
  }
  release();
}

static void test_batch(void) {
  for (int round = 0; round < 100; round++) {
    int64_t b = rnd(1, 4), m = rnd(1, 6), k = rnd(1, 30), n = rnd(1, 20), bx = rnd(0, 3) ? b : 1, bw = bx == 1 || rnd(0, 3) ? b : 1;
    int type = old_chip ? NPU_FLOAT16 : any_float();
    struct array *x = S(type, bx, m, k), *w = S(type, bw, k, n), *y = S(type, b, m, n);
    RUN(BatchMatMul, x->t, w->t, y->t, 0);
    double *want = room(y->n);
    for (int64_t i = 0; i < y->n; i++) {
      int64_t z = i / (m * n), r = i / n % m, c = i % n;
      for (int64_t j = 0; j < k; j++) want[i] += x->x[((bx == 1 ? 0 : z) * m + r) * k + j] * w->x[((bw == 1 ? 0 : z) * k + j) * n + c];
    }
    expect(y, want, type, 1, sqrt((double)k));
    release();
  }
  struct array *x = A(NPU_FLOAT16, 2, 3, 8), *w = A(NPU_FLOAT16, 2, 8, 5), *y = A(NPU_FLOAT16, 2, 3, 5);
  REFUSED(NULL_POINTER, BatchMatMul, x->t, w->t, NULL, 0);
  REFUSED(INVALID, BatchMatMul, x->t, A(NPU_FLOAT16, 8, 5)->t, y->t, 0);
  REFUSED(INVALID, BatchMatMul, x->t, A(NPU_FLOAT16, 3, 8, 5)->t, y->t, 0);
  REFUSED(INVALID, BatchMatMul, x->t, A(NPU_FLOAT16, 2, 7, 5)->t, y->t, 0);
  REFUSED(INVALID, BatchMatMul, x->t, w->t, A(NPU_FLOAT16, 1, 3, 5)->t, 0);
  REFUSED(INVALID, BatchMatMul, x->t, w->t, A(NPU_FLOAT, 2, 3, 5)->t, 0);
  REFUSED(INVALID, BatchMatMul, x->t, w->t, y->t, 9);
  release();
}

/* ---- quantised weights ------------------------------------------------------------------------------------------------------ */

/* A [k, n] matrix as a whole, or as a view of an [n, k] one. */
static struct array *matrix(int type, bool turned, int64_t k, int64_t n) {
  struct array *t = A(type, k, n);
  if (!turned) return t;
  t->strides[0] = 1;
  t->strides[1] = k;
  send(t);
  a.aclDestroyTensor(t->t);
  t->t = a.aclCreateTensor(t->dims, 2, type, t->strides, 0, NPU_ND, &t->storage, 1, t->device);
  return t;
}

static void test_quant(void) {
  for (int round = 0; round < 120; round++) {
    bool turned = rnd(0, 1), grouped = !old_chip && rnd(0, 1), four = !old_chip && rnd(0, 1), offsets = rnd(0, 1), biased = rnd(0, 1);
    int64_t m = rnd(1, 5), k = grouped ? rnd(17, 60) * 2 : rnd(1, 40) * 2, n = rnd(1, 20) * 2, g = grouped ? 32 : 0;
    int type = half_type();
    int64_t groups = g ? (k + g - 1) / g : 1;
    struct array *x = A(type, m, k), *w = matrix(four ? NPU_INT4 : NPU_INT8, turned, k, n), *s, *o = NULL, *b = NULL, *y = A(type, m, n);
    bool one = !g && rnd(0, 2) == 0;
    s = g ? matrix(type, turned, groups, n) : one ? A(type, 1) : rnd(0, 1) ? A(type, n) : A(type, 1, n);
    if (offsets) o = g ? matrix(type, turned, groups, n) : s->n_dims == 2 ? A(type, 1, n) : A(type, s->dims[0]);
    if (biased) b = A(type == NPU_BF16 ? NPU_FLOAT : NPU_FLOAT16, n);
    RUN(WeightQuantBatchMatmulV2, x->t, w->t, s->t, o ? o->t : NULL, NULL, NULL, b ? b->t : NULL, (int)g, y->t);
    double *want = room(m * n);
    for (int64_t i = 0; i < m * n; i++) {
      want[i] = b ? b->x[i % n] : 0;
      for (int64_t j = 0; j < k; j++) {
        int64_t at = one ? 0 : (g ? j / g : 0) * n + i % n;
        want[i] += x->x[i / n * k + j] * rounded(type, (w->x[j * n + i % n] + (o ? o->x[at] : 0)) * s->x[at]);
      }
    }
    expect(y, want, type, 1, (four ? 0.1 : 1) * sqrt((double)k));
    release();
  }
}

static void test_quant_refusals(void) {
  int t = NPU_FLOAT16;
  struct array *x = A(t, 2, 64), *w = A(NPU_INT8, 64, 6), *s = A(t, 6), *g = A(t, 2, 6), *y = A(t, 2, 6);
#define WQ(code, ...) REFUSED(code, WeightQuantBatchMatmulV2, __VA_ARGS__)
  WQ(NULL_POINTER, NULL, w->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(NULL_POINTER, x->t, w->t, NULL, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, A(NPU_FLOAT, 2, 64)->t, w->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, A(NPU_UINT8, 64, 6)->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, w->t, A(NPU_FLOAT, 6)->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, w->t, A(t, 5)->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, w->t, s->t, A(t, 1)->t, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, w->t, s->t, NULL, NULL, NULL, A(NPU_FLOAT, 6)->t, 0, y->t);
  WQ(INVALID, x->t, w->t, s->t, NULL, NULL, NULL, A(t, 7)->t, 0, y->t);
  WQ(INVALID, x->t, w->t, s->t, NULL, NULL, NULL, NULL, 0, A(t, 2, 7)->t);
  WQ(INVALID, x->t, A(NPU_INT8, 63, 6)->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, array(NPU_INT8, PADDED, DIMS(64, 6))->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  WQ(INVALID, x->t, w->t, s->t, NULL, NULL, NULL, NULL, 0, array(t, PADDED, DIMS(2, 6))->t);
  WQ(TILING, x->t, w->t, s->t, NULL, s->t, NULL, NULL, 0, y->t);
  for (int bad = -32; bad <= 96; bad += 16) { /* k = 64: only 32 will do */
    if (bad != 0 && bad != 32) WQ(INVALID, x->t, w->t, g->t, NULL, NULL, NULL, NULL, bad, y->t);
  }
  WQ(INVALID, A(t, 2, 32)->t, A(NPU_INT8, 32, 6)->t, A(t, 1, 6)->t, NULL, NULL, NULL, NULL, 32, y->t);
  if (old_chip) {
    WQ(INVALID, x->t, w->t, g->t, NULL, NULL, NULL, NULL, 32, y->t);
    WQ(INVALID, x->t, A(NPU_INT4, 64, 6)->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
  } else {
    WQ(INVALID, x->t, w->t, s->t, NULL, NULL, NULL, NULL, 32, y->t);
    WQ(INVALID, x->t, w->t, matrix(t, true, 2, 6)->t, NULL, NULL, NULL, NULL, 32, y->t);
    WQ(INVALID, x->t, matrix(NPU_INT8, true, 64, 6)->t, g->t, NULL, NULL, NULL, NULL, 32, y->t);
  }
  release();
  /* k and n up to 65535 */
  struct array *long_x = A(t, 1, 2), *wide = A(NPU_INT8, 2, 65536), *long_s = A(t, 1), *long_y = A(t, 1, 65536);
  WQ(INVALID, long_x->t, wide->t, long_s->t, NULL, NULL, NULL, NULL, 0, long_y->t);
  WQ(INVALID, A(t, 1, 65536)->t, A(NPU_INT8, 65536, 2)->t, long_s->t, NULL, NULL, NULL, NULL, 0, A(t, 1, 2)->t);
#undef WQ
  release();
}

/* ---- elementwise ------------------------------------------------------------------------------------------------------------ */

static double gelu(double x, bool tanh_form) {
  return tanh_form ? 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) : 0.5 * x * (1 + erf(x / sqrt(2)));
}
static double silu(double x) { return x / (1 + exp(-x)); }

static void test_unary(void) {
  for (int round = 0; round < 80; round++) {
    int type = any_float();
    int64_t r = rnd(1, 4), c = rnd(1, 40);
    for (int kind = 0; kind < 7; kind++) {
      struct array *x = rnd(0, 1) ? S(type, r, c) : S(type, 2, r, c), *y = array(type, (enum layout)rnd(WHOLE, SPREAD), x->n_dims, x->dims);
      double *want = room(x->n);
      for (int64_t i = 0; i < x->n; i++) {
        double v = x->x[i];
        want[i] = kind == 0   ? silu(v)
                  : kind == 1 ? 1 / (1 + exp(-v))
                  : kind == 2 ? (v > 0 ? v : 0)
                  : kind <= 4 ? tanh(v)
                              : gelu(v, kind == 6);
      }
      if (kind == 0) RUN(Silu, x->t, y->t);
      if (kind == 1) RUN(Sigmoid, x->t, y->t);
      if (kind == 2) RUN(Relu, x->t, y->t);
      if (kind == 3) RUN(Tanh, x->t, y->t);
      if (kind == 4) RUN(InplaceTanh, x->t);
      if (kind >= 5) RUN(GeluV2, x->t, kind - 5, y->t);
      expect(kind == 4 ? x : y, want, type, 1, 0.1);
    }
    release();
  }
  struct array *x = A(NPU_FLOAT16, 2, 6), *y = A(NPU_FLOAT16, 2, 6), *i = A(NPU_INT32, 2, 6), *z = A(NPU_FLOAT16, 6, 2);
  REFUSED(NULL_POINTER, Silu, NULL, y->t);
  REFUSED(INVALID, Silu, i->t, y->t);
  REFUSED(INVALID, Silu, x->t, i->t);
  REFUSED(INVALID, Sigmoid, x->t, z->t);
  REFUSED(INVALID, Tanh, x->t, z->t);
  REFUSED(NULL_POINTER, Relu, x->t, NULL);
  REFUSED(NULL_POINTER, InplaceTanh, NULL);
  REFUSED(INVALID, InplaceTanh, i->t);
  REFUSED(INVALID, GeluV2, x->t, 2, y->t);
  REFUSED(INVALID, GeluV2, x->t, 1, A(NPU_FLOAT, 2, 6)->t);
  REFUSED(INVALID, GeluV2, x->t, 1, z->t);
  REFUSED(INVALID, Silu, x->t, x->t); /* an output is not an input */
  release();
}

static void test_binary(void) {
  for (int round = 0; round < 120; round++) {
    int type = any_float(), other = rnd(0, 2) ? type : any_float();
    int64_t b = rnd(1, 3), r = rnd(1, 4), c = rnd(1, 20);
    struct array *x = S(type, b, r, c), *y, *z = S(type, b, r, c);
    int form = rnd(0, 3); /* how y broadcasts */
    y = form == 0 ? S(other, b, r, c) : form == 1 ? S(other, c) : form == 2 ? S(other, b, r, 1) : S(other, 1, r, c);
    double alpha = rnd(0, 1) ? 1 : 0.5, *sum = room(x->n), *product = room(x->n), *again = room(x->n), *last = room(x->n);
    for (int64_t i = 0; i < x->n; i++) {
      double v = y->x[form == 0 ? i : form == 1 ? i % c : form == 2 ? i / c : i % (r * c)];
      sum[i] = again[i] = x->x[i] + alpha * v;
      product[i] = last[i] = x->x[i] * v;
    }
    RUN(Add, x->t, y->t, number(alpha), z->t);
    expect(z, sum, type, 1, 0.01);
    RUN(Mul, x->t, y->t, z->t);
    expect(z, product, type, 1, 0.01);
    RUN(InplaceAdd, x->t, y->t, number(alpha));
    expect(x, again, type, 1, 0.01);
    send(x);
    RUN(InplaceMul, x->t, y->t);
    expect(x, last, type, 1, 0.01);
    release();
  }
  struct array *i = A(NPU_INT32, 3, 4), *j = A(NPU_INT64, 4), *k = A(NPU_INT64, 3, 4);
  double *want = room(12), *product = room(12);
  for (int n = 0; n < 12; n++) want[n] = i->x[n] + 3 * j->x[n % 4], product[n] = i->x[n] * j->x[n % 4];
  RUN(Add, i->t, j->t, integer(3), k->t);
  expect(k, want, NPU_INT64, 0, 0);
  RUN(Mul, i->t, j->t, k->t);
  expect(k, product, NPU_INT64, 0, 0);
  struct array *x = A(NPU_FLOAT16, 2, 6), *y = A(NPU_FLOAT16, 6), *z = A(NPU_FLOAT16, 2, 6);
  REFUSED(NULL_POINTER, Add, x->t, y->t, NULL, z->t);
  REFUSED(NULL_POINTER, Mul, x->t, NULL, z->t);
  REFUSED(INVALID, Add, i->t, i->t, number(1), k->t);
  REFUSED(INVALID, Add, x->t, A(NPU_FLOAT16, 5)->t, number(1), z->t);
  REFUSED(INVALID, Mul, x->t, y->t, A(NPU_FLOAT16, 6, 2)->t);
  REFUSED(INVALID, Mul, y->t, y->t, z->t);
  REFUSED(INVALID, Mul, y->t, y->t, A(NPU_FLOAT16, 1, 6)->t);
  REFUSED(INVALID, InplaceMul, y->t, x->t);
  REFUSED(INVALID, InplaceAdd, i->t, A(NPU_FLOAT16, 3, 4)->t, number(1));
  REFUSED(INVALID, Mul, x->t, y->t, A(NPU_INT32, 2, 6)->t);
  REFUSED(INVALID, Add, x->t, y->t, number(1), x->t);
  REFUSED(INVALID, InplaceAdd, x->t, x->t, number(1));
  release();
}

static void test_scaled(void) {
  for (int round = 0; round < 100; round++) {
    int type = any_float();
    int64_t r = rnd(1, 4), c = rnd(1, 600);
    struct array *x = S(type, r, c), *y = S(type, r, c);
    double s = rounded(NPU_FLOAT, test_rand_normal(&seed)), alpha = 0.5, lo = -0.5, hi = rnd(0, 1) ? 0.5 : INFINITY;
    double *scaled = room(x->n), *again = room(x->n), *shifted = room(x->n), *clamped = room(x->n);
    for (int64_t i = 0; i < x->n; i++) {
      scaled[i] = again[i] = x->x[i] * s;
      shifted[i] = x->x[i] + s * alpha;
      clamped[i] = fmin(fmax(x->x[i], lo), hi);
    }
    RUN(Muls, x->t, number(s), y->t);
    expect(y, scaled, type, 2, 0.01);
    RUN(Adds, x->t, number(s), number(alpha), y->t);
    expect(y, shifted, type, 2, 0.5);
    RUN(Clamp, x->t, number(lo), isinf(hi) ? NULL : number(hi), y->t);
    expect(y, clamped, type, 0, 0);
    RUN(InplaceMuls, x->t, number(s));
    expect(x, again, type, 2, 0.01);
    release();
  }
  struct array *x = A(NPU_FLOAT16, 2, 6), *y = A(NPU_FLOAT16, 2, 6), *i = A(NPU_INT32, 2, 6);
  REFUSED(NULL_POINTER, Muls, x->t, NULL, y->t);
  REFUSED(NULL_POINTER, Adds, x->t, number(1), NULL, y->t);
  REFUSED(INVALID, Muls, x->t, number(1), A(NPU_FLOAT16, 6)->t);
  REFUSED(INVALID, Muls, i->t, number(1), A(NPU_INT32, 2, 6)->t);
  REFUSED(INVALID, InplaceMuls, i->t, number(1));
  REFUSED(INVALID, Clamp, x->t, number(0), number(1), A(NPU_FLOAT16, 6, 2)->t);
  REFUSED(NULL_POINTER, Clamp, x->t, NULL, NULL, y->t);
  release();
}

static void test_casts(void) {
  const int types[] = {NPU_FLOAT, NPU_FLOAT16, NPU_BF16, NPU_INT32, NPU_INT64, NPU_BOOL, NPU_UINT8, NPU_INT8};
  for (int round = 0; round < 150; round++) {
    int from = types[rnd(0, 7)], to = types[rnd(0, 7)];
    if (old_chip && (from == NPU_BF16 || to == NPU_BF16)) continue;
    int64_t r = rnd(1, 4), c = rnd(1, 20);
    struct array *x = from == NPU_BOOL ? A(from, r, c) : S(from, r, c), *y = S(to, r, c), *z = S(to, 2, r, c);
    for (int64_t i = 0; i < x->n; i++) { /* what fits everywhere, or comes near a bound */
      double v = type_is_float(from) ? (double)test_rand_normal(&seed) * 40 : rnd(0, 100);
      x->x[i] = from == NPU_BOOL ? rnd(0, 1) : to == NPU_UINT8 ? fabs(v) : v;
    }
    send(x);
    double *want = room(x->n), *twice = room(2 * x->n);
    for (int64_t i = 0; i < x->n; i++) {
      double v = x->x[i];
      want[i] = to == NPU_BOOL ? v != 0 : type_is_float(to) ? rounded(to, v) : to == NPU_INT8 ? fmax(-128, fmin(127, trunc(v))) : trunc(v);
      twice[i] = twice[x->n + i] = want[i];
    }
    RUN(Cast, x->t, to, y->t);
    expect(y, want, to, 0, 0);
    RUN(InplaceCopy, z->t, x->t);
    expect(z, twice, to, 0, 0);
    release();
  }
  struct array *x = A(NPU_FLOAT16, 2, 6), *y = A(NPU_FLOAT, 2, 6), *b = array(NPU_BOOL, PADDED, DIMS(2, 6));
  struct array *large = A(NPU_INT64, 1), *copy = A(NPU_INT64, 1);
  large->x[0] = 9007199254740991.0;
  send(large);
  double *same = room(1);
  same[0] = large->x[0];
  RUN(InplaceCopy, copy->t, large->t);
  expect(copy, same, NPU_INT64, 0, 0);
  REFUSED(INVALID, Cast, x->t, NPU_FLOAT16, y->t);
  REFUSED(INVALID, Cast, x->t, NPU_FLOAT, A(NPU_FLOAT, 6, 2)->t);
  REFUSED(INVALID, Cast, b->t, NPU_FLOAT, y->t);
  REFUSED(INVALID, Cast, A(NPU_INT4, 2, 6)->t, NPU_FLOAT, y->t);
  REFUSED(NULL_POINTER, Cast, x->t, NPU_FLOAT, NULL);
  REFUSED(NULL_POINTER, InplaceCopy, NULL, x->t);
  REFUSED(INVALID, InplaceCopy, x->t, A(NPU_FLOAT16, 3, 6)->t);
  if (old_chip) REFUSED(INVALID, Cast, x->t, NPU_BF16, A(NPU_BF16, 2, 6)->t);
  release();
}

static void test_masks(void) {
  for (int round = 0; round < 80; round++) {
    int type = rnd(0, 2) ? any_float() : NPU_INT32;
    int64_t r = rnd(1, 5), c = rnd(1, 20);
    struct array *x = S(type, r, c), *y = S(NPU_BOOL, r, c), *m = S(NPU_BOOL, r, 1), *z = S(type, r, c), *v = S(type, c);
    double s = type == NPU_INT32 ? 5 : 0.25, *lt = room(x->n), *gt = room(x->n), *where = room(x->n), *filled = room(x->n),
           *all = room(x->n);
    for (int64_t i = 0; i < x->n; i++) {
      lt[i] = x->x[i] < s;
      gt[i] = x->x[i] > s;
      where[i] = m->x[i / c] != 0 ? x->x[i] : v->x[i % c];
      filled[i] = m->x[i / c] != 0 ? s : x->x[i];
      all[i] = s;
    }
    RUN(LtScalar, x->t, type == NPU_INT32 ? integer(5) : number(s), y->t);
    expect(y, lt, NPU_BOOL, 0, 0);
    RUN(GtScalar, x->t, type == NPU_INT32 ? integer(5) : number(s), y->t);
    expect(y, gt, NPU_BOOL, 0, 0);
    RUN(SWhere, m->t, x->t, v->t, z->t);
    expect(z, where, type, 0, 0);
    RUN(InplaceMaskedFillScalar, x->t, m->t, type == NPU_INT32 ? integer(5) : number(s));
    expect(x, filled, type, 0, 0);
    RUN(InplaceFillScalar, z->t, type == NPU_INT32 ? integer(5) : number(s));
    expect(z, all, type, 0, 0);
    RUN(InplaceZero, z->t);
    expect(z, room(z->n), type, 0, 0);
    release();
  }
  struct array *x = A(NPU_FLOAT16, 2, 6), *i = A(NPU_INT32, 2, 6), *m = A(NPU_BOOL, 2, 6), *z = A(NPU_FLOAT16, 2, 6);
  REFUSED(NULL_POINTER, LtScalar, x->t, NULL, m->t);
  REFUSED(INVALID, LtScalar, x->t, number(0), A(NPU_BOOL, 6)->t);
  REFUSED(INVALID, GtScalar, x->t, number(0), A(NPU_BOOL, 6, 2)->t);
  REFUSED(INVALID, SWhere, x->t, x->t, z->t, A(NPU_FLOAT16, 2, 6)->t);
  REFUSED(INVALID, SWhere, m->t, x->t, A(NPU_FLOAT16, 5)->t, z->t);
  REFUSED(INVALID, SWhere, m->t, x->t, A(NPU_FLOAT16, 6)->t, A(NPU_FLOAT16, 3, 2, 6)->t);
  REFUSED(INVALID, SWhere, m->t, x->t, A(NPU_FLOAT16, 2, 6)->t, A(NPU_INT32, 2, 6)->t);
  REFUSED(INVALID, InplaceMaskedFillScalar, x->t, i->t, number(0));
  REFUSED(INVALID, InplaceMaskedFillScalar, x->t, A(NPU_BOOL, 3, 6)->t, number(0));
  REFUSED(INVALID, InplaceMaskedFillScalar, i->t, m->t, number(0.5));
  REFUSED(NULL_POINTER, InplaceFillScalar, x->t, NULL);
  REFUSED(INVALID, InplaceFillScalar, i->t, number(0.5));
  REFUSED(NULL_POINTER, InplaceZero, NULL);
  release();
}

/* ---- gated activations, rope ------------------------------------------------------------------------------------------------ */

static void test_gated(void) {
  for (int round = 0; round < 100; round++) {
    int type = any_float();
    int64_t r = rnd(1, 4), c = rnd(1, 20), q = rnd(1, 3);
    bool left = rnd(0, 1), tanh_form = rnd(0, 1), middle = rnd(0, 1);
    struct array *x = middle ? S(type, r, 2 * c, q) : S(type, r, q, 2 * c), *y = middle ? S(type, r, c, q) : S(type, r, q, c);
    struct array *z = array(type, (enum layout)rnd(WHOLE, SPREAD), 3, y->dims), *w = A(type, r, q, 2 * c), *v = A(type, r, q, c);
    double *want = room(y->n), *inner = room(y->n), *swi = room(v->n);
    for (int64_t i = 0; i < y->n; i++) {
      int64_t at = middle ? i / (c * q) * 2 * c * q + i % (c * q) : i / c * 2 * c + i % c, next = at + (middle ? c * q : c);
      inner[i] = gelu(x->x[left ? at : next], tanh_form);
      want[i] = inner[i] * x->x[left ? next : at];
    }
    for (int64_t i = 0; i < v->n; i++) swi[i] = silu(w->x[i / c * 2 * c + i % c]) * w->x[i / c * 2 * c + i % c + c];
    RUN(GeGluV3, x->t, middle ? 1 : -1, tanh_form, left, y->t, z->t);
    expect(y, want, type, 1, 0.1);
    expect(z, inner, type, 1, 0.1);
    RUN(SwiGlu, w->t, -1, v->t);
    expect(v, swi, type, 1, 0.1);
    release();
  }
  int t = NPU_FLOAT16;
  struct array *x = A(t, 2, 8), *y = A(t, 2, 4), *z = A(t, 2, 4);
  REFUSED(NULL_POINTER, GeGluV3, x->t, -1, 1, true, y->t, NULL);
  REFUSED(NULL_POINTER, GeGluV3, x->t, -1, 1, true, NULL, z->t);
  REFUSED(INVALID, GeGluV3, x->t, 2, 1, true, y->t, z->t);
  REFUSED(INVALID, GeGluV3, x->t, -1, 2, true, y->t, z->t);
  REFUSED(INVALID, GeGluV3, A(t, 2, 7)->t, -1, 1, true, y->t, z->t);
  REFUSED(INVALID, GeGluV3, x->t, -1, 1, true, y->t, A(t, 2, 3)->t);
  REFUSED(INVALID, GeGluV3, x->t, -1, 1, true, A(NPU_FLOAT, 2, 4)->t, z->t);
  REFUSED(INVALID, GeGluV3, A(NPU_INT32, 2, 8)->t, -1, 1, true, A(NPU_INT32, 2, 4)->t, A(NPU_INT32, 2, 4)->t);
  REFUSED(INVALID, SwiGlu, array(t, PADDED, DIMS(2, 8))->t, -1, y->t);
  REFUSED(INVALID, SwiGlu, x->t, -1, array(t, PADDED, DIMS(2, 4))->t);
  REFUSED(INVALID, SwiGlu, A(t, 2, 7)->t, -1, y->t);
  REFUSED(INVALID, SwiGlu, x->t, -1, A(t, 2, 5)->t);
  REFUSED(NULL_POINTER, SwiGlu, x->t, -1, NULL);
  if (old_chip) REFUSED(INVALID, SwiGlu, A(NPU_BF16, 2, 8)->t, -1, A(NPU_BF16, 2, 4)->t);
  release();
}

static void test_rope(void) {
  for (int round = 0; round < 100; round++) {
    int type = any_float(), form = rnd(0, 7), mode = old_chip ? 0 : rnd(0, 1);
    int64_t d = old_chip ? 32 * rnd(1, 4) : 2 * rnd(1, 20), p = rnd(1, 3), q = rnd(1, 4), r = rnd(4, 6);
    struct array *x = form < 2 ? S(type, q, p, d) : S(type, p, q, r, d), *y = array(type, WHOLE, x->n_dims, x->dims), *cos, *sin;
    int64_t shape[4] = {p, q, r, d};
    if (mode == 1 && form != 0) form = 2;
    switch (form) {
    case 0: shape[0] = q, shape[1] = 1, shape[2] = d; break; /* T1D */
    case 1: shape[0] = q, shape[1] = p, shape[2] = d; break; /* TND */
    case 2: shape[0] = shape[2] = 1; break;                  /* 1S1D */
    case 3: shape[2] = 1; break;                             /* BS1D */
    case 4: shape[1] = shape[2] = 1; break;                  /* S11D */
    case 5:
      if (type == NPU_FLOAT || d >= 80) shape[0] = shape[1] = 1;
      break;        /* 11SD, where it is admitted */
    default: break; /* full */
    }
    if (form == 2 && x->n_dims == 3) shape[0] = q, shape[1] = 1, shape[2] = d;
    if (form == 5 && d / 2 * (type == NPU_FLOAT ? 4 : 2) % 32 && d < 80) shape[0] = p, shape[1] = q;
    cos = array(type, (enum layout)rnd(WHOLE, SPREAD), x->n_dims, shape);
    sin = array(type, (enum layout)rnd(WHOLE, SPREAD), x->n_dims, shape);
    double *want = room(x->n);
    for (int64_t i = 0; i < x->n; i++) {
      int64_t e = i % d, at = 0, rest = i, step = 1;
      for (int k = x->n_dims - 1; k >= 0; k--) { /* index into the tables */
        at += rest % x->dims[k] % shape[k] * step;
        rest /= x->dims[k];
        step *= shape[k];
      }
      double turned = mode ? (e % 2 ? x->x[i - 1] : -x->x[i + 1]) : e < d / 2 ? -x->x[i + d / 2] : x->x[i - d / 2];
      want[i] = x->x[i] * cos->x[at] + turned * sin->x[at];
    }
    RUN(RotaryPositionEmbedding, x->t, cos->t, sin->t, mode, y->t);
    expect(y, want, type, 1, 0.1);
    release();
  }
  int t = NPU_FLOAT16;
  struct array *x = A(t, 5, 3, 64), *c = A(t, 5, 1, 64), *s = A(t, 5, 1, 64), *y = A(t, 5, 3, 64);
#define ROPE(code, ...) REFUSED(code, RotaryPositionEmbedding, __VA_ARGS__)
  ROPE(NULL_POINTER, x->t, NULL, s->t, 0, y->t);
  ROPE(INVALID, x->t, c->t, s->t, 2, y->t);
  ROPE(INVALID, x->t, c->t, s->t, -1, y->t);
  ROPE(INVALID, x->t, c->t, A(t, 5, 3, 64)->t, 0, y->t);
  ROPE(INVALID, x->t, A(NPU_FLOAT, 5, 1, 64)->t, A(NPU_FLOAT, 5, 1, 64)->t, 0, y->t);
  ROPE(INVALID, A(t, 5, 64)->t, A(t, 5, 64)->t, A(t, 5, 64)->t, 0, A(t, 5, 64)->t);
  ROPE(INVALID, x->t, c->t, s->t, 0, array(t, PADDED, DIMS(5, 3, 64))->t);
  ROPE(INVALID, x->t, c->t, s->t, 0, x->t);
  ROPE(TILING, x->t, A(t, 5, 1, 32)->t, A(t, 5, 1, 32)->t, 0, y->t);
  ROPE(TILING, x->t, A(t, 1, 1, 64)->t, A(t, 1, 1, 64)->t, 0, y->t);
  ROPE(TILING, x->t, A(t, 5, 64)->t, A(t, 5, 64)->t, 0, y->t);
  release();
  struct array *many = A(t, 1, 1000, 32), *few = A(t, 1, 1, 32), *few2 = A(t, 1, 1, 32), *out = A(t, 1, 1000, 32);
  ROPE(TILING, many->t, few->t, few2->t, 0, out->t);
  struct array *b = A(t, 9, 9, 1, 64), *bc = A(t, 9, 1, 1, 64), *bs = A(t, 9, 1, 1, 64),
               *by = A(t, 9, 9, 1, 64);                                             /* as BNSD: 81 heads for one S */
  assert_int_equal(CALL(RotaryPositionEmbedding, b->t, bc->t, bs->t, 0, by->t), 0); /* but it is SBND, too */
  struct array *n = A(t, 9, 9, 2, 64), *nc = A(t, 1, 1, 2, 64), *ns = A(t, 1, 1, 2, 64), *ny = A(t, 9, 9, 2, 64);
  ROPE(TILING, n->t, nc->t, ns->t, 0, ny->t);
  release();
  int64_t wide = old_chip ? 160 : 896, odd = old_chip ? 48 : 63;
  ROPE(TILING, A(t, 2, 1, wide)->t, A(t, 2, 1, wide)->t, A(t, 2, 1, wide)->t, 0, A(t, 2, 1, wide)->t);
  ROPE(TILING, A(t, 2, 1, odd)->t, A(t, 2, 1, odd)->t, A(t, 2, 1, odd)->t, 0, A(t, 2, 1, odd)->t);
#undef ROPE
  release();
}

/* ---- norms, softmax --------------------------------------------------------------------------------------------------------- */

static void test_rmsnorm(void) {
  for (int round = 0; round < 120; round++) {
    int type = any_float(), gtype = !old_chip && rnd(0, 1) ? NPU_FLOAT : type;
    int64_t r = rnd(1, 4), q = rnd(1, 3), c = rnd(16, 70);
    bool two = rnd(0, 3) == 0, add = rnd(0, 1); /* gamma over two axes; AddRmsNorm */
    if (add) gtype = type;
    struct array *x = S(type, r, q, c), *y = A(type, r, q, c), *g = two ? A(gtype, q, c) : A(gtype, c);
    struct array *s = two ? A(NPU_FLOAT, r, 1, 1) : A(NPU_FLOAT, r, q, 1), *z = S(type, r, q, c), *o = A(type, r, q, c);
    int64_t n = two ? q * c : c;
    double *want = room(x->n), *rstd = room(x->n / n), *sum = room(x->n);
    for (int64_t i = 0; i < x->n / n; i++) {
      double squares = 0;
      for (int64_t j = i * n; j < (i + 1) * n; j++) {
        sum[j] = add ? rounded(type, x->x[j] + z->x[j]) : x->x[j];
        squares += sum[j] * sum[j];
      }
      rstd[i] = 1 / sqrt(squares / (double)n + 1e-5);
      for (int64_t j = 0; j < n; j++) want[i * n + j] = sum[i * n + j] * rstd[i] * g->x[j];
    }
    if (add) {
      RUN(AddRmsNorm, x->t, z->t, g->t, 1e-5, y->t, s->t, o->t);
      expect(o, sum, type, 0.01, 0);
    } else {
      RUN(RmsNorm, x->t, g->t, 1e-5, y->t, s->t);
      free(sum);
    }
    expect(y, want, type, 1, 0.01);
    expect(s, rstd, NPU_FLOAT, 2, 0);
    release();
  }
  int t = NPU_FLOAT16;
  struct array *x = A(t, 3, 32), *g = A(t, 32), *y = A(t, 3, 32), *s = A(NPU_FLOAT, 3, 1), *z = A(t, 3, 32), *o = A(t, 3, 32);
  REFUSED(NULL_POINTER, RmsNorm, x->t, g->t, 1e-5, y->t, NULL);
  REFUSED(NULL_POINTER, RmsNorm, x->t, NULL, 1e-5, y->t, s->t);
  REFUSED(INVALID, RmsNorm, x->t, g->t, 1e-5, y->t, A(t, 3, 1)->t);
  REFUSED(INVALID, RmsNorm, x->t, g->t, 1e-5, A(NPU_FLOAT, 3, 32)->t, s->t);
  REFUSED(INVALID, RmsNorm, A(NPU_INT32, 3, 32)->t, g->t, 1e-5, y->t, s->t);
  REFUSED(INVALID, RmsNorm, A(NPU_FLOAT, 3, 32)->t, g->t, 1e-5, A(NPU_FLOAT, 3, 32)->t, s->t);
  REFUSED(TILING, RmsNorm, x->t, g->t, 1e-5, y->t, A(NPU_FLOAT, 3)->t);
  REFUSED(TILING, RmsNorm, x->t, g->t, 1e-5, y->t, A(NPU_FLOAT, 3, 32)->t);
  REFUSED(TILING, RmsNorm, x->t, A(t, 31)->t, 1e-5, y->t, s->t);
  REFUSED(TILING, RmsNorm, x->t, A(t, 1, 3, 32)->t, 1e-5, y->t, s->t);
  REFUSED(TILING, RmsNorm, x->t, g->t, 1e-5, A(t, 3, 31)->t, s->t);
  REFUSED(INVALID, RmsNorm, x->t, g->t, 1e-5, x->t, s->t);
  REFUSED(INVALID, RmsNorm, x->t, g->t, 1e-5, array(t, PADDED, DIMS(3, 32))->t, s->t);
  if (old_chip) {
    REFUSED(INVALID, RmsNorm, x->t, A(NPU_FLOAT, 32)->t, 1e-5, y->t, s->t);
    REFUSED(INVALID, RmsNorm, A(NPU_BF16, 3, 32)->t, A(NPU_BF16, 32)->t, 1e-5, A(NPU_BF16, 3, 32)->t, s->t);
    REFUSED(TILING, RmsNorm, A(t, 3, 8)->t, A(t, 8)->t, 1e-5, A(t, 3, 8)->t, s->t);
  }
  REFUSED(INVALID, AddRmsNorm, x->t, z->t, A(NPU_FLOAT, 32)->t, 1e-5, y->t, s->t, o->t);
  REFUSED(INVALID, AddRmsNorm, x->t, A(t, 3, 31)->t, g->t, 1e-5, y->t, s->t, o->t);
  REFUSED(INVALID, AddRmsNorm, x->t, z->t, g->t, 1e-5, array(t, PADDED, DIMS(3, 32))->t, s->t, o->t);
  REFUSED(INVALID, AddRmsNorm, x->t, z->t, g->t, 1e-5, y->t, s->t, array(t, PADDED, DIMS(3, 32))->t);
  REFUSED(INVALID, AddRmsNorm, x->t, A(NPU_FLOAT, 3, 32)->t, g->t, 1e-5, y->t, s->t, o->t);
  REFUSED(NULL_POINTER, AddRmsNorm, x->t, z->t, g->t, 1e-5, y->t, s->t, NULL);
  REFUSED(TILING, AddRmsNorm, x->t, z->t, g->t, 1e-5, y->t, A(NPU_FLOAT, 3)->t, o->t);
  release();
}

static void test_layernorm(void) {
  int t = NPU_FLOAT16;
  struct array *x = A(t, 3, 8), *w = A(t, 8), *b = A(t, 8), *y = A(t, 3, 8);
  if (old_chip) {
    REFUSED(NO_KERNEL, LayerNorm, x->t, I(8), w->t, b->t, 1e-5, y->t, NULL, NULL);
    release();
    return;
  }
  REFUSED(NULL_POINTER, LayerNorm, x->t, NULL, w->t, b->t, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(7), w->t, b->t, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(2, 3, 8), w->t, b->t, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), A(t, 7)->t, b->t, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), w->t, A(NPU_FLOAT, 8)->t, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), A(NPU_BF16, 8)->t, NULL, 1e-5, y->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), w->t, b->t, 1e-5, A(NPU_FLOAT, 3, 8)->t, NULL, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), w->t, b->t, 1e-5, y->t, A(t, 3, 8)->t, NULL);
  REFUSED(INVALID, LayerNorm, x->t, I(8), w->t, b->t, 1e-5, y->t, NULL, A(NPU_FLOAT, 3, 1)->t);
  release();
  for (int round = 0; round < 60; round++) {
    int type = any_float(), wtype = rnd(0, 1) ? NPU_FLOAT : type;
    int64_t r = rnd(1, 5), c = rnd(2, 70);
    x = S(type, r, c), y = S(type, r, c);
    w = rnd(0, 2) ? S(wtype, c) : NULL, b = rnd(0, 2) ? S(wtype, c) : NULL;
    struct array *m = rnd(0, 1) ? A(type, r, 1) : NULL, *s = rnd(0, 1) ? A(type, r, 1) : NULL;
    double *want = room(x->n), *mean = room(r), *rstd = room(r);
    for (int64_t i = 0; i < r; i++) {
      double squares = 0;
      for (int64_t j = 0; j < c; j++) mean[i] += x->x[i * c + j] / (double)c;
      for (int64_t j = 0; j < c; j++) squares += pow(x->x[i * c + j] - mean[i], 2);
      rstd[i] = 1 / sqrt(squares / (double)c + 1e-2);
      for (int64_t j = 0; j < c; j++) want[i * c + j] = (x->x[i * c + j] - mean[i]) * rstd[i] * (w ? w->x[j] : 1) + (b ? b->x[j] : 0);
    }
    RUN(LayerNorm, x->t, I(c), w ? w->t : NULL, b ? b->t : NULL, 1e-2, y->t, m ? m->t : NULL, s ? s->t : NULL);
    expect(y, want, type, 1, 1);
    if (m) expect(m, mean, type, 1, 0.1);
    else free(mean);
    if (s) expect(s, rstd, type, 1, 0);
    else free(rstd);
    release();
  }
}

static void test_softmax(void) {
  for (int round = 0; round < 80; round++) {
    int type = any_float(), axis = rnd(0, 2);
    struct array *x = S(type, rnd(1, 4), rnd(1, 9), rnd(1, 20)), *y = array(type, (enum layout)rnd(WHOLE, SPREAD), 3, x->dims);
    if (rnd(0, 3) == 0) {
      x->x[rnd(0, (int)x->n - 1)] = -INFINITY;
      send(x);
    }
    double *want = room(x->n);
    int64_t step = 1;
    for (int d = 2; d > axis; d--) step *= x->dims[d];
    for (int64_t i = 0; i < x->n; i++) {
      int64_t first = i - i / step % x->dims[axis] * step;
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j < x->dims[axis]; j++) most = fmax(most, x->x[first + j * step]);
      for (int64_t j = 0; j < x->dims[axis]; j++) sum += exp(x->x[first + j * step] - most);
      want[i] = exp(x->x[i] - most) / sum;
    }
    RUN(Softmax, x->t, rnd(0, 1) ? axis : axis - 3, y->t);
    expect(y, want, type, 1, 0.001);
    release();
  }
  struct array *x = A(NPU_FLOAT, 2, 3), *y = A(NPU_FLOAT, 2, 3);
  for (int i = 0; i < 3; i++) x->x[i] = -INFINITY;
  send(x);
  RUN(Softmax, x->t, 1, y->t);
  double *got = fetch(y);
  assert_true(isnan(got[0]) && isnan(got[2]) && !isnan(got[3])); /* nothing to see is NaN */
  free(got);
  REFUSED(INVALID, Softmax, x->t, 2, y->t);
  REFUSED(INVALID, Softmax, x->t, -3, y->t);
  REFUSED(INVALID, Softmax, x->t, 1, A(NPU_FLOAT, 3, 2)->t);
  REFUSED(INVALID, Softmax, A(NPU_INT32, 2, 3)->t, 1, y->t);
  REFUSED(NULL_POINTER, Softmax, NULL, 1, y->t);
  release();
}

/* ---- other order ------------------------------------------------------------------------------------------------------------ */

static void test_other_order(void) {
  struct array *x = A(NPU_FLOAT16, 2, 999), *w = A(NPU_FLOAT16, 999, 9), *y = A(NPU_FLOAT16, 2, 9);
  double *want = room(18);
  for (int i = 0; i < 18; i++)
    for (int j = 0; j < 999; j++) want[i] += x->x[i / 9 * 999 + j] * w->x[j * 9 + i % 9];
  emu->other_order(1);
  RUN(Mm, x->t, w->t, y->t, 0);
  emu->other_order(0);
  expect(y, want, NPU_FLOAT16, 1, 30);
  release();
}

static void everything(void) {
  device_open();
  test_mm();
  test_mm_nz();
  test_mm_refusals();
  test_batch();
  test_quant();
  test_quant_refusals();
  test_unary();
  test_binary();
  test_scaled();
  test_casts();
  test_masks();
  test_gated();
  test_rope();
  test_rmsnorm();
  test_layernorm();
  test_softmax();
  test_other_order();
  device_close();
}

static void test_profiles(void **state) {
  (void)state;
  npu_each_profile(everything);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_profiles)};
TEST_MAIN(tests)
