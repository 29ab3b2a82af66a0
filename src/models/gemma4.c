/* gemma4.c — Gemma 4 text: E2B, E4B, 12B, 26B-A4B, 31B. docs/models/gemma4.md has tensors, numerics and quirks.
 *
 *   h = E[token] · sqrt(hidden)                                          unrounded float32 (DISAGREE, below); soft rows as they are
 *   u = (norm(M h / sqrt(hidden), proj_norm) + T[token] · sqrt(P)) / √2  E2B, E4B: P numbers for each layer; norm over each P apart
 *   each layer:
 *     x = norm(h, attn_norm)
 *     q = rope(norm(Wq x, q_norm))                                       per head; scores are not scaled
 *     k = rope(norm(Wk x, k_norm));  v = norm(Wv x)                      only where the layer owns keys and values; else its donor's are read
 *                                                                        v_from_k: v = norm(Wk x), before k's norm and rope
 *     h = h + norm(Wo attention(q, k, v), post_attention_norm)
 *     f = Wd (gelu(Wg norm(h, ffn_norm)) ⊙ Wu norm(h, ffn_norm))
 *     26B-A4B:  f = norm(f, post_ffw_norm_1) + norm(experts, post_ffw_norm_2)
 *               experts = moe(norm(h, pre_ffw_norm_2)) chosen by Wr (norm(h) ⊙ router_scale / sqrt(hidden))          compute/moe.h
 *     h = h + norm(f, post_ffw_norm)
 *     E2B, E4B: h = h + norm(Wp (gelu(Wi h) ⊙ u[layer]), post_norm)
 *     h = h · layer_output_scale
 *   logits = softcap(E norm(h, output_norm))
 *
 * norm is x / rms(x) ⊙ w, w as stored; without w: 1. Sliding and full layers differ in head size, key heads and rope, the latter's turning only its
 * first pairs. After the attention of the last layer that owns keys, nobody reads the rows whose logits are not wanted: they stay behind there.
 */
#include <math.h>
#include <stdlib.h>

#include "compute/gemm_quant.h"
#include "models/bind.h"

struct gemma4_layer {
  float *attn_norm, *post_attention_norm, *ffn_norm, *post_ffw_norm; /* [hidden] */
  float *q_norm, *k_norm;                                            /* [head_dim] */
  struct weight q;                                                   /* [n_q * head_dim, hidden] */
  struct weight k, v;     /* [n_kv * head_dim, hidden]; rows 0 where the layer reads another's, v also where values come from keys */
  struct weight o;        /* [hidden, n_q * head_dim] */
  struct weight gate, up; /* [ffn, hidden] */
  struct weight down;     /* [hidden, ffn] */
  float *scale;           /* [1] */
  const struct rope_table *rope;
  /* per-layer embeddings */
  struct weight ple_gate; /* [P, hidden] */
  struct weight ple_proj; /* [hidden, P] */
  float *ple_norm;        /* [hidden] */
  /* experts */
  float *pre_experts_norm, *post_mlp_norm, *post_experts_norm; /* [hidden]: pre_ffw_norm_2, post_ffw_norm_1, post_ffw_norm_2 */
  float *router_norm;                                          /* [hidden]: the router's scale / sqrt(hidden) */
  float *expert_scale;                                         /* [n_experts] */
  struct weight router;                                        /* [n_experts, hidden], F32 whatever the file has */
  float *router_rows;                                          /* its source, where that is not the file's; router_bytes */
  size_t router_bytes;
  struct moe moe;
};

struct gemma4 {
  struct model base; /* first */
  struct gemma4_layer layers[CONFIG_LAYERS_MAX];
  struct weight embed;        /* [vocab, hidden]; also the head when tied */
  struct weight head;         /* [vocab, hidden]; rows 0 when tied */
  struct weight ple_table;    /* [ple_vocab, n_layers * P], only looked up */
  struct weight ple_model[2]; /* [layers * P, hidden]: of layers before last_owner, which every row wants, and from there on */
  float *ple_model_norm;      /* [P], times 1/√2 */
  float *output_norm;
  struct arena vectors;                      /* every norm weight, scale */
  struct rope_table rope_full, rope_sliding; /* head_dim 0: no such layer */
  int last_owner;                            /* the last layer that owns keys and values */
  struct tensor h, x, y;                     /* [rows_max, hidden] */
  struct tensor k, v;                        /* [rows_max, heads * head_dim], widest layer */
  struct tensor gate, up;                    /* [rows_max, ffn, P or heads * head_dim], widest layer */
  struct tensor q, attn;                     /* the memory of gate and up, which come when attention is over */
  struct tensor ple;                         /* [rows_max, n_layers * P] */
  struct tensor router_logits;               /* [rows_max, n_experts] */
  struct tensor experts;                     /* [rows_max, hidden] */
  struct tensor h_out, attn_out, ple_out;    /* the wanted rows: [out_max, ...]; ple_out from layer last_owner on */
  struct batch wanted;                       /* the step's wanted rows as a batch that writes nothing */
};

