/* encoder.h — from a picture or a sound to rows of the text model's width.
 *
 *   siglip.c         Gemma 3's ViT, pooling and projector
 *   vision_gemma4.c  Gemma 4's ViT with a variable number of patches; and 12B's blocks, which have no encoder
 *   vision_mllama.c  Llama 3.2 Vision's two-stage ViT over tiles; its rows are the bank that cross-attention reads
 *   audio_gemma4.c   Gemma 4's conformer; and 12B's frames
 *
 * A job is one or more media of one kind. It is done in units of about ENCODER_ROWS rows of one product or attention, so that people whose
 * answers are being written keep their pace: the engine does a few units between steps. Units and their order are fixed by the job; when
 * they are done changes no bit, and neither does what else is in the job: every row's arithmetic is its own (gemm.h rule 1), and attention
 * walks keys relative to the first one it sees.
 *
 * Rules
 *   1. All memory is taken in open, for jobs of up to rows_max input rows.
 *   2. Encoders use the model's device and the same products as the text; matrices are packed like the text's.
 *   3. Taps as in model.h, with the input row (or output row) counted over the job. Names: "v.embed" (input of the first layer),
 *      "v.layer_out" by layer (mllama: global layers follow the local ones, and rows are in file order, padding included, as the
 *      specification counts them), "v.pooled", "v.last", "v.soft"; 12B "v.ln1" "v.dense" "v.ln2"; mllama "v.features", "v.soft" = bank;
 *      sound the same with "a.".
 *
 * Tensors, by the names that weights_get takes (files/weights_names.h maps the checkpoints' own). With a GGUF (weights_gguf(w) is not NULL)
 * some differ in form, [G]. Vectors of one number are scalars. [rows, cols] with all but the first dimension taken together, unless said.
 *   ViT       v.patch_embd.weight [D, cols]   Gemma 4: columns [y, x, colour]; [G] [colour, y, x]. v.patch_embd.bias (SIGLIP)
 *             v.position_embd.weight          SIGLIP, MLLAMA [positions, D]; GEMMA4 [2 * positions, D], x's table first
 *             v.blk.N.{ln1,ln2}.{weight,bias}, v.blk.N.{attn_q,attn_k,attn_v,attn_out}.{weight,bias},
 *             v.blk.N.{ffn_up,ffn_down}.{weight,bias} (fc1, fc2)
 *             GEMMA4: no biases; also v.blk.N.{attn_post_norm,ffn_post_norm,attn_q_norm,attn_k_norm}.weight, v.blk.N.ffn_gate.weight;
 *             with clipping
 *             v.blk.N.NAME.{input_min,input_max,output_min,output_max} beside every v.blk.N.NAME.weight of a product (absent: no bound)
 *             v.post_ln.{weight,bias}; v.std_bias, v.std_scale
 *   projector mm.input_projection.weight: SIGLIP [D, hidden], that is x·W; Gemma 4 [hidden, D]. mm.soft_emb_norm.weight (SIGLIP; 1 is
 *             added by weights_get_vector)
 *   BLOCKS    v.patch_norm.{1,2,3}.{weight,bias}, v.patch_embd.{weight,bias} [D, cols]; [G] columns, and entries of norm 1, [colour, y, x];
 *             v.position_embd.weight [2 * positions, D] with x and y in turn: row 2 * place is x's; [G] x's table first
 *   MLLAMA    v.class_embd, v.pre_ln, v.post_ln {weight,bias}, v.blk.N.*, v.global.blk.N.* (the same names), mm.0.{weight,bias},
 *             v.tile_position_embd.weight [ids, tiles * P * D], v.{pre,post}_tile_position_embd.weight [ids, tiles * D];
 *             gates, raw (tanh is taken by the code): v.position_embd.gate (of both tables), v.{pre,post}_tile_position_embd.gate,
 *             v.global.blk.N.{attn_gate,ffn_gate}; [G] tanh is taken already, v.position_embd.gate is 1 - tanh and
 *             v.tile_position_embd.gate a tensor of its own
 *   sound     a.conv1d.{0,1}.weight [out, in * 9], a.conv1d.{0,1}.norm.weight, a.input_projection.weight, a.pre_encode.out.{weight,bias},
 *             a.blk.N.{ffn_norm,ffn_post_norm,ffn_norm_1,ffn_post_norm_1,attn_pre_norm,attn_post_norm,norm_conv,conv_norm,ln2}.weight (ln2:
 *             norm_out), a.blk.N.{ffn_up,ffn_down,ffn_up_1,ffn_down_1,attn_q,attn_k,attn_v,attn_out,conv_pw1,conv_pw2}.weight with bounds
 *             as above, a.blk.N.attn_k_rel.weight, a.blk.N.conv_dw.weight [hidden, taps], a.blk.N.per_dim_scale.weight ([G] softplus is
 *             taken already), mm.a.input_projection.weight [hidden, out_dim]
 * Text of mllama: as Llama's in GGUF; cross layers blk.N.{attn_norm,ffn_norm,ffn_gate,ffn_up,ffn_down}.weight,
 * blk.N.cross_attn_{q,k,v,o}_proj.weight, blk.N.cross_attn_{q,k}_norm.weight, and the raw scalars blk.N.cross_attn_attn_gate,
 * blk.N.cross_attn_mlp_gate.
 */
