/* shard.h — the part of a model that one of several devices holds (docs/scaling.md).
 *
 *   cut by rows      attn_q, attn_k, attn_v (heads), ffn_gate, ffn_up, experts' gate and up (width)
 *   cut by columns   attn_output (the same heads), ffn_down, experts' down (the same width)
 *   whole            everything else; attn_k and attn_v where a layer has one key head
 *
 * A shard's configuration says its own heads and widths, so a model's forward pass is the same code; what differs is that rows coming out of
 * matrices cut by columns are a part of a sum (device_ops.sum_shards). Without a link nothing here does anything.
 *
 * Not cut: encoders, banks of pictures, drafters; models that have them are refused.
 */
#ifndef CYGNET_SHARD_H
#define CYGNET_SHARD_H

#include "compute/link.h"
#include "files/weights.h"

struct shard {
  const struct device_link *link;     /* NULL: the whole model */
  bool keys_whole[CONFIG_LAYERS_MAX]; /* one key head, which every shard has */
};

/* c: the model's configuration, becomes the shard's. */
int shard_config(struct shard *s, struct model_config *c, const struct device_link *link, struct err *e);
/* weights_get of the shard's [rows, cols] of a matrix "blk.N.attn_q.weight". *whole is what weights_done_with wants. */
int shard_get(const struct shard *s, struct weights *w, const char *name, int rows, int cols, struct weight_view *part,
              struct weight_view *whole, struct err *e);
int shard_get_expert(const struct shard *s, struct weights *w, int layer, enum weights_expert which, int expert, int rows, int cols,
                     struct weight_view *part, struct weight_view *whole, struct err *e);

#endif
