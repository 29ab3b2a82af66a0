/* encoder.c — jobs of encoders: which one a model has, going through a job's units, and what encoders share. The rules are in encoder.h. */
#include "models/encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which, and how large ---------------------------------------------------------------------------------------------------- */

const struct encoder_ops *encoder_ops_for(const struct model_config *c, enum media_kind kind) {
  if (kind == MEDIA_AUDIO) {
    switch (c->audio.kind) {
    case AUDIO_GEMMA4: return &encoder_gemma4_audio_ops;
    case AUDIO_GEMMA4_FRAMES: return &encoder_gemma4_frames_ops;
    case AUDIO_NONE: break;
    }
    return NULL;
  }
  switch (c->vision.kind) {
  case VISION_SIGLIP: return &encoder_siglip_ops;
  case VISION_GEMMA4: return &encoder_gemma4_vision_ops;
  case VISION_GEMMA4_BLOCKS: return &encoder_gemma4_blocks_ops;
  case VISION_MLLAMA: return &encoder_mllama_ops;
  case VISION_NONE: break;
  }
  return NULL;
}

int encoder_rows_max(const struct model_config *c, enum media_kind kind) {
  return encoder_ops_for(c, kind) ? MAX(media_patches_max(c, kind), ENCODER_ROWS) : 0;
}

static struct encoder_size encoder_size(const struct model_config *c, enum media_kind kind) {
  const struct encoder_ops *ops = encoder_ops_for(c, kind);
  return ops ? ops->size(c, encoder_rows_max(c, kind)) : (struct encoder_size){0};
}

size_t encoder_scratch_bytes(const struct model_config *c, enum media_kind kind) { return encoder_size(c, kind).n_bytes; }
int encoder_block_max(const struct model_config *c) { return MAX(encoder_size(c, MEDIA_IMAGE).rows, encoder_size(c, MEDIA_AUDIO).rows); }
int encoder_cols_max(const struct model_config *c) { return MAX(encoder_size(c, MEDIA_IMAGE).cols, encoder_size(c, MEDIA_AUDIO).cols); }
int encoder_keys_max(const struct model_config *c) { return MAX(encoder_size(c, MEDIA_IMAGE).keys, encoder_size(c, MEDIA_AUDIO).keys); }
int encoder_head_dim_max(const struct model_config *c) {
  return MAX(encoder_size(c, MEDIA_IMAGE).head_dim, encoder_size(c, MEDIA_AUDIO).head_dim);
}

/* Rows begin at an odd number of cache lines, or less. */
size_t encoder_tensor_bytes(int rows, int cols) { return (size_t)rows * ((align_up((size_t)cols * sizeof(float), 64) / 64) | 1) * 64; }

size_t encoder_tensors_bytes(const struct bind_scratch *t, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += encoder_tensor_bytes(t[i].rows, t[i].cols);
  return sum;
}

/* ---- life -------------------------------------------------------------------------------------------------------------------- */

struct encoder *encoder_open(struct model *m, enum media_kind kind, struct weights *w, struct err *e) {
  const struct encoder_ops *ops = encoder_ops_for(&m->config, kind);
  if (!ops) {
    err_set(e, ERR_UNSUPPORTED, "model %s: expected an encoder for %s, found none", m->config.name,
            kind == MEDIA_AUDIO ? "sound" : "pictures");
    return NULL;
  }
  struct encoder *x = xcalloc(1, ops->struct_bytes);
  x->ops = ops;
  x->m = m;
  x->kind = kind;
  x->rows_max = encoder_rows_max(&m->config, kind);
  x->block = ENCODER_ROWS;
  if (!ops->load(x, w, e)) return x;
  encoder_close(x);
  return NULL;
}

void encoder_close(struct encoder *x) {
  if (!x) return;
  x->ops->unload(x);
  free(x);
}

int model_open_media(struct model *m, struct weights *w, struct err *e) {
  if (!m->plan.media) return 0;
  const struct model_config *c = &m->config;
  if (encoder_ops_for(c, MEDIA_IMAGE) && !(m->vision = encoder_open(m, MEDIA_IMAGE, w, e))) return -1;
  if (encoder_ops_for(c, MEDIA_AUDIO) && !(m->audio = encoder_open(m, MEDIA_AUDIO, w, e))) return -1;
  return m->vision || m->audio ? weights_report_unused(w, false, e) : 0;
}

