/* t_chat_families.c — conversations of Gemma 4 and Llama 3.2 Vision against the released templates' output, and what is peculiar to each. */
#include "t_chat.h"

#include <time.h>

/* --- the published lines ------------------------------------------------------------------------------------------------------------- */

struct tally {
  const struct tokenizer *tok;
  enum chat_template template;
  bool released_ids; /* the vocabulary is the released one */
  int rendered, refused, unsafe;
};

static void check_segments(const struct tally *tally, const char *name, const struct chat_rendered *r, const json_t *segments) {
  for (int i = 0; i < r->n_segments && i < (int)json_array_size(segments); i++) {
    const json_t *want = json_array_get(segments, (size_t)i);
    const struct chat_segment *s = &r->segments[i];
    bool same;
    if (json_is_integer(want)) {
      const char *spelling = released_spelling(tok_family(tally->tok), json_integer_value(want));
      assert_non_null(spelling);
      same = s->id >= 0 && str_is(tok_piece(tally->tok, s->id), spelling);
      if (tally->released_ids && spelling) same = s->id == json_integer_value(want) && same;
    } else {
      same = s->id < 0 && s->text && str_eq(str_of(s->text, s->n), str_of(json_string_value(want), json_string_length(want)));
    }
    if (!same) fail_msg("%s: segment %d differs: id %d, text \"%s\"", name, i, (int)s->id, s->text ? s->text : "");
  }
  if (r->n_segments != (int)json_array_size(segments))
    fail_msg("%s: expected %zu segments, found %d", name, json_array_size(segments), r->n_segments);
}

/* Text must stay text: no control token comes out of it, and it decodes to itself (a literal U+2581 to a blank). */
static void check_safe(const char *name, const struct tokenizer *t, const struct chat_rendered *r) {
  for (int i = 0; i < r->n_segments; i++) {
    const struct chat_segment *s = &r->segments[i];
    if (s->id >= 0) continue;
    struct tok_ids ids = {0};
    struct buf text, want;
    buf_init(&text, 0);
    buf_init(&want, 0);
    for (size_t k = 0; k < s->n;) {
      bool blank = tok_family(t) != TOK_LLAMA3 && s->n - k >= 3 && !memcmp(s->text + k, "\xE2\x96\x81", 3);
      buf_append(&want, blank ? " " : s->text + k, 1);
      k += blank ? 3 : 1;
    }
    tok_encode(t, str_of(s->text, s->n), false, false, &ids);
    for (size_t k = 0; k < ids.n; k++)
      if (tok_is_control(t, ids.v[k])) fail_msg("%s: control token %d out of \"%s\"", name, (int)ids.v[k], s->text);
    tok_decode(t, ids.v, ids.n, false, &text);
    expect_text(name, &text, str_of(buf_cstr(&want), want.len));
    buf_free(&text);
    buf_free(&want);
    tok_ids_free(&ids);
  }
}

static void published_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  const char *name = json_string_value(json_object_get(line, "name"));
  struct chat_options o = line_options(line, tally->template);
  struct chat_rendered r;
  struct err e = {0};
  int rc = chat_render(tally->tok, json_object_get(line, "messages"), json_object_get(line, "tools"), &o, &r, &e);
  if (json_is_string(json_object_get(line, "error"))) {
    if (rc == 0) fail_msg("%s: expected to be refused", name);
    assert_int_equal(err_http_status(e.code), 400);
    assert_non_null(strstr(e.msg, "messages"));
    assert_int_equal(r.n_segments, 0);
    tally->refused++;
    return;
  }
  if (rc != 0) fail_msg("%s: %s", name, e.msg);
  struct buf text;
  struct tok_ids ids = {0};
  buf_init(&text, 0);
  chat_text(tally->tok, &r, &text);
  expect_text(name, &text, json_str(line, "rendered"));
  check_segments(tally, name, &r, json_object_get(line, "segments"));
  check_safe(name, tally->tok, &r);
  const json_t *safe = json_object_get(line, "safe_ids");
  tally->unsafe += safe != NULL;
  if (tally->released_ids) {
    chat_ids(tally->tok, &r, &ids);
    expect_ids(name, &ids, safe ? safe : json_object_get(line, "ids"));
    tok_ids_free(&ids);
  }
  bool in_thought = str_ends(json_str(line, "rendered"), "<|channel>thought\n");
  assert_int_equal(r.in_thought, in_thought);
  buf_free(&text);
  chat_rendered_free(&r);
  tally->rendered++;
}

