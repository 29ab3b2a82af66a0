/* audio_gemma4.c — Gemma 4's sound: the conformer of E2B and E4B, and 12B's frames. docs/models/gemma4.md, "Sound", has tensors and quirks.
 *
 *   frames [V, mel] → twice: 3×3 convolution of stride 2 over (time, mel), padded with zeros; LN over channels; relu
 *   h = Wi · (channels of a step, mel slow)               [T1, F1, C0], then [T, F, C1]; T = ceil(ceil(V / 2) / 2) rows, 40 ms each
 *   each layer:
 *     h += residual · norm(W2 silu(W1 norm(h, ffn_norm)), ffn_post_norm)
 *     q, k, v = Wq x, Wk x, Wv x of x = norm(h, attn_pre_norm);   h += norm(Wo near(q, k, v), attn_post_norm)
 *     a, b = halves of Ws norm(h, norm_conv);   u = a sigmoid(b)
 *     h += We silu(norm(conv(u), conv_norm))                                                         conv: causal, each channel by itself
 *     h += residual · norm(W2' silu(W1' norm(h, ffn_norm_1)), ffn_post_norm_1);   h = norm(h, ln2)
 *   soft = Wp norm(Wu h + bu)                                                                          the last norm has no weight
 *
 * All products of layers but attn_k_rel are clipped: input and output are held within bounds of their own.
 *
 * near: row i sees rows i - keys_left + 1 .. i of its own sound.
 *     R_δ = attn_k_rel S(δ),  S(δ) = [sin(δ ν), cos(δ ν)],  ν_n = 10000^(-n / (half - 1))
 *     q' = q · head_dim^-1/2 / ln 2 · softplus(per_dim_scale);   s = cap tanh((q'·k ln(1 + e) / ln 2 + q'·R_(i-j)) / cap);   softmax(s) v
 *
 * 12B has no encoder: soft = Wp norm(frame) of 640 samples.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/attend_near.h"
#include "models/encoder.h"

enum { FFN_FACTOR = 4, STEPS = 32 /* that are subsampled together */ };
_Static_assert((int)CONFIG_HEAD_DIM_MAX <= (int)ATTEND_NEAR_HEAD_DIM_MAX, "heads fit");
static const float near_key_scale = 1.8946361239720115f; /* ln(1 + e) / ln 2 */

struct conformer_layer {
  float *ffn_norm[2], *ffn_post_norm[2]; /* [hidden]; the latter with the residual's weight in them */
  float *attn_pre_norm, *attn_post_norm, *norm_conv, *conv_norm, *norm_out;
  float *conv;       /* [hidden, taps] */
  float *head_scale; /* [head_dim]: what q is multiplied with */
  struct encoder_linear ffn_up[2], ffn_down[2], q, k, v, o, conv_in, conv_out;
  struct tensor relative; /* [n_relative, hidden]: R */
};

struct encoder_conformer {
  struct encoder base; /* first */
  int mel[3], T_max;   /* mel bands before and behind each convolution; rows of a job */
  struct conformer_layer *layers;
  struct weight conv[2];                /* [C0, 9], [C1, C0 * 9] */
  float *conv_norm[2];                  /* [C0], [C1] */
  struct weight input, output, project; /* [hidden, F * C1], [out_dim, hidden], [text hidden, out_dim] */
  float *output_bias;
  struct arena vectors;

  struct tensor h, q, k, v;    /* [T_max, hidden]; q also holds attention's result, then what the convolution reads; k what it gives */
  struct tensor x, y, wide, u; /* of a block: [block, hidden], the same, [block, 4 hidden], [block, out_dim] */
  struct tensor frames;        /* of STEPS steps: mel frames, the host's */
  struct tensor steps;         /* of STEPS steps: results of the first convolution, [times * bands, C0] */
  struct tensor steps_host;    /* the same where the host reads them */
  struct tensor cells, flat;   /* results of the second, [block, C1]; the same with a row a step, [STEPS, F * C1] */
  struct tensor taps;          /* what a convolution multiplies, [block, 9 C0] */
  int32_t *first;              /* by row of a job: the first row of its sound */
  int first_row[ENCODER_ITEMS_MAX + 1];  /* by sound */
  int first_unit[ENCODER_ITEMS_MAX + 1]; /* of the subsampling, by sound */
  int n_rows, n_blocks;                  /* of the job */
};

