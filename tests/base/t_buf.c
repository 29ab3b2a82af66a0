/* t_buf.c — growth up to the cap and not one byte further, against a plain array that never grows. */
#include "test.h"

#include <string.h>

#include "base/buf.h"
#include "base/str.h"

static void appends(void **state) {
  (void)state;
  struct buf b = {0};
  assert_string_equal(buf_cstr(&b), "");
  buf_init(&b, 0);
  assert_true(buf_append(&b, NULL, 0));
  assert_true(buf_puts(&b, "one "));
  assert_true(buf_putc(&b, '2'));
  assert_true(buf_printf(&b, " %s %d", "three", 4));
  assert_string_equal(buf_cstr(&b), "one 2 three 4");
  assert_int_equal(b.len, 13);
  buf_drop_front(&b, 4);
  assert_string_equal(buf_cstr(&b), "2 three 4");
  buf_drop_front(&b, b.len);
  assert_string_equal(buf_cstr(&b), "");
  buf_puts(&b, "x");
  size_t n;
  char *taken = buf_take(&b, &n);
  assert_string_equal(taken, "x");
  assert_int_equal(n, 1);
  assert_int_equal(b.len + b.cap_bytes, 0);
  free(taken);
  taken = buf_take(&b, NULL);
  assert_string_equal(taken, "");
  free(taken);
  buf_free(&b);
}

/* Random appends of all kinds to buffers with small caps; the model is an array. */
static void against_model(void **state) {
  (void)state;
  uint64_t seed = 11;
  for (int round = 0; round < 300; round++) {
    char model[4096], piece[700];
    size_t len = 0, cap = (size_t)test_rand_int(&seed, 1, round % 3 ? 600 : 3000);
    bool overflow = false;
    struct buf b;
    buf_init(&b, cap);
    for (int step = 0; step < 40; step++) {
      size_t n = (size_t)test_rand_int(&seed, 0, step % 5 ? 40 : 690);
      for (size_t i = 0; i < n; i++) piece[i] = (char)test_rand_int(&seed, 'a', 'z');
      piece[n] = 0;
      bool fits = len + n <= cap, got = false;
      switch (test_rand_int(&seed, 0, 4)) {
      case 0: got = buf_append(&b, piece, n); break;
      case 1: got = buf_puts(&b, piece); break;
      case 2: got = buf_printf(&b, "%s", piece); break;
      case 3: got = buf_json_escape(&b, piece, n); break;
      case 4:
        n = MIN(n, len);
        buf_drop_front(&b, n);
        memmove(model, model + n, len - n);
        len -= n;
        n = 0;
        fits = got = true;
      }
      assert_int_equal(got, fits);
      if (fits) memcpy(model + len, piece, n);
      if (fits) len += n;
      overflow = overflow || !fits;
      assert_int_equal(b.len, len);
      assert_int_equal(b.overflow, overflow);
      assert_memory_equal(buf_cstr(&b), model, len);
      assert_int_equal(buf_cstr(&b)[len], 0);
      assert_true(b.cap_bytes <= cap + 1);
    }
    buf_clear(&b);
    assert_false(b.overflow);
    assert_string_equal(buf_cstr(&b), "");
    buf_free(&b);
  }
}

static void huge_lengths_do_not_wrap(void **state) {
  (void)state;
  struct buf b;
  buf_init(&b, 0);
  buf_puts(&b, "ab");
  assert_false(buf_append(&b, "x", SIZE_MAX));
  assert_false(buf_append(&b, "x", SIZE_MAX - 2));
  assert_false(buf_append(&b, "x", (size_t)1 << 30));
  assert_true(b.overflow);
  assert_string_equal(buf_cstr(&b), "ab");
  buf_free(&b);
}

static void json(void **state) {
  (void)state;
  static const struct {
    const char *in;
    size_t n;
    const char *out;
  } rows[] = {
      {"plain", 5, "plain"},
      {"\"\\/", 3, "\\\"\\\\/"},
      {"\n\r\t\b\f", 5, "\\n\\r\\t\\b\\f"},
      {"\0\x1f\x7f", 3, "\\u0000\\u001f\\u007f"},
      {"\xc3\xa9\xf0\x9f\xa6\xa2", 6, "\xc3\xa9\xf0\x9f\xa6\xa2"},
      {"a\xff\xc3", 3, "a\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xf0\x9f\xa6", 3, "\xef\xbf\xbd"},
  };
  struct buf b;
  buf_init(&b, 0);
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    buf_clear(&b);
    assert_true(buf_json_escape(&b, rows[i].in, rows[i].n));
    assert_string_equal(buf_cstr(&b), rows[i].out);
  }
  buf_free(&b);
}

/* Random bytes: the result is valid UTF-8 without raw controls or quotes; a cap hit in the middle takes all back. */
static void json_random(void **state) {
  (void)state;
  uint64_t seed = 5;
  for (int i = 0; i < 3000; i++) {
    char in[24];
    size_t n = (size_t)test_rand_int(&seed, 0, sizeof in);
    for (size_t k = 0; k < n; k++) in[k] = (char)test_rand(&seed);
    struct buf b, small;
    buf_init(&b, 0);
    assert_true(buf_json_escape(&b, in, n));
    assert_true(utf8_valid(buf_cstr(&b), b.len));
    for (size_t k = 0; k < b.len; k++) {
      assert_true((unsigned char)b.data[k] >= 0x20);
      if (b.data[k] == '"') assert_true(k > 0 && b.data[k - 1] == '\\');
    }
    size_t cap = (size_t)test_rand_int(&seed, 1, 150);
    buf_init(&small, cap);
    buf_putc(&small, '<');
    bool fits = buf_json_escape(&small, in, n);
    assert_int_equal(fits, b.len + 1 <= cap);
    assert_int_equal(small.len, fits ? b.len + 1 : 1);
    assert_int_equal(strlen(small.data), small.len);
    buf_free(&b);
    buf_free(&small);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(appends), cmocka_unit_test(against_model), cmocka_unit_test(huge_lengths_do_not_wrap),
    cmocka_unit_test(json),    cmocka_unit_test(json_random),
};
TEST_MAIN(tests)
