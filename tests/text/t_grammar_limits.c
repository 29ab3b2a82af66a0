/* t_grammar_limits.c — grammars that were written to hurt: bounded time, memory and depth, or a refusal with a sentence. Times are of this process's own. */
#include "grammar_toy.h"

#include <stdio.h>
#include <time.h>

#include "text/grammar_impl.h"

static struct toy toy;
static struct grammar_vocab *vocab;

static int setup(void **state) {
  (void)state;
  toy_init(&toy,
           (const char *const[]){"ab", "aa", "aaaaaaaaaaaaaaaa", "((((", "))))", "abcabcabcabcabc", "\xE6\x97\xA5\xE6\x9C\xAC",
                                 "{\"a\":", "[[[[", "]]]]"},
           10);
  vocab = grammar_vocab_new(&toy.t);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  grammar_vocab_delete(vocab);
  vocab_free(&toy.t.vocab);
  return 0;
}

enum { SECONDS_MAX = 10 }; /* generous: sanitizers are slow */
static clock_t began;
static void begin(void) { began = clock(); }
static void end(const char *what) {
  double took = (double)(clock() - began) / CLOCKS_PER_SEC;
  if (took > SECONDS_MAX) fail_msg("%s took %.1f s", what, took);
}

static struct grammar *regex(const char *text, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  int node;
  if (regex_parse(g, str_c(text), &node, e)) {
    grammar_rules_delete(g);
    return NULL;
  }
  rules_root(g, node);
  return grammar_compile(vocab, g, e);
}

static struct grammar *good(struct grammar *g, const struct err *e) {
  if (!g) fail_msg("%s", e->msg);
  return g;
}

static bool feed(struct grammar_state *s, const char *text) {
  for (const char *p = text; *p; p++)
    if (!grammar_accept(s, TOY_BYTE + (unsigned char)*p)) return false;
  return true;
}

static void test_repetitions(void **state) {
  (void)state;
  static const char *const patterns[] = {"((a*)*)*",
                                         "(((a{0,1000}){0,1000}){0,1000})b?",
                                         "((a|aa|aaa){0,5000}){2,70}",
                                         "(a?){60000}a{60000}",
                                         "((ab?|b){3,900}){3,900}",
                                         "(.{0,300}.{0,300}){0,300}",
                                         "([a-z]*[a-y]*[a-x]*)*b",
                                         "(a|b)*a(a|b){30}",
                                         "((((((a+)+)+)+)+)+)+",
                                         "(.*a){40}"};
  for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
    struct err e = {0};
    begin();
    struct grammar *g = good(regex(patterns[i], &e), &e);
    struct grammar_state *s = grammar_state_new(g);
    for (int k = 0; k < 40; k++) {
      const uint32_t *mask = grammar_mask(s);
      if (!mask) fail_msg("%s: no mask after %d", patterns[i], k);
      int32_t id = k % 3 ? TOY_BYTE + 'a' : TOY_PIECES + 1; /* a, aa */
      if (!toy_allows(mask, id)) id = TOY_BYTE + 'a';
      if (!toy_allows(mask, id)) fail_msg("%s: no a after %d", patterns[i], k);
      if (grammar_accept(s, id)) continue;
      if (!grammar_gave_up(s) || k < 10) fail_msg("%s: token %d is refused", patterns[i], k);
      break; /* nested counts have many readings */
    }
    assert_true(grammar_bytes(g) < (size_t)GRAMMAR_CACHE_BYTES);
    grammar_state_delete(s);
    grammar_unref(g);
    end(patterns[i]);
  }
}