static void published(const char *file, struct tally tally, int n_lines) {
  assert_int_equal(each_line(file, published_line, &tally), n_lines);
  print_message("%s: %d rendered, %d with marker-like text, %d refused\n", file, tally.rendered, tally.unsafe, tally.refused);
  assert_int_equal(tally.rendered + tally.refused, n_lines);
}

static void gemma4_lines(void **state) {
  (void)state;
  struct tokenizer *t = made_up_tokenizer(TOK_GEMMA4);
  published("chat_gemma4.jsonl", (struct tally){.tok = t, .template = CHAT_AUTO}, 204);
  tok_close(t);
}
static void llama_lines(void **state) {
  (void)state;
  struct tokenizer *t = made_up_tokenizer(TOK_LLAMA3);
  published("chat_llama32v.jsonl", (struct tally){.tok = t, .template = CHAT_LLAMA32V}, 143);
  tok_close(t);
}
static void gemma3_lines(void **state) {
  (void)state;
  struct tokenizer *t = made_up_tokenizer(TOK_GEMMA3);
  published("chat_gemma3.jsonl", (struct tally){.tok = t, .template = CHAT_AUTO}, 84);
  tok_close(t);
}
static void gemma4_ids(void **state) {
  (void)state;
  struct tokenizer *t = real_tokenizer("ggml-vocab-gemma-4.gguf");
  published("chat_gemma4.jsonl", (struct tally){.tok = t, .template = CHAT_GEMMA4_LARGE, .released_ids = true}, 204);
  tok_close(t);
}
/* That file comes with the first release's template. It is known with any number of newlines at the end, but with nothing else changed. */
static void older_template(void **state) {
  (void)state;
  struct tokenizer *t = real_tokenizer("ggml-vocab-gemma-4.gguf");
  struct str text = tok_chat_template(t);
  bool exact = true;
  while (text.n && text.p[text.n - 1] == '\n') text.n--;
  char *copy = malloc(text.n + 3);
  memcpy(copy, text.p, text.n);
  memcpy(copy + text.n, "\n\n\n", 3);
  for (size_t newlines = 0; newlines <= 3; newlines++)
    assert_int_equal(chat_template_find(str_of(copy, text.n + newlines), &exact), CHAT_GEMMA4_LARGE);
  assert_false(exact);
  copy[text.n / 2] ^= 1;
  assert_int_equal(chat_template_find(str_of(copy, text.n), &exact), CHAT_AUTO);
  assert_int_equal(chat_template_find(str_of(text.p, text.n - 1), &exact), CHAT_AUTO);
  assert_int_equal(chat_template_default(t, false), CHAT_GEMMA4_LARGE);
  assert_int_equal(chat_template_default(t, true), CHAT_GEMMA4_SMALL);
  free(copy);
  tok_close(t);
}
static void llama_ids(void **state) {
  (void)state;
  struct tokenizer *t = real_tokenizer("llama3");
  published("chat_llama32v.jsonl", (struct tally){.tok = t, .template = CHAT_AUTO, .released_ids = true}, 143);
  tok_close(t);
}

/* --- what is peculiar ---------------------------------------------------------------------------------------------------------------- */

static void expect_rendering(enum tok_family f, const char *messages_json, const char *tools_json, const struct chat_options *o,
                             const char *want, bool in_thought) {
  struct tokenizer *t = made_up_tokenizer(f);
  json_t *messages = json_loads(messages_json, JSON_ALLOW_NUL, NULL), *tools = tools_json ? json_loads(tools_json, 0, NULL) : NULL;
  struct chat_rendered r;
  struct err e = {0};
  struct buf text;
  assert_non_null(messages);
  assert_true(!tools_json || tools);
  if (chat_render(t, messages, tools, o, &r, &e) != 0) fail_msg("%s", e.msg);
  buf_init(&text, 0);
  chat_text(t, &r, &text);
  assert_string_equal(buf_cstr(&text), want);
  assert_int_equal(r.in_thought, in_thought);
  buf_free(&text);
  chat_rendered_free(&r);
  json_decref(messages);
  json_decref(tools);
  tok_close(t);
}

