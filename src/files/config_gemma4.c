/* config_gemma4.c — Gemma 4 text, E2B to 31B: its keys in both spellings, and what it means when they are absent.
 *
 * config.json names the geometry of full layers either by the `*global*` keys or by per_layer_config, which replaces them. The unified models
 * (12B) leave out what they lack, so there an absent key is off, where others take the default of the class.
 * Key heads of full layers: config.json as the class reads it, num_global_key_value_heads beside attention_k_eq_v only; a GGUF has a number for
 * each layer. All released models give the same by either rule.
 * Drafters (*-assistant): the same keys, all layers without keys and values of their own, and the width of the target beside them.
 * Old keys that the class no longer reads (query_pre_attn_scalar, attn_logit_softcapping, sliding_window_pattern, ...) mean nothing here.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "files/config_read.h"

/* Defaults of the text class. */
enum {
  VOCAB = 262144,
  HIDDEN = 2304,
  FFN = 9216,
  LAYERS = 30,
  HEADS = 8,
  KV_HEADS = 4,
  HEAD_DIM = 256,
  HEAD_DIM_FULL = 512,
  WINDOW = 512,
  WINDOW_UNIFIED = 1024,
  CONTEXT = 131072,
  CONTEXT_UNIFIED = 262144,
  PERIOD = 6,
  PLE = 256,
  PLE_VOCAB = 262144,
  BACKBONE = 1536,
  CENTROIDS = 2048,
  CENTROIDS_USED = 32,
  PAD = 0,
  EOS = 1,
  BOS = 2
};
static const double EPS = 1e-6, THETA_FULL = 1e6, THETA_SLIDING = 1e4, ROTATED_FULL = 0.25, CAP_GGUF = 30;

/* Ids of the released vocabulary, which has this many entries. */
enum { RELEASED_VOCAB = 262144, END_OF_TEXT = 1, END_OF_TURN = 106, TOOL_RESPONSE = 50 };

/* What follows from the rest, in either format. */
static void derive(struct model_config *c) {
  bool slides = false;
  for (int l = 0; l < c->n_layers; l++) slides |= c->layers[l].kind == LAYER_SLIDING;
  if (!slides) c->window_tokens = 0;
  c->embed_scale = (float)sqrt((double)c->hidden);
  c->attn_scale = 1; /* the norms of q and k do it */
  c->norm_plus_one = false;
  /* many files name only some of the three */
  if (c->vocab >= RELEASED_VOCAB) {
    config_add_eos(c, END_OF_TEXT);
    config_add_eos(c, END_OF_TURN);
    config_add_eos(c, TOOL_RESPONSE);
  }
}

static bool is_drafter(const struct model_config *c) { return c->backbone_hidden > 0; }

/* The last n_shared layers read the keys and values of the last layer of their kind before them. */
static int share_keys(struct model_config *c, int n_shared, const char *where, struct err *e) {
  int first = c->n_layers - n_shared;
  if (is_drafter(c)) { /* none is how some say all */
    if (n_shared && first != 0)
      return err_set(e, ERR_BAD_FILE, "%s: expected all %d layers of a drafter to read its target's keys and values, found %d", where,
                     c->n_layers, n_shared);
    for (int l = 0; l < c->n_layers; l++) c->layers[l].kv_donor = -1;
    return 0;
  }
  if (first < 0)
    return err_set(e, ERR_BAD_FILE, "%s: expected at most all %d layers to share keys and values, found %d", where, c->n_layers, n_shared);
  if (first == 0)
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: expected a layer with keys and values of its own; all %d read another model's, as those of a drafter do", where,
                   c->n_layers);
  for (int l = 0; l < c->n_layers; l++) {
    int donor = l;
    if (l >= first)
      for (donor = first - 1; donor >= 0 && c->layers[donor].kind != c->layers[l].kind; donor--) {}
    if (donor < 0)
      return err_set(e, ERR_BAD_FILE, "%s: layer %d shares keys and values, but none of the %d layers that have their own is %s", where, l,
                     first, c->layers[l].kind == LAYER_SLIDING ? "sliding" : "full");
    c->layers[l].kv_donor = donor;
  }
  return 0;
}

