/* t_plan.c — memory shared out before loading: what fits, what is refused and how it is said. Needs a model's tables, never its numbers. */
#include "test.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"

static struct weights *weights;
static struct model_config config; /* tiny: 8 layers, one full; window 8; 1024 tokens */

static int setup(void **state) {
  (void)state;
  struct err e = {0};
  log_set_level(LOG_ERROR);
  weights = weights_open(test_path("golden/gemma3-text-tiny"), &config, &e);
  if (!weights) fail_msg("%s", e.msg);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  weights_close(weights);
  return 0;
}

static size_t needed(const struct plan *p) { return p->weight_bytes + p->kv_bytes + p->scratch_bytes; }

static struct plan plan_of(struct cygnet_options o, const struct model_config *c) {
  struct plan p;
  struct err e = {0};
  o.threads = o.threads ? o.threads : 1;
  if (plan_make(&p, &o, c, weights, &e)) fail_msg("%s", e.msg);
  return p;
}

/* What holds for every plan that was made. */
static void check_plan(const struct plan *p, const struct model_config *c) {
  const struct model_plan *m = &p->model;
  struct kv *kv = kv_new(&p->kv, NULL);
  assert_non_null(kv);
  struct kv_short one = kv_pages_for(kv, p->ctx_tokens, p->sched.chunk_tokens);
  for (int k = 0; k < KV_KINDS; k++) {
    assert_true(p->kv.n_pages[k] >= one.pages[k]); /* one longest sequence */
    assert_int_equal(p->kv.n_pages[k] > 0, p->token_bytes[k] > 0);
    assert_int_equal(p->kv.n_pages[k], m->n_pages[k]);
    size_t pool = (size_t)(p->kv.n_pages[k] + 1) * (size_t)p->kv.page_tokens * p->token_bytes[k];
    assert_true(p->kv_bytes >= pool);
  }
  kv_delete(kv);
  assert_true(needed(p) <= p->budget_bytes);
  assert_true(p->ctx_tokens >= 1 && p->ctx_tokens <= c->ctx_tokens);
  assert_int_equal(m->rows_max, p->sched.chunk_tokens + p->sched.max_running);
  assert_true(m->out_max >= p->sched.max_running && m->out_max <= m->rows_max);
  assert_int_equal(p->sched.rows_max, m->rows_max);
  assert_int_equal(p->sched.out_max, m->out_max);
  assert_int_equal(p->batch.rows_max, m->rows_max);
  assert_int_equal(p->kv.tokens_max, p->ctx_tokens);
  assert_int_equal(m->tokens_max, p->ctx_tokens);
  assert_int_equal(p->kv.seqs_max, p->sched.max_running);
}

static void defaults(void **state) {
  (void)state;
  struct plan p = plan_of((struct cygnet_options){0}, &config);
  check_plan(&p, &config);
  assert_int_equal(p.ctx_tokens, 1024);
  assert_false(p.ctx_reduced);
  assert_int_equal(p.kv.page_tokens, 16);
  assert_int_equal(p.sched.chunk_tokens, 512);
  assert_int_equal(p.sched.max_running, 32);
  assert_int_equal(p.sched.max_queued, 1024);
  assert_string_equal(p.kv_type, "bf16");
  assert_int_equal(p.token_bytes[KV_FULL], 2 * 64 * 2); /* keys and values, 64 wide, 2 bytes */
  assert_int_equal(p.token_bytes[KV_SLIDING], 7 * 2 * 64 * 2);
  assert_int_equal(p.kv.n_pages[KV_FULL], 32 * 1024 / 16);
  /* windows of two pages, one for the cut, and one step: not sequences; and a window each to go on from */
  assert_int_equal(p.kv.n_pages[KV_SLIDING], 32 * (2 + 1) + 512 / 16 + 32 * 2);
  assert_int_equal(p.n_resume, 32);
  assert_true(p.has_prefix_cache && p.has_graph && p.step_ms == 0);
  struct plan without = plan_of((struct cygnet_options){.disable_prefix_cache = 1, .disable_graph = 1, .step_ms = 50}, &config);
  check_plan(&without, &config);
  assert_int_equal(without.kv.n_pages[KV_SLIDING], 32 * (2 + 1) + 512 / 16);
  assert_int_equal(without.kv.n_pages[KV_FULL], p.kv.n_pages[KV_FULL]);
  assert_true(!without.has_prefix_cache && !without.has_graph && without.n_resume == 0 && without.step_ms == 50);
  assert_true(without.scratch_bytes < p.scratch_bytes);
}

