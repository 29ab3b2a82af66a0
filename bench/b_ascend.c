/* b_ascend.c — what a replayed decoding step costs the host, on the NPU that CANN finds: microseconds until all is on the stream.
 *
 * At the same lengths the cost must not depend on how long sequences may become. The emulator (ASCEND_HOME_PATH=BUILD/MODE/tests/acl_emu/PROFILE)
 * shows that, too, but its microseconds are its own.
 *
 *   b_ascend [MODEL]
 */
#include <stdio.h>

#include "engine/decoding.h"

enum { LENGTH = 200, STEPS = 40, WARM = 8 };

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int measure(const char *model, int rows, int tokens_max, struct err *e) {
  struct decoding d;
  double us[STEPS];
  int failed = decoding_open(&d, model, &device_ascend_ops, rows, tokens_max, LENGTH, LENGTH + STEPS + WARM + 1, e);
  for (int i = 0; !failed && i < WARM + STEPS; i++) {
    failed = decoding_step(&d, e);
    if (i >= WARM) us[i - WARM] = (double)d.host_ns / 1e3;
  }
  if (!failed) {
    qsort(us, STEPS, sizeof us[0], by_size);
    printf("  %2d row%s  up to %6d tokens   %4d launches   %8.0f us (median; fastest %.0f)\n", rows, rows == 1 ? " " : "s", tokens_max,
           d.m->dev->ops->record_launches(d.record), us[STEPS / 2], us[0]);
  }
  decoding_close(&d);
  return failed;
}

int main(int argc, char **argv) {
  const char *model = argc > 1 ? argv[1] : "tests/golden/gemma3-text-ropescale";
  static const int rows[] = {1, DECODING_ROWS_MAX}, limits[] = {4 << 10, 32 << 10, 128 << 10};
  struct device_look look;
  struct err e = {0};
  if (device_ascend_ops.look(0, &look, &e)) {
    printf("replay on an NPU: not measured: %s\n", e.msg);
    return 0;
  }
  printf("host's time for one replayed step of %s, %d tokens each, on %s\n", model, LENGTH, look.text);
  for (size_t r = 0; r < ARRAY_LEN(rows); r++)
    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
      if (measure(model, rows[r], limits[i], &e)) {
        printf("  %d rows: %s\n", rows[r], e.msg);
        return 1;
      }
  return 0;
}
