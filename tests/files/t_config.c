/* t_config.c — one record from both formats and both spellings; defaults; refusals. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "files/config.h"
#include "gguf_maker.h"

static int from_text(struct model_config *c, const char *text, const char *generation, struct err *e) {
  memset(e, 0, sizeof *e);
  return config_from_json(c, text, strlen(text), generation, generation ? strlen(generation) : 0, "config.json", e);
}
static void must(struct model_config *c, const char *text, const char *generation) {
  struct err e;
  if (from_text(c, text, generation, &e) != 0) fail_msg("%s: %s", text, e.msg);
}
static void from_file(struct model_config *c, const char *path) {
  char *text = test_read(test_path(path), NULL);
  must(c, text, NULL);
  free(text);
}

static void tiny_fixture(void **s) {
  (void)s;
  struct model_config c;
  from_file(&c, "golden/gemma3-text-tiny/config.json");
  assert_int_equal(c.family, FAMILY_GEMMA3);
  assert_string_equal(model_family_name(c.family), "gemma3");
  assert_int_equal(c.vocab, 512);
  assert_int_equal(c.hidden, 256);
  assert_int_equal(c.n_layers, 8);
  assert_int_equal(c.ctx_tokens, 1024);
  assert_int_equal(c.window_tokens, 8);
  assert_true(c.norm_eps == 1e-6f && c.norm_plus_one && c.tied_head);
  assert_true(c.embed_scale == 16 && c.attn_scale == 0.125f && c.final_softcap == 0);
  assert_true(c.rope_full.theta == 1e6 && c.rope_full.factor == 1 && c.rope_full.rotated == 1);
  assert_true(c.rope_sliding.theta == 1e4 && c.rope_sliding.factor == 1 && c.rope_sliding.rotated == 1);
  assert_int_equal(c.bos, 2);
  assert_int_equal(c.pad, 0);
  assert_int_equal(c.n_eos, 1);
  assert_int_equal(c.eos[0], 1);
  for (int l = 0; l < 8; l++) {
    assert_int_equal(c.layers[l].kind, l == 5 ? LAYER_FULL : LAYER_SLIDING);
    assert_int_equal(c.layers[l].n_q, 4);
    assert_int_equal(c.layers[l].n_kv, 1);
    assert_int_equal(c.layers[l].head_dim, 64);
    assert_int_equal(c.layers[l].ffn, 256);
    assert_int_equal(c.layers[l].kv_donor, l);
  }
}

/* What the reference library writes when it saves the two nested fixtures again. */
static const char resaved_ropescale[] =
    "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"boi_token_index\":255999,\"eoi_token_index\":256000,\"image_token_index\":262144,"
    "\"model_type\":\"gemma3\",\"mm_tokens_per_image\":256,\"dtype\":\"bfloat16\",\"tie_word_embeddings\":true,\"text_config\":{"
    "\"_sliding_window_pattern\":6,\"attention_bias\":false,\"attention_dropout\":0.0,\"attn_logit_softcapping\":null,\"bos_token_id\":2,"
    "\"eos_token_id\":1,\"final_logit_softcapping\":null,\"head_dim\":16,\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":64,"
    "\"intermediate_size\":96,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\"],\"max_position_embeddings\":1024,"
    "\"model_type\":\"gemma3_text\",\"num_attention_heads\":4,\"num_hidden_layers\":8,\"num_key_value_heads\":2,\"pad_token_id\":0,"
    "\"query_pre_attn_scalar\":16,\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"full_attention\":{\"factor\":8.0,\"rope_theta\":1000000.0,"
    "\"rope_type\":\"linear\"},\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},\"sliding_window\":5,"
    "\"use_bidirectional_attention\":false,\"use_cache\":true,\"vocab_size\":320}}";
