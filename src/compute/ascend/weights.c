/* weights.c — weights on the NPU: their forms, loading, products, and rows that are looked up.
 *
 *   form    memory, from a 64-byte boundary on                      products                        rows
 *   plain   [n, k] of the device's type                             Mm, W as a transposed view      gathered
 *   int8    [n, k] codes; [n, k / 32] scales of the device's type   WeightQuantBatchMatmulV2        gathered, codes times scale
 *   int4    the same, two codes in a byte                           WeightQuantBatchMatmulV2        the same, taken apart first
 *
 * Q8_0 becomes int8 and Q4_0 int4 where the chip multiplies groups of 32; whatever else there is, and experts (the grouped product knows no
 * such groups), becomes plain while it is loaded, piece by piece: there is never a second copy of a matrix on the host.
 * Which form it is depends on the chip, the configuration, shape and type alone, so that planning knows it before anything is opened.
 *
 * Scales are rounded to the device's type. Experts bound in one call lie end to end, [experts, n, k].
 */
#include <stdlib.h>

#include "base/mem.h"
#include "compute/ascend/ascend.h"
#include "compute/gemm_quant.h"

enum form { FORM_PLAIN, FORM_INT8, FORM_INT4 }; /* weight.layout */
enum {
  GROUP = 32,            /* codes that share a scale */
  SIDE_MAX = 65535,      /* n and k of a product of groups */
  PART_ROWS = 65504,     /* rows of a larger matrix that go into one product: every part begins at a boundary of 32 bytes */
  BLOCK_BYTES_MAX = 34,  /* of Q8_0 */
  CHUNK_BYTES = 4 << 20, /* that are converted, then copied */
  PIECE = 1024,          /* numbers of a row that are converted at a time: whole blocks of every type */
  ROWS_PER_ITEM = 16,
};

/* ---- forms ----------------------------------------------------------------------------------------------------------------- */

static bool is_expert(const struct device_config *c, const struct weight *w) {
  const struct moe_shape *x = &c->experts;
  return x->n_experts > 0 && ((w->rows == x->ffn && w->cols == x->hidden) || (w->rows == x->hidden && w->cols == x->ffn));
}

static enum form table_form(const struct weight *w) {
  return w->dtype == DTYPE_Q8_0 ? FORM_INT8 : w->dtype == DTYPE_Q4_0 ? FORM_INT4 : FORM_PLAIN;
}
static enum form weight_form(const struct device_config *c, bool has_groups, const struct weight *w) {
  enum form form = table_form(w);
  bool fits = w->cols > GROUP && w->cols <= SIDE_MAX && (form == FORM_INT8 || w->rows % 2 == 0);
  return has_groups && fits && !is_expert(c, w) ? form : FORM_PLAIN;
}

static size_t row_code_bytes(enum form form, const struct weight *w) {
  size_t cols = (size_t)w->cols;
  return form == FORM_PLAIN ? 2 * cols : form == FORM_INT8 ? cols : cols / 2;
}
static size_t row_scale_bytes(enum form form, const struct weight *w) { return form == FORM_PLAIN ? 0 : 2 * (size_t)(w->cols / GROUP); }
static size_t scales_at(enum form form, const struct weight *w) { return align_up((size_t)w->rows * row_code_bytes(form, w), 64); }
static size_t form_bytes(const struct device_config *c, enum form form, const struct weight *w) {
  if (form == FORM_PLAIN && is_expert(c, w)) return (size_t)w->rows * row_code_bytes(form, w);
  return scales_at(form, w) + align_up((size_t)w->rows * row_scale_bytes(form, w), 64);
}

size_t ascend_weight_bytes(const struct device_config *c, const struct weight *w) {
  return form_bytes(c, weight_form(c, c->look && c->look->has_groups, w), w);
}
size_t ascend_table_bytes(const struct device_config *c, const struct weight *w) { return form_bytes(c, table_form(w), w); }

/* ---- loading --------------------------------------------------------------------------------------------------------------- */

