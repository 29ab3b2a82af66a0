/* t_stream.c — events out of bytes, however they are cut; what events of each API mean; requests as each API wants them. */
#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "load/dialect.h"
#include "load/sse.h"

/* ---- server-sent events -------------------------------------------------------------------------------------------------------------- */

static void collect(void *ctx, const char *data, size_t n) {
  assert_int_equal(strlen(data), n);
  buf_printf(ctx, "[%s]", data);
}

static void check_events(const char *bytes, const char *expected) {
  size_t n = strlen(bytes);
  for (size_t piece = 1; piece <= n + 1; piece++) {
    struct sse s;
    struct buf out;
    sse_init(&s, 1 << 10);
    buf_init(&out, 0);
    for (size_t at = 0; at < n; at += piece) {
      char *copy = test_guard_alloc(MIN(piece, n - at)); /* no byte after them may be looked at */
      memcpy(copy, bytes + at, MIN(piece, n - at));
      assert_true(sse_feed(&s, copy, MIN(piece, n - at), collect, &out));
      test_guard_free(copy, MIN(piece, n - at));
    }
    if (strcmp(buf_cstr(&out), expected)) fail_msg("%zu bytes at a time: expected %s, found %s", piece, expected, buf_cstr(&out));
    sse_free(&s);
    buf_free(&out);
  }
}

static void events(void **state) {
  (void)state;
  check_events("data: {\"a\": 1}\n\ndata: [DONE]\n\n", "[{\"a\": 1}][[DONE]]");
  check_events("data:x\r\n\r\ndata: y\r\n\r\n", "[x][y]");
  check_events("data: x\r\rdata: y\r\r", "[x][y]");
  check_events("data: one\ndata: two\n\n", "[one\ntwo]");
  check_events(": a comment\nevent: message\nid: 7\ndata: x\nretry: 3\n\n", "[x]");
  check_events("data\n\n", "[]");
  check_events("data: \n\n", "[]");
  check_events("data:  two blanks\n\n", "[ two blanks]");
  check_events("database: x\n\n\n\n", "");
  check_events("{\"text\": \"no stream\"}", "");
  check_events("data: cut", "");
  check_events("data: cut\n", "");
  check_events("", "");
}

static void ignore(void *ctx, const char *data, size_t n) { (void)ctx, (void)data, (void)n; }

static void too_large(void **state) {
  (void)state;
  struct sse s;
  sse_init(&s, 100);
  for (int i = 0; i < 9; i++) assert_true(sse_feed(&s, "0123456789", 10, ignore, NULL));
  assert_false(sse_feed(&s, "0123456789a", 11, ignore, NULL));
  sse_free(&s);
  sse_init(&s, 100);
  bool fine = true;
  for (int i = 0; i < 50 && fine; i++) fine = sse_feed(&s, "data: 0123456789\n", 17, ignore, NULL);
  assert_false(fine);
  sse_free(&s);
}

/* ---- what they mean ------------------------------------------------------------------------------------------------------------------ */

static bool read_event(enum load_api api, const char *text, struct dialect_piece *p, json_t **kept) {
  *kept = json_loads(text, JSON_DECODE_ANY, NULL);
  assert_non_null(*kept);
  return dialect_read(api, *kept, p);
}

