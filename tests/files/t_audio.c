/* t_audio.c — one sound in every kind of file, files of tests/golden, headers that lie, early ends, damage, memory that is short.
 */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "files/audio.h"
#include "files/safetensors.h"

#ifdef CYGNET_NO_AUDIO

static void refuses(void **s) {
  (void)s;
  struct audio a;
  struct err e = {0};
  assert_int_equal(audio_decode("fLaC0000", 8, 0, &a, &e), -1);
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  assert_non_null(strstr(e.msg, "AUDIO=0"));
  audio_free(&a);
}
static const struct CMUnitTest tests[] = {cmocka_unit_test(refuses)};

#else

#include <sndfile.h>

/* --- bytes ------------------------------------------------------------------------------------------------------------ */

static unsigned char file[1 << 21]; /* the file that a test writes */
static size_t n_file, at_file;      /* at_file: where libsndfile writes */

static void put(const void *p, size_t n) {
  assert_true(n_file + n <= sizeof file);
  memcpy(file + n_file, p, n);
  n_file += n;
}
static void put8(unsigned v) { put(&(unsigned char){(unsigned char)v}, 1); }
static void put16(unsigned v) { put8(v & 255), put8(v >> 8 & 255); }
static void put32(uint32_t v) { put16(v & 0xFFFF), put16(v >> 16); }
static void set32(size_t at, uint32_t v) {
  for (int i = 0; i < 4; i++) file[at + (size_t)i] = (unsigned char)(v >> (8 * i));
}
static void read_file(const char *path) {
  size_t n;
  char *bytes = test_read(path, &n);
  n_file = 0;
  put(bytes, n);
  free(bytes);
}

static struct err error;
static int decode(size_t n, int seconds_max, struct audio *a) {
  unsigned char *copy = test_guard_alloc(n);
  memcpy(copy, file, n);
  error = (struct err){0};
  int rc = audio_decode(copy, n, seconds_max, a, &error);
  test_guard_free(copy, n);
  if (rc != 0) assert_true(error.msg[0] && error.code && !a->samples);
  return rc;
}
static void must_decode(struct audio *a) {
  if (decode(n_file, 0, a) != 0) fail_msg("%s", error.msg);
}
static void refused(const char *says) {
  struct audio a;
  if (decode(n_file, 0, &a) == 0) fail_msg("decoded, expected: %s", says);
  if (!strstr(error.msg, says)) fail_msg("expected: %s, found: %s", says, error.msg);
}

/* --- WAV writer ------------------------------------------------------------------------------------------------------- */

enum coding { PCM8, PCM16, PCM24, PCM32, FLOAT32, FLOAT64 };
static const int coding_bytes[] = {1, 2, 3, 4, 4, 8};

struct wav {
  enum coding coding;
  int rate, channels;
  bool extensible, list_first, odd_chunk, list_last;
};

/* 0.25 s of a tone that rises from 300 to 900 Hz. */
static double tone(double t) { return 0.5 * sin(2 * 3.14159265358979323846 * (300 * t + 1200 * t * t)); }

static void put_sample(enum coding coding, double v) {
  if (coding == FLOAT32) {
    put(&(float){(float)v}, 4);
  } else if (coding == FLOAT64) {
    put(&v, 8);
  } else {
    int bytes = coding_bytes[coding];
    int64_t level = llround(v * pow(2, 8 * bytes - 1));
    if (coding == PCM8) level += 128;
    for (int i = 0; i < bytes; i++) put8((unsigned)(level >> (8 * i)) & 255);
  }
}

/* The tone; channel c has 1 + (c - (channels - 1) / 2) / 4 times of it, so that the average is the tone. Returns where the data chunk's
 * size stands. */