/* ---- a job ------------------------------------------------------------------------------------------------------------------- */

void encoder_begin(struct encoder *x, const struct media *const *items, int n) {
  int rows = 0;
  CHECK(n >= 1 && n <= ENCODER_ITEMS_MAX);
  for (int i = 0; i < n; i++) {
    CHECK((items[i]->kind == MEDIA_AUDIO) == (x->kind == MEDIA_AUDIO) && items[i]->n_patches <= x->rows_max - rows);
    rows += items[i]->n_patches;
    x->items[i] = items[i];
  }
  x->n_items = n;
  x->next_unit = 0;
  x->products = 0;
  x->n_units = x->ops->begin(x);
}

bool encoder_unit(struct encoder *x) {
  CHECK(x->next_unit < x->n_units);
  x->ops->unit(x, x->next_unit++);
  if (x->next_unit < x->n_units) return false;
  x->n_units = 0;
  return true;
}

void encoder_cancel(struct encoder *x) { x->n_units = x->n_items = 0; }

/* ---- what encoders share ----------------------------------------------------------------------------------------------------- */

void encoder_tap(const struct encoder *x, const char *name, int layer, int first, const struct tensor *t) {
  if (x->m->tap) model_tap_rows(x->m, name, layer, first, t);
}

static const char *encoder_name(char text[BIND_NAME_BYTES], const char *prefix, int layer, const char *name, const char *end) {
  int n = layer < 0 ? snprintf(text, BIND_NAME_BYTES, "%s%s", name, end)
                    : snprintf(text, BIND_NAME_BYTES, "%s.%d.%s%s", prefix, layer, name, end);
  CHECK(n < BIND_NAME_BYTES);
  return text;
}

int encoder_vectors(struct encoder *x, struct weights *w, struct arena *arena, const char *prefix, int layer, const struct bind_vector *v,
                    size_t n, struct err *e) {
  char name[BIND_NAME_BYTES];
  for (size_t i = 0; i < n; i++) {
    struct bind_vector whole = v[i];
    whole.name = encoder_name(name, prefix, layer, v[i].name, "");
    if (bind_vector(x->m, w, arena, &whole, e)) return -1;
  }
  return 0;
}

int encoder_matrices(struct encoder *x, struct weights *w, const char *prefix, int layer, const struct bind_matrix *v, size_t n,
                     struct err *e) {
  char name[BIND_NAME_BYTES];
  for (size_t i = 0; i < n; i++) {
    struct bind_matrix whole = v[i];
    whole.name = encoder_name(name, prefix, layer, v[i].name, "");
    if (bind_matrix(x->m, w, &whole, e)) return -1;
  }
  return 0;
}

int encoder_table(struct encoder *x, struct weights *w, const char *name, int rows, int per_row, int cols, struct weight *out,
                  struct err *e) {
  struct model *m = x->m;
  struct weight_view v;
  if (weights_get(w, name, rows, per_row * cols, &v, e)) return -1;
  *out = (struct weight){.dtype = v.dtype, .rows = rows * per_row, .cols = cols, .row_bytes = v.row_bytes, .source = v.data};
  if (per_row > 1 && !dtype_row_bytes(v.dtype, (size_t)cols, &out->row_bytes))
    return err_set(e, ERR_UNSUPPORTED, "tensor %s: expected rows of %d numbers to be whole blocks, found type %s", name, cols,
                   dtype_info(v.dtype)->name);
  if (m->dev->ops->table_bind(m->dev, out, name, e)) return -1;
  m->weight_bytes += (size_t)v.rows * v.row_bytes;
  m->packed_bytes += out->packed_bytes;
  return 0;
}

/* ---- products with bounds ---------------------------------------------------------------------------------------------------- */

static int linear_bounds(struct weights *w, const char *prefix, int layer, const char *name, struct encoder_linear *y, struct err *e) {
  const struct {
    const char *end;
    float *bound;
  } all[] = {{".input_min", &y->in[0]}, {".input_max", &y->in[1]}, {".output_min", &y->out[0]}, {".output_max", &y->out[1]}};
  char whole[BIND_NAME_BYTES];
  for (size_t i = 0; i < ARRAY_LEN(all); i++) {
    encoder_name(whole, prefix, layer, name, all[i].end);
    if (weights_has(w, whole) && weights_get_vector(w, whole, 1, all[i].bound, e)) return -1;
  }
  return 0;
}

