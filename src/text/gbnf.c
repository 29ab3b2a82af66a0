/* gbnf.c — grammars written as text: llama.cpp's GBNF and the EBNF with ::= that other servers take.
 *
 *   grammar  = { name "::=" choice }          a rule ends where the next one begins; one is called root
 *   choice   = sequence { "|" sequence }
 *   sequence = { item [ "*" | "+" | "?" | "{m}" | "{m,}" | "{m,n}" | "{,n}" ] }
 *   item     = "text" | 'text' | [class] | [^class] | . | (choice) | name | <token> | <[id]> | !<token> | !<[id]>
 * # begins a comment. Escapes in texts and classes: \n \r \t \\ \" \' \[ \] \^ \- \xXX \uXXXX \UXXXXXXXX.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar.h"

enum { NEST_MAX = 250, RULES_HASH = 4096 };

struct rule {
  struct str name;
  int node;
  bool defined;
  int32_t next; /* of the same hash */
};

struct gbnf {
  struct grammar_rules *g;
  const struct tokenizer *t;
  struct str text;
  size_t at;
  int nest;
  struct err *e;
  struct rule *rules;
  int32_t n_rules, cap_rules;
  int32_t heads[RULES_HASH]; /* first rule of each hash, or -1 */
};

struct nodes {
  int *v, n, cap;
};

static void nodes_push(struct nodes *list, int node) {
  if (list->n == list->cap) list->v = xrealloc(list->v, (size_t)(list->cap = list->cap ? 2 * list->cap : 16) * sizeof *list->v);
  list->v[list->n++] = node;
}

/* --- characters -------------------------------------------------------------------------------------------------------------------------------- */

static int fail(struct gbnf *x, size_t at, const char *what) {
  char found[48];
  size_t line = 1, begin = 0;
  for (size_t i = 0; i < at && i < x->text.n; i++)
    if (x->text.p[i] == '\n') {
      line++;
      begin = i + 1;
    }
  if (at >= x->text.n) return err_set(x->e, ERR_BAD_INPUT, "grammar: at its end (line %zu): %s", line, what);
  str_escape(str_of(x->text.p + at, MIN(x->text.n - at, 12)), found, sizeof found);
  return err_set(x->e, ERR_BAD_INPUT, "grammar: line %zu, byte %zu: %s, found \"%s\"", line, at - begin + 1, what, found);
}

static int peek(const struct gbnf *x, size_t ahead) { return x->at + ahead < x->text.n ? (unsigned char)x->text.p[x->at + ahead] : -1; }

static bool is_name_char(int c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Blanks, line ends, comments. */
static size_t skip_from(const struct gbnf *x, size_t at) {
  while (at < x->text.n) {
    char c = x->text.p[at];
    if (c == '#') {
      while (at < x->text.n && x->text.p[at] != '\n') at++;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      at++;
    } else {
      break;
    }
  }
  return at;
}
static void skip(struct gbnf *x) { x->at = skip_from(x, x->at); }

static size_t name_length(const struct gbnf *x, size_t at) {
  size_t n = 0;
  while (at + n < x->text.n && is_name_char((unsigned char)x->text.p[at + n])) n++;
  return n;
}

/* Does a rule's definition begin here? */
static bool at_definition(const struct gbnf *x) {
  size_t n = name_length(x, x->at), at = skip_from(x, x->at + n);
  return n && str_starts(str_of(x->text.p + at, x->text.n - at), "::=");
}

static int hex(const struct gbnf *x, size_t at, size_t n, uint32_t *out) {
  uint32_t value = 0;
  for (size_t i = 0; i < n; i++) {
    int digit = at + i < x->text.n ? str_hex_digit(x->text.p[at + i]) : -1;
    if (digit < 0) return -1;
    value = value << 4 | (uint32_t)digit;
  }
  *out = value;
  return 0;
}

static int escape(struct gbnf *x, uint32_t *cp) {
  static const char known[] = "nrtfv0\\\"'[]^-/bae", values[] = "\n\r\t\f\v\0\\\"'[]^-/\b\a\033";
  size_t from = x->at++;
  int c = peek(x, 0);
  size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  uint32_t low;
  if (!digits) {
    const char *k = c > 0 ? strchr(known, c) : NULL;
    if (!k) return fail(x, from, "expected an escape like \\n, \\\", \\x41 or \\u0041");
    *cp = (unsigned char)values[k - known];
    x->at++;
    return 0;
  }
  if (hex(x, x->at + 1, digits, cp)) return fail(x, from, "expected two, four or eight hexadecimal digits after \\x, \\u, \\U");
  x->at += 1 + digits;
  if (*cp >= 0xD800 && *cp < 0xDC00 && peek(x, 0) == '\\' && peek(x, 1) == 'u' && !hex(x, x->at + 2, 4, &low) && low >= 0xDC00 &&
      low < 0xE000) {
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    x->at += 6;
  }
  if (*cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF)) return fail(x, from, "expected a character");
  return 0;
}

