/* audio_mpeg.c — MP3 (MPEG audio, layers 1 to 3) through libmpg123, without padding that the encoder put around the sound.
 *
 * libsndfile reads MP3 through the same library, but guesses the length of files that do not say it, and lets the library print.
 */
#ifndef CYGNET_NO_AUDIO

#include <string.h>

#include <mpg123.h>

#include "files/audio_impl.h"

enum { FEED_BYTES = 1 << 16 };

static int mpeg_error(struct audio_source *s) { return audio_library_error(s->e, mpg123_strerror(s->lib)); }

/* Up to `capacity` bytes of samples into out, feeding the file piece by piece. *n = 0 at its end. Returns 0, or 1 where a format begins:
 * before the first samples, and wherever rate or channels change; -1 with the reason in s->e. */
static int pump(struct audio_source *s, void *out, size_t capacity, size_t *n) {
  for (;;) {
    int rc = mpg123_read(s->lib, out, capacity, n);
    if (rc == MPG123_NEW_FORMAT) return 1;
    if (*n > 0 || rc == MPG123_DONE || (rc == MPG123_NEED_MORE && s->at == s->n)) return 0;
    if (rc != MPG123_OK && rc != MPG123_NEED_MORE) return mpeg_error(s);
    size_t piece = MIN((size_t)FEED_BYTES, s->n - s->at);
    if (piece && mpg123_feed(s->lib, s->bytes + s->at, piece) != MPG123_OK) return mpeg_error(s);
    s->at += piece;
  }
}

static int mpeg_open(struct audio_source *s) {
  mpg123_handle *lib = s->lib = mpg123_new(NULL, NULL);
  if (!lib) return err_set(s->e, ERR_NO_MEMORY, "cannot get memory to decode");
  mpg123_param(lib, MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_GAPLESS | MPG123_SKIP_ID3V2 | MPG123_FORCE_FLOAT, 0);
  mpg123_param(lib, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0);
  size_t n = 0;
  long rate = 0;
  int coding = 0;
  if (mpg123_open_feed(lib) != MPG123_OK) return mpeg_error(s);
  int rc = pump(s, NULL, 0, &n);
  if (rc < 0) return -1;
  if (rc == 0 || mpg123_getformat(lib, &rate, &s->channels, &coding) != MPG123_OK)
    return err_set(s->e, ERR_BAD_INPUT, "it has no whole frame of sound");
  if (coding != MPG123_ENC_FLOAT_32) return err_set(s->e, ERR_UNSUPPORTED, "libmpg123 was built without 32-bit float samples");
  s->rate = (int)rate;
  /* known from an encoder's tag only, otherwise negative; and some count a frame or two that are not there */
  off_t frames = mpg123_length(lib) - 2 * (off_t)mpg123_spf(lib);
  s->frames = frames > 0 ? frames : -1;
  return 0;
}

static int mpeg_read(struct audio_source *s, float *block, int n_frames) {
  size_t n = 0, frame_bytes = sizeof *block * (size_t)s->channels;
  int rc = pump(s, block, (size_t)n_frames * frame_bytes, &n);
  if (rc < 0) return -1;
  if (rc == 1) return err_set(s->e, ERR_BAD_INPUT, "its rate or number of channels changes on the way");
  return (int)(n / frame_bytes);
}

static void mpeg_close(struct audio_source *s) { mpg123_delete(s->lib); }

const struct audio_decoder audio_mpeg = {mpeg_open, mpeg_read, mpeg_close};

#endif
