/* t_chat.c — conversations against the released template's output. */
#include "sample.h"

#include "text/chat.h"

static struct chat_options options_of(const json_t *line) {
  const json_t *o = json_object_get(line, "options");
  return (struct chat_options){.no_generation_prompt = json_is_false(json_object_get(o, "add_generation_prompt")),
                               .continue_final_message = json_flag(o, "continue_final_message"),
                               .allow_media = true};
}

static void check_segments(const char *name, const struct chat_rendered *r, const json_t *segments) {
  assert_int_equal(r->n_segments, json_array_size(segments));
  for (int i = 0; i < r->n_segments; i++) {
    const json_t *want = json_array_get(segments, (size_t)i);
    const struct chat_segment *s = &r->segments[i];
    bool same = json_is_integer(want)
                    ? s->id == json_integer_value(want)
                    : s->id < 0 && s->text && str_eq(str_of(s->text, s->n), str_of(json_string_value(want), json_string_length(want)));
    if (!same) fail_msg("%s: segment %d differs: id %d, text \"%s\"", name, i, (int)s->id, s->text ? s->text : "");
  }
}

struct tally {
  const struct tokenizer *tok;
  int rendered, refused;
};

static void published_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  const char *name = json_string_value(json_object_get(line, "name"));
  struct chat_options o = options_of(line);
  struct chat_rendered r;
  struct err e = {0};
  int rc = chat_render(tally->tok, json_object_get(line, "messages"), json_object_get(line, "tools"), &o, &r, &e);
  if (json_is_string(json_object_get(line, "error"))) {
    assert_int_equal(rc, -1);
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
  check_segments(name, &r, json_object_get(line, "segments"));
  chat_text(tally->tok, &r, &text);
  expect_text(name, &text, json_str(line, "rendered"));
  chat_ids(tally->tok, &r, &ids);
  const json_t *safe = json_object_get(line, "safe_ids");
  expect_ids(name, &ids, safe ? safe : json_object_get(line, "ids"));
  tok_ids_free(&ids);
  if (!safe) { /* no user text spells a marker: the text read with markers gives the same */
    tok_encode(tally->tok, str_of(text.data, text.len), true, false, &ids);
    expect_ids(name, &ids, json_object_get(line, "ids"));
    tok_ids_free(&ids);
  }
  buf_free(&text);
  chat_rendered_free(&r);
  tally->rendered++;
}
static void published(void **state) {
  (void)state;
  struct tally tally = {.tok = sample_tokenizer()};
  assert_int_equal(each_line("chat_gemma3.jsonl", published_line, &tally), 84);
  print_message("%d rendered, %d refused\n", tally.rendered, tally.refused);
  assert_int_equal(tally.rendered + tally.refused, 84);
  assert_true(tally.refused >= 10);
}

/* The same lines with a vocabulary that has no turn markers: the text must still be the template's. */
static void text_line(const json_t *line, void *ctx) {
  struct tally *tally = ctx;
  struct chat_options o = options_of(line);
  struct chat_rendered r;
  struct err e = {0};
  int rc = chat_render(tally->tok, json_object_get(line, "messages"), json_object_get(line, "tools"), &o, &r, &e);
  assert_int_equal(rc != 0, json_is_string(json_object_get(line, "error")));
  if (rc != 0) return;
  struct buf text;
  buf_init(&text, 0);
  chat_text(tally->tok, &r, &text);
  expect_text(json_string_value(json_object_get(line, "name")), &text, json_str(line, "rendered"));
  assert_int_equal(r.segments[0].id, 2);
  assert_int_equal(r.n_segments, 2);
  buf_free(&text);
  chat_rendered_free(&r);
  tally->rendered++;
}
static void without_markers(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  struct tally tally = {.tok = t};
  each_line("chat_gemma3.jsonl", text_line, &tally);
  assert_true(tally.rendered >= 60);
  tok_close(t);
}

static void refused(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  static const struct {
    const char *messages, *message;
    bool open, media;
    enum err_code code;
  } cases[] = {
      {"[]", "messages: expected at least one message", false, false, ERR_BAD_INPUT},
      {"{}", "messages: expected at least one message", false, false, ERR_BAD_INPUT},
      {"[7]", "messages[0]: expected an object with a role", false, false, ERR_BAD_INPUT},
      {"[{\"content\":\"x\"}]", "messages[0]: expected an object with a role", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"critic\",\"content\":\"x\"}]",
       "messages[0].role: expected system, developer, user, assistant or tool, found \"critic\"", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":7}]", "messages[0].content: expected a string or an array of parts", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"assistant\",\"content\":\"x\"}]", "messages[0].role: expected \"user\" for the first turn, found \"assistant\"", false,
       false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]",
       "messages[1].role: expected \"assistant\" after a user turn, found \"user\"", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"},"
       "{\"role\":\"tool\",\"content\":\"z\"}]",
       "messages[3].role: expected \"user\" after an assistant turn, found \"tool\"", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content[0]: expected an object with a type", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"smell\"}]}]",
       "content[0].type: expected text, image_url or input_audio, found \"smell\"", false, true, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text: expected a string", false, false,
       ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
       "messages[0].content[0]: expected text, this model takes no pictures", false, false, ERR_UNSUPPORTED},
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]", "this model takes no sound", false, true, ERR_UNSUPPORTED},
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]", "this model takes no video", false, true, ERR_UNSUPPORTED},
      {"[{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]}]", "messages[0].content[0]: expected text only in a system message",
       false, true, ERR_BAD_INPUT},
      {"[{\"role\":\"user\"},{\"role\":\"tool\",\"content\":[{\"type\":\"image\"}]}]",
       "messages[1].content[0]: expected text only in a tool message", false, true, ERR_BAD_INPUT},
      {"[{\"role\":\"system\"},{\"role\":\"user\",\"content\":\"x\"}]", "messages[0].content: expected text in a system message", false,
       false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[]\"}}]}]",
       "messages[1].tool_calls[0].function.arguments: expected a JSON object", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{}]}]",
       "messages[1].tool_calls[0]: expected an object with", false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":7}]", "messages[1].tool_calls: expected an array",
       false, false, ERR_BAD_INPUT},
      {"[{\"role\":\"system\",\"content\":\"s\"}]", "found only a system message", true, false, ERR_BAD_INPUT},
      {"[{\"role\":\"user\"}]", "messages[0].content: expected text that can be continued", true, false, ERR_BAD_INPUT},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct chat_options o = {.continue_final_message = cases[i].open, .allow_media = cases[i].media};
    struct chat_rendered r;
    struct err e = {0};
    json_t *messages = json_loads(cases[i].messages, 0, NULL);
    assert_non_null(messages);
    assert_int_equal(chat_render(t, messages, NULL, &o, &r, &e), -1);
    if (!strstr(e.msg, cases[i].message)) fail_msg("expected \"%s\", found \"%s\"", cases[i].message, e.msg);
    assert_int_equal(e.code, cases[i].code);
    assert_null(r.segments);
    json_decref(messages);
  }
  tok_close(t);
}

