/* ascend_probe_operators.c — operators other than attention: limits, roundings, orders; and times, beside what the memory and the matrix units can do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ascend_probe.h"
#include "base/clock.h"
#include "base/mem.h"

static void round_number(struct probe *p, float *x) {
  uint16_t half;
  dtype_from_f32(p->d->dtype, x, &half, 1);
  dtype_to_f32(p->d->dtype, &half, x, 1);
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------ */

static struct ascend_shape transposed(int64_t n, int64_t k) { return (struct ascend_shape){2, {k, n}, {1, k}}; }

/* Row n of W is n % 251 in its first column and 0 elsewhere: exact in eight bits. */
static void vocabulary(struct probe *p) {
  enum { N = 262144, K = 64, ROWS = 3 };
  struct ascend *d = p->d;
  float *w = xcalloc((size_t)N * K, sizeof *w), *x = xcalloc(ROWS * K, sizeof *x), *y = xcalloc((size_t)ROWS * N, sizeof *y);
  size_t wrong = 0;
  for (size_t n = 0; n < N; n++) w[n * K] = (float)(n % 251);
  for (size_t r = 0; r < ROWS; r++) x[r * K] = (float)r + 1;
  void *dw = probe_put(p, w, (size_t)N * K), *dx = probe_put(p, x, ROWS * K), *dy = probe_room(p, (size_t)ROWS * N * 2, 0xff);
  for (int rows = 1; rows <= ROWS; rows += 2) {
    ASCEND_LAUNCH(d, Mm, ascend_matrix(d, dx, d->type, rows, K), ascend_view(d, dw, d->type, transposed(N, K)),
                  ascend_matrix(d, dy, d->type, rows, N), 0);
    if (!probe_done(p, PROBE_DIFFERS, "Mm with n = 262144")) break;
    probe_get_numbers(p, y, dy, (size_t)rows * N);
    for (size_t r = 0; r < (size_t)rows; r++)
      for (size_t n = 0; n < N; n++) {
        double is = (double)y[r * N + n], should = (double)(n % 251) * (double)(r + 1);
        wrong += !(fabs(is - should) <= should / 128);
      }
    probe_say(p, wrong ? PROBE_DIFFERS : PROBE_EXPECTED, "%d rows: %zu of %d numbers wrong", rows, wrong, rows * N);
  }
  free(w);
  free(x);
  free(y);
}

/* Byte 0 of each row of codes is 0x21: 1 in its low half, 2 in its high one. */
static void int4_order(struct probe *p) {
  enum { N = 64, K = 64, GROUP = 32 };
  struct ascend *d = p->d;
  uint8_t codes[N * K / 2] = {0};
  float x[2 * K] = {0}, scales[N * K / GROUP], y[2 * N];
  if (!d->profile.has_group_quant) {
    probe_say(p, PROBE_SKIPPED, "this chip has no products of int4 in groups");
    return;
  }
  for (int n = 0; n < N; n++) codes[n * K / 2] = 0x21;
  for (int i = 0; i < N * K / GROUP; i++) scales[i] = 1;
  x[0] = 1, x[K + 1] = 1; /* row r takes number r of each row of codes */
  void *dc = probe_put_bytes(p, codes, sizeof codes), *ds = probe_put(p, scales, ARRAY_LEN(scales)), *dx = probe_put(p, x, ARRAY_LEN(x));
  void *dy = probe_room(p, sizeof(uint16_t) * ARRAY_LEN(y), 0xff);
  ASCEND_LAUNCH(d, WeightQuantBatchMatmulV2, ascend_matrix(d, dx, d->type, 2, K), ascend_view(d, dc, NPU_INT4, transposed(N, K)),
                ascend_view(d, ds, d->type, transposed(N, K / GROUP)), NULL, NULL, NULL, NULL, GROUP, ascend_matrix(d, dy, d->type, 2, N));
  if (!probe_done(p, PROBE_DIFFERS, "")) return;
  probe_get_numbers(p, y, dy, ARRAY_LEN(y));
  bool low = true, high = true;
  for (int n = 0; n < N; n++) {
    low &= y[n] == 1 && y[N + n] == 2;
    high &= y[n] == 2 && y[N + n] == 1;
  }
  probe_say(p, low ? PROBE_EXPECTED : PROBE_DIFFERS,
            low    ? "the low half is the number with the even index"
            : high ? "the HIGH half is the number with the even index"
                   : "neither: numbers 0 and 1 of a row are %g and %g",
            (double)y[0], (double)y[N]);
}

/* ---- what is chosen, what is kept ---------------------------------------------------------------------------------------------------- */

