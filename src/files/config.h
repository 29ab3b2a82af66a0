/* config.h — what a model is: one record for every family, filled from config.json or from GGUF metadata.
 *
 * Every field says which key it comes from: HF name | GGUF name (after "ARCH."). Values are checked against hard limits here, so
 * that no later code multiplies unchecked numbers. Per-layer facts are per layer: nothing is taken from layer 0.
 * Source of the rules: the model cards and docs/models/NAME.md.
 */
#ifndef CYGNET_CONFIG_H
#define CYGNET_CONFIG_H

#include "files/gguf.h"

enum model_family { FAMILY_NONE, FAMILY_GEMMA3, FAMILY_GEMMA4, FAMILY_MLLAMA };
const char *model_family_name(enum model_family f);

enum layer_kind { LAYER_FULL, LAYER_SLIDING, LAYER_CROSS };
enum vision_kind { VISION_NONE, VISION_SIGLIP, VISION_GEMMA4, VISION_GEMMA4_BLOCKS, VISION_MLLAMA }; /* BLOCKS: Gemma 4 12B, no encoder */
enum audio_kind { AUDIO_NONE, AUDIO_GEMMA4, AUDIO_GEMMA4_FRAMES };                                   /* FRAMES: Gemma 4 12B, no encoder */

enum {
  CONFIG_LAYERS_MAX = 256,
  CONFIG_EOS_MAX = 8,
  CONFIG_SUPPRESSED_MAX = 16,
  CONFIG_EXPERTS_MAX = 1024,
  CONFIG_VOCAB_MAX = 1 << 20,
  CONFIG_HIDDEN_MAX = 65536,
  CONFIG_FFN_MAX = 1 << 20,
  CONFIG_HEADS_MAX = 256,
  CONFIG_HEAD_DIM_MAX = 1024,
  CONFIG_TOKENS_MAX = 1 << 24, /* of context and window */
  CONFIG_STATES_MAX = 16,      /* recorded states of mllama's encoder */
  CONFIG_TILES_MAX = 16,
  CONFIG_IMAGE_MAX = 4096, /* pixels a side of a picture or tile of fixed size */
  CONFIG_PATCH_MAX = 64
};

struct rope_config {
  double theta;  /* rope_theta / rope_parameters.*.rope_theta | rope.freq_base, rope.freq_base_swa */
  double factor; /* angles are divided by it; 1 = none. (rope_scaling.)factor | rope.scaling.factor (full layers only), rope_freqs.weight */
  double
      rotated; /* share of head_dim that rotates, 1 = all: the first int(rotated * head_dim / 2) pairs. partial_rotary_factor | rope_freqs.weight */
};

/* Llama 3's scaling: factor 1 for short waves, `factor` for long ones, between them a blend. (rope_scaling.)… | rope_freqs.weight */
struct rope_bands {
  double factor;    /* 0 = none */
  double low, high; /* low_freq_factor, high_freq_factor */
  int tokens;       /* original_max_position_embeddings */
};

/* vision_config and preprocessor_config.json, processor_config.json (image_processor) | clip.vision.* of an mmproj, mllama.vision.* */
struct vision_config {
  enum vision_kind kind;
  int hidden, ffn, n_layers, n_heads, head_dim; /* BLOCKS: hidden = mm_embed_dim, the others 0 */
  int patch;                                    /* pixels a side of a patch; BLOCKS: of the small ones that pool x pool of make a block */
  int pool;        /* patches a side that become one soft token: pooling_kernel_size; SIGLIP: from mm_tokens_per_image; MLLAMA: 1 */
  int image;       /* SIGLIP: pixels a side of a picture; MLLAMA: of a tile; else 0 */
  int n_positions; /* rows of the position table(s): position_embedding_size, mm_posemb_size; SIGLIP, MLLAMA: from image and patch */
  int soft_tokens; /* of a picture. SIGLIP: mm_tokens_per_image; Gemma 4: the processor's max_soft_tokens; MLLAMA: 0 */
  float norm_eps;
  double rope_theta;
  bool clipped, standardize;
  int n_global_layers, n_tiles, out_dim; /* MLLAMA: num_global_layers, max_num_tiles, vision_output_dim */
  int n_states, states[CONFIG_STATES_MAX];
  int n_ratios, ratios[2 * CONFIG_TILES_MAX][2]; /* MLLAMA: tiles high, tiles wide; a picture's id is 1 + its place here */
  float mean[3], std[3];                         /* of values 0 .. 1; Gemma 4: 0 and 1 */
};

struct audio_config { /* audio_config | clip.audio.* of an mmproj */
  enum audio_kind kind;
  int hidden, n_layers, n_heads; /* FRAMES: hidden = samples of a frame */
  int channels[2];               /* of the two convolutions */
  int n_mel, conv_taps;
  int keys_left;  /* keys a row sees, its own included: attention_context_left - 1 (docs/models/gemma4.md) */
  int n_relative; /* relative positions with an embedding: attention_context_left */
  int out_dim;
  float logit_cap, residual_weight, norm_eps;
  bool clipped;
};

