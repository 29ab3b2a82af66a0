/* /v1/messages and /v1/messages/count_tokens: what goes in, what comes out, as a whole and as a stream. */
#include "events.h"

#define PATH       "/v1/messages"
#define COUNT_PATH "/v1/messages/count_tokens"
#define SAY(text)  "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define HI         "{\"model\":\"m\",\"max_tokens\":100," SAY("say:hi") "}"

static const char *const message_keys[] = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"};

/* An error in the shape of this API. */
static void check_error(const char *where, json_t *v, const char *type, const char *message) {
  value_check(where, v, "type", "\"error\"");
  if (strcmp(value_string(where, v, "error.type"), type) || !strstr(value_string(where, v, "error.message"), message))
    fail_msg("%s: %s, wanted %s: %s", where, json_dumps(v, 0), type, message);
  assert_int_equal(json_object_size(v), 2);
  assert_int_equal(json_object_size(json_object_get(v, "error")), 2);
  json_decref(v);
}

static void whole(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  json_t *v = ask(f, PATH, HI, 200);
  value_keys("whole", v, "", message_keys, ARRAY_LEN(message_keys));
  value_check("whole", v, "type", "\"message\"");
  value_check("whole", v, "role", "\"assistant\"");
  value_check("whole", v, "model", "\"fake/model\"");
  value_check("whole", v, "content", "[{\"type\":\"text\",\"text\":\"hi\"}]");
  value_check("whole", v, "stop_reason", "\"end_turn\"");
  value_check("whole", v, "stop_sequence", "null");
  /* <bos><user>say:hi\n is 14 tokens, the fake says half of them came from its cache */
  value_check("whole", v, "usage",
              "{\"input_tokens\":7,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":7,\"output_tokens\":2}");
  const char *id = value_string("whole", v, "id");
  assert_true(!strncmp(id, "msg_", 4) && strlen(id) == 28);
  json_decref(v);
  fixture_stop(f);
}

static void streamed(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct events s;
  events_ask(f, PATH, HI, &s);
  events_order("streamed", &s, "message_start content_block_start ping content_block_delta content_block_stop message_delta message_stop");
  assert_int_equal(s.n, 8);
  value_keys("start", s.data[0], "message", message_keys, ARRAY_LEN(message_keys));
  value_check("start", s.data[0], "message.type", "\"message\"");
  value_check("start", s.data[0], "message.role", "\"assistant\"");
  value_check("start", s.data[0], "message.content", "[]");
  value_check("start", s.data[0], "message.stop_reason", "null");
  value_check("start", s.data[0], "message.stop_sequence", "null");
  value_check("start", s.data[0], "message.usage",
              "{\"input_tokens\":7,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":7,\"output_tokens\":1}");
  value_check("block", s.data[1], "", "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}");
  value_check("ping", s.data[2], "", "{\"type\":\"ping\"}");
  value_check("delta", s.data[3], "", "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"h\"}}");
  value_check("delta", s.data[4], "delta.text", "\"i\"");
  value_check("stop", s.data[5], "", "{\"type\":\"content_block_stop\",\"index\":0}");
  value_check("delta", s.data[6], "",
              "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":7,"
              "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":7,\"output_tokens\":2}}");
  value_check("stop", s.data[7], "", "{\"type\":\"message_stop\"}");
  events_free(&s);
  fixture_stop(f);
}

