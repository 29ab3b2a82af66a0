/* /v1/responses: what goes in, what comes out, as a whole and as a stream. */
#include "events.h"

#define PATH "/v1/responses"
#define ORDER                                                                                                                              \
  "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta "               \
  "response.output_text.done response.content_part.done response.output_item.done "

static const char *const response_keys[] = {"id",
                                            "object",
                                            "created_at",
                                            "status",
                                            "completed_at",
                                            "error",
                                            "incomplete_details",
                                            "output",
                                            "usage",
                                            "model",
                                            "instructions",
                                            "user",
                                            "safety_identifier",
                                            "prompt_cache_key",
                                            "prompt_cache_retention",
                                            "metadata",
                                            "background",
                                            "store",
                                            "previous_response_id",
                                            "max_output_tokens",
                                            "max_tool_calls",
                                            "parallel_tool_calls",
                                            "tool_choice",
                                            "tools",
                                            "temperature",
                                            "top_p",
                                            "top_logprobs",
                                            "truncation",
                                            "service_tier",
                                            "reasoning",
                                            "text"};

static void check_plain(const char *where, const json_t *v) {
  static const struct {
    const char *path, *value;
  } table[] = {{"object", "\"response\""},
               {"status", "\"completed\""},
               {"error", "null"},
               {"incomplete_details", "null"},
               {"model", "\"fake/model\""},
               {"instructions", "null"},
               {"metadata", "{}"},
               {"store", "false"},
               {"background", "false"},
               {"previous_response_id", "null"},
               {"max_output_tokens", "null"},
               {"max_tool_calls", "null"},
               {"parallel_tool_calls", "true"},
               {"tool_choice", "\"auto\""},
               {"tools", "[]"},
               {"temperature", "1.0"},
               {"top_p", "1.0"},
               {"top_logprobs", "0"},
               {"truncation", "\"disabled\""},
               {"service_tier", "\"default\""},
               {"reasoning", "{\"effort\":null,\"summary\":null}"},
               {"text", "{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"}"},
               {"user", "null"},
               {"output.0.type", "\"message\""},
               {"output.0.role", "\"assistant\""},
               {"output.0.status", "\"completed\""},
               {"output.0.content", "[{\"type\":\"output_text\",\"text\":\"hi\",\"annotations\":[],\"logprobs\":[]}]"},
               /* <bos><user>say:hi\n is 14 tokens, the fake says half of them came from its cache */
               {"usage.input_tokens", "14"},
               {"usage.input_tokens_details", "{\"cached_tokens\":7,\"cache_write_tokens\":0}"},
               {"usage.output_tokens", "2"},
               {"usage.output_tokens_details", "{\"reasoning_tokens\":0}"},
               {"usage.total_tokens", "16"}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) value_check(where, v, table[i].path, table[i].value);
  value_keys(where, v, "", response_keys, ARRAY_LEN(response_keys));
  assert_int_equal(json_array_size(json_object_get(v, "output")), 1);
  const char *id = value_string(where, v, "id"), *item = value_string(where, v, "output.0.id");
  assert_true(!strncmp(id, "resp_", 5) && strlen(id) == 29 && !strncmp(item, "msg_", 4) && strlen(item) == 28);
  assert_true(json_is_integer(value_at(v, "created_at")) && json_is_integer(value_at(v, "completed_at")));
  assert_true(json_integer_value(value_at(v, "completed_at")) >= json_integer_value(value_at(v, "created_at")));
}

static void whole(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  json_t *v = ask(f, PATH, "{\"input\":\"say:hi\"}", 200);
  check_plain("whole", v);
  json_decref(v);
  fixture_stop(f);
}

