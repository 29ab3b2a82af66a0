/* act_exact.h — activations in float64, as compute/kern.h defines them. */
#ifndef CYGNET_TEST_ACT_EXACT_H
#define CYGNET_TEST_ACT_EXACT_H

#include <math.h>

#include "compute/kern.h"

static inline double act_exact(enum act act, double x) {
  switch (act) {
  case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  case ACT_SILU: return x / (1 + exp(-x));
  case ACT_SIGMOID: return 1 / (1 + exp(-x));
  case ACT_GELU_ERF: return 0.5 * x * erfc(-x * 0.70710678118654752440);
  case ACT_RELU: return x > 0 ? x : 0;
  case ACT_NONE: break;
  }
  return x;
}

#endif
