/* ask.h — who answers: a model in this process, or a server that speaks OpenAI's API. Both take many questions at once and give answers as
 * they come.
 *
 * Rules
 *   1. One thread. `begin` hands a question over, `next` waits a little and gives one answer if there is one.
 *   2. A question that fails is an answer with an error; the others go on.
 *   3. What is asked is the same for both: the prompt or conversation of the question, and these settings.
 */
#ifndef CYGNET_EVAL_ASK_H
#define CYGNET_EVAL_ASK_H

#include "cygnet.h"
#include "eval/suites.h"

struct ask_settings {
  int max_tokens;
  struct cygnet_sampling sampling; /* but for the seed: each question's own */
  const char *const *stop;
  int n_stop;
  bool think;       /* conversations ask for thoughts; only what follows them is the answer */
  int media_tokens; /* of a picture, at most; 0: the model's own number. In this process only */
};

struct ask_answer {
  int number; /* as `begin` had it */
  char *text; /* owned; NULL with an error */
  size_t n_text;
  bool cut; /* ended because of max_tokens or the context */
  int prompt_tokens, completion_tokens;
  double seconds;
  char *error; /* owned; NULL: there is none */
};

struct asker {
  const struct ask_settings *settings;
  int (*begin)(struct asker *a, const struct eval_question *q, int number, uint64_t seed,
               struct err *e);                           /* -1: not taken, and never will be */
  bool (*next)(struct asker *a, struct ask_answer *out); /* within a fifth of a second, or a step */
  void (*close)(struct asker *a);                        /* gives up what is on its way */
};

/* c is borrowed. */
struct asker *ask_local_open(struct cygnet *c, const struct ask_settings *s);

struct url; /* url.h */
/* model: what requests call it. All are borrowed. */
struct asker *ask_url_open(const struct url *u, const char *model, const struct ask_settings *s);

#endif
