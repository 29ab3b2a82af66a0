/* attn_world.h — worlds and roads: how tests of attention ask every backend the same questions.
 *
 * A world is a few layers and a few sequences whose q, k and v are functions of (layer, sequence, position). A road is a way of computing the same
 * world: backend, device, kernels, threads, page size, chunks, company. Whatever the road, out[sequence][position] must be the same.
 * Every slot that no row has written holds NaN, and so does every page that has left its window.
 */
#ifndef ATTN_WORLD_H
#define ATTN_WORLD_H

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn_limit.h"
#include "base/mem.h"
#include "base/record.h"
#include "compute/attn.h"
#include "compute/device.h"

enum { LAYERS_MOST = 4, SEQS_MOST = 18 };

struct world {
  struct attn_layer layers[LAYERS_MOST];
  int n_layers, n_seqs, len[SEQS_MOST];
  int quiet[SEQS_MOST]; /* rows before this see nothing: they only write */
  int window;
  enum dtype kv_dtype;
  enum dtype input; /* what queries, keys and values are rounded to beforehand; none = not */
  uint64_t seed;
  const int *picture_end[SEQS_MOST]; /* by position: where the picture ends whose rows see each other, or 0. NULL: no pictures */
  bool both_ways[KV_KINDS];          /* in which layers they do */
};

struct road {
  const struct attn_ops *ops;
  struct device *device; /* NULL: tensors are the host's */
  const struct kern *kern;
  struct workers *workers;
  int page, chunk; /* chunk 0 = each step another size */
  bool together;   /* all sequences in each step, else one after the other */
  int n_padding;   /* rows of no sequence behind each step */
  uint64_t seed;   /* of page ids and chunk sizes */
};

struct run { /* one road being walked */
  const struct world *w;
  const struct road *road;
  struct attn *attn;
  struct batch b;
  struct tensor q, k, v, out; /* the host's */
  struct tensor on_device[4]; /* the same there: [rows_max, widest] */
  struct tensor fetched;
  struct device_record *taped; /* of the device: filled by the second call of do_layer, replayed by later ones; NULL = eager */
  int rows_max, pages_max;
  int32_t *pages[KV_KINDS]; /* [n_seqs, pages_max]: what will be or is used */
  int32_t *dropped;         /* [n_seqs]: sliding pages of each that have been given back */
  int done[SEQS_MOST];
  struct record *record; /* of do_layer: filled by the first call, replayed by the others; NULL = eager */
  uint64_t rand;
};

static int widest(const struct world *w, bool keys) {
  int n = 1;
  for (int i = 0; i < w->n_layers; i++) n = MAX(n, (keys ? w->layers[i].n_kv : w->layers[i].n_q) * w->layers[i].head_dim);
  return n;
}
static int longest(const struct world *w) {
  int n = 1;
  for (int s = 0; s < w->n_seqs; s++) n = MAX(n, w->len[s]);
  return n;
}
/* First row of a layer's results for one sequence in the array of all. */
static size_t result_at(const struct world *w, int layer, int seq, int pos) {
  size_t at = 0;
  for (int i = 0; i < w->n_layers; i++) {
    size_t cols = (size_t)(w->layers[i].n_q * w->layers[i].head_dim);
    for (int s = 0; s < w->n_seqs; s++) {
      if (i == layer && s == seq) return at + (size_t)pos * cols;
      at += (size_t)w->len[s] * cols;
    }
  }
  return at;
}
static size_t n_results(const struct world *w) { return result_at(w, -1, 0, 0); }

/* Position behind the last key that a row sees in layers of that kind. */
static int last_seen(const struct world *w, int kind, int seq, int pos) {
  int picture = w->picture_end[seq] && w->both_ways[kind] ? w->picture_end[seq][pos] : 0;
  return MAX(picture, pos + 1);
}
/* How many of n rows from pos on a step may have: a picture is not cut. */
static int whole_pictures(const struct world *w, int seq, int pos, int n) {
  int end = w->picture_end[seq] ? w->picture_end[seq][pos + n - 1] : 0;
  return end > 0 ? end - pos : n;
}

