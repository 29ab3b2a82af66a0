/* media_resize.c — Pillow's resampling of 8-bit pictures, to the bit.
 *
 * Each axis by itself, width first, with 8-bit results between the two; an axis that keeps its length is not touched. Weights are found in
 * float64, normalised, and rounded to 22 binary places; sums are int32. They cannot overflow: the absolute weights of a pixel sum to less
 * than 1.3 (bicubic), and 255 * 1.3 * 2^22 < 2^31.
 *
 * Speed: vectors of four int32, which the compiler maps to what the machine has. While widths change a vector is one byte of four rows,
 * while heights do it is four bytes of one row.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "models/media.h"

enum { BITS = 22, HALF = 1 << (BITS - 1), ROWS = 4, CHANNELS_MAX = 4 };

typedef int32_t lanes __attribute__((vector_size(16))); /* four */
#define UNROLLED _Pragma("GCC unroll 4")

static double bilinear(double x) {
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) { /* a = -1/2 */
  x = fabs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

/* What an axis is made of: output o is the sum of weight[o * taps + k] * input[first[o] + k] over k < count[o]. */
struct axis {
  int n, taps;
  int *first, *count;
  int32_t *weight;
};

static void axis_free(struct axis *a) {
  free(a->first);
  free(a->count);
  free(a->weight);
}

/* False when there is no memory; axis_free either way. */
static bool axis_init(struct axis *a, int from, int to, enum media_filter filter) {
  double scale = (double)from / to, wide = scale < 1 ? 1 : scale, reach = (filter == MEDIA_BICUBIC ? 2 : 1) * wide;
  int taps = (int)ceil(reach) * 2 + 1;
  *a = (struct axis){.n = to, .taps = taps};
  a->first = mem_try_alloc((size_t)to * sizeof *a->first);
  a->count = mem_try_alloc((size_t)to * sizeof *a->count);
  a->weight = mem_try_alloc((size_t)to * (size_t)taps * sizeof *a->weight);
  double *w = mem_try_alloc((size_t)taps * sizeof *w);
  bool fits = a->first && a->count && a->weight && w;
  for (int o = 0; fits && o < to; o++) {
    double centre = (o + 0.5) * scale, sum = 0;
    int lo = MAX((int)(centre - reach + 0.5), 0), n = MIN((int)(centre + reach + 0.5), from) - lo;
    for (int k = 0; k < n; k++) {
      double x = (k + lo - centre + 0.5) * (1 / wide);
      sum += w[k] = filter == MEDIA_BICUBIC ? bicubic(x) : bilinear(x);
    }
    a->first[o] = lo;
    a->count[o] = n;
    for (int k = 0; k < n; k++) {
      double q = (sum != 0 ? w[k] / sum : w[k]) * (1 << BITS);
      a->weight[(size_t)o * (size_t)taps + (size_t)k] = (int32_t)(q + (q < 0 ? -0.5 : 0.5));
    }
  }
  free(w);
  return fits;
}

/* Lanes of sums, brought to 0 .. 255. */
static ALWAYS_INLINE lanes rounded(lanes sum) {
  lanes v = sum >> BITS, over = v > 255;
  return ((v & ~over) | (over & 255)) & ~(v < 0);
}

/* n <= 4 bytes of each of four rows → a vector for each place, a row to a lane. */
static ALWAYS_INLINE void spread_some(const uint8_t *const row[ROWS], size_t x, int n, lanes *out) {
  int32_t four[ROWS] = {0};
  UNROLLED
  for (int r = 0; r < ROWS; r++) memcpy(&four[r], row[r] + x, (size_t)n);
  lanes v = {four[0], four[1], four[2], four[3]};
  UNROLLED
  for (int i = 0; i < n; i++) out[x + i] = v >> (8 * i) & 255;
}

/* And back, from sums. */
static ALWAYS_INLINE void gather_some(const lanes *from, size_t x, int n, uint8_t *const row[ROWS]) {
  lanes v = {0};
  UNROLLED
  for (int i = 0; i < n; i++) v |= rounded(from[x + i]) << (8 * i);
  UNROLLED
  for (int r = 0; r < ROWS; r++) {
    int32_t four = v[r];
    memcpy(row[r] + x, &four, (size_t)n);
  }
}

static void spread(const uint8_t *const row[ROWS], size_t n, lanes *out) {
  size_t x = 0;
  for (; x + 4 <= n; x += 4) spread_some(row, x, 4, out);
  for (; x < n; x++) spread_some(row, x, 1, out);
}

static void gather(const lanes *from, size_t n, uint8_t *const row[ROWS]) {
  size_t x = 0;
  for (; x + 4 <= n; x += 4) gather_some(from, x, 4, row);
  for (; x < n; x++) gather_some(from, x, 1, row);
}

/* Four rows: in [*, channels] → out [a->n, channels]. The caller's number of channels is a constant. */
static ALWAYS_INLINE void add_up(const struct axis *a, const lanes *in, int channels, lanes *out) {
  for (int o = 0; o < a->n; o++, out += channels) {
    const int32_t *w = a->weight + (size_t)o * (size_t)a->taps;
    const lanes *from = in + (size_t)a->first[o] * (size_t)channels;
    lanes half = {HALF, HALF, HALF, HALF}, sum[CHANNELS_MAX] = {half, half, half, half};
    for (int k = 0; k < a->count[o]; k++, from += channels) {
      UNROLLED
      for (int c = 0; c < channels; c++) sum[c] += from[c] * w[k];
    }
    UNROLLED
    for (int c = 0; c < channels; c++) out[c] = sum[c];
  }
}

/* from [height, width, channels] → to [height, a->n, channels], four rows at a time. work: [width * channels], then [a->n * channels]. */
static void resize_width(const struct axis *a, const uint8_t *from, int width, int height, int channels, lanes *work, uint8_t *to) {
  size_t from_bytes = (size_t)width * (size_t)channels, to_bytes = (size_t)a->n * (size_t)channels;
  lanes *in = work, *out = work + from_bytes;
  for (int y = 0; y < height; y += ROWS) {
    const uint8_t *from_row[ROWS];
    uint8_t *to_row[ROWS];
    for (int r = 0; r < ROWS; r++) { /* beyond the last row it is done again */
      size_t at = (size_t)MIN(y + r, height - 1);
      from_row[r] = from + at * from_bytes;
      to_row[r] = to + at * to_bytes;
    }
    spread(from_row, from_bytes, in);
    switch (channels) {
    case 1: add_up(a, in, 1, out); break;
    case 2: add_up(a, in, 2, out); break;
    case 3: add_up(a, in, 3, out); break;
    default: add_up(a, in, 4, out); break;
    }
    gather(out, to_bytes, to_row);
  }
}

/* from [*, row_bytes] → to [a->n, row_bytes]. Sixteen bytes are four lanes of four: every fourth byte from the first on, the second, ... */
static void resize_height(const struct axis *a, const uint8_t *from, size_t row_bytes, uint8_t *to) {
  for (int o = 0; o < a->n; o++, to += row_bytes) {
    const int32_t *w = a->weight + (size_t)o * (size_t)a->taps;
    const uint8_t *rows = from + (size_t)a->first[o] * row_bytes;
    size_t x = 0;
    for (; x + sizeof(lanes) <= row_bytes; x += sizeof(lanes)) {
      lanes half = {HALF, HALF, HALF, HALF}, s0 = half, s1 = half, s2 = half, s3 = half, b;
      for (int k = 0; k < a->count[o]; k++) {
        memcpy(&b, rows + (size_t)k * row_bytes + x, sizeof b);
        s0 += (b & 255) * w[k];
        s1 += (b >> 8 & 255) * w[k];
        s2 += (b >> 16 & 255) * w[k];
        s3 += (b >> 24 & 255) * w[k];
      }
      b = rounded(s0) | rounded(s1) << 8 | rounded(s2) << 16 | rounded(s3) << 24;
      memcpy(to + x, &b, sizeof b);
    }
    for (; x < row_bytes; x++) {
      int32_t sum = HALF;
      for (int k = 0; k < a->count[o]; k++) sum += w[k] * rows[(size_t)k * row_bytes + x];
      sum >>= BITS;
      to[x] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
  }
}

uint8_t *media_resize(const uint8_t *from, int width, int height, int channels, int to_width, int to_height, enum media_filter filter) {
  CHECK(width > 0 && height > 0 && to_width > 0 && to_height > 0 && channels > 0 && channels <= CHANNELS_MAX);
  struct axis across = {0}, down = {0};
  lanes *work = NULL;
  uint8_t *narrow = NULL, *out = NULL;
  size_t row_bytes = (size_t)to_width * (size_t)channels;
  if (to_width != width) {
    narrow = mem_try_alloc(row_bytes * (size_t)height);
    work = mem_try_alloc((size_t)(width + to_width) * (size_t)channels * sizeof *work);
    if (!narrow || !work || !axis_init(&across, width, to_width, filter)) goto done;
    resize_width(&across, from, width, height, channels, work, narrow);
    from = narrow;
  }
  if (to_height == height && narrow) {
    out = narrow;
    narrow = NULL;
    goto done;
  }
  if (!(out = mem_try_alloc(row_bytes * (size_t)to_height))) goto done;
  if (to_height == height) memcpy(out, from, row_bytes * (size_t)height);
  else if (axis_init(&down, height, to_height, filter)) resize_height(&down, from, row_bytes, out);
  else {
    free(out);
    out = NULL;
  }
done:
  axis_free(&across);
  axis_free(&down);
  free(work);
  free(narrow);
  return out;
}
