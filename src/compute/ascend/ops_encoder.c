/* ops_encoder.c — what only encoders use, on the NPU: norms with a mean, biases and activations, clamps, two-dimensional rope, attention of all
 * rows of a matrix, attention to the rows just before, pooling, convolution over rows.
 *
 * None of this is ever recorded, so host arrays (intervals, indices) decide which calls are made, and may be uploaded as they are.
 *
 * Rows go in runs: neighbours that see the same keys, or belong to the same sound. Nothing outside of a run's keys is even multiplied by 0, so
 * what is not finite in one picture or sound of a job stays there.
 *
 * An operator's output must not be its input: where y is x, the result goes to temporary memory first (beside, settle).
 */
#include <math.h>

#include "compute/ascend/ascend.h"

enum {
  SCORES_MOST = 4 << 20, /* of composed attention at once: numbers, of which 12 bytes are taken each */
  FLASH_HEAD_DIM_MAX = 768,
  FLASH_LANES = 8, /* numbers that FlashAttentionScore keeps for each row and head, twice */
  CUBE_KEEP = 0,   /* cubeMathType: products in the operands' own type */
  NO_LIMIT = 2147483647,
};
static const double seen_not = -1e30; /* a score that does not count; finite, for a row of -infinity would give NaN */

/* ---- views ------------------------------------------------------------------------------------------------------------------ */

static aclDataType type_of(const struct ascend *d, const struct tensor *t) { return t->dtype == DTYPE_F32 ? NPU_FLOAT : d->type; }
static size_t type_bytes(aclDataType type) { return type == NPU_FLOAT ? 4 : 2; }

static aclTensor *view3(struct ascend *d, const void *data, aclDataType type, const int64_t dims[3], const int64_t strides[3]) {
  struct ascend_shape s = {.n_dims = 3};
  memcpy(s.dims, dims, 3 * sizeof *dims);
  memcpy(s.strides, strides, 3 * sizeof *strides);
  return ascend_view(d, data, type, s);
}
/* t's columns as heads: [heads, rows, width]; turned: [heads, width, rows]. */
static aclTensor *by_head(struct ascend *d, const struct tensor *t, int n_heads) {
  int64_t width = t->cols / n_heads;
  return view3(d, t->data, type_of(d, t), (int64_t[]){n_heads, t->rows, width}, (int64_t[]){width, ascend_stride(t), 1});
}
static aclTensor *by_head_turned(struct ascend *d, const struct tensor *t, int n_heads) {
  int64_t width = t->cols / n_heads;
  return view3(d, t->data, type_of(d, t), (int64_t[]){n_heads, width, t->rows}, (int64_t[]){width, 1, ascend_stride(t)});
}
static aclTensor *cube(struct ascend *d, const void *data, aclDataType type, int64_t n, int64_t rows, int64_t cols) { /* contiguous */
  return view3(d, data, type, (int64_t[]){n, rows, cols}, (int64_t[]){rows * cols, cols, 1});
}

static struct tensor room_for(struct ascend *d, aclDataType type, int rows, int cols) {
  struct tensor t = {.dtype = type == NPU_FLOAT ? DTYPE_F32 : d->dtype, .rows = rows, .cols = cols};
  t.row_bytes = align_up((size_t)cols * type_bytes(type), 64);
  t.data = ascend_temp(d, (size_t)rows * t.row_bytes);
  return t;
}
static void *room_for_cube(struct ascend *d, aclDataType type, int n, int rows, int cols) {
  return ascend_temp(d, (size_t)n * (size_t)rows * (size_t)cols * type_bytes(type));
}

/* x in that type: itself or a copy. */
static struct tensor in_type(struct ascend *d, const struct tensor *x, aclDataType type) {
  if (type_of(d, x) == type) return *x;
  struct tensor t = room_for(d, type, x->rows, x->cols);
  ascend_assign(d, &t, x);
  return t;
}

/* Where an operator that reads x writes y. */
static struct tensor beside(struct ascend *d, const struct tensor *y, const struct tensor *x) {
  return y->data == x->data ? room_for(d, type_of(d, y), x->rows, x->cols) : tensor_rows(*y, x->rows);
}
static void settle(struct ascend *d, const struct tensor *y, const struct tensor *t) {
  struct tensor to = tensor_rows(*y, t->rows);
  if (t->data != y->data) ascend_assign(d, &to, t);
}