static void expect_refusal(enum tok_family f, const char *messages_json, const char *tools_json, const struct chat_options *o,
                           enum err_code code, const char *message) {
  struct tokenizer *t = made_up_tokenizer(f);
  json_t *messages = json_loads(messages_json, JSON_ALLOW_NUL, NULL), *tools = tools_json ? json_loads(tools_json, 0, NULL) : NULL;
  struct chat_rendered r;
  struct err e = {0};
  assert_non_null(messages);
  assert_true(!tools_json || tools);
  assert_int_equal(chat_render(t, messages, tools, o, &r, &e), -1);
  if (!strstr(e.msg, message)) fail_msg("expected \"%s\", found \"%s\"", message, e.msg);
  assert_int_equal(e.code, code);
  assert_null(r.segments);
  json_decref(messages);
  json_decref(tools);
  tok_close(t);
}

#define WEATHER                                                                                                                            \
  "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"Now\",\"parameters\":{\"type\":\"object\",\"properties\":" \
  "{\"city\":{\"type\":\"string\"}}}}}]"
#define CALL                                                                                                                               \
  "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\"}\"}}]}"

static void gemma3_tools_in_words(void **state) {
  (void)state;
  struct chat_options o = {.describe_tools = true};
  /* declared, called, answered, and the user goes on */
  expect_rendering(
      TOK_GEMMA3,
      "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\" Weather? \"},"
      "{\"role\":\"assistant\",\"content\":\"Let me look.\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"weather\",\"arguments\":"
      "{\"city\":\"Oslo\"}}},{\"id\":\"c2\",\"function\":{\"name\":\"tide\"}}]},"
      "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"4 m\"},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\" 21 \\n\"},"
      "{\"role\":\"user\",\"content\":\"Well?\"}]",
      WEATHER, &o,
      "<bos><start_of_turn>user\n"
      "You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of\n"
      "{\"name\": function name, \"parameters\": dictionary of argument name and its value}\n\n"
      "You SHOULD NOT include any other text in the response if you call a function\n"
      "[\n  {\n    \"name\": \"weather\",\n    \"description\": \"Now\",\n    \"parameters\": {\n      \"type\": \"object\",\n"
      "      \"properties\": {\n        \"city\": {\n          \"type\": \"string\"\n        }\n      }\n    }\n  }\n]\n\n"
      "Be brief.\n\nWeather?<end_of_turn>\n"
      "<start_of_turn>model\nLet me look.\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}\n"
      "{\"name\": \"tide\", \"parameters\": {}}<end_of_turn>\n"
      "<start_of_turn>user\nResult of tide:\n4 m\n\nResult of weather:\n21\n\nWell?<end_of_turn>\n<start_of_turn>model\n",
      false);
  /* nothing declared; who is answered is the result's own word, or nobody's */
  expect_rendering(
      TOK_GEMMA3,
      "[{\"role\":\"user\",\"content\":\"x\"}," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"c9\",\"name\":\"tide\",\"content\":\"1\"},"
      "{\"role\":\"function\",\"tool_call_id\":\"c9\",\"content\":\"2\"},{\"role\":\"assistant\",\"content\":\"So.\"}]",
      NULL, &o,
      "<bos><start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}"
      "<end_of_turn>\n<start_of_turn>user\nResult of tide:\n1\n\nResult of the call:\n2<end_of_turn>\n<start_of_turn>model\nSo."
      "<end_of_turn>\n<start_of_turn>model\n",
      false);
  o.continue_final_message = true;
  expect_rendering(
      TOK_GEMMA3, "[{\"role\":\"user\",\"content\":\"x\"}," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"21 de \"}]",
      NULL, &o,
      "<bos><start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}"
      "<end_of_turn>\n<start_of_turn>user\nResult of weather:\n21 de",
      false);
  /* without the option tools change nothing, as in the template */
  o = (struct chat_options){0};
  expect_rendering(TOK_GEMMA3, "[{\"role\":\"user\",\"content\":\"x\"}," CALL "]", WEATHER, &o,
                   "<bos><start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n<start_of_turn>model\n", false);
}

