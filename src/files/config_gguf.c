/* config_gguf.c — GGUF metadata: finding the family, and the getters of its reader. */
#include <stdio.h>
#include <string.h>

#include "files/config_read.h"

enum { KEY_BYTES = 160 };

static const struct gguf *meta(const struct config_gguf *s) { return &s->parts[0]; }

static const char *full_key(const struct config_gguf *s, const char *name, char key[KEY_BYTES]) {
  snprintf(key, KEY_BYTES, "%s.%s", s->arch, name);
  return key;
}

int config_gguf_refuse(const struct config_gguf *s, const char *name, enum err_code code, const char *what, struct err *e) {
  char label[200];
  return err_set(e, code, "%s: key %s.%s: %s", map_label(meta(s)->map, label), s->arch, name, what);
}

static int missing(const struct config_gguf *s, const char *name, struct err *e) {
  return config_gguf_refuse(s, name, ERR_BAD_FILE, "expected this key, it is missing", e);
}

static int in_range(const struct config_gguf *s, const char *name, int64_t v, int64_t lo, int64_t hi, int *out, struct err *e) {
  if (v < lo || v > hi) {
    char what[120];
    snprintf(what, sizeof what, "expected an integer from %lld to %lld, file has %lld", (long long)lo, (long long)hi, (long long)v);
    return config_gguf_refuse(s, name, ERR_BAD_FILE, what, e);
  }
  *out = (int)v;
  return 0;
}

int config_gguf_int(const struct config_gguf *s, const char *name, int64_t lo, int64_t hi, int64_t dflt, int *out, struct err *e) {
  char key[KEY_BYTES];
  uint32_t v = 0;
  int found = gguf_u32(meta(s), full_key(s, name, key), &v, e);
  if (found < 0) return -1;
  if (!found && dflt == CONFIG_REQUIRED_INT) return missing(s, name, e);
  return in_range(s, name, found ? (int64_t)v : dflt, lo, hi, out, e);
}

int config_gguf_float(const struct config_gguf *s, const char *name, double lo, double hi, double dflt, double *out, struct err *e) {
  char key[KEY_BYTES];
  float v = 0;
  int found = gguf_f32(meta(s), full_key(s, name, key), &v, e);
  if (found < 0) return -1;
  if (!found && isnan(dflt)) return missing(s, name, e);
  *out = found ? (double)v : dflt;
  if (found && !(*out >= lo && *out <= hi)) {
    char what[120];
    snprintf(what, sizeof what, "expected a number from %g to %g, file has %g", lo, hi, *out);
    return config_gguf_refuse(s, name, ERR_BAD_FILE, what, e);
  }
  return 0;
}

int config_gguf_layer_int(const struct config_gguf *s, const char *name, int layer, int n_layers, int64_t lo, int64_t hi, int64_t dflt,
                          int *out, struct err *e) {
  char key[KEY_BYTES];
  const struct gguf_kv *kv = gguf_find(meta(s), full_key(s, name, key));
  if (!kv || !kv->is_array) return config_gguf_int(s, name, lo, hi, dflt, out, e);
  if (kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64 || kv->n != (uint64_t)n_layers) {
    char what[120];
    snprintf(what, sizeof what, "expected an integer or %d of them, file has %llu of type %s", n_layers, (unsigned long long)kv->n,
             gguf_type_name(kv->type));
    return config_gguf_refuse(s, name, ERR_BAD_FILE, what, e);
  }
  return in_range(s, name, gguf_kv_int(kv, (uint64_t)layer), lo, hi, out, e);
}

int config_gguf_layer_kinds(struct model_config *c, const struct config_gguf *s, int period, struct err *e) {
  static const char name[] = "attention.sliding_window_pattern";
  char key[KEY_BYTES];
  const struct gguf_kv *kv = gguf_find(meta(s), full_key(s, name, key));
  bool is_array = kv && kv->is_array;
  for (int l = 0; l < c->n_layers; l++) {
    int v = 0;
    if (config_gguf_layer_int(s, name, l, c->n_layers, is_array ? 0 : 1, CONFIG_LAYERS_MAX, period ? period : CONFIG_REQUIRED_INT, &v, e) !=
        0)
      return -1;
    c->layers[l].kind = is_array ? (v ? LAYER_SLIDING : LAYER_FULL) : config_kind_by_period(l, v);
  }
  return 0;
}

int config_gguf_text(const struct config_gguf *s, const char *name, struct str *out, struct err *e) {
  char key[KEY_BYTES];
  return gguf_str(meta(s), full_key(s, name, key), out, e);
}

const struct gguf_tensor *config_gguf_tensor(const struct config_gguf *s, const char *name) {
  const struct gguf_tensor *t = NULL;
  for (int i = 0; i < s->n_parts && !t; i++) t = gguf_find_tensor(&s->parts[i], name);
  return t;
}

