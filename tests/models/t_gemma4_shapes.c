/* t_gemma4_shapes.c — Gemma 4 models of random weights and odd geometries against a float64 program of the same steps.
 *
 * Each case is written as a checkpoint, opened like any other, and run on the reference level. The program below knows nothing of batches, pages, packed
 * weights or groups of rows: it computes token after token, with loops.
 */
#include "test.h"

#include "models/golden.h"

struct geometry {
  const char *what, *kinds;              /* one letter a layer: s, f */
  int hidden, n_q, n_kv[2], head_dim[2]; /* full, sliding */
  int window, ffn;
  bool v_from_k;
  int shared; /* layers without keys */
  bool wide;  /* their ffn doubled */
  int ple, n_experts, n_used, expert_ffn;
  double rotated, cap;
};

static const struct geometry geometries[] = {
    {"A: values from keys", "sssssf", 32, 4, {1, 2}, {16, 8}, 4, 48, true, 0, false, 0, 0, 0, 0, 0.25, 30},
    {"B: per-layer embeddings, sharing", "ssssfssssf", 24, 4, {1, 1}, {16, 8}, 3, 40, false, 5, true, 8, 0, 0, 0, 0.25, 30},
    {"C: donors far apart", "sssssfsssssf", 40, 4, {2, 2}, {16, 8}, 4, 32, false, 4, false, 8, 0, 0, 0, 0.25, 30},
    {"D: experts", "sssssf", 32, 4, {1, 2}, {16, 8}, 5, 20, true, 0, false, 0, 8, 2, 12, 0.25, 30},
    {"E: every expert", "ssf", 32, 4, {1, 2}, {16, 8}, 5, 20, true, 0, false, 0, 5, 5, 12, 0.25, 0},
    {"E: one expert", "ssf", 32, 4, {1, 2}, {16, 8}, 5, 20, true, 0, false, 0, 7, 1, 9, 0.25, 5},
    {"F: equal head sizes, a key head each", "sfsf", 32, 4, {2, 4}, {8, 8}, 4, 33, true, 0, false, 0, 0, 0, 0, 0.25, 30},
    {"G: window of one", "sf", 32, 4, {2, 2}, {16, 8}, 1, 17, false, 0, false, 0, 0, 0, 0, 0.5, 30},
    {"G: window of everything, all pairs", "sf", 32, 4, {2, 2}, {16, 8}, 1000, 17, false, 0, false, 0, 0, 0, 0, 1, 30},
    {"sharing of one kind only, with experts", "sfsfff", 28, 2, {2, 2}, {10, 6}, 3, 24, false, 2, false, 6, 3, 2, 10, 0.4, 0},
};
enum { VOCAB = 70, TOKENS = 30, NAME_BYTES = 96 };

/* ---- writing the checkpoint ---------------------------------------------------------------------------------------------------- */

struct checkpoint {
  struct st_write tensors[400];
  int n;
  uint64_t rand;
};

