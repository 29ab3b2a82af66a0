/* sse.c — lines end with LF, CR or both; an empty line ends an event; an event that the stream cuts is none. */
#include "load/sse.h"

#include <string.h>

void sse_init(struct sse *s, size_t max_bytes) {
  *s = (struct sse){0};
  buf_init(&s->line, max_bytes);
  buf_init(&s->data, max_bytes);
}

void sse_free(struct sse *s) {
  buf_free(&s->line);
  buf_free(&s->data);
}

static void end_line(struct sse *s, sse_fn fn, void *ctx) {
  const char *line = buf_cstr(&s->line);
  size_t n = s->line.len;
  if (n == 0) {
    if (s->data.len) {
      s->data.data[--s->data.len] = 0; /* the last LF */
      fn(ctx, buf_cstr(&s->data), s->data.len);
    }
    buf_clear(&s->data);
  } else if (n >= 4 && !memcmp(line, "data", 4) && (n == 4 || line[4] == ':')) {
    size_t at = MIN(n, (size_t)5);
    if (at < n && line[at] == ' ') at++;
    buf_append(&s->data, line + at, n - at);
    buf_putc(&s->data, '\n');
  }
  buf_clear(&s->line);
}

bool sse_feed(struct sse *s, const char *p, size_t n, sse_fn fn, void *ctx) {
  const char *end = p + n;
  while (p < end) {
    if (s->after_cr && *p == '\n') p++;
    s->after_cr = false;
    const char *stop = p;
    while (stop < end && *stop != '\n' && *stop != '\r') stop++;
    if (!buf_append(&s->line, p, (size_t)(stop - p))) return false;
    if (stop == end) break;
    end_line(s, fn, ctx);
    if (s->data.overflow) return false;
    s->after_cr = *stop == '\r';
    p = stop + 1;
  }
  return true;
}