/* Rows of logits: one for each request that runs and some more, never for nobody. Windows to go on from: eight for one user alone, one each for many. */
static void rows_and_windows_by_requests(void **state) {
  (void)state;
  static const struct {
    int running, chunk, draft, out, windows;
  } cases[] = {{1, 0, 0, 16, 8}, {1, 0, -1, 16, 8}, {1, 0, 20, 24, 8},  {1, 0, 64, 32, 8},  {1, 4, 0, 5, 8},    {2, 0, 0, 16, 7},
               {4, 0, 0, 16, 5}, {5, 0, 0, 20, 5},  {16, 0, 0, 28, 16}, {24, 0, 0, 32, 24}, {40, 0, 0, 40, 40}, {40, 8, 64, 40, 40}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct plan p = plan_of(
        (struct cygnet_options){.max_running = cases[i].running, .chunk_tokens = cases[i].chunk, .draft_tokens = cases[i].draft}, &config);
    check_plan(&p, &config);
    assert_int_equal(p.sched.out_max, cases[i].out);
    assert_true(p.n_resume >= cases[i].windows);
    if (cases[i].chunk == 0 && cases[i].running > 9) assert_int_equal(p.n_resume, cases[i].windows);
  }
}

/* Two steps and a window always fit in the sliding pool, if a sequence can be that long; a ratio that gives less is refused. */
static void sliding_pool_has_a_least(void **state) {
  (void)state;
  for (int chunk = 8; chunk <= 512; chunk *= 4)
    for (int page = 1; page <= 64; page *= 8)
      for (int ratio = 0; ratio <= 10; ratio++) {
        struct cygnet_options o = {.threads = 1,
                                   .chunk_tokens = chunk,
                                   .page_tokens = page,
                                   .max_running = 1,
                                   .disable_prefix_cache = 1,
                                   .swa_full_ratio = ratio / 10.0};
        struct plan p;
        struct err e = {0};
        int least = MIN(2 * chunk + 8 + 2 * page, 1024);
        if (plan_make(&p, &o, &config, weights, &e)) {
          assert_non_null(strstr(e.msg, "--swa-full-tokens-ratio"));
          assert_true(ratio > 0 && ratio / 10.0 * 1024 < least + page); /* the full pool has one sequence of 1024 */
          continue;
        }
        check_plan(&p, &config);
        assert_true(p.kv.n_pages[KV_SLIDING] * page >= least);
      }
}

static void scratch_is_counted(void **state) {
  (void)state;
  struct plan p = plan_of((struct cygnet_options){.threads = 2, .max_running = 3}, &config);
  size_t tables = 3 * (1024 / 16) * sizeof(struct kv_page), sampling = (size_t)(2 * 512 * 33);
  for (int k = 0; k < KV_KINDS; k++) tables += pages_bytes(p.kv.n_pages[k]) + ((size_t)p.kv.n_pages[k] + 1) * sizeof(int);
  assert_int_equal(p.tree_bytes, radix_bytes(p.kv.n_pages[KV_FULL], p.kv.n_pages[KV_SLIDING], 16));
  assert_int_equal(p.scratch_bytes, model_scratch_bytes(&config, &p.model) + batch_bytes(&p.batch) + tables + sampling + p.tree_bytes +
                                        graph_bytes(&config, &device_cpu_ops, 3));
}

