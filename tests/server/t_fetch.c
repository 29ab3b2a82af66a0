/* t_fetch — things from the web: which addresses are open, what redirects may do, and what slow, endless and huge answers cost. Against a
 * server here. */
#include "test.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/fetch.h"

/* ---- addresses ------------------------------------------------------------------------------------------------------------------ */

static const char *const open4[] = {"1.1.1.1",    "8.8.8.8",         "93.184.216.34", "100.63.255.255",  "100.128.0.1",    "172.15.255.255",
                                    "172.32.0.1", "192.167.255.255", "192.169.0.1",   "223.255.255.255", "198.17.255.255", "198.20.0.1"},
                         *const closed4[] = {"0.0.0.0",         "0.1.2.3",        "10.0.0.1",        "10.255.255.255",  "100.64.0.1",
                                             "100.127.255.255", "127.0.0.1",      "127.255.255.255", "169.254.169.254", "172.16.0.1",
                                             "172.31.255.255",  "192.0.0.1",      "192.0.2.1",       "192.88.99.1",     "192.168.0.1",
                                             "198.18.0.1",      "198.19.255.255", "198.51.100.1",    "203.0.113.9",     "224.0.0.1",
                                             "239.1.1.1",       "240.0.0.1",      "255.255.255.255"},
                         *const open6[] = {"2606:4700:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "::ffff:8.8.8.8"},
                         *const closed6[] = {"::",
                                             "::1",
                                             "::ffff:127.0.0.1",
                                             "::ffff:10.0.0.1",
                                             "::ffff:169.254.169.254",
                                             "::7f00:1",
                                             "64:ff9b::7f00:1",
                                             "64:ff9b::8.8.8.8",
                                             "64:ff9b:1::1",
                                             "100::1",
                                             "2001::1",
                                             "2001:10::1",
                                             "2001:db8::1",
                                             "2002:7f00:1::",
                                             "2002:808:808::1",
                                             "3fff::1",
                                             "fc00::1",
                                             "fd12:3456::1",
                                             "fe80::1",
                                             "fec0::1",
                                             "ff02::1"};

static bool is_public(const char *text) {
  struct sockaddr_storage a = {0};
  struct sockaddr_in *four = (struct sockaddr_in *)&a;
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)&a;
  bool is_six = strchr(text, ':') != NULL;
  a.ss_family = is_six ? AF_INET6 : AF_INET;
  assert_int_equal(inet_pton(a.ss_family, text, is_six ? (void *)&six->sin6_addr : (void *)&four->sin_addr), 1);
  return fetch_is_public((struct sockaddr *)&a);
}

static void public_addresses(void **state) {
  (void)state;
  for (size_t i = 0; i < ARRAY_LEN(open4); i++)
    if (!is_public(open4[i])) fail_msg("%s", open4[i]);
  for (size_t i = 0; i < ARRAY_LEN(closed4); i++)
    if (is_public(closed4[i])) fail_msg("%s", closed4[i]);
  for (size_t i = 0; i < ARRAY_LEN(open6); i++)
    if (!is_public(open6[i])) fail_msg("%s", open6[i]);
  for (size_t i = 0; i < ARRAY_LEN(closed6); i++)
    if (is_public(closed6[i])) fail_msg("%s", closed6[i]);
  struct sockaddr un = {.sa_family = AF_UNIX};
  assert_false(fetch_is_public(&un));
}

static void lists_of_hosts(void **state) {
  (void)state;
  static const char *const good[] = {"a", "a.example:80", "a,b:1,c", "[::1]:8080,[::1]", "10.0.0.1:9000"};
  static const char *const bad[] = {",", "a,,b", "a:", "a:0", "a:65536", "a:b", "http://a", "a/b", "[::1", "[::1]x", "u@a", ":80", "a b"};
  struct err e;
  assert_int_equal(fetch_check_allow(NULL, &e), 0);
  for (size_t i = 0; i < ARRAY_LEN(good); i++)
    if (fetch_check_allow(good[i], &e)) fail_msg("%s: %s", good[i], e.msg);
  for (size_t i = 0; i < ARRAY_LEN(bad); i++)
    if (!fetch_check_allow(bad[i], &e)) fail_msg("%s", bad[i]);
}

