/* t_config4.c — Gemma 4's record: the released sizes from both formats, both spellings, what absent keys mean, donors, refusals. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
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
static void from_file(struct model_config *c, const char *fixture, const char *name) {
  char path[120];
  snprintf(path, sizeof path, "golden/%s/%s", fixture, name);
  char *text = test_read(test_path(path), NULL);
  must(c, text, NULL);
  free(text);
}
static void gguf_file(struct model_config *c, const char *fixture, const char *name) {
  char path[120];
  struct map m;
  struct gguf g;
  struct err e = {0};
  snprintf(path, sizeof path, "golden/%s/%s", fixture, name);
  assert_int_equal(map_open(&m, test_path(path), &e), 0);
  assert_int_equal(gguf_open(&g, &m, &e), 0);
  if (config_from_gguf(c, &g, &e) != 0) fail_msg("%s", e.msg);
  gguf_close(&g);
  map_close(&m);
}
/* All but the names, which the formats cannot share. */
static void assert_same(struct model_config a, const struct model_config *other) {
  struct model_config same = *other, *b = &same;
  /* a GGUF says nothing of encoders, which lie in files of their own */
  a.vision = b->vision = (struct vision_config){0};
  a.audio = b->audio = (struct audio_config){0};
  for (int i = 0; i < 7; i++) (&a.image_id)[i] = (&b->image_id)[i] = -1;
  memcpy(a.name, b->name, sizeof a.name);
  memcpy(a.architecture, b->architecture, sizeof a.architecture);
  for (int l = 0; l < b->n_layers; l++)
    if (memcmp(&a.layers[l], &b->layers[l], sizeof a.layers[l]) != 0)
      fail_msg("layer %d: kv %d %d, width %d %d, ffn %d %d, donor %d %d, v_from_k %d %d", l, a.layers[l].n_kv, b->layers[l].n_kv,
               a.layers[l].head_dim, b->layers[l].head_dim, a.layers[l].ffn, b->layers[l].ffn, a.layers[l].kv_donor, b->layers[l].kv_donor,
               a.layers[l].v_from_k, b->layers[l].v_from_k);
  assert_memory_equal(&a, b, sizeof a);
}

/* --- fixtures ------------------------------------------------------------------------------------------------------------------ */

static void fixtures_in_all_forms(void **s) {
  (void)s;
  static const char *const names[] = {"gemma4-e-tiny", "gemma4-moe-tiny", "gemma4-dense-tiny", "gemma4-12b-tiny"};
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    struct model_config a, b;
    from_file(&a, names[i], "config.json");
    assert_int_equal(a.family, FAMILY_GEMMA4);
    from_file(&b, names[i], "config.resaved.json");
    assert_same(a, &b);
    if (i == 3) continue;
    gguf_file(&b, names[i], "model-bf16.gguf");
    assert_string_equal(b.name, names[i]);
    assert_same(a, &b);
    gguf_file(&b, names[i], "model-q8_0.gguf"); /* without the redundant keys, experts in two tensors */
    assert_same(a, &b);
  }
}

static void fields_of_the_e_fixture(void **s) {
  (void)s;
  struct model_config c;
  from_file(&c, "gemma4-e-tiny", "config.json");
  assert_int_equal(c.vocab, 300);
  assert_int_equal(c.n_layers, 10);
  assert_int_equal(c.window_tokens, 9);
  assert_int_equal(c.ple, 32);
  assert_int_equal(c.ple_vocab, 300);
  assert_int_equal(c.n_experts, 0);
  assert_true(c.attn_scale == 1 && c.embed_scale == 8 && c.final_softcap == 30 && !c.norm_plus_one && c.tied_head);
  assert_true(c.rope_full.theta == 1e6 && c.rope_full.rotated == 0.25 && c.rope_full.factor == 1);
  assert_true(c.rope_sliding.theta == 1e4 && c.rope_sliding.rotated == 1);
  for (int l = 0; l < 10; l++) {
    const struct layer_config *y = &c.layers[l];
    bool full = l == 4 || l == 9;
    assert_int_equal(y->kind, full ? LAYER_FULL : LAYER_SLIDING);
    assert_int_equal(y->head_dim, full ? 32 : 16);
    assert_int_equal(y->ffn, l < 5 ? 64 : 128);
    assert_int_equal(y->kv_donor, l < 5 ? l : full ? 4 : 3);
    assert_false(y->v_from_k);
  }
  from_file(&c, "gemma4-moe-tiny", "config.json");
  assert_int_equal(c.n_experts, 8);
  assert_int_equal(c.n_experts_used, 2);
  assert_int_equal(c.expert_ffn, 32);
  assert_int_equal(c.ple, 0);
  assert_int_equal(c.ple_vocab, 0);
  assert_true(c.layers[5].v_from_k && !c.layers[4].v_from_k && c.layers[5].n_kv == 1 && c.layers[4].n_kv == 2);
}

/* --- the released sizes -------------------------------------------------------------------------------------------------------- */

struct released {
  const char *name;
  int hidden, n_layers, period, ffn, n_q, n_kv, n_kv_full /* 0: null */, n_shared, window, ple, experts, ctx;
  bool k_eq_v, doubled, unified;
};
static const struct released sizes[] = {
    {"E2B", 1536, 35, 5, 6144, 8, 1, 0, 20, 512, 256, 0, 131072, false, true, false},
    {"E4B", 2560, 42, 6, 10240, 8, 2, 0, 18, 512, 256, 0, 131072, false, false, false},
    {"12B", 3840, 48, 6, 15360, 16, 8, 1, 0, 1024, 0, 0, 262144, true, false, true},
    {"26B-A4B", 2816, 30, 6, 2112, 16, 8, 2, 0, 1024, 0, 128, 262144, true, false, false},
    {"31B", 5376, 60, 6, 21504, 32, 16, 4, 0, 1024, 0, 0, 262144, true, false, false},
};

