/* t_schema_oracle.h — for the tests of schemas and tools: a slow, plain validator, a small vocabulary, a walk through a grammar by chance.
 *
 * The validator reads draft 2020-12 as it is written, keyword by keyword, and knows nothing of how schema.c goes about it. Patterns are matched by backtracking
 * over the subset that the cases use. Formats are not checked here (tools/schema_check.py asks an independent validator).
 */
#ifndef CYGNET_TESTS_SCHEMA_ORACLE_H
#define CYGNET_TESTS_SCHEMA_ORACLE_H

#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/grammar.h"

/* ---- patterns -------------------------------------------------------------------------------------------------------------------- */

struct matcher {
  const uint32_t *text; /* code points */
  int n, start, n_ways;
};

static const char *pattern_skip_item(const char *p);

/* [..], an escape, or one character. */
static bool oracle_class(const char **p, uint32_t c) {
  const char *at = *p;
  bool in = false;
  if (*at == '\\') {
    char k = at[1];
    *p = at + 2;
    bool digit = c >= '0' && c <= '9', word = digit || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    bool blank = c == ' ' || (c >= 9 && c <= 13) || c == 0xa0 || c == 0xfeff || c == 0x2028 || c == 0x2029 || c == 0x1680 ||
                 (c >= 0x2000 && c <= 0x200a) || c == 0x202f || c == 0x205f || c == 0x3000;
    if (k == 'd' || k == 'D') return digit == (k == 'd');
    if (k == 'w' || k == 'W') return word == (k == 'w');
    if (k == 's' || k == 'S') return blank == (k == 's');
    return c == (uint32_t)(k == 'n' ? '\n' : k == 't' ? '\t' : (unsigned char)k);
  }
  if (*at == '.') {
    *p = at + 1;
    return c != '\n' && c != '\r' && c != 0x2028 && c != 0x2029;
  }
  if (*at != '[') {
    uint32_t own;
    *p = at + utf8_step(at, strlen(at), &own, NULL);
    return own == c;
  }
  bool negated = at[1] == '^';
  at += 1 + negated;
  while (*at != ']') {
    if (*at == '\\') {
      in |= oracle_class(&at, c);
      continue;
    }
    uint32_t lo, hi;
    at += utf8_step(at, strlen(at), &lo, NULL);
    hi = lo;
    if (at[0] == '-' && at[1] != ']') at++, at += utf8_step(at, strlen(at), &hi, NULL);
    in |= c >= lo && c <= hi;
  }
  *p = at + 1;
  return in != negated;
}

/* Behind one atom. */
static const char *pattern_skip_item(const char *p) {
  if (*p == '(') {
    int depth = 0;
    for (;; p++) {
      if (*p == '\\') p++;
      else if (*p == '[') {
        for (p++; *p != ']'; p++) p += *p == '\\';
      } else if (*p == '(') depth++;
      else if (*p == ')' && !--depth) return p + 1;
    }
  }
  oracle_class(&p, 0);
  return p;
}

typedef bool (*matched_fn)(void *ctx, int at);
static bool match_alternatives(const struct matcher *m, const char *p, const char *end, int at, matched_fn then, void *ctx);

struct rest { /* what is to be matched behind the current item */
  const struct matcher *m;
  const char *item, *item_end, *p, *end;
  int min, max, from;
  matched_fn then;
  void *ctx;
};

static bool match_sequence(const struct matcher *m, const char *p, const char *end, int at, matched_fn then, void *ctx);

static bool match_times(void *ctx, int at) {
  struct rest *r = ctx;
  if (r->from == at && r->min <= 0 && r->from >= 0) return match_sequence(r->m, r->p, r->end, at, r->then, r->ctx);
  if (r->max != 0) {
    struct rest next = *r;
    next.min--, next.max--, next.from = at;
    if (*r->item == '(') {
      const char *inside = r->item + 1 + (r->item[1] == '?' ? 2 : 0);
      if (match_alternatives(r->m, inside, r->item_end - 1, at, match_times, &next)) return true;
    } else if (at < r->m->n) {
      const char *item = r->item;
      if (oracle_class(&item, r->m->text[at]) && match_times(&next, at + 1)) return true;
    }
  }
  return r->min <= 0 && match_sequence(r->m, r->p, r->end, at, r->then, r->ctx);
}

