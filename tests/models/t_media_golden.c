/* t_media_golden.c — what released processors make of real files, against what we make of them.
 *
 * Fixtures: tests/golden/media-prep (five families at their released geometries, no weights) and the media-* models. They hold a part of
 * what was computed, so each test compares what is there, and fails when that is not enough. 8-bit values, places and sizes must be equal;
 * float values within 1e-6 of the reference's root mean square.
 */
#include "test.h"

#include <dirent.h>
#include <zlib.h>

#include "files/weights.h"
#include "models/media_golden.h"

#define PREP "golden/media-prep"
static const double bound = 1e-6;

static struct safetensors open_golden(const char *folder) {
  char path[300];
  struct safetensors s;
  struct err e = {0};
  snprintf(path, sizeof path, "%s/golden.safetensors", folder);
  if (safetensors_open(&s, test_path(path), &e)) fail_msg("%s", e.msg);
  return s;
}

/* A released geometry; its own copy of the configuration. */
static struct model_config *config_of(const char *folder) {
  struct model_config *c = xcalloc(1, sizeof *c);
  struct err e = {0};
  if (config_from_folder(c, test_path(folder), &e)) fail_msg("%s", e.msg);
  return c;
}

static double worst_of(const float *got, const float *want, size_t n) {
  double rel_max, rel_l2;
  test_compare(got, want, n, &rel_max, &rel_l2);
  return rel_max;
}

static size_t count_of(const struct st_tensor *t) {
  size_t n = 1;
  for (int i = 0; i < t->n_dims; i++) n *= (size_t)t->shape[i];
  return n;
}

static void check_ints(const struct safetensors *s, const char *key, const char *name, const int32_t *got, size_t n, int *n_compared) {
  const struct st_tensor *t = tensor_of(s, key, name);
  if (!t) return;
  assert_int_equal(count_of(t), n);
  if (memcmp(t->data, got, n * sizeof *got)) fail_msg("%s%s differs", key, name);
  ++*n_compared;
}

/* The file of a fixture whose name begins with "stem." */
static bool find_file(const char *folder, const char *stem, char path[600]) {
  DIR *d = opendir(test_path(folder));
  bool found = false;
  size_t n = strlen(stem);
  assert_non_null(d);
  for (struct dirent *f; !found && (f = readdir(d));)
    if (!strncmp(f->d_name, stem, n) && f->d_name[n] == '.') {
      snprintf(path, 600, "%s/%s", test_path(folder), f->d_name);
      found = true;
    }
  closedir(d);
  return found;
}

/* ---- released geometries: 8-bit values, sums, samples --------------------------------------------------------------------------- */

struct prep {
  struct safetensors golden;
  struct model_config *c;
  const char *family;
  int n_crc, n_sums, n_samples, n_full, n_ints;
  double worst_sum, worst_sample;
};

/* 8-bit values in the order of the fixture: [h, w, 3]; patches; tiles [n, 3, t, t]. */
static uint8_t *levels_of(const struct model_config *c, const struct media *m, size_t *n) {
  const struct vision_config *v = &c->vision;
  int side = v->kind == VISION_SIGLIP   ? m->width
             : v->kind == VISION_MLLAMA ? v->image
                                        : v->patch,
      wide = m->width / side, high = m->height / side;
  *n = (size_t)m->width * (size_t)m->height * 3;
  uint8_t *out = xmalloc(*n), *to = out;
  for (int s = 0; s < wide * high; s++)
    for (int i = 0; i < 3 * side * side; i++) {
      bool planes = v->kind == VISION_MLLAMA;
      int colour = planes ? i / (side * side) : i % 3, at = planes ? i % (side * side) : i / 3;
      int y = s / wide * side + at / side, x = s % wide * side + at % side;
      *to++ = m->pixels[((size_t)y * (size_t)m->width + (size_t)x) * 3 + (size_t)colour];
    }
  return out;
}

