/* route_composed.c — attention from products and a softmax, for whatever has no fused operator.
 *
 *   keys   [n, n_kv, D]  ── gathered by page                                                       ──►  [n_kv, n, D]
 *   query  [rows, n_kv, group, D]                                                                  ──►  [n_kv, group * rows, D] · scale
 *   scores [n_kv, group * rows, n] = query · keysᵀ;   excluded: - 1e30;   softmax in float32;   · values;   back to rows
 *
 * One run at a time, from the first key that a row of it sees to the last: what lies between is seen by some row (attn.h rule 10), so
 * it is a number. The query is as it is, never padded; its rows go in blocks, which bounds the scores. Query heads of a key head
 * are rows of one product, so keys are not repeated.
 * Where activations are bf16 everything is computed in float32; fp16 keeps its 11 bits in the products and softmax alone is float32.
 *
 * Masks are made on the device, of operators that every chip has: key j of the run is excluded for row r where j - hi[r] >= -lo or
 * lo[r] - j >= lo + 1, lo the run's. All are whole numbers below 2^24, exact in float32, so clamping the difference to the last that is seen
 * and the first that is not, and subtracting the former, gives 0 or 1.
 */
#include "compute/ascend/attn.h"

enum { SCORE_BYTES_MOST = 64 << 20 /* of one block, in float32 */, PART_ALIGN = 512 };

struct composed { /* one call; the sizes that everything follows from, and the parts of its scratch */
  const struct attn_work *w;
  const struct attn_run *run;
  int64_t n_kv, group, head_dim, n; /* n keys */
  int64_t gathered;                 /* keys that are fetched: whole pages */
  int rows;                         /* of a block, at most */
  bool wide;
  int elem;         /* bytes of a number of keys, queries, results at work */
  aclDataType type; /* of those */
  char *k_pages, *v_pages, *k, *v, *q, *scores, *wide_scores, *softmax, *p, *out, *difference, *step;
};

static char *part(char *base, size_t *at, int64_t n_bytes) {
  char *p = base ? base + *at : NULL;
  *at += align_up((size_t)n_bytes, PART_ALIGN);
  return p;
}

/* Where the parts lie; base NULL only counts. scores: of a block, all heads and keys; q_lines: rows of queries, of all heads. */
static size_t lay_parts(struct composed *c, char *base, int64_t scores, int64_t q_lines) {
  const int64_t cols = c->n_kv * c->head_dim, n_q = c->n_kv * c->group;
  size_t at = 0;
  c->k_pages = part(base, &at, c->gathered * cols * 2);
  c->v_pages = part(base, &at, c->gathered * cols * 2);
  c->k = part(base, &at, c->n * cols * c->elem);
  c->v = part(base, &at, c->n * cols * c->elem);
  c->q = part(base, &at, q_lines * c->head_dim * c->elem);
  c->scores = part(base, &at, scores * c->elem);
  c->wide_scores = c->wide ? c->scores : part(base, &at, scores * 4);
  c->softmax = part(base, &at, scores * 4);
  c->p = c->wide ? c->softmax : c->scores; /* fp16: the products' own memory again */
  c->out = part(base, &at, q_lines * c->head_dim * c->elem);
  c->difference = part(base, &at, scores / n_q * 4);
  c->step = part(base, &at, scores / n_q * 4);
  return at;
}

static int block_rows(const struct attn_layer *l, int64_t n_keys, int n_rows) {
  return (int)MIN(MAX(SCORE_BYTES_MOST / (l->n_q * n_keys * 4), 1), n_rows);
}

static size_t composed_at(struct composed *c, const struct attn_work *w, const struct attn_call *call, char *base) {
  const struct attn_layer *l = w->layer;
  const struct attn_run *run = &w->a->kinds[l->kind].runs[call->run];
  *c = (struct composed){.w = w, .run = run, .n_kv = l->n_kv, .group = l->n_q / l->n_kv, .head_dim = l->head_dim, .n = run->hi - run->lo};
  c->gathered = (int64_t)run->n_pages * w->a->c.page_tokens;
  c->wide = w->a->d->type == NPU_BF16;
  c->type = c->wide ? NPU_FLOAT : w->a->d->type;
  c->elem = c->wide ? 4 : 2;
  c->rows = block_rows(l, c->n, run->n_rows);
  const int64_t lines = l->n_q * (int64_t)c->rows;
  return lay_parts(c, base, lines * c->n, lines);
}

