/* regex.c — regular expressions to rules.
 *
 * What ECMA-262, Python's re and RE2 mean alike. Where they differ the narrower reading is taken, so that what is generated matches under each: \d, \w
 * and \s are ASCII, their negations leave out what any of them would call a digit, a letter, a blank; . is no line terminator of any.
 *
 * Anchors: every part is kept in four variants, by whether it needs to begin where the string begins and to end where it ends. In a sequence what
 * stands before ^ must be empty, and what stands behind $. So (^|_)x and the like come out right without tricks.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/grammar.h"

enum { NEST_MAX = 250, CODE_MAX = 0x10FFFF, RANGES_MAX = 1 << 19 };

struct part {
  int node[2][2];   /* [needs the begin][needs the end]; rules_never: no such variant. Empty matches that need both are in [1][1] */
  bool empty[2][2]; /* that variant can be empty */
};

struct run {
  uint32_t lo, hi;
  int category;
};

struct regex {
  struct grammar_rules *g;
  struct str text;
  size_t at;
  int nest;
  int n_ranges;     /* in all classes so far */
  struct run *runs; /* owned */
  int n_runs;
  struct err *e;
};

/* Ranges of code points being collected. */
struct ranges {
  struct rules_range *v;
  int n, cap;
};

static int fail(struct regex *x, size_t at, const char *what) {
  char found[48];
  size_t n = x->text.n - at;
  if (at >= x->text.n) return err_set(x->e, ERR_BAD_INPUT, "regex: at its end: %s", what);
  str_escape(str_of(x->text.p + at, MIN(n, 12)), found, sizeof found);
  return err_set(x->e, ERR_BAD_INPUT, "regex: at byte %zu: %s, found \"%s\"", at, what, found);
}

static int peek(const struct regex *x, size_t ahead) { return x->at + ahead < x->text.n ? (unsigned char)x->text.p[x->at + ahead] : -1; }
static bool starts(const struct regex *x, const char *with) { return str_starts(str_of(x->text.p + x->at, x->text.n - x->at), with); }

/* --- parts and their variants --------------------------------------------------------------------------------------------------------------- */

static struct part part_none(struct regex *x) {
  int never = rules_never(x->g);
  return (struct part){.node = {{never, never}, {never, never}}};
}
static struct part part_plain(struct regex *x, int node, bool empty) {
  struct part p = part_none(x);
  p.node[0][0] = node;
  p.empty[0][0] = empty;
  return p;
}
static bool part_is_plain(struct regex *x, const struct part *p) {
  int never = rules_never(x->g);
  return p->node[0][1] == never && p->node[1][0] == never && p->node[1][1] == never;
}

static void variant_add(struct regex *x, struct part *p, bool begin, bool end, int node, bool empty) {
  p->node[begin][end] = rules_alt(x->g, (int[]){p->node[begin][end], node}, 2);
  p->empty[begin][end] |= empty;
}

static struct part part_seq(struct regex *x, const struct part *a, const struct part *b) {
  struct part p = part_none(x);
  for (int i = 0; i < 16; i++) {
    bool a_begin = i & 1, a_end = i & 2, b_begin = i & 4, b_end = i & 8;
    int left = a->node[a_begin][a_end], right = b->node[b_begin][b_end], never = rules_never(x->g), empty = rules_empty(x->g);
    bool left_empty = a->empty[a_begin][a_end], right_empty = b->empty[b_begin][b_end];
    if (left == never || right == never) continue;
    if (!a_end && !b_begin) variant_add(x, &p, a_begin, b_end, rules_seq2(x->g, left, right), left_empty && right_empty);
    if (a_end && b_begin && left_empty && right_empty) variant_add(x, &p, true, true, empty, true);
    if (!a_end && b_begin && left_empty) variant_add(x, &p, true, b_end, right, right_empty);
    if (a_end && !b_begin && right_empty) variant_add(x, &p, a_begin, true, left, left_empty);
  }
  return p;
}

static struct part part_alt(struct regex *x, const struct part *a, const struct part *b) {
  struct part p = *a;
  for (int i = 0; i < 4; i++) variant_add(x, &p, i & 1, i & 2, b->node[i & 1][i >> 1], b->empty[i & 1][i >> 1]);
  return p;
}

