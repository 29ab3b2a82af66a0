/* t_cross.c — cross-attention: rows of text against banks, whose length has nothing to do with theirs.
 *
 * A world is some sequences, each with a few banks and rows that see a part of one of them, or nothing. A road is a way of computing it:
 * backend, kernels, threads, page size, chunks, company, how banks are filled. Whatever the road, a row's result must be the same, and near
 * the oracle's. What no bank has filled holds NaN; entries of page tables that no row of a step needs are 0.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn_limit.h"
#include "base/mem.h"
#include "base/record.h"
#include "compute/attn.h"

#ifdef CYGNET_DEBUG
enum { WORLDS = 40, WORLDS_OF_ROADS = 12 }; /* sanitizers and emulation take long for all */
#else
enum { WORLDS = 240, WORLDS_OF_ROADS = 36 };
#endif
enum { SEQS_MOST = 3, BANKS_MOST = 4, ROWS_MOST = 64 };

struct view { /* rows [from, to) of a bank */
  int bank, from, to;
};
struct world {
  struct attn_layer layer;
  enum dtype kv_dtype;
  int n_seqs, n_banks[SEQS_MOST], len[SEQS_MOST][BANKS_MOST], n_rows[SEQS_MOST];
  struct view sees[SEQS_MOST][ROWS_MOST];
  uint64_t seed;
};
struct road {
  const struct attn_ops *ops;
  const struct kern *kern;
  struct workers *workers;
  int page, chunk, fill_rows; /* chunk 0 = each step another size */
  bool together;
  int n_padding;
  uint64_t seed; /* of page ids and chunks */
};
struct run {
  const struct world *w;
  const struct road *road;
  struct attn *attn;
  struct batch b;
  struct tensor q, out;
  int n_pages, at[SEQS_MOST][BANKS_MOST], done[SEQS_MOST];
  int32_t *pages[SEQS_MOST]; /* of all banks of a sequence, one after the other */
  int32_t *ids;
  uint64_t rand;
};

static struct tensor new_tensor(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * sizeof(float), 64)};
  t.data = xcalloc((size_t)rows, t.row_bytes);
  return t;
}

enum { QUERY, KEY, VALUE };
/* Numbers of variance 1 that belong to (what, sequence, bank, row). */
static void numbers(const struct world *w, int what, int seq, int bank, int row, float *x, int n) {
  uint64_t state = w->seed ^ ((uint64_t)what << 56 | (uint64_t)seq << 48 | (uint64_t)bank << 40 | (uint64_t)row);
  test_rand(&state);
  for (int i = 0; i < n; i += 2) {
    uint64_t r = test_rand(&state);
    x[i] = ((float)(r >> 40) - 0x1p23f) * (1.7320508f * 0x1p-23f);
    if (i + 1 < n) x[i + 1] = ((float)(r & 0xffffff) - 0x1p23f) * (1.7320508f * 0x1p-23f);
  }
}

static int q_cols(const struct world *w) { return w->layer.n_q * w->layer.head_dim; }
static int kv_cols(const struct world *w) { return w->layer.n_kv * w->layer.head_dim; }
static size_t result_at(const struct world *w, int seq, int row) {
  size_t rows = (size_t)row;
  for (int s = 0; s < seq; s++) rows += (size_t)w->n_rows[s];
  return rows * (size_t)q_cols(w);
}

/* ---- banks ------------------------------------------------------------------------------------------------------------------ */

static void poison_all(struct run *r) {
  struct tensor x = new_tensor(64, kv_cols(r->w));
  int64_t slot[64];
  for (int i = 0; i < x.rows; i++)
    for (int c = 0; c < x.cols; c++) tensor_row(&x, i)[c] = r->w->kv_dtype == DTYPE_Q8_0 ? INFINITY : NAN;
  for (int64_t at = r->road->page, end = (int64_t)(r->n_pages + 1) * r->road->page; at < end; at += 64) {
    struct tensor some = tensor_rows(x, (int)MIN(64, end - at));
    for (int i = 0; i < some.rows; i++) slot[i] = at + i;
    r->road->ops->fill(r->attn, 0, &some, &some, slot);
  }
  free(x.data);
}