enum form { AS_RELEASED, RESAVED, TEXT_ONLY, FORMS };

/* config.json of a size. RESAVED: per_layer_config for the global keys, what is off left out in the unified form; TEXT_ONLY: not nested. */
static char *config_text(const struct released *r, enum form form) {
  struct buf b;
  buf_init(&b, 0);
  const char *kind = r->unified ? "gemma4_unified" : "gemma4";
  if (form != TEXT_ONLY)
    buf_printf(&b, "{\"model_type\":\"%s\",\"architectures\":[\"x\"],\"eos_token_id\":[1,106],\"vision_config\":{},\"text_config\":", kind);
  buf_printf(
      &b,
      "{\"model_type\":\"%s_text\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"intermediate_size\":%d,\"num_attention_heads\":%d,"
      "\"num_key_value_heads\":%d,\"head_dim\":256,\"attention_k_eq_v\":%s,\"num_kv_shared_layers\":%d,\"sliding_window\":%d,"
      "\"use_double_wide_mlp\":%s,\"max_position_embeddings\":%d,\"final_logit_softcapping\":30.0,\"vocab_size\":262144,"
      "\"query_pre_attn_scalar\":256,\"attn_logit_softcapping\":50.0,\"sliding_window_pattern\":3,\"use_second_mlp_block\":true,"
      "\"use_bidirectional_attention\":%s,\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"
      "\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000.0,\"partial_rotary_factor\":0.25}},\"layer_types\":[",
      kind, r->hidden, r->n_layers, r->ffn, r->n_q, r->n_kv, r->k_eq_v ? "true" : "false", r->n_shared, r->window,
      r->doubled ? "true" : "false", r->ctx, r->k_eq_v ? "\"vision\"" : "null");
  for (int l = 0; l < r->n_layers; l++) buf_printf(&b, "%s\"%s_attention\"", l ? "," : "", (l + 1) % r->period ? "sliding" : "full");
  buf_printf(&b, "]");
  if (form == RESAVED) {
    buf_printf(&b, ",\"per_layer_config\":{");
    for (int l = r->period - 1; l < r->n_layers; l += r->period) {
      buf_printf(&b, "%s\"%02d\":{\"head_dim\":512", l >= r->period ? "," : "", l);
      if (r->n_kv_full) buf_printf(&b, ",\"num_key_value_heads\":%d", r->n_kv_full);
      buf_printf(&b, "}");
    }
    buf_printf(&b, "}");
  } else {
    buf_printf(&b, ",\"global_head_dim\":512,\"num_global_key_value_heads\":");
    if (r->n_kv_full) buf_printf(&b, "%d", r->n_kv_full);
    else buf_printf(&b, "null");
  }
  if (!r->unified || form == AS_RELEASED)
    buf_printf(&b, ",\"hidden_size_per_layer_input\":%d,\"vocab_size_per_layer_input\":262144,\"enable_moe_block\":%s", r->ple,
               r->experts ? "true" : "false");
  if (r->experts) buf_printf(&b, ",\"num_experts\":%d,\"top_k_experts\":8,\"moe_intermediate_size\":704", r->experts);
  else if (form == AS_RELEASED) buf_printf(&b, ",\"num_experts\":null,\"top_k_experts\":null,\"moe_intermediate_size\":null");
  buf_printf(&b, form == TEXT_ONLY ? "}" : "}}");
  char *text = strdup(buf_cstr(&b));
  buf_free(&b);
  return text;
}

