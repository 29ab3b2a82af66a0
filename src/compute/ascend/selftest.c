/* selftest.c — each route that a model would use, on small problems, against float64 on the host.
 *
 * Silent faults of attention operators are on record: masks that are ignored behind some key, uniform averages, windows one too long. So a route
 * proves itself on this chip and this CANN before it is used. A problem is attention of one layer that has one route: keys are stored, a
 * step runs, results are compared; its sequences share their pages, so a dozen lengths cost one step. What was found is kept for the process.
 *
 * Queries lean towards the keys at the edges of what they see, on both sides: one key too many or too few moves the result by several times
 * what rounding does.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "compute/ascend/attn.h"

enum {
  LENGTHS_MOST = 20,
  ROWS_AT_ONCE = 256, /* of keys that are stored in a step */
  CHUNK_ROWS = 48,    /* of the longer runs */
  CHUNK_COMPARED = 7, /* every so many of their rows */
  HEADS_COMPARED = 2,
  KEYS = 600,     /* without a window; a length around 512 is among them */
  FAR_KEYS = 704, /* a mask in there excludes keys behind 512 */
  FAR_FIRST = 600,
  KEPT_MOST = 64,
};

/* Of outputs up to 2. Rounding gives up to 0.01; a key at an edge weighs some hundredths. */
static const double worst_allowed = 0.025;

struct problem {
  const struct attn_need *need;
  struct attn_config c;
  struct attn_layer layer;
  struct attn *attn;
  struct batch b;
  int64_t *slot;                    /* [rows] */
  struct tensor q, k, v, out, host; /* all but host on the device; host [rows, n_q * head_dim] of float32 */
  float *keys, *values, *queries;   /* [n_keys | rows, columns], as the device's type rounds them */
  int n_keys, kind, rows;
  int32_t *ids; /* [pages] of the one table that all sequences share */
};

/* ---- numbers ---------------------------------------------------------------------------------------------------------------------- */

/* From -2 to 2, exact in eight bits, a function of all three. */
static float number_at(int what, int row, int col) {
  uint64_t x = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)row * 0xbf58476d1ce4e5b9u + (uint64_t)col * 0x94d049bb133111ebu;
  x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du, x ^= x >> 33;
  return (float)((int)(x & 63) - 32) / 16 + 1.0f / 32;
}

static void make_keys(struct problem *p) {
  const int cols = p->need->n_kv * p->need->head_dim;
  for (int j = 0; j < p->n_keys; j++) {
    for (int c = 0; c < cols; c++) {
      p->keys[(size_t)j * (size_t)cols + (size_t)c] = number_at(1, j, c);
      p->values[(size_t)j * (size_t)cols + (size_t)c] = number_at(2, j, c);
    }
  }
}

static void make_query(struct problem *p, enum dtype type, int row, int lo, int hi) {
  const struct attn_need *n = p->need;
  const int cols = n->n_q * n->head_dim, kv_cols = n->n_kv * n->head_dim, group = n->n_q / n->n_kv, edges[] = {lo - 1, lo, hi - 1, hi};
  float *q = p->queries + (size_t)row * (size_t)cols;
  unsigned char *rounded = xmalloc((size_t)cols * sizeof(float));
  for (int c = 0; c < cols; c++) {
    const int kv = c / n->head_dim / group * n->head_dim + c % n->head_dim;
    q[c] = number_at(3, row, c) / 2;
    for (size_t i = 0; i < ARRAY_LEN(edges); i++) {
      if (edges[i] >= 0 && edges[i] < p->n_keys) q[c] += p->keys[(size_t)edges[i] * (size_t)kv_cols + (size_t)kv] / 4;
    }
  }
  dtype_from_f32(type, q, rounded, (size_t)cols);
  dtype_to_f32(type, rounded, q, (size_t)cols);
  free(rounded);
}

static void send_rows(struct ascend *d, const struct tensor *t, const float *x, int rows) {
  struct tensor to = tensor_rows(*t, rows), staged = d->device.ops->stage(&d->device, &to);
  for (int r = 0; r < rows; r++) memcpy(tensor_row(&staged, r), x + (size_t)r * (size_t)t->cols, (size_t)t->cols * sizeof *x);
  d->device.ops->send(&d->device, &to, &staged);
}

