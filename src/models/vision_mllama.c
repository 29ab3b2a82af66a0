/* vision_mllama.c — Llama 3.2 Vision's encoder: a ViT of two stages over the tiles of a picture. docs/models/mllama.md has tensors and
 * quirks.
 *
 *   N tiles of P = grid² + 1 rows (the class row first), padded with zero rows to Pp, the next multiple of 8:
 *     e = conv(pixels) + pre E_pre[ratio, tile];  e = [class; e]
 *     e += pos_scale E_pos[row] + tile_scale E_tile[ratio, tile, row];  e = LN(e, pre_ln)
 *   each local layer, then each global one with its gates (1 in local layers):
 *     h += attn_gate Wo attention(LN(h, ln1));   h += ffn_gate (Wd gelu_erf(Wu LN(h, ln2) + bu) + bd)
 *   between the stages: h = LN(h, post_ln) + post E_post[ratio, tile]
 *   bank = Wp [h; recorded states, channel by channel] + bp
 *
 * Recorded states are the inputs of the listed layers. Rows of tiles that are not used count: used ones see them.
 *
 * The mask. A row is *masked* if it is padding or of an unused tile; only pairs of two masked rows do not see each other. A picture's rows
 * are therefore kept with the real ones first (tile after tile), masked ones behind them (padding of the used tiles, then the unused tiles
 * with theirs):
 *
 *     0 ......... n_real ........ n       real rows see [0, n), masked rows [0, n_real)
 *
 * Everything else is done row by row. File order, for taps, is tile * Pp + row in tile.
 *
 * In released models embeddings of unused tiles are 0: such tiles are alike, to the bit and in every layer. One of them is computed, and
 * the keys and values of the others are copies. The rows of a job are those that are computed; keys and values stand in rows of their own,
 * all n of every picture.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/encoder.h"

enum { PAD_ROWS = 8 };
#define OUTER_EPS 1e-5f /* of pre_ln and post_ln, whatever norm_eps is */

struct mllama_layer {
  float *ln1, *ln1_bias, *ln2, *ln2_bias; /* [D] */
  float *up_bias, *down_bias;             /* [ffn], [D] */
  struct weight q, k, v, o;               /* [D, D] */
  struct weight up, down;                 /* [ffn, D], [D, ffn] */
  float attn_gate, ffn_gate;
};

struct encoder_mllama {
  struct encoder base; /* first */
  int D, P, Pp, n_tiles, patch_cols;
  int items_max;
  struct mllama_layer *layers; /* local ones, then global ones */
  int n_layers;                /* of both stages */
  struct weight patch;         /* [D, patch_cols] */
  struct weight projector;     /* [hidden, out_dim] */
  float *projector_bias;
  float *pre_ln, *pre_ln_bias, *post_ln, *post_ln_bias;
  struct weight position, tile_position; /* tables of rows of D: [P], [ids * n_tiles * P] */
  struct weight pre_tile, post_tile;     /* [ids * n_tiles] */
  float position_scale, tile_position_scale, pre_scale, post_scale;
  struct arena vectors;

  struct tensor h, k, v;                     /* [rows of a job, D], [keys of a job, D] */
  struct tensor states[CONFIG_STATES_MAX];   /* [output rows of a job, D] */
  struct tensor x, q, attn, up;              /* of a block: [block, D], ..., [block, ffn] */
  struct tensor pixels, features;            /* of a block: [block, patch_cols], [block, out_dim] */
  struct tensor class_row, zero_row;         /* [1, D] */
  struct tensor state_host;                  /* rows of a block for the host: [block, D] */
  int32_t *lo, *hi, *key;                    /* by row of a job: the keys that it sees, and its own */
  int32_t *item, *tile, *row;                /* by row of a job: its picture, tile and row in the tile */
  int32_t *ids, *from;                       /* of a block: rows of a table, rows to put */
  int first_row[ENCODER_ITEMS_MAX + 1];      /* of every item */
  int first_out[ENCODER_ITEMS_MAX + 1];      /* first output row of every item */
  int copies[ENCODER_ITEMS_MAX];             /* of every item: tiles that are copies of the first unused one */
  int n_rows, n_blocks, n_out, n_out_blocks; /* of the job */
};