/* 16 bytes of a Q4_0 block, number j in the low and 16 + j in the high half of byte j, as code + 8 -> 16 bytes of INT4, two's complement.
 * No document says that the number with the even index lies in the low half. Nothing else in the tree depends on it but rows_int4. */
static void pack_int4(const uint8_t *block, uint8_t *out) {
  uint8_t code[GROUP];
  for (int j = 0; j < GROUP / 2; j++) {
    code[j] = (uint8_t)((block[j] & 15) ^ 8);
    code[j + GROUP / 2] = (uint8_t)((block[j] >> 4) ^ 8);
  }
  for (int j = 0; j < GROUP / 2; j++) out[j] = (uint8_t)(code[2 * j] | code[2 * j + 1] << 4);
}

struct load {
  const struct weight *w;
  enum form form;
  enum dtype dtype;
  int row, n_rows;
  char *codes, *scales; /* of rows [row, row + n_rows) */
};

static void load_plain(const struct load *l, int row, char *out) {
  const struct weight *w = l->w;
  if (!w->from && w->dtype == l->dtype) {
    memcpy(out, (const char *)w->source + (size_t)row * w->row_bytes, row_code_bytes(FORM_PLAIN, w));
    return;
  }
  float piece[PIECE];
  for (int c = 0, n; c < w->cols; c += n) {
    n = MIN(PIECE, w->cols - c);
    gemm_quant_part(w, row, c, n, piece);
    dtype_from_f32(l->dtype, piece, out + 2 * (size_t)c, (size_t)n);
  }
}

static void load_groups(const struct load *l, int row, char *codes, char *scales) {
  const struct weight *w = l->w;
  size_t block_bytes = (size_t)dtype_info(w->dtype)->block_bytes;
  for (int b = 0; b < w->cols / GROUP; b++) {
    uint8_t block[BLOCK_BYTES_MAX];
    if (w->from) gemm_quant_block(w, row, b, block);
    else memcpy(block, (const char *)w->source + (size_t)row * w->row_bytes + (size_t)b * block_bytes, block_bytes);
    uint16_t half;
    memcpy(&half, block, sizeof half);
    float scale = f16_to_f32(half);
    dtype_from_f32(l->dtype, &scale, scales + 2 * (size_t)b, 1);
    if (l->form == FORM_INT8) memcpy(codes + (size_t)b * GROUP, block + 2, GROUP);
    else pack_int4(block + 2, (uint8_t *)codes + (size_t)b * GROUP / 2);
  }
}

static void load_rows(void *ctx, int item, int worker) {
  const struct load *l = ctx;
  (void)worker;
  size_t code_bytes = row_code_bytes(l->form, l->w), scale_bytes = row_scale_bytes(l->form, l->w);
  for (int r = item * ROWS_PER_ITEM; r < MIN((item + 1) * ROWS_PER_ITEM, l->n_rows); r++) {
    char *codes = l->codes + (size_t)r * code_bytes;
    if (l->form == FORM_PLAIN) load_plain(l, l->row + r, codes);
    else load_groups(l, l->row + r, codes, l->scales + (size_t)r * scale_bytes);
  }
}

static int upload(struct ascend *d, char *to, const char *from, size_t n_bytes, const char *name, struct err *e) {
  char text[256];
  if (n_bytes == 0) return 0;
  int rc = d->acl.aclrtMemcpy(to, n_bytes, from, n_bytes, NPU_HOST_TO_DEVICE);
  return rc ? err_set(e, ERR_INTERNAL, "tensor %s: copying it to the device: %s", name, acl_error_text(&d->acl, rc, text)) : 0;
}

