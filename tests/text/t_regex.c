/* t_regex.c — regular expressions against what another implementation says of random ones (golden/text/regex.jsonl, made by tools/golden/gen_regex.py);
 * anchors, escapes and refusals by hand. */
#include "sample.h"

#include "grammar_toy.h"

static struct toy toy;
static struct grammar_vocab *vocab;

static int setup(void **state) {
  (void)state;
  toy_init(&toy, NULL, 0);
  vocab = grammar_vocab_new(&toy.t);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  grammar_vocab_delete(vocab);
  vocab_free(&toy.t.vocab);
  return 0;
}

/* NULL: refused, or it matches nothing (then *nothing). */
static struct grammar *compile(struct str pattern, bool search, struct err *e, bool *nothing) {
  struct grammar_rules *g = grammar_rules_new();
  int node;
  *nothing = false;
  if ((search ? regex_search : regex_parse)(g, pattern, &node, e)) {
    grammar_rules_delete(g);
    return NULL;
  }
  rules_root(g, node);
  struct grammar *made = grammar_compile(vocab, g, e);
  *nothing = !made && strstr(e->msg, "nothing matches");
  if (!made && !*nothing) fail_msg("%.*s: %s", (int)pattern.n, pattern.p, e->msg);
  return made;
}

static bool matches(struct grammar *g, struct str text) {
  if (!g) return false;
  struct grammar_state *s = grammar_state_new(g);
  bool going = true;
  for (size_t i = 0; i < text.n && going; i++) going = grammar_accept(s, TOY_BYTE + (unsigned char)text.p[i]);
  going = going && grammar_may_end(s);
  grammar_state_delete(s);
  return going;
}

static int n_checked, n_refused, n_yes;

static void check_texts(struct grammar *g, const json_t *line, const char *key, bool expected) {
  size_t i;
  json_t *text;
  json_array_foreach(json_object_get(line, key), i, text) {
    struct str s = str_of(json_string_value(text), json_string_length(text));
    if (matches(g, s) != expected) fail_msg("%s: \"%.*s\" %s", json_string_value(json_object_get(line, "pattern")), (int)s.n, s.p, key);
    n_checked++;
    n_yes += expected;
  }
}

static void check_line(const json_t *line, void *ctx) {
  (void)ctx;
  for (int search = 0; search < 2; search++) {
    struct err e = {0};
    bool nothing;
    struct grammar *g = compile(json_str(line, "pattern"), search, &e, &nothing);
    if (!g && !nothing) {
      if (!strstr(e.msg, "an anchor inside a repetition")) fail_msg("%s: %s", json_string_value(json_object_get(line, "pattern")), e.msg);
      n_refused++;
      continue;
    }
    check_texts(g, line, search ? "search" : "whole", true);
    check_texts(g, line, search ? "no_search" : "no_whole", false);
    grammar_unref(g);
  }
}

static void test_random(void **state) {
  (void)state;
  int lines = each_line("regex.jsonl", check_line, NULL);
  print_message("%d patterns, %d texts checked, %d matching; %d refused\n", lines, n_checked, n_yes, n_refused);
  assert_true(lines >= 500 && n_yes > 1000 && n_refused < lines / 10);
}

