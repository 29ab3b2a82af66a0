/* t_answers.c — what is read from texts that models really write, and from odd ones. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "eval/answers.h"
#include "eval/score.h"

struct row {
  const char *text, *found; /* found NULL: nothing */
  const char *expected;     /* NULL: as found */
  int wrong;                /* it is not right */
};

static void check(enum answer_rule rule, const char *const *options, int n_options, const struct row *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const struct row *r = &rows[i];
    char *expected = xstrdup(r->expected ? r->expected : r->found ? r->found : "?"), *found;
    struct answer_key k = {
        .rule = rule, .expected = &expected, .n_expected = 1, .options = (char **)(uintptr_t)options, .n_options = n_options};
    bool right = answer_grade(&k, str_c(r->text), &found);
    if ((found == NULL) != (r->found == NULL) || (found && strcmp(found, r->found)))
      fail_msg("rule %d, \"%s\": expected %s, found %s", (int)rule, r->text, r->found ? r->found : "nothing", found ? found : "nothing");
    if (right != (r->found && !r->wrong)) fail_msg("rule %d, \"%s\": %s", (int)rule, r->text, right ? "right" : "wrong");
    free(found);
    free(expected);
  }
}
#define CHECK_ROWS(rule, options, n_options, rows) check(rule, options, n_options, rows, ARRAY_LEN(rows))

static void last_integer(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"#### 12", "12", NULL, 0},
      {" 3 * 4 = 12. The answer is 12.\n#### 12", "12", NULL, 0},
      {"She makes 9 * 2 = $18 every day.\n#### 18\n\n", "18", NULL, 0},
      {"It costs 1,234,567 dollars", "1234567", NULL, 0},
      {"It costs $1,234.50", "50", NULL, 0}, /* the rule knows no decimals */
      {"-7", "7", NULL, 0},                  /* nor signs */
      {"about 5%", "5", NULL, 0},
      {"5kg", "5", NULL, 0},
      {"The answer is \\boxed{42}", "42", NULL, 0},
      {"1/2", "2", NULL, 0},
      {"007", NULL, NULL, 0},
      {"3.05", NULL, NULL, 0}, /* 05 is no number */
      {"0", "0", NULL, 0},
      {"000", "0", NULL, 0},
      {"", NULL, NULL, 0},
      {"I cannot help with that.", NULL, NULL, 0},
      {"twelve", NULL, NULL, 0},
      {"12 \xd9\xa3", NULL, NULL, 0},          /* ARABIC-INDIC DIGIT THREE: digits, but no number */
      {"\xef\xbc\x95 then 12", "12", NULL, 0}, /* FULLWIDTH DIGIT FIVE */
      {"12\xc2\xb2", "12", NULL, 0},           /* a superscript is no digit */
      {"12 \xff\xfe", "12", NULL, 0},          /* no UTF-8 */
      {"1,,,2", "12", NULL, 0},
      {"18", "18", "180", 1},
      {"123456789012345678901234567890123456789012345678901234567890", "123456789012345678901234567890123456789012345678901234567890", NULL,
       0},
  };
  CHECK_ROWS(ANSWER_LAST_INTEGER, NULL, 0, rows);
}

static void last_number(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"The answer is 18.", "18", NULL, 0},
      {"$18.00", "18", NULL, 0},
      {"18.50", "18.5", NULL, 0},
      {"-7 degrees", "-7", NULL, 0},
      {"from 5-3", "-3", NULL, 0}, /* the rule takes any minus */
      {"1,000,000", "1000000", NULL, 0},
      {"007", "7", NULL, 0},
      {"-0", "0", NULL, 0},
      {"0.0", "0", NULL, 0},
      {"0.50", "0.5", NULL, 0},
      {".5", "5", NULL, 0}, /* digits stand in front of the point */
      {"3.", "3", NULL, 0},
      {"1.2.3", "3", NULL, 0},
      {"**42**", "42", NULL, 0},
      {"\\boxed{42}", "42", NULL, 0},
      {"1e5", "5", NULL, 0},
      {"", NULL, NULL, 0},
      {"-", NULL, NULL, 0},
      {"none", NULL, NULL, 0},
  };
  CHECK_ROWS(ANSWER_LAST_NUMBER, NULL, 0, rows);
}

