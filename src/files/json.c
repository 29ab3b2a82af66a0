/* json.c — jansson with limits, and getters that say where something is wrong. */
#include "files/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "files/map.h"

/* jansson recurses and allocates as it reads, so depth and number of values are bounded before it starts. Counts only
 * what stands outside strings; text that is no JSON is left for jansson to refuse. */
static int scan_limits(const char *text, size_t n, const char *what, struct err *e) {
  size_t depth = 0, n_containers = 0, n_commas = 0;
  int line = 1;
  bool in_string = false;
  for (size_t i = 0; i < n; i++) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') i++;
      else if (c == '"') in_string = false;
      continue;
    }
    switch (c) {
    case '\n': line++; break;
    case '"': in_string = true; break;
    case ',': n_commas++; break;
    case '{':
    case '[':
      n_containers++;
      if (++depth > JSON_DEPTH_MAX)
        return err_set(e, ERR_BAD_INPUT, "%s: line %d: nested deeper than %d levels", what, line, JSON_DEPTH_MAX);
      break;
    case '}':
    case ']': depth -= depth > 0; break;
    default: break;
    }
  }
  if (n_containers > JSON_CONTAINERS_MAX)
    return err_set(e, ERR_TOO_LARGE, "%s: expected at most %d objects and arrays, found %zu", what, JSON_CONTAINERS_MAX, n_containers);
  if (n_commas + n_containers > JSON_VALUES_MAX)
    return err_set(e, ERR_TOO_LARGE, "%s: expected at most %d values, found %zu", what, JSON_VALUES_MAX, n_commas + n_containers);
  return 0;
}

json_t *json_load_text(const char *text, size_t n, bool allow_nul, const char *what, struct err *e) {
  size_t blanks = 0;
  while (blanks < n && strchr(" \t\r\n", text[blanks]) && text[blanks]) blanks++;
  if (blanks == n) {
    err_set(e, ERR_BAD_INPUT, "%s: expected JSON, found nothing", what);
    return NULL;
  }
  if (!utf8_valid(text, n)) {
    int line = 1;
    bool bad = false;
    for (size_t i = 0; i < n && !bad;) {
      uint32_t cp;
      line += text[i] == '\n';
      i += (size_t)utf8_step(text + i, n - i, &cp, &bad);
    }
    err_set(e, ERR_BAD_INPUT, "%s: line %d: not UTF-8", what, line);
    return NULL;
  }
  if (memchr(text, 0, n)) { /* jansson would pass over it */
    err_set(e, ERR_BAD_INPUT, "%s: a NUL byte in the text", what);
    return NULL;
  }
  if (scan_limits(text, n, what, e) != 0) return NULL;
  json_error_t error;
  json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | (allow_nul ? JSON_ALLOW_NUL : 0), &error);
  if (v) return v;
  char near[200];
  switch (json_error_code(&error)) {
  case json_error_null_character:
  case json_error_null_byte_in_key: err_set(e, ERR_BAD_INPUT, "%s: line %d: NUL (\\u0000) inside a string", what, error.line); break;
  case json_error_duplicate_key:
    err_set(e, ERR_BAD_INPUT, "%s: line %d: %s: a key is present twice in one object", what, error.line,
            str_escape(str_c(error.text), near, sizeof near));
    break;
  default: err_set(e, ERR_BAD_INPUT, "%s: line %d: %s", what, error.line, str_escape(str_c(error.text), near, sizeof near)); break;
  }
  return NULL;
}

json_t *json_load_path(const char *path, size_t max_bytes, struct err *e) {
  struct map m;
  char label[200];
  path_label(path, label);
  if (map_open(&m, path, e) != 0) return NULL;
  json_t *v = NULL;
  if (m.n_bytes > max_bytes) err_set(e, ERR_TOO_LARGE, "%s: expected at most %zu bytes, file has %zu", label, max_bytes, m.n_bytes);
  else v = json_load_text(m.data ? (const char *)m.data : "", m.n_bytes, false, label, e);
  map_close(&m);
  return v;
}

/* --- getters ------------------------------------------------------------------------------------------------------------ */

/* What a value is, for messages: "big", 17, an array. */
static const char *describe(const json_t *v, char text[80]) {
  switch (json_typeof(v)) {
  case JSON_OBJECT: return "an object";
  case JSON_ARRAY: return "an array";
  case JSON_TRUE: return "true";
  case JSON_FALSE: return "false";
  case JSON_NULL: return "null";
  case JSON_INTEGER: snprintf(text, 80, "%lld", (long long)json_integer_value(v)); return text;
  case JSON_REAL: snprintf(text, 80, "%.17g", json_real_value(v)); return text;
  case JSON_STRING: break;
  }
  text[0] = '"';
  str_escape(str_of(json_string_value(v), json_string_length(v)), text + 1, 60);
  size_t n = strlen(text);
  memcpy(text + n, "\"", 2);
  return text;
}

