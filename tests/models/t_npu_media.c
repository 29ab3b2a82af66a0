/* t_npu_media.c — every encoder whole on the emulated NPU against the CPU with float32 activations, tap by tap: from file to rows, one medium and
 * several in a job, in blocks of every size. */
#include "test.h"

#include "models/hand_encoder.h"
#include "npu.h"

static const struct fixture {
  const char *folder;
  enum media_kind kind;
  const char *files[4];
  double bound; /* of the rows that come out: rms of the difference over that of the rows; an eighth of it with fp16's three bits more */
} fixtures[] = {{"media-gemma3", MEDIA_IMAGE, {"a.rgb.png", "b.rgba.png", NULL}, 0.02},
                {"media-gemma4-e2b", MEDIA_IMAGE, {"a.rgb.png", "b.rgba.png", NULL}, 0.02},
                {"media-gemma4-26b", MEDIA_IMAGE, {"a.rgb.png", "b.l.png", NULL}, 0.15 /* p - std_bias cancels */},
                {"media-gemma4-31b", MEDIA_IMAGE, {"a.rgb.png", "b.rgba.png", NULL}, 0.15},
                {"media-gemma4-12b", MEDIA_IMAGE, {"a.rgb.png", "b.rgba.png", NULL}, 0.02},
                {"media-mllama", MEDIA_IMAGE, {"four.rgb.png", "one.rgb.png", NULL}, 0.02},
                {"media-gemma4-e2b", MEDIA_AUDIO, {"a.pcm16.wav", "b.pcm16.wav", NULL}, 0.02},
                {"media-gemma4-12b", MEDIA_AUDIO, {"a.pcm16.wav", "b.pcm16.wav", NULL}, 0.02}};

struct road {   /* how a job is done */
  int block;    /* 0: the usual */
  int first, n; /* of the files */
};

static void open_encoder(struct hand *h, const struct fixture *f, const struct device_ops *device, int block) {
  hand_open_golden(h, f->folder);
  h->device = device;
  hand_load(h, f->kind, ISA_AVX2, 1);
  if (block) h->x->block = block;
}

static double bound_of(const struct fixture *f) { return strncmp(npu_current(), "310P", 4) ? f->bound : f->bound / 8; }

static void finish(struct hand *h) {
  struct err e = {0};
  if (h->m.dev->ops->finish(h->m.dev, &e)) fail_msg("%s", e.msg);
}

/* Rows that come out, when nobody taps; owned. */
static float *rows_of(struct hand *h, struct media *const *m, int n, size_t *n_floats) {
  struct device *dev = h->m.dev;
  struct tensor host = {0}, *out = &h->x->out;
  h->m.tap = NULL;
  encoder_begin(h->x, (const struct media *const *)m, n);
  do dev->ops->step(dev, NULL);
  while (!encoder_unit(h->x));
  assert_int_equal(dev->ops->host_alloc(dev, &host, out->rows, out->cols, "test", NULL), 0);
  dev->ops->fetch(dev, &host, out);
  finish(h);
  float *all = xmalloc((size_t)out->rows * (size_t)out->cols * sizeof *all);
  for (int r = 0; r < out->rows; r++) memcpy(all + (size_t)r * (size_t)out->cols, tensor_row(&host, r), (size_t)out->cols * sizeof *all);
  *n_floats = (size_t)out->rows * (size_t)out->cols;
  dev->ops->host_free(dev, &host);
  h->m.tap = on_encoder_tap;
  return all;
}

static double difference(const float *x, const float *want, size_t n) {
  double sum = 0, all = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)x[i] - (double)want[i];
    sum += d * d;
    all += (double)want[i] * (double)want[i];
  }
  return sqrt(sum / (all > 0 ? all : 1));
}