static int halved(int n) { return div_up(n, 2); }

/* Rows of a job: a quarter of the frames, rounded up for each sound. */
static int rows_of(int rows_max) { return MIN(rows_max, rows_max / 4 + ENCODER_ITEMS_MAX); }
static int frames_of_steps(int steps) { return 4 * steps + 3; } /* 2 * (2 steps + 1) + 1 */

/* Everything that a job needs room for, x's own tensors. */
enum { SCRATCH = 13 };
static void scratch_of(const struct model_config *c, int rows_max, struct encoder_conformer *x, struct bind_scratch need[SCRATCH]) {
  const struct audio_config *a = &c->audio;
  int rows = rows_of(rows_max), block = ENCODER_ROWS, bands = halved(a->n_mel);
  const struct bind_scratch all[SCRATCH] = {{&x->h, rows, a->hidden},
                                            {&x->q, rows, a->hidden},
                                            {&x->k, rows, a->hidden},
                                            {&x->v, rows, a->hidden},
                                            {&x->x, block, a->hidden},
                                            {&x->y, block, a->hidden},
                                            {&x->wide, block, FFN_FACTOR * a->hidden},
                                            {&x->u, block, a->out_dim},
                                            {&x->taps, block, 9 * a->channels[0]},
                                            {&x->steps, (2 * STEPS + 1) * bands, a->channels[0]},
                                            {&x->cells, block, a->channels[1]},
                                            {&x->flat, STEPS, halved(bands) * a->channels[1]},
                                            {&x->base.out, rows, c->hidden}};
  memcpy(need, all, sizeof all);
}

static struct encoder_size conformer_size(const struct model_config *c, int rows_max) {
  const struct audio_config *a = &c->audio;
  struct encoder_conformer x;
  struct bind_scratch need[SCRATCH];
  scratch_of(c, rows_max, &x, need);
  size_t relative = (size_t)a->n_layers * encoder_tensor_bytes(a->n_relative, a->hidden);
  size_t host = (size_t)frames_of_steps(STEPS) * (size_t)a->n_mel * sizeof(float) + (size_t)rows_of(rows_max) * sizeof(int32_t);
  return (struct encoder_size){
      .rows = ENCODER_ROWS,
      .cols = MAX(MAX(FFN_FACTOR * a->hidden, 9 * a->channels[0]), MAX(halved(halved(a->n_mel)) * a->channels[1], a->out_dim)),
      .n_bytes = encoder_tensors_bytes(need, SCRATCH) + relative + host};
}

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

/* R of every relative position: known once the weights are. */
static int load_relative(struct encoder_conformer *x, struct weights *w, int l, struct tensor *out, struct err *e) {
  struct model *m = x->base.m;
  const struct device_ops *d = m->dev->ops;
  int hidden = m->config.audio.hidden, half = hidden / 2, n = m->config.audio.n_relative;
  struct weight project = {0};
  char name[BIND_NAME_BYTES];
  snprintf(name, sizeof name, "a.blk.%d.attn_k_rel.weight", l);
  if (d->alloc(m->dev, out, n, hidden, "activations", e)) return -1;
  if (bind_matrix(m, w, &(struct bind_matrix){name, &project, hidden, hidden}, e)) return -1;
  for (int i = 0; i < n; i += x->base.block) {
    struct tensor y = encoder_part(*out, i, MIN(x->base.block, n - i)), in = tensor_rows(x->x, y.rows), s = d->stage(m->dev, &in);
    for (int r = 0; r < s.rows; r++) {
      for (int c = 0; c < half; c++) {
        double angle = (i + r) * exp(-c * log(10000.0) / MAX(half - 1, 1));
        tensor_row(&s, r)[c] = (float)sin(angle);
        tensor_row(&s, r)[half + c] = (float)cos(angle);
      }
    }
    d->send(m->dev, &in, &s);
    d->linear(m->dev, 1, (const struct weight *[]){&project}, (struct tensor *[]){&y}, &in);
  }
  int rc = d->finish(m->dev, e);
  m->packed_bytes -= project.packed_bytes;
  d->weight_free(m->dev, &project, 1);
  return rc;
}

