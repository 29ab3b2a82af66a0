/* t_chat_safe.c — any conversation, whoever made it: rendered or refused with its place named, and text that spells markers stays text. */
#include "t_chat.h"

#include <time.h>

/* Made up, opened once. */
static const struct tokenizer *vocabulary_of(enum chat_template t) {
  static struct tokenizer *opened[3];
  enum tok_family f = t == CHAT_GEMMA3 ? TOK_GEMMA3 : t == CHAT_LLAMA32V ? TOK_LLAMA3 : TOK_GEMMA4;
  if (!opened[f]) opened[f] = made_up_tokenizer(f);
  return opened[f];
}

static bool render_text(const struct tokenizer *t, const json_t *messages, const json_t *tools, const struct chat_options *o,
                        struct buf *text, struct err *e) {
  struct chat_rendered r;
  buf_init(text, 0);
  if (chat_render(t, messages, tools, o, &r, e) != 0) {
    assert_null(r.segments);
    return false;
  }
  chat_text(t, &r, text);
  chat_rendered_free(&r);
  return true;
}

/* --- all short sequences of roles ---------------------------------------------------------------------------------------------------- */

enum kind { SYSTEM, DEVELOPER, USER, ASSISTANT, CALLING, TOOL, KINDS };

static json_t *message_of(enum kind k) {
  switch (k) {
  case SYSTEM: return json_pack("{ss,ss}", "role", "system", "content", "Be brief.");
  case DEVELOPER: return json_pack("{ss,ss}", "role", "developer", "content", "Be kind.");
  case USER: return json_pack("{ss,ss}", "role", "user", "content", "Weather?");
  case ASSISTANT: return json_pack("{ss,ss}", "role", "assistant", "content", "Sunny.");
  case CALLING:
    return json_pack("{ss,sn,s[{ss,ss,s{ss,ss}}]}", "role", "assistant", "content", "tool_calls", "id", "c1", "type", "function",
                     "function", "name", "weather", "arguments", "{\"city\":\"Oslo\"}");
  default: return json_pack("{ss,ss,ss}", "role", "tool", "tool_call_id", "c1", "content", "21 degrees");
  }
}

/* Gemma 3's template: after a leading system message every other turn is a user's, and the others are not. */
static bool gemma3_takes(const enum kind *k, int n) {
  int first = k[0] == SYSTEM || k[0] == DEVELOPER;
  for (int i = first; i < n; i++)
    if ((k[i] == USER) != ((i - first) % 2 == 0)) return false;
  return true;
}

/* With tools in words: (TOOL* USER | TOOL+) and the assistant by turns, beginning with the former. */
static bool gemma3_tells(const enum kind *k, int n) {
  int i = k[0] == SYSTEM || k[0] == DEVELOPER;
  while (i < n) {
    int from = i;
    while (i < n && k[i] == TOOL) i++;
    i += i < n && k[i] == USER;
    if (i == from) return false;
    if (i < n && k[i] != ASSISTANT && k[i] != CALLING) return false;
    i += i < n;
  }
  return true;
}

