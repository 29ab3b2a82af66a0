/* vision_gemma4.c — Gemma 4's pictures: a ViT over as many patches as the picture has. docs/models/gemma4.md. (12B has none:
 * vision_gemma4_blocks.c)
 *
 *   h = Wp (2 patch - 1) + X[x] + Y[y]                                       patch 0 .. 1; (x, y) its place
 *   each layer:
 *     a = norm(h, ln1)
 *     q = rope2d(norm(Wq a, q_norm));  k = rope2d(norm(Wk a, k_norm));  v = norm(Wv a)          per head; scores are not scaled
 *     h = h + norm(Wo softmax(q kᵀ) v, attn_post_norm)                       every patch sees its whole picture
 *     a = norm(h, ln2)
 *     h = h + norm(Wd (gelu(Wg a) ⊙ Wu a), ffn_post_norm)
 *   p = mean of each pool x pool patches · sqrt(D)
 *   26B, 31B:  p = (p - std_bias) ⊙ std_scale                                float32: p and std_bias reach 5e4, their difference matters
 *   soft = W norm(p)
 *
 * norm is x / rms(x) ⊙ w, w as stored; without w: 1. E2B, E4B: products of the layers have bounds (struct encoder_linear).
 * Units: the embedding of a block of rows; per layer q, k and v of every block, then attention, then the rest of every block;
 * projections of blocks of soft rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/encoder.h"

struct vision_layer {
  float *ln1, *attn_post_norm, *ln2, *ffn_post_norm; /* [D] */
  float *q_norm, *k_norm;                            /* [d] */
  struct encoder_linear q, k, v;                     /* [heads * d, D] */
  struct encoder_linear o;                           /* [D, heads * d] */
  struct encoder_linear gate, up, down;              /* [ffn, D] twice, [D, ffn] */
};

struct vision_scratch {
  struct tensor h;        /* [rows_max, D] */
  struct tensor q, k, v;  /* [rows_max, heads * d]; attention's result takes q's place */
  struct tensor in, x, y; /* of a block: [rows, patch columns], [rows, D] twice */
  struct tensor gate, up; /* [rows, ffn] */
  struct tensor clamped;  /* [rows, the widest input of a product] */
};
enum { VISION_SCRATCH = 11 };

struct vision {
  struct encoder base; /* first */
  struct vision_layer layers[CONFIG_LAYERS_MAX];
  struct arena vectors;
  float *std_bias, *std_scale; /* [D]; the bias negated. NULL = not standardised */
  struct weight patch;         /* [D, patch columns] */
  struct weight positions;     /* [2 * n_positions, D], only looked up: x's rows first */
  struct weight proj;          /* [hidden, D] */
  float *room;                 /* [patch columns] where those of `patch` are [colour, y, x]; NULL: [y, x, colour] */
  struct rope_table rope_x, rope_y;
  struct vision_scratch t;
  struct encoder_rows rows;
  int32_t *x, *y, *y_row; /* [rows_max]: places; y's row in positions */
  int32_t *pool;          /* [rows_max]: the patches of each soft row */
  int n_out;              /* soft rows of the job */
};

/* ---- sizes -------------------------------------------------------------------------------------------------------------------- */

static int widest_input(const struct vision_config *v) { return MAX(MAX(v->hidden, v->ffn), v->n_heads * v->head_dim); }

static void vision_tensors(const struct model_config *c, int rows_max, struct vision_scratch *t, struct tensor *out,
                           struct bind_scratch need[VISION_SCRATCH]) {
  const struct vision_config *v = &c->vision;
  int qd = v->n_heads * v->head_dim, block = ENCODER_ROWS;
  const struct bind_scratch all[VISION_SCRATCH] = {{&t->h, rows_max, v->hidden},
                                                   {&t->q, rows_max, qd},
                                                   {&t->k, rows_max, qd},
                                                   {&t->v, rows_max, qd},
                                                   {&t->in, block, media_cols(c, MEDIA_IMAGE)},
                                                   {&t->x, block, v->hidden},
                                                   {&t->y, block, v->hidden},
                                                   {&t->gate, block, v->ffn},
                                                   {&t->up, block, v->ffn},
                                                   {&t->clamped, v->clipped ? block : 0, widest_input(v)},
                                                   {out, rows_max / (v->pool * v->pool), c->hidden}};
  memcpy(need, all, sizeof all);
}

