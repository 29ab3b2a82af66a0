/* tok_load.c — vocabularies from GGUF metadata, and what a path offers.
 *
 * tokenizer.ggml.tokens, .token_type and, by family, .scores (highest first) or .merges (in order). tokenizer.json is read in tok_json.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "files/json.h"
#include "text/vocab.h"

enum { TOKENIZER_JSON_BYTES_MAX = 256 << 20, CONFIG_JSON_BYTES_MAX = 64 << 20, TEMPLATE_BYTES_MAX = 1 << 20 };

struct tokenizer *tok_new(enum tok_family family, int n_ids, size_t spelling_bytes) {
  static const enum vocab_style styles[] = {[TOK_GEMMA3] = VOCAB_BY_SCORE, [TOK_GEMMA4] = VOCAB_BY_RANK, [TOK_LLAMA3] = VOCAB_BYTES};
  struct tokenizer *t = xcalloc(1, sizeof *t);
  t->family = family;
  t->merge = styles[family] == VOCAB_BY_SCORE ? bpe_merge_by_score : bpe_merge_by_rank;
  vocab_init(&t->vocab, styles[family], n_ids, spelling_bytes);
  return t;
}

static int32_t control_id(const struct tokenizer *t, const char *spelling) {
  int32_t id = tok_find(t, spelling);
  return tok_is_control(t, id) ? id : -1;
}

int tok_finish_pieces(struct tokenizer *t, const char *where, struct err *e) {
  const struct family_info *family = family_info(t->family);
  if (vocab_finish(&t->vocab, where, e) != 0) return -1;
  t->bos = control_id(t, family->bos);
  for (size_t i = 0; i < ARRAY_LEN(family->eog) && family->eog[i]; i++) {
    int32_t id = control_id(t, family->eog[i]);
    if (id >= 0) t->eog[t->n_eog++] = id;
  }
  if (t->bos < 0) return err_set(e, ERR_BAD_FILE, "%s: expected a %s vocabulary, it has no %s", where, family->name, family->bos);
  return 0;
}

int tok_set_template(struct tokenizer *t, struct str text, const char *where, struct err *e) {
  if (text.n > TEMPLATE_BYTES_MAX)
    return err_set(e, ERR_TOO_LARGE, "%s: expected a chat template of at most %d bytes, found %zu", where, TEMPLATE_BYTES_MAX, text.n);
  free(t->chat_template);
  t->chat_template = xstrndup(text.n ? text.p : "", text.n);
  t->chat_template_bytes = text.n;
  return 0;
}

/* Scores in an order of unsigned integers, best lowest. Finite scores never give VOCAB_NEVER. */
static uint32_t key_of_score(float score) {
  uint32_t bits;
  score += 0.0f; /* -0 is 0 */
  memcpy(&bits, &score, sizeof bits);
  uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

/* --- GGUF -------------------------------------------------------------------------------------------------------------------------- */

static const struct gguf_kv *array_of(const struct gguf *g, const char *key, bool strings, const char *where, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) {
    err_set(e, ERR_BAD_FILE, "%s: expected a vocabulary, key %s is missing", where, key);
    return NULL;
  }
  if (!kv->is_array || (kv->type == GGUF_STRING) != strings || kv->type == GGUF_ARRAY) {
    err_set(e, ERR_BAD_FILE, "%s: key %s: expected an array of %s", where, key, strings ? "strings" : "numbers");
    return NULL;
  }
  return kv;
}

static const struct gguf_kv *strings_of(const struct gguf *g, const char *key, int n_max, const char *where, struct err *e) {
  const struct gguf_kv *kv = array_of(g, key, true, where, e);
  if (!kv) return NULL;
  if (kv->n >= 1 && kv->n <= (uint64_t)n_max && kv->raw_bytes <= UINT32_MAX) return kv;
  err_set(e, ERR_BAD_FILE, "%s: key %s: expected 1 to %d elements of less than 4 GiB, found %llu of %zu bytes", where, key, n_max,
          (unsigned long long)kv->n, kv->raw_bytes);
  return NULL;
}

