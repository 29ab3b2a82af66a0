/* weights_names.c — the tables of tensor names, one per family, and the prefixes that checkpoints put before them. */
#include "files/weights_names.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

struct name_pair {
  const char *hf, *gguf;
};

/* After the prefix. "layers.N." stands for itself and becomes "blk.N.". */
static const struct name_pair model_names[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {NULL, NULL},
};
static const struct name_pair layer_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {NULL, NULL},
};
/* Gemma 4 has these beside the above. */
static const struct name_pair gemma4_model_names[] = {
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    /* of a drafter */
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
    {"masked_embedding.centroids.weight", "masked_embd_centroids.weight"},
    {"masked_embedding.token_ordering", "masked_embd_ordering"},
    {NULL, NULL},
};
static const struct name_pair gemma4_layer_names[] = {
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {NULL, NULL},
};
/* A tensor for each expert: "experts.N.gate_proj.weight" becomes "ffn_gate.N.weight". */
static const struct name_pair expert_names[] = {
    {"gate_proj.weight", "ffn_gate"},
    {"up_proj.weight", "ffn_up"},
    {"down_proj.weight", "ffn_down"},
    {NULL, NULL},
};

static const struct name_pair mllama_layer_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"cross_attn.q_proj.weight", "cross_attn_q_proj.weight"},
    {"cross_attn.k_proj.weight", "cross_attn_k_proj.weight"},
    {"cross_attn.v_proj.weight", "cross_attn_v_proj.weight"},
    {"cross_attn.o_proj.weight", "cross_attn_o_proj.weight"},
    {"cross_attn.q_norm.weight", "cross_attn_q_norm.weight"},
    {"cross_attn.k_norm.weight", "cross_attn_k_norm.weight"},
    {"cross_attn_attn_gate", "cross_attn_attn_gate"},
    {"cross_attn_mlp_gate", "cross_attn_mlp_gate"},
    {NULL, NULL},
};

enum { TABLES_MAX = 2 };
static const struct family_names {
  enum model_family family;
  const struct name_pair *model[TABLES_MAX], *layer[TABLES_MAX], *expert; /* NULL: none */
} families[] = {
    {FAMILY_GEMMA3, {model_names}, {layer_names}, NULL},
    {FAMILY_GEMMA4, {model_names, gemma4_model_names}, {layer_names, gemma4_layer_names}, expert_names},
    {FAMILY_MLLAMA, {model_names}, {mllama_layer_names}, NULL},
};

/* Longest first; "" is a model saved without its head. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model.", ""};

/* The head stands outside the prefix. */
static const char *const head_names[] = {"lm_head.weight", "language_model.lm_head.weight"};

static const char *const skipped_prefixes[] = {
    "model.vision_tower.", "model.multi_modal_projector.",
    "model.audio_tower.",  "model.embed_vision.",
    "model.embed_audio.",  "model.vision_embedder.",
    "vision_tower.",       "multi_modal_projector.",
    "audio_tower.",        "embed_vision.",
    "embed_audio.",        "vision_embedder.",
    "model.vision_model.", "vision_model.",
};

static const char *look_up(const struct name_pair *table, const char *name) {
  for (; table && table->hf; table++)
    if (!strcmp(table->hf, name)) return table->gguf;
  return NULL;
}

static const char *look_up_all(const struct name_pair *const tables[TABLES_MAX], const char *name) {
  const char *found = NULL;
  for (int i = 0; i < TABLES_MAX && !found; i++) found = look_up(tables[i], name);
  return found;
}

/* "PREFIX12.rest": 12 and the rest, or NULL. "012" would be a second spelling of "12". */
static const char *after_number(const char *name, const char *prefix, int n, int *number) {
  if (!str_starts(str_c(name), prefix)) return NULL;
  const char *digits = name + strlen(prefix), *dot = strchr(digits, '.');
  int64_t v;
  if (!dot || !str_to_i64(str_of(digits, (size_t)(dot - digits)), 0, n - 1, &v)) return NULL;
  if (digits[0] == '0' && dot - digits > 1) return NULL;
  *number = (int)v;
  return dot + 1;
}

static bool text_name(const struct family_names *f, const char *name, char out[WEIGHT_NAME_BYTES]) {
  const char *gguf = look_up_all(f->model, name), *rest;
  int layer, expert;
  if (gguf) {
    snprintf(out, WEIGHT_NAME_BYTES, "%s", gguf);
    return true;
  }
  if (!(rest = after_number(name, "layers.", CONFIG_LAYERS_MAX, &layer))) return false;
  if ((gguf = look_up_all(f->layer, rest))) {
    snprintf(out, WEIGHT_NAME_BYTES, "blk.%d.%s", layer, gguf);
    return true;
  }
  rest = f->expert ? after_number(rest, "experts.", CONFIG_EXPERTS_MAX, &expert) : NULL;
  if (!rest || !(gguf = look_up(f->expert, rest))) return false;
  snprintf(out, WEIGHT_NAME_BYTES, "blk.%d.%s.%d.weight", layer, gguf, expert);
  return true;
}

enum weight_use weight_name_from_hf(enum model_family family, const char *hf, char out[WEIGHT_NAME_BYTES]) {
  struct str name = str_c(hf);
  out[0] = 0;
  if (weight_media_name_from_hf(family, hf, out)) return WEIGHT_MEDIA;
  for (size_t i = 0; i < ARRAY_LEN(skipped_prefixes); i++)
    if (str_starts(name, skipped_prefixes[i])) return WEIGHT_SKIPPED;
  if (str_ends(name, ".rotary_emb.inv_freq")) return WEIGHT_SKIPPED;
  for (size_t i = 0; i < ARRAY_LEN(head_names); i++)
    if (str_is(name, head_names[i])) {
      snprintf(out, WEIGHT_NAME_BYTES, "output.weight");
      return WEIGHT_TEXT;
    }
  for (size_t f = 0; f < ARRAY_LEN(families); f++) {
    if (families[f].family != family) continue;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
      if (str_starts(name, prefixes[i]) && text_name(&families[f], hf + strlen(prefixes[i]), out)) return WEIGHT_TEXT;
  }
  return WEIGHT_UNKNOWN;
}
