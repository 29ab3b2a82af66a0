/* t_schema.c — JSON schemas to grammars: what is generated is valid, what is valid and canonical is let through, what cannot be enforced is refused by name.
 *
 * CYGNET_SCHEMA_DUMP=file: all generated instances as JSON lines, for tools/schema_check.py.
 * CYGNET_SCHEMA_SUITE=file: cases of the public JSON-Schema-Test-Suite, as tools/schema_check.py --suite writes them: none that is invalid may be let
 * through; says which schemas are refused and which valid instances are not let through (in the form that canonical() gives them).
 * CYGNET_SCHEMA_MODEL=file: with the vocabulary of that model instead of a small one. CYGNET_SCHEMA_WALKS=n: answers generated for each case.
 * CYGNET_SCHEMA_ROUNDS=n, CYGNET_SCHEMA_FIRST=n: which random schemas.
 */
#include "t_schema_oracle.h"

#include <time.h>

#include "files/json.h"
#include "text/schema.h"

static struct tokenizer *tokenizer(void) {
  static struct tokenizer *t;
  const char *model = getenv("CYGNET_SCHEMA_MODEL");
  struct err e = {0};
  if (!t && !(t = model && *model ? tok_open(model, &e) : oracle_tokenizer(false, false))) fail_msg("%s", e.msg);
  return t;
}
static struct grammar_vocab *vocab(void) {
  static struct grammar_vocab *v;
  if (!v) v = grammar_vocab_new(tokenizer());
  return v;
}

static struct grammar *compile(const json_t *schema, struct err *e) {
  struct grammar_rules *r = grammar_rules_new();
  int node;
  *e = (struct err){0};
  if (schema_build(r, tokenizer(), schema, SCHEMA_JSON, "schema", &node, e) != 0) {
    assert_true(e->code != ERR_NONE && e->msg[0]);
    grammar_rules_delete(r);
    return NULL;
  }
  rules_root(r, node);
  return grammar_compile(vocab(), r, e);
}

static FILE *dump_file(void) {
  static FILE *f;
  const char *path = getenv("CYGNET_SCHEMA_DUMP");
  if (!f && path && *path) f = fopen(path, "w");
  return f;
}

static void dump(const char *name, const json_t *schema, const char *text) {
  FILE *f = dump_file();
  if (!f) return;
  json_t *line = json_pack("{s:s, s:O, s:s}", "name", name, "schema", (json_t *)schema, "text", text);
  json_dumpf(line, f, JSON_COMPACT);
  fputc('\n', f);
  json_decref(line);
}

/* `times` walks; each must be JSON that the oracle finds valid. */
static int walk_valid(const char *name, struct grammar *g, const json_t *schema, bool openapi, int times, uint64_t *seed) {
  struct oracle o = {.whole = schema, .openapi = openapi};
  struct tok_ids ids = {0};
  struct buf text;
  int n = 0;
  buf_init(&text, 0);
  for (int i = 0; i < times; i++) {
    ids.n = 0;
    if (!oracle_walk(g, tokenizer(), seed, test_rand_int(seed, 0, 60), 1500, &ids)) continue;
    buf_clear(&text);
    tok_decode(tokenizer(), ids.v, ids.n, false, &text);
    json_error_t error;
    json_t *v = json_loadb(buf_cstr(&text), text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!v) fail_msg("%s: not JSON (%s): %s", name, error.text, buf_cstr(&text));
    if (!oracle_valid(&o, schema, v)) fail_msg("%s: not valid: %s", name, buf_cstr(&text));
    if (!openapi) dump(name, schema, buf_cstr(&text));
    json_decref(v);
    n++;
  }
  tok_ids_free(&ids);
  buf_free(&text);
  return n;
}

struct totals {
  int cases, refused, accepted, rejected, generated;
  uint64_t seed;
};