static void pieces(void **state) {
  (void)state;
  static const struct {
    enum load_api api;
    const char *event, *text; /* text NULL: none */
    bool ended, aborted, has_usage;
    int prompt, completion, cached;
    const char *error;
  } rows[] = {
      {LOAD_OPENAI, "{\"choices\": [{\"text\": \" a\", \"finish_reason\": null}]}", " a", 0, 0, 0, 0, 0, 0, NULL},
      {LOAD_OPENAI, "{\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}], \"usage\": null}", NULL, 1, 0, 0, 0, 0, 0, NULL},
      {LOAD_OPENAI,
       "{\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 9, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}",
       NULL, 0, 0, 1, 5, 9, 4, NULL},
      {LOAD_OPENAI, "{\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 9, \"prompt_tokens_details\": null}}", NULL,
       0, 0, 1, 5, 9, 0, NULL},
      {LOAD_CHAT, "{\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": null}}]}", NULL, 0, 0, 0,
       0, 0, 0, NULL},
      {LOAD_CHAT, "{\"choices\": [{\"delta\": {\"content\": \"x\"}}], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 2}}", "x", 0,
       0, 1, 3, 2, 0, NULL},
      {LOAD_CHAT, "{\"choices\": [{\"delta\": {\"content\": null, \"reasoning_content\": \"hm\"}}]}", "hm", 0, 0, 0, 0, 0, 0, NULL},
      {LOAD_CHAT, "{\"choices\": [{\"delta\": {}, \"finish_reason\": \"abort\"}]}", NULL, 1, 1, 0, 0, 0, 0, NULL},
      {LOAD_CHAT, "{\"error\": {\"message\": \"too long\", \"code\": 400}}", NULL, 0, 0, 0, 0, 0, 0, "too long"},
      {LOAD_CHAT, "{\"error\": \"plain\"}", NULL, 0, 0, 0, 0, 0, 0, "plain"},
      {LOAD_SGLANG,
       "{\"text\": \"ab\", \"meta_info\": {\"prompt_tokens\": 8, \"completion_tokens\": 2, \"cached_tokens\": 6, \"finish_reason\": null}}",
       "ab", 0, 0, 1, 8, 2, 6, NULL},
      {LOAD_SGLANG, "{\"text\": \"\", \"meta_info\": {\"finish_reason\": {\"type\": \"length\", \"length\": 3}}}", NULL, 1, 0, 0, 0, 0, 0,
       NULL},
      {LOAD_SGLANG, "{\"text\": \"\", \"meta_info\": {\"finish_reason\": {\"type\": \"abort\", \"message\": \"full\"}}}", NULL, 1, 1, 0, 0,
       0, 0, "full"},
      {LOAD_SGLANG, "{\"error\": {\"message\": \"bad\"}}", NULL, 0, 0, 0, 0, 0, 0, "bad"},
  };
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    struct dialect_piece p;
    json_t *kept;
    if (!read_event(rows[i].api, rows[i].event, &p, &kept)) fail_msg("row %zu", i);
    bool same_text = rows[i].text ? p.text && !strcmp(p.text, rows[i].text) && p.n_text == strlen(p.text) : !p.text;
    bool same_error = rows[i].error ? p.error && !strcmp(p.error, rows[i].error) : !p.error;
    if (!same_text || !same_error || p.ended != rows[i].ended || p.aborted != rows[i].aborted || p.has_usage != rows[i].has_usage ||
        p.prompt_tokens != rows[i].prompt || p.completion_tokens != rows[i].completion || p.cached_tokens != rows[i].cached)
      fail_msg("row %zu: %s", i, rows[i].event);
    json_decref(kept);
  }
}

static void strangers(void **state) {
  (void)state;
  static const char *const events_of_nobody[] = {"[]", "7", "\"x\"", "null", "{}", "{\"meta\": 1}", "{\"choices\": 3}"};
  for (int api = LOAD_OPENAI; api <= LOAD_SGLANG; api++)
    for (size_t i = 0; i < ARRAY_LEN(events_of_nobody); i++) {
      struct dialect_piece p;
      json_t *kept;
      if (read_event((enum load_api)api, events_of_nobody[i], &p, &kept)) fail_msg("%s is an event of API %d", events_of_nobody[i], api);
      json_decref(kept);
    }
}

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

