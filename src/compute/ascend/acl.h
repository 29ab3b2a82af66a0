/* acl.h — CANN's C interface as far as it is used here: own declarations, looked up by name when the program runs.
 *
 * Nothing of CANN is needed to build. acl_open finds its libraries (dlopen) and fills the table of functions:
 *
 *   libascendcl.so, libacl_rt.so                                acl*, aclrt*, aclmdl*; newer CANN has the second, or both
 *   libnnopbase.so                                              tensors, scalars, lists, executors
 *   libopapi_{math,nn,transformer,legacy,cv}.so, libopapi.so     operators (aclnn.h): the first five where one of them opens, else the last
 *
 * Searched where the dynamic loader looks (LD_LIBRARY_PATH, as CANN's set_env.sh sets it), then $ASCEND_HOME_PATH/lib64,
 * /usr/local/Ascend/cann/lib64, /usr/local/Ascend/ascend-toolkit/latest/lib64.
 *
 * Functions are lists X(returns, name, arguments), so that tests/compute/acl_check.c can hold every one of them, and every number and size
 * below, against the real headers: with CYGNET_ACL_CHECK set those have declared the names. Numbers are ours by prefix (NPU_), theirs by value.
 */
#ifndef CYGNET_ACL_H
#define CYGNET_ACL_H

#include "base/base.h"
#include "base/err.h"

#ifndef CYGNET_ACL_CHECK
typedef int aclError;
typedef void *aclrtStream, *aclrtEvent, *aclrtContext, *aclmdlRI, *aclrtTaskGrp;
typedef int aclDataType, aclFormat;
typedef unsigned aclrtMemMallocPolicy, aclrtMemcpyKind, aclrtMemAttr, aclrtDevAttr, aclrtDevFeatureType, aclSysParamOpt, aclCANNPackageName;
typedef unsigned aclmdlRICaptureMode, aclmdlRICaptureStatus;
typedef struct aclCANNPackageVersion {
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
} aclCANNPackageVersion;
#endif
typedef int32_t aclnnStatus;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclOpExecutor aclOpExecutor;

enum { /* aclDataType */
       NPU_FLOAT = 0,
       NPU_FLOAT16 = 1,
       NPU_INT8 = 2,
       NPU_INT32 = 3,
       NPU_UINT8 = 4,
       NPU_INT64 = 9,
       NPU_DOUBLE = 11, /* of scalars */
       NPU_BOOL = 12,
       NPU_BF16 = 27,
       NPU_INT4 = 29,
};
enum { NPU_ND = 2, NPU_FRACTAL_NZ = 29 };                                               /* aclFormat */
enum { NPU_HUGE_FIRST = 0 };                                                            /* aclrtMemMallocPolicy */
enum { NPU_HOST_TO_DEVICE = 1, NPU_DEVICE_TO_HOST = 2, NPU_DEVICE_TO_DEVICE = 3 };      /* aclrtMemcpyKind */
enum { NPU_HBM_MEM = 1 };                                                               /* aclrtMemAttr */
enum { NPU_CAPTURE_GLOBAL = 0, NPU_CAPTURE_THREAD_LOCAL = 1, NPU_CAPTURE_RELAXED = 2 }; /* aclmdlRICaptureMode */
enum { NPU_EVENT_SYNC = 1, NPU_EVENT_EXTERNAL = 0x20 };                                 /* flags of events */
enum { NPU_STREAM_FAST_LAUNCH = 1, NPU_STREAM_FAST_SYNC = 2 };                          /* flags of streams */
enum { NPU_STOP_ON_FAILURE = 1 };                                                       /* modes of streams */
enum { NPU_PACKAGE_CANN = 0 };                                                          /* aclCANNPackageName */
enum { NPU_FEATURE_TASK_UPDATE = 1 };                                                   /* aclrtDevFeatureType */
enum { NPU_DETERMINISTIC = 0 };                                                         /* aclSysParamOpt */
enum { NPU_REPEAT_INITIALIZE = 100002 };

