/* tok_json.c — vocabularies from tokenizer.json: model.vocab, added_tokens, model.merges.
 *
 * The list of merges is most of the file, half a million pairs. It is cut out and read where it stands, in one pass and without memory of its own;
 * jansson reads the rest.
 *
 * A Gemma 3 list was made from the scores (each piece by every split, best score first), so there the first merge that makes a piece stands for
 * the piece's score.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "files/json.h"
#include "text/pretok.h"
#include "text/vocab.h"

/* --- the merges, as text --------------------------------------------------------------------------------------------------------- */

/* Offset behind the string whose opening quote is at `at`; n if it does not end. */
static size_t string_end(const char *p, size_t n, size_t at) {
  for (at++; at < n && p[at] != '"'; at++) at += p[at] == '\\';
  return at < n ? at + 1 : n;
}

/* The array at model.merges, brackets included; empty = there is none. What is no JSON is found out by those who read the two parts. */
static struct str find_merges(const char *p, size_t n) {
  struct str key[3] = {{0}}; /* of the objects open at depth 1 and 2 */
  int depth = 0;
  const char *from = NULL;
  for (size_t i = 0; i < n; i++) {
    switch (p[i]) {
    case '"': {
      size_t end = string_end(p, n, i);
      if (depth > 0 && depth < 3) key[depth] = str_of(p + i + 1, end - i - 1);
      i = end - 1;
      break;
    }
    case '[':
      if (depth == 2 && str_is(key[1], "model\"") && str_is(key[2], "merges\"")) from = p + i;
      depth++;
      break;
    case '{': depth++; break;
    case ']':
    case '}':
      depth -= depth > 0;
      if (depth == 2 && from) return str_of(from, (size_t)(p + i + 1 - from));
      break;
    default: break;
    }
  }
  return (struct str){0};
}

struct merge_reader {
  const char *p, *end;
  struct buf text[2]; /* strings that had to be unescaped */
};

static void skip_blanks(struct merge_reader *r) {
  while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r')) r->p++;
}
static bool take(struct merge_reader *r, char c) {
  skip_blanks(r);
  if (r->p == r->end || *r->p != c) return false;
  r->p++;
  return true;
}

static bool take_hex(struct merge_reader *r, uint32_t *unit) {
  *unit = 0;
  for (int i = 0; i < 4; i++, r->p++) {
    int digit = r->p < r->end ? str_hex_digit(*r->p) : -1;
    if (digit < 0) return false;
    *unit = *unit << 4 | (uint32_t)digit;
  }
  return true;
}

/* Behind a backslash. */
static bool take_escape(struct merge_reader *r, struct buf *out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (r->p == r->end) return false;
  char c = *r->p++;
  const char *simple = c ? strchr(from, c) : NULL;
  if (simple) return buf_putc(out, to[simple - from]);
  uint32_t cp, low;
  char utf8[4];
  if (c != 'u' || !take_hex(r, &cp)) return false;
  if (cp >= 0xD800 && cp < 0xDC00) {
    if (r->end - r->p < 2 || r->p[0] != '\\' || r->p[1] != 'u') return false;
    r->p += 2;
    if (!take_hex(r, &low) || low < 0xDC00 || low > 0xDFFF) return false;
    cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
  } else if (cp >= 0xDC00 && cp < 0xE000) {
    return false;
  }
  return buf_append(out, utf8, (size_t)utf8_put(cp, utf8));
}

/* A JSON string, borrowed from the text or from scratch. */
static bool take_string(struct merge_reader *r, struct buf *scratch, struct str *out) {
  if (!take(r, '"')) return false;
  const char *from = r->p;
  buf_clear(scratch);
  for (; r->p < r->end; r->p++) {
    if (*r->p == '"') {
      *out = str_of(from, (size_t)(r->p++ - from));
      if (!scratch->len) return true;
      buf_append(scratch, out->p, out->n);
      *out = str_of(scratch->data, scratch->len);
      return !scratch->overflow;
    }
    if ((unsigned char)*r->p < 0x20) return false;
    if (*r->p != '\\') continue;
    buf_append(scratch, from, (size_t)(r->p++ - from));
    if (!take_escape(r, scratch)) return false;
    from = r->p--;
  }
  return false;
}

