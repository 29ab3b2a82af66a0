/* t_vision_mllama.c — mllama's encoder against golden values tap by tap, against a slow twin of random shapes, and against itself by every
 * other road.
 *
 * Fixtures: tests/golden/media-mllama* (float32 results of an independent implementation). Bound 1e-4 on float32 levels.
 */
#include "test.h"

#include "base/clock.h"
#include "gguf_maker.h"
#include "models/hand_encoder.h"

static const struct {
  const char *folder, *pictures[4];
  int n;
} fixtures[] = {{"media-mllama", {"one.rgb.png", "four.rgb.png", "row.rgb.jpg", "two.rgba.png"}, 4},
                {"media-mllama-long", {"four.rgb.png", "one.rgb.jpg"}, 2}};

static int rows_of_tile(const struct vision_config *v) { return (v->image / v->patch) * (v->image / v->patch) + 1; }

/* ---- golden values ---------------------------------------------------------------------------------------------------------- */

static double compare_picture(struct hand *h, int which, double bound, int *n_compared) {
  const struct vision_config *v = &h->m.config.vision;
  int P = rows_of_tile(v), Pp = (P + 7) / 8 * 8, D = v->hidden, N = v->n_tiles, used = h->x->items[0]->n_rows / P;
  double worst = 0, d;
  const struct st_tensor *g = hand_golden(h, "image", which, "embedded");
  if (g) {
    const float *x = hand_tap(h, "v.embed", -1, N * Pp, D);
    for (int t = 0; t < N; t++) {
      d = hand_difference(x + (size_t)(t * Pp * D), g, (size_t)(t * P * D), (size_t)(P * D));
      worst = MAX(worst, d);
      if (!(d <= bound)) fail_msg("picture %d: embedding of tile %d differs by %.2g", which, t, d);
      for (int i = 0; i < (Pp - P) * D; i++) assert_true(x[(t * Pp + P) * D + i] == 0);
    }
    ++*n_compared;
  }
  const char *stages[] = {"layers", "global_layers"};
  for (int s = 0, layer = 0; s < 2; s++) {
    if (!(g = hand_golden(h, "image", which, stages[s]))) continue;
    assert_int_equal(g->shape[0], s ? v->n_global_layers : v->n_layers);
    for (int l = 0; l < (int)g->shape[0]; l++, layer++) {
      const float *x = hand_tap(h, "v.layer_out", layer, N * Pp, D);
      d = hand_difference(x, g, (size_t)(l * N * Pp * D), (size_t)(N * Pp * D));
      worst = MAX(worst, d);
      if (!(d <= bound)) fail_msg("picture %d: %s %d differs by %.2g", which, stages[s], l, d);
      ++*n_compared;
    }
  }
  const struct {
    const char *golden, *tap;
    int cols;
  } outs[] = {{"features", "v.features", v->out_dim}, {"bank", "v.soft", h->m.config.hidden}};
  for (size_t i = 0; i < ARRAY_LEN(outs); i++) {
    if (!(g = hand_golden(h, "image", which, outs[i].golden))) continue;
    d = hand_difference(hand_tap(h, outs[i].tap, -1, used * P, outs[i].cols), g, 0, (size_t)(used * P * outs[i].cols));
    worst = MAX(worst, d);
    if (!(d <= bound)) fail_msg("picture %d: %s differ by %.2g", which, outs[i].golden, d);
    ++*n_compared;
  }
  return worst;
}

static void check_level(enum isa isa, int block, double bound) {
  if (isa != ISA_REF && !kern_available(isa)) {
    printf("  %s is not available on this machine\n", isa == ISA_AVX2 ? "avx2" : "avx512");
    return;
  }
  for (size_t f = 0; f < ARRAY_LEN(fixtures); f++) {
    struct hand h;
    int n = 0;
    double worst = 0;
    hand_open_golden(&h, fixtures[f].folder);
    hand_load(&h, MEDIA_IMAGE, isa, 2);
    if (block) h.x->block = block;
    for (int i = 0; i < fixtures[f].n; i++) {
      struct media *m = hand_media(&h, fixtures[f].folder, fixtures[f].pictures[i], MEDIA_IMAGE);
      const struct st_tensor *id = hand_golden(&h, "image", i, "ratio_id"), *tiles = hand_golden(&h, "image", i, "tiles");
      assert_int_equal(m->ratio_id, *(const int32_t *)id->data);
      assert_int_equal(m->tiles_wide * m->tiles_high, *(const int32_t *)tiles->data);
      hand_encode(&h, (const struct media *[]){m}, 1);
      double d = compare_picture(&h, i, bound, &n);
      worst = MAX(worst, d);
      media_release(m);
    }
    printf("  %s %s: worst %.2g of %d tensors\n", h.m.dev->kern->name, fixtures[f].folder, worst, n);
    assert_int_equal(n, f ? 8 : 12);
    hand_close(&h);
  }
}

static void test_golden(void **state) {
  (void)state;
  check_level(ISA_REF, 0, 1e-4);
  check_level(ISA_REF, 7, 1e-4);
  check_level(ISA_AVX2, 0, 1e-4);
  check_level(ISA_AVX512, 0, 5e-2); /* activations rounded to bf16 */
}

/* What one implementation does otherwise: it records the outputs of the listed layers. The fixture holds its banks, too, so what the
 * recorded states are can be seen: put together from taps they give them. */
