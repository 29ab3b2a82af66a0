/* http_parse.c — strict HTTP/1.x request heads and chunked bodies. */
#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

static int fault_set(struct http_fault *f, int status, const char *why) {
  f->status = status;
  f->why = why;
  return -1;
}

static bool is_token_byte(unsigned char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}
static bool is_token(struct str s) {
  for (size_t i = 0; i < s.n; i++)
    if (!is_token_byte((unsigned char)s.p[i])) return false;
  return s.n > 0;
}

/* Does a comma-separated list hold this word? */
static bool list_has(struct str list, const char *word) {
  while (list.n) {
    const char *comma = memchr(list.p, ',', list.n);
    size_t n = comma ? (size_t)(comma - list.p) : list.n;
    if (str_is_nocase(str_trim_blanks(str_of(list.p, n)), word)) return true;
    n += comma != NULL;
    list = str_of(list.p + n, list.n - n);
  }
  return false;
}

ptrdiff_t http_head_length(const char *p, size_t n, size_t *scanned, struct http_fault *fault) {
  size_t i = *scanned;
  for (; i < n; i++) {
    unsigned char c = (unsigned char)p[i];
    if (c == '\n') {
      if (i == 0 || p[i - 1] != '\r') return fault_set(fault, 400, "a line of the request head does not end in CR LF");
      if (i >= 3 && p[i - 2] == '\n') {
        *scanned = i + 1;
        return (ptrdiff_t)(i + 1);
      }
    } else if (i && p[i - 1] == '\r') {
      return fault_set(fault, 400, "the request head has a CR that is not followed by LF");
    } else if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
      return fault_set(fault, 400, "the request head has a control character");
    }
  }
  *scanned = i;
  return 0;
}

