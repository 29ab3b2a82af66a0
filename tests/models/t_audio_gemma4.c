/* t_audio_gemma4.c — Gemma 4's sound encoders against golden values tap by tap, against a slow twin of random shapes, and against
 * themselves by every other road.
 *
 * Fixtures: tests/golden/media-gemma4-e2b, -12b (float32 results of an independent implementation). Bound 1e-4 on float32 levels.
 */
#include "test.h"

#include "base/clock.h"
#include "models/hand_encoder.h"

static int rows_of(int frames) { return div_up(div_up(frames, 2), 2); }

/* ---- golden values ---------------------------------------------------------------------------------------------------------- */

static const char *const e2b_files[] = {"a.pcm16.wav", "b.pcm16.wav", "c.pcm16.wav"};

/* From golden frames where the fixture has them, else from the file. */
static struct media *golden_sound(const struct hand *h, const char *folder, int which) {
  const struct st_tensor *g = hand_golden(h, "sound", which, "features");
  if (!g) return hand_media(h, folder, e2b_files[which], MEDIA_AUDIO);
  int n = (int)g->shape[0];
  return hand_sound(g->data, n, (int)g->shape[1], h->m.config.audio.kind == AUDIO_GEMMA4 ? rows_of(n) : n);
}

static double compare_tap(const struct hand *h, int which, const char *golden, size_t at, const char *tap, int layer, int cols,
                          double bound, int *n_compared) {
  const struct st_tensor *g = hand_golden(h, "sound", which, golden);
  if (!g) return 0;
  int rows = h->x->items[0]->n_rows;
  double d = hand_difference(hand_tap(h, tap, layer, rows, cols), g, at * (size_t)(rows * cols), (size_t)(rows * cols));
  if (!(d <= bound)) fail_msg("sound %d: %s, layer %d, differs by %.2g", which, tap, layer, d);
  ++*n_compared;
  return d;
}

static double compare_sound(const struct hand *h, int which, double bound, int *n) {
  const struct audio_config *a = &h->m.config.audio;
  double worst = compare_tap(h, which, "layers", 0, "a.embed", -1, a->hidden, bound, n);
  for (int l = 0; l < a->n_layers; l++) {
    double d = compare_tap(h, which, "layers", (size_t)l + 1, "a.layer_out", l, a->hidden, bound, n);
    worst = MAX(worst, d);
  }
  double last = compare_tap(h, which, "last", 0, "a.last", -1, a->out_dim, bound, n);
  double soft = compare_tap(h, which, "soft", 0, "a.soft", -1, h->m.config.hidden, bound, n);
  return MAX(worst, MAX(last, soft));
}

static const struct {
  enum isa isa;
  int block;
  double bound;
} levels[] = {{ISA_REF, 0, 1e-4}, {ISA_REF, 3, 1e-4}, {ISA_AVX2, 0, 1e-4}, {ISA_AVX512, 0, 0.08 /* activations rounded to bf16 */}};

static bool level_available(enum isa isa) {
  if (isa == ISA_REF || kern_available(isa)) return true;
  printf("  %s is not available on this machine\n", isa == ISA_AVX2 ? "avx2" : "avx512");
  return false;
}

