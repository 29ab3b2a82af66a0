/* f_grammar.c — bytes as a grammar, and the rest of them as an answer under it.
 *
 * First byte: kind (regex, EBNF, schema) and a limit of the caches. Then the grammar's text up to a NUL, then bytes that choose among what is allowed.
 * What a mask allows is accepted, what it does not is refused, there is always something, and forced bytes are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_impl.h"
#include "text/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { TEXT_MAX = 600, STEPS_MAX = 24 };

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

static struct grammar *compile(struct grammar_vocab *v, int kind, struct str text, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  int node, result;
  if (kind == 0) {
    result = regex_parse(g, text, &node, e);
    if (!result) rules_root(g, node);
  } else if (kind == 1) {
    result = gbnf_parse(g, toy(), text, e);
  } else {
    json_t *schema = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    result = schema ? schema_build(g, toy(), schema, SCHEMA_JSON, "schema", &node, e) : err_set(e, ERR_BAD_INPUT, "no JSON");
    if (!result) rules_root(g, node);
    json_decref(schema);
  }
  if (!result) return grammar_compile(v, g, e);
  grammar_rules_delete(g);
  return NULL;
}

static void check_forced(struct grammar_state *s, const uint32_t *mask, int n_tokens) {
  struct buf out;
  int32_t id;
  buf_init(&out, 0);
  grammar_forced(s, 5, &out, &id);
  CHECK(out.len <= 5 && (id < 0 || !out.len));
  for (int32_t t = 0; t < n_tokens && (out.len || id >= 0); t++) {
    struct str p = tok_piece(toy(), t);
    if (!mask_bit(mask, t)) continue;
    if (id >= 0) CHECK(t == id);
    else CHECK(!tok_is_control(toy(), t) && !memcmp(p.p, out.data, MIN(p.n, out.len)));
  }
  buf_free(&out);
}

static void answer(struct grammar *g, const uint8_t *choices, size_t n) {
  struct grammar_state *s = grammar_state_new(g), *ahead = grammar_state_copy(s);
  int n_tokens = tok_vocab(toy());
  for (size_t i = 0; i < n && i < STEPS_MAX; i++) {
    const uint32_t *mask = grammar_mask(s);
    CHECK(!mask == grammar_gave_up(s));
    if (!mask) break;
    int32_t chosen = -1, n_allowed = 0, wanted = choices[i];
    for (int32_t t = 0; t < n_tokens; t++) n_allowed += mask_bit(mask, t);
    CHECK(n_allowed > 0);
    wanted %= n_allowed;
    for (int32_t t = 0; t < n_tokens && chosen < 0; t++)
      if (mask_bit(mask, t) && wanted-- == 0) chosen = t;
    check_forced(s, mask, n_tokens);
    for (int k = 0; k < 8; k++) {
      int32_t t = (int32_t)((choices[i] * 31u + (unsigned)k * 97u) % (unsigned)n_tokens);
      grammar_state_set(ahead, s);
      CHECK(grammar_accept(ahead, t) == mask_bit(mask, t) || grammar_gave_up(ahead));
    }
    CHECK(!grammar_must_end(s) || grammar_may_end(s));
    CHECK(grammar_accept(s, chosen) || grammar_gave_up(s));
  }
  grammar_state_delete(ahead);
  grammar_state_delete(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static struct grammar_vocab *v;
  struct err e = {0};
  if (n < 2) return 0;
  if (!v) v = grammar_vocab_new(toy());
  const uint8_t *end = memchr(data + 1, 0, n - 1);
  size_t n_text = MIN(end ? (size_t)(end - data) - 1 : n - 1, (size_t)TEXT_MAX);
  struct grammar *g = compile(v, data[0] % 3, str_of((const char *)data + 1, n_text), &e);
  if (!g) {
    CHECK(e.code != ERR_NONE && e.msg[0] && utf8_valid(e.msg, strlen(e.msg)));
    return 0;
  }
  if (data[0] & 0x80) grammar_limit(g, 1000, 1000, 3);
  if (end) answer(g, end + 1, n - (size_t)(end + 1 - data));
  grammar_unref(g);
  return 0;
}
