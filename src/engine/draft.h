/* draft.h — guessing what a request says next from what stands in its own tokens: prompt look-up.
 *
 *   ... the quick brown fox jumps over ... the quick brown | fox jumps over     the longest earlier occurrence of the last tokens, newest first;
 *       └────────────┘                                       └─ draft ────┘     what followed there is the draft, and what follows a period itself
 *
 * An index of n-grams (hash of DRAFT_KEY tokens -> where they ended last, and from there where one of that hash ended before) grows with the tokens;
 * adding is O(1), a look-up follows DRAFT_LOOKS of them at most. A draft costs rows in a step; whether it pays is counted per request: the length
 * offered follows how much was accepted lately, and reaches 0 for one that never repeats itself (after DRAFT_QUIET tokens one guess is tried again).
 * Pure integers: the same tokens give the same drafts.
 */
#ifndef CYGNET_DRAFT_H
#define CYGNET_DRAFT_H

#include "base/base.h"
#include "base/err.h"

enum { DRAFT_KEY = 3, DRAFT_TOKENS_MAX = 64, DRAFT_LOOKS = 8, DRAFT_MATCH_MAX = 32, DRAFT_OFFER_FIRST = 4, DRAFT_QUIET = 32 };

/* How guesses of one source fared lately, and so how many it may offer. */
struct draft_trust {
  int n_offer;        /* tokens to offer now, 0 .. DRAFT_TOKENS_MAX */
  int n_quiet;        /* times that none were since the offer became 0 */
  int n_tried, n_hit; /* guesses checked lately, and those of them that were right */
};

struct draft {
  int32_t *last; /* [mask + 1], owned: position after the n-gram of this hash that ended last, 0 = none */
  int32_t
      *before; /* [tokens_max + 1], owned: of the n-gram that ends before position i: the one of its hash that ended before it, 0 = none */
  uint32_t mask;
  int tokens_max; /* grows */
  int n_indexed;  /* n-grams that end at or before this position are in the index */
  struct draft_trust trust;
};

/* Room for tokens_max tokens at first, 12 bytes each at most; it grows by half when they become more. */
int draft_init(struct draft *d, int tokens_max, struct err *e);
void draft_free(struct draft *d); /* fine on a zeroed one */
/* Up to n_max guesses of what follows tokens[0 .. n): their number, 0 = none. Tokens given once are the same in later calls. */
int draft_next(struct draft *d, const int32_t *tokens, int n, int n_max, int32_t *out);

void draft_trust_init(struct draft_trust *t);
int draft_offer(struct draft_trust *t); /* how many may be offered, once per time that they could be */
/* Of n_drafted guesses that were checked n_accepted were right. */
void draft_learn(struct draft_trust *t, int n_drafted, int n_accepted);
/* How likely one guess is right, in 1/256, by those checked lately; a half when none were. */
int draft_chance(const struct draft_trust *t);

#endif