/* Fewer keys mean more rows in a block, so queries are counted for all rows and scores for as many as there may be. */
size_t attn_composed_most(const struct attn_config *c, const struct attn_layer *l) {
  const int64_t P = c->page_tokens, keys = (int64_t)attn_keys_max(c, l->kind);
  struct composed x = {.n_kv = l->n_kv, .group = l->n_q / l->n_kv, .head_dim = l->head_dim, .wide = c->kv_dtype == DTYPE_BF16};
  x.n = MAX(l->kind == KV_SLIDING && c->window ? MIN(keys, (int64_t)c->window + c->rows_max) : keys, 1);
  x.gathered = (x.n + P - 1) / P * P + P; /* they may begin anywhere in a page */
  x.elem = x.wide ? 4 : 2;
  const int64_t line = l->n_q * x.n, scores = MAX(MIN(SCORE_BYTES_MOST / 4, line * c->rows_max), line);
  return lay_parts(&x, NULL, scores, (int64_t)l->n_q * c->rows_max);
}

size_t attn_composed_bytes(const struct attn_work *w) {
  size_t most = 0;
  for (int i = 0; i < w->shape->plan.n_calls; i++) {
    const struct attn_call *call = &w->shape->plan.calls[i];
    struct composed c;
    if (call->route == ROUTE_COMPOSED) most = MAX(most, composed_at(&c, w, call, NULL));
  }
  return most;
}

/* The run's pages of one pool. */
static void gather(const struct composed *c, const char *pool, char *to, const int32_t *index) {
  struct ascend *d = c->w->a->d;
  const int64_t cols = c->n_kv * c->head_dim * c->w->a->c.page_tokens, n = c->run->n_pages;
  ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, pool, d->type, attn_pool_pages(&c->w->a->c, c->w->layer->kind), cols), 0,
                ascend_array(d, index, NPU_INT32, n), ascend_matrix(d, to, d->type, n, cols));
}

/* The run's keys of one pool, each key head's together, in the type of the work. */
static void load_keys(const struct composed *c, const char *pool, char *pages, char *to, const int32_t *index) {
  struct ascend *d = c->w->a->d;
  const int64_t cols = c->n_kv * c->head_dim, first = c->run->lo - c->run->page * c->w->a->c.page_tokens;
  gather(c, pool, pages, index);
  ASCEND_LAUNCH(
      d, InplaceCopy, ascend_view(d, to, c->type, (struct ascend_shape){3, {c->n_kv, c->n, c->head_dim}, {0}}),
      ascend_view(d, pages + first * cols * 2, d->type, (struct ascend_shape){3, {c->n_kv, c->n, c->head_dim}, {c->head_dim, cols, 1}}));
}

/* Rows [row, row + rows) of q or out, as [n_kv, group, rows, D]. */
static struct ascend_shape rows_shape(const struct composed *c, int rows) {
  const int64_t cols = c->n_kv * c->group * c->head_dim;
  return (struct ascend_shape){4, {c->n_kv, c->group, rows, c->head_dim}, {c->group * c->head_dim, c->head_dim, cols, 1}};
}
static struct ascend_shape work_shape(const struct composed *c, int rows) {
  return (struct ascend_shape){4, {c->n_kv, c->group, rows, c->head_dim}, {0}};
}