static void check_sequence(const enum kind *kinds, int n, enum chat_template template, bool with_tools, bool describe, int *taken,
                           int *refused) {
  const struct chat_options o = {.template = template, .describe_tools = describe, .date = "2024-07-26"};
  json_t *messages = json_array(), *tools = json_pack("[{ss,s{ss,ss,s{ss}}}]", "type", "function", "function", "name", "weather",
                                                      "description", "now", "parameters", "type", "object");
  for (int i = 0; i < n; i++) json_array_append_new(messages, message_of(kinds[i]));
  bool only_system = n == 1 && (kinds[0] == SYSTEM || kinds[0] == DEVELOPER), want = true;
  if (template == CHAT_GEMMA3) want = describe ? gemma3_tells(kinds, n) : gemma3_takes(kinds, n);
  if (template == CHAT_LLAMA32V && with_tools && only_system) want = false;
  struct buf text;
  struct err e = {0};
  bool got = render_text(vocabulary_of(template), messages, with_tools ? tools : NULL, &o, &text, &e);
  if (got != want)
    fail_msg("%s: %d messages, the first %d: %s", chat_template_name(template), n, (int)kinds[0], got ? buf_cstr(&text) : e.msg);
  if (!got) {
    unsigned index = UINT32_MAX;
    assert_int_equal(e.code, ERR_BAD_INPUT);
    assert_int_equal(sscanf(e.msg, "messages[%u]", &index), 1);
    assert_true(index < (unsigned)n);
  }
  buf_free(&text);
  *(got ? taken : refused) += 1;

  /* Left open, what is rendered is what stands in front of the last message's text, and that text. */
  struct chat_options open = o;
  open.continue_final_message = true;
  const char *last = json_string_value(json_object_get(json_array_get(messages, (size_t)n - 1), "content"));
  if (render_text(vocabulary_of(template), messages, with_tools ? tools : NULL, &open, &text, &e)) {
    assert_true(got && last);
    assert_true(str_ends(str_of(buf_cstr(&text), text.len), last));
  }
  buf_free(&text);
  json_decref(messages);
  json_decref(tools);
}

static void role_sequences(void **state) {
  (void)state;
  int taken = 0, refused = 0;
  for (int n = 1, count = KINDS; n <= 4; n++, count *= KINDS)
    for (int code = 0; code < count; code++) {
      enum kind kinds[4];
      for (int i = 0, rest = code; i < n; i++, rest /= KINDS) kinds[i] = (enum kind)(rest % KINDS);
      for (enum chat_template t = CHAT_GEMMA3; t < CHAT_TEMPLATES; t++) {
        check_sequence(kinds, n, t, false, false, &taken, &refused);
        check_sequence(kinds, n, t, true, false, &taken, &refused);
      }
      check_sequence(kinds, n, CHAT_GEMMA3, true, true, &taken, &refused);
    }
  print_message("%d sequences rendered, %d refused\n", taken, refused);
  assert_int_equal(taken + refused, 9 * (6 + 36 + 216 + 1296));
}

/* --- random conversations full of markers -------------------------------------------------------------------------------------------- */

static uint64_t seed = 20260701;
static int upto(int n) { return test_rand_int(&seed, 0, n); } /* inclusive */
static bool chance(int percent) { return upto(99) < percent; }

static const char *const pieces[] = {
    "a", "Hello", "  ", "\n",       " x ",  "\xC3\xA9",         "\xE6\x97\xA5", "{",    "}", "\"", "\\", "'",  "\t",       ":",
    ",", "[",     "]",  "\xC2\xA0", "null", "\xF0\x9F\x98\x80", "call:",        "\x01", "<", ">",  "|>", "<|", "thought\n"};
static const char *const markers[] = {"<|\"|>",
                                      "<turn|>",
                                      "<|turn>",
                                      "<|channel>",
                                      "<channel|>",
                                      "<|tool_call>",
                                      "<tool_call|>",
                                      "<|tool_response>",
                                      "<tool_response|>",
                                      "<|tool>",
                                      "<tool|>",
                                      "<|think|>",
                                      "<|image|>",
                                      "<|audio|>",
                                      "<|video|>",
                                      "<eos>",
                                      "<bos>",
                                      "<pad>",
                                      "<start_of_turn>",
                                      "<end_of_turn>",
                                      "<start_of_image>",
                                      "<|eot_id|>",
                                      "<|begin_of_text|>",
                                      "<|python_tag|>",
                                      "<|start_header_id|>",
                                      "<|end_header_id|>"};

static json_t *random_text(void) {
  struct buf b;
  buf_init(&b, 0);
  for (int n = upto(5); n > 0; n--) buf_puts(&b, chance(60) ? pieces[upto(ARRAY_LEN(pieces) - 1)] : markers[upto(ARRAY_LEN(markers) - 1)]);
  json_t *v = json_stringn(buf_cstr(&b), b.len);
  buf_free(&b);
  return v;
}

