/* weights_names.h — from a checkpoint's tensor names to GGUF's; private to this room. */
#ifndef CYGNET_WEIGHTS_NAMES_H
#define CYGNET_WEIGHTS_NAMES_H

#include "files/config.h"

enum weight_use {
  WEIGHT_TEXT,    /* a tensor of the text model */
  WEIGHT_MEDIA,   /* of an encoder of pictures or sound */
  WEIGHT_SKIPPED, /* of a part that this build does not run, or a buffer that is computed */
  WEIGHT_UNKNOWN
};

enum { WEIGHT_NAME_BYTES = 128 };

/* "model.layers.3.self_attn.k_proj.weight" -> "blk.3.attn_k.weight"; a single expert's "model.layers.3.experts.7.up_proj.weight" ->
 * "blk.3.ffn_up.7.weight". out is "" unless WEIGHT_TEXT or WEIGHT_MEDIA. */
enum weight_use weight_name_from_hf(enum model_family family, const char *hf, char out[WEIGHT_NAME_BYTES]);

/* weights_media_names.c: those of encoders, to the names of models/encoder.h. */
bool weight_media_name_from_hf(enum model_family family, const char *hf, char out[WEIGHT_NAME_BYTES]);
void weight_media_name_from_gguf(const char *name, char out[WEIGHT_NAME_BYTES]);
bool weight_is_media(const char *name); /* by our name */

#endif