/* "POST /path?query HTTP/1.1" */
static int parse_request_line(struct str line, struct http_head *h, struct http_fault *fault) {
  const char *first = memchr(line.p, ' ', line.n);
  const char *last = memrchr(line.p, ' ', line.n);
  if (!first || first == last) return fault_set(fault, 400, "the request line is not METHOD TARGET VERSION");
  h->method = str_of(line.p, (size_t)(first - line.p));
  struct str target = str_of(first + 1, (size_t)(last - first - 1));
  struct str version = str_of(last + 1, line.n - (size_t)(last + 1 - line.p));
  if (!is_token(h->method)) return fault_set(fault, 400, "the request method is not a token");
  if (version.n != 8 || !str_starts(version, "HTTP/") || version.p[6] != '.')
    return fault_set(fault, 400, "the request line does not end in HTTP/1.1");
  if (version.p[5] != '1' || (version.p[7] != '0' && version.p[7] != '1'))
    return fault_set(fault, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  h->minor = version.p[7] - '0';
  if (!target.n) return fault_set(fault, 400, "the request target is empty");
  for (size_t i = 0; i < target.n; i++)
    if ((unsigned char)target.p[i] <= ' ' || (unsigned char)target.p[i] >= 0x7f)
      return fault_set(fault, 400, "the request target has a byte that is not printable ASCII");
  if (target.n > 7 && strncasecmp(target.p, "http://", 7) == 0) { /* absolute form: what a proxy is sent; the authority is in Host too */
    const char *slash = memchr(target.p + 7, '/', target.n - 7);
    target = slash ? str_of(slash, target.n - (size_t)(slash - target.p)) : str_of("/", 1);
  } else if (target.p[0] != '/' && !(target.n == 1 && target.p[0] == '*' && str_is(h->method, "OPTIONS"))) {
    return fault_set(fault, 400, "the request target does not begin with /");
  }
  const char *mark = memchr(target.p, '?', target.n);
  h->path = mark ? str_of(target.p, (size_t)(mark - target.p)) : target;
  h->query = mark ? str_of(mark + 1, target.n - h->path.n - 1) : str_of(target.p + target.n, 0);
  return 0;
}

static int parse_header(struct str line, struct http_head *h, struct http_fault *fault) {
  if (line.p[0] == ' ' || line.p[0] == '\t') return fault_set(fault, 400, "folded header lines are not accepted");
  const char *colon = memchr(line.p, ':', line.n);
  if (!colon) return fault_set(fault, 400, "a header line has no colon");
  struct http_header header = {str_of(line.p, (size_t)(colon - line.p)), {NULL, 0}};
  if (!is_token(header.name)) return fault_set(fault, 400, "a header name is not a token");
  if (h->n_headers == HTTP_HEADERS_MAX) return fault_set(fault, 431, "too many header lines");
  header.value = str_trim_blanks(str_of(colon + 1, line.n - header.name.n - 1));
  h->headers[h->n_headers++] = header;
  return 0;
}

struct str http_head_find(const struct http_head *h, const char *name, int *count) {
  struct str found = {NULL, 0};
  int n = 0;
  for (int i = 0; i < h->n_headers; i++)
    if (str_is_nocase(h->headers[i].name, name) && n++ == 0) found = h->headers[i].value;
  if (count) *count = n;
  return found;
}

/* Where the body ends: rules 2 to 4. */
static int parse_framing(struct http_head *h, struct http_fault *fault) {
  int n_host, n_length, n_coding, n_expect;
  h->host = http_head_find(h, "Host", &n_host);
  struct str length = http_head_find(h, "Content-Length", &n_length);
  struct str coding = http_head_find(h, "Transfer-Encoding", &n_coding);
  struct str expect = http_head_find(h, "Expect", &n_expect);
  if (n_host > 1 || (h->minor == 1 && n_host == 0)) return fault_set(fault, 400, "exactly one Host header is expected");
  if (n_length && n_coding) return fault_set(fault, 400, "Content-Length and Transfer-Encoding must not stand together");
  if (n_length > 1) return fault_set(fault, 400, "more than one Content-Length");
  if (n_coding && h->minor == 0) return fault_set(fault, 400, "HTTP/1.0 has no Transfer-Encoding");
  if (n_coding > 1 || (n_coding && !str_is_nocase(coding, "chunked")))
    return fault_set(fault, 501, "the only Transfer-Encoding understood is chunked");
  h->chunked = n_coding == 1;
  h->content_length = -1;
  if (n_length && (length.n > 18 || !str_to_i64(length, 0, INT64_MAX, &h->content_length)))
    return fault_set(fault, 400, "Content-Length is not a number of bytes");
  if (n_expect && (n_expect > 1 || !str_is_nocase(expect, "100-continue")))
    return fault_set(fault, 417, "the only expectation understood is 100-continue");
  h->expect_continue = n_expect == 1 && h->minor == 1;
  h->keep_alive = h->minor == 1;
  for (int i = 0; i < h->n_headers; i++) {
    if (!str_is_nocase(h->headers[i].name, "Connection")) continue;
    if (list_has(h->headers[i].value, "close")) {
      h->keep_alive = false;
      break;
    }
    if (h->minor == 0 && list_has(h->headers[i].value, "keep-alive")) h->keep_alive = true;
  }
  return 0;
}

int http_head_parse(const char *p, size_t n, struct http_head *out, struct http_fault *fault) {
  *out = (struct http_head){.content_length = -1};
  bool first = true;
  while (n >= 2) {
    const char *end = memmem(p, n, "\r\n", 2);
    if (!end) break;
    struct str line = str_of(p, (size_t)(end - p));
    n -= line.n + 2;
    p += line.n + 2;
    if (first && !line.n) return fault_set(fault, 400, "the request line is empty");
    if (first && parse_request_line(line, out, fault)) return -1;
    if (!first && !line.n) return parse_framing(out, fault);
    if (!first && parse_header(line, out, fault)) return -1;
    first = false;
  }
  return fault_set(fault, 400, "the request head is cut short");
}

/* ---- chunked ---------------------------------------------------------------------------------------------------------- */

enum { CHUNKED_LINE_MAX = 4096 }; /* extension of one chunk; all trailers together */
enum { SIZE_FIRST, SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER_FIRST, TRAILER, TRAILER_LF, END_LF, DONE };

/* One byte outside of data. Returns false on a byte that has no place there. */
static bool chunked_step(struct http_chunked *d, char c) {
  bool printable = ((unsigned char)c >= 0x20 && c != 0x7f) || c == '\t';
  switch (d->state) {
  case SIZE_FIRST:
  case SIZE:
    if (str_hex_digit(c) >= 0) {
      if (d->left >> 56) return false;
      d->left = d->left << 4 | (uint64_t)str_hex_digit(c);
      d->state = SIZE;
      return true;
    }
    if (d->state == SIZE_FIRST) return false;
    d->line_bytes = 0;
    if (c == ';') return d->state = EXTENSION, true;
    if (c == '\r') return d->state = SIZE_LF, true;
    return false;
  case EXTENSION:
    if (c == '\r') return d->state = SIZE_LF, true;
    return printable && ++d->line_bytes <= CHUNKED_LINE_MAX;
  case SIZE_LF:
    d->line_bytes = 0;
    d->state = d->left ? DATA : TRAILER_FIRST;
    return c == '\n';
  case DATA_CR: d->state = DATA_LF; return c == '\r';
  case DATA_LF: d->state = SIZE_FIRST; return c == '\n';
  case TRAILER_FIRST:
    if (c == '\r') return d->state = END_LF, true;
    d->state = TRAILER;
    return printable && ++d->line_bytes <= CHUNKED_LINE_MAX;
  case TRAILER:
    if (c == '\r') return d->state = TRAILER_LF, true;
    return printable && ++d->line_bytes <= CHUNKED_LINE_MAX;
  case TRAILER_LF: d->state = TRAILER_FIRST; return c == '\n';
  case END_LF: d->state = DONE; return c == '\n';
  default: return false;
  }
}

enum http_chunked_result http_chunked_feed(struct http_chunked *d, const char *p, size_t n, size_t *used, struct buf *out) {
  *used = 0;
  while (*used < n && d->state != DONE) {
    if (d->state != DATA) {
      if (!chunked_step(d, p[(*used)++])) return HTTP_CHUNKED_BAD;
      continue;
    }
    size_t take = (uint64_t)(n - *used) < d->left ? n - *used : (size_t)d->left;
    if (!buf_append(out, p + *used, take)) return HTTP_CHUNKED_TOO_LARGE;
    *used += take;
    d->left -= take;
    if (!d->left) d->state = DATA_CR;
  }
  return d->state == DONE ? HTTP_CHUNKED_DONE : HTTP_CHUNKED_MORE;
}

const char *http_reason(int status) {
  static const struct {
    int status;
    const char *reason;
  } table[] = {{200, "OK"},
               {204, "No Content"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {409, "Conflict"},
               {413, "Content Too Large"},
               {415, "Unsupported Media Type"},
               {417, "Expectation Failed"},
               {422, "Unprocessable Content"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {503, "Service Unavailable"},
               {504, "Gateway Timeout"},
               {505, "HTTP Version Not Supported"}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++)
    if (table[i].status == status) return table[i].reason;
  return "Status";
}
