/* t_mllama.c — the text model of Llama 3.2 Vision against golden values, and against itself by other roads, bit for bit.
 *
 * Fixtures: tests/golden/media-mllama and media-mllama-long (tiny random checkpoints; golden.safetensors holds float32 results of an
 * independent implementation). Banks come from there, too, so the encoder is not in it. The batch is made here, from the rule that is
 * written down for masks (which token sees which pictures); the engine has its own.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gguf_maker.h"
#include "models/encoder.h"
#include "models/model.h"

enum {
  TOKENS_MAX = 64,
  ROWS_MAX = 160,
  SEQS_MAX = 12,
  PICTURES_MAX = 4,
  GREEDY = 8,
  CROSS_TOKENS = 900 /* rows of one sequence's banks */
};

/* ---- which token sees what ------------------------------------------------------------------------------------------------ */

struct range { /* tokens [first, end) see a picture */
  int first, end;
};

/* Each picture is seen from its token to the next picture; where that follows at once, as long as the next one is. */
static int ranges_of(const int32_t *ids, int n, int32_t image, struct range *r) {
  int n_pictures = 0;
  for (int i = 0; i < n; i++) {
    if (ids[i] != image) continue;
    if (n_pictures > 0) r[n_pictures - 1].end = i;
    r[n_pictures++] = (struct range){i, n};
  }
  for (int i = n_pictures - 2; i >= 0; i--)
    if (r[i].end == r[i].first + 1) r[i].end = r[i + 1].end;
  return n_pictures;
}

static void ranges_of_pictures(void **state) {
  (void)state;
  static const struct {
    const char *prompt; /* I a picture */
    int n;
    struct range want[PICTURES_MAX];
  } examples[] = {
      {"BxIttt", 1, {{2, 6}}},
      {"BIIttIt", 3, {{1, 5}, {2, 5}, {5, 7}}},
      {"BItII", 3, {{1, 3}, {3, 5}, {4, 5}}},
      {"BItIIttt", 3, {{1, 3}, {3, 8}, {4, 8}}},
      {"III", 3, {{0, 3}, {1, 3}, {2, 3}}},
      {"Btt", 0, {{0, 0}}},
  };
  for (size_t i = 0; i < ARRAY_LEN(examples); i++) {
    int32_t ids[16];
    struct range r[PICTURES_MAX];
    int n = (int)strlen(examples[i].prompt);
    for (int j = 0; j < n; j++) ids[j] = examples[i].prompt[j];
    assert_int_equal(ranges_of(ids, n, 'I', r), examples[i].n);
    for (int j = 0; j < examples[i].n; j++) {
      assert_int_equal(r[j].first, examples[i].want[j].first);
      assert_int_equal(r[j].end, examples[i].want[j].end);
    }
  }
}

/* ---- fixtures --------------------------------------------------------------------------------------------------------------- */

struct prompt {
  const char *name;
  int pictures[PICTURES_MAX]; /* which, in order; -1 = no more */
};
static const struct prompt short_prompts[] = {
    {"text", {-1}},           {"one", {0, -1}},         {"four", {1, -1}},        {"start", {2, -1}}, {"mid", {3, -1}},
    {"separate", {0, 1, -1}}, {"adjacent", {3, 2, -1}}, {"three", {0, 1, 2, -1}}, {"end", {1, -1}},
};
static const struct prompt long_prompts[] = {{"short", {0, -1}}, {"sixteen", {1, -1}}, {"pair", {0, 1, -1}}};

struct sequence { /* a prompt, and what was said after it */
  const struct prompt *p;
  int32_t ids[TOKENS_MAX];
  int n_prompt, n, n_done;
  int lo[TOKENS_MAX], hi[TOKENS_MAX]; /* of the prompt's tokens, in rows of its banks */
  int n_bank_pages;
  int32_t bank_pages[CROSS_TOKENS];
};

struct bench {
  char folder[64];
  struct safetensors golden;
  struct weights *w;
  struct model_config *config;
  struct model *m;
  const struct prompt *prompts;
  int n_prompts, page, fill_block, n_pages_used;
  struct sequence seqs[SEQS_MAX];
  struct batch b;
};

static const struct st_tensor *find(const struct bench *x, const char *of, const char *name) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", of, name);
  return safetensors_find(&x->golden, full);
}
static const struct st_tensor *must_find(const struct bench *x, const char *of, const char *name) {
  const struct st_tensor *t = find(x, of, name);
  if (!t) fail_msg("%s: no %s.%s", x->folder, of, name);
  return t;
}

static int n_pictures(const struct prompt *p) {
  int n = 0;
  while (p->pictures[n] >= 0) n++;
  return n;
}

static const struct st_tensor *bank_of(const struct bench *x, int picture, int *n_rows) {
  char name[32];
  snprintf(name, sizeof name, "image%d", picture);
  const struct st_tensor *bank = must_find(x, name, "bank"), *tiles = must_find(x, name, "tiles");
  int32_t n_tiles;
  memcpy(&n_tiles, tiles->data, sizeof n_tiles);
  *n_rows = (int)bank->shape[0] / 4 * n_tiles; /* of tiles that are used: nobody sees the others */
  return bank;
}