#ifndef CYGNET_ENCODER_H
#define CYGNET_ENCODER_H

#include "models/bind.h"
#include "models/media.h"

enum { ENCODER_ROWS = 512, ENCODER_ITEMS_MAX = 64 };

struct encoder;
struct encoder_size { /* what an encoder takes, known before anything is loaded */
  int rows, cols;     /* of the greatest input of a product: the device's rows_max, cols_max */
  int keys, head_dim; /* of attend; 0 = not used */
  size_t n_bytes;     /* scratch and outputs, at least what load takes */
};
struct encoder_ops {
  const char *name;
  struct encoder_size (*size)(const struct model_config *c, int rows_max);
  size_t struct_bytes; /* of its own struct, which begins with struct encoder; zeroed before load */
  int (*load)(struct encoder *x, struct weights *w, struct err *e); /* x->m, kind and rows_max are set; takes scratch and x->out */
  void (*unload)(struct encoder *x);                                /* also after a load that failed */
  int (*begin)(struct encoder *x);                                  /* x->items are set; returns the number of units, >= 1 */
  void (*unit)(struct encoder *x, int i);                           /* the last one leaves x->out complete */
};

struct encoder { /* an encoder's own struct begins with it */
  const struct encoder_ops *ops;
  struct model *m;
  enum media_kind kind; /* MEDIA_IMAGE or MEDIA_AUDIO */
  int rows_max;         /* input rows of a job */
  int block;            /* rows of a unit, 1 .. ENCODER_ROWS. Set to that before load; tests make it smaller */
  struct tensor out;    /* [output rows of the job, hidden]: items one after the other */
  const struct media *items[ENCODER_ITEMS_MAX];
  int n_items, next_unit, n_units; /* n_units 0: no job */
  int64_t products;                /* multiply-adds of the job, attention included: for speed reports */
};

/* NULL when the model has no encoder of that kind. */
const struct encoder_ops *encoder_ops_for(const struct model_config *c, enum media_kind kind);
/* w is borrowed, the model's own or an mmproj's, and must outlive the encoder: rows of tables are read from the mapped file. Returns
 * owned. */
struct encoder *encoder_open(struct model *m, enum media_kind kind, struct weights *w, struct err *e);
void encoder_close(struct encoder *x); /* NULL is fine */

/* For planning, before anything is loaded; 0 where there is no encoder. rows_max of a job; bytes of scratch and outputs (weights are
 * counted with the others, from the file); and what the device's configuration must hold for all encoders of a model, struct
 * encoder_size. */
int encoder_rows_max(const struct model_config *c, enum media_kind kind);
size_t encoder_scratch_bytes(const struct model_config *c, enum media_kind kind);
int encoder_block_max(const struct model_config *c); /* rows */
int encoder_cols_max(const struct model_config *c);
int encoder_keys_max(const struct model_config *c);
int encoder_head_dim_max(const struct model_config *c);

/* Items are borrowed until the job is over; their n_patches fit rows_max together (one alone always does). */
void encoder_begin(struct encoder *x, const struct media *const *items, int n);
bool encoder_unit(struct encoder *x); /* the next unit; true: that was the last, x->out is complete until the next begin */
void encoder_cancel(struct encoder *x);

/* ---- for encoders: what they share ------------------------------------------------------------------------------------- */

/* Rows [first, first + n) of a tensor as one. */
static inline struct tensor encoder_part(struct tensor t, int first, int n) { return tensor_part(t, first, n, 0, t.cols); }
/* Bytes of tensors as a device takes them, for encoder_size. */
size_t encoder_tensor_bytes(int rows, int cols);
size_t encoder_tensors_bytes(const struct bind_scratch *t, size_t n);
/* The device's room for what the host sends to t, taken while the encoder is loaded (stage grows it; units allocate nothing). */
static inline void encoder_stage_room(const struct encoder *x, const struct tensor *t) { x->m->dev->ops->stage(x->m->dev, t); }
/* t's rows stand from row `first` of the job on. */
void encoder_tap(const struct encoder *x, const char *name, int layer, int first, const struct tensor *t);