static void test_golden(void **state) {
  (void)state;
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    if (!level_available(levels[k].isa)) continue;
    for (int wide = 0; wide < 2; wide++) {
      struct hand h;
      int n = 0;
      double worst = 0;
      hand_open_golden(&h, "media-gemma4-e2b");
      if (wide) h.m.config.audio.keys_left++;
      hand_load(&h, MEDIA_AUDIO, levels[k].isa, 2);
      if (levels[k].block) h.x->block = levels[k].block;
      for (int i = 0; i < 3; i++) {
        struct media *m = golden_sound(&h, "media-gemma4-e2b", i);
        hand_encode(&h, (const struct media *[]){m}, 1);
        double d = wide ? compare_tap(&h, i, "wide_soft", 0, "a.soft", -1, h.m.config.hidden, levels[k].bound, &n)
                        : compare_sound(&h, i, levels[k].bound, &n);
        worst = MAX(worst, d);
        media_release(m);
      }
      printf("  %s e2b%s: worst %.2g of %d tensors\n", h.m.dev->kern->name, wide ? ", one key more" : "", worst, n);
      assert_int_equal(n, wide ? 3 : 3 * 5);
      hand_close(&h);
    }
    struct hand h;
    int n = 0;
    double worst = 0;
    hand_open_golden(&h, "media-gemma4-12b");
    hand_load(&h, MEDIA_AUDIO, levels[k].isa, 2);
    if (levels[k].block) h.x->block = levels[k].block;
    for (int i = 0; i < 2; i++) {
      struct media *m = golden_sound(&h, "media-gemma4-12b", i);
      hand_encode(&h, (const struct media *[]){m}, 1);
      double d = compare_tap(&h, i, "soft", 0, "a.soft", -1, h.m.config.hidden, levels[k].bound, &n);
      worst = MAX(worst, d);
      media_release(m);
    }
    printf("  %s 12b: worst %.2g of %d tensors\n", h.m.dev->kern->name, worst, n);
    assert_int_equal(n, 2);
    hand_close(&h);
  }
}

/* ---- a slow twin of random shapes ----------------------------------------------------------------------------------------------- */

static void make_product(struct hand_maker *k, const char *prefix, const char *name, int rows, int cols, bool clipped) {
  static const char *const bounds[] = {"input_min", "input_max", "output_min", "output_max"};
  char full[96];
  snprintf(full, sizeof full, "%s%s.", prefix, name);
  hand_add(k, full, "linear.weight", rows, cols, 0, 1 / sqrt(cols));
  for (int i = 0; i < 4 && clipped; i++)
    if (test_rand_int(&k->seed, 0, 4)) hand_add(k, full, bounds[i], 0, 1, i % 2 ? 1.3 : -1.3, 0.3); /* now and then there is none */
}

static void make_checkpoint(struct hand_maker *k, const struct audio_config *a, int hidden, bool plain_scale) {
  int H = a->hidden, d = H / a->n_heads, flat = div_up(div_up(a->n_mel, 2), 2) * a->channels[1];
  const char *sub = "model.audio_tower.subsample_conv_projection.";
  hand_add_tensor(k, "model.audio_tower.subsample_conv_projection.layer0.conv.weight", 4, (const int64_t[4]){a->channels[0], 1, 3, 3}, 0,
                  0.3);
  hand_add_tensor(k, "model.audio_tower.subsample_conv_projection.layer1.conv.weight", 4,
                  (const int64_t[4]){a->channels[1], a->channels[0], 3, 3}, 0, 0.3);
  hand_add(k, sub, "layer0.norm.weight", 0, a->channels[0], 1, 0.3), hand_add(k, sub, "layer1.norm.weight", 0, a->channels[1], 1, 0.3);
  hand_add(k, sub, "input_proj_linear.weight", H, flat, 0, 1 / sqrt(flat));
  for (int l = 0; l < a->n_layers; l++) {
    static const char *const norms[] = {"feed_forward1.pre_layer_norm",
                                        "feed_forward1.post_layer_norm",
                                        "feed_forward2.pre_layer_norm",
                                        "feed_forward2.post_layer_norm",
                                        "norm_pre_attn",
                                        "norm_post_attn",
                                        "norm_out",
                                        "lconv1d.pre_layer_norm",
                                        "lconv1d.conv_norm"};
    char prefix[64], name[96];
    snprintf(prefix, sizeof prefix, "model.audio_tower.layers.%d.", l);
    for (size_t i = 0; i < ARRAY_LEN(norms); i++) {
      snprintf(name, sizeof name, "%s.weight", norms[i]);
      hand_add(k, prefix, name, 0, H, 1, 0.3);
    }
    for (int i = 1; i <= 2; i++) {
      snprintf(name, sizeof name, "feed_forward%d.ffw_layer_1", i), make_product(k, prefix, name, 4 * H, H, a->clipped);
      snprintf(name, sizeof name, "feed_forward%d.ffw_layer_2", i), make_product(k, prefix, name, H, 4 * H, a->clipped);
    }
    make_product(k, prefix, "self_attn.q_proj", H, H, a->clipped), make_product(k, prefix, "self_attn.k_proj", H, H, a->clipped);
    make_product(k, prefix, "self_attn.v_proj", H, H, a->clipped), make_product(k, prefix, "self_attn.post", H, H, a->clipped);
    make_product(k, prefix, "lconv1d.linear_start", 2 * H, H, a->clipped), make_product(k, prefix, "lconv1d.linear_end", H, H, a->clipped);
    hand_add(k, prefix, "self_attn.relative_k_proj.weight", H, H, 0, 1 / sqrt(H));
    hand_add(k, prefix, "self_attn.per_dim_scale", 0, d, 0, plain_scale ? 0 : 2);
    snprintf(name, sizeof name, "%slconv1d.depthwise_conv1d.weight", prefix);
    hand_add_tensor(k, name, 3, (const int64_t[4]){H, 1, a->conv_taps}, 0, 0.5);
  }
  hand_add(k, "model.audio_tower.", "output_proj.weight", a->out_dim, H, 0, 1 / sqrt(H));
  hand_add(k, "model.audio_tower.", "output_proj.bias", 0, a->out_dim, 0, 0.3);
  hand_add(k, "model.embed_audio.", "embedding_projection.weight", hidden, a->out_dim, 0, 1 / sqrt(a->out_dim));
}

