/* ascend.h — a Huawei Ascend NPU as a device: what the files of this folder share.
 *
 *   acl.[ch] aclnn.h    CANN's interface: declarations, dlopen, texts of errors
 *   profile.[ch]        which chip, which CANN, what they can do: THE table of capabilities
 *   memory.c            device memory, temporary memory of an operation, workspaces, pinned memory, held vectors and arrays
 *   launch.c            calling an operator: descriptors, both phases, the first error is kept
 *   device.c            open and close, steps, stage, send, fetch, finish; the table device_ascend_ops
 *   weights.c           weights in the device's forms; linear, embed, embed_add
 *   ops.c               norms, elementwise operations, rope, rows
 *   moe.c               mixtures of experts
 *   ops_encoder.c       what only encoders use
 *   attn.[ch] routes.c route_*.c selftest.c     attention
 *   capture.[ch]        recorded steps: stream capture, replay, arguments that change
 *
 * Numbers: activations are bf16 (fp16 on chips without), products add in float32 inside the library, vectors of norms are float32.
 *
 * Order: everything goes to one stream, in order. So memory of one operation may be used again by the next at once, and nothing but finish,
 * fetch and argmax waits. The host's side of copies is pinned and rewritten only after a wait.
 *
 * Errors: the first one is kept (`failed`); from there on launches do nothing until finish has told it. A wait that fails makes the
 * device `lost`, unless its code speaks of resources only (207000 and up).
 *
 * Threads: one at a time, any; entry points that may be the first of a thread call ascend_enter.
 *
 * Capture: between record_begin and record_end nothing may wait, allocate, or read what is not held (ascend_fail says what did).
 */
#ifndef CYGNET_ASCEND_H
#define CYGNET_ASCEND_H

#include "compute/ascend/acl.h"
#include "compute/ascend/profile.h"
#include "compute/device.h"

enum { ASCEND_ARGS_MAX = 96, ASCEND_DIMS_MAX = 6 };

struct ascend_shape { /* in elements; strides all 0 = contiguous */
  int n_dims;
  int64_t dims[ASCEND_DIMS_MAX], strides[ASCEND_DIMS_MAX];
};

struct ascend_memory; /* memory.c */
struct ascend {
  struct device device; /* first */
  struct acl acl;
  struct ascend_profile profile;
  struct device_config config;
  aclDataType type; /* of activations */
  enum dtype dtype; /* the same as the tree calls it: DTYPE_BF16 or DTYPE_F16 */
  aclrtContext context;
  aclrtStream stream;           /* all work */
  aclrtStream side;             /* renews arguments of recorded steps */
  aclrtStream into;             /* where launches go now: stream or side */
  struct device_record *record; /* being recorded; NULL: launches run */
  struct err failed;            /* code ERR_NONE: nothing went wrong since the last finish */
  struct ascend_memory *memory;
  float *ones; /* [n_ones], held: the weights of norms that have none */
  int n_ones;
  uint64_t n_launches; /* phase 2 calls since open */
  uint64_t n_waits;
  /* descriptors of the operator that is being put together; launch frees them */
  aclTensor *tensors[ASCEND_ARGS_MAX];
  aclScalar *scalars[ASCEND_ARGS_MAX];
  aclIntArray *arrays[ASCEND_ARGS_MAX];
  aclTensorList *lists[ASCEND_ARGS_MAX];
  int n_tensors, n_scalars, n_arrays, n_lists;
  struct ascend_made { /* what they were, for messages */
    aclDataType type;
    struct ascend_shape shape;
  } made[8];
  int n_made;
  bool sync_each; /* CYGNET_ASCEND_SYNC=1: wait after every operator, so that the one that fails is named */
};

static inline struct ascend *ascend_of(struct device *d) { return (struct ascend *)d; }

/* ---- errors (launch.c) --------------------------------------------------------------------------------------------------- */

