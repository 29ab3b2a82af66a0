/* t_sample.c — the sampler beside a slow twin: every step in double, a full sort of the vocabulary, the filters as loops.
 *
 * The sampler weighs in float, so a decision of the twin (top-p's edge, min-p's edge, the chosen candidate) that is nearer than one part in
 * a million to going the other way may go the other way; those are counted and must be rare.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/sample.h"
#include "engine/sample_kern.h"

enum { VOCAB_MAX = 3000, LIST_MAX = 40 };

/* --- the twin ------------------------------------------------------------------------------------------------------ */

struct ranked {
  double x, weight;
  int32_t id;
};

static int by_rank(const void *a, const void *b) {
  const struct ranked *p = a, *q = b;
  if (p->x != q->x) return p->x > q->x ? -1 : 1;
  return (p->id > q->id) - (p->id < q->id);
}

static const uint32_t *twin_allowed; /* of a grammar, for twin_n_allowed ids; NULL = none */
static int twin_n_allowed;

/* history [n_history]: what was generated, in order. */
static void twin_edit(float *x, int vocab, const struct sample_params *p, const int32_t *history, int n_history) {
  for (int32_t id = 0; id < vocab; id++) {
    int count = 0;
    for (int i = 0; i < n_history; i++) count += history[i] == id;
    if (!count || x[id] == -INFINITY) continue;
    double y = (double)x[id] - p->frequency_penalty * count - p->presence_penalty;
    x[id] = (float)(y < 0 ? y * p->repetition_penalty : y / p->repetition_penalty);
  }
  for (int i = 0; i < p->n_stop_ids && n_history < p->min_tokens; i++) x[p->stop_ids[i]] = -INFINITY;
  for (int32_t id = 0; twin_allowed && id < vocab; id++)
    if (id >= twin_n_allowed || !(twin_allowed[id / 32] >> id % 32 & 1)) x[id] = -INFINITY;
  for (int i = 0; i < p->n_bias; i++) x[p->bias[i].id] = p->bias[i].bias == -100 ? -INFINITY : x[p->bias[i].id] + p->bias[i].bias;
  for (int i = 0; i < p->n_suppressed; i++) x[p->suppressed[i]] = -INFINITY;
}

static int rank_all(const float *x, int vocab, double temperature, struct ranked *r, double *sum) {
  int n = 0;
  double max = -INFINITY;
  for (int32_t id = 0; id < vocab; id++) max = x[id] > max ? x[id] : max;
  for (int32_t id = 0; id < vocab; id++)
    if (x[id] > -INFINITY) r[n++] = (struct ranked){.x = x[id], .weight = exp(((double)x[id] - max) / temperature), .id = id};
  qsort(r, (size_t)n, sizeof *r, by_rank);
  *sum = 0;
  for (int i = 0; i < n; i++) *sum += r[i].weight;
  return n;
}

enum verdict { WRONG, NEAR, EQUAL };

/* Is `got` the twin's choice? *n_kept: length of the prefix. */
static enum verdict twin_judges(const float *x, int vocab, const struct sample_params *p, double u, int32_t got, int *n_kept) {
  static struct ranked r[1 << 18];
  double sum, cumulative = 0, edge = 0;
  bool greedy = p->temperature < 1e-6 || p->top_k == 1;
  int n = rank_all(x, vocab, greedy ? 1 : p->temperature, r, &sum), kept = 0;
  *n_kept = 1;
  if (greedy) return got == r[0].id ? EQUAL : WRONG;
  double near = 1e-6 * sum;
  for (; kept < n; kept++) {
    double w = r[kept].weight;
    if (p->top_k != -1 && kept >= p->top_k) break;
    bool near_top_p = p->top_p < 1 && kept > 0 && fabs(cumulative - p->top_p * sum) < near;
    if (near_top_p || (p->min_p > 0 && w < 1 && fabs(w - p->min_p) < 1e-6)) edge += w; /* may belong or not */
    if ((p->top_p < 1 && cumulative > p->top_p * sum) || w < p->min_p) break;
    cumulative += w;
  }
  for (int i = kept + 1; i < n && p->min_p > 0 && fabs(r[i].weight - p->min_p) < 1e-6; i++)
    edge += r[i].weight; /* at enormous temperatures */
  *n_kept = kept;
  double target = u * cumulative, before = 0;
  enum verdict verdict = WRONG;
  for (int i = 0; i < n; i++) {
    double after = before + r[i].weight;
    if (r[i].id == got) {
      if (i < kept && before <= target && after > target) return EQUAL;
      bool may_be_kept = i < kept || edge > 0;
      if (may_be_kept && before <= target + near + edge && after >= target - near - edge) verdict = NEAR;
    }
    before = after;
  }
  return verdict;
}

/* --- random cases -------------------------------------------------------------------------------------------------- */

static void random_logits(float *x, int vocab, uint64_t *seed) {
  static const float widths[] = {0.0f, 0.3f, 1, 3, 8, 30};
  int kind = test_rand_int(seed, 0, 5);
  float width = widths[test_rand_int(seed, 0, 5)], middle = (float)test_rand_int(seed, -30, 30);
  for (int i = 0; i < vocab; i++) {
    x[i] = middle + width * test_rand_normal(seed);
    if (kind == 0) x[i] = roundf(x[i]);                             /* many ties */
    if (kind == 1 && test_rand_int(seed, 0, 2)) x[i] = -INFINITY;   /* most impossible */
    if (kind == 2) x[i] = test_rand_int(seed, 0, 1) ? 0.0f : -0.0f; /* equal, unlike bits */
    if (kind == 3 && test_rand_int(seed, 0, 99) == 0) x[i] += 20;   /* a few stand out, as in language */
  }
  x[test_rand_int(seed, 0, vocab - 1)] = middle + width; /* something is possible */
}

