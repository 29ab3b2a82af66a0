/* mllama.c — the text model of Llama 3.2 Vision: a Llama decoder some of whose layers are cross-attention. docs/models/mllama.md has
 * tensors and quirks.
 *
 *   h = E[token]                                                         vocab + 8 rows; row `vocab` stands for a picture
 *   each self-attention layer:
 *     x = norm(h, attn_norm)
 *     q, k, v = rope(Wq x), rope(Wk x), Wv x
 *     h = h + Wo attention(q, k, v)
 *     h = h + Wd (silu(Wg x) ⊙ Wu x),  x = norm(h, ffn_norm)
 *   each cross-attention layer, for rows that see a bank b:
 *     q = norm(Wq norm(h, attn_norm), q_norm);  k = norm(Wk b, k_norm);  v = Wv b      per head; no rope
 *     h = h + tanh(attn_gate) · Wo attention(q, k, v)
 *     h = h + tanh(ffn_gate) · Wd (silu(Wg x) ⊙ Wu x),  x = norm(h, ffn_norm)
 *   logits = H norm(h, output_norm)                                      vocab rows, untied: no answer has token `vocab` in it
 *
 * norm is x / rms(x) ⊙ w. A row that sees no picture goes through a cross layer unchanged to the bit (DISAGREE, below), so that a step in
 * which nobody sees one leaves those layers out. Keys and values of a bank are made once, by mllama_fill, and stay.
 * Only rows whose logits are wanted go through what follows the last layer's self-attention: no other row's result is ever read.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/bind.h"
#include "models/encoder.h"

enum { PICTURE_ROWS = 8 }; /* of the embedding behind those of the vocabulary */

struct mllama_layer {
  float *attn_norm, *ffn_norm; /* [hidden] */
  float *q_norm, *k_norm;      /* [head_dim], of cross layers */
  float attn_gate, ffn_gate;   /* tanh of the stored scalars */
  struct weight q;             /* [n_q * head_dim, hidden] */
  struct weight k, v;          /* [n_kv * head_dim, hidden]; cross layers: of bank rows */
  struct weight o;             /* [hidden, n_q * head_dim] */
  struct weight gate, up;      /* [ffn, hidden] */
  struct weight down;          /* [hidden, ffn] */
  void *turned[2];             /* sources of q and k, where the file's order of rows is not ours and the device computes from the source */
  size_t turned_bytes[2];
};

struct mllama {
  struct model base; /* first */
  struct mllama_layer layers[CONFIG_LAYERS_MAX];
  struct weight embed; /* [vocab + PICTURE_ROWS, hidden], only looked up */
  struct weight head;  /* [vocab, hidden] */
  float *output_norm;
  struct arena vectors; /* every norm weight */
  struct rope_table rope;
  struct tensor h, x, y;         /* [rows_max, hidden] */
  struct tensor k, v;            /* [rows_max or ENCODER_ROWS, n_kv * head_dim] */
  struct tensor gate, up;        /* [rows_max, ffn or n_q * head_dim] */
  struct tensor q, attn;         /* the memory of gate and up, which come when attention is over */
  struct tensor h_out, attn_out; /* the wanted rows of h and attn: [out_max, ...] */
};

static struct model *mllama_new(void) { return xcalloc(1, sizeof(struct mllama)); }
static void mllama_delete(struct model *m) { free(m); }

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

/* q or k of a self-attention layer. A GGUF has the rows of each head in pairs that rotate together, (0, n/2), (1, n/2 + 1), ...; a
 * checkpoint has all first ones and then all second ones, as rope wants them. */