/* Per colour over all rows, unused tiles left out. */
static void check_sums(struct prep *p, const char *key, const struct media *m, const float *rows) {
  const struct vision_config *v = &p->c->vision;
  const struct st_tensor *sum = tensor_of(&p->golden, key, ".sum"), *squares = tensor_of(&p->golden, key, ".sumsq");
  int cols = media_cols(p->c, MEDIA_IMAGE), n = m->n_patches, third = cols / 3;
  if (!sum || !squares) return;
  if (v->kind == VISION_MLLAMA) n = n / v->n_tiles * m->tiles_wide * m->tiles_high;
  double got[2][3] = {{0}};
  for (int i = 0; i < n; i++)
    for (int j = 0; j < cols; j++) {
      double x = (double)rows[(size_t)i * (size_t)cols + (size_t)j];
      int colour = v->kind == VISION_GEMMA4 ? j % 3 : j / third;
      got[0][colour] += x;
      got[1][colour] += x * x;
    }
  for (int colour = 0; colour < 3; colour++) {
    double want_sum, want_squares;
    memcpy(&want_sum, (const double *)sum->data + colour, sizeof(double));
    memcpy(&want_squares, (const double *)squares->data + colour, sizeof(double));
    /* of values of size 1: a grey that is 0 but for float32's rounding has no size of its own */
    double values = (double)n * third, gap = fmax(fabs(got[0][colour] - want_sum), fabs(got[1][colour] - want_squares)) / values;
    p->worst_sum = fmax(p->worst_sum, gap);
    if (gap > bound) fail_msg("%s: sums of colour %d are %g away", key, colour, gap);
  }
  p->n_sums++;
}

/* Rows of Gemma 4, every 97th; planes of the others, every 128th (tiles: 112th) line and 7th column. */
static void check_sample(struct prep *p, const char *key, const struct media *m, const float *rows, int row_step) {
  const struct vision_config *v = &p->c->vision;
  const struct st_tensor *want = tensor_of(&p->golden, key, ".sample");
  if (!want) return;
  size_t n = 0, cols = (size_t)media_cols(p->c, MEDIA_IMAGE);
  float *got = xmalloc(count_of(want) * sizeof *got);
  if (v->kind == VISION_GEMMA4 || v->kind == VISION_GEMMA4_BLOCKS) {
    int32_t *place = xmalloc((size_t)want->shape[0] * 2 * sizeof *place);
    for (int i = 0, k = 0; i < m->n_patches; i += row_step, n += cols, k++) {
      assert_true(k < want->shape[0]);
      memcpy(got + n, rows + (size_t)i * cols, cols * sizeof *got);
      media_place(p->c, m, i, &place[2 * k], &place[2 * k + 1]);
    }
    check_ints(&p->golden, key, ".positions", place, (size_t)want->shape[0] * 2, &p->n_ints);
    free(place);
  } else {
    float *planes = planes_of(p->c, m);
    int side = v->image, n_planes = v->kind == VISION_MLLAMA ? 3 * v->n_tiles : 3;
    for (int plane = 0; plane < n_planes; plane++)
      for (int y = 0; y < side; y += row_step)
        for (int x = 0; x < side; x += 7) got[n++] = planes[((size_t)plane * (size_t)side + (size_t)y) * (size_t)side + (size_t)x];
    free(planes);
  }
  assert_int_equal(n, count_of(want));
  double worst = worst_of(got, want->data, n);
  p->worst_sample = fmax(p->worst_sample, worst);
  if (worst > bound) fail_msg("%s.sample is %g away", key, worst);
  p->n_samples++;
  free(got);
}

static void check_levels(struct prep *p, const char *key, const struct media *m) {
  const struct st_tensor *crc = tensor_of(&p->golden, key, ".crc"), *full = tensor_of(&p->golden, key, ".full_u8");
  size_t n;
  uint8_t *levels = levels_of(p->c, m, &n);
  if (crc) {
    int64_t want;
    memcpy(&want, crc->data, sizeof want);
    if ((int64_t)crc32(0, levels, (unsigned)n) != want) fail_msg("%s: 8-bit values differ", key);
    p->n_crc++;
  }
  if (full) {
    assert_int_equal(full->n_bytes, n);
    assert_memory_equal(full->data, levels, n);
    p->n_full++;
  }
  free(levels);
}

static void check_facts(struct prep *p, const char *key, const struct media *m) {
  check_ints(&p->golden, key, ".size", (int32_t[]){m->height, m->width}, 2, &p->n_ints);
  check_ints(&p->golden, key, ".tokens", (int32_t[]){m->n_tokens}, 1, &p->n_ints);
  if (p->c->vision.kind != VISION_MLLAMA) return;
  int used = m->tiles_wide * m->tiles_high;
  check_ints(&p->golden, key, ".ratio_id", (int32_t[]){m->ratio_id}, 1, &p->n_ints);
  check_ints(&p->golden, key, ".tiles", (int32_t[]){used}, 1, &p->n_ints);
  check_ints(&p->golden, key, ".tile_mask", (int32_t[]){1, used > 1, used > 2, used > 3}, 4, &p->n_ints);
}

/* Pictures of a family by the names of its checksums (or samples, where there are none); "~70" is a budget, "~drop" throws transparency
 * away, which we do not. */