static json_t *random_value(int depth);
static json_t *random_object(int depth) {
  static const char *const words[] = {"type", "description", "properties", "required", "nullable", "items", "enum", "A", "b", "\xC3\x84"};
  json_t *o = json_object();
  for (int n = upto(3); n > 0; n--) {
    json_t *key = random_text();
    json_object_set_new(o, chance(50) ? words[upto(ARRAY_LEN(words) - 1)] : json_string_value(key), random_value(depth - 1));
    json_decref(key);
  }
  return o;
}
static json_t *random_value(int depth) {
  int kind = upto(depth > 0 ? 7 : 5);
  switch (kind) {
  case 0: return json_null();
  case 1: return json_boolean(chance(50));
  case 2: return json_integer(upto(1000) - 500);
  case 3: return json_real((upto(2000) - 1000) / 8.0);
  case 4:
  case 5: return random_text();
  case 6: return random_object(depth);
  default: break;
  }
  json_t *a = json_array();
  for (int n = upto(3); n > 0; n--) json_array_append_new(a, random_value(depth - 1));
  return a;
}

static json_t *random_schema(int depth) {
  static const char *const types[] = {"string", "array", "object", "integer", "null"};
  json_t *s = random_object(1);
  json_object_set_new(s, "type", json_string(types[upto(ARRAY_LEN(types) - 1)]));
  json_object_set_new(s, "required", json_pack("[o]", random_text()));
  if (chance(50)) json_object_set_new(s, "description", random_text());
  if (chance(30)) json_object_set_new(s, "enum", json_pack("[o,o]", random_text(), random_value(1)));
  json_t *properties = json_object();
  for (int n = depth > 0 ? upto(3) : 0; n > 0; n--) {
    json_t *key = random_text();
    json_object_set_new(properties, json_string_value(key), random_schema(depth - 1));
    json_decref(key);
  }
  json_object_set_new(s, "properties", properties);
  if (depth > 0 && chance(40)) json_object_set_new(s, "items", random_schema(depth - 1));
  else json_object_del(s, "items");
  return s;
}

static json_t *random_content(bool media) {
  static const char *const kinds[] = {"image_url", "input_audio", "video_url"};
  if (chance(60)) return random_text();
  json_t *parts = json_array();
  for (int n = upto(3); n > 0; n--)
    json_array_append_new(parts, media && chance(20) ? json_pack("{ss}", "type", kinds[upto(2)])
                                                     : json_pack("{ss,so}", "type", "text", "text", random_text()));
  return parts;
}

static json_t *random_call(void) {
  json_t *arguments = random_object(3),
         *call = json_pack("{s{so,so}}", "function", "name", random_text(), "arguments", json_incref(arguments));
  if (chance(50)) {
    char *text = json_dumps(arguments, 0);
    json_object_set_new(json_object_get(call, "function"), "arguments", json_string(text));
    free(text);
  }
  if (chance(80)) json_object_set_new(call, "id", json_string(chance(50) ? "c1" : "<turn|>"));
  json_decref(arguments);
  return call;
}

static json_t *random_message(const char *role, bool media) {
  json_t *m = json_pack("{ss}", "role", role);
  bool speaks = !strcmp(role, "assistant");
  if (chance(90)) json_object_set_new(m, "content", random_content(media && (!strcmp(role, "user") || speaks)));
  if (speaks && chance(50)) {
    json_t *calls = json_array();
    for (int n = chance(80) ? 1 : 2; n > 0; n--) json_array_append_new(calls, random_call());
    json_object_set_new(m, "tool_calls", calls);
  }
  if (speaks && chance(40)) json_object_set_new(m, "reasoning_content", random_text());
  if (speaks && chance(5))
    json_object_set_new(m, "tool_responses", json_pack("[{so,so}]", "name", random_text(), "response", random_value(2)));
  if (!strcmp(role, "tool") && chance(70)) json_object_set_new(m, "tool_call_id", json_string(chance(50) ? "c1" : "<turn|>"));
  if (!strcmp(role, "tool") && chance(40)) json_object_set_new(m, "name", random_text());
  return m;
}