struct case_lists {
  struct sample_bias bias[LIST_MAX];
  int32_t stop[LIST_MAX], suppressed[LIST_MAX], history[LIST_MAX];
  int n_history;
};

static struct sample_params random_params(struct case_lists *l, int vocab, uint64_t *seed) {
  struct sample_params p = sample_params_default();
  static const double temperatures[] = {0, 1e-7, 0.01, 0.3, 0.7, 1, 1, 1.5, 4, 1e9};
  p.temperature = temperatures[test_rand_int(seed, 0, 9)];
  if (test_rand_int(seed, 0, 1)) p.top_k = test_rand_int(seed, 1, test_rand_int(seed, 0, 1) ? 10 : vocab + 10);
  if (test_rand_int(seed, 0, 1)) p.top_p = test_rand_int(seed, 1, 1000) / 1000.0;
  if (test_rand_int(seed, 0, 2) == 0) p.min_p = test_rand_int(seed, 0, 200) / 200.0;
  if (test_rand_int(seed, 0, 2) == 0) p.frequency_penalty = test_rand_int(seed, -20, 20) / 10.0;
  if (test_rand_int(seed, 0, 2) == 0) p.presence_penalty = test_rand_int(seed, -20, 20) / 10.0;
  if (test_rand_int(seed, 0, 2) == 0) p.repetition_penalty = test_rand_int(seed, 1, 20) / 10.0;
  p.seed = test_rand(seed);
  p.bias = l->bias;
  p.stop_ids = l->stop;
  p.suppressed = l->suppressed;
  int lists_max = MIN(LIST_MAX, vocab - 1);
  if (test_rand_int(seed, 0, 3) == 0) p.n_bias = test_rand_int(seed, 0, lists_max);
  if (test_rand_int(seed, 0, 3) == 0) p.n_stop_ids = test_rand_int(seed, 0, MIN(3, lists_max));
  if (test_rand_int(seed, 0, 3) == 0) p.n_suppressed = test_rand_int(seed, 0, MIN(5, lists_max));
  p.min_tokens = test_rand_int(seed, 0, 20);
  for (int i = 0; i < p.n_bias; i++) {
    bool ban = test_rand_int(seed, 0, 5) == 0;
    l->bias[i] = (struct sample_bias){.id = test_rand_int(seed, 0, vocab - 1), .bias = ban ? -100 : 10 * test_rand_normal(seed)};
    if (fabsf(l->bias[i].bias) > 100) l->bias[i].bias = 0;
  }
  for (int i = 0; i < p.n_stop_ids; i++) l->stop[i] = test_rand_int(seed, 0, vocab - 1);
  for (int i = 0; i < p.n_suppressed; i++) l->suppressed[i] = test_rand_int(seed, 0, vocab - 1);
  l->n_history = test_rand_int(seed, 0, LIST_MAX);
  for (int i = 0; i < l->n_history; i++) l->history[i] = test_rand_int(seed, 0, MIN(vocab - 1, 30));
  if (test_rand_int(seed, 0, 2) == 0) p.n_logprobs = test_rand_int(seed, 0, SAMPLE_TOP_MAX);
  return p;
}

