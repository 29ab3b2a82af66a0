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
  for (int seed = 0; seed < 12; seed++) {
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
  for (int code = 0; code < 6 + 36 + 216 + 1296; code += code < 258 ? 1 : 7) {
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
  assert_true(n_good > 5 && n_refused > 50);
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
    bool idle = strstr(a.body.data, "\"n_running\":0,\"n_waiting\":0,\"full_used_tokens\":0,\"swa_used_tokens\":0") &&
                strstr(a.body.data, "\"calls\":0");
    if (!idle && i == 200) fail_msg("%s", a.body.data);
    answer_free(&a);
    if (idle) break;
    usleep(10000);
  }
  close_model(f, c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stream_is_whole),   cmocka_unit_test(parameters_reach_the_sampler),
    cmocka_unit_test(context_ends),      cmocka_unit_test(role_orders),
    cmocka_unit_test(together_as_alone), cmocka_unit_test(pages_come_back),
};
TEST_MAIN(tests)