static int bind_heads(struct mllama *g, struct weights *w, int l, int which, const struct bind_matrix *x, int head_dim, struct err *e) {
  if (!weights_gguf(w)) return bind_layer_matrices(&g->base, w, l, x, 1, e);
  struct mllama_layer *y = &g->layers[l];
  struct weight_view file, ours;
  char name[BIND_NAME_BYTES];
  struct bind_matrix whole = *x;
  whole.name = bind_name(name, l, x->name);
  if (weights_get(w, whole.name, x->rows, x->cols, &file, e)) return -1;
  y->turned_bytes[which] = (size_t)x->rows * file.row_bytes;
  if (!(y->turned[which] = mem_big_alloc(y->turned_bytes[which], whole.name, e))) return -1;
  for (int r = 0; r < x->rows; r++) {
    int at = r % head_dim, to = r - at + at / 2 + at % 2 * (head_dim / 2);
    memcpy((char *)y->turned[which] + (size_t)to * file.row_bytes, (const char *)file.data + (size_t)r * file.row_bytes, file.row_bytes);
  }
  ours = file;
  ours.data = y->turned[which];
  if (bind_view(&g->base, &whole, &ours, e)) return -1;
  weights_done_with(w, &file);
  if (x->out->packed) {
    mem_big_free(y->turned[which], y->turned_bytes[which]);
    y->turned[which] = NULL;
  }
  return 0;
}

/* A gate is stored as it was learnt. */
static int load_gate(struct weights *w, int l, const char *name, float *gate, struct err *e) {
  char whole[BIND_NAME_BYTES];
  float raw;
  snprintf(whole, sizeof whole, "blk.%d.%s", l, name);
  if (weights_get_vector(w, whole, 1, &raw, e)) return -1;
  *gate = tanhf(raw);
  return 0;
}

static int load_self(struct mllama *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  const struct layer_config *lc = &c->layers[l];
  struct mllama_layer *y = &g->layers[l];
  int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
  const struct bind_matrix q = {"attn_q", &y->q, n_qd, c->hidden}, k = {"attn_k", &y->k, n_kvd, c->hidden};
  const struct bind_matrix others[] = {{"attn_v", &y->v, n_kvd, c->hidden}, {"attn_output", &y->o, c->hidden, n_qd}};
  if (bind_heads(g, w, l, 0, &q, lc->head_dim, e) || bind_heads(g, w, l, 1, &k, lc->head_dim, e)) return -1;
  if (bind_layer_matrices(&g->base, w, l, others, ARRAY_LEN(others), e)) return -1;
  bind_count(&g->base.products_per_row, &g->base.decode_bytes, &y->k);
  bind_count(&g->base.products_per_row, &g->base.decode_bytes, &y->v);
  return 0;
}

static int load_cross(struct mllama *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  const struct layer_config *lc = &c->layers[l];
  struct mllama_layer *y = &g->layers[l];
  int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
  const struct bind_vector vectors[] = {{"cross_attn_q_norm", &y->q_norm, lc->head_dim}, {"cross_attn_k_norm", &y->k_norm, lc->head_dim}};
  const struct bind_matrix matrices[] = {{"cross_attn_q_proj", &y->q, n_qd, c->hidden},
                                         {"cross_attn_k_proj", &y->k, n_kvd, c->hidden},
                                         {"cross_attn_v_proj", &y->v, n_kvd, c->hidden},
                                         {"cross_attn_o_proj", &y->o, c->hidden, n_qd}};
  if (bind_layer_vectors(&g->base, w, &g->vectors, l, vectors, ARRAY_LEN(vectors), e)) return -1;
  if (bind_layer_matrices(&g->base, w, l, matrices, ARRAY_LEN(matrices), e)) return -1;
  return load_gate(w, l, "cross_attn_attn_gate", &y->attn_gate, e) || load_gate(w, l, "cross_attn_mlp_gate", &y->ffn_gate, e) ? -1 : 0;
}

static int load_layer(struct mllama *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  const struct layer_config *lc = &c->layers[l];
  struct mllama_layer *y = &g->layers[l];
  const struct bind_vector vectors[] = {{"attn_norm", &y->attn_norm, c->hidden}, {"ffn_norm", &y->ffn_norm, c->hidden}};
  const struct bind_matrix matrices[] = {
      {"ffn_gate", &y->gate, lc->ffn, c->hidden}, {"ffn_up", &y->up, lc->ffn, c->hidden}, {"ffn_down", &y->down, c->hidden, lc->ffn}};
  if (bind_layer_vectors(&g->base, w, &g->vectors, l, vectors, ARRAY_LEN(vectors), e)) return -1;
  if (lc->kind == LAYER_CROSS ? load_cross(g, w, l, e) : load_self(g, w, l, e)) return -1;
  if (bind_layer_matrices(&g->base, w, l, matrices, ARRAY_LEN(matrices), e)) return -1;
  const struct weight *each_row[] = {&y->q, &y->o, &y->gate, &y->up, &y->down};
  for (size_t i = 0; i < ARRAY_LEN(each_row); i++) bind_count(&g->base.products_per_row, &g->base.decode_bytes, each_row[i]);
  return 0;
}

