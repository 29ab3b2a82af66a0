/* t_draft.c — guesses: the index against a slow twin, and the same answer to the bit with and without, by every road. */
#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "engine/roads.h"

/* ---- the index -------------------------------------------------------------------------------------------------------------- */

/* The longest match, newest first, of the last DRAFT_LOOKS places where the last DRAFT_KEY tokens stood before; what followed there. */
static int twin_next(const int32_t *tokens, int n, int n_max, int32_t *out) {
  int best = 0, longest = 0, looks = 0;
  for (int at = n - 1; at >= DRAFT_KEY && looks < DRAFT_LOOKS; at--) {
    int len = 0;
    while (len < DRAFT_MATCH_MAX && len < at && tokens[at - 1 - len] == tokens[n - 1 - len]) len++;
    if (len < DRAFT_KEY) continue;
    looks++;
    if (len > longest) longest = len, best = at;
  }
  if (n <= DRAFT_KEY || !best) return 0;
  for (int i = 0; i < n_max; i++) out[i] = tokens[best + i % (n - best)];
  return n_max;
}

static void finds_what_a_slow_twin_finds(void **state) {
  (void)state;
  uint64_t rng = 1;
  int n_found = 0;
  for (int round = 0; round < 300; round++) {
    int32_t tokens[200];
    int vocab = test_rand_int(&rng, 1, 12), n = 0;
    struct draft d;
    assert_int_equal(draft_init(&d, test_rand_int(&rng, 0, 1) ? 1 << 20 : 1, NULL), 0);
    bool wide = d.tokens_max > 1000; /* so wide that no two n-grams meet by chance */
    while (n < 200) {
      int copy = test_rand_int(&rng, 0, 3), len = test_rand_int(&rng, 1, 12);
      len = MIN(len, 200 - n);
      int from = copy && n > len ? test_rand_int(&rng, 0, n - len) : -1;
      for (int i = 0; i < len; i++) tokens[n + i] = from >= 0 ? tokens[from + i] : test_rand_int(&rng, 0, vocab);
      n += len;
      int32_t want[DRAFT_TOKENS_MAX], got[DRAFT_TOKENS_MAX];
      int n_max = test_rand_int(&rng, 1, DRAFT_TOKENS_MAX);
      d.trust.n_offer = DRAFT_TOKENS_MAX;
      int n_got = draft_next(&d, tokens, n, n_max, got), n_want = twin_next(tokens, n, n_max, want);
      if (wide && (n_got != n_want || (n_got && memcmp(got, want, (size_t)n_got * sizeof *got))))
        fail_msg("round %d, %d tokens: %d guesses, expected %d", round, n, n_got, n_want);
      assert_true(n_got == 0 || n_got == n_max);
      n_found += n_got > 0;
    }
    draft_free(&d);
  }
  assert_true(n_found > 1000);
}

static void offers_as_much_as_pays(void **state) {
  (void)state;
  struct draft d;
  int32_t same[400] = {0}, out[DRAFT_TOKENS_MAX];
  assert_int_equal(draft_init(&d, 8, NULL), 0);
  assert_int_equal(draft_next(&d, same, 3, 64, out), 0); /* nothing before */
  assert_int_equal(draft_next(&d, same, 10, 64, out), DRAFT_OFFER_FIRST);
  assert_int_equal(draft_next(&d, same, 10, 2, out), 2);
  assert_int_equal(draft_next(&d, same, 10, 0, out), 0);
  draft_learn(&d.trust, 2, 2); /* the offer was not tried out */
  assert_int_equal(d.trust.n_offer, DRAFT_OFFER_FIRST);
  for (int i = 0; i < 8; i++) draft_learn(&d.trust, d.trust.n_offer, d.trust.n_offer);
  assert_int_equal(d.trust.n_offer, DRAFT_TOKENS_MAX);
  assert_true(draft_chance(&d.trust) > 240);
  int n_steps = 0;
  for (; d.trust.n_offer; n_steps++) draft_learn(&d.trust, d.trust.n_offer, 0);
  assert_int_equal(n_steps, 7);
  assert_true(draft_chance(&d.trust) < 240);
  int n = 10;
  for (; n < 10 + DRAFT_QUIET - 1; n++) assert_int_equal(draft_next(&d, same, n, 64, out), 0);
  assert_int_equal(draft_next(&d, same, n, 64, out), 1); /* one is tried again */
  draft_learn(&d.trust, 1, 1);
  assert_int_equal(d.trust.n_offer, 2);
  draft_free(&d);
}