static void open_random(struct hand *h, const struct audio_config *a, uint64_t seed, bool plain_scale) {
  struct hand_maker *k = xcalloc(1, sizeof *k);
  k->seed = seed;
  make_checkpoint(k, a, 48, plain_scale);
  hand_write(k, "media-gemma4-e2b");
  hand_open(h, test_tmpdir());
  assert_int_equal(h->m.config.hidden, 48);
  h->m.config.audio = *a;
}

static struct audio_config random_shape(uint64_t *seed) {
  struct audio_config a = {.kind = AUDIO_GEMMA4, .norm_eps = 1e-6f, .logit_cap = 5, .residual_weight = 0.5f};
  a.n_heads = test_rand_int(seed, 1, 3);
  a.hidden = a.n_heads * 2 * test_rand_int(seed, 2, 5);
  a.n_layers = test_rand_int(seed, 1, 2);
  a.n_mel = test_rand_int(seed, 3, 17);
  a.channels[0] = test_rand_int(seed, 4, 11); /* a norm of two or three channels is hardly more than signs */
  a.channels[1] = test_rand_int(seed, 4, 7);
  a.conv_taps = test_rand_int(seed, 1, 6);
  a.n_relative = test_rand_int(seed, 1, 20);
  a.keys_left = MAX(a.n_relative - test_rand_int(seed, 0, 1), 1);
  a.out_dim = test_rand_int(seed, 3, 30);
  a.clipped = test_rand_int(seed, 0, 3) > 0;
  return a;
}

static struct media *random_sound(const struct audio_config *a, int frames, uint64_t *seed) {
  size_t n = (size_t)(frames * a->n_mel);
  float *x = xmalloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = 2 * test_rand_normal(seed) - 1;
  struct media *m = hand_sound(x, frames, a->n_mel, rows_of(frames));
  free(x);
  return m;
}

static void twin_rms(double *y, const double *x, int n, const float *w) {
  double square = 0;
  for (int i = 0; i < n; i++) square += x[i] * x[i] / n;
  for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(square + 1e-6) * (w ? (double)w[i] : 1);
}
static double twin_sigmoid(double x) { return 1 / (1 + exp(-x)); }