static void check_family(const char *family, const char *by, int row_step, int expected) {
  char folder[100], head[60];
  snprintf(folder, sizeof folder, PREP "/%s", family);
  snprintf(head, sizeof head, "%s.", family);
  struct prep p = {.golden = open_golden(PREP), .c = config_of(folder), .family = family};
  int n = 0;
  for (size_t i = 0; i < p.golden.n_tensors; i++) {
    const char *name = p.golden.tensors[i].name, *end = strstr(name, by);
    if (strncmp(name, head, strlen(head)) || !end || end[strlen(by)]) continue;
    char key[100], stem[100], path[600];
    snprintf(key, sizeof key, "%.*s", (int)(end - name), name);
    snprintf(stem, sizeof stem, "%s", key + strlen(head));
    char *variant = strchr(stem, '~');
    int budget = variant ? atoi(variant + 1) : 0;
    if (variant && !budget) continue;
    if (variant) *variant = 0;
    if (!find_file(PREP, stem, path)) fail_msg("no picture %s", stem);
    struct image im = picture_open(&p.golden, path, stem);
    struct media *m = media_of(p.c, &im, budget);
    float *rows = rows_of(p.c, m);
    if (p.c->vision.kind != VISION_GEMMA4_BLOCKS) {
      check_levels(&p, key, m);
      check_sums(&p, key, m, rows);
    }
    check_sample(&p, key, m, rows, row_step);
    check_facts(&p, key, m);
    free(rows);
    media_release(m);
    image_free(&im);
    n++;
  }
  printf("  %-14s %d pictures: %d checksums, %d whole, %d sums (worst %.1g), %d samples (worst %.1g), %d facts\n", family, n, p.n_crc,
         p.n_full, p.n_sums, p.worst_sum, p.n_samples, p.worst_sample, p.n_ints);
  assert_true(n >= expected && p.n_samples > 0);
  safetensors_close(&p.golden);
  free(p.c);
}

static void test_gemma3(void **state) {
  (void)state;
  check_family("gemma3", ".crc", 128, 17);
}
static void test_gemma4(void **state) {
  (void)state;
  check_family("gemma4", ".crc", 97, 21);
}
static void test_gemma4_unified(void **state) {
  (void)state;
  check_family("gemma4_unified", ".sample", 31, 1);
}
static void test_mllama448(void **state) {
  (void)state;
  check_family("mllama448", ".crc", 112, 17);
}
static void test_mllama560(void **state) {
  (void)state;
  check_family("mllama560", ".crc", 112, 17);
}

/* The whole picture, then its crops. */
static void test_crops(void **state) {
  (void)state;
  struct safetensors golden = open_golden(PREP);
  struct model_config *c = config_of(PREP "/gemma3");
  const struct st_tensor *sum = safetensors_find(&golden, "gemma3.strip~crops.sum"),
                         *sample = safetensors_find(&golden, "gemma3.strip~crops.sample");
  char path[600];
  assert_true(sum && sample && find_file(PREP, "strip", path));
  struct image whole = picture_open(&golden, path, "strip");
  struct media_crop crops[4];
  int n = media_crops(whole.width, whole.height, 64, 4, 1.2, crops);
  assert_int_equal(n + 1, sum->shape[0]);
  for (int i = 0; i <= n; i++) {
    struct media_crop r = i ? crops[i - 1] : (struct media_crop){0, 0, whole.width, whole.height};
    struct image im = {.width = r.width, .height = r.height, .rgb = xmalloc((size_t)(r.width * r.height * 3))};
    for (int y = 0; y < r.height; y++)
      memcpy(im.rgb + y * r.width * 3, whole.rgb + ((r.top + y) * whole.width + r.left) * 3, (size_t)r.width * 3);
    struct media *m = media_of(c, &im, 0);
    float *planes = planes_of(c, m);
    for (int colour = 0, side = 896; colour < 3; colour++) {
      double total = 0, want;
      for (int k = 0; k < side * side; k++) total += (double)planes[colour * side * side + k];
      memcpy(&want, (const double *)sum->data + 3 * i + colour, sizeof want);
      assert_true(fabs(total - want) < bound * side * side);
      for (int k = 0; k < 7 * 14; k++) {
        float x = ((const float *)sample->data)[(3 * i + colour) * 7 * 14 + k];
        assert_true(fabsf(planes[(colour * side + k / 14 * 128) * side + k % 14 * 64] - x) < 1e-6f);
      }
    }
    free(planes);
    media_release(m);
    image_free(&im);
  }
  image_free(&whole);
  safetensors_close(&golden);
  free(c);
}

