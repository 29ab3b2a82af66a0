/* audio.h — bytes of a sound → mono float32 at 16 kHz. Nothing is known of models here.
 *
 * WAV (PCM 8 .. 32, float, A-law, mu-law, ADPCM, extensible headers), FLAC, OGG (Vorbis, Opus), MP3. What it is the bytes say, never a
 * label.
 *
 * Rules
 *   1. Channels are averaged, then the rate is converted (soxr, HQ) to ceil(n * 16000 / rate) samples.
 *   2. Length is held against the limit before and while decoding: a header may lie. Memory grows with the samples that are there.
 *   3. A file that is shorter than its header says is refused, not cut in silence. A WAV of unknown length (a data size of 0x7FFF0000 and
 *      more, as programs write into a pipe) goes to the end of the file.
 *   4. Samples that are no finite numbers are refused. Any thread; one lock, around libsndfile's opening of a file.
 */
#ifndef CYGNET_AUDIO_H
#define CYGNET_AUDIO_H

#include "base/err.h"

struct audio {
  int n_samples;
  float *samples; /* -1 .. 1 by convention; owned */
};

enum { AUDIO_RATE = 16000, AUDIO_SECONDS_MAX = 3600 };

/* "wav", "flac", "ogg", "mp3"; what is known but not decoded: "m4a" (and other MP4), "webm", "aiff", "aac"; NULL: nothing that is known. */
const char *audio_type(const void *bytes, size_t n);
/* seconds_max: 0 = AUDIO_SECONDS_MAX. "wav: ...", with ERR_BAD_INPUT (damaged, or no sound at all), ERR_UNSUPPORTED (a coding that is not
 * decoded), ERR_TOO_LARGE, ERR_NO_MEMORY. A sound without samples is refused. */
int audio_decode(const void *bytes, size_t n, int seconds_max, struct audio *out, struct err *e);
void audio_free(struct audio *a); /* fine on a zeroed one */

#endif
