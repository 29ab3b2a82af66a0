/* head_check.h — a device with one output matrix, and a row of its logits of which some were left out, held to all of them (compute/head.h's rules). */
#ifndef CYGNET_TESTS_HEAD_CHECK_H
#define CYGNET_TESTS_HEAD_CHECK_H

#include "test.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compute/device.h"
#include "compute/head.h"

struct head_world {
  struct device *d;
  struct weight w; /* bound */
  void *source;
  struct tensor x, all, some, peaks; /* [rows_max, ...] */
};

/* On a device with the kernels k; w and source are filled in. */
static inline void head_world_open(struct head_world *w, const struct kern *k, int rows_max, int threads) {
  struct err e = {0};
  const int vocab = w->w.rows, cols = w->w.cols;
  struct device_config c = {.isa = k->isa, .n_threads = threads, .rows_max = rows_max, .cols_max = cols};
  if (!(w->d = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  w->d->kern = k;
  if (w->d->ops->weight_bind(w->d, &w->w, 1, "head", &e)) fail_msg("%s", e.msg);
  struct tensor *all[] = {&w->x, &w->all, &w->some, &w->peaks};
  const int widths[] = {cols, vocab, vocab, head_blocks(vocab)};
  for (size_t i = 0; i < ARRAY_LEN(all); i++)
    if (w->d->ops->alloc(w->d, all[i], rows_max, widths[i], "test", &e)) fail_msg("%s", e.msg);
}

static inline void head_world_close(struct head_world *w) {
  struct tensor *all[] = {&w->x, &w->all, &w->some, &w->peaks};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) w->d->ops->free(w->d, all[i]);
  w->d->ops->weight_free(w->d, &w->w, 1);
  w->d->ops->close(w->d);
  free(w->source);
}

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
