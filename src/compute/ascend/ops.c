/* ops.c — norms, elementwise operations, rope, and moving rows on the NPU.
 *
 * The library's operators take no output that overlaps an input, but for those that are made to work in place: where y is x and there is no such
 * operator, the result goes through temporary memory.
 * Every operation does nothing for no rows.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "compute/ascend/ascend.h"
#include "compute/rope.h"

enum {
  NARROW_NORM = 16,
  HEADS_MAX = 999, /* of one RotaryPositionEmbedding; the width is below the next */
  ROPE_WIDTH_MAX = 896,
  ROPE_ROOM = 32 << 10, /* bytes of cos and sin that the host puts together at a time */
  ARGMAX_ROWS = 256,
  ARGMAX_COLS = 2048, /* numbers of a row that the host looks through at a time */
  PUT_ROWS = 512,
};

static struct ascend *begin(struct device *device) {
  struct ascend *d = ascend_of(device);
  ascend_temp_reset(d);
  return d;
}

/* Columns as heads of n numbers each: [rows, cols / n, n]. */
static aclTensor *as_heads(struct ascend *d, const struct tensor *t, int n) {
  return ascend_view(d, t->data, d->type, (struct ascend_shape){3, {t->rows, t->cols / n, n}, {ascend_stride(t), n, 1}});
}

/* Temporary memory of x's shape, rows end to end. data NULL after an error, of which makers of descriptors know. */
static struct tensor like(struct ascend *d, const struct tensor *x) {
  struct tensor t = {.dtype = d->dtype, .rows = x->rows, .cols = x->cols, .row_bytes = 2 * (size_t)x->cols};
  t.data = ascend_temp(d, (size_t)t.rows * t.row_bytes);
  return t;
}

/* The weights of a norm: w, or 1 each. */
static const void *norm_weights(struct ascend *d, const float *w, int n, aclDataType type) {
  if (w || n <= d->n_ones) return ascend_vector(d, w ? w : d->ones, n, type);
  void *p = ascend_temp(d, (size_t)n * (type == NPU_FLOAT ? 4 : 2));
  ASCEND_LAUNCH(d, InplaceFillScalar, ascend_array(d, p, type, n), ascend_number(d, 1));
  return p;
}

/* ---- norms ------------------------------------------------------------------------------------------------------------------ */

/* The same of so few numbers that 310P wants them as float32 (an axis of 32 bytes); of 8 and more. */
static void narrow_norm(struct ascend *d, const struct tensor *y, const struct tensor *x, const float *w, int groups, float eps) {
  int n = x->cols / groups;
  struct ascend_shape heads = {3, {x->rows, groups, n}, {0}}, per_group = {3, {x->rows, groups, 1}, {0}};
  size_t n_bytes = sizeof(float) * (size_t)x->rows * (size_t)x->cols;
  void *in = ascend_temp(d, n_bytes), *out = ascend_temp(d, n_bytes), *factors = ascend_temp(d, n_bytes / (size_t)n);
  const void *gamma = norm_weights(d, w, n, NPU_FLOAT);
  ASCEND_LAUNCH(d, InplaceCopy, ascend_view(d, in, NPU_FLOAT, heads), as_heads(d, x, n));
  ASCEND_LAUNCH(d, RmsNorm, ascend_view(d, in, NPU_FLOAT, heads), ascend_array(d, gamma, NPU_FLOAT, n), (double)eps,
                ascend_view(d, out, NPU_FLOAT, heads), ascend_view(d, factors, NPU_FLOAT, per_group));
  ASCEND_LAUNCH(d, InplaceCopy, as_heads(d, y, n), ascend_view(d, out, NPU_FLOAT, heads));
}

/* y = norm(x) ⊙ w; y is not x. gamma is float32 where the operator takes that. It writes rows end to end, whatever its output's strides
 * say. */
