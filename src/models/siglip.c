/* siglip.c — Gemma 3's pictures: a ViT over a square of fixed size, pooled and projected. docs/models/gemma3.md.
 *
 *   h = Wp patch + bp + position[place]                                      a patch is [colour, y, x], -1 .. 1
 *   each layer:
 *     x = layernorm(h, ln1);   q, k, v = W x + b
 *     h = h + Wo softmax(q kᵀ / sqrt(d)) v + bo                              every patch sees the whole picture
 *     h = h + W2 gelu(W1 layernorm(h, ln2) + b1) + b2
 *   h = layernorm(h, post_ln)
 *   soft = W norm(mean of each pool x pool patches, soft_emb_norm)           norm as in Gemma 3's text, 1 already added
 *
 * Units: the embedding of a block of rows; per layer q, k and v of every block, then attention, then the rest of every block;
 * projections of blocks of soft rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/encoder.h"

struct siglip_layer {
  float *ln1, *ln1_bias, *ln2, *ln2_bias; /* [D] */
  float *q_bias, *k_bias, *v_bias, *o_bias, *up_bias, *down_bias;
  struct weight q, k, v;  /* [heads * d, D] */
  struct weight o;        /* [D, heads * d] */
  struct weight up, down; /* fc1 [ffn, D], fc2 [D, ffn] */
};

struct siglip_scratch {
  struct tensor h;        /* [rows_max, D] */
  struct tensor q, k, v;  /* [rows_max, heads * d]; attention's result takes q's place */
  struct tensor in, x, y; /* of a block: [rows, patch columns], [rows, D] twice */
  struct tensor hidden;   /* [rows, ffn] */
};
enum { SIGLIP_SCRATCH = 9 };

struct siglip {
  struct encoder base; /* first */
  struct siglip_layer layers[CONFIG_LAYERS_MAX];
  struct arena vectors;
  float *patch_bias, *post_ln, *post_ln_bias, *soft_norm; /* [D] */
  struct weight patch;                                    /* [D, patch columns] */
  struct weight positions;                                /* [patches, D], only looked up */
  struct weight proj;                                     /* [hidden, D] */
  char *proj_source;                                      /* the file's transposed, unless it is packed */
  size_t proj_bytes;
  struct siglip_scratch t;
  struct encoder_rows rows;
  int32_t *pool; /* [rows_max]: the patches of each soft row */
  int n_out;     /* soft rows of the job */
};

/* ---- sizes -------------------------------------------------------------------------------------------------------------------- */

static int side_of(const struct vision_config *v) { return v->image / v->patch; }

static void siglip_tensors(const struct model_config *c, int rows_max, struct siglip_scratch *t, struct tensor *out,
                           struct bind_scratch need[SIGLIP_SCRATCH]) {
  const struct vision_config *v = &c->vision;
  int qd = v->n_heads * v->head_dim, block = ENCODER_ROWS;
  const struct bind_scratch all[SIGLIP_SCRATCH] = {{&t->h, rows_max, v->hidden},
                                                   {&t->q, rows_max, qd},
                                                   {&t->k, rows_max, qd},
                                                   {&t->v, rows_max, qd},
                                                   {&t->in, block, media_cols(c, MEDIA_IMAGE)},
                                                   {&t->x, block, v->hidden},
                                                   {&t->y, block, v->hidden},
                                                   {&t->hidden, block, v->ffn},
                                                   {out, rows_max / (v->pool * v->pool), c->hidden}};
  memcpy(need, all, sizeof all);
}

static struct encoder_size siglip_size(const struct model_config *c, int rows_max) {
  const struct vision_config *v = &c->vision;
  struct siglip_scratch t;
  struct tensor out;
  struct bind_scratch need[SIGLIP_SCRATCH];
  siglip_tensors(c, rows_max, &t, &out, need);
  return (struct encoder_size){.rows = ENCODER_ROWS,
                               .cols = MAX(MAX(v->hidden, v->ffn), MAX(v->n_heads * v->head_dim, media_cols(c, MEDIA_IMAGE))),
                               .keys = rows_max,
                               .head_dim = v->head_dim,
                               .n_bytes = encoder_tensors_bytes(need, ARRAY_LEN(need)) + encoder_rows_bytes(rows_max) +
                                          (size_t)rows_max * sizeof(int32_t)};
}

/* ---- loading ------------------------------------------------------------------------------------------------------------------ */

