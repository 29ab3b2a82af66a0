/* vision_gemma4_blocks.c — Gemma 4 12B's pictures: no encoder, a row of its own for each block of pixels. docs/models/gemma4.md.
 *
 *   h = layernorm(block, patch_norm.1)                                       a block is 3 x 3 patches, 0 .. 1
 *   h = layernorm(Wp h + bp, patch_norm.2)
 *   h = layernorm(h + X[x] + Y[y], patch_norm.3)                             (x, y) is the block's place
 *   soft = W norm(h)
 *
 * The layernorms' eps is not in the configuration; the last norm's is. A unit is a block of rows from end to end.
 */
#include <stdlib.h>
#include <string.h>

#include "models/encoder.h"

static const float layernorm_eps = 1e-5f;

struct blocks_scratch {
  struct tensor in, normed; /* of a block of rows: [rows, columns] */
  struct tensor x;          /* [rows, D] */
};
enum { BLOCKS_SCRATCH = 4 };

struct blocks {
  struct encoder base; /* first */
  struct arena vectors;
  float *norm[3], *norm_bias[3]; /* [columns], [D], [D] */
  float *patch_bias;             /* [D] */
  struct weight patch;           /* [D, columns] */
  struct weight positions;       /* [2 * n_positions, D], only looked up */
  struct weight proj;            /* [hidden, D] */
  /* [columns] in a GGUF: columns are [colour, y, x], and x's positions come before y's. NULL: [y, x, colour], and they take turns. */
  float *room;
  struct blocks_scratch t;
  struct encoder_rows rows;
  int32_t *x_row, *y_row; /* [rows_max]: rows of positions */
};

static void blocks_tensors(const struct model_config *c, int rows_max, struct blocks_scratch *t, struct tensor *out,
                           struct bind_scratch need[BLOCKS_SCRATCH]) {
  int cols = media_cols(c, MEDIA_IMAGE);
  const struct bind_scratch all[BLOCKS_SCRATCH] = {
      {&t->in, ENCODER_ROWS, cols}, {&t->normed, ENCODER_ROWS, cols}, {&t->x, ENCODER_ROWS, c->vision.hidden}, {out, rows_max, c->hidden}};
  memcpy(need, all, sizeof all);
}

static struct encoder_size blocks_size(const struct model_config *c, int rows_max) {
  struct blocks_scratch t;
  struct tensor out;
  struct bind_scratch need[BLOCKS_SCRATCH];
  blocks_tensors(c, rows_max, &t, &out, need);
  return (struct encoder_size){.rows = ENCODER_ROWS,
                               .cols = MAX(media_cols(c, MEDIA_IMAGE), c->vision.hidden),
                               .n_bytes = encoder_tensors_bytes(need, ARRAY_LEN(need)) + encoder_rows_bytes(rows_max) +
                                          2 * (size_t)rows_max * sizeof(int32_t)};
}

static int blocks_load(struct encoder *x, struct weights *w, struct err *e) {
  struct blocks *s = (struct blocks *)x;
  const struct model_config *c = &x->m->config;
  int cols = media_cols(c, MEDIA_IMAGE), d = c->vision.hidden;
  struct bind_scratch need[BLOCKS_SCRATCH];
  blocks_tensors(c, x->rows_max, &s->t, &x->out, need);
  encoder_rows_init(&s->rows, x->rows_max);
  s->x_row = xcalloc(2 * (size_t)x->rows_max, sizeof *s->x_row);
  s->y_row = s->x_row + x->rows_max;
  if (bind_scratch(x->m, need, ARRAY_LEN(need), e)) return -1;
  encoder_stage_room(x, &s->t.in);
  if (arena_init(&s->vectors, 2 * bind_vector_bytes(cols) + 5 * bind_vector_bytes(d), "norm weights", e)) return -1;

  if (weights_gguf(w)) s->room = xcalloc((size_t)cols, sizeof *s->room);
  const struct bind_vector vectors[] = {{"v.patch_norm.1.weight", &s->norm[0], cols}, {"v.patch_norm.1.bias", &s->norm_bias[0], cols},
                                        {"v.patch_norm.2.weight", &s->norm[1], d},    {"v.patch_norm.2.bias", &s->norm_bias[1], d},
                                        {"v.patch_norm.3.weight", &s->norm[2], d},    {"v.patch_norm.3.bias", &s->norm_bias[2], d},
                                        {"v.patch_embd.bias", &s->patch_bias, d}};
  const struct bind_matrix matrices[] = {{"v.patch_embd.weight", &s->patch, d, cols},
                                         {"mm.input_projection.weight", &s->proj, c->hidden, d}};
  if (encoder_vectors(x, w, &s->vectors, "", -1, vectors, ARRAY_LEN(vectors), e)) return -1;
  if (encoder_matrices(x, w, "", -1, matrices, ARRAY_LEN(matrices), e)) return -1;
  if (encoder_table(x, w, "v.position_embd.weight", 2 * c->vision.n_positions, 1, d, &s->positions, e)) return -1;
  return bind_hold(x->m, &s->vectors, e);
}

