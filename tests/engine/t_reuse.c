/* t_reuse.c — what the engine reuses between requests: the same answers to the bit as an engine that reuses nothing, and not a token more
 * computed than need be. Prompt log-probabilities stand here, too, because they decide what may be reused. */
#include "engine/asking.h"

#ifdef CYGNET_DEBUG
enum { LESS = 4 }; /* every invariant is checked after every step: fewer lengths are tried */
#else
enum { LESS = 1 };
#endif
#define SPARSE (on_npu() ? 8 : LESS)
enum { CTX = 128 };
/* On an emulated NPU under ThreadSanitizer opening an engine takes seconds: so many requests, and so many bytes are near enough. */
enum { TSAN_TRAFFIC = 40, TSAN_NEAR = 1 << 18 };
static bool slowest(void) { return TEST_TSAN && on_npu(); }

static struct cygnet *cold_of(struct cygnet_options o) { /* nothing is reused, every step is prepared anew */
  o.disable_prefix_cache = o.disable_graph = 1;
  return open_with(o);
}

/* Digests of the logits that tokens were chosen from, by position; steps that are tapped are not replayed. */
struct watch {
  struct cygnet *c;
  uint64_t digest[CTX];
  int row;
};

static void watch_logits(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct watch *w = ctx;
  (void)layer;
  if (strcmp(name, "logits")) return;
  const struct batch *b = &w->c->batch;
  uint64_t h = 1;
  for (int i = 0; i < cols; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    h = (h ^ bits) * 0x9e3779b97f4a7c15u;
    h ^= h >> 31;
  }
  w->digest[b->pos[b->out[row]]] = h;
}

static void watch(struct watch *w, struct cygnet *c) {
  memset(w, 0, sizeof *w);
  w->c = c;
  c->model->tap = watch_logits;
  c->model->tap_ctx = w;
}

/* The same request put to both; returns how many tokens the warm one reused. */
static int ask_both(struct cygnet *warm, struct cygnet *cold, struct cygnet_request r, struct answer *out, const char *road) {
  struct answer a, b;
  ask(warm, &r, &a, false);
  ask(cold, &r, &b, false);
  assert_same(&b, &a, road);
  assert_int_equal(b.last.cached_tokens, 0);
  int n = a.last.cached_tokens;
  answer_free(&b);
  if (out) *out = a;
  else answer_free(&a);
  return n;
}

static struct cygnet_request question(const int32_t *ids, int n, int max_tokens) {
  return (struct cygnet_request){.prompt = ids, .n_prompt = (size_t)n, .max_tokens = max_tokens, .ignore_eos = 1, .logprobs = 1 + N_TOP};
}

/* ---- lengths ------------------------------------------------------------------------------------------------------------------ */

/* A prompt of n tokens, then the same and one more: all n are reused, whatever n is. Around pages, windows and chunks. */
static void every_length(struct cygnet_options o, int most, int step) {
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  uint64_t rng = 5;
  for (int n = 1; n <= most; n += step * (on_npu() ? 16 : SPARSE)) {
    int32_t ids[CTX];
    struct watch hot, fresh;
    random_prompt(&rng, ids, n + 1);
    ids[0] = 3 + n; /* every length for itself */
    assert_int_equal(ask_both(warm, cold, question(ids, n, 3), NULL, "first"), 0);
    assert_int_equal(ask_both(warm, cold, question(ids, n, 3), NULL, "again"), n - 1);
    memset(&hot, 0, sizeof hot), memset(&fresh, 0, sizeof fresh);
    if (!slowest()) watch(&hot, warm), watch(&fresh, cold); /* which brings every result of every layer back from the device */
    assert_int_equal(ask_both(warm, cold, question(ids, n + 1, 2), NULL, "one more"), n);
    assert_memory_equal(hot.digest, fresh.digest, sizeof hot.digest);
    warm->model->tap = cold->model->tap = NULL;
  }
  struct cygnet_stats st;
  cygnet_stats(warm, &st);
  assert_int_equal(st.lost_window_tokens + st.lost_wanted_tokens, 0);
  assert_int_equal(st.computed_tokens, st.prompt_tokens - st.cached_tokens);
  cygnet_close(warm);
  cygnet_close(cold);
}

