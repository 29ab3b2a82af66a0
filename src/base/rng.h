/* rng.h — random numbers as a pure function of (seed, counter), so that a sample depends on its request's seed and
 * its position alone, never on who else is in the batch.
 *
 * Philox 4x32-10 (Salmon et al., SC 2011); the four counter words are (position low, position high, lane, 0), the key the seed.
 */
#ifndef CYGNET_RNG_H
#define CYGNET_RNG_H

#include "base/base.h"

void rng_block(uint64_t seed, uint64_t position, uint32_t lane, uint32_t out[4]);
/* Uniform in [0, 1) with 53 bits. */
double rng_uniform(uint64_t seed, uint64_t position, uint32_t lane);
/* A seed for requests that gave none: from getrandom(2). */
uint64_t rng_system_seed(void);

#endif
