/* t_acl_emu_rows.c — the emulated NPU's operators that move or pick: rows by index, along an axis, experts. Each against loops over random shapes,
 * strides and types, and each check by a call that breaks it, on every profile.
 */
#include "test.h"

#include "acl_arrays.h"

/* ---- rows by index ---------------------------------------------------------------------------------------------------------- */

static void fill_index(struct array *t, int64_t limit, bool distinct) {
  for (int64_t i = 0; i < t->n; i++) t->x[i] = distinct ? (double)((i * 7 + 3) % limit) : rnd(0, (int)limit - 1);
  send(t);
}

static void test_rows(void) {
  const int types[] = {NPU_FLOAT, NPU_FLOAT16, NPU_INT8, NPU_INT32, NPU_INT64, NPU_UINT8, NPU_BF16};
  for (int round = 0; round < 100; round++) {
    int type = types[rnd(0, old_chip ? 5 : 6)], itype = rnd(0, 1) ? NPU_INT32 : NPU_INT64, axis = rnd(0, 1);
    int64_t r = rnd(1, 9), c = rnd(1, 12), n = rnd(1, 7);
    struct array *w = S(type, r, c), *i = S(itype, n), *two = S(itype, n, 2), *y = S(type, n, 2, c);
    fill_index(i, axis ? c : r, false);
    fill_index(two, r, false);
    double *want = room(y->n), *picked = room(axis ? r * n : n * c);
    for (int64_t e = 0; e < y->n; e++) want[e] = w->x[(int64_t)two->x[e / c] * c + e % c];
    RUN(Embedding, w->t, two->t, y->t);
    expect(y, want, type, 0, 0);
    struct array *z = axis ? S(type, r, n) : S(type, n, c);
    for (int64_t e = 0; e < z->n; e++) picked[e] = axis ? w->x[e / n * c + (int64_t)i->x[e % n]] : w->x[(int64_t)i->x[e / c] * c + e % c];
    RUN(IndexSelect, w->t, rnd(0, 1) ? axis : axis - 2, i->t, z->t);
    expect(z, picked, type, 0, 0);
    if (!old_chip) { /* the rows of z go to distinct places of u */
      struct array *u = axis ? S(type, r, 101) : S(type, 101, c);
      fill_index(i, 101, true);
      double *after = room(u->n), *source = fetch(z);
      memcpy(after, u->x, (size_t)u->n * sizeof *after);
      for (int64_t e = 0; e < z->n; e++) {
        if (axis) after[e / n * 101 + (int64_t)i->x[e % n]] = source[e];
        else after[(int64_t)i->x[e / c] * c + e % c] = source[e];
      }
      free(source);
      RUN(InplaceIndexCopy, u->t, axis, i->t, z->t);
      expect(u, after, type, 0, 0);
    }
    release();
  }
}

static void test_rows_refusals(void) {
  int t = NPU_FLOAT16;
  struct array *w = A(t, 5, 6), *i = A(NPU_INT32, 3), *y = A(t, 3, 6);
  fill_index(i, 5, true);
  REFUSED(NULL_POINTER, Embedding, w->t, NULL, y->t);
  REFUSED(INVALID, Embedding, w->t, A(NPU_FLOAT, 3)->t, y->t);
  REFUSED(INVALID, Embedding, A(t, 5, 6, 1)->t, i->t, y->t);
  REFUSED(INVALID, Embedding, w->t, i->t, A(t, 3, 5)->t);
  REFUSED(INVALID, Embedding, w->t, i->t, A(t, 4, 6)->t);
  REFUSED(INVALID, Embedding, w->t, i->t, A(NPU_FLOAT, 3, 6)->t);
  REFUSED(NULL_POINTER, IndexSelect, w->t, 0, i->t, NULL);
  REFUSED(INVALID, IndexSelect, w->t, 2, i->t, y->t);
  REFUSED(INVALID, IndexSelect, w->t, 0, A(NPU_INT32, 3, 1)->t, y->t);
  REFUSED(INVALID, IndexSelect, w->t, 0, A(NPU_INT8, 3)->t, y->t);
  REFUSED(INVALID, IndexSelect, w->t, 0, i->t, A(t, 6, 3)->t);
  REFUSED(INVALID, IndexSelect, w->t, 1, i->t, y->t);
  REFUSED(INVALID, IndexSelect, w->t, 0, i->t, A(NPU_FLOAT, 3, 6)->t);
  REFUSED(INVALID, IndexSelect, A(NPU_INT4, 5, 6)->t, 0, i->t, A(NPU_INT4, 3, 6)->t);
  if (old_chip) {
    REFUSED(NO_KERNEL, InplaceIndexCopy, w->t, 0, i->t, y->t);
  } else {
    REFUSED(NULL_POINTER, InplaceIndexCopy, w->t, 0, i->t, NULL);
    REFUSED(INVALID, InplaceIndexCopy, w->t, 0, i->t, A(t, 4, 6)->t);
    REFUSED(INVALID, InplaceIndexCopy, w->t, 0, i->t, A(NPU_FLOAT, 3, 6)->t);
    REFUSED(INVALID, InplaceIndexCopy, w->t, 0, i->t, w->t);
  }
  for (int bad = -1; bad <= 5; bad += 6) {
    i->x[1] = bad;
    send(i);
    FAULTS(Embedding, w->t, i->t, y->t);
    double *got = fetch(y);
    for (int e = 0; e < 18; e++) assert_true(isnan(got[e])); /* poison */
    free(got);
    FAULTS(IndexSelect, w->t, 0, i->t, y->t);
    if (!old_chip) FAULTS(InplaceIndexCopy, w->t, 0, i->t, y->t);
  }
  i->x[1] = i->x[0];
  send(i);
  RUN(IndexSelect, w->t, 0, i->t, y->t);
  if (!old_chip) FAULTS(InplaceIndexCopy, w->t, 0, i->t, y->t);
  release();
}