/* Keys of a size as the converter writes them; the tensors that tell something, with no data in the file. */
static void gguf_keys(struct gguf_maker *m, const struct released *r, bool cap, bool suppress) {
  const struct {
    const char *key;
    int v;
  } keys[] = {{"block_count", r->n_layers},
              {"context_length", r->ctx},
              {"embedding_length", r->hidden},
              {"attention.head_count", r->n_q},
              {"attention.key_length", 512},
              {"attention.value_length", 512},
              {"attention.key_length_swa", 256},
              {"attention.value_length_swa", 256},
              {"rope.dimension_count", 512},
              {"rope.dimension_count_swa", 256},
              {"attention.sliding_window", r->window},
              {"attention.shared_kv_layers", r->n_shared},
              {"embedding_length_per_layer_input", r->ple}};
  char key[100];
  gguf_maker_str(m, "general.architecture", "gemma4");
  gguf_maker_str(m, "general.name", r->name);
  for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
    snprintf(key, sizeof key, "gemma4.%s", keys[i].key);
    gguf_maker_u32(m, key, (uint32_t)keys[i].v);
  }
  int32_t ffn[64], kv[64];
  unsigned char pattern[64];
  for (int l = 0; l < r->n_layers; l++) {
    bool full = (l + 1) % r->period == 0;
    pattern[l] = !full;
    ffn[l] = r->doubled && l >= r->n_layers - r->n_shared ? 2 * r->ffn : r->ffn;
    kv[l] = full && r->n_kv_full ? r->n_kv_full : r->n_kv;
  }
  uint64_t n = (uint64_t)r->n_layers;
  if (r->doubled) gguf_maker_array(m, "gemma4.feed_forward_length", GM_I32, ffn, n, 4);
  else gguf_maker_u32(m, "gemma4.feed_forward_length", (uint32_t)r->ffn);
  if (r->n_kv_full) gguf_maker_array(m, "gemma4.attention.head_count_kv", GM_I32, kv, n, 4);
  else gguf_maker_u32(m, "gemma4.attention.head_count_kv", (uint32_t)r->n_kv);
  gguf_maker_array(m, "gemma4.attention.sliding_window_pattern", GM_BOOL, pattern, n, 1);
  gguf_maker_f32(m, "gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
  gguf_maker_f32(m, "gemma4.rope.freq_base", 1e6f);
  gguf_maker_f32(m, "gemma4.rope.freq_base_swa", 1e4f);
  if (cap) gguf_maker_f32(m, "gemma4.final_logit_softcapping", 30);
  if (r->experts) {
    gguf_maker_u32(m, "gemma4.expert_count", (uint32_t)r->experts);
    gguf_maker_u32(m, "gemma4.expert_used_count", 8);
    gguf_maker_u32(m, "gemma4.expert_feed_forward_length", 704);
  }
  unsigned char *types = calloc(262144, 1);
  gguf_maker_array(m, "tokenizer.ggml.tokens", GM_U8, types, 262144, 1);
  free(types);
  gguf_maker_u32(m, "tokenizer.ggml.eos_token_id", 1);
  gguf_maker_u32(m, "tokenizer.ggml.eot_token_id", 106);
  int32_t suppressed[2] = {258883, 258882};
  if (suppress) gguf_maker_array(m, "tokenizer.ggml.suppress_tokens", GM_I32, suppressed, 2, 4);
  float freqs[256];
  for (int i = 0; i < 256; i++) freqs[i] = i < 64 ? 1 : 1e30f;
  gguf_maker_tensor(m, "rope_freqs.weight", GM_F32, 1, (uint64_t[]){256}, freqs, sizeof freqs);
  for (int l = 0; l < r->n_layers - r->n_shared; l++) { /* shapes are weights' affair */
    snprintf(key, sizeof key, "blk.%d.attn_k.weight", l);
    gguf_maker_tensor(m, key, GM_F32, 1, (uint64_t[]){1}, NULL, 4);
    if (r->k_eq_v && (l + 1) % r->period == 0) continue;
    snprintf(key, sizeof key, "blk.%d.attn_v.weight", l);
    gguf_maker_tensor(m, key, GM_F32, 1, (uint64_t[]){1}, NULL, 4);
  }
}

static int from_maker(struct model_config *c, struct gguf_maker *m, struct err *e) {
  size_t n;
  unsigned char *file = gguf_maker_finish(m, &n);
  struct map map = {.data = file, .n_bytes = n, .path = (char *)(uintptr_t) "m.gguf"};
  struct gguf g;
  memset(e, 0, sizeof *e);
  int result = -1;
  if (gguf_open(&g, &map, e) == 0) result = config_from_gguf(c, &g, e);
  gguf_close(&g);
  free(file);
  return result;
}

static void released_sizes(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
    const struct released *r = &sizes[i];
    static const char generation[] = "{\"eos_token_id\":[1,106,50],\"suppress_tokens\":[258883,258882]}";
    struct model_config c, other;
    char *text = config_text(r, AS_RELEASED);
    must(&c, text, generation);
    free(text);
    assert_int_equal(c.n_layers, r->n_layers);
    assert_int_equal(c.ple, r->ple);
    assert_int_equal(c.ple_vocab, r->ple ? 262144 : 0);
    assert_int_equal(c.n_experts, r->experts);
    assert_int_equal(c.ctx_tokens, r->ctx);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.n_suppressed, 2);
    assert_int_equal(c.suppressed[1], 258882);
    assert_true(c.final_softcap == 30 && c.attn_scale == 1 && c.embed_scale == (float)sqrt(r->hidden));
    int n_own = 0, first = r->n_layers - r->n_shared;
    for (int l = 0; l < r->n_layers; l++) {
      const struct layer_config *y = &c.layers[l];
      bool full = (l + 1) % r->period == 0;
      assert_int_equal(y->kind, full ? LAYER_FULL : LAYER_SLIDING);
      assert_int_equal(y->head_dim, full ? 512 : 256);
      assert_int_equal(y->n_kv, full && r->n_kv_full ? r->n_kv_full : r->n_kv);
      assert_int_equal(y->n_q, r->n_q);
      assert_int_equal(y->v_from_k, full && r->k_eq_v);
      n_own += y->kv_donor == l;
      if (l >= first) assert_int_equal(y->kv_donor, full ? first - 1 : first - 2); /* of these two; others have other donors */
    }
    assert_int_equal(n_own, first);
    assert_int_equal(c.layers[r->n_layers - 1].ffn, r->doubled ? 2 * r->ffn : r->ffn);
    assert_int_equal(c.layers[0].ffn, r->ffn);
    for (int form = RESAVED; form < FORMS; form++) {
      text = config_text(r, (enum form)form);
      must(&other, text, generation);
      free(text);
      assert_same(c, &other);
    }
    for (int cap = 0; cap < 2; cap++) { /* an absent cap is 30 */
      struct gguf_maker m;
      struct err e;
      gguf_maker_init(&m);
      gguf_keys(&m, r, cap, true);
      if (from_maker(&other, &m, &e) != 0) fail_msg("%s", e.msg);
      assert_string_equal(other.name, r->name);
      assert_same(c, &other);
    }
    text = config_text(r, AS_RELEASED);
    must(&other, text, NULL); /* ids come with the vocabulary */
    free(text);
    assert_int_equal(other.n_eos, 3);
    assert_int_equal(other.eos[2], 50);
    assert_int_equal(other.n_suppressed, 0);
  }
}

/* --- what absent keys mean ------------------------------------------------------------------------------------------------------ */

