/* say.h — from rows of logits to what a request says next.
 *
 *   rows      last token   ahead[0]   ahead[1]   ahead[2]         of one request in one step: its last known token and what is expected behind it
 *   speak of  position n   n + 1      n + 2      n + 3
 *   says      ahead[0]     ahead[1]   other ─── the row of ahead[2] was computed for nothing
 *
 * The rows of one request are looked at in order by one worker, each with the state that the tokens before it lead to: penalties, the grammar, the
 * thought it is in. The first token that differs from what its next row was computed for ends it. So what is said does not depend on what was
 * expected, to the bit. What else it means that a token was said (text, stop strings, the end) is decided afterwards by the thread that steps.
 *
 * Certain tokens. After each token the grammar is asked which bytes must come next (grammar_forced). They are encoded, and so many tokens are taken
 * as certain as stand before the last *border* in them: two neighbouring characters that no piece of the vocabulary joins, the first of them no white
 * space. No merge crosses such a border and no pre-splitter looks across it, so these tokens are the same whatever follows; the rest is the model's
 * choice under the mask. When nothing but a control token or an end can follow, all of them are certain. A certain token that the request itself
 * forbids (logit_bias, min_tokens) is left to the sampler, which may find another way to say the same. All this depends on the request's tokens alone.
 * Certain tokens have log-probabilities like any other: those of the model's row before them.
 *
 * Stops. Where a thought lasts, stop strings are not looked for. Where a grammar holds, a stop string or a stop id counts only when what the tokens
 * before it say is a whole answer already: so "}" does not cut the JSON that a schema asked for, and still ends free text beside tool calls.
 *
 * An end. With a grammar, an end of generation ends the request where the grammar allows one. Where the grammar allows nothing else and the request
 * forbids it (ignore_eos, min_tokens), the request ends there without one.
 *
 * A grammar that gives up (grammar.h) fails its request where it would have been asked next, ERR_BAD_INPUT.
 */
#ifndef CYGNET_SAY_H
#define CYGNET_SAY_H

#include "compute/tensor.h"
#include "engine/request.h"

struct said {                  /* one token */
  struct sample_result result; /* id -1: none; the answer is complete as it is */
  bool certain;                /* a grammar left no choice */
  bool may_stop;               /* stop strings are looked for in its text */
  bool is_stop;                /* its id ends the request */
  bool complete;               /* the grammar allows nothing more, and the request no end: so it ends here */
  int n_reasoning;             /* tokens of thoughts up to here */
};

/* What is the same for all requests of one model. */
struct say_model {
  const struct tokenizer *tok;
  int n_ids;              /* of the tokenizer: bits of a mask */
  uint32_t *not_ends;     /* [mask words], owned: everything but ends of generation, the tokenizer's and the model's */
  bool has_joins;         /* the table below is filled, when it is needed first */
  uint64_t joins[256][4]; /* bit of (last byte of a character, first byte of the next): some piece has them side by side */
};

struct say_scratch { /* of one worker */
  struct sample_scratch sampler;
  uint32_t *mask; /* [mask words], owned */
  struct buf text;
  struct tok_ids ids;
};

/* limits' tokenizer is borrowed. */
int say_model_init(struct say_model *m, const struct request_limits *limits, struct err *e);
void say_model_free(struct say_model *m);    /* fine on a zeroed one */
void say_model_prepare(struct say_model *m); /* before the first request with a grammar: not while workers run */
int say_scratch_init(struct say_scratch *sc, const struct say_model *m, int vocab, struct err *e);
void say_scratch_free(struct say_scratch *sc); /* fine on a zeroed one */

/* The rows of one request in one step. */
struct say_rows {
  struct request *r;
  int n_rows;                       /* that speak of tokens to say: the last known one's and those of r->ahead[0 .. n_rows - 1) */
  int first_out, n_out;             /* the last n_out of them have logits, from that row of the logits on */
  int32_t ahead[REQUEST_AHEAD_MAX]; /* what those rows were computed for */
  int n_certain;                    /* of ahead, how many were certain */
  struct said *said;                /* [n_rows], borrowed: what it said */
  int n_said;
  int n_right; /* of ahead, how many at the front were what it said */
  bool failed; /* after n_said tokens */
  struct err error;
};
/* peaks: of the logits (compute/head.h), data NULL for none. Changes r's sampling, grammar, thoughts and ahead, not its tokens. From any thread: one request by one at a time. */
void say_tokens(const struct say_model *m, struct say_scratch *sc, const struct tensor *logits, const struct tensor *peaks,
                struct say_rows *rows);
/* What is certain behind the tokens that r has said, the next being that at position; when nothing was. */
void say_expect(const struct say_model *m, struct say_scratch *sc, struct request *r, int position);

#endif