/* Greatest difference of one head of a row from the definition. */
static double head_difference(const struct problem *p, int row, int head, int lo, int hi, const float *out, double *weight, double *sum) {
  const size_t D = (size_t)p->need->head_dim, kv_cols = (size_t)p->need->n_kv * D, cols = (size_t)p->need->n_q * D;
  const float *q = p->queries + (size_t)row * cols + (size_t)head * D;
  const size_t kv = (size_t)(head / (p->need->n_q / p->need->n_kv)) * D;
  double top = -INFINITY, total = 0, worst = 0;
  for (size_t c = 0; c < D; c++) sum[c] = 0;
  for (int j = lo; j < hi; j++) {
    const float *k = p->keys + (size_t)j * kv_cols + kv;
    double dot = 0;
    for (size_t c = 0; c < D; c++) dot += (double)q[c] * (double)k[c];
    weight[j] = dot * (double)p->layer.scale;
    top = fmax(top, weight[j]);
  }
  for (int j = lo; j < hi; j++) {
    const float *v = p->values + (size_t)j * kv_cols + kv;
    double w = exp(weight[j] - top);
    total += w;
    for (size_t c = 0; c < D; c++) sum[c] += w * (double)v[c];
  }
  for (size_t c = 0; c < D; c++) {
    double off = fabs((double)out[(size_t)head * D + c] - (hi > lo ? sum[c] / total : 0));
    if (!(off <= worst)) worst = isnan(off) ? INFINITY : off;
  }
  return worst;
}

/* ---- a problem ----------------------------------------------------------------------------------------------------------------------- */

static void close_problem(struct ascend *d, struct problem *p) {
  struct batch *b = &p->b;
  struct tensor *tensors[] = {&p->q, &p->k, &p->v, &p->out};
  attn_ascend_ops.close(p->attn);
  for (size_t i = 0; i < ARRAY_LEN(tensors); i++) d->device.ops->free(&d->device, tensors[i]);
  d->device.ops->host_free(&d->device, &p->host);
  free(b->q_start);
  free(b->lo[p->kind]);
  free(b->hi[p->kind]);
  free(b->page[p->kind]);
  free(p->slot);
  free(p->ids);
  free(p->keys);
  free(p->values);
  free(p->queries);
}

static int open_problem(struct ascend *d, struct problem *p, const struct attn_need *n, enum attn_route r, int n_keys, struct err *e) {
  const int P = n->page_tokens, pages = div_up(n_keys, P), kind = n->cross ? BATCH_CROSS : n->window ? KV_SLIDING : KV_FULL;
  const int q_cols = n->n_q * n->head_dim, kv_cols = n->n_kv * n->head_dim;
  *p = (struct problem){.need = n, .n_keys = n_keys, .kind = kind};
  p->rows = MAX(MIN(n_keys, ROWS_AT_ONCE), MAX(LENGTHS_MOST, 2 * CHUNK_ROWS));
  p->layer = (struct attn_layer){kind, n->n_q, n->n_kv, n->head_dim, 1 / sqrtf((float)n->head_dim), 0};
  p->c = (struct attn_config){.layers = &p->layer, .n_layers = 1, .kv_dtype = d->dtype, .page_tokens = P, .device = &d->device};
  p->c.rows_max = p->rows, p->c.seqs_max = LENGTHS_MOST, p->c.tokens_max = n_keys, p->c.window = n->window ? n->window_tokens : 0;
  p->c.n_pages[kind] = pages;

  struct batch *b = &p->b;
  const size_t rows = (size_t)p->rows;
  b->q_start = xcalloc(LENGTHS_MOST + 1, sizeof *b->q_start);
  b->lo[kind] = xcalloc(rows, sizeof *b->lo[kind]);
  b->hi[kind] = xcalloc(rows, sizeof *b->hi[kind]);
  b->page[kind] = xcalloc((size_t)LENGTHS_MOST * (size_t)pages, sizeof *b->page[kind]);
  b->pages_max[kind] = pages;
  p->slot = xcalloc(rows, sizeof *p->slot);
  if (kind < KV_KINDS) b->slot[kind] = p->slot;
  p->ids = xcalloc((size_t)pages, sizeof *p->ids);
  for (int i = 0; i < pages; i++) p->ids[i] = pages - i; /* not in order */
  for (int s = 0; s < LENGTHS_MOST; s++) memcpy(b->page[kind] + (size_t)s * (size_t)pages, p->ids, (size_t)pages * sizeof *p->ids);
  p->keys = xcalloc((size_t)n_keys * (size_t)kv_cols, sizeof *p->keys);
  p->values = xcalloc((size_t)n_keys * (size_t)kv_cols, sizeof *p->values);
  p->queries = xcalloc(rows * (size_t)q_cols, sizeof *p->queries);
  make_keys(p);

  const struct device_ops *ops = d->device.ops;
  const char *what = "a self-test";
  if (ops->alloc(&d->device, &p->q, p->rows, q_cols, what, e) || ops->alloc(&d->device, &p->out, p->rows, q_cols, what, e) ||
      ops->alloc(&d->device, &p->k, p->rows, kv_cols, what, e) || ops->alloc(&d->device, &p->v, p->rows, kv_cols, what, e) ||
      ops->host_alloc(&d->device, &p->host, p->rows, q_cols, what, e))
    return -1;
  return (p->attn = attn_ascend_open_only(&p->c, 1u << r, e)) ? 0 : -1;
}

