/* device.h — THE list of operations that a model may call.
 *
 * Each op is one or two calls of an accelerator's library and one short function in cpu.c. Tensors are [rows, cols]; an op works on x.rows rows. Ops are
 * called in order from the engine thread; they allocate nothing. An op whose rows are independent splits them over the workers.
 * y may be x where the op is elementwise (add, scale, rmsnorm, gated, rope, softcap).
 *
 * Near and far
 *   A near device (the CPU) works on memory that the host reads and writes, at once. A far one has memory of its own and works later, in order:
 *     host ── stage, send ──► device        host ◄── fetch ── device        vectors, ids, intervals: host pointers, see `hold`
 *   Models and encoders never look into a tensor; they use these three, which copy nothing on a near device.
 *
 * Steps
 *   step ─► prepare (attn.h) ─► ops ... ─► fetch ─► finish              one step; so is a unit of an encoder, without prepare
 *   Ops cannot fail one by one. What goes wrong on a far device is kept, later ops of the step do nothing, fetch gives NaN, and finish says
 *   so, once: the step's results and the keys that it wrote are worth nothing. `lost`: the device will not come back.
 *
 * Records
 *   What is launched between record_begin and record_end goes into a record (base/record.h, or a captured stream). record_replay does it
 *   again with what is in memory then. While recording, ops may be given held pointers only.
 */
#ifndef CYGNET_DEVICE_H
#define CYGNET_DEVICE_H

#include "base/workers.h"
#include "compute/attn.h"
#include "compute/link.h"
#include "compute/moe.h"

struct rope_table { /* cos and sin of one step's rows, shared by all layers with the same rope: [rows_max, head_dim / 2] each */
  int head_dim;
  double theta, factor; /* angle of pair i at position p: float32(p) * float32(theta^(-2i/head_dim) / factor), cos and sin in float32 */
  int n_rotated;        /* pairs that rotate; the others have angle 0 */
  float *inv_freq;      /* [head_dim / 2] */
  struct tensor cos, sin;
};

struct device_look {              /* what a far device is, before anything is opened */
  size_t free_bytes, total_bytes; /* of its memory */
  enum dtype type;                /* of activations, keys and values: all that it takes */
  bool has_groups;                /* its products take integer codes with a scale for 32 of them */
  char text[256];                 /* for people: "Ascend910B3 (A2), CANN 8.5, ..." */
};

struct device;
struct device_config {
  enum isa isa;
  int n_threads;                  /* 0 = by itself */
  int rows_max, cols_max;         /* largest x of any linear */
  struct moe_shape experts;       /* of the largest moe; n_experts 0 = none */
  int keys_max, head_dim_max;     /* of attend; 0 = not used */
  int positions_max;              /* positions of text: below that */
  int number;                     /* which of several devices of a kind */
  const struct device_link *link; /* to the other shards of the model; NULL: there are none. Borrowed */
  const struct device_look *look; /* for planning, of a far device: what look said. Borrowed; open does without */
};

struct attend_near {      /* shape of device_ops.attend_near */
  int n_heads, keys_left; /* a row sees itself and keys_left - 1 rows before it */
  int row, row_end;       /* rows that are done in this call */
  float key_scale, cap;   /* cap 0: none */
};

struct device_record; /* one recorded step */

struct device_ops {
  const char *name;
  const struct attn_ops *attn; /* its own attention */
  bool is_near;
  bool record_runs; /* what is recorded is also run then */
  struct device *(*open)(const struct device_config *c, struct err *e);
  void (*close)(struct device *d);

  /* planning, before anything is opened. NULL: the host's own memory, and what gemm.h packs */
  int (*look)(int number, struct device_look *l, struct err *e);
  /* Bytes that weight_bind would take for w, of which nothing but the shape and types are known; table_bind; rope_init. */
  size_t (*weight_bytes)(const struct device_config *c, const struct weight *w);
  size_t (*table_bytes)(const struct device_config *c, const struct weight *w);
  size_t (*rope_bytes)(const struct device_config *c, int head_dim);