static void test_cat(void) {
  for (int round = 0; round < 60; round++) {
    int type = any_float(), axis = rnd(0, 1), n = rnd(1, 4);
    int64_t at = 0, total = 0, r = rnd(1, 4);
    struct array *parts[4];
    for (int p = 0; p < n; p++) {
      int64_t some = rnd(1, 5);
      parts[p] = axis ? S(type, r, some) : S(type, some, r);
      total += some;
    }
    struct array *y = axis ? S(type, r, total) : S(type, total, r);
    double *want = room(y->n);
    for (int p = 0; p < n; p++) {
      for (int64_t e = 0; e < parts[p]->n; e++) {
        if (axis) want[e / parts[p]->dims[1] * total + at + e % parts[p]->dims[1]] = parts[p]->x[e];
        else want[at * r + e] = parts[p]->x[e];
      }
      at += parts[p]->dims[axis];
    }
    RUN(Cat, list(n, parts), axis, y->t);
    expect(y, want, type, 0, 0);
    release();
  }
  int t = NPU_FLOAT16;
  struct array *y = A(t, 5, 3);
  REFUSED(NULL_POINTER, Cat, NULL, 0, y->t);
  REFUSED(INVALID, Cat, L(A(t, 2, 3), A(t, 2, 3)), 0, y->t);
  REFUSED(INVALID, Cat, L(A(t, 2, 3), A(t, 3, 2)), 0, y->t);
  REFUSED(INVALID, Cat, L(A(t, 2, 3), A(NPU_FLOAT, 3, 3)), 0, y->t);
  REFUSED(INVALID, Cat, L(A(t, 2, 3), A(t, 3, 3)), 2, y->t);
  release();
}

/* ---- along an axis ---------------------------------------------------------------------------------------------------------- */