static bool match_sequence(const struct matcher *m, const char *p, const char *end, int at, matched_fn then, void *ctx) {
  if (p == end) return then(ctx, at);
  if (*p == '^') return at == 0 && match_sequence(m, p + 1, end, at, then, ctx);
  if (*p == '$') return at == m->n && match_sequence(m, p + 1, end, at, then, ctx);
  struct rest r = {
      .m = m, .item = p, .item_end = pattern_skip_item(p), .end = end, .min = 1, .max = 1, .from = -1, .then = then, .ctx = ctx};
  r.p = r.item_end;
  if (r.p < end && strchr("*+?", *r.p)) {
    r.min = *r.p == '+';
    r.max = *r.p == '?' ? 1 : 1 << 30;
    r.p++;
  } else if (r.p < end && *r.p == '{') {
    char *after;
    r.min = r.max = (int)strtol(r.p + 1, &after, 10);
    if (*after == ',') r.max = after[1] == '}' ? (after++, 1 << 30) : (int)strtol(after + 1, &after, 10);
    r.p = after + 1;
  }
  return match_times(&r, at);
}

static bool match_alternatives(const struct matcher *m, const char *p, const char *end, int at, matched_fn then, void *ctx) {
  for (const char *from = p;; from = ++p) {
    while (p < end && *p != '|')
      p = *p == '^' || *p == '$' || strchr("*+?{", *p) || (p > from && *p == '}') || (*p == ',') ? p + 1 : pattern_skip_item(p);
    if (match_sequence(m, from, p, at, then, ctx)) return true;
    if (p >= end) return false;
  }
}

static bool match_done(void *ctx, int at) {
  (void)ctx, (void)at;
  return true;
}

static inline bool oracle_matches(const char *pattern, const char *text, size_t n) {
  uint32_t *cps = xcalloc(n + 1, sizeof *cps);
  struct matcher m = {.text = cps};
  for (size_t i = 0; i < n;) i += (size_t)utf8_step(text + i, n - i, &cps[m.n++], NULL);
  bool yes = false;
  for (int at = 0; at <= m.n && !yes; at++) yes = match_alternatives(&m, pattern, pattern + strlen(pattern), at, match_done, NULL);
  free(cps);
  return yes;
}

/* ---- the validator ------------------------------------------------------------------------------------------------------------------- */

struct oracle {
  const json_t *whole; /* the document */
  bool openapi;        /* nullable */
  const json_t *root;  /* what "#/..." begins at: the innermost schema with an $id; NULL: the document */
  int depth;
};

static bool oracle_same(const json_t *a, const json_t *b) {
  if (json_is_number(a) && json_is_number(b)) {
    if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
    return json_number_value(a) == json_number_value(b);
  }
  if (json_typeof(a) != json_typeof(b)) return false;
  if (json_is_array(a)) {
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++)
      if (!oracle_same(json_array_get(a, i), json_array_get(b, i))) return false;
    return true;
  }
  if (json_is_object(a)) {
    const char *key;
    json_t *v;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, v) if (!json_object_get(b, key) || !oracle_same(v, json_object_get(b, key))) return false;
    return true;
  }
  return json_equal(a, b);
}

static bool oracle_is_integer(const json_t *v) {
  return json_is_integer(v) || (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v));
}

static bool oracle_type(const char *name, const json_t *v) {
  if (!strcmp(name, "null")) return json_is_null(v);
  if (!strcmp(name, "boolean")) return json_is_boolean(v);
  if (!strcmp(name, "integer")) return oracle_is_integer(v);
  if (!strcmp(name, "number")) return json_is_number(v);
  if (!strcmp(name, "string")) return json_is_string(v);
  if (!strcmp(name, "array")) return json_is_array(v);
  return json_is_object(v);
}

/* By a walk through the whole document: $id and $anchor where schemas stand; only what the cases need. */
static const json_t *oracle_find(const json_t *at, const char *name, bool anchor) {
  const char *key, *own = json_string_value(json_object_get(at, anchor ? "$anchor" : "$id"));
  json_t *v;
  size_t i;
  size_t n_own = own ? strlen(own) : 0, n = strlen(name);
  if (own && n_own >= n && !strcmp(own + n_own - n, name)) return at;
  if (json_is_array(at)) {
    json_array_foreach((json_t *)at, i, v) {
      const json_t *found = oracle_find(v, name, anchor);
      if (found) return found;
    }
  }
  json_object_foreach((json_t *)at, key, v) {
    if (!strcmp(key, "enum") || !strcmp(key, "const")) continue;
    const json_t *found = oracle_find(v, name, anchor);
    if (found) return found;
  }
  return NULL;
}

