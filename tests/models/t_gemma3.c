/* t_gemma3.c — the forward pass against golden values, tap by tap: a wrong model is located by the first tap that differs.
 *
 * Fixtures: tests/golden/gemma3-text-* (tiny random checkpoints; golden.safetensors holds float32 results of an independent implementation).
 * Bounds are greatest |a - b| over the rms of the reference tensor: 2e-4 for float32 arithmetic (README of the fixtures: a float64 program agrees to
 * 1.5e-5, a float32 engine with another order of sums is expected well below 2e-4). Levels that round activations have their own.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "models/model.h"

enum { PAGE = 4, ROWS_MAX = 64 };

/* ---- a batch by hand: one sequence, whole or a chunk of it, pages in identity order -------------------------------------- */

static void hand_batch(struct batch *b, const struct model *m, const int32_t *ids, int first, int n) {
  int n_pages = div_up(first + n, PAGE);
  *b = (struct batch){.n_rows = n, .n_seqs = 1, .n_out = n, .rows_max = ROWS_MAX, .seqs_max = 1, .out_max = ROWS_MAX, .pages_max = n_pages};
  b->token = xcalloc((size_t)n, sizeof(int32_t));
  b->pos = xcalloc((size_t)n, sizeof(int32_t));
  b->seq = xcalloc((size_t)n, sizeof(int32_t));
  b->out = xcalloc((size_t)n, sizeof(int32_t));
  b->q_start = xcalloc(2, sizeof(int32_t));
  b->q_start[1] = n;
  for (int kind = 0; kind < KV_KINDS; kind++) {
    b->lo[kind] = xcalloc((size_t)n, sizeof(int32_t));
    b->hi[kind] = xcalloc((size_t)n, sizeof(int32_t));
    b->slot[kind] = xcalloc((size_t)n, sizeof(int64_t));
    b->page[kind] = xcalloc((size_t)n_pages, sizeof(int32_t));
    for (int i = 0; i < n_pages; i++) b->page[kind][i] = i + 1;
  }
  for (int r = 0; r < n; r++) {
    int p = first + r;
    b->token[r] = ids[p];
    b->pos[r] = p;
    b->out[r] = r;
    for (int kind = 0; kind < KV_KINDS; kind++) {
      b->lo[kind][r] = kind == KV_SLIDING ? (int32_t)kv_window_lo(p, m->config.window_tokens) : 0;
      b->hi[kind][r] = p + 1;
      b->slot[kind][r] = (int64_t)(1 + p / PAGE) * PAGE + p % PAGE;
    }
  }
}
static void hand_batch_free(struct batch *b) {
  free(b->token);
  free(b->pos);
  free(b->seq);
  free(b->out);
  free(b->q_start);
  for (int kind = 0; kind < KV_KINDS; kind++) {
    free(b->lo[kind]);
    free(b->hi[kind]);
    free(b->slot[kind]);
    free(b->page[kind]);
  }
}

/* ---- fixtures -------------------------------------------------------------------------------------------------------------- */

struct fixture {
  struct safetensors golden;
  struct weights *w;
  struct model_config *config;
  struct model *m;
};

static void fixture_open(struct fixture *f, const char *folder, const char *model, const char *golden, enum isa isa, int threads,
                         enum dtype kv) {
  struct err e = {0};
  char path[256];
  memset(f, 0, sizeof *f);
  snprintf(path, sizeof path, "golden/%s/%s", folder, golden);
  if (safetensors_open(&f->golden, test_path(path), &e)) fail_msg("%s", e.msg);
  f->config = xcalloc(1, sizeof *f->config);
  snprintf(path, sizeof path, "golden/%s%s%s", folder, model[0] ? "/" : "", model);
  f->w = weights_open(test_path(path), f->config, &e);
  if (!f->w) fail_msg("%s", e.msg);
  struct model_plan plan = {.isa = isa,
                            .n_threads = threads,
                            .kv_dtype = kv,
                            .page_tokens = PAGE,
                            .n_pages = {20, 20},
                            .rows_max = ROWS_MAX,
                            .out_max = ROWS_MAX,
                            .seqs_max = 1,
                            .tokens_max = 80,
                            .quiet = true};
  f->m = model_open(f->config, f->w, &plan, &e);
  if (!f->m) fail_msg("%s/%s: %s", folder, model, e.msg);
}
static void fixture_close(struct fixture *f) {
  model_close(f->m);
  weights_close(f->w);
  free(f->config);
  safetensors_close(&f->golden);
}
static const struct st_tensor *golden_find(const struct fixture *f, int which, const char *name) {
  char full[96];
  snprintf(full, sizeof full, "case%d.%s", which, name);
  return safetensors_find(&f->golden, full);
}

/* ---- taps ------------------------------------------------------------------------------------------------------------------- */

struct tap_check {
  const struct fixture *f;
  int which, first_row; /* case, position of the batch's first row */
  double bound, worst;
  char where[256]; /* the first difference over the bound */
};

