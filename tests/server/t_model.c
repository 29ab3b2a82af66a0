/* t_model — the server over a real engine with the tiny model: what only shows when everything is joined. */
#include "test.h"

#include "fake.h"

static struct fixture *open_model(struct cygnet **c, int ctx_tokens) {
  struct cygnet_error e;
  struct cygnet_options o = {.model = test_path("golden/gemma3-text-tiny/model-mixed.gguf"),
                             .threads = 1,
                             .ctx_tokens = ctx_tokens,
                             .max_running = 4,
                             .max_queued = 8,
                             .mem_bytes = (size_t)256 << 20,
                             .quiet = 1};
  *c = cygnet_open(&o, &e);
  if (!*c) fail_msg("%s", e.message);
  struct port port = port_of(*c);
  return fixture_start_port(&port, NULL, 0, 0);
}
static void close_model(struct fixture *f, struct cygnet *c) {
  fixture_stop(f);
  cygnet_close(c);
}

static json_t *ask_json(int port, const char *path, const char *body, int status) {
  struct answer a;
  json_error_t e;
  client_ask(port, path, body, &a);
  if (a.status != status) fail_msg("%s: status %d: %s", body, a.status, buf_cstr(&a.body));
  json_t *v = json_loadb(a.body.data, a.body.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e); /* bytes 0 are tokens too */
  if (!v) fail_msg("%s: %s: %s", body, e.text, a.body.data);
  answer_free(&a);
  return v;
}
static const json_t *choice(const json_t *v, size_t i) { return json_array_get(json_object_get(v, "choices"), i); }
static const json_t *text_of(const json_t *v, size_t i) { return json_object_get(choice(v, i), "text"); }
static int64_t usage_of(const json_t *v, const char *name) {
  return json_integer_value(json_object_get(json_object_get(v, "usage"), name));
}

/* All deltas of choice 0. */
static void streamed(int port, const char *body, struct buf *out) {
  struct answer a;
  assert_int_equal(client_ask(port, "/v1/completions", body, &a), 200);
  const char *end;
  bool done = false;
  for (const char *p = buf_cstr(&a.body); (end = strstr(p, "\n\n")); p = end + 2) {
    json_error_t e;
    if (!strncmp(p, "data: [DONE]", 12)) {
      done = true;
      continue;
    }
    json_t *chunk = json_loadb(p + 6, (size_t)(end - p) - 6, JSON_ALLOW_NUL, &e);
    assert_non_null(chunk);
    const json_t *text = json_object_get(choice(chunk, 0), "text");
    buf_append(out, json_string_value(text), json_string_length(text));
    json_decref(chunk);
  }
  assert_true(done);
  answer_free(&a);
}

/* Wild sampling makes lone bytes, control spellings and stops over token borders: the stream must still be the whole text. */
static void stream_is_whole(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  for (int seed = 0; seed < (TEST_TSAN ? 4 : 12); seed++) {
    char body[300];
    struct buf text;
    buf_init(&text, 0);
    const char *stop = seed % 3 ? "" : ",\"stop\":[\"a\",\"e\"]";
    snprintf(body, sizeof body, "{\"prompt\":\"Hello there\",\"max_tokens\":60,\"temperature\":3,\"seed\":%d%s,\"ignore_eos\":true}", seed,
             stop);
    json_t *v = ask_json(f->port, "/v1/completions", body, 200);
    snprintf(body, sizeof body,
             "{\"prompt\":\"Hello there\",\"max_tokens\":60,\"temperature\":3,\"seed\":%d%s,\"ignore_eos\":true,\"stream\":true}", seed,
             stop);
    streamed(f->port, body, &text);
    json_t *found = json_stringn(buf_cstr(&text), text.len); /* NULL unless it is UTF-8 */
    assert_true(json_equal(found, text_of(v, 0)));
    json_decref(found);
    if (!*stop) assert_int_equal(usage_of(v, "completion_tokens"), 60);
    buf_free(&text);
    json_decref(v);
  }
  close_model(f, c);
}

