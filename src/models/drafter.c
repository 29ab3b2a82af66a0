/* drafter.c — Gemma 4's drafters.
 *
 *   x = W_pre [E_target[t] · sqrt(B) ; y]                        B: the target's width. y: its row after the last norm, then the drafter's own
 *   each layer, at the position of t:
 *     q = rope(norm(Wq norm(x, attn_norm), q_norm))              keys and values: those of the target's last layer of this kind that has some
 *     x = x + norm(Wo attention(q), post_attention_norm)
 *     x = x + norm(Wd (gelu(Wg n) ⊙ Wu n), post_ffw_norm),       n = norm(x, ffn_norm)
 *     x = x · layer_output_scale
 *   g = norm(x, output_norm)
 *   guess = argmax E g                                           its own table; no cap: it would not change the greatest
 *   t = guess, y = W_post g                                      for the next step
 *
 * With clusters (E2B, E4B) the guess is the best of the tokens in the n_centroids_used clusters whose rows of C g are greatest. The table's rows are put
 * into the clusters' order when they are packed, so that a cluster is a matrix.
 */
#include "models/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "compute/gemm_quant.h"
#include "models/bind.h"

enum { CLUSTERS_AT_ONCE = 8 }; /* products that share one x */

struct drafter_layer {
  float *attn_norm, *post_attention_norm, *ffn_norm, *post_ffw_norm; /* [hidden] */
  float *q_norm;                                                     /* [head_dim] */
  float *scale;                                                      /* [1] */
  struct weight q;                                                   /* [n_q * head_dim, hidden] */
  struct weight o;                                                   /* [hidden, n_q * head_dim] */
  struct weight gate, up;                                            /* [ffn, hidden] */
  struct weight down;                                                /* [hidden, ffn] */
  const struct rope_table *rope;
};

struct drafter {
  struct model base; /* for bind.h: the drafter's configuration, the target's device */
  struct model *target;
  int rows_max;
  struct drafter_layer layers[CONFIG_LAYERS_MAX];
  struct weight pre;       /* [hidden, 2 B] */
  struct weight post;      /* [B, hidden] */
  struct weight head;      /* [vocab, hidden]; rows 0 with clusters */
  struct weight centroids; /* [n_centroids, hidden]; rows 0 without clusters */
  struct weight *clusters; /* [n_centroids] of [vocab / n_centroids, hidden] */
  int32_t *order;          /* [vocab]: tokens of the clusters, one cluster after the other */
  int32_t *chosen;         /* [rows_max, n_centroids_used] */
  void *ordered;           /* the table in that order, where products are computed from it; ordered_bytes */
  size_t ordered_bytes;
  float *output_norm;
  struct arena vectors;
  struct rope_table rope_full, rope_sliding; /* head_dim 0: no such layer */
  struct tensor kept;                        /* [rows_max, B], by slot */
  struct tensor pair;                        /* [rows_max, 2 B]: what a step begins with */
  struct tensor h, x, y;                     /* [rows_max, hidden] */
  struct tensor q, attn;                     /* [rows_max, n_q * head_dim], widest layer */
  struct tensor gate, up;                    /* [rows_max, ffn], widest layer */
  struct tensor scores;                      /* [rows_max, n_centroids] */
  struct tensor found;                       /* [rows_max * n_centroids_used, vocab / n_centroids] */
  struct tensor scores_host, found_host;     /* the same where the host reads them */
  struct batch round;                        /* the caller's, narrowed to the rows of this step */
  int32_t *token;                            /* [rows_max] */
  bool is_first;                             /* step of the round */
};

const struct model *drafter_model(const struct drafter *d) { return &d->base; }

/* ---- what it needs of its target ---------------------------------------------------------------------------------------- */

/* The last layer of the kind that has keys of its own; -1 = none. */
static int donor_of(const struct model_config *target, enum layer_kind kind) {
  for (int l = target->n_layers - 1; l >= 0; l--)
    if (target->layers[l].kind == kind && target->layers[l].kv_donor == l) return l;
  return -1;
}