/* All windows and a whole step's prompt rows fit in the sliding pool, however they fall. */
static void sliding_pool_is_never_short(void **state) {
  (void)state;
  uint64_t rng = 17;
  for (int round = 0; round < 60; round++) {
    struct cygnet_options o = {.page_tokens = 1 << test_rand_int(&rng, 0, 5),
                               .chunk_tokens = test_rand_int(&rng, 1, 60),
                               .max_running = test_rand_int(&rng, 1, 8),
                               .ctx_tokens = 400};
    struct plan p = plan_of(o, &config);
    check_plan(&p, &config);
    struct kv *kv = kv_new(&p.kv, NULL);
    struct kv_seq seqs[8] = {{0}};
    for (int i = 0; i < o.max_running; i++) assert_true(kv_seq_open(kv, &seqs[i]));
    for (int step = 0; step < 40; step++) {
      int left = o.chunk_tokens;
      for (int i = 0; i < o.max_running; i++) kv_drop_window(kv, &seqs[i], seqs[i].n_tokens);
      for (int i = 0; i < o.max_running; i++) {
        int n = test_rand_int(&rng, 0, 2) ? 1 : 1 + test_rand_int(&rng, 0, left); /* a decoding row is not of the chunk */
        n = MIN(n, 400 - seqs[i].n_tokens);
        if (n <= 0) continue;
        left -= n - 1;
        struct kv_short lack = kv_reserve(kv, &seqs[i], n);
        assert_int_equal(lack.pages[KV_SLIDING], 0);
        assert_int_equal(lack.pages[KV_FULL], 0);
        kv_commit(kv, &seqs[i], n);
      }
    }
    for (int i = 0; i < o.max_running; i++) kv_seq_close(kv, &seqs[i]);
    kv_delete(kv);
  }
}

/* From nothing to plenty: first a refusal, then shorter contexts, then the whole one and growing pools. Never more than allowed. */
static void every_budget(void **state) {
  (void)state;
  int ctx_before = 0, full_before = 0;
  bool refused = false, halved = false;
  for (size_t budget = 1 << 20; budget < 40u << 20; budget += budget / 64) {
    struct cygnet_options o = {.mem_bytes = budget, .threads = 1, .chunk_tokens = 32, .max_running = 2, .kv_type = "f32"};
    struct plan p;
    struct err e = {0};
    if (plan_make(&p, &o, &config, weights, &e)) {
      assert_int_equal(ctx_before, 0); /* more never fits worse */
      assert_int_equal(e.code, ERR_NO_MEMORY);
      refused = true;
      continue;
    }
    check_plan(&p, &config);
    assert_int_equal(p.budget_bytes, budget);
    assert_true(p.ctx_tokens >= ctx_before);
    if (p.ctx_tokens == ctx_before) assert_true(p.kv.n_pages[KV_FULL] >= full_before);
    assert_int_equal(p.ctx_reduced, p.ctx_tokens < 1024);
    halved |= p.ctx_tokens == 512;
    ctx_before = p.ctx_tokens;
    full_before = p.kv.n_pages[KV_FULL];
  }
  assert_true(refused && halved);
  assert_int_equal(ctx_before, 1024);
  assert_int_equal(full_before, 2 * 1024 / 16);
}

