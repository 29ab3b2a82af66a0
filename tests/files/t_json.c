/* t_json.c — what is JSON and what is not, limits, the getters' sentences, and writing. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "files/json.h"

static json_t *load(const char *text, struct err *e) {
  memset(e, 0, sizeof *e);
  return json_load_text(text, strlen(text), false, "a.json", e);
}

static void accepts_one_value(void **s) {
  (void)s;
  static const char *const texts[] = {
      "{}", " [1, 2.5e3, -0] \n", "\"x\"", "17", "null", "true", "{\"a\":{\"b\":[[]]}}", "\"\\ud83d\\ude00\\u00e4\xc3\xa4\""};
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    struct err e;
    json_t *v = load(texts[i], &e);
    if (!v) fail_msg("%s: %s", texts[i], e.msg);
    json_decref(v);
  }
}

static void refuses(void **s) {
  (void)s;
  static const struct {
    const char *text, *says;
  } bad[] = {
      {"", "found nothing"},
      {" \n\t ", "found nothing"},
      {"{", "a.json: line 1: "},
      {"{}x", "end of file expected"},
      {"{} {}", "end of file expected"},
      {"[1,\n2,\n]", "a.json: line 3: "},
      {"{\"a\":1,\n\"a\":2}", "line 2: "},
      {"\"\xff\"", "line 1: not UTF-8"},
      {"[\n\n\"\xc3\"]", "line 3: not UTF-8"},
      {"\"\\ud83d\"", "a.json: line 1: "},
      {"\"\\u0000\"", "NUL"},
      {"{\"a\\u0000\":1}", "NUL"},
      {"1e999", "a.json: line 1: "},
      {"99999999999999999999", "a.json: line 1: "},
      {"[1,]", "a.json: line 1: "},
      {"nul", "a.json: line 1: "},
      {"NaN", "a.json: line 1: "},
      {"'a'", "a.json: line 1: "},
      {"\xef\xbb\xbf{}", "a.json: line 1: "},
  };
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    struct err e;
    json_t *v = load(bad[i].text, &e);
    if (v) fail_msg("%s: accepted", bad[i].text);
    if (!strstr(e.msg, bad[i].says)) fail_msg("%s: says \"%s\"", bad[i].text, e.msg);
    assert_int_equal(e.code, ERR_BAD_INPUT);
    assert_true(utf8_valid(e.msg, strlen(e.msg)));
  }
}

static void nul_when_allowed(void **s) {
  (void)s;
  struct err e = {0};
  static const char text[] = "\"a\\u0000b\"";
  json_t *v = json_load_text(text, sizeof text - 1, true, "a.json", &e);
  assert_non_null(v);
  assert_int_equal(json_string_length(v), 3);
  struct buf b;
  buf_init(&b, 0);
  assert_true(json_put(&b, v));
  assert_string_equal(buf_cstr(&b), text);
  buf_free(&b);
  json_decref(v);
  /* a real NUL byte is never JSON */
  assert_null(json_load_text("[1\0]", 4, true, "a.json", &e));
}

static void depth(void **s) {
  (void)s;
  char text[2 * 70 + 1];
  for (int n = 60; n <= 70; n++) {
    memset(text, '[', (size_t)n);
    memset(text + n, ']', (size_t)n);
    text[2 * n] = 0;
    struct err e;
    json_t *v = load(text, &e);
    assert_int_equal(v != NULL, n <= JSON_DEPTH_MAX);
    if (!v) assert_string_equal(e.msg, "a.json: line 1: nested deeper than 64 levels");
    json_decref(v);
  }
  struct err e;
  json_t *v = load("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[\"", &e);
  assert_non_null(v); /* brackets in a string are text */
  json_decref(v);
  size_t n = 10 << 20; /* ten megabytes of [ */
  char *flood = malloc(n);
  memset(flood, '[', n);
  assert_null(json_load_text(flood, n, false, "a.json", &e));
  free(flood);
}

static void number_of_values(void **s) {
  (void)s;
  struct err e;
  size_t n = (size_t)JSON_CONTAINERS_MAX * 3 + 10;
  char *text = malloc(n), *p = text;
  *p++ = '[';
  for (int i = 0; i < JSON_CONTAINERS_MAX; i++) memcpy(p, i ? ",[]" : "[]", 3), p += i ? 3 : 2;
  *p++ = ']';
  assert_null(json_load_text(text, (size_t)(p - text), false, "a.json", &e));
  assert_int_equal(e.code, ERR_TOO_LARGE);
  free(text);
}