static void instance(const char *name, struct grammar *g, const json_t *schema, bool openapi, const json_t *v, bool valid, bool formats) {
  struct oracle o = {.whole = schema, .openapi = openapi};
  struct buf text;
  buf_init(&text, 0);
  canonical(&text, v);
  if (!formats || valid)
    if (oracle_valid(&o, schema, v) != valid) fail_msg("%s: the oracle errs on %s", name, text.data);
  if (oracle_accepts(g, tokenizer(), text.data, text.len) != valid)
    fail_msg("%s: %s %s", name, valid ? "refused:" : "let through:", text.data);
  buf_free(&text);
}

static void run_case(const json_t *line, struct totals *t) {
  const char *name = json_string_value(json_object_get(line, "name")), *expected = json_string_value(json_object_get(line, "error"));
  const json_t *schema = json_object_get(line, "schema");
  bool openapi = json_is_true(json_object_get(line, "openapi"));
  struct err e;
  struct grammar *g = compile(schema, &e);
  t->cases++;
  if (expected) {
    if (g) fail_msg("%s: not refused", name);
    if (!strstr(e.msg, expected)) fail_msg("%s: expected \"%s\", found \"%s\"", name, expected, e.msg);
    assert_int_equal(e.code, ERR_BAD_INPUT);
    t->refused++;
    return;
  }
  if (!g) fail_msg("%s: %s", name, e.msg);
  char *all = json_dumps(schema, JSON_ENCODE_ANY);
  bool formats = strstr(all, "\"format\"") != NULL;
  free(all);
  size_t i;
  json_t *v;
  json_array_foreach(json_object_get(line, "valid"), i, v) instance(name, g, schema, openapi, v, true, formats), t->accepted++;
  json_array_foreach(json_object_get(line, "invalid"), i, v) instance(name, g, schema, openapi, v, false, formats), t->rejected++;
  const char *walks = getenv("CYGNET_SCHEMA_WALKS");
  t->generated += walk_valid(name, g, schema, openapi, walks ? atoi(walks) : 12, &t->seed);
  grammar_unref(g);
}

static void test_cases(void **state) {
  (void)state;
  struct totals t = {.seed = 20};
  size_t n;
  char *all = test_read(test_path("golden/schema/cases.jsonl"), &n), *from = all;
  const char *only = getenv("CYGNET_SCHEMA_CASE");
  for (char *end; (end = memchr(from, '\n', (size_t)(all + n - from))); from = end + 1) {
    struct err e;
    json_t *line = json_load_text(from, (size_t)(end - from), true, "cases.jsonl", &e);
    if (!line) fail_msg("%s", e.msg);
    if (!only || !strcmp(only, json_string_value(json_object_get(line, "name")))) run_case(line, &t);
    json_decref(line);
  }
  free(all);
  print_message("%d schemas, %d of them refused; %d instances let through, %d not; %d generated\n", t.cases, t.refused, t.accepted,
                t.rejected, t.generated);
}

static void test_suite(void **state) {
  (void)state;
  int n_built = 0, n_refused = 0, n_valid = 0, n_missed = 0, n_invalid = 0, n_wrong = 0;
  size_t n;
  char *all = test_read(getenv("CYGNET_SCHEMA_SUITE"), &n), *from = all;
  for (char *end; (end = memchr(from, '\n', (size_t)(all + n - from))); from = end + 1) {
    struct err e;
    json_t *line = json_load_text(from, (size_t)(end - from), true, "suite", &e);
    if (!line) continue;
    const char *name = json_string_value(json_object_get(line, "name"));
    struct grammar *g = compile(json_object_get(line, "schema"), &e);
    if (!g) print_message("refused  %s: %s\n", name, e.msg);
    n_built += g != NULL;
    n_refused += !g;
    size_t i;
    json_t *v;
    for (int valid = 0; valid < 2 && g; valid++) {
      json_array_foreach(json_object_get(line, valid ? "valid" : "invalid"), i, v) {
        struct buf text;
        buf_init(&text, 0);
        canonical(&text, v);
        bool yes = oracle_accepts(g, tokenizer(), buf_cstr(&text), text.len);
        *(valid ? &n_valid : &n_invalid) += 1;
        if (valid && !yes) n_missed++;
        if (!valid && yes) n_wrong++;
        if (yes != valid) print_message("%s %s: %s\n", valid ? "missed  " : "WRONG   ", name, buf_cstr(&text));
        buf_free(&text);
      }
    }
    grammar_unref(g);
    json_decref(line);
  }
  free(all);
  print_message("%d schemas built, %d refused; %d of %d valid instances let through, %d of %d invalid ones\n", n_built, n_refused,
                n_valid - n_missed, n_valid, n_wrong, n_invalid);
  assert_int_equal(n_wrong, 0);
}

