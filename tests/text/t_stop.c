/* t_stop.c — stop strings against a search that looks at everything again for each byte. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "text/stop.h"

enum { STRINGS = 4 };

struct set {
  int n;
  const char *strings[STRINGS];
};

static struct stop *stop_of(const struct set *set, bool keep) {
  struct str strings[STRINGS];
  struct err e = {0};
  for (int i = 0; i < set->n; i++) strings[i] = str_c(set->strings[i]);
  struct stop *s = stop_new(strings, set->n, keep, &e);
  if (set->n && !s) fail_msg("%s", e.msg);
  return s;
}

/* Index of the string that is complete first, the longest of several, and where the match begins and ends. */
static int naive_find(const struct set *set, const char *text, size_t n, size_t *from, size_t *to) {
  for (size_t end = 1; end <= n; end++) {
    int best = -1;
    for (int k = 0; k < set->n; k++) {
      size_t len = strlen(set->strings[k]);
      if (len <= end && !memcmp(text + end - len, set->strings[k], len) && (best < 0 || len > strlen(set->strings[best]))) best = k;
    }
    if (best >= 0) {
      *to = end;
      *from = end - strlen(set->strings[best]);
      return best;
    }
  }
  return -1;
}

/* How many bytes at the end of text could be the beginning of a stop string. */
static size_t naive_hold(const struct set *set, const char *text, size_t n) {
  size_t hold = 0;
  for (int k = 0; k < set->n; k++)
    for (size_t len = 1; len < strlen(set->strings[k]) && len <= n; len++)
      if (!memcmp(text + n - len, set->strings[k], len)) hold = MAX(hold, len);
  return hold;
}

/* Feed text cut at the given places and compare what is shown after each part. */
static void check_cuts(const struct set *set, const char *text, const size_t *cuts, int n_cuts, bool keep) {
  struct stop *s = stop_of(set, keep);
  struct buf out;
  buf_init(&out, 0);
  size_t from = 0, match_from = 0, match_to = 0, n = strlen(text);
  for (int c = 0; c <= n_cuts; c++) {
    size_t to = c < n_cuts ? cuts[c] : n;
    int want = naive_find(set, text, to, &match_from, &match_to), got = stop_push(s, text + from, to - from, &out);
    size_t shown = want < 0 ? to - naive_hold(set, text, to) : keep ? match_to : match_from;
    if (got != want || out.len != shown || memcmp(buf_cstr(&out), text, shown))
      fail_msg("\"%s\" after %zu bytes: expected match %d and %zu bytes shown, found %d, %zu and \"%s\"", text, to, want, shown, got,
               out.len, buf_cstr(&out));
    from = to;
  }
  size_t before = out.len;
  stop_finish(s, &out);
  if (naive_find(set, text, n, &match_from, &match_to) < 0) assert_string_equal(buf_cstr(&out), text);
  else assert_int_equal(out.len, before);
  buf_free(&out);
  stop_delete(s);
}

static void check_all_cuts(const struct set *set, const char *text) {
  size_t n = strlen(text), every[64];
  assert_true(n <= ARRAY_LEN(every));
  for (size_t i = 0; i < n; i++) every[i] = i + 1;
  for (int keep = 0; keep < 2; keep++) {
    check_cuts(set, text, every, (int)n, keep);
    for (size_t a = 0; a <= n; a++)
      for (size_t b = a; b <= n; b++) check_cuts(set, text, (size_t[]){a, b}, 2, keep);
  }
}

static void listed(void **state) {
  (void)state;
  static const struct {
    struct set set;
    const char *text, *shown;
    int match;
  } cases[] = {{{1, {"beta gam"}}, "alpha beta gamma", "alpha ", 0},
               {{1, {"a b"}}, "alpha beta gamma", "alph", 0},
               {{1, {"gamma"}}, "alpha beta gamma", "alpha beta ", 0},
               {{1, {"zzz"}}, "alpha beta gamma", "alpha beta gamma", -1},
               {{2, {"beta", "alpha beta"}}, "alpha beta gamma", "", 1},
               {{2, {"alpha beta", "beta"}}, "alpha beta gamma", "", 0},
               {{1, {"aab"}}, "aaab", "a", 0},
               {{1, {"abab"}}, "abaabab", "aba", 0},
               {{1, {"\n\n"}}, "one\ntwo\n\nthree", "one\ntwo", 0},
               {{2, {"é", "😀"}}, "caf\xC3\xA8 \xC3\xA9", "caf\xC3\xA8 ", 0},
               {{1, {"gammaray"}}, "alpha beta gamma", "alpha beta gamma", -1},
               {{2, {"b", "abc"}}, "xabc", "xa", 0},
               {{0, {NULL}}, "alpha", "alpha", -1}};
  for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
    struct stop *s = stop_of(&cases[k].set, false);
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(stop_push(s, cases[k].text, strlen(cases[k].text), &out), cases[k].match);
    stop_finish(s, &out);
    assert_string_equal(buf_cstr(&out), cases[k].shown);
    if (cases[k].match >= 0) assert_int_equal(stop_push(s, "more", 4, &out), cases[k].match);
    stop_finish(s, &out);
    assert_string_equal(buf_cstr(&out), cases[k].match >= 0 ? cases[k].shown : cases[k].text);
    buf_free(&out);
    stop_delete(s);
    check_all_cuts(&cases[k].set, cases[k].text);
  }
}

