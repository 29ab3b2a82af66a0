/* run.h — questions → answers → marks: so many at a time, those that a log has are not asked again.
 *
 * Rules
 *   1. The seed of an answer depends on the run's seed, the question's place and the sample's number alone.
 *   2. An answer that could not be had is an error: it counts as wrong, and is asked for again when the run is continued.
 *   3. Marks are made anew from the texts of a log, so that a log never says more than its texts.
 */
#ifndef CYGNET_EVAL_RUN_H
#define CYGNET_EVAL_RUN_H

#include "eval/ask.h"
#include "eval/journal.h"

enum eval_state { EVAL_OPEN, EVAL_DONE, EVAL_FAILED };
struct eval_mark {
  enum eval_state state;
  bool known; /* from the log */
  bool right, found, cut;
  int prompt_tokens, completion_tokens;
  double seconds;
};

struct eval_run {
  const char *name; /* of the suite, for messages */
  const struct eval_questions *questions;
  int samples, parallel;
  uint64_t seed;
  bool progress;           /* a line on the standard error, rewritten */
  bool (*stopped)(void);   /* Ctrl-C */
  struct eval_mark *marks; /* [questions, samples]; owned, by eval_run_begin */
  int n_done, n_failed, n_right, n_known, resume_at;
  int64_t start_ns;
  double seconds;
  char *first_error; /* owned; NULL: none */
  struct journal log;
};

/* Reads the log, if there is one. 0, or -1 and *e. eval_run_end in either case. */
int eval_run_begin(struct eval_run *r, const char *log, const json_t *header, struct err *e);
/* Asks all that is not known. 0, or -1 and *e: the log could not be written. */
int eval_run(struct eval_run *r, struct asker *a, struct err *e);
void eval_run_end(struct eval_run *r);

#endif