static void test_recorded_states(void **state) {
  (void)state;
  struct hand h;
  hand_open_golden(&h, "media-mllama");
  hand_load(&h, MEDIA_IMAGE, ISA_REF, 1);
  const struct vision_config *v = &h.m.config.vision;
  int D = v->hidden, P = rows_of_tile(v), Pp = (P + 7) / 8 * 8, hidden = h.m.config.hidden;
  float *w = hand_weights(&h, "mm.0.weight", hidden, v->out_dim), *b = hand_weights(&h, "mm.0.bias", 0, hidden);
  for (int i = 0; i < fixtures[0].n; i++) {
    const struct st_tensor *other = hand_golden(&h, "image", i, "hf_bank"), *own = hand_golden(&h, "image", i, "bank");
    struct media *m = hand_media(&h, "media-mllama", fixtures[0].pictures[i], MEDIA_IMAGE);
    hand_encode(&h, (const struct media *[]){m}, 1);
    int n = m->n_rows * hidden;
    float *bank = xmalloc((size_t)n * sizeof *bank);
    for (int r = 0; r < m->n_rows; r++) {
      int file_row = r / P * Pp + r % P;
      for (int o = 0; o < hidden; o++) {
        const float *last = hand_tap(&h, "v.layer_out", v->n_layers + v->n_global_layers - 1, v->n_tiles * Pp, D);
        double sum = (double)b[o];
        for (int d = 0; d < D; d++) {
          sum += (double)w[o * v->out_dim + d] * (double)last[file_row * D + d];
          for (int s = 0; s < v->n_states; s++) {
            const float *output = hand_tap(&h, "v.layer_out", v->states[s], v->n_tiles * Pp, D);
            sum += (double)w[o * v->out_dim + D + v->n_states * d + s] * (double)output[file_row * D + d];
          }
        }
        bank[r * hidden + o] = (float)sum;
      }
    }
    double same = hand_difference(bank, other, 0, (size_t)n), differs = hand_difference(bank, own, 0, (size_t)n);
    if (!(same <= 1e-4) || !(differs > 0.05)) fail_msg("picture %d: %.2g from the outputs' bank, %.2g from the inputs'", i, same, differs);
    free(bank);
    media_release(m);
  }
  free(w);
  free(b);
  hand_close(&h);
}

/* ---- a slow twin of random shapes ----------------------------------------------------------------------------------------------- */

/* Rows of tables that belong to unused tiles: random, 0 as in released models, or 0 with a minus in front of one. */
enum unused { UNUSED_RANDOM, UNUSED_ZERO, UNUSED_MINUS_ZERO };
static void set_unused(struct hand_maker *k, const struct vision_config *v, enum unused unused) {
  if (unused == UNUSED_RANDOM) return;
  struct st_write *t = &k->t[k->n - 1];
  int ids = v->n_ratios + 1;
  size_t per_tile = (size_t)t->shape[1] / (size_t)v->n_tiles;
  for (int id = 1; id < ids; id++)
    for (int tile = v->ratios[id - 1][0] * v->ratios[id - 1][1]; tile < v->n_tiles; tile++) {
      float *x = (float *)(uintptr_t)t->data + (size_t)(id * v->n_tiles + tile) * per_tile;
      memset(x, 0, per_tile * sizeof *x);
      if (unused == UNUSED_MINUS_ZERO && tile == v->n_tiles - 1) x[0] = -0.0f;
    }
}
static void make_checkpoint(struct hand_maker *k, const struct vision_config *v, int hidden, bool open_gates, enum unused unused) {
  int D = v->hidden, P = rows_of_tile(v), ids = v->n_ratios + 1;
  double w = 1 / sqrt(D);
  char prefix[64];
  const char *vm = "vision_model.";
  hand_add_tensor(k, "vision_model.patch_embedding.weight", 4, (const int64_t[4]){D, 3, v->patch, v->patch}, 0, 1.0 / v->patch);
  hand_add(k, vm, "class_embedding", 0, D, 0, 1);
  hand_add(k, vm, "gated_positional_embedding.embedding", P, D, 0, 1);
  hand_add(k, vm, "gated_positional_embedding.tile_embedding.weight", ids, v->n_tiles * P * D, 0, 1);
  set_unused(k, v, unused);
  hand_add(k, vm, "pre_tile_positional_embedding.embedding.weight", ids, v->n_tiles * D, 0, 1);
  set_unused(k, v, unused);
  hand_add(k, vm, "post_tile_positional_embedding.embedding.weight", ids, v->n_tiles * D, 0, 1);
  set_unused(k, v, unused);
  hand_add(k, vm, "gated_positional_embedding.gate", 0, 1, open_gates ? 0.7 : 0, 0);
  hand_add(k, vm, "pre_tile_positional_embedding.gate", 0, 1, open_gates ? -0.5 : 0, 0);
  hand_add(k, vm, "post_tile_positional_embedding.gate", 0, 1, open_gates ? 0.3 : 0, 0);
  const char *norms[] = {"layernorm_pre", "layernorm_post"};
  for (int i = 0; i < 2; i++) {
    snprintf(prefix, sizeof prefix, "vision_model.%s.", norms[i]);
    hand_add(k, prefix, "weight", 0, D, 1, 0.3), hand_add(k, prefix, "bias", 0, D, 0, 0.3);
  }
  for (int l = 0; l < v->n_layers + v->n_global_layers; l++) {
    bool global = l >= v->n_layers;
    snprintf(prefix, sizeof prefix, "vision_model.%s.layers.%d.", global ? "global_transformer" : "transformer",
             global ? l - v->n_layers : l);
    hand_add(k, prefix, "input_layernorm.weight", 0, D, 1, 0.3), hand_add(k, prefix, "input_layernorm.bias", 0, D, 0, 0.3);
    hand_add(k, prefix, "post_attention_layernorm.weight", 0, D, 1, 0.3),
        hand_add(k, prefix, "post_attention_layernorm.bias", 0, D, 0, 0.3);
    hand_add(k, prefix, "self_attn.q_proj.weight", D, D, 0, 1.5 * w), hand_add(k, prefix, "self_attn.k_proj.weight", D, D, 0, 1.5 * w);
    hand_add(k, prefix, "self_attn.v_proj.weight", D, D, 0, w), hand_add(k, prefix, "self_attn.o_proj.weight", D, D, 0, w);
    hand_add(k, prefix, "mlp.fc1.weight", v->ffn, D, 0, w), hand_add(k, prefix, "mlp.fc1.bias", 0, v->ffn, 0, 0.3);
    hand_add(k, prefix, "mlp.fc2.weight", D, v->ffn, 0, 1 / sqrt(v->ffn)), hand_add(k, prefix, "mlp.fc2.bias", 0, D, 0, 0.3);
    if (global) hand_add(k, prefix, "gate_attn", 0, 1, 0.9, 0), hand_add(k, prefix, "gate_ffn", 0, 1, -0.6, 0);
  }
  hand_add(k, "multi_modal_projector.", "weight", hidden, v->out_dim, 0, 1 / sqrt(v->out_dim));
  hand_add(k, "multi_modal_projector.", "bias", 0, hidden, 0, 0.3);
}

