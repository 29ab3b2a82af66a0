/* schema_emit.c — shapes → rules of a grammar: how values are written.
 *
 * A recursive shape is written once per level that is left (`left`): a value may contain itself so many times and no more, which keeps what is generated within
 * what readers of JSON take, and a model that opens brackets for ever comes to an end. Parts that would need more levels than are left are not offered.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat_impl.h" /* strings as JSON writes them */
#include "text/schema_impl.h"

/* ---- characters ----------------------------------------------------------------------------------------------------------------------- */

static const char short_escapes[32] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};

struct ranges {
  struct rules_range *v; /* owned */
  int n;
};
static void add_range(struct ranges *r, uint32_t lo, uint32_t hi) {
  if (lo <= hi) r->v[r->n++] = (struct rules_range){lo, hi};
}
static int range_class(struct grammar_rules *g, const struct ranges *r) {
  return r->n ? rules_class(g, r->v, r->n, false) : rules_never(g);
}

/* One character inside a JSON string: as it is, or \c, or \u00XX. */
static int json_class(void *ctx, const struct rules_range *ranges, int n) {
  struct grammar_rules *g = ctx;
  struct rules_range room[2][40];
  struct ranges raw = {xcalloc(4 * (size_t)n + 1, sizeof(struct rules_range)), 0}, letters = {room[0], 0},
                low[2] = {{room[1], 0}, {room[1] + 20, 0}};
  for (int i = 0; i < n; i++) {
    uint32_t lo = ranges[i].lo, hi = ranges[i].hi;
    for (uint32_t c = lo; c <= hi && c < 0x20; c++) {
      if (short_escapes[c]) add_range(&letters, (uint32_t)short_escapes[c], (uint32_t)short_escapes[c]);
      else add_range(&low[c >> 4], (uint32_t) "0123456789abcdef"[c & 15], (uint32_t) "0123456789abcdef"[c & 15]);
    }
    if (lo <= '"' && hi >= '"') add_range(&letters, '"', '"');
    if (lo <= '\\' && hi >= '\\') add_range(&letters, '\\', '\\');
    add_range(&raw, MAX(lo, 0x20u), MIN(hi, (uint32_t)'"' - 1));
    add_range(&raw, MAX(lo, (uint32_t)'"' + 1), MIN(hi, (uint32_t)'\\' - 1));
    add_range(&raw, MAX(lo, (uint32_t)'\\' + 1), hi);
  }
  int u[2] = {rules_seq2(g, rules_text(g, "0"), range_class(g, &low[0])), rules_seq2(g, rules_text(g, "1"), range_class(g, &low[1]))};
  int after[2] = {range_class(g, &letters), rules_seq2(g, rules_text(g, "u00"), rules_alt(g, u, 2))};
  int ways[2] = {range_class(g, &raw), rules_seq2(g, rules_text(g, "\\"), rules_alt(g, after, 2))};
  free(raw.v);
  return rules_alt(g, ways, 2);
}

static int raw_class(void *ctx, const struct rules_range *ranges, int n) { return rules_class(ctx, ranges, n, false); }
static lang_class_fn class_of(const struct schema_builder *b) { return b->style == SCHEMA_JSON ? json_class : raw_class; }

static int quote_node(struct schema_builder *b) {
  if (b->style == SCHEMA_JSON) return rules_text(b->g, "\"");
  return b->quote >= 0 ? rules_token(b->g, b->quote) : rules_text(b->g, "<|\"|>");
}
static int quoted(struct schema_builder *b, int node) { return rules_seq(b->g, (int[]){quote_node(b), node, quote_node(b)}, 3); }
static int comma(struct schema_builder *b) { return rules_text(b->g, b->style == SCHEMA_JSON ? ", " : ","); }

static int as_rule(struct schema_builder *b, const char *name, int node) {
  int rule = rules_declare(b->g, name);
  rules_define(b->g, rule, node);
  return rule;
}

/* ---- texts that are given --------------------------------------------------------------------------------------------------------------- */

