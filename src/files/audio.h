/* audio.h — bytes of a sound → mono float32 at 16 kHz. Nothing is known of models here.
 *
 * WAV (PCM 8 .. 32, float, A-law, mu-law, ADPCM, extensible headers), FLAC, OGG (Vorbis, Opus), MP3. What it is the bytes say, never a label.
 *
 * Rules
 *   1. Channels are averaged, then the rate is converted (soxr, HQ) to ceil(n * 16000 / rate) samples.
 *   2. Length is held against the limit before and while decoding: a header may lie.
 *   3. Samples that are no finite numbers are refused. Any thread; no global state.
 */
#ifndef CYGNET_AUDIO_H
#define CYGNET_AUDIO_H

#include "base/err.h"

struct audio {
  int n_samples;
  float *samples; /* -1 .. 1 by convention; owned */
};

enum { AUDIO_RATE = 16000, AUDIO_SECONDS_MAX = 3600 };

const char *audio_type(const void *bytes, size_t n); /* "wav", "flac", "ogg", "mp3", or NULL */
/* seconds_max: 0 = AUDIO_SECONDS_MAX. */
int audio_decode(const void *bytes, size_t n, int seconds_max, struct audio *out, struct err *e);
void audio_free(struct audio *a); /* fine on a zeroed one */

#endif
