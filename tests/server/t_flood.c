/* t_flood — damaged requests against a live server, one after the other and many at once, plain and over TLS: afterwards it answers as before, and
 * holds nothing. Three seconds; with CYGNET_LONG=1 ten minutes (CYGNET_LONG=60: that many
 * seconds) and another seed each time. */
#include "test.h"

#include <errno.h>
#include <time.h>

#include "rig.h"

enum { N_PEERS = 24, REQUEST_BYTES = 20000 };

static const char *const routes[] = {"/",
                                     "/health",
                                     "/health_generate",
                                     "/ping",
                                     "/metrics",
                                     "/v1/models",
                                     "/v1/models/fake%2Fmodel",
                                     "/v1/chat/completions",
                                     "/v1/completions",
                                     "/v1/responses",
                                     "/v1/messages",
                                     "/v1/messages/count_tokens",
                                     "/generate",
                                     "/tokenize",
                                     "/detokenize",
                                     "/apply-template",
                                     "/server_info",
                                     "/get_model_info",
                                     "/v1/loads?format=x",
                                     "/flush_cache?timeout=0",
                                     "/abort_request"};
static const char *const bodies[] = {
    "{\"prompt\":\"say:hello\"}",
    "{\"prompt\":\"!delay=1 say:hello world\",\"stream\":true,\"max_tokens\":30,\"stream_options\":{\"include_usage\":true}}",
    "{\"prompt\":[\"say:a\",\"say:b\"],\"n\":2,\"logprobs\":3,\"echo\":true}",
    "{\"prompt\":[1,2,97],\"seed\":7,\"stop\":[\"x\",\"l\"],\"temperature\":0.5}",
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"say:hi \\u00e9\"}],\"stream\":true}",
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"say:part\"}]}],\"max_tokens\":5,\"logprobs\":true,\"top_logprobs\":2}",
    "{\"input\":\"say:x\",\"stream\":true}",
    "{\"text\":\"say:native\",\"sampling_params\":{\"max_new_tokens\":4},\"stream\":true,\"rid\":\"r1\"}",
    "{\"input_ids\":[[97,98],[99]],\"return_logprob\":true,\"logprob_start_len\":0}",
    "{\"tokens\":[104,105,256]}",
    "{\"rid\":\"r1\"}",
    "{\"abort_all\":false}",
    "{\"prompt\":\"!hold=300 !delay=1\"}",
    "{\"prompt\":\"!fail=2 say:abcdef\",\"stream\":true}",
    "{\"prompt\":\"!refuse=503\"}",
};
static const char *const words[] = {"\r\n",
                                    "\n",
                                    "\r\n\r\n",
                                    "Content-Length: 5\r\n",
                                    "Content-Length: 99999999999\r\n",
                                    "Transfer-Encoding: chunked\r\n",
                                    "0\r\n\r\n",
                                    "ffffffff\r\n",
                                    "\0",
                                    "Host: evil\r\n",
                                    "Expect: 100-continue\r\n",
                                    "Connection: close\r\n",
                                    "HTTP/1.0\r\n",
                                    "\"",
                                    "{",
                                    "[[[[[[[[",
                                    "\\ud800",
                                    "1e999",
                                    "-1",
                                    "null",
                                    "%00",
                                    "\xff\xfe",
                                    "X-Request-Id: a b\r\n",
                                    "GET / HTTP/1.1\r\n"};

static size_t good_request(char *out, uint64_t *seed) {
  const char *route = routes[test_rand_int(seed, 0, (int)ARRAY_LEN(routes) - 1)],
             *body = bodies[test_rand_int(seed, 0, (int)ARRAY_LEN(bodies) - 1)];
  size_t n;
  switch (test_rand_int(seed, 0, 3)) {
  case 0: return (size_t)sprintf(out, "GET %s HTTP/1.%d\r\nHost: localhost\r\n\r\n", route, test_rand_int(seed, 0, 1));
  case 1: /* the body in two chunks */
    n = strlen(body) / 2;
    return (size_t)sprintf(
        out,
        "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n%.*s\r\n%zx\r\n%s\r\n0\r\n\r\n",
        route, n, (int)n, body, strlen(body) - n, body + n);
  default:
    return (size_t)sprintf(out, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n%s",
                           route, strlen(body), test_rand_int(seed, 0, 3) ? "" : "Connection: close\r\n", body);
  }
}

static size_t splice(char *text, size_t n, size_t at, const char *what, size_t n_what) {
  if (n + n_what > REQUEST_BYTES) return n;
  memmove(text + at + n_what, text + at, n - at);
  memcpy(text + at, what, n_what);
  return n + n_what;
}

