/* tok.c — encode and decode: what happens around the merging.
 *
 * Encoding goes over the text once: make it UTF-8, cut it at control spellings if they are wanted, turn U+2581 into blanks (Gemma), cut it at
 * user-defined pieces and into words (Gemma: where nothing can merge; Llama: by its pattern), merge each word.
 */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/pretok.h"
#include "text/tok_work.h"
#include "text/vocab.h"

#ifdef CYGNET_DEBUG
_Thread_local uint64_t tok_work_steps;
#endif

void tok_ids_push(struct tok_ids *ids, int32_t id) {
  if (ids->n == ids->cap) {
    ids->cap = ids->cap ? 2 * ids->cap : 64;
    ids->v = xrealloc(ids->v, ids->cap * sizeof *ids->v);
  }
  ids->v[ids->n++] = id;
}
void tok_ids_free(struct tok_ids *ids) {
  free(ids->v);
  *ids = (struct tok_ids){0};
}

void tok_close(struct tokenizer *t) {
  if (!t) return;
  vocab_free(&t->vocab);
  free(t->chat_template);
  free(t);
}

/* --- observers ------------------------------------------------------------------------------------------------------------------- */

enum tok_family tok_family(const struct tokenizer *t) { return t->family; }
int tok_vocab(const struct tokenizer *t) { return t->vocab.n; }
int32_t tok_bos(const struct tokenizer *t) { return t->bos; }
const int32_t *tok_eog(const struct tokenizer *t, int *n) {
  *n = t->n_eog;
  return t->eog;
}

bool tok_is_control(const struct tokenizer *t, int32_t id) { return id >= 0 && id < t->vocab.n && t->vocab.kind[id] == PIECE_CONTROL; }

struct str tok_piece(const struct tokenizer *t, int32_t id) {
  return id >= 0 && id < t->vocab.n ? vocab_piece(&t->vocab, id) : str_of("", 0);
}

/* --- U+2581 and UTF-8 ---------------------------------------------------------------------------------------------------------------- */

void tok_clean_utf8(struct buf *out, const char *p, size_t n) {
  size_t good = 0;
  for (size_t i = 0; i < n;) {
    uint32_t cp;
    bool bad = false;
    int step = utf8_step(p + i, n - i, &cp, &bad);
    if (bad) {
      buf_append(out, p + good, i - good);
      buf_puts(out, "\xEF\xBF\xBD");
      good = i + (size_t)step;
    }
    i += (size_t)step;
  }
  buf_append(out, p + good, n - good);
}

static const char meta_blank[] = "\xE2\x96\x81";

/* The text with U+2581 as blanks; made in scratch only if there are any. */
static struct str text_form(struct str text, struct buf *scratch) {
  const char *end = text.p + text.n, *from = text.p, *hit = memmem(text.p, text.n, meta_blank, 3);
  if (!hit) return text;
  buf_clear(scratch);
  for (; hit; hit = memmem(from, (size_t)(end - from), meta_blank, 3)) {
    buf_append(scratch, from, (size_t)(hit - from));
    buf_putc(scratch, ' ');
    from = hit + 3;
  }
  buf_append(scratch, from, (size_t)(end - from));
  return str_of(scratch->data, scratch->len);
}

struct str tok_chat_template(const struct tokenizer *t) {
  return str_of(t->chat_template ? t->chat_template : "", t->chat_template_bytes);
}

int32_t tok_find(const struct tokenizer *t, const char *spelling) {
  struct str s = str_c(spelling);
  bool blanks = t->vocab.style != VOCAB_BYTES;
  int byte = blanks ? vocab_byte_spelling(s) : -1;
  if (byte >= 0) return t->vocab.byte_id[byte];
  int32_t id = vocab_find(&t->vocab, s.p, s.n);
  if (id >= 0 || !blanks) return id;
  struct buf scratch;
  buf_init(&scratch, 0);
  s = text_form(s, &scratch);
  id = vocab_find(&t->vocab, s.p, s.n);
  buf_free(&scratch);
  return id;
}

/* --- encoding ---------------------------------------------------------------------------------------------------------------------- */

/* Words come again and again. In a text that is long enough a word's ids are copied from where they stand already; that they are its ids is seen
 * from their pieces, so nothing but their place is kept. */
#ifdef CYGNET_DEBUG
enum { SEEN_WORDS = 8, SEEN_WORD_BYTES_MAX = 32, SEEN_FROM_BYTES = 16 }; /* so small that tests see every case */
#else
enum { SEEN_WORDS = 4096, SEEN_WORD_BYTES_MAX = 32, SEEN_FROM_BYTES = 4096 };
#endif
struct seen_word {
  size_t at; /* in the ids */
  uint32_t n_ids, hash;
};

struct encoding { /* state of one tok_encode */
  const struct tokenizer *tok;
  struct bpe_work work;
  struct buf scratch;
  struct seen_word *seen; /* [SEEN_WORDS], NULL for a short text */
  struct tok_ids *out;
};

static bool is_spelled_by(const struct tokenizer *t, const int32_t *ids, size_t n_ids, const char *p, size_t n) {
  size_t at = 0;
  for (size_t i = 0; i < n_ids; i++) {
    struct str piece = vocab_piece(&t->vocab, ids[i]);
    if (piece.n > n - at || memcmp(piece.p, p + at, piece.n)) return false;
    at += piece.n;
  }
  return at == n;
}