/* Text, reason and usage of a stream are those of the whole answer. */
static void stream_equals_whole(void **state) {
  (void)state;
  static const struct {
    const char *fields, *reason, *sequence, *text;
  } table[] = {
      {"\"max_tokens\":100," SAY("say:Hello"), "\"end_turn\"", "null", "Hello"},
      {"\"max_tokens\":100," SAY("say:"), "\"end_turn\"", "null", ""},
      {"\"max_tokens\":3," SAY("say:abcdef"), "\"max_tokens\"", "null", "abc"},
      {"\"max_tokens\":100,\"stop_sequences\":[\"x\",\"de\"]," SAY("say:abcdef"), "\"stop_sequence\"", "\"de\"", "abc"},
      {"\"max_tokens\":100,\"stop_sequences\":[\"\\u4f60\\\"\"]," SAY("say:ab\\u4f60\\\"z"), "\"stop_sequence\"", "\"\\u4f60\\\"\"", "ab"},
      {"\"max_tokens\":100,\"stop_sequences\":[\"zz\"]," SAY("say:abcdef"), "\"end_turn\"", "null", "abcdef"},
      {"\"max_tokens\":100," SAY("say:\\u00e9 \\u4f60\\u597d \\ud83d\\ude00\\ud83d\\udc69\\u200d\\ud83d\\udcbb\\\\nx"), "\"end_turn\"",
       "null", "\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb\nx"},
      {"\"max_tokens\":5," SAY("say:\\u4f60\\u597d"), "\"max_tokens\"", "null", "\xe4\xbd\xa0"},
  };
  struct fixture *f = talk_start();
  struct events s;
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[500];
    snprintf(body, sizeof body, "{\"model\":\"m\",%s}", table[i].fields);
    json_t *v = ask(f, PATH, body, 200);
    value_check(body, v, "stop_reason", table[i].reason);
    value_check(body, v, "stop_sequence", table[i].sequence);
    assert_string_equal(value_string(body, v, "content.0.text"), table[i].text);
    events_ask(f, PATH, body, &s);
    const json_t *end = s.data[s.n - 2];
    value_check(body, s.data[0], "message.stop_reason", "null"); /* also when the first event is the last one */
    value_check(body, s.data[0], "message.stop_sequence", "null");
    value_check(body, end, "delta.stop_reason", table[i].reason);
    value_check(body, end, "delta.stop_sequence", table[i].sequence);
    assert_true(json_equal(json_object_get(end, "usage"), json_object_get(v, "usage")));
    char *text = events_join(&s, "content_block_delta", "delta.text");
    assert_string_equal(text, table[i].text);
    free(text);
    json_decref(v);
    events_free(&s);
  }
  fixture_stop(f);
}

static void conversations(void **state) {
  (void)state;
  static const struct {
    const char *fields, *rendered;
  } table[] = {
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]", "<user>a\n"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":"
       "\"text\",\"text\":\"b\"}]}]",
       "<user>a|b\n"},
      {"\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]", "<system>s\n<user>a\n"},
      {"\"system\":\"\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]", "<user>a\n"},
      {"\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}},{\"type\":\"text\",\"text\":"
       "\"t\"}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]",
       "<system>s|t\n<user>a\n"},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]",
       "<user>a\n<assistant>b\n<user>c\n"},
      /* neighbours of one role are one turn */
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":"
       "\"text\",\"text\":\"c\"}]},{\"role\":\"user\",\"content\":\"d\"}]",
       "<user>a\n\nbc\n\nd\n"},
      {"\"system\":\"s\",\"messages\":[{\"role\":\"system\",\"content\":\"t\"},{\"role\":\"user\",\"content\":\"a\"}]",
       "<system>s\n\nt\n<user>a\n"},
      /* an answer that had nothing in it, sent back */
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"\"}]},"
       "{\"role\":\"user\",\"content\":\"b\"}]",
       "<user>a\n<assistant>\n<user>b\n"},
      /* a last turn of the assistant is gone on with */
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b (\"}]", "<user>a\n<assistant>b ("},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\"}]", "<user>a\n"},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[]}]", "<user>a\n"},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[700], wanted[100];
    snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":9,%s}", table[i].fields);
    json_decref(ask(f, PATH, body, 200));
    talk_check(body, table[i].rendered);
    json_t *v = ask(f, COUNT_PATH, body, 200); /* the same prompt, counted: one BOS more than bytes */
    snprintf(wanted, sizeof wanted, "{\"input_tokens\":%zu}", strlen(table[i].rendered) + 1);
    value_check(body, v, "", wanted);
    json_decref(v);
  }
  fixture_stop(f);
}