/* What is asked is repeated, in whole answers and in every response object of a stream. */
static void repeats(void **state) {
  (void)state;
  static const struct {
    const char *field, *value, *repeated;
  } table[] = {{"instructions", "\"Be \\\"brief\\\".\\n\\u00e9\"", NULL},
               {"metadata", "{\"a\":\"1\",\"b\":\"\"}", NULL},
               {"metadata", "null", "{}"},
               {"temperature", "0.25", NULL},
               {"temperature", "2", "2.0"},
               {"top_p", "0.5", NULL},
               {"max_output_tokens", "100", NULL},
               {"max_output_tokens", "2000000000", NULL},
               {"max_tool_calls", "3", NULL},
               {"parallel_tool_calls", "false", NULL},
               {"tool_choice", "\"none\"", NULL},
               {"truncation", "\"auto\"", NULL},
               {"store", "true", "false"},
               {"store", "false", NULL},
               {"user", "\"me\"", NULL},
               {"safety_identifier", "\"me\"", NULL},
               {"prompt_cache_key", "\"k\"", NULL},
               {"prompt_cache_retention", "\"24h\"", NULL},
               {"service_tier", "\"auto\"", "\"default\""},
               {"model", "\"other\"", "\"fake/model\""}};
  struct fixture *f = talk_start();
  struct events s;
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[400];
    const char *repeated = table[i].repeated ? table[i].repeated : table[i].value;
    snprintf(body, sizeof body, "{\"input\":\"say:hi\",\"%s\":%s}", table[i].field, table[i].value);
    json_t *v = ask(f, PATH, body, 200);
    value_check(body, v, table[i].field, repeated);
    value_keys(body, v, "", response_keys, ARRAY_LEN(response_keys));
    json_decref(v);
    events_ask(f, PATH, body, &s);
    for (int k = 0; k < s.n; k++) {
      const json_t *response = json_object_get(s.data[k], "response");
      if (!response) continue;
      value_check(body, response, table[i].field, repeated);
      value_keys(body, response, "", response_keys, ARRAY_LEN(response_keys));
    }
    events_free(&s);
  }
  fixture_stop(f);
}

/* Every event of a stream, field by field. */
static void streamed(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct events s;
  char value[200];
  events_ask(f, PATH, "{\"input\":\"say:hi\"}", &s);
  events_order("streamed", &s, ORDER "response.completed");
  assert_int_equal(s.n, 10);
  const char *item = value_string("item", s.data[2], "item.id");
  for (int i = 0; i < s.n; i++) {
    snprintf(value, sizeof value, "%d", i);
    value_check(s.names[i], s.data[i], "sequence_number", value);
    snprintf(value, sizeof value, "\"%s\"", item);
    if (strstr(s.names[i], "content_part") || strstr(s.names[i], "output_text")) {
      value_check(s.names[i], s.data[i], "item_id", value);
      value_check(s.names[i], s.data[i], "content_index", "0");
    }
    if (!json_object_get(s.data[i], "response")) value_check(s.names[i], s.data[i], "output_index", "0");
  }
  for (int i = 0; i < 2; i++) {
    value_check(s.names[i], s.data[i], "response.status", "\"in_progress\"");
    value_check(s.names[i], s.data[i], "response.output", "[]");
    value_check(s.names[i], s.data[i], "response.usage", "null");
    value_check(s.names[i], s.data[i], "response.completed_at", "null");
    value_keys(s.names[i], s.data[i], "response", response_keys, ARRAY_LEN(response_keys));
  }
  value_check("added", s.data[2], "item.status", "\"in_progress\"");
  value_check("added", s.data[2], "item.content", "[]");
  value_check("added", s.data[3], "part", "{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[],\"logprobs\":[]}");
  value_check("delta", s.data[4], "delta", "\"h\"");
  value_check("delta", s.data[5], "delta", "\"i\"");
  value_check("delta", s.data[5], "logprobs", "[]");
  value_check("done", s.data[6], "text", "\"hi\"");
  value_check("done", s.data[7], "part", "{\"type\":\"output_text\",\"text\":\"hi\",\"annotations\":[],\"logprobs\":[]}");
  assert_true(json_equal(value_at(s.data[8], "item"), value_at(s.data[9], "response.output.0")));
  check_plain("completed", value_at(s.data[9], "response"));
  for (int i = 1; i < s.n; i++)
    if (json_object_get(s.data[i], "response"))
      assert_string_equal(value_string("id", s.data[i], "response.id"), value_string("id", s.data[0], "response.id"));
  events_free(&s);
  fixture_stop(f);
}