/* ---- a server ------------------------------------------------------------------------------------------------------------------- */

struct web {
  int fd, port;
  pthread_t thread;
  atomic_bool stop;
  atomic_int n_connections;
  char seen[4096]; /* the last request */
};

static void put(int fd, const char *s) { send(fd, s, strlen(s), MSG_NOSIGNAL); }

/* Sends until the other side has enough, or somebody wants an end. */
static void put_endlessly(struct web *w, int fd, int pause_ms) {
  char block[4096];
  memset(block, 'x', sizeof block);
  while (!atomic_load(&w->stop) && send(fd, block, pause_ms ? 1 : sizeof block, MSG_NOSIGNAL) > 0)
    if (pause_ms) usleep((unsigned)pause_ms * 1000);
}

static void serve_one(struct web *w, int fd) {
  ssize_t n = recv(fd, w->seen, sizeof w->seen - 1, 0);
  char path[200] = "", answer[600];
  if (n <= 0) return;
  w->seen[n] = 0;
  sscanf(w->seen, "GET %199s", path);
  if (!strcmp(path, "/ok")) put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  else if (!strcmp(path, "/chunked")) put(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
  else if (!strcmp(path, "/gzip")) put(fd, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello");
  else if (!strcmp(path, "/short")) put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello");
  else if (!strcmp(path, "/huge")) put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\nhello"), put_endlessly(w, fd, 0);
  else if (!strcmp(path, "/endless")) put(fd, "HTTP/1.1 200 OK\r\n\r\n"), put_endlessly(w, fd, 0);
  else if (!strcmp(path, "/slow")) put(fd, "HTTP/1.1 200 OK\r\n\r\n"), put_endlessly(w, fd, 20);
  else if (!strcmp(path, "/headers")) put(fd, "HTTP/1.1 200 OK\r\nX: "), put_endlessly(w, fd, 0);
  else if (!strcmp(path, "/silent")) usleep(600000);
  else if (!strncmp(path, "/to/", 4)) {
    for (char *p = path; *p; p++)
      if (*p == '!') *p = '/';
    snprintf(answer, sizeof answer, "HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", path + 4);
    put(fd, answer);
  } else put(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
}

static void *web_main(void *arg) {
  struct web *w = arg;
  while (!atomic_load(&w->stop)) {
    int fd = accept(w->fd, NULL, NULL);
    if (fd < 0) break;
    atomic_fetch_add(&w->n_connections, 1);
    if (!atomic_load(&w->stop)) serve_one(w, fd);
    close(fd);
  }
  return NULL;
}

static void web_start(struct web *w) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t n = sizeof a;
  *w = (struct web){.fd = socket(AF_INET, SOCK_STREAM, 0)};
  assert_int_equal(bind(w->fd, (struct sockaddr *)&a, n), 0);
  assert_int_equal(listen(w->fd, 8), 0);
  getsockname(w->fd, (struct sockaddr *)&a, &n);
  w->port = ntohs(a.sin_port);
  assert_int_equal(pthread_create(&w->thread, NULL, web_main, w), 0);
}

static void web_stop(struct web *w) {
  atomic_store(&w->stop, true);
  shutdown(w->fd, SHUT_RDWR);
  pthread_join(w->thread, NULL);
  close(w->fd);
}

/* url has %d for the port of w. Returns fetch's result. */
static int ask(const struct web *w, const char *url, const struct fetch_options *o, struct buf *out, struct err *e) {
  char text[600];
  snprintf(text, sizeof text, url, w->port, w->port);
  buf_init(out, 0);
  *e = (struct err){0};
  return fetch(str_c(text), o, out, e);
}

/* ---- fetching ------------------------------------------------------------------------------------------------------------------- */

static void fetched(void **state) {
  (void)state;
  struct web w;
  struct buf out;
  struct err e;
  char allow[100];
  web_start(&w);
  snprintf(allow, sizeof allow, "other.test,127.0.0.1:%d,[::1]:1", w.port);
  const struct fetch_options o = {.allow = allow, .max_bytes = 1000, .timeout_ms = 5000};
  static const char *const good[] = {"http://127.0.0.1:%d/ok",     "http://127.0.0.1:%d/chunked",
                                     "http://127.0.0.1:%d/gzip",   "HTTP://127.0.0.1:%d/ok#part",
                                     "http://127.0.0.1:%d/to/!ok", "http://127.0.0.1:%d/to/http:!!127.0.0.1:%d!ok"};
  for (size_t i = 0; i < ARRAY_LEN(good); i++) {
    if (ask(&w, good[i], &o, &out, &e)) fail_msg("%s: %s", good[i], e.msg);
    assert_string_equal(buf_cstr(&out), "hello"); /* compressed or not: as it came */
    buf_free(&out);
  }
  assert_non_null(strstr(w.seen, "User-Agent: cygnet/"));
  assert_null(strstr(w.seen, "Accept-Encoding"));
  assert_null(strstr(w.seen, "Cookie"));
  assert_null(strstr(w.seen, "Authorization"));
  static const struct {
    const char *url, *why;
  } bad[] = {{"http://127.0.0.1:%d/missing", "answered 404"},
             {"http://127.0.0.1:%d/short", "could not be fetched"},
             {"http://127.0.0.1:%d/to/!to!!to!!to!!ok", "redirects more than 3 times"},
             {"ftp://127.0.0.1:%d/ok", "http or https"},
             {"file:///etc/passwd", "expected"},
             {"gopher://127.0.0.1:%d/_x", "expected"},
             {"http://user:secret@127.0.0.1:%d/ok", "no user name"},
             {"http://user@127.0.0.1:%d/ok", "no user name"},
             {"http://", "expected an address"},
             {"http://127.0.0.1:%d/to/file:!!!etc!passwd", "expected"},
             {"http://127.0.0.1:%d/to/http:!!u:p@127.0.0.1:%d!ok", "no user name"}};
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    if (!ask(&w, bad[i].url, &o, &out, &e) || !strstr(e.msg, bad[i].why))
      fail_msg("%s: expected \"%s\", found \"%s\"", bad[i].url, bad[i].why, e.msg);
    assert_int_equal(out.len, 0);
    buf_free(&out);
  }
  web_stop(&w);
}

/* A stranger may not reach what only this machine reaches, by whatever way the address is written, and nobody even connects. */
static void closed_addresses(void **state) {
  (void)state;
  struct web w;
  struct buf out;
  struct err e;
  char resolve[300], allow[60];
  web_start(&w);
  snprintf(resolve, sizeof resolve, "inside.test:80:127.0.0.1 both.test:80:10.255.255.1,127.0.0.1 six.test:80:[::1]");
  const struct fetch_options any = {.any = true, .max_bytes = 1000, .timeout_ms = 3000, .resolve = resolve};
  static const char *const urls[] = {"http://127.0.0.1/ok",
                                     "http://localhost/ok",
                                     "http://127.1/ok",
                                     "http://2130706433/ok",
                                     "http://0x7f.1/ok",
                                     "http://0177.0.0.1/ok",
                                     "http://[::1]/ok",
                                     "http://[::ffff:127.0.0.1]/ok",
                                     "http://[::ffff:7f00:1]/ok",
                                     "http://169.254.169.254/latest",
                                     "http://10.0.0.1/",
                                     "http://0/ok",
                                     "http://inside.test/ok",
                                     "http://both.test/ok",
                                     "http://six.test/ok",
                                     "http://[fe80::1]/",
                                     "http://[64:ff9b::127.0.0.1]/",
                                     "https://127.0.0.1/ok"};
  for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
    int64_t begin = clock_ns();
    if (!ask(&w, urls[i], &any, &out, &e)) fail_msg("%s was fetched", urls[i]);
    if (!strstr(e.msg, "public on the internet")) fail_msg("%s: %s", urls[i], e.msg);
    assert_true(clock_ns() - begin < 2000000000);
    buf_free(&out);
  }
  assert_int_equal(ask(&w, "http://127.0.0.1:%d/ok", &any, &out, &e), -1); /* a port that is none of the web's */
  assert_non_null(strstr(e.msg, "port 80 or 443"));
  buf_free(&out);

  /* from an allowed host to one that is not, and from a public name to one inside */
  snprintf(allow, sizeof allow, "127.0.0.1:%d", w.port);
  const struct fetch_options both = {.any = true, .allow = allow, .max_bytes = 1000, .timeout_ms = 3000, .resolve = resolve};
  static const char *const ways[] = {"http://127.0.0.1:%d/to/http:!!localhost!ok", "http://127.0.0.1:%d/to/http:!!169.254.169.254!ok",
                                     "http://127.0.0.1:%d/to/http:!!inside.test!ok", "http://127.0.0.1:%d/to/!!10.0.0.1!ok"};
  for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
    if (!ask(&w, ways[i], &both, &out, &e)) fail_msg("%s was fetched", ways[i]);
    if (!strstr(e.msg, "public on the internet")) fail_msg("%s: %s", ways[i], e.msg);
    buf_free(&out);
  }
  assert_int_equal(atomic_load(&w.n_connections), (int)ARRAY_LEN(ways));
  assert_int_equal(ask(&w, "http://127.0.0.1:%d/to/http:!!localhost:%d!ok", &both, &out, &e), -1);
  assert_non_null(strstr(e.msg, "port 80 or 443"));
  buf_free(&out);
  const struct fetch_options some = {.allow = allow, .max_bytes = 1000, .timeout_ms = 3000};
  assert_int_equal(ask(&w, "http://example.org/x", &some, &out, &e), -1);
  assert_non_null(strstr(e.msg, "some hosts only"));
  buf_free(&out);
  web_stop(&w);
}

