/* golden.h — a model against golden values, tap by tap, for every family's test: a wrong model is located by the first tap that differs.
 *
 * Fixtures: tests/golden/gemma*; golden.safetensors holds float32 results of an independent implementation (tests/golden and docs/models say which).
 * Differences are greatest |a - b| over the rms of the reference tensor.
 */
#ifndef CYGNET_TEST_GOLDEN_H
#define CYGNET_TEST_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "models/model.h"

enum { PAGE = 4, ROWS_MAX = 160, SEQS_MAX = 6, PAGES_EACH = 20 };

/* ---- a batch by hand: pieces of sequences, each with pages of its own in ascending order -------------------------------------- */

struct piece { /* tokens [first, first + n) of a sequence */
  const int32_t *ids;
  int first, n, seq; /* seq: which pages */
};

static inline void hand_batch_of(struct batch *b, const struct model *m, const struct piece *pieces, int n_pieces) {
  int n = 0;
  for (int s = 0; s < n_pieces; s++) n += pieces[s].n;
  *b = (struct batch){.n_rows = n,
                      .n_seqs = n_pieces,
                      .n_out = n,
                      .rows_max = ROWS_MAX,
                      .seqs_max = SEQS_MAX,
                      .out_max = ROWS_MAX,
                      .pages_max = {PAGES_EACH, PAGES_EACH}};
  CHECK(n <= ROWS_MAX && n_pieces <= SEQS_MAX);
  b->token = xcalloc((size_t)n, sizeof(int32_t));
  b->pos = xcalloc((size_t)n, sizeof(int32_t));
  b->seq = xcalloc((size_t)n, sizeof(int32_t));
  b->out = xcalloc((size_t)n, sizeof(int32_t));
  b->q_start = xcalloc((size_t)n_pieces + 1, sizeof(int32_t));
  for (int kind = 0; kind < KV_KINDS; kind++) {
    b->lo[kind] = xcalloc((size_t)n, sizeof(int32_t));
    b->hi[kind] = xcalloc((size_t)n, sizeof(int32_t));
    b->slot[kind] = xcalloc((size_t)n, sizeof(int64_t));
    b->page[kind] = xcalloc((size_t)(n_pieces * PAGES_EACH), sizeof(int32_t));
  }
  for (int s = 0, r = 0; s < n_pieces; s++) {
    const struct piece *x = &pieces[s];
    int page = 1 + x->seq * PAGES_EACH;
    CHECK(x->first + x->n <= PAGES_EACH * PAGE && x->seq < SEQS_MAX);
    for (int kind = 0; kind < KV_KINDS; kind++)
      for (int i = 0; i < div_up(x->first + x->n, PAGE); i++) b->page[kind][s * PAGES_EACH + i] = page + i;
    for (int p = x->first; p < x->first + x->n; p++, r++) {
      b->token[r] = x->ids[p];
      b->pos[r] = p;
      b->seq[r] = s;
      b->out[r] = r;
      for (int kind = 0; kind < KV_KINDS; kind++) {
        b->lo[kind][r] = kind == KV_SLIDING ? (int32_t)kv_window_lo(p, m->config.window_tokens) : 0;
        b->hi[kind][r] = p + 1;
        b->slot[kind][r] = (int64_t)(page + p / PAGE) * PAGE + p % PAGE;
      }
    }
    b->q_start[s + 1] = r;
  }
}
static inline void hand_batch(struct batch *b, const struct model *m, const int32_t *ids, int first, int n) {
  hand_batch_of(b, m, &(struct piece){ids, first, n, 0}, 1);
}
static inline void hand_batch_free(struct batch *b) {
  free(b->token);
  free(b->pos);
  free(b->seq);
  free(b->out);
  free(b->q_start);
  for (int kind = 0; kind < KV_KINDS; kind++) {
    free(b->lo[kind]);
    free(b->hi[kind]);
    free(b->slot[kind]);
    free(b->page[kind]);
  }
}

/* ---- fixtures -------------------------------------------------------------------------------------------------------------- */