static void put_json(struct buf *out, const json_t *v) {
  bool first = true;
  const char *key;
  json_t *member;
  switch (json_kind(v)) {
  case KIND_STRING:
    buf_putc(out, '"');
    chat_put_json_inside(out, json_string_value(v), json_string_length(v));
    buf_putc(out, '"');
    return;
  case KIND_ARRAY:
    buf_putc(out, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
      buf_puts(out, i ? ", " : "");
      put_json(out, json_array_get(v, i));
    }
    buf_putc(out, ']');
    return;
  case KIND_OBJECT:
    buf_putc(out, '{');
    json_object_foreach((json_t *)v, key, member) {
      buf_puts(out, first ? "\"" : ", \"");
      chat_put_json_inside(out, key, strlen(key));
      buf_puts(out, "\": ");
      put_json(out, member);
      first = false;
    }
    buf_putc(out, '}');
    return;
  default: json_put(out, v);
  }
}

static int json_text(struct schema_builder *b, const json_t *v) {
  struct buf text;
  buf_init(&text, 0);
  put_json(&text, v);
  int node = rules_text_n(b->g, buf_cstr(&text), text.len);
  buf_free(&text);
  return node;
}

/* May a name stand without quotes in a call, and be read back as it is? */
static bool is_bare(struct str key) {
  static const char blanks[] = " \t\r\n";
  if (!key.n || key.p[0] == '"' || strchr(blanks, key.p[0]) || strchr(blanks, key.p[key.n - 1])) return false;
  for (size_t i = 0; i < key.n; i++)
    if (strchr(":,{}[]", key.p[i])) return false;
  return true;
}

static int key_node(struct schema_builder *b, struct str key) {
  if (b->style == SCHEMA_GEMMA4_CALL) {
    int text = rules_text_n(b->g, key.p, key.n);
    return rules_seq2(b->g, is_bare(key) ? text : quoted(b, text), rules_text(b->g, ":"));
  }
  struct buf text;
  buf_init(&text, 0);
  buf_putc(&text, '"');
  chat_put_json_inside(&text, key.p, key.n);
  buf_puts(&text, "\": ");
  int node = rules_text_n(b->g, buf_cstr(&text), text.len);
  buf_free(&text);
  return node;
}

/* A value that is given, in the style of calls. */
static int call_value(struct schema_builder *b, const json_t *v) {
  size_t n = 0, cap = 3 * (json_array_size(v) + json_object_size(v)) + 2;
  const char *key;
  json_t *member;
  if (json_is_string(v)) return quoted(b, rules_text_n(b->g, json_string_value(v), json_string_length(v)));
  if (!json_is_array(v) && !json_is_object(v)) return json_text(b, v);
  int *parts = xcalloc(cap, sizeof *parts);
  parts[n++] = rules_text(b->g, json_is_array(v) ? "[" : "{");
  for (size_t i = 0; i < json_array_size(v); i++) {
    if (n > 1) parts[n++] = comma(b);
    parts[n++] = call_value(b, json_array_get(v, i));
  }
  json_object_foreach((json_t *)v, key, member) {
    if (n > 1) parts[n++] = comma(b);
    parts[n++] = key_node(b, str_c(key));
    parts[n++] = call_value(b, member);
  }
  parts[n++] = rules_text(b->g, json_is_array(v) ? "]" : "}");
  int node = rules_seq(b->g, parts, (int)n);
  free(parts);
  return node;
}

/* One of many texts: by their common beginnings, so that there is one path however many they are. */
static int one_of_texts(struct schema_builder *b, struct str *texts, int n, lang_class_fn fn) {
  if (n == 0) return rules_never(b->g);
  struct lang *l = lang_texts(texts, n);
  if (!l) {
    rules_fail(b->g, "%s: the values of an enum are too many", b->where);
    return rules_never(b->g);
  }
  int node = lang_emit(l, b->g, fn, b->g);
  lang_delete(l);
  return node;
}

static int emit_values_json(struct schema_builder *b, const struct form *f) {
  struct str *texts = xcalloc((size_t)f->n_values, sizeof *texts);
  for (int i = 0; i < f->n_values; i++) {
    struct buf text;
    buf_init(&text, 0);
    put_json(&text, f->values[i]);
    texts[i] = str_of(pool_text(&b->pool, buf_cstr(&text), text.len), text.len);
    buf_free(&text);
  }
  int node = one_of_texts(b, texts, f->n_values, NULL);
  free(texts);
  return node;
}

