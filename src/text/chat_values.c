/* chat_values.c — JSON values as the released templates print them, which is as Python does: None and True, shortest numbers, lists in
 * single quotes, keys in the order of their lower-cased spelling.
 *
 * Letters change case one by one, by the Unicode tables of utf8proc. Python's few rules of more than one letter are followed for ß and İ only.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/chat_impl.h"

/* --- strings ------------------------------------------------------------------------------------------------------------------------- */

static void put_char(struct buf *b, uint32_t c) {
  char bytes[4];
  buf_append(b, bytes, (size_t)utf8_put(c, bytes));
}

static void put_lower(struct buf *b, struct str s) {
  for (uint32_t c; s.n;) {
    int step = utf8_step(s.p, s.n, &c, NULL);
    s.p += step;
    s.n -= (size_t)step;
    if (c == 0x130) buf_puts(b, "i\xCC\x87");
    else put_char(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
  }
}

static void put_upper(struct buf *b, struct str s) {
  for (uint32_t c; s.n;) {
    int step = utf8_step(s.p, s.n, &c, NULL);
    s.p += step;
    s.n -= (size_t)step;
    if (c == 0xDF) buf_puts(b, "SS");
    else put_char(b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
  }
}

static bool printable(uint32_t c) {
  switch (utf8proc_category((utf8proc_int32_t)c)) {
  case UTF8PROC_CATEGORY_CC:
  case UTF8PROC_CATEGORY_CF:
  case UTF8PROC_CATEGORY_CS:
  case UTF8PROC_CATEGORY_CO:
  case UTF8PROC_CATEGORY_CN:
  case UTF8PROC_CATEGORY_ZL:
  case UTF8PROC_CATEGORY_ZP: return false;
  case UTF8PROC_CATEGORY_ZS: return c == ' ';
  default: return true;
  }
}

/* repr(s) */
static void put_repr(struct buf *b, struct str s) {
  char quote = memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'';
  buf_putc(b, quote);
  for (uint32_t c; s.n;) {
    int step = utf8_step(s.p, s.n, &c, NULL);
    s.p += step;
    s.n -= (size_t)step;
    if (c == (unsigned char)quote || c == '\\') buf_printf(b, "\\%c", (char)c);
    else if (c == '\n') buf_puts(b, "\\n");
    else if (c == '\r') buf_puts(b, "\\r");
    else if (c == '\t') buf_puts(b, "\\t");
    else if (printable(c)) put_char(b, c);
    else if (c < 0x100) buf_printf(b, "\\x%02x", (unsigned)c);
    else if (c < 0x10000) buf_printf(b, "\\u%04x", (unsigned)c);
    else buf_printf(b, "\\U%08x", (unsigned)c);
  }
  buf_putc(b, quote);
}

void chat_put_json_inside(struct buf *b, const char *s, size_t n) {
  static const char escaped[] = "\b\f\n\r\t\"\\", by[] = "bfnrt\"\\";
  size_t from = 0;
  for (size_t i = 0; i < n; i++) {
    const char *at = s[i] ? strchr(escaped, s[i]) : NULL;
    if (!at && (unsigned char)s[i] >= 0x20) continue;
    buf_append(b, s + from, i - from);
    if (at) buf_printf(b, "\\%c", by[at - escaped]);
    else buf_printf(b, "\\u%04x", (unsigned)(unsigned char)s[i]);
    from = i + 1;
  }
  buf_append(b, s + from, n - from);
}

static void put_json_string(struct buf *b, struct str s) {
  buf_putc(b, '"');
  chat_put_json_inside(b, s.p, s.n);
  buf_putc(b, '"');
}

/* --- numbers ------------------------------------------------------------------------------------------------------------------------- */

/* repr of a float: the fewest digits that read back the same, with an exponent outside 1e-4 .. 1e16. */
static void put_real(struct buf *b, double f) {
  char text[40], digits[20];
  int n_digits = 0;
  for (int n = 1; n <= 17; n++) {
    snprintf(text, sizeof text, "%.*e", n - 1, fabs(f));
    if (strtod(text, NULL) == fabs(f)) break;
  }
  char *e = strchr(text, 'e');
  int exponent = atoi(e + 1);
  for (const char *p = text; p < e; p++)
    if (*p != '.') digits[n_digits++] = *p;
  if (signbit(f)) buf_putc(b, '-');
  if (exponent < -4 || exponent >= 16) {
    buf_putc(b, digits[0]);
    if (n_digits > 1) buf_printf(b, ".%.*s", n_digits - 1, digits + 1);
    buf_printf(b, "e%+03d", exponent);
    return;
  }
  if (exponent < 0) buf_printf(b, "0.%.*s%.*s", -exponent - 1, "000", n_digits, digits);
  else if (n_digits <= exponent + 1) buf_printf(b, "%.*s%.*s.0", n_digits, digits, exponent + 1 - n_digits, "000000000000000");
  else buf_printf(b, "%.*s.%.*s", exponent + 1, digits, n_digits - exponent - 1, digits + exponent + 1);
}

/* A number as JSON spells it, from the front of s; 0 = none. */
static size_t number_length(struct str s) {
  size_t i = 0, from;
  i += i < s.n && s.p[i] == '-';
  from = i;
  while (i < s.n && s.p[i] >= '0' && s.p[i] <= '9') i++;
  if (i == from || (s.p[from] == '0' && i > from + 1)) return 0;
  if (i < s.n && s.p[i] == '.') {
    from = ++i;
    while (i < s.n && s.p[i] >= '0' && s.p[i] <= '9') i++;
    if (i == from) return 0;
  }
  if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
    i++;
    i += i < s.n && (s.p[i] == '+' || s.p[i] == '-');
    from = i;
    while (i < s.n && s.p[i] >= '0' && s.p[i] <= '9') i++;
    if (i == from) return 0;
  }
  return i;
}

/* Integers from 10^18 on, and what is too large for a double. */
static bool is_beyond(struct str number) {
  char *ended = xstrndup(number.p, number.n);
  double f = strtod(ended, NULL);
  bool integer = !strpbrk(ended, ".eE");
  free(ended);
  return integer ? fabs(f) >= 1e18 : isinf(f);
}

/* Such a number is a string behind a character that no text has a use for. */
#define SPELLED "\xEF\xB7\x90" /* U+FDD0 */

static struct str spelled_number(const json_t *v) {
  struct str s = str_of(json_string_value(v), json_string_length(v)), none = {0};
  if (!json_is_string(v) || !str_starts(s, SPELLED)) return none;
  s = str_of(s.p + strlen(SPELLED), s.n - strlen(SPELLED));
  return number_length(s) == s.n ? s : none;
}

bool chat_is_number(const json_t *v) { return json_is_number(v) || spelled_number(v).n; }

json_t *chat_load_values(struct str text) {
  struct buf b;
  bool in_string = false;
  buf_init(&b, 2 * (size_t)TOK_TEXT_BYTES_MAX);
  for (size_t i = 0; i < text.n;) {
    size_t n = 1;
    if (in_string) {
      n += text.p[i] == '\\' && i + 1 < text.n;
      in_string = text.p[i] != '"';
    } else if (text.p[i] == '"') {
      in_string = true;
    } else if (text.p[i] == '-' || (text.p[i] >= '0' && text.p[i] <= '9')) {
      struct str number = str_of(text.p + i, text.n - i);
      n = number.n = number_length(number);
      if (n && is_beyond(number)) buf_printf(&b, "\"%s%.*s\"", SPELLED, (int)n, number.p);
      else buf_append(&b, number.p, n = MAX(n, 1));
      i += n;
      continue;
    }
    buf_append(&b, text.p + i, n);
    i += n;
  }
  json_t *v = b.overflow ? NULL : json_loadb(buf_cstr(&b), b.len, JSON_ALLOW_NUL, NULL); /* a key that is there twice: the last counts */
  buf_free(&b);
  return v;
}

/* --- values -------------------------------------------------------------------------------------------------------------------------- */

bool chat_truthy(const json_t *v) {
  if (!v) return false;
  switch (json_typeof(v)) {
  case JSON_OBJECT: return json_object_size(v) > 0;
  case JSON_ARRAY: return json_array_size(v) > 0;
  case JSON_STRING: return json_string_length(v) > 0;
  case JSON_INTEGER: return json_integer_value(v) != 0;
  case JSON_REAL: return json_real_value(v) != 0;
  case JSON_TRUE: return true;
  default: return false;
  }
}

/* What differs between Python's own spelling and JSON's. */
struct spelling {
  const char *null_word, *true_word, *false_word;
  void (*put_string)(struct buf *b, struct str s);
  int indent; /* blanks per level; 0 = all on one line */
};

static void new_line(struct buf *b, const struct spelling *how, int level) {
  if (how->indent) buf_printf(b, "\n%*s", how->indent * level, "");
}

static void put_value(struct buf *b, const json_t *v, const struct spelling *how, int level) {
  const char *comma = how->indent ? "," : ", ", *key;
  bool first = true;
  json_t *inner;
  switch (json_typeof(v)) {
  case JSON_NULL: buf_puts(b, how->null_word); return;
  case JSON_TRUE: buf_puts(b, how->true_word); return;
  case JSON_FALSE: buf_puts(b, how->false_word); return;
  case JSON_INTEGER: buf_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return;
  case JSON_REAL: put_real(b, json_real_value(v)); return;
  case JSON_STRING:
    if (chat_is_number(v)) chat_put_str(b, v);
    else how->put_string(b, str_of(json_string_value(v), json_string_length(v)));
    return;
  case JSON_ARRAY:
    buf_putc(b, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
      if (i) buf_puts(b, comma);
      new_line(b, how, level + 1);
      put_value(b, json_array_get(v, i), how, level + 1);
    }
    if (json_array_size(v)) new_line(b, how, level);
    buf_putc(b, ']');
    return;
  case JSON_OBJECT: break;
  }
  buf_putc(b, '{');
  json_object_foreach((json_t *)(uintptr_t)v, key, inner) {
    if (!first) buf_puts(b, comma);
    new_line(b, how, level + 1);
    how->put_string(b, str_c(key));
    buf_puts(b, ": ");
    put_value(b, inner, how, level + 1);
    first = false;
  }
  if (!first) new_line(b, how, level);
  buf_putc(b, '}');
}

void chat_put_str(struct buf *b, const json_t *v) {
  static const struct spelling python = {"None", "True", "False", put_repr, 0};
  struct str number = spelled_number(v);
  if (number.n) buf_append(b, number.p, number.n);
  else if (json_is_string(v)) buf_append(b, json_string_value(v), json_string_length(v));
  else if (v) put_value(b, v, &python, 0);
}

void chat_put_upper(struct buf *b, const json_t *v) {
  struct buf printed;
  buf_init(&printed, b->max_bytes);
  chat_put_str(&printed, v);
  put_upper(b, str_of(buf_cstr(&printed), printed.len));
  buf_free(&printed);
}

void chat_put_json(struct buf *b, const json_t *v, int indent) {
  struct spelling json = {"null", "true", "false", put_json_string, indent};
  put_value(b, v, &json, 0);
}

/* --- order --------------------------------------------------------------------------------------------------------------------------- */

struct sorting {
  struct chat_entry entry;
  struct buf lower;
  size_t at;
};

static int by_lower_key(const void *a, const void *b) {
  const struct sorting *x = a, *y = b;
  size_t n = MIN(x->lower.len, y->lower.len);
  int order = n ? memcmp(x->lower.data, y->lower.data, n) : 0;
  if (order) return order;
  if (x->lower.len != y->lower.len) return x->lower.len < y->lower.len ? -1 : 1;
  return x->at < y->at ? -1 : 1;
}

struct chat_entry *chat_sorted(const json_t *object, size_t *n) {
  size_t size = json_object_size(object), i = 0;
  struct sorting *keys = xcalloc(size + 1, sizeof *keys);
  struct chat_entry *out = xcalloc(size + 1, sizeof *out);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    keys[i] = (struct sorting){.entry = {key, value}, .at = i};
    buf_init(&keys[i].lower, 0);
    put_lower(&keys[i].lower, str_c(key));
    i++;
  }
  qsort(keys, size, sizeof *keys, by_lower_key);
  for (i = 0; i < size; i++) {
    out[i] = keys[i].entry;
    buf_free(&keys[i].lower);
  }
  free(keys);
  *n = size;
  return out;
}