static int load_head_scale(struct encoder_conformer *x, struct weights *w, int l, float **out, struct err *e) {
  int head_dim = x->base.m->config.audio.hidden / x->base.m->config.audio.n_heads;
  char name[BIND_NAME_BYTES];
  snprintf(name, sizeof name, "a.blk.%d.per_dim_scale.weight", l);
  if (bind_vector(x->base.m, w, &x->vectors, &(struct bind_vector){name, out, head_dim}, e)) return -1;
  for (int i = 0; i < head_dim; i++) {
    double s = (*out)[i], softplus = weights_gguf(w) ? s : MAX(s, 0) + log1p(exp(-fabs(s)));
    (*out)[i] = (float)(softplus / (sqrt(head_dim) * M_LN2));
  }
  return 0;
}

static int load_conv(struct encoder_conformer *x, struct weights *w, int l, float **out, struct err *e) {
  const struct audio_config *a = &x->base.m->config.audio;
  struct weight_view v;
  char name[BIND_NAME_BYTES];
  snprintf(name, sizeof name, "a.blk.%d.conv_dw.weight", l);
  if (weights_get(w, name, a->hidden, a->conv_taps, &v, e)) return -1;
  *out = arena_alloc(&x->vectors, (size_t)a->hidden * (size_t)a->conv_taps * sizeof(float));
  for (int c = 0; c < a->hidden; c++)
    dtype_to_f32(v.dtype, (const char *)v.data + (size_t)c * v.row_bytes, *out + (size_t)c * (size_t)a->conv_taps, (size_t)a->conv_taps);
  return 0;
}

static int load_layer(struct encoder_conformer *x, struct weights *w, int l, struct err *e) {
  const struct audio_config *a = &x->base.m->config.audio;
  struct conformer_layer *y = &x->layers[l];
  int hidden = a->hidden, wide = FFN_FACTOR * hidden;
  const struct bind_vector vectors[] = {{"ffn_norm.weight", &y->ffn_norm[0], hidden},
                                        {"ffn_post_norm.weight", &y->ffn_post_norm[0], hidden},
                                        {"ffn_norm_1.weight", &y->ffn_norm[1], hidden},
                                        {"ffn_post_norm_1.weight", &y->ffn_post_norm[1], hidden},
                                        {"attn_pre_norm.weight", &y->attn_pre_norm, hidden},
                                        {"attn_post_norm.weight", &y->attn_post_norm, hidden},
                                        {"norm_conv.weight", &y->norm_conv, hidden},
                                        {"conv_norm.weight", &y->conv_norm, hidden},
                                        {"ln2.weight", &y->norm_out, hidden}};
  const struct encoder_linear_name products[] = {{"ffn_up", &y->ffn_up[0], wide, hidden},
                                                 {"ffn_down", &y->ffn_down[0], hidden, wide},
                                                 {"ffn_up_1", &y->ffn_up[1], wide, hidden},
                                                 {"ffn_down_1", &y->ffn_down[1], hidden, wide},
                                                 {"attn_q", &y->q, hidden, hidden},
                                                 {"attn_k", &y->k, hidden, hidden},
                                                 {"attn_v", &y->v, hidden, hidden},
                                                 {"attn_out", &y->o, hidden, hidden},
                                                 {"conv_pw1", &y->conv_in, 2 * hidden, hidden},
                                                 {"conv_pw2", &y->conv_out, hidden, hidden}};
  if (encoder_vectors(&x->base, w, &x->vectors, "a.blk", l, vectors, ARRAY_LEN(vectors), e) ||
      encoder_linears(&x->base, w, "a.blk", l, a->clipped, products, ARRAY_LEN(products), e))
    return -1;
  for (int i = 0; i < 2; i++)
    for (int c = 0; c < hidden; c++) y->ffn_post_norm[i][c] *= a->residual_weight;
  if (load_conv(x, w, l, &y->conv, e) || load_head_scale(x, w, l, &y->head_scale, e)) return -1;
  return load_relative(x, w, l, &y->relative, e);
}

