/* t_weights.c — fetching by name and shape from either format, split and sharded sets, what is missing and what is left over. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "files/weights.h"
#include "gguf_maker.h"

static struct weights *must_open(const char *path, struct model_config *c) {
  struct err e = {0};
  struct weights *w = weights_open(path, c, &e);
  if (!w) fail_msg("%s", e.msg);
  return w;
}
static void must_fail(const char *path, const char *says) {
  struct model_config c;
  struct err e = {0};
  struct weights *w = weights_open(path, &c, &e);
  if (w) fail_msg("%s: opened", path);
  if (!strstr(e.msg, says)) fail_msg("says \"%s\"", e.msg);
  assert_int_equal(err_exit_status(e.code), 2);
}

/* Fetch everything that Gemma 3 has, with the shapes of its config. */
static int bind(struct weights *w, const struct model_config *c, struct err *e) {
  struct weight_view v;
  float *vector = malloc((size_t)MAX(c->hidden, CONFIG_HEAD_DIM_MAX) * sizeof *vector);
  int bad = weights_get(w, "token_embd.weight", c->vocab, c->hidden, &v, e);
  bad |= weights_get_vector(w, "output_norm.weight", c->hidden, vector, e);
  for (int l = 0; l < c->n_layers && !bad; l++) {
    const struct layer_config *y = &c->layers[l];
    const struct {
      const char *name;
      int rows, cols;
    } t[] = {{"attn_q", y->n_q * y->head_dim, c->hidden},
             {"attn_k", y->n_kv * y->head_dim, c->hidden},
             {"attn_v", y->n_kv * y->head_dim, c->hidden},
             {"attn_output", c->hidden, y->n_q * y->head_dim},
             {"ffn_gate", y->ffn, c->hidden},
             {"ffn_up", y->ffn, c->hidden},
             {"ffn_down", c->hidden, y->ffn},
             {"attn_norm", 0, c->hidden},
             {"attn_q_norm", 0, y->head_dim},
             {"attn_k_norm", 0, y->head_dim},
             {"post_attention_norm", 0, c->hidden},
             {"ffn_norm", 0, c->hidden},
             {"post_ffw_norm", 0, c->hidden}};
    for (size_t i = 0; i < ARRAY_LEN(t) && !bad; i++) {
      char name[80];
      snprintf(name, sizeof name, "blk.%d.%s.weight", l, t[i].name);
      if (t[i].rows) bad |= weights_get(w, name, t[i].rows, t[i].cols, &v, e);
      else bad |= weights_get_vector(w, name, t[i].cols, vector, e);
    }
  }
  free(vector);
  return bad ? -1 : 0;
}

static void every_fixture_binds(void **s) {
  (void)s;
  static const char *const paths[] = {
      "golden/gemma3-text-tiny",      "golden/gemma3-text-tiny/model.safetensors",    "golden/gemma3-text-tiny/model-mixed.gguf",
      "golden/gemma3-text-ropescale", "golden/gemma3-text-ropescale/model-bf16.gguf", "golden/gemma3-text-ropescale/model-q8_0.gguf",
      "golden/gemma3-text-scale"};
  for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
    struct model_config c;
    struct err e = {0};
    struct weights *w = must_open(test_path(paths[i]), &c);
    if (bind(w, &c, &e) != 0) fail_msg("%s: %s", paths[i], e.msg);
    if (weights_report_unused(w, true, &e) != 0) fail_msg("%s: %s", paths[i], e.msg);
    assert_false(weights_has(w, "output.weight"));
    assert_int_equal(weights_unchanged(w, &e), 0);
    assert_int_equal(weights_count(w), 2 + 13 * (size_t)c.n_layers);
    size_t total = 0;
    for (size_t k = 0; k < weights_count(w); k++) {
      struct weight_entry t = weights_at(w, k);
      assert_true(t.name[0] && t.dtype != DTYPE_NONE && t.n_dims >= 1 && t.n_dims <= 2);
      total += t.n_bytes;
    }
    assert_int_equal(total, weights_total_bytes(w));
    bool gguf = strstr(paths[i], ".gguf") != NULL;
    assert_string_equal(weights_format(w), gguf ? "GGUF v3" : "safetensors");
    assert_int_equal(weights_gguf(w) != NULL, gguf);
    assert_non_null(strstr(weights_folder(w), "golden/gemma3-text-"));
    weights_close(w);
  }
}