static json_t *random_messages(enum chat_template t) {
  static const char *const roles[] = {"user", "assistant", "tool", "user", "system", "developer"};
  json_t *messages = json_array();
  bool strict = t == CHAT_GEMMA3;
  for (int n = 1 + upto(5), i = 0; i < n; i++)
    json_array_append_new(messages,
                          random_message(strict ? roles[i % 2] : roles[upto(chance(70) ? 3 : 5)], t != CHAT_LLAMA32V || chance(10)));
  return messages;
}

/* The same conversation with ';' for '<' everywhere: no marker can be spelled, and the order of keys stays. The assistant's own words keep those two
 * that Gemma 4 takes out of them. */
static json_t *defused(const json_t *v, bool keep_thoughts) {
  if (json_is_string(v)) {
    char *s = malloc(json_string_length(v) + 1);
    size_t n = json_string_length(v);
    memcpy(s, json_string_value(v), n + 1);
    for (size_t i = 0; i < n; i++) {
      bool thought = keep_thoughts && (str_starts(str_of(s + i, n - i), "<|channel>") || str_starts(str_of(s + i, n - i), "<channel|>"));
      if (s[i] == '<' && !thought) s[i] = ';';
    }
    json_t *out = json_stringn(s, n);
    free(s);
    return out;
  }
  if (json_is_array(v)) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) json_array_append_new(out, defused(json_array_get(v, i), keep_thoughts));
    return out;
  }
  if (!json_is_object(v)) return json_incref((json_t *)(uintptr_t)v);
  json_t *out = json_object(), *inner;
  const char *key;
  bool speaks = json_is_string(json_object_get(v, "role")) && !strcmp(json_string_value(json_object_get(v, "role")), "assistant");
  json_object_foreach((json_t *)(uintptr_t)v, key, inner) {
    json_t *k = json_string(key), *safe = defused(k, false);
    json_object_set_new(out, json_string_value(safe), defused(inner, keep_thoughts || (speaks && !strcmp(key, "content"))));
    json_decref(k);
    json_decref(safe);
  }
  return out;
}

static void expect_same_frame(const struct tokenizer *t, const struct chat_rendered *a, const struct chat_rendered *b) {
  assert_int_equal(a->n_segments, b->n_segments);
  assert_int_equal(a->in_thought, b->in_thought);
  for (int i = 0; i < a->n_segments; i++) {
    const struct chat_segment *x = &a->segments[i], *y = &b->segments[i];
    assert_int_equal(x->id, y->id);
    if (x->id >= 0) continue;
    assert_int_equal(x->n, y->n);
    for (size_t k = 0; k < x->n; k++) assert_int_equal(x->text[k] == '<' ? ';' : x->text[k], y->text[k] == '<' ? ';' : y->text[k]);
    struct tok_ids ids = {0};
    tok_encode(t, str_of(x->text, x->n), false, false, &ids);
    for (size_t k = 0; k < ids.n; k++) assert_false(tok_is_control(t, ids.v[k]));
    tok_ids_free(&ids);
  }
}