static void fill_bank(struct run *r, int seq, int bank) {
  const int block = r->road->fill_rows, page = r->road->page;
  struct tensor k = new_tensor(block, kv_cols(r->w)), v = new_tensor(block, kv_cols(r->w));
  int64_t *slot = xcalloc((size_t)block, sizeof *slot);
  for (int first = 0; first < r->w->len[seq][bank]; first += block) {
    struct tensor some_k = tensor_rows(k, MIN(block, r->w->len[seq][bank] - first)), some_v = tensor_rows(v, some_k.rows);
    for (int i = 0; i < some_k.rows; i++) {
      int place = r->at[seq][bank] + first + i;
      numbers(r->w, KEY, seq, bank, first + i, tensor_row(&k, i), k.cols);
      numbers(r->w, VALUE, seq, bank, first + i, tensor_row(&v, i), v.cols);
      slot[i] = (int64_t)r->pages[seq][place / page] * page + place % page;
    }
    r->road->ops->fill(r->attn, 0, &some_k, &some_v, slot);
  }
  free(slot);
  free(k.data);
  free(v.data);
}

/* ---- walking ---------------------------------------------------------------------------------------------------------------- */

static void begin(struct run *r, const struct world *w, const struct road *road, bool poison) {
  memset(r, 0, sizeof *r);
  r->w = w, r->road = road, r->rand = road->seed;
  int n_of[SEQS_MOST], most = 1, rows = road->n_padding;
  for (int s = 0; s < w->n_seqs; s++) {
    int end = 0;
    for (int i = 0; i < w->n_banks[s]; i++) {
      r->at[s][i] = (int)align_up((size_t)end, (size_t)road->page);
      end = r->at[s][i] + w->len[s][i];
    }
    n_of[s] = div_up(end, road->page);
    r->n_pages += n_of[s];
    most = MAX(most, n_of[s]);
    rows += w->n_rows[s];
  }
  r->ids = xcalloc((size_t)r->n_pages + 1, sizeof *r->ids);
  for (int i = 0; i < r->n_pages; i++) {
    int j = test_rand_int(&r->rand, 0, i);
    r->ids[i] = r->ids[j];
    r->ids[j] = i + 1;
  }
  for (int s = 0, n = 0; s < w->n_seqs; n += n_of[s++]) r->pages[s] = r->ids + n;
  struct attn_config c = {.layers = &w->layer, .n_layers = 1, .kv_dtype = w->kv_dtype, .page_tokens = road->page};
  c.n_pages[BATCH_CROSS] = r->n_pages;
  c.rows_max = rows, c.seqs_max = w->n_seqs, c.tokens_max = ROWS_MOST; /* of text: no bound for banks */
  c.kern = road->kern, c.workers = road->workers;
  struct err e = {0};
  if (!(r->attn = road->ops->open(&c, &e))) fail_msg("%s", e.msg);
  r->b = (struct batch){.rows_max = rows, .seqs_max = w->n_seqs};
  r->b.pages_max[BATCH_CROSS] = most;
  r->b.seq = xcalloc((size_t)rows, sizeof(int32_t)), r->b.token = xcalloc((size_t)rows, sizeof(int32_t));
  r->b.pos = xcalloc((size_t)rows, sizeof(int32_t)), r->b.q_start = xcalloc((size_t)w->n_seqs + 1, sizeof(int32_t));
  r->b.lo[BATCH_CROSS] = xcalloc((size_t)rows, sizeof(int32_t)), r->b.hi[BATCH_CROSS] = xcalloc((size_t)rows, sizeof(int32_t));
  r->b.page[BATCH_CROSS] = xcalloc((size_t)(w->n_seqs * most), sizeof(int32_t));
  r->q = new_tensor(rows, q_cols(w)), r->out = new_tensor(rows, q_cols(w));
  if (poison) poison_all(r);
  for (int s = 0; s < w->n_seqs; s++)
    for (int i = 0; i < w->n_banks[s]; i++) fill_bank(r, s, i);
}

