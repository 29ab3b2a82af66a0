/* t_grammar_cache.c — grammars found again, failures found again, many threads at once (worth running under a thread sanitizer). */
#include "grammar_toy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static struct toy toy;

static int setup(void **state) {
  (void)state;
  toy_init(&toy, (const char *const[]){"ab", "12", "{\"", "\": "}, 4);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  vocab_free(&toy.t.vocab);
  return 0;
}

static bool matches(struct grammar *g, const char *text) {
  struct grammar_state *s = grammar_state_new(g);
  bool going = true;
  for (const char *p = text; *p && going; p++) {
    int32_t id = TOY_BYTE + (unsigned char)*p;
    going = toy_allows(grammar_mask(s), id);
    assert_int_equal(grammar_accept(s, id), going);
  }
  going = going && grammar_may_end(s);
  grammar_state_delete(s);
  return going;
}

static void test_kinds(void **state) {
  (void)state;
  struct grammar_cache *c = grammar_cache_new(&toy.t);
  struct err e = {0};
  static const struct {
    enum grammar_kind kind;
    const char *text, *yes, *no;
  } kinds[] = {{GRAMMAR_REGEX, "a+b", "aab", "ba"},
               {GRAMMAR_EBNF, "root ::= \"a\" root | \"b\"", "aab", "aa"},
               {GRAMMAR_JSON_SCHEMA, "{\"enum\": [\"a\", 12, null]}", "\"a\"", "13"},
               {GRAMMAR_JSON_SCHEMA, "true", "[1, {\"a\": null}]", "["}};
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
    struct grammar *g = grammar_cache_get(c, kinds[i].kind, str_c(kinds[i].text), &e);
    if (!g) fail_msg("%s: %s", kinds[i].text, e.msg);
    struct grammar *again = grammar_cache_get(c, kinds[i].kind, str_c(kinds[i].text), &e);
    assert_ptr_equal(g, again);
    assert_true(matches(g, kinds[i].yes) && !matches(g, kinds[i].no));
    grammar_unref(g);
    grammar_unref(again);
  }
  grammar_cache_delete(c);
}

static void test_failures(void **state) {
  (void)state;
  struct grammar_cache *c = grammar_cache_new(&toy.t);
  static const struct {
    enum grammar_kind kind;
    const char *text, *why;
  } bad[] = {{GRAMMAR_REGEX, "a(", "regex"},
             {GRAMMAR_EBNF, "root ::= x", "not defined"},
             {GRAMMAR_JSON_SCHEMA, "{", "schema"},
             {GRAMMAR_JSON_SCHEMA, "", "schema"},
             {GRAMMAR_JSON_SCHEMA, "{\"if\": true}", "if"},
             {GRAMMAR_TOOLS, "[", "tools"},
             {GRAMMAR_TOOLS, "{\"tools\": 1}", "array"},
             {GRAMMAR_TOOLS, "{\"tools\": [], \"choice\": \"maybe\"}", "choice"}};
  for (int round = 0; round < 2; round++)
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
      struct err e = {0};
      assert_null(grammar_cache_get(c, bad[i].kind, str_c(bad[i].text), &e));
      if (e.code != ERR_BAD_INPUT || !strstr(e.msg, bad[i].why))
        fail_msg("%s: expected \"%s\", found \"%s\"", bad[i].text, bad[i].why, e.msg);
    }
  assert_null(grammar_cache_get(c, GRAMMAR_REGEX, str_c("a("), NULL));
  grammar_cache_delete(c);
}

/* More than are kept: the oldest go, those in use live on. */
static void test_oldest_go(void **state) {
  (void)state;
  struct grammar_cache *c = grammar_cache_new(&toy.t);
  struct err e = {0};
  char text[32];
  struct grammar *first = grammar_cache_get(c, GRAMMAR_REGEX, str_c("x1"), &e), *again;
  for (int i = 0; i < GRAMMARS_KEPT - 1; i++) {
    snprintf(text, sizeof text, "y%d", i);
    grammar_unref(grammar_cache_get(c, GRAMMAR_REGEX, str_c(text), &e));
  }
  again = grammar_cache_get(c, GRAMMAR_REGEX, str_c("x1"), &e); /* asked for last now */
  assert_ptr_equal(first, again);
  grammar_unref(again);
  for (int i = 0; i < GRAMMARS_KEPT - 1; i++) {
    snprintf(text, sizeof text, "z%d", i);
    grammar_unref(grammar_cache_get(c, GRAMMAR_REGEX, str_c(text), &e));
  }
  again = grammar_cache_get(c, GRAMMAR_REGEX, str_c("x1"), &e);
  assert_ptr_equal(first, again);
  grammar_unref(again);
  for (int i = 0; i < GRAMMARS_KEPT; i++) {
    snprintf(text, sizeof text, "w%d", i);
    grammar_unref(grammar_cache_get(c, GRAMMAR_REGEX, str_c(text), &e));
  }
  again = grammar_cache_get(c, GRAMMAR_REGEX, str_c("x1"), &e);
  assert_ptr_not_equal(first, again);
  assert_true(matches(first, "x1") && matches(again, "x1"));
  grammar_unref(first);
  grammar_unref(again);
  grammar_cache_delete(c);
}

/* --- threads ---------------------------------------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60 };
static struct grammar_cache *shared;
static struct grammar *same[THREADS];
static atomic_int n_wrong, n_begun;

static void *ask(void *arg) {
  static const char *const texts[] = {"(ab|12){2,40}", "[a-f0-9]+x", "a(", "(a*b*)*c", "x{3,2}"};
  int me = (int)(intptr_t)arg;
  struct err e = {0};
  uint64_t r = (uint64_t)me + 1;
  atomic_fetch_add(&n_begun, 1);
  while (atomic_load(&n_begun) < THREADS) continue;
  same[me] = grammar_cache_get(shared, GRAMMAR_REGEX, str_c("(a|ab|b){1,300}c"), &e);
  struct grammar_state *s = grammar_state_new(same[me]), *ahead = grammar_state_copy(s);
  for (int i = 0; i < ROUNDS; i++) {
    int k = test_rand_int(&r, 0, 4);
    struct grammar *g = grammar_cache_get(shared, GRAMMAR_REGEX, str_c(texts[k]), &e);
    if (!g != (k == 2 || k == 4)) atomic_fetch_add(&n_wrong, 1);
    grammar_unref(g);
    grammar_state_set(ahead, s);
    if (!toy_allows(grammar_mask(ahead), TOY_BYTE + 'a') || !grammar_accept(ahead, TOY_BYTE + 'a')) atomic_fetch_add(&n_wrong, 1);
    if (!grammar_accept(s, TOY_PIECES)) atomic_fetch_add(&n_wrong, 1); /* ab */
  }
  if (!grammar_accept(s, TOY_BYTE + 'c') || !grammar_must_end(s)) atomic_fetch_add(&n_wrong, 1);
  grammar_state_delete(s);
  grammar_state_delete(ahead);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  shared = grammar_cache_new(&toy.t);
  for (intptr_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, ask, (void *)i), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&n_wrong), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_ptr_equal(same[i], same[0]); /* compiled once */
    grammar_unref(same[i]);
  }
  grammar_cache_delete(shared);
}

const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_failures), cmocka_unit_test(test_oldest_go),
                                   cmocka_unit_test(test_threads)};

int main(void) {
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