/* A model with an encoder of this shape, all else as in the fixture. */
static void open_random(struct hand *h, const struct vision_config *v, uint64_t seed, bool open_gates, enum unused unused) {
  struct hand_maker *k = xcalloc(1, sizeof *k);
  k->seed = seed;
  make_checkpoint(k, v, 48, open_gates, unused);
  hand_write(k, "media-mllama");
  hand_open(h, test_tmpdir());
  assert_int_equal(h->m.config.hidden, 48);
  h->m.config.vision = *v;
}

static struct vision_config random_shape(uint64_t *seed) {
  static const int grids[] = {1, 2, 3, 4}; /* 6, 3, 6 and 7 rows of padding */
  struct vision_config v = {.kind = VISION_MLLAMA, .norm_eps = 1e-5f, .pool = 1};
  v.patch = test_rand_int(seed, 2, 5);
  v.image = v.patch * grids[test_rand_int(seed, 0, 3)];
  v.n_heads = test_rand_int(seed, 1, 3);
  v.head_dim = test_rand_int(seed, 3, 9);
  v.hidden = v.n_heads * v.head_dim;
  v.ffn = test_rand_int(seed, 5, 33);
  v.n_layers = test_rand_int(seed, 1, 3);
  v.n_global_layers = test_rand_int(seed, 1, 2);
  v.n_tiles = test_rand_int(seed, 1, 4);
  for (int high = 1; high <= v.n_tiles; high++)
    for (int wide = 1; high * wide <= v.n_tiles; wide++) v.ratios[v.n_ratios][0] = high, v.ratios[v.n_ratios++][1] = wide;
  for (int l = 0; l < v.n_layers; l++)
    if (test_rand_int(seed, 0, 1)) v.states[v.n_states++] = l;
  v.out_dim = v.hidden * (1 + v.n_states);
  for (int i = 0; i < 3; i++) v.mean[i] = 0.4f, v.std[i] = 0.3f;
  return v;
}

static struct media *random_picture(const struct model_config *c, int ratio, uint64_t *seed) {
  const struct vision_config *v = &c->vision;
  struct media *m = xcalloc(1, sizeof *m);
  int P = rows_of_tile(v);
  *m = (struct media){.kind = MEDIA_IMAGE, .refs = 1, .n_tokens = 1, .ratio_id = ratio + 1};
  m->tiles_high = v->ratios[ratio][0];
  m->tiles_wide = v->ratios[ratio][1];
  m->n_rows = m->tiles_high * m->tiles_wide * P;
  m->n_patches = v->n_tiles * (P - 1);
  m->width = m->tiles_wide * v->image;
  m->height = m->tiles_high * v->image;
  size_t n = (size_t)m->width * (size_t)m->height * 3;
  m->pixels = xmalloc(n);
  for (size_t i = 0; i < n; i++) m->pixels[i] = (uint8_t)test_rand(seed);
  return m;
}

static void twin_norm(double *y, const double *x, int n, const float *w, const float *b) {
  double mean = 0, square = 0;
  for (int i = 0; i < n; i++) mean += x[i] / n;
  for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
  for (int i = 0; i < n; i++) y[i] = (x[i] - mean) / sqrt(square + 1e-5) * (double)w[i] + (double)b[i];
}
static void twin_linear(double *y, const double *x, int rows, int cols, const float *w) {
  for (int r = 0; r < rows; r++) {
    y[r] = 0;
    for (int c = 0; c < cols; c++) y[r] += (double)w[r * cols + c] * x[c];
  }
}
static float *twin_layer(struct hand *h, bool global, int layer, const char *name, int rows, int cols) {
  char full[80];
  snprintf(full, sizeof full, "%s.%d.%s", global ? "v.global.blk" : "v.blk", layer, name);
  return hand_weights(h, full, rows, cols);
}