/* The last object of a stream is the whole answer, and the deltas are its text: letters of every length, line ends, long and empty answers. */
static void stream_equals_whole(void **state) {
  (void)state;
  static const char *const bodies[] = {
      "{\"input\":\"say:Hello\"}",
      "{\"input\":\"say:\"}",
      "{\"input\":\"say:one\\\\ntwo \\\"q\\\" \\\\\\\\ end\"}",
      "{\"input\":\"say:\\u00e9\\u00e8 \\u4f60\\u597d \\ud83d\\ude00\\ud83d\\udc69\\u200d\\ud83d\\udcbb x\"}",
      "{\"input\":\"say:\\u4f60\\u597d\\ud83d\\ude00\",\"max_output_tokens\":8}",
      "{\"input\":\"say:abcdef\",\"max_output_tokens\":3}",
      "{\"input\":\"say:abcdef\",\"max_output_tokens\":6}",
      "{\"input\":\"say:ab\\u4f60\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2}",
      "{\"input\":\"say:ab\\u4f60\",\"include\":[\"message.output_text.logprobs\"],\"max_output_tokens\":4}",
      "{\"input\":[{\"role\":\"user\",\"content\":\"say:x\"}],\"instructions\":\"I\"}",
  };
  struct fixture *f = talk_start();
  struct events s;
  for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
    json_t *v = ask(f, PATH, bodies[i], 200);
    events_ask(f, PATH, bodies[i], &s);
    json_t *last = value_at(s.data[s.n - 1], "response");
    static const char *const own[] = {"id", "created_at", "completed_at"};
    for (size_t k = 0; k < ARRAY_LEN(own); k++) {
      json_object_del(v, own[k]);
      json_object_del(last, own[k]);
    }
    json_object_del(value_at(v, "output.0"), "id");
    json_object_del(value_at(last, "output.0"), "id");
    if (!json_equal(v, last)) fail_msg("%s: %s is not %s", bodies[i], json_dumps(last, 0), json_dumps(v, 0));
    char *text = events_join(&s, "response.output_text.delta", "delta");
    assert_string_equal(text, value_string(bodies[i], v, "output.0.content.0.text"));
    free(text);
    json_t *logprobs = json_array();
    for (int k = 0; k < s.n; k++)
      if (!strcmp(s.names[k], "response.output_text.delta")) json_array_extend(logprobs, json_object_get(s.data[k], "logprobs"));
    assert_true(json_equal(logprobs, value_at(v, "output.0.content.0.logprobs")));
    json_decref(logprobs);
    json_decref(v);
    events_free(&s);
  }
  fixture_stop(f);
}

static void ends(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct events s;
  static const char body[] = "{\"input\":\"say:abcdef\",\"max_output_tokens\":3}";
  json_t *v = ask(f, PATH, body, 200);
  value_check("cut", v, "status", "\"incomplete\"");
  value_check("cut", v, "incomplete_details", "{\"reason\":\"max_output_tokens\"}");
  value_check("cut", v, "completed_at", "null");
  value_check("cut", v, "output.0.status", "\"incomplete\"");
  value_check("cut", v, "output.0.content.0.text", "\"abc\"");
  value_check("cut", v, "usage.output_tokens", "3");
  json_decref(v);
  events_ask(f, PATH, body, &s);
  events_order("cut", &s, ORDER "response.incomplete");
  value_check("cut", s.data[s.n - 2], "item.status", "\"incomplete\"");
  events_free(&s);
  fixture_stop(f);
}