/* --- config.json -------------------------------------------------------------------------------------------------------- */

static bool is_unified(const struct model_config *c, const char *text_type) {
  static const char unified[] = "gemma4_unified";
  return str_starts(str_c(c->architecture), unified) || (text_type && str_starts(str_c(text_type), unified));
}

/* Keys that change the arithmetic and that this build does not know. */
static int json_refusals(const struct config_json *s, struct err *e) {
  const char *type = NULL, *bidirectional = NULL;
  char text[60];
  if (json_get_string(s->text, "model_type", &type, NULL, s->where_text, e) < 0) return -1;
  if (type && !str_starts(str_c(type), "gemma4"))
    return err_set(e, ERR_UNSUPPORTED, "%s: model_type: expected \"gemma4_text\" or \"gemma4_unified_text\", found \"%s\"", s->where_text,
                   str_escape(str_c(type), text, sizeof text));
  /* "vision": among the tokens of a picture only. "all" is for encoders. */
  const json_t *mode = json_object_get(s->text, "use_bidirectional_attention");
  if (mode && !json_is_false(mode) && json_get_string(s->text, "use_bidirectional_attention", &bidirectional, NULL, s->where_text, e) < 0)
    return -1;
  if (bidirectional && strcmp(bidirectional, "vision") != 0)
    return err_set(e, ERR_UNSUPPORTED, "%s: use_bidirectional_attention: expected null or \"vision\", found \"%s\"", s->where_text,
                   str_escape(str_c(bidirectional), text, sizeof text));
  if (config_json_not_quantised(s, e) != 0 || config_json_must_be_off(s, "attention_bias", e) != 0) return -1;
  return config_json_must_be(s, "hidden_activation", "gelu_pytorch_tanh", e);
}

static int json_layer_kinds(struct model_config *c, const struct config_json *s, struct err *e) {
  int given = config_json_layer_types(c, s, e);
  if (given < 0) return -1;
  for (int l = 0; l < c->n_layers && !given; l++) c->layers[l].kind = config_kind_by_period(l, PERIOD);
  struct layer_config *last = &c->layers[c->n_layers - 1];
  if (given && last->kind != LAYER_FULL)
    log_line(LOG_WARN, "config", "%s: layer_types: the last layer is a full one in this family, whatever the list says", s->where_text);
  last->kind = LAYER_FULL;
  return 0;
}

/* where + ".key", or "config.json: key" at the top level. */
static const char *json_path(const struct config_json *s, const char *key, char text[300]) {
  snprintf(text, 300, "%.240s%s%s", s->where_text, strstr(s->where_text, ": ") ? "." : ": ", key);
  return text;
}

