/* err.h — the one error type.
 *
 * Rules
 *   1. A function that can fail because the outside world is wrong returns -1 (or NULL) and fills its last
 *      argument `struct err *e`. Success returns 0 (or the object) and leaves *e alone.
 *   2. The message says what was expected, what was found and where:
 *        model.gguf: tensor blk.3.attn_k.weight: expected [1024, 2560], file has [512, 2560]
 *      Bytes from outside appear in it only through str_escape (str.h).
 *   3. A resource that is short in normal operation (no free page, queue full) is a result value, not an error.
 *   4. A broken invariant of the program is a CHECK, not an error.
 */
#ifndef CYGNET_ERR_H
#define CYGNET_ERR_H

#include "base/base.h"

enum err_code {
  ERR_NONE = 0,
  ERR_BAD_INPUT,   /* 400: malformed or out of range request, option, text           exit 2 */
  ERR_BAD_FILE,    /* 400: a file is damaged or not what it claims to be              exit 2 */
  ERR_UNSUPPORTED, /* 400: valid, but this build or model cannot do it                exit 2 */
  ERR_TOO_LARGE,   /* 413: over a limit that is named in the message                  exit 2 */
  ERR_NOT_FOUND,   /* 404: no such file, route, model                                 exit 2 */
  ERR_BUSY,        /* 503: full now, try again later                                  exit 1 */
  ERR_IO,          /* 500: the operating system refused                               exit 1 */
  ERR_NO_MEMORY,   /* 500: a large allocation failed                                  exit 1 */
  ERR_CANCELLED,   /* 499: the caller gave up                                         exit 1 */
  ERR_INTERNAL,    /* 500: a computation went wrong (NaN in logits, ...)              exit 1 */
};

struct err {
  enum err_code code;
  char msg[512]; /* always NUL terminated, valid UTF-8 */
};

/* Fill e (which may be NULL) and return -1, so that callers can write `return err_set(e, ...)`. Long messages are cut. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Put "context: " in front of the message that is already there; returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

int err_http_status(enum err_code code); /* 400, 404, 413, 499, 500, 503 */
int err_exit_status(enum err_code code); /* 1 or 2, as in the table above; 0 for ERR_NONE */
const char *err_code_name(enum err_code code);

#endif
