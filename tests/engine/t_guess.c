/* t_guess.c — a drafter beside prompt look-up: the same answers to the bit by every road, guesses that come true, what it costs, what is refused. */
#include "test.h"

#include <string.h>

#include "engine/roads.h"
#include "models/drafter_maker.h"

static const struct drafter_shape four = {"sssf", 16, 24, 4, 20, 3, 0}, wide = {"sff", 32, 40, 8, 0, 0, 0};

#ifdef CYGNET_DEBUG
enum { SPARSE = 2, MEMORY_STRIDE = 13 }; /* every invariant is checked after every step */
#else
enum { SPARSE = 1, MEMORY_STRIDE = 3 };
#endif

static const char e_tiny[] = "golden/gemma4-e-tiny";

/* Configuration and embeddings of a tiny model. */
struct target {
  struct model_config config;
  float *embed; /* [vocab, hidden] */
};
static void target_read(struct target *t, const char *path) {
  struct err e = {0};
  struct weight_view v;
  struct weights *w = weights_open(test_path(path), &t->config, &e);
  if (!w || weights_get(w, "token_embd.weight", t->config.vocab, t->config.hidden, &v, &e)) fail_msg("%s", e.msg);
  size_t n = (size_t)t->config.vocab * (size_t)t->config.hidden;
  t->embed = xcalloc(n, sizeof *t->embed);
  for (int r = 0; r < t->config.vocab; r++)
    dtype_to_f32(v.dtype, (const char *)v.data + (size_t)r * v.row_bytes, t->embed + (ptrdiff_t)r * t->config.hidden,
                 (size_t)t->config.hidden);
  weights_close(w);
}

/* A drafter of random weights in a folder of its own. */
static const char *random_drafter(const char *path, const struct drafter_shape *shape, const char *name, uint64_t seed) {
  struct target t;
  struct drafter_maker m;
  target_read(&t, path);
  maker_init(&m, &t.config, shape, seed);
  const char *folder = maker_write_folder(&m, name, NULL, NULL);
  maker_free(&m);
  free(t.embed);
  return folder;
}

/* A drafter that says next[t] behind t, where that is not -1: its layers add nothing, its input is the token's embedding, and a token's row of its table
 * is the direction of the embedding that comes before it. */
static const char *scripted_drafter(const struct target *t, const int32_t *next, const char *name) {
  int width = t->config.hidden;
  struct drafter_shape shape = {"sssf", width, 24, 4, 0, 0, 0};
  struct drafter_maker m;
  maker_init(&m, &t->config, &shape, 5);
  for (int i = 0; i < m.n; i++) {
    struct made_tensor *x = &m.t[i];
    bool silent = strstr(x->gguf, "post_attention_norm") || strstr(x->gguf, "post_ffw_norm");
    bool one = strstr(x->gguf, "layer_output_scale") || !strcmp(x->gguf, "output_norm.weight");
    for (int64_t j = 0; j < x->shape[0] && (silent || one); j++) x->data[j] = one;
  }
  struct made_tensor *pre = maker_find(&m, "nextn.pre_projection.weight"), *table = maker_find(&m, "token_embd.weight");
  memset(pre->data, 0, sizeof(float) * (size_t)(2 * width * width));
  for (int i = 0; i < width; i++) pre->data[i * 2 * width + i] = 1;
  memset(table->data, 0, sizeof(float) * (size_t)(t->config.vocab * width));
  for (int token = 0; token < t->config.vocab; token++) {
    const float *e = t->embed + (ptrdiff_t)token * width;
    double size = 0;
    if (next[token] < 0) continue;
    for (int i = 0; i < width; i++) size += (double)e[i] * (double)e[i];
    for (int i = 0; i < width; i++) table->data[next[token] * width + i] += (float)((double)e[i] / sqrt(size));
  }
  const char *folder = maker_write_folder(&m, name, NULL, NULL);
  maker_free(&m);
  return folder;
}

/* ---- the same answers -------------------------------------------------------------------------------------------------------- */

enum { N_ASKED = 9, PROMPT_MOST = 40 };

struct asked {
  int32_t prompt[PROMPT_MOST];
  struct cygnet_bias bias[3];
};