static void class_defaults(void **s) {
  (void)s;
  struct model_config c;
  must(&c, "{\"model_type\":\"gemma4_text\"}", NULL);
  assert_int_equal(c.vocab, 262144);
  assert_int_equal(c.hidden, 2304);
  assert_int_equal(c.n_layers, 30);
  assert_int_equal(c.window_tokens, 512);
  assert_int_equal(c.ctx_tokens, 131072);
  assert_int_equal(c.ple, 256);
  assert_int_equal(c.n_experts, 0);
  assert_true(c.final_softcap == 0 && c.rope_full.rotated == 0.25 && c.rope_full.theta == 1e6);
  assert_int_equal(c.layers[5].kind, LAYER_FULL);
  assert_int_equal(c.layers[5].head_dim, 512);
  assert_int_equal(c.layers[5].n_kv, 4);
  assert_int_equal(c.layers[4].head_dim, 256);
  must(&c, "{\"model_type\":\"gemma4_unified_text\"}", NULL);
  assert_int_equal(c.window_tokens, 1024);
  assert_int_equal(c.ctx_tokens, 262144);
  assert_int_equal(c.ple, 0);
  must(&c, "{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma4_unified_text\"}}", NULL);
  assert_int_equal(c.ple, 0);
  /* more key heads on full layers count with attention_k_eq_v only */
  must(&c, "{\"model_type\":\"gemma4_text\",\"num_global_key_value_heads\":2}", NULL);
  assert_int_equal(c.layers[5].n_kv, 4);
  must(&c, "{\"model_type\":\"gemma4_text\",\"num_global_key_value_heads\":2,\"attention_k_eq_v\":true}", NULL);
  assert_int_equal(c.layers[5].n_kv, 2);
  assert_true(c.layers[5].v_from_k && !c.layers[4].v_from_k);
  /* numbers of experts without the switch mean nothing */
  must(&c, "{\"model_type\":\"gemma4_text\",\"num_experts\":8}", NULL);
  assert_int_equal(c.n_experts, 0);
}

#define G4     "{\"model_type\":\"gemma4_text\","
#define S      "\"sliding_attention\""
#define F      "\"full_attention\""
#define KINDS3 "\"num_hidden_layers\":3,\"layer_types\":[" S "," S "," S "]"

static void last_layer_is_full(void **s) {
  (void)s;
  struct model_config c;
  log_set_level(LOG_ERROR);
  must(&c, G4 KINDS3 "}", NULL);
  log_set_level(LOG_WARN);
  assert_int_equal(c.layers[1].kind, LAYER_SLIDING);
  assert_int_equal(c.layers[2].kind, LAYER_FULL);
  assert_int_equal(c.layers[2].head_dim, 512);
  must(&c, G4 "\"num_hidden_layers\":4}", NULL); /* by the period, none would be */
  assert_int_equal(c.layers[3].kind, LAYER_FULL);
  must(&c, G4 "\"num_hidden_layers\":1}", NULL);
  assert_int_equal(c.window_tokens, 0);
}

/* Donors by the rule, however far they are; never first - 1 and first - 2. */
static void donors(void **s) {
  (void)s;
  struct model_config c;
  must(&c, G4 "\"num_hidden_layers\":12,\"num_kv_shared_layers\":4}", NULL); /* sliding 7, full 5 */
  for (int l = 8; l < 12; l++) assert_int_equal(c.layers[l].kv_donor, l == 11 ? 5 : 7);
  must(&c, G4 "\"num_hidden_layers\":5,\"layer_types\":[" F "," S "," S "," F "," F "],\"num_kv_shared_layers\":2}", NULL);
  assert_int_equal(c.layers[3].kv_donor, 0);
  assert_int_equal(c.layers[4].kv_donor, 0);
  uint64_t rng = 5;
  for (int round = 0; round < 500; round++) {
    int n = test_rand_int(&rng, 1, 20), shared = test_rand_int(&rng, 0, n);
    bool full[20], possible = shared < n;
    struct buf b;
    struct err e;
    buf_init(&b, 0);
    buf_printf(&b, G4 "\"use_double_wide_mlp\":true,\"num_hidden_layers\":%d,\"num_kv_shared_layers\":%d,\"layer_types\":[", n, shared);
    for (int l = 0; l < n; l++) {
      full[l] = l == n - 1 || test_rand_int(&rng, 0, 3) == 0;
      buf_printf(&b, "%s%s", l ? "," : "", full[l] ? F : S);
    }
    buf_printf(&b, "]}");
    int donor[20];
    for (int l = 0; l < n; l++) {
      donor[l] = l;
      if (l < n - shared) continue;
      donor[l] = -1;
      for (int k = 0; k < n - shared; k++)
        if (full[k] == full[l]) donor[l] = k;
      possible &= donor[l] >= 0;
    }
    int result = from_text(&c, buf_cstr(&b), NULL, &e);
    assert_int_equal(result, possible ? 0 : -1);
    for (int l = 0; l < n && possible; l++) {
      assert_int_equal(c.layers[l].kv_donor, donor[l]);
      assert_int_equal(c.layers[l].ffn, donor[l] == l ? 9216 : 18432);
    }
    buf_free(&b);
  }
}

static void ropes(void **s) {
  (void)s;
  struct model_config c;
  must(&c,
       G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.5,\"factor\":2.0},"
          "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500.0}}}",
       NULL);
  assert_true(c.rope_full.rotated == 0.5 && c.rope_full.factor == 2 && c.rope_full.theta == 1e6);
  assert_true(c.rope_sliding.rotated == 1 && c.rope_sliding.factor == 4 && c.rope_sliding.theta == 500);
  must(&c, G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\"}}}", NULL);
  assert_true(c.rope_full.rotated == 1 && c.rope_sliding.theta == 1e4);
  must(&c, G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"factor\":8.0}}}", NULL);
  assert_true(c.rope_full.rotated == 1 && c.rope_full.factor == 1);
}