static void no_length_is_special(void **state) {
  (void)state;
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 1, .max_running = 32 / SPARSE}, 30, 1);
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 4, .max_running = 32 / SPARSE}, 60, 1);
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 16, .max_running = 32 / SPARSE}, 70, 1);
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 4, .max_running = 32 / SPARSE, .chunk_tokens = 7}, 40, 1);
  every_length((struct cygnet_options){.model = tiny(), .page_tokens = 8, .max_running = 32 / SPARSE, .kv_type = "q8_0"}, 40, 3);
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 8, .max_running = 32 / SPARSE, .attn = "ref"}, 20, 3);
  /* a sliding pool of full size reuses no less */
  every_length((struct cygnet_options){.model = narrow(), .page_tokens = 16, .max_running = 32 / SPARSE, .swa_full_ratio = 1}, 40, 3);
}

/* Two prompts part after n tokens, late or early, near or far from the ends of pages and windows; n tokens are reused. */
static void parting_anywhere(void **state) {
  (void)state;
  struct cygnet_options o = {.model = narrow(), .page_tokens = 8, .max_running = 32 / SPARSE};
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  uint64_t rng = 6;
  int32_t ids[CTX];
  random_prompt(&rng, ids, CTX);
  ask_both(warm, cold, question(ids, 100, 4), NULL, "first");
  for (int n = 1; n < 100; n += SPARSE + n % 3) {
    int32_t other[CTX];
    memcpy(other, ids, sizeof ids);
    other[n] = ids[n] == 9 ? 10 : 9;
    int cached = ask_both(warm, cold, question(other, MIN(n + 20, 110), 2), NULL, "parting");
    assert_int_equal(cached, n);
  }
  cygnet_close(warm);
  cygnet_close(cold);
}

/* ---- chats ---------------------------------------------------------------------------------------------------------------------- */

/* Seven turns, each the whole history again: only what is new is computed. The last token of an answer never was. Then changes of mind. There is
 * room for all places to go on from. */
static void chat(struct cygnet_options o) {
  o.max_running = 16;
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  int32_t ids[CTX], before[CTX];
  uint64_t rng = 7;
  int n = random_prompt(&rng, ids, 30), known = 0, before_n = 0;
  for (int turn = 0; turn < 7; turn++) {
    struct answer a;
    int cached = ask_both(warm, cold, question(ids, n, 6), &a, "turn");
    assert_int_equal(cached, known);
    if (turn == 4) memcpy(before, ids, sizeof ids), before_n = n;
    for (int i = 0; i < a.n; i++) ids[n++] = a.ids[i];
    known = n - 1;
    for (int i = 0; i < 5; i++) ids[n++] = test_rand_int(&rng, 3, NARROW_VOCAB - 1);
    answer_free(&a);
  }
  assert_int_equal(ask_both(warm, cold, question(before, before_n, 9), NULL, "regenerate"), before_n - 1);
  before[before_n - 3] ^= 1;
  assert_int_equal(ask_both(warm, cold, question(before, before_n, 4), NULL, "edit"), before_n - 3);
  int drop = 32; /* the first answer without its first 3 tokens: what is behind stands elsewhere now */
  memmove(ids + drop, ids + drop + 3, (size_t)(n - drop - 3) * sizeof *ids);
  assert_int_equal(ask_both(warm, cold, question(ids, n - 3, 4), NULL, "drop from the history"), drop);
  struct cygnet_stats st;
  cygnet_stats(warm, &st);
  assert_int_equal(st.evicted_sliding_tokens, 0);
  assert_true(st.n_resume_points > 8);
  cygnet_close(warm);
  cygnet_close(cold);
}

static void chats(void **state) {
  (void)state;
  chat((struct cygnet_options){.model = narrow()});
  chat((struct cygnet_options){.model = narrow(), .page_tokens = 4, .chunk_tokens = 16});
  chat((struct cygnet_options){.model = tiny(), .kv_type = "q8_0"});
}

