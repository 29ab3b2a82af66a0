/* t_weights4.c — Gemma 4's tensors: every name from both formats, experts in each form, fused and redundant keys, what may be absent. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "files/weights.h"
#include "gguf_maker.h"

static struct weights *must_open(const char *path, struct model_config *c) {
  struct err e = {0};
  struct weights *w = weights_open(path, c, &e);
  if (!w) fail_msg("%s: %s", path, e.msg);
  return w;
}

/* --- everything that a model has --------------------------------------------------------------------------------------------- */

struct wanted {
  char name[80];
  int64_t rows, cols; /* rows 0: a vector */
};

static void want(struct wanted *all, int *n, int layer, const char *name, int64_t rows, int64_t cols) {
  struct wanted *t = &all[(*n)++];
  if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
  else snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
  t->rows = rows;
  t->cols = cols;
}

/* Every tensor that a forward pass reads, but for the experts. Returns their number. */
static int list_wanted(const struct model_config *c, bool gguf, struct wanted *all) {
  int n = 0, H = c->hidden, P = c->ple;
  want(all, &n, -1, "token_embd.weight", c->vocab, H);
  want(all, &n, -1, "output_norm.weight", 0, H);
  if (P) want(all, &n, -1, "per_layer_token_embd.weight", c->ple_vocab, (int64_t)c->n_layers * P);
  if (P) want(all, &n, -1, "per_layer_model_proj.weight", (int64_t)c->n_layers * P, H);
  if (P) want(all, &n, -1, "per_layer_proj_norm.weight", 0, P);
  if (gguf) want(all, &n, -1, "rope_freqs.weight", 0, c->layers[c->n_layers - 1].head_dim / 2);
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    static const char *const norms[] = {"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight"};
    for (size_t i = 0; i < ARRAY_LEN(norms); i++) want(all, &n, l, norms[i], 0, H);
    want(all, &n, l, "attn_q.weight", (int64_t)y->n_q * y->head_dim, H);
    want(all, &n, l, "attn_q_norm.weight", 0, y->head_dim);
    if (y->kv_donor == l) {
      want(all, &n, l, "attn_k.weight", (int64_t)y->n_kv * y->head_dim, H);
      want(all, &n, l, "attn_k_norm.weight", 0, y->head_dim);
      if (!y->v_from_k) want(all, &n, l, "attn_v.weight", (int64_t)y->n_kv * y->head_dim, H);
    }
    want(all, &n, l, "attn_output.weight", H, (int64_t)y->n_q * y->head_dim);
    want(all, &n, l, "ffn_gate.weight", y->ffn, H);
    want(all, &n, l, "ffn_up.weight", y->ffn, H);
    want(all, &n, l, "ffn_down.weight", H, y->ffn);
    want(all, &n, l, "layer_output_scale.weight", 0, 1);
    if (P) want(all, &n, l, "inp_gate.weight", P, H);
    if (P) want(all, &n, l, "proj.weight", H, P);
    if (P) want(all, &n, l, "post_norm.weight", 0, H);
    if (!c->n_experts) continue;
    want(all, &n, l, "ffn_gate_inp.weight", c->n_experts, H);
    want(all, &n, l, "ffn_gate_inp.scale", 0, H);
    want(all, &n, l, "ffn_down_exps.scale", 0, c->n_experts);
    static const char *const more[] = {"pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight"};
    for (size_t i = 0; i < ARRAY_LEN(more); i++) want(all, &n, l, more[i], 0, H);
  }
  return n;
}

enum { WANTED_MAX = 300 };

static int get_expert(struct weights *w, const struct model_config *c, int l, int which, int x, struct weight_view *v, struct err *e) {
  bool down = which == EXPERT_DOWN;
  return weights_get_expert(w, l, (enum weights_expert)which, x, down ? c->hidden : c->expert_ffn, down ? c->expert_ffn : c->hidden, v, e);
}