/* One block over all rows: every pair of rows but masked ones with each other. */
static void twin_block(struct hand *h, bool global, int layer, double *x, int rows, const bool *masked) {
  const struct vision_config *v = &h->m.config.vision;
  int D = v->hidden, d = v->head_dim;
  float *ln1 = twin_layer(h, global, layer, "ln1.weight", 0, D), *ln1_b = twin_layer(h, global, layer, "ln1.bias", 0, D);
  float *ln2 = twin_layer(h, global, layer, "ln2.weight", 0, D), *ln2_b = twin_layer(h, global, layer, "ln2.bias", 0, D);
  float *wq = twin_layer(h, global, layer, "attn_q.weight", D, D), *wk = twin_layer(h, global, layer, "attn_k.weight", D, D);
  float *wv = twin_layer(h, global, layer, "attn_v.weight", D, D), *wo = twin_layer(h, global, layer, "attn_out.weight", D, D);
  float *up = twin_layer(h, global, layer, "ffn_up.weight", v->ffn, D), *up_b = twin_layer(h, global, layer, "ffn_up.bias", 0, v->ffn);
  float *down = twin_layer(h, global, layer, "ffn_down.weight", D, v->ffn), *down_b = twin_layer(h, global, layer, "ffn_down.bias", 0, D);
  double gate_attn = 1, gate_ffn = 1;
  if (global) {
    float *a = twin_layer(h, true, layer, "attn_gate", 0, 1), *b = twin_layer(h, true, layer, "ffn_gate", 0, 1);
    gate_attn = tanh((double)*a), gate_ffn = tanh((double)*b);
    free(a), free(b);
  }
  size_t all = (size_t)(rows * D), widest = (size_t)(D + v->ffn);
  double *q = xcalloc(all, sizeof *q), *k = xcalloc(all, sizeof *k), *value = xcalloc(all, sizeof *value), *a = xcalloc(all, sizeof *a);
  double *p = xcalloc((size_t)rows, sizeof *p), *t = xcalloc(widest, sizeof *t), *u = xcalloc(widest, sizeof *u);
  for (int r = 0; r < rows; r++) {
    twin_norm(t, x + r * D, D, ln1, ln1_b);
    twin_linear(q + r * D, t, D, D, wq);
    twin_linear(k + r * D, t, D, D, wk);
    twin_linear(value + r * D, t, D, D, wv);
  }
  for (int r = 0; r < rows; r++) {
    for (int head = 0; head < v->n_heads; head++) {
      double sum = 0;
      for (int j = 0; j < rows; j++) {
        double s = 0;
        for (int i = 0; i < d; i++) s += q[r * D + head * d + i] * k[j * D + head * d + i];
        sum += p[j] = masked[r] && masked[j] ? 0 : exp(s / sqrt(d));
      }
      for (int j = 0; j < rows; j++)
        for (int i = 0; i < d; i++) a[r * D + head * d + i] += p[j] / sum * value[j * D + head * d + i];
    }
  }
  for (int r = 0; r < rows; r++) {
    twin_linear(t, a + r * D, D, D, wo);
    for (int i = 0; i < D; i++) x[r * D + i] += gate_attn * t[i];
    twin_norm(t, x + r * D, D, ln2, ln2_b);
    twin_linear(u, t, v->ffn, D, up);
    for (int i = 0; i < v->ffn; i++) {
      double z = u[i] + (double)up_b[i];
      u[i] = z / 2 * (1 + erf(z / sqrt(2)));
    }
    twin_linear(t, u, D, v->ffn, down);
    for (int i = 0; i < D; i++) x[r * D + i] += gate_ffn * (t[i] + (double)down_b[i]);
  }
  void *owned[] = {ln1, ln1_b, ln2, ln2_b, wq, wk, wv, wo, up, up_b, down, down_b, q, k, value, a, p, t, u};
  for (size_t i = 0; i < ARRAY_LEN(owned); i++) free(owned[i]);
}

static double gate_of(struct hand *h, const char *name) {
  float *g = hand_weights(h, name, 0, 1);
  double x = tanh((double)*g);
  free(g);
  return x;
}
static void add_tiles(struct hand *h, const char *name, const struct media *m, double *x, int tiles, int first, int per_tile) {
  const struct vision_config *v = &h->m.config.vision;
  char full[64];
  snprintf(full, sizeof full, "v.%s_tile_position_embd.gate", name);
  double g = gate_of(h, full);
  snprintf(full, sizeof full, "v.%s_tile_position_embd.weight", name);
  float *w = hand_weights(h, full, v->n_ratios + 1, v->n_tiles * v->hidden);
  for (int t = 0; t < tiles; t++)
    for (int r = first; r < per_tile; r++)
      for (int i = 0; i < v->hidden; i++)
        x[(t * per_tile + r) * v->hidden + i] += g * (double)w[(m->ratio_id * v->n_tiles + t) * v->hidden + i];
  free(w);
}