static void argmax_ties(struct probe *p) {
  enum { ROWS = 4, N = 50000 };
  static const int ties[ROWS][3] = {{7, 8, 49999}, {0, 25000, 49999}, {16383, 16384, 32768}, {49998, 49999, 49999}};
  struct ascend *d = p->d;
  float *x = xcalloc(ROWS * N, sizeof *x);
  int32_t found[ROWS];
  int first = 0, among = 0;
  if (probe_has(p, ACL_OP_ArgMax)) {
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < 3; i++) x[r * N + ties[r][i]] = 3;
    void *dx = probe_put(p, x, ROWS * N), *dy = probe_room(p, sizeof found, 0xff);
    ASCEND_LAUNCH(d, ArgMax, ascend_matrix(d, dx, d->type, ROWS, N), 1, false, ascend_array(d, dy, NPU_INT32, ROWS));
    if (probe_done(p, PROBE_DIFFERS, "")) {
      probe_get(p, found, dy, sizeof found);
      for (int r = 0; r < ROWS; r++) {
        first += found[r] == ties[r][0];
        among += found[r] == ties[r][0] || found[r] == ties[r][1] || found[r] == ties[r][2];
      }
      probe_say(p, first == ROWS ? PROBE_EXPECTED : PROBE_DIFFERS, "of %d rows with ties %d gave the first, %d one of them", ROWS, first,
                among);
    }
  }
  free(x);
}

/* Two rows to one slot: whose it is, and whether it is one of them as a whole; and whether neighbours stay. */
static void same_slot(struct probe *p) {
  enum { D = 128, N_KV = 2, COLS = D * N_KV, P = 128, PAGES = 3, ROWS = 4, SLOTS = PAGES * P };
  struct ascend *d = p->d;
  static float rows[ROWS * COLS], pool[SLOTS * COLS];
  const int32_t slots[ROWS] = {140, 200, 200, 141};
  for (int i = 0; i < ROWS * COLS; i++) rows[i] = (float)(i / COLS + 1);
  void *dr = probe_put(p, rows, ARRAY_LEN(rows)), *dk = probe_put(p, pool, ARRAY_LEN(pool)), *dv = probe_put(p, pool, ARRAY_LEN(pool));
  void *to = probe_put_bytes(p, slots, sizeof slots);
  if (d->profile.has_scatter_paged) {
    const struct ascend_shape in = {3, {ROWS, N_KV, D}, {0}}, out = {4, {PAGES, P, N_KV, D}, {0}};
    char norm[] = "Norm";
    ASCEND_LAUNCH(d, ScatterPaKvCache, ascend_view(d, dr, d->type, in), ascend_view(d, dk, d->type, out),
                  ascend_array(d, to, NPU_INT32, ROWS), ascend_view(d, dr, d->type, in), ascend_view(d, dv, d->type, out), NULL, NULL, NULL,
                  norm, NULL, NULL, NULL);
  } else if (d->profile.has_index_copy) {
    ASCEND_LAUNCH(d, InplaceIndexCopy, ascend_matrix(d, dk, d->type, SLOTS, COLS), 0, ascend_array(d, to, NPU_INT32, ROWS),
                  ascend_matrix(d, dr, d->type, ROWS, COLS));
  } else {
    probe_say(p, PROBE_SKIPPED, "on this chip keys are written by copies");
    return;
  }
  struct err e;
  const char *op = d->profile.has_scatter_paged ? "ScatterPaKvCache" : "InplaceIndexCopy";
  if (!probe_quietly_done(p, &e)) {
    probe_say(p, PROBE_FIGURE, "%s refuses: %s", op, e.msg);
    return;
  }
  probe_get_numbers(p, pool, dk, ARRAY_LEN(pool));
  int second = 0, third = 0, wrong = 0;
  for (int s = 0; s < SLOTS; s++) {
    for (int c = 0; c < COLS; c++) {
      float x = pool[s * COLS + c];
      if (s == 200) second += x == 2, third += x == 3;
      else wrong += x != (s == 140 ? 1.0f : s == 141 ? 4.0f : 0.0f);
    }
  }
  bool whole = second == COLS || third == COLS;
  probe_say(p, wrong == 0 && whole ? PROBE_EXPECTED : PROBE_DIFFERS,
            "%s: %d numbers of the earlier row, %d of the later one, %d of %d; %d elsewhere wrong", op, second, third, second + third, COLS,
            wrong);
}

static void casts(struct probe *p) {
  static const float numbers[] = {2.75f, -2.75f, 0.9375f, -0.9375f, 15.9375f, 255};
  static const int32_t cut[] = {2, -2, 0, 0, 15, 255};
  enum { N = ARRAY_LEN(numbers) };
  struct ascend *d = p->d;
  float x[N];
  int32_t y[N];
  int n = 0;
  memcpy(x, numbers, sizeof x);
  void *dx = probe_put(p, x, N), *dy = probe_room(p, sizeof y, 0xff);
  ASCEND_LAUNCH(d, Cast, ascend_array(d, dx, d->type, N), NPU_INT32, ascend_array(d, dy, NPU_INT32, N));
  if (!probe_done(p, PROBE_DIFFERS, "")) return;
  probe_get(p, y, dy, sizeof y);
  for (int i = 0; i < N; i++) n += y[i] == cut[i];
  probe_say(p, n == N ? PROBE_EXPECTED : PROBE_DIFFERS, "%d of %d numbers were cut towards zero; 2.75 gives %d, -2.75 %d", n, N, y[0],
            y[1]);
}