static int rows_of_tile(const struct vision_config *v) {
  int grid = v->image / v->patch;
  return grid * grid + 1;
}
static int padded_rows(int P) { return P + (PAD_ROWS - P % PAD_ROWS) % PAD_ROWS; }
static int items_of(const struct vision_config *v, int rows_max) {
  int patches = v->n_tiles * (rows_of_tile(v) - 1);
  return MIN(MAX(rows_max / patches, 1), ENCODER_ITEMS_MAX);
}

/* Everything that a job needs room for, x's own tensors. */
enum { SCRATCH = 12 + CONFIG_STATES_MAX };
static int scratch_of(const struct model_config *c, int rows_max, struct encoder_mllama *x, struct bind_scratch need[SCRATCH]) {
  const struct vision_config *v = &c->vision;
  int P = rows_of_tile(v), tiles = items_of(v, rows_max) * v->n_tiles, rows = tiles * padded_rows(P), block = ENCODER_ROWS, D = v->hidden;
  const struct bind_scratch all[] = {{&x->h, rows, D},
                                     {&x->k, rows, D},
                                     {&x->v, rows, D},
                                     {&x->x, block, D},
                                     {&x->q, block, D},
                                     {&x->attn, block, D},
                                     {&x->up, block, v->ffn},
                                     {&x->pixels, block, media_cols(c, MEDIA_IMAGE)},
                                     {&x->features, block, v->out_dim},
                                     {&x->class_row, 1, D},
                                     {&x->zero_row, 1, D},
                                     {&x->base.out, tiles * P, c->hidden}};
  _Static_assert(ARRAY_LEN(all) + CONFIG_STATES_MAX == SCRATCH, "room for all");
  memcpy(need, all, sizeof all);
  for (int s = 0; s < v->n_states; s++) need[ARRAY_LEN(all) + (size_t)s] = (struct bind_scratch){&x->states[s], tiles * P, D};
  return (int)ARRAY_LEN(all) + v->n_states;
}

static struct encoder_size mllama_size(const struct model_config *c, int rows_max) {
  const struct vision_config *v = &c->vision;
  struct encoder_mllama x;
  struct bind_scratch need[SCRATCH];
  size_t n = (size_t)scratch_of(c, rows_max, &x, need), rows = (size_t)need[0].rows;
  return (struct encoder_size){.rows = ENCODER_ROWS,
                               .cols = MAX(MAX(v->hidden, v->ffn), MAX(media_cols(c, MEDIA_IMAGE), v->out_dim)),
                               .keys = (int)rows,
                               .head_dim = v->head_dim,
                               .n_bytes = encoder_tensors_bytes(need, n) + (6 * rows + 2 * ENCODER_ROWS) * sizeof(int32_t)};
}

/* ---- loading ---------------------------------------------------------------------------------------------------------- */

/* A gate as the factor that it stands for: safetensors have it before, GGUF behind tanh. */
static int load_gate(struct weights *w, const char *name, float *out, struct err *e) {
  float gate;
  if (weights_get_vector(w, name, 1, &gate, e)) return -1;
  *out = weights_gguf(w) ? gate : tanhf(gate);
  return 0;
}