/* The picture's bank [n_rows, hidden], owned; over so many tiles, n_tiles in truth. Rows stand in file order here. */
static float *twin_bank(struct hand *h, const struct media *m, int tiles) {
  const struct vision_config *v = &h->m.config.vision;
  int D = v->hidden, P = rows_of_tile(v), Pp = (P + 7) / 8 * 8, rows = tiles * Pp, cols = 3 * v->patch * v->patch, hidden = 48;
  double *e = xcalloc((size_t)(tiles * P * D), sizeof *e), *x = xcalloc((size_t)(rows * D), sizeof *x);
  bool *masked = xcalloc((size_t)rows, sizeof *masked);
  float *patch = xmalloc((size_t)cols * sizeof *patch), *w = hand_weights(h, "v.patch_embd.weight", D, cols);
  for (int t = 0; t < tiles; t++) {
    for (int r = 1; r < P; r++) {
      double values[75];
      media_patches(&h->m.config, m, t * (P - 1) + r - 1, 1, patch);
      for (int i = 0; i < cols; i++) values[i] = (double)patch[i];
      twin_linear(e + (t * P + r) * D, values, D, cols, w);
    }
  }
  free(w), free(patch);
  add_tiles(h, "pre", m, e, tiles, 1, P);
  float *class_row = hand_weights(h, "v.class_embd", 0, D), *position = hand_weights(h, "v.position_embd.weight", P, D);
  float *tile = hand_weights(h, "v.tile_position_embd.weight", v->n_ratios + 1, v->n_tiles * P * D);
  float *ln = hand_weights(h, "v.pre_ln.weight", 0, D), *ln_b = hand_weights(h, "v.pre_ln.bias", 0, D);
  double g = gate_of(h, "v.position_embd.gate");
  for (int t = 0; t < tiles; t++) {
    for (int r = 0; r < P; r++) {
      double *at = e + (t * P + r) * D;
      for (int i = 0; i < D; i++) {
        if (r == 0) at[i] = (double)class_row[i];
        at[i] += (1 - g) * (double)position[r * D + i] + g * (double)tile[((m->ratio_id * v->n_tiles + t) * P + r) * D + i];
      }
      twin_norm(x + (t * Pp + r) * D, at, D, ln, ln_b);
    }
    for (int r = 0; r < Pp; r++) masked[t * Pp + r] = r >= P || t >= m->tiles_wide * m->tiles_high;
  }
  void *owned[] = {class_row, position, tile, ln, ln_b, e};
  for (size_t i = 0; i < ARRAY_LEN(owned); i++) free(owned[i]);

  double *states = xcalloc((size_t)(MAX(v->n_states, 1) * rows * D), sizeof *states);
  for (int l = 0; l < v->n_layers; l++) {
    for (int s = 0; s < v->n_states; s++)
      if (v->states[s] == l) memcpy(states + s * rows * D, x, (size_t)(rows * D) * sizeof *x);
    twin_block(h, false, l, x, rows, masked);
  }
  float *post = hand_weights(h, "v.post_ln.weight", 0, D), *post_b = hand_weights(h, "v.post_ln.bias", 0, D);
  for (int r = 0; r < rows; r++) twin_norm(x + r * D, x + r * D, D, post, post_b);
  add_tiles(h, "post", m, x, tiles, 0, Pp);
  for (int l = 0; l < v->n_global_layers; l++) twin_block(h, true, l, x, rows, masked);

  float *project = hand_weights(h, "mm.0.weight", hidden, v->out_dim), *bias = hand_weights(h, "mm.0.bias", 0, hidden);
  float *bank = xmalloc((size_t)(m->n_rows * hidden) * sizeof *bank);
  for (int r = 0; r < m->n_rows; r++) {
    int row = r / P * Pp + r % P;
    for (int o = 0; o < hidden; o++) {
      double sum = (double)bias[o];
      const float *p = project + o * v->out_dim;
      for (int i = 0; i < D; i++) {
        sum += (double)p[i] * x[row * D + i];
        for (int s = 0; s < v->n_states; s++) sum += (double)p[D + v->n_states * i + s] * states[(s * rows + row) * D + i];
      }
      bank[r * hidden + o] = (float)sum;
    }
  }
  void *rest[] = {x, masked, states, post, post_b, project, bias};
  for (size_t i = 0; i < ARRAY_LEN(rest); i++) free(rest[i]);
  return bank;
}

/* Random shapes, pictures of every ratio. With tiles to spare, an encoder that leaves those out gives something else. */
static void test_twin(void **state) {
  (void)state;
  uint64_t seed = 11;
  double worst = 0, least = INFINITY;
  int n_pictures = 0;
  for (int round = 0; round < 24; round++) {
    struct vision_config v = random_shape(&seed);
    struct hand h;
    open_random(&h, &v, seed, true, round % 4 > 1 ? UNUSED_ZERO : UNUSED_RANDOM);
    hand_load(&h, MEDIA_IMAGE, round % 2 && kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 1 + round % 2);
    h.x->block = test_rand_int(&seed, 1, 40);
    for (int ratio = 0; ratio < v.n_ratios; ratio++, n_pictures++) {
      struct media *m = random_picture(&h.m.config, ratio, &seed);
      int used = m->tiles_wide * m->tiles_high;
      float *bank = twin_bank(&h, m, v.n_tiles), *without = twin_bank(&h, m, used);
      size_t n;
      float *mine = hand_rows(&h, (const struct media *[]){m}, 1, &n);
      double max, l2, other;
      assert_int_equal(n, m->n_rows * 48);
      test_compare(mine, bank, n, &max, &l2);
      if (!(max <= 1e-4)) fail_msg("round %d, ratio %d: differs by %.2g", round, ratio, max);
      test_compare(without, bank, n, &other, &l2);
      worst = MAX(worst, max);
      if (used < v.n_tiles) least = MIN(least, other);
      free(bank), free(without), free(mine);
      media_release(m);
    }
    hand_close(&h);
  }
  printf("  %d pictures: worst %.2g; without unused tiles at least %.2g away\n", n_pictures, worst, least);
  assert_true(n_pictures > 60 && least > 1e-3);
}