/* One long prefix, many tails, one after another: nothing of one shows in the next. */
static void one_prefix_many_tails(void **state) {
  (void)state;
  struct cygnet_options o = {.model = tiny(), .max_running = 32 / SPARSE, .page_tokens = 4};
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  int32_t ids[CTX];
  uint64_t rng = 8;
  int prefix = random_prompt(&rng, ids, 3 * 8 + 7);
  for (int tail = 0; tail < rounds(20); tail++) {
    for (int i = 0; i < 10; i++) ids[prefix + i] = test_rand_int(&rng, 3, VOCAB - 1);
    ids[prefix] = 20 + tail;
    assert_int_equal(ask_both(warm, cold, question(ids, prefix + 10, 6), NULL, "tail"), tail ? prefix : 0);
  }
  cygnet_close(warm);
  cygnet_close(cold);
}

/* ---- from requests that still run ------------------------------------------------------------------------------------------------- */

static void from_running_and_prefilling(void **state) {
  (void)state;
  struct cygnet_options o = {.model = narrow(), .max_running = 8, .page_tokens = 4, .chunk_tokens = 8};
  struct cygnet *cold = cold_of(o);
  for (int steps = 0; steps < 24; steps += SPARSE) { /* 12 steps of prompt, then decoding */
    struct cygnet *warm = open_with(o);
    int32_t ids[CTX], other[CTX];
    uint64_t rng = 9;
    random_prompt(&rng, ids, 90);
    memcpy(other, ids, sizeof ids);
    other[80] ^= 1;
    struct cygnet_request r = question(ids, 90, 20), q = question(other, 90, 4);
    struct answer alone, first, second, expected;
    ask(cold, &r, &alone, false);
    ask(cold, &q, &expected, false);
    answer_init(&first, &r, false);
    submit(warm, &r);
    for (int i = 0; i < steps; i++) cygnet_step(warm), drain(warm);
    assert_false(first.over);
    answer_init(&second, &q, false);
    submit(warm, &q);
    run(warm);
    assert_same(&alone, &first, "the one that is reused");
    assert_same(&expected, &second, "the one that reuses");
    assert_int_equal(second.last.cached_tokens, 80);
    struct cygnet_stats st;
    cygnet_stats(warm, &st);
    assert_int_equal(st.computed_tokens, 90 + 10);
    answer_free(&alone), answer_free(&first), answer_free(&second), answer_free(&expected);
    cygnet_close(warm);
  }
  cygnet_close(cold);
}

/* Eight copies at once, one alone, one with a warm cache: one answer. The prompt is computed once. */
static void identical_requests(void **state) {
  (void)state;
  struct cygnet_options o = {.model = narrow(), .max_running = 8};
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  int32_t ids[CTX];
  uint64_t rng = 10;
  random_prompt(&rng, ids, 50);
  struct cygnet_request r = question(ids, 50, 12);
  struct answer expected, a[9];
  ask(cold, &r, &expected, false);
  for (int i = 0; i < 8; i++) answer_init(&a[i], &r, false), submit(warm, &r);
  run(warm);
  ask(warm, &r, &a[8], false);
  for (int i = 0; i < 9; i++) {
    assert_same(&expected, &a[i], "identical requests");
    assert_int_equal(a[i].last.cached_tokens, i ? 49 : 0);
    answer_free(&a[i]);
  }
  struct cygnet_stats st;
  cygnet_stats(warm, &st);
  assert_int_equal(st.computed_tokens, 50 + 8);
  assert_int_equal(st.prompt_tokens, 9 * 50);
  assert_int_equal(st.cached_tokens, 8 * 49);
  answer_free(&expected);
  cygnet_close(warm);
  cygnet_close(cold);
}

