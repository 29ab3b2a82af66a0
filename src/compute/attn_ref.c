/* attn_ref.c — the oracle: float64 loops over each row's interval, straight from the definition.
 *
 * Keys and values are kept as float32 copies of what the cache type would round them to, in one array per layer indexed by slot.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/attn.h"

struct ref_store {
  float *k, *v; /* [n_slots, n_kv, head_dim]; NULL when the layer reads a donor's */
  size_t n_bytes;
};

struct attn {
  struct attn_config c;
  struct attn_layer *layers;
  struct ref_store *stores;
  const struct batch *batch;
  double *weight; /* [most keys of a row] */
  double *sum;    /* [widest head_dim] */
  size_t weight_bytes;
};

static void ref_close(struct attn *a) {
  if (!a) return;
  for (int i = 0; a->stores && i < a->c.n_layers; i++) {
    mem_big_free(a->stores[i].k, a->stores[i].n_bytes);
    mem_big_free(a->stores[i].v, a->stores[i].n_bytes);
  }
  free(a->layers);
  free(a->stores);
  mem_big_free(a->weight, a->weight_bytes);
  free(a->sum);
  free(a);
}

static struct attn *ref_open(const struct attn_config *c, struct err *e) {
  if (attn_check(c, e)) return NULL;
  struct attn *a = xcalloc(1, sizeof *a);
  a->c = *c;
  a->layers = xcalloc((size_t)c->n_layers, sizeof *a->layers);
  a->stores = xcalloc((size_t)c->n_layers, sizeof *a->stores);
  int widest = 1;
  size_t most_keys = 0;
  for (int i = 0; i < c->n_layers; i++) {
    const struct attn_layer *l = &c->layers[i];
    struct ref_store *s = &a->stores[i];
    a->layers[i] = *l;
    widest = MAX(widest, l->head_dim);
    most_keys = MAX(most_keys, attn_keys_max(c, l->kind));
    if (l->owner != i) continue;
    size_t n_slots = ((size_t)c->n_pages[l->kind] + 1) * (size_t)c->page_tokens;
    if (size_mul_overflows(n_slots, sizeof(float) * (size_t)l->n_kv * (size_t)l->head_dim, &s->n_bytes)) {
      err_set(e, ERR_TOO_LARGE, "attention: the cache of layer %d does not fit into memory", i);
      goto fail;
    }
    if (!(s->k = mem_big_alloc(s->n_bytes, "keys", e)) || !(s->v = mem_big_alloc(s->n_bytes, "values", e))) goto fail;
  }
  a->c.layers = a->layers;
  if (!(a->weight = mem_big_alloc(MAX(most_keys, 1) * sizeof *a->weight, "attention scratch", e))) goto fail;
  a->weight_bytes = MAX(most_keys, 1) * sizeof *a->weight;
  a->sum = xcalloc((size_t)widest, sizeof *a->sum);
  return a;
fail:
  ref_close(a);
  return NULL;
}

static void ref_prepare(struct attn *a, const struct batch *b) {
  CHECK(b->n_rows <= a->c.rows_max && b->n_seqs <= a->c.seqs_max);
  a->batch = b;
}

/* src [n_kv, head_dim] goes to its slot, rounded per head. */
static void ref_write(const struct attn *a, const struct attn_layer *l, const float *src, float *dst) {
  unsigned char rounded[4096 * sizeof(float)];
  for (int h = 0; h < l->n_kv; h++, src += l->head_dim, dst += l->head_dim) {
    dtype_from_f32(a->c.kv_dtype, src, rounded, (size_t)l->head_dim);
    dtype_to_f32(a->c.kv_dtype, rounded, dst, (size_t)l->head_dim);
  }
}

