/* device.c — the NPU as a device: open and close, steps, what passes between host and device, and the table of operations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/ascend/attn.h"
#include "compute/ascend/capture.h"

enum { ROW_ALIGN = 64 };

/* What a host tensor of host_alloc is: pinned, [rows] of float32 for who reads it, behind them [rows] as the device sends them. */
struct host_room {
  void *data;
  size_t float_bytes, half_bytes;
};

struct npu { /* the device with what only this file uses */
  struct ascend ascend;
  struct tensor *allocated; /* as alloc gave them; tensors change their rows */
  int n_allocated, allocated_cap;
  struct host_room *rooms;
  int n_rooms, rooms_cap;
  float *staged;
  size_t staged_bytes;
  bool has_device;
};

static struct npu *npu_of(struct device *device) { return (struct npu *)device; }

/* ---- life ------------------------------------------------------------------------------------------------------------------------ */

static void ascend_close(struct device *device) {
  if (!device) return;
  struct npu *n = npu_of(device);
  struct ascend *d = &n->ascend;
  if (n->has_device) {
    d->acl.aclrtSetCurrentContext(d->context);
    if (d->stream && d->memory) ascend_finish(device, NULL); /* nothing is taken from under what still runs */
    bool by_force = device->lost && d->acl.aclrtDestroyStreamForce;
    aclError (*destroy)(aclrtStream) = by_force ? d->acl.aclrtDestroyStreamForce : d->acl.aclrtDestroyStream;
    if (d->side) destroy(d->side);
    if (d->stream) destroy(d->stream);
    ascend_memory_close(d);
    d->acl.aclrtResetDevice(d->config.number);
  }
  acl_close(&d->acl);
  workers_delete(device->workers);
  free(n->allocated);
  free(n->rooms);
  free(n->staged);
  free(d->ones);
  free(n);
}

static int use_device(const struct acl *a, int number, struct err *e) {
  uint32_t count = 0;
  char why[256];
  int rc = a->aclrtGetDeviceCount(&count);
  if (rc)
    return err_set(e, ERR_IO, "CANN in %s finds no NPU: %s; npu-smi info shows what the driver sees", a->where, acl_error_text(a, rc, why));
  if (number < 0 || (uint32_t)number >= count)
    return err_set(e, ERR_BAD_INPUT, "--device-id: expected 0 to %d, for this machine has %u NPU%s; found %d", (int)count - 1, count,
                   count == 1 ? "" : "s", number);
  rc = a->aclrtSetDevice(number);
  if (rc) return err_set(e, ERR_IO, "NPU %d cannot be used: %s", number, acl_error_text(a, rc, why));
  return 0;
}

/* CANN stays started for the open that follows. */
static int ascend_look(int number, struct device_look *l, struct err *e) {
  struct acl a;
  struct ascend_profile p;
  char why[256];
  memset(l, 0, sizeof *l);
  if (acl_open(&a, e)) return -1;
  int failed = use_device(&a, number, e);
  if (!failed) {
    failed = ascend_profile_read(&p, &a, number, e);
    int rc = a.aclrtGetMemInfo(NPU_HBM_MEM, &l->free_bytes, &l->total_bytes);
    if (rc && !failed) failed = err_set(e, ERR_IO, "NPU %d does not say how much memory it has: %s", number, acl_error_text(&a, rc, why));
    a.aclrtResetDevice(number);
  }
  acl_park(&a);
  if (failed) return -1;
  l->type = p.has_bf16 ? DTYPE_BF16 : DTYPE_F16;
  l->has_groups = p.has_group_quant;
  ascend_profile_text(&p, l->text);
  return 0;
}

static int hold_ones(struct ascend *d, struct err *e) {
  d->n_ones = MAX(d->config.cols_max, 1);
  if (!(d->ones = mem_try_alloc((size_t)d->n_ones * sizeof *d->ones)))
    return err_set(e, ERR_NO_MEMORY, "NPU %d: no memory for %d numbers", d->config.number, d->n_ones);
  for (int i = 0; i < d->n_ones; i++) d->ones[i] = 1;
  return ascend_hold(&d->device, d->ones, (size_t)d->n_ones, e);
}

