/* t_media.c — sizes, the resizer, what a medium is and how long it lives, without fixtures: slow twins written from the formulas.
 * What released processors made of real files is in t_media_golden.c.
 */
#include "test.h"

#include "models/media_golden.h"

/* ---- resizing against the formula --------------------------------------------------------------------------------------------- */

static double kernel(double x, bool cubic) {
  double a = -0.5;
  x = fabs(x);
  if (!cubic) return x < 1 ? 1 - x : 0;
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a : 0;
}

/* One axis of [n_in] with a stride, in 64-bit integers. */
static void twin_axis(const uint8_t *from, size_t stride, int n_in, uint8_t *to, size_t to_stride, int n_out, bool cubic) {
  double scale = (double)n_in / n_out, wide = fmax(scale, 1), reach = (cubic ? 2 : 1) * wide;
  for (int o = 0; o < n_out; o++) {
    double centre = (o + 0.5) * scale, sum = 0;
    int lo = (int)fmax(trunc(centre - reach + 0.5), 0), hi = (int)fmin(trunc(centre + reach + 0.5), n_in);
    for (int i = lo; i < hi; i++) sum += kernel((i - centre + 0.5) / wide, cubic);
    int64_t total = 1 << 21;
    for (int i = lo; i < hi; i++) {
      double q = kernel((i - centre + 0.5) / wide, cubic) / sum * 4194304;
      total += (int64_t)round(q) * from[(size_t)i * stride];
    }
    total >>= 22;
    to[(size_t)o * to_stride] = (uint8_t)(total < 0 ? 0 : total > 255 ? 255 : total);
  }
}

static uint8_t *twin_resize(const uint8_t *from, int w, int h, int ch, int to_w, int to_h, bool cubic) {
  uint8_t *narrow = xmalloc((size_t)(to_w * h * ch)), *out = xmalloc((size_t)(to_w * to_h * ch));
  for (int y = 0; y < h; y++)
    for (int c = 0; c < ch; c++) {
      if (w != to_w) twin_axis(from + y * w * ch + c, (size_t)ch, w, narrow + y * to_w * ch + c, (size_t)ch, to_w, cubic);
      else
        for (int x = 0; x < w; x++) narrow[(y * w + x) * ch + c] = from[(y * w + x) * ch + c];
    }
  for (int x = 0; x < to_w * ch; x++) {
    if (h != to_h) twin_axis(narrow + x, (size_t)(to_w * ch), h, out + x, (size_t)(to_w * ch), to_h, cubic);
    else
      for (int y = 0; y < h; y++) out[y * to_w * ch + x] = narrow[y * to_w * ch + x];
  }
  free(narrow);
  return out;
}

static void test_resize_twin(void **state) {
  (void)state;
  uint64_t rng = 11;
  int n_cases = 6000;
  for (int i = 0; i < n_cases; i++) {
    int most = i % 40 ? 24 : 150;
    int w = test_rand_int(&rng, 1, most), h = test_rand_int(&rng, 1, most), ch = test_rand_int(&rng, 1, 4);
    int to_w = i % 5 ? test_rand_int(&rng, 1, most) : w, to_h = i % 7 ? test_rand_int(&rng, 1, most) : h;
    bool cubic = i & 1;
    size_t n = (size_t)(w * h * ch), to_n = (size_t)(to_w * to_h * ch);
    uint8_t *from = test_guard_alloc(n);
    for (size_t k = 0; k < n; k++) from[k] = (uint8_t)(i % 3 == 2 ? (test_rand(&rng) & 1 ? 255 : 0) : test_rand(&rng));
    uint8_t *want = twin_resize(from, w, h, ch, to_w, to_h, cubic);
    uint8_t *got = media_resize(from, w, h, ch, to_w, to_h, cubic ? MEDIA_BICUBIC : MEDIA_BILINEAR);
    for (size_t k = 0; k < to_n; k++)
      if (got[k] != want[k]) fail_msg("%dx%d to %dx%d, byte %zu: %d, expected %d", w, h, to_w, to_h, k, got[k], want[k]);
    free(got);
    free(want);
    test_guard_free(from, n);
  }
}