/* --- classes ---------------------------------------------------------------------------------------------------------------------------------- */

static void ranges_add(struct ranges *r, uint32_t lo, uint32_t hi) {
  if (r->n == r->cap) r->v = xrealloc(r->v, (size_t)(r->cap = r->cap ? 2 * r->cap : 16) * sizeof *r->v);
  r->v[r->n++] = (struct rules_range){lo, hi};
}

static int range_order(const void *a, const void *b) {
  uint32_t x = ((const struct rules_range *)a)->lo, y = ((const struct rules_range *)b)->lo;
  return x < y ? -1 : x > y;
}

/* Add what is not in from. */
static void ranges_add_others(struct ranges *r, struct ranges *from) {
  uint32_t next = 0;
  if (from->n) qsort(from->v, (size_t)from->n, sizeof *from->v, range_order);
  for (int i = 0; i < from->n; i++) {
    if (from->v[i].lo > next) ranges_add(r, next, from->v[i].lo - 1);
    next = MAX(next, from->v[i].hi + 1);
  }
  if (next <= CODE_MAX) ranges_add(r, next, CODE_MAX);
}

/* All code points in runs of one general category: worked out when a pattern needs them first. */
static void runs_make(struct regex *x) {
  int cap = 0;
  for (uint32_t cp = 0; cp <= CODE_MAX; cp++) {
    int category = (int)utf8proc_category((utf8proc_int32_t)cp);
    if (x->n_runs && x->runs[x->n_runs - 1].category == category) {
      x->runs[x->n_runs - 1].hi = cp;
      continue;
    }
    if (x->n_runs == cap) x->runs = xrealloc(x->runs, (size_t)(cap = cap ? 2 * cap : 4096) * sizeof *x->runs);
    x->runs[x->n_runs++] = (struct run){cp, cp, category};
  }
}

/* Categories by the bits of utf8proc's numbers. */
static void ranges_add_categories(struct regex *x, struct ranges *r, uint32_t categories) {
  if (!x->n_runs) runs_make(x);
  int first = r->n;
  for (int i = 0; i < x->n_runs; i++) {
    const struct run *run = &x->runs[i];
    if (!(categories >> run->category & 1)) continue;
    if (r->n > first && r->v[r->n - 1].hi + 1 == run->lo) r->v[r->n - 1].hi = run->hi;
    else ranges_add(r, run->lo, run->hi);
  }
}

static const struct {
  const char *name;
  uint32_t bits;
} categories[] = {
#define BIT(c) (1u << UTF8PROC_CATEGORY_##c)
    {"Lu", BIT(LU)}, {"Ll", BIT(LL)}, {"Lt", BIT(LT)}, {"Lm", BIT(LM)}, {"Lo", BIT(LO)}, {"Mn", BIT(MN)}, {"Mc", BIT(MC)}, {"Me", BIT(ME)},
    {"Nd", BIT(ND)}, {"Nl", BIT(NL)}, {"No", BIT(NO)}, {"Pc", BIT(PC)}, {"Pd", BIT(PD)}, {"Ps", BIT(PS)}, {"Pe", BIT(PE)}, {"Pi", BIT(PI)},
    {"Pf", BIT(PF)}, {"Po", BIT(PO)}, {"Sm", BIT(SM)}, {"Sc", BIT(SC)}, {"Sk", BIT(SK)}, {"So", BIT(SO)}, {"Zs", BIT(ZS)}, {"Zl", BIT(ZL)},
    {"Zp", BIT(ZP)}, {"Cc", BIT(CC)}, {"Cf", BIT(CF)}, {"Cs", BIT(CS)}, {"Co", BIT(CO)}, {"Cn", BIT(CN)},
};

static const struct {
  const char *name, *category;
} category_names[] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
};

/* Categories of \p{name}: two letters, one for all that begin with it, or a long name; 0 = none. */
static uint32_t categories_named(struct str name) {
  uint32_t bits = 0;
  for (size_t i = 0; i < ARRAY_LEN(category_names); i++)
    if (str_is(name, category_names[i].name)) name = str_c(category_names[i].category);
  for (size_t i = 0; i < ARRAY_LEN(categories); i++)
    if (str_is(name, categories[i].name) || (name.n == 1 && name.p[0] == categories[i].name[0])) bits |= categories[i].bits;
  return bits;
}

