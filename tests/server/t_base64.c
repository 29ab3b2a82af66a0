/* t_base64 — base64 and data: addresses as strangers write them, and bodies in parts. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/base64.h"
#include "server/multipart.h"

static const struct {
  const char *text, *want; /* NULL: refused */
} plain[] = {
    {"", ""},
    {"TQ==", "M"},
    {"TQ", "M"},
    {"TWE=", "Ma"},
    {"TWFu", "Man"},
    {" T\nW\r\nF\tu ", "Man"},
    {"TQ= =", "M"},
    {"TQ%3D%3D", "M"},
    {"-_-_", "\xfb\xff\xbf"},
    {"+/+/", "\xfb\xff\xbf"},
    {"%2B/%2b/", "\xfb\xff\xbf"},
    {"T", NULL},
    {"TWFuT", NULL},
    {"TQ=", NULL},
    {"TQ===", NULL},
    {"=", NULL},
    {"TWFu=", NULL},
    {"TQ==TWFu", NULL},
    {"TW!u", NULL},
    {"TW%u", NULL},
    {"TW%2", NULL},
    {"T\x80"
     "Fu",
     NULL},
    {"/etc/passwd.", NULL},
};

static void base64_of_all_kinds(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
    struct buf out;
    struct err e = {0};
    buf_init(&out, 0);
    int rc = base64_decode(str_c(plain[i].text), &out, &e);
    if ((rc == 0) != (plain[i].want != NULL)) fail_msg("\"%s\": %d %s", plain[i].text, rc, e.msg);
    if (rc == 0 && strcmp(buf_cstr(&out), plain[i].want)) fail_msg("\"%s\": \"%s\"", plain[i].text, buf_cstr(&out));
    if (rc) assert_non_null(strstr(e.msg, "base64"));
    buf_free(&out);
  }
}

/* Every length and many contents, against an obvious encoder; with line breaks and without padding. */
static void round_trips(void **state) {
  (void)state;
  static const char digits[2][65] = {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"};
  uint64_t seed = 1;
  for (int round = 0; round < 3000; round++) {
    size_t n = (size_t)test_rand_int(&seed, 0, round % 100 == 0 ? 9000 : 70);
    unsigned char *bytes = xmalloc(n + 1);
    struct buf text, out;
    struct err e = {0};
    int alphabet = test_rand_int(&seed, 0, 1), padded = test_rand_int(&seed, 0, 1), lines = test_rand_int(&seed, 0, 1);
    buf_init(&text, 0);
    buf_init(&out, 0);
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)test_rand_int(&seed, 0, 255);
    for (size_t i = 0; i < n; i += 3) {
      unsigned v = (unsigned)bytes[i] << 16 | (i + 1 < n ? (unsigned)bytes[i + 1] << 8 : 0) | (i + 2 < n ? bytes[i + 2] : 0u);
      for (int d = 0; d < 4; d++) {
        if (i + (size_t)d <= n) buf_putc(&text, digits[alphabet][v >> (18 - 6 * d) & 63]);
        else if (padded) buf_putc(&text, '=');
      }
      if (lines && i % 57 == 0) buf_puts(&text, "\r\n");
    }
    char *guarded = test_guard_alloc(text.len);
    if (text.len) memcpy(guarded, text.data, text.len);
    if (base64_decode(str_of(guarded, text.len), &out, &e)) fail_msg("%zu bytes: %s", n, e.msg);
    assert_int_equal(out.len, n);
    if (n) assert_memory_equal(out.data, bytes, n);
    test_guard_free(guarded, text.len);
    buf_free(&text);
    buf_free(&out);
    free(bytes);
  }
}

static const struct {
  const char *url, *want;
} urls[] = {
    {"data:image/png;base64,TWFu", "Man"},
    {"data:image/jpeg;base64,TWFu", "Man"},
    {"data:;base64,TWFu", "Man"},
    {"data:application/octet-stream;BASE64,TWFu", "Man"},
    {"DATA:image/png;charset=utf-8;Base64,TWFu", "Man"},
    {"data:image/png;base64 ,TWFu", "Man"},
    {"data:image/png; base64,TWFu", "Man"},
    {"data:image/png;x=base64,TWFu", "TWFu"},
    {"data:base64,TWFu", "TWFu"},
    {"data:,Man", "Man"},
    {"data:text/plain,M%61n%20", "Man "},
    {"data:text/plain,M%6", NULL},
    {"data:image/png;base64", NULL},
    {"data:", NULL},
    {"data:image/png;base64,T*==", NULL},
};

