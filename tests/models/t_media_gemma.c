/* t_media_gemma.c — Gemma 3 and 4 with pictures and sounds in the prompt, against golden values: what every row sees, hidden states,
 * logits, and the tokens that follow; and the same bits by every other road.
 *
 * Soft rows are the golden ones, so that only the text part is looked at; in one test those that the encoders make of the files.
 */
#include "test.h"

#include "models/golden_media.h"

enum { PAGE_TOKENS = 16, PAGES = 12, SOFT_ROWS = 256, FOLLOW = 8 };

static const struct {
  const char *folder;
  int cases;
} fixtures[] = {{"media-gemma3", 7}, {"media-gemma4-e2b", 7}, {"media-gemma4-31b", 5}, {"media-gemma4-26b", 3}, {"media-gemma4-12b", 6}};

static struct model_plan plan_of(enum isa isa, int threads, bool media) {
  struct model_plan plan = fixture_plan(isa, threads, DTYPE_F32);
  plan.page_tokens = PAGE_TOKENS;
  plan.n_pages[KV_FULL] = plan.n_pages[KV_SLIDING] = PAGES;
  plan.tokens_max = PAGES * PAGE_TOKENS;
  plan.soft_rows = SOFT_ROWS;
  plan.media = media;
  return plan;
}

/* ---- a case ------------------------------------------------------------------------------------------------------------------- */

struct story { /* one sequence: a case's prompt, and what follows it */
  const char *name;
  const json_t *what;   /* its entry of cases.json */
  const uint8_t *types; /* of the prompt */
  int n_prompt, n;
  int32_t token[PAGES * PAGE_TOKENS], soft[PAGES * PAGE_TOKENS];
  int32_t lo[KV_KINDS][PAGES * PAGE_TOKENS], hi[KV_KINDS][PAGES * PAGE_TOKENS];
};

static bool is_picture(int type) { return type == 1 || type == 2; }

static void story_append(struct story *s, const struct model_config *c, int32_t token) {
  int p = s->n++;
  CHECK(s->n <= PAGES * PAGE_TOKENS);
  s->token[p] = token;
  s->soft[p] = -1;
  for (int kind = 0; kind < KV_KINDS; kind++) {
    s->lo[kind][p] = kind == KV_SLIDING ? (int32_t)kv_window_lo(p, c->window_tokens) : 0;
    s->hi[kind][p] = p + 1;
  }
}

static void story_open(struct story *s, const struct media_fixture *x, const char *name, const json_t *what) {
  const struct model_config *c = x->f.config;
  const struct st_tensor *ids = media_golden(x, name, "ids");
  *s = (struct story){.name = name, .what = what, .types = media_golden(x, name, "types")->data, .n_prompt = (int)ids->shape[0]};
  for (int p = 0, n_soft = 0; p < s->n_prompt; p++) {
    story_append(s, c, s->types[p] ? 0 : ((const int32_t *)ids->data)[p]); /* a soft row's token stands for the padding's */
    if (s->types[p]) s->soft[p] = n_soft++;
    int end = p + 1;
    while (is_picture(s->types[p]) && end < s->n_prompt && is_picture(s->types[end])) end++;
    if (c->both_ways_full) s->hi[KV_FULL][p] = end;
    if (c->both_ways_sliding) s->hi[KV_SLIDING][p] = end;
  }
}

/* Copies n rows into the model's store; returns the row behind them. */
static int store(struct model *m, int at, const float *rows, size_t row_floats, int n) {
  CHECK(at + n <= SOFT_ROWS);
  for (int r = 0; r < n; r++) memcpy(tensor_row(&m->soft, at + r), rows + (size_t)r * row_floats, (size_t)m->config.hidden * sizeof(float));
  return at + n;
}

static int index_of(const json_t *names, const json_t *name) {
  for (size_t i = 0; i < json_array_size(names); i++)
    if (json_equal(json_array_get(names, i), name)) return (int)i;
  fail_msg("%s is not among the files", json_string_value(name));
  return -1;
}