static void samplers(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  json_t *v = ask(
      f, PATH,
      "{\"model\":\"m\",\"max_tokens\":50,\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"stop_sequences\":[\"QQ\",\"RR\"]," SAY(
          "!params") "}",
      200);
  value_check("samplers", v, "content.0.text",
              "\"t=0.5 k=7 p=0.25 m=0 f=0 pr=0 r=0 seed=0/0 min=0 bias=0 max=50 stop=2 ids=0 keep=0 eos=0 special=0\"");
  json_decref(v);
  fixture_stop(f);
}

/* Each field inside and outside of what is allowed; the error names it. */
static void ranges(void **state) {
  (void)state;
  static const struct {
    const char *field, *good[5], *bad[7];
  } table[] = {
      {"max_tokens", {"1", "2147483647"}, {"0", "-1", "1.5", "\"5\"", "null", "1e12"}},
      {"temperature", {"0", "1", "0.5", "null"}, {"-0.1", "1.01", "\"1\"", "[]"}},
      {"top_p", {"1", "0.5", "null"}, {"0", "1.1", "-1", "\"x\""}},
      {"top_k", {"0", "5", "null"}, {"-1", "1.5", "\"4\""}},
      {"stop_sequences", {"[]", "null", "[\"zz\"]"}, {"\"x\"", "[\"\"]", "[5]", "[\"a\",null]", "{}"}},
      {"stream", {"false", "null"}, {"1", "\"true\""}},
      {"metadata", {"null", "{}", "{\"user_id\":\"u\"}", "{\"user_id\":null}"}, {"5", "\"u\"", "{\"user_id\":5}"}},
      {"tools",
       {"[]", "null", "[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]"},
       {"[{\"name\":\"f\"}]", "[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]", "[{\"input_schema\":{}}]", "5"}},
      {"tool_choice", {"null", "{\"type\":\"auto\"}", "{\"type\":\"none\"}"}, {"{\"type\":\"any\"}", "{\"type\":\"tool\",\"name\":\"f\"}"}},
      {"thinking",
       {"null", "{\"type\":\"disabled\"}"},
       {"{\"type\":\"enabled\",\"budget_tokens\":1024}", "{\"type\":\"adaptive\"}", "true"}},
      {"output_config",
       {"null", "{}", "{\"effort\":\"high\"}", "{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}"},
       {"{\"effort\":\"low\"}", "{\"format\":{\"type\":\"json_schema\"}}", "{\"format\":{\"type\":\"xml\"}}", "5"}},
      {"container", {"null"}, {"\"c\""}},
      {"mcp_servers", {"[]"}, {"[{\"type\":\"url\"}]"}},
      {"context_management", {"null"}, {"{\"edits\":[{}]}"}},
      {"service_tier", {"\"auto\"", "\"standard_only\""}, {"\"gold\"", "5"}},
      {"speed", {"\"standard\"", "null"}, {"\"fast\""}},
      {"cache_control", {"{\"type\":\"ephemeral\"}"}, {NULL}},
      {"model", {"\"x\""}, {"5", "[]"}},
      {"system", {"\"s\"", "[]", "[{\"type\":\"text\",\"text\":\"s\"}]"}, {"5", "[5]", "[{\"type\":\"image\"}]", "[{\"type\":\"text\"}]"}},
      {"stop", {"null"}, {"\"x\""}},
      {"max_completion_tokens", {"null"}, {"5"}},
      {"response_format", {"null"}, {"{\"type\":\"json_object\"}"}},
      {"n", {"null"}, {"2"}},
      {"logprobs", {"false"}, {"true"}},
      {"seed", {"5"}, {"\"x\""}},
      {"some_field_from_the_future", {"{\"a\":[1,2]}"}, {NULL}},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++)
    for (int k = 0; k < 12; k++) {
      char body[500];
      const char *value = k < 5 ? table[i].good[k] : table[i].bad[k - 5];
      if (!value) continue;
      snprintf(body, sizeof body, "{%s%s%s\"%s\":%s}", strcmp(table[i].field, "max_tokens") ? "\"max_tokens\":9," : "", SAY("say:hi"), ",",
               table[i].field, value);
      json_t *v = ask(f, PATH, body, k < 5 ? 200 : 400);
      if (k < 5) json_decref(v);
      else check_error(body, v, "invalid_request_error", table[i].field);
    }
  fixture_stop(f);
}