/* clang-format off */
#define ACL_REQUIRED(X)                                                                                                                    \
  X(aclError, aclInit, (const char *configPath))                                                                                           \
  X(aclError, aclFinalize, (void))                                                                                                         \
  X(const char *, aclGetRecentErrMsg, (void))                                                                                              \
  X(const char *, aclrtGetSocName, (void))                                                                                                 \
  X(aclError, aclrtGetDeviceCount, (uint32_t *count))                                                                                      \
  X(aclError, aclrtSetDevice, (int32_t deviceId))                                                                                          \
  X(aclError, aclrtResetDevice, (int32_t deviceId))                                                                                        \
  X(aclError, aclrtGetCurrentContext, (aclrtContext *context))                                                                             \
  X(aclError, aclrtSetCurrentContext, (aclrtContext context))                                                                              \
  X(aclError, aclrtMalloc, (void **devPtr, size_t size, aclrtMemMallocPolicy policy))                                                      \
  X(aclError, aclrtFree, (void *devPtr))                                                                                                   \
  X(aclError, aclrtMallocHost, (void **hostPtr, size_t size))                                                                              \
  X(aclError, aclrtFreeHost, (void *hostPtr))                                                                                              \
  X(aclError, aclrtGetMemInfo, (aclrtMemAttr memAttr, size_t *freeBytes, size_t *totalBytes))                                              \
  X(aclError, aclrtMemcpy, (void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind))                               \
  X(aclError, aclrtMemcpyAsync, (void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream))      \
  X(aclError, aclrtMemcpy2dAsync, (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,                  \
    aclrtMemcpyKind kind, aclrtStream stream))                                                                                             \
  X(aclError, aclrtMemsetAsync, (void *ptr, size_t maxCount, int32_t value, size_t count, aclrtStream stream))                             \
  X(aclError, aclrtCreateStreamWithConfig, (aclrtStream *stream, uint32_t priority, uint32_t flag))                                        \
  X(aclError, aclrtDestroyStream, (aclrtStream stream))                                                                                    \
  X(aclError, aclrtSynchronizeStreamWithTimeout, (aclrtStream stream, int32_t timeoutMs))                                                  \
  X(aclError, aclrtSetStreamFailureMode, (aclrtStream stream, uint64_t mode))                                                              \
  X(aclError, aclrtCreateEventWithFlag, (aclrtEvent *event, uint32_t flag))                                                                \
  X(aclError, aclrtCreateEventExWithFlag, (aclrtEvent *event, uint32_t flag))                                                              \
  X(aclError, aclrtDestroyEvent, (aclrtEvent event))                                                                                       \
  X(aclError, aclrtRecordEvent, (aclrtEvent event, aclrtStream stream))                                                                    \
  X(aclError, aclrtResetEvent, (aclrtEvent event, aclrtStream stream))                                                                     \
  X(aclError, aclrtStreamWaitEvent, (aclrtStream stream, aclrtEvent event))

