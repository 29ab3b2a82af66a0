/* http_tls.h — TLS between two buffers: cipher bytes of a socket on one side, plain bytes of HTTP on the other. OpenSSL does it; no sockets here.
 *
 * libevent's own TLS bufferevent is not used: it calls back from inside evbuffer_add when a write fails, stops writing once the other side has said
 * that it sends no more, and makes a record of every small piece. With the coding apart from the socket, deadlines, limits and ends of file
 * are those of plain HTTP, by the same code.
 *
 * Rules
 *   1. TLS 1.2 and 1.3, forward secrecy and AEAD only, no renegotiation, no compression, no early data. ALPN: http/1.1.
 *   2. Certificate chain and key are PEM, read once. A key that needs a password is refused: nobody is there to type it.
 *   3. OpenSSL's error queue is empty before and after each call.
 */
#ifndef CYGNET_HTTP_TLS_H
#define CYGNET_HTTP_TLS_H

#include "base/err.h"

struct evbuffer;
struct http_tls;         /* http.h: names of files */
struct http_tls_context; /* certificate, key and rules */
struct http_tls_session; /* one connection's */

/* quiet: no warnings about dates and who may read the key. Returns owned. */
struct http_tls_context *http_tls_open(const struct http_tls *files, bool quiet, struct err *e);
void http_tls_close(struct http_tls_context *t);

struct http_tls_session *http_tls_session_new(struct http_tls_context *t); /* NULL: no memory */
void http_tls_session_delete(struct http_tls_session *s);
bool http_tls_ready(const struct http_tls_session *s); /* the handshake is over */

enum http_tls_result { HTTP_TLS_MORE, HTTP_TLS_EOF, HTTP_TLS_BAD };
/* Decodes from raw_in until it is empty or plain holds plain_max bytes (one record more at most). What the protocol itself has to say, a last alert
 * included, goes to raw_out. EOF: close_notify came. BAD: not TLS, or not to be trusted; log http_tls_reason. */
enum http_tls_result http_tls_read(struct http_tls_session *s, struct evbuffer *raw_in, struct evbuffer *plain, size_t plain_max,
                                   struct evbuffer *raw_out);
/* Encodes all of plain. False: the session is broken, plain is dropped. */
bool http_tls_write(struct http_tls_session *s, struct evbuffer *plain, struct evbuffer *raw_out);
/* "No more bytes from here": once, after the last write. */
void http_tls_end(struct http_tls_session *s, struct evbuffer *raw_out);
const char *http_tls_reason(const struct http_tls_session *s); /* why BAD */

#endif