/* ---- schemas by chance ------------------------------------------------------------------------------------------------------------------- */

static void test_random_schemas(void **state) {
  (void)state;
  int n_built = 0, n_refused = 0, n_generated = 0, n_tried = 0;
  const char *rounds = getenv("CYGNET_SCHEMA_ROUNDS"), *first = getenv("CYGNET_SCHEMA_FIRST");
  int from = first ? atoi(first) : 0, to = from + (rounds ? atoi(rounds) : 500);
  for (int i = from; i < to; i++) {
    uint64_t s = 1000 + (uint64_t)i;
    json_t *schema = random_schema(&s, 3);
    if (json_is_object(schema))
      json_object_set_new(schema, "$defs", json_pack("{s:o, s:o}", "x", random_schema(&s, 2), "y", random_schema(&s, 2)));
    char name[40];
    snprintf(name, sizeof name, "random schema %d", i);
    struct err e;
    struct grammar *g = compile(schema, &e);
    char *text = json_dumps(schema, JSON_ENCODE_ANY);
    if (g) {
      n_built++;
      n_generated += walk_valid(text, g, schema, false, 3, &s);
      struct oracle o = {.whole = schema};
      for (int k = 0; k < 20; k++) { /* what is not valid is never let through */
        json_t *v = random_value(&s, 3);
        struct buf b;
        buf_init(&b, 0);
        canonical(&b, v);
        if (oracle_accepts(g, tokenizer(), b.data, b.len) && !oracle_valid(&o, schema, v)) fail_msg("%s: lets through %s", text, b.data);
        buf_free(&b);
        json_decref(v);
        n_tried++;
      }
    } else {
      n_refused++;
      if (strstr(e.msg, "no value satisfies")) { /* then none does */
        struct oracle o = {.whole = schema};
        for (int k = 0; k < 40; k++) {
          json_t *v = random_value(&s, 3);
          if (oracle_valid(&o, schema, v)) {
            struct buf b;
            buf_init(&b, 0);
            canonical(&b, v);
            fail_msg("%s: satisfied by %s, but refused: %s", text, b.data, e.msg);
          }
          json_decref(v);
        }
      }
    }
    free(text);
    grammar_unref(g);
    json_decref(schema);
  }
  print_message("%d schemas built, %d refused; %d instances generated, %d tried\n", n_built, n_refused, n_generated, n_tried);
}

/* Keywords with anything behind them: built or refused, never a crash. */
static json_t *nonsense(uint64_t *s, int depth) {
  static const char *const words[] = {"type",
                                      "enum",
                                      "const",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "patternProperties",
                                      "propertyNames",
                                      "minProperties",
                                      "maxProperties",
                                      "items",
                                      "prefixItems",
                                      "additionalItems",
                                      "minItems",
                                      "maxItems",
                                      "uniqueItems",
                                      "minLength",
                                      "maxLength",
                                      "pattern",
                                      "format",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "multipleOf",
                                      "anyOf",
                                      "oneOf",
                                      "allOf",
                                      "not",
                                      "$ref",
                                      "$defs",
                                      "definitions",
                                      "$anchor",
                                      "$id",
                                      "nullable",
                                      "if",
                                      "x"};
  static const char *const texts[] = {
      "string", "object", "array",        "integer",        "#",     "#/$defs/x", "#x",           "^a(",     "[",    "a{2,1}", "date",
      "email",  "a.json", "http://a/b#c", "#/properties/x", "#/%zz", "//",        "\xef\xbf\xbf", "../../x", "urn:x"};
  switch (test_rand_int(s, 0, depth > 0 ? 9 : 4)) {
  case 0: return json_integer(test_rand_int(s, -2, 6));
  case 1: return json_real(test_rand_int(s, 0, 1) ? 1e300 : -0.125);
  case 2: return json_boolean(test_rand_int(s, 0, 1));
  case 3: return json_null();
  case 4: return json_string(texts[test_rand_int(s, 0, (int)ARRAY_LEN(texts) - 1)]);
  case 5: {
    json_t *v = json_array();
    for (int i = test_rand_int(s, 0, 3); i > 0; i--) json_array_append_new(v, nonsense(s, depth - 1));
    return v;
  }
  default: {
    json_t *v = json_object();
    for (int i = test_rand_int(s, 0, 4); i > 0; i--)
      json_object_set_new(v, words[test_rand_int(s, 0, (int)ARRAY_LEN(words) - 1)], nonsense(s, depth - 1));
    return v;
  }
  }
}