static size_t write_wav(const struct wav *w, int n_frames) {
  int bytes = coding_bytes[w->coding], code = w->coding >= FLOAT32 ? 3 : 1;
  n_file = 0;
  put("RIFF", 4), put32(0), put("WAVE", 4);
  if (w->list_first) put("LIST", 4), put32(14), put("INFOISFT\2\0\0\0ab", 14);
  put("fmt ", 4), put32(w->extensible ? 40 : 16), put16(w->extensible ? 0xFFFE : (unsigned)code), put16((unsigned)w->channels),
      put32((uint32_t)w->rate);
  put32((uint32_t)(w->rate * w->channels * bytes)), put16((unsigned)(w->channels * bytes)), put16((unsigned)(8 * bytes));
  if (w->extensible)
    put16(22), put16((unsigned)(8 * bytes)), put32((1u << w->channels) - 1), put16((unsigned)code),
        put("\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71", 14);
  if (w->odd_chunk) put("LIST", 4), put32(5), put("INFOx\0", 6);
  put("data", 4);
  size_t size_at = n_file;
  put32((uint32_t)(n_frames * w->channels * bytes));
  for (int i = 0; i < n_frames; i++)
    for (int c = 0; c < w->channels; c++) put_sample(w->coding, tone((double)i / w->rate) * (1 + (c - (w->channels - 1) / 2.0) / 4));
  if (w->list_last) put("LIST", 4), put32(14), put("INFOISFT\2\0\0\0ab", 14);
  set32(4, (uint32_t)n_file - 8);
  return size_at;
}

/* Greatest distance from the tone, leaving out 20 ms at each end, where resampling feels the silence outside. */
static double distance(const struct audio *a) {
  double worst = 0;
  for (int i = 320; i < a->n_samples - 320; i++) worst = fmax(worst, fabs(a->samples[i] - tone(i / 16000.0)));
  return worst;
}
/* Loudness of tone over that of what differs, in dB, for codings that lose something. */
static double quality(const struct audio *a) {
  double sound = 0, noise = 0;
  for (int i = 320; i < a->n_samples - 320 && i < 3680; i++) {
    double v = tone(i / 16000.0);
    sound += v * v, noise += (a->samples[i] - v) * (a->samples[i] - v);
  }
  return 10 * log10(sound / noise);
}

/* --- the same sound, whatever the file -------------------------------------------------------------------------------- */

static void wav_of_every_kind(void **s) {
  (void)s;
  static const int rates[] = {8000, 11025, 16000, 22050, 24000, 44100, 48000, 96000};
  static const double within[] = {0.6 / 128, 0.6 / 32768, 1e-6, 1e-6, 1e-6, 1e-6};
  int n = 0;
  for (enum coding coding = PCM8; coding <= FLOAT64; coding++)
    for (size_t r = 0; r < ARRAY_LEN(rates); r++)
      for (int channels = 1; channels <= 6; channels += channels == 1 ? 1 : 4) {
        struct wav w = {coding, rates[r], channels, n % 2, n % 3 == 0, n % 5 == 0, n % 7 == 0};
        int n_frames = rates[r] / 4 + n % 3;
        struct audio a;
        write_wav(&w, n_frames);
        must_decode(&a);
        assert_int_equal(a.n_samples, ((int64_t)n_frames * 16000 + rates[r] - 1) / rates[r]);
        double d = distance(&a), bound = within[coding] * (rates[r] == 16000 ? 1 : 2.5) + (rates[r] == 16000 ? 1e-7 : 2e-5);
        if (d > bound) fail_msg("coding %d, %d Hz, %d channels: %g from the tone, expected %g", coding, rates[r], channels, d, bound);
        audio_free(&a);
        n++;
      }
}

