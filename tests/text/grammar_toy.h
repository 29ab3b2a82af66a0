/* grammar_toy.h — a small made-up vocabulary for tests of grammars: control tokens, all bytes, some longer pieces, also ones that end or begin
 * inside a character. Only what grammars look at is filled in. */
#ifndef CYGNET_TESTS_GRAMMAR_TOY_H
#define CYGNET_TESTS_GRAMMAR_TOY_H

#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "text/grammar.h"
#include "text/vocab.h"

enum { TOY_PAD, TOY_EOS, TOY_END, TOY_A, TOY_B, TOY_CONTROLS, TOY_BYTE = TOY_CONTROLS, TOY_PIECES = TOY_BYTE + 256 };

struct toy {
  struct tokenizer t;
};

static inline void toy_push(struct toy *y, const char *p, size_t n, enum piece_kind kind) {
  struct vocab *v = &y->t.vocab;
  memcpy(v->blob + v->at[v->n], p, n);
  v->kind[v->n] = (unsigned char)kind;
  v->key[v->n] = VOCAB_NEVER;
  if (kind == PIECE_BYTE) v->byte_id[(unsigned char)*p] = v->n;
  v->at[v->n + 1] = v->at[v->n] + (uint32_t)n;
  v->n++;
}

/* Freed with vocab_free(&y->t.vocab). */
static inline void toy_init(struct toy *y, const char *const *pieces, int n_pieces) {
  static const char *const controls[TOY_CONTROLS] = {"<pad>", "<eos>", "<end>", "<|a|>", "<|b|>"};
  struct err e = {0};
  memset(y, 0, sizeof *y);
  vocab_init(&y->t.vocab, VOCAB_BY_SCORE, 1024, 16384);
  y->t.bos = -1;
  y->t.eog[0] = TOY_EOS;
  y->t.eog[1] = TOY_END;
  y->t.n_eog = 2;
  for (int i = 0; i < TOY_CONTROLS; i++) toy_push(y, controls[i], strlen(controls[i]), PIECE_CONTROL);
  for (int i = 0; i < 256; i++) toy_push(y, (char[]){(char)i}, 1, PIECE_BYTE);
  for (int i = 0; i < n_pieces; i++) toy_push(y, pieces[i], strlen(pieces[i]), PIECE_NORMAL);
  toy_push(y, "<unused0>", 9, PIECE_UNUSED);
  toy_push(y, "", 0, PIECE_NORMAL);
  if (vocab_finish(&y->t.vocab, "toy", &e)) fail_msg("%s", e.msg);
}

static inline bool toy_allows(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

#endif
