/* t_config_media.c — encoders as config.json, processor files and mmprojs describe them, and the names of their tensors. */
#include <stdio.h>
#include <string.h>

#include "files/weights.h"
#include "gguf_maker.h"
#include "test.h"

static const char *const fixtures[] = {"media-gemma3",     "media-gemma4-e2b", "media-gemma4-31b", "media-gemma4-26b",
                                       "media-gemma4-12b", "media-mllama",     "media-mllama-long"};

static struct weights *open_fixture(const char *name, struct model_config *c) {
  char path[200];
  struct err e = {0};
  snprintf(path, sizeof path, "golden/%s", name);
  struct weights *w = weights_open(test_path(path), c, &e);
  if (!w) fail_msg("%s: %s", name, e.msg);
  return w;
}

/* Every tensor of every fixture has a place; nothing is skipped but what is part of an encoder. */
static void every_tensor_has_a_name(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
    struct model_config c;
    struct weights *w = open_fixture(fixtures[i], &c);
    size_t n_media = 0;
    for (size_t t = 0; t < weights_count(w); t++) {
      struct weight_entry y = weights_at(w, t);
      if (!y.gguf_name && !y.skipped) fail_msg("%s: %s has no name", fixtures[i], y.name);
      if (!y.gguf_name) fail_msg("%s: %s is passed over", fixtures[i], y.name);
      n_media += y.media;
      assert_true(!y.media || y.skipped);
    }
    assert_true(n_media > 5 && n_media < weights_count(w));
    weights_close(w);
  }
}

static void geometry(void **s) {
  (void)s;
  struct model_config c;
  weights_close(open_fixture("media-gemma3", &c));
  assert_int_equal(c.vision.kind, VISION_SIGLIP);
  assert_true(c.vision.hidden == 24 && c.vision.ffn == 40 && c.vision.n_layers == 2 && c.vision.n_heads == 3 && c.vision.head_dim == 8);
  assert_true(c.vision.image == 24 && c.vision.patch == 4 && c.vision.pool == 2 && c.vision.soft_tokens == 9 && c.vision.n_positions == 36);
  assert_true(c.image_id == 272 && c.boi == 270 && c.eoi == 271 && c.video_id == -1 && c.audio_id == -1);
  assert_true(c.both_ways_full && c.both_ways_sliding && c.audio.kind == AUDIO_NONE && c.vision.mean[1] == 0.5f);

  weights_close(open_fixture("media-gemma4-e2b", &c));
  assert_int_equal(c.vision.kind, VISION_GEMMA4);
  assert_true(c.vision.clipped && !c.vision.standardize && c.vision.soft_tokens == 70 && c.vision.n_positions == 256 &&
              c.vision.head_dim == 16);
  assert_true(c.vision.patch == 4 && c.vision.pool == 3 && c.vision.rope_theta == 100 && c.vision.mean[0] == 0 && c.vision.std[2] == 1);
  assert_int_equal(c.audio.kind, AUDIO_GEMMA4);
  assert_true(c.audio.hidden == 32 && c.audio.n_layers == 2 && c.audio.channels[0] == 128 && c.audio.channels[1] == 4 &&
              c.audio.n_relative == 5);
  assert_true(c.audio.keys_left == 4 && c.audio.logit_cap == 5 && c.audio.out_dim == 24 && c.audio.conv_taps == 5 && c.audio.clipped);
  assert_true(c.image_id == 280 && c.audio_id == 281 && c.video_id == 284 && c.boa == 271 && c.eoa == 283);
  assert_true(!c.both_ways_full && !c.both_ways_sliding);

  weights_close(open_fixture("media-gemma4-31b", &c));
  assert_true(c.vision.kind == VISION_GEMMA4 && c.vision.standardize && !c.vision.clipped && c.vision.head_dim == 12 &&
              c.audio.kind == AUDIO_NONE);
  assert_true(!c.both_ways_full && c.both_ways_sliding && c.audio_id == -1);

  weights_close(open_fixture("media-gemma4-12b", &c));
  assert_true(c.vision.kind == VISION_GEMMA4_BLOCKS && c.vision.hidden == 28 && c.vision.n_positions == 80);
  assert_true(c.audio.kind == AUDIO_GEMMA4_FRAMES && c.audio.hidden == 640);

  weights_close(open_fixture("media-mllama", &c));
  assert_true(c.family == FAMILY_MLLAMA && config_has_cross(&c) && c.vision.kind == VISION_MLLAMA && c.vision.image == 28 &&
              c.vision.n_tiles == 4);
  assert_true(c.vision.n_states == 2 && c.vision.states[1] == 3 && c.vision.out_dim == 72 && c.vision.n_ratios == 8 &&
              c.vision.n_global_layers == 2);
  assert_true(c.vision.ratios[1][0] == 1 && c.vision.ratios[1][1] == 2 && c.vision.n_positions == 5 && c.vision.mean[0] == 0.48145466f);
  assert_true(c.vocab == 128 && c.image_id == 128 && c.layers[1].kind == LAYER_CROSS && c.layers[0].kind == LAYER_FULL &&
              c.layers[4].kind == LAYER_CROSS);
  assert_true(c.rope_bands.factor == 8 && c.rope_bands.tokens == 64 && c.rope_full.theta == 500000 && c.layers[0].head_dim == 12 &&
              c.n_eos == 3);
}

