/* attn.c — what every attention backend asks of its configuration. */
#include "compute/attn.h"

static int attn_check_layer(const struct attn_config *c, int i, struct err *e) {
  const struct attn_layer *l = &c->layers[i];
  if (l->n_q < 1 || l->n_kv < 1 || l->n_q % l->n_kv != 0) {
    return err_set(e, ERR_UNSUPPORTED, "attention: layer %d: expected query heads in equal groups per key head, found %d over %d", i,
                   l->n_q, l->n_kv);
  }
  if (l->head_dim < 1 || l->head_dim > ATTN_HEAD_DIM_MAX) {
    return err_set(e, ERR_UNSUPPORTED, "attention: layer %d: expected a head width of 1 to %d, found %d", i, ATTN_HEAD_DIM_MAX,
                   l->head_dim);
  }
  if (c->kv_dtype == DTYPE_Q8_0 && l->head_dim % 32 != 0) {
    return err_set(
        e, ERR_UNSUPPORTED,
        "attention: layer %d: keys and values of type Q8_0 need a head width that is a multiple of 32, this one is %d; choose bf16, f16 "
        "or f32",
        i, l->head_dim);
  }
  if (l->kind < 0 || l->kind >= BATCH_KINDS) return err_set(e, ERR_UNSUPPORTED, "attention: layer %d: unknown kind %d", i, (int)l->kind);
  const struct attn_layer *o = l->owner >= 0 && l->owner < c->n_layers ? &c->layers[l->owner] : NULL;
  if (!o || o->owner != l->owner || o->kind != l->kind || o->n_kv != l->n_kv || o->head_dim != l->head_dim) {
    return err_set(e, ERR_UNSUPPORTED,
                   "attention: layer %d: expected to share keys and values with an owning layer of its kind and shape, found layer %d", i,
                   l->owner);
  }
  return 0;
}

size_t attn_keys_max(const struct attn_config *c, int kind) {
  return kind == BATCH_CROSS ? (size_t)c->n_pages[kind] * (size_t)c->page_tokens : (size_t)c->tokens_max;
}

int attn_check(const struct attn_config *c, struct err *e) {
  if (c->kv_dtype != DTYPE_F32 && c->kv_dtype != DTYPE_F16 && c->kv_dtype != DTYPE_BF16 && c->kv_dtype != DTYPE_Q8_0) {
    const char *name = c->kv_dtype > 0 && c->kv_dtype < DTYPE_COUNT ? dtype_info(c->kv_dtype)->name : "nothing";
    return err_set(e, ERR_UNSUPPORTED, "attention: expected keys and values of type F32, F16, BF16 or Q8_0, found %s", name);
  }
  if (c->page_tokens < 1 || c->rows_max < 1 || c->seqs_max < 1 || c->tokens_max < 1) {
    return err_set(e, ERR_BAD_INPUT, "attention: expected sizes of at least 1, found pages of %d, %d rows, %d sequences, %d tokens",
                   c->page_tokens, c->rows_max, c->seqs_max, c->tokens_max);
  }
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    /* slots are int64, page ids int32 */
    if (c->n_pages[kind] < 0 || c->n_pages[kind] == INT32_MAX) {
      return err_set(e, ERR_BAD_INPUT, "attention: expected a number of pages from 0 to %d, found %d", INT32_MAX - 1, c->n_pages[kind]);
    }
  }
  for (int i = 0; i < c->n_layers; i++) {
    if (attn_check_layer(c, i, e)) return -1;
  }
  return 0;
}