/* Figures: what a row with NaN gives; how often x + 0.3 y is that of one rounding, and of two. */
static void loose_ends(struct probe *p) {
  enum { N = 4096 };
  struct ascend *d = p->d;
  static float x[N], y[N], z[N];
  int32_t found = -2;
  int one = 0, two = 0;
  for (size_t i = 0; i < N; i++) x[i] = probe_number(10, i), y[i] = probe_number(11, i) * 1.7f;
  void *dx = probe_put(p, x, N), *dy = probe_put(p, y, N), *di = probe_room(p, sizeof found, 0xff);
  ASCEND_LAUNCH(d, InplaceAdd, ascend_array(d, dx, d->type, N), ascend_array(d, dy, d->type, N), ascend_number(d, 0.3));
  if (!probe_done(p, PROBE_DIFFERS, "InplaceAdd with a factor")) return;
  probe_get_numbers(p, z, dx, N);
  for (int i = 0; i < N; i++) {
    float once = x[i] + 0.3f * y[i], part = 0.3f * y[i];
    round_number(p, &once);
    round_number(p, &part);
    part += x[i];
    round_number(p, &part);
    one += z[i] == once, two += z[i] == part;
  }
  probe_say(p, PROBE_FIGURE, "x + 0.3 y: of %d numbers %d as of one rounding, %d as of two", N, one, two);
  if (!ascend_has(d, ACL_OP_ArgMax)) return;
  x[3000] = 9, x[100] = NAN;
  probe_write(p, dx, x, N);
  ASCEND_LAUNCH(d, ArgMax, ascend_matrix(d, dx, d->type, 1, N), 1, false, ascend_array(d, di, NPU_INT32, 1));
  if (!probe_done(p, PROBE_DIFFERS, "ArgMax of NaN")) return;
  probe_get(p, &found, di, sizeof found);
  probe_say(p, PROBE_FIGURE, "ArgMax with NaN at 100 and the greatest number at 3000: %d", (int)found);
}

/* From the host and back, and on the device, with other pitches on both sides. */
static void pitched_copies(struct probe *p) {
  enum { ROWS = 5, WIDTH = 96, NARROW = 128, WIDE = 320 };
  struct ascend *d = p->d;
  struct err e = {0};
  uint8_t *host = ascend_alloc_host(d, 2 * ROWS * WIDE, "a point", &e), *back = host + ROWS * WIDE;
  char *x = probe_room(p, ROWS * WIDE, 0), *y = probe_room(p, ROWS * WIDE, 0);
  if (!host || !probe_done(p, PROBE_FAILED, e.msg)) return;
  for (int i = 0; i < ROWS * WIDE; i++) host[i] = (uint8_t)(i * 7 + i / 251), back[i] = 0xee;
  ascend_copy_rows(d, x, NARROW, host, WIDE, WIDTH, ROWS, NPU_HOST_TO_DEVICE);
  if (!probe_done(p, PROBE_DIFFERS, "to the device")) return;
  for (int r = 0; r < ROWS; r++) /* the 310P does not do it in one */
    if (d->profile.chip == ASCEND_310P) ascend_copy_rows(d, y + r * WIDE, WIDE, x + r * NARROW, NARROW, WIDTH, 1, NPU_DEVICE_TO_DEVICE);
  if (d->profile.chip != ASCEND_310P) ascend_copy_rows(d, y, WIDE, x, NARROW, WIDTH, ROWS, NPU_DEVICE_TO_DEVICE);
  if (!probe_done(p, PROBE_DIFFERS, "on the device")) return;
  ascend_copy_rows(d, back, NARROW, y, WIDE, WIDTH, ROWS, NPU_DEVICE_TO_HOST);
  if (!probe_done(p, PROBE_DIFFERS, "from the device")) return;
  int wrong = 0;
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < WIDTH; c++) wrong += back[r * NARROW + c] != host[r * WIDE + c];
    for (int c = WIDTH; c < NARROW && r < ROWS - 1; c++) wrong += back[r * NARROW + c] != 0xee;
  }
  probe_say(p, wrong ? PROBE_DIFFERS : PROBE_EXPECTED, "%d bytes wrong, between rows too", wrong);
}

/* What becomes of the stream after an index out of range. The process ends behind it. */
static void after_fault(struct probe *p) {
  enum { N = 64 };
  struct ascend *d = p->d;
  struct err e;
  const int32_t far[] = {1, 1 << 28};
  void *x = probe_room(p, N * N * 2, 0), *y = probe_room(p, N * N * 2, 0), *ids = probe_put_bytes(p, far, sizeof far);
  if (!probe_done(p, PROBE_FAILED, "")) return;
  ASCEND_LAUNCH(d, IndexSelect, ascend_matrix(d, x, d->type, N, N), 0, ascend_array(d, ids, NPU_INT32, 2),
                ascend_matrix(d, y, d->type, 2, N));
  probe_say(p, PROBE_FIGURE, "an index out of range: %s", probe_quietly_done(p, &e) ? "no error" : e.msg);
  d->device.lost = false;
  ASCEND_LAUNCH(d, Muls, ascend_matrix(d, x, d->type, N, N), ascend_number(d, 2), ascend_matrix(d, y, d->type, N, N));
  probe_say(p, PROBE_FIGURE, "what comes then: %s", probe_quietly_done(p, &e) ? "works" : e.msg);
}

