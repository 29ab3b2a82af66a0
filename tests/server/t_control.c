/* t_control — what operators do: flush the cache, ask for proof of life, abort by name, read loads and facts. */
#include "test.h"

#include <sys/resource.h>

#include "fake.h"

static long processor_us(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

static int client_begin_get(int port, const char *path) {
  char head[512];
  int fd = client_connect(port);
  snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
  client_puts(fd, head);
  return fd;
}

static int client_finish(int fd, struct answer *a) {
  client_read(fd, a);
  close(fd);
  return a->status;
}

static int status_of_get(int port, const char *path) {
  struct answer a;
  int status = client_get(port, path, &a);
  answer_free(&a);
  return status;
}

static int status_of_post(int port, const char *path, const char *body) {
  struct answer a;
  int status = client_ask(port, path, body, &a);
  answer_free(&a);
  return status;
}

static json_t *json_of(const struct answer *a) {
  struct err e;
  json_t *j = json_load_text(buf_cstr(&a->body), a->body.len, false, "answer", &e);
  if (!j) fail_msg("%s: %s", e.msg, buf_cstr(&a->body));
  return j;
}

/* The calls in the house, by /server_info. */
static bool calls_become(int port, int wanted) {
  char text[40];
  snprintf(text, sizeof text, "\"calls\":%d,", wanted);
  for (int i = 0; i < 1000; i++) {
    struct answer a;
    client_get(port, "/server_info", &a);
    bool is = strstr(buf_cstr(&a.body), text) != NULL;
    answer_free(&a);
    if (is) return true;
    usleep(2000);
  }
  return false;
}

/* ---- /flush_cache ------------------------------------------------------------------------------------------------------------ */

static void flushes(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  struct answer a;
  char value[256];
  assert_int_equal(client_get(f->port, "/flush_cache", &a), 200);
  assert_non_null(strstr(a.body.data, "Cache flushed."));
  assert_non_null(strstr(answer_header(&a, "Content-Type", value), "text/plain"));
  answer_free(&a);
  assert_int_equal(status_of_post(f->port, "/flush_cache", "{}"), 200);
  assert_int_equal(status_of_get(f->port, "/flush_cache?timeout=2.5"), 200);
  assert_int_equal(atomic_load(&f->fake.n_flushes), 3);

  int busy = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=2\"}");
  assert_true(becomes(&f->fake.running, 1));
  assert_int_equal(client_get(f->port, "/flush_cache", &a), 400);
  assert_non_null(strstr(a.body.data, "\"code\":\"not_idle\""));
  answer_free(&a);
  int64_t start = clock_ns();
  assert_int_equal(status_of_get(f->port, "/flush_cache?timeout=0.2"), 400);
  double ms = clock_ms_since(start);
  if (ms < 190 || ms > 1500) fail_msg("refused after %.0f ms, expected 200", ms);
  assert_int_equal(status_of_post(f->port, "/flush_cache", "{\"timeout\":0.05}"), 400);
  assert_int_equal(atomic_load(&f->fake.n_flushes), 3);

  int waiting = client_begin_get(f->port, "/flush_cache?x=1&timeout=20"), gone = client_begin_get(f->port, "/flush_cache?timeout=20");
  usleep(50000);
  close(gone); /* nobody waits for this one: it is over at once */
  assert_true(calls_become(f->port, 2));
  close(busy);
  assert_int_equal(client_finish(waiting, &a), 200); /* as soon as it is idle */
  answer_free(&a);
  assert_int_equal(atomic_load(&f->fake.n_flushes), 4);
  assert_true(calls_become(f->port, 0));
  fixture_stop(f);
}

/* Who has an answer finds it in the counts, however slowly those are read. */
static void counts_come_before_answers(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  struct answer a;
  atomic_store(&f->fake.stats_ms, 20);
  for (int i = 1; i <= 5; i++) {
    char wanted[40];
    snprintf(wanted, sizeof wanted, "\"n_finished\":%d,", i);
    assert_int_equal(status_of_post(f->port, "/v1/completions", "{\"prompt\":\"say:x\"}"), 200);
    client_get(f->port, "/server_info", &a);
    assert_non_null(strstr(buf_cstr(&a.body), wanted));
    assert_non_null(strstr(buf_cstr(&a.body), "\"n_running\":0,\"n_waiting\":0,"));
    assert_non_null(strstr(buf_cstr(&a.body), "\"full_cached_tokens\":64,"));
    answer_free(&a);
  }
  assert_int_equal(status_of_get(f->port, "/flush_cache"), 200);
  client_get(f->port, "/server_info", &a);
  assert_non_null(strstr(buf_cstr(&a.body), "\"full_cached_tokens\":0,"));
  answer_free(&a);
  fixture_stop(f);
}