static void parameters_reach_the_sampler(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  const char *const base = "{\"prompt\":\"Hello\",\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true,\"logprobs\":2}";
  json_t *first = ask_json(f->port, "/v1/completions", base, 200), *again = ask_json(f->port, "/v1/completions", base, 200);
  assert_true(json_equal(text_of(first, 0), text_of(again, 0)));
  const json_t *lp = json_object_get(choice(first, 0), "logprobs");
  assert_int_equal(json_array_size(json_object_get(lp, "tokens")), 12);
  assert_int_equal(json_array_size(json_object_get(lp, "text_offset")), 12);
  /* forced by a bias: the same id twelve times */
  json_t *forced = ask_json(
      f->port, "/v1/completions",
      "{\"prompt\":\"Hello\",\"max_tokens\":12,\"temperature\":0,\"ignore_eos\":true,\"logprobs\":0,\"logit_bias\":{\"300\":100}}", 200);
  const json_t *tokens = json_object_get(json_object_get(choice(forced, 0), "logprobs"), "tokens");
  for (size_t i = 1; i < 12; i++)
    assert_string_equal(json_string_value(json_array_get(tokens, i)), json_string_value(json_array_get(tokens, 0)));
  /* seeds: equal ones agree, choices of one request differ, the prompt is counted once */
  const char *const several = "{\"prompt\":\"Hello\",\"max_tokens\":20,\"temperature\":2,\"seed\":7,\"n\":3,\"ignore_eos\":true}";
  json_t *s1 = ask_json(f->port, "/v1/completions", several, 200), *s2 = ask_json(f->port, "/v1/completions", several, 200);
  for (size_t i = 0; i < 3; i++) assert_true(json_equal(text_of(s1, i), text_of(s2, i)));
  assert_false(json_equal(text_of(s1, 0), text_of(s1, 1)));
  assert_false(json_equal(text_of(s1, 1), text_of(s1, 2)));
  assert_int_equal(usage_of(s1, "completion_tokens"), 60);
  assert_int_equal(usage_of(s1, "prompt_tokens"), usage_of(first, "prompt_tokens"));
  json_t *all[] = {first, again, forced, s1, s2};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) json_decref(all[i]);
  close_model(f, c);
}

static void context_ends(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 128);
  json_t *v = ask_json(f->port, "/v1/completions", "{\"prompt\":\"Hello\",\"max_tokens\":1000,\"ignore_eos\":true}", 200);
  assert_string_equal(json_string_value(json_object_get(choice(v, 0), "finish_reason")), "length");
  assert_int_equal(usage_of(v, "total_tokens"), 128);
  json_decref(v);
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"prompt\":[2");
  for (int i = 0; i < 127; i++) buf_puts(&body, ",300");
  buf_puts(&body, "]}");
  v = ask_json(f->port, "/v1/completions", buf_cstr(&body), 400);
  assert_string_equal(json_string_value(json_object_get(json_object_get(v, "error"), "code")), "context_length_exceeded");
  json_decref(v);
  buf_free(&body);
  close_model(f, c);
}

static void role_orders(void **state) { /* every order of up to four roles is answered or refused, never 500 */
  (void)state;
  static const char *const roles[] = {"system", "user", "assistant", "tool", "developer", "nobody"};
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  int n_good = 0, n_refused = 0;
  for (int code = 0; code < 6 + 36 + 216 + 1296; code += TEST_TSAN ? (code < 258 ? 11 : 97) : (code < 258 ? 1 : 7)) {
    int n = code < 6 ? 1 : code < 42 ? 2 : code < 258 ? 3 : 4, at = code - (code < 6 ? 0 : code < 42 ? 6 : code < 258 ? 42 : 258);
    struct buf body;
    struct answer a;
    buf_init(&body, 0);
    buf_puts(&body, "{\"max_tokens\":1,\"messages\":[");
    for (int i = 0; i < n; i++, at /= 6) buf_printf(&body, "%s{\"role\":\"%s\",\"content\":\"hi\"}", i ? "," : "", roles[at % 6]);
    buf_puts(&body, "]}");
    client_ask(f->port, "/v1/chat/completions", body.data, &a);
    n_good += a.status == 200;
    n_refused += a.status == 400;
    if (a.status != 200 && a.status != 400) fail_msg("%s: status %d", body.data, a.status);
    if (a.status == 400 && !strstr(a.body.data, "messages[")) fail_msg("%s: %s", body.data, a.body.data);
    answer_free(&a);
    buf_free(&body);
  }
  assert_true(n_good > (TEST_TSAN ? 1 : 5) && n_refused > (TEST_TSAN ? 10 : 50));
  close_model(f, c);
}