static void test_sums(void) {
  for (int round = 0; round < 80; round++) {
    bool whole = rnd(0, 2) == 0, keep = rnd(0, 1);
    int type = whole ? NPU_INT32 : any_float(), to = whole ? NPU_INT64 : rnd(0, 1) ? NPU_FLOAT : type, axis = rnd(0, 1);
    int64_t d[3] = {rnd(1, 4), rnd(1, 6), rnd(1, 6)};
    struct array *x = S(type, d[0], d[1], d[2]), *y, *z = S(to, d[0], d[1], d[2]);
    y = axis == 0 ? (keep ? S(to, 1, d[1], d[2]) : S(to, d[1], d[2])) : keep ? S(to, d[0], 1, 1) : S(to, d[0]); /* over 0; over 1 and 2 */
    double *want = room(y->n), *running = room(z->n);
    for (int64_t i = 0; i < x->n; i++) {
      want[axis == 0 ? i % (d[1] * d[2]) : i / (d[1] * d[2])] += x->x[i];
      running[i] = x->x[i] + (i / d[2] % d[1] ? running[i - d[2]] : 0);
    }
    RUN(ReduceSum, x->t, axis == 0 ? I(-3) : I(2, 1), keep, to, y->t);
    expect(y, want, to, whole ? 0 : 1, whole ? 0 : 1);
    RUN(Cumsum, x->t, 1, to, z->t);
    expect(z, running, to, whole ? 0 : 1, whole ? 0 : 1);
    release();
  }
  struct array *x = A(NPU_FLOAT, 2, 3), *y = A(NPU_FLOAT, 2), *z = A(NPU_FLOAT, 2, 3);
  REFUSED(NULL_POINTER, ReduceSum, x->t, NULL, false, NPU_FLOAT, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(2), false, NPU_FLOAT, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(1, -1), false, NPU_FLOAT, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(0), false, NPU_FLOAT, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(1), true, NPU_FLOAT, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(1), false, NPU_FLOAT16, y->t);
  REFUSED(INVALID, ReduceSum, x->t, I(1), false, NPU_INT32, A(NPU_INT32, 2)->t);
  REFUSED(INVALID, Cumsum, x->t, 2, NPU_FLOAT, z->t);
  REFUSED(INVALID, Cumsum, x->t, 1, NPU_FLOAT16, z->t);
  REFUSED(INVALID, Cumsum, x->t, 1, NPU_FLOAT, A(NPU_FLOAT, 3, 2)->t);
  release();
}

static void test_top(void) {
  for (int round = 0; round < 80; round++) {
    int type = rnd(0, 3) ? any_float() : NPU_INT32, axis = rnd(0, 1), itype = rnd(0, 1) ? NPU_INT32 : NPU_INT64;
    bool keep = rnd(0, 1), largest = rnd(0, 3) > 0;
    int64_t r = rnd(1, 6), c = rnd(1, 12), n = axis ? c : r, lines = axis ? r : c, k = rnd(0, 1) ? 1 : rnd(1, (int)n);
    struct array *x = S(type, r, c), *y = keep ? (axis ? S(itype, r, 1) : S(itype, 1, c)) : S(itype, lines);
    for (int64_t i = 0; i < x->n; i++) x->x[i] = rnd(0, 2) ? x->x[i] : 1; /* equal ones */
    send(x);
    struct array *v = axis ? S(type, r, k) : S(type, k, c), *ix = axis ? S(NPU_INT64, r, k) : S(NPU_INT64, k, c);
    double *best = room(lines), *values = room(v->n), *indices = room(v->n);
    for (int64_t l = 0; l < lines; l++) {
      bool taken[16] = {false};
      for (int64_t j = 0; j < (k > 1 ? k : 1); j++) {
        int64_t top = -1;
        for (int64_t i = 0; i < n; i++) {
          double e = x->x[axis ? l * c + i : i * c + l], t = top < 0 ? 0 : x->x[axis ? l * c + top : top * c + l];
          if (!taken[i] && (top < 0 || (largest ? e > t : e < t))) top = i;
        }
        taken[top] = true;
        values[axis ? l * k + j : j * c + l] = x->x[axis ? l * c + top : top * c + l];
        indices[axis ? l * k + j : j * c + l] = (double)top;
      }
      int64_t most = 0;
      for (int64_t i = 1; i < n; i++)
        if (x->x[axis ? l * c + i : i * c + l] > x->x[axis ? l * c + most : most * c + l]) most = i;
      best[l] = (double)most;
    }
    RUN(ArgMax, x->t, axis - 2, keep, y->t);
    expect(y, best, itype, 0, 0);
    RUN(Topk, x->t, k, axis, largest, true, v->t, ix->t);
    expect(v, values, type, 0, 0);
    expect(ix, indices, NPU_INT64, 0, 0);
    release();
  }
  struct array *x = A(NPU_FLOAT, 2, 5), *y = A(NPU_INT64, 2), *v = A(NPU_FLOAT, 2, 3), *i = A(NPU_INT64, 2, 3);
  REFUSED(NULL_POINTER, ArgMax, x->t, 1, false, NULL);
  REFUSED(INVALID, ArgMax, x->t, 2, false, y->t);
  REFUSED(INVALID, ArgMax, x->t, 1, true, y->t);
  REFUSED(INVALID, ArgMax, x->t, 0, false, y->t);
  REFUSED(INVALID, ArgMax, x->t, 1, false, A(NPU_FLOAT, 2)->t);
  REFUSED(INVALID, Topk, x->t, 3, 1, true, false, v->t, i->t);
  REFUSED(INVALID, Topk, x->t, 6, 1, true, true, A(NPU_FLOAT, 2, 6)->t, A(NPU_INT64, 2, 6)->t);
  REFUSED(INVALID, Topk, x->t, -1, 1, true, true, v->t, i->t);
  REFUSED(INVALID, Topk, x->t, 3, 1, true, true, v->t, A(NPU_INT32, 2, 3)->t);
  REFUSED(INVALID, Topk, x->t, 2, 1, true, true, v->t, i->t);
  REFUSED(INVALID, Topk, x->t, 3, 1, true, true, A(NPU_FLOAT16, 2, 3)->t, i->t);
  REFUSED(NULL_POINTER, Topk, x->t, 3, 1, true, true, v->t, NULL);
  release();
}

