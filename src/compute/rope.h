/* rope.h — the angles of rotations, the same on every device: what a rope_table says beside its rows of cos and sin. */
#ifndef CYGNET_ROPE_H
#define CYGNET_ROPE_H

#include "compute/device.h"

/* *t without cos and sin; inv_freq is owned. rotated: which part of the pairs rotates, 1 = all. Arguments as in device_ops.rope_init. */
int rope_angles_init(struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e);
void rope_angles_free(struct rope_table *t);
/* As device_ops.rope_bands and rope_divide. */
void rope_angles_bands(struct rope_table *t, double factor, double low, double high, int tokens);
void rope_angles_divide(struct rope_table *t, const float *divisors);

#endif