/* All taps of both; the first that is off by more than twice the bound is told. */
static void compare_taps(struct hand *npu, struct hand *cpu, const struct fixture *f, struct media *const *m, int n) {
  hand_encode(npu, (const struct media *const *)m, n);
  finish(npu);
  hand_encode(cpu, (const struct media *const *)m, n);
  assert_int_equal(npu->n_kept, cpu->n_kept);
  for (int i = 0; i < cpu->n_kept; i++) {
    const struct kept *a = &npu->kept[i], *b = &cpu->kept[i];
    assert_true(!strcmp(a->name, b->name) && a->layer == b->layer && a->rows == b->rows && a->cols == b->cols);
    double d = difference(a->x, b->x, (size_t)a->rows * (size_t)a->cols);
    if (!(d <= 2 * bound_of(f))) fail_msg("%s: first tap that differs: %s, layer %d: by %.2g", f->folder, a->name, a->layer, d);
  }
}

static void check(const struct fixture *f, const struct road *road) {
  struct hand npu, cpu;
  struct media *m[4];
  size_t n_npu, n_cpu;
  open_encoder(&npu, f, &device_ascend_ops, road->block);
  open_encoder(&cpu, f, NULL, 0);
  for (int i = 0; i < road->n; i++) m[i] = hand_media(&cpu, f->folder, f->files[road->first + i], f->kind);
  compare_taps(&npu, &cpu, f, m, road->n);
  float *got = rows_of(&npu, m, road->n, &n_npu), *want = rows_of(&cpu, m, road->n, &n_cpu);
  assert_int_equal(n_npu, n_cpu);
  double d = difference(got, want, n_npu);
  printf("  %s %s %s, %d, blocks of %d: %.2g\n", npu_current(), f->folder, npu.x->ops->name, road->n, npu.x->block, d);
  if (!(d <= bound_of(f))) fail_msg("%s: rows differ by %.2g", f->folder, d);
  free(got);
  free(want);
  hand_release(m, road->n);
  hand_close(&npu);
  hand_close(&cpu);
  npu_check_clean();
}

static void body(void) {
  static const struct road roads[] = {{0, 0, 2}, {37, 1, 1}};
  for (size_t f = 0; f < ARRAY_LEN(fixtures); f++)
    for (size_t r = 0; r < ARRAY_LEN(roads); r++) check(&fixtures[f], &roads[r]);
}

/* An operator that fails spoils its job, which is told once; the next job is as if nothing had been. */
static void body_of_faults(void) {
  static const char *const where[] = {"op LayerNorm", "launch FlashAttentionScore", "op IndexSelect", "aclrtMemcpy2dAsync"};
  const struct fixture *f = &fixtures[0];
  struct hand h;
  struct err e = {0};
  size_t n, again;
  open_encoder(&h, f, &device_ascend_ops, 37);
  struct media *m[1] = {hand_media(&h, f->folder, f->files[0], f->kind)};
  float *want = rows_of(&h, m, 1, &n);
  for (size_t i = 0; i < ARRAY_LEN(where); i++) {
    npu_emu()->fault(where[i], 1, 561103);
    h.m.tap = NULL;
    encoder_begin(h.x, (const struct media *const *)m, 1);
    while (!encoder_unit(h.x)) continue;
    assert_int_equal(h.m.dev->ops->finish(h.m.dev, &e), -1);
    assert_true(e.msg[0] && !h.m.dev->lost);
    npu_emu()->fault(NULL, 0, 0);
    float *got = rows_of(&h, m, 1, &again);
    assert_int_equal(n, again);
    assert_memory_equal(got, want, n * sizeof *got);
    free(got);
  }
  free(want);
  hand_release(m, 1);
  hand_close(&h);
  npu_check_clean();
}
static void faults(void **state) {
  (void)state;
  npu_profile("A2-8.5", body_of_faults);
}

static void on_a2(void **state) {
  (void)state;
  npu_profile("A2-8.5", body);
}
static void on_310p(void **state) {
  (void)state;
  npu_profile("310P-8.5", body);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(on_a2), cmocka_unit_test(on_310p), cmocka_unit_test(faults)};
TEST_MAIN(tests)
