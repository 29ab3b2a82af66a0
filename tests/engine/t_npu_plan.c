/* t_npu_plan.c — an NPU's memory shared out before loading: what is refused and how it is said, and that a model takes no more than was planned. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "npu.h"

static struct weights *weights;
static struct model_config model_config;

static void open_weights(const char *model) {
  struct err e = {0};
  log_set_level(LOG_ERROR);
  weights = weights_open(test_path(model), &model_config, &e);
  if (!weights) fail_msg("%s", e.msg);
}

static int make(struct plan *p, struct cygnet_options o, struct err *e) {
  memset(e, 0, sizeof *e);
  o.backend = o.backend ? o.backend : "ascend";
  o.threads = 1;
  return plan_make(p, &o, &model_config, weights, e);
}

static size_t needed(const struct plan *p) { return p->weight_bytes + p->kv_bytes + p->scratch_bytes; }

static void refused(struct cygnet_options o, enum err_code code, const char *const *says) {
  struct plan p;
  struct err e;
  assert_int_equal(make(&p, o, &e), -1);
  assert_int_equal(e.code, code);
  for (; *says; says++)
    if (!strstr(e.msg, *says)) fail_msg("\"%s\" is not said in: %s", *says, e.msg);
}
#define SAYS(...)                                                                                                                          \
  (const char *const[]) { __VA_ARGS__, NULL }

static void options(void) {
  open_weights("golden/gemma3-text-tiny");
  struct plan p;
  struct err e;
  bool half = !strcmp(npu_current(), "310P-8.5");
  for (int i = 0; i < 4; i++) {
    struct cygnet_options o = {.backend = i % 2 ? "npu" : "ascend",
                               .attn = i < 2    ? NULL
                                       : i == 2 ? "auto"
                                                : "ascend",
                               .kv_type = i ? "auto" : NULL};
    if (make(&p, o, &e)) fail_msg("%s", e.msg);
    assert_ptr_equal(p.model.device, &device_ascend_ops);
    assert_ptr_equal(p.model.attn, &attn_ascend_ops);
    assert_int_equal(p.kv.page_tokens, 128);
    assert_int_equal(p.model.kv_dtype, half ? DTYPE_F16 : DTYPE_BF16);
    assert_string_equal(p.kv_type, half ? "f16" : "bf16");
    assert_int_equal(p.lookup_bytes, 0); /* embeddings are on the device */
    assert_true(p.host_bytes > 0 && p.weight_bytes > 0);
    assert_int_equal(p.budget_bytes, (size_t)((double)p.look.free_bytes * 0.8));
    assert_true(needed(&p) <= p.budget_bytes);
  }
  assert_int_equal(make(&p, (struct cygnet_options){.page_tokens = 16}, &e), 0);
  assert_int_equal(p.kv.page_tokens, 16);
  assert_int_equal(make(&p, (struct cygnet_options){.mem_fraction = 0.5}, &e), 0);
  assert_int_equal(p.budget_bytes, p.look.free_bytes / 2);
  assert_int_equal(make(&p, (struct cygnet_options){.kv_type = half ? "f16" : "bf16"}, &e), 0);
  refused((struct cygnet_options){.kv_type = half ? "bf16" : "f16"}, ERR_UNSUPPORTED, SAYS("--kv-type", half ? "as f16" : "as bf16"));
  refused((struct cygnet_options){.kv_type = "q8_0"}, ERR_UNSUPPORTED, SAYS("--kv-type", "found q8_0"));
  refused((struct cygnet_options){.kv_type = "f32"}, ERR_UNSUPPORTED, SAYS("--kv-type", "found f32"));
  refused((struct cygnet_options){.attn = "ref"}, ERR_UNSUPPORTED, SAYS("--attn ref", "--backend ascend"));
  refused((struct cygnet_options){.attn = "cpu"}, ERR_UNSUPPORTED, SAYS("--attn cpu", "leave --attn out"));
  refused((struct cygnet_options){.attn = "flash"}, ERR_BAD_INPUT, SAYS("--attn", "flash"));
  refused((struct cygnet_options){.isa = "ref"}, ERR_UNSUPPORTED, SAYS("--isa ref", "CPU"));
  refused((struct cygnet_options){.draft_model = "x"}, ERR_UNSUPPORTED, SAYS("--draft-model", "leave it out"));
  refused((struct cygnet_options){.device_id = 7}, ERR_BAD_INPUT, SAYS("--backend ascend", "--device-id", "found 7"));
  refused((struct cygnet_options){.device_id = -1}, ERR_BAD_INPUT, SAYS("--device-id", "found -1"));
  refused((struct cygnet_options){.mem_bytes = 1 << 20}, ERR_NO_MEMORY, SAYS("device memory", "--mem", "--quant"));
  refused((struct cygnet_options){.backend = "cpu", .device_id = 1}, ERR_BAD_INPUT, SAYS("--device-id", "cpu"));
  refused((struct cygnet_options){.backend = "cpu", .attn = "ascend"}, ERR_UNSUPPORTED, SAYS("--attn ascend", "--backend cpu"));
  refused((struct cygnet_options){.backend = "gpu"}, ERR_UNSUPPORTED, SAYS("--backend", "ascend", "gpu"));
  weights_close(weights);
}

