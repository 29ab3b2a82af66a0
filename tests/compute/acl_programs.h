/* acl_programs.h — what the emulator's tests share: its functions by name, and small programs that call them.
 *
 * An own loader: these tests must not depend on the backend's.
 */
#ifndef CYGNET_TESTS_ACL_PROGRAMS_H
#define CYGNET_TESTS_ACL_PROGRAMS_H

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compute/ascend/acl.h"
#include "npu.h"

/* Functions that the backend does not call. */
/* clang-format off */
#define MORE(X)                                                                                                                            \
  X(aclError, aclrtCreateEvent, (aclrtEvent *event))                                                                                       \
  X(aclError, aclrtCreateContext, (aclrtContext *context, int32_t device))                                                                 \
  X(aclError, aclrtDestroyContext, (aclrtContext context))                                                                                 \
  X(aclError, aclrtStreamQuery, (aclrtStream stream, unsigned *status))                                                                    \
  X(aclError, aclrtQueryEventStatus, (aclrtEvent event, unsigned *status))                                                                 \
  X(aclError, aclrtEventElapsedTime, (float *ms, aclrtEvent start, aclrtEvent end))                                                        \
  X(aclError, aclrtMemcpy2d, (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, unsigned kind))       \
  X(aclError, aclrtHostRegister, (void *p, uint64_t size, unsigned type, void **device))                                                   \
  X(aclError, aclrtHostUnregister, (void *p))                                                                                              \
  X(aclError, aclrtMallocAlign32, (void **p, size_t size, unsigned policy))                                                                \
  X(aclError, aclrtDestroyStreamForce, (aclrtStream stream))                                                                               \
  X(aclError, aclrtLaunchHostFunc, (aclrtStream stream, void (*fn)(void *), void *args))                                                   \
  X(aclnnStatus, aclSetAclOpExecutorRepeatable, (aclOpExecutor *executor))                                                                 \
  X(aclnnStatus, aclSetTensorAddr, (aclOpExecutor *executor, size_t index, aclTensor *t, void *address))                                   \
  X(aclnnStatus, aclGetViewShape, (const aclTensor *t, int64_t **dims, uint64_t *n))
/* clang-format on */

static struct acl acl;
static struct {
#define X(returns, name, args) returns(*name) args;
  MORE(X)
#undef X
} more;
static const struct acl_emu *emu;
static aclrtStream stream, other;

static void *libraries[8];
static int n_libraries;
static inline void *look_up(const char *name) {
  for (int i = 0; i < n_libraries; i++) {
    void *p = dlsym(libraries[i], name);
    if (p) return p;
  }
  return NULL;
}
static inline void open_library(const char *name) {
  char path[4300];
  snprintf(path, sizeof path, "%s/lib64/%s", getenv("ASCEND_HOME_PATH"), name);
  void *p = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (p) libraries[n_libraries++] = p;
}
static inline void open_libraries(void) {
  emu = npu_emu();
  open_library("libascendcl.so");
  open_library("libnnopbase.so");
  assert_int_equal(n_libraries, 2);
  open_library("libopapi_math.so");
  open_library("libopapi_nn.so");
  open_library("libopapi_transformer.so");
  if (n_libraries == 2) open_library("libopapi.so");
  assert_true(n_libraries > 2);
#define X(returns, name, args) *(void **)&acl.name = look_up(#name);
  ACL_REQUIRED(X)
  ACL_OPTIONAL(X)
  ACL_BASE(X)
#undef X
#define X(returns, name, args) *(void **)&more.name = look_up(#name);
  MORE(X)
#undef X
#define X(op, ...) *(void **)&acl.op = look_up("aclnn" #op "GetWorkspaceSize"), *(void **)&acl.issue[ACL_OP_##op] = look_up("aclnn" #op);
  ACLNN_OPERATORS(X)
#undef X
}
static inline void open_all(void) {
  open_libraries();
  assert_int_equal(acl.aclInit(NULL), 0);
  assert_int_equal(acl.aclrtSetDevice(0), 0);
  assert_int_equal(acl.aclrtCreateStream(&stream), 0);
  assert_int_equal(acl.aclrtCreateStream(&other), 0);
}
static inline void close_all(void) {
  assert_int_equal(acl.aclrtDestroyStream(stream), 0);
  assert_int_equal(acl.aclrtDestroyStream(other), 0);
  npu_check_clean();
  assert_int_equal(acl.aclrtResetDevice(0), 0);
  assert_int_equal(acl.aclFinalize(), 0);
  assert_string_equal(emu->finalize_leaks(), "");
}

#define IS(code, call) assert_int_equal(call, code)

/* ---- small programs ---------------------------------------------------------------------------------------------------------------- */