/* Owned data of rows * cols numbers around `mean`. */
static void put(struct checkpoint *c, const char *name, int layer, int64_t d0, int64_t d1, int64_t d2, double mean, double spread) {
  char full[NAME_BYTES];
  if (layer < 0) snprintf(full, sizeof full, "model.language_model.%s", name);
  else snprintf(full, sizeof full, "model.language_model.layers.%d.%s", layer, name);
  struct st_write *t = &c->tensors[c->n++];
  CHECK(c->n < (int)ARRAY_LEN(c->tensors));
  *t = (struct st_write){.name = xstrdup(full), .dtype = DTYPE_F32, .n_dims = d2 ? 3 : d1 ? 2 : 1, .shape = {d0, d1, d2}};
  size_t n = (size_t)d0 * (size_t)MAX(d1, 1) * (size_t)MAX(d2, 1);
  float *x = xcalloc(n, sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = (float)(mean + spread * (double)test_rand_normal(&c->rand));
  t->data = x;
}
static void put_matrix(struct checkpoint *c, const char *name, int layer, int64_t rows, int64_t cols) {
  put(c, name, layer, rows, cols, 0, 0, 1 / sqrt((double)cols));
}
static void put_norm(struct checkpoint *c, const char *name, int layer, int64_t n) { put(c, name, layer, n, 0, 0, 1, 0.25); }

static int ffn_of(const struct geometry *g, int l, int n_layers) { return g->wide && l >= n_layers - g->shared ? 2 * g->ffn : g->ffn; }

static void put_layer(struct checkpoint *c, const struct geometry *g, int l, int n_layers) {
  int h = g->hidden, kind = g->kinds[l] == 's', d = g->head_dim[kind], kv = g->n_kv[kind] * d, ffn = ffn_of(g, l, n_layers);
  static const char *const norms[] = {"input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                                      "post_feedforward_layernorm.weight"};
  for (size_t i = 0; i < ARRAY_LEN(norms); i++) put_norm(c, norms[i], l, h);
  put_matrix(c, "self_attn.q_proj.weight", l, g->n_q * d, h);
  put_matrix(c, "self_attn.o_proj.weight", l, h, g->n_q * d);
  put(c, "self_attn.q_norm.weight", l, d, 0, 0, 0.4, 0.1); /* scores of a deviation near 1.5: sharper ones amplify float32 */
  if (l < n_layers - g->shared) {
    put_matrix(c, "self_attn.k_proj.weight", l, kv, h);
    put_norm(c, "self_attn.k_norm.weight", l, d);
    if (kind == 1 || !g->v_from_k) put_matrix(c, "self_attn.v_proj.weight", l, kv, h);
  }
  put_matrix(c, "mlp.gate_proj.weight", l, ffn, h);
  put_matrix(c, "mlp.up_proj.weight", l, ffn, h);
  put_matrix(c, "mlp.down_proj.weight", l, h, ffn);
  put(c, "layer_scalar", l, 1, 0, 0, l % 2 ? -0.8 : 0.9, 0.1);
  if (g->ple) {
    put_matrix(c, "per_layer_input_gate.weight", l, g->ple, h);
    put_matrix(c, "per_layer_projection.weight", l, h, g->ple);
    put_norm(c, "post_per_layer_input_norm.weight", l, h);
  }
  if (g->n_experts) {
    int e = g->n_experts, f = g->expert_ffn;
    put_matrix(c, "router.proj.weight", l, e, h);
    put_norm(c, "router.scale", l, h);
    put_norm(c, "router.per_expert_scale", l, e);
    put(c, "experts.gate_up_proj", l, e, 2 * f, h, 0, 1 / sqrt((double)h));
    put(c, "experts.down_proj", l, e, h, f, 0, 1 / sqrt((double)f));
    put_norm(c, "pre_feedforward_layernorm_2.weight", l, h);
    put_norm(c, "post_feedforward_layernorm_1.weight", l, h);
    put_norm(c, "post_feedforward_layernorm_2.weight", l, h);
  }
}

static void write_config(const struct geometry *g, int n_layers) {
  char text[4096], types[1024] = "";
  for (int l = 0; l < n_layers; l++)
    snprintf(types + strlen(types), sizeof types - strlen(types), "%s\"%s_attention\"", l ? "," : "",
             g->kinds[l] == 's' ? "sliding" : "full");
  char cap[32] = "null", experts[128] = "\"enable_moe_block\":false";
  if (g->cap > 0) snprintf(cap, sizeof cap, "%g", g->cap);
  if (g->n_experts)
    snprintf(experts, sizeof experts, "\"enable_moe_block\":true,\"num_experts\":%d,\"top_k_experts\":%d,\"moe_intermediate_size\":%d",
             g->n_experts, g->n_used, g->expert_ffn);
  int n = snprintf(
      text, sizeof text,
      "{\"model_type\":\"gemma4\",\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"text_config\":{\"model_type\":\"gemma4_text\","
      "\"vocab_size\":%d,\"vocab_size_per_layer_input\":%d,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
      "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"num_global_key_value_heads\":%d,\"head_dim\":%d,\"global_head_dim\":%d,"
      "\"sliding_window\":%d,\"attention_k_eq_v\":%s,\"num_kv_shared_layers\":%d,\"use_double_wide_mlp\":%s,"
      "\"hidden_size_per_layer_input\":%d,\"final_logit_softcapping\":%s,\"max_position_embeddings\":2048,\"layer_types\":[%s],%s,"
      "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"
      "\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000.0,\"partial_rotary_factor\":%g}}}}",
      VOCAB, VOCAB, g->hidden, g->ffn, n_layers, g->n_q, g->n_kv[1], g->n_kv[0], g->head_dim[1], g->head_dim[0], g->window,
      g->v_from_k ? "true" : "false", g->shared, g->wide ? "true" : "false", g->ple, cap, types, experts, g->rotated);
  CHECK(n > 0 && n < (int)sizeof text);
  test_write("config.json", text, (size_t)n);
}

static void write_checkpoint(const struct geometry *g, uint64_t seed) {
  struct checkpoint *c = xcalloc(1, sizeof *c);
  struct err e = {0};
  char path[256];
  int n_layers = (int)strlen(g->kinds);
  c->rand = seed;
  put(c, "embed_tokens.weight", -1, VOCAB, g->hidden, 0, 0, 0.3);
  put_norm(c, "norm.weight", -1, g->hidden);
  if (g->ple) {
    put(c, "embed_tokens_per_layer.weight", -1, VOCAB, (int64_t)n_layers * g->ple, 0, 0, 0.3);
    put_matrix(c, "per_layer_model_projection.weight", -1, (int64_t)n_layers * g->ple, g->hidden);
    put_norm(c, "per_layer_projection_norm.weight", -1, g->ple);
  }
  for (int l = 0; l < n_layers; l++) put_layer(c, g, l, n_layers);
  write_config(g, n_layers);
  snprintf(path, sizeof path, "%s/model.safetensors", test_tmpdir());
  if (safetensors_write(path, c->tensors, c->n, &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < c->n; i++) {
    free((void *)(uintptr_t)c->tensors[i].name);
    free((void *)(uintptr_t)c->tensors[i].data);
  }
  free(c);
}

/* ---- the float64 program ------------------------------------------------------------------------------------------------------- */

struct twin {
  struct safetensors st;
  const struct geometry *g;
  int n_layers;
  double *k[16], *v[16]; /* [TOKENS, n_kv * d] of layers that own some */
};

/* A tensor's numbers; owned. */
static double *get(const struct twin *t, const char *name, int layer) {
  char full[NAME_BYTES];
  if (layer < 0) snprintf(full, sizeof full, "model.language_model.%s", name);
  else snprintf(full, sizeof full, "model.language_model.layers.%d.%s", layer, name);
  const struct st_tensor *x = safetensors_find(&t->st, full);
  if (!x) fail_msg("no tensor %s", full);
  size_t n = x->n_bytes / sizeof(float);
  double *out = xcalloc(n, sizeof *out);
  for (size_t i = 0; i < n; i++) out[i] = (double)((const float *)x->data)[i];
  return out;
}
static void times(double *y, const double *w, const double *x, int rows, int cols) {
  for (int r = 0; r < rows; r++) {
    y[r] = 0;
    for (int c = 0; c < cols; c++) y[r] += w[r * cols + c] * x[c];
  }
}
static void linear(const struct twin *t, const char *name, int layer, double *y, const double *x, int rows, int cols) {
  double *w = get(t, name, layer);
  times(y, w, x, rows, cols);
  free(w);
}
/* In place; name NULL = no weight. */
static void norm(const struct twin *t, const char *name, int layer, double *x, int n) {
  double sum = 0, *w = name ? get(t, name, layer) : NULL;
  for (int i = 0; i < n; i++) sum += x[i] * x[i];
  for (int i = 0; i < n; i++) x[i] = x[i] / sqrt(sum / n + 1e-6) * (w ? w[i] : 1);
  free(w);
}
static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static void rope(const struct geometry *g, bool sliding, double *x, int d, int p) {
  int n = sliding ? d / 2 : (int)(g->rotated * d / 2);
  for (int i = 0; i < n; i++) {
    double a = p * pow(sliding ? 1e4 : 1e6, -2.0 * i / d), lo = x[i], hi = x[i + d / 2];
    x[i] = lo * cos(a) - hi * sin(a);
    x[i + d / 2] = hi * cos(a) + lo * sin(a);
  }
}

/* out [hidden] += the layer's attention for the token at p, whose normed stream is x. */
static void twin_attention(struct twin *t, int l, int p, const double *x, double *out) {
  const struct geometry *g = t->g;
  bool sliding = g->kinds[l] == 's';
  int d = g->head_dim[sliding], n_kv = g->n_kv[sliding], owner = l, h = g->hidden;
  double q[256], a[256], score[TOKENS];
  linear(t, "self_attn.q_proj.weight", l, q, x, g->n_q * d, h);
  for (int i = 0; i < g->n_q; i++) {
    norm(t, "self_attn.q_norm.weight", l, q + i * d, d);
    rope(g, sliding, q + i * d, d, p);
  }
  if (l >= t->n_layers - g->shared) {
    owner = t->n_layers - g->shared - 1;
    while (g->kinds[owner] != g->kinds[l]) owner--;
  } else {
    double *k = t->k[l] + p * n_kv * d, *v = t->v[l] + p * n_kv * d;
    linear(t, "self_attn.k_proj.weight", l, k, x, n_kv * d, h);
    if (sliding || !g->v_from_k) linear(t, "self_attn.v_proj.weight", l, v, x, n_kv * d, h);
    else memcpy(v, k, (size_t)(n_kv * d) * sizeof *v);
    for (int i = 0; i < n_kv; i++) {
      norm(t, NULL, l, v + i * d, d);
      norm(t, "self_attn.k_norm.weight", l, k + i * d, d);
      rope(g, sliding, k + i * d, d, p);
    }
  }
  for (int i = 0; i < g->n_q; i++) {
    int head = i / (g->n_q / n_kv), lo = sliding ? MAX(0, p - g->window + 1) : 0;
    double top = -INFINITY, sum = 0;
    for (int j = lo; j <= p; j++) {
      score[j] = 0;
      for (int c = 0; c < d; c++) score[j] += q[i * d + c] * t->k[owner][(j * n_kv + head) * d + c];
      top = MAX(top, score[j]);
    }
    for (int j = lo; j <= p; j++) sum += score[j] = exp(score[j] - top);
    for (int c = 0; c < d; c++) {
      a[i * d + c] = 0;
      for (int j = lo; j <= p; j++) a[i * d + c] += score[j] / sum * t->v[owner][(j * n_kv + head) * d + c];
    }
  }
  linear(t, "self_attn.o_proj.weight", l, out, a, h, g->n_q * d);
}

static void twin_gated(double *y, const double *gate, const double *up, const double *down, const double *x, int h, int ffn) {
  double a[256], b[256];
  times(a, gate, x, ffn, h);
  times(b, up, x, ffn, h);
  for (int i = 0; i < ffn; i++) a[i] = gelu(a[i]) * b[i];
  times(y, down, a, h, ffn);
}

static void twin_experts(const struct twin *t, int l, const double *h, double *f) {
  const struct geometry *g = t->g;
  int n = g->hidden, n_e = g->n_experts, ffn = g->expert_ffn;
  double x[64], z[16], y[64], m[64] = {0}, sum = 0;
  bool chosen[16] = {false};
  double *scale = get(t, "router.scale", l), *each = get(t, "router.per_expert_scale", l), *in = get(t, "experts.gate_up_proj", l),
         *down = get(t, "experts.down_proj", l);
  memcpy(x, h, (size_t)n * sizeof *x);
  norm(t, NULL, l, x, n);
  for (int i = 0; i < n; i++) x[i] *= scale[i] / sqrt(n);
  linear(t, "router.proj.weight", l, z, x, n_e, n);
  for (int i = 0; i < g->n_used; i++) {
    int best = -1;
    for (int e = 0; e < n_e; e++)
      if (!chosen[e] && (best < 0 || z[e] > z[best])) best = e;
    chosen[best] = true;
  }
  for (int e = 0; e < n_e; e++) sum += chosen[e] ? exp(z[e]) : 0;
  memcpy(x, h, (size_t)n * sizeof *x);
  norm(t, "pre_feedforward_layernorm_2.weight", l, x, n);
  for (int e = 0; e < n_e; e++) {
    if (!chosen[e]) continue;
    twin_gated(y, in + (ptrdiff_t)2 * e * ffn * n, in + (ptrdiff_t)(2 * e + 1) * ffn * n, down + (ptrdiff_t)e * n * ffn, x, n, ffn);
    for (int i = 0; i < n; i++) m[i] += exp(z[e]) / sum * each[e] * y[i];
  }
  norm(t, "post_feedforward_layernorm_1.weight", l, f, n);
  norm(t, "post_feedforward_layernorm_2.weight", l, m, n);
  for (int i = 0; i < n; i++) f[i] += m[i];
  free(scale);
  free(each);
  free(in);
  free(down);
}

static void twin_per_layer(const struct twin *t, int32_t id, const double *h, double *u) {
  int P = t->g->ple, all = t->n_layers * P, n = t->g->hidden;
  double *table = get(t, "embed_tokens_per_layer.weight", -1), *row = table + (ptrdiff_t)id * all;
  linear(t, "per_layer_model_projection.weight", -1, u, h, all, n);
  for (int i = 0; i < all; i++) u[i] /= sqrt(n);
  for (int l = 0; l < t->n_layers; l++) norm(t, "per_layer_projection_norm.weight", -1, u + l * P, P);
  for (int i = 0; i < all; i++) u[i] = (u[i] + row[i] * sqrt(P)) / sqrt(2);
  free(table);
}

static void twin_token(struct twin *t, int32_t id, int p, double *logits) {
  const struct geometry *g = t->g;
  int n = g->hidden;
  double h[64], x[64], f[64], u[256], a[64], *embed = get(t, "embed_tokens.weight", -1);
  for (int i = 0; i < n; i++) h[i] = embed[id * n + i] * sqrt(n);
  if (g->ple) twin_per_layer(t, id, h, u);
  for (int l = 0; l < t->n_layers; l++) {
    memcpy(x, h, sizeof x);
    norm(t, "input_layernorm.weight", l, x, n);
    twin_attention(t, l, p, x, f);
    norm(t, "post_attention_layernorm.weight", l, f, n);
    for (int i = 0; i < n; i++) h[i] += f[i];
    memcpy(x, h, sizeof x);
    norm(t, "pre_feedforward_layernorm.weight", l, x, n);
    double *gate = get(t, "mlp.gate_proj.weight", l), *up = get(t, "mlp.up_proj.weight", l), *down = get(t, "mlp.down_proj.weight", l);
    twin_gated(f, gate, up, down, x, n, ffn_of(g, l, t->n_layers));
    free(gate);
    free(up);
    free(down);
    if (g->n_experts) twin_experts(t, l, h, f);
    norm(t, "post_feedforward_layernorm.weight", l, f, n);
    for (int i = 0; i < n; i++) h[i] += f[i];
    if (g->ple) {
      linear(t, "per_layer_input_gate.weight", l, a, h, g->ple, n);
      for (int i = 0; i < g->ple; i++) a[i] = gelu(a[i]) * u[l * g->ple + i];
      linear(t, "per_layer_projection.weight", l, f, a, n, g->ple);
      norm(t, "post_per_layer_input_norm.weight", l, f, n);
      for (int i = 0; i < n; i++) h[i] += f[i];
    }
    double *scale = get(t, "layer_scalar", l);
    for (int i = 0; i < n; i++) h[i] *= *scale;
    free(scale);
  }
  norm(t, "norm.weight", -1, h, n);
  times(logits, embed, h, VOCAB, n);
  for (int i = 0; g->cap > 0 && i < VOCAB; i++) logits[i] = g->cap * tanh(logits[i] / g->cap);
  free(embed);
}

/* ---- the comparison ------------------------------------------------------------------------------------------------------------ */

static void check_geometry(const struct geometry *g, uint64_t seed) {
  struct err e = {0};
  uint64_t rand = seed * 77 + 5;
  struct twin t = {.g = g, .n_layers = (int)strlen(g->kinds)};
  int32_t ids[TOKENS];
  double worst = 0, size = 0;
  write_checkpoint(g, seed);
  if (safetensors_open(&t.st, test_tmpdir(), &e)) fail_msg("%s", e.msg);
  for (int l = 0; l < t.n_layers; l++) {
    t.k[l] = xcalloc(TOKENS * 128, sizeof **t.k);
    t.v[l] = xcalloc(TOKENS * 128, sizeof **t.v);
  }
  double *exact = xcalloc(TOKENS * VOCAB, sizeof *exact);
  for (int p = 0; p < TOKENS; p++) {
    ids[p] = test_rand_int(&rand, 0, VOCAB - 1);
    twin_token(&t, ids[p], p, exact + p * VOCAB);
  }
  for (int i = 0; i < TOKENS * VOCAB; i++) size += exact[i] * exact[i];
  size = sqrt(size / (TOKENS * VOCAB));

  struct model_config *c = xcalloc(1, sizeof *c);
  struct weights *w = weights_open(test_tmpdir(), c, &e);
  if (!w) fail_msg("%s: %s", g->what, e.msg);
  const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(levels) && kern_available(levels[k]); k++) {
    struct model_plan plan = fixture_plan(levels[k], 1 + (int)k, DTYPE_F32);
    struct model *m = model_open(c, w, &plan, &e);
    if (!m) fail_msg("%s: %s", g->what, e.msg);
    for (int first = 0, n; first < TOKENS; first += n) { /* a chunk of which a few rows are wanted, then smaller ones */
      struct batch b;
      int most = first == 0 ? 13 : test_rand_int(&rand, 1, 5);
      n = MIN(TOKENS - first, most);
      hand_batch(&b, m, ids, first, n);
      b.n_out = 0;
      for (int r = 0; r < n; r++)
        if (first > 13 || r == 4 || r == n - 1) b.out[b.n_out++] = r;
      struct tensor y = model_forward(m, &b);
      for (int i = 0; i < y.rows; i++)
        for (int v = 0; v < VOCAB; v++)
          worst = MAX(worst, fabs((double)tensor_row(&y, i)[v] - exact[(first + b.out[i]) * VOCAB + v]) / size);
      hand_batch_free(&b);
    }
    model_close(m);
  }
  printf("  %-40s worst logit %.2g of the rms\n", g->what, worst);
  assert_true(worst < 2e-4);
  weights_close(w);
  free(c);
  for (int l = 0; l < t.n_layers; l++) {
    free(t.k[l]);
    free(t.v[l]);
  }
  free(exact);
  safetensors_close(&t.st);
}

static void geometries_against_float64(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(geometries); i++) check_geometry(&geometries[i], i + 1);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(geometries_against_float64)};
TEST_MAIN(tests)