static void flush_nonsense(void **state) {
  (void)state;
  static const char *const queries[] = {"timeout=-1", "timeout=x", "timeout=", "timeout=1e99", "timeout=nan", "timeout=99999"};
  static const char *const bodies[] = {"{\"timeout\":-1}", "{\"timeout\":\"1\"}", "{\"timeout\":1e99}", "[]", "{"};
  struct fixture *f = fixture_start(NULL, 2, 16);
  char path[400] = "";
  for (size_t i = 0; i < ARRAY_LEN(queries); i++) {
    snprintf(path, sizeof path, "/flush_cache?%s", queries[i]);
    if (status_of_get(f->port, path) != 400) fail_msg("%s is taken", queries[i]);
  }
  for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
    if (status_of_post(f->port, "/flush_cache", bodies[i]) != 400) fail_msg("%s is taken", bodies[i]);
  snprintf(path, sizeof path, "/flush_cache?x=%0200d&timeout=1", 1);
  assert_int_equal(status_of_get(f->port, path), 400);
  assert_int_equal(status_of_get(f->port, "/flush_cache?no_timeout=x&&=&t"), 200);
  assert_int_equal(atomic_load(&f->fake.n_flushes), 1);
  fixture_stop(f);
}

/* A flush that waits for a long computation costs no processor time; a stop ends its wait. */
static void flush_waits_quietly(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  int busy = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=20\"}");
  assert_true(becomes(&f->fake.running, 1));
  int waiting = client_begin_get(f->port, "/flush_cache?timeout=60");
  usleep(50000);
  long us = -processor_us();
  usleep(300000);
  us += processor_us();
  if (us > 60000) fail_msg("%ld us of processor time in 300 ms of waiting", us);
  fixture_stop(f);
  close(busy);
  close(waiting);
}

/* ---- /health_generate ---------------------------------------------------------------------------------------------------------- */

static void proof_of_life(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 1, 1);
  struct answer a;
  assert_int_equal(client_get(f->port, "/health_generate", &a), 200);
  assert_int_equal(a.body.len, 0);
  answer_free(&a);
  assert_true(calls_become(f->port, 0));
  assert_int_equal(atomic_load(&f->fake.submits), 1);

  /* the engine is full, and produces for others: that is proof enough */
  int fds[2];
  for (int i = 0; i < 2; i++)
    fds[i] = client_post(f->port, "/v1/completions",
                         "{\"prompt\":\"!delay=5 say:0123456789012345678901234567890123456789\",\"max_tokens\":100,\"stream\":true}");
  assert_true(becomes(&f->fake.running, 2));
  for (int i = 0; i < 5; i++) assert_int_equal(status_of_get(f->port, "/health_generate"), 200);
  assert_int_equal(atomic_load(&f->fake.submits), 3);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(client_finish(fds[i], &a), 200);
    answer_free(&a);
  }
  fixture_stop(f);
}

static void many_share_one_probe(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 1, 4);
  struct answer a;
  int fds[20], busy = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100 !delay=2 say:x\"}");
  assert_true(becomes(&f->fake.running, 1));
  for (int i = 0; i < 20; i++) fds[i] = client_begin_get(f->port, "/health_generate");
  assert_true(becomes(&f->fake.running, 2));  /* it waits with the probe behind the one that computes */
  for (int i = 0; i < 10; i++) close(fds[i]); /* some give up */
  for (int i = 10; i < 20; i++) {
    assert_int_equal(client_finish(fds[i], &a), 200);
    answer_free(&a);
  }
  assert_int_equal(client_finish(busy, &a), 200);
  answer_free(&a);
  assert_true(calls_become(f->port, 0));
  assert_int_equal(atomic_load(&f->fake.submits), 2);
  fixture_stop(f);
}

