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

static const struct family_names {
  enum model_family family;
  const struct name_pair *model, *layer;
} families[] = {
    {FAMILY_GEMMA3, model_names, layer_names},
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
    "embed_audio.",
};
static const char *const skipped_gguf_prefixes[] = {"v.", "mm.", "a."};

static const char *look_up(const struct name_pair *table, const char *name) {
  for (; table->hf; table++)
    if (!strcmp(table->hf, name)) return table->gguf;
  return NULL;
}

static bool text_name(const struct family_names *f, const char *name, char out[WEIGHT_NAME_BYTES]) {
  const char *gguf = look_up(f->model, name);
  if (gguf) {
    snprintf(out, WEIGHT_NAME_BYTES, "%s", gguf);
    return true;
  }
  static const char layers[] = "layers.";
  if (!str_starts(str_c(name), layers)) return false;
  const char *number = name + sizeof layers - 1, *dot = strchr(number, '.');
  int64_t layer;
  if (!dot || !str_to_i64(str_of(number, (size_t)(dot - number)), 0, CONFIG_LAYERS_MAX - 1, &layer)) return false;
  if (number[0] == '0' && dot - number > 1) return false; /* "03" would be a second spelling of "3" */
  gguf = look_up(f->layer, dot + 1);
  if (!gguf) return false;
  snprintf(out, WEIGHT_NAME_BYTES, "blk.%d.%s", (int)layer, gguf);
  return true;
}

enum weight_use weight_name_from_hf(enum model_family family, const char *hf, char out[WEIGHT_NAME_BYTES]) {
  struct str name = str_c(hf);
  out[0] = 0;
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

enum weight_use weight_use_in_gguf(const char *name) {
  for (size_t i = 0; i < ARRAY_LEN(skipped_gguf_prefixes); i++)
    if (str_starts(str_c(name), skipped_gguf_prefixes[i])) return WEIGHT_SKIPPED;
  return WEIGHT_TEXT;
}