static void begin_step(struct problem *p) {
  p->b.n_rows = p->b.n_seqs = p->b.n_cross = 0;
  memset(p->slot, 0, (size_t)p->rows * sizeof *p->slot);
}

static void add_row(struct problem *p, int lo, int hi) {
  struct batch *b = &p->b;
  b->lo[p->kind][b->n_rows] = lo, b->hi[p->kind][b->n_rows] = hi;
  b->n_cross += p->kind == BATCH_CROSS && lo < hi;
  b->n_rows++;
}
static void end_seq(struct problem *p) { p->b.q_start[++p->b.n_seqs] = p->b.n_rows; }

/* All keys, by rows that see nothing, or as a bank. */
static int store_keys(struct ascend *d, struct problem *p, struct err *e) {
  const int P = p->c.page_tokens;
  const size_t cols = (size_t)p->k.cols;
  for (int at = 0, n; at < p->n_keys; at += n) {
    n = MIN(p->rows, p->n_keys - at);
    begin_step(p);
    for (int i = 0; i < n; i++) {
      p->slot[i] = (int64_t)p->ids[(at + i) / P] * P + (at + i) % P;
      add_row(p, 0, 0);
    }
    send_rows(d, &p->k, p->keys + (size_t)at * cols, n);
    send_rows(d, &p->v, p->values + (size_t)at * cols, n);
    struct tensor k = tensor_rows(p->k, n), v = tensor_rows(p->v, n);
    if (p->kind == BATCH_CROSS) {
      attn_ascend_ops.fill(p->attn, 0, &k, &v, p->slot);
    } else {
      attn_ascend_ops.prepare(p->attn, &p->b);
      attn_ascend_ops.run(p->attn, 0, &p->q, &k, &v, &p->out);
    }
    if (ascend_finish(&d->device, e)) return -1;
  }
  return 0;
}

/* mask: NULL, or what is written over the first row's, [n_mask] bytes. */
static int run_step(struct ascend *d, struct problem *p, const uint8_t *mask, size_t n_mask, struct err *e) {
  struct batch *b = &p->b;
  const bool writes = p->kind != BATCH_CROSS;
  for (int r = 0; r < b->n_rows; r++) make_query(p, d->dtype, r, b->lo[p->kind][r], b->hi[p->kind][r]);
  send_rows(d, &p->out, p->queries, b->n_rows); /* what must not stay there where there are no keys */
  send_rows(d, &p->q, p->queries, b->n_rows);
  attn_ascend_ops.prepare(p->attn, b);
  if (mask) ascend_write(d, p->attn->kinds[p->kind].mask, mask, n_mask);
  attn_ascend_ops.run(p->attn, 0, &p->q, writes ? &p->k : NULL, writes ? &p->v : NULL, &p->out);
  struct tensor host = tensor_rows(p->host, b->n_rows), out = tensor_rows(p->out, b->n_rows);
  d->device.ops->fetch(&d->device, &host, &out);
  return ascend_finish(&d->device, e);
}