static const char resaved_scale[] =
    "{\"model_type\":\"gemma3\",\"text_config\":{\"_sliding_window_pattern\":6,\"head_dim\":12,\"hidden_size\":64,\"intermediate_size\":64,"
    "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
    "\"full_attention\",\"sliding_attention\"],\"max_position_embeddings\":1024,\"model_type\":\"gemma3_text\",\"num_attention_heads\":8,"
    "\"num_hidden_layers\":7,\"num_key_value_heads\":4,\"query_pre_attn_scalar\":8,\"rope_parameters\":{\"full_attention\":{\"factor\":8.0,"
    "\"rope_theta\":1000000.0,\"rope_type\":\"linear\"},\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},"
    "\"sliding_window\":6,\"vocab_size\":300}}";

static void both_spellings_are_one_record(void **s) {
  (void)s;
  struct model_config old, new;
  from_file(&old, "golden/gemma3-text-tiny/config.json");
  from_file(&new, "golden/gemma3-text-tiny/config.resaved.json");
  assert_memory_equal(&old, &new, sizeof old);
  from_file(&old, "golden/gemma3-text-ropescale/config.json");
  must(&new, resaved_ropescale, NULL);
  assert_memory_equal(&old, &new, sizeof old);
  assert_true(old.rope_full.factor == 8 && old.rope_sliding.factor == 1);
  from_file(&old, "golden/gemma3-text-scale/config.json");
  must(&new, resaved_scale, NULL);
  assert_memory_equal(&old, &new, sizeof old);
  assert_true(old.attn_scale == (float)(1 / sqrt(8.0)));
  assert_int_equal(old.layers[6].kind, LAYER_SLIDING);
}

static void gguf_gives_the_same(void **s) {
  (void)s;
  static const struct {
    const char *json, *gguf;
  } pairs[] = {{"golden/gemma3-text-tiny/config.json", "golden/gemma3-text-tiny/model-mixed.gguf"},
               {"golden/gemma3-text-ropescale/config.json", "golden/gemma3-text-ropescale/model-bf16.gguf"},
               {"golden/gemma3-text-ropescale/config.json", "golden/gemma3-text-ropescale/model-q8_0.gguf"}};
  for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
    struct model_config a, b;
    struct map m;
    struct gguf g;
    struct err e = {0};
    from_file(&a, pairs[i].json);
    assert_int_equal(map_open(&m, test_path(pairs[i].gguf), &e), 0);
    assert_int_equal(gguf_open(&g, &m, &e), 0);
    if (config_from_gguf(&b, &g, &e) != 0) fail_msg("%s", e.msg);
    assert_false(b.norm_plus_one);
    assert_true(b.name[0] != 0);
    b.norm_plus_one = true; /* the two differences that must be */
    memcpy(b.name, a.name, sizeof a.name);
    assert_string_equal(b.architecture, "gemma3");
    memcpy(b.architecture, a.architecture, sizeof a.architecture);
    assert_memory_equal(&a, &b, sizeof a);
    gguf_close(&g);
    map_close(&m);
  }
}

static void class_defaults(void **s) {
  (void)s;
  struct model_config c;
  must(&c, "{\"model_type\":\"gemma3_text\"}", NULL);
  assert_int_equal(c.vocab, 262208);
  assert_int_equal(c.hidden, 2304);
  assert_int_equal(c.n_layers, 26);
  assert_int_equal(c.ctx_tokens, 131072);
  assert_int_equal(c.window_tokens, 4096);
  assert_int_equal(c.layers[25].ffn, 9216);
  assert_int_equal(c.layers[25].n_q, 8);
  assert_int_equal(c.layers[25].n_kv, 4);
  assert_int_equal(c.layers[25].head_dim, 256);
  assert_int_equal(c.layers[23].kind, LAYER_FULL);
  assert_int_equal(c.layers[25].kind, LAYER_SLIDING);
  assert_true(c.attn_scale == 1 / 16.0f && c.embed_scale == 48);
  assert_int_equal(c.n_eos, 2); /* the released vocabulary's own */
  assert_int_equal(c.eos[1], 106);
}