static void test_nonsense(void **state) {
  (void)state;
  uint64_t s = 77;
  int n_built = 0, n_refused = 0;
  for (int i = 0; i < 6000 / TEST_LESS; i++) {
    json_t *schema = nonsense(&s, 5);
    struct err e;
    struct grammar *g = compile(schema, &e);
    n_built += g != NULL;
    n_refused += !g;
    grammar_unref(g);
    json_decref(schema);
  }
  print_message("%d built, %d refused\n", n_built, n_refused);
}

/* Keywords that are well-formed, with numbers from the edges of what holds them. */
static json_t *extreme(uint64_t *s, int depth) {
  static const char *const counts[] = {"minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"};
  static const char *const numbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
  static const char *const schemas[] = {"items", "additionalProperties", "propertyNames", "not"};
  static const char *const lists[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
  static const char *const texts[] = {"pattern", "format", "type", "$ref"};
  static const char *const values[][4] = {{"^a{0,3}$", "[^b]", "a|", ""},
                                          {"date", "ipv4", "uuid", "x"},
                                          {"object", "array", "integer", "string"},
                                          {"#", "#/$defs/x", "x", "#/properties/a"}};
  static const int64_t edges[] = {
      0, 1, 2, 3, 8, 64, 65, 65536, 65537, INT32_MAX, (int64_t)INT32_MAX + 1, (int64_t)1 << 53, INT64_MAX - 1, INT64_MAX};
  static const double reals[] = {0.1, 1e15, 1e19, 1e300, 1e-300, 2.5, 9e15};
  json_t *o = json_object();
  for (int i = test_rand_int(s, 1, 5); i > 0; i--) {
    int64_t n = edges[test_rand_int(s, 0, (int)ARRAY_LEN(edges) - 1)];
    int which = test_rand_int(s, 0, 9), k = test_rand_int(s, 0, 3);
    if (which < 3) json_object_set_new(o, counts[test_rand_int(s, 0, 5)], json_integer(n));
    else if (which == 3) json_object_set_new(o, numbers[test_rand_int(s, 0, 4)], json_integer(k ? n : -n - (n == INT64_MAX)));
    else if (which == 4) json_object_set_new(o, numbers[test_rand_int(s, 0, 4)], json_real(reals[test_rand_int(s, 0, 6)] * (k ? 1 : -1)));
    else if (which == 5) json_object_set_new(o, texts[k], json_string(values[k][test_rand_int(s, 0, 3)]));
    else if (which == 6) json_object_set_new(o, "enum", json_pack("[I, s, n, {s:I}]", (json_int_t)n, "a", "a", (json_int_t)n));
    else if (which == 7)
      json_object_set_new(o, schemas[k], depth && k < 3 ? extreme(s, depth - 1) : json_pack("{s:[I]}", "enum", (json_int_t)n));
    else if (which == 8 && depth) json_object_set_new(o, lists[k], json_pack("[o, o]", extreme(s, depth - 1), extreme(s, depth - 1)));
    else if (depth) json_object_set_new(o, "properties", json_pack("{s:o, s:o}", "a", extreme(s, depth - 1), "b", extreme(s, depth - 1)));
    if (test_rand_int(s, 0, 9) == 0) json_object_set_new(o, "uniqueItems", json_true());
    if (test_rand_int(s, 0, 9) == 0) json_object_set_new(o, "required", json_pack("[s]", k ? "a" : "z"));
  }
  return o;
}

static void test_extremes(void **state) {
  (void)state;
  const char *more = getenv("CYGNET_SCHEMA_ROUNDS");
  uint64_t s = 5;
  int n_built = 0, n_rounds = more && *more ? atoi(more) : 500;
  for (int i = 0; i < n_rounds; i++) {
    json_t *schema = extreme(&s, 3);
    struct err e = {0};
    struct grammar_rules *r = grammar_rules_new();
    int node;
    if (schema_build(r, tokenizer(), schema, i % 2 ? SCHEMA_JSON : SCHEMA_GEMMA4_CALL, "schema", &node, &e) == 0) n_built++;
    else assert_true(e.code != ERR_NONE && e.msg[0]);
    grammar_rules_delete(r);
    json_decref(schema);
  }
  print_message("%d of %d built\n", n_built, n_rounds);
  assert_true(n_built > n_rounds / 20);
}

/* How often the text can come again and again. */
static int repeats(const char *schema_text, const char *text) {
  struct err e;
  json_t *schema = json_loads(schema_text, 0, NULL);
  struct grammar *g = compile(schema, &e);
  if (!g) fail_msg("%s", e.msg);
  struct grammar_state *s = grammar_state_new(g);
  int n = 0;
  for (bool good = true; good && n < 1000; n += good)
    for (const char *p = text; *p && good; p++) good = grammar_accept(s, oracle_byte(tokenizer(), (unsigned char)*p));
  grammar_state_delete(s);
  grammar_unref(g);
  json_decref(schema);
  return n;
}

/* Texts that are no canonical form of a value. */
static void test_texts(void **state) {
  (void)state;
  static const struct {
    const char *schema, *text;
    bool good;
  } lines[] = {
      {"{\"type\": \"object\", \"minProperties\": 2, \"properties\": {\"a\": {}}}", "{\"a\": 1, \"x\": 2}", true},
      {"{\"type\": \"object\", \"minProperties\": 2, \"properties\": {\"a\": {}}}", "{\"x\": 1, \"x\": 2}", false}, /* that is one member */
      {"{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}}", "{\"b\": 1, \"a\": 2}", false},
      {"{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}}", "{\"a\": 1, \"a\": 2}", false},
      {"{}", "{\"a\":1}", false},
      {"{}", " 1", false},
      {"{}", "[1,2]", false},
      {"{}", "[1, 2 ]", false},
      {"{}", "01", false},
      {"{}", "1.", false},
      {"{}", "1e400", false},
      {"{}", "NaN", false},
      {"{}", "12345678901234567890", false},
      {"{\"type\": \"integer\"}", "9223372036854775808", false},
      {"{\"type\": \"integer\"}", "-0", false},
      {"{\"type\": \"string\"}", "\"\n\"", false},
      {"{\"type\": \"string\"}", "\"\\n\"", true},
      {"{\"type\": \"string\"}", "\"\\/\"", false},
      {"{\"type\": \"string\"}", "\"\\u00e9\"", false},
      {"{\"type\": \"string\"}", "\"\\u000a\"", false}, /* \n */
      {"{\"type\": \"string\"}", "\"\\u0000\"", false},
      {"{\"type\": \"string\"}", "\"\xc3\xa9\"", true},
      {"{\"type\": \"string\"}", "\"\xed\xa0\x80\"", false}, /* half of a pair */
  };
  for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
    struct err e;
    json_t *schema = json_loads(lines[i].schema, 0, NULL);
    struct grammar *g = compile(schema, &e);
    if (!g) fail_msg("%s", e.msg);
    if (oracle_accepts(g, tokenizer(), lines[i].text, strlen(lines[i].text)) != lines[i].good)
      fail_msg("%s: %s %s", lines[i].schema, lines[i].good ? "refused" : "let through", lines[i].text);
    grammar_unref(g);
    json_decref(schema);
  }
}

