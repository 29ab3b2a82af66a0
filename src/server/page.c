/* page.c — the chat page at "/" as bytes of the program, and what a browser may do with it. */
#include "server/page.h"

#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/err.h"

/* The path is seen from the folder in which make runs. */
__asm__(".pushsection .rodata\n"
        ".global page_html\n"
        ".hidden page_html\n"
        "page_html:\n"
        ".incbin \"src/server/page.html\"\n"
        ".byte 0\n"
        ".popsection\n");

enum { HASH_CHARS = 44 }; /* 32 bytes in base 64 */

/* What stands between the tags of the page's only element of this name, as a source of the policy wants it. */
static void hash_of_element(const char *name, char out[HASH_CHARS + 1]) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char open[16], close[16];
  snprintf(open, sizeof open, "\n<%s>", name);
  snprintf(close, sizeof close, "</%s>", name);
  const char *from = strstr(page_html, open), *to = from ? strstr(from, close) : NULL;
  CHECK(to);
  from += strlen(open);
  unsigned char digest[DIGEST_BYTES + 1] = {0};
  digest_sha256(from, (size_t)(to - from), digest);
  for (int i = 0, k = 0; i < DIGEST_BYTES; i += 3, k += 4) {
    unsigned bits = (unsigned)digest[i] << 16 | (unsigned)digest[i + 1] << 8 | (i + 2 < DIGEST_BYTES ? digest[i + 2] : 0u);
    for (int d = 0; d < 4; d++) out[k + d] = digits[bits >> (18 - 6 * d) & 63];
  }
  out[HASH_CHARS - 1] = '=';
  out[HASH_CHARS] = 0;
}

void page_policy(char out[PAGE_POLICY_MAX]) {
  char script[HASH_CHARS + 1], style[HASH_CHARS + 1];
  hash_of_element("script", script);
  hash_of_element("style", style);
  int n = snprintf(out, PAGE_POLICY_MAX,
                   "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
                   "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
                   script, style);
  CHECK(n > 0 && n < PAGE_POLICY_MAX);
}