static void blocks_unload(struct encoder *x) {
  struct blocks *s = (struct blocks *)x;
  const struct device_ops *d = x->m->dev->ops;
  d->weight_free(x->m->dev, &s->patch, 1);
  d->weight_free(x->m->dev, &s->positions, 1);
  d->weight_free(x->m->dev, &s->proj, 1);
  struct bind_scratch need[BLOCKS_SCRATCH];
  blocks_tensors(&x->m->config, x->rows_max, &s->t, &x->out, need);
  for (size_t i = 0; i < ARRAY_LEN(need); i++) d->free(x->m->dev, need[i].t);
  bind_drop(x->m, &s->vectors);
  encoder_rows_free(&s->rows);
  free(s->x_row);
  free(s->room);
}

static int blocks_begin(struct encoder *x) {
  struct blocks *s = (struct blocks *)x;
  const struct model_config *c = &x->m->config;
  int n_positions = c->vision.n_positions;
  encoder_rows_set(&s->rows, x);
  for (int r = 0; r < s->rows.n; r++) {
    int at_x, at_y;
    media_place(c, x->items[s->rows.item[r]], s->rows.at[r], &at_x, &at_y);
    at_x = MIN(at_x, n_positions - 1);
    at_y = MIN(at_y, n_positions - 1);
    s->x_row[r] = s->room ? at_x : 2 * at_x;
    s->y_row[r] = s->room ? n_positions + at_y : 2 * at_y + 1;
  }
  x->out.rows = s->rows.n;
  x->products = (int64_t)s->rows.n * c->vision.hidden * (s->patch.cols + c->hidden);
  return div_up(s->rows.n, x->block);
}

static void blocks_unit(struct encoder *x, int i) {
  struct blocks *s = (struct blocks *)x;
  const struct device_ops *d = x->m->dev->ops;
  struct device *dev = x->m->dev;
  int first = i * x->block, n = MIN(x->block, s->rows.n - first);
  struct tensor in = tensor_rows(s->t.in, n), normed = tensor_rows(s->t.normed, n), h = tensor_rows(s->t.x, n);
  struct tensor out = encoder_part(x->out, first, n);
  struct tensor host = encoder_inputs(x, &s->rows, first, s->room, &in);
  d->send(dev, &in, &host);
  d->layernorm(dev, &normed, &in, s->norm[0], s->norm_bias[0], layernorm_eps);
  encoder_tap(x, "v.ln1", -1, first, &normed);
  d->linear(dev, 1, (const struct weight *[]){&s->patch}, (struct tensor *[]){&h}, &normed);
  d->bias_act(dev, &h, s->patch_bias, ACT_NONE);
  encoder_tap(x, "v.dense", -1, first, &h);
  d->layernorm(dev, &h, &h, s->norm[1], s->norm_bias[1], layernorm_eps);
  encoder_tap(x, "v.ln2", -1, first, &h);
  d->embed_add(dev, &h, &s->positions, 0, s->x_row + first, 1);
  d->embed_add(dev, &h, &s->positions, 0, s->y_row + first, 1);
  d->layernorm(dev, &h, &h, s->norm[2], s->norm_bias[2], layernorm_eps);
  encoder_tap(x, "v.last", -1, first, &h);
  d->rmsnorm(dev, &h, &h, NULL, 1, x->m->config.vision.norm_eps);
  d->linear(dev, 1, (const struct weight *[]){&s->proj}, (struct tensor *[]){&out}, &h);
  encoder_tap(x, "v.soft", -1, first, &out);
}

const struct encoder_ops encoder_gemma4_blocks_ops = {.name = "gemma4 blocks",
                                                      .size = blocks_size,
                                                      .struct_bytes = sizeof(struct blocks),
                                                      .load = blocks_load,
                                                      .unload = blocks_unload,
                                                      .begin = blocks_begin,
                                                      .unit = blocks_unit};