static void print_says_where(void) {
  open_weights("golden/gemma3-text-tiny");
  struct plan p;
  struct err e;
  struct buf b;
  if (make(&p, (struct cygnet_options){0}, &e)) fail_msg("%s", e.msg);
  buf_init(&b, 0);
  plan_print(&p, &model_config, &b);
  assert_non_null(strstr(buf_cstr(&b), p.look.text));
  assert_non_null(strstr(buf_cstr(&b), "of the device"));
  assert_non_null(strstr(buf_cstr(&b), "of the host's"));
  buf_free(&b);
  weights_close(weights);
}

/* Every family, opened and used, with chunks and decoding: the device never holds more than was planned. */
static void takes_what_was_planned(void) {
  static const char *const models[] = {"gemma3-text-tiny", "gemma4-e-tiny", "gemma4-moe-tiny",  "gemma4-dense-tiny",
                                       "gemma4-12b-tiny",  "media-gemma3",  "media-gemma4-e2b", "media-mllama"};
  log_set_level(LOG_ERROR);
  for (size_t i = 0; i < ARRAY_LEN(models); i++) {
    char path[128];
    struct err e = {0};
    struct cygnet_error ce = {0};
    snprintf(path, sizeof path, "golden/%s", models[i]);
    struct cygnet_options o = {
        .model = test_path(path), .backend = "npu", .threads = 1, .quiet = 1, .chunk_tokens = 32, .max_running = 4, .mem_bytes = 96 << 20};
    npu_emu()->reset();
    struct cygnet *c = engine_open(&o, &e);
    if (!c) fail_msg("%s: %s", models[i], e.msg);
    struct acl_emu_counts n;
    npu_emu()->counts(&n);
    size_t opened = n.device_bytes;
    int32_t prompt[100];
    for (int k = 0; k < 100; k++) prompt[k] = 5 + k % 90;
    struct cygnet_request r = {.prompt = prompt, .n_prompt = MIN(100, c->plan.ctx_tokens - 8), .max_tokens = 6, .ignore_eos = 1};
    if (!cygnet_submit(c, &r, &ce)) fail_msg("%s: %s", models[i], ce.message);
    struct cygnet_event ev;
    int n_events = 0;
    while (cygnet_step(c))
      while (cygnet_next_event(c, &ev)) {
        assert_true(ev.finish != CYGNET_FINISH_ERROR);
        n_events++;
      }
    assert_true(n_events > 0);
    npu_emu()->counts(&n);
    size_t planned = needed(&c->plan), packed = c->model->packed_bytes;
    printf("%-20s planned %8zu KiB, opened %8zu, at most %8zu; weights planned %7zu, packed %7zu\n", models[i], planned >> 10, opened >> 10,
           (size_t)n.device_bytes_peak >> 10, c->plan.weight_bytes >> 10, packed >> 10);
    if (n.device_bytes_peak > planned)
      fail_msg("%s: %zu KiB planned, %zu KiB taken", models[i], planned >> 10, (size_t)n.device_bytes_peak >> 10);
    engine_close(c);
  }
  npu_check_clean();
}

/* Where attention is composed its scratch grows with the context: it has been planned, and is there from the beginning. */
static void long_contexts(void) {
  struct err e = {0};
  struct cygnet_error ce = {0};
  struct acl_emu_counts n;
  static int32_t prompt[900];
  log_set_level(LOG_ERROR);
  struct cygnet_options o = {.model = test_path("golden/gemma4-dense-tiny"), .backend = "npu", .threads = 1, .quiet = 1, .max_running = 2};
  struct cygnet *c = engine_open(&o, &e);
  if (!c) fail_msg("%s", e.msg);
  npu_emu()->counts(&n);
  size_t opened = n.device_bytes;
  int n_prompt = MIN((int)ARRAY_LEN(prompt), c->plan.ctx_tokens - 8);
  for (int k = 0; k < n_prompt; k++) prompt[k] = 5 + k % 90;
  struct cygnet_request r = {.prompt = prompt, .n_prompt = n_prompt, .max_tokens = 4, .ignore_eos = 1};
  if (!cygnet_submit(c, &r, &ce)) fail_msg("%s", ce.message);
  struct cygnet_event ev;
  while (cygnet_step(c))
    while (cygnet_next_event(c, &ev)) assert_true(ev.finish != CYGNET_FINISH_ERROR);
  npu_emu()->counts(&n);
  printf("%s: %d tokens: planned %zu KiB, opened %zu, at most %zu\n", npu_current(), n_prompt, needed(&c->plan) >> 10, opened >> 10,
         (size_t)n.device_bytes_peak >> 10);
  assert_true(n.device_bytes_peak <= needed(&c->plan));
  engine_close(c);
  npu_check_clean();
}

static void options_everywhere(void **state) {
  (void)state;
  npu_each_profile(options);
}
static void print_everywhere(void **state) {
  (void)state;
  npu_profile("A2-8.5", print_says_where);
}
static void plan_holds(void **state) {
  (void)state;
  npu_profile("A2-9.1", takes_what_was_planned);
  npu_profile("310P-8.5", takes_what_was_planned);
}
static void plan_holds_for_long_contexts(void **state) {
  (void)state;
  npu_profile("310P-8.5", long_contexts);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(options_everywhere), cmocka_unit_test(print_everywhere),
                                          cmocka_unit_test(plan_holds), cmocka_unit_test(plan_holds_for_long_contexts)};

TEST_MAIN(tests)