/* ---- tables of sizes and lengths --------------------------------------------------------------------------------------------------- */

static const int32_t *table(const struct safetensors *s, const char *name, int cols, int *n) {
  const struct st_tensor *t = safetensors_find(s, name);
  assert_true(t && t->n_dims == 2 && t->shape[1] == cols && t->shape[0] > 0);
  *n = (int)t->shape[0];
  return t->data;
}

static void test_tables(void **state) {
  (void)state;
  struct safetensors golden = open_golden(PREP);
  struct model_config *gemma4 = config_of(PREP "/gemma4"), *mllama[2] = {config_of(PREP "/mllama448"), config_of(PREP "/mllama560")};
  struct media m;
  struct media_size to;
  struct err e = {0};
  int n_gemma4, n_mllama, n_audio;
  const int32_t *row = table(&golden, "gemma4_sizes", 6, &n_gemma4);
  for (int i = 0; i < n_gemma4; i++, row += 6) { /* -1 where the processor refuses; then we take the smallest size */
    struct media_options o = {.soft_tokens = row[2]};
    assert_int_equal(media_shape(gemma4, row[1], row[0], &o, &m, &to, &e), 0);
    int32_t got[] = {to.height, to.width, m.n_tokens}, smallest[] = {48, 48, 1};
    assert_memory_equal(got, row[5] < 0 ? smallest : row + 3, sizeof got);
  }
  row = table(&golden, "mllama_sizes", 8, &n_mllama);
  for (int i = 0; i < n_mllama; i++, row += 8) {
    struct media_options o = {0};
    assert_int_equal(media_shape(mllama[row[2] == 560], row[1], row[0], &o, &m, &to, &e), 0);
    int32_t got[] = {m.tiles_high, m.tiles_wide, m.ratio_id, to.height, to.width};
    assert_memory_equal(got, row + 3, sizeof got);
  }
  row = table(&golden, "audio_lengths", 4, &n_audio);
  for (int i = 0; i < n_audio; i++, row += 4) {
    int v = media_mel_frames(row[0]);
    int32_t got[] = {row[0], v, div_up(v, 4), div_up(row[0], 640)};
    assert_memory_equal(got, row, sizeof got);
  }
  printf("  %d sizes of Gemma 4, %d of mllama, %d lengths of sound\n", n_gemma4, n_mllama, n_audio);
  safetensors_close(&golden);
  free(gemma4);
  free(mllama[0]);
  free(mllama[1]);
}

/* ---- sound ---------------------------------------------------------------------------------------------------------------------------- */

static void test_mel(void **state) {
  (void)state;
  struct safetensors golden = open_golden(PREP);
  struct model_config *c = config_of(PREP "/gemma4");
  struct err e = {0};
  double worst = 0;
  int n = 0;
  for (size_t i = 0; i < golden.n_tensors; i++) {
    const char *end = strstr(golden.tensors[i].name, ".mono");
    if (!end) continue;
    char key[100];
    snprintf(key, sizeof key, "%.*s", (int)(end - golden.tensors[i].name), golden.tensors[i].name);
    const struct st_tensor *mono = &golden.tensors[i], *mel = tensor_of(&golden, key, ".mel");
    if (!mel) continue;
    struct audio a = {.n_samples = (int)mono->shape[0], .samples = (float *)mono->data};
    struct media *m = media_from_audio(c, &a, 0, a.n_samples, &e);
    assert_non_null(m);
    assert_true(m->n_patches == mel->shape[0] && m->frame_cols == mel->shape[1]);
    worst = fmax(worst, worst_of(m->frames, mel->data, (size_t)(m->n_patches * m->frame_cols)));
    media_release(m);
    n++;
  }
  printf("  %d sounds, worst %.1g\n", n, worst);
  assert_true(n >= 5 && worst < bound);
  safetensors_close(&golden);
  free(c);
}

/* ---- the models' own fixtures: whole inputs, through the written file ------------------------------------------------------------------ */

/* Every golden tensor "image0.NAME" that the written file has, too. */
static void check_written(const struct safetensors *golden, const char *key, const char *path, int *n, double *worst) {
  struct safetensors got;
  struct err e = {0};
  if (safetensors_open(&got, path, &e)) fail_msg("%s", e.msg);
  for (size_t i = 0; i < got.n_tensors; i++) {
    const struct st_tensor *g = &got.tensors[i], *want = tensor_of(golden, key, g->name);
    if (!want) continue;
    if (g->dtype != want->dtype || g->n_dims != want->n_dims || memcmp(g->shape, want->shape, (size_t)g->n_dims * sizeof *g->shape))
      fail_msg("%s%s: another shape or type", key, g->name);
    if (g->dtype == DTYPE_F32) {
      double gap = worst_of(g->data, want->data, count_of(g));
      *worst = fmax(*worst, gap);
      if (gap > bound) fail_msg("%s%s is %g away", key, g->name, gap);
    } else assert_memory_equal(g->data, want->data, g->n_bytes);
    ++*n;
  }
  safetensors_close(&got);
}

