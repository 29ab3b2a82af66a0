/* audio_vorbis.c — OGG Vorbis through libvorbisfile. libsndfile reads it too, but loses memory with every file whose headers are
 * damaged. */
#ifndef CYGNET_NO_AUDIO

#include <stdlib.h>
#include <string.h>

#define OV_EXCLUDE_STATIC_CALLBACKS
#include <vorbis/vorbisfile.h>

#include "base/mem.h"
#include "files/audio_impl.h"

static size_t on_read(void *out, size_t size, size_t n, void *user) {
  struct audio_source *s = user;
  size_t can = size ? MIN(n, (s->n - s->at) / size) : 0;
  memcpy(out, s->bytes + s->at, can * size);
  s->at += can * size;
  return can;
}
static int on_seek(void *user, ogg_int64_t offset, int whence) {
  struct audio_source *s = user;
  ogg_int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (ogg_int64_t)s->at : (ogg_int64_t)s->n, to;
  if (__builtin_add_overflow(from, offset, &to) || to < 0 || to > (ogg_int64_t)s->n) return -1;
  s->at = (size_t)to;
  return 0;
}
static long on_tell(void *user) { return (long)((struct audio_source *)user)->at; }

static int vorbis_open(struct audio_source *s) {
  OggVorbis_File *lib = xcalloc(1, sizeof *lib);
  ov_callbacks io = {.read_func = on_read, .seek_func = on_seek, .tell_func = on_tell};
  if (ov_open_callbacks(s, lib, NULL, 0, io) != 0) {
    free(lib);
    return audio_library_error(s->e, "its headers are damaged");
  }
  s->lib = lib;
  for (long i = 1; i < ov_streams(lib); i++)
    if (ov_info(lib, (int)i)->rate != ov_info(lib, 0)->rate || ov_info(lib, (int)i)->channels != ov_info(lib, 0)->channels)
      return err_set(s->e, ERR_BAD_INPUT, "its rate or number of channels changes on the way");
  const vorbis_info *info = ov_info(lib, 0);
  s->rate = (int)MIN(info->rate, (long)INT32_MAX);
  s->channels = info->channels;
  ogg_int64_t frames = ov_pcm_total(lib, -1);
  s->frames = frames > 0 ? frames : -1;
  return 0;
}

static int vorbis_read(struct audio_source *s, float *block, int n_frames) {
  float **planes = NULL; /* [channels][n] */
  int link = 0;
  long n = ov_read_float(s->lib, &planes, n_frames, &link);
  if (n < 0) return audio_library_error(s->e, n == OV_HOLE ? "data is missing on the way" : "its data is damaged");
  for (long i = 0; i < n; i++)
    for (int c = 0; c < s->channels; c++) block[i * s->channels + c] = planes[c][i];
  return (int)n;
}

static void vorbis_close(struct audio_source *s) {
  if (s->lib) ov_clear(s->lib);
  free(s->lib);
}

const struct audio_decoder audio_vorbis = {vorbis_open, vorbis_read, vorbis_close};

#endif