static void make_request(uint64_t *rng, struct asked *q, const struct asked *other, int i, int vocab, struct cygnet_request *r) {
  int n = test_rand_int(rng, 1, PROMPT_MOST);
  memset(q, 0, sizeof *q);
  for (int k = 0; k < n; k++) q->prompt[k] = test_rand_int(rng, 3, vocab - 1);
  if (other) memcpy(q->prompt, other->prompt, (size_t)MIN(n, 25) * sizeof(int32_t));
  q->prompt[0] = 2;
  *r = (struct cygnet_request){.prompt = q->prompt, .n_prompt = (size_t)n, .max_tokens = test_rand_int(rng, 1, 40)};
  r->ignore_eos = 1;
  r->sampling.has_seed = 1;
  r->sampling.seed = (uint64_t)i;
  if (i % 3 == 1) r->logprobs = 1 + test_rand_int(rng, 0, N_TOP);
  if (i % 4 == 1) r->sampling.temperature = 0.7, r->sampling.top_k = 5;
  if (i % 5 == 4) r->prompt_logprobs = 1 + test_rand_int(rng, 0, n - 1), r->logprobs = 1;
  if (i % 2) { /* few words */
    for (int k = 0; k < 3; k++) q->bias[k] = (struct cygnet_bias){.id = test_rand_int(rng, 3, vocab - 1), .bias = 9};
    r->sampling.bias = q->bias;
    r->sampling.n_bias = 3;
  }
}

static uint64_t n_guesses, n_right; /* of drafters, in all roads of a case */
static void count(struct cygnet *c, struct roads *x) {
  (void)x;
  n_guesses += c->stats.draft_model_tokens;
  n_right += c->stats.draft_model_accepted_tokens;
}

/* With a script, the drafter learns what the plain engine says to these very requests. */
static void travel(struct roads *x, const char *model, const struct drafter_shape *shape, struct cygnet_options base, uint64_t seed,
                   int n_roads) {
  struct trip *trips = calloc(N_ASKED, sizeof *trips);
  struct asked *asked = calloc(N_ASKED, sizeof *asked);
  struct target t;
  int32_t next[512];
  assert_true(trips && asked);
  target_read(&t, model);
  base.model = test_path(model);
  x->base = base, x->trips = trips, x->n = N_ASKED, x->n_roads = n_roads, x->rng = seed, x->closing = count;
  for (int i = 0; i < N_ASKED; i++) make_request(&x->rng, &asked[i], i % 3 == 2 ? &asked[i - 1] : NULL, i, t.config.vocab, &trips[i].r);
  if (shape) {
    x->base.draft_model = random_drafter(model, shape, "random", seed);
  } else {
    for (int i = 0; i < 512; i++) next[i] = -1;
    base.draft_tokens = -1;
    struct cygnet *c = open_with(base);
    for (int i = 0; i < N_ASKED; i++) {
      struct answer a;
      ask(c, &trips[i].r, &a, false);
      for (int k = 0; k + 1 < a.n; k++)
        if (next[a.ids[k]] < 0) next[a.ids[k]] = a.ids[k + 1];
      answer_free(&a);
    }
    cygnet_close(c);
    x->base.draft_model = scripted_drafter(&t, next, "scripted");
  }
  roads_travel(x);
  free(trips);
  free(asked);
  free(t.embed);
}

static void same_answers_with_a_drafter(void **state) {
  (void)state;
  static const char *const models[] = {e_tiny, "golden/gemma4-dense-tiny", "golden/gemma4-moe-tiny", "golden/gemma4-12b-tiny"};
  for (int scripted = 0; scripted < 2; scripted++) {
    struct roads x = {.n = 0};
    const struct drafter_shape *shape = scripted ? NULL : &four;
    n_guesses = n_right = 0;
    for (size_t i = 0; i < ARRAY_LEN(models); i += SPARSE)
      travel(&x, models[i], scripted ? NULL : i % 3 ? &wide : &four, (struct cygnet_options){0}, 40 + i, 2);
    const struct cygnet_options others[] = {{.attn = "ref", .kv_type = "f16"}, {.isa = "ref", .kv_type = "f32"}, {.quant = "q8_0"}};
    for (size_t i = 0; i < ARRAY_LEN(others) / SPARSE; i++) travel(&x, e_tiny, shape, others[i], 60 + i, 2);
    printf("  %s: %d guesses of %d were the drafter's, %d of them right; %d steps replayed, %d retractions\n",
           scripted ? "scripted" : "random", (int)n_guesses, (int)x.n_drafted, (int)n_right, (int)x.n_replayed, (int)x.n_retracted);
    if (scripted) assert_true(n_right > 1000 / SPARSE && 2 * n_right > n_guesses);
    else assert_true(n_guesses > 500 / SPARSE);
    assert_true(x.n_replayed > 50 && x.n_retracted > 20);
  }
}

/* ---- guesses that come true ----------------------------------------------------------------------------------------------------- */

