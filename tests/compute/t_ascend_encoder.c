/* t_ascend_encoder.c — what encoders use on the emulated NPU, in every profile, against the CPU: random shapes, parts of wider tensors, runs of
 * rows, and what must not be seen. Tensors begin as numbers of the device's type, so that both compute the same; results may differ by a few
 * roundings to it. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "compute/device.h"
#include "npu.h"

enum { ROWS_MOST = 96, COLS_MOST = 192, ROUNDS = 40 };

static struct device *cpu, *npu;
static float unit; /* rounding of the device's type */
static uint64_t rand_state = 5;

static int any(int lo, int hi) { return test_rand_int(&rand_state, lo, hi); }

/* A tensor on both devices with the same numbers: columns of a wider one, at any place. */
struct pair {
  struct tensor whole[2], at[2];
  struct tensor host; /* for fetch */
};

static void alloc(struct device *d, struct tensor *t, int rows, int cols) {
  struct err e = {0};
  if (d->ops->alloc(d, t, rows, cols, "test", &e)) fail_msg("%s", e.msg);
}

static float rounded(float x) {
  enum dtype type = strncmp(npu_current(), "310P", 4) ? DTYPE_BF16 : DTYPE_F16;
  uint16_t half;
  dtype_from_f32(type, &x, &half, 1);
  dtype_to_f32(type, &half, &x, 1);
  return x;
}

static void put(struct pair *p, int r, int c, float x) { /* before pair_send */
  tensor_row(&p->at[0], r)[c] = x;
}
static void pair_send(struct pair *p) {
  struct tensor staged = npu->ops->stage(npu, &p->whole[1]);
  for (int r = 0; r < staged.rows; r++) memcpy(tensor_row(&staged, r), tensor_row(&p->whole[0], r), (size_t)staged.cols * sizeof(float));
  npu->ops->send(npu, &p->whole[1], &staged);
}

static void pair_init(struct pair *p, int rows, int cols, float size) {
  int left = any(0, 2) ? 0 : any(1, 3), right = any(0, 3);
  struct err e = {0};
  for (int i = 0; i < 2; i++) {
    alloc(i ? npu : cpu, &p->whole[i], rows + 1, cols + left + right);
    p->at[i] = tensor_part(p->whole[i], 0, rows, left, cols);
  }
  for (int r = 0; r <= rows; r++)
    for (int c = 0; c < p->whole[0].cols; c++) tensor_row(&p->whole[0], r)[c] = rounded(size * test_rand_normal(&rand_state));
  pair_send(p);
  if (npu->ops->host_alloc(npu, &p->host, rows + 1, p->whole[1].cols, "test", &e)) fail_msg("%s", e.msg);
}

static void pair_free(struct pair *p) {
  cpu->ops->free(cpu, &p->whole[0]);
  npu->ops->free(npu, &p->whole[1]);
  npu->ops->host_free(npu, &p->host);
}

static void finish(const char *what) {
  struct err e = {0};
  if (npu->ops->finish(npu, &e)) fail_msg("%s: %s", what, e.msg);
}

/* Within `rounds` roundings of the greater of the number and `size`; nothing beside the part has changed. */
static void expect(struct pair *p, const char *what, float rounds, float size) {
  npu->ops->fetch(npu, &p->host, &p->whole[1]);
  finish(what);
  int left = (int)(((char *)p->at[0].data - (char *)p->whole[0].data) / (ptrdiff_t)sizeof(float));
  for (int r = 0; r < p->whole[0].rows; r++) {
    for (int c = 0; c < p->whole[0].cols; c++) {
      float want = tensor_row(&p->whole[0], r)[c], got = tensor_row(&p->host, r)[c];
      bool inside = r < p->at[0].rows && c >= left && c < left + p->at[0].cols;
      float allowed = inside ? rounds * unit * MAX(fabsf(want), size) : 0;
      if (isnan(want) ? !isnan(got) : !(fabsf(want - got) <= allowed))
        fail_msg("%s, row %d of %d, column %d of %d%s: %g, expected %g", what, r, p->at[0].rows, c - left, p->at[0].cols,
                 inside ? "" : ", which is not its", (double)got, (double)want);
    }
  }
}

