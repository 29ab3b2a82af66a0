/* t_tls — the HTTP layer over TLS: what must be as it is without, what the protocol brings with it, and what strangers send. */
#include "test.h"

#include <sys/stat.h>

#include "rig.h"
#include "server/http_tls.h"

static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
static const char health_last[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/* ---- files -------------------------------------------------------------------------------------------------------------- */

static void files(void **state) {
  (void)state;
  struct identity one = identity_new(-10, 1000, false, 0), two = identity_new(-10, 1000, true, 2048),
                  weak = identity_new(-10, 1000, true, 1024);
  char *c1 = identity_write_certificate(&one, "c1"), *k1 = identity_write_key(&one, "k1", NULL);
  char *c2 = identity_write_certificate(&two, "c2"), *k2 = identity_write_key(&two, "k2", NULL);
  char *c3 = identity_write_certificate(&weak, "c3"), *k3 = identity_write_key(&weak, "k3", NULL);
  char *locked = identity_write_key(&one, "locked", "secret");
  char *empty = xstrdup(test_write("empty", "", 0)), *noise = xstrdup(test_write("noise", "\0\x01garbage", 9));
  char *large = xstrdup(test_tmpdir()), *no_end;
  size_t n;
  char *text = test_read(c1, &n);
  no_end = xstrdup(test_write("no_end", text, n - 30));
  char *twice = malloc(2 * n);
  memcpy(twice, text, n);
  memcpy(twice + n, text, n);
  size_t n_key;
  char *key_text = test_read(k1, &n_key), *half_key = xstrdup(test_write("half_key", key_text, n_key / 2));
  free(key_text);
  char *chain = xstrdup(test_write("chain", twice, 2 * n));
  char *bad_chain = xstrdup(test_write("bad_chain", twice, 2 * n - 30));
  const struct {
    const char *certificate, *key, *says;
  } table[] = {
      {c1, k1, NULL},
      {c2, k2, NULL},
      {chain, k1, NULL},
      {c1, NULL, "found only --tls-cert"},
      {NULL, k1, "found only --tls-key"},
      {"/nonexistent", k1, "tls-cert: cannot read /nonexistent: No such file"},
      {c1, "/nonexistent", "tls-key: cannot read /nonexistent: No such file"},
      {large, k1, "to be a file"},
      {c1, large, "to be a file"},
      {"/dev/zero", k1, "to be a file"},
      {empty, k1, "empty: found none"},
      {noise, k1, "noise: found none"},
      {k1, k1, "k1: found none"},
      {no_end, k1, "tls-cert: expected a certificate in PEM form in "},
      {bad_chain, k1, "a further certificate in"},
      {c1, empty, "empty: found none"},
      {c1, c1, "c1: found none"},
      {c1, half_key, "tls-key: expected a private key in PEM form in "},
      {c1, k2, "does not belong to the certificate in "},
      {c2, k1, "does not belong to the certificate in "},
      {c1, locked, "protected by a password"},
      {c3, k3, "tls-cert: the certificate in "},
  };
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct err e = {0};
    const struct http_tls f = {table[i].certificate, table[i].key};
    struct http_tls_context *t = http_tls_open(&f, false, &e);
    if (!t != !!table[i].says) fail_msg("case %zu: %s", i, t ? "accepted" : e.msg);
    if (table[i].says && !strstr(e.msg, table[i].says)) fail_msg("case %zu: %s", i, e.msg);
    assert_int_equal(ERR_peek_error(), 0);
    http_tls_close(t);
    const struct http_handlers h = {0};
    struct http_server *s = table[i].says ? http_listen("127.0.0.1", 0, &f, NULL, &h, &e) : NULL;
    assert_null(s);
  }
  char *all[] = {c1, k1, c2, k2, c3, k3, locked, empty, noise, large, no_end, chain, bad_chain, text, twice, half_key};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) free(all[i]);
  identity_free(&one);
  identity_free(&two);
  identity_free(&weak);
}