/* ---- norms ------------------------------------------------------------------------------------------------------------------------------ */

enum { NORM_ROWS = 4, NORM_COLS = 1024 };

/* How many numbers are those of a vector of float32, and of one rounded to the device's type: one tells the other from it. mean 0: RMS. */
static void say_norm(struct probe *p, const float *x, const float *w, const float *y, bool centred) {
  int exact = 0, rounded = 0, close = 0;
  for (int r = 0; r < NORM_ROWS; r++) {
    double mean = 0, square = 0;
    for (int c = 0; c < NORM_COLS && centred; c++) mean += (double)x[r * NORM_COLS + c] / NORM_COLS;
    for (int c = 0; c < NORM_COLS; c++) square += ((double)x[r * NORM_COLS + c] - mean) * ((double)x[r * NORM_COLS + c] - mean) / NORM_COLS;
    for (int c = 0; c < NORM_COLS; c++) {
      float half = w[c], both[2];
      round_number(p, &half);
      for (int i = 0; i < 2; i++) {
        both[i] = (float)(((double)x[r * NORM_COLS + c] - mean) / sqrt(square + 1e-6) * (double)(i ? half : w[c]));
        round_number(p, &both[i]);
      }
      float is = y[r * NORM_COLS + c];
      exact += is == both[0], rounded += is == both[1];
      close += fabsf(is - both[0]) <= fabsf(both[0]) / 64 + 1e-3f;
    }
  }
  const int n = NORM_ROWS * NORM_COLS;
  probe_say(p, close == n && exact > rounded ? PROBE_EXPECTED : PROBE_DIFFERS,
            "of %d numbers %d are right, %d to the last bit; %d with a rounded vector", n, close, exact, rounded);
}

static void norm_inputs(float *x, float *w) {
  for (size_t i = 0; i < (size_t)NORM_ROWS * NORM_COLS; i++) x[i] = 3 * probe_number(4, i);
  for (size_t i = 0; i < NORM_COLS; i++) w[i] = 1 + probe_number(5, i) / 50; /* bf16 keeps one of about three such numbers apart */
}

static void rms_gamma(struct probe *p) {
  struct ascend *d = p->d;
  static float x[NORM_ROWS * NORM_COLS], w[NORM_COLS], y[NORM_ROWS * NORM_COLS];
  if (d->profile.chip == ASCEND_310P) {
    probe_say(p, PROBE_SKIPPED, "its documents do not allow it on the 310P");
    return;
  }
  norm_inputs(x, w);
  void *dx = probe_put(p, x, ARRAY_LEN(x)), *dw = probe_put_bytes(p, w, sizeof w), *dy = probe_room(p, sizeof y / 2, 0xff);
  void *rstd = probe_room(p, NORM_ROWS * sizeof(float), 0xff);
  ASCEND_LAUNCH(d, RmsNorm, ascend_matrix(d, dx, d->type, NORM_ROWS, NORM_COLS), ascend_array(d, dw, NPU_FLOAT, NORM_COLS), 1e-6,
                ascend_matrix(d, dy, d->type, NORM_ROWS, NORM_COLS), ascend_matrix(d, rstd, NPU_FLOAT, NORM_ROWS, 1));
  if (!probe_done(p, PROBE_DIFFERS, "")) return;
  probe_get_numbers(p, y, dy, ARRAY_LEN(y));
  say_norm(p, x, w, y, false);
}

/* The backend gives vectors of the device's type; with float32 it could do without their rounding. */
static void layer_gamma(struct probe *p) {
  struct ascend *d = p->d;
  static float x[NORM_ROWS * NORM_COLS], w[NORM_COLS], b[NORM_COLS], y[NORM_ROWS * NORM_COLS];
  const int64_t cols = NORM_COLS;
  if (!probe_has(p, ACL_OP_LayerNorm)) return;
  if (d->profile.chip == ASCEND_310P) {
    probe_say(p, PROBE_SKIPPED, "not used on the 310P");
    return;
  }
  norm_inputs(x, w);
  void *dx = probe_put(p, x, ARRAY_LEN(x)), *dy = probe_room(p, sizeof y / 2, 0xff);
  void *wide = probe_put_bytes(p, w, sizeof w), *no_bias = probe_put_bytes(p, b, sizeof b);
  void *narrow = probe_put(p, w, ARRAY_LEN(w)), *no_half_bias = probe_put(p, b, ARRAY_LEN(b)); /* w is rounded from here on */
  for (int i = 0; i < 2; i++) {
    aclDataType type = i ? NPU_FLOAT : d->type;
    struct err e;
    ASCEND_LAUNCH(d, LayerNorm, ascend_matrix(d, dx, d->type, NORM_ROWS, NORM_COLS), ascend_ints(d, &cols, 1),
                  ascend_array(d, i ? wide : narrow, type, cols), ascend_array(d, i ? no_bias : no_half_bias, type, cols), 1e-6,
                  ascend_matrix(d, dy, d->type, NORM_ROWS, NORM_COLS), NULL, NULL);
    if (!probe_quietly_done(p, &e)) {
      probe_say(p, i ? PROBE_FIGURE : PROBE_DIFFERS, "%s: %s", i ? "float32" : "the device's type", e.msg);
      continue;
    }
    probe_get_numbers(p, y, dy, ARRAY_LEN(y));
    int close = 0;
    for (int r = 0; r < NORM_ROWS; r++) {
      double mean = 0, square = 0;
      for (int c = 0; c < NORM_COLS; c++) mean += (double)x[r * NORM_COLS + c] / NORM_COLS;
      for (int c = 0; c < NORM_COLS; c++) square += pow((double)x[r * NORM_COLS + c] - mean, 2) / NORM_COLS;
      for (int c = 0; c < NORM_COLS; c++)
        close += fabs((double)y[r * NORM_COLS + c] - ((double)x[r * NORM_COLS + c] - mean) / sqrt(square + 1e-6) * (double)w[c]) <= 0.03;
    }
    probe_say(p, close == NORM_ROWS * NORM_COLS ? (i ? PROBE_FIGURE : PROBE_EXPECTED) : PROBE_DIFFERS,
              "%s: taken, %d of %d numbers are right", i ? "float32" : "the device's type", close, NORM_ROWS * NORM_COLS);
  }
}

