/* emu.h — how an operator of the emulated NPU is written; op_*.c and attn_*.c include this and nothing else of the emulator.
 *
 * The emulator is one library, libacl_emu.so, whose functions are called emu_NAME. For every profile (a chip with a version of CANN) thin
 * libraries libascendcl.so, libnnopbase.so, libopapi*.so export NAME for what that profile has (symbols.txt) and jump to emu_NAME.
 *
 * An operator is one function for phase 1 and one that computes; phase 2 is the same for all and made by EMU_OPERATOR:
 *
 *   struct muls { double factor; };
 *   static void muls_run(struct emu_call *c, const void *ctx) {
 *     const struct muls *m = ctx;
 *     for (int64_t i = 0; i < c->t[0].n; i++) emu_set(&c->t[1], i, emu_get(&c->t[0], i) * m->factor);
 *   }
 *   EMU_OPERATOR(Muls, const aclTensor *self, const aclScalar *other, aclTensor *out) {
 *     EMU_PLAN(p, "Muls");
 *     int x = emu_reads(p, "self", self), y = emu_writes(p, "out", out);
 *     emu_scalar(p, "other", other, &m.factor);
 *     emu_check(p, p->ok && emu_same_shape(&p->t[x], &p->t[y]), 161002, "out is %s, self is %s", emu_text(&p->t[y]), emu_text(&p->t[x]));
 *     return emu_finish(p, muls_run, &m, sizeof m, 0);
 *   }
 *
 * Plan: reads, writes and checks are sticky: the first that fails is what phase 1 returns, later ones do nothing (and reads then give slot 0, an
 * empty tensor, so that fields may be looked at without asking). The snapshot of a tensor is taken in phase 1: shape, strides, address.
 * The operator must look at int arrays, scalars and strings in phase 1 and keep copies in its context.
 *
 * Run: called on the device's thread, once for each time the operator is executed (a captured one many times), without any lock. c->t are
 * the tensors of the plan in order; their data may be reached only there. A fault (index out of range) is reported with emu_fault: the stream's next
 * wait returns it. Poison: memory that nobody wrote is 0xff bytes (NaN, -1).
 *
 * Numerics: elements as stored, float32 sums in ascending order (emu_dot), results rounded once on storing.
 */
#ifndef ACL_EMU_EMU_H
#define ACL_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EMU_API               __attribute__((visibility("default")))
#define EMU_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* ---- CANN's names (own declarations) ---------------------------------------------------------------------------------------- */

typedef int aclError;
typedef int32_t aclnnStatus;
typedef int aclDataType, aclFormat;
typedef void *aclrtStream;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclScalarList aclScalarList;
typedef struct aclOpExecutor aclOpExecutor;

enum emu_type { /* aclDataType */
                EMU_UNDEFINED = -1,
                EMU_FLOAT = 0,
                EMU_FLOAT16 = 1,
                EMU_INT8 = 2,
                EMU_INT32 = 3,
                EMU_UINT8 = 4,
                EMU_INT16 = 6,
                EMU_UINT16 = 7,
                EMU_UINT32 = 8,
                EMU_INT64 = 9,
                EMU_UINT64 = 10,
                EMU_DOUBLE = 11,
                EMU_BOOL = 12,
                EMU_BF16 = 27,
                EMU_INT4 = 29, /* two in a byte, the low half first; strides and indices count halves */
};
enum emu_format { EMU_ND = 2, EMU_NCHW = 0, EMU_NZ = 29 }; /* aclFormat */
enum {                                                     /* codes that operators use */
       EMU_NULLPTR = 161001,
       EMU_PARAM_INVALID = 161002,
       EMU_INFERSHAPE = 561001,
       EMU_TILING = 561002,
       EMU_FIND_KERNEL = 561003,
       EMU_AICORE_EXCEPTION = 507015,
       EMU_VECTOR_CORE_EXCEPTION = 507035,
};

/* ---- profile, modes ----------------------------------------------------------------------------------------------------------- */

enum emu_chip { EMU_A2, EMU_A3, EMU_310P };
enum emu_chip emu_chip(void);
int emu_cann(void); /* 801, 805, 901 */
/* Faults of the field that can be switched on. */
enum emu_defect {
  EMU_DEFECT_MASK_512 = 1,       /* fused attention, one query: a mask [1,1,1,S] is not looked at from key 512 on */
  EMU_DEFECT_PSE_SHARED = 2,     /* fused attention, one query: pseShift [1,1,1,S] gives wrong results, [1,N,1,S] does not */
  EMU_DEFECT_UNIFORM = 4,        /* fused attention, TND, sparse 0 without mask, fp16: the plain average of the values */
  EMU_DEFECT_PSE_INF = 8,        /* -inf in pseShift gives NaN */
  EMU_DEFECT_BAND_OFF = 16,      /* bands of sparse 4 are one key too narrow */
  EMU_DEFECT_EMPTY_GARBAGE = 32, /* 0 keys leave the output as it was */
};
bool emu_defect(enum emu_defect d);
bool emu_other_order(void); /* sums in another order than ascending (emu_dot and emu_sum do it) */

