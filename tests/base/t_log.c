/* t_log.c — what reaches stderr: on a pipe, and on a terminal with colours and a progress line. */
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

/* stderr of the lines between catch_begin and catch_end. */
struct catch {
  int saved, from, terminal; /* terminal: the slave side held open, or -1 */
};

/* A bare container may have no devpts file system. */
static bool has_terminals(void) {
  int fd = posix_openpt(O_RDWR | O_NOCTTY);
  bool ok = fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0 && access(ptsname(fd), R_OK | W_OK) == 0;
  if (fd >= 0) close(fd);
  if (!ok) printf("  no pseudo-terminals here\n");
  return ok;
}

static void catch_begin(struct catch *c, bool terminal) {
  int fds[2];
  fflush(stderr);
  c->saved = dup(2);
  c->terminal = -1;
  if (terminal) {
    fds[0] = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(fds[0] >= 0 && grantpt(fds[0]) == 0 && unlockpt(fds[0]) == 0);
    fds[1] = open(ptsname(fds[0]), O_RDWR | O_NOCTTY);
    assert_true(fds[1] >= 0);
    struct termios raw;
    tcgetattr(fds[1], &raw);
    cfmakeraw(&raw);
    tcsetattr(fds[1], TCSANOW, &raw);
    c->terminal = dup(fds[1]);
  } else {
    assert_int_equal(pipe(fds), 0);
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  dup2(fds[1], 2);
  close(fds[1]);
  c->from = fds[0];
}

static void catch_end(struct catch *c, char *text, size_t n_bytes) {
  size_t n = 0;
  usleep(2000); /* a terminal hands bytes over a moment later */
  for (ssize_t r; n + 1 < n_bytes && (r = read(c->from, text + n, n_bytes - 1 - n)) > 0;) n += (size_t)r;
  text[n] = 0;
  dup2(c->saved, 2);
  close(c->saved);
  close(c->from);
  if (c->terminal >= 0) close(c->terminal);
}

static void lines(void **state) {
  (void)state;
  struct catch c;
  char text[8192], room[32];
  int h, m, s, ms, x = 0;
  catch_begin(&c, false);
  log_line(LOG_INFO, "engine", "not at this level");
  log_line(LOG_WARN, "engine", "a=%d b=%s", 1, "two\nlines\x1b[0m");
  log_progress("loading", 1, 2);
  catch_end(&c, text, sizeof text);
  assert_int_equal(sscanf(text, "%*4d-%*2d-%*2d %2d:%2d:%2d.%3d warn  %31s a=%d b=two lines", &h, &m, &s, &ms, room, &x), 6);
  assert_string_equal(room, "engine");
  assert_string_equal(text + 23, " warn  engine  a=1 b=two lines [0m\n");

  log_set_level(LOG_DEBUG);
  assert_int_equal(log_level(), LOG_DEBUG);
  char big[6000];
  memset(big, 'x', sizeof big - 1);
  big[sizeof big - 1] = 0;
  catch_begin(&c, false);
  log_line(LOG_DEBUG, "kv", "%s", big);
  log_line(LOG_ERROR, "a-room-with-a-name-that-is-much-too-long", "y");
  catch_end(&c, text, sizeof text);
  log_set_level(LOG_WARN);
  char *second = strchr(text, '\n');
  assert_non_null(second);
  assert_true(second - text > 1900 && second - text < 2048);
  assert_non_null(strstr(second, "error a-room-with"));
  assert_int_equal(text[strlen(text) - 1], '\n');
}

static void terminal(void **state) {
  (void)state;
  if (!has_terminals()) skip();
  struct catch c;
  char text[2048];
  unsetenv("NO_COLOR");
  catch_begin(&c, true);
  log_line(LOG_ERROR, "kv", "red");
  setenv("NO_COLOR", "1", 1);
  log_line(LOG_ERROR, "kv", "plain");
  unsetenv("NO_COLOR");
  catch_end(&c, text, sizeof text);
  char *second = strchr(text, '\n');
  assert_non_null(second);
  *second++ = 0;
  assert_string_equal(text + 13, "\033[31merror \033[0mkv      red");
  assert_string_equal(second + 13, "error kv      plain\n");
}

static void progress(void **state) {
  (void)state;
  if (!has_terminals()) skip();
  struct catch c;
  char text[2048];
  catch_begin(&c, true);
  log_progress("loading weights", 43, 100);
  for (size_t i = 44; i < 60; i++) log_progress("loading weights", i, 100); /* too soon to be drawn */
  usleep(110000);
  log_progress("loading weights", 60, 100);
  log_progress("loading weights", 100, 100);
  log_progress("loading weights", 100, 100);
  catch_end(&c, text, sizeof text);
  assert_string_equal(text, "\r\033[Kloading weights  43 %\r\033[Kloading weights  60 %\r\033[Kloading weights  100 %\n");

  catch_begin(&c, true);
  log_progress("loading", 0, 0); /* nothing to do: nothing is drawn */
  log_progress("loading", 1, 2);
  log_line(LOG_WARN, "kv", "between");
  catch_end(&c, text, sizeof text);
  const char *line = strstr(text, "50 %\r\033[K");
  assert_non_null(line);
  assert_non_null(strstr(line, "between\n"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(lines),
    cmocka_unit_test(terminal),
    cmocka_unit_test(progress),
};
TEST_MAIN(tests)