static struct device *ascend_open(const struct device_config *c, struct err *e) {
  struct npu *n = xcalloc(1, sizeof *n);
  struct ascend *d = &n->ascend;
  const char *sync = getenv("CYGNET_ASCEND_SYNC");
  d->device.ops = &device_ascend_ops;
  d->config = *c;
  d->config.look = NULL; /* the profile is known from here on */
  d->sync_each = sync && !strcmp(sync, "1");
  if (c->link) {
    err_set(e, ERR_UNSUPPORTED, "shards of one model: expected devices of this machine's processors, one NPU holds a model alone");
    goto fail;
  }
  if (acl_open(&d->acl, e) || use_device(&d->acl, c->number, e)) goto fail;
  n->has_device = true;
  if (ascend_profile_read(&d->profile, &d->acl, c->number, e)) goto fail;
  d->type = d->profile.has_bf16 ? NPU_BF16 : NPU_FLOAT16;
  d->dtype = d->profile.has_bf16 ? DTYPE_BF16 : DTYPE_F16;
  if (!(d->device.kern = kern_select(c->isa, e)) || !(d->device.workers = workers_new(c->n_threads, e))) goto fail;
  if (d->acl.aclrtSetSysParamOpt) d->acl.aclrtSetSysParamOpt(NPU_DETERMINISTIC, 1); /* not every chip can; then sums may differ by run */
  const unsigned flags = NPU_STREAM_FAST_LAUNCH | NPU_STREAM_FAST_SYNC;
  if (!ascend_check(d, d->acl.aclrtGetCurrentContext(&d->context), "asking for the device's context") ||
      !ascend_check(d, d->acl.aclrtCreateStreamWithConfig(&d->stream, 0, flags), "creating a stream") ||
      !ascend_check(d, d->acl.aclrtCreateStreamWithConfig(&d->side, 0, flags), "creating a stream")) {
    if (e) *e = d->failed;
    goto fail;
  }
  d->acl.aclrtSetStreamFailureMode(d->stream, NPU_STOP_ON_FAILURE); /* else it goes on with wrong numbers until the wait that says so */
  d->into = d->stream;
  if (ascend_memory_open(d, e) || hold_ones(d, e)) goto fail;
  return &d->device;
fail:
  ascend_close(&d->device);
  return NULL;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------------------ */

static int ascend_tensor_alloc(struct device *device, struct tensor *t, int rows, int cols, const char *what, struct err *e) {
  struct npu *n = npu_of(device);
  struct ascend *d = &n->ascend;
  CHECK(rows >= 0 && cols >= 0);
  *t = (struct tensor){.dtype = d->dtype, .rows = rows, .cols = cols};
  t->row_bytes = align_up((size_t)cols * tensor_elem_bytes(t), ROW_ALIGN);
  size_t n_bytes;
  if (size_mul_overflows((size_t)rows, t->row_bytes, &n_bytes))
    return err_set(e, ERR_TOO_LARGE, "%s: %d x %d numbers are too many", what, rows, cols);
  if (n_bytes == 0) return 0;
  t->data = ascend_alloc(d, n_bytes, what, e);
  if (!t->data) return -1;
  if (!ascend_check(d, d->acl.aclrtMemsetAsync(t->data, n_bytes, 0, n_bytes, d->stream), "clearing memory for %s", what)) {
    if (e) *e = d->failed;
    ascend_free(d, t->data);
    t->data = NULL;
    return -1;
  }
  if (n->n_allocated == n->allocated_cap) {
    n->allocated_cap = MAX(2 * n->allocated_cap, 64);
    n->allocated = xrealloc(n->allocated, (size_t)n->allocated_cap * sizeof *n->allocated);
  }
  n->allocated[n->n_allocated++] = *t;
  return 0;
}

static void ascend_tensor_free(struct device *device, struct tensor *t) {
  struct npu *n = npu_of(device);
  for (int i = n->n_allocated - 1; t->data && i >= 0; i--) {
    if (n->allocated[i].data != t->data) continue;
    ascend_free(&n->ascend, t->data);
    n->allocated[i] = n->allocated[--n->n_allocated];
    t->data = NULL;
  }
  CHECK(!t->data); /* not from alloc, or only a part of what alloc gave */
  *t = (struct tensor){0};
}

static size_t host_row_bytes(int cols) { return align_up((size_t)cols * sizeof(float), ROW_ALIGN); }

static int ascend_host_alloc(struct device *device, struct tensor *host, int rows, int cols, const char *what, struct err *e) {
  struct npu *n = npu_of(device);
  *host = (struct tensor){.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = host_row_bytes(cols)};
  size_t n_bytes;
  if (size_mul_overflows((size_t)rows, host->row_bytes, &n_bytes) || n_bytes > SIZE_MAX / 2)
    return err_set(e, ERR_TOO_LARGE, "%s: %d x %d numbers are too many", what, rows, cols);
  if (n_bytes == 0) return 0;
  struct host_room room = {NULL, n_bytes, n_bytes / 2 + (size_t)rows * ROW_ALIGN};
  host->data = room.data = ascend_alloc_host(&n->ascend, room.float_bytes + room.half_bytes, what, e);
  if (!host->data) return -1;
  if (n->n_rooms == n->rooms_cap) {
    n->rooms_cap = MAX(2 * n->rooms_cap, 8);
    n->rooms = xrealloc(n->rooms, (size_t)n->rooms_cap * sizeof *n->rooms);
  }
  n->rooms[n->n_rooms++] = room;
  return 0;
}

static void ascend_host_free(struct device *device, struct tensor *host) {
  struct npu *n = npu_of(device);
  for (int i = 0; host->data && i < n->n_rooms; i++) {
    if (n->rooms[i].data != host->data) continue;
    ascend_free_host(&n->ascend, host->data);
    n->rooms[i] = n->rooms[--n->n_rooms];
    host->data = NULL;
  }
  CHECK(!host->data);
  *host = (struct tensor){0};
}

/* ---- between host and device ------------------------------------------------------------------------------------------------------------- */

struct widen_job {
  const char *half;
  size_t pitch;
  enum dtype dtype;
  struct tensor host;
};
static void widen_row(void *ctx, int row, int worker) {
  const struct widen_job *j = ctx;
  (void)worker;
  dtype_to_f32(j->dtype, j->half + (size_t)row * j->pitch, tensor_row(&j->host, row), (size_t)j->host.cols);
}

static void ascend_fetch(struct device *device, struct tensor *host, const struct tensor *x) {
  enum { SPREAD_NUMBERS = 64 << 10 };
  struct npu *n = npu_of(device);
  struct ascend *d = &n->ascend;
  const struct host_room *room = NULL;
  for (int i = 0; i < n->n_rooms; i++)
    if (n->rooms[i].data == host->data) room = &n->rooms[i];
  host->rows = x->rows;
  host->cols = x->cols;
  host->row_bytes = host_row_bytes(x->cols);
  if (x->rows < 1 || x->cols < 1) return;
  size_t width = (size_t)x->cols * tensor_elem_bytes(x), pitch = align_up(width, ROW_ALIGN);
  bool as_is = x->dtype == DTYPE_F32;
  CHECK(room && (size_t)x->rows * host->row_bytes <= room->float_bytes && (as_is || (size_t)x->rows * pitch <= room->half_bytes));
  char *half = (char *)room->data + (as_is ? 0 : room->float_bytes);
  if (ascend_ok(d) && ascend_enter(d) && ascend_copy_rows(d, half, pitch, x->data, x->row_bytes, width, x->rows, NPU_DEVICE_TO_HOST) &&
      ascend_wait(d)) {
    struct widen_job j = {half, pitch, x->dtype, *host};
    if (!as_is) workers_run((int64_t)x->rows * x->cols > SPREAD_NUMBERS ? device->workers : NULL, widen_row, &j, x->rows);
    return;
  }
  for (int r = 0; r < x->rows; r++)
    for (int c = 0; c < x->cols; c++) tensor_row(host, r)[c] = NAN;
}

/* Room for all rows of t; it only grows. */
static struct tensor ascend_stage(struct device *device, const struct tensor *t) {
  struct npu *n = npu_of(device);
  struct tensor staged = {.dtype = DTYPE_F32, .rows = t->rows, .cols = t->cols, .row_bytes = host_row_bytes(t->cols)};
  size_t n_bytes = (size_t)t->rows * staged.row_bytes;
  if (n_bytes > n->staged_bytes) {
    free(n->staged);
    n->staged = xmalloc(n_bytes);
    n->staged_bytes = n_bytes;
  }
  staged.data = n->staged;
  return staged;
}

static void ascend_send(struct device *device, const struct tensor *t, const struct tensor *staged) {
  struct ascend *d = ascend_of(device);
  if (ascend_ok(d) && ascend_enter(d)) ascend_send_rows(d, t, staged);
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------------- */

static void ascend_step(struct device *device, const struct batch *b) {
  struct ascend *d = ascend_of(device);
  if (device->lost) ascend_fail(d, "the device was lost before");
  if (!ascend_enter(d)) return;
  ascend_temp_reset(d);
  if (!d->record) ascend_send_batch(d, b); /* a recorded step finds them where they are */
}

/* Whatever went wrong, nothing runs any more when the error has been told, unless the device is lost. */
int ascend_finish(struct device *device, struct err *e) {
  struct ascend *d = ascend_of(device);
  ascend_enter(d);
  ascend_wait(d);
  if (device->lost) ascend_fail(d, "the device was lost before");
  if (ascend_ok(d)) return 0;
  if (e) *e = d->failed;
  if (e && device->lost) err_prefix(e, "the NPU is lost");
  d->failed = (struct err){0};
  return -1;
}

static void ascend_sum_shards(struct device *device, struct tensor *y) { (void)device, (void)y; } /* open takes no link */

const struct device_ops device_ascend_ops = {
    .name = "ascend",
    .attn = &attn_ascend_ops,
    .open = ascend_open,
    .close = ascend_close,
    .look = ascend_look,
    .weight_bytes = ascend_weight_bytes,
    .table_bytes = ascend_table_bytes,
    .rope_bytes = ascend_rope_bytes,
    .alloc = ascend_tensor_alloc,
    .free = ascend_tensor_free,
    .host_alloc = ascend_host_alloc,
    .host_free = ascend_host_free,
    .fetch = ascend_fetch,
    .stage = ascend_stage,
    .send = ascend_send,
    .copy = ascend_copy,
    .weight_bind = ascend_weight_bind,
    .weight_free = ascend_weight_free,
    .table_bind = ascend_table_bind,
    .rope_init = ascend_rope_init,
    .rope_bands = ascend_rope_bands,
    .rope_divide = ascend_rope_divide,
    .rope_free = ascend_rope_free,
    .hold = ascend_hold,
    .drop = ascend_drop,
    .hold_batch = ascend_hold_batch,
    .step = ascend_step,
    .finish = ascend_finish,
    .no_records = ascend_no_records,
    .record_new = ascend_record_new,
    .record_delete = ascend_record_delete,
    .record_bytes = ascend_record_bytes,
    .record_begin = ascend_record_begin,
    .record_end = ascend_record_end,
    .record_launches = ascend_record_launches,
    .record_replay = ascend_record_replay,
    .embed = ascend_embed,
    .embed_add = ascend_embed_add,
    .linear = ascend_linear,
    .linear_gated = ascend_linear_gated,
    .moe = ascend_moe,
    .rmsnorm = ascend_rmsnorm,
    .add_rmsnorm = ascend_add_rmsnorm,
    .add = ascend_add,
    .scale = ascend_scale,
    .gated = ascend_gated,
    .rope_step = ascend_rope_step,
    .rope = ascend_rope,
    .softcap = ascend_softcap,
    .head = ascend_head,
    .gather = ascend_gather,
    .argmax = ascend_argmax,
    .put_rows = ascend_put_rows,
    .add_scaled = ascend_add_scaled,
    .sum_shards = ascend_sum_shards,
    .layernorm = ascend_layernorm,
    .bias_act = ascend_bias_act,
    .clamp = ascend_clamp,
    .rope2d = ascend_rope2d,
    .attend = ascend_attend,
    .attend_near = ascend_attend_near,
    .pool_rows = ascend_pool_rows,
    .conv_rows = ascend_conv_rows,
};
