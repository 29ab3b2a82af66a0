/* rows.c — data sets as they lie on disk. */
#include "eval/rows.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mem.h"
#include "eval/suites.h"
#include "files/json.h"

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int rows_files(const char *path, const char *ending, char ***files, struct err *e) {
  char label[200];
  struct stat st;
  *files = NULL;
  if (stat(path, &st))
    return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_BAD_FILE, "--data: %s: %s", path_label(path, label), strerror(errno));
  if (!S_ISDIR(st.st_mode)) {
    *files = xcalloc(1, sizeof **files);
    **files = xstrdup(path);
    return 1;
  }
  DIR *d = opendir(path);
  if (!d) return err_set(e, ERR_BAD_FILE, "--data: %s: %s", path_label(path, label), strerror(errno));
  int n = 0;
  for (struct dirent *f; (f = readdir(d)) != NULL;) {
    if (f->d_name[0] == '.' || !str_ends(str_c(f->d_name), ending)) continue;
    struct buf b;
    buf_init(&b, 0);
    buf_printf(&b, "%s/%s", path, f->d_name);
    *files = xrealloc(*files, (size_t)(n + 1) * sizeof **files);
    (*files)[n++] = buf_take(&b, NULL);
  }
  closedir(d);
  if (n) qsort(*files, (size_t)n, sizeof **files, by_name);
  return n;
}

/* Of files of several splits the one that is meant; all where none says its split. */
static void keep_split(struct rows *r, const char *split) {
  int kept = 0;
  for (int i = 0; i < r->n_files; i++) kept += strstr(strrchr(r->files[i], '/') ? strrchr(r->files[i], '/') : r->files[i], split) != NULL;
  if (kept == 0 || kept == r->n_files) return;
  int n = 0;
  for (int i = 0; i < r->n_files; i++) {
    const char *name = strrchr(r->files[i], '/');
    if (strstr(name ? name : r->files[i], split)) r->files[n++] = r->files[i];
    else free(r->files[i]);
  }
  r->n_files = n;
}

int rows_open(struct rows *r, const char *data, const char *suite, struct err *e) {
  char label[200], **parquet = NULL;
  *r = (struct rows){0};
  int n = rows_files(data, ".jsonl", &r->files, e);
  if (n < 0) return -1;
  r->n_files = n;
  bool tables = n == 1 && str_ends(str_c(r->files[0]), ".parquet");
  if (n == 0) {
    int found = rows_files(data, ".parquet", &parquet, e);
    tables = found > 0;
    suite_free_strings(parquet, MAX(found, 0));
  }
  if (tables || n == 0) {
    rows_close(r);
    return err_set(e, ERR_BAD_FILE, "--data: %s: expected .jsonl files, found %s", path_label(data, label),
                   tables ? "Parquet: tools/parquet_to_jsonl.py makes them from it" : "none");
  }
  keep_split(r, !strcmp(suite, "mmmu") ? "validation" : "test");
  return 0;
}

void rows_close(struct rows *r) {
  json_decref(r->row);
  map_close(&r->map);
  suite_free_strings(r->files, r->n_files);
  *r = (struct rows){0};
}

int rows_next(struct rows *r, struct err *e) {
  for (;;) {
    if (r->map.path == NULL) {
      if (r->at == r->n_files) return 0;
      if (map_open(&r->map, r->files[r->at], e)) return -1;
      r->offset = 0;
      r->line = 0;
    }
    if (r->offset >= r->map.n_bytes) {
      map_close(&r->map);
      r->map = (struct map){0};
      r->at++;
      continue;
    }
    const char *p = (const char *)r->map.data + r->offset;
    size_t left = r->map.n_bytes - r->offset;
    const char *stop = memchr(p, '\n', left);
    size_t n = stop ? (size_t)(stop - p) : left;
    r->offset += n + 1;
    r->line++;
    while (n && (p[n - 1] == '\r' || p[n - 1] == ' ')) n--;
    if (n == 0) continue;
    char label[200], what[240];
    snprintf(what, sizeof what, "%s: line %d", path_label(r->map.path, label), r->line);
    json_decref(r->row);
    r->row = json_load_text(p, n, true, what, e);
    if (!r->row) return -1;
    if (!json_is_object(r->row)) return err_set(e, ERR_BAD_FILE, "%s: expected an object", what);
    r->count++;
    return 1;
  }
}

int rows_wrong(const struct rows *r, const char *field, const char *expected, struct err *e) {
  char label[200], shown[60];
  const json_t *v = json_object_get(r->row, field);
  char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
  err_set(e, ERR_BAD_FILE, "%s: line %d: %s: expected %s, found %s", path_label(r->files[r->at], label), r->line, field, expected,
          text ? str_escape(str_c(text), shown, sizeof shown) : "nothing");
  free(text);
  return -1;
}

