/* t_drafter.c — drafters of random weights for the tiny models, against a float64 program of the same step and by every other road.
 *
 * The program takes the target's keys, values and hidden rows as the taps show them; everything else it computes by loops.
 */
#include "test.h"

#include <stdlib.h>

#include "compute/gemm_quant.h"
#include "models/drafter.h"
#include "models/drafter_maker.h"
#include "models/golden.h"

static const struct drafter_shape four = {"sssf", 16, 24, 4, 20, 3, 0}, wide = {"sfsf", 32, 40, 8, 0, 0, 0};
enum { LAYERS_MAX = 12, ROUND_STEPS = 4 };

/* ---- a target with its drafter ------------------------------------------------------------------------------------------------ */

struct stage {
  struct model_config config, drafter_config;
  struct weights *w, *drafter_w;
  struct model *m;
  struct drafter *d;
  struct drafter_maker maker;
  int n_seqs, n[SEQS_MAX]; /* computed tokens */
  int32_t *ids[SEQS_MAX];
  struct batch batch;                                        /* being computed */
  double *k[LAYERS_MAX][SEQS_MAX], *v[LAYERS_MAX][SEQS_MAX]; /* [position, n_kv * d] */
  double *hidden[SEQS_MAX];                                  /* [position, width] */
};

enum file { FOLDER, GGUF, GGUF_CLUSTERS };

static void open_drafter(struct stage *s, const struct model_plan *plan, const char *path) {
  struct err e = {0};
  struct model_plan with = *plan;
  s->drafter_w = weights_open_drafter(path, &s->drafter_config, &e);
  if (!s->drafter_w || drafter_check(&s->drafter_config, &s->config, &e)) fail_msg("%s: %s", path, e.msg);
  with.drafter = &s->drafter_config;
  s->m = model_open(&s->config, s->w, &with, &e);
  if (!s->m) fail_msg("%s", e.msg);
  s->d = drafter_open(&s->drafter_config, s->drafter_w, s->m, SEQS_MAX, &e);
  if (!s->d) fail_msg("%s: %s", path, e.msg);
}

static struct stage *stage_open(const char *target, const struct drafter_shape *shape, enum file file, const struct model_plan *plan,
                                uint64_t seed) {
  struct stage *s = xcalloc(1, sizeof *s);
  struct err e = {0};
  char path[256];
  snprintf(path, sizeof path, "golden/%s", target);
  s->w = weights_open(test_path(path), &s->config, &e);
  if (!s->w) fail_msg("%s", e.msg);
  maker_init(&s->maker, &s->config, shape, seed);
  open_drafter(s, plan,
               file == FOLDER ? maker_write_folder(&s->maker, "drafter", NULL, NULL)
                              : maker_write_gguf(&s->maker, "drafter.gguf", file == GGUF_CLUSTERS));
  return s;
}
static void stage_close(struct stage *s) {
  drafter_close(s->d);
  model_close(s->m);
  weights_close(s->drafter_w);
  weights_close(s->w);
  maker_free(&s->maker);
  for (int i = 0; i < SEQS_MAX; i++) {
    free(s->ids[i]);
    free(s->hidden[i]);
    for (int l = 0; l < LAYERS_MAX; l++) free(s->k[l][i]), free(s->v[l][i]);
  }
  free(s);
}

static void keep_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct stage *s = ctx;
  double **to = !strcmp(name, "k") ? s->k[layer] : !strcmp(name, "v") ? s->v[layer] : !strcmp(name, "final_norm") ? s->hidden : NULL;
  if (!to) return;
  int seq = s->batch.seq[row], pos = s->batch.pos[row];
  if (!to[seq]) to[seq] = xcalloc((size_t)(PAGES_EACH * PAGE * cols), sizeof **to);
  for (int i = 0; i < cols; i++) to[seq][pos * cols + i] = (double)x[i];
}