struct fixture {
  struct safetensors golden;
  struct weights *w;
  struct model_config *config;
  struct model *m;
};

static inline struct model_plan fixture_plan(enum isa isa, int threads, enum dtype kv) {
  return (struct model_plan){.isa = isa,
                             .n_threads = threads,
                             .kv_dtype = kv,
                             .page_tokens = PAGE,
                             .n_pages = {SEQS_MAX * PAGES_EACH, SEQS_MAX * PAGES_EACH},
                             .rows_max = ROWS_MAX,
                             .out_max = ROWS_MAX,
                             .seqs_max = SEQS_MAX,
                             .tokens_max = PAGES_EACH * PAGE,
                             .quiet = true};
}

/* The model at any path, beside the golden values of a fixture. */
static inline void fixture_open_at(struct fixture *f, const char *path, const char *folder, const char *golden,
                                   const struct model_plan *plan) {
  struct err e = {0};
  char text[256];
  memset(f, 0, sizeof *f);
  snprintf(text, sizeof text, "golden/%s/%s", folder, golden);
  if (safetensors_open(&f->golden, test_path(text), &e)) fail_msg("%s", e.msg);
  f->config = xcalloc(1, sizeof *f->config);
  f->w = weights_open(path, f->config, &e);
  if (!f->w) fail_msg("%s", e.msg);
  f->m = model_open(f->config, f->w, plan, &e);
  if (!f->m) fail_msg("%s: %s", path, e.msg);
}
static inline void fixture_open(struct fixture *f, const char *folder, const char *model, const char *golden, enum isa isa, int threads,
                                enum dtype kv) {
  char path[256];
  struct model_plan plan = fixture_plan(isa, threads, kv);
  snprintf(path, sizeof path, "golden/%s%s%s", folder, model[0] ? "/" : "", model);
  fixture_open_at(f, test_path(path), folder, golden, &plan);
}
static inline void fixture_close(struct fixture *f) {
  model_close(f->m);
  weights_close(f->w);
  free(f->config);
  safetensors_close(&f->golden);
}
static inline const struct st_tensor *golden_find(const struct fixture *f, int which, const char *name) {
  char full[96];
  snprintf(full, sizeof full, "case%d.%s", which, name);
  return safetensors_find(&f->golden, full);
}

/* ---- taps ------------------------------------------------------------------------------------------------------------------- */

struct tap_check {
  const struct fixture *f;
  int which, first_row; /* case, position of the batch's first row */
  double bound, worst;
  int n_compared;  /* rows */
  char where[256]; /* the first difference over the bound */
  struct {
    const struct st_tensor *t;
    double rms;
  } sizes[64]; /* of the tensors met so far */
  int n_sizes;
};

static inline double golden_rms(struct tap_check *t, const struct st_tensor *g) {
  for (int i = 0; i < t->n_sizes; i++)
    if (t->sizes[i].t == g) return t->sizes[i].rms;
  const float *ref = (const float *)g->data;
  double sum = 0;
  size_t n = g->n_bytes / sizeof(float);
  for (size_t i = 0; i < n; i++) sum += (double)ref[i] * (double)ref[i];
  CHECK(t->n_sizes < (int)ARRAY_LEN(t->sizes));
  t->sizes[t->n_sizes].t = g;
  return t->sizes[t->n_sizes++].rms = sqrt(sum / (double)n);
}

static inline void compare_row(struct tap_check *t, const char *name, int layer, int row, const float *x, int cols,
                               const struct st_tensor *g, size_t offset) {
  const float *ref = (const float *)g->data;
  double rms = golden_rms(t, g);
  for (int c = 0; c < cols; c++) {
    double d = fabs((double)x[c] - (double)ref[offset + (size_t)c]) / rms;
    if (!(d <= t->worst)) t->worst = d;
    if (!(d <= t->bound) && !t->where[0])
      snprintf(t->where, sizeof t->where,
               "case %d: first tap that differs: %s, layer %d, row %d, column %d: %.9g, expected %.9g (%.2g of the rms)", t->which, name,
               layer, t->first_row + row, c, (double)x[c], (double)ref[offset + (size_t)c], d);
  }
}