/* The soft rows of the case's media in the order of the prompt: golden ones, or what the encoder makes of pictures. */
static void story_soft(const struct story *s, struct media_fixture *x, bool encoded) {
  struct model *m = x->f.m;
  int at = 0;
  size_t next_picture = 0, next_sound = 0;
  for (int p = 0; p < s->n_prompt; p++) {
    if (!s->types[p] || (p > 0 && s->types[p] == s->types[p - 1])) continue;
    bool picture = is_picture(s->types[p]);
    const char *kind = picture ? "pictures" : "sounds";
    int k = index_of(json_object_get(x->cases, kind),
                     json_array_get(json_object_get(s->what, kind), picture ? next_picture++ : next_sound++));
    char who[32];
    snprintf(who, sizeof who, picture ? "image%d" : "sound%d", k);
    if (picture && encoded) {
      encode(m->vision, (const struct media *const *)&x->pictures[k], 1);
      at = store(m, at, m->vision->out.data, m->vision->out.row_bytes / sizeof(float), m->vision->out.rows);
    } else {
      const struct st_tensor *soft = media_golden(x, who, "soft");
      at = store(m, at, soft->data, (size_t)m->config.hidden, (int)soft->shape[0]);
    }
  }
  for (int p = s->n_prompt - 1; p >= 0; p--) {
    if (s->soft[p] < 0) continue;
    assert_int_equal(at, s->soft[p] + 1);
    break;
  }
}

/* Rows [first, end) as a step; the last n_out of them are wanted. The result is borrowed. */
static struct tensor run(struct model *m, const struct story *s, int first, int end, int n_out) {
  static int32_t page[PAGES], out[PAGES * PAGE_TOKENS], pos[PAGES * PAGE_TOKENS], seq[PAGES * PAGE_TOKENS], q_start[2];
  static int64_t slot[PAGES * PAGE_TOKENS];
  int n = end - first;
  struct batch b = {.n_rows = n,
                    .n_seqs = 1,
                    .n_out = n_out,
                    .rows_max = ROWS_MAX,
                    .seqs_max = SEQS_MAX,
                    .out_max = ROWS_MAX,
                    .pages_max = {PAGES, PAGES},
                    .token = (int32_t *)s->token + first,
                    .soft = (int32_t *)s->soft + first,
                    .pos = pos,
                    .seq = seq,
                    .q_start = q_start,
                    .out = out};
  for (int i = 0; i < PAGES; i++) page[i] = 1 + i;
  for (int i = 0; i < n; i++) {
    pos[i] = first + i;
    seq[i] = 0;
    slot[i] = PAGE_TOKENS + first + i;
    b.n_soft += b.soft[i] >= 0;
  }
  for (int i = 0; i < n_out; i++) out[i] = n - n_out + i;
  q_start[1] = n;
  for (int kind = 0; kind < KV_KINDS; kind++) {
    b.lo[kind] = (int32_t *)s->lo[kind] + first;
    b.hi[kind] = (int32_t *)s->hi[kind] + first;
    b.slot[kind] = slot;
    b.page[kind] = page;
  }
  return model_forward(m, &b);
}

/* ---- what rows see -------------------------------------------------------------------------------------------------------------- */

static void test_intervals(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct media_fixture x;
    struct model_plan plan = plan_of(ISA_REF, 1, false);
    media_fixture_open(&x, fixtures[i].folder, &plan);
    const char *name;
    json_t *what;
    int n_cases = 0;
    json_object_foreach(json_object_get(x.cases, "cases"), name, what) {
      struct story s;
      story_open(&s, &x, name, what);
      for (int kind = 0; kind < KV_KINDS; kind++) {
        const uint8_t *allow = media_golden(&x, name, kind == KV_FULL ? "allow_full" : "allow_sliding")->data;
        for (int q = 0; q < s.n_prompt; q++)
          for (int k = 0; k < s.n_prompt; k++)
            if (allow[q * s.n_prompt + k] != (s.lo[kind][q] <= k && k < s.hi[kind][q]))
              fail_msg("%s %s, kind %d: row %d, key %d: expected %d", fixtures[i].folder, name, kind, q, k, allow[q * s.n_prompt + k]);
      }
      n_cases++;
    }
    assert_int_equal(n_cases, fixtures[i].cases);
    media_fixture_close(&x);
  }
}