static int conformer_load(struct encoder *base, struct weights *w, struct err *e) {
  struct encoder_conformer *x = (struct encoder_conformer *)base;
  struct model *m = base->m;
  const struct audio_config *a = &m->config.audio;
  int hidden = a->hidden;
  if (a->n_heads < 1 || hidden % a->n_heads || hidden / a->n_heads > CONFIG_HEAD_DIM_MAX || hidden % 2 || a->keys_left < 1 ||
      a->keys_left > a->n_relative)
    return err_set(e, ERR_UNSUPPORTED,
                   "audio_config: expected an even hidden_size that heads divide, and 1 to %d keys a row; found %d, %d heads, %d keys",
                   a->n_relative, hidden, a->n_heads, a->keys_left);
  x->mel[0] = a->n_mel;
  x->mel[1] = halved(x->mel[0]);
  x->mel[2] = halved(x->mel[1]);
  x->T_max = rows_of(base->rows_max);
  x->first = xcalloc((size_t)x->T_max, sizeof *x->first);
  x->layers = xcalloc((size_t)a->n_layers, sizeof *x->layers);
  struct bind_scratch need[SCRATCH];
  scratch_of(&m->config, base->rows_max, x, need);
  int flat = x->mel[2] * a->channels[1];
  size_t per_layer = 9 * bind_vector_bytes(hidden) + bind_vector_bytes(hidden / a->n_heads) +
                     align_up((size_t)hidden * (size_t)a->conv_taps * sizeof(float), 64);
  size_t n_bytes = (size_t)a->n_layers * per_layer + bind_vector_bytes(a->channels[0]) + bind_vector_bytes(a->channels[1]) +
                   bind_vector_bytes(a->out_dim);
  if (arena_init(&x->vectors, n_bytes, "norm weights", e) || bind_scratch(m, need, SCRATCH, e)) return -1;
  if (m->dev->ops->host_alloc(m->dev, &x->steps_host, x->steps.rows, x->steps.cols, "subsampled sound", e)) return -1;
  encoder_stage_room(base, &x->taps);
  x->frames = (struct tensor){
      .dtype = DTYPE_F32, .rows = frames_of_steps(STEPS), .cols = a->n_mel, .row_bytes = (size_t)a->n_mel * sizeof(float)};
  x->frames.data = xcalloc((size_t)x->frames.rows, x->frames.row_bytes);

  const struct bind_vector vectors[] = {{"a.conv1d.0.norm.weight", &x->conv_norm[0], a->channels[0]},
                                        {"a.conv1d.1.norm.weight", &x->conv_norm[1], a->channels[1]},
                                        {"a.pre_encode.out.bias", &x->output_bias, a->out_dim}};
  const struct bind_matrix matrices[] = {{"a.conv1d.0.weight", &x->conv[0], a->channels[0], 9},
                                         {"a.conv1d.1.weight", &x->conv[1], a->channels[1], 9 * a->channels[0]},
                                         {"a.input_projection.weight", &x->input, hidden, flat},
                                         {"a.pre_encode.out.weight", &x->output, a->out_dim, hidden},
                                         {"mm.a.input_projection.weight", &x->project, m->config.hidden, a->out_dim}};
  if (encoder_vectors(base, w, &x->vectors, NULL, -1, vectors, ARRAY_LEN(vectors), e) ||
      encoder_matrices(base, w, NULL, -1, matrices, ARRAY_LEN(matrices), e))
    return -1;
  for (int l = 0; l < a->n_layers; l++)
    if (load_layer(x, w, l, e)) return -1;
  return bind_hold(m, &x->vectors, e);
}

static void conformer_unload(struct encoder *base) {
  struct encoder_conformer *x = (struct encoder_conformer *)base;
  struct device *dev = base->m->dev;
  for (int l = 0; x->layers && l < base->m->config.audio.n_layers; l++) {
    struct conformer_layer *y = &x->layers[l];
    struct encoder_linear *all[] = {&y->ffn_up[0], &y->ffn_up[1], &y->ffn_down[0], &y->ffn_down[1], &y->q,
                                    &y->k,         &y->v,         &y->o,           &y->conv_in,     &y->conv_out};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) dev->ops->weight_free(dev, &all[i]->w, 1);
    dev->ops->free(dev, &y->relative);
  }
  free(x->layers);
  struct weight *weights[] = {&x->conv[0], &x->conv[1], &x->input, &x->output, &x->project};
  for (size_t i = 0; i < ARRAY_LEN(weights); i++) dev->ops->weight_free(dev, weights[i], 1);
  struct bind_scratch need[SCRATCH];
  scratch_of(&base->m->config, base->rows_max, x, need);
  for (size_t i = 0; i < ARRAY_LEN(need); i++) dev->ops->free(dev, need[i].t);
  dev->ops->host_free(dev, &x->steps_host);
  free(x->frames.data);
  free(x->first);
  bind_drop(base->m, &x->vectors);
}