static int character(struct gbnf *x, uint32_t *cp) {
  if (peek(x, 0) == '\\') return escape(x, cp);
  x->at += (size_t)utf8_step(x->text.p + x->at, x->text.n - x->at, cp, NULL);
  return 0;
}

/* --- items ---------------------------------------------------------------------------------------------------------------------------------------- */

static int parse_text(struct gbnf *x, int *node) {
  size_t from = x->at;
  int quote = peek(x, 0), result = 0;
  struct buf text;
  buf_init(&text, 0);
  x->at++;
  while (!result && peek(x, 0) != quote) {
    uint32_t cp;
    char utf8[4];
    if (peek(x, 0) < 0 || peek(x, 0) == '\n') result = fail(x, from, "a text without its closing quote");
    else result = character(x, &cp);
    if (!result) buf_append(&text, utf8, (size_t)utf8_put(cp, utf8));
  }
  if (!result) {
    x->at++;
    *node = rules_text_n(x->g, buf_cstr(&text), text.len);
  }
  buf_free(&text);
  return result;
}

static int parse_class(struct gbnf *x, int *node) {
  size_t from = x->at++;
  struct rules_range *ranges = NULL;
  int n = 0, cap = 0, result = 0;
  bool negated = peek(x, 0) == '^';
  x->at += negated;
  while (!result && peek(x, 0) != ']') {
    uint32_t lo, hi;
    size_t item = x->at;
    if (peek(x, 0) < 0) {
      result = fail(x, from, "a class without ]");
      break;
    }
    result = character(x, &lo);
    hi = lo;
    if (!result && peek(x, 0) == '-' && peek(x, 1) >= 0 && peek(x, 1) != ']') {
      x->at++;
      result = character(x, &hi);
    }
    if (!result && hi < lo) result = fail(x, item, "a range that ends before it begins");
    if (n == cap) ranges = xrealloc(ranges, (size_t)(cap = cap ? 2 * cap : 16) * sizeof *ranges);
    ranges[n++] = (struct rules_range){lo, hi};
  }
  if (!result) {
    x->at++;
    *node = rules_class(x->g, ranges, n, negated);
  }
  free(ranges);
  return result;
}

/* <[id]> or <spelling>, whose angle brackets belong to the spelling. */
static int parse_token(struct gbnf *x, bool negated, int *node) {
  size_t from = x->at;
  const char *open = x->text.p + x->at, *close = memchr(open, '>', x->text.n - x->at);
  if (!close) return fail(x, from, "a token without >");
  struct str spelling = str_of(open, (size_t)(close - open) + 1);
  int64_t id = -1;
  char name[256];
  if (spelling.n > 4 && spelling.p[1] == '[') {
    if (spelling.p[spelling.n - 2] != ']' || !str_to_i64(str_of(spelling.p + 2, spelling.n - 4), 0, tok_vocab(x->t) - 1, &id))
      return fail(x, from, "expected the id of a token like <[106]>");
  } else if (spelling.n < sizeof name) {
    memcpy(name, spelling.p, spelling.n);
    name[spelling.n] = 0;
    id = strlen(name) == spelling.n ? tok_find(x->t, name) : -1;
  }
  if (id < 0) return fail(x, from, "no token of the vocabulary is spelled like that");
  x->at += spelling.n;
  *node = negated ? rules_other_tokens(x->g, (int32_t[]){(int32_t)id}, 1) : rules_token(x->g, (int32_t)id);
  return 0;
}

static struct rule *rule_named(struct gbnf *x, struct str name) {
  uint64_t hash = hash_bytes(name.p, name.n, 0) % RULES_HASH;
  char spelled[200];
  for (int32_t i = x->heads[hash]; i >= 0; i = x->rules[i].next)
    if (str_eq(x->rules[i].name, name)) return &x->rules[i];
  if (x->n_rules == x->cap_rules)
    x->rules = xrealloc(x->rules, (size_t)(x->cap_rules = x->cap_rules ? 2 * x->cap_rules : 64) * sizeof *x->rules);
  size_t n = MIN(name.n, sizeof spelled - 1);
  memcpy(spelled, name.p, n);
  spelled[n] = 0;
  x->rules[x->n_rules] = (struct rule){.name = name, .node = rules_declare(x->g, spelled), .next = x->heads[hash]};
  x->heads[hash] = x->n_rules;
  return &x->rules[x->n_rules++];
}

static int parse_choice(struct gbnf *x, int *node);

static int parse_item(struct gbnf *x, int *node) {
  size_t from = x->at;
  int c = peek(x, 0);
  if (c == '"' || c == '\'') return parse_text(x, node);
  if (c == '[') return parse_class(x, node);
  if (c == '<') return parse_token(x, false, node);
  if (c == '!' && peek(x, 1) == '<') {
    x->at++;
    return parse_token(x, true, node);
  }
  if (c == '.') {
    x->at++;
    *node = rules_any(x->g);
    return 0;
  }
  if (c == '(') {
    if (peek(x, 1) == '=') return fail(x, from, "look-ahead is not supported");
    if (++x->nest > NEST_MAX) return fail(x, from, "groups nested too deeply");
    x->at++;
    if (parse_choice(x, node)) return -1;
    x->nest--;
    if (peek(x, 0) != ')') return fail(x, peek(x, 0) < 0 ? from : x->at, "expected ) after a group");
    x->at++;
    return 0;
  }
  size_t n = name_length(x, x->at);
  if (!n) return fail(x, from, "expected a text, a class, a group or the name of a rule");
  *node = rule_named(x, str_of(x->text.p + x->at, n))->node;
  x->at += n;
  return 0;
}