/* E4B's and the 12B's, whose configuration promises clusters that its file has not. */
static void drafters(void **s) {
  (void)s;
  struct model_config c;
  must(&c,
       "{\"model_type\":\"gemma4_assistant\",\"backbone_hidden_size\":2560,\"use_ordered_embeddings\":true,\"num_centroids\":2048,"
       "\"centroid_intermediate_top_k\":32,\"text_config\":{\"model_type\":\"gemma4_text\",\"hidden_size\":256,\"num_hidden_layers\":4,"
       "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":2048,\"num_kv_shared_layers\":4,"
       "\"hidden_size_per_layer_input\":0,\"layer_types\":[" S "," S "," S "," F "]}}",
       NULL);
  assert_int_equal(c.backbone_hidden, 2560);
  assert_int_equal(c.hidden, 256);
  assert_int_equal(c.vocab, 262144);
  assert_int_equal(c.n_centroids, 2048);
  assert_int_equal(c.n_centroids_used, 32);
  assert_int_equal(c.window_tokens, 512);
  assert_int_equal(c.ple, 0);
  assert_true(c.final_softcap == 0 && c.attn_scale == 1 && c.tied_head);
  for (int l = 0; l < 4; l++) {
    const struct layer_config *y = &c.layers[l];
    assert_int_equal(y->kv_donor, -1);
    assert_int_equal(y->head_dim, l == 3 ? 512 : 256);
    assert_true(y->n_q == 4 && y->n_kv == 2 && y->ffn == 2048 && !y->v_from_k && (y->kind == LAYER_FULL) == (l == 3));
  }
  must(&c,
       "{\"model_type\":\"gemma4_unified_assistant\",\"backbone_hidden_size\":3840,\"num_centroids\":2048,\"text_config\":{"
       "\"model_type\":\"gemma4_unified_text\",\"hidden_size\":1024,\"num_hidden_layers\":4,\"num_attention_heads\":16,"
       "\"num_key_value_heads\":8,\"num_global_key_value_heads\":1,\"attention_k_eq_v\":true,\"intermediate_size\":8192,"
       "\"layer_types\":[" S "," S "," S "," F "]}}",
       NULL);
  assert_int_equal(c.backbone_hidden, 3840);
  assert_int_equal(c.n_centroids, 0);
  assert_int_equal(c.window_tokens, 1024);
  assert_true(c.layers[0].n_kv == 8 && c.layers[3].n_kv == 1 && c.layers[3].kv_donor == -1 && !c.layers[3].v_from_k);
}