static int siglip_arena(struct siglip *s, struct err *e) {
  const struct vision_config *v = &s->base.m->config.vision;
  size_t d = bind_vector_bytes(v->hidden), qd = bind_vector_bytes(v->n_heads * v->head_dim), ffn = bind_vector_bytes(v->ffn);
  return arena_init(&s->vectors, 4 * d + (size_t)v->n_layers * (6 * d + 3 * qd + ffn), "norm weights", e);
}

static int siglip_layer_load(struct siglip *s, struct weights *w, int l, struct err *e) {
  const struct vision_config *v = &s->base.m->config.vision;
  struct siglip_layer *y = &s->layers[l];
  int d = v->hidden, qd = v->n_heads * v->head_dim;
  const struct bind_vector vectors[] = {{"ln1.weight", &y->ln1, d},           {"ln1.bias", &y->ln1_bias, d},
                                        {"ln2.weight", &y->ln2, d},           {"ln2.bias", &y->ln2_bias, d},
                                        {"attn_q.bias", &y->q_bias, qd},      {"attn_k.bias", &y->k_bias, qd},
                                        {"attn_v.bias", &y->v_bias, qd},      {"attn_out.bias", &y->o_bias, d},
                                        {"ffn_up.bias", &y->up_bias, v->ffn}, {"ffn_down.bias", &y->down_bias, d}};
  const struct bind_matrix matrices[] = {{"attn_q.weight", &y->q, qd, d},      {"attn_k.weight", &y->k, qd, d},
                                         {"attn_v.weight", &y->v, qd, d},      {"attn_out.weight", &y->o, d, qd},
                                         {"ffn_up.weight", &y->up, v->ffn, d}, {"ffn_down.weight", &y->down, d, v->ffn}};
  if (encoder_vectors(&s->base, w, &s->vectors, "v.blk", l, vectors, ARRAY_LEN(vectors), e)) return -1;
  return encoder_matrices(&s->base, w, "v.blk", l, matrices, ARRAY_LEN(matrices), e);
}

/* The projector is stored as [D, hidden], for x·W: products want it the other way. Plain numbers stay as they are. */
static int load_projector(struct siglip *s, struct weights *w, struct err *e) {
  static const char name[] = "mm.input_projection.weight";
  struct model *m = s->base.m;
  int cols = m->config.vision.hidden, rows = m->config.hidden;
  struct weight_view v;
  if (weights_get(w, name, cols, rows, &v, e)) return -1;
  bool plain = dtype_info(v.dtype)->block_elems == 1;
  enum dtype type = plain ? v.dtype : DTYPE_F32;
  size_t size = (size_t)dtype_info(type)->block_bytes, row_bytes = (size_t)cols * size;
  s->proj_bytes = (size_t)rows * row_bytes;
  if (!(s->proj_source = mem_big_alloc(s->proj_bytes, name, e))) return -1;
  float *numbers = xmalloc((size_t)rows * sizeof *numbers);
  for (int c = 0; c < cols; c++) {
    const char *from = (const char *)v.data + (size_t)c * v.row_bytes;
    if (!plain) dtype_to_f32(v.dtype, from, numbers, (size_t)rows);
    if (!plain) from = (const char *)numbers;
    for (int r = 0; r < rows; r++) memcpy(s->proj_source + (size_t)r * row_bytes + (size_t)c * size, from + (size_t)r * size, size);
  }
  free(numbers);
  struct weight_view turned = {.dtype = type, .rows = rows, .cols = cols, .row_bytes = row_bytes, .data = s->proj_source};
  if (bind_view(m, &(struct bind_matrix){name, &s->proj, rows, cols}, &turned, e)) return -1;
  if (s->proj.packed) {
    mem_big_free(s->proj_source, s->proj_bytes);
    s->proj_source = NULL;
  }
  weights_done_with(w, &v);
  return 0;
}