/* ---- number by number ---------------------------------------------------------------------------------------------------------- */

/* The same from x - mean and its norm, in float32: 310P has no kernel of LayerNorm. Its RmsNorm wants 8 numbers at least: fewer are filled up with
 * zeros, of which eps and the result know. */
static void layernorm_composed(struct ascend *d, const struct tensor *y, const struct tensor *x, const float *w, const float *b,
                               float eps) {
  enum { LEAST = 8 };
  int rows = x->rows, cols = x->cols, width = MAX(cols, LEAST);
  double filled = (double)cols / width;
  int64_t along = 1;
  struct ascend_shape one_each = {2, {rows, 1}, {0}}, inside = {2, {rows, cols}, {width, 1}};
  void *wide = room_for_cube(d, NPU_FLOAT, 1, rows, width), *normed = room_for_cube(d, NPU_FLOAT, 1, rows, width);
  void *sums = room_for_cube(d, NPU_FLOAT, 1, rows, 1), *factors = room_for_cube(d, NPU_FLOAT, 1, rows, 1);
  void *ones = room_for_cube(d, NPU_FLOAT, 1, 1, width);
  ASCEND_LAUNCH(d, InplaceFillScalar, ascend_array(d, ones, NPU_FLOAT, width), ascend_number(d, sqrt(filled)));
  if (width > cols) ASCEND_LAUNCH(d, InplaceZero, ascend_matrix(d, wide, NPU_FLOAT, rows, width));
  ASCEND_LAUNCH(d, InplaceCopy, ascend_view(d, wide, NPU_FLOAT, inside), ascend_tensor(d, x));
  ASCEND_LAUNCH(d, ReduceSum, ascend_matrix(d, wide, NPU_FLOAT, rows, width), ascend_ints(d, &along, 1), true, NPU_FLOAT,
                ascend_view(d, sums, NPU_FLOAT, one_each));
  ASCEND_LAUNCH(d, InplaceAdd, ascend_view(d, wide, NPU_FLOAT, inside), ascend_view(d, sums, NPU_FLOAT, one_each),
                ascend_number(d, -1 / (double)cols));
  ASCEND_LAUNCH(d, RmsNorm, ascend_matrix(d, wide, NPU_FLOAT, rows, width), ascend_array(d, ones, NPU_FLOAT, width), (double)eps * filled,
                ascend_matrix(d, normed, NPU_FLOAT, rows, width), ascend_view(d, factors, NPU_FLOAT, one_each));
  if (w) {
    const void *weight = ascend_vector(d, w, cols, NPU_FLOAT);
    ASCEND_LAUNCH(d, InplaceMul, ascend_view(d, normed, NPU_FLOAT, inside), ascend_array(d, weight, NPU_FLOAT, cols));
  }
  if (b) {
    const void *bias = ascend_vector(d, b, cols, NPU_FLOAT);
    ASCEND_LAUNCH(d, InplaceAdd, ascend_view(d, normed, NPU_FLOAT, inside), ascend_array(d, bias, NPU_FLOAT, cols), ascend_number(d, 1));
  }
  ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, y), ascend_view(d, normed, NPU_FLOAT, inside));
}

void ascend_layernorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, const float *b, float eps) {
  struct ascend *d = ascend_of(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  int64_t cols = x->cols;
  if (x->rows < 1) return;
  ascend_temp_reset(d);
  if (d->profile.chip == ASCEND_310P || !ascend_has(d, ACL_OP_LayerNorm)) {
    struct tensor to = tensor_rows(*y, x->rows);
    layernorm_composed(d, &to, x, w, b, eps);
    return;
  }
  struct tensor t = beside(d, y, x);
  const void *weight = w ? ascend_vector(d, w, x->cols, d->type) : NULL, *bias = b ? ascend_vector(d, b, x->cols, d->type) : NULL;
  ASCEND_LAUNCH(d, LayerNorm, ascend_tensor(d, x), ascend_ints(d, &cols, 1), ascend_array(d, weight, d->type, cols),
                ascend_array(d, bias, d->type, cols), (double)eps, ascend_tensor(d, &t), NULL, NULL);
  settle(d, y, &t);
}

void ascend_bias_act(struct device *device, struct tensor *y, const float *b, enum act act) {
  struct ascend *d = ascend_of(device);
  if (y->rows < 1 || (!b && act == ACT_NONE)) return;
  ascend_temp_reset(d);
  const void *bias = b ? ascend_vector(d, b, y->cols, d->type) : NULL;
  if (act == ACT_NONE) {
    ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, y), ascend_array(d, bias, d->type, y->cols), ascend_number(d, 1));
    return;
  }
  struct tensor t = room_for(d, type_of(d, y), y->rows, y->cols);
  if (b) ASCEND_LAUNCH(d, Add, ascend_tensor(d, y), ascend_array(d, bias, d->type, y->cols), ascend_number(d, 1), ascend_tensor(d, &t));
  else ascend_assign(d, &t, y);
  ascend_activate(d, y, &t, act);
}