/* "left right" or ["left", "right"]. */
static bool take_merge(struct merge_reader *r, struct str *left, struct str *right) {
  struct str both;
  if (!take(r, '[')) return take_string(r, &r->text[0], &both) && vocab_merge_split(both, left, right);
  return take_string(r, &r->text[0], left) && take(r, ',') && take_string(r, &r->text[1], right) && take(r, ']');
}

/* Elements, or more where the list is broken. */
static size_t count_merges(struct str list) {
  size_t n = 1, depth = 0;
  for (size_t i = 0; i < list.n; i++) {
    char c = list.p[i];
    if (c == '"') i = string_end(list.p, list.n, i) - 1;
    depth += c == '[';
    depth -= c == ']' && depth;
    n += c == ',' && depth == 1;
  }
  return n;
}

static int push_merges(struct tokenizer *t, struct str list, const char *where, struct err *e) {
  size_t n_max = count_merges(list), n = 0;
  if (n_max > VOCAB_MERGES_MAX)
    return err_set(e, ERR_TOO_LARGE, "%s: model.merges: expected at most %d elements, found %zu", where, VOCAB_MERGES_MAX, n_max);
  if (!utf8_valid(list.p, list.n)) return err_set(e, ERR_BAD_FILE, "%s: model.merges: not UTF-8", where);
  vocab_merges_begin(&t->vocab, n_max);
  struct merge_reader r = {.p = list.p, .end = list.p + list.n};
  buf_init(&r.text[0], 2 * VOCAB_PIECE_BYTES_MAX);
  buf_init(&r.text[1], 2 * VOCAB_PIECE_BYTES_MAX);
  int rc = 0;
  bool more = take(&r, '[') && !take(&r, ']');
  for (; rc == 0 && more; n++) {
    struct str left, right;
    if (n == n_max || !take_merge(&r, &left, &right))
      rc = err_set(e, ERR_BAD_FILE, "%s: model.merges[%zu]: expected \"left right\" or [\"left\", \"right\"]", where, n);
    else rc = vocab_merge_push(&t->vocab, left, right, where, e);
    more = take(&r, ',');
    if (rc == 0 && !more && (!take(&r, ']') || r.p != r.end))
      rc = err_set(e, ERR_BAD_FILE, "%s: model.merges[%zu]: expected another merge or the end of the list", where, n + 1);
  }
  buf_free(&r.text[0]);
  buf_free(&r.text[1]);
  return rc == 0 ? vocab_merges_finish(&t->vocab, where, e) : rc;
}

/* --- the rest -------------------------------------------------------------------------------------------------------------------- */

struct json_piece {
  struct str spelling; /* borrows from the JSON; p NULL = no piece has this id yet */
  enum piece_kind kind;
};

static bool is_string(const json_t *o, const char *key, const char *value) {
  const char *s = json_string_value(json_object_get(o, key));
  return s && !strcmp(s, value);
}

/* One Split by the published pattern, then ByteLevel. */
static bool splits_like_llama3(const json_t *root) {
  const json_t *steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
  const json_t *split = json_array_get(steps, 0), *bytes = json_array_get(steps, 1);
  return json_array_size(steps) == 2 && is_string(split, "type", "Split") && is_string(split, "behavior", "Isolated") &&
         is_string(json_object_get(split, "pattern"), "Regex", PRETOK_LLAMA3) && is_string(bytes, "type", "ByteLevel") &&
         !json_is_true(json_object_get(bytes, "add_prefix_space")) && json_is_false(json_object_get(bytes, "use_regex"));
}

static bool replaces_blanks(const json_t *root, const json_t *model) {
  const json_t *normalizer = json_object_get(root, "normalizer");
  return json_is_true(json_object_get(model, "byte_fallback")) && is_string(normalizer, "type", "Replace") &&
         is_string(normalizer, "content", "\xE2\x96\x81") && is_string(json_object_get(normalizer, "pattern"), "String", " ");
}

