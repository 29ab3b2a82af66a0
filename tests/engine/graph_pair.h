/* graph_pair.h — graph mode held against eager, for t_graph and t_npu_graph.
 *
 * Two models of the same weights walk side by side, one eager on one thread, the other in graph mode; the same batch is given to both, each has its own
 * keys and values. Behind the live rows the batch holds garbage before each step, and now and then every scratch buffer of the second model is
 * filled with NaN.
 */
#ifndef TEST_GRAPH_PAIR_H
#define TEST_GRAPH_PAIR_H

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/graph.h"

enum { SEQS = 13, ROWS = 64, BANK_ROWS = 1100 };

struct setup {
  const char *folder, *model;
  enum isa isa;
  int threads;
  enum dtype kv_dtype;
  bool ref_attention;
  int page, tokens_max, n_steps;
};

static const struct device_ops *pair_device; /* of the models; NULL: the CPU */

struct sequence {
  struct kv_seq kv;
  int n_prompt, n_limit; /* n_prompt 0: not open */
  int n_bank, seen_from; /* rows of its bank, of a model with cross-attention; the first position that sees it */
};

struct pair {
  const struct setup *s;
  struct model_config *config;
  struct weights *weights;
  struct model *eager, *graphed;
  struct graph *graph;
  struct kv *kv;
  struct batch b, poison;
  bool has_cross;
  int32_t bad_page[BATCH_KINDS]; /* of the second model: full of NaN, never handed out */
  struct sequence seqs[SEQS];
  uint64_t rand;
  uint64_t n_compared, n_by_graph;
};

/* ---- batches ---------------------------------------------------------------------------------------------------------- */

static void batch_new(struct batch *b, int pages_max, int bank_pages_max) {
  *b = (struct batch){.rows_max = ROWS, .seqs_max = SEQS, .out_max = ROWS, .pages_max = {pages_max, pages_max, bank_pages_max}};
  b->token = xcalloc(ROWS, sizeof *b->token);
  b->soft = xcalloc(ROWS, sizeof *b->soft);
  b->pos = xcalloc(ROWS, sizeof *b->pos);
  b->seq = xcalloc(ROWS, sizeof *b->seq);
  b->q_start = xcalloc(SEQS + 1, sizeof *b->q_start);
  b->out = xcalloc(ROWS, sizeof *b->out);
  for (int k = 0; k < BATCH_KINDS; k++) {
    if (!b->pages_max[k]) continue; /* no such layers: no arrays */
    b->lo[k] = xcalloc(ROWS, sizeof *b->lo[k]);
    b->hi[k] = xcalloc(ROWS, sizeof *b->hi[k]);
    b->page[k] = xcalloc((size_t)SEQS * (size_t)b->pages_max[k], sizeof *b->page[k]);
  }
  for (int k = 0; k < KV_KINDS; k++) b->slot[k] = xcalloc(ROWS, sizeof *b->slot[k]);
}
static void batch_delete(struct batch *b) {
  free(b->token);
  free(b->soft);
  free(b->pos);
  free(b->seq);
  free(b->q_start);
  free(b->out);
  for (int k = 0; k < BATCH_KINDS; k++) {
    free(b->lo[k]);
    free(b->hi[k]);
    free(b->page[k]);
  }
  for (int k = 0; k < KV_KINDS; k++) free(b->slot[k]);
}

static void batch_garbage(struct batch *b) {
  memset(b->token, 0x81, ROWS * sizeof *b->token);
  memset(b->pos, 0x82, ROWS * sizeof *b->pos);
  memset(b->seq, 0x83, ROWS * sizeof *b->seq);
  memset(b->q_start, 0x84, (SEQS + 1) * sizeof *b->q_start);
  memset(b->out, 0x85, ROWS * sizeof *b->out);
  memset(b->soft, 0x0a, ROWS * sizeof *b->soft);
  for (int k = 0; k < BATCH_KINDS; k++) {
    if (!b->pages_max[k]) continue;
    memset(b->lo[k], 0x86, ROWS * sizeof *b->lo[k]);
    memset(b->hi[k], 0x07, ROWS * sizeof *b->hi[k]);
    memset(b->page[k], 0x09, (size_t)SEQS * (size_t)b->pages_max[k] * sizeof *b->page[k]);
  }
  for (int k = 0; k < KV_KINDS; k++) memset(b->slot[k], 0x08, ROWS * sizeof *b->slot[k]);
  b->n_rows = b->n_seqs = b->n_out = b->n_soft = b->n_cross = 0;
  b->q_start[0] = 0;
}

