/* http_tls.c — certificates at start, then OpenSSL over memory BIOs. */
#include "server/http_tls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <event2/buffer.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/http.h"

enum { PEM_BYTES_MAX = 1 << 20, FEED_BYTES = 16 << 10 };

struct http_tls_context {
  SSL_CTX *ctx;
};

struct http_tls_session {
  SSL *ssl;
  BIO *in, *out; /* owned by ssl */
  bool broken, ended;
  char reason[120];
};

/* ---- files ------------------------------------------------------------------------------------------------------------ */

/* Why OpenSSL refused, in its words; the queue is empty after. */
static const char *take_reason(char *text, size_t n) {
  unsigned long code = ERR_peek_error();
  const char *reason = code ? ERR_reason_error_string(code) : NULL;
  snprintf(text, n, "%s", reason ? reason : "no reason given");
  ERR_clear_error();
  return text;
}

static int read_pem(const char *option, const char *path, struct buf *out, struct stat *st, struct err *e) {
  char shown[200], chunk[4096];
  str_escape(str_c(path), shown, sizeof shown);
  FILE *f = fopen(path, "rbe");
  if (!f) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: cannot read %s: %s", option, shown, strerror(errno));
  int r = 0;
  if (fstat(fileno(f), st) || !S_ISREG(st->st_mode)) r = err_set(e, ERR_BAD_FILE, "%s: expected %s to be a file", option, shown);
  buf_init(out, PEM_BYTES_MAX);
  for (size_t n; r == 0 && (n = fread(chunk, 1, sizeof chunk, f)) > 0;)
    if (!buf_append(out, chunk, n)) r = err_set(e, ERR_BAD_FILE, "%s: %s is larger than 1 MiB, so it is no PEM file", option, shown);
  if (r == 0 && ferror(f)) r = err_set(e, ERR_IO, "%s: cannot read %s: %s", option, shown, strerror(errno));
  fclose(f);
  OPENSSL_cleanse(chunk, sizeof chunk);
  return r;
}

static int no_password(char *out, int n, int writing, void *asked) {
  (void)out, (void)n, (void)writing;
  *(bool *)asked = true;
  return -1;
}

static void warn_of_dates(X509 *certificate, const char *path) {
  char shown[200];
  str_escape(str_c(path), shown, sizeof shown);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) log_line(LOG_WARN, "tls", "the certificate in %s has expired", shown);
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    log_line(LOG_WARN, "tls", "the certificate in %s is not valid yet", shown);
}

/* The server's own certificate first, those that lead to its root after it. */
static int load_chain(SSL_CTX *ctx, const char *path, bool quiet, struct err *e) {
  char shown[200], why[120];
  struct buf pem = {0};
  struct stat st;
  int r = -1;
  bool asked = false;
  BIO *bio = NULL;
  X509 *certificate = NULL;
  str_escape(str_c(path), shown, sizeof shown);
  if (read_pem("tls-cert", path, &pem, &st, e)) goto done;
  bio = BIO_new_mem_buf(buf_cstr(&pem), (int)pem.len);
  certificate = bio ? PEM_read_bio_X509_AUX(bio, NULL, no_password, &asked) : NULL;
  if (!certificate) {
    bool none = !strstr(buf_cstr(&pem), "-----BEGIN CERTIFICATE") && !strstr(buf_cstr(&pem), "-----BEGIN TRUSTED");
    err_set(e, ERR_BAD_FILE, "tls-cert: expected a certificate in PEM form in %s: %s", shown,
            none ? "found none" : take_reason(why, sizeof why));
    goto done;
  }
  if (SSL_CTX_use_certificate(ctx, certificate) != 1) {
    err_set(e, ERR_BAD_FILE, "tls-cert: the certificate in %s cannot be used: %s", shown, take_reason(why, sizeof why));
    goto done;
  }
  if (!quiet) warn_of_dates(certificate, path);
  for (X509 *next; (next = PEM_read_bio_X509(bio, NULL, no_password, &asked));) {
    if (SSL_CTX_add0_chain_cert(ctx, next) == 1) continue;
    X509_free(next);
    err_set(e, ERR_BAD_FILE, "tls-cert: a further certificate in %s cannot be used: %s", shown, take_reason(why, sizeof why));
    goto done;
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) { /* that one is the end of the file */
    err_set(e, ERR_BAD_FILE, "tls-cert: a further certificate in %s is damaged: %s", shown, take_reason(why, sizeof why));
    goto done;
  }
  r = 0;
done:
  ERR_clear_error();
  X509_free(certificate);
  BIO_free(bio);
  buf_free(&pem);
  return r;
}

