/* dataset.c — files of prompts. */
#include "load/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "files/json.h"
#include "files/map.h"

enum { FILE_BYTES_MAX = 1 << 30, OUTPUT_TOKENS_MAX = 1 << 20, BYTES_PER_TOKEN = 4, LANE_SHUFFLE = 7 };

static void add(struct dataset *d, const char *prompt, int output_tokens) {
  if ((d->n & (d->n - 1)) == 0) d->v = xrealloc(d->v, (size_t)MAX(2 * d->n, 1) * sizeof *d->v);
  d->v[d->n++] = (struct dataset_row){xstrdup(prompt), output_tokens};
}

void dataset_free(struct dataset *d) {
  for (int i = 0; i < d->n; i++) free(d->v[i].prompt);
  free(d->v);
  *d = (struct dataset){0};
}

/* ---- lines --------------------------------------------------------------------------------------------------------------------------- */

static int read_line(struct dataset *d, const char *text, size_t n, const char *where, struct err *e) {
  json_t *row = json_load_text(text, n, false, where, e);
  if (!row) return -1;
  const char *prompt = NULL;
  int64_t output = 0;
  int found = json_is_object(row) ? json_get_string(row, "prompt", &prompt, NULL, where, e) : 0;
  int bad = found < 0 || json_get_int(row, "output_len", 1, OUTPUT_TOKENS_MAX, &output, where, e) < 0;
  if (!bad && (!found || !*prompt))
    bad = err_set(e, ERR_BAD_FILE, "%s: expected {\"prompt\": \"...\", \"output_len\": N} with a prompt that is not empty", where);
  if (!bad) add(d, prompt, (int)output);
  json_decref(row);
  return bad ? -1 : 0;
}

static int read_lines(struct dataset *d, const char *p, size_t n, const char *path, struct err *e) {
  int line = 0;
  for (size_t at = 0; at < n;) {
    const char *stop = memchr(p + at, '\n', n - at);
    size_t len = stop ? (size_t)(stop - p) - at : n - at;
    struct str s = str_trim_blanks(str_of(p + at, len));
    char where[200];
    line++;
    if (s.n && s.p[s.n - 1] == '\r') s.n--;
    snprintf(where, sizeof where, "%s: line %d", path, line);
    if (s.n && read_line(d, s.p, s.n, where, e)) return -1;
    at += len + 1;
  }
  return 0;
}

/* ---- ShareGPT ------------------------------------------------------------------------------------------------------------------------ */

static const char *said(const json_t *turns, size_t i) { return json_string_value(json_object_get(json_array_get(turns, i), "value")); }

static int read_conversations(struct dataset *d, const char *p, size_t n, const char *path, uint64_t seed, struct err *e) {
  json_error_t why;
  json_t *all = json_loadb(p, n, 0, &why); /* other people's files have duplicate keys, and more values than json_load_text takes */
  if (!all) return err_set(e, ERR_BAD_FILE, "%s: line %d: %s", path, why.line, why.text);
  for (size_t i = 0; i < json_array_size(all); i++) {
    const json_t *turns = json_object_get(json_array_get(all, i), "conversations");
    const char *prompt = said(turns, 0), *answer = said(turns, 1);
    if (!prompt || !answer) continue;
    size_t tokens = strlen(answer) / BYTES_PER_TOKEN;
    if (tokens < 2 || strlen(prompt) < 2 * BYTES_PER_TOKEN) continue;
    add(d, prompt, (int)MIN(tokens, (size_t)OUTPUT_TOKENS_MAX));
  }
  json_decref(all);
  for (int i = d->n - 1; i > 0; i--) {
    int k = (int)(rng_uniform(seed, (uint64_t)i, LANE_SHUFFLE) * (i + 1));
    struct dataset_row kept = d->v[i];
    d->v[i] = d->v[k];
    d->v[k] = kept;
  }
  return 0;
}

int dataset_read(struct dataset *d, const char *path, uint64_t seed, struct err *e) {
  struct map m = {0};
  *d = (struct dataset){0};
  if (map_open(&m, path, e)) return -1;
  const char *p = (const char *)m.data;
  size_t first = 0;
  while (first < m.n_bytes && strchr(" \t\r\n", p[first]) && p[first]) first++;
  int bad = 0;
  if (m.n_bytes > FILE_BYTES_MAX) bad = err_set(e, ERR_TOO_LARGE, "%s: expected at most 1 GiB", path);
  else if (first < m.n_bytes && p[first] == '[') bad = read_conversations(d, p, m.n_bytes, path, seed, e);
  else if (first < m.n_bytes && p[first] == '{') bad = read_lines(d, p, m.n_bytes, path, e);
  if (!bad && d->n == 0)
    bad = err_set(
        e, ERR_BAD_FILE,
        "%s: expected lines of {\"prompt\": \"...\", \"output_len\": N}, or ShareGPT's [{\"conversations\": [...]}, ...]; found no prompt",
        path);
  map_close(&m);
  if (bad) dataset_free(d);
  return bad ? -1 : 0;
}