static void values_are_exact(void **s) {
  (void)s;
  struct audio a;
  struct wav w = {PCM16, 16000, 1, 0, 0, 0, 0};
  size_t size_at = write_wav(&w, 4);
  memcpy(file + size_at + 4, "\x00\x80\xFF\x7F\x01\x00\x00\x00", 8);
  must_decode(&a);
  static const float want16[] = {-1, 32767 / 32768.f, 1 / 32768.f, 0};
  assert_memory_equal(a.samples, want16, sizeof want16);
  audio_free(&a);
  w.coding = PCM8;
  size_at = write_wav(&w, 4);
  memcpy(file + size_at + 4, "\x00\xFF\x80\x81", 4);
  must_decode(&a);
  static const float want8[] = {-1, 127 / 128.f, 0, 1 / 128.f};
  assert_memory_equal(a.samples, want8, sizeof want8);
  audio_free(&a);
  w.channels = 2; /* an average that float cannot add */
  w.coding = FLOAT32;
  size_at = write_wav(&w, 2);
  memcpy(file + size_at + 4, (float[]){3e38f, 3e38f, 1, 0x1p-24f}, 16);
  must_decode(&a);
  assert_true(a.samples[0] == 3e38f && a.samples[1] == (float)(0.5 + 0x1p-25));
  audio_free(&a);
}

static void samples_are_those_of_the_reference(void **s) {
  (void)s;
  static const char *const files[] = {"chirp.pcm16.wav", "deep.pcm24.wav",   "float.float.wav", "hiss.pcm16.wav", "phone.pcmu8.wav",
                                      "quiet.pcm16.wav", "stereo.pcm16.wav", "tick.pcm16.wav",  "tone.pcm16.wav", "voice.pcm16.wav"};
  struct safetensors golden;
  struct err e = {0};
  if (safetensors_open(&golden, test_path("golden/media-prep/golden.safetensors"), &e) != 0) fail_msg("%s", e.msg);
  int compared = 0;
  for (size_t i = 0; i < ARRAY_LEN(files); i++) {
    char path[128], name[64];
    snprintf(path, sizeof path, "golden/media-prep/%s", files[i]);
    snprintf(name, sizeof name, "audio.%.*s.mono", (int)strcspn(files[i], "."), files[i]);
    const struct st_tensor *t = safetensors_find(&golden, name);
    if (!t) continue;
    struct audio a;
    read_file(test_path(path));
    must_decode(&a);
    assert_int_equal(a.n_samples, t->shape[0]);
    for (int k = 0; k < a.n_samples; k++) {
      float want;
      memcpy(&want, (const char *)t->data + 4 * (size_t)k, 4);
      if (fabsf(a.samples[k] - want) > 1e-6f)
        fail_msg("%s: sample %d: expected %g, found %g", files[i], k, (double)want, (double)a.samples[k]);
    }
    audio_free(&a);
    compared++;
  }
  safetensors_close(&golden);
  assert_true(compared >= 8);
}

static sf_count_t on_length(void *user) { return (void)user, (sf_count_t)n_file; }
static sf_count_t on_tell(void *user) { return (void)user, (sf_count_t)at_file; }
static sf_count_t on_seek(sf_count_t offset, int whence, void *user) {
  (void)user;
  at_file = (size_t)(offset + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (sf_count_t)at_file : (sf_count_t)n_file));
  return (sf_count_t)at_file;
}
static sf_count_t on_read(void *p, sf_count_t n, void *user) {
  (void)user;
  memcpy(p, file + at_file, (size_t)n);
  at_file += (size_t)n;
  return n;
}
static sf_count_t on_write(const void *p, sf_count_t n, void *user) {
  (void)user;
  assert_true(at_file + (size_t)n <= sizeof file);
  memcpy(file + at_file, p, (size_t)n);
  at_file += (size_t)n;
  if (at_file > n_file) n_file = at_file;
  return n;
}
static void write_by_library(int format, int rate, int n_frames) {
  SF_VIRTUAL_IO io = {on_length, on_seek, on_read, on_write, on_tell};
  SF_INFO info = {.samplerate = rate, .channels = 1, .format = format};
  n_file = at_file = 0;
  SNDFILE *out = sf_open_virtual(&io, SFM_WRITE, &info, NULL);
  assert_non_null(out);
  for (int i = 0; i < n_frames; i++) assert_int_equal(sf_write_float(out, &(float){(float)tone((double)i / rate)}, 1), 1);
  sf_close(out);
}