/* One number for each token. */
static const struct gguf_kv *numbers_of(const struct gguf *g, const char *key, uint64_t n, const char *where, struct err *e) {
  const struct gguf_kv *kv = array_of(g, key, false, where, e);
  if (!kv || kv->n == n) return kv;
  err_set(e, ERR_BAD_FILE, "%s: key %s: expected %llu elements, one for each token, found %llu", where, key, (unsigned long long)n,
          (unsigned long long)kv->n);
  return NULL;
}

static int gguf_family(const struct gguf *g, const struct gguf_kv *tokens, const char *where, enum tok_family *family, struct err *e) {
  struct str model = {0}, pre = {0}, arch = {0};
  if (gguf_str(g, "tokenizer.ggml.model", &model, e) < 0 || gguf_str(g, "tokenizer.ggml.pre", &pre, e) < 0 ||
      gguf_str(g, "general.architecture", &arch, e) < 0)
    return -1;
  bool turns = false;
  const unsigned char *cursor = NULL;
  for (uint64_t i = 0; i < MIN(tokens->n, 512) && !turns; i++) turns = str_is(gguf_kv_next_string(tokens, &cursor), "<start_of_turn>");
  bool llama = str_is(model, "llama");
  if (str_is(model, "gemma4") || (llama && (str_is(pre, "gemma4") || str_starts(arch, "gemma4")))) *family = TOK_GEMMA4;
  else if (llama && (turns || str_starts(arch, "gemma3"))) *family = TOK_GEMMA3;
  else if (str_is(model, "gpt2") && str_starts(pre, "llama")) *family = TOK_LLAMA3;
  else {
    char shown_model[40], shown_pre[40], shown_arch[40];
    return err_set(
        e, ERR_UNSUPPORTED,
        "%s: expected a vocabulary of Gemma 3, Gemma 4 or Llama 3, found tokenizer model \"%s\", pre \"%s\" of architecture \"%s\"", where,
        str_escape(model, shown_model, sizeof shown_model), str_escape(pre, shown_pre, sizeof shown_pre),
        str_escape(arch, shown_arch, sizeof shown_arch));
  }
  return 0;
}

/* Numbers as GGUF has them from SentencePiece. */
static enum piece_kind kind_of_type(int64_t type) {
  switch (type) {
  case 1: return PIECE_NORMAL;
  case 4: return PIECE_USER;
  case 5: return PIECE_UNUSED;
  case 6: return PIECE_BYTE;
  default: return PIECE_CONTROL; /* 2 unknown, 3 control, anything else: nothing that text may reach */
  }
}

/* scores NULL: the family goes by rank. */
static int push_pieces(struct tokenizer *t, const struct gguf_kv *tokens, const struct gguf_kv *types, const struct gguf_kv *scores,
                       const char *where, struct err *e) {
  const unsigned char *cursor = NULL;
  for (uint64_t i = 0; i < tokens->n; i++) {
    struct str spelling = gguf_kv_next_string(tokens, &cursor);
    enum piece_kind kind = family_piece_kind(t->family, spelling, kind_of_type(gguf_kv_int(types, i)));
    double score = scores ? gguf_kv_float(scores, i) : 0;
    if (!isfinite((float)score))
      return err_set(e, ERR_BAD_FILE, "%s: token %llu: expected a finite score, found %g", where, (unsigned long long)i, score);
    if (vocab_push(&t->vocab, spelling, kind, scores ? key_of_score((float)score) : VOCAB_NEVER, where, e) != 0) return -1;
  }
  return tok_finish_pieces(t, where, e);
}

static int push_merges(struct tokenizer *t, const struct gguf_kv *merges, const char *where, struct err *e) {
  const unsigned char *cursor = NULL;
  vocab_merges_begin(&t->vocab, merges->n);
  for (uint64_t i = 0; i < merges->n; i++) {
    struct str left, right;
    if (!vocab_merge_split(gguf_kv_next_string(merges, &cursor), &left, &right))
      return err_set(e, ERR_BAD_FILE, "%s: key tokenizer.ggml.merges: element %llu: expected two pieces with a blank between", where,
                     (unsigned long long)i);
    if (vocab_merge_push(&t->vocab, left, right, where, e) != 0) return -1;
  }
  return vocab_merges_finish(&t->vocab, where, e);
}

