/* t_native — /generate against the scripted engine: ranges of its fields, streams against whole answers, the requests of the usual load generator.
 * Shapes, field by field, are in http/generate.txt (t_openai). */
#include "test.h"

#include "fake.h"

static json_t *parse(const char *where, const char *text, size_t n) {
  json_error_t e;
  json_t *v = json_loadb(text, n, 0, &e);
  if (!v) fail_msg("%s: %s: %.*s", where, e.text, (int)n, text);
  return v;
}

static json_t *ask(int port, const char *body) {
  struct answer a;
  if (client_ask(port, "/generate", body, &a) != 200) fail_msg("%s: status %d: %s", body, a.status, buf_cstr(&a.body));
  json_t *v = parse(body, buf_cstr(&a.body), a.body.len);
  answer_free(&a);
  return v;
}

/* The items of a stream, in a JSON array. */
static json_t *ask_stream(int port, const char *body) {
  struct answer a;
  json_t *items = json_array();
  bool done = false;
  if (client_ask(port, "/generate", body, &a) != 200) fail_msg("%s: status %d: %s", body, a.status, buf_cstr(&a.body));
  const char *end;
  for (const char *p = buf_cstr(&a.body); (end = strstr(p, "\n\n")); p = end + 2) {
    if (done || strncmp(p, "data: ", 6)) fail_msg("%s: not an event stream: %s", body, p);
    if (!strncmp(p, "data: [DONE]\n", 13)) done = true;
    else json_array_append_new(items, parse(body, p + 6, (size_t)(end - p) - 6));
  }
  if (!done) fail_msg("%s: no [DONE]", body);
  answer_free(&a);
  return items;
}

static const json_t *meta(const json_t *answer, const char *key) { return json_object_get(json_object_get(answer, "meta_info"), key); }

/* ---- ranges --------------------------------------------------------------------------------------------------------------- */

static const struct range sampling_ranges[] = {
    {"max_new_tokens", {"0", "1", "null", "2147483647", "5.0"}, {"-1", "1e12", "\"5\"", "2.5", "true"}},
    {"min_new_tokens", {"0", "128", "null"}, {"129", "-1", "\"1\"", "1.5"}},
    {"temperature", {"0", "1", "2.5", "null"}, {"-1", "-0.001", "1e9", "\"1\"", "[]", "NaN"}},
    {"top_p", {"1", "0.5", "null"}, {"0", "1.1", "-0.5", "\"x\""}},
    {"top_k", {"-1", "1", "1000000"}, {"-2", "1.5", "\"4\""}},
    {"min_p", {"0", "1", "0.25"}, {"-0.1", "1.1"}},
    {"frequency_penalty", {"-2", "2"}, {"-2.1", "3"}},
    {"presence_penalty", {"-2", "2"}, {"2.0001", "-3"}},
    {"repetition_penalty", {"1", "2"}, {"0", "2.5"}},
    {"n", {"1", "3", "null"}, {"0", "129", "1.5", "\"2\""}},
    {"stop", {"null", "\"x\"", "[\"a\",\"b\"]"}, {"\"\"", "[\"\"]", "[1]", "7"}},
    {"stop_token_ids", {"null", "[0,257]", "[null]"}, {"[258]", "[-1]", "5"}},
    {"ignore_eos", {"true", "false"}, {"1"}},
    {"no_stop_trim", {"true", "null"}, {"\"yes\""}},
    {"skip_special_tokens", {"true", "false"}, {"1"}},
    {"logit_bias", {"null", "{\"0\":5}"}, {"{\"258\":5}", "{\"-1\":5}", "{\"abc\":1}", "{\"5\":1e9}", "{\"5\":\"x\"}", "[]"}},
    {"sampling_seed", {"0", "-1", "null"}, {"1.5", "\"7\"", "9223372036854775808"}},
    {"regex", {"null", "\"a+\""}, {"\"\"", "\"!bad\"", "5"}},
    {"json_schema", {"null", "\"{}\""}, {"\"{\"", "\"[]\""}},
    {"ebnf", {"null", "\"root ::= [a]\""}, {"\"!bad\""}},
    {"structural_tag", {"null"}, {"\"x\""}},
    {"stop_regex", {"null", "[]"}, {"\"x\"", "[\"x\"]"}},
    {"custom_params", {"null", "{}"}, {"{\"thinking_budget\":5}"}},
    {"max_tokens", {"null"}, {"5"}},
    {"min_tokens", {"null"}, {"5"}},
    {"seed", {"null"}, {"5"}},
    {"stream_interval", {"null", "1"}, {NULL}},
};
static const struct range body_ranges[] = {
    {"sampling_params", {"null", "{}", "[{}]"}, {"5", "\"x\"", "[]", "[{},{}]", "[5]"}},
    {"rid", {"null", "\"x\"", "[\"x\"]"}, {"5", "[5]", "[]", "[\"a\",\"b\"]", "[\"\"]"}},
    {"return_logprob", {"true", "false", "[true]", "null"}, {"1", "\"yes\"", "[1]", "[]"}},
    {"logprob_start_len", {"-1", "0", "[-1]", "null"}, {"-2", "\"0\"", "1.5", "[-1,-1]"}},
    {"top_logprobs_num", {"0", "20", "[3]", "null"}, {"21", "-1", "\"2\"", "[21]"}},
    {"return_text_in_logprobs", {"true", "null"}, {"1"}},
    {"stream", {"false", "null"}, {"1", "\"true\""}},
    {"incremental_streaming_output", {"true", "false"}, {"1"}},
    {"priority", {"0", "-5", "null"}, {"\"x\"", "1.5", "2147483648"}},
    {"extra_key", {"\"x\"", "null", "\"\""}, {"5", "[\"x\"]"}},
    {"cache_salt", {"\"x\"", "null"}, {"5"}},
    {"return_prompt_token_ids", {"true", "null"}, {"1"}},
    {"token_ids_logprob", {"null", "[]"}, {"[1]", "1"}},
    {"image_data", {"null", "[]"}, {"\"http://x/y.png\"", "[\"x\"]"}},
    {"video_data", {"null"}, {"\"x\""}},
    {"audio_data", {"null"}, {"\"x\""}},
    {"input_embeds", {"null"}, {"[[0.5]]"}},
    {"lora_path", {"null", "\"\""}, {"\"x\""}},
    {"session_params", {"null", "{}"}, {"{\"id\":\"x\"}"}},
    {"custom_logit_processor", {"null"}, {"\"x\""}},
    {"return_hidden_states", {"false", "null"}, {"true"}},
    {"require_reasoning", {"false"}, {"true"}},
    {"log_metrics", {"true", "false"}, {NULL}},
    {"no_logs", {"true"}, {NULL}},
    {"some_field_from_the_future", {"[1]"}, {NULL}},
};