static void check_body(const struct load_settings *s, const struct load_request *q, struct dialect_history *h, const char *expected) {
  struct buf b;
  buf_init(&b, 0);
  dialect_body(s, q, h, &b);
  json_t *found = json_loads(buf_cstr(&b), 0, NULL), *want = json_loads(expected, 0, NULL);
  assert_non_null(want);
  if (!json_equal(found, want)) fail_msg("expected %s, found %s", expected, buf_cstr(&b));
  json_decref(found);
  json_decref(want);
  buf_free(&b);
}

static void bodies(void **state) {
  (void)state;
  char text[] = "a b", more[] = "c", picture[] = "data:image/png;base64,AAAA";
  char *pictures[] = {picture, picture};
  struct load_request q = {.text = text, .output_tokens = 9, .next = -1};
  struct load_settings s = {.model = "m", .api = LOAD_OPENAI, .ignore_eos = true};
  struct dialect_history h = {0};
  check_body(
      &s, &q, NULL,
      "{\"model\": \"m\", \"prompt\": \"a b\", \"max_tokens\": 9, \"temperature\": 0.0, \"stream\": true, \"ignore_eos\": true, \"stream_options\": "
      "{\"include_usage\": true, \"continuous_usage_stats\": true}}");
  s.ignore_eos = false; /* nothing that OpenAI's own API does not know */
  q.system = "sys";
  check_body(
      &s, &q, NULL,
      "{\"model\": \"m\", \"prompt\": \"sys\\n\\na b\", \"max_tokens\": 9, \"temperature\": 0.0, \"stream\": true, \"stream_options\": "
      "{\"include_usage\": true}}");
  s.api = LOAD_SGLANG;
  check_body(
      &s, &q, &h,
      "{\"text\": \"sys\\n\\na b\", \"sampling_params\": {\"max_new_tokens\": 9, \"temperature\": 0.0, \"ignore_eos\": false}, \"stream\": true}");
  dialect_answer(s.api, &h, " said", 5);
  struct load_request next = {.text = more, .system = q.system, .output_tokens = 2, .turn = 1, .next = -1};
  check_body(
      &s, &next, &h,
      "{\"text\": \"sys\\n\\na b said\\n\\nc\", \"sampling_params\": {\"max_new_tokens\": 2, \"temperature\": 0.0, \"ignore_eos\": false}, \"stream\": "
      "true}");
  dialect_history_free(&h);
  s.api = LOAD_CHAT;
  check_body(
      &s, &q, &h,
      "{\"model\": \"m\", \"messages\": [{\"role\": \"system\", \"content\": \"sys\"}, {\"role\": \"user\", \"content\": \"a b\"}], \"max_tokens\": 9, "
      "\"temperature\": 0.0, \"stream\": true, \"stream_options\": {\"include_usage\": true}}");
  dialect_answer(s.api, &h, "said", 4);
  check_body(
      &s, &next, &h,
      "{\"model\": \"m\", \"messages\": [{\"role\": \"system\", \"content\": \"sys\"}, {\"role\": \"user\", \"content\": \"a b\"}, {\"role\": \"assistant\", "
      "\"content\": \"said\"}, {\"role\": \"user\", \"content\": \"c\"}], \"max_tokens\": 2, \"temperature\": 0.0, \"stream\": true, \"stream_options\": "
      "{\"include_usage\": true}}");
  dialect_history_free(&h);
  q = (struct load_request){.text = text, .output_tokens = 9, .next = -1, .pictures = pictures, .n_pictures = 2};
  check_body(
      &s, &q, NULL,
      "{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": "
      "\"data:image/png;base64,AAAA\"}}, {\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,AAAA\"}}, {\"type\": \"text\", "
      "\"text\": \"a b\"}]}], \"max_tokens\": 9, \"temperature\": 0.0, \"stream\": true, \"stream_options\": {\"include_usage\": true}}");
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(events), cmocka_unit_test(too_large), cmocka_unit_test(pieces),
                                          cmocka_unit_test(strangers), cmocka_unit_test(bodies)};
TEST_MAIN(tests)