static struct model *gemma4_new(void) { return xcalloc(1, sizeof(struct gemma4)); }
static void gemma4_delete(struct model *m) { free(m); }

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

static bool owns_keys(const struct model_config *c, int l) { return c->layers[l].kv_donor == l; }

/* Weights of layers before the last owner's attention serve every row, those after it the wanted rows; one decoding step reads all. */
static void count_layer(struct gemma4 *g, int l) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  struct gemma4_layer *y = &g->layers[l];
  struct model_products *before = l <= g->last_owner ? &m->products_per_row : &m->products_per_out;
  struct model_products *after = l < g->last_owner ? &m->products_per_row : &m->products_per_out;
  const struct weight *in[] = {&y->q, &y->k, &y->v}, *out[] = {&y->o, &y->gate, &y->up, &y->down, &y->ple_gate, &y->ple_proj, &y->router};
  for (size_t i = 0; i < ARRAY_LEN(in); i++) bind_count(before, &m->decode_bytes, in[i]);
  for (size_t i = 0; i < ARRAY_LEN(out); i++) bind_count(after, &m->decode_bytes, out[i]);
  for (int i = 0; i < c->n_experts_used; i++) {
    bind_count(after, &m->decode_bytes, &y->moe.gate[i]);
    bind_count(after, &m->decode_bytes, &y->moe.up[i]);
    bind_count(after, &m->decode_bytes, &y->moe.down[i]);
  }
}

/* The choice hangs on small differences: float32 on every level. */
static int load_router(struct gemma4 *g, struct weights *w, int l, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  struct gemma4_layer *y = &g->layers[l];
  struct weight_view v;
  char name[BIND_NAME_BYTES];
  bind_name(name, l, "ffn_gate_inp");
  if (weights_get(w, name, c->n_experts, c->hidden, &v, e)) return -1;
  y->router = (struct weight){.dtype = DTYPE_F32, .rows = c->n_experts, .cols = c->hidden, .row_bytes = v.row_bytes, .source = v.data};
  if (v.dtype != DTYPE_F32) {
    y->router.row_bytes = (size_t)c->hidden * sizeof(float);
    y->router_bytes = (size_t)c->n_experts * y->router.row_bytes;
    if (!(y->router_rows = mem_big_alloc(y->router_bytes, name, e))) return -1;
    for (int r = 0; r < c->n_experts; r++)
      dtype_to_f32(v.dtype, (const char *)v.data + (size_t)r * v.row_bytes, y->router_rows + (size_t)r * (size_t)c->hidden,
                   (size_t)c->hidden);
    y->router.source = y->router_rows;
  }
  if (m->dev->ops->weight_bind(m->dev, &y->router, 1, name, e)) return -1;
  m->weight_bytes += (size_t)v.rows * v.row_bytes;
  m->packed_bytes += y->router.packed_bytes;
  if (!y->router.packed) return 0;
  mem_big_free(y->router_rows, y->router_bytes);
  y->router_rows = NULL;
  weights_done_with(w, &v);
  return 0;
}