/* ---- times ------------------------------------------------------------------------------------------------------------------------------- */

struct sizes { /* of what is timed */
  void *x, *w, *y, *z;
  int64_t m, n, k;
  bool nz;
};

static void gate_one(struct probe *p, void *ctx) {
  struct ascend *d = p->d;
  const struct sizes *s = ctx;
  ASCEND_LAUNCH(d, GeGluV3, ascend_matrix(d, s->x, d->type, s->m, 2 * s->n), -1, 1, true, ascend_matrix(d, s->y, d->type, s->m, s->n),
                ascend_matrix(d, s->z, d->type, s->m, s->n));
}

static void gate_two(struct probe *p, void *ctx) {
  struct ascend *d = p->d;
  const struct sizes *s = ctx;
  const struct ascend_shape half = {2, {s->m, s->n}, {2 * s->n, 1}};
  ASCEND_LAUNCH(d, GeluV2, ascend_view(d, s->x, d->type, half), 1, ascend_matrix(d, s->z, d->type, s->m, s->n));
  ASCEND_LAUNCH(d, Mul, ascend_matrix(d, s->z, d->type, s->m, s->n), ascend_view(d, (char *)s->x + 2 * s->n, d->type, half),
                ascend_matrix(d, s->y, d->type, s->m, s->n));
}

static void gate_times(struct probe *p) {
  static const int rows[] = {1, 16, 512};
  if (!probe_has(p, ACL_OP_GeGluV3) || !probe_has(p, ACL_OP_GeluV2)) return;
  const int64_t n = p->small ? 256 : 15360, most = p->small ? 16 : 512;
  struct sizes s = {.n = n};
  const size_t n_bytes = (size_t)(most * n) * 2;
  s.x = probe_room(p, 2 * n_bytes, 0), s.y = probe_room(p, n_bytes, 0), s.z = probe_room(p, n_bytes, 0);
  for (size_t i = 0; i < ARRAY_LEN(rows) && rows[i] <= most; i++) {
    s.m = rows[i];
    double one = probe_time(p, gate_one, &s, p->small ? 3 : 100), two = one < 0 ? -1 : probe_time(p, gate_two, &s, p->small ? 3 : 100);
    if (two < 0) return;
    probe_say(p, PROBE_FIGURE, "[%d, %lld]: GeGluV3 %.1f us, GeluV2 and Mul %.1f us", rows[i], (long long)n, one, two);
  }
}

static void product(struct probe *p, void *ctx) {
  struct ascend *d = p->d;
  const struct sizes *s = ctx;
  if (!s->nz) {
    ASCEND_LAUNCH(d, Mm, ascend_matrix(d, s->x, d->type, s->m, s->k), ascend_view(d, s->w, d->type, transposed(s->n, s->k)),
                  ascend_matrix(d, s->y, d->type, s->m, s->n), 0);
    return;
  }
  const int64_t dims[] = {s->k, s->n}, strides[] = {s->n, 1}, storage[] = {s->n / 16, s->k / 16, 16, 16};
  aclTensor *w = ascend_ok(d) ? d->acl.aclCreateTensor(dims, 2, d->type, strides, 0, NPU_FRACTAL_NZ, storage, 4, s->w) : NULL;
  if (!w || !ascend_ok(d)) return;
  d->tensors[d->n_tensors++] = w; /* the launch frees it */
  ASCEND_LAUNCH(d, Mm, ascend_matrix(d, s->x, d->type, s->m, s->k), w, ascend_matrix(d, s->y, d->type, s->m, s->n), 0);
}

