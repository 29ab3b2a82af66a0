/* weights.h — "give me tensor NAME, shape S": the weights of a model from either format, under one set of names.
 *
 * Names are GGUF's ("blk.3.attn_k.weight"); a safetensors checkpoint is looked up through the family's table and whichever prefix it
 * uses (model. | language_model.model. | model.language_model.). A fetch states the shape that the code is going to assume; another
 * shape or a type that cannot be computed with is an error that names file, tensor, expected and found.
 *
 *   model.gguf: tensor blk.3.attn_k.weight: expected [1024, 2560], file has [512, 2560]
 *   model-00002-of-00003.gguf: expected part 2 of 3 beside the first part, no such file
 *
 * A fused attn_qkv is looked up by its parts' names (rows q, then k, then v). Keys and values of layers that read a donor's may be there or not; they
 * are never fetched and not reported.
 *
 * Data is borrowed from the mapped files and lives until weights_close.
 */
#ifndef CYGNET_WEIGHTS_H
#define CYGNET_WEIGHTS_H

#include "files/config.h"
#include "files/safetensors.h"

struct weights;

struct weight_view {
  enum dtype dtype;
  int64_t rows, cols; /* a vector is one row */
  size_t row_bytes;
  const void *data; /* borrowed, read-only; aligned to the element (a checkpoint whose tensors are not is copied) */
};

/* path: a GGUF (any part of a split set: name-00001-of-00003.gguf), a .safetensors file or a folder with config.json.
 * Opens and checks everything, fills *config. Returns owned. A drafter is refused, by the other function what is none. */
struct weights *weights_open(const char *path, struct model_config *config, struct err *e);
struct weights *weights_open_drafter(const char *path, struct model_config *config, struct err *e);
void weights_close(struct weights *w);
/* The pictures' and sounds' part of a model, a GGUF of its own ("mmproj"): checks that it fits config, and fills config's vision and audio.
 * Names of its tensors as below, those that begin with "v.", "a." and "mm.". A folder of safetensors has them itself. */
struct weights *weights_open_mmproj(const char *path, struct model_config *config, struct err *e);

/* rows 0 = a vector of cols elements. Any supported float or quantised dtype. */
int weights_get(struct weights *w, const char *name, int64_t rows, int64_t cols, struct weight_view *out, struct err *e);
bool weights_has(const struct weights *w, const char *name);
/* One matrix of one expert, however the file keeps them: ffn_gate_up_exps [E, 2 ffn, hidden] (gate rows first), ffn_gate_exps and ffn_up_exps
 * [E, ffn, hidden], ffn_down_exps [E, hidden, ffn], or a tensor for each expert. */
enum weights_expert { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN };
int weights_get_expert(struct weights *w, int layer, enum weights_expert which, int expert, int64_t rows, int64_t cols,
                       struct weight_view *out, struct err *e);
/* A vector as float32 (converted; add 1 where config.norm_plus_one and the name ends in norm.weight). out holds cols floats. */
int weights_get_vector(struct weights *w, const char *name, int64_t cols, float *out, struct err *e);

/* The type that a matrix is computed in when weights are quantised at load to `quant` (none or F32: not at all): plain numbers become it where the
 * width allows. Routers, encoders of pictures and sound, and the table of per-layer embeddings stay as they are; the embedding and the head
 * are Q8_0 at least. name: ours. */
enum dtype weights_type(const char *name, enum dtype own, int64_t cols, enum dtype quant);

/* A vector of n whole numbers 0 .. limit-1, each at most once (I64 or I32). */
int weights_get_order(struct weights *w, const char *name, int n, int limit, int32_t *out, struct err *e);

/* Tensors that nobody fetched: a warning line per kind, once for each tensor, or an error when strict. Call after binding. Those of pictures and sound ("v.",
 * "a.", "mm.") only once one of that letter has been fetched. */
int weights_report_unused(struct weights *w, bool strict, struct err *e);
/* The file's pages of this tensor were read for the last time. */
void weights_done_with(struct weights *w, const struct weight_view *v);
/* All that had to be read has been: pages of the files need not stay resident until somebody reads them again. */
void weights_rest(const struct weights *w);

/* Observers for inspect and the tokenizer. */
const struct gguf *weights_gguf(const struct weights *w); /* first part, or NULL for safetensors */
const char *weights_folder(const struct weights *w);      /* folder that holds the model */
const char *weights_format(const struct weights *w);      /* "GGUF v3", "GGUF v3, 3 parts", "safetensors, 2 shards" */
size_t weights_total_bytes(const struct weights *w);
size_t weights_count(const struct weights *w);
struct weight_entry {
  const char *name;      /* the file's own; borrows */
  const char *gguf_name; /* ours; NULL when the tensor has no place in the model; borrows */
  enum dtype dtype;
  int n_dims;
  int64_t shape[4];
  size_t n_bytes;
  bool
      skipped; /* of a part that this build does not run, a head that the configuration says is tied, keys of a layer that reads another's */
  bool media;  /* of an encoder of pictures or sound ("v.", "a.", "mm."); skipped, as far as the text model goes */
};
struct weight_entry weights_at(const struct weights *w, size_t i); /* i-th tensor in file order */
int weights_unchanged(const struct weights *w, struct err *e);     /* files on disk still as they were */

#endif