/* One weight whose form and place are known. buffer: pinned, CHUNK_BYTES or a row. */
static int load_weight(struct ascend *d, const struct weight *w, char *buffer, size_t buffer_bytes, const char *name, struct err *e) {
  struct load l = {.w = w, .form = (enum form)w->layout, .dtype = d->dtype, .codes = buffer};
  size_t code_bytes = row_code_bytes(l.form, w), scale_bytes = row_scale_bytes(l.form, w);
  int most = (int)MIN(buffer_bytes / (code_bytes + scale_bytes), (size_t)w->rows);
  l.scales = buffer + (size_t)most * code_bytes;
  char *codes = w->packed, *scales = codes + scales_at(l.form, w);
  for (; l.row < w->rows; l.row += l.n_rows) {
    l.n_rows = MIN(most, w->rows - l.row);
    workers_run(d->device.workers, load_rows, &l, div_up(l.n_rows, ROWS_PER_ITEM));
    if (upload(d, codes + (size_t)l.row * code_bytes, l.codes, (size_t)l.n_rows * code_bytes, name, e)) return -1;
    if (upload(d, scales + (size_t)l.row * scale_bytes, l.scales, (size_t)l.n_rows * scale_bytes, name, e)) return -1;
  }
  return 0;
}

static int check_source(const struct weight *w, const char *name, struct err *e) {
  const struct dtype_info *info = dtype_info(w->dtype);
  bool number = info->quantised || w->dtype == DTYPE_F32 || w->dtype == DTYPE_F16 || w->dtype == DTYPE_BF16;
  if (!number || w->cols % info->block_elems != 0) {
    return err_set(e, ERR_UNSUPPORTED, "tensor %s: expected numbers in rows of whole blocks, found %s in rows of %d", name, info->name,
                   w->cols);
  }
  return 0;
}

/* Place n weights, whose layouts are set, in one block and load them. */
static int bind(struct ascend *d, struct weight *w, int n, const char *name, struct err *e) {
  size_t n_bytes = 0, buffer_bytes = 1, row_bytes = 1;
  char *buffer = NULL, *block = NULL;
  for (int i = 0; i < n; i++) {
    enum form form = (enum form)w[i].layout;
    w[i].packed = NULL;
    w[i].packed_bytes = 0;
    if (check_source(&w[i], name, e)) return -1;
    size_t one = form_bytes(&d->config, form, &w[i]);
    if (size_add_overflows(n_bytes, one, &n_bytes)) return err_set(e, ERR_TOO_LARGE, "tensor %s: too large", name);
    buffer_bytes = MAX(buffer_bytes, one);
    row_bytes = MAX(row_bytes, row_code_bytes(form, &w[i]) + row_scale_bytes(form, &w[i]));
  }
  if (n_bytes == 0) return 0;
  buffer_bytes = MAX(MIN(buffer_bytes, (size_t)CHUNK_BYTES), row_bytes);
  block = ascend_alloc(d, n_bytes, name, e);
  if (!block) return -1;
  buffer = ascend_alloc_host(d, buffer_bytes, name, e);
  if (!buffer) goto fail;
  char *at = block;
  for (int i = 0; i < n; i++) {
    w[i].packed = at;
    w[i].packed_bytes = form_bytes(&d->config, (enum form)w[i].layout, &w[i]);
    at += w[i].packed_bytes;
    if (w[i].packed_bytes > 0 && load_weight(d, &w[i], buffer, buffer_bytes, name, e)) goto fail;
  }
  ascend_free_host(d, buffer);
  return 0;
fail:
  if (buffer) ascend_free_host(d, buffer);
  ascend_free(d, block);
  for (int i = 0; i < n; i++) w[i].packed = NULL, w[i].packed_bytes = 0;
  return -1;
}

int ascend_weight_bind(struct device *device, struct weight *w, int n, const char *name, struct err *e) {
  struct ascend *d = ascend_of(device);
  for (int i = 0; i < n; i++) w[i].layout = (int)weight_form(&d->config, d->profile.has_group_quant, &w[i]);
  return bind(d, w, n, name, e);
}

int ascend_table_bind(struct device *device, struct weight *w, const char *name, struct err *e) {
  w->layout = (int)table_form(w);
  return bind(ascend_of(device), w, 1, name, e);
}

