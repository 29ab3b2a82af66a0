/* http.c — connections: bytes in, one exchange at a time, bytes out.
 *
 *        ┌────────────── keep-alive ───────────────┐
 *   accept → HEAD → BODY → HANDLING → (reply) ─────┤
 *              └─ fault, early reply ──► CLOSING → LINGER → dead
 *
 * A connection is never freed inside its own call chain: connection_kill takes it off the live list and the reaper, an event of its own, frees it.
 *
 * Plain bytes are in c->in and c->out. Without TLS these are the socket's own buffers; with TLS http_tls.c codes between the two pairs:
 * connection_decrypt where bytes are wanted, connection_flush after each piece of an answer.
 */
#include "server/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/http_tls.h"

enum {
  INPUT_HIGH_BYTES = 64 << 10,
  PIPELINE_OUTPUT_BYTES = 256 << 10,
  WRITE_BYTES = 256 << 10,
  LOOK_AT_PEER_MS = 250,
  SPARE_DESCRIPTORS = 64
};

enum state { HEAD, BODY, HANDLING, CLOSING, LINGER, DEAD };

struct http_connection {
  struct http_server *server;
  struct http_connection *next, *prev;
  struct bufferevent *bev;
  struct http_tls_session *tls; /* NULL: plain */
  struct evbuffer *in, *out;    /* owned only with TLS */
  struct event *timer;          /* deadline of the state */
  enum state state;
  bool advancing;    /* connection_advance is on the stack */
  bool head_started; /* a byte of the next request came */
  bool saw_eof;
  bool open;       /* an exchange is pending: on_closed is owed */
  bool body_whole; /* nothing of this request is left unread */
  bool close_after, streaming, chunked_reply;
  int status;
  int64_t idle_since_ns;
  size_t scanned;
  struct buf head_bytes; /* what x.head points into */
  struct http_chunked chunked;
  size_t counted_bytes; /* of server->body_bytes */
  uint64_t turn;        /* in which this stream was last written to, */
  size_t left_bytes;    /* and what was waiting for the client when that turn began */
  char peer[INET6_ADDRSTRLEN];
  struct http_exchange x;
};

struct watcher {
  struct http_server *server;
  struct watcher *next;
  bool once;
  struct event *event;
  void (*fn)(void *ctx);
  void *ctx;
};

struct http_server {
  struct event_base *base;
  struct evconnlistener *listener;
  struct event *reaper, *relisten;
  struct http_limits limits;
  struct http_handlers handlers;
  struct http_tls_context *tls;
  struct http_connection *live, *dead;
  struct watcher *watchers;
  int n_connections, n_exchanges;
  size_t body_bytes;
  uint64_t n_requests, n_dropped;
  uint64_t turn; /* call backs of watchers so far: between two of them sockets are written to */
  bool no_keep_alive;
  uint64_t id_seed, id_count;
  struct log_limit log_limit; /* of the access log */
};

static struct timeval timeval_of_ms(int ms) { return (struct timeval){ms / 1000, (ms % 1000) * 1000}; }

/* ---- life of a connection --------------------------------------------------------------------------------------------- */

static void connection_deadline(struct http_connection *c, int ms) {
  struct timeval tv = timeval_of_ms(ms);
  if (ms > 0) evtimer_add(c->timer, &tv);
  else evtimer_del(c->timer);
}

/* One line for each exchange, up to a number in a second: a flood of requests is no flood of lines. */
static void log_exchange(struct http_connection *c) {
  struct http_server *s = c->server;
  const struct http_exchange *x = &c->x;
  if (s->limits.log_lines <= 0 || x->user || x->no_line) return;
  if (!log_has_room(&s->log_limit, s->limits.log_lines, "http")) return;
  char method[24], path[200];
  log_line(LOG_INFO, "http", "%s %s status=%d bytes=%zu ms=%.1f peer=%s id=%s",
           x->head.method.n ? str_escape(x->head.method, method, sizeof method) : "-",
           x->head.path.n ? str_escape(x->head.path, path, sizeof path) : "-", c->status, x->answer_bytes, clock_ms_since(x->started_ns),
           c->peer, x->request_id);
}

/* The exchange is over: give back what it counted. */
static void exchange_end(struct http_connection *c) {
  struct http_server *s = c->server;
  c->open = false;
  s->n_exchanges--;
  s->body_bytes -= c->counted_bytes;
  c->counted_bytes = 0;
  log_exchange(c);
  if (c->state != DEAD && s->handlers.on_done) s->handlers.on_done(s->handlers.ctx, &c->x, c->status);
  buf_free(&c->x.body);
}