static void memory_runs_out(void **state) {
  (void)state;
  struct draft d;
  struct err e = {0};
  int32_t same[400] = {0}, out[8];
  for (int n = 1; n <= 2; n++) {
    mem_fail_after(n);
    assert_int_equal(draft_init(&d, 8, &e), -1);
    mem_fail_after(0);
    draft_free(&d);
  }
  assert_int_equal(draft_init(&d, 8, &e), 0);
  mem_fail_after(1);
  assert_int_equal(draft_next(&d, same, 100, 8, out), 0); /* cannot grow: no guesses */
  mem_fail_after(0);
  assert_int_equal(draft_next(&d, same, 101, 8, out), DRAFT_OFFER_FIRST);
  draft_free(&d);
}

/* ---- the same answers -------------------------------------------------------------------------------------------------------- */

enum { N_ASKED = 10, GEMMA4_VOCAB = 300 };

struct asked { /* what a request borrows */
  int32_t prompt[60], stop_id;
  char stop[8];
  const char *stops[1];
  struct cygnet_bias bias[4];
};

/* Prompts that repeat themselves and each other; all kinds of endings. Stop strings and ids are put in when the answer is known. */
static void make_request(uint64_t *rng, struct asked *q, const struct asked *other, int i, int vocab, struct cygnet_request *r) {
  int period = test_rand_int(rng, 1, 9), n = test_rand_int(rng, 1, 60);
  memset(q, 0, sizeof *q);
  for (int k = 0; k < n; k++) q->prompt[k] = k < period ? test_rand_int(rng, 3, vocab - 1) : q->prompt[k - period];
  if (other) memcpy(q->prompt, other->prompt, (size_t)MIN(n, 20) * sizeof(int32_t)); /* a prefix that is there already */
  q->prompt[0] = 2;
  *r = (struct cygnet_request){.prompt = q->prompt, .n_prompt = (size_t)n, .max_tokens = test_rand_int(rng, 1, 40)};
  if (i % 2) r->logprobs = 1 + test_rand_int(rng, 0, N_TOP);
  r->ignore_eos = test_rand_int(rng, 0, 1);
  r->keep_stop = test_rand_int(rng, 0, 1);
  r->marks = test_rand_int(rng, 0, 1);
  r->sampling.has_seed = 1;
  r->sampling.seed = (uint64_t)i;
  switch (test_rand_int(rng, 0, 4)) {
  case 0: r->sampling.temperature = 1; break;
  case 1: r->sampling.temperature = 0.3, r->sampling.top_k = 3; break;
  case 2: r->sampling.frequency_penalty = 0.2, r->sampling.repetition_penalty = 1.1; break;
  default: break; /* greedy */
  }
  if (test_rand_int(rng, 0, 2) == 0) r->sampling.min_tokens = test_rand_int(rng, 0, r->max_tokens);
  if (i % 5 != 4) { /* few words: random models do not repeat themselves otherwise */
    for (int k = 0; k < 3; k++) q->bias[k] = (struct cygnet_bias){.id = test_rand_int(rng, 3, vocab - 1), .bias = 9};
    q->bias[3] = (struct cygnet_bias){.id = 1, .bias = (float)test_rand_int(rng, 0, 8)};
    r->sampling.bias = q->bias;
    r->sampling.n_bias = 4;
  }
  if (i % 4 == 0) r->prompt_logprobs = 1 + test_rand_int(rng, 0, n - 1), r->logprobs = 1;
}

/* Ends that its own answer has: a token or some bytes of it. */
static void add_ends(struct cygnet *c, struct roads *x) {
  (void)c;
  for (int i = 0; i < x->n; i++) {
    struct asked *q = (struct asked *)x->ctx + i;
    struct cygnet_request *r = &x->trips[i].r;
    const struct answer *a = &x->trips[i].want;
    if (a->n > 4 && test_rand_int(&x->rng, 0, 1)) {
      q->stop_id = a->ids[test_rand_int(&x->rng, 0, a->n - 1)];
      r->stop_ids = &q->stop_id, r->n_stop_ids = 1;
    }
    size_t at = a->text.len > 8 ? (size_t)test_rand_int(&x->rng, 0, (int)a->text.len - 8) : 0, len = (size_t)test_rand_int(&x->rng, 1, 4);
    if (a->text.len <= 8 || !utf8_valid(a->text.data + at, len) || memchr(a->text.data + at, 0, len)) continue;
    memcpy(q->stop, a->text.data + at, len);
    q->stops[0] = q->stop;
    r->stop = q->stops, r->n_stop = 1;
  }
}

