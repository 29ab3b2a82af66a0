/* audio.c — what kind of sound bytes are; then blocks of frames out of a decoder are averaged to mono, resampled by libsoxr, and appended.
 * The rules are in audio.h.
 */
#include "files/audio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "files/audio_impl.h"

/* --- what it is ------------------------------------------------------------------------------------------------------- */

/* The header of an MPEG audio frame, layers 1 to 3: 11 bits of sync, and no value that is reserved. */
static bool is_mpeg_frame(const uint8_t *p) {
  return p[0] == 0xFF && (p[1] & 0xE0) == 0xE0 && (p[1] & 0x18) != 0x08 && (p[1] & 0x06) != 0 && (p[2] & 0xF0) != 0xF0 &&
         (p[2] & 0x0C) != 0x0C;
}

const char *audio_type(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  if (n >= 12 && (memcmp(p, "RIFF", 4) == 0 || memcmp(p, "RIFX", 4) == 0 || memcmp(p, "RF64", 4) == 0) && memcmp(p + 8, "WAVE", 4) == 0)
    return "wav";
  if (n >= 4 && memcmp(p, "fLaC", 4) == 0) return "flac";
  if (n >= 4 && memcmp(p, "OggS", 4) == 0) return "ogg";
  if (n >= 10 && memcmp(p, "ID3", 3) == 0) return "mp3";
  if (n >= 4 && is_mpeg_frame(p)) return "mp3";
  if (n >= 12 && memcmp(p + 4, "ftyp", 4) == 0) return "m4a";
  if (n >= 4 && memcmp(p, "\x1A\x45\xDF\xA3", 4) == 0) return "webm";
  if (n >= 12 && memcmp(p, "FORM", 4) == 0 && memcmp(p + 8, "AIF", 3) == 0) return "aiff";
  if (n >= 4 && p[0] == 0xFF && (p[1] & 0xF6) == 0xF0) return "aac"; /* ADTS: the sync of MPEG audio with layer 0 */
  return NULL;
}

void audio_free(struct audio *a) {
  free(a->samples);
  *a = (struct audio){0};
}

#ifdef CYGNET_NO_AUDIO

int audio_decode(const void *bytes, size_t n, int seconds_max, struct audio *out, struct err *e) {
  (void)bytes, (void)n, (void)seconds_max;
  *out = (struct audio){0};
  return err_set(e, ERR_UNSUPPORTED, "this build has no sound decoders (it was made with AUDIO=0)");
}

#else

#include <soxr.h>

enum {
  RATE_MIN = 2000,
  RATE_MAX = 768000,
  BLOCK_VALUES = 1 << 15, /* read at once: frames × channels */
  SAMPLES_FIRST = 16000,  /* the output's first size; it doubles */
};

struct audio_job {
  struct audio_source source;
  const struct audio_decoder *decoder;
  int seconds_max;
  soxr_t soxr;    /* NULL: the rate is 16 kHz */
  float *block;   /* [BLOCK_VALUES], as the file has them */
  float *mono;    /* [BLOCK_VALUES] */
  int64_t frames; /* read */
  struct audio out;
  int64_t capacity; /* of out.samples */
  struct err *e;
};

int audio_library_error(struct err *e, const char *message) {
  char escaped[256];
  return err_set(e, ERR_BAD_INPUT, "cannot be decoded: %s",
                 str_escape(str_c(message ? message : "it is damaged"), escaped, sizeof escaped));
}

/* The checksum of an OGG page, whose own four bytes count as zeros: CRC-32 with the highest bit first. */
static uint32_t ogg_checksum(const uint8_t *page, size_t n) {
  uint32_t table[256], sum = 0;
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t r = i << 24;
    for (int bit = 0; bit < 8; bit++) r = r << 1 ^ (r >> 31 ? 0x04C11DB7 : 0);
    table[i] = r;
  }
  for (size_t i = 0; i < n; i++) sum = sum << 8 ^ table[sum >> 24 ^ (i >= 22 && i < 26 ? 0 : page[i])];
  return sum;
}

/* OGG is pages, each with a table of what it holds and a checksum. The libraries skip what is damaged or not whole: the sound would have a
 * hole, or half a download be heard as the whole. */
