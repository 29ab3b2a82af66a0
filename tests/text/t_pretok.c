/* t_pretok.c — the Llama 3 split against a backtracking twin that follows the pattern literally. */
#include "test.h"

#include <string.h>

#include "text/pretok.h"

/* --- the twin: characters in an array, each alternative tried at each length, longest first ------------------------------------------ */

enum { TWIN_MAX = 64 };
struct twin {
  uint32_t cp[TWIN_MAX];
  int n;
};

static bool letter(uint32_t c) { return pretok_class(c) == PRETOK_LETTER; }
static bool number(uint32_t c) { return pretok_class(c) == PRETOK_NUMBER; }
static bool space(uint32_t c) { return pretok_class(c) == PRETOK_SPACE; }
static bool line_end(uint32_t c) { return c == '\r' || c == '\n'; }
static bool other(uint32_t c) { return !letter(c) && !number(c) && !space(c); }
static bool lead(uint32_t c) { return !line_end(c) && !letter(c) && !number(c); }
static bool blank(uint32_t c) { return c == ' '; }

static bool all(const struct twin *t, int from, int to, bool (*is)(uint32_t)) {
  for (int i = from; i < to; i++)
    if (!is(t->cp[i])) return false;
  return true;
}
static uint32_t folded(uint32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17F ? 's' : c; }

/* Does the alternative match exactly [from, to)? */
static bool matches(const struct twin *t, int alternative, int from, int to) {
  int n = to - from;
  switch (alternative) {
  case 0: {
    static const char *const words[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t k = 0; k < ARRAY_LEN(words); k++) {
      bool same = n == (int)strlen(words[k]);
      for (int i = 0; same && i < n; i++) same = folded(t->cp[from + i]) == (uint32_t)words[k][i];
      if (same) return true;
    }
    return false;
  }
  case 1: return n > 0 && (all(t, from, to, letter) || (n > 1 && lead(t->cp[from]) && all(t, from + 1, to, letter)));
  case 2: return n >= 1 && n <= 3 && all(t, from, to, number);
  case 3:
    for (int skip = 0; skip <= 1; skip++)
      for (int cut = from + skip + 1; cut <= to; cut++)
        if ((!skip || blank(t->cp[from])) && all(t, from + skip, cut, other) && all(t, cut, to, line_end)) return true;
    return false;
  case 4:
    for (int cut = from; cut < to; cut++)
      if (all(t, from, cut, space) && all(t, cut, to, line_end)) return true;
    return false;
  case 5: return n > 0 && all(t, from, to, space) && (to == t->n || space(t->cp[to]));
  default: return n > 0 && all(t, from, to, space);
  }
}

static int twin_word(const struct twin *t, int from) {
  for (int alternative = 0; alternative < 7; alternative++)
    for (int to = t->n; to > from; to--)
      if (matches(t, alternative, from, to)) return to;
  fail_msg("no alternative matches");
  return 0;
}

static void compare(const struct twin *t) {
  char text[4 * TWIN_MAX];
  size_t at[TWIN_MAX + 1], n = 0;
  for (int i = 0; i < t->n; i++) {
    at[i] = n;
    n += (size_t)utf8_put(t->cp[i], text + n);
  }
  at[t->n] = n;
  static char *guard;
  if (!guard) guard = test_guard_alloc(sizeof text); /* for the whole program */
  char *guarded = guard + sizeof text - n;
  memcpy(guarded, text, n);
  for (int i = 0; i < t->n;) {
    int next = twin_word(t, i);
    size_t got = pretok_llama3(guarded + at[i], n - at[i]);
    if (got != at[next] - at[i])
      fail_msg("\"%.*s\" at %zu: expected a word of %zu bytes, found %zu", (int)n, text, at[i], at[next] - at[i], got);
    i = next;
  }
  assert_int_equal(pretok_llama3(guarded, 0), 0);
}

static const uint32_t crumbs[] = {'a', 'Z', 's',    'S',   't',    'r',     'e',    'v',  'l',     'L',     'm',    'd',  '\'',   0x17F,
                                  ' ', ' ', '\n',   '\r',  '\t',   0xA0,    0x3000, 0x85, '0',     '9',     0x0661, 0xBC, 0x2160, '.',
                                  '<', '|', 0x2019, 0x301, 0x200D, 0x1F600, 0x5B57, 0xE9, 0x10D40, 0x10D4A, 0,      0x7F};