/* A script of one answer, whose tokens all differ, so that prompt look-up has nothing to say. */
struct script {
  struct target target;
  int32_t ids[30];
  struct cygnet_request r;
  struct answer want;
  const char *folder;
};
static void script_open(struct script *s) {
  int32_t next[512];
  uint64_t rng = 17;
  memset(s, 0, sizeof *s);
  target_read(&s->target, e_tiny);
  for (int i = 0; i < 512; i++) next[i] = -1;
  for (int i = 0; i < 30; i++) s->ids[i] = test_rand_int(&rng, 3, s->target.config.vocab - 1);
  s->r = (struct cygnet_request){.prompt = s->ids,
                                 .n_prompt = 30,
                                 .max_tokens = 60,
                                 .ignore_eos = 1,
                                 .sampling = {.frequency_penalty = 2, .presence_penalty = 2, .repetition_penalty = 2}};
  struct cygnet *c = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_tokens = -1});
  ask(c, &s->r, &s->want, false);
  assert_int_equal(c->stats.n_steps, 60);
  cygnet_close(c);
  int n_differ = 0;
  for (int k = 0; k + 1 < s->want.n; k++)
    if (next[s->want.ids[k]] < 0) next[s->want.ids[k]] = s->want.ids[k + 1], n_differ++;
  assert_true(n_differ > 50);
  s->folder = scripted_drafter(&s->target, next, "script");
}
static void script_close(struct script *s) {
  answer_free(&s->want);
  free(s->target.embed);
}

static void a_good_drafter_saves_steps(void **state) {
  (void)state;
  struct script s;
  script_open(&s);
  for (int n = 1; n <= 16; n *= 2) {
    struct answer a;
    struct cygnet *c = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_model = s.folder, .draft_tokens = n});
    struct cygnet_stats st;
    c->worth_from_ms = INFINITY;
    ask(c, &s.r, &a, false);
    assert_same(&s.want, &a, "drafter");
    answer_free(&a);
    cygnet_stats(c, &st);
    printf("  up to %d guesses: %d steps for 60 tokens, %d of %d right\n", n, (int)st.n_steps, (int)st.draft_model_accepted_tokens,
           (int)st.draft_model_tokens);
    assert_true(10 * st.draft_model_accepted_tokens > 7 * st.draft_model_tokens);
    assert_true(st.drafted_tokens >= st.draft_model_tokens && st.accepted_tokens >= st.draft_model_accepted_tokens);
    assert_int_equal(st.n_steps + st.accepted_tokens, 60);
    assert_true(n == 1 ? st.n_steps <= 36 : n >= 8 ? st.n_steps < 20 : st.n_steps < 30);
    cygnet_close(c);
  }
  script_close(&s);
}

/* What a guess of the drafter costs counts. */
static void a_dear_drafter_is_left_alone(void **state) {
  (void)state;
  struct script s;
  script_open(&s);
  for (int dear = 0; dear < 2; dear++) {
    struct answer a;
    struct cygnet *c = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_model = s.folder});
    c->worth_from_ms = 0;
    answer_init(&a, &s.r, false);
    submit(c, &s.r);
    do {
      c->decode_ms = 10, c->ahead_ms = 0.001, c->guesser.drafter_ms = dear ? 11 : 0.001;
      check(c);
      drain(c);
    } while (cygnet_step(c));
    drain(c);
    assert_true(a.over);
    assert_same(&s.want, &a, "cost");
    if (dear) assert_int_equal(c->stats.draft_model_tokens, 0);
    else assert_true(c->stats.draft_model_accepted_tokens > 30);
    answer_free(&a);
    cygnet_close(c);
  }
  script_close(&s);
}

/* One that is never right is asked less and less. */
static void a_bad_drafter_is_asked_rarely(void **state) {
  (void)state;
  struct script s;
  script_open(&s);
  struct answer a;
  struct cygnet *c = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_model = random_drafter(e_tiny, &four, "bad", 3)});
  c->worth_from_ms = INFINITY;
  ask(c, &s.r, &a, false);
  assert_same(&s.want, &a, "bad drafter");
  assert_in_range(c->stats.draft_model_tokens, 4, 20); /* 4, 2, 1, and one now and then */
  answer_free(&a);
  cygnet_close(c);
  script_close(&s);
}

/* Nothing is drawn that there is no place for in the step. */
static void guesses_only_where_there_is_room(void **state) {
  (void)state;
  enum { N = 40 };
  struct script s;
  static struct answer a[N];
  script_open(&s);
  struct cygnet *c = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_model = s.folder, .max_running = N});
  c->worth_from_ms = INFINITY;
  assert_int_equal(c->plan.sched.out_max, N);
  for (int i = 0; i < N; i++) {
    struct cygnet_request r = s.r;
    r.max_tokens = 20 + i;
    answer_init(&a[i], &r, false);
    submit(c, &r);
  }
  int n_crowded = 0;
  bool settled = false; /* nobody came in this step or the one before */
  for (int n_running = 0; cygnet_step(c); n_running = c->sched.running.n) {
    static uint64_t n_drawn, n_computed;
    if (n_running == N) assert_int_equal(c->guesser.n_drawn, n_drawn);
    if (settled) assert_int_equal(c->guesser.n_drawn - n_drawn, c->stats.draft_model_tokens - n_computed);
    n_crowded += n_running == N;
    settled = !c->sched.waiting.n && c->sched.running.n <= n_running;
    n_drawn = c->guesser.n_drawn, n_computed = c->stats.draft_model_tokens;
    check(c);
    drain(c);
  }
  assert_true(n_crowded > 5 && c->stats.draft_model_accepted_tokens > 50);
  for (int i = 0; i < N; i++) {
    assert_true(a[i].over && a[i].n == 20 + i && memcmp(a[i].ids, s.want.ids, (size_t)a[i].n * sizeof(int32_t)) == 0);
    answer_free(&a[i]);
  }
  cygnet_close(c);
  script_close(&s);
}