static size_t output_length(const struct http_connection *c) {
  return evbuffer_get_length(bufferevent_get_output(c->bev)) + (c->tls ? evbuffer_get_length(c->out) : 0);
}

/* A last word for a connection that ends in good order; if it does not fit into the socket now, never mind. */
static void say_goodbye(struct http_connection *c) {
  struct evbuffer *out = bufferevent_get_output(c->bev);
  if (evbuffer_get_length(out)) return;
  bufferevent_disable(c->bev, EV_WRITE);
  http_tls_end(c->tls, out);
  size_t n = evbuffer_get_length(out);
  if (n) send(bufferevent_getfd(c->bev), evbuffer_pullup(out, -1), n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void connection_kill(struct http_connection *c) {
  struct http_server *s = c->server;
  if (c->state == DEAD) return;
  c->state = DEAD;
  bool orderly = !c->open; /* a goodbye behind half an answer would make a whole one of it */
  if (c->open) {
    s->n_dropped++;
    c->status = 499;
    s->handlers.on_closed(s->handlers.ctx, &c->x);
    exchange_end(c);
  }
  s->body_bytes -= c->counted_bytes;
  c->counted_bytes = 0;
  evtimer_del(c->timer);
  if (c->tls) {
    if (orderly) say_goodbye(c);
    http_tls_session_delete(c->tls);
    evbuffer_free(c->in);
    evbuffer_free(c->out);
    c->tls = NULL;
  }
  c->in = c->out = NULL;
  bufferevent_free(c->bev); /* closes the socket */
  c->bev = NULL;
  if (c->prev) c->prev->next = c->next;
  else s->live = c->next;
  if (c->next) c->next->prev = c->prev;
  c->next = s->dead;
  s->dead = c;
  s->n_connections--;
  event_active(s->reaper, EV_TIMEOUT, 0);
}

static void reap(evutil_socket_t fd, short what, void *ctx) {
  struct http_server *s = ctx;
  (void)fd, (void)what;
  while (s->dead) {
    struct http_connection *c = s->dead;
    s->dead = c->next;
    event_free(c->timer);
    buf_free(&c->head_bytes);
    buf_free(&c->x.body);
    free(c);
  }
}

/* Everything is written: say so to the client, and give it a moment to read before the socket goes. */
static void connection_linger(struct http_connection *c) {
  if (c->saw_eof) {
    connection_kill(c);
    return;
  }
  c->state = LINGER;
  shutdown(bufferevent_getfd(c->bev), SHUT_WR);
  struct evbuffer *in = bufferevent_get_input(c->bev);
  evbuffer_drain(in, evbuffer_get_length(in));
  connection_deadline(c, c->server->limits.linger_ms);
}

/* libevent's high watermark alone would not do: while the buffer stays full it calls back again and again. */
static void connection_read(struct http_connection *c, bool on) {
  bool is_on = bufferevent_get_enabled(c->bev) & EV_READ;
  if (on && !is_on) bufferevent_enable(c->bev, EV_READ);
  if (!on && is_on) bufferevent_disable(c->bev, EV_READ);
}

static void connection_close_when_written(struct http_connection *c) {
  c->state = CLOSING;
  connection_read(c, true);
  struct evbuffer *in = bufferevent_get_input(c->bev);
  evbuffer_drain(in, evbuffer_get_length(in)); /* so that reading goes on and an end of file is seen */
  connection_deadline(c, 0);
  if (c->tls) http_tls_end(c->tls, bufferevent_get_output(c->bev));
  if (output_length(c) == 0) connection_linger(c);
}

/* What was put into c->out goes on its way. False: it cannot, the TLS session is broken. */
static bool connection_flush(struct http_connection *c) {
  return !c->tls || http_tls_write(c->tls, c->out, bufferevent_get_output(c->bev));
}

/* More plain bytes in c->in? May end the connection. */
static bool connection_decrypt(struct http_connection *c) {
  if (!c->tls || c->saw_eof || (c->state != HEAD && c->state != BODY && c->state != HANDLING)) return false;
  if (output_length(c) > PIPELINE_OUTPUT_BYTES) return false; /* it has to read, too: TLS itself answers some of what is sent */
  size_t had = evbuffer_get_length(c->in);
  bool was_ready = http_tls_ready(c->tls);
  enum http_tls_result r = http_tls_read(c->tls, bufferevent_get_input(c->bev), c->in, INPUT_HIGH_BYTES, bufferevent_get_output(c->bev));
  if (!was_ready && http_tls_ready(c->tls) && !c->head_started) {
    c->idle_since_ns = clock_ns();
    connection_deadline(c, c->server->limits.idle_ms);
  }
  if (r == HTTP_TLS_BAD) {
    log_line(LOG_DEBUG, "tls", "%s: %s", c->peer, http_tls_reason(c->tls));
    if (c->open) connection_kill(c);
    else connection_close_when_written(c); /* an alert says why */
    return false;
  }
  if (r == HTTP_TLS_EOF) {
    c->saw_eof = true;
    if (c->state == HANDLING) {
      connection_kill(c);
      return false;
    }
  }
  return evbuffer_get_length(c->in) > had;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static void put_head(struct http_connection *c, int status, const char *type) {
  char date[40];
  time_t now = time(NULL);
  struct tm tm;
  gmtime_r(&now, &tm);
  strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
  struct evbuffer *out = c->out;
  evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_reason(status), date);
  if (type) evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
  evbuffer_add_printf(out, "X-Content-Type-Options: nosniff\r\nX-Request-Id: %s\r\n%sConnection: %s\r\n", c->x.request_id, c->x.extra,
                      c->close_after ? "close" : "keep-alive");
  c->status = status;
}

static void connection_advance(struct http_connection *c);

/* After the last byte of an answer. */
static void connection_next(struct http_connection *c) {
  if (c->close_after) {
    connection_close_when_written(c);
    return;
  }
  c->state = HEAD;
  c->head_started = false;
  c->scanned = 0;
  c->idle_since_ns = clock_ns();
  connection_deadline(c, c->server->limits.idle_ms);
  connection_advance(c);
}

void http_add_header(struct http_exchange *x, const char *fmt, ...) {
  size_t had = strlen(x->extra), room = sizeof x->extra - had;
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(x->extra + had, room, fmt, args);
  va_end(args);
  CHECK(n > 0 && (size_t)n + sizeof "\r\n" <= room);
  memcpy(x->extra + had + n, "\r\n", sizeof "\r\n");
}

bool http_has_header(const struct http_exchange *x, const char *name) {
  size_t n = strlen(name);
  for (const char *line = x->extra; *line; line = strstr(line, "\r\n") + 2)
    if (strncasecmp(line, name, n) == 0 && line[n] == ':') return true;
  return false;
}

void http_reply(struct http_exchange *x, int status, const char *type, const char *body, size_t n) {
  struct http_connection *c = x->connection;
  CHECK(c->open && !c->streaming);
  if (!c->body_whole || !c->x.head.keep_alive || c->server->no_keep_alive || c->saw_eof) c->close_after = true;
  put_head(c, status, type);
  if (status == 204) evbuffer_add(c->out, "\r\n", 2);
  else {
    evbuffer_add_printf(c->out, "Content-Length: %zu\r\n\r\n", n);
    if (!str_is(x->head.method, "HEAD")) {
      evbuffer_add(c->out, body, n);
      x->answer_bytes = n;
    }
  }
  if (!connection_flush(c)) c->close_after = c->saw_eof = true;
  exchange_end(c);
  connection_next(c);
}

/* Rule 9: what the client could have read by now. */
static size_t left_unread(struct http_connection *c) {
  if (c->turn != c->server->turn) {
    c->turn = c->server->turn;
    c->left_bytes = output_length(c);
  }
  return c->left_bytes;
}

void http_sse_begin(struct http_exchange *x) {
  struct http_connection *c = x->connection;
  CHECK(c->open && !c->streaming);
  left_unread(c); /* our own head does not count */
  c->streaming = true;
  c->chunked_reply = x->head.minor == 1;
  if (!c->chunked_reply || !x->head.keep_alive || c->server->no_keep_alive) c->close_after = true;
  put_head(c, 200, "text/event-stream; charset=utf-8");
  evbuffer_add_printf(c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s\r\n",
                      c->chunked_reply ? "Transfer-Encoding: chunked\r\n" : "");
  connection_flush(c); /* if it fails, the first piece of the answer says so */
}

/* event NULL: data alone. */
static bool sse_put(struct http_exchange *x, const char *event, const char *data, size_t n) {
  struct http_connection *c = x->connection;
  struct evbuffer *out = c->out;
  size_t n_event = event ? strlen("event: \n") + strlen(event) : 0;
  size_t whole = n_event + strlen("data: \n\n") + n;
  CHECK(c->open && c->streaming);
  size_t left = left_unread(c);
  if (left > c->server->limits.output_bytes) {
    log_line(LOG_WARN, "http", "a client reads too slowly: dropped with %zu bytes waiting, expected at most %zu", left,
             c->server->limits.output_bytes);
    connection_kill(c);
    return false;
  }
  if (c->chunked_reply) evbuffer_add_printf(out, "%zx\r\n", whole);
  if (event) evbuffer_add_printf(out, "event: %s\n", event);
  evbuffer_add(out, "data: ", 6);
  evbuffer_add(out, data, n);
  evbuffer_add(out, "\n\n", 2);
  if (c->chunked_reply) evbuffer_add(out, "\r\n", 2);
  x->answer_bytes += whole;
  if (connection_flush(c)) return true;
  connection_kill(c);
  return false;
}

bool http_sse_send(struct http_exchange *x, const char *data, size_t n) { return sse_put(x, NULL, data, n); }
bool http_sse_event(struct http_exchange *x, const char *event, const char *data, size_t n) { return sse_put(x, event, data, n); }

void http_sse_end(struct http_exchange *x) {
  struct http_connection *c = x->connection;
  CHECK(c->open && c->streaming);
  if (c->chunked_reply) evbuffer_add(c->out, "0\r\n\r\n", 5);
  c->streaming = false;
  if (!connection_flush(c)) c->saw_eof = true;
  if (c->server->no_keep_alive || c->saw_eof) c->close_after = true;
  exchange_end(c);
  connection_next(c);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static void new_request_id(struct http_server *s, char *out, size_t room) {
  uint32_t r[4];
  rng_block(s->id_seed, ++s->id_count, 0, r);
  snprintf(out, room, "%08x%08x%08x%08x", r[0], r[1], r[2], r[3]);
}

/* The client's own, so that its logs and ours can be held together, if it can stand in a header and in a line of a log. */
static void put_request_id(struct http_connection *c) {
  struct http_server *s = c->server;
  char *id = c->x.request_id;
  int count;
  struct str given = http_head_find(&c->x.head, "X-Request-Id", &count);
  bool sane = count == 1 && given.n > 0 && given.n < sizeof c->x.request_id;
  for (size_t i = 0; sane && i < given.n; i++) sane = given.p[i] > ' ' && given.p[i] < 0x7f;
  if (sane) {
    memcpy(id, given.p, given.n);
    id[given.n] = 0;
  } else {
    new_request_id(s, id, sizeof c->x.request_id);
  }
}

static void exchange_begin(struct http_connection *c) {
  struct http_server *s = c->server;
  c->open = true;
  c->body_whole = false;
  c->close_after = c->streaming = c->chunked_reply = false;
  c->x.user = NULL;
  c->x.extra[0] = 0;
  c->x.connection = c;
  c->x.peer = c->peer;
  c->x.answer_bytes = 0;
  c->x.no_line = false;
  put_request_id(c);
  c->status = 0;
  s->n_exchanges++;
  s->n_requests++;
}

/* An answer of this layer; the connection closes after it. */
static void fault_reply(struct http_connection *c, int status, const char *why) {
  struct buf body;
  buf_init(&body, 4096);
  if (c->server->handlers.on_fault) c->server->handlers.on_fault(c->server->handlers.ctx, status, why, &body);
  if (!c->open) exchange_begin(c);
  if (status == 503 && !http_has_header(&c->x, "Retry-After")) http_add_header(&c->x, "Retry-After: 1");
  c->body_whole = false; /* what follows is not trusted */
  http_reply(&c->x, status, "application/json", buf_cstr(&body), body.len);
  buf_free(&body);
}

/* A head that cannot be read has no method or path to log. */
static void head_fault(struct http_connection *c, int status, const char *why) {
  c->x.head = (struct http_head){.content_length = -1};
  c->x.started_ns = clock_ns();
  fault_reply(c, status, why);
}

static bool read_head(struct http_connection *c) {
  struct http_server *s = c->server;
  struct evbuffer *in = c->in;
  struct http_fault fault;
  if (output_length(c) > PIPELINE_OUTPUT_BYTES) return false; /* many small requests at once: the write callback goes on */
  size_t n = evbuffer_get_length(in);
  if (n && !c->head_started) {
    c->head_started = true;
    c->x.started_ns = clock_ns();
    connection_deadline(c, s->limits.head_ms);
  }
  const char *p = n ? (const char *)evbuffer_pullup(in, -1) : NULL;
  if (c->scanned == 0 && n >= 2 && p[0] == '\r' && p[1] == '\n') { /* an empty line before a request is forgiven */
    evbuffer_drain(in, 2);
    return true;
  }
  ptrdiff_t length = n ? http_head_length(p, n, &c->scanned, &fault) : 0;
  if (length < 0) head_fault(c, fault.status, fault.why);
  else if (length > (ptrdiff_t)s->limits.head_bytes || (length == 0 && n >= s->limits.head_bytes))
    head_fault(c, 431, "the request head is too large");
  if (length <= 0 || c->state != HEAD) return false;

  buf_clear(&c->head_bytes);
  buf_append(&c->head_bytes, p, (size_t)length);
  evbuffer_drain(in, (size_t)length);
  if (http_head_parse(c->head_bytes.data, c->head_bytes.len, &c->x.head, &fault)) {
    head_fault(c, fault.status, fault.why);
    return false;
  }
  exchange_begin(c);
  c->state = BODY;
  const struct http_head *h = &c->x.head;
  c->body_whole = !h->chunked && h->content_length <= 0;
  if (s->handlers.on_head) s->handlers.on_head(s->handlers.ctx, &c->x);
  if (c->state != BODY || !c->open) return c->state == HEAD;
  if (h->content_length > (int64_t)s->limits.body_bytes) {
    fault_reply(c, 413, "the request body is larger than this server accepts");
    return false;
  }
  if (h->content_length > 0 && s->body_bytes + (size_t)h->content_length > s->limits.bodies_bytes) {
    fault_reply(c, 503, "too many large requests are being read; try again later");
    return false;
  }
  buf_init(&c->x.body, s->limits.body_bytes);
  c->chunked = (struct http_chunked){0};
  if (h->expect_continue && !c->body_whole && evbuffer_get_length(in) == 0) {
    evbuffer_add_printf(c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    connection_flush(c);
  }
  connection_deadline(c, s->limits.body_ms);
  return true;
}

static bool read_body(struct http_connection *c) {
  struct http_server *s = c->server;
  struct evbuffer *in = c->in;
  struct buf *body = &c->x.body;
  size_t had = body->len;
  while (!c->body_whole && evbuffer_get_length(in)) {
    struct evbuffer_iovec v;
    evbuffer_peek(in, -1, NULL, &v, 1);
    size_t used = v.iov_len;
    if (c->x.head.chunked) {
      enum http_chunked_result r = http_chunked_feed(&c->chunked, v.iov_base, v.iov_len, &used, body);
      if (r == HTTP_CHUNKED_BAD) fault_reply(c, 400, "the chunked body is malformed");
      if (r == HTTP_CHUNKED_TOO_LARGE) fault_reply(c, 413, "the request body is larger than this server accepts");
      if (c->state != BODY) return false;
      c->body_whole = r == HTTP_CHUNKED_DONE;
    } else {
      size_t left = (size_t)c->x.head.content_length - body->len;
      used = MIN(used, left);
      buf_append(body, v.iov_base, used);
      c->body_whole = body->len == (size_t)c->x.head.content_length;
    }
    evbuffer_drain(in, used);
  }
  c->counted_bytes += body->len - had;
  s->body_bytes += body->len - had;
  if (s->body_bytes > s->limits.bodies_bytes) {
    fault_reply(c, 503, "too many large requests are being read; try again later");
    return false;
  }
  if (!c->body_whole) return false;
  c->state = HANDLING;
  connection_deadline(c, 0);
  s->handlers.on_request(s->handlers.ctx, &c->x);
  return c->state == HEAD;
}

static void connection_advance(struct http_connection *c) {
  if (c->advancing) return; /* an answer given from inside a handler: the loop below goes on */
  c->advancing = true;
  for (bool more = true; more;) {
    switch (c->state) {
    case HEAD: more = read_head(c); break;
    case BODY: more = read_body(c); break;
    default: more = false;
    }
    if (!more) more = connection_decrypt(c);
  }
  c->advancing = false;
  if (c->state == HEAD || c->state == HANDLING) {
    bool full = evbuffer_get_length(c->in) >= INPUT_HIGH_BYTES;
    connection_read(c, !full);
    if (full && c->state == HANDLING) connection_deadline(c, LOOK_AT_PEER_MS);
  }
  if (c->saw_eof && (c->state == HEAD || c->state == BODY)) {
    if (c->state == BODY || output_length(c) == 0) connection_kill(c);
    else connection_close_when_written(c);
  }
}

static void on_readable(struct bufferevent *bev, void *ctx) {
  struct http_connection *c = ctx;
  if (c->state == CLOSING || c->state == LINGER) {
    struct evbuffer *in = bufferevent_get_input(bev);
    evbuffer_drain(in, evbuffer_get_length(in));
  } else {
    connection_advance(c);
  }
}

static void on_written(struct bufferevent *bev, void *ctx) {
  struct http_connection *c = ctx;
  (void)bev;
  if (c->state == CLOSING) connection_linger(c);
  else if (c->state == HEAD || c->tls) connection_advance(c); /* what waited for room (PIPELINE_OUTPUT_BYTES) goes on */
}

static void on_event(struct bufferevent *bev, short what, void *ctx) {
  struct http_connection *c = ctx;
  (void)bev;
  if ((what & BEV_EVENT_EOF) && !(what & BEV_EVENT_ERROR)) {
    c->saw_eof = true;
    if (c->state == CLOSING && output_length(c)) return; /* it may still be reading */
    if (c->state == HEAD || c->state == BODY) {
      connection_advance(c);
      return;
    }
  }
  connection_kill(c);
}

/* For a socket that is not read because enough requests wait in the buffer: its end of file stands behind bytes that nobody fetches. */
static bool peer_is_gone(const struct http_connection *c) {
  struct pollfd p = {.fd = bufferevent_getfd(c->bev), .events = POLLRDHUP};
  return poll(&p, 1, 0) > 0;
}

static void on_deadline(evutil_socket_t fd, short what, void *ctx) {
  struct http_connection *c = ctx;
  (void)fd, (void)what;
  if (c->tls && !http_tls_ready(c->tls)) connection_kill(c);
  else if (c->state == HANDLING && !peer_is_gone(c)) connection_deadline(c, LOOK_AT_PEER_MS);
  else if (c->state == HEAD && !c->head_started && output_length(c))
    connection_deadline(c, c->server->limits.idle_ms); /* write_ms watches */
  else if (c->state == HEAD && c->head_started) head_fault(c, 408, "the request head did not arrive in time");
  else if (c->state == BODY) fault_reply(c, 408, "the request body did not arrive in time");
  else connection_kill(c);
}

/* ---- accepting -------------------------------------------------------------------------------------------------------- */

static struct http_connection *longest_idle(struct http_server *s) {
  struct http_connection *found = NULL;
  for (struct http_connection *c = s->live; c; c = c->next)
    if (c->state == LINGER || (c->state == HEAD && !c->head_started && output_length(c) == 0))
      if (!found || c->idle_since_ns < found->idle_since_ns) found = c;
  return found;
}

/* A 503 that fits into any socket's buffer; its request is not read. With TLS there is no way to say it. */
static void refuse_connection(struct http_server *s, int fd) {
  struct buf body, answer;
  char id[33];
  new_request_id(s, id, sizeof id);
  buf_init(&body, 1024);
  buf_init(&answer, 2048);
  if (s->handlers.on_fault) s->handlers.on_fault(s->handlers.ctx, 503, "too many connections are open; try again later", &body);
  buf_printf(&answer, "HTTP/1.1 503 %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nRetry-After: 1\r\n", http_reason(503), id);
  buf_printf(&answer, "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", body.len, buf_cstr(&body));
  if (!s->tls && send(fd, answer.data, answer.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    log_line(LOG_DEBUG, "http", "refused a connection: %s", strerror(errno));
  close(fd);
  buf_free(&body);
  buf_free(&answer);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int address_bytes, void *ctx) {
  struct http_server *s = ctx;
  struct http_tls_session *tls = NULL;
  (void)listener;
  if (s->n_connections >= s->limits.connections) {
    struct http_connection *idle = longest_idle(s);
    if (!idle) {
      refuse_connection(s, fd);
      return;
    }
    connection_kill(idle);
  }
  if (s->tls && !(tls = http_tls_session_new(s->tls))) {
    log_line(LOG_WARN, "tls", "no memory for one more connection");
    close(fd);
    return;
  }
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (s->limits.socket_send_bytes) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &s->limits.socket_send_bytes, sizeof s->limits.socket_send_bytes);
  struct http_connection *c = xcalloc(1, sizeof *c);
  c->server = s;
  c->state = HEAD;
  c->idle_since_ns = clock_ns();
  c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
  c->timer = evtimer_new(s->base, on_deadline, c);
  CHECK(c->bev && c->timer);
  c->tls = tls;
  c->in = tls ? evbuffer_new() : bufferevent_get_input(c->bev);
  c->out = tls ? evbuffer_new() : bufferevent_get_output(c->bev);
  CHECK(c->in && c->out);
  if (getnameinfo(address, (socklen_t)address_bytes, c->peer, sizeof c->peer, NULL, 0, NI_NUMERICHOST)) strcpy(c->peer, "?");
  buf_init(&c->head_bytes, s->limits.head_bytes);
  bufferevent_setcb(c->bev, on_readable, on_written, on_event, c);
  bufferevent_setwatermark(c->bev, EV_READ, 0, INPUT_HIGH_BYTES);
  bufferevent_set_max_single_write(c->bev, WRITE_BYTES); /* at once; libevent's own 16 KiB would let a fast reader look slow */
  struct timeval write_time = timeval_of_ms(s->limits.write_ms);
  bufferevent_set_timeouts(c->bev, NULL, &write_time);
  c->next = s->live;
  if (s->live) s->live->prev = c;
  s->live = c;
  s->n_connections++;
  connection_deadline(c, tls ? s->limits.head_ms : s->limits.idle_ms);
  bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

/* Out of descriptors, most likely: an idle connection gives way. Trying again at once would only burn the processor. */
static void on_accept_error(struct evconnlistener *listener, void *ctx) {
  struct http_server *s = ctx;
  struct timeval tv = timeval_of_ms(100);
  log_line(LOG_WARN, "http", "cannot accept a connection: %s", strerror(errno));
  struct http_connection *idle = longest_idle(s);
  if (idle) connection_kill(idle);
  evconnlistener_disable(listener);
  evtimer_add(s->relisten, &tv);
}
static void on_relisten(evutil_socket_t fd, short what, void *ctx) {
  (void)fd, (void)what;
  evconnlistener_enable(((struct http_server *)ctx)->listener);
}

/* ---- server ----------------------------------------------------------------------------------------------------------- */

static void limits_fill(struct http_limits *l) {
  if (!l->head_bytes) l->head_bytes = 32 << 10;
  l->head_bytes = MIN(l->head_bytes, (size_t)INPUT_HIGH_BYTES);
  if (!l->body_bytes) l->body_bytes = 32 << 20;
  if (!l->bodies_bytes) l->bodies_bytes = 256 << 20;
  if (!l->output_bytes) l->output_bytes = 4 << 20;
  if (!l->connections) l->connections = 1024;
  if (!l->idle_ms) l->idle_ms = 75000;
  if (!l->head_ms) l->head_ms = 15000;
  if (!l->body_ms) l->body_ms = 120000;
  if (!l->write_ms) l->write_ms = 30000;
  if (!l->linger_ms) l->linger_ms = 1000;
}

/* As many connections as there are descriptors for, so that it is the limit that is reached first: it makes room, a failed accept does not. */
static void fit_descriptors(struct http_limits *l) {
  struct rlimit r;
  if (getrlimit(RLIMIT_NOFILE, &r)) return;
  rlim_t wanted = (rlim_t)l->connections + SPARE_DESCRIPTORS;
  if (r.rlim_cur < wanted && r.rlim_cur < r.rlim_max) {
    struct rlimit more = {MIN(wanted, r.rlim_max), r.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) r = more;
  }
  if (r.rlim_cur >= wanted) return;
  l->connections = r.rlim_cur > 2 * SPARE_DESCRIPTORS ? (int)(r.rlim_cur - SPARE_DESCRIPTORS) : MAX(1, (int)(r.rlim_cur / 2));
}

static int bind_first(struct http_server *s, const char *host, int port, struct err *e) {
  char port_text[16];
  snprintf(port_text, sizeof port_text, "%d", port);
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
  int r = getaddrinfo(host, port_text, &hints, &list);
  if (r) return err_set(e, ERR_BAD_INPUT, "cannot listen on %s port %d: %s", host, port, gai_strerror(r));
  unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
  int failed = 0;
  for (const struct addrinfo *a = list; a && !s->listener; a = a->ai_next) {
    s->listener = evconnlistener_new_bind(s->base, on_accept, s, flags, 512, a->ai_addr, (int)a->ai_addrlen);
    if (!s->listener) failed = errno;
  }
  freeaddrinfo(list);
  if (!s->listener) return err_set(e, ERR_IO, "cannot listen on %s port %d: %s", host, port, strerror(failed));
  evconnlistener_set_error_cb(s->listener, on_accept_error);
  return 0;
}

struct http_server *http_listen(const char *host, int port, const struct http_tls *tls, const struct http_limits *limits,
                                const struct http_handlers *handlers, struct err *e) {
  struct http_server *s = xcalloc(1, sizeof *s);
  signal(SIGPIPE, SIG_IGN);
  s->handlers = *handlers;
  if (limits) s->limits = *limits;
  limits_fill(&s->limits);
  fit_descriptors(&s->limits);
  s->id_seed = rng_system_seed();
  if (tls && (tls->certificate_file || tls->key_file) && !(s->tls = http_tls_open(tls, false, e))) goto fail;
  s->base = event_base_new();
  if (!s->base) {
    err_set(e, ERR_IO, "cannot make an event loop");
    goto fail;
  }
  s->reaper = event_new(s->base, -1, 0, reap, s);
  s->relisten = evtimer_new(s->base, on_relisten, s);
  CHECK(s->reaper && s->relisten);
  if (bind_first(s, host, port, e)) goto fail;
  return s;
fail:
  http_delete(s);
  return NULL;
}

int http_port(const struct http_server *s) {
  struct sockaddr_storage a = {0};
  socklen_t n = sizeof a;
  getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&a, &n);
  if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
  return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

void http_run(struct http_server *s) { event_base_dispatch(s->base); }
void http_stop(struct http_server *s) { event_base_loopbreak(s->base); }

static void watcher_fire(evutil_socket_t fd, short what, void *ctx) {
  struct watcher w = *(struct watcher *)ctx;
  (void)fd, (void)what;
  w.server->turn++;
  if (w.once) {
    struct watcher **at = &w.server->watchers;
    while (*at != ctx) at = &(*at)->next;
    *at = w.next;
    event_free(w.event);
    free(ctx);
  }
  w.fn(w.ctx);
}

static int watcher_add(struct http_server *s, int fd, short what, const struct timeval *after, void (*fn)(void *ctx), void *ctx) {
  struct watcher *w = xcalloc(1, sizeof *w);
  *w = (struct watcher){.server = s, .once = what == EV_TIMEOUT, .fn = fn, .ctx = ctx};
  w->event = event_new(s->base, fd, what == EV_TIMEOUT ? 0 : what, watcher_fire, w);
  if (!w->event || event_add(w->event, after)) {
    if (w->event) event_free(w->event);
    free(w);
    return -1;
  }
  w->next = s->watchers;
  s->watchers = w;
  return 0;
}

int http_watch(struct http_server *s, int fd, void (*fn)(void *ctx), void *ctx, struct err *e) {
  if (watcher_add(s, fd, EV_READ | EV_PERSIST, NULL, fn, ctx)) return err_set(e, ERR_IO, "cannot watch a descriptor");
  return 0;
}
int http_signal(struct http_server *s, int signum, void (*fn)(void *ctx), void *ctx, struct err *e) {
  if (watcher_add(s, signum, EV_SIGNAL | EV_PERSIST, NULL, fn, ctx)) return err_set(e, ERR_IO, "cannot catch signal %d", signum);
  return 0;
}
void http_after(struct http_server *s, int ms, void (*fn)(void *ctx), void *ctx) {
  struct timeval tv = timeval_of_ms(ms);
  CHECK(watcher_add(s, -1, EV_TIMEOUT, &tv, fn, ctx) == 0);
}

void http_no_keep_alive(struct http_server *s) {
  s->no_keep_alive = true;
  for (struct http_connection *c = s->live, *next; c; c = next) {
    next = c->next;
    if (c->state == HEAD && !c->head_started && output_length(c) == 0) connection_kill(c);
  }
}

void http_counts(const struct http_server *s, struct http_counts *out) {
  *out = (struct http_counts){s->n_connections, s->n_exchanges, s->body_bytes, s->n_requests, s->n_dropped};
}

void http_delete(struct http_server *s) {
  if (!s) return;
  if (s->listener) evconnlistener_free(s->listener);
  while (s->live) connection_kill(s->live);
  reap(-1, 0, s);
  while (s->watchers) {
    struct watcher *w = s->watchers;
    s->watchers = w->next;
    event_free(w->event);
    free(w);
  }
  if (s->reaper) event_free(s->reaper);
  if (s->relisten) event_free(s->relisten);
  if (s->base) event_base_free(s->base);
  http_tls_close(s->tls);
  free(s);
}
