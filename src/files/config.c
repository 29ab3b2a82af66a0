/* config.c — the families this build knows, and the checks that no family escapes. */
#include "files/config.h"

#include <stdio.h>
#include <string.h>

#include "files/config_read.h"

static const struct config_family families[] = {
    {"gemma3", FAMILY_GEMMA3, config_gemma3_from_json, config_gemma3_from_gguf, NULL},
    {"gemma3_text", FAMILY_GEMMA3, config_gemma3_from_json, NULL, NULL},
    {"gemma4", FAMILY_GEMMA4, config_gemma4_from_json, config_gemma4_from_gguf, NULL},
    {"gemma4_text", FAMILY_GEMMA4, config_gemma4_from_json, NULL, NULL},
    {"gemma4_unified", FAMILY_GEMMA4, config_gemma4_from_json, NULL, NULL},
    {"gemma4_unified_text", FAMILY_GEMMA4, config_gemma4_from_json, NULL, NULL},
    {"gemma4-assistant", FAMILY_GEMMA4, NULL, config_gemma4_drafter_from_gguf, NULL},
    {"gemma4_assistant", FAMILY_GEMMA4, config_gemma4_drafter_from_json, NULL, NULL},
    {"gemma4_unified_assistant", FAMILY_GEMMA4, config_gemma4_drafter_from_json, NULL, NULL},
    /* recognised, so that the refusal says what the file is */
    {"diffusion_gemma", FAMILY_GEMMA4, NULL, NULL, "it writes whole blocks by diffusion, not one token after another"},
    {"diffusion-gemma", FAMILY_GEMMA4, NULL, NULL, "it writes whole blocks by diffusion, not one token after another"},
    {"mllama", FAMILY_MLLAMA, config_mllama_from_json, config_mllama_from_gguf, NULL},
    {"mllama_text_model", FAMILY_MLLAMA, config_mllama_from_json, NULL, NULL},
    {"clip", FAMILY_NONE, NULL, NULL, "it is the vision or audio part of a model: give it with --mmproj beside the model"},
    {"gemma-embedding", FAMILY_NONE, NULL, NULL, "it makes embeddings, not text"},
    {"embedding_gemma2", FAMILY_NONE, NULL, NULL, "it makes embeddings, not text"},
    {"gemma-embedding2", FAMILY_NONE, NULL, NULL, "it makes embeddings, not text"},
};

const char *model_family_name(enum model_family f) {
  switch (f) {
  case FAMILY_GEMMA3: return "gemma3";
  case FAMILY_GEMMA4: return "gemma4";
  case FAMILY_MLLAMA: return "mllama";
  case FAMILY_NONE: break;
  }
  return "none";
}

/* Names of the families, each once: a family's first row comes before its others. */
static void list_runnable(char *text, size_t text_bytes) {
  size_t at = 0;
  enum model_family last = FAMILY_NONE;
  text[0] = 0;
  for (size_t i = 0; i < ARRAY_LEN(families) && at < text_bytes; i++) {
    if (families[i].family == last || !families[i].from_json) continue;
    last = families[i].family;
    at += (size_t)snprintf(text + at, text_bytes - at, "%s%s", at ? ", " : "", model_family_name(last));
  }
}

const struct config_family *config_family_find(const char *architecture, bool gguf, const char *where, struct err *e) {
  const struct config_family *f = NULL;
  for (size_t i = 0; i < ARRAY_LEN(families) && !f; i++)
    if (!strcmp(families[i].architecture, architecture)) f = &families[i];
  if (f && (gguf ? f->from_gguf != NULL : f->from_json != NULL)) return f;
  char text[100], runnable[200];
  list_runnable(runnable, sizeof runnable);
  const char *advice = f && f->advice ? f->advice : NULL;
  err_set(e, ERR_UNSUPPORTED, "%s: architecture %s: %s%sthis build runs %s", where, str_escape(str_c(architecture), text, sizeof text),
          advice ? advice : "", advice ? "; " : "", runnable);
  return NULL;
}

bool config_add_eos(struct model_config *c, int32_t id) {
  for (int i = 0; i < c->n_eos; i++)
    if (c->eos[i] == id) return true;
  if (c->n_eos == CONFIG_EOS_MAX) return false;
  c->eos[c->n_eos++] = id;
  return true;
}