/* The 27B, as it is published: 62 layers, head_dim 128, scale of 168. */
static void the_27b(void **s) {
  (void)s;
  struct model_config c, g;
  must(
      &c,
      "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"text_config\":{\"head_dim\":128,\"hidden_size\":5376,\"intermediate_size\":21504,"
      "\"model_type\":\"gemma3_text\",\"num_attention_heads\":32,\"num_hidden_layers\":62,\"num_key_value_heads\":16,"
      "\"query_pre_attn_scalar\":168,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
      "\"vision_config\":{\"hidden_size\":1152}}",
      NULL);
  assert_true(c.attn_scale == (float)(1 / sqrt(168.0)));
  assert_int_equal(c.vocab, 262208);
  struct gguf_maker m;
  gguf_maker_init(&m);
  gguf_maker_gemma3(&m, &(struct gm_gemma3){62, 5376, 32, 16, 128, 21504, 0, 1024}, 0);
  gguf_maker_f32(&m, "gemma3.rope.scaling.factor", 8);
  unsigned char *types = calloc(262208, 1);
  gguf_maker_array(&m, "tokenizer.ggml.tokens", GM_U8, types, 262208, 1);
  free(types);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  struct map map = {.data = file, .n_bytes = n};
  struct gguf f;
  struct err e = {0};
  assert_int_equal(gguf_open(&f, &map, &e), 0);
  if (config_from_gguf(&g, &f, &e) != 0) fail_msg("%s", e.msg);
  assert_true(g.attn_scale == c.attn_scale && g.embed_scale == c.embed_scale && g.rope_full.factor == 8);
  assert_memory_equal(g.eos, c.eos, sizeof c.eos);
  gguf_close(&f);
  free(file);
}

static void ends_of_generation(void **s) {
  (void)s;
  struct model_config c;
  must(&c, "{\"model_type\":\"gemma3_text\",\"vocab_size\":300,\"eos_token_id\":[7,8]}", NULL);
  assert_int_equal(c.n_eos, 2);
  must(&c, "{\"model_type\":\"gemma3_text\",\"vocab_size\":300,\"eos_token_id\":[7,8]}", "{\"eos_token_id\":[9,7,9]}");
  assert_int_equal(c.n_eos, 2);
  assert_int_equal(c.eos[0], 9);
  assert_int_equal(c.eos[1], 7);
  must(&c, "{\"model_type\":\"gemma3_text\",\"vocab_size\":300}", "{\"eos_token_id\":null}");
  assert_int_equal(c.n_eos, 1);
  assert_int_equal(c.eos[0], 1);
  must(&c, "{\"model_type\":\"gemma3\",\"eos_token_id\":50,\"text_config\":{\"vocab_size\":300,\"eos_token_id\":1}}", NULL);
  assert_int_equal(c.eos[0], 50);
  must(&c, "{\"model_type\":\"gemma3_text\",\"vocab_size\":1}", NULL); /* the defaults are not in it */
  assert_int_equal(c.n_eos, 0);
  assert_int_equal(c.bos, -1);
}

static void tied_or_not(void **s) {
  (void)s;
  struct model_config c;
  must(&c, "{\"model_type\":\"gemma3_text\",\"tie_word_embeddings\":false}", NULL);
  assert_false(c.tied_head);
  /* of a multimodal config the outer one counts */
  must(&c, "{\"model_type\":\"gemma3\",\"tie_word_embeddings\":false,\"text_config\":{\"tie_word_embeddings\":true}}", NULL);
  assert_false(c.tied_head);
  must(&c, "{\"model_type\":\"gemma3\",\"text_config\":{\"tie_word_embeddings\":false}}", NULL);
  assert_false(c.tied_head);
}

static void names_what_it_runs(void **s) {
  (void)s;
  struct model_config c;
  struct err e;
  assert_int_equal(from_text(&c, "{\"model_type\":\"llama\"}", NULL, &e), -1);
  assert_string_equal(e.msg, "config.json: architecture llama: this build runs gemma3, gemma4, mllama");
  assert_int_equal(e.code, ERR_UNSUPPORTED);
}