/* ---- subsampling ------------------------------------------------------------------------------------------------------ */

struct plane {            /* [times, bands, channels] from time `first` on, of one with n_times; what is outside of it is 0 */
  const struct tensor *t; /* the host's: rows of channels, or (channels 1) of bands */
  int first, n_times, bands, channels;
};
static const float *plane_at(const struct plane *p, int time, int band) {
  if (time < 0 || time >= p->n_times || band < 0 || band >= p->bands) return NULL;
  return p->channels == 1 ? tensor_row(p->t, time - p->first) + band : tensor_row(p->t, (time - p->first) * p->bands + band);
}

/* y's rows are cells (time, band) of the result, from cell `cell` on: times from `time` on, bands_out bands each. The weight's columns go through
 * the nine places of one channel after the other, an order that no operation of rows makes: the host puts them so, and a far device's first
 * convolution is fetched for it, once for STEPS rows. */
static void convolve(struct encoder_conformer *x, int which, const struct plane *from, struct tensor *y, int time, int cell,
                     int bands_out) {
  struct device *dev = x->base.m->dev;
  const struct audio_config *a = &x->base.m->config.audio;
  struct tensor taps = tensor_rows(x->taps, y->rows);
  taps.cols = 9 * from->channels;
  struct tensor host = dev->ops->stage(dev, &taps);
  for (int r = 0; r < y->rows; r++) {
    int t = 2 * (time + (cell + r) / bands_out), f = 2 * ((cell + r) % bands_out);
    float *to = tensor_row(&host, r);
    for (int i = 0; i < 9; i++) {
      const float *at = plane_at(from, t + i / 3 - 1, f + i % 3 - 1);
      for (int c = 0; c < from->channels; c++) to[9 * c + i] = at ? at[c] : 0;
    }
  }
  dev->ops->send(dev, &taps, &host);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->conv[which]}, (struct tensor *[]){y}, &taps);
  dev->ops->layernorm(dev, y, y, x->conv_norm[which], NULL, a->norm_eps);
  dev->ops->bias_act(dev, y, NULL, ACT_RELU);
}

/* Cells of the second convolution, from `cell` on, side by side in the rows of their steps: band by band. */
static void flatten(struct encoder_conformer *x, const struct tensor *cells, int cell) {
  struct device *dev = x->base.m->dev;
  int bands = x->mel[2];
  for (int r = 0; r < MIN(bands, cells->rows); r++) {
    int n = div_up(cells->rows - r, bands), band = (cell + r) % bands;
    struct tensor from = encoder_part(*cells, r, n), to = tensor_part(x->flat, (cell + r) / bands, n, band * cells->cols, cells->cols);
    from.row_bytes *= (size_t)bands;
    dev->ops->copy(dev, &to, &from);
  }
}

/* Rows [step, step + n) of a sound, n <= STEPS. Of the first convolution's results the few on both sides that neighbours need, too, are
 * made again. */
static void subsample(struct encoder_conformer *x, int item, int step, int n) {
  const struct model_config *c = &x->base.m->config;
  struct device *dev = x->base.m->dev;
  const struct media *s = x->base.items[item];
  int block = x->base.block;
  int n_times = halved(s->n_patches), time = MAX(2 * step - 1, 0), time_end = MIN(2 * (step + n), n_times);
  int frame = MAX(2 * time - 1, 0), frame_end = MIN(2 * time_end, s->n_patches);
  for (int f = frame; f < frame_end; f++) media_patches(c, s, f, 1, tensor_row(&x->frames, f - frame));

  struct plane mel = {&x->frames, frame, s->n_patches, x->mel[0], 1};
  for (int cell = 0, cells = (time_end - time) * x->mel[1]; cell < cells; cell += block) {
    struct tensor y = encoder_part(x->steps, cell, MIN(block, cells - cell));
    convolve(x, 0, &mel, &y, time, cell, x->mel[1]);
  }
  struct tensor steps = tensor_rows(x->steps, (time_end - time) * x->mel[1]);
  dev->ops->fetch(dev, &x->steps_host, &steps);
  struct plane half = {&x->steps_host, time, n_times, x->mel[1], c->audio.channels[0]};
  for (int cell = 0, cells = n * x->mel[2]; cell < cells; cell += block) {
    struct tensor y = tensor_rows(x->cells, MIN(block, cells - cell));
    convolve(x, 1, &half, &y, step, cell, x->mel[2]);
    flatten(x, &y, cell);
  }
  int first = x->first_row[item] + step;
  for (int r = 0; r < n; r += block) {
    struct tensor flat = encoder_part(x->flat, r, MIN(block, n - r)), h = encoder_part(x->h, first + r, flat.rows);
    dev->ops->linear(dev, 1, (const struct weight *[]){&x->input}, (struct tensor *[]){&h}, &flat);
    encoder_tap(&x->base, "a.embed", -1, first + r, &h);
  }
}

