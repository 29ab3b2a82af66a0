/* link.c — shards as threads of one process: each puts its rows down, all wait, each adds up all of them. */
#include "compute/link.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct link_end { /* one shard's */
  struct device_link link;
  struct link_threads *all;
  float *rows; /* [floats_max]: what it adds */
};
struct link_threads {
  int n;
  size_t floats_max;
  pthread_barrier_t met;
  bool has_barrier;
  struct link_end ends[];
};

static void sum(void *ctx, struct tensor *y) {
  struct link_end *mine = ctx;
  struct link_threads *t = mine->all;
  size_t cols = (size_t)y->cols, n = (size_t)y->rows * cols;
  CHECK(n <= t->floats_max);
  for (int r = 0; r < y->rows; r++) memcpy(mine->rows + (size_t)r * cols, tensor_row(y, r), cols * sizeof(float));
  pthread_barrier_wait(&t->met);
  for (int r = 0; r < y->rows; r++) {
    float *to = tensor_row(y, r);
    memcpy(to, t->ends[0].rows + (size_t)r * cols, cols * sizeof(float));
    for (int s = 1; s < t->n; s++) {
      const float *from = t->ends[s].rows + (size_t)r * cols;
      for (size_t c = 0; c < cols; c++) to[c] += from[c];
    }
  }
  pthread_barrier_wait(&t->met); /* nobody puts new rows down before all have read these */
}

struct link_threads *link_threads_new(int n, size_t floats_max, struct err *e) {
  CHECK(n >= 2);
  struct link_threads *t = xcalloc(1, sizeof *t + (size_t)n * sizeof t->ends[0]);
  t->n = n;
  t->floats_max = floats_max;
  t->has_barrier = !pthread_barrier_init(&t->met, NULL, (unsigned)n);
  for (int i = 0; i < n && t->has_barrier; i++) {
    t->ends[i].all = t;
    t->ends[i].link = (struct device_link){.rank = i, .n = n, .ctx = &t->ends[i], .sum = sum};
    if (!(t->ends[i].rows = mem_try_alloc(floats_max * sizeof(float)))) break;
    if (i + 1 == n) return t;
  }
  link_threads_delete(t);
  err_set(e, ERR_NO_MEMORY, "shards: cannot get memory for sums of %zu numbers over %d of them", floats_max, n);
  return NULL;
}

void link_threads_delete(struct link_threads *t) {
  if (!t) return;
  for (int i = 0; i < t->n; i++) free(t->ends[i].rows);
  if (t->has_barrier) pthread_barrier_destroy(&t->met);
  free(t);
}

const struct device_link *link_of_thread(const struct link_threads *t, int rank) {
  CHECK(rank >= 0 && rank < t->n);
  return &t->ends[rank].link;
}
