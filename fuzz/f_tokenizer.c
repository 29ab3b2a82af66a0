/* f_tokenizer.c — bytes as a text for a small vocabulary, and as a tokenizer.json.
 *
 * First byte even: the rest is text. Encoded plainly no control id may come out, decoding gives the text back (U+FFFD where it was not
 * UTF-8, blanks for U+2581), and the stream gives what decoding gives.
 * First byte odd: the rest is read as tokenizer.json; what is accepted must encode and decode.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/detok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct tokenizer *toy(void) {
  static struct tokenizer *opened;
  struct err e = {0};
  if (opened) return opened;
  opened = tok_open("tests/golden/gemma3-text-tiny", &e);
  if (!opened) {
    fprintf(stderr, "run from the project's root: %s\n", e.msg);
    abort();
  }
  return opened;
}

/* The text as it must read back. */
static void expected_text(struct str text, struct buf *out) {
  for (size_t i = 0; i < text.n;) {
    uint32_t cp;
    char utf8[4];
    i += (size_t)utf8_step(text.p + i, text.n - i, &cp, NULL);
    if (cp == 0x2581) cp = ' ';
    buf_append(out, utf8, (size_t)utf8_put(cp, utf8));
  }
}

static void round_trip(const struct tokenizer *t, struct str text) {
  struct tok_ids ids = {0}, special = {0};
  struct buf want, decoded, streamed;
  struct detok d;
  buf_init(&want, 0);
  buf_init(&decoded, 0);
  buf_init(&streamed, 0);
  tok_encode(t, text, false, false, &ids);
  for (size_t i = 0; i < ids.n; i++) CHECK(ids.v[i] >= 0 && ids.v[i] < tok_vocab(t) && !tok_is_control(t, ids.v[i]));
  expected_text(text, &want);
  tok_decode(t, ids.v, ids.n, false, &decoded);
  CHECK(want.len == decoded.len && (!want.len || !memcmp(want.data, decoded.data, want.len)));
  tok_encode(t, text, true, true, &special);
  detok_init(&d, t, false);
  for (size_t i = 0; i < special.n; i++) detok_push(&d, special.v[i], &streamed);
  detok_finish(&d, &streamed);
  buf_clear(&decoded);
  tok_decode(t, special.v, special.n, false, &decoded);
  CHECK(streamed.len == decoded.len && (!streamed.len || !memcmp(streamed.data, decoded.data, streamed.len)));
  buf_free(&want);
  buf_free(&decoded);
  buf_free(&streamed);
  tok_ids_free(&ids);
  tok_ids_free(&special);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n) return 0;
  struct str rest = str_of((const char *)data + 1, n - 1);
  if (data[0] % 2 == 0) {
    round_trip(toy(), rest);
    return 0;
  }
  struct err e = {0};
  struct tokenizer *t = tok_from_json(rest.p, rest.n, "fuzz.json", &e);
  if (!t) {
    CHECK(e.code != ERR_NONE && e.msg[0]);
    return 0;
  }
  struct tok_ids ids = {0};
  struct buf text;
  buf_init(&text, 0);
  tok_encode(t, str_c("the cat <end_of_turn> sat\n\n  on"), true, true, &ids);
  for (size_t i = 0; i < ids.n; i++) CHECK(ids.v[i] >= 0 && ids.v[i] < tok_vocab(t));
  tok_decode(t, ids.v, ids.n, false, &text);
  buf_free(&text);
  tok_ids_free(&ids);
  tok_close(t);
  return 0;
}