static int load_key(SSL_CTX *ctx, const struct http_tls *files, bool quiet, struct err *e) {
  char shown[200], why[120];
  struct buf pem = {0};
  struct stat st;
  int r = -1;
  bool asked = false;
  BIO *bio = NULL;
  EVP_PKEY *key = NULL;
  str_escape(str_c(files->key_file), shown, sizeof shown);
  if (read_pem("tls-key", files->key_file, &pem, &st, e)) goto done;
  if (!quiet && (st.st_mode & S_IROTH)) log_line(LOG_WARN, "tls", "everybody on this machine can read the key in %s", shown);
  bio = BIO_new_mem_buf(buf_cstr(&pem), (int)pem.len);
  key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, &asked) : NULL;
  if (!key) {
    take_reason(why, sizeof why);
    if (asked) err_set(e, ERR_BAD_FILE, "tls-key: the key in %s is protected by a password: expected one without", shown);
    else
      err_set(e, ERR_BAD_FILE, "tls-key: expected a private key in PEM form in %s: %s", shown,
              strstr(buf_cstr(&pem), "PRIVATE KEY-----") ? why : "found none");
    goto done;
  }
  if (X509_check_private_key(SSL_CTX_get0_certificate(ctx), key) != 1) {
    char certificate[200];
    str_escape(str_c(files->certificate_file), certificate, sizeof certificate);
    err_set(e, ERR_BAD_FILE, "tls-key: the key in %s does not belong to the certificate in %s", shown, certificate);
    goto done;
  }
  if (SSL_CTX_use_PrivateKey(ctx, key) != 1) {
    err_set(e, ERR_BAD_FILE, "tls-key: the key in %s cannot be used: %s", shown, take_reason(why, sizeof why));
    goto done;
  }
  r = 0;
done:
  ERR_clear_error();
  EVP_PKEY_free(key);
  BIO_free(bio);
  if (pem.data) OPENSSL_cleanse(pem.data, pem.cap_bytes);
  buf_free(&pem);
  return r;
}

/* ---- context ---------------------------------------------------------------------------------------------------------- */

/* A client that names protocols, but not ours, would talk past us. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n_out, const unsigned char *in, unsigned n_in, void *ctx) {
  static const unsigned char ours[] = "\x08http/1.1";
  unsigned char *chosen;
  (void)ssl, (void)ctx;
  if (SSL_select_next_proto(&chosen, n_out, ours, sizeof ours - 1, in, n_in) != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

struct http_tls_context *http_tls_open(const struct http_tls *files, bool quiet, struct err *e) {
  if (!files->certificate_file || !files->key_file) {
    err_set(e, ERR_BAD_INPUT, "expected both --tls-cert and --tls-key, found only --tls-%s", files->key_file ? "key" : "cert");
    return NULL;
  }
  struct http_tls_context *t = xcalloc(1, sizeof *t);
  char why[120];
  ERR_clear_error();
  t->ctx = SSL_CTX_new(TLS_server_method());
  if (!t->ctx || SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(t->ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1) {
    err_set(e, ERR_IO, "TLS cannot be set up: %s", take_reason(why, sizeof why));
    goto fail;
  }
  SSL_CTX_set_options(t->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_mode(t->ctx, SSL_MODE_RELEASE_BUFFERS);         /* an idle connection holds no record buffers */
  SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF); /* tickets do that, and cost us nothing */
  SSL_CTX_set_alpn_select_cb(t->ctx, choose_protocol, NULL);
  if (load_chain(t->ctx, files->certificate_file, quiet, e) || load_key(t->ctx, files, quiet, e)) goto fail;
  return t;
fail:
  http_tls_close(t);
  return NULL;
}

void http_tls_close(struct http_tls_context *t) {
  if (!t) return;
  SSL_CTX_free(t->ctx);
  free(t);
}

