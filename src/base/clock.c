/* clock.c — time from clock_gettime, which costs about 20 ns and never fails for these two clocks. */
#include "base/clock.h"

#include <time.h>

int64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_unix_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec;
}