struct twin { /* of one layer: names are looked up as they are needed */
  struct hand *h;
  int layer;
};
static float *twin_weights(const struct twin *t, const char *name, int rows, int cols) {
  char full[96];
  snprintf(full, sizeof full, "a.blk.%d.%s.weight", t->layer, name);
  return hand_weights(t->h, full, rows, cols);
}
static void twin_norm(const struct twin *t, const char *name, double *y, const double *x, int rows, int n) {
  float *w = twin_weights(t, name, 0, n);
  for (int r = 0; r < rows; r++) twin_rms(y + r * n, x + r * n, n, w);
  free(w);
}
static double twin_bound(const struct twin *t, const char *name, const char *which, double none) {
  char full[96];
  struct err e = {0};
  float x;
  snprintf(full, sizeof full, "a.blk.%d.%s.%s", t->layer, name, which);
  if (!t->h->m.config.audio.clipped || !weights_has(t->h->w, full)) return none;
  if (weights_get_vector(t->h->w, full, 1, &x, &e)) fail_msg("%s", e.msg);
  return (double)x;
}
static void twin_product(const struct twin *t, const char *name, double *y, const double *x, int rows, int n_out, int n_in) {
  double in[2] = {twin_bound(t, name, "input_min", -INFINITY), twin_bound(t, name, "input_max", INFINITY)};
  double out[2] = {twin_bound(t, name, "output_min", -INFINITY), twin_bound(t, name, "output_max", INFINITY)};
  float *w = twin_weights(t, name, n_out, n_in);
  for (int r = 0; r < rows; r++) {
    for (int o = 0; o < n_out; o++) {
      double sum = 0;
      for (int i = 0; i < n_in; i++) sum += (double)w[o * n_in + i] * fmin(fmax(x[r * n_in + i], in[0]), in[1]);
      y[r * n_out + o] = fmin(fmax(sum, out[0]), out[1]);
    }
  }
  free(w);
}

static void twin_ffn(const struct twin *t, int which, double *h, int rows, int H, double *x, double *wide) {
  char name[4][32];
  static const char *const names[] = {"ffn_norm", "ffn_up", "ffn_down", "ffn_post_norm"};
  for (int i = 0; i < 4; i++) snprintf(name[i], sizeof name[i], "%s%s", names[i], which ? "_1" : "");
  twin_norm(t, name[0], x, h, rows, H);
  twin_product(t, name[1], wide, x, rows, 4 * H, H);
  for (int i = 0; i < rows * 4 * H; i++) wide[i] *= twin_sigmoid(wide[i]);
  twin_product(t, name[2], x, wide, rows, H, 4 * H);
  twin_norm(t, name[3], x, x, rows, H);
  for (int i = 0; i < rows * H; i++) h[i] += (double)t->h->m.config.audio.residual_weight * x[i];
}

static void twin_attention(const struct twin *t, double *out, const double *q, const double *k, const double *v, int rows) {
  const struct audio_config *a = &t->h->m.config.audio;
  int H = a->hidden, d = H / a->n_heads, half = H / 2;
  float *scale = twin_weights(t, "per_dim_scale", 0, d), *relative = twin_weights(t, "attn_k_rel", H, H);
  for (int r = 0; r < rows; r++) {
    for (int head = 0; head < a->n_heads; head++) {
      double s[32], sum = 0;
      int lo = MAX(r - a->keys_left + 1, 0);
      for (int j = lo; j <= r; j++) {
        double score = 0;
        for (int i = 0; i < d; i++) {
          int at = head * d + i;
          double softplus = log(1 + exp((double)scale[i])), place = 0;
          for (int c = 0; c < half; c++) {
            double angle = (r - j) * pow(10000, -(double)c / MAX(half - 1, 1));
            place += (double)relative[at * H + c] * sin(angle) + (double)relative[at * H + half + c] * cos(angle);
          }
          score += q[r * H + at] / sqrt(d) / log(2) * softplus * (k[j * H + at] * log(1 + exp(1)) / log(2) + place);
        }
        sum += s[j - lo] = exp((double)a->logit_cap * tanh(score / (double)a->logit_cap));
      }
      for (int i = 0; i < d; i++) {
        out[r * H + head * d + i] = 0;
        for (int j = lo; j <= r; j++) out[r * H + head * d + i] += s[j - lo] / sum * v[j * H + head * d + i];
      }
    }
  }
  free(scale), free(relative);
}