/* One kind of matrix of all experts, in one block. */
static int load_experts(struct gemma4 *g, struct weights *w, int l, enum weights_expert which, struct err *e) {
  static const char *const names[] = {[EXPERT_GATE] = "ffn_gate_exps", [EXPERT_UP] = "ffn_up_exps", [EXPERT_DOWN] = "ffn_down_exps"};
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  struct moe *moe = &g->layers[l].moe;
  struct weight *all = which == EXPERT_GATE ? moe->gate : which == EXPERT_UP ? moe->up : moe->down;
  int rows = which == EXPERT_DOWN ? c->hidden : c->expert_ffn, cols = which == EXPERT_DOWN ? c->expert_ffn : c->hidden, rc = -1;
  struct weight_view *views = xcalloc(2 * (size_t)c->n_experts, sizeof *views), *whole = views + c->n_experts;
  char name[BIND_NAME_BYTES];
  bind_name(name, l, names[which]);
  for (int i = 0; i < c->n_experts; i++) {
    struct weight_view *v = &views[i];
    if (shard_get_expert(&m->shard, w, l, which, i, rows, cols, v, &whole[i], e)) goto out;
    all[i] = (struct weight){.dtype = v->dtype, .rows = rows, .cols = cols, .row_bytes = v->row_bytes, .source = v->data};
    if (v->dtype != views[0].dtype) {
      err_set(e, ERR_UNSUPPORTED, "tensor %s: expected one type for all experts, found %s and %s", name, dtype_info(views[0].dtype)->name,
              dtype_info(v->dtype)->name);
      goto out;
    }
    gemm_quant_mark(&all[i], weights_type(name, v->dtype, cols, m->plan.quant));
    m->weight_bytes += (size_t)v->rows * v->row_bytes;
  }
  if (m->dev->ops->weight_bind(m->dev, all, c->n_experts, name, e)) goto out;
  for (int i = 0; i < c->n_experts; i++) {
    m->packed_bytes += all[i].packed_bytes;
    if (all[i].packed) weights_done_with(w, &whole[i]);
  }
  rc = 0;
out:
  free(views);
  return rc;
}

static int load_mixture(struct gemma4 *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  struct gemma4_layer *y = &g->layers[l];
  const struct bind_vector vectors[] = {{"pre_ffw_norm_2", &y->pre_experts_norm, c->hidden},
                                        {"post_ffw_norm_1", &y->post_mlp_norm, c->hidden},
                                        {"post_ffw_norm_2", &y->post_experts_norm, c->hidden},
                                        {"ffn_gate_inp.scale", &y->router_norm, c->hidden},
                                        {"ffn_down_exps.scale", &y->expert_scale, c->n_experts}};
  if (bind_layer_vectors(&g->base, w, &g->vectors, l, vectors, ARRAY_LEN(vectors), e) || load_router(g, w, l, e)) return -1;
  for (int i = 0; i < c->hidden; i++) y->router_norm[i] = (float)((double)y->router_norm[i] / sqrt((double)c->hidden));
  size_t n = (size_t)c->n_experts;
  struct weight *all = xcalloc(3 * n, sizeof *all);
  y->moe = (struct moe){c->n_experts, c->n_experts_used, all, all + n, all + 2 * n, y->expert_scale};
  for (int which = EXPERT_GATE; which <= EXPERT_DOWN; which++)
    if (load_experts(g, w, l, (enum weights_expert)which, e)) return -1;
  enum dtype gate = y->moe.gate->dtype, up = y->moe.up->dtype;
  if (gate != up && !(dtype_info(gate)->quantised && dtype_info(up)->quantised))
    return err_set(e, ERR_UNSUPPORTED, "layer %d: expected gate and up experts both quantised or of one type, found %s and %s", l,
                   dtype_info(gate)->name, dtype_info(up)->name);
  return 0;
}