static void test_resize_examples(void **state) {
  (void)state;
  static const uint8_t bicubic_2x3[] = {85, 150, 144, 147, 89, 125}, bilinear_2x3[] = {91, 144, 144, 140, 97, 124},
                       bicubic_4x4[] = {23, 85, 165, 195, 98, 177, 167, 96, 181, 114, 62, 101, 158, 45, 120, 187};
  uint8_t from[5 * 7];
  for (int y = 0; y < 5; y++)
    for (int x = 0; x < 7; x++) from[y * 7 + x] = (uint8_t)(37 * x + 61 * y);
  const struct {
    int w, h;
    enum media_filter filter;
    const uint8_t *want;
  } cases[] = {{3, 2, MEDIA_BICUBIC, bicubic_2x3}, {3, 2, MEDIA_BILINEAR, bilinear_2x3}, {4, 4, MEDIA_BICUBIC, bicubic_4x4}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    uint8_t *got = media_resize(from, 7, 5, 1, cases[i].w, cases[i].h, cases[i].filter);
    assert_memory_equal(got, cases[i].want, (size_t)(cases[i].w * cases[i].h));
    free(got);
  }
}

/* No sum leaves int32, whatever the lengths: the greatest possible one is that of pixels which are 255 where weights are positive. */
static void test_resize_extremes(void **state) {
  (void)state;
  uint64_t rng = 5;
  double greatest = 0;
  for (int i = 0; i < 3000; i++) {
    int n_in = test_rand_int(&rng, 1, i % 10 ? 60 : 3000), n_out = test_rand_int(&rng, 1, i % 10 ? 60 : 300);
    double scale = (double)n_in / n_out, wide = fmax(scale, 1), reach = 2 * wide;
    for (int o = 0; o < n_out; o++) {
      double centre = (o + 0.5) * scale, sum = 0, absolute = 0;
      int lo = (int)fmax(trunc(centre - reach + 0.5), 0), hi = (int)fmin(trunc(centre + reach + 0.5), n_in);
      for (int k = lo; k < hi; k++) {
        double w = kernel((k - centre + 0.5) / wide, true);
        sum += w;
        absolute += fabs(w);
      }
      greatest = fmax(greatest, absolute / sum);
    }
  }
  printf("  greatest sum of absolute weights %.4f\n", greatest);
  assert_true(greatest < 1.5 && 255 * 1.5 * 4194304 < 2147483647.0 - (1 << 21));
}

