/* gemma3.c — Gemma 3 text, 270M to 27B. docs/models/gemma3.md has tensors, numerics and quirks.
 *
 *   h = E[token] · sqrt(hidden)                                          unrounded float32 (DISAGREE, below); soft rows as they are
 *   each layer:
 *     x = norm(h, attn_norm)
 *     q, k, v = Wq x, Wk x, Wv x;   q = rope(norm(q, q_norm));  k = rope(norm(k, k_norm))        per head
 *     h = h + norm(Wo attention(q, k, v), post_attention_norm)
 *     x = norm(h, ffn_norm)
 *     h = h + norm(Wd (gelu(Wg x) ⊙ Wu x), post_ffw_norm)
 *   logits = softcap(E norm(h, output_norm))                             tied unless output.weight exists; softcap off in released files
 *
 * norm is x / rms(x) ⊙ w with 1 already added to w. Sliding layers rotate with theta 1e4 and no scaling, full layers with theta 1e6 and linear scaling.
 * Only rows whose logits are wanted go through what follows the last attention: no other row's result is ever read.
 */
#include <stdlib.h>

#include "models/bind.h"

struct gemma3_layer {
  float *attn_norm, *post_attention_norm, *ffn_norm, *post_ffw_norm; /* [hidden] */
  float *q_norm, *k_norm;                                            /* [head_dim] */
  struct weight q;                                                   /* [n_q * head_dim, hidden] */
  struct weight k, v;                                                /* [n_kv * head_dim, hidden] */
  struct weight o;                                                   /* [hidden, n_q * head_dim] */
  struct weight gate, up;                                            /* [ffn, hidden] */
  struct weight down;                                                /* [hidden, ffn] */
  const struct rope_table *rope;
};

struct gemma3 {
  struct model base; /* first */
  struct gemma3_layer layers[CONFIG_LAYERS_MAX];
  struct weight embed; /* [vocab, hidden]; also the head when tied */
  struct weight head;  /* [vocab, hidden]; rows 0 when tied */
  float *output_norm;
  struct arena vectors; /* every norm weight */
  struct rope_table rope_full, rope_sliding;
  struct tensor h, x, y;         /* [rows_max, hidden] */
  struct tensor k, v;            /* [rows_max, heads * head_dim], widest layer */
  struct tensor gate, up;        /* [rows_max, ffn or heads * head_dim], widest layer */
  struct tensor q, attn;         /* the memory of gate and up, which come when attention is over */
  struct tensor h_out, attn_out; /* the wanted rows of h and attn: [out_max, ...] */
};

static struct model *gemma3_new(void) { return xcalloc(1, sizeof(struct gemma3)); }
static void gemma3_delete(struct model *m) { free(m); }

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

static int load_layer(struct gemma3 *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  const struct layer_config *lc = &c->layers[l];
  struct gemma3_layer *y = &g->layers[l];
  int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
  const struct bind_vector vectors[] = {
      {"attn_norm", &y->attn_norm, c->hidden},   {"post_attention_norm", &y->post_attention_norm, c->hidden},
      {"ffn_norm", &y->ffn_norm, c->hidden},     {"post_ffw_norm", &y->post_ffw_norm, c->hidden},
      {"attn_q_norm", &y->q_norm, lc->head_dim}, {"attn_k_norm", &y->k_norm, lc->head_dim}};
  const struct bind_matrix matrices[] = {{"attn_q", &y->q, n_qd, c->hidden},         {"attn_k", &y->k, n_kvd, c->hidden},
                                         {"attn_v", &y->v, n_kvd, c->hidden},        {"attn_output", &y->o, c->hidden, n_qd},
                                         {"ffn_gate", &y->gate, lc->ffn, c->hidden}, {"ffn_up", &y->up, lc->ffn, c->hidden},
                                         {"ffn_down", &y->down, c->hidden, lc->ffn}};
  if (bind_layer_vectors(&g->base, w, &g->vectors, l, vectors, ARRAY_LEN(vectors), e)) return -1;
  if (bind_layer_matrices(&g->base, w, l, matrices, ARRAY_LEN(matrices), e)) return -1;
  for (size_t i = 0; i < ARRAY_LEN(matrices); i++) { /* behind the last layer's attention stand the wanted rows only */
    bool wanted = l == c->n_layers - 1 && i > 2;
    bind_count(wanted ? &g->base.products_per_out : &g->base.products_per_row, &g->base.decode_bytes, matrices[i].out);
  }
  y->rope = lc->kind == LAYER_SLIDING ? &g->rope_sliding : &g->rope_full;
  return 0;
}