static void bad_messages(void **state) {
  (void)state;
  static const struct {
    const char *fields, *message;
  } table[] = {
      {"\"model\":\"m\"", "body: messages: expected, not found"},
      {"\"messages\":null", "body: messages: expected, not found"},
      {"\"messages\":[]", "body: messages: expected an array that is not empty"},
      {"\"messages\":\"a\"", "body: messages: expected an array that is not empty"},
      {"\"messages\":[5]", "messages[0]: expected an object"},
      {"\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]", "messages[0].role: expected user or assistant, found \"tool\""},
      {"\"messages\":[{\"content\":\"a\"}]", "messages[0].role: expected user or assistant, found \"\""},
      {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content: expected a string or an array of parts"},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"\"}]", "messages[0].content: expected text that is not empty"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[]}]", "messages[0].content: expected text that is not empty"},
      {"\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}]", "messages[0].content: expected text that is not empty"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{}}]}]",
       "messages[0].content[1].source.type: expected \"base64\" or \"url\", all that this server takes"},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\"}]}]",
       "messages[1].content[0].name: expected a string"},
      {"\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":"
       "\"f\",\"input\":{}}]}]",
       "messages[1]: a tool_use without a tool_result after it"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]}]",
       "messages[0].content[0]: a tool_use belongs into a message of the assistant"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]",
       "messages[0].content[0].tool_use_id: expected a string"},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]", "messages[0].content[0].text: expected a string"},
      {"\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\","
       "\"content\":\"!norender\"}]",
       "messages[2].role: expected \"nobody\", found \"assistant\""},
      {"\"system\":\"!norender\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]",
       "system.role: expected \"nobody\", found \"system\""},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[500];
    snprintf(body, sizeof body, "{\"max_tokens\":9,%s}", table[i].fields);
    check_error(body, ask(f, PATH, body, 400), "invalid_request_error", table[i].message);
    check_error(body, ask(f, COUNT_PATH, body, 400), "invalid_request_error", table[i].message);
  }
  check_error("no max_tokens", ask(f, PATH, "{" SAY("a") "}", 400), "invalid_request_error", "body: max_tokens: expected, not found");
  check_error("no object", ask(f, PATH, "[]", 400), "invalid_request_error", "expected a JSON object");
  check_error("no JSON", ask(f, PATH, "{", 400), "invalid_request_error", "body");
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"");
  for (int i = 0; i < FAKE_CTX; i++) buf_putc(&body, 'x');
  buf_puts(&body, "\"}]}");
  check_error("long", ask(f, PATH, body.data, 400), "invalid_request_error", "prompt is too long: 4104 tokens > 4095 maximum");
  json_t *v = ask(f, COUNT_PATH, body.data, 200);
  value_check("long", v, "", "{\"input_tokens\":4104}");
  json_decref(v);
  buf_free(&body);
  fixture_stop(f);
}

static void failures(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct events s;
  struct answer a;
  char value[256];
  check_error("whole", ask(f, PATH, "{\"max_tokens\":9," SAY("!fail=3 say:abcdef") "}", 500), "api_error", "internal server error");
  client_ask(f->port, PATH, "{\"max_tokens\":9,\"stream\":true," SAY("!refuse=503 say:abc") "}", &a);
  assert_int_equal(a.status, 503); /* before the first byte: a real status */
  assert_non_null(answer_header(&a, "Retry-After", value));
  json_error_t je;
  check_error("busy", json_loads(buf_cstr(&a.body), 0, &je), "overloaded_error", "requests are waiting");
  answer_free(&a);
  events_ask(f, PATH, "{\"max_tokens\":9," SAY("!fail=3 say:abcdef") "}", &s);
  events_order("failed", &s, "message_start content_block_start ping content_block_delta error");
  value_check("failed", s.data[s.n - 1], "",
              "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"internal server error\"}}");
  events_free(&s);
  fixture_stop(f);
}