/* Where each picture of a prompt lies in the sequence's banks: neighbours in the prompt are neighbours there, and each group begins at a
 * page. */
static int lay_out(const struct bench *x, const struct sequence *s, const struct range *r, int *at) {
  int end = 0, n = n_pictures(s->p), n_rows;
  for (int i = 0; i < n; i++) {
    bool goes_on = i > 0 && r[i].first == r[i - 1].first + 1;
    at[i] = goes_on ? end : (int)align_up((size_t)end, (size_t)x->page);
    bank_of(x, s->p->pictures[i], &n_rows);
    end = at[i] + n_rows;
  }
  return end;
}

/* Keys and values of a picture's bank to the slots of rows [at, ...) of the sequence's banks. */
static void fill_bank(struct bench *x, struct sequence *s, int picture, int at) {
  int n_rows, hidden = x->config->hidden;
  const struct st_tensor *bank = bank_of(x, picture, &n_rows);
  int64_t slot[ENCODER_ROWS];
  struct tensor rows;
  struct err e = {0};
  assert_int_equal(x->m->dev->ops->alloc(x->m->dev, &rows, x->fill_block, hidden, "test", &e), 0);
  for (int first = 0; first < n_rows; first += x->fill_block) {
    struct tensor some = tensor_rows(rows, MIN(x->fill_block, n_rows - first));
    for (int i = 0; i < some.rows; i++) {
      int place = at + first + i;
      memcpy(tensor_row(&some, i), (const float *)bank->data + (size_t)(first + i) * (size_t)hidden, sizeof(float) * (size_t)hidden);
      slot[i] = (int64_t)s->bank_pages[place / x->page] * x->page + place % x->page;
    }
    x->m->ops->fill(x->m, &some, slot);
  }
  x->m->dev->ops->free(x->m->dev, &rows);
}

static void load_sequence(struct bench *x, int which) {
  struct sequence *s = &x->seqs[which];
  *s = (struct sequence){.p = &x->prompts[which]};
  const struct st_tensor *ids = must_find(x, s->p->name, "ids");
  s->n = s->n_prompt = (int)ids->shape[0];
  assert_true(s->n + GREEDY <= TOKENS_MAX);
  memcpy(s->ids, ids->data, (size_t)s->n * sizeof(int32_t));
  struct range r[PICTURES_MAX];
  int at[PICTURES_MAX], n_rows, n = ranges_of(s->ids, s->n, x->config->image_id, r);
  assert_int_equal(n, n_pictures(s->p));
  int end = lay_out(x, s, r, at);
  s->n_bank_pages = div_up(end, x->page);
  for (int i = 0; i < s->n_bank_pages; i++) s->bank_pages[i] = ++x->n_pages_used;
  for (int i = 0; i < n; i++) {
    fill_bank(x, s, s->p->pictures[i], at[i]);
    bank_of(x, s->p->pictures[i], &n_rows);
    for (int t = r[i].first; t < r[i].end; t++) {
      if (s->lo[t] == s->hi[t]) s->lo[t] = at[i];
      else assert_int_equal(s->hi[t], at[i]); /* what a token sees is one interval */
      s->hi[t] = at[i] + n_rows;
    }
  }
}

struct shape {
  enum isa isa;
  int threads;
  enum dtype kv;
  int page, fill_block;
  bool ref_attention;
};
static const struct shape plain = {ISA_REF, 1, DTYPE_F32, 4, 100, false};

static struct model_plan plan_of(const struct shape *s, int n_cross_tokens) {
  return (struct model_plan){.isa = s->isa,
                             .n_threads = s->threads,
                             .attn = s->ref_attention ? &attn_ref_ops : NULL,
                             .kv_dtype = s->kv,
                             .page_tokens = s->page,
                             .n_pages = {SEQS_MAX * div_up(TOKENS_MAX, s->page), 0, div_up(n_cross_tokens, s->page)},
                             .rows_max = ROWS_MAX,
                             .out_max = ROWS_MAX,
                             .seqs_max = SEQS_MAX,
                             .tokens_max = TOKENS_MAX,
                             .quiet = true};
}

static void batch_new(struct batch *b, const struct shape *s) {
  *b = (struct batch){.rows_max = ROWS_MAX, .seqs_max = SEQS_MAX, .out_max = ROWS_MAX};
  b->pages_max[KV_FULL] = div_up(TOKENS_MAX, s->page), b->pages_max[BATCH_CROSS] = div_up(CROSS_TOKENS, s->page);
  int32_t **rows[] = {&b->token, &b->soft, &b->pos, &b->seq, &b->out};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) *rows[i] = xcalloc(ROWS_MAX, sizeof(int32_t));
  b->q_start = xcalloc(SEQS_MAX + 1, sizeof(int32_t));
  for (int k = 0; k < BATCH_KINDS; k++) {
    b->lo[k] = xcalloc(ROWS_MAX, sizeof(int32_t)), b->hi[k] = xcalloc(ROWS_MAX, sizeof(int32_t));
    b->page[k] = xcalloc(SEQS_MAX * (size_t)b->pages_max[k] + 1, sizeof(int32_t));
  }
  for (int k = 0; k < KV_KINDS; k++) b->slot[k] = xcalloc(ROWS_MAX, sizeof(int64_t));
}
static void batch_free(struct batch *b) {
  int32_t *rows[] = {b->token, b->soft, b->pos, b->seq, b->out, b->q_start};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) free(rows[i]);
  for (int k = 0; k < BATCH_KINDS; k++) free(b->lo[k]), free(b->hi[k]), free(b->page[k]);
  for (int k = 0; k < KV_KINDS; k++) free(b->slot[k]);
}

