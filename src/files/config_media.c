/* config_media.c — what a model's encoders of pictures and sound are: config.json with its processors' files, and an mmproj's metadata.
 *
 * A key that is absent has the default of the released class. Processors say less than they seem to: what matters here are sizes, budgets,
 * means and deviations; how a picture is resized follows from the family (models/media.h).
 */
#include <stdio.h>
#include <string.h>

#include "files/config_read.h"

enum {
  SIGLIP_HIDDEN = 1152,
  SIGLIP_FFN = 4304,
  SIGLIP_LAYERS = 27,
  SIGLIP_HEADS = 16,
  SIGLIP_PATCH = 14,
  SIGLIP_IMAGE = 896,
  SIGLIP_TOKENS = 256
};
enum {
  GEMMA4_HIDDEN = 768,
  GEMMA4_FFN = 3072,
  GEMMA4_LAYERS = 16,
  GEMMA4_HEADS = 12,
  GEMMA4_HEAD_DIM = 64,
  GEMMA4_PATCH = 16,
  GEMMA4_POOL = 3
};
enum { GEMMA4_POSITIONS = 10240, GEMMA4_TOKENS = 280, BLOCKS_POSITIONS = 1120, BLOCKS_HIDDEN = 3840 };
enum {
  AUDIO_HIDDEN = 1024,
  AUDIO_LAYERS = 12,
  AUDIO_HEADS = 8,
  AUDIO_OUT = 1536,
  AUDIO_MEL = 128,
  AUDIO_TAPS = 5,
  AUDIO_LEFT = 13,
  AUDIO_FRAME = 640
};
enum {
  MLLAMA_HIDDEN = 1280,
  MLLAMA_FFN = 5120,
  MLLAMA_LAYERS = 32,
  MLLAMA_GLOBAL = 8,
  MLLAMA_HEADS = 16,
  MLLAMA_TILE = 448,
  MLLAMA_PATCH = 14,
  MLLAMA_TILES = 4
};
static const double EPS = 1e-6, MLLAMA_EPS = 1e-5, GEMMA4_THETA = 100;
static const float CLIP_MEAN[3] = {0.48145466f, 0.4578275f, 0.40821073f}, CLIP_STD[3] = {0.26862954f, 0.26130258f, 0.27577711f};

/* ---- both formats ------------------------------------------------------------------------------------------------------------ */

void config_media_none(struct model_config *c) {
  memset(&c->vision, 0, sizeof c->vision);
  memset(&c->audio, 0, sizeof c->audio);
  c->image_id = c->video_id = c->audio_id = c->boi = c->eoi = c->boa = c->eoa = -1;
  c->both_ways_full = c->both_ways_sliding = false;
}

static void set_scaling(struct vision_config *v, float mean, float std) {
  for (int i = 0; i < 3; i++) v->mean[i] = mean, v->std[i] = std;
}

/* The ways to lay out up to n_tiles tiles: rows slow. */
static void list_ratios(struct vision_config *v) {
  v->n_ratios = 0;
  for (int high = 1; high <= v->n_tiles; high++)
    for (int wide = 1; high * wide <= v->n_tiles && v->n_ratios < (int)ARRAY_LEN(v->ratios); wide++)
      v->ratios[v->n_ratios][0] = high, v->ratios[v->n_ratios++][1] = wide;
}

/* SIGLIP: patches a side → soft tokens. */
static int set_pool(struct vision_config *v, const char *where, struct err *e) {
  int side = v->patch > 0 ? v->image / v->patch : 0, out = 1;
  while (out * out < v->soft_tokens) out++;
  if (side < 1 || out * out != v->soft_tokens || side % out != 0)
    return err_set(e, ERR_BAD_FILE, "%s: expected mm_tokens_per_image to be a square that divides the %d x %d patches, found %d", where,
                   side, side, v->soft_tokens);
  v->pool = side / out;
  v->n_positions = side * side;
  return 0;
}

static int check_vision(const struct model_config *c, const char *where, struct err *e) {
  const struct vision_config *v = &c->vision;
  if (v->kind == VISION_NONE) return 0;
  bool fixed = v->kind == VISION_SIGLIP || v->kind == VISION_MLLAMA;
  if (fixed && (v->image < v->patch || (v->kind == VISION_MLLAMA && v->image % v->patch)))
    return err_set(e, ERR_BAD_FILE, "%s: expected pictures of whole patches of %d pixels, found %d pixels", where, v->patch, v->image);
  if (v->kind != VISION_GEMMA4_BLOCKS && (v->n_heads < 1 || v->head_dim < 1))
    return err_set(e, ERR_BAD_FILE, "%s: expected hidden_size to be a multiple of the number of heads, found %d and %d", where, v->hidden,
                   v->n_heads);
  if (v->kind == VISION_GEMMA4 && v->head_dim % 4)
    return err_set(e, ERR_BAD_FILE, "%s: expected a width of heads that two rotations share, a multiple of 4, found %d", where,
                   v->head_dim);
  for (int i = 0; i < 3; i++)
    if (!(v->std[i] > 0) || !isfinite(v->mean[i]))
      return err_set(e, ERR_BAD_FILE, "%s: expected image_std above 0, found %g", where, (double)v->std[i]);
  return 0;
}