static int check_ogg(struct audio_source *s) {
  for (size_t at = 0; at < s->n;) {
    const uint8_t *page = s->bytes + at;
    size_t have = s->n - at;
    if (memcmp(page, "OggS", MIN(have, 4)) != 0) return err_set(s->e, ERR_BAD_INPUT, "it is damaged: expected a page at byte %zu", at);
    size_t header = have >= 27 ? 27 + (size_t)page[26] : 27, n = header;
    for (size_t i = 27; i < header && i < have; i++) n += page[i];
    if (n > have) return err_set(s->e, ERR_BAD_INPUT, "it ends early, inside a page");
    uint32_t sum = (uint32_t)page[25] << 24 | (uint32_t)page[24] << 16 | (uint32_t)page[23] << 8 | page[22];
    if (sum != ogg_checksum(page, n)) return err_set(s->e, ERR_BAD_INPUT, "the page at byte %zu is damaged: its checksum is wrong", at);
    at += n;
  }
  return 0;
}

static int check_length(struct audio_job *j, int64_t frames) {
  if (frames <= (int64_t)j->seconds_max * j->source.rate) return 0;
  return err_set(j->e, ERR_TOO_LARGE, "expected at most %d s of sound, found more", j->seconds_max);
}

static int check_header(struct audio_job *j) {
  const struct audio_source *s = &j->source;
  if (s->rate < RATE_MIN || s->rate > RATE_MAX)
    return err_set(j->e, ERR_UNSUPPORTED, "expected a rate of %d .. %d Hz, found %d", RATE_MIN, RATE_MAX, s->rate);
  if (s->channels < 1 || s->channels > BLOCK_VALUES)
    return err_set(j->e, ERR_UNSUPPORTED, "expected 1 .. %d channels, found %d", BLOCK_VALUES, s->channels);
  return check_length(j, s->frames);
}

/* Room for n more samples behind those that are there. */
static int make_room(struct audio_job *j, int64_t n) {
  int64_t need = j->out.n_samples + n;
  if (need <= j->capacity) return 0;
  int64_t capacity = MAX(need, MAX((int64_t)SAMPLES_FIRST, 2 * j->capacity));
  float *larger = capacity <= INT32_MAX ? mem_try_alloc((size_t)capacity * sizeof *larger) : NULL;
  if (!larger) return err_set(j->e, ERR_NO_MEMORY, "cannot get memory for %lld samples", (long long)capacity);
  if (j->out.n_samples) memcpy(larger, j->out.samples, (size_t)j->out.n_samples * sizeof *larger);
  free(j->out.samples);
  j->out.samples = larger;
  j->capacity = capacity;
  return 0;
}

static int append(struct audio_job *j, const float *mono, int n) {
  if (make_room(j, n) != 0) return -1;
  memcpy(j->out.samples + j->out.n_samples, mono, (size_t)n * sizeof *mono);
  j->out.n_samples += n;
  return 0;
}

/* n frames of mono through the resampler; NULL: the end, what it still holds comes out. */
static int resample(struct audio_job *j, const float *mono, size_t n) {
  for (size_t used = 0, made = 1; used < n || made;) {
    size_t took = 0;
    if (make_room(j, BLOCK_VALUES) != 0) return -1;
    soxr_error_t wrong = soxr_process(j->soxr, mono ? mono + used : NULL, n - used, &took, j->out.samples + j->out.n_samples, BLOCK_VALUES,
                                      &made);
    if (wrong) return audio_library_error(j->e, wrong);
    used += took;
    j->out.n_samples += (int)made;
  }
  return 0;
}

/* [n, channels] → their average, added in double. False where a sample is no finite number. */
static bool average(const float *block, int n, int channels, float *mono) {
  bool finite = true;
  for (int i = 0; i < n; i++, block += channels) {
    double sum = 0;
    for (int c = 0; c < channels; c++) sum += block[c];
    mono[i] = (float)(sum / channels);
    finite = finite && isfinite(mono[i]);
  }
  return finite;
}