/* Numbers as Python prints them; those that fit neither 64 bits nor a double as they are spelled. */
static void numbers(void **state) {
  (void)state;
  static const char *const cases[][2] = {{"0", "0"},
                                         {"-0", "0"},
                                         {"-0.0", "-0.0"},
                                         {"1.10", "1.1"},
                                         {"1e5", "100000.0"},
                                         {"1E-7", "1e-07"},
                                         {"0.0001", "0.0001"},
                                         {"0.00012345", "0.00012345"},
                                         {"0.00001", "1e-05"},
                                         {"1e15", "1000000000000000.0"},
                                         {"1e16", "1e+16"},
                                         {"123456789012345680.0", "1.2345678901234568e+17"},
                                         {"9007199254740993.0", "9007199254740992.0"},
                                         {"1e300", "1e+300"},
                                         {"5e-324", "5e-324"},
                                         {"-2.5e-8", "-2.5e-08"},
                                         {"0.1", "0.1"},
                                         {"0.30000000000000004", "0.30000000000000004"},
                                         {"1.7976931348623157e308", "1.7976931348623157e+308"},
                                         {"-9223372036854775808", "-9223372036854775808"},
                                         {"18446744073709551615", "18446744073709551615"},
                                         {"-123456789012345678901234567890", "-123456789012345678901234567890"},
                                         {"1e999", "1e999"}};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    char messages[400], want[400];
    const struct chat_options o = {.template = CHAT_GEMMA4_SMALL, .no_generation_prompt = true};
    snprintf(
        messages, sizeof messages,
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [%s,%s], \\\"b\\\": \\\"%s\\\"}\"}}]}]",
        cases[i][0], cases[i][0], cases[i][0]);
    snprintf(want, sizeof want, "<bos><|turn>model\n<|tool_call>call:f{a:[%s,%s],b:<|\"|>%s<|\"|>}<tool_call|><|tool_response>",
             cases[i][1], cases[i][1], cases[i][0]);
    expect_rendering(TOK_GEMMA4, messages, NULL, &o, want, false);
  }
  static const char *const broken[] = {"01", "1.", ".5", "-", "1e", "+1", "12345678901234567890x", "0123456789012345678901", "1e999e"};
  for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
    char messages[400];
    const struct chat_options o = {.template = CHAT_GEMMA4_SMALL};
    snprintf(messages, sizeof messages,
             "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": %s}\"}}]}]", broken[i]);
    expect_refusal(TOK_GEMMA4, messages, NULL, &o, ERR_BAD_INPUT, "messages[0].tool_calls[0].function.arguments");
  }
}

static void gemma4_thoughts(void **state) {
  (void)state;
  static const char answered[] = "[{\"role\":\"user\",\"content\":\"x\"}," CALL
                                 ",{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"y\"}]";
  static const char body[] = "<|turn>user\nx<turn|>\n<|turn>model\n<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>"
                             "<|tool_response>response:weather{value:<|\"|>y<|\"|>}<tool_response|>";
  char want[500];
  struct chat_options o = {.template = CHAT_GEMMA4_LARGE, .enable_thinking = true};
  snprintf(want, sizeof want, "<bos><|turn>system\n<|think|>\n<turn|>\n%s<|channel>thought\n", body);
  expect_rendering(TOK_GEMMA4, answered, NULL, &o, want, true);
  o.no_generation_prompt = true;
  snprintf(want, sizeof want, "<bos><|turn>system\n<|think|>\n<turn|>\n%s", body);
  expect_rendering(TOK_GEMMA4, answered, NULL, &o, want, false);
  o = (struct chat_options){.template = CHAT_GEMMA4_LARGE};
  snprintf(want, sizeof want, "<bos>%s", body);
  expect_rendering(TOK_GEMMA4, answered, NULL, &o, want, false);
  expect_rendering(TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, &o,
                   "<bos><|turn>user\nx<turn|>\n<|turn>model\n<|channel>thought\n<channel|>", false);
  o.template = CHAT_GEMMA4_SMALL;
  expect_rendering(TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, &o, "<bos><|turn>user\nx<turn|>\n<|turn>model\n", false);
}

/* Another family's template: its markers are spelled out. */
static void foreign_template(void **state) {
  (void)state;
  const struct chat_options o = {.template = CHAT_GEMMA4_SMALL};
  struct tokenizer *t = made_up_tokenizer(TOK_LLAMA3);
  json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"x\"}]", 0, NULL);
  struct chat_rendered r;
  struct err e = {0};
  assert_int_equal(chat_render(t, messages, NULL, &o, &r, &e), 0);
  assert_int_equal(r.n_segments, 1);
  assert_string_equal(r.segments[0].text, "<bos><|turn>user\nx<turn|>\n<|turn>model\n");
  chat_rendered_free(&r);
  json_decref(messages);
  tok_close(t);
}