/* ---- tensors ------------------------------------------------------------------------------------------------------------------ */

enum { EMU_DIMS_MAX = 8, EMU_TENSORS_MAX = 64 };
struct emu_tensor { /* a snapshot of an aclTensor; name is the parameter's */
  const char *name;
  int type, format, n_dims;
  int64_t dims[EMU_DIMS_MAX], strides[EMU_DIMS_MAX]; /* elements */
  int64_t offset;                                    /* elements from the base address */
  int64_t n;                                         /* elements of the view */
  int n_storage_dims;
  int64_t storage_dims[EMU_DIMS_MAX];
  bool contiguous;  /* the view, in row-major order, dimensions of 1 aside */
  bool writes;      /* role */
  uint64_t address; /* device address of the storage's start; 0: no data */
  char *data;       /* run only: where element 0 of the view can be reached (INT4: offset is even) */
};
int emu_element_bits(int type);                   /* 4 for INT4; 0: unknown */
const char *emu_type_name(int type);              /* "BF16" */
const char *emu_text(const struct emu_tensor *t); /* "BF16 [2,3]"; static ring of 16 for each thread */
bool emu_is_float(int type);                      /* FLOAT, FLOAT16, BF16, DOUBLE */
bool emu_is_int(int type);                        /* integers, BOOL aside */
bool emu_same_shape(const struct emu_tensor *a, const struct emu_tensor *b);
bool emu_is_shape(const struct emu_tensor *t, int n_dims, ...);                     /* int64_t each (cast!), -1: any */
bool emu_broadcasts_to(const struct emu_tensor *from, const struct emu_tensor *to); /* numpy's rule */
/* from seen with the shape of to: strides 0 where it repeats. Requires emu_broadcasts_to. */
struct emu_tensor emu_broadcast(const struct emu_tensor *from, const struct emu_tensor *to);
bool emu_overlap(const struct emu_tensor *a, const struct emu_tensor *b); /* the byte ranges that they may touch */
/* Inner dimensions transposed: the last two dims have strides {1, rows}. */
bool emu_is_transposed(const struct emu_tensor *t);

/* Element at flat index i of the view in row-major order, or at n_dims indices. Run only. */
int64_t emu_at(const struct emu_tensor *t, int64_t i);               /* flat -> elements from data */
int64_t emu_index(const struct emu_tensor *t, const int64_t *index); /* indices -> elements from data */
double emu_load(const struct emu_tensor *t, int64_t at);             /* at: elements from data */
void emu_store(const struct emu_tensor *t, int64_t at, double x);    /* rounds to nearest even; integers truncate and saturate */
int64_t emu_load_int(const struct emu_tensor *t, int64_t at);        /* exact for INT64 */
void emu_store_int(const struct emu_tensor *t, int64_t at, int64_t x);
static inline double emu_get(const struct emu_tensor *t, int64_t i) { return emu_load(t, emu_at(t, i)); }
static inline void emu_set(const struct emu_tensor *t, int64_t i, double x) { emu_store(t, emu_at(t, i), x); }
static inline int64_t emu_get_int(const struct emu_tensor *t, int64_t i) { return emu_load_int(t, emu_at(t, i)); }
static inline void emu_set_int(const struct emu_tensor *t, int64_t i, int64_t x) { emu_store_int(t, emu_at(t, i), x); }
/* n elements from `at` on, `stride` apart, as floats and back; fast where stride is 1. */
void emu_load_row(const struct emu_tensor *t, int64_t at, int64_t stride, int64_t n, float *out);
void emu_store_row(const struct emu_tensor *t, int64_t at, int64_t stride, int64_t n, const float *x);

/* One float to the bits of bf16 or fp16 and back. */
uint16_t emu_to_bf16(float x);
uint16_t emu_to_fp16(float x);
float emu_from_bf16(uint16_t x);
float emu_from_fp16(uint16_t x);
float emu_round(int type, float x); /* as stored in type and read again */

/* float32, ascending; from the end in eight strands when emu_other_order */
float emu_dot(const float *a, const float *b, int64_t n);
float emu_sum(const float *a, int64_t n);

/* ---- phase 1 -------------------------------------------------------------------------------------------------------------------- */

struct emu_plan {
  const char *op;
  bool ok;
  aclnnStatus code;
  bool not_a_kernel; /* set it for operators that are not one AI-core kernel: they may not be in a task group */
  uint64_t *workspace_size;
  aclOpExecutor **executor;
  int n; /* tensors; t[0] of a failed plan is an empty tensor */
  struct emu_tensor t[EMU_TENSORS_MAX];
  const aclTensor *from[EMU_TENSORS_MAX];
  uint64_t serial[EMU_TENSORS_MAX];
};
/* At the start of phase 1: `struct emu_plan *p`, begun. */
#define EMU_PLAN(p, name)                                                                                                                  \
  struct emu_plan p##_storage, *p = &p##_storage;                                                                                          \
  emu_begin(p, name, workspaceSize, executor)