/* Counts are exact however large they are. */
static void test_counts(void **state) {
  (void)state;
  struct err e = {0};
  begin();
  struct grammar *g = good(regex("a{65536}", &e), &e);
  struct grammar_state *s = grammar_state_new(g);
  for (int i = 0; i < 65536; i++) {
    if (i % 4096 == 0 || i > 65500) assert_int_equal(toy_allows(grammar_mask(s), TOY_PIECES + 2), i + 16 <= 65536);
    assert_false(grammar_may_end(s));
    assert_true(grammar_accept(s, TOY_BYTE + 'a'));
  }
  assert_true(grammar_must_end(s));
  assert_false(grammar_accept(s, TOY_BYTE + 'a'));
  grammar_state_delete(s);
  grammar_unref(g);
  g = good(regex("(ab{0,3}){2,5000}c", &e), &e);
  s = grammar_state_new(g);
  for (int i = 0; i < 5000; i++) {
    assert_int_equal(toy_allows(grammar_mask(s), TOY_BYTE + 'c'), i >= 2);
    assert_true(feed(s, i % 2 ? "ab" : "a"));
  }
  assert_false(toy_allows(grammar_mask(s), TOY_BYTE + 'a'));
  assert_true(feed(s, "c") && grammar_must_end(s));
  grammar_state_delete(s);
  grammar_unref(g);
  end("counts");
}

static void test_alternatives(void **state) {
  (void)state;
  struct err e = {0};
  struct buf text;
  begin();
  buf_init(&text, 0);
  for (int i = 0; i < 20000; i++) buf_printf(&text, "%sword%d(x|y)", i ? "|" : "", i * 7919 % 100003);
  struct grammar *g = good(regex(buf_cstr(&text), &e), &e);
  struct grammar_state *s = grammar_state_new(g);
  assert_true(feed(s, "word"));
  assert_int_equal(grammar_accept(s, TOY_BYTE + 'x'), false);
  assert_true(feed(s, "0x") && grammar_must_end(s));
  grammar_state_delete(s);
  grammar_unref(g);
  buf_clear(&text);
  for (int i = 0; i < 3000; i++) buf_puts(&text, "[\\W\\S][^\\w\\p{Lu}]");
  g = regex(buf_cstr(&text), &e);
  if (!g) assert_true(e.code == ERR_BAD_INPUT && strstr(e.msg, "too large"));
  grammar_unref(g);
  buf_free(&text);
  end("alternatives");
}

/* Texts that nest: parsers and the compiler must not use the stack for it. */
static void test_deep_texts(void **state) {
  (void)state;
  struct err e = {0};
  struct buf text;
  begin();
  buf_init(&text, 0);
  for (int i = 0; i < 100000; i++) buf_putc(&text, '(');
  assert_null(regex(buf_cstr(&text), &e));
  assert_non_null(strstr(e.msg, "nested too deeply"));
  struct grammar_rules *g = grammar_rules_new();
  int node = rules_text(g, "a");
  for (int i = 0; i < 300000; i++) node = rules_seq2(g, node, rules_text(g, i % 2 ? "b" : "c"));
  rules_root(g, node);
  struct grammar *made = good(grammar_compile(vocab, g, &e), &e);
  struct grammar_state *s = grammar_state_new(made);
  assert_true(feed(s, "acbcb") && !feed(s, "b"));
  grammar_state_delete(s);
  grammar_unref(made);
  g = grammar_rules_new();
  node = rules_text(g, "ab");
  for (int i = 0; i < 40; i++) node = rules_alt(g, (int[]){rules_seq2(g, node, node), rules_text(g, "c")}, 2); /* 2^40 when written out */
  rules_root(g, node);
  made = good(grammar_compile(vocab, g, &e), &e);
  s = grammar_state_new(made);
  assert_true(feed(s, "ababcabab"));
  grammar_state_delete(s);
  grammar_unref(made);
  buf_free(&text);
  end("deep texts");
}

