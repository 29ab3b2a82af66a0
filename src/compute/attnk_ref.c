/* attnk_ref.c — attention kernels in plain C: the same tiles and segments as the fast levels, one line at a time. */
#include <math.h>

#include "compute/attn_kern.h"

static float ref_dot(const float *a, const float *b, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return (float)sum;
}

static void ref_line(const struct attn_lines *s, int line, int from, int to, const float *k, const float *v, size_t stride) {
  float score[ATTN_TILE], top = s->max[line];
  const float *q = s->q + (size_t)line * s->head_dim;
  float *acc = s->acc + (size_t)line * s->head_dim;
  for (int j = from; j < to; j++) {
    score[j] = ref_dot(q, k + (size_t)j * stride, s->head_dim);
    top = MAX(top, score[j]);
  }
  float fade = expf(s->max[line] - top), sum = s->sum[line] * fade;
  for (int i = 0; i < s->head_dim; i++) acc[i] *= fade;
  for (int j = from; j < to; j++) {
    float p = expf(score[j] - top);
    const float *value = v + (size_t)j * stride;
    sum += p;
    for (int i = 0; i < s->head_dim; i++) acc[i] += p * value[i];
  }
  s->max[line] = top;
  s->sum[line] = sum;
}

static void ref_many(const struct attn_lines *s, const int *from, const int *to, const float *k, const float *v, size_t stride,
                     const struct attn_ahead *ahead) {
  (void)ahead;
  for (int line = 0; line < s->n; line++) {
    if (from[line] < to[line]) ref_line(s, line, from[line], to[line], k, v, stride);
  }
}

static void ref_merge(float *max, float *sum, float *acc, float seg_max, float seg_sum, const float *seg_acc, int n) {
  float top = MAX(*max, seg_max), a = expf(*max - top), b = expf(seg_max - top);
  for (int i = 0; i < n; i++) acc[i] = acc[i] * a + seg_acc[i] * b;
  *sum = *sum * a + seg_sum * b;
  *max = top;
}

static void ref_finish(float *out, const float *acc, float sum, int n) {
  for (int i = 0; i < n; i++) out[i] = acc[i] / sum;
}

static void ref_load_q(float *q, const float *src, float scale, int n) {
  for (int i = 0; i < n; i++) q[i] = src[i] * scale;
}

static void ref_expand(float *out, const void *row, enum dtype t, int n) { dtype_to_f32(t, row, out, (size_t)n); }
static void ref_store(void *row, const float *src, enum dtype t, int n) { dtype_from_f32(t, src, row, (size_t)n); }

const struct attn_kern attnk_ref = {
    .many_lines = 1,
    .many = ref_many,
    .merge = ref_merge,
    .finish = ref_finish,
    .load_q = ref_load_q,
    .expand = ref_expand,
    .store = ref_store,
};