static void test_resize_no_memory(void **state) {
  (void)state;
  uint8_t from[5 * 4 * 3] = {1};
  int n_failed = 0;
  for (int at = 1;; at++) {
    mem_fail_after(at);
    uint8_t *out = media_resize(from, 5, 4, 3, 9, 7, MEDIA_BICUBIC);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    free(out);
    if (pending) break;
    assert_null(out);
    n_failed++;
  }
  assert_true(n_failed >= 10);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------ */

static int shape(const struct model_config *c, int w, int h, int budget, struct media *m, struct media_size *to, struct err *e) {
  struct media_options o = {.soft_tokens = budget};
  memset(m, 0, sizeof *m);
  return media_shape(c, w, h, &o, m, to, e);
}

static void test_gemma4_sizes(void **state) {
  (void)state;
  static const int budgets[] = {70, 140, 280, 560, 1120};
  static const struct {
    int h, w, th[5], tw[5], tokens[5];
  } cases[] = {
      {512, 512, {384, 528, 768, 1104, 1584}, {384, 528, 768, 1104, 1584}, {64, 121, 256, 529, 1089}},
      {480, 640, {336, 480, 672, 960, 1344}, {432, 624, 912, 1296, 1824}, {63, 130, 266, 540, 1064}},
      {1080, 1920, {288, 384, 576, 816, 1200}, {528, 720, 1056, 1488, 2112}, {66, 120, 264, 527, 1100}},
      {1920, 1080, {528, 720, 1056, 1488, 2112}, {288, 384, 576, 816, 1200}, {66, 120, 264, 527, 1100}},
      {100, 75, {432, 624, 912, 1296, 1824}, {336, 480, 672, 960, 1344}, {63, 130, 266, 540, 1064}},
      {16, 4000, {48, 48, 48, 48, 96}, {3360, 6720, 12672, 17952, 25392}, {70, 140, 264, 374, 1058}},
      {3, 10000, {48, 48, 48, 48, 48}, {3360, 6720, 13440, 26880, 53760}, {70, 140, 280, 560, 1120}},
      {1, 3000, {48, 48, 48, 48, 48}, {3360, 6720, 13440, 26880, 53760}, {70, 140, 280, 560, 1120}},
      {8000, 8000, {384, 528, 768, 1104, 1584}, {384, 528, 768, 1104, 1584}, {64, 121, 256, 529, 1089}},
      {1, 1, {384, 528, 768, 1104, 1584}, {384, 528, 768, 1104, 1584}, {64, 121, 256, 529, 1089}},
  };
  struct model_config *c = config_gemma4(VISION_GEMMA4, 16, 10240, 280), *blocks = config_gemma4(VISION_GEMMA4_BLOCKS, 16, 1120, 280);
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    for (int b = 0; b < 5; b++) {
      struct media m, of_blocks;
      struct media_size to, blocks_to;
      struct err e = {0};
      assert_int_equal(shape(c, cases[i].w, cases[i].h, budgets[b], &m, &to, &e), 0);
      assert_int_equal(to.width, cases[i].tw[b]);
      assert_int_equal(to.height, cases[i].th[b]);
      assert_int_equal(m.n_tokens, cases[i].tokens[b]);
      assert_int_equal(m.n_rows, m.n_tokens);
      assert_int_equal(m.n_patches, 9 * m.n_tokens);
      assert_int_equal(shape(blocks, cases[i].w, cases[i].h, budgets[b], &of_blocks, &blocks_to, &e), 0);
      assert_memory_equal(&to, &blocks_to, sizeof to);
      assert_int_equal(of_blocks.n_patches, m.n_tokens);
    }
  free(blocks);
  free(c);
}

/* Any shape has 1 .. budget rows, and its size is a whole number of groups; the bounds for planning are met and never passed. */
static void test_gemma4_all_shapes(void **state) {
  (void)state;
  static const int budgets[] = {0, 70, 140, 280, 560, 1120};
  struct model_config *c = config_gemma4(VISION_GEMMA4, 16, 10240, 280);
  uint64_t rng = 3;
  int most = 0, n = 0;
  for (int i = 0; i < 200000; i++) {
    int top = i % 3 ? 300 : 65535, w = test_rand_int(&rng, 1, top), h = test_rand_int(&rng, 1, i % 7 ? top : 4), budget = budgets[i % 6];
    struct media m;
    struct media_size to;
    struct err e = {0};
    if (i < 40) w = 1120 * (1 + i / 8), h = 1 + i % 8;
    assert_int_equal(shape(c, w, h, budget, &m, &to, &e), 0);
    assert_true(to.width % 48 == 0 && to.height % 48 == 0 && to.width > 0 && to.height > 0);
    assert_true(m.n_tokens >= 1 && m.n_tokens <= (budget ? budget : 280));
    assert_int_equal(m.n_tokens, to.width / 48 * (to.height / 48));
    most = MAX(most, m.n_tokens);
    n++;
  }
  assert_int_equal(most, media_tokens_max(c, MEDIA_IMAGE));
  assert_int_equal(most, media_rows_max(c, MEDIA_FRAME));
  assert_int_equal(9 * most, media_patches_max(c, MEDIA_IMAGE));
  printf("  %d shapes, at most %d rows\n", n, most);
  free(c);
}

static void test_mllama_sizes(void **state) {
  (void)state;
  static const struct {
    int h, w;
    struct {
      int high, wide, id, h, w;
    } of[2]; /* tiles of 560, of 448 */
  } cases[] = {
      {100, 100, {{1, 1, 1, 560, 560}, {1, 1, 1, 448, 448}}},     {480, 640, {{1, 2, 2, 480, 640}, {2, 2, 6, 480, 640}}},
      {640, 480, {{2, 1, 5, 640, 480}, {2, 2, 6, 640, 480}}},     {1080, 1920, {{2, 2, 6, 630, 1120}, {2, 2, 6, 504, 896}}},
      {300, 3000, {{1, 4, 4, 224, 2240}, {1, 4, 4, 179, 1792}}},  {3000, 300, {{4, 1, 8, 2240, 224}, {4, 1, 8, 1792, 179}}},
      {10, 4000, {{1, 4, 4, 5, 2240}, {1, 4, 4, 4, 1792}}},       {561, 560, {{2, 1, 5, 561, 560}, {2, 2, 6, 561, 560}}},
      {560, 2241, {{1, 4, 4, 559, 2240}, {1, 4, 4, 447, 1792}}},  {100, 600, {{1, 2, 2, 100, 600}, {1, 2, 2, 100, 600}}},
      {2000, 2000, {{2, 2, 6, 1120, 1120}, {2, 2, 6, 896, 896}}}, {600, 1200, {{1, 2, 2, 560, 1120}, {1, 2, 2, 448, 896}}},
      {500, 1600, {{1, 3, 3, 500, 1600}, {1, 4, 4, 448, 1433}}},  {1600, 500, {{3, 1, 7, 1600, 500}, {4, 1, 8, 1433, 448}}},
      {400, 1300, {{1, 3, 3, 400, 1300}, {1, 3, 3, 400, 1300}}},
  };
  struct model_config *c[2] = {config_mllama(560, 14), config_mllama(448, 14)};
  int rows[2] = {1601, 1025};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    for (int t = 0; t < 2; t++) {
      struct media m;
      struct media_size to;
      struct err e = {0};
      assert_int_equal(shape(c[t], cases[i].w, cases[i].h, 0, &m, &to, &e), 0);
      int want[] = {cases[i].of[t].high, cases[i].of[t].wide, cases[i].of[t].id, cases[i].of[t].h, cases[i].of[t].w};
      int got[] = {m.tiles_high, m.tiles_wide, m.ratio_id, to.height, to.width};
      assert_memory_equal(got, want, sizeof want);
      assert_int_equal(m.n_tokens, 1);
      assert_int_equal(m.n_rows, m.tiles_high * m.tiles_wide * rows[t]);
      assert_int_equal(m.n_patches, 4 * (rows[t] - 1));
      assert_int_equal(m.width, m.tiles_wide * c[t]->vision.image);
    }
  for (int t = 0; t < 2; t++) {
    assert_int_equal(media_rows_max(c[t], MEDIA_IMAGE), 4 * rows[t]);
    assert_int_equal(media_tokens_max(c[t], MEDIA_IMAGE), 1);
    assert_int_equal(media_patches_max(c[t], MEDIA_IMAGE), 4 * (rows[t] - 1));
    assert_int_equal(media_tokens_max(c[t], MEDIA_AUDIO) + media_tokens_max(c[t], MEDIA_FRAME), 0);
    free(c[t]);
  }
}

static void test_sound_lengths(void **state) {
  (void)state;
  static const int cases[][4] = {
      /* samples, frames, rows, rows of 12B */
      {0, 0, 0, 0},        {1, 0, 0, 1},          {160, 0, 0, 1},           {161, 1, 1, 1},          {321, 2, 1, 1},
      {640, 3, 1, 1},      {641, 4, 1, 2},        {800, 4, 1, 2},           {801, 5, 2, 2},          {1600, 9, 3, 3},
      {16000, 99, 25, 25}, {63520, 396, 99, 100}, {479999, 2999, 750, 750}, {480000, 2999, 750, 750}};
  struct model_config *tower = config_gemma4(VISION_GEMMA4, 16, 10240, 280), *plain = config_gemma4(VISION_GEMMA4_BLOCKS, 16, 1120, 280);
  struct audio a = {.n_samples = 480001, .samples = xcalloc(480001, sizeof(float))};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    for (int k = 0; k < 2; k++) {
      struct err e = {0};
      struct media *m = media_from_audio(k ? plain : tower, &a, 1, cases[i][0], &e);
      int want = cases[i][2 + k];
      assert_int_equal(m ? m->n_tokens : 0, want);
      if (!m) assert_non_null(strstr(e.msg, "too short"));
      else {
        assert_int_equal(m->n_patches, k ? want : cases[i][1]);
        assert_int_equal(m->n_rows, m->n_tokens);
        assert_true(m->n_patches <= media_patches_max(k ? plain : tower, MEDIA_AUDIO) && fabs(m->seconds - 480001 / 16000.0) < 1e-9);
      }
      media_release(m);
    }
  for (int k = 0; k < 2; k++) {
    struct err e = {0};
    assert_null(media_from_audio(k ? plain : tower, &a, 0, 480001, &e));
    assert_non_null(strstr(e.msg, "30.00 seconds"));
    assert_int_equal(media_tokens_max(k ? plain : tower, MEDIA_AUDIO), 750);
    assert_int_equal(media_seconds_max(k ? plain : tower), 30);
  }
  audio_free(&a);
  free(tower);
  free(plain);
}

/* Silence is ln(0.001) everywhere; a tone is loud where it is; a part of a sound is what it would be alone. */
static void test_mel(void **state) {
  (void)state;
  struct model_config *c = config_gemma4(VISION_GEMMA4, 16, 10240, 280);
  struct err e = {0};
  struct audio a = {.n_samples = 5000, .samples = xcalloc(5000, sizeof(float))};
  struct media *m = media_from_audio(c, &a, 0, 5000, &e);
  for (int i = 0; i < m->n_patches * 128; i++) assert_true(fabs((double)m->frames[i] - log(0.001)) < 1e-6);
  media_release(m);
  for (int n = 0; n < 5000; n++) a.samples[n] = (float)sin(2 * acos(-1) * 1000 * n / 16000);
  m = media_from_audio(c, &a, 0, 1600, &e);
  const struct {
    int frame, band;
    double value;
  } known[] = {{0, 40, 2.311181}, {1, 40, 0.117814}, {1, 41, 0.688821}, {4, 42, 2.626794}, {4, 127, -6.874090}, {4, 44, 4.323617}};
  assert_int_equal(m->n_patches, 9);
  for (size_t i = 0; i < ARRAY_LEN(known); i++)
    assert_true(fabs((double)m->frames[known[i].frame * 128 + known[i].band] - known[i].value) < 2e-6);
  struct audio part = {.n_samples = 1000, .samples = a.samples + 700};
  struct media *cut = media_from_audio(c, &a, 700, 1000, &e), *alone = media_from_audio(c, &part, 0, 1000, &e);
  assert_memory_equal(cut->digest, alone->digest, 32);
  assert_memory_equal(cut->frames, alone->frames, (size_t)(cut->n_patches * 128) * sizeof(float));
  assert_memory_not_equal(cut->digest, m->digest, 32);
  media_release(cut);
  media_release(alone);
  media_release(m);
  audio_free(&a);
  free(c);
}

/* ---- what a medium is ----------------------------------------------------------------------------------------------------------- */

static struct image noise(int w, int h, uint64_t seed) {
  struct image im = {.width = w, .height = h, .rgb = xmalloc((size_t)(w * h * 3))};
  for (int i = 0; i < w * h * 3; i++) im.rgb[i] = (uint8_t)test_rand(&seed);
  return im;
}

static void test_digest(void **state) {
  (void)state;
  struct model_config *families[] = {config_siglip(24, 4, 9), config_gemma4(VISION_GEMMA4, 4, 256, 70),
                                     config_gemma4(VISION_GEMMA4_BLOCKS, 4, 80, 70), config_mllama(28, 14)};
  for (size_t f = 0; f < ARRAY_LEN(families); f++) {
    struct model_config *c = families[f];
    struct media_size to;
    struct media want;
    struct err e = {0};
    assert_int_equal(shape(c, 40, 30, 0, &want, &to, &e), 0);
    struct image im = noise(to.width, to.height, 4); /* every pixel stays as it is */
    struct media *m = media_of(c, &im, 0), *again = media_of(c, &im, 0);
    assert_memory_equal(m->digest, again->digest, 32);
    media_release(again);
    for (int i = 0; i < im.width * im.height * 3; i += 1 + im.width * im.height * 3 / 60) {
      im.rgb[i] ^= 1;
      struct media *other = media_of(c, &im, 0);
      assert_memory_not_equal(m->digest, other->digest, 32);
      media_release(other);
      im.rgb[i] ^= 1;
    }
    media_release(m);
    image_free(&im);
    free(c);
  }
  /* the same bytes in another shape */
  struct model_config *c = config_gemma4(VISION_GEMMA4, 4, 256, 70);
  struct image wide = {.width = 120, .height = 84, .rgb = xcalloc(120 * 84, 3)}, high = {.width = 84, .height = 120, .rgb = wide.rgb};
  struct media *a = media_of(c, &wide, 0), *b = media_of(c, &high, 0);
  assert_int_equal(a->width * a->height, b->width * b->height);
  assert_memory_not_equal(a->digest, b->digest, 32);
  media_release(a);
  media_release(b);
  /* a frame of a video gives the rows of the same picture */
  struct err e = {0};
  struct media *frame = media_from_image(c, &wide, &(struct media_options){.frame = true}, &e), *picture = media_of(c, &wide, 70);
  assert_int_equal(frame->kind, MEDIA_FRAME);
  assert_memory_equal(frame->digest, picture->digest, 32);
  media_release(frame);
  media_release(picture);
  image_free(&wide);
  free(c);
}

/* Rows asked for in pieces, from buffers that end where they must, are those asked for at once. */
static void test_patches_in_pieces(void **state) {
  (void)state;
  struct model_config *families[] = {config_siglip(24, 4, 9), config_gemma4(VISION_GEMMA4, 4, 256, 70),
                                     config_gemma4(VISION_GEMMA4_BLOCKS, 4, 80, 70), config_mllama(28, 14)};
  uint64_t rng = 8;
  for (size_t f = 0; f < ARRAY_LEN(families); f++) {
    struct model_config *c = families[f];
    struct image im = noise(61, 25, f);
    struct media *m = media_of(c, &im, 0);
    int cols = media_cols(c, MEDIA_IMAGE);
    float *all = rows_of(c, m);
    for (int at = 0, n; at < m->n_patches; at += n) {
      n = test_rand_int(&rng, 1, 9);
      n = MIN(n, m->n_patches - at);
      size_t n_bytes = (size_t)(n * cols) * sizeof(float);
      float *some = test_guard_alloc(n_bytes);
      media_patches(c, m, at, n, some);
      assert_memory_equal(some, all + at * cols, n_bytes);
      test_guard_free(some, n_bytes);
    }
    int used = c->vision.kind == VISION_MLLAMA ? m->tiles_wide * m->tiles_high * 4 : m->n_patches; /* 4 patches a tile */
    for (int i = used * cols; i < m->n_patches * cols; i++) assert_true(all[i] == 0);
    if (c->vision.kind == VISION_MLLAMA) assert_true(used < m->n_patches);
    free(all);
    media_release(m);
    image_free(&im);
    free(c);
  }
}

/* Every pixel of a Gemma 4 picture is where its patch's place says. */
static void test_places(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    struct model_config *c = config_gemma4(k ? VISION_GEMMA4_BLOCKS : VISION_GEMMA4, 4, k ? 80 : 256, 70);
    struct image im = noise(50, 20, 2);
    struct media *m = media_of(c, &im, 0);
    int side = k ? 12 : 4, cols = media_cols(c, MEDIA_IMAGE);
    assert_int_equal(cols, 3 * side * side);
    float *rows = rows_of(c, m);
    for (int i = 0; i < m->n_patches; i++) {
      int px, py;
      media_place(c, m, i, &px, &py);
      for (int j = 0; j < cols; j++) {
        int y = py * side + j / (3 * side), x = px * side + j / 3 % side;
        assert_true(rows[i * cols + j] == (float)(m->pixels[(y * m->width + x) * 3 + j % 3] / 255.0));
      }
    }
    free(rows);
    media_release(m);
    image_free(&im);
    free(c);
  }
}