static int load_layer(struct encoder_mllama *x, struct weights *w, int l, struct err *e) {
  const struct vision_config *v = &x->base.m->config.vision;
  struct mllama_layer *y = &x->layers[l];
  bool global = l >= v->n_layers;
  int D = x->D, number = global ? l - v->n_layers : l;
  const char *stage = global ? "v.global.blk" : "v.blk";
  const struct bind_vector vectors[] = {{"ln1.weight", &y->ln1, D},           {"ln1.bias", &y->ln1_bias, D},
                                        {"ln2.weight", &y->ln2, D},           {"ln2.bias", &y->ln2_bias, D},
                                        {"ffn_up.bias", &y->up_bias, v->ffn}, {"ffn_down.bias", &y->down_bias, D}};
  const struct bind_matrix matrices[] = {{"attn_q.weight", &y->q, D, D},       {"attn_k.weight", &y->k, D, D},
                                         {"attn_v.weight", &y->v, D, D},       {"attn_out.weight", &y->o, D, D},
                                         {"ffn_up.weight", &y->up, v->ffn, D}, {"ffn_down.weight", &y->down, D, v->ffn}};
  if (encoder_vectors(&x->base, w, &x->vectors, stage, number, vectors, ARRAY_LEN(vectors), e) ||
      encoder_matrices(&x->base, w, stage, number, matrices, ARRAY_LEN(matrices), e))
    return -1;
  y->attn_gate = y->ffn_gate = 1;
  if (!global) return 0;
  char name[BIND_NAME_BYTES];
  snprintf(name, sizeof name, "%s.%d.attn_gate", stage, number);
  if (load_gate(w, name, &y->attn_gate, e)) return -1;
  snprintf(name, sizeof name, "%s.%d.ffn_gate", stage, number);
  return load_gate(w, name, &y->ffn_gate, e);
}

static int load_tables(struct encoder_mllama *x, struct weights *w, struct err *e) {
  const struct vision_config *v = &x->base.m->config.vision;
  struct encoder *b = &x->base;
  int ids = v->n_ratios + 1;
  float gate;
  if (encoder_table(b, w, "v.position_embd.weight", x->P, 1, x->D, &x->position, e)) return -1;
  if (encoder_table(b, w, "v.tile_position_embd.weight", ids, x->n_tiles * x->P, x->D, &x->tile_position, e)) return -1;
  if (encoder_table(b, w, "v.pre_tile_position_embd.weight", ids, x->n_tiles, x->D, &x->pre_tile, e)) return -1;
  if (encoder_table(b, w, "v.post_tile_position_embd.weight", ids, x->n_tiles, x->D, &x->post_tile, e)) return -1;
  if (load_gate(w, "v.pre_tile_position_embd.gate", &x->pre_scale, e)) return -1;
  if (load_gate(w, "v.post_tile_position_embd.gate", &x->post_scale, e)) return -1;
  if (load_gate(w, "v.position_embd.gate", &gate, e)) return -1;
  x->position_scale = weights_gguf(w) ? gate : 1 - gate;
  x->tile_position_scale = gate;
  return weights_gguf(w) ? load_gate(w, "v.tile_position_embd.gate", &x->tile_position_scale, e) : 0;
}

static int alloc_scratch(struct encoder_mllama *x, struct err *e) {
  struct bind_scratch need[SCRATCH];
  int n = scratch_of(&x->base.m->config, x->base.rows_max, x, need);
  size_t rows = (size_t)need[0].rows;
  int32_t **by_row[] = {&x->lo, &x->hi, &x->key, &x->item, &x->tile, &x->row}, **by_block[] = {&x->ids, &x->from};
  for (size_t i = 0; i < ARRAY_LEN(by_row); i++) *by_row[i] = xcalloc(rows, sizeof(int32_t));
  for (size_t i = 0; i < ARRAY_LEN(by_block); i++) *by_block[i] = xcalloc(ENCODER_ROWS, sizeof(int32_t));
  if (bind_scratch(x->base.m, need, (size_t)n, e)) return -1;
  encoder_stage_room(&x->base, &x->pixels);
  encoder_stage_room(&x->base, &x->features);
  return x->base.m->dev->ops->host_alloc(x->base.m->dev, &x->state_host, ENCODER_ROWS, x->D, "recorded states", e);
}

static int load_class_row(struct encoder_mllama *x, struct weights *w, struct err *e) {
  struct device *dev = x->base.m->dev;
  struct tensor host = dev->ops->stage(dev, &x->class_row);
  if (weights_get_vector(w, "v.class_embd", x->D, tensor_row(&host, 0), e)) return -1;
  dev->ops->send(dev, &x->class_row, &host);
  return dev->ops->finish(dev, e);
}