/* One query head: out = Σ_j softmax_j(scale q · k_j) v_j over positions lo <= j < hi of the sequence whose page table is given. */
static void ref_attend(const struct attn *a, const struct attn_layer *l, const int32_t *pages, int lo, int hi, int h, const float *q,
                       float *out) {
  const struct ref_store *s = &a->stores[l->owner];
  const int P = a->c.page_tokens, d = l->head_dim;
  double top = -INFINITY, total = 0;
  for (int i = 0; i < d; i++) a->sum[i] = 0;
  for (int j = lo; j < hi; j++) {
    const float *k = s->k + (((size_t)pages[j / P] * (size_t)P + (size_t)(j % P)) * (size_t)l->n_kv + (size_t)h) * (size_t)d;
    double dot = 0;
    for (int i = 0; i < d; i++) dot += (double)q[i] * (double)k[i];
    a->weight[j - lo] = dot * (double)l->scale;
    if (a->weight[j - lo] > top) top = a->weight[j - lo];
  }
  for (int j = lo; j < hi; j++) {
    const float *v = s->v + (((size_t)pages[j / P] * (size_t)P + (size_t)(j % P)) * (size_t)l->n_kv + (size_t)h) * (size_t)d;
    double p = exp(a->weight[j - lo] - top);
    total += p;
    for (int i = 0; i < d; i++) a->sum[i] += p * (double)v[i];
  }
  for (int i = 0; i < d; i++) out[i] = lo < hi ? (float)(a->sum[i] / total) : 0;
}

struct ref_step {
  const struct attn *a;
  int layer;
  bool owns;
  struct tensor q, k, v, out;
};

/* All of a layer, in one item: the oracle has no order to think about. */
static void ref_item(void *ctx, int item, int worker) {
  const struct ref_step *st = ctx;
  const struct attn *a = st->a;
  const struct attn_layer *l = &a->layers[st->layer];
  const struct batch *b = a->batch;
  (void)item, (void)worker;
  for (int r = 0; st->owns && r < b->n_rows; r++) {
    size_t at = (size_t)b->slot[l->kind][r] * (size_t)l->n_kv * (size_t)l->head_dim;
    if (at == 0) continue;
    ref_write(a, l, tensor_row(&st->k, r), a->stores[st->layer].k + at);
    ref_write(a, l, tensor_row(&st->v, r), a->stores[st->layer].v + at);
  }
  for (int r = 0; r < b->n_rows; r++) {
    int lo = b->lo[l->kind][r], hi = b->hi[l->kind][r];
    const int32_t *pages = lo < hi ? b->page[l->kind] + (size_t)b->seq[r] * (size_t)b->pages_max[l->kind] : NULL;
    for (int i = 0; i < l->n_q; i++) {
      size_t at = (size_t)i * (size_t)l->head_dim;
      ref_attend(a, l, pages, lo, hi, i / (l->n_q / l->n_kv), tensor_row(&st->q, r) + at, tensor_row(&st->out, r) + at);
    }
  }
}

static void ref_run(struct attn *a, int layer, const struct tensor *q, const struct tensor *k, const struct tensor *v, struct tensor *out) {
  CHECK((k != NULL) == (a->layers[layer].owner == layer && a->layers[layer].kind != BATCH_CROSS) && (v != NULL) == (k != NULL));
  struct ref_step st = {.a = a, .layer = layer, .owns = k != NULL, .q = *q, .out = *out};
  if (k) st.k = *k, st.v = *v;
  workers_launch(a->c.workers, ref_item, &st, sizeof st, 1, NULL);
}

static void ref_fill(struct attn *a, int layer, const struct tensor *k, const struct tensor *v, const int64_t *slot) {
  const struct attn_layer *l = &a->layers[layer];
  CHECK(l->kind == BATCH_CROSS && l->owner == layer);
  for (int r = 0; r < k->rows; r++) {
    size_t at = (size_t)slot[r] * (size_t)l->n_kv * (size_t)l->head_dim;
    if (at == 0) continue;
    ref_write(a, l, tensor_row(k, r), a->stores[layer].k + at);
    ref_write(a, l, tensor_row(v, r), a->stores[layer].v + at);
  }
}

static void ref_copy_page(struct attn *a, enum kv_kind kind, int32_t from, int32_t to) {
  for (int i = 0; i < a->c.n_layers; i++) {
    const struct attn_layer *l = &a->layers[i];
    if (l->owner != i || l->kind != (int)kind) continue;
    size_t n = (size_t)a->c.page_tokens * (size_t)l->n_kv * (size_t)l->head_dim;
    memcpy(a->stores[i].k + (size_t)to * n, a->stores[i].k + (size_t)from * n, n * sizeof(float));
    memcpy(a->stores[i].v + (size_t)to * n, a->stores[i].v + (size_t)from * n, n * sizeof(float));
  }
}

const struct attn_ops attn_ref_ops = {.name = "ref",
                                      .open = ref_open,
                                      .close = ref_close,
                                      .bytes = attn_bytes,
                                      .prepare = ref_prepare,
                                      .copy_page = ref_copy_page,
                                      .fill = ref_fill,
                                      .run = ref_run};