static void open_state(struct sample_state *s, const struct sample_params *p, int vocab, const int32_t *history, int n_history) {
  struct err e = {0};
  if (sample_state_init(s, p, vocab, n_history + 1, &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < n_history; i++) sample_state_add(s, history[i]);
}

/* sample_token under the guard that forbids allocation; the row must come back as it was. With the row's peaks it is the same. */
static int guarded(struct sample_scratch *sc, const struct sample_state *s, float *x, uint64_t position, struct sample_result *out,
                   struct err *e) {
  static float before[1 << 18], peaks[(1 << 18) / PEAK_BLOCK];
  struct sample_result twin;
  struct err twin_error = {0};
  memcpy(before, x, (size_t)sc->vocab * sizeof *x);
  kern_ref.peaks(peaks, x, sc->vocab);
  mem_guard_begin("sampling");
  int rc = sample_token(sc, s, x, NULL, position, out, e), twin_rc = sample_token(sc, s, x, peaks, position, &twin, &twin_error);
  mem_guard_end();
  assert_memory_equal(x, before, (size_t)sc->vocab * sizeof *x);
  assert_int_equal(rc, twin_rc);
  if (e && rc) assert_string_equal(e->msg, twin_error.msg);
  assert_memory_equal(out, &twin, sizeof twin);
  return rc;
}

static void compare_logprobs(const float *x, int vocab, const struct sample_result *got, int n_asked) {
  static struct ranked r[VOCAB_MAX];
  double sum;
  int n = rank_all(x, vocab, 1, r, &sum);
  double log_sum = r[0].x + log(sum);
  assert_int_equal(got->n_top, MIN(n, n_asked));
  for (int i = 0; i < got->n_top; i++) {
    assert_int_equal(got->top[i].id, r[i].id);
    assert_true(fabs((double)got->top[i].logprob - (r[i].x - log_sum)) < 2e-6 * (1 + fabs(r[i].x - log_sum)));
  }
  double expected = (double)x[got->id] - log_sum;
  if (expected > -INFINITY) assert_true(fabs((double)got->logprob - expected) < 2e-6 * (1 + fabs(expected)));
  else assert_true(got->logprob == -INFINITY);
}

static size_t grammar_words(int n_ids) { return ((size_t)n_ids + 31) / 32; }

/* For every third: sometimes nearly empty, sometimes with words that allow all, of fewer or more ids than the row has. Owned, at a page's border. */
static uint32_t *random_mask(struct sample_state *s, int vocab, uint64_t *seed) {
  twin_allowed = NULL;
  if (test_rand_int(seed, 0, 2)) return NULL;
  s->n_allowed = test_rand_int(seed, 0, 2) ? vocab : test_rand_int(seed, 1, vocab + 40);
  uint32_t *mask = test_guard_alloc(grammar_words(s->n_allowed) * sizeof *mask);
  int kind = test_rand_int(seed, 0, 2);
  for (size_t i = 0; i < grammar_words(s->n_allowed); i++) {
    mask[i] = (uint32_t)test_rand(seed);
    if (kind == 0 && test_rand_int(seed, 0, 3)) mask[i] = 0;
    if (kind == 1 && test_rand_int(seed, 0, 1)) mask[i] = UINT32_MAX;
  }
  s->allowed = twin_allowed = mask;
  twin_n_allowed = s->n_allowed;
  return mask;
}

static void test_against_twin(void **unused) {
  (void)unused;
  uint64_t seed = 21;
  int n_equal = 0, n_near = 0, n_dead = 0, n_deep = 0, n_masked = 0;
  for (int round = 0; round < 4000 / TEST_LESS; round++) {
    int vocab = test_rand_int(&seed, 0, 3) ? test_rand_int(&seed, 1, 200) : test_rand_int(&seed, 1, VOCAB_MAX);
    float *x = test_guard_alloc((size_t)vocab * sizeof *x), edited[VOCAB_MAX];
    random_logits(x, vocab, &seed);
    struct case_lists lists;
    struct sample_params p = random_params(&lists, vocab, &seed);
    struct sample_state s;
    struct sample_scratch sc;
    open_state(&s, &p, vocab, lists.history, lists.n_history);
    assert_int_equal(sample_scratch_init(&sc, vocab, NULL), 0);
    uint32_t *mask = random_mask(&s, vocab, &seed);
    memcpy(edited, x, (size_t)vocab * sizeof *x);
    twin_edit(edited, vocab, &p, lists.history, lists.n_history);
    bool dead = true;
    for (int i = 0; i < vocab; i++) dead &= edited[i] == -INFINITY;
    for (int draw = 0; draw < 4; draw++) {
      uint64_t position = test_rand(&seed) >> test_rand_int(&seed, 0, 63);
      struct sample_result got;
      struct err e = {0};
      int rc = guarded(&sc, &s, x, position, &got, &e);
      if (dead) {
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, mask ? ERR_BAD_INPUT : ERR_INTERNAL);
        n_dead++;
        break;
      }
      if (rc) fail_msg("%s", e.msg);
      int n_kept;
      enum verdict verdict = twin_judges(edited, vocab, &p, rng_uniform(p.seed, position, 0), got.id, &n_kept);
      assert_int_not_equal(verdict, WRONG);
      n_equal += verdict == EQUAL;
      n_near += verdict == NEAR;
      n_deep += n_kept > 100;
      if (p.n_logprobs >= 0) compare_logprobs(x, vocab, &got, p.n_logprobs);
    }
    for (int i = 0; sc.masked_is_clear && i < vocab; i++) assert_true(sc.masked[i] == -INFINITY);
    n_masked += mask != NULL;
    if (mask) test_guard_free(mask, grammar_words(s.n_allowed) * sizeof *mask);
    sample_scratch_free(&sc);
    sample_state_free(&s);
    test_guard_free(x, (size_t)vocab * sizeof *x);
  }
  twin_allowed = NULL;
  print_message("%d draws equal, %d near, %d rows with nothing left, %d with more than 100 kept\n", n_equal, n_near, n_dead, n_deep);
  assert_true(n_equal > 12000 / TEST_LESS && n_near < 20 && n_deep > 1000 / TEST_LESS && n_masked > 1000 / TEST_LESS);
}

/* Blocks that have nothing of what is asked for are left out: what they have there means nothing, and their peaks say so. */
static void leave_out(float *few, float *peaks, const float *x, int vocab, uint64_t *seed) {
  kern_ref.peaks(peaks, few, vocab);
  for (int b = 0; b < div_up(vocab, PEAK_BLOCK); b++)
    for (int i = b * PEAK_BLOCK; i < MIN(vocab, (b + 1) * PEAK_BLOCK); i++)
      if (peaks[b] == -INFINITY) few[i] = test_rand_int(seed, 0, 1) ? NAN : 1e30f;
      else if (test_rand_int(seed, 0, 1)) few[i] = x[i];
  for (int b = 0; b < div_up(vocab, PEAK_BLOCK); b++)
    if (peaks[b] > -INFINITY) kern_ref.peaks(&peaks[b], few + b * PEAK_BLOCK, MIN(PEAK_BLOCK, vocab - b * PEAK_BLOCK));
}