/* What is written are the values of the rows, as whole squares. */
static void test_written(void **state) {
  (void)state;
  struct model_config *families[] = {config_siglip(24, 4, 9), config_mllama(28, 14)};
  for (size_t f = 0; f < ARRAY_LEN(families); f++) {
    const struct model_config *c = families[f];
    struct image im = noise(61, 25, f), second = noise(9, 30, f);
    struct media *m[2] = {media_of(c, &im, 0), media_of(c, &second, 0)};
    int n = f ? 1 : 2;
    struct err e = {0};
    struct safetensors s;
    const char *path = test_write("m.safetensors", "", 0);
    assert_int_equal(media_write(c, (const struct media *const *)m, n, path, &e), 0);
    assert_int_equal(safetensors_open(&s, path, &e), 0);
    const struct st_tensor *values = safetensors_find(&s, "pixel_values"), *tokens = safetensors_find(&s, "tokens");
    assert_true(values && values->n_dims == 4 && values->shape[0] == (f ? 4 : 2) && tokens->shape[0] == n);
    for (int i = 0; i < n; i++) {
      float *want = planes_of(c, m[i]);
      size_t n_bytes = values->n_bytes / (size_t)n;
      assert_memory_equal((const char *)values->data + (size_t)i * n_bytes, want, n_bytes);
      free(want);
    }
    if (f) {
      const int32_t *mask = safetensors_find(&s, "tile_mask")->data, three[4] = {1, 1, 1, 0};
      assert_memory_equal(mask, three, sizeof three);
      assert_int_equal(*(const int32_t *)safetensors_find(&s, "ratio_id")->data, 3);
    }
    safetensors_close(&s);
    int n_failed = 0;
    for (int at = 1;; at++) {
      mem_fail_after(at);
      int rc = media_write(c, (const struct media *const *)m, n, path, &e);
      bool pending = mem_fail_pending();
      mem_fail_after(0);
      if (pending) break;
      assert_int_equal(rc, -1);
      n_failed++;
    }
    assert_true(n_failed >= 2);
    for (int i = 0; i < 2; i++) media_release(m[i]);
    image_free(&im);
    image_free(&second);
    free(families[f]);
  }
}