struct layer_config {
  enum layer_kind kind; /* layer_types[l], or from the period | attention.sliding_window_pattern, or period 6 */
  int n_q;              /* num_attention_heads | attention.head_count */
  int n_kv;             /* num_key_value_heads | attention.head_count_kv (scalar or array) */
  int head_dim;         /* head_dim, global_head_dim | attention.key_length, .key_length_swa */
  int ffn;              /* intermediate_size | feed_forward_length (scalar or array) */
  int kv_donor; /* layer whose keys and values this one reads; itself when it owns some: the last layer of its kind before the sharing ones.
                           num_kv_shared_layers | attention.shared_kv_layers. -1 in a drafter: a layer of its target */
  bool v_from_k; /* no value projection: values are the raw keys, normed. attention_k_eq_v on full layers | no attn_v tensor */
};

struct model_config {
  enum model_family family;
  char architecture[64]; /* model_type | general.architecture, for people */
  char name[128];        /* general.name or folder name, escaped */
  int vocab;             /* vocab_size | rows of token_embd */
  int hidden;            /* hidden_size | embedding_length */
  int n_layers;          /* num_hidden_layers | block_count */
  int ctx_tokens;        /* max_position_embeddings | context_length */
  int window_tokens;     /* sliding_window | attention.sliding_window: keys seen, own included; 0 = no sliding layer */
  float norm_eps;        /* rms_norm_eps | attention.layer_norm_rms_epsilon */
  bool norm_plus_one;    /* weights stored as w, used as 1 + w: Gemma 3 safetensors true, GGUF false (already added) */
  float embed_scale;     /* Gemma: sqrt(hidden), unrounded float32 */
  float attn_scale;      /* query_pre_attn_scalar^-1/2 | 62 layers: (hidden/n_q)^-1/2, else head_dim^-1/2 */
  bool tied_head;        /* the head is token_embd: tie_word_embeddings | no output.weight */
  float final_softcap;   /* final_logit_softcapping | same; 0 = off */
  struct rope_config rope_full, rope_sliding;
  int32_t bos, pad;            /* -1 = none */
  int32_t eos[CONFIG_EOS_MAX]; /* end-of-generation ids: eos_token_id of generation_config/config | the family's own (1, 106 for Gemma 3) */
  int n_eos;
  /* Gemma 4; 0 = none of it */
  int ple;            /* width of the per-layer embeddings. hidden_size_per_layer_input | embedding_length_per_layer_input */
  int ple_vocab;      /* their rows. vocab_size_per_layer_input | rows of per_layer_token_embd */
  int n_experts;      /* num_experts where enable_moe_block | expert_count: router and experts beside the dense product in every layer */
  int n_experts_used; /* top_k_experts | expert_used_count */
  int expert_ffn;     /* moe_intermediate_size | expert_feed_forward_length */
  /* a drafter: a small model that guesses what another one, its target, says next; 0 = a model of its own */
  int backbone_hidden; /* width of the target's hidden states. backbone_hidden_size | embedding_length_out */
  int n_centroids; /* its vocabulary comes in so many clusters; 0 = not. num_centroids where use_ordered_embeddings | rows of masked_embd_centroids */
  int n_centroids_used; /* clusters that are looked into for a token. centroid_intermediate_top_k | 32 */
  int32_t suppressed
      [CONFIG_SUPPRESSED_MAX]; /* ids that are never sampled. suppress_tokens of generation_config | tokenizer.ggml.suppress_tokens */
  int n_suppressed;
  /* pictures and sound; kinds NONE when the file has no encoder for them, or an mmproj is needed and not given */
  struct vision_config vision;
  struct audio_config audio;
  int32_t image_id, video_id, audio_id; /* stand where a picture's, a video frame's, a sound's rows go, once per row; -1 = none.
                                           image_token_id, image_token_index, … | by name from the vocabulary */
  int32_t boi, eoi, boa, eoa;           /* around them; -1 = none */
  /* Rows of one picture see each other in layers of that kind. use_bidirectional_attention; Gemma 3: both. */
  bool both_ways_full, both_ways_sliding;
  struct rope_bands rope_bands; /* mllama */
  struct layer_config layers[CONFIG_LAYERS_MAX];
};

static inline bool config_has_cross(const struct model_config *c) { return c->family == FAMILY_MLLAMA; }

/* From a GGUF's metadata. vocab comes from token_embd.weight's shape; without tensors from the list of tokens. */
int config_from_gguf(struct model_config *c, const struct gguf *g, struct err *e);
/* The same of a split set: the metadata is that of the first part, token_embd.weight may be in any. */
int config_from_gguf_parts(struct model_config *c, const struct gguf *parts, int n_parts, struct err *e);
/* The encoders' part from an mmproj into the configuration of its model. */
int config_media_from_mmproj(struct model_config *c, const struct gguf *parts, int n_parts, struct err *e);
/* From a folder's config.json (and generation_config.json when present). Old and new spellings, nested text_config. */
int config_from_folder(struct model_config *c, const char *folder, struct err *e);
/* The same from text, for tests and fuzzing. generation may be NULL. */
int config_from_json(struct model_config *c, const char *config, size_t n, const char *generation, size_t n_generation, const char *where,
                     struct err *e);

#endif