/* Recursion goes GRAMMAR_DEPTH_MAX deep and no further, and what was begun can always be finished. */
static void test_depth(void **state) {
  (void)state;
  struct err e = {0};
  begin();
  struct grammar_rules *g = grammar_rules_new();
  int list = rules_declare(g, "list"), inner = rules_declare(g, "inner");
  rules_define(g, list, rules_seq(g, (int[]){rules_text(g, "["), inner, rules_text(g, "]")}, 3));
  rules_define(g, inner,
               rules_seq(g, (int[]){rules_text(g, "<"), rules_alt(g, (int[]){list, rules_text(g, "x")}, 2), rules_text(g, ">")}, 3));
  rules_root(g, list);
  struct grammar *made = good(grammar_compile(vocab, g, &e), &e);
  struct grammar_state *s = grammar_state_new(made);
  int depth = 0;
  while (feed(s, "[<")) depth++;
  assert_true(depth > GRAMMAR_DEPTH_MAX / 4 && depth <= GRAMMAR_DEPTH_MAX);
  assert_false(toy_allows(grammar_mask(s), TOY_BYTE + '['));
  assert_true(feed(s, "x"));
  for (int i = 0; i < depth; i++) {
    const uint32_t *mask = grammar_mask(s);
    assert_true(toy_allows(mask, TOY_BYTE + '>') && feed(s, ">]"));
  }
  assert_true(grammar_must_end(s));
  grammar_state_delete(s);
  grammar_unref(made);
  /* a token of several levels is allowed as far as it is taken */
  g = grammar_rules_new();
  int nest = rules_declare(g, "nest");
  rules_define(g, nest,
               rules_alt(g, (int[]){rules_text(g, "x"), rules_seq(g, (int[]){rules_text(g, "["), nest, rules_text(g, "]")}, 3)}, 2));
  rules_root(g, nest);
  made = good(grammar_compile(vocab, g, &e), &e);
  s = grammar_state_new(made);
  struct grammar_state *ahead = grammar_state_copy(s);
  for (depth = 0; depth < GRAMMAR_DEPTH_MAX; depth++) {
    bool allows = toy_allows(grammar_mask(s), TOY_PIECES + 8); /* [[[[ */
    grammar_state_set(ahead, s);
    assert_int_equal(grammar_accept(ahead, TOY_PIECES + 8), allows);
    if (!feed(s, "[")) break;
  }
  assert_true(depth > GRAMMAR_DEPTH_MAX / 2 && depth < GRAMMAR_DEPTH_MAX);
  grammar_state_delete(ahead);
  grammar_state_delete(s);
  grammar_unref(made);
  /* right recursion needs no depth */
  g = grammar_rules_new();
  int rest = rules_declare(g, "rest");
  rules_define(g, rest, rules_alt(g, (int[]){rules_text(g, "."), rules_seq2(g, rules_text(g, "a"), rest)}, 2));
  rules_root(g, rest);
  made = good(grammar_compile(vocab, g, &e), &e);
  s = grammar_state_new(made);
  for (int i = 0; i < 5000; i++) assert_true(feed(s, "a"));
  assert_true(feed(s, ".") && grammar_must_end(s));
  grammar_state_delete(s);
  grammar_unref(made);
  end("depth");
}

/* States come and go by the hundred thousand; what is kept stays within the header's bound. */
static void test_memory(void **state) {
  (void)state;
  struct err e = {0};
  begin();
  struct grammar *g = good(regex("((a|ab|b){1,900}c){1,60000}", &e), &e);
  struct grammar_state *s = grammar_state_new(g), *kept = NULL;
  size_t most = 0;
  uint64_t r = 5;
  grammar_limit(g, 1 << 20, 1 << 16, 100);
  for (int i = 0; i < 20000; i++) {
    char c = "aabbbc"[test_rand_int(&r, 0, 5)];
    char text[2] = {c, 0};
    if (!feed(s, text)) assert_true(c == 'c' || feed(s, "b") || feed(s, "c"));
    if (i % 100 == 0) grammar_mask(s);
    if (i == 777) kept = grammar_state_copy(s);
    most = MAX(most, grammar_bytes(g));
  }
  assert_true(most < 4 << 20);
  assert_true(feed(kept, "b") || feed(kept, "c"));
  grammar_state_delete(s);
  grammar_state_delete(kept);
  grammar_unref(g);
  end("memory");
}