static void compare_row(struct tap_check *t, const char *name, int layer, int row, const float *x, int cols, const struct st_tensor *g,
                        size_t offset) {
  const float *ref = (const float *)g->data;
  double sum = 0;
  size_t n = g->n_bytes / sizeof(float);
  for (size_t i = 0; i < n; i++) sum += (double)ref[i] * (double)ref[i];
  double rms = sqrt(sum / (double)n);
  for (int c = 0; c < cols; c++) {
    double d = fabs((double)x[c] - (double)ref[offset + (size_t)c]) / rms;
    if (!(d <= t->worst)) t->worst = d;
    if (!(d <= t->bound) && !t->where[0])
      snprintf(t->where, sizeof t->where,
               "case %d: first tap that differs: %s, layer %d, row %d, column %d: %.9g, expected %.9g (%.2g of the rms)", t->which, name,
               layer, t->first_row + row, c, (double)x[c], (double)ref[offset + (size_t)c], d);
  }
}

static void on_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct tap_check *t = ctx;
  const struct fixture *f = t->f;
  const struct st_tensor *g = NULL;
  size_t position = (size_t)(t->first_row + row), offset = position * (size_t)cols;
  char golden[64];
  if (!strcmp(name, "embed") || !strcmp(name, "layer_out")) {
    g = golden_find(f, t->which, "hidden");
    size_t rows = (size_t)g->shape[1];
    offset += (size_t)(layer + 1) * rows * (size_t)cols; /* embed has layer -1 */
  } else if (!strcmp(name, "final_norm")) g = golden_find(f, t->which, "final");
  else if (!strcmp(name, "logits")) g = golden_find(f, t->which, "logits");
  else if (!strcmp(name, "q") || !strcmp(name, "k") || !strcmp(name, "v") || !strcmp(name, "attn") || !strcmp(name, "ffn")) {
    snprintf(golden, sizeof golden, "layer%d.%s", layer, strcmp(name, "ffn") ? name : "mlp");
    g = golden_find(f, t->which, golden); /* present for a few layers of one case */
  }
  if (g) compare_row(t, name, layer, row, x, cols, g, offset);
}

/* Every case, every tap, cut into chunks of at most chunk rows. Returns the worst difference. */
static double check_taps(struct fixture *f, int chunk, double bound) {
  double worst = 0;
  for (int which = 0; golden_find(f, which, "ids"); which++) {
    const struct st_tensor *ids = golden_find(f, which, "ids");
    int n = (int)ids->shape[0];
    struct tap_check t = {.f = f, .which = which, .bound = bound};
    f->m->tap = on_tap;
    f->m->tap_ctx = &t;
    for (int first = 0; first < n; first += chunk) {
      struct batch b;
      hand_batch(&b, f->m, (const int32_t *)ids->data, first, MIN(chunk, n - first));
      t.first_row = first;
      model_forward(f->m, &b);
      hand_batch_free(&b);
    }
    if (t.where[0]) fail_msg("%s", t.where);
    worst = MAX(worst, t.worst);
  }
  f->m->tap = NULL;
  return worst;
}

/* Logits of every case as one list of floats; owned. */
static float *all_logits(struct fixture *f, int chunk, size_t *n_out) {
  float *all = NULL;
  size_t n_all = 0;
  for (int which = 0; golden_find(f, which, "ids"); which++) {
    const struct st_tensor *ids = golden_find(f, which, "ids");
    int n = (int)ids->shape[0], vocab = f->m->config.vocab;
    for (int first = 0; first < n; first += chunk) {
      struct batch b;
      hand_batch(&b, f->m, (const int32_t *)ids->data, first, MIN(chunk, n - first));
      struct tensor y = model_forward(f->m, &b);
      all = xrealloc(all, (n_all + (size_t)y.rows * (size_t)vocab) * sizeof *all);
      for (int r = 0; r < y.rows; r++, n_all += (size_t)vocab) memcpy(all + n_all, tensor_row(&y, r), (size_t)vocab * sizeof *all);
      hand_batch_free(&b);
    }
  }
  *n_out = n_all;
  return all;
}

static void compare_golden_logits(struct fixture *f, double *rel_max, double *rel_l2) {
  size_t n, at = 0;
  float *mine = all_logits(f, ROWS_MAX, &n);
  *rel_max = *rel_l2 = 0;
  for (int which = 0; golden_find(f, which, "logits"); which++) {
    const struct st_tensor *g = golden_find(f, which, "logits");
    double max, l2;
    test_compare(mine + at, (const float *)g->data, g->n_bytes / sizeof(float), &max, &l2);
    *rel_max = MAX(*rel_max, max);
    *rel_l2 = MAX(*rel_l2, l2);
    at += g->n_bytes / sizeof(float);
  }
  assert_int_equal(at, n);
  free(mine);
}

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
    double whole = check_taps(&f, ROWS_MAX, 2e-4), chunked = check_taps(&f, 5, 2e-4);
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
      struct fixture f;
      size_t n, m;
      fixture_open(&f, "gemma3-text-tiny", "model-mixed.gguf", "golden-mixed.safetensors", levels[k], 1, kv[t]);
      float *whole = all_logits(&f, ROWS_MAX, &n);
      for (int chunk = 1; chunk <= 40; chunk += levels[k] == ISA_REF ? 7 : 1) {
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