static void ranges(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  check_ranges(f->port, "/generate", "{\"text\":\"say:hi\",\"sampling_params\":{", "}}", sampling_ranges, ARRAY_LEN(sampling_ranges));
  check_ranges(f->port, "/generate", "{\"text\":[\"say:hi\",\"say:a\"],\"sampling_params\":[{},{", "}]}", sampling_ranges + 1, 8);
  check_ranges(f->port, "/generate", "{\"text\":\"say:hi\",", "}", body_ranges, ARRAY_LEN(body_ranges));
  json_decref(ask(f->port, "{\"text\":\"say:hi\"}"));
  fixture_stop(f);
}

/* ---- streams -------------------------------------------------------------------------------------------------------------- */

static const json_t *whole_of(const json_t *whole, size_t i) { return json_is_array(whole) ? json_array_get(whole, i) : whole; }

/* Times differ from run to run. */
static void forget_times(json_t *answer) {
  static const char *const times[] = {"e2e_latency", "id"};
  for (size_t i = 0; i < ARRAY_LEN(times); i++) json_object_del(json_object_get(answer, "meta_info"), times[i]);
}

/* One whole answer = the last item of a stream of all so far = the items of one of what is new, put together. */
static void check_streams(int port, const char *body, int n_choices) {
  char more[1000];
  json_t *whole = ask(port, body);
  snprintf(more, sizeof more, "{\"stream\":true,%s", body + 1);
  json_t *cumulative = ask_stream(port, more);
  snprintf(more, sizeof more, "{\"stream\":true,\"incremental_streaming_output\":true,%s", body + 1);
  json_t *incremental = ask_stream(port, more);
  for (int k = 0; k < n_choices; k++) {
    const json_t *item, *last = NULL;
    json_t *wanted = json_deep_copy(whole_of(whole, (size_t)k));
    size_t i, n_text = 0;
    json_array_foreach(cumulative, i, item) {
      if (n_choices > 1 && json_integer_value(json_object_get(item, "index")) != k) continue;
      const char *text = json_string_value(json_object_get(item, "text"));
      if (!utf8_valid(text, strlen(text)) || strlen(text) < n_text) fail_msg("%s: \"%s\" takes something back", body, text);
      if (last && !json_is_null(meta(last, "finish_reason"))) fail_msg("%s: something after its end", body);
      n_text = strlen(text);
      last = item;
    }
    assert_non_null(last);
    json_t *found = json_deep_copy(last);
    json_object_del(found, "index");
    forget_times(found);
    forget_times(wanted);
    if (!json_equal(found, wanted)) fail_msg("%s: %s is not %s", body, json_dumps(found, 0), json_dumps(wanted, 0));

    static const char *const lists[] = {"output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs"};
    json_t *ids = json_array(), *parts[ARRAY_LEN(lists)];
    struct buf text;
    buf_init(&text, 0);
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) parts[l] = json_array();
    json_array_foreach(incremental, i, item) {
      if (n_choices > 1 && json_integer_value(json_object_get(item, "index")) != k) continue;
      buf_puts(&text, json_string_value(json_object_get(item, "text")));
      json_array_extend(ids, json_object_get(item, "output_ids"));
      for (size_t l = 0; l < ARRAY_LEN(lists); l++)
        if (meta(item, lists[l])) json_array_extend(parts[l], (json_t *)(uintptr_t)meta(item, lists[l]));
    }
    if (strcmp(buf_cstr(&text), json_string_value(json_object_get(wanted, "text")))) fail_msg("%s: \"%s\"", body, buf_cstr(&text));
    assert_true(json_equal(ids, json_object_get(wanted, "output_ids")));
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
      if (meta(wanted, lists[l]) && !json_equal(parts[l], meta(wanted, lists[l]))) fail_msg("%s: %s", body, lists[l]);
      json_decref(parts[l]);
    }
    json_decref(ids);
    json_decref(found);
    json_decref(wanted);
    buf_free(&text);
  }
  json_decref(whole);
  json_decref(cumulative);
  json_decref(incremental);
}