static int emit_values_call(struct schema_builder *b, const struct form *f) {
  struct str *texts = xcalloc((size_t)f->n_values, sizeof *texts);
  int *ways = xcalloc((size_t)f->n_values + 1, sizeof *ways), n = 0, n_texts = 0;
  for (int i = 0; i < f->n_values; i++) {
    const json_t *v = f->values[i];
    if (json_is_string(v)) texts[n_texts++] = str_of(json_string_value(v), json_string_length(v));
    else ways[n++] = call_value(b, v);
  }
  if (n_texts) ways[n++] = quoted(b, one_of_texts(b, texts, n_texts, NULL));
  int node = rules_alt(b->g, ways, n);
  free(texts);
  free(ways);
  return node;
}

static int emit_values(struct schema_builder *b, const struct form *f) {
  if (f->n_values == 1) return b->style == SCHEMA_JSON ? json_text(b, f->values[0]) : call_value(b, f->values[0]);
  return b->style == SCHEMA_JSON ? emit_values_json(b, f) : emit_values_call(b, f);
}

/* ---- strings and numbers ------------------------------------------------------------------------------------------------------------------ */

static int any_characters(struct schema_builder *b, int64_t min, int64_t max) {
  int one = class_of(b)(b->g, (struct rules_range[]){{1, LANG_CODE_MAX}}, 1);
  return rules_repeat(b->g, one, (int)min, max < 0 ? -1 : (int)MIN(max, (int64_t)RULES_REPEAT_MAX));
}

static int emit_string(struct schema_builder *b, const struct form *f) {
  if (f->text) return quoted(b, lang_emit(f->text, b->g, class_of(b), b->g));
  if (f->b.min > 0 || f->b.max >= 0) return quoted(b, any_characters(b, f->b.min, f->b.max));
  if (b->any_string < 0) b->any_string = as_rule(b, "string", quoted(b, any_characters(b, 0, -1)));
  return b->any_string;
}

static int digit(struct schema_builder *b, char from) { return rules_class(b->g, (struct rules_range[]){{(uint32_t)from, '9'}}, 1, false); }
static int fraction(struct schema_builder *b, int most) { /* or none */
  return rules_repeat(b->g, rules_seq2(b->g, rules_text(b->g, "."), rules_repeat(b->g, digit(b, '0'), 1, most)), 0, 1);
}

/* e-1 .. e-299, or e10 .. e299: see schema_number.c. */
static int with_exponent(struct schema_builder *b, bool large) {
  struct grammar_rules *g = b->g;
  int hundreds = rules_seq(g, (int[]){rules_class(g, (struct rules_range[]){{'1', '2'}}, 1, false), digit(b, '0'), digit(b, '0')}, 3);
  int tens = rules_seq2(g, digit(b, '1'), digit(b, '0'));
  int ones = rules_seq2(g, rules_repeat(g, rules_text(g, "0"), 0, 1), digit(b, '1'));
  int power = rules_alt(g, (int[]){hundreds, tens, large ? rules_never(g) : ones}, 3);
  int sign = large ? rules_repeat(g, rules_text(g, "+"), 0, 1) : rules_text(g, "-");
  return rules_seq(g, (int[]){digit(b, '1'), fraction(b, 14), rules_text(g, "e"), sign, power}, 5);
}