static int check_config(const struct vision_config *v, struct err *e) {
  if (v->image % v->patch || v->n_heads * v->head_dim != v->hidden)
    return err_set(e, ERR_UNSUPPORTED, "vision_config: expected whole patches a tile and %d = heads * head size, found %d / %d and %d * %d",
                   v->hidden, v->image, v->patch, v->n_heads, v->head_dim);
  if (v->out_dim != v->hidden * (1 + v->n_states))
    return err_set(e, ERR_UNSUPPORTED, "vision_config: expected vision_output_dim %d = hidden_size * (1 + recorded states), found %d",
                   v->hidden * (1 + v->n_states), v->out_dim);
  for (int s = 0; s < v->n_states; s++)
    if (v->states[s] < 0 || v->states[s] >= v->n_layers)
      return err_set(e, ERR_UNSUPPORTED, "vision_config: expected recorded layers below %d, found %d", v->n_layers, v->states[s]);
  return 0;
}

static int mllama_load(struct encoder *base, struct weights *w, struct err *e) {
  struct encoder_mllama *x = (struct encoder_mllama *)base;
  struct model *m = base->m;
  const struct vision_config *v = &m->config.vision;
  int D = v->hidden;
  if (check_config(v, e)) return -1;
  x->D = D;
  x->P = rows_of_tile(v);
  x->Pp = padded_rows(x->P);
  x->n_tiles = v->n_tiles;
  x->patch_cols = media_cols(&m->config, base->kind);
  x->items_max = items_of(v, base->rows_max);
  x->n_layers = v->n_layers + v->n_global_layers;
  x->layers = xcalloc((size_t)x->n_layers, sizeof *x->layers);
  size_t n_bytes = 4 * bind_vector_bytes(D) + bind_vector_bytes(m->config.hidden) +
                   (size_t)x->n_layers * (5 * bind_vector_bytes(D) + bind_vector_bytes(v->ffn));
  if (arena_init(&x->vectors, n_bytes, "norm weights", e) || alloc_scratch(x, e) || load_tables(x, w, e)) return -1;

  const struct bind_vector vectors[] = {{"v.pre_ln.weight", &x->pre_ln, D},
                                        {"v.pre_ln.bias", &x->pre_ln_bias, D},
                                        {"v.post_ln.weight", &x->post_ln, D},
                                        {"v.post_ln.bias", &x->post_ln_bias, D},
                                        {"mm.0.bias", &x->projector_bias, m->config.hidden}};
  const struct bind_matrix matrices[] = {{"v.patch_embd.weight", &x->patch, D, x->patch_cols},
                                         {"mm.0.weight", &x->projector, m->config.hidden, v->out_dim}};
  if (encoder_vectors(base, w, &x->vectors, NULL, -1, vectors, ARRAY_LEN(vectors), e) ||
      encoder_matrices(base, w, NULL, -1, matrices, ARRAY_LEN(matrices), e) || load_class_row(x, w, e))
    return -1;
  for (int l = 0; l < x->n_layers; l++)
    if (load_layer(x, w, l, e)) return -1;
  return bind_hold(m, &x->vectors, e);
}

static void mllama_unload(struct encoder *base) {
  struct encoder_mllama *x = (struct encoder_mllama *)base;
  struct device *dev = base->m->dev;
  for (int l = 0; x->layers && l < x->n_layers; l++) {
    struct mllama_layer *y = &x->layers[l];
    struct weight *all[] = {&y->q, &y->k, &y->v, &y->o, &y->up, &y->down};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) dev->ops->weight_free(dev, all[i], 1);
  }
  free(x->layers);
  struct weight *all[] = {&x->patch, &x->projector, &x->position, &x->tile_position, &x->pre_tile, &x->post_tile};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) dev->ops->weight_free(dev, all[i], 1);
  dev->ops->host_free(dev, &x->state_host);
  struct bind_scratch need[SCRATCH];
  for (int i = 0, n = scratch_of(&base->m->config, base->rows_max, x, need); i < n; i++) dev->ops->free(dev, need[i].t);
  int32_t *arrays[] = {x->lo, x->hi, x->key, x->item, x->tile, x->row, x->ids, x->from};
  for (size_t i = 0; i < ARRAY_LEN(arrays); i++) free(arrays[i]);
  bind_drop(base->m, &x->vectors);
}

