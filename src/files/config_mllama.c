/* config_mllama.c — the text model of Llama 3.2 Vision: its keys, and what it means when they are absent.
 *
 * Layers are counted in the merged order: those in cross_attention_layers read pictures, the others text. The vocabulary has 8 rows more in
 * the embedding than in the head; c->vocab is the head's, and the first row beyond it is the picture's placeholder.
 */
#include <string.h>

#include "files/config_read.h"

enum {
  VOCAB = 128256,
  HIDDEN = 4096,
  FFN = 14336,
  LAYERS = 40,
  HEADS = 32,
  KV_HEADS = 8,
  CONTEXT = 131072,
  BOS = 128000,
  EOS = 128001,
  PAD = 128004
};
static const double EPS = 1e-5, THETA = 500000;
enum { RELEASED_VOCAB = 128256, END_OF_TEXT = 128001, END_OF_MESSAGE = 128008, END_OF_TURN = 128009 };

/* What follows from the rest, in either format. */
static void derive(struct model_config *c) {
  for (int l = 0; l < c->n_layers; l++) c->layers[l].kv_donor = l;
  c->window_tokens = 0;
  c->embed_scale = 1;
  c->attn_scale = (float)(1 / sqrt((double)c->layers[0].head_dim));
  c->rope_full.factor = c->rope_full.rotated = 1;
  c->rope_sliding = c->rope_full;
  if (c->vocab != RELEASED_VOCAB) return;
  config_add_eos(c, END_OF_TEXT);
  config_add_eos(c, END_OF_MESSAGE);
  config_add_eos(c, END_OF_TURN);
}

static int set_layers(struct model_config *c, int n_q, int n_kv, int ffn, const char *where, struct err *e) {
  if (c->hidden % n_q || (c->hidden / n_q) % 2)
    return err_set(e, ERR_BAD_FILE, "%s: expected hidden_size to be an even multiple of the heads, found %d and %d", where, c->hidden, n_q);
  for (int l = 0; l < c->n_layers; l++) {
    struct layer_config *y = &c->layers[l];
    y->n_q = n_q, y->n_kv = n_kv, y->ffn = ffn, y->head_dim = c->hidden / n_q;
  }
  return 0;
}

static int json_cross_layers(struct model_config *c, const struct config_json *s, struct err *e) {
  const json_t *list = NULL;
  int found = json_get_array(s->text, "cross_attention_layers", &list, s->where_text, e);
  for (int l = 3; !found && l < c->n_layers; l += 5) c->layers[l].kind = LAYER_CROSS;
  for (size_t i = 0; found > 0 && i < json_array_size(list); i++) {
    const json_t *l = json_array_get(list, i);
    if (!json_is_integer(l) || json_integer_value(l) < 0 || json_integer_value(l) >= c->n_layers)
      return err_set(e, ERR_BAD_FILE, "%s: cross_attention_layers[%zu]: expected a layer from 0 to %d", s->where_text, i, c->n_layers - 1);
    c->layers[json_integer_value(l)].kind = LAYER_CROSS;
  }
  if (found < 0) return -1;
  for (int l = 0; l < c->n_layers; l++)
    if (c->layers[l].kind != LAYER_CROSS) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: cross_attention_layers: expected a layer that attends to text, all %d attend to pictures",
                 s->where_text, c->n_layers);
}