static void refuses(void **s) {
  (void)s;
  static const struct {
    const char *text, *says;
  } bad[] = {
      {"{\"model_type\":\"gemma4_assistant\",\"backbone_hidden_size\":0}", "backbone_hidden_size: expected an integer from 1 to 65536"},
      {"{\"model_type\":\"gemma4_assistant\",\"text_config\":{\"num_hidden_layers\":4,\"num_kv_shared_layers\":3}}",
       "expected all 4 layers of a drafter to read its target's keys and values, found 3"},
      {"{\"model_type\":\"gemma4_assistant\",\"text_config\":{\"hidden_size_per_layer_input\":8}}",
       "text_config: expected a drafter without per-layer embeddings"},
      {"{\"model_type\":\"gemma4_assistant\",\"use_ordered_embeddings\":true,\"num_centroids\":2000}",
       "expected clusters of the same size, found 2000 for 262144 tokens"},
      {"{\"model_type\":\"gemma4_assistant\",\"use_ordered_embeddings\":true,\"centroid_intermediate_top_k\":2049}",
       "expected 1 to 2048 of the 2048 clusters to be looked into for a token, found 2049"},
      {"{\"model_type\":\"diffusion_gemma\"}", "it writes whole blocks by diffusion"},
      {"{\"model_type\":\"embedding_gemma2\"}", "it makes embeddings, not text"},
      {"{\"model_type\":\"gemma4\",\"text_config\":{\"model_type\":\"gemma3_text\"}}", "config.json: text_config: model_type: expected"},
      {"{\"model_type\":\"gemma4\",\"text_config\":{\"hidden_size\":\"big\"}}", "text_config.hidden_size: expected an integer"},
      {G4 "\"hidden_size\":65537}", "hidden_size"},
      {G4 "\"num_hidden_layers\":257}", "num_hidden_layers"},
      {G4 "\"num_attention_heads\":6}", "layer 0: expected the number of query heads to be a multiple"},
      {G4 "\"num_global_key_value_heads\":3,\"attention_k_eq_v\":true}", "layer 5: expected the number of query heads"},
      {G4 "\"global_head_dim\":1025}", "global_head_dim"},
      {G4 "\"global_head_dim\":255}", "layer 5: expected an even width of heads, found 255"},
      {G4 "\"intermediate_size\":524289}", "intermediate_size"},
      {G4 "\"layer_types\":[" F "]}", "layer_types: expected 30 entries, found 1"},
      {G4 "\"num_hidden_layers\":1,\"layer_types\":[\"chunked\"]}", "layer_types[0]: expected"},
      {G4 "\"num_hidden_layers\":2,\"num_kv_shared_layers\":3}",
       "config.json: expected at most all 2 layers to share keys and values, found 3"},
      {G4 "\"num_hidden_layers\":4,\"num_kv_shared_layers\":4}",
       "expected a layer with keys and values of its own; all 4 read another model's"},
      {G4 "\"num_hidden_layers\":6,\"num_kv_shared_layers\":1}",
       "layer 5 shares keys and values, but none of the 5 layers that have their own is full"},
      {G4 "\"num_hidden_layers\":3,\"layer_types\":[" F "," S "," F "],\"num_kv_shared_layers\":2}",
       "layer 1 shares keys and values, but none of the 1 layers that have their own is sliding"},
      {G4 "\"hidden_size_per_layer_input\":-1}", "hidden_size_per_layer_input"},
      {G4 "\"vocab_size_per_layer_input\":1000}", "expected per-layer embeddings of all 262144 tokens, found 1000"},
      {G4 "\"enable_moe_block\":true}", "num_experts: expected this key, it is missing"},
      {G4 "\"enable_moe_block\":true,\"num_experts\":8}", "top_k_experts: expected this key"},
      {G4 "\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2}", "moe_intermediate_size: expected this key"},
      {G4 "\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":9,\"moe_intermediate_size\":4}",
       "expected 1 to 8 of the 8 experts to be used for a token, found 9"},
      {G4 "\"enable_moe_block\":true,\"num_experts\":1025,\"top_k_experts\":9,\"moe_intermediate_size\":4}", "num_experts"},
      {G4 "\"enable_moe_block\":1}", "enable_moe_block"},
      {G4 "\"attention_k_eq_v\":\"yes\"}", "attention_k_eq_v"},
      {G4 "\"per_layer_config\":[]}", "per_layer_config"},
      {G4 "\"per_layer_config\":{\"x\":{}}}", "config.json: per_layer_config.x: expected the number of a layer from 0 to 29"},
      {G4 "\"per_layer_config\":{\"30\":{}}}", "per_layer_config.30: expected the number of a layer from 0 to 29"},
      {G4 "\"per_layer_config\":{\"5\":4}}", "per_layer_config.5: expected an object"},
      {G4 "\"per_layer_config\":{\"5\":{\"head_dim\":0}}}", "per_layer_config.5.head_dim: expected an integer from 2 to 1024"},
      {G4 "\"per_layer_config\":{\"5\":{\"num_attention_heads\":4}}}",
       "per_layer_config.5: expected head_dim and num_key_value_heads, found num_attention_heads"},
      {G4 "\"per_layer_config\":{\"11\":{\"head_dim\":64}},\"num_hidden_layers\":12,\"num_kv_shared_layers\":1}",
       "layer 11 reads the keys and values of layer 5: expected as many heads of the same width, found 4 of 64 and 4 of 256"},
      {G4 "\"rope_parameters\":{\"rope_theta\":5.0}}", "rope_parameters: expected full_attention"},
      {G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\"}}}", "rope_parameters.full_attention.rope_type: expected"},
      {G4 "\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25}}}", "full_attention.partial_rotary_factor"},
      {G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\"}}}", "factor: expected this key beside rope_type"},
      {G4 "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":1.5}}}",
       "partial_rotary_factor"},
      {G4 "\"attention_bias\":true}", "attention_bias: expected it to be off"},
      {G4 "\"use_bidirectional_attention\":\"all\"}", "use_bidirectional_attention: expected null or \"vision\", found \"all\""},
      {G4 "\"hidden_activation\":\"silu\"}", "hidden_activation"},
      {G4 "\"quantization\":{\"bits\":4}}", "quantised safetensors"},
      {G4 "\"final_logit_softcapping\":-1}", "final_logit_softcapping"},
      {G4 "\"rms_norm_eps\":0}", "rms_norm_eps"},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct model_config c;
    struct err e;
    if (from_text(&c, bad[i].text, NULL, &e) == 0) fail_msg("%s: accepted", bad[i].text);
    if (memcmp(e.msg, "config.json: ", 13) != 0 || !strstr(e.msg, bad[i].says)) fail_msg("%s: says \"%s\"", bad[i].text, e.msg);
    if (e.code != ERR_BAD_FILE && e.code != ERR_UNSUPPORTED) fail_msg("%s: code %s", bad[i].text, err_code_name(e.code));
  }
  static const char *const generations[][2] = {
      {"{\"suppress_tokens\":[262144]}", "generation_config.json: suppress_tokens[0]: expected an id from 0 to 262143"},
      {"{\"suppress_tokens\":[1,2.5]}", "suppress_tokens[1]"},
      {"{\"suppress_tokens\":5}", "suppress_tokens"},
      {"{\"suppress_tokens\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", "suppress_tokens: expected at most 16 ids, found 17"}};
  for (size_t i = 0; i < ARRAY_LEN(generations); i++) {
    struct model_config c;
    struct err e;
    if (from_text(&c, G4 "\"ple\":0}", generations[i][0], &e) == 0) fail_msg("%s: accepted", generations[i][0]);
    if (!strstr(e.msg, generations[i][1])) fail_msg("%s: says \"%s\"", generations[i][0], e.msg);
  }
}

/* --- GGUF ----------------------------------------------------------------------------------------------------------------------- */

static void freqs(struct gguf_maker *m, uint64_t n, const float *x) { gguf_maker_tensor(m, "rope_freqs.weight", GM_F32, 1, &n, x, 4 * n); }