/* What sample_n_best asks for is enough: with all other logits at -inf, or left out, the token is the same. */
static void test_few_are_enough(void **unused) {
  (void)unused;
  uint64_t seed = 5;
  int n_few = 0, n_all = 0;
  for (int round = 0; round < 6000 / TEST_LESS; round++) {
    int vocab = test_rand_int(&seed, 0, 3) ? test_rand_int(&seed, 1, 200) : test_rand_int(&seed, 1, VOCAB_MAX);
    float x[VOCAB_MAX], few[VOCAB_MAX];
    random_logits(x, vocab, &seed);
    struct case_lists lists;
    struct sample_params p = random_params(&lists, vocab, &seed);
    p.n_logprobs = -1, p.n_bias = 0, p.frequency_penalty = p.presence_penalty = 0, p.repetition_penalty = 1;
    if (test_rand_int(&seed, 0, 3)) p.top_p = 1;
    struct sample_state s;
    struct sample_scratch sc;
    open_state(&s, &p, vocab, lists.history, lists.n_history);
    assert_int_equal(sample_scratch_init(&sc, vocab, NULL), 0);
    int n_best = sample_n_best(&s);
    bool greedy = p.temperature < 1e-6 || p.top_k == 1;
    assert_int_equal(n_best > 0, greedy || (p.top_k != -1 && p.top_p >= 1));
    static struct ranked r[VOCAB_MAX];
    double sum;
    int n = rank_all(x, vocab, 1, r, &sum);
    for (int i = 0; i < vocab; i++) few[i] = -INFINITY;
    for (int i = 0; i < (n_best ? MIN(n, n_best) : n); i++) few[r[i].id] = x[r[i].id];
    for (int draw = 0; draw < 4; draw++) {
      uint64_t position = test_rand(&seed);
      struct sample_result from_all, from_few;
      struct err e = {0}, f = {0};
      int rc = guarded(&sc, &s, x, position, &from_all, &e), rc_few = guarded(&sc, &s, few, position, &from_few, &f);
      assert_int_equal(rc, rc_few);
      assert_int_equal(e.code, f.code);
      assert_int_equal(from_all.id, from_few.id);
      if (n_best) {
        float left[VOCAB_MAX], peaks[VOCAB_MAX / PEAK_BLOCK + 1];
        memcpy(left, few, sizeof few);
        leave_out(left, peaks, x, vocab, &seed);
        assert_int_equal(sample_token(&sc, &s, left, peaks, position, &from_few, &f), rc);
        assert_int_equal(e.code, f.code);
        assert_int_equal(from_all.id, from_few.id);
      }
      *(n_best ? &n_few : &n_all) += 1;
    }
    sample_scratch_free(&sc);
    sample_state_free(&s);
  }
  assert_true(n_few > 4000 / TEST_LESS && n_all > 4000 / TEST_LESS);
}

/* The level of this machine beside the portable one, to the bit. */
static void test_levels_agree(void **unused) {
  (void)unused;
  enum { BLOCKS_MAX = 20 };
  const struct sample_kern *levels[] = {&sample_kern_ref, sample_kern_best()};
  uint64_t seed = 5;
  for (int round = 0; round < 2000; round++) {
    int n_blocks = test_rand_int(&seed, 1, BLOCKS_MAX), n = n_blocks * PEAK_BLOCK;
    float *x = test_guard_alloc((size_t)n * sizeof *x), weights[2][BLOCKS_MAX * PEAK_BLOCK], max = -INFINITY;
    double sum[2], again = 0.5;
    random_logits(x, n, &seed);
    for (int i = 0; i < n; i++) max = MAX(max, x[i]);
    float f = (float)test_rand_int(&seed, 1, 400) / 100;
    for (int k = 0; k < 2; k++) {
      sum[k] = levels[k]->sum(0.5, x, n_blocks, max, f);
      memcpy(weights[k], x, (size_t)n * sizeof *x);
      levels[k]->weigh(weights[k], n, max, f);
    }
    assert_memory_equal(&sum[0], &sum[1], sizeof sum[0]);
    assert_memory_equal(weights[0], weights[1], (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) {
      double exact = exp(((double)x[i] - (double)max) * (double)f);
      assert_true(fabs((double)weights[0][i] - exact) <= 2e-5 * exact + 1e-37); /* z is rounded, too */
      again += (double)weights[0][i];
    }
    assert_true(fabs(again - sum[0]) <= 1e-5 * sum[0]);
    test_guard_free(x, (size_t)n * sizeof *x);
  }
}

/* A real vocabulary, where radix sort, deep bands and skipped bands are met. */
static void test_large_vocabulary(void **unused) {
  (void)unused;
  enum { VOCAB = 262144 - 17 };
  static float x[VOCAB];
  static const struct {
    double temperature, top_p, min_p;
    int top_k;
    float width;
  } cases[] = {
      {1, 0.95, 0, 64, 3}, {1, 1, 0, -1, 3},     {1, 1, 0, -1, 0.5f}, {2, 0.99, 0, -1, 3},      {1, 0.5, 0, -1, 1},
      {1, 1, 0.02, -1, 4}, {1, 1, 0, 5000, 2.f}, {0.1, 1, 0, -1, 5},  {1e9, 0.999, 0, -1, 2.f}, {1, 0.9, 1e-7, 200000, 2.5f},
  };
  uint64_t seed = 3;
  struct sample_scratch sc;
  assert_int_equal(sample_scratch_init(&sc, VOCAB, NULL), 0);
  int n_near = 0;
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    for (int id = 0; id < VOCAB; id++) x[id] = cases[i].width * test_rand_normal(&seed);
    struct sample_params p = sample_params_default();
    p.temperature = cases[i].temperature;
    p.top_p = cases[i].top_p;
    p.min_p = cases[i].min_p;
    p.top_k = cases[i].top_k;
    p.seed = i;
    struct sample_state s;
    struct sample_result got;
    int n_kept;
    open_state(&s, &p, VOCAB, NULL, 0);
    assert_int_equal(guarded(&sc, &s, x, i, &got, NULL), 0);
    enum verdict verdict = twin_judges(x, VOCAB, &p, rng_uniform(p.seed, i, 0), got.id, &n_kept);
    assert_int_not_equal(verdict, WRONG);
    n_near += verdict == NEAR;
    sample_state_free(&s);
  }
  print_message("%d of %zu draws near\n", n_near, ARRAY_LEN(cases));
  sample_scratch_free(&sc);
}