/* ---- layers ------------------------------------------------------------------------------------------------------------- */

/* One product; room may be in where nobody needs that any more. */
static void linear(const struct encoder_conformer *x, const struct encoder_linear *w, struct tensor *y, const struct tensor *in,
                   const struct tensor *room) {
  encoder_linear(&x->base, 1, &w, &y, in, room);
}

static void feed_forward(struct encoder_conformer *x, const struct conformer_layer *l, int which, struct tensor *h) {
  struct device *dev = x->base.m->dev;
  struct tensor norm = tensor_rows(x->x, h->rows), wide = tensor_rows(x->wide, h->rows);
  float eps = x->base.m->config.audio.norm_eps;
  dev->ops->rmsnorm(dev, &norm, h, l->ffn_norm[which], 1, eps);
  linear(x, &l->ffn_up[which], &wide, &norm, &norm);
  dev->ops->bias_act(dev, &wide, NULL, ACT_SILU);
  linear(x, &l->ffn_down[which], &norm, &wide, &wide);
  dev->ops->add_rmsnorm(dev, h, &norm, l->ffn_post_norm[which], eps);
}

/* The first half of a layer, as far as rows are by themselves. */
static void before_attention(struct encoder_conformer *x, const struct conformer_layer *l, int first, int n) {
  struct device *dev = x->base.m->dev;
  struct tensor h = encoder_part(x->h, first, n), norm = tensor_rows(x->x, n);
  struct tensor q = encoder_part(x->q, first, n), k = encoder_part(x->k, first, n), v = encoder_part(x->v, first, n);
  feed_forward(x, l, 0, &h);
  dev->ops->rmsnorm(dev, &norm, &h, l->attn_pre_norm, 1, x->base.m->config.audio.norm_eps);
  encoder_linear(&x->base, 3, (const struct encoder_linear *[]){&l->q, &l->k, &l->v}, (struct tensor *[]){&q, &k, &v}, &norm, &x->y);
}

/* As far as the convolution over rows: what it reads goes into q, which nobody else looks at. */
static void before_conv(struct encoder_conformer *x, const struct conformer_layer *l, int first, int n) {
  struct device *dev = x->base.m->dev;
  const struct audio_config *a = &x->base.m->config.audio;
  struct tensor h = encoder_part(x->h, first, n), q = encoder_part(x->q, first, n), y = tensor_rows(x->y, n);
  struct tensor qs = tensor_rows(x->q, x->n_rows), ks = tensor_rows(x->k, x->n_rows), vs = tensor_rows(x->v, x->n_rows);
  const struct attend_near near = {a->n_heads, a->keys_left, first, first + n, near_key_scale, a->logit_cap};
  dev->ops->attend_near(dev, &qs, &ks, &vs, &l->relative, l->head_scale, x->first, &near);
  linear(x, &l->o, &y, &q, &q);
  dev->ops->add_rmsnorm(dev, &h, &y, l->attn_post_norm, a->norm_eps);

  struct tensor both = part(x->wide, n, 2 * a->hidden), left = part(x->wide, n, a->hidden);
  struct tensor right = tensor_part(x->wide, 0, n, a->hidden, a->hidden);
  dev->ops->rmsnorm(dev, &y, &h, l->norm_conv, 1, a->norm_eps);
  linear(x, &l->conv_in, &both, &y, &y);
  dev->ops->gated(dev, &q, &right, &left, ACT_SIGMOID);
}

