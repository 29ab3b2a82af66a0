/* op_rows.c — rows by index, and pieces put together: Embedding, IndexSelect, InplaceIndexCopy, Cat.
 *
 * The device does not check indices: one that is out of range faults here (507015 at the next wait). Two equal indices of InplaceIndexCopy have
 * no documented winner and fault as well.
 */
#include "op_shared.h"

#include <stdlib.h>
#include <string.h>

#define ROW_TYPES OP_FLOATS, OP_INTS, EMU_BOOL, EMU_UINT16, EMU_UINT32, EMU_UINT64, EMU_DOUBLE

/* Index i, from 0 to limit - 1; -1 after a fault. */
static int64_t index_at(struct emu_call *c, const struct emu_tensor *index, int64_t i, int64_t limit) {
  int64_t k = emu_get_int(index, i);
  if (k >= 0 && k < limit) return k;
  emu_fault(c, EMU_AICORE_EXCEPTION, "%s[%lld] is %lld, out of 0 to %lld", index->name, (long long)i, (long long)k, (long long)limit - 1);
  return -1;
}

static void embedding_run(struct emu_call *c, const void *ctx) {
  (void)ctx;
  const struct emu_tensor *weight = &c->t[0], *indices = &c->t[1], *out = &c->t[2];
  int axis = out->n_dims - 1;
  for (int64_t i = 0; i < indices->n; i++) {
    int64_t k = index_at(c, indices, i, weight->dims[0]);
    if (k < 0) return;
    struct emu_tensor from = op_slice(weight, 0, k), to = from;
    to.data = out->data + op_line_start(out, axis, i) * emu_element_bits(out->type) / 8;
    to.strides[0] = out->strides[axis];
    op_copy(&to, &from);
  }
}

EMU_OPERATOR(Embedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out) {
  EMU_PLAN(p, "Embedding");
  int w = emu_reads(p, "weight", weight), i = emu_reads(p, "indices", indices), y = emu_writes(p, "out", out);
  const struct emu_tensor *t = p->t;
  EMU_TYPES(p, w, ROW_TYPES);
  EMU_TYPES(p, i, EMU_INT32, EMU_INT64);
  op_same_type(p, y, w);
  op_rank(p, w, 2, 2);
  op_rank(p, i, 0, EMU_DIMS_MAX - 1);
  bool right = t[y].n_dims == t[i].n_dims + 1;
  for (int d = 0; right && d < t[i].n_dims; d++) right = t[y].dims[d] == t[i].dims[d];
  emu_check(p, right && t[y].dims[t[y].n_dims - 1] == t[w].dims[1], EMU_PARAM_INVALID,
            "out is %s, expected the shape of indices %s and then %lld", emu_text(&t[y]), emu_text(&t[i]), (long long)t[w].dims[1]);
  return emu_finish(p, embedding_run, NULL, 0, op_workspace(p, 0));
}

struct along {
  int axis;
};

static void select_run(struct emu_call *c, const void *ctx) {
  const struct along *a = ctx;
  const struct emu_tensor *self = &c->t[0], *index = &c->t[1], *out = &c->t[2];
  if (out->n == 0) return;
  for (int64_t i = 0; i < index->n; i++) {
    int64_t k = index_at(c, index, i, op_line_length(self, a->axis));
    if (k < 0) return;
    struct emu_tensor to = op_slice(out, a->axis, i), from = op_slice(self, a->axis, k);
    op_copy(&to, &from);
  }
}

static void check_index(struct emu_plan *p, int slot) {
  EMU_TYPES(p, slot, EMU_INT32, EMU_INT64);
  op_rank(p, slot, 1, 1);
}

/* Shape of `like`, but n along the axis. */
static bool check_along(struct emu_plan *p, int slot, int like, int axis, int64_t n) {
  const struct emu_tensor *t = &p->t[slot], *l = &p->t[like];
  bool right = t->n_dims == l->n_dims;
  for (int d = 0; right && d < t->n_dims; d++) right = t->dims[d] == (d == axis ? n : l->dims[d]);
  return emu_check(p, right, EMU_PARAM_INVALID, "%s is %s, expected the shape of %s %s with %lld along axis %d", t->name, emu_text(t),
                   l->name, emu_text(l), (long long)n, axis);
}