static int load_layer(struct gemma4 *g, struct weights *w, int l, struct err *e) {
  const struct model_config *c = &g->base.config;
  const struct layer_config *lc = &c->layers[l];
  struct gemma4_layer *y = &g->layers[l];
  int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
  const struct bind_vector vectors[] = {
      {"attn_norm", &y->attn_norm, c->hidden},   {"post_attention_norm", &y->post_attention_norm, c->hidden},
      {"ffn_norm", &y->ffn_norm, c->hidden},     {"post_ffw_norm", &y->post_ffw_norm, c->hidden},
      {"attn_q_norm", &y->q_norm, lc->head_dim}, {"layer_output_scale", &y->scale, 1}};
  const struct bind_matrix matrices[] = {{"attn_q", &y->q, n_qd, c->hidden},
                                         {"attn_output", &y->o, c->hidden, n_qd},
                                         {"ffn_gate", &y->gate, lc->ffn, c->hidden},
                                         {"ffn_up", &y->up, lc->ffn, c->hidden},
                                         {"ffn_down", &y->down, c->hidden, lc->ffn}};
  if (bind_layer_vectors(&g->base, w, &g->vectors, l, vectors, ARRAY_LEN(vectors), e) ||
      bind_layer_matrices(&g->base, w, l, matrices, ARRAY_LEN(matrices), e))
    return -1;
  if (owns_keys(c, l)) {
    const struct bind_vector k_norm = {"attn_k_norm", &y->k_norm, lc->head_dim};
    const struct bind_matrix kv[] = {{"attn_k", &y->k, n_kvd, c->hidden}, {"attn_v", &y->v, n_kvd, c->hidden}};
    if (bind_layer_vectors(&g->base, w, &g->vectors, l, &k_norm, 1, e) || bind_layer_matrices(&g->base, w, l, kv, lc->v_from_k ? 1 : 2, e))
      return -1;
  }
  if (c->ple) {
    const struct bind_vector norm = {"post_norm", &y->ple_norm, c->hidden};
    const struct bind_matrix ple[] = {{"inp_gate", &y->ple_gate, c->ple, c->hidden}, {"proj", &y->ple_proj, c->hidden, c->ple}};
    if (bind_layer_vectors(&g->base, w, &g->vectors, l, &norm, 1, e) || bind_layer_matrices(&g->base, w, l, ple, ARRAY_LEN(ple), e))
      return -1;
  }
  if (c->n_experts && load_mixture(g, w, l, e)) return -1;
  y->rope = lc->kind == LAYER_SLIDING ? &g->rope_sliding : &g->rope_full;
  count_layer(g, l);
  return 0;
}

/* Head size of the layers of a kind, which share a rope table; 0 = there are none. */
static int head_dim_of(const struct model_config *c, enum layer_kind kind, int *head_dim, struct err *e) {
  *head_dim = 0;
  for (int l = 0; l < c->n_layers; l++) {
    int here = c->layers[l].head_dim;
    if (c->layers[l].kind != kind) continue;
    if (here % 2 || (*head_dim && here != *head_dim))
      return err_set(e, ERR_UNSUPPORTED, "layer %d: expected one even head size in all layers of its kind, found %d beside %d", l, here,
                     *head_dim);
    *head_dim = here;
  }
  return 0;
}

/* A GGUF says which pairs of full layers turn by what their frequencies are divided by: the factor (1), n times, then 1e30. */
static int read_rope_freqs(struct gemma4 *g, struct weights *w, int half, double *rotated, struct err *e) {
  static const char name[] = "rope_freqs.weight";
  float *f, factor = (float)g->base.config.rope_full.factor;
  if (!weights_has(w, name)) return 0;
  if (bind_vector(&g->base, w, &g->vectors, &(struct bind_vector){name, &f, half}, e)) return -1;
  int n = 0;
  while (n < half && f[n] == factor) n++;
  for (int i = n; i < half; i++)
    if (!(f[i] >= 1e29f))
      return err_set(e, ERR_UNSUPPORTED, "tensor %s: expected %g for the pairs that turn and then at least 1e29, element %d is %g", name,
                     (double)factor, i, (double)f[i]);
  *rotated = (double)n / half;
  return 0;
}

static int load_ropes(struct gemma4 *g, struct weights *w, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  int full, sliding;
  double rotated = c->rope_full.rotated;
  if (head_dim_of(c, LAYER_FULL, &full, e) || head_dim_of(c, LAYER_SLIDING, &sliding, e)) return -1;
  if (full && (read_rope_freqs(g, w, full / 2, &rotated, e) ||
               m->dev->ops->rope_init(m->dev, &g->rope_full, full, c->rope_full.theta, c->rope_full.factor, rotated, e)))
    return -1;
  if (!sliding) return 0;
  return m->dev->ops->rope_init(m->dev, &g->rope_sliding, sliding, c->rope_sliding.theta, c->rope_sliding.factor, c->rope_sliding.rotated,
                                e);
}

static int alloc_vectors(struct gemma4 *g, struct err *e) {
  const struct model_config *c = &g->base.config;
  size_t hidden = bind_vector_bytes(c->hidden), n_bytes = hidden + bind_vector_bytes(c->ple);
  int head_dim = 0;
  for (int l = 0; l < c->n_layers; l++) {
    head_dim = MAX(head_dim, c->layers[l].head_dim);
    n_bytes += 4 * hidden + 2 * bind_vector_bytes(c->layers[l].head_dim) + bind_vector_bytes(1);
    if (c->ple) n_bytes += hidden;
    if (c->n_experts) n_bytes += 4 * hidden + bind_vector_bytes(c->n_experts);
  }
  return arena_init(&g->vectors, n_bytes + bind_vector_bytes(head_dim), "norm weights", e);
}

