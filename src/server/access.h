/* access.h — who may: API keys and the admin key. What a client shows is compared by SHA-256 digest, with every key, in the same time whether it is
 * right, nearly right or wrong; keys appear in no message and no log.
 *
 *                      no keys   API keys alone   admin key alone   both
 *   ACCESS_PUBLIC      open      open             open              open
 *   ACCESS_USE         open      an API key       open              an API key
 *   ACCESS_ADMIN       open      an API key       the admin key     the admin key (an API key: 403)
 */
#ifndef CYGNET_ACCESS_H
#define CYGNET_ACCESS_H

#include "base/digest.h"
#include "base/err.h"
#include "base/str.h"

enum access_level { ACCESS_PUBLIC, ACCESS_USE, ACCESS_ADMIN };
enum { ACCESS_KEY_BYTES_MAX = 1024 };

struct access {
  unsigned char (*keys)[DIGEST_BYTES]; /* owned, [n_keys] */
  int n_keys;
  bool has_admin;
  unsigned char admin[DIGEST_BYTES];
};

/* Any of the three may be NULL. File: a key per line; blank lines and lines that begin with # are skipped; a file without keys is an error.
 * Keys are 1 to 1024 visible ASCII characters. Returns 0, or -1 and *e; access_close in both cases. */
int access_open(struct access *a, const char *api_key, const char *api_key_file, const char *admin_key, struct err *e);
void access_close(struct access *a);

/* shown: what was presented; p NULL for nothing. Returns 0: may; 401: none or a wrong one; 403: an API key where the admin key is wanted. */
int access_check(const struct access *a, enum access_level level, const struct str *shown, int n_shown);

#endif