/* Values are never nested deeper than readers take, and not much less either. */
static void test_depth(void **state) {
  (void)state;
  assert_in_range(repeats("{}", "["), 16, 18);
  assert_in_range(repeats("{}", "{\"a\": "), 16, 18);
  assert_in_range(repeats("{\"items\": {\"$ref\": \"#\"}, \"type\": \"array\"}", "["), 40, 42);
  assert_in_range(
      repeats(
          "{\"type\": \"object\", \"properties\": {\"a\": {\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}}, \"required\": [\"a\"]}",
          "{\"a\": "),
      39, 42);
  assert_in_range(
      repeats("{\"anyOf\": [{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}, {\"type\": \"array\", \"items\": {\"type\": \"array\"}}]}",
              "["),
      40, 64);
  /* 20 arrays around a circle that leads to any value */
  char text[1000] = "";
  for (int i = 0; i < 20; i++) strcat(text, "{\"type\":\"array\",\"items\":");
  strcat(text, "{\"$ref\":\"#/$defs/x\"}");
  for (int i = 0; i < 20; i++)
    strcat(text,
           i < 19 ? "}" : ",\"$defs\":{\"x\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/x\"},{\"type\":\"array\"}]}}}}");
  assert_in_range(repeats(text, "["), 30, 64);
}