static void end(struct run *r) {
  r->road->ops->close(r->attn);
  int32_t *all[] = {r->b.seq, r->b.token, r->b.pos, r->b.q_start, r->b.lo[BATCH_CROSS], r->b.hi[BATCH_CROSS], r->b.page[BATCH_CROSS],
                    r->ids};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) free(all[i]);
  free(r->q.data);
  free(r->out.data);
}

static void add_row(struct run *r, int seq, int row) {
  struct batch *b = &r->b;
  const struct view *v = &r->w->sees[seq][row];
  int i = b->n_rows++, page = r->road->page, *lo = &b->lo[BATCH_CROSS][i], *hi = &b->hi[BATCH_CROSS][i];
  b->token[i] = seq, b->pos[i] = row, b->seq[i] = b->n_seqs; /* token: whose row it is, for the results */
  *lo = r->at[seq][v->bank] + v->from, *hi = r->at[seq][v->bank] + v->to;
  if (*lo >= *hi) return;
  b->n_cross++;
  for (int j = *lo / page; j < div_up(*hi, page); j++) b->page[BATCH_CROSS][b->n_seqs * b->pages_max[BATCH_CROSS] + j] = r->pages[seq][j];
}

static bool fill_step(struct run *r) {
  struct batch *b = &r->b;
  b->n_rows = b->n_seqs = b->n_cross = 0;
  memset(b->page[BATCH_CROSS], 0, (size_t)(r->w->n_seqs * b->pages_max[BATCH_CROSS]) * sizeof(int32_t));
  for (int s = 0; s < r->w->n_seqs; s++) {
    int left = r->w->n_rows[s] - r->done[s];
    if (left == 0 || (!r->road->together && b->n_seqs > 0)) continue;
    int n = r->road->chunk ? r->road->chunk : test_rand_int(&r->rand, 1, 20);
    n = MIN(n, left);
    b->q_start[b->n_seqs] = b->n_rows;
    for (int i = 0; i < n; i++) add_row(r, s, r->done[s]++);
    b->q_start[++b->n_seqs] = b->n_rows;
  }
  if (b->n_seqs == 0) return false;
  for (int i = 0; i < r->road->n_padding; i++) {
    int row = b->n_rows++;
    b->seq[row] = 0, b->token[row] = -1, b->lo[BATCH_CROSS][row] = b->hi[BATCH_CROSS][row] = 0;
  }
  return true;
}

static void load_queries(struct run *r) {
  for (int i = 0; i < r->b.n_rows; i++) {
    if (r->b.token[i] >= 0) numbers(r->w, QUERY, r->b.token[i], 0, r->b.pos[i], tensor_row(&r->q, i), r->q.cols);
    for (int c = 0; r->b.token[i] < 0 && c < r->q.cols; c++) tensor_row(&r->q, i)[c] = NAN;
  }
  memset(r->out.data, 0xff, r->out.row_bytes * (size_t)r->out.rows);
}

static void keep_results(const struct run *r, float *results) {
  for (int i = 0; i < r->b.n_rows; i++) {
    const float *out = tensor_row(&r->out, i);
    if (r->b.token[i] >= 0) memcpy(results + result_at(r->w, r->b.token[i], r->b.pos[i]), out, sizeof(float) * (size_t)r->out.cols);
    for (int c = 0; r->b.lo[BATCH_CROSS][i] >= r->b.hi[BATCH_CROSS][i] && c < r->out.cols; c++)
      assert_true(out[c] == 0 && !signbit(out[c]));
  }
}