static void bench_open_model(struct bench *x, const char *path, const char *folder, const struct shape *s) {
  struct err e = {0};
  char text[128];
  memset(x, 0, sizeof *x);
  snprintf(x->folder, sizeof x->folder, "%s", folder);
  snprintf(text, sizeof text, "golden/%s/golden.safetensors", folder);
  if (safetensors_open(&x->golden, test_path(text), &e)) fail_msg("%s", e.msg);
  bool is_long = !strcmp(folder, "media-mllama-long");
  x->prompts = is_long ? long_prompts : short_prompts;
  x->n_prompts = is_long ? (int)ARRAY_LEN(long_prompts) : (int)ARRAY_LEN(short_prompts);
  x->page = s->page, x->fill_block = s->fill_block;
  x->config = xcalloc(1, sizeof *x->config);
  if (!(x->w = weights_open(path, x->config, &e))) fail_msg("%s", e.msg);
  struct model_plan plan = plan_of(s, x->n_prompts * CROSS_TOKENS);
  if (!(x->m = model_open(x->config, x->w, &plan, &e))) fail_msg("%s: %s", folder, e.msg);
  batch_new(&x->b, s);
}
static void bench_open(struct bench *x, const char *folder, const struct shape *s) {
  char text[128];
  snprintf(text, sizeof text, "golden/%s", folder);
  bench_open_model(x, test_path(text), folder, s);
  for (int i = 0; i < x->n_prompts; i++) load_sequence(x, i);
}
static void bench_close(struct bench *x) {
  model_close(x->m);
  weights_close(x->w);
  free(x->config);
  safetensors_close(&x->golden);
  batch_free(&x->b);
}
/* All sequences from their beginning again. */
static void rewind_all(struct bench *x) {
  for (int i = 0; i < x->n_prompts; i++) x->seqs[i].n_done = 0, x->seqs[i].n = x->seqs[i].n_prompt;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------ */

static void begin_step(struct bench *x) {
  struct batch *b = &x->b;
  b->n_rows = b->n_seqs = b->n_out = b->n_cross = 0;
  b->q_start[0] = 0;
}

/* The next n tokens of a sequence, all of whose logits are wanted. */
static void add_tokens(struct bench *x, int which, int n) {
  struct batch *b = &x->b;
  struct sequence *s = &x->seqs[which];
  int each = b->pages_max[KV_FULL];
  assert_true(b->n_rows + n <= ROWS_MAX && s->n_done + n <= s->n);
  memset(b->page[BATCH_CROSS] + b->n_seqs * b->pages_max[BATCH_CROSS], 0, (size_t)b->pages_max[BATCH_CROSS] * sizeof(int32_t));
  for (int i = 0; i < each; i++) b->page[KV_FULL][b->n_seqs * each + i] = 1 + which * each + i;
  for (int i = 0; i < n; i++) {
    int row = b->n_rows++, p = s->n_done + i, seen_by = MIN(p, s->n_prompt - 1);
    b->token[row] = s->ids[p], b->soft[row] = -1, b->pos[row] = p, b->seq[row] = b->n_seqs, b->out[b->n_out++] = row;
    b->lo[KV_FULL][row] = 0, b->hi[KV_FULL][row] = p + 1;
    b->slot[KV_FULL][row] = (int64_t)(1 + which * each + p / x->page) * x->page + p % x->page;
    b->lo[BATCH_CROSS][row] = s->lo[seen_by], b->hi[BATCH_CROSS][row] = s->hi[seen_by];
    b->n_cross += s->lo[seen_by] < s->hi[seen_by];
    for (int j = s->lo[seen_by] / x->page; j < div_up(s->hi[seen_by], x->page); j++)
      b->page[BATCH_CROSS][b->n_seqs * b->pages_max[BATCH_CROSS] + j] = s->bank_pages[j];
  }
  s->n_done += n;
  b->q_start[++b->n_seqs] = b->n_rows;
}

/* Logits of all prompts' tokens, one prompt after the other, in chunks; owned. */
static float *logits_in_chunks(struct bench *x, int chunk, size_t *n_out) {
  float *all = NULL;
  size_t n = 0, vocab = (size_t)x->config->vocab;
  rewind_all(x);
  for (int i = 0; i < x->n_prompts; i++) {
    while (x->seqs[i].n_done < x->seqs[i].n) {
      begin_step(x);
      add_tokens(x, i, MIN(chunk, x->seqs[i].n - x->seqs[i].n_done));
      struct tensor y = model_forward(x->m, &x->b);
      all = xrealloc(all, (n + (size_t)y.rows * vocab) * sizeof *all);
      for (int r = 0; r < y.rows; r++, n += vocab) memcpy(all + n, tensor_row(&y, r), vocab * sizeof *all);
    }
  }
  *n_out = n;
  return all;
}

/* ---- taps ------------------------------------------------------------------------------------------------------------------- */

struct tap_check {
  const struct bench *x;
  const struct sequence *s;
  int first; /* position of row 0 */
  double bound, worst;
  int n_compared, n_passed_through;
  char where[256];
  float before[ROWS_MAX][64]; /* rows of h behind the layer before */
};

static void on_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct tap_check *t = ctx;
  const struct st_tensor *g = NULL;
  size_t at = (size_t)(t->first + row) * (size_t)cols;
  bool is_h = !strcmp(name, "embed") || !strcmp(name, "layer_out");
  if (is_h) {
    size_t bytes = (size_t)cols * sizeof(float);
    assert_true(cols <= 64);
    if (layer >= 0 && t->x->config->layers[layer].kind == LAYER_CROSS && t->s->lo[t->first + row] == t->s->hi[t->first + row]) {
      if (memcmp(t->before[row], x, bytes))
        fail_msg("%s: layer %d changes row %d, which sees nothing", t->s->p->name, layer, t->first + row);
      t->n_passed_through++;
    }
    memcpy(t->before[row], x, bytes);
    if ((g = find(t->x, t->s->p->name, "hidden"))) at += (size_t)(layer + 1) * (size_t)g->shape[1] * (size_t)cols;
  } else if (!strcmp(name, "final_norm")) g = find(t->x, t->s->p->name, "final");
  else if (!strcmp(name, "logits")) g = find(t->x, t->s->p->name, "logits");
  if (!g) return;
  const float *want = g->data;
  double sum = 0;
  size_t n = g->n_bytes / sizeof(float);
  for (size_t i = 0; i < n; i++) sum += (double)want[i] * (double)want[i];
  t->n_compared++;
  for (int c = 0; c < cols; c++) {
    double d = fabs((double)x[c] - (double)want[at + (size_t)c]) / sqrt(sum / (double)n);
    if (!(d <= t->worst)) t->worst = d;
    if (!(d <= t->bound) && !t->where[0])
      snprintf(t->where, sizeof t->where, "%s %s: first tap that differs: %s, layer %d, position %d, column %d: %.9g, expected %.9g",
               t->x->folder, t->s->p->name, name, layer, t->first + row, c, (double)x[c], (double)want[at + (size_t)c]);
  }
}