/* In: what it is if the pieces do not say. */
static int json_family(const json_t *root, const json_t *model, const json_t *vocab, const char *where, enum tok_family *family,
                       struct err *e) {
  if (json_object_get(vocab, "<|turn>")) *family = TOK_GEMMA4;
  else if (json_object_get(vocab, "<start_of_turn>")) *family = TOK_GEMMA3;
  else if (json_object_get(vocab, "\xC4\xA0")) *family = TOK_LLAMA3;
  if (*family == TOK_LLAMA3) {
    if (is_string(model, "type", "BPE") && splits_like_llama3(root)) return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: expected a Llama 3 tokenizer: type BPE, Split by the Llama 3 pattern, then ByteLevel", where);
  }
  if (is_string(model, "type", "BPE") && replaces_blanks(root, model)) return 0;
  return err_set(e, ERR_UNSUPPORTED, "%s: expected a %s tokenizer: type BPE, byte_fallback, blanks replaced by U+2581 and nothing else",
                 where, family_info(*family)->name);
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
  *p = (struct json_piece){.spelling = spelling, .kind = kind};
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

static size_t count_ids(const json_t *vocab, const json_t *added) {
  size_t n = json_object_size(vocab), i;
  json_t *token;
  json_array_foreach(added, i, token) {
    const char *content = json_string_value(json_object_get(token, "content"));
    if (content && !json_object_get(vocab, content)) n++;
  }
  return n;
}

static struct tokenizer *from_pieces(enum tok_family family, const struct json_piece *pieces, size_t n, struct str merges,
                                     const char *where, struct err *e) {
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
    if (vocab_push(&t->vocab, pieces[i].spelling, kind, VOCAB_NEVER, where, e) != 0) goto fail;
  }
  if (tok_finish_pieces(t, where, e) == 0 && push_merges(t, merges, where, e) == 0) return t;
fail:
  tok_close(t);
  return NULL;
}

/* Everything but the merges. Returns owned. */
static json_t *load_without(const char *json, size_t n, struct str merges, const char *where, struct err *e) {
  struct buf rest;
  if (!merges.n) return json_load_text(json, n, true, where, e);
  const char *behind = merges.p + merges.n;
  buf_init(&rest, 0);
  buf_append(&rest, json, (size_t)(merges.p - json));
  buf_puts(&rest, "[]");
  buf_append(&rest, behind, n - (size_t)(behind - json));
  json_t *root = json_load_text(rest.data, rest.len, true, where, e);
  buf_free(&rest);
  return root;
}

struct tokenizer *tok_read_json(const char *json, size_t n_bytes, enum tok_family family, const char *where, struct err *e) {
  struct tokenizer *t = NULL;
  struct json_piece *pieces = NULL;
  const json_t *model = NULL, *vocab = NULL, *no_merges = NULL, *added = NULL;
  struct str merges = find_merges(json, n_bytes);
  json_t *root = load_without(json, n_bytes, merges, where, e);
  if (!root) return NULL;
  if (!json_is_object(root)) {
    err_set(e, ERR_BAD_FILE, "%s: expected a JSON object", where);
    goto done;
  }
  if (json_get_object(root, "model", &model, where, e) < 0 || json_get_array(root, "added_tokens", &added, where, e) < 0) goto done;
  if (model && (json_get_object(model, "vocab", &vocab, where, e) < 0 || json_get_array(model, "merges", &no_merges, where, e) < 0))
    goto done;
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
  if (place_vocab(pieces, n, vocab, where, e) != 0 || place_added(pieces, n, added, where, e) != 0) goto done;
  t = from_pieces(family, pieces, n, merges.n ? merges : str_c("[]"), where, e);
done:
  free(pieces);
  json_decref(root);
  return t;
}

struct tokenizer *tok_from_json(const char *json, size_t n, const char *where, struct err *e) {
  return tok_read_json(json, n, TOK_GEMMA3, where, e);
}
