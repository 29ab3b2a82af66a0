/* guess.h — what decoding requests probably say next, from two sources: their own tokens (draft.h) and a drafter (models/drafter.h).
 *
 * A guess costs time: a row in the step, and the drafter's step where it is the drafter's. Guess i of a request is right with chance^i, by how often
 * those of that source were lately; a token is worth its share of a decoding step. The request gets as many as are worth more than they cost, from
 * the source that gains more. That decides about time alone: whatever is guessed, an answer is the same to the bit.
 *
 * The drafter goes on from the hidden row that the newest token was sampled from. Each running request has a place for one, by its table in the cache;
 * the place says which request's and which token's it is, so what happens to requests in between does not matter.
 * All requests that it guesses for are one round: a step of the drafter is one row of each, of those that want fewer only at first.
 */
#ifndef CYGNET_GUESS_H
#define CYGNET_GUESS_H

#include "engine/request.h"
#include "models/drafter.h"

struct cygnet;
struct plan;

struct guess_row { /* whose hidden row is kept: that of request `number` when it knew n_tokens, of which it gave the last; 0 = nobody's */
  uint64_t number;
  int n_tokens;
};

struct guesser { /* zeroed: no drafter */
  struct weights *weights;
  struct model_config *config;
  struct drafter *drafter;
  struct guess_row *kept;   /* [max_running] */
  struct batch batch;       /* of a round */
  struct request **round;   /* [max_running], those that want most first */
  int32_t *slots, *guesses; /* [max_running] */
  double drafter_ms;        /* lately, per guess; 0 = not known yet */
  uint64_t n_drawn;         /* guesses that it made, computed or not */
};

/* Opens the drafter's file and holds it against the target. Before the memory is planned. */
int guess_open_file(struct guesser *g, const char *path, const struct model_config *target, struct err *e);
/* The rest; the model was opened with that configuration as its plan's drafter. */
int guess_open(struct cygnet *c, struct err *e);
void guess_close(struct guesser *g);      /* before the model; fine on a zeroed one */
size_t guess_bytes(const struct plan *p); /* scratch of a drafter, 0 without */

/* Guesses behind what every decoding request says next, into ahead. Which of them get rows is the scheduler's business. */
void guess_offer(struct cygnet *c);
/* Of r's n_guessed guesses that were computed in this step n_right were what it said. */
void guess_learn(struct cygnet *c, struct request *r, int n_guessed, int n_right);
/* r's newest token came from the step's row of logits `out`. */
void guess_keep(struct cygnet *c, const struct request *r, int out);

#endif
