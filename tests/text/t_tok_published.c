/* t_tok_published.c — every family's real vocabulary against published ids. */
#include "released.h"

#include "base/digest.h"
#include "tok_job.h"

/* --- lines ------------------------------------------------------------------------------------------------------------------------ */

struct tally {
  const struct tokenizer *tok;
  const char *family;
  int done, skipped;
};

static void check_decoded(const char *name, const struct tokenizer *t, const struct tok_ids *ids, bool skip_special, struct str want) {
  struct buf text;
  buf_init(&text, 0);
  tok_decode(t, ids->v, ids->n, skip_special, &text);
  expect_text(name, &text, want);
  buf_free(&text);
}

static bool has_names(const struct tokenizer *t, const char *needs) {
  if (!strcmp(needs, "image_soft_token")) return tok_find(t, "<image_soft_token>") >= 0;
  assert_string_equal(needs, "llama32v_names");
  return tok_find(t, "<|image|>") >= 0;
}

static void published_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  const struct tokenizer *t = tally->tok;
  const char *name = json_string_value(json_object_get(line, "id"));
  const char *needs = json_string_value(json_object_get(line, "needs"));
  if (needs && !has_names(t, needs)) {
    tally->skipped++;
    return;
  }
  bool special = json_flag(line, "special"), bos = json_flag(line, "bos");
  struct tok_ids ids = {0};
  tok_encode(t, json_str(line, "text"), special, bos, &ids);
  expect_ids(name, &ids, json_object_get(line, "ids"));
  for (size_t i = bos; i < ids.n; i++) assert_true(special || !tok_is_control(t, ids.v[i]));
  struct str decoded = json_str(line, "decoded");
  check_decoded(name, t, &ids, false, decoded);
  check_decoded(name, t, &ids, true, json_object_get(line, "decoded_skip") ? json_str(line, "decoded_skip") : decoded);
  tok_ids_free(&ids);
  tally->done++;
}

static void random_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  struct tok_ids ids = {0};
  tok_encode(tally->tok, json_str(line, "text"), false, false, &ids);
  expect_ids("tok_random", &ids, json_object_get(line, tally->family));
  tok_ids_free(&ids);
}

static void invalid_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  struct str hex = json_str(line, "hex");
  char bytes[256];
  assert_true(hex.n / 2 <= sizeof bytes);
  for (size_t i = 0; i < hex.n / 2; i++) bytes[i] = (char)(str_hex_digit(hex.p[2 * i]) << 4 | str_hex_digit(hex.p[2 * i + 1]));
  struct tok_ids ids = {0};
  tok_encode(tally->tok, str_of(bytes, hex.n / 2), false, false, &ids);
  expect_ids(hex.p, &ids, json_object_get(line, tally->family));
  check_decoded(hex.p, tally->tok, &ids, false, json_str(line, "text"));
  tok_ids_free(&ids);
}

static void published(struct source *s, int n_lines) {
  char name[40];
  struct tally tally = {.tok = open_source(s), .family = s->family};
  snprintf(name, sizeof name, "tok_%s.jsonl", s->family);
  assert_int_equal(each_line(name, published_line, &tally), n_lines);
  print_message("%d lines, %d need other names\n", tally.done, tally.skipped);
  assert_true(tally.done > 700);
  assert_int_equal(each_line("tok_random.jsonl", random_line, &tally), 1200);
  assert_int_equal(each_line("tok_invalid_utf8.jsonl", invalid_line, &tally), 49);
}
static void published_gemma3(void **state) {
  (void)state;
  published(gemma3, 811);
}
static void published_gemma4(void **state) {
  (void)state;
  published(gemma4, 869);
}
static void published_llama3(void **state) {
  (void)state;
  published(llama3, 868);
}
static void published_llama3_first(void **state) {
  (void)state;
  published(llama3_first, 868);
}

/* --- long texts --------------------------------------------------------------------------------------------------------------------- */

static void repeated_text(const json_t *line, struct buf *text) {
  size_t i;
  json_t *pair;
  json_array_foreach(json_object_get(line, "repeat"), i, pair) {
    const json_t *s = json_array_get(pair, 0);
    for (json_int_t k = json_integer_value(json_array_get(pair, 1)); k > 0; k--)
      buf_append(text, json_string_value(s), json_string_length(s));
  }
}

static void hostile_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  const char *name = json_string_value(json_object_get(line, "name"));
  const json_t *want = json_object_get(line, tally->family);
  struct buf text;
  buf_init(&text, 0);
  repeated_text(line, &text);
