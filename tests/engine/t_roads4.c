/* t_roads4.c — Gemma 4 by every road, to the bit: shared keys, experts, values from keys, double width; prompts whole and in chunks, prefix hits of every
 * length, pages of every size, company, guesses, graph mode, threads, pools that run short. CYGNET_LONG=1 walks all combinations, not a share of them.
 */
#include "engine/asking.h"

#include <unistd.h>

#include "base/mem.h"
#include "files/safetensors.h"

#ifdef CYGNET_DEBUG
enum { SPARSE = 18 }; /* every invariant is checked after every step */
#else
enum { SPARSE = 1 };
#endif
enum { CTX4 = 256, N_LENGTHS = 9, N_FIXTURES = 7, VOCAB4 = 300 };
enum { NPU_SPARSE = TEST_TSAN ? 60 : 30, NPU_FIXTURES = TEST_TSAN ? 6 : 3 }; /* on the emulated NPU: one in so many */

static const struct fixture4 {
  const char *model;
  int window;
} fixtures4[N_FIXTURES] = {
    {"golden/gemma4-e-tiny/model-bf16.gguf", 9},      {"golden/gemma4-moe-tiny", 8},
    {"golden/gemma4-dense-tiny/model-bf16.gguf", 12}, {"golden/gemma4-12b-tiny", 4},
    {"golden/gemma4-moe-tiny/model-q8_0.gguf", 8},    {"golden/gemma4-e-tiny", 9},
    {"golden/gemma4-dense-tiny/model-q8_0.gguf", 12},
};
static const int page_sizes[] = {16, 1, 2, 128};

static struct { /* what was walked, in all */
  uint64_t n_roads, n_hits, n_replayed, n_accepted, n_retracted;
} walked;

static bool slowest(void) { return TEST_TSAN && on_npu(); }
static bool is_long(void) { return getenv("CYGNET_LONG") != NULL; }

/* Whether to take the n-th of many combinations, of which one in `share` is taken by default. */
static bool taken(int n, int share) { return is_long() || n % (share * (on_npu() ? NPU_SPARSE : SPARSE)) == 0; }

static struct cygnet *open4(struct cygnet_options o, const struct fixture4 *f) {
  o.model = f->model[0] == '/' ? f->model : test_path(f->model);
  o.ctx_tokens = CTX4;
  struct cygnet *c = open_with(o);
  c->worth_from_ms = INFINITY; /* guesses do not depend on the clock */
  return c;
}

static void close4(struct cygnet *c) {
  struct cygnet_stats st;
  cygnet_stats(c, &st);
  walked.n_replayed += st.n_graph_steps, walked.n_accepted += st.accepted_tokens, walked.n_retracted += st.n_retracted;
  cygnet_close(c);
}

static struct cygnet_options plain4(const char *kv_type, const char *isa) {
  return (struct cygnet_options){
      .kv_type = kv_type, .isa = isa, .disable_prefix_cache = 1, .disable_graph = 1, .draft_tokens = -1, .max_running = 1};
}

/* Where checking every step would take too long. */
static void run4(struct cygnet *c) {
  for (int i = 0; cygnet_step(c); i++) {
    drain(c);
    if (i % 16 == 15) check(c);
  }
  run(c);
}

/* ---- questions --------------------------------------------------------------------------------------------------------------- */

struct question4 {
  int32_t ids[CTX4];
  struct cygnet_request r;
  struct cygnet_bias bias[4];
  struct answer want, got;
  bool logits; /* of every row of the prompt */
};