static void one_byte_too_few(void **state) {
  (void)state;
  struct cygnet_options o = {.threads = 1, .ctx_tokens = 1024, .max_running = 2, .page_tokens = 4};
  size_t lo = 0, hi = (size_t)1 << 30;
  struct plan p;
  struct err e = {0};
  while (hi - lo > 1) {
    o.mem_bytes = lo + (hi - lo) / 2;
    *(plan_make(&p, &o, &config, weights, &e) ? &lo : &hi) = o.mem_bytes;
  }
  o.mem_bytes = hi;
  assert_int_equal(plan_make(&p, &o, &config, weights, &e), 0);
  check_plan(&p, &config);
  assert_int_equal(needed(&p), hi);
  assert_int_equal(p.kv.n_pages[KV_FULL], 1024 / 4);
  for (int more = 1; more < 40; more++) { /* what is left over goes to the pools, never beyond the limit */
    o.mem_bytes = hi + (size_t)more * 7777;
    assert_int_equal(plan_make(&p, &o, &config, weights, &e), 0);
    check_plan(&p, &config);
    assert_true(more < 4 || p.kv.n_pages[KV_FULL] > 1024 / 4);
    assert_true(o.mem_bytes - needed(&p) < 50000 || p.kv.n_pages[KV_FULL] == 2 * 1024 / 4);
  }
  o.mem_bytes = lo; /* a context that was asked for is not reduced */
  assert_int_equal(plan_make(&p, &o, &config, weights, &e), -1);
  assert_int_equal(e.code, ERR_NO_MEMORY);
  const char *says[] = {"needs", "weights", "1024 tokens", "may use", "--ctx", "--kv-type q8_0", "--max-running-requests", "--mem"};
  for (size_t i = 0; i < ARRAY_LEN(says); i++)
    if (!strstr(e.msg, says[i])) fail_msg("\"%s\" does not say %s", e.msg, says[i]);
}

static void kv_types_and_levels(void **state) {
  (void)state;
  size_t f32 = plan_of((struct cygnet_options){.kv_type = "f32"}, &config).token_bytes[KV_FULL];
  assert_int_equal(f32, 2 * 64 * 4);
  assert_int_equal(plan_of((struct cygnet_options){.kv_type = "f16"}, &config).token_bytes[KV_FULL], f32 / 2);
  assert_int_equal(plan_of((struct cygnet_options){.kv_type = "q8_0"}, &config).token_bytes[KV_FULL], f32 / 128 * 34);
  struct plan ref = plan_of((struct cygnet_options){.isa = "ref", .attn = "ref"}, &config);
  assert_ptr_equal(ref.model.attn, &attn_ref_ops);
  size_t norms = 8 * (4 * 256 + 2 * 64) + 256; /* float32 in memory, bf16 in the file; each on lines of its own */
  assert_int_equal(ref.weight_bytes, weights_total_bytes(weights) + norms * 2); /* computes from the file's own bytes */
  assert_int_equal(ref.lookup_bytes, 0);
  if (!kern_available(ISA_AVX2)) return;
  struct plan fast = plan_of((struct cygnet_options){.isa = "avx2"}, &config);
  assert_int_equal(fast.weight_bytes, ref.weight_bytes); /* rows are whole panels here */
  assert_int_equal(fast.lookup_bytes, 0);                /* rows of the embedding come from the packed head */
}

/* Heads that do not fill the blocks of a cache type are refused before any size is asked for. */
static void kv_type_against_heads(void **state) {
  (void)state;
  struct model_config c = config;
  for (int l = 0; l < c.n_layers; l++) c.layers[l].head_dim = 12;
  for (int ref = 0; ref < 2; ref++) {
    struct plan p;
    struct err e = {0};
    struct cygnet_options o = {.kv_type = "q8_0", .attn = ref ? "ref" : "cpu", .threads = 1};
    assert_int_equal(plan_make(&p, &o, &c, weights, &e), -1);
    assert_int_equal(err_exit_status(e.code), 2);
    if (!strstr(e.msg, "multiple of 32, this one is 12; choose bf16")) fail_msg("%s", e.msg);
    o.kv_type = "bf16";
    assert_int_equal(plan_make(&p, &o, &c, weights, &e), 0);
  }
}

static void ratio_of_the_pools(void **state) {
  (void)state;
  struct plan half = plan_of((struct cygnet_options){.max_running = 2, .swa_full_ratio = 0.5}, &config);
  check_plan(&half, &config);
  assert_int_equal(half.kv.n_pages[KV_SLIDING], half.kv.n_pages[KV_FULL] / 2);
  struct cygnet_options tiny = {.threads = 1, .max_running = 2, .swa_full_ratio = 1e-9};
  struct plan p;
  struct err e = {0};
  assert_int_equal(plan_make(&p, &tiny, &config, weights, &e), -1);
  assert_non_null(strstr(e.msg, "2048 tokens are 0, the sliding layers need 1024; raise it to 0.5000"));
}

