/* t_serve — the server over time: clients that leave, queues that are full, readers that are slow, shutdown under load. */
#include "test.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "fake.h"

static const char stream_body[] =
    "{\"prompt\":\"!delay=2 say:0123456789012345678901234567890123456789012345678901234567890123456789\",\"max_tokens\":1000,\"stream\":true}";

/* A client that leaves in the queue, in prefill, while decoding, streaming or not: the work ends within a step, the others go on. */
static void disconnects(void **state) {
  (void)state;
  static const char *const bodies[] = {
      "{\"prompt\":\"!delay=2 !hold=1000000\"}",                     /* prefill, whole answer */
      "{\"prompt\":\"!delay=2 !hold=1000000\",\"stream\":true}",     /* prefill, stream */
      "{\"prompt\":\"!delay=2 !hold=1000000\",\"n\":3}",             /* several choices */
      "{\"prompt\":[\"!delay=2 !hold=9999999\",\"!hold=9999999\"]}", /* several prompts */
  };
  struct fixture *f = fixture_start(NULL, 2, 16);
  int other = client_post(f->port, "/v1/completions", "{\"prompt\":\"!delay=2 !hold=200 say:survivor\"}");
  assert_true(becomes(&f->fake.running, 1));
  for (size_t i = 0; i < ARRAY_LEN(bodies) * 2; i++) {
    const char *body = bodies[i / 2];
    int n = strstr(body, "\"n\":3") ? 3 : body[10] == '[' ? 2 : 1;
    int fd = client_post(f->port, "/v1/completions", body);
    assert_true(becomes(&f->fake.running, 1 + n)); /* of which two are computed, the rest is in the queue */
    if (i % 2) shutdown(fd, SHUT_WR);              /* an orderly end; else a reset or FIN from close */
    else close(fd);
    int before = atomic_load(&f->fake.steps);
    assert_true(becomes(&f->fake.running, 1));
    if (atomic_load(&f->fake.steps) - before > 20) fail_msg("%d steps until the work ended", atomic_load(&f->fake.steps) - before);
    if (i % 2) close(fd);
  }
  int fd = client_post(f->port, "/v1/completions", stream_body); /* while decoding */
  char some[300];
  assert_true(recv(fd, some, sizeof some, 0) > 0);
  close(fd);
  assert_true(becomes(&f->fake.running, 1));
  struct answer a;
  client_read(other, &a);
  assert_int_equal(a.status, 200);
  assert_non_null(strstr(a.body.data, "survivor"));
  answer_free(&a);
  close(other);
  fixture_stop(f);
}