/* Scores of keys that a row does not see lose 1e30: those from hi on, or those below lo. */
static void exclude(const struct composed *c, int row, int rows, bool low) {
  struct ascend *d = c->w->a->d;
  const struct attn_kind *k = &c->w->a->kinds[c->w->layer->kind];
  const struct ascend_shape scores = {3, {c->n_kv * c->group, rows, c->n}, {0}}, outside = {3, {1, rows, c->n}, {0}};
  const float *bound = (low ? k->lo : k->hi) + row;
  const int lo = c->run->lo, top = low ? lo + 1 : -lo; /* what the difference is, at least, of the first key that is excluded */
  if (low) {                                           /* lo[r] - j */
    ASCEND_LAUNCH(d, Add, ascend_matrix(d, bound, NPU_FLOAT, rows, 1), ascend_matrix(d, c->w->a->count, NPU_FLOAT, 1, c->n),
                  ascend_number(d, -1), ascend_matrix(d, c->difference, NPU_FLOAT, rows, c->n));
  } else { /* j - hi[r] */
    ASCEND_LAUNCH(d, Add, ascend_matrix(d, c->w->a->count, NPU_FLOAT, 1, c->n), ascend_matrix(d, bound, NPU_FLOAT, rows, 1),
                  ascend_number(d, -1), ascend_matrix(d, c->difference, NPU_FLOAT, rows, c->n));
  }
  ASCEND_LAUNCH(d, Clamp, ascend_matrix(d, c->difference, NPU_FLOAT, rows, c->n), ascend_number(d, top - 1), ascend_number(d, top),
                ascend_matrix(d, c->step, NPU_FLOAT, rows, c->n));
  ASCEND_LAUNCH(d, Adds, ascend_matrix(d, c->step, NPU_FLOAT, rows, c->n), ascend_number(d, 1 - top), ascend_number(d, 1),
                ascend_matrix(d, c->difference, NPU_FLOAT, rows, c->n)); /* 0 or 1 */
  ASCEND_LAUNCH(d, InplaceAdd, ascend_view(d, c->wide_scores, NPU_FLOAT, scores), ascend_view(d, c->difference, NPU_FLOAT, outside),
                ascend_number(d, -1e30));
}

static void do_block(const struct composed *c, int row, int rows) {
  struct ascend *d = c->w->a->d;
  const enum attn_form form = c->run->form;
  const int64_t lines = c->group * rows, D = c->head_dim, n = c->n;
  const struct ascend_shape q = {3, {c->n_kv, lines, D}, {0}}, keys = {3, {c->n_kv, D, n}, {n * D, 1, D}},
                            values = {3, {c->n_kv, n, D}, {0}}, scores = {3, {c->n_kv, lines, n}, {0}};
  ASCEND_LAUNCH(d, InplaceCopy, ascend_view(d, c->q, c->type, work_shape(c, rows)),
                ascend_view(d, tensor_at(&c->w->q, row, 0), d->type, rows_shape(c, rows)));
  ASCEND_LAUNCH(d, InplaceMuls, ascend_view(d, c->q, c->type, q), ascend_factor(d, c->w->layer->scale));
  ASCEND_LAUNCH(d, BatchMatMul, ascend_view(d, c->q, c->type, q), ascend_view(d, c->k, c->type, keys),
                ascend_view(d, c->scores, c->type, scores), 0);
  if (!c->wide) {
    ASCEND_LAUNCH(d, Cast, ascend_view(d, c->scores, c->type, scores), NPU_FLOAT, ascend_view(d, c->wide_scores, NPU_FLOAT, scores));
  }
  if (form == FORM_CAUSAL || form == FORM_BAND) exclude(c, row, rows, false);
  if (form == FORM_MIXED || form == FORM_BAND) exclude(c, row, rows, true);
  ASCEND_LAUNCH(d, Softmax, ascend_view(d, c->wide_scores, NPU_FLOAT, scores), 2, ascend_view(d, c->softmax, NPU_FLOAT, scores));
  if (!c->wide) ASCEND_LAUNCH(d, Cast, ascend_view(d, c->softmax, NPU_FLOAT, scores), c->type, ascend_view(d, c->p, c->type, scores));
  ASCEND_LAUNCH(d, BatchMatMul, ascend_view(d, c->p, c->type, scores), ascend_view(d, c->v, c->type, values),
                ascend_view(d, c->out, c->type, q), 0);
  ASCEND_LAUNCH(d, InplaceCopy, ascend_view(d, tensor_at(&c->w->out, row, 0), d->type, rows_shape(c, rows)),
                ascend_view(d, c->out, c->type, work_shape(c, rows)));
}

void attn_run_composed(const struct attn_work *w, const struct attn_call *call) {
  struct composed c;
  size_t n_bytes = composed_at(&c, w, call, w->scratch);
  if (!w->scratch) return; /* after an error */
  CHECK(n_bytes <= w->scratch_bytes);
  const int32_t *index = c.run->on_device ? c.run->on_device
                                          : ascend_upload(w->a->d, c.run->pages, (size_t)c.run->n_pages * sizeof *c.run->pages);
  load_keys(&c, w->store->k, c.k_pages, c.k, index);
  load_keys(&c, w->store->v, c.v_pages, c.v, index);
  for (int at = 0; at < call->n_rows; at += c.rows) do_block(&c, call->row + at, MIN(c.rows, call->n_rows - at));
}