/* A matrix in blocks of 16 x 16, laid out by the host; whether products are right, and how long they take. */
static void nz_times(struct probe *p) {
  const int64_t side = p->small ? 64 : 4096;
  const size_t n = (size_t)side;
  if (p->d->profile.chip == ASCEND_310P) {
    probe_say(p, PROBE_SKIPPED, "not measured on the 310P");
    return;
  }
  float *w = xcalloc(n * n, sizeof *w), *nz = xcalloc(n * n, sizeof *nz), *x = xcalloc(16 * n, sizeof *x), *y = xcalloc(32 * n, sizeof *y);
  for (size_t i = 0; i < n * n; i++) w[i] = probe_number(6, i); /* [n, k] */
  for (size_t i = 0; i < 16 * n; i++) x[i] = probe_number(7, i);
  for (size_t c = 0; c < n; c++)
    for (size_t k = 0; k < n; k++) nz[((c / 16 * (n / 16) + k / 16) * 16 + k % 16) * 16 + c % 16] = w[c * n + k];
  struct sizes s = {.n = side, .k = side}, blocks = s;
  s.x = blocks.x = probe_put(p, x, 16 * n);
  s.y = probe_room(p, 32 * n, 0), blocks.y = probe_room(p, 32 * n, 0);
  s.w = probe_put(p, w, n * n), blocks.w = probe_put(p, nz, n * n);
  blocks.nz = true;
  for (int64_t m = 1; m <= 16; m += 15) {
    struct err e;
    s.m = blocks.m = m;
    double plain = probe_time(p, product, &s, p->small ? 3 : 100);
    if (plain < 0) break;
    product(p, &blocks);
    if (!probe_quietly_done(p, &e)) {
      probe_say(p, PROBE_FIGURE, "M = %d: %.1f us; NZ is refused: %s", (int)m, plain, e.msg);
      break;
    }
    double other = probe_time(p, product, &blocks, p->small ? 3 : 100), worst = 0;
    probe_get_numbers(p, y, s.y, (size_t)m * n);
    probe_get_numbers(p, y + 16 * n, blocks.y, (size_t)m * n);
    for (size_t i = 0; i < (size_t)m * n; i++) worst = fmax(worst, fabs((double)y[i] - (double)y[16 * n + i]));
    probe_say(p, PROBE_FIGURE, "M = %d, %d x %d: %.1f us, NZ %.1f us, greatest difference %.2g", (int)m, (int)side, (int)side, plain, other,
              worst);
  }
  free(w);
  free(nz);
  free(x);
  free(y);
}

/* Codes in groups of 32, as Q8_0 and Q4_0 are kept: their numbers, and how long they take beside plain ones. */
static void group_product(struct probe *p, void *ctx) {
  enum { GROUP = 32 };
  struct ascend *d = p->d;
  const struct sizes *s = ctx;
  ASCEND_LAUNCH(d, WeightQuantBatchMatmulV2, ascend_matrix(d, s->x, d->type, s->m, s->k),
                ascend_view(d, s->w, s->nz ? NPU_INT4 : NPU_INT8, transposed(s->n, s->k)),
                ascend_view(d, s->z, d->type, transposed(s->n, s->k / GROUP)), NULL, NULL, NULL, NULL, GROUP,
                ascend_matrix(d, s->y, d->type, s->m, s->n));
}

static void group_times(struct probe *p) {
  const int64_t side = p->small ? 128 : 4096, groups = side / 32;
  const size_t n = (size_t)side;
  if (!p->d->profile.has_group_quant) {
    probe_say(p, PROBE_SKIPPED, "this chip has no products of codes in groups");
    return;
  }
  uint8_t *codes = xcalloc(n * n, 1);
  float *x = xcalloc(16 * n, sizeof *x), *scales = xcalloc(n * (size_t)groups, sizeof *scales), *y = xcalloc(16 * n, sizeof *y);
  for (size_t i = 0; i < n * n; i++) codes[i] = (uint8_t)(int8_t)(64 * probe_number(12, i));
  for (size_t i = 0; i < 16 * n; i++) x[i] = probe_number(13, i);
  for (size_t i = 0; i < n * (size_t)groups; i++) scales[i] = (float)(i % 5 + 1) / 256;
  struct sizes s = {.n = side, .k = side};
  s.x = probe_put(p, x, 16 * n), s.w = probe_put_bytes(p, codes, n * n), s.y = probe_room(p, 32 * n, 0);
  s.z = probe_put(p, scales, n * (size_t)groups);
  for (int64_t m = 1; m <= 16; m += 15) {
    struct sizes half = s, plain = s;
    s.m = half.m = plain.m = m;
    half.nz = true;
    plain.w = probe_room(p, 2 * n * n, 0), plain.y = probe_room(p, 32 * n, 0);
    double us[3] = {probe_time(p, group_product, &s, p->small ? 3 : 100), 0, 0}, worst = 0;
    if (us[0] < 0) break;
    probe_get_numbers(p, y, s.y, n);
    for (size_t c = 0; c < n; c += 17) {
      double sum = 0, size = 0;
      for (size_t k = 0; k < n; k++) {
        double part = (double)x[k] * (int8_t)codes[c * n + k] * (double)scales[c * (size_t)groups + k / 32];
        sum += part, size += part * part;
      }
      worst = fmax(worst, fabs((double)y[c] - sum) / sqrt(size));
    }
    us[1] = probe_time(p, group_product, &half, p->small ? 3 : 100);
    us[2] = us[1] < 0 ? -1 : probe_time(p, product, &plain, p->small ? 3 : 100);
    if (us[2] < 0) break;
    probe_say(p, worst < 0.05 ? PROBE_EXPECTED : PROBE_DIFFERS, "M = %d, %d x %d: int8 %.1f us, within %.2g; int4 %.1f us; plain %.1f us",
              (int)m, (int)side, (int)side, us[0], worst, us[1], us[2]);
  }
  free(codes);
  free(x);
  free(scales);
  free(y);
}