static void travel(struct roads *x, struct cygnet_options base, int vocab, uint64_t seed, int n_roads) {
  struct trip *trips = calloc(N_ASKED, sizeof *trips);
  struct asked *asked = calloc(N_ASKED, sizeof *asked);
  assert_true(trips && asked);
  x->base = base, x->trips = trips, x->n = N_ASKED, x->n_roads = n_roads, x->rng = seed, x->ctx = asked, x->asked = add_ends;
  for (int i = 0; i < N_ASKED; i++) make_request(&x->rng, &asked[i], i % 3 == 2 ? &asked[i - 1] : NULL, i, vocab, &trips[i].r);
  roads_travel(x);
  free(trips);
  free(asked);
}

static void same_answers_with_drafts(void **state) {
  (void)state;
  struct roads x = {.n = 0};
  for (uint64_t seed = 1; seed <= (uint64_t)fewer(3); seed++)
    travel(&x, (struct cygnet_options){.model = narrow()}, NARROW_VOCAB, seed, few_roads() ? 2 : 5);
  if (few_roads()) return; /* counts are those of more roads */
  travel(&x, (struct cygnet_options){.model = tiny(), .kv_type = "q8_0"}, VOCAB, 9, 2);
  travel(&x, (struct cygnet_options){.model = narrow(), .isa = "ref", .kv_type = "f32"}, NARROW_VOCAB, 10, 2);
  travel(&x, (struct cygnet_options){.model = narrow(), .attn = "ref"}, NARROW_VOCAB, 11, 2);
  static const char *const gemma4[] = {"golden/gemma4-e-tiny/model-q8_0.gguf", "golden/gemma4-moe-tiny/model-bf16.gguf",
                                       "golden/gemma4-dense-tiny", "golden/gemma4-12b-tiny"};
  for (size_t i = 0; i < ARRAY_LEN(gemma4); i++)
    travel(&x, (struct cygnet_options){.model = test_path(gemma4[i])}, GEMMA4_VOCAB, 20 + i, 2);
  printf("  %d guesses computed, %d of them right, %d steps replayed, %d retractions\n", (int)x.n_drafted, (int)x.n_accepted,
         (int)x.n_replayed, (int)x.n_retracted);
  assert_true(x.n_accepted > 300 && x.n_drafted > x.n_accepted && x.n_replayed > 100 && x.n_retracted > 100);
}

/* An answer that repeats itself takes fewer steps; nothing is left behind; the counters agree. */
static void drafts_save_steps(void **state) {
  (void)state;
  int32_t ids[8] = {2, 300, 301, 302, 300, 301, 302, 300};
  struct cygnet_bias bias[3] = {{.id = 301, .bias = 100}};
  struct cygnet_request r = {.prompt = ids, .n_prompt = 8, .max_tokens = 60, .ignore_eos = 1, .sampling = {.bias = bias, .n_bias = 1}};
  struct answer a, b;
  struct cygnet *c = open_with((struct cygnet_options){.draft_tokens = -1});
  ask(c, &r, &a, false);
  uint64_t n_without = c->stats.n_steps;
  cygnet_close(c);
  c = open_with((struct cygnet_options){.max_running = 1});
  c->worth_from_ms = INFINITY;
  ask(c, &r, &b, false);
  assert_same(&a, &b, "drafts");
  struct cygnet_stats st;
  cygnet_stats(c, &st);
  assert_int_equal(n_without, 60);
  assert_true(st.n_steps < 20 && st.accepted_tokens > 40 && st.accepted_tokens <= st.drafted_tokens);
  assert_int_equal(st.generated_tokens, 60);
  assert_int_equal(st.n_steps + st.accepted_tokens, 60);
  assert_int_equal(st.computed_tokens, 8);
  answer_free(&b);
  cygnet_close(c);
  answer_free(&a);
}