static struct encoder_size vision_size(const struct model_config *c, int rows_max) {
  const struct vision_config *v = &c->vision;
  struct vision_scratch t;
  struct tensor out;
  struct bind_scratch need[VISION_SCRATCH];
  vision_tensors(c, rows_max, &t, &out, need);
  return (struct encoder_size){.rows = ENCODER_ROWS,
                               .cols = MAX(widest_input(v), media_cols(c, MEDIA_IMAGE)),
                               .keys = rows_max,
                               .head_dim = v->head_dim,
                               .n_bytes = encoder_tensors_bytes(need, ARRAY_LEN(need)) + encoder_rows_bytes(rows_max) +
                                          4 * (size_t)rows_max * sizeof(int32_t) + 4 * encoder_tensor_bytes(ENCODER_ROWS, v->head_dim / 4)};
}

/* ---- loading ------------------------------------------------------------------------------------------------------------------ */

static int vision_layer_load(struct vision *s, struct weights *w, int l, struct err *e) {
  const struct vision_config *v = &s->base.m->config.vision;
  struct vision_layer *y = &s->layers[l];
  int d = v->hidden, qd = v->n_heads * v->head_dim;
  const struct bind_vector vectors[] = {{"ln1.weight", &y->ln1, d},
                                        {"attn_post_norm.weight", &y->attn_post_norm, d},
                                        {"ln2.weight", &y->ln2, d},
                                        {"ffn_post_norm.weight", &y->ffn_post_norm, d},
                                        {"attn_q_norm.weight", &y->q_norm, v->head_dim},
                                        {"attn_k_norm.weight", &y->k_norm, v->head_dim}};
  const struct encoder_linear_name linears[] = {
      {"attn_q", &y->q, qd, d},          {"attn_k", &y->k, qd, d},      {"attn_v", &y->v, qd, d},         {"attn_out", &y->o, d, qd},
      {"ffn_gate", &y->gate, v->ffn, d}, {"ffn_up", &y->up, v->ffn, d}, {"ffn_down", &y->down, d, v->ffn}};
  if (encoder_vectors(&s->base, w, &s->vectors, "v.blk", l, vectors, ARRAY_LEN(vectors), e)) return -1;
  return encoder_linears(&s->base, w, "v.blk", l, v->clipped, linears, ARRAY_LEN(linears), e);
}

static int load_standard(struct vision *s, struct weights *w, struct err *e) {
  int d = s->base.m->config.vision.hidden;
  const struct bind_vector vectors[] = {{"v.std_bias", &s->std_bias, d}, {"v.std_scale", &s->std_scale, d}};
  if (encoder_vectors(&s->base, w, &s->vectors, "", -1, vectors, ARRAY_LEN(vectors), e)) return -1;
  for (int i = 0; i < d; i++) s->std_bias[i] = -s->std_bias[i];
  return 0;
}

static int vision_load(struct encoder *x, struct weights *w, struct err *e) {
  struct vision *s = (struct vision *)x;
  struct model *m = x->m;
  const struct device_ops *d = m->dev->ops;
  const struct model_config *c = &m->config;
  const struct vision_config *v = &c->vision;
  struct bind_scratch need[VISION_SCRATCH];
  vision_tensors(c, x->rows_max, &s->t, &x->out, need);
  encoder_rows_init(&s->rows, x->rows_max);
  size_t n = (size_t)x->rows_max;
  s->x = xcalloc(4 * n, sizeof *s->x);
  s->y = s->x + n;
  s->y_row = s->x + 2 * n;
  s->pool = s->x + 3 * n;
  if (bind_scratch(m, need, ARRAY_LEN(need), e)) return -1;
  encoder_stage_room(x, &s->t.in);
  if (d->rope_init(m->dev, &s->rope_x, v->head_dim / 2, v->rope_theta, 1, 1, e)) return -1;
  if (d->rope_init(m->dev, &s->rope_y, v->head_dim / 2, v->rope_theta, 1, 1, e)) return -1;
  size_t norms = 4 * bind_vector_bytes(v->hidden) + 2 * bind_vector_bytes(v->head_dim);
  if (arena_init(&s->vectors, 2 * bind_vector_bytes(v->hidden) + (size_t)v->n_layers * norms, "norm weights", e)) return -1;

  if (weights_gguf(w)) s->room = xcalloc((size_t)media_cols(c, MEDIA_IMAGE), sizeof *s->room);
  const struct bind_matrix patch = {"v.patch_embd.weight", &s->patch, v->hidden, media_cols(c, MEDIA_IMAGE)};
  const struct bind_matrix proj = {"mm.input_projection.weight", &s->proj, c->hidden, v->hidden};
  if (bind_matrix(m, w, &patch, e) || bind_matrix(m, w, &proj, e)) return -1;
  if (encoder_table(x, w, "v.position_embd.weight", 2 * v->n_positions, 1, v->hidden, &s->positions, e)) return -1;
  for (int l = 0; l < v->n_layers; l++)
    if (vision_layer_load(s, w, l, e)) return -1;
  if (v->standardize && load_standard(s, w, e)) return -1;
  return bind_hold(m, &s->vectors, e);
}