void ascend_weight_free(struct device *device, struct weight *w, int n) {
  if (n > 0 && w[0].packed) ascend_free(ascend_of(device), w[0].packed);
  for (int i = 0; i < n; i++) w[i] = (struct weight){0};
}

/* ---- products -------------------------------------------------------------------------------------------------------------- */

/* [n, k] in memory, seen as [k, n]. */
static struct ascend_shape transposed(int64_t n, int64_t k) { return (struct ascend_shape){2, {k, n}, {1, k}}; }

/* x without gaps between its rows: itself or a copy. */
static struct tensor gapless(struct ascend *d, const struct tensor *x) {
  struct tensor t = *x;
  t.row_bytes = 2 * (size_t)x->cols;
  if (x->rows == 1 || x->row_bytes == t.row_bytes) return t;
  t.data = ascend_temp(d, (size_t)t.rows * t.row_bytes);
  ascend_assign(d, &t, x);
  return t;
}

/* The operator's result has no gaps between its rows: where y, or the part of it, has some, the product passes through temporary memory. */
static void linear_groups(struct ascend *d, const struct weight *w, const struct tensor *y, const struct tensor *x) {
  enum form form = (enum form)w->layout;
  const char *codes = w->packed, *scales = codes + scales_at(form, w);
  const int most = MIN(PART_ROWS, w->rows);
  bool gaps = x->rows > 1 && y->row_bytes != 2 * (size_t)most;
  struct tensor in = gapless(d, x);
  void *apart = gaps ? ascend_temp(d, (size_t)x->rows * 2 * (size_t)most) : NULL;
  for (int row = 0; row < w->rows; row += PART_ROWS) {
    int n = MIN(PART_ROWS, w->rows - row);
    struct tensor part = tensor_part(*y, 0, x->rows, row, n), out = part;
    if (gaps) out.data = apart, out.row_bytes = 2 * (size_t)n;
    ASCEND_LAUNCH(
        d, WeightQuantBatchMatmulV2, ascend_tensor(d, &in),
        ascend_view(d, codes + (size_t)row * row_code_bytes(form, w), form == FORM_INT8 ? NPU_INT8 : NPU_INT4, transposed(n, w->cols)),
        ascend_view(d, scales + (size_t)row * row_scale_bytes(form, w), d->type, transposed(n, w->cols / GROUP)), NULL, NULL, NULL, NULL,
        GROUP, ascend_tensor(d, &out));
    if (gaps) ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, &part), ascend_tensor(d, &out));
  }
}

void ascend_linear(struct device *device, int n_w, const struct weight *const *w, struct tensor *const *y, const struct tensor *x) {
  struct ascend *d = ascend_of(device);
  for (int i = 0; i < n_w; i++) {
    CHECK(w[i]->cols == x->cols && y[i]->cols == w[i]->rows && y[i]->rows == x->rows);
    ascend_temp_reset(d);
    if (x->rows < 1 || w[i]->rows < 1) continue;
    if (w[i]->layout != FORM_PLAIN) linear_groups(d, w[i], y[i], x);
    else
      ASCEND_LAUNCH(d, Mm, ascend_tensor(d, x), ascend_view(d, w[i]->packed, d->type, transposed(w[i]->rows, w[i]->cols)),
                    ascend_tensor(d, y[i]), 0);
  }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------- */

/* Rows ids of a matrix without gaps. */
static void select_rows(struct ascend *d, const void *data, aclDataType type, int n, int cols, const int32_t *ids, int n_ids,
                        const void *out, int64_t out_stride) {
  struct ascend_shape to = {2, {n_ids, cols}, {out_stride, 1}};
  if (ascend_has(d, ACL_OP_Embedding)) {
    ASCEND_LAUNCH(d, Embedding, ascend_matrix(d, data, type, n, cols), ascend_array(d, ids, NPU_INT32, n_ids),
                  ascend_view(d, out, type, to));
  } else {
    ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, data, type, n, cols), 0, ascend_array(d, ids, NPU_INT32, n_ids),
                  ascend_view(d, out, type, to));
  }
}