static void models_of_one_kind(void **state) {
  (void)state;
  struct model_config one = config;
  for (int sliding = 0; sliding < 2; sliding++) {
    for (int l = 0; l < one.n_layers; l++) one.layers[l].kind = sliding ? LAYER_SLIDING : LAYER_FULL;
    struct plan p = plan_of((struct cygnet_options){0}, &one);
    check_plan(&p, &one);
    assert_int_equal(p.kv.n_pages[sliding ? KV_FULL : KV_SLIDING], 0);
    assert_int_equal(p.kv.window_tokens, sliding ? 8 : 0);
    assert_int_equal(p.has_prefix_cache, !sliding);
    struct cygnet_options o = {.threads = 1, .swa_full_ratio = 0.5};
    struct err e = {0};
    assert_int_equal(plan_make(&p, &o, &one, weights, &e), -1);
    assert_int_equal(e.code, ERR_BAD_INPUT);
  }
}

/* ---- other models ------------------------------------------------------------------------------------------------------------------ */

struct released {
  const char *name;
  int n_layers, period, n_q, n_kv, n_kv_full, n_shared, window;
  /* of one token in bf16, counted by hand: layers that own some · 2 · key heads · width · 2 bytes */
  size_t full_bytes, sliding_bytes;
};
static const struct released sizes[] = {
    {"E2B", 35, 5, 8, 1, 1, 20, 512, 3 * 2 * 1 * 512 * 2, 12 * 2 * 1 * 256 * 2},
    {"E4B", 42, 6, 8, 2, 2, 18, 512, 4 * 2 * 2 * 512 * 2, 20 * 2 * 2 * 256 * 2},
    {"12B", 48, 6, 16, 8, 1, 0, 1024, 8 * 2 * 1 * 512 * 2, 40 * 2 * 8 * 256 * 2},
    {"26B-A4B", 30, 6, 16, 8, 2, 0, 1024, 5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2},
    {"31B", 60, 6, 32, 16, 4, 0, 1024, 10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2},
};

/* Layers that read another's keys own no pages; each kind counts with its own heads. The pools hold what the hand count says. */
static void capacity_is_a_hand_count(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
    const struct released *r = &sizes[i];
    struct model_config *c = calloc(1, sizeof *c);
    *c = config;
    c->family = FAMILY_GEMMA4;
    c->n_layers = r->n_layers;
    c->window_tokens = r->window;
    c->ctx_tokens = 131072;
    int first = r->n_layers - r->n_shared, donor[2] = {0};
    for (int l = 0; l < r->n_layers; l++) {
      bool full = (l + 1) % r->period == 0;
      if (l < first) donor[full] = l;
      c->layers[l] = (struct layer_config){.kind = full ? LAYER_FULL : LAYER_SLIDING,
                                           .n_q = r->n_q,
                                           .n_kv = full ? r->n_kv_full : r->n_kv,
                                           .head_dim = full ? 512 : 256,
                                           .ffn = 64,
                                           .kv_donor = l < first ? l : donor[full]};
    }
    size_t kv_before = 0, tokens_before[KV_KINDS] = {0};
    for (int running = 1; running <= 4; running *= 4) {
      struct plan p = plan_of((struct cygnet_options){.ctx_tokens = 8192, .max_running = running, .mem_bytes = (size_t)1 << 45}, c);
      assert_int_equal(p.token_bytes[KV_FULL], r->full_bytes);
      assert_int_equal(p.token_bytes[KV_SLIDING], r->sliding_bytes);
      assert_true(p.kv.n_pages[KV_FULL] * 16 >= 8192 && p.kv.window_tokens == r->window);
      size_t tokens[KV_KINDS], pools = 0;
      for (int k = 0; k < KV_KINDS; k++) {
        tokens[k] = (size_t)p.kv.n_pages[k] * 16;
        pools += (tokens[k] - tokens_before[k]) * p.token_bytes[k];
      }
      /* beside them a spare page of each kind and the scratch of attention, which depends on the number of requests */
      size_t beside = p.kv_bytes - kv_before - pools;
      if (beside > (16u << 20) + 16 * (r->full_bytes + r->sliding_bytes)) fail_msg("%s: %zu bytes beside the pools", r->name, beside);
      kv_before = p.kv_bytes;
      memcpy(tokens_before, tokens, sizeof tokens);
    }
    free(c);
  }
}

