/* load.c — the clock, the sockets, and one call for each request on its way. */
#include "load/load.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "files/json.h"
#include "load/dialect.h"
#include "load/sse.h"

enum { EVENT_BYTES_MAX = 16 << 20, REFUSAL_BYTES_MAX = 1 << 16, LANE_GAP = 3, SHOW_NS = 200000000, BEGIN_AT_ONCE = 16, FILES_SPARE = 64 };

struct drive { /* a run while it runs */
  struct load_run *run;
  CURLM *multi;
  int epoll, timer; /* timer: wakes epoll for the next conversation or what libcurl waits for */
  int64_t curl_ns;  /* when libcurl wants to be called; -1: not */
  int64_t start_ns;
  struct buf *bodies;                /* [work->n]; of first turns, ready to be sent */
  struct dialect_history *histories; /* [work->n]; at the turn that is next or on its way */
  int *opens, n_opens, at;           /* first turns in order, and the next of them */
  int64_t *due_ns;                   /* [n_opens] */
  struct call *calls;                /* on their way, in a list */
  int under_way, n_done, n_failed;
  int64_t tokens, shown_ns;
  bool finished; /* at least one call has ended since somebody looked */
};

struct call {
  struct transfer t;
  struct drive *d;
  struct call *next, **back;
  int number;
  struct sse sse;
  struct buf answer; /* only where a turn follows */
  int64_t now_ns;    /* when the bytes that are being read came */
  bool ended;        /* the answer said why it ends, or that it does: */
  bool done;         /* "[DONE]" came */
  bool wrong;        /* the stream was no use: result->kind says why */
};

static int64_t now(const struct drive *d) { return clock_ns() - d->start_ns; }
static struct load_result *result_of(const struct call *c) { return &c->d->run->results[c->number]; }
static const struct load_request *request_of(const struct call *c) { return &c->d->run->work->v[c->number]; }

double load_gap(uint64_t seed, int i, double rate) { return isinf(rate) ? 0 : -log1p(-rng_uniform(seed, (uint64_t)i, LANE_GAP)) / rate; }

/* ---- failures ------------------------------------------------------------------------------------------------------------------------ */

/* The first reason counts. */
static void fail(struct load_result *r, const char *kind, const char *message) {
  if (r->message) return;
  snprintf(r->kind, sizeof r->kind, "%s", kind);
  r->message = xstrdup(message);
}

static const char *kind_of(CURLcode code) {
  switch (code) {
  case CURLE_COULDNT_CONNECT:
  case CURLE_COULDNT_RESOLVE_HOST:
  case CURLE_COULDNT_RESOLVE_PROXY:
  case CURLE_SSL_CONNECT_ERROR: return "no connection";
  case CURLE_OPERATION_TIMEDOUT: return "timeout";
  case CURLE_GOT_NOTHING:
  case CURLE_RECV_ERROR:
  case CURLE_SEND_ERROR:
  case CURLE_PARTIAL_FILE: return "hang-up";
  case CURLE_WRITE_ERROR: return "too large";
  default: return "transfer";
  }
}

/* Turns that can no longer be sent, because they contain an answer that did not come. */
static void fail_rest(struct drive *d, int number) {
  for (int i = d->run->work->v[number].next; i >= 0; i = d->run->work->v[i].next) {
    struct load_result *r = &d->run->results[i];
    r->state = LOAD_FAILED;
    r->due_ns = r->sent_ns = r->last_ns = now(d);
    fail(r, "no turn before", "the turn before it failed");
    d->n_failed++;
  }
}

/* ---- bytes that come ----------------------------------------------------------------------------------------------------------------- */

static void mark(struct load_result *r, int64_t ns, int tokens) {
  if (r->n_marks == r->cap_marks) r->marks = xrealloc(r->marks, (size_t)(r->cap_marks = MAX(16, 2 * r->cap_marks)) * sizeof *r->marks);
  r->marks[r->n_marks++] = (struct load_mark){ns, tokens};
}

