/* t_err.c — messages are cut to whole characters, prefixes go in front, codes map as the table in err.h says. */
#include "test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"

static void sets_code_and_message(void **state) {
  (void)state;
  struct err e = {0};
  assert_int_equal(err_set(&e, ERR_BAD_FILE, "tensor %s: expected %d", "a", 7), -1);
  assert_int_equal(e.code, ERR_BAD_FILE);
  assert_string_equal(e.msg, "tensor a: expected 7");
  assert_int_equal(err_prefix(&e, "file %d", 3), -1);
  assert_string_equal(e.msg, "file 3: tensor a: expected 7");
  assert_int_equal(e.code, ERR_BAD_FILE);
  assert_int_equal(err_set(&e, ERR_IO, "again: %s", e.msg), -1); /* the old message as an argument */
  assert_string_equal(e.msg, "again: file 3: tensor a: expected 7");
  assert_int_equal(err_set(NULL, ERR_IO, "x"), -1);
  assert_int_equal(err_prefix(NULL, "x"), -1);
}

/* Whatever the length, a cut never leaves half a character. */
static void cuts_whole_characters(void **state) {
  (void)state;
  for (size_t n = 480; n < 530; n++) {
    for (int kind = 0; kind < 3; kind++) {
      static const char *const fill[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\xa6\xa2"};
      char text[640] = {0};
      memset(text, 'a', n % 4);
      while (strlen(text) < n) strcat(text, fill[kind]);
      struct err e;
      err_set(&e, ERR_IO, "%s", text);
      assert_true(utf8_valid(e.msg, strlen(e.msg)));
      assert_true(strlen(e.msg) >= MIN(strlen(text), sizeof e.msg - 1) - 3);
      assert_memory_equal(e.msg, text, strlen(e.msg));
      err_prefix(&e, "%.*s", (int)(n % 17), text);
      assert_true(utf8_valid(e.msg, strlen(e.msg)));
    }
  }
  struct err e;
  err_set(&e, ERR_IO,
          "a\xff"
          "b\xe2\x82");
  assert_string_equal(e.msg, "a?b");
}

static void long_prefix_is_cut(void **state) {
  (void)state;
  struct err e;
  char text[600];
  memset(text, 'p', sizeof text - 1);
  text[sizeof text - 1] = 0;
  err_set(&e, ERR_IO, "message");
  err_prefix(&e, "%s", text);
  assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
  text[505] = 0;
  err_set(&e, ERR_IO, "message");
  err_prefix(&e, "%s", text);
  assert_string_equal(e.msg + 505, ": mess");
}

static void statuses(void **state) {
  (void)state;
  static const struct {
    enum err_code code;
    int http, exit;
  } rows[] = {{ERR_NONE, 200, 0},      {ERR_BAD_INPUT, 400, 2}, {ERR_BAD_FILE, 400, 2}, {ERR_UNSUPPORTED, 400, 2},
              {ERR_TOO_LARGE, 413, 2}, {ERR_NOT_FOUND, 404, 2}, {ERR_BUSY, 503, 1},     {ERR_IO, 500, 1},
              {ERR_NO_MEMORY, 500, 1}, {ERR_CANCELLED, 499, 1}, {ERR_INTERNAL, 500, 1}};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    assert_int_equal(err_http_status(rows[i].code), rows[i].http);
    assert_int_equal(err_exit_status(rows[i].code), rows[i].exit);
    for (size_t k = 0; k < i; k++) assert_string_not_equal(err_code_name(rows[i].code), err_code_name(rows[k].code));
  }
}

static void check_aborts_and_says_where(void **state) {
  (void)state;
  int fds[2], status;
  assert_int_equal(pipe(fds), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], 2);
    signal(SIGABRT, SIG_DFL);
    int two = 2;
    CHECK(two == 3);
    _exit(0);
  }
  close(fds[1]);
  char text[512];
  ssize_t n = read(fds[0], text, sizeof text - 1);
  text[MAX(n, 0)] = 0;
  close(fds[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  assert_non_null(strstr(text, "t_err.c:"));
  assert_non_null(strstr(text, "two == 3"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sets_code_and_message),       cmocka_unit_test(cuts_whole_characters),
    cmocka_unit_test(long_prefix_is_cut),          cmocka_unit_test(statuses),
    cmocka_unit_test(check_aborts_and_says_where),
};
TEST_MAIN(tests)
