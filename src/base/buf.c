/* buf.c — growable bytes under a hard cap.
 *
 * Invariants: data is NULL exactly while cap_bytes is 0; otherwise len < cap_bytes and data[len] is NUL; len <= the cap.
 */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum { BUF_FIRST_BYTES = 64 };

static size_t buf_limit(const struct buf *b) { return b->max_bytes ? b->max_bytes : (size_t)1 << 30; }

/* Make room for n more bytes and the NUL. */
static bool buf_reserve(struct buf *b, size_t n) {
  size_t limit = buf_limit(b);
  if (b->len > limit || n > limit - b->len) {
    b->overflow = true;
    return false;
  }
  size_t need = b->len + n + 1;
  if (need <= b->cap_bytes) return true;
  size_t grown = b->cap_bytes < limit / 2 ? b->cap_bytes * 2 : limit + 1;
  b->cap_bytes = MIN(MAX(MAX(grown, need), (size_t)BUF_FIRST_BYTES), MAX(limit + 1, need));
  b->data = xrealloc(b->data, b->cap_bytes);
  return true;
}

void buf_init(struct buf *b, size_t max_bytes) {
  memset(b, 0, sizeof *b);
  b->max_bytes = max_bytes;
}

void buf_free(struct buf *b) {
  free(b->data);
  buf_init(b, b->max_bytes);
}

void buf_clear(struct buf *b) {
  b->len = 0;
  b->overflow = false;
  if (b->data) b->data[0] = 0;
}

bool buf_append(struct buf *b, const void *p, size_t n) {
  if (n == 0) return true;
  if (!buf_reserve(b, n)) return false;
  memcpy(b->data + b->len, p, n);
  b->len += n;
  b->data[b->len] = 0;
  return true;
}

bool buf_puts(struct buf *b, const char *s) { return buf_append(b, s, strlen(s)); }

bool buf_putc(struct buf *b, char c) { return buf_append(b, &c, 1); }

bool buf_printf(struct buf *b, const char *fmt, ...) {
  char small[256];
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(small, sizeof small, fmt, args);
  va_end(args);
  CHECK(n >= 0);
  if ((size_t)n < sizeof small) return buf_append(b, small, (size_t)n);
  if (!buf_reserve(b, (size_t)n)) return false;
  va_start(args, fmt);
  vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
  va_end(args);
  b->len += (size_t)n;
  return true;
}

static bool json_escape_ascii(struct buf *b, char c) {
  switch (c) {
  case '"': return buf_append(b, "\\\"", 2);
  case '\\': return buf_append(b, "\\\\", 2);
  case '\n': return buf_append(b, "\\n", 2);
  case '\r': return buf_append(b, "\\r", 2);
  case '\t': return buf_append(b, "\\t", 2);
  case '\b': return buf_append(b, "\\b", 2);
  case '\f': return buf_append(b, "\\f", 2);
  default: return buf_printf(b, "\\u%04x", (unsigned)(unsigned char)c);
  }
}

static bool json_plain(unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

bool buf_json_escape(struct buf *b, const char *s, size_t n) {
  size_t len_before = b->len;
  bool fits = true;
  for (size_t at = 0; fits && at < n;) {
    size_t run = at;
    while (run < n && json_plain((unsigned char)s[run])) run++;
    fits = buf_append(b, s + at, run - at);
    at = run;
    if (!fits || at == n) break;
    if ((unsigned char)s[at] < 0x80) {
      fits = json_escape_ascii(b, s[at++]);
      continue;
    }
    uint32_t cp;
    bool bad = false;
    int step = utf8_step(s + at, n - at, &cp, &bad);
    fits = bad ? buf_puts(b, "\xef\xbf\xbd") : buf_append(b, s + at, (size_t)step);
    at += (size_t)step;
  }
  if (!fits && b->data) {
    b->len = len_before;
    b->data[b->len] = 0;
  }
  return fits;
}

void buf_drop_front(struct buf *b, size_t n) {
  CHECK(n <= b->len);
  if (n == 0) return;
  b->len -= n;
  memmove(b->data, b->data + n, b->len + 1);
}

const char *buf_cstr(const struct buf *b) { return b->data ? b->data : ""; }

char *buf_take(struct buf *b, size_t *len) {
  char *data = b->data ? b->data : xcalloc(1, 1);
  if (len) *len = b->len;
  buf_init(b, b->max_bytes);
  return data;
}
