/* tensor.c — descriptors: tensors, scalars, arrays, lists; what types are called, and how views lie to one another. */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_emu/descriptors.h"

/* ---- types -------------------------------------------------------------------------------------------------------------------- */

int emu_element_bits(int type) {
  switch (type) {
  case EMU_INT4: return 4;
  case EMU_INT8:
  case EMU_UINT8:
  case EMU_BOOL: return 8;
  case EMU_FLOAT16:
  case EMU_BF16:
  case EMU_INT16:
  case EMU_UINT16: return 16;
  case EMU_FLOAT:
  case EMU_INT32:
  case EMU_UINT32: return 32;
  case EMU_INT64:
  case EMU_UINT64:
  case EMU_DOUBLE: return 64;
  default: return 0;
  }
}
const char *emu_type_name(int type) {
  switch (type) {
  case EMU_FLOAT: return "FLOAT";
  case EMU_FLOAT16: return "FLOAT16";
  case EMU_INT8: return "INT8";
  case EMU_INT32: return "INT32";
  case EMU_UINT8: return "UINT8";
  case EMU_INT16: return "INT16";
  case EMU_UINT16: return "UINT16";
  case EMU_UINT32: return "UINT32";
  case EMU_INT64: return "INT64";
  case EMU_UINT64: return "UINT64";
  case EMU_DOUBLE: return "DOUBLE";
  case EMU_BOOL: return "BOOL";
  case EMU_BF16: return "BF16";
  case EMU_INT4: return "INT4";
  default: return "a type that is not known";
  }
}
bool emu_is_float(int type) { return type == EMU_FLOAT || type == EMU_FLOAT16 || type == EMU_BF16 || type == EMU_DOUBLE; }
bool emu_is_int(int type) { return emu_element_bits(type) && !emu_is_float(type) && type != EMU_BOOL; }

