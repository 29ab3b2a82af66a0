/* tok_load.c — vocabularies from GGUF metadata and from tokenizer.json.
 *
 * Both give, in order of id, a spelling, what the file thinks the piece is, and when it merges:
 *   GGUF            tokenizer.ggml.tokens, .token_type, .scores      highest score first
 *   tokenizer.json  model.vocab, added_tokens, model.merges           first merge that makes the piece first
 * A Gemma merge list was made from the scores (each piece by every split, best score first), so the two orders are one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "files/json.h"
#include "text/chat.h"
#include "text/vocab.h"

enum { TOKENIZER_JSON_BYTES_MAX = 256 << 20 };

static struct tokenizer *tok_new(enum tok_family family, int n_ids, size_t spelling_bytes) {
  struct tokenizer *t = xcalloc(1, sizeof *t);
  t->family = family;
  t->merge = bpe_merge_by_score;
  vocab_init(&t->vocab, n_ids, spelling_bytes);
  return t;
}

static int32_t control_id(const struct tokenizer *t, const char *spelling) {
  int32_t id = tok_find(t, spelling);
  return tok_is_control(t, id) ? id : -1;
}

static int tok_finish(struct tokenizer *t, const char *where, struct err *e) {
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

static int refuse_family(enum tok_family f, const char *where, struct err *e) {
  if (f == TOK_GEMMA3) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: expected a Gemma 3 vocabulary, the only kind this build can use, found one of %s", where,
                 family_info(f)->name);
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

static const struct gguf_kv *array_of(const struct gguf *g, const char *key, bool strings, uint64_t n, const char *where, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) {
    err_set(e, ERR_BAD_FILE, "%s: expected a vocabulary, key %s is missing", where, key);
    return NULL;
  }
  if (!kv->is_array || (kv->type == GGUF_STRING) != strings || kv->type == GGUF_ARRAY) {
    err_set(e, ERR_BAD_FILE, "%s: key %s: expected an array of %s", where, key, strings ? "strings" : "numbers");
    return NULL;
  }
  if (strings ? !kv->n || kv->n > VOCAB_IDS_MAX : kv->n != n) {
    if (strings)
      err_set(e, ERR_BAD_FILE, "%s: key %s: expected 1 to %d elements, found %llu", where, key, VOCAB_IDS_MAX, (unsigned long long)kv->n);
    else
      err_set(e, ERR_BAD_FILE, "%s: key %s: expected %llu elements, one for each token, found %llu", where, key, (unsigned long long)n,
              (unsigned long long)kv->n);
    return NULL;
  }
  return kv;
}

static int gguf_family(const struct gguf *g, const struct gguf_kv *tokens, const char *where, enum tok_family *family, struct err *e) {
  struct str model = {0}, pre = {0}, arch = {0};
  if (gguf_str(g, "tokenizer.ggml.model", &model, e) < 0 || gguf_str(g, "tokenizer.ggml.pre", &pre, e) < 0 ||
      gguf_str(g, "general.architecture", &arch, e) < 0)
    return -1;
  bool turns = false;
  const unsigned char *cursor = NULL;
  for (uint64_t i = 0; i < MIN(tokens->n, 512) && !turns; i++) turns = str_is(gguf_kv_next_string(tokens, &cursor), "<start_of_turn>");
  if (str_is(model, "gemma4") || str_is(pre, "gemma4") || str_starts(arch, "gemma4")) *family = TOK_GEMMA4;
  else if (str_is(model, "llama") && (turns || str_starts(arch, "gemma3"))) *family = TOK_GEMMA3;
  else if (str_is(model, "gpt2") && str_starts(pre, "llama")) *family = TOK_LLAMA3;
  else {
    char shown_model[40], shown_arch[40];
    return err_set(e, ERR_UNSUPPORTED, "%s: expected a Gemma 3 vocabulary, found tokenizer model \"%s\" of architecture \"%s\"", where,
                   str_escape(model, shown_model, sizeof shown_model), str_escape(arch, shown_arch, sizeof shown_arch));
  }
  return refuse_family(*family, where, e);
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

static int push_gguf_pieces(struct tokenizer *t, const struct gguf_kv *tokens, const struct gguf_kv *types, const struct gguf_kv *scores,
                            const char *where, struct err *e) {
  const unsigned char *cursor = NULL;
  for (uint64_t i = 0; i < tokens->n; i++) {
    struct str spelling = gguf_kv_next_string(tokens, &cursor);
    enum piece_kind kind = family_piece_kind(t->family, spelling, kind_of_type(gguf_kv_int(types, i)));
    double score = gguf_kv_float(scores, i);
    if (!isfinite((float)score))
      return err_set(e, ERR_BAD_FILE, "%s: token %llu: expected a finite score, found %g", where, (unsigned long long)i, score);
    if (vocab_push(&t->vocab, spelling, kind, key_of_score((float)score), where, e) != 0) return -1;
  }
  return 0;
}

struct tokenizer *tok_from_gguf(const struct gguf *g, struct err *e) {
  char where[200];
  map_label(g->map, where);
  const struct gguf_kv *tokens = array_of(g, "tokenizer.ggml.tokens", true, 0, where, e);
  enum tok_family family = TOK_GEMMA3;
  if (!tokens || gguf_family(g, tokens, where, &family, e) != 0) return NULL;
  const struct gguf_kv *types = array_of(g, "tokenizer.ggml.token_type", false, tokens->n, where, e);
  const struct gguf_kv *scores = types ? array_of(g, "tokenizer.ggml.scores", false, tokens->n, where, e) : NULL;
  if (!scores) return NULL;
  if (tokens->raw_bytes > UINT32_MAX) {
    err_set(e, ERR_BAD_FILE, "%s: expected less than 4 GiB of vocabulary, found %zu bytes", where, tokens->raw_bytes);
    return NULL;
  }
  struct tokenizer *t = tok_new(family, (int)tokens->n, tokens->raw_bytes);
  if (push_gguf_pieces(t, tokens, types, scores, where, e) != 0 || tok_finish(t, where, e) != 0) {
    tok_close(t);
    return NULL;
  }
  return t;
}

/* --- tokenizer.json ---------------------------------------------------------------------------------------------------------------- */

