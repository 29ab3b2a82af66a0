/* t_gbnf.c — grammars as text: what each construct matches, tokens, and refusals that say where. */
#include "grammar_toy.h"

#include <stdio.h>

static struct toy toy;
static struct grammar_vocab *vocab;

static int setup(void **state) {
  (void)state;
  toy_init(&toy, (const char *const[]){"ab"}, 1);
  vocab = grammar_vocab_new(&toy.t);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  grammar_vocab_delete(vocab);
  vocab_free(&toy.t.vocab);
  return 0;
}

static struct grammar *compile(struct str text, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  if (!gbnf_parse(g, &toy.t, text, e)) return grammar_compile(vocab, g, e);
  grammar_rules_delete(g);
  return NULL;
}

/* {a} and {b} stand for the control tokens, everything else for its bytes. */
static bool matches(struct grammar *g, const char *text) {
  struct grammar_state *s = grammar_state_new(g);
  bool going = true;
  for (const char *p = text; *p && going; p++) {
    if (!strncmp(p, "{a}", 3) || !strncmp(p, "{b}", 3)) {
      going = grammar_accept(s, p[1] == 'a' ? TOY_A : TOY_B);
      p += 2;
    } else {
      going = grammar_accept(s, TOY_BYTE + (unsigned char)*p);
    }
  }
  going = going && grammar_may_end(s);
  grammar_state_delete(s);
  return going;
}

struct sample {
  const char *grammar;
  const char *yes[8], *no[8];
};

static const char json[] =
    "# a grammar with comments\n"
    "root   ::= object   # an object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::=\n"
    "  \"{\" ws (\n"
    "            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*\n"
    "  )? \"}\" ws\n"
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const struct sample samples[] = {
    {json,
     {"{}", "{\"a\":1}", "{ \"a\": [1,-2.5e+7, \"x\\u00e9\\n\"],\"b\":{\"c\":null }}\n    ", "{\"\xC3\xA9\":\"\xF0\x9F\x98\x80\"}"},
     {"", "[]", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\x01\"}", "{\"a\"}", "{}{}"}},
    {"root ::= \"a\"{2,3} 'b'{2} | [x-z]{2,} | \"q\"{,2} \".\"",
     {"aabb", "aaabb", "xyz", ".", "qq."},
     {"abb", "aaaabb", "x", "qqq.", "aab"}},
    {"root ::= a | b\na ::= \"x\" a \"y\" | \"\"\nb::=\"z\"+", {"", "xy", "xxyy", "z", "zzz"}, {"x", "xyy", "xz"}},
    {"root ::= a \".\"\na ::= \"x\" b | \"y\"? a | \"\"\nb ::= \"z\" a",
     {".", "xz.", "xzyxz.", "yyy."},
     {"x.", "z."}}, /* regular, although it recurs */
    {"root ::= . [^a]", {"ab", "\xE6\x97\xA5\n"}, {"aa", "a", "abc"}},
    {"root ::= [a\\-\\]^] \"\\x41\\u00e9\\U0001F600\\\"\\\\\"",
     {"-A\xC3\xA9\xF0\x9F\x98\x80\"\\", "]A\xC3\xA9\xF0\x9F\x98\x80\"\\"},
     {"bA"}},
    {"root ::= <|a|> \"x\" <[4]> | !<|b|>", {"{a}x{b}", "{a}", "x"}, {"{b}", "{a}x{a}", ""}},
    {"root ::= \"<|a|>\"", {"<|a|>"}, {"{a}"}},
    {"root ::= (\"a\" | (\"b\" (\"c\" | )))*", {"", "abcba"}, {"c"}},
    {"root ::= rule_1-x RULE2\nrule_1-x ::= \"1\"\n\n\nRULE2 ::= \"2\"\n| \"3\"", {"12", "13"}, {"1"}},
    {"root ::= \"\\uD83D\\uDE00\" []? [-a] [a-]",
     {"\xF0\x9F\x98\x80--", "\xF0\x9F\x98\x80"
                            "aa"},
     {"\xF0\x9F\x98\x80"}},
};