static void random_texts(void **state) {
  (void)state;
  uint64_t rng = 5;
  for (int round = 0; round < 30000; round++) {
    struct twin t = {.n = test_rand_int(&rng, 0, 24)};
    int first = test_rand_int(&rng, 0, (int)ARRAY_LEN(crumbs) - 6), kinds = test_rand_int(&rng, 2, 40);
    for (int i = 0; i < t.n; i++) t.cp[i] = crumbs[(first + test_rand_int(&rng, 0, kinds)) % (int)ARRAY_LEN(crumbs)];
    compare(&t);
  }
}

/* Every text of up to five characters out of one of each kind. */
static void short_texts(void **state) {
  (void)state;
  static const uint32_t kinds[] = {'\'', 's', 'l', ' ', '\n', '\t', '5', '.'};
  enum { KINDS = 8 };
  for (int n = 0, count = 1; n <= 5; n++, count *= KINDS)
    for (int k = 0; k < count; k++) {
      struct twin t = {.n = n};
      for (int i = 0, rest = k; i < n; i++, rest /= KINDS) t.cp[i] = kinds[rest % KINDS];
      compare(&t);
    }
}

static void classes(void **state) {
  (void)state;
  static const struct {
    uint32_t first, last;
    enum pretok_class class;
  } known[] = {{0x00, 0x08, PRETOK_OTHER},        {0x09, 0x0D, PRETOK_SPACE},        {0x0E, 0x1F, PRETOK_OTHER},
               {'0', '9', PRETOK_NUMBER},         {'A', 'Z', PRETOK_LETTER},         {'[', '`', PRETOK_OTHER},
               {'a', 'z', PRETOK_LETTER},         {'{', 0x84, PRETOK_OTHER},         {0x85, 0x85, PRETOK_SPACE},
               {0xA0, 0xA0, PRETOK_SPACE},        {0xAA, 0xAA, PRETOK_LETTER},       {0xB2, 0xB3, PRETOK_NUMBER},
               {0xC0, 0xD6, PRETOK_LETTER},       {0xD7, 0xD7, PRETOK_OTHER},        {0x300, 0x36F, PRETOK_OTHER},
               {0x660, 0x669, PRETOK_NUMBER},     {0x2000, 0x200A, PRETOK_SPACE},    {0x200B, 0x200D, PRETOK_OTHER},
               {0x2028, 0x2029, PRETOK_SPACE},    {0x202F, 0x202F, PRETOK_SPACE},    {0x205F, 0x205F, PRETOK_SPACE},
               {0x3000, 0x3000, PRETOK_SPACE},    {0xFEFF, 0xFEFF, PRETOK_OTHER},    {0x4E00, 0x9FFF, PRETOK_LETTER},
               {0x1F600, 0x1F64F, PRETOK_OTHER},  {0x10D40, 0x10D49, PRETOK_NUMBER}, {0x116D0, 0x116E3, PRETOK_NUMBER},
               {0x11BF0, 0x11BF9, PRETOK_NUMBER}, {0x16130, 0x16139, PRETOK_NUMBER}, {0x16D70, 0x16D79, PRETOK_NUMBER},
               {0x1CCF0, 0x1CCF9, PRETOK_NUMBER}, {0x1E5F1, 0x1E5FA, PRETOK_NUMBER}, {0x1C89, 0x1C8A, PRETOK_LETTER},
               {0x2EBF0, 0x2EE5D, PRETOK_LETTER}, {0x10FFFF, 0x10FFFF, PRETOK_OTHER}};
  for (size_t k = 0; k < ARRAY_LEN(known); k++)
    for (uint32_t c = known[k].first; c <= known[k].last; c++)
      if (pretok_class(c) != known[k].class) fail_msg("U+%04X: expected class %d, found %d", (unsigned)c, known[k].class, pretok_class(c));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_texts),
    cmocka_unit_test(short_texts),
    cmocka_unit_test(classes),
};
TEST_MAIN(tests)