/* Sequences of these lengths; the last row's hidden state of sequence i is kept in slot_of(i). */
static int slot_of(int i) { return (i + 3) % SEQS_MAX; }
static void compute(struct stage *s, int n_seqs, const int *lengths, uint64_t *rand) {
  struct piece pieces[SEQS_MAX] = {0};
  s->n_seqs = n_seqs;
  for (int i = 0; i < n_seqs; i++) {
    s->n[i] = lengths[i];
    free(s->ids[i]);
    s->ids[i] = xcalloc((size_t)lengths[i] + 1, sizeof **s->ids); /* and the newest token */
    for (int j = 0; j <= lengths[i]; j++) s->ids[i][j] = test_rand_int(rand, 0, s->config.vocab - 1);
    pieces[i] = (struct piece){s->ids[i], 0, lengths[i], i};
  }
  hand_batch_of(&s->batch, s->m, pieces, n_seqs);
  s->m->tap = keep_tap;
  s->m->tap_ctx = s;
  model_forward(s->m, &s->batch);
  s->m->tap = NULL;
  for (int i = 0; i < n_seqs; i++) s->batch.out[i] = s->batch.q_start[i + 1] - 1;
  s->batch.n_out = n_seqs; /* the rest stays behind half-way */
  model_forward(s->m, &s->batch);
  for (int i = 0; i < n_seqs; i++) drafter_keep(s->d, slot_of(i), i);
  hand_batch_free(&s->batch);
}

struct round {
  struct batch b;
  int32_t slots[SEQS_MAX];
};
static void round_begin(struct stage *s, struct round *x) {
  struct piece pieces[SEQS_MAX];
  for (int i = 0; i < s->n_seqs; i++) {
    pieces[i] = (struct piece){s->ids[i], s->n[i], 1, i};
    x->slots[i] = slot_of(i);
  }
  hand_batch_of(&x->b, s->m, pieces, s->n_seqs);
  x->b.n_out = 0;
  for (int i = 0; i < s->n_seqs; i++)
    for (int k = 0; k < KV_KINDS; k++) {
      x->b.hi[k][i] = s->n[i];
      x->b.slot[k][i] = 0;
    }
  drafter_begin(s->d, &x->b, x->slots);
}

/* ---- the float64 program ------------------------------------------------------------------------------------------------------ */

struct bent { /* what one could get wrong */
  int lo, hi, pos;
};

static void times(double *y, const struct made_tensor *w, const double *x) {
  for (int64_t r = 0; r < w->shape[0]; r++) {
    y[r] = 0;
    for (int64_t c = 0; c < w->shape[1]; c++) y[r] += (double)w->data[r * w->shape[1] + c] * x[c];
  }
}
static void norm(double *x, const struct made_tensor *w) {
  double sum = 0;
  int64_t n = w->shape[0];
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  for (int64_t i = 0; i < n; i++) x[i] = x[i] / sqrt(sum / (double)n + 1e-6) * (double)w->data[i];
}
static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static struct made_tensor *of_layer(struct stage *s, int l, const char *name) {
  char full[64];
  snprintf(full, sizeof full, "blk.%d.%s.weight", l, name);
  return maker_find(&s->maker, full);
}

static void twin_attention(struct stage *s, int l, int seq, const double *x, struct bent bent, double *out) {
  struct drafter_maker *m = &s->maker;
  bool sliding = m->s.kinds[l] == 's';
  int d = m->head_dim[sliding], n_kv = m->n_kv[sliding], donor = s->config.n_layers, p = s->n[seq], n_q = m->s.n_q;
  int lo = MAX(0, (sliding ? p + 1 - m->window : 0) + bent.lo), hi = p + bent.hi, turned = sliding ? d / 2 : d / 8;
  do donor--;
  while (s->config.layers[donor].kv_donor != donor || (s->config.layers[donor].kind == LAYER_SLIDING) != sliding);
  double q[1024], a[1024] = {0}, score[PAGES_EACH * PAGE];
  times(q, of_layer(s, l, "attn_q"), x);
  for (int i = 0; i < n_q; i++) {
    double *h = q + i * d, top = -INFINITY, sum = 0;
    norm(h, of_layer(s, l, "attn_q_norm"));
    for (int j = 0; j < turned; j++) {
      double angle = (p + bent.pos) * pow(sliding ? 1e4 : 1e6, -2.0 * j / d), u = h[j], v = h[j + d / 2];
      h[j] = u * cos(angle) - v * sin(angle);
      h[j + d / 2] = v * cos(angle) + u * sin(angle);
    }
    const double *k = s->k[donor][seq] + i / (n_q / n_kv) * d, *v = s->v[donor][seq] + i / (n_q / n_kv) * d;
    for (int j = lo; j < hi; j++) {
      score[j] = 0;
      for (int c = 0; c < d; c++) score[j] += h[c] * k[j * n_kv * d + c];
      top = MAX(top, score[j]);
    }
    for (int j = lo; j < hi; j++) sum += score[j] = exp(score[j] - top);
    for (int j = lo; j < hi; j++)
      for (int c = 0; c < d; c++) a[i * d + c] += score[j] / sum * v[j * n_kv * d + c];
  }
  times(out, of_layer(s, l, "attn_output"), a);
}