int drafter_check(const struct model_config *c, const struct model_config *target, struct err *e) {
  if (target->family != c->family || target->backbone_hidden)
    return err_set(e, ERR_BAD_INPUT, "draft model: a %s drafter guesses for models of its family, found %s", model_family_name(c->family),
                   target->architecture);
  if (c->backbone_hidden != target->hidden)
    return err_set(e, ERR_BAD_INPUT, "draft model: expected a drafter for a model %d wide, found one for %d", target->hidden,
                   c->backbone_hidden);
  if (c->vocab != target->vocab)
    return err_set(e, ERR_BAD_INPUT, "draft model: expected the model's vocabulary of %d tokens, found %d", target->vocab, c->vocab);
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    const char *kind = y->kind == LAYER_SLIDING ? "sliding" : "full";
    int from = donor_of(target, y->kind);
    if (from < 0) return err_set(e, ERR_BAD_INPUT, "draft model: layer %d: the model has no %s layer with keys", l, kind);
    const struct layer_config *donor = &target->layers[from];
    if (y->head_dim != donor->head_dim || y->n_kv != donor->n_kv)
      return err_set(e, ERR_BAD_INPUT,
                     "draft model: layer %d: expected %d key heads of width %d as in the model's %s layers, found %d of width %d", l,
                     donor->n_kv, donor->head_dim, kind, y->n_kv, y->head_dim);
    if (y->kind == LAYER_SLIDING && c->window_tokens != target->window_tokens)
      return err_set(e, ERR_BAD_INPUT, "draft model: expected the model's window of %d tokens, found %d", target->window_tokens,
                     c->window_tokens);
  }
  return 0;
}

int drafter_attn_layers(const struct model_config *c, const struct model_config *target, struct attn_layer *layers) {
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    layers[l] = (struct attn_layer){.kind = y->kind == LAYER_SLIDING ? KV_SLIDING : KV_FULL,
                                    .n_q = y->n_q,
                                    .n_kv = y->n_kv,
                                    .head_dim = y->head_dim,
                                    .scale = c->attn_scale,
                                    .owner = donor_of(target, y->kind)};
  }
  return c->n_layers;
}

struct widths { /* of the widest layer */
  int q, ffn, head_dim[2];
};
static struct widths widths_of(const struct model_config *c) {
  struct widths w = {0};
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    int *head_dim = &w.head_dim[y->kind == LAYER_SLIDING];
    w.q = MAX(w.q, y->n_q * y->head_dim);
    w.ffn = MAX(w.ffn, y->ffn);
    *head_dim = MAX(*head_dim, y->head_dim);
  }
  return w;
}

int drafter_cols_max(const struct model_config *c) {
  struct widths w = widths_of(c);
  return MAX(MAX(2 * c->backbone_hidden, c->hidden), MAX(w.q, w.ffn));
}

size_t drafter_scratch_bytes(const struct model_config *c, int rows_max, int rope_rows) {
  struct widths w = widths_of(c);
  size_t per_row = 3 * (size_t)c->backbone_hidden + 3 * (size_t)c->hidden + 2 * ((size_t)w.q + (size_t)w.ffn) + (size_t)c->n_centroids;
  size_t clusters = c->n_centroids ? (size_t)(rows_max * c->n_centroids_used) * (size_t)(c->vocab / c->n_centroids) + (size_t)c->vocab : 0;
  return sizeof(float) * ((size_t)rows_max * per_row + (size_t)rope_rows * (size_t)(w.head_dim[0] + w.head_dim[1]) + clusters);
}

/* ---- loading -------------------------------------------------------------------------------------------------------------- */