static float *walk(const struct world *w, const struct road *road, bool poison) {
  float *results = xcalloc(result_at(w, w->n_seqs, 0) + 1, sizeof *results);
  struct run r;
  begin(&r, w, road, poison);
  while (fill_step(&r)) {
    if (r.b.n_cross > 0) {
      load_queries(&r);
      mem_guard_begin("attention");
      road->ops->prepare(r.attn, &r.b);
      road->ops->run(r.attn, 0, &r.q, NULL, NULL, &r.out);
      mem_guard_end();
      keep_results(&r, results);
    } else {
      road->ops->prepare(r.attn, &r.b); /* nobody runs the layer; the results stay 0 */
    }
  }
  end(&r);
  return results;
}

/* ---- what tests share --------------------------------------------------------------------------------------------------------- */

static struct workers *pools[4];     /* by number of threads; [1] stays NULL */
static const struct kern *levels[8]; /* every variant that runs here */
static int n_levels;

static int start(void **state) {
  (void)state;
  struct err e = {0};
  for (int i = 2; i < 4; i++)
    if (!(pools[i] = workers_new(i, &e))) fail_msg("%s", e.msg);
  for (const struct kern *k; n_levels < (int)ARRAY_LEN(levels) && (k = kern_variant(n_levels)); n_levels++) levels[n_levels] = k;
  return 0;
}
static int stop(void **state) {
  (void)state;
  for (int i = 2; i < 4; i++) workers_delete(pools[i]);
  return 0;
}

static const enum dtype kv_dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16, DTYPE_Q8_0};
static const int page_sizes[] = {1, 2, 16, 128};

static struct world new_world(int n_kv, int group, int head_dim, enum dtype t, uint64_t seed) {
  return (struct world){
      .layer = {BATCH_CROSS, n_kv * group, n_kv, head_dim, 1.5f / sqrtf((float)head_dim), 0}, .kv_dtype = t, .seed = seed};
}

/* Rows as a prompt with pictures has them, or quite at random. */
static void random_rows(struct world *w, int bank_most, int rows_most, bool wild, uint64_t *rand) {
  w->n_seqs = test_rand_int(rand, 1, SEQS_MOST);
  for (int s = 0; s < w->n_seqs; s++) {
    w->n_banks[s] = test_rand_int(rand, wild ? 1 : 0, BANKS_MOST);
    w->n_rows[s] = test_rand_int(rand, 1, rows_most);
    for (int i = 0; i < w->n_banks[s]; i++) w->len[s][i] = test_rand_int(rand, 1, bank_most);
    for (int r = 0, bank = -1, to = 0; r < w->n_rows[s]; r++) {
      struct view *v = &w->sees[s][r];
      *v = (struct view){0, 0, 0};
      if (wild) {
        if (test_rand_int(rand, 0, 4) == 0) continue;
        v->bank = test_rand_int(rand, 0, w->n_banks[s] - 1);
        v->from = test_rand_int(rand, 0, 1) ? 0 : test_rand_int(rand, 0, w->len[s][v->bank]);
        v->to = test_rand_int(rand, 0, w->len[s][v->bank]); /* at times before from */
      } else {
        if (bank + 1 < w->n_banks[s] && test_rand_int(rand, 0, 5) == 0) bank++, to = test_rand_int(rand, 1, w->len[s][bank]);
        if (bank >= 0 && test_rand_int(rand, 0, 3) == 0) to = w->len[s][bank]; /* a neighbour's rows come into view */
        if (bank >= 0) *v = (struct view){bank, 0, to};
      }
    }
  }
}