/* Numbers of variance 1 that belong to (layer, sequence, position, what). */
static void fill(const struct world *w, int layer, int seq, int pos, int what, float *x, int n) {
  uint64_t state = w->seed ^ ((uint64_t)layer << 56 | (uint64_t)seq << 48 | (uint64_t)what << 40 | (uint64_t)pos);
  test_rand(&state);
  for (int i = 0; i < n; i += 2) {
    uint64_t r = test_rand(&state);
    x[i] = ((float)(r >> 40) - 0x1p23f) * (1.7320508f * 0x1p-23f);
    if (i + 1 < n) x[i + 1] = ((float)(r & 0xffffff) - 0x1p23f) * (1.7320508f * 0x1p-23f);
  }
  if (w->input == DTYPE_NONE) return;
  unsigned char rounded[4096 * sizeof(float)];
  for (int i = 0; i < n; i += 4096) {
    dtype_from_f32(w->input, x + i, rounded, (size_t)MIN(n - i, 4096));
    dtype_to_f32(w->input, rounded, x + i, (size_t)MIN(n - i, 4096));
  }
}

static struct tensor new_tensor(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * sizeof(float), 64)};
  t.data = xcalloc((size_t)rows, t.row_bytes);
  return t;
}
static void reshape(struct tensor *t, int cols) { t->cols = cols, t->row_bytes = align_up((size_t)cols * sizeof(float), 64); }

static void new_batch(struct batch *b, int rows_max, int seqs_max, int pages_max) {
  memset(b, 0, sizeof *b);
  b->rows_max = rows_max, b->seqs_max = seqs_max;
  for (int k = 0; k < KV_KINDS; k++) b->pages_max[k] = pages_max;
  b->token = xcalloc((size_t)rows_max, sizeof *b->token);
  b->pos = xcalloc((size_t)rows_max, sizeof *b->pos);
  b->seq = xcalloc((size_t)rows_max, sizeof *b->seq);
  b->q_start = xcalloc((size_t)seqs_max + 1, sizeof *b->q_start);
  for (int kind = 0; kind < KV_KINDS; kind++) {
    b->lo[kind] = xcalloc((size_t)rows_max, sizeof *b->lo[kind]);
    b->hi[kind] = xcalloc((size_t)rows_max, sizeof *b->hi[kind]);
    b->slot[kind] = xcalloc((size_t)rows_max, sizeof *b->slot[kind]);
    b->page[kind] = xcalloc((size_t)seqs_max * (size_t)pages_max, sizeof *b->page[kind]);
  }
}
static void free_batch(struct batch *b) {
  free(b->token);
  free(b->pos);
  free(b->seq);
  free(b->q_start);
  for (int kind = 0; kind < KV_KINDS; kind++) {
    free(b->lo[kind]);
    free(b->hi[kind]);
    free(b->slot[kind]);
    free(b->page[kind]);
  }
}

/* The layer's rows by the backend: on the host's tensors, or by way of the device. NULL k: the layer reads a donor's. */
static void run_rows(struct run *r, int layer, bool owns, int n_rows) {
  const struct attn_ops *ops = r->road->ops;
  struct device *dev = r->road->device;
  if (!dev) {
    ops->run(r->attn, layer, &r->q, owns ? &r->k : NULL, owns ? &r->v : NULL, &r->out);
    return;
  }
  const struct tensor *host[] = {&r->q, &r->k, &r->v, &r->out};
  struct tensor there[4];
  for (int i = 0; i < 4; i++) {
    size_t elem = tensor_elem_bytes(&r->on_device[i]);
    there[i] = tensor_part(r->on_device[i], 0, n_rows, 0, host[i]->cols);
    there[i].row_bytes = align_up((size_t)host[i]->cols * elem, 64);
    if (i == 3) break;
    struct tensor staged = dev->ops->stage(dev, &there[i]);
    for (int row = 0; row < n_rows; row++)
      memcpy(tensor_row(&staged, row), tensor_row(host[i], row), (size_t)host[i]->cols * sizeof(float));
    dev->ops->send(dev, &there[i], &staged);
  }
  if (r->taped && dev->ops->record_launches(r->taped) > 0) {
    dev->ops->record_replay(dev, r->taped);
  } else {
    ops->run(r->attn, layer, &there[0], owns ? &there[1] : NULL, owns ? &there[2] : NULL, &there[3]);
    if (r->taped) {
      dev->ops->record_begin(dev, r->taped);
      ops->prepare(r->attn, &r->b);
      ops->run(r->attn, layer, &there[0], owns ? &there[1] : NULL, owns ? &there[2] : NULL, &there[3]);
      dev->ops->record_end(dev, r->taped);
    }
  }
  struct tensor fetched = tensor_part(r->fetched, 0, n_rows, 0, r->out.cols);
  fetched.row_bytes = align_up((size_t)r->out.cols * sizeof(float), 64);
  dev->ops->fetch(dev, &fetched, &there[3]);
  struct err e = {0};
  if (dev->ops->finish(dev, &e)) fail_msg("%s", e.msg);
  for (int row = 0; row < n_rows; row++) memcpy(tensor_row(&r->out, row), tensor_row(&fetched, row), (size_t)r->out.cols * sizeof(float));
}