static void other_codings(void **s) {
  (void)s;
  static const struct {
    int format, rate;
    double decibels;
  } cases[] = {
      {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 22050, 80},  {SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 48000, 90},
      {SF_FORMAT_FLAC | SF_FORMAT_PCM_S8, 16000, 35},  {SF_FORMAT_WAV | SF_FORMAT_ULAW, 16000, 30},
      {SF_FORMAT_WAV | SF_FORMAT_ALAW, 8000, 30},      {SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 16000, 20},
      {SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM, 16000, 20}, {SF_FORMAT_RF64 | SF_FORMAT_PCM_16, 16000, 80},
      {SF_FORMAT_WAVEX | SF_FORMAT_FLOAT, 16000, 90},  {SF_ENDIAN_BIG | SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 80},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct audio a;
    write_by_library(cases[i].format, cases[i].rate, cases[i].rate / 4);
    must_decode(&a);
    double found = quality(&a);
    if (found < cases[i].decibels) fail_msg("case %zu: %g dB, expected %g", i, found, cases[i].decibels);
    assert_true(a.n_samples >= 4000 && a.n_samples <= 5100); /* ADPCM fills its last block */
    audio_free(&a);
  }
  static const struct {
    const char *name;
    int n_samples; /* -1: with the encoder's padding before and after it, which nothing in the file tells apart */
  } files[] = {{"tag.mp3", 4000}, {"no_tag.mp3", -1}, {"tone.opus.ogg", 4000}, {"tone.vorbis.ogg", 4001}};
  for (size_t i = 0; i < ARRAY_LEN(files); i++) {
    char path[128];
    struct audio a;
    snprintf(path, sizeof path, "golden/media-odd/%s", files[i].name);
    read_file(test_path(path));
    must_decode(&a);
    if (files[i].n_samples < 0) {
      assert_true(a.n_samples > 4000 && a.n_samples < 6000);
    } else {
      assert_int_equal(a.n_samples, files[i].n_samples);
      double found = quality(&a);
      if (found < 10) fail_msg("%s: %g dB", files[i].name, found);
    }
    audio_free(&a);
  }
}

/* --- headers that lie ------------------------------------------------------------------------------------------------- */

static void wav_of_unknown_length_goes_to_the_end(void **s) {
  (void)s;
  static const uint32_t sizes[] = {0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000};
  for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
    struct audio a;
    struct wav w = {PCM16, 16000, 1, 0, i & 1, 0, 0};
    size_t size_at = write_wav(&w, 4000);
    set32(size_at, sizes[i]);
    set32(4, i & 1 ? 0xFFFFFFFF : 0);
    must_decode(&a);
    assert_int_equal(a.n_samples, 4000);
    assert_true(distance(&a) < 1e-4);
    audio_free(&a);
  }
}

static void lies_are_refused(void **s) {
  (void)s;
  struct wav w = {PCM16, 16000, 2, 0, 0, 0, 0};
  size_t size_at = write_wav(&w, 1000);
  set32(size_at, 4004);
  refused("wav: it ends early: expected 4004 bytes of sound, found 4000");
  set32(size_at, 0x7FFEFFFF);
  refused("wav: it ends early");
  set32(size_at, 0);
  refused("wav: it has no samples");
  write_wav(&w, 0);
  refused("wav: ");
  static const int wide[] = {SF_FORMAT_RF64 | SF_FORMAT_PCM_16, SF_ENDIAN_BIG | SF_FORMAT_WAV | SF_FORMAT_PCM_16};
  for (int i = 0; i < 2; i++) {
    write_by_library(wide[i], 16000, 1000);
    n_file -= 10;
    refused("wav: it ends early: expected 2000 bytes of sound, found 1990");
  }
  w.rate = 100;
  write_wav(&w, 100);
  refused("expected a rate of 2000 .. 768000 Hz, found 100");
  w.rate = 2000000;
  write_wav(&w, 100);
  refused("found 2000000");
  w.rate = 16000;
  write_wav(&w, 100);
  file[20] = 0x31; /* GSM */
  refused("wav: ");
  w.coding = FLOAT32;
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; i++) {
    size_at = write_wav(&w, 1000);
    memcpy(file + size_at + 4 + 4 * 1001, &bad[i], 4);
    refused("no finite numbers");
  }
  w.rate = 8000;
  size_at = write_wav(&w, 1000);
  for (int i = 0; i < 200; i++) memcpy(file + size_at + 4 + 4 * i, &(float){3.4e38f}, 4);
  refused("too large to be resampled");
}

