/* t_auth — who may: keys alone, every route with every kind of key, names of the machine, web pages of other origins, request ids, the access log. */
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "fake.h"
#include "server/access.h"

/* ---- keys alone --------------------------------------------------------------------------------------------------------- */

static int check(const struct access *a, enum access_level level, const char *first, const char *second) {
  struct str shown[2] = {{first, first ? strlen(first) : 0}, {second, second ? strlen(second) : 0}};
  return access_check(a, level, shown, 2);
}

static void levels(void **state) { /* the table in access.h */
  (void)state;
  static const struct {
    const char *api, *admin;
    /* answers to nothing, a wrong key, the API key, the admin key */
    int use[4], admin_level[4];
  } table[] = {
      {NULL, NULL, {0, 0, 0, 0}, {0, 0, 0, 0}},
      {"api", NULL, {401, 401, 0, 401}, {401, 401, 0, 401}},
      {NULL, "admin", {0, 0, 0, 0}, {401, 401, 401, 0}},
      {"api", "admin", {401, 401, 0, 401}, {401, 401, 403, 0}},
      {"admin", "admin", {401, 401, 401, 0}, {401, 401, 401, 0}},
  };
  static const char *const shown[] = {NULL, "apj", "api", "admin"};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct access a;
    struct err e;
    assert_int_equal(access_open(&a, table[i].api, NULL, table[i].admin, &e), 0);
    for (size_t k = 0; k < ARRAY_LEN(shown); k++) {
      for (int order = 0; order < 3; order++) { /* alone, or beside a wrong one */
        const char *first = order == 2 ? "wrong" : shown[k], *second = order == 0 ? NULL : order == 1 ? "" : shown[k];
        assert_int_equal(check(&a, ACCESS_PUBLIC, first, second), 0);
        if (check(&a, ACCESS_USE, first, second) != table[i].use[k]) fail_msg("row %zu, key %zu: use", i, k);
        if (check(&a, ACCESS_ADMIN, first, second) != table[i].admin_level[k]) fail_msg("row %zu, key %zu: admin", i, k);
      }
    }
    access_close(&a);
  }
}

static void key_files(void **state) {
  (void)state;
  char longest[ACCESS_KEY_BYTES_MAX + 2], text[8000];
  memset(longest, 'k', sizeof longest);
  longest[ACCESS_KEY_BYTES_MAX] = 0;
  struct access a;
  struct err e;
  snprintf(text, sizeof text, "# the keys %s%s%s\n\n  \nalpha\r\n%s\n#x\nbeta  \n%s", longest, longest, longest, longest,
           "last-without-newline");
  const char *path = test_write("keys", text, strlen(text));
  chmod(path, 0600);
  assert_int_equal(access_open(&a, "one", path, NULL, &e), 0);
  assert_int_equal(a.n_keys, 5);
  static const char *const good[] = {"one", "alpha", "beta", "last-without-newline"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) assert_int_equal(check(&a, ACCESS_USE, good[i], NULL), 0);
  assert_int_equal(check(&a, ACCESS_USE, longest, NULL), 0);
  static const char *const bad[] = {"", "#x", "Alpha", "alph", "alpha ", "alpha\r", "on", "one\n", "# the keys"};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) assert_int_equal(check(&a, ACCESS_USE, bad[i], NULL), 401);
  access_close(&a);

  static const struct {
    const char *text, *says;
  } damaged[] = {
      {"", "found none"},
      {"# only words\n\n", "found none"},
      {"good\nwith blank\n", "line 2"},
      {"good\n\nschl\xc3\xbcssel\n", "line 3"},
      {"\xef\xbb\xbfgood\n", "line 1"},
      {" good\n", "line 1"},
  };
  for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
    path = test_write("keys", damaged[i].text, strlen(damaged[i].text));
    assert_int_equal(access_open(&a, NULL, path, NULL, &e), -1);
    if (!strstr(e.msg, damaged[i].says) || !strstr(e.msg, "api-key-file: ")) fail_msg("case %zu: %s", i, e.msg);
    if (strstr(e.msg, "with") && strstr(e.msg, "with blank")) fail_msg("a key is in the message: %s", e.msg);
    access_close(&a);
  }
  longest[ACCESS_KEY_BYTES_MAX] = 'k'; /* one too long */
  longest[ACCESS_KEY_BYTES_MAX + 1] = 0;
  path = test_write("keys", longest, strlen(longest));
  assert_int_equal(access_open(&a, NULL, path, NULL, &e), -1);
  assert_non_null(strstr(e.msg, "line 1"));
  assert_null(strstr(e.msg, "kkkk"));
  access_close(&a);
  assert_int_equal(access_open(&a, NULL, "/nonexistent/keys", NULL, &e), -1);
  assert_int_equal(e.code, ERR_NOT_FOUND);
  access_close(&a);
  assert_int_equal(access_open(&a, NULL, test_tmpdir(), NULL, &e), -1);
  assert_non_null(strstr(e.msg, "a folder"));
  access_close(&a);
  const char *const no_keys[] = {"", "a b", "a\n", "\xff", longest};
  for (size_t i = 0; i < ARRAY_LEN(no_keys); i++) {
    assert_int_equal(access_open(&a, no_keys[i], NULL, NULL, &e), -1); /* --api-key "$NOT_SET" must not mean: open */
    access_close(&a);
    assert_int_equal(access_open(&a, NULL, NULL, no_keys[i], &e), -1);
    access_close(&a);
  }
}