static int load_layer(struct drafter *d, struct weights *w, int l, struct err *e) {
  struct model *m = &d->base;
  const struct model_config *c = &m->config;
  const struct layer_config *lc = &c->layers[l];
  struct drafter_layer *y = &d->layers[l];
  int n_qd = lc->n_q * lc->head_dim;
  const struct bind_vector vectors[] = {
      {"attn_norm", &y->attn_norm, c->hidden},   {"post_attention_norm", &y->post_attention_norm, c->hidden},
      {"ffn_norm", &y->ffn_norm, c->hidden},     {"post_ffw_norm", &y->post_ffw_norm, c->hidden},
      {"attn_q_norm", &y->q_norm, lc->head_dim}, {"layer_output_scale", &y->scale, 1}};
  const struct bind_matrix matrices[] = {{"attn_q", &y->q, n_qd, c->hidden},
                                         {"attn_output", &y->o, c->hidden, n_qd},
                                         {"ffn_gate", &y->gate, lc->ffn, c->hidden},
                                         {"ffn_up", &y->up, lc->ffn, c->hidden},
                                         {"ffn_down", &y->down, c->hidden, lc->ffn}};
  if (bind_layer_vectors(m, w, &d->vectors, l, vectors, ARRAY_LEN(vectors), e) ||
      bind_layer_matrices(m, w, l, matrices, ARRAY_LEN(matrices), e))
    return -1;
  for (size_t i = 0; i < ARRAY_LEN(matrices); i++) bind_count(&m->products_per_row, &m->decode_bytes, matrices[i].out);
  y->rope = lc->kind == LAYER_SLIDING ? &d->rope_sliding : &d->rope_full;
  return 0;
}

static int load_ropes(struct drafter *d, struct weights *w, struct err *e) {
  static const char freqs[] = "rope_freqs.weight"; /* the configuration has what it says */
  const struct model_config *c = &d->base.config;
  struct device *dev = d->base.dev;
  struct widths wide = widths_of(c);
  struct weight_view v;
  int full = wide.head_dim[0], sliding = wide.head_dim[1];
  for (int l = 0; l < c->n_layers; l++)
    if (c->layers[l].head_dim != (c->layers[l].kind == LAYER_SLIDING ? sliding : full))
      return err_set(e, ERR_UNSUPPORTED, "draft model: layer %d: expected one head size in all layers of its kind", l);
  if (full && weights_has(w, freqs) && weights_get(w, freqs, 0, full / 2, &v, e)) return -1;
  const struct rope_config *f = &c->rope_full, *s = &c->rope_sliding;
  if (full && dev->ops->rope_init(dev, &d->rope_full, full, f->theta, f->factor, f->rotated, e)) return -1;
  return sliding ? dev->ops->rope_init(dev, &d->rope_sliding, sliding, s->theta, s->factor, s->rotated, e) : 0;
}

/* The table's rows in the order of the clusters, each cluster a matrix; all in one block. */
static int load_clusters(struct drafter *d, struct weights *w, const char *table, struct err *e) {
  struct model *m = &d->base;
  const struct model_config *c = &m->config;
  struct weight_view v;
  size_t rows = (size_t)(c->vocab / c->n_centroids), n = (size_t)c->n_centroids;
  d->order = xcalloc((size_t)c->vocab, sizeof *d->order);
  d->chosen = xcalloc((size_t)d->rows_max * (size_t)c->n_centroids_used, sizeof *d->chosen);
  if (weights_get_order(w, "masked_embd_ordering", c->vocab, c->vocab, d->order, e) ||
      bind_matrix(m, w, &(struct bind_matrix){"masked_embd_centroids.weight", &d->centroids, c->n_centroids, c->hidden}, e) ||
      weights_get(w, table, c->vocab, c->hidden, &v, e))
    return -1;
  d->ordered_bytes = (size_t)c->vocab * v.row_bytes;
  if (!(d->ordered = mem_big_alloc(d->ordered_bytes, "the drafter's table", e))) return -1;
  for (int i = 0; i < c->vocab; i++)
    memcpy((char *)d->ordered + (size_t)i * v.row_bytes, (const char *)v.data + (size_t)d->order[i] * v.row_bytes, v.row_bytes);
  d->clusters = xcalloc(n, sizeof *d->clusters);
  for (size_t i = 0; i < n; i++) {
    d->clusters[i] = (struct weight){.dtype = v.dtype,
                                     .rows = (int)rows,
                                     .cols = c->hidden,
                                     .row_bytes = v.row_bytes,
                                     .source = (char *)d->ordered + i * rows * v.row_bytes};
    gemm_quant_mark(&d->clusters[i], weights_type(table, v.dtype, c->hidden, m->plan.quant));
  }
  if (m->dev->ops->weight_bind(m->dev, d->clusters, c->n_centroids, table, e)) return -1;
  m->weight_bytes += d->ordered_bytes;
  for (size_t i = 0; i < n; i++) m->packed_bytes += d->clusters[i].packed_bytes;
  bind_count(&m->products_per_row, &m->decode_bytes, &d->centroids);
  for (int i = 0; i < c->n_centroids_used; i++) bind_count(&m->products_per_row, &m->decode_bytes, &d->clusters[i]);
  weights_done_with(w, &v);
  if (!d->clusters[0].packed) return 0;
  mem_big_free(d->ordered, d->ordered_bytes);
  d->ordered = NULL;
  return 0;
}