static void encode_word(struct encoding *s, const char *p, size_t n) {
  if (!s->seen || !n || n > SEEN_WORD_BYTES_MAX) {
    bpe_word(&s->tok->vocab, s->tok->merge, p, n, &s->work, s->out);
    return;
  }
  uint32_t hash = vocab_hash(p, n);
  struct seen_word *w = &s->seen[hash % SEEN_WORDS];
  if (w->n_ids && w->hash == hash && is_spelled_by(s->tok, s->out->v + w->at, w->n_ids, p, n)) {
    for (uint32_t i = 0; i < w->n_ids; i++) tok_ids_push(s->out, s->out->v[w->at + i]);
    return;
  }
  size_t at = s->out->n;
  bpe_word(&s->tok->vocab, s->tok->merge, p, n, &s->work, s->out);
  *w = (struct seen_word){.at = at, .n_ids = (uint32_t)(s->out->n - at), .hash = hash};
}

/* Text without control tokens and user-defined pieces. */
static void encode_words(struct encoding *s, struct str text) {
  const struct vocab *v = &s->tok->vocab;
  size_t word = 0;
  for (size_t i = 0; i < text.n;) {
    TOK_WORK(1);
    if (i > word && !vocab_joins(v, (unsigned char)text.p[i - 1], (unsigned char)text.p[i])) {
      encode_word(s, text.p + word, i - word);
      word = i;
    }
    for (i++; i < text.n && ((unsigned char)text.p[i] & 0xC0) == 0x80;) i++;
  }
  encode_word(s, text.p + word, text.n - word);
}

/* The same, cut by the published pattern; a word that is a piece is that piece, however merging would get there. */
static void encode_split_words(struct encoding *s, struct str text) {
  for (size_t n; text.n; text.p += n, text.n -= n) {
    n = pretok_llama3(text.p, text.n);
    int32_t id = vocab_find_normal(&s->tok->vocab, text.p, n);
    if (id >= 0) tok_ids_push(s->out, id);
    else encode_word(s, text.p, n);
  }
}

/* Text without control tokens. */
static void encode_plain(struct encoding *s, struct str text) {
  const struct vocab *v = &s->tok->vocab;
  void (*encode)(struct encoding *, struct str) = v->style == VOCAB_BYTES ? encode_split_words : encode_words;
  if (v->style != VOCAB_BYTES) text = text_form(text, &s->scratch);
  size_t from = 0;
  for (size_t i = 0; v->user.n && i < text.n;) {
    unsigned char first = (unsigned char)text.p[i];
    size_t len = 0;
    TOK_WORK(1);
    int32_t id = v->user.root[first] < 0 || (first & 0xC0) == 0x80 ? -1 : trie_longest(&v->user, text.p + i, text.n - i, &len);
    if (id < 0) {
      i++;
      continue;
    }
    encode(s, str_of(text.p + from, i - from));
    tok_ids_push(s->out, id);
    from = i += len;
  }
  encode(s, str_of(text.p + from, text.n - from));
}

/* Text in which spellings of control tokens are those tokens: leftmost, then longest. */
static void encode_special(struct encoding *s, struct str text) {
  const struct trie *control = &s->tok->vocab.control;
  size_t from = 0;
  for (size_t i = 0; i < text.n;) {
    size_t len = 0;
    TOK_WORK(1);
    int32_t id = control->root[(unsigned char)text.p[i]] < 0 ? -1 : trie_longest(control, text.p + i, text.n - i, &len);
    if (id < 0) {
      i++;
      continue;
    }
    encode_plain(s, str_of(text.p + from, i - from));
    tok_ids_push(s->out, id);
    from = i += len;
  }
  encode_plain(s, str_of(text.p + from, text.n - from));
}

void tok_encode(const struct tokenizer *t, struct str text, bool special, bool bos, struct tok_ids *out) {
  CHECK(text.n <= TOK_TEXT_BYTES_MAX);
  if (t->blank) return;
  struct encoding s = {.tok = t, .out = out};
  struct buf cleaned;
  buf_init(&s.scratch, (size_t)3 * TOK_TEXT_BYTES_MAX);
  buf_init(&cleaned, (size_t)3 * TOK_TEXT_BYTES_MAX);
  if (!text.p) text = str_of("", 0);
  if (!utf8_valid(text.p, text.n)) {
    tok_clean_utf8(&cleaned, text.p, text.n);
    text = str_of(cleaned.data, cleaned.len);
  }
  if (text.n >= SEEN_FROM_BYTES) s.seen = xcalloc(SEEN_WORDS, sizeof *s.seen);
  size_t start = out->n;
  if (bos && t->bos >= 0) tok_ids_push(out, t->bos);
  if (special) encode_special(&s, text);
  else encode_plain(&s, text);
  if (bos && t->bos >= 0 && out->n > start + 1 && out->v[start + 1] == t->bos) { /* the text spelled it: once is enough */
    memmove(out->v + start, out->v + start + 1, (out->n - start - 1) * sizeof *out->v);
    out->n--;
  }
  free(s.seen);
  bpe_work_free(&s.work);
  buf_free(&s.scratch);
  buf_free(&cleaned);
}

/* --- decoding ---------------------------------------------------------------------------------------------------------------------- */

/* Bytes between two control tokens are put together first, so that characters may span tokens. */
void tok_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out) {
  struct buf run;
  buf_init(&run, 0);
  for (size_t i = 0; i < n; i++) {
    struct str piece = tok_piece(t, ids[i]);
    if (!tok_is_control(t, ids[i])) {
      buf_append(&run, piece.p, piece.n);
      continue;
    }
    tok_clean_utf8(out, buf_cstr(&run), run.len);
    buf_clear(&run);
    if (!skip_special) tok_clean_utf8(out, piece.p, piece.n);
  }
  tok_clean_utf8(out, buf_cstr(&run), run.len);
  buf_free(&run);
}