static void vision_unload(struct encoder *x) {
  struct vision *s = (struct vision *)x;
  struct model *m = x->m;
  const struct device_ops *d = m->dev->ops;
  for (int l = 0; l < m->config.vision.n_layers; l++) {
    struct vision_layer *y = &s->layers[l];
    struct encoder_linear *all[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) d->weight_free(m->dev, &all[i]->w, 1);
  }
  d->weight_free(m->dev, &s->patch, 1);
  d->weight_free(m->dev, &s->positions, 1);
  d->weight_free(m->dev, &s->proj, 1);
  struct bind_scratch need[VISION_SCRATCH];
  vision_tensors(&m->config, x->rows_max, &s->t, &x->out, need);
  for (size_t i = 0; i < ARRAY_LEN(need); i++) d->free(m->dev, need[i].t);
  d->rope_free(m->dev, &s->rope_x);
  d->rope_free(m->dev, &s->rope_y);
  bind_drop(m, &s->vectors);
  encoder_rows_free(&s->rows);
  free(s->x);
  free(s->room);
}

/* ---- a job -------------------------------------------------------------------------------------------------------------------- */

/* Places of the job's rows, and the patches of each soft row. */
static void vision_places(struct vision *s) {
  const struct encoder *x = &s->base;
  const struct model_config *c = &x->m->config;
  int pool = c->vision.pool, last = c->vision.n_positions - 1, row = 0;
  int32_t *to = s->pool;
  s->n_out = 0;
  for (int i = 0; i < x->n_items; i++) {
    const struct media *m = x->items[i];
    int soft = m->n_patches / (pool * pool);
    to = encoder_pool_index(to, row, m->width / c->vision.patch, soft, pool);
    for (int p = 0; p < m->n_patches; p++, row++) {
      int at_x, at_y;
      media_place(c, m, p, &at_x, &at_y);
      s->x[row] = MIN(at_x, last);
      s->y[row] = MIN(at_y, last);
      s->y_row[row] = c->vision.n_positions + s->y[row];
    }
    s->n_out += soft;
  }
}

static int vision_begin(struct encoder *x) {
  struct vision *s = (struct vision *)x;
  const struct model_config *c = &x->m->config;
  const struct vision_config *v = &c->vision;
  int64_t d = v->hidden, qd = v->n_heads * v->head_dim, seen = 0;
  encoder_rows_set(&s->rows, x);
  vision_places(s);
  x->out.rows = s->n_out;
  for (int i = 0; i < x->n_items; i++) seen += (int64_t)x->items[i]->n_patches * x->items[i]->n_patches;
  x->products = s->rows.n * (d * s->patch.cols + v->n_layers * (4 * d * qd + 3 * d * v->ffn)) + v->n_layers * 2 * seen * qd +
                s->n_out * d * c->hidden;
  return encoder_vit_units(x, &s->rows, v, s->n_out);
}

static void vision_embed(struct vision *s, int first, int n) {
  const struct encoder *x = &s->base;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  struct tensor h = encoder_part(s->t.h, first, n), in = tensor_rows(s->t.in, n);
  struct tensor host = encoder_inputs(x, &s->rows, first, s->room, &in);
  for (int r = 0; r < n; r++) {
    float *row = tensor_row(&host, r);
    for (int i = 0; i < in.cols; i++) row[i] = 2 * (row[i] - 0.5f);
  }
  d->send(dev, &in, &host);
  d->linear(dev, 1, (const struct weight *[]){&s->patch}, (struct tensor *[]){&h}, &in);
  d->embed_add(dev, &h, &s->positions, 0, s->x + first, 1);
  d->embed_add(dev, &h, &s->positions, 0, s->y_row + first, 1);
  encoder_tap(x, "v.embed", -1, first, &h);
}