struct json_piece {
  struct str spelling; /* borrows from the JSON; p NULL = no piece has this id yet */
  enum piece_kind kind;
  uint32_t key; /* VOCAB_NEVER where no merge makes it: then only a single character is reached */
};

static int json_family(const json_t *root, const json_t *model, const json_t *vocab, const char *where, enum tok_family *family,
                       struct err *e) {
  const char *type = NULL, *normalizer = NULL, *content = NULL, *pattern_string = NULL;
  const json_t *normal = NULL, *pattern = NULL;
  bool byte_fallback = false;
  size_t len;
  if (json_object_get(vocab, "<|turn>")) *family = TOK_GEMMA4;
  else if (json_object_get(vocab, "<|begin_of_text|>") || json_object_get(vocab, "\xC4\xA0the")) *family = TOK_LLAMA3;
  else *family = TOK_GEMMA3;
  if (refuse_family(*family, where, e) != 0) return -1;
  if (json_get_string(model, "type", &type, &len, where, e) < 0 || json_get_bool(model, "byte_fallback", &byte_fallback, where, e) < 0 ||
      json_get_object(root, "normalizer", &normal, where, e) < 0)
    return -1;
  if (normal &&
      (json_get_string(normal, "type", &normalizer, &len, where, e) < 0 || json_get_object(normal, "pattern", &pattern, where, e) < 0 ||
       json_get_string(normal, "content", &content, &len, where, e) < 0))
    return -1;
  if (pattern && json_get_string(pattern, "String", &pattern_string, &len, where, e) < 0) return -1;
  bool blanks = normalizer && !strcmp(normalizer, "Replace") && content && !strcmp(content, "\xE2\x96\x81") && pattern_string &&
                !strcmp(pattern_string, " ");
  if (!type || strcmp(type, "BPE") || !byte_fallback || !blanks)
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: expected a Gemma 3 tokenizer: type BPE, byte_fallback, blanks replaced by U+2581 and nothing else", where);
  return 0;
}