/* y [width] is the row to go on from, g [hidden] what the head sees. */
static void twin_step(struct stage *s, int seq, int32_t token, const double *y, struct bent bent, double *g, double *logits) {
  struct drafter_maker *m = &s->maker;
  int n = m->s.hidden, width = m->width, ffn = m->s.ffn;
  float row[256];
  double pair[512], x[64], f[64], a[64], b[64];
  gemm_quant_row(s->m->embed, token, row);
  for (int i = 0; i < width; i++) pair[i] = (double)row[i] * sqrt(width), pair[width + i] = y[i];
  times(g, maker_find(m, "nextn.pre_projection.weight"), pair);
  for (int l = 0; l < m->n_layers; l++) {
    memcpy(x, g, (size_t)n * sizeof *x);
    norm(x, of_layer(s, l, "attn_norm"));
    twin_attention(s, l, seq, x, bent, f);
    norm(f, of_layer(s, l, "post_attention_norm"));
    for (int i = 0; i < n; i++) x[i] = g[i] += f[i];
    norm(x, of_layer(s, l, "ffn_norm"));
    times(a, of_layer(s, l, "ffn_gate"), x);
    times(b, of_layer(s, l, "ffn_up"), x);
    for (int i = 0; i < ffn; i++) a[i] = gelu(a[i]) * b[i];
    times(f, of_layer(s, l, "ffn_down"), a);
    norm(f, of_layer(s, l, "post_ffw_norm"));
    for (int i = 0; i < n; i++) g[i] = (g[i] + f[i]) * (double)of_layer(s, l, "layer_output_scale")->data[0];
  }
  norm(g, maker_find(m, "output_norm.weight"));
  times(logits, maker_find(m, "token_embd.weight"), g);
}

/* Tokens of the best clusters of g. */
static void twin_candidates(struct stage *s, const double *g, bool *is_candidate) {
  struct drafter_maker *m = &s->maker;
  double scores[64];
  int each = m->vocab / m->s.n_centroids;
  times(scores, maker_find(m, "masked_embd_centroids.weight"), g);
  memset(is_candidate, 0, (size_t)m->vocab * sizeof *is_candidate);
  for (int i = 0; i < m->s.n_used; i++) {
    int best = 0;
    for (int c = 1; c < m->s.n_centroids; c++)
      if (scores[c] > scores[best]) best = c;
    scores[best] = -INFINITY;
    for (int j = 0; j < each; j++) is_candidate[m->order[best * each + j]] = true;
  }
}

static double rms(const double *x, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += x[i] * x[i];
  return sqrt(sum / n);
}

/* One round of ROUND_STEPS steps with fewer and fewer rows; the greatest difference of logits over their rms, or with clusters of the best candidate's
 * and the guess's. */