/* The 1 is added to norms of a checkpoint and of nothing else; then both formats hold the same numbers. */
static void both_formats_agree(void **s) {
  (void)s;
  struct model_config a, b;
  struct err e = {0};
  struct weights *st = must_open(test_path("golden/gemma3-text-ropescale"), &a);
  struct weights *gg = must_open(test_path("golden/gemma3-text-ropescale/model-bf16.gguf"), &b);
  static const char *const norms[] = {"output_norm.weight", "blk.0.attn_norm.weight", "blk.7.post_ffw_norm.weight", "blk.3.ffn_norm.weight",
                                      "blk.5.post_attention_norm.weight"};
  float x[64], y[64];
  for (size_t i = 0; i < ARRAY_LEN(norms); i++) {
    assert_int_equal(weights_get_vector(st, norms[i], 64, x, &e), 0);
    assert_int_equal(weights_get_vector(gg, norms[i], 64, y, &e), 0);
    for (int k = 0; k < 64; k++)
      if (fabsf(x[k] - y[k]) > 1e-6f) fail_msg("%s[%d]: %g %g", norms[i], k, (double)x[k], (double)y[k]);
  }
  assert_int_equal(weights_get_vector(st, "blk.2.attn_k_norm.weight", 16, x, &e), 0);
  assert_int_equal(weights_get_vector(gg, "blk.2.attn_k_norm.weight", 16, y, &e), 0);
  assert_memory_equal(x, y, 16 * sizeof *x);
  struct weight_view v, u;
  assert_int_equal(weights_get(st, "blk.4.ffn_down.weight", 64, 96, &v, &e), 0);
  assert_int_equal(weights_get(gg, "blk.4.ffn_down.weight", 64, 96, &u, &e), 0);
  assert_int_equal(v.dtype, DTYPE_BF16);
  assert_int_equal(v.row_bytes, 192);
  assert_int_equal(v.rows, 64);
  assert_memory_equal(v.data, u.data, 64 * 192);
  weights_done_with(gg, &u);
  weights_done_with(st, &v);
  assert_memory_equal(v.data, u.data, 64 * 192); /* still there when asked for */
  weights_close(st);
  weights_close(gg);
}

/* --- made files --------------------------------------------------------------------------------------------------------- */

static const struct gm_gemma3 small = {2, 8, 2, 1, 4, 6, 5, 3};

static const char *made(const char *name, void (*change)(struct gguf_maker *)) {
  struct gguf_maker m;
  gguf_maker_init(&m);
  gguf_maker_gemma3(&m, &small, 1);
  if (change) change(&m);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  const char *path = test_write(name, file, n);
  free(file);
  return path;
}