const char *emu_text(const struct emu_tensor *t) {
  static _Thread_local char ring[16][160];
  static _Thread_local unsigned at;
  char *s = ring[at++ % 16];
  size_t n = (size_t)snprintf(s, 160, "%s [", emu_type_name(t->type));
  for (int i = 0; i < t->n_dims; i++) n += (size_t)snprintf(s + n, 160 - n, "%s%lld", i ? "," : "", (long long)t->dims[i]);
  n += (size_t)snprintf(s + n, 160 - n, "]");
  if (!t->contiguous) {
    n += (size_t)snprintf(s + n, 160 - n, " with strides [");
    for (int i = 0; i < t->n_dims && n < 120; i++) n += (size_t)snprintf(s + n, 160 - n, "%s%lld", i ? "," : "", (long long)t->strides[i]);
    snprintf(s + n, 160 - n, "]");
  }
  return s;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------------ */

bool emu_same_shape(const struct emu_tensor *a, const struct emu_tensor *b) {
  if (a->n_dims != b->n_dims) return false;
  for (int i = 0; i < a->n_dims; i++)
    if (a->dims[i] != b->dims[i]) return false;
  return true;
}
bool emu_is_shape(const struct emu_tensor *t, int n_dims, ...) {
  bool same = t->n_dims == n_dims;
  va_list v;
  va_start(v, n_dims);
  for (int i = 0; i < n_dims; i++) {
    int64_t want = va_arg(v, int64_t);
    same = same && (want < 0 || t->dims[i] == want);
  }
  va_end(v);
  return same;
}
bool emu_broadcasts_to(const struct emu_tensor *from, const struct emu_tensor *to) {
  if (from->n_dims > to->n_dims) return false;
  for (int i = 0; i < from->n_dims; i++) {
    int64_t d = from->dims[from->n_dims - 1 - i];
    if (d != 1 && d != to->dims[to->n_dims - 1 - i]) return false;
  }
  return true;
}
static bool is_contiguous(const struct emu_tensor *t) {
  int64_t expected = 1;
  for (int i = t->n_dims - 1; i >= 0; i--) {
    if (t->dims[i] != 1 && t->strides[i] != expected) return false;
    expected *= t->dims[i];
  }
  return true;
}
struct emu_tensor emu_broadcast(const struct emu_tensor *from, const struct emu_tensor *to) {
  struct emu_tensor t = *from;
  t.n_dims = to->n_dims;
  t.n = to->n;
  for (int i = 0; i < to->n_dims; i++) {
    int k = i - (to->n_dims - from->n_dims);
    t.dims[i] = to->dims[i];
    t.strides[i] = k >= 0 && from->dims[k] == to->dims[i] ? from->strides[k] : 0;
  }
  t.contiguous = is_contiguous(&t);
  return t;
}
bool emu_is_transposed(const struct emu_tensor *t) {
  return t->n_dims >= 2 && t->strides[t->n_dims - 2] == 1 && t->strides[t->n_dims - 1] == t->dims[t->n_dims - 2] &&
         (t->dims[t->n_dims - 1] > 1 || t->dims[t->n_dims - 2] == 1);
}
/* The bytes that the view may touch. False: none. */
bool tensor_range(const struct emu_tensor *t, uint64_t *address, size_t *n_bytes) {
  int64_t lo = t->offset, hi = t->offset;
  int bits = emu_element_bits(t->type);
  if (!t->n || !t->address) return false;
  for (int i = 0; i < t->n_dims; i++)
    if (t->strides[i] < 0) lo += (t->dims[i] - 1) * t->strides[i];
    else hi += (t->dims[i] - 1) * t->strides[i];
  if (t->format == EMU_NZ) { /* the whole storage */
    int64_t n = 1;
    for (int i = 0; i < t->n_storage_dims; i++) n *= t->storage_dims[i];
    lo = t->offset;
    hi = t->offset + n - 1;
  }
  int64_t first = lo * bits / 8, end = ((hi + 1) * bits + 7) / 8;
  *address = t->address + (uint64_t)first;
  *n_bytes = (size_t)(end - first);
  return true;
}
bool emu_overlap(const struct emu_tensor *a, const struct emu_tensor *b) {
  uint64_t x, y;
  size_t n, m;
  return tensor_range(a, &x, &n) && tensor_range(b, &y, &m) && x < y + m && y < x + n;
}

/* ---- creating and destroying ------------------------------------------------------------------------------------------------------- */

/* A description of ours from the caller's; false when it is not one. */
static bool describe(struct emu_tensor *v, const int64_t *dims, uint64_t n_dims, int type, const int64_t *strides, int64_t offset,
                     int format, const int64_t *storage, uint64_t n_storage, const void *data) {
  const int64_t most = (int64_t)1 << 46;
  *v = (struct emu_tensor){
      .type = type, .format = format, .n_dims = (int)n_dims, .offset = offset, .address = (uint64_t)(uintptr_t)data, .n = 1};
  if (n_dims > EMU_DIMS_MAX || n_storage > EMU_DIMS_MAX || (n_dims && !dims) || (n_storage && !storage))
    return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: %llu view dims, %llu storage dims", (unsigned long long)n_dims,
                   (unsigned long long)n_storage),
           false;
  for (int i = 0; i < (int)n_dims; i++) {
    if (dims[i] < 0 || (dims[i] && v->n > most / dims[i]))
      return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: dim %d is %lld", i, (long long)dims[i]), false;
    v->n *= dims[i];
    v->dims[i] = dims[i];
  }
  int64_t next = 1;
  for (int i = (int)n_dims - 1; i >= 0; i--) {
    v->strides[i] = strides ? strides[i] : next;
    next *= dims[i];
    if (v->strides[i] > most || v->strides[i] < -most)
      return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: stride %d is %lld", i, (long long)v->strides[i]), false;
  }
  v->n_storage_dims = (int)n_storage;
  int64_t room = 1;
  for (int i = 0; i < (int)n_storage; i++) {
    if (storage[i] < 0 || (storage[i] && room > most / storage[i]))
      return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: storage dim %d is %lld", i, (long long)storage[i]), false;
    v->storage_dims[i] = storage[i];
    room *= storage[i];
  }
  v->contiguous = is_contiguous(v);
  if (offset < 0 || offset > most) return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: offset %lld", (long long)offset), false;
  /* the view must lie inside the storage that the caller describes */
  if (v->n && n_storage && format != EMU_NZ) {
    int64_t hi = offset, lo = offset;
    for (int i = 0; i < (int)n_dims; i++)
      if (v->strides[i] >= 0) hi += (v->dims[i] - 1) * v->strides[i];
      else lo += (v->dims[i] - 1) * v->strides[i];
    if (lo < 0 || hi >= room)
      return emu_say(EMU_PARAM_INVALID, "aclCreateTensor: %s at offset %lld reaches element %lld of a storage of %lld", emu_text(v),
                     (long long)offset, (long long)hi, (long long)room),
             false;
  }
  return true;
}