/* Clusters where the file has them, whatever the configuration promises; else all of the table. */
static int load_head(struct drafter *d, struct weights *w, struct err *e) {
  struct model *m = &d->base;
  const struct model_config *c = &m->config;
  const char *table = c->tied_head ? "token_embd.weight" : "output.weight";
  if (c->n_centroids && weights_has(w, "masked_embd_centroids.weight") && weights_has(w, "masked_embd_ordering"))
    return load_clusters(d, w, table, e);
  if (bind_matrix(m, w, &(struct bind_matrix){table, &d->head, c->vocab, c->hidden}, e)) return -1;
  bind_count(&m->products_per_row, &m->decode_bytes, &d->head);
  return 0;
}

static int alloc_scratch(struct drafter *d, struct err *e) {
  const struct model_config *c = &d->base.config;
  struct widths w = widths_of(c);
  int rows = d->rows_max, found = d->clusters ? rows * c->n_centroids_used : 0, wide = d->clusters ? d->clusters[0].rows : 0;
  const struct bind_scratch need[] = {{&d->kept, rows, c->backbone_hidden},
                                      {&d->pair, rows, 2 * c->backbone_hidden},
                                      {&d->h, rows, c->hidden},
                                      {&d->x, rows, c->hidden},
                                      {&d->y, rows, c->hidden},
                                      {&d->q, rows, w.q},
                                      {&d->attn, rows, w.q},
                                      {&d->gate, rows, w.ffn},
                                      {&d->up, rows, w.ffn},
                                      {&d->scores, d->clusters ? rows : 0, c->n_centroids},
                                      {&d->found, found, wide}};
  struct device *dev = d->base.dev;
  d->token = xcalloc((size_t)rows, sizeof *d->token);
  if (bind_scratch(&d->base, need, ARRAY_LEN(need), e)) return -1;
  if (!d->clusters) return 0;
  if (dev->ops->host_alloc(dev, &d->scores_host, rows, c->n_centroids, "scores of clusters", e)) return -1;
  return dev->ops->host_alloc(dev, &d->found_host, found, wide, "scores of clusters", e);
}

static size_t vector_bytes(const struct model_config *c) {
  size_t hidden = bind_vector_bytes(c->hidden), n_bytes = hidden;
  for (int l = 0; l < c->n_layers; l++) n_bytes += 4 * hidden + bind_vector_bytes(c->layers[l].head_dim) + bind_vector_bytes(1);
  return n_bytes;
}