static double check_taps(struct bench *x, int chunk, double bound, int *n_compared, int *n_passed) {
  static struct tap_check t;
  t = (struct tap_check){.x = x, .bound = bound};
  rewind_all(x);
  x->m->tap = on_tap, x->m->tap_ctx = &t;
  for (int i = 0; i < x->n_prompts; i++) {
    t.s = &x->seqs[i];
    while (x->seqs[i].n_done < x->seqs[i].n) {
      t.first = x->seqs[i].n_done;
      begin_step(x);
      add_tokens(x, i, MIN(chunk, x->seqs[i].n - t.first));
      model_forward(x->m, &x->b);
    }
  }
  x->m->tap = NULL;
  if (t.where[0]) fail_msg("%s", t.where);
  *n_compared = t.n_compared, *n_passed = t.n_passed_through;
  return t.worst;
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static const char *const folders[] = {"media-mllama", "media-mllama-long"};

/* The intervals made above say what the fixtures' own masks say. */
static void masks_of_the_fixtures(void **state) {
  (void)state;
  for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
    static struct bench x;
    int n_checked = 0;
    bench_open(&x, folders[f], &plain);
    for (int i = 0; i < x.n_prompts; i++) {
      const struct sequence *s = &x.seqs[i];
      const struct st_tensor *mask = find(&x, s->p->name, "cross_mask"), *rows = find(&x, s->p->name, "row_mask");
      if (!mask || !rows) continue;
      for (int t = 0; t < s->n; t++) {
        int n_seen = 0, n_rows, n = n_pictures(s->p);
        for (int p = 0; p < n; p++) {
          const uint8_t *tiles = (const uint8_t *)mask->data + ((size_t)t * (size_t)n + (size_t)p) * 4;
          const struct st_tensor *bank = bank_of(&x, s->p->pictures[p], &n_rows);
          for (int j = 0; j < 4; j++) n_seen += tiles[j] * (int)bank->shape[0] / 4;
        }
        assert_int_equal(s->hi[t] - s->lo[t], n_seen);
        assert_int_equal(n_seen > 0, ((const uint8_t *)rows->data)[t]);
        n_checked++;
      }
    }
    assert_true(n_checked > 30);
    bench_close(&x);
  }
}

/* Bounds: float32 arithmetic in another order differs by far less than 2e-4 of the rms; vdpbf16ps rounds activations to 8 bits. */
static void golden_values(void **state) {
  (void)state;
  static const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
    for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
      static struct bench x;
      int n_whole, n_cut, n_passed, n_passed_cut;
      struct shape s = plain;
      s.isa = levels[k], s.threads = 2, s.ref_attention = levels[k] == ISA_REF && f == 0;
      bench_open(&x, folders[f], &s);
      double bound = levels[k] == ISA_AVX512 ? 0.2 : 2e-4;
      double whole = check_taps(&x, TOKENS_MAX, bound, &n_whole, &n_passed), cut = check_taps(&x, 3, bound, &n_cut, &n_passed_cut);
      printf("  %-6s %-18s worst tap %.2g whole, %.2g in chunks of 3; %d rows compared, %d passed by\n", x.m->dev->kern->name, folders[f],
             whole, cut, n_whole, n_passed);
      assert_int_equal(n_whole, n_cut);
      assert_int_equal(n_passed, n_passed_cut);
      assert_true(n_whole >= 2 * 34 && n_passed >= 6);
      bench_close(&x);
    }
  }
}

