/* t_map.c — mapping files, and the reader that cannot leave its bytes. */
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/map.h"

static void opens_and_closes(void **s) {
  (void)s;
  struct err e = {0};
  struct map m;
  const char *path = test_write("a.bin", "hello", 5);
  assert_int_equal(map_open(&m, path, &e), 0);
  assert_int_equal(m.n_bytes, 5);
  assert_memory_equal(m.data, "hello", 5);
  assert_string_equal(m.path, path);
  assert_true(map_unchanged(&m));
  map_done_with(&m, m.data, m.n_bytes); /* less than a page: nothing happens */
  assert_memory_equal(m.data, "hello", 5);
  map_close(&m);
  assert_null(m.data);
  map_close(&m);
}

static void empty_file(void **s) {
  (void)s;
  struct err e = {0};
  struct map m;
  assert_int_equal(map_open(&m, test_write("empty", "", 0), &e), 0);
  assert_null(m.data);
  assert_int_equal(m.n_bytes, 0);
  assert_true(map_unchanged(&m));
  test_write("empty", "x", 1);
  assert_false(map_unchanged(&m));
  map_close(&m);
}

static void refuses(void **s) {
  (void)s;
  struct err e = {0};
  struct map m;
  assert_int_equal(map_open(&m, "/no/such/file", &e), -1);
  assert_int_equal(e.code, ERR_NOT_FOUND);
  assert_non_null(strstr(e.msg, "/no/such/file"));
  assert_null(m.path);
  assert_int_equal(map_open(&m, test_tmpdir(), &e), -1);
  assert_int_equal(e.code, ERR_BAD_FILE);
  assert_non_null(strstr(e.msg, "found a folder"));
  assert_int_equal(map_open(&m, "/dev/zero", &e), -1);
  assert_int_equal(e.code, ERR_BAD_FILE);
  char fifo[300];
  snprintf(fifo, sizeof fifo, "%s/fifo", test_tmpdir());
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(map_open(&m, fifo, &e), -1); /* and does not wait for a writer */
  assert_non_null(strstr(e.msg, "found a pipe"));
  map_close(&m);
}

static void sees_changes(void **s) {
  (void)s;
  struct err e = {0};
  struct map m;
  const char *path = test_write("b.bin", "0123456789", 10);
  assert_int_equal(map_open(&m, path, &e), 0);
  assert_int_equal(truncate(path, 9), 0);
  assert_false(map_unchanged(&m));
  assert_int_equal(truncate(path, 10), 0);
  struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  assert_false(map_unchanged(&m)); /* the size is the old one again, the time is not */
  unlink(path);
  assert_false(map_unchanged(&m));
  map_close(&m);
}

static void done_with_keeps_the_bytes(void **s) {
  (void)s;
  struct err e = {0};
  struct map m;
  size_t n = 10 * 4096 + 17;
  unsigned char *bytes = malloc(n);
  for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(i * 7);
  assert_int_equal(map_open(&m, test_write("c.bin", bytes, n), &e), 0);
  map_done_with(&m, m.data + 100, n - 200);
  assert_memory_equal(m.data, bytes, n);
  map_close(&m);
  /* plain memory is left alone */
  struct map plain = {.data = bytes, .n_bytes = n};
  map_done_with(&plain, bytes, n);
  assert_int_equal(bytes[5000], (unsigned char)(5000 * 7));
  free(bytes);
}

static void labels(void **s) {
  (void)s;
  char text[200], path[3000];
  assert_string_equal(path_label("dir/model.gguf", text), "dir/model.gguf");
  assert_string_equal(path_label("a\nb", text), "a\\x0ab");
  memset(path, 'd', sizeof path);
  strcpy(path + 2000, "/model.gguf");
  path_label(path, text);
  assert_int_equal(memcmp(text, "...", 3), 0);
  assert_string_equal(text + strlen(text) - 11, "/model.gguf");
  for (int n = 0; n < 300; n++) { /* every length, of bytes that take four */
    memset(path, 0xe4, (size_t)n);
    path[n] = 0;
    assert_true(strlen(path_label(path, text)) < 200);
    if (n) assert_string_equal(text + strlen(text) - 4, "\\xe4");
    if (n <= 49) assert_int_equal(strlen(text), 4 * n);
  }
}

/* Against memory that ends at a guard page: every start, every length. */
static void reader_stays_inside(void **s) {
  (void)s;
  unsigned char *p = test_guard_alloc(16);
  for (int i = 0; i < 16; i++) p[i] = (unsigned char)(i + 1);
  for (int start = 0; start <= 16; start++) {
    for (uint64_t n = 0; n < 20; n++) {
      struct reader r = {p + start, p + 16, false};
      struct str b = reader_bytes(&r, n);
      if (n <= (uint64_t)(16 - start)) {
        assert_false(r.bad);
        assert_int_equal(b.n, n);
        assert_ptr_equal(b.p, p + start);
        assert_int_equal(reader_left(&r), 16 - start - (int)n);
      } else {
        assert_true(r.bad);
        assert_int_equal(b.n, 0);
        assert_int_equal(reader_left(&r), 0);
      }
    }
    struct reader r = {p + start, p + 16, false};
    uint64_t v = reader_u64(&r);
    assert_int_equal(r.bad, start > 8);
    if (start <= 8) assert_int_equal(v >> 56, start + 8);
    else assert_int_equal(v, 0);
    assert_int_equal(reader_u8(&r), start < 8 ? start + 9 : 0);
  }
  struct reader r = {p, p + 16, false};
  assert_int_equal(reader_u16(&r), 0x0201);
  assert_int_equal(reader_u32(&r), 0x06050403);
  reader_bytes(&r, UINT64_MAX);
  assert_true(r.bad);
  assert_int_equal(reader_u8(&r), 0); /* stays bad */
  test_guard_free(p, 16);
}

static void reader_floats(void **s) {
  (void)s;
  float f = -1.5f;
  double d = 1e-300;
  unsigned char bytes[13] = {0};
  memcpy(bytes + 1, &f, 4);
  memcpy(bytes + 5, &d, 8);
  struct reader r = {bytes + 1, bytes + 13, false};
  assert_true(reader_f32(&r) == f);
  assert_true(reader_f64(&r) == d);
  assert_true(reader_f32(&r) == 0 && r.bad);
}

const struct CMUnitTest tests[] = {
    cmocka_unit_test(opens_and_closes),
    cmocka_unit_test(empty_file),
    cmocka_unit_test(refuses),
    cmocka_unit_test(sees_changes),
    cmocka_unit_test(done_with_keeps_the_bytes),
    cmocka_unit_test(labels),
    cmocka_unit_test(reader_stays_inside),
    cmocka_unit_test(reader_floats),
};
TEST_MAIN(tests)