/* Llama 3's scaling: by the configuration, or by the divisors that a GGUF brings along. */
static int load_rope(struct mllama *g, struct weights *w, int head_dim, struct err *e) {
  struct model *m = &g->base;
  const struct rope_config *r = &m->config.rope_full;
  const struct rope_bands *bands = &m->config.rope_bands;
  if (m->dev->ops->rope_init(m->dev, &g->rope, head_dim, r->theta, r->factor, r->rotated, e)) return -1;
  if (!weights_has(w, "rope_freqs.weight")) {
    if (bands->factor > 0) m->dev->ops->rope_bands(m->dev, &g->rope, bands->factor, bands->low, bands->high, bands->tokens);
    return 0;
  }
  float divisors[CONFIG_HEAD_DIM_MAX / 2];
  if (weights_get_vector(w, "rope_freqs.weight", head_dim / 2, divisors, e)) return -1;
  for (int i = 0; i < head_dim / 2; i++)
    if (!(divisors[i] > 0 && isfinite(divisors[i])))
      return err_set(e, ERR_BAD_INPUT, "tensor rope_freqs.weight: expected numbers above 0, number %d is %g", i, (double)divisors[i]);
  m->dev->ops->rope_divide(m->dev, &g->rope, divisors);
  return 0;
}

static int alloc_scratch(struct mllama *g, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  int q = 0, kv = 0, ffn = 0, rows = m->plan.rows_max, fill_rows = m->plan.n_pages[BATCH_CROSS] > 0 ? ENCODER_ROWS : 0;
  for (int l = 0; l < c->n_layers; l++) {
    q = MAX(q, c->layers[l].n_q * c->layers[l].head_dim);
    kv = MAX(kv, c->layers[l].n_kv * c->layers[l].head_dim);
    ffn = MAX(ffn, c->layers[l].ffn);
  }
  const struct bind_scratch need[] = {{&g->h, rows, c->hidden},          {&g->x, rows, c->hidden},
                                      {&g->y, rows, c->hidden},          {&g->k, MAX(rows, fill_rows), kv},
                                      {&g->v, MAX(rows, fill_rows), kv}, {&g->gate, rows, MAX(q, ffn)},
                                      {&g->up, rows, MAX(q, ffn)},       {&g->h_out, m->plan.out_max, c->hidden},
                                      {&g->attn_out, m->plan.out_max, q}};
  if (bind_scratch(m, need, ARRAY_LEN(need), e)) return -1;
  g->q = g->gate;
  g->attn = g->up;
  return 0;
}

static int mllama_load(struct model *m, struct weights *w, struct err *e) {
  struct mllama *g = (struct mllama *)m;
  const struct model_config *c = &m->config;
  int head_dim = c->layers[0].head_dim; /* one head size in this family; the rope table rests on it */
  size_t vector_bytes = bind_vector_bytes(c->hidden);
  for (int l = 0; l < c->n_layers; l++) {
    if (c->layers[l].head_dim != head_dim || head_dim % 2)
      return err_set(e, ERR_UNSUPPORTED, "layer %d: expected one even head size in all layers, found %d beside %d", l,
                     c->layers[l].head_dim, head_dim);
    vector_bytes += 2 * bind_vector_bytes(c->hidden) + 2 * bind_vector_bytes(head_dim);
  }
  if (arena_init(&g->vectors, vector_bytes, "norm weights", e)) return -1;
  if (load_rope(g, w, head_dim, e) || alloc_scratch(g, e)) return -1;

  const struct bind_matrix embed = {"token_embd.weight", &g->embed, c->vocab + PICTURE_ROWS, c->hidden};
  if (bind_table(m, w, &embed, e)) return -1;
  if (bind_head(m, w, &(struct bind_matrix){"output.weight", &g->head, c->vocab, c->hidden}, e)) return -1;
  bind_count_head(m, &g->head);
  if (bind_vector(m, w, &g->vectors, &(struct bind_vector){"output_norm.weight", &g->output_norm, c->hidden}, e)) return -1;
  for (int l = 0; l < c->n_layers; l++) {
    if (load_layer(g, w, l, e)) return -1;
    bind_progress(m, w, false);
  }
  bind_progress(m, w, true);
  if (bind_hold(m, &g->vectors, e)) return -1;
  return weights_report_unused(w, false, e);
}