static void compare(const struct problem *p, double *worst) {
  const struct batch *b = &p->b;
  const int every = p->need->many_rows ? CHUNK_COMPARED : 1, n_q = p->need->n_q;
  double *weight = xcalloc((size_t)p->n_keys, sizeof *weight), *sum = xcalloc((size_t)p->need->head_dim, sizeof *sum);
  for (int r = 0; r < b->n_rows; r = r == b->n_rows - 1 ? r + 1 : MIN(r + every, b->n_rows - 1)) {
    for (int i = 0; i < MIN(n_q, HEADS_COMPARED); i++) {
      const int head = i ? n_q - 1 : 0;
      *worst = fmax(*worst, head_difference(p, r, head, b->lo[p->kind][r], b->hi[p->kind][r], tensor_row(&p->host, r), weight, sum));
    }
  }
  free(weight);
  free(sum);
}

/* ---- what is tried ---------------------------------------------------------------------------------------------------------------------- */

/* Single rows of all lengths that are known to be of interest; and one that sees nothing. */
static void add_single_rows(struct problem *p) {
  const struct attn_need *n = p->need;
  const int P = n->page_tokens, W = n->window ? n->window_tokens : 0;
  const int lengths[] = {1, P - 1, P, P + 1, 2 * P, W - 1, W, W + 1, W + 2, W + P, 511, 512, 513, p->n_keys - 1, p->n_keys};
  for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
    int hi = lengths[i];
    if (hi < 1 || hi > p->n_keys) continue;
    add_row(p, n->cross ? (hi > 2 * P ? P : 0) : W ? MAX(hi - W, 0) : 0, hi);
    end_seq(p);
  }
  add_row(p, 0, 0);
  end_seq(p);
}

/* Two sequences of many rows, one from the beginning, one deep inside. */
static void add_many_rows(struct problem *p, enum attn_route r) {
  const int W = p->need->window ? p->need->window_tokens : 0, deep = MAX(p->n_keys - CHUNK_ROWS - 1, 0), starts[] = {0, deep};
  for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
    for (int j = 0; j < CHUNK_ROWS && starts[i] + j < p->n_keys; j++) {
      int hi = r == ROUTE_CROSS ? MIN(starts[i] + CHUNK_ROWS, p->n_keys) : starts[i] + j + 1;
      add_row(p, r != ROUTE_CROSS && !p->need->cross && W ? MAX(hi - W, 0) : 0, hi);
    }
    end_seq(p);
  }
}

static int try_rows(struct ascend *d, const struct attn_need *n, enum attn_route r, double *worst, struct err *e) {
  struct problem p;
  int rc = open_problem(d, &p, n, r, n->window ? MAX(n->window_tokens + n->page_tokens + 8, 2 * CHUNK_ROWS) : KEYS, e);
  if (!rc) rc = store_keys(d, &p, e);
  if (!rc) {
    begin_step(&p);
    if (n->many_rows) add_many_rows(&p, r);
    else add_single_rows(&p);
    rc = run_step(d, &p, NULL, 0, e);
  }
  if (!rc) compare(&p, worst);
  close_problem(d, &p);
  return rc;
}

/* A mask that excludes what is behind key 512. prepare never makes one so long; a stack that cannot do it is not trusted with others. */
static int try_far_mask(struct ascend *d, const struct attn_need *n, double *worst, struct err *e) {
  struct attn_need wide = *n;
  struct problem p;
  uint8_t mask[FAR_FIRST];
  wide.window_tokens = FAR_KEYS;
  int rc = open_problem(d, &p, &wide, ROUTE_MASKED, FAR_KEYS, e);
  if (!rc) rc = store_keys(d, &p, e);
  if (!rc) {
    memset(mask, 1, sizeof mask);
    begin_step(&p);
    add_row(&p, 0, FAR_KEYS);
    end_seq(&p);
    rc = run_step(d, &p, mask, sizeof mask, e);
    p.b.lo[p.kind][0] = FAR_FIRST;
  }
  if (!rc) compare(&p, worst);
  close_problem(d, &p);
  return rc;
}