static void test_builder(void **state) {
  (void)state;
  struct err e = {0};
  struct grammar_rules *g = grammar_rules_new();
  int a = rules_text(g, "a"), b = rules_text(g, "b");
  assert_int_equal(rules_text(g, "a"), a);
  assert_int_equal(rules_alt(g, (int[]){a, b}, 2), rules_alt(g, (int[]){b, a, b}, 3));
  assert_int_equal(rules_alt(g, NULL, 0), rules_never(g));
  assert_int_equal(rules_seq(g, NULL, 0), rules_empty(g));
  assert_int_equal(rules_seq2(g, a, rules_never(g)), rules_never(g));
  assert_int_equal(rules_repeat(g, a, 0, 0), rules_empty(g));
  assert_int_equal(rules_repeat(g, rules_never(g), 0, 5), rules_empty(g));
  assert_int_equal(rules_class(g, (struct rules_range[]){{0xD800, 0xDFFF}}, 1, false), rules_never(g));
  assert_int_equal(rules_class(g, (struct rules_range[]){{'b', 'c'}, {'a', 'a'}}, 2, false),
                   rules_class(g, (struct rules_range[]){{'a', 'b'}, {'b', 'c'}}, 2, false));
  assert_int_equal(rules_error(g, &e), 0);
  rules_repeat(g, a, 3, 2);
  rules_text_n(g, "\xFF", 1);
  assert_int_equal(rules_error(g, &e), -1);
  assert_non_null(strstr(e.msg, "{3,2}"));
  assert_int_equal(rules_text(g, "zz"), rules_never(g));
  assert_null(grammar_compile(vocab, g, &e));
  assert_non_null(strstr(e.msg, "{3,2}"));
  assert_null(grammar_compile(vocab, grammar_rules_new(), &e));
  assert_non_null(strstr(e.msg, "no root"));
}

/* --- too many readings ---------------------------------------------------------------------------------------------------------------------- */

static struct grammar *gbnf(const char *text, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  if (!gbnf_parse(g, &toy.t, str_c(text), e)) return grammar_compile(vocab, g, e);
  grammar_rules_delete(g);
  return NULL;
}

/* However a text can be read: it is refused, or each call answers or gives up within the bound. Returns whether it was too much. */
static bool bounded(struct grammar *g, const struct err *e, const char *text, const char *what) {
  if (!g) {
    if (e->code != ERR_BAD_INPUT || !strstr(e->msg, "too many readings")) fail_msg("%s: %s", what, e->msg);
    return true;
  }
  struct grammar_state *s = grammar_state_new(g);
  uint64_t most = 0;
  for (int i = 0; i < 60; i++) {
    bool masked = grammar_mask(s) != NULL;
    most = MAX(most, grammar_work(g));
    bool taken = masked && grammar_accept(s, TOY_BYTE + (unsigned char)text[(size_t)i % strlen(text)]);
    most = MAX(most, grammar_work(g));
    if (!taken) break;
  }
  if (most > GRAMMAR_WORK_MAX + GRAMMAR_WORK_MAX / 16) fail_msg("%s: %lld steps", what, (long long)most);
  bool too_much = grammar_gave_up(s);
  grammar_state_delete(s);
  grammar_unref(g);
  return too_much;
}

static void test_readings(void **state) {
  (void)state;
  struct err e = {0};
  struct buf text;
  int n = 0;
  begin();
  n += bounded(gbnf("root ::= (\"a\" | [a-z]) root root root | [a-z] | \"ca\"", &e), &e, "abca", "root root root");
  buf_init(&text, 0);
  for (int i = 0; i < 100; i++) buf_puts(&text, "(a?b?c?d?e?f?g?h?i?j?k?l?m?n?o?p?q?r?s?t?u?v?w?x?y?z?){0,50}");
  n += bounded(regex(buf_cstr(&text), &e), &e, "abcz", "(a?b?...){0,50}");
  buf_clear(&text);
  buf_puts(&text, "root ::= r0\n");
  for (int i = 0; i < 60; i++) buf_printf(&text, "r%d ::= r%d? r%d?\n", i, i + 1, i + 1);
  buf_puts(&text, "r60 ::= \"a\" | \"[\" r0 \"]\"\n");
  n += bounded(gbnf(buf_cstr(&text), &e), &e, "a[a]", "rM? rM?");
  buf_clear(&text);
  for (int i = 0; i < 500; i++) buf_puts(&text, "(a|.){0,50}");
  n += bounded(regex(buf_cstr(&text), &e), &e, "ab", "(a|.){0,50}");
  buf_clear(&text);
  buf_puts(&text, "root ::= r0");
  for (int i = 1; i <= GRAMMAR_STACKS_MAX; i++) buf_printf(&text, " | r%d", i);
  for (int i = 0; i <= GRAMMAR_STACKS_MAX; i++) buf_printf(&text, "\nr%d ::= \"a\" r%d \"b\" | \"(%d)\"", i, i, i);
  n += bounded(gbnf(buf_cstr(&text), &e), &e, "a", "more stacks than there may be");
  buf_free(&text);
  print_message("%d of 5 were too much\n", n);
  assert_true(n >= 2);
  end("readings");
}