/* ---- experts ---------------------------------------------------------------------------------------------------------------- */

static void test_gating(void) {
  if (old_chip) {
    struct array *x = A(NPU_FLOAT16, 2, 4), *y = A(NPU_FLOAT16, 2, 2), *i = A(NPU_INT32, 2, 2);
    REFUSED(NO_KERNEL, MoeGatingTopKSoftmaxV2, x->t, NULL, 2, 1, false, y->t, i->t, NULL);
    release();
    return;
  }
  for (int round = 0; round < 100; round++) {
    int type = any_float(), renorm = rnd(0, 1);
    bool all = rnd(0, 1), some_finished = rnd(0, 3) == 0;
    int64_t r = rnd(1, 6), n = rnd(1, 16), k = rnd(1, (int)n);
    struct array *x = S(type, r, n), *y = A(type, r, k), *i = A(NPU_INT32, r, k), *s = A(NPU_FLOAT, r, n), *f = A(NPU_BOOL, r);
    for (int64_t e = 0; e < x->n; e++) x->x[e] = rnd(0, 3) ? x->x[e] : 0.5;
    send(x);
    double *want = room(y->n), *experts = room(y->n), *soft = room(x->n);
    for (int64_t row = 0; row < r; row++) {
      bool taken[16] = {false};
      double sum = 0, chosen = 0;
      for (int64_t e = 0; e < n; e++) sum += exp(x->x[row * n + e]);
      for (int64_t e = 0; e < n; e++) soft[row * n + e] = exp(x->x[row * n + e]) / sum;
      for (int64_t j = 0; j < k; j++) {
        int64_t top = -1;
        for (int64_t e = 0; e < n; e++)
          if (!taken[e] && (top < 0 || x->x[row * n + e] > x->x[row * n + top])) top = e;
        taken[top] = true;
        want[row * k + j] = soft[row * n + top];
        chosen += soft[row * n + top];
        experts[row * k + j] = some_finished && f->x[row] != 0 ? (double)n : (double)top;
      }
      for (int64_t j = 0; renorm && j < k; j++) want[row * k + j] /= chosen;
    }
    RUN(MoeGatingTopKSoftmaxV2, x->t, some_finished ? f->t : NULL, k, renorm, all, y->t, i->t, all ? s->t : NULL);
    expect(y, want, type, 1, 0.01);
    expect(i, experts, NPU_INT32, 0, 0);
    if (all && !renorm) expect(s, soft, NPU_FLOAT, 2, 0.01);
    else free(soft);
    release();
  }
  int t = NPU_FLOAT16;
  struct array *x = A(t, 2, 4), *y = A(t, 2, 2), *i = A(NPU_INT32, 2, 2);
#define GATE(code, ...) REFUSED(code, MoeGatingTopKSoftmaxV2, __VA_ARGS__)
  GATE(NULL_POINTER, x->t, NULL, 2, 1, false, y->t, NULL, NULL);
  GATE(NULL_POINTER, x->t, NULL, 2, 0, true, y->t, i->t, NULL);
  GATE(INVALID, x->t, NULL, 2, 1, false, A(NPU_FLOAT, 2, 2)->t, i->t, NULL);
  GATE(INVALID, x->t, NULL, 2, 1, false, y->t, A(NPU_INT64, 2, 2)->t, NULL);
  GATE(INVALID, A(NPU_INT32, 2, 4)->t, NULL, 2, 1, false, y->t, i->t, NULL);
  GATE(INVALID, x->t, NULL, 2, 1, false, array(t, PADDED, DIMS(2, 2))->t, i->t, NULL);
  GATE(TILING, x->t, NULL, 2, 2, false, y->t, i->t, NULL);
  GATE(TILING, x->t, NULL, 5, 1, false, A(t, 2, 5)->t, A(NPU_INT32, 2, 5)->t, NULL);
  GATE(TILING, x->t, NULL, 3, 1, false, y->t, i->t, NULL);
  GATE(TILING, A(t, 4)->t, NULL, 2, 1, false, A(t, 2)->t, A(NPU_INT32, 2)->t, NULL);
  GATE(TILING, A(t, 1, 2049)->t, NULL, 2, 1, false, A(t, 1, 2)->t, A(NPU_INT32, 1, 2)->t, NULL);
  GATE(TILING, x->t, A(NPU_BOOL, 3)->t, 2, 1, false, y->t, i->t, NULL);
  GATE(TILING, x->t, NULL, 2, 0, true, y->t, i->t, A(t, 2, 4)->t);
#undef GATE
  release();
}