static void vision_qkv(struct vision *s, int l, int first, int n) {
  const struct encoder *x = &s->base;
  const struct vision_config *c = &x->m->config.vision;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  const struct vision_layer *y = &s->layers[l];
  struct tensor h = encoder_part(s->t.h, first, n), a = tensor_rows(s->t.x, n);
  struct tensor q = encoder_part(s->t.q, first, n), k = encoder_part(s->t.k, first, n), v = encoder_part(s->t.v, first, n);
  d->rmsnorm(dev, &a, &h, y->ln1, 1, c->norm_eps);
  encoder_linear(x, 3, (const struct encoder_linear *[]){&y->q, &y->k, &y->v}, (struct tensor *[]){&q, &k, &v}, &a, &s->t.clamped);
  d->rmsnorm(dev, &q, &q, y->q_norm, c->n_heads, c->norm_eps);
  d->rmsnorm(dev, &k, &k, y->k_norm, c->n_heads, c->norm_eps);
  d->rmsnorm(dev, &v, &v, NULL, c->n_heads, c->norm_eps);
  d->rope_step(dev, &s->rope_x, s->x + first, n);
  d->rope_step(dev, &s->rope_y, s->y + first, n);
  d->rope2d(dev, &q, c->n_heads, &s->rope_x, &s->rope_y);
  d->rope2d(dev, &k, c->n_heads, &s->rope_x, &s->rope_y);
}

static void vision_rest(struct vision *s, int l, int first, int n) {
  const struct encoder *x = &s->base;
  const struct vision_config *c = &x->m->config.vision;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  const struct vision_layer *y = &s->layers[l];
  struct tensor h = encoder_part(s->t.h, first, n), attn = encoder_part(s->t.q, first, n);
  struct tensor a = tensor_rows(s->t.x, n), out = tensor_rows(s->t.y, n);
  struct tensor gate = tensor_rows(s->t.gate, n), up = tensor_rows(s->t.up, n), *z = &s->t.clamped;
  encoder_linear(x, 1, (const struct encoder_linear *[]){&y->o}, (struct tensor *[]){&out}, &attn, z);
  d->add_rmsnorm(dev, &h, &out, y->attn_post_norm, c->norm_eps);

  d->rmsnorm(dev, &a, &h, y->ln2, 1, c->norm_eps);
  encoder_linear_gated(x, &gate, &y->gate, &y->up, &a, ACT_GELU_TANH, &up, z);
  encoder_linear(x, 1, (const struct encoder_linear *[]){&y->down}, (struct tensor *[]){&out}, &gate, z);
  d->add_rmsnorm(dev, &h, &out, y->ffn_post_norm, c->norm_eps);
  encoder_tap(x, "v.layer_out", l, first, &h);
}

static void vision_project(struct vision *s, int first, int n) {
  const struct encoder *x = &s->base;
  const struct vision_config *c = &x->m->config.vision;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  int each = c->pool * c->pool;
  struct tensor h = tensor_rows(s->t.h, s->rows.n), p = tensor_rows(s->t.x, n);
  struct tensor out = encoder_part(x->out, first, n);
  float scale = sqrtf((float)c->hidden) / (float)each;
  if (x->m->tap) {
    d->pool_rows(dev, &p, &h, s->pool + first * each, each, scale, NULL, NULL);
    encoder_tap(x, "v.pooled", -1, first, &p);
  }
  d->pool_rows(dev, &p, &h, s->pool + first * each, each, scale, s->std_bias, s->std_scale);
  encoder_tap(x, "v.last", -1, first, &p);
  d->rmsnorm(dev, &p, &p, NULL, 1, c->norm_eps);
  d->linear(dev, 1, (const struct weight *[]){&s->proj}, (struct tensor *[]){&out}, &p);
  encoder_tap(x, "v.soft", -1, first, &out);
}

static void vision_unit(struct encoder *x, int i) {
  struct vision *s = (struct vision *)x;
  const struct vision_config *v = &x->m->config.vision;
  struct encoder_step t = encoder_vit_step(x, &s->rows, v, s->n_out, i);
  switch (t.phase) {
  case ENCODER_EMBED: vision_embed(s, t.first, t.n); break;
  case ENCODER_QKV: vision_qkv(s, t.layer, t.first, t.n); break;
  case ENCODER_ATTEND: encoder_attend(x, &s->rows, t.first, &s->t.q, &s->t.k, &s->t.v, v->n_heads, 1); break;
  case ENCODER_REST: vision_rest(s, t.layer, t.first, t.n); break;
  case ENCODER_PROJECT: vision_project(s, t.first, t.n); break;
  }
}

const struct encoder_ops encoder_gemma4_vision_ops = {.name = "gemma4 vision",
                                                      .size = vision_size,
                                                      .struct_bytes = sizeof(struct vision),
                                                      .load = vision_load,
                                                      .unload = vision_unload,
                                                      .begin = vision_begin,
                                                      .unit = vision_unit};
