/* t_npu_graph.c — graph mode on the emulated NPU: captured steps against eager ones, to the bit (graph_pair.h); what a replay costs the host; what
 * becomes of recordings that fail, and of two replays in flight. */
#include "engine/decoding.h"
#include "engine/graph_pair.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "npu.h"

#ifdef CYGNET_DEBUG
enum { LESS = 1 };
#else
enum { LESS = 0 };
#endif

static bool captures(void) { return strcmp(npu_current(), "310P-8.5") != 0; }

/* The backend finds CANN first, as it does without tests. */
static const struct acl_emu *emulator(void) {
  struct device_look look;
  struct err e = {0};
  if (device_ascend_ops.look(0, &look, &e)) fail_msg("%s", e.msg);
  return npu_emu();
}

/* ---- eager and graph agree ------------------------------------------------------------------------------------------------------- */

/* The text model of tests/golden/media-mllama with heads of 16 instead of 12, which fused attention does not take: other numbers, same layers. */
static char wide_mllama[300];
static void make_wide_mllama(void) {
  enum { TENSORS_MAX = 160 };
  static struct st_write out[TENSORS_MAX];
  struct safetensors in;
  struct err e = {0};
  uint64_t rng = 5;
  int n = 0;
  if (safetensors_open(&in, test_path("golden/media-mllama"), &e)) fail_msg("%s", e.msg);
  for (size_t i = 0; i < in.n_tensors; i++) {
    const struct st_tensor *t = &in.tensors[i];
    if (strncmp(t->name, "language_model.", 15)) continue;
    assert_true(n < TENSORS_MAX && t->n_dims <= 2);
    struct st_write *y = &out[n++];
    *y = (struct st_write){.name = t->name, .dtype = DTYPE_F32, .n_dims = t->n_dims};
    size_t size = 1;
    for (int k = 0; k < t->n_dims; k++) {
      int64_t dim = t->shape[k];
      y->shape[k] = dim == 48 || dim == 24 || dim == 12 ? dim / 3 * 4 : dim;
      size *= (size_t)y->shape[k];
    }
    float *x = xcalloc(size, sizeof *x);
    bool is_norm = strstr(t->name, "norm") != NULL;
    for (size_t k = 0; k < size; k++) x[k] = (is_norm ? 1 : 0) + test_rand_normal(&rng) / 8;
    y->data = x;
  }
  json_t *config = json_load_path(test_path("golden/media-mllama/config.json"), 1 << 20, &e);
  if (!config) fail_msg("%s", e.msg);
  json_object_set_new(json_object_get(config, "text_config"), "hidden_size", json_integer(64));
  char *text = json_dumps(config, 0);
  test_write("config.json", text, strlen(text));
  snprintf(wide_mllama, sizeof wide_mllama, "%s/model.safetensors", test_tmpdir());
  if (safetensors_write(wide_mllama, out, n, &e)) fail_msg("%s", e.msg);
  snprintf(wide_mllama, sizeof wide_mllama, "%s", test_tmpdir());
  for (int i = 0; i < n; i++) free((void *)(uintptr_t)out[i].data);
  free(text);
  json_decref(config);
  safetensors_close(&in);
}

/* Windows and pages are crossed, buckets change, some sequences reach tokens_max; mllama has both roads. */
static void walks(void) {
  const struct setup setups[] = {
      {"gemma3-text-ropescale", "", ISA_AUTO, 1, DTYPE_BF16, false, 16, 100, 60},
      {"gemma3-text-tiny", "", ISA_AUTO, 1, DTYPE_BF16, false, 128, 100, 30},
      {"gemma4-e-tiny", "", ISA_AUTO, 1, DTYPE_BF16, false, 16, 100, 30},
      {wide_mllama, "", ISA_AUTO, 1, DTYPE_BF16, false, 16, 100, 60},
  };
  if (!captures()) return;
  const struct acl_emu *emu = emulator();
  pair_device = &device_ascend_ops;
  bool all = !strcmp(npu_current(), "A2-8.5");
  for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
    if ((!all || LESS) && (i == 1 || i == 2)) continue;
    if (!all && i == 3 && strcmp(npu_current(), "A2-8.1")) continue; /* the oldest and one between stand for all */
    emu->seed(i);
    emu->delay_us(i % 2 ? 50 : 0);
    struct setup s = setups[i];
    if (LESS) s.n_steps = MIN(s.n_steps, 30);
    walk(&s);
  }
  npu_check_clean();
}