static int place(struct json_piece *pieces, size_t n, json_int_t id, struct str spelling, enum piece_kind kind, const char *where,
                 struct err *e) {
  char shown[80], other[80];
  str_escape(spelling, shown, sizeof shown);
  if (id < 0 || (uint64_t)id >= n)
    return err_set(e, ERR_BAD_FILE, "%s: token %s: expected an id below %zu, the number of tokens, found %lld", where, shown, n,
                   (long long)id);
  struct json_piece *p = &pieces[id];
  if (p->spelling.p && !str_eq(p->spelling, spelling))
    return err_set(e, ERR_BAD_FILE, "%s: id %lld: expected one spelling, found %s and %s", where, (long long)id,
                   str_escape(p->spelling, other, sizeof other), shown);
  *p = (struct json_piece){.spelling = spelling, .kind = kind, .key = VOCAB_NEVER};
  return 0;
}

static int place_vocab(struct json_piece *pieces, size_t n, const json_t *vocab, const char *where, struct err *e) {
  const char *spelling;
  json_t *id;
  json_object_foreach((json_t *)(uintptr_t)vocab, spelling, id) {
    char shown[80];
    if (!json_is_integer(id))
      return err_set(e, ERR_BAD_FILE, "%s: model.vocab: token %s: expected an integer", where,
                     str_escape(str_c(spelling), shown, sizeof shown));
    if (place(pieces, n, json_integer_value(id), str_c(spelling), PIECE_NORMAL, where, e) != 0) return -1;
  }
  return 0;
}

static int place_added(struct json_piece *pieces, size_t n, const json_t *added, const char *where, struct err *e) {
  size_t i;
  json_t *token;
  json_array_foreach(added, i, token) {
    const json_t *id = json_object_get(token, "id"), *content = json_object_get(token, "content");
    if (!json_is_integer(id) || !json_is_string(content))
      return err_set(e, ERR_BAD_FILE, "%s: added_tokens[%zu]: expected an object with id and content", where, i);
    struct str spelling = str_of(json_string_value(content), json_string_length(content));
    enum piece_kind kind = json_is_true(json_object_get(token, "special")) ? PIECE_CONTROL : PIECE_USER;
    if (place(pieces, n, json_integer_value(id), spelling, kind, where, e) != 0) return -1;
  }
  return 0;
}

/* One merge, "left right" or ["left", "right"], as the piece it makes, in scratch. */
static bool merge_result(const json_t *merge, struct buf *scratch) {
  buf_clear(scratch);
  if (json_is_array(merge) && json_array_size(merge) == 2) {
    for (size_t side = 0; side < 2; side++) {
      const json_t *s = json_array_get(merge, side);
      if (!json_is_string(s)) return false;
      buf_append(scratch, json_string_value(s), json_string_length(s));
    }
    return true;
  }
  const char *s = json_string_value(merge), *gap = s && *s ? strchr(s + 1, ' ') : NULL;
  if (!gap) return false;
  buf_append(scratch, s, (size_t)(gap - s));
  return buf_puts(scratch, gap + 1);
}

static int place_merges(struct json_piece *pieces, size_t n, const json_t *vocab, const json_t *merges, const char *where, struct err *e) {
  struct buf scratch;
  buf_init(&scratch, 2 * VOCAB_PIECE_BYTES_MAX);
  int rc = 0;
  size_t rank;
  json_t *merge;
  json_array_foreach(merges, rank, merge) {
    const json_t *id = merge_result(merge, &scratch) && !scratch.overflow ? json_object_get(vocab, buf_cstr(&scratch)) : NULL;
    if (!id || (uint64_t)json_integer_value(id) >= n) {
      rc = err_set(e, ERR_BAD_FILE, "%s: model.merges[%zu]: expected two pieces that make a third of the vocabulary", where, rank);
      break;
    }
    struct json_piece *p = &pieces[json_integer_value(id)];
    if (p->key == VOCAB_NEVER) p->key = (uint32_t)rank;
  }
  buf_free(&scratch);
  return rc;
}

static size_t count_ids(const json_t *vocab, const json_t *added) {
  size_t n = json_object_size(vocab), i;
  json_t *token;
  json_array_foreach(added, i, token) {
    const char *content = json_string_value(json_object_get(token, "content"));
    if (content && !json_object_get(vocab, content)) n++;
  }
  return n;
}