static void accepted(void **state) {
  (void)state;
  struct tokenizer *t = toy_tokenizer("gemma3-text-tiny");
  static const struct {
    const char *messages, *text;
    bool open;
  } cases[] = {
      /* white space as Python's strip knows it */
      {"[{\"role\":\"user\",\"content\":\"\\u00a0\\u2003\\u001f x\\u0085y \\u3000\\u2028\"}]",
       "<bos><start_of_turn>user\nx\xC2\x85y<end_of_turn>\n<start_of_turn>model\n", false},
      {"[{\"role\":\"user\",\"content\":\"\\u200bx\\ufeff\"}]",
       "<bos><start_of_turn>user\n\xE2\x80\x8Bx\xEF\xBB\xBF<end_of_turn>\n<start_of_turn>model\n", false},
      /* what follows the last text is not part of a turn that is continued */
      {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\" a \"},{\"type\":\"image\"}]}]", "<bos><start_of_turn>user\na",
       true},
      {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\" Io \\n\"}]",
       "<bos><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\nIo", true},
      {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"function\",\"content\":[{\"type\":\"text\",\"text\":\" a \"},{\"type\":\"text\",\"text\":\" b \"}]}]",
       "<bos><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>tool\na  b<end_of_turn>\n<start_of_turn>model\n", false},
      {"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}},"
       "{\"function\":{\"name\":\"f\",\"arguments\":null}},{\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]",
       "<bos><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n<start_of_turn>model\n", false},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct chat_options o = {.continue_final_message = cases[i].open, .allow_media = true};
    struct chat_rendered r;
    struct err e = {0};
    struct buf text;
    json_t *messages = json_loads(cases[i].messages, 0, NULL);
    assert_non_null(messages);
    if (chat_render(t, messages, json_null(), &o, &r, &e) != 0) fail_msg("%s", e.msg);
    buf_init(&text, 0);
    chat_text(t, &r, &text);
    assert_string_equal(buf_cstr(&text), cases[i].text);
    buf_free(&text);
    chat_rendered_free(&r);
    json_decref(messages);
  }
  tok_close(t);
}

static void names(void **state) {
  (void)state;
  static const struct {
    const char *name;
    enum chat_template template;
  } known[] = {{"auto", CHAT_AUTO},
               {"gemma3", CHAT_GEMMA3},
               {"gemma4", CHAT_AUTO},
               {"gemma4-large", CHAT_GEMMA4_LARGE},
               {"gemma4-small", CHAT_GEMMA4_SMALL},
               {"gemma4-small-unsloth", CHAT_GEMMA4_SMALL},
               {"llama32v", CHAT_LLAMA32V},
               {"llama3.2", CHAT_LLAMA32V}};
  enum chat_template t;
  for (size_t i = 0; i < ARRAY_LEN(known); i++) {
    assert_true(chat_template_by_name(known[i].name, &t));
    assert_int_equal(t, known[i].template);
  }
  assert_false(chat_template_by_name("", &t));
  assert_false(chat_template_by_name("Gemma3", &t));
  for (t = CHAT_AUTO; t < CHAT_TEMPLATES; t++) {
    enum chat_template again;
    assert_true(chat_template_by_name(chat_template_name(t), &again));
    assert_int_equal(t, again);
    assert_int_equal(chat_has_thinking(t), t == CHAT_GEMMA4_LARGE || t == CHAT_GEMMA4_SMALL);
    assert_int_equal(chat_has_tools(t), t != CHAT_AUTO && t != CHAT_GEMMA3);
  }
}

static void unknown_texts(void **state) {
  (void)state;
  static const char *const texts[] = {"", "\n", "\n\n\n", "{{ bos_token }}", "{{ bos_token }}\n"};
  bool exact = true;
  for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
    assert_int_equal(chat_template_find(str_c(texts[i]), &exact), CHAT_AUTO);
    assert_false(exact);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published), cmocka_unit_test(without_markers), cmocka_unit_test(refused),
    cmocka_unit_test(accepted),  cmocka_unit_test(names),           cmocka_unit_test(unknown_texts),
};
TEST_MAIN(tests)