static void against_twin(void **state) {
  (void)state;
  uint64_t rng = 17;
  for (int round = 0; round < 3000; round++) {
    char strings[STRINGS][8], text[25];
    struct set set = {.n = test_rand_int(&rng, 0, STRINGS)};
    int letters = test_rand_int(&rng, 1, 3);
    for (int k = 0; k < set.n; k++) {
      int len = test_rand_int(&rng, 1, 7);
      for (int i = 0; i < len; i++) strings[k][i] = (char)('a' + test_rand_int(&rng, 0, letters - 1));
      strings[k][len] = 0;
      set.strings[k] = strings[k];
    }
    int len = test_rand_int(&rng, 0, 24);
    for (int i = 0; i < len; i++) text[i] = (char)('a' + test_rand_int(&rng, 0, letters));
    text[len] = 0;
    if (round < 200) {
      check_all_cuts(&set, text);
      continue;
    }
    size_t cuts[8];
    int n_cuts = test_rand_int(&rng, 0, 8);
    for (int i = 0; i < n_cuts; i++) {
      size_t next = (i ? cuts[i - 1] : 0) + (size_t)test_rand_int(&rng, 0, 6);
      cuts[i] = MIN(next, (size_t)len);
    }
    check_cuts(&set, text, cuts, n_cuts, round & 1);
  }
}

static void long_and_nul(void **state) {
  (void)state;
  struct err e = {0};
  static char a[STOP_BYTES_MAX];
  memset(a, 'a', sizeof a);
  a[sizeof a - 1] = 'b';
  struct str strings[] = {str_of(a, sizeof a), str_of("x\0y", 3)};
  struct stop *s = stop_new(strings, 2, false, &e);
  struct buf out;
  buf_init(&out, 0);
  for (int i = 0; i < 100000; i++) assert_int_equal(stop_push(s, "a", 1, &out), -1); /* linear, or this takes minutes */
  assert_int_equal(out.len, 100000 - (sizeof a - 1));
  assert_int_equal(stop_push(s, "x\0z", 3, &out), -1);
  assert_int_equal(out.len, 100003);
  assert_int_equal(stop_push(s, "x\0y", 3, &out), 1);
  assert_int_equal(out.len, 100003);
  buf_free(&out);
  stop_delete(s);
}

static void refused(void **state) {
  (void)state;
  struct err e = {0};
  static char big[STOP_BYTES_MAX + 1];
  memset(big, 'a', sizeof big);
  struct str many[STOP_STRINGS_MAX + 1];
  for (size_t i = 0; i < ARRAY_LEN(many); i++) many[i] = str_c("x");
  assert_null(stop_new(many, STOP_STRINGS_MAX + 1, false, &e));
  assert_non_null(strstr(e.msg, "at most 16"));
  many[1] = str_c("");
  assert_null(stop_new(many, 2, false, &e));
  assert_non_null(strstr(e.msg, "stop[1]"));
  many[1] = str_of(big, sizeof big);
  assert_null(stop_new(many, 2, false, &e));
  assert_non_null(strstr(e.msg, "found 1025"));
  many[1] = str_c("\xC3");
  assert_null(stop_new(many, 2, false, &e));
  assert_non_null(strstr(e.msg, "UTF-8"));
  assert_int_equal(e.code, ERR_BAD_INPUT);
  e = (struct err){0};
  assert_null(stop_new(many, 0, false, &e));
  assert_int_equal(e.code, ERR_NONE);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(listed),
    cmocka_unit_test(against_twin),
    cmocka_unit_test(long_and_nul),
    cmocka_unit_test(refused),
};
TEST_MAIN(tests)
