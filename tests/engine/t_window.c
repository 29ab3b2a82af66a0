/* t_window.c — edges of the sliding window: pages smaller and larger than it, prefixes that end before, at and behind it, chunks likewise, keys that are
 * quantised, pools that are full to the last page. */
#include "engine/asking.h"

#ifdef CYGNET_DEBUG
enum { SPARSE = 7 }; /* every invariant is checked after every step: fewer edges are tried */
#else
enum { SPARSE = 1 };
#endif
enum { CTX = 256, EDGES_MAX = 80, NPU_SPARSE = TEST_TSAN ? 22 : 8 };

/* A prompt of `hit` tokens that another request had before it, and `tail` of its own. */
struct edge {
  int hit, tail;
  int32_t ids[CTX];
  struct cygnet_request r;
  struct answer expected;
};

static struct edge *edges_new(int window, int page, int *n) {
  const int hits[] = {0, 1, window - 1, window, window + 1, 2 * window, 3 * window + 7, page - 1, page, page + 1, page + window};
  const int tails[] = {1, window - 1, window, window + 1, 2 * window + 3};
  struct edge *all = calloc(EDGES_MAX, sizeof *all);
  uint64_t rng = (uint64_t)(window + page);
  *n = 0;
  for (size_t i = 0; i < ARRAY_LEN(hits) * ARRAY_LEN(tails); i += on_npu() ? NPU_SPARSE : SPARSE) {
    struct edge *e = &all[*n];
    e->hit = hits[i / ARRAY_LEN(tails)], e->tail = tails[i % ARRAY_LEN(tails)];
    random_prompt(&rng, e->ids, e->hit + e->tail);
    e->ids[0] = 3 + *n; /* nothing in common with the other edges */
    e->r = (struct cygnet_request){
        .prompt = e->ids, .n_prompt = (size_t)(e->hit + e->tail), .max_tokens = 3, .ignore_eos = 1, .logprobs = 1 + N_TOP};
    ++*n;
  }
  return all;
}

/* First a request that begins like e's: over by the time e's comes, or still running. Returns how many tokens were reused. */
static int take_edge(struct cygnet *c, struct edge *e, bool running, const char *road) {
  int32_t before[CTX];
  struct answer first, found;
  struct cygnet_request q = {.prompt = before, .n_prompt = (size_t)e->hit + 9, .max_tokens = running ? 12 : 2, .ignore_eos = 1};
  memcpy(before, e->ids, sizeof before);
  for (int i = e->hit; i < e->hit + 9; i++) before[i] = e->ids[i] == 9 ? 10 : 9;
  if (e->hit) {
    answer_init(&first, &q, false);
    submit(c, &q);
    while (!first.over && first.n < (running ? 1 : 2)) cygnet_step(c), check(c), drain(c);
  }
  answer_init(&found, &e->r, false);
  submit(c, &e->r);
  run(c);
  assert_same(&e->expected, &found, road);
  answer_free(&found);
  if (e->hit) answer_free(&first);
  return found.last.cached_tokens;
}

static void walk_edges(const char *model, int window, const char *kv_type) {
  static const int pages[] = {1, 16, 128};
  for (size_t p = on_npu(); p < ARRAY_LEN(pages); p++) { /* pages of 1 are none of its */
    int n;
    struct edge *edges = edges_new(window, pages[p], &n);
    struct cygnet *cold = open_with((struct cygnet_options){
        .model = model, .ctx_tokens = CTX, .kv_type = kv_type, .disable_prefix_cache = 1, .disable_graph = 1, .attn = "ref"});
    for (int i = 0; i < n; i++) ask(cold, &edges[i].r, &edges[i].expected, false);
    cygnet_close(cold);
    const int chunks[] = {0, window - 2, 2 * window + 3};
    for (size_t k = 0; k < ARRAY_LEN(chunks); k++) {
      struct cygnet *c = open_with((struct cygnet_options){.model = model,
                                                           .ctx_tokens = CTX,
                                                           .kv_type = kv_type,
                                                           .page_tokens = pages[p],
                                                           .chunk_tokens = chunks[k],
                                                           .attn = "ref",
                                                           .max_running = 8});
      for (int i = 0; i < n; i++) {
        char road[160];
        snprintf(road, sizeof road, "window %d, page %d, chunk %d, %d + %d tokens, %s", window, pages[p], chunks[k], edges[i].hit,
                 edges[i].tail, i % 3 == 2 ? "running" : "over");
        bool alone = k != 1; /* else the tree is full of the edges before, whose windows are worth more than a prompt's inside */
        int cached = take_edge(c, &edges[i], i % 3 == 2, road);
        if (cached > edges[i].hit || (alone && i % 3 != 2 && cached != edges[i].hit)) fail_msg("%s: %d tokens were reused", road, cached);
        if (alone) assert_int_equal(cygnet_flush(c), 0);
      }
      cygnet_close(c);
    }
    for (int i = 0; i < n; i++) answer_free(&edges[i].expected);
    free(edges);
  }
}

