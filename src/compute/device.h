/* device.h — THE list of operations that a model may call.
 *
 * Each op is one or two calls of an accelerator's library and one short function in cpu.c. Tensors are [rows, cols]; an op works on x.rows rows. Ops are
 * called in order from the engine thread; they allocate nothing. An op whose rows are independent splits them over the workers.
 * y may be x where the op is elementwise (add, scale, rmsnorm, gated, rope, softcap).
 */
#ifndef CYGNET_DEVICE_H
#define CYGNET_DEVICE_H

#include "base/workers.h"
#include "compute/attn.h"
#include "compute/moe.h"

struct rope_table { /* cos and sin of one step's rows, shared by all layers with the same rope: [rows_max, head_dim / 2] each */
  int head_dim;
  double theta, factor; /* angle of pair i at position p: float32(p) * float32(theta^(-2i/head_dim) / factor), cos and sin in float32 */
  int n_rotated;        /* pairs that rotate; the others have angle 0 */
  float *inv_freq;      /* [head_dim / 2] */
  struct tensor cos, sin;
};

struct device;
struct device_config {
  enum isa isa;
  int n_threads;              /* 0 = by itself */
  int rows_max, cols_max;     /* largest x of any linear */
  struct moe_shape experts;   /* of the largest moe; n_experts 0 = none */
  int keys_max, head_dim_max; /* of attend; 0 = not used */
};

struct device_ops {
  const char *name;
  struct device *(*open)(const struct device_config *c, struct err *e);
  void (*close)(struct device *d);

  /* memory */
  int (*alloc)(struct device *d, struct tensor *t, int rows, int cols, const char *what, struct err *e); /* F32, zeroed */
  void (*free)(struct device *d, struct tensor *t);
  /* Make n weights (source, dtype, rows, cols filled in; perhaps marked, gemm_quant.h) ready for linear or moe. Packs; refuses what cannot be
   * computed. Those of one call lie in one block of memory and are freed together. */
  int (*weight_bind)(struct device *d, struct weight *w, int n, const char *name, struct err *e);
  void (*weight_free)(struct device *d, struct weight *w, int n);
  int (*rope_init)(struct device *d, struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e);
  /* Llama 3's scaling of a table that was just made: short waves stay, long ones are divided by factor (mllama 4.2). */
  void (*rope_bands)(struct rope_table *t, double factor, double low, double high, int tokens);
  void (*rope_free)(struct device *d, struct rope_table *t);

  /* arithmetic */
  void (*embed)(struct device *d, struct tensor *y, const struct weight *table, const int32_t *ids,
                float scale); /* y.rows ids; rows dequantised */
  /* y += columns [from, from + y.cols) of the table's rows · scale; an id outside the table stands for row 0. */
  void (*embed_add)(struct device *d, struct tensor *y, const struct weight *table, int from, const int32_t *ids, float scale);
  void (*linear)(struct device *d, int n_w, const struct weight *const *w, struct tensor *const *y, const struct tensor *x);
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
  void (*gather)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *rows); /* y.rows of them */

  /* Rows of x in place of some of y's: y[r] = x[from[r]] where from[r] >= 0. */
  void (*put_rows)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *from);
  /* y += s·x for the rows with lo[r] < hi[r]; lo NULL: all rows. The others stay to the bit. */
  void (*add_scaled)(struct device *d, struct tensor *y, const struct tensor *x, float s, const int32_t *lo, const int32_t *hi);

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
  /* y[r] = scale · Σ x[index[r * n + i]], i < n */
  void (*pool_rows)(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *index, int n, float scale);
  /* Depthwise, causal: y[r][c] = Σ_j w[c * taps + j] x[r - taps + 1 + j][c]; rows before first[r] count as 0. y is not x. */
  void (*conv_rows)(struct device *d, struct tensor *y, const struct tensor *x, const float *w, int taps, const int32_t *first);
};

struct device { /* first member of a backend's own struct */
  const struct device_ops *ops;
  const struct kern *kern; /* CPU kernels (also for sampling) */
  struct workers *workers; /* owned by the device */
};

extern const struct device_ops device_cpu_ops;

#endif