static long processor_us(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

/* Waiting for a prep thread, being prepared, waiting in the engine's queue, in prefill, while decoding; streaming or not; by FIN or by reset: the work
 * ends within a step, nobody else's does, and nothing spins afterwards. */
static void leaves_in_each_phase(void **state) {
  (void)state;
  enum { WAITING, PREPARING, QUEUED, PREFILL, DECODING, N_PHASES };
  struct serve_options o = {.prep_threads = 1};
  struct fixture *f = fixture_start(&o, 2, 16);
  struct answer a;
  int other = client_post(f->port, "/v1/completions", "{\"rid\":\"other\",\"prompt\":\"!delay=1 !hold=1000000\"}");
  assert_true(becomes(&f->fake.running, 1));
  for (int round = 0; round < N_PHASES * 4; round++) {
    int phase = round / 4, before = atomic_load(&f->fake.aborts), submits = atomic_load(&f->fake.submits), blocker = -1;
    bool stream = round % 2, reset = round / 2 % 2;
    char body[400];
    snprintf(body, sizeof body, "{\"prompt\":\"!delay=1 %s\",\"max_tokens\":3000,\"stream\":%s}",
             phase == DECODING ? "say:0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
                               : "!hold=1000000",
             stream ? "true" : "false");
    if (phase <= PREPARING) atomic_store(&f->fake.tokenise_ms, 20);
    if (phase == WAITING || phase == QUEUED) blocker = client_post(f->port, "/v1/completions", "{\"prompt\":\"!delay=1 !hold=1000000\"}");
    if (phase == QUEUED) assert_true(becomes(&f->fake.running, 2));
    int fd = client_post(f->port, "/v1/completions", body);
    if (phase == PREPARING) usleep(5000);
    if (phase >= QUEUED) assert_true(becomes(&f->fake.running, phase == QUEUED ? 3 : 2));
    if (phase == DECODING) usleep(15000);
    struct linger at_once = {.l_onoff = 1};
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    if (phase >= QUEUED) {
      int steps = atomic_load(&f->fake.steps);
      assert_true(becomes(&f->fake.running, phase == QUEUED ? 2 : 1));
      if (atomic_load(&f->fake.steps) - steps > 20) fail_msg("%d steps until the work ended", atomic_load(&f->fake.steps) - steps);
      assert_int_equal(atomic_load(&f->fake.aborts), before + 1);
    }
    if (blocker >= 0) {
      assert_true(becomes(&f->fake.running, 2));
      close(blocker);
    }
    atomic_store(&f->fake.tokenise_ms, 0);
    assert_true(becomes(&f->fake.running, 1));
    if (phase <= PREPARING) { /* it never reached the engine */
      assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:next\"}", &a), 200);
      answer_free(&a);
      assert_int_equal(atomic_load(&f->fake.submits) - submits, phase == WAITING ? 2 : 1);
    }
  }
  assert_int_equal(client_ask(f->port, "/abort_request", "{\"rid\":\"other\"}", &a), 200);
  answer_free(&a);
  client_read(other, &a);
  assert_int_equal(a.status, 200);
  assert_non_null(strstr(a.body.data, "abort"));
  answer_free(&a);
  close(other);
  usleep(20000);
  long us = -processor_us();
  usleep(200000);
  us += processor_us();
  if (us > 15000) fail_msg("%ld us of processor time in 200 ms of doing nothing", us);
  fixture_stop(f);
}

/* More requests behind the pending one than are read ahead: waiting costs nothing, and the end of the connection is seen all the same. */
static void leaves_behind_a_flood(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  for (int reset = 0; reset < 2; reset++) {
    int fd = client_post(f->port, "/v1/completions", "{\"prompt\":\"!delay=2 !hold=1000000\"}");
    assert_true(becomes(&f->fake.running, 1));
    for (int i = 0; i < 2000; i++) client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    usleep(20000);
    long before = processor_us();
    usleep(300000);
    if (processor_us() - before > 100000) fail_msg("%ld us of processor time in 300 ms of waiting", processor_us() - before);
    assert_int_equal(atomic_load(&f->fake.running), 1); /* a flood is no reason to stop */
    struct linger at_once = {.l_onoff = 1};
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    assert_true(becomes(&f->fake.running, 0));
  }
  fixture_stop(f);
}

/* A client that asks on and on and never reads: it waits, and so do we. */
static void asks_and_never_reads(void **state) {
  (void)state;
  struct serve_options o = {.limits = {.write_ms = 800, .socket_send_bytes = 4096}};
  struct fixture *f = fixture_start(&o, 2, 16);
  client_receive_bytes = 4096;
  int fd = client_connect(f->port);
  client_receive_bytes = 0;
  for (int i = 0; i < 2000; i++) client_puts(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  usleep(200000);
  long us = -processor_us();
  usleep(300000);
  us += processor_us();
  if (us > 100000) fail_msg("%ld us of processor time in 300 ms of waiting", us);
  usleep(600000);
  struct answer a;
  assert_int_equal(client_get(f->port, "/server_info", &a), 200); /* it is dropped after write_ms */
  assert_non_null(strstr(a.body.data, "\"connections\":1,"));
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void leaves_while_tokenising(void **state) { /* never reaches the engine */
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  atomic_store(&f->fake.tokenise_ms, 100);
  int first = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:first\"}"),
      second = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:second\"}");
  usleep(20000);
  close(first);  /* in the middle of it */
  close(second); /* before it */
  usleep(20000);
  atomic_store(&f->fake.tokenise_ms, 0);
  struct answer a;
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:third\"}", &a), 200);
  assert_int_equal(atomic_load(&f->fake.submits), 1);
  answer_free(&a);
  fixture_stop(f);
}