/* The converter's file says the same as config.json, as far as it can, and has the same tensors. */
static void mmproj_is_the_same(void **s) {
  (void)s;
  static const char *const with[] = {"media-gemma3", "media-gemma4-e2b", "media-gemma4-12b"};
  for (size_t i = 0; i < ARRAY_LEN(with); i++) {
    struct model_config own, c;
    struct weights *w = open_fixture(with[i], &own);
    char path[200];
    struct err e = {0};
    snprintf(path, sizeof path, "golden/%s/mmproj.gguf", with[i]);
    c = own;
    struct weights *m = weights_open_mmproj(test_path(path), &c, &e);
    assert_null(m); /* the folder has its encoders itself */
    assert_non_null(strstr(e.msg, "leave --mmproj out"));
    c.vision = (struct vision_config){0};
    c.audio = (struct audio_config){0};
    m = weights_open_mmproj(test_path(path), &c, &e);
    if (!m) fail_msg("%s: %s", with[i], e.msg);
    c.vision.soft_tokens = own.vision.soft_tokens; /* a processor's business, and not in the file: */
    c.audio.n_relative = own.audio.n_relative, c.audio.keys_left = own.audio.keys_left, c.audio.logit_cap = own.audio.logit_cap;
    assert_true(c.vision.kind == own.vision.kind && c.audio.kind == own.audio.kind);
    if (c.vision.kind == VISION_GEMMA4_BLOCKS) c.vision.head_dim = c.vision.n_heads = 0, c.vision.rope_theta = own.vision.rope_theta;
    assert_memory_equal(&c.vision, &own.vision, sizeof c.vision);
    assert_memory_equal(&c.audio, &own.audio, sizeof c.audio);
    size_t n = 0, n_own = 0;
    for (size_t t = 0; t < weights_count(w); t++) n_own += weights_at(w, t).media;
    for (size_t t = 0; t < weights_count(m); t++) {
      struct weight_entry y = weights_at(m, t);
      if (!weights_has(w, y.gguf_name)) fail_msg("%s: %s is only in the mmproj", with[i], y.gguf_name);
      n++;
    }
    assert_int_equal(n, n_own);
    weights_close(m);
    weights_close(w);
  }
}

/* Both norms of the convolution have each other's names in a GGUF. */
static void swapped_norms(void **s) {
  (void)s;
  struct model_config c;
  struct weights *w = open_fixture("media-gemma4-e2b", &c);
  struct err e = {0};
  c.vision = (struct vision_config){0};
  c.audio = (struct audio_config){0};
  struct weights *m = weights_open_mmproj(test_path("golden/media-gemma4-e2b/mmproj.gguf"), &c, &e);
  assert_non_null(m);
  static const char *const names[] = {"a.blk.1.norm_conv.weight", "a.blk.1.conv_norm.weight", "a.blk.0.ffn_norm_1.weight",
                                      "v.blk.1.ln2.weight"};
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    float a[32], b[32];
    assert_int_equal(weights_get_vector(w, names[i], 32, a, &e), 0);
    assert_int_equal(weights_get_vector(m, names[i], 32, b, &e), 0);
    assert_memory_equal(a, b, sizeof a);
  }
  weights_close(m);
  weights_close(w);
}