static void twin_layer(struct hand *hand, int layer, double *h, int rows) {
  const struct audio_config *a = &hand->m.config.audio;
  const struct twin t = {hand, layer};
  int H = a->hidden;
  size_t n = (size_t)(rows * H);
  double *x = xcalloc(n, sizeof *x), *q = xcalloc(n, sizeof *q), *k = xcalloc(n, sizeof *k), *v = xcalloc(n, sizeof *v);
  double *wide = xcalloc(4 * n, sizeof *wide);
  twin_ffn(&t, 0, h, rows, H, x, wide);
  twin_norm(&t, "attn_pre_norm", x, h, rows, H);
  twin_product(&t, "attn_q", q, x, rows, H, H);
  twin_product(&t, "attn_k", k, x, rows, H, H);
  twin_product(&t, "attn_v", v, x, rows, H, H);
  twin_attention(&t, x, q, k, v, rows);
  twin_product(&t, "attn_out", q, x, rows, H, H);
  twin_norm(&t, "attn_post_norm", q, q, rows, H);
  for (size_t i = 0; i < n; i++) h[i] += q[i];
  twin_norm(&t, "norm_conv", x, h, rows, H);
  twin_product(&t, "conv_pw1", wide, x, rows, 2 * H, H);
  float *conv = twin_weights(&t, "conv_dw", H, a->conv_taps);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < H; c++) {
      x[r * H + c] = 0;
      for (int j = 0; j < a->conv_taps; j++) {
        int from = r - a->conv_taps + 1 + j;
        if (from >= 0)
          x[r * H + c] += (double)conv[c * a->conv_taps + j] * wide[from * 2 * H + c] * twin_sigmoid(wide[from * 2 * H + H + c]);
      }
    }
  }
  twin_norm(&t, "conv_norm", x, x, rows, H);
  for (size_t i = 0; i < n; i++) x[i] *= twin_sigmoid(x[i]);
  twin_product(&t, "conv_pw2", q, x, rows, H, H);
  for (size_t i = 0; i < n; i++) h[i] += q[i];
  twin_ffn(&t, 1, h, rows, H, x, wide);
  twin_norm(&t, "ln2", h, h, rows, H);
  void *owned[] = {x, q, k, v, wide, conv};
  for (size_t i = 0; i < ARRAY_LEN(owned); i++) free(owned[i]);
}

/* x [time, band, in] -> [ceil(time / 2), ceil(band / 2), out], owned */
static double *twin_convolve(struct hand *h, int which, const double *x, int time, int bands, int in, int out) {
  const struct audio_config *a = &h->m.config.audio;
  char name[40];
  snprintf(name, sizeof name, "a.conv1d.%d.weight", which);
  float *w = hand_weights(h, name, out, 9 * in);
  snprintf(name, sizeof name, "a.conv1d.%d.norm.weight", which);
  float *norm = hand_weights(h, name, 0, out);
  int t_out = div_up(time, 2), b_out = div_up(bands, 2);
  double *y = xcalloc((size_t)(t_out * b_out * out), sizeof *y);
  for (int cell = 0; cell < t_out * b_out; cell++) {
    double *at = y + cell * out, mean = 0, square = 0;
    for (int o = 0; o < out; o++) {
      for (int i = 0; i < 9 * in; i++) {
        int t = cell / b_out * 2 + i % 9 / 3 - 1, b = cell % b_out * 2 + i % 3 - 1;
        if (t >= 0 && t < time && b >= 0 && b < bands) at[o] += (double)w[o * 9 * in + i] * x[(t * bands + b) * in + i / 9];
      }
      mean += at[o] / out;
    }
    for (int o = 0; o < out; o++) square += (at[o] - mean) * (at[o] - mean) / out;
    for (int o = 0; o < out; o++) at[o] = fmax((at[o] - mean) / sqrt(square + (double)a->norm_eps) * (double)norm[o], 0);
  }
  free(w), free(norm);
  return y;
}