static int siglip_load(struct encoder *x, struct weights *w, struct err *e) {
  struct siglip *s = (struct siglip *)x;
  const struct model_config *c = &x->m->config;
  const struct vision_config *v = &c->vision;
  int side = side_of(v), cols = media_cols(c, MEDIA_IMAGE);
  struct bind_scratch need[SIGLIP_SCRATCH];
  siglip_tensors(c, x->rows_max, &s->t, &x->out, need);
  encoder_rows_init(&s->rows, x->rows_max);
  s->pool = xcalloc((size_t)x->rows_max, sizeof *s->pool);
  if (bind_scratch(x->m, need, ARRAY_LEN(need), e) || siglip_arena(s, e)) return -1;
  encoder_stage_room(x, &s->t.in);

  const struct bind_vector vectors[] = {{"v.patch_embd.bias", &s->patch_bias, v->hidden},
                                        {"v.post_ln.weight", &s->post_ln, v->hidden},
                                        {"v.post_ln.bias", &s->post_ln_bias, v->hidden},
                                        {"mm.soft_emb_norm.weight", &s->soft_norm, v->hidden}};
  if (encoder_vectors(x, w, &s->vectors, "", -1, vectors, ARRAY_LEN(vectors), e)) return -1;
  if (bind_matrix(x->m, w, &(struct bind_matrix){"v.patch_embd.weight", &s->patch, v->hidden, cols}, e)) return -1;
  if (encoder_table(x, w, "v.position_embd.weight", side * side, 1, v->hidden, &s->positions, e)) return -1;
  for (int l = 0; l < v->n_layers; l++)
    if (siglip_layer_load(s, w, l, e)) return -1;
  return load_projector(s, w, e) ? -1 : bind_hold(x->m, &s->vectors, e);
}

static void siglip_unload(struct encoder *x) {
  struct siglip *s = (struct siglip *)x;
  struct model *m = x->m;
  const struct device_ops *d = m->dev->ops;
  for (int l = 0; l < m->config.vision.n_layers; l++) {
    struct siglip_layer *y = &s->layers[l];
    struct weight *all[] = {&y->q, &y->k, &y->v, &y->o, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) d->weight_free(m->dev, all[i], 1);
  }
  d->weight_free(m->dev, &s->patch, 1);
  d->weight_free(m->dev, &s->positions, 1);
  d->weight_free(m->dev, &s->proj, 1);
  struct bind_scratch need[SIGLIP_SCRATCH];
  siglip_tensors(&m->config, x->rows_max, &s->t, &x->out, need);
  for (size_t i = 0; i < ARRAY_LEN(need); i++) d->free(m->dev, need[i].t);
  mem_big_free(s->proj_source, s->proj_bytes);
  bind_drop(m, &s->vectors);
  encoder_rows_free(&s->rows);
  free(s->pool);
}

/* ---- a job -------------------------------------------------------------------------------------------------------------------- */

/* Patches of soft row (x, y) of each picture, in rows of the job. */
static void pool_index(struct siglip *s) {
  const struct vision_config *v = &s->base.m->config.vision;
  int side = side_of(v), each = side / v->pool * (side / v->pool);
  int32_t *to = s->pool;
  for (int i = 0; i < s->base.n_items; i++) to = encoder_pool_index(to, i * side * side, side, each, v->pool);
  s->n_out = s->base.n_items * each;
}

static int siglip_begin(struct encoder *x) {
  struct siglip *s = (struct siglip *)x;
  const struct model_config *c = &x->m->config;
  const struct vision_config *v = &c->vision;
  int64_t side = side_of(v), d = v->hidden, qd = v->n_heads * v->head_dim;
  encoder_rows_set(&s->rows, x);
  pool_index(s);
  CHECK(s->rows.n == x->n_items * side * side);
  x->out.rows = s->n_out;
  x->products = s->rows.n * (d * s->patch.cols + v->n_layers * (4 * d * qd + 2 * d * v->ffn + 2 * side * side * qd)) +
                s->n_out * d * c->hidden;
  return encoder_vit_units(x, &s->rows, v, s->n_out);
}

static void siglip_embed(struct siglip *s, int first, int n) {
  const struct encoder *x = &s->base;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  struct tensor h = encoder_part(s->t.h, first, n), in = tensor_rows(s->t.in, n);
  struct tensor host = encoder_inputs(x, &s->rows, first, NULL, &in);
  d->send(dev, &in, &host);
  d->linear(dev, 1, (const struct weight *[]){&s->patch}, (struct tensor *[]){&h}, &in);
  d->bias_act(dev, &h, s->patch_bias, ACT_NONE);
  d->embed_add(dev, &h, &s->positions, 0, s->rows.at + first, 1);
  encoder_tap(x, "v.embed", -1, first, &h);
}