/* Write NaN into n slots of one kind through rows that see nothing. */
static void poison(struct run *r, enum kv_kind kind, const int64_t *slots, int n) {
  const float garbage = r->w->kv_dtype == DTYPE_Q8_0 ? INFINITY : NAN; /* an infinite scale times 0 is a NaN too */
  struct batch *b = &r->b;
  for (int at = 0; at < n; at += r->rows_max) {
    b->n_rows = MIN(n - at, r->rows_max);
    b->n_seqs = 0;
    for (int i = 0; i < b->n_rows; i++) {
      for (int j = 0; j < KV_KINDS; j++) b->lo[j][i] = b->hi[j][i] = 0, b->slot[j][i] = 0;
      b->slot[kind][i] = slots[at + i];
    }
    r->road->ops->prepare(r->attn, b);
    for (int layer = 0; layer < r->w->n_layers; layer++) {
      const struct attn_layer *l = &r->w->layers[layer];
      if (l->owner != layer || l->kind != (int)kind) continue;
      reshape(&r->q, l->n_q * l->head_dim), reshape(&r->out, l->n_q * l->head_dim);
      reshape(&r->k, l->n_kv * l->head_dim), reshape(&r->v, l->n_kv * l->head_dim);
      for (int i = 0; i < b->n_rows; i++) {
        for (int c = 0; c < r->k.cols; c++) tensor_row(&r->k, i)[c] = tensor_row(&r->v, i)[c] = garbage;
      }
      run_rows(r, layer, true, b->n_rows);
    }
  }
}

static void poison_page(struct run *r, enum kv_kind kind, int32_t page) {
  int64_t slots[256];
  for (int i = 0; i < r->road->page; i++) slots[i] = (int64_t)page * r->road->page + i;
  poison(r, kind, slots, r->road->page);
}

static void begin(struct run *r, const struct world *w, const struct road *road) {
  memset(r, 0, sizeof *r);
  r->w = w, r->road = road, r->rand = road->seed;
  r->pages_max = div_up(longest(w), road->page);
  int total = 0;
  for (int s = 0; s < w->n_seqs; s++) total += w->len[s];
  r->rows_max = MAX(total + road->n_padding, 16);
  int n_pages = r->pages_max * w->n_seqs + 2;
  struct attn_config c = {.layers = w->layers, .n_layers = w->n_layers, .kv_dtype = w->kv_dtype, .page_tokens = road->page};
  c.rows_max = r->rows_max, c.seqs_max = w->n_seqs, c.tokens_max = longest(w);
  c.n_pages[KV_FULL] = c.n_pages[KV_SLIDING] = n_pages;
  c.kern = road->kern, c.workers = road->workers, c.device = road->device, c.window = w->window;
  struct err e = {0};
  r->attn = road->ops->open(&c, &e);
  if (!r->attn) fail_msg("%s", e.msg);
  new_batch(&r->b, r->rows_max, w->n_seqs, r->pages_max);
  r->q = new_tensor(r->rows_max, widest(w, false)), r->out = new_tensor(r->rows_max, widest(w, false));
  r->k = new_tensor(r->rows_max, widest(w, true)), r->v = new_tensor(r->rows_max, widest(w, true));
  struct tensor *const like[] = {&r->q, &r->k, &r->v, &r->out};
  for (int i = 0; road->device && i < 4; i++) {
    if (road->device->ops->alloc(road->device, &r->on_device[i], r->rows_max, like[i]->cols, "a test", &e)) fail_msg("%s", e.msg);
  }
  if (road->device && road->device->ops->host_alloc(road->device, &r->fetched, r->rows_max, r->out.cols, "a test", &e))
    fail_msg("%s", e.msg);
  r->dropped = xcalloc((size_t)w->n_seqs, sizeof *r->dropped);
  for (int kind = 0; kind < KV_KINDS; kind++) { /* a random one-to-one choice of page ids */
    int32_t *ids = xcalloc((size_t)n_pages, sizeof *ids);
    for (int i = 0; i < n_pages; i++) {
      int j = test_rand_int(&r->rand, 0, i);
      ids[i] = ids[j];
      ids[j] = i + 1;
    }
    r->pages[kind] = ids;
    for (int i = 1; i <= n_pages; i++) poison_page(r, (enum kv_kind)kind, i);
  }
}