/* A missing bound is the type's own: infinity need not survive the way into a scalar. */
void ascend_clamp(struct device *device, struct tensor *y, const struct tensor *x, float least, float most) {
  struct ascend *d = ascend_of(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  float limit = d->type == NPU_BF16 ? 3.3895314e38f : 65504;
  if (x->rows < 1) return;
  ascend_temp_reset(d);
  struct tensor t = beside(d, y, x);
  ASCEND_LAUNCH(d, Clamp, ascend_tensor(d, x), ascend_number(d, MAX(least, -limit)), ascend_number(d, MIN(most, limit)),
                ascend_tensor(d, &t));
  settle(d, y, &t);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------ */

struct attend { /* rows that see all of k and v */
  struct tensor out, q, k, v;
  int n_heads;
  float scale;
};

/* [1, rows, heads, width] */
static aclTensor *batch_of_one(struct ascend *d, const struct tensor *t, int n_heads) {
  int64_t width = t->cols / n_heads;
  return ascend_view(d, t->data, type_of(d, t),
                     (struct ascend_shape){4, {1, t->rows, n_heads, width}, {t->rows * ascend_stride(t), ascend_stride(t), width, 1}});
}

static void attend_flash(struct ascend *d, const struct attend *a) {
  int rows = a->q.rows;
  char layout[] = "BSND";
  struct ascend_shape lanes = {4, {1, a->n_heads, rows, FLASH_LANES}, {0}}, none = {1, {0}, {0}};
  ascend_temp_reset(d);
  void *greatest = room_for_cube(d, NPU_FLOAT, a->n_heads, rows, FLASH_LANES),
       *sum = room_for_cube(d, NPU_FLOAT, a->n_heads, rows, FLASH_LANES);
  struct tensor out = {.dtype = a->q.dtype, .rows = rows, .cols = a->q.cols, .row_bytes = (size_t)a->q.cols * type_bytes(d->type)};
  out.data = ascend_temp(d, (size_t)rows * out.row_bytes);
  ASCEND_LAUNCH(d, FlashAttentionScore, batch_of_one(d, &a->q, a->n_heads), batch_of_one(d, &a->k, a->n_heads),
                batch_of_one(d, &a->v, a->n_heads), NULL, NULL, NULL, NULL, NULL, (double)a->scale, 1.0, NO_LIMIT, NO_LIMIT, a->n_heads,
                layout, 0, 0, ascend_view(d, greatest, NPU_FLOAT, lanes), ascend_view(d, sum, NPU_FLOAT, lanes),
                ascend_view(d, greatest, d->type, none), batch_of_one(d, &out, a->n_heads));
  ascend_assign(d, &a->out, &out);
}

/* Scores of rows and keys for every head: products in `type`, the softmax in float32. */
static void attend_composed(struct ascend *d, const struct attend *a) {
  int width = a->q.cols / a->n_heads, keys = a->k.rows, at_once = MIN(MAX(SCORES_MOST / a->n_heads / keys, 1), a->q.rows);
  aclDataType type = d->profile.has_bf16 ? NPU_FLOAT : NPU_FLOAT16;
  for (int first = 0; first < a->q.rows; first += at_once) {
    int n = MIN(at_once, a->q.rows - first);
    struct tensor q = tensor_part(a->q, first, n, 0, a->q.cols), out = tensor_part(a->out, first, n, 0, a->q.cols);
    ascend_temp_reset(d);
    struct tensor scaled = room_for(d, type, n, q.cols), k = in_type(d, &a->k, type), v = in_type(d, &a->v, type);
    void *product = room_for_cube(d, type, a->n_heads, n, keys), *p = room_for_cube(d, NPU_FLOAT, a->n_heads, n, keys);
    void *scores = type == NPU_FLOAT ? product : room_for_cube(d, NPU_FLOAT, a->n_heads, n, keys);
    void *sums = room_for_cube(d, type, a->n_heads, n, width);
    ascend_assign(d, &scaled, &q); /* before it is multiplied: as precise as can be; scaled before the product: fp16 must hold that */
    ASCEND_LAUNCH(d, InplaceMuls, ascend_tensor(d, &scaled), ascend_factor(d, (double)a->scale));
    ASCEND_LAUNCH(d, BatchMatMul, by_head(d, &scaled, a->n_heads), by_head_turned(d, &k, a->n_heads),
                  cube(d, product, type, a->n_heads, n, keys), CUBE_KEEP);
    if (scores != product)
      ASCEND_LAUNCH(d, Cast, cube(d, product, type, a->n_heads, n, keys), NPU_FLOAT, cube(d, scores, NPU_FLOAT, a->n_heads, n, keys));
    ASCEND_LAUNCH(d, Softmax, cube(d, scores, NPU_FLOAT, a->n_heads, n, keys), -1, cube(d, p, NPU_FLOAT, a->n_heads, n, keys));
    if (type != NPU_FLOAT)
      ASCEND_LAUNCH(d, Cast, cube(d, p, NPU_FLOAT, a->n_heads, n, keys), type, cube(d, product, type, a->n_heads, n, keys));
    ASCEND_LAUNCH(d, BatchMatMul, cube(d, type == NPU_FLOAT ? p : product, type, a->n_heads, n, keys), by_head(d, &v, a->n_heads),
                  cube(d, sums, type, a->n_heads, n, width), CUBE_KEEP);
    ASCEND_LAUNCH(d, InplaceCopy, by_head(d, &out, a->n_heads), cube(d, sums, type, a->n_heads, n, width));
  }
}

void ascend_attend(struct device *device, struct tensor *out, const struct tensor *q, const struct tensor *k, const struct tensor *v,
                   int n_heads, float scale, const int32_t *lo, const int32_t *hi) {
  struct ascend *d = ascend_of(device);
  CHECK(n_heads > 0 && q->cols % n_heads == 0 && k->cols == q->cols && v->cols == q->cols && out->cols == q->cols);
  CHECK(v->rows == k->rows && out->rows >= q->rows);
  bool flash = d->profile.chip != ASCEND_310P && q->cols / n_heads <= FLASH_HEAD_DIM_MAX && ascend_has(d, ACL_OP_FlashAttentionScore);
  for (int first = 0, end; first < q->rows; first = end) {
    for (end = first + 1; end < q->rows && lo[end] == lo[first] && hi[end] == hi[first];) end++;
    int key = lo[first], n_keys = hi[first] - key;
    struct attend a = {.out = tensor_part(*out, first, end - first, 0, out->cols),
                       .q = tensor_part(*q, first, end - first, 0, q->cols),
                       .n_heads = n_heads,
                       .scale = scale};
    if (n_keys <= 0) {
      ASCEND_LAUNCH(d, InplaceZero, ascend_tensor(d, &a.out));
      continue;
    }
    CHECK(key >= 0 && hi[first] <= k->rows);
    a.k = tensor_part(*k, key, n_keys, 0, k->cols);
    a.v = tensor_part(*v, key, n_keys, 0, v->cols);
    if (flash) attend_flash(d, &a);
    else attend_composed(d, &a);
  }
}

/* ---- attention to the rows just before -------------------------------------------------------------------------------------------
 *
 * The rows [row, row + n) of one sound against a window of W = n + T - 1 keys, T = keys_left, that begins T - 1 rows before them:
 *
 *   row i sees columns i .. i + T - 1 of [n, W]     o o o . . .        that band, [n, T], is a view of the product with
 *                                                   . o o o . .        rows W + 1 numbers apart: place t stands for the row
 *                                                   . . o o o .        T - 1 - t before
 *
 * So scores are taken from a product by that view, and probabilities put into a matrix of zeros by it. Keys before the sound's first row are
 * rows of zeros, masked.
 */
struct near {
  struct tensor q, k, v; /* of the run; k, v [W, cols] */
  struct tensor turned;  /* R of places: [T, cols] */
  const struct attend_near *n;
  const void *head_scale; /* [width], float32 */
  int missing;            /* keys of the window that there are not */
  aclDataType type;       /* of products */
};

static aclTensor *band(struct ascend *d, const struct near *r, void *matrix) {
  int64_t n = r->q.rows, W = r->k.rows;
  return view3(d, matrix, r->type, (int64_t[]){r->n->n_heads, n, r->n->keys_left}, (int64_t[]){n * W, W + 1, 1});
}

/* Rows [first - missing, end) of t, those before `first` being zeros. */
static struct tensor window_of(struct ascend *d, const struct tensor *t, int first, int end, int missing, aclDataType type) {
  struct tensor seen = tensor_part(*t, first, end - first, 0, t->cols);
  if (missing == 0) return in_type(d, &seen, type);
  struct tensor all = room_for(d, type, end - first + missing, t->cols), none = tensor_rows(all, missing);
  struct tensor some = tensor_part(all, missing, end - first, 0, t->cols);
  ASCEND_LAUNCH(d, InplaceZero, ascend_tensor(d, &none));
  ascend_assign(d, &some, &seen);
  return all;
}

/* Scores of keys that are missing: of row i, the first `missing` - i places. */
static void near_mask(struct ascend *d, const struct near *r, float *scores) {
  int64_t H = r->n->n_heads, n = r->q.rows, T = r->n->keys_left;
  for (int64_t i = 0; i < MIN(n, r->missing); i++) {
    struct ascend_shape s = {3, {H, 1, r->missing - i}, {n * T, T, 1}};
    ASCEND_LAUNCH(d, InplaceFillScalar, ascend_view(d, scores + i * T, NPU_FLOAT, s), ascend_number(d, seen_not));
  }
}

/* p = softmax(cap(scores · key_scale + relative)), in float32: [heads, n, T]. */
static void near_probabilities(struct ascend *d, const struct near *r, void *p, void *scores, void *relative) {
  int H = r->n->n_heads, n = r->q.rows, T = r->n->keys_left;
  float cap = r->n->cap;
  ASCEND_LAUNCH(d, InplaceMuls, cube(d, scores, NPU_FLOAT, H, n, T), ascend_factor(d, (double)r->n->key_scale));
  ASCEND_LAUNCH(d, InplaceAdd, cube(d, scores, NPU_FLOAT, H, n, T), cube(d, relative, r->type, H, n, T), ascend_number(d, 1));
  if (cap > 0) {
    ASCEND_LAUNCH(d, InplaceMuls, cube(d, scores, NPU_FLOAT, H, n, T), ascend_factor(d, 1 / (double)cap));
    ASCEND_LAUNCH(d, InplaceTanh, cube(d, scores, NPU_FLOAT, H, n, T));
    ASCEND_LAUNCH(d, InplaceMuls, cube(d, scores, NPU_FLOAT, H, n, T), ascend_factor(d, (double)cap));
  }
  near_mask(d, r, scores);
  ASCEND_LAUNCH(d, Softmax, cube(d, scores, NPU_FLOAT, H, n, T), -1, cube(d, p, NPU_FLOAT, H, n, T));
}

static void near_run(struct ascend *d, const struct near *r) {
  int H = r->n->n_heads, n = r->q.rows, T = r->n->keys_left, W = r->k.rows, width = r->q.cols / H;
  struct tensor q = room_for(d, NPU_FLOAT, n, r->q.cols);
  ascend_assign(d, &q, &r->q);
  ASCEND_LAUNCH(d, InplaceMul, view3(d, q.data, NPU_FLOAT, (int64_t[]){n, H, width}, (int64_t[]){ascend_stride(&q), width, 1}),
                ascend_array(d, r->head_scale, NPU_FLOAT, width));
  struct tensor scaled = in_type(d, &q, r->type);
  void *all = room_for_cube(d, r->type, H, n, W), *relative = room_for_cube(d, r->type, H, n, T),
       *sums = room_for_cube(d, r->type, H, n, width);
  void *scores = room_for_cube(d, NPU_FLOAT, H, n, T), *p = room_for_cube(d, NPU_FLOAT, H, n, T);
  ASCEND_LAUNCH(d, BatchMatMul, by_head(d, &scaled, H), by_head_turned(d, &r->k, H), cube(d, all, r->type, H, n, W), CUBE_KEEP);
  ASCEND_LAUNCH(d, BatchMatMul, by_head(d, &scaled, H), by_head_turned(d, &r->turned, H), cube(d, relative, r->type, H, n, T), CUBE_KEEP);
  ASCEND_LAUNCH(d, InplaceCopy, cube(d, scores, NPU_FLOAT, H, n, T), band(d, r, all));
  near_probabilities(d, r, p, scores, relative);
  ASCEND_LAUNCH(d, InplaceZero, cube(d, all, r->type, H, n, W));
  ASCEND_LAUNCH(d, InplaceCopy, band(d, r, all), cube(d, p, NPU_FLOAT, H, n, T));
  ASCEND_LAUNCH(d, BatchMatMul, cube(d, all, r->type, H, n, W), by_head(d, &r->v, H), cube(d, sums, r->type, H, n, width), CUBE_KEEP);
  ASCEND_LAUNCH(d, InplaceCopy, by_head(d, &r->q, H), cube(d, sums, r->type, H, n, width));
}

/* R in the order of places: the farthest first. */
static struct tensor places_of(struct ascend *d, const struct tensor *relative, int T, aclDataType type) {
  enum { AT_ONCE = 32 };
  struct tensor turned = room_for(d, type_of(d, relative), T, relative->cols);
  int32_t from[AT_ONCE];
  for (int t = 0, n; t < T; t += n) {
    n = MIN(AT_ONCE, T - t);
    for (int i = 0; i < n; i++) from[i] = T - 1 - t - i;
    const void *index = ascend_upload(d, from, (size_t)n * sizeof *from);
    struct tensor some = tensor_part(turned, t, n, 0, turned.cols);
    ASCEND_LAUNCH(d, IndexSelect, ascend_tensor(d, relative), 0, ascend_array(d, index, NPU_INT32, n), ascend_tensor(d, &some));
  }
  return in_type(d, &turned, type);
}

void ascend_attend_near(struct device *device, struct tensor *q, const struct tensor *k, const struct tensor *v,
                        const struct tensor *relative, const float *head_scale, const int32_t *first, const struct attend_near *n) {
  struct ascend *d = ascend_of(device);
  CHECK(n->n_heads > 0 && q->cols % n->n_heads == 0 && k->cols == q->cols && v->cols == q->cols && relative->cols == q->cols);
  CHECK(n->keys_left > 0 && relative->rows >= n->keys_left && n->row >= 0 && n->row_end <= q->rows);
  for (int row = n->row, end; row < n->row_end; row = end) {
    for (end = row + 1; end < n->row_end && first[end] == first[row];) end++;
    CHECK(first[row] >= 0 && first[row] <= row);
    int from = row - n->keys_left + 1, there = MAX(from, first[row]);
    struct near r = {.n = n, .missing = there - from, .type = d->profile.has_bf16 ? NPU_FLOAT : NPU_FLOAT16};
    ascend_temp_reset(d);
    r.q = tensor_part(*q, row, end - row, 0, q->cols);
    r.k = window_of(d, k, there, end, r.missing, r.type);
    r.v = window_of(d, v, there, end, r.missing, r.type);
    r.turned = places_of(d, relative, n->keys_left, r.type);
    r.head_scale = ascend_vector(d, head_scale, q->cols / n->n_heads, NPU_FLOAT);
    near_run(d, &r);
  }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------ */

void ascend_pool_rows(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *index, int n, float scale,
                      const float *b, const float *w) {
  struct ascend *d = ascend_of(device);
  CHECK(y->cols == x->cols && y->data != x->data && n > 0);
  int rows = y->rows, cols = y->cols;
  int64_t middle = 1;
  if (rows < 1) return;
  ascend_temp_reset(d);
  void *picked = room_for_cube(d, d->type, rows, n, cols), *wide = room_for_cube(d, NPU_FLOAT, rows, n, cols);
  void *sums = room_for_cube(d, NPU_FLOAT, 1, rows, cols);
  const int32_t *from = ascend_int32(d, index, rows * n);
  ASCEND_LAUNCH(d, IndexSelect, ascend_tensor(d, x), 0, ascend_array(d, from, NPU_INT32, rows * n),
                ascend_matrix(d, picked, d->type, rows * n, cols));
  ASCEND_LAUNCH(d, Cast, cube(d, picked, d->type, rows, n, cols), NPU_FLOAT, cube(d, wide, NPU_FLOAT, rows, n, cols));
  ASCEND_LAUNCH(d, ReduceSum, cube(d, wide, NPU_FLOAT, rows, n, cols), ascend_ints(d, &middle, 1), false, NPU_FLOAT,
                ascend_matrix(d, sums, NPU_FLOAT, rows, cols));
  ASCEND_LAUNCH(d, InplaceMuls, ascend_matrix(d, sums, NPU_FLOAT, rows, cols), ascend_factor(d, (double)scale));
  const void *bias = b ? ascend_vector(d, b, cols, NPU_FLOAT) : NULL, *factors = w ? ascend_vector(d, w, cols, NPU_FLOAT) : NULL;
  if (b)
    ASCEND_LAUNCH(d, InplaceAdd, ascend_matrix(d, sums, NPU_FLOAT, rows, cols), ascend_array(d, bias, NPU_FLOAT, cols),
                  ascend_number(d, 1));
  if (w) ASCEND_LAUNCH(d, InplaceMul, ascend_matrix(d, sums, NPU_FLOAT, rows, cols), ascend_array(d, factors, NPU_FLOAT, cols));
  ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, y), ascend_matrix(d, sums, NPU_FLOAT, rows, cols));
}

/* In float32: every tap's rows times its column of w, added to the rows that many further down. */
void ascend_conv_rows(struct device *device, struct tensor *y, const struct tensor *x, const float *w, int taps, const int32_t *first) {
  struct ascend *d = ascend_of(device);
  CHECK(y->cols == x->cols && y->rows >= x->rows && y->data != x->data && taps > 0);
  int rows = x->rows, cols = x->cols;
  if (rows < 1) return;
  ascend_temp_reset(d);
  struct tensor in = in_type(d, x, NPU_FLOAT), sum = room_for(d, NPU_FLOAT, rows, cols), product = room_for(d, NPU_FLOAT, rows, cols);
  struct tensor by_tap = room_for(d, NPU_FLOAT, taps, cols), to = tensor_rows(*y, rows);
  const void *weights = ascend_vector(d, w, cols * taps, NPU_FLOAT);
  ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, &by_tap),
                ascend_view(d, weights, NPU_FLOAT, (struct ascend_shape){2, {taps, cols}, {1, taps}}));
  for (int row = 0, end; row < rows; row = end) {
    for (end = row + 1; end < rows && first[end] == first[row];) end++;
    CHECK(first[row] >= 0 && first[row] <= row);
    for (int back = 0; back < taps; back++) {
      int from = MAX(row, first[row] + back), n = end - from;
      if (n <= 0) break;
      struct tensor seen = tensor_part(in, from - back, n, 0, cols), tap = tensor_part(by_tap, taps - 1 - back, 1, 0, cols);
      struct tensor here = tensor_part(sum, from, n, 0, cols), part = back ? tensor_rows(product, n) : here;
      ASCEND_LAUNCH(d, Mul, ascend_tensor(d, &seen), ascend_tensor(d, &tap), ascend_tensor(d, &part));
      if (back) ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, &here), ascend_tensor(d, &part), ascend_number(d, 1));
    }
  }
  ascend_assign(d, &to, &sum);
}

/* ---- rope in two directions ---------------------------------------------------------------------------------------------------- */

void ascend_rope2d(struct device *device, struct tensor *q, int n_heads, const struct rope_table *x, const struct rope_table *y) {
  struct ascend *d = ascend_of(device);
  CHECK(n_heads > 0 && q->cols == 2 * n_heads * x->head_dim && y->head_dim == x->head_dim && q->rows <= MIN(x->cos.rows, y->cos.rows));
  struct tensor second = tensor_part(*q, 0, q->rows, x->head_dim, q->cols - x->head_dim);
  ascend_temp_reset(d);
  ascend_rope_heads(d, q, n_heads, 2 * x->head_dim, x);
  ascend_rope_heads(d, &second, n_heads, 2 * x->head_dim, y);
}
