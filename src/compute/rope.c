/* rope.c — angles of rotations. */
#include "compute/rope.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* Whole pairs rotate, but 5.0 / 49 * 49 is a little less than 5. */
int rope_angles_init(struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e) {
  *t = (struct rope_table){0};
  if (head_dim < 2 || head_dim % 2 != 0 || !(theta > 0) || !(factor > 0) || !(rotated >= 0 && rotated <= 1)) {
    return err_set(e, ERR_UNSUPPORTED, "rope: expected an even width, theta and factor above 0, part from 0 to 1; found %d, %g, %g, %g",
                   head_dim, theta, factor, rotated);
  }
  int half = head_dim / 2;
  *t = (struct rope_table){.head_dim = head_dim, .theta = theta, .factor = factor, .n_rotated = (int)(rotated * half + 1e-9)};
  t->inv_freq = xcalloc((size_t)half, sizeof *t->inv_freq);
  for (int i = 0; i < t->n_rotated; i++) t->inv_freq[i] = (float)(pow(theta, -2.0 * i / head_dim) / factor);
  return 0;
}

void rope_angles_free(struct rope_table *t) {
  free(t->inv_freq);
  *t = (struct rope_table){0};
}

void rope_angles_bands(struct rope_table *t, double factor, double low, double high, int tokens) {
  for (int i = 0; i < t->n_rotated; i++) {
    double f = pow(t->theta, -2.0 * i / t->head_dim) / t->factor, turns = tokens * f / (2 * M_PI); /* within the length trained first */
    double kept = MIN(MAX((turns - low) / (high - low), 0), 1);
    t->inv_freq[i] = (float)((1 - kept) * f / factor + kept * f);
  }
}

void rope_angles_divide(struct rope_table *t, const float *divisors) {
  for (int i = 0; i < t->head_dim / 2; i++) t->inv_freq[i] /= divisors[i];
}