/* What gave up is of no use until it is set anew, and nothing else is touched by it. */
static void test_giving_up(void **state) {
  (void)state;
  struct err e = {0};
  struct grammar *g = good(regex("(ab|a|b){2,900}(x|yz)", &e), &e);
  struct grammar_state *s = grammar_state_new(g), *kept = grammar_state_copy(s), *copy;
  struct buf out;
  int32_t id = 7;
  assert_non_null(grammar_mask(s)); /* worked out while compiling */
  grammar_limit_work(g, 2);
  assert_non_null(grammar_mask(s));
  assert_false(grammar_accept(s, TOY_BYTE + 'a'));
  assert_true(grammar_gave_up(s));
  assert_null(grammar_mask(s));
  copy = grammar_state_copy(s);
  assert_true(grammar_gave_up(copy));
  grammar_state_delete(copy);
  grammar_limit_work(g, GRAMMAR_WORK_MAX);
  assert_null(grammar_mask(s));
  assert_false(grammar_accept(s, TOY_BYTE + 'a') || grammar_accept(s, TOY_EOS));
  buf_init(&out, 0);
  grammar_forced(s, 10, &out, &id);
  assert_true(out.len == 0 && id == -1);
  grammar_state_set(s, kept);
  assert_true(!grammar_gave_up(s) && feed(s, "abx") && grammar_must_end(s));
  assert_false(feed(kept, "x"));
  assert_false(grammar_gave_up(kept)); /* not allowed is not given up */
  grammar_limit_work(g, 2);
  grammar_forced(kept, 10, &out, &id);
  assert_true(grammar_gave_up(kept) || out.len == 0);
  buf_free(&out);
  grammar_state_delete(s);
  grammar_state_delete(kept);
  grammar_unref(g);
}

/* A vocabulary without a piece for every byte is not enough. */
static void test_vocabulary(void **state) {
  (void)state;
  static struct toy poor;
  struct err e = {0};
  toy_init(&poor, NULL, 0);
  poor.t.vocab.kind[TOY_BYTE + 'q'] = PIECE_UNUSED;
  struct grammar_vocab *v = grammar_vocab_new(&poor.t);
  struct grammar_rules *g = grammar_rules_new();
  rules_root(g, rules_text(g, "abq"));
  assert_null(grammar_compile(v, g, &e));
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  g = grammar_rules_new();
  rules_root(g, rules_text(g, "abp"));
  grammar_unref(good(grammar_compile(v, g, &e), &e));
  grammar_vocab_delete(v);
  vocab_free(&poor.t.vocab);
}

const struct CMUnitTest tests[] = {cmocka_unit_test(test_repetitions),  cmocka_unit_test(test_counts),
                                   cmocka_unit_test(test_alternatives), cmocka_unit_test(test_deep_texts),
                                   cmocka_unit_test(test_depth),        cmocka_unit_test(test_memory),
                                   cmocka_unit_test(test_readings),     cmocka_unit_test(test_giving_up),
                                   cmocka_unit_test(test_builder),      cmocka_unit_test(test_vocabulary)};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
