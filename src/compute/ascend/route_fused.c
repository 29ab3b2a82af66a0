/* route_fused.c — the routes that are one FusedInferAttentionScore (FIA) each: tnd, bsnd, decode, masked, window, cross.
 *
 * A call by lines takes single rows [row, row + n), whose lines in the kind's tables follow each other, too. A call for a run takes the run's
 * own pages. The host passes lengths of keys by value, so every launch goes through capture.h.
 */
#include "compute/ascend/attn.h"
#include "compute/ascend/capture.h"

enum {
  CAUSAL_SIDE = 2048, /* of the mask that FIA's sparse modes want */
  SPARSE_NONE = 0,
  SPARSE_CAUSAL = 3, /* anchored at the last row and the last key */
  SPARSE_BAND = 4,
  DENSE_BYTES_MOST = 64 << 20, /* of keys gathered for one launch of the window route */
};
#define NO_BOUND 2147483647 /* of preTokens and nextTokens */

enum fused_layout { LAYOUT_BSH, LAYOUT_BSND, LAYOUT_TND };

struct fused { /* one launch; capture.h keeps a copy */
  const struct attn *a;
  const struct attn_layer *layer;
  enum fused_layout layout;
  int batch, rows; /* rows: of each of the batch (BSH, BSND), of all together (TND) */
  const void *q, *k, *v;
  void *out;
  int pages, page_tokens; /* paged: of the pool; page_tokens 0: k, v dense, [batch, pages, n_kv * head_dim] */
  const int32_t *table;   /* [batch, width] */
  int width;
  const void *mask; /* [batch, 1, width * page_tokens]; or the one of sparse modes */
  int sparse, window;
  const int64_t *rows_end; /* TND: [batch] */
  const int64_t *keys;     /* [batch] */
};

static aclTensorList *fused_pool(struct ascend *d, const struct fused *f, const void *data) {
  int64_t cols = (int64_t)f->layer->n_kv * f->layer->head_dim;
  struct ascend_shape paged = {3, {f->pages, f->page_tokens, cols}, {0}}, dense = {3, {f->batch, f->pages, cols}, {0}};
  aclTensor *t = ascend_view(d, data, d->type, f->page_tokens ? paged : dense);
  return ascend_list(d, &t, 1);
}

static aclTensor *fused_rows(struct ascend *d, const struct fused *f, const void *data) {
  const int64_t heads = f->layer->n_q, width = f->layer->head_dim;
  if (f->layout == LAYOUT_TND) return ascend_view(d, data, d->type, (struct ascend_shape){3, {f->rows, heads, width}, {0}});
  if (f->layout == LAYOUT_BSND) return ascend_view(d, data, d->type, (struct ascend_shape){4, {f->batch, f->rows, heads, width}, {0}});
  return ascend_view(d, data, d->type, (struct ascend_shape){3, {f->batch, f->rows, heads * width}, {0}});
}

static aclTensor *fused_mask(struct ascend *d, const struct fused *f) {
  if (!f->mask) return NULL;
  if (f->sparse != SPARSE_NONE) return ascend_view(d, f->mask, NPU_BOOL, (struct ascend_shape){2, {CAUSAL_SIDE, CAUSAL_SIDE}, {0}});
  return ascend_view(d, f->mask, NPU_BOOL, (struct ascend_shape){3, {f->batch, 1, (int64_t)f->width * f->page_tokens}, {0}});
}

static aclTensor *fused_table(struct ascend *d, const struct fused *f) {
  return f->table ? ascend_matrix(d, f->table, NPU_INT32, f->batch, f->width) : NULL;
}

/* The three versions differ in tensors that are not used here: V3 has three more than V2, V4 two more than V3 and a number at the end. */
#define FUSED_TENSORS(d, f)                                                                                                                \
  fused_rows((d), (f), (f)->q), fused_pool((d), (f), (f)->k), fused_pool((d), (f), (f)->v), NULL, fused_mask((d), (f)),                    \
      (f)->rows_end ? ascend_ints((d), (f)->rows_end, (f)->batch) : NULL, ascend_ints((d), (f)->keys, (f)->batch), NULL, NULL, NULL, NULL, \
      NULL, NULL, NULL, fused_table((d), (f)), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#define FUSED_NUMBERS(d, f)                                                                                                                \
  (f)->layer->n_q, (double)(f)->layer->scale, (f)->sparse == SPARSE_BAND ? (f)->window - 1 : NO_BOUND,                                     \
      (f)->sparse == SPARSE_BAND ? 0 : NO_BOUND, layout, (f)->layer->n_kv, (f)->sparse, 0, (f)->page_tokens, 0, false, 0, 0
#define FUSED_RESULTS(d, f) fused_rows((d), (f), (f)->out), NULL

static bool fused_issue(struct ascend *d, const void *ctx, bool renew) {
  const struct fused *f = ctx;
  char layouts[][8] = {"BSH", "BSND", "TND"}, *layout = layouts[f->layout];
  (void)renew;
  if (d->profile.fused >= 4) {
    ASCEND_LAUNCH(d, FusedInferAttentionScoreV4, FUSED_TENSORS(d, f), NULL, NULL, NULL, NULL, NULL, FUSED_NUMBERS(d, f), 0,
                  FUSED_RESULTS(d, f));
  } else if (d->profile.fused == 3) {
    ASCEND_LAUNCH(d, FusedInferAttentionScoreV3, FUSED_TENSORS(d, f), NULL, NULL, NULL, FUSED_NUMBERS(d, f), FUSED_RESULTS(d, f));
  } else {
    ASCEND_LAUNCH(d, FusedInferAttentionScoreV2, FUSED_TENSORS(d, f), FUSED_NUMBERS(d, f), FUSED_RESULTS(d, f));
  }
  return true;
}