/* ---- a job ------------------------------------------------------------------------------------------------------------ */

/* Units: the embedding of every block; per layer keys and values of every block, then attention of every block, then the product behind it;
 * the projection of every block of output rows. */
enum { PARTS = 3 }; /* of a layer */

/* Rows of the table that belong to two tiles of a ratio are the same bytes. */
static bool same_rows(const struct encoder_mllama *x, const struct weight *table, int ratio_id, int a, int b) {
  size_t n_bytes = (size_t)(table->rows / ((x->base.m->config.vision.n_ratios + 1) * x->n_tiles)) * table->row_bytes;
  const char *first = (const char *)table->source + (size_t)(ratio_id * x->n_tiles) * n_bytes;
  return !memcmp(first + (size_t)a * n_bytes, first + (size_t)b * n_bytes, n_bytes);
}
static bool unused_alike(const struct encoder_mllama *x, int ratio_id, int used) {
  for (int t = used + 1; t < x->n_tiles; t++)
    if (!same_rows(x, &x->pre_tile, ratio_id, used, t) || !same_rows(x, &x->post_tile, ratio_id, used, t) ||
        !same_rows(x, &x->tile_position, ratio_id, used, t))
      return false;
  return true;
}

static void place_rows(struct encoder_mllama *x, int item, int used) {
  int tiles = used < x->n_tiles && unused_alike(x, x->base.items[item]->ratio_id, used) ? used + 1 : x->n_tiles;
  int first = x->first_row[item], n_real = used * x->P, n = x->n_tiles * x->Pp, key = item * n, r = first;
  for (int t = 0; t < used; t++)
    for (int i = 0; i < x->P; i++, r++) x->tile[r] = t, x->row[r] = i;
  for (int t = 0; t < tiles; t++)
    for (int i = t < used ? x->P : 0; i < x->Pp; i++, r++) x->tile[r] = t, x->row[r] = i;
  x->first_row[item + 1] = r;
  x->first_out[item + 1] = x->first_out[item] + n_real;
  x->copies[item] = x->n_tiles - tiles;
  for (r = first; r < x->first_row[item + 1]; r++) {
    x->item[r] = item;
    x->key[r] = key + r - first;
    x->lo[r] = key;
    x->hi[r] = r < first + n_real ? key + n : key + n_real;
  }
}

static int mllama_begin(struct encoder *base) {
  struct encoder_mllama *x = (struct encoder_mllama *)base;
  const struct vision_config *v = &base->m->config.vision;
  CHECK(base->n_items <= x->items_max);
  base->products = 0;
  for (int i = 0; i < base->n_items; i++) {
    const struct media *p = base->items[i];
    int used = p->tiles_wide * p->tiles_high;
    CHECK(used >= 1 && used <= x->n_tiles && p->n_rows == used * x->P && p->ratio_id >= 0 && p->ratio_id <= v->n_ratios);
    place_rows(x, i, used);
    int64_t n = x->first_row[i + 1] - x->first_row[i], real = p->n_rows, D = x->D;
    base->products += x->n_layers * (n * (4 * D * D + 2 * D * v->ffn) + 2 * D * (real * x->n_tiles * x->Pp + (n - real) * real));
    base->products += n * D * x->patch_cols + real * v->out_dim * base->m->config.hidden;
  }
  x->n_rows = x->first_row[base->n_items];
  x->n_out = x->first_out[base->n_items];
  base->out.rows = x->n_out;
  x->n_blocks = div_up(x->n_rows, base->block);
  x->n_out_blocks = div_up(x->n_out, base->block);
  return x->n_blocks * (1 + PARTS * x->n_layers) + x->n_out_blocks;
}