/* Every number that people and programs write, without endless digits: up to 18 before the point, up to 20 behind it, or one digit and an exponent. */
static int any_number(struct schema_builder *b) {
  struct grammar_rules *g = b->g;
  if (b->any_number >= 0) return b->any_number;
  int whole = rules_alt(g, (int[]){rules_text(g, "0"), rules_seq2(g, digit(b, '1'), rules_repeat(g, digit(b, '0'), 0, 17))}, 2);
  int plain = rules_seq2(g, whole, fraction(b, 20));
  int power = rules_alt(
      g,
      (int[]){rules_seq(g, (int[]){rules_class(g, (struct rules_range[]){{'1', '2'}}, 1, false), digit(b, '0'), digit(b, '0')}, 3),
              rules_repeat(g, digit(b, '0'), 1, 2)},
      2);
  int sign = rules_repeat(g, rules_class(g, (struct rules_range[]){{'+', '+'}, {'-', '-'}}, 2, false), 0, 1);
  int scientific = rules_seq(g, (int[]){digit(b, '0'), fraction(b, 20), rules_text(g, "e"), sign, power}, 5);
  int minus = rules_repeat(g, rules_text(g, "-"), 0, 1);
  return b->any_number = as_rule(b, "number", rules_seq2(g, minus, rules_alt(g, (int[]){plain, scientific}, 2)));
}

static int emit_number(struct schema_builder *b, const struct form *f) {
  struct grammar_rules *g = b->g;
  if (!f->positive && !f->negative) return any_number(b);
  bool any_integer = f->b.integer && !f->b.lo.set && !f->b.hi.set && !f->b.multiple && !f->b.excluded.n;
  if (any_integer && b->any_integer >= 0) return b->any_integer;
  int ways[4], n = 0, halves[2];
  for (int negative = 0; negative < 2; negative++, n = 0) {
    const struct lang *l = negative ? f->negative : f->positive;
    if (l) ways[n++] = lang_emit(l, g, NULL, NULL);
    if (f->small[negative]) ways[n++] = with_exponent(b, false);
    if (f->large[negative]) ways[n++] = with_exponent(b, true);
    halves[negative] = rules_seq2(g, negative ? rules_text(g, "-") : rules_empty(g), rules_alt(g, ways, n));
  }
  int node = as_rule(b, "number", rules_alt(g, halves, 2));
  if (any_integer) b->any_integer = node;
  return node;
}

/* ---- parts of values ------------------------------------------------------------------------------------------------------------------------ */

struct spot { /* where parts are written: within this shape, with so many levels left */
  int shape, left;
};

static int levels_of(const struct schema_builder *b, int shape) {
  const struct shape *s = &b->shapes[shape];
  if (!s->recursive) return 0;
  return MAX(s->height, s->key.n ? b->levels : b->levels_any);
}

/* The rule of a part, or -1 when there is no value of it here. */
static int part_rule(struct schema_builder *b, struct spot at, int part) {
  const struct shape *s = &b->shapes[at.shape], *p = &b->shapes[part];
  if (p->height == SHAPE_NEVER) return -1;
  int left = levels_of(b, part);
  if (s->recursive && s->component == p->component) {
    left = at.left - 1;
    if (p->height > left) return -1;
  }
  int *rule = lang_map_at(&b->rule_of, (uint64_t)(part + 1) << 20 | (uint64_t)left);
  if (*rule >= 0) return *rule;
  int made = *rule = rules_declare(b->g, "value");
  if (b->n_jobs == b->cap_jobs) b->jobs = xrealloc(b->jobs, (size_t)(b->cap_jobs = 2 * b->cap_jobs + 64) * sizeof *b->jobs);
  b->jobs[b->n_jobs++] = (struct emit_job){part, left, made};
  return made;
}

/* ---- lists with a count ------------------------------------------------------------------------------------------------------------------ */

/* Entries in their order, each at most once, those that are required exactly once; then any number of `more` (-1: none); min..max in all. */
struct entry {
  int node;
  bool required;
};
struct listing {
  struct entry *v; /* owned */
  int n, more;
  int64_t min, max;
};

static int then(struct schema_builder *b, int node) { return rules_seq2(b->g, comma(b), node); }

/* `more` alone, from..to of them (to -1: any number), the first one with a comma before it or not. */
static int emit_more(struct schema_builder *b, const struct listing *l, int64_t from, int64_t to, bool comma_first) {
  struct grammar_rules *g = b->g;
  if (l->more < 0 || to == 0) return from > 0 ? rules_never(g) : rules_empty(g);
  if (to > RULES_REPEAT_MAX) to = RULES_REPEAT_MAX;
  if (from > RULES_REPEAT_MAX) {
    rules_fail(g, "%s: more than %d items are asked for", b->where, RULES_REPEAT_MAX);
    return rules_never(g);
  }
  if (comma_first) return rules_repeat(g, then(b, l->more), (int)from, (int)to);
  int some = rules_seq2(g, l->more, rules_repeat(g, then(b, l->more), (int)MAX(from - 1, 0), to < 0 ? -1 : (int)to - 1));
  return from > 0 ? some : rules_repeat(g, some, 0, 1);
}

