/* t_page — the chat page as the program has it: the source's bytes, nothing from outside, and a policy that names its script and its style sheet. */
#include "test.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "server/page.h"

static void page_is_the_source(void **state) {
  (void)state;
  size_t n;
  char *source = test_read(test_path("../src/server/page.html"), &n);
  assert_int_equal(strlen(page_html), n);
  assert_memory_equal(page_html, source, n);
  free(source);
}

static int count(const char *needle) {
  int n = 0;
  for (const char *p = page_html; (p = strstr(p, needle)); p++) n++;
  return n;
}

static void page_needs_nothing_else(void **state) {
  (void)state;
  assert_int_equal(count("<script"), 1);
  assert_int_equal(count("\n<style>"), 1);
  static const char *const never[] = {" src=",          "@import",        "url(",  "<link rel=\"style", ".innerHTML", "outerHTML",
                                      "insertAdjacent", "document.write", "eval(", " style=\""};
  for (size_t i = 0; i < ARRAY_LEN(never); i++)
    if (count(never[i])) fail_msg("the page has %s", never[i]);
}

/* The digest by other means than the page's own. */
static void has_hash(const char *policy, const char *directive, const char *open, const char *close) {
  unsigned char digest[32], text[64];
  char wanted[128];
  const char *from = strstr(page_html, open) + strlen(open), *to = strstr(from, close);
  EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  assert_true(EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) && EVP_DigestUpdate(ctx, from, (size_t)(to - from)) &&
              EVP_DigestFinal_ex(ctx, digest, NULL));
  EVP_MD_CTX_free(ctx);
  EVP_EncodeBlock(text, digest, sizeof digest);
  snprintf(wanted, sizeof wanted, "; %s 'sha256-%s'; ", directive, (char *)text);
  if (!strstr(policy, wanted)) fail_msg("%s lacks %s", policy, wanted);
}

static void policy_names_script_and_style(void **state) {
  (void)state;
  char policy[PAGE_POLICY_MAX];
  page_policy(policy);
  has_hash(policy, "script-src", "<script>", "</script>");
  has_hash(policy, "style-src", "<style>", "</style>");
  assert_null(strstr(policy, "unsafe"));
  assert_null(strchr(policy, '\n'));
  assert_true(!strncmp(policy, "default-src 'none'; ", 20));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(page_is_the_source),
    cmocka_unit_test(page_needs_nothing_else),
    cmocka_unit_test(policy_names_script_and_style),
};
TEST_MAIN(tests)