/* --- what the choice depends on ------------------------------------------------------------------------------------ */

static void test_depends_on_seed_and_position_alone(void **unused) {
  (void)unused;
  enum { VOCAB = 500, POSITIONS = 300 };
  static float x[POSITIONS][VOCAB];
  uint64_t seed = 8;
  for (int i = 0; i < POSITIONS; i++)
    for (int id = 0; id < VOCAB; id++) x[i][id] = 2 * test_rand_normal(&seed);
  struct sample_params p = sample_params_default();
  p.top_p = 0.9;
  p.seed = 77;
  int32_t first[POSITIONS];
  struct sample_scratch a, b;
  assert_int_equal(sample_scratch_init(&a, VOCAB, NULL), 0);
  assert_int_equal(sample_scratch_init(&b, VOCAB, NULL), 0);
  struct sample_state s, greedy;
  struct sample_result got;
  open_state(&s, &p, VOCAB, NULL, 0);
  for (int i = 0; i < POSITIONS; i++) {
    assert_int_equal(guarded(&a, &s, x[i], (uint64_t)i, &got, NULL), 0);
    first[i] = got.id;
  }
  sample_state_free(&s);

  /* backwards, between other requests' rows, on another scratch, with log-probabilities: the same */
  struct sample_params other = p;
  other.temperature = 0;
  open_state(&greedy, &other, VOCAB, NULL, 0);
  p.n_logprobs = 5;
  open_state(&s, &p, VOCAB, NULL, 0);
  for (int i = POSITIONS - 1; i >= 0; i--) {
    assert_int_equal(guarded(&b, &greedy, x[(i * 7) % POSITIONS], 3, &got, NULL), 0);
    assert_int_equal(guarded(&b, &s, x[i], (uint64_t)i, &got, NULL), 0);
    assert_int_equal(got.id, first[i]);
  }
  sample_state_free(&s);
  sample_state_free(&greedy);

  /* another seed, another position: something else somewhere */
  p.seed++;
  open_state(&s, &p, VOCAB, NULL, 0);
  int n_seed = 0, n_position = 0;
  for (int i = 0; i < POSITIONS; i++) {
    assert_int_equal(guarded(&a, &s, x[i], (uint64_t)i, &got, NULL), 0);
    n_seed += got.id != first[i];
    s.params.seed--;
    assert_int_equal(guarded(&a, &s, x[i], (uint64_t)i + 1000, &got, NULL), 0);
    s.params.seed++;
    n_position += got.id != first[i];
  }
  assert_true(n_seed > POSITIONS / 2 && n_position > POSITIONS / 2);
  sample_state_free(&s);
  sample_scratch_free(&a);
  sample_scratch_free(&b);
}

static void test_frequencies(void **unused) {
  (void)unused;
  enum { VOCAB = 90, DRAWS = 40000 };
  float x[VOCAB];
  uint64_t seed = 4;
  for (int i = 0; i < VOCAB; i++) x[i] = 1.3f * test_rand_normal(&seed);
  for (int round = 0; round < 4; round++) {
    struct sample_params p = sample_params_default();
    p.seed = (uint64_t)round;
    if (round == 1) p.temperature = 0.7, p.top_k = 30;
    if (round == 2) p.top_p = 0.8, p.temperature = 1.4;
    if (round == 3) p.min_p = 0.1;
    struct sample_state s;
    struct sample_scratch sc;
    open_state(&s, &p, VOCAB, NULL, 0);
    assert_int_equal(sample_scratch_init(&sc, VOCAB, NULL), 0);
    int seen[VOCAB] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
      struct sample_result got;
      assert_int_equal(sample_token(&sc, &s, x, NULL, i, &got, NULL), 0);
      seen[got.id]++;
    }
    static struct ranked r[VOCAB];
    double sum, mass = 0, chi2 = 0;
    int n_kept, n = rank_all(x, VOCAB, p.temperature, r, &sum);
    twin_judges(x, VOCAB, &p, 0.5, 0, &n_kept);
    for (int i = 0; i < n_kept; i++) mass += r[i].weight;
    for (int i = 0; i < n; i++) {
      double expected = i < n_kept ? DRAWS * r[i].weight / mass : 0;
      if (i >= n_kept) assert_int_equal(seen[r[i].id], 0);
      else chi2 += (seen[r[i].id] - expected) * (seen[r[i].id] - expected) / expected;
    }
    double freedom = n_kept - 1;
    print_message("%d kept of %d: chi-square %.1f\n", n_kept, n, chi2);
    assert_true(n_kept > 5 && chi2 < freedom + 4 * sqrt(2 * freedom) && chi2 > freedom - 4 * sqrt(2 * freedom));
    sample_scratch_free(&sc);
    sample_state_free(&s);
  }
}