struct tokenizer *tok_from_gguf(const struct gguf *g, struct err *e) {
  char where[200];
  map_label(g->map, where);
  const struct gguf_kv *scores = NULL, *merges = NULL;
  const struct gguf_kv *tokens = strings_of(g, "tokenizer.ggml.tokens", VOCAB_IDS_MAX, where, e);
  enum tok_family family = TOK_GEMMA3;
  struct str chat_template = {0};
  if (!tokens || gguf_family(g, tokens, where, &family, e) != 0) return NULL;
  const struct gguf_kv *types = numbers_of(g, "tokenizer.ggml.token_type", tokens->n, where, e);
  if (!types) return NULL;
  if (family == TOK_GEMMA3) scores = numbers_of(g, "tokenizer.ggml.scores", tokens->n, where, e);
  else merges = strings_of(g, "tokenizer.ggml.merges", VOCAB_MERGES_MAX, where, e);
  if ((!scores && !merges) || gguf_str(g, "tokenizer.chat_template", &chat_template, e) < 0) return NULL;
  struct tokenizer *t = tok_new(family, (int)tokens->n, tokens->raw_bytes);
  if (push_pieces(t, tokens, types, scores, where, e) != 0 || (merges && push_merges(t, merges, where, e) != 0) ||
      tok_set_template(t, chat_template, where, e) != 0) {
    tok_close(t);
    return NULL;
  }
  return t;
}

struct tokenizer *tok_blank(int n_ids) {
  CHECK(n_ids >= 1 && n_ids <= VOCAB_IDS_MAX);
  struct tokenizer *t = tok_new(TOK_GEMMA3, n_ids, (size_t)n_ids * 12);
  struct err e = {0};
  t->blank = true;
  t->bos = -1;
  for (int i = 0; i < n_ids; i++) {
    char name[16];
    int n = snprintf(name, sizeof name, "[%d]", i);
    CHECK(vocab_push(&t->vocab, str_of(name, (size_t)n), PIECE_UNUSED, VOCAB_NEVER, "no vocabulary", &e) == 0);
  }
  for (int byte = 0; byte < 256; byte++) t->vocab.byte_id[byte] = 0; /* nothing looks them up */
  CHECK(vocab_finish(&t->vocab, "no vocabulary", &e) == 0);
  return t;
}

bool tok_is_blank(const struct tokenizer *t) { return t->blank; }

/* --- paths --------------------------------------------------------------------------------------------------------------------------- */

struct folder { /* where tokenizer.json lies */
  const char *name;
  size_t n;
};

static char *path_in(const struct folder *f, const char *name) {
  struct buf path;
  buf_init(&path, 0);
  buf_append(&path, f->name, f->n);
  buf_printf(&path, "/%s", name);
  return buf_take(&path, NULL);
}
static bool is_in(const struct folder *f, const char *name) {
  char *path = path_in(f, name);
  bool is = access(path, F_OK) == 0;
  free(path);
  return is;
}

/* The family that config.json names, for vocabularies whose pieces do not say. What is wrong with that file is for others to report. */
static enum tok_family family_of_config(const struct folder *f) {
  enum tok_family family = TOK_GEMMA3;
  struct err ignored = {0};
  char *path = path_in(f, "config.json");
  json_t *config = json_load_path(path, CONFIG_JSON_BYTES_MAX, &ignored);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  if (type && str_starts(str_c(type), "gemma4")) family = TOK_GEMMA4;
  if (type && strstr(type, "llama")) family = TOK_LLAMA3;
  json_decref(config);
  free(path);
  return family;
}

/* A file of text and nothing else. */
static int template_of_text(struct tokenizer *t, const struct folder *f, const char *name, struct err *e) {
  char *path = path_in(f, name);
  struct map map;
  int rc = map_open(&map, path, e);
  if (rc == 0) {
    struct str text = str_of((const char *)map.data, map.n_bytes);
    rc = utf8_valid(text.n ? text.p : "", text.n) ? tok_set_template(t, text, name, e)
                                                  : err_set(e, ERR_BAD_FILE, "%s: expected UTF-8 text", name);
    map_close(&map);
  }
  free(path);
  return rc;
}