/* {"rope_type": "default" | "linear" | "proportional", "rope_theta", "factor", "partial_rotary_factor"}; a theta that is absent stays. */
static int json_rope(struct rope_config *r, const json_t *o, const char *where, struct err *e) {
  const char *type = "default";
  double rotated = 1, factor = 1;
  if (json_get_string(o, "rope_type", &type, NULL, where, e) < 0 ||
      json_get_float(o, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, &r->theta, where, e) < 0)
    return -1;
  bool proportional = !strcmp(type, "proportional");
  /* elsewhere a partial rotation has another exponent */
  if (json_get_float(o, "partial_rotary_factor", proportional ? 1e-3 : 1, 1, &rotated, where, e) < 0) return -1;
  if (!proportional && strcmp(type, "linear") != 0 && strcmp(type, "default") != 0) {
    char text[60];
    return err_set(e, ERR_UNSUPPORTED, "%s.rope_type: expected \"default\", \"linear\" or \"proportional\", found \"%s\"", where,
                   str_escape(str_c(type), text, sizeof text));
  }
  if (strcmp(type, "default") != 0) {
    int found = json_get_float(o, "factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, &factor, where, e);
    if (found < 0) return -1;
    if (!found && !proportional)
      return err_set(e, ERR_BAD_FILE, "%s.factor: expected this key beside rope_type \"linear\", it is missing", where);
  }
  r->factor = factor;
  r->rotated = rotated;
  return 0;
}

static int json_ropes(struct model_config *c, const struct config_json *s, struct err *e) {
  c->rope_full = (struct rope_config){THETA_FULL, 1, ROTATED_FULL};
  c->rope_sliding = (struct rope_config){THETA_SLIDING, 1, 1};
  const json_t *both = NULL, *one = NULL;
  char where[300];
  int given = json_get_object(s->text, "rope_parameters", &both, s->where_text, e);
  if (given <= 0) return given;
  json_path(s, "rope_parameters", where);
  const struct {
    const char *key;
    struct rope_config *r;
  } kinds[] = {{"full_attention", &c->rope_full}, {"sliding_attention", &c->rope_sliding}};
  int n_found = 0;
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
    char where_one[340];
    snprintf(where_one, sizeof where_one, "%s.%s", where, kinds[i].key);
    int found = json_get_object(both, kinds[i].key, &one, where, e);
    if (found < 0 || (found && json_rope(kinds[i].r, one, where_one, e) != 0)) return -1;
    n_found += found;
  }
  if (!n_found && json_object_size(both))
    return err_set(e, ERR_UNSUPPORTED, "%s: expected full_attention and sliding_attention, found neither", where);
  return 0;
}

/* per_layer_config: {"5": {"head_dim": 512, "num_key_value_heads": 1}, "11": ...}; also "05". */
static int json_overrides(struct model_config *c, const json_t *all, const char *where, struct err *e) {
  const char *index, *key;
  json_t *one, *value;
  json_object_foreach((json_t *)(uintptr_t)all, index, one) {
    char text[60], where_one[400];
    int64_t l = -1, v;
    snprintf(where_one, sizeof where_one, "%s.%s", where, str_escape(str_c(index), text, sizeof text));
    if (!str_to_i64(str_c(index), 0, c->n_layers - 1, &l))
      return err_set(e, ERR_BAD_FILE, "%s: expected the number of a layer from 0 to %d", where_one, c->n_layers - 1);
    if (!json_is_object(one)) return err_set(e, ERR_BAD_FILE, "%s: expected an object", where_one);
    json_object_foreach(one, key, value) {
      bool heads = !strcmp(key, "num_key_value_heads");
      if (!heads && strcmp(key, "head_dim") != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: expected head_dim and num_key_value_heads, found %s", where_one,
                       str_escape(str_c(key), text, sizeof text));
      int found = json_get_int(one, key, heads ? 1 : 2, heads ? CONFIG_HEADS_MAX : CONFIG_HEAD_DIM_MAX, &v, where_one, e);
      if (found < 0) return -1;
      if (found) *(heads ? &c->layers[l].n_kv : &c->layers[l].head_dim) = (int)v;
    }
  }
  return 0;
}

