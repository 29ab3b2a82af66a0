/* t_gemma3.c — the forward pass against golden values, tap by tap: a wrong model is located by the first tap that differs.
 *
 * Fixtures: tests/golden/gemma3-text-* (tiny random checkpoints; golden.safetensors holds float32 results of an independent implementation).
 * Bounds are greatest |a - b| over the rms of the reference tensor: 2e-4 for float32 arithmetic (README of the fixtures: a float64 program agrees to
 * 1.5e-5, a float32 engine with another order of sums is expected well below 2e-4). Levels that round activations have their own.
 */
#include "test.h"

#include "models/golden.h"

#ifdef CYGNET_DEBUG
enum { CHUNK_STEP = 19, CHUNK_STEP_REF = 19 }; /* sanitizers and emulation take minutes for all */
#else
enum { CHUNK_STEP = 1, CHUNK_STEP_REF = 7 };
#endif

static const struct {
  const char *folder, *model, *golden;
  bool rounds; /* fast levels round activations to 8 bits for these weights */
} fixtures[] = {
    {"gemma3-text-tiny", "", "golden.safetensors", false},
    {"gemma3-text-ropescale", "", "golden.safetensors", false},
    {"gemma3-text-scale", "", "golden.safetensors", false},
    {"gemma3-text-ropescale", "model-bf16.gguf", "golden.safetensors", false},
    {"gemma3-text-ropescale", "model-q8_0.gguf", "golden-q8_0.safetensors", true},
    {"gemma3-text-tiny", "model-mixed.gguf", "golden-mixed.safetensors", true},
};

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static void test_taps_reference(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    if (strcmp(fixtures[i].golden, "golden.safetensors")) continue;
    struct fixture f;
    fixture_open(&f, fixtures[i].folder, fixtures[i].model, fixtures[i].golden, ISA_REF, 1, DTYPE_F32);
    int n_whole, n_chunked;
    double whole = check_taps(&f, ROWS_MAX, 2e-4, &n_whole), chunked = check_taps(&f, 5, 2e-4, &n_chunked);
    assert_int_equal(n_whole, n_chunked);
    assert_true(n_whole > 700);
    printf("  ref   %s/%s: worst tap %.2g whole, %.2g in chunks of 5\n", fixtures[i].folder, fixtures[i].model, whole, chunked);
    fixture_close(&f);
  }
}

static void test_logits_reference(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct fixture f;
    double max, l2;
    fixture_open(&f, fixtures[i].folder, fixtures[i].model, fixtures[i].golden, ISA_REF, 2, DTYPE_F32);
    compare_golden_logits(&f, &max, &l2);
    printf("  ref   %s/%s: logits rel-max %.2g rel-L2 %.2g\n", fixtures[i].folder, fixtures[i].model, max, l2);
    assert_true(max <= 2e-4);
    fixture_close(&f);
  }
}

/* Fast levels. float32 or bf16 products: bf16 weights on avx2 meet the float32 bound; vdpbf16ps rounds activations to 8 bits of mantissa, and quantised
 * weights meet 8-bit activations (another engine that does so differs from these random models by 2e-1 to 3e-1 of the rms). */
static void test_logits_fast(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_AVX2, ISA_AVX512};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    if (!kern_available(levels[k])) {
      printf("  %s is not available on this machine\n", levels[k] == ISA_AVX2 ? "avx2" : "avx512");
      continue;
    }
    for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
      struct fixture f;
      double max, l2, bound_max = 2e-4, bound_l2 = 5e-5;
      fixture_open(&f, fixtures[i].folder, fixtures[i].model, fixtures[i].golden, levels[k], 2, DTYPE_F32);
      compare_golden_logits(&f, &max, &l2);
      printf("  %s %s/%s: logits rel-max %.2g rel-L2 %.2g\n", f.m->dev->kern->name, fixtures[i].folder, fixtures[i].model, max, l2);
      if (levels[k] == ISA_AVX512) bound_max = 0.2, bound_l2 = 0.03; /* activations rounded to bf16 */
      if (fixtures[i].rounds) bound_max = 0.5, bound_l2 = 0.06;      /* to 8 bits */
      if (!(max <= bound_max && l2 <= bound_l2)) fail_msg("over the bound %.2g / %.2g", bound_max, bound_l2);
      fixture_close(&f);
    }
  }
}

static void test_same_bits(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  const enum dtype kv[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++)
    for (size_t t = 0; t < ARRAY_LEN(kv) && kern_available(levels[k]); t++) {
      if (TEST_LESS > 1 && t != k) continue; /* each level, each type of key */
      struct fixture f;
      size_t n, m;
      fixture_open(&f, "gemma3-text-tiny", "model-mixed.gguf", "golden-mixed.safetensors", levels[k], 1, kv[t]);
      float *whole = all_logits(&f, ROWS_MAX, &n);
      for (int chunk = 1; chunk <= 40; chunk += levels[k] == ISA_REF ? CHUNK_STEP_REF : CHUNK_STEP) {
        float *cut = all_logits(&f, chunk, &m);
        assert_int_equal(n, m);
        if (memcmp(whole, cut, n * sizeof *cut))
          fail_msg("%s, keys %s: chunks of %d change the bits", f.m->dev->kern->name, dtype_info(kv[t])->name, chunk);
        free(cut);
      }
      fixture_close(&f);
      fixture_open(&f, "gemma3-text-tiny", "model-mixed.gguf", "golden-mixed.safetensors", levels[k], 3, kv[t]);
      float *threads = all_logits(&f, 11, &m);
      assert_memory_equal(whole, threads, n * sizeof *threads);
      free(threads);
      free(whole);
      fixture_close(&f);
    }
}

