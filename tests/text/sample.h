/* sample.h — what the tests of this room share: the real vocabulary, JSON lines, small helpers.
 *
 * The real vocabulary is in the sample model, a downloaded file that is not in the tree. Tests that need it are skipped, with a line that
 * says so, where it is absent: CYGNET_SAMPLE_MODEL, else build/models/gemma-3-270m-q4_k_m.gguf.
 */
#ifndef CYGNET_TESTS_SAMPLE_H
#define CYGNET_TESTS_SAMPLE_H

#include "test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/tok.h"

static inline const char *sample_path(void) {
  const char *path = getenv("CYGNET_SAMPLE_MODEL");
  if (path && *path) return path;
  path = test_path("../build/models/gemma-3-270m-q4_k_m.gguf");
  return access(path, R_OK) == 0 ? path : NULL;
}

/* Opened once for the whole program; skips the calling test when there is none. */
static inline const struct tokenizer *sample_tokenizer(void) {
  static struct tokenizer *opened;
  if (opened) return opened;
  const char *path = sample_path();
  if (!path) {
    print_message("no sample model (set CYGNET_SAMPLE_MODEL): skipped\n");
    skip();
  }
  struct err e = {0};
  opened = tok_open(path, &e);
  if (!opened) fail_msg("%s", e.msg);
  return opened;
}

static inline struct tokenizer *toy_tokenizer(const char *golden_folder) {
  char relative[200];
  struct err e = {0};
  snprintf(relative, sizeof relative, "golden/%s", golden_folder);
  struct tokenizer *t = tok_open(test_path(relative), &e);
  if (!t) fail_msg("%s", e.msg);
  return t;
}

/* Calls fn for each line of tests/golden/text/NAME; returns the number of lines. */
static inline int each_line(const char *name, void (*fn)(const json_t *line, void *ctx), void *ctx) {
  char relative[200];
  snprintf(relative, sizeof relative, "golden/text/%s", name);
  size_t n;
  char *all = test_read(test_path(relative), &n), *from = all;
  int lines = 0;
  for (char *end; from < all + n && (end = memchr(from, '\n', (size_t)(all + n - from))); from = end + 1) {
    json_error_t error;
    json_t *line = json_loadb(from, (size_t)(end - from), JSON_ALLOW_NUL, &error);
    if (!line) fail_msg("%s line %d: %s", name, lines + 1, error.text);
    fn(line, ctx);
    json_decref(line);
    lines++;
  }
  free(all);
  return lines;
}

static inline struct str json_str(const json_t *line, const char *key) {
  const json_t *v = json_object_get(line, key);
  if (!json_is_string(v)) fail_msg("no string %s", key);
  return str_of(json_string_value(v), json_string_length(v));
}
static inline bool json_flag(const json_t *line, const char *key) { return json_is_true(json_object_get(line, key)); }

static inline void print_ids(const char *what, const struct tok_ids *ids) {
  print_message("%s:", what);
  for (size_t i = 0; i < ids->n && i < 60; i++) print_message(" %d", (int)ids->v[i]);
  print_message("\n");
}

static inline bool ids_equal(const struct tok_ids *a, const struct tok_ids *b) {
  return a->n == b->n && (!a->n || !memcmp(a->v, b->v, a->n * sizeof *a->v));
}

static inline struct tok_ids ids_of(const json_t *array) {
  struct tok_ids ids = {0};
  size_t i;
  json_t *v;
  json_array_foreach(array, i, v) tok_ids_push(&ids, (int32_t)json_integer_value(v));
  return ids;
}

static inline void expect_ids(const char *name, const struct tok_ids *got, const json_t *expected) {
  struct tok_ids want = ids_of(expected);
  if (!ids_equal(got, &want)) {
    print_ids("expected", &want);
    print_ids("found", got);
    fail_msg("%s: ids differ", name);
  }
  tok_ids_free(&want);
}

static inline void expect_text(const char *name, const struct buf *got, struct str want) {
  if (!str_eq(str_of(buf_cstr(got), got->len), want))
    fail_msg("%s: expected \"%.*s\", found \"%s\"", name, (int)want.n, want.p, buf_cstr(got));
}

static inline void append_ids(struct buf *b, const struct tok_ids *ids) { buf_append(b, ids->v, ids->n * sizeof *ids->v); }

#endif