static void norm(struct ascend *d, const struct tensor *y, const struct tensor *x, const float *w, int groups, float eps) {
  int n = x->cols / groups;
  if (d->profile.chip == ASCEND_310P && n < NARROW_NORM) {
    narrow_norm(d, y, x, w, groups, eps);
    return;
  }
  aclDataType type = d->profile.chip == ASCEND_310P ? d->type : NPU_FLOAT;
  const void *gamma = norm_weights(d, w, n, type);
  void *factors = ascend_temp(d, sizeof(float) * (size_t)x->rows * (size_t)groups);
  struct ascend_shape per_group = {3, {x->rows, groups, 1}, {0}};
  bool gaps = x->rows > 1 && y->row_bytes != 2 * (size_t)y->cols;
  struct tensor out = gaps ? like(d, x) : *y;
  ASCEND_LAUNCH(d, RmsNorm, as_heads(d, x, n), ascend_array(d, gamma, type, n), (double)eps, as_heads(d, &out, n),
                ascend_view(d, factors, NPU_FLOAT, per_group));
  if (gaps) ascend_assign(d, y, &out);
}

void ascend_rmsnorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, int groups, float eps) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows && groups > 0 && x->cols % groups == 0);
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows);
  if (y->data != x->data) {
    norm(d, &out, x, w, groups, eps);
    return;
  }
  struct tensor apart = like(d, x);
  norm(d, &apart, x, w, groups, eps);
  ascend_assign(d, &out, &apart);
}

void ascend_add_rmsnorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, float eps) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows), apart = like(d, x);
  norm(d, &apart, x, w, 1, eps);
  ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, &out), ascend_tensor(d, &apart), ascend_number(d, 1));
}

/* ---- elementwise -------------------------------------------------------------------------------------------------------------- */

void ascend_add(struct device *device, struct tensor *y, const struct tensor *x) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows);
  if (y->data == x->data) ASCEND_LAUNCH(d, InplaceMuls, ascend_tensor(d, &out), ascend_factor(d, 2));
  else ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, &out), ascend_tensor(d, x), ascend_number(d, 1));
}

/* y = s x; y may be x */
static void times(struct ascend *d, const struct tensor *y, const struct tensor *x, double s) {
  if (y->data == x->data) ASCEND_LAUNCH(d, InplaceMuls, ascend_tensor(d, y), ascend_factor(d, s));
  else ASCEND_LAUNCH(d, Muls, ascend_tensor(d, x), ascend_factor(d, s), ascend_tensor(d, y));
}

void ascend_scale(struct device *device, struct tensor *y, const struct tensor *x, float s) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows);
  times(d, &out, x, (double)s);
}

void ascend_softcap(struct device *device, struct tensor *y, const struct tensor *x, float cap) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows);
  times(d, &out, x, 1 / (double)cap);
  ASCEND_LAUNCH(d, InplaceTanh, ascend_tensor(d, &out));
  times(d, &out, &out, (double)cap);
}

/* All logits: nothing is left out, and the host finds the peaks. */
void ascend_head(struct device *device, struct tensor *y, struct tensor *peaks, const struct weight *w, const struct tensor *x, float cap,
                 const int32_t *n_best) {
  (void)n_best, (void)peaks;
  ascend_linear(device, 1, &w, &y, x);
  if (cap > 0) ascend_softcap(device, y, y, cap);
}

void ascend_activate(struct ascend *d, const struct tensor *y, const struct tensor *x, enum act act) {
  switch (act) {
  case ACT_GELU_TANH: ASCEND_LAUNCH(d, GeluV2, ascend_tensor(d, x), 1, ascend_tensor(d, y)); break;
  case ACT_GELU_ERF: ASCEND_LAUNCH(d, GeluV2, ascend_tensor(d, x), 0, ascend_tensor(d, y)); break;
  case ACT_SILU: ASCEND_LAUNCH(d, Silu, ascend_tensor(d, x), ascend_tensor(d, y)); break;
  case ACT_SIGMOID: ASCEND_LAUNCH(d, Sigmoid, ascend_tensor(d, x), ascend_tensor(d, y)); break;
  case ACT_RELU: ASCEND_LAUNCH(d, Relu, ascend_tensor(d, x), ascend_tensor(d, y)); break;
  case ACT_NONE: ascend_assign(d, y, x); break;
  }
}

