/* http.h — an HTTP/1.1 server behind eight verbs: listen, run, stop, reply, sse_begin/send/end, closed.
 *
 *   http_listen → http_run ──► on_head(x) ──► on_request(x) ──► http_reply | http_sse_begin, _send ..., _end
 *                                   │ may reply at once (401, 404)          └─► on_closed(x): the client left first
 *
 * The event loop, the listener and the buffered sockets are libevent's; request heads are read by http_parse.c. libevent's own evhttp is not
 * used: it ends the process (event_errx) when bytes arrive while an answer is pending and reading is on, which is what noticing a disconnect
 * needs; it takes a second Content-Length; and it knows neither a deadline for a whole request nor a limit on connections.
 *
 * Rules
 *   1. Everything here runs on one thread, the one in http_run; only http_listen, http_delete are called outside of it. Other threads reach it
 *      through a descriptor given to http_watch.
 *   2. Each exchange ends exactly once: http_reply, http_sse_end, or on_closed. After that x must not be touched.
 *   3. on_closed may come from inside http_sse_send (the reader is too slow: its buffer is full), which then returns false.
 *   4. While an answer is pending the socket is still read: end of file means that the client gave up. (So a client that shuts down its sending
 *      side early gets no long answer.) Pipelined requests wait, at most 64 KiB of them: beyond that the socket is looked at four times a second.
 *   5. What a client can make us hold is bounded: head bytes, body bytes (one and all together), output bytes, connections. A head, a body and
 *      an idle connection each have a deadline.
 *   6. An answer given before the whole request was read closes the connection, after the client had a moment to read it.
 *   7. With TLS everything above holds as well: a handshake counts as the head's time, what is not TLS is closed without an answer. TLS 1.2 and up.
 *   8. From http_listen on SIGPIPE is ignored, and the soft limit of descriptors is high enough for the connections if the hard one is.
 *   9. A reader is slow when it leaves more than output_bytes that it could have read: what is sent within one call back (http_watch, http_after)
 *      never makes it so, however much that is.
 */
#ifndef CYGNET_HTTP_H
#define CYGNET_HTTP_H

#include "base/buf.h"
#include "base/err.h"
#include "server/http_parse.h"

struct http_server;
struct http_connection;

struct http_exchange {
  struct http_head head; /* borrows from the connection */
  struct buf body;       /* whole body; the application may take it (buf_take) */
  void *user;            /* the application's */
  char request_id[129];  /* the client's own X-Request-Id (1 to 128 visible ASCII characters), else one of ours; every answer carries it */
  const char *peer;      /* the client's address */
  int64_t started_ns;    /* clock_ns() at the first byte of its head */
  size_t answer_bytes;   /* of the body, so far */
  bool no_line;          /* the application's wish: nothing in the access log */
  char extra[1024];      /* header lines that every answer of this exchange carries: http_add_header */
  struct http_connection *connection;
};

struct http_limits {     /* zero = the value in brackets */
  size_t head_bytes;     /* [32 KiB] 431 */
  size_t body_bytes;     /* [32 MiB] 413 */
  size_t bodies_bytes;   /* [256 MiB] of all requests being read or answered: 503 */
  size_t output_bytes;   /* [4 MiB] waiting for a slow reader of a stream: dropped (rule 9) */
  int connections;       /* [1024, or what the descriptors allow] then the longest idle one is closed, or 503 */
  int idle_ms;           /* [75 s] between requests */
  int head_ms;           /* [15 s] first byte of a request to the end of its head: 408 */
  int body_ms;           /* [120 s] for the body: 408 */
  int write_ms;          /* [30 s] without progress while there is something to write */
  int linger_ms;         /* [1 s] for the client to read an early answer */
  int socket_send_bytes; /* [the system's] SO_SNDBUF, for tests */
  int log_lines; /* [no access log] at level info, in a second: an exchange whose user is NULL at its end gets a line, but for no_line */
};

struct http_tls { /* PEM files; read once, at http_listen */
  const char *certificate_file, *key_file;
};

struct http_handlers {
  void (*on_head)(void *ctx, struct http_exchange *x);    /* head is there, body not; may be NULL */
  void (*on_request)(void *ctx, struct http_exchange *x); /* not called when on_head replied */
  void (*on_closed)(void *ctx, struct http_exchange *x);
  void (*on_done)(void *ctx, const struct http_exchange *x,
                  int status); /* answered, a stream to its end; for the access log; may be NULL */
  void (*on_fault)(void *ctx, int status, const char *why, struct buf *body); /* JSON body for an answer given by this layer */
  void *ctx;
};

/* host: numeric address or name; port 0: any free one; tls NULL, or both its files NULL: plain. Returns owned. */
struct http_server *http_listen(const char *host, int port, const struct http_tls *tls, const struct http_limits *limits,
                                const struct http_handlers *handlers, struct err *e);
int http_port(const struct http_server *s);
void http_run(struct http_server *s);    /* until http_stop */
void http_stop(struct http_server *s);   /* on the loop's thread */
void http_delete(struct http_server *s); /* closes what is open: on_closed for each pending exchange */

/* Call back on this loop when fd is readable, when a signal comes, after a time (once). For the life of the server. */
int http_watch(struct http_server *s, int fd, void (*fn)(void *ctx), void *ctx, struct err *e);
int http_signal(struct http_server *s, int signum, void (*fn)(void *ctx), void *ctx, struct err *e);
void http_after(struct http_server *s, int ms, void (*fn)(void *ctx), void *ctx);
void http_no_keep_alive(struct http_server *s); /* from now on every answer closes its connection; idle ones are closed: for a drain */

/* "Name: value", without a line break: the answer will carry it. A line for which extra has no room is a fault (CHECK): sizes are known. */
void http_add_header(struct http_exchange *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool http_has_header(const struct http_exchange *x, const char *name); /* one that was added */
/* type: Content-Type, or NULL for none. The body is not sent when the request was HEAD. */
void http_reply(struct http_exchange *x, int status, const char *type, const char *body, size_t n);
void http_sse_begin(struct http_exchange *x);
bool http_sse_send(struct http_exchange *x, const char *data, size_t n); /* "data: ...", without line breaks inside; false: gone (rule 3) */
bool http_sse_event(struct http_exchange *x, const char *event, const char *data,
                    size_t n); /* "event: ...", "data: ..."; as http_sse_send */
void http_sse_end(struct http_exchange *x);

struct http_counts {
  int connections, exchanges;
  size_t body_bytes;
  uint64_t n_requests, n_dropped;
};
void http_counts(const struct http_server *s, struct http_counts *out);

#endif
