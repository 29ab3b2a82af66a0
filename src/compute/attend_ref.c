/* attend_ref.c — attention of encoders in plain C: each row by itself, in double, in two passes over its keys. */
#include <math.h>

#include "compute/attend.h"

static const float *ref_at(const float *first, size_t n_bytes, int i) {
  return (const float *)(const void *)((const char *)first + (size_t)i * n_bytes);
}

static double ref_score(const float *q, const float *k, float scale, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (double)q[i] * (double)k[i];
  return sum * (double)scale;
}

static void ref_row(const struct attend_block *b, const float *q, float *out) {
  double acc[ATTEND_HEAD_DIM_MAX] = {0}, top = -INFINITY, sum = 0;
  for (int j = b->lo; j < b->hi; j++) top = fmax(top, ref_score(q, ref_at(b->k, b->k_bytes, j), b->scale, b->head_dim));
  for (int j = b->lo; j < b->hi; j++) {
    double p = exp(ref_score(q, ref_at(b->k, b->k_bytes, j), b->scale, b->head_dim) - top);
    const float *v = ref_at(b->v, b->v_bytes, j);
    sum += p;
    for (int i = 0; i < b->head_dim; i++) acc[i] += p * (double)v[i];
  }
  for (int i = 0; i < b->head_dim; i++) out[i] = (float)(acc[i] / sum);
}

static void ref_block(const struct attend_block *b) {
  for (int r = 0; r < b->n_rows; r++) ref_row(b, ref_at(b->q, b->q_bytes, r), (float *)(void *)((char *)b->out + (size_t)r * b->out_bytes));
}

const struct attend_kern attend_ref = {.block = ref_block};