/* With the gates of all positions closed tiles are alike: change two of them, and their rows of the bank change places. */
static void test_permuted_tiles(void **state) {
  (void)state;
  uint64_t seed = 5;
  struct vision_config v = random_shape(&seed);
  v.n_tiles = 3, v.n_ratios = 3, v.image = 3 * v.patch;
  for (int i = 0; i < 3; i++) v.ratios[i][0] = 1 + i, v.ratios[i][1] = 1;
  for (int open_gates = 0; open_gates < 2; open_gates++) {
    struct hand h;
    open_random(&h, &v, seed, open_gates, UNUSED_RANDOM);
    hand_load(&h, MEDIA_IMAGE, ISA_REF, 1);
    struct media *a = random_picture(&h.m.config, 1, &seed), *b = random_picture(&h.m.config, 1, &seed);
    size_t n, half = (size_t)(a->width * a->height * 3 / 2);
    memcpy(b->pixels, a->pixels + half, half);
    memcpy(b->pixels + half, a->pixels, half);
    float *x = hand_rows(&h, (const struct media *[]){a}, 1, &n), *y = hand_rows(&h, (const struct media *[]){b}, 1, &n);
    double first, second, l2;
    test_compare(x, y + n / 2, n / 2, &first, &l2);
    test_compare(x + n / 2, y, n / 2, &second, &l2);
    if (open_gates) assert_true(first > 0.01 && second > 0.01);
    else assert_true(first < 1e-5 && second < 1e-5);
    free(x), free(y);
    media_release(a), media_release(b);
    hand_close(&h);
  }
}

/* ---- other roads ---------------------------------------------------------------------------------------------------------------- */

/* Alone or beside others, in blocks of any size, on any number of threads, after a job that was given up: the same bits. */
static void test_bits(void **state) {
  (void)state;
  static const int blocks[] = {ENCODER_ROWS, 1, 7, 32}, threads[] = {1, 2, 3};
  const enum isa levels[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    if (levels[k] != ISA_REF && !kern_available(levels[k])) continue;
    float *alone[4];
    size_t n_alone[4];
    for (size_t t = 0; t < ARRAY_LEN(threads); t++) {
      struct hand h;
      struct media *m[4];
      hand_open_golden(&h, "media-mllama");
      hand_load(&h, MEDIA_IMAGE, levels[k], threads[t]);
      for (int i = 0; i < 4; i++) m[i] = hand_media(&h, "media-mllama", fixtures[0].pictures[i], MEDIA_IMAGE);
      for (int i = 0; i < 4 && t == 0; i++) alone[i] = hand_rows(&h, (const struct media *[]){m[i]}, 1, &n_alone[i]);
      for (size_t b = 0; b < ARRAY_LEN(blocks); b++) {
        const struct media *job[] = {m[2], m[0], m[0], m[3], m[1]};
        static const int which[] = {2, 0, 0, 3, 1};
        h.x->block = blocks[b];
        encoder_begin(h.x, job + 1, 4);
        for (int u = 0; u < 5; u++) encoder_unit(h.x);
        encoder_cancel(h.x);
        size_t n, at = 0;
        float *all = hand_rows(&h, job, 5, &n);
        assert_true(h.x->products > 0);
        for (int i = 0; i < 5; at += n_alone[which[i]], i++)
          assert_memory_equal(all + at, alone[which[i]], n_alone[which[i]] * sizeof *all);
        assert_int_equal(at, n);
        free(all);
      }
      hand_release(m, 4);
      hand_close(&h);
    }
    for (int i = 0; i < 4; i++) free(alone[i]);
  }
}

/* Unused tiles that are alike are computed once: a zero with a minus makes them different to look at, not to compute with. */
static void test_tiles_alike(void **state) {
  (void)state;
  uint64_t seed = 21;
  for (int round = 0; round < 6; round++) {
    struct vision_config v = random_shape(&seed);
    v.n_tiles = 4, v.n_ratios = 2;
    v.ratios[1][0] = 2 - round % 2, v.ratios[1][1] = 1 + round % 2;
    uint64_t before = seed;
    float *bank[2];
    struct kept kept[2] = {0};
    int64_t products[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
      struct hand h;
      seed = before;
      open_random(&h, &v, seed, true, i ? UNUSED_MINUS_ZERO : UNUSED_ZERO);
      hand_load(&h, MEDIA_IMAGE, round > 2 && kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 1);
      h.x->block = test_rand_int(&seed, 1, 20);
      struct media *m[] = {random_picture(&h.m.config, 0, &seed), random_picture(&h.m.config, 1, &seed)};
      bank[i] = hand_rows(&h, (const struct media *const *)m, 2, &n[i]);
      products[i] = h.x->products;
      for (int t = 0; t < h.n_kept; t++) {
        if (strcmp(h.kept[t].name, "v.layer_out") || h.kept[t].layer != v.n_layers) continue;
        kept[i] = h.kept[t];
        h.kept[t].x = NULL;
      }
      hand_release(m, 2);
      hand_close(&h);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bank[0], bank[1], n[0] * sizeof(float));
    assert_int_equal(kept[0].rows, 2 * 4 * ((rows_of_tile(&v) + 7) / 8 * 8)); /* taps have the copies, too */
    assert_memory_equal(kept[0].x, kept[1].x, (size_t)(kept[0].rows * kept[0].cols) * sizeof(float));
    assert_true((double)products[0] < 0.8 * (double)products[1]);
    for (int i = 0; i < 2; i++) free(bank[i]), free(kept[i].x);
  }
}