/* The last layer serves only the wanted rows; asking for one of them gives the same bits as asking for all. */
static void test_wanted_rows(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f, "gemma3-text-ropescale", "model-q8_0.gguf", "golden-q8_0.safetensors", ISA_AUTO, 2, DTYPE_BF16);
  const struct st_tensor *ids = golden_find(&f, 4, "ids");
  int n = (int)ids->shape[0], vocab = f.m->config.vocab;
  struct batch b;
  hand_batch(&b, f.m, (const int32_t *)ids->data, 0, n);
  struct tensor y = model_forward(f.m, &b);
  float *all = xmalloc((size_t)n * (size_t)vocab * sizeof *all);
  for (int r = 0; r < n; r++) memcpy(all + (size_t)r * (size_t)vocab, tensor_row(&y, r), (size_t)vocab * sizeof *all);
  for (int r = 0; r < n; r++) {
    b.out[0] = r;
    b.n_out = 1;
    y = model_forward(f.m, &b);
    assert_memory_equal(tensor_row(&y, 0), all + (size_t)r * (size_t)vocab, (size_t)vocab * sizeof *all);
  }
  b.n_out = 0;
  assert_int_equal(model_forward(f.m, &b).rows, 0);
  free(all);
  hand_batch_free(&b);
  fixture_close(&f);
}

/* The window: a sliding layer sees the key at distance W - 1 and not the one at W. With all layers but sliding ones this shows at the output of layer 0. */
struct layer0 {
  float out[ROWS_MAX][256];
};
static void keep_layer0(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct layer0 *k = ctx;
  if (layer == 0 && !strcmp(name, "layer_out")) memcpy(k->out[row], x, (size_t)cols * sizeof *x);
}
static void test_window_edge(void **state) {
  (void)state;
  struct fixture f;
  fixture_open(&f, "gemma3-text-tiny", "", "golden.safetensors", ISA_AUTO, 1, DTYPE_F32);
  int w = f.m->config.window_tokens, n = 3 * w;
  assert_int_equal(w, 8);
  int32_t ids[ROWS_MAX];
  for (int i = 0; i < n; i++) ids[i] = 270 + 3 * i;
  static struct layer0 before, after;
  f.m->tap = keep_layer0;
  for (int pass = 0; pass < 2; pass++) {
    struct batch b;
    f.m->tap_ctx = pass ? &after : &before;
    if (pass) ids[w] = 300; /* another token at position w */
    hand_batch(&b, f.m, ids, 0, n);
    model_forward(f.m, &b);
    hand_batch_free(&b);
  }
  for (int r = 0; r < n; r++) {
    bool same = !memcmp(before.out[r], after.out[r], sizeof before.out[r]);
    if (same != (r < w || r - w >= w)) fail_msg("row %d %s the key at position %d, window %d", r, same ? "does not see" : "sees", w, w);
  }
  fixture_close(&f);
}

static void test_wrong_shape_is_named(void **state) {
  (void)state;
  struct err e = {0};
  struct model_config *c = xcalloc(1, sizeof *c);
  struct weights *w = weights_open(test_path("golden/gemma3-text-tiny"), c, &e);
  assert_non_null(w);
  c->layers[3].ffn = 128;
  struct model_plan plan = {.isa = ISA_REF,
                            .n_threads = 1,
                            .kv_dtype = DTYPE_F32,
                            .page_tokens = 4,
                            .n_pages = {4, 4},
                            .rows_max = 4,
                            .out_max = 4,
                            .seqs_max = 1,
                            .tokens_max = 8,
                            .quiet = true};
  assert_null(model_open(c, w, &plan, &e));
  assert_non_null(strstr(e.msg, "128"));
  assert_non_null(strstr(e.msg, "256"));
  weights_close(w);
  free(c);
}

static void test_short_memory(void **state) {
  (void)state;
  for (int64_t nth = 1;; nth++) {
    struct err e = {0};
    struct model_config *c = xcalloc(1, sizeof *c);
    struct weights *w = weights_open(test_path("golden/gemma3-text-ropescale"), c, &e);
    assert_non_null(w);
    struct model_plan plan = {.isa = ISA_AUTO,
                              .n_threads = 1,
                              .kv_dtype = DTYPE_BF16,
                              .page_tokens = 4,
                              .n_pages = {4, 4},
                              .rows_max = 4,
                              .out_max = 4,
                              .seqs_max = 1,
                              .tokens_max = 8,
                              .quiet = true};
    mem_fail_after(nth);
    struct model *m = model_open(c, w, &plan, &e);
    bool fired = !mem_fail_pending();
    mem_fail_after(0);
    if (m) assert_false(fired);
    else assert_int_equal(e.code, ERR_NO_MEMORY);
    model_close(m);
    weights_close(w);
    free(c);
    if (!fired) {
      assert_true(nth > 10);
      break;
    }
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_taps_reference),       cmocka_unit_test(test_logits_reference),
    cmocka_unit_test(test_logits_fast),          cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_wanted_rows),          cmocka_unit_test(test_window_edge),
    cmocka_unit_test(test_wrong_shape_is_named), cmocka_unit_test(test_short_memory),
};
TEST_MAIN(tests)
