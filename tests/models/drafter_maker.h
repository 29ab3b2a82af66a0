/* drafter_maker.h — random drafters for a target, as a checkpoint folder and as a GGUF, with their numbers at hand for twins. */
#ifndef CYGNET_TEST_DRAFTER_MAKER_H
#define CYGNET_TEST_DRAFTER_MAKER_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "files/config.h"
#include "files/safetensors.h"
#include "gguf_maker.h"

struct drafter_shape {
  const char *kinds; /* one letter a layer: s, f */
  int hidden, ffn, n_q;
  int n_centroids, n_used; /* 0 = none; fewer clusters where they would not be of one size */
  double post_spread;      /* of the projection to the next hidden row; 0 = as others */
};

struct made_tensor {
  char hf[96], gguf[64];
  int n_dims;
  int64_t shape[2];
  float *data;
};

struct drafter_maker {
  struct drafter_shape s;
  int n_layers, vocab, width, window; /* width: of the target */
  int n_kv[2], head_dim[2];           /* full, sliding */
  struct made_tensor t[80];
  int n;
  int64_t *order; /* [vocab]: tokens, cluster after cluster */
  uint64_t rand;
};

static inline struct made_tensor *maker_find(struct drafter_maker *m, const char *gguf) {
  for (int i = 0; i < m->n; i++)
    if (!strcmp(m->t[i].gguf, gguf)) return &m->t[i];
  fail_msg("no tensor %s", gguf);
  return NULL;
}

static inline void maker_put(struct drafter_maker *m, const char *hf, const char *gguf, int64_t rows, int64_t cols, double mean,
                             double spread) {
  struct made_tensor *t = &m->t[m->n++];
  CHECK(m->n <= (int)ARRAY_LEN(m->t));
  snprintf(t->hf, sizeof t->hf, "%s", hf);
  snprintf(t->gguf, sizeof t->gguf, "%s", gguf);
  t->n_dims = rows ? 2 : 1;
  t->shape[0] = rows ? rows : cols;
  t->shape[1] = cols;
  size_t n = (size_t)(MAX(rows, 1) * cols);
  t->data = xcalloc(n, sizeof *t->data);
  for (size_t i = 0; i < n; i++) t->data[i] = (float)(mean + spread * (double)test_rand_normal(&m->rand));
}
static inline void maker_put_layer(struct drafter_maker *m, int l, const char *hf, const char *gguf, int64_t rows, int64_t cols,
                                   double mean, double spread) {
  char full_hf[96], full_gguf[64];
  snprintf(full_hf, sizeof full_hf, "model.layers.%d.%s", l, hf);
  snprintf(full_gguf, sizeof full_gguf, "blk.%d.%s.weight", l, gguf);
  maker_put(m, full_hf, full_gguf, rows, cols, mean, spread);
}

static inline void maker_init(struct drafter_maker *m, const struct model_config *target, const struct drafter_shape *s, uint64_t seed) {
  memset(m, 0, sizeof *m);
  m->s = *s;
  m->rand = seed;
  m->n_layers = (int)strlen(s->kinds);
  m->vocab = target->vocab;
  while (m->s.n_centroids && m->vocab % m->s.n_centroids) m->s.n_centroids--;
  m->width = target->hidden;
  m->window = target->window_tokens;
  for (int l = 0; l < target->n_layers; l++) {
    int k = target->layers[l].kind == LAYER_SLIDING;
    m->n_kv[k] = target->layers[l].n_kv;
    m->head_dim[k] = target->layers[l].head_dim;
  }
  int h = s->hidden;
  double to_h = 1 / sqrt(h);
  maker_put(m, "model.embed_tokens.weight", "token_embd.weight", m->vocab, h, 0, 0.3);
  maker_put(m, "model.norm.weight", "output_norm.weight", 0, h, 1, 0.25);
  maker_put(m, "pre_projection.weight", "nextn.pre_projection.weight", h, 2 * m->width, 0, 1 / sqrt(2.0 * m->width));
  maker_put(m, "post_projection.weight", "nextn.post_projection.weight", m->width, h, 0, s->post_spread > 0 ? s->post_spread : to_h);
  if (s->n_centroids) {
    maker_put(m, "masked_embedding.centroids.weight", "masked_embd_centroids.weight", m->s.n_centroids, h, 0, to_h);
    m->order = xcalloc((size_t)m->vocab, sizeof *m->order);
    for (int i = 0; i < m->vocab; i++) {
      int j = test_rand_int(&m->rand, 0, i);
      m->order[i] = m->order[j];
      m->order[j] = i;
    }
  }
  for (int l = 0; l < m->n_layers; l++) {
    int d = m->head_dim[s->kinds[l] == 's'], qd = s->n_q * d;
    maker_put_layer(m, l, "input_layernorm.weight", "attn_norm", 0, h, 1, 0.25);
    maker_put_layer(m, l, "self_attn.q_proj.weight", "attn_q", qd, h, 0, to_h);
    maker_put_layer(m, l, "self_attn.q_norm.weight", "attn_q_norm", 0, d, 0.4, 0.1);
    maker_put_layer(m, l, "self_attn.o_proj.weight", "attn_output", h, qd, 0, 1 / sqrt(qd));
    maker_put_layer(m, l, "post_attention_layernorm.weight", "post_attention_norm", 0, h, 1, 0.25);
    maker_put_layer(m, l, "pre_feedforward_layernorm.weight", "ffn_norm", 0, h, 1, 0.25);
    maker_put_layer(m, l, "mlp.gate_proj.weight", "ffn_gate", s->ffn, h, 0, to_h);
    maker_put_layer(m, l, "mlp.up_proj.weight", "ffn_up", s->ffn, h, 0, to_h);
    maker_put_layer(m, l, "mlp.down_proj.weight", "ffn_down", h, s->ffn, 0, 1 / sqrt(s->ffn));
    maker_put_layer(m, l, "post_feedforward_layernorm.weight", "post_ffw_norm", 0, h, 1, 0.25);
    maker_put_layer(m, l, "layer_scalar", "layer_output_scale", 0, 1, l % 2 ? -0.8 : 0.9, 0.1);
  }
}
static inline void maker_free(struct drafter_maker *m) {
  for (int i = 0; i < m->n; i++) free(m->t[i].data);
  free(m->order);
}