/* ---- memory and refusals ------------------------------------------------------------------------------------------------------------ */

static void it_is_in_the_plan(void **state) {
  (void)state;
  const char *folder = random_drafter(e_tiny, &wide, "planned", 3);
  struct cygnet *plain = open_with((struct cygnet_options){.model = test_path(e_tiny)});
  struct cygnet *beside = open_with((struct cygnet_options){.model = test_path(e_tiny), .draft_model = folder});
  struct cygnet_info a, b;
  struct buf text;
  cygnet_info(plain, &a);
  cygnet_info(beside, &b);
  assert_null(a.draft_model);
  assert_string_equal(b.draft_model, "planned");
  assert_true(b.weight_bytes > a.weight_bytes && b.packed_bytes > a.packed_bytes);
  assert_int_equal(a.kv_token_bytes_full, b.kv_token_bytes_full);
  assert_int_equal(a.pool_full_tokens, b.pool_full_tokens);
  const struct plan *p = &plain->plan, *q = &beside->plan;
  assert_true(p->drafter_bytes == 0 && q->drafter_bytes > 0 && q->weight_bytes == p->weight_bytes + q->drafter_bytes);
  assert_true(q->scratch_bytes >= p->scratch_bytes + guess_bytes(q) && guess_bytes(q) > 0);
  buf_init(&text, 0);
  plan_print(q, &beside->config, &text);
  assert_non_null(strstr(buf_cstr(&text), "of them the drafter's"));
  buf_free(&text);
  cygnet_close(plain);
  cygnet_close(beside);
}

static void refused(struct cygnet_options o, const char *expected) {
  struct cygnet_error e = {0};
  o.quiet = 1;
  if (cygnet_open(&o, &e)) fail_msg("expected \"%s\", found no error", expected);
  if (!strstr(e.message, expected)) fail_msg("expected \"%s\", found \"%s\"", expected, e.message);
  assert_int_equal(e.exit_status, 2);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  const char *good = random_drafter(e_tiny, &four, "good", 3);
  refused((struct cygnet_options){.model = good}, "this is a drafter, it only guesses for another model: use --draft-model");
  refused((struct cygnet_options){.model = test_path(e_tiny), .draft_model = test_path(e_tiny)}, "--draft-model: ");
  refused((struct cygnet_options){.model = test_path(e_tiny), .draft_model = test_path(e_tiny)}, "expected a drafter (gemma4_assistant)");
  refused((struct cygnet_options){.model = test_path(e_tiny), .draft_model = "/nowhere/at/all"}, "--draft-model: ");
  refused((struct cygnet_options){.model = test_path("golden/gemma4-dense-tiny"), .draft_model = good}, "one for 64");
  refused((struct cygnet_options){.model = tiny(), .draft_model = good}, "guesses for models of its family, found gemma3");
}

static void memory_runs_out(void **state) {
  (void)state;
  const char *folder = random_drafter(e_tiny, &four, "short", 3);
  struct cygnet_options o = {.model = test_path(e_tiny), .draft_model = folder, .threads = 1, .ctx_tokens = 128, .quiet = 1};
  int n_failed = 0;
  for (int64_t n = 1;; n += MEMORY_STRIDE) {
    struct cygnet_error e = {0};
    mem_fail_after(n);
    struct cygnet *c = cygnet_open(&o, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (c) {
      cygnet_close(c);
      if (pending) break;
      continue;
    }
    assert_int_equal(e.status, 500);
    n_failed++;
  }
  printf("  %d openings failed\n", n_failed);
  assert_true(n_failed * MEMORY_STRIDE > 150);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(same_answers_with_a_drafter),      cmocka_unit_test(a_good_drafter_saves_steps),
    cmocka_unit_test(a_dear_drafter_is_left_alone),     cmocka_unit_test(a_bad_drafter_is_asked_rarely),
    cmocka_unit_test(guesses_only_where_there_is_room), cmocka_unit_test(it_is_in_the_plan),
    cmocka_unit_test(what_does_not_fit_is_refused),     cmocka_unit_test(memory_runs_out),
};
TEST_MAIN(tests)