static void answer_lines(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"Work.\nAnswer: 42", "42", NULL, 0},
      {"ANSWER:42\n", "42", NULL, 0},
      {"answer :  042 ", "42", NULL, 0},
      {"Answer: 42.0", "42", NULL, 0},
      {"Answer:\n\n 7", "7", NULL, 0},
      {"Answer: 42\nAnswer: 43", "42", NULL, 0}, /* the first one */
      {"The final answer: $42$", "42", NULL, 0},
      {"**Answer: 42**", "42", NULL, 0},
      {"**Answer:** 42", "42", NULL, 0},
      {"Answer: $\\boxed{042}$.", "42", NULL, 0},
      {"Answer: \\(\\boxed{7}\\)", "7", NULL, 0},
      {"Answer: `9`", "9", NULL, 0},
      {"Answer: 999", "999", NULL, 0},
      {"Answer: 1000", "1000", "999", 1},
      {"Answer: -1", "-1", "1", 1},
      {"Answer: 1/2", "1/2", "0", 1},
      {"Answer: 42 apples", "42 apples", "42", 1},
      {"Answer: forty-two", "forty-two", "42", 1},
      {"Answer: 1e2", "100", NULL, 0},
      {"Answer: 0x10", "0x10", "16", 1},
      {"Answer: nan", "nan", "0", 1},
      {"Answer: inf", "inf", "0", 1},
      {"\\boxed{42}", NULL, NULL, 0}, /* there must be such a line */
      {"Answer:", NULL, NULL, 0},
      {"Answer:   \n  ", NULL, NULL, 0},
      {"", NULL, NULL, 0},
      {"answer", NULL, NULL, 0},
  };
  CHECK_ROWS(ANSWER_LINE, NULL, 0, rows);
}

static const char *const fruits[] = {"an apple", "a banana", "a cherry", "Dates"};

static void letters(void **state) {
  (void)state;
  static const struct row rows[] = {
      {"B", "B", NULL, 0},
      {"B.", "B", NULL, 0},
      {"(B)", "B", NULL, 0},
      {"B. a banana", "B", NULL, 0},
      {"(B) a banana", "B", NULL, 0},
      {"The answer is B", "B", NULL, 0},
      {"The answer is (C).", "C", NULL, 0},
      {"Answer: D", "D", NULL, 0},
      {"'A'", "A", NULL, 0},
      {"(A) is wrong, so (C)", "C", NULL, 0},
      {"(C), because (A) is not", "A", NULL, 0}, /* the last one stands */
      {"A or B", "B", NULL, 0},
      {"B or A", "A", NULL, 0},
      {"It must be a banana, because it is yellow", "B", NULL, 0},
      {"It is neither a banana nor the dates but fruit", "D", NULL, 0},
      {"It is A BANANA, of that i am sure", "A", NULL, 0}, /* "A " is read as a letter */
      {"**B**", NULL, NULL, 0},                            /* no blank, no bracket, no point beside it */
      {"B)", NULL, NULL, 0},
      {"b", NULL, NULL, 0},
      {"a banana", NULL, NULL, 0}, /* too short for words to count */
      {"E", NULL, NULL, 0},        /* no such option */
      {"", NULL, NULL, 0},
      {"I cannot see any picture here, sorry", NULL, NULL, 0},
      {"A. B. C.", "C", NULL, 0},
      {"C", "C", "B", 1},
  };
  CHECK_ROWS(ANSWER_LETTER, fruits, 4, rows);
  static const struct row lines[] = {
      {"A, B and C are fine. Answer: B", "B", NULL, 0},
      {"Answer: A. Let me check. Answer: **C**", "C", NULL, 0},
      {"Answer: $B$", "B", NULL, 0},
      {"(C) Answer: A or B", "C", NULL, 0}, /* not one letter alone: the other rule */
      {"Answer:", NULL, NULL, 0},
      {"(D)", "D", NULL, 0},
  };
  CHECK_ROWS(ANSWER_LETTER_LINE, fruits, 4, lines);
  static const char *const empty[] = {"", "x"};
  static const struct row odd[] = {{"one two three four five six", "A", NULL, 0}};
  CHECK_ROWS(ANSWER_LETTER, empty, 2, odd);
}

