/* audio_impl.h — a sound file as a source of frames: what audio.c and the decoders share. */
#ifndef CYGNET_AUDIO_IMPL_H
#define CYGNET_AUDIO_IMPL_H

#include "files/audio.h"

struct audio_source {
  const uint8_t *bytes; /* borrowed, n of them */
  size_t n, at;         /* at: where the decoder stands */
  struct err *e;
  /* set by opening */
  int rate, channels;
  int64_t frames; /* as the header has it; -1: it does not say */
  void *lib;
};

/* A decoder. open: 0, or -1 with the reason in s->e; close is called after that too. read: the next frames [n_frames, channels] at most, 0
 * at the end, -1 with the reason in s->e. */
struct audio_decoder {
  int (*open)(struct audio_source *s);
  int (*read)(struct audio_source *s, float *block, int n_frames);
  void (*close)(struct audio_source *s);
};
extern const struct audio_decoder audio_sndfile; /* WAV, FLAC, OGG with Opus */
extern const struct audio_decoder audio_vorbis;  /* OGG with Vorbis */
extern const struct audio_decoder audio_mpeg;    /* MP3 */

/* The sentence of a library, whose bytes may be anything. Returns -1. */
int audio_library_error(struct err *e, const char *message);

#endif
