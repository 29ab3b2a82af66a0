/* attend_near.c — the few keys before a row, with an online softmax. The formula is in device.h. */
#include "compute/attend_near.h"

#include <math.h>

#include "base/record.h"

enum { ROWS_PER_ITEM = 16, KEYS_AT_ONCE = 16 };

struct near_job {
  struct tensor q, k, v, relative; /* q: in place, the result */
  const float *head_scale;
  const int32_t *first;
  int head_dim;
  struct attend_near n;
};

/* Four sums, so that the compiler may use vectors: the order is fixed. */
static float dot(const float *a, const float *b, int n) {
  float sum[4] = {0};
  int i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; j++) sum[j] += a[i + j] * b[i + j];
  for (; i < n; i++) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void near_head(const struct near_job *j, int row, int head) {
  int d = j->head_dim, at = head * d, lo = MAX(j->first[row], row - j->n.keys_left + 1);
  float *q = tensor_row(&j->q, row) + at, scaled[ATTEND_NEAR_HEAD_DIM_MAX], out[ATTEND_NEAR_HEAD_DIM_MAX] = {0};
  float most = -INFINITY, sum = 0;
  for (int i = 0; i < d; i++) scaled[i] = q[i] * j->head_scale[i];
  for (int key = lo; key <= row; key += KEYS_AT_ONCE) {
    float s[KEYS_AT_ONCE], before = most;
    int n = MIN(KEYS_AT_ONCE, row + 1 - key);
    for (int i = 0; i < n; i++) {
      s[i] = dot(scaled, tensor_row(&j->k, key + i) + at, d) * j->n.key_scale +
             dot(scaled, tensor_row(&j->relative, row - key - i) + at, d);
      if (j->n.cap > 0) s[i] = j->n.cap * tanhf(s[i] / j->n.cap);
      most = MAX(most, s[i]);
    }
    float again = expf(before - most);
    sum *= again;
    for (int c = 0; c < d; c++) out[c] *= again;
    for (int i = 0; i < n; i++) {
      const float *v = tensor_row(&j->v, key + i) + at;
      float p = expf(s[i] - most);
      sum += p;
      for (int c = 0; c < d; c++) out[c] += p * v[c];
    }
  }
  for (int c = 0; c < d; c++) q[c] = out[c] / sum;
}

static void near_item(void *ctx, int item, int worker) {
  const struct near_job *j = ctx;
  (void)worker;
  int row = j->n.row + item * ROWS_PER_ITEM, end = MIN(row + ROWS_PER_ITEM, j->n.row_end);
  for (; row < end; row++) {
    CHECK(j->first[row] >= 0 && j->first[row] <= row);
    for (int head = 0; head < j->n.n_heads; head++) near_head(j, row, head);
  }
}

void attend_near(struct workers *workers, struct tensor *q, const struct tensor *k, const struct tensor *v, const struct tensor *relative,
                 const float *head_scale, const int32_t *first, const struct attend_near *n) {
  CHECK(n->n_heads > 0 && q->cols % n->n_heads == 0 && k->cols == q->cols && v->cols == q->cols && relative->cols == q->cols);
  CHECK(n->keys_left > 0 && n->keys_left <= relative->rows && n->row >= 0 && n->row_end <= MIN(q->rows, MIN(k->rows, v->rows)));
  struct near_job j = {*q, *k, *v, *relative, head_scale, first, q->cols / n->n_heads, *n};
  CHECK(j.head_dim <= ATTEND_NEAR_HEAD_DIM_MAX);
  if (n->row < n->row_end) workers_launch(workers, near_item, &j, sizeof j, div_up(n->row_end - n->row, ROWS_PER_ITEM), NULL);
}