/* A FLAC whose header promises more than there is, and one that says nothing of its length. */
static void flac_length(void **s) {
  (void)s;
  struct audio a;
  write_by_library(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000, 4000);
  assert_memory_equal(file + 4, "\0\0\0\x22", 4); /* STREAMINFO; its last 36 bits before the digest are the number of samples */
  file[25] += 1;
  refused("flac: ");
  file[25] -= 1;
  must_decode(&a);
  audio_free(&a);
  file[24] = file[25] = 0;
  must_decode(&a);
  assert_int_equal(a.n_samples, 4000);
  audio_free(&a);
  write_by_library(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000, 4000);
  file[21] |= 15; /* 2^36 samples: 49 days */
  refused("expected at most 3600 s of sound, found more");
}

static void limit_is_exact(void **s) {
  (void)s;
  static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16};
  for (int i = 0; i < 2; i++) {
    struct audio a;
    write_by_library(formats[i], 8000, 16000);
    assert_int_equal(decode(n_file, 2, &a), 0);
    assert_int_equal(a.n_samples, 32000);
    audio_free(&a);
    write_by_library(formats[i], 8000, 16001);
    assert_int_equal(decode(n_file, 2, &a), -1);
    assert_int_equal(error.code, ERR_TOO_LARGE);
    assert_non_null(strstr(error.msg, "at most 2 s"));
    if (i == 1) { /* a length that the header hides shows while decoding */
      file[24] = file[25] = 0;
      assert_int_equal(decode(n_file, 2, &a), -1);
      assert_int_equal(error.code, ERR_TOO_LARGE);
    }
  }
}

/* Ten hours of silence in few bytes: refused on the way, without memory for them. */
static void long_silence_is_refused(void **s) {
  (void)s;
  SF_VIRTUAL_IO io = {on_length, on_seek, on_read, on_write, on_tell};
  SF_INFO info = {.samplerate = 8000, .channels = 1, .format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16};
  static const float silence[80000];
  n_file = at_file = 0;
  SNDFILE *out = sf_open_virtual(&io, SFM_WRITE, &info, NULL);
  for (int i = 0; i < 12; i++) sf_writef_float(out, silence, 80000);
  sf_close(out);
  file[21] &= 0xF0, file[22] = file[23] = file[24] = file[25] = 0;
  struct audio a;
  size_t before = mem_resident_bytes();
  assert_int_equal(decode(n_file, 60, &a), -1);
  assert_int_equal(error.code, ERR_TOO_LARGE);
  assert_true(n_file < 30000);
  assert_true(mem_resident_bytes() < before + (16 << 20));
}

/* --- damage ----------------------------------------------------------------------------------------------------------- */

static const char *const samples[] = {"golden/media-odd/tag.mp3",         "golden/media-odd/no_tag.mp3",
                                      "golden/media-odd/tone.opus.ogg",   "golden/media-odd/tone.vorbis.ogg",
                                      "golden/media-prep/tick.pcm16.wav", "golden/media-prep/phone.pcmu8.wav"};