/* gate and up as the two halves of the same rows, without a gap: one operator for both. */
static bool gated_at_once(struct ascend *d, const struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act) {
  bool side_by_side = (char *)gate->data + 2 * (size_t)gate->cols == (char *)up->data && gate->row_bytes == up->row_bytes &&
                      gate->row_bytes == 4 * (size_t)gate->cols;
  if (!side_by_side || y->data == gate->data || y->data == up->data) return false;
  struct tensor both = *gate;
  both.cols *= 2;
  if (act == ACT_SILU && ascend_has(d, ACL_OP_SwiGlu) && y->row_bytes == 2 * (size_t)y->cols) {
    ASCEND_LAUNCH(d, SwiGlu, ascend_tensor(d, &both), -1, ascend_tensor(d, y));
    return true;
  }
  if ((act != ACT_GELU_TANH && act != ACT_GELU_ERF) || !ascend_has(d, ACL_OP_GeGluV3)) return false;
  struct tensor activated = like(d, gate);
  ASCEND_LAUNCH(d, GeGluV3, ascend_tensor(d, &both), -1, act == ACT_GELU_TANH, true, ascend_tensor(d, y), ascend_tensor(d, &activated));
  return true;
}

void ascend_gate(struct ascend *d, const struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act) {
  if (gated_at_once(d, y, gate, up, act)) return;
  if (y->data != gate->data && y->data != up->data) {
    ascend_activate(d, y, gate, act);
    ASCEND_LAUNCH(d, InplaceMul, ascend_tensor(d, y), ascend_tensor(d, up));
    return;
  }
  struct tensor activated = like(d, gate);
  ascend_activate(d, &activated, gate, act);
  if (y->data == up->data) ASCEND_LAUNCH(d, InplaceMul, ascend_tensor(d, y), ascend_tensor(d, &activated));
  else ASCEND_LAUNCH(d, Mul, ascend_tensor(d, &activated), ascend_tensor(d, up), ascend_tensor(d, y));
}

void ascend_gated(struct device *device, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act) {
  struct ascend *d = begin(device);
  CHECK(y->cols == gate->cols && up->cols == gate->cols && y->rows >= gate->rows && up->rows >= gate->rows);
  if (gate->rows < 1 || gate->cols < 1) return;
  struct tensor out = tensor_rows(*y, gate->rows), factor = tensor_rows(*up, gate->rows);
  ascend_gate(d, &out, gate, &factor, act);
}

/* The library has no operator for all of it. */
void ascend_linear_gated(struct device *device, struct tensor *y, const struct weight *gate, const struct weight *up,
                         const struct tensor *x, enum act act, struct tensor *up_room) {
  CHECK(gate->rows == up->rows && y->data != x->data && y->data != up_room->data && up_room->data != x->data);
  ascend_linear(device, 2, (const struct weight *[]){gate, up}, (struct tensor *[]){y, up_room}, x);
  ascend_gated(device, y, y, up_room, act);
}

/* ---- rope --------------------------------------------------------------------------------------------------------------------
 *
 * cos and sin of a table are [rows, head_dim], rows end to end, both halves of a row the same. They are the first rows_max rows of a block;
 * behind them stand the rows of all positions of text, from which rope_step gathers. Positions beyond (of a picture in a small context) are
 * computed on the host.
 */

static size_t rope_row_bytes(const struct rope_table *t) { return 2 * (size_t)t->head_dim; }
static char *rope_positions(const struct ascend *d, const struct tensor *rows) {
  return (char *)rows->data + align_up((size_t)d->config.rows_max * rows->row_bytes, 64);
}

struct rope_rows { /* cos and sin of some positions, on the host, in the device's type */
  const struct rope_table *t;
  enum dtype dtype;
  const int32_t *pos; /* NULL: from `first` on */
  int first;
  char *cos, *sin;
};