/* The same as bind_layer_vectors and bind_layer_matrices for names like PREFIX.LAYER.NAME, "v.blk" and "ln1.weight"; layer -1: NAME
 * alone. */
int encoder_vectors(struct encoder *x, struct weights *w, struct arena *arena, const char *prefix, int layer, const struct bind_vector *v,
                    size_t n, struct err *e);
int encoder_matrices(struct encoder *x, struct weights *w, const char *prefix, int layer, const struct bind_matrix *v, size_t n,
                     struct err *e);
/* A table of which rows are added by embed_add; each of the file's rows is per_row rows of cols numbers. Freed by weight_free. */
int encoder_table(struct encoder *x, struct weights *w, const char *name, int rows, int per_row, int cols, struct weight *out,
                  struct err *e);

/* A product with bounds: y = clamp(W clamp(x, in), out). */
struct encoder_linear {
  struct weight w;
  float in[2], out[2];
};
struct encoder_linear_name {
  const char *name; /* without .weight */
  struct encoder_linear *out;
  int rows, cols;
};
int encoder_linears(struct encoder *x, struct weights *w, const char *prefix, int layer, bool clipped, const struct encoder_linear_name *v,
                    size_t n, struct err *e);
/* n products of one input; z: room for it, clamped. */
void encoder_linear(const struct encoder *x, int n, const struct encoder_linear *const *w, struct tensor *const *y, const struct tensor *in,
                    const struct tensor *z);
/* y = act(gate's product) ⊙ up's product, of one input; up_room as for device_ops.linear_gated, z as above. */
void encoder_linear_gated(const struct encoder *x, struct tensor *y, const struct encoder_linear *gate, const struct encoder_linear *up,
                          const struct tensor *in, enum act act, struct tensor *up_room, const struct tensor *z);

/* The rows of a job whose items see themselves: row r is row `at` of item `item` and sees rows [lo, hi). All [rows_max]. */
struct encoder_rows {
  int n;
  int32_t *item, *at, *lo, *hi;
};
void encoder_rows_init(struct encoder_rows *r, int rows_max);
void encoder_rows_set(struct encoder_rows *r, const struct encoder *x);
void encoder_rows_free(struct encoder_rows *r);
static inline size_t encoder_rows_bytes(int rows_max) { return 4 * (size_t)rows_max * sizeof(int32_t); }
/* Attention of all rows of a job to themselves, the result in q's place, in units as large as one block of rows with all heads. They take two heads each, of
 * more rows instead: keys and values of a head are packed once, not for every block. */
int encoder_attend_units(const struct encoder *x, const struct encoder_rows *r, int n_heads);
void encoder_attend(const struct encoder *x, const struct encoder_rows *r, int unit, const struct tensor *q, const struct tensor *k,
                    const struct tensor *v, int n_heads, float scale);
/* The units of a ViT without global layers, in order: blocks of the input; of every layer blocks of q, k and v, attention, blocks of the rest; blocks of the
 * n_out rows that come out. */
enum encoder_phase { ENCODER_EMBED, ENCODER_QKV, ENCODER_ATTEND, ENCODER_REST, ENCODER_PROJECT };
struct encoder_step {
  enum encoder_phase phase;
  int layer;
  int first, n; /* rows; of ENCODER_ATTEND first is the unit of encoder_attend */
};
int encoder_vit_units(const struct encoder *x, const struct encoder_rows *r, const struct vision_config *v, int n_out);
struct encoder_step encoder_vit_step(const struct encoder *x, const struct encoder_rows *r, const struct vision_config *v, int n_out,
                                     int unit);
/* The patches of each of n soft rows of a picture whose patches begin at row `first` of the job, `wide` of them side by side: pool x pool numbers for
 * each, from `to` on. Returns where the next ones go. */
int32_t *encoder_pool_index(int32_t *to, int first, int wide, int n, int pool);
/* Input rows [first, first + y->rows) of the job, as media_patches gives them, where the host puts what is to be sent to y (device_ops.stage);
 * with room (for one row) their colours, which come in turns, are put one after the other: [y, x, colour] becomes [colour, y, x]. */
struct tensor encoder_inputs(const struct encoder *x, const struct encoder_rows *r, int first, float *room, const struct tensor *y);

extern const struct encoder_ops encoder_siglip_ops, encoder_gemma4_vision_ops, encoder_gemma4_blocks_ops, encoder_mllama_ops,
    encoder_gemma4_audio_ops, encoder_gemma4_frames_ops;

#endif
