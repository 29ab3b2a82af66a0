/* journal.h — the log of a run: JSON lines, the first of which says what run it is, and then one for each answer.
 *
 * A log that exists is continued when it is of the same run, and refused otherwise. A line that was cut (a full disk, a kill) is dropped.
 * Two programs never write the same log.
 */
#ifndef CYGNET_EVAL_JOURNAL_H
#define CYGNET_EVAL_JOURNAL_H

#include <jansson.h>

#include "base/err.h"

struct journal {
  int fd; /* -1: there is no log */
  char *path;
};
/* header: an object; seen: called for each line that is there already, which it may refuse (-1 and *e). path NULL: no log. */
int journal_open(struct journal *j, const char *path, const json_t *header, int (*seen)(void *ctx, const json_t *line, struct err *e),
                 void *ctx, struct err *e);
int journal_add(struct journal *j, const json_t *line, struct err *e);
void journal_close(struct journal *j);

#endif