static void rope_row(void *ctx, int row, int worker) {
  const struct rope_rows *j = ctx;
  (void)worker;
  size_t half = (size_t)j->t->head_dim, at = (size_t)row * 2 * half; /* bytes */
  float p = (float)(j->pos ? j->pos[j->first + row] : j->first + row);
  for (int i = 0; i < j->t->head_dim / 2; i++) {
    float cos, sin;
    sincosf(p * j->t->inv_freq[i], &sin, &cos);
    dtype_from_f32(j->dtype, &cos, j->cos + at + 2 * (size_t)i, 1);
    dtype_from_f32(j->dtype, &sin, j->sin + at + 2 * (size_t)i, 1);
  }
  memcpy(j->cos + at + half, j->cos + at, half);
  memcpy(j->sin + at + half, j->sin + at, half);
}

/* Rows of positions pos[0 .. n), or 0 .. n where pos is NULL, to the device. */
static void rope_write(struct ascend *d, const struct rope_table *t, const int32_t *pos, int n, char *cos_to, char *sin_to) {
  char room[ROPE_ROOM];
  size_t row = rope_row_bytes(t);
  int most = (int)(sizeof room / (2 * row));
  struct rope_rows j = {.t = t, .dtype = d->dtype, .pos = pos, .cos = room, .sin = room + (size_t)most * row};
  for (; j.first < n && ascend_ok(d); j.first += most) {
    int rows = MIN(most, n - j.first);
    workers_run(rows > 16 ? d->device.workers : NULL, rope_row, &j, rows);
    ascend_write(d, cos_to + (size_t)j.first * row, j.cos, (size_t)rows * row);
    ascend_write(d, sin_to + (size_t)j.first * row, j.sin, (size_t)rows * row);
  }
}

static void rope_fill(struct ascend *d, const struct rope_table *t) {
  rope_write(d, t, NULL, d->config.positions_max, rope_positions(d, &t->cos), rope_positions(d, &t->sin));
}

int ascend_rope_init(struct device *device, struct rope_table *t, int head_dim, double theta, double factor, double rotated,
                     struct err *e) {
  struct ascend *d = begin(device);
  *t = (struct rope_table){0};
  if (head_dim > ROPE_ROOM / 4)
    return err_set(e, ERR_UNSUPPORTED, "rope: on an NPU heads have %d numbers at most, found %d", ROPE_ROOM / 4, head_dim);
  if (rope_angles_init(t, head_dim, theta, factor, rotated, e)) return -1;
  t->cos = t->sin = (struct tensor){.dtype = d->dtype, .rows = d->config.rows_max, .cols = head_dim, .row_bytes = rope_row_bytes(t)};
  size_t n_bytes = ascend_rope_bytes(&d->config, head_dim) / 2;
  t->cos.data = ascend_alloc(d, n_bytes, "rope", e);
  t->sin.data = t->cos.data ? ascend_alloc(d, n_bytes, "rope", e) : NULL;
  if (!t->sin.data) {
    ascend_rope_free(device, t);
    return -1;
  }
  rope_fill(d, t);
  if (ascend_ok(d)) return 0;
  ascend_finish(device, e);
  ascend_rope_free(device, t);
  return -1;
}

size_t ascend_rope_bytes(const struct device_config *c, int head_dim) {
  size_t row = 2 * (size_t)head_dim;
  return 2 * (align_up((size_t)c->rows_max * row, 64) + align_up((size_t)c->positions_max * row, 64));
}

void ascend_rope_bands(struct device *device, struct rope_table *t, double factor, double low, double high, int tokens) {
  struct ascend *d = begin(device);
  rope_angles_bands(t, factor, low, high, tokens);
  rope_fill(d, t);
}

void ascend_rope_divide(struct device *device, struct rope_table *t, const float *divisors) {
  struct ascend *d = begin(device);
  rope_angles_divide(t, divisors);
  rope_fill(d, t);
}

void ascend_rope_free(struct device *device, struct rope_table *t) {
  struct ascend *d = ascend_of(device);
  if (t->cos.data) ascend_free(d, t->cos.data);
  if (t->sin.data) ascend_free(d, t->sin.data);
  rope_angles_free(t);
}

