/* fetch.h — one thing from the web, for a stranger who named its address: http and https, GET, nothing else.
 *
 * Whoever writes the address must not reach what only this machine reaches. So
 *   1. The address of every connection is looked at where it is made, by the function that opens the socket: what was looked up is what is
 *      connected to, and a name that means something else a moment later changes nothing. Loopback, private, link-local, shared (CGNAT),
 *      multicast, reserved and documentation ranges are refused, also inside IPv6 (mapped, compatible, 6to4, Teredo, NAT64).
 *   2. Ports 80 and 443 alone.
 *   3. Redirects are followed here, three at most, each as carefully as the first address.
 *   4. No proxies, no user names, no passwords, no cookies, no .netrc, no decompression. Certificates are checked.
 *   5. Bytes and time are bounded over all of it, looking names up included; the caller can end it at any moment but that.
 * Hosts that the operator names ("allow") are exempt from 1 and 2.
 */
#ifndef CYGNET_FETCH_H
#define CYGNET_FETCH_H

#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum { FETCH_REDIRECTS_MAX = 3, FETCH_URL_BYTES_MAX = 8192 };

struct fetch_options {
  bool any;          /* any public host; otherwise those of `allow` alone */
  const char *allow; /* "HOST", "HOST:PORT", comma between; NULL: none. Without a port: 80 and 443 */
  size_t max_bytes;
  int timeout_ms;
  bool (*stop)(void *ctx); /* asked a few times a second; true: end it. May be NULL */
  void *ctx;
  const char *resolve; /* for tests, instead of looking names up: "HOST:PORT:ADDRESS[,ADDRESS]", several with a blank between */
};

/* Any thread. The body of a 200 → *out. ERR_TOO_LARGE, ERR_CANCELLED, ERR_BAD_INPUT with a sentence. */
int fetch(struct str url, const struct fetch_options *o, struct buf *out, struct err *e);

bool fetch_is_public(const struct sockaddr *a);
/* A list as `allow` wants it; 0, or -1 and *e. */
int fetch_check_allow(const char *allow, struct err *e);

#endif