/* ---- config.json ------------------------------------------------------------------------------------------------------------- */

/* An object beside text_config as a section of its own: 1, 0 when absent or null, -1. */
static int section(const struct config_json *s, const char *key, struct config_json *out, char where[240], struct err *e) {
  const json_t *o = NULL;
  int found = json_get_object(s->top, key, &o, s->where_top, e);
  if (found <= 0) return found;
  snprintf(where, 240, "%.200s: %s", s->where_top, key);
  *out = *s;
  out->text = o;
  out->where_text = where;
  return 1;
}

/* The first of two spellings. */
static int int_or(const struct config_json *s, const char *key, const char *other, int64_t lo, int64_t hi, int64_t dflt, int *out,
                  struct err *e) {
  return config_json_int(s, json_object_get(s->text, key) ? key : other, lo, hi, dflt, out, e);
}

static int json_id(const struct config_json *s, const char *key, const char *other, int32_t dflt, int32_t *id, struct err *e) {
  struct config_json top = *s;
  top.text = s->top;
  top.where_text = s->where_top;
  int v;
  if (int_or(&top, key, other, 0, CONFIG_VOCAB_MAX, dflt, &v, e) != 0) return -1;
  *id = v;
  return 0;
}

/* Three numbers of the picture processor. */
static int json_triple(const struct config_json *s, const char *key, float out[3], struct err *e) {
  const json_t *list = NULL;
  int found = s->image_processor ? json_get_array(s->image_processor, key, &list, s->where_processor, e) : 0;
  if (found <= 0) return found;
  for (size_t i = 0; i < 3; i++) {
    const json_t *v = json_array_get(list, i);
    if (json_array_size(list) != 3 || !json_is_number(v))
      return err_set(e, ERR_BAD_FILE, "%s: %s: expected three numbers", s->where_processor, key);
    out[i] = (float)json_number_value(v);
  }
  return 0;
}

/* A number of the picture processor, if there is one. */
static int json_processor_int(const struct config_json *s, const char *key, int64_t lo, int64_t hi, int *out, struct err *e) {
  int64_t v = *out;
  if (s->image_processor && json_get_int(s->image_processor, key, lo, hi, &v, s->where_processor, e) < 0) return -1;
  *out = (int)v;
  return 0;
}

/* size: {height, width}, both what the encoder takes. */
static int json_processor_size(const struct config_json *s, int expected, struct err *e) {
  const json_t *size = NULL;
  int found = s->image_processor ? json_get_object(s->image_processor, "size", &size, s->where_processor, e) : 0;
  if (found <= 0) return found;
  int64_t height = expected, width = expected;
  if (json_get_int(size, "height", 1, CONFIG_IMAGE_MAX, &height, s->where_processor, e) < 0 ||
      json_get_int(size, "width", 1, CONFIG_IMAGE_MAX, &width, s->where_processor, e) < 0)
    return -1;
  if (height == expected && width == expected) return 0;
  return err_set(e, ERR_BAD_FILE, "%s: size: expected %d x %d, as the encoder's image_size says, found %lld x %lld", s->where_processor,
                 expected, expected, (long long)height, (long long)width);
}