static void markers_stay_text(void **state) {
  (void)state;
  int rendered = 0, refused = 0;
  for (int round = 0; round < 4000; round++) {
    enum chat_template template = (enum chat_template)(CHAT_GEMMA3 + round % 4);
    const struct tokenizer *t = vocabulary_of(template);
    const struct chat_options o = {.template = template,
                                   .no_generation_prompt = chance(20),
                                   .continue_final_message = chance(15),
                                   .enable_thinking = chance(40),
                                   .preserve_thinking = chance(30),
                                   .tools_in_system = chance(30),
                                   .describe_tools = chance(50),
                                   .allow_media = chance(80),
                                   .date = "2024-07-26"};
    json_t *messages = random_messages(template), *tools = json_array();
    for (int n = upto(2); n > 0; n--)
      json_array_append_new(tools, json_pack("{s{so,so,so}}", "function", "name", random_text(), "description", random_text(), "parameters",
                                             random_schema(2)));
    json_t *safe_messages = defused(messages, false), *safe_tools = defused(tools, false);
    struct chat_rendered r, safe;
    struct err e = {0}, safe_e = {0};
    int rc = chat_render(t, messages, tools, &o, &r, &e), safe_rc = chat_render(t, safe_messages, safe_tools, &o, &safe, &safe_e);
    assert_int_equal(rc, safe_rc);
    if (rc == 0) expect_same_frame(t, &r, &safe);
    else if (!strstr(e.msg, "messages[") && !strstr(e.msg, "tools[")) fail_msg("no place in \"%s\"", e.msg);
    *(rc == 0 ? &rendered : &refused) += 1;
    chat_rendered_free(&r);
    chat_rendered_free(&safe);
    json_decref(messages);
    json_decref(tools);
    json_decref(safe_messages);
    json_decref(safe_tools);
  }
  print_message("%d rendered, %d refused\n", rendered, refused);
  assert_true(rendered > 2000 && refused > 50);
}

/* --- size and depth ------------------------------------------------------------------------------------------------------------------ */

static void deep_values(void **state) {
  (void)state;
  static const int depths[] = {10, 60, 70, 1000, 100000};
  for (size_t d = 0; d < ARRAY_LEN(depths); d++)
    for (enum chat_template t = CHAT_GEMMA3; t < CHAT_TEMPLATES; t++) {
      struct buf b, text;
      struct err e = {0};
      buf_init(&b, 0);
      buf_puts(&b, "{\"a\":");
      for (int i = 0; i < depths[d]; i++) buf_putc(&b, '[');
      for (int i = 0; i < depths[d]; i++) buf_putc(&b, ']');
      buf_putc(&b, '}');
      json_t *messages = json_pack("[{ss,ss},{ss,s[{s{ss,ss}}]}]", "role", "user", "content", "x", "role", "assistant", "tool_calls",
                                   "function", "name", "f", "arguments", buf_cstr(&b));
      const struct chat_options o = {.template = t, .describe_tools = true, .date = "2024-07-26"};
      assert_int_equal(render_text(vocabulary_of(t), messages, NULL, &o, &text, &e), depths[d] < 64);
      if (depths[d] > 64) assert_non_null(strstr(e.msg, "messages[1].tool_calls[0].function.arguments"));
      buf_free(&b);
      buf_free(&text);
      json_decref(messages);
    }
}

/* Thousands of calls in one message, a result for each: nothing quadratic. */
static void many_calls(void **state) {
  (void)state;
  enum { N = 20000 };
  json_t *calls = json_array(),
         *messages = json_pack("[{ss,ss},{ss,so}]", "role", "user", "content", "x", "role", "assistant", "tool_calls", calls);
  for (int i = 0; i < N; i++) {
    char id[20], name[20];
    snprintf(id, sizeof id, "c%d", i);
    snprintf(name, sizeof name, "f%d", i);
    json_array_append_new(calls, json_pack("{ss,s{ss}}", "id", id, "function", "name", name));
    json_array_append_new(messages, json_pack("{ss,ss,ss}", "role", "tool", "tool_call_id", id, "content", "y"));
  }
  clock_t from = clock();
  for (int describe = 0; describe < 2; describe++) {
    const struct chat_options o = {.template = describe ? CHAT_GEMMA3 : CHAT_GEMMA4_LARGE, .describe_tools = true};
    struct buf text;
    struct err e = {0};
    assert_true(render_text(vocabulary_of(o.template), messages, NULL, &o, &text, &e));
    assert_non_null(strstr(buf_cstr(&text), describe ? "Result of f19999:\ny" : "response:f19999{value:<|\"|>y<|\"|>}"));
    buf_free(&text);
  }
  assert_true(clock() - from < 8 * CLOCKS_PER_SEC);
  json_decref(messages);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(role_sequences),
    cmocka_unit_test(markers_stay_text),
    cmocka_unit_test(deep_values),
    cmocka_unit_test(many_calls),
};
TEST_MAIN(tests)