static int alloc_scratch(struct gemma3 *g, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  int q = 0, kv = 0, ffn = 0, rows = m->plan.rows_max;
  for (int l = 0; l < c->n_layers; l++) {
    q = MAX(q, c->layers[l].n_q * c->layers[l].head_dim);
    kv = MAX(kv, c->layers[l].n_kv * c->layers[l].head_dim);
    ffn = MAX(ffn, c->layers[l].ffn);
  }
  const struct bind_scratch need[] = {{&g->h, rows, c->hidden},
                                      {&g->x, rows, c->hidden},
                                      {&g->y, rows, c->hidden},
                                      {&g->k, rows, kv},
                                      {&g->v, rows, kv},
                                      {&g->gate, rows, MAX(q, ffn)},
                                      {&g->up, rows, MAX(q, ffn)},
                                      {&g->h_out, m->plan.out_max, c->hidden},
                                      {&g->attn_out, m->plan.out_max, q}};
  if (bind_scratch(m, need, ARRAY_LEN(need), e)) return -1;
  g->q = g->gate;
  g->attn = g->up;
  return 0;
}

static int gemma3_load(struct model *m, struct weights *w, struct err *e) {
  struct gemma3 *g = (struct gemma3 *)m;
  const struct model_config *c = &m->config;
  const struct device_ops *d = m->dev->ops;
  int head_dim = c->layers[0].head_dim; /* one head size in this family; both rope tables rest on it */
  size_t vector_bytes = bind_vector_bytes(c->hidden);
  for (int l = 0; l < c->n_layers; l++) {
    if (c->layers[l].head_dim != head_dim || head_dim % 2)
      return err_set(e, ERR_UNSUPPORTED, "layer %d: expected one even head size in all layers, found %d beside %d", l,
                     c->layers[l].head_dim, head_dim);
    vector_bytes += 4 * bind_vector_bytes(c->hidden) + 2 * bind_vector_bytes(head_dim);
  }
  if (arena_init(&g->vectors, vector_bytes, "norm weights", e)) return -1;
  if (d->rope_init(m->dev, &g->rope_full, head_dim, c->rope_full.theta, c->rope_full.factor, c->rope_full.rotated, e)) return -1;
  if (d->rope_init(m->dev, &g->rope_sliding, head_dim, c->rope_sliding.theta, c->rope_sliding.factor, c->rope_sliding.rotated, e))
    return -1;
  if (alloc_scratch(g, e)) return -1;

  if (bind_embedding(m, w, &g->embed, &g->head, e)) return -1;
  bind_count_head(m, g->head.rows ? &g->head : &g->embed);
  if (bind_vector(m, w, &g->vectors, &(struct bind_vector){"output_norm.weight", &g->output_norm, c->hidden}, e)) return -1;
  for (int l = 0; l < c->n_layers; l++) {
    if (load_layer(g, w, l, e)) return -1;
    bind_progress(m, w, false);
  }
  bind_progress(m, w, true);
  if (bind_hold(m, &g->vectors, e)) return -1;
  return weights_report_unused(w, false, e);
}

