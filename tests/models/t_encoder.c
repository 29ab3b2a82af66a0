/* t_encoder.c — encoders of pictures against golden values, tap by tap, and against themselves by every other road.
 *
 * Fixtures: tests/golden/media-{gemma3,gemma4-e2b,gemma4-31b,gemma4-26b,gemma4-12b}. Bounds are those that their README suggests for
 * float32; with activations rounded to bf16, what another engine in bf16 is off by.
 */
#include "test.h"

#include "compute/rounding.h"
#include "gguf_maker.h"
#include "models/golden_media.h"

static const struct {
  const char *folder;
  int rows_least; /* compared */
} fixtures[] = {{"media-gemma3", 36 * 6 + 3 * 9},
                {"media-gemma4-e2b", 567 * 3 + 2 * (63 + 56 + 63)},
                {"media-gemma4-31b", 567 * 4 + 2 * (63 + 64 + 56)},
                {"media-gemma4-26b", 2 * (63 + 64)},
                {"media-gemma4-12b", 63 * 5}};

static struct model_plan plan_of(enum isa isa, int threads) {
  struct model_plan plan = fixture_plan(isa, threads, DTYPE_F32);
  plan.media = true;
  return plan;
}

/* ---- golden values ---------------------------------------------------------------------------------------------------------- */

struct check {
  const struct media_fixture *x;
  char who[32]; /* image0 */
  double scale; /* of the bounds */
  double worst;
  int n_compared;
  bool soft_only, other_columns; /* other_columns: inputs are in another order than the golden ones */
  char where[256];
};

static double bound_of(const struct check *t, const char *what) {
  if (t->x->f.config->vision.standardize) {
    if (!strcmp(what, "last")) return 5e-4 * t->scale;
    if (!strcmp(what, "soft")) return 2e-4 * t->scale;
  }
  return 1e-4 * t->scale;
}

static void on_encoder_tap(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct check *t = ctx;
  const char *what = name + 2;
  size_t offset = (size_t)row * (size_t)cols;
  assert_true(!strncmp(name, "v.", 2));
  if (!strcmp(what, "embed") || !strcmp(what, "layer_out")) what = "layers";
  const struct st_tensor *g = media_golden(t->x, t->who, what);
  if (!g || (t->soft_only && strcmp(what, "soft")) || (t->other_columns && !strcmp(what, "ln1"))) return;
  if (!strcmp(what, "layers")) offset += (size_t)(layer + 1) * (size_t)g->shape[1] * (size_t)cols;
  assert_int_equal(g->shape[g->n_dims - 1], cols);
  assert_true((offset + (size_t)cols) * sizeof(float) <= g->n_bytes);
  static const struct st_tensor *last;
  static double rms;
  if (last != g) rms = media_rms(g), last = g;
  t->n_compared++;
  const float *ref = (const float *)g->data + offset;
  for (int c = 0; c < cols; c++) {
    double d = fabs((double)x[c] - (double)ref[c]) / rms;
    if (!(d <= t->worst)) t->worst = d;
    if (!(d <= bound_of(t, what)) && !t->where[0])
      snprintf(t->where, sizeof t->where,
               "%s: first tap that differs: %s, layer %d, row %d, column %d: %.9g, expected %.9g (%.2g of the rms)", t->who, name, layer,
               row, c, (double)x[c], (double)ref[c], d);
  }
}

static void check_pictures(struct media_fixture *x, struct check *t) {
  x->f.m->tap = on_encoder_tap;
  x->f.m->tap_ctx = t;
  for (int i = 0; i < x->n_pictures; i++) {
    snprintf(t->who, sizeof t->who, "image%d", i);
    encode(x->f.m->vision, (const struct media *const *)&x->pictures[i], 1);
    const struct st_tensor *soft = media_golden(x, t->who, "soft");
    assert_int_equal(x->f.m->vision->out.rows, soft->shape[0]);
    assert_int_equal(x->pictures[i]->n_rows, soft->shape[0]);
    assert_true(x->f.m->vision->products > 0);
  }
  x->f.m->tap = NULL;
  if (t->where[0]) fail_msg("%s", t->where);
}