/* n more rows of s; the last n_out of them want logits. */
static void batch_add(struct pair *p, struct sequence *s, int n, int n_out) {
  struct batch *b = &p->b;
  int first = s->kv.n_tokens, window = p->config->window_tokens, page = p->s->page;
  kv_drop_window(p->kv, &s->kv, first);
  struct kv_short missing = kv_reserve(p->kv, &s->kv, n);
  assert_true(!missing.pages[KV_FULL] && !missing.pages[KV_SLIDING]);
  for (int i = 0; i < n; i++) {
    int row = b->n_rows + i, pos = first + i;
    b->token[row] = test_rand_int(&p->rand, 0, p->config->vocab - 1);
    b->soft[row] = -1;
    b->pos[row] = pos;
    b->seq[row] = b->n_seqs;
    bool sees = s->n_bank > 0 && pos >= s->seen_from;
    b->n_cross += sees;
    if (p->has_cross) b->lo[BATCH_CROSS][row] = 0, b->hi[BATCH_CROSS][row] = sees ? s->n_bank : 0;
    for (int k = 0; k < KV_KINDS; k++) {
      b->lo[k][row] = k == KV_SLIDING ? (int32_t)kv_window_lo(pos, window) : 0;
      b->hi[k][row] = pos + 1;
      b->slot[k][row] = k == KV_SLIDING && !window ? 0 : kv_slot(p->kv, &s->kv, (enum kv_kind)k, pos);
    }
    if (i >= n - n_out) b->out[b->n_out++] = row;
  }
  for (int k = 0; k < KV_KINDS; k++) {
    int lo = k == KV_SLIDING ? (int)kv_window_lo(first, window) : 0;
    for (int i = lo / page; i <= (first + n - 1) / page; i++) {
      const struct kv_page *pair = &s->kv.pairs[i];
      b->page[k][b->n_seqs * b->pages_max[k] + i] = k == KV_FULL ? pair->full : pair->swa;
    }
  }
  int each = b->pages_max[BATCH_CROSS], first_page = 1 + (int)(s - p->seqs) * each;
  for (int i = 0; i < div_up(s->n_bank, page); i++) b->page[BATCH_CROSS][b->n_seqs * each + i] = first_page + i;
  b->n_rows += n;
  b->q_start[++b->n_seqs] = b->n_rows;
  kv_commit(p->kv, &s->kv, n);
}

/* Numbers for t of fill(ctx), whatever device it is on. */
static void put_numbers(struct model *m, const struct tensor *t, float (*fill)(void *ctx), void *ctx) {
  struct tensor staged = m->dev->ops->stage(m->dev, t);
  for (int r = 0; r < t->rows; r++)
    for (int c = 0; c < t->cols; c++) tensor_row(&staged, r)[c] = fill(ctx);
  m->dev->ops->send(m->dev, t, &staged);
}
static float fill_normal(void *ctx) { return test_rand_normal(ctx); }
static float fill_same(void *ctx) { return *(const float *)ctx; }

static void went_well(struct model *m) {
  struct err e = {0};
  if (m->dev->ops->finish(m->dev, &e)) fail_msg("%s", e.msg);
}

/* A picture for a sequence of a model with cross-attention, or none: its bank in both models. */
static void new_bank(struct pair *p, struct sequence *s) {
  struct model *models[] = {p->eager, p->graphed};
  if (!p->has_cross) return;
  s->n_bank = test_rand_int(&p->rand, 0, 2) ? test_rand_int(&p->rand, 1, BANK_ROWS) : 0;
  s->seen_from = test_rand_int(&p->rand, 0, 50);
  int page = p->s->page, first_page = 1 + (int)(s - p->seqs) * p->b.pages_max[BATCH_CROSS];
  for (int first = 0; first < s->n_bank; first += 100) {
    struct err e = {0};
    int64_t slot[100];
    int n = MIN(100, s->n_bank - first);
    uint64_t seed = p->rand;
    for (int i = 0; i < n; i++) slot[i] = (int64_t)first_page * page + first + i;
    for (int i = 0; i < 2; i++) {
      struct model *m = models[i];
      struct tensor rows;
      uint64_t rng = seed;
      assert_int_equal(m->dev->ops->alloc(m->dev, &rows, n, p->config->hidden, "test", &e), 0);
      m->dev->ops->step(m->dev, NULL);
      put_numbers(m, &rows, fill_normal, &rng);
      m->ops->fill(m, &rows, slot);
      went_well(m);
      m->dev->ops->free(m->dev, &rows);
      p->rand = rng;
    }
  }
}

