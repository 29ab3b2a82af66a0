/* f_json.c — any text as JSON and as config.json (what follows a NUL byte as generation_config.json). What is read is written
 * and read again: it must be the same value. */
#include <string.h>

#include "files/config.h"
#include "files/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void round_trip(const char *text, size_t n) {
  struct err e = {0};
  json_t *v = json_load_text(text, n, true, "input", &e);
  if (!v) {
    CHECK(e.msg[0] && utf8_valid(e.msg, strlen(e.msg)));
    return;
  }
  struct buf b;
  buf_init(&b, 0);
  CHECK(json_put(&b, v));
  json_t *again = json_load_text(b.data, b.len, true, "output", &e);
  CHECK(again && json_equal(v, again));
  json_decref(again);
  json_decref(v);
  buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *text = (const char *)data, *nul = n ? memchr(text, 0, n) : NULL;
  size_t n_first = nul ? (size_t)(nul - text) : n;
  static struct model_config c;
  struct err e = {0};
  round_trip(n ? text : "", n_first);
  if (config_from_json(&c, n ? text : "", n_first, nul ? nul + 1 : NULL, nul ? n - n_first - 1 : 0, "config.json", &e) == 0)
    CHECK(c.n_layers > 0 && c.n_eos >= 0 && c.n_eos <= CONFIG_EOS_MAX && c.n_suppressed <= CONFIG_SUPPRESSED_MAX);
  else CHECK(e.msg[0]);
  return 0;
}