static void logprobs(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  json_t *v = ask(f, PATH, "{\"input\":\"say:a\\u00e9\",\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2}", 200);
  value_check("logprobs", v, "top_logprobs", "2");
  value_check("logprobs", v, "output.0.content.0.logprobs.0",
              "{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97],\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]},"
              "{\"token\":\"b\",\"logprob\":-0.5,\"bytes\":[98]}]}");
  value_check("logprobs", v, "output.0.content.0.logprobs.1.bytes", "[195]");
  value_check("logprobs", v, "output.0.content.0.logprobs.2.bytes", "[169]");
  json_decref(v);
  v = ask(f, PATH, "{\"input\":\"say:a\",\"include\":[\"message.output_text.logprobs\"]}", 200);
  value_check("logprobs", v, "output.0.content.0.logprobs", "[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97],\"top_logprobs\":[]}]");
  json_decref(v);
  fixture_stop(f);
}

static void conversations(void **state) {
  (void)state;
  static const struct {
    const char *fields, *rendered;
  } table[] = {
      {"\"input\":\"a\"", "<user>a\n"},
      {"\"input\":\"a\",\"instructions\":\"I\"", "<system>I\n<user>a\n"},
      {"\"input\":\"a\",\"instructions\":null", "<user>a\n"},
      {"\"input\":\"a\",\"instructions\":\"\"", "<user>a\n"},
      {"\"input\":\"a\",\"instructions\":false", "<user>a\n"},
      {"\"input\":[{\"role\":\"user\",\"content\":\"a\"}]", "<user>a\n"},
      {"\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]}]", "<user>a\n"},
      {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
       "<user>a|b\n"},
      {"\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"message\",\"id\":\"msg_1\",\"status\":\"completed\",\"role\":"
       "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"b\",\"annotations\":[]}]},{\"role\":\"user\",\"content\":\"c\"}]",
       "<user>a\n<assistant>b\n<user>c\n"},
      {"\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\"}]", "<developer>d\n<user>a\n"},
      {"\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\"}],\"instructions\":\"I\"",
       "<system>I\n\nd\n<user>a\n"},
      {"\"input\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"d\"},"
       "{\"type\":\"input_text\",\"text\":\"e\"}]},{\"role\":\"user\",\"content\":\"a\"}]",
       "<system>s\n\nde\n<user>a\n"},
      {"\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]", "<user>a\n<user>b\n"},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[700];
    snprintf(body, sizeof body, "{%s}", table[i].fields);
    json_decref(ask(f, PATH, body, 200));
    talk_check(body, table[i].rendered);
  }
  fixture_stop(f);
}

static void samplers(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  json_t *v = ask(
      f, PATH,
      "{\"input\":\"!params\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"seed\":9,\"max_output_tokens\":500,"
      "\"stop_token_ids\":[5]}",
      200);
  value_check("samplers", v, "output.0.content.0.text",
              "\"t=0.5 k=7 p=0.25 m=0.125 f=0 pr=0 r=0 seed=1/9 min=0 bias=0 max=500 stop=0 ids=1 keep=0 eos=0 special=0\"");
  json_decref(v);
  fixture_stop(f);
}