/* Equal logits put every filter exactly on its edge: which of four that share the mass can come? */
static void test_edges_of_filters(void **unused) {
  (void)unused;
  static const struct {
    double top_p, min_p;
    int top_k, n_kept;
  } cases[] = {
      {0.5, 0, -1, 3}, /* before the third lies 0.5, not more */
      {0.49, 0, -1, 2}, {1e-9, 0, -1, 1}, {0.75, 0, -1, 4},
      {1, 1, -1, 4},    {1, 0, 2, 2},     {0.5, 0, 2, 2}, /* top-p is measured on the whole row: 0.5, not 1, is reached by two */
      {0.5, 1, 4, 3},   {0.24, 0, 4, 1},
  };
  float x[] = {-1000, 5, 5, -INFINITY, 5, 5};
  static const int32_t order[] = {1, 2, 4, 5};
  struct sample_scratch sc;
  assert_int_equal(sample_scratch_init(&sc, 6, NULL), 0);
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct sample_params p = sample_params_default();
    p.top_p = cases[i].top_p, p.min_p = cases[i].min_p, p.top_k = cases[i].top_k;
    struct sample_state s;
    open_state(&s, &p, 6, NULL, 0);
    int seen[6] = {0};
    for (uint64_t position = 0; position < 200; position++) {
      struct sample_result got;
      assert_int_equal(guarded(&sc, &s, x, position, &got, NULL), 0);
      seen[got.id]++;
    }
    for (int rank = 0; rank < 4; rank++) assert_int_equal(seen[order[rank]] > 0, rank < cases[i].n_kept);
    assert_int_equal(seen[0] + seen[3], 0);
    sample_state_free(&s);
  }
  sample_scratch_free(&sc);
}

/* --- single steps, by hand ----------------------------------------------------------------------------------------- */

/* Greedy choice of a row under p after a history. */
static int32_t greedy_of(struct sample_params p, const float *row, int vocab, const int32_t *history, int n_history) {
  float x[64];
  memcpy(x, row, (size_t)vocab * sizeof *x);
  struct sample_state s;
  struct sample_scratch sc;
  struct sample_result got;
  struct err e = {0};
  p.temperature = 0;
  open_state(&s, &p, vocab, history, n_history);
  assert_int_equal(sample_scratch_init(&sc, vocab, NULL), 0);
  int rc = guarded(&sc, &s, x, 0, &got, &e);
  sample_scratch_free(&sc);
  sample_state_free(&s);
  return rc ? -1 : got.id;
}

static void test_steps_by_hand(void **unused) {
  (void)unused;
  const float row[] = {1, 4, 4, 3.5f, -2};
  const struct sample_params none = sample_params_default();
  struct sample_params p = none;
  assert_int_equal(greedy_of(p, row, 5, NULL, 0), 1); /* the lowest id among equals */

  p.presence_penalty = 0.4;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){1}, 1), 2);
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){1, 2, 2, 2}, 4), 1); /* once however often: 3.6, 3.6 */
  p = none;
  p.frequency_penalty = 0.2;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){1, 2, 2}, 3), 1);          /* 3.8, 3.6 */
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){1, 1, 1, 2, 2, 2}, 6), 3); /* 3.4, 3.4, 3.5 */
  p.frequency_penalty = -1;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){0, 0, 0, 0}, 4), 0);
  p = none;
  p.repetition_penalty = 1.2;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){1, 2}, 2), 3);                     /* 3.33, 3.33, 3.5 */
  assert_int_equal(greedy_of(p, (const float[]){-1, -1.1f}, 2, (const int32_t[]){0}, 1), 1); /* negative ones go down, too */

  const int32_t stop[] = {1, 2};
  p = none;
  p.stop_ids = stop, p.n_stop_ids = 2, p.min_tokens = 2;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){0}, 1), 3);
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){0, 0}, 2), 1);
  const struct sample_bias lift[] = {{.id = 1, .bias = 100}, {.id = 4, .bias = 50}};
  p.bias = lift, p.n_bias = 2;
  assert_int_equal(greedy_of(p, row, 5, NULL, 0), 4); /* a bias does not bring a held stop id back */

  p = none;
  const struct sample_bias ban[] = {{.id = 1, .bias = -100}};
  p.bias = ban, p.n_bias = 1;
  assert_int_equal(greedy_of(p, row, 5, NULL, 0), 2);
  assert_int_equal(greedy_of(p, (const float[]){-200, 200}, 2, NULL, 0), 0); /* a ban is a ban */
  p.bias = lift;
  p.suppressed = (const int32_t[]){1};
  p.n_suppressed = 1;
  assert_int_equal(greedy_of(p, row, 5, NULL, 0), 2);
  p.suppressed = (const int32_t[]){0, 1, 2, 3, 4};
  p.n_suppressed = 5;
  assert_int_equal(greedy_of(p, row, 5, NULL, 0), -1); /* nothing left */

  p = none; /* a penalty at the end of its range makes no infinity */
  p.repetition_penalty = 1e-300;
  assert_int_equal(greedy_of(p, row, 5, (const int32_t[]){0, 4}, 2), 0);
}