struct drafter *drafter_open(const struct model_config *c, struct weights *w, struct model *target, int rows_max, struct err *e) {
  CHECK(target->plan.drafter && rows_max >= 1 && rows_max <= target->plan.rows_max && rows_max <= target->plan.out_max);
  struct drafter *d = xcalloc(1, sizeof *d);
  struct model *m = &d->base;
  m->config = *c;
  m->plan = target->plan;
  m->dev = target->dev;
  d->target = target;
  d->rows_max = rows_max;
  if (drafter_check(c, &target->config, e)) goto fail;
  if (!target->embed || !target->hidden.data) {
    err_set(e, ERR_UNSUPPORTED, "draft model: a %s model hands out no hidden rows", model_family_name(target->config.family));
    goto fail;
  }
  if (arena_init(&d->vectors, vector_bytes(c), "norm weights", e) || load_ropes(d, w, e)) goto fail;
  const struct bind_matrix projections[] = {{"nextn.pre_projection.weight", &d->pre, c->hidden, 2 * c->backbone_hidden},
                                            {"nextn.post_projection.weight", &d->post, c->backbone_hidden, c->hidden}};
  for (size_t i = 0; i < ARRAY_LEN(projections); i++) {
    if (bind_matrix(m, w, &projections[i], e)) goto fail;
    bind_count(&m->products_per_row, &m->decode_bytes, projections[i].out);
  }
  if (bind_vector(m, w, &d->vectors, &(struct bind_vector){"output_norm.weight", &d->output_norm, c->hidden}, e)) goto fail;
  for (int l = 0; l < c->n_layers; l++) {
    if (load_layer(d, w, l, e)) goto fail;
    bind_progress(m, w, false);
  }
  if (load_head(d, w, e) || alloc_scratch(d, e) || bind_hold(m, &d->vectors, e)) goto fail;
  bind_progress(m, w, true);
  if (weights_report_unused(w, false, e)) goto fail;
  return d;
fail:
  drafter_close(d);
  return NULL;
}

void drafter_close(struct drafter *d) {
  if (!d) return;
  struct device *dev = d->base.dev;
  const struct device_ops *ops = dev->ops;
  for (int l = 0; l < d->base.config.n_layers; l++) {
    struct drafter_layer *y = &d->layers[l];
    struct weight *all[] = {&y->q, &y->o, &y->gate, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) ops->weight_free(dev, all[i], 1);
  }
  struct weight *all[] = {&d->pre, &d->post, &d->head, &d->centroids};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) ops->weight_free(dev, all[i], 1);
  if (d->clusters) ops->weight_free(dev, d->clusters, d->base.config.n_centroids);
  struct tensor *scratch[] = {&d->kept, &d->pair, &d->h, &d->x, &d->y, &d->q, &d->attn, &d->gate, &d->up, &d->scores, &d->found};
  for (size_t i = 0; i < ARRAY_LEN(scratch); i++) ops->free(dev, scratch[i]);
  ops->host_free(dev, &d->scores_host);
  ops->host_free(dev, &d->found_host);
  ops->rope_free(dev, &d->rope_full);
  ops->rope_free(dev, &d->rope_sliding);
  bind_drop(&d->base, &d->vectors);
  if (d->ordered) mem_big_free(d->ordered, d->ordered_bytes);
  free(d->clusters);
  free(d->order);
  free(d->chosen);
  free(d->token);
  free(d);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------------- */

/* The first rows of one half of what a step begins with: 0 = the token's embedding, 1 = the hidden row. */
static struct tensor half(const struct drafter *d, int which, int rows) {
  int width = d->base.config.backbone_hidden;
  return tensor_part(d->pair, 0, rows, which * width, width);
}

void drafter_keep(struct drafter *d, int slot, int out) {
  CHECK(slot >= 0 && slot < d->rows_max);
  struct tensor row = tensor_part(d->kept, slot, 1, 0, d->kept.cols);
  int32_t from = out;
  d->base.dev->ops->gather(d->base.dev, &row, &d->target->hidden, &from);
}

static void narrow(struct drafter *d, int rows) {
  struct model *t = d->target;
  d->round.n_rows = d->round.n_seqs = rows;
  t->attn_ops->prepare(t->attn, &d->round);
}