/* One request beside 32 others, which share beginnings with it and with each other, with all that a request may ask for. */
static void beside_many(void **state) {
  (void)state;
  struct cygnet_options o = {.model = narrow(), .max_running = 33, .page_tokens = 8, .chunk_tokens = 24, .threads = 2};
  struct cygnet *warm = open_with(o), *cold = cold_of(o);
  uint64_t rng = 11;
  for (int round = SPARSE / 2; round < 3; round++) {
    static struct answer others[32];
    int32_t ids[CTX];
    random_prompt(&rng, ids, CTX);
    struct cygnet_request r = question(ids, 60, 20);
    if (round == 1) r.sampling = (struct cygnet_sampling){.temperature = 1, .has_seed = 1, .seed = 9, .frequency_penalty = 1};
    struct answer expected, a;
    ask(cold, &r, &expected, false);
    for (int i = 0; i < 33; i++) {
      if (i == 16) {
        answer_init(&a, &r, false);
        submit(warm, &r);
        continue;
      }
      int32_t other[CTX];
      memcpy(other, ids, sizeof ids);
      int same = test_rand_int(&rng, 0, 70);
      for (int k = same; k < 90; k++) other[k] = test_rand_int(&rng, 3, NARROW_VOCAB - 1);
      struct cygnet_request q = question(other, test_rand_int(&rng, 1, 90), test_rand_int(&rng, 1, 30));
      answer_init(&others[i - (i > 16)], &q, i % 5 == 0);
      submit(warm, &q);
      if (i % 4 == 0) cygnet_step(warm), drain(warm);
    }
    for (int i = 0; cygnet_step(warm); i++) {
      drain(warm);
      if (i % 16 == 7) check(warm);
      if (round == 2 && i % 3 == 0 && warm->sched.running.n)
        sched_retract(&warm->sched, i % 2 ? warm->sched.running.first : warm->sched.running.last);
      if (round == 2 && i > 200) break;
    }
    run(warm);
    assert_same(&expected, &a, "beside 32 others");
    answer_free(&expected), answer_free(&a);
    for (int i = 0; i < 32; i++) answer_free(&others[i]);
  }
  cygnet_close(warm);
  cygnet_close(cold);
}

/* ---- ordinary traffic -------------------------------------------------------------------------------------------------------------- */

/* Unrelated and related prompts of all lengths, four at a time, with early ends, on pools that are too small for all that. */
static void traffic(struct cygnet_options o, int n_requests, size_t cache_bytes) {
  enum { AT_ONCE = 4, KEEP = 50 };
  static int32_t old[KEEP][CTX];
  static int old_n[KEEP];
  struct cygnet *cold = cold_of(o);
  o.mem_bytes = cache_bytes;
  struct cygnet *warm = open_with(o);
  struct answer a[AT_ONCE] = {0}, expected[AT_ONCE] = {0};
  bool busy[AT_ONCE] = {0}, compared[AT_ONCE] = {0};
  uint64_t rng = 12;
  int n_sent = 0, n_compared = 0;
  while (n_sent < n_requests || warm->sched.running.n + warm->sched.waiting.n) {
    for (int i = 0; i < AT_ONCE; i++) {
      if (busy[i] && a[i].over) {
        if (compared[i]) assert_same(&expected[i], &a[i], "traffic"), answer_free(&expected[i]), n_compared++;
        answer_free(&a[i]);
        busy[i] = false;
      }
      if (busy[i] && !compared[i] && test_rand_int(&rng, 0, 30) == 0) cygnet_abort(warm, a[i].number);
      if (busy[i] || n_sent == n_requests) continue;
      int slot = n_sent++ % KEEP, from = test_rand_int(&rng, 0, MIN(n_sent, KEEP) - 1), n = test_rand_int(&rng, 2, 100);
      int32_t *ids = old[slot];
      int same = test_rand_int(&rng, 0, 9) < 5 ? MIN(n, test_rand_int(&rng, 0, old_n[from])) : 0;
      memmove(ids, old[from], (size_t)same * sizeof *ids);
      for (int k = same; k < n; k++) ids[k] = test_rand_int(&rng, 3, NARROW_VOCAB - 1);
      old_n[slot] = n;
      struct cygnet_request r = question(ids, n, test_rand_int(&rng, 1, 20));
      compared[i] = n_sent % 4 == 0;
      if (compared[i]) ask(cold, &r, &expected[i], false);
      answer_init(&a[i], &r, false);
      submit(warm, &r);
      busy[i] = true;
    }
    cygnet_step(warm);
    drain(warm);
    if (n_sent % 8 == 0) check(warm);
  }
  for (int i = 0; i < AT_ONCE; i++) {
    if (!busy[i]) continue;
    if (compared[i]) assert_same(&expected[i], &a[i], "traffic"), answer_free(&expected[i]), n_compared++;
    answer_free(&a[i]);
  }
  assert_true(n_compared > n_requests / 8);
  struct cygnet_stats st;
  cygnet_stats(warm, &st);
  assert_true(st.cached_tokens > 0);
  /* with few requests: which pool is short hangs on the clock, too */
  if (!on_npu()) assert_true(st.evicted_full_tokens + st.evicted_sliding_tokens > 0);
  if (SPARSE == 1) assert_true(st.evicted_full_tokens > 0 && st.evicted_sliding_tokens > 0 && st.n_aborted > 0);
  assert_int_equal(st.pool_full_used_tokens + st.pool_sliding_used_tokens, 0);
  assert_true(st.pool_full_cached_tokens > 0);
  assert_int_equal(cygnet_flush(warm), 0);
  cygnet_stats(warm, &st);
  assert_int_equal(st.pool_full_cached_tokens + st.pool_sliding_cached_tokens + st.n_resume_points, 0);
  check(warm);
  cygnet_close(warm);
  cygnet_close(cold);
}