/* ---- golden values ---------------------------------------------------------------------------------------------------------------- */

struct hidden_check {
  const struct media_fixture *x;
  const char *name; /* of the case */
  double worst, rms_hidden, rms_final;
  int n_compared;
};

static void on_hidden(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct hidden_check *t = ctx;
  const struct st_tensor *g = NULL;
  size_t offset = (size_t)row * (size_t)cols;
  double rms = t->rms_hidden;
  if (!strcmp(name, "layer_out") || (!strcmp(name, "embed") && layer < 0)) {
    g = media_golden(t->x, t->name, "hidden");
    if (g) offset += (size_t)(layer + 1) * (size_t)g->shape[1] * (size_t)cols;
  } else if (!strcmp(name, "final_norm")) {
    g = media_golden(t->x, t->name, "final");
    rms = t->rms_final;
  }
  if (!g) return;
  t->n_compared++;
  for (int c = 0; c < cols; c++) {
    double d = fabs((double)x[c] - (double)((const float *)g->data)[offset + (size_t)c]) / rms;
    if (!(d <= t->worst)) t->worst = d;
    if (!(d <= 2e-4)) fail_msg("%s: %s, layer %d, row %d, column %d: off by %.2g of the rms", t->name, name, layer, row, c, d);
  }
}

static double check_logits(const struct media_fixture *x, const struct story *s, const struct tensor *y, double bound) {
  const struct st_tensor *g = media_golden(x, s->name, "logits");
  double rms = media_rms(g), worst = 0;
  assert_int_equal(g->shape[0], y->rows);
  for (int r = 0; r < y->rows; r++)
    for (int c = 0; c < y->cols; c++) {
      double d = fabs((double)tensor_row(y, r)[c] - (double)((const float *)g->data)[r * y->cols + c]) / rms;
      if (!(d <= worst)) worst = d;
    }
  if (!(worst <= bound)) fail_msg("%s: logits are off by %.2g of their rms", s->name, worst);
  return worst;
}

static int32_t best_of(const struct tensor *y, int row) {
  int best = 0;
  for (int c = 1; c < y->cols; c++)
    if (tensor_row(y, row)[c] > tensor_row(y, row)[best]) best = c;
  return best;
}

/* What follows the prompt, whose logits y are, token by token over the cache. */
static void check_greedy(struct media_fixture *x, struct story *s, struct tensor y) {
  const int32_t *expected = media_golden(x, s->name, "greedy")->data;
  for (int i = 0; i < FOLLOW; i++) {
    int32_t token = best_of(&y, y.rows - 1);
    if (token != expected[i]) fail_msg("%s: token %d that follows: expected %d, found %d", s->name, i, expected[i], token);
    story_append(s, x->f.config, token);
    y = run(x->f.m, s, s->n - 1, s->n, 1);
  }
}

