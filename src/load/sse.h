/* sse.h — server-sent events (WHATWG HTML, 9.2): bytes as they come → the data of each event. Fields but `data` are passed over. */
#ifndef CYGNET_LOAD_SSE_H
#define CYGNET_LOAD_SSE_H

#include "base/buf.h"

struct sse {
  struct buf line, data;
  bool after_cr; /* a line ended with CR: an LF that comes next belongs to it */
};

typedef void (*sse_fn)(void *ctx, const char *data, size_t n); /* NUL terminated */

void sse_init(struct sse *s, size_t max_bytes); /* of one line or event */
void sse_free(struct sse *s);
/* Calls fn for each event that the bytes complete. False: one is too large. */
bool sse_feed(struct sse *s, const char *p, size_t n, sse_fn fn, void *ctx);

#endif