static void test_samples(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    struct err e = {0};
    struct grammar *g = compile(str_c(samples[i].grammar), &e);
    if (!g) fail_msg("sample %zu: %s", i, e.msg);
    for (int k = 0; k < 8; k++) {
      if (samples[i].yes[k] && !matches(g, samples[i].yes[k])) fail_msg("sample %zu does not match \"%s\"", i, samples[i].yes[k]);
      if (samples[i].no[k] && matches(g, samples[i].no[k])) fail_msg("sample %zu matches \"%s\"", i, samples[i].no[k]);
    }
    grammar_unref(g);
  }
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *grammar, *why;
  } cases[] = {
      {"", "found nothing"},
      {"# only a comment", "found nothing"},
      {"a ::= \"x\"", "called root"},
      {"root ::= other", "rule \"other\" is used but not defined"},
      {"root ::= root \"x\" | \"y\"", "rule \"root\" is left-recursive"},
      {"root ::= a\na ::= \"\"? b \"x\"\nb ::= [0-9]* a | \"y\"", "left-recursive"},
      {"root ::= a \"x\"\na ::= a", "nothing matches"},
      {"root ::= a \"x\"\na ::= a \"y\" | \"z\"", "rule \"a\" is left-recursive"},
      {"root ::= \"x\" root", "nothing matches"},
      {"root ::= \"x\nb ::= \"y\"", "closing quote"},
      {"root ::= [a-", "without ]"},
      {"root ::= [z-a]", "before it begins"},
      {"root ::= (\"a\"", "expected )"},
      {"root ::= \"a\")", "without ("},
      {"root ::= \"a\"{3,2}", "up to 65536"},
      {"root ::= \"a\"{70000}", "up to 65536"},
      {"root ::= \"a\"{x}", "repetition like"},
      {"root ::= * \"a\"", "expected a text"},
      {"root ::= \"\\q\"", "expected an escape"},
      {"root ::= \"\\u12\"", "hexadecimal"},
      {"root ::= \"\\uD800\"", "expected a character"},
      {"root ::= <nothing>", "no token"},
      {"root ::= <[99999]>", "expected the id"},
      {"root ::= <x", "without >"},
      {"root ::= (= \"a\") \"a\"", "look-ahead"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined already"},
      {"root \"a\"", "expected a rule"},
      {"root ::= \"a\" ; b", "expected a text"},
      {"root ::= \"\xFF\"", "UTF-8"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct err e = {0};
    size_t n = strlen(cases[i].grammar);
    char *guarded = test_guard_alloc(n);
    memcpy(guarded, cases[i].grammar, n);
    if (compile(str_of(guarded, n), &e)) fail_msg("\"%s\" is not refused", cases[i].grammar);
    if (e.code != ERR_BAD_INPUT || !strstr(e.msg, cases[i].why))
      fail_msg("\"%s\": expected \"%s\", found \"%s\"", cases[i].grammar, cases[i].why, e.msg);
    test_guard_free(guarded, n);
  }
}

static void test_where(void **state) {
  (void)state;
  struct err e = {0};
  assert_null(compile(str_c("root ::= a\n# x\na ::= \"b\" \\"), &e));
  assert_string_equal(e.msg, "grammar: line 3, byte 11: expected a text, a class, a group or the name of a rule, found \"\\\"");
}

static void test_any_text(void **state) {
  (void)state;
  static const char *const parts[] = {"root", "::=", " ", "\n", "\"", "a", "|", "(", ")", "[",  "]",  "^",     "-", "*", "+",
                                      "?",    "{",   "}", "1",  ",",  "<", ">", "!", ".", "\\", "x4", "u00e9", "#", "'", "\xC3\xA9"};
  uint64_t r = 99;
  int n_good = 0;
  for (int i = 0; i < 20000; i++) {
    char text[200] = "root ::= ";
    for (int k = test_rand_int(&r, 0, 14); k > 0; k--) strcat(text, parts[test_rand_int(&r, 0, (int)ARRAY_LEN(parts) - 1)]);
    struct err e = {0};
    struct grammar *g = compile(str_c(text + (i % 7 == 0 ? 5 : 0)), &e);
    if (!g) assert_true(e.code == ERR_BAD_INPUT && e.msg[0]);
    n_good += g != NULL;
    grammar_unref(g);
  }
  assert_true(n_good > 100);
}

const struct CMUnitTest tests[] = {cmocka_unit_test(test_samples), cmocka_unit_test(test_refused), cmocka_unit_test(test_where),
                                   cmocka_unit_test(test_any_text)};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