EMU_API aclTensor *emu_aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                                       int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                                       void *tensorData);
EMU_API aclTensor *emu_aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                                       int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                                       void *tensorData) {
  struct emu_tensor v;
  if (emu_enter("aclCreateTensor", 0)) return NULL;
  if (!describe(&v, viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, tensorData)) {
    emu_leave(0);
    return NULL;
  }
  aclTensor *t = object_new(K_TENSOR, sizeof *t);
  t->v = v;
  emu_leave(0);
  return t;
}
EMU_API aclnnStatus emu_aclInitTensor(aclTensor *t, const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                                      const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims,
                                      uint64_t storageDimsNum, void *addr);
EMU_API aclnnStatus emu_aclInitTensor(aclTensor *t, const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                                      const int64_t *stride, int64_t offset, aclFormat format, const int64_t *storageDims,
                                      uint64_t storageDimsNum, void *addr) {
  struct emu_tensor v;
  int rc = emu_enter("aclInitTensor", 0);
  if (rc) return rc;
  if (!object_get(K_TENSOR, t)) return emu_leave(emu_say(EMU_PARAM_INVALID, "aclInitTensor: not a live tensor"));
  if (!describe(&v, viewDims, viewDimsNum, dataType, stride, offset, format, storageDims, storageDimsNum, addr))
    return emu_leave(EMU_PARAM_INVALID);
  t->v = v;
  return emu_leave(0);
}

EMU_API aclScalar *emu_aclCreateScalar(void *value, aclDataType dataType);
EMU_API aclScalar *emu_aclCreateScalar(void *value, aclDataType dataType) {
  int bits = emu_element_bits(dataType);
  if (emu_enter("aclCreateScalar", 0)) return NULL;
  if (!value || bits < 8) {
    emu_leave(emu_say(EMU_PARAM_INVALID, "aclCreateScalar: no value, or a type that scalars do not have"));
    return NULL;
  }
  aclScalar *s = object_new(K_SCALAR, sizeof *s);
  s->type = dataType;
  memcpy(s->bytes, value, (size_t)bits / 8);
  emu_leave(0);
  return s;
}

static void *array_new(const char *name, enum kind kind, const void *value, uint64_t n, size_t element) {
  if (emu_enter(name, 0)) return NULL;
  if ((n && !value) || n > (uint64_t)1 << 32) {
    emu_leave(emu_say(EMU_PARAM_INVALID, "%s: no values", name));
    return NULL;
  }
  struct array *a = object_new(kind, sizeof *a);
  a->n = n;
  a->values = malloc((size_t)n * element + 1);
  if (!a->values) abort();
  if (n) memcpy(a->values, value, (size_t)n * element);
  emu_leave(0);
  return a;
}
static aclnnStatus array_drop(const char *name, enum kind kind, const void *handle) {
  int rc = emu_enter(name, 0);
  if (rc) return rc;
  if (!handle) return emu_leave(0);
  struct array *a = object_get(kind, handle);
  if (!a) return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: %p is not a live object (destroyed twice?)", name, handle));
  free(a->values);
  object_drop(a);
  return emu_leave(0);
}