int encoder_linears(struct encoder *x, struct weights *w, const char *prefix, int layer, bool clipped, const struct encoder_linear_name *v,
                    size_t n, struct err *e) {
  char name[BIND_NAME_BYTES];
  for (size_t i = 0; i < n; i++) {
    struct encoder_linear *y = v[i].out;
    y->in[0] = y->out[0] = -INFINITY;
    y->in[1] = y->out[1] = INFINITY;
    encoder_name(name, prefix, layer, v[i].name, ".weight");
    if (bind_matrix(x->m, w, &(struct bind_matrix){name, &y->w, v[i].rows, v[i].cols}, e)) return -1;
    if (clipped && linear_bounds(w, prefix, layer, v[i].name, y, e)) return -1;
  }
  return 0;
}

static bool bounded(const float b[2]) { return b[0] > -INFINITY || b[1] < INFINITY; }
static bool same_bounds(const float a[2], const float b[2]) { return a[0] == b[0] && a[1] == b[1]; }

/* The input within bounds: itself where there are none, else in z. */
static struct tensor within(const struct encoder *x, const float b[2], const struct tensor *in, const struct tensor *z) {
  if (!bounded(b)) return *in;
  struct tensor clamped = part(*z, in->rows, in->cols);
  x->m->dev->ops->clamp(x->m->dev, &clamped, in, b[0], b[1]);
  return clamped;
}

void encoder_linear(const struct encoder *x, int n, const struct encoder_linear *const *w, struct tensor *const *y, const struct tensor *in,
                    const struct tensor *z) {
  enum { LINEARS_MAX = 3 };
  const struct device_ops *d = x->m->dev->ops;
  const struct weight *same[LINEARS_MAX];
  CHECK(n <= LINEARS_MAX);
  for (int i = 0, end; i < n; i = end) { /* those with the same bounds of the input go together */
    const float *b = w[i]->in;
    for (end = i; end < n && (end == i || same_bounds(w[end]->in, b)); end++) same[end - i] = &w[end]->w;
    struct tensor clamped = within(x, b, in, z);
    d->linear(x->m->dev, end - i, same, y + i, &clamped);
  }
  for (int i = 0; i < n; i++)
    if (bounded(w[i]->out)) d->clamp(x->m->dev, y[i], y[i], w[i]->out[0], w[i]->out[1]);
}

/* One operation unless bounds stand between: of the products, or of their input if they are not the same. */
void encoder_linear_gated(const struct encoder *x, struct tensor *y, const struct encoder_linear *gate, const struct encoder_linear *up,
                          const struct tensor *in, enum act act, struct tensor *up_room, const struct tensor *z) {
  const struct device_ops *d = x->m->dev->ops;
  if (same_bounds(gate->in, up->in) && !bounded(gate->out) && !bounded(up->out)) {
    struct tensor clamped = within(x, gate->in, in, z);
    d->linear_gated(x->m->dev, y, &gate->w, &up->w, &clamped, act, up_room);
    return;
  }
  encoder_linear(x, 2, (const struct encoder_linear *[]){gate, up}, (struct tensor *[]){y, up_room}, in, z);
  d->gated(x->m->dev, y, y, up_room, act);
}

/* ---- rows of a job ----------------------------------------------------------------------------------------------------------- */

void encoder_rows_init(struct encoder_rows *r, int rows_max) {
  size_t n = (size_t)rows_max;
  int32_t *all = xcalloc(4 * n, sizeof *all);
  *r = (struct encoder_rows){0, all, all + n, all + 2 * n, all + 3 * n};
}

void encoder_rows_free(struct encoder_rows *r) {
  free(r->item);
  *r = (struct encoder_rows){0};
}

void encoder_rows_set(struct encoder_rows *r, const struct encoder *x) {
  r->n = 0;
  for (int i = 0; i < x->n_items; i++) {
    int first = r->n, end = first + x->items[i]->n_patches;
    for (; r->n < end; r->n++) {
      r->item[r->n] = i;
      r->at[r->n] = r->n - first;
      r->lo[r->n] = first;
      r->hi[r->n] = end;
    }
  }
}