static int check_layer(const struct model_config *c, int l, const char *where, struct err *e) {
  const struct layer_config *y = &c->layers[l];
  if (y->n_q < 1 || y->n_kv < 1 || y->n_q % y->n_kv)
    return err_set(e, ERR_BAD_FILE,
                   "%s: layer %d: expected the number of query heads to be a multiple of that of key heads, found %d and %d", where, l,
                   y->n_q, y->n_kv);
  if (y->head_dim < 2 || y->head_dim % 2)
    return err_set(e, ERR_BAD_FILE, "%s: layer %d: expected an even width of heads, found %d", where, l, y->head_dim);
  if (y->kind == LAYER_SLIDING && c->window_tokens < 1)
    return err_set(e, ERR_BAD_FILE, "%s: layer %d is a sliding one, but the model has no window", where, l);
  if (c->backbone_hidden) { /* donors are another model's */
    CHECK(y->kv_donor == -1);
    return 0;
  }
  CHECK(y->kv_donor >= 0 && y->kv_donor <= l);
  const struct layer_config *donor = &c->layers[y->kv_donor];
  CHECK(donor->kind == y->kind && donor->kv_donor == y->kv_donor);
  if (donor->n_kv != y->n_kv || donor->head_dim != y->head_dim)
    return err_set(
        e, ERR_BAD_FILE,
        "%s: layer %d reads the keys and values of layer %d: expected as many heads of the same width, found %d of %d and %d of %d", where,
        l, y->kv_donor, y->n_kv, y->head_dim, donor->n_kv, donor->head_dim);
  return 0;
}

static int check_experts(const struct model_config *c, const char *where, struct err *e) {
  if (c->n_experts == 0) return 0;
  if (c->n_experts_used < 1 || c->n_experts_used > c->n_experts)
    return err_set(e, ERR_BAD_FILE, "%s: expected 1 to %d of the %d experts to be used for a token, found %d", where, c->n_experts,
                   c->n_experts, c->n_experts_used);
  return 0;
}

static int check_per_layer(const struct model_config *c, const char *where, struct err *e) {
  if (c->ple == 0 || c->ple_vocab >= c->vocab) return 0;
  return err_set(e, ERR_BAD_FILE, "%s: expected per-layer embeddings of all %d tokens, found %d", where, c->vocab, c->ple_vocab);
}

static int check_centroids(const struct model_config *c, const char *where, struct err *e) {
  if (c->n_centroids == 0) return 0;
  if (c->vocab % c->n_centroids)
    return err_set(e, ERR_BAD_FILE, "%s: expected clusters of the same size, found %d for %d tokens", where, c->n_centroids, c->vocab);
  if (c->n_centroids_used < 1 || c->n_centroids_used > c->n_centroids)
    return err_set(e, ERR_BAD_FILE, "%s: expected 1 to %d of the %d clusters to be looked into for a token, found %d", where,
                   c->n_centroids, c->n_centroids, c->n_centroids_used);
  return 0;
}

int config_check(const struct model_config *c, const char *where, struct err *e) {
  /* the getters have seen to these */
  CHECK(c->n_layers >= 1 && c->n_layers <= CONFIG_LAYERS_MAX && c->hidden >= 1 && c->hidden <= CONFIG_HIDDEN_MAX && c->vocab >= 1 &&
        c->vocab <= CONFIG_VOCAB_MAX);
  for (int l = 0; l < c->n_layers; l++)
    if (check_layer(c, l, where, e) != 0) return -1;
  if (check_experts(c, where, e) != 0 || check_per_layer(c, where, e) != 0 || check_centroids(c, where, e) != 0) return -1;
  const struct {
    const char *what;
    double v;
  } positive[] = {{"the epsilon of its norms", (double)c->norm_eps},
                  {"the attention scale", (double)c->attn_scale},
                  {"the embedding scale", (double)c->embed_scale},
                  {"the base of its rotary embedding", c->rope_full.theta},
                  {"the rope factor", c->rope_full.factor},
                  {"the base of the sliding layers' rotary embedding", c->rope_sliding.theta},
                  {"the sliding layers' rope factor", c->rope_sliding.factor},
                  {"the part of its heads that rotates", c->rope_full.rotated},
                  {"the part of the sliding layers' heads that rotates", c->rope_sliding.rotated}};
  for (size_t i = 0; i < ARRAY_LEN(positive); i++)
    if (!(positive[i].v > 0) || !isfinite(positive[i].v))
      return err_set(e, ERR_BAD_FILE, "%s: expected %s to be above 0, found %g", where, positive[i].what, positive[i].v);
  return 0;
}