/* rope_scaling, or rope_parameters of newer files. */
static int json_rope(struct model_config *c, const struct config_json *s, struct err *e) {
  const json_t *o = NULL;
  const char *type = "default";
  int64_t tokens = 8192;
  struct rope_bands bands = {8, 1, 4, 0};
  if (config_json_float(s, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA, &c->rope_full.theta, e) != 0) return -1;
  int found = json_get_object(s->text, "rope_scaling", &o, s->where_text, e);
  if (found == 0) found = json_get_object(s->text, "rope_parameters", &o, s->where_text, e);
  if (found <= 0) return found;
  if (json_get_string(o, "rope_type", &type, NULL, s->where_text, e) < 0 ||
      json_get_float(o, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, &c->rope_full.theta, s->where_text, e) < 0 ||
      json_get_float(o, "factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, &bands.factor, s->where_text, e) < 0 ||
      json_get_float(o, "low_freq_factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, &bands.low, s->where_text, e) < 0 ||
      json_get_float(o, "high_freq_factor", CONFIG_FACTOR_MIN, CONFIG_FACTOR_MAX, &bands.high, s->where_text, e) < 0 ||
      json_get_int(o, "original_max_position_embeddings", 1, CONFIG_TOKENS_MAX, &tokens, s->where_text, e) < 0)
    return -1;
  if (!strcmp(type, "default")) return 0;
  char text[60];
  if (strcmp(type, "llama3") != 0)
    return err_set(e, ERR_UNSUPPORTED, "%s: rope_type: expected \"default\" or \"llama3\", found \"%s\"", s->where_text,
                   str_escape(str_c(type), text, sizeof text));
  if (!(bands.high > bands.low))
    return err_set(e, ERR_BAD_FILE, "%s: expected high_freq_factor above low_freq_factor, found %g and %g", s->where_text, bands.high,
                   bands.low);
  bands.tokens = (int)tokens;
  c->rope_bands = bands;
  return 0;
}

int config_mllama_from_json(struct model_config *c, const struct config_json *s, struct err *e) {
  int n_q, n_kv, ffn;
  double eps;
  c->tied_head = false;
  if (config_json_not_quantised(s, e) != 0 || config_json_must_be(s, "hidden_act", "silu", e) != 0 ||
      config_json_int(s, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, LAYERS, &c->n_layers, e) != 0 ||
      config_json_int(s, "vocab_size", 1, CONFIG_VOCAB_MAX - 8, VOCAB, &c->vocab, e) != 0 ||
      config_json_int(s, "hidden_size", 1, CONFIG_HIDDEN_MAX, HIDDEN, &c->hidden, e) != 0 ||
      config_json_int(s, "max_position_embeddings", 1, CONFIG_TOKENS_MAX, CONTEXT, &c->ctx_tokens, e) != 0 ||
      config_json_int(s, "num_attention_heads", 1, CONFIG_HEADS_MAX, HEADS, &n_q, e) != 0 ||
      config_json_int(s, "num_key_value_heads", 1, CONFIG_HEADS_MAX, KV_HEADS, &n_kv, e) != 0 ||
      config_json_int(s, "intermediate_size", 1, CONFIG_FFN_MAX, FFN, &ffn, e) != 0 ||
      config_json_float(s, "rms_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      json_get_bool(s->text, "tie_word_embeddings", &c->tied_head, s->where_text, e) < 0 ||
      set_layers(c, n_q, n_kv, ffn, s->where_text, e) != 0 || json_cross_layers(c, s, e) != 0 || json_rope(c, s, e) != 0 ||
      config_json_ids(c, s, BOS, PAD, EOS, e) != 0)
    return -1;
  if (c->tied_head) return err_set(e, ERR_UNSUPPORTED, "%s: tie_word_embeddings: expected false", s->where_text);
  c->norm_eps = (float)eps;
  derive(c);
  return 0;
}

/* --- GGUF --------------------------------------------------------------------------------------------------------------- */

static int gguf_cross_layers(struct model_config *c, const struct config_gguf *s, struct err *e) {
  const struct gguf_kv *kv = gguf_find(&s->parts[0], "mllama.attention.cross_attention_layers");
  if (!kv || !kv->is_array || kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64)
    return config_gguf_refuse(s, "attention.cross_attention_layers", ERR_BAD_FILE, "expected a list of layers", e);
  for (uint64_t i = 0; i < kv->n; i++) {
    int64_t l = gguf_kv_int(kv, i);
    if (l < 0 || l >= c->n_layers)
      return config_gguf_refuse(s, "attention.cross_attention_layers", ERR_BAD_FILE, "a layer is out of range", e);
    c->layers[l].kind = LAYER_CROSS;
  }
  return 0;
}

int config_mllama_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e) {
  int n_q, n_kv, ffn;
  double eps;
  char label[200];
  if (config_gguf_int(s, "block_count", 1, CONFIG_LAYERS_MAX, CONFIG_REQUIRED_INT, &c->n_layers, e) != 0 ||
      config_gguf_int(s, "embedding_length", 1, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &c->hidden, e) != 0 ||
      config_gguf_int(s, "context_length", 1, CONFIG_TOKENS_MAX, CONTEXT, &c->ctx_tokens, e) != 0 ||
      config_gguf_int(s, "attention.head_count", 1, CONFIG_HEADS_MAX, CONFIG_REQUIRED_INT, &n_q, e) != 0 ||
      config_gguf_int(s, "attention.head_count_kv", 1, CONFIG_HEADS_MAX, n_q, &n_kv, e) != 0 ||
      config_gguf_int(s, "feed_forward_length", 1, CONFIG_FFN_MAX, CONFIG_REQUIRED_INT, &ffn, e) != 0 ||
      config_gguf_float(s, "attention.layer_norm_rms_epsilon", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_gguf_float(s, "rope.freq_base", CONFIG_THETA_MIN, CONFIG_THETA_MAX, THETA, &c->rope_full.theta, e) != 0 ||
      config_gguf_vocab(c, s, e) != 0)
    return -1;
  const struct gguf_tensor *head = config_gguf_tensor(s, "output.weight"), *embd = config_gguf_tensor(s, "token_embd.weight");
  if (embd && !head)
    return err_set(e, ERR_BAD_FILE, "%s: tensor output.weight: expected this head, the file has no such tensor",
                   map_label(s->parts[0].map, label));
  if (head && head->n_dims == 2 && head->shape[0] < c->vocab) c->vocab = (int)head->shape[0];
  c->tied_head = false;
  c->rope_bands = (struct rope_bands){8, 1, 4, 8192}; /* rope_freqs.weight says the same in files that have it */
  if (set_layers(c, n_q, n_kv, ffn, map_label(s->parts[0].map, label), e) != 0 || gguf_cross_layers(c, s, e) != 0 ||
      config_gguf_ids(c, s, BOS, PAD, EOS, e) != 0)
    return -1;
  c->norm_eps = (float)eps;
  derive(c);
  return 0;
}