/* with_mmproj: the encoder's part of the configuration comes from a GGUF beside the model. */
static void check_model(const char *name, bool with_mmproj, int expected) {
  char folder[100], path[600];
  struct err e = {0};
  snprintf(folder, sizeof folder, "golden/%s", name);
  snprintf(path, sizeof path, "%s/cases.json", folder);
  struct safetensors golden = open_golden(folder);
  struct model_config *c = config_of(folder);
  char *text = test_read(test_path(path), NULL);
  struct weights *mmproj = NULL;
  if (with_mmproj) {
    memset(&c->vision, 0, sizeof c->vision);
    memset(&c->audio, 0, sizeof c->audio);
    snprintf(path, sizeof path, "%s/mmproj.gguf", folder);
    if (!(mmproj = weights_open_mmproj(test_path(path), c, &e))) fail_msg("%s", e.msg);
  }
  /* the fixtures' budget, which these files do not carry */
  const struct media_options options = {.soft_tokens = with_mmproj && c->vision.kind != VISION_SIGLIP ? 70 : 0};
  double worst = 0;
  int n = 0;
  for (int kind = 0; kind < 2; kind++) { /* "pictures": ["a.rgb.png", ...], "sounds": [...]: their order is the number */
    char *at = strstr(text, kind ? "\"sounds\"" : "\"pictures\""), *end = at ? strchr(at, ']') : NULL;
    if (!at) continue;
    at = strchr(at, '[');
    for (int k = 0; (at = strchr(at, '"')) && at < end; k++) {
      char *close = strchr(at + 1, '"'), file[200], key[40], out[200];
      snprintf(file, sizeof file, "%s/%.*s", folder, (int)(close - at - 1), at + 1);
      at = close + 1;
      if (strstr(file, ".jpg")) continue; /* decoders differ by a level or two */
      size_t n_bytes;
      char *bytes = test_read(test_path(file), &n_bytes);
      struct image im = {0};
      struct audio a = {0};
      if (kind ? audio_decode(bytes, n_bytes, 0, &a, &e) : image_decode(bytes, n_bytes, 0, &im, &e)) fail_msg("%s: %s", file, e.msg);
      struct media *m = kind ? media_from_audio(c, &a, 0, a.n_samples, &e) : media_from_image(c, &im, &options, &e);
      if (!m) fail_msg("%s: %s", file, e.msg);
      snprintf(key, sizeof key, "%s%d.", kind ? "sound" : "image", k);
      snprintf(out, sizeof out, "%s%s.safetensors", key, name);
      const char *written = test_write(out, "", 0);
      if (media_write(c, (const struct media *[]){m}, 1, written, &e)) fail_msg("%s", e.msg);
      check_written(&golden, key, written, &n, &worst);
      media_release(m);
      image_free(&im);
      audio_free(&a);
      free(bytes);
    }
  }
  printf("  %-18s %d tensors, worst %.1g%s\n", name, n, worst, with_mmproj ? ", by its mmproj" : "");
  assert_true(n >= expected);
  weights_close(mmproj);
  free(text);
  free(c);
  safetensors_close(&golden);
}

static void test_models(void **state) {
  (void)state;
  check_model("media-gemma3", false, 1);
  check_model("media-gemma4-e2b", false, 4);
  check_model("media-gemma4-31b", false, 2);
  check_model("media-gemma4-26b", false, 2);
  check_model("media-gemma4-12b", false, 4);
  check_model("media-mllama", false, 4);
  check_model("media-mllama-long", false, 1);
}

static void test_mmproj(void **state) {
  (void)state;
  check_model("media-gemma3", true, 1);
  check_model("media-gemma4-e2b", true, 4);
  check_model("media-gemma4-12b", true, 4);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_gemma3),    cmocka_unit_test(test_gemma4),    cmocka_unit_test(test_gemma4_unified),
    cmocka_unit_test(test_mllama448), cmocka_unit_test(test_mllama560), cmocka_unit_test(test_crops),
    cmocka_unit_test(test_tables),    cmocka_unit_test(test_mel),       cmocka_unit_test(test_models),
    cmocka_unit_test(test_mmproj),
};
TEST_MAIN(tests)