/* ---- over HTTP ---------------------------------------------------------------------------------------------------------- */

static int ask(int port, const char *method, const char *path, const char *headers, struct answer *a) {
  struct buf q;
  buf_init(&q, 0);
  bool post = !strcmp(method, "POST") || !strcmp(method, "PUT");
  buf_printf(&q, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, headers);
  if (post) buf_puts(&q, "Content-Type: application/json\r\nContent-Length: 1\r\n");
  buf_puts(&q, post ? "\r\n[" : "\r\n"); /* no dialect takes that body */
  int fd = client_connect(port);
  client_send(fd, q.data, q.len);
  buf_free(&q);
  struct buf in;
  buf_init(&in, 0);
  if (!strcmp(method, "HEAD")) { /* no body behind its Content-Length */
    *a = (struct answer){0};
    while (client_more(fd, &in, 5000) > 0) {}
    sscanf(buf_cstr(&in), "HTTP/1.1 %d", &a->status);
    buf_free(&in);
  } else {
    client_read(fd, a);
  }
  close(fd);
  return a->status;
}

static int status_of(int port, const char *method, const char *path, const char *headers) {
  struct answer a;
  int status = ask(port, method, path, headers, &a);
  answer_free(&a);
  return status;
}

static const char *const public_paths[] = {"/health", "/health_generate", "/ping"};
static const char *const admin_paths[] = {"/flush_cache", "/abort_request"};
static const char *const paths[] = {
    "/", "/metrics", "/v1/models", "/v1/models/x", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/generate", "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/apply-template",
    "/get_model_info", "/model_info", "/server_info", "/get_server_info", "/get_load", "/v1/loads",
    /* odd spellings, also of what is public and of what is the admin's */
    "//v1/models", "/v1//models", "/v1/models/", "/V1/models", "/v1/models?health", "/v1/../health", "/./health", "/health/", "/health/x",
    "/Health", "//health", "/health%2f", "/health%00", "/healthz", "/ping/", "/flush_cache/", "//flush_cache", "/FLUSH_CACHE",
    "/abort_request/x", "/nothing", "/metrics/", "/favicon.ico", "/index.html", "http://localhost/v1/models"};