#define BOTH(call)                                                                                                                         \
  for (int i = 0; i < 2; i++) {                                                                                                            \
    struct device *d = i ? npu : cpu;                                                                                                      \
    call;                                                                                                                                  \
  }

static float *vector(int n, float size) {
  float *x = xcalloc((size_t)n, sizeof *x);
  for (int i = 0; i < n; i++) x[i] = rounded(size * test_rand_normal(&rand_state));
  return x;
}

/* ---- number by number ----------------------------------------------------------------------------------------------------------- */

static void layernorm(void) {
  for (int round = 0; round < ROUNDS; round++) {
    int rows = any(1, 20), cols = round % 3 ? any(8, COLS_MOST) : any(2, 12);
    struct pair x, y;
    float *w = any(0, 2) ? vector(cols, 1) : NULL, *b = any(0, 2) ? vector(cols, 1) : NULL;
    pair_init(&x, rows, cols, 2);
    pair_init(&y, rows, cols, 2);
    bool in_place = any(0, 1);
    BOTH(d->ops->layernorm(d, in_place ? &x.at[i] : &y.at[i], &x.at[i], w, b, 1e-5f));
    expect(in_place ? &x : &y, "layernorm", 3, 2);
    free(w);
    free(b);
    pair_free(&x);
    pair_free(&y);
  }
}

static void bias_act(void) {
  for (int round = 0; round < ROUNDS; round++) {
    for (int act = ACT_GELU_TANH; act <= ACT_NONE; act++) {
      struct pair y;
      int cols = any(1, COLS_MOST);
      float *b = any(0, 2) ? vector(cols, 1) : NULL;
      pair_init(&y, any(1, 20), cols, 2);
      BOTH(d->ops->bias_act(d, &y.at[i], b, (enum act)act));
      expect(&y, "bias_act", 4, 1);
      free(b);
      pair_free(&y);
    }
  }
}

static void clamp(void) {
  for (int round = 0; round < ROUNDS; round++) {
    struct pair x, y;
    int rows = any(1, 20), cols = any(1, COLS_MOST);
    float least = any(0, 2) ? -rounded(0.3f * (float)any(1, 9)) : -INFINITY, most = any(0, 2) ? rounded(0.3f * (float)any(1, 9)) : INFINITY;
    pair_init(&x, rows, cols, 2);
    pair_init(&y, rows, cols, 2);
    bool in_place = any(0, 1);
    BOTH(d->ops->clamp(d, in_place ? &x.at[i] : &y.at[i], &x.at[i], least, most));
    expect(in_place ? &x : &y, "clamp", 0.01f, 0);
    pair_free(&x);
    pair_free(&y);
  }
}