static void streams_are_whole(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 8, 0);
  static const char *const texts[] = {"say:alpha beta gamma", "say:\xf0\x9f\x98\x80 caf\xc3\xa9 \xe2\x82\xac", "say:a\\nb", "say:x"};
  static const char *const params[] = {"",
                                       ",\"stop\":[\"beta gam\"]",
                                       ",\"stop\":[\"a b\",\"zzz\"],\"max_new_tokens\":9",
                                       ",\"max_new_tokens\":3",
                                       ",\"max_new_tokens\":0",
                                       ",\"ignore_eos\":true,\"max_new_tokens\":20",
                                       ",\"stop\":\"\\n\",\"n\":2"};
  static const char *const logprobs[] = {"", ",\"return_logprob\":true",
                                         ",\"return_logprob\":true,\"logprob_start_len\":0,\"top_logprobs_num\":3",
                                         ",\"return_logprob\":true,\"logprob_start_len\":3,\"return_text_in_logprobs\":true"};
  for (size_t t = 0; t < ARRAY_LEN(texts); t++)
    for (size_t p = 0; p < ARRAY_LEN(params); p++)
      for (size_t l = 0; l < ARRAY_LEN(logprobs); l++) {
        char body[700];
        int n = p + 1 == ARRAY_LEN(params) ? 2 : 1;
        snprintf(body, sizeof body, "{\"text\":\"%s\"%s,\"sampling_params\":{\"temperature\":0%s}}", texts[t], logprobs[l], params[p]);
        check_streams(f->port, body, n);
        if (n > 1) continue;
        snprintf(body, sizeof body, "{\"text\":[\"%s\",\"say:other\"]%s,\"sampling_params\":{\"temperature\":0%s}}", texts[t], logprobs[l],
                 params[p]);
        check_streams(f->port, body, 2);
      }
  fixture_stop(f);
}

/* ---- as the load generator asks ------------------------------------------------------------------------------------------- */

static void load_generator(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  for (int n = 1; n <= 300; n += 23) {
    char body[700];
    snprintf(body, sizeof body,
             "{\"text\":\"say:ab\",\"sampling_params\":{\"temperature\":0.0,\"max_new_tokens\":%d,\"ignore_eos\":true},\"stream\":true,"
             "\"lora_path\":null,\"return_logprob\":false,\"return_routed_experts\":false,\"logprob_start_len\":-1,\"image_data\":null}",
             n);
    json_t *items = ask_stream(f->port, body);
    const json_t *item;
    size_t i;
    int64_t before = 0;
    json_array_foreach(items, i, item) { /* each item with text has more tokens than the one before */
      assert_true(json_string_length(json_object_get(item, "text")) > 0);
      int64_t now = json_integer_value(meta(item, "completion_tokens"));
      assert_true(now > before);
      before = now;
    }
    assert_int_equal(before, n);
    json_decref(items);
  }
  /* its warm-up: whole, from ids */
  json_t *v = ask(f->port,
                  "{\"input_ids\":[115,97,121,58,97],\"sampling_params\":{\"temperature\":0.0,\"max_new_tokens\":32,\"ignore_eos\":true},"
                  "\"stream\":false,\"lora_path\":\"\",\"return_logprob\":true,\"logprob_start_len\":-1}");
  assert_int_equal(json_integer_value(meta(v, "completion_tokens")), 32);
  assert_int_equal(json_integer_value(meta(v, "prompt_tokens")), 5);
  assert_int_equal(json_array_size(meta(v, "output_token_logprobs")), 32);
  assert_int_equal(json_array_size(meta(v, "input_token_logprobs")), 0);
  json_decref(v);
  fixture_stop(f);
}

