/* page.h — the chat page at "/". Its source is page.html, which the assembler puts into page.o as it is. */
#ifndef CYGNET_PAGE_H
#define CYGNET_PAGE_H

#include <stddef.h>

extern const char page_html[]; /* ends with NUL */

/* Writes the page's Content-Security-Policy into out, which PAGE_POLICY_MAX bytes hold. The one script and the one style sheet that may take effect
 * are those of page_html, by their SHA-256. */
enum { PAGE_POLICY_MAX = 640 };
void page_policy(char out[PAGE_POLICY_MAX]);

#endif