static size_t bytes_for_tokens(struct cygnet_options o, int tokens) { /* of the whole plan, with a full pool hardly larger than that */
  struct cygnet *c = open_with(o);
  size_t lo = c->plan.weight_bytes, hi = c->plan.weight_bytes + c->plan.scratch_bytes + c->plan.kv_bytes;
  cygnet_close(c);
  while (hi - lo > (slowest() ? TSAN_NEAR : 1024)) {
    struct cygnet_error e;
    o.mem_bytes = lo + (hi - lo) / 2;
    choose_backend(&o);
    o.quiet = 1, o.threads = 1, o.ctx_tokens = CTX;
    c = cygnet_open(&o, &e);
    bool enough = c && c->plan.kv.n_pages[KV_FULL] * c->plan.kv.page_tokens >= tokens;
    if (c) cygnet_close(c);
    *(enough ? &hi : &lo) = o.mem_bytes;
  }
  return hi;
}

static void ordinary_traffic(void **state) {
  (void)state;
  int n = SPARSE == 1 ? 450 : slowest() ? TSAN_TRAFFIC : 100; /* how many hits there are hangs on the clock, which decides about guesses */
  struct cygnet_options o = {.model = narrow(), .max_running = 4, .page_tokens = 4, .chunk_tokens = 24};
  traffic(o, n, bytes_for_tokens(o, 200));
  o.page_tokens = 16;
  if (SPARSE == 1) traffic(o, n, bytes_for_tokens(o, 300));
  struct cygnet_options q = {.model = tiny(), .max_running = 3, .page_tokens = 8, .chunk_tokens = 32, .kv_type = "q8_0"};
  traffic(q, MIN(n, 60), bytes_for_tokens(q, 230)); /* quantised keys, filled to the brim, windows turned over */
}

/* ---- spaces, flush ------------------------------------------------------------------------------------------------------------------- */

static void salts_share_nothing(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow(), .max_running = 32 / SPARSE});
  int32_t ids[CTX];
  uint64_t rng = 13;
  random_prompt(&rng, ids, 50);
  const struct {
    const char *salt;
    int cached;
  } cases[] = {{NULL, 0}, {"a", 0}, {"b", 0}, {"", 0}, {"a", 49}, {NULL, 49}, {"ab", 0}, {"b", 49}, {"", 49}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct cygnet_request r = question(ids, 50, 2);
    r.cache_salt = cases[i].salt;
    r.n_cache_salt = cases[i].salt ? strlen(cases[i].salt) : 0;
    struct answer a;
    ask(c, &r, &a, false);
    assert_int_equal(a.last.cached_tokens, cases[i].cached);
    answer_free(&a);
  }
  struct cygnet_request r = question(ids, 50, 9);
  struct answer a;
  answer_init(&a, &r, false);
  submit(c, &r);
  assert_int_equal(cygnet_flush(c), -1); /* somebody waits */
  cygnet_step(c);
  assert_int_equal(cygnet_flush(c), -1);
  run(c);
  assert_int_equal(cygnet_flush(c), 0);
  check(c);
  answer_free(&a);
  ask(c, &r, &a, false);
  assert_int_equal(a.last.cached_tokens, 0);
  answer_free(&a);
  cygnet_close(c);
  c = open_with((struct cygnet_options){.model = narrow(), .disable_prefix_cache = 1});
  assert_int_equal(cygnet_flush(c), 0);
  cygnet_close(c);
}