static const char *const methods[] = {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"};

static const char *const wrong[] = {"",
                                    "Authorization: Bearer sesam\r\n",
                                    "Authorization: Bearer sesamee\r\n",
                                    "Authorization: Bearer \r\n",
                                    "Authorization: Bearer\r\n",
                                    "Authorization: sesame\r\n",
                                    "Authorization: Basic c2VzYW1l\r\n",
                                    "Authorization: Bearer Sesame\r\n",
                                    "Authorization: Bearer sesame,sesame\r\n",
                                    "Authorization: Bearer  sesame\r\n",
                                    "Authorization: Bearer sesame\r\nAuthorization: Bearer sesame\r\n",
                                    "X-Authorization: Bearer sesame\r\n",
                                    "X-Api-Key: sesam\r\n",
                                    "X-Api-Key: Bearer sesame\r\n",
                                    "X-Api-Key:\r\n",
                                    "X-Api-Key: sesame\r\nX-Api-Key: sesame\r\n",
                                    "Api-Key: sesame\r\n",
                                    "Cookie: key=sesame\r\n",
                                    "Authorization: Bearer boss\r\n"}; /* the admin key is no API key */
static const char *const right[] = {"Authorization: Bearer sesame\r\n",
                                    "AUTHORIZATION: bearer sesame\r\n",
                                    "authorization: BEARER second-key\r\n",
                                    "x-api-key: sesame\r\n",
                                    "X-API-KEY: second-key\r\n",
                                    "Authorization: Bearer wrong\r\nX-Api-Key: sesame\r\n",
                                    "x-api-key: wrong\r\nAuthorization: Bearer sesame\r\n"};

static void every_route(void **state) {
  (void)state;
  struct access access;
  struct err e;
  const char *file = test_write("keys", "second-key\n", 11);
  chmod(file, 0600); /* else there is a warning */
  assert_int_equal(access_open(&access, "sesame", file, "boss", &e), 0);
  struct serve_options o = {.access = &access, .limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  uint64_t seed = 1;
  for (size_t m = 0; m < ARRAY_LEN(methods); m++) {
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
      const char *bad = wrong[test_rand_int(&seed, 0, (int)ARRAY_LEN(wrong) - 1)],
                 *good = right[test_rand_int(&seed, 0, (int)ARRAY_LEN(right) - 1)];
      int status = status_of(f->port, methods[m], paths[p], bad);
      if (status != 401) fail_msg("%s %s with \"%s\": status %d", methods[m], paths[p], bad, status);
      status = status_of(f->port, methods[m], paths[p], good);
      if (status == 401 || status == 403 || status == 0) fail_msg("%s %s with \"%s\": status %d", methods[m], paths[p], good, status);
    }
    for (size_t p = 0; p < ARRAY_LEN(admin_paths); p++) {
      const char *bad = wrong[test_rand_int(&seed, 0, (int)ARRAY_LEN(wrong) - 2)],
                 *good = right[test_rand_int(&seed, 0, (int)ARRAY_LEN(right) - 1)];
      int status = status_of(f->port, methods[m], admin_paths[p], bad);
      if (status != 401) fail_msg("%s %s with \"%s\": status %d", methods[m], admin_paths[p], bad, status);
      status = status_of(f->port, methods[m], admin_paths[p], good);
      if (status != 403) fail_msg("%s %s with \"%s\": status %d", methods[m], admin_paths[p], good, status);
      status = status_of(f->port, methods[m], admin_paths[p], m % 2 ? "Authorization: Bearer boss\r\n" : "x-api-key: boss\r\n");
      if (status == 401 || status == 403 || status == 0)
        fail_msg("%s %s with the admin key: status %d", methods[m], admin_paths[p], status);
    }
    for (size_t p = 0; p < ARRAY_LEN(public_paths); p++) {
      const char *bad = wrong[test_rand_int(&seed, 0, (int)ARRAY_LEN(wrong) - 1)];
      int status = status_of(f->port, methods[m], public_paths[p], bad);
      if (status == 401 || status == 403 || status == 0) fail_msg("%s %s: status %d", methods[m], public_paths[p], status);
    }
  }
  for (size_t k = 0; k < ARRAY_LEN(wrong); k++) assert_int_equal(status_of(f->port, "GET", "/v1/models", wrong[k]), 401);
  for (size_t k = 0; k < ARRAY_LEN(right); k++) assert_int_equal(status_of(f->port, "GET", "/v1/models", right[k]), 200);
  struct answer a; /* no answer repeats a key, right or wrong */
  assert_int_equal(ask(f->port, "GET", "/v1/models", "Authorization: Bearer sesam-but-wrong\r\n", &a), 401);
  assert_null(strstr(a.body.data, "sesam"));
  answer_free(&a);
  fixture_stop(f);
  access_close(&access);
}

static void admin_alone(void **state) {
  (void)state;
  struct serve_options o = {.admin_key = "boss", .limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  assert_int_equal(status_of(f->port, "GET", "/v1/models", ""), 200);
  assert_int_equal(status_of(f->port, "GET", "/nothing", ""), 404);
  for (size_t p = 0; p < ARRAY_LEN(admin_paths); p++) {
    assert_int_equal(status_of(f->port, "POST", admin_paths[p], ""), 401);
    assert_int_equal(status_of(f->port, "POST", admin_paths[p], "Authorization: Bearer sesame\r\n"), 401);
    int status = status_of(f->port, "POST", admin_paths[p], "Authorization: Bearer boss\r\n");
    assert_true(status == 200 || status == 400);
  }
  fixture_stop(f);
}

/* Case L4: a web page, through its own name or from its own origin. */
static void names_and_origins(void **state) {
  (void)state;
  static const struct {
    const char *host;
    int status;
  } table[] = {{"localhost", 200},
               {"LocalHost:30000", 200},
               {"127.0.0.1:1", 200},
               {"[::1]:80", 200},
               {"192.168.1.5", 200},
               {"my.name:80", 200},
               {"evil.test", 403},
               {"localhost.evil.test", 403},
               {"127.0.0.1.evil.test", 403},
               {"[::1", 403},
               {"my.name.", 403},
               {"", 200},
               {"localhost,evil", 403},
               {"2130706433", 403},
               {"0x7f.1", 403}};
  struct serve_options o = {.allowed_hosts = "other.name,my.name", .limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  struct answer a;
  char value[256];
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char head[300];
    snprintf(head, sizeof head, "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", table[i].host);
    int fd = client_connect(f->port);
    client_puts(fd, head);
    client_read(fd, &a);
    if (a.status != table[i].status) fail_msg("Host \"%s\": status %d", table[i].host, a.status);
    answer_free(&a);
    close(fd);
  }
  static const char *const asks[] = {"GET", "POST", "OPTIONS"};
  for (size_t i = 0; i < ARRAY_LEN(asks); i++) { /* no page of another origin may read anything unless it was asked for */
    ask(f->port, asks[i], "/v1/completions", "Origin: http://evil.test\r\nAccess-Control-Request-Method: POST\r\n", &a);
    assert_null(answer_header(&a, "Access-Control-Allow-Origin", value));
    assert_null(answer_header(&a, "Access-Control-Allow-Credentials", value));
    answer_free(&a);
  }
  int fd = client_connect(f->port); /* what a form of another page can send unasked */
  client_puts(
      fd,
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 19\r\n\r\n{\"prompt\":\"say:hi\"}");
  client_read(fd, &a);
  assert_int_equal(a.status, 400);
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

/* ---- request ids and the log ---------------------------------------------------------------------------------------------- */

static void request_ids(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  char longest[129], header[400], value[256], other[256];
  memset(longest, 'i', 128);
  longest[128] = 0;
  const struct {
    const char *id;
    bool kept;
  } table[] = {{"abc-123", true}, {longest, true}, {"!~", true}, {"", false}, {"a b", false}, {"\x80", false}, {"a\tb", false}};
  struct answer a;
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    snprintf(header, sizeof header, "x-request-ID: %s\r\n", table[i].id);
    ask(f->port, "GET", i % 2 ? "/health" : "/nothing", header, &a);
    assert_non_null(answer_header(&a, "X-Request-Id", value));
    if (table[i].kept) assert_string_equal(value, table[i].id);
    else assert_int_equal(strlen(value), 32);
    answer_free(&a);
  }
  snprintf(header, sizeof header, "X-Request-Id: %si\r\n", longest); /* 129 */
  ask(f->port, "GET", "/health", header, &a);
  assert_int_equal(strlen(answer_header(&a, "X-Request-Id", value)), 32);
  answer_free(&a);
  ask(f->port, "GET", "/health", "X-Request-Id: a\r\nX-Request-Id: b\r\n", &a);
  assert_int_equal(strlen(answer_header(&a, "X-Request-Id", other)), 32);
  assert_string_not_equal(value, other);
  answer_free(&a);
  int fd = client_connect(f->port); /* an answer to what is no request */
  client_puts(fd, "nonsense\n\n");
  client_read(fd, &a);
  assert_int_equal(a.status, 400);
  assert_int_equal(strlen(answer_header(&a, "X-Request-Id", value)), 32);
  answer_free(&a);
  close(fd);
  fd = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:abc\",\"stream\":true}");
  client_read(fd, &a);
  assert_non_null(answer_header(&a, "X-Request-Id", value));
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

/* What the server writes to stderr while fn runs. */
static char *stderr_of(struct fixture *f, void (*fn)(struct fixture *f)) {
  const char *path = test_write("log", "", 0);
  int was = dup(2), to = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  assert_true(was >= 0 && to >= 0);
  dup2(to, 2);
  close(to);
  log_set_level(LOG_INFO);
  fn(f);
  usleep(20000);
  log_set_level(LOG_ERROR);
  dup2(was, 2);
  close(was);
  size_t n;
  return test_read(path, &n);
}

static int count_of(const char *text, const char *what) {
  int n = 0;
  for (; (text = strstr(text, what)); text += strlen(what)) n++;
  return n;
}

static void log_asks(struct fixture *f) {
  status_of(f->port, "GET", "/v1/models?secret=query", "Authorization: Bearer sesame\r\nX-Request-Id: id-1\r\n");
  status_of(f->port, "GET", "/v1/models", "Authorization: Bearer wrong-key\r\n");
  status_of(f->port, "DELETE", "/%1b[31m\"'\\", "x-api-key: sesame\r\n");
  int fd = client_connect(f->port);
  client_puts(fd, "\x1b[31m\r\n\r\n");
  client_sees_close(fd, 2000);
  close(fd);
}
static void log_probes(struct fixture *f) {
  status_of(f->port, "GET", "/health", "");
  status_of(f->port, "GET", "/ping", "");
  status_of(f->port, "GET", "/metrics", "Authorization: Bearer sesame\r\n");
}
static void log_flood(struct fixture *f) {
  int fd = client_connect(f->port);
  for (int i = 0; i < 500; i++) client_puts(fd, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\n\r\n");
  struct buf in;
  struct answer a;
  buf_init(&in, 0);
  for (int i = 0; i < 500; i++) {
    client_read_from(fd, &in, &a, 5000);
    assert_int_equal(a.status, 200);
    answer_free(&a);
  }
  buf_free(&in);
  close(fd);
}

static void access_log(void **state) {
  (void)state;
  struct serve_options o = {.api_key = "sesame", .limits = {.linger_ms = 50, .log_lines = 20}};
  struct fixture *f = fixture_start(&o, 0, 0);
  char *text = stderr_of(f, log_asks);
  assert_non_null(strstr(text, "GET /v1/models status=200 bytes="));
  assert_non_null(strstr(text, " peer=127.0.0.1 id=id-1\n"));
  assert_non_null(strstr(text, "GET /v1/models status=401 "));
  assert_non_null(strstr(text, "- - status=400 "));
  assert_int_equal(count_of(text, " status="), 4);
  assert_true(!strstr(text, "sesame") && !strstr(text, "wrong-key") && !strstr(text, "secret") && !strchr(text, '\x1b'));
  free(text);
  text = stderr_of(f, log_probes);
  assert_int_equal(count_of(text, "\n"), 0); /* all is well: nothing to say */
  free(text);
  text = stderr_of(f, log_flood);
  assert_in_range(count_of(text, " status="), 10, 80); /* 20 a second, in one second or a few */
  free(text);
  usleep(1100000);
  text = stderr_of(f, log_asks);
  assert_non_null(strstr(text, "more requests were answered"));
  free(text);
  fixture_stop(f);
  struct serve_options silent = {.limits = {.linger_ms = 50}};
  f = fixture_start(&silent, 0, 0);
  text = stderr_of(f, log_asks);
  assert_string_equal(text, "");
  free(text);
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(levels),      cmocka_unit_test(key_files),         cmocka_unit_test(every_route),
    cmocka_unit_test(admin_alone), cmocka_unit_test(names_and_origins), cmocka_unit_test(request_ids),
    cmocka_unit_test(access_log),
};
TEST_MAIN(tests)