/* ---- opening ------------------------------------------------------------------------------------------------------------ */

/* Write NaN into every layer's bad page. */
static void fill_bad_pages(struct pair *p) {
  struct model *m = p->graphed;
  struct batch *b = &p->poison;
  float garbage = p->s->kv_dtype == DTYPE_Q8_0 ? INFINITY : NAN;
  b->n_rows = 1, b->n_seqs = b->n_out = 0, b->q_start[0] = 0;
  for (int k = 0; k < KV_KINDS; k++) {
    b->lo[k][0] = b->hi[k][0] = 0;
    b->slot[k][0] = (int64_t)p->bad_page[k] * p->s->page;
  }
  m->dev->ops->step(m->dev, b);
  m->attn_ops->prepare(m->attn, b);
  for (int l = 0; l < m->config.n_layers; l++) {
    const struct layer_config *lc = &m->config.layers[l];
    if (lc->kind != LAYER_CROSS && lc->kv_donor != l) continue;
    struct tensor q, k, v, out;
    struct err e;
    int n_q = lc->n_q * lc->head_dim, n_kv = lc->n_kv * lc->head_dim;
    assert_int_equal(m->dev->ops->alloc(m->dev, &q, 1, n_q, "test", &e), 0);
    assert_int_equal(m->dev->ops->alloc(m->dev, &k, 1, n_kv, "test", &e), 0);
    assert_int_equal(m->dev->ops->alloc(m->dev, &v, 1, n_kv, "test", &e), 0);
    assert_int_equal(m->dev->ops->alloc(m->dev, &out, 1, n_q, "test", &e), 0);
    put_numbers(m, &k, fill_same, &garbage);
    put_numbers(m, &v, fill_same, &garbage);
    const int64_t slot = (int64_t)p->bad_page[BATCH_CROSS] * p->s->page;
    if (lc->kind == LAYER_CROSS) m->attn_ops->fill(m->attn, l, &k, &v, &slot);
    else m->attn_ops->run(m->attn, l, &q, &k, &v, &out);
    went_well(m);
    m->dev->ops->free(m->dev, &q);
    m->dev->ops->free(m->dev, &k);
    m->dev->ops->free(m->dev, &v);
    m->dev->ops->free(m->dev, &out);
  }
}

/* A step of as many rows as there can be, all of which see a NaN: every scratch buffer holds NaN afterwards. */
static void poison_scratch(struct pair *p) {
  struct batch *b = &p->poison;
  b->n_rows = b->n_out = ROWS, b->n_seqs = 1, b->n_cross = p->has_cross ? ROWS : 0;
  b->q_start[0] = 0, b->q_start[1] = ROWS;
  for (int r = 0; r < ROWS; r++) {
    b->token[r] = b->pos[r] = b->seq[r] = 0;
    b->out[r] = r;
    for (int k = 0; k < BATCH_KINDS; k++)
      if (b->pages_max[k]) b->lo[k][r] = 0, b->hi[k][r] = 1;
    for (int k = 0; k < KV_KINDS; k++) b->slot[k][r] = 0;
  }
  for (int k = 0; k < BATCH_KINDS; k++)
    if (b->pages_max[k]) b->page[k][0] = p->bad_page[k];
  struct tensor y = model_forward(p->graphed, b);
  went_well(p->graphed);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < y.cols; i++) assert_true(isnan(tensor_row(&y, r)[i]));
}

static struct model *open_model(struct pair *p, int threads, int n_pages) {
  struct err e = {0};
  struct model_plan plan = {.isa = p->s->isa,
                            .n_threads = threads,
                            .device = pair_device,
                            .attn = p->s->ref_attention ? &attn_ref_ops : NULL,
                            .kv_dtype = p->s->kv_dtype,
                            .page_tokens = p->s->page,
                            .n_pages = {n_pages, p->config->window_tokens ? n_pages : 0, p->bad_page[BATCH_CROSS]},
                            .rows_max = ROWS,
                            .out_max = ROWS,
                            .seqs_max = SEQS,
                            .tokens_max = p->s->tokens_max,
                            .quiet = true};
  struct model *m = model_open(p->config, p->weights, &plan, &e);
  if (!m) fail_msg("%s: %s", p->s->folder, e.msg);
  return m;
}