/* Nothing has to be counted: the first entry that is there, then each of the others or not. */
static int emit_uncounted(struct schema_builder *b, const struct listing *l) {
  struct grammar_rules *g = b->g;
  int first_required = 0, n_ways = 0;
  while (first_required < l->n && !l->v[first_required].required) first_required++;
  if (first_required > SCHEMA_OPTIONAL_MAX) {
    rules_fail(g, "%s: an object has more than %d optional properties in a row", b->where, SCHEMA_OPTIONAL_MAX);
    return rules_never(g);
  }
  int *ways = xcalloc((size_t)first_required + 3, sizeof *ways), *rest = xcalloc((size_t)l->n + 2, sizeof *rest), n_rest = 0;
  for (int i = first_required + 1; i < l->n; i++)
    rest[n_rest++] = l->v[i].required ? then(b, l->v[i].node) : rules_repeat(g, then(b, l->v[i].node), 0, 1);
  rest[n_rest++] = emit_more(b, l, 0, -1, true);
  int tail = as_rule(b, "members", rules_seq(g, rest, n_rest)); /* behind entry i */
  for (int i = MIN(first_required, l->n - 1); i >= 0; i--) {
    ways[n_ways++] = rules_seq2(g, l->v[i].node, tail);
    int item = then(b, l->v[i].node);
    tail = as_rule(b, "members", rules_seq2(g, l->v[i].required ? item : rules_repeat(g, item, 0, 1), tail));
  }
  if (first_required == l->n) ways[n_ways++] = emit_more(b, l, 0, -1, false);
  int node = rules_alt(g, ways, n_ways);
  free(ways);
  free(rest);
  return node;
}

/* Rule (i, count): entries from i on, so many before it. */
static int emit_counted(struct schema_builder *b, const struct listing *l) {
  struct grammar_rules *g = b->g;
  int64_t top = MIN(l->max >= 0 ? l->max : l->min, (int64_t)l->n + l->min + 1); /* counts beyond it are all the same */
  int width = (int)top + 1;
  if ((int64_t)(l->n + 1) * width > SCHEMA_COUNTED_MAX) {
    rules_fail(g, "%s: counting %d members up to %lld needs more than %d states", b->where, l->n, (long long)top, SCHEMA_COUNTED_MAX);
    return rules_never(g);
  }
  int *next = xcalloc((size_t)width, sizeof *next), *now = xcalloc((size_t)width, sizeof *now);
  for (int c = 0; c < width; c++) {
    int64_t missing = MAX(l->min - c, 0); /* two that are made up may be the same one */
    next[c] = missing > 1 ? rules_never(g) : emit_more(b, l, missing, l->max < 0 ? -1 : MAX(l->max - c, 0), c > 0);
  }
  for (int i = l->n - 1; i >= 0; i--) {
    for (int c = 0; c < width; c++) {
      bool full = l->max >= 0 && c >= l->max;
      int node = c ? then(b, l->v[i].node) : l->v[i].node, ways[2], n = 0;
      if (!full) ways[n++] = rules_seq2(g, node, next[MIN(c + 1, (int)top)]);
      if (!l->v[i].required) ways[n++] = next[c];
      int both = rules_alt(g, ways, n);
      now[c] = both == rules_never(g) ? both : as_rule(b, "members", both);
    }
    int *swap = next;
    next = now;
    now = swap;
  }
  int node = next[0];
  free(next);
  free(now);
  return node;
}