static int wrong(const json_t *v, const char *key, const char *expected, const char *where, struct err *e) {
  char text[80], shown_key[100];
  return err_set(e, ERR_BAD_INPUT, "%s%s%s: expected %s, found %s", where, strstr(where, ": ") ? "." : ": ",
                 str_escape(str_c(key), shown_key, sizeof shown_key), expected, describe(v, text));
}

/* NULL when absent or null. */
static const json_t *get(const json_t *o, const char *key) {
  const json_t *v = json_object_get(o, key);
  return v && !json_is_null(v) ? v : NULL;
}

int json_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  int64_t n = 0;
  bool fits = json_is_integer(v);
  if (fits) n = json_integer_value(v);
  /* 5.0 is how some writers spell 5 */
  if (json_is_real(v) && fabs(json_real_value(v)) <= 0x1p53 && json_real_value(v) == floor(json_real_value(v))) {
    n = (int64_t)json_real_value(v);
    fits = true;
  }
  if (!fits || n < lo || n > hi) {
    char expected[100];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)lo, (long long)hi);
    return wrong(v, key, expected, where, e);
  }
  *out = n;
  return 1;
}

int json_get_float(const json_t *o, const char *key, double lo, double hi, double *out, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  double f = json_number_value(v);
  if (!json_is_number(v) || !(f >= lo && f <= hi)) {
    char expected[100];
    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    return wrong(v, key, expected, where, e);
  }
  *out = f;
  return 1;
}

int json_get_bool(const json_t *o, const char *key, bool *out, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  if (!json_is_boolean(v)) return wrong(v, key, "true or false", where, e);
  *out = json_is_true(v);
  return 1;
}

int json_get_string(const json_t *o, const char *key, const char **out, size_t *len, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  if (!json_is_string(v)) return wrong(v, key, "a string", where, e);
  *out = json_string_value(v);
  if (len) *len = json_string_length(v);
  return 1;
}

int json_get_object(const json_t *o, const char *key, const json_t **out, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  if (!json_is_object(v)) return wrong(v, key, "an object", where, e);
  *out = v;
  return 1;
}

int json_get_array(const json_t *o, const char *key, const json_t **out, const char *where, struct err *e) {
  const json_t *v = get(o, key);
  if (!v) return 0;
  if (!json_is_array(v)) return wrong(v, key, "an array", where, e);
  *out = v;
  return 1;
}

/* --- writing ------------------------------------------------------------------------------------------------------------ */

static bool put_real(struct buf *b, double f) {
  if (!isfinite(f)) return buf_puts(b, "null"); /* JSON has no word for it */
  char text[40];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, f);
    if (strtod(text, NULL) == f) break;
  }
  if (!strpbrk(text, ".e")) strcat(text, ".0"); /* stays a real when it is read back */
  return buf_puts(b, text);
}

static bool put_string(struct buf *b, const char *s, size_t n) { return buf_putc(b, '"') && buf_json_escape(b, s, n) && buf_putc(b, '"'); }

bool json_put(struct buf *b, const json_t *v) {
  switch (json_typeof(v)) {
  case JSON_NULL: return buf_puts(b, "null");
  case JSON_TRUE: return buf_puts(b, "true");
  case JSON_FALSE: return buf_puts(b, "false");
  case JSON_INTEGER: return buf_printf(b, "%lld", (long long)json_integer_value(v));
  case JSON_REAL: return put_real(b, json_real_value(v));
  case JSON_STRING: return put_string(b, json_string_value(v), json_string_length(v));
  case JSON_ARRAY:
    if (!buf_putc(b, '[')) return false;
    for (size_t i = 0; i < json_array_size(v); i++)
      if ((i && !buf_putc(b, ',')) || !json_put(b, json_array_get(v, i))) return false;
    return buf_putc(b, ']');
  case JSON_OBJECT: break;
  }
  if (!buf_putc(b, '{')) return false;
  bool first = true;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)v, key, value) {
    if ((!first && !buf_putc(b, ',')) || !put_string(b, key, strlen(key)) || !buf_putc(b, ':') || !json_put(b, value)) return false;
    first = false;
  }
  return buf_putc(b, '}');
}
