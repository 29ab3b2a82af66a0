/* http_parse.h — the head of an HTTP/1.x request and the chunked coding, from bytes; no sockets here.
 *
 * Strict on purpose: two programs that read the same bytes differently are how requests are smuggled, so whatever leaves room for two
 * readings is refused and the connection is closed after the answer.
 *
 * Rules
 *   1. Lines end in CR LF. A bare CR or LF, NUL or another control byte in the head, folded lines and blanks around a field name are 400.
 *   2. HTTP/1.1 has exactly one Host. HTTP/1.0 has no Transfer-Encoding. Other versions are 505.
 *   3. Content-Length is digits, once. A second one (equal or not), a list, a sign, or one beside Transfer-Encoding is 400.
 *   4. Transfer-Encoding is "chunked", once; anything else is 501.
 *   5. Nothing is allocated. Slices point into the bytes given.
 */
#ifndef CYGNET_HTTP_PARSE_H
#define CYGNET_HTTP_PARSE_H

#include "base/buf.h"
#include "base/str.h"

enum { HTTP_HEADERS_MAX = 100 };

struct http_header {
  struct str name, value; /* value without blanks around it */
};

struct http_head {
  struct str method, path, query; /* path as it was sent, before any '?'; query after it */
  int minor;                      /* HTTP/1.minor */
  struct http_header headers[HTTP_HEADERS_MAX];
  int n_headers;
  struct str host;
  int64_t content_length; /* -1: none */
  bool chunked, keep_alive, expect_continue;
};

struct http_fault {
  int status; /* 400, 417, 431, 501, 505 */
  const char *why;
};

/* Length of the head with its blank line, 0: not complete yet, -1: *fault. *scanned remembers how far it looked (0 at first). */
ptrdiff_t http_head_length(const char *p, size_t n, size_t *scanned, struct http_fault *fault);
/* Takes the n bytes that http_head_length found. Returns 0, or -1 and *fault. */
int http_head_parse(const char *p, size_t n, struct http_head *out, struct http_fault *fault);
/* First field of that name in any case; {NULL, 0} when absent. *count (may be NULL) = how many there are. */
struct str http_head_find(const struct http_head *h, const char *name, int *count);

const char *http_reason(int status); /* "Not Found" */

struct http_chunked { /* zeroed at first */
  int state;
  uint64_t left; /* bytes of the current chunk still to come */
  int line_bytes;
};
enum http_chunked_result { HTTP_CHUNKED_MORE, HTTP_CHUNKED_DONE, HTTP_CHUNKED_BAD, HTTP_CHUNKED_TOO_LARGE };
/* Decodes into out until its cap; *used = bytes taken from p. Extensions and trailers are read and dropped. */
enum http_chunked_result http_chunked_feed(struct http_chunked *d, const char *p, size_t n, size_t *used, struct buf *out);

#endif