/* Of all lengths around the window; each decodes over the window's whole length three times. Some know so few words that they repeat themselves. */
static struct question4 *questions_new(int window) {
  const int lengths[N_LENGTHS] = {1, window, window + 1, 3 * window + 5, 2 * window, window - 1, 60, 2, 17};
  struct question4 *all = calloc(N_LENGTHS, sizeof *all);
  uint64_t rng = (uint64_t)window;
  for (int i = 0; i < N_LENGTHS; i++) {
    struct question4 *q = &all[i];
    int period = i % 2 ? CTX4 : 1 + i;
    for (int k = 0; k < lengths[i]; k++) q->ids[k] = k < period ? test_rand_int(&rng, 3, VOCAB4 - 1) : q->ids[k - period];
    q->r = (struct cygnet_request){.prompt = q->ids,
                                   .n_prompt = (size_t)lengths[i],
                                   .max_tokens = (slowest() ? 1 : 3) * window + i % 3,
                                   .ignore_eos = 1,
                                   .logprobs = 1 + N_TOP};
    if (i % 3 == 0) {
      for (int k = 0; k < 4; k++) q->bias[k] = (struct cygnet_bias){.id = test_rand_int(&rng, 3, VOCAB4 - 1), .bias = 40};
      q->r.sampling.bias = q->bias, q->r.sampling.n_bias = 2 + i % 2;
    }
    if (i % 3 == 1) q->r.sampling = (struct cygnet_sampling){.temperature = 1, .has_seed = 1, .seed = (uint64_t)i};
    q->logits = i == 3 || i == 8;
  }
  return all;
}

static void questions_want(struct question4 *q, const struct fixture4 *f, const char *kv_type, const char *isa) {
  struct cygnet *c = open4(plain4(kv_type, isa), f);
  for (int i = 0; i < N_LENGTHS; i++) ask(c, &q[i].r, &q[i].want, q[i].logits);
  assert_int_equal(c->stats.drafted_tokens + c->stats.n_graph_steps, 0);
  cygnet_close(c);
}

static void questions_free(struct question4 *q) {
  for (int i = 0; i < N_LENGTHS; i++) answer_free(&q[i].want);
  free(q);
}

static void compare4(struct question4 *q, const char *road, const char *how) {
  char name[320];
  snprintf(name, sizeof name, "%s, %zu tokens, %s", road, q->r.n_prompt, how);
  assert_true(q->got.over);
  assert_same(&q->want, &q->got, name);
  answer_free(&q->got);
  walked.n_roads++;
}

/* ---- chunks, pages, company --------------------------------------------------------------------------------------------------- */

/* Each alone, then all of them together, the whole lot a second time from the prefix cache. */
static void walk_chunks(const struct fixture4 *f, struct question4 *q, struct cygnet_options o, const char *road) {
  struct cygnet *c = open4(o, f);
  for (int i = 0; i < N_LENGTHS; i++) {
    answer_init(&q[i].got, &q[i].r, q[i].logits);
    submit(c, &q[i].r);
    run4(c);
    compare4(&q[i], road, "alone");
  }
  assert_int_equal(cygnet_flush(c), 0);
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < N_LENGTHS; i++) {
      answer_init(&q[i].got, &q[i].r, q[i].logits);
      submit(c, &q[i].r);
      if (i % 3 == 2) cygnet_step(c), drain(c);
    }
    run4(c);
    for (int i = 0; i < N_LENGTHS; i++) compare4(&q[i], road, pass ? "together, again" : "together");
  }
  close4(c);
}

static void chunks_and_pages(void **state) {
  (void)state;
  int n = 0;
  for (int x = 0; x < N_FIXTURES; x += on_npu() ? NPU_FIXTURES : 1) {
    const struct fixture4 *f = &fixtures4[x];
    const int chunks[] = {1, 2, 3, 5, 7, f->window - 1, f->window, f->window + 1, 0};
    for (int form = 0; form < 3; form++) {
      const char *kv_type = form == 0 ? "bf16" : "f32", *isa = form == 2 ? "ref" : "auto";
      struct question4 *q = NULL;
      for (size_t k = 0; k < ARRAY_LEN(chunks); k++)
        for (size_t p = 0; p < ARRAY_LEN(page_sizes); p++, n++) {
          if (!taken(n, form == 2 ? 47 : 29)) continue;
          char road[200];
          struct cygnet_options o = {.kv_type = kv_type,
                                     .isa = isa,
                                     .chunk_tokens = chunks[k],
                                     .page_tokens = page_sizes[p],
                                     .threads = 1 + (n / 2) % 2,
                                     .max_running = 1 + (n * 5) % 8,
                                     .disable_graph = n % 3 == 2,
                                     .draft_tokens = (int[]){0, -1, 16}[n / 3 % 3]};
          snprintf(road, sizeof road, "%s, keys %s, %s, chunk %d, page %d, threads %d, running %d, graph %s, draft %d", f->model, kv_type,
                   isa, o.chunk_tokens, o.page_tokens, o.threads, o.max_running, o.disable_graph ? "off" : "on", o.draft_tokens);
          if (!q) q = questions_new(f->window), questions_want(q, f, kv_type, isa);
          walk_chunks(f, q, o, road);
        }
      if (q) questions_free(q);
    }
  }
}

