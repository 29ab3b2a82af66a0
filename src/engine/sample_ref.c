/* sample_ref.c — sample_kern.h on any machine, and which level this one gets. */
#define SAMPLE_LANES 4
#include "engine/sample_impl.h"

#include "compute/kern.h"

const struct sample_kern sample_kern_ref = {.sum = sum_of_weights, .weigh = weigh};

const struct sample_kern *sample_kern_best(void) {
#if defined(__x86_64__)
  if (kern_available(ISA_AVX2)) return &sample_kern_avx2;
#endif
  return &sample_kern_ref;
}