static float *twin_soft(struct hand *h, const struct media *m) {
  const struct audio_config *a = &h->m.config.audio;
  int H = a->hidden, bands = div_up(a->n_mel, 2), flat = div_up(bands, 2) * a->channels[1], rows = m->n_rows, hidden = 48;
  double *frames = xcalloc((size_t)(m->n_patches * a->n_mel), sizeof *frames);
  for (int i = 0; i < m->n_patches * a->n_mel; i++) frames[i] = (double)m->frames[i];
  double *x = twin_convolve(h, 0, frames, m->n_patches, a->n_mel, 1, a->channels[0]);
  double *y = twin_convolve(h, 1, x, div_up(m->n_patches, 2), bands, a->channels[0], a->channels[1]);
  float *in = hand_weights(h, "a.input_projection.weight", H, flat), *out = hand_weights(h, "a.pre_encode.out.weight", a->out_dim, H);
  float *bias = hand_weights(h, "a.pre_encode.out.bias", 0, a->out_dim);
  float *project = hand_weights(h, "mm.a.input_projection.weight", hidden, a->out_dim);
  double *s = xcalloc((size_t)(rows * H), sizeof *s), *u = xcalloc((size_t)a->out_dim, sizeof *u);
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < H; o++)
      for (int i = 0; i < flat; i++) s[r * H + o] += (double)in[o * flat + i] * y[r * flat + i];
  for (int l = 0; l < a->n_layers; l++) twin_layer(h, l, s, rows);
  float *soft = xcalloc((size_t)(rows * hidden), sizeof *soft);
  for (int r = 0; r < rows; r++) {
    for (int o = 0; o < a->out_dim; o++) {
      u[o] = (double)bias[o];
      for (int i = 0; i < H; i++) u[o] += (double)out[o * H + i] * s[r * H + i];
    }
    twin_rms(u, u, a->out_dim, NULL);
    for (int o = 0; o < hidden; o++) {
      double sum = 0;
      for (int i = 0; i < a->out_dim; i++) sum += (double)project[o * a->out_dim + i] * u[i];
      soft[r * hidden + o] = (float)sum;
    }
  }
  void *owned[] = {frames, x, y, in, out, bias, project, s, u};
  for (size_t i = 0; i < ARRAY_LEN(owned); i++) free(owned[i]);
  return soft;
}

static void test_twin(void **state) {
  (void)state;
  static const int frames[] = {1, 2, 3, 4, 5, 12, 13, 29, 64, 131, 139};
  uint64_t seed = 17;
  double worst = 0;
  int n_sounds = 0;
  for (int round = 0; round < 20; round++) {
    struct audio_config a = random_shape(&seed);
    struct hand h;
    open_random(&h, &a, seed, round % 4 == 0);
    hand_load(&h, MEDIA_AUDIO, round % 2 && kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 1 + round % 2);
    h.x->block = test_rand_int(&seed, 1, 40);
    for (size_t i = 0; i < ARRAY_LEN(frames); i++, n_sounds++) {
      struct media *m = random_sound(&a, frames[i], &seed);
      size_t n;
      double max, l2;
      float *mine = hand_rows(&h, (const struct media *[]){m}, 1, &n), *twin = twin_soft(&h, m);
      assert_int_equal(n, m->n_rows * 48);
      test_compare(mine, twin, n, &max, &l2);
      if (!(max <= 1e-4)) fail_msg("round %d, %d frames: differs by %.2g", round, frames[i], max);
      worst = MAX(worst, max);
      free(mine), free(twin);
      media_release(m);
    }
    hand_close(&h);
  }
  printf("  %d sounds: worst %.2g\n", n_sounds, worst);
}

/* ---- other roads ---------------------------------------------------------------------------------------------------------------- */