static void getters(void **s) {
  (void)s;
  struct err e;
  json_t *o = load(
      "{\"i\":5,\"r\":5.0,\"h\":5.5,\"s\":\"big\",\"n\":null,\"t\":true,\"o\":{},\"a\":[1],\"huge\":9007199254740993,\"x\":1e300}", &e);
  assert_non_null(o);
  int64_t i = 0;
  double f = 0;
  bool b = false;
  const char *text = NULL;
  size_t len = 0;
  const json_t *v = NULL;
  assert_int_equal(json_get_int(o, "i", 1, 9, &i, "a.json", &e), 1);
  assert_int_equal(i, 5);
  i = 0;
  assert_int_equal(json_get_int(o, "r", 1, 9, &i, "a.json", &e), 1);
  assert_int_equal(i, 5);
  assert_int_equal(json_get_int(o, "huge", 0, INT64_MAX, &i, "a.json", &e), 1);
  assert_true(i == 9007199254740993);
  assert_int_equal(json_get_int(o, "absent", 1, 9, &i, "a.json", &e), 0);
  assert_int_equal(json_get_int(o, "n", 1, 9, &i, "a.json", &e), 0);
  assert_true(i == 9007199254740993);
  assert_int_equal(json_get_int(o, "s", 1, 1048576, &i, "a.json: text_config", &e), -1);
  assert_string_equal(e.msg, "a.json: text_config.s: expected an integer from 1 to 1048576, found \"big\"");
  assert_int_equal(json_get_int(o, "i", 6, 9, &i, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: i: expected an integer from 6 to 9, found 5");
  assert_int_equal(json_get_int(o, "h", 1, 9, &i, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: h: expected an integer from 1 to 9, found 5.5");
  assert_int_equal(json_get_int(o, "x", INT64_MIN, INT64_MAX, &i, "a.json", &e), -1);
  assert_int_equal(json_get_int(o, "t", 0, 9, &i, "a.json", &e), -1);
  assert_int_equal(json_get_float(o, "i", 0, 9, &f, "a.json", &e), 1);
  assert_true(f == 5);
  assert_int_equal(json_get_float(o, "h", 0, 5, &f, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: h: expected a number from 0 to 5, found 5.5");
  assert_int_equal(json_get_float(o, "s", 0, 5, &f, "a.json", &e), -1);
  assert_int_equal(json_get_bool(o, "t", &b, "a.json", &e), 1);
  assert_true(b);
  assert_int_equal(json_get_bool(o, "i", &b, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: i: expected true or false, found 5");
  assert_int_equal(json_get_string(o, "s", &text, &len, "a.json", &e), 1);
  assert_string_equal(text, "big");
  assert_int_equal(len, 3);
  assert_int_equal(json_get_string(o, "a", &text, &len, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: a: expected a string, found an array");
  assert_int_equal(json_get_object(o, "o", &v, "a.json", &e), 1);
  assert_true(json_is_object(v));
  assert_int_equal(json_get_object(o, "a", &v, "a.json", &e), -1);
  assert_int_equal(json_get_array(o, "a", &v, "a.json", &e), 1);
  assert_int_equal(json_get_array(o, "t", &v, "a.json", &e), -1);
  assert_string_equal(e.msg, "a.json: t: expected an array, found true");
  json_decref(o);
  /* a long string is cut in the message, and nothing of it can break the line */
  char long_text[600];
  snprintf(long_text, sizeof long_text, "{\"k\\n\":\"\\n%0500d\"}", 0);
  o = load(long_text, &e);
  assert_int_equal(json_get_int(o, "k\n", 0, 1, &i, "a.json", &e), -1);
  assert_true(strlen(e.msg) < 200 && !strchr(e.msg, '\n'));
  json_decref(o);
}

static void writes_what_it_reads(void **s) {
  (void)s;
  static const char *const texts[] = {"{\"b\":1,\"a\":[true,false,null,-7,\"x\"],\"\":{}}",
                                      "[]",
                                      "0.1",
                                      "-2.5",
                                      "1e+300",
                                      "1.0",
                                      "0.30000000000000004",
                                      "\"\\\"\\\\\xc3\xa4\"",
                                      "[0.1,100000.0,1e-07,123456789012.5]"};
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    struct err e;
    json_t *v = load(texts[i], &e);
    struct buf b;
    buf_init(&b, 0);
    assert_true(json_put(&b, v));
    assert_string_equal(buf_cstr(&b), texts[i]);
    buf_free(&b);
    json_decref(v);
  }
  uint64_t rng = 3; /* random reals come back to the bit */
  for (int i = 0; i < 3000; i++) {
    uint64_t bits = test_rand(&rng);
    double f, g;
    memcpy(&f, &bits, 8);
    if (!isfinite(f)) continue;
    json_t *v = json_real(f);
    struct buf b;
    buf_init(&b, 0);
    assert_true(json_put(&b, v));
    g = strtod(buf_cstr(&b), NULL);
    assert_memory_equal(&f, &g, 8);
    buf_free(&b);
    json_decref(v);
  }
  struct buf b; /* a cap is respected and reported */
  buf_init(&b, 5);
  json_t *v = json_string("longer than five");
  assert_false(json_put(&b, v));
  assert_true(b.overflow);
  json_decref(v);
  buf_free(&b);
}

static void whole_files(void **s) {
  (void)s;
  struct err e = {0};
  json_t *v = json_load_path(test_write("ok.json", "{\"a\":1}", 7), 100, &e);
  assert_non_null(v);
  json_decref(v);
  assert_null(json_load_path(test_write("ok.json", "{\"a\":1}", 7), 6, &e));
  assert_int_equal(e.code, ERR_TOO_LARGE);
  assert_non_null(strstr(e.msg, "ok.json: expected at most 6 bytes, file has 7"));
  assert_null(json_load_path(test_write("empty.json", "", 0), 100, &e));
  assert_non_null(strstr(e.msg, "empty.json: expected JSON, found nothing"));
  assert_null(json_load_path("/no/such.json", 100, &e));
  assert_int_equal(e.code, ERR_NOT_FOUND);
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(accepts_one_value), cmocka_unit_test(refuses), cmocka_unit_test(nul_when_allowed),     cmocka_unit_test(depth),
    cmocka_unit_test(number_of_values),  cmocka_unit_test(getters), cmocka_unit_test(writes_what_it_reads), cmocka_unit_test(whole_files),
};
TEST_MAIN(tests)