static int alloc_scratch(struct gemma4 *g, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  int q = 0, kv = 0, ffn = c->ple, rows = m->plan.rows_max, out = m->plan.out_max;
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
                                      {&g->ple, rows, c->n_layers * c->ple},
                                      {&g->router_logits, rows, c->n_experts},
                                      {&g->experts, rows, c->n_experts ? c->hidden : 0},
                                      {&g->h_out, out, c->hidden},
                                      {&g->attn_out, out, q},
                                      {&g->ple_out, out, (c->n_layers - g->last_owner) * c->ple}};
  struct batch *b = &g->wanted;
  b->token = xcalloc((size_t)out, sizeof *b->token);
  b->pos = xcalloc((size_t)out, sizeof *b->pos);
  b->seq = xcalloc((size_t)out, sizeof *b->seq);
  b->q_start = xcalloc((size_t)m->plan.seqs_max + 1, sizeof *b->q_start);
  for (int k = 0; k < KV_KINDS; k++) {
    b->lo[k] = xcalloc((size_t)out, sizeof *b->lo[k]);
    b->hi[k] = xcalloc((size_t)out, sizeof *b->hi[k]);
    b->slot[k] = xcalloc((size_t)out, sizeof *b->slot[k]); /* 0 = nowhere */
  }
  if (bind_scratch(m, need, ARRAY_LEN(need), e)) return -1;
  g->q = g->gate;
  g->attn = g->up;
  return 0;
}

static int load_ple(struct gemma4 *g, struct weights *w, struct err *e) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  int all = c->n_layers * c->ple;
  struct weight_view v;
  if (weights_get(w, "per_layer_token_embd.weight", c->ple_vocab, all, &v, e)) return -1;
  g->ple_table = (struct weight){.dtype = v.dtype, .rows = c->ple_vocab, .cols = all, .row_bytes = v.row_bytes, .source = v.data};
  if (m->dev->ops->table_bind(m->dev, &g->ple_table, "per_layer_token_embd.weight", e)) return -1;
  m->weight_bytes += (size_t)v.rows * v.row_bytes;
  m->packed_bytes += g->ple_table.packed_bytes;
  m->decode_bytes += v.row_bytes;
  if (g->ple_table.packed) weights_done_with(w, &v);
  if (bind_vector(m, w, &g->vectors, &(struct bind_vector){"per_layer_proj_norm.weight", &g->ple_model_norm, c->ple}, e)) return -1;
  for (int i = 0; i < c->ple; i++) g->ple_model_norm[i] = (float)((double)g->ple_model_norm[i] / sqrt(2));

  static const char name[] = "per_layer_model_proj.weight";
  if (weights_get(w, name, all, c->hidden, &v, e)) return -1;
  int before = g->last_owner * c->ple;
  for (int i = 0; i < 2; i++) {
    g->ple_model[i] = (struct weight){.dtype = v.dtype, .rows = i ? all - before : before, .cols = c->hidden, .row_bytes = v.row_bytes};
    g->ple_model[i].source = (const char *)v.data + (i ? (size_t)before * v.row_bytes : 0);
    gemm_quant_mark(&g->ple_model[i], weights_type(name, v.dtype, c->hidden, m->plan.quant));
  }
  if (m->dev->ops->weight_bind(m->dev, g->ple_model, 2, name, e)) return -1;
  m->weight_bytes += (size_t)v.rows * v.row_bytes;
  m->packed_bytes += g->ple_model[0].packed_bytes + g->ple_model[1].packed_bytes;
  if (g->ple_model[1].packed) weights_done_with(w, &v);
  bind_count(&m->products_per_row, &m->decode_bytes, &g->ple_model[0]);
  bind_count(&m->products_per_out, &m->decode_bytes, &g->ple_model[1]);
  return 0;
}

