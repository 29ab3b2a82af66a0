/* t_cygnet_media.c — the public functions that make media and put them into prompts, on an engine of which only what they read is there. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "files/json.h"
#include "models/media_impl.h"

/* Which placeholders there are, as the engine says it. */
static void set_placeholders(struct cygnet *c) {
  const struct model *m = c->model;
  c->limits.media = (struct media_rules){.takes = m->vision || m->audio,
                                         .image_id = m->vision ? c->config.image_id : -1,
                                         .video_id = m->vision ? c->config.video_id : -1,
                                         .audio_id = m->audio ? c->config.audio_id : -1};
}

/* What an opened engine with both encoders looks like from here. */
static struct cygnet *engine_of(const char *folder, bool vision, bool audio) {
  struct cygnet *c = xcalloc(1, sizeof *c);
  struct err e = {0};
  c->weights = weights_open(test_path(folder), &c->config, &e);
  if (!c->weights) fail_msg("%s", e.msg);
  c->model = xcalloc(1, sizeof *c->model);
  static char encoder; /* never looked into */
  if (vision) c->model->vision = (struct encoder *)(void *)&encoder;
  if (audio) c->model->audio = (struct encoder *)(void *)&encoder;
  set_placeholders(c);
  return c;
}

static void engine_free(struct cygnet *c) {
  weights_close(c->weights);
  free(c->model);
  free(c);
}

static struct cygnet_media *load(const struct cygnet *c, enum cygnet_media_kind kind, const char *file,
                                 const struct cygnet_media_options *o) {
  struct cygnet_error e = {0};
  size_t n;
  char *bytes = test_read(test_path(file), &n);
  struct cygnet_media *m = cygnet_media_new(c, kind, bytes, n, o, &e);
  if (!m) fail_msg("%s: %s", file, e.message);
  free(bytes);
  return m;
}

static void refused(const struct cygnet *c, enum cygnet_media_kind kind, const void *bytes, size_t n, const struct cygnet_media_options *o,
                    int status, const char *says) {
  struct cygnet_error e = {0};
  assert_null(cygnet_media_new(c, kind, bytes, n, o, &e));
  if (!strstr(e.message, says)) fail_msg("\"%s\" does not say \"%s\"", e.message, says);
  assert_int_equal(e.status, status);
  assert_null(cygnet_media_new(c, kind, bytes, n, o, NULL));
}

#define GEMMA4 "golden/media-gemma4-e2b"

static const uint8_t *digest_of(const struct cygnet_media *m) { return ((const struct media *)m)->digest; }