/* Each field inside and outside of what is allowed; the error names it. */
static void ranges(void **state) {
  (void)state;
  static const struct {
    const char *field, *param, *good[6], *bad[7];
  } table[] = {
      {"temperature", NULL, {"0", "2", "null"}, {"-0.1", "2.1", "\"1\"", "[]", "true"}},
      {"top_p", NULL, {"1", "0.5", "null"}, {"0", "1.1", "-1", "\"x\""}},
      {"max_output_tokens", NULL, {"1", "2147483647", "null"}, {"0", "-1", "1.5", "\"5\"", "1e12"}},
      {"top_logprobs", NULL, {"0", "null"}, {"1", "21", "-1", "\"1\""}},
      {"include",
       NULL,
       {"null", "[]", "[\"message.output_text.logprobs\"]", "[\"reasoning.encrypted_content\"]"},
       {"[\"file_search_call.results\"]", "[5]", "\"x\"", "{}"}},
      {"stream", NULL, {"false", "null"}, {"1", "\"true\"", "{}"}},
      {"stream_options", NULL, {"null", "{}"}, {"{\"include_obfuscation\":false}", "5"}},
      {"store", NULL, {"true", "false", "null"}, {"1", "\"no\""}},
      {"background", NULL, {"false", "null"}, {"true"}},
      {"previous_response_id", NULL, {"null", "\"\""}, {"\"resp_1\""}},
      {"conversation", NULL, {"null"}, {"\"conv_1\"", "{\"id\":\"c\"}"}},
      {"prompt", NULL, {"null"}, {"{\"id\":\"p\"}"}},
      {"truncation", NULL, {"\"auto\"", "\"disabled\"", "null"}, {"\"middle\"", "5"}},
      {"text", NULL, {"null", "{}", "{\"format\":null}", "{\"format\":{\"type\":\"text\"}}", "{\"verbosity\":\"medium\"}"}, {"5", "[]"}},
      {"text",
       NULL,
       {"{\"format\":{\"type\":\"json_object\"}}", "{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"strict\":true,\"schema\":{}}}"},
       {NULL}},
      {"text",
       "text.format",
       {NULL},
       {"{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"!bad\":1}}}",
        "{\"format\":{\"type\":\"json_schema\",\"name\":\"n\"}}", "{\"format\":{}}", "{\"format\":\"text\"}"}},
      {"text", "text.verbosity", {NULL}, {"{\"verbosity\":\"low\"}", "{\"verbosity\":\"loud\"}", "{\"verbosity\":1}"}},
      {"tools",
       NULL,
       {"[]", "null", "[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}]"},
       {"[{\"type\":\"function\"}]", "[{\"type\":\"web_search\"}]"}},
      {"tool_choice", NULL, {"\"auto\"", "\"none\"", "null"}, {"\"required\"", "{\"type\":\"function\",\"name\":\"f\"}"}},
      {"parallel_tool_calls", NULL, {"true", "false", "null"}, {"1"}},
      {"max_tool_calls", NULL, {"1", "null"}, {"0", "\"x\""}},
      {"reasoning",
       NULL,
       {"null", "{}", "{\"effort\":null}", "{\"effort\":\"none\"}", "{\"summary\":\"auto\"}"},
       {"{\"effort\":\"low\"}", "{\"effort\":\"high\"}", "{\"effort\":\"loud\"}", "\"low\""}},
      {"reasoning", "reasoning.effort", {NULL}, {"{\"effort\":5}"}},
      {"reasoning", "reasoning.summary", {NULL}, {"{\"summary\":\"long\"}"}},
      {"metadata",
       NULL,
       {"null", "{}", "{\"a\":\"b\"}"},
       {"[]", "{\"a\":1}", "{\"a\":null}", "{\"0123456789012345678901234567890123456789012345678901234567890123456789\":\"\"}"}},
      {"user", NULL, {"\"me\"", "null"}, {"5"}},
      {"safety_identifier", NULL, {"\"me\"", "null"}, {"5", "{}"}},
      {"prompt_cache_key", NULL, {"\"me\""}, {"[]"}},
      {"prompt_cache_retention", NULL, {"\"24h\"", "\"in_memory\""}, {"\"forever\"", "24"}},
      {"prompt_cache_options", NULL, {"null"}, {"{\"prewarm\":true}"}},
      {"service_tier", NULL, {"\"auto\"", "\"default\""}, {"\"gold\"", "1"}},
      {"context_management", NULL, {"null", "[]"}, {"[{\"type\":\"compaction\"}]"}},
      {"moderation", NULL, {"null"}, {"{\"model\":\"m\"}"}},
      {"model", NULL, {"\"x\"", "null"}, {"5"}},
      {"instructions", NULL, {"\"x\"", "null"}, {"5", "{\"a\":1}"}},
      {"seed", NULL, {"5"}, {"\"x\"", "1.5"}},
      {"top_k", NULL, {"5", "-1"}, {"-2", "1.5"}},
      {"regex", NULL, {"null", "\"a\""}, {"\"!bad\""}},
      {"max_tokens", NULL, {"null"}, {"5"}},
      {"max_completion_tokens", NULL, {"null"}, {"5"}},
      {"messages", NULL, {"[]"}, {"[{\"role\":\"user\",\"content\":\"x\"}]"}},
      {"response_format", NULL, {"null"}, {"{\"type\":\"json_object\"}"}},
      {"n", NULL, {"null"}, {"2", "1"}},
      {"logprobs", NULL, {"false"}, {"true"}},
      {"continue_final_message", NULL, {"false"}, {"true"}},
      {"some_field_from_the_future", NULL, {"{\"a\":[1,2]}"}, {NULL}},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++)
    for (int k = 0; k < 13; k++) {
      char body[500], param[100];
      const char *value = k < 6 ? table[i].good[k] : table[i].bad[k - 6];
      if (!value) continue;
      snprintf(body, sizeof body, "{\"input\":\"say:hi\",\"%s\":%s}", table[i].field, value);
      json_t *v = ask(f, PATH, body, k < 6 ? 200 : 400);
      snprintf(param, sizeof param, "\"%s\"", table[i].param ? table[i].param : table[i].field);
      if (k >= 6) {
        value_check(body, v, "error.param", param);
        value_check(body, v, "error.type", "\"invalid_request_error\"");
        if (!strstr(value_string(body, v, "error.message"), table[i].field))
          fail_msg("%s: %s", body, value_string(body, v, "error.message"));
      }
      json_decref(v);
    }
  fixture_stop(f);
}

