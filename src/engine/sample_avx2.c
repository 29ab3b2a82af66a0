/* sample_avx2.c — sample_kern.h with vectors of 8. */
#if defined(__x86_64__)
#define SAMPLE_LANES 8
#include "engine/sample_impl.h"

const struct sample_kern sample_kern_avx2 = {.sum = sum_of_weights, .weigh = weigh};
#else
typedef int sample_avx2_is_for_x86_64;
#endif