static void copy_all(struct probe *p, void *ctx) {
  struct ascend *d = p->d;
  const struct sizes *s = ctx;
  const size_t n = (size_t)s->n;
  ascend_check(d, d->acl.aclrtMemcpyAsync(s->y, n, s->x, n, NPU_DEVICE_TO_DEVICE, d->stream), "aclrtMemcpyAsync");
}

static void floors(struct probe *p) {
  const int64_t n_bytes = p->small ? 1 << 20 : 1 << 30, side = p->small ? 64 : 8192;
  struct sizes s = {.n = n_bytes};
  s.x = probe_room(p, (size_t)n_bytes, 0), s.y = probe_room(p, (size_t)n_bytes, 0);
  double us = probe_time(p, copy_all, &s, 10);
  if (us < 0) return;
  probe_say(p, PROBE_FIGURE, "a copy of %lld MiB reads and writes %.0f GB/s", (long long)n_bytes >> 20, 2 * (double)n_bytes / us / 1e3);
  struct sizes m = {.m = side, .n = side, .k = side};
  const size_t matrix = (size_t)(side * side) * 2;
  m.x = probe_room(p, matrix, 0), m.w = probe_room(p, matrix, 0), m.y = probe_room(p, matrix, 0);
  us = probe_time(p, product, &m, p->small ? 2 : 10);
  if (us < 0) return;
  probe_say(p, PROBE_FIGURE, "Mm of %lld^3 does %.1f TFLOP/s", (long long)side, 2 * (double)side * (double)side * (double)side / us / 1e6);
  struct sizes v = {.m = 1, .n = side, .k = side, .x = m.x, .w = m.w, .y = m.y};
  us = probe_time(p, product, &v, p->small ? 2 : 50);
  if (us >= 0) probe_say(p, PROBE_FIGURE, "Mm of one row reads weights at %.0f GB/s", (double)matrix / us / 1e3);
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* What the host spends on phase 1, the operator already known to CANN. */
#define PHASE_1(op, ...)                                                                                                                   \
  do {                                                                                                                                     \
    double us[41];                                                                                                                         \
    struct err why;                                                                                                                        \
    bool fine = true;                                                                                                                      \
    for (size_t i = 0; i < ARRAY_LEN(us) && fine; i++) {                                                                                   \
      uint64_t bytes = 0;                                                                                                                  \
      aclOpExecutor *executor = NULL;                                                                                                      \
      int rc = -1;                                                                                                                         \
      int64_t start = clock_ns();                                                                                                          \
      if (ascend_begin_launch(d, ACL_OP_##op)) rc = d->acl.op(__VA_ARGS__, &bytes, &executor);                                             \
      us[i] = (double)(clock_ns() - start) / 1e3;                                                                                          \
      fine = probe_discard(p, ACL_OP_##op, rc, bytes, executor, &why);                                                                     \
    }                                                                                                                                      \
    qsort(us, ARRAY_LEN(us), sizeof us[0], by_size);                                                                                       \
    if (fine) used += (size_t)snprintf(text + used, sizeof text - used, "%s" #op " %.1f", used ? ", " : "", us[ARRAY_LEN(us) / 2]);        \
    else used += (size_t)snprintf(text + used, sizeof text - used, "%s" #op " refused", used ? ", " : "");                                 \
  } while (0)

static void phase_1_cost(struct probe *p) {
  enum { ROWS = 4, COLS = 512, HEAD = 128, PAGES = 4, PAGE = 128 };
  struct ascend *d = p->d;
  char text[700] = "";
  size_t used = 0;
  static const int64_t keys[ROWS] = {1, 100, 200, 300};
  const struct ascend_shape heads = {4, {1, ROWS, COLS / HEAD, HEAD}, {0}}, angles = {4, {1, ROWS, 1, HEAD}, {0}};
  char *room = probe_room(p, 4 << 20, 0);
  void *x = room, *y = room + (1 << 20), *z = room + (2 << 20), *w = room + (3 << 20);
  if (!probe_done(p, PROBE_FAILED, "")) return;
  PHASE_1(Mm, ascend_matrix(d, x, d->type, ROWS, COLS), ascend_view(d, w, d->type, transposed(COLS, COLS)),
          ascend_matrix(d, y, d->type, ROWS, COLS), 0);
  PHASE_1(RmsNorm, ascend_matrix(d, x, d->type, ROWS, COLS), ascend_array(d, w, d->profile.chip == ASCEND_310P ? d->type : NPU_FLOAT, COLS),
          1e-6, ascend_matrix(d, y, d->type, ROWS, COLS), ascend_matrix(d, z, NPU_FLOAT, ROWS, 1));
  PHASE_1(InplaceAdd, ascend_matrix(d, x, d->type, ROWS, COLS), ascend_matrix(d, y, d->type, ROWS, COLS), ascend_number(d, 1));
  PHASE_1(Muls, ascend_matrix(d, x, d->type, ROWS, COLS), ascend_number(d, 2), ascend_matrix(d, y, d->type, ROWS, COLS));
  PHASE_1(IndexSelect, ascend_matrix(d, w, d->type, COLS, COLS), 0, ascend_array(d, z, NPU_INT32, ROWS),
          ascend_matrix(d, y, d->type, ROWS, COLS));
  if (ascend_has(d, ACL_OP_RotaryPositionEmbedding))
    PHASE_1(RotaryPositionEmbedding, ascend_view(d, x, d->type, heads), ascend_view(d, z, d->type, angles),
            ascend_view(d, w, d->type, angles), 0, ascend_view(d, y, d->type, heads));
  if (ascend_has(d, ACL_OP_GeGluV3))
    PHASE_1(GeGluV3, ascend_matrix(d, x, d->type, ROWS, 2 * COLS), -1, 1, true, ascend_matrix(d, y, d->type, ROWS, COLS),
            ascend_matrix(d, z, d->type, ROWS, COLS));
  if (d->profile.fused) {
    double us[41];
    struct err e = {0};
    bool fine = true;
    struct fused_call c = {.layout = "BSH", .batch = ROWS, .rows = 1, .n_q = 4, .n_kv = 1, .head_dim = HEAD, .pages = PAGES, .page = PAGE};
    c.pre = c.next = 2147483647, c.q = x, c.out = y, c.k = z, c.v = z, c.table = w, c.width = 3, c.keys = keys;
    for (size_t i = 0; i < ARRAY_LEN(us) && fine; i++) {
      int64_t start = clock_ns();
      fine = probe_fused_workspace(p, &c, &e) >= 0;
      us[i] = (double)(clock_ns() - start) / 1e3;
    }
    qsort(us, ARRAY_LEN(us), sizeof us[0], by_size);
    if (fine)
      used += (size_t)snprintf(text + used, sizeof text - used, ", FusedInferAttentionScoreV%d %.1f", d->profile.fused,
                               us[ARRAY_LEN(us) / 2]);
    else used += (size_t)snprintf(text + used, sizeof text - used, ", fused attention: %.200s", e.msg);
  }
  probe_say(p, PROBE_FIGURE, "microseconds with descriptors, median: %s", text);
}

static void same_bits(struct probe *p) {
  enum { M = 4, TIMES = 20 };
  const size_t n = p->small ? 128 : 4096;
  float *x = xcalloc(M * n, sizeof *x), *w = xcalloc(n * n, sizeof *w);
  uint16_t *first = xcalloc(M * n, sizeof *first), *y = xcalloc(M * n, sizeof *y);
  int differ = 0;
  for (size_t i = 0; i < M * n; i++) x[i] = probe_number(8, i);
  for (size_t i = 0; i < n * n; i++) w[i] = probe_number(9, i);
  struct sizes s = {.m = M, .n = (int64_t)n, .k = (int64_t)n};
  s.x = probe_put(p, x, M * n), s.w = probe_put(p, w, n * n), s.y = probe_room(p, M * n * 2, 0);
  bool fine = true;
  for (int i = 0; i < TIMES && fine; i++) {
    product(p, &s);
    fine = probe_done(p, PROBE_FAILED, "");
    probe_get(p, i ? y : first, s.y, M * n * 2);
    differ += i > 0 && memcmp(first, y, M * n * 2) != 0;
  }
  if (fine)
    probe_say(p, differ ? PROBE_DIFFERS : PROBE_EXPECTED, "Mm of [4, %zu] x [%zu, %zu]: %d of %d repetitions differ", n, n, n, differ,
              TIMES - 1);
  free(x);
  free(w);
  free(first);
  free(y);
}

const struct point probe_operators[] = {
    {"vocabulary", "Mm takes n = 262144", vocabulary},
    {"int4-order", "of two int4 in a byte the low half has the even index", int4_order},
    {"argmax-ties", "the first of equal numbers", argmax_ties},
    {"same-slot", "of two rows for one slot one is there as a whole, and nothing else is touched", same_slot},
    {"casts", "a cast to int32 cuts towards zero", casts},
    {"rmsnorm-gamma", "a float32 vector with rows of bf16 is taken as it is, not rounded", rms_gamma},
    {"layernorm-gamma", "vectors of the rows' type are taken; of float32, perhaps", layer_gamma},
    {"loose-ends", "nothing: NaN in ArgMax, InplaceAdd with a factor", loose_ends},
    {"pitched-copy", "rows are copied with other pitches, in all directions", pitched_copies},
    {"group-product", "int8 in groups of 32, seen transposed, with scales of the rows' type; how fast", group_times},
    {"product-bits", "the same product gives the same bits", same_bits},
    {"gate-time", "GeGluV3 is no slower than GeluV2 and Mul", gate_times},
    {"nz-time", "how much faster weights in NZ are", nz_times},
    {"phase-1-time", "the host's time for phase 1", phase_1_cost},
    {"floors", "what memory and matrix units reach", floors},
    {"after-fault", "nothing: whether a stream works again after a fault of the device", after_fault},
    {0},
};
