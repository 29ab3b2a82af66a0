/* acl_check.c — compiled, never run: every function, number and size of compute/ascend/acl.h is held against the real headers, which
 * tools/acl_check.sh fetches. What differs is a compile error.
 *
 * The functions that describe tensors are in none of those headers; types of pointers to most of them are (acl_check_base.h, which the script
 * cuts out). Operators' arguments cannot be held against anything here; the script looks for their names.
 *
 * CYGNET_ACL_CHECK_WRONG=N puts in one mistake, so that the script can see that mistakes are found.
 */
#include <stdbool.h>
#include <stdint.h>

#include "acl/acl.h"
#include "acl_check_base.h"

#define CYGNET_ACL_CHECK
#include "compute/ascend/acl.h"

#define X(returns, name, args) _Static_assert(_Generic(&name, returns(*) args : 1, default : 0), #name);
ACL_REQUIRED(X)
ACL_OPTIONAL(X)
#undef X

/* Without a declaration of their own: ours become one, the wheel's types of pointers must be the same. */
#define X(returns, name, args) returns name args;
ACL_BASE(X)
#undef X
#define SAME_BASE(name) _Static_assert(_Generic(&name, _##name : 1, default : 0), #name)
SAME_BASE(aclCreateTensor);
SAME_BASE(aclCreateScalar);
SAME_BASE(aclCreateIntArray);
SAME_BASE(aclCreateTensorList);
SAME_BASE(aclDestroyTensor);
SAME_BASE(aclDestroyScalar);
SAME_BASE(aclDestroyIntArray);
SAME_BASE(aclDestroyTensorList);

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
SAME(NPU_FLOAT, ACL_FLOAT);
SAME(NPU_FLOAT16, ACL_FLOAT16);
SAME(NPU_INT8, ACL_INT8);
SAME(NPU_INT32, ACL_INT32);
SAME(NPU_UINT8, ACL_UINT8);
SAME(NPU_INT64, ACL_INT64);
SAME(NPU_DOUBLE, ACL_DOUBLE);
SAME(NPU_BOOL, ACL_BOOL);
SAME(NPU_BF16, ACL_BF16);
SAME(NPU_INT4, ACL_INT4);
SAME(NPU_ND, ACL_FORMAT_ND);
SAME(NPU_FRACTAL_NZ, ACL_FORMAT_FRACTAL_NZ);
SAME(NPU_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_FIRST);
SAME(NPU_HOST_TO_DEVICE, ACL_MEMCPY_HOST_TO_DEVICE);
SAME(NPU_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_HOST);
SAME(NPU_DEVICE_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_DEVICE);
SAME(NPU_HBM_MEM, ACL_HBM_MEM);
SAME(NPU_CAPTURE_GLOBAL, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
SAME(NPU_CAPTURE_THREAD_LOCAL, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL);
SAME(NPU_CAPTURE_RELAXED, ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
SAME(NPU_EVENT_SYNC, ACL_EVENT_SYNC);
SAME(NPU_EVENT_EXTERNAL, ACL_EVENT_EXTERNAL);
SAME(NPU_STREAM_FAST_LAUNCH, ACL_STREAM_FAST_LAUNCH);
SAME(NPU_STREAM_FAST_SYNC, ACL_STREAM_FAST_SYNC);
SAME(NPU_STOP_ON_FAILURE, ACL_STOP_ON_FAILURE);
SAME(NPU_PACKAGE_CANN, ACL_PKG_NAME_CANN);
SAME(NPU_FEATURE_TASK_UPDATE, ACL_FEATURE_TSCPU_TASK_UPDATE_SUPPORT_AIC_AIV);
SAME(NPU_DETERMINISTIC, ACL_OPT_DETERMINISTIC);
/* theirs is a static const int: no constant expression in C, so the script holds this one against the text */
_Static_assert(NPU_REPEAT_INITIALIZE == 100002, "ACL_ERROR_REPEAT_INITIALIZE");

/* Ours, which the check leaves out in favour of theirs; so their sizes are written here. */
_Static_assert(sizeof(aclError) == sizeof(int) && sizeof(aclDataType) == sizeof(int) && sizeof(aclFormat) == sizeof(int), "sizes");
_Static_assert(sizeof(aclrtMemMallocPolicy) == sizeof(unsigned) && sizeof(aclrtMemcpyKind) == sizeof(unsigned), "sizes");
_Static_assert(sizeof(aclrtMemAttr) == sizeof(unsigned) && sizeof(aclmdlRICaptureMode) == sizeof(unsigned), "sizes");
_Static_assert(sizeof(aclrtDevAttr) == sizeof(unsigned) && sizeof(aclrtDevFeatureType) == sizeof(unsigned), "sizes");
_Static_assert(sizeof(aclSysParamOpt) == sizeof(unsigned) && sizeof(aclCANNPackageName) == sizeof(unsigned), "sizes");
_Static_assert(sizeof(aclmdlRICaptureStatus) == sizeof(unsigned), "sizes");
_Static_assert(sizeof(aclrtStream) == sizeof(void *) && sizeof(aclrtEvent) == sizeof(void *) && sizeof(aclrtContext) == sizeof(void *) &&
                   sizeof(aclmdlRI) == sizeof(void *) && sizeof(aclrtTaskGrp) == sizeof(void *),
               "handles");
_Static_assert(sizeof(aclCANNPackageVersion) == 512 && offsetof(aclCANNPackageVersion, version) == 0 &&
                   sizeof(((aclCANNPackageVersion *)0)->version) == 128,
               "aclCANNPackageVersion");

#if CYGNET_ACL_CHECK_WRONG == 1 /* an argument is missing */
_Static_assert(_Generic(&aclrtFree, aclError (*)(void) : 1, default : 0), "wrong");
#elif CYGNET_ACL_CHECK_WRONG == 2 /* a type is narrower */
_Static_assert(_Generic(&aclrtMemset, aclError (*)(void *, size_t, int32_t, uint32_t) : 1, default : 0), "wrong");
#elif CYGNET_ACL_CHECK_WRONG == 3 /* an enumeration is a plain int */
_Static_assert(_Generic(&aclrtMalloc, aclError (*)(void **, size_t, int) : 1, default : 0), "wrong");
#elif CYGNET_ACL_CHECK_WRONG == 4 /* no such function */
_Static_assert(_Generic(&aclrtMalloced, aclError (*)(void **, size_t, int) : 1, default : 0), "wrong");
#elif CYGNET_ACL_CHECK_WRONG == 5 /* a number */
SAME(NPU_BF16, ACL_FLOAT16);
#endif