static size_t mutate(char *text, size_t n, uint64_t *seed) {
  size_t at = (size_t)test_rand_int(seed, 0, (int)n), length = (size_t)test_rand_int(seed, 0, (int)(n - at));
  const char *word;
  char copy[600];
  switch (test_rand_int(seed, 0, 6)) {
  case 0:
    if (at < n) text[at] = (char)test_rand(seed);
    return n;
  case 1:
    if (at < n) text[at] = (char)(text[at] ^ 1 << test_rand_int(seed, 0, 7));
    return n;
  case 2: /* a piece is missing */
    length = MIN(length, (size_t)50);
    memmove(text + at, text + at + length, n - at - length);
    return n - length;
  case 3: /* a piece comes twice */
    length = MIN(length, sizeof copy);
    memcpy(copy, text + at, length);
    return splice(text, n, at, copy, length);
  case 4: return at > 0 ? at : n; /* the end is missing */
  case 5: word = words[test_rand_int(seed, 0, (int)ARRAY_LEN(words) - 1)]; return splice(text, n, at, word, MAX(strlen(word), (size_t)1));
  default: /* noise */
    length = (size_t)test_rand_int(seed, 1, (int)sizeof copy);
    for (size_t i = 0; i < length; i++) copy[i] = (char)test_rand(seed);
    return splice(text, n, at, copy, length);
  }
}

static size_t make_request(char *out, uint64_t *seed) {
  size_t n = 0;
  for (int k = test_rand_int(seed, 1, 3); k > 0; k--) n += good_request(out + n, seed); /* pipelined */
  for (int k = test_rand_int(seed, 0, 4); k > 0; k--) n = mutate(out, n, seed);
  return n;
}

/* ---- peers ---------------------------------------------------------------------------------------------------------------- */

struct peer {
  int fd; /* -1: none */
  SSL_CTX *ctx;
  SSL *ssl; /* NULL: plain, or raw bytes to a port that wants TLS */
};

static void peer_open(struct peer *p, int port, bool tls, uint64_t *seed) {
  *p = (struct peer){.fd = client_connect(port)};
  if (p->fd < 0 || !tls || test_rand_int(seed, 0, 4) == 0) return;
  struct tls_client c;
  close(p->fd);
  bool good = tls_begin(&c, port, &(struct tls_wish){.max_version = test_rand_int(seed, 0, 1) ? TLS1_2_VERSION : TLS1_3_VERSION});
  if (!good) fail_msg("no handshake");
  *p = (struct peer){.fd = c.fd, .ctx = c.ctx, .ssl = c.ssl};
}

static void peer_send(struct peer *p, const char *text, size_t n, uint64_t *seed) {
  while (n) {
    size_t k = test_rand_int(seed, 0, 2) ? n : (size_t)test_rand_int(seed, 1, (int)n);
    ERR_clear_error();
    if (p->ssl && test_rand_int(seed, 0, 40)) SSL_write(p->ssl, text, (int)k);
    else send(p->fd, text, k, MSG_DONTWAIT | MSG_NOSIGNAL); /* beside the TLS session now and then */
    text += k;
    n -= k;
  }
}

static void peer_read(struct peer *p, int bytes) {
  char some[4096];
  for (ssize_t n; bytes > 0 && (n = recv(p->fd, some, sizeof some, MSG_DONTWAIT)) > 0;) bytes -= (int)n;
}

static void peer_close(struct peer *p, uint64_t *seed) {
  if (p->fd < 0) return;
  struct linger at_once = {.l_onoff = 1};
  int way = test_rand_int(seed, 0, 3);
  if (way == 1) setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  if (way == 2) shutdown(p->fd, SHUT_WR);
  if (way == 3 && p->ssl) SSL_shutdown(p->ssl);
  SSL_free(p->ssl);
  SSL_CTX_free(p->ctx);
  ERR_clear_error();
  close(p->fd);
  p->fd = -1;
}

/* ---- the flood ------------------------------------------------------------------------------------------------------------ */

/* A good request between the bad ones. */
static int canary(int port, bool tls, const char *request, const char *says) {
  struct answer a;
  struct buf body = {0};
  int status;
  if (tls) {
    status = tls_ask(port, request, &body);
  } else {
    int fd = client_connect(port);
    client_puts(fd, request);
    client_read(fd, &a);
    close(fd);
    status = a.status;
    body = a.body;
    a.body = (struct buf){0};
    answer_free(&a);
  }
  if (status == 200 && !strstr(buf_cstr(&body), says)) fail_msg("answered %s", buf_cstr(&body));
  buf_free(&body);
  return status;
}