static void rope_gather(struct ascend *d, const struct tensor *t, const int32_t *pos) {
  ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, rope_positions(d, t), d->type, d->config.positions_max, t->cols), 0,
                ascend_array(d, pos, NPU_INT32, t->rows), ascend_tensor(d, t));
}

void ascend_rope_step(struct device *device, struct rope_table *t, const int32_t *pos, int rows) {
  struct ascend *d = begin(device);
  CHECK(rows <= d->config.rows_max);
  t->cos.rows = t->sin.rows = rows;
  if (rows < 1) return;
  bool in_table = true;
  for (int r = 0; r < rows && !d->record; r++) in_table &= pos[r] >= 0 && pos[r] < d->config.positions_max;
  if (!in_table) {
    rope_write(d, t, pos, rows, t->cos.data, t->sin.data);
    return;
  }
  const int32_t *at = ascend_int32(d, pos, rows);
  rope_gather(d, &t->cos, at);
  rope_gather(d, &t->sin, at);
}

/* Heads of one width, `pitch` columns apart from x's first column on. */
struct heads {
  struct tensor x;
  int n, pitch, width;
};

/* Numbers [at, at + width) of every head: [rows, heads, width]. */
static aclTensor *part_of_heads(struct ascend *d, const struct heads *h, int at, int width) {
  return ascend_view(d, tensor_at(&h->x, 0, at), d->type,
                     (struct ascend_shape){3, {h->x.rows, h->n, width}, {ascend_stride(&h->x), h->pitch, 1}});
}
/* The first numbers of the table's rows, the same for all heads: [rows, 1, width]. */
static aclTensor *part_of_table(struct ascend *d, const struct tensor *t, int rows, int width) {
  return ascend_view(d, t->data, d->type, (struct ascend_shape){3, {rows, 1, width}, {ascend_stride(t), ascend_stride(t), 1}});
}

static void rope_fused(struct ascend *d, const struct heads *h, const struct rope_table *t, const struct heads *apart) {
  ASCEND_LAUNCH(d, RotaryPositionEmbedding, part_of_heads(d, h, 0, h->width), part_of_table(d, &t->cos, h->x.rows, h->width),
                part_of_table(d, &t->sin, h->x.rows, h->width), 0, part_of_heads(d, apart, 0, h->width));
  ASCEND_LAUNCH(d, InplaceCopy, part_of_heads(d, h, 0, h->width), part_of_heads(d, apart, 0, h->width));
}

/* The same from products and sums: (a, b) -> (a cos - b sin, b cos + a sin). apart: the two products with sin. */
static void rope_composed(struct ascend *d, const struct heads *h, const struct rope_table *t, const struct heads *apart) {
  const int rows = h->x.rows, half = h->width / 2;
  for (int i = 0; i < 2; i++)
    ASCEND_LAUNCH(d, Mul, part_of_heads(d, h, i * half, half), part_of_table(d, &t->sin, rows, half),
                  part_of_heads(d, apart, i * half, half));
  for (int i = 0; i < 2; i++) {
    ASCEND_LAUNCH(d, InplaceMul, part_of_heads(d, h, i * half, half), part_of_table(d, &t->cos, rows, half));
    ASCEND_LAUNCH(d, InplaceAdd, part_of_heads(d, h, i * half, half), part_of_heads(d, apart, half - i * half, half),
                  ascend_number(d, i ? 1 : -1));
  }
}

static bool can_rope(const struct ascend *d, int head_dim) {
  if (!ascend_has(d, ACL_OP_RotaryPositionEmbedding)) return false;
  return d->profile.has_wide_rope ? head_dim < ROPE_WIDTH_MAX : head_dim <= 128 && head_dim % 32 == 0;
}

void ascend_rope_heads(struct ascend *d, const struct tensor *x, int n_heads, int pitch, const struct rope_table *t) {
  for (int first = 0; first < n_heads; first += HEADS_MAX) {
    struct heads h = {*x, MIN(n_heads - first, HEADS_MAX), pitch, t->head_dim};
    h.x.data = tensor_at(x, 0, first * pitch);
    struct heads apart = h;
    apart.pitch = h.width;
    apart.x.cols = h.n * h.width;
    apart.x = like(d, &apart.x);
    if (!apart.x.data) return;
    if (can_rope(d, t->head_dim)) rope_fused(d, &h, t, &apart);
    else rope_composed(d, &h, t, &apart);
  }
}