static void bad_inputs(void **state) {
  (void)state;
  static const struct {
    const char *body, *param, *message;
  } table[] = {
      {"{}", "input", "body: input: expected, not found"},
      {"{\"input\":null}", "input", "body: input: expected, not found"},
      {"{\"input\":\"\"}", "input", "body: input: expected a string or an array of items that is not empty"},
      {"{\"input\":[]}", "input", "body: input: expected a string or an array of items that is not empty"},
      {"{\"input\":5}", "input", "body: input: expected a string or an array of items that is not empty"},
      {"{\"input\":[5]}", "input", "input[0]: expected an object"},
      {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_1\"}]}", "input",
       "input[0]: nothing is stored by this server, so there is no item to refer to"},
      {"{\"input\":[{\"id\":\"msg_1\"}]}", "input", "input[0]: nothing is stored by this server, so there is no item to refer to"},
      {"{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":5}]}", "input",
       "input[1].output: expected a string or an array of parts"},
      {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":{}}]}", "input", "input[0].arguments: expected a string"},
      {"{\"input\":[{\"type\":\"web_search_call\"}]}", "input",
       "input[0].type: expected \"message\", \"reasoning\", \"function_call\" or \"function_call_output\", found \"web_search_call\""},
      {"{\"input\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "input",
       "input[0].role: expected user, assistant, system or developer, found \"tool\""},
      {"{\"input\":[{\"content\":\"a\"}]}", "input", "input[0].role: expected user, assistant, system or developer, found \"\""},
      {"{\"input\":[{\"role\":\"user\"}]}", "input", "input[0].content: expected a string or an array of parts"},
      {"{\"input\":[{\"role\":\"user\",\"content\":5}]}", "input", "input[0].content: expected a string or an array of parts"},
      {"{\"input\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", "input", "input[0].content[0]: expected an object with a type"},
      {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":5}]}]}", "input",
       "input[0].content[0].text: expected a string"},
      {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"u\"}]}"
       "]}",
       "input", "input[0].content[1]: expected text, this model takes no pictures"},
      {"{\"instructions\":\"!norender\",\"input\":\"a\"}", "instructions", "instructions.role: expected \"nobody\", found \"system\""},
      {"{\"instructions\":\"I\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"!norender\"}]}", "input",
       "input[1].role: expected \"nobody\", found \"user\""},
      {"{\"instructions\":\"I\",\"input\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"assistant\",\"content\":\"!norender\"}]}",
       "input", "input[1].role: expected \"nobody\", found \"assistant\""},
      {"{\"input\":\"a\",\"min_tokens\":7,\"max_output_tokens\":3}", "min_tokens", "min_tokens"},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    json_t *v = ask(f, PATH, table[i].body, 400);
    if (!strstr(value_string("bad", v, "error.message"), table[i].message) || strcmp(value_string("bad", v, "error.param"), table[i].param))
      fail_msg("%s: %s", table[i].body, json_dumps(v, 0));
    json_decref(v);
  }
  json_decref(ask(f, PATH, "[]", 400));
  json_decref(ask(f, PATH, "{", 400));
  /* 17 pairs; too long for the context, whatever truncation says */
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"input\":\"a\",\"metadata\":{");
  for (int i = 0; i < 17; i++) buf_printf(&body, i ? ",\"%d\":\"\"" : "\"%d\":\"\"", i);
  buf_puts(&body, "}}");
  json_t *v = ask(f, PATH, body.data, 400);
  value_check("metadata", v, "error.param", "\"metadata\"");
  json_decref(v);
  buf_clear(&body);
  buf_puts(&body, "{\"truncation\":\"auto\",\"input\":\"");
  for (int i = 0; i < FAKE_CTX; i++) buf_putc(&body, 'x');
  buf_puts(&body, "\"}");
  v = ask(f, PATH, body.data, 400);
  value_check("long", v, "error.code", "\"context_length_exceeded\"");
  value_check("long", v, "error.param", "\"input\"");
  assert_non_null(strstr(value_string("long", v, "error.message"), "4104 tokens, and at most 4095 fit"));
  json_decref(v);
  buf_free(&body);
  fixture_stop(f);
}