/* ---- what is known ------------------------------------------------------------------------------------------------------------------------ */

struct kept {
  char soc[64];
  int cann, route;
  struct attn_need need;
  bool right;
  double worst;
};
static struct kept kept[KEPT_MOST];
static int n_kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static bool same_need(const struct attn_need *x, const struct attn_need *y) {
  return x->head_dim == y->head_dim && x->n_q == y->n_q && x->n_kv == y->n_kv && x->many_rows == y->many_rows && x->window == y->window &&
         x->cross == y->cross && x->page_tokens == y->page_tokens && x->window_tokens == y->window_tokens;
}

static bool recall(const struct kept *x, bool *right, double *worst) {
  bool found = false;
  pthread_mutex_lock(&kept_lock);
  for (int i = 0; i < n_kept && !found; i++) {
    const struct kept *y = &kept[i];
    if (y->cann != x->cann || y->route != x->route || strcmp(y->soc, x->soc) != 0 || !same_need(&y->need, &x->need)) continue;
    *right = y->right, *worst = y->worst;
    found = true;
  }
  pthread_mutex_unlock(&kept_lock);
  return found;
}
static void keep(const struct kept *x) {
  pthread_mutex_lock(&kept_lock);
  if (n_kept < KEPT_MOST) kept[n_kept++] = *x;
  pthread_mutex_unlock(&kept_lock);
}

static int try_route(struct ascend *d, const struct attn_need *n, enum attn_route r, struct attn_selftest *out, struct err *e) {
  struct kept x = {.cann = d->profile.cann, .route = (int)r, .need = *n};
  memcpy(x.soc, d->profile.soc, sizeof x.soc);
  out->tried[r] = true;
  if (recall(&x, &out->right[r], &out->worst[r])) return 0;
  struct err why = {0};
  double worst = 0;
  int rc = try_rows(d, n, r, &worst, &why);
  if (!rc && r == ROUTE_MASKED) rc = try_far_mask(d, n, &worst, &why);
  if (rc) ascend_finish(&d->device, NULL); /* what is kept of the failure would fail the routes that come after it */
  if (rc && (d->device.lost || why.code == ERR_NO_MEMORY)) {
    if (e) *e = why;
    return err_prefix(e, "attention's self-test");
  }
  out->right[r] = x.right = !rc && worst <= worst_allowed;
  out->worst[r] = x.worst = rc ? INFINITY : worst;
  if (!rc) keep(&x); /* what ended with an error may go well next time */
  if (x.right) return 0;
  const char *rows = n->many_rows ? "many rows" : "one row each";
  if (rc) {
    log_line(LOG_WARN, "attention", "the route \"%s\" for heads of %d (%d over %d), %s, is not used: in its self-test %s",
             attn_route_name(r), n->head_dim, n->n_q, n->n_kv, rows, why.msg);
  } else {
    log_line(LOG_WARN, "attention",
             "the route \"%s\" for heads of %d (%d over %d), %s, is not used: in its self-test results differ by %.3g from what is right",
             attn_route_name(r), n->head_dim, n->n_q, n->n_kv, rows, worst);
  }
  return 0;
}

int attn_ascend_selftest(struct ascend *d, const struct attn_need *needs, int n_needs, unsigned allowed, struct attn_selftest *out,
                         struct err *e) {
  for (int i = 0; i < n_needs; i++) {
    out[i] = (struct attn_selftest){0};
    for (const enum attn_route *r = attn_route_order(&needs[i]); *r != ROUTE_NONE; r++) {
      if (!(allowed & 1u << *r) || !attn_route_can(*r, &d->profile, &needs[i], NULL)) continue;
      if (try_route(d, &needs[i], *r, &out[i], e)) return -1;
    }
  }
  return 0;
}