static int json_siglip(struct model_config *c, const struct config_json *s, const struct config_json *v, struct err *e) {
  struct vision_config *y = &c->vision;
  struct config_json top = *s;
  top.text = s->top;
  top.where_text = s->where_top;
  double eps;
  set_scaling(y, 0.5f, 0.5f);
  if (config_json_must_be(v, "hidden_act", "gelu_pytorch_tanh", e) != 0 ||
      config_json_int(v, "hidden_size", 1, CONFIG_HIDDEN_MAX, SIGLIP_HIDDEN, &y->hidden, e) != 0 ||
      config_json_int(v, "intermediate_size", 1, CONFIG_FFN_MAX, SIGLIP_FFN, &y->ffn, e) != 0 ||
      config_json_int(v, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, SIGLIP_LAYERS, &y->n_layers, e) != 0 ||
      config_json_int(v, "num_attention_heads", 1, CONFIG_HEADS_MAX, SIGLIP_HEADS, &y->n_heads, e) != 0 ||
      config_json_int(v, "patch_size", 1, CONFIG_PATCH_MAX, SIGLIP_PATCH, &y->patch, e) != 0 ||
      config_json_int(v, "image_size", 1, CONFIG_IMAGE_MAX, SIGLIP_IMAGE, &y->image, e) != 0 ||
      config_json_float(v, "layer_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      config_json_int(&top, "mm_tokens_per_image", 1, CONFIG_TOKENS_MAX, SIGLIP_TOKENS, &y->soft_tokens, e) != 0 ||
      json_processor_size(s, y->image, e) < 0 || json_triple(s, "image_mean", y->mean, e) < 0 ||
      json_triple(s, "image_std", y->std, e) < 0 || json_id(s, "image_token_index", "image_token_id", 262144, &c->image_id, e) != 0 ||
      json_id(s, "boi_token_index", "boi_token_id", 255999, &c->boi, e) != 0 ||
      json_id(s, "eoi_token_index", "eoi_token_id", 256000, &c->eoi, e) != 0)
    return -1;
  y->kind = VISION_SIGLIP;
  y->norm_eps = (float)eps;
  y->head_dim = y->hidden % y->n_heads ? 0 : y->hidden / y->n_heads;
  return set_pool(y, v->where_text, e);
}

static int json_gemma4_vit(struct vision_config *y, const struct config_json *v, struct err *e) {
  const json_t *rope = NULL;
  int n_kv;
  y->rope_theta = GEMMA4_THETA;
  if (config_json_must_be(v, "hidden_activation", "gelu_pytorch_tanh", e) != 0 || config_json_must_be_off(v, "attention_bias", e) != 0 ||
      config_json_int(v, "hidden_size", 1, CONFIG_HIDDEN_MAX, GEMMA4_HIDDEN, &y->hidden, e) != 0 ||
      config_json_int(v, "intermediate_size", 1, CONFIG_FFN_MAX, GEMMA4_FFN, &y->ffn, e) != 0 ||
      config_json_int(v, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, GEMMA4_LAYERS, &y->n_layers, e) != 0 ||
      config_json_int(v, "num_attention_heads", 1, CONFIG_HEADS_MAX, GEMMA4_HEADS, &y->n_heads, e) != 0 ||
      config_json_int(v, "num_key_value_heads", 1, CONFIG_HEADS_MAX, y->n_heads, &n_kv, e) != 0 ||
      config_json_int(v, "head_dim", 4, CONFIG_HEAD_DIM_MAX, GEMMA4_HEAD_DIM, &y->head_dim, e) != 0 ||
      config_json_int(v, "position_embedding_size", 1, CONFIG_TOKENS_MAX, GEMMA4_POSITIONS, &y->n_positions, e) != 0 ||
      json_get_bool(v->text, "use_clipped_linears", &y->clipped, v->where_text, e) < 0 ||
      json_get_bool(v->text, "standardize", &y->standardize, v->where_text, e) < 0 ||
      json_get_object(v->text, "rope_parameters", &rope, v->where_text, e) < 0 ||
      (rope && json_get_float(rope, "rope_theta", CONFIG_THETA_MIN, CONFIG_THETA_MAX, &y->rope_theta, v->where_text, e) < 0))
    return -1;
  if (n_kv != y->n_heads)
    return err_set(e, ERR_UNSUPPORTED, "%s: num_key_value_heads: expected %d, as many as heads, found %d", v->where_text, y->n_heads, n_kv);
  y->kind = VISION_GEMMA4;
  return 0;
}

static int json_gemma4_blocks(struct vision_config *y, const struct config_json *v, struct err *e) {
  int out;
  if (config_json_int(v, "mm_embed_dim", 1, CONFIG_HIDDEN_MAX, BLOCKS_HIDDEN, &y->hidden, e) != 0 ||
      config_json_int(v, "output_proj_dims", 1, CONFIG_HIDDEN_MAX, y->hidden, &out, e) != 0 ||
      config_json_int(v, "mm_posemb_size", 1, CONFIG_TOKENS_MAX, BLOCKS_POSITIONS, &y->n_positions, e) != 0)
    return -1;
  if (out != y->hidden)
    return err_set(e, ERR_UNSUPPORTED, "%s: output_proj_dims: expected %d, as mm_embed_dim, found %d", v->where_text, y->hidden, out);
  y->kind = VISION_GEMMA4_BLOCKS;
  return 0;
}

static int json_gemma4_vision(struct model_config *c, const struct config_json *s, const struct config_json *v, struct err *e) {
  struct vision_config *y = &c->vision;
  const char *type = "";
  double eps;
  set_scaling(y, 0, 1);
  y->soft_tokens = GEMMA4_TOKENS;
  if (json_get_string(v->text, "model_type", &type, NULL, v->where_text, e) < 0 ||
      config_json_int(v, "patch_size", 1, CONFIG_PATCH_MAX, GEMMA4_PATCH, &y->patch, e) != 0 ||
      config_json_int(v, "pooling_kernel_size", 1, 16, GEMMA4_POOL, &y->pool, e) != 0 ||
      config_json_float(v, "rms_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      json_processor_int(s, "max_soft_tokens", 1, CONFIG_TOKENS_MAX, &y->soft_tokens, e) != 0 ||
      json_id(s, "image_token_id", "image_token_index", 258880, &c->image_id, e) != 0 ||
      json_id(s, "video_token_id", "video_token_index", 258884, &c->video_id, e) != 0 ||
      json_id(s, "boi_token_id", "boi_token_index", 255999, &c->boi, e) != 0 ||
      json_id(s, "eoi_token_id", "eoi_token_index", 258882, &c->eoi, e) != 0)
    return -1;
  y->norm_eps = (float)eps;
  bool blocks = str_starts(str_c(type), "gemma4_unified") || json_object_get(v->text, "mm_embed_dim");
  return blocks ? json_gemma4_blocks(y, v, e) : json_gemma4_vit(y, v, e);
}

/* Channels of the two convolutions. */
static int json_channels(struct audio_config *y, const struct config_json *a, struct err *e) {
  const json_t *list = NULL;
  int found = json_get_array(a->text, "subsampling_conv_channels", &list, a->where_text, e);
  y->channels[0] = 128, y->channels[1] = 32;
  for (size_t i = 0; found > 0 && i < 2; i++) {
    const json_t *n = json_array_get(list, i);
    if (json_array_size(list) != 2 || !json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > 4096)
      return err_set(e, ERR_BAD_FILE, "%s: subsampling_conv_channels: expected two numbers from 1 to 4096", a->where_text);
    y->channels[i] = (int)json_integer_value(n);
  }
  return found < 0 ? -1 : 0;
}

static int json_gemma4_audio(struct model_config *c, const struct config_json *s, const struct config_json *a, struct err *e) {
  struct audio_config *y = &c->audio;
  const char *type = "";
  double eps, cap, weight;
  if (json_get_string(a->text, "model_type", &type, NULL, a->where_text, e) < 0 ||
      config_json_float(a, "rms_norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0 ||
      json_id(s, "audio_token_id", "audio_token_index", 258881, &c->audio_id, e) != 0 ||
      json_id(s, "boa_token_id", "boa_token_index", 256000, &c->boa, e) != 0 ||
      json_id(s, "eoa_token_id", "eoa_token_index", 258883, &c->eoa, e) != 0)
    return -1;
  y->norm_eps = (float)eps;
  if (str_starts(str_c(type), "gemma4_unified") || json_object_get(a->text, "audio_embed_dim")) {
    y->kind = AUDIO_GEMMA4_FRAMES;
    return int_or(a, "audio_embed_dim", "hidden_size", 1, 16000, AUDIO_FRAME, &y->hidden, e);
  }
  int right;
  if (config_json_must_be(a, "hidden_act", "silu", e) != 0 ||
      config_json_int(a, "hidden_size", 2, CONFIG_HIDDEN_MAX, AUDIO_HIDDEN, &y->hidden, e) != 0 ||
      config_json_int(a, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, AUDIO_LAYERS, &y->n_layers, e) != 0 ||
      config_json_int(a, "num_attention_heads", 1, CONFIG_HEADS_MAX, AUDIO_HEADS, &y->n_heads, e) != 0 ||
      config_json_int(a, "conv_kernel_size", 1, 64, AUDIO_TAPS, &y->conv_taps, e) != 0 ||
      config_json_int(a, "attention_context_left", 2, 4096, AUDIO_LEFT, &y->n_relative, e) != 0 ||
      config_json_int(a, "attention_context_right", 0, 4096, 0, &right, e) != 0 ||
      config_json_int(a, "output_proj_dims", 1, CONFIG_HIDDEN_MAX, AUDIO_OUT, &y->out_dim, e) != 0 ||
      config_json_float(a, "attention_logit_cap", 1e-3, CONFIG_CAP_MAX, 50, &cap, e) != 0 ||
      config_json_float(a, "residual_weight", 0, 1e3, 0.5, &weight, e) != 0 ||
      json_get_bool(a->text, "use_clipped_linears", &y->clipped, a->where_text, e) < 0 || json_channels(y, a, e) != 0)
    return -1;
  if (right != 0) return err_set(e, ERR_UNSUPPORTED, "%s: attention_context_right: expected 0, found %d", a->where_text, right);
  if (y->hidden % (2 * y->n_heads))
    return err_set(e, ERR_BAD_FILE, "%s: expected hidden_size to be an even multiple of the heads, found %d and %d", a->where_text,
                   y->hidden, y->n_heads);
  y->kind = AUDIO_GEMMA4;
  y->n_mel = AUDIO_MEL;
  y->keys_left = y->n_relative - 1; /* DISAGREE: the class passes one less than its positions to a strict comparison; JAX takes them all */
  y->logit_cap = (float)cap;
  y->residual_weight = (float)weight;
  return 0;
}

static int json_states(struct vision_config *y, const struct config_json *v, struct err *e) {
  static const int released[] = {3, 7, 15, 23, 30};
  const json_t *list = NULL;
  int found = json_get_array(v->text, "intermediate_layers_indices", &list, v->where_text, e);
  if (found < 0) return -1;
  size_t n = found ? json_array_size(list) : ARRAY_LEN(released);
  if (n > CONFIG_STATES_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: intermediate_layers_indices: expected at most %d, found %zu", v->where_text, CONFIG_STATES_MAX, n);
  for (size_t i = 0; i < n; i++) {
    int64_t l = found ? json_integer_value(json_array_get(list, i)) : released[i];
    if (l < 0 || l > y->n_layers || (found && !json_is_integer(json_array_get(list, i))))
      return err_set(e, ERR_BAD_FILE, "%s: intermediate_layers_indices[%zu]: expected a number from 0 to %d", v->where_text, i,
                     y->n_layers);
    y->states[y->n_states++] = (int)l;
  }
  return 0;
}

static int json_ratios(struct vision_config *y, const struct config_json *v, struct err *e) {
  const json_t *list = NULL;
  int found = json_get_array(v->text, "supported_aspect_ratios", &list, v->where_text, e);
  list_ratios(y);
  if (found <= 0) return found;
  y->n_ratios = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *pair = json_array_get(list, i);
    json_int_t high = json_integer_value(json_array_get(pair, 0)), wide = json_integer_value(json_array_get(pair, 1));
    if (json_array_size(pair) != 2 || high < 1 || wide < 1 || high > y->n_tiles || wide > y->n_tiles || high * wide > y->n_tiles ||
        y->n_ratios == (int)ARRAY_LEN(y->ratios))
      return err_set(e, ERR_BAD_FILE, "%s: supported_aspect_ratios[%zu]: expected tiles high and wide, at most %d in all", v->where_text, i,
                     y->n_tiles);
    y->ratios[y->n_ratios][0] = (int)high, y->ratios[y->n_ratios++][1] = (int)wide;
  }
  return 0;
}

static int json_mllama_vision(struct model_config *c, const struct config_json *s, const struct config_json *v, struct err *e) {
  struct vision_config *y = &c->vision;
  double eps;
  memcpy(y->mean, CLIP_MEAN, sizeof y->mean);
  memcpy(y->std, CLIP_STD, sizeof y->std);
  if (config_json_must_be(v, "hidden_act", "gelu", e) != 0 ||
      config_json_int(v, "hidden_size", 1, CONFIG_HIDDEN_MAX, MLLAMA_HIDDEN, &y->hidden, e) != 0 ||
      config_json_int(v, "intermediate_size", 1, CONFIG_FFN_MAX, MLLAMA_FFN, &y->ffn, e) != 0 ||
      config_json_int(v, "num_hidden_layers", 1, CONFIG_LAYERS_MAX, MLLAMA_LAYERS, &y->n_layers, e) != 0 ||
      config_json_int(v, "num_global_layers", 0, CONFIG_LAYERS_MAX, MLLAMA_GLOBAL, &y->n_global_layers, e) != 0 ||
      int_or(v, "attention_heads", "num_attention_heads", 1, CONFIG_HEADS_MAX, MLLAMA_HEADS, &y->n_heads, e) != 0 ||
      config_json_int(v, "patch_size", 1, CONFIG_PATCH_MAX, MLLAMA_PATCH, &y->patch, e) != 0 ||
      config_json_int(v, "image_size", 1, CONFIG_IMAGE_MAX, MLLAMA_TILE, &y->image, e) != 0 ||
      config_json_int(v, "num_channels", 3, 3, 3, &y->pool, e) != 0 ||
      config_json_int(v, "max_num_tiles", 1, CONFIG_TILES_MAX, MLLAMA_TILES, &y->n_tiles, e) != 0 ||
      config_json_float(v, "norm_eps", CONFIG_EPS_MIN, CONFIG_EPS_MAX, MLLAMA_EPS, &eps, e) != 0 || json_states(y, v, e) != 0 ||
      json_ratios(y, v, e) < 0 || json_processor_size(s, y->image, e) < 0 || json_triple(s, "image_mean", y->mean, e) < 0 ||
      json_triple(s, "image_std", y->std, e) < 0 || json_id(s, "image_token_index", "image_token_id", 128256, &c->image_id, e) != 0)
    return -1;
  y->out_dim = y->hidden * (1 + y->n_states);
  int out;
  if (config_json_int(v, "vision_output_dim", 1, CONFIG_FFN_MAX, y->out_dim, &out, e) != 0) return -1;
  if (out != y->out_dim)
    return err_set(e, ERR_BAD_FILE, "%s: vision_output_dim: expected %d, %d states of %d, found %d", v->where_text, y->out_dim,
                   1 + y->n_states, y->hidden, out);
  y->kind = VISION_MLLAMA;
  y->pool = 1;
  y->norm_eps = (float)eps;
  y->head_dim = y->hidden % y->n_heads ? 0 : y->hidden / y->n_heads;
  y->n_positions = y->image % y->patch ? 0 : (y->image / y->patch) * (y->image / y->patch) + 1;
  return 0;
}

int config_media_from_json(struct model_config *c, const struct config_json *s, struct err *e) {
  struct config_json part;
  char where[240];
  config_media_none(c);
  if (c->backbone_hidden) return 0; /* a drafter's config may repeat its target's */
  int found = section(s, "vision_config", &part, where, e);
  if (found < 0) return -1;
  if (found) {
    int done = c->family == FAMILY_GEMMA3   ? json_siglip(c, s, &part, e)
               : c->family == FAMILY_GEMMA4 ? json_gemma4_vision(c, s, &part, e)
                                            : json_mllama_vision(c, s, &part, e);
    if (done != 0 || check_vision(c, where, e) != 0) return -1;
  }
  found = c->family == FAMILY_GEMMA4 ? section(s, "audio_config", &part, where, e) : 0;
  if (found < 0 || (found && json_gemma4_audio(c, s, &part, e) != 0)) return -1;
  if (c->family == FAMILY_GEMMA4) {
    const char *mode = json_string_value(json_object_get(s->text, "use_bidirectional_attention"));
    c->both_ways_sliding = mode && !strcmp(mode, "vision");
  }
  if (c->family == FAMILY_GEMMA3) c->both_ways_full = c->both_ways_sliding = true;
  return 0;
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------------------- */

/* Placeholders by name from the vocabulary. */
static void gguf_ids(struct model_config *c, const struct config_gguf *s) {
  const struct {
    enum model_family family;
    const char *name;
    int32_t *id;
  } wanted[] = {{FAMILY_GEMMA3, "<image_soft_token>", &c->image_id},
                {FAMILY_GEMMA3, "<start_of_image>", &c->boi},
                {FAMILY_GEMMA3, "<end_of_image>", &c->eoi},
                {FAMILY_GEMMA4, "<|image|>", &c->image_id},
                {FAMILY_GEMMA4, "<|video|>", &c->video_id},
                {FAMILY_GEMMA4, "<|audio|>", &c->audio_id},
                {FAMILY_GEMMA4, "<|image>", &c->boi},
                {FAMILY_GEMMA4, "<image|>", &c->eoi},
                {FAMILY_GEMMA4, "<|audio>", &c->boa},
                {FAMILY_GEMMA4, "<audio|>", &c->eoa},
                {FAMILY_MLLAMA, "<|image|>", &c->image_id}};
  const struct gguf_kv *kv = gguf_find(&s->parts[0], "tokenizer.ggml.tokens");
  if (!kv || !kv->is_array || kv->type != GGUF_STRING) return;
  const unsigned char *cursor = NULL;
  for (uint64_t i = 0; i < kv->n && i < CONFIG_VOCAB_MAX; i++) {
    struct str token = gguf_kv_next_string(kv, &cursor);
    if (token.n < 8 || token.p[0] != '<') continue;
    for (size_t k = 0; k < ARRAY_LEN(wanted); k++)
      if (wanted[k].family == c->family && *wanted[k].id < 0 && str_is(token, wanted[k].name)) *wanted[k].id = (int32_t)i;
  }
}

static int gguf_array(const struct config_gguf *s, const char *name, int64_t lo, int64_t hi, int *out, int n_max, struct err *e) {
  char key[160];
  snprintf(key, sizeof key, "%s.%s", s->arch, name);
  const struct gguf_kv *kv = gguf_find(&s->parts[0], key);
  if (!kv) return 0;
  if (!kv->is_array || kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64 || kv->n > (uint64_t)n_max)
    return config_gguf_refuse(s, name, ERR_BAD_FILE, "expected a short list of integers", e);
  for (uint64_t i = 0; i < kv->n; i++) {
    int64_t v = gguf_kv_int(kv, i);
    if (v < lo || v > hi) return config_gguf_refuse(s, name, ERR_BAD_FILE, "a number of the list is out of range", e);
    out[i] = (int)v;
  }
  return (int)kv->n;
}

/* Three floats of an mmproj. */
static int gguf_triple(const struct config_gguf *s, const char *name, float out[3], struct err *e) {
  char key[160];
  snprintf(key, sizeof key, "%s.%s", s->arch, name);
  const struct gguf_kv *kv = gguf_find(&s->parts[0], key);
  if (!kv) return 0;
  if (!kv->is_array || (kv->type != GGUF_F32 && kv->type != GGUF_F64) || kv->n != 3)
    return config_gguf_refuse(s, name, ERR_BAD_FILE, "expected three numbers", e);
  for (uint64_t i = 0; i < 3; i++) out[i] = (float)gguf_kv_float(kv, i);
  return 0;
}

/* mllama: the encoder is described, and may lie, in the model's own file. */
static int gguf_mllama(struct model_config *c, const struct config_gguf *s, struct err *e) {
  struct vision_config *y = &c->vision;
  double eps;
  memcpy(y->mean, CLIP_MEAN, sizeof y->mean);
  memcpy(y->std, CLIP_STD, sizeof y->std);
  if (config_gguf_int(s, "vision.block_count", 0, CONFIG_LAYERS_MAX, 0, &y->n_layers, e) != 0) return -1;
  if (y->n_layers == 0) return 0;
  if (config_gguf_int(s, "vision.global.block_count", 0, CONFIG_LAYERS_MAX, MLLAMA_GLOBAL, &y->n_global_layers, e) != 0 ||
      config_gguf_int(s, "vision.embedding_length", 1, CONFIG_HIDDEN_MAX, MLLAMA_HIDDEN, &y->hidden, e) != 0 ||
      config_gguf_int(s, "vision.feed_forward_length", 1, CONFIG_FFN_MAX, MLLAMA_FFN, &y->ffn, e) != 0 ||
      config_gguf_int(s, "vision.attention.head_count", 1, CONFIG_HEADS_MAX, MLLAMA_HEADS, &y->n_heads, e) != 0 ||
      config_gguf_float(s, "vision.attention.layer_norm_epsilon", CONFIG_EPS_MIN, CONFIG_EPS_MAX, MLLAMA_EPS, &eps, e) != 0 ||
      config_gguf_int(s, "vision.image_size", 1, CONFIG_IMAGE_MAX, MLLAMA_TILE, &y->image, e) != 0 ||
      config_gguf_int(s, "vision.patch_size", 1, CONFIG_PATCH_MAX, MLLAMA_PATCH, &y->patch, e) != 0 ||
      config_gguf_int(s, "vision.max_num_tiles", 1, CONFIG_TILES_MAX, MLLAMA_TILES, &y->n_tiles, e) != 0)
    return -1;
  int n = gguf_array(s, "vision.intermediate_layers_indices", 0, y->n_layers, y->states, CONFIG_STATES_MAX, e);
  if (n < 0) return -1;
  y->kind = VISION_MLLAMA;
  y->n_states = n;
  y->pool = 1;
  y->norm_eps = (float)eps;
  y->out_dim = y->hidden * (1 + n);
  y->head_dim = y->hidden % y->n_heads ? 0 : y->hidden / y->n_heads;
  y->n_positions = y->image % y->patch ? 0 : (y->image / y->patch) * (y->image / y->patch) + 1;
  list_ratios(y);
  if (c->image_id < 0) c->image_id = c->vocab;
  return 0;
}

int config_media_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e) {
  char label[200];
  config_media_none(c);
  if (c->backbone_hidden) return 0;
  gguf_ids(c, s);
  if (c->family == FAMILY_GEMMA3) c->both_ways_full = c->both_ways_sliding = true;
  if (c->family == FAMILY_GEMMA4)
    c->both_ways_sliding = c->ple == 0; /* no key says it: the models with per-layer embeddings are the causal ones */
  if (c->family == FAMILY_MLLAMA && gguf_mllama(c, s, e) != 0) return -1;
  return check_vision(c, map_label(s->parts[0].map, label), e);
}

/* ---- mmproj ------------------------------------------------------------------------------------------------------------------ */

static int mmproj_vision(struct model_config *c, const struct config_gguf *s, struct str type, struct err *e) {
  struct vision_config *y = &c->vision;
  bool gemma3 = str_is(type, "gemma3"), blocks = str_is(type, "gemma4uv");
  double eps;
  int width;
  set_scaling(y, gemma3 ? 0.5f : 0, gemma3 ? 0.5f : 1);
  if (!(gemma3 ? c->family == FAMILY_GEMMA3 : c->family == FAMILY_GEMMA4 && (blocks || str_is(type, "gemma4v"))))
    return config_gguf_refuse(s, "vision.projector_type", ERR_UNSUPPORTED, "it is not the encoder of this model", e);
  if (config_gguf_int(s, "vision.embedding_length", 1, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &y->hidden, e) != 0 ||
      config_gguf_int(s, "vision.feed_forward_length", 0, CONFIG_FFN_MAX, 0, &y->ffn, e) != 0 ||
      config_gguf_int(s, "vision.block_count", 0, CONFIG_LAYERS_MAX, 0, &y->n_layers, e) != 0 ||
      config_gguf_int(s, "vision.attention.head_count", 0, CONFIG_HEADS_MAX, 0, &y->n_heads, e) != 0 ||
      config_gguf_int(s, "vision.patch_size", 1, CONFIG_PATCH_MAX, GEMMA4_PATCH, &y->patch, e) != 0 ||
      config_gguf_int(s, "vision.image_size", 1, CONFIG_IMAGE_MAX, SIGLIP_IMAGE, &y->image, e) != 0 ||
      config_gguf_int(s, "vision.projector.scale_factor", 1, 64, gemma3 ? 4 : GEMMA4_POOL, &y->pool, e) != 0 ||
      config_gguf_int(s, "vision.projection_dim", 1, CONFIG_HIDDEN_MAX, c->hidden, &width, e) != 0 ||
      config_gguf_float(s, "vision.attention.layer_norm_epsilon", CONFIG_EPS_MIN, CONFIG_EPS_MAX, EPS, &eps, e) != 0)
    return -1;
  y->norm_eps = (float)eps;
  y->head_dim = y->n_heads && y->hidden % y->n_heads == 0 ? y->hidden / y->n_heads : 0;
  const struct gguf_tensor *positions = config_gguf_tensor(s, "v.position_embd.weight"),
                           *query = config_gguf_tensor(s, "v.blk.0.attn_q_norm.weight");
  if (gemma3) {
    y->kind = VISION_SIGLIP;
    int side = y->image / y->patch / y->pool;
    y->soft_tokens = side * side;
    if (gguf_triple(s, "vision.image_mean", y->mean, e) != 0 || gguf_triple(s, "vision.image_std", y->std, e) != 0) return -1;
    return set_pool(y, s->arch, e);
  }
  if (query && query->n_dims == 1) y->head_dim = (int)MIN(query->shape[0], (int64_t)CONFIG_HEAD_DIM_MAX);
  y->kind = blocks ? VISION_GEMMA4_BLOCKS : VISION_GEMMA4;
  y->image = 0;
  y->soft_tokens = GEMMA4_TOKENS;
  y->rope_theta = GEMMA4_THETA;
  y->n_positions = positions && positions->n_dims == 3 ? (int)MIN(positions->shape[1], (int64_t)CONFIG_TOKENS_MAX) : GEMMA4_POSITIONS;
  y->standardize = config_gguf_tensor(s, "v.std_scale") != NULL;
  y->clipped = config_gguf_tensor(s, "v.blk.0.attn_q.input_min") != NULL || config_gguf_tensor(s, "v.blk.0.attn_q.input_max") != NULL;
  return 0;
}

static int mmproj_audio(struct model_config *c, const struct config_gguf *s, struct str type, struct err *e) {
  struct audio_config *y = &c->audio;
  bool frames = str_is(type, "gemma4ua");
  if (c->family != FAMILY_GEMMA4 || (!frames && !str_is(type, "gemma4a")))
    return config_gguf_refuse(s, "audio.projector_type", ERR_UNSUPPORTED, "it is not the encoder of this model", e);
  y->norm_eps = (float)EPS; /* files have another number by mistake */
  if (frames) {
    y->kind = AUDIO_GEMMA4_FRAMES;
    return config_gguf_int(s, "audio.embedding_length", 1, 16000, AUDIO_FRAME, &y->hidden, e);
  }
  const struct gguf_tensor *conv[2] = {config_gguf_tensor(s, "a.conv1d.0.weight"), config_gguf_tensor(s, "a.conv1d.1.weight")};
  const struct gguf_tensor *out = config_gguf_tensor(s, "a.pre_encode.out.weight"), *taps = config_gguf_tensor(s, "a.blk.0.conv_dw.weight");
  if (config_gguf_int(s, "audio.embedding_length", 2, CONFIG_HIDDEN_MAX, CONFIG_REQUIRED_INT, &y->hidden, e) != 0 ||
      config_gguf_int(s, "audio.block_count", 1, CONFIG_LAYERS_MAX, CONFIG_REQUIRED_INT, &y->n_layers, e) != 0 ||
      config_gguf_int(s, "audio.attention.head_count", 1, CONFIG_HEADS_MAX, CONFIG_REQUIRED_INT, &y->n_heads, e) != 0 ||
      config_gguf_int(s, "audio.num_mel_bins", 1, 4096, AUDIO_MEL, &y->n_mel, e) != 0)
    return -1;
  if (!conv[0] || !conv[1] || !out || conv[0]->shape[0] > 4096 || conv[1]->shape[0] > 4096 || y->hidden % (2 * y->n_heads))
    return config_gguf_refuse(s, "audio.projector_type", ERR_BAD_FILE,
                              "expected tensors a.conv1d.0, a.conv1d.1 and a.pre_encode.out beside it", e);
  y->kind = AUDIO_GEMMA4;
  y->channels[0] = (int)conv[0]->shape[0], y->channels[1] = (int)conv[1]->shape[0];
  y->out_dim = (int)MIN(out->shape[0], (int64_t)CONFIG_HIDDEN_MAX);
  y->conv_taps = taps && taps->n_dims == 2 ? (int)MIN(taps->shape[1], (int64_t)64) : AUDIO_TAPS;
  y->n_relative = AUDIO_LEFT;
  y->keys_left = AUDIO_LEFT - 1;
  y->logit_cap = 50;
  y->residual_weight = 0.5f;
  y->clipped = config_gguf_tensor(s, "a.blk.0.attn_q.input_min") != NULL || config_gguf_tensor(s, "a.blk.0.attn_q.input_max") != NULL;
  return 0;
}

int config_media_from_mmproj(struct model_config *c, const struct gguf *parts, int n_parts, struct err *e) {
  struct config_gguf s = {.parts = parts, .n_parts = n_parts, .arch = "clip"};
  struct str arch = {0}, both = {0}, vision = {0}, audio = {0};
  char label[200], text[60];
  map_label(parts[0].map, label);
  if (gguf_str(&parts[0], "general.architecture", &arch, e) < 0) return -1;
  if (!str_is(arch, "clip"))
    return err_set(e, ERR_BAD_FILE, "%s: expected the pictures' or sounds' part of a model (architecture clip), found %s", label,
                   str_escape(arch.p ? arch : str_c("nothing"), text, sizeof text));
  if (c->vision.kind != VISION_NONE || c->audio.kind != AUDIO_NONE)
    return err_set(e, ERR_BAD_INPUT, "%s: the model has its encoders itself: leave --mmproj out", label);
  if (config_gguf_text(&s, "projector_type", &both, e) < 0 || config_gguf_text(&s, "vision.projector_type", &vision, e) < 0 ||
      config_gguf_text(&s, "audio.projector_type", &audio, e) < 0)
    return -1;
  if (!vision.p && !audio.p) vision = both; /* files with one kind only */
  if (!vision.p && !audio.p) return config_gguf_refuse(&s, "projector_type", ERR_BAD_FILE, "expected this key, it is missing", e);
  if ((vision.p && mmproj_vision(c, &s, vision, e) != 0) || (audio.p && mmproj_audio(c, &s, audio, e) != 0)) return -1;
  if ((c->vision.kind != VISION_NONE && c->image_id < 0) || (c->audio.kind != AUDIO_NONE && c->audio_id < 0))
    return err_set(e, ERR_BAD_FILE, "%s: the model's vocabulary has no token that stands for %s", label,
                   c->image_id < 0 ? "a picture" : "a sound");
  return check_vision(c, label, e);
}