static void test_golden(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    if (!kern_available(levels[k])) continue;
    for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
      struct media_fixture x;
      struct model_plan plan = plan_of(levels[k], levels[k] == ISA_REF ? 1 : 2);
      media_fixture_open(&x, fixtures[i].folder, &plan);
      /* the widest level rounds activations to bf16 */
      struct check t = {.x = &x, .scale = levels[k] == ISA_AVX512 ? 500 : 1, .soft_only = levels[k] == ISA_AVX512};
      check_pictures(&x, &t);
      printf("  %s %s: worst %.2g in %d rows\n", x.f.m->dev->kern->name, fixtures[i].folder, t.worst, t.n_compared);
      if (!t.soft_only) assert_true(t.n_compared >= fixtures[i].rows_least);
      media_fixture_close(&x);
    }
  }
}

/* ---- the same weights as an mmproj -------------------------------------------------------------------------------------------- */

/* x [rows, cols]: columns [y, x, colour] to [colour, y, x]. */
static void colours_first(float *x, int64_t rows, int64_t cols) {
  float *copy = xmalloc((size_t)cols * sizeof *copy);
  for (int64_t r = 0; r < rows; r++, x += cols) {
    memcpy(copy, x, (size_t)cols * sizeof *copy);
    for (int64_t i = 0; i < cols; i++) x[i % 3 * (cols / 3) + i / 3] = copy[i];
  }
  free(copy);
}

/* One tensor of the checkpoint as a GGUF has it. */
static void twin_tensor(struct gguf_maker *g, struct weights *w, const struct model_config *c, const struct weight_entry *t, bool swapped) {
  struct weight_view v;
  struct err e = {0};
  enum vision_kind kind = c->vision.kind;
  const char *name = t->gguf_name;
  char other[128];
  int64_t rows = t->n_dims > 1 ? t->shape[0] : 0, cols = t->n_dims == 1 ? t->shape[0] : 1;
  for (int d = 1; d < t->n_dims; d++) cols *= t->shape[d];
  if (weights_get(w, name, rows, cols, &v, &e)) fail_msg("%s", e.msg);
  int64_t n = MAX(rows, 1) * cols;
  float *x = xmalloc((size_t)n * sizeof *x);
  dtype_to_f32(v.dtype, v.data, x, (size_t)n);
  uint64_t ne[4] = {(uint64_t)cols, (uint64_t)rows};
  uint32_t n_dims = t->n_dims > 1 ? 2 : 1, type = t->n_dims > 1 ? GM_BF16 : GM_F32;
  bool patch = !strcmp(name, "v.patch_embd.weight"), positions = !strcmp(name, "v.position_embd.weight");
  if (!strcmp(name, "mm.soft_emb_norm.weight"))
    for (int64_t i = 0; i < n; i++) x[i] += 1;
  if (kind != VISION_SIGLIP && (patch || !strncmp(name, "v.patch_norm.1.", 15))) colours_first(x, MAX(rows, 1), cols);
  if (patch && kind != VISION_GEMMA4_BLOCKS) { /* as of a convolution */
    uint64_t side = (uint64_t)c->vision.patch;
    memcpy(ne, (uint64_t[]){side, side, 3, (uint64_t)rows}, sizeof ne);
    n_dims = 4;
  }
  if (positions) type = GM_F32;
  if (positions && kind != VISION_SIGLIP) {
    uint64_t d = (uint64_t)c->vision.hidden, places = (uint64_t)c->vision.n_positions;
    assert_int_equal(n, 2 * d * places);
    if (kind == VISION_GEMMA4_BLOCKS) { /* [places, 2, D] to [2, places, D] */
      float *from = xmalloc((size_t)n * sizeof *from);
      memcpy(from, x, (size_t)n * sizeof *from);
      for (uint64_t p = 0; p < 2 * places; p++) memcpy(x + (p % 2 * places + p / 2) * d, from + p * d, d * sizeof *x);
      free(from);
    }
    memcpy(ne, (uint64_t[]){d, places, 2}, 3 * sizeof *ne);
    n_dims = 3;
  }
  if (swapped && strstr(name, ".ffn_")) { /* up and down under each other's names */
    int layer;
    char end[16];
    bool up = strstr(t->gguf_name, "ffn_up") != NULL;
    assert_int_equal(sscanf(t->gguf_name, up ? "v.blk.%d.ffn_up.%15s" : "v.blk.%d.ffn_down.%15s", &layer, end), 2);
    snprintf(other, sizeof other, up ? "v.blk.%d.ffn_down.%s" : "v.blk.%d.ffn_up.%s", layer, end);
    name = other;
  }
  if (type == GM_F32) gguf_maker_tensor(g, name, type, n_dims, ne, x, (size_t)n * sizeof *x);
  else {
    uint16_t *half = xmalloc((size_t)n * sizeof *half);
    for (int64_t i = 0; i < n; i++) half[i] = (uint16_t)(((const uint32_t *)(const void *)x)[i] >> 16); /* they are bf16's */
    gguf_maker_tensor(g, name, type, n_dims, ne, half, (size_t)n * sizeof *half);
    free(half);
  }
  free(x);
}

