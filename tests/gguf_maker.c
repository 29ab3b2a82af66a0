/* gguf_maker.c — see gguf_maker.h. */
#include "gguf_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct gm_bytes *b, const void *p, size_t n) {
  if (b->n + n > b->cap) {
    b->cap = (b->n + n) * 2;
    b->data = realloc(b->data, b->cap);
    if (!b->data) abort();
  }
  if (n && p) memcpy(b->data + b->n, p, n);
  else if (n) memset(b->data + b->n, 0, n);
  b->n += n;
}
static void put_le(struct gm_bytes *b, uint64_t v, int n) {
  for (int i = 0; i < n; i++) put(b, (unsigned char[]){(unsigned char)(v >> (8 * i))}, 1);
}
static void put_str(struct gm_bytes *b, const char *s, size_t n) {
  put_le(b, n, 8);
  put(b, s, n);
}

void gguf_maker_init(struct gguf_maker *m) {
  *m = (struct gguf_maker){.version = 3, .alignment = 32, .claimed_kv = UINT64_MAX, .claimed_tensors = UINT64_MAX};
}

unsigned char *gguf_maker_finish(struct gguf_maker *m, size_t *n_bytes) {
  struct gm_bytes file = {0};
  put(&file, "GGUF", 4);
  put_le(&file, m->version, 4);
  put_le(&file, m->claimed_tensors != UINT64_MAX ? m->claimed_tensors : m->n_tensors, 8);
  put_le(&file, m->claimed_kv != UINT64_MAX ? m->claimed_kv : m->n_kv, 8);
  put(&file, m->kv.data, m->kv.n);
  put(&file, m->info.data, m->info.n);
  if (m->n_tensors) put(&file, NULL, (m->alignment - file.n % m->alignment) % m->alignment);
  put(&file, m->data.data, m->data.n);
  free(m->kv.data);
  free(m->info.data);
  free(m->data.data);
  *m = (struct gguf_maker){0};
  *n_bytes = file.n;
  return file.data;
}

void gguf_maker_kv(struct gguf_maker *m, const char *key, size_t key_bytes, uint32_t type, const void *value, size_t n_bytes) {
  put_str(&m->kv, key, key_bytes);
  put_le(&m->kv, type, 4);
  put(&m->kv, value, n_bytes);
  m->n_kv++;
}

void gguf_maker_u32(struct gguf_maker *m, const char *key, uint32_t v) { gguf_maker_kv(m, key, strlen(key), GM_U32, &v, 4); }
void gguf_maker_f32(struct gguf_maker *m, const char *key, float v) { gguf_maker_kv(m, key, strlen(key), GM_F32_KV, &v, 4); }
void gguf_maker_bool(struct gguf_maker *m, const char *key, int v) {
  gguf_maker_kv(m, key, strlen(key), GM_BOOL, (unsigned char[]){v ? 1 : 0}, 1);
}

/* value is made in a scratch block, then added like any other */
void gguf_maker_str(struct gguf_maker *m, const char *key, const char *v) {
  struct gm_bytes b = {0};
  put_str(&b, v, strlen(v));
  gguf_maker_kv(m, key, strlen(key), GM_STR, b.data, b.n);
  free(b.data);
}

void gguf_maker_array(struct gguf_maker *m, const char *key, uint32_t type, const void *elems, uint64_t n, size_t elem_bytes) {
  struct gm_bytes b = {0};
  put_le(&b, type, 4);
  put_le(&b, n, 8);
  put(&b, elems, n * elem_bytes);
  gguf_maker_kv(m, key, strlen(key), GM_ARRAY, b.data, b.n);
  free(b.data);
}

void gguf_maker_strings(struct gguf_maker *m, const char *key, const char *const *v, uint64_t n) {
  struct gm_bytes b = {0};
  put_le(&b, GM_STR, 4);
  put_le(&b, n, 8);
  for (uint64_t i = 0; i < n; i++) put_str(&b, v[i], strlen(v[i]));
  gguf_maker_kv(m, key, strlen(key), GM_ARRAY, b.data, b.n);
  free(b.data);
}

