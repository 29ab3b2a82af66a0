/* opts_config.c — the config file: one flat JSON object, parsed here because this room stands below every library.
 *
 * A pure function over bytes. Members are handed over as they are read; nothing is kept.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts_impl.h"

enum { CONFIG_TEXT_BYTES = 1 << 16, CONFIG_NAMES_MAX = 1024 };

struct config_reader {
  const char *p, *end;
  int line;
  struct buf name, value;
  char **names; /* members so far, to refuse repeats; owned */
  int n_names;
  opts_config_visitor visit;
  void *ctx;
  struct err *e;
};

static int wanted(struct config_reader *r, const char *what) {
  char found[32];
  if (r->p == r->end) return err_set(r->e, ERR_BAD_INPUT, "line %d: expected %s, found the end of the file", r->line, what);
  size_t n = MIN((size_t)(r->end - r->p), (size_t)12);
  return err_set(r->e, ERR_BAD_INPUT, "line %d: expected %s, found '%s'", r->line, what, str_escape(str_of(r->p, n), found, sizeof found));
}

static void skip_blanks(struct config_reader *r) {
  for (; r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\r' || *r->p == '\n'); r->p++) r->line += *r->p == '\n';
}

static bool take(struct config_reader *r, char c) {
  skip_blanks(r);
  if (r->p == r->end || *r->p != c) return false;
  r->p++;
  return true;
}

static bool take_word(struct config_reader *r, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0) return false;
  r->p += n;
  return true;
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

static bool read_hex4(struct config_reader *r, uint32_t *out) {
  uint32_t v = 0;
  if (r->end - r->p < 4) return false;
  for (int i = 0; i < 4; i++) {
    char c = *r->p++;
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return false;
    v = v << 4 | (uint32_t)digit;
  }
  *out = v;
  return true;
}

static int read_unicode_escape(struct config_reader *r, struct buf *out) {
  uint32_t cp, low;
  char bytes[4];
  if (!read_hex4(r, &cp)) return wanted(r, "four hexadecimal digits");
  if (cp >= 0xd800 && cp < 0xdc00) {
    if (!take_word(r, "\\u") || !read_hex4(r, &low) || low < 0xdc00 || low > 0xdfff)
      return wanted(r, "the second half of a surrogate pair");
    cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
  } else if (cp == 0 || (cp >= 0xdc00 && cp < 0xe000)) {
    return wanted(r, "an escape of a character other than NUL and lone surrogates");
  }
  buf_append(out, bytes, (size_t)utf8_put(cp, bytes));
  return 0;
}

static int read_escape(struct config_reader *r, struct buf *out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (r->p < r->end && *r->p == 'u') {
    r->p++;
    return read_unicode_escape(r, out);
  }
  const char *found = r->p < r->end && *r->p ? strchr(from, *r->p) : NULL;
  if (!found) return wanted(r, "one of \" \\ / b f n r t u after \\");
  r->p++;
  buf_putc(out, to[found - from]);
  return 0;
}

/* A string with both quotes; *what says what is expected if there is none. */
static int read_string(struct config_reader *r, const char *what, struct buf *out) {
  buf_clear(out);
  if (!take(r, '"')) return wanted(r, what);
  while (r->p < r->end && *r->p != '"') {
    if ((unsigned char)*r->p < 0x20) return wanted(r, "a string without control characters");
    if (*r->p == '\\') {
      r->p++;
      if (read_escape(r, out) != 0) return -1;
      continue;
    }
    uint32_t cp;
    bool bad = false;
    int step = utf8_step(r->p, (size_t)(r->end - r->p), &cp, &bad);
    if (bad) return wanted(r, "UTF-8");
    buf_append(out, r->p, (size_t)step);
    r->p += step;
  }
  if (!take(r, '"')) return wanted(r, "a closing quote");
  if (out->overflow) return err_set(r->e, ERR_TOO_LARGE, "line %d: expected a string of at most %d bytes", r->line, CONFIG_TEXT_BYTES);
  return 0;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static int read_digits(struct config_reader *r) {
  const char *start = r->p;
  while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
  return r->p > start ? 0 : wanted(r, "a digit");
}

/* RFC 8259: no leading zeros, digits on both sides of a point. */
static int read_number(struct config_reader *r) {
  const char *start = r->p;
  if (*r->p == '-') r->p++;
  if (r->p < r->end && *r->p == '0') {
    r->p++;
    if (r->p < r->end && *r->p >= '0' && *r->p <= '9') return wanted(r, "a number without leading zeros");
  } else if (read_digits(r) != 0) {
    return -1;
  }
  if (r->p < r->end && *r->p == '.') {
    r->p++;
    if (read_digits(r) != 0) return -1;
  }
  if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
    r->p++;
    if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
    if (read_digits(r) != 0) return -1;
  }
  buf_clear(&r->value);
  buf_append(&r->value, start, (size_t)(r->p - start));
  return r->value.overflow ? wanted(r, "a shorter number") : 0;
}

static int hand_over(struct config_reader *r, enum opts_config_kind kind) {
  return r->visit(r->ctx, buf_cstr(&r->name), kind, buf_cstr(&r->value), r->e);
}

static int read_list(struct config_reader *r) {
  buf_clear(&r->value);
  if (hand_over(r, OPTS_CONFIG_LIST) != 0) return -1;
  if (take(r, ']')) return 0;
  do {
    if (read_string(r, "a string in the list", &r->value) != 0 || hand_over(r, OPTS_CONFIG_ITEM) != 0) return -1;
  } while (take(r, ','));
  return take(r, ']') ? 0 : wanted(r, "',' or ']'");
}

static int read_value(struct config_reader *r) {
  static const char what[] = "a string, number, true, false, null or a list of strings";
  skip_blanks(r);
  if (r->p == r->end) return wanted(r, what);
  char c = *r->p;
  if (c == '"') return read_string(r, what, &r->value) == 0 ? hand_over(r, OPTS_CONFIG_STRING) : -1;
  if (c == '-' || (c >= '0' && c <= '9')) return read_number(r) == 0 ? hand_over(r, OPTS_CONFIG_NUMBER) : -1;
  if (take(r, '[')) return read_list(r);
  const char *start = r->p;
  if (!take_word(r, "true") && !take_word(r, "false") && !take_word(r, "null")) return wanted(r, what);
  buf_clear(&r->value);
  buf_append(&r->value, start, (size_t)(r->p - start));
  return hand_over(r, c == 'n' ? OPTS_CONFIG_NULL : OPTS_CONFIG_BOOL);
}

/* A name may stand once only: which of two values counts would be a guess. */
static int remember_name(struct config_reader *r) {
  const char *name = buf_cstr(&r->name);
  char shown[64];
  if (strlen(name) != r->name.len) return wanted(r, "a name");
  for (int i = 0; i < r->n_names; i++) {
    if (strcmp(r->names[i], name) == 0)
      return err_set(r->e, ERR_BAD_INPUT, "line %d: expected each name once, found \"%s\" again", r->line,
                     str_escape(str_c(name), shown, sizeof shown));
  }
  if (r->n_names == CONFIG_NAMES_MAX) return err_set(r->e, ERR_TOO_LARGE, "expected at most %d names", CONFIG_NAMES_MAX);
  r->names = xrealloc(r->names, (size_t)(r->n_names + 1) * sizeof *r->names);
  r->names[r->n_names++] = xstrdup(name);
  return 0;
}

static int read_object(struct config_reader *r) {
  if (!take(r, '{')) return wanted(r, "'{'");
  if (!take(r, '}')) {
    do {
      if (read_string(r, "a name in quotes", &r->name) != 0 || remember_name(r) != 0) return -1;
      if (!take(r, ':')) return wanted(r, "':'");
      if (read_value(r) != 0) return -1;
    } while (take(r, ','));
    if (!take(r, '}')) return wanted(r, "',' or '}'");
  }
  skip_blanks(r);
  return r->p == r->end ? 0 : wanted(r, "nothing after the closing '}'");
}

int opts_config_parse(const char *text, size_t n, opts_config_visitor visit, void *ctx, struct err *e) {
  struct config_reader r = {.p = text, .end = text + n, .line = 1, .visit = visit, .ctx = ctx, .e = e};
  buf_init(&r.name, CONFIG_TEXT_BYTES);
  buf_init(&r.value, CONFIG_TEXT_BYTES);
  int code = read_object(&r);
  for (int i = 0; i < r.n_names; i++) free(r.names[i]);
  free(r.names);
  buf_free(&r.name);
  buf_free(&r.value);
  return code;
}