/* ---- log-probabilities of the prompt ----------------------------------------------------------------------------------------------- */

struct oracle { /* logits of every prompt row, from an engine that reuses nothing */
  struct answer rows;
  struct sample_scratch scratch;
};

static void check_prompt_logprobs(struct oracle *o, const int32_t *ids, int n, const struct answer *a, int from, int n_top) {
  assert_int_equal(a->n_prompt, n - from);
  for (int i = 0; i < a->n_prompt; i++) {
    const struct cygnet_token *t = &a->prompt[i];
    assert_int_equal(t->id, ids[from + i]);
    if (from + i == 0) {
      assert_true(isnan(t->logprob) && t->n_top == 0);
      continue;
    }
    struct sample_result want;
    const float *row = o->rows.logits + (size_t)(from + i - 1) * NARROW_VOCAB;
    assert_int_equal(sample_logprobs(&o->scratch, row, NULL, t->id, n_top, &want, NULL), 0);
    assert_int_equal(t->n_top, n_top);
    if (on_npu()) { /* chunks are other routes there */
      assert_true(fabsf(t->logprob - want.logprob) <= 0.3f);
      continue;
    }
    assert_memory_equal(&t->logprob, &want.logprob, sizeof t->logprob);
    for (int k = 0; k < n_top; k++) {
      assert_int_equal(t->top[k].id, want.top[k].id);
      assert_memory_equal(&t->top[k].logprob, &want.top[k].logprob, sizeof(float));
    }
  }
}

static void prompt_logprobs(void **state) {
  (void)state;
  enum { N = 70 };
  static const int chunks[] = {512, 1, 7, 33};
  int32_t ids[CTX];
  uint64_t rng = 14;
  random_prompt(&rng, ids, N);
  struct cygnet *cold = cold_of((struct cygnet_options){.model = narrow()});
  struct oracle oracle;
  struct cygnet_request all = question(ids, N, 3);
  ask(cold, &all, &oracle.rows, true);
  assert_int_equal(sample_scratch_init(&oracle.scratch, NARROW_VOCAB, NULL), 0);
  cygnet_close(cold);
  for (size_t i = 0; i < ARRAY_LEN(chunks); i += 1 + SPARSE / 2)
    for (int retract = 0; retract < 2; retract++) {
      struct cygnet *c = open_with((struct cygnet_options){
          .model = narrow(), .chunk_tokens = chunks[i], .page_tokens = 8, .max_running = 3, .threads = 1 + retract});
      static const int froms[] = {0, 1, 2, 30, N - 1, 0, 55};
      for (size_t k = 0; k < ARRAY_LEN(froms); k++) { /* the cache is cold for the first only */
        struct cygnet_request r = question(ids, N, k % 3 ? 3 : 0), other = question(ids, 40, 5);
        r.prompt_logprobs = 1 + froms[k];
        r.logprobs = (int)(k % 4) * 5;
        struct answer a, b;
        answer_init(&a, &r, false);
        submit(c, &r);
        answer_init(&b, &other, false);
        submit(c, &other);
        for (int s = 0; retract && cygnet_step(c) && s < 300; s++) {
          drain(c);
          check(c);
          if (s % 2 && c->sched.running.n) sched_retract(&c->sched, c->sched.running.first);
        }
        run(c);
        check_prompt_logprobs(&oracle, ids, N, &a, froms[k], MAX(0, r.logprobs - 1));
        assert_int_equal(a.last.cached_tokens, k ? MIN(MAX(0, froms[k] - 1), N - 1) : 0);
        assert_int_equal(a.n, r.max_tokens);
        if (!on_npu()) assert_memory_equal(a.ids, oracle.rows.ids, (size_t)a.n * sizeof *a.ids);
        if (retract && chunks[i] < 30 && froms[k] == 0) assert_true(a.last.n_retractions > 0);
        answer_free(&a), answer_free(&b);
      }
      struct cygnet_stats st;
      cygnet_stats(c, &st);
      assert_true(st.lost_wanted_tokens > 0);
      cygnet_close(c);
    }
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  struct cygnet_error e;
  struct cygnet_request bad = question(ids, N, 1);
  for (int k = 0; k < 2; k++) {
    bad.prompt_logprobs = k ? -1 : N + 1;
    assert_int_equal(cygnet_submit(c, &bad, &e), 0);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "prompt_logprobs"));
  }
  struct cygnet_request one = question(ids, 1, 0); /* a single token has nothing before it */
  struct answer a;
  one.prompt_logprobs = 1;
  ask(c, &one, &a, false);
  assert_true(a.n_prompt == 1 && isnan(a.prompt[0].logprob));
  answer_free(&a);
  struct cygnet_request gone = question(ids, N, 5); /* aborted before all are known: none is shown */
  gone.prompt_logprobs = 1;
  answer_init(&a, &gone, false);
  submit(c, &gone);
  c->sched.chunk_rows = 8;
  cygnet_step(c);
  cygnet_abort(c, a.number);
  run(c);
  assert_true(a.over && a.n_prompt == 0);
  answer_free(&a);
  cygnet_close(c);
  sample_scratch_free(&oracle.scratch);
  answer_free(&oracle.rows);
}