static void put_u32(uint8_t *p, uint32_t v) {
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* 24 bits a pixel, rows from below, in steps of four bytes. */
static uint8_t *bmp_of(const struct image *im, size_t *n) {
  size_t row = ((size_t)im->width * 3 + 3) / 4 * 4;
  *n = 54 + row * (size_t)im->height;
  uint8_t *b = xcalloc(1, *n);
  memcpy(b, "BM", 2);
  put_u32(b + 2, (uint32_t)*n);
  put_u32(b + 10, 54);
  put_u32(b + 14, 40);
  put_u32(b + 18, (uint32_t)im->width);
  put_u32(b + 22, (uint32_t)im->height);
  b[26] = 1;
  b[28] = 24;
  put_u32(b + 34, (uint32_t)(row * (size_t)im->height));
  for (int y = 0; y < im->height; y++)
    for (int x = 0; x < im->width; x++)
      for (int c = 0; c < 3; c++)
        b[54 + (size_t)(im->height - 1 - y) * row + (size_t)(3 * x + 2 - c)] = im->rgb[(y * im->width + x) * 3 + c];
  return b;
}

static void test_pictures(void **state) {
  (void)state;
  struct cygnet *c = engine_of(GEMMA4, true, true);
  struct cygnet_media *m = load(c, CYGNET_IMAGE, GEMMA4 "/a.rgb.png", NULL),
                      *frame = load(c, CYGNET_VIDEO_FRAME, GEMMA4 "/a.rgb.png", NULL);
  struct cygnet_media *large = load(c, CYGNET_IMAGE, GEMMA4 "/a.rgb.png", &(struct cygnet_media_options){.max_tokens = 280});
  const struct media *x = (const struct media *)m;
  assert_int_equal(cygnet_media_tokens(m), 63);
  assert_true(cygnet_media_tokens(large) > 200);
  assert_true(cygnet_media_memory(m) == sizeof *x + (size_t)(x->width * x->height * 3));
  assert_true(cygnet_media_seconds(m) == 0);
  assert_memory_equal(digest_of(m), digest_of(frame), 32);
  assert_memory_not_equal(digest_of(m), digest_of(large), 32);

  /* the same pixels in another file */
  struct err e = {0};
  struct image im = {0};
  size_t n;
  char *png = test_read(test_path(GEMMA4 "/a.rgb.png"), &n);
  assert_int_equal(image_decode(png, n, 0, &im, &e), 0);
  uint8_t *bmp = bmp_of(&im, &n);
  struct cygnet_media *other = cygnet_media_new(c, CYGNET_IMAGE, bmp, n, NULL, NULL);
  assert_non_null(other);
  assert_memory_equal(digest_of(m), digest_of(other), 32);
  cygnet_media_free(other);
  bmp[n - 4] ^= 1;
  other = cygnet_media_new(c, CYGNET_IMAGE, bmp, n, NULL, NULL);
  assert_memory_not_equal(digest_of(m), digest_of(other), 32);
  cygnet_media_free(other);

  struct cygnet_error ce;
  const char *path = test_write("m.safetensors", "", 0);
  struct safetensors s;
  assert_int_equal(cygnet_media_write(c, m, path, &ce), 0);
  assert_int_equal(safetensors_open(&s, path, &e), 0);
  const struct st_tensor *patches = safetensors_find(&s, "patches"), *tokens = safetensors_find(&s, "tokens");
  assert_true(patches && tokens && safetensors_find(&s, "positions"));
  assert_int_equal(patches->shape[0], 567);
  assert_int_equal(*(const int32_t *)tokens->data, 63);
  safetensors_close(&s);
  assert_int_equal(cygnet_media_write(c, m, "/nonexistent/m.safetensors", &ce), -1);
  assert_non_null(strstr(ce.message, "/nonexistent"));

  c->image_pixels = (int64_t)im.width * im.height;
  cygnet_media_free(cygnet_media_new(c, CYGNET_IMAGE, bmp, n, NULL, &ce));
  c->image_pixels--;
  refused(c, CYGNET_IMAGE, bmp, n, NULL, 413, "pixels");

  image_free(&im);
  free(png);
  free(bmp);
  cygnet_media_free(m);
  cygnet_media_free(frame);
  cygnet_media_free(large);
  cygnet_media_free(NULL);
  engine_free(c);
}

/* Pieces are what media_new makes of the same parts, and nothing is lost between them. */
static void test_pieces_of_sounds(void **state) {
  (void)state;
  struct cygnet *c = engine_of(GEMMA4, true, true);
  struct cygnet_error e;
  struct cygnet_media *pieces[8] = {0};
  size_t n;
  char *wav = test_read(test_path(GEMMA4 "/c.pcm16.wav"), &n);
  double seconds = 0, again = 0;
  assert_int_equal(cygnet_media_pieces(c, wav, n, 30, pieces, 8, &seconds, &e), 1);
  struct cygnet_media *whole = cygnet_media_new(c, CYGNET_AUDIO, wav, n, NULL, NULL);
  assert_true(seconds == cygnet_media_seconds(whole));
  assert_memory_equal(digest_of(pieces[0]), digest_of(whole), 32);
  cygnet_media_free(pieces[0]);
  cygnet_media_free(whole);
  int n_samples = (int)(seconds * 16000 + 0.5);
  for (int count = 2; count <= 5; count++) {
    assert_int_equal(cygnet_media_pieces(c, wav, n, (n_samples / count + 1.5) / 16000.0, pieces, count, &again, &e), count);
    for (int i = 0; i < count; i++) {
      int from = n_samples * i / count, to = n_samples * (i + 1) / count;
      struct cygnet_media_options o = {.start_seconds = from / 16000.0, .seconds = (to - from) / 16000.0};
      struct cygnet_media *part = cygnet_media_new(c, CYGNET_AUDIO, wav, n, &o, NULL);
      assert_memory_equal(digest_of(pieces[i]), digest_of(part), 32);
      cygnet_media_free(part);
      cygnet_media_free(pieces[i]);
      pieces[i] = NULL;
    }
  }
  assert_int_equal(cygnet_media_pieces(c, wav, n, seconds / 4, pieces, 3, &again, &e), 4);
  assert_null(pieces[0]);
  assert_int_equal(cygnet_media_pieces(c, wav, n / 2, 30, pieces, 8, &again, &e), -1);
  assert_int_equal(cygnet_media_pieces(c, wav, n, 0, pieces, 8, &again, &e), -1);
  assert_int_equal(cygnet_media_pieces(c, wav, n, NAN, pieces, 8, &again, &e), -1);
  assert_int_equal(cygnet_media_pieces(c, wav, n, 0.001, pieces, 1 << 30, &again, &e), -1); /* each too short: none is left behind */
  free(wav);
  engine_free(c);
}

static void test_parts_of_sounds(void **state) {
  (void)state;
  struct cygnet *c = engine_of(GEMMA4, true, true);
  size_t n;
  char *wav = test_read(test_path(GEMMA4 "/c.pcm16.wav"), &n);
  struct cygnet_media *whole = cygnet_media_new(c, CYGNET_AUDIO, wav, n, NULL, NULL);
  assert_non_null(whole);
  double seconds = cygnet_media_seconds(whole);
  const struct {
    double start, seconds, rest; /* what is left of the sound */
  } parts[] = {{0, 0, 1}, {0, 100, 1}, {0.1, 0, -0.1}, {0, 0.05, 0.05}, {0.1, 0.1, 0.1}, {0.1, 1e300, -0.1}};
  for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
    struct cygnet_media_options o = {.start_seconds = parts[i].start, .seconds = parts[i].seconds};
    struct cygnet_media *m = cygnet_media_new(c, CYGNET_AUDIO, wav, n, &o, NULL);
    assert_non_null(m);
    double length = parts[i].rest == 1 ? seconds : parts[i].rest < 0 ? seconds + parts[i].rest : parts[i].rest;
    int frames = media_mel_frames((int64_t)floor(length * 16000 + 0.5));
    assert_int_equal(cygnet_media_tokens(m), div_up(frames, 4));
    assert_true(cygnet_media_seconds(m) == seconds); /* of the whole */
    assert_int_equal(memcmp(digest_of(m), digest_of(whole), 32) == 0, parts[i].rest == 1);
    cygnet_media_free(m);
  }
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.start_seconds = seconds}, 400, "behind the end");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.start_seconds = 1e300}, 400, "behind the end");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.start_seconds = -1}, 400, "found -1");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.start_seconds = NAN}, 400, "expected a part");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.start_seconds = INFINITY}, 400, "expected a part");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.seconds = NAN}, 400, "expected a part");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.seconds = 0.005}, 400, "too short");
  refused(c, CYGNET_AUDIO, wav, n, &(struct cygnet_media_options){.max_tokens = 70}, 400, "found 70");
  refused(c, CYGNET_IMAGE, wav, n, NULL, 400, "picture");
  refused(c, CYGNET_AUDIO, "hello", 5, NULL, 400, "sound");
  enum { HEAD = 44, LONG = 2000 * 31 }; /* 8 bits at 2000 Hz: refused before it is decoded */
  static unsigned char slow[HEAD + LONG] = {"RIFF\x54\xf2\0\0WAVEfmt \x10\0\0\0\1\0\1\0\xd0\7\0\0\xd0\7\0\0\1\0\x08\0data\x30\xf2\0\0"};
  refused(c, CYGNET_AUDIO, slow, sizeof slow, NULL, 400, "expected at most 30 s of sound, found more");
  cygnet_media_free(whole);
  free(wav);
  engine_free(c);
}

