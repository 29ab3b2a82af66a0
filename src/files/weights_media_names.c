/* weights_media_names.c — tensor names of the encoders of pictures and sound: the checkpoints' own, and GGUF writers' variants, to those of
 * models/encoder.h. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "files/weights_names.h"

struct name_pair {
  const char *own, *ours;
};

/* ---- whole names behind a tower's prefix ------------------------------------------------------------------------------- */

static const struct name_pair siglip_names[] = {
    {"embeddings.patch_embedding.weight", "v.patch_embd.weight"},
    {"embeddings.patch_embedding.bias", "v.patch_embd.bias"},
    {"embeddings.position_embedding.weight", "v.position_embd.weight"},
    {"post_layernorm.weight", "v.post_ln.weight"},
    {"post_layernorm.bias", "v.post_ln.bias"},
    {NULL, NULL},
};
static const struct name_pair projector_names[] = {
    {"mm_input_projection_weight", "mm.input_projection.weight"},
    {"mm_soft_emb_norm.weight", "mm.soft_emb_norm.weight"},
    {"weight", "mm.0.weight"},
    {"bias", "mm.0.bias"},
    {NULL, NULL},
};
static const struct name_pair gemma4_vision_names[] = {
    {"patch_embedder.input_proj.weight", "v.patch_embd.weight"},
    {"patch_embedder.position_embedding_table", "v.position_embd.weight"},
    {"std_bias", "v.std_bias"},
    {"std_scale", "v.std_scale"},
    {NULL, NULL},
};
static const struct name_pair gemma4_block_names[] = {
    {"patch_ln1.weight", "v.patch_norm.1.weight"}, {"patch_ln1.bias", "v.patch_norm.1.bias"},
    {"patch_ln2.weight", "v.patch_norm.2.weight"}, {"patch_ln2.bias", "v.patch_norm.2.bias"},
    {"pos_norm.weight", "v.patch_norm.3.weight"},  {"pos_norm.bias", "v.patch_norm.3.bias"},
    {"patch_dense.weight", "v.patch_embd.weight"}, {"patch_dense.bias", "v.patch_embd.bias"},
    {"pos_embedding", "v.position_embd.weight"},   {NULL, NULL},
};
static const struct name_pair embed_vision_names[] = {{"embedding_projection.weight", "mm.input_projection.weight"}, {NULL, NULL}};
static const struct name_pair embed_audio_names[] = {{"embedding_projection.weight", "mm.a.input_projection.weight"}, {NULL, NULL}};
static const struct name_pair gemma4_audio_names[] = {
    {"subsample_conv_projection.layer0.conv.weight", "a.conv1d.0.weight"},
    {"subsample_conv_projection.layer0.norm.weight", "a.conv1d.0.norm.weight"},
    {"subsample_conv_projection.layer1.conv.weight", "a.conv1d.1.weight"},
    {"subsample_conv_projection.layer1.norm.weight", "a.conv1d.1.norm.weight"},
    {"subsample_conv_projection.input_proj_linear.weight", "a.input_projection.weight"},
    {"output_proj.weight", "a.pre_encode.out.weight"},
    {"output_proj.bias", "a.pre_encode.out.bias"},
    {NULL, NULL},
};
static const struct name_pair mllama_names[] = {
    {"patch_embedding.weight", "v.patch_embd.weight"},
    {"class_embedding", "v.class_embd"},
    {"gated_positional_embedding.embedding", "v.position_embd.weight"},
    {"gated_positional_embedding.gate", "v.position_embd.gate"},
    {"gated_positional_embedding.tile_embedding.weight", "v.tile_position_embd.weight"},
    {"pre_tile_positional_embedding.embedding.weight", "v.pre_tile_position_embd.weight"},
    {"pre_tile_positional_embedding.gate", "v.pre_tile_position_embd.gate"},
    {"post_tile_positional_embedding.embedding.weight", "v.post_tile_position_embd.weight"},
    {"post_tile_positional_embedding.gate", "v.post_tile_position_embd.gate"},
    {"layernorm_pre.weight", "v.pre_ln.weight"},
    {"layernorm_pre.bias", "v.pre_ln.bias"},
    {"layernorm_post.weight", "v.post_ln.weight"},
    {"layernorm_post.bias", "v.post_ln.bias"},
    {NULL, NULL},
};