/* Alone or beside others, in blocks of any size, on any number of threads, after a job that was given up: the same bits. */
static void check_bits(const char *folder, int n_files, enum isa isa) {
  static const int blocks[] = {ENCODER_ROWS, 1, 3, 7}, threads[] = {1, 2, 3}, which[] = {1, 0, 0, 1};
  float *alone[2];
  size_t n_alone[2];
  for (size_t t = 0; t < ARRAY_LEN(threads); t++) {
    struct hand h;
    struct media *m[2];
    hand_open_golden(&h, folder);
    hand_load(&h, MEDIA_AUDIO, isa, threads[t]);
    for (int i = 0; i < 2; i++) m[i] = golden_sound(&h, folder, n_files == 3 ? 2 - i : i); /* e2b: 27 and 77 frames */
    for (int i = 0; i < 2 && t == 0; i++) alone[i] = hand_rows(&h, (const struct media *[]){m[i]}, 1, &n_alone[i]);
    for (size_t b = 0; b < ARRAY_LEN(blocks); b++) {
      const struct media *job[] = {m[1], m[0], m[0], m[1]};
      h.x->block = blocks[b];
      encoder_begin(h.x, job + 1, 3);
      if (h.x->n_units > 5)
        for (int u = 0; u < 5; u++) encoder_unit(h.x);
      encoder_cancel(h.x);
      size_t n, at = 0;
      float *all = hand_rows(&h, job, 4, &n);
      assert_true(h.x->products > 0);
      for (int i = 0; i < 4; at += n_alone[which[i]], i++) assert_memory_equal(all + at, alone[which[i]], n_alone[which[i]] * sizeof *all);
      assert_int_equal(at, n);
      free(all);
    }
    hand_release(m, 2);
    hand_close(&h);
  }
  for (int i = 0; i < 2; i++) free(alone[i]);
}
static void test_bits(void **state) {
  (void)state;
  const enum isa isas[] = {ISA_REF, ISA_AVX2};
  for (size_t k = 0; k < ARRAY_LEN(isas); k++) {
    if (!level_available(isas[k])) continue;
    check_bits("media-gemma4-e2b", 3, isas[k]);
    check_bits("media-gemma4-12b", 2, isas[k]);
  }
}

/* A job may be as long as there is room: rows of many short sounds, each rounded up. */
static void test_full_job(void **state) {
  (void)state;
  struct hand h;
  struct media *m[ENCODER_ITEMS_MAX];
  uint64_t seed = 9;
  hand_open_golden(&h, "media-gemma4-e2b");
  hand_load(&h, MEDIA_AUDIO, ISA_AUTO, 0);
  h.m.tap = NULL;
  int left = h.x->rows_max;
  for (int i = 0; i < ENCODER_ITEMS_MAX; i++) {
    int frames = i < ENCODER_ITEMS_MAX - 1 ? 1 + 4 * test_rand_int(&seed, 0, 8) : left;
    m[i] = random_sound(&h.m.config.audio, frames, &seed);
    left -= frames;
  }
  size_t n;
  float *all = hand_rows(&h, (const struct media *const *)m, ENCODER_ITEMS_MAX, &n);
  for (size_t i = 0; i < n; i++) assert_true(isfinite(all[i]));
  free(all);
  hand_release(m, ENCODER_ITEMS_MAX);
  hand_close(&h);
}

/* Half a minute at the released geometry but for the width (sanitizers: a second): says how long a layer takes. */
static void test_released_size(void **state) {
  (void)state;
#ifdef CYGNET_DEBUG
  enum { FRAMES = 99 };
#else
  enum { FRAMES = 2999 };
#endif
  struct audio_config a = {.kind = AUDIO_GEMMA4, .norm_eps = 1e-6f, .logit_cap = 50, .residual_weight = 0.5f, .clipped = true};
  a.hidden = 256, a.n_heads = 2, a.n_layers = 1, a.n_mel = 128, a.conv_taps = 5, a.n_relative = 13, a.keys_left = 12, a.out_dim = 384;
  a.channels[0] = 128, a.channels[1] = 32;
  struct hand h;
  uint64_t seed = 3;
  open_random(&h, &a, seed, false);
  hand_load(&h, MEDIA_AUDIO, ISA_AUTO, 0);
  h.m.tap = NULL;
  struct media *m = random_sound(&a, FRAMES, &seed);
  encoder_begin(h.x, (const struct media *[]){m}, 1);
  int64_t from = clock_ns();
  int n_subsampling = div_up(m->n_rows, 32);
  for (int i = 0; i < n_subsampling; i++) encoder_unit(h.x);
  double subsampling = clock_ms_since(from);
  while (!encoder_unit(h.x)) continue;
  printf("  %d frames: %.0f ms of subsampling, %.0f ms of a layer\n", FRAMES, subsampling, clock_ms_since(from) - subsampling);
  for (int r = 0; r < h.x->out.rows; r++)
    for (int c = 0; c < h.x->out.cols; c++) assert_true(isfinite(tensor_row(&h.x->out, r)[c]));
  assert_int_equal(h.x->out.rows, rows_of(FRAMES));
  media_release(m);
  hand_close(&h);
}