static void test_not_taken(void **state) {
  (void)state;
  struct cygnet *gemma3 = engine_of("golden/media-gemma3", true, false), *off = engine_of(GEMMA4, false, false),
                *text = engine_of("golden/gemma4-e-tiny", false, false),
                *gguf = engine_of("golden/gemma4-e-tiny/model-bf16.gguf", false, false);
  size_t n;
  char *png = test_read(test_path(GEMMA4 "/a.rgb.png"), &n);
  refused(gemma3, CYGNET_AUDIO, png, n, NULL, 400, "sound: this model takes none");
  refused(gemma3, CYGNET_VIDEO_FRAME, png, n, NULL, 400, "video: this model takes none");
  refused(gemma3, CYGNET_IMAGE, png, n, &(struct cygnet_media_options){.max_tokens = 70}, 400, "fixed");
  refused(off, CYGNET_IMAGE, png, n, NULL, 400, "disable_media");
  refused(off, CYGNET_AUDIO, png, n, NULL, 400, "disable_media");
  refused(text, CYGNET_IMAGE, png, n, NULL, 400, "pictures: this model takes none");
  refused(gguf, CYGNET_IMAGE, png, n, NULL, 400, "--mmproj");
  free(png);
  engine_free(gemma3);
  engine_free(off);
  engine_free(text);
  engine_free(gguf);
}