/* One beside 1 to 7 others that begin at other times. */
static void beside_others(void **state) {
  (void)state;
  int n = 0;
  for (int x = 0; x < N_FIXTURES; x += on_npu() ? NPU_FIXTURES : 1) {
    const struct fixture4 *f = &fixtures4[x];
    struct question4 *q = questions_new(f->window);
    questions_want(q, f, "bf16", "auto");
    for (int graph = 0; graph < 2; graph++) {
      struct cygnet_options o = {
          .threads = 2 - graph, .disable_graph = !graph, .max_running = 8, .chunk_tokens = 11, .draft_tokens = graph ? 0 : -1};
      o.page_tokens = page_sizes[x % 4];
      struct cygnet *c = open4(o, f);
      for (int others = 1; others <= 7; others++)
        for (int which = 0; which < N_LENGTHS; which++, n++) {
          if (!taken(n, 9)) continue;
          char road[160];
          snprintf(road, sizeof road, "%s beside %d others, graph %s", f->model, others, graph ? "on" : "off");
          for (int i = 0; i <= others; i++) {
            struct question4 *one = &q[(which + i) % N_LENGTHS];
            answer_init(&one->got, &one->r, one->logits);
            submit(c, &one->r);
            for (int s = (n + i) % 4; s > 0; s--) cygnet_step(c), drain(c);
          }
          run4(c);
          for (int i = 0; i <= others; i++) compare4(&q[(which + i) % N_LENGTHS], road, i ? "one of the others" : "itself");
          if (n % 3 == 0) assert_int_equal(cygnet_flush(c), 0);
        }
      close4(c);
    }
    questions_free(q);
  }
}

/* ---- prefix hits ------------------------------------------------------------------------------------------------------------------ */

enum donor { OVER, DECODING, PREFILLING, N_DONORS };

/* The first `hit` tokens of q are known from another request, which is over, decoding, or still inside its prompt. Returns cached tokens. */
static int take_hit(struct cygnet *c, struct question4 *q, int hit, enum donor donor, const char *road) {
  int32_t before[CTX4];
  int n = (int)q->r.n_prompt, more = donor == PREFILLING ? 40 : 5;
  struct answer first = {0};
  assert_int_equal(cygnet_flush(c), 0);
  memcpy(before, q->ids, sizeof before);
  for (int i = hit; i < hit + more; i++) before[i] = i < n && q->ids[i] == 9 ? 10 : 9;
  struct cygnet_request r = {.prompt = before, .n_prompt = (size_t)(hit + more), .max_tokens = donor == DECODING ? 30 : 2, .ignore_eos = 1};
  if (hit == n) r.n_prompt = (size_t)n; /* the very same */
  if (hit) {
    answer_init(&first, &r, false);
    submit(c, &r);
    for (int steps = 0; donor == PREFILLING ? steps < 1 + hit % 3 : donor == DECODING ? first.n < 1 + hit % 4 : !first.over; steps++)
      cygnet_step(c), drain(c);
  }
  answer_init(&q->got, &q->r, false);
  submit(c, &q->r);
  run4(c);
  int cached = q->got.last.cached_tokens;
  compare4(q, road, "prefix hit");
  if (hit) answer_free(&first);
  walked.n_hits += cached > 0;
  return cached;
}