static void says(const char *config, const char *what) {
  struct model_config c;
  struct err e = {0};
  if (config_from_json(&c, config, strlen(config), NULL, 0, "config.json", &e) == 0) fail_msg("%s: accepted", config);
  if (!strstr(e.msg, what)) fail_msg("%s: says \"%s\"", config, e.msg);
}

static void refuses(void **s) {
  (void)s;
  says("{\"model_type\":\"gemma3\",\"vision_config\":{\"patch_size\":0}}", "vision_config.patch_size");
  says("{\"model_type\":\"gemma3\",\"vision_config\":7}", "vision_config");
  says("{\"model_type\":\"gemma3\",\"mm_tokens_per_image\":250,\"vision_config\":{}}", "mm_tokens_per_image to be a square");
  says("{\"model_type\":\"gemma3\",\"vision_config\":{\"num_attention_heads\":7}}", "multiple of the number of heads");
  says("{\"model_type\":\"gemma3\",\"vision_config\":{\"hidden_act\":\"gelu\"}}", "expected \"gelu_pytorch_tanh\"");
  says("{\"model_type\":\"gemma4\",\"vision_config\":{\"head_dim\":6}}", "multiple of 4, found 6");
  says("{\"model_type\":\"gemma4\",\"audio_config\":{\"subsampling_conv_channels\":[1]}}", "two numbers");
  says("{\"model_type\":\"gemma4\",\"audio_config\":{\"attention_context_right\":2}}", "attention_context_right: expected 0");
  says("{\"model_type\":\"mllama\",\"vision_config\":{\"max_num_tiles\":17}}", "max_num_tiles");
  says("{\"model_type\":\"mllama\",\"vision_config\":{\"intermediate_layers_indices\":[33]}}", "intermediate_layers_indices[0]");
  says("{\"model_type\":\"mllama\",\"vision_config\":{\"vision_output_dim\":7}}", "vision_output_dim: expected 7680");
  says("{\"model_type\":\"mllama\",\"vision_config\":{\"supported_aspect_ratios\":[[1,1],[3,2]]}}", "supported_aspect_ratios[1]");
  says("{\"model_type\":\"mllama\",\"text_config\":{\"cross_attention_layers\":[40]}}", "cross_attention_layers[0]");
  says("{\"model_type\":\"mllama\",\"text_config\":{\"tie_word_embeddings\":true}}", "tie_word_embeddings: expected false");
  says("{\"model_type\":\"mllama\",\"text_config\":{\"rope_scaling\":{\"rope_type\":\"yarn\"}}}", "found \"yarn\"");
  says("{\"model_type\":\"mllama\",\"text_config\":{\"num_hidden_layers\":1,\"cross_attention_layers\":[0]}}", "attends to text");
}

/* The released 11B from its keys alone. */
static void released_mllama(void **s) {
  (void)s;
  static const char config[] = "{\"model_type\":\"mllama\",\"text_config\":{},\"vision_config\":{\"image_size\":560}}";
  struct model_config c;
  struct err e = {0};
  if (config_from_json(&c, config, sizeof config - 1, NULL, 0, "config.json", &e) != 0) fail_msg("%s", e.msg);
  int n_cross = 0;
  for (int l = 0; l < c.n_layers; l++) n_cross += c.layers[l].kind == LAYER_CROSS;
  assert_true(c.n_layers == 40 && n_cross == 8 && c.layers[38].kind == LAYER_CROSS && c.vocab == 128256 && c.image_id == 128256);
  assert_true(c.vision.n_positions == 1601 && c.vision.out_dim == 7680 && c.vision.head_dim == 80 && c.n_eos == 3 &&
              c.layers[0].head_dim == 128);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_tensor_has_a_name), cmocka_unit_test(geometry), cmocka_unit_test(mmproj_is_the_same),
    cmocka_unit_test(swapped_norms),           cmocka_unit_test(refuses),  cmocka_unit_test(released_mllama),
};
TEST_MAIN(tests)