static void greedy_tokens(void **state) {
  (void)state;
  static const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
    for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
      static struct bench x;
      struct shape s = plain;
      s.isa = levels[k];
      bench_open(&x, folders[f], &s);
      for (int i = 0; i < x.n_prompts; i++) {
        struct sequence *q = &x.seqs[i];
        const int32_t *want = must_find(&x, q->p->name, "greedy")->data;
        for (int n = 0; n < GREEDY; n++) {
          begin_step(&x);
          add_tokens(&x, i, q->n - q->n_done);
          struct tensor y = model_forward(x.m, &x.b);
          const float *row = tensor_row(&y, y.rows - 1);
          int best = 0;
          for (int j = 1; j < y.cols; j++)
            if (row[j] > row[best]) best = j;
          if (best != want[n]) fail_msg("%s %s: token %d is %d, expected %d", folders[f], q->p->name, n, best, want[n]);
          q->ids[q->n++] = best;
        }
      }
      bench_close(&x);
    }
  }
}

/* Chunks, pages, threads, and how banks were filled. */
static void same_bits_by_every_road(void **state) {
  (void)state;
  static const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  static const enum dtype kv[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  static const int pages[] = {1, 2, 16, 64}, chunks[] = {1, 2, 3, 5, TOKENS_MAX}, blocks[] = {1, 7, 64, ENCODER_ROWS};
  uint64_t rand = 5;
  for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
    for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
      static struct bench x;
      struct shape s = {levels[k], 1, kv[k], 4, 100, false};
      size_t n, m;
      bench_open(&x, folders[f], &s);
      float *want = logits_in_chunks(&x, TOKENS_MAX, &n);
      bench_close(&x);
      for (int road = 0; road < 4; road++) {
        s.page = pages[road], s.fill_block = blocks[(road + 1) % 4], s.threads = 1 + road % 3;
        bench_open(&x, folders[f], &s);
        for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
          int chunk = levels[k] == ISA_REF ? chunks[test_rand_int(&rand, 0, 4)] : chunks[c];
          float *got = logits_in_chunks(&x, chunk, &m);
          assert_int_equal(n, m);
          if (memcmp(want, got, n * sizeof *got))
            fail_msg("%s, %s: page %d, %d rows of a bank at once, %d threads, chunks of %d change the bits", folders[f],
                     x.m->dev->kern->name, s.page, s.fill_block, s.threads, chunk);
          free(got);
          if (levels[k] == ISA_REF) break;
        }
        bench_close(&x);
      }
      free(want);
    }
  }
}

/* Requests with and without pictures in one step, in any order and cut anywhere, are what they are alone. */
static void mixed_batches_are_the_single_ones(void **state) {
  (void)state;
  uint64_t rand = 6;
  for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
    static struct bench x;
    struct shape s = {ISA_AUTO, 2, DTYPE_BF16, 16, 100, false};
    size_t n, vocab, at[SEQS_MAX], sum = 0;
    bench_open(&x, folders[f], &s);
    vocab = (size_t)x.config->vocab;
    float *want = logits_in_chunks(&x, TOKENS_MAX, &n);
    for (int i = 0; i < x.n_prompts; i++) at[i] = sum, sum += (size_t)x.seqs[i].n * vocab;
    for (int pass = 0; pass < 30; pass++) {
      rewind_all(&x);
      for (int left = 1; left > 0;) {
        int order[SEQS_MAX], first[SEQS_MAX], start = test_rand_int(&rand, 0, x.n_prompts - 1), n_order = 0;
        begin_step(&x);
        left = 0;
        for (int j = 0; j < x.n_prompts; j++) {
          int i = pass % 2 ? (start + j) % x.n_prompts : (start + x.n_prompts - j) % x.n_prompts, rest = x.seqs[i].n - x.seqs[i].n_done;
          if (rest == 0 || test_rand_int(&rand, 0, 3) == 0) continue;
          first[n_order] = x.seqs[i].n_done, order[n_order++] = i;
          add_tokens(&x, i, pass == 0 ? rest : test_rand_int(&rand, 1, rest));
        }
        for (int i = 0; i < x.n_prompts; i++) left += x.seqs[i].n - x.seqs[i].n_done;
        if (n_order == 0) continue;
        struct tensor y = model_forward(x.m, &x.b);
        for (int j = 0; j < n_order; j++) {
          for (int r = x.b.q_start[j]; r < x.b.q_start[j + 1]; r++) {
            size_t place = at[order[j]] + (size_t)(first[j] + r - x.b.q_start[j]) * vocab;
            if (memcmp(tensor_row(&y, r), want + place, vocab * sizeof(float)))
              fail_msg("%s %s: in company, position %d differs", folders[f], x.seqs[order[j]].p->name, first[j] + r - x.b.q_start[j]);
          }
        }
      }
    }
    free(want);
    bench_close(&x);
  }
}