static void eager_and_graph_agree(void **state) {
  (void)state;
  make_wide_mllama();
  npu_each_profile(walks);
}

/* ---- two replays in flight --------------------------------------------------------------------------------------------------------- */

/* The second is put on the stream, with other lengths, before anybody waited for the first: each has its own. */
static void two_at_once(void) {
  struct decoding d, twin;
  struct err e = {0};
  const struct acl_emu *emu = emulator();
  const char *model = test_path("golden/gemma3-text-ropescale");
  if (!captures()) return;
  for (int round = 0; round < 6; round += 1 + LESS) {
    emu->seed((uint64_t)round);
    emu->delay_us(round < 3 ? 300 : 0);
    emu->lazy(round % 3 == 1);
    int length = 14 + round; /* the page's end lies between */
    if (decoding_open(&d, model, &device_ascend_ops, 3, 256, length, 64, &e)) fail_msg("%s", e.msg);
    if (decoding_open(&twin, model, &device_ascend_ops, 3, 256, length, 64, &e)) fail_msg("%s", e.msg);
    struct device *dev = d.m->dev;
    struct tensor first = {0}, host = {0};
    assert_int_equal(dev->ops->alloc(dev, &first, 3, d.config->vocab, "test", &e), 0);
    assert_int_equal(dev->ops->host_alloc(dev, &host, 3, d.config->vocab, "test", &e), 0);
    if (decoding_step(&d, &e) || decoding_step(&twin, &e)) fail_msg("%s", e.msg); /* recorded */
    for (int i = 0; i < 2; i++) {
      decoding_clear(&d);
      for (int s = 0; s < 3; s++) decoding_add(&d, s, 1, 1);
      dev->ops->step(dev, &d.b);
      d.m->attn_ops->prepare(d.m->attn, &d.b);
      dev->ops->record_replay(dev, d.record);
      struct tensor logits = tensor_rows(d.m->logits, 3);
      if (i == 0) dev->ops->copy(dev, &first, &logits);
    }
    struct tensor second = model_fetch(d.m, 3);
    dev->ops->fetch(dev, &host, &first);
    if (dev->ops->finish(dev, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) {
      if (decoding_step(&twin, &e)) fail_msg("%s", e.msg);
      for (int r = 0; r < 3; r++)
        assert_memory_equal(tensor_row(i ? &second : &host, r), tensor_row(&twin.m->logits_host, r),
                            sizeof(float) * (size_t)d.config->vocab);
    }
    dev->ops->free(dev, &first);
    dev->ops->host_free(dev, &host);
    decoding_close(&d);
    decoding_close(&twin);
  }
  npu_check_clean();
}

static void replays_in_flight_do_not_see_each_other(void **state) {
  (void)state;
  npu_profile("A2-8.1", two_at_once);
  npu_profile("A2-9.1", two_at_once);
}

/* ---- what a replay costs the host ---------------------------------------------------------------------------------------------------- */

static void costs(void) {
  static const int limits[] = {4 << 10, 32 << 10, 128 << 10}, rows[] = {1, DECODING_ROWS_MAX};
  const struct acl_emu *emu = emulator();
  struct err e = {0};
  if (!captures()) return;
  for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
    struct acl_emu_counts want = {0};
    for (size_t l = 0; l < ARRAY_LEN(limits); l += 1 + LESS) {
      struct decoding d;
      struct acl_emu_counts before, after;
      if (decoding_open(&d, test_path("golden/gemma3-text-ropescale"), &device_ascend_ops, rows[r], limits[l], 150, 160, &e))
        fail_msg("%s", e.msg);
      for (int i = 0; i < 4; i++)
        if (decoding_step(&d, &e)) fail_msg("%s", e.msg);
      emu->counts(&before);
      if (decoding_step(&d, &e)) fail_msg("%s", e.msg);
      emu->counts(&after);
      struct acl_emu_counts n = {.calls = after.calls - before.calls,
                                 .launches = after.launches - before.launches,
                                 .copies = after.copies - before.copies,
                                 .h2d_bytes = after.h2d_bytes - before.h2d_bytes,
                                 .d2h_bytes = after.d2h_bytes - before.d2h_bytes,
                                 .updates = after.updates - before.updates,
                                 .replays = after.replays - before.replays};
      assert_int_equal(n.replays, 1);
      assert_int_equal(n.d2h_bytes, (size_t)rows[r] * (size_t)d.config->vocab * 2); /* nothing comes back but logits */
      printf("  %s, %2d rows, up to %6d tokens: %d calls, %d updates, %d copies of %d bytes in all, %.0f us\n", npu_current(), rows[r],
             limits[l], (int)n.calls, (int)n.updates, (int)n.copies, (int)n.h2d_bytes, (double)d.host_ns / 1e3);
      if (l == 0) want = n;
      assert_memory_equal(&want, &n, sizeof n);
      decoding_close(&d);
    }
  }
  npu_check_clean();
}