static void gemma3_unload(struct model *m) {
  struct gemma3 *g = (struct gemma3 *)m;
  const struct device_ops *d = m->dev->ops;
  for (int l = 0; l < m->config.n_layers; l++) {
    struct gemma3_layer *y = &g->layers[l];
    struct weight *all[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) d->weight_free(m->dev, all[i], 1);
  }
  d->weight_free(m->dev, &g->embed, 1);
  d->weight_free(m->dev, &g->head, 1);
  struct tensor *scratch[] = {&g->h, &g->x, &g->y, &g->k, &g->v, &g->gate, &g->up, &g->h_out, &g->attn_out};
  for (size_t i = 0; i < ARRAY_LEN(scratch); i++) d->free(m->dev, scratch[i]);
  d->rope_free(m->dev, &g->rope_full);
  d->rope_free(m->dev, &g->rope_sliding);
  bind_drop(m, &g->vectors);
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

static void gemma3_forward(struct model *m, const struct batch *b, struct tensor *logits) {
  struct gemma3 *g = (struct gemma3 *)m;
  const struct model_config *c = &m->config;
  const struct device_ops *d = m->dev->ops;
  struct device *dev = m->dev;
  const float eps = c->norm_eps;
  int rows = b->n_rows;

  d->rope_step(dev, &g->rope_full, b->pos, rows);
  d->rope_step(dev, &g->rope_sliding, b->pos, rows);

  struct tensor h = part(g->h, rows, c->hidden);
  /* DISAGREE: the released bf16 code rounds sqrt(hidden) to bf16; float32 references and llama.cpp do not. We do not. */
  d->embed(dev, &h, &g->embed, b->token, c->embed_scale);
  if (b->n_soft > 0) d->put_rows(dev, &h, &m->soft, b->soft);
  TAP(m, "embed", -1, &h);

  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *lc = &c->layers[l];
    const struct gemma3_layer *y = &g->layers[l];
    int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
    struct tensor x = part(g->x, rows, c->hidden), q = part(g->q, rows, n_qd), k = part(g->k, rows, n_kvd), v = part(g->v, rows, n_kvd);
    struct tensor attn = part(g->attn, rows, n_qd);

    d->rmsnorm(dev, &x, &h, y->attn_norm, 1, eps);
    TAP(m, "attn_norm", l, &x);
    d->linear(dev, 3, (const struct weight *[]){&y->q, &y->k, &y->v}, (struct tensor *[]){&q, &k, &v}, &x);
    d->rmsnorm(dev, &q, &q, y->q_norm, lc->n_q, eps);
    d->rmsnorm(dev, &k, &k, y->k_norm, lc->n_kv, eps);
    d->rope(dev, &q, y->rope);
    d->rope(dev, &k, y->rope);
    TAP(m, "q", l, &q);
    TAP(m, "k", l, &k);
    TAP(m, "v", l, &v);
    m->attn_ops->run(m->attn, l, &q, &k, &v, &attn);
    TAP(m, "attn", l, &attn);

    if (l == c->n_layers - 1 && !m->tap) { /* what follows serves the wanted rows only */
      if (b->n_out == 0) return;
      rows = b->n_out;
      struct tensor attn_all = attn, h_all = h;
      attn = part(g->attn_out, rows, n_qd);
      h = part(g->h_out, rows, c->hidden);
      d->gather(dev, &attn, &attn_all, b->out);
      d->gather(dev, &h, &h_all, b->out);
      x = part(g->x, rows, c->hidden);
    }

    struct tensor out = part(g->y, rows, c->hidden), gate = part(g->gate, rows, lc->ffn), up = part(g->up, rows, lc->ffn);
    d->linear(dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&out}, &attn);
    d->sum_shards(dev, &out);
    TAP(m, "attn_out", l, &out);
    d->add_rmsnorm(dev, &h, &out, y->post_attention_norm, eps);

    d->rmsnorm(dev, &x, &h, y->ffn_norm, 1, eps);
    TAP(m, "ffn_norm", l, &x);
    d->linear_gated(dev, &gate, &y->gate, &y->up, &x, ACT_GELU_TANH, &up);
    d->linear(dev, 1, (const struct weight *[]){&y->down}, (struct tensor *[]){&out}, &gate);
    d->sum_shards(dev, &out);
    TAP(m, "ffn", l, &out);
    d->add_rmsnorm(dev, &h, &out, y->post_ffw_norm, eps);
    TAP(m, "layer_out", l, &h);
  }

  if (b->n_out == 0) return;
  if (m->tap) { /* every row came this far: choose now */
    struct tensor h_all = h;
    h = part(g->h_out, b->n_out, c->hidden);
    d->gather(dev, &h, &h_all, b->out);
  }
  struct tensor x = part(g->x, b->n_out, c->hidden);
  d->rmsnorm(dev, &x, &h, g->output_norm, 1, eps);
  TAP(m, "final_norm", -1, &x);
  model_head(m, logits, g->head.rows ? &g->head : &g->embed, &x, c->final_softcap, b);
}

const struct model_ops model_gemma3_ops = {.family = FAMILY_GEMMA3,
                                           .new_model = gemma3_new,
                                           .delete_model = gemma3_delete,
                                           .load = gemma3_load,
                                           .unload = gemma3_unload,
                                           .forward = gemma3_forward};
