/* f_multipart.c — a Content-Type (up to the first newline) and a body: what a form brings, and its first part read as a data: address.
 * Nothing is read out of bounds, parts lie inside the body and hold no boundary. */
#include <string.h>

#include "server/base64.c" /* the fuzzing build has no server room */
#include "server/multipart.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { PARTS = 8 };

static void decode(struct str s) {
  struct buf out;
  struct err e;
  buf_init(&out, 1 << 16);
  if (base64_is_data_url(s)) base64_data_url(s, &out, &e);
  buf_clear(&out);
  base64_decode(s, &out, &e);
  CHECK(out.len <= s.n);
  buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *p = (const char *)data, *line = n ? memchr(p, '\n', n) : NULL;
  char boundary[MULTIPART_BOUNDARY_MAX + 1], mark[MULTIPART_BOUNDARY_MAX + 5] = "\r\n--";
  struct multipart_part parts[PARTS];
  struct err e;
  if (!line || !multipart_boundary(str_of(p, (size_t)(line - p)), boundary)) return 0;
  struct str body = str_of(line + 1, n - (size_t)(line - p) - 1);
  strcat(mark, boundary);
  int found = multipart_parse(body, boundary, parts, PARTS, &e);
  for (int i = 0; i < found; i++) {
    CHECK(parts[i].data.p >= body.p && parts[i].data.p + parts[i].data.n <= body.p + body.n);
    CHECK(parts[i].name.p >= body.p && parts[i].name.p + parts[i].name.n <= body.p + body.n);
    CHECK(!memmem(parts[i].data.p, parts[i].data.n, mark, strlen(mark)));
    decode(parts[i].data);
  }
  return 0;
}