static void mllama_unload(struct model *m) {
  struct mllama *g = (struct mllama *)m;
  const struct device_ops *d = m->dev->ops;
  for (int l = 0; l < m->config.n_layers; l++) {
    struct mllama_layer *y = &g->layers[l];
    struct weight *all[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) d->weight_free(m->dev, all[i], 1);
    for (int i = 0; i < 2; i++) mem_big_free(y->turned[i], y->turned_bytes[i]);
  }
  d->weight_free(m->dev, &g->embed, 1);
  d->weight_free(m->dev, &g->head, 1);
  struct tensor *scratch[] = {&g->h, &g->x, &g->y, &g->k, &g->v, &g->gate, &g->up, &g->h_out, &g->attn_out};
  for (size_t i = 0; i < ARRAY_LEN(scratch); i++) d->free(m->dev, scratch[i]);
  d->rope_free(m->dev, &g->rope);
  bind_drop(m, &g->vectors);
}

/* ---- banks ------------------------------------------------------------------------------------------------------------ */

static void mllama_fill(struct model *m, const struct tensor *rows, const int64_t *slot) {
  struct mllama *g = (struct mllama *)m;
  const struct model_config *c = &m->config;
  CHECK(rows->rows <= ENCODER_ROWS && rows->cols == c->hidden && m->plan.n_pages[BATCH_CROSS] > 0);
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *lc = &c->layers[l];
    const struct mllama_layer *y = &g->layers[l];
    if (lc->kind != LAYER_CROSS) continue;
    struct tensor k = part(g->k, rows->rows, lc->n_kv * lc->head_dim), v = part(g->v, rows->rows, lc->n_kv * lc->head_dim);
    m->dev->ops->linear(m->dev, 2, (const struct weight *[]){&y->k, &y->v}, (struct tensor *[]){&k, &v}, rows);
    m->dev->ops->rmsnorm(m->dev, &k, &k, y->k_norm, lc->n_kv, c->norm_eps);
    m->attn_ops->fill(m->attn, l, &k, &v, slot);
  }
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

/* out = Wd (silu(Wg x) ⊙ Wu x), x = norm(h, ffn_norm) */
static void feed_forward(struct mllama *g, int l, const struct tensor *h, struct tensor *out) {
  struct model *m = &g->base;
  const struct device_ops *d = m->dev->ops;
  const struct mllama_layer *y = &g->layers[l];
  int ffn = m->config.layers[l].ffn;
  struct tensor x = part(g->x, h->rows, h->cols), gate = part(g->gate, h->rows, ffn), up = part(g->up, h->rows, ffn);
  d->rmsnorm(m->dev, &x, h, y->ffn_norm, 1, m->config.norm_eps);
  TAP(m, "ffn_norm", l, &x);
  d->linear_gated(m->dev, &gate, &y->gate, &y->up, &x, ACT_SILU, &up);
  d->linear(m->dev, 1, (const struct weight *[]){&y->down}, (struct tensor *[]){out}, &gate);
  TAP(m, "ffn", l, out);
}

/* DISAGREE mllama 4.5: transformers lets rows that see no picture take the mean of the values of the whole bank; the release leaves them as
 * they are. */
