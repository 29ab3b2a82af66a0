/* t_digest.c — the two vectors of FIPS 180-4 that everybody knows. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/digest.h"

static void check_hex(const char *text, const char *hex) {
  unsigned char out[DIGEST_BYTES];
  char found[2 * DIGEST_BYTES + 1];
  digest_sha256(text, strlen(text), out);
  for (int i = 0; i < DIGEST_BYTES; i++) snprintf(found + 2 * i, 3, "%02x", out[i]);
  assert_string_equal(found, hex);
}

static void test_known(void **unused) {
  (void)unused;
  check_hex("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  check_hex("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_known)};
TEST_MAIN(tests)