static int emit_listing(struct schema_builder *b, const struct listing *l) {
  int n_required = 0;
  for (int i = 0; i < l->n; i++) n_required += l->v[i].required;
  if (l->min > l->n + (l->more >= 0)) return rules_never(b->g); /* of those that are made up one is sure to count */
  bool counted = l->min > n_required || (l->max >= 0 && (l->more >= 0 || l->max < l->n));
  return counted ? emit_counted(b, l) : emit_uncounted(b, l);
}

/* ---- objects ---------------------------------------------------------------------------------------------------------------------------------- */

/* Names that are made up: in calls bare where that is read back as it is, else quoted. */
static int extra_key(struct schema_builder *b, const struct lang *keys) {
  struct grammar_rules *g = b->g;
  if (b->style == SCHEMA_JSON) return rules_seq(g, (int[]){quote_node(b), lang_emit(keys, g, json_class, g), rules_text(g, "\": ")}, 3);
  /* what is bare: no character of the syntax, no blank or control character, no quote anywhere */
  static const struct rules_range bare_ranges[] = {{0x21, 0x21}, {0x23, 0x2b}, {0x2d, 0x39}, {0x3b, 0x5a},         {0x5c, 0x5c},
                                                   {0x5e, 0x7a}, {0x7c, 0x7c}, {0x7e, 0x7e}, {0xa1, LANG_CODE_MAX}};
  struct lang *bare = lang_new();
  for (int s = 0; s < 2; s++) {
    lang_state(bare, s);
    for (size_t i = 0; i < sizeof bare_ranges / sizeof *bare_ranges; i++) lang_edge(bare, bare_ranges[i].lo, bare_ranges[i].hi, 1);
  }
  struct lang *in = lang_both(keys, bare), *out = lang_without(keys, bare);
  int ways[2] = {rules_never(g), rules_never(g)};
  if (in) ways[0] = lang_emit(in, g, raw_class, g);
  if (out && (b->quote >= 0 || !in || lang_is_empty(in))) ways[1] = quoted(b, lang_emit(out, g, raw_class, g));
  if (!in || !out) rules_fail(g, "%s: the names of additional properties need more than %d states", b->where, LANG_STATES_MAX);
  lang_delete(in);
  lang_delete(out);
  lang_delete(bare);
  return rules_seq2(g, rules_alt(g, ways, 2), rules_text(g, ":"));
}