static const char *twin_write(struct weights *w, const struct model_config *c, bool swapped) {
  const struct vision_config *v = &c->vision;
  static const char *const types[] = {[VISION_SIGLIP] = "gemma3", [VISION_GEMMA4] = "gemma4v", [VISION_GEMMA4_BLOCKS] = "gemma4uv"};
  struct gguf_maker g;
  gguf_maker_init(&g);
  gguf_maker_str(&g, "general.architecture", "clip");
  gguf_maker_bool(&g, "clip.has_vision_encoder", 1);
  gguf_maker_str(&g, "clip.vision.projector_type", types[v->kind]);
  gguf_maker_u32(&g, "clip.vision.embedding_length", (uint32_t)v->hidden);
  gguf_maker_u32(&g, "clip.vision.feed_forward_length", (uint32_t)v->ffn);
  gguf_maker_u32(&g, "clip.vision.block_count", (uint32_t)v->n_layers);
  gguf_maker_u32(&g, "clip.vision.attention.head_count", (uint32_t)v->n_heads);
  gguf_maker_f32(&g, "clip.vision.attention.layer_norm_epsilon", v->norm_eps);
  gguf_maker_u32(&g, "clip.vision.patch_size", (uint32_t)v->patch);
  gguf_maker_u32(&g, "clip.vision.image_size", v->image ? (uint32_t)v->image : 224);
  gguf_maker_u32(&g, "clip.vision.projection_dim", (uint32_t)c->hidden);
  gguf_maker_u32(&g, "clip.vision.projector.scale_factor", (uint32_t)v->pool);
  if (v->kind == VISION_SIGLIP) {
    gguf_maker_array(&g, "clip.vision.image_mean", GM_F32_KV, v->mean, 3, sizeof(float));
    gguf_maker_array(&g, "clip.vision.image_std", GM_F32_KV, v->std, 3, sizeof(float));
  }
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    if (t.gguf_name && (!strncmp(t.gguf_name, "v.", 2) || !strncmp(t.gguf_name, "mm.", 3)) && strncmp(t.gguf_name, "mm.a.", 5))
      twin_tensor(&g, w, c, &t, swapped);
  }
  size_t n_bytes;
  unsigned char *file = gguf_maker_finish(&g, &n_bytes);
  const char *path = test_write("mmproj.gguf", file, n_bytes);
  free(file);
  return path;
}

/* The fixture's pictures by the encoder in an mmproj. */
static void check_mmproj(const char *folder, const char *path, bool swapped, int rows_least) {
  struct media_fixture x;
  struct err e = {0};
  struct model_plan plan = plan_of(kern_available(ISA_AVX2) ? ISA_AVX2 : ISA_REF, 2);
  media_fixture_open(&x, folder, &plan);
  if (!path) path = twin_write(x.f.w, x.f.config, swapped);
  struct model_config *c = xmalloc(sizeof *c);
  *c = *x.f.config;
  memset(&c->vision, 0, sizeof c->vision);
  memset(&c->audio, 0, sizeof c->audio);
  struct weights *w = weights_open_mmproj(path, c, &e);
  if (!w) fail_msg("%s: %s", path, e.msg);
  assert_int_equal(c->vision.kind, x.f.config->vision.kind);
  assert_int_equal(c->vision.standardize, x.f.config->vision.standardize);
  assert_int_equal(c->vision.clipped, x.f.config->vision.clipped);
  model_close(x.f.m);
  x.f.m = model_open(c, x.f.w, &plan, &e);
  if (!x.f.m) fail_msg("%s: %s", folder, e.msg);
  if (model_open_media(x.f.m, w, &e)) fail_msg("%s: %s", path, e.msg);
  struct check t = {.x = &x, .scale = 1, .other_columns = true};
  check_pictures(&x, &t);
  printf("  %s as a GGUF%s: worst %.2g in %d rows\n", folder, swapped ? " of old" : "", t.worst, t.n_compared);
  assert_true(t.n_compared >= rows_least);
  media_fixture_close(&x);
  weights_close(w);
  free(c);
}