static struct tokenizer *from_pieces(enum tok_family family, const struct json_piece *pieces, size_t n, const char *where, struct err *e) {
  size_t bytes = 0;
  for (size_t i = 0; i < n; i++) {
    if (!pieces[i].spelling.p) {
      err_set(e, ERR_BAD_FILE, "%s: expected ids from 0 to %zu, none may be left out, %zu is", where, n - 1, i);
      return NULL;
    }
    bytes += pieces[i].spelling.n;
  }
  struct tokenizer *t = tok_new(family, (int)n, bytes);
  for (size_t i = 0; i < n; i++) {
    enum piece_kind kind = family_piece_kind(family, pieces[i].spelling, pieces[i].kind);
    if (vocab_push(&t->vocab, pieces[i].spelling, kind, pieces[i].key, where, e) != 0) goto fail;
  }
  if (tok_finish(t, where, e) == 0) return t;
fail:
  tok_close(t);
  return NULL;
}

struct tokenizer *tok_from_json(const char *json, size_t n_bytes, const char *where, struct err *e) {
  struct tokenizer *t = NULL;
  struct json_piece *pieces = NULL;
  const json_t *model = NULL, *vocab = NULL, *merges = NULL, *added = NULL;
  enum tok_family family = TOK_GEMMA3;
  json_t *root = json_load_text(json, n_bytes, true, where, e);
  if (!root) return NULL;
  if (!json_is_object(root)) {
    err_set(e, ERR_BAD_FILE, "%s: expected a JSON object", where);
    goto done;
  }
  if (json_get_object(root, "model", &model, where, e) < 0 || json_get_array(root, "added_tokens", &added, where, e) < 0) goto done;
  if (model && (json_get_object(model, "vocab", &vocab, where, e) < 0 || json_get_array(model, "merges", &merges, where, e) < 0)) goto done;
  if (!vocab) {
    err_set(e, ERR_BAD_FILE, "%s: expected model.vocab", where);
    goto done;
  }
  if (json_family(root, model, vocab, where, &family, e) != 0) goto done;
  size_t n = count_ids(vocab, added);
  if (!n || n > VOCAB_IDS_MAX) {
    err_set(e, ERR_BAD_FILE, "%s: expected 1 to %d tokens, found %zu", where, VOCAB_IDS_MAX, n);
    goto done;
  }
  pieces = xcalloc(n, sizeof *pieces);
  if (place_vocab(pieces, n, vocab, where, e) != 0 || place_added(pieces, n, added, where, e) != 0 ||
      place_merges(pieces, n, vocab, merges, where, e) != 0)
    goto done;
  t = from_pieces(family, pieces, n, where, e);
done:
  free(pieces);
  json_decref(root);
  return t;
}

/* --- paths --------------------------------------------------------------------------------------------------------------------------- */

static struct tokenizer *open_json(const char *folder, size_t folder_n, struct err *e) {
  struct buf path;
  struct map map;
  struct tokenizer *t = NULL;
  buf_init(&path, 0);
  buf_append(&path, folder, folder_n);
  buf_puts(&path, "/tokenizer.json");
  if (map_open(&map, buf_cstr(&path), e) == 0) {
    if (map.n_bytes > TOKENIZER_JSON_BYTES_MAX)
      err_set(e, ERR_TOO_LARGE, "tokenizer.json: expected at most %d bytes, file has %zu", TOKENIZER_JSON_BYTES_MAX, map.n_bytes);
    else t = tok_from_json(map.data ? (const char *)map.data : "", map.n_bytes, "tokenizer.json", e);
    map_close(&map);
  }
  buf_free(&path);
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
  if (stat(model_path, &st) == 0 && S_ISDIR(st.st_mode)) return open_json(model_path, strlen(model_path), e);
  if (!str_ends(str_c(model_path), ".safetensors")) return open_gguf(model_path, e);
  const char *slash = strrchr(model_path, '/');
  return slash ? open_json(model_path, (size_t)(slash - model_path), e) : open_json(".", 1, e);
}