  /* memory */
  int (*alloc)(struct device *d, struct tensor *t, int rows, int cols, const char *what, struct err *e); /* zeroed */
  void (*free)(struct device *d, struct tensor *t);
  /* Room on the host for what fetch brings, F32; nothing (data NULL) where the device is near. */
  int (*host_alloc)(struct device *d, struct tensor *host, int rows, int cols, const char *what, struct err *e);
  void (*host_free)(struct device *d, struct tensor *host);
  /* host's rows = x's, as F32, once all that was launched before is done. Near: *host = *x. */
  void (*fetch)(struct device *d, struct tensor *host, const struct tensor *x);
  /* Where the host puts rows of t, as F32, for send; until the next stage. Near: t itself. */
  struct tensor (*stage)(struct device *d, const struct tensor *t);
  void (*send)(struct device *d, const struct tensor *t, const struct tensor *staged);
  void (*copy)(struct device *d, struct tensor *y, const struct tensor *x); /* y = x; they do not overlap */
  /* Make n weights (source, dtype, rows, cols filled in; perhaps marked, gemm_quant.h) ready for linear or moe. Packs; refuses what cannot be
   * computed. Those of one call lie in one block of memory and are freed together. */
  int (*weight_bind)(struct device *d, struct weight *w, int n, const char *name, struct err *e);
  void (*weight_free)(struct device *d, struct weight *w, int n);
  /* Make a matrix ready for embed and embed_add alone. Near: it is read where it is. Freed by weight_free. */
  int (*table_bind)(struct device *d, struct weight *w, const char *name, struct err *e);
  int (*rope_init)(struct device *d, struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e);
  /* Llama 3's scaling of a table that was just made: short waves stay, long ones are divided by factor (mllama 4.2). */
  void (*rope_bands)(struct device *d, struct rope_table *t, double factor, double low, double high, int tokens);
  /* inv_freq[i] /= divisors[i], for all pairs: the same scaling as a file writes it down. */
  void (*rope_divide)(struct device *d, struct rope_table *t, const float *divisors);
  void (*rope_free)(struct device *d, struct rope_table *t);

  /* Vectors (norms, biases) and arrays of int32 that ops are given again and again. A far device keeps a copy: of floats as they are now, for
   * good, until drop; of a batch's arrays as they are at each step. A pointer that nobody holds is read when the op is called. */
  int (*hold)(struct device *d, const float *w, size_t n, struct err *e);
  void (*drop)(struct device *d, const float *w);
  int (*hold_batch)(struct device *d, const struct batch *b, struct err *e); /* b's arrays stay where they are; one batch at a time */

  /* steps */
  void (*step)(struct device *d, const struct batch *b); /* before prepare, also of a replay; b NULL: a unit of an encoder */
  int (*finish)(struct device *d, struct err *e);        /* waits; -1: something failed since the last one */

  /* records */
  const char *(*no_records)(const struct device *d); /* NULL, or why there are none, for a person */
  struct device_record *(*record_new)(struct device *d, int launches_max, size_t ctx_bytes_max, struct err *e);
  void (*record_delete)(struct device *d, struct device_record *r); /* NULL is fine */
  size_t (*record_bytes)(int launches_max, size_t ctx_bytes_max);   /* of the host's memory */
  void (*record_begin)(struct device *d, struct device_record *r);
  void (*record_end)(struct device *d, struct device_record *r);
  int (*record_launches)(const struct device_record *r); /* 0: not recorded */
  void (*record_replay)(struct device *d, struct device_record *r);