#ifdef CYGNET_DEBUG
  if (text.len > 200000) { /* the optimised build does them all */
    buf_free(&text);
    return;
  }
#endif
  struct job job = {.tok = tally->tok, .text = str_of(text.data, text.len)};
  run_small_stack(&job);
  print_message("%-24s %8zu bytes %8zu ids  %6.1f ms\n", name, text.len, job.ids.n, job.cpu_s * 1e3);
  assert_int_equal(job.ids.n, json_integer_value(json_object_get(want, "n")));
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(job.ids.v[i], json_integer_value(json_array_get(json_object_get(want, "head"), i)));
    assert_int_equal(job.ids.v[job.ids.n - 3 + i], json_integer_value(json_array_get(json_object_get(want, "tail"), i)));
  }
  unsigned char digest[DIGEST_BYTES];
  char hex[2 * DIGEST_BYTES + 1];
  digest_sha256(job.ids.v, job.ids.n * sizeof *job.ids.v, digest);
  for (int i = 0; i < DIGEST_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  assert_string_equal(hex, json_string_value(json_object_get(want, "sha256")));
#ifndef CYGNET_DEBUG
  assert_true(job.cpu_s < 1.0);
#endif
  tok_ids_free(&job.ids);
  buf_free(&text);
}
static void hostile(struct source *s) {
  struct tally tally = {.tok = open_source(s), .family = s->family};
  assert_int_equal(each_line("tok_perf.jsonl", hostile_line, &tally), 27);
}
static void hostile_gemma3(void **state) {
  (void)state;
  hostile(gemma3);
}
static void hostile_gemma4(void **state) {
  (void)state;
  hostile(gemma4);
}
static void hostile_llama3(void **state) {
  (void)state;
  hostile(llama3);
}

/* --- what a family fixes ---------------------------------------------------------------------------------------------------------- */

static void opens_fast(void **state) {
  (void)state;
  int n = 0;
  for (size_t k = 0; k < ARRAY_LEN(sources); k++) {
    struct source *s = &sources[k];
    if (!s->tok) continue; /* absent: the tests above said so */
    struct err e = {0};
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
      clock_t start = clock();
      struct tokenizer *t = tok_open(source_path(s), &e);
      best = MIN(best, (double)(clock() - start) / CLOCKS_PER_SEC);
      assert_non_null(t);
      assert_int_equal(tok_vocab(t), s->n_vocab);
      tok_close(t);
    }
    print_message("%-28s %.1f ms\n", s->file ? s->file : "sample model", best * 1e3);
#ifndef CYGNET_DEBUG
    assert_true(best < s->open_s);
#endif
    n++;
  }
  if (!n) skip();
}

struct known {
  const char *spelling;
  int32_t id;
  bool control;
};
static void expect_known(const struct tokenizer *t, const struct known *known, size_t n, int n_control) {
  for (size_t i = 0; i < n; i++) {
    assert_int_equal(tok_find(t, known[i].spelling), known[i].id);
    assert_int_equal(tok_is_control(t, known[i].id), known[i].control);
  }
  for (int32_t id = 0; id < tok_vocab(t); id++) n_control -= tok_is_control(t, id);
  assert_int_equal(n_control, 0);
  assert_int_equal(tok_find(t, "no such piece in any vocabulary"), -1);
  assert_int_equal(tok_piece(t, tok_vocab(t)).n, 0);
  assert_int_equal(tok_piece(t, -1).n, 0);
}
static void expect_eog(const struct tokenizer *t, const int32_t *want, int n_want) {
  int n;
  const int32_t *eog = tok_eog(t, &n);
  assert_int_equal(n, n_want);
  for (int i = 0; i < n; i++) assert_int_equal(eog[i], want[i]);
}

static void table_gemma3(void **state) {
  (void)state;
  const struct tokenizer *t = open_source(gemma3);
  static const struct known known[] = {{"<pad>", 0, true},
                                       {"<eos>", 1, true},
                                       {"<bos>", 2, true},
                                       {"<unk>", 3, true},
                                       {"<mask>", 4, true},
                                       {"[multimodal]", 5, true},
                                       {"<unused0>", 6, true},
                                       {"<start_of_turn>", 105, true},
                                       {"<end_of_turn>", 106, true},
                                       {"\n", 107, false},
                                       {"  ", 138, false},
                                       {"\xE2\x96\x81\xE2\x96\x81", 138, false},
                                       {"<table>", 168, false},
                                       {"</s>", 212, false},
                                       {"<0x41>", 303, false},
                                       {"\xE2\x96\x81", 236743, false},
                                       {"\t", 255968, false},
                                       {"<start_of_image>", 255999, true},
                                       {"<end_of_image>", 256000, true},
                                       {"<unused6241>", 262143, true}};
  expect_known(t, known, ARRAY_LEN(known), 6 + 6242 + 2 + 2);
  expect_eog(t, (const int32_t[]){1, 106}, 2);
  assert_int_equal(tok_bos(t), 2);
  assert_true(str_is(tok_piece(t, tok_find(t, "\xE2\x96\x81hello")), " hello"));
  assert_true(str_is(tok_piece(t, 106), "<end_of_turn>"));
}