void drafter_begin(struct drafter *d, const struct batch *b, const int32_t *slots) {
  int rows = b->n_rows;
  struct device *dev = d->base.dev;
  CHECK(rows >= 1 && rows <= d->rows_max && b->n_seqs == rows);
  d->round = *b;
  memcpy(d->token, b->token, (size_t)rows * sizeof *d->token);
  narrow(d, rows);
  struct rope_table *tables[] = {&d->rope_full, &d->rope_sliding};
  for (size_t i = 0; i < ARRAY_LEN(tables); i++)
    if (tables[i]->head_dim) dev->ops->rope_step(dev, tables[i], b->pos, rows);
  struct tensor hidden = half(d, 1, rows);
  dev->ops->gather(dev, &hidden, &d->kept, slots);
  d->is_first = true;
}

/* What the layers make of d->h. */
static void run_layers(struct drafter *d, int rows) {
  const struct model_config *c = &d->base.config;
  const struct device_ops *ops = d->base.dev->ops;
  struct device *dev = d->base.dev;
  struct model *t = d->target;
  struct tensor h = part(d->h, rows, c->hidden), x = part(d->x, rows, c->hidden), out = part(d->y, rows, c->hidden);
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *lc = &c->layers[l];
    const struct drafter_layer *y = &d->layers[l];
    int n_qd = lc->n_q * lc->head_dim;
    struct tensor q = part(d->q, rows, n_qd), attn = part(d->attn, rows, n_qd);
    ops->rmsnorm(dev, &x, &h, y->attn_norm, 1, c->norm_eps);
    ops->linear(dev, 1, (const struct weight *[]){&y->q}, (struct tensor *[]){&q}, &x);
    ops->rmsnorm(dev, &q, &q, y->q_norm, lc->n_q, c->norm_eps);
    ops->rope(dev, &q, y->rope);
    t->attn_ops->run(t->attn, t->config.n_layers + l, &q, NULL, NULL, &attn);
    ops->linear(dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&out}, &attn);
    ops->add_rmsnorm(dev, &h, &out, y->post_attention_norm, c->norm_eps);

    struct tensor gate = part(d->gate, rows, lc->ffn), up = part(d->up, rows, lc->ffn);
    ops->rmsnorm(dev, &x, &h, y->ffn_norm, 1, c->norm_eps);
    ops->linear_gated(dev, &gate, &y->gate, &y->up, &x, ACT_GELU_TANH, &up);
    ops->linear(dev, 1, (const struct weight *[]){&y->down}, (struct tensor *[]){&out}, &gate);
    ops->add_rmsnorm(dev, &h, &out, y->post_ffw_norm, c->norm_eps);
    ops->scale(dev, &h, &h, *y->scale);
  }
}

static void guess_of_all(struct drafter *d, const struct tensor *g, int32_t *guesses) {
  struct device *dev = d->base.dev;
  struct tensor logits = tensor_rows(d->target->logits, g->rows);
  dev->ops->linear(dev, 1, (const struct weight *[]){&d->head}, (struct tensor *[]){&logits}, g);
  dev->ops->argmax(dev, guesses, &logits);
  for (int r = 0; r < g->rows; r++) guesses[r] = MAX(0, guesses[r]); /* one of a row that is not finite is wrong, that is all */
}