/* log-probabilities are of the row as the model gave it */
static void test_logprobs(void **unused) {
  (void)unused;
  float x[] = {1, 3, 2, -INFINITY, 0};
  const double log_sum = log(exp(1) + exp(3) + exp(2) + exp(0));
  struct sample_params p = sample_params_default();
  const struct sample_bias lift[] = {{.id = 4, .bias = 90}};
  p.bias = lift, p.n_bias = 1, p.temperature = 0.2, p.n_logprobs = SAMPLE_TOP_MAX;
  struct sample_state s;
  struct sample_scratch sc;
  struct sample_result got;
  open_state(&s, &p, 5, NULL, 0);
  assert_int_equal(sample_scratch_init(&sc, 5, NULL), 0);
  assert_int_equal(guarded(&sc, &s, x, 9, &got, NULL), 0);
  assert_int_equal(got.id, 4);
  assert_true(fabs((double)got.logprob - (0 - log_sum)) < 1e-6);
  assert_int_equal(got.n_top, 4); /* the impossible one is no alternative */
  static const int32_t order[] = {1, 2, 0, 4};
  for (int i = 0; i < 4; i++) assert_int_equal(got.top[i].id, order[i]);
  assert_true(fabs((double)got.top[0].logprob - (3 - log_sum)) < 1e-6);

  assert_int_equal(sample_logprobs(&sc, x, NULL, 2, 1, &got, NULL), 0);
  assert_true(got.id == 2 && got.n_top == 1 && got.top[0].id == 1 && fabs((double)got.logprob - (2 - log_sum)) < 1e-6);
  assert_int_equal(sample_logprobs(&sc, x, NULL, -1, 0, &got, NULL), 0);
  assert_true(got.n_top == 0 && got.logprob == 0);
  x[3] = NAN;
  assert_int_equal(sample_logprobs(&sc, x, NULL, 2, 1, &got, NULL), -1);
  sample_scratch_free(&sc);
  sample_state_free(&s);
}

static void test_bad_logits_fail(void **unused) {
  (void)unused;
  enum { VOCAB = 150 };
  float x[VOCAB];
  uint64_t seed = 1;
  struct sample_scratch sc;
  assert_int_equal(sample_scratch_init(&sc, VOCAB, NULL), 0);
  for (int32_t id = 0; id < VOCAB; id++)
    for (int kind = 0; kind < 4; kind++) {
      struct sample_params p = sample_params_default();
      if (kind & 1) p.temperature = 0;
      if (kind & 2) p.suppressed = &id, p.n_suppressed = 1; /* hidden from the choice, yet a broken row */
      struct sample_state s;
      struct sample_result got;
      struct err e = {0};
      char where[32];
      open_state(&s, &p, VOCAB, NULL, 0);
      for (int i = 0; i < VOCAB; i++) x[i] = test_rand_normal(&seed);
      x[id] = test_rand_int(&seed, 0, 1) ? NAN : INFINITY;
      snprintf(where, sizeof where, "id %d", id);
      assert_int_equal(guarded(&sc, &s, x, 5, &got, &e), -1);
      assert_int_equal(e.code, ERR_INTERNAL);
      assert_non_null(strstr(e.msg, where));
      x[id] = -INFINITY; /* that one is allowed */
      assert_int_equal(guarded(&sc, &s, x, 5, &got, &e), 0);
      assert_true(got.id >= 0 && got.id != id);
      sample_state_free(&s);
    }
  sample_scratch_free(&sc);
}

/* --- parameters, memory -------------------------------------------------------------------------------------------- */

static void refuse(struct sample_params p, const char *field, const char *range, const char *found) {
  struct err e = {0};
  assert_int_equal(sample_params_check(&p, 100, &e), -1);
  assert_int_equal(e.code, ERR_BAD_INPUT);
  if (!strstr(e.msg, field) || !strstr(e.msg, range) || !strstr(e.msg, found)) fail_msg("%s", e.msg);
  struct sample_state s;
  assert_int_equal(sample_state_init(&s, &p, 100, 5, &e), -1);
  sample_state_free(&s);
}
#define REFUSE(change, field, range, found)                                                                                                \
  do {                                                                                                                                     \
    struct sample_params p = sample_params_default();                                                                                      \
    change;                                                                                                                                \
    refuse(p, field, range, found);                                                                                                        \
  } while (0)

