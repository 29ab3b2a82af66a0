/* t_lost.c — the engine loses its device: whoever waits is told, /health says so, and the server ends by itself with a sentence. */
#include "server/fake.h"

#include "engine/engine.h"
#include "server/serve_impl.h"

static struct device_ops ops; /* the CPU's, which breaks */
static atomic_int waits_left;

static int finish_or_break(struct device *d, struct err *e) {
  if (!d->lost && atomic_fetch_sub(&waits_left, 1) > 0) return 0;
  d->lost = true;
  return err_set(e, ERR_INTERNAL, "the chip melted");
}

static struct cygnet *open_breaking(int waits) {
  struct cygnet_error e = {0};
  const struct cygnet_options o = {
      .model = test_path("golden/gemma3-text-ropescale/model-q8_0.gguf"), .threads = 1, .ctx_tokens = 128, .quiet = 1};
  struct cygnet *c = cygnet_open(&o, &e);
  if (!c) fail_msg("%s", e.message);
  ops = device_cpu_ops;
  ops.finish = finish_or_break;
  atomic_store(&waits_left, waits);
  c->model->dev->ops = &ops;
  return c;
}

#define ASK "{\"prompt\":[5,6,7],\"max_tokens\":20,\"ignore_eos\":true}"

static void everybody_is_told_and_the_server_ends(void **state) {
  (void)state;
  for (int waits = 0; waits < 6; waits++) {
    struct cygnet *c = open_breaking(waits);
    struct port port = port_of(c);
    struct fixture *f = fixture_start_port(&port, NULL, 4, 12);
    struct answer a;
    int kept = client_connect(f->port); /* somebody who is connected and says nothing */
    int status = client_ask(f->port, "/v1/completions", ASK, &a);
    assert_int_equal(status, 503);
    assert_non_null(strstr(buf_cstr(&a.body), "the chip melted; the program must be started again"));
    answer_free(&a);
    pthread_join(f->thread, NULL); /* nobody stopped it */
    struct err e = {0};
    struct cygnet_error lost;
    assert_true(threads_lost(f->serve->threads, &lost));
    (void)e;
    assert_non_null(strstr(lost.message, "the chip melted"));
    close(kept);
    serve_close(f->serve);
    free(f);
    cygnet_close(c);
  }
}

/* With the fake engine, whose request goes on while the device is said to be lost: what /health says meanwhile. */
static atomic_bool fake_is_lost;
static int fake_lost(void *self, struct cygnet_error *e) {
  (void)self;
  if (!atomic_load(&fake_is_lost)) return 0;
  if (e) *e = (struct cygnet_error){.status = 503, .exit_status = 1, .message = "the chip melted"};
  return 1;
}

static void health_says_so(void **state) {
  (void)state;
  struct fake fake = {0};
  struct port port = fake_port(&fake);
  port.lost = fake_lost;
  atomic_store(&fake_is_lost, false);
  struct fixture *f = fixture_start_port(&port, NULL, 4, 12);
  struct answer a;
  int before = client_connect(f->port), fd = client_connect(f->port);
  struct buf in;
  buf_init(&in, 0);
  client_puts(before, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  client_read_from(before, &in, &a, 5000);
  assert_int_equal(a.status, 200);
  answer_free(&a);
  const char body[] = "{\"prompt\":\"!delay=20 say:0123456789012345678901234567890123456789\",\"stream\":true,\"max_tokens\":60}";
  char head[200];
  snprintf(head, sizeof head,
           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
           strlen(body));
  client_puts(fd, head);
  client_puts(fd, body);
  client_puts(before, "GET /health HTTP/1.1\r\n"); /* a connection that waits for nothing is closed when the server stops */
  usleep(100000);
  atomic_store(&fake_is_lost, true);
  usleep(100000);
  client_puts(before, "Host: localhost\r\n\r\n");
  client_read_from(before, &in, &a, 5000);
  assert_int_equal(a.status, 503);
  assert_non_null(strstr(buf_cstr(&a.body), "the chip melted"));
  answer_free(&a);
  close(before);
  close(fd);
  pthread_join(f->thread, NULL);
  serve_close(f->serve);
  fake_drop_prompts(&fake);
  buf_free(&in);
  free(f);
}

/* The whole of it as `cygnet serve` runs it. */
static struct run {
  struct cygnet *c;
  int port, result;
  struct err e;
} whole;
static void *run_main(void *arg) {
  struct run *r = arg;
  const struct serve_options o = {.port = r->port, .quiet = true};
  r->result = serve_run(r->c, &o, &r->e);
  return NULL;
}

static int free_port(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, n), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
  close(fd);
  return ntohs(a.sin_port);
}

static void run_returns_the_sentence(void **state) {
  (void)state;
  pthread_t thread;
  struct answer a;
  int fd = -1;
  whole = (struct run){.c = open_breaking(3), .port = free_port()};
  assert_int_equal(pthread_create(&thread, NULL, run_main, &whole), 0);
  for (int i = 0; i < 500 && (fd = client_connect(whole.port)) < 0; i++) usleep(10000);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(client_ask(whole.port, "/v1/completions", ASK, &a), 503);
  answer_free(&a);
  pthread_join(thread, NULL);
  assert_int_equal(whole.result, -1);
  assert_int_equal(err_exit_status(whole.e.code), 1);
  assert_non_null(strstr(whole.e.msg, "the chip melted; the program must be started again"));
  cygnet_close(whole.c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(everybody_is_told_and_the_server_ends),
    cmocka_unit_test(health_says_so),
    cmocka_unit_test(run_returns_the_sentence),
};
TEST_MAIN(tests)
