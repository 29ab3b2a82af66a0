/* output_value.c — values as models write them → a tree → JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/output_impl.h"

/* ---- the tree --------------------------------------------------------------------------------------------------------------- */

void values_init(struct values *t) {
  *t = (struct values){0};
  buf_init(&t->text, 0);
}

void values_free(struct values *t) {
  free(t->v);
  buf_free(&t->text);
  *t = (struct values){0};
}

void values_clear(struct values *t) {
  t->n = 0;
  buf_clear(&t->text);
}

int values_add(struct values *t, enum value_kind kind, int parent) {
  if (t->n == t->cap) {
    t->cap = t->cap ? 2 * t->cap : 32;
    t->v = xrealloc(t->v, (size_t)t->cap * sizeof *t->v);
  }
  int i = t->n++;
  t->v[i] = (struct value){.kind = kind, .first = -1, .last = -1, .next = -1};
  if (parent < 0) return i;
  struct value *p = &t->v[parent];
  if (p->last < 0) p->first = i;
  else t->v[p->last].next = i;
  p->last = i;
  p->n++;
  return i;
}

struct str values_key(const struct values *t, int i) {
  return str_of(buf_cstr(&t->text) + t->v[i].key, t->v[i].n_key);
}
struct str values_text(const struct values *t, int i) {
  return str_of(buf_cstr(&t->text) + t->v[i].text, t->v[i].n_text);
}

int values_find(const struct values *t, int object, const char *key) {
  for (int i = t->v[object].first; i >= 0; i = t->v[i].next)
    if (!t->v[i].dropped && str_is(values_key(t, i), key)) return i;
  return -1;
}