static int bind(struct weights *w, const struct model_config *c, struct err *e) {
  static struct wanted all[WANTED_MAX];
  static float vector[4096];
  struct weight_view v;
  int n = list_wanted(c, weights_gguf(w) != NULL, all);
  for (int i = 0; i < n; i++)
    if (all[i].rows ? weights_get(w, all[i].name, all[i].rows, all[i].cols, &v, e)
                    : weights_get_vector(w, all[i].name, all[i].cols, vector, e))
      return -1;
  for (int l = 0; l < c->n_layers; l++)
    for (int x = 0; x < c->n_experts; x++)
      for (int which = EXPERT_GATE; which <= EXPERT_DOWN; which++)
        if (get_expert(w, c, l, which, x, &v, e)) return -1;
  return 0;
}

static const char *const fixtures[] = {"gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny", "gemma4-12b-tiny"};

static void every_fixture_binds(void **s) {
  (void)s;
  static const char *const files[] = {"", "/model.safetensors", "/model-bf16.gguf", "/model-q8_0.gguf"};
  for (size_t f = 0; f < ARRAY_LEN(fixtures); f++)
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
      if (f == 3 && i >= 2) continue; /* has no twins */
      char path[120];
      snprintf(path, sizeof path, "golden/%s%s", fixtures[f], files[i]);
      struct model_config c;
      struct err e = {0};
      struct weights *w = must_open(test_path(path), &c);
      if (bind(w, &c, &e) != 0) fail_msg("%s: %s", path, e.msg);
      if (weights_report_unused(w, true, &e) != 0) fail_msg("%s: %s", path, e.msg);
      for (size_t k = 0; k < weights_count(w); k++) assert_non_null(weights_at(w, k).gguf_name);
      weights_close(w);
    }
}

/* The checkpoint and its BF16 twin hold the same numbers under the same names. */
static void both_formats_agree(void **s) {
  (void)s;
  for (size_t f = 0; f < 3; f++) {
    char path[120];
    static struct wanted all[WANTED_MAX];
    struct model_config a, b;
    struct err e = {0};
    snprintf(path, sizeof path, "golden/%s", fixtures[f]);
    struct weights *st = must_open(test_path(path), &a);
    snprintf(path, sizeof path, "golden/%s/model-bf16.gguf", fixtures[f]);
    struct weights *gg = must_open(test_path(path), &b);
    int n = list_wanted(&a, false, all);
    for (int i = 0; i < n; i++) {
      struct weight_view u, v;
      if (weights_get(st, all[i].name, all[i].rows, all[i].cols, &u, &e) || weights_get(gg, all[i].name, all[i].rows, all[i].cols, &v, &e))
        fail_msg("%s", e.msg);
      size_t count = (size_t)(MAX(all[i].rows, 1) * all[i].cols);
      float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
      dtype_to_f32(u.dtype, u.data, x, count);
      dtype_to_f32(v.dtype, v.data, y, count);
      if (memcmp(x, y, count * sizeof *x) != 0) fail_msg("%s: %s differs", fixtures[f], all[i].name);
      free(x);
      free(y);
    }
    for (int l = 0; l < a.n_layers; l++)
      for (int x = 0; x < a.n_experts; x++)
        for (int which = 0; which < 3; which++) {
          struct weight_view u, v;
          if (get_expert(st, &a, l, which, x, &u, &e) || get_expert(gg, &b, l, which, x, &v, &e)) fail_msg("%s", e.msg);
          assert_int_equal(u.rows * (int64_t)u.row_bytes, v.rows * (int64_t)v.row_bytes);
          assert_memory_equal(u.data, v.data, (size_t)u.rows * u.row_bytes);
        }
    weights_close(st);
    weights_close(gg);
  }
}

/* --- made checkpoints ------------------------------------------------------------------------------------------------------------ */

/* 3 layers (sliding, full, sharing full) of width 8, per-layer embeddings of 2, 3 experts of width 4. */
static const char config_text[] =
    "{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma4_text\",\"vocab_size\":5,\"hidden_size\":8,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,\"global_head_dim\":6,\"intermediate_size\":3,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"],\"num_kv_shared_layers\":1,\"sliding_window\":4,"
    "\"hidden_size_per_layer_input\":2,\"vocab_size_per_layer_input\":6,\"enable_moe_block\":true,\"num_experts\":3,\"top_k_experts\":2,"
    "\"moe_intermediate_size\":4}}";

static const char *in_tmp(const char *name) {
  static char path[4][600];
  static int at;
  char *p = path[at++ & 3];
  snprintf(p, sizeof path[0], "%s/%s", test_tmpdir(), name);
  return p;
}