static void expect_near(const struct world *w, const float *got, const float *want, const char *what) {
  double rel_max, rel_l2;
  size_t n = result_at(w, w->n_seqs, 0), n_set = 0;
  for (size_t i = 0; i < n; i++) n_set += want[i] != 0;
  if (n_set == 0) {
    for (size_t i = 0; i < n; i++) assert_true(got[i] == 0);
    return;
  }
  test_compare(got, want, n, &rel_max, &rel_l2);
  rel_max *= sqrt((double)n_set / (double)n);
  const double limit = 1.5 * attn_limit(what, w->kv_dtype); /* scores are 1.5 times as great as in t_attn */
  if (!(rel_max < 10 * limit && rel_l2 < limit))
    fail_msg("%s: head_dim %d, group %d, %s: rel_max %g, rel_l2 %g", what, w->layer.head_dim, w->layer.n_q / w->layer.n_kv,
             dtype_info(w->kv_dtype)->name, rel_max, rel_l2);
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static void random_worlds_match_the_oracle(void **state) {
  (void)state;
  static const int head_dims[] = {12, 32, 64, 72, 128, 256};
  uint64_t rand = 21;
  for (int i = 0; i < WORLDS; i++) {
    enum dtype t = kv_dtypes[i % 4];
    int head_dim = head_dims[test_rand_int(&rand, 0, 5)];
    if (t == DTYPE_Q8_0 && head_dim % 32) head_dim = 32;
    struct world w = new_world(test_rand_int(&rand, 1, 2), test_rand_int(&rand, 1, 4), head_dim, t, test_rand(&rand));
    random_rows(&w, i % 10 == 0 ? 1500 : 90, 24, i & 1, &rand);
    struct road road = {.ops = &attn_ref_ops, .page = page_sizes[i / 4 % 4], .chunk = 1000, .fill_rows = 64, .together = true};
    float *want = walk(&w, &road, true);
    road.ops = &attn_cpu_ops;
    for (int level = 0; level < n_levels; level++) {
      road.kern = levels[level], road.page = page_sizes[test_rand_int(&rand, 0, 3)], road.workers = pools[test_rand_int(&rand, 1, 3)];
      road.chunk = test_rand_int(&rand, 0, 3), road.together = test_rand(&rand) & 1, road.n_padding = test_rand_int(&rand, 0, 3);
      road.seed = test_rand(&rand), road.fill_rows = test_rand_int(&rand, 1, 70);
      float *got = walk(&w, &road, true);
      expect_near(&w, got, want, road.kern->name);
      free(got);
    }
    free(want);
  }
}

/* Pages, chunks, threads, company, padding, and how banks were filled. */
static void every_road_gives_the_same_bits(void **state) {
  (void)state;
  uint64_t rand = 22;
  for (int i = 0; i < WORLDS_OF_ROADS; i++) {
    const struct kern *kern = levels[i % n_levels];
    enum dtype t = kv_dtypes[i / 2 % 4];
    struct world w = new_world(test_rand_int(&rand, 1, 2), test_rand_int(&rand, 1, 5), i % 3 ? 64 : 32, t, test_rand(&rand));
    random_rows(&w, i % 6 == 5 ? 2500 : 130, 40, i / 3 & 1, &rand);
    struct road road = {.ops = &attn_cpu_ops, .kern = kern, .page = 16, .chunk = 1000, .fill_rows = 512};
    float *want = walk(&w, &road, false);
    for (int j = 0; j < 6; j++) {
      static const int chunks[] = {1, 2, 3, 7, 0, 1000};
      road.page = page_sizes[j % 4], road.chunk = chunks[j], road.together = j & 1, road.workers = pools[1 + (i + j) % 3];
      road.n_padding = j % 3, road.seed = test_rand(&rand), road.fill_rows = test_rand_int(&rand, 1, 80);
      float *got = walk(&w, &road, true);
      if (memcmp(got, want, result_at(&w, w.n_seqs, 0) * sizeof *got))
        fail_msg("world %d, %s, page %d, chunk %d, together %d, %d threads: other bits", i, kern->name, road.page, road.chunk,
                 road.together, workers_count(road.workers));
      free(got);
    }
    free(want);
  }
}

/* Softmax over rows [from, to) of a bank straight from the definition, with keys and values as the cache rounds them, for single heads of
 * single rows of sequence 0, all of which see some of bank 0. want [n, head_dim]. */
static void oracle(const struct world *w, const int *row, const int *head, int n, double *want) {
  const int d = w->layer.head_dim, group = w->layer.n_q / w->layer.n_kv, bank = w->len[0][0];
  float *q = xcalloc((size_t)(n * q_cols(w)), sizeof *q), *x = xcalloc((size_t)kv_cols(w), sizeof *x);
  double *p = xcalloc((size_t)n * (size_t)bank, sizeof *p), top, sum;
  unsigned char *raw = xmalloc((size_t)kv_cols(w) * sizeof(float));
  for (int i = 0; i < n; i++) numbers(w, QUERY, 0, 0, row[i], q + i * q_cols(w), q_cols(w));
  for (int what = KEY; what <= VALUE; what++) {
    for (int j = 0; j < bank; j++) {
      numbers(w, what, 0, 0, j, x, kv_cols(w));
      dtype_from_f32(w->kv_dtype, x, raw, (size_t)kv_cols(w)); /* a type without blocks */
      dtype_to_f32(w->kv_dtype, raw, x, (size_t)kv_cols(w));
      for (int i = 0; i < n; i++) {
        const float *kv = x + head[i] / group * d, *mine = q + i * q_cols(w) + head[i] * d;
        double *at = &p[(size_t)i * (size_t)bank + (size_t)j];
        for (int c = 0; c < d && what == KEY; c++) *at += (double)mine[c] * (double)kv[c] * (double)w->layer.scale;
        for (int c = 0; c < d && what == VALUE; c++) want[i * d + c] += *at * (double)kv[c];
      }
    }
    for (int i = 0; i < n && what == KEY; i++) {
      const struct view *v = &w->sees[0][row[i]];
      double *at = p + (size_t)i * (size_t)bank;
      top = -INFINITY, sum = 0;
      for (int j = v->from; j < v->to; j++) top = fmax(top, at[j]);
      for (int j = v->from; j < v->to; j++) sum += exp(at[j] - top);
      for (int j = 0; j < bank; j++) at[j] = v->from <= j && j < v->to ? exp(at[j] - top) / sum : 0;
    }
  }
  free(q);
  free(x);
  free(p);
  free(raw);
}

/* The cross layer of the 11B model with a picture of four tiles, as the very first thing that attention is asked: a prompt of 16 tokens
 * against 6404 rows; then 16 rows of which some see nothing and some one tile; and a single one. */
static void sixteen_tokens_against_6404(void **state) {
  (void)state;
  enum { TILE = TEST_LESS > 1 ? 400 : 1601, BANK = 4 * TILE };
  uint64_t rand = 23;
  for (int form = 0; form < 3; form++) {
    struct world w = new_world(8, 4, 128, form == 1 ? DTYPE_F32 : DTYPE_BF16, 99);
    w.layer.scale = 1 / sqrtf(128);
    w.n_seqs = 1, w.n_banks[0] = 1, w.len[0][0] = BANK, w.n_rows[0] = form == 2 ? 1 : 16;
    for (int r = 0; r < w.n_rows[0]; r++) {
      w.sees[0][r] = (struct view){0, 0, BANK};
      if (form == 1 && r < 5) w.sees[0][r].to = 0;
      if (form == 1 && r >= 5 && r < 8) w.sees[0][r].to = TILE;
    }
    float *first = NULL;
    double *want = NULL, worst = 0; /* as a part of what is allowed */
    enum { SAMPLES = 32 };
    int rows[SAMPLES], heads[SAMPLES];
    for (int level = 0; level < n_levels; level++) {
      if (levels[level]->isa == ISA_REF && (form != 2)) continue; /* the same code as above, and slow */
      for (int threads = 1; threads <= 3; threads += 2) {
        struct road road = {
            .ops = &attn_cpu_ops, .kern = levels[level], .workers = pools[threads], .page = 16, .chunk = 16, .fill_rows = 512};
        float *got = walk(&w, &road, false);
        for (int i = 0; !want && i < SAMPLES; i++)
          rows[i] = test_rand_int(&rand, 0, w.n_rows[0] - 1), heads[i] = test_rand_int(&rand, 0, 31);
        if (!want) {
          want = xcalloc(SAMPLES * 128, sizeof *want);
          oracle(&w, rows, heads, SAMPLES, want);
        }
        double rms = 0, limit = 10 * attn_limit(levels[level]->name, w.kv_dtype);
        for (int i = 0; i < SAMPLES * 128; i++) rms += want[i] * want[i] / (SAMPLES * 128);
        for (int i = 0; i < SAMPLES * 128; i++) {
          double x = (double)got[result_at(&w, 0, rows[i / 128]) + (size_t)(heads[i / 128] * 128 + i % 128)];
          worst = fmax(worst, fabs(x - want[i]) / sqrt(rms) / limit);
        }
        if (threads == 1) first = got;
        else {
          assert_memory_equal(got, first, result_at(&w, 1, 0) * sizeof *got);
          free(got);
          free(first);
        }
      }
    }
    printf("  %2d rows%s against %d: worst difference %.2g of the allowed\n", w.n_rows[0], form == 1 ? ", some of which see nothing," : "",
           BANK, worst);
    assert_true(want && worst < 1);
    free(want);
  }
}

/* Recorded with a short bank, replayed with banks of several segments, nothing to see, and short again; padded. */
static void replayed_steps_give_the_same_bits(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads++) {
    struct err e = {0};
    struct workers *pool = threads > 1 ? pools[threads] : workers_new(1, &e);
    struct world w = new_world(2, 2, 32, threads == 2 ? DTYPE_BF16 : DTYPE_F32, 5);
    static const struct view views[] = {{0, 0, 7}, {1, 0, 2600}, {1, 0, 0}, {2, 3, 900}, {1, 0, 1300}, {0, 0, 7}, {1, 0, 1}};
    w.n_seqs = 2;
    for (int s = 0; s < 2; s++) {
      w.n_banks[s] = 3, w.len[s][0] = 7, w.len[s][1] = 2600, w.len[s][2] = 900, w.n_rows[s] = (int)ARRAY_LEN(views);
      for (int i = 0; i < w.n_rows[s]; i++) w.sees[s][i] = views[s ? (i + 1) % w.n_rows[s] : i];
    }
    struct road road = {.ops = &attn_cpu_ops, .kern = levels[n_levels - 1], .workers = pool, .page = 16, .chunk = 1, .fill_rows = 100};
    road.together = true, road.n_padding = 2;
    float *want = walk(&w, &road, true), *got = xcalloc(result_at(&w, 2, 0) + 1, sizeof *got);
    struct record *record = record_new(3, 3 * 512, &e);
    struct run r;
    begin(&r, &w, &road, true);
    for (int step = 0; fill_step(&r); step++) {
      load_queries(&r);
      mem_guard_begin("replay");
      road.ops->prepare(r.attn, &r.b);
      if (step > 0) workers_replay(pool, record);
      else {
        workers_record(pool, record);
        road.ops->run(r.attn, 0, &r.q, NULL, NULL, &r.out);
        workers_record(pool, NULL);
      }
      mem_guard_end();
      keep_results(&r, got);
    }
    end(&r);
    assert_memory_equal(got, want, result_at(&w, 2, 0) * sizeof *got);
    record_delete(record);
    free(want);
    free(got);
    if (threads == 1) workers_delete(pool);
  }
}

