/* sample_kern.h — what the sampler does with whole rows of logits, compiled once for each width of vector (sample_impl.h).
 *
 * A row comes as blocks of PEAK_BLOCK; the caller fills the last one up with -inf. Every level does the same plain float operations in the same order,
 * nothing is fused, so all give the same bits: a level is a matter of speed alone.
 */
#ifndef CYGNET_SAMPLE_KERN_H
#define CYGNET_SAMPLE_KERN_H

#include "compute/kern.h"

struct sample_kern {
  /* sum + Σ exp((x - max) * f): within a block 8 lanes of float, then lane i + lane i + 4, then these in pairs; blocks in double, ascending. */
  double (*sum)(double sum, const float *restrict x, int n_blocks, float max, float f);
  /* x = exp((x - max) * f), n a multiple of 8; each number has the bits that it has in a sum. */
  void (*weigh)(float *x, int n, float max, float f);
};

/* The fastest that this machine has. */
const struct sample_kern *sample_kern_best(void);

extern const struct sample_kern sample_kern_ref;
#if defined(__x86_64__)
extern const struct sample_kern sample_kern_avx2;
#endif

#endif