/* config.json as text; the value of `key` is another one (NULL: none is). */
static inline void maker_config(const struct drafter_maker *m, char *text, size_t text_bytes, const char *key, const char *value) {
  char types[512] = "";
  for (int l = 0; l < m->n_layers; l++)
    snprintf(types + strlen(types), sizeof types - strlen(types), "%s\"%s_attention\"", l ? "," : "",
             m->s.kinds[l] == 's' ? "sliding" : "full");
  int n = snprintf(
      text, text_bytes,
      "{\"model_type\":\"gemma4_assistant\",\"architectures\":[\"Gemma4AssistantForCausalLM\"],\"backbone_hidden_size\":%d,"
      "\"use_ordered_embeddings\":%s,\"num_centroids\":%d,\"centroid_intermediate_top_k\":%d,\"tie_word_embeddings\":true,"
      "\"text_config\":{\"model_type\":\"gemma4_text\",\"vocab_size\":%d,\"vocab_size_per_layer_input\":0,\"hidden_size\":%d,"
      "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
      "\"num_global_key_value_heads\":%d,\"head_dim\":%d,\"global_head_dim\":%d,\"sliding_window\":%d,\"attention_k_eq_v\":%s,"
      "\"num_kv_shared_layers\":%d,\"use_double_wide_mlp\":false,\"hidden_size_per_layer_input\":0,\"enable_moe_block\":false,"
      "\"max_position_embeddings\":2048,\"layer_types\":[%s],\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\","
      "\"rope_theta\":10000.0},\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000.0,"
      "\"partial_rotary_factor\":0.25}}}}",
      m->width, m->s.n_centroids ? "true" : "false", m->s.n_centroids ? m->s.n_centroids : 2048, m->s.n_used ? m->s.n_used : 32, m->vocab,
      m->s.hidden, m->s.ffn, m->n_layers, m->s.n_q, m->n_kv[1], m->n_kv[0], m->head_dim[1], m->head_dim[0], m->window,
      m->n_kv[0] != m->n_kv[1] ? "true" : "false", m->n_layers, types);
  CHECK(n > 0 && n < (int)text_bytes);
  if (!key) return;
  char quoted[64], rest[4096];
  snprintf(quoted, sizeof quoted, "\"%s\":", key);
  char *at = strstr(text, quoted);
  CHECK(at);
  at += strlen(quoted);
  snprintf(rest, sizeof rest, "%s", at + strcspn(at, ",}"));
  snprintf(at, text_bytes - (size_t)(at - text), "%s%s", value, rest);
}