static double check_round(struct stage *s, bool clusters, struct bent bent) {
  struct round x;
  double y[SEQS_MAX][256], g[64], logits[512], worst = 0;
  int32_t token[SEQS_MAX], guesses[SEQS_MAX];
  bool is_candidate[512];
  round_begin(s, &x);
  for (int i = 0; i < s->n_seqs; i++) {
    memcpy(y[i], s->hidden[i] + (s->n[i] - 1) * s->maker.width, (size_t)s->maker.width * sizeof **y);
    token[i] = s->ids[i][s->n[i]];
  }
  for (int step = 0, rows = s->n_seqs; step < ROUND_STEPS; step++, rows = MAX(1, rows - step)) {
    drafter_step(s->d, rows, guesses);
    for (int i = 0; i < rows; i++) {
      twin_step(s, i, token[i], y[i], bent, g, logits);
      double size = rms(logits, s->maker.vocab), best = -INFINITY;
      int32_t guess = guesses[i];
      assert_in_range(guess, 0, s->maker.vocab - 1);
      if (clusters) twin_candidates(s, g, is_candidate);
      for (int t = 0; t < s->maker.vocab; t++) {
        if (!clusters) worst = MAX(worst, fabs((double)tensor_row(&s->m->logits, i)[t] - logits[t]) / size);
        if (!clusters || is_candidate[t]) best = MAX(best, logits[t]);
      }
      worst = MAX(worst, (best - logits[guess]) / size);
      if (clusters && bent.lo == 0 && bent.hi == 0 && bent.pos == 0) assert_true(is_candidate[guess]);
      times(y[i], maker_find(&s->maker, "nextn.post_projection.weight"), g);
      token[i] = guess;
    }
  }
  hand_batch_free(&x.b);
  return worst;
}

static const struct target {
  const char *folder;
  const struct drafter_shape *shape;
} targets[] = {{"gemma4-e-tiny", &four},
               {"gemma4-e-tiny", &wide},
               {"gemma4-dense-tiny", &four},
               {"gemma4-moe-tiny", &four},
               {"gemma4-12b-tiny", &wide}};

/* Lengths around the window of 9 to 12, pages of 4, and whatever else. */
static const int lengths[][SEQS_MAX] = {{1, 2, 3, 4, 5, 8}, {7, 8, 9, 10, 11, 12}, {30, 13, 1, 20, 33, 16}, {14, 15, 16, 17, 60, 25}};

static void test_steps(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t i = 0; i < ARRAY_LEN(targets); i++)
    for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
      if (!kern_available(levels[k])) continue;
      double worst[2] = {0};
      int n_files = targets[i].shape->n_centroids ? 2 : 1; /* a GGUF without clusters, a folder with them */
      for (int file = 0; file < n_files; file++) {
        struct model_plan plan = fixture_plan(levels[k], 1 + (int)k, DTYPE_F32);
        struct stage *s = stage_open(targets[i].folder, targets[i].shape, file ? FOLDER : GGUF, &plan, 7 + i);
        uint64_t rand = 5 + i;
        for (size_t j = 0; j < ARRAY_LEN(lengths); j++) {
          compute(s, SEQS_MAX, lengths[j], &rand);
          worst[file] = MAX(worst[file], check_round(s, file == 1, (struct bent){0}));
        }
        compute(s, 1, (int[]){29}, &rand);
        worst[file] = MAX(worst[file], check_round(s, file == 1, (struct bent){0}));
        stage_close(s);
      }
      printf("  %s %s, %d wide: logits %.2g, best candidates %.2g\n", k ? "avx2" : "ref", targets[i].folder, targets[i].shape->hidden,
             worst[0], worst[1]);
      assert_true(worst[0] <= 2e-4 && worst[1] <= 2e-4);
    }
}

/* The comparison sees each of the mistakes that one could make. */
static void test_edges_matter(void **state) {
  (void)state;
  const struct bent bends[] = {{1, 0, 0}, {-1, 0, 0}, {0, -1, 0}, {0, 0, 1}, {0, 0, -1}};
  struct model_plan plan = fixture_plan(ISA_REF, 1, DTYPE_F32);
  struct stage *s = stage_open("gemma4-e-tiny", &four, GGUF, &plan, 3);
  uint64_t rand = 9;
  compute(s, 2, (int[]){30, 21}, &rand);
  for (size_t i = 0; i < ARRAY_LEN(bends); i++) assert_true(check_round(s, false, bends[i]) > 1e-3);
  assert_true(check_round(s, false, (struct bent){0}) < 2e-4);
  stage_close(s);
}

/* ---- by other roads ------------------------------------------------------------------------------------------------------------- */

static void run_round(struct stage *s, int n_steps, int32_t *guesses) {
  struct round x;
  round_begin(s, &x);
  for (int i = 0; i < n_steps; i++) drafter_step(s->d, s->n_seqs, guesses + i * s->n_seqs);
  hand_batch_free(&x.b);
}