/* A piece counts when it has text; after the first text also when it has tokens alone, where each piece tells them. */
static bool counts(const struct load_result *r, const struct dialect_piece *p, int before) {
  bool more = p->has_usage && p->completion_tokens > before;
  if (p->text) return !p->whole || !p->has_usage || more || r->n_marks == 0;
  return more && r->n_marks && r->marks[r->n_marks - 1].tokens >= 0;
}

static void take_piece(struct call *c, const struct dialect_piece *p) {
  struct load_result *r = result_of(c);
  int before = r->completion_tokens;
  if (counts(r, p, before)) {
    if (r->n_marks == 0) r->first_ns = c->now_ns;
    mark(r, c->now_ns, p->has_usage ? p->completion_tokens : -1);
    c->d->tokens += p->has_usage ? MAX(p->completion_tokens - before, 0) : 1;
  }
  if (p->has_usage) {
    r->has_usage = true;
    r->prompt_tokens = p->prompt_tokens;
    r->cached_tokens = MAX(r->cached_tokens, p->cached_tokens);
    r->completion_tokens = p->completion_tokens;
  }
  if (p->text && request_of(c)->next >= 0) {
    if (p->whole && p->n_text >= c->answer.len && !memcmp(p->text, buf_cstr(&c->answer), c->answer.len)) buf_clear(&c->answer);
    buf_append(&c->answer, p->text, p->n_text);
  }
  c->ended = c->ended || p->ended;
}

/* The message is somebody else's text. */
static void wrong(struct call *c, const char *kind, const char *message) {
  char shown[300];
  fail(result_of(c), kind, str_escape(str_c(message), shown, sizeof shown));
  c->wrong = true;
}

static void on_event(void *ctx, const char *data, size_t n) {
  struct call *c = ctx;
  struct dialect_piece p;
  if (c->wrong) return;
  if (!strcmp(data, "[DONE]")) {
    c->ended = c->done = true;
    return;
  }
  json_t *event = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
  if (!event || !dialect_read(c->d->run->settings->api, event, &p)) wrong(c, "garbage", data);
  else if (p.error) wrong(c, "stream error", p.error);
  else if (p.aborted) wrong(c, "aborted", "the server gave the answer up");
  else take_piece(c, &p);
  json_decref(event);
}

static size_t on_bytes(char *p, size_t size, size_t n, void *ctx) {
  struct call *c = ctx;
  long status = 0;
  c->now_ns = now(c->d);
  result_of(c)->last_ns = c->now_ns;
  curl_easy_getinfo(c->t.curl, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) {
    if (c->t.reply.len < REFUSAL_BYTES_MAX) buf_append(&c->t.reply, p, size * n);
    return size * n;
  }
  if (!sse_feed(&c->sse, p, size * n, on_event, c)) wrong(c, "too large", "an event of more than 16 MiB");
  return c->wrong ? 0 : size * n; /* 0: libcurl hangs up */
}

/* ---- one request --------------------------------------------------------------------------------------------------------------------- */

static int on_timer(CURLM *multi, long timeout_ms, void *ctx) {
  struct drive *d = ctx;
  (void)multi;
  d->curl_ns = timeout_ms < 0 ? -1 : now(d) + timeout_ms * INT64_C(1000000);
  return 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known) {
  struct drive *d = ctx;
  struct epoll_event ev = {.events = (what & CURL_POLL_IN ? (uint32_t)EPOLLIN : 0) | (what & CURL_POLL_OUT ? (uint32_t)EPOLLOUT : 0),
                           .data.fd = fd};
  (void)easy;
  if (what == CURL_POLL_REMOVE) {
    epoll_ctl(d->epoll, EPOLL_CTL_DEL, fd, NULL);
    return 0;
  }
  if (epoll_ctl(d->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) && errno == EEXIST) epoll_ctl(d->epoll, EPOLL_CTL_MOD, fd, &ev);
  curl_multi_assign(d->multi, fd, d);
  return 0;
}

static void call_curl(struct drive *d, curl_socket_t fd, int what) {
  int running;
  if (fd == CURL_SOCKET_TIMEOUT) d->curl_ns = -1;
  CHECK(curl_multi_socket_action(d->multi, fd, what, &running) == CURLM_OK);
  d->finished = true;
}