static void test_by_hand(void **state) {
  (void)state;
  static const struct {
    const char *pattern;
    bool search;
    const char *text;
    bool expected;
  } cases[] = {
      {"(^|_)x", true, "x", true},
      {"(^|_)x", true, "a_xb", true},
      {"(^|_)x", true, "ax", false},
      {"a$|^b", true, "ca", true},
      {"a$|^b", true, "bc", true},
      {"a$|^b", true, "ab", false},
      {"^$", true, "", true},
      {"^$", true, "a", false},
      {"a^b", true, "ab", false},
      {"a*^b", true, "b", true},
      {"a*^b", true, "ab", false},
      {"a$b*", true, "xa", true},
      {"a$b*", true, "ab", false},
      {"(^a)?b", true, "ab", true},
      {"(^a)?b", true, "cb", true},
      {"(^a)?b$", false, "ab", true},
      {"", true, "anything", true},
      {"", false, "", true},
      {"", false, "a", false},
      {"a|", false, "", true},
      {"\\d+", false, "12", true},
      {"\\d", false, "\xD9\xA1", false},
      {"\\D", false, "\xD9\xA1", false},
      {"\\D", false, "x", true},
      {"[^\\D]", false, "7", true},
      {"[^\\D]", false, "\xD9\xA1", false},
      {"\\w", false, "\xC3\xA9", false},
      {"\\W", false, "\xC3\xA9", false},
      {"\\W", false, "-", true},
      {"[^\\w]", false, "\xC3\xA9", false},
      {".", false, "\r", false},
      {".", false, "\xE2\x80\xA8", false},
      {".", false, "\xF0\x9F\x98\x80", true},
      {"\\p{Lu}", false, "\xC3\x89", true},
      {"\\p{Lu}", false, "\xC3\xA9", false},
      {"\\P{L}", false, "1", true},
      {"\\P{L}", false, "a", false},
      {"\\p{Letter}+", false, "\xC3\xA9z", true},
      {"[\\p{Nd}x]", false, "\xD9\xA1", true},
      {"\\uD83D\\uDE00", false, "\xF0\x9F\x98\x80", true},
      {"\\u{1F600}", false, "\xF0\x9F\x98\x80", true},
      {"x{y}", false, "x{y}", true},
      {"a{65536}", false, "aaaa", false},
      {"[\\b]", false, "\b", true},
      {"a{0}b", false, "b", true},
      {"(?<year>\\d{4})-", false, "2024-", true},
      {"]}", false, "]}", true},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct err e = {0};
    bool nothing;
    struct grammar *g = compile(str_c(cases[i].pattern), cases[i].search, &e, &nothing);
    if (!g && !nothing) fail_msg("%s: %s", cases[i].pattern, e.msg);
    if (matches(g, str_c(cases[i].text)) != cases[i].expected)
      fail_msg("%s: \"%s\" is not %d", cases[i].pattern, cases[i].text, cases[i].expected);
    grammar_unref(g);
  }
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *why;
  } cases[] = {
      {"(?=a)", "look-ahead"},
      {"(?!a)", "look-ahead"},
      {"(?<=a)", "look-behind"},
      {"(?<!a)b", "look-behind"},
      {"(a)\\1", "back references"},
      {"(?P=n)", "back references"},
      {"\\k<n>", "back references"},
      {"\\bword", "word borders"},
      {"\\B", "word borders"},
      {"(?i)a", "flags"},
      {"(?>a)", "atomic"},
      {"a**", "repetition of a repetition"},
      {"a{2}{3}", "repetition of a repetition"},
      {"a*+", "repetition of a repetition"},
      {"*a", "nothing to repeat"},
      {"(a", "without )"},
      {"a)", "without ("},
      {"[a", "without ]"},
      {"[]", "empty class"},
      {"[z-a]", "before it begins"},
      {"a{3,2}", "up to 65536"},
      {"a{65537}", "up to 65536"},
      {"a{,3}", "first number"},
      {"\\", "backslash"},
      {"\\x4", "hexadecimal"},
      {"\\uD800", "surrogate"},
      {"\\p{Greek}", "general category"},
      {"\\q", "escape"},
      {"(^a)*", "anchor inside"},
      {"[[:alpha:]]", "named classes"},
      {"[a-\\d]", "range"},
      {"[\\d-z]", "range"},
      {"(?#x)", "flags"},
      {"\\A", "escape"},
      {"a\xFF", "UTF-8"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    for (int search = 0; search < 2; search++) {
      struct err e = {0};
      struct grammar_rules *g = grammar_rules_new();
      int node;
      size_t n = strlen(cases[i].pattern);
      char *guarded = test_guard_alloc(n);
      memcpy(guarded, cases[i].pattern, n);
      if ((search ? regex_search : regex_parse)(g, str_of(guarded, n), &node, &e) == 0) fail_msg("%s is not refused", cases[i].pattern);
      if (e.code != ERR_BAD_INPUT || !strstr(e.msg, cases[i].why))
        fail_msg("%s: expected \"%s\", found \"%s\"", cases[i].pattern, cases[i].why, e.msg);
      test_guard_free(guarded, n);
      grammar_rules_delete(g);
    }
}

/* Any text is a pattern or is refused; parsing it takes no time worth mentioning. */
static void test_any_text(void **state) {
  (void)state;
  static const char letters[] = "ab()[]{}|*+?^$\\.-,0123dwspLuxPD:=<>!\n\xC3\xA9";
  uint64_t r = 77;
  int n_good = 0;
  for (int i = 0; i < 20000; i++) {
    char text[24];
    int n = test_rand_int(&r, 0, 23), node;
    for (int k = 0; k < n; k++) text[k] = letters[test_rand_int(&r, 0, (int)sizeof letters - 2)];
    struct grammar_rules *g = grammar_rules_new();
    struct err e = {0};
    if (regex_search(g, str_of(text, (size_t)n), &node, &e)) assert_true(e.code == ERR_BAD_INPUT && e.msg[0]);
    else n_good++;
    grammar_rules_delete(g);
  }
  assert_true(n_good > 200);
}

const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_by_hand), cmocka_unit_test(test_refused),
                                   cmocka_unit_test(test_any_text)};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