static void no_sign_of_life(void **state) {
  (void)state;
  struct serve_options o = {.health_ms = 150, .calls_max = 1};
  struct fixture *f = fixture_start(&o, 1, 4);
  struct answer a;
  int busy = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=2\"}"); /* computes, and nothing comes of it */
  assert_true(becomes(&f->fake.running, 1));
  for (int i = 0; i < 2; i++) {
    int64_t start = clock_ns();
    int first = client_begin_get(f->port, "/health_generate"); /* the house is full: this needs no place */
    usleep(50000);
    int second = client_begin_get(f->port, "/health_generate");
    assert_int_equal(client_finish(first, &a), 503);
    double ms = clock_ms_since(start);
    if (ms < 140 || ms > 1000) fail_msg("503 after %.0f ms, expected 150", ms);
    assert_non_null(strstr(a.body.data, "\"code\":\"unhealthy\""));
    answer_free(&a);
    assert_int_equal(client_finish(second, &a), 503);
    assert_true(clock_ms_since(start) >= 190); /* each has its own time */
    answer_free(&a);
  }
  close(busy);
  assert_true(calls_become(f->port, 0));
  assert_int_equal(status_of_get(f->port, "/health_generate"), 200);
  assert_true(calls_become(f->port, 0));

  busy = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=2\"}");
  assert_true(becomes(&f->fake.running, 1));
  int waiting = client_begin_get(f->port, "/health_generate");
  usleep(30000);
  fixture_stop(f); /* while one waits */
  close(waiting);
  close(busy);
}

/* ---- /abort_request ------------------------------------------------------------------------------------------------------------ */

static const char hold[] = "!hold=100000 !delay=1", talk[] = "!delay=2 say:";

static int begin(int port, const char *rid, const char *script, bool stream) {
  char body[700];
  char text[401];
  for (int i = 0; i < 400; i++) text[i] = (char)('a' + i % 26);
  text[400] = 0;
  snprintf(body, sizeof body, "{\"rid\":\"%s\",\"prompt\":\"%s%s\",\"max_tokens\":1000,\"stream\":%s}", rid, script,
           script == talk ? text : "", stream ? "true" : "false");
  return client_post(port, "/v1/completions", body);
}

static int abort_it(int port, const char *rid) {
  char body[300];
  snprintf(body, sizeof body, "{\"rid\":\"%s\"}", rid);
  return status_of_post(port, "/abort_request", body);
}

static void is_aborted(int fd, bool stream) {
  struct answer a;
  assert_int_equal(client_finish(fd, &a), 200);
  assert_non_null(strstr(a.body.data, "\"finish_reason\":\"abort\""));
  if (stream) assert_non_null(strstr(a.body.data, "data: [DONE]"));
  assert_null(strstr(a.body.data, "\"error\""));
  answer_free(&a);
}

/* In the engine's queue, in prefill, while decoding, streaming or not: that one ends with what it has, at once, and no other; its name is free again. */
static void aborts_by_rid(void **state) {
  (void)state;
  enum { DECODING, PREFILL, QUEUED, N_STATES };
  struct fixture *f = fixture_start(NULL, 3, 16);
  struct answer a;
  for (int round = 0; round < N_STATES * 2; round++) {
    int which = round / 2;
    bool stream = round % 2;
    int fds[N_STATES];
    fds[DECODING] = begin(f->port, "one", talk, stream);
    assert_true(becomes(&f->fake.running, 1));
    fds[PREFILL] = begin(f->port, "one-2", hold, stream); /* "one" is no prefix here */
    assert_true(becomes(&f->fake.running, 2));
    int other = begin(f->port, "other", hold, stream);
    assert_true(becomes(&f->fake.running, 3));
    fds[QUEUED] = begin(f->port, "two", hold, stream);
    assert_true(becomes(&f->fake.running, 4));
    static const char *const rids[] = {"one", "one-2", "two"};
    int aborts = atomic_load(&f->fake.aborts), steps = atomic_load(&f->fake.steps);
    assert_int_equal(abort_it(f->port, "nobody"), 200);
    assert_int_equal(abort_it(f->port, "on"), 200);
    usleep(10000);
    assert_int_equal(atomic_load(&f->fake.aborts), aborts);
    steps = atomic_load(&f->fake.steps);
    assert_int_equal(abort_it(f->port, rids[which]), 200);
    is_aborted(fds[which], stream);
    if (atomic_load(&f->fake.steps) - steps > 20) fail_msg("%d steps until the work ended", atomic_load(&f->fake.steps) - steps);
    assert_int_equal(atomic_load(&f->fake.aborts), aborts + 1);
    assert_int_equal(atomic_load(&f->fake.running), 3);
    for (int i = 0; i < N_STATES; i++)
      if (i != which) close(fds[i]);
    int again = begin(f->port, rids[which], "say:again ", stream); /* the name is free */
    assert_int_equal(client_finish(again, &a), 200);
    assert_null(strstr(a.body.data, "abort"));
    answer_free(&a);
    close(other);
    assert_true(becomes(&f->fake.running, 0));
    assert_true(calls_become(f->port, 0));
  }
  fixture_stop(f);
}

