/* multipart.c — bodies in parts. */
#include "server/multipart.h"

#include <string.h>

/* What comes before the next semicolon that is not inside quotes; *rest is what follows it. */
static struct str next_field(struct str *rest) {
  bool quoted = false;
  size_t n = 0;
  while (n < rest->n && (quoted || rest->p[n] != ';')) {
    if (quoted && rest->p[n] == '\\' && n + 1 < rest->n) n++;
    else if (rest->p[n] == '"') quoted = !quoted;
    n++;
  }
  struct str field = str_trim_blanks(str_of(rest->p, n));
  size_t skip = n < rest->n ? n + 1 : n;
  *rest = str_of(rest->p + skip, rest->n - skip);
  return field;
}

/* `name="value"` or `name=value`. false: that is none, or its quotes do not close. */
static bool read_parameter(struct str field, struct str *name, struct str *value) {
  const char *equals = memchr(field.p, '=', field.n);
  if (!equals) return false;
  *name = str_trim_blanks(str_of(field.p, (size_t)(equals - field.p)));
  *value = str_trim_blanks(str_of(equals + 1, field.n - (size_t)(equals - field.p) - 1));
  if (!value->n || value->p[0] != '"') return name->n && !memchr(value->p, '"', value->n);
  if (value->n < 2 || value->p[value->n - 1] != '"') return false;
  *value = str_of(value->p + 1, value->n - 2);
  return name->n > 0;
}

bool multipart_boundary(struct str type, char out[MULTIPART_BOUNDARY_MAX + 1]) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'()+_,-./:=? ";
  struct str rest = type, name, value;
  int found = 0;
  if (!type.p || !str_is_nocase(next_field(&rest), "multipart/form-data")) return false;
  while (rest.n) {
    struct str field = next_field(&rest);
    if (!field.n) continue;
    if (!read_parameter(field, &name, &value)) return false;
    if (!str_is_nocase(name, "boundary")) continue;
    if (found++ || value.n < 1 || value.n > MULTIPART_BOUNDARY_MAX || value.p[value.n - 1] == ' ') return false;
    for (size_t i = 0; i < value.n; i++)
      if (!value.p[i] || !strchr(allowed, value.p[i])) return false;
    memcpy(out, value.p, value.n);
    out[value.n] = 0;
  }
  return found == 1;
}

/* One header line of a part. */
static int read_header(struct str line, struct multipart_part *part, bool *named, struct err *e) {
  const char *colon = memchr(line.p, ':', line.n);
  if (!colon || colon == line.p || line.p[0] == ' ' || line.p[0] == '\t')
    return err_set(e, ERR_BAD_INPUT, "body: expected a header in a part");
  struct str name = str_of(line.p, (size_t)(colon - line.p)), value = str_trim_blanks(str_of(colon + 1, line.n - name.n - 1));
  if (str_is_nocase(name, "Content-Transfer-Encoding") && !str_is_nocase(value, "binary") && !str_is_nocase(value, "8bit") &&
      !str_is_nocase(value, "7bit"))
    return err_set(e, ERR_UNSUPPORTED, "body: expected a part as it is, without Content-Transfer-Encoding");
  if (!str_is_nocase(name, "Content-Disposition")) return 0;
  if (*named || !str_is_nocase(next_field(&value), "form-data"))
    return err_set(e, ERR_BAD_INPUT, "body: expected Content-Disposition: form-data once in a part");
  while (value.n) {
    struct str key, field = next_field(&value), v;
    if (!field.n) continue;
    if (!read_parameter(field, &key, &v)) return err_set(e, ERR_BAD_INPUT, "body: expected name=\"...\" in a Content-Disposition");
    if (str_is_nocase(key, "name")) {
      if (*named) return err_set(e, ERR_BAD_INPUT, "body: expected one name in a part");
      part->name = v;
      *named = true;
    }
    part->is_file |= str_is_nocase(key, "filename") || str_is_nocase(key, "filename*");
  }
  return 0;
}

static const char *find(const char *p, const char *end, const char *what, size_t n) {
  return (size_t)(end - p) >= n ? memmem(p, (size_t)(end - p), what, n) : NULL;
}

/* Headers from *p on, up to the empty line; *p goes behind it. */
static int read_head(const char **p, const char *end, struct multipart_part *part, struct err *e) {
  const char *begin = *p;
  bool named = false;
  for (;;) {
    const char *line = *p, *eol = find(line, end, "\r\n", 2);
    if (!eol || eol - begin > MULTIPART_HEAD_BYTES)
      return err_set(e, ERR_BAD_INPUT, "body: expected an empty line behind the headers of a part");
    *p = eol + 2;
    if (eol == line) break;
    if (memchr(line, 0, (size_t)(eol - line)) || memchr(line, '\n', (size_t)(eol - line)))
      return err_set(e, ERR_BAD_INPUT, "body: expected headers without control characters");
    if (read_header(str_of(line, (size_t)(eol - line)), part, &named, e)) return -1;
  }
  return named ? 0 : err_set(e, ERR_BAD_INPUT, "body: expected a name for each part");
}

static int check_name(const struct multipart_part *parts, int n, struct err *e) {
  struct str name = parts[n].name;
  char shown[60];
  for (int i = 0; i < n && !str_ends(name, "[]"); i++)
    if (str_eq(parts[i].name, name))
      return err_set(e, ERR_BAD_INPUT, "body: %s: expected once, found twice", str_escape(name, shown, sizeof shown));
  return 0;
}

int multipart_parse(struct str body, const char *boundary, struct multipart_part *parts, int n_max, struct err *e) {
  char mark[4 + MULTIPART_BOUNDARY_MAX + 1] = "\r\n--";
  size_t n_mark = 4 + strlen(boundary);
  const char *p = body.p, *end = body.p + body.n;
  int n = 0;
  memcpy(mark + 4, boundary, n_mark - 4 + 1);
  if (body.n < n_mark - 2 || memcmp(p, mark + 2, n_mark - 2))
    return err_set(e, ERR_BAD_INPUT, "body: expected the boundary of Content-Type first");
  p += n_mark - 2;
  for (;;) {
    if (end - p >= 2 && p[0] == '-' && p[1] == '-') { /* the last one; what follows is nobody's */
      if (p + 2 == end || (end - p >= 4 && p[2] == '\r' && p[3] == '\n')) return n;
      return err_set(e, ERR_BAD_INPUT, "body: expected its end behind the last boundary");
    }
    if (end - p < 2 || p[0] != '\r' || p[1] != '\n') return err_set(e, ERR_BAD_INPUT, "body: expected a line break behind a boundary");
    p += 2;
    if (n == n_max) return err_set(e, ERR_BAD_INPUT, "body: expected at most %d parts", n_max);
    parts[n] = (struct multipart_part){0};
    if (read_head(&p, end, &parts[n], e)) return -1;
    const char *data = p, *next = find(p - 2, end, mark, n_mark); /* an empty part's boundary begins with the empty line's end */
    if (!next) return err_set(e, ERR_BAD_INPUT, "body: expected a boundary behind each part, found none");
    parts[n].data = str_of(data, next < data ? 0 : (size_t)(next - data));
    if (check_name(parts, n, e)) return -1;
    n++;
    p = next + n_mark;
  }
}