static void tokenising_does_not_stall_streams(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 4, 16);
  int stream = client_post(f->port, "/v1/completions", stream_body);
  char some[4096];
  assert_true(recv(stream, some, sizeof some, 0) > 0);
  atomic_store(&f->fake.tokenise_ms, 300);
  int slow = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:book\"}");
  int64_t last = clock_ns(), longest = 0;
  for (ssize_t n; (n = recv(stream, some, sizeof some, 0)) > 0;) {
    int64_t now = clock_ns();
    longest = MAX(longest, now - last);
    last = now;
    some[MIN((size_t)n, sizeof some - 1)] = 0;
    if (strstr(some, "[DONE]")) break;
  }
  assert_true(longest < 250000000); /* less than one tokenisation */
  struct answer a;
  client_read(slow, &a);
  assert_int_equal(a.status, 200);
  answer_free(&a);
  close(slow);
  close(stream);
  fixture_stop(f);
}

/* One prep thread is busy with a book: the next ones answer the others meanwhile. */
static void overtakes_a_long_prompt(void **state) {
  (void)state;
  struct serve_options o = {.prep_threads = 2};
  struct fixture *f = fixture_start(&o, 4, 16);
  struct answer a;
  atomic_store(&f->fake.tokenise_ms, 500);
  int64_t start = clock_ns();
  int slow = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:book\"}");
  usleep(50000); /* by now it is asleep over it */
  atomic_store(&f->fake.tokenise_ms, 0);
  for (int i = 0; i < 20; i++) {
    assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 200);
    answer_free(&a);
  }
  assert_true(clock_ms_since(start) < 450);
  client_read(slow, &a);
  assert_true(clock_ms_since(start) >= 500);
  assert_non_null(strstr(a.body.data, "book"));
  answer_free(&a);
  close(slow);
  fixture_stop(f);
}

/* The engine refuses these as well, but without the name of the field. */
static void long_lists(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 2, 16);
  struct answer a;
  struct buf body;
  buf_init(&body, 0);
  for (int over = 0; over < 2; over++) {
    buf_clear(&body);
    buf_puts(&body, "{\"prompt\":\"say:hi\",\"stop\":[\"");
    for (int i = 0; i < 1024 + over; i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"]}");
    assert_int_equal(client_ask(f->port, "/v1/completions", buf_cstr(&body), &a), over ? 400 : 200);
    if (over) assert_non_null(strstr(a.body.data, "\"param\":\"stop\""));
    answer_free(&a);

    buf_clear(&body);
    buf_puts(&body, "{\"prompt\":\"say:hi\",\"logit_bias\":{");
    for (int i = 0; i < 1024 + over; i++)
      buf_printf(&body, i ? ",\"%0*d\":1" : "\"%0*d\":1", 3 + i / 256, i % 256); /* 7, 07, 007 are one id */
    buf_puts(&body, "}}");
    assert_int_equal(client_ask(f->port, "/v1/completions", buf_cstr(&body), &a), over ? 400 : 200);
    if (over) assert_non_null(strstr(a.body.data, "\"param\":\"logit_bias\""));
    answer_free(&a);
  }
  buf_free(&body);
  fixture_stop(f);
}

