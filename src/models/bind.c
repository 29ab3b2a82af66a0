/* bind.c — fetching, binding and counting for every family. */
#include "models/bind.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "compute/gemm_quant.h"
#include "compute/shortlist.h"

const char *bind_name(char text[BIND_NAME_BYTES], int layer, const char *name) {
  snprintf(text, BIND_NAME_BYTES, strchr(name, '.') ? "blk.%d.%s" : "blk.%d.%s.weight", layer, name);
  return text;
}

int bind_vector(struct model *m, struct weights *w, struct arena *arena, const struct bind_vector *v, struct err *e) {
  (void)m;
  *v->out = arena_alloc(arena, (size_t)v->n * sizeof(float));
  return weights_get_vector(w, v->name, v->n, *v->out, e);
}

static void describe(const struct model *m, const struct bind_matrix *x, const struct weight_view *v, bool is_head) {
  *x->out = (struct weight){.dtype = v->dtype, .rows = x->rows, .cols = x->cols, .row_bytes = v->row_bytes, .source = v->data};
  x->out->is_head = is_head && m->plan.shortlist;
  gemm_quant_mark(x->out, weights_type(x->name, v->dtype, x->cols, m->plan.quant));
}

static int bind_as(struct model *m, const struct bind_matrix *x, const struct weight_view *v, bool is_head, struct err *e) {
  describe(m, x, v, is_head);
  if (m->dev->ops->weight_bind(m->dev, x->out, 1, x->name, e)) return -1;
  m->weight_bytes += (size_t)v->rows * v->row_bytes;
  m->packed_bytes += x->out->packed_bytes + x->out->shortlist_bytes;
  return 0;
}

int bind_view(struct model *m, const struct bind_matrix *x, const struct weight_view *v, struct err *e) {
  return bind_as(m, x, v, false, e);
}

static int bind_whole(struct model *m, struct weights *w, const struct bind_matrix *x, bool is_head, struct err *e) {
  struct weight_view v, whole;
  if (shard_get(&m->shard, w, x->name, x->rows, x->cols, &v, &whole, e) || bind_as(m, x, &v, is_head, e)) return -1;
  if (x->out->packed) weights_done_with(w, &whole);
  return 0;
}

int bind_matrix(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e) { return bind_whole(m, w, x, false, e); }

int bind_head(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e) { return bind_whole(m, w, x, true, e); }

int bind_table(struct model *m, struct weights *w, const struct bind_matrix *x, struct err *e) {
  struct weight_view v;
  if (weights_get(w, x->name, x->rows, x->cols, &v, e)) return -1;
  describe(m, x, &v, false);
  if (m->dev->ops->table_bind(m->dev, x->out, x->name, e)) return -1;
  m->weight_bytes += (size_t)v.rows * v.row_bytes;
  m->packed_bytes += x->out->packed_bytes;
  if (x->out->packed) weights_done_with(w, &v);
  return 0;
}

int bind_layer_vectors(struct model *m, struct weights *w, struct arena *arena, int layer, const struct bind_vector *v, size_t n,
                       struct err *e) {
  char name[BIND_NAME_BYTES];
  for (size_t i = 0; i < n; i++) {
    struct bind_vector whole = v[i];
    whole.name = bind_name(name, layer, v[i].name);
    if (bind_vector(m, w, arena, &whole, e)) return -1;
  }
  return 0;
}

int bind_layer_matrices(struct model *m, struct weights *w, int layer, const struct bind_matrix *x, size_t n, struct err *e) {
  char name[BIND_NAME_BYTES];
  for (size_t i = 0; i < n; i++) {
    struct bind_matrix whole = x[i];
    whole.name = bind_name(name, layer, x[i].name);
    if (bind_matrix(m, w, &whole, e)) return -1;
  }
  return 0;
}

int bind_embedding(struct model *m, struct weights *w, struct weight *embed, struct weight *head, struct err *e) {
  const struct model_config *c = &m->config;
  const struct bind_matrix table = {"token_embd.weight", embed, c->vocab, c->hidden};
  if (!weights_has(w, "output.weight")) return bind_head(m, w, &table, e);
  return bind_matrix(m, w, &table, e) ? -1 : bind_head(m, w, &(struct bind_matrix){"output.weight", head, c->vocab, c->hidden}, e);
}

int bind_hold(struct model *m, const struct arena *vectors, struct err *e) {
  if (vectors->used_bytes == 0) return 0;
  return m->dev->ops->hold(m->dev, (const float *)(const void *)vectors->base, vectors->used_bytes / sizeof(float), e);
}

void bind_drop(struct model *m, struct arena *vectors) {
  if (vectors->used_bytes > 0) m->dev->ops->drop(m->dev, (const float *)(const void *)vectors->base);
  arena_free(vectors);
}

void bind_count(struct model_products *products, size_t *bytes, const struct weight *w) {
  int64_t n = (int64_t)w->rows * w->cols;
  products->all += n;
  if (n > 0 && !dtype_info(w->dtype)->quantised) products->plain += n; /* a layer may lack the weight */
  *bytes += w->packed ? w->packed_bytes : (size_t)w->rows * w->row_bytes;
}

void bind_count_head(struct model *m, const struct weight *head) {
  bind_count(&m->products_per_out, &m->decode_bytes, head);
  if (!head->shortlist) return;
  m->shortlist_bytes = head->shortlist_bytes;
  m->shortlist_saves_bytes = head->packed_bytes - shortlist_read_bytes(head);
}

int bind_scratch(struct model *m, const struct bind_scratch *s, size_t n, struct err *e) {
  for (size_t i = 0; i < n; i++)
    if (m->dev->ops->alloc(m->dev, s[i].t, s[i].rows, s[i].cols, "activations", e)) return -1;
  return 0;
}

void bind_progress(const struct model *m, const struct weights *w, bool done) {
  if (m->plan.quiet) return;
  if (done) log_progress("loading weights", 1, 1);
  else log_progress("loading weights", m->weight_bytes, weights_total_bytes(w));
}
