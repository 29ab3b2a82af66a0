/* err.c — filling in the one error type, and the end of the road for broken invariants.
 *
 * Nothing here allocates: an error must be reportable when memory is gone and while an allocation guard is up.
 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

/* Make msg valid UTF-8 after it may have been cut anywhere: an unfinished end goes away, other bad bytes become '?'. */
static void err_tidy(char *msg) {
  size_t n = strlen(msg);
  n -= (size_t)utf8_incomplete_tail(msg, n);
  msg[n] = 0;
  for (size_t at = 0; at < n;) {
    uint32_t cp;
    bool bad = false;
    int step = utf8_step(msg + at, n - at, &cp, &bad);
    if (bad) memset(msg + at, '?', (size_t)step);
    at += (size_t)step;
  }
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...) {
  if (!e) return -1;
  /* The old message may be among the arguments, so the new one is made beside it. */
  char msg[sizeof e->msg];
  va_list args;
  va_start(args, fmt);
  vsnprintf(msg, sizeof msg, fmt, args);
  va_end(args);
  err_tidy(msg);
  e->code = code;
  memcpy(e->msg, msg, sizeof msg);
  return -1;
}

int err_prefix(struct err *e, const char *fmt, ...) {
  if (!e) return -1;
  char msg[sizeof e->msg];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(msg, sizeof msg, fmt, args);
  va_end(args);
  size_t at = n < 0 ? 0 : MIN((size_t)n, sizeof msg - 1);
  for (const char *p = ": "; *p && at < sizeof msg - 1; p++) msg[at++] = *p;
  size_t rest = strnlen(e->msg, sizeof msg - 1 - at);
  memcpy(msg + at, e->msg, rest);
  msg[at + rest] = 0;
  err_tidy(msg);
  memcpy(e->msg, msg, sizeof msg);
  return -1;
}

int err_http_status(enum err_code code) {
  switch (code) {
  case ERR_NONE: return 200;
  case ERR_BAD_INPUT:
  case ERR_BAD_FILE:
  case ERR_UNSUPPORTED: return 400;
  case ERR_TOO_LARGE: return 413;
  case ERR_NOT_FOUND: return 404;
  case ERR_BUSY: return 503;
  case ERR_CANCELLED: return 499;
  case ERR_IO:
  case ERR_NO_MEMORY:
  case ERR_INTERNAL: return 500;
  }
  return 500;
}

int err_exit_status(enum err_code code) {
  switch (code) {
  case ERR_NONE: return 0;
  case ERR_BAD_INPUT:
  case ERR_BAD_FILE:
  case ERR_UNSUPPORTED:
  case ERR_TOO_LARGE:
  case ERR_NOT_FOUND: return 2;
  case ERR_BUSY:
  case ERR_IO:
  case ERR_NO_MEMORY:
  case ERR_CANCELLED:
  case ERR_INTERNAL: return 1;
  }
  return 1;
}

const char *err_code_name(enum err_code code) {
  switch (code) {
  case ERR_NONE: return "none";
  case ERR_BAD_INPUT: return "bad_input";
  case ERR_BAD_FILE: return "bad_file";
  case ERR_UNSUPPORTED: return "unsupported";
  case ERR_TOO_LARGE: return "too_large";
  case ERR_NOT_FOUND: return "not_found";
  case ERR_BUSY: return "busy";
  case ERR_IO: return "io";
  case ERR_NO_MEMORY: return "no_memory";
  case ERR_CANCELLED: return "cancelled";
  case ERR_INTERNAL: return "internal";
  }
  return "unknown";
}

_Noreturn void check_failed(const char *file, int line, const char *what) {
  char msg[512];
  int n = snprintf(msg, sizeof msg, "%s:%d: broken invariant: %s\n", file, line, what);
  size_t left = n < 0 ? 0 : MIN((size_t)n, sizeof msg - 1);
  for (const char *p = msg; left > 0;) {
    ssize_t wrote = write(2, p, left);
    if (wrote <= 0) break;
    p += wrote;
    left -= (size_t)wrote;
  }
  abort();
}
