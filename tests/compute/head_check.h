/* head_check.h — a row of logits of which some were left out, held to all of them (compute/head.h's rules). */
#ifndef CYGNET_TESTS_HEAD_CHECK_H
#define CYGNET_TESTS_HEAD_CHECK_H

#include "test.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compute/head.h"

static inline int head_check_descending(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

/* n_best >= 0. peaks: NULL for none. Returns the number of logits that were left out. */
static inline int head_check_row(const float *all, const float *some, const float *peaks, int vocab, int n_best, bool all_wanted) {
  float *sorted = xcalloc((size_t)vocab, sizeof *sorted);
  memcpy(sorted, all, (size_t)vocab * sizeof *sorted);
  bool has_nan = false;
  for (int i = 0; i < vocab; i++) has_nan |= isnan(all[i]);
  if (!has_nan) qsort(sorted, (size_t)vocab, sizeof *sorted, head_check_descending);
  int n_missing = 0;
  for (int i = 0; i < vocab; i++) {
    bool out = peaks && peaks[i / PEAK_BLOCK] == -INFINITY;
    if (!out && memcmp(&all[i], &some[i], sizeof *all) == 0) continue;
    if (out && all[i] == -INFINITY) continue;
    n_missing++;
    if (isnan(all[i])) fail_msg("logit %d is no number, found %g", i, (double)some[i]);
    if (!out && some[i] != -INFINITY) fail_msg("logit %d: expected %.9g, found %.9g", i, (double)all[i], (double)some[i]);
    if (all_wanted) fail_msg("logit %d is missing where all are wanted", i);
    if (!has_nan && all[i] >= sorted[MIN(n_best, vocab) - 1])
      fail_msg("logit %d, %.9g, is among the %d greatest, the last of which is %.9g", i, (double)all[i], n_best,
               (double)sorted[MIN(n_best, vocab) - 1]);
  }
  for (int b = 0; peaks && b < head_blocks(vocab); b++) {
    float want = -INFINITY;
    for (int i = b * PEAK_BLOCK; i < MIN(vocab, (b + 1) * PEAK_BLOCK); i++)
      if (isnan(some[i]) || some[i] > want) want = some[i];
    if (peaks[b] != -INFINITY && !(isnan(want) ? isnan(peaks[b]) : peaks[b] == want))
      fail_msg("peak %d: expected %.9g, found %.9g", b, (double)want, (double)peaks[b]);
  }
  free(sorted);
  return n_missing;
}

#endif