static void after_conv(struct encoder_conformer *x, int number, int first, int n) {
  struct device *dev = x->base.m->dev;
  const struct audio_config *a = &x->base.m->config.audio;
  const struct conformer_layer *l = &x->layers[number];
  if (first == 0) { /* of all rows: it reads those of the block before */
    struct tensor u = tensor_rows(x->q, x->n_rows), y = tensor_rows(x->k, x->n_rows);
    dev->ops->conv_rows(dev, &y, &u, l->conv, a->conv_taps, x->first);
  }
  struct tensor h = encoder_part(x->h, first, n), u = encoder_part(x->k, first, n), y = tensor_rows(x->y, n);
  dev->ops->rmsnorm(dev, &u, &u, l->conv_norm, 1, a->norm_eps);
  dev->ops->bias_act(dev, &u, NULL, ACT_SILU);
  linear(x, &l->conv_out, &y, &u, &u);
  dev->ops->add(dev, &h, &y);
  feed_forward(x, l, 1, &h);
  dev->ops->rmsnorm(dev, &h, &h, l->norm_out, 1, a->norm_eps);
  encoder_tap(&x->base, "a.layer_out", number, first, &h);
}

static void project(struct encoder_conformer *x, int first, int n) {
  struct device *dev = x->base.m->dev;
  struct tensor h = encoder_part(x->h, first, n), u = tensor_rows(x->u, n), out = encoder_part(x->base.out, first, n);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->output}, (struct tensor *[]){&u}, &h);
  dev->ops->bias_act(dev, &u, x->output_bias, ACT_NONE);
  encoder_tap(&x->base, "a.last", -1, first, &u);
  dev->ops->rmsnorm(dev, &u, &u, NULL, 1, x->base.m->config.audio.norm_eps);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->project}, (struct tensor *[]){&out}, &u);
  encoder_tap(&x->base, "a.soft", -1, first, &out);
}

/* ---- a job ------------------------------------------------------------------------------------------------------------ */

/* Units: subsampling, STEPS rows of one sound each; per layer all blocks as far as keys and values, then all as far as the convolution,
 * then the rest; the projection of every block. */
enum { PARTS = 3 }; /* of a layer */

static int64_t conformer_products(const struct encoder_conformer *x, int frames, int rows) {
  const struct model_config *c = &x->base.m->config;
  const struct audio_config *a = &c->audio;
  int64_t hidden = a->hidden, T = rows;
  int64_t conv = (int64_t)halved(frames) * x->mel[1] * 9 * a->channels[0] + T * x->mel[2] * 9 * a->channels[0] * a->channels[1];
  int64_t layer = T * hidden * (hidden * (4 * FFN_FACTOR + 4 + 3) + a->conv_taps + 3 * a->keys_left);
  return conv + T * x->mel[2] * a->channels[1] * hidden + a->n_layers * layer + T * a->out_dim * (hidden + c->hidden);
}

static int conformer_begin(struct encoder *base) {
  struct encoder_conformer *x = (struct encoder_conformer *)base;
  base->products = 0;
  for (int i = 0; i < base->n_items; i++) {
    const struct media *s = base->items[i];
    int n = halved(halved(s->n_patches)), first = x->first_row[i];
    CHECK(s->n_patches >= 1 && s->n_rows == n && first + n <= x->T_max);
    for (int r = first; r < first + n; r++) x->first[r] = first;
    x->first_row[i + 1] = first + n;
    x->first_unit[i + 1] = x->first_unit[i] + div_up(n, STEPS);
    base->products += conformer_products(x, s->n_patches, n);
  }
  x->n_rows = base->out.rows = x->first_row[base->n_items];
  x->n_blocks = div_up(x->n_rows, base->block);
  return x->first_unit[base->n_items] + x->n_blocks * (PARTS * base->m->config.audio.n_layers + 1);
}

static void conformer_unit(struct encoder *base, int i) {
  struct encoder_conformer *x = (struct encoder_conformer *)base;
  int n_subsampling = x->first_unit[base->n_items], item = 0;
  if (i < n_subsampling) {
    while (i >= x->first_unit[item + 1]) item++;
    int step = (i - x->first_unit[item]) * STEPS;
    subsample(x, item, step, MIN(STEPS, x->first_row[item + 1] - x->first_row[item] - step));
    return;
  }
  int part = (i - n_subsampling) / x->n_blocks, l = part / PARTS;
  int first = (i - n_subsampling) % x->n_blocks * base->block, n = MIN(base->block, x->n_rows - first);
  if (l == base->m->config.audio.n_layers) project(x, first, n);
  else if (part % PARTS == 0) before_attention(x, &x->layers[l], first, n);
  else if (part % PARTS == 1) before_conv(x, &x->layers[l], first, n);
  else after_conv(x, l, first, n);
}