/* Those that the converter made, where there are some; and what this file makes of the checkpoint, which is one way to see that both mean
 * the same. */
static void test_mmproj(void **state) {
  (void)state;
  const bool converted[ARRAY_LEN(fixtures)] = {true, true, false, false, true};
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    char name[96];
    snprintf(name, sizeof name, "golden/%s/mmproj.gguf", fixtures[i].folder);
    int rows_least = fixtures[i].rows_least - (i == 4 ? 63 : 0); /* the 12B's ln1 is in another order */
    check_mmproj(fixtures[i].folder, NULL, false, rows_least);
    if (converted[i]) check_mmproj(fixtures[i].folder, test_path(name), false, rows_least);
  }
  check_mmproj(fixtures[0].folder, NULL, true, fixtures[0].rows_least);
}

/* Quantising at load leaves encoders as they are. */
static void test_quantised(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AUTO};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    if (!kern_available(levels[k])) continue;
    struct media_fixture x;
    struct model_plan plan = plan_of(levels[k], 1);
    plan.quant = DTYPE_Q8_0;
    media_fixture_open(&x, "media-gemma4-e2b", &plan);
    struct check t = {.x = &x, .scale = rounds_to_bf16(levels[k]) ? 500 : 1, .soft_only = true};
    check_pictures(&x, &t);
    assert_true(t.worst < (rounds_to_bf16(levels[k]) ? 5e-2 : 1e-4));
    media_fixture_close(&x);
  }
}

/* ---- every other road gives the same bits ----------------------------------------------------------------------------------- */

/* The soft rows of all pictures, each a job of its own, one after the other; owned. */
static float *alone(struct media_fixture *x, int *n_rows) {
  int hidden = x->f.config->hidden;
  struct encoder *v = x->f.m->vision;
  float *all = NULL;
  *n_rows = 0;
  for (int i = 0; i < x->n_pictures; i++) {
    encode(v, (const struct media *const *)&x->pictures[i], 1);
    all = xrealloc(all, (size_t)(*n_rows + v->out.rows) * (size_t)hidden * sizeof *all);
    for (int r = 0; r < v->out.rows; r++, ++*n_rows)
      memcpy(all + (size_t)*n_rows * (size_t)hidden, tensor_row(&v->out, r), (size_t)hidden * sizeof *all);
  }
  return all;
}

static void assert_same(const struct encoder *v, const float *expected, int first, int n_rows) {
  int hidden = v->m->config.hidden;
  for (int r = 0; r < n_rows; r++)
    assert_memory_equal(tensor_row(&v->out, first + r), expected + (size_t)r * (size_t)hidden, (size_t)hidden * sizeof(float));
}

/* What else is in a job, where in it an item lies, how rows are cut into units, and on how many threads: no bit changes. */
static void test_same_bits(void **state) {
  (void)state;
  const enum isa levels[] = {ISA_REF, ISA_AVX2, ISA_AVX512};
  const int blocks[] = {ENCODER_ROWS, 100, 13};
  for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
    for (size_t i = 0; i < ARRAY_LEN(fixtures) && kern_available(levels[k]); i++) {
      if (levels[k] == ISA_REF && i > 1) continue; /* slow, and the same code for all */
      struct media_fixture x;
      float *expected = NULL;
      int n_rows = 0;
      for (size_t b = 0; b < ARRAY_LEN(blocks); b += levels[k] == ISA_REF || TEST_LESS > 1 ? 2 : 1) {
        struct model_plan plan = plan_of(levels[k], 1 + (int)b % 3);
        media_fixture_open(&x, fixtures[i].folder, &plan);
        struct encoder *v = x.f.m->vision;
        v->block = blocks[b];
        if (!expected) expected = alone(&x, &n_rows);
        const struct media *items[2 * MEDIA_FILES_MAX];
        int n = 0, at = 0;
        items[n++] = x.pictures[x.n_pictures - 1]; /* moves the others along */
        for (int p = 0; p < x.n_pictures; p++) items[n++] = x.pictures[p];
        encode(v, items, n);
        assert_same(v, expected + (size_t)(n_rows - items[0]->n_rows) * (size_t)x.f.config->hidden, 0, items[0]->n_rows);
        assert_same(v, expected, items[0]->n_rows, n_rows);
        for (int p = 0; p < x.n_pictures; p++) { /* alone, in units of this size */
          encode(v, (const struct media *const *)&x.pictures[p], 1);
          assert_same(v, expected + (size_t)at * (size_t)x.f.config->hidden, 0, x.pictures[p]->n_rows);
          at += x.pictures[p]->n_rows;
        }
        assert_int_equal(at, n_rows);
        media_fixture_close(&x);
      }
      free(expected);
    }
  }
}