/* A single visible row gives its value back, as the cache's type rounds it; slot 0 writes nothing; filling elsewhere changes nothing
 * here. */
static void what_fill_stores(void **state) {
  (void)state;
  const struct attn_ops *backends[] = {&attn_cpu_ops, &attn_ref_ops};
  for (size_t i = 0; i < ARRAY_LEN(backends) * ARRAY_LEN(kv_dtypes); i++) {
    const struct attn_ops *ops = backends[i % 2];
    enum dtype t = kv_dtypes[i / 2];
    struct world w = new_world(2, 1, 32, t, 7);
    struct attn_config c = {
        .layers = &w.layer, .n_layers = 1, .kv_dtype = t, .page_tokens = 4, .rows_max = 1, .seqs_max = 1, .tokens_max = 1};
    c.n_pages[BATCH_CROSS] = 2, c.kern = levels[n_levels - 1];
    struct err e = {0};
    struct attn *a = ops->open(&c, &e);
    assert_non_null(a);
    struct tensor x = new_tensor(3, 64), q = new_tensor(1, 64), out = new_tensor(1, 64);
    for (int r = 0; r < 3; r++) numbers(&w, VALUE, 0, 0, r, tensor_row(&x, r), 64);
    ops->fill(a, 0, &x, &x, (const int64_t[]){11, 0, 4});
    ops->fill(a, 0, &x, &x, (const int64_t[]){0, 10, 0});
    const int row_at[8] = {2, -1, -1, -1, -1, -1, 1, 0}; /* which row stands at slot 4 + i; the others are still zero */
    int32_t lo[1], hi[1], pages[2] = {1, 2}, q_start[2] = {0, 1}, seq[1] = {0};
    struct batch b = {.n_rows = 1, .n_seqs = 1, .n_cross = 1, .rows_max = 1, .seqs_max = 1, .q_start = q_start, .seq = seq};
    b.lo[BATCH_CROSS] = lo, b.hi[BATCH_CROSS] = hi, b.page[BATCH_CROSS] = pages, b.pages_max[BATCH_CROSS] = 2;
    for (int j = 0; j < 8; j++) {
      float want[64] = {0};
      unsigned char raw[256];
      lo[0] = j, hi[0] = j + 1;
      ops->prepare(a, &b);
      ops->run(a, 0, &q, NULL, NULL, &out);
      for (int h = 0; h < 2 && row_at[j] >= 0; h++) {
        dtype_from_f32(t, tensor_row(&x, row_at[j]) + 32 * h, raw, 32);
        dtype_to_f32(t, raw, want + 32 * h, 32);
      }
      for (int n = 0; n < 64; n++) assert_true(tensor_row(&out, 0)[n] == want[n]);
    }
    ops->close(a);
    free(x.data);
    free(q.data);
    free(out.data);
  }
}