static void cost_does_not_depend_on_the_longest_context(void **state) {
  (void)state;
  npu_profile("A2-8.5", costs);
  if (!LESS) npu_profile("A2-9.1", costs);
}

/* A window that is full has the same number of keys from step to step: its operators are left as they are. */
static void full_windows(void) {
  const struct acl_emu *emu = emulator();
  struct err e = {0};
  struct decoding d;
  struct acl_emu_counts before, after;
  setenv("CYGNET_ASCEND_ROUTES", "decode,window,bsnd", 1);
  if (decoding_open(&d, test_path("golden/gemma3-text-ropescale"), &device_ascend_ops, 2, 256, 40, 64, &e)) fail_msg("%s", e.msg);
  int n_full = 0, n_sliding = 0;
  for (int l = 0; l < d.config->n_layers; l++) d.config->layers[l].kind == LAYER_SLIDING ? n_sliding++ : n_full++;
  assert_true(n_sliding > 0 && d.config->window_tokens < 40);
  for (int i = 0; i < 3; i++)
    if (decoding_step(&d, &e)) fail_msg("%s", e.msg);
  emu->counts(&before);
  if (decoding_step(&d, &e)) fail_msg("%s", e.msg);
  emu->counts(&after);
  printf("  %s: %d updates for %d full and %d sliding layers\n", npu_current(), (int)(after.updates - before.updates), n_full, n_sliding);
  assert_int_equal(after.updates - before.updates, n_full);
  decoding_close(&d);
  npu_check_clean();
}

static void full_windows_cost_nothing(void **state) {
  (void)state;
  npu_profile("A2-8.5", full_windows);
}

/* ---- recordings and replays that fail -------------------------------------------------------------------------------------------------- */

/* Each call of the interface that recording makes fails, at each of the first times: the step fails with a sentence, what comes after it is
 * right, and eager. */
static void broken_recordings(void) {
  static const char *const calls[] = {"aclmdlRICaptureBegin",
                                      "aclmdlRICaptureEnd",
                                      "aclmdlRICaptureTaskGrpBegin",
                                      "aclmdlRICaptureTaskGrpEnd",
                                      "aclrtCreateEventWithFlag",
                                      "aclrtCreateEventExWithFlag",
                                      "aclrtStreamWaitEvent",
                                      "aclrtResetEvent",
                                      "any op",
                                      "any launch"};
  static struct pair p;
  static const struct setup s = {"gemma3-text-ropescale", "", ISA_AUTO, 1, DTYPE_BF16, false, 16, 100, 0};
  const struct acl_emu *emu = emulator();
  if (!captures()) return;
  emu->quiet(1);
  pair_device = &device_ascend_ops;
  for (size_t i = 0; i < ARRAY_LEN(calls); i++)
    for (int n = 1; n < 40; n += 1 + n / 2 + 3 * LESS) {
      struct err e = {0};
      pair_open(&p, &s);
      assert_true(kv_seq_open(p.kv, &p.seqs[0].kv));
      prefill(&p, &p.seqs[0], 5);
      batch_garbage(&p.b);
      batch_add(&p, &p.seqs[0], 1, 1);
      model_forward(p.eager, &p.b);
      went_well(p.eager);
      struct acl_emu_counts before, after;
      emu->counts(&before);
      emu->fault(calls[i], n, calls[i][0] == 'a' && calls[i][1] == 'n' ? 561002 : 107000);
      graph_forward(p.graph, p.graphed, &p.b);
      int failed = p.graphed->dev->ops->finish(p.graphed->dev, &e);
      emu->fault(NULL, 0, 0);
      emu->counts(&after);
      assert_true(!failed || e.msg[0]);
      assert_false(p.graphed->dev->lost);
      bool recorded = graph_stats(p.graph).n_recorded == 1;
      if (recorded) assert_false(failed);
      if (failed) { /* the batch once more: its keys were worth nothing */
        model_forward(p.graphed, &p.b);
        went_well(p.graphed);
      }
      for (int k = 0; k < 3; k++) {
        batch_garbage(&p.b);
        batch_add(&p, &p.seqs[0], 1, 1);
        bool by_graph = step(&p);
        if (recorded) assert_true(by_graph);
      }
      pair_close(&p);
    }
  npu_check_clean();
}

