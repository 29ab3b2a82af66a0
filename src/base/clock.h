/* clock.h — time. Monotonic for durations, wall clock for what people and APIs see. */
#ifndef CYGNET_CLOCK_H
#define CYGNET_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void);     /* monotonic */
int64_t clock_unix_s(void); /* seconds since 1970 */
static inline double clock_ms_since(int64_t start_ns) { return (double)(clock_ns() - start_ns) / 1e6; }

#endif