EMU_API aclIntArray *emu_aclCreateIntArray(const int64_t *value, uint64_t size);
EMU_API aclIntArray *emu_aclCreateIntArray(const int64_t *value, uint64_t size) {
  return array_new("aclCreateIntArray", K_INTS, value, size, sizeof *value);
}
EMU_API aclFloatArray *emu_aclCreateFloatArray(const float *value, uint64_t size);
EMU_API aclFloatArray *emu_aclCreateFloatArray(const float *value, uint64_t size) {
  return array_new("aclCreateFloatArray", K_FLOATS, value, size, sizeof *value);
}
EMU_API aclBoolArray *emu_aclCreateBoolArray(const bool *value, uint64_t size);
EMU_API aclBoolArray *emu_aclCreateBoolArray(const bool *value, uint64_t size) {
  return array_new("aclCreateBoolArray", K_BOOLS, value, size, sizeof *value);
}
EMU_API aclnnStatus emu_aclDestroyIntArray(const aclIntArray *a);
EMU_API aclnnStatus emu_aclDestroyIntArray(const aclIntArray *a) { return array_drop("aclDestroyIntArray", K_INTS, a); }
EMU_API aclnnStatus emu_aclDestroyFloatArray(const aclFloatArray *a);
EMU_API aclnnStatus emu_aclDestroyFloatArray(const aclFloatArray *a) { return array_drop("aclDestroyFloatArray", K_FLOATS, a); }
EMU_API aclnnStatus emu_aclDestroyBoolArray(const aclBoolArray *a);
EMU_API aclnnStatus emu_aclDestroyBoolArray(const aclBoolArray *a) { return array_drop("aclDestroyBoolArray", K_BOOLS, a); }
EMU_API aclnnStatus emu_aclDestroyScalar(const aclScalar *s);
EMU_API aclnnStatus emu_aclDestroyScalar(const aclScalar *s) { return array_drop("aclDestroyScalar", K_SCALAR, s); }
EMU_API aclnnStatus emu_aclDestroyTensor(const aclTensor *t);
EMU_API aclnnStatus emu_aclDestroyTensor(const aclTensor *t) { return array_drop("aclDestroyTensor", K_TENSOR, t); }

static void *list_new(const char *name, enum kind kind, enum kind member, const void *const *value, uint64_t n) {
  if (emu_enter(name, 0)) return NULL;
  bool good = n == 0 || value;
  for (uint64_t i = 0; good && i < n; i++)
    if (value[i] && !object_get(member, value[i])) good = false;
  if (!good || n > (uint64_t)1 << 32) {
    emu_leave(emu_say(EMU_PARAM_INVALID, "%s: a member is not a live object", name));
    return NULL;
  }
  struct array *a = object_new(kind, sizeof *a);
  a->n = n;
  a->values = malloc((size_t)n * sizeof *value + 1);
  if (!a->values) abort();
  if (n) memcpy(a->values, value, (size_t)n * sizeof *value);
  emu_leave(0);
  return a;
}
/* Destroying a list destroys its members. */
static aclnnStatus list_drop(const char *name, enum kind kind, enum kind member, const void *handle) {
  int rc = emu_enter(name, 0);
  if (rc) return rc;
  if (!handle) return emu_leave(0);
  struct array *a = object_get(kind, handle);
  if (!a) return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: %p is not a live object (destroyed twice?)", name, handle));
  void **members = a->values;
  for (uint64_t i = 0; i < a->n; i++) {
    void *m = members[i] ? object_get(member, members[i]) : NULL;
    if (m) object_drop(m);
    else if (members[i]) rc = emu_say(EMU_PARAM_INVALID, "%s: member %llu was destroyed before its list", name, (unsigned long long)i);
  }
  free(a->values);
  object_drop(a);
  return emu_leave(rc);
}
EMU_API aclTensorList *emu_aclCreateTensorList(const aclTensor *const *value, uint64_t size);
EMU_API aclTensorList *emu_aclCreateTensorList(const aclTensor *const *value, uint64_t size) {
  return list_new("aclCreateTensorList", K_TENSORS, K_TENSOR, (const void *const *)value, size);
}
EMU_API aclScalarList *emu_aclCreateScalarList(const aclScalar *const *value, uint64_t size);
EMU_API aclScalarList *emu_aclCreateScalarList(const aclScalar *const *value, uint64_t size) {
  return list_new("aclCreateScalarList", K_SCALARS, K_SCALAR, (const void *const *)value, size);
}
EMU_API aclnnStatus emu_aclDestroyTensorList(const aclTensorList *l);
EMU_API aclnnStatus emu_aclDestroyTensorList(const aclTensorList *l) { return list_drop("aclDestroyTensorList", K_TENSORS, K_TENSOR, l); }
EMU_API aclnnStatus emu_aclDestroyScalarList(const aclScalarList *l);
EMU_API aclnnStatus emu_aclDestroyScalarList(const aclScalarList *l) { return list_drop("aclDestroyScalarList", K_SCALARS, K_SCALAR, l); }