static void dates(void **state) { /* a warning, not an end: a server with an old certificate is better than none */
  (void)state;
  static const struct {
    long from, to;
    const char *says;
  } table[] = {{-1000, -10, "has expired"}, {1000, 2000, "is not valid yet"}, {-10, 1000, NULL}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct identity id = identity_new(table[i].from, table[i].to, false, 0);
    char *c = identity_write_certificate(&id, "c"), *k = identity_write_key(&id, "k", NULL);
    const char *log = test_write("log", "", 0);
    chmod(k, table[i].says ? 0644 : 0600);
    int was = dup(2);
    assert_non_null(freopen(log, "a", stderr));
    log_set_level(LOG_WARN);
    struct err e;
    struct http_tls_context *t = http_tls_open(&(struct http_tls){c, k}, false, &e);
    fflush(stderr);
    log_set_level(LOG_ERROR);
    dup2(was, 2);
    close(was);
    assert_non_null(t);
    http_tls_close(t);
    size_t n;
    char *text = test_read(log, &n);
    if (table[i].says) {
      assert_non_null(strstr(text, table[i].says));
      assert_non_null(strstr(text, "everybody on this machine can read the key"));
    } else {
      assert_string_equal(text, "");
    }
    free(text);
    free(c);
    free(k);
    identity_free(&id);
  }
}

/* ---- as without --------------------------------------------------------------------------------------------------------- */