/* The last layer serves only the wanted rows; nobody's logits wanted is fine, too. */
static void wanted_rows(void **state) {
  (void)state;
  static struct bench x;
  struct shape s = {ISA_AUTO, 1, DTYPE_BF16, 16, 100, false};
  size_t n, at = 0, vocab;
  bench_open(&x, "media-mllama", &s);
  vocab = (size_t)x.config->vocab;
  float *want = logits_in_chunks(&x, TOKENS_MAX, &n);
  rewind_all(&x);
  for (int i = 0; i < x.n_prompts; i++) {
    begin_step(&x);
    add_tokens(&x, i, x.seqs[i].n);
    for (int r = 0; r < x.b.n_rows; r++, at += vocab) {
      x.b.out[0] = r, x.b.n_out = 1;
      struct tensor y = model_forward(x.m, &x.b);
      assert_memory_equal(tensor_row(&y, 0), want + at, vocab * sizeof(float));
    }
    x.b.n_out = 0;
    assert_int_equal(model_forward(x.m, &x.b).rows, 0);
  }
  free(want);
  bench_close(&x);
}

/* The checkpoint without its cross-attention layers, in a folder of its own. */
static const char *write_without_cross(const char *folder) {
  struct err e = {0};
  struct safetensors s;
  char text[128], path[512], *names[512];
  static struct st_write t[512];
  int n = 0, cross[2] = {1, 4};
  snprintf(text, sizeof text, "golden/%s", folder);
  if (safetensors_open(&s, test_path(text), &e)) fail_msg("%s", e.msg);
  for (size_t i = 0; i < s.n_tensors; i++) {
    const struct st_tensor *x = &s.tensors[i];
    int layer;
    char rest[128], name[256];
    snprintf(name, sizeof name, "%s", x->name);
    if (sscanf(x->name, "language_model.model.layers.%d.%127s", &layer, rest) == 2) {
      if (layer == cross[0] || layer == cross[1]) continue;
      snprintf(name, sizeof name, "language_model.model.layers.%d.%s", layer - (layer > cross[0]) - (layer > cross[1]), rest);
    }
    assert_true(n < 512);
    names[n] = xstrdup(name);
    t[n] = (struct st_write){.name = names[n], .dtype = x->dtype, .n_dims = x->n_dims, .data = x->data};
    memcpy(t[n++].shape, x->shape, sizeof t->shape);
  }
  snprintf(path, sizeof path, "%s/model.safetensors", test_tmpdir());
  if (safetensors_write(path, t, n, &e)) fail_msg("%s", e.msg);
  size_t n_bytes;
  snprintf(text, sizeof text, "golden/%s/config.json", folder);
  char *config = test_read(test_path(text), &n_bytes), *list = strstr(config, "\"cross_attention_layers\""), *layers;
  assert_non_null(list);
  memset(strchr(list, '[') + 1, ' ', (size_t)(strchr(list, ']') - strchr(list, '[') - 1));
  layers = strstr(config, "\"num_hidden_layers\": 7");
  assert_non_null(layers);
  layers[strlen("\"num_hidden_layers\": ")] = '5';
  test_write("config.json", config, n_bytes);
  free(config);
  for (int i = 0; i < n; i++) free(names[i]);
  safetensors_close(&s);
  return test_tmpdir();
}

static void text_alone_is_the_model_without_cross_layers(void **state) {
  (void)state;
  static struct bench x, y;
  struct shape s = {ISA_AUTO, 1, DTYPE_BF16, 16, 100, false};
  bench_open(&x, "media-mllama", &s);
  bench_open_model(&y, write_without_cross("media-mllama"), "media-mllama", &s);
  assert_int_equal(y.config->n_layers, 5);
  for (int i = 0; i < x.n_prompts; i++) { /* whatever the prompt: the picture's token has an embedding like others */
    y.seqs[i] = x.seqs[i];
    memset(x.seqs[i].hi, 0, sizeof x.seqs[i].hi), memset(x.seqs[i].lo, 0, sizeof x.seqs[i].lo);
    memset(y.seqs[i].hi, 0, sizeof y.seqs[i].hi), memset(y.seqs[i].lo, 0, sizeof y.seqs[i].lo);
  }
  size_t n, m;
  float *a = logits_in_chunks(&x, 5, &n), *b = logits_in_chunks(&y, 5, &m);
  assert_int_equal(n, m);
  assert_memory_equal(a, b, n * sizeof *a);
  free(a);
  free(b);
  bench_close(&x);
  bench_close(&y);
}