/* ---- one connection --------------------------------------------------------------------------------------------------- */

struct http_tls_session *http_tls_session_new(struct http_tls_context *t) {
  struct http_tls_session *s = xcalloc(1, sizeof *s);
  ERR_clear_error();
  s->ssl = SSL_new(t->ctx);
  s->in = BIO_new(BIO_s_mem());
  s->out = BIO_new(BIO_s_mem());
  if (!s->ssl || !s->in || !s->out) {
    BIO_free(s->in);
    BIO_free(s->out);
    s->in = s->out = NULL;
    http_tls_session_delete(s);
    return NULL;
  }
  BIO_set_mem_eof_return(s->in, -1); /* empty: more may come */
  SSL_set_bio(s->ssl, s->in, s->out);
  SSL_set_accept_state(s->ssl);
  return s;
}

void http_tls_session_delete(struct http_tls_session *s) {
  if (!s) return;
  SSL_free(s->ssl);
  ERR_clear_error();
  free(s);
}

bool http_tls_ready(const struct http_tls_session *s) { return SSL_is_init_finished(s->ssl); }
const char *http_tls_reason(const struct http_tls_session *s) { return s->reason; }

static void move_out(struct http_tls_session *s, struct evbuffer *raw_out) {
  char *p;
  long n = BIO_get_mem_data(s->out, &p);
  if (n <= 0) return;
  evbuffer_add(raw_out, p, (size_t)n);
  BIO_reset(s->out);
}

static bool feed(struct http_tls_session *s, struct evbuffer *raw_in) {
  struct evbuffer_iovec v;
  if (evbuffer_get_length(raw_in) == 0 || evbuffer_peek(raw_in, -1, NULL, &v, 1) < 1) return false;
  size_t n = MIN(v.iov_len, (size_t)FEED_BYTES);
  if (BIO_write(s->in, v.iov_base, (int)n) != (int)n) return false;
  evbuffer_drain(raw_in, n);
  return true;
}

enum http_tls_result http_tls_read(struct http_tls_session *s, struct evbuffer *raw_in, struct evbuffer *plain, size_t plain_max,
                                   struct evbuffer *raw_out) {
  enum http_tls_result result = HTTP_TLS_MORE;
  char chunk[FEED_BYTES];
  if (s->broken) return HTTP_TLS_BAD;
  ERR_clear_error();
  while (result == HTTP_TLS_MORE && evbuffer_get_length(plain) < plain_max) {
    int n = SSL_read(s->ssl, chunk, sizeof chunk);
    if (n > 0) {
      evbuffer_add(plain, chunk, (size_t)n);
      continue;
    }
    int why = SSL_get_error(s->ssl, n);
    if (why == SSL_ERROR_WANT_READ) {
      if (!feed(s, raw_in)) break;
    } else if (why == SSL_ERROR_ZERO_RETURN) {
      result = HTTP_TLS_EOF;
    } else {
      s->broken = true;
      take_reason(s->reason, sizeof s->reason);
      result = HTTP_TLS_BAD;
    }
  }
  move_out(s, raw_out);
  return result;
}

bool http_tls_write(struct http_tls_session *s, struct evbuffer *plain, struct evbuffer *raw_out) {
  ERR_clear_error();
  for (size_t n; !s->broken && (n = MIN(evbuffer_get_length(plain), (size_t)FEED_BYTES)) > 0;) {
    int wrote = SSL_write(s->ssl, evbuffer_pullup(plain, (ev_ssize_t)n), (int)n); /* a memory BIO takes all */
    if (wrote == (int)n) {
      evbuffer_drain(plain, n);
    } else {
      s->broken = true;
      take_reason(s->reason, sizeof s->reason);
    }
  }
  move_out(s, raw_out);
  if (s->broken) evbuffer_drain(plain, evbuffer_get_length(plain));
  return !s->broken;
}

void http_tls_end(struct http_tls_session *s, struct evbuffer *raw_out) {
  if (s->broken || s->ended || !http_tls_ready(s)) return;
  s->ended = true;
  ERR_clear_error();
  SSL_shutdown(s->ssl); /* writes close_notify; the other side's is not waited for */
  ERR_clear_error();
  move_out(s, raw_out);
}