static void says_what_does_not_fit(void **s) {
  (void)s;
  struct model_config c;
  struct err e = {0};
  struct weight_view v;
  float x[8];
  struct weights *w = must_open(made("m.gguf", NULL), &c);
  assert_int_equal(weights_get(w, "blk.1.attn_k.weight", 1024, 2560, &v, &e), -1);
  assert_non_null(strstr(e.msg, "m.gguf: tensor blk.1.attn_k.weight: expected [1024, 2560], file has [4, 8]"));
  assert_int_equal(weights_get(w, "blk.1.attn_k.weight", 8, 4, &v, &e), -1);
  assert_int_equal(weights_get(w, "blk.1.attn_k.weight", 0, 8, &v, &e), -1);
  assert_non_null(strstr(e.msg, "expected [8], file has [4, 8]"));
  assert_int_equal(weights_get(w, "blk.2.attn_k.weight", 4, 8, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor blk.2.attn_k.weight: expected [4, 8], the file has no such tensor"));
  assert_int_equal(weights_get_vector(w, "output_norm.weight", 7, x, &e), -1);
  assert_int_equal(weights_get(w, "output_norm.weight", 1, 8, &v, &e), 0); /* one row is a vector too */
  assert_int_equal(weights_get(w, "output_norm.weight", 8, 1, &v, &e), -1);
  assert_true(weights_has(w, "blk.0.ffn_up.weight"));
  assert_false(weights_has(w, "blk.0.ffn_up"));
  assert_int_equal(bind(w, &c, &e), 0);
  weights_close(w);
}

static void integer_tensor(struct gguf_maker *m) { gguf_maker_tensor(m, "ids", 26, 1, (uint64_t[]){8}, NULL, 32); }
static void infinite_norm(struct gguf_maker *m) {
  float x[8] = {1, 1, 1, INFINITY, 1, 1, 1, 1};
  gguf_maker_tensor(m, "bad_norm.weight", GM_F32, 1, (uint64_t[]){8}, x, 32);
}
static void leftovers(struct gguf_maker *m) {
  gguf_maker_tensor(m, "blk.0.attn_q.bias", GM_F32, 1, (uint64_t[]){8}, NULL, 32);
  gguf_maker_tensor(m, "blk.1.attn_q.bias", GM_F32, 1, (uint64_t[]){8}, NULL, 32);
  gguf_maker_tensor(m, "v.blk.0.attn_q.weight", GM_F32, 1, (uint64_t[]){8}, NULL, 32);
  gguf_maker_tensor(m, "mm.input_projection.weight", GM_F32, 1, (uint64_t[]){8}, NULL, 32);
}

static void types_and_leftovers(void **s) {
  (void)s;
  struct model_config c;
  struct err e = {0};
  struct weight_view v;
  float x[8];
  struct weights *w = must_open(made("i.gguf", integer_tensor), &c);
  assert_int_equal(weights_get(w, "ids", 0, 8, &v, &e), -1);
  assert_non_null(strstr(e.msg, "tensor ids: expected a type to compute with"));
  assert_non_null(strstr(e.msg, "file has I32"));
  weights_close(w);
  w = must_open(made("n.gguf", infinite_norm), &c);
  assert_int_equal(weights_get_vector(w, "bad_norm.weight", 8, x, &e), -1);
  assert_non_null(strstr(e.msg, "tensor bad_norm.weight: element 3 is not a finite number"));
  weights_close(w);
  log_set_level(LOG_ERROR);
  w = must_open(made("l.gguf", leftovers), &c);
  assert_int_equal(bind(w, &c, &e), 0);
  assert_int_equal(weights_report_unused(w, false, &e), 0);
  assert_int_equal(weights_report_unused(w, true, &e), -1);
  assert_non_null(strstr(e.msg, "l.gguf: tensor blk.0.attn_q.bias: not part of a gemma3 model"));
  assert_non_null(strstr(e.msg, "(2 such tensors)")); /* the vision part does not count */
  log_set_level(LOG_WARN);
  weights_close(w);
}

static void wrong_embedding(struct gguf_maker *m) { gguf_maker_u32(m, "split.count", 0); }

static void refuses_what_is_no_model(void **s) {
  (void)s;
  must_fail("/no/such/model.gguf", "no such file");
  must_fail(test_write("x.bin", "hello", 5), "expected a GGUF file, a .safetensors file or a folder with config.json");
  must_fail(test_write("x.gguf", "hello", 5), "x.gguf: not a GGUF file: expected it to begin with \"GGUF\", found \"hell\"");
  must_fail(test_write("x.gguf", "", 0), "found \"\" (0 bytes in all)");
  must_fail(test_tmpdir(), "config.json");
  must_fail(test_write("x.safetensors", "hello", 5), "config.json");
  must_fail(made("s.gguf", wrong_embedding), "key split.count: expected 2 to 1024 parts, file has 0");
  /* cut short */
  const char *path = made("t.gguf", NULL);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(truncate(path, st.st_size - 1), 0);
  char says[100];
  snprintf(says, sizeof says, "t.gguf: file has %ld bytes, needs %ld", (long)st.st_size - 1, (long)st.st_size);
  must_fail(path, says);
}

static void notices_that_the_file_changed(void **s) {
  (void)s;
  struct model_config c;
  struct err e = {0};
  const char *path = made("c.gguf", NULL);
  struct weights *w = must_open(path, &c);
  assert_int_equal(weights_unchanged(w, &e), 0);
  struct stat st;
  stat(path, &st);
  assert_int_equal(truncate(path, st.st_size - 100), 0);
  assert_int_equal(weights_unchanged(w, &e), -1);
  assert_non_null(strstr(e.msg, "c.gguf: the file on disk is no longer the one that was opened"));
  weights_close(w);
}

static void failing_allocations(void **s) {
  (void)s;
  const char *paths[] = {made("a.gguf", NULL), test_path("golden/gemma3-text-scale")};
  for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
    int failures = 0;
    for (int k = 1; k < 12; k++) {
      struct model_config c;
      struct err e = {0};
      mem_fail_after(k);
      struct weights *w = weights_open(paths[i], &c, &e);
      bool pending = mem_fail_pending();
      mem_fail_after(0);
      assert_int_equal(w != NULL, pending);
      if (!w) {
        assert_int_equal(e.code, ERR_NO_MEMORY);
        failures++;
      }
      weights_close(w);
    }
    assert_int_equal(failures, i == 0 ? 6 : 3);
  }
}

/* --- split sets --------------------------------------------------------------------------------------------------------- */

/* Part `no` of `count`: the first has the metadata and the embedding last comes in the last part. */
static void write_part_of(const char *name, int no, int count, int claimed_no, const char *tensor, int32_t total, const char *arch) {
  struct gguf_maker m;
  gguf_maker_init(&m);
  if (no == 0) gguf_maker_gemma3(&m, &small, 0);
  uint16_t n16 = (uint16_t)claimed_no, count16 = (uint16_t)count;
  gguf_maker_kv(&m, "split.no", 8, GM_U16, &n16, 2);
  gguf_maker_kv(&m, "split.count", 11, GM_U16, &count16, 2);
  gguf_maker_kv(&m, "split.tensors.count", 19, GM_I32, &total, 4);
  if (arch) gguf_maker_str(&m, "general.architecture", arch);
  if (!strcmp(tensor, "token_embd.weight")) gguf_maker_tensor(&m, tensor, GM_F32, 2, (uint64_t[]){8, 5}, NULL, 160);
  else if (*tensor) gguf_maker_tensor(&m, tensor, GM_F32, 1, (uint64_t[]){8}, NULL, 32);
  size_t n;
  unsigned char *file = gguf_maker_finish(&m, &n);
  test_write(name, file, n);
  free(file);
}
static void write_part(const char *name, int no, int count, int claimed_no, const char *tensor) {
  write_part_of(name, no, count, claimed_no, tensor, 2, NULL);
}
static const char *in_tmp(const char *name) {
  static char path[4][600];
  static int at;
  char *p = path[at++ & 3];
  snprintf(p, sizeof path[0], "%s/%s", test_tmpdir(), name);
  return p;
}

static void split_set(void **s) {
  (void)s;
  write_part("p-00001-of-00003.gguf", 0, 3, 0, "");
  write_part("p-00002-of-00003.gguf", 1, 3, 1, "output_norm.weight");
  write_part("p-00003-of-00003.gguf", 2, 3, 2, "token_embd.weight");
  for (int part = 1; part <= 3; part++) { /* any of them opens the set */
    char name[40];
    snprintf(name, sizeof name, "p-%05d-of-00003.gguf", part);
    struct model_config c;
    struct err e = {0};
    struct weight_view v;
    struct weights *w = must_open(in_tmp(name), &c);
    assert_string_equal(weights_format(w), "GGUF v3, 3 parts");
    assert_int_equal(c.vocab, 5);
    assert_int_equal(weights_count(w), 2);
    assert_int_equal(weights_get(w, "token_embd.weight", 5, 8, &v, &e), 0);
    assert_int_equal(weights_get(w, "output_norm.weight", 9, 9, &v, &e), -1);
    assert_non_null(strstr(e.msg, "p-00002-of-00003.gguf: tensor output_norm.weight"));
    assert_non_null(gguf_find(weights_gguf(w), "gemma3.block_count"));
    weights_close(w);
  }
  const char *first = in_tmp("p-00001-of-00003.gguf");
  write_part("p-00002-of-00003.gguf", 1, 3, 2, "output_norm.weight");
  must_fail(first, "p-00002-of-00003.gguf: expected part 2 of 3, its metadata says part 3 of 3");
  write_part("p-00002-of-00003.gguf", 1, 4, 1, "output_norm.weight");
  must_fail(first, "p-00002-of-00003.gguf: expected part 2 of 3, its metadata says part 2 of 4");
  write_part_of("p-00002-of-00003.gguf", 1, 3, 1, "output_norm.weight", 3, NULL);
  must_fail(first, "p-00002-of-00003.gguf: key split.tensors.count: expected 2 as in the first part, file has 3");
  write_part_of("p-00002-of-00003.gguf", 1, 3, 1, "output_norm.weight", 2, "llama");
  must_fail(first, "p-00002-of-00003.gguf: key general.architecture: expected gemma3 as in the first part, file has llama");
  write_part_of("p-00002-of-00003.gguf", 1, 3, 1, "output_norm.weight", 2, "gemma3");
  struct model_config same;
  weights_close(must_open(first, &same));
  write_part("p-00002-of-00003.gguf", 1, 3, 1, "token_embd.weight");
  must_fail(first, "tensor token_embd.weight: also present in another part");
  write_part("p-00002-of-00003.gguf", 1, 3, 1, "");
  must_fail(first, "split.tensors.count: expected 2 tensors in all parts, found 1");
  unlink(in_tmp("p-00002-of-00003.gguf"));
  must_fail(first, "p-00002-of-00003.gguf: expected part 2 of 3 beside the first part, no such file");
  unlink(first);
  must_fail(in_tmp("p-00003-of-00003.gguf"), "p-00001-of-00003.gguf: expected part 1 of 3 beside the other parts, no such file");
  write_part("renamed.gguf", 0, 3, 0, "");
  must_fail(in_tmp("renamed.gguf"), "renamed.gguf: it is one of 3 parts, expected a name that ends in -00001-of-00003.gguf");
}

/* --- checkpoints with odd prefixes, shards and headers ------------------------------------------------------------------- */

static const char config_text[] = "{\"model_type\":\"gemma3\",\"text_config\":{\"vocab_size\":4,\"hidden_size\":4,\"num_hidden_layers\":1,"
                                  "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":2,\"intermediate_size\":3}}";
static const char untied_text[] = "{\"model_type\":\"gemma3\",\"text_config\":{\"vocab_size\":4,\"hidden_size\":4,\"num_hidden_layers\":1,"
                                  "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":2,\"tie_word_embeddings\":false}}";

static void checkpoint(const char *folder, const char *config, const struct st_write *t, int n) {
  char path[600];
  struct err e = {0};
  mkdir(in_tmp(folder), 0700);
  snprintf(path, sizeof path, "%s/config.json", folder);
  test_write(path, config, strlen(config));
  snprintf(path, sizeof path, "%s/%s/model.safetensors", test_tmpdir(), folder);
  if (safetensors_write(path, t, n, &e) != 0) fail_msg("%s", e.msg);
}

static void prefixes_and_skipped_parts(void **s) {
  (void)s;
  static const char *const prefixes[] = {"model.", "language_model.model.", "model.language_model.", ""};
  float x[16] = {0.5f};
  for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
    char embed[80], norm[80];
    snprintf(embed, sizeof embed, "%sembed_tokens.weight", prefixes[i]);
    snprintf(norm, sizeof norm, "%slayers.0.self_attn.q_norm.weight", prefixes[i]);
    struct st_write t[] = {{embed, DTYPE_F32, 2, {4, 4}, x},
                           {norm, DTYPE_F32, 1, {2}, x},
                           {"vision_tower.x.weight", DTYPE_F32, 1, {4}, x},
                           {"model.multi_modal_projector.y", DTYPE_F32, 1, {4}, x},
                           {"lm_head.weight", DTYPE_F32, 2, {4, 4}, x}};
    checkpoint("prefix", config_text, t, ARRAY_LEN(t));
    struct model_config c;
    struct err e = {0};
    struct weight_view v;
    float y[2];
    struct weights *w = must_open(in_tmp("prefix"), &c);
    assert_int_equal(weights_get(w, "token_embd.weight", 4, 4, &v, &e), 0);
    assert_int_equal(weights_get_vector(w, "blk.0.attn_q_norm.weight", 2, y, &e), 0);
    assert_true(y[0] == 1.5f && y[1] == 1);
    assert_false(weights_has(w, "output.weight")); /* tied: a stored head is passed over */
    assert_int_equal(weights_report_unused(w, true, &e), 0);
    assert_int_equal(weights_get(w, "token_embd.weight", 3, 4, &v, &e), -1);
    assert_non_null(strstr(e.msg, "prefix/model.safetensors: tensor token_embd.weight: expected [3, 4], file has [4, 4]"));
    weights_close(w);
    checkpoint("prefix", untied_text, t, ARRAY_LEN(t));
    w = must_open(in_tmp("prefix"), &c);
    assert_int_equal(weights_get(w, "output.weight", 4, 4, &v, &e), 0);
    weights_close(w);
  }
  struct st_write twice[] = {{"model.norm.weight", DTYPE_F32, 1, {4}, x}, {"language_model.model.norm.weight", DTYPE_F32, 1, {4}, x}};
  checkpoint("twice", config_text, twice, 2);
  must_fail(in_tmp("twice"), "stands for the same weight as");
  struct st_write odd[] = {{"model.layers.00.mlp.up_proj.weight", DTYPE_F32, 1, {4}, x},
                           {"model.layers.256.mlp.up_proj.weight", DTYPE_F32, 1, {4}, x},
                           {"model.layers.0.mlp.up_proj.lora_A", DTYPE_U8, 1, {4}, x}};
  checkpoint("odd", config_text, odd, 3);
  struct model_config c;
  struct err e = {0};
  struct weights *w = must_open(in_tmp("odd"), &c);
  assert_int_equal(weights_report_unused(w, true, &e), -1);
  assert_non_null(strstr(e.msg, "(3 such tensors)"));
  weights_close(w);
}