static void data_addresses(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
    struct buf out;
    struct err e = {0};
    buf_init(&out, 0);
    assert_true(base64_is_data_url(str_c(urls[i].url)));
    int rc = base64_data_url(str_c(urls[i].url), &out, &e);
    if ((rc == 0) != (urls[i].want != NULL) || (rc == 0 && strcmp(buf_cstr(&out), urls[i].want)))
      fail_msg("%s: %d \"%s\" %s", urls[i].url, rc, buf_cstr(&out), e.msg);
    buf_free(&out);
  }
  struct buf small;
  struct err e = {0};
  buf_init(&small, 4);
  assert_int_equal(base64_data_url(str_c("data:;base64,QUJDREVGR0g="), &small, &e), -1);
  assert_int_equal(e.code, ERR_TOO_LARGE);
  buf_free(&small);
}

/* ---- bodies in parts ------------------------------------------------------------------------------------------------------ */

static const struct {
  const char *type, *want;
} types[] = {
    {"multipart/form-data; boundary=abc", "abc"},
    {"Multipart/Form-Data;charset=utf-8; Boundary=\"a b;c=\"", "a b;c="},
    {"multipart/form-data", NULL},
    {"multipart/form-data; boundary=", NULL},
    {"multipart/form-data; boundary=a; boundary=b", NULL},
    {"multipart/form-data; boundary=\"a", NULL},
    {"multipart/form-data; boundary=a@b", NULL},
    {"multipart/form-data; boundary=\"a \"", NULL},
    {"multipart/mixed; boundary=abc", NULL},
    {"application/json", NULL},
    {"multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789", "0123456789"},
    {"multipart/form-data; boundary=01234567890123456789012345678901234567890123456789012345678901234567890", NULL},
};

static void boundaries(void **state) {
  (void)state;
  char out[MULTIPART_BOUNDARY_MAX + 1];
  for (size_t i = 0; i < ARRAY_LEN(types); i++) {
    bool found = multipart_boundary(str_c(types[i].type), out);
    bool semicolon = types[i].want && strchr(types[i].want, ';');
    if (semicolon) continue; /* a semicolon is no character of a boundary */
    if (found != (types[i].want != NULL) || (found && strncmp(out, types[i].want, strlen(types[i].want))))
      fail_msg("%s: %d %s", types[i].type, found, out);
  }
  assert_false(multipart_boundary((struct str){0}, out));
}

#define HEAD(name) "Content-Disposition: form-data; name=\"" name "\"\r\n"