static const json_t *meta_of(const json_t *answer, const char *name) { return json_object_get(json_object_get(answer, "meta_info"), name); }

/* The last item of a native stream: all of it. */
static json_t *native_streamed(int port, const char *body) {
  struct answer a;
  json_error_t e;
  json_t *last = NULL;
  assert_int_equal(client_ask(port, "/generate", body, &a), 200);
  const char *end;
  for (const char *p = buf_cstr(&a.body); (end = strstr(p, "\n\n")) && strncmp(p, "data: [DONE]", 12); p = end + 2) {
    json_decref(last);
    last = json_loadb(p + 6, (size_t)(end - p) - 6, JSON_ALLOW_NUL, &e);
    assert_non_null(last);
  }
  answer_free(&a);
  return last;
}

/* One greedy answer, whatever the dialect, whole or streamed, from text or from its ids. */
static void same_by_every_road(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  static const char *const prompts[] = {"Hello there", "Once upon a time, in", "\\u00e9\\ud83d\\ude00 <b>", "1 2 3 4"};
  for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
    char body[600];
    struct buf text, ids;
    buf_init(&text, 0);
    buf_init(&ids, 0);
    const char *const wish = "\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":30,\"ignore_eos\":true}";
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"temperature\":0,\"max_tokens\":30,\"ignore_eos\":true}", prompts[i]);
    json_t *openai = ask_json(f->port, "/v1/completions", body, 200);
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"temperature\":0,\"max_tokens\":30,\"ignore_eos\":true,\"stream\":true}", prompts[i]);
    streamed(f->port, body, &text);
    json_t *deltas = json_stringn(buf_cstr(&text), text.len);
    snprintf(body, sizeof body, "{\"text\":\"%s\",\"return_prompt_token_ids\":true,%s}", prompts[i], wish);
    json_t *native = ask_json(f->port, "/generate", body, 200);
    snprintf(body, sizeof body, "{\"text\":\"%s\",\"stream\":true,%s}", prompts[i], wish);
    json_t *native_stream = native_streamed(f->port, body);
    json_put(&ids, json_object_get(native, "prompt_token_ids"));
    snprintf(body, sizeof body, "{\"input_ids\":[%s],\"return_logprob\":true,%s}", ids.data, wish);
    json_t *batch = ask_json(f->port, "/generate", body, 200);
    const json_t *from_ids = json_array_get(batch, 0);

    assert_true(json_equal(text_of(openai, 0), deltas));
    assert_true(json_equal(text_of(openai, 0), json_object_get(native, "text")));
    assert_true(json_equal(json_object_get(native_stream, "text"), json_object_get(native, "text")));
    assert_true(json_equal(json_object_get(from_ids, "text"), json_object_get(native, "text")));
    assert_true(json_equal(json_object_get(native_stream, "output_ids"), json_object_get(native, "output_ids")));
    assert_true(json_equal(json_object_get(from_ids, "output_ids"), json_object_get(native, "output_ids")));
    assert_int_equal(json_array_size(json_object_get(native, "output_ids")), 30);
    assert_int_equal(json_integer_value(meta_of(native, "completion_tokens")), 30);
    assert_int_equal(json_array_size(meta_of(from_ids, "output_token_logprobs")), 30);
    assert_int_equal(usage_of(openai, "prompt_tokens"), json_integer_value(meta_of(native, "prompt_tokens")));
    json_t *all[] = {openai, deltas, native, native_stream, batch};
    for (size_t k = 0; k < ARRAY_LEN(all); k++) json_decref(all[k]);
    buf_free(&text);
    buf_free(&ids);
  }
  close_model(f, c);
}