static void refuses(void **s) {
  (void)s;
#define G3 "{\"model_type\":\"gemma3_text\","
  static const struct {
    const char *text, *says;
  } bad[] = {
      {"{}", "config.json: model_type: expected this key"},
      {"[]", "config.json: expected an object"},
      {"{\"model_type\":\"llama\"}", "architecture llama: this build runs gemma3"},
      {"{\"model_type\":\"qwen\\n9\"}", "architecture qwen\\x0a9: this build runs gemma3"},
      {"{\"model_type\":5}", "config.json: model_type: expected a string, found 5"},
      {"{\"model_type\":\"gemma3\",\"text_config\":[]}", "config.json: text_config: expected an object"},
      {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":\"big\"}}",
       "config.json: text_config.hidden_size: expected an integer from 1 to 65536, found \"big\""},
      {G3 "\"hidden_size\":0}", "hidden_size: expected an integer from 1 to 65536, found 0"},
      {G3 "\"hidden_size\":65537}", "hidden_size"},
      {G3 "\"num_hidden_layers\":257}", "num_hidden_layers: expected an integer from 1 to 256, found 257"},
      {G3 "\"vocab_size\":1048577}", "vocab_size"},
      {G3 "\"vocab_size\":-1}", "vocab_size"},
      {G3 "\"num_attention_heads\":257}", "num_attention_heads"},
      {G3 "\"num_attention_heads\":6}", "layer 0: expected the number of query heads to be a multiple"},
      {G3 "\"num_key_value_heads\":0}", "num_key_value_heads"},
      {G3 "\"head_dim\":1025}", "head_dim"},
      {G3 "\"head_dim\":255}", "even width of heads, found 255"},
      {G3 "\"intermediate_size\":1048577}", "intermediate_size"},
      {G3 "\"rms_norm_eps\":0}", "rms_norm_eps"},
      {G3 "\"rms_norm_eps\":-1e-6}", "rms_norm_eps"},
      {G3 "\"sliding_window\":0}", "sliding_window"},
      {G3 "\"max_position_embeddings\":0}", "max_position_embeddings"},
      {G3 "\"query_pre_attn_scalar\":0}", "query_pre_attn_scalar"},
      {G3 "\"query_pre_attn_scalar\":-4}", "query_pre_attn_scalar"},
      {G3 "\"final_logit_softcapping\":-1}", "final_logit_softcapping"},
      {G3 "\"sliding_window_pattern\":0}", "sliding_window_pattern"},
      {G3 "\"layer_types\":[\"full_attention\"]}", "layer_types: expected 26 entries, found 1"},
      {G3 "\"num_hidden_layers\":1,\"layer_types\":[\"chunked\"]}", "layer_types[0]: expected \"full_attention\""},
      {G3 "\"num_hidden_layers\":1,\"layer_types\":[3]}", "layer_types[0]"},
      {G3 "\"rope_theta\":0}", "rope_theta"},
      {G3 "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8}}",
       "rope_scaling.rope_type: expected \"default\" or \"linear\", found \"yarn\""},
      {G3 "\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling.factor: expected this key"},
      {G3 "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "rope_scaling.factor"},
      {G3 "\"rope_parameters\":{\"rope_theta\":5.0}}", "rope_parameters: expected full_attention"},
      {G3 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\"}}}", "rope_parameters.full_attention.rope_type"},
      {G3 "\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25}}}", "partial_rotary_factor"},
      {G3 "\"attention_bias\":true}", "attention_bias: expected it to be off"},
      {G3 "\"attn_logit_softcapping\":50.0}", "attn_logit_softcapping"},
      {G3 "\"use_bidirectional_attention\":true}", "use_bidirectional_attention"},
      {G3 "\"hidden_activation\":\"silu\"}", "hidden_activation: expected \"gelu_pytorch_tanh\", found \"silu\""},
      {G3 "\"quantization_config\":{}}", "quantised safetensors"},
      {G3 "\"bos_token_id\":262208}", "bos_token_id: expected an integer from 0 to 262207"},
      {G3 "\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "eos_token_id: expected at most 8 ids, found 9"},
      {G3 "\"eos_token_id\":[1,\"2\"]}", "eos_token_id[1]"},
      {G3 "\"tie_word_embeddings\":1}", "tie_word_embeddings"},
      {G3, "line 1"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct model_config c;
    struct err e;
    if (from_text(&c, bad[i].text, NULL, &e) == 0) fail_msg("%s: accepted", bad[i].text);
    if (memcmp(e.msg, "config.json: ", 13) != 0 || !strstr(e.msg, bad[i].says)) fail_msg("%s: says \"%s\"", bad[i].text, e.msg);
    if (e.code != ERR_BAD_FILE && e.code != ERR_UNSUPPORTED) fail_msg("%s: code %s", bad[i].text, err_code_name(e.code));
  }
  struct model_config c;
  struct err e;
  assert_int_equal(from_text(&c, "{\"model_type\":\"gemma3_text\"}", "[]", &e), -1);
  assert_non_null(strstr(e.msg, "generation_config.json: expected an object"));
  assert_int_equal(from_text(&c, "{\"model_type\":\"gemma3_text\"}", "{\"eos_token_id\":\"x\"}", &e), -1);
  assert_non_null(strstr(e.msg, "generation_config.json"));
}

/* --- GGUF ---------------------------------------------------------------------------------------------------------------- */

static const struct gm_gemma3 small = {2, 8, 2, 1, 4, 6, 5, 3};

/* One more or another key in a small model: NULL makes none. */
static int from_maker(struct model_config *c, const struct gm_gemma3 *size, void (*change)(struct gguf_maker *), struct err *e) {
  struct gguf_maker m;
  gguf_maker_init(&m);
  gguf_maker_gemma3(&m, size, 1);
  if (change) change(&m);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  struct map map = {.data = file, .n_bytes = n, .path = (char *)(uintptr_t) "m.gguf"};
  struct gguf g;
  memset(e, 0, sizeof *e);
  int result = -1;
  if (gguf_open(&g, &map, e) == 0) result = config_from_gguf(c, &g, e);
  gguf_close(&g);
  free(file);
  return result;
}

static void pattern_array(struct gguf_maker *m) {
  gguf_maker_array(m, "gemma3.attention.sliding_window_pattern", GM_BOOL, (unsigned char[]){0, 1}, 2, 1);
}
static void pattern_period(struct gguf_maker *m) { gguf_maker_u32(m, "gemma3.attention.sliding_window_pattern", 2); }
static void pattern_full(struct gguf_maker *m) { gguf_maker_u32(m, "gemma3.attention.sliding_window_pattern", 1); }
static void local_theta(struct gguf_maker *m) { gguf_maker_f32(m, "gemma3.rope.local.freq_base", 500); }
static void swa_theta(struct gguf_maker *m) { gguf_maker_f32(m, "gemma3.rope.freq_base_swa", 600); }
static void scaling_none(struct gguf_maker *m) {
  gguf_maker_str(m, "gemma3.rope.scaling.type", "none");
  gguf_maker_f32(m, "gemma3.rope.scaling.factor", 8);
}
static void scaling_linear(struct gguf_maker *m) {
  gguf_maker_str(m, "gemma3.rope.scaling.type", "linear");
  gguf_maker_f32(m, "gemma3.rope.scaling.factor", 8);
}
static void head(struct gguf_maker *m) { gguf_maker_tensor(m, "output.weight", GM_F32, 2, (uint64_t[]){8, 5}, NULL, 160); }
static void eot(struct gguf_maker *m) {
  gguf_maker_u32(m, "tokenizer.ggml.eos_token_id", 3);
  gguf_maker_u32(m, "tokenizer.ggml.eot_token_id", 4);
}

static void gguf_keys(void **s) {
  (void)s;
  struct model_config c;
  struct err e;
  if (from_maker(&c, &small, NULL, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(c.vocab, 5);
  assert_true(c.tied_head && c.attn_scale == 0.5f && c.rope_sliding.theta == 1e4);
  assert_string_equal(c.name, "made for a test");
  assert_int_equal(from_maker(&c, &small, pattern_array, &e), 0);
  assert_int_equal(c.layers[0].kind, LAYER_FULL);
  assert_int_equal(c.layers[1].kind, LAYER_SLIDING);
  assert_int_equal(from_maker(&c, &small, pattern_period, &e), 0);
  assert_int_equal(c.layers[0].kind, LAYER_SLIDING);
  assert_int_equal(c.layers[1].kind, LAYER_FULL);
  assert_int_equal(from_maker(&c, &small, pattern_full, &e), 0);
  assert_int_equal(c.window_tokens, 0); /* no sliding layer */
  assert_int_equal(from_maker(&c, &small, local_theta, &e), 0);
  assert_true(c.rope_sliding.theta == 500);
  assert_int_equal(from_maker(&c, &small, swa_theta, &e), 0);
  assert_true(c.rope_sliding.theta == 600);
  assert_int_equal(from_maker(&c, &small, scaling_none, &e), 0);
  assert_true(c.rope_full.factor == 1);
  assert_int_equal(from_maker(&c, &small, scaling_linear, &e), 0);
  assert_true(c.rope_full.factor == 8 && c.rope_sliding.factor == 1);
  assert_int_equal(from_maker(&c, &small, head, &e), 0);
  assert_false(c.tied_head);
  assert_int_equal(from_maker(&c, &small, eot, &e), 0);
  assert_int_equal(c.n_eos, 2);
  assert_int_equal(c.eos[1], 4);
}

static void bad_yarn(struct gguf_maker *m) { gguf_maker_str(m, "gemma3.rope.scaling.type", "yarn"); }
static void bad_bos(struct gguf_maker *m) { gguf_maker_u32(m, "tokenizer.ggml.bos_token_id", 5); }
static void bad_pattern(struct gguf_maker *m) {
  gguf_maker_array(m, "gemma3.attention.sliding_window_pattern", GM_BOOL, (unsigned char[]){0, 1, 1}, 3, 1);
}
static void bad_pattern_0(struct gguf_maker *m) { gguf_maker_u32(m, "gemma3.attention.sliding_window_pattern", 0); }
static void bad_cap(struct gguf_maker *m) { gguf_maker_f32(m, "gemma3.attn_logit_softcapping", 50); }
static void bad_rotated(struct gguf_maker *m) { gguf_maker_u32(m, "gemma3.rope.dimension_count", 2); }
static void bad_theta(struct gguf_maker *m) { gguf_maker_f32(m, "gemma3.rope.freq_base_swa", NAN); }

static void gguf_refuses(void **s) {
  (void)s;
  struct model_config c;
  struct err e;
  static const struct {
    void (*change)(struct gguf_maker *);
    const char *says;
  } bad[] = {{bad_yarn, "key gemma3.rope.scaling.type: expected"},
             {bad_bos, "key tokenizer.ggml.bos_token_id: expected an id from 0 to 4, file has 5"},
             {bad_pattern, "key gemma3.attention.sliding_window_pattern: expected an integer or 2 of them, file has 3 of type bool"},
             {bad_pattern_0, "key gemma3.attention.sliding_window_pattern: expected an integer from 1 to 256, file has 0"},
             {bad_cap, "key gemma3.attn_logit_softcapping"},
             {bad_rotated, "key gemma3.rope.dimension_count"},
             {bad_theta, "key gemma3.rope.freq_base_swa: expected a finite float32"}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (from_maker(&c, &small, bad[i].change, &e) == 0) fail_msg("accepted: %s", bad[i].says);
    if (memcmp(e.msg, "m.gguf: ", 8) != 0 || !strstr(e.msg, bad[i].says)) fail_msg("says \"%s\"", e.msg);
  }
  static const struct {
    struct gm_gemma3 size;
    const char *says;
  } sizes[] = {{{1, 8, 3, 2, 4, 6, 5, 3}, "multiple of that of key heads, found 3 and 2"},
               {{1, 8, 2, 1, 4, 6, 5, 0}, "key gemma3.attention.sliding_window: expected an integer from 1"},
               {{1, 8, 2, 1, 3, 6, 5, 3}, "even width of heads, found 3"}};
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
    if (from_maker(&c, &sizes[i].size, NULL, &e) == 0) fail_msg("accepted: %s", sizes[i].says);
    if (!strstr(e.msg, sizes[i].says)) fail_msg("says \"%s\"", e.msg);
  }
}

static void gguf_architectures(void **s) {
  (void)s;
  static const struct {
    const char *architecture, *says;
  } others[] = {{"llama", "m.gguf: architecture llama: this build runs gemma3"},
                {"mllama", "key mllama.block_count: expected this key"},
                {"gemma3_text", "this build runs gemma3"},
                {"clip", "it is the vision or audio part of a model: give it with --mmproj beside the model; this build runs gemma3"},
                {"gemma4-assistant", "key gemma4-assistant.embedding_length_out: expected this key"},
                {"\n", "architecture \\x0a: this build runs gemma3"},
                {NULL, "key general.architecture: expected this key, it is missing"}};
  for (size_t i = 0; i < ARRAY_LEN(others); i++) {
    struct gguf_maker m;
    gguf_maker_init(&m);
    if (others[i].architecture) gguf_maker_str(&m, "general.architecture", others[i].architecture);
    else gguf_maker_str(&m, "general.name", "nothing else");
    size_t n;
    unsigned char *file = gguf_maker_finish(&m, &n);
    struct map map = {.data = file, .n_bytes = n, .path = (char *)(uintptr_t) "m.gguf"};
    struct gguf g;
    struct model_config c;
    struct err e = {0};
    assert_int_equal(gguf_open(&g, &map, &e), 0);
    assert_int_equal(config_from_gguf(&c, &g, &e), -1);
    if (!strstr(e.msg, others[i].says)) fail_msg("says \"%s\"", e.msg);
    gguf_close(&g);
    free(file);
  }
}

static void folders(void **s) {
  (void)s;
  struct model_config c;
  struct err e = {0};
  if (config_from_folder(&c, test_path("golden/gemma3-text-scale"), &e) != 0) fail_msg("%s", e.msg);
  assert_string_equal(c.name, "gemma3-text-scale");
  assert_int_equal(c.n_eos, 1);
  assert_int_equal(config_from_folder(&c, test_tmpdir(), &e), -1);
  assert_int_equal(e.code, ERR_NOT_FOUND);
  assert_non_null(strstr(e.msg, "config.json: no such file"));
  test_write("config.json", resaved_scale, sizeof resaved_scale - 1);
  test_write("generation_config.json", "{\"eos_token_id\":[1,106]}", 24);
  if (config_from_folder(&c, test_tmpdir(), &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(c.n_eos, 2);
  test_write("generation_config.json", "{", 1);
  assert_int_equal(config_from_folder(&c, test_tmpdir(), &e), -1);
  assert_non_null(strstr(e.msg, "generation_config.json: line 1"));
}

/* Every byte of the JSON changed, every truncation: an answer or a sentence. */
static void no_mutation_crashes(void **s) {
  (void)s;
  size_t n = sizeof resaved_scale - 1;
  char *text = malloc(n);
  int opened = 0, refused = 0;
  for (size_t i = 0; i < n; i++) {
    static const char values[] = "0\"-,}\xff";
    for (size_t v = 0; v < sizeof values; v++) {
      memcpy(text, resaved_scale, n);
      text[i] = values[v];
      struct model_config c;
      struct err e = {0};
      if (config_from_json(&c, text, n, text, n, "config.json", &e) == 0) opened++;
      else refused++, assert_true(e.msg[0] != 0);
    }
    struct model_config c;
    struct err e = {0};
    assert_int_equal(config_from_json(&c, resaved_scale, i, NULL, 0, "config.json", &e), -1);
  }
  print_message("%d mutations accepted, %d refused\n", opened, refused);
  assert_true(opened > 100 && refused > 1000);
  free(text);
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(tiny_fixture),
    cmocka_unit_test(both_spellings_are_one_record),
    cmocka_unit_test(gguf_gives_the_same),
    cmocka_unit_test(class_defaults),
    cmocka_unit_test(the_27b),
    cmocka_unit_test(ends_of_generation),
    cmocka_unit_test(tied_or_not),
    cmocka_unit_test(names_what_it_runs),
    cmocka_unit_test(refuses),
    cmocka_unit_test(gguf_keys),
    cmocka_unit_test(gguf_refuses),
    cmocka_unit_test(gguf_architectures),
    cmocka_unit_test(folders),
    cmocka_unit_test(no_mutation_crashes),
};
TEST_MAIN(tests)