/* The text of media-mllama as a GGUF: rows of q and k in pairs, Llama 3's scaling as divisors. Path in a ring of test_write's. */
static const char *write_gguf(const struct bench *x, const char *name, float first_divisor, bool has_divisors) {
  const struct model_config *c = x->config;
  const struct layer_config *y = &c->layers[0];
  struct gguf_maker m;
  size_t n_bytes;
  gguf_maker_init(&m);
  gguf_maker_str(&m, "general.architecture", "mllama");
  gguf_maker_u32(&m, "mllama.block_count", (uint32_t)c->n_layers);
  gguf_maker_u32(&m, "mllama.embedding_length", (uint32_t)c->hidden);
  gguf_maker_u32(&m, "mllama.context_length", (uint32_t)c->ctx_tokens);
  gguf_maker_u32(&m, "mllama.feed_forward_length", (uint32_t)y->ffn);
  gguf_maker_u32(&m, "mllama.attention.head_count", (uint32_t)y->n_q);
  gguf_maker_u32(&m, "mllama.attention.head_count_kv", (uint32_t)y->n_kv);
  gguf_maker_f32(&m, "mllama.attention.layer_norm_rms_epsilon", c->norm_eps);
  gguf_maker_f32(&m, "mllama.rope.freq_base", (float)c->rope_full.theta);
  gguf_maker_array(&m, "mllama.attention.cross_attention_layers", GM_I32, (const int32_t[]){1, 4}, 2, sizeof(int32_t));
  if (has_divisors) {
    float divisors[64];
    const struct rope_bands *b = &c->rope_bands;
    int half = y->head_dim / 2;
    for (int i = 0; i < half; i++) { /* mllama 4.2 */
      double wave = 2 * 3.14159265358979323846 * pow(c->rope_full.theta, (double)i / half),
             s = (b->tokens / wave - b->low) / (b->high - b->low);
      divisors[i] = (float)(wave < b->tokens / b->high ? 1 : wave > b->tokens / b->low ? b->factor : 1 / ((1 - s) / b->factor + s));
    }
    divisors[0] *= first_divisor;
    gguf_maker_tensor(&m, "rope_freqs.weight", GM_F32, 1, (const uint64_t[]){(uint64_t)half}, divisors, (size_t)half * sizeof(float));
  }
  for (size_t i = 0; i < weights_count(x->w); i++) {
    struct weight_entry f = weights_at(x->w, i);
    struct weight_view v;
    struct err e = {0};
    bool matrix = f.n_dims == 2;
    if (!f.gguf_name || !strncmp(f.gguf_name, "v.", 2) || !strncmp(f.gguf_name, "mm.", 3)) continue;
    if (weights_get(x->w, f.gguf_name, matrix ? f.shape[0] : 0, f.shape[matrix], &v, &e)) fail_msg("%s", e.msg);
    size_t size = (size_t)v.rows * v.row_bytes;
    char *data = xmalloc(size);
    memcpy(data, v.data, size);
    bool pairs = str_ends(str_c(f.gguf_name), ".attn_q.weight") || str_ends(str_c(f.gguf_name), ".attn_k.weight");
    for (int r = 0, d = y->head_dim; pairs && r < v.rows; r++) { /* row i of either half of a head becomes row 2i or 2i + 1 */
      int head = r / d, at = r % d, to = head * d + 2 * (at % (d / 2)) + at / (d / 2);
      memcpy(data + (size_t)to * v.row_bytes, (const char *)v.data + (size_t)r * v.row_bytes, v.row_bytes);
    }
    assert_int_equal(v.dtype, DTYPE_BF16);
    const uint64_t ne[] = {(uint64_t)v.cols, (uint64_t)v.rows};
    gguf_maker_tensor(&m, f.gguf_name, GM_BF16, matrix ? 2 : 1, ne, data, size);
    free(data);
  }
  unsigned char *file = gguf_maker_finish(&m, &n_bytes);
  const char *path = test_write(name, file, n_bytes);
  free(file);
  return path;
}

static void a_gguf_is_the_same_model(void **state) {
  (void)state;
  static const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
    static struct bench x, y;
    struct shape s = plain;
    size_t n, m;
    double max, l2;
    s.isa = levels[k];
    bench_open(&x, "media-mllama", &s);
    float *want = logits_in_chunks(&x, 5, &n);
    for (int with = 0; with < 2; with++) {
      bench_open_model(&y, write_gguf(&x, "text.gguf", 1, with), "media-mllama", &s);
      assert_int_equal(y.config->vocab, x.config->vocab);
      y.config->image_id = x.config->image_id; /* by name from a vocabulary, which this file has none of */
      for (int i = 0; i < y.n_prompts; i++) load_sequence(&y, i);
      float *got = logits_in_chunks(&y, 5, &m);
      assert_int_equal(n, m);
      test_compare(got, want, n, &max, &l2);
      printf("  %s, %s divisors: logits rel-max %.2g rel-L2 %.2g\n", y.m->dev->kern->name, with ? "with" : "without", max, l2);
      if (with) assert_true(max < 2e-5);
      else assert_true(max > 1e-2); /* the configuration's tokens are not what is meant when nothing is said */
      free(got);
      bench_close(&y);
    }
    free(want);
    struct err e = {0};
    struct model_config *c = xcalloc(1, sizeof *c);
    struct weights *w = weights_open(write_gguf(&x, "bad.gguf", 0, true), c, &e);
    assert_non_null(w);
    struct model_plan plan = plan_of(&s, 100);
    assert_null(model_open(c, w, &plan, &e));
    assert_non_null(strstr(e.msg, "rope_freqs.weight"));
    weights_close(w);
    free(c);
    bench_close(&x);
  }
}

