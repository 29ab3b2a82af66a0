/* tok.c — encode and decode: what happens around the merging.
 *
 * Encoding goes over the text once: make it UTF-8, cut it at control spellings if they are wanted, turn U+2581 into blanks, cut it at
 * user-defined pieces and at word borders, merge each word.
 */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/vocab.h"

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
  (void)t;
  return (struct str){0};
}

int32_t tok_find(const struct tokenizer *t, const char *spelling) {
  struct str s = str_c(spelling);
  int byte = vocab_byte_spelling(s);
  if (byte >= 0) return t->vocab.byte_id[byte];
  int32_t id = vocab_find(&t->vocab, s.p, s.n);
  if (id >= 0) return id;
  struct buf scratch;
  buf_init(&scratch, 0);
  s = text_form(s, &scratch);
  id = vocab_find(&t->vocab, s.p, s.n);
  buf_free(&scratch);
  return id;
}

/* --- encoding ---------------------------------------------------------------------------------------------------------------------- */

struct encoding { /* state of one tok_encode */
  const struct tokenizer *tok;
  struct bpe_work work;
  struct buf scratch;
  struct tok_ids *out;
};

static void encode_word(struct encoding *s, const char *p, size_t n) { bpe_word(&s->tok->vocab, s->tok->merge, p, n, &s->work, s->out); }

/* Text without control tokens. */
static void encode_plain(struct encoding *s, struct str text) {
  const struct vocab *v = &s->tok->vocab;
  text = text_form(text, &s->scratch);
  size_t word = 0, i = 0;
  while (i < text.n) {
    unsigned char first = (unsigned char)text.p[i];
    size_t len = 0;
    int32_t id = v->user.root[first] < 0 ? -1 : trie_longest(&v->user, text.p + i, text.n - i, &len);
    if (id >= 0) {
      encode_word(s, text.p + word, i - word);
      tok_ids_push(s->out, id);
      word = i += len;
      continue;
    }
    if (i > word && !vocab_joins(v, (unsigned char)text.p[i - 1], first)) {
      encode_word(s, text.p + word, i - word);
      word = i;
    }
    for (i++; i < text.n && ((unsigned char)text.p[i] & 0xC0) == 0x80;) i++;
  }
  encode_word(s, text.p + word, i - word);
}

/* Text in which spellings of control tokens are those tokens: leftmost, then longest. */
static void encode_special(struct encoding *s, struct str text) {
  const struct trie *control = &s->tok->vocab.control;
  size_t from = 0;
  for (size_t i = 0; i < text.n;) {
    size_t len = 0;
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
  struct encoding s = {.tok = t, .out = out};
  struct buf cleaned;
  buf_init(&s.scratch, (size_t)3 * TOK_TEXT_BYTES_MAX);
  buf_init(&cleaned, (size_t)3 * TOK_TEXT_BYTES_MAX);
  if (!text.p) text = str_of("", 0);
  if (!utf8_valid(text.p, text.n)) {
    tok_clean_utf8(&cleaned, text.p, text.n);
    text = str_of(cleaned.data, cleaned.len);
  }
  size_t start = out->n;
  if (bos && t->bos >= 0) tok_ids_push(out, t->bos);
  if (special) encode_special(&s, text);
  else encode_plain(&s, text);
  if (bos && t->bos >= 0 && out->n > start + 1 && out->v[start + 1] == t->bos) { /* the text spelled it: once is enough */
    memmove(out->v + start, out->v + start + 1, (out->n - start - 1) * sizeof *out->v);
    out->n--;
  }
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