static void open_answers(void **state) {
  (void)state;
  static const struct {
    const char *text, *expected;
    bool right;
  } rows[] = {
      {"3.14", "3.14", true},
      {"The answer is 3.141", "3.14", true}, /* two places */
      {"x = 12", "12", true},
      {"x = 12\nThis is final", "12", false},  /* "=" counts in the last line alone */
      {"It costs $1,234.50", "1234.5", false}, /* read as 1,234 and as 234.50 */
      {"It costs $1,234.50", "1,234", true},
      {"Therefore the value is -7.", "-7", true},
      {"The rate is 5%", "5", true},
      {"The rate is 5%", "0.05", false},
      {"so 1e3", "1000", true},
      {"It is about 2,500 people", "2500", true},
      {"It is 12,", "12", true},
      {"It is 12, or more", "12", false}, /* no number before a comma */
      {"Photosynthesis", "photosynthesis", true},
      {"The process is called photosynthesis.", "Photosynthesis", true},
      {"photo", "photosynthesis", false},
      {"The answer is X", "x", true}, /* one character has a blank beside it */
      {"The answer is X indeed", "x", true},
      {"extra", "x", false},
      {"", "x", false},
      {"  \n ", "", false},
      {"no idea", "5", false},
      {"\xc3\x84rger", "\xc3\xa4rger", true}, /* letter case beyond ASCII */
      {"infinity", "inf", true},
      {"nan", "nan", false},
      {"1_000", "1000", true},
      {"1__000", "1000", false},
  };
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    char *expected = xstrdup(rows[i].expected), *found;
    struct answer_key k = {.rule = ANSWER_OPEN, .expected = &expected, .n_expected = 1};
    bool right = answer_grade(&k, str_c(rows[i].text), &found);
    if (right != rows[i].right) fail_msg("\"%s\" for \"%s\": %s; read as %s", rows[i].text, expected, right ? "right" : "wrong", found);
    free(found);
    free(expected);
  }
  char *several[] = {"24/7", "3.429"}, *found;
  struct answer_key k = {.rule = ANSWER_OPEN, .expected = several, .n_expected = 2};
  assert_true(answer_grade(&k, str_c("It is 3.43"), &found));
  free(found);
  assert_true(answer_grade(&k, str_c("The answer is 24/7"), &found));
  free(found);
}

/* Any bytes by any rule: no fault, and what is found is text. Pieces that rules look for make it likely that they find something. */
static void any_bytes(void **state) {
  (void)state;
  static const char *const pieces[] = {"Answer:", "answer ", "is ", "=",        "(A)", " B ",      "C.", "1,234",    "-",    ".5",
                                       "1e9",     "e",       "\n",  "\\boxed{", "}",   "$",        "*",  "\xc3\xa4", "\xff", "\xe2\x80",
                                       "7",       "0",       ",",   " ",        ".",   "a banana", "_",  "'"};
  uint64_t seed = 5;
  char *expected[] = {"7"};
  for (int round = 0; round < 20000; round++) {
    char text[256];
    size_t n = 0;
    for (int i = test_rand_int(&seed, 0, 12); i > 0; i--) {
      const char *p = pieces[test_rand_int(&seed, 0, ARRAY_LEN(pieces) - 1)];
      if (n + strlen(p) < sizeof text) memcpy(text + n, p, strlen(p)), n += strlen(p);
    }
    char *exact = test_guard_alloc(n + 1), *found; /* reading on behind it faults */
    memcpy(exact + 1, text, n);
    for (int rule = ANSWER_LAST_INTEGER; rule <= ANSWER_OPEN; rule++) {
      struct answer_key k = {
          .rule = (enum answer_rule)rule, .expected = expected, .n_expected = 1, .options = (char **)(uintptr_t)fruits, .n_options = 4};
      bool right = answer_grade(&k, str_of(exact + 1, n), &found);
      if (right) assert_non_null(found);
      free(found);
    }
    test_guard_free(exact, n + 1);
  }
}

/* Published values (Wilson 1927; Newcombe 1998, table I). */
static void wilson(void **state) {
  (void)state;
  static const struct {
    int right, n;
    double low, high;
  } rows[] = {{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}, {29, 29, 0.8830, 1}};
  double low, high;
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    score_wilson((double)rows[i].right / rows[i].n, rows[i].n, &low, &high);
    assert_true(fabs(low - rows[i].low) < 6e-5 && fabs(high - rows[i].high) < 6e-5);
  }
  score_wilson(0, 0, &low, &high);
  assert_true(low == 0 && high == 1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(last_integer), cmocka_unit_test(last_number), cmocka_unit_test(answer_lines), cmocka_unit_test(letters),
    cmocka_unit_test(open_answers), cmocka_unit_test(any_bytes),   cmocka_unit_test(wilson),
};
TEST_MAIN(tests)