static void prefix_hits_of_every_length(void **state) {
  (void)state;
  int n = 0;
  for (int x = 0; x < N_FIXTURES; x += on_npu() ? NPU_FIXTURES : 1) {
    const struct fixture4 *f = &fixtures4[x];
    for (int type = 0; type < fewer(2); type++) {
      const char *kv_type = type ? "f32" : "bf16";
      struct question4 *q = questions_new(f->window), *one = &q[3];
      one->r.max_tokens = f->window + 2;
      one->logits = false;
      struct cygnet *cold = open4(plain4(kv_type, NULL), f);
      ask(cold, &one->r, &one->want, false);
      cygnet_close(cold);
      for (int p = 0; p < (int)ARRAY_LEN(page_sizes); p += on_npu() ? 3 : 1) {
        struct cygnet_options o = {.kv_type = kv_type, .page_tokens = page_sizes[p], .max_running = 4, .threads = 1 + (p + x) % 4 / 3};
        o.chunk_tokens = (int[]){0, 6, f->window, 13}[(p + x + type) % 4];
        o.disable_graph = (p + x + type) % 3 == 0;
        o.draft_tokens = (p + x) % 2 ? -1 : 0;
        struct cygnet *c = open4(o, f);
        for (int hit = 0; hit <= (int)one->r.n_prompt; hit++)
          for (enum donor donor = 0; donor < N_DONORS; donor++, n++) {
            if (!taken(n, 7) && !(SPARSE == 1 && donor == OVER && type == x % 2)) continue;
            char road[200];
            snprintf(road, sizeof road, "%s, keys %s, page %d, chunk %d, %d known from one that is %s", f->model, kv_type, o.page_tokens,
                     o.chunk_tokens, hit, (const char *[]){"over", "decoding", "inside its prompt"}[donor]);
            int cached = take_hit(c, one, hit, donor, road), most = MIN(hit, (int)one->r.n_prompt - 1);
            if (cached > most || (donor == OVER && cached != most)) fail_msg("%s: %d tokens were reused", road, cached);
          }
        close4(c);
      }
      answer_free(&one->want);
      free(q);
    }
  }
}

/* Growing chats: each turn is the last prompt, its answer, and a few words more; nothing but the end is computed again. */
static void chats4(void **state) {
  (void)state;
  for (int x = 0; x < N_FIXTURES; x += on_npu() ? NPU_FIXTURES : SPARSE > 1 ? 3 : 1) {
    const struct fixture4 *f = &fixtures4[x];
    struct cygnet *cold = open4(plain4(NULL, NULL), f);
    struct cygnet *warm = open4((struct cygnet_options){.page_tokens = page_sizes[x % 4], .chunk_tokens = 32, .max_running = 4}, f);
    uint64_t rng = (uint64_t)x;
    int32_t ids[CTX4] = {2};
    int n = 1, known = 0;
    while (n < 200) {
      for (int i = test_rand_int(&rng, 1, 2 * f->window); i > 0; i--) ids[n++] = test_rand_int(&rng, 3, VOCAB4 - 1);
      struct cygnet_request r = {.prompt = ids, .n_prompt = (size_t)n, .max_tokens = 2 * f->window, .ignore_eos = 1, .logprobs = 1 + N_TOP};
      struct answer want, got;
      ask(cold, &r, &want, false);
      ask(warm, &r, &got, false);
      assert_same(&want, &got, f->model);
      assert_int_equal(got.last.cached_tokens, known);
      for (int i = 0; i < got.n; i++) ids[n++] = got.ids[i];
      known = n - 1; /* the last token was never computed */
      answer_free(&want), answer_free(&got);
      walked.n_roads++;
    }
    cygnet_close(cold);
    close4(warm);
  }
}

/* ---- short of pages ------------------------------------------------------------------------------------------------------------------ */