static void table_gemma4(void **state) {
  (void)state;
  const struct tokenizer *t = open_source(gemma4);
  static const struct known known[] = {{"<pad>", 0, true},
                                       {"<eos>", 1, true},
                                       {"<bos>", 2, true},
                                       {"<unk>", 3, true},
                                       {"<mask>", 4, true},
                                       {"[multimodal]", 5, false},
                                       {"<unused0>", 6, false},
                                       {"<|tool>", 46, true},
                                       {"<tool|>", 47, true},
                                       {"<|tool_call>", 48, true},
                                       {"<tool_call|>", 49, true},
                                       {"<|tool_response>", 50, true},
                                       {"<tool_response|>", 51, true},
                                       {"<|\"|>", 52, true},
                                       {"<|think|>", 98, true},
                                       {"<|channel>", 100, true},
                                       {"<channel|>", 101, true},
                                       {"<|turn>", 105, true},
                                       {"<turn|>", 106, true},
                                       {"\n", 107, false},
                                       {"\n\n", 108, false},
                                       {"  ", 138, false},
                                       {"<table>", 168, false},
                                       {"</s>", 212, false},
                                       {"<0x41>", 303, false},
                                       {"\xE2\x96\x81hello", 29104, false},
                                       {" ", 236743, false},
                                       {"<|image>", 255999, true},
                                       {"<|audio>", 256000, true},
                                       {"<|image|>", 258880, true},
                                       {"<|audio|>", 258881, true},
                                       {"<image|>", 258882, true},
                                       {"<audio|>", 258883, true},
                                       {"<|video|>", 258884, true}};
  expect_known(t, known, ARRAY_LEN(known), 24);
  expect_eog(t, (const int32_t[]){1, 106, 50}, 3);
  assert_int_equal(tok_bos(t), 2);
  struct str text = tok_chat_template(t);
  assert_true(text.n > 1000 && str_starts(text, "{%- macro format_parameters"));
}

static void table_llama3(void **state) {
  (void)state;
  const struct tokenizer *t = open_source(llama3);
  static const struct known known[] = {{"!", 0, false},
                                       {" ", 220, false},
                                       {" the", 279, false},
                                       {"<0x41>", -1, false},
                                       {"<|begin_of_text|>", 128000, true},
                                       {"<|end_of_text|>", 128001, true},
                                       {"<|reserved_special_token_1|>", 128003, true},
                                       {"<|finetune_right_pad_id|>", 128004, true},
                                       {"<|start_header_id|>", 128006, true},
                                       {"<|end_header_id|>", 128007, true},
                                       {"<|eom_id|>", 128008, true},
                                       {"<|eot_id|>", 128009, true},
                                       {"<|python_tag|>", 128010, true},
                                       {"<|reserved_special_token_246|>", 128255, true},
                                       {"<|image|>", 128256, true}};
  expect_known(t, known, ARRAY_LEN(known), 257);
  expect_eog(t, (const int32_t[]){128001, 128008, 128009}, 3);
  assert_int_equal(tok_bos(t), 128000);
  assert_int_equal(tok_chat_template(t).n, 0);
  t = open_source(llama3_first);
  expect_eog(t, (const int32_t[]){128001, 128009}, 2); /* <|eom_id|> came with 3.1 */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published_gemma3),
    cmocka_unit_test(published_gemma4),
    cmocka_unit_test(published_llama3),
    cmocka_unit_test(published_llama3_first),
    cmocka_unit_test(hostile_gemma3),
    cmocka_unit_test(hostile_gemma4),
    cmocka_unit_test(hostile_llama3),
    cmocka_unit_test(opens_fast),
    cmocka_unit_test(table_gemma3),
    cmocka_unit_test(table_gemma4),
    cmocka_unit_test_teardown(table_llama3, close_sources),
};
TEST_MAIN(tests)