/* A job that was given up leaves nothing behind. */
static void test_cancel(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct media_fixture x;
    struct model_plan plan = plan_of(ISA_AUTO, 1);
    media_fixture_open(&x, fixtures[i].folder, &plan);
    struct encoder *v = x.f.m->vision;
    int n_rows, units;
    float *expected = alone(&x, &n_rows);
    v->block = 100;
    encoder_begin(v, (const struct media *const *)&x.pictures[1], 1);
    units = v->n_units;
    for (int u = 0; u < units / 2; u++) assert_false(encoder_unit(v));
    encoder_cancel(v);
    assert_int_equal(v->n_units, 0);
    encode(v, (const struct media *const *)&x.pictures[0], 1);
    assert_same(v, expected, 0, x.pictures[0]->n_rows);
    free(expected);
    media_fixture_close(&x);
  }
}

/* ---- gate and up ------------------------------------------------------------------------------------------------------------ */

static int n_at_once;
static void counting_linear_gated(struct device *d, struct tensor *y, const struct weight *gate, const struct weight *up,
                                  const struct tensor *x, enum act act, struct tensor *up_room) {
  n_at_once++;
  device_cpu_ops.linear_gated(d, y, gate, up, x, act, up_room);
}

/* Where bounds are decides how it is done: at once only if no bound stands between. The bits are those of product, bound, activation. */
static void test_gate_and_up(void **state) {
  (void)state;
  enum { ROWS = 21, COLS = 96, FFN = 50 };
  static const struct {
    float gate_in, up_in, gate_out, up_out; /* 0: no bound */
    bool at_once;
  } cases[] = {{0, 0, 0, 0, true},     {1, 1, 0, 0, true},  {1, 0.5f, 0, 0, false}, {1, 0, 0, 0, false},
               {0, 0, 0.3f, 0, false}, {0, 0, 0, 4, false}, {1, 1, 2, 0.5f, false}};
  struct media_fixture f;
  struct model_plan plan = plan_of(ISA_AUTO, 2);
  struct err e = {0};
  uint64_t rand = 5;
  media_fixture_open(&f, "media-gemma4-31b", &plan);
  struct encoder *x = f.f.m->vision;
  struct device *d = f.f.m->dev;
  struct tensor in, z, y, room, want, other;
  struct encoder_linear w[2];
  float *source = xmalloc(sizeof(float) * 2 * FFN * COLS);
  const struct bind_scratch need[] = {{&in, ROWS, COLS},  {&z, ROWS, COLS},   {&y, ROWS, FFN},
                                      {&room, ROWS, FFN}, {&want, ROWS, FFN}, {&other, ROWS, FFN}};
  if (bind_scratch(f.f.m, need, ARRAY_LEN(need), &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < 2 * FFN * COLS; i++) source[i] = 0.1f * test_rand_normal(&rand);
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLS; c++) tensor_row(&in, r)[c] = test_rand_normal(&rand);
  for (int i = 0; i < 2; i++) {
    w[i].w = (struct weight){
        .dtype = DTYPE_F32, .rows = FFN, .cols = COLS, .row_bytes = COLS * sizeof(float), .source = source + i * FFN * COLS};
    if (d->ops->weight_bind(d, &w[i].w, 1, "w", &e)) fail_msg("%s", e.msg);
  }
  struct device_ops counting = device_cpu_ops;
  counting.linear_gated = counting_linear_gated;
  d->ops = &counting;
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    const float bounds[2][2] = {{cases[i].gate_in, cases[i].gate_out}, {cases[i].up_in, cases[i].up_out}};
    for (int k = 0; k < 2; k++) {
      w[k].in[1] = bounds[k][0] > 0 ? bounds[k][0] : INFINITY, w[k].in[0] = -w[k].in[1];
      w[k].out[1] = bounds[k][1] > 0 ? bounds[k][1] : INFINITY, w[k].out[0] = -w[k].out[1];
    }
    n_at_once = 0;
    encoder_linear_gated(x, &y, &w[0], &w[1], &in, ACT_GELU_TANH, &room, &z);
    assert_int_equal(n_at_once, cases[i].at_once);
    for (int k = 0; k < 2; k++) { /* each alone */
      struct tensor seen = in, *to = k ? &other : &want;
      if (bounds[k][0] > 0) seen = z, d->ops->clamp(d, &seen, &in, w[k].in[0], w[k].in[1]);
      d->ops->linear(d, 1, (const struct weight *[]){&w[k].w}, &to, &seen);
      if (bounds[k][1] > 0) d->ops->clamp(d, to, to, w[k].out[0], w[k].out[1]);
    }
    d->ops->gated(d, &want, &want, &other, ACT_GELU_TANH);
    for (int r = 0; r < ROWS; r++) assert_memory_equal(tensor_row(&y, r), tensor_row(&want, r), FFN * sizeof(float));
  }
  d->ops = &device_cpu_ops;
  for (size_t i = 0; i < ARRAY_LEN(need); i++) d->ops->free(d, need[i].t);
  for (int i = 0; i < 2; i++) d->ops->weight_free(d, &w[i].w, 1);
  free(source);
  media_fixture_close(&f);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------- */