struct made { /* a checkpoint being written: tensors numbered on, so that all are different */
  struct st_write t[200];
  char names[200][120];
  int n;
  float *data[200];
};

static void add(struct made *m, const char *prefix, const char *name, int n_dims, int64_t a, int64_t b, int64_t d) {
  size_t count = (size_t)(a * (n_dims > 1 ? b : 1) * (n_dims > 2 ? d : 1));
  float *x = malloc(count * sizeof *x);
  snprintf(m->names[m->n], sizeof m->names[0], "%s%s", prefix, name);
  for (size_t i = 0; i < count; i++) x[i] = (float)(m->n * 1000) + (float)i;
  m->data[m->n] = x;
  m->t[m->n] = (struct st_write){m->names[m->n], DTYPE_F32, n_dims, {a, b, d}, x};
  m->n++;
}

enum experts_form { FUSED, SPLIT_EACH, EXPERT_FORMS };

/* All tensors of the model above. */
static void add_all(struct made *m, const char *prefix, enum experts_form form, bool redundant, const char *left_out) {
  char layer[80], expert[120];
  add(m, prefix, "embed_tokens.weight", 2, 5, 8, 0);
  add(m, prefix, "norm.weight", 1, 8, 0, 0);
  if (!left_out || strcmp(left_out, "embed_tokens_per_layer") != 0) add(m, prefix, "embed_tokens_per_layer.weight", 2, 6, 6, 0);
  add(m, prefix, "per_layer_model_projection.weight", 2, 6, 8, 0);
  add(m, prefix, "per_layer_projection_norm.weight", 1, 2, 0, 0);
  for (int l = 0; l < 3; l++) {
    int d = l ? 6 : 4;
    snprintf(layer, sizeof layer, "%slayers.%d.", prefix, l);
    static const char *const vectors[] = {"input_layernorm.weight",
                                          "post_attention_layernorm.weight",
                                          "pre_feedforward_layernorm.weight",
                                          "post_feedforward_layernorm.weight",
                                          "post_per_layer_input_norm.weight",
                                          "router.scale",
                                          "pre_feedforward_layernorm_2.weight",
                                          "post_feedforward_layernorm_1.weight",
                                          "post_feedforward_layernorm_2.weight"};
    for (size_t i = 0; i < ARRAY_LEN(vectors); i++) add(m, layer, vectors[i], 1, 8, 0, 0);
    add(m, layer, "layer_scalar", 1, 1, 0, 0);
    add(m, layer, "self_attn.q_proj.weight", 2, 2 * d, 8, 0);
    add(m, layer, "self_attn.q_norm.weight", 1, d, 0, 0);
    add(m, layer, "self_attn.o_proj.weight", 2, 8, 2 * d, 0);
    if (l < 2 || redundant) {
      add(m, layer, "self_attn.k_proj.weight", 2, d, 8, 0);
      add(m, layer, "self_attn.v_proj.weight", 2, d, 8, 0);
      add(m, layer, "self_attn.k_norm.weight", 1, d, 0, 0);
    }
    add(m, layer, "mlp.gate_proj.weight", 2, 3, 8, 0);
    add(m, layer, "mlp.up_proj.weight", 2, 3, 8, 0);
    add(m, layer, "mlp.down_proj.weight", 2, 8, 3, 0);
    add(m, layer, "per_layer_input_gate.weight", 2, 2, 8, 0);
    add(m, layer, "per_layer_projection.weight", 2, 8, 2, 0);
    add(m, layer, "router.proj.weight", 2, 3, 8, 0);
    add(m, layer, "router.per_expert_scale", 1, 3, 0, 0);
    if (form == FUSED) {
      add(m, layer, "experts.gate_up_proj", 3, 3, 8, 8);
      add(m, layer, "experts.down_proj", 3, 3, 8, 4);
      continue;
    }
    for (int x = 0; x < 3; x++) {
      snprintf(expert, sizeof expert, "%sexperts.%d.", layer, x);
      add(m, expert, "gate_proj.weight", 2, 4, 8, 0);
      add(m, expert, "up_proj.weight", 2, 4, 8, 0);
      add(m, expert, "down_proj.weight", 2, 8, 4, 0);
    }
  }
}