static void rope2d(void) {
  static const int widths[] = {2, 4, 8, 16, 32, 36, 40, 64};
  for (int round = 0; round < 12; round++) {
    int n = widths[any(0, ARRAY_LEN(widths) - 1)], heads = any(1, 4), rows = any(1, 40);
    struct rope_table tables[2][2];
    struct err e = {0};
    struct pair q;
    int32_t pos[2][ROWS_MOST];
    for (int i = 0; i < 2; i++)
      for (int r = 0; r < rows; r++) pos[i][r] = any(0, round % 3 ? 60 : 200); /* also beyond the table of positions */
    pair_init(&q, rows, 2 * n * heads, 1);
    for (int which = 0; which < 2; which++) BOTH(if (d->ops->rope_init(d, &tables[i][which], n, 100, 1, 1, &e)) fail_msg("%s", e.msg));
    for (int which = 0; which < 2; which++) BOTH(d->ops->rope_step(d, &tables[i][which], pos[which], rows));
    BOTH(d->ops->rope2d(d, &q.at[i], heads, &tables[i][0], &tables[i][1]));
    expect(&q, "rope2d", 4, 2);
    for (int which = 0; which < 2; which++) BOTH(d->ops->rope_free(d, &tables[i][which]));
    pair_free(&q);
  }
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------- */

static void attend(void) {
  static const int widths[] = {4, 8, 16, 20, 64, 72, 80};
  for (int round = 0; round < ROUNDS; round++) {
    int width = widths[any(0, ARRAY_LEN(widths) - 1)], heads = any(1, COLS_MOST / width > 3 ? 3 : COLS_MOST / width), rows = any(1, 40),
        keys = any(1, 90);
    int32_t lo[ROWS_MOST], hi[ROWS_MOST];
    struct pair q, k, v, out;
    for (int r = 0; r < rows; r++) {
      bool same = r > 0 && any(0, 7);
      lo[r] = same ? lo[r - 1] : any(0, keys);
      hi[r] = same ? hi[r - 1] : any(0, 5) ? any(lo[r], keys) : lo[r];
    }
    pair_init(&q, rows, heads * width, 1);
    pair_init(&k, keys, heads * width, 1);
    pair_init(&v, keys, heads * width, 1);
    pair_init(&out, rows, heads * width, 1);
    int bad = any(0, keys - 1); /* what a row does not see is not even multiplied by 0 */
    if (any(0, 1))
      for (int c = 0; c < heads * width; c++) put(&k, bad, c, NAN), put(&v, bad, c, NAN);
    pair_send(&k);
    pair_send(&v);
    bool in_place = any(0, 1);
    float scale = 1 / sqrtf((float)width);
    BOTH(d->ops->attend(d, in_place ? &q.at[i] : &out.at[i], &q.at[i], &k.at[i], &v.at[i], heads, scale, lo, hi));
    expect(in_place ? &q : &out, "attend", 6, 1);
    pair_free(&q);
    pair_free(&k);
    pair_free(&v);
    pair_free(&out);
  }
}

static void attend_near(void) {
  for (int round = 0; round < ROUNDS; round++) {
    int heads = any(1, 3), width = any(1, COLS_MOST / 4), rows = any(1, 70), cols = heads * width;
    struct attend_near n = {.n_heads = heads, .keys_left = any(1, 40), .key_scale = 1.5f, .cap = any(0, 1) ? 5 : 0};
    struct pair q, k, v, relative;
    int32_t first[ROWS_MOST];
    float *scale = vector(width, 0.3f);
    for (int r = 0, at = 0; r < rows; r++) {
      if (r > 0 && any(0, 14) == 0) at = r;
      first[r] = at;
    }
    pair_init(&q, rows, cols, 1);
    pair_init(&k, rows, cols, 1);
    pair_init(&v, rows, cols, 1);
    pair_init(&relative, n.keys_left + any(0, 2), cols, 1);
    int bad = first[any(0, rows - 1)]; /* a whole sound is not finite, and stays alone with that */
    if (any(0, 1))
      for (int r = bad; r < rows && first[r] == bad; r++)
        for (int c = 0; c < cols; c++) put(&k, r, c, NAN), put(&v, r, c, NAN);
    pair_send(&k);
    pair_send(&v);
    for (int row = 0; row < rows; row = n.row_end) {
      n.row = row;
      n.row_end = any(0, 2) ? rows : any(row + 1, rows);
      BOTH(d->ops->attend_near(d, &q.at[i], &k.at[i], &v.at[i], &relative.at[i], scale, first, &n));
    }
    expect(&q, "attend_near", unit < 0.001f ? 24 : 8, 1); /* of fp16 products, too, there */
    free(scale);
    pair_free(&q);
    pair_free(&k);
    pair_free(&v);
    pair_free(&relative);
  }
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------- */

static void pool_rows(void) {
  for (int round = 0; round < ROUNDS; round++) {
    int n = any(1, 16), rows = any(1, 20), cols = any(1, COLS_MOST), from = any(1, ROWS_MOST);
    int32_t index[20 * 16];
    struct pair x, y;
    for (int i = 0; i < rows * n; i++) index[i] = any(0, from - 1);
    pair_init(&x, from, cols, 2);
    pair_init(&y, rows, cols, 2);
    float *b = any(0, 1) ? vector(cols, 1) : NULL, *w = any(0, 1) ? vector(cols, 1) : NULL;
    BOTH(d->ops->pool_rows(d, &y.at[i], &x.at[i], index, n, 1 / (float)n, b, w));
    char what[64];
    snprintf(what, sizeof what, "pool_rows %d of %d, %d rows", n, from, rows);
    expect(&y, what, 2, 1);
    free(b);
    free(w);
    pair_free(&x);
    pair_free(&y);
  }
}

static void conv_rows(void) {
  for (int round = 0; round < ROUNDS; round++) {
    int taps = any(1, 6), rows = any(1, ROWS_MOST), cols = any(1, COLS_MOST);
    int32_t first[ROWS_MOST];
    struct pair x, y;
    float *w = vector(cols * taps, 0.5f);
    bool from_0 = any(0, 3) == 0;
    for (int r = 0, at = 0; r < rows; r++) {
      if (r > 0 && !from_0 && any(0, 9) == 0) at = r;
      first[r] = at;
    }
    pair_init(&x, rows, cols, 1);
    pair_init(&y, rows, cols, 1);
    BOTH(d->ops->conv_rows(d, &y.at[i], &x.at[i], w, taps, first));
    expect(&y, "conv_rows", 2, 1);
    free(w);
    pair_free(&x);
    pair_free(&y);
  }
}

/* ---- profiles ------------------------------------------------------------------------------------------------------------------------ */

static void in_every_profile(void (*body)(void)) {
  struct err e = {0};
  struct device_config c = {
      .n_threads = 1, .rows_max = ROWS_MOST, .cols_max = 2 * COLS_MOST, .keys_max = ROWS_MOST, .head_dim_max = 80, .positions_max = 100};
  unit = strncmp(npu_current(), "310P", 4) ? 1.0f / 256 : 1.0f / 2048;
  if (!(cpu = device_cpu_ops.open(&c, &e))) fail_msg("%s", e.msg);
  if (!(npu = device_ascend_ops.open(&c, &e))) fail_msg("%s", e.msg);
  body();
  npu->ops->close(npu);
  cpu->ops->close(cpu);
  npu_check_clean();
}

static void layernorm_on(void) { in_every_profile(layernorm); }
static void test_layernorm(void **state) {
  (void)state;
  npu_each_profile(layernorm_on);
}

static void bias_act_on(void) { in_every_profile(bias_act); }
static void test_bias_act(void **state) {
  (void)state;
  npu_each_profile(bias_act_on);
}

static void clamp_on(void) { in_every_profile(clamp); }
static void test_clamp(void **state) {
  (void)state;
  npu_each_profile(clamp_on);
}

static void rope2d_on(void) { in_every_profile(rope2d); }
static void test_rope2d(void **state) {
  (void)state;
  npu_each_profile(rope2d_on);
}

static void attend_on(void) { in_every_profile(attend); }
static void test_attend(void **state) {
  (void)state;
  npu_each_profile(attend_on);
}

static void attend_near_on(void) { in_every_profile(attend_near); }
static void test_attend_near(void **state) {
  (void)state;
  npu_each_profile(attend_near_on);
}

static void pool_rows_on(void) { in_every_profile(pool_rows); }
static void test_pool_rows(void **state) {
  (void)state;
  npu_each_profile(pool_rows_on);
}

static void conv_rows_on(void) { in_every_profile(conv_rows); }
static void test_conv_rows(void **state) {
  (void)state;
  npu_each_profile(conv_rows_on);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_layernorm), cmocka_unit_test(test_bias_act),
                                          cmocka_unit_test(test_clamp),     cmocka_unit_test(test_rope2d),
                                          cmocka_unit_test(test_attend),    cmocka_unit_test(test_attend_near),
                                          cmocka_unit_test(test_pool_rows), cmocka_unit_test(test_conv_rows)};
TEST_MAIN(tests)