void ascend_rope(struct device *device, struct tensor *x, const struct rope_table *t) {
  struct ascend *d = begin(device);
  CHECK(x->cols % t->head_dim == 0 && x->rows <= t->cos.rows);
  if (x->rows > 0) ascend_rope_heads(d, x, x->cols / t->head_dim, t->head_dim, t);
}

/* ---- rows -------------------------------------------------------------------------------------------------------------------- */

void ascend_gather(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *rows) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->data != x->data);
  if (y->rows < 1 || y->cols < 1) return;
  const int32_t *index = ascend_int32(d, rows, y->rows);
  ASCEND_LAUNCH(d, IndexSelect, ascend_tensor(d, x), 0, ascend_array(d, index, NPU_INT32, y->rows), ascend_tensor(d, y));
}

void ascend_copy(struct device *device, struct tensor *y, const struct tensor *x) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  if (x->rows < 1 || x->cols < 1 || y->data == x->data) return;
  struct tensor out = tensor_rows(*y, x->rows);
  ascend_assign(d, &out, x);
}

/* Waits, then brings n_bytes to the host. */
static bool bring(struct ascend *d, void *host, const void *from, size_t n_bytes) {
  return ascend_wait(d) && ascend_check(d, d->acl.aclrtMemcpy(host, n_bytes, from, n_bytes, NPU_DEVICE_TO_HOST),
                                        "copying %zu bytes from the device", n_bytes);
}

/* The place of the greatest number by hand; -1: none. */
static int32_t greatest(const struct ascend *d, const struct tensor *x, int row) {
  uint16_t bits[ARGMAX_COLS];
  int32_t best = -1;
  float most = 0;
  for (int first = 0, n; first < x->cols; first += n) {
    n = MIN(ARGMAX_COLS, x->cols - first);
    if (d->acl.aclrtMemcpy(bits, sizeof bits, tensor_at(x, row, first), 2 * (size_t)n, NPU_DEVICE_TO_HOST)) return -1;
    for (int i = 0; i < n; i++) {
      float v;
      dtype_to_f32(d->dtype, &bits[i], &v, 1);
      if (isnan(v) || (best >= 0 && v <= most)) continue;
      best = first + i;
      most = v;
    }
  }
  return best;
}

/* What ArgMax does with NaN is not written anywhere: rows whose sum is not finite are looked through on the host. Up to ARGMAX_ROWS rows. */
static void argmax_rows(struct ascend *d, int32_t *ids, const struct tensor *x) {
  float sums[ARGMAX_ROWS];
  size_t n_ids = sizeof(int32_t) * (size_t)x->rows, n_sums = sizeof(float) * (size_t)x->rows;
  ascend_temp_reset(d);
  void *places = ascend_temp(d, n_ids), *totals = ascend_temp(d, n_sums);
  static const int64_t along[] = {1};
  ASCEND_LAUNCH(d, ArgMax, ascend_tensor(d, x), 1, false, ascend_array(d, places, NPU_INT32, x->rows));
  ASCEND_LAUNCH(d, ReduceSum, ascend_tensor(d, x), ascend_ints(d, along, 1), false, NPU_FLOAT, ascend_array(d, totals, NPU_FLOAT, x->rows));
  bool there = ascend_ok(d) && bring(d, ids, places, n_ids) && bring(d, sums, totals, n_sums);
  for (int r = 0; r < x->rows; r++) {
    if (!there) ids[r] = -1;
    else if (!isfinite(sums[r])) ids[r] = greatest(d, x, r);
  }
}

void ascend_argmax(struct device *device, int32_t *ids, const struct tensor *x) {
  for (int first = 0, n; first < x->rows; first += n) {
    n = MIN(ARGMAX_ROWS, x->rows - first);
    struct tensor some = tensor_part(*x, first, n, 0, x->cols);
    argmax_rows(ascend_of(device), ids + first, &some);
  }
}

