/* rows.h — the lines of a data set's files, one JSON object each, in order. */
#ifndef CYGNET_EVAL_ROWS_H
#define CYGNET_EVAL_ROWS_H

#include <jansson.h>

#include "base/err.h"
#include "files/map.h"

struct rows {
  char **files; /* owned, and each */
  int n_files, at;
  struct map map; /* of the current file */
  size_t offset;
  int line;    /* of the current row, from 1 */
  int count;   /* rows so far, over all files */
  json_t *row; /* owned; until the next one */
};

/* data: a .jsonl file, or a folder with some. Of several the suite's own split is read: "validation" for mmmu, "test" for the others. */
int rows_open(struct rows *r, const char *data, const char *suite, struct err *e);
void rows_close(struct rows *r);
int rows_next(struct rows *r, struct err *e); /* 1; 0: no more; -1 and *e. Empty lines are passed over */
/* A field that must be text; 0, or -1 and *e. Borrowed from the row. */
int rows_text(const struct rows *r, const char *field, const char **out, struct err *e);
/* "FILE: line 3: answer: expected an integer, found null"; -1. */
int rows_wrong(const struct rows *r, const char *field, const char *expected, struct err *e);
/* A path that the row names, from the folder of its file. Owned. */
char *rows_beside(const struct rows *r, const char *path);
/* Files of a folder that end so, in the order of their names, or the file itself: owned, each too. Their number, -1 and *e. */
int rows_files(const char *path, const char *ending, char ***files, struct err *e);

#endif