static void recordings_that_fail(void **state) {
  (void)state;
  npu_profile("A2-8.5", broken_recordings);
}

/* The same for replays, whose captured steps must never be left waiting. */
static void broken_replays(void) {
  static const char *const calls[] = {"aclmdlRIExecuteAsync",
                                      "aclmdlRICaptureTaskUpdateBegin",
                                      "aclmdlRICaptureTaskUpdateEnd",
                                      "aclrtRecordEvent",
                                      "aclrtStreamWaitEvent",
                                      "any op",
                                      "any launch"};
  static struct pair p;
  static const struct setup s = {"gemma3-text-ropescale", "", ISA_AUTO, 1, DTYPE_BF16, false, 16, 100, 0};
  const struct acl_emu *emu = emulator();
  if (!captures()) return;
  emu->quiet(1);
  pair_device = &device_ascend_ops;
  for (size_t i = 0; i < ARRAY_LEN(calls); i++)
    for (int n = 1; n < 12; n += 1 + n / 3) {
      struct err e = {0};
      pair_open(&p, &s);
      assert_true(kv_seq_open(p.kv, &p.seqs[0].kv));
      prefill(&p, &p.seqs[0], 5);
      for (int k = 0; k < 2; k++) {
        batch_garbage(&p.b);
        batch_add(&p, &p.seqs[0], 1, 1);
        assert_true(step(&p));
      }
      batch_garbage(&p.b);
      batch_add(&p, &p.seqs[0], 1, 1);
      model_forward(p.eager, &p.b);
      went_well(p.eager);
      emu->fault(calls[i], n, 107000);
      graph_forward(p.graph, p.graphed, &p.b);
      int failed = p.graphed->dev->ops->finish(p.graphed->dev, &e);
      emu->fault(NULL, 0, 0);
      assert_true(!failed || e.msg[0]);
      if (p.graphed->dev->lost) fail_msg("%s, time %d: %s", calls[i], n, e.msg);
      if (failed) {
        model_forward(p.graphed, &p.b);
        went_well(p.graphed);
      }
      for (int k = 0; k < 3; k++) { /* replays are right again: nothing of the failed one is left */
        batch_garbage(&p.b);
        batch_add(&p, &p.seqs[0], 1, 1);
        assert_true(step(&p));
      }
      pair_close(&p);
    }
  npu_check_clean();
}

static void replays_that_fail(void **state) {
  (void)state;
  npu_profile("A2-8.5", broken_replays);
}

/* ---- where there are no records ---------------------------------------------------------------------------------------------------------- */

static void why_not(void) {
  struct device_config c = {.n_threads = 1, .rows_max = 16, .cols_max = 64, .positions_max = 64};
  struct err e = {0};
  const struct acl_emu *emu = emulator();
  struct device *d = device_ascend_ops.open(&c, &e);
  if (!d) fail_msg("%s", e.msg);
  const char *why = d->ops->no_records(d);
  if (captures()) assert_null(why);
  else assert_non_null(strstr(why, "310P"));
  d->ops->close(d);
  if (captures() && strcmp(npu_current(), "A2-8.1")) { /* which cannot be asked */
    emu->task_update(0);
    d = device_ascend_ops.open(&c, &e);
    if (!d) fail_msg("%s", e.msg);
    why = d->ops->no_records(d);
    assert_non_null(why);
    assert_non_null(strstr(why, "driver"));
    d->ops->close(d);
    emu->task_update(1);
  }
  npu_check_clean();
}

static void devices_say_why_there_are_none(void **state) {
  (void)state;
  npu_each_profile(why_not);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(devices_say_why_there_are_none),
    cmocka_unit_test(eager_and_graph_agree),
    cmocka_unit_test(replays_in_flight_do_not_see_each_other),
    cmocka_unit_test(cost_does_not_depend_on_the_longest_context),
    cmocka_unit_test(full_windows_cost_nothing),
    cmocka_unit_test(recordings_that_fail),
    cmocka_unit_test(replays_that_fail),
};
TEST_MAIN(tests)