/* Rows that follow each other in x and in y are copied together; many such runs by their numbers. */
static int row_run(const int32_t *from, int r, int rows) {
  int n = 1;
  while (r + n < rows && from[r + n] == from[r] + n) n++;
  return n;
}

static void put_listed(struct ascend *d, const struct tensor *y, const struct tensor *x, const int32_t *from) {
  int32_t to[PUT_ROWS], of[PUT_ROWS];
  for (int r = 0, n; r < y->rows && ascend_ok(d);) {
    for (n = 0; r < y->rows && n < PUT_ROWS; r++)
      if (from[r] >= 0) to[n] = r, of[n++] = from[r];
    if (n == 0) return;
    ascend_temp_reset(d);
    struct tensor rows = tensor_rows(*x, n);
    rows = like(d, &rows);
    const int32_t *places = ascend_upload(d, to, sizeof *to * (size_t)n), *sources = ascend_upload(d, of, sizeof *of * (size_t)n);
    ASCEND_LAUNCH(d, IndexSelect, ascend_tensor(d, x), 0, ascend_array(d, sources, NPU_INT32, n), ascend_tensor(d, &rows));
    ASCEND_LAUNCH(d, InplaceIndexCopy, ascend_tensor(d, y), 0, ascend_array(d, places, NPU_INT32, n), ascend_tensor(d, &rows));
  }
}

void ascend_put_rows(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *from) {
  enum { RUNS_MAX = 4 };
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->data != x->data);
  if (d->record) {
    ascend_fail(d, "rows put in place of others cannot be recorded: which they are is known to the host alone");
    return;
  }
  int n = 0, runs = 0;
  for (int r = 0; r < y->rows; r++) {
    if (from[r] < 0) continue;
    CHECK(from[r] < x->rows);
    runs += r == 0 || from[r - 1] < 0 || from[r] != from[r - 1] + 1;
    n++;
  }
  if (n == 0 || y->cols < 1) return;
  if (runs > RUNS_MAX && d->profile.has_index_copy) {
    put_listed(d, y, x, from);
    return;
  }
  for (int r = 0, rows; r < y->rows; r += rows) {
    rows = 1;
    if (from[r] < 0) continue;
    rows = row_run(from, r, y->rows);
    struct tensor out = tensor_part(*y, r, rows, 0, y->cols), in = tensor_part(*x, from[r], rows, 0, x->cols);
    ascend_assign(d, &out, &in);
  }
}

/* Rows that see nothing are chosen, not multiplied by 0: they stay to the bit, whatever x holds there. */
void ascend_add_scaled(struct device *device, struct tensor *y, const struct tensor *x, float s, const int32_t *lo, const int32_t *hi) {
  struct ascend *d = begin(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows && (lo != NULL) == (hi != NULL));
  if (x->rows < 1 || x->cols < 1) return;
  struct tensor out = tensor_rows(*y, x->rows);
  if (!lo) {
    ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, &out), ascend_tensor(d, x), ascend_number(d, (double)s));
    return;
  }
  struct tensor sum = like(d, x), chosen = like(d, x);
  const void *sees = ascend_sees(d, lo, hi, x->rows);
  void *flags = ascend_temp(d, (size_t)x->rows);
  ASCEND_LAUNCH(d, GtScalar, ascend_matrix(d, sees, d->type, x->rows, 1), ascend_number(d, 0),
                ascend_matrix(d, flags, NPU_BOOL, x->rows, 1));
  ASCEND_LAUNCH(d, Add, ascend_tensor(d, &out), ascend_tensor(d, x), ascend_number(d, (double)s), ascend_tensor(d, &sum));
  ASCEND_LAUNCH(d, SWhere, ascend_matrix(d, flags, NPU_BOOL, x->rows, 1), ascend_tensor(d, &sum), ascend_tensor(d, &out),
                ascend_tensor(d, &chosen));
  ascend_assign(d, &out, &chosen);
}