enum { LETTERS = BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO), NUMBERS = BIT(ND) | BIT(NL) | BIT(NO) };

/* Digits, letters, blanks: as all readers have them, or as any of them has them. */
static void ranges_add_class(struct regex *x, struct ranges *r, char class, bool any_reader) {
  static const struct rules_range blanks[] = {{0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                              {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                              {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  if (class == 's' && any_reader) {
    for (size_t i = 0; i < ARRAY_LEN(blanks); i++) ranges_add(r, blanks[i].lo, blanks[i].hi);
  } else if (class == 's') {
    ranges_add(r, 0x09, 0x0D);
    ranges_add(r, ' ', ' ');
  } else {
    ranges_add(r, '0', '9');
    if (class == 'w') {
      ranges_add(r, 'a', 'z');
      ranges_add(r, 'A', 'Z');
      ranges_add(r, '_', '_');
    }
    if (any_reader) ranges_add_categories(x, r, class == 'd' ? BIT(ND) : LETTERS | NUMBERS);
  }
}

/* x->at is behind the backslash, at one of dDwWsSpP. widest: the set will be taken away. */
static int class_escape(struct regex *x, struct ranges *r, bool widest) {
  size_t from = x->at - 1;
  char c = x->text.p[x->at++], lower = (char)(c | 0x20);
  bool negated = c != lower;
  struct ranges inner = {0}, *to = negated ? &inner : r;
  if (lower != 'p') {
    ranges_add_class(x, to, lower, widest != negated);
  } else {
    const char *open = x->text.p + x->at, *close = peek(x, 0) == '{' ? memchr(open, '}', x->text.n - x->at) : NULL;
    struct str name = close ? str_of(open + 1, (size_t)(close - open) - 1) : str_of("", 0);
    if (str_starts(name, "gc=")) name = str_of(name.p + 3, name.n - 3);
    if (str_starts(name, "General_Category=")) name = str_of(name.p + 17, name.n - 17);
    uint32_t bits = categories_named(name);
    if (!bits) return fail(x, from, "expected a general category like \\p{L} or \\p{Lu} (other properties are not supported)");
    ranges_add_categories(x, to, bits);
    x->at += (size_t)(close - open) + 1;
  }
  if (negated) ranges_add_others(r, &inner);
  free(inner.v);
  if ((x->n_ranges += r->n) > RANGES_MAX) return fail(x, from, "classes too large");
  return 0;
}

static bool is_class_escape(int c) { return c > 0 && strchr("dDwWsSpP", c); }

static int hex(struct regex *x, size_t at, size_t n, uint32_t *out) {
  uint32_t value = 0;
  for (size_t i = 0; i < n; i++) {
    int digit = at + i < x->text.n ? str_hex_digit(x->text.p[at + i]) : -1;
    if (digit < 0) return -1;
    value = value << 4 | (uint32_t)digit;
  }
  *out = value;
  return 0;
}

/* \uXXXX (two of them for a pair), \u{X...}, \xXX; x->at is behind the letter. */
static int hex_escape(struct regex *x, char letter, uint32_t *cp) {
  size_t from = x->at - 2;
  uint32_t low;
  if (letter == 'u' && peek(x, 0) == '{') {
    size_t n = 0;
    while (n < 8 && peek(x, 1 + n) >= 0 && str_hex_digit((char)peek(x, 1 + n)) >= 0) n++;
    if (!n || n > 6 || peek(x, 1 + n) != '}' || hex(x, x->at + 1, n, cp) || *cp > CODE_MAX)
      return fail(x, from, "expected \\u{...} with a code point");
    x->at += n + 2;
  } else {
    size_t n = letter == 'u' ? 4 : 2;
    if (hex(x, x->at, n, cp))
      return fail(x, from, letter == 'u' ? "expected four hexadecimal digits after \\u" : "expected two hexadecimal digits after \\x");
    x->at += n;
    if (*cp >= 0xD800 && *cp < 0xDC00 && starts(x, "\\u") && !hex(x, x->at + 2, 4, &low) && low >= 0xDC00 && low < 0xE000) {
      *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
      x->at += 6;
    }
  }
  if (*cp >= 0xD800 && *cp <= 0xDFFF) return fail(x, from, "expected a character, a lone surrogate is none");
  return 0;
}

/* One character that is written with a backslash; x->at is behind it. */
static int char_escape(struct regex *x, bool in_class, uint32_t *cp) {
  static const char letters[] = "tnrfv", values[] = "\t\n\r\f\v";
  size_t from = x->at - 1;
  int c = peek(x, 0);
  if (c < 0) return fail(x, from, "a backslash at the end");
  x->at++;
  const char *known = strchr(letters, c);
  if (known) {
    *cp = (unsigned char)values[known - letters];
    return 0;
  }
  if (c == 'u' || c == 'x') return hex_escape(x, (char)c, cp);
  if (c == '0' && !(peek(x, 0) >= '0' && peek(x, 0) <= '9')) {
    *cp = 0;
    return 0;
  }
  if (c == 'b' && in_class) {
    *cp = '\b';
    return 0;
  }
  if (c == 'b' || c == 'B') return fail(x, from, "word borders are not supported");
  if (c == 'k' || (c >= '1' && c <= '9')) return fail(x, from, "back references are not supported");
  if (c == '0') return fail(x, from, "octal escapes are not supported");
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') return fail(x, from, "this escape is not supported");
  x->at--;
  x->at += (size_t)utf8_step(x->text.p + x->at, x->text.n - x->at, cp, NULL);
  return 0;
}

static int class_char(struct regex *x, uint32_t *cp) {
  if (peek(x, 0) == '\\') {
    x->at++;
    return char_escape(x, true, cp);
  }
  x->at += (size_t)utf8_step(x->text.p + x->at, x->text.n - x->at, cp, NULL);
  return 0;
}

static int class_items(struct regex *x, size_t from, bool negated, struct ranges *r) {
  if (peek(x, 0) == ']') return fail(x, from, "an empty class (a ] in a class is written \\])");
  while (peek(x, 0) != ']') {
    uint32_t lo, hi;
    if (peek(x, 0) < 0) return fail(x, from, "a class without ]");
    if (starts(x, "[:")) return fail(x, x->at, "named classes are not supported");
    size_t item = x->at;
    if (peek(x, 0) == '\\' && is_class_escape(peek(x, 1))) {
      x->at++;
      if (class_escape(x, r, negated)) return -1;
      if (peek(x, 0) == '-' && peek(x, 1) != ']') return fail(x, item, "a range cannot begin with a class");
      continue;
    }
    if (class_char(x, &lo)) return -1;
    hi = lo;
    if (peek(x, 0) == '-' && peek(x, 1) >= 0 && peek(x, 1) != ']') {
      x->at++;
      if (peek(x, 0) == '\\' && is_class_escape(peek(x, 1))) return fail(x, item, "a range cannot end with a class");
      if (class_char(x, &hi)) return -1;
      if (hi < lo) return fail(x, item, "a range that ends before it begins");
    }
    ranges_add(r, lo, hi);
  }
  x->at++;
  return 0;
}

static int parse_class(struct regex *x, struct part *out) {
  size_t from = x->at++;
  bool negated = peek(x, 0) == '^';
  struct ranges r = {0};
  x->at += negated;
  int result = class_items(x, from, negated, &r);
  if (!result) *out = part_plain(x, rules_class(x->g, r.v, r.n, negated), false);
  free(r.v);
  return result;
}

/* --- atoms, repetitions, alternatives -------------------------------------------------------------------------------------------------------- */

static int parse_alternatives(struct regex *x, struct part *out);

static int parse_group(struct regex *x, struct part *out) {
  static const struct {
    const char *begin, *why;
  } refused[] = {{"(?=", "look-ahead is not supported"},         {"(?!", "look-ahead is not supported"},
                 {"(?<=", "look-behind is not supported"},       {"(?<!", "look-behind is not supported"},
                 {"(?>", "atomic groups are not supported"},     {"(?P=", "back references are not supported"},
                 {"(?(", "conditional groups are not supported"}};
  size_t from = x->at;
  for (size_t i = 0; i < ARRAY_LEN(refused); i++)
    if (starts(x, refused[i].begin)) return fail(x, from, refused[i].why);
  if (starts(x, "(?:")) {
    x->at += 3;
  } else if (starts(x, "(?<") || starts(x, "(?P<")) {
    const char *close = memchr(x->text.p + x->at, '>', x->text.n - x->at);
    if (!close) return fail(x, from, "a group's name without >");
    x->at = (size_t)(close - x->text.p) + 1;
  } else if (starts(x, "(?")) {
    return fail(x, from, "flags and other kinds of groups are not supported");
  } else {
    x->at++;
  }
  if (++x->nest > NEST_MAX) return fail(x, from, "groups nested too deeply");
  if (parse_alternatives(x, out)) return -1;
  x->nest--;
  if (peek(x, 0) != ')') return fail(x, from, "a group without )");
  x->at++;
  return 0;
}

static int parse_atom(struct regex *x, struct part *out) {
  static const struct rules_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  int c = peek(x, 0);
  uint32_t cp;
  char utf8[4];
  if (c == '(') return parse_group(x, out);
  if (c == '[') return parse_class(x, out);
  if (c == '*' || c == '+' || c == '?') return fail(x, x->at, "nothing to repeat");
  if (c == '^' || c == '$') {
    *out = part_none(x);
    out->node[c == '^'][c == '$'] = rules_empty(x->g);
    out->empty[c == '^'][c == '$'] = true;
    x->at++;
    return 0;
  }
  if (c == '.') {
    *out = part_plain(x, rules_class(x->g, line_ends, ARRAY_LEN(line_ends), true), false);
    x->at++;
    return 0;
  }
  if (c == '\\' && is_class_escape(peek(x, 1))) {
    struct ranges r = {0};
    x->at++;
    int result = class_escape(x, &r, false);
    if (!result) *out = part_plain(x, rules_class(x->g, r.v, r.n, false), false);
    free(r.v);
    return result;
  }
  if (c == '\\') {
    x->at++;
    if (char_escape(x, false, &cp)) return -1;
  } else {
    x->at += (size_t)utf8_step(x->text.p + x->at, x->text.n - x->at, &cp, NULL);
  }
  *out = part_plain(x, rules_text_n(x->g, utf8, (size_t)utf8_put(cp, utf8)), false);
  return 0;
}

/* {m}, {m,}, {m,n} at `at`: its length, 0 = it is none. */
static size_t braces(const struct regex *x, size_t at, int64_t *min, int64_t *max) {
  size_t i = at + 1, digits = 0;
  int64_t *to = min;
  *min = *max = 0;
  for (; i < x->text.n; i++) {
    char c = x->text.p[i];
    if (c >= '0' && c <= '9') {
      *to = MIN(*to * 10 + (c - '0'), INT32_MAX);
      digits++;
    } else if (c == ',' && to == min && digits) {
      to = max;
      digits = 0;
    } else {
      break;
    }
  }
  if (i >= x->text.n || x->text.p[i] != '}' || (to == min && !digits)) return 0;
  if (to == min) *max = *min;
  else if (!digits) *max = -1;
  return i + 1 - at;
}

/* *, +, ?, {m,n} behind an atom: how often it may come. */
static int parse_quantifier(struct regex *x, struct part *p) {
  int64_t min = 1, max = 1;
  size_t from = x->at, n = 1;
  int c = peek(x, 0);
  if (c == '*' || c == '+') {
    min = c == '+';
    max = -1;
  } else if (c == '?') {
    min = 0;
  } else if (c == '{') {
    if (starts(x, "{,")) return fail(x, from, "a repetition without its first number (readers differ)");
    n = braces(x, from, &min, &max);
    if (!n) return 0; /* a brace as it stands */
  } else {
    return 0;
  }
  x->at += n;
  if (peek(x, 0) == '?') x->at++; /* lazy: the same strings */
  c = peek(x, 0);
  int64_t a, b;
  if (c == '*' || c == '+' || c == '?' || (c == '{' && braces(x, x->at, &a, &b))) return fail(x, x->at, "a repetition of a repetition");
  if (min > RULES_REPEAT_MAX || max > RULES_REPEAT_MAX || (max >= 0 && max < min))
    return fail(x, from, "expected numbers of a repetition up to 65536, the first one not the greater");
  if (part_is_plain(x, p)) {
    *p = part_plain(x, rules_repeat(x->g, p->node[0][0], (int)min, (int)max), p->empty[0][0] || min == 0);
    return 0;
  }
  if (min == 0 && max == 1) {
    variant_add(x, p, false, false, rules_empty(x->g), true);
    return 0;
  }
  if (min == 1 && max == 1) return 0;
  return fail(x, from, "an anchor inside a repetition is not supported");
}

/* Atoms one after the other; those without anchors are gathered and joined at once. */
static int parse_sequence(struct regex *x, struct part *out) {
  struct part whole = part_plain(x, rules_empty(x->g), true);
  int *plain = NULL, n_plain = 0, cap = 0, result = 0;
  bool empty = true;
  for (;;) {
    int c = peek(x, 0);
    bool end = c < 0 || c == '|' || c == ')';
    struct part p = part_none(x);
    if (!end && (parse_atom(x, &p) || parse_quantifier(x, &p))) {
      result = -1;
      break;
    }
    if (!end && part_is_plain(x, &p)) {
      if (n_plain == cap) plain = xrealloc(plain, (size_t)(cap = cap ? 2 * cap : 16) * sizeof *plain);
      plain[n_plain++] = p.node[0][0];
      empty &= p.empty[0][0];
      continue;
    }
    if (n_plain) {
      struct part gathered = part_plain(x, rules_seq(x->g, plain, n_plain), empty);
      whole = part_seq(x, &whole, &gathered);
    }
    n_plain = 0;
    empty = true;
    if (end) break;
    whole = part_seq(x, &whole, &p);
  }
  free(plain);
  *out = whole;
  return result;
}

static int parse_alternatives(struct regex *x, struct part *out) {
  int *plain = NULL, n_plain = 0, cap = 0, result = 0;
  struct part whole = part_none(x);
  bool empty = false;
  for (;;) {
    struct part p;
    result = parse_sequence(x, &p);
    if (result) break;
    if (part_is_plain(x, &p)) {
      if (n_plain == cap) plain = xrealloc(plain, (size_t)(cap = cap ? 2 * cap : 16) * sizeof *plain);
      plain[n_plain++] = p.node[0][0];
      empty |= p.empty[0][0];
    } else {
      whole = part_alt(x, &whole, &p);
    }
    if (peek(x, 0) != '|') break;
    x->at++;
  }
  if (!result && n_plain) {
    struct part gathered = part_plain(x, rules_alt(x->g, plain, n_plain), empty);
    whole = part_alt(x, &whole, &gathered);
  }
  free(plain);
  *out = whole;
  return result;
}

static int parse(struct grammar_rules *g, struct str text, struct part *p, struct err *e) {
  struct regex x = {.g = g, .text = text, .e = e};
  if (!utf8_valid(text.p, text.n)) return err_set(e, ERR_BAD_INPUT, "regex: expected UTF-8");
  int result = parse_alternatives(&x, p);
  if (!result && x.at < text.n) result = fail(&x, x.at, "a ) without (");
  free(x.runs);
  return result ? result : rules_error(g, e);
}

int regex_parse(struct grammar_rules *g, struct str text, int *node, struct err *e) {
  struct part p;
  if (parse(g, text, &p, e)) return -1;
  *node = rules_alt(g, (int[]){p.node[0][0], p.node[0][1], p.node[1][0], p.node[1][1]}, 4);
  return rules_error(g, e);
}

int regex_search(struct grammar_rules *g, struct str text, int *node, struct err *e) {
  struct part p;
  if (parse(g, text, &p, e)) return -1;
  int any = rules_repeat(g, rules_any(g), 0, -1);
  int variants[4] = {rules_seq(g, (int[]){any, p.node[0][0], any}, 3), rules_seq2(g, any, p.node[0][1]), rules_seq2(g, p.node[1][0], any),
                     p.node[1][1]};
  *node = rules_alt(g, variants, 4);
  return rules_error(g, e);
}
