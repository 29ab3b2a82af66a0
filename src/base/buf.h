/* buf.h — growable bytes that cannot grow past a cap (after curl's dynbuf).
 *
 * An append that would pass the cap changes nothing and sets `overflow`; callers check once at the end.
 * The bytes are always followed by a NUL that is not counted.
 */
#ifndef CYGNET_BUF_H
#define CYGNET_BUF_H

#include <stdarg.h>

#include "base/base.h"

struct buf {
  char *data; /* owned; NULL while empty */
  size_t len;
  size_t cap_bytes; /* allocated */
  size_t max_bytes; /* hard cap on len; 0 = 1 GiB */
  bool overflow;
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_free(struct buf *b);  /* fine on a zeroed one */
void buf_clear(struct buf *b); /* keeps the memory, clears overflow */
bool buf_append(struct buf *b, const void *p, size_t n);
bool buf_puts(struct buf *b, const char *s);
bool buf_putc(struct buf *b, char c);
bool buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Append as the inside of a JSON string (no quotes): escapes ", \, controls; bytes that are not UTF-8 become U+FFFD. */
bool buf_json_escape(struct buf *b, const char *s, size_t n);
void buf_drop_front(struct buf *b, size_t n); /* n <= len */
const char *buf_cstr(const struct buf *b);    /* never NULL; borrows */
char *buf_take(struct buf *b, size_t *len);   /* returns owned, NUL terminated; b is empty after */

#endif
