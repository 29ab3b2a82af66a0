/* acl_arrays.h — for tests of the emulated NPU's operators: arrays that lie on the device and, as doubles, here; calls that must work, be refused
 * or fault. Everything made is given back by release().
 *
 * The test looks through the same declarations as the backend (acl.h), so that both are held against the emulator's own.
 */
#ifndef CYGNET_TESTS_ACL_ARRAYS_H
#define CYGNET_TESTS_ACL_ARRAYS_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "acl_emu/acl_emu.h"
#include "base/dtype.h"
#include "compute/ascend/acl.h"
#include "npu.h"

/* ---- the device ------------------------------------------------------------------------------------------------------------- */

static struct acl a;
static aclrtStream stream;
static const struct acl_emu *emu;
static bool old_chip; /* 310P */
static uint64_t seed;

static inline int rnd(int lo, int hi) { return test_rand_int(&seed, lo, hi); }

static inline void device_open(void) {
  struct err e = {0};
  if (acl_open(&a, &e)) fail_msg("%s", e.msg);
  emu = npu_emu();
  assert_non_null(emu);
  old_chip = strstr(emu->profile, "310P") != NULL;
  seed = 7;
  assert_int_equal(a.aclrtSetDevice(0), 0);
  assert_int_equal(a.aclrtCreateStream(&stream), 0);
}

static inline void device_close(void) {
  assert_int_equal(a.aclrtDestroyStream(stream), 0);
  assert_string_equal(emu->leaks(), "");
  assert_int_equal(a.aclrtResetDevice(0), 0);
  acl_close(&a);
}

/* ---- arrays: a tensor on the device and its numbers here -------------------------------------------------------------------- */

enum layout { WHOLE, PADDED, TURNED, SPREAD }; /* contiguous; a part of wider rows; the last two axes swapped; every other element */
enum { ARRAYS_MAX = 64, DIMS_MAX = 4 };

struct array {
  int type, n_dims;
  int64_t dims[DIMS_MAX], strides[DIMS_MAX], n, offset, storage; /* elements */
  double *x;                                                     /* the view, row-major */
  unsigned char *bytes;                                          /* the storage as it was sent */
  void *device;
  aclTensor *t;
};
static struct array arrays[ARRAYS_MAX];
static int n_arrays;
static aclScalar *scalars[ARRAYS_MAX];
static int n_scalars;
static aclTensorList *lists[ARRAYS_MAX];
static int n_lists;
static aclIntArray *ints[ARRAYS_MAX];
static int n_ints;

static inline void release(void) {
  for (int i = 0; i < n_lists; i++) a.aclDestroyTensorList(lists[i]);
  for (int i = 0; i < n_scalars; i++) a.aclDestroyScalar(scalars[i]);
  for (int i = 0; i < n_ints; i++) a.aclDestroyIntArray(ints[i]);
  for (int i = 0; i < n_arrays; i++) {
    if (arrays[i].t) a.aclDestroyTensor(arrays[i].t);
    if (arrays[i].device) a.aclrtFree(arrays[i].device);
    free(arrays[i].x);
    free(arrays[i].bytes);
  }
  n_arrays = n_scalars = n_lists = n_ints = 0;
}

static inline int type_bits(int type) {
  switch (type) {
  case NPU_FLOAT:
  case NPU_INT32: return 32;
  case NPU_FLOAT16:
  case NPU_BF16: return 16;
  case NPU_INT64: return 64;
  case NPU_INT4: return 4;
  default: return 8;
  }
}
static inline bool type_is_float(int type) { return type == NPU_FLOAT || type == NPU_FLOAT16 || type == NPU_BF16; }

static inline double load(const unsigned char *bytes, int type, int64_t at) {
  float f;
  uint16_t h;
  int32_t i;
  int64_t l;
  switch (type) {
  case NPU_FLOAT: memcpy(&f, bytes + at * 4, 4); return f;
  case NPU_FLOAT16: memcpy(&h, bytes + at * 2, 2); return f16_to_f32(h);
  case NPU_BF16: memcpy(&h, bytes + at * 2, 2); return bf16_to_f32(h);
  case NPU_INT32: memcpy(&i, bytes + at * 4, 4); return i;
  case NPU_INT64: memcpy(&l, bytes + at * 8, 8); return (double)l;
  case NPU_INT8: return (signed char)bytes[at];
  case NPU_INT4: return (((bytes[at / 2] >> (at & 1) * 4) & 15) ^ 8) - 8;
  default: return bytes[at];
  }
}