  /* arithmetic */
  void (*embed)(struct device *d, struct tensor *y, const struct weight *table, const int32_t *ids,
                float scale); /* y.rows ids; rows dequantised */
  /* y += columns [from, from + y.cols) of the table's rows · scale; an id outside the table stands for row 0. */
  void (*embed_add)(struct device *d, struct tensor *y, const struct weight *table, int from, const int32_t *ids, float scale);
  void (*linear)(struct device *d, int n_w, const struct weight *const *w, struct tensor *const *y, const struct tensor *x);
  /* y = act(x · gateᵀ) ⊙ (x · upᵀ): the bits of linear and then gated. up_room [rows, up rows] is room for the second product; a device may leave it
   * alone, so what is in it afterwards means nothing. x, y and up_room do not overlap. */
  void (*linear_gated)(struct device *d, struct tensor *y, const struct weight *gate, const struct weight *up, const struct tensor *x,
                       enum act act, struct tensor *up_room);
  /* The sum of the experts that each row's logits choose: moe.h. */
  void (*moe)(struct device *d, const struct moe *m, struct tensor *y, const struct tensor *x, const struct tensor *logits, enum act act);
  /* Norm over groups of x.cols / groups columns with the same w each (q and k norms: groups = heads). w NULL = 1. */
  void (*rmsnorm)(struct device *d, struct tensor *y, const struct tensor *x, const float *w, int groups, float eps);
  void (*add_rmsnorm)(struct device *d, struct tensor *y, const struct tensor *x, const float *w, float eps); /* y += norm(x) ⊙ w */
  void (*add)(struct device *d, struct tensor *y, const struct tensor *x);
  void (*scale)(struct device *d, struct tensor *y, const struct tensor *x, float s);
  void (*gated)(struct device *d, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act);
  void (*rope_step)(struct device *d, struct rope_table *t, const int32_t *pos, int rows); /* fill the table for this step's rows */
  void (*rope)(struct device *d, struct tensor *x, const struct rope_table *t);            /* every head of every row, in place */
  void (*softcap)(struct device *d, struct tensor *y, const struct tensor *x, float cap);
  /* The output matrix: logits y = softcap(x · wᵀ, cap), and the peaks of their rows: head.h. n_best is the host's, and is read when the launches run.
   * A far device gives all logits and no peaks. */
  void (*head)(struct device *d, struct tensor *y, struct tensor *peaks, const struct weight *w, const struct tensor *x, float cap,
               const int32_t *n_best);
  void (*gather)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *rows); /* y.rows of them */
  /* ids[r] = place of the greatest number of row r, the lowest on ties; < 0 where that row has none. ids is the host's; waits. */
  void (*argmax)(struct device *d, int32_t *ids, const struct tensor *x);

  /* Rows of x in place of some of y's: y[r] = x[from[r]] where from[r] >= 0. */
  void (*put_rows)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *from);
  /* y += s·x for the rows with lo[r] < hi[r]; lo NULL: all rows. The others stay to the bit. */
  void (*add_scaled)(struct device *d, struct tensor *y, const struct tensor *x, float s, const int32_t *lo, const int32_t *hi);

  /* shards (link.h); without a link nothing is done */
  void (*sum_shards)(struct device *d, struct tensor *y); /* y = the sum of all shards' y, the same bits on each */

  /* encoders (attend.h) */
  /* y = (x - mean) / sqrt(variance + eps) ⊙ w + b over each row; w, b NULL = 1, 0 */
  void (*layernorm)(struct device *d, struct tensor *y, const struct tensor *x, const float *w, const float *b, float eps);
  void (*bias_act)(struct device *d, struct tensor *y, const float *b, enum act act);                 /* y = act(y + b); b NULL = 0 */
  void (*clamp)(struct device *d, struct tensor *y, const struct tensor *x, float least, float most); /* y may be x */
  /* First half of every head by x's row, second half by y's: each by the rotate-half rule. Tables of head_dim / 2. */
  void (*rope2d)(struct device *d, struct tensor *q, int n_heads, const struct rope_table *x, const struct rope_table *y);
  /* out = softmax(scale · q kᵀ) v per head, of all rows of one matrix: q, out [rows, n_heads * head_dim], k, v [keys, the same]. Row r sees
   * keys [lo[r], hi[r]); rows of a call that see the same first key are best put together. */
  void (*attend)(struct device *d, struct tensor *out, const struct tensor *q, const struct tensor *k, const struct tensor *v, int n_heads,
                 float scale, const int32_t *lo, const int32_t *hi);
  /* Each row's attention to itself and the few rows before it, from first[row] on, with a term for how far they are (gemma4-multimodal 8):
   *   score = dot(q · head_scale, k[j]) · key_scale + dot(q · head_scale, relative[row - j]);  cap · tanh(score / cap);  softmax;  Σ p v
   * q in place; k, v like q, of all rows of the job; relative [keys_left, cols]. */
  void (*attend_near)(struct device *d, struct tensor *q, const struct tensor *k, const struct tensor *v, const struct tensor *relative,
                      const float *head_scale, const int32_t *first, const struct attend_near *n);
  /* y[r] = (scale · Σ x[index[r * n + i]] + b) ⊙ w, i < n; b, w NULL = 0, 1. Rounded to the device's type once: sum and b may cancel. */
  void (*pool_rows)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *index, int n, float scale, const float *b,
                    const float *w);
  /* Depthwise, causal: y[r][c] = Σ_j w[c * taps + j] x[r - taps + 1 + j][c]; rows before first[r] count as 0. y is not x. */
  void (*conv_rows)(struct device *d, struct tensor *y, const struct tensor *x, const float *w, int taps, const int32_t *first);
};

struct device { /* first member of a backend's own struct */
  const struct device_ops *ops;
  const struct kern *kern; /* CPU kernels (also for sampling) */
  struct workers *workers; /* owned by the device */
  bool lost;               /* every step from here on fails */
};

extern const struct device_ops device_cpu_ops, device_ascend_ops;
/* "cpu"; "ascend" or "npu". NULL: no such device. */
const struct device_ops *device_by_name(const char *name);

#endif