int config_gguf_vocab(struct model_config *c, const struct config_gguf *s, struct err *e) {
  char label[200];
  map_label(meta(s)->map, label);
  const struct gguf_tensor *embd = config_gguf_tensor(s, "token_embd.weight");
  const struct gguf_kv *tokens = gguf_find(meta(s), "tokenizer.ggml.tokens");
  int64_t n = -1;
  if (embd) {
    if (embd->n_dims != 2 || embd->shape[1] != c->hidden)
      return err_set(e, ERR_BAD_FILE, "%s: tensor token_embd.weight: expected [tokens, %d], file has %d dimensions, the last of %lld",
                     label, c->hidden, embd->n_dims, (long long)embd->shape[embd->n_dims - 1]);
    n = embd->shape[0];
  } else if (tokens && tokens->is_array) {
    n = (int64_t)MIN(tokens->n, (uint64_t)INT64_MAX);
  } else {
    return err_set(e, ERR_BAD_FILE, "%s: expected tensor token_embd.weight or key tokenizer.ggml.tokens, found neither", label);
  }
  if (n < 1 || n > CONFIG_VOCAB_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: %s: expected 1 to %d tokens, file has %lld", label,
                   embd ? "tensor token_embd.weight" : "key tokenizer.ggml.tokens", CONFIG_VOCAB_MAX, (long long)n);
  c->vocab = (int)n;
  c->tied_head = config_gguf_tensor(s, "output.weight") == NULL;
  return 0;
}

static int read_id(const struct config_gguf *s, const char *key, int vocab, int32_t *id, struct err *e) {
  uint32_t v = 0;
  int found = gguf_u32(meta(s), key, &v, e);
  if (found <= 0) return found;
  if (v == UINT32_MAX) return 0; /* how some writers say none */
  if (v >= (uint32_t)vocab) {
    char label[200];
    return err_set(e, ERR_BAD_FILE, "%s: key %s: expected an id from 0 to %d, file has %u", map_label(meta(s)->map, label), key, vocab - 1,
                   v);
  }
  *id = (int32_t)v;
  return 1;
}

int config_gguf_ids(struct model_config *c, const struct config_gguf *s, int bos, int pad, int eos, struct err *e) {
  int32_t id = eos;
  c->bos = bos < c->vocab ? bos : -1;
  c->pad = pad < c->vocab ? pad : -1;
  if (read_id(s, "tokenizer.ggml.bos_token_id", c->vocab, &c->bos, e) < 0 ||
      read_id(s, "tokenizer.ggml.padding_token_id", c->vocab, &c->pad, e) < 0)
    return -1;
  if (read_id(s, "tokenizer.ggml.eos_token_id", c->vocab, &id, e) < 0) return -1;
  if (id < c->vocab) config_add_eos(c, id);
  int found = read_id(s, "tokenizer.ggml.eot_token_id", c->vocab, &id, e);
  if (found > 0) config_add_eos(c, id);
  return found < 0 ? -1 : 0;
}

int config_gguf_suppressed(struct model_config *c, const struct config_gguf *s, struct err *e) {
  static const char key[] = "tokenizer.ggml.suppress_tokens";
  char label[200];
  const struct gguf_kv *kv = gguf_find(meta(s), key);
  if (!kv) return 0;
  map_label(meta(s)->map, label);
  if (kv->type == GGUF_STRING || kv->type == GGUF_F32 || kv->type == GGUF_F64 || kv->n > CONFIG_SUPPRESSED_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: key %s: expected at most %d integers, file has %llu of type %s", label, key, CONFIG_SUPPRESSED_MAX,
                   (unsigned long long)kv->n, gguf_type_name(kv->type));
  for (uint64_t i = 0; i < kv->n; i++) {
    int64_t id = gguf_kv_int(kv, i);
    if (id < 0 || id >= c->vocab)
      return err_set(e, ERR_BAD_FILE, "%s: key %s: expected ids from 0 to %d, file has %lld", label, key, c->vocab - 1, (long long)id);
    c->suppressed[c->n_suppressed++] = (int32_t)id;
  }
  return 0;
}

/* --- entry points ------------------------------------------------------------------------------------------------------- */

int config_from_gguf_parts(struct model_config *c, const struct gguf *parts, int n_parts, struct err *e) {
  memset(c, 0, sizeof *c); /* padding too: records are compared as bytes */
  char label[200];
  struct str arch = {0}, name = {0};
  map_label(parts[0].map, label);
  int found = gguf_str(&parts[0], "general.architecture", &arch, e);
  if (found < 0) return -1;
  if (!found) return err_set(e, ERR_BAD_FILE, "%s: key general.architecture: expected this key, it is missing", label);
  str_escape(arch, c->architecture, sizeof c->architecture);
  const struct config_family *family = config_family_find(c->architecture, true, label, e);
  if (!family) return -1;
  c->family = family->family;
  if (gguf_str(&parts[0], "general.name", &name, e) < 0) return -1;
  str_escape(name.p ? name : str_c(""), c->name, sizeof c->name);
  struct config_gguf s = {.parts = parts, .n_parts = n_parts, .arch = family->architecture};
  if (family->from_gguf(c, &s, e) != 0 || config_media_from_gguf(c, &s, e) != 0) return -1;
  return config_check(c, label, e);
}

int config_from_gguf(struct model_config *c, const struct gguf *g, struct err *e) { return config_from_gguf_parts(c, g, 1, e); }