static inline void store(unsigned char *bytes, int type, int64_t at, double x) {
  float f = (float)x;
  uint16_t h;
  int32_t i = (int32_t)(type == NPU_INT32 ? x : 0);
  int64_t l = (int64_t)(type == NPU_INT64 ? x : 0);
  switch (type) {
  case NPU_FLOAT: memcpy(bytes + at * 4, &f, 4); break;
  case NPU_FLOAT16: h = f32_to_f16(f), memcpy(bytes + at * 2, &h, 2); break;
  case NPU_BF16: h = f32_to_bf16(f), memcpy(bytes + at * 2, &h, 2); break;
  case NPU_INT32: memcpy(bytes + at * 4, &i, 4); break;
  case NPU_INT64: memcpy(bytes + at * 8, &l, 8); break;
  case NPU_INT8: bytes[at] = (unsigned char)(signed char)x; break;
  case NPU_INT4: bytes[at / 2] = (unsigned char)((bytes[at / 2] & (at & 1 ? 0x0f : 0xf0)) | ((int)x & 15) << (at & 1) * 4); break;
  default: bytes[at] = (unsigned char)x;
  }
}
static inline double rounded(int type, double x) {
  unsigned char bytes[8] = {0};
  store(bytes, type, 0, x);
  return load(bytes, type, 0);
}

static inline int64_t place(const struct array *t, int64_t i) {
  int64_t at = t->offset;
  for (int d = t->n_dims - 1; d >= 0; d--) {
    at += i % t->dims[d] * t->strides[d];
    i /= t->dims[d];
  }
  return at;
}

/* Strides of a layout; what lies between is part of the storage. */
static inline void lay_out(struct array *t, enum layout layout) {
  int64_t size = 1;
  if (layout == TURNED && t->n_dims < 2) layout = PADDED;
  for (int d = t->n_dims - 1; d >= 0; d--) {
    int axis = layout != TURNED || d < t->n_dims - 2 ? d : 2 * t->n_dims - 3 - d;
    if (layout == SPREAD && d == t->n_dims - 1) size = 2;
    t->strides[axis] = size;
    size *= t->dims[axis];
    if (layout == PADDED && d == t->n_dims - 1) size += 2 * rnd(1, 3);
  }
  t->offset = layout == WHOLE ? 0 : 2 * rnd(0, 3);
  t->storage = size + t->offset;
}

static inline void send(struct array *t) {
  for (int64_t i = 0; i < t->n; i++) {
    store(t->bytes, t->type, place(t, i), t->x[i]);
    t->x[i] = load(t->bytes, t->type, place(t, i));
  }
  size_t n = (size_t)((t->storage * type_bits(t->type) + 7) / 8);
  assert_int_equal(a.aclrtMemcpy(t->device, n, t->bytes, n, NPU_HOST_TO_DEVICE), 0);
}

static inline double any_number(int type) {
  switch (type) {
  case NPU_BOOL: return rnd(0, 1);
  case NPU_UINT8: return rnd(0, 255);
  case NPU_INT8: return rnd(-128, 127);
  case NPU_INT4: return rnd(-8, 7);
  case NPU_INT32:
  case NPU_INT64: return rnd(-1000000, 1000000);
  default: return (double)test_rand_normal(&seed);
  }
}

static inline struct array *array(int type, enum layout layout, int n_dims, const int64_t *dims) {
  assert_true(n_arrays < ARRAYS_MAX && n_dims <= DIMS_MAX);
  struct array *t = &arrays[n_arrays++];
  memset(t, 0, sizeof *t);
  t->type = type;
  t->n_dims = n_dims;
  t->n = 1;
  for (int d = 0; d < n_dims; d++) t->n *= t->dims[d] = dims[d];
  lay_out(t, layout);
  size_t n_bytes = (size_t)(t->storage * type_bits(type) / 8 + 64);
  t->x = calloc((size_t)t->n + 1, sizeof *t->x);
  t->bytes = malloc(n_bytes);
  memset(t->bytes, 0xa5, n_bytes);
  assert_int_equal(a.aclrtMalloc(&t->device, n_bytes, NPU_HUGE_FIRST), 0);
  for (int64_t i = 0; i < t->n; i++) t->x[i] = any_number(type);
  send(t);
  t->t = a.aclCreateTensor(t->dims, (uint64_t)n_dims, type, t->strides, t->offset, NPU_ND, &t->storage, 1, t->device);
  assert_non_null(t->t);
  return t;
}
#define DIMS(...)                                                                                                                          \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
#define A(type, ...) array(type, WHOLE, DIMS(__VA_ARGS__))
#define S(type, ...) array(type, (enum layout)rnd(WHOLE, SPREAD), DIMS(__VA_ARGS__))

static inline aclScalar *number(double x) {
  float f = (float)x;
  return scalars[n_scalars++] = a.aclCreateScalar(&f, NPU_FLOAT);
}
static inline aclScalar *integer(int64_t x) { return scalars[n_scalars++] = a.aclCreateScalar(&x, NPU_INT64); }
static inline aclTensorList *list(int n, struct array *const *t) { /* takes the descriptors */
  const aclTensor *members[8];
  for (int i = 0; i < n; i++) {
    members[i] = t[i]->t;
    t[i]->t = NULL;
  }
  return lists[n_lists++] = a.aclCreateTensorList(members, (uint64_t)n);
}
static inline aclIntArray *numbers(int n, const int64_t *x) { return ints[n_ints++] = a.aclCreateIntArray(x, (uint64_t)n); }
#define L(...) list((int)(sizeof((struct array *[]){__VA_ARGS__}) / sizeof(struct array *)), (struct array *[]){__VA_ARGS__})
#define I(...) numbers(DIMS(__VA_ARGS__))