/* Heads of each layer; needs the kinds and donors. */
static int json_heads(struct model_config *c, const struct config_json *s, struct err *e) {
  int n_q, n_kv, n_kv_full, head_dim, head_dim_full;
  bool v_from_k = false;
  const json_t *overrides = NULL;
  char where[300];
  if (config_json_int(s, "num_attention_heads", 1, CONFIG_HEADS_MAX, HEADS, &n_q, e) != 0 ||
      config_json_int(s, "num_key_value_heads", 1, CONFIG_HEADS_MAX, KV_HEADS, &n_kv, e) != 0 ||
      config_json_int(s, "num_global_key_value_heads", 1, CONFIG_HEADS_MAX, n_kv, &n_kv_full, e) != 0 ||
      config_json_int(s, "head_dim", 2, CONFIG_HEAD_DIM_MAX, HEAD_DIM, &head_dim, e) != 0 ||
      config_json_int(s, "global_head_dim", 2, CONFIG_HEAD_DIM_MAX, HEAD_DIM_FULL, &head_dim_full, e) != 0 ||
      json_get_bool(s->text, "attention_k_eq_v", &v_from_k, s->where_text, e) < 0)
    return -1;
  int overridden = json_get_object(s->text, "per_layer_config", &overrides, s->where_text, e);
  if (overridden < 0) return -1;
  if (!v_from_k) n_kv_full = n_kv;
  for (int l = 0; l < c->n_layers; l++) {
    struct layer_config *y = &c->layers[l];
    bool full = y->kind == LAYER_FULL && !overridden;
    y->n_q = n_q;
    y->n_kv = full ? n_kv_full : n_kv;
    y->head_dim = full ? head_dim_full : head_dim;
    y->v_from_k = v_from_k && y->kind == LAYER_FULL && y->kv_donor == l;
  }
  return overridden ? json_overrides(c, overrides, json_path(s, "per_layer_config", where), e) : 0;
}

static int json_ffn(struct model_config *c, const struct config_json *s, struct err *e) {
  int ffn;
  bool doubled = false, experts = false;
  if (config_json_int(s, "intermediate_size", 1, CONFIG_FFN_MAX / 2, FFN, &ffn, e) != 0 ||
      json_get_bool(s->text, "use_double_wide_mlp", &doubled, s->where_text, e) < 0 ||
      json_get_bool(s->text, "enable_moe_block", &experts, s->where_text, e) < 0)
    return -1;
  for (int l = 0; l < c->n_layers; l++) c->layers[l].ffn = doubled && c->layers[l].kv_donor != l ? 2 * ffn : ffn;
  if (!experts) return 0;
  return config_json_int(s, "num_experts", 1, CONFIG_EXPERTS_MAX, CONFIG_REQUIRED_INT, &c->n_experts, e) != 0 ||
                 config_json_int(s, "top_k_experts", 1, CONFIG_EXPERTS_MAX, CONFIG_REQUIRED_INT, &c->n_experts_used, e) != 0 ||
                 config_json_int(s, "moe_intermediate_size", 1, CONFIG_FFN_MAX, CONFIG_REQUIRED_INT, &c->expert_ffn, e) != 0
             ? -1
             : 0;
}

/* What a drafter never has. */
static int refuse_in_drafter(const struct model_config *c, const char *where, struct err *e) {
  if (!is_drafter(c) || (!c->ple && !c->n_experts)) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: expected a drafter without %s", where, c->ple ? "per-layer embeddings" : "experts");
}