static const struct {
  const char *body;
  int n; /* -1: refused */
  const char *first;
} bodies[] = {
    {"--b\r\n" HEAD("a") "\r\nvalue\r\n--b--\r\n", 1, "value"},
    {"--b\r\n" HEAD("a") "\r\nvalue\r\n--b--", 1, "value"},
    {"--b\r\n" HEAD("a") "\r\n\r\n--b--", 1, ""},
    {"--b\r\n" HEAD("a") "\r\n--b\r\n" HEAD("c") "\r\nx\r\n--b--", 2, ""},
    {"--b\r\ncontent-type: text/plain\r\n" HEAD("a") "\r\n--bx\r\n-b\r\n--b\r\n" HEAD("c") "\r\n2\r\n--b--\r\nrest", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\n-b\r\n\r\n--\r\n--b\r\n" HEAD("c") "\r\n2\r\n--b--\r\nrest", 2, "-b\r\n\r\n--"},
    {"--b--\r\n", 0, NULL},
    {"--b--", 0, NULL},
    {"", -1, NULL},
    {"\r\n--b\r\n" HEAD("a") "\r\nvalue\r\n--b--", -1, NULL},
    {"--c\r\n" HEAD("a") "\r\nvalue\r\n--c--", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\nvalue\r\n--b", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\nvalue\r\n", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\nvalue\n--b--", -1, NULL},
    {"--b\n" HEAD("a") "\r\nvalue\r\n--b--", -1, NULL},
    {"--b\r\n\r\nvalue\r\n--b--", -1, NULL},
    {"--b\r\n" HEAD("a") HEAD("b") "\r\nvalue\r\n--b--", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\n1\r\n--b\r\n" HEAD("a") "\r\n2\r\n--b--", -1, NULL},
    {"--b\r\n" HEAD("a[]") "\r\n1\r\n--b\r\n" HEAD("a[]") "\r\n2\r\n--b--", 2, "1"},
    {"--b\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n--b--", -1, NULL},
    {"--b\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n1\r\n--b--", -1, NULL},
    {"--b\r\nContent-Disposition: form-data; name=\"a\"; name=\"c\"\r\n\r\n1\r\n--b--", -1, NULL},
    {"--b\r\nContent-Disposition: form-data; filename=\"x;y\\\"z\"; name=a\r\n\r\n1\r\n--b--", 1, "1"},
    {"--b\r\nContent-Transfer-Encoding: base64\r\n" HEAD("a") "\r\n1\r\n--b--", -1, NULL},
    {"--b\r\nContent-Transfer-Encoding: binary\r\n" HEAD("a") "\r\n1\r\n--b--", 1, "1"},
    {"--b\r\n folded\r\n" HEAD("a") "\r\n1\r\n--b--", -1, NULL},
    {"--b\r\n" HEAD("a") "\r\nvalue\r\n--b--x", -1, NULL},
};

/* At the end of readable memory, whole and cut anywhere. */
static void bodies_in_parts(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
    size_t n = strlen(bodies[i].body);
    for (size_t cut = 0; cut <= n; cut++) {
      struct multipart_part parts[3];
      struct err e = {0};
      char *guarded = test_guard_alloc(n - cut);
      if (n - cut) memcpy(guarded, bodies[i].body, n - cut);
      int found = multipart_parse(str_of(guarded, n - cut), "b", parts, 3, &e);
      if (!cut && found != bodies[i].n) fail_msg("body %zu: expected %d parts, found %d: %s", i, bodies[i].n, found, e.msg);
      if (!cut && found > 0 && bodies[i].first && !str_is(parts[0].data, bodies[i].first))
        fail_msg("body %zu: \"%.*s\"", i, (int)parts[0].data.n, parts[0].data.p);
      if (found < 0) assert_int_equal(strncmp(e.msg, "body: ", 6), 0);
      test_guard_free(guarded, n - cut);
    }
  }
  struct multipart_part one[1];
  struct err e = {0};
  assert_int_equal(multipart_parse(str_c(bodies[3].body), "b", one, 1, &e), -1);
  assert_non_null(strstr(e.msg, "at most 1 parts"));
}

/* Bytes drawn from what such bodies are made of: nothing is read out of bounds, and parts lie inside. */
static void random_bodies(void **state) {
  (void)state;
  static const char *const words[] = {"--b",
                                      "\r\n",
                                      "--",
                                      "\r\n--b",
                                      "--b--",
                                      HEAD("a"),
                                      HEAD("c"),
                                      "x",
                                      "\r",
                                      "\n",
                                      "\"",
                                      ";",
                                      "name=",
                                      "\r\n\r\n",
                                      "-",
                                      "filename=\"f\"",
                                      "Content-Disposition: form-data;",
                                      ":",
                                      " "};
  uint64_t seed = 7;
  for (int round = 0; round < 20000; round++) {
    struct buf text;
    buf_init(&text, 0);
    buf_puts(&text, test_rand_int(&seed, 0, 9) ? "--b\r\n" : "");
    for (int k = test_rand_int(&seed, 0, 12); k > 0; k--) buf_puts(&text, words[test_rand_int(&seed, 0, (int)ARRAY_LEN(words) - 1)]);
    struct multipart_part parts[4];
    struct err e;
    char *guarded = test_guard_alloc(text.len);
    if (text.len) memcpy(guarded, text.data, text.len);
    int n = multipart_parse(str_of(guarded, text.len), "b", parts, 4, &e);
    for (int i = 0; i < n; i++) {
      assert_true(parts[i].data.p >= guarded && parts[i].data.p + parts[i].data.n <= guarded + text.len);
      assert_true(parts[i].name.p >= guarded && parts[i].name.p + parts[i].name.n <= guarded + text.len);
      assert_null(memmem(parts[i].data.p, parts[i].data.n, "\r\n--b", 5));
    }
    test_guard_free(guarded, text.len);
    buf_free(&text);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(base64_of_all_kinds), cmocka_unit_test(round_trips),     cmocka_unit_test(data_addresses),
    cmocka_unit_test(boundaries),          cmocka_unit_test(bodies_in_parts), cmocka_unit_test(random_bodies),
};
TEST_MAIN(tests)
