/* rng.c — Philox 4x32-10: ten rounds of multiply and exchange, keyed by the seed. */
#include "base/rng.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

void rng_block(uint64_t seed, uint64_t position, uint32_t lane, uint32_t out[4]) {
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = lane, c3 = 0;
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xd2511f53 * c0, b = (uint64_t)0xcd9e8d57 * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)a;
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

double rng_uniform(uint64_t seed, uint64_t position, uint32_t lane) {
  uint32_t w[4];
  rng_block(seed, position, lane, w);
  return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
}

uint64_t rng_system_seed(void) {
  uint64_t seed;
  ssize_t n;
  do n = getrandom(&seed, sizeof seed, 0);
  while (n < 0 && errno == EINTR);
  if (n == sizeof seed) return seed;
  /* A kernel without getrandom: time and process number differ between runs, which is all that is left to ask for. */
  uint32_t w[4];
  rng_block((uint64_t)clock_ns(), (uint64_t)clock_unix_s(), (uint32_t)getpid(), w);
  return (uint64_t)w[0] << 32 | w[1];
}