static void failures(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct events s;
  json_t *v = ask(f, PATH, "{\"input\":\"!fail=3 say:abcdef\"}", 500);
  value_check("failed", v, "error.type", "\"server_error\"");
  json_decref(v);
  v = ask(f, PATH, "{\"input\":\"!refuse=503 say:abcdef\",\"stream\":true}", 503); /* before the first byte: a real status */
  value_string("refused", v, "error.message");
  json_decref(v);
  events_ask(f, PATH, "{\"input\":\"!fail=3 say:abcdef\",\"user\":\"me\"}", &s);
  events_order("failed", &s,
               "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta "
               "response.failed");
  const json_t *last = s.data[s.n - 1];
  value_check("failed", last, "response.status", "\"failed\"");
  value_check("failed", last, "response.error", "{\"code\":\"server_error\",\"message\":\"logits are not finite\"}");
  value_check("failed", last, "response.output.0.content.0.text", "\"abc\"");
  value_check("failed", last, "response.output.0.status", "\"incomplete\"");
  value_check("failed", last, "response.user", "\"me\"");
  value_check("failed", last, "sequence_number", "7");
  value_keys("failed", last, "response", response_keys, ARRAY_LEN(response_keys));
  events_free(&s);
  fixture_stop(f);
}

/* A client that leaves in the middle of a stream, or before a whole answer: its work stops, others' does not. */
static void disconnects(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  static const char *const bodies[] = {"{\"input\":\"!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\",\"stream\":true}",
                                       "{\"input\":\"!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\"}"};
  for (int i = 0; i < 2; i++) {
    int fd = client_post(f->port, PATH, bodies[i]);
    assert_true(becomes(&talk_fake.submits, 2 * i + 1));
    struct buf in;
    buf_init(&in, 0);
    while (i == 0 && (!in.data || !strstr(in.data, "output_text.delta"))) assert_int_equal(client_more(fd, &in, 2000), 1);
    buf_free(&in);
    close(fd);
    assert_true(becomes(&talk_fake.aborts, i + 1));
    json_t *v = ask(f, PATH, "{\"input\":\"say:hi\"}", 200);
    check_plain("after", v);
    json_decref(v);
  }
  fixture_stop(f);
}