/* While its body is still with the prep threads nobody knows its rid; it is aborted all the same. */
static void aborts_while_tokenising(void **state) {
  (void)state;
  struct serve_options o = {.prep_threads = 1};
  struct fixture *f = fixture_start(&o, 4, 16);
  struct answer a;
  atomic_store(&f->fake.tokenise_ms, 60);
  int first = begin(f->port, "first", hold, false), second = begin(f->port, "second", "say:kept ", false),
      third = begin(f->port, "third", hold, true);
  usleep(20000);
  assert_int_equal(abort_it(f->port, "first"), 200);
  assert_int_equal(abort_it(f->port, "third"), 200);
  atomic_store(&f->fake.tokenise_ms, 0);
  is_aborted(first, false);
  assert_int_equal(client_finish(second, &a), 200);
  assert_null(strstr(a.body.data, "abort"));
  answer_free(&a);
  is_aborted(third, true);
  int later = begin(f->port, "first", "say:fresh ", false); /* the old wish is not for this one */
  assert_int_equal(client_finish(later, &a), 200);
  assert_null(strstr(a.body.data, "abort"));
  answer_free(&a);
  fixture_stop(f);
}

static void aborts_many(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 8, 16);
  int fds[6];
  static const char *const rids[] = {"user-1", "user-2", "user-3", "admin-1", "admin-2", "x"};
  for (int i = 0; i < 6; i++) fds[i] = begin(f->port, rids[i], hold, i % 2);
  assert_true(becomes(&f->fake.running, 6));
  assert_int_equal(status_of_post(f->port, "/abort_request", "{\"rid\":\"user-\",\"prefix\":true}"), 200);
  for (int i = 0; i < 3; i++) is_aborted(fds[i], i % 2);
  assert_int_equal(atomic_load(&f->fake.running), 3);
  assert_int_equal(status_of_post(f->port, "/abort_request", "{\"abort_all\":true,\"rid\":\"\"}"), 200);
  for (int i = 3; i < 6; i++) is_aborted(fds[i], i % 2);
  assert_int_equal(atomic_load(&f->fake.running), 0);
  fixture_stop(f);
}

/* A batch whose prompts have names of their own. */
static void aborts_one_of_a_batch(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 8, 16);
  struct answer a;
  int fd = client_post(f->port, "/generate",
                       "{\"text\":[\"!hold=100000 !delay=1\",\"!hold=100 !delay=1 say:kept\"],\"rid\":[\"left\",\"right\"]}");
  assert_true(becomes(&f->fake.running, 2));
  assert_int_equal(abort_it(f->port, "left"), 200);
  assert_int_equal(client_finish(fd, &a), 200);
  json_t *list = json_of(&a);
  assert_int_equal(json_array_size(list), 2);
  assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "text")), "kept");
  assert_int_equal(atomic_load(&f->fake.aborts), 1);
  json_decref(list);
  answer_free(&a);
  fixture_stop(f);
}

static void abort_nonsense(void **state) {
  (void)state;
  static const char *const bodies[] = {"{}",
                                       "{\"rid\":\"\"}",
                                       "{\"rid\":\"\",\"prefix\":true}",
                                       "{\"rid\":3}",
                                       "{\"rid\":null}",
                                       "{\"abort_all\":1}",
                                       "[]",
                                       "{\"rid\":\"a\",\"prefix\":\"yes\"}",
                                       "{",
                                       "\"a\""};
  struct fixture *f = fixture_start(NULL, 8, 16);
  int fd = begin(f->port, "a", hold, false);
  assert_true(becomes(&f->fake.running, 1));
  for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
    if (status_of_post(f->port, "/abort_request", bodies[i]) != 400) fail_msg("%s is taken", bodies[i]);
  struct buf big;
  buf_init(&big, 0);
  buf_puts(&big, "{\"rid\":\"");
  for (int i = 0; i < 70000; i++) buf_putc(&big, 'a');
  buf_puts(&big, "\"}");
  assert_int_equal(status_of_post(f->port, "/abort_request", buf_cstr(&big)), 413);
  buf_free(&big);
  usleep(5000);
  assert_int_equal(atomic_load(&f->fake.aborts), 0);
  close(fd);
  fixture_stop(f);
}

/* ---- loads and facts ------------------------------------------------------------------------------------------------------------ */