static void configurations(void **state) {
  (void)state;
  struct attn_layer layers[2] = {{KV_FULL, 4, 2, 64, 1, 0}, {BATCH_CROSS, 8, 4, 64, 1, 1}};
  struct attn_config c = {.layers = layers, .n_layers = 2, .kv_dtype = DTYPE_BF16, .page_tokens = 16, .rows_max = 4, .seqs_max = 1};
  struct err e = {0};
  c.tokens_max = 64, c.n_pages[KV_FULL] = 4, c.kern = levels[0];
  assert_int_equal(attn_check(&c, &e), 0); /* a pool without pages: the text runs */
  size_t none = attn_bytes(&c);
  c.n_pages[BATCH_CROSS] = 400;
  assert_int_equal(attn_bytes(&c) - none, 400 * 16 * attn_slot_bytes(DTYPE_BF16, 4, 64));
  c.workers = pools[2]; /* rows of states for a bank of 7 segments, however short the text is */
  size_t with_states = attn_bytes(&c);
  c.n_pages[BATCH_CROSS] = 10;
  assert_true(with_states - attn_bytes(&c) > 390 * 16 * attn_slot_bytes(DTYPE_BF16, 4, 64) + 4 * 8 * 7 * 64 * sizeof(float));
  layers[1].kind = BATCH_KINDS;
  assert_int_equal(attn_check(&c, &e), -1);
  assert_non_null(strstr(e.msg, "unknown kind 3"));
  layers[1].kind = BATCH_CROSS, c.n_pages[BATCH_CROSS] = -1;
  assert_int_equal(attn_check(&c, &e), -1);
  layers[1].owner = 0, c.n_pages[BATCH_CROSS] = 1;
  assert_int_equal(attn_check(&c, &e), -1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sixteen_tokens_against_6404),
    cmocka_unit_test(random_worlds_match_the_oracle),
    cmocka_unit_test(every_road_gives_the_same_bits),
    cmocka_unit_test(replayed_steps_give_the_same_bits),
    cmocka_unit_test(what_fill_stores),
    cmocka_unit_test(configurations),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, start, stop) ? 1 : 0;
}
