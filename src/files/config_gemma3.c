/* config_gemma3.c — Gemma 3 text, 270M to 27B: its keys in both spellings, and what it means when they are absent.
 *
 * config.json comes in an old spelling (rope_theta, rope_local_base_freq, rope_scaling, sliding_window_pattern) and a new one
 * (rope_parameters per kind of layer, layer_types); multimodal checkpoints nest the keys in text_config and leave most of them to
 * the defaults of the class. Linear rope scaling concerns full layers only.
 */
#include <stdio.h>
#include <string.h>

#include "files/config_read.h"

/* Defaults of the text class. */
enum {
  VOCAB = 262208,
  HIDDEN = 2304,
  FFN = 9216,
  LAYERS = 26,
  HEADS = 8,
  KV_HEADS = 4,
  HEAD_DIM = 256,
  QUERY_SCALAR = 256,
  WINDOW = 4096,
  CONTEXT = 131072,
  PERIOD = 6,
  PAD = 0,
  EOS = 1,
  BOS = 2
};
static const double EPS = 1e-6, THETA_FULL = 1e6, THETA_SLIDING = 1e4;

/* Ids of the released vocabulary, which has this many entries, or more with the picture tokens. */
enum { RELEASED_VOCAB = 262144, END_OF_TEXT = 1, END_OF_TURN = 106 };

/* What follows from the rest, in either format. */
static void derive(struct model_config *c) {
  c->embed_scale = (float)sqrt((double)c->hidden);
  c->rope_full.rotated = c->rope_sliding.rotated = 1;
  bool slides = false;
  for (int l = 0; l < c->n_layers; l++) {
    c->layers[l].kv_donor = l;
    slides |= c->layers[l].kind == LAYER_SLIDING;
  }
  if (!slides) c->window_tokens = 0;
  /* Chat models end a turn with 106; many files name only 1. */
  if (c->vocab >= RELEASED_VOCAB) {
    config_add_eos(c, END_OF_TEXT);
    config_add_eos(c, END_OF_TURN);
  }
}

/* --- config.json -------------------------------------------------------------------------------------------------------- */

static int json_layer_kinds(struct model_config *c, const struct config_json *s, struct err *e) {
  int given = config_json_layer_types(c, s, e);
  if (given) return given < 0 ? -1 : 0;
  int period = PERIOD;
  if (config_json_int(s, "sliding_window_pattern", 1, CONFIG_LAYERS_MAX, PERIOD, &period, e) != 0) return -1;
  /* how newer files keep the period when layer_types is left out */
  if (config_json_int(s, "_sliding_window_pattern", 1, CONFIG_LAYERS_MAX, period, &period, e) != 0) return -1;
  for (int l = 0; l < c->n_layers; l++) c->layers[l].kind = config_kind_by_period(l, period);
  return 0;
}