static const json_t *oracle_ref(const struct oracle *o, const char *ref) {
  const char *hash = strchr(ref, '#');
  const json_t *at = o->root ? o->root : o->whole;
  char step[200];
  if (hash != ref) return oracle_find(o->whole, ref, false);
  if (hash[1] && hash[1] != '/') return oracle_find(o->whole, hash + 1, true);
  for (const char *p = hash + 1; *p == '/';) {
    size_t n = 0;
    for (p++; *p && *p != '/'; p++) {
      if (*p == '~') step[n++] = *++p == '0' ? '~' : '/';
      else if (*p == '%') step[n++] = (char)strtol((char[]){p[1], p[2], 0}, NULL, 16), p += 2;
      else step[n++] = *p;
    }
    step[n] = 0;
    at = json_is_array(at) ? json_array_get(at, (size_t)atoi(step)) : json_object_get(at, step);
  }
  return at;
}

static bool oracle_valid(const struct oracle *o, const json_t *schema, const json_t *v);

static bool oracle_number(const json_t *s, const json_t *v) {
  double x = json_number_value(v);
  const json_t *k;
  bool over = json_is_true(json_object_get(s, "exclusiveMinimum")), under = json_is_true(json_object_get(s, "exclusiveMaximum"));
  if ((k = json_object_get(s, "minimum")) && (x < json_number_value(k) || (over && x == json_number_value(k)))) return false;
  if ((k = json_object_get(s, "maximum")) && (x > json_number_value(k) || (under && x == json_number_value(k)))) return false;
  if ((k = json_object_get(s, "exclusiveMinimum")) && json_is_number(k) && x <= json_number_value(k)) return false;
  if ((k = json_object_get(s, "exclusiveMaximum")) && json_is_number(k) && x >= json_number_value(k)) return false;
  if ((k = json_object_get(s, "multipleOf"))) {
    if (json_is_integer(v) && json_is_integer(k)) return json_integer_value(v) % json_integer_value(k) == 0;
    return fmod(x, json_number_value(k)) == 0;
  }
  return true;
}

static double oracle_count(const json_t *s, const char *key, double otherwise) {
  const json_t *k = json_object_get(s, key);
  return k ? json_number_value(k) : otherwise;
}

