/* t_quant_model.c — a checkpoint quantised at load gives the very logits of a file that was quantised beforehand, on every level. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "compute/kern.h"
#include "cygnet.h"
#include "files/gguf.h"
#include "gguf_maker.h"

enum { PROMPT = 60, GENERATED = 8, VOCAB_MAX = 512 };

struct run {
  float logits[PROMPT][VOCAB_MAX];
  int n_rows;
  int32_t ids[GENERATED];
  int n_ids;
};

static void on_logits(void *ctx, int position, const float *logits, int vocab) {
  struct run *r = ctx;
  assert_true(vocab <= VOCAB_MAX && position == r->n_rows && r->n_rows < PROMPT);
  memcpy(r->logits[r->n_rows++], logits, (size_t)vocab * sizeof *logits);
}

static void run_model(struct run *r, const char *path, const char *isa, const char *quant) {
  struct cygnet_error e = {0};
  struct cygnet_options o = {
      .model = path, .isa = isa, .quant = quant, .threads = 1, .ctx_tokens = 128, .max_running = 1, .chunk_tokens = 32, .quiet = 1};
  memset(r, 0, sizeof *r);
  struct cygnet *c = cygnet_open(&o, &e);
  if (!c) fail_msg("%s: %s", path, e.message);
  int32_t prompt[PROMPT] = {2};
  uint64_t rng = 9;
  for (int i = 1; i < PROMPT; i++) prompt[i] = test_rand_int(&rng, 5, 290);
  struct cygnet_request request = {
      .prompt = prompt, .n_prompt = PROMPT, .max_tokens = GENERATED, .ignore_eos = 1, .on_logits = on_logits, .callback_ctx = r};
  if (!cygnet_submit(c, &request, &e)) fail_msg("%s", e.message);
  struct cygnet_event ev;
  for (bool over = false; !over;) {
    cygnet_step(c);
    while (cygnet_next_event(c, &ev)) {
      for (size_t i = 0; i < ev.n_tokens && r->n_ids < GENERATED; i++) r->ids[r->n_ids++] = ev.tokens[i].id;
      over |= ev.finish != CYGNET_FINISH_NONE;
    }
  }
  assert_int_equal(r->n_rows, PROMPT);
  assert_int_equal(r->n_ids, GENERATED);
  cygnet_close(c);
}

/* The q8_0 twin with its per-layer table as the bf16 twin has it: that one stays as it is when weights are quantised at load. */
static const char *twin_with_plain_table(const char *q8_0, const char *bf16) {
  struct map maps[2];
  struct gguf files[2];
  struct err e = {0};
  const char *paths[2] = {q8_0, bf16};
  for (int i = 0; i < 2; i++)
    if (map_open(&maps[i], paths[i], &e) || gguf_open(&files[i], &maps[i], &e)) fail_msg("%s", e.msg);
  struct gguf_maker m;
  gguf_maker_init(&m);
  for (size_t i = 0; i < files[0].n_kv; i++) {
    const struct gguf_kv *kv = &files[0].kv[i];
    size_t head = kv->is_array ? 12 : 0;
    unsigned char *value = calloc(head + kv->raw_bytes, 1);
    uint32_t type = (uint32_t)kv->type;
    if (head) memcpy(value, &type, 4), memcpy(value + 4, &kv->n, 8);
    memcpy(value + head, kv->raw, kv->raw_bytes);
    gguf_maker_kv(&m, kv->key.p, kv->key.n, head ? GM_ARRAY : type, value, head + kv->raw_bytes);
    free(value);
  }
  for (size_t i = 0; i < files[0].n_tensors; i++) {
    char name[100];
    const struct gguf_tensor *t = &files[0].tensors[i];
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    if (!strcmp(name, "per_layer_token_embd.weight")) t = gguf_find_tensor(&files[1], name);
    uint64_t ne[4];
    for (int d = 0; d < t->n_dims; d++) ne[d] = (uint64_t)t->shape[t->n_dims - 1 - d];
    uint32_t type = t->dtype == DTYPE_F32 ? GM_F32 : t->dtype == DTYPE_BF16 ? GM_BF16 : GM_Q8_0;
    gguf_maker_tensor(&m, name, type, (uint32_t)t->n_dims, ne, t->data, t->n_bytes);
  }
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  const char *path = test_write("twin.gguf", file, n);
  free(file);
  for (int i = 0; i < 2; i++) {
    gguf_close(&files[i]);
    map_close(&maps[i]);
  }
  return path;
}

static void logits_of_the_quantised_twin(void **s) {
  (void)s;
  static const char *const names[] = {"gemma3-text-ropescale", "gemma4-dense-tiny", "gemma4-moe-tiny", "gemma4-e-tiny"};
  static const struct {
    const char *name;
    enum isa isa;
  } levels[] = {{"ref", ISA_REF}, {"avx2", ISA_AVX2}, {"avx512", ISA_AVX512}};
  static struct run a, b, plain;
  for (size_t i = 0; i < ARRAY_LEN(names); i++)
    for (size_t l = 0; l < ARRAY_LEN(levels); l++) {
      if (!kern_available(levels[l].isa)) continue;
      char folder[400], twin[500], plain_twin[500];
      snprintf(folder, sizeof folder, "%s/%s", test_path("golden"), names[i]);
      snprintf(twin, sizeof twin, "%s/model-q8_0.gguf", folder);
      snprintf(plain_twin, sizeof plain_twin, "%s/model-bf16.gguf", folder);
      if (strstr(names[i], "gemma4-e")) snprintf(twin, sizeof twin, "%s", twin_with_plain_table(twin, plain_twin));
      run_model(&a, folder, levels[l].name, "q8_0");
      run_model(&b, twin, levels[l].name, NULL);
      if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s, %s: not the twin's logits", names[i], levels[l].name);
      run_model(&b, twin, levels[l].name, "q4_0"); /* there is nothing plain in it */
      if (memcmp(&a, &b, sizeof a) != 0) fail_msg("%s, %s: a quantised file was changed", names[i], levels[l].name);
      run_model(&plain, folder, levels[l].name, NULL);
      assert_memory_not_equal(&a, &plain, sizeof a);
      run_model(&b, folder, levels[l].name, "q4_0");
      assert_memory_not_equal(&a, &b, sizeof a);
    }
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(logits_of_the_quantised_twin),
};
TEST_MAIN(tests)