static int emit_object(struct schema_builder *b, const struct form *f, struct spot at) {
  struct grammar_rules *g = b->g;
  struct listing l = {.v = xcalloc((size_t)f->n_members + 1, sizeof *l.v), .more = -1, .min = f->b.min, .max = f->b.max};
  int *ways = xcalloc((size_t)f->n_extras + 1, sizeof *ways), n_ways = 0;
  for (int i = 0; i < f->n_members; i++) {
    const struct member *m = &f->members[i];
    int value = part_rule(b, at, m->shape);
    if (value < 0 && !m->required) continue;
    int node = value < 0 ? rules_never(g) : rules_seq2(g, key_node(b, str_of(m->key, m->n_key)), value);
    l.v[l.n++] = (struct entry){node, m->required};
  }
  for (int i = 0; i < f->n_extras; i++) {
    int value = part_rule(b, at, f->extras[i].shape);
    if (value >= 0) ways[n_ways++] = rules_seq2(g, extra_key(b, f->extras[i].keys), value);
  }
  if (n_ways) l.more = as_rule(b, "member", rules_alt(g, ways, n_ways));
  int members = emit_listing(b, &l);
  free(l.v);
  free(ways);
  return rules_seq(g, (int[]){rules_text(g, "{"), members, rules_text(g, "}")}, 3);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------------------------------------- */

/* Items that differ: in any order while their sets are few, else in the order of the enum. */
static int emit_permuted(struct schema_builder *b, const int *items, int n, int64_t min, int64_t max) {
  struct grammar_rules *g = b->g;
  int *rules = xcalloc((size_t)1 << n, sizeof *rules), ways[SCHEMA_PERMUTED_MAX + 1];
  for (int used = (1 << n) - 1; used >= 0; used--) {
    int count = __builtin_popcount((unsigned)used), n_ways = 0;
    if (count >= min) ways[n_ways++] = rules_empty(g);
    for (int i = 0; i < n; i++)
      if (!(used >> i & 1) && (max < 0 || count < max))
        ways[n_ways++] = rules_seq2(g, count ? then(b, items[i]) : items[i], rules[used | 1 << i]);
    rules[used] = n_ways ? as_rule(b, "items", rules_alt(g, ways, n_ways)) : rules_never(g);
  }
  int node = rules[0];
  free(rules);
  return node;
}

static int emit_unique(struct schema_builder *b, const struct form *f) {
  const json_t **values;
  int n = shape_values(b, f->rest, &values);
  struct listing l = {.v = xcalloc((size_t)MAX(n, 0) + 1, sizeof *l.v), .n = MAX(n, 0), .more = -1, .min = f->b.min, .max = f->b.max};
  int *items = xcalloc((size_t)l.n + 1, sizeof *items), node;
  for (int i = 0; i < l.n; i++) {
    items[i] = b->style == SCHEMA_JSON ? json_text(b, values[i]) : call_value(b, values[i]);
    l.v[i] = (struct entry){items[i], false};
  }
  if (n <= SCHEMA_PERMUTED_MAX) node = emit_permuted(b, items, l.n, f->b.min, f->b.max);
  else node = emit_listing(b, &l);
  free(l.v);
  free(items);
  return node;
}

/* The prefix, item by item, as far as there are values for it; then the rest. */
static int emit_items(struct schema_builder *b, const struct form *f, struct spot at) {
  struct grammar_rules *g = b->g;
  struct listing l = {.more = f->rest >= 0 ? part_rule(b, at, f->rest) : -1};
  int64_t max = f->b.max;
  int n = 0, *items = xcalloc((size_t)f->n_prefix + 1, sizeof *items);
  for (; n < f->n_prefix && (max < 0 || n < max); n++)
    if ((items[n] = part_rule(b, at, f->prefix[n])) < 0) break;
  if (n < f->n_prefix) max = max < 0 ? n : MIN(max, n);
  int tail = emit_more(b, &l, MAX(f->b.min - n, 0), max < 0 ? -1 : max - n, n > 0);
  for (int i = n - 1; i >= 0; i--) {
    int item = rules_seq2(g, i ? then(b, items[i]) : items[i], tail);
    tail = as_rule(b, "items", i < f->b.min ? item : rules_repeat(g, item, 0, 1));
  }
  free(items);
  return tail;
}

static int emit_array(struct schema_builder *b, const struct form *f, struct spot at) {
  bool unique = f->b.unique && (f->b.max < 0 || f->b.max > 1);
  int items = unique ? emit_unique(b, f) : emit_items(b, f, at);
  return rules_seq(b->g, (int[]){rules_text(b->g, "["), items, rules_text(b->g, "]")}, 3);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------------------- */

static int emit_form(struct schema_builder *b, const struct form *f, struct spot at) {
  if (f->empty) return rules_never(b->g);
  if (f->valued) return emit_values(b, f);
  switch (f->b.kind) {
  case KIND_NUMBER: return emit_number(b, f);
  case KIND_STRING: return emit_string(b, f);
  case KIND_ARRAY: return emit_array(b, f, at);
  case KIND_OBJECT: return emit_object(b, f, at);
  case KIND_NULL:
  case KIND_BOOL:
  case KINDS: break;
  }
  return rules_never(b->g);
}

int schema_emit(struct schema_builder *b, int shape, int *node) {
  b->any_string = b->any_number = b->any_integer = -1;
  struct spot outside = {shape, levels_of(b, shape) + 1};
  *node = part_rule(b, outside, shape);
  for (int i = 0; i < b->n_jobs; i++) {
    struct emit_job job = b->jobs[i];
    const struct shape *s = &b->shapes[job.shape];
    int *ways = xcalloc((size_t)s->n_forms + 1, sizeof *ways);
    for (int k = 0; k < s->n_forms; k++) ways[k] = emit_form(b, &s->forms[k], (struct spot){job.shape, job.left});
    rules_define(b->g, job.rule, rules_alt(b->g, ways, s->n_forms));
    free(ways);
    if (rules_error(b->g, b->e) != 0) return -1;
  }
  return 0;
}