/* A header of odd length leaves the data unaligned: it is copied, and right. */
static void unaligned_checkpoint(void **s) {
  (void)s;
  for (size_t pad = 0; pad < 4; pad++) {
    char header[200] = "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]}}";
    for (size_t n = strlen(header); (n + pad) % 4; n = strlen(header)) strcat(header, " ");
    unsigned char file[8 + 200 + 64] = {0};
    size_t n = strlen(header);
    file[0] = (unsigned char)n;
    memcpy(file + 8, header, n);
    for (int i = 0; i < 16; i++) memcpy(file + 8 + n + 4 * i, &(float){(float)i}, 4);
    checkpoint("unaligned", config_text, NULL, 0);
    test_write("unaligned/model.safetensors", file, 8 + n + 64);
    struct model_config c;
    struct err e = {0};
    struct weight_view v;
    struct weights *w = must_open(in_tmp("unaligned"), &c);
    if (n % 4) {
      mem_fail_after(1);
      assert_int_equal(weights_get(w, "token_embd.weight", 4, 4, &v, &e), -1);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      mem_fail_after(0);
    }
    for (int again = 0; again < 2; again++) {
      assert_int_equal(weights_get(w, "token_embd.weight", 4, 4, &v, &e), 0);
      assert_int_equal((uintptr_t)v.data % 4, 0);
      for (int i = 0; i < 16; i++) assert_true(((const float *)v.data)[i] == (float)i);
    }
    weights_done_with(w, &v); /* of a copy: nothing */
    assert_true(((const float *)v.data)[15] == 15);
    weights_close(w);
  }
}

