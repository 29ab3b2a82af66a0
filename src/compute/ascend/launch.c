/* launch.c — calling an operator, and what becomes of errors.
 *
 *   begin_launch ─► makers ─► phase 1 ─► end_launch: workspace ─► phase 2 ─► descriptors freed
 *
 * After an error launches do nothing, so an operation is written without looking at results. An executor that phase 1 made and phase 2 did not
 * take is destroyed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "compute/ascend/ascend.h"

enum { TENSOR_ALIGN = 32 };
enum { WAIT_MS = 600000 }; /* no step takes ten minutes; a device that does is stuck */

/* ---- errors ---------------------------------------------------------------------------------------------------------------- */

static void keep_error(struct ascend *d, enum err_code code, const char *fmt, va_list args) {
  char text[sizeof d->failed.msg];
  if (!ascend_ok(d)) return;
  vsnprintf(text, sizeof text, fmt, args);
  err_set(&d->failed, code, "NPU %d: %s", d->config.number, text);
}

void ascend_fail(struct ascend *d, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  keep_error(d, ERR_INTERNAL, fmt, args);
  va_end(args);
}

static bool code_is_memory(int rc) { return rc == 207001 || rc == 207018 || rc == 200000; }

bool ascend_check(struct ascend *d, int rc, const char *fmt, ...) {
  char what[320], why[256];
  va_list args;
  if (rc == 0) return true;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  acl_error_text(&d->acl, rc, why);
  if (ascend_ok(d)) err_set(&d->failed, code_is_memory(rc) ? ERR_NO_MEMORY : ERR_INTERNAL, "NPU %d: %s: %s", d->config.number, what, why);
  return false;
}

bool ascend_enter(struct ascend *d) {
  return ascend_check(d, d->acl.aclrtSetCurrentContext(d->context), "making the device current for a thread");
}

/* Nothing may wait while a step is recorded. Otherwise the stream is idle afterwards, or the device lost: of a wait that failed nobody knows
 * what still runs, unless the code only speaks of resources (207000 and up: an overflow, say). */
bool ascend_wait(struct ascend *d) {
  if (d->record) {
    ascend_fail(d, "a recorded step tried to wait for the device");
    return false;
  }
  if (d->device.lost) return false;
  int rc = d->acl.aclrtSynchronizeStreamWithTimeout(d->stream, WAIT_MS);
  d->n_waits++;
  if (rc && rc / 1000 != 207) d->device.lost = true;
  if (!d->device.lost) ascend_waited(d);
  return ascend_check(d, rc, "waiting for the device") && ascend_ok(d);
}

/* ---- descriptors --------------------------------------------------------------------------------------------------------------- */

static const char *type_name(aclDataType type) {
  switch (type) {
  case NPU_FLOAT: return "float32";
  case NPU_FLOAT16: return "float16";
  case NPU_BF16: return "bfloat16";
  case NPU_INT8: return "int8";
  case NPU_INT32: return "int32";
  case NPU_UINT8: return "uint8";
  case NPU_INT64: return "int64";
  case NPU_BOOL: return "bool";
  case NPU_INT4: return "int4";
  default: return "?";
  }
}

static size_t type_bytes(aclDataType type) {
  switch (type) {
  case NPU_FLOAT:
  case NPU_INT32: return 4;
  case NPU_INT64: return 8;
  case NPU_FLOAT16:
  case NPU_BF16: return 2;
  default: return 1; /* INT4, too: such tensors are never parts */
  }
}

/* Elements from the first to the last that the view reaches. */
static bool view_extent(const struct ascend_shape *s, const int64_t *strides, int64_t *extent) {
  int64_t last = 0;
  for (int i = 0; i < s->n_dims; i++) {
    int64_t part;
    if (s->dims[i] < 0 || strides[i] < 0) return false;
    if (s->dims[i] == 0) return *extent = 0, true;
    if (__builtin_mul_overflow(s->dims[i] - 1, strides[i], &part) || __builtin_add_overflow(last, part, &last)) return false;
  }
  *extent = last + 1;
  return last < INT64_MAX;
}

static bool is_contiguous(const struct ascend_shape *s) {
  for (int i = 0; i < s->n_dims; i++)
    if (s->strides[i]) return false;
  return true;
}