static void test_parameters_are_checked(void **unused) {
  (void)unused;
  struct sample_params good = sample_params_default();
  assert_int_equal(sample_params_check(&good, 100, NULL), 0);
  const struct sample_bias biases[] = {{.id = 99, .bias = 100}, {.id = 100, .bias = 1}, {.id = -1, .bias = 1}, {.id = 5, .bias = 1e9f}};
  const struct sample_bias nan_bias = {.id = 5, .bias = NAN};
  const int32_t ids[] = {0, 99, 100, -1};
  good = (struct sample_params){.temperature = 1e9,
                                .top_p = 1e-9,
                                .min_p = 1,
                                .frequency_penalty = -2,
                                .presence_penalty = 2,
                                .repetition_penalty = 2,
                                .top_k = INT32_MAX,
                                .min_tokens = 7,
                                .max_tokens = 7,
                                .n_logprobs = 20,
                                .bias = biases,
                                .n_bias = 1,
                                .stop_ids = ids,
                                .n_stop_ids = 2,
                                .suppressed = ids,
                                .n_suppressed = 2};
  assert_int_equal(sample_params_check(&good, 100, NULL), 0);

  REFUSE(p.temperature = -1, "temperature", ">= 0", "-1");
  REFUSE(p.temperature = NAN, "temperature", "finite", "nan");
  REFUSE(p.temperature = INFINITY, "temperature", "finite", "inf");
  REFUSE(p.top_p = 0, "top_p", "more than 0", "found 0");
  REFUSE(p.top_p = 1.1, "top_p", "at most 1", "1.1");
  REFUSE(p.top_p = NAN, "top_p", "at most 1", "nan");
  REFUSE(p.min_p = -0.1, "min_p", "0 to 1", "-0.1");
  REFUSE(p.min_p = 1.5, "min_p", "0 to 1", "1.5");
  REFUSE(p.frequency_penalty = 3, "frequency_penalty", "-2 to 2", "3");
  REFUSE(p.frequency_penalty = NAN, "frequency_penalty", "-2 to 2", "nan");
  REFUSE(p.presence_penalty = -2.5, "presence_penalty", "-2 to 2", "-2.5");
  REFUSE(p.repetition_penalty = 0, "repetition_penalty", "more than 0", "found 0");
  REFUSE(p.repetition_penalty = 2.1, "repetition_penalty", "at most 2", "2.1");
  REFUSE(p.top_k = 0, "top_k", "1 and more", "found 0");
  REFUSE(p.top_k = -2, "top_k", "-1", "-2");
  REFUSE(p.max_tokens = -2, "max_tokens", "0 or more", "-2");
  REFUSE(p.min_tokens = -1, "min_tokens", "0 or more", "-1");
  REFUSE((p.min_tokens = 8, p.max_tokens = 7), "min_tokens", "max_tokens (7)", "8");
  REFUSE(p.n_logprobs = 21, "top_logprobs", "0 to 20", "21");
  REFUSE(p.n_bias = 1025, "logit_bias", "1024", "1025");
  REFUSE((p.bias = &biases[1], p.n_bias = 1), "logit_bias", "0 to 99", "100");
  REFUSE((p.bias = &biases[2], p.n_bias = 1), "logit_bias", "0 to 99", "-1");
  REFUSE((p.bias = &biases[3], p.n_bias = 1), "logit_bias[5]", "-100 to 100", "1000000000");
  REFUSE((p.bias = &nan_bias, p.n_bias = 1), "logit_bias[5]", "-100 to 100", "nan");
  REFUSE((p.stop_ids = &ids[2], p.n_stop_ids = 1), "stop_token_ids[0]", "0 to 99", "100");
  REFUSE((p.suppressed = &ids[2], p.n_suppressed = 2), "suppressed", "0 to 99", "100");
  REFUSE((p.suppressed = &ids[3], p.n_suppressed = 1), "suppressed", "0 to 99", "-1");
  REFUSE((p.stop_ids = ids, p.n_stop_ids = 101), "stop_token_ids", "at most 100", "101");
}

static void test_counts(void **unused) {
  (void)unused;
  uint64_t seed = 6;
  for (int round = 0; round < 300; round++) {
    int vocab = test_rand_int(&seed, 1, 3000), n = test_rand_int(&seed, 0, 500), spread = test_rand_int(&seed, 1, vocab);
    int *counts = calloc((size_t)vocab, sizeof *counts);
    struct sample_params p = sample_params_default();
    p.presence_penalty = round % 3 ? 0.5 : 0;
    struct sample_state s;
    assert_int_equal(sample_state_init(&s, &p, vocab, n, NULL), 0);
    for (int i = 0; i < n; i++) {
      int32_t id = (test_rand_int(&seed, 0, spread - 1) * 64) % vocab; /* strides meet in a bad hash */
      counts[id]++;
      sample_state_add(&s, id);
    }
    assert_int_equal(s.n_generated, n);
    int n_different = 0;
    for (int i = 0; i < vocab; i++) n_different += counts[i] > 0;
    assert_int_equal(s.n_ids, round % 3 ? n_different : 0);
    for (int i = 0; i < s.n_ids; i++) {
      assert_int_equal(s.ids[i].count, counts[s.ids[i].id]);
      counts[s.ids[i].id] = -1; /* each once */
    }
    free(counts);
    sample_state_free(&s);
    sample_state_free(&s);
  }
}

static void test_memory_runs_out(void **unused) {
  (void)unused;
  struct err e = {0};
  struct sample_scratch sc;
  struct sample_state s;
  assert_int_equal(sample_scratch_init(&sc, 0, &e), -1);
  assert_int_equal(e.code, ERR_BAD_INPUT);
  int n_scratch = 0, n_state = 0;
  for (int64_t n = 1;; n++) {
    mem_fail_after(n);
    int rc = sample_scratch_init(&sc, 100, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (rc == 0) {
      assert_true(pending);
      sample_scratch_free(&sc);
      break;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
    n_scratch++;
  }
  const struct sample_bias bias[] = {{.id = 1, .bias = 1}};
  const int32_t ids[] = {1, 2};
  struct sample_params p = sample_params_default();
  p.bias = bias, p.n_bias = 1, p.stop_ids = ids, p.n_stop_ids = 2, p.suppressed = ids, p.n_suppressed = 1, p.presence_penalty = 1;
  for (int64_t n = 1;; n++) {
    mem_fail_after(n);
    int rc = sample_state_init(&s, &p, 100, 9, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (rc == 0) {
      assert_true(pending);
      assert_ptr_not_equal(s.params.bias, bias); /* copies */
      assert_memory_equal(s.params.stop_ids, ids, sizeof ids);
      sample_state_free(&s);
      break;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
    n_state++;
  }
  assert_int_equal(n_scratch, 8);
  assert_int_equal(n_state, 5);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_levels_agree),
    cmocka_unit_test(test_against_twin),
    cmocka_unit_test(test_few_are_enough),
    cmocka_unit_test(test_large_vocabulary),
    cmocka_unit_test(test_depends_on_seed_and_position_alone),
    cmocka_unit_test(test_frequencies),
    cmocka_unit_test(test_edges_of_filters),
    cmocka_unit_test(test_steps_by_hand),
    cmocka_unit_test(test_logprobs),
    cmocka_unit_test(test_bad_logits_fail),
    cmocka_unit_test(test_parameters_are_checked),
    cmocka_unit_test(test_counts),
    cmocka_unit_test(test_memory_runs_out),
};
TEST_MAIN(tests)