/* Every step-th number of y from `first` on = codes · the scale of its group. codes [rows, cols / step], scales [rows, cols / GROUP]. */
static void scale_groups(struct ascend *d, const struct tensor *y, int first, int step, const void *codes, const void *scales) {
  int64_t groups = y->cols / GROUP, per = GROUP / step;
  struct ascend_shape of_codes = {3, {y->rows, groups, per}, {0}}, of_scales = {3, {y->rows, groups, 1}, {0}};
  struct ascend_shape to = {3, {y->rows, groups, per}, {ascend_stride(y), GROUP, step}};
  ASCEND_LAUNCH(d, Mul, ascend_view(d, codes, d->type, of_codes), ascend_view(d, scales, d->type, of_scales),
                ascend_view(d, tensor_at(y, 0, first), d->type, to));
}

static void rows_int8(struct ascend *d, const struct tensor *y, const struct weight *t, const int32_t *ids, const void *scales) {
  size_t n = (size_t)y->rows * (size_t)t->cols;
  void *codes = ascend_temp(d, n), *numbers = ascend_temp(d, 2 * n);
  select_rows(d, t->packed, NPU_INT8, t->rows, t->cols, ids, y->rows, codes, t->cols);
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, codes, NPU_INT8, y->rows, t->cols), d->type,
                ascend_matrix(d, numbers, d->type, y->rows, t->cols));
  scale_groups(d, y, 0, 1, numbers, scales);
}

/* The halves of x, 0 .. 15, as the numbers that they stand for in two's complement: 16 less from 8 on. */
static void sign_halves(struct ascend *d, void *x, int64_t rows, int64_t cols, void *flags, void *numbers) {
  ASCEND_LAUNCH(d, GtScalar, ascend_matrix(d, x, d->type, rows, cols), ascend_number(d, 7), ascend_matrix(d, flags, NPU_BOOL, rows, cols));
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, flags, NPU_BOOL, rows, cols), d->type, ascend_matrix(d, numbers, d->type, rows, cols));
  ASCEND_LAUNCH(d, InplaceAdd, ascend_matrix(d, x, d->type, rows, cols), ascend_matrix(d, numbers, d->type, rows, cols),
                ascend_number(d, -16));
}

/* Bytes are taken apart by arithmetic: bf16 and fp16 hold 0 .. 255 and their sixteenths exactly, and a cast to integers cuts. */
static void rows_int4(struct ascend *d, const struct tensor *y, const struct weight *t, const int32_t *ids, const void *scales) {
  int rows = y->rows, cols = t->cols / 2;
  size_t n = (size_t)rows * (size_t)cols;
  void *bytes = ascend_temp(d, n), *low = ascend_temp(d, 2 * n), *high = ascend_temp(d, 2 * n), *whole = ascend_temp(d, 4 * n);
  select_rows(d, t->packed, NPU_UINT8, t->rows, cols, ids, rows, bytes, cols);
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, bytes, NPU_UINT8, rows, cols), d->type, ascend_matrix(d, low, d->type, rows, cols));
  ASCEND_LAUNCH(d, Muls, ascend_matrix(d, low, d->type, rows, cols), ascend_factor(d, 0.0625), ascend_matrix(d, high, d->type, rows, cols));
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, high, d->type, rows, cols), NPU_INT32, ascend_matrix(d, whole, NPU_INT32, rows, cols));
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, whole, NPU_INT32, rows, cols), d->type, ascend_matrix(d, high, d->type, rows, cols));
  ASCEND_LAUNCH(d, InplaceAdd, ascend_matrix(d, low, d->type, rows, cols), ascend_matrix(d, high, d->type, rows, cols),
                ascend_number(d, -16));
  sign_halves(d, low, rows, cols, bytes, whole);
  sign_halves(d, high, rows, cols, bytes, whole);
  scale_groups(d, y, 0, 2, low, scales);
  scale_groups(d, y, 1, 2, high, scales);
}