static const char *checkpoint(struct made *m) {
  struct err e = {0};
  mkdir(in_tmp("made"), 0700);
  test_write("made/config.json", config_text, sizeof config_text - 1);
  if (safetensors_write(in_tmp("made/model.safetensors"), m->t, m->n, &e) != 0) fail_msg("%s", e.msg);
  for (int i = 0; i < m->n; i++) free(m->data[i]);
  m->n = 0;
  return in_tmp("made");
}

static void every_prefix_and_form(void **s) {
  (void)s;
  static struct made m;
  static const char *const prefixes[] = {"model.language_model.", "model.", "language_model.model.", ""};
  static const char *const skipped[] = {"model.vision_tower.x",    "model.audio_tower.x", "model.embed_vision.x", "model.embed_audio.x",
                                        "model.vision_embedder.x", "vision_tower.x",      "audio_tower.x",        "embed_vision.x",
                                        "embed_audio.x",           "vision_embedder.x"};
  for (size_t p = 0; p < ARRAY_LEN(prefixes); p++)
    for (int form = 0; form < EXPERT_FORMS; form++)
      for (int redundant = 0; redundant < 2; redundant++) {
        add_all(&m, prefixes[p], (enum experts_form)form, redundant, NULL);
        for (size_t i = 0; i < ARRAY_LEN(skipped); i++) add(&m, skipped[i], ".weight", 1, 4, 0, 0);
        struct model_config c;
        struct err e = {0};
        struct weight_view gate, up, down;
        struct weights *w = must_open(checkpoint(&m), &c);
        if (bind(w, &c, &e) != 0) fail_msg("%s", e.msg);
        if (weights_report_unused(w, true, &e) != 0) fail_msg("%s", e.msg);
        for (size_t i = 0; i < weights_count(w); i++) { /* keys of the last layer are nobody's */
          struct weight_entry t = weights_at(w, i);
          bool other = strstr(t.name, ".x.") != NULL,
               last = strstr(t.name, "layers.2.self_attn.k") || strstr(t.name, "layers.2.self_attn.v");
          assert_int_equal(t.skipped, other || last);
          assert_int_equal(t.gguf_name == NULL, other);
        }
        float base = 0;
        for (int x = 0; x < 3; x++) {
          assert_int_equal(get_expert(w, &c, 1, EXPERT_GATE, x, &gate, &e), 0);
          assert_int_equal(get_expert(w, &c, 1, EXPERT_UP, x, &up, &e), 0);
          assert_int_equal(get_expert(w, &c, 1, EXPERT_DOWN, x, &down, &e), 0);
          const float *g = gate.data, *u = up.data, *d = down.data;
          if (x == 0) base = g[0];
          if (form == FUSED) { /* gate rows first */
            assert_true(g[0] == base + (float)(64 * x) && u[0] == base + (float)(64 * x + 32) && d[0] == base + 1000 + (float)(32 * x));
          } else {
            assert_true(g[0] == base + (float)(3000 * x) && u[0] == g[0] + 1000 && d[0] == g[0] + 2000);
          }
          assert_true(g[31] == g[0] + 31 && d[31] == d[0] + 31);
        }
        weights_close(w);
      }
}