static void sharded_checkpoint(void **s) {
  (void)s;
  float x[16] = {0};
  struct err e = {0};
  checkpoint("shards", config_text, NULL, 0);
  unlink(in_tmp("shards/model.safetensors"));
  struct st_write a = {"language_model.model.embed_tokens.weight", DTYPE_F32, 2, {4, 4}, x},
                  b = {"language_model.model.norm.weight", DTYPE_F32, 1, {4}, x};
  assert_int_equal(safetensors_write(in_tmp("shards/model-00001-of-00002.safetensors"), &a, 1, &e), 0);
  assert_int_equal(safetensors_write(in_tmp("shards/model-00002-of-00002.safetensors"), &b, 1, &e), 0);
  static const char index[] = "{\"weight_map\":{\"language_model.model.embed_tokens.weight\":\"model-00001-of-00002.safetensors\","
                              "\"language_model.model.norm.weight\":\"model-00002-of-00002.safetensors\"}}";
  test_write("shards/model.safetensors.index.json", index, sizeof index - 1);
  static const char *const ways[] = {"shards", "shards/model-00001-of-00002.safetensors", "shards/model-00002-of-00002.safetensors"};
  for (size_t i = 0; i < ARRAY_LEN(ways); i++) { /* a single shard stands for the set, as a part of a GGUF does */
    struct model_config c;
    struct weight_view v;
    struct weights *w = must_open(in_tmp(ways[i]), &c);
    assert_string_equal(weights_format(w), "safetensors, 2 shards");
    assert_int_equal(weights_get(w, "token_embd.weight", 4, 4, &v, &e), 0);
    assert_int_equal(weights_get(w, "output_norm.weight", 0, 5, &v, &e), -1);
    assert_non_null(strstr(e.msg, "model-00002-of-00002.safetensors: tensor output_norm.weight: expected [5], file has [4]"));
    weights_close(w);
  }
  assert_int_equal(truncate(in_tmp("shards/model-00002-of-00002.safetensors"), 90), 0);
  must_fail(in_tmp("shards"), "model-00002-of-00002.safetensors");
  unlink(in_tmp("shards/model-00002-of-00002.safetensors"));
  must_fail(in_tmp("shards"), "model-00002-of-00002.safetensors: no such file");
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_fixture_binds),        cmocka_unit_test(both_formats_agree),
    cmocka_unit_test(says_what_does_not_fit),     cmocka_unit_test(types_and_leftovers),
    cmocka_unit_test(refuses_what_is_no_model),   cmocka_unit_test(notices_that_the_file_changed),
    cmocka_unit_test(failing_allocations),        cmocka_unit_test(split_set),
    cmocka_unit_test(prefixes_and_skipped_parts), cmocka_unit_test(unaligned_checkpoint),
    cmocka_unit_test(sharded_checkpoint),
};
TEST_MAIN(tests)