static void pools_run_short(void **state) {
  (void)state;
  CPU_ONLY("it counts pages of 4 tokens");
  for (int x = 0; x<N_FIXTURES; x += SPARSE> 1 ? 3 : 1) {
    const struct fixture4 *f = &fixtures4[x];
    struct question4 *q = questions_new(f->window);
    questions_want(q, f, "bf16", "auto");
    struct cygnet_options o = {.page_tokens = (int[]){4, 1, 2}[x % 3], .chunk_tokens = 16, .max_running = 8, .threads = 1, .quiet = 1};
    o.disable_graph = x % 2;
    struct cygnet *c = open4(o, f);
    size_t least = c->plan.weight_bytes + c->plan.scratch_bytes / 2;
    cygnet_close(c);
    o.model = test_path(f->model), o.ctx_tokens = 96; /* one of the longest fits, and little more */
    for (c = NULL; !c; least += 2048) {
      o.mem_bytes = least;
      c = cygnet_open(&o, NULL);
    }
    c->worth_from_ms = INFINITY;
    c->sched.config.ahead_tokens = 0; /* otherwise admission alone sees to it that pages suffice */
    uint64_t rng = (uint64_t)x;
    for (int pass = 0; pass < 2; pass++) {
      char road[160];
      snprintf(road, sizeof road, "%s, %d full and %d sliding pages", f->model, (int)c->plan.kv.n_pages[KV_FULL],
               (int)c->plan.kv.n_pages[KV_SLIDING]);
      for (int i = 0; i < N_LENGTHS; i++) answer_init(&q[i].got, &q[i].r, q[i].logits), submit(c, &q[i].r);
      for (int left = 30; pass && left > 0 && cygnet_step(c);) { /* the second time also by hand */
        check(c);
        drain(c);
        if (!c->sched.running.n || test_rand_int(&rng, 0, 3)) continue;
        sched_retract(&c->sched, left-- % 2 ? c->sched.running.last : c->sched.running.first);
      }
      run4(c);
      for (int i = 0; i < N_LENGTHS; i++) compare4(&q[i], road, "short of pages");
    }
    struct cygnet_stats st;
    cygnet_stats(c, &st);
    if (st.n_retracted < 10) fail_msg("%s: %d retractions", f->model, (int)st.n_retracted);
    close4(c);
    questions_free(q);
  }
}

/* ---- keys of 8 bits -------------------------------------------------------------------------------------------------------------------- */

static void copy_into_tmpdir(const char *folder, const char *name) {
  char path[256];
  size_t n;
  snprintf(path, sizeof path, "golden/%s/%s", folder, name);
  char *data = test_read(test_path(path), &n);
  if (!strcmp(name, "config.json")) { /* heads twice as wide */
    char *d = strstr(data, "\"head_dim\": 16"), *global = strstr(data, "\"global_head_dim\": 32");
    assert_true(d && global);
    memcpy(d, "\"head_dim\": 32", 14);
    memcpy(global, "\"global_head_dim\": 64", 21);
    char *used = strstr(data, "\"top_k_experts\": 2"); /* the order in which two numbers are added does not show */
    if (used) memcpy(used, "\"top_k_experts\": 5", 18);
  }
  test_write(name, data, n);
  free(data);
}

/* A fixture in which every head is twice as wide, as a folder: heads of 16 numbers are no blocks of Q8_0. Five experts are used instead of two. */
static const char *widen_heads(const char *folder) {
  struct safetensors s;
  struct err e = {0};
  char path[256];
  snprintf(path, sizeof path, "golden/%s", folder);
  if (safetensors_open(&s, test_path(path), &e)) fail_msg("%s", e.msg);
  struct st_write *all = xcalloc(s.n_tensors, sizeof *all);
  void **owned = xcalloc(s.n_tensors, sizeof *owned);
  int n_widened = 0;
  for (size_t i = 0; i < s.n_tensors; i++) {
    const struct st_tensor *t = &s.tensors[i];
    all[i] = (struct st_write){.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data};
    for (int d = 0; d < t->n_dims; d++) all[i].shape[d] = t->shape[d];
    bool down = strstr(t->name, ".o_proj.") != NULL;
    if (!down && !strstr(t->name, ".q_proj.") && !strstr(t->name, ".k_proj.") && !strstr(t->name, ".v_proj.") &&
        !strstr(t->name, ".q_norm.") && !strstr(t->name, ".k_norm."))
      continue;
    assert_int_equal(t->dtype, DTYPE_BF16);
    int64_t rows = t->shape[0], cols = t->n_dims == 2 ? t->shape[1] : 1;
    all[i].shape[down] *= 2;
    uint16_t *x = xcalloc((size_t)(2 * rows * cols), sizeof *x);
    for (int64_t k = 0; k < 2 * rows * cols; k++) {
      int64_t row = down ? k / (2 * cols) : k / cols, col = down ? k % (2 * cols) : k % cols;
      int64_t from = down ? row * cols + col * 7 % cols : row * 7 % rows * cols + col;
      memcpy(&x[k], (const char *)t->data + from * (int64_t)sizeof *x, sizeof *x);
    }
    all[i].data = owned[i] = x;
    n_widened++;
  }
  assert_true(n_widened >= 6 * 4);
  snprintf(path, sizeof path, "%s/model.safetensors", test_tmpdir());
  unlink(path);
  if (safetensors_write(path, all, (int)s.n_tensors, &e)) fail_msg("%s", e.msg);
  for (size_t i = 0; i < s.n_tensors; i++) free(owned[i]);
  free(owned);
  free(all);
  safetensors_close(&s);
  static const char *const others[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};
  for (size_t i = 0; i < ARRAY_LEN(others); i++) copy_into_tmpdir(folder, others[i]);
  return test_tmpdir();
}