/* ---- large and endless ------------------------------------------------------------------------------------------------------------------- */

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Built or refused, within seconds. */
static void bounded(const char *name, json_t *schema, bool must_build) {
  struct err e;
  double from = now();
  struct grammar *g = compile(schema, &e);
  double took = now() - from;
  print_message("%-28s %6.0f ms  %s\n", name, 1e3 * took, g ? "built" : e.msg);
  if (must_build && !g) fail_msg("%s: %s", name, e.msg);
  if (took > 10) fail_msg("%s: took %.1f s", name, took);
  grammar_unref(g);
  json_decref(schema);
}

static json_t *many_properties(int n, bool required, bool closed) {
  json_t *p = json_object(), *r = json_array();
  for (int i = 0; i < n; i++) {
    char key[32];
    snprintf(key, sizeof key, "property%d", i);
    json_object_set_new(p, key, json_pack("{s:s}", "type", "integer"));
    if (required) json_array_append_new(r, json_string(key));
  }
  return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", p, "required", r, "additionalProperties", !closed);
}

static json_t *doubling(const char *keyword, int n) { /* 2^n ways through $defs */
  json_t *defs = json_object();
  for (int i = 0; i < n; i++) {
    char key[16], ref[32];
    snprintf(key, sizeof key, "d%d", i);
    snprintf(ref, sizeof ref, "#/$defs/d%d", i + 1);
    json_object_set_new(defs, key, json_pack("{s:[{s:s}, {s:s, s:i}]}", keyword, "$ref", ref, "$ref", ref, "minLength", i));
  }
  char last[16];
  snprintf(last, sizeof last, "d%d", n);
  json_object_set_new(defs, last, json_pack("{s:s}", "type", "string"));
  return json_pack("{s:s, s:o}", "$ref", "#/$defs/d0", "$defs", defs);
}