/* What a token is worth is the same when it is generated and when it stands in a prompt; both dialects say it. */
static void prompt_logprobs(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  json_t *made = ask_json(f->port, "/generate",
                          "{\"text\":\"Hello there\",\"return_prompt_token_ids\":true,\"return_logprob\":true,\"top_logprobs_num\":2,"
                          "\"sampling_params\":{\"temperature\":1,\"sampling_seed\":5,\"max_new_tokens\":40,\"ignore_eos\":true}}",
                          200);
  json_t *ids = json_deep_copy(json_object_get(made, "prompt_token_ids"));
  size_t n_prompt = json_array_size(ids), n = n_prompt + 40;
  json_array_extend(ids, json_object_get(made, "output_ids"));
  struct buf text, body;
  buf_init(&text, 0);
  buf_init(&body, 0);
  json_put(&text, ids);
  buf_printf(&body,
             "{\"input_ids\":%s,\"return_logprob\":true,\"logprob_start_len\":0,\"top_logprobs_num\":2,"
             "\"sampling_params\":{\"max_new_tokens\":0}}",
             text.data);
  json_t *native = ask_json(f->port, "/generate", body.data, 200);
  buf_clear(&body);
  buf_printf(&body, "{\"input_ids\":%s,\"return_logprob\":true,\"logprob_start_len\":7,\"sampling_params\":{\"max_new_tokens\":0}}",
             text.data);
  json_t *tail = ask_json(f->port, "/generate", body.data, 200);
  buf_clear(&body);
  buf_printf(&body, "{\"prompt\":%s,\"echo\":true,\"logprobs\":1,\"max_tokens\":0}", text.data);
  json_t *echo = ask_json(f->port, "/v1/completions", body.data, 200);

  const json_t *input = meta_of(native, "input_token_logprobs"), *output = meta_of(made, "output_token_logprobs");
  const json_t *legacy = json_object_get(choice(echo, 0), "logprobs"), *worth = json_object_get(legacy, "token_logprobs");
  assert_int_equal(json_array_size(input), n);
  assert_int_equal(json_array_size(meta_of(tail, "input_token_logprobs")), n - 7);
  assert_int_equal(json_array_size(worth), n);
  assert_int_equal(json_array_size(json_object_get(legacy, "text_offset")), n);
  assert_true(json_is_null(json_array_get(json_array_get(input, 0), 0)));
  assert_true(json_is_null(json_array_get(worth, 0)));
  for (size_t i = 1; i < n; i++) {
    const json_t *triple = json_array_get(input, i);
    double logprob = json_number_value(json_array_get(triple, 0));
    assert_true(json_is_number(json_array_get(triple, 0)) && logprob <= 0);
    assert_true(json_equal(json_array_get(triple, 1), json_array_get(ids, i)));
    assert_true(fabs(json_number_value(json_array_get(worth, i)) - logprob) < 1e-6);
    const json_t *top = json_array_get(json_array_get(meta_of(native, "input_top_logprobs"), i), 0);
    assert_true(json_number_value(json_array_get(top, 0)) >= logprob);
    if (i >= 7) assert_true(json_equal(json_array_get(meta_of(tail, "input_token_logprobs"), i - 7), triple));
    if (i >= n_prompt) assert_true(json_equal(json_array_get(output, i - n_prompt), triple)); /* to the last digit */
  }
  json_t *all[] = {made, ids, native, tail, echo};
  for (size_t k = 0; k < ARRAY_LEN(all); k++) json_decref(all[k]);
  buf_free(&text);
  buf_free(&body);
  close_model(f, c);
}