/* y = the table's rows; ids are the device's. */
static void select_weight_rows(struct ascend *d, const struct tensor *y, const struct weight *t, const int32_t *ids) {
  enum form form = (enum form)t->layout;
  if (form == FORM_PLAIN) {
    select_rows(d, t->packed, d->type, t->rows, t->cols, ids, y->rows, y->data, ascend_stride(y));
    return;
  }
  void *scales = ascend_temp(d, (size_t)y->rows * row_scale_bytes(form, t));
  select_rows(d, (const char *)t->packed + scales_at(form, t), d->type, t->rows, t->cols / GROUP, ids, y->rows, scales, t->cols / GROUP);
  if (form == FORM_INT8) rows_int8(d, y, t, ids, scales);
  else rows_int4(d, y, t, ids, scales);
}

void ascend_embed(struct device *device, struct tensor *y, const struct weight *table, const int32_t *ids, float scale) {
  struct ascend *d = ascend_of(device);
  CHECK(y->cols == table->cols);
  ascend_temp_reset(d);
  if (y->rows < 1) return;
  select_weight_rows(d, y, table, ascend_int32(d, ids, y->rows));
  if (scale != 1) ASCEND_LAUNCH(d, InplaceMuls, ascend_tensor(d, y), ascend_factor(d, (double)scale));
}

/* ids with 0 in place of those outside [0, rows). */
static const int32_t *known_ids(struct ascend *d, const int32_t *ids, int n, int rows) {
  int32_t *known = ascend_temp(d, sizeof *known * (size_t)n);
  void *outside = ascend_temp(d, (size_t)n);
  ASCEND_LAUNCH(d, InplaceCopy, ascend_array(d, known, NPU_INT32, n), ascend_array(d, ids, NPU_INT32, n));
  ASCEND_LAUNCH(d, LtScalar, ascend_array(d, known, NPU_INT32, n), ascend_integer(d, 0), ascend_array(d, outside, NPU_BOOL, n));
  ASCEND_LAUNCH(d, InplaceMaskedFillScalar, ascend_array(d, known, NPU_INT32, n), ascend_array(d, outside, NPU_BOOL, n),
                ascend_integer(d, 0));
  ASCEND_LAUNCH(d, GtScalar, ascend_array(d, known, NPU_INT32, n), ascend_integer(d, rows - 1), ascend_array(d, outside, NPU_BOOL, n));
  ASCEND_LAUNCH(d, InplaceMaskedFillScalar, ascend_array(d, known, NPU_INT32, n), ascend_array(d, outside, NPU_BOOL, n),
                ascend_integer(d, 0));
  return known;
}

/* Whole rows are gathered: part of a matrix's columns is a view with gaps, of which the library would first make a copy, of the whole matrix. */
void ascend_embed_add(struct device *device, struct tensor *y, const struct weight *table, int from, const int32_t *ids, float scale) {
  struct ascend *d = ascend_of(device);
  CHECK(from >= 0 && y->cols <= table->cols - from && table->rows > 0);
  ascend_temp_reset(d);
  if (y->rows < 1 || y->cols < 1) return;
  const int32_t *known = known_ids(d, ascend_int32(d, ids, y->rows), y->rows, table->rows);
  struct tensor rows = {.dtype = d->dtype, .rows = y->rows, .cols = table->cols, .row_bytes = align_up(2 * (size_t)table->cols, 64)};
  rows.data = ascend_temp(d, (size_t)rows.rows * rows.row_bytes);
  if (!rows.data) return;
  select_weight_rows(d, &rows, table, known);
  struct tensor part = tensor_part(rows, 0, y->rows, from, y->cols);
  ASCEND_LAUNCH(d, InplaceAdd, ascend_tensor(d, y), ascend_tensor(d, &part), ascend_number(d, (double)scale));
}