/* A row's guesses are the same alone and beside others, with more threads, from either kind of file, from all clusters and from the whole table. */
static void test_roads(void **state) {
  (void)state;
  const struct drafter_shape all = {"sssf", 16, 24, 4, 20, 20, 0};
  enum { N = 6 };
  const struct {
    enum file file;
    int threads;
    bool together;
  } roads[] = {{FOLDER, 1, true}, {GGUF, 1, true}, {GGUF_CLUSTERS, 1, true}, {FOLDER, 2, true}, {GGUF, 2, false}, {FOLDER, 1, false}};
  const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    int32_t first[N * SEQS_MAX];
    if (!kern_available(levels[k])) continue;
    for (size_t i = 0; i < ARRAY_LEN(roads); i++) {
      struct model_plan plan = fixture_plan(levels[k], roads[i].threads, DTYPE_BF16);
      struct stage *s = stage_open("gemma4-e-tiny", &all, roads[i].file, &plan, 21);
      int32_t guesses[N * SEQS_MAX];
      uint64_t rand = 12;
      compute(s, SEQS_MAX, lengths[2], &rand);
      if (roads[i].together) {
        run_round(s, N, guesses);
      } else {
        for (int q = 0; q < SEQS_MAX; q++) { /* one sequence at a time */
          int32_t own[N], slot = slot_of(q);
          struct batch b;
          hand_batch_of(&b, s->m, &(struct piece){s->ids[q], s->n[q], 1, q}, 1);
          for (int kind = 0; kind < KV_KINDS; kind++) b.hi[kind][0] = s->n[q], b.slot[kind][0] = 0;
          drafter_begin(s->d, &b, &slot);
          for (int j = 0; j < N; j++) drafter_step(s->d, 1, &own[j]), guesses[j * SEQS_MAX + q] = own[j];
          hand_batch_free(&b);
        }
      }
      if (i == 0) memcpy(first, guesses, sizeof first);
      assert_memory_equal(first, guesses, sizeof first);
      stage_close(s);
    }
  }
}

/* The target computes the same whether somebody guesses in between or not. */
static void test_leaves_target_alone(void **state) {
  (void)state;
  const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  for (size_t k = 0; k < ARRAY_LEN(types); k++) {
    struct model_plan plan = fixture_plan(ISA_AUTO, 2, types[k]);
    struct stage *s = stage_open("gemma4-e-tiny", &four, FOLDER, &plan, 4);
    float want[6][300];
    for (int guessing = 0; guessing < 2; guessing++) {
      uint64_t rand = 31;
      int32_t guesses[ROUND_STEPS * SEQS_MAX];
      compute(s, 3, (int[]){17, 5, 40}, &rand);
      for (int i = 0; i < 6; i++) { /* one token after another of sequence 0 */
        int32_t ids[40];
        struct batch b;
        for (int j = 0; j < 40; j++) ids[j] = j < 17 ? s->ids[0][j] : 3 * j;
        if (guessing) run_round(s, ROUND_STEPS, guesses);
        hand_batch(&b, s->m, ids, 17 + i, 1);
        struct tensor logits = model_forward(s->m, &b);
        hand_batch_free(&b);
        if (guessing) assert_memory_equal(want[i], tensor_row(&logits, 0), sizeof want[i]);
        else memcpy(want[i], tensor_row(&logits, 0), sizeof want[i]);
      }
    }
    stage_close(s);
  }
}