static void requests(void **state) {
  (void)state;
  struct rig *r = rig_start(true, NULL);
  static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
  for (size_t v = 0; v < ARRAY_LEN(versions); v++) {
    struct tls_client c;
    struct buf body;
    assert_true(tls_begin(&c, r->port, &(struct tls_wish){.max_version = versions[v]}));
    assert_int_equal(SSL_version(c.ssl), versions[v]);
    tls_puts(&c, health);
    assert_int_equal(tls_answer(&c, &body), 200);
    assert_string_equal(body.data, "ok");
    buf_free(&body);
    tls_puts(&c, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(tls_answer(&c, &body), 200);
    char wanted[40];
    const char *at = body.data;
    for (int i = 0; i < RIG_EVENTS; i++) {
      snprintf(wanted, sizeof wanted, i % 2 ? "data: event %d\n\n" : "event: tick\ndata: event %d\n\n", i);
      assert_int_equal(strncmp(at, wanted, strlen(wanted)), 0);
      at += strlen(wanted);
    }
    assert_string_equal(at, "");
    buf_free(&body);
    tls_puts(&c, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(tls_answer(&c, &body), 200);
    assert_int_equal(body.len, RIG_BIG_BYTES);
    buf_free(&body);
    /* a large body, in records of odd sizes, and a chunked one byte by byte */
    enum { LARGE = 1000000 };
    char *large = malloc(LARGE);
    uint64_t seed = v;
    for (int i = 0; i < LARGE; i++) large[i] = (char)test_rand(&seed);
    tls_puts(&c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
    for (size_t sent = 0, k; sent < LARGE; sent += k) {
      k = (size_t)test_rand_int(&seed, 1, 40000);
      k = MIN(k, LARGE - sent);
      tls_send(&c, large + sent, k);
    }
    assert_int_equal(tls_answer(&c, &body), 200);
    assert_int_equal(body.len, LARGE);
    assert_memory_equal(body.data, large, LARGE);
    buf_free(&body);
    free(large);
    const char *chunked = "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (const char *p = chunked; *p; p++) tls_send(&c, p, 1);
    int status = tls_answer(&c, &body);
    if (status != 200 || strcmp(buf_cstr(&body), "hello")) fail_msg("status %d: %s", status, buf_cstr(&body));
    buf_free(&body);
    /* many at once, more than is read ahead */
    struct buf many;
    buf_init(&many, 0);
    for (int i = 0; i < 2000; i++) buf_puts(&many, health);
    tls_send(&c, many.data, many.len);
    for (int i = 0; i < 2000; i++) assert_int_equal(tls_answer(&c, NULL), 200);
    buf_free(&many);
    /* an orderly end: nobody can cut an answer short and have it taken for whole */
    tls_puts(&c, health_last);
    assert_int_equal(tls_answer(&c, NULL), 200);
    assert_int_equal(tls_more(&c), 0);
    tls_end(&c);
  }
  rig_stop(r);
}

static void refused_requests(void **state) { /* an answer, then the end */
  (void)state;
  struct rig *r = rig_start(true, &(struct http_limits){.body_bytes = 1000, .linger_ms = 100});
  static const struct {
    int status;
    const char *text;
  } table[] = {{400, "GET / HTTP/1.1\nHost: a\n\n"},
               {400, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"},
               {413, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\nxxx"},
               {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct tls_client c;
    assert_true(tls_begin(&c, r->port, NULL));
    tls_puts(&c, table[i].text);
    tls_puts(&c, health);
    assert_int_equal(tls_answer(&c, NULL), table[i].status);
    assert_int_equal(tls_more(&c), 0);
    tls_end(&c);
  }
  rig_stop(r);
}

/* Bytes of the handshake, of a head, of a body that come now and then; nothing at all. */
static void deadlines(void **state) {
  (void)state;
  const struct http_limits limits = {.head_ms = 200, .body_ms = 200, .idle_ms = 300, .linger_ms = 50};
  struct rig *r = rig_start(true, &limits);
  int silent = client_connect(r->port), hello = client_connect(r->port);
  struct tls_client idle, head, body;
  assert_true(tls_begin(&idle, r->port, NULL) && tls_begin(&head, r->port, NULL) && tls_begin(&body, r->port, NULL));
  tls_puts(&body, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
  client_puts(hello, "\x16\x03\x01\x02");
  for (int i = 0; i < 14; i++) {
    client_send(hello, i == 0 ? "\0" : "x", 1);
    tls_send(&head, "G", 1);
    tls_send(&body, "b", 1);
    usleep(20000);
  }
  int64_t start = clock_ns();
  assert_true(client_sees_close(silent, 1000) && client_sees_close(hello, 1000));
  assert_true(clock_ms_since(start) < 1500);
  assert_int_equal(tls_answer(&head, NULL), 408);
  assert_int_equal(tls_more(&head), 0);
  assert_int_equal(tls_answer(&body, NULL), 408);
  assert_int_equal(tls_more(&idle), 0);
  close(silent);
  close(hello);
  tls_end(&idle);
  tls_end(&head);
  tls_end(&body);
  assert_true(becomes(&r->n_connections, 0));
  rig_stop(r);
}

/* The client leaves while an answer is pending: by the book, without a word, with a reset; behind a flood of requests, too. */
static void leaves(void **state) {
  (void)state;
  struct rig *r = rig_start(true, NULL);
  struct buf many; /* more than is read ahead, less than the socket holds: what has not arrived, an end behind it neither, nobody can see */
  buf_init(&many, 0);
  for (int i = 0; i < 2500; i++) buf_puts(&many, health);
  for (int how = 0; how < 8; how++) {
    struct tls_client c;
    assert_true(tls_begin(&c, r->port, NULL));
    int closed = atomic_load(&r->n_closed);
    tls_puts(&c, how % 2 ? "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n" : "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n");
    if (how >= 4 && how % 2) tls_send(&c, many.data, many.len);
    usleep(20000);
    assert_int_equal(atomic_load(&r->n_closed), closed);
    if (how % 4 < 2) {
      SSL_shutdown(c.ssl);
      if (how >= 4) shutdown(c.fd, SHUT_WR); /* nobody reads that word behind the flood */
    } else if (how >= 4) {
      struct linger at_once = {.l_onoff = 1};
      setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(c.fd);
      c.fd = -1;
    } else {
      shutdown(c.fd, SHUT_WR);
    }
    if (!becomes(&r->n_closed, closed + 1)) fail_msg("way %d: not noticed", how);
    SSL_set_quiet_shutdown(c.ssl, 1);
    tls_end(&c);
  }
  buf_free(&many);
  assert_true(becomes(&r->n_connections, 0));
  /* half closed behind a short question: still answered */
  struct tls_client c;
  assert_true(tls_begin(&c, r->port, NULL));
  tls_puts(&c, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
  SSL_shutdown(c.ssl);
  struct buf body;
  assert_int_equal(tls_answer(&c, &body), 200);
  assert_int_equal(body.len, RIG_BIG_BYTES);
  buf_free(&body);
  assert_int_equal(tls_more(&c), 0);
  tls_end(&c);
  assert_true(becomes(&r->n_connections, 0));
  rig_stop(r);
}

static void slow_readers(void **state) {
  (void)state;
  const struct http_limits limits = {.output_bytes = 100000, .write_ms = 400, .idle_ms = 100, .socket_send_bytes = 4096};
  struct rig *r = rig_start(true, &limits);
  struct tls_client c, d;
  client_receive_bytes = 4096;
  assert_true(tls_begin(&c, r->port, NULL));
  tls_puts(&c, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n");
  assert_true(becomes(&r->n_closed, 1)); /* a stream that nobody reads */
  tls_end(&c);
  assert_true(tls_begin(&c, r->port, NULL)); /* a whole answer that nobody reads */
  tls_puts(&c, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
  assert_true(tls_begin(&d, r->port, NULL)); /* one that is read slowly: longer than a connection may be idle */
  client_receive_bytes = 0;
  tls_puts(&d, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
  size_t got = 0;
  for (int i = 0, k; i < 20 && (k = tls_more(&d)) > 0; i++) usleep(20000);
  got = d.in.len;
  assert_true(got < RIG_BIG_BYTES);
  assert_int_equal(tls_answer(&d, NULL), 200);
  assert_int_equal(tls_more(&d), 0); /* and idle it is after that */
  tls_end(&d);
  assert_true(becomes(&r->n_connections, 0));
  tls_end(&c);
  rig_stop(r);
}

static void too_many(void **state) {
  (void)state;
  struct rig *r = rig_start(true, &(struct http_limits){.connections = 3});
  struct tls_client busy[3], c;
  for (int i = 0; i < 3; i++) {
    assert_true(tls_begin(&busy[i], r->port, NULL));
    tls_puts(&busy[i], "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  usleep(20000);
  int fd = client_connect(r->port); /* not a word in plain text */
  char some[10];
  assert_true(recv(fd, some, sizeof some, 0) <= 0);
  close(fd);
  tls_end(&busy[0]);
  assert_true(becomes(&r->n_closed, 1));
  fd = client_connect(r->port);
  client_puts(fd, "\x16\x03\x01"); /* a handshake that does not go on gives way */
  usleep(20000);
  assert_true(tls_begin(&c, r->port, NULL));
  tls_puts(&c, health);
  assert_int_equal(tls_answer(&c, NULL), 200);
  assert_true(client_sees_close(fd, 1000));
  close(fd);
  tls_end(&c);
  tls_end(&busy[1]);
  tls_end(&busy[2]);
  rig_stop(r);
}

/* ---- the protocol itself ------------------------------------------------------------------------------------------------ */

static void versions_and_protocols(void **state) {
  (void)state;
  struct rig *r = rig_start(true, NULL);
  static const struct {
    struct tls_wish wish;
    bool good;
  } table[] = {{{.max_version = TLS1_VERSION}, false},
               {{.max_version = TLS1_1_VERSION}, false},
               {{.alpn = "\x08http/1.1"}, true},
               {{.alpn = "\x02h2\x08http/1.1"}, true},
               {{.alpn = "\x02h2"}, false},
               {{.alpn = "\x08http/1.0"}, false},
               {{.max_version = TLS1_2_VERSION}, true},
               {{.max_version = TLS1_3_VERSION}, true}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    struct tls_client c;
    bool good = tls_begin(&c, r->port, &table[i].wish);
    if (good != table[i].good) fail_msg("case %zu: %s", i, good ? "accepted" : "refused");
    if (good) {
      tls_puts(&c, health);
      assert_int_equal(tls_answer(&c, NULL), 200);
    }
    tls_end(&c);
  }
  static const char *const ciphers[] = {"AES128-SHA", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES128-SHA", "eNULL",
                                        "aNULL"};
  for (size_t i = 0; i < ARRAY_LEN(ciphers); i++) { /* no forward secrecy, CBC, no secrecy at all, nobody's */
    struct tls_client c = {.fd = client_connect(r->port), .ctx = SSL_CTX_new(TLS_client_method())};
    SSL_CTX_set_security_level(c.ctx, 0);
    SSL_CTX_set_max_proto_version(c.ctx, TLS1_2_VERSION);
    assert_int_equal(SSL_CTX_set_cipher_list(c.ctx, ciphers[i]), 1);
    c.ssl = SSL_new(c.ctx);
    SSL_set_fd(c.ssl, c.fd);
    assert_true(SSL_connect(c.ssl) != 1);
    tls_end(&c);
  }
  rig_stop(r);
}

static void resumption(void **state) {
  (void)state;
  struct rig *r = rig_start(true, NULL);
  for (int v = 0; v < 2; v++) {
    struct tls_wish wish = {.max_version = v ? TLS1_3_VERSION : TLS1_2_VERSION};
    struct tls_client c;
    assert_true(tls_begin(&c, r->port, &wish));
    tls_puts(&c, health_last);
    assert_int_equal(tls_answer(&c, NULL), 200);
    assert_int_equal(tls_more(&c), 0);
    wish.session = SSL_get1_session(c.ssl);
    SSL_shutdown(c.ssl); /* without that the client holds its session for damaged */
    tls_end(&c);
    assert_true(tls_begin(&c, r->port, &wish));
    if (!SSL_session_reused(c.ssl)) fail_msg("TLS 1.%d: a whole handshake", v + 2);
    tls_puts(&c, health);
    assert_int_equal(tls_answer(&c, NULL), 200);
    SSL_SESSION_free(wish.session);
    tls_end(&c);
  }
  rig_stop(r);
}

static void no_renegotiation(void **state) {
  (void)state;
  struct rig *r = rig_start(true, NULL);
  struct tls_client c;
  assert_true(tls_begin(&c, r->port, &(struct tls_wish){.max_version = TLS1_2_VERSION}));
  tls_puts(&c, health);
  assert_int_equal(tls_answer(&c, NULL), 200);
  int handshakes = 0;
  for (int i = 0; i < 3; i++)
    handshakes += SSL_renegotiate(c.ssl) == 1 && SSL_do_handshake(c.ssl) == 1 && SSL_renegotiate_pending(c.ssl) == 0;
  tls_puts(&c, health);
  assert_true(handshakes == 0);
  tls_end(&c);
  assert_int_equal(tls_ask(r->port, health, NULL), 200);
  rig_stop(r);
}

/* TLS itself answers a request for new keys: somebody who asks on and on and never reads must not fill our memory. */
static void key_updates(void **state) {
  (void)state;
  struct rig *r = rig_start(true, &(struct http_limits){.write_ms = 500, .socket_send_bytes = 4096});
  struct tls_client c;
  client_receive_bytes = 4096;
  assert_true(tls_begin(&c, r->port, &(struct tls_wish){.max_version = TLS1_3_VERSION}));
  client_receive_bytes = 0;
  size_t before = mem_resident_bytes();
  struct timeval patience = {0, 300000};
  int small = 4096;
  setsockopt(c.fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  setsockopt(c.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  int sent = 0;
  for (; sent < 200000; sent++) {
    ERR_clear_error();
    if (SSL_key_update(c.ssl, SSL_KEY_UPDATE_REQUESTED) != 1 || SSL_do_handshake(c.ssl) != 1) break;
  }
  assert_true(sent < 200000); /* it was stopped */
#ifndef __SANITIZE_ADDRESS__  /* which keeps what was freed for a while */
  assert_true(mem_resident_bytes() < before + (8 << 20));
#endif
  (void)before;
  assert_int_equal(tls_ask(r->port, health, NULL), 200);
  tls_end(&c);
  assert_true(becomes(&r->n_connections, 0));
  rig_stop(r);
}

/* ---- strangers ---------------------------------------------------------------------------------------------------------- */

/* The first bytes of a real client. */
static size_t client_hello(char *out, size_t cap) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
  SSL *ssl = SSL_new(ctx);
  BIO *in = BIO_new(BIO_s_mem()), *to = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, in, to);
  SSL_set_connect_state(ssl);
  SSL_do_handshake(ssl);
  int n = BIO_read(to, out, (int)cap);
  SSL_free(ssl);
  SSL_CTX_free(ctx);
  ERR_clear_error();
  return (size_t)n;
}

static void garbage(void **state) {
  (void)state;
  struct rig *r = rig_start(true, &(struct http_limits){.head_ms = 300, .linger_ms = 50});
  char hello[4096], text[5000];
  uint64_t seed = 11;
  size_t n_hello = client_hello(hello, sizeof hello);
  assert_true(n_hello > 100);
  int open[40], n_open = 0;
  for (int round = 0; round < 400; round++) {
    size_t n = n_hello;
    memcpy(text, hello, n);
    switch (round % 5) {
    case 0: /* noise */
      n = (size_t)test_rand_int(&seed, 1, 3000);
      for (size_t i = 0; i < n; i++) text[i] = (char)test_rand(&seed);
      break;
    case 1: n = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %d\r\n\r\n", round); break;
    case 2: n = (size_t)test_rand_int(&seed, 1, (int)n_hello - 1); break; /* cut */
    default:                                                              /* damaged */
      for (int k = test_rand_int(&seed, 1, 8); k > 0; k--) text[test_rand_int(&seed, 0, (int)n - 1)] = (char)test_rand(&seed);
    }
    int fd = client_connect(r->port);
    client_send(fd, text, n);
    if (round % 3 == 0) shutdown(fd, SHUT_WR);
    if (round % 5 == 1) { /* never an answer in plain text */
      char some[100] = {0};
      ssize_t k = recv(fd, some, sizeof some - 1, 0);
      if (k > 0 && strstr(some, "HTTP")) fail_msg("plain answer: %s", some);
    }
    if (n_open == (int)ARRAY_LEN(open)) close(open[--n_open]);
    open[n_open++] = fd;
  }
  assert_int_equal(tls_ask(r->port, health, NULL), 200);
  assert_true(becomes(&r->n_connections, 0)); /* all of them were shed, although nobody closed those that are open here */
  while (n_open) close(open[--n_open]);
  assert_int_equal(atomic_load(&r->n_done), 1);
  rig_stop(r);
}

/* Damaged records after a good handshake. */
static void damaged_records(void **state) {
  (void)state;
  struct rig *r = rig_start(true, &(struct http_limits){.linger_ms = 50});
  uint64_t seed = 3;
  for (int round = 0; round < 60; round++) {
    struct tls_client c;
    assert_true(tls_begin(&c, r->port, &(struct tls_wish){.max_version = round % 2 ? TLS1_2_VERSION : TLS1_3_VERSION}));
    if (round % 3 == 0) {
      tls_puts(&c, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n");
      usleep(1000);
    }
    char record[100] = "\x17\x03\x03";
    size_t n = (size_t)test_rand_int(&seed, 1, 90);
    record[4] = (char)n;
    for (size_t i = 0; i < n; i++) record[5 + i] = (char)test_rand(&seed);
    if (round % 5 == 4) snprintf(record, sizeof record, "GET / HTTP/1.1\r\n\r\n"), n = strlen(record);
    client_send(c.fd, record, n + 5);
    assert_true(client_sees_close(c.fd, 2000));
    tls_end(&c);
  }
  assert_true(becomes(&r->n_connections, 0));
  assert_int_equal(atomic_load(&r->n_done), 0);
  rig_stop(r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(files),
    cmocka_unit_test(dates),
    cmocka_unit_test(requests),
    cmocka_unit_test(refused_requests),
    cmocka_unit_test(deadlines),
    cmocka_unit_test(leaves),
    cmocka_unit_test(slow_readers),
    cmocka_unit_test(too_many),
    cmocka_unit_test(versions_and_protocols),
    cmocka_unit_test(resumption),
    cmocka_unit_test(no_renegotiation),
    cmocka_unit_test(key_updates),
    cmocka_unit_test(garbage),
    cmocka_unit_test(damaged_records),
};
TEST_MAIN(tests)