static const char ask_health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
static const char ask_text[] =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
    "28\r\n\r\n{\"prompt\":\"say:still there\"}";

/* Nothing is left: no connection but the one that asks, no call, no request in the engine. */
static void wait_until_empty(struct fixture *f, bool tls) {
  static const char ask[] = "GET /server_info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  int connections = -1, calls = -1;
  for (int i = 0; i < 100; i++) {
    struct buf body = {0};
    if (tls) tls_ask(f->port, ask, &body);
    else {
      struct answer a;
      client_get(f->port, "/server_info", &a);
      body = a.body;
      a.body = (struct buf){0};
      answer_free(&a);
    }
    const char *at = strstr(buf_cstr(&body), "\"http\":{");
    if (at) sscanf(at, "\"http\":{\"connections\":%d,\"exchanges\":%*d,\"calls\":%d", &connections, &calls);
    buf_free(&body);
    if (connections == 1 && calls == 0 && atomic_load(&f->fake.running) == 0) return;
    usleep(50000);
  }
  fail_msg("left behind: %d connections, %d calls, %d running", connections, calls, atomic_load(&f->fake.running));
}

static void flood(struct fixture *f, bool tls, int ms, uint64_t seed) {
  struct peer peers[N_PEERS];
  for (int i = 0; i < N_PEERS; i++) peers[i].fd = -1;
  char *text = malloc(2 * REQUEST_BYTES);
  size_t warm_bytes = 0, n_requests = 0;
  int n_texts = 0;
  for (int64_t start = clock_ns(); clock_ms_since(start) < ms; n_requests++) {
    struct peer *p = &peers[test_rand_int(&seed, 0, N_PEERS - 1)];
    if (p->fd < 0) peer_open(p, f->port, tls, &seed);
    peer_send(p, text, make_request(text, &seed), &seed);
    if (test_rand_int(&seed, 0, 2)) peer_read(p, test_rand_int(&seed, 0, 20000));
    if (test_rand_int(&seed, 0, 2) == 0) peer_close(p, &seed);
    if (n_requests % 64 == 63) {
      if (canary(f->port, tls, ask_health, "ok") != 200) fail_msg("after %zu requests: /health fails", n_requests);
      int status = canary(f->port, tls, ask_text, "still there");
      if (status != 200 && status != 503) fail_msg("after %zu requests: status %d", n_requests, status);
      n_texts += status == 200;
    }
    if (!warm_bytes && clock_ms_since(start) > ms / 3) warm_bytes = mem_resident_bytes();
  }
  for (int i = 0; i < N_PEERS; i++) peer_close(&peers[i], &seed);
  free(text);
  wait_until_empty(f, tls);
  if (canary(f->port, tls, ask_text, "still there") != 200) fail_msg("no answer after the flood");
  printf("%zu %srequests, resident %.1f -> %.1f MiB\n", n_requests, tls ? "TLS " : "", (double)warm_bytes / (1 << 20),
         (double)mem_resident_bytes() / (1 << 20));
  assert_true(n_requests < 640 || n_texts > 0);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed for a while */
  assert_true(mem_resident_bytes() < warm_bytes + (24 << 20));
#endif
}

static const struct http_limits limits = {.head_ms = 700,
                                          .body_ms = 700,
                                          .idle_ms = 700,
                                          .write_ms = 700,
                                          .linger_ms = 50,
                                          .body_bytes = 100000,
                                          .bodies_bytes = 1000000,
                                          .connections = 200};

static void run(bool tls, int ms) {
  const char *is_long = getenv("CYGNET_LONG");
  uint64_t seed = 5;
  struct serve_options o = {.limits = limits, .calls_max = 40, .health_ms = 300};
  struct identity id = identity_new(-3600, 36000, false, 0);
  char *certificate = identity_write_certificate(&id, "certificate.pem"), *key = identity_write_key(&id, "key.pem", NULL);
  if (tls) o.tls = (struct http_tls){certificate, key};
  if (is_long && *is_long) {
    seed = (uint64_t)time(NULL);
    long seconds = atol(is_long);
    ms *= seconds > 1 ? (int)seconds / 3 : 200;
    printf("seed %llu\n", (unsigned long long)seed);
  }
  struct fixture *f = fixture_start(&o, 4, 16);
  flood(f, tls, ms, seed);
  fixture_stop(f);
  identity_free(&id);
  free(certificate);
  free(key);
}

static void plain(void **state) {
  (void)state;
  run(false, 2000);
}
static void over_tls(void **state) {
  (void)state;
  run(true, 1000);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(over_tls)};
TEST_MAIN(tests)