/* Quantised at load: near the program, which is not; relative L2 of all logits of the first step. With clusters as with the whole table. */
static void test_quantised(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2};
  const struct drafter_shape all = {"sssf", 32, 64, 4, 20, 20, 0};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    int32_t guesses[2][SEQS_MAX];
    if (!kern_available(levels[k])) continue;
    for (int file = 0; file < 2; file++) {
      struct model_plan plan = fixture_plan(levels[k], 1, DTYPE_F32);
      plan.quant = DTYPE_Q8_0;
      struct stage *s = stage_open("gemma4-e-tiny", &all, file ? FOLDER : GGUF, &plan, 8);
      uint64_t rand = 6;
      double error = 0, size = 0;
      struct round x;
      compute(s, SEQS_MAX, lengths[2], &rand);
      round_begin(s, &x);
      drafter_step(s->d, SEQS_MAX, guesses[file]);
      for (int i = 0; i < SEQS_MAX && !file; i++) {
        double g[64], logits[512];
        twin_step(s, i, s->ids[i][s->n[i]], s->hidden[i] + (s->n[i] - 1) * s->maker.width, (struct bent){0}, g, logits);
        for (int t = 0; t < s->maker.vocab; t++) {
          double off = (double)tensor_row(&s->m->logits, i)[t] - logits[t];
          error += off * off;
          size += logits[t] * logits[t];
        }
      }
      hand_batch_free(&x.b);
      if (!file) printf("  %s q8_0: rel-L2 %.2g\n", k ? "avx2" : "ref", sqrt(error / size));
      if (!file) assert_true(sqrt(error / size) < 0.1);
      const struct model *own = drafter_model(s->d);
      assert_true(own->weight_bytes > 0 && own->decode_bytes > 0 && own->products_per_row.all > 0);
      stage_close(s);
    }
    assert_memory_equal(guesses[0], guesses[1], sizeof guesses[0]);
  }
}

/* ---- what does not fit -------------------------------------------------------------------------------------------------------------- */

/* The sentence with which a drafter is refused, at whatever stage. */
static void refused(const char *target, const char *path, const char *expected) {
  struct err e = {0};
  struct model_config *c = xcalloc(2, sizeof *c);
  char text[256];
  snprintf(text, sizeof text, "golden/%s", target);
  struct weights *w = weights_open(test_path(text), &c[0], &e), *dw = NULL;
  struct model *m = NULL;
  struct drafter *d = NULL;
  if (!w) fail_msg("%s", e.msg);
  if ((dw = weights_open_drafter(path, &c[1], &e)) && drafter_check(&c[1], &c[0], &e) == 0) {
    struct model_plan plan = fixture_plan(ISA_REF, 1, DTYPE_F32);
    plan.drafter = &c[1];
    m = model_open(&c[0], w, &plan, &e);
    if (!m) fail_msg("%s", e.msg);
    d = drafter_open(&c[1], dw, m, 2, &e);
  }
  if (d) fail_msg("expected \"%s\", found no error", expected);
  if (!strstr(e.msg, expected)) fail_msg("expected \"%s\", found \"%s\"", expected, e.msg);
  model_close(m);
  weights_close(dw);
  weights_close(w);
  free(c);
}

static void test_refusals(void **state) {
  (void)state;
  struct err e = {0};
  struct model_config *c = xcalloc(1, sizeof *c);
  struct drafter_maker m;
  struct weights *w = weights_open(test_path("golden/gemma4-e-tiny"), c, &e);
  if (!w) fail_msg("%s", e.msg);
  maker_init(&m, c, &four, 1);
  const char *good = maker_write_folder(&m, "good", NULL, NULL);
  struct model_config *other = xcalloc(1, sizeof *other);
  assert_null(weights_open(good, other, &e));
  assert_non_null(strstr(e.msg, "this is a drafter, it only guesses for another model: use --draft-model"));
  assert_null(weights_open(maker_write_gguf(&m, "good.gguf", true), other, &e));
  assert_non_null(strstr(e.msg, "use --draft-model"));
  assert_null(weights_open_drafter(test_path("golden/gemma4-e-tiny"), other, &e));
  assert_non_null(strstr(e.msg, "expected a drafter (gemma4_assistant), found a model of its own, gemma4"));
  refused("gemma3-text-tiny", good, "a gemma4 drafter guesses for models of its family, found gemma3");
  refused("gemma4-dense-tiny", good, "expected a drafter for a model 96 wide, found one for 64");
  static const struct {
    const char *key, *value, *expected;
  } configs[] = {
      {"vocab_size", "280", "expected the model's vocabulary of 300 tokens, found 280"},
      {"head_dim", "8", "layer 0: expected 1 key heads of width 16 as in the model's sliding layers, found 1 of width 8"},
      {"global_head_dim", "16", "layer 3: expected 1 key heads of width 32 as in the model's full layers, found 1 of width 16"},
      {"num_key_value_heads", "2", "layer 0: expected 1 key heads of width 16 as in the model's sliding layers, found 2"},
      {"sliding_window", "10", "expected the model's window of 9 tokens, found 10"},
      {"num_kv_shared_layers", "3", "expected all 4 layers of a drafter to read its target's keys and values, found 3"},
      {"hidden_size_per_layer_input", "8", "expected a drafter without per-layer embeddings"},
      {"enable_moe_block", "true,\"num_experts\":4,\"top_k_experts\":2,\"moe_intermediate_size\":8", "expected a drafter without experts"},
      {"hidden_size", "24", "expected [24, 128], file has [16, 128]"},
      {"vocab_size", "301", "expected clusters of the same size, found 20 for 301 tokens"}};
  for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
    char text[4096];
    maker_config(&m, text, sizeof text, configs[i].key, configs[i].value);
    refused("gemma4-e-tiny", maker_write_folder(&m, "bad", text, NULL), configs[i].expected);
  }
  static const char *const needed[] = {"nextn.pre_projection.weight", "nextn.post_projection.weight", "token_embd.weight",
                                       "output_norm.weight",          "blk.2.attn_q_norm.weight",     "blk.3.layer_output_scale.weight"};
  for (size_t i = 0; i < ARRAY_LEN(needed); i++) refused("gemma4-e-tiny", maker_write_folder(&m, "bad", NULL, needed[i]), needed[i]);
  m.order[7] = m.order[200];
  refused("gemma4-e-tiny", maker_write_folder(&m, "bad", NULL, NULL), "expected a number from 0 to 299 that did not come before");
  m.order[7] = 300;
  refused("gemma4-e-tiny", maker_write_folder(&m, "bad", NULL, NULL), "masked_embd_ordering: element 7: expected a number from 0 to 299");
  maker_free(&m);
  weights_close(w);
  free(c);
  free(other);
}