/* ---- of layers: products and norms by their stem, with ".weight", ".bias" or a bound behind it ------------------------------ */

static const struct name_pair vit_stems[] = {
    {"layer_norm1", "ln1"},           {"layer_norm2", "ln2"},
    {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},   {"self_attn.out_proj", "attn_out"},
    {"self_attn.o_proj", "attn_out"}, {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},          {NULL, NULL},
};
static const struct name_pair gemma4_vit_stems[] = {
    {"input_layernorm", "ln1"},           {"post_attention_layernorm", "attn_post_norm"},
    {"pre_feedforward_layernorm", "ln2"}, {"post_feedforward_layernorm", "ffn_post_norm"},
    {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.q_proj", "attn_q"},       {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_out"},
    {"mlp.gate_proj", "ffn_gate"},        {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},        {NULL, NULL},
};
static const struct name_pair mllama_vit_stems[] = {
    {"input_layernorm", "ln1"},
    {"post_attention_layernorm", "ln2"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_out"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
    {NULL, NULL},
};
static const struct name_pair conformer_stems[] = {
    {"feed_forward1.pre_layer_norm", "ffn_norm"},
    {"feed_forward1.post_layer_norm", "ffn_post_norm"},
    {"feed_forward1.ffw_layer_1", "ffn_up"},
    {"feed_forward1.ffw_layer_2", "ffn_down"},
    {"feed_forward2.pre_layer_norm", "ffn_norm_1"},
    {"feed_forward2.post_layer_norm", "ffn_post_norm_1"},
    {"feed_forward2.ffw_layer_1", "ffn_up_1"},
    {"feed_forward2.ffw_layer_2", "ffn_down_1"},
    {"norm_pre_attn", "attn_pre_norm"},
    {"norm_post_attn", "attn_post_norm"},
    {"norm_out", "ln2"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.post", "attn_out"},
    {"self_attn.relative_k_proj", "attn_k_rel"},
    {"lconv1d.pre_layer_norm", "norm_conv"},
    {"lconv1d.conv_norm", "conv_norm"},
    {"lconv1d.linear_start", "conv_pw1"},
    {"lconv1d.linear_end", "conv_pw2"},
    {"lconv1d.depthwise_conv1d", "conv_dw"},
    {NULL, NULL},
};
/* Gemma 4 has a level more around the weight of every product. */
static const struct name_pair suffixes[] = {
    {".weight", ".weight"},         {".bias", ".bias"},
    {".linear.weight", ".weight"},  {".input_min", ".input_min"},
    {".input_max", ".input_max"},   {".output_min", ".output_min"},
    {".output_max", ".output_max"}, {NULL, NULL},
};
/* Whole names of layers. */
static const struct name_pair conformer_others[] = {{"self_attn.per_dim_scale", "per_dim_scale.weight"}, {NULL, NULL}};
static const struct name_pair global_others[] = {{"gate_attn", "attn_gate"}, {"gate_ffn", "ffn_gate"}, {NULL, NULL}};

static const struct tower {
  enum model_family family;
  const char *prefix; /* longer ones first */
  const struct name_pair *names;
  const char *layers, *blocks; /* "encoder.layers.", "v.blk."; NULL: none */
  const struct name_pair *stems, *others;
} towers[] = {
    {FAMILY_GEMMA3, "vision_tower.vision_model.", siglip_names, "encoder.layers.", "v.blk.", vit_stems, NULL},
    {FAMILY_GEMMA3, "vision_tower.", siglip_names, "encoder.layers.", "v.blk.", vit_stems, NULL},
    {FAMILY_GEMMA3, "multi_modal_projector.", projector_names, NULL, NULL, NULL, NULL},
    {FAMILY_GEMMA4, "vision_tower.", gemma4_vision_names, "encoder.layers.", "v.blk.", gemma4_vit_stems, NULL},
    {FAMILY_GEMMA4, "vision_embedder.", gemma4_block_names, NULL, NULL, NULL, NULL},
    {FAMILY_GEMMA4, "embed_vision.", embed_vision_names, NULL, NULL, NULL, NULL},
    {FAMILY_GEMMA4, "embed_audio.", embed_audio_names, NULL, NULL, NULL, NULL},
    {FAMILY_GEMMA4, "audio_tower.", gemma4_audio_names, "layers.", "a.blk.", conformer_stems, conformer_others},
    {FAMILY_MLLAMA, "vision_model.", mllama_names, "transformer.layers.", "v.blk.", mllama_vit_stems, NULL},
    {FAMILY_MLLAMA, "vision_model.", mllama_names, "global_transformer.layers.", "v.global.blk.", mllama_vit_stems, global_others},
    {FAMILY_MLLAMA, "multi_modal_projector.", projector_names, NULL, NULL, NULL, NULL},
};

static const char *look_up(const struct name_pair *table, const char *name) {
  for (; table && table->own; table++)
    if (!strcmp(table->own, name)) return table->ours;
  return NULL;
}

/* "12.rest": 12 and the rest, or NULL. */
static const char *after_number(const char *digits, int *number) {
  const char *dot = strchr(digits, '.');
  int64_t v;
  if (!dot || !str_to_i64(str_of(digits, (size_t)(dot - digits)), 0, CONFIG_LAYERS_MAX - 1, &v)) return NULL;
  if (digits[0] == '0' && dot - digits > 1) return NULL; /* "012" would be a second spelling of "12" */
  *number = (int)v;
  return dot + 1;
}

static bool layer_name(const struct tower *t, const char *rest, char out[WEIGHT_NAME_BYTES]) {
  int layer;
  if (!t->layers || !str_starts(str_c(rest), t->layers) || !(rest = after_number(rest + strlen(t->layers), &layer))) return false;
  const char *other = look_up(t->others, rest);
  if (other) {
    snprintf(out, WEIGHT_NAME_BYTES, "%s%d.%s", t->blocks, layer, other);
    return true;
  }
  for (const struct name_pair *stem = t->stems; stem->own; stem++) {
    if (!str_starts(str_c(rest), stem->own)) continue;
    const char *suffix = look_up(suffixes, rest + strlen(stem->own));
    if (!suffix) continue;
    snprintf(out, WEIGHT_NAME_BYTES, "%s%d.%s%s", t->blocks, layer, stem->ours, suffix);
    return true;
  }
  return false;
}

bool weight_media_name_from_hf(enum model_family family, const char *hf, char out[WEIGHT_NAME_BYTES]) {
  const char *name = str_starts(str_c(hf), "model.") ? hf + strlen("model.") : hf;
  for (size_t i = 0; i < ARRAY_LEN(towers); i++) {
    const struct tower *t = &towers[i];
    if (t->family != family || !str_starts(str_c(name), t->prefix)) continue;
    const char *rest = name + strlen(t->prefix), *whole = look_up(t->names, rest);
    if (whole) {
      snprintf(out, WEIGHT_NAME_BYTES, "%s", whole);
      return true;
    }
    if (layer_name(t, rest, out)) return true;
  }
  return false;
}

bool weight_is_media(const char *name) {
  return name && (str_starts(str_c(name), "v.") || str_starts(str_c(name), "a.") || str_starts(str_c(name), "mm."));
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------------------ */

/* What some writers call otherwise. The two norms of the convolution have each other's names in every file: the writers' table has them
 * so. */
static const struct name_pair gguf_vision[] = {
    {"attn_norm", "ln1"},
    {"ffn_norm", "ln2"},
    {"attn_output", "attn_out"},
    {NULL, NULL},
};
static const struct name_pair gguf_audio[] = {{"conv_norm", "norm_conv"}, {"norm_conv", "conv_norm"}, {NULL, NULL}};

void weight_media_name_from_gguf(const char *name, char out[WEIGHT_NAME_BYTES]) {
  static const char *const blocks[] = {"v.global.blk.", "v.blk.", "a.blk."};
  snprintf(out, WEIGHT_NAME_BYTES, "%s", name);
  for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
    int layer;
    const char *rest = str_starts(str_c(name), blocks[i]) ? after_number(name + strlen(blocks[i]), &layer) : NULL;
    const char *dot = rest ? strchr(rest, '.') : NULL;
    if (!dot) continue;
    char stem[WEIGHT_NAME_BYTES];
    snprintf(stem, sizeof stem, "%.*s", (int)(dot - rest), rest);
    const char *ours = look_up(blocks[i][0] == 'a' ? gguf_audio : gguf_vision, stem);
    if (ours) snprintf(out, WEIGHT_NAME_BYTES, "%s%d.%s%s", blocks[i], layer, ours, dot);
    return;
  }
}