/* An ending says everything four times; who reads it as it comes is not too slow for that. */
static void long_ending(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.output_bytes = 200000}};
  memset(&talk_fake, 0, sizeof talk_fake);
  struct port port = fake_port(&talk_fake);
  port.render = talk_render;
  struct fixture *f = fixture_start_port(&port, &o, 0, 0);
  struct buf body;
  struct events s;
  buf_init(&body, 0);
  buf_puts(&body, "{\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":20,\"input\":\"say:");
  for (int i = 0; i < 200; i++) buf_putc(&body, (char)('a' + i % 26));
  buf_puts(&body, "\"}");
  events_ask(f, PATH, buf_cstr(&body), &s);
  events_order("long ending", &s, ORDER "response.completed");
  assert_int_equal(json_array_size(value_at(s.data[s.n - 1], "response.output.0.content.0.logprobs")), 200);
  events_free(&s);
  buf_free(&body);
  fixture_stop(f);
}

/* Aborted by its rid: what there is so far, with an end of its own. */
static void aborts(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  static const char *const bodies[] = {
      "{\"rid\":\"r\",\"input\":\"!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\",\"stream\":true}",
      "{\"rid\":\"r\",\"input\":\"!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\"}"};
  for (int i = 0; i < 2; i++) {
    struct answer a, aborted;
    struct events s = {0};
    json_error_t je;
    int fd = client_post(f->port, PATH, bodies[i]);
    assert_true(becomes(&talk_fake.submits, i + 1));
    usleep(20000);
    assert_int_equal(client_ask(f->port, "/abort_request", "{\"rid\":\"r\"}", &aborted), 200);
    answer_free(&aborted);
    client_read(fd, &a);
    close(fd);
    assert_int_equal(a.status, 200);
    if (i == 0) events_parse("abort", buf_cstr(&a.body), &s);
    if (i == 0) assert_string_equal(s.names[s.n - 1], "response.incomplete");
    json_t *v = i == 0 ? json_incref(value_at(s.data[s.n - 1], "response")) : json_loads(buf_cstr(&a.body), 0, &je);
    value_check("abort", v, "status", "\"cancelled\"");
    value_check("abort", v, "output.0.status", "\"incomplete\"");
    value_check("abort", v, "incomplete_details", "null");
    size_t n = strlen(value_string("abort", v, "output.0.content.0.text"));
    assert_true(n < 52 && n == (size_t)json_integer_value(value_at(v, "usage.output_tokens")));
    json_decref(v);
    events_free(&s);
    answer_free(&a);
  }
  fixture_stop(f);
}

/* A server that stops cuts streams with a failed response. */
static void shutdown_in_stream(void **state) {
  (void)state;
  struct serve_options o = {.grace_ms = 50};
  memset(&talk_fake, 0, sizeof talk_fake);
  struct port port = fake_port(&talk_fake);
  port.render = talk_render;
  struct fixture *f = fixture_start_port(&port, &o, 0, 0);
  int fd = client_post(f->port, PATH, "{\"input\":\"!delay=20 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\",\"stream\":true}");
  struct buf in;
  struct answer a;
  struct events s;
  buf_init(&in, 0);
  while (!in.data || !strstr(in.data, "output_text.delta")) assert_int_equal(client_more(fd, &in, 2000), 1);
  serve_stop(f->serve);
  client_read_from(fd, &in, &a, 5000);
  events_parse("shutdown", buf_cstr(&a.body), &s);
  assert_string_equal(s.names[s.n - 1], "response.failed");
  value_check("shutdown", s.data[s.n - 1], "response.error", "{\"code\":\"server_error\",\"message\":\"the server is shutting down\"}");
  events_free(&s);
  answer_free(&a);
  buf_free(&in);
  close(fd);
  fixture_join(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whole),       cmocka_unit_test(repeats),    cmocka_unit_test(streamed),          cmocka_unit_test(stream_equals_whole),
    cmocka_unit_test(ends),        cmocka_unit_test(logprobs),   cmocka_unit_test(samplers),          cmocka_unit_test(conversations),
    cmocka_unit_test(ranges),      cmocka_unit_test(bad_inputs), cmocka_unit_test(failures),          cmocka_unit_test(disconnects),
    cmocka_unit_test(long_ending), cmocka_unit_test(aborts),     cmocka_unit_test(shutdown_in_stream)};
TEST_MAIN(tests)