static int copies_of(const struct encoder_mllama *x, int r) {
  const struct media *p = x->base.items[x->item[r]];
  return x->tile[r] == p->tiles_wide * p->tiles_high ? x->copies[x->item[r]] : 0;
}

static void tap_rows(const struct encoder_mllama *x, const char *name, int layer, int first, const struct tensor *t) {
  if (!x->base.m->tap) return;
  for (int i = 0; i < t->rows; i++) {
    int r = first + i, file_row = (x->item[r] * x->n_tiles + x->tile[r]) * x->Pp + x->row[r];
    struct tensor row = encoder_part(*t, i, 1);
    for (int copy = 0; copy <= copies_of(x, r); copy++) model_tap_rows(x->base.m, name, layer, file_row + copy * x->Pp, &row);
  }
}

/* h += scale · the table's row of each row's picture and tile */
static void add_tile_embedding(struct encoder_mllama *x, struct tensor *h, int first, const struct weight *table, float scale) {
  struct device *dev = x->base.m->dev;
  for (int i = 0; i < h->rows; i++) x->ids[i] = x->base.items[x->item[first + i]]->ratio_id * x->n_tiles + x->tile[first + i];
  dev->ops->embed_add(dev, h, table, 0, x->ids, scale);
}

static void embed_block(struct encoder_mllama *x, int first, int n) {
  const struct model_config *c = &x->base.m->config;
  struct device *dev = x->base.m->dev;
  struct tensor h = encoder_part(x->h, first, n), pixels = tensor_rows(x->pixels, n), host = dev->ops->stage(dev, &pixels);
  for (int i = 0; i < n; i++) {
    const struct media *p = x->base.items[x->item[first + i]];
    int tile = x->tile[first + i], row = x->row[first + i];
    bool seen = row >= 1 && row < x->P && tile < p->tiles_wide * p->tiles_high;
    if (seen) media_patches(c, p, tile * (x->P - 1) + row - 1, 1, tensor_row(&host, i));
    else memset(tensor_row(&host, i), 0, (size_t)x->patch_cols * sizeof(float));
  }
  dev->ops->send(dev, &pixels, &host);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->patch}, (struct tensor *[]){&h}, &pixels);
  add_tile_embedding(x, &h, first, &x->pre_tile, x->pre_scale);
  for (int i = 0; i < n; i++) x->from[i] = x->row[first + i] == 0 ? 0 : -1;
  dev->ops->put_rows(dev, &h, &x->class_row, x->from);

  for (int i = 0; i < n; i++) x->ids[i] = x->row[first + i] < x->P ? x->row[first + i] : 0; /* padding: any, it becomes 0 */
  dev->ops->embed_add(dev, &h, &x->position, 0, x->ids, x->position_scale);
  for (int i = 0; i < n; i++) {
    int tile = x->base.items[x->item[first + i]]->ratio_id * x->n_tiles + x->tile[first + i];
    x->ids[i] += tile * x->P;
  }
  dev->ops->embed_add(dev, &h, &x->tile_position, 0, x->ids, x->tile_position_scale);
  dev->ops->layernorm(dev, &h, &h, x->pre_ln, x->pre_ln_bias, OUTER_EPS);
  for (int i = 0; i < n; i++) x->from[i] = x->row[first + i] < x->P ? -1 : 0;
  dev->ops->put_rows(dev, &h, &x->zero_row, x->from);
  tap_rows(x, "v.embed", -1, first, &h);
}