/* Words that a request may end in, and none of them: no failure of the engine is lost, and none stays behind. */
static void failures(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  for (int at = 1; at < 6; at++) {
    char body[200];
    struct answer a;
    snprintf(body, sizeof body, "{\"text\":[\"say:abcdefgh\",\"!fail=%d say:abcdefgh\"],\"stream\":true}", at);
    assert_int_equal(client_ask(f->port, "/generate", body, &a), 200);
    const char *error = strstr(a.body.data, "data: {\"error\":{");
    assert_non_null(error);
    assert_string_equal(strstr(error, "\n\n"), "\n\ndata: [DONE]\n\n");
    answer_free(&a);
  }
  json_decref(ask(f->port, "{\"text\":\"say:x\"}"));
  fixture_stop(f);
}

/* A prompt as long as the context or longer: a code and both numbers, on every route; the server goes on. */
static void too_long(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  static const struct {
    const char *path, *param, *before, *after;
  } table[] = {{"/generate", "text", "{\"text\":\"", "\"}"},
               {"/v1/completions", "prompt", "{\"prompt\":\"", "\"}"},
               {"/v1/chat/completions", "messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++)
    for (int stream = 0; stream < 2; stream++) {
      struct buf body;
      struct answer a;
      buf_init(&body, 0);
      buf_printf(&body, "{\"stream\":%s,%s", stream ? "true" : "false", table[i].before + 1);
      for (int k = 0; k < FAKE_CTX; k++) buf_putc(&body, 'x');
      buf_puts(&body, table[i].after);
      assert_int_equal(client_ask(f->port, table[i].path, buf_cstr(&body), &a), 400);
      json_t *v = parse(table[i].path, a.body.data, a.body.len);
      const json_t *error = json_object_get(v, "error");
      assert_string_equal(json_string_value(json_object_get(error, "code")), "context_length_exceeded");
      assert_string_equal(json_string_value(json_object_get(error, "param")), table[i].param);
      assert_non_null(strstr(json_string_value(json_object_get(error, "message")), "maximum context length is 4096 tokens"));
      assert_non_null(strstr(json_string_value(json_object_get(error, "message")), " resulted in 4"));
      json_decref(v);
      answer_free(&a);
      buf_free(&body);
    }
  json_decref(ask(f->port, "{\"text\":\"say:x\"}"));
  fixture_stop(f);
}

/* Somebody else ends one of a batch, or all of it: the client gets what there is. */
static void aborts(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 8, 0);
  static const struct {
    const char *wish, *ends[2];
  } table[] = {
      {"{\"rid\":\"q\"}", {"length", "abort"}}, {"{\"rid\":\"r\"}", {"length", "length"}}, {"{\"rid\":\"p\"}", {"abort", "length"}}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct answer a;
    int submits = atomic_load(&f->fake.submits);
    int fd = client_post(f->port, "/generate",
                         "{\"text\":[\"!delay=2 say:abc\",\"!delay=2 say:abc\"],\"rid\":[\"p\",\"q\"],"
                         "\"sampling_params\":{\"ignore_eos\":true,\"max_new_tokens\":100}}");
    assert_true(becomes(&f->fake.submits, submits + 2));
    assert_int_equal(client_ask(f->port, "/abort_request", table[i].wish, &a), 200);
    answer_free(&a);
    client_read(fd, &a);
    close(fd);
    assert_int_equal(a.status, 200);
    json_t *v = parse("aborted", buf_cstr(&a.body), a.body.len);
    for (size_t k = 0; k < 2; k++) {
      const json_t *one = json_array_get(v, k);
      assert_string_equal(json_string_value(json_object_get(meta(one, "finish_reason"), "type")), table[i].ends[k]);
      if (!strcmp(table[i].ends[k], "length")) assert_int_equal(json_integer_value(meta(one, "completion_tokens")), 100);
      else assert_true(json_integer_value(meta(one, "completion_tokens")) < 100);
      assert_int_equal(json_array_size(json_object_get(one, "output_ids")), json_integer_value(meta(one, "completion_tokens")));
    }
    json_decref(v);
    answer_free(&a);
  }
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(ranges),         cmocka_unit_test(streams_are_whole),
                                          cmocka_unit_test(load_generator), cmocka_unit_test(failures),
                                          cmocka_unit_test(aborts),         cmocka_unit_test(too_long)};
TEST_MAIN(tests)