static void pair_open(struct pair *p, const struct setup *s) {
  struct err e = {0};
  char path[256];
  memset(p, 0, sizeof *p);
  p->s = s;
  p->rand = 77;
  p->config = xcalloc(1, sizeof *p->config);
  snprintf(path, sizeof path, "golden/%s%s%s", s->folder, s->model[0] ? "/" : "", s->model);
  p->weights = weights_open(s->folder[0] == '/' ? s->folder : test_path(path), p->config, &e);
  if (!p->weights) fail_msg("%s", e.msg);
  int pages_max = div_up(s->tokens_max, s->page), n_pages = SEQS * MIN(pages_max, div_up(100, s->page)) + 2 * pages_max;
  p->has_cross = config_has_cross(p->config);
  int bank_pages_max = p->has_cross ? div_up(BANK_ROWS, s->page) : 0;
  p->bad_page[BATCH_CROSS] = p->has_cross ? SEQS * bank_pages_max + 1 : 0;
  p->eager = open_model(p, 1, n_pages + 1);
  p->graphed = open_model(p, s->threads, n_pages + 1);
  struct kv_config kc = {.page_tokens = s->page,
                         .n_pages = {n_pages, p->config->window_tokens ? n_pages : 0},
                         .window_tokens = p->config->window_tokens,
                         .seqs_max = SEQS,
                         .tokens_max = s->tokens_max};
  p->kv = kv_new(&kc, &e);
  if (!p->kv) fail_msg("%s", e.msg);
  batch_new(&p->b, pages_max, bank_pages_max);
  batch_new(&p->poison, pages_max, bank_pages_max);
  assert_int_equal(p->eager->dev->ops->hold_batch(p->eager->dev, &p->b, &e), 0);
  assert_int_equal(p->graphed->dev->ops->hold_batch(p->graphed->dev, &p->b, &e), 0);
  p->graph = graph_new(p->graphed, &p->b, SEQS, &e);
  if (!p->graph) fail_msg("%s", e.msg);
  p->bad_page[KV_FULL] = n_pages + 1;
  p->bad_page[KV_SLIDING] = p->config->window_tokens ? n_pages + 1 : 0;
  fill_bad_pages(p);
}

static void pair_close(struct pair *p) {
  for (int i = 0; i < SEQS; i++) kv_seq_close(p->kv, &p->seqs[i].kv);
  graph_delete(p->graph);
  model_close(p->eager);
  model_close(p->graphed);
  weights_close(p->weights);
  kv_delete(p->kv);
  batch_delete(&p->b);
  batch_delete(&p->poison);
  free(p->config);
}

/* ---- one step by both roads ---------------------------------------------------------------------------------------------- */

struct live { /* what graph mode must leave as it is */
  int n_rows, n_seqs, n_out, n_soft, n_cross;
  int32_t ints[ROWS * (5 + 2 * BATCH_KINDS) + SEQS + 1];
  int64_t slots[ROWS * KV_KINDS];
};

static void live_of(struct live *l, const struct batch *b) {
  memset(l, 0, sizeof *l);
  l->n_rows = b->n_rows, l->n_seqs = b->n_seqs, l->n_out = b->n_out, l->n_soft = b->n_soft, l->n_cross = b->n_cross;
  int at = 0;
  for (int r = 0; r < b->n_rows; r++) {
    l->ints[at++] = b->token[r], l->ints[at++] = b->pos[r], l->ints[at++] = b->seq[r], l->ints[at++] = b->soft[r];
    for (int k = 0; k < BATCH_KINDS; k++)
      if (b->pages_max[k]) l->ints[at++] = b->lo[k][r], l->ints[at++] = b->hi[k][r];
    for (int k = 0; k < KV_KINDS; k++) l->slots[k * ROWS + r] = b->slot[k][r];
  }
  for (int i = 0; i < b->n_out; i++) l->ints[at++] = b->out[i];
  for (int i = 0; i <= b->n_seqs; i++) l->ints[at++] = b->q_start[i];
}