static void test_golden(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    for (size_t i = 0; i < ARRAY_LEN(fixtures) && kern_available(levels[k]); i++) {
      struct media_fixture x;
      struct model_plan plan = plan_of(levels[k], 1 + (int)k, false);
      media_fixture_open(&x, fixtures[i].folder, &plan);
      bool rounds = levels[k] == ISA_AVX512; /* activations, to bf16: as far off as another engine in bf16 */
      double worst = 0, worst_hidden = 0;
      int n_hidden = 0;
      const char *name;
      json_t *what;
      json_object_foreach(json_object_get(x.cases, "cases"), name, what) {
        struct story s;
        const struct st_tensor *hidden = media_golden(&x, name, "hidden");
        struct hidden_check t = {&x, name, 0, hidden ? media_rms(hidden) : 1, media_rms(media_golden(&x, name, "final")), 0};
        story_open(&s, &x, name, what);
        story_soft(&s, &x, false);
        x.f.m->tap = rounds ? NULL : on_hidden;
        x.f.m->tap_ctx = &t;
        struct tensor y = run(x.f.m, &s, 0, s.n_prompt, s.n_prompt);
        x.f.m->tap = NULL;
        worst = MAX(worst, check_logits(&x, &s, &y, !rounds ? 2e-4 : x.f.config->n_experts ? 3 : 1));
        if (!rounds) check_greedy(&x, &s, y);
        worst_hidden = MAX(worst_hidden, t.worst);
        n_hidden += t.n_compared;
      }
      printf("  %s %s: logits off by %.2g, hidden %.2g in %d rows\n", x.f.m->dev->kern->name, fixtures[i].folder, worst, worst_hidden,
             n_hidden);
      assert_true(rounds || n_hidden > 400);
      media_fixture_close(&x);
    }
  }
}

/* From files to tokens. */
static void test_from_files(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct media_fixture x;
    struct model_plan plan = plan_of(kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 2, true);
    media_fixture_open(&x, fixtures[i].folder, &plan);
    double worst = 0;
    const char *name;
    json_t *what;
    json_object_foreach(json_object_get(x.cases, "cases"), name, what) {
      struct story s;
      story_open(&s, &x, name, what);
      story_soft(&s, &x, true);
      struct tensor y = run(x.f.m, &s, 0, s.n_prompt, s.n_prompt);
      worst = MAX(worst, check_logits(&x, &s, &y, 2e-4));
      check_greedy(&x, &s, y);
    }
    printf("  %s from files: logits off by %.2g\n", fixtures[i].folder, worst);
    media_fixture_close(&x);
  }
}

/* ---- every other road gives the same bits ------------------------------------------------------------------------------------------- */

/* A step may end behind row p: no row up to there sees what comes later. */
static bool may_cut(const struct story *s, int p) {
  for (int kind = 0; kind < KV_KINDS; kind++)
    if (s->hi[kind][p] > p + 1) return false;
  return true;
}

/* In steps of about `chunk` rows, on so many threads, with only the last row wanted: the same logits. */
static void test_same_bits(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  const int chunks[] = {1, 3, 16, 64};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    for (size_t i = 0; i < ARRAY_LEN(fixtures) && kern_available(levels[k]); i++) {
      struct media_fixture x;
      struct model_plan plan = plan_of(levels[k], 1 + (int)k, false);
      media_fixture_open(&x, fixtures[i].folder, &plan);
      const char *name;
      json_t *what;
      json_object_foreach(json_object_get(x.cases, "cases"), name, what) {
        struct story s;
        story_open(&s, &x, name, what);
        story_soft(&s, &x, false);
        struct tensor y = run(x.f.m, &s, 0, s.n_prompt, s.n_prompt);
        size_t n_bytes = (size_t)y.cols * sizeof(float);
        float *expected = xmalloc(n_bytes);
        memcpy(expected, tensor_row(&y, y.rows - 1), n_bytes);
        y = run(x.f.m, &s, 0, s.n_prompt, 1);
        assert_memory_equal(tensor_row(&y, 0), expected, n_bytes);
        for (size_t j = 0; j < ARRAY_LEN(chunks); j++) {
          for (int first = 0, end; first < s.n_prompt; first = end) {
            for (end = MIN(first + chunks[j], s.n_prompt); end < s.n_prompt && !may_cut(&s, end - 1);) end++;
            y = run(x.f.m, &s, first, end, end == s.n_prompt);
          }
          assert_memory_equal(tensor_row(&y, 0), expected, n_bytes);
        }
        free(expected);
      }
      media_fixture_close(&x);
    }
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_intervals),
    cmocka_unit_test(test_golden),
    cmocka_unit_test(test_from_files),
    cmocka_unit_test(test_same_bits),
};
TEST_MAIN(tests)