EMU_OPERATOR(IndexSelect, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out) {
  EMU_PLAN(p, "IndexSelect");
  int x = emu_reads(p, "self", self), i = emu_reads(p, "index", index), y = emu_writes(p, "out", out);
  EMU_TYPES(p, x, ROW_TYPES);
  op_same_type(p, y, x);
  op_rank(p, x, 1, EMU_DIMS_MAX);
  check_index(p, i);
  struct along a = {op_axis(p, x, dim)};
  check_along(p, y, x, a.axis, p->t[i].n);
  return emu_finish(p, select_run, &a, sizeof a, op_workspace(p, 0));
}

static int compare_index(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static void index_copy_run(struct emu_call *c, const void *ctx) {
  const struct along *a = ctx;
  const struct emu_tensor *self = &c->t[0], *index = &c->t[1], *source = &c->t[2];
  if (source->n == 0) return;
  int64_t *seen = emu_scratch(c, (size_t)index->n * sizeof *seen);
  for (int64_t i = 0; i < index->n; i++)
    if ((seen[i] = index_at(c, index, i, op_line_length(self, a->axis))) < 0) return;
  for (int64_t i = 0; i < index->n; i++) {
    struct emu_tensor to = op_slice(self, a->axis, seen[i]), from = op_slice(source, a->axis, i);
    op_copy(&to, &from);
  }
  qsort(seen, (size_t)index->n, sizeof *seen, compare_index);
  for (int64_t i = 1; i < index->n; i++) {
    if (seen[i] != seen[i - 1]) continue;
    emu_fault(c, EMU_AICORE_EXCEPTION, "index has %lld twice: which source stays is not specified", (long long)seen[i]);
    return;
  }
}

EMU_OPERATOR(InplaceIndexCopy, aclTensor *selfRef, int64_t dim, const aclTensor *index, const aclTensor *source) {
  EMU_PLAN(p, "InplaceIndexCopy");
  emu_needs_chip(p, emu_chip() != EMU_310P);
  int x = emu_updates(p, "selfRef", selfRef), i = emu_reads(p, "index", index), y = emu_reads(p, "source", source);
  EMU_TYPES(p, x, ROW_TYPES);
  op_same_type(p, y, x);
  op_rank(p, x, 1, EMU_DIMS_MAX);
  check_index(p, i);
  struct along a = {op_axis(p, x, dim)};
  check_along(p, y, x, a.axis, p->t[i].n);
  return emu_finish(p, index_copy_run, &a, sizeof a, op_workspace(p, 0));
}

static void cat_run(struct emu_call *c, const void *ctx) {
  const struct along *a = ctx;
  const struct emu_tensor *out = &c->t[c->n - 1];
  int64_t at = 0;
  for (int i = 0; i < c->n - 1; i++) {
    if (c->t[i].n == 0) continue;
    struct emu_tensor to = *out;
    to.data += at * out->strides[a->axis] * emu_element_bits(out->type) / 8;
    to.dims[a->axis] = c->t[i].dims[a->axis];
    to.n = c->t[i].n;
    op_copy(&to, &c->t[i]);
    at += c->t[i].dims[a->axis];
  }
}

EMU_OPERATOR(Cat, const aclTensorList *tensors, int64_t dim, aclTensor *out) {
  EMU_PLAN(p, "Cat");
  int n = 0, first = emu_reads_list(p, "tensors", tensors, &n), y = emu_writes(p, "out", out);
  struct along a = {op_axis(p, y, dim)};
  EMU_TYPES(p, y, ROW_TYPES);
  op_rank(p, y, 1, EMU_DIMS_MAX);
  int64_t sum = 0;
  for (int i = first; p->ok && i < first + n; i++) {
    const struct emu_tensor *t = &p->t[i];
    op_same_type(p, i, y);
    if (t->n_dims == 1 && t->n == 0) continue; /* an empty one has any shape */
    if (p->ok && check_along(p, i, y, a.axis, t->n_dims == p->t[y].n_dims ? t->dims[a.axis] : 0)) sum += t->dims[a.axis];
  }
  emu_check(p, op_line_length(&p->t[y], a.axis) == sum, EMU_PARAM_INVALID, "out is %s, the tensors together have %lld along axis %d",
            emu_text(&p->t[y]), (long long)sum, a.axis);
  return emu_finish(p, cat_run, &a, sizeof a, op_workspace(p, 0));
}
