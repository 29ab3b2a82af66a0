/* answers.h — what a text says the answer is, and whether that is right. No model, no files: text in, verdict out.
 *
 * Rules
 *   1. Each rule is that of the harness whose scores people compare with, odd corners included (docs/eval.md names them): a score is worth
 *      something only beside others that were counted alike.
 *   2. Where a harness draws lots because it found no answer, there is none here, which is wrong: a score does not depend on luck.
 */
#ifndef CYGNET_EVAL_ANSWERS_H
#define CYGNET_EVAL_ANSWERS_H

#include "base/buf.h"
#include "base/str.h"

enum answer_rule {
  ANSWER_LAST_INTEGER, /* commas removed, the last run of digits; one that begins with 0 and goes on is no number */
  ANSWER_LAST_NUMBER,  /* commas removed, the last -?digits(.digits)? ; 18.00 is 18 */
  ANSWER_LINE,         /* what follows the first "Answer:" on its line, whatever its case, as an integer from 0 to 999 */
  ANSWER_LETTER,       /* one of the options: (A), then "A ", then "A.", then an option's own words; of several the last */
  ANSWER_LETTER_LINE,  /* the one letter after the last "Answer:", else as ANSWER_LETTER */
  ANSWER_OPEN          /* words or a number: the ends of sentences that say "is", "answer", "=", ..., and all numbers in them */
};

struct answer_key {
  enum answer_rule rule;
  char **expected; /* any of these; owned by whoever made the key, as are options */
  int n_expected;
  char **options; /* texts of A, B, C, ... */
  int n_options;
};

/* Whether the text gives the expected answer. *found: what it gives, owned; NULL: nothing (refusals, empty texts). */
bool answer_grade(const struct answer_key *k, struct str text, char **found);
/* What the rule finds in a text; the expected integer of GSM8K's worked solutions is read with it, too. Owned; NULL: nothing. */
char *answer_last_integer(struct str text);

#endif