/* What loading packs, and the vectors, is what was planned: every form of storage, with and without quantising. */
static void weights_as_planned(void **state) {
  (void)state;
  static const char *const paths[] = {"gemma4-e-tiny",
                                      "gemma4-e-tiny/model-bf16.gguf",
                                      "gemma4-e-tiny/model-q8_0.gguf",
                                      "gemma4-moe-tiny",
                                      "gemma4-moe-tiny/model-bf16.gguf",
                                      "gemma4-moe-tiny/model-q8_0.gguf",
                                      "gemma4-12b-tiny",
                                      "gemma4-dense-tiny",
                                      "gemma4-dense-tiny/model-q8_0.gguf",
                                      "gemma3-text-tiny",
                                      "gemma3-text-tiny/model-mixed.gguf",
                                      "gemma3-text-scale"};
  static const char *const quants[] = {NULL, "q8_0", "q4_0"}, *const levels[] = {"ref", "avx2"};
  for (size_t i = 0; i < ARRAY_LEN(paths); i++)
    for (size_t q = 0; q < ARRAY_LEN(quants); q++)
      for (size_t level = 0; level < ARRAY_LEN(levels); level++) {
        if (level == 1 && !kern_available(ISA_AVX2)) continue;
        char path[120];
        struct model_config c;
        struct err e = {0};
        struct plan p;
        snprintf(path, sizeof path, "golden/%s", paths[i]);
        struct weights *w = weights_open(test_path(path), &c, &e);
        if (!w) fail_msg("%s", e.msg);
        struct cygnet_options o = {.isa = levels[level], .quant = quants[q], .threads = 1, .max_running = 1, .ctx_tokens = 64, .quiet = 1};
        if (plan_make(&p, &o, &c, w, &e)) fail_msg("%s", e.msg);
        size_t vectors = 0, unpacked = 0, lookups = 0;
        for (size_t k = 0; k < weights_count(w); k++) {
          struct weight_entry t = weights_at(w, k);
          if (t.skipped) continue;
          bool table = !strcmp(t.gguf_name, "per_layer_token_embd.weight");
          if (t.n_dims < 2) vectors += align_up((size_t)t.shape[0] * 4, 64);
          else if (table) lookups += t.n_bytes;
          else if (level == 0 && strstr(t.gguf_name, "ffn_gate_inp")) unpacked += (size_t)(t.shape[0] * t.shape[1]) * 4;
          else if (level == 0 && weights_type(t.gguf_name, t.dtype, t.shape[t.n_dims - 1], p.model.quant) == t.dtype) unpacked += t.n_bytes;
        }
        struct model *m = model_open(&c, w, &p.model, &e);
        if (!m) fail_msg("%s: %s", path, e.msg);
        if (p.weight_bytes != m->packed_bytes + unpacked + vectors)
          fail_msg("%s, %s, %s: planned %zu, packed %zu, unpacked %zu, vectors %zu", path, quants[q] ? quants[q] : "as it is",
                   levels[level], p.weight_bytes, m->packed_bytes, unpacked, vectors);
        assert_int_equal(p.lookup_bytes, lookups);
        model_close(m);
        weights_close(w);
      }
}