static int read_samples(struct audio_job *j) {
  struct audio_source *s = &j->source;
  int n;
  while ((n = j->decoder->read(s, j->block, BLOCK_VALUES / s->channels)) > 0) {
    j->frames += n;
    if (check_length(j, j->frames) != 0) return -1;
    if (!average(j->block, n, s->channels, j->mono)) return err_set(j->e, ERR_BAD_INPUT, "it has samples that are no finite numbers");
    if ((j->soxr ? resample(j, j->mono, (size_t)n) : append(j, j->mono, n)) != 0) return -1;
  }
  if (n < 0) return -1;
  if (j->frames < s->frames)
    return err_set(j->e, ERR_BAD_INPUT, "it ends early: expected %lld samples, found %lld", (long long)s->frames, (long long)j->frames);
  if (j->frames == 0) return err_set(j->e, ERR_BAD_INPUT, "it has no samples");
  return j->soxr ? resample(j, NULL, 0) : 0;
}

/* soxr rounds the number of samples; the references round up and put a zero there. */
static int fit_length(struct audio_job *j) {
  int64_t want = (j->frames * AUDIO_RATE + j->source.rate - 1) / j->source.rate;
  if (want > j->out.n_samples && make_room(j, want - j->out.n_samples) != 0) return -1;
  for (int64_t i = j->out.n_samples; i < want; i++) j->out.samples[i] = 0;
  j->out.n_samples = (int)want;
  for (int64_t i = 0; i < want; i++)
    if (!isfinite(j->out.samples[i])) return err_set(j->e, ERR_BAD_INPUT, "its samples are too large to be resampled");
  return 0;
}

/* NULL with the reason in e where there is none. */
static const struct audio_decoder *decoder_of(const char *type, const uint8_t *p, size_t n, struct err *e) {
  if (strcmp(type, "wav") == 0 || strcmp(type, "flac") == 0) return &audio_sndfile;
  if (strcmp(type, "mp3") == 0) return &audio_mpeg;
  if (strcmp(type, "ogg") != 0) {
    err_set(e, ERR_UNSUPPORTED, "sounds of this format are not decoded, expected WAV, FLAC, OGG or MP3");
    return NULL;
  }
  if (n >= 36 && memcmp(p + 28, "\1vorbis", 7) == 0) return &audio_vorbis; /* the first page holds one packet, a header */
  if (n >= 36 && memcmp(p + 28, "OpusHead", 8) == 0) return &audio_sndfile;
  err_set(e, ERR_UNSUPPORTED, "expected Vorbis or Opus in it, found neither");
  return NULL;
}

static int decode(struct audio_job *j, const char *type) {
  if (strcmp(type, "ogg") == 0 && check_ogg(&j->source) != 0) return -1;
  if (j->decoder->open(&j->source) != 0 || check_header(j) != 0) return -1;
  if (j->source.rate != AUDIO_RATE) {
    soxr_error_t wrong = NULL;
    soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    j->soxr = soxr_create(j->source.rate, AUDIO_RATE, 1, &wrong, &io, &quality, NULL);
    if (!j->soxr || wrong) return audio_library_error(j->e, wrong);
  }
  j->block = xmalloc(BLOCK_VALUES * sizeof *j->block);
  j->mono = xmalloc(BLOCK_VALUES * sizeof *j->mono);
  return read_samples(j) != 0 || fit_length(j) != 0 ? -1 : 0;
}

int audio_decode(const void *bytes, size_t n, int seconds_max, struct audio *out, struct err *e) {
  *out = (struct audio){0};
  const char *type = audio_type(bytes, n);
  if (!type) return err_set(e, ERR_BAD_INPUT, "expected a sound (WAV, FLAC, OGG or MP3), found %zu bytes that are none", n);
  const struct audio_decoder *decoder = decoder_of(type, bytes, n, e);
  if (!decoder) return err_prefix(e, "%s", type);
  struct audio_job j = {.source = {.bytes = bytes, .n = n, .frames = -1, .e = e},
                        .decoder = decoder,
                        .seconds_max = seconds_max ? seconds_max : AUDIO_SECONDS_MAX,
                        .e = e};
  int rc = decode(&j, type);
  j.decoder->close(&j.source);
  soxr_delete(j.soxr);
  free(j.block);
  free(j.mono);
  if (rc == 0) *out = j.out;
  else audio_free(&j.out);
  return rc == 0 ? 0 : err_prefix(e, "%s", type);
}

#endif
