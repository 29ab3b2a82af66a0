/* t_str.c — numbers from text, escapes, UTF-8 against a slow oracle, every input against an inaccessible page. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

static void slices(void **state) {
  (void)state;
  struct str s = str_c("cygnet");
  assert_true(str_eq(s, str_of("cygnets", 6)) && str_is(s, "cygnet") && !str_is(s, "cygne") && !str_is(s, "cygnets"));
  assert_true(str_starts(s, "") && str_starts(s, "cyg") && str_starts(s, "cygnet") && !str_starts(s, "cygnets") && !str_starts(s, "x"));
  assert_true(str_ends(s, "") && str_ends(s, "net") && str_ends(s, "cygnet") && !str_ends(s, "acygnet") && !str_ends(s, "x"));
  assert_true(str_eq(str_of(NULL, 0), str_c("")));
}

static void integers(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t lo, hi;
    bool ok;
    int64_t v;
  } rows[] = {
      {"0", 0, 9, true, 0},
      {"007", 0, 9, true, 7},
      {"9", 0, 9, true, 9},
      {"10", 0, 9, false, 0},
      {"-1", 0, 9, false, 0},
      {"-0", 0, 9, false, 0},
      {"-1", -1, 9, true, -1},
      {"-2", -1, 9, false, 0},
      {"", 0, 9, false, 0},
      {"-", -9, 9, false, 0},
      {"+1", 0, 9, false, 0},
      {" 1", 0, 9, false, 0},
      {"1 ", 0, 9, false, 0},
      {"1.0", 0, 9, false, 0},
      {"0x1", 0, 9, false, 0},
      {"9223372036854775807", INT64_MIN, INT64_MAX, true, INT64_MAX},
      {"9223372036854775808", INT64_MIN, INT64_MAX, false, 0},
      {"-9223372036854775808", INT64_MIN, INT64_MAX, true, INT64_MIN},
      {"-9223372036854775809", INT64_MIN, INT64_MAX, false, 0},
      {"99999999999999999999999", INT64_MIN, INT64_MAX, false, 0},
  };
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    int64_t v = 123;
    assert_int_equal(str_to_i64(str_c(rows[i].text), rows[i].lo, rows[i].hi, &v), rows[i].ok);
    assert_true(v == (rows[i].ok ? rows[i].v : 123));
  }
}

static void decimals(void **state) {
  (void)state;
  static const struct {
    const char *text;
    double v;
  } good[] = {{"0", 0},      {"-0.5", -0.5}, {".5", .5},   {"5.", 5},
              {"1e3", 1000}, {"1E-3", .001}, {"0.1", 0.1}, {"1.7976931348623157e308", 1.7976931348623157e308}};
  static const char *const bad[] = {"", ".", "-", "+1", " 1", "1 ", "1e", "1e+", "0x1p3", "inf", "nan", "1e999", "1,5", "1.2.3", "--1"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    double v = 0;
    assert_true(str_to_f64(str_c(good[i].text), &v) && v == good[i].v);
  }
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    double v = 7;
    assert_false(str_to_f64(str_c(bad[i]), &v));
    assert_true(v == 7);
  }
  uint64_t seed = 1;
  for (int i = 0; i < 2000; i++) {
    uint64_t bits = test_rand(&seed);
    double want, got;
    char text[64];
    memcpy(&want, &bits, 8);
    if (!isfinite(want)) continue;
    snprintf(text, sizeof text, "%.17g", want);
    for (char *plus = strchr(text, '+'); plus; plus = NULL) memmove(plus, plus + 1, strlen(plus));
    assert_true(str_to_f64(str_c(text), &got) && got == want);
  }
}

static void sizes(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t v;
  } good[] = {
      {"8", 8},           {"0", 0},           {"8B", 8},       {"8GiB", (size_t)8 << 30}, {"512MiB", 512 << 20}, {"1.5G", (size_t)3 << 29},
      {"4096K", 4 << 20}, {"4096k", 4 << 20}, {"0.5KiB", 512}, {"2T", (size_t)2 << 40},   {"1.000001K", 1024}};
  static const char *const bad[] = {
      "", "G", "-1", "1.5", "1.G", ".5G", "8GB", "8 GiB", "8GiBs", "8Gi", "1.0000001G", "8X", "99999999T", "18446744073709551616", "1e3"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    size_t v = 1;
    assert_true(str_to_bytes(str_c(good[i].text), &v));
    assert_int_equal(v, good[i].v);
  }
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    size_t v = 1;
    assert_false(str_to_bytes(str_c(bad[i]), &v));
  }
}

static void escapes(void **state) {
  (void)state;
  char buf[64];
  assert_string_equal(str_escape(str_of("a b\n\0\xff", 6), buf, sizeof buf), "a b\\x0a\\x00\\xff");
  assert_string_equal(str_escape(str_c(""), buf, sizeof buf), "");
  assert_string_equal(str_escape(str_c("abcdef"), buf, 7), "abcdef");
  assert_string_equal(str_escape(str_c("abcdefg"), buf, 7), "abc...");
  assert_string_equal(str_escape(str_c("abc"), buf, 3), "..");
  assert_string_equal(str_escape(str_c("abc"), buf, 1), "");
  uint64_t seed = 2;
  for (int i = 0; i < 5000; i++) {
    char in[20];
    size_t n = (size_t)test_rand_int(&seed, 0, sizeof in), cap = (size_t)test_rand_int(&seed, 1, 40), full = 0;
    for (size_t k = 0; k < n; k++) {
      in[k] = (char)(test_rand_int(&seed, 0, 1) ? test_rand_int(&seed, 32, 126) : test_rand_int(&seed, 0, 255));
      full += in[k] >= 0x20 && in[k] < 0x7f ? 1 : 4;
    }
    char *out = test_guard_alloc(cap);
    assert_ptr_equal(str_escape(str_of(in, n), out, cap), out);
    size_t len = strlen(out);
    assert_true(len < cap);
    if (full < cap) assert_int_equal(len, full);
    else if (cap > 3) assert_string_equal(out + len - 3, "...");
    for (size_t k = 0; k < len; k++) assert_true(out[k] >= 0x20 && out[k] < 0x7f);
    test_guard_free(out, cap);
  }
}

/* --- UTF-8 ------------------------------------------------------------------------------------------------------- */