void emu_begin(struct emu_plan *p, const char *op, uint64_t *workspace_size, aclOpExecutor **executor);
/* Unless `good`, phase 1 returns code with this text. True when the plan is still good. */
bool emu_check(struct emu_plan *p, bool good, aclnnStatus code, const char *fmt, ...) EMU_PRINTF(4, 5);
bool emu_refuse(struct emu_plan *p, aclnnStatus code, const char *fmt, ...) EMU_PRINTF(3, 4); /* always false */
/* Add a tensor; returns its slot. NULL: 161001; not a live tensor, base address not 32-byte aligned, or no data: 161002.
 * A tensor that is read and written (in place, a cache) is added once, with emu_updates. Outputs may overlap nothing else: checked by emu_finish. */
int emu_reads(struct emu_plan *p, const char *name, const aclTensor *t);
int emu_writes(struct emu_plan *p, const char *name, const aclTensor *t);
int emu_updates(struct emu_plan *p, const char *name, const aclTensor *t);
/* -1 for NULL. */
int emu_reads_optional(struct emu_plan *p, const char *name, const aclTensor *t);
int emu_writes_optional(struct emu_plan *p, const char *name, const aclTensor *t);
/* All members, in consecutive slots from the returned one; *count of them. NULL or empty: 161001. */
int emu_reads_list(struct emu_plan *p, const char *name, const aclTensorList *l, int *count);
int emu_writes_list(struct emu_plan *p, const char *name, const aclTensorList *l, int *count);
int emu_reads_list_optional(struct emu_plan *p, const char *name, const aclTensorList *l, int *count); /* -1 and 0 for NULL or empty */
/* Must be absent: optional arguments that this operator of the emulator does not do are refused, 561002. */
bool emu_absent(struct emu_plan *p, const char *name, const void *argument);
bool emu_scalar(struct emu_plan *p, const char *name, const aclScalar *s, double *x); /* NULL: 161001 */
int emu_scalar_type(const aclScalar *s);                                              /* after emu_scalar was true */
/* The values stay the array's: copy. NULL: 161001 and 0 values. */
const int64_t *emu_ints(struct emu_plan *p, const char *name, const aclIntArray *a, int64_t *n);
const int64_t *emu_ints_optional(struct emu_plan *p, const char *name, const aclIntArray *a, int64_t *n); /* NULL and 0 */
/* The type must be one of a list that ends with EMU_UNDEFINED: 161002. BF16 is refused on chips that lack it wherever it appears. */
bool emu_types(struct emu_plan *p, int slot, const int *types);
#define EMU_TYPES(p, slot, ...) emu_types((p), (slot), (const int[]){__VA_ARGS__, EMU_UNDEFINED})
bool emu_needs_contiguous(struct emu_plan *p, int slot, aclnnStatus code);
/* Formats other than ND (NCHW and its like are taken for ND) are refused by emu_reads unless allowed right before: */
void emu_allow_nz(struct emu_plan *p, const aclTensor *t);
/* This chip has no kernel for it: 561003. */
bool emu_needs_chip(struct emu_plan *p, bool supported);
/* For the run: n bytes that live as long as the executor (lengths; copied). */
void *emu_keep(struct emu_plan *p, const void *data, size_t n);

struct emu_call;
typedef void (*emu_run_fn)(struct emu_call *c, const void *ctx);
/* The end of phase 1. ctx is copied. workspace_bytes: what the operator asks for (give some that depends on the shapes where the real ones do:
 * the emulator checks that callers provide it; run may use it as scratch). */
aclnnStatus emu_finish(struct emu_plan *p, emu_run_fn run, const void *ctx, size_t ctx_bytes, uint64_t workspace_bytes);

#define EMU_OPERATOR(name, ...)                                                                                                            \
  EMU_API aclnnStatus emu_aclnn##name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);               \
  EMU_API aclnnStatus emu_aclnn##name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream) {              \
    return emu_launch(#name, workspace, workspaceSize, executor, stream);                                                                  \
  }                                                                                                                                        \
  EMU_API aclnnStatus emu_aclnn##name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize, aclOpExecutor **executor);                   \
  EMU_API aclnnStatus emu_aclnn##name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize, aclOpExecutor **executor)
aclnnStatus emu_launch(const char *op, void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream);

/* ---- run ------------------------------------------------------------------------------------------------------------------------ */

struct emu_call {
  const char *op;
  int n;
  const struct emu_tensor *t;
  void *workspace; /* reachable; workspace_bytes of the plan */
  uint64_t workspace_bytes;
  void *internal;
};
/* Report code (507015) with a text and go on; the first one counts. Outputs are poisoned after run. */
void emu_fault(struct emu_call *c, aclError code, const char *fmt, ...) EMU_PRINTF(3, 4);
/* Scratch memory of this run. */
void *emu_scratch(struct emu_call *c, size_t n_bytes);
/* The view as contiguous floats in scratch memory (read: converted; else uninitialised), and back into the tensor. */
float *emu_floats(struct emu_call *c, const struct emu_tensor *t);
void emu_put_floats(const struct emu_tensor *t, const float *x);

#endif
