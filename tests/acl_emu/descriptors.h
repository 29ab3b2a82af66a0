/* descriptors.h — what stands behind CANN's handles of tensors, scalars, arrays, lists and executors. */
#ifndef ACL_EMU_DESCRIPTORS_H
#define ACL_EMU_DESCRIPTORS_H

#include "acl_emu/core.h"

struct array { /* arrays and lists; owned */
  struct object o;
  void *values;
  uint64_t n;
};
struct aclTensor {
  struct object o;
  void *nothing; /* where an array has its values: NULL */
  struct emu_tensor v;
};
struct aclScalar {
  struct object o;
  void *nothing;
  int type;
  _Alignas(8) char bytes[8];
};
struct aclOpExecutor {
  struct object o;
  const char *op;
  struct closure *closure;
  const aclTensor *from[EMU_TENSORS_MAX]; /* what must be alive between the phases */
  uint64_t serial[EMU_TENSORS_MAX];
  bool used, repeatable, readdressed;
};

#endif
