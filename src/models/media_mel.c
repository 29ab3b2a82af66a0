/* media_mel.c — Gemma 4's hearing: logarithms of 128 bands of the spectrum, 100 times a second.
 *
 *   frame i = samples [160 i - 160, 160 i + 160), those before the first one being 0; times a periodic Hann window; 512-point spectrum;
 *   magnitudes; triangles equally wide on the mel scale (HTK's), their height 1; ln(sum + 0.001)
 *
 * All in float64 but for the window, which is rounded to float32 as the released processor's is.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "models/media_impl.h"

enum { POINTS = 512, HALF = POINTS / 2, BINS = HALF + 1 };

static const double pi = 3.14159265358979323846;

struct mel {
  double window[MEDIA_FRAME_SAMPLES];
  double cosine[HALF], sine[HALF]; /* of 2 pi k / POINTS */
  double re[HALF], im[HALF];       /* work */
  double magnitude[BINS];
  int n_bands;
  struct band {
    int first, count; /* bins under the triangle */
    double *weight;
  } * bands;
  double *weights; /* of all bands: a bin is under two of them at most */
};

static double hz_of_mel(double m) { return 700 * (pow(10, m / 2595) - 1); }
static double mel_of_hz(double f) { return 2595 * log10(1 + f / 700); }

static void init_bands(struct mel *t) {
  double top = mel_of_hz(AUDIO_RATE / 2.0), step = top / (t->n_bands + 1), hz_per_bin = (double)AUDIO_RATE / POINTS;
  double *weight = t->weights;
  for (int b = 0; b < t->n_bands; b++) {
    double left = hz_of_mel(b * step), middle = hz_of_mel((b + 1) * step),
           right = hz_of_mel(b + 2 == t->n_bands + 1 ? top : (b + 2) * step);
    struct band *band = &t->bands[b];
    *band = (struct band){.weight = weight};
    for (int k = 0; k < BINS; k++) {
      double f = k * hz_per_bin, w = MIN((f - left) / (middle - left), (right - f) / (right - middle));
      if (w <= 0) continue;
      if (!band->count) band->first = k;
      *weight++ = w;
      band->count++;
    }
  }
}

static void mel_delete(struct mel *t) {
  if (!t) return;
  free(t->bands);
  free(t->weights);
  free(t);
}

static struct mel *mel_new(int n_mel) {
  struct mel *t = mem_try_alloc(sizeof *t);
  if (!t) return NULL;
  t->n_bands = n_mel;
  t->bands = mem_try_alloc((size_t)n_mel * sizeof *t->bands);
  t->weights = mem_try_alloc(2 * BINS * sizeof *t->weights);
  if (!t->bands || !t->weights) {
    mel_delete(t);
    return NULL;
  }
  for (int i = 0; i < MEDIA_FRAME_SAMPLES; i++) t->window[i] = (float)(0.5 - 0.5 * cos(2 * pi * i / MEDIA_FRAME_SAMPLES));
  for (int k = 0; k < HALF; k++) {
    t->cosine[k] = cos(2 * pi * k / POINTS);
    t->sine[k] = sin(2 * pi * k / POINTS);
  }
  init_bands(t);
  return t;
}

/* Complex transform of re, im in place, radix 2, inputs put into bit-reversed order first. */
static void transform(struct mel *t) {
  double *re = t->re, *im = t->im;
  for (int i = 1, j = 0; i < HALF; i++) {
    int bit = HALF >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i >= j) continue;
    double r = re[i], m = im[i];
    re[i] = re[j], im[i] = im[j];
    re[j] = r, im[j] = m;
  }
  for (int size = 2; size <= HALF; size *= 2)
    for (int start = 0; start < HALF; start += size)
      for (int k = 0; k < size / 2; k++) {
        double c = t->cosine[k * (POINTS / size)], s = t->sine[k * (POINTS / size)];
        int a = start + k, b = a + size / 2;
        double r = re[b] * c + im[b] * s, m = im[b] * c - re[b] * s;
        re[b] = re[a] - r, im[b] = im[a] - m;
        re[a] += r, im[a] += m;
      }
}

/* The spectrum of 512 real numbers from that of 256 complex ones, even places real, odd ones imaginary: E ± W^k O. */
static void magnitudes(struct mel *t) {
  transform(t);
  for (int k = 0; k <= HALF / 2; k++) {
    int j = (HALF - k) % HALF;
    double even_re = (t->re[k] + t->re[j]) / 2, even_im = (t->im[k] - t->im[j]) / 2;
    double odd_re = (t->im[k] + t->im[j]) / 2, odd_im = (t->re[j] - t->re[k]) / 2;
    double c = t->cosine[k], s = t->sine[k];
    double re = odd_re * c + odd_im * s, im = odd_im * c - odd_re * s;
    t->magnitude[k] = sqrt((even_re + re) * (even_re + re) + (even_im + im) * (even_im + im));
    t->magnitude[HALF - k] = sqrt((even_re - re) * (even_re - re) + (even_im - im) * (even_im - im));
  }
}

int media_mel_frames(int64_t n_samples) { return n_samples > MEDIA_HOP ? (int)((n_samples - 1) / MEDIA_HOP) : 0; }

bool media_mel(const float *samples, int64_t n, int n_mel, float *out) {
  int n_frames = media_mel_frames(n);
  struct mel *t = mel_new(n_mel);
  if (!t) return false;
  for (int f = 0; f < n_frames; f++) {
    int64_t first = (int64_t)(f - 1) * MEDIA_HOP;
    for (int i = 0; i < HALF; i++) t->re[i] = t->im[i] = 0;
    for (int i = f ? 0 : MEDIA_HOP; i < MEDIA_FRAME_SAMPLES; i++)
      *(i & 1 ? &t->im[i / 2] : &t->re[i / 2]) = samples[first + i] * t->window[i];
    magnitudes(t);
    for (int b = 0; b < n_mel; b++) {
      const struct band *band = &t->bands[b];
      double sum = 0;
      for (int k = 0; k < band->count; k++) sum += band->weight[k] * t->magnitude[band->first + k];
      *out++ = (float)log(sum + 0.001);
    }
  }
  mel_delete(t);
  return true;
}