/* With pictures and sound: weights about as packed, a store as asked for or by itself, steps that hold a whole picture. */
static void media_as_planned(void **state) {
  (void)state;
  static const char *const folders[] = {"media-gemma3",     "media-gemma4-31b", "media-gemma4-26b", "media-gemma4-e2b",
                                        "media-gemma4-12b", "media-mllama",     "media-mllama-long"};
  for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
    char path[120];
    struct model_config c;
    struct err e = {0};
    struct plan p, without, less;
    snprintf(path, sizeof path, "golden/%s", folders[i]);
    struct weights *w = weights_open(test_path(path), &c, &e);
    if (!w) fail_msg("%s", e.msg);
    struct cygnet_options o = {.isa = kern_available(ISA_AVX2) ? "avx2" : "ref",
                               .threads = 1,
                               .max_running = 2,
                               .ctx_tokens = 256,
                               .chunk_tokens = 20,
                               .quiet = 1};
    if (plan_make(&p, &o, &c, w, &e)) fail_msg("%s", e.msg);
    o.disable_media = 1;
    if (plan_make(&without, &o, &c, w, &e)) fail_msg("%s", e.msg);
    o.disable_media = 0;
    o.media_bytes = 4 * p.media_row_bytes * (size_t)p.media_page_rows + 1;
    if (plan_make(&less, &o, &c, w, &e)) fail_msg("%s", e.msg);
    bool cross = config_has_cross(&c), whole = c.both_ways_full || c.both_ways_sliding;
    assert_true(p.model.media && !without.model.media);
    assert_int_equal(less.media_pages, 4);
    assert_int_equal(without.media_pages + without.model.soft_rows + without.model.n_pages[BATCH_CROSS], 0);
    assert_int_equal(p.model.n_pages[BATCH_CROSS], cross ? p.media_pages : 0);
    assert_int_equal(p.model.soft_rows, cross ? 0 : (p.media_pages + 1) * p.media_page_rows);
    assert_true(p.media_pages * p.media_page_rows >= MAX(media_rows_max(&c, MEDIA_IMAGE), media_rows_max(&c, MEDIA_AUDIO)));
    assert_true(p.media_row_bytes > 0 && p.encoder_scratch_bytes > 0);
    assert_int_equal(p.sched.step_tokens, whole ? MAX(20, media_tokens_max(&c, MEDIA_IMAGE)) : 20);
    assert_int_equal(p.model.rows_max, p.sched.step_tokens + 2);
    assert_int_equal(p.weight_bytes, without.weight_bytes + p.encoder_weight_bytes);
    assert_true(needed(&p) > needed(&less) && needed(&less) > needed(&without));
    if (cross) assert_int_equal(p.kv_bytes - less.kv_bytes, (size_t)(p.media_pages - 4) * (size_t)p.media_page_rows * p.media_row_bytes);

    size_t packed[2];
    for (int media = 0; media < 2; media++) {
      struct model *m = model_open(&c, w, media ? &p.model : &without.model, &e);
      if (!m || model_open_media(m, w, &e)) fail_msg("%s: %s", path, e.msg);
      packed[media] = m->packed_bytes;
      model_close(m);
    }
    size_t took = packed[1] - packed[0]; /* without vectors */
    if (kern_available(ISA_AVX2) && (p.encoder_weight_bytes < took || p.encoder_weight_bytes > took + took / 6))
      fail_msg("%s: encoders planned %zu, packed %zu", folders[i], p.encoder_weight_bytes, took);
    weights_close(w);
  }
}