/* Key chat_template of a JSON file: a string, or a list of {name, template} of which "default" counts. */
static int template_of_json(struct tokenizer *t, const struct folder *f, const char *name, struct err *e) {
  char *path = path_in(f, name);
  json_t *root = json_load_path(path, CONFIG_JSON_BYTES_MAX, e);
  const json_t *found = json_object_get(root, "chat_template");
  int rc = root ? 0 : -1;
  size_t i;
  json_t *named;
  if (json_is_array(found)) {
    const json_t *chosen = NULL;
    json_array_foreach(found, i, named) {
      const char *which = json_string_value(json_object_get(named, "name"));
      if (which && !strcmp(which, "default")) chosen = json_object_get(named, "template");
    }
    found = chosen;
  }
  if (json_is_string(found)) rc = tok_set_template(t, str_of(json_string_value(found), json_string_length(found)), name, e);
  else if (found && !json_is_null(found)) rc = err_set(e, ERR_BAD_FILE, "%s: chat_template: expected a string", name);
  json_decref(root);
  free(path);
  return rc;
}

static int read_template(struct tokenizer *t, const struct folder *f, struct err *e) {
  static const char *const names[] = {"tokenizer_config.json", "chat_template.json"};
  if (is_in(f, "chat_template.jinja")) return template_of_text(t, f, "chat_template.jinja", e);
  for (size_t i = 0; i < ARRAY_LEN(names) && !t->chat_template_bytes; i++)
    if (is_in(f, names[i]) && template_of_json(t, f, names[i], e) != 0) return -1;
  return 0;
}

static struct tokenizer *open_folder(const char *name, size_t n, struct err *e) {
  struct folder f = {.name = name, .n = n};
  struct map map;
  struct tokenizer *t = NULL;
  char *path = path_in(&f, "tokenizer.json");
  if (map_open(&map, path, e) == 0) {
    if (map.n_bytes > TOKENIZER_JSON_BYTES_MAX)
      err_set(e, ERR_TOO_LARGE, "tokenizer.json: expected at most %d bytes, file has %zu", TOKENIZER_JSON_BYTES_MAX, map.n_bytes);
    else t = tok_read_json(map.data ? (const char *)map.data : "", map.n_bytes, family_of_config(&f), "tokenizer.json", e);
    map_close(&map);
  }
  free(path);
  if (t && read_template(t, &f, e) != 0) {
    tok_close(t);
    return NULL;
  }
  return t;
}

/* Of a split set only the first part has the vocabulary: "-00002-of-00003.gguf" becomes "-00001-of-00003.gguf". */
static void first_part(char *path) {
  size_t n = strlen(path);
  int part, parts, used = 0;
  if (n < 20) return;
  char *tail = path + n - 20;
  if (sscanf(tail, "-%5d-of-%5d.gguf%n", &part, &parts, &used) == 2 && used == 20) memcpy(tail + 1, "00001", 5);
}

static struct tokenizer *open_gguf(const char *model_path, struct err *e) {
  char *path = xstrdup(model_path);
  struct map map = {0};
  struct gguf g;
  struct tokenizer *t = NULL;
  first_part(path);
  if (map_open(&map, path, e) == 0) {
    if (gguf_open(&g, &map, e) == 0) {
      t = tok_from_gguf(&g, e);
      gguf_close(&g);
    }
    map_close(&map);
  }
  free(path);
  return t;
}

struct tokenizer *tok_open(const char *model_path, struct err *e) {
  struct stat st;
  if (stat(model_path, &st) == 0 && S_ISDIR(st.st_mode)) return open_folder(model_path, strlen(model_path), e);
  if (!str_ends(str_c(model_path), ".safetensors")) return open_gguf(model_path, e);
  const char *slash = strrchr(model_path, '/');
  return slash ? open_folder(model_path, (size_t)(slash - model_path), e) : open_folder(".", 1, e);
}
