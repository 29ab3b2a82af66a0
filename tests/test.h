/* test.h — what every test program includes: cmocka in the order it wants, and a few helpers.
 *
 * A test program is tests/ROOM/t_NAME.c with a main that calls cmocka_run_group_tests. Fixtures are found with
 * test_path("golden/text/x.jsonl"), which is relative to tests/ whatever the working directory.
 */
#ifndef CYGNET_TEST_H
#define CYGNET_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"

/* Path under tests/ (build-time source folder); result is static, one of a ring of 8. */
const char *test_path(const char *relative);
/* A fresh empty folder for this program, removed at exit. */
const char *test_tmpdir(void);
/* A file below test_tmpdir(), its folders made. */
void test_put_file(const char *path, const char *text);
/* Write a file into test_tmpdir; returns its path (ring of 8). */
const char *test_write(const char *name, const void *data, size_t n_bytes);
/* Whole file, NUL terminated, returns owned; fails the test if missing. */
char *test_read(const char *path, size_t *n_bytes);
/* Between the two nothing may be written to stderr: libraries are not to speak to the terminal. */
int test_silence_begin(void); /* for the other */
void test_silence_end(int saved);

/* Small deterministic generator for test data. */
uint64_t test_rand(uint64_t *state);
int test_rand_int(uint64_t *state, int lo, int hi); /* inclusive */
float test_rand_normal(uint64_t *state);

/* n bytes that end exactly at an inaccessible page: reading or writing one too far faults. Freed with test_guard_free. */
void *test_guard_alloc(size_t n_bytes);
void test_guard_free(void *p, size_t n_bytes);

/* ThreadSanitizer makes a step some twenty times as long: whole engines try fewer roads under it, and all of them without. */
#ifdef __SANITIZE_THREAD__
enum { TEST_TSAN = 1 };
#else
enum { TEST_TSAN = 0 };
#endif

/* Sanitizers, checkers of invariants and emulation make everything some ten times as long: what tries many cases or large ones tries about one in
 * so many in such a build, and all of them in the optimised one. */
#ifdef CYGNET_DEBUG
enum { TEST_LESS = 4 };
#else
enum { TEST_LESS = 1 };
#endif

/* Greatest |a-b| over the rms of b, and the relative L2 distance: print both, bound both. */
void test_compare(const float *a, const float *b, size_t n, double *rel_max, double *rel_l2);

#define TEST_MAIN(tests)                                                                                                                   \
  int main(void) {                                                                                                                         \
    const char *filter = getenv("CYGNET_TEST_FILTER");                                                                                     \
    if (filter && *filter) cmocka_set_test_filter(filter);                                                                                 \
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;                                                                              \
  }

#include <stdlib.h>

#endif
