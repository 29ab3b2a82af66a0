/* digest.h — SHA-256, by OpenSSL's libcrypto: where equal digests decide what one user may reuse of another's. */
#ifndef CYGNET_DIGEST_H
#define CYGNET_DIGEST_H

#include "base/base.h"

enum { DIGEST_BYTES = 32 };

void digest_sha256(const void *data, size_t n, unsigned char out[DIGEST_BYTES]);

#endif