static bool oracle_string(const json_t *s, const json_t *v) {
  const char *text = json_string_value(v), *pattern = json_string_value(json_object_get(s, "pattern"));
  double n = 0;
  for (size_t i = 0; i < json_string_length(v); i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
  if (n < oracle_count(s, "minLength", 0) || n > oracle_count(s, "maxLength", 1e300)) return false;
  return !pattern || oracle_matches(pattern, text, json_string_length(v));
}

static bool oracle_array(const struct oracle *o, const json_t *s, const json_t *v) {
  size_t n = json_array_size(v);
  const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
  if ((double)n < oracle_count(s, "minItems", 0) || (double)n > oracle_count(s, "maxItems", 1e300)) return false;
  if (json_is_array(items)) {
    prefix = items;
    items = json_object_get(s, "additionalItems");
  }
  for (size_t i = 0; i < n; i++) {
    const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
    if (one && !oracle_valid(o, one, json_array_get(v, i))) return false;
  }
  if (json_is_true(json_object_get(s, "uniqueItems")))
    for (size_t i = 0; i < n; i++)
      for (size_t k = 0; k < i; k++)
        if (oracle_same(json_array_get(v, i), json_array_get(v, k))) return false;
  return true;
}

static bool oracle_object(const struct oracle *o, const json_t *s, const json_t *v) {
  double n = (double)json_object_size(v);
  if (n < oracle_count(s, "minProperties", 0) || n > oracle_count(s, "maxProperties", 1e300)) return false;
  const json_t *required = json_object_get(s, "required"), *names = json_object_get(s, "propertyNames"),
               *extra = json_object_get(s, "additionalProperties");
  for (size_t i = 0; i < json_array_size(required); i++)
    if (!json_object_get(v, json_string_value(json_array_get(required, i)))) return false;
  const char *key, *pattern;
  json_t *member, *sub;
  json_object_foreach((json_t *)v, key, member) {
    const json_t *own = json_object_get(json_object_get(s, "properties"), key);
    bool spoken = own != NULL;
    if (own && !oracle_valid(o, own, member)) return false;
    json_object_foreach(json_object_get(s, "patternProperties"), pattern, sub) {
      if (!oracle_matches(pattern, key, strlen(key))) continue;
      spoken = true;
      if (!oracle_valid(o, sub, member)) return false;
    }
    if (!spoken && extra && !oracle_valid(o, extra, member)) return false;
    if (names) {
      json_t *name = json_string(key);
      bool good = oracle_valid(o, names, name);
      json_decref(name);
      if (!good) return false;
    }
  }
  return true;
}

static bool oracle_valid(const struct oracle *outer, const json_t *s, const json_t *v) {
  if (json_is_boolean(s)) return json_is_true(s);
  struct oracle here = *outer, *o = &here;
  if (json_object_get(s, "$id")) here.root = s;
  if (++here.depth > 2000) fail_msg("a circle of schemas was not refused");
  const json_t *k;
  if ((k = json_object_get(s, "type"))) {
    bool good = o->openapi && json_is_null(v) && json_is_true(json_object_get(s, "nullable"));
    if (json_is_string(k)) good |= oracle_type(json_string_value(k), v);
    for (size_t i = 0; i < json_array_size(k); i++) good |= oracle_type(json_string_value(json_array_get(k, i)), v);
    if (!good) return false;
  }
  if ((k = json_object_get(s, "enum"))) {
    bool good = false;
    for (size_t i = 0; i < json_array_size(k); i++) good |= oracle_same(json_array_get(k, i), v);
    if (!good) return false;
  }
  if ((k = json_object_get(s, "const")) && !oracle_same(k, v)) return false;
  if ((k = json_object_get(s, "$ref")) && !oracle_valid(o, oracle_ref(o, json_string_value(k)), v)) return false;
  k = json_object_get(s, "allOf");
  for (size_t i = 0; i < json_array_size(k); i++)
    if (!oracle_valid(o, json_array_get(k, i), v)) return false;
  if ((k = json_object_get(s, "anyOf"))) {
    bool good = false;
    for (size_t i = 0; i < json_array_size(k); i++) good |= oracle_valid(o, json_array_get(k, i), v);
    if (!good) return false;
  }
  if ((k = json_object_get(s, "oneOf"))) {
    int good = 0;
    for (size_t i = 0; i < json_array_size(k); i++) good += oracle_valid(o, json_array_get(k, i), v);
    if (good != 1) return false;
  }
  if ((k = json_object_get(s, "not")) && oracle_valid(o, k, v)) return false;
  if (json_is_number(v)) return oracle_number(s, v);
  if (json_is_string(v)) return oracle_string(s, v);
  if (json_is_array(v)) return oracle_array(o, s, v);
  return !json_is_object(v) || oracle_object(o, s, v);
}

/* ---- a value in the canonical form ------------------------------------------------------------------------------------------------------ */

static void canonical_string(struct buf *b, const char *p, size_t n) {
  buf_putc(b, '"');
  for (size_t i = 0; i < n; i++) {
    static const char shorts[][2] = {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
    bool done = false;
    for (size_t k = 0; k < 7 && !done; k++)
      if (p[i] == shorts[k][0]) done = buf_printf(b, "\\%c", shorts[k][1]);
    if (!done && (unsigned char)p[i] < 0x20) buf_printf(b, "\\u%04x", p[i]);
    else if (!done) buf_putc(b, p[i]);
  }
  buf_putc(b, '"');
}

static inline void canonical(struct buf *b, const json_t *v) {
  const char *key;
  json_t *member;
  bool first = true;
  if (json_is_string(v)) canonical_string(b, json_string_value(v), json_string_length(v));
  else if (json_is_array(v)) {
    buf_putc(b, '[');
    for (size_t i = 0; i < json_array_size(v); i++) {
      if (i) buf_puts(b, ", ");
      canonical(b, json_array_get(v, i));
    }
    buf_putc(b, ']');
  } else if (json_is_object(v)) {
    buf_putc(b, '{');
    json_object_foreach((json_t *)v, key, member) {
      if (!first) buf_puts(b, ", ");
      first = false;
      canonical_string(b, key, strlen(key));
      buf_puts(b, ": ");
      canonical(b, member);
    }
    buf_putc(b, '}');
  } else if (json_is_real(v)) {
    double x = json_real_value(v);
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
      snprintf(text, sizeof text, "%.*g", digits, x);
      if (strtod(text, NULL) == x) break;
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0");
    buf_puts(b, text);
  } else {
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    buf_puts(b, text);
    free(text);
  }
}

/* ---- a vocabulary --------------------------------------------------------------------------------------------------------------------------- */

/* Byte pieces, control tokens of the family, and pieces that JSON and calls are made of, some across borders of values and inside characters. */
/* gemma4: its control tokens; marks: also those of calls. */
static inline struct tokenizer *oracle_tokenizer(bool gemma4, bool marks) {
  static const char *const control3[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"};
  static const char *const control4[] = {"<pad>",      "<eos>",      "<bos>",        "<unk>",        "<|turn>",          "<turn|>",
                                         "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                         "<|\"|>"};
  static const char *const pieces[] = {"a",
                                       "b",
                                       "c",
                                       "e",
                                       "x",
                                       "0",
                                       "1",
                                       "2",
                                       "5",
                                       "9",
                                       "10",
                                       "12",
                                       "99",
                                       "{\\\"",
                                       "\\\"}",
                                       "\\\":",
                                       "\\\",",
                                       ", ",
                                       "\\\", \\\"",
                                       "\\\": \\\"",
                                       "true",
                                       "false",
                                       "null",
                                       "[]",
                                       "{}",
                                       "]}",
                                       "}}",
                                       "]]",
                                       ".5",
                                       "-1",
                                       "e-",
                                       "name",
                                       "kind",
                                       "value",
                                       "\\\\n",
                                       "\\\\\\\"",
                                       "\\\\u00",
                                       "é",
                                       "日",
                                       "abc",
                                       "ab",
                                       ":",
                                       "call:",
                                       "{a:",
                                       ",b:",
                                       ": ",
                                       "<|",
                                       "|>",
                                       "[1",
                                       "2024",
                                       "-01",
                                       "\\u2581",
                                       "\\u2581\\u2581a",
                                       "}",
                                       "{",
                                       "[",
                                       "]",
                                       "\\\"",
                                       "\\\\",
                                       "0.0",
                                       "1,"};
  struct buf json;
  buf_init(&json, 0);
  int id = 0, n_control = gemma4 ? (marks ? 13 : 8) : 6;
  buf_puts(&json,
           "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}, \"added_tokens\": [");
  for (int i = 0; i < n_control; i++) {
    buf_printf(&json, "%s{\"id\": %d, \"special\": true, \"content\": \"", i ? ", " : "", i);
    const char *name = gemma4 ? control4[i] : control3[i];
    buf_json_escape(&json, name, strlen(name));
    buf_puts(&json, "\"}");
  }
  buf_puts(
      &json,
      "], \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"<unk>\", \"merges\": [[\"a\", \"b\"]], \"vocab\": {");
  for (; id < n_control; id++) {
    const char *name = gemma4 ? control4[id] : control3[id];
    buf_puts(&json, id ? ", \"" : "\"");
    buf_json_escape(&json, name, strlen(name));
    buf_printf(&json, "\": %d", id);
  }
  for (int i = 0; i < 256; i++) buf_printf(&json, ", \"<0x%02X>\": %d", i, id++);
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) buf_printf(&json, ", \"%s\": %d", pieces[i], id++);
  buf_puts(&json, "}}}");
  struct err e = {0};
  struct tokenizer *t = tok_from_json(json.data, json.len, "the vocabulary", &e);
  if (!t) fail_msg("%s", e.msg);
  buf_free(&json);
  return t;
}

static inline int32_t oracle_byte(const struct tokenizer *t, unsigned char c) {
  char spelling[8];
  snprintf(spelling, sizeof spelling, "<0x%02X>", c);
  int32_t id = tok_find(t, spelling);
  assert_true(id >= 0);
  return id;
}

/* ---- a walk ------------------------------------------------------------------------------------------------------------------------------------ */

static inline bool oracle_allowed(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

/* The ids that are there, then random allowed tokens until it may end; after `patience` tokens those that close things come first. Appends ids; false: it
 * did not come to an end. */
static inline bool oracle_walk(struct grammar *g, const struct tokenizer *t, uint64_t *seed, int patience, int most, struct tok_ids *ids) {
  struct grammar_state *s = grammar_state_new(g);
  int vocab = tok_vocab(t), n_eog;
  const int32_t *eog = tok_eog(t, &n_eog);
  int32_t *choices = xcalloc((size_t)vocab, sizeof *choices);
  static const char closers[] = "\"\"\"\"\"}}}}]]]]:,0a 1-tfnulr<<|>";
  bool ended = false;
  for (size_t i = 0; i < ids->n; i++)
    if (!grammar_accept(s, ids->v[i])) fail_msg("the beginning is refused at token %zu", i);
  for (int k = 0; k < most && !ended; k++) {
    const uint32_t *mask = grammar_mask(s);
    int n = 0;
    bool may_end = oracle_allowed(mask, eog[0]);
    assert_int_equal(may_end, grammar_may_end(s));
    for (int32_t id = 0; id < vocab; id++) {
      bool end = false;
      for (int i = 0; i < n_eog; i++) end |= id == eog[i];
      if (!end && oracle_allowed(mask, id)) choices[n++] = id;
    }
    if (n == 0 && !may_end) fail_msg("nothing is allowed after %zu tokens", ids->n);
    if (may_end && (n == 0 || k > patience || test_rand_int(seed, 0, 3) == 0)) {
      ended = true;
      break;
    }
    int32_t id = choices[test_rand_int(seed, 0, n - 1)];
    if (k > patience && test_rand_int(seed, 0, 9)) {
      int32_t quote = tok_find(t, "<|\"|>"), close = tok_find(t, "<tool_call|>");
      bool found = false;
      if (close >= 0 && oracle_allowed(mask, close)) id = close, found = true;
      else if (quote >= 0 && oracle_allowed(mask, quote) && test_rand_int(seed, 0, 1)) id = quote, found = true;
      for (int tries = 0; tries < 60 && !found; tries++) {
        int32_t other = oracle_byte(t, (unsigned char)closers[test_rand_int(seed, 0, (int)sizeof closers - 2)]);
        if (oracle_allowed(mask, other)) id = other, found = true;
      }
    }
    assert_true(grammar_accept(s, id));
    tok_ids_push(ids, id);
  }
  free(choices);
  grammar_state_delete(s);
  return ended;
}

/* Is this text let through byte by byte, and as a whole? */
static inline bool oracle_accepts(struct grammar *g, const struct tokenizer *t, const char *text, size_t n) {
  struct grammar_state *s = grammar_state_new(g);
  bool good = true;
  for (size_t i = 0; i < n && good; i++) good = grammar_accept(s, oracle_byte(t, (unsigned char)text[i]));
  good = good && grammar_may_end(s);
  grammar_state_delete(s);
  return good;
}

/* ---- schemas by chance ------------------------------------------------------------------------------------------------------------------------ */

static inline json_t *random_value(uint64_t *s, int depth) {
  static const char *const texts[] = {"", "a", "ab", "b", "x\"y", "é"};
  switch (test_rand_int(s, 0, depth > 0 ? 7 : 5)) {
  case 0: return json_null();
  case 1: return json_boolean(test_rand_int(s, 0, 1));
  case 2: return json_integer(test_rand_int(s, -3, 12));
  case 3: return json_real(test_rand_int(s, -8, 8) / 4.0);
  case 4:
  case 5: return json_string(texts[test_rand_int(s, 0, 5)]);
  case 6: {
    json_t *v = json_array();
    for (int i = test_rand_int(s, 0, 2); i > 0; i--) json_array_append_new(v, random_value(s, depth - 1));
    return v;
  }
  default: {
    json_t *v = json_object();
    for (int i = test_rand_int(s, 0, 2); i > 0; i--) json_object_set_new(v, i & 1 ? "a" : "b", random_value(s, depth - 1));
    return v;
  }
  }
}

static inline json_t *random_schema(uint64_t *s, int depth);

static inline json_t *random_schemas(uint64_t *s, int depth) {
  json_t *v = json_array();
  for (int i = test_rand_int(s, 1, 3); i > 0; i--) json_array_append_new(v, random_schema(s, depth - 1));
  return v;
}

static inline void random_keyword(uint64_t *s, json_t *o, int depth) {
  static const char *const types[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  static const char *const patterns[] = {"^a", "b", "^[ab]*$", "^.{1,3}$", "x$", "^(ab|c)+$", "[^a]"};
  static const char *const keys[] = {"a", "b", "c", "\"q"};
  static const char *const defs[] = {"#", "#/$defs/x", "#/$defs/y"};
  switch (test_rand_int(s, 0, depth > 0 ? 30 : 13)) {
  case 0:
  case 1: json_object_set_new(o, "type", json_string(types[test_rand_int(s, 0, 6)])); return;
  case 2: json_object_set_new(o, "type", json_pack("[s, s]", types[test_rand_int(s, 0, 6)], types[test_rand_int(s, 0, 6)])); return;
  case 3: json_object_set_new(o, "const", random_value(s, 2)); return;
  case 4: json_object_set_new(o, "enum", json_pack("[o, o, o]", random_value(s, 1), random_value(s, 2), random_value(s, 1))); return;
  case 5: json_object_set_new(o, "minLength", json_integer(test_rand_int(s, 0, 3))); return;
  case 6: json_object_set_new(o, "maxLength", json_integer(test_rand_int(s, 0, 5))); return;
  case 7: json_object_set_new(o, "pattern", json_string(patterns[test_rand_int(s, 0, 6)])); return;
  case 8: json_object_set_new(o, "minimum", json_real(test_rand_int(s, -40, 40) / 4.0)); return;
  case 9: json_object_set_new(o, "maximum", json_integer(test_rand_int(s, -10, 200))); return;
  case 10:
    json_object_set_new(o, test_rand_int(s, 0, 1) ? "exclusiveMinimum" : "exclusiveMaximum", json_real(test_rand_int(s, -50, 150) / 8.0));
    return;
  case 11: json_object_set_new(o, "multipleOf", json_integer(test_rand_int(s, 1, 12))); return;
  case 12: json_object_set_new(o, "minItems", json_integer(test_rand_int(s, 0, 3))); return;
  case 13: json_object_set_new(o, "maxItems", json_integer(test_rand_int(s, 0, 4))); return;
  case 14:
  case 15:
  case 16: {
    json_t *p = json_object();
    for (int i = test_rand_int(s, 1, 3); i > 0; i--) json_object_set_new(p, keys[test_rand_int(s, 0, 3)], random_schema(s, depth - 1));
    json_object_set_new(o, "properties", p);
    return;
  }
  case 17: json_object_set_new(o, "required", json_pack("[s]", keys[test_rand_int(s, 0, 3)])); return;
  case 18: json_object_set_new(o, "additionalProperties", random_schema(s, depth - 1)); return;
  case 19:
    json_object_set_new(o, "patternProperties", json_pack("{s:o}", patterns[test_rand_int(s, 0, 6)], random_schema(s, depth - 1)));
    return;
  case 20: json_object_set_new(o, "items", random_schema(s, depth - 1)); return;
  case 21: json_object_set_new(o, "prefixItems", random_schemas(s, depth)); return;
  case 22: json_object_set_new(o, "anyOf", random_schemas(s, depth)); return;
  case 23: json_object_set_new(o, "allOf", random_schemas(s, depth)); return;
  case 24: json_object_set_new(o, "oneOf", random_schemas(s, depth)); return;
  case 25: json_object_set_new(o, "not", random_schema(s, 0)); return;
  case 26: json_object_set_new(o, "$ref", json_string(defs[test_rand_int(s, 0, 2)])); return;
  case 27: json_object_set_new(o, "minProperties", json_integer(test_rand_int(s, 0, 2))); return;
  case 28: json_object_set_new(o, "maxProperties", json_integer(test_rand_int(s, 0, 3))); return;
  case 29: json_object_set_new(o, "uniqueItems", json_true()); return;
  default: json_object_set_new(o, "propertyNames", random_schema(s, 0)); return;
  }
}

static inline json_t *random_schema(uint64_t *s, int depth) {
  int which = test_rand_int(s, 0, 19);
  if (which == 0) return json_false();
  if (which == 1) return json_true();
  json_t *o = json_object();
  for (int i = test_rand_int(s, 1, 3); i > 0; i--) random_keyword(s, o, depth);
  return o;
}

#endif