static void refused(void **state) {
  (void)state;
  static const struct {
    enum tok_family family;
    const char *messages, *tools, *message;
    bool open, media;
    const char *date;
    enum err_code code;
  } cases[] = {
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", NULL,
       "messages[0].content[0]: expected text, this model takes no pictures", false, false, NULL, ERR_UNSUPPORTED},
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"input_audio\"}]}]", NULL,
       "messages[0].content[1]", false, false, NULL, ERR_UNSUPPORTED},
      {TOK_GEMMA4, "[{\"role\":\"system\",\"content\":[{\"type\":\"image_url\"}]}]", NULL,
       "messages[0].content[0]: expected text only in a system message", false, true, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"}]", "[{\"type\":\"function\"}]",
       "tools[0]: expected an object with function.name", false, false, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"}]", "{}", "tools: expected an array", false, false, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"}]",
       "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"required\":true}}}}}]",
       "tools[0].function.parameters: expected every \"required\" to be an array of names", false, false, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\",\"content\":\"y\"}]", NULL,
       "messages[1]: expected a message that can be continued", true, false, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4,
       "[{\"role\":\"user\",\"content\":\"x\"}," CALL ",{\"role\":\"tool\",\"tool_call_id\":\"c9\",\"name\":7,\"content\":\"y\"}]", NULL,
       "messages[2].name: expected a string", false, false, NULL, ERR_BAD_INPUT},
      {TOK_GEMMA4, "[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":[1]}]", NULL,
       "messages[0].reasoning_content: expected a string", false, false, NULL, ERR_BAD_INPUT},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, "options.date: expected a day as YYYY-MM-DD, found \"2024-02-30\"",
       false, false, "2024-02-30", ERR_BAD_INPUT},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, "options.date", false, false, "2023-02-29", ERR_BAD_INPUT},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, "options.date", false, false, "", ERR_BAD_INPUT},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]", NULL,
       "messages[0].content[0]: expected text, this model takes no video", false, true, NULL, ERR_UNSUPPORTED},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":\"x\"}," CALL "]", NULL, "messages[1]: expected a message that can be continued", true,
       false, NULL, ERR_BAD_INPUT},
      {TOK_LLAMA3, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\"}]", NULL,
       "messages[1].content: expected the text of a result", false, false, NULL, ERR_BAD_INPUT},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    const struct chat_options o = {.continue_final_message = cases[i].open, .allow_media = cases[i].media, .date = cases[i].date};
    expect_refusal(cases[i].family, cases[i].messages, cases[i].tools, &o, cases[i].code, cases[i].message);
  }
}

/* Without a date it is today. */
static void today(void **state) {
  (void)state;
  struct tokenizer *t = made_up_tokenizer(TOK_LLAMA3);
  json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"x\"}]", 0, NULL);
  for (int tries = 0; tries < 2; tries++) { /* twice at midnight */
    char want[60];
    struct tm now;
    time_t seconds = time(NULL);
    struct chat_rendered r;
    struct err e = {0};
    const struct chat_options o = {0};
    strftime(want, sizeof want, "Today Date: %d %b %Y\n\n", localtime_r(&seconds, &now));
    assert_int_equal(chat_render(t, messages, NULL, &o, &r, &e), 0);
    bool same = strstr(r.segments[4].text, want) != NULL;
    chat_rendered_free(&r);
    if (same) break;
    assert_int_equal(tries, 0);
  }
  json_decref(messages);
  tok_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gemma3_lines),     cmocka_unit_test(gemma4_lines), cmocka_unit_test(llama_lines),
    cmocka_unit_test(gemma4_ids),       cmocka_unit_test(llama_ids),    cmocka_unit_test(gemma4_thoughts),
    cmocka_unit_test(numbers),          cmocka_unit_test(refused),      cmocka_unit_test(gemma3_tools_in_words),
    cmocka_unit_test(foreign_template), cmocka_unit_test(today),        cmocka_unit_test(older_template),
};
TEST_MAIN(tests)