static void options_out_of_range(void **state) {
  (void)state;
  const struct {
    struct cygnet_options o;
    const char *says;
  } cases[] = {
      {{.threads = -1}, "--threads"},
      {{.ctx_tokens = -1}, "--ctx"},
      {{.ctx_tokens = 1025}, "1024"},
      {{.page_tokens = 3}, "--page-size"},
      {{.page_tokens = 512}, "--page-size"},
      {{.page_tokens = -16}, "--page-size"},
      {{.chunk_tokens = -1}, "--chunk"},
      {{.chunk_tokens = 1 << 20}, "--chunk"},
      {{.max_running = -1}, "--max-running-requests"},
      {{.max_running = 100000}, "--max-running-requests"},
      {{.max_queued = -1}, "--max-queued-requests"},
      {{.kv_type = "int4"}, "bf16, f16, f32 or q8_0"},
      {{.isa = "sse"}, "--isa"},
      {{.attn = "flash"}, "--attn"},
      {{.backend = "cuda"}, "--backend"},
      {{.mem_fraction = 1.5}, "--mem-fraction-static"},
      {{.mem_fraction = -0.5}, "--mem-fraction-static"},
      {{.swa_full_ratio = 2}, "--swa-full-tokens-ratio"},
      {{.step_ms = -1}, "--step-ms"},
      {{.mem_bytes = 1}, "--mem"},
      {{.quant = "q6_k"}, "--quant: expected q8_0 or q4_0, found \"q6_k\""},
      {{.quant = ""}, "--quant"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct plan p;
    struct err e = {0};
    assert_int_equal(plan_make(&p, &cases[i].o, &config, weights, &e), -1);
    if (!strstr(e.msg, cases[i].says)) fail_msg("case %zu: \"%s\" does not say \"%s\"", i, e.msg, cases[i].says);
  }
}

static void printed(void **state) {
  (void)state;
  struct plan p = plan_of((struct cygnet_options){.ctx_tokens = 512, .mem_bytes = 1u << 30}, &config);
  struct buf b;
  buf_init(&b, 0);
  plan_print(&p, &config, &b);
  assert_true(p.lookup_bytes == 0 || strstr(buf_cstr(&b), "rows of the embedding")); /* packed by the vector kernels only */
  const char *says[] = {"weights",
                        "16384 tokens full at 256 B",
                        "sliding at 1.8 KiB",
                        "bf16",
                        "of 1.0 GiB",
                        "512 tokens of the model's 1024",
                        "window 8",
                        "32 running, 1024 waiting; 512 prompt tokens",
                        "prefix cache       up to 16384 tokens, room to go on from 32 places when all run\n"};
  for (size_t i = 0; i < ARRAY_LEN(says); i++)
    if (!strstr(buf_cstr(&b), says[i])) fail_msg("\"%s\" does not say \"%s\"", buf_cstr(&b), says[i]);
  buf_free(&b);
}

/* No file is opened, no device asked: there is neither. */
static void refused_before_reading(void **state) {
  (void)state;
  const struct {
    struct cygnet_options o;
    const char *says;
  } cases[] = {{{.backend = "tpu"}, "--backend: expected cpu, ascend or npu, found \"tpu\""},
               {{.device_id = 3}, "--device-id: --backend cpu has no numbers, found 3"},
               {{.attn = "ascend"}, "--attn ascend works on the memory of the NPU"},
               {{.backend = "npu", .attn = "ref"}, "--attn ref works on the memory of the host"},
               {{.backend = "npu", .isa = "avx2"}, "--isa avx2 chooses the CPU's kernels"},
               {{.backend = "npu", .draft_model = "nowhere"}, "--draft-model: drafters do not run on --backend ascend"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct cygnet_options o = cases[i].o;
    struct err e = {0};
    o.model = "nowhere";
    assert_null(engine_open(&o, &e));
    if (!strstr(e.msg, cases[i].says)) fail_msg("\"%s\" is not said in: %s", cases[i].says, e.msg);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(defaults),
    cmocka_unit_test(rows_and_windows_by_requests),
    cmocka_unit_test(sliding_pool_has_a_least),
    cmocka_unit_test(scratch_is_counted),
    cmocka_unit_test(sliding_pool_is_never_short),
    cmocka_unit_test(every_budget),
    cmocka_unit_test(one_byte_too_few),
    cmocka_unit_test(kv_types_and_levels),
    cmocka_unit_test(kv_type_against_heads),
    cmocka_unit_test(ratio_of_the_pools),
    cmocka_unit_test(models_of_one_kind),
    cmocka_unit_test(capacity_is_a_hand_count),
    cmocka_unit_test(weights_as_planned),
    cmocka_unit_test(media_as_planned),
    cmocka_unit_test(options_out_of_range),
    cmocka_unit_test(refused_before_reading),
    cmocka_unit_test(printed),
};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