/* The n greatest of a row, greatest first, the lower index on ties. */
static void choose(const float *scores, int n_scores, int n, int32_t *chosen) {
  int n_chosen = 0;
  for (int i = 0; i < n_scores; i++) {
    if (n_chosen == n && !(scores[i] > scores[chosen[n - 1]])) continue;
    int at = n_chosen < n ? n_chosen++ : n - 1;
    for (; at > 0 && scores[i] > scores[chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
    chosen[at] = i;
  }
}

/* Logits of the tokens in the clusters that one row has chosen: rows of d->found from `first` on. */
static void clusters_of_row(struct drafter *d, const struct tensor *g, int row, const int32_t *chosen, int first) {
  const struct model_config *c = &d->base.config;
  struct device *dev = d->base.dev;
  struct tensor x = tensor_part(*g, row, 1, 0, g->cols), y[CLUSTERS_AT_ONCE], *y_at[CLUSTERS_AT_ONCE];
  const struct weight *w[CLUSTERS_AT_ONCE];
  for (int at = 0, n; at < c->n_centroids_used; at += n) {
    n = MIN(CLUSTERS_AT_ONCE, c->n_centroids_used - at);
    for (int i = 0; i < n; i++) {
      w[i] = &d->clusters[chosen[at + i]];
      y[i] = tensor_part(d->found, first + at + i, 1, 0, d->found.cols);
      y_at[i] = &y[i];
    }
    dev->ops->linear(dev, n, w, y_at, &x);
  }
}

/* The token with the greatest logit of all in the clusters; the lowest token on ties. */
static int32_t best_of_clusters(const struct drafter *d, const int32_t *chosen, int first) {
  int rows = d->clusters[0].rows;
  int32_t guess = 0;
  float best = 0;
  bool has_best = false;
  for (int i = 0; i < d->base.config.n_centroids_used; i++) {
    const int32_t *tokens = d->order + (size_t)chosen[i] * (size_t)rows;
    const float *logits = tensor_row(&d->found_host, first + i);
    for (int j = 0; j < rows; j++) {
      if (has_best && !(logits[j] > best) && !(logits[j] == best && tokens[j] < guess)) continue;
      best = logits[j];
      guess = tokens[j];
      has_best = true;
    }
  }
  return guess;
}

/* Two waits of a far device, however many rows there are: for the clusters' scores, and for the tokens'. */
static void guess_in_clusters(struct drafter *d, const struct tensor *g, int32_t *guesses) {
  const struct model_config *c = &d->base.config;
  struct device *dev = d->base.dev;
  int used = c->n_centroids_used;
  struct tensor scores = part(d->scores, g->rows, c->n_centroids), found = tensor_rows(d->found, g->rows * used);
  dev->ops->linear(dev, 1, (const struct weight *[]){&d->centroids}, (struct tensor *[]){&scores}, g);
  dev->ops->fetch(dev, &d->scores_host, &scores);
  for (int r = 0; r < g->rows; r++) {
    choose(tensor_row(&d->scores_host, r), c->n_centroids, used, d->chosen + r * used);
    clusters_of_row(d, g, r, d->chosen + r * used, r * used);
  }
  dev->ops->fetch(dev, &d->found_host, &found);
  for (int r = 0; r < g->rows; r++) guesses[r] = best_of_clusters(d, d->chosen + r * used, r * used);
}

void drafter_step(struct drafter *d, int rows, int32_t *guesses) {
  const struct model_config *c = &d->base.config;
  const struct device_ops *ops = d->base.dev->ops;
  struct device *dev = d->base.dev;
  CHECK(rows >= 1 && rows <= d->round.n_rows);
  if (rows < d->round.n_rows) narrow(d, rows);
  struct tensor token = half(d, 0, rows), hidden = half(d, 1, rows), pair = part(d->pair, rows, d->pair.cols);
  struct tensor h = part(d->h, rows, c->hidden), g = part(d->x, rows, c->hidden);
  if (!d->is_first) ops->linear(dev, 1, (const struct weight *[]){&d->post}, (struct tensor *[]){&hidden}, &g);
  d->is_first = false;
  ops->embed(dev, &token, d->target->embed, d->token, d->target->config.embed_scale);
  ops->linear(dev, 1, (const struct weight *[]){&d->pre}, (struct tensor *[]){&h}, &pair);
  run_layers(d, rows);
  ops->rmsnorm(dev, &g, &h, d->output_norm, 1, c->norm_eps);
  if (d->clusters) guess_in_clusters(d, &g, guesses);
  else guess_of_all(d, &g, guesses);
  memcpy(d->token, guesses, (size_t)rows * sizeof *d->token);
}