/* ---- prompts ------------------------------------------------------------------------------------------------------------------- */

static void test_expand(void **state) {
  (void)state;
  struct cygnet *c = engine_of(GEMMA4, true, true);
  int32_t image = c->config.image_id, video = c->config.video_id, audio = c->config.audio_id;
  assert_true(image > 0 && video > 0 && audio > 0 && image != video && video != audio);
  struct cygnet_media *a = load(c, CYGNET_IMAGE, GEMMA4 "/a.rgb.png", NULL), *b = load(c, CYGNET_VIDEO_FRAME, GEMMA4 "/b.rgba.png", NULL),
                      *s = load(c, CYGNET_AUDIO, GEMMA4 "/a.pcm16.wav", NULL);
  const struct cygnet_media *media[] = {a, b, s};
  int32_t ids[] = {2, 270, image, 271, video, 9, audio}, *out;
  size_t n, at = 0;
  struct cygnet_error e = {0};
  assert_int_equal(cygnet_expand(c, ids, 7, media, 3, &out, &n, &e), 0);
  assert_int_equal(n, 4 + cygnet_media_tokens(a) + cygnet_media_tokens(b) + cygnet_media_tokens(s));
  for (size_t i = 0, k = 0; i < 7; i++) {
    int copies = ids[i] == image || ids[i] == video || ids[i] == audio ? cygnet_media_tokens(media[k++]) : 1;
    for (int j = 0; j < copies; j++) assert_int_equal(out[at++], ids[i]);
  }
  assert_int_equal(at, n);
  cygnet_free(out);

  int32_t plain[] = {5, 6, 7};
  assert_int_equal(cygnet_expand(c, plain, 3, NULL, 0, &out, &n, &e), 0);
  assert_true(n == 3 && !memcmp(out, plain, sizeof plain));
  cygnet_free(out);
  assert_int_equal(cygnet_expand(c, NULL, 0, NULL, 0, &out, &n, &e), 0);
  assert_true(n == 0 && out != NULL);
  cygnet_free(out);

  const struct {
    size_t n_ids, n_media;
    bool swap;
    const char *says;
  } bad[] = {{7, 2, false, "3 pictures and sounds, found 2"},
             {4, 3, false, "1 pictures and sounds, found 3"},
             {7, 3, true, "a place for a picture at token 2, found a video frame"}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    const struct cygnet_media *given[] = {bad[i].swap ? b : a, bad[i].swap ? a : b, s};
    assert_int_equal(cygnet_expand(c, ids, bad[i].n_ids, given, bad[i].n_media, &out, &n, &e), -1);
    if (!strstr(e.message, bad[i].says)) fail_msg("\"%s\" does not say \"%s\"", e.message, bad[i].says);
    assert_true(out == NULL && n == 0 && e.status == 400);
  }

  c->model->vision = NULL; /* then these ids are tokens as any others */
  set_placeholders(c);
  assert_int_equal(cygnet_expand(c, ids, 6, NULL, 0, &out, &n, &e), 0);
  assert_int_equal(n, 6);
  cygnet_free(out);
  cygnet_media_free(a);
  cygnet_media_free(b);
  cygnet_media_free(s);
  engine_free(c);
}

