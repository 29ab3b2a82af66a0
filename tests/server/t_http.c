/* t_http — the HTTP layer against raw sockets: framing, limits, deadlines, and everything two programs could read differently. */
#include "test.h"

#include <sys/resource.h>

#include "fake.h"
#include "server/http_parse.h"

/* ---- the parser alone --------------------------------------------------------------------------------------------------- */

static int parse(const char *text, struct http_head *h, struct http_fault *f) {
  size_t scanned = 0, n = strlen(text);
  *f = (struct http_fault){0};
  char *copy = test_guard_alloc(n);
  memcpy(copy, text, n);
  ptrdiff_t length = http_head_length(copy, n, &scanned, f);
  int r = length <= 0 ? (int)length : http_head_parse(copy, (size_t)length, h, f) ? -1 : (int)length;
  test_guard_free(copy, n);
  return r;
}

static void heads(void **state) {
  (void)state;
  static const struct {
    int status; /* 0: good */
    const char *text;
  } table[] = {
      {0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {0, "GET /a?b=c HTTP/1.0\r\n\r\n"},
      {0, "POST / HTTP/1.1\r\nhOST:a\r\nContent-Length:   5 \r\n\r\n"},
      {0, "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n"},
      {0, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"},
      {0, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"},
      {0, "GET / HTTP/1.1\r\nHost: a\r\nX: \x80\xff\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n\r\n"}, /* no Host */
      {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\nHost: a\n\n"},             /* bare LF */
      {400, "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n"}, /* bare CR */
      {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1 \r\nHost: a\r\n\r\n"},
      {400, "GET /\r\nHost: a\r\n\r\n"}, /* HTTP/0.9 */
      {400, "GET a HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET /\x80 HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n Host: a\r\n\r\n"}, /* folded */
      {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"},
      {400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n"},
      {400, "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
      {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"},
      {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n"},
      {501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
      {505, "GET / HTTP/1.2\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTX/1.1\r\nHost: a\r\n\r\n"},
      {417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: cake\r\n\r\n"},
  };
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct http_head h;
    struct http_fault f;
    int r = parse(table[i].text, &h, &f);
    if (table[i].status ? r != -1 || f.status != table[i].status : r != (int)strlen(table[i].text))
      fail_msg("case %zu: wanted %d, got %d with status %d (%s)", i, table[i].status, r, f.status, f.why ? f.why : "");
    /* no prefix of a good head is a whole one, and no prefix reads past its end */
    char prefix[512];
    for (size_t n = 0; !table[i].status && n < strlen(table[i].text); n++) {
      memcpy(prefix, table[i].text, n);
      prefix[n] = 0;
      assert_int_equal(n ? parse(prefix, &h, &f) : 0, 0);
    }
  }
}

static void head_fields(void **state) {
  (void)state;
  struct http_head h;
  struct http_fault f;
  size_t scanned = 0;
  const char *text =
      "POST /a/b?c=d?e HTTP/1.1\r\nHost: x:1\r\nConnection: foo, Close\r\nX-A:\r\nContent-Length: 12\r\nExpect: 100-Continue\r\n\r\nrest";
  ptrdiff_t n = http_head_length(text, strlen(text), &scanned, &f);
  assert_int_equal(n, strlen(text) - 4);
  assert_int_equal(http_head_parse(text, (size_t)n, &h, &f), 0);
  assert_true(str_is(h.method, "POST") && str_is(h.path, "/a/b") && str_is(h.query, "c=d?e") && str_is(h.host, "x:1"));
  assert_true(!h.keep_alive && h.content_length == 12 && h.expect_continue && h.n_headers == 5);
  int count;
  assert_int_equal(http_head_find(&h, "x-a", &count).n, 0);
  assert_int_equal(count, 1);
  http_head_find(&h, "x-b", &count);
  assert_int_equal(count, 0);
}

static void random_heads(void **state) { /* no crash, no read past the end, whatever comes */
  (void)state;
  static const char *const bits[] = {"GET",
                                     " ",
                                     "/",
                                     "HTTP/1.1",
                                     "\r\n",
                                     "\r",
                                     "\n",
                                     "Host: a",
                                     "Content-Length: ",
                                     "5",
                                     ":",
                                     "\t",
                                     "\x80",
                                     "Transfer-Encoding: chunked",
                                     "?",
                                     "\r\n\r\n"};
  uint64_t seed = 7;
  for (int round = 0; round < 20000; round++) {
    char text[512];
    size_t n = 0;
    for (int k = test_rand_int(&seed, 0, 12); k > 0; k--) {
      const char *bit = bits[test_rand_int(&seed, 0, (int)ARRAY_LEN(bits) - 1)];
      memcpy(text + n, bit, strlen(bit));
      n += strlen(bit);
    }
    struct http_head h;
    struct http_fault f;
    size_t scanned = 0;
    ptrdiff_t whole = http_head_length(text, n, &scanned, &f);
    if (whole > 0) http_head_parse(text, (size_t)whole, &h, &f);
    /* looking byte by byte gives the same */
    size_t at = 0;
    ptrdiff_t step = 0;
    for (size_t i = 1; i <= n && step == 0; i++) step = http_head_length(text, i, &at, &f);
    assert_int_equal(step, whole);
  }
}

static void chunked_bodies(void **state) {
  (void)state;
  static const struct {
    enum http_chunked_result result;
    const char *text, *body;
  } table[] = {
      {HTTP_CHUNKED_DONE, "3\r\nabc\r\n0\r\n\r\n", "abc"},
      {HTTP_CHUNKED_DONE, "0\r\n\r\n", ""},
      {HTTP_CHUNKED_DONE, "1;x=y\r\na\r\n0002\r\nbc\r\n0\r\nTrailer: x\r\n\r\n", "abc"},
      {HTTP_CHUNKED_MORE, "3\r\nab", "ab"},
      {HTTP_CHUNKED_MORE, "3\r\nabc\r\n0\r\n", "abc"},
      {HTTP_CHUNKED_BAD, "3\nabc\r\n0\r\n\r\n", ""},
      {HTTP_CHUNKED_BAD, "3\r\nabcd\r\n0\r\n\r\n", "abc"},
      {HTTP_CHUNKED_BAD, "\r\nabc", ""},
      {HTTP_CHUNKED_BAD, "-3\r\nabc", ""},
      {HTTP_CHUNKED_BAD, "0x3\r\nabc", ""},
      {HTTP_CHUNKED_BAD, " 3\r\nabc", ""},
      {HTTP_CHUNKED_BAD, "3 \r\nabc", ""},
      {HTTP_CHUNKED_BAD, "fffffffffffffffff\r\n", ""},
      {HTTP_CHUNKED_BAD, "3;\x01\r\n", ""},
      {HTTP_CHUNKED_BAD, "0\r\nX: y\n\r\n", ""},
      {HTTP_CHUNKED_TOO_LARGE, "fffffff\r\n0123456789abcdefg", ""},
  };
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    for (size_t step = 1; step <= 40; step += 13) {
      struct http_chunked d = {0};
      struct buf out;
      buf_init(&out, 16);
      enum http_chunked_result r = HTTP_CHUNKED_MORE;
      size_t used = 0, n = strlen(table[i].text);
      for (size_t at = 0; at < n && r == HTTP_CHUNKED_MORE; at += used)
        r = http_chunked_feed(&d, table[i].text + at, MIN(step, n - at), &used, &out);
      if (r != table[i].result) fail_msg("case %zu, step %zu: got %d", i, step, r);
      if (r != HTTP_CHUNKED_TOO_LARGE) assert_string_equal(buf_cstr(&out), table[i].body);
      buf_free(&out);
    }
  }
}

/* ---- with sockets --------------------------------------------------------------------------------------------------------- */

static const char completion[] = "{\"prompt\":\"say:hi\"}";

static void splits(void **state) { /* the same request cut at every byte */
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  char request[512];
  snprintf(request, sizeof request,
           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
           strlen(completion), completion);
  size_t n = strlen(request);
  int fd = client_connect(f->port);
  for (size_t cut = 1; cut < n; cut += 3) {
    struct answer a;
    client_send(fd, request, cut);
    usleep(300);
    client_send(fd, request + cut, n - cut);
    client_read(fd, &a);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"text\":\"hi\""));
    answer_free(&a);
  }
  for (size_t i = 0; i < n; i++) client_send(fd, request + i, 1);
  struct answer a;
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void chunked_request(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  int fd = client_connect(f->port);
  client_puts(fd,
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
  client_puts(fd, "5\r\n{\"pro\r\n");
  usleep(2000);
  client_puts(fd, "e;ext=1\r\nmpt\":\"say:hi\"}\r\n0\r\nX: y\r\n\r\n");
  struct answer a;
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  assert_non_null(strstr(a.body.data, "\"text\":\"hi\""));
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void pipelining(void **state) { /* in order, also when the first answers take long */
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  int fd = client_connect(f->port);
  struct buf out, in;
  buf_init(&out, 0);
  buf_init(&in, 0);
  for (int i = 0; i < 20; i++) {
    char body[64];
    snprintf(body, sizeof body, "{\"prompt\":\"%s say:n%d\"}", i % 5 ? "" : "!delay=2", i);
    if (i % 3 == 2) buf_puts(&out, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    else
      buf_printf(&out,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s%s",
                 strlen(body), body, i % 4 ? "" : "\r\n"); /* stray empty lines between requests */
  }
  client_send(fd, out.data, out.len);
  for (int i = 0; i < 20; i++) {
    struct answer a;
    char wanted[32];
    snprintf(wanted, sizeof wanted, i % 3 == 2 ? "ok" : "\"text\":\"n%d\"", i);
    client_read_from(fd, &in, &a, 5000);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, wanted));
    answer_free(&a);
  }
  buf_free(&out);
  buf_free(&in);
  close(fd);
  fixture_stop(f);
}

/* A pipelining flood while an answer is pending: evhttp would end the process here. */
static void flood_while_pending(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  int fd = client_post(f->port, "/v1/completions", "{\"prompt\":\"!delay=5 say:slow\"}");
  for (int i = 0; i < 3000; i++) client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: 0123456789\r\n\r\n");
  struct buf in;
  buf_init(&in, 0);
  for (int i = 0; i <= 3000; i++) {
    struct answer a;
    client_read_from(fd, &in, &a, 5000);
    if (a.status != 200) fail_msg("answer %d has status %d", i, a.status);
    answer_free(&a);
  }
  buf_free(&in);
  close(fd);
  fixture_stop(f);
}

/* Refused requests close the connection, and what stands behind them is never read as a request. */
static void refused_requests(void **state) {
  (void)state;
  static const struct {
    int status;
    const char *text;
  } table[] = {
      {400, "\x16\x03\x01\x02\n\r\n"}, /* TLS on a plain port */
      {400, "GET / HTTP/1.1\nHost: localhost\n\n"},
      {400, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 50\r\n\r\nx"},
      {400, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {501, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity\r\n\r\nx"},
      {400,
       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
      {413, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\nxxx"},
      {413,
       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n19\r\n{\"prompt\":\"say:hi\"      }\r\nfff\r\n"},
      {404, "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"},
      {505, "GET / HTTP/3.1\r\nHost: localhost\r\n\r\n"},
  };
  struct serve_options o = {.limits = {.body_bytes = 1000, .linger_ms = 200}};
  struct fixture *f = fixture_start(&o, 0, 0);
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    int fd = client_connect(f->port);
    char wave[5000];
    memset(wave, ' ', sizeof wave);
    client_puts(fd, table[i].text);
    if (i == 7) client_send(fd, wave, 1200);
    client_puts(fd, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct answer a;
    char value[256];
    client_read(fd, &a);
    if (a.status != table[i].status) fail_msg("case %zu: status %d: %s", i, a.status, buf_cstr(&a.body));
    assert_non_null(strstr(buf_cstr(&a.body), "{\"error\":{\"message\":\""));
    assert_true(utf8_valid(a.body.data, a.body.len));
    assert_string_equal(answer_header(&a, "Connection", value), "close");
    assert_int_equal(a.raw.len, 0);
    assert_true(client_sees_close(fd, 3000));
    answer_free(&a);
    close(fd);
  }
  struct answer a;
  assert_int_equal(client_get(f->port, "/health", &a), 200);
  answer_free(&a);
  fixture_stop(f);
}

static void large_heads(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  char line[1000];
  memset(line, 'a', sizeof line);
  memcpy(line, "X: ", 3);
  memcpy(line + 998, "\r\n", 2);
  int fd = client_connect(f->port);
  client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 60; i++) client_send(fd, line, sizeof line);
  struct answer a;
  client_read(fd, &a);
  assert_int_equal(a.status, 431);
  answer_free(&a);
  close(fd);
  fd = client_connect(f->port);
  client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 200; i++) client_puts(fd, "A: b\r\n");
  client_puts(fd, "\r\n");
  client_read(fd, &a);
  assert_int_equal(a.status, 431);
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void slow_clients(void **state) { /* one byte now and then does not keep a connection alive */
  (void)state;
  struct serve_options o = {.limits = {.head_ms = 150, .body_ms = 150, .idle_ms = 150, .linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  int head = client_connect(f->port), body = client_connect(f->port), idle = client_connect(f->port);
  client_puts(body, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n");
  for (int i = 0; i < 20; i++) {
    client_send(head, "G", 1);
    client_send(body, "{", 1);
    usleep(20000);
  }
  struct answer a;
  client_read(head, &a);
  assert_int_equal(a.status, 408);
  answer_free(&a);
  client_read(body, &a);
  assert_int_equal(a.status, 408);
  answer_free(&a);
  assert_true(client_sees_close(idle, 1000));
  close(head);
  close(body);
  close(idle);
  /* but a slow answer is no slow client */
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"!delay=60 say:abcdef\"}", &a), 200);
  assert_non_null(strstr(a.body.data, "abcdef"));
  answer_free(&a);
  fixture_stop(f);
}

static void slow_reader_of_a_whole_answer(void **state) { /* takes longer than a connection may be idle: not cut, it is being read */
  (void)state;
  struct serve_options o = {.limits = {.idle_ms = 100, .write_ms = 2000, .socket_send_bytes = 4096}};
  struct fixture *f = fixture_start(&o, 0, 0);
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"tokens\":[");
  for (int i = 0; i < 60000; i++) buf_puts(&body, i ? ",97" : "97");
  buf_puts(&body, "]}");
  client_receive_bytes = 4096;
  int fd = client_connect(f->port);
  client_receive_bytes = 0;
  char head[200];
  snprintf(head, sizeof head,
           "POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
  client_puts(fd, head);
  client_send(fd, body.data, body.len);
  buf_free(&body);
  usleep(350000);
  struct answer a;
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  assert_false(a.truncated);
  assert_int_equal(a.body.len, 60000 + strlen("{\"text\":\"\"}"));
  answer_free(&a);
  assert_true(client_sees_close(fd, 1000)); /* and idle it is after that */
  close(fd);
  fixture_stop(f);
}

static void too_many_connections(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.connections = 3}};
  struct fixture *f = fixture_start(&o, 0, 0);
  struct answer a;
  int busy[3];
  for (int i = 0; i < 3; i++) busy[i] = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=1000000 !delay=1\"}");
  assert_true(becomes(&f->fake.running, 3));
  assert_int_equal(client_get(f->port, "/health", &a), 503); /* nobody is idle */
  answer_free(&a);
  close(busy[0]);
  assert_true(becomes(&f->fake.running, 2));
  int idle = client_connect(f->port);
  usleep(20000);
  assert_int_equal(client_get(f->port, "/health", &a), 200); /* the idle one had to go */
  answer_free(&a);
  assert_true(client_sees_close(idle, 1000));
  close(idle);
  close(busy[1]);
  close(busy[2]);
  assert_true(becomes(&f->fake.running, 0));
  fixture_stop(f);
}

static void few_descriptors(void **state) {
  (void)state;
  struct rlimit before, now;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 300) skip();
  now = (struct rlimit){200, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
  struct serve_options o = {.limits = {.connections = 200}};
  struct fixture *f = fixture_start(&o, 0, 0);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
  assert_true(now.rlim_cur > 200); /* room for all */

  int idle[4];
  struct answer a;
  for (size_t i = 0; i < ARRAY_LEN(idle); i++) {
    idle[i] = client_connect(f->port);
    client_puts(idle[i], "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_read(idle[i], &a);
    answer_free(&a);
  }
  int next = dup(0);
  close(next);
  now.rlim_cur = (rlim_t)next + 1; /* one left, and that is for the client's end: the other end only gets one when an idle one goes */
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
  assert_int_equal(client_get(f->port, "/health", &a), 200);
  answer_free(&a);
  assert_true(client_sees_close(idle[0], 1000));
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (size_t i = 0; i < ARRAY_LEN(idle); i++) close(idle[i]);
  fixture_stop(f);
}

static void keep_alive_and_close(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.linger_ms = 100}};
  struct fixture *f = fixture_start(&o, 0, 0);
  struct answer a;
  char value[256];
  int fd = client_connect(f->port);
  client_puts(fd, "GET /health HTTP/1.0\r\n\r\n");
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  assert_string_equal(answer_header(&a, "Connection", value), "close");
  assert_true(client_sees_close(fd, 1000));
  answer_free(&a);
  close(fd);

  fd = client_connect(f->port);
  client_puts(fd, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  client_read(fd, &a);
  assert_string_equal(answer_header(&a, "Connection", value), "keep-alive");
  answer_free(&a);
  client_puts(fd, "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  struct buf in;
  buf_init(&in, 0);
  while (client_more(fd, &in, 1000) > 0) {}
  assert_non_null(strstr(in.data, "Content-Length: 15\r\n"));
  assert_string_equal(strstr(in.data, "\r\n\r\n"), "\r\n\r\n"); /* HEAD: no body */
  buf_free(&in);
  close(fd);

  /* a stream to HTTP/1.0 ends with the connection */
  fd = client_connect(f->port);
  const char *body = "{\"prompt\":\"say:abc\",\"stream\":true}";
  char head[200];
  snprintf(head, sizeof head, "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
           strlen(body), body);
  client_puts(fd, head);
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  assert_null(answer_header(&a, "Transfer-Encoding", value));
  assert_true(a.closed && strstr(a.body.data, "data: [DONE]\n\n"));
  answer_free(&a);
  close(fd);

  /* half closed after a short question: still answered */
  fd = client_connect(f->port);
  client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  shutdown(fd, SHUT_WR);
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void expect_continue(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.body_bytes = 1000}};
  struct fixture *f = fixture_start(&o, 0, 0);
  int fd = client_connect(f->port);
  char head[300];
  snprintf(
      head, sizeof head,
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nExpect: 100-continue\r\n\r\n",
      strlen(completion));
  client_puts(fd, head);
  struct buf in;
  buf_init(&in, 0);
  assert_int_equal(client_more(fd, &in, 2000), 1);
  assert_string_equal(in.data, "HTTP/1.1 100 Continue\r\n\r\n");
  buf_free(&in);
  client_puts(fd, completion);
  struct answer a;
  client_read(fd, &a);
  assert_int_equal(a.status, 200);
  answer_free(&a);
  client_puts(
      fd,
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n");
  client_read(fd, &a);
  assert_int_equal(a.status, 413); /* before a byte of it was sent */
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void bodies_together(void **state) { /* many large bodies at once: 503, and given back afterwards */
  (void)state;
  struct serve_options o = {.limits = {.body_bytes = 100000, .bodies_bytes = 150000, .linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 0, 0);
  const char *head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
  char blank[99000];
  memset(blank, ' ', sizeof blank);
  struct answer a;
  int first = client_connect(f->port), second = client_connect(f->port);
  client_puts(first, head);
  client_send(first, blank, sizeof blank);
  usleep(50000);
  client_puts(second, head);
  client_read(second, &a);
  assert_int_equal(a.status, 503);
  char value[256];
  assert_non_null(strstr(a.body.data, "busy"));
  (void)value;
  answer_free(&a);
  close(first);
  close(second);
  usleep(20000);
  second = client_connect(f->port);
  client_puts(second, head);
  client_send(second, blank, sizeof blank);
  client_send(second, blank, 1000);
  client_read(second, &a);
  assert_int_equal(a.status, 400); /* read, and it is no JSON */
  answer_free(&a);
  close(second);
  fixture_stop(f);
}

/* ---- the layer alone ------------------------------------------------------------------------------------------------------- */

enum { LARGE_BYTES = 300000, LARGE_EVENTS = 5 };

static void stream_events(void *ctx, struct http_exchange *x) {
  struct http_server **s = ctx;
  if (str_is(x->head.path, "/stop")) {
    http_reply(x, 200, NULL, NULL, 0);
    http_no_keep_alive(*s);
    http_after(*s, 20, (void (*)(void *))http_stop, *s);
    return;
  }
  http_sse_begin(x);
  if (str_is(x->head.path, "/large")) {
    static char text[LARGE_BYTES];
    memset(text, 'l', sizeof text);
    for (int i = 0; i < LARGE_EVENTS; i++) assert_true(http_sse_send(x, text, sizeof text));
    http_sse_end(x);
    return;
  }
  assert_true(http_sse_event(x, "message_start", "{\"a\":1}", 7));
  assert_true(http_sse_send(x, "[DONE]", 6));
  assert_true(http_sse_event(x, "ping", "", 0));
  http_sse_end(x);
}
static void nothing(void *ctx, struct http_exchange *x) { (void)ctx, (void)x; }
static void count_done(void *ctx, const struct http_exchange *x, int status) {
  (void)ctx;
  assert_int_equal(status, 200);
  assert_true(x->request_id[0] && x->started_ns && !strcmp(x->peer, "127.0.0.1"));
  if (str_is(x->head.path, "/"))
    assert_int_equal(x->answer_bytes, strlen("event: message_start\ndata: {\"a\":1}\n\ndata: [DONE]\n\nevent: ping\ndata: \n\n"));
}
static void *run_server(void *s) {
  http_run(s);
  return NULL;
}

static void named_events(void **state) {
  (void)state;
  struct http_server *s = NULL;
  struct err e;
  const struct http_handlers h = {.on_request = stream_events, .on_closed = nothing, .on_done = count_done, .ctx = &s};
  s = http_listen("127.0.0.1", 0, NULL, &(struct http_limits){.output_bytes = 1000}, &h, &e);
  assert_non_null(s);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, run_server, s), 0);
  for (int minor = 0; minor < 2; minor++) {
    struct answer a;
    char head[100];
    int fd = client_connect(http_port(s));
    snprintf(head, sizeof head, "GET / HTTP/1.%d\r\nHost: localhost\r\n\r\n", minor);
    client_puts(fd, head);
    client_read(fd, &a);
    assert_string_equal(a.body.data, "event: message_start\ndata: {\"a\":1}\n\ndata: [DONE]\n\nevent: ping\ndata: \n\n");
    answer_free(&a);
    close(fd);
  }
  struct answer a;
  assert_int_equal(client_get(http_port(s), "/large", &a), 200); /* nobody had the time to read: that is not slow */
  assert_int_equal(a.body.len, LARGE_EVENTS * (LARGE_BYTES + strlen("data: \n\n")));
  answer_free(&a);
  assert_int_equal(client_get(http_port(s), "/stop", &a), 200);
  answer_free(&a);
  pthread_join(thread, NULL);
  http_delete(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(heads),
    cmocka_unit_test(head_fields),
    cmocka_unit_test(random_heads),
    cmocka_unit_test(chunked_bodies),
    cmocka_unit_test(splits),
    cmocka_unit_test(chunked_request),
    cmocka_unit_test(pipelining),
    cmocka_unit_test(flood_while_pending),
    cmocka_unit_test(refused_requests),
    cmocka_unit_test(large_heads),
    cmocka_unit_test(slow_clients),
    cmocka_unit_test(slow_reader_of_a_whole_answer),
    cmocka_unit_test(too_many_connections),
    cmocka_unit_test(few_descriptors),
    cmocka_unit_test(keep_alive_and_close),
    cmocka_unit_test(expect_continue),
    cmocka_unit_test(bodies_together),
    cmocka_unit_test(named_events),
};
TEST_MAIN(tests)