/* The encoding of each code point, from the definition. */
static int encode(uint32_t cp, unsigned char out[4]) {
  if (cp < 0x80) return out[0] = (unsigned char)cp, 1;
  if (cp < 0x800) return out[0] = (unsigned char)(0xc0 | cp >> 6), out[1] = (unsigned char)(0x80 | (cp & 63)), 2;
  if (cp < 0x10000) {
    return out[0] = (unsigned char)(0xe0 | cp >> 12), out[1] = (unsigned char)(0x80 | (cp >> 6 & 63)),
           out[2] = (unsigned char)(0x80 | (cp & 63)), 3;
  }
  out[0] = (unsigned char)(0xf0 | cp >> 18), out[1] = (unsigned char)(0x80 | (cp >> 12 & 63));
  out[2] = (unsigned char)(0x80 | (cp >> 6 & 63)), out[3] = (unsigned char)(0x80 | (cp & 63));
  return 4;
}

/* Slow oracle: is p[0..n) exactly one well-formed sequence, or (n < whole) the beginning of one? It asks all code points
 * that could start so: the range of code points whose encoding has these first n bytes, by trying the free bits' extremes. */
static int oracle_want(const unsigned char *p) {
  return p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf8 ? 4 : 0;
}

static bool oracle_begins(const unsigned char *p, int n) {
  int want = oracle_want(p);
  if (want == 0 || n > want) return false;
  unsigned char full[4];
  uint64_t fills = (uint64_t)1 << (6 * (want - n));
  for (uint64_t fill = 0; fill<fills; fill += want - n> 1 ? 64 : 1) { /* the last byte never decides */
    uint32_t cp = want == 1 ? p[0] : want == 2 ? p[0] & 31 : want == 3 ? p[0] & 15 : p[0] & 7;
    bool continuation = true;
    for (int i = 1; i < n; i++) {
      continuation = continuation && (p[i] & 0xc0) == 0x80;
      cp = cp << 6 | (p[i] & 63);
    }
    if (!continuation) return false;
    cp = (uint32_t)(cp << (6 * (want - n)) | fill);
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) continue;
    if (encode(cp, full) == want && memcmp(full, p, (size_t)n) == 0) return true;
  }
  return false;
}

static void check_step(const unsigned char *bytes, size_t n) {
  char *p = test_guard_alloc(n);
  memcpy(p, bytes, n);
  int longest = 0; /* the longest beginning of a well-formed sequence */
  for (int k = 1; k <= (int)MIN(n, (size_t)4); k++) {
    if (oracle_begins(bytes, k)) longest = k;
    else break;
  }
  bool well_formed = longest > 0 && longest == oracle_want(bytes);
  uint32_t cp = 0;
  bool bad = false;
  int step = utf8_step(p, n, &cp, &bad);
  assert_int_equal(bad, !well_formed);
  assert_int_equal(step, well_formed ? longest : MAX(longest, 1));
  unsigned char back[4];
  if (well_formed) assert_true(encode(cp, back) == step && memcmp(back, bytes, (size_t)step) == 0);
  else assert_int_equal(cp, 0xfffd);
  assert_int_equal(utf8_step(p, n, &cp, NULL), step);
  if ((size_t)step == n) assert_int_equal(utf8_valid(p, n), well_formed);
  if (!well_formed && (size_t)longest == n) assert_int_equal(utf8_incomplete_tail(p, n), n);
  test_guard_free(p, n);
}