/* The smallest model, its widths 16 and 8, `skip` left out, and something more. */
static int tiny_gguf(struct model_config *c, const char *skip, void (*more)(struct gguf_maker *), struct err *e) {
  struct gguf_maker m;
  gguf_maker_init(&m);
  static const struct {
    const char *key;
    uint32_t v;
  } keys[] = {{"block_count", 4},
              {"context_length", 64},
              {"embedding_length", 8},
              {"attention.head_count", 4},
              {"attention.key_length", 16},
              {"attention.key_length_swa", 8},
              {"attention.sliding_window", 5},
              {"attention.sliding_window_pattern", 2},
              {"feed_forward_length", 6},
              {"attention.head_count_kv", 2}};
  gguf_maker_str(&m, "general.architecture", "gemma4");
  for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
    char key[100];
    snprintf(key, sizeof key, "gemma4.%s", keys[i].key);
    if (!skip || strcmp(keys[i].key, skip) != 0) gguf_maker_u32(&m, key, keys[i].v);
  }
  gguf_maker_tensor(&m, "token_embd.weight", GM_F32, 2, (uint64_t[]){8, 5}, NULL, 160);
  if (more) more(&m);
  return from_maker(c, &m, e);
}

static void half(struct gguf_maker *m) { freqs(m, 8, (float[]){2, 2, 2, 2, 1e30f, 1e30f, 1e30f, 1e30f}); }
static void whole(struct gguf_maker *m) { freqs(m, 8, (float[]){1, 1, 1, 1, 1, 1, 1, 1}); }
static void fused(struct gguf_maker *m) { gguf_maker_tensor(m, "blk.1.attn_qkv.weight", GM_F32, 2, (uint64_t[]){8, 64}, NULL, 2048); }
static void only_keys(struct gguf_maker *m) { gguf_maker_tensor(m, "blk.0.attn_k.weight", GM_F32, 2, (uint64_t[]){8, 16}, NULL, 512); }
static void no_cap(struct gguf_maker *m) { gguf_maker_f32(m, "gemma4.final_logit_softcapping", 0); }
static void shared(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.attention.shared_kv_layers", 2); }
static void per_layer(struct gguf_maker *m) {
  gguf_maker_u32(m, "gemma4.embedding_length_per_layer_input", 2);
  gguf_maker_tensor(m, "per_layer_token_embd.weight", GM_F32, 2, (uint64_t[]){8, 7}, NULL, 224);
}

static void gguf_meaning(void **s) {
  (void)s;
  struct model_config c;
  struct err e;
  if (tiny_gguf(&c, NULL, NULL, &e) != 0) fail_msg("%s", e.msg);
  assert_int_equal(c.layers[0].kind, LAYER_SLIDING);
  assert_int_equal(c.layers[3].kind, LAYER_FULL);
  assert_int_equal(c.layers[3].head_dim, 16);
  assert_int_equal(c.layers[2].head_dim, 8);
  assert_true(c.final_softcap == 30 && c.rope_full.rotated == 0.25 && c.rope_full.factor == 1 && !c.layers[0].v_from_k);
  assert_int_equal(c.n_eos, 1);
  assert_int_equal(tiny_gguf(&c, "attention.key_length_swa", NULL, &e), 0);
  assert_int_equal(c.layers[2].head_dim, 16);
  assert_int_equal(tiny_gguf(&c, NULL, half, &e), 0);
  assert_true(c.rope_full.rotated == 0.5 && c.rope_full.factor == 2);
  assert_int_equal(tiny_gguf(&c, NULL, whole, &e), 0);
  assert_true(c.rope_full.rotated == 1 && c.rope_full.factor == 1);
  assert_int_equal(tiny_gguf(&c, NULL, fused, &e), 0);
  assert_false(c.layers[1].v_from_k);
  assert_int_equal(tiny_gguf(&c, NULL, only_keys, &e), 0);
  assert_true(c.layers[0].v_from_k && !c.layers[1].v_from_k);
  assert_int_equal(tiny_gguf(&c, NULL, no_cap, &e), 0);
  assert_true(c.final_softcap == 0);
  assert_int_equal(tiny_gguf(&c, NULL, shared, &e), 0);
  assert_int_equal(c.layers[2].kv_donor, 0);
  assert_int_equal(c.layers[3].kv_donor, 1);
  assert_int_equal(tiny_gguf(&c, NULL, per_layer, &e), 0);
  assert_int_equal(c.ple, 2);
  assert_int_equal(c.ple_vocab, 7);
}

static void bad_shared(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.attention.shared_kv_layers", 5); }
static void bad_all(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.attention.shared_kv_layers", 4); }
static void bad_only(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.attention.shared_kv_layers", 3); }
static void bad_value(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.attention.value_length_swa", 16); }
static void bad_rope(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.rope.dimension_count", 4); }
static void bad_scaling(struct gguf_maker *m) { gguf_maker_str(m, "gemma4.rope.scaling.type", "linear"); }
static void bad_experts(struct gguf_maker *m) { gguf_maker_u32(m, "gemma4.expert_count", 4); }
static void bad_used(struct gguf_maker *m) {
  gguf_maker_u32(m, "gemma4.expert_count", 4);
  gguf_maker_u32(m, "gemma4.expert_used_count", 5);
  gguf_maker_u32(m, "gemma4.expert_feed_forward_length", 5);
}
static void bad_suppressed(struct gguf_maker *m) { gguf_maker_array(m, "tokenizer.ggml.suppress_tokens", GM_I32, (int32_t[]){5}, 1, 4); }
static void bad_suppressed_type(struct gguf_maker *m) { gguf_maker_f32(m, "tokenizer.ggml.suppress_tokens", 1); }
static void bad_freqs_order(struct gguf_maker *m) { freqs(m, 8, (float[]){1, 1, 1e30f, 1, 1, 1, 1, 1}); }
static void bad_freqs_half(struct gguf_maker *m) { freqs(m, 8, (float[]){1, 1, INFINITY, NAN, 1, 1, 1, 1}); }
static void bad_freqs_zero(struct gguf_maker *m) { freqs(m, 8, (float[]){0, 0, 0, 0, 0, 0, 0, 0}); }
static void bad_freqs_length(struct gguf_maker *m) { freqs(m, 4, (float[]){1, 1, 1, 1}); }
static void bad_per_layer(struct gguf_maker *m) {
  gguf_maker_u32(m, "gemma4.embedding_length_per_layer_input", 2);
  gguf_maker_tensor(m, "per_layer_token_embd.weight", GM_F32, 2, (uint64_t[]){8, 4}, NULL, 128);
}

static void gguf_refuses(void **s) {
  (void)s;
  static const struct {
    const char *skip;
    void (*more)(struct gguf_maker *);
    const char *says;
  } bad[] = {{"block_count", NULL, "key gemma4.block_count: expected this key, it is missing"},
             {"attention.key_length", NULL, "key gemma4.attention.key_length: expected this key"},
             {"attention.sliding_window", NULL, "key gemma4.attention.sliding_window"},
             {"attention.sliding_window_pattern", NULL, "key gemma4.attention.sliding_window_pattern: expected this key"},
             {"feed_forward_length", NULL, "key gemma4.feed_forward_length"},
             {NULL, bad_shared, "m.gguf: expected at most all 4 layers to share keys and values, found 5"},
             {NULL, bad_all, "expected a layer with keys and values of its own; all 4 read another model's"},
             {NULL, bad_only, "m.gguf: layer 1 shares keys and values, but none of the 1 layers that have their own is full"},
             {NULL, bad_value, "key gemma4.attention.value_length_swa: expected the same width as of keys"},
             {NULL, bad_rope, "key gemma4.rope.dimension_count: expected the whole width of a head"},
             {NULL, bad_scaling, "key gemma4.rope.scaling.type: expected \"none\""},
             {NULL, bad_experts, "key gemma4.expert_used_count: expected this key"},
             {NULL, bad_used, "expected 1 to 4 of the 4 experts"},
             {NULL, bad_suppressed, "key tokenizer.ggml.suppress_tokens: expected ids from 0 to 4, file has 5"},
             {NULL, bad_suppressed_type, "key tokenizer.ggml.suppress_tokens: expected at most 16 integers, file has 1 of type float32"},
             {NULL, bad_freqs_order, "tensor rope_freqs.weight: expected equal factors and then 1e30"},
             {NULL, bad_freqs_half, "tensor rope_freqs.weight: expected equal factors and then 1e30"},
             {NULL, bad_freqs_zero, "tensor rope_freqs.weight: expected equal factors and then 1e30"},
             {NULL, bad_freqs_length, "tensor rope_freqs.weight: expected F32 [8], file has F32 of 1 dimensions, the last of 4"},
             {NULL, bad_per_layer, "expected per-layer embeddings of all 5 tokens, found 4"}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct model_config c;
    struct err e;
    if (tiny_gguf(&c, bad[i].skip, bad[i].more, &e) == 0) fail_msg("accepted: %s", bad[i].says);
    if (memcmp(e.msg, "m.gguf: ", 8) != 0 || !strstr(e.msg, bad[i].says)) fail_msg("says \"%s\" and not \"%s\"", e.msg, bad[i].says);
  }
  static const char *const others[][2] = {
      {"gemma4-assistant", "key gemma4-assistant.embedding_length_out: expected this key, it is missing"},
      {"diffusion-gemma", "by diffusion"},
      {"gemma-embedding", "it makes embeddings, not text"}};
  for (size_t i = 0; i < ARRAY_LEN(others); i++) {
    struct gguf_maker m;
    struct model_config c;
    struct err e;
    gguf_maker_init(&m);
    gguf_maker_str(&m, "general.architecture", others[i][0]);
    assert_int_equal(from_maker(&c, &m, &e), -1);
    if (!strstr(e.msg, others[i][1])) fail_msg("says \"%s\"", e.msg);
  }
}

/* Every byte of a resaved config changed, every truncation: an answer or a sentence. */
static void no_mutation_crashes(void **s) {
  (void)s;
  char *source = config_text(&(struct released){"m", 64, 6, 3, 64, 4, 2, 1, 2, 4, 16, 8, 64, true, true, false}, RESAVED);
  size_t n = strlen(source);
  char *text = malloc(n);
  int opened = 0, refused = 0;
  log_set_level(LOG_ERROR);
  for (size_t i = 0; i < n; i++) {
    static const char values[] = "0\"-,}\xff";
    for (size_t v = 0; v < sizeof values; v++) {
      memcpy(text, source, n);
      text[i] = values[v];
      struct model_config c;
      struct err e = {0};
      if (config_from_json(&c, text, n, text, n, "config.json", &e) == 0) opened++;
      else refused++, assert_true(e.msg[0] != 0);
    }
    struct model_config c;
    struct err e = {0};
    assert_int_equal(config_from_json(&c, source, i, NULL, 0, "config.json", &e), -1);
  }
  log_set_level(LOG_WARN);
  print_message("%d mutations accepted, %d refused\n", opened, refused);
  assert_true(opened > 100 && refused > 1000);
  free(text);
  free(source);
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(fixtures_in_all_forms),
    cmocka_unit_test(fields_of_the_e_fixture),
    cmocka_unit_test(released_sizes),
    cmocka_unit_test(class_defaults),
    cmocka_unit_test(last_layer_is_full),
    cmocka_unit_test(donors),
    cmocka_unit_test(ropes),
    cmocka_unit_test(drafters),
    cmocka_unit_test(refuses),
    cmocka_unit_test(gguf_meaning),
    cmocka_unit_test(gguf_refuses),
    cmocka_unit_test(no_mutation_crashes),
};
TEST_MAIN(tests)