static void full_queues(void **state) { /* the engine's queue, then the server's own limit */
  (void)state;
  struct serve_options o = {.calls_max = 8};
  struct fixture *f = fixture_start(&o, 2, 3);
  int fds[8];
  struct answer a;
  char value[256];
  for (int i = 0; i < 5; i++) fds[i] = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=150 !delay=1 say:in\"}");
  assert_true(becomes(&f->fake.running, 5));
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 503);
  assert_string_equal(answer_header(&a, "Retry-After", value), "1");
  assert_null(strstr(strstr(a.head.data, "Retry-After") + 1, "Retry-After"));
  assert_non_null(strstr(a.body.data, "\"code\":\"busy\""));
  answer_free(&a);
  /* several choices of which some do not fit: all or none */
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\",\"n\":4}", &a), 503);
  answer_free(&a);
  for (int i = 0; i < 5; i++) { /* those inside are all served */
    client_read(fds[i], &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fds[i]);
  }
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\",\"n\":4}", &a), 200);
  answer_free(&a);

  atomic_store(&f->fake.tokenise_ms, 150);
  for (int i = 0; i < 8; i++) fds[i] = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:x\"}");
  usleep(30000);
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 503);
  answer_free(&a);
  for (int i = 0; i < 8; i++) {
    client_read(fds[i], &a);
    assert_true(a.status == 200 || a.status == 503);
    answer_free(&a);
    close(fds[i]);
  }
  fixture_stop(f);
}

/* Retry-After is what the queue will take at the speed of the last seconds. */
static void full_queue_says_how_long(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 1, 40);
  struct answer a;
  char value[256];
  int fds[41];
  assert_int_equal(client_ask(f->port, "/v1/completions",
                              "{\"prompt\":\"!delay=20 say:0123456789012345678901234567890123456789\",\"max_tokens\":100}", &a),
                   200); /* 40 tokens in 0.8 s */
  answer_free(&a);
  for (int i = 0; i < 41; i++) fds[i] = client_post(f->port, "/v1/completions", "{\"prompt\":\"!delay=5 !hold=1000000\"}");
  assert_true(becomes(&f->fake.running, 41));
  usleep(20000);
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 503);
  int retry_s = atoi(answer_header(&a, "Retry-After", value)); /* 40 waiting, 40 tokens each, 10 to 40 tokens a second */
  if (retry_s < 35 || retry_s > 60) fail_msg("Retry-After: %d", retry_s);
  answer_free(&a);
  for (int i = 0; i < 41; i++) close(fds[i]);
  fixture_stop(f);
}

static void slow_reader(void **state) { /* is dropped; its work is aborted; the others do not notice */
  (void)state;
  struct serve_options o = {.limits = {.output_bytes = 20000, .socket_send_bytes = 4096}};
  struct fixture *f = fixture_start(&o, 4, 16);
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"prompt\":\"!delay=1 say:");
  for (int i = 0; i < 2000; i++) buf_putc(&body, (char)('a' + i % 26));
  buf_puts(&body, "\",\"max_tokens\":3000,\"stream\":true}");
  client_receive_bytes = 2048;
  int fd = client_connect(f->port);
  client_receive_bytes = 0;
  char head[300];
  snprintf(head, sizeof head,
           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
  client_puts(fd, head);
  client_send(fd, body.data, body.len);
  buf_free(&body);
  for (int i = 0; i < 2000 && !atomic_load(&f->fake.aborts); i++) usleep(1000);
  assert_int_equal(atomic_load(&f->fake.aborts), 1);
  struct answer a;
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 200);
  answer_free(&a);
  client_read(fd, &a);
  if (!a.closed || !a.truncated)
    fail_msg("closed %d truncated %d status %d, %zu bytes: %.100s", a.closed, a.truncated, a.status, a.body.len,
             buf_cstr(&a.body)); /* it can tell that the answer is not whole */
  answer_free(&a);
  close(fd);
  fixture_stop(f);
}

