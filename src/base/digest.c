/* digest.c */
#include "base/digest.h"

#include <openssl/evp.h>

void digest_sha256(const void *data, size_t n, unsigned char out[DIGEST_BYTES]) {
  unsigned int n_out = 0;
  CHECK(EVP_Digest(data, n, out, &n_out, EVP_sha256(), NULL) == 1 && n_out == DIGEST_BYTES);
}