static size_t tensor_bytes; /* that were taken */
static int counting_alloc(struct device *d, struct tensor *t, int rows, int cols, const char *what, struct err *e) {
  int rc = device_cpu_ops.alloc(d, t, rows, cols, what, e);
  if (rc == 0) tensor_bytes += (size_t)t->rows * t->row_bytes;
  return rc;
}

/* What opening takes is what the plan was told; it fails cleanly wherever memory runs out; and a job takes none. */
static void test_memory(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct media_fixture x;
    struct model_plan plan = plan_of(ISA_AUTO, 1);
    struct err e = {0};
    media_fixture_open(&x, fixtures[i].folder, &plan);
    struct model *m = x.f.m;
    int n_failed = 0;
    struct device_ops counting = device_cpu_ops;
    counting.alloc = counting_alloc;
    m->dev->ops = &counting;
    tensor_bytes = 0;
    struct encoder *once = encoder_open(m, MEDIA_IMAGE, x.f.w, &e);
    size_t told = encoder_scratch_bytes(x.f.config, MEDIA_IMAGE), tables = 16 * (size_t)once->rows_max * sizeof(int32_t);
    assert_true(tensor_bytes > 0 && tensor_bytes <= told && told - tensor_bytes < tables);
    encoder_close(once);
    m->dev->ops = &device_cpu_ops;
    for (int n = 1;; n++) {
      mem_fail_after(n);
      struct encoder *v = encoder_open(m, MEDIA_IMAGE, x.f.w, &e);
      bool reached = !mem_fail_pending();
      mem_fail_after(0);
      if (!reached) {
        assert_non_null(v);
        encoder_close(v);
        break;
      }
      assert_null(v);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      n_failed++;
    }
    assert_true(n_failed > 4);
    mem_guard_begin("encoding");
    encode(m->vision, (const struct media *const *)x.pictures, 1);
    mem_guard_end();
    media_fixture_close(&x);
  }
}

/* Without an encoder there is nothing to take, and nothing opens. */
static void test_none(void **state) {
  (void)state;
  struct fixture f;
  struct err e = {0};
  fixture_open(&f, "gemma3-text-tiny", "", "golden.safetensors", ISA_AUTO, 1, DTYPE_F32);
  assert_null(encoder_ops_for(f.config, MEDIA_IMAGE));
  assert_null(encoder_ops_for(f.config, MEDIA_AUDIO));
  assert_int_equal(encoder_scratch_bytes(f.config, MEDIA_IMAGE) + encoder_scratch_bytes(f.config, MEDIA_AUDIO), 0);
  assert_int_equal(encoder_block_max(f.config) + encoder_cols_max(f.config) + encoder_keys_max(f.config) + encoder_head_dim_max(f.config),
                   0);
  assert_null(encoder_open(f.m, MEDIA_IMAGE, f.w, &e));
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  f.m->plan.media = true;
  assert_int_equal(model_open_media(f.m, f.w, &e), 0);
  assert_true(!f.m->vision && !f.m->audio);
  fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_golden), cmocka_unit_test(test_mmproj),      cmocka_unit_test(test_quantised), cmocka_unit_test(test_same_bits),
    cmocka_unit_test(test_cancel), cmocka_unit_test(test_gate_and_up), cmocka_unit_test(test_memory),    cmocka_unit_test(test_none),
};
TEST_MAIN(tests)