const struct encoder_ops encoder_gemma4_audio_ops = {
    .name = "conformer",
    .size = conformer_size,
    .struct_bytes = sizeof(struct encoder_conformer),
    .load = conformer_load,
    .unload = conformer_unload,
    .begin = conformer_begin,
    .unit = conformer_unit,
};

/* ---- 12B: frames of samples ------------------------------------------------------------------------------------------------ */

struct encoder_frames {
  struct encoder base;   /* first */
  struct weight project; /* [text hidden, samples] */
  struct tensor x;       /* [block, samples] */
  int32_t *item, *frame; /* by row of a job */
};

static struct encoder_size frames_size(const struct model_config *c, int rows_max) {
  return (struct encoder_size){.rows = ENCODER_ROWS,
                               .cols = c->audio.hidden,
                               .n_bytes = encoder_tensor_bytes(ENCODER_ROWS, c->audio.hidden) + encoder_tensor_bytes(rows_max, c->hidden) +
                                          (size_t)rows_max * 2 * sizeof(int32_t)};
}

static int frames_load(struct encoder *base, struct weights *w, struct err *e) {
  struct encoder_frames *x = (struct encoder_frames *)base;
  struct model *m = base->m;
  int samples = m->config.audio.hidden, hidden = m->config.hidden;
  const struct bind_scratch need[] = {{&x->x, base->block, samples}, {&base->out, base->rows_max, hidden}};
  x->item = xcalloc((size_t)base->rows_max, sizeof *x->item);
  x->frame = xcalloc((size_t)base->rows_max, sizeof *x->frame);
  if (bind_scratch(m, need, ARRAY_LEN(need), e)) return -1;
  encoder_stage_room(base, &x->x);
  return bind_matrix(m, w, &(struct bind_matrix){"mm.a.input_projection.weight", &x->project, hidden, samples}, e);
}

static void frames_unload(struct encoder *base) {
  struct encoder_frames *x = (struct encoder_frames *)base;
  struct device *dev = base->m->dev;
  dev->ops->weight_free(dev, &x->project, 1);
  dev->ops->free(dev, &x->x);
  dev->ops->free(dev, &base->out);
  free(x->item);
  free(x->frame);
}

static int frames_begin(struct encoder *base) {
  struct encoder_frames *x = (struct encoder_frames *)base;
  int n = 0;
  for (int i = 0; i < base->n_items; i++) {
    CHECK(base->items[i]->n_rows == base->items[i]->n_patches && n + base->items[i]->n_rows <= base->rows_max);
    for (int f = 0; f < base->items[i]->n_rows; f++, n++) x->item[n] = i, x->frame[n] = f;
  }
  base->out.rows = n;
  base->products = (int64_t)n * base->m->config.audio.hidden * base->m->config.hidden;
  return div_up(n, base->block);
}

static void frames_unit(struct encoder *base, int i) {
  struct encoder_frames *x = (struct encoder_frames *)base;
  const struct model_config *c = &base->m->config;
  struct device *dev = base->m->dev;
  int first = i * base->block, n = MIN(base->block, base->out.rows - first);
  struct tensor frames = tensor_rows(x->x, n), out = encoder_part(base->out, first, n);
  struct tensor host = dev->ops->stage(dev, &frames);
  for (int r = 0; r < n; r++) media_patches(c, base->items[x->item[first + r]], x->frame[first + r], 1, tensor_row(&host, r));
  dev->ops->send(dev, &frames, &host);
  dev->ops->rmsnorm(dev, &frames, &frames, NULL, 1, c->audio.norm_eps);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->project}, (struct tensor *[]){&out}, &frames);
  encoder_tap(base, "a.soft", -1, first, &out);
}

const struct encoder_ops encoder_gemma4_frames_ops = {
    .name = "frames",
    .size = frames_size,
    .struct_bytes = sizeof(struct encoder_frames),
    .load = frames_load,
    .unload = frames_unload,
    .begin = frames_begin,
    .unit = frames_unit,
};