/* Newer ones, and those that only tests call (the first five): NULL where CANN does not have them. */
#define ACL_OPTIONAL(X)                                                                                                                    \
  X(aclError, aclrtSynchronizeDevice, (void))                                                                                              \
  X(aclError, aclrtMemset, (void *ptr, size_t maxCount, int32_t value, size_t count))                                                      \
  X(aclError, aclrtCreateStream, (aclrtStream *stream))                                                                                    \
  X(aclError, aclrtSynchronizeStream, (aclrtStream stream))                                                                                \
  X(aclError, aclrtSynchronizeEvent, (aclrtEvent event))                                                                                   \
  X(aclError, aclsysGetCANNVersion, (aclCANNPackageName pkgName, aclCANNPackageVersion *versionStruct))                                    \
  X(aclError, aclsysGetVersionStr, (char *pkgName, char *versionStr))                                                                      \
  X(aclError, aclrtGetDeviceInfo, (uint32_t deviceId, aclrtDevAttr devAttr, int64_t *value))                                               \
  X(aclError, aclrtGetDeviceCapability, (int32_t deviceId, aclrtDevFeatureType feature, int32_t *value))                                   \
  X(aclError, aclrtSetSysParamOpt, (aclSysParamOpt opt, int64_t value))                                                                    \
  X(aclError, aclrtDestroyStreamForce, (aclrtStream stream))                                                                               \
  X(aclError, aclmdlRICaptureBegin, (aclrtStream stream, aclmdlRICaptureMode mode))                                                        \
  X(aclError, aclmdlRICaptureGetInfo, (aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *modelRI))                              \
  X(aclError, aclmdlRICaptureEnd, (aclrtStream stream, aclmdlRI *modelRI))                                                                 \
  X(aclError, aclmdlRICaptureThreadExchangeMode, (aclmdlRICaptureMode *mode))                                                              \
  X(aclError, aclmdlRIExecuteAsync, (aclmdlRI modelRI, aclrtStream stream))                                                                \
  X(aclError, aclmdlRIDestroy, (aclmdlRI modelRI))                                                                                         \
  X(aclError, aclmdlRICaptureTaskGrpBegin, (aclrtStream stream))                                                                           \
  X(aclError, aclmdlRICaptureTaskGrpEnd, (aclrtStream stream, aclrtTaskGrp *handle))                                                       \
  X(aclError, aclmdlRICaptureTaskUpdateBegin, (aclrtStream stream, aclrtTaskGrp handle))                                                   \
  X(aclError, aclmdlRICaptureTaskUpdateEnd, (aclrtStream stream))

#define ACL_BASE(X)                                                                                                                        \
  X(aclTensor *, aclCreateTensor, (const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,             \
    int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData))                              \
  X(aclScalar *, aclCreateScalar, (void *value, aclDataType dataType))                                                                     \
  X(aclIntArray *, aclCreateIntArray, (const int64_t *value, uint64_t size))                                                               \
  X(aclTensorList *, aclCreateTensorList, (const aclTensor *const *value, uint64_t size))                                                  \
  X(aclnnStatus, aclDestroyTensor, (const aclTensor *))                                                                                    \
  X(aclnnStatus, aclDestroyScalar, (const aclScalar *))                                                                                    \
  X(aclnnStatus, aclDestroyIntArray, (const aclIntArray *))                                                                                \
  X(aclnnStatus, aclDestroyTensorList, (const aclTensorList *))                                                                            \
  X(aclnnStatus, aclDestroyAclOpExecutor, (aclOpExecutor *))
/* clang-format on */

#include "compute/ascend/aclnn.h"

enum acl_op { /* operators by number, for messages and counts */
#define X(op, ...) ACL_OP_##op,
              ACLNN_OPERATORS(X)
#undef X
                  ACL_OP_COUNT
};
typedef aclnnStatus (*acl_issue_fn)(void *workspace, uint64_t workspace_bytes, aclOpExecutor *executor, aclrtStream stream);

struct acl { /* filled by acl_open */
#define X(returns, name, args) returns(*name) args;
  ACL_REQUIRED(X)
  ACL_OPTIONAL(X)
  ACL_BASE(X)
#undef X
#define X(op, ...) aclnnStatus (*op)(__VA_ARGS__, uint64_t * workspace_bytes, aclOpExecutor * *executor); /* phase 1; NULL: CANN lacks it */
  ACLNN_OPERATORS(X)
#undef X
  acl_issue_fn issue[ACL_OP_COUNT]; /* phase 2 */
  void *libraries[8];
  int n_libraries;
  char where[256]; /* the folder of the runtime's library */
};

/* Open the libraries, look up everything, aclInit. A sentence says what was looked for where when there is nothing, or which required
 * functions are missing. */
int acl_open(struct acl *a, struct err *e);
void acl_close(struct acl *a); /* aclFinalize, when this was the last one open; the libraries stay loaded */
void acl_park(struct acl *a);  /* close, but leave CANN running for the next acl_open */
const char *acl_op_name(enum acl_op op);
/* What a return code means, with its number: "107002: no current context". */
const char *acl_error_text(const struct acl *a, int code, char text[256]);

#endif