/* A file that ends early is refused where anything in it can tell: all but MP3 without a tag, and OGG cut between two pages. */
static void early_ends_are_refused(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    struct audio a;
    read_file(test_path(samples[i]));
    must_decode(&a);
    audio_free(&a);
    int decoded = 0;
    for (size_t n = 0; n < n_file; n += n < 100 || n + 200 > n_file ? 1 : 13)
      if (decode(n, 0, &a) == 0) {
        decoded++;
        size_t enough = strstr(samples[i], "/tag.mp3") ? n_file - 576 : n_file; /* two frames may lack, and the encoder's padding */
        bool tells = strstr(samples[i], ".wav") || strstr(samples[i], "/tag.mp3");
        if (tells && n < enough) fail_msg("%s: decoded from %zu of %zu bytes", samples[i], n, n_file);
        audio_free(&a);
      }
    if (strstr(samples[i], ".ogg")) assert_true(decoded <= 2);
  }
}

/* Put the checksums of OGG pages right, so that damage gets as far as the decoders. */
static void fix_ogg(void) {
  for (size_t at = 0; n_file - at >= 27 && memcmp(file + at, "OggS", 4) == 0;) {
    size_t n = 27 + (size_t)file[at + 26];
    for (size_t i = 27, header = n; i < header && at + i < n_file; i++) n += file[at + i];
    if (n > n_file - at) return;
    set32(at + 22, 0);
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
      sum ^= (uint32_t)file[at + i] << 24;
      for (int bit = 0; bit < 8; bit++) sum = sum << 1 ^ (sum >> 31 ? 0x04C11DB7 : 0);
    }
    set32(at + 22, sum);
    at += n;
  }
}

static void ogg_with_a_flipped_bit_is_refused(void **s) {
  (void)s;
  for (int vorbis = 0; vorbis < 2; vorbis++) {
    struct audio a;
    read_file(test_path(vorbis ? "golden/media-odd/tone.vorbis.ogg" : "golden/media-odd/tone.opus.ogg"));
    int n_flips = 0, n_checksums = 0; /* other flips are of a page's mark or table */
    for (size_t at = 0; at < n_file; at += at < 200 ? 1 : 7) {
      file[at] ^= (unsigned char)(1 << at % 8);
      refused("");
      n_flips++;
      n_checksums += strstr(error.msg, "checksum is wrong") != NULL;
      file[at] ^= (unsigned char)(1 << at % 8);
    }
    assert_true(n_checksums > n_flips / 2);
    fix_ogg();
    must_decode(&a);
    audio_free(&a);
  }
}

static void damage_does_no_harm(void **s) {
  (void)s;
  int saved = test_silence_begin();
  uint64_t seed = 9;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    read_file(test_path(samples[i]));
    unsigned char *good = malloc(n_file);
    memcpy(good, file, n_file);
    for (int round = 0; round < 80; round++) {
      struct audio a;
      memcpy(file, good, n_file);
      for (int k = test_rand_int(&seed, 0, 3); k >= 0; k--) {
        int at = test_rand_int(&seed, 0, round & 1 ? 100 : (int)n_file - 1);
        file[at] = (unsigned char)(test_rand_int(&seed, 0, 1) ? test_rand_int(&seed, 0, 255) : 255);
      }
      if (round & 2) fix_ogg();
      if (decode(n_file, 10, &a) == 0) {
        assert_true(a.n_samples > 0 && a.n_samples <= 160000);
        for (int k = 0; k < a.n_samples; k++) assert_true(isfinite(a.samples[k]));
        audio_free(&a);
      }
    }
    free(good);
  }
  test_silence_end(saved);
}

/* Threads decode the samples, whole and cut, and find what one alone finds. */
static struct {
  char *p;
  size_t n;
} shared[ARRAY_LEN(samples)];
static void *decode_all(void *out) {
  uint64_t sum = 0;
  for (size_t i = 0; i < 2 * ARRAY_LEN(samples); i++) {
    struct audio a;
    struct err e = {0};
    size_t n = shared[i / 2].n;
    if (audio_decode(shared[i / 2].p, i & 1 ? n / 3 : n, 0, &a, &e) == 0) sum = hash_bytes(a.samples, (size_t)a.n_samples * 4, sum);
    else sum = hash_bytes(e.msg, strlen(e.msg), sum);
    audio_free(&a);
  }
  *(uint64_t *)out = sum;
  return NULL;
}
static void threads_do_not_meet(void **s) {
  (void)s;
  pthread_t threads[4];
  uint64_t alone, sums[4];
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) shared[i].p = test_read(test_path(samples[i]), &shared[i].n);
  decode_all(&alone);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, decode_all, &sums[i]), 0);
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    assert_true(sums[i] == alone);
  }
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) free(shared[i].p);
}

