/* audio_sndfile.c — WAV, FLAC and Opus (in OGG) through libsndfile. */
#ifndef CYGNET_NO_AUDIO

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <sndfile.h>

#include "files/audio_impl.h"

/* Data sizes from here on are written by programs that cannot go back to the header. */
enum { LENGTH_UNKNOWN = 0x7FFF0000 };

/* --- the bytes as a file ---------------------------------------------------------------------------------------------- */

static sf_count_t on_length(void *user) { return (sf_count_t)((struct audio_source *)user)->n; }
static sf_count_t on_tell(void *user) { return (sf_count_t)((struct audio_source *)user)->at; }
static sf_count_t on_write(const void *p, sf_count_t n, void *user) {
  (void)p, (void)n, (void)user;
  return 0;
}
static sf_count_t on_seek(sf_count_t offset, int whence, void *user) {
  struct audio_source *s = user;
  sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (sf_count_t)s->at : (sf_count_t)s->n, to;
  if (__builtin_add_overflow(from, offset, &to) || to < 0) return -1;
  s->at = (size_t)MIN(to, (sf_count_t)s->n);
  return (sf_count_t)s->at;
}
static sf_count_t on_read(void *p, sf_count_t n, void *user) {
  struct audio_source *s = user;
  size_t can = MIN((size_t)MAX(n, 0), s->n - s->at);
  memcpy(p, s->bytes + s->at, can);
  s->at += can;
  return (sf_count_t)can;
}

/* --- what libsndfile would cut in silence ----------------------------------------------------------------------------- */

static uint32_t u32_at(const uint8_t *p, bool big_endian) {
  return big_endian ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]
                    : (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* A data chunk that goes past the end of the file: half a download would be heard as the whole. RF64 keeps the size in a chunk "ds64",
 * behind its own size and that of the file. */
static int check_wav(struct audio_source *s) {
  bool big_endian = memcmp(s->bytes, "RIFX", 4) == 0;
  uint64_t bytes_64 = 0;
  for (size_t at = 12; s->n - at >= 8;) {
    const uint8_t *chunk = s->bytes + at;
    uint64_t bytes = u32_at(chunk + 4, big_endian), have = s->n - at - 8;
    if (memcmp(chunk, "data", 4) == 0) {
      if (bytes >= LENGTH_UNKNOWN) bytes = bytes_64;
      if (bytes <= have) return 0;
      return err_set(s->e, ERR_BAD_INPUT, "it ends early: expected %llu bytes of sound, found %llu", (unsigned long long)bytes,
                     (unsigned long long)have);
    }
    bytes += bytes & 1;
    if (bytes > have) return 0;
    if (memcmp(chunk, "ds64", 4) == 0 && bytes >= 16) bytes_64 = u32_at(chunk + 16, false) | (uint64_t)u32_at(chunk + 20, false) << 32;
    at += 8 + bytes;
  }
  return 0;
}

static bool is_coding(int format) {
  int coding = format & SF_FORMAT_SUBMASK;
  switch (format & SF_FORMAT_TYPEMASK) {
  case SF_FORMAT_WAV:
  case SF_FORMAT_WAVEX:
  case SF_FORMAT_RF64:
    return coding == SF_FORMAT_PCM_U8 || coding == SF_FORMAT_PCM_16 || coding == SF_FORMAT_PCM_24 || coding == SF_FORMAT_PCM_32 ||
           coding == SF_FORMAT_FLOAT || coding == SF_FORMAT_DOUBLE || coding == SF_FORMAT_ULAW || coding == SF_FORMAT_ALAW ||
           coding == SF_FORMAT_IMA_ADPCM || coding == SF_FORMAT_MS_ADPCM;
  case SF_FORMAT_FLAC: return true;
  case SF_FORMAT_OGG: return coding == SF_FORMAT_OPUS;
  default: return false;
  }
}

/* --- frames ----------------------------------------------------------------------------------------------------------- */

static int sndfile_open(struct audio_source *s) {
  static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* why an opening failed is kept in one place for all threads */
  SF_VIRTUAL_IO io = {.get_filelen = on_length, .seek = on_seek, .read = on_read, .write = on_write, .tell = on_tell};
  SF_INFO info = {0};
  if (s->bytes[0] == 'R' && check_wav(s) != 0) return -1;
  pthread_mutex_lock(&opening);
  s->lib = sf_open_virtual(&io, SFM_READ, &info, s);
  if (!s->lib) audio_library_error(s->e, sf_strerror(NULL));
  pthread_mutex_unlock(&opening);
  if (!s->lib) return -1;
  if (!is_coding(info.format))
    return err_set(s->e, ERR_UNSUPPORTED, "its coding is not decoded (libsndfile's format 0x%x)", (unsigned)info.format);
  s->rate = info.samplerate;
  s->channels = info.channels;
  s->frames = info.frames > 0 && info.frames < SF_COUNT_MAX ? info.frames : -1;
  return 0;
}

static int sndfile_read(struct audio_source *s, float *block, int n_frames) {
  sf_count_t n = sf_readf_float(s->lib, block, n_frames);
  if (n <= 0 && sf_error(s->lib) != SF_ERR_NO_ERROR) return audio_library_error(s->e, sf_strerror(s->lib));
  return (int)n;
}

static void sndfile_close(struct audio_source *s) {
  if (s->lib) sf_close(s->lib);
}

const struct audio_decoder audio_sndfile = {sndfile_open, sndfile_read, sndfile_close};

#endif