static bool stop_at_once(void *ctx) { return atomic_fetch_add((atomic_int *)ctx, 1) > 2; }

static void limits_hold(void **state) {
  (void)state;
  struct buf out;
  struct err e;
  static const struct {
    const char *path;
    enum err_code code;
    const char *why;
  } slow[] = {{"/huge", ERR_TOO_LARGE, "at most 100000 bytes"},
              {"/endless", ERR_TOO_LARGE, "at most 100000 bytes"},
              {"/slow", ERR_BAD_INPUT, "within 300 ms"},
              {"/silent", ERR_BAD_INPUT, "within 300 ms"},
              {"/headers", ERR_BAD_INPUT, "could not be fetched"}};
  for (size_t i = 0; i < ARRAY_LEN(slow); i++) {
    struct web w;
    char allow[60], url[100];
    web_start(&w);
    snprintf(allow, sizeof allow, "127.0.0.1:%d", w.port);
    snprintf(url, sizeof url, "http://127.0.0.1:%%d%s", slow[i].path);
    const struct fetch_options o = {.allow = allow, .max_bytes = 100000, .timeout_ms = 300};
    int64_t begin = clock_ns();
    if (!ask(&w, url, &o, &out, &e) || e.code != slow[i].code || !strstr(e.msg, slow[i].why))
      fail_msg("%s: %d %s", slow[i].path, (int)e.code, e.msg);
    if (clock_ns() - begin > 1500000000) fail_msg("%s took too long", slow[i].path);
    assert_int_equal(out.len, 0);
    assert_true(out.cap_bytes < 1 << 20);
    buf_free(&out);
    web_stop(&w);
  }
  struct web w;
  char allow[60];
  atomic_int asked = 0;
  web_start(&w);
  snprintf(allow, sizeof allow, "127.0.0.1:%d", w.port);
  const struct fetch_options o = {.allow = allow, .max_bytes = 1 << 30, .timeout_ms = 30000, .stop = stop_at_once, .ctx = &asked};
  int64_t begin = clock_ns();
  assert_int_equal(ask(&w, "http://127.0.0.1:%d/slow", &o, &out, &e), -1);
  assert_int_equal(e.code, ERR_CANCELLED);
  assert_true(clock_ns() - begin < 6000000000);
  buf_free(&out);
  web_stop(&w);
}