static void test_routing(void) {
  for (int round = 0; round < 100; round++) {
    int type = any_float(), flag = rnd(0, 2);
    int64_t r = rnd(1, 6), k = rnd(1, 3), n = rnd(3, 6), h = old_chip ? 32 * rnd(1, 2) : rnd(1, 20), p = r * k;
    struct array *x = S(type, r, h), *i = S(NPU_INT32, r, k), *y = A(type, p, h), *rows = A(NPU_INT32, p), *c = A(NPU_INT32, n);
    fill_index(i, n, false);
    double *want = room(y->n), *to = room(p), *counts = room(n);
    int64_t next = 0;
    for (int64_t e = 0; e < n; e++) {
      for (int64_t j = 0; j < p; j++) {
        if ((int64_t)i->x[j] != e) continue;
        memcpy(want + next * h, x->x + j / k * h, (size_t)h * sizeof *want);
        to[j] = (double)next++;
        counts[e]++;
      }
      if (flag == 1) counts[e] = (double)next;
    }
    RUN(MoeInitRoutingV2, x->t, i->t, rnd(0, 1) ? 0 : p, 0, n, 0, flag, false, y->t, rows->t, flag ? c->t : NULL, NULL);
    expect(y, want, type, 0, 0);
    expect(rows, to, NPU_INT32, 0, 0);
    if (flag) expect(c, counts, NPU_INT32, 0, 0);
    else free(counts);

    /* and back: the same rows, weighted */
    int stype = !old_chip && type == NPU_BF16 && rnd(0, 1) ? NPU_FLOAT : type;
    bool shared = !old_chip && rnd(0, 1), biased = !old_chip && rnd(0, 1), by_row = old_chip || rnd(0, 1);
    struct array *s = S(stype, r, k), *z = A(type, r, h), *x1 = S(type, r, h), *x2 = S(type, r, h), *b = S(type, n, h),
                 *order = A(NPU_INT32, p);
    double *places = fetch(rows), *out = room(z->n);
    for (int64_t j = 0; j < p; j++) order->x[by_row ? j : j / k + j % k * r] = places[j];
    send(order);
    for (int64_t e = 0; e < z->n; e++) {
      if (shared) out[e] = x1->x[e] + x2->x[e];
      for (int64_t j = 0; j < k; j++) {
        double v = x->x[e] + (biased ? b->x[(int64_t)i->x[e / h * k + j] * h + e % h] : 0);
        out[e] += s->x[e / h * k + j] * v;
      }
    }
    free(places);
    RUN(MoeFinalizeRoutingV2, y->t, order->t, shared ? x1->t : NULL, shared ? x2->t : NULL, biased ? b->t : NULL, s->t,
        biased ? i->t : NULL, by_row ? 2 : 0, z->t);
    expect(z, out, type, 1, 2);
    release();
  }
}