/* ---- calls ------------------------------------------------------------------------------------------------------------------ */

static uint64_t ws;
static aclOpExecutor *ex;

/* Phase 2 and a wait, with exactly the workspace that phase 1 asked for. */
static inline int finish(enum acl_op op, int rc) {
  void *memory = NULL;
  if (rc) return rc;
  if (ws) assert_int_equal(a.aclrtMalloc(&memory, ws, NPU_HUGE_FIRST), 0);
  rc = a.issue[op](memory, ws, ex, stream);
  assert_int_equal(rc, 0);
  rc = a.aclrtSynchronizeStream(stream);
  if (memory) assert_int_equal(a.aclrtFree(memory), 0);
  return rc;
}
#define CALL(op, ...) finish(ACL_OP_##op, a.op(__VA_ARGS__, &ws, &ex))
#define RUN(op, ...)                                                                                                                       \
  do {                                                                                                                                     \
    int run_rc = CALL(op, __VA_ARGS__);                                                                                                    \
    if (run_rc) fail_msg("%s: %s: %d: %s", emu->profile, #op, run_rc, a.aclGetRecentErrMsg());                                             \
  } while (0)
/* Phase 1 refuses, with a text, and leaves no executor. */
#define REFUSED(code, op, ...)                                                                                                             \
  do {                                                                                                                                     \
    int run_rc = a.op(__VA_ARGS__, &ws, &ex);                                                                                              \
    const char *run_text = a.aclGetRecentErrMsg();                                                                                         \
    if (run_rc != (code)) fail_msg("%s: line %d: %s gave %d, expected %d (%s)", emu->profile, __LINE__, #op, run_rc, code, run_text);      \
    assert_true(run_text &&strstr(run_text, #op));                                                                                         \
    assert_null(ex);                                                                                                                       \
  } while (0)
/* The operator is taken, and faults when it runs. */
#define FAULTS(op, ...)                                                                                                                    \
  do {                                                                                                                                     \
    emu->quiet(1);                                                                                                                         \
    int run_rc = CALL(op, __VA_ARGS__);                                                                                                    \
    if (run_rc != 507015) fail_msg("%s: line %d: %s gave %d, expected 507015", emu->profile, __LINE__, #op, run_rc);                       \
  } while (0)
enum { NULL_POINTER = 161001, INVALID = 161002, TILING = 561002, NO_KERNEL = 561003, SHAPES = 561103 };

/* What the device has: numbers into got; bytes between the elements must be what they were. */
static inline double *fetch(struct array *t) {
  size_t n = (size_t)((t->storage * type_bits(t->type) + 7) / 8);
  unsigned char *now = malloc(n + 1), *expected = malloc(n + 1);
  assert_int_equal(a.aclrtMemcpy(now, n, t->device, n, NPU_DEVICE_TO_HOST), 0);
  memcpy(expected, t->bytes, n);
  double *got = calloc((size_t)t->n + 1, sizeof *got);
  for (int64_t i = 0; i < t->n; i++) {
    got[i] = load(now, t->type, place(t, i));
    store(expected, t->type, place(t, i), 0);
    store(now, t->type, place(t, i), 0);
  }
  assert_memory_equal(now, expected, n);
  free(now);
  free(expected);
  return got;
}

/* Relative error of one rounding to a type. */
static inline double grain(int type) {
  switch (type) {
  case NPU_FLOAT: return 2e-6;
  case NPU_FLOAT16: return 1.0 / 1024;
  case NPU_BF16: return 1.0 / 128;
  default: return 0;
  }
}

/* t is want, within n roundings of `type`, relative to each number or to `scale`. Takes want. */
static inline void expect_at(int line, struct array *t, double *want, int type, double n, double scale) {
  double *got = fetch(t);
  for (int64_t i = 0; i < t->n; i++) {
    double most = n * fmax(grain(type), grain(t->type)) * (fabs(want[i]) + scale);
    if (isnan(want[i]) ? isnan(got[i]) : got[i] == want[i] || fabs(got[i] - want[i]) <= most) continue;
    fail_msg("%s: line %d: element %lld is %.9g, expected %.9g within %.3g", emu->profile, line, (long long)i, got[i], want[i], most);
  }
  free(got);
  free(want);
}
#define expect(...) expect_at(__LINE__, __VA_ARGS__)
static inline double *room(int64_t n) { return calloc((size_t)n + 1, sizeof(double)); }

static inline int any_float(void) {
  const int types[] = {NPU_FLOAT, NPU_FLOAT16, NPU_BF16};
  return types[rnd(0, old_chip ? 1 : 2)];
}
static inline int half_type(void) { return old_chip || rnd(0, 1) ? NPU_FLOAT16 : NPU_BF16; }

#endif