static void loads(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  struct answer a;
  static const struct {
    const char *query;
    int status;
    bool memory, queues;
  } cases[] = {
      {"", 200, true, true},
      {"?include=all", 200, true, true},
      {"?include=core", 200, false, false},
      {"?include=queues,memory", 200, true, true},
      {"?include=core,queues", 200, false, true},
      {"?include=spec", 200, false, false},
      {"?include=core&dp_rank=0&format=json", 200, false, false},
      {"?include=nothing", 400, false, false},
      {"?include=core,", 400, false, false},
      {"?include=", 400, false, false},
      {"?dp_rank=1", 400, false, false},
      {"?format=xml", 400, false, false},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    char path[100];
    snprintf(path, sizeof path, "/v1/loads%s", cases[i].query);
    if (client_get(f->port, path, &a) != cases[i].status) fail_msg("%s: %d", path, a.status);
    json_t *j = json_of(&a), *load = json_array_get(json_object_get(j, "loads"), 0);
    if (a.status == 200) {
      assert_string_equal(json_string_value(json_object_get(j, "version")), CYGNET_VERSION);
      assert_true(json_is_string(json_object_get(j, "timestamp")));
      static const char *const core[] = {"dp_rank",     "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens",
                                         "token_usage", "gen_throughput",   "cache_hit_rate",   "utilization",     "max_running_requests"};
      for (size_t k = 0; k < ARRAY_LEN(core); k++) assert_true(json_is_number(json_object_get(load, core[k])));
      assert_int_equal(json_is_object(json_object_get(load, "memory")), cases[i].memory);
      assert_int_equal(json_is_object(json_object_get(load, "queues")), cases[i].queues);
    }
    json_decref(j);
    answer_free(&a);
  }
  assert_int_equal(client_get(f->port, "/v1/loads?format=prometheus", &a), 200);
  assert_non_null(strstr(a.body.data, "# TYPE sglang:num_running_reqs gauge\n"));
  answer_free(&a);
  assert_int_equal(client_get(f->port, "/get_load", &a), 200);
  json_t *j = json_of(&a);
  assert_true(json_is_integer(json_object_get(json_array_get(j, 0), "num_reqs")));
  json_decref(j);
  answer_free(&a);
  fixture_stop(f);
}

static void facts(void **state) {
  (void)state;
  static const char *const model[] = {"model_path",     "tokenizer_path",          "is_generation",           "preferred_sampling_params",
                                      "weight_version", "has_image_understanding", "has_audio_understanding", "model_type",
                                      "architectures"};
  static const char *const server[] = {"version",      "context_length", "max_total_num_tokens", "max_req_input_len",
                                       "memory_usage", "options",        "internal_states"};
  static const char *const states[] = {"last_gen_throughput", "memory_usage",      "effective_max_running_requests_per_dp",
                                       "n_graph_steps",       "cached_tokens",     "full_cached_tokens",
                                       "lost_window_tokens",  "evicted_swa_tokens"};
  struct serve_options o = {.options_json = "{\"threads\":3}"};
  struct fixture *f = fixture_start(&o, 2, 16);
  struct answer a;
  assert_int_equal(client_get(f->port, "/get_model_info", &a), 200);
  json_t *j = json_of(&a);
  for (size_t i = 0; i < ARRAY_LEN(model); i++)
    if (!json_object_get(j, model[i])) fail_msg("%s is missing", model[i]);
  json_decref(j);
  answer_free(&a);
  assert_int_equal(client_get(f->port, "/server_info", &a), 200);
  j = json_of(&a);
  for (size_t i = 0; i < ARRAY_LEN(server); i++)
    if (!json_object_get(j, server[i])) fail_msg("%s is missing", server[i]);
  assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "options"), "threads")), 3);
  json_t *internal = json_array_get(json_object_get(j, "internal_states"), 0);
  for (size_t i = 0; i < ARRAY_LEN(states); i++)
    if (!json_object_get(internal, states[i])) fail_msg("internal_states: %s is missing", states[i]);
  json_decref(j);
  answer_free(&a);
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flushes),
    cmocka_unit_test(counts_come_before_answers),
    cmocka_unit_test(flush_nonsense),
    cmocka_unit_test(flush_waits_quietly),
    cmocka_unit_test(proof_of_life),
    cmocka_unit_test(many_share_one_probe),
    cmocka_unit_test(no_sign_of_life),
    cmocka_unit_test(aborts_by_rid),
    cmocka_unit_test(aborts_while_tokenising),
    cmocka_unit_test(aborts_many),
    cmocka_unit_test(aborts_one_of_a_batch),
    cmocka_unit_test(abort_nonsense),
    cmocka_unit_test(loads),
    cmocka_unit_test(facts),
};
TEST_MAIN(tests)