static void test_routing_refusals(void) {
  int t = NPU_FLOAT16;
  struct array *x = A(t, 2, 32), *i = A(NPU_INT32, 2, 2), *y = A(t, 4, 32), *rows = A(NPU_INT32, 4), *c = A(NPU_INT32, 3);
  fill_index(i, 3, false);
#define INIT(code, ...) REFUSED(code, MoeInitRoutingV2, __VA_ARGS__)
  INIT(NULL_POINTER, x->t, i->t, 0, 0, 3, 0, 2, false, y->t, rows->t, NULL, NULL);
  INIT(NULL_POINTER, x->t, NULL, 0, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(INVALID, x->t, A(NPU_INT64, 2, 2)->t, 0, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(INVALID, x->t, i->t, 0, 0, 3, 0, 2, false, y->t, rows->t, A(NPU_INT64, 3)->t, NULL);
  INIT(INVALID, x->t, i->t, 0, 0, 3, 0, 2, false, array(t, PADDED, DIMS(4, 32))->t, rows->t, c->t, NULL);
  INIT(INVALID, x->t, i->t, 0, 0, 3, 0, 2, false, A(NPU_FLOAT, 4, 32)->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 3, 0, 2, false, A(t, 4, 31)->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 3, 0, 2, false, y->t, A(NPU_INT32, 5)->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 3, 0, 2, false, y->t, rows->t, A(NPU_INT32, 4)->t, NULL);
  INIT(SHAPES, x->t, A(NPU_INT32, 3, 2)->t, 0, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, A(NPU_INT32, 4)->t, 0, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, -1, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 3, 2, 2, false, y->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 3, 0, 3, false, y->t, rows->t, c->t, NULL);
  INIT(SHAPES, x->t, i->t, 0, 0, 0, 0, 2, false, y->t, rows->t, c->t, NULL);
  INIT(TILING, x->t, i->t, 0, 2, 3, 1, 0, true, y->t, rows->t, NULL, c->t);
  if (old_chip) INIT(SHAPES, A(t, 2, 31)->t, i->t, 0, 0, 3, 0, 2, false, A(t, 4, 31)->t, rows->t, c->t, NULL);
#undef INIT
  i->x[3] = 3;
  send(i);
  FAULTS(MoeInitRoutingV2, x->t, i->t, 0, 0, 3, 0, 2, false, y->t, rows->t, c->t, NULL);
  release();

  struct array *s = A(t, 2, 2), *z = A(t, 2, 32), *x1 = A(t, 2, 32), *b = A(t, 3, 32);
  y = A(t, 4, 32), rows = A(NPU_INT32, 4), i = A(NPU_INT32, 2, 2);
  fill_index(rows, 4, true);
#define FINAL(code, ...) REFUSED(code, MoeFinalizeRoutingV2, __VA_ARGS__)
  FINAL(NULL_POINTER, y->t, NULL, NULL, NULL, NULL, s->t, NULL, 2, z->t);
  FINAL(INVALID, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 4, z->t);
  FINAL(INVALID, y->t, rows->t, NULL, x1->t, NULL, s->t, NULL, 2, z->t);
  FINAL(INVALID, y->t, rows->t, NULL, NULL, b->t, s->t, NULL, 2, z->t);
  FINAL(INVALID, y->t, A(NPU_INT64, 4)->t, NULL, NULL, NULL, s->t, NULL, 2, z->t);
  FINAL(INVALID, y->t, rows->t, NULL, NULL, NULL, A(NPU_FLOAT, 2, 2)->t, NULL, 2, z->t);
  FINAL(INVALID, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 2, A(NPU_FLOAT, 2, 32)->t);
  FINAL(INVALID, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 2, array(t, PADDED, DIMS(2, 32))->t);
  FINAL(SHAPES, y->t, rows->t, NULL, NULL, NULL, A(t, 2, 3)->t, NULL, 2, z->t);
  FINAL(SHAPES, y->t, rows->t, NULL, NULL, NULL, NULL, NULL, 2, z->t);
  FINAL(SHAPES, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 2, A(t, 2, 31)->t);
  if (old_chip) {
    FINAL(INVALID, y->t, rows->t, x1->t, NULL, NULL, s->t, NULL, 2, z->t);
    FINAL(INVALID, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 0, z->t);
    FINAL(SHAPES, A(t, 4, 31)->t, rows->t, NULL, NULL, NULL, s->t, NULL, 2, A(t, 2, 31)->t);
  } else {
    FINAL(TILING, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 1, z->t);
    FINAL(SHAPES, y->t, rows->t, A(t, 3, 32)->t, NULL, NULL, s->t, NULL, 2, z->t);
  }
#undef FINAL
  rows->x[2] = 4;
  send(rows);
  FAULTS(MoeFinalizeRoutingV2, y->t, rows->t, NULL, NULL, NULL, s->t, NULL, 2, z->t);
  release();
}

/* [e, k, n], whole or a view of [e, n, k] */
static struct array *stack(int type, bool turned, int64_t e, int64_t k, int64_t n) {
  struct array *t = A(type, e, k, n);
  if (!turned) return t;
  t->strides[1] = 1;
  t->strides[2] = k;
  send(t);
  a.aclDestroyTensor(t->t);
  t->t = a.aclCreateTensor(t->dims, 3, type, t->strides, 0, NPU_ND, &t->storage, 1, t->device);
  return t;
}

#define GROUPED(x, w, b, s, o, g, split, type, list_type, act, y)                                                                          \
  x, w, b, NULL, NULL, s, o, NULL, g, NULL, NULL, NULL, split, type, list_type, act, y, NULL, NULL

static void test_grouped(void) {
  for (int round = 0; round < 120; round++) {
    int quant = old_chip ? 0 : rnd(0, 2), type = old_chip ? NPU_FLOAT16 : quant ? half_type() : any_float(), list_type = rnd(0, 1);
    bool turned = rnd(0, 1), biased = rnd(0, 1), several = rnd(0, 3) == 0, in_groups = quant == 2 && rnd(0, 1);
    int64_t e = rnd(2, 5), m = rnd(1, 12), k = 2 * rnd(1, 20), n = 2 * rnd(1, 10), parts = in_groups && k % 4 == 0 ? 2 : 1;
    int wtype = quant == 2 ? NPU_INT4 : quant ? NPU_INT8 : type;
    if (several) turned = false;
    struct array *x = A(type, m, k), *y = A(type, m, n), *g = A(NPU_INT64, e), *w[5], *b[5], *s[5], *o[5];
    int many = several ? (int)e : 1;
    for (int i = 0; i < many; i++) {
      int btype = type == NPU_BF16 ? NPU_FLOAT : type;
      w[i] = several ? A(wtype, k, n) : stack(wtype, turned, e, k, n);
      b[i] = several ? A(btype, n) : A(btype, e, n);
      s[i] = several ? (parts > 1 ? A(type, parts, n) : A(type, n)) : parts > 1 ? A(type, e, parts, n) : A(type, e, n);
      o[i] = array(type, WHOLE, s[i]->n_dims, s[i]->dims);
    }
    int64_t left = m, from[6] = {0};
    for (int64_t i = 0; i < e; i++) {
      int64_t rows = rnd(0, (int)left);
      left -= rows;
      from[i + 1] = from[i] + rows;
      g->x[i] = (double)(list_type ? rows : from[i + 1]);
    }
    send(g);
    double *want = room(y->n);
    memcpy(want, y->x, (size_t)y->n * sizeof *want); /* rows beyond stay */
    for (int64_t i = 0; i < e; i++) {
      for (int64_t r = from[i]; r < from[i + 1]; r++) {
        for (int64_t c = 0; c < n; c++) {
          int at = several ? (int)i : 0;
          int64_t base = several ? 0 : i;
          double sum = biased ? b[at]->x[base * n + c] : 0;
          for (int64_t j = 0; j < k; j++) {
            double v = w[at]->x[(base * k + j) * n + c];
            int64_t scale = (base * parts + j / (k / parts)) * n + c;
            if (quant) v = rounded(type, (v + o[at]->x[scale]) * s[at]->x[scale]);
            sum += x->x[r * k + j] * v;
          }
          want[r * n + c] = sum;
        }
      }
    }
    aclTensorList *weights = list(many, w), *biases = biased ? list(many, b) : NULL;
    aclTensorList *scales = quant ? list(many, s) : NULL, *offsets = quant ? list(many, o) : NULL;
    RUN(GroupedMatmulV4, GROUPED(L(x), weights, biases, scales, offsets, g->t, 2 + rnd(0, 1), 0, list_type, 0, L(y)));
    expect(y, want, type, 1, (quant ? 5 : 1) * sqrt((double)k));
    release();
  }
}

static void test_grouped_refusals(void) {
  int t = NPU_FLOAT16;
#define X              L(A(t, 4, 8))
#define W              L(A(t, 3, 8, 6))
#define Y              L(A(t, 4, 6))
#define GMM(code, ...) REFUSED(code, GroupedMatmulV4, GROUPED(__VA_ARGS__))
  struct array *g = A(NPU_INT64, 3);
  memset(g->x, 0, 3 * sizeof *g->x);
  send(g);
  aclTensorList *x = X, *w = W, *y = Y;
  GMM(NULL_POINTER, NULL, w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(NULL_POINTER, x, NULL, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(NULL_POINTER, x, w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, NULL);
  GMM(INVALID, x, w, NULL, NULL, NULL, NULL, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, A(NPU_INT32, 3)->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, A(NPU_INT64, 4)->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 4, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 3, 1, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 3, 0, 3, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 3, 0, 1, 5, y);
  GMM(TILING, x, w, NULL, NULL, NULL, g->t, 0, -1, 1, 0, y);
  GMM(INVALID, L(A(NPU_FLOAT, 4, 8)), w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, L(A(t, 3, 7, 6)), NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, L(A(t, 8, 6)), NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, L(array(t, PADDED, DIMS(3, 8, 6))), NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, L(array(t, PADDED, DIMS(4, 8))), w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, L(A(t, 4, 5)));
  GMM(INVALID, x, w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, L(A(NPU_FLOAT, 4, 6)));
  GMM(INVALID, x, w, L(A(NPU_FLOAT, 3, 6)), NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, L(A(t, 6)), NULL, NULL, g->t, 3, 0, 1, 0, y);
  GMM(INVALID, x, w, NULL, L(A(t, 3, 6)), L(A(t, 3, 6)), g->t, 3, 0, 1, 0, y);
  release();
  g = A(NPU_INT64, 3), x = X, w = W, y = Y;
  aclTensorList *w8 = L(A(NPU_INT8, 3, 8, 6));
  GMM(INVALID, x, w8, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y);
  if (old_chip) {
    GMM(INVALID, x, w8, NULL, L(A(t, 3, 6)), L(A(t, 3, 6)), g->t, 3, 0, 1, 0, y);
  } else {
    GMM(INVALID, x, w8, NULL, L(A(t, 3, 6)), NULL, g->t, 3, 0, 1, 0, y);
    GMM(INVALID, x, w8, NULL, L(A(NPU_FLOAT, 3, 6)), L(A(NPU_FLOAT, 3, 6)), g->t, 3, 0, 1, 0, y);
    GMM(INVALID, x, w8, NULL, L(A(t, 3, 2, 6)), L(A(t, 3, 2, 6)), g->t, 3, 0, 1, 0, y); /* INT8 goes by channel only */
    aclTensorList *w4 = L(A(NPU_INT4, 3, 8, 6)), *s4 = L(A(t, 3, 3, 6)), *o4 = L(A(t, 3, 3, 6));
    GMM(INVALID, x, w4, NULL, s4, o4, g->t, 3, 0, 1, 0, y); /* 3 groups of 8 rows */
    aclTensorList *b = L(A(NPU_BF16, 4, 8)), *bw = L(A(NPU_BF16, 3, 8, 6)), *by = L(A(NPU_BF16, 4, 6));
    GMM(INVALID, b, bw, L(A(NPU_BF16, 3, 6)), NULL, NULL, g->t, 3, 0, 1, 0, by); /* bf16 wants a bias of FLOAT */
  }
  struct array *wide_w = A(t, 1, 2, 65536), *wide_y = A(t, 1, 65536), *wide_x = A(t, 1, 2), *one = A(NPU_INT64, 1);
  GMM(INVALID, L(wide_x), L(wide_w), NULL, NULL, NULL, one->t, 3, 0, 1, 0, L(wide_y));
  const double bad[3][3] = {{2, -1, 1}, {2, 2, 1}, {5, 0, 0}};
  for (int i = 0; i < 3; i++) { /* counts below 0; more than M rows */
    for (int j = 0; j < 3; j++) g->x[j] = bad[i][j];
    send(g);
    FAULTS(GroupedMatmulV4, GROUPED(x, w, NULL, NULL, NULL, g->t, 3, 0, 1, 0, y));
  }
  g->x[0] = 3, g->x[1] = 2, g->x[2] = 4; /* cumulative counts that fall */
  send(g);
  FAULTS(GroupedMatmulV4, GROUPED(x, w, NULL, NULL, NULL, g->t, 3, 0, 0, 0, y));
#undef X
#undef W
#undef Y
#undef GMM
  release();
}

static void everything(void) {
  device_open();
  test_rows();
  test_rows_refusals();
  test_cat();
  test_sums();
  test_top();
  test_gating();
  test_routing();
  test_routing_refusals();
  test_grouped();
  test_grouped_refusals();
  device_close();
}

static void test_profiles(void **state) {
  (void)state;
  npu_each_profile(everything);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_profiles)};
TEST_MAIN(tests)
