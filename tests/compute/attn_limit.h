/* attn_limit.h — how right attention must be. */
#ifndef ATTN_LIMIT_H
#define ATTN_LIMIT_H

#include <string.h>

#include "base/dtype.h"

/* How far from the oracle results may be in L2, as a part of their size; a single one may be ten times as far.
 *
 * Float32 everywhere: 2e-6. Products of bf16 round queries and weights to it: at most 2^-8 of a number in [1, 2), evenly spread, so the mean square is
 * 2^-16 / 3, and relative to a number of mean square 7/3 its root is 1.5e-3; 2.1e-3 for queries and weights together, of a row that sees one key's weight
 * above all. Tiles of AMX take a query and a weight as two numbers of bf16. The first leaves at most
 * 2^-8 of a number in [1, 2), the second a rounding error evenly spread over 2^-16 or less: half of the first's rests have the greatest unit, a quarter half
 * of it, ... so the mean square is 2^-34 / 3 (1/2 + 1/16 + 1/128 + ...) = 2^-34 / 5.25, and relative to a number of mean square 7/3 its root is 2.2e-6.
 * Queries and weights together give 3.1e-6. Twice all that is allowed. */
static inline double attn_limit(const char *variant, enum dtype kv_dtype) {
  if (kv_dtype != DTYPE_BF16) return 2e-6;
  return strstr(variant, "amx") ? 6e-6 : strstr(variant, "bf16") ? 4.2e-3 : 2e-6;
}

#endif
