/* shard.c — which rows and columns are whose. */
#include "models/shard.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"

enum cut { CUT_NOT, CUT_ROWS, CUT_COLS };

/* name: "blk.LAYER.NAME.weight" */
static enum cut cut_of(const struct shard *s, const char *name) {
  static const char *const rows[] = {"attn_q", "ffn_gate", "ffn_up"}, *const keys[] = {"attn_k", "attn_v"},
                           *const cols[] = {"attn_output", "ffn_down"};
  int layer, n = 0;
  if (sscanf(name, "blk.%d.%n", &layer, &n) != 1 || n == 0 || layer < 0 || layer >= CONFIG_LAYERS_MAX) return CUT_NOT;
  const char *end = strchr(name + n, '.');
  size_t length = end ? (size_t)(end - name) - (size_t)n : 0;
#define IS(list, i) (strlen((list)[i]) == length && !memcmp((list)[i], name + n, length))
  for (size_t i = 0; i < ARRAY_LEN(rows); i++)
    if (IS(rows, i)) return CUT_ROWS;
  for (size_t i = 0; i < ARRAY_LEN(keys); i++)
    if (IS(keys, i)) return s->keys_whole[layer] ? CUT_NOT : CUT_ROWS;
  for (size_t i = 0; i < ARRAY_LEN(cols); i++)
    if (IS(cols, i)) return CUT_COLS;
#undef IS
  return CUT_NOT;
}

static int divide(int *x, int n, int layer, const char *what, struct err *e) {
  if (*x % n)
    return err_set(e, ERR_UNSUPPORTED, "layer %d: expected %s in %d equal parts, one for each device; found %d", layer, what, n, *x);
  *x /= n;
  return 0;
}

int shard_config(struct shard *s, struct model_config *c, const struct device_link *link, struct err *e) {
  memset(s, 0, sizeof *s);
  if (!link) return 0;
  int n = link->n;
  CHECK(n >= 2 && link->rank >= 0 && link->rank < n);
  s->link = link;
  if (config_has_cross(c) || c->vision.kind || c->audio.kind || c->backbone_hidden)
    return err_set(e, ERR_UNSUPPORTED, "%s: expected a model of text alone to run on %d devices; it has pictures, sound or a target",
                   c->architecture, n);
  if (c->n_experts && divide(&c->expert_ffn, n, 0, "experts' width", e)) return -1;
  for (int l = 0; l < c->n_layers; l++) {
    struct layer_config *y = &c->layers[l];
    s->keys_whole[l] = y->n_kv == 1;
    if (divide(&y->n_q, n, l, "query heads", e) || (y->n_kv > 1 && divide(&y->n_kv, n, l, "key heads (or one)", e)) ||
        divide(&y->ffn, n, l, "the MLP's width", e))
      return -1;
  }
  return 0;
}

/* The shard's part of a matrix: rows or columns [rank * rows, ...) of what the file has. */
static int take_part(const struct shard *s, enum cut cut, const char *name, int rows, int cols, const struct weight_view *whole,
                     struct weight_view *part, struct err *e) {
  const struct dtype_info *info = dtype_info(whole->dtype);
  size_t rank = (size_t)(s->link ? s->link->rank : 0), skip = 0;
  *part = *whole;
  if (cut == CUT_NOT) return 0;
  if (cut == CUT_COLS && cols % info->block_elems)
    return err_set(e, ERR_UNSUPPORTED, "tensor %s: expected parts of whole blocks of %d columns, found %d columns of type %s", name,
                   info->block_elems, cols, info->name);
  if (cut == CUT_ROWS) skip = rank * (size_t)rows * whole->row_bytes;
  else skip = rank * (size_t)(cols / info->block_elems) * (size_t)info->block_bytes;
  part->rows = rows;
  part->cols = cols;
  part->data = (const char *)whole->data + skip;
  return 0;
}

int shard_get(const struct shard *s, struct weights *w, const char *name, int rows, int cols, struct weight_view *part,
              struct weight_view *whole, struct err *e) {
  enum cut cut = s->link ? cut_of(s, name) : CUT_NOT;
  int64_t n = s->link ? s->link->n : 1;
  if (weights_get(w, name, cut == CUT_ROWS ? n * rows : rows, cut == CUT_COLS ? n * cols : cols, whole, e)) return -1;
  return take_part(s, cut, name, rows, cols, whole, part, e);
}

int shard_get_expert(const struct shard *s, struct weights *w, int layer, enum weights_expert which, int expert, int rows, int cols,
                     struct weight_view *part, struct weight_view *whole, struct err *e) {
  enum cut cut = !s->link ? CUT_NOT : which == EXPERT_DOWN ? CUT_COLS : CUT_ROWS;
  int64_t n = s->link ? s->link->n : 1;
  if (weights_get_expert(w, layer, which, expert, cut == CUT_ROWS ? n * rows : rows, cut == CUT_COLS ? n * cols : cols, whole, e))
    return -1;
  return take_part(s, cut, "of experts", rows, cols, whole, part, e);
}