static inline void on_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct tap_check *t = ctx;
  const struct fixture *f = t->f;
  const struct st_tensor *g = NULL;
  size_t position = (size_t)(t->first_row + row), offset = position * (size_t)cols;
  char golden[64];
  if (!strcmp(name, "embed") || !strcmp(name, "layer_out")) {
    g = golden_find(f, t->which, "hidden");
    if (!g) return; /* the longest case's are not kept */
    size_t rows = (size_t)g->shape[1];
    offset += (size_t)(layer + 1) * rows * (size_t)cols; /* embed has layer -1 */
  } else if (!strcmp(name, "final_norm")) g = golden_find(f, t->which, "final");
  else if (!strcmp(name, "logits")) g = golden_find(f, t->which, "logits");
  else if (layer < 0) g = golden_find(f, t->which, name);
  else { /* present for a few layers of one case; what goes into the norm after a dense product is called mlp */
    bool dense = !strcmp(name, "ffn") && !f->config->n_experts;
    snprintf(golden, sizeof golden, "layer%d.%s", layer, dense ? "mlp" : name);
    g = golden_find(f, t->which, golden);
  }
  if (!g) return;
  t->n_compared++;
  compare_row(t, name, layer, row, x, cols, g, offset);
}

/* Every case, every tap, cut into chunks of at most chunk rows. Returns the worst difference. */
static inline double check_taps(struct fixture *f, int chunk, double bound, int *n_compared) {
  double worst = 0;
  *n_compared = 0;
  for (int which = 0; golden_find(f, which, "ids"); which++) {
    const struct st_tensor *ids = golden_find(f, which, "ids");
    int n = (int)ids->shape[0];
    struct tap_check t = {.f = f, .which = which, .bound = bound};
    f->m->tap = on_tap;
    f->m->tap_ctx = &t;
    for (int first = 0; first < n; first += chunk) {
      struct batch b;
      hand_batch(&b, f->m, (const int32_t *)ids->data, first, MIN(chunk, n - first));
      t.first_row = first;
      model_forward(f->m, &b);
      hand_batch_free(&b);
    }
    if (t.where[0]) fail_msg("%s", t.where);
    worst = MAX(worst, t.worst);
    *n_compared += t.n_compared;
  }
  f->m->tap = NULL;
  return worst;
}

/* Logits of every case as one list of floats; owned. */
static inline float *all_logits(struct fixture *f, int chunk, size_t *n_out) {
  float *all = NULL;
  size_t n_all = 0;
  for (int which = 0; golden_find(f, which, "ids"); which++) {
    const struct st_tensor *ids = golden_find(f, which, "ids");
    int n = (int)ids->shape[0], vocab = f->m->config.vocab;
    for (int first = 0; first < n; first += chunk) {
      struct batch b;
      hand_batch(&b, f->m, (const int32_t *)ids->data, first, MIN(chunk, n - first));
      struct tensor y = model_forward(f->m, &b);
      all = xrealloc(all, (n_all + (size_t)y.rows * (size_t)vocab) * sizeof *all);
      for (int r = 0; r < y.rows; r++, n_all += (size_t)vocab) memcpy(all + n_all, tensor_row(&y, r), (size_t)vocab * sizeof *all);
      hand_batch_free(&b);
    }
  }
  *n_out = n_all;
  return all;
}

static inline void compare_golden_logits(struct fixture *f, double *rel_max, double *rel_l2) {
  size_t n, at = 0;
  float *mine = all_logits(f, ROWS_MAX, &n);
  *rel_max = *rel_l2 = 0;
  for (int which = 0; golden_find(f, which, "logits"); which++) {
    const struct st_tensor *g = golden_find(f, which, "logits");
    double max, l2;
    test_compare(mine + at, (const float *)g->data, g->n_bytes / sizeof(float), &max, &l2);
    *rel_max = MAX(*rel_max, max);
    *rel_l2 = MAX(*rel_l2, l2);
    at += g->n_bytes / sizeof(float);
  }
  assert_int_equal(at, n);
  free(mine);
}

#endif