int config_gemma4_from_json(struct model_config *c, const struct config_json *s, struct err *e) {
  double eps, cap;
  int n_shared;
  bool unified = is_unified(c, json_string_value(json_object_get(s->text, "model_type")));
  c->tied_head = true;
  if (json_refusals(s, e) != 0 || config_json_int(s, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, LAYERS, &c->n_layers, e) != 0 ||
      config_json_int(s, "vocab_size", 1, CONFIG_VOCAB_MAX, VOCAB, &c->vocab, e) != 0 ||
      config_json_int(s, "hidden_size", 1, CONFIG_HIDDEN_MAX, HIDDEN, &c->hidden, e) != 0 ||
      config_json_int(s, "max_position_embeddings", 1, CONFIG_TOKENS_MAX, unified ? CONTEXT_UNIFIED : CONTEXT, &c->ctx_tokens, e) != 0 ||
      config_json_int(s, "sliding_window", 1, CONFIG_TOKENS_MAX, unified ? WINDOW_UNIFIED : WINDOW, &c->window_tokens, e) != 0 ||
      config_json_int(s, "num_kv_shared_layers", 0, CONFIG_LAYERS_MAX, 0, &n_shared, e) != 0 ||
      config_json_int(s, "hidden_size_per_layer_input", 0, CONFIG_HIDDEN_MAX, unified || is_drafter(c) ? 0 : PLE, &c->ple, e) != 0 ||
      config_json_int(s, "vocab_size_per_layer_input", 0, CONFIG_VOCAB_MAX, PLE_VOCAB, &c->ple_vocab, e) != 0 ||
      config_json_float(s, "rms_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_json_float(s, "final_logit_softcapping", 0, CONFIG_CAP_MAX, 0, &cap, e) != 0 ||
      json_get_bool(s->text, "tie_word_embeddings", &c->tied_head, s->where_text, e) < 0 ||
      json_get_bool(s->top, "tie_word_embeddings", &c->tied_head, s->where_top, e) < 0 || json_layer_kinds(c, s, e) != 0 ||
      share_keys(c, n_shared, s->where_text, e) != 0 || json_heads(c, s, e) != 0 || json_ffn(c, s, e) != 0 || json_ropes(c, s, e) != 0 ||
      refuse_in_drafter(c, s->where_text, e) != 0 || config_json_ids(c, s, BOS, PAD, EOS, e) != 0 || config_json_suppressed(c, s, e) != 0)
    return -1;
  if (c->ple == 0) c->ple_vocab = 0;
  c->norm_eps = (float)eps;
  c->final_softcap = (float)cap;
  derive(c);
  return 0;
}

int config_gemma4_drafter_from_json(struct model_config *c, const struct config_json *s, struct err *e) {
  int64_t backbone = BACKBONE, n = CENTROIDS, n_used = CENTROIDS_USED;
  bool clustered = false;
  if (json_get_int(s->top, "backbone_hidden_size", 1, CONFIG_HIDDEN_MAX, &backbone, s->where_top, e) < 0 ||
      json_get_bool(s->top, "use_ordered_embeddings", &clustered, s->where_top, e) < 0 ||
      json_get_int(s->top, "num_centroids", 1, CONFIG_VOCAB_MAX, &n, s->where_top, e) < 0 ||
      json_get_int(s->top, "centroid_intermediate_top_k", 1, CONFIG_VOCAB_MAX, &n_used, s->where_top, e) < 0)
    return -1;
  c->backbone_hidden = (int)backbone;
  if (clustered) c->n_centroids = (int)n, c->n_centroids_used = (int)n_used; /* released ones say numbers without having any */
  return config_gemma4_from_json(c, s, e);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------------- */

static bool has_tensor(const struct config_gguf *s, int layer, const char *name) {
  char full[80];
  snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
  return config_gguf_tensor(s, full) != NULL;
}

/* A width of heads: keys, values and rope agree about it. */
static int gguf_head_dim(const struct config_gguf *s, const char *suffix, int64_t dflt, int *head_dim, struct err *e) {
  char key[60], value[60], rope[60];
  int value_dim, rotated;
  snprintf(key, sizeof key, "attention.key_length%s", suffix);
  snprintf(value, sizeof value, "attention.value_length%s", suffix);
  snprintf(rope, sizeof rope, "rope.dimension_count%s", suffix);
  if (config_gguf_int(s, key, 2, CONFIG_HEAD_DIM_MAX, dflt, head_dim, e) != 0 ||
      config_gguf_int(s, value, 2, CONFIG_HEAD_DIM_MAX, *head_dim, &value_dim, e) != 0 ||
      config_gguf_int(s, rope, 2, CONFIG_HEAD_DIM_MAX, *head_dim, &rotated, e) != 0)
    return -1;
  if (value_dim != *head_dim) return config_gguf_refuse(s, value, ERR_UNSUPPORTED, "expected the same width as of keys", e);
  if (rotated != *head_dim) return config_gguf_refuse(s, rope, ERR_UNSUPPORTED, "expected the whole width of a head", e);
  return 0;
}

static int gguf_layers(struct model_config *c, const struct config_gguf *s, struct err *e) {
  int full, sliding;
  if (gguf_head_dim(s, "", CONFIG_REQUIRED_INT, &full, e) != 0 || gguf_head_dim(s, "_swa", full, &sliding, e) != 0) return -1;
  for (int l = 0; l < c->n_layers; l++) {
    struct layer_config *y = &c->layers[l];
    if (config_gguf_layer_int(s, "attention.head_count", l, c->n_layers, 1, CONFIG_HEADS_MAX, CONFIG_REQUIRED_INT, &y->n_q, e) != 0 ||
        config_gguf_layer_int(s, "attention.head_count_kv", l, c->n_layers, 1, CONFIG_HEADS_MAX, y->n_q, &y->n_kv, e) != 0 ||
        config_gguf_layer_int(s, "feed_forward_length", l, c->n_layers, 1, CONFIG_FFN_MAX, CONFIG_REQUIRED_INT, &y->ffn, e) != 0)
      return -1;
    y->head_dim = y->kind == LAYER_FULL ? full : sliding;
    /* no key says it: a layer with keys and without values takes the keys for both */
    y->v_from_k = y->kv_donor == l && has_tensor(s, l, "attn_k") && !has_tensor(s, l, "attn_v");
  }
  return 0;
}

/* rope_freqs.weight divides the angles of full layers: equal numbers for the pairs that rotate, then 1e30. A file without weights has none. */
static int gguf_rotated(struct rope_config *r, const struct config_gguf *s, int head_dim, struct err *e) {
  const struct gguf_tensor *t = config_gguf_tensor(s, "rope_freqs.weight");
  if (!t) return 0;
  char label[200];
  map_label(s->parts[0].map, label);
  if (t->n_dims != 1 || t->dtype != DTYPE_F32 || t->shape[0] != head_dim / 2)
    return err_set(e, ERR_BAD_FILE, "%s: tensor rope_freqs.weight: expected F32 [%d], file has %s of %d dimensions, the last of %lld",
                   label, head_dim / 2, dtype_info(t->dtype)->name, t->n_dims, (long long)t->shape[t->n_dims - 1]);
  float x[CONFIG_HEAD_DIM_MAX / 2];
  memcpy(x, t->data, (size_t)(head_dim / 2) * sizeof *x);
  int n = 1;
  while (n < head_dim / 2 && x[n] == x[0]) n++;
  bool sound = (double)x[0] >= CONFIG_FACTOR_MIN && (double)x[0] <= CONFIG_FACTOR_MAX;
  for (int i = n; i < head_dim / 2; i++) sound = sound && x[i] >= 1e29f; /* an angle that nobody sees */
  if (!sound)
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor rope_freqs.weight: expected equal factors and then 1e30, found something else", label);
  r->factor = (double)x[0];
  r->rotated = (double)n / (head_dim / 2);
  return 0;
}

static int gguf_ropes(struct model_config *c, const struct config_gguf *s, struct err *e) {
  c->rope_full = (struct rope_config){THETA_FULL, 1, ROTATED_FULL};
  c->rope_sliding = (struct rope_config){THETA_SLIDING, 1, 1};
  struct str scaling = str_c("none");
  if (config_gguf_float(s, "rope.freq_base", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_FULL, &c->rope_full.theta, e) != 0 ||
      config_gguf_float(s, "rope.freq_base_swa", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_SLIDING, &c->rope_sliding.theta, e) != 0 ||
      config_gguf_text(s, "rope.scaling.type", &scaling, e) < 0)
    return -1;
  if (!str_is(scaling, "none")) return config_gguf_refuse(s, "rope.scaling.type", ERR_UNSUPPORTED, "expected \"none\"", e);
  for (int l = 0; l < c->n_layers; l++)
    if (c->layers[l].kind == LAYER_FULL) return gguf_rotated(&c->rope_full, s, c->layers[l].head_dim, e);
  return 0;
}

static int gguf_experts(struct model_config *c, const struct config_gguf *s, struct err *e) {
  if (config_gguf_int(s, "expert_count", 0, CONFIG_EXPERTS_MAX, 0, &c->n_experts, e) != 0) return -1;
  if (c->n_experts == 0) return 0;
  return config_gguf_int(s, "expert_used_count", 1, CONFIG_EXPERTS_MAX, CONFIG_REQUIRED_INT, &c->n_experts_used, e) != 0 ||
                 config_gguf_int(s, "expert_feed_forward_length", 1, CONFIG_FFN_MAX, CONFIG_REQUIRED_INT, &c->expert_ffn, e) != 0
             ? -1
             : 0;
}

static int gguf_per_layer(struct model_config *c, const struct config_gguf *s, struct err *e) {
  if (config_gguf_int(s, "embedding_length_per_layer_input", 0, CONFIG_HIDDEN_MAX, 0, &c->ple, e) != 0) return -1;
  if (c->ple == 0) return 0;
  const struct gguf_tensor *t = config_gguf_tensor(s, "per_layer_token_embd.weight");
  c->ple_vocab = c->vocab; /* without weights */
  if (t && t->n_dims == 2) c->ple_vocab = (int)MIN(t->shape[0], (int64_t)CONFIG_VOCAB_MAX);
  return 0;
}

int config_gemma4_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e) {
  double eps, cap;
  int n_shared;
  char label[200];
  map_label(s->parts[0].map, label);
  if (config_gguf_int(s, "block_count", 1, CONFIG_LAYERS_MAX, CONFIG_REQUIRED_INT, &c->n_layers, e) != 0 ||
      config_gguf_int(s, "embedding_length", 1, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &c->hidden, e) != 0 ||
      config_gguf_int(s, "context_length", 1, CONFIG_TOKENS_MAX, CONFIG_REQUIRED_INT, &c->ctx_tokens, e) != 0 ||
      config_gguf_int(s, "attention.sliding_window", 1, CONFIG_TOKENS_MAX, CONFIG_REQUIRED_INT, &c->window_tokens, e) != 0 ||
      config_gguf_int(s, "attention.shared_kv_layers", 0, CONFIG_LAYERS_MAX, 0, &n_shared, e) != 0 ||
      config_gguf_float(s, "attention.layer_norm_rms_epsilon", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_gguf_float(s, "final_logit_softcapping", 0, CONFIG_CAP_MAX, CAP_GGUF, &cap, e) != 0 || config_gguf_vocab(c, s, e) != 0 ||
      config_gguf_layer_kinds(c, s, 0, e) != 0 || share_keys(c, n_shared, label, e) != 0 || gguf_layers(c, s, e) != 0 ||
      gguf_ropes(c, s, e) != 0 || gguf_experts(c, s, e) != 0 || gguf_per_layer(c, s, e) != 0 || refuse_in_drafter(c, label, e) != 0 ||
      config_gguf_ids(c, s, BOS, PAD, EOS, e) != 0 || config_gguf_suppressed(c, s, e) != 0)
    return -1;
  c->norm_eps = (float)eps;
  c->final_softcap = (float)cap;
  derive(c);
  return 0;
}

int config_gemma4_drafter_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e) {
  if (config_gguf_int(s, "embedding_length_out", 1, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &c->backbone_hidden, e) != 0) return -1;
  const struct gguf_tensor *t = config_gguf_tensor(s, "masked_embd_centroids.weight");
  if (t && t->n_dims == 2 && config_gguf_tensor(s, "masked_embd_ordering")) {
    c->n_centroids = (int)MIN(t->shape[0], (int64_t)CONFIG_VOCAB_MAX);
    c->n_centroids_used = MIN(CENTROIDS_USED, c->n_centroids);
  }
  return config_gemma4_from_gguf(c, s, e);
}