/* A layer that keeps redundant keys, a configuration that promises clusters and a file without, and "none shared" for all. */
static void test_tolerated(void **state) {
  (void)state;
  struct model_plan plan = fixture_plan(ISA_REF, 1, DTYPE_F32);
  for (int i = 0; i < 4; i++) {
    struct stage *s = xcalloc(1, sizeof *s);
    struct err e = {0};
    char text[4096];
    uint64_t rand = 3;
    s->w = weights_open(test_path("golden/gemma4-e-tiny"), &s->config, &e);
    if (!s->w) fail_msg("%s", e.msg);
    maker_init(&s->maker, &s->config, &four, 2);
    if (i == 2) maker_put_layer(&s->maker, 1, "self_attn.k_proj.weight", "attn_k", 16, 16, 0, 1);
    maker_config(&s->maker, text, sizeof text, i == 3 ? "num_kv_shared_layers" : NULL, "0");
    open_drafter(s, &plan,
                 maker_write_folder(&s->maker, "drafter", text,
                                    i == 0   ? "masked_embd_centroids.weight"
                                    : i == 1 ? "masked_embd_ordering"
                                             : NULL));
    compute(s, SEQS_MAX, lengths[2], &rand);
    assert_true(check_round(s, i >= 2, (struct bent){0}) < 2e-4);
    stage_close(s);
  }
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------- */

static void test_out_of_memory(void **state) {
  (void)state;
  struct model_plan plan = fixture_plan(ISA_AUTO, 1, DTYPE_F32);
  struct stage *s = stage_open("gemma4-e-tiny", &four, FOLDER, &plan, 4);
  int n_failed = 0;
  for (int64_t n = 1;; n++) {
    struct err e = {0};
    mem_fail_after(n);
    struct drafter *d = drafter_open(&s->drafter_config, s->drafter_w, s->m, 3, &e);
    mem_fail_after(-1);
    if (!d) {
      assert_int_equal(e.code, ERR_NO_MEMORY);
      n_failed++;
      continue;
    }
    drafter_close(d);
    break;
  }
  assert_true(n_failed > 10);
  stage_close(s);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps),     cmocka_unit_test(test_edges_matter),
                                          cmocka_unit_test(test_roads),     cmocka_unit_test(test_leaves_target_alone),
                                          cmocka_unit_test(test_quantised), cmocka_unit_test(test_refusals),
                                          cmocka_unit_test(test_tolerated), cmocka_unit_test(test_out_of_memory)};
TEST_MAIN(tests)