/* ---- asking ---------------------------------------------------------------------------------------------------------------------------- */

#define ASK(handle, kind_, name_)                                                                                                          \
  int rc = emu_enter(name_, 0);                                                                                                            \
  if (rc) return rc;                                                                                                                       \
  if (!handle) return emu_leave(emu_say(EMU_NULLPTR, name_ ": NULL"));                                                                     \
  if (!object_get(kind_, handle)) return emu_leave(emu_say(EMU_PARAM_INVALID, name_ ": not a live object"));

static aclnnStatus give_dims(const int64_t *from, int n_dims, int64_t **dims, uint64_t *n) {
  if (!dims || !n) return emu_leave(emu_say(EMU_NULLPTR, "no place for the dims"));
  *n = (uint64_t)n_dims;
  *dims = malloc(sizeof **dims * (size_t)(n_dims + 1)); /* the caller's to free, as with the real one */
  if (!*dims) abort();
  memcpy(*dims, from, sizeof **dims * (size_t)n_dims);
  return emu_leave(0);
}
EMU_API aclnnStatus emu_aclGetViewShape(const aclTensor *t, int64_t **dims, uint64_t *n);
EMU_API aclnnStatus emu_aclGetViewShape(const aclTensor *t, int64_t **dims, uint64_t *n) {
  ASK(t, K_TENSOR, "aclGetViewShape")
  return give_dims(t->v.dims, t->v.n_dims, dims, n);
}
EMU_API aclnnStatus emu_aclGetStorageShape(const aclTensor *t, int64_t **dims, uint64_t *n);
EMU_API aclnnStatus emu_aclGetStorageShape(const aclTensor *t, int64_t **dims, uint64_t *n) {
  ASK(t, K_TENSOR, "aclGetStorageShape")
  return give_dims(t->v.storage_dims, t->v.n_storage_dims, dims, n);
}
EMU_API aclnnStatus emu_aclGetViewStrides(const aclTensor *t, int64_t **strides, uint64_t *n);
EMU_API aclnnStatus emu_aclGetViewStrides(const aclTensor *t, int64_t **strides, uint64_t *n) {
  ASK(t, K_TENSOR, "aclGetViewStrides")
  return give_dims(t->v.strides, t->v.n_dims, strides, n);
}
#define GIVE(name_, type_, handle_type, kind_, value)                                                                                      \
  EMU_API aclnnStatus emu_##name_(const handle_type *t, type_ *out);                                                                       \
  EMU_API aclnnStatus emu_##name_(const handle_type *t, type_ *out) {                                                                      \
    ASK(t, kind_, #name_)                                                                                                                  \
    if (!out) return emu_leave(emu_say(EMU_NULLPTR, #name_ ": no place for the answer"));                                                  \
    *out = value;                                                                                                                          \
    return emu_leave(0);                                                                                                                   \
  }
GIVE(aclGetViewOffset, int64_t, aclTensor, K_TENSOR, t->v.offset)
GIVE(aclGetFormat, aclFormat, aclTensor, K_TENSOR, t->v.format)
GIVE(aclGetDataType, aclDataType, aclTensor, K_TENSOR, t->v.type)
GIVE(aclGetRawTensorAddr, void *, aclTensor, K_TENSOR, (void *)(uintptr_t)t->v.address)
GIVE(aclGetIntArraySize, uint64_t, aclIntArray, K_INTS, ((const struct array *)(const void *)t)->n)
GIVE(aclGetTensorListSize, uint64_t, aclTensorList, K_TENSORS, ((const struct array *)(const void *)t)->n)
EMU_API aclnnStatus emu_aclSetRawTensorAddr(aclTensor *t, void *address);
EMU_API aclnnStatus emu_aclSetRawTensorAddr(aclTensor *t, void *address) {
  ASK(t, K_TENSOR, "aclSetRawTensorAddr")
  t->v.address = (uint64_t)(uintptr_t)address;
  return emu_leave(0);
}
