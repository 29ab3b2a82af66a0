/* suites.h — data sets → questions: what is asked, word for word, and what the answer is to be.
 *
 * Rules
 *   1. Prompts, numbers of examples, limits and the choice of questions are those of the harnesses that published scores come from
 *      (docs/eval.md names them). What a user changes is written in the log.
 *   2. A data set is one .jsonl file or a folder with some, read in the order of their names, each line one question with the fields of the
 *      released set. Pictures are files, named from where the .jsonl lies.
 *   3. Reading stops when there are enough questions.
 */
#ifndef CYGNET_EVAL_SUITES_H
#define CYGNET_EVAL_SUITES_H

#include <jansson.h>

#include "eval/answers.h"

struct suite { /* one row of the table */
  const char *name;
  bool asks;     /* questions with answers; false: a text or a reference is followed (likelihood.h) */
  bool chats;    /* a conversation, not a text to be continued */
  bool pictures; /* may have some */
  int limit;     /* questions; 0: all */
  int parallel;  /* asked at the same time */
  int max_tokens, samples, shots;
  bool sampled; /* at the model's own temperature; otherwise the likeliest token each time */
};
/* NULL: no such suite. */
const struct suite *suite_find(const char *name);
const char *suite_names(void); /* "gsm8k, aime, ..." */

struct eval_question {
  char *id, *group; /* group: a subject; NULL: none. All owned */
  char *prompt;     /* continued as it is; NULL where there is a conversation */
  json_t *messages; /* in OpenAI's form; a picture's part is {"type": "image_url", "path": FILE} */
  char *digest;     /* of what is asked: in the log */
  struct answer_key key;
};
struct eval_questions {
  struct eval_question *v;
  int n, cap;
  const char *const *stop; /* static */
  int n_stop;
};

struct suite_options {
  const struct suite *suite;
  const char *data; /* file or folder */
  int shots, limit; /* limit 0: all */
  bool chats;       /* gsm8k as a conversation */
};
int suite_load(const struct suite_options *o, struct eval_questions *q, struct err *e);
void suite_free(struct eval_questions *q);

/* A list as Python writes it, as in MMMU's options: "['a', \"b\", 3]" → owned strings; -1: it is none. */
int suite_python_list(struct str text, char ***out);
void suite_free_strings(char **v, int n);

#endif