static void end(struct run *r) {
  r->road->ops->close(r->attn);
  for (int i = 0; r->road->device && i < 4; i++) r->road->device->ops->free(r->road->device, &r->on_device[i]);
  if (r->road->device) r->road->device->ops->host_free(r->road->device, &r->fetched);
  free_batch(&r->b);
  free(r->q.data);
  free(r->k.data);
  free(r->v.data);
  free(r->out.data);
  free(r->dropped);
  for (int kind = 0; kind < KV_KINDS; kind++) free(r->pages[kind]);
}

static void add_row(struct run *r, int seq, int pos) {
  struct batch *b = &r->b;
  int i = b->n_rows++, P = r->road->page;
  b->seq[i] = seq, b->pos[i] = pos;
  for (int kind = 0; kind < KV_KINDS; kind++) {
    bool sees = pos >= r->w->quiet[seq];
    b->lo[kind][i] = sees && kind == KV_SLIDING ? (int32_t)kv_window_lo(pos, r->w->window) : 0;
    b->hi[kind][i] = sees ? last_seen(r->w, kind, seq, pos) : 0;
    b->slot[kind][i] = (int64_t)r->pages[kind][seq * r->pages_max + pos / P] * P + pos % P;
  }
}

/* Rows of one step; false when all is done. */
static bool fill_step(struct run *r) {
  struct batch *b = &r->b;
  b->n_rows = b->n_seqs = 0;
  int of[SEQS_MOST];
  for (int s = 0; s < r->w->n_seqs; s++) {
    int left = r->w->len[s] - r->done[s];
    if (left == 0 || (!r->road->together && b->n_seqs > 0)) continue;
    int n = r->road->chunk ? r->road->chunk : test_rand_int(&r->rand, 1, 40);
    n = whole_pictures(r->w, s, r->done[s], MIN(n, left));
    b->q_start[b->n_seqs] = b->n_rows;
    for (int kind = 0; kind < KV_KINDS; kind++) { /* the table ends where the step ends; what has left the window is 0 */
      for (int p = 0; p < r->pages_max; p++) {
        bool held = p * r->road->page < r->done[s] + n && (kind == KV_FULL || p >= r->dropped[s]);
        b->page[kind][b->n_seqs * r->pages_max + p] = held ? r->pages[kind][s * r->pages_max + p] : 0;
      }
    }
    for (int i = 0; i < n; i++) add_row(r, s, r->done[s] + i);
    for (int i = 0; i < n; i++) b->seq[b->n_rows - n + i] = b->n_seqs;
    of[b->n_seqs++] = s;
    r->done[s] += n;
  }
  b->q_start[b->n_seqs] = b->n_rows;
  if (b->n_seqs == 0) return false;
  b->n_out = 0;
  for (int i = 0; i < b->n_seqs; i++) { /* remember which sequence this is */
    for (int row = b->q_start[i]; row < b->q_start[i + 1]; row++) b->token[row] = of[i];
  }
  for (int i = 0; i < r->road->n_padding; i++) {
    int row = b->n_rows++;
    b->seq[row] = 0, b->pos[row] = 0, b->token[row] = -1;
    for (int kind = 0; kind < KV_KINDS; kind++) b->lo[kind][row] = b->hi[kind][row] = 0, b->slot[kind][row] = 0;
  }
  return true;
}