/* ---- GGUF ----------------------------------------------------------------------------------------------------------------------- */

/* From the file that the released converter made of the fixture: softplus taken already, names of its own, and no keys for a few
 * numbers. */
static void test_mmproj(void **state) {
  (void)state;
  static const char *const folders[] = {"media-gemma4-e2b", "media-gemma4-12b"};
  for (int f = 0; f < 2; f++) {
    struct hand h;
    struct err e = {0};
    char path[64];
    int n = 0;
    double worst = 0;
    hand_open_golden(&h, folders[f]);
    struct audio_config own = h.m.config.audio, *a = &h.m.config.audio;
    weights_close(h.w);
    h.m.config.vision.kind = VISION_NONE;
    memset(a, 0, sizeof *a);
    snprintf(path, sizeof path, "golden/%s/mmproj.gguf", folders[f]);
    h.w = weights_open_mmproj(test_path(path), &h.m.config, &e);
    if (!h.w) fail_msg("%s", e.msg);
    if (f == 0) {
      assert_true(a->keys_left == 12 && a->n_relative == 13 && a->logit_cap == 50);
      a->keys_left = own.keys_left, a->n_relative = own.n_relative, a->logit_cap = own.logit_cap;
    }
    hand_load(&h, MEDIA_AUDIO, ISA_REF, 1);
    for (int i = 0; i < 2; i++) {
      struct media *m = golden_sound(&h, folders[f], i);
      hand_encode(&h, (const struct media *[]){m}, 1);
      double d = f ? compare_tap(&h, i, "soft", 0, "a.soft", -1, h.m.config.hidden, 1e-4, &n) : compare_sound(&h, i, 1e-4, &n);
      worst = MAX(worst, d);
      media_release(m);
    }
    printf("  %s: worst %.2g of %d tensors\n", path, worst, n);
    assert_int_equal(n, f ? 2 : 10);
    hand_close(&h);
  }
}

/* ---- what cannot be loaded ------------------------------------------------------------------------------------------------------- */

static void check_failing_memory(const char *folder, int least) {
  struct hand h;
  struct err e = {0};
  int n_failed = 0;
  for (int after = 1;; after++) { /* every allocation in turn */
    hand_open_golden(&h, folder);
    mem_fail_after(after);
    int rc = hand_try_load(&h, MEDIA_AUDIO, kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 1, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    assert_true(pending ? rc == 0 : rc != 0);
    if (rc) assert_int_equal(e.code, ERR_NO_MEMORY);
    hand_close(&h);
    if (pending) break;
    n_failed++;
  }
  printf("  %s: %d allocations failed in turn\n", folder, n_failed);
  assert_true(n_failed >= least);
}
static void test_failing_loads(void **state) {
  (void)state;
  check_failing_memory("media-gemma4-e2b", kern_available(ISA_AVX2) ? 40 : 15);
  check_failing_memory("media-gemma4-12b", 3);
  struct hand h;
  struct err e = {0};
  for (int i = 0; i < 3; i++) {
    hand_open_golden(&h, "media-gemma4-e2b");
    struct audio_config *a = &h.m.config.audio;
    if (i == 0) a->keys_left = a->n_relative + 1;
    if (i == 1) a->n_heads = 3;
    if (i == 2) a->out_dim = 25;
    assert_int_not_equal(hand_try_load(&h, MEDIA_AUDIO, ISA_REF, 1, &e), 0);
    if (!strstr(e.msg, i == 2 ? "a.pre_encode.out" : "audio_config")) fail_msg("%s", e.msg);
    hand_close(&h);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden),        cmocka_unit_test(test_twin),          cmocka_unit_test(test_bits),
    cmocka_unit_test(test_full_job),      cmocka_unit_test(test_released_size), cmocka_unit_test(test_mmproj),
    cmocka_unit_test(test_failing_loads),
};
TEST_MAIN(tests)