struct member {
  struct str key;
  int index;
};
static int by_key(const void *a, const void *b) {
  const struct member *x = a, *y = b;
  int order = memcmp(x->key.p, y->key.p, MIN(x->key.n, y->key.n));
  if (order) return order;
  if (x->key.n != y->key.n) return x->key.n < y->key.n ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

/* The last member with a key moves into the first one with it. */
void values_settle(struct values *t, int object) {
  int n = t->v[object].n, at = 0;
  if (n < 2) return;
  struct member *m = xcalloc((size_t)n, sizeof *m);
  for (int i = t->v[object].first; i >= 0; i = t->v[i].next) m[at++] = (struct member){values_key(t, i), i};
  qsort(m, (size_t)n, sizeof *m, by_key);
  for (int from = 0, to; from < n; from = to) {
    for (to = from + 1; to < n && str_eq(m[to].key, m[from].key); to++) t->v[m[to].index].dropped = true;
    if (to == from + 1) continue;
    struct value *first = &t->v[m[from].index], last = t->v[m[to - 1].index];
    last.dropped = false;
    last.next = first->next;
    *first = last;
  }
  free(m);
}

static void put_string(struct buf *out, struct str s) {
  buf_putc(out, '"');
  buf_json_escape(out, s.p, s.n);
  buf_putc(out, '"');
}

void values_put(const struct values *t, int i, struct buf *out) {
  const struct value *v = &t->v[i];
  struct str text = values_text(t, i);
  bool first = true;
  switch (v->kind) {
  case VALUE_WORD: buf_append(out, text.p, text.n); return;
  case VALUE_STRING: put_string(out, text); return;
  case VALUE_ARRAY:
  case VALUE_OBJECT: break;
  }
  buf_putc(out, v->kind == VALUE_ARRAY ? '[' : '{');
  for (int k = v->first; k >= 0; k = t->v[k].next) {
    if (t->v[k].dropped) continue;
    if (!first) buf_putc(out, ',');
    first = false;
    if (v->kind == VALUE_OBJECT) {
      put_string(out, values_key(t, k));
      buf_putc(out, ':');
    }
    values_put(t, k, out);
  }
  buf_putc(out, v->kind == VALUE_ARRAY ? ']' : '}');
}

/* ---- pieces of text ---------------------------------------------------------------------------------------------------------- */

bool output_all_blank(struct str s) {
  size_t i = 0;
  while (i < s.n && output_is_blank(s.p[i])) i++;
  return i == s.n;
}

void values_skip_blanks(struct values_reader *r) {
  while (r->p < r->end && output_is_blank(*r->p)) r->p++;
}

static bool at(const struct values_reader *r, char c) { return r->p < r->end && *r->p == c; }
static bool take(struct values_reader *r, char c) {
  if (!at(r, c)) return false;
  r->p++;
  return true;
}

static void keep(struct values_reader *r, const char *p, size_t n, uint32_t *where, uint32_t *len) {
  *where = (uint32_t)r->out->text.len;
  *len = (uint32_t)n;
  buf_append(&r->out->text, p, n);
}

static void keep_character(struct values_reader *r, uint32_t cp) {
  char put[4];
  if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd; /* half of a pair */
  buf_append(&r->out->text, put, (size_t)utf8_put(cp, put));
}

/* n hexadecimal digits. */
static bool hex(struct values_reader *r, int n, uint32_t *out) {
  if (r->end - r->p < n) return false;
  *out = 0;
  for (int i = 0; i < n; i++) {
    int digit = str_hex_digit(*r->p++);
    if (digit < 0) return false;
    *out = *out << 4 | (uint32_t)digit;
  }
  return true;
}

/* After \u in JSON: one character, or half of one that is written as two. */
static bool escaped_utf16(struct values_reader *r) {
  uint32_t high, low;
  if (!hex(r, 4, &high)) return false;
  const char *after = r->p;
  if (high >= 0xd800 && high < 0xdc00 && take(r, '\\') && take(r, 'u') && hex(r, 4, &low) && low >= 0xdc00 && low < 0xe000) {
    keep_character(r, 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
    return true;
  }
  r->p = after;
  keep_character(r, high);
  return true;
}

static bool escaped_json(struct values_reader *r, char c) {
  static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
  if (c == 'u') return escaped_utf16(r);
  const char *name = c ? strchr(names, c) : NULL;
  return name && buf_putc(&r->out->text, meant[name - names]);
}

static bool escaped_python(struct values_reader *r, char c) {
  static const char names[] = "\"\\'abfnrtv", meant[] = "\"\\'\a\b\f\n\r\t\v";
  uint32_t cp = 0;
  if (c == '\n') return true; /* the line goes on */
  if (c == 'x' || c == 'u' || c == 'U') {
    if (!hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &cp) || cp > 0x10ffff) return false;
    keep_character(r, cp);
    return true;
  }
  if (c == 'N') return false; /* \N{names of characters} */
  if (c >= '0' && c <= '7') {
    cp = (uint32_t)(c - '0');
    for (int i = 0; i < 2 && r->p < r->end && *r->p >= '0' && *r->p <= '7'; i++) cp = cp * 8 + (uint32_t)(*r->p++ - '0');
    keep_character(r, cp);
    return true;
  }
  const char *name = c ? strchr(names, c) : NULL;
  if (name) return buf_putc(&r->out->text, meant[name - names]);
  return buf_putc(&r->out->text, '\\') && buf_putc(&r->out->text, c); /* as Python leaves what it does not know */
}

bool values_read_string(struct values_reader *r, uint32_t *where, uint32_t *len) {
  bool python = r->syntax == SYNTAX_PYTHON;
  char quote = *r->p++;
  *where = (uint32_t)r->out->text.len;
  while (r->p < r->end) {
    const char *run = r->p;
    while (r->p < r->end && *r->p != quote && *r->p != '\\' && *r->p != OUTPUT_QUOTE &&
           (python ? *r->p != '\n' && *r->p : (unsigned char)*r->p >= 0x20))
      r->p++;
    buf_append(&r->out->text, run, (size_t)(r->p - run));
    if (take(r, quote)) {
      *len = (uint32_t)(r->out->text.len - *where);
      return true;
    }
    if (!take(r, '\\') || r->p == r->end) return false;
    char c = *r->p++;
    if (!(python ? escaped_python(r, c) : escaped_json(r, c))) return false;
  }
  return false;
}

static size_t digits(const char *p, const char *end) {
  size_t n = 0;
  while (p + n < end && p[n] >= '0' && p[n] <= '9') n++;
  return n;
}

/* Length of the JSON number at p; 0: there is none. */
static size_t number_length(const char *p, const char *end) {
  const char *from = p;
  size_t n;
  if (p < end && *p == '-') p++;
  if (!(n = digits(p, end)) || (*p == '0' && n > 1)) return 0;
  p += n;
  if (p < end && *p == '.') {
    if (!(n = digits(p + 1, end))) return 0;
    p += 1 + n;
  }
  if (p < end && (*p == 'e' || *p == 'E')) {
    const char *exponent = p + 1;
    if (exponent < end && (*exponent == '+' || *exponent == '-')) exponent++;
    if (!(n = digits(exponent, end))) return 0;
    p = exponent + n;
  }
  return (size_t)(p - from);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || (unsigned char)c >= 0x80;
}

static int add_text(struct values_reader *r, enum value_kind kind, int parent, const char *p, size_t n) {
  int i = values_add(r->out, kind, parent);
  keep(r, p, n, &r->out->v[i].text, &r->out->v[i].n_text);
  return i;
}

/* true, false, null, a number. */
static int read_word(struct values_reader *r, int parent) {
  static const char *const words[][2] = {{"true", "true"}, {"false", "false"}, {"null", "null"},
                                         {"True", "true"}, {"False", "false"}, {"None", "null"}};
  const char *from = r->p;
  bool python = r->syntax == SYNTAX_PYTHON, negative = take(r, '-');
  if (negative && python) values_skip_blanks(r);
  const char *p = r->p;
  size_t n = number_length(p, r->end);
  if (n && *p != '-') {
    if (p + n < r->end && is_word(p[n])) return -1; /* 1_000, 1.e5 */
    r->p = p + n;
    if (!negative) return add_text(r, VALUE_WORD, parent, p, n);
    int i = add_text(r, VALUE_WORD, parent, "-", 1);
    buf_append(&r->out->text, p, n);
    r->out->v[i].n_text += (uint32_t)n;
    return i;
  }
  while (r->p < r->end && is_word(*r->p)) r->p++;
  struct str word = str_of(from, (size_t)(r->p - from));
  for (size_t i = 0; i < (python ? 6 : 3); i++)
    if (str_is(word, words[i][0])) return add_text(r, VALUE_WORD, parent, words[i][1], strlen(words[i][1]));
  return -1;
}

/* Gemma 4: whatever stands there up to , } or ]. */
static int read_bare(struct values_reader *r, int parent) {
  const char *from = r->p, *to;
  while (r->p < r->end && *r->p != ',' && *r->p != '}' && *r->p != ']') {
    if (*r->p == OUTPUT_QUOTE || *r->p == '{' || *r->p == '[') return -1;
    r->p++;
  }
  if (r->p == r->end) return -1;
  for (to = r->p; to > from && output_is_blank(to[-1]);) to--;
  struct str s = str_of(from, (size_t)(to - from));
  if (!s.n) return -1;
  bool word = str_is(s, "true") || str_is(s, "false") || str_is(s, "null") || number_length(from, to) == s.n;
  return add_text(r, word ? VALUE_WORD : VALUE_STRING, parent, s.p, s.n);
}

static bool read_quoted(struct values_reader *r, uint32_t *where, uint32_t *len) {
  const char *from = r->p + 1, *to = memchr(from, OUTPUT_QUOTE, (size_t)(r->end - from));
  if (!to) return false;
  keep(r, from, (size_t)(to - from), where, len);
  r->p = to + 1;
  return true;
}

static int read_string(struct values_reader *r, int parent) {
  uint32_t where = 0, len = 0;
  const char *from = r->p;
  size_t text_before = r->out->text.len;
  bool quoted = at(r, OUTPUT_QUOTE), good = quoted ? read_quoted(r, &where, &len) : values_read_string(r, &where, &len);
  if (r->syntax == SYNTAX_GEMMA4 && !quoted) { /* a quote may be a part of a bare string, too */
    if (good) values_skip_blanks(r);
    if (!good || (!at(r, ',') && !at(r, '}') && !at(r, ']'))) {
      r->p = from;
      r->out->text.len = text_before;
      return read_bare(r, parent);
    }
  }
  if (!good) return -1;
  int i = values_add(r->out, VALUE_STRING, parent);
  r->out->v[i].text = where;
  r->out->v[i].n_text = len;
  return i;
}

static bool read_key(struct values_reader *r, uint32_t *where, uint32_t *len) {
  const char *from = r->p, *to;
  if (r->p == r->end) return false;
  if (r->syntax == SYNTAX_GEMMA4 && *r->p == OUTPUT_QUOTE) return read_quoted(r, where, len);
  if (*r->p == '"' || (*r->p == '\'' && r->syntax == SYNTAX_PYTHON)) return values_read_string(r, where, len);
  if (r->syntax != SYNTAX_GEMMA4) return false;
  while (r->p < r->end && !memchr(":,{}[]", *r->p, 6) && *r->p != OUTPUT_QUOTE) r->p++;
  for (to = r->p; to > from && output_is_blank(to[-1]);) to--;
  keep(r, from, (size_t)(to - from), where, len);
  return to > from;
}

/* r->p after the opening bracket. */
static bool read_members(struct values_reader *r, int depth, int container, char close) {
  bool object = close == '}';
  do {
    uint32_t key = 0, n_key = 0;
    values_skip_blanks(r);
    if (at(r, close) && (r->out->v[container].n == 0 || r->syntax != SYNTAX_JSON)) break;
    if (object) {
      if (!read_key(r, &key, &n_key)) return false;
      values_skip_blanks(r);
      if (!take(r, ':')) return false;
    }
    int i = values_read(r, depth, container);
    if (i < 0) return false;
    r->out->v[i].key = key;
    r->out->v[i].n_key = n_key;
    values_skip_blanks(r);
  } while (take(r, ','));
  if (!at(r, close)) return false;
  r->p++;
  if (object) values_settle(r->out, container);
  return true;
}

int values_read(struct values_reader *r, int depth, int parent) {
  values_skip_blanks(r);
  if (depth > VALUES_DEPTH_MAX || r->p == r->end) return -1;
  char c = *r->p;
  if (c == '{' || c == '[') {
    int i = values_add(r->out, c == '{' ? VALUE_OBJECT : VALUE_ARRAY, parent);
    r->p++;
    return read_members(r, depth + 1, i, c == '{' ? '}' : ']') ? i : -1;
  }
  if (c == '"' || (c == '\'' && r->syntax == SYNTAX_PYTHON) || (c == OUTPUT_QUOTE && r->syntax == SYNTAX_GEMMA4))
    return read_string(r, parent);
  return r->syntax == SYNTAX_GEMMA4 ? read_bare(r, parent) : read_word(r, parent);
}