static void disconnects(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  static const char *const bodies[] = {
      "{\"max_tokens\":99," SAY("!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz") ",\"stream\":true}",
      "{\"max_tokens\":99," SAY("!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz") "}"};
  for (int i = 0; i < 2; i++) {
    int fd = client_post(f->port, PATH, bodies[i]);
    assert_true(becomes(&talk_fake.submits, 2 * i + 1));
    struct buf in;
    buf_init(&in, 0);
    while (i == 0 && (!in.data || !strstr(in.data, "content_block_delta"))) assert_int_equal(client_more(fd, &in, 2000), 1);
    buf_free(&in);
    close(fd);
    assert_true(becomes(&talk_fake.aborts, i + 1));
    json_t *v = ask(f, PATH, HI, 200);
    value_check("after", v, "content.0.text", "\"hi\"");
    json_decref(v);
  }
  fixture_stop(f);
}

static void aborts(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  static const char *const bodies[] = {
      "{\"rid\":\"r\",\"max_tokens\":99," SAY("!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz") ",\"stream\":true}",
      "{\"rid\":\"r\",\"max_tokens\":99," SAY("!delay=5 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz") "}"};
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
    if (i == 0) {
      events_parse("abort", buf_cstr(&a.body), &s);
      assert_string_equal(s.names[s.n - 1], "message_stop");
      value_check("abort", s.data[s.n - 2], "delta", "{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}");
    } else {
      json_t *v = json_loads(buf_cstr(&a.body), 0, &je);
      value_check("abort", v, "stop_reason", "\"max_tokens\"");
      assert_true(strlen(value_string("abort", v, "content.0.text")) < 52);
      json_decref(v);
    }
    events_free(&s);
    answer_free(&a);
  }
  fixture_stop(f);
}

/* Each turn is joined once, not with all before it again and again: a body full of them is still answered at once. */
static void many_turns(void **state) {
  (void)state;
  enum { N = 20000 };
  struct fixture *f = talk_start();
  struct buf body;
  char wanted[60];
  buf_init(&body, 0);
  buf_puts(&body, "{\"messages\":[");
  for (int i = 0; i < N; i++) buf_puts(&body, i ? ",{\"role\":\"user\",\"content\":\"x\"}" : "{\"role\":\"user\",\"content\":\"x\"}");
  buf_puts(&body, "]}");
  json_t *v = ask(f, COUNT_PATH, body.data, 200);
  snprintf(wanted, sizeof wanted, "{\"input_tokens\":%d}", 3 * N - 2 + 8); /* <bos>, <user>, x, two line ends between, one at the end */
  value_check("many", v, "", wanted);
  json_decref(v);
  buf_free(&body);
  fixture_stop(f);
}

static void shutdown_in_stream(void **state) {
  (void)state;
  struct serve_options o = {.grace_ms = 50};
  memset(&talk_fake, 0, sizeof talk_fake);
  struct port port = fake_port(&talk_fake);
  port.render = talk_render;
  struct fixture *f = fixture_start_port(&port, &o, 0, 0);
  int fd = client_post(f->port, PATH,
                       "{\"max_tokens\":99," SAY("!delay=20 say:abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz") ",\"stream\":true}");
  struct buf in;
  struct answer a;
  struct events s;
  buf_init(&in, 0);
  while (!in.data || !strstr(in.data, "content_block_delta")) assert_int_equal(client_more(fd, &in, 2000), 1);
  serve_stop(f->serve);
  client_read_from(fd, &in, &a, 5000);
  events_parse("shutdown", buf_cstr(&a.body), &s);
  assert_string_equal(s.names[s.n - 1], "error");
  value_check("shutdown", s.data[s.n - 1], "error", "{\"type\":\"overloaded_error\",\"message\":\"the server is shutting down\"}");
  events_free(&s);
  answer_free(&a);
  buf_free(&in);
  close(fd);
  fixture_join(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whole),       cmocka_unit_test(streamed), cmocka_unit_test(stream_equals_whole), cmocka_unit_test(conversations),
    cmocka_unit_test(samplers),    cmocka_unit_test(ranges),   cmocka_unit_test(bad_messages),        cmocka_unit_test(failures),
    cmocka_unit_test(disconnects), cmocka_unit_test(aborts),   cmocka_unit_test(many_turns),          cmocka_unit_test(shutdown_in_stream)};
TEST_MAIN(tests)
