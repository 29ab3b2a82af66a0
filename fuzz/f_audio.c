/* f_audio.c — any bytes as a sound, checksums of OGG pages put right: decoded, every sample finite, the limit kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/audio.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void fix_ogg(uint8_t *p, size_t n) {
  for (size_t at = 0; n - at >= 27 && memcmp(p + at, "OggS", 4) == 0;) {
    size_t bytes = 27 + (size_t)p[at + 26];
    for (size_t i = 27, header = bytes; i < header && at + i < n; i++) bytes += p[at + i];
    if (bytes > n - at) return;
    memset(p + at + 22, 0, 4);
    uint32_t sum = 0;
    for (size_t i = 0; i < bytes; i++) {
      sum ^= (uint32_t)p[at + i] << 24;
      for (int bit = 0; bit < 8; bit++) sum = sum << 1 ^ (sum >> 31 ? 0x04C11DB7 : 0);
    }
    for (int i = 0; i < 4; i++) p[at + 22 + (size_t)i] = (uint8_t)(sum >> (8 * i));
    at += bytes;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  enum { SECONDS_MAX = 5 };
  struct audio a;
  struct err e = {0};
  uint8_t *copy = malloc(n ? n : 1);
  if (n) memcpy(copy, data, n);
  fix_ogg(copy, n);
  const char *type = audio_type(copy, n);
  if (audio_decode(copy, n, SECONDS_MAX, &a, &e) == 0) {
    CHECK(type && a.n_samples > 0 && a.n_samples <= SECONDS_MAX * AUDIO_RATE);
    for (int i = 0; i < a.n_samples; i++) CHECK(isfinite(a.samples[i]));
  } else {
    CHECK(e.msg[0] && e.code && !a.samples);
  }
  audio_free(&a);
  free(copy);
  return 0;
}