static void siglip_qkv(struct siglip *s, int l, int first, int n) {
  const struct encoder *x = &s->base;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  const struct siglip_layer *y = &s->layers[l];
  struct tensor h = encoder_part(s->t.h, first, n), in = tensor_rows(s->t.x, n);
  struct tensor q = encoder_part(s->t.q, first, n), k = encoder_part(s->t.k, first, n), v = encoder_part(s->t.v, first, n);
  d->layernorm(dev, &in, &h, y->ln1, y->ln1_bias, x->m->config.vision.norm_eps);
  d->linear(dev, 3, (const struct weight *[]){&y->q, &y->k, &y->v}, (struct tensor *[]){&q, &k, &v}, &in);
  d->bias_act(dev, &q, y->q_bias, ACT_NONE);
  d->bias_act(dev, &k, y->k_bias, ACT_NONE);
  d->bias_act(dev, &v, y->v_bias, ACT_NONE);
}

static void siglip_rest(struct siglip *s, int l, int first, int n) {
  const struct encoder *x = &s->base;
  const struct vision_config *c = &x->m->config.vision;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  const struct siglip_layer *y = &s->layers[l];
  struct tensor h = encoder_part(s->t.h, first, n), attn = encoder_part(s->t.q, first, n);
  struct tensor in = tensor_rows(s->t.x, n), out = tensor_rows(s->t.y, n), hidden = tensor_rows(s->t.hidden, n);
  d->linear(dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&out}, &attn);
  d->bias_act(dev, &out, y->o_bias, ACT_NONE);
  d->add(dev, &h, &out);

  d->layernorm(dev, &in, &h, y->ln2, y->ln2_bias, c->norm_eps);
  d->linear(dev, 1, (const struct weight *[]){&y->up}, (struct tensor *[]){&hidden}, &in);
  d->bias_act(dev, &hidden, y->up_bias, ACT_GELU_TANH);
  d->linear(dev, 1, (const struct weight *[]){&y->down}, (struct tensor *[]){&out}, &hidden);
  d->bias_act(dev, &out, y->down_bias, ACT_NONE);
  d->add(dev, &h, &out);
  encoder_tap(x, "v.layer_out", l, first, &h);
  if (l < c->n_layers - 1) return;
  d->layernorm(dev, &h, &h, s->post_ln, s->post_ln_bias, c->norm_eps);
  encoder_tap(x, "v.last", -1, first, &h);
}

static void siglip_project(struct siglip *s, int first, int n) {
  const struct encoder *x = &s->base;
  const struct vision_config *c = &x->m->config.vision;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  int each = c->pool * c->pool;
  struct tensor h = tensor_rows(s->t.h, s->rows.n), pooled = tensor_rows(s->t.x, n), out = encoder_part(x->out, first, n);
  d->pool_rows(dev, &pooled, &h, s->pool + first * each, each, 1 / (float)each, NULL, NULL);
  encoder_tap(x, "v.pooled", -1, first, &pooled);
  d->rmsnorm(dev, &pooled, &pooled, s->soft_norm, 1, c->norm_eps);
  d->linear(dev, 1, (const struct weight *[]){&s->proj}, (struct tensor *[]){&out}, &pooled);
  encoder_tap(x, "v.soft", -1, first, &out);
}

static void siglip_unit(struct encoder *x, int i) {
  struct siglip *s = (struct siglip *)x;
  const struct vision_config *v = &x->m->config.vision;
  struct encoder_step t = encoder_vit_step(x, &s->rows, v, s->n_out, i);
  switch (t.phase) {
  case ENCODER_EMBED: siglip_embed(s, t.first, t.n); break;
  case ENCODER_QKV: siglip_qkv(s, t.layer, t.first, t.n); break;
  case ENCODER_ATTEND: encoder_attend(x, &s->rows, t.first, &s->t.q, &s->t.k, &s->t.v, v->n_heads, 1 / sqrtf((float)v->head_dim)); break;
  case ENCODER_REST: siglip_rest(s, t.layer, t.first, t.n); break;
  case ENCODER_PROJECT: siglip_project(s, t.first, t.n); break;
  }
}

const struct encoder_ops encoder_siglip_ops = {.name = "siglip",
                                               .size = siglip_size,
                                               .struct_bytes = sizeof(struct siglip),
                                               .load = siglip_load,
                                               .unload = siglip_unload,
                                               .begin = siglip_begin,
                                               .unit = siglip_unit};