/* Into a folder of test_tmpdir(); leave_out: a tensor's GGUF name, or NULL. Returns the folder (static). */
static inline const char *maker_write_folder(struct drafter_maker *m, const char *name, const char *config, const char *leave_out) {
  static char folder[512];
  char text[4096], path[600];
  struct err e = {0};
  struct st_write w[80];
  int n = 0;
  snprintf(folder, sizeof folder, "%s/%s", test_tmpdir(), name);
  mkdir(folder, 0755);
  if (!config) maker_config(m, text, sizeof text, NULL, NULL), config = text;
  snprintf(path, sizeof path, "%s/config.json", name);
  test_write(path, config, strlen(config));
  for (int i = 0; i < m->n; i++) {
    struct made_tensor *t = &m->t[i];
    if (leave_out && !strcmp(t->gguf, leave_out)) continue;
    w[n++] = (struct st_write){t->hf, DTYPE_F32, t->n_dims, {t->shape[0], t->shape[1]}, t->data};
  }
  if (m->order && !(leave_out && !strcmp(leave_out, "masked_embd_ordering")))
    w[n++] = (struct st_write){"masked_embedding.token_ordering", DTYPE_I64, 1, {m->vocab}, m->order};
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  if (safetensors_write(path, w, n, &e)) fail_msg("%s", e.msg);
  return folder;
}

/* Clusters: whether the file keeps them; most converters do not. */
static inline const char *maker_write_gguf(struct drafter_maker *m, const char *name, bool clusters) {
  enum { GM_I64_TENSOR = 27 };
  struct gguf_maker g;
  uint8_t pattern[32];
  int32_t n_kv[32];
  for (int l = 0; l < m->n_layers; l++) {
    pattern[l] = m->s.kinds[l] == 's';
    n_kv[l] = m->n_kv[pattern[l]];
  }
  gguf_maker_init(&g);
  gguf_maker_str(&g, "general.architecture", "gemma4-assistant");
#define KEY(x) "gemma4-assistant." x
  const struct {
    const char *key;
    int v;
  } numbers[] = {{KEY("block_count"), m->n_layers},
                 {KEY("context_length"), 2048},
                 {KEY("embedding_length"), m->s.hidden},
                 {KEY("embedding_length_out"), m->width},
                 {KEY("feed_forward_length"), m->s.ffn},
                 {KEY("attention.head_count"), m->s.n_q},
                 {KEY("attention.key_length"), m->head_dim[0]},
                 {KEY("attention.value_length"), m->head_dim[0]},
                 {KEY("attention.key_length_swa"), m->head_dim[1]},
                 {KEY("attention.value_length_swa"), m->head_dim[1]},
                 {KEY("attention.sliding_window"), m->window},
                 {KEY("attention.shared_kv_layers"), m->n_layers},
                 {KEY("nextn_predict_layers"), m->n_layers},
                 {KEY("rope.dimension_count"), m->head_dim[0]},
                 {KEY("rope.dimension_count_swa"), m->head_dim[1]}};
  for (size_t i = 0; i < ARRAY_LEN(numbers); i++) gguf_maker_u32(&g, numbers[i].key, (uint32_t)numbers[i].v);
  gguf_maker_f32(&g, KEY("attention.layer_norm_rms_epsilon"), 1e-6f);
  gguf_maker_f32(&g, KEY("rope.freq_base"), 1e6f);
  gguf_maker_f32(&g, KEY("rope.freq_base_swa"), 1e4f);
  gguf_maker_array(&g, KEY("attention.sliding_window_pattern"), GM_BOOL, pattern, (uint64_t)m->n_layers, 1);
  gguf_maker_array(&g, KEY("attention.head_count_kv"), GM_I32, n_kv, (uint64_t)m->n_layers, 4);
#undef KEY
  float freqs[512];
  int half = m->head_dim[0] / 2;
  for (int i = 0; i < half; i++) freqs[i] = i < half / 4 ? 1 : 1e30f;
  gguf_maker_tensor(&g, "rope_freqs.weight", GM_F32, 1, (uint64_t[]){(uint64_t)half}, freqs, (size_t)half * 4);
  for (int i = 0; i < m->n; i++) {
    struct made_tensor *t = &m->t[i];
    if (!clusters && !strcmp(t->gguf, "masked_embd_centroids.weight")) continue;
    uint64_t ne[2] = {(uint64_t)t->shape[t->n_dims - 1], (uint64_t)t->shape[0]};
    gguf_maker_tensor(&g, t->gguf, GM_F32, (uint32_t)t->n_dims, ne, t->data, sizeof(float) * ne[0] * (t->n_dims == 2 ? ne[1] : 1));
  }
  if (clusters && m->order)
    gguf_maker_tensor(&g, "masked_embd_ordering", GM_I64_TENSOR, 1, (uint64_t[]){(uint64_t)m->vocab}, m->order, (size_t)m->vocab * 8);
  size_t n_bytes;
  unsigned char *file = gguf_maker_finish(&g, &n_bytes);
  const char *path = test_write(name, file, n_bytes);
  free(file);
  return path;
}

#endif