/* The real rows of a block, kept for the features. They come first in every picture. */
static void record_state(struct encoder_mllama *x, const struct tensor *state, int first, int n) {
  struct device *dev = x->base.m->dev;
  for (int r = first, end; r < first + n; r = end) {
    int item = x->item[r], at = r - x->first_row[item];
    end = MIN(x->first_row[item + 1], first + n);
    int real = MIN(end - r, x->first_out[item + 1] - x->first_out[item] - at);
    if (real <= 0) continue;
    struct tensor from = encoder_part(x->h, r, real), to = encoder_part(*state, x->first_out[item] + at, real);
    dev->ops->copy(dev, &to, &from);
  }
}

/* Keys or values of a block's rows to their places among those of the job; an unused tile's also to those of its copies. */
static void place_keys(struct encoder_mllama *x, const struct tensor *all, const struct tensor *of_block, int first) {
  struct device *dev = x->base.m->dev;
  for (int i = 0, n; i < of_block->rows; i += n) {
    int r = first + i, copies = copies_of(x, r);
    for (n = 1; i + n < of_block->rows && x->item[r + n] == x->item[r] && copies_of(x, r + n) == copies;) n++;
    struct tensor from = encoder_part(*of_block, i, n);
    for (int copy = 0; copy <= copies; copy++) {
      struct tensor to = encoder_part(*all, x->key[r] + copy * x->Pp, n);
      dev->ops->copy(dev, &to, &from);
    }
  }
}

static void keys_of_block(struct encoder_mllama *x, int l, int first, int n) {
  struct device *dev = x->base.m->dev;
  const struct vision_config *v = &x->base.m->config.vision;
  const struct mllama_layer *y = &x->layers[l];
  struct tensor h = encoder_part(x->h, first, n), norm = tensor_rows(x->x, n);
  struct tensor k = tensor_rows(x->q, n), value = tensor_rows(x->attn, n);
  for (int s = 0; s < v->n_states; s++)
    if (v->states[s] == l) record_state(x, &x->states[s], first, n);
  dev->ops->layernorm(dev, &norm, &h, y->ln1, y->ln1_bias, v->norm_eps);
  dev->ops->linear(dev, 2, (const struct weight *[]){&y->k, &y->v}, (struct tensor *[]){&k, &value}, &norm);
  place_keys(x, &x->k, &k, first);
  place_keys(x, &x->v, &value, first);
}

static void attend_block(struct encoder_mllama *x, int l, int first, int n) {
  struct device *dev = x->base.m->dev;
  const struct vision_config *v = &x->base.m->config.vision;
  const struct mllama_layer *y = &x->layers[l];
  struct tensor h = encoder_part(x->h, first, n), norm = tensor_rows(x->x, n), q = tensor_rows(x->q, n), attn = tensor_rows(x->attn, n);
  int n_keys = x->base.n_items * x->n_tiles * x->Pp;
  struct tensor k = tensor_rows(x->k, n_keys), value = tensor_rows(x->v, n_keys);
  dev->ops->layernorm(dev, &norm, &h, y->ln1, y->ln1_bias, v->norm_eps);
  dev->ops->linear(dev, 1, (const struct weight *[]){&y->q}, (struct tensor *[]){&q}, &norm);
  dev->ops->attend(dev, &attn, &q, &k, &value, v->n_heads, 1 / sqrtf((float)v->head_dim), x->lo + first, x->hi + first);
  dev->ops->linear(dev, 1, (const struct weight *[]){&y->o}, (struct tensor *[]){&norm}, &attn);
  dev->ops->add_scaled(dev, &h, &norm, y->attn_gate, NULL, NULL);
}