void gguf_maker_entry(struct gguf_maker *m, const char *name, size_t name_bytes, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                      uint64_t offset) {
  put_str(&m->info, name, name_bytes);
  put_le(&m->info, n_dims, 4);
  for (uint32_t i = 0; i < n_dims; i++) put_le(&m->info, ne[i], 8);
  put_le(&m->info, type, 4);
  put_le(&m->info, offset, 8);
  m->n_tensors++;
}

void gguf_maker_tensor(struct gguf_maker *m, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, const void *data,
                       size_t n_bytes) {
  put(&m->data, NULL, (m->alignment - m->data.n % m->alignment) % m->alignment);
  gguf_maker_entry(m, name, strlen(name), type, n_dims, ne, m->data.n);
  put(&m->data, data, n_bytes);
}

/* --- a whole model ------------------------------------------------------------------------------------------------------ */

static uint64_t state;
static float uniform(void) { /* in [-1, 1) */
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)((double)(state >> 40) / (1 << 23) - 1);
}

static void f32_tensor(struct gguf_maker *m, const char *name, int rows, int cols) {
  size_t n = (size_t)(rows ? rows : 1) * (size_t)cols;
  float *data = malloc(n * sizeof *data);
  if (!data) abort();
  for (size_t i = 0; i < n; i++) data[i] = rows ? uniform() * 0.3f : 1 + uniform() * 0.5f;
  gguf_maker_tensor(m, name, GM_F32, rows ? 2 : 1, (uint64_t[]){(uint64_t)cols, (uint64_t)rows}, data, n * sizeof *data);
  free(data);
}

void gguf_maker_gemma3(struct gguf_maker *m, const struct gm_gemma3 *g, int weights) {
  gguf_maker_str(m, "general.architecture", "gemma3");
  gguf_maker_str(m, "general.name", "made for a test");
  const struct {
    const char *key;
    int v;
  } keys[] = {{"gemma3.block_count", g->n_layers},           {"gemma3.context_length", 1024},
              {"gemma3.embedding_length", g->hidden},        {"gemma3.feed_forward_length", g->ffn},
              {"gemma3.attention.head_count", g->n_q},       {"gemma3.attention.head_count_kv", g->n_kv},
              {"gemma3.attention.key_length", g->head_dim},  {"gemma3.attention.value_length", g->head_dim},
              {"gemma3.attention.sliding_window", g->window}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) gguf_maker_u32(m, keys[i].key, (uint32_t)keys[i].v);
  gguf_maker_f32(m, "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
  gguf_maker_f32(m, "gemma3.rope.freq_base", 1e6f);
  if (!weights) return;
  state = 1;
  f32_tensor(m, "token_embd.weight", g->vocab, g->hidden);
  f32_tensor(m, "output_norm.weight", 0, g->hidden);
  const struct {
    const char *name;
    int rows, cols;
  } layer[] = {{"attn_norm", 0, g->hidden},
               {"attn_q", g->n_q * g->head_dim, g->hidden},
               {"attn_k", g->n_kv * g->head_dim, g->hidden},
               {"attn_v", g->n_kv * g->head_dim, g->hidden},
               {"attn_output", g->hidden, g->n_q * g->head_dim},
               {"attn_q_norm", 0, g->head_dim},
               {"attn_k_norm", 0, g->head_dim},
               {"post_attention_norm", 0, g->hidden},
               {"ffn_norm", 0, g->hidden},
               {"ffn_gate", g->ffn, g->hidden},
               {"ffn_up", g->ffn, g->hidden},
               {"ffn_down", g->hidden, g->ffn},
               {"post_ffw_norm", 0, g->hidden}};
  for (int l = 0; l < g->n_layers; l++)
    for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
      char name[80];
      snprintf(name, sizeof name, "blk.%d.%s.weight", l, layer[i].name);
      f32_tensor(m, name, layer[i].rows, layer[i].cols);
    }
}