static void test_refusals(void **state) {
  (void)state;
  struct image im = noise(300, 2, 1), empty = {0};
  struct model_config *none = config_new(), *siglip = config_siglip(24, 4, 9), *gemma = config_gemma4(VISION_GEMMA4, 4, 256, 70);
  struct media_options frame = {.frame = true}, budget = {.soft_tokens = 71}, large = {.soft_tokens = 1120};
  const struct {
    const struct model_config *c;
    const struct image *im;
    const struct media_options *o;
    const char *says;
  } cases[] = {{none, &im, NULL, "takes none"},        {gemma, &empty, NULL, "found 0 x 0"}, {gemma, &im, &budget, "found 71"},
               {gemma, &im, &large, "places for 256"}, {siglip, &im, &frame, "video"},       {siglip, &im, &large, "found 1120"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct err e = {0};
    assert_null(media_from_image(cases[i].c, cases[i].im, cases[i].o, &e));
    if (!strstr(e.msg, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", e.msg, cases[i].says);
    assert_int_equal(err_http_status(e.code), 400);
  }
  struct err e = {0};
  struct audio a = {.n_samples = 10, .samples = (float[10]){0}};
  assert_null(media_from_audio(siglip, &a, 0, 10, &e));
  assert_int_equal(media_cols(none, MEDIA_IMAGE) + media_cols(none, MEDIA_AUDIO) + media_rows_max(none, MEDIA_IMAGE), 0);
  free(none);
  free(siglip);
  free(gemma);
  image_free(&im);
}

static void test_no_memory(void **state) {
  (void)state;
  struct model_config *c = config_mllama(28, 14), *g = config_gemma4(VISION_GEMMA4, 4, 256, 70);
  struct image im = noise(300, 10, 1);
  struct audio a = {.n_samples = 400, .samples = xcalloc(400, sizeof(float))};
  int n_failed = 0;
  for (int kind = 0; kind < 2; kind++)
    for (int at = 1;; at++) {
      struct err e = {0};
      mem_fail_after(at);
      struct media *m = kind ? media_from_audio(g, &a, 0, 400, &e) : media_from_image(c, &im, NULL, &e);
      bool pending = mem_fail_pending();
      mem_fail_after(0);
      media_release(m);
      if (pending) break;
      assert_null(m);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      n_failed++;
    }
  assert_true(n_failed >= 12);
  audio_free(&a);
  image_free(&im);
  free(c);
  free(g);
}

static void test_counted(void **state) {
  (void)state;
  struct model_config *c = config_siglip(24, 4, 9);
  struct image im = noise(5, 5, 1);
  struct media *m = media_of(c, &im, 0);
  media_retain(m);
  media_release(m);
  assert_int_equal(m->refs, 1);
  assert_int_equal(m->n_tokens, 9);
  media_release(m);
  media_release(NULL);
  image_free(&im);
  free(c);
}

/* ---- crops ------------------------------------------------------------------------------------------------------------------ */

static void test_crops(void **state) {
  (void)state;
  static const struct {
    int w, h, min, n, each;
  } cases[] = {{1000, 1000, 256, 0, 0},  {1200, 1000, 256, 2, 600}, {1199, 1000, 256, 0, 0}, {1000, 300, 256, 3, 334},
               {300, 1000, 256, 3, 334}, {900, 100, 64, 4, 225},    {900, 100, 256, 0, 0},   {2500, 1000, 256, 3, 834},
               {511, 300, 256, 2, 256},  {509, 300, 256, 0, 0}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct media_crop crops[4];
    int n = media_crops(cases[i].w, cases[i].h, cases[i].min, 4, 1.2, crops), covered = 0;
    assert_int_equal(n, cases[i].n);
    for (int k = 0; k < n; k++) {
      bool wide = cases[i].w >= cases[i].h;
      assert_int_equal(wide ? crops[k].left : crops[k].top, covered);
      assert_int_equal(wide ? crops[k].height : crops[k].width, wide ? cases[i].h : cases[i].w);
      if (k + 1 < n) assert_int_equal(wide ? crops[k].width : crops[k].height, cases[i].each);
      covered += wide ? crops[k].width : crops[k].height;
    }
    if (n) assert_int_equal(covered, MAX(cases[i].w, cases[i].h));
  }
  uint64_t rng = 1;
  for (int i = 0; i < 20000; i++) { /* never outside, never empty */
    struct media_crop crops[4];
    int w = test_rand_int(&rng, 1, 300), h = test_rand_int(&rng, 1, 300), n = media_crops(w, h, test_rand_int(&rng, 1, 50), 4, 1.2, crops);
    assert_true(n >= 0 && n <= 4);
    for (int k = 0; k < n; k++)
      assert_true(crops[k].left >= 0 && crops[k].top >= 0 && crops[k].width > 0 && crops[k].height > 0 &&
                  crops[k].left + crops[k].width <= w && crops[k].top + crops[k].height <= h);
  }
}

/* ---- time and size at the extremes ------------------------------------------------------------------------------------------- */

static void test_strange_sizes(void **state) {
  (void)state;
  static const int sizes[][2] = {{1, 1}, {1, 3000}, {3000, 1}, {47, 47}, {48, 48}, {49, 49}, {400, 800}, {2, 65535}, {65535, 2}};
  struct model_config *families[] = {config_siglip(896, 14, 256), config_gemma4(VISION_GEMMA4, 16, 10240, 280), config_mllama(560, 14)};
  for (size_t f = 0; f < ARRAY_LEN(families); f++)
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
      struct image im = {.width = sizes[i][0], .height = sizes[i][1], .rgb = xmalloc((size_t)(sizes[i][0] * sizes[i][1] * 3))};
      memset(im.rgb, 77, (size_t)(im.width * im.height * 3));
      struct media *m = media_of(families[f], &im, 0);
      for (int p = 0, n = m->width * m->height * 3; p < n; p += 1 + n / 5000) /* one colour stays that colour */
        assert_true(m->pixels[p] == 77 || (families[f]->vision.kind == VISION_MLLAMA && m->pixels[p] == 0));
      media_release(m);
      image_free(&im);
    }
  for (size_t f = 0; f < ARRAY_LEN(families); f++) free(families[f]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_resize_twin),
    cmocka_unit_test(test_resize_examples),
    cmocka_unit_test(test_resize_extremes),
    cmocka_unit_test(test_resize_no_memory),
    cmocka_unit_test(test_gemma4_sizes),
    cmocka_unit_test(test_gemma4_all_shapes),
    cmocka_unit_test(test_mllama_sizes),
    cmocka_unit_test(test_sound_lengths),
    cmocka_unit_test(test_mel),
    cmocka_unit_test(test_digest),
    cmocka_unit_test(test_patches_in_pieces),
    cmocka_unit_test(test_places),
    cmocka_unit_test(test_written),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_no_memory),
    cmocka_unit_test(test_counted),
    cmocka_unit_test(test_crops),
    cmocka_unit_test(test_strange_sizes),
};
TEST_MAIN(tests)