static int gemma4_load(struct model *m, struct weights *w, struct err *e) {
  struct gemma4 *g = (struct gemma4 *)m;
  const struct model_config *c = &m->config;
  g->last_owner = -1;
  for (int l = 0; l < c->n_layers; l++)
    if (owns_keys(c, l)) g->last_owner = l;
  if (g->last_owner < 0)
    return err_set(e, ERR_UNSUPPORTED, "expected a layer that owns keys and values, all %d read another's", c->n_layers);
  if (alloc_vectors(g, e) || load_ropes(g, w, e) || alloc_scratch(g, e)) return -1;
  if (bind_embedding(m, w, &g->embed, &g->head, e)) return -1;
  bind_count_head(m, g->head.rows ? &g->head : &g->embed);
  if (bind_vector(m, w, &g->vectors, &(struct bind_vector){"output_norm.weight", &g->output_norm, c->hidden}, e)) return -1;
  if (c->ple && load_ple(g, w, e)) return -1;
  for (int l = 0; l < c->n_layers; l++) {
    if (load_layer(g, w, l, e)) return -1;
    bind_progress(m, w, false);
  }
  bind_progress(m, w, true);
  m->embed = &g->embed;
  m->hidden = part(g->x, m->plan.out_max, c->hidden); /* where forward's last norm goes */
  if (bind_hold(m, &g->vectors, e)) return -1;
  return weights_report_unused(w, false, e);
}

static void gemma4_unload(struct model *m) {
  struct gemma4 *g = (struct gemma4 *)m;
  const struct device_ops *d = m->dev->ops;
  for (int l = 0; l < m->config.n_layers; l++) {
    struct gemma4_layer *y = &g->layers[l];
    struct weight *all[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down, &y->ple_gate, &y->ple_proj, &y->router};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) d->weight_free(m->dev, all[i], 1);
    mem_big_free(y->router_rows, y->router_bytes);
    if (!y->moe.gate) continue;
    struct weight *experts[] = {y->moe.gate, y->moe.up, y->moe.down};
    for (size_t i = 0; i < ARRAY_LEN(experts); i++) d->weight_free(m->dev, experts[i], y->moe.n_experts);
    free(y->moe.gate);
  }
  d->weight_free(m->dev, &g->embed, 1);
  d->weight_free(m->dev, &g->head, 1);
  d->weight_free(m->dev, &g->ple_table, 1);
  d->weight_free(m->dev, g->ple_model, 2);
  struct tensor *scratch[] = {&g->h,       &g->x,     &g->y,        &g->k,      &g->v, &g->gate, &g->up, &g->ple, &g->router_logits,
                              &g->experts, &g->h_out, &g->attn_out, &g->ple_out};
  for (size_t i = 0; i < ARRAY_LEN(scratch); i++) d->free(m->dev, scratch[i]);
  d->rope_free(m->dev, &g->rope_full);
  d->rope_free(m->dev, &g->rope_sliding);
  bind_drop(m, &g->vectors);
  free(g->wanted.token);
  free(g->wanted.pos);
  free(g->wanted.seq);
  free(g->wanted.q_start);
  for (int k = 0; k < KV_KINDS; k++) {
    free(g->wanted.lo[k]);
    free(g->wanted.hi[k]);
    free(g->wanted.slot[k]);
  }
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

/* n columns of a tensor from one on. */
static struct tensor columns(struct tensor t, int from, int n) { return tensor_part(t, 0, t.rows, from, n); }

static void rope_steps(struct gemma4 *g, const int32_t *pos, int rows) {
  struct model *m = &g->base;
  struct rope_table *tables[] = {&g->rope_full, &g->rope_sliding};
  for (size_t i = 0; i < ARRAY_LEN(tables); i++)
    if (tables[i]->head_dim) m->dev->ops->rope_step(m->dev, tables[i], pos, rows);
}

/* The wanted rows as a batch of their own: they see what they saw and write nothing. */
static const struct batch *wanted_rows(struct gemma4 *g, const struct batch *b) {
  struct batch *to = &g->wanted;
  to->n_rows = b->n_out;
  to->n_seqs = b->n_seqs;
  memcpy(to->pages_max, b->pages_max, sizeof to->pages_max);
  for (int k = 0; k < KV_KINDS; k++) to->page[k] = b->page[k];
  for (int i = 0, s = 0; i <= b->n_out; i++) { /* q_start[s]: how many wanted rows stand before the sequence's first */
    for (; s <= b->n_seqs && (i == b->n_out || b->q_start[s] <= b->out[i]); s++) to->q_start[s] = i;
    if (i == b->n_out) break;
    int r = b->out[i];
    to->token[i] = b->token[r];
    to->pos[i] = b->pos[r];
    to->seq[i] = b->seq[r];
    for (int k = 0; k < KV_KINDS; k++) {
      to->lo[k][i] = b->lo[k][r];
      to->hi[k][i] = b->hi[k][r];
    }
  }
  return to;
}