static void do_layer(struct run *r, int layer, float *results) {
  const struct attn_layer *l = &r->w->layers[layer];
  const struct batch *b = &r->b;
  reshape(&r->q, l->n_q * l->head_dim), reshape(&r->out, l->n_q * l->head_dim);
  reshape(&r->k, l->n_kv * l->head_dim), reshape(&r->v, l->n_kv * l->head_dim);
  for (int i = 0; i < b->n_rows; i++) {
    if (b->token[i] < 0) {
      for (int c = 0; c < r->q.cols; c++) tensor_row(&r->q, i)[c] = NAN;
      for (int c = 0; c < r->k.cols; c++) tensor_row(&r->k, i)[c] = tensor_row(&r->v, i)[c] = NAN;
      continue;
    }
    fill(r->w, layer, b->token[i], b->pos[i], 1, tensor_row(&r->q, i), r->q.cols);
    fill(r->w, layer, b->token[i], b->pos[i], 2, tensor_row(&r->k, i), r->k.cols);
    fill(r->w, layer, b->token[i], b->pos[i], 3, tensor_row(&r->v, i), r->v.cols);
  }
  memset(r->out.data, 0xff, r->out.row_bytes * (size_t)r->rows_max);
  bool owns = l->owner == layer;
  if (r->record && record_launches(r->record) > 0) {
    workers_replay(r->road->workers, r->record);
  } else {
    if (r->record) workers_record(r->road->workers, r->record);
    run_rows(r, layer, owns, b->n_rows);
    if (r->record) workers_record(r->road->workers, NULL);
  }
  for (int i = 0; i < b->n_rows; i++) {
    const float *out = tensor_row(&r->out, i);
    if (b->token[i] >= 0) {
      memcpy(results + result_at(r->w, layer, b->token[i], b->pos[i]), out, sizeof(float) * (size_t)r->out.cols);
    } else {
      for (int c = 0; c < r->out.cols; c++) assert_true(out[c] == 0);
    }
  }
}

/* Give back sliding pages wholly below the window of the next row, and fill them with NaN. */
static void drop_pages(struct run *r) {
  for (int s = 0; s < r->w->n_seqs; s++) {
    int64_t lo = kv_window_lo(r->done[s], r->w->window);
    for (; r->w->window && ((int64_t)r->dropped[s] + 1) * r->road->page <= lo; r->dropped[s]++) {
      poison_page(r, KV_SLIDING, r->pages[KV_SLIDING][s * r->pages_max + r->dropped[s]]);
    }
  }
}

static float *walk(const struct world *w, const struct road *road) {
  float *results = xcalloc(n_results(w) + 1, sizeof *results);
  struct run r;
  begin(&r, w, road);
  while (fill_step(&r)) {
    road->ops->prepare(r.attn, &r.b);
    for (int layer = 0; layer < w->n_layers; layer++) do_layer(&r, layer, results);
    drop_pages(&r);
  }
  end(&r);
  return results;
}

/* Four layers: full, sliding, and one of each that reads theirs with other queries. */
static struct world new_world(int n_kv, int group, int head_dim, int window, enum dtype kv_dtype, uint64_t seed) {
  struct world w = {.n_layers = 4, .n_seqs = 1, .window = window, .kv_dtype = kv_dtype, .seed = seed};
  float scale = 1.5f / sqrtf((float)head_dim);
  w.layers[0] = (struct attn_layer){KV_FULL, n_kv * group, n_kv, head_dim, scale, 0};
  w.layers[1] = (struct attn_layer){KV_SLIDING, n_kv * group, n_kv, head_dim, scale, 1};
  w.layers[2] = (struct attn_layer){KV_SLIDING, n_kv, n_kv, head_dim, scale, 1};
  w.layers[3] = (struct attn_layer){KV_FULL, 2 * n_kv, n_kv, head_dim, scale, 0};
  return w;
}

#endif