aclTensor *ascend_view(struct ascend *d, const void *data, aclDataType type, struct ascend_shape s) {
  if (!data || !ascend_ok(d)) return NULL;
  CHECK(s.n_dims >= 0 && s.n_dims <= ASCEND_DIMS_MAX);
  if (d->n_tensors == ASCEND_ARGS_MAX) {
    ascend_fail(d, "an operator was given more than %d tensors", ASCEND_ARGS_MAX);
    return NULL;
  }
  int64_t contiguous[ASCEND_DIMS_MAX], extent, step = 1;
  for (int i = s.n_dims - 1; i >= 0; i--) {
    contiguous[i] = step;
    step = s.dims[i] > 0 && step > INT64_MAX / s.dims[i] ? 0 : step * s.dims[i];
  }
  bool plain = is_contiguous(&s);
  const int64_t *strides = plain ? contiguous : s.strides;
  bool sound = view_extent(&s, strides, &extent);
  if (d->n_made < (int)ARRAY_LEN(d->made)) d->made[d->n_made++] = (struct ascend_made){type, s};
  /* The address of a tensor is a multiple of 32; what begins elsewhere (columns, heads) is an offset into it. */
  size_t elem = type_bytes(type), inside = (uintptr_t)data % TENSOR_ALIGN;
  int64_t offset = (int64_t)(inside / elem);
  if (offset) extent += offset, plain = false;
  /* Storage of a contiguous tensor has its shape; of a view into something larger, the elements that it reaches. */
  aclTensor *t = !sound || inside % elem
                     ? NULL
                     : d->acl.aclCreateTensor(s.dims, (uint64_t)s.n_dims, type, strides, offset, NPU_ND, plain ? s.dims : &extent,
                                              plain ? (uint64_t)s.n_dims : 1, (void *)((uintptr_t)data - inside));
  if (!t) ascend_check(d, 561103, "a tensor of %d dimensions and type %s cannot be described", s.n_dims, type_name(type));
  else d->tensors[d->n_tensors++] = t;
  return t;
}

static aclDataType type_of(const struct ascend *d, enum dtype t) {
  switch (t) {
  case DTYPE_F32: return NPU_FLOAT;
  case DTYPE_F16: return NPU_FLOAT16;
  case DTYPE_BF16: return NPU_BF16;
  case DTYPE_I32: return NPU_INT32;
  case DTYPE_I64: return NPU_INT64;
  case DTYPE_U8: return NPU_UINT8;
  default: return d->type;
  }
}

aclTensor *ascend_tensor(struct ascend *d, const struct tensor *t) {
  int64_t stride = ascend_stride(t);
  struct ascend_shape s = {2, {t->rows, t->cols}, {0}};
  if (stride != t->cols && t->rows > 1) s.strides[0] = stride, s.strides[1] = 1;
  return ascend_view(d, t->data, type_of(d, t->dtype), s);
}

aclTensor *ascend_array(struct ascend *d, const void *data, aclDataType type, int64_t n) {
  return ascend_view(d, data, type, (struct ascend_shape){1, {n}, {0}});
}

aclTensor *ascend_matrix(struct ascend *d, const void *data, aclDataType type, int64_t rows, int64_t cols) {
  return ascend_view(d, data, type, (struct ascend_shape){2, {rows, cols}, {0}});
}

static aclScalar *keep_scalar(struct ascend *d, void *value, aclDataType type) {
  if (!ascend_ok(d)) return NULL;
  aclScalar *s = d->n_scalars < ASCEND_ARGS_MAX ? d->acl.aclCreateScalar(value, type) : NULL;
  if (!s) ascend_check(d, 561103, "a scalar cannot be described");
  else d->scalars[d->n_scalars++] = s;
  return s;
}

aclScalar *ascend_number(struct ascend *d, double x) {
  float f = (float)x;
  return keep_scalar(d, &f, NPU_FLOAT);
}

aclScalar *ascend_factor(struct ascend *d, double x) {
  double f = (double)(float)x;
  return keep_scalar(d, &f, NPU_DOUBLE);
}

aclScalar *ascend_integer(struct ascend *d, int64_t x) { return keep_scalar(d, &x, NPU_INT64); }

