/* f_tokenizer.c — bytes as a text for small vocabularies, as a tokenizer.json, and as a GGUF file.
 *
 * First byte even: the rest is text, for Gemma 3, Gemma 4, Llama 3 or all of them in turn. Encoded plainly no control id may come out, decoding gives
 * the text back (U+FFFD where it was not UTF-8, in the Gemmas blanks for U+2581), and the stream gives what decoding gives.
 * First byte 0x07: the rest is a GGUF file. Any other: it is read as tokenizer.json. What is accepted must encode and decode.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/detok.h"
#include "text/pretok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct tokenizer *opened(struct tokenizer *t, const struct err *e) {
  if (t) return t;
  fprintf(stderr, "run from the project's root: %s\n", e->msg);
  abort();
}

/* Pieces of the two families that merge by rank: bytes, then these, each made by one merge that stands at its place in the order. */
static const char *const merges[][2] = {{"t", "h"},  {"_", "t"}, {"th", "e"}, {"_t", "he"}, {"h", "e"},   {"<", "|"},
                                        {"|", ">"},  {"a", "a"}, {"aa", "a"}, {"a", "aa"},  {"aa", "aa"}, {"_", "_"},
                                        {"__", "_"}, {"'", "s"}, {"<|", "t"}, {"_the", "_"}};

/* _ is a blank. */
static void put_piece(struct buf *b, const char *piece, bool llama) {
  for (; *piece; piece++)
    if (*piece == '_') buf_puts(b, llama ? "\xC4\xA0" : "\xE2\x96\x81");
    else buf_putc(b, *piece);
}

static void put_bytes(struct buf *b, bool llama, int first_id) {
  for (unsigned c = 0; c < 256; c++) {
    char spelling[4];
    uint32_t cp = (c > 0x20 && c < 0x7F) || (c > 0xA0 && c != 0xAD) ? c : c <= 0x20 ? 0x100 + c : c == 0xAD ? 0x143 : 0x121 + c - 0x7F;
    if (!llama) buf_printf(b, "\"<0x%02X>\":%d,", c, first_id + (int)c);
    else
      buf_printf(b, "\"%s%.*s\":%d,", c == '"' || c == '\\' ? "\\" : "", utf8_put(cp, spelling), (utf8_put(cp, spelling), spelling),
                 first_id + (int)c);
  }
}

static struct tokenizer *made_up(bool llama) {
  static const char *const control[2][6] = {
      {"<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"},
      {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot_id|><|", "<|eom_id|>", "<|image|>"}};
  static const char letters[] = "the_<|>as'";
  struct buf b;
  struct err e = {0};
  int id = 0;
  buf_init(&b, 0);
  buf_puts(&b, "{\"added_tokens\":[");
  for (int i = 0; i < 6; i++) buf_printf(&b, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", id++, control[llama][i]);
  if (llama)
    buf_puts(&b, "],\"pre_tokenizer\":{\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"");
  if (llama) buf_json_escape(&b, PRETOK_LLAMA3, strlen(PRETOK_LLAMA3));
  if (llama) buf_puts(&b, "\"}},{\"type\":\"ByteLevel\",\"use_regex\":false}]}");
  else buf_puts(&b, "],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}");
  buf_printf(&b, ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":%s,\"vocab\":{", llama ? "false" : "true");
  for (int i = 0; !llama && i < 6; i++) buf_printf(&b, "\"%s\":%d,", control[llama][i], i);
  put_bytes(&b, llama, id);
  id += 256;
  for (const char *p = letters; !llama && *p; p++) {
    buf_putc(&b, '"');
    put_piece(&b, (const char[]){*p, 0}, llama);
    buf_printf(&b, "\":%d,", id++);
  }
  for (size_t i = 0; i < ARRAY_LEN(merges); i++) {
    char joined[16];
    bool known = false;
    snprintf(joined, sizeof joined, "%s%s", merges[i][0], merges[i][1]);
    for (size_t k = 0; k < i; k++)
      known |= !strncmp(joined, merges[k][0], strlen(merges[k][0])) && !strcmp(joined + strlen(merges[k][0]), merges[k][1]);
    if (known) continue;
    buf_putc(&b, '"');
    put_piece(&b, joined, llama);
    buf_printf(&b, "\":%d,", id++);
  }
  if (llama) buf_printf(&b, "\"never\":%d", id);
  else buf_printf(&b, "\"<table>\":%d", id);
  buf_puts(&b, "},\"merges\":[");
  for (size_t i = 0; i < ARRAY_LEN(merges); i++) {
    buf_puts(&b, i ? ",[\"" : "[\"");
    put_piece(&b, merges[i][0], llama);
    buf_puts(&b, "\",\"");
    put_piece(&b, merges[i][1], llama);
    buf_puts(&b, "\"]");
  }
  buf_puts(&b, "]}}");
  struct tokenizer *t = opened(tok_from_json(b.data, b.len, "made-up", &e), &e);
  CHECK(tok_family(t) == (llama ? TOK_LLAMA3 : TOK_GEMMA4));
  buf_free(&b);
  return t;
}

static struct tokenizer *toy(int family) {
  static struct tokenizer *tok[3];
  struct err e = {0};
  if (!tok[family])
    tok[family] = family == TOK_GEMMA3 ? opened(tok_open("tests/golden/gemma3-text-tiny", &e), &e) : made_up(family == TOK_LLAMA3);
  return tok[family];
}

/* The text as it must read back. */
static void expected_text(const struct tokenizer *t, struct str text, struct buf *out) {
  for (size_t i = 0; i < text.n;) {
    uint32_t cp;
    char utf8[4];
    i += (size_t)utf8_step(text.p + i, text.n - i, &cp, NULL);
    if (cp == 0x2581 && tok_family(t) != TOK_LLAMA3) cp = ' ';
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
  expected_text(t, text, &want);
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

static struct tokenizer *from_gguf(struct str file, struct err *e) {
  struct map m = {.data = (const unsigned char *)file.p, .n_bytes = file.n};
  struct gguf g;
  struct tokenizer *t = NULL;
  if (gguf_open(&g, &m, e) != 0) return NULL;
  t = tok_from_gguf(&g, e);
  gguf_close(&g);
  return t;
}

static void use_and_close(struct tokenizer *t) {
  struct tok_ids ids = {0};
  struct buf text;
  buf_init(&text, 0);
  tok_encode(t, str_c("the cat <end_of_turn> sat's\n\n  on <|eot_id|>"), true, true, &ids);
  for (size_t i = 0; i < ids.n; i++) CHECK(ids.v[i] >= 0 && ids.v[i] < tok_vocab(t));
  tok_decode(t, ids.v, ids.n, false, &text);
  buf_free(&text);
  tok_ids_free(&ids);
  tok_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n) return 0;
  struct str rest = str_of((const char *)data + 1, n - 1);
  if (data[0] % 2 == 0) {
    int only = data[0] / 2 % 4; /* 0: all */
    for (int family = 0; family < 3; family++)
      if (!only || only == family + 1) round_trip(toy(family), rest);
    return 0;
  }
  struct err e = {0};
  struct tokenizer *t = data[0] == 7 ? from_gguf(rest, &e) : tok_from_json(rest.p, rest.n, "fuzz.json", &e);
  if (t) use_and_close(t);
  else CHECK(e.code != ERR_NONE && e.msg[0]);
  return 0;
}