/* u = what layers [first, first + cols / P) get from the stream h at the start. The norm takes any factor of M h out but for the weight of eps, so eps takes
 * it instead; 1/√2 is in the norm's weight and in the scale of the table's rows. */
static void per_layer_inputs(struct gemma4 *g, int first, struct tensor *u, const struct tensor *h, const int32_t *ids) {
  const struct model_config *c = &g->base.config;
  const struct device_ops *d = g->base.dev->ops;
  struct device *dev = g->base.dev;
  int last = first + u->cols / c->ple, before = (g->last_owner - first) * c->ple;
  struct tensor lo = columns(*u, 0, MAX(before, 0)), hi = columns(*u, lo.cols, u->cols - lo.cols);
  const struct weight *w[2];
  struct tensor *y[2];
  int n = 0;
  if (first < g->last_owner) w[n] = &g->ple_model[0], y[n++] = &lo;
  if (last > g->last_owner) w[n] = &g->ple_model[1], y[n++] = &hi;
  if (n == 0) return;
  d->linear(dev, n, w, y, h);
  d->rmsnorm(dev, u, u, g->ple_model_norm, last - first, c->norm_eps * (float)c->hidden);
  d->embed_add(dev, u, &g->ple_table, first * c->ple, ids, sqrtf((float)c->ple / 2));
}

/* f = the dense product's result, normed, plus the experts'. h is what both began with. */
static void add_experts(struct gemma4 *g, int l, const struct tensor *h, struct tensor *f) {
  struct model *m = &g->base;
  const struct model_config *c = &m->config;
  const struct device_ops *d = m->dev->ops;
  struct device *dev = m->dev;
  const struct gemma4_layer *y = &g->layers[l];
  struct tensor x = part(g->x, h->rows, c->hidden), out = part(g->experts, h->rows, c->hidden);
  struct tensor logits = part(g->router_logits, h->rows, c->n_experts);
  TAP(m, "mlp", l, f);
  d->rmsnorm(dev, f, f, y->post_mlp_norm, 1, c->norm_eps);
  d->rmsnorm(dev, &x, h, y->router_norm, 1, c->norm_eps);
  d->linear(dev, 1, (const struct weight *[]){&y->router}, (struct tensor *[]){&logits}, &x);
  TAP(m, "router_logits", l, &logits);
  d->rmsnorm(dev, &x, h, y->pre_experts_norm, 1, c->norm_eps);
  d->moe(dev, &y->moe, &out, &x, &logits, ACT_GELU_TANH);
  d->sum_shards(dev, &out);
  TAP(m, "experts", l, &out);
  d->add_rmsnorm(dev, f, &out, y->post_experts_norm, c->norm_eps);
}