static void says_what_is_missing(void **s) {
  (void)s;
  static struct made m;
  struct model_config c;
  struct err e = {0};
  struct weight_view v;
  float x[8];
  add_all(&m, "model.", FUSED, false, "embed_tokens_per_layer");
  struct weights *w = must_open(checkpoint(&m), &c);
  assert_int_equal(bind(w, &c, &e), -1); /* never silently without per-layer embeddings */
  assert_non_null(strstr(e.msg, "tensor per_layer_token_embd.weight: expected [6, 6], the file has no such tensor"));
  assert_int_equal(weights_get(w, "blk.2.attn_k.weight", 6, 8, &v, &e), -1);
  assert_int_equal(weights_get_expert(w, 0, EXPERT_UP, 0, 5, 8, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor blk.0.ffn_gate_up_exps.weight: expected [3, 10, 8], file has [3, 8, 8]"));
  assert_int_equal(weights_get_expert(w, 0, EXPERT_DOWN, 2, 8, 5, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor blk.0.ffn_down_exps.weight: expected [3, 8, 5], file has [3, 8, 4]"));
  assert_int_equal(weights_get_expert(w, 3, EXPERT_GATE, 0, 4, 8, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor blk.3.ffn_gate_up_exps.weight: expected [3, 8, 8], the file has no such tensor"));
  assert_int_equal(weights_get_expert(w, 3, EXPERT_DOWN, 0, 8, 4, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor blk.3.ffn_down_exps.weight: expected [3, 8, 4], the file has no such tensor"));
  assert_int_equal(weights_get_vector(w, "blk.1.layer_output_scale.weight", 2, x, &e), -1);
  assert_non_null(strstr(e.msg, "expected [2], file has [1]"));
  weights_close(w);
  /* leftovers are named with their numbers taken out; keys of a sharing layer are none */
  add_all(&m, "model.", SPLIT_EACH, true, NULL);
  add(&m, "model.layers.0.experts.3.gate_proj.weight", "", 2, 4, 8, 0); /* one expert too many */
  add(&m, "model.layers.0.experts.00.gate_proj.weight", "", 2, 4, 8, 0);
  add(&m, "model.layers.1.self_attn.v_norm.weight", "", 1, 6, 0, 0);
  w = must_open(checkpoint(&m), &c);
  assert_int_equal(bind(w, &c, &e), 0);
  assert_int_equal(weights_report_unused(w, true, &e), -1);
  assert_non_null(strstr(e.msg, "not part of a gemma4 model"));
  assert_non_null(strstr(e.msg, "(3 such tensors)"));
  weights_close(w);
}

/* One number may be stored without dimensions. */
static void scalars(void **s) {
  (void)s;
  static const char header[] = "{\"model.layers.0.layer_scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                               "\"model.layers.1.layer_scalar\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
  unsigned char file[8 + sizeof header - 1 + 8] = {sizeof header - 1};
  memcpy(file + 8, header, sizeof header - 1);
  memcpy(file + 8 + sizeof header - 1, (float[]){-0.5f, 3}, 8);
  mkdir(in_tmp("scalar"), 0700);
  test_write("scalar/config.json", config_text, sizeof config_text - 1);
  test_write("scalar/model.safetensors", file, sizeof file);
  struct model_config c;
  struct err e = {0};
  float x[2];
  struct weights *w = must_open(in_tmp("scalar"), &c);
  if (weights_get_vector(w, "blk.0.layer_output_scale.weight", 1, x, &e) ||
      weights_get_vector(w, "blk.1.layer_output_scale.weight", 1, x + 1, &e))
    fail_msg("%s", e.msg);
  assert_true(x[0] == -0.5f && x[1] == 3);
  assert_int_equal(weights_get_vector(w, "blk.0.layer_output_scale.weight", 2, x, &e), -1);
  assert_non_null(strstr(e.msg, "expected [2], file has []"));
  weights_close(w);
}

/* --- GGUF ----------------------------------------------------------------------------------------------------------------------- */

static float *counting(size_t n) {
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = (float)i;
  return x;
}

/* Query, key and value in one tensor, in either family; a sharing layer's may have all three, too. */
static void fused_keys(void **s) {
  (void)s;
  for (int family = 3; family <= 4; family++) {
    struct gguf_maker m;
    gguf_maker_init(&m);
    char key[100];
    static const struct {
      const char *key;
      uint32_t v;
    } keys[] = {{"block_count", 2},
                {"context_length", 64},
                {"embedding_length", 8},
                {"attention.head_count", 4},
                {"attention.head_count_kv", 2},
                {"attention.key_length", 4},
                {"attention.value_length", 4},
                {"attention.sliding_window", 5},
                {"attention.sliding_window_pattern", 1},
                {"feed_forward_length", 6}};
    gguf_maker_str(&m, "general.architecture", family == 3 ? "gemma3" : "gemma4");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
      snprintf(key, sizeof key, "gemma%d.%s", family, keys[i].key);
      gguf_maker_u32(&m, key, keys[i].v);
    }
    if (family == 4) gguf_maker_u32(&m, "gemma4.attention.shared_kv_layers", 1);
    float *x = counting(8 * 32);
    gguf_maker_tensor(&m, "token_embd.weight", GM_F32, 2, (uint64_t[]){8, 5}, NULL, 160);
    gguf_maker_tensor(&m, "blk.0.attn_qkv.weight", GM_F32, 2, (uint64_t[]){8, 32}, x, 1024);
    gguf_maker_tensor(&m, "blk.1.attn_qkv.weight", GM_F32, 2, (uint64_t[]){8, 32}, x, 1024);
    free(x);
    size_t n;
    unsigned char *file = gguf_maker_finish(&m, &n);
    const char *path = test_write("fused.gguf", file, n);
    free(file);
    struct model_config c;
    struct err e = {0};
    struct weight_view v;
    struct weights *w = must_open(path, &c);
    assert_false(c.layers[0].v_from_k);
    static const struct {
      const char *name;
      int rows, first;
    } parts[] = {{"attn_q", 16, 0}, {"attn_k", 8, 16}, {"attn_v", 8, 24}};
    for (int l = 0; l < 2; l++)
      for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "blk.%d.%s.weight", l, parts[i].name);
        assert_true(weights_has(w, key));
        if (weights_get(w, key, parts[i].rows, 8, &v, &e) != 0) fail_msg("%s", e.msg);
        assert_int_equal(v.rows, parts[i].rows);
        assert_true(((const float *)v.data)[0] == (float)(8 * parts[i].first));
        assert_int_equal(weights_get(w, key, parts[i].rows + 1, 8, &v, &e), -1);
        assert_non_null(strstr(e.msg, "the file has no such tensor"));
        assert_int_equal(weights_get(w, key, parts[i].rows, 7, &v, &e), -1);
        assert_non_null(strstr(e.msg, "attn_qkv.weight: expected [32, 7], file has [32, 8]"));
      }
    assert_false(weights_has(w, "blk.0.attn_output.weight"));
    assert_false(weights_has(w, "blk.2.attn_q.weight"));
    assert_int_equal(weights_get(w, "blk.2.attn_q.weight", 16, 8, &v, &e), -1);
    assert_int_equal(weights_get(w, "token_embd.weight", 5, 8, &v, &e), 0);
    assert_int_equal(weights_report_unused(w, true, &e), 0);
    weights_close(w);
  }
}

/* A split set is cut anywhere, between the tensors of one layer's experts, too. */
static void split_set(void **s) {
  (void)s;
  struct model_config whole, c;
  struct err e = {0};
  struct weights *w = must_open(test_path("golden/gemma4-moe-tiny/model-q8_0.gguf"), &whole);
  const struct gguf *g = weights_gguf(w);
  for (int part = 0; part < 3; part++) {
    struct gguf_maker m;
    gguf_maker_init(&m);
    if (part == 0)
      for (size_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        char key[100];
        snprintf(key, sizeof key, "%.*s", (int)kv->key.n, kv->key.p);
        if (kv->is_array && kv->type == GGUF_STRING) continue;
        size_t elem = kv->raw_bytes / (kv->n ? kv->n : 1);
        if (kv->is_array) gguf_maker_array(&m, key, (uint32_t)kv->type, kv->raw, kv->n, elem);
        else gguf_maker_kv(&m, key, kv->key.n, (uint32_t)kv->type, kv->raw, kv->raw_bytes);
      }
    uint16_t no = (uint16_t)part, count = 3;
    int32_t total = (int32_t)g->n_tensors;
    gguf_maker_kv(&m, "split.no", 8, GM_U16, &no, 2);
    gguf_maker_kv(&m, "split.count", 11, GM_U16, &count, 2);
    gguf_maker_kv(&m, "split.tensors.count", 19, GM_I32, &total, 4);
    for (size_t i = 0; i < g->n_tensors; i++) {
      const struct gguf_tensor *t = &g->tensors[i];
      if ((int)(i % 3) != part) continue;
      char name[100];
      uint64_t ne[4];
      snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
      for (int d = 0; d < t->n_dims; d++) ne[d] = (uint64_t)t->shape[t->n_dims - 1 - d];
      gguf_maker_tensor(&m, name, t->dtype == DTYPE_F32 ? GM_F32 : GM_Q8_0, (uint32_t)t->n_dims, ne, t->data, t->n_bytes);
    }
    size_t n;
    unsigned char *file = gguf_maker_finish(&m, &n);
    char name[60];
    snprintf(name, sizeof name, "moe-%05d-of-00003.gguf", part + 1);
    test_write(name, file, n);
    free(file);
  }
  struct weights *split = must_open(in_tmp("moe-00002-of-00003.gguf"), &c);
  assert_memory_equal(&c, &whole, sizeof c);
  if (bind(split, &c, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(weights_report_unused(split, true, &e), 0);
  for (int x = 0; x < 8; x++)
    for (int which = 0; which < 3; which++) {
      struct weight_view u, v;
      assert_int_equal(get_expert(w, &whole, 5, which, x, &u, &e), 0);
      assert_int_equal(get_expert(split, &c, 5, which, x, &v, &e), 0);
      assert_memory_equal(u.data, v.data, (size_t)u.rows * u.row_bytes);
      weights_done_with(split, &v);
    }
  weights_close(split);
  weights_close(w);
}

/* --- quantising at load: which type ---------------------------------------------------------------------------------------------- */

static void types_at_load(void **s) {
  (void)s;
  static const struct {
    const char *name;
    enum dtype own;
    int64_t cols;
    enum dtype quant, type;
  } cases[] = {{"blk.0.attn_q.weight", DTYPE_BF16, 64, DTYPE_NONE, DTYPE_BF16},
               {"blk.0.attn_q.weight", DTYPE_BF16, 64, DTYPE_F32, DTYPE_BF16},
               {"blk.0.attn_q.weight", DTYPE_BF16, 64, DTYPE_Q8_0, DTYPE_Q8_0},
               {"blk.0.attn_q.weight", DTYPE_F16, 64, DTYPE_Q4_0, DTYPE_Q4_0},
               {"blk.0.attn_q.weight", DTYPE_F32, 48, DTYPE_Q4_0, DTYPE_F32}, /* no whole blocks */
               {"blk.0.attn_q.weight", DTYPE_Q6_K, 256, DTYPE_Q4_0, DTYPE_Q6_K},
               {"blk.0.ffn_gate_inp.weight", DTYPE_BF16, 64, DTYPE_Q8_0, DTYPE_BF16},
               {"blk.0.ffn_gate_exps.weight", DTYPE_BF16, 64, DTYPE_Q4_0, DTYPE_Q4_0},
               {"token_embd.weight", DTYPE_BF16, 64, DTYPE_Q4_0, DTYPE_Q8_0},
               {"output.weight", DTYPE_F16, 64, DTYPE_Q4_0, DTYPE_Q8_0},
               {"output.weight", DTYPE_F16, 40, DTYPE_Q4_0, DTYPE_F16},
               {"per_layer_token_embd.weight", DTYPE_F16, 64, DTYPE_Q4_0, DTYPE_F16},
               {"per_layer_model_proj.weight", DTYPE_BF16, 64, DTYPE_Q4_0, DTYPE_Q4_0}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    assert_int_equal(weights_type(cases[i].name, cases[i].own, cases[i].cols, cases[i].quant), cases[i].type);
  /* what the q8_0 twins hold, but for the per-layer table */
  for (size_t f = 0; f < 3; f++) {
    char path[120];
    struct model_config c;
    snprintf(path, sizeof path, "golden/%s/model-q8_0.gguf", fixtures[f]);
    struct weights *w = must_open(test_path(path), &c);
    for (size_t i = 0; i < weights_count(w); i++) {
      struct weight_entry t = weights_at(w, i);
      if (t.n_dims > 1 && strcmp(t.gguf_name, "per_layer_token_embd.weight") != 0)
        assert_int_equal(t.dtype, weights_type(t.gguf_name, DTYPE_F32, t.shape[t.n_dims - 1], DTYPE_Q8_0));
    }
    weights_close(w);
  }
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_fixture_binds),
    cmocka_unit_test(both_formats_agree),
    cmocka_unit_test(every_prefix_and_form),
    cmocka_unit_test(says_what_is_missing),
    cmocka_unit_test(scalars),
    cmocka_unit_test(fused_keys),
    cmocka_unit_test(split_set),
    cmocka_unit_test(types_at_load),
};
TEST_MAIN(tests)