/* Proxies of the environment are none of ours. */
/* The resolver of this program: a name whose server does not answer for a while, and is then not found. */
enum { LOOKUP_MS = 1500 };
static atomic_int n_lookups, n_looked_up;

__attribute__((visibility("default"))) int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                                                       struct addrinfo **out) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
  if (!name || strcmp(name, "slow.test")) {
    void *found = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &found, sizeof real);
    return real(name, service, hints, out);
  }
  atomic_fetch_add(&n_lookups, 1);
  usleep(LOOKUP_MS * 1000);
  atomic_fetch_add(&n_looked_up, 1);
  return EAI_AGAIN;
}

static bool at_once(void *ctx) {
  (void)ctx;
  return true;
}

/* Neither is the time that is allowed exceeded, nor can threads that look up be piled up by leaving. */
static void slow_lookups(void **state) {
  (void)state;
  struct fetch_options o = {.any = true, .max_bytes = 1000, .timeout_ms = 300};
  struct buf out;
  struct err e;
  for (int leave = 0; leave < 2; leave++) {
    int64_t begin = clock_ns();
    buf_init(&out, 0);
    o.stop = leave ? at_once : NULL;
    assert_int_equal(fetch(str_c("http://slow.test/a.png"), &o, &out, &e), -1);
    int ms = (int)((clock_ns() - begin) / 1000000);
    buf_free(&out);
    if (ms < 250 || ms > LOOKUP_MS - 200) fail_msg("%d ms: %s", ms, e.msg);
    if (leave) assert_int_equal(e.code, ERR_CANCELLED);
    else assert_non_null(strstr(e.msg, "within 300 ms"));
  }
  for (int i = 0; i < 500 && atomic_load(&n_looked_up) < atomic_load(&n_lookups); i++) usleep(10000);
  assert_int_equal(atomic_load(&n_looked_up), 2);
  usleep(50000); /* for the threads' own end */
}

static void no_proxies(void **state) {
  (void)state;
  struct web w, proxy;
  struct buf out;
  struct err e;
  char allow[60], text[80];
  web_start(&w);
  web_start(&proxy);
  snprintf(text, sizeof text, "http://127.0.0.1:%d", proxy.port);
  setenv("http_proxy", text, 1);
  setenv("ALL_PROXY", text, 1);
  snprintf(allow, sizeof allow, "127.0.0.1:%d", w.port);
  const struct fetch_options o = {.allow = allow, .max_bytes = 1000, .timeout_ms = 3000};
  assert_int_equal(ask(&w, "http://127.0.0.1:%d/ok", &o, &out, &e), 0);
  assert_int_equal(atomic_load(&proxy.n_connections), 0);
  buf_free(&out);
  unsetenv("http_proxy");
  unsetenv("ALL_PROXY");
  web_stop(&w);
  web_stop(&proxy);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(public_addresses), cmocka_unit_test(lists_of_hosts), cmocka_unit_test(fetched),
    cmocka_unit_test(closed_addresses), cmocka_unit_test(limits_hold),    cmocka_unit_test(no_proxies),
    cmocka_unit_test(slow_lookups),
};
TEST_MAIN(tests)