static void gemma4_forward(struct model *m, const struct batch *b, struct tensor *logits) {
  struct gemma4 *g = (struct gemma4 *)m;
  const struct model_config *c = &m->config;
  const struct device_ops *d = m->dev->ops;
  struct device *dev = m->dev;
  const float eps = c->norm_eps;
  int rows = b->n_rows, u_first = 0;           /* u's first layer */
  const bool all = m->tap || b->n_out == rows; /* rows go through all layers */
  const struct batch *wanted = all ? NULL : wanted_rows(g, b);

  rope_steps(g, b->pos, rows);
  struct tensor h = part(g->h, rows, c->hidden), u = {0};
  /* DISAGREE: the released bf16 code rounds sqrt(hidden) to bf16; float32 references and llama.cpp do not. We do not. */
  d->embed(dev, &h, &g->embed, b->token, c->embed_scale);
  if (b->n_soft > 0) d->put_rows(dev, &h, &m->soft, b->soft);
  TAP(m, "embed", -1, &h);
  if (c->ple) {
    u = part(g->ple, rows, (all ? c->n_layers : g->last_owner) * c->ple);
    per_layer_inputs(g, 0, &u, &h, b->token);
    TAP(m, "per_layer_inputs", -1, &u);
    if (!all && b->n_out > 0) { /* the rest for the wanted rows */
      struct tensor start = part(g->h_out, b->n_out, c->hidden), later = part(g->ple_out, b->n_out, (c->n_layers - g->last_owner) * c->ple);
      d->gather(dev, &start, &h, b->out);
      per_layer_inputs(g, g->last_owner, &later, &start, wanted->token);
    }
  }

  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *lc = &c->layers[l];
    const struct gemma4_layer *y = &g->layers[l];
    int n_qd = lc->n_q * lc->head_dim, n_kvd = lc->n_kv * lc->head_dim;
    struct tensor x = part(g->x, rows, c->hidden), q = part(g->q, rows, n_qd), k = part(g->k, rows, n_kvd), v = part(g->v, rows, n_kvd);
    struct tensor attn = part(g->attn, rows, n_qd);

    d->rmsnorm(dev, &x, &h, y->attn_norm, 1, eps);
    TAP(m, "attn_norm", l, &x);
    bool owns = owns_keys(c, l);
    int n_w = !owns ? 1 : lc->v_from_k ? 2 : 3;
    d->linear(dev, n_w, (const struct weight *[]){&y->q, &y->k, &y->v}, (struct tensor *[]){&q, &k, &v}, &x);
    d->rmsnorm(dev, &q, &q, y->q_norm, lc->n_q, eps);
    d->rope(dev, &q, y->rope);
    TAP(m, "q", l, &q);
    if (owns) {
      d->rmsnorm(dev, &v, lc->v_from_k ? &k : &v, NULL, lc->n_kv, eps);
      d->rmsnorm(dev, &k, &k, y->k_norm, lc->n_kv, eps);
      d->rope(dev, &k, y->rope);
      TAP(m, "k", l, &k);
      TAP(m, "v", l, &v);
    }
    m->attn_ops->run(m->attn, l, &q, owns ? &k : NULL, owns ? &v : NULL, &attn);
    TAP(m, "attn", l, &attn);

    if (l == g->last_owner && !all) { /* what follows serves the wanted rows only */
      if (b->n_out == 0) return;
      struct tensor attn_all = attn, h_all = h;
      rows = b->n_out;
      attn = part(g->attn_out, rows, n_qd);
      h = part(g->h_out, rows, c->hidden);
      x = part(g->x, rows, c->hidden);
      d->gather(dev, &attn, &attn_all, b->out);
      d->gather(dev, &h, &h_all, b->out);
      if (c->ple) {
        u_first = l;
        u = part(g->ple_out, rows, (c->n_layers - l) * c->ple);
      }
      if (l + 1 < c->n_layers) {
        rope_steps(g, wanted->pos, rows);
        m->attn_ops->prepare(m->attn, wanted);
      }
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
    if (c->n_experts) add_experts(g, l, &h, &out);
    TAP(m, "ffn", l, &out);
    d->add_rmsnorm(dev, &h, &out, y->post_ffw_norm, eps);

    if (c->ple) {
      struct tensor u_here = columns(u, (l - u_first) * c->ple, c->ple);
      gate = part(g->gate, rows, c->ple);
      d->linear(dev, 1, (const struct weight *[]){&y->ple_gate}, (struct tensor *[]){&gate}, &h);
      d->gated(dev, &gate, &gate, &u_here, ACT_GELU_TANH);
      d->linear(dev, 1, (const struct weight *[]){&y->ple_proj}, (struct tensor *[]){&out}, &gate);
      d->add_rmsnorm(dev, &h, &out, y->ple_norm, eps);
    }
    d->scale(dev, &h, &h, *y->scale);
    TAP(m, "layer_out", l, &h);
  }

  if (b->n_out == 0) return;
  if (b->n_out < rows) { /* every row came this far: choose now */
    struct tensor h_all = h;
    h = part(g->h_out, b->n_out, c->hidden);
    d->gather(dev, &h, &h_all, b->out);
  }
  struct tensor x = part(g->x, b->n_out, c->hidden);
  d->rmsnorm(dev, &x, &h, g->output_norm, 1, eps);
  TAP(m, "final_norm", -1, &x);
  model_head(m, logits, g->head.rows ? &g->head : &g->embed, &x, c->final_softcap, b);
}

const struct model_ops model_gemma4_ops = {.family = FAMILY_GEMMA4,
                                           .new_model = gemma4_new,
                                           .delete_model = gemma4_delete,
                                           .load = gemma4_load,
                                           .unload = gemma4_unload,
                                           .forward = gemma4_forward};
