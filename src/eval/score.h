/* score.h — marks → a score with its interval, for people and for programs. */
#ifndef CYGNET_EVAL_SCORE_H
#define CYGNET_EVAL_SCORE_H

#include "eval/run.h"

/* Wilson's interval of 95 % for a share of n. */
void score_wilson(double share, int n, double *low, double *high);

struct score {
  double share, low, high; /* of right answers; the interval is over questions, however often each was asked */
  int questions, samples, right, failed, unanswered, cut;
  int64_t prompt_tokens, completion_tokens;
  double seconds;       /* of this run */
  int64_t fresh_tokens; /* generated in this run */
};
void score_of(const struct eval_run *r, struct score *s);
/* {"eval": ..., "score": ...}; header's fields stand in it, too. minimum < 0: none. Owned. */
json_t *score_json(const struct eval_run *r, const struct score *s, const json_t *header, double minimum);
void score_print(const struct eval_run *r, const struct score *s, double minimum);

#endif