/* ---- pace ---------------------------------------------------------------------------------------------------------------------------- */

/* The aim decides how many rows a step has, never what comes out. */
static void pace_changes_nothing(void **state) {
  (void)state;
  int32_t ids[2][CTX];
  uint64_t rng = 15;
  random_prompt(&rng, ids[0], 110), random_prompt(&rng, ids[1], 110);
  struct cygnet *cold = cold_of((struct cygnet_options){.model = narrow()});
  for (int ms = 0; ms <= 1000; ms = ms ? ms * 1000 : 1) {
    struct cygnet *c = open_with((struct cygnet_options){.model = narrow(), .chunk_tokens = 100, .step_ms = ms, .disable_prefix_cache = 1});
    assert_int_equal(c->sched.beside_rows, ms ? 100 : 32); /* 128 while nothing is known, as far as a step goes */
    assert_int_equal(c->sched.chunk_rows, 100);
    struct answer a[2], b;
    struct cygnet_request r[2];
    for (int i = 0; i < 2; i++) r[i] = question(ids[i], 110, 10), answer_init(&a[i], &r[i], false), submit(c, &r[i]);
    run(c);
    for (int i = 0; i < 2; i++) {
      ask(cold, &r[i], &b, false);
      assert_same(&b, &a[i], "pace");
      answer_free(&a[i]), answer_free(&b);
    }
    if (ms) {
      assert_true(c->row_ms > 0);
      double rows[] = {MAX(ms - c->decode_ms, c->decode_ms) / c->row_ms, 4 * ms / c->row_ms};
      int found[] = {c->sched.beside_rows, c->sched.chunk_rows};
      for (int i = 0; i < 2; i++) {
        if (i == 1 && rows[1] < rows[0]) continue; /* alone at least what there is beside others */
        assert_true(found[i] >= 16 && found[i] <= 100 && (found[i] % 16 == 0 || found[i] == 100));
        if (rows[i] >= 100) assert_int_equal(found[i], 100);
        else if (rows[i] > 16 && rows[i] < 100) assert_true(fabs(found[i] - rows[i]) <= 8.01);
        else if (rows[i] <= 16) assert_int_equal(found[i], 16);
      }
    }
    cygnet_close(c);
  }
  cygnet_close(cold);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_length_is_special),
    cmocka_unit_test(parting_anywhere),
    cmocka_unit_test(chats),
    cmocka_unit_test(one_prefix_many_tails),
    cmocka_unit_test(from_running_and_prefilling),
    cmocka_unit_test(identical_requests),
    cmocka_unit_test(beside_many),
    cmocka_unit_test(ordinary_traffic),
    cmocka_unit_test(salts_share_nothing),
    cmocka_unit_test(prompt_logprobs),
    cmocka_unit_test(pace_changes_nothing),
};
TEST_MAIN(tests)