static void short_memory_is_an_error(void **s) {
  (void)s;
  for (int rate = 8000; rate <= 16000; rate += 8000) {
    write_by_library(SF_FORMAT_WAV | SF_FORMAT_PCM_16, rate, 100000);
    for (int at = 1;; at++) {
      struct audio a;
      struct err e = {0};
      mem_fail_after(at);
      int rc = audio_decode(file, n_file, 0, &a, &e);
      bool reached = !mem_fail_pending();
      mem_fail_after(0);
      if (!reached) {
        assert_int_equal(rc, 0);
        assert_true(at > 3);
        audio_free(&a);
        break;
      }
      assert_int_equal(rc, -1);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      assert_null(a.samples);
    }
  }
}

static void types_are_told_by_bytes(void **s) {
  (void)s;
  static const struct {
    const char *bytes;
    size_t n;
    const char *type;
  } cases[] = {
      {"RIFF....WAVEfmt ", 16, "wav"},
      {"RF64....WAVEds64", 16, "wav"},
      {"RIFX....WAVE", 12, "wav"},
      {"RIFF....WEBP", 12, NULL},
      {"RIFF....WAV", 11, NULL},
      {"fLaC", 4, "flac"},
      {"OggS", 4, "ogg"},
      {"ID3\4\0\0\0\0\0\0", 10, "mp3"},
      {"\xFF\xFB\x90\0", 4, "mp3"},
      {"\xFF\xF3\x40\0", 4, "mp3"},
      {"\xFF\xFF\xFF\xFF", 4, NULL},
      {"\xFF\xF1\x50\x80", 4, "aac"},
      {"\xFF\xD8\xFF\xE0", 4, NULL},
      {"\0\0\0\x20"
       "ftypM4A ",
       12, "m4a"},
      {"\x1A\x45\xDF\xA3", 4, "webm"},
      {"FORM....AIFF", 12, "aiff"},
      {"hello", 5, NULL},
      {"", 0, NULL},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    n_file = 0;
    put(cases[i].bytes, cases[i].n);
    unsigned char *copy = test_guard_alloc(n_file);
    memcpy(copy, file, n_file);
    const char *type = audio_type(copy, n_file);
    test_guard_free(copy, n_file);
    if (!type != !cases[i].type || (type && strcmp(type, cases[i].type) != 0))
      fail_msg("case %zu: expected %s, found %s", i, cases[i].type, type);
    refused(type ? type : "expected a sound (WAV, FLAC, OGG or MP3)");
  }
  assert_null(audio_type(NULL, 0));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(wav_of_every_kind),
    cmocka_unit_test(values_are_exact),
    cmocka_unit_test(samples_are_those_of_the_reference),
    cmocka_unit_test(other_codings),
    cmocka_unit_test(wav_of_unknown_length_goes_to_the_end),
    cmocka_unit_test(lies_are_refused),
    cmocka_unit_test(flac_length),
    cmocka_unit_test(limit_is_exact),
    cmocka_unit_test(long_silence_is_refused),
    cmocka_unit_test(early_ends_are_refused),
    cmocka_unit_test(ogg_with_a_flipped_bit_is_refused),
    cmocka_unit_test(damage_does_no_harm),
    cmocka_unit_test(threads_do_not_meet),
    cmocka_unit_test(short_memory_is_an_error),
    cmocka_unit_test(types_are_told_by_bytes),
};

#endif

TEST_MAIN(tests)