static void send_request(struct drive *d, int number, struct buf *body, int64_t due_ns) {
  struct call *c = xcalloc(1, sizeof *c);
  const struct load_settings *s = d->run->settings;
  struct load_result *r = &d->run->results[number];
  c->d = d;
  c->number = number;
  sse_init(&c->sse, EVENT_BYTES_MAX);
  transfer_open(&c->t, s->u, dialect_path(s->api), body);
  curl_easy_setopt(c->t.curl, CURLOPT_WRITEFUNCTION, on_bytes);
  curl_easy_setopt(c->t.curl, CURLOPT_WRITEDATA, c);
  curl_easy_setopt(c->t.curl, CURLOPT_PRIVATE, c);
  curl_easy_setopt(c->t.curl, CURLOPT_CONNECTTIMEOUT, (long)s->u->timeout_s); /* a busy server's backlog is part of what is measured */
  c->next = d->calls;
  c->back = &d->calls;
  if (c->next) c->next->back = &c->next;
  d->calls = c;
  d->under_way++;
  d->run->peak = MAX(d->run->peak, d->under_way);
  r->state = LOAD_RUNNING;
  r->due_ns = due_ns;
  r->sent_ns = now(d);
  CHECK(curl_multi_add_handle(d->multi, c->t.curl) == CURLM_OK);
  call_curl(d, CURL_SOCKET_TIMEOUT, 0);
}

static void free_call(struct call *c) {
  struct drive *d = c->d;
  curl_multi_remove_handle(d->multi, c->t.curl);
  transfer_close(&c->t);
  sse_free(&c->sse);
  buf_free(&c->answer);
  *c->back = c->next;
  if (c->next) c->next->back = c->back;
  d->under_way--;
  free(c);
}

/* Pieces whose tokens nobody told share those of the answer evenly: the first has one, the last brings them all. */
static void share_tokens(struct load_result *r) {
  if (!r->has_usage) r->completion_tokens = r->n_marks;
  bool told = true;
  for (int i = 0; i < r->n_marks; i++) told = told && r->marks[i].tokens >= 0;
  for (int i = 0; i < r->n_marks && !told; i++)
    r->marks[i].tokens = 1 + (int)((int64_t)MAX(r->completion_tokens - 1, 0) * i / MAX(r->n_marks - 1, 1));
}

/* How the transfer went, when the stream itself was not wrong. */
static void judge(struct call *c, CURLcode code) {
  struct load_result *r = result_of(c);
  struct err e = {0};
  long status = 0;
  json_t *reply;
  int pause;
  curl_easy_getinfo(c->t.curl, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK && status != 200) {
    char kind[sizeof r->kind];
    snprintf(kind, sizeof kind, "HTTP %ld", status);
    transfer_result(&c->t, code, &reply, &pause, &e);
    fail(r, kind, e.msg);
  } else if (code == CURLE_OK || c->done) {
    if (!c->ended) fail(r, "unfinished", r->n_marks ? "the stream ended without saying why" : "HTTP 200, but no stream of events");
    else if (r->n_marks == 0) fail(r, "no text", "the answer ended without any text");
  } else fail(r, kind_of(code), *c->t.error ? c->t.error : curl_easy_strerror(code));
}

/* A call is over; the conversation may go on at once. */
static void finish(struct call *c, CURLcode code) {
  struct drive *d = c->d;
  struct load_result *r = result_of(c);
  const struct load_request *q = request_of(c);
  int number = c->number, next = q->next;
  if (!c->wrong) judge(c, code);
  r->state = r->message ? LOAD_FAILED : LOAD_DONE;
  if (r->message) r->last_ns = now(d);
  share_tokens(r);
  d->n_done += r->state == LOAD_DONE;
  d->n_failed += r->state == LOAD_FAILED;
  if (next >= 0 && r->message) fail_rest(d, number);
  struct buf body;
  buf_init(&body, 0);
  if (next >= 0 && !r->message) {
    struct dialect_history *h = &d->histories[next];
    *h = d->histories[number];
    d->histories[number] = (struct dialect_history){0};
    dialect_answer(d->run->settings->api, h, buf_cstr(&c->answer), c->answer.len);
    dialect_body(d->run->settings, &d->run->work->v[next], h, &body);
  }
  free_call(c);
  if (body.len) send_request(d, next, &body, now(d));
}

