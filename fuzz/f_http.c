/* f_http.c — a connection's bytes through the request reader: heads and bodies one after the other, as http.c takes them. The first byte says in
 * pieces of which size the rest arrives; the pieces must not matter. */
#include <string.h>

#include "server/http_parse.c" /* the fuzzing build has no server room */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { BODY_MAX = 4096 };

struct outcome {
  int n_requests, status; /* status: of the fault that ended it, or 0 */
  uint64_t hash;          /* of all heads and bodies */
};

static void check_slices(const struct http_head *h, const char *p, size_t n) {
  for (int i = 0; i < h->n_headers; i++) {
    CHECK(h->headers[i].name.p >= p && h->headers[i].name.p + h->headers[i].name.n <= p + n);
    CHECK(h->headers[i].value.p >= p && h->headers[i].value.p + h->headers[i].value.n <= p + n);
  }
  CHECK(!(h->chunked && h->content_length >= 0) && h->content_length >= -1);
}

static struct outcome run(const char *p, size_t n, size_t step) {
  struct outcome o = {0};
  static struct http_head h;
  struct http_fault fault = {0};
  size_t at = 0, have = 0, scanned = 0;
  while (at < n) {
    ptrdiff_t length = 0;
    while (length == 0 && have < n - at) { /* the head comes in pieces */
      have += MIN(step, n - at - have);
      length = http_head_length(p + at, have, &scanned, &fault);
    }
    if (length < 0 || (length > 0 && http_head_parse(p + at, (size_t)length, &h, &fault))) {
      CHECK(fault.status >= 400 && fault.status < 600 && fault.why);
      o.status = fault.status;
      return o;
    }
    if (length == 0) return o;
    check_slices(&h, p + at, (size_t)length);
    o.n_requests++;
    o.hash = hash_bytes(p + at, (size_t)length, o.hash);
    at += (size_t)length;
    struct buf body;
    buf_init(&body, BODY_MAX);
    struct http_chunked d = {0};
    enum http_chunked_result r = h.chunked ? HTTP_CHUNKED_MORE : HTTP_CHUNKED_DONE;
    for (size_t used; r == HTTP_CHUNKED_MORE && at < n; at += used) r = http_chunked_feed(&d, p + at, MIN(step, n - at), &used, &body);
    if (!h.chunked && h.content_length > 0) at += (size_t)MIN((uint64_t)h.content_length, (uint64_t)(n - at));
    o.hash = hash_bytes(body.data ? body.data : "", r == HTTP_CHUNKED_TOO_LARGE ? 0 : body.len, o.hash);
    CHECK(body.len <= BODY_MAX);
    buf_free(&body);
    if (r != HTTP_CHUNKED_DONE) {
      o.status = (int)r;
      return o;
    }
    have = scanned = 0;
  }
  return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (n < 1) return 0;
  struct outcome whole = run((const char *)data + 1, n - 1, n), pieces = run((const char *)data + 1, n - 1, 1 + data[0] % 32);
  CHECK(whole.n_requests == pieces.n_requests && whole.status == pieces.status && whole.hash == pieces.hash);
  return 0;
}