static void ffn_block(struct encoder_mllama *x, int l, int first, int n) {
  struct device *dev = x->base.m->dev;
  const struct vision_config *v = &x->base.m->config.vision;
  const struct mllama_layer *y = &x->layers[l];
  struct tensor h = encoder_part(x->h, first, n), norm = tensor_rows(x->x, n), up = tensor_rows(x->up, n);
  dev->ops->layernorm(dev, &norm, &h, y->ln2, y->ln2_bias, v->norm_eps);
  dev->ops->linear(dev, 1, (const struct weight *[]){&y->up}, (struct tensor *[]){&up}, &norm);
  dev->ops->bias_act(dev, &up, y->up_bias, ACT_GELU_ERF);
  dev->ops->linear(dev, 1, (const struct weight *[]){&y->down}, (struct tensor *[]){&norm}, &up);
  dev->ops->bias_act(dev, &norm, y->down_bias, ACT_NONE);
  dev->ops->add_scaled(dev, &h, &norm, y->ffn_gate, NULL, NULL);
  tap_rows(x, "v.layer_out", l, first, &h);
  if (l + 1 != v->n_layers) return;
  dev->ops->layernorm(dev, &h, &h, x->post_ln, x->post_ln_bias, OUTER_EPS);
  add_tile_embedding(x, &h, first, &x->post_tile, x->post_scale);
}

/* Rows of t for the host. */
static const struct tensor *read_rows(struct encoder_mllama *x, const struct tensor *t, int first, int n) {
  struct device *dev = x->base.m->dev;
  struct tensor rows = encoder_part(*t, first, n);
  dev->ops->fetch(dev, &x->state_host, &rows);
  return &x->state_host;
}

/* Features of output rows: D of the last state, then channel by channel the recorded ones, which only the host can put in that order. */
static void write_features(struct encoder_mllama *x, const struct tensor *features, int first) {
  int n_states = x->base.m->config.vision.n_states, n = features->rows;
  for (int i = 0, item = 0, rows; i < n; i += rows) { /* of one picture at a time */
    int r = first + i;
    while (r >= x->first_out[item + 1]) item++;
    rows = MIN(n - i, x->first_out[item + 1] - r);
    const struct tensor *last = read_rows(x, &x->h, x->first_row[item] + r - x->first_out[item], rows);
    for (int k = 0; k < rows; k++) memcpy(tensor_row(features, i + k), tensor_row(last, k), (size_t)x->D * sizeof(float));
  }
  for (int s = 0; s < n_states; s++) {
    const struct tensor *state = read_rows(x, &x->states[s], first, n);
    for (int i = 0; i < n; i++) {
      const float *from = tensor_row(state, i);
      float *to = tensor_row(features, i) + x->D + s;
      for (int d = 0; d < x->D; d++) to[n_states * d] = from[d];
    }
  }
}

static void project_block(struct encoder_mllama *x, int first, int n) {
  struct device *dev = x->base.m->dev;
  struct tensor out = encoder_part(x->base.out, first, n), features = tensor_rows(x->features, n), host = dev->ops->stage(dev, &features);
  write_features(x, &host, first);
  dev->ops->send(dev, &features, &host);
  encoder_tap(&x->base, "v.features", -1, first, &features);
  dev->ops->linear(dev, 1, (const struct weight *[]){&x->projector}, (struct tensor *[]){&out}, &features);
  dev->ops->bias_act(dev, &out, x->projector_bias, ACT_NONE);
  encoder_tap(&x->base, "v.soft", -1, first, &out);
}

static void mllama_unit(struct encoder *base, int i) {
  struct encoder_mllama *x = (struct encoder_mllama *)base;
  int part = i / x->n_blocks, first = i % x->n_blocks * base->block, n = MIN(base->block, x->n_rows - first);
  if (part > PARTS * x->n_layers) {
    first = (i - x->n_blocks * (1 + PARTS * x->n_layers)) * base->block;
    project_block(x, first, MIN(base->block, x->n_out - first));
  } else if (part == 0) embed_block(x, first, n);
  else if ((part - 1) % PARTS == 0) keys_of_block(x, (part - 1) / PARTS, first, n);
  else if ((part - 1) % PARTS == 1) attend_block(x, (part - 1) / PARTS, first, n);
  else ffn_block(x, (part - 1) / PARTS, first, n);
}

const struct encoder_ops encoder_mllama_ops = {
    .name = "mllama",
    .size = mllama_size,
    .struct_bytes = sizeof(struct encoder_mllama),
    .load = mllama_load,
    .unload = mllama_unload,
    .begin = mllama_begin,
    .unit = mllama_unit,
};