static void cross_layer(struct mllama *g, int l, const struct batch *b, struct tensor *h) {
  struct model *m = &g->base;
  const struct device_ops *d = m->dev->ops;
  const struct layer_config *lc = &m->config.layers[l];
  const struct mllama_layer *y = &g->layers[l];
  const int32_t *lo = b->lo[BATCH_CROSS], *hi = b->hi[BATCH_CROSS];
  int n_qd = lc->n_q * lc->head_dim;
  struct tensor x = part(g->x, h->rows, h->cols), q = part(g->q, h->rows, n_qd), attn = part(g->attn, h->rows, n_qd);
  struct tensor out = part(g->y, h->rows, h->cols);

  d->rmsnorm(m->dev, &x, h, y->attn_norm, 1, m->config.norm_eps);
  TAP(m, "attn_norm", l, &x);
  d->linear(m->dev, 1, (const struct weight *[]){&y->q}, (struct tensor *[]){&q}, &x);
  d->rmsnorm(m->dev, &q, &q, y->q_norm, lc->n_q, m->config.norm_eps);
  TAP(m, "q", l, &q);
  m->attn_ops->run(m->attn, l, &q, NULL, NULL, &attn);
  TAP(m, "attn", l, &attn);
  d->linear(m->dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&out}, &attn);
  TAP(m, "attn_out", l, &out);
  d->add_scaled(m->dev, h, &out, y->attn_gate, lo, hi);
  feed_forward(g, l, h, &out);
  d->add_scaled(m->dev, h, &out, y->ffn_gate, lo, hi);
}

static void mllama_forward(struct model *m, const struct batch *b, struct tensor *logits) {
  struct mllama *g = (struct mllama *)m;
  const struct model_config *c = &m->config;
  const struct device_ops *d = m->dev->ops;
  struct device *dev = m->dev;
  bool chosen = false; /* h has the wanted rows only */

  d->rope_step(dev, &g->rope, b->pos, b->n_rows);
  struct tensor h = part(g->h, b->n_rows, c->hidden);
  d->embed(dev, &h, &g->embed, b->token, 1);
  TAP(m, "embed", -1, &h);

  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *lc = &c->layers[l];
    const struct mllama_layer *y = &g->layers[l];
    if (lc->kind == LAYER_CROSS) {
      if (b->n_cross > 0) cross_layer(g, l, b, &h);
      TAP(m, "layer_out", l, &h);
      continue;
    }
    int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
    struct tensor x = part(g->x, h.rows, c->hidden), q = part(g->q, h.rows, n_qd), attn = part(g->attn, h.rows, n_qd);
    struct tensor k = part(g->k, h.rows, n_kvd), v = part(g->v, h.rows, n_kvd);

    d->rmsnorm(dev, &x, &h, y->attn_norm, 1, c->norm_eps);
    TAP(m, "attn_norm", l, &x);
    d->linear(dev, 3, (const struct weight *[]){&y->q, &y->k, &y->v}, (struct tensor *[]){&q, &k, &v}, &x);
    d->rope(dev, &q, &g->rope);
    d->rope(dev, &k, &g->rope);
    TAP(m, "q", l, &q);
    TAP(m, "k", l, &k);
    TAP(m, "v", l, &v);
    m->attn_ops->run(m->attn, l, &q, &k, &v, &attn);
    TAP(m, "attn", l, &attn);

    if (l == c->n_layers - 1 && !m->tap) { /* what follows serves the wanted rows only */
      if (b->n_out == 0) return;
      struct tensor attn_all = attn, h_all = h;
      attn = part(g->attn_out, b->n_out, n_qd);
      h = part(g->h_out, b->n_out, c->hidden);
      d->gather(dev, &attn, &attn_all, b->out);
      d->gather(dev, &h, &h_all, b->out);
      chosen = true;
    }

    struct tensor out = part(g->y, h.rows, c->hidden);
    d->linear(dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&out}, &attn);
    TAP(m, "attn_out", l, &out);
    d->add(dev, &h, &out);
    feed_forward(g, l, &h, &out);
    d->add(dev, &h, &out);
    TAP(m, "layer_out", l, &h);
  }

  if (b->n_out == 0) return;
  if (!chosen) { /* every row came this far */
    struct tensor h_all = h;
    h = part(g->h_out, b->n_out, c->hidden);
    d->gather(dev, &h, &h_all, b->out);
  }
  struct tensor x = part(g->x, b->n_out, c->hidden);
  d->rmsnorm(dev, &x, &h, g->output_norm, 1, c->norm_eps);
  TAP(m, "final_norm", -1, &x);
  model_head(m, logits, &g->head, &x, 0, b);
}

const struct model_ops model_mllama_ops = {.family = FAMILY_MLLAMA,
                                           .new_model = mllama_new,
                                           .delete_model = mllama_delete,
                                           .load = mllama_load,
                                           .unload = mllama_unload,
                                           .forward = mllama_forward,
                                           .fill = mllama_fill};
