/* attend_near.h — attention of a sound's rows to themselves and the few before them: device_ops.attend_near on the CPU. A row's bits depend
 * on its own q, the keys and values that it sees and the relative term, on nothing else. */
#ifndef CYGNET_ATTEND_NEAR_H
#define CYGNET_ATTEND_NEAR_H

#include "compute/device.h"

enum { ATTEND_NEAR_HEAD_DIM_MAX = 1024 };

/* first is read in the launch. */
void attend_near(struct workers *workers, struct tensor *q, const struct tensor *k, const struct tensor *v, const struct tensor *relative,
                 const float *head_scale, const int32_t *first, const struct attend_near *n);

#endif