static void content_parts(void **state) { /* every legal mix is answered, what is not names the part */
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  static const struct {
    const char *content, *error; /* NULL: answered */
  } table[] = {{"\"hi\"", NULL},
               {"\"\"", NULL},
               {"null", NULL},
               {"[]", NULL},
               {"[{\"type\":\"text\",\"text\":\"hi\"}]", NULL},
               {"[{\"type\":\"text\",\"text\":\"hi\"},{\"type\":\"text\",\"text\":\"there\"}]", NULL},
               {"[{\"type\":\"text\"}]", "messages[0].content[0].text"},
               {"[{\"type\":\"text\",\"text\":\"hi\"},{\"type\":\"zzz\"}]", "messages[0].content[1].type"},
               {"[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\",\"detail\":\"low\"}}]", "messages[0].content[0]"},
               {"[{\"type\":\"image_url\",\"image_url\":\"data:,\"}]", "messages[0].content[0]"},
               {"[\"hi\"]", "messages[0].content[0]"},
               {"{\"type\":\"text\"}", "messages[0].content"},
               {"5", "messages[0].content"}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[300];
    snprintf(body, sizeof body, "{\"max_tokens\":1,\"messages\":[{\"role\":\"User\",\"content\":%s}]}", table[i].content);
    json_t *v = ask_json(f->port, "/v1/chat/completions", body, table[i].error ? 400 : 200);
    const char *message = json_string_value(json_object_get(json_object_get(v, "error"), "message"));
    if (table[i].error && !strstr(message, table[i].error)) fail_msg("%s: %s", body, message);
    json_decref(v);
  }
  close_model(f, c);
}

static void *same_question(void *arg) {
  int port = *(int *)arg;
  json_t *v = ask_json(port, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0,\"ignore_eos\":true}",
                       200);
  json_t *text = json_deep_copy(text_of(v, 0));
  json_decref(v);
  return text;
}

static void together_as_alone(void **state) {
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  pthread_t threads[8];
  json_t *alone = same_question(&f->port);
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, same_question, &f->port);
  for (int i = 0; i < 8; i++) {
    void *text;
    pthread_join(threads[i], &text);
    assert_true(json_equal(text, alone));
    json_decref(text);
  }
  json_decref(alone);
  close_model(f, c);
}

static void pages_come_back(void **state) { /* clients leave in every phase; nothing stays behind */
  (void)state;
  struct cygnet *c;
  struct fixture *f = open_model(&c, 256);
  for (int i = 0; i < 24; i++) {
    int fd = client_post(f->port, "/v1/completions",
                         i % 2 ? "{\"prompt\":\"Hello\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}"
                               : "{\"prompt\":\"Hello\",\"max_tokens\":200,\"ignore_eos\":true,\"n\":2}");
    usleep((unsigned)(i * 300));
    close(fd);
  }
  for (int i = 0;; i++) {
    struct answer a;
    assert_int_equal(client_get(f->port, "/server_info", &a), 200);
    static const char *const nothing[] = {"\"n_running\":0,\"n_waiting\":0", "\"full_used_tokens\":0,\"swa_used_tokens\":0", "\"calls\":0"};
    bool idle = true;
    for (size_t k = 0; k < ARRAY_LEN(nothing); k++) idle &= strstr(a.body.data, nothing[k]) != NULL;
    if (!idle && i == 200) fail_msg("%s", a.body.data);
    answer_free(&a);
    if (idle) break;
    usleep(10000);
  }
  close_model(f, c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stream_is_whole), cmocka_unit_test(parameters_reach_the_sampler),
    cmocka_unit_test(context_ends),    cmocka_unit_test(same_by_every_road),
    cmocka_unit_test(prompt_logprobs), cmocka_unit_test(content_parts),
    cmocka_unit_test(role_orders),     cmocka_unit_test(together_as_alone),
    cmocka_unit_test(pages_come_back),
};
TEST_MAIN(tests)