int rows_text(const struct rows *r, const char *field, const char **out, struct err *e) {
  const json_t *v = json_object_get(r->row, field);
  if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) return rows_wrong(r, field, "text", e);
  *out = json_string_value(v);
  return 0;
}

char *rows_beside(const struct rows *r, const char *path) {
  const char *file = r->files[r->at], *slash = strrchr(file, '/');
  if (path[0] == '/' || !slash) return xstrdup(path);
  struct buf b;
  buf_init(&b, 0);
  buf_append(&b, file, (size_t)(slash + 1 - file));
  buf_puts(&b, path);
  return buf_take(&b, NULL);
}

/* ---- lists as Python writes them ------------------------------------------------------------------------------------------------ */

static void put_code_point(struct buf *b, uint32_t c) {
  if (c < 0x80) buf_putc(b, (char)c);
  else if (c < 0x800) buf_putc(b, (char)(0xc0 | c >> 6)), buf_putc(b, (char)(0x80 | (c & 0x3f)));
  else if (c < 0x10000)
    buf_putc(b, (char)(0xe0 | c >> 12)), buf_putc(b, (char)(0x80 | (c >> 6 & 0x3f))), buf_putc(b, (char)(0x80 | (c & 0x3f)));
  else
    buf_putc(b, (char)(0xf0 | c >> 18)), buf_putc(b, (char)(0x80 | (c >> 12 & 0x3f))), buf_putc(b, (char)(0x80 | (c >> 6 & 0x3f))),
        buf_putc(b, (char)(0x80 | (c & 0x3f)));
}

/* What stands after a backslash at p; how many bytes it is, 0: the text ends. An unknown one keeps its backslash. */
static size_t unescape(struct buf *b, const char *p, const char *end) {
  static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
  if (p == end) return 0;
  const char *known = *p ? strchr(names, *p) : NULL;
  if (known) {
    buf_putc(b, values[known - names]);
    return 1;
  }
  size_t digits = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
  if (digits && (size_t)(end - p) > digits) {
    uint32_t c = 0;
    for (size_t i = 1; i <= digits; i++) {
      const char *hex = "0123456789abcdef", *at = strchr(hex, p[i] | (p[i] >= 'A' && p[i] <= 'F' ? 0x20 : 0));
      if (!at || !p[i]) return 0;
      c = c << 4 | (uint32_t)(at - hex);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || c == 0) return 0;
    put_code_point(b, c);
    return digits + 1;
  }
  if (*p == '\n') return 1;
  buf_putc(b, '\\');
  buf_putc(b, *p);
  return 1;
}

/* One element at *p: a string in quotes, or anything up to the next comma. */
static char *list_element(const char **p, const char *end) {
  struct buf b;
  buf_init(&b, 0);
  buf_append(&b, "", 0);
  bool raw = *p + 1 < end && (**p == 'r' || **p == 'R') && (p[0][1] == '\'' || p[0][1] == '"');
  if (raw) (*p)++;
  if (**p == '\'' || **p == '"') {
    char quote = *(*p)++;
    while (*p < end && **p != quote) {
      if (**p != '\\' || raw) {
        buf_putc(&b, *(*p)++);
        continue;
      }
      size_t n = unescape(&b, *p + 1, end);
      if (n == 0) break;
      *p += n + 1;
    }
    if (*p == end || **p != quote) {
      buf_free(&b);
      return NULL;
    }
    (*p)++;
    return buf_take(&b, NULL);
  }
  const char *start = *p;
  while (*p < end && **p != ',' && **p != ']' && **p != '[' && **p != '\'' && **p != '"') (*p)++;
  size_t n = (size_t)(*p - start);
  while (n && start[n - 1] == ' ') n--;
  buf_append(&b, start, n);
  if (n) return buf_take(&b, NULL);
  buf_free(&b);
  return NULL;
}

int suite_python_list(struct str text, char ***out) {
  const char *p = text.p, *end = text.p + text.n;
  char **v = NULL;
  int n = 0;
  bool good = false;
  *out = NULL;
  while (p < end && (*p == ' ' || *p == '\n')) p++;
  while (end > p && (end[-1] == ' ' || end[-1] == '\n')) end--;
  if (p == end || *p++ != '[') return -1;
  for (;;) {
    while (p < end && (*p == ' ' || *p == '\n')) p++;
    if (p < end && *p == ']') { /* also after a last comma */
      good = p + 1 == end;
      break;
    }
    char *one = p < end ? list_element(&p, end) : NULL;
    if (!one) break;
    v = xrealloc(v, (size_t)(n + 1) * sizeof *v);
    v[n++] = one;
    while (p < end && (*p == ' ' || *p == '\n')) p++;
    if (p < end && *p == ',') p++;
    else if (p == end || *p != ']') break;
  }
  if (!good) {
    suite_free_strings(v, n);
    return -1;
  }
  *out = v;
  return n;
}