/* Returns whether graph mode took the step. */
static bool step(struct pair *p) {
  static struct live before, after;
  struct graph_stats was = graph_stats(p->graph);
  if (test_rand_int(&p->rand, 0, 9) == 0) poison_scratch(p);
  live_of(&before, &p->b);
  mem_guard_begin("step");
  struct tensor want = model_forward(p->eager, &p->b);
  struct tensor got = graph_forward(p->graph, p->graphed, &p->b);
  mem_guard_end();
  went_well(p->eager);
  went_well(p->graphed);
  live_of(&after, &p->b);
  assert_memory_equal(&before, &after, sizeof before);
  assert_int_equal(got.rows, p->b.n_out);
  assert_int_equal(want.rows, got.rows);
  for (int r = 0; r < got.rows; r++) {
    if (!memcmp(tensor_row(&want, r), tensor_row(&got, r), sizeof(float) * (size_t)got.cols)) continue;
    fail_msg("%s, %d threads: row %d of %d at position %d differs", p->s->folder, p->s->threads, r, got.rows, p->b.pos[p->b.out[r]]);
  }
  for (int r = 0; r < want.rows; r++) assert_true(isfinite(tensor_row(&want, r)[0]));
  struct graph_stats is = graph_stats(p->graph);
  uint64_t n = is.n_replayed + is.n_recorded - was.n_replayed - was.n_recorded;
  p->n_compared += (uint64_t)got.rows;
  p->n_by_graph += n;
  assert_true(n <= 1);
  return n == 1;
}

static void prefill(struct pair *p, struct sequence *s, int n) {
  while (n > 0) {
    int some = MIN(n, ROWS);
    batch_garbage(&p->b);
    batch_add(p, s, some, n == some);
    bool by_graph = step(p);
    assert_int_equal(by_graph, some == 1);
    n -= some;
  }
}

/* Sequences come and go, so that buckets go up and down; each decodes over pages and windows; prompts come in between, alone or beside decoding rows. */
static void walk(const struct setup *s) {
  static struct pair p;
  pair_open(&p, s);
  int wanted = SEQS / 2, n_steps_seeing = 0, n_steps_blind = 0;
  for (int i = 0; i < s->n_steps; i++) {
    if (i % 9 == 0) wanted = test_rand_int(&p.rand, 1, SEQS);
    int n_open = 0;
    for (int j = 0; j < SEQS; j++) {
      struct sequence *q = &p.seqs[j];
      if (q->n_prompt && (q->kv.n_tokens >= q->n_limit || n_open >= wanted)) {
        kv_seq_close(p.kv, &q->kv);
        q->n_prompt = 0;
      } else if (!q->n_prompt && n_open < wanted) {
        q->n_prompt = test_rand_int(&p.rand, 1, 40);
        q->n_limit = MIN(q->n_prompt + test_rand_int(&p.rand, 1, 60), s->tokens_max);
        assert_true(kv_seq_open(p.kv, &q->kv));
        new_bank(&p, q);
        prefill(&p, q, q->n_prompt);
      }
      n_open += q->n_prompt > 0;
    }
    batch_garbage(&p.b);
    int start = test_rand_int(&p.rand, 0, SEQS - 1); /* sequences change their rows */
    bool mixed = false;
    for (int j = 0; j < SEQS; j++) {
      struct sequence *q = &p.seqs[(start + j) % SEQS];
      if (!q->n_prompt || q->kv.n_tokens >= q->n_limit) continue;
      int n = i % 4 == 3 && j < 2 ? MIN(3, q->n_limit - q->kv.n_tokens) : 1; /* some with rows ahead */
      int n_out = i % 20 == 13 && j == 2 ? 0 : n;
      mixed |= n_out != n || p.b.n_rows + n > SEQS;
      batch_add(&p, q, n, n_out);
    }
    if (p.b.n_rows == 0) continue;
    bool by_graph = step(&p);
    assert_int_equal(by_graph, !mixed);
    n_steps_seeing += by_graph && p.b.n_cross > 0, n_steps_blind += by_graph && p.b.n_cross == 0;
  }
  struct graph_stats st = graph_stats(p.graph);
  assert_true(st.n_recorded >= 2 && st.n_recorded <= (p.has_cross ? 20 : 10) && st.n_replayed > st.n_recorded);
  assert_true(n_steps_blind > 0 && (n_steps_seeing > 1 || !p.has_cross));
  printf("  %-22s %-18s %-4s %s %d threads, page %-2d: %4d rows compared, %3d steps recorded or replayed, %d launches\n", s->folder,
         s->model, s->isa == ISA_REF ? "ref" : "fast", dtype_info(s->kv_dtype)->name, s->threads, s->page, (int)p.n_compared,
         (int)p.n_by_graph, st.n_launches);
  pair_close(&p);
}

#endif