static void take_finished(struct drive *d) {
  while (d->finished) {
    int left;
    d->finished = false;
    for (CURLMsg *m; (m = curl_multi_info_read(d->multi, &left)) != NULL;) {
      if (m->msg != CURLMSG_DONE) continue;
      char *c = NULL;
      CURLcode code = m->data.result;
      curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
      finish((struct call *)(void *)c, code);
    }
  }
}

/* ---- the whole run ------------------------------------------------------------------------------------------------------------------- */

/* What is needed for as many connections as may be open: one file each. */
static void raise_file_limit(int connections) {
  struct rlimit l;
  if (getrlimit(RLIMIT_NOFILE, &l)) return;
  rlim_t want = (rlim_t)connections + FILES_SPARE;
  if (l.rlim_cur >= want) return;
  l.rlim_cur = MIN(want, l.rlim_max);
  setrlimit(RLIMIT_NOFILE, &l);
}

static int open_drive(struct drive *d, struct load_run *run, struct err *e) {
  *d = (struct drive){.run = run, .curl_ns = -1};
  d->epoll = epoll_create1(EPOLL_CLOEXEC);
  d->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  struct epoll_event ev = {.events = EPOLLIN, .data.fd = d->timer};
  if (d->epoll < 0 || d->timer < 0 || epoll_ctl(d->epoll, EPOLL_CTL_ADD, d->timer, &ev))
    return err_set(e, ERR_IO, "epoll, timerfd: %s", strerror(errno));
  d->multi = curl_multi_init();
  CHECK(d->multi);
  curl_multi_setopt(d->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
  curl_multi_setopt(d->multi, CURLMOPT_SOCKETDATA, d);
  curl_multi_setopt(d->multi, CURLMOPT_TIMERFUNCTION, on_timer);
  curl_multi_setopt(d->multi, CURLMOPT_TIMERDATA, d);
  return 0;
}

/* First turns as JSON, and when they are due. */
static void prepare(struct drive *d) {
  const struct workload *w = d->run->work;
  const struct load_settings *s = d->run->settings;
  double due = 0;
  d->bodies = xcalloc((size_t)w->n, sizeof *d->bodies);
  d->histories = xcalloc((size_t)w->n, sizeof *d->histories);
  d->opens = xcalloc((size_t)w->n, sizeof *d->opens);
  d->due_ns = xcalloc((size_t)w->n, sizeof *d->due_ns);
  for (int i = 0; i < w->n; i++) {
    if (w->v[i].turn) continue;
    buf_init(&d->bodies[i], 0);
    dialect_body(s, &w->v[i], w->v[i].next >= 0 ? &d->histories[i] : NULL, &d->bodies[i]);
    if (d->n_opens) due += load_gap(s->seed, d->n_opens, s->rate);
    d->due_ns[d->n_opens] = (int64_t)(due * 1e9);
    d->opens[d->n_opens++] = i;
  }
}

static void close_drive(struct drive *d) {
  while (d->calls) {
    result_of(d->calls)->state = LOAD_UNSENT; /* as if it had never been sent: half an answer is no measurement */
    free_call(d->calls);
  }
  if (d->multi) curl_multi_cleanup(d->multi);
  if (d->epoll >= 0) close(d->epoll);
  if (d->timer >= 0) close(d->timer);
  for (int i = 0; d->bodies && i < d->run->work->n; i++) {
    buf_free(&d->bodies[i]);
    dialect_history_free(&d->histories[i]);
  }
  free(d->bodies);
  free(d->histories);
  free(d->opens);
  free(d->due_ns);
}

static bool may_begin(const struct drive *d) {
  int limit = d->run->settings->parallel;
  return d->at < d->n_opens && (!limit || d->under_way < limit);
}

/* A few at a time: between them answers are looked at. */
static void begin_due(struct drive *d) {
  for (int n = 0; n < BEGIN_AT_ONCE && may_begin(d) && d->due_ns[d->at] <= now(d); n++, d->at++)
    send_request(d, d->opens[d->at], &d->bodies[d->opens[d->at]], d->due_ns[d->at]);
}

static void wait_for_something(struct drive *d) {
  struct epoll_event events[256];
  int64_t at = now(d) + SHOW_NS;
  if (d->curl_ns >= 0) at = MIN(at, d->curl_ns);
  if (may_begin(d)) at = MIN(at, d->due_ns[d->at]);
  at = MAX(at + d->start_ns, 1);
  struct itimerspec t = {.it_value = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000}};
  timerfd_settime(d->timer, TFD_TIMER_ABSTIME, &t, NULL);
  int n = epoll_wait(d->epoll, events, (int)ARRAY_LEN(events), SHOW_NS / 1000000);
  for (int i = 0; i < n; i++) {
    uint64_t expirations;
    uint32_t ev = events[i].events;
    if (events[i].data.fd == d->timer) {
      if (read(d->timer, &expirations, sizeof expirations) < 0) {}
      continue;
    }
    int what = (ev & EPOLLIN ? CURL_CSELECT_IN : 0) | (ev & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (ev & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_IN | CURL_CSELECT_OUT : 0);
    call_curl(d, events[i].data.fd, what);
  }
  if (d->curl_ns >= 0 && d->curl_ns <= now(d)) call_curl(d, CURL_SOCKET_TIMEOUT, 0);
}

static void show(struct drive *d, bool end) {
  enum { WIDTH = 24 };
  int64_t t = now(d);
  if (!d->run->settings->progress || (!end && t - d->shown_ns < SHOW_NS)) return;
  d->shown_ns = t;
  char bar[WIDTH + 1];
  int over = d->n_done + d->n_failed, all = d->run->work->n, full = (int)((int64_t)over * WIDTH / all);
  for (int i = 0; i < WIDTH; i++) bar[i] = i < full ? '#' : '.';
  bar[WIDTH] = 0;
  fprintf(stderr, "\r[%s] %d/%d, %d on their way, %.0f tokens/s", bar, over, all, d->under_way,
          (double)d->tokens / ((double)t / 1e9 + 1e-3));
  if (d->n_failed) fprintf(stderr, ", %d failed", d->n_failed);
  fputs("\033[K", stderr);
  if (end) fputc('\n', stderr);
}

int load_run(struct load_run *r, const struct load_settings *s, const struct workload *w, struct err *e) {
  struct drive d;
  *r = (struct load_run){.settings = s, .work = w, .results = xcalloc((size_t)w->n, sizeof *r->results)};
  if (open_drive(&d, r, e)) {
    close_drive(&d);
    return -1;
  }
  prepare(&d);
  raise_file_limit(s->parallel ? MIN(s->parallel, w->n) : w->n);
  d.start_ns = clock_ns();
  while (d.n_done + d.n_failed < w->n && !(s->stopped && s->stopped())) {
    begin_due(&d);
    take_finished(&d);
    if (d.n_done + d.n_failed < w->n) wait_for_something(&d);
    take_finished(&d);
    show(&d, false);
  }
  r->interrupted = d.n_done + d.n_failed < w->n;
  if (r->interrupted) r->duration_ns = now(&d);
  for (int i = 0; i < w->n; i++)
    if (r->results[i].state == LOAD_DONE || r->results[i].state == LOAD_FAILED) r->duration_ns = MAX(r->duration_ns, r->results[i].last_ns);
  show(&d, true);
  close_drive(&d);
  return 0;
}

void load_free(struct load_run *r) {
  for (int i = 0; r->results && i < r->work->n; i++) {
    free(r->results[i].marks);
    free(r->results[i].message);
  }
  free(r->results);
  r->results = NULL;
}
