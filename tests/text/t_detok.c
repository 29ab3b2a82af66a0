/* t_detok.c — streamed text against the published pieces, and against decoding everything at once. */
#include "released.h"

#include "text/detok.h"

struct tally {
  const struct tokenizer *tok;
  const char *family;
  int lines;
};

static void published_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  const struct tokenizer *t = tally->tok;
  if (!str_is(json_str(line, "family"), tally->family)) return;
  tally->lines++;
  const char *name = json_string_value(json_object_get(line, "id"));
  struct tok_ids ids = ids_of(json_object_get(line, "ids"));
  for (size_t i = 0; i < ids.n; i++) {
    if (ids.v[i] < tok_vocab(t)) continue;
    tok_ids_free(&ids); /* <image_soft_token>, which files without pictures lack */
    return;
  }
  struct detok d;
  struct buf piece, all, want_all;
  buf_init(&piece, 0);
  buf_init(&all, 0);
  buf_init(&want_all, 0);
  detok_init(&d, t, json_flag(line, "skip_special"));
  for (size_t i = 0; i < ids.n; i++) {
    const json_t *want = json_array_get(json_object_get(line, "pieces"), i);
    buf_clear(&piece);
    detok_push(&d, ids.v[i], &piece);
    buf_append(&all, piece.data, piece.len);
    buf_append(&want_all, json_string_value(want), json_string_length(want));
    /* the list's own decoder waits for a third byte after the beginning of a surrogate, which is broken after two */
    if (str_is(json_str(line, "tag"), "surrogate")) assert_true(all.len >= want_all.len);
    else expect_text(name, &piece, str_of(json_string_value(want), json_string_length(want)));
  }
  expect_text(name, &all, str_of(buf_cstr(&want_all), want_all.len));
  buf_clear(&piece);
  detok_finish(&d, &piece);
  expect_text(name, &piece, json_str(line, "tail"));
  buf_free(&piece);
  buf_free(&all);
  buf_free(&want_all);
  tok_ids_free(&ids);
}
static void published(struct source *s, int n_lines) {
  struct tally tally = {.tok = open_source(s), .family = s->family};
  assert_int_equal(each_line("detok.jsonl", published_line, &tally), 247);
  assert_int_equal(tally.lines, n_lines);
}
static void published_gemma3(void **state) {
  (void)state;
  published(gemma3, 86);
}
static void published_gemma4(void **state) {
  (void)state;
  published(gemma4, 86);
}
static void published_llama3(void **state) {
  (void)state;
  published(llama3, 75);
}

static void stream(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out) {
  struct detok d;
  detok_init(&d, t, skip_special);
  for (size_t i = 0; i < n; i++) {
    detok_push(&d, ids[i], out);
    assert_true(utf8_valid(buf_cstr(out), out->len)); /* what has left is whole */
    assert_true(d.n_pending <= 3);
  }
  detok_finish(&d, out);
}

/* Random ids, mostly bytes that are likely to form or break characters. */
static int32_t random_id(uint64_t *rng, const struct tokenizer *t) {
  static const unsigned char edges[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                                        0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF, 0x81, 0x98, 0x9F};
  char byte[8];
  switch (test_rand_int(rng, 0, 9)) {
  case 0: return test_rand_int(rng, -2, tok_vocab(t) + 1);
  case 1: return test_rand_int(rng, 0, 4);
  case 2: return test_rand_int(rng, 261, MIN(tok_vocab(t), 500) - 1);
  default: break;
  }
  snprintf(byte, sizeof byte, "<0x%02X>", edges[test_rand_int(rng, 0, (int)ARRAY_LEN(edges) - 1)]);
  return tok_find(t, byte);
}

static void streamed_is_decoded(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  uint64_t rng = 11;
  for (int round = 0; round < 20000; round++) {
    int32_t ids[24];
    size_t n = (size_t)test_rand_int(&rng, 0, 24);
    bool skip_special = round & 1;
    struct buf streamed, decoded;
    buf_init(&streamed, 0);
    buf_init(&decoded, 0);
    for (size_t i = 0; i < n; i++) ids[i] = random_id(&rng, t);
    stream(t, ids, n, skip_special, &streamed);
    tok_decode(t, ids, n, skip_special, &decoded);
    expect_text("streamed", &streamed, str_of(buf_cstr(&decoded), decoded.len));
    buf_free(&streamed);
    buf_free(&decoded);
  }
  tok_close(t);
}

/* Characters come at the earliest moment: after the last of their bytes, a broken sequence as soon as it is broken. */
static void earliest(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  static const struct {
    const char *ids[6], *pieces[6], *tail;
  } cases[] = {{{"<0xF0>", "<0x9F>", "<0x98>", "<0x80>"}, {"", "", "", "😀"}, ""},
               {{"<0xE2>", "<0x82>", "a"},
                {"", "",
                 "\xEF\xBF\xBD"
                 "a"},
                ""},
               {{"<0xE2>", "<0x28>"}, {"", "\xEF\xBF\xBD("}, ""},
               {{"<0xE0>", "<0x80>"}, {"", "\xEF\xBF\xBD\xEF\xBF\xBD"}, ""},
               {{"<0xED>", "<0xA0>"}, {"", "\xEF\xBF\xBD\xEF\xBF\xBD"}, ""},
               {{"<0xF4>", "<0x90>"}, {"", "\xEF\xBF\xBD\xEF\xBF\xBD"}, ""},
               {{"<0xC3>", "<0xC3>", "<0xA9>"}, {"", "\xEF\xBF\xBD", "é"}, ""},
               {{"<0xFF>"}, {"\xEF\xBF\xBD"}, ""},
               {{"<0xC3>", "<eos>", "<0xA9>"}, {"", "\xEF\xBF\xBD<eos>", "\xEF\xBF\xBD"}, ""},
               {{"a", "<0xF0>", "<0x9F>"}, {"a", "", ""}, "\xEF\xBF\xBD"},
               {{"\xE2\x96\x81", "\xE2\x96\x81t"}, {" ", " t"}, ""}};
  for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
    struct detok d;
    struct buf piece;
    buf_init(&piece, 0);
    detok_init(&d, t, false);
    for (int i = 0; i < 6 && cases[k].ids[i]; i++) {
      buf_clear(&piece);
      detok_push(&d, tok_find(t, cases[k].ids[i]), &piece);
      expect_text(cases[k].ids[i], &piece, str_c(cases[k].pieces[i]));
    }
    buf_clear(&piece);
    detok_finish(&d, &piece);
    expect_text("tail", &piece, str_c(cases[k].tail));
    buf_free(&piece);
  }
  tok_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published_gemma3),    cmocka_unit_test(published_gemma4), cmocka_unit_test_teardown(published_llama3, close_sources),
    cmocka_unit_test(streamed_is_decoded), cmocka_unit_test(earliest),
};
TEST_MAIN(tests)