/* Neither vision weights nor pages for banks. */
static void a_plan_without_banks(void **state) {
  (void)state;
  struct err e = {0};
  static struct bench x;
  bench_open(&x, "media-mllama", &plain);
  struct model_plan plan = plan_of(&plain, 0);
  struct model *m = model_open(x.config, x.w, &plan, &e);
  if (!m) fail_msg("%s", e.msg);
  begin_step(&x);
  add_tokens(&x, 0, x.seqs[0].n);
  assert_int_equal(x.b.n_cross, 0);
  struct tensor want = model_forward(x.m, &x.b), got = model_forward(m, &x.b);
  for (int r = 0; r < got.rows; r++) assert_memory_equal(tensor_row(&want, r), tensor_row(&got, r), (size_t)got.cols * sizeof(float));
  assert_true(m->kv_bytes < x.m->kv_bytes);
  model_close(m);
  bench_close(&x);
}

/* What was counted for reports: products of one row, bytes of a step, and scratch as taken. */
static void counts(void **state) {
  (void)state;
  static struct bench x;
  bench_open(&x, "media-mllama", &plain);
  const struct model_config *c = x.config;
  int64_t row = 0, h = c->hidden;
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    int64_t kv = y->kind == LAYER_CROSS ? 0 : 2 * y->n_kv * y->head_dim; /* a bank's are made once */
    row += h * (2 * y->n_q * y->head_dim + kv + 3 * y->ffn);
  }
  assert_int_equal(x.m->products_per_row.all, row);
  assert_int_equal(x.m->products_per_out.all, h * c->vocab);
  assert_int_equal(x.m->decode_bytes, 2 * (size_t)(row + h * c->vocab)); /* bf16, computed from where it lies */
  bench_close(&x);
}

/* Matrices quantised while they are packed: near the model, and not the model. */
static void quantised_at_load(void **state) {
  (void)state;
  static const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
    static struct bench x;
    struct err e = {0};
    struct shape s = plain;
    size_t n, m;
    double max, l2;
    s.isa = levels[k];
    bench_open(&x, "media-mllama-long", &s);
    float *want = logits_in_chunks(&x, 5, &n);
    struct model_plan plan = plan_of(&s, x.n_prompts * CROSS_TOKENS);
    plan.quant = DTYPE_Q8_0;
    model_close(x.m);
    if (!(x.m = model_open(x.config, x.w, &plan, &e))) fail_msg("%s", e.msg);
    x.n_pages_used = 0;
    for (int i = 0; i < x.n_prompts; i++) load_sequence(&x, i);
    float *got = logits_in_chunks(&x, 5, &m);
    assert_int_equal(n, m);
    test_compare(got, want, n, &max, &l2);
    printf("  %s, Q8_0: logits rel-max %.2g rel-L2 %.2g\n", x.m->dev->kern->name, max, l2);
    assert_true(l2 > 1e-3 && l2 < 0.06);
    free(want);
    free(got);
    bench_close(&x);
  }
}

static void a_wrong_shape_is_named(void **state) {
  (void)state;
  struct err e = {0};
  struct model_config *c = xcalloc(1, sizeof *c);
  struct weights *w = weights_open(test_path("golden/media-mllama"), c, &e);
  assert_non_null(w);
  struct model_plan plan = plan_of(&plain, 100);
  c->layers[4].n_kv = 1; /* a cross layer */
  assert_null(model_open(c, w, &plan, &e));
  if (!strstr(e.msg, "expected [12, 48]") || !strstr(e.msg, "[24, 48]")) fail_msg("%s", e.msg);
  weights_close(w);
  free(c);
}

static void short_memory(void **state) {
  (void)state;
  for (int64_t nth = 1;; nth++) {
    struct err e = {0};
    struct model_config *c = xcalloc(1, sizeof *c);
    struct weights *w = weights_open(test_path("golden/media-mllama"), c, &e);
    assert_non_null(w);
    struct model_plan plan = plan_of(&plain, 100);
    plan.isa = ISA_AUTO, plan.soft_rows = 7;
    mem_fail_after(nth);
    struct model *m = model_open(c, w, &plan, &e);
    bool fired = !mem_fail_pending();
    mem_fail_after(0);
    if (m) assert_false(fired);
    else assert_int_equal(e.code, ERR_NO_MEMORY);
    model_close(m);
    weights_close(w);
    free(c);
    if (fired) continue;
    assert_true(nth > 10);
    break;
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranges_of_pictures),
    cmocka_unit_test(masks_of_the_fixtures),
    cmocka_unit_test(golden_values),
    cmocka_unit_test(greedy_tokens),
    cmocka_unit_test(same_bits_by_every_road),
    cmocka_unit_test(mixed_batches_are_the_single_ones),
    cmocka_unit_test(wanted_rows),
    cmocka_unit_test(text_alone_is_the_model_without_cross_layers),
    cmocka_unit_test(a_gguf_is_the_same_model),
    cmocka_unit_test(a_plan_without_banks),
    cmocka_unit_test(counts),
    cmocka_unit_test(quantised_at_load),
    cmocka_unit_test(a_wrong_shape_is_named),
    cmocka_unit_test(short_memory),
};
TEST_MAIN(tests)