static void edges_by_every_road(void **state) {
  (void)state;
  walk_edges(narrow(), 5, NULL);
  if (!on_npu()) walk_edges(narrow(), 5, "f32");
  walk_edges(tiny(), 8, "q8_0");
}

/* Keys and values of 8 bits: what they cost at each position, as a share of the logits' length, does not jump where the window begins to move. */
static void quantised_keys_are_no_worse_behind_the_window(void **state) {
  (void)state;
  CPU_ONLY("its keys are not quantised");
  enum { WINDOW = 8, N = 5 * WINDOW, PROMPTS = 24 / SPARSE };
  double off[N] = {0};
  uint64_t rng = 41;
  int n_same = 0;
  struct cygnet *exact = open_with((struct cygnet_options){.kv_type = "f32"}),
                *coarse = open_with((struct cygnet_options){.kv_type = "q8_0"});
  for (int i = 0; i < PROMPTS; i++) {
    int32_t ids[N];
    struct cygnet_request r = {.prompt = ids, .n_prompt = (size_t)random_prompt(&rng, ids, N), .max_tokens = 0};
    struct answer a, b;
    ask(exact, &r, &a, true);
    ask(coarse, &r, &b, true);
    for (int pos = 0; pos < N; pos++) {
      const float *x = a.logits + pos * VOCAB, *y = b.logits + pos * VOCAB;
      double rel_max, rel_l2;
      int best[2] = {0};
      test_compare(y, x, VOCAB, &rel_max, &rel_l2);
      off[pos] += rel_l2 / PROMPTS;
      for (int k = 0; k < VOCAB; k++) best[0] = x[k] > x[best[0]] ? k : best[0], best[1] = y[k] > y[best[1]] ? k : best[1];
      n_same += best[0] == best[1];
    }
    answer_free(&a), answer_free(&b);
  }
  double before = 0, behind = 0, most = 0;
  for (int pos = 2; pos < N; pos++)
    *(pos < WINDOW ? &before : &behind) += off[pos] / (pos < WINDOW ? WINDOW - 2 : N - WINDOW), most = MAX(most, off[pos]);
  printf("  8-bit keys and values: off by %.4f before the window moves, %.4f behind, at most %.4f; best token the same in %.1f %%\n",
         before, behind, most, 100.0 * n_same / (PROMPTS * N));
  assert_true(before > 0 && behind < 1.5 * before && most < 2 * before && most < 0.05);
  assert_true(n_same > PROMPTS * N * 9 / 10);
  cygnet_close(exact);
  cygnet_close(coarse);
}

/* 16 at once whose tokens together are all that the pool of full pages has. */
static void filled_to_the_last_page(void **state) {
  (void)state;
  CPU_ONLY("it counts pages of 8 tokens");
  enum { USERS = 16, PROMPT = 40, MORE = 24 };
  struct cygnet_options o = {
      .kv_type = "q8_0", .page_tokens = 8, .max_running = USERS, .threads = 1, .ctx_tokens = 128, .quiet = 1, .model = tiny()};
  static struct answer alone[USERS], found[USERS];
  static int32_t ids[USERS][PROMPT];
  struct cygnet_request r[USERS];
  uint64_t rng = 42;
  struct cygnet *c = open_with(o);
  for (int i = 0; i < USERS; i++) {
    random_prompt(&rng, ids[i], PROMPT);
    r[i] = (struct cygnet_request){.prompt = ids[i], .n_prompt = PROMPT, .max_tokens = MORE, .ignore_eos = 1, .logprobs = 1 + N_TOP};
    ask(c, &r[i], &alone[i], false);
  }
  size_t enough = c->plan.weight_bytes + c->plan.scratch_bytes + c->plan.kv_bytes, least = c->plan.weight_bytes;
  cygnet_close(c);
  while (enough - least > 512) {
    o.mem_bytes = least + (enough - least) / 2;
    c = cygnet_open(&o, NULL);
    *(c && c->plan.kv.n_pages[KV_FULL] * 8 >= USERS * (PROMPT + MORE) ? &enough : &least) = o.mem_bytes;
    if (c) cygnet_close(c);
  }
  o.mem_bytes = enough;
  c = cygnet_open(&o, NULL);
  assert_int_equal(c->plan.kv.n_pages[KV_FULL] * 8, USERS * (PROMPT + MORE));
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < USERS; i++) answer_init(&found[i], &r[i], false), submit(c, &r[i]);
    run(c);
    for (int i = 0; i < USERS; i++) assert_same(&alone[i], &found[i], "filled to the last page"), answer_free(&found[i]);
  }
  for (int i = 0; i < USERS; i++) answer_free(&alone[i]);
  cygnet_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(edges_by_every_road),
    cmocka_unit_test(quantised_keys_are_no_worse_behind_the_window),
    cmocka_unit_test(filled_to_the_last_page),
};
TEST_MAIN(tests)