/* {"rope_type" or "type": "default" | "linear", "factor": 8.0, "rope_theta": 1e6}; what is absent stays. */
static int json_rope(struct rope_config *r, const json_t *o, const char *where, struct err *e) {
  const char *type = NULL;
  if (json_get_string(o, "type", &type, NULL, where, e) < 0 || json_get_string(o, "rope_type", &type, NULL, where, e) < 0) return -1;
  if (json_get_float(o, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, &r->theta, where, e) < 0) return -1;
  double rotated = 1;
  if (json_get_float(o, "partial_rotary_factor", 1, 1, &rotated, where, e) < 0) return -1;
  if (!type || !strcmp(type, "default")) return 0;
  if (strcmp(type, "linear") != 0) {
    char text[60];
    return err_set(e, ERR_UNSUPPORTED, "%s.rope_type: expected \"default\" or \"linear\", found \"%s\"", where,
                   str_escape(str_c(type), text, sizeof text));
  }
  int found = json_get_float(o, "factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, &r->factor, where, e);
  if (found == 0) return err_set(e, ERR_BAD_FILE, "%s.factor: expected this key beside rope_type \"linear\", it is missing", where);
  return found < 0 ? -1 : 0;
}

static int json_ropes(struct model_config *c, const struct config_json *s, struct err *e) {
  c->rope_full.factor = c->rope_sliding.factor = 1;
  if (config_json_float(s, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_FULL, &c->rope_full.theta, e) != 0 ||
      config_json_float(s, "rope_local_base_freq", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_SLIDING, &c->rope_sliding.theta, e) != 0)
    return -1;
  const json_t *both = NULL, *one = NULL;
  char where[300];
  int given = json_get_object(s->text, "rope_parameters", &both, s->where_text, e);
  if (given < 0) return -1;
  snprintf(where, sizeof where, "%.240s%srope_parameters", s->where_text, strstr(s->where_text, ": ") ? "." : ": ");
  const struct {
    const char *key;
    struct rope_config *r;
  } kinds[] = {{"full_attention", &c->rope_full}, {"sliding_attention", &c->rope_sliding}};
  for (size_t i = 0; i < ARRAY_LEN(kinds) && given; i++) {
    int found = json_get_object(both, kinds[i].key, &one, where, e);
    char where_one[340];
    snprintf(where_one, sizeof where_one, "%s.%s", where, kinds[i].key);
    if (found < 0 || (found && json_rope(kinds[i].r, one, where_one, e) != 0)) return -1;
  }
  if (given && json_object_size(both) && !json_object_get(both, "full_attention") && !json_object_get(both, "sliding_attention"))
    return err_set(e, ERR_UNSUPPORTED, "%s: expected full_attention and sliding_attention, found neither", where);
  /* the old spelling; where both are given it wins, as in the reference */
  int scaled = json_get_object(s->text, "rope_scaling", &one, s->where_text, e);
  snprintf(where, sizeof where, "%.240s%srope_scaling", s->where_text, strstr(s->where_text, ": ") ? "." : ": ");
  if (scaled < 0 || (scaled && json_rope(&c->rope_full, one, where, e) != 0)) return -1;
  return 0;
}

/* Keys that change the arithmetic and that this build does not know. */
static int json_refusals(const struct config_json *s, struct err *e) {
  if (config_json_not_quantised(s, e) != 0 || config_json_must_be_off(s, "attention_bias", e) != 0 ||
      config_json_must_be_off(s, "attn_logit_softcapping", e) != 0 || config_json_must_be_off(s, "use_bidirectional_attention", e) != 0)
    return -1;
  return config_json_must_be(s, "hidden_activation", "gelu_pytorch_tanh", e);
}

int config_gemma3_from_json(struct model_config *c, const struct config_json *s, struct err *e) {
  int n_q, n_kv, head_dim, ffn;
  double eps, scalar, cap;
  c->tied_head = true;
  if (json_refusals(s, e) != 0 || config_json_int(s, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, LAYERS, &c->n_layers, e) != 0 ||
      config_json_int(s, "vocab_size", 1, CONFIG_VOCAB_MAX, VOCAB, &c->vocab, e) != 0 ||
      config_json_int(s, "hidden_size", 1, CONFIG_HIDDEN_MAX, HIDDEN, &c->hidden, e) != 0 ||
      config_json_int(s, "max_position_embeddings", 1, CONFIG_TOKENS_MAX, CONTEXT, &c->ctx_tokens, e) != 0 ||
      config_json_int(s, "sliding_window", 1, CONFIG_TOKENS_MAX, WINDOW, &c->window_tokens, e) != 0 ||
      config_json_int(s, "num_attention_heads", 1, CONFIG_HEADS_MAX, HEADS, &n_q, e) != 0 ||
      config_json_int(s, "num_key_value_heads", 1, CONFIG_HEADS_MAX, KV_HEADS, &n_kv, e) != 0 ||
      config_json_int(s, "head_dim", 2, CONFIG_HEAD_DIM_MAX, HEAD_DIM, &head_dim, e) != 0 ||
      config_json_int(s, "intermediate_size", 1, CONFIG_FFN_MAX, FFN, &ffn, e) != 0 ||
      config_json_float(s, "rms_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_json_float(s, "query_pre_attn_scalar", 1e-3, 1e9, QUERY_SCALAR, &scalar, e) != 0 ||
      config_json_float(s, "final_logit_softcapping", 0, CONFIG_CAP_MAX, 0, &cap, e) != 0 ||
      json_get_bool(s->text, "tie_word_embeddings", &c->tied_head, s->where_text, e) < 0 ||
      json_get_bool(s->top, "tie_word_embeddings", &c->tied_head, s->where_top, e) < 0 || json_layer_kinds(c, s, e) != 0 ||
      json_ropes(c, s, e) != 0 || config_json_ids(c, s, BOS, PAD, EOS, e) != 0)
    return -1;
  for (int l = 0; l < c->n_layers; l++) {
    c->layers[l].n_q = n_q;
    c->layers[l].n_kv = n_kv;
    c->layers[l].head_dim = head_dim;
    c->layers[l].ffn = ffn;
  }
  c->norm_eps = (float)eps;
  c->norm_plus_one = true;
  c->attn_scale = (float)(1 / sqrt(scalar));
  c->final_softcap = (float)cap;
  derive(c);
  return 0;
}

/* --- GGUF --------------------------------------------------------------------------------------------------------------- */

static int gguf_ropes(struct model_config *c, const struct config_gguf *s, struct err *e) {
  c->rope_full.factor = c->rope_sliding.factor = 1;
  if (config_gguf_float(s, "rope.freq_base", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_FULL, &c->rope_full.theta, e) != 0 ||
      config_gguf_float(s, "rope.local.freq_base", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA_SLIDING, &c->rope_sliding.theta, e) != 0 ||
      config_gguf_float(s, "rope.freq_base_swa", CONFIG_THETA_MIN, CONFIG_THETA_MAX, c->rope_sliding.theta, &c->rope_sliding.theta, e) != 0)
    return -1;
  struct str type = str_c("linear");
  if (config_gguf_text(s, "rope.scaling.type", &type, e) < 0) return -1;
  if (str_is(type, "none")) return 0;
  if (!str_is(type, "linear")) return config_gguf_refuse(s, "rope.scaling.type", ERR_UNSUPPORTED, "expected \"none\" or \"linear\"", e);
  double older = 1; /* rope.scale_linear is the same key in old files */
  if (config_gguf_float(s, "rope.scale_linear", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, 1, &older, e) != 0) return -1;
  return config_gguf_float(s, "rope.scaling.factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, older, &c->rope_full.factor, e);
}

static int gguf_layers(struct model_config *c, const struct config_gguf *s, struct err *e) {
  for (int l = 0; l < c->n_layers; l++) {
    struct layer_config *y = &c->layers[l];
    int value_dim = 0, rotated = 0;
    if (config_gguf_layer_int(s, "attention.head_count", l, c->n_layers, 1, CONFIG_HEADS_MAX, CONFIG_REQUIRED_INT, &y->n_q, e) != 0 ||
        config_gguf_layer_int(s, "attention.head_count_kv", l, c->n_layers, 1, CONFIG_HEADS_MAX, y->n_q, &y->n_kv, e) != 0 ||
        config_gguf_layer_int(s, "feed_forward_length", l, c->n_layers, 1, CONFIG_FFN_MAX, CONFIG_REQUIRED_INT, &y->ffn, e) != 0 ||
        config_gguf_int(s, "attention.key_length", 2, CONFIG_HEAD_DIM_MAX, c->hidden / y->n_q, &y->head_dim, e) != 0 ||
        config_gguf_int(s, "attention.value_length", 2, CONFIG_HEAD_DIM_MAX, y->head_dim, &value_dim, e) != 0 ||
        config_gguf_int(s, "rope.dimension_count", 0, CONFIG_HEAD_DIM_MAX, y->head_dim, &rotated, e) != 0)
      return -1;
    if (value_dim != y->head_dim)
      return config_gguf_refuse(s, "attention.value_length", ERR_UNSUPPORTED, "expected it to equal attention.key_length", e);
    if (rotated != y->head_dim)
      return config_gguf_refuse(s, "rope.dimension_count", ERR_UNSUPPORTED, "expected it to equal attention.key_length", e);
  }
  return 0;
}

int config_gemma3_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e) {
  double eps, cap, score_cap;
  if (config_gguf_int(s, "block_count", 1, CONFIG_LAYERS_MAX, CONFIG_REQUIRED_INT, &c->n_layers, e) != 0 ||
      config_gguf_int(s, "embedding_length", 1, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &c->hidden, e) != 0 ||
      config_gguf_int(s, "context_length", 1, CONFIG_TOKENS_MAX, CONFIG_REQUIRED_INT, &c->ctx_tokens, e) != 0 ||
      config_gguf_int(s, "attention.sliding_window", 1, CONFIG_TOKENS_MAX, CONFIG_REQUIRED_INT, &c->window_tokens, e) != 0 ||
      config_gguf_float(s, "attention.layer_norm_rms_epsilon", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_gguf_float(s, "final_logit_softcapping", 0, CONFIG_CAP_MAX, 0, &cap, e) != 0 ||
      config_gguf_float(s, "attn_logit_softcapping", 0, CONFIG_CAP_MAX, 0, &score_cap, e) != 0 || config_gguf_vocab(c, s, e) != 0 ||
      config_gguf_layer_kinds(c, s, PERIOD, e) != 0 || gguf_ropes(c, s, e) != 0 || gguf_layers(c, s, e) != 0 ||
      config_gguf_ids(c, s, BOS, PAD, EOS, e) != 0)
    return -1;
  if (score_cap > 0)
    return config_gguf_refuse(s, "attn_logit_softcapping", ERR_UNSUPPORTED, "expected it to be off, this build cannot do it", e);
  c->norm_eps = (float)eps;
  c->norm_plus_one = false; /* the converter has added the 1 */
  c->final_softcap = (float)cap;
  /* No key says the scale. 62 layers is the 27B, whose query_pre_attn_scalar is hidden / n_q = 168. */
  const struct layer_config *first = &c->layers[0];
  double scalar = c->n_layers == 62 ? (double)c->hidden / first->n_q : (double)first->head_dim;
  c->attn_scale = (float)(1 / sqrt(scalar));
  derive(c);
  return 0;
}