static void drain(void **state) { /* running streams finish, new requests get 503, then the loop ends by itself */
  (void)state;
  struct serve_options o = {.grace_ms = 5000, .limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 8, 16);
  int fds[5], open = client_connect(f->port), idle = client_connect(f->port);
  struct answer a;
  client_puts(open, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 5; i++) fds[i] = client_post(f->port, "/v1/completions", stream_body);
  assert_true(becomes(&f->fake.running, 5));
  serve_stop(f->serve);
  assert_true(client_sees_close(idle, 2000));
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 503);
  assert_non_null(strstr(a.body.data, "shutting down"));
  answer_free(&a);
  assert_int_equal(client_get(f->port, "/health", &a), 503);
  answer_free(&a);
  client_puts(open, "Content-Length: 0\r\n\r\n"); /* a connection from before */
  client_read(open, &a);
  assert_int_equal(a.status, 503);
  answer_free(&a);
  for (int i = 0; i < 5; i++) {
    client_read(fds[i], &a);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "[DONE]"));
    assert_null(strstr(a.body.data, "error"));
    answer_free(&a);
    assert_true(client_sees_close(fds[i], 1000));
    close(fds[i]);
  }
  close(open);
  close(idle);
  int64_t start = clock_ns();
  fixture_join(f);
  assert_true(clock_ms_since(start) < 2500);
}

static void grace_ends(void **state) { /* what is not done by then is told so */
  (void)state;
  struct serve_options o = {.grace_ms = 60, .limits = {.linger_ms = 50}};
  struct fixture *f = fixture_start(&o, 8, 16);
  struct answer a;
  int whole = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=1000000 !delay=1\"}");
  int stream = client_post(f->port, "/v1/completions",
                           "{\"prompt\":\"!delay=20 say:0123456789012345678901234567890123456789\",\"stream\":true,\"max_tokens\":100}");
  assert_true(becomes(&f->fake.running, 2));
  usleep(30000);
  serve_stop(f->serve);
  client_read(whole, &a);
  assert_int_equal(a.status, 503);
  answer_free(&a);
  client_read(stream, &a);
  assert_int_equal(a.status, 200);
  const char *error = strstr(a.body.data, "data: {\"error\":");
  assert_non_null(error);
  assert_non_null(strstr(error, "data: [DONE]\n\n"));
  answer_free(&a);
  close(whole);
  close(stream);
  fixture_join(f);
}

static void second_stop_ends_at_once(void **state) {
  (void)state;
  struct serve_options o = {.grace_ms = 60000};
  struct fixture *f = fixture_start(&o, 8, 16);
  int fds[3];
  for (int i = 0; i < 3; i++) fds[i] = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=1000000 !delay=1\",\"stream\":true}");
  assert_true(becomes(&f->fake.running, 3));
  serve_stop(f->serve);
  usleep(50000);
  int64_t start = clock_ns();
  serve_stop(f->serve);
  fixture_join(f);
  assert_true(clock_ms_since(start) < 1000);
  for (int i = 0; i < 3; i++) {
    assert_true(client_sees_close(fds[i], 1000));
    close(fds[i]);
  }
}

/* ---- many at once ------------------------------------------------------------------------------------------------------- */

struct worker {
  pthread_t thread;
  int port, number, n_good, n_busy;
};

static void *worker_main(void *arg) {
  struct worker *w = arg;
  uint64_t seed = (uint64_t)w->number * 77 + 1;
  for (int i = 0; i < 25; i++) {
    char body[300], wanted[64];
    bool stream = test_rand_int(&seed, 0, 1), leave = test_rand_int(&seed, 0, 3) == 0;
    int n = test_rand_int(&seed, 1, 3);
    snprintf(body, sizeof body, "{\"prompt\":\"!hold=%d say:w%di%d\",\"n\":%d,\"stream\":%s}", test_rand_int(&seed, 0, 5), w->number, i, n,
             stream ? "true" : "false");
    int fd = client_post(w->port, "/v1/completions", body);
    if (fd < 0) continue;
    if (leave) {
      usleep((unsigned)test_rand_int(&seed, 0, 3000));
      close(fd);
      continue;
    }
    struct answer a;
    client_read(fd, &a);
    close(fd);
    snprintf(wanted, sizeof wanted, stream ? "\"text\":\"w\"" : "\"text\":\"w%di%d\"", w->number, i);
    if (a.status == 200 && strstr(a.body.data, wanted)) w->n_good++;
    if (a.status == 503) w->n_busy++;
    if (a.status != 200 && a.status != 503) w->n_good = -1000000;
    answer_free(&a);
  }
  return NULL;
}

