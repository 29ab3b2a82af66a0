/* model.h — a loaded model: its layer table, its weights on a device, its attention, and one forward pass.
 *
 * One forward for prefill, chunks, decode and every mix of them; one file per family reads as the specification's list of steps.
 *
 *   config + weights ──model_open──► struct model {device, attention, layers, scratch}        everything is allocated here
 *   batch ──model_forward──► logits [n_out, vocab]                                            nothing is allocated here
 *
 * Taps: every intermediate has a name and a layer number; tests compare them with golden values and name the first that differs.
 * Names, in order: "embed"; per layer "attn_norm" "q" "k" "v" (after norm and rope) "attn" "attn_out" "ffn_norm" "ffn" "layer_out"; "final_norm" "logits".
 * Gemma 4 adds "per_layer_inputs" after "embed" and, in layers with experts, "mlp" "router_logits" "experts" before "ffn".
 */
#ifndef CYGNET_MODEL_H
#define CYGNET_MODEL_H

#include "compute/device.h"
#include "files/weights.h"
#include "models/shard.h"

struct model_plan { /* sizes decided by the engine before anything is loaded */
  enum isa isa;
  int n_threads;
  const struct device_ops *device; /* NULL = device_cpu_ops */
  int device_number;
  const struct device_link *link; /* this model is a part of a larger one (shard.h); NULL = it is the whole. Borrowed */
  const struct attn_ops *attn;    /* NULL = the device's own */
  enum dtype kv_dtype;
  int page_tokens;
  int n_pages[BATCH_KINDS];
  int soft_rows; /* rows of the store of soft rows; 0 = none */
  bool media;    /* the encoders that the configuration has are opened, too */
  int rows_max;  /* rows of a batch */
  int out_max;   /* rows whose logits may be wanted in one batch */
  int seqs_max, tokens_max;
  enum dtype
      quant; /* DTYPE_NONE = as in the file; Q8_0, Q4_0: matrices of plain numbers are quantised while they are packed (weights_type) */
  const struct model_config
      *drafter;   /* its attention layers are numbered behind the model's own (drafter.h); NULL = none. Borrowed while opening */
  bool shortlist; /* may be kept beside the output matrix (shortlist.h) */
  bool quiet;     /* no progress on stderr while weights are packed */
};

/* Called for one row at a time: row is the batch's row, or for "final_norm" and "logits" the index into its `out`. */
typedef void (*model_tap_fn)(void *ctx, const char *name, int layer, int row, const float *x, int cols);

struct model;
struct encoder; /* encoder.h */
struct model_ops {
  enum model_family family;
  struct model *(*new_model)(void); /* the family's own struct, zeroed */
  void (*delete_model)(struct model *m);
  /* Bind weights, allocate scratch. m->config, device and attn are ready. */
  int (*load)(struct model *m, struct weights *w, struct err *e);
  void (*unload)(struct model *m);
  void (*forward)(struct model *m, const struct batch *b, struct tensor *logits);
  /* Keys and values of all cross-attention layers from rows of a bank, [rows, hidden], rows <= ENCODER_ROWS; between steps. NULL: no such
   * layers. */
  void (*fill)(struct model *m, const struct tensor *rows, const int64_t *slot);
};

struct model_products { /* multiply-adds with weights */
  int64_t all, plain;   /* plain: of those, with bf16, f16 and f32 numbers; the rest are codes */
};

struct model { /* a family's own struct begins with it */
  const struct model_ops *ops;
  struct model_config config;
  struct model_plan plan;
  struct shard shard; /* config is that of the part */
  struct device *dev;
  const struct attn_ops *attn_ops;
  struct attn *attn;
  struct tensor logits;           /* [out_max, vocab]: what forward fills */
  struct tensor logits_host;      /* the same where the host reads it (device.h fetch) */
  struct tensor peaks;            /* [out_max, head_blocks(vocab)]: of them (compute/head.h); data NULL where the device is far */
  struct tensor tap_host;         /* rows for taps, of a far device; taken when the first tap looks */
  const struct weight *embed;     /* the table that embeds tokens; NULL: the family hands out neither this nor: */
  struct tensor hidden;           /* [out_max, hidden]: the `out` rows of the last forward behind the final norm, until the next forward */
  struct tensor soft;             /* [soft_rows, hidden]: the store of soft rows, written by whoever encodes */
  struct encoder *vision, *audio; /* NULL: none */
  size_t weight_bytes, packed_bytes, scratch_bytes, kv_bytes;
  struct model_products products_per_row, products_per_out; /* for each row; for each row whose logits are wanted (the head) */
  size_t decode_bytes;                                      /* weights that one decoding step reads */
  size_t shortlist_bytes, shortlist_saves_bytes;            /* what it takes, and what of decode_bytes it leaves unread (shortlist.h) */
  model_tap_fn tap;                                         /* NULL outside tests and `logits --hidden` */
  void *tap_ctx;
};

/* w is borrowed and must outlive the model (rows of tables are read from the mapped file). Returns owned. */
struct model *model_open(const struct model_config *c, struct weights *w, const struct model_plan *plan, struct err *e);
/* The encoders, after model_open; w: the model's own or an mmproj's. Nothing without plan.media. */
int model_open_media(struct model *m, struct weights *w, struct err *e);
void model_close(struct model *m);
/* Logits of the batch's `out` rows where the host reads them, rows = b->n_out. Borrowed until the next call. Whether it went well is for
 * device_ops.finish to say. */
struct tensor model_forward(struct model *m, const struct batch *b);
/* Its parts, for graph mode: step, attention's prepare and all launches; and the first n_out logits. */
void model_launch(struct model *m, const struct batch *b);
struct tensor model_fetch(struct model *m, int n_out);

/* The attention layers of a config, for planning memory before anything is loaded. layers has room for CONFIG_LAYERS_MAX. Returns their number.
 * Those of a drafter come behind them (drafter.h). */
enum { MODEL_LAYERS_MAX = 2 * CONFIG_LAYERS_MAX };
int model_attn_layers(const struct model_config *c, struct attn_layer *layers);
/* Estimate of everything but keys, values, packed weights and encoders: scratch of rows_max rows, logits of out_max, the store of soft
 * rows, and products wide enough for the plan's encoders (whose own scratch is encoder_scratch_bytes). */
size_t model_scratch_bytes(const struct model_config *c, const struct model_plan *plan);

/* What forward ends with: logits and peaks of the batch's `out` rows, whose hidden states x has. */
void model_head(struct model *m, struct tensor *logits, const struct weight *w, const struct tensor *x, float cap, const struct batch *b);

#define TAP(m, name, layer, x)                                                                                                             \
  do {                                                                                                                                     \
    if ((m)->tap) model_tap((m), (name), (layer), (x));                                                                                    \
  } while (0)
void model_tap(struct model *m, const char *name, int layer, const struct tensor *x);
void model_tap_rows(struct model *m, const char *name, int layer, int first,
                    const struct tensor *x); /* x's rows are numbered from first on */

extern const struct model_ops model_gemma3_ops, model_gemma4_ops, model_mllama_ops;

#endif
