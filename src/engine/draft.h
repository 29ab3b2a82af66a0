/* draft.h — guessing what a request says next from what stands in its own tokens: prompt look-up.
 *
 *   ... the quick brown fox jumps over ... the quick brown | fox jumps over     the longest earlier occurrence of the last tokens, newest first;
 *       └────────────┘                                       └─ draft ────┘     what followed there is the draft
 *
 * An index of n-grams (hash of DRAFT_KEY tokens -> where they stood last) grows with the tokens; looking up and adding are O(1). A draft costs rows in a
 * step; whether it pays is counted per request: the length offered follows how much was accepted lately, and reaches 0 for one that never repeats itself
 * (then a short one is tried again after a while). Pure integers: the same tokens give the same drafts.
 */
#ifndef CYGNET_DRAFT_H
#define CYGNET_DRAFT_H

#include "base/base.h"
#include "base/err.h"

enum { DRAFT_KEY = 3, DRAFT_TOKENS_MAX = 64 };

struct draft {
  int32_t *slots; /* [mask + 1], owned: position after the n-gram's last token, 0 = free */
  uint32_t mask;
  int n_indexed; /* tokens that are in the index */
  int n_offer;   /* tokens to offer now, 0 .. the server's most */
  int n_quiet;   /* tokens since the offer became 0 */
  uint64_t n_drafted, n_accepted;
};

/* Room for tokens_max tokens: 8 bytes each. */
int draft_init(struct draft *d, int tokens_max, struct err *e);
void draft_free(struct draft *d); /* fine on a zeroed one */
/* Up to n_max guesses of what follows tokens[0 .. n): their number, 0 = none. */
int draft_next(struct draft *d, const int32_t *tokens, int n, int n_max, int32_t *out);
/* Of n_drafted guesses n_accepted were right. */
void draft_learn(struct draft *d, int n_drafted, int n_accepted);

#endif