aclIntArray *ascend_ints(struct ascend *d, const int64_t *x, int n) {
  if (!ascend_ok(d)) return NULL;
  aclIntArray *a = d->n_arrays < ASCEND_ARGS_MAX ? d->acl.aclCreateIntArray(x, (uint64_t)n) : NULL;
  if (!a) ascend_check(d, 561103, "an array of %d integers cannot be described", n);
  else d->arrays[d->n_arrays++] = a;
  return a;
}

/* A list destroys its tensors when it is destroyed: they are no longer ours. */
aclTensorList *ascend_list(struct ascend *d, aclTensor *const *t, int n) {
  if (!ascend_ok(d)) return NULL;
  aclTensorList *list = d->n_lists < ASCEND_ARGS_MAX ? d->acl.aclCreateTensorList((const aclTensor *const *)t, (uint64_t)n) : NULL;
  if (!list) {
    ascend_check(d, 561103, "a list of %d tensors cannot be described", n);
    return NULL;
  }
  d->lists[d->n_lists++] = list;
  for (int i = 0; i < n; i++) {
    for (int k = d->n_tensors - 1; k >= 0; k--) {
      if (d->tensors[k] != t[i]) continue;
      d->tensors[k] = d->tensors[--d->n_tensors];
      break;
    }
  }
  return list;
}

static void free_descriptors(struct ascend *d) {
  for (int i = 0; i < d->n_lists; i++) d->acl.aclDestroyTensorList(d->lists[i]);
  for (int i = 0; i < d->n_tensors; i++) d->acl.aclDestroyTensor(d->tensors[i]);
  for (int i = 0; i < d->n_scalars; i++) d->acl.aclDestroyScalar(d->scalars[i]);
  for (int i = 0; i < d->n_arrays; i++) d->acl.aclDestroyIntArray(d->arrays[i]);
  d->n_lists = d->n_tensors = d->n_scalars = d->n_arrays = d->n_made = 0;
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------- */

bool ascend_has(const struct ascend *d, enum acl_op op) { return d->acl.issue[op] != NULL; }

bool ascend_begin_launch(struct ascend *d, enum acl_op op) {
  if (!ascend_ok(d)) return false;
  if (ascend_has(d, op)) return true;
  ascend_fail(d, "%s: the CANN in %s does not have this operator", acl_op_name(op), d->acl.where);
  return false;
}

/* "[4, 640] bfloat16, [640] float32": the first of the tensors that were made. */
static void describe(const struct ascend *d, char text[200]) {
  size_t used = 0, room = 200;
  text[0] = 0;
  for (int i = 0; i < d->n_made && used + 48 < room; i++) {
    const struct ascend_made *m = &d->made[i];
    used += (size_t)snprintf(text + used, room - used, "%s[", i ? ", " : "");
    for (int k = 0; k < m->shape.n_dims && used + 24 < room; k++)
      used += (size_t)snprintf(text + used, room - used, "%s%lld", k ? ", " : "", (long long)m->shape.dims[k]);
    used += (size_t)snprintf(text + used, room - used, "]%s %s", is_contiguous(&m->shape) ? "" : " (part)", type_name(m->type));
  }
}

static bool check_operator(struct ascend *d, enum acl_op op, const char *phase, int rc) {
  if (rc == 0) return true;
  char shapes[200];
  describe(d, shapes);
  return ascend_check(d, rc, "%s%s of %s", acl_op_name(op), phase, shapes);
}

void ascend_end_launch(struct ascend *d, enum acl_op op, int rc, uint64_t workspace_bytes, aclOpExecutor *executor) {
  bool made = rc == 0 && executor;
  if (ascend_ok(d) && check_operator(d, op, "", rc)) {
    void *workspace = workspace_bytes > 0 ? ascend_workspace(d, workspace_bytes) : NULL;
    if (ascend_ok(d)) {
      made = false;
      d->n_launches++;
      rc = d->acl.issue[op](workspace, workspace_bytes, executor, d->into);
      check_operator(d, op, " (launch)", rc);
      if (d->sync_each && ascend_ok(d) && !d->record && d->into == d->stream && !ascend_wait(d))
        err_prefix(&d->failed, "%s", acl_op_name(op));
    }
  }
  if (made) d->acl.aclDestroyAclOpExecutor(executor);
  free_descriptors(d);
}

void ascend_assign(struct ascend *d, const struct tensor *y, const struct tensor *x) {
  ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, y), ascend_tensor(d, x));
}