/* What a row costs beside what it may save decides how many are guessed, and nothing else does. */
static void guesses_that_do_not_pay_are_left_out(void **state) {
  (void)state;
  int32_t ids[20], prompt[] = {300, 301};
  for (int i = 0; i < 20; i++) ids[i] = prompt[i % 2];
  struct cygnet_bias bias[] = {{.id = 300, .bias = 100}};
  struct cygnet_request r = {.prompt = ids, .n_prompt = 20, .max_tokens = 30, .ignore_eos = 1, .sampling = {.bias = bias, .n_bias = 1}};
  struct answer want, a;
  for (int dear = 0; dear < 2; dear++) {
    struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
    c->worth_from_ms = 0;
    answer_init(&a, &r, false);
    submit(c, &r);
    while (cygnet_step(c)) {
      drain(c);
      check(c);
      c->decode_ms = 10, c->ahead_ms = dear ? 11 : 0.001;
    }
    drain(c);
    assert_true(a.over);
    if (dear) assert_in_range(c->stats.drafted_tokens, 0, 8); /* only while nothing was known */
    else assert_true(c->stats.accepted_tokens > 15);
    if (dear) assert_same(&want, &a, "dear"), answer_free(&want), answer_free(&a);
    else want = a;
    cygnet_close(c);
  }
}

/* Where the batch has no places left for logits, or no rows, nobody waits and nothing breaks. */
static void drafts_only_where_there_is_room(void **state) {
  (void)state;
  CPU_ONLY("it counts pages of 4 tokens");
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow(), .max_running = 40, .chunk_tokens = 8, .page_tokens = 4});
  c->worth_from_ms = INFINITY;
  static struct answer a[40];
  static int32_t ids[40][8];
  static const struct cygnet_bias always = {300, 100};
  int out_max = c->plan.sched.out_max, rows_max = c->plan.sched.rows_max, most = 0;
  assert_int_equal(out_max, 40);
  for (int i = 0; i < 40; i++) {
    for (int k = 0; k < 8; k++) ids[i][k] = k % 2 ? 300 : 300 + i % 3;
    struct cygnet_request r = {.prompt = ids[i], .n_prompt = 8, .max_tokens = 10 + i, .ignore_eos = 1, .logprobs = 1};
    if (i % 2) r.sampling.bias = &always, r.sampling.n_bias = 1; /* of these guesses are right */
    answer_init(&a[i], &r, false);
    submit(c, &r);
  }
  while (cygnet_step(c)) {
    int n_rows = 0, n_out = 0;
    for (int i = 0; i < c->sched.n_picks; i++) n_rows += c->sched.picks[i].n, n_out += c->sched.picks[i].n_out;
    assert_true(n_rows <= rows_max && n_out <= out_max);
    most = MAX(most, n_out);
    check(c);
    drain(c);
  }
  assert_int_equal(most, out_max);
  assert_true(c->stats.accepted_tokens > 0);
  for (int i = 0; i < 40; i++) assert_true(a[i].over && a[i].n == 10 + i), answer_free(&a[i]);
  cygnet_close(c);
}

/* A request is given up in the middle of guesses: nobody notices, nothing is held, nothing goes on. */
static void aborted_between_guesses(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow(), .page_tokens = 1, .max_running = 2});
  int32_t ids[9] = {2, 300, 301, 300, 301, 300, 301, 300, 301};
  for (int at = 1; at < 20; at++) {
    struct answer a;
    struct cygnet_request r = {.prompt = ids, .n_prompt = 9, .max_tokens = 100, .ignore_eos = 1};
    answer_init(&a, &r, false);
    submit(c, &r);
    for (int i = 0; i < at; i++) cygnet_step(c), check(c), drain(c);
    if (!a.over) cygnet_abort(c, a.number);
    run(c);
    assert_true(a.over);
    assert_int_equal(cygnet_step(c), 0);
    answer_free(&a);
  }
  cygnet_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(finds_what_a_slow_twin_finds),
    cmocka_unit_test(offers_as_much_as_pays),
    cmocka_unit_test(memory_runs_out),
    cmocka_unit_test(same_answers_with_drafts),
    cmocka_unit_test(drafts_save_steps),
    cmocka_unit_test(guesses_that_do_not_pay_are_left_out),
    cmocka_unit_test(drafts_only_where_there_is_room),
    cmocka_unit_test(aborted_between_guesses),
};
TEST_MAIN(tests)