/* From one row after the other, as media_patches writes them, to rows of a tensor: the last one first, for it moves farthest. */
static void spread_rows(struct tensor *y, int first, int n, float *room) {
  const float *from = tensor_row(y, first);
  int cols = y->cols, pixels = cols / 3;
  for (int i = n - 1; i >= 0; i--) {
    float *to = tensor_row(y, first + i);
    if (!room) {
      memmove(to, from + (size_t)i * (size_t)cols, (size_t)cols * sizeof *to);
      continue;
    }
    memcpy(room, from + (size_t)i * (size_t)cols, (size_t)cols * sizeof *to);
    for (int p = 0; p < pixels; p++)
      for (int colour = 0; colour < 3; colour++) to[colour * pixels + p] = room[3 * p + colour];
  }
}

enum { ATTEND_HEADS = 2 }; /* of a unit */

static int attend_rows(const struct encoder *x, int n_heads) { return x->block * div_up(n_heads, ATTEND_HEADS); }

int encoder_attend_units(const struct encoder *x, const struct encoder_rows *r, int n_heads) {
  return div_up(n_heads, ATTEND_HEADS) * div_up(r->n, attend_rows(x, n_heads));
}

static struct tensor heads_of(const struct tensor *t, int first_row, int n_rows, int first_head, int n, int head_dim) {
  return tensor_part(*t, first_row, n_rows, first_head * head_dim, n * head_dim);
}

void encoder_attend(const struct encoder *x, const struct encoder_rows *r, int unit, const struct tensor *q, const struct tensor *k,
                    const struct tensor *v, int n_heads, float scale) {
  int most = attend_rows(x, n_heads), parts = div_up(r->n, most), first = unit % parts * most, head = unit / parts * ATTEND_HEADS;
  int rows = MIN(most, r->n - first), n = MIN(ATTEND_HEADS, n_heads - head), head_dim = q->cols / n_heads;
  struct tensor qs = heads_of(q, first, rows, head, n, head_dim);
  struct tensor ks = heads_of(k, 0, r->n, head, n, head_dim), vs = heads_of(v, 0, r->n, head, n, head_dim);
  x->m->dev->ops->attend(x->m->dev, &qs, &qs, &ks, &vs, n, scale, r->lo + first, r->hi + first);
}

/* ---- units of a ViT ------------------------------------------------------------------------------------------------------------ */

int encoder_vit_units(const struct encoder *x, const struct encoder_rows *r, const struct vision_config *v, int n_out) {
  int blocks = div_up(r->n, x->block), of_layer = 2 * blocks + encoder_attend_units(x, r, v->n_heads);
  return blocks + v->n_layers * of_layer + div_up(n_out, x->block);
}

struct encoder_step encoder_vit_step(const struct encoder *x, const struct encoder_rows *r, const struct vision_config *v, int n_out,
                                     int unit) {
  int blocks = div_up(r->n, x->block), attention = encoder_attend_units(x, r, v->n_heads), of_layer = 2 * blocks + attention;
  struct encoder_step s = {.phase = ENCODER_EMBED};
  int part = unit, rows = r->n;
  if (unit >= blocks) {
    s.layer = (unit - blocks) / of_layer;
    part = (unit - blocks) % of_layer;
    if (s.layer == v->n_layers) {
      s.phase = ENCODER_PROJECT;
      rows = n_out;
    } else if (part < blocks) {
      s.phase = ENCODER_QKV;
    } else if (part < blocks + attention) {
      return (struct encoder_step){.phase = ENCODER_ATTEND, .layer = s.layer, .first = part - blocks};
    } else {
      s.phase = ENCODER_REST;
      part -= blocks + attention;
    }
  }
  s.first = part * x->block;
  s.n = MIN(x->block, rows - s.first);
  return s;
}

int32_t *encoder_pool_index(int32_t *to, int first, int wide, int n, int pool) {
  int across = wide / pool;
  for (int r = 0; r < n; r++)
    for (int p = 0; p < pool * pool; p++) *to++ = first + (r / across * pool + p / pool) * wide + r % across * pool + p % pool;
  return to;
}

struct tensor encoder_inputs(const struct encoder *x, const struct encoder_rows *r, int first, float *room, const struct tensor *y) {
  struct tensor host = x->m->dev->ops->stage(x->m->dev, y);
  for (int i = 0, n; i < y->rows; i += n) {
    int row = first + i;
    n = MIN(y->rows - i, r->hi[row] - row); /* of one item */
    media_patches(&x->m->config, x->items[r->item[row]], r->at[row], n, tensor_row(&host, i));
    spread_rows(&host, i, n, room);
  }
  return host;
}
