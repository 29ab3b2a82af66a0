/* rig.h — a small application on the HTTP layer alone, plain or with TLS; certificates made on the spot; a client that speaks TLS.
 *
 *   GET /health → "ok"   POST /echo → the body   GET /big → 1 MiB of 'b'   GET /stream → 100 events   GET /endless → events until nobody reads
 *   GET /hold → nothing, until the client leaves
 */
#ifndef CYGNET_TEST_RIG_H
#define CYGNET_TEST_RIG_H

#include "fake.h"

#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "server/http.h"

/* ---- certificates ------------------------------------------------------------------------------------------------------- */

struct identity {
  EVP_PKEY *key;
  X509 *certificate;
};

static UNUSED struct identity identity_new(long from_s, long to_s, bool rsa, int rsa_bits) {
  struct identity i;
  i.key = rsa ? EVP_RSA_gen((unsigned)rsa_bits) : EVP_EC_gen("P-256");
  i.certificate = X509_new();
  assert_true(i.key && i.certificate);
  X509_set_version(i.certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(i.certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(i.certificate), from_s);
  X509_gmtime_adj(X509_getm_notAfter(i.certificate), to_s);
  X509_NAME *name = X509_get_subject_name(i.certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0);
  X509_set_issuer_name(i.certificate, name);
  X509_set_pubkey(i.certificate, i.key);
  assert_true(X509_sign(i.certificate, i.key, EVP_sha256()) > 0);
  return i;
}

static UNUSED void identity_free(struct identity *i) {
  EVP_PKEY_free(i->key);
  X509_free(i->certificate);
}

/* Into a file of that name; returns its path (owned). */
static UNUSED char *identity_write_certificate(const struct identity *i, const char *name) {
  char *path = xstrdup(test_write(name, "", 0));
  FILE *f = fopen(path, "w");
  assert_true(f && PEM_write_X509(f, i->certificate) == 1);
  fclose(f);
  return path;
}
static UNUSED char *identity_write_key(const struct identity *i, const char *name, const char *password) {
  char *path = xstrdup(test_write(name, "", 0));
  FILE *f = fopen(path, "w");
  const EVP_CIPHER *cipher = password ? EVP_aes_256_cbc() : NULL;
  assert_true(f && PEM_write_PKCS8PrivateKey(f, i->key, cipher, password, password ? (int)strlen(password) : 0, NULL, NULL) == 1);
  fclose(f);
  chmod(path, 0600);
  return path;
}

/* ---- application -------------------------------------------------------------------------------------------------------- */

struct rig {
  struct http_server *http;
  pthread_t thread;
  int port, stop_fd;
  atomic_int n_closed, n_done, n_connections;
  char *big;
  char *certificate_file, *key_file; /* NULL: plain */
  struct http_exchange *endless[8];  /* of the loop's thread */
  int n_endless;
};

enum { RIG_BIG_BYTES = 1 << 20, RIG_EVENTS = 100 };

static void rig_pump(void *ctx) {
  struct rig *r = ctx;
  static char text[1000];
  memset(text, 'e', sizeof text);
  for (int i = 0; i < r->n_endless;) {
    struct http_exchange *x = r->endless[i];
    if (http_sse_send(x, text, sizeof text)) i++; /* else rig_closed took it out */
  }
  struct http_counts c;
  http_counts(r->http, &c);
  atomic_store(&r->n_connections, c.connections);
  http_after(r->http, 1, rig_pump, r);
}

static void rig_request(void *ctx, struct http_exchange *x) {
  struct rig *r = ctx;
  struct str path = x->head.path;
  if (str_is(path, "/health")) http_reply(x, 200, "text/plain", "ok", 2);
  else if (str_is(path, "/echo")) {
    struct buf body = x->body;
    buf_init(&x->body, 0);
    http_reply(x, 200, "text/plain", buf_cstr(&body), body.len);
    buf_free(&body);
  } else if (str_is(path, "/big")) http_reply(x, 200, "text/plain", r->big, RIG_BIG_BYTES);
  else if (str_is(path, "/stream")) {
    http_sse_begin(x);
    char text[32];
    bool open = true;
    for (int i = 0; open && i < RIG_EVENTS; i++) {
      snprintf(text, sizeof text, "event %d", i);
      open = i % 2 ? http_sse_send(x, text, strlen(text)) : http_sse_event(x, "tick", text, strlen(text));
    }
    if (open) http_sse_end(x);
  } else if (str_is(path, "/endless") && r->n_endless < (int)ARRAY_LEN(r->endless)) {
    http_sse_begin(x);
    r->endless[r->n_endless++] = x;
  } else if (!str_is(path, "/hold")) http_reply(x, 404, NULL, NULL, 0);
}

static void rig_closed(void *ctx, struct http_exchange *x) {
  struct rig *r = ctx;
  for (int i = 0; i < r->n_endless; i++)
    if (r->endless[i] == x) {
      r->endless[i] = r->endless[--r->n_endless];
      break;
    }
  atomic_fetch_add(&r->n_closed, 1);
}
static void rig_done(void *ctx, const struct http_exchange *x, int status) {
  (void)x, (void)status;
  atomic_fetch_add(&((struct rig *)ctx)->n_done, 1);
}
static void rig_fault(void *ctx, int status, const char *why, struct buf *body) {
  (void)ctx;
  buf_printf(body, "%d %s", status, why);
}
static void rig_stop_now(void *ctx) { http_stop(((struct rig *)ctx)->http); }
static void *rig_main(void *ctx) {
  http_run(((struct rig *)ctx)->http);
  return NULL;
}

static UNUSED struct rig *rig_start(bool with_tls, const struct http_limits *limits) {
  struct rig *r = calloc(1, sizeof *r);
  struct err e = {0};
  log_set_level(LOG_ERROR);
  r->big = malloc(RIG_BIG_BYTES);
  memset(r->big, 'b', RIG_BIG_BYTES);
  if (with_tls) {
    struct identity i = identity_new(-3600, 3600, false, 0);
    r->certificate_file = identity_write_certificate(&i, "certificate.pem");
    r->key_file = identity_write_key(&i, "key.pem", NULL);
    identity_free(&i);
  }
  const struct http_tls tls = {r->certificate_file, r->key_file};
  const struct http_handlers h = {.on_request = rig_request, .on_closed = rig_closed, .on_done = rig_done, .on_fault = rig_fault, .ctx = r};
  r->http = http_listen("127.0.0.1", 0, &tls, limits, &h, &e);
  if (!r->http) fail_msg("%s", e.msg);
  r->stop_fd = eventfd(0, EFD_CLOEXEC);
  assert_int_equal(http_watch(r->http, r->stop_fd, rig_stop_now, r, &e), 0);
  http_after(r->http, 1, rig_pump, r);
  r->port = http_port(r->http);
  assert_int_equal(pthread_create(&r->thread, NULL, rig_main, r), 0);
  return r;
}

static UNUSED void rig_stop(struct rig *r) {
  uint64_t one = 1;
  assert_int_equal(write(r->stop_fd, &one, sizeof one), sizeof one);
  pthread_join(r->thread, NULL);
  http_delete(r->http);
  close(r->stop_fd);
  free(r->certificate_file);
  free(r->key_file);
  free(r->big);
  free(r);
}

/* ---- client that speaks TLS --------------------------------------------------------------------------------------------- */

struct tls_client {
  int fd;
  SSL_CTX *ctx;
  SSL *ssl;
  struct buf in;
};

/* What may be set before the handshake: 0 and NULL leave it as it is. */
struct tls_wish {
  int max_version;
  const char *alpn; /* as on the wire, "\x02h2" */
  SSL_SESSION *session;
};

/* False: no handshake. tls_end in both cases. */
static UNUSED bool tls_begin(struct tls_client *c, int port, const struct tls_wish *wish) {
  *c = (struct tls_client){.fd = client_connect(port), .ctx = SSL_CTX_new(TLS_client_method())};
  struct timeval patience = {TEST_TSAN ? 60 : 5, 0}; /* thousands of requests take their time there */
  int one = 1;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (wish && wish->max_version) {
    SSL_CTX_set_security_level(c->ctx, 0);
    SSL_CTX_set_min_proto_version(c->ctx, 0);
    SSL_CTX_set_max_proto_version(c->ctx, wish->max_version);
  }
  c->ssl = SSL_new(c->ctx);
  if (wish && wish->alpn) SSL_set_alpn_protos(c->ssl, (const unsigned char *)wish->alpn, (unsigned)strlen(wish->alpn));
  if (wish && wish->session) SSL_set_session(c->ssl, wish->session);
  SSL_set_fd(c->ssl, c->fd);
  ERR_clear_error();
  return SSL_connect(c->ssl) == 1;
}

static UNUSED void tls_end(struct tls_client *c) {
  SSL_free(c->ssl);
  SSL_CTX_free(c->ctx);
  if (c->fd >= 0) close(c->fd);
  buf_free(&c->in);
  ERR_clear_error();
}

static UNUSED void tls_send(struct tls_client *c, const char *p, size_t n) {
  ERR_clear_error();
  while (n) {
    int k = SSL_write(c->ssl, p, (int)MIN(n, (size_t)16384));
    if (k <= 0) return;
    p += k;
    n -= (size_t)k;
  }
}
static UNUSED void tls_puts(struct tls_client *c, const char *s) { tls_send(c, s, strlen(s)); }

/* More bytes: 1; an orderly end: 0; anything else: -1. */
static UNUSED int tls_more(struct tls_client *c) {
  char chunk[16384];
  ERR_clear_error();
  int n = SSL_read(c->ssl, chunk, sizeof chunk);
  if (n > 0) buf_append(&c->in, chunk, (size_t)n);
  return n > 0 ? 1 : SSL_get_error(c->ssl, n) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

/* Status of the next answer, its body in *body (may be NULL); 0: none came. */
static UNUSED int tls_answer(struct tls_client *c, struct buf *body) {
  const char *end;
  while (!(end = strstr(buf_cstr(&c->in), "\r\n\r\n")))
    if (tls_more(c) <= 0) return 0;
  int status = 0;
  size_t n_head = (size_t)(end - c->in.data) + 4;
  char *head = xstrdup(c->in.data);
  head[n_head] = 0;
  sscanf(head, "HTTP/1.1 %d", &status);
  buf_drop_front(&c->in, n_head);
  const char *length = strcasestr(head, "\r\nContent-Length: ");
  size_t wanted = length ? (size_t)atol(length + 18) : 0;
  bool chunked = strcasestr(head, "\r\nTransfer-Encoding: chunked") != NULL;
  free(head);
  struct buf got;
  buf_init(&got, 0);
  struct http_chunked decoder = {0};
  for (;;) {
    size_t used = 0;
    enum http_chunked_result r = HTTP_CHUNKED_MORE;
    if (chunked) r = http_chunked_feed(&decoder, buf_cstr(&c->in), c->in.len, &used, &got);
    else buf_append(&got, buf_cstr(&c->in), used = MIN(c->in.len, wanted - got.len));
    if (used) buf_drop_front(&c->in, used);
    if (chunked ? r == HTTP_CHUNKED_DONE : got.len == wanted) break;
    if (tls_more(c) <= 0) {
      status = 0;
      break;
    }
  }
  if (body) *body = got;
  else buf_free(&got);
  return status;
}

/* One request on a connection of its own. */
static UNUSED int tls_ask(int port, const char *request, struct buf *body) {
  struct tls_client c;
  int status = 0;
  if (body) *body = (struct buf){0};
  if (tls_begin(&c, port, NULL)) {
    tls_puts(&c, request);
    status = tls_answer(&c, body);
  }
  tls_end(&c);
  return status;
}

#endif