static void keys_of_8_bits(void **state) {
  (void)state;
  CPU_ONLY("its keys are not quantised");
  static const struct fixture4 narrow_heads[] = {{"gemma4-e-tiny", 9}, {"gemma4-moe-tiny", 8}, {"gemma4-12b-tiny", 4}};
  int n = 0;
  for (size_t x = 0; x<ARRAY_LEN(narrow_heads); x += SPARSE> 1 ? 2 : 1) {
    struct fixture4 f = {widen_heads(narrow_heads[x].model), narrow_heads[x].window};
    struct question4 *q = questions_new(f.window);
    q[3].logits = false;
    questions_want(q, &f, "q8_0", "auto");
    for (int p = 0; p < (int)ARRAY_LEN(page_sizes); p++)
      for (int chunk = 0; chunk <= f.window + 1; chunk += f.window / 2, n++) {
        if (!taken(n, 6)) continue;
        char road[160];
        struct cygnet_options o = {
            .kv_type = "q8_0", .page_tokens = page_sizes[p], .chunk_tokens = chunk, .threads = 1 + n % 2, .max_running = 6};
        o.disable_graph = n / 3 % 2;
        snprintf(road, sizeof road, "%s, keys of 8 bits, chunk %d, page %d", narrow_heads[x].model, chunk, o.page_tokens);
        walk_chunks(&f, q, o, road);
        struct cygnet *c = open4(o, &f);
        for (int hit = 0; hit <= (int)q[3].r.n_prompt; hit += 2 + n % 4) take_hit(c, &q[3], hit, (enum donor)(hit % N_DONORS), road);
        close4(c);
      }
    questions_free(q);
  }
}

/* A head of 16 numbers: refused, with the width. */
static void keys_of_8_bits_are_refused(void **state) {
  (void)state;
  CPU_ONLY("its keys are not quantised");
  for (int x = 0; x < N_FIXTURES; x++) {
    struct cygnet_error e = {0};
    struct cygnet_options o = {.model = test_path(fixtures4[x].model), .kv_type = "q8_0", .ctx_tokens = 64, .threads = 1, .quiet = 1};
    assert_null(cygnet_open(&o, &e));
    if (!strstr(e.message, "Q8_0") || !strstr(e.message, "this one is 16")) fail_msg("%s: %s", fixtures4[x].model, e.message);
    assert_int_equal(e.exit_status, 2);
  }
}

static void much_was_walked(void **state) {
  (void)state;
  CPU_ONLY("few roads are walked");
  printf("  %d answers compared to the bit, %d of them from a prefix hit; %d steps replayed, %d guesses right, %d retractions\n",
         (int)walked.n_roads, (int)walked.n_hits, (int)walked.n_replayed, (int)walked.n_accepted, (int)walked.n_retracted);
  if (getenv("CYGNET_TEST_FILTER")) return;
  assert_true(walked.n_roads > 2000 / SPARSE && walked.n_hits > 800 / SPARSE && walked.n_replayed > 2000 / SPARSE);
  assert_true(walked.n_accepted > 500 / SPARSE && walked.n_retracted > 20);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chunks_and_pages),
    cmocka_unit_test(beside_others),
    cmocka_unit_test(prefix_hits_of_every_length),
    cmocka_unit_test(chats4),
    cmocka_unit_test(pools_run_short),
    cmocka_unit_test(keys_of_8_bits),
    cmocka_unit_test(keys_of_8_bits_are_refused),
    cmocka_unit_test(much_was_walked),
};
TEST_MAIN(tests)