static int64_t number(struct gbnf *x) {
  int64_t value = 0;
  if (peek(x, 0) < '0' || peek(x, 0) > '9') return -1;
  for (; peek(x, 0) >= '0' && peek(x, 0) <= '9'; x->at++) value = MIN(value * 10 + (peek(x, 0) - '0'), INT32_MAX);
  return value;
}

static int parse_braces(struct gbnf *x, int64_t *min, int64_t *max) {
  size_t from = x->at++;
  skip(x);
  *min = number(x);
  skip(x);
  if (peek(x, 0) == ',') {
    x->at++;
    skip(x);
    *max = number(x);
    if (*min < 0 && *max < 0) return fail(x, from, "expected a repetition like {2}, {2,} or {2,5}");
    *min = MAX(*min, 0);
  } else {
    *max = *min;
  }
  skip(x);
  if (*min < 0 || peek(x, 0) != '}') return fail(x, from, "expected a repetition like {2}, {2,} or {2,5}");
  if (*min > RULES_REPEAT_MAX || *max > RULES_REPEAT_MAX || (*max >= 0 && *max < *min))
    return fail(x, from, "expected numbers of a repetition up to 65536, the first one not the greater");
  x->at++;
  return 0;
}

static int parse_quantifiers(struct gbnf *x, int *node) {
  for (;;) {
    skip(x);
    int c = peek(x, 0);
    int64_t min = c == '+', max = c == '?' ? 1 : -1;
    if (c == '{') {
      if (parse_braces(x, &min, &max)) return -1;
    } else if (c == '*' || c == '+' || c == '?') {
      x->at++;
    } else {
      return 0;
    }
    *node = rules_repeat(x->g, *node, (int)min, (int)max);
  }
}

static int parse_sequence(struct gbnf *x, int *node) {
  struct nodes items = {0};
  int result = 0;
  for (;;) {
    int item, c;
    skip(x);
    c = peek(x, 0);
    if (c < 0 || c == '|' || c == ')' || at_definition(x)) break;
    if ((result = parse_item(x, &item)) || (result = parse_quantifiers(x, &item))) break;
    nodes_push(&items, item);
  }
  if (!result) *node = rules_seq(x->g, items.v, items.n);
  free(items.v);
  return result;
}

static int parse_choice(struct gbnf *x, int *node) {
  struct nodes choices = {0};
  int result = 0;
  for (;;) {
    int sequence;
    if ((result = parse_sequence(x, &sequence))) break;
    nodes_push(&choices, sequence);
    if (peek(x, 0) != '|') break;
    x->at++;
  }
  if (!result) *node = rules_alt(x->g, choices.v, choices.n);
  free(choices.v);
  return result;
}

/* --- the whole -------------------------------------------------------------------------------------------------------------------------------------- */

static int parse_rule(struct gbnf *x) {
  size_t from = x->at;
  if (!at_definition(x)) return fail(x, from, "expected a rule: name ::= ...");
  struct str name = str_of(x->text.p + x->at, name_length(x, x->at));
  int node;
  x->at += name.n;
  skip(x);
  x->at += 3;
  if (parse_choice(x, &node)) return -1;
  struct rule *r = rule_named(x, name);
  if (r->defined) return fail(x, from, "a rule that is defined already");
  r->defined = true;
  rules_define(x->g, r->node, node);
  if (peek(x, 0) == ')') return fail(x, x->at, "a ) without (");
  return 0;
}

static int parse_all(struct gbnf *x) {
  skip(x);
  if (peek(x, 0) < 0) return err_set(x->e, ERR_BAD_INPUT, "grammar: expected rules, found nothing");
  while (peek(x, 0) >= 0) {
    if (parse_rule(x)) return -1;
    skip(x);
  }
  struct rule *root = rule_named(x, str_c("root"));
  if (!root->defined) return err_set(x->e, ERR_BAD_INPUT, "grammar: expected a rule called root");
  rules_root(x->g, root->node);
  return rules_error(x->g, x->e);
}

int gbnf_parse(struct grammar_rules *g, const struct tokenizer *t, struct str text, struct err *e) {
  struct gbnf *x = xcalloc(1, sizeof *x);
  *x = (struct gbnf){.g = g, .t = t, .text = text, .e = e};
  memset(x->heads, 0xff, sizeof x->heads);
  int result = utf8_valid(text.p, text.n) ? parse_all(x) : err_set(e, ERR_BAD_INPUT, "grammar: expected UTF-8");
  free(x->rules);
  free(x);
  return result;
}
