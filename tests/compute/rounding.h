/* rounding.h — what a level does with activations before it multiplies them with bf16 weights. */
#ifndef CYGNET_TEST_ROUNDING_H
#define CYGNET_TEST_ROUNDING_H

#include "compute/gemm_kern.h"

/* To bf16, 2^-9 of each, where the processor has products of such numbers: results are then as far from the float32 ones as t_gemma3.c bounds them. */
static inline bool rounds_to_bf16(enum isa isa) {
  struct err e = {0};
  const struct kern *k = kern_select(isa, &e);
  return k && (k->gemm->bf16_row || k->gemm->tiles);
}

#endif