static void parallel_clients(void **state) {
  (void)state;
  struct serve_options o = {.prep_threads = 4};
  struct fixture *f = fixture_start(&o, 4, 12);
  struct worker workers[8];
  for (int i = 0; i < 8; i++) {
    workers[i] = (struct worker){.port = f->port, .number = i};
    pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
  }
  int good = 0, busy = 0;
  for (int i = 0; i < 8; i++) {
    pthread_join(workers[i].thread, NULL);
    good += workers[i].n_good;
    busy += workers[i].n_busy;
  }
  if (good < 50) fail_msg("%d answers were right, %d busy", good, busy);
  assert_true(becomes(&f->fake.running, 0));
  bool empty = false;
  for (int i = 0; i < 500 && !empty; i++) { /* those who left are noticed in their time */
    struct answer a;
    assert_int_equal(client_get(f->port, "/server_info", &a), 200);
    empty = strstr(a.body.data, "\"calls\":0") != NULL;
    answer_free(&a);
    if (!empty) usleep(4000);
  }
  assert_true(empty); /* nobody is forgotten */
  fixture_stop(f);
}

/* The server is stopped while everything is happening: no hang, no leak (ASan), no race (TSan). */
static void stops_under_load(void **state) {
  (void)state;
  for (int round = 0; round < 4; round++) {
    struct serve_options o = {.grace_ms = round % 2 ? -1 : 30, .prep_threads = 1 + round, .limits = {.linger_ms = 20}};
    struct fixture *f = fixture_start(&o, 2, 12);
    struct worker workers[4];
    for (int i = 0; i < 4; i++) {
      workers[i] = (struct worker){.port = f->port, .number = i};
      pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
    }
    usleep(15000);
    serve_stop(f->serve);
    if (round >= 2) serve_stop(f->serve);
    fixture_join(f);
    for (int i = 0; i < 4; i++) pthread_join(workers[i].thread, NULL);
  }
}

/* A stop that arrives while the last message is taken: its wake-up and the message's are one. */
static void stops_beside_messages(void **state) {
  (void)state;
  uint64_t seed = 5;
  for (int round = 0; round < 100; round++) {
    struct fixture *f = fixture_start(NULL, 2, 12);
    int fd = client_post(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}");
    usleep((unsigned)test_rand_int(&seed, 0, 1500));
    fixture_stop(f); /* or hang here */
    close(fd);
  }
}

/* ---- a line for each request -------------------------------------------------------------------------------------------- */

/* The words of a line "id=... rid=...", checked one by one: name=value with nothing in between. */
static const char *logged(const char *line, const char *name, char value[200]) {
  char start[40];
  snprintf(start, sizeof start, " %s=", name);
  const char *at = strstr(line, start);
  if (!at) fail_msg("%s is missing in %s", name, line);
  snprintf(value, 200, "%.*s", (int)strcspn(at + strlen(start), " \n"), at + strlen(start));
  return value;
}