/* The fixtures' prompts: one placeholder each and files in, all rows out. Returns how many were compared. */
static int check_case(const struct cygnet *c, const char *folder, const struct st_tensor *want, json_t *one) {
  struct cygnet_media *media[16];
  struct cygnet_error e = {0};
  size_t n_media = 0, n_pictures = 0, n_sounds = 0, n_ids = 0, n_out, i;
  int32_t ids[512], *out;
  json_t *value;
  json_array_foreach(json_object_get(one, "ids"), i, value) {
    int32_t id = ids[n_ids++] = (int32_t)json_integer_value(value);
    bool sound = id == c->config.audio_id, frame = id == c->config.video_id;
    if (!sound && !frame && id != c->config.image_id) continue;
    char path[200];
    json_t *file = json_array_get(json_object_get(one, sound ? "sounds" : "pictures"), sound ? n_sounds++ : n_pictures++);
    snprintf(path, sizeof path, "%s/%s", folder, json_string_value(file));
    media[n_media++] = load(c, sound ? CYGNET_AUDIO : frame ? CYGNET_VIDEO_FRAME : CYGNET_IMAGE, path, NULL);
  }
  assert_int_equal(n_pictures + n_sounds,
                   json_array_size(json_object_get(one, "pictures")) + json_array_size(json_object_get(one, "sounds")));
  if (cygnet_expand(c, ids, n_ids, (const struct cygnet_media *const *)media, n_media, &out, &n_out, &e)) fail_msg("%s", e.message);
  assert_int_equal(n_out * sizeof *out, want->n_bytes);
  assert_memory_equal(out, want->data, want->n_bytes);
  cygnet_free(out);
  while (n_media) cygnet_media_free(media[--n_media]);
  return 1;
}

static int check_cases(const char *folder) {
  char path[200];
  struct err e = {0};
  struct safetensors golden;
  struct cygnet *c = engine_of(folder, true, true);
  int n_checked = 0;
  snprintf(path, sizeof path, "%s/golden.safetensors", folder);
  if (safetensors_open(&golden, test_path(path), &e)) fail_msg("%s", e.msg);
  snprintf(path, sizeof path, "%s/cases.json", folder);
  size_t n_text;
  char *text = test_read(test_path(path), &n_text);
  json_t *json = json_load_text(text, n_text, true, path, &e), *one;
  const char *name;
  assert_non_null(json);
  json_object_foreach(json_object_get(json, "cases"), name, one) {
    snprintf(path, sizeof path, "%s.ids", name);
    const struct st_tensor *want = safetensors_find(&golden, path);
    if (want) n_checked += check_case(c, folder, want, one);
  }
  json_decref(json);
  free(text);
  safetensors_close(&golden);
  engine_free(c);
  return n_checked;
}

static void test_fixtures(void **state) {
  (void)state;
  static const char *const folders[] = {"golden/media-gemma3",     "golden/media-gemma4-e2b", "golden/media-gemma4-31b",
                                        "golden/media-gemma4-26b", "golden/media-gemma4-12b", "golden/media-mllama",
                                        "golden/media-mllama-long"};
  for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
    int n = check_cases(folders[i]);
    printf("  %-26s %d prompts\n", folders[i], n);
    assert_true(n >= 1);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_pictures),  cmocka_unit_test(test_pieces_of_sounds), cmocka_unit_test(test_parts_of_sounds),
    cmocka_unit_test(test_not_taken), cmocka_unit_test(test_expand),           cmocka_unit_test(test_fixtures),
};
TEST_MAIN(tests)