static inline bool ascend_ok(const struct ascend *d) { return d->failed.code == ERR_NONE; }
/* Keep this error if it is the first. */
void ascend_fail(struct ascend *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* rc of a runtime call: true when it is 0; else kept, with CANN's own text. what: "aclrtMalloc of 3.2 GiB for weights". */
bool ascend_check(struct ascend *d, int rc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Make the device current for this thread. */
bool ascend_enter(struct ascend *d);
/* Wait for the stream. Refused while recording. */
bool ascend_wait(struct ascend *d);
/* device_ops.finish; also for whoever launches while a model is being opened: waits, and says what failed since the last one. */
int ascend_finish(struct device *device, struct err *e);

/* ---- operators (launch.c) -------------------------------------------------------------------------------------------------
 *
 *   struct ascend_shape s = {2, {rows, cols}, {row_stride, 1}};
 *   ASCEND_LAUNCH(d, Muls, ascend_tensor(d, x), ascend_number(d, 0.5), ascend_tensor(d, y));
 *
 * runs both phases of aclnnMuls; descriptors made since the last launch are freed after it, whatever happened. Makers return NULL after an
 * error; a launch then does nothing. A launch of an operator that this CANN lacks is an error: ask ascend_has first where there is another way. */

aclTensor *ascend_tensor(struct ascend *d, const struct tensor *t); /* [rows, cols] of d->type (or t's own F32) */
aclTensor *ascend_view(struct ascend *d, const void *data, aclDataType type,
                       struct ascend_shape s);                                            /* data: device address; NULL gives NULL */
aclTensor *ascend_array(struct ascend *d, const void *data, aclDataType type, int64_t n); /* [n] */
aclTensor *ascend_matrix(struct ascend *d, const void *data, aclDataType type, int64_t rows, int64_t cols); /* contiguous */
aclScalar *ascend_number(struct ascend *d, double x);                                                       /* of type float */
/* For Muls and InplaceMuls: of type double, which makes them one kernel for bf16 and not three, with float32 memory in between. */
aclScalar *ascend_factor(struct ascend *d, double x);
aclScalar *ascend_integer(struct ascend *d, int64_t x); /* of type int64 */
aclIntArray *ascend_ints(struct ascend *d, const int64_t *x, int n);
aclTensorList *ascend_list(struct ascend *d, aclTensor *const *t, int n); /* takes the tensors */

bool ascend_has(const struct ascend *d, enum acl_op op);
bool ascend_begin_launch(struct ascend *d, enum acl_op op);
void ascend_end_launch(struct ascend *d, enum acl_op op, int rc, uint64_t workspace_bytes, aclOpExecutor *executor);
#define ASCEND_LAUNCH(d, op, ...)                                                                                                          \
  do {                                                                                                                                     \
    uint64_t launch_bytes = 0;                                                                                                             \
    aclOpExecutor *launch_executor = NULL;                                                                                                 \
    int launch_rc = 0;                                                                                                                     \
    if (ascend_begin_launch((d), ACL_OP_##op)) launch_rc = (d)->acl.op(__VA_ARGS__, &launch_bytes, &launch_executor);                      \
    ascend_end_launch((d), ACL_OP_##op, launch_rc, launch_bytes, launch_executor);                                                         \
  } while (0)
/* Note: the macro's arguments (the makers) are evaluated only when begin_launch said yes. */

void ascend_assign(struct ascend *d, const struct tensor *y, const struct tensor *x); /* y = x, also from type to type; no overlap */
/* Numbers from one row to the next. */
static inline int64_t ascend_stride(const struct tensor *t) { return (int64_t)(t->row_bytes / tensor_elem_bytes(t)); }

/* ---- memory (memory.c) --------------------------------------------------------------------------------------------------- */

int ascend_memory_open(struct ascend *d, struct err *e);
void ascend_memory_close(struct ascend *d);                                            /* gives back everything, what callers forgot too */
void *ascend_alloc(struct ascend *d, size_t n_bytes, const char *what, struct err *e); /* device memory, contents undefined; NULL: *e */
void ascend_free(struct ascend *d, void *p);                                           /* waits first */
void *ascend_alloc_host(struct ascend *d, size_t n_bytes, const char *what, struct err *e); /* pinned */
void ascend_free_host(struct ascend *d, void *p);
/* Device memory for the operation at hand, until the next ascend_temp_reset; NULL after an error. Operations begin with ascend_temp_reset.
 * While recording it must have been there before (the same step ran once, eagerly). */
void *ascend_temp(struct ascend *d, size_t n_bytes);
void ascend_temp_reset(struct ascend *d);
void *ascend_workspace(struct ascend *d, size_t n_bytes); /* at least; of the launch at hand */
/* A copy to the device, in order: of plain bytes that are read now. While recording: refused. */
void *ascend_upload(struct ascend *d, const void *host, size_t n_bytes); /* to temporary memory */
void ascend_write(struct ascend *d, void *device, const void *host, size_t n_bytes);
/* t = host's rows (F32), rounded to t's type. */
void ascend_send_rows(struct ascend *d, const struct tensor *t, const struct tensor *host);
/* Rows of width bytes, pitches apart; in order. Host memory is pinned. */
bool ascend_copy_rows(struct ascend *d, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, int rows,
                      aclrtMemcpyKind kind);
/* The device's copy of an array of int32 that an op was given: held (the batch's) or uploaded now. */
const int32_t *ascend_int32(struct ascend *d, const int32_t *host, int n);
/* The device's copy of a vector: held or uploaded now; type NPU_FLOAT or d->type. */
const void *ascend_vector(struct ascend *d, const float *host, int n, aclDataType type);
/* For the rows of the held batch's cross intervals (or any other, uploaded now): [n] of d->type, 1 where lo < hi, else 0. */
const void *ascend_sees(struct ascend *d, const int32_t *lo, const int32_t *hi, int n);
int ascend_hold(struct device *device, const float *w, size_t n, struct err *e);
void ascend_drop(struct device *device, const float *w);
int ascend_hold_batch(struct device *device, const struct batch *b, struct err *e);
void ascend_send_batch(struct ascend *d, const struct batch *b); /* of `step`: the rows' arrays, as they are now */
void ascend_waited(struct ascend *d);                            /* everything has been done: pinned memory may be written again */

/* ---- the operations, for the table in device.c ------------------------------------------------------------------------------ */

/* weights.c */
size_t ascend_weight_bytes(const struct device_config *c, const struct weight *w);
size_t ascend_table_bytes(const struct device_config *c, const struct weight *w);
int ascend_weight_bind(struct device *device, struct weight *w, int n, const char *name, struct err *e);
int ascend_table_bind(struct device *device, struct weight *w, const char *name, struct err *e);
void ascend_weight_free(struct device *device, struct weight *w, int n);
void ascend_embed(struct device *device, struct tensor *y, const struct weight *table, const int32_t *ids, float scale);
void ascend_embed_add(struct device *device, struct tensor *y, const struct weight *table, int from, const int32_t *ids, float scale);
void ascend_linear(struct device *device, int n_w, const struct weight *const *w, struct tensor *const *y, const struct tensor *x);
/* moe.c */
void ascend_moe(struct device *device, const struct moe *m, struct tensor *y, const struct tensor *x, const struct tensor *logits,
                enum act act);
/* ops.c */
void ascend_rmsnorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, int groups, float eps);
void ascend_add_rmsnorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, float eps);
void ascend_add(struct device *device, struct tensor *y, const struct tensor *x);
void ascend_scale(struct device *device, struct tensor *y, const struct tensor *x, float s);
void ascend_gated(struct device *device, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act);
void ascend_linear_gated(struct device *device, struct tensor *y, const struct weight *gate, const struct weight *up,
                         const struct tensor *x, enum act act, struct tensor *up_room);
int ascend_rope_init(struct device *device, struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e);
void ascend_rope_bands(struct device *device, struct rope_table *t, double factor, double low, double high, int tokens);
void ascend_rope_divide(struct device *device, struct rope_table *t, const float *divisors);
void ascend_rope_free(struct device *device, struct rope_table *t);
void ascend_rope_step(struct device *device, struct rope_table *t, const int32_t *pos, int rows);
void ascend_rope(struct device *device, struct tensor *x, const struct rope_table *t);
void ascend_softcap(struct device *device, struct tensor *y, const struct tensor *x, float cap);
void ascend_head(struct device *device, struct tensor *y, struct tensor *peaks, const struct weight *w, const struct tensor *x, float cap,
                 const int32_t *n_best);
void ascend_gather(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *rows);
void ascend_argmax(struct device *device, int32_t *ids, const struct tensor *x);
void ascend_copy(struct device *device, struct tensor *y, const struct tensor *x);
void ascend_put_rows(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *from);
void ascend_add_scaled(struct device *device, struct tensor *y, const struct tensor *x, float s, const int32_t *lo, const int32_t *hi);
/* for other operations: temporary memory is not taken from the front again */
void ascend_gate(struct ascend *d, const struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act);
void ascend_activate(struct ascend *d, const struct tensor *y, const struct tensor *x, enum act act); /* y is not x */
/* n_heads heads of the table's width, `pitch` columns apart from x's first column on, in place. A table's cos and sin are [rows, head_dim]
 * here, without gaps, the second half of a row like the first. */
void ascend_rope_heads(struct ascend *d, const struct tensor *x, int n_heads, int pitch, const struct rope_table *t);
size_t ascend_rope_bytes(const struct device_config *c, int head_dim); /* of the device's memory, for a table */
/* ops_encoder.c */
void ascend_layernorm(struct device *device, struct tensor *y, const struct tensor *x, const float *w, const float *b, float eps);
void ascend_bias_act(struct device *device, struct tensor *y, const float *b, enum act act);
void ascend_clamp(struct device *device, struct tensor *y, const struct tensor *x, float least, float most);
void ascend_rope2d(struct device *device, struct tensor *q, int n_heads, const struct rope_table *x, const struct rope_table *y);
void ascend_attend(struct device *device, struct tensor *out, const struct tensor *q, const struct tensor *k, const struct tensor *v,
                   int n_heads, float scale, const int32_t *lo, const int32_t *hi);
void ascend_attend_near(struct device *device, struct tensor *q, const struct tensor *k, const struct tensor *v,
                        const struct tensor *relative, const float *head_scale, const int32_t *first, const struct attend_near *n);
void ascend_pool_rows(struct device *device, struct tensor *y, const struct tensor *x, const int32_t *index, int n, float scale,
                      const float *b, const float *w);
void ascend_conv_rows(struct device *device, struct tensor *y, const struct tensor *x, const float *w, int taps, const int32_t *first);

#endif