static void logs_requests(void **state) {
  (void)state;
  static const char *const bodies[] = {"{\"prompt\":\"x say:abcde\",\"rid\":\"a b\\\"=c\\n\"}", "{\"prompt\":3}",
                                       "{\"prompt\":\"!fail=2 say:abcde\",\"stream\":true}"};
  static const char *const wanted[][7] = {{"a?b??c?", "200", "12", "6", "5", "stop", "completion"},
                                          {NULL, "400", "0", "0", "0", "error", "completion"},
                                          {NULL, "200", "18", "9", "2", "error", "completion"}};
  static const char *const names[] = {"rid", "status", "prompt", "cached", "completion", "finish", "api"};
  struct serve_options o = {.log_requests = true};
  struct fixture *f = fixture_start(&o, 4, 16);
  const char *path = test_write("log", "", 0);
  fflush(stderr);
  int kept = dup(2), file = open(path, O_WRONLY | O_APPEND);
  dup2(file, 2);
  log_set_level(LOG_INFO);
  for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
    struct answer a;
    client_ask(f->port, "/v1/completions", bodies[i], &a);
    answer_free(&a);
  }
  int gone = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=1\"}");
  assert_true(becomes(&f->fake.running, 1));
  close(gone);
  assert_true(becomes(&f->fake.running, 0));
  fixture_stop(f); /* all are done then */
  log_set_level(LOG_ERROR);
  dup2(kept, 2);
  close(kept);
  close(file);
  char *log = test_read(path, NULL), value[200];
  int n = 0;
  for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
    if (!strstr(line, "request id=")) continue;
    if (n < 3) {
      for (size_t k = 0; k < ARRAY_LEN(names); k++)
        if (wanted[n][k]) assert_string_equal(logged(line, names[k], value), wanted[n][k]);
      assert_int_equal(strcmp(logged(line, "ttft_ms", value), "-") == 0, n == 1);
    } else {
      assert_string_equal(logged(line, "status", value), "499");
      assert_string_equal(logged(line, "finish", value), "gone");
    }
    assert_true(logged(line, "total_ms", value)[0] >= '0' && value[0] <= '9');
    n++;
  }
  assert_int_equal(n, 4);
  free(log);
}

static void idle_costs_nothing(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 4, 12);
  struct answer a;
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"say:hi\"}", &a), 200);
  answer_free(&a);
  int idle = client_connect(f->port);
  usleep(20000);
  long us = -processor_us();
  usleep(300000);
  us += processor_us();
  if (us > 15000) fail_msg("%ld us of processor time in 300 ms of doing nothing", us);
  close(idle);
  fixture_stop(f);
}

static void cannot_listen(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 4, 12);
  struct fake fake = {0};
  struct port port = fake_port(&fake);
  struct err e;
  struct serve_options o = {.port = f->port, .quiet = true};
  char wanted[100];
  assert_null(serve_open(&port, &o, &e));
  snprintf(wanted, sizeof wanted, "cannot listen on 127.0.0.1 port %d: ", f->port);
  assert_non_null(strstr(e.msg, wanted));
  o.host = "no.such.name.invalid";
  assert_null(serve_open(&port, &o, &e));
  o = (struct serve_options){.cors_origin = "https://app.test\r\nX: y", .quiet = true};
  assert_null(serve_open(&port, &o, &e));
  assert_non_null(strstr(e.msg, "cors-origin"));
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(disconnects),
    cmocka_unit_test(leaves_in_each_phase),
    cmocka_unit_test(leaves_behind_a_flood),
    cmocka_unit_test(asks_and_never_reads),
    cmocka_unit_test(leaves_while_tokenising),
    cmocka_unit_test(tokenising_does_not_stall_streams),
    cmocka_unit_test(overtakes_a_long_prompt),
    cmocka_unit_test(long_lists),
    cmocka_unit_test(full_queues),
    cmocka_unit_test(full_queue_says_how_long),
    cmocka_unit_test(slow_reader),
    cmocka_unit_test(drain),
    cmocka_unit_test(grace_ends),
    cmocka_unit_test(second_stop_ends_at_once),
    cmocka_unit_test(parallel_clients),
    cmocka_unit_test(stops_under_load),
    cmocka_unit_test(stops_beside_messages),
    cmocka_unit_test(logs_requests),
    cmocka_unit_test(idle_costs_nothing),
    cmocka_unit_test(cannot_listen),
};
TEST_MAIN(tests)