/* All sequences of 1 to 4 bytes (and truncations) over the values where table 3-7 changes its mind. */
static void utf8_boundaries(void **state) {
  (void)state;
  static const unsigned char lead[] = {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec,
                                       0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf7, 0xf8, 0xff};
  static const unsigned char second[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
  static const unsigned char third[] = {0x7f, 0x80, 0xbf, 0xc0};
  for (size_t a = 0; a < sizeof lead; a++) {
    check_step(&lead[a], 1);
    for (size_t b = 0; b < sizeof second; b++) {
      check_step((const unsigned char[]){lead[a], second[b]}, 2);
      for (size_t c = 0; c < sizeof third; c++) {
        check_step((const unsigned char[]){lead[a], second[b], third[c]}, 3);
        for (size_t d = 0; d < sizeof third; d++) check_step((const unsigned char[]){lead[a], second[b], third[c], third[d]}, 4);
      }
    }
  }
}

static void utf8_all_code_points(void **state) {
  (void)state;
  for (uint32_t cp = 0; cp < 0x110400; cp++) {
    unsigned char want[4];
    char got[4];
    bool fine = cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff), bad = false;
    uint32_t back;
    int n = encode(fine ? cp : 0xfffd, want);
    if (utf8_put(cp, got) != n || memcmp(got, want, (size_t)n) != 0) fail_msg("utf8_put of U+%04X", (unsigned)cp);
    if (utf8_step(got, (size_t)n, &back, &bad) != n || bad || back != (fine ? cp : 0xfffd)) fail_msg("utf8_step of U+%04X", (unsigned)cp);
  }
}

/* Any cut of a valid text: the tail is what is missing its end, and removing it leaves valid text. */
static void utf8_tails(void **state) {
  (void)state;
  uint64_t seed = 9;
  for (int i = 0; i < 3000; i++) {
    char text[64];
    size_t n = 0, starts[20];
    int n_chars = test_rand_int(&seed, 0, 12);
    static const int tops[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    for (int k = 0; k < n_chars; k++) {
      starts[k] = n;
      n += (size_t)utf8_put((uint32_t)test_rand_int(&seed, 0, tops[test_rand_int(&seed, 0, 3)]), text + n);
    }
    starts[n_chars] = n;
    assert_true(utf8_valid(text, n));
    assert_int_equal(utf8_incomplete_tail(text, n), 0);
    for (int k = 0; k < n_chars; k++) {
      for (size_t cut = starts[k]; cut < starts[k + 1]; cut++) {
        assert_int_equal(utf8_incomplete_tail(text, cut), cut - starts[k]);
        assert_int_equal(utf8_valid(text, cut), cut == starts[k]);
      }
    }
  }
  assert_int_equal(utf8_incomplete_tail("\x80\x80\x80\x80", 4), 0);
  assert_int_equal(utf8_incomplete_tail("\xed\xa0", 2), 0); /* begins a surrogate: never valid */
  assert_int_equal(utf8_incomplete_tail("a\xed", 2), 1);
  assert_int_equal(utf8_incomplete_tail("\xf4\x90", 2), 0);
  assert_int_equal(utf8_incomplete_tail("\xf0\x9f\xa6", 3), 3);
  assert_int_equal(utf8_incomplete_tail("\xc3", 0), 0);
}

static void hashes(void **state) {
  (void)state;
  assert_true(hash_bytes("", 0, 0) == 0xcbf29ce484222325u);
  assert_true(hash_bytes("a", 1, 0) == 0xaf63dc4c8601ec8cu);
  assert_true(hash_bytes("foobar", 6, 0) == 0x85944171f73967e8u);
  assert_true(hash_bytes("foobar", 6, 1) != hash_bytes("foobar", 6, 0));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(slices),
    cmocka_unit_test(integers),
    cmocka_unit_test(decimals),
    cmocka_unit_test(sizes),
    cmocka_unit_test(escapes),
    cmocka_unit_test(utf8_boundaries),
    cmocka_unit_test(utf8_all_code_points),
    cmocka_unit_test(utf8_tails),
    cmocka_unit_test(hashes),
};
TEST_MAIN(tests)