static void fused_launch(const struct fused *f) { capture_update_numbers(f->a->d, fused_issue, f, sizeof *f, f->keys, f->batch); }

/* Rows [row, row + n) of the call's tensors, and the layer's pools. */
static struct fused fused_begin(const struct attn_work *w, int row, enum fused_layout layout, int batch, int rows) {
  const struct attn_kind *k = &w->a->kinds[w->layer->kind];
  struct fused f = {.a = w->a, .layer = w->layer, .layout = layout, .batch = batch, .rows = rows};
  f.q = tensor_at(&w->q, row, 0);
  f.out = tensor_at(&w->out, row, 0);
  f.k = w->store->k, f.v = w->store->v;
  f.pages = attn_pool_pages(&w->a->c, w->layer->kind);
  f.page_tokens = w->a->c.page_tokens;
  f.width = k->width;
  return f;
}

/* Single rows by lines, over pages. */
static void run_lines(const struct attn_work *w, const struct attn_call *call) {
  const struct attn_kind *k = &w->a->kinds[w->layer->kind];
  const size_t line = (size_t)call->line * (size_t)k->width;
  struct fused f = fused_begin(w, call->row, LAYOUT_BSH, call->n_rows, 1);
  f.table = k->tables + line;
  f.keys = k->paged + call->line;
  if (call->route == ROUTE_MASKED) f.mask = k->mask + line * (size_t)w->a->c.page_tokens;
  if (call->route == ROUTE_TND) {
    f.layout = LAYOUT_TND, f.rows = call->n_rows;
    f.rows_end = w->a->ends;
    f.sparse = call->window ? SPARSE_BAND : SPARSE_CAUSAL, f.window = call->window, f.mask = w->a->causal;
  }
  fused_launch(&f);
}

/* All rows of a step, by runs. */
static void run_whole_step(const struct attn_work *w, const struct attn_call *call) {
  const struct attn_kind *k = &w->a->kinds[w->layer->kind];
  struct fused f = fused_begin(w, call->row, LAYOUT_TND, call->n_runs, call->n_rows);
  f.table = k->tnd_table, f.width = k->tnd_width;
  f.rows_end = k->tnd_rows, f.keys = k->tnd_keys;
  f.sparse = call->window ? SPARSE_BAND : SPARSE_CAUSAL, f.window = call->window, f.mask = w->a->causal;
  fused_launch(&f);
}

/* One run over its own pages. */
static void run_one(const struct attn_work *w, const struct attn_call *call) {
  const struct attn_kind *k = &w->a->kinds[w->layer->kind];
  const struct attn_run *run = &k->runs[call->run];
  const int64_t keys = run->hi - run->page * w->a->c.page_tokens;
  struct fused f = fused_begin(w, call->row, LAYOUT_BSND, 1, call->n_rows);
  f.table = run->on_device ? run->on_device : ascend_upload(w->a->d, run->pages, (size_t)run->n_pages * sizeof *run->pages);
  f.width = run->n_pages;
  f.keys = &keys;
  if (call->route == ROUTE_BSND) {
    f.sparse = call->window ? SPARSE_BAND : SPARSE_CAUSAL, f.window = call->window, f.mask = w->a->causal;
  }
  if (!ascend_ok(w->a->d)) return;
  fused_issue(w->a->d, &f, false); /* never recorded: it has the shape of the run */
}

/* The window's keys of n rows as dense memory, then one query each. */
static void run_window(const struct attn_work *w, const struct attn_call *call) {
  struct ascend *d = w->a->d;
  const struct attn_kind *k = &w->a->kinds[w->layer->kind];
  const int64_t cols = (int64_t)w->layer->n_kv * w->layer->head_dim, wide = k->keys_wide;
  const int64_t slots = (int64_t)attn_pool_pages(&w->a->c, w->layer->kind) * w->a->c.page_tokens;
  const size_t row_bytes = (size_t)(wide * cols) * 2;
  const int most = (int)MIN(MAX(DENSE_BYTES_MOST / row_bytes, 1), (size_t)call->n_rows);
  char *dense_k = ascend_temp(d, row_bytes * (size_t)most), *dense_v = ascend_temp(d, row_bytes * (size_t)most);
  for (int at = 0; at < call->n_rows; at += most) {
    const int row = call->row + at, line = call->line + at, n = MIN(most, call->n_rows - at);
    const int32_t *keys = k->keys + (size_t)line * (size_t)wide;
    ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, w->store->k, d->type, slots, cols), 0, ascend_array(d, keys, NPU_INT32, n * wide),
                  ascend_matrix(d, dense_k, d->type, n * wide, cols));
    ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, w->store->v, d->type, slots, cols), 0, ascend_array(d, keys, NPU_INT32, n * wide),
                  ascend_matrix(d, dense_v, d->type, n * wide, cols));
    struct fused f = fused_begin(w, row, LAYOUT_BSH, n, 1);
    f.k = dense_k, f.v = dense_v;
    f.pages = k->keys_wide, f.page_tokens = 0;
    f.keys = k->dense + line;
    fused_launch(&f);
  }
}

void attn_run_fused(const struct attn_work *w, const struct attn_call *call) {
  switch (call->route) {
  case ROUTE_TND:
    if (call->whole_step) run_whole_step(w, call);
    else run_lines(w, call);
    break;
  case ROUTE_DECODE:
  case ROUTE_MASKED: run_lines(w, call); break;
  case ROUTE_CROSS:
    if (call->line >= 0) run_lines(w, call);
    else run_one(w, call);
    break;
  case ROUTE_BSND: run_one(w, call); break;
  case ROUTE_WINDOW: run_window(w, call); break;
  default: CHECK(false);
  }
}