/* ---- GGUF ----------------------------------------------------------------------------------------------------------------------- */

/* Text tensors enough for a configuration. */
static void gguf_text(struct gguf_maker *g, const struct model_config *c) {
  const struct vision_config *v = &c->vision;
  uint32_t cross[] = {0}, states[CONFIG_STATES_MAX];
  uint64_t table[] = {(uint64_t)c->hidden, (uint64_t)c->vocab + 8}, head[] = {(uint64_t)c->hidden, (uint64_t)c->vocab};
  gguf_maker_str(g, "general.architecture", "mllama");
  const struct {
    const char *key;
    int n;
  } numbers[] = {{"mllama.block_count", 2},
                 {"mllama.embedding_length", c->hidden},
                 {"mllama.context_length", 1000},
                 {"mllama.feed_forward_length", 64},
                 {"mllama.attention.head_count", 4},
                 {"mllama.attention.head_count_kv", 2},
                 {"mllama.vision.block_count", v->n_layers},
                 {"mllama.vision.global.block_count", v->n_global_layers},
                 {"mllama.vision.embedding_length", v->hidden},
                 {"mllama.vision.feed_forward_length", v->ffn},
                 {"mllama.vision.attention.head_count", v->n_heads},
                 {"mllama.vision.image_size", v->image},
                 {"mllama.vision.patch_size", v->patch},
                 {"mllama.vision.max_num_tiles", v->n_tiles}};
  for (size_t i = 0; i < ARRAY_LEN(numbers); i++) gguf_maker_u32(g, numbers[i].key, (uint32_t)numbers[i].n);
  gguf_maker_f32(g, "mllama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf_maker_f32(g, "mllama.vision.attention.layer_norm_epsilon", 1e-5f);
  gguf_maker_array(g, "mllama.attention.cross_attention_layers", GM_U32, cross, 1, sizeof cross[0]);
  for (int s = 0; s < v->n_states; s++) states[s] = (uint32_t)v->states[s];
  gguf_maker_array(g, "mllama.vision.intermediate_layers_indices", GM_U32, states, (uint64_t)v->n_states, sizeof states[0]);
  gguf_maker_tensor(g, "token_embd.weight", GM_F32, 2, table, NULL, (size_t)(table[0] * table[1]) * sizeof(float));
  gguf_maker_tensor(g, "output.weight", GM_F32, 2, head, NULL, (size_t)(head[0] * head[1]) * sizeof(float));
}
/* A tensor's form there: gates behind tanh, one of them the other way round and once more by itself. */
static void put_gguf(struct hand *h, struct gguf_maker *g, const struct weight_entry *t, bool swapped) {
  uint64_t ne[4] = {1, 1, 1, 1};
  int n = 1, rows = t->n_dims > 1 ? (int)t->shape[0] : 0;
  char name[96];
  for (int d = 0; d < t->n_dims; d++) ne[t->n_dims - 1 - d] = (uint64_t)t->shape[d], n *= (int)t->shape[d];
  float *x = hand_weights(h, t->gguf_name, rows, n / MAX(rows, 1));
  snprintf(name, sizeof name, "%s", t->gguf_name);
  const char *up = strstr(t->gguf_name, "ffn_up"), *down = strstr(t->gguf_name, "ffn_down");
  if (swapped && up) snprintf(name, sizeof name, "%.*sffn_down%s", (int)(up - t->gguf_name), t->gguf_name, up + strlen("ffn_up"));
  if (swapped && down) snprintf(name, sizeof name, "%.*sffn_up%s", (int)(down - t->gguf_name), t->gguf_name, down + strlen("ffn_down"));
  if (n == 1) x[0] = tanhf(x[0]);
  if (!strcmp(name, "v.position_embd.gate")) {
    gguf_maker_tensor(g, "v.tile_position_embd.gate", GM_F32, 1, ne, x, sizeof *x);
    x[0] = 1 - x[0];
  }
  gguf_maker_tensor(g, name, GM_F32, (uint32_t)t->n_dims, ne, x, (size_t)n * sizeof *x);
  free(x);
}

/* The same encoder from a GGUF, also one in which the two products of the dense part have each other's names. */
static void test_gguf(void **state) {
  (void)state;
  for (int swapped = 0; swapped < 2; swapped++) {
    struct hand h, g;
    struct gguf_maker maker;
    size_t n_bytes, n, n_twin;
    double max, l2;
    hand_open_golden(&h, "media-mllama");
    hand_load(&h, MEDIA_IMAGE, ISA_REF, 1);
    gguf_maker_init(&maker);
    gguf_text(&maker, &h.m.config);
    for (size_t i = 0; i < weights_count(h.w); i++) {
      struct weight_entry t = weights_at(h.w, i);
      if (t.media) put_gguf(&h, &maker, &t, swapped);
    }
    unsigned char *file = gguf_maker_finish(&maker, &n_bytes);
    hand_open(&g, test_write("mllama.gguf", file, n_bytes));
    free(file);
    hand_load(&g, MEDIA_IMAGE, ISA_REF, 1);
    struct media *m = hand_media(&h, "media-mllama", fixtures[0].pictures[3], MEDIA_IMAGE);
    float *x = hand_rows(&h, (const struct media *[]){m}, 1, &n), *y = hand_rows(&g, (const struct media *[]){m}, 1, &n_twin);
    assert_int_equal(n, n_twin);
    test_compare(y, x, n, &max, &l2);
    if (!(max <= 1e-5)) fail_msg("GGUF%s: differs by %.2g", swapped ? ", names swapped" : "", max);
    free(x), free(y);
    media_release(m);
    hand_close(&h);
    hand_close(&g);
  }
}

/* ---- what cannot be loaded ------------------------------------------------------------------------------------------------------- */

static void test_failing_loads(void **state) {
  (void)state;
  struct hand h;
  struct err e = {0};
  int n_failed = 0;
  for (int after = 1;; after++) { /* every allocation in turn */
    hand_open_golden(&h, "media-mllama");
    mem_fail_after(after);
    int rc = hand_try_load(&h, MEDIA_IMAGE, ISA_AVX2, 1, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    assert_true(pending ? rc == 0 : rc != 0);
    if (rc) assert_int_equal(e.code, ERR_NO_MEMORY);
    h.m.tap = NULL;
    hand_close(&h);
    if (pending) break;
    n_failed++;
  }
  printf("  %d allocations failed in turn\n", n_failed);
  assert_true(n_failed > 30);

  static const struct {
    int states, out_dim, image;
    const char *says;
  } bad[] = {{9, 72, 28, "recorded layers"}, {1, 96, 28, "vision_output_dim"}, {1, 72, 42, "v.position_embd.weight"}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    hand_open_golden(&h, "media-mllama");
    h.m.config.vision.states[0] = bad[i].states;
    h.m.config.vision.out_dim = bad[i].out_dim;
    h.m.config.vision.image = bad[i].image;
    assert_int_not_equal(hand_try_load(&h, MEDIA_IMAGE, ISA_REF, 1, &e), 0);
    if (!strstr(e.msg, bad[i].says)) fail_msg("%s", e.msg);
    hand_close(&h);
  }
}

/* ---- the released geometry ------------------------------------------------------------------------------------------------------- */

/* A layer of each stage at 4 tiles of 1601 rows (sanitizers: of 26), two heads of the released width: runs, gives finite numbers, and says
 * how long it took. */
static void test_released_size(void **state) {
  (void)state;
#ifdef CYGNET_DEBUG
  enum { TILE = 70 };
#else
  enum { TILE = 560 };
#endif
  enum { HEADS = 2, D = HEADS * 80, FFN = 4 * D };
  struct vision_config v = {
      .kind = VISION_MLLAMA, .patch = 14, .image = TILE, .n_heads = HEADS, .head_dim = D / HEADS, .hidden = D, .ffn = FFN};
  v.n_layers = v.n_global_layers = v.n_states = v.n_ratios = v.pool = 1;
  v.out_dim = 2 * D;
  v.n_tiles = 4;
  v.ratios[0][0] = v.ratios[0][1] = 2;
  v.norm_eps = 1e-5f;
  for (int i = 0; i < 3; i++) v.mean[i] = 0.45f, v.std[i] = 0.27f;
  struct hand h;
  uint64_t seed = 3;
  open_random(&h, &v, seed, true, UNUSED_ZERO);
  hand_load(&h, MEDIA_IMAGE, ISA_AUTO, 0);
  h.m.tap = NULL;
  struct media *m = random_picture(&h.m.config, 0, &seed);
  int64_t from = clock_ns();
  hand_encode(&h, (const struct media *[]){m}, 1);
  double seconds = clock_ms_since(from) / 1000;
  for (int r = 0; r < h.x->out.rows; r++)
    for (int c = 0; c < h.x->out.cols; c++)
      if (!isfinite(tensor_row(&h.x->out, r)[c])) fail_msg("row %d, column %d is not finite", r, c);
  printf("  %d rows, 2 layers: %.2f s, %.0f Gmadd/s\n", h.x->out.rows, seconds, (double)h.x->products / seconds / 1e9);
  assert_int_equal(h.x->out.rows, 4 * rows_of_tile(&v));
  media_release(m);
  hand_close(&h);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),         cmocka_unit_test(test_recorded_states), cmocka_unit_test(test_twin),
    cmocka_unit_test(test_permuted_tiles), cmocka_unit_test(test_tiles_alike),     cmocka_unit_test(test_bits),
    cmocka_unit_test(test_gguf),           cmocka_unit_test(test_failing_loads),   cmocka_unit_test(test_released_size),
};
TEST_MAIN(tests)