static void test_bounded(void **state) {
  (void)state;
  bounded("2500 required properties", many_properties(2500, true, true), true);
  bounded("1500 optional properties", many_properties(1500, false, true), true);
  bounded("1500 optional, open", many_properties(1500, false, false), true);
  bounded("2500 optional properties", many_properties(2500, false, true), false);
  json_t *values = json_array();
  for (int i = 0; i < 8000; i++) {
    char text[32];
    snprintf(text, sizeof text, "value number %d", i * 7);
    json_array_append_new(values, json_string(text));
  }
  bounded("enum of 8000", json_pack("{s:O}", "enum", values), true);
  bounded("two enums of 8000", json_pack("{s:[{s:O}, {s:o}]}", "allOf", "enum", values, "enum", values), false);
  bounded("unique of 12",
          json_loads("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10,11,12]}}", 0, NULL), true);
  bounded("doubling anyOf", doubling("anyOf", 60), false);
  bounded("doubling allOf", doubling("allOf", 60), false);
  bounded("doubling oneOf", doubling("oneOf", 30), false);
  json_t *deep = json_object();
  for (int i = 0; i < 150; i++) deep = json_pack("{s:s, s:o}", "type", "array", "items", deep);
  bounded("150 arrays deep", deep, true);
  deep = json_object();
  for (int i = 0; i < 5000; i++) deep = json_pack("{s:[o]}", "allOf", deep);
  bounded("5000 allOf deep", deep, false);
  json_t *chain = json_object();
  for (int i = 0; i < 1000; i++) {
    char key[16], ref[32];
    snprintf(key, sizeof key, "c%d", i);
    snprintf(ref, sizeof ref, "#/$defs/c%d", (i + 1) % 1000);
    json_object_set_new(chain, key, json_pack("{s:s}", "$ref", ref));
  }
  bounded("circle of 1000", json_pack("{s:s, s:o}", "$ref", "#/$defs/c0", "$defs", chain), false);
  bounded("long strings", json_loads("{\"type\":\"string\",\"minLength\":50000,\"maxLength\":60000}", 0, NULL), true);
  bounded("long patterns", json_loads("{\"type\":\"string\",\"pattern\":\"^[a-z]{2000}$\",\"maxLength\":4000}", 0, NULL), true);
  bounded("many items", json_loads("{\"type\":\"array\",\"minItems\":60000,\"items\":{\"type\":\"integer\"}}", 0, NULL), true);
  json_t *counted = many_properties(150, false, true);
  json_object_set_new(counted, "minProperties", json_integer(50));
  json_object_set_new(counted, "maxProperties", json_integer(100));
  bounded("150 counted members", counted, true);
}

/* Numbers at the edge of what they are kept in, and a reference that is shorter than the host of its base. */
static void test_edges(void **state) {
  (void)state;
  static const char *const schemas[] = {
      "{\"type\":[\"object\",\"null\"],\"minProperties\":9223372036854775807,\"additionalProperties\":false}",
      "{\"type\":[\"integer\",\"null\"],\"exclusiveMinimum\":9223372036854775807,\"multipleOf\":7}",
  };
  for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
    struct err e;
    json_t *schema = json_loads(schemas[i], 0, NULL);
    struct grammar *g = compile(schema, &e);
    if (!g) fail_msg("%s: %s", schemas[i], e.msg);
    assert_true(oracle_accepts(g, tokenizer(), "null", 4));
    assert_false(oracle_accepts(g, tokenizer(), "{}", 2));
    assert_false(oracle_accepts(g, tokenizer(), "7", 1));
    grammar_unref(g);
    json_decref(schema);
  }
  char host[20000], id[sizeof host + 20];
  memset(host, 'a', sizeof host - 1);
  host[sizeof host - 1] = 0;
  snprintf(id, sizeof id, "http://%s/x", host);
  bounded("short reference", json_pack("{s:s, s:{s:{s:s}}}", "$id", id, "properties", "p", "$id", "//b"), true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cases), cmocka_unit_test(test_random_schemas), cmocka_unit_test(test_nonsense), cmocka_unit_test(test_depth),
      cmocka_unit_test(test_texts), cmocka_unit_test(test_bounded),        cmocka_unit_test(test_edges),    cmocka_unit_test(test_extremes),
  };
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  const struct CMUnitTest public[] = {cmocka_unit_test(test_suite)};
  const char *suite = getenv("CYGNET_SCHEMA_SUITE");
  int rc = cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
  if (suite && *suite) rc |= cmocka_run_group_tests(public, NULL, NULL) ? 1 : 0;
  grammar_vocab_delete(vocab());
  tok_close(tokenizer());
  if (dump_file()) fclose(dump_file());
  return rc;
}