static inline void *device(size_t n) {
  void *p = NULL;
  IS(0, acl.aclrtMalloc(&p, n, 0));
  return p;
}
static inline void *pinned(size_t n) {
  void *p = NULL;
  IS(0, acl.aclrtMallocHost(&p, n));
  return p;
}
static inline void wait_for(aclrtStream s) { IS(0, acl.aclrtSynchronizeStream(s)); }
static inline aclTensor *tensor(void *p, int type, int n, const int64_t *dims) {
  return acl.aclCreateTensor(dims, (uint64_t)n, type, NULL, 0, NPU_ND, dims, (uint64_t)n, p);
}
static inline aclTensor *vector(void *p, int64_t n) { return tensor(p, NPU_FLOAT, 1, &n); }
static inline void fill(void *d, int n, float first, float step) {
  float x[256];
  for (int i = 0; i < n; i++) x[i] = first + step * (float)i;
  IS(0, acl.aclrtMemcpy(d, sizeof *x * (size_t)n, x, sizeof *x * (size_t)n, 1));
}
static inline float value(const void *d, int i) {
  float x;
  assert_true(emu->peek((const float *)d + i, &x, sizeof x));
  return x;
}

/* x *= factor, with both phases; the code of the phase that failed. */
static inline aclnnStatus scale_phase1(void *x, int64_t n, float factor, aclOpExecutor **executor) {
  uint64_t bytes = 0;
  aclTensor *t = vector(x, n);
  aclScalar *s = acl.aclCreateScalar(&factor, NPU_FLOAT);
  aclnnStatus rc = acl.InplaceMuls(t, s, &bytes, executor);
  assert_int_equal(bytes, 0);
  acl.aclDestroyScalar(s);
  if (rc) acl.aclDestroyTensor(t);
  else assert_non_null(*executor);
  return rc;
}
static inline aclnnStatus scale(void *x, int64_t n, float factor, aclrtStream s) {
  uint64_t bytes = 0;
  aclOpExecutor *executor = NULL;
  aclTensor *t = vector(x, n);
  aclScalar *f = acl.aclCreateScalar(&factor, NPU_FLOAT);
  aclnnStatus rc = acl.InplaceMuls(t, f, &bytes, &executor);
  if (!rc) rc = acl.issue[ACL_OP_InplaceMuls](NULL, 0, executor, s);
  acl.aclDestroyTensor(t);
  acl.aclDestroyScalar(f);
  return rc;
}
/* y = x a, [n,n] matrices: an operator with a workspace. */
static inline aclnnStatus product(int type, void *y, void *x, void *a, int64_t n, void *workspace, int64_t given, aclrtStream s) {
  uint64_t bytes = 0;
  const int64_t dims[] = {n, n};
  aclOpExecutor *executor = NULL;
  aclTensor *t[] = {tensor(x, type, 2, dims), tensor(a, type, 2, dims), tensor(y, type, 2, dims)};
  aclnnStatus rc = acl.Mm(t[0], t[1], t[2], 0, &bytes, &executor);
  if (!rc) {
    assert_true(bytes > 0);
    rc = acl.issue[ACL_OP_Mm](workspace, given < 0 ? bytes : (uint64_t)given, executor, s);
  }
  for (int i = 0; i < 3; i++) acl.aclDestroyTensor(t[i]);
  return rc;
}
/* y[i] = x[index[i]]: one that can fault. */
static inline aclnnStatus pick(void *y, void *x, int64_t n, void *index, aclrtStream s) {
  uint64_t bytes = 0;
  aclOpExecutor *executor = NULL;
  int64_t one = 1;
  aclTensor *t[] = {vector(x, n), tensor(index, NPU_INT64, 1, &one), vector(y, 1)};
  aclnnStatus rc = acl.IndexSelect(t[0], 0, t[1], t[2], &bytes, &executor);
  if (!rc) rc = acl.issue[ACL_OP_IndexSelect](NULL, 0, executor, s);
  for (int i = 0; i < 3; i++) acl.aclDestroyTensor(t[i]);
  return rc;
}
/* From here on violations are expected. */
static uint64_t violations_before;
static inline void expect_violations(void) {
  emu->quiet(1);
  violations_before = emu->violations();
}
static inline void assert_violated(const char *words) {
  assert_true(emu->violations() > violations_before);
  if (!strstr(emu->violation(), words)) fail_msg("the violation is \"%s\"", emu->violation());
  emu->reset();
  violations_before = 0;
  emu->quiet(0);
}
static inline void assert_says(const char *words) {
  const char *text = acl.aclGetRecentErrMsg();
  if (!text || !strstr(text, words)) fail_msg("the message is \"%s\"", text ? text : "(null)");
}
static inline void in_thread(void *(*fn)(void *), void *ctx) {
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, fn, ctx), 0);
  pthread_join(t, NULL);
}

#define EACH(name)                                                                                                                         \
  static void test_##name(void **state) {                                                                                                  \
    (void)state;                                                                                                                           \
    npu_each_profile(body_##name);                                                                                                         \
  }
#define CAPTURING(name) /* the chips that capture */                                                                                       \
  static void test_##name(void **state) {                                                                                                  \
    (void)state;                                                                                                                           \
    for (int i = 0; i < NPU_PROFILES; i++)                                                                                                 \
      if (strcmp(npu_profiles[i], "310P-8.5") != 0) npu_profile(npu_profiles[i], body_##name);                                             \
  }

#endif
