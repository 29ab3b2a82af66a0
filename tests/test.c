/* test.c — helpers of test.h. */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static char ring[8][4096];
static int ring_at;
static char *ring_next(void) { return ring[ring_at++ & 7]; }

const char *test_path(const char *relative) {
  char *p = ring_next();
  const char *root = getenv("CYGNET_TESTS");
  if (!root) root = access("tests/test.h", R_OK) == 0 ? "tests" : NULL;
  if (!root) {
    /* programs live in BUILD/MODE/tests/ROOM; the sources are four levels up */
    static char found[3000];
    ssize_t n = readlink("/proc/self/exe", found, sizeof found - 1);
    found[n > 0 ? n : 0] = 0;
    for (char *cut; (cut = strrchr(found, '/'));) {
      *cut = 0;
      char probe[3100];
      snprintf(probe, sizeof probe, "%s/tests/test.h", found);
      if (access(probe, R_OK) == 0) break;
    }
    snprintf(p, sizeof ring[0], "%s/tests/%s", found, relative);
    return p;
  }
  snprintf(p, sizeof ring[0], "%s/%s", root, relative);
  return p;
}

static char tmpdir[256];

static void remove_tree(const char *path) {
  DIR *d = opendir(path);
  if (!d) {
    unlink(path);
    return;
  }
  for (struct dirent *f; (f = readdir(d));) {
    if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
    char sub[4096];
    snprintf(sub, sizeof sub, "%s/%s", path, f->d_name);
    remove_tree(sub);
  }
  closedir(d);
  rmdir(path);
}
static void remove_tmpdir(void) { remove_tree(tmpdir); }

const char *test_tmpdir(void) {
  if (!tmpdir[0]) {
    const char *base = getenv("TMPDIR");
    snprintf(tmpdir, sizeof tmpdir, "%s/cygnet-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(tmpdir)) fail_msg("cannot make a temporary folder");
    atexit(remove_tmpdir);
  }
  return tmpdir;
}

const char *test_write(const char *name, const void *data, size_t n_bytes) {
  char *p = ring_next();
  snprintf(p, sizeof ring[0], "%s/%s", test_tmpdir(), name);
  FILE *f = fopen(p, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, n_bytes, f), n_bytes);
  fclose(f);
  return p;
}

char *test_read(const char *path, size_t *n_bytes) {
  char packed[4096 + 4];
  snprintf(packed, sizeof packed, "%s.gz", path);
  gzFile f = gzopen(access(path, R_OK) == 0 ? path : packed, "rb");
  if (!f) fail_msg("missing test file %s", path);
  size_t n = 0, cap = 1 << 20;
  char *p = malloc(cap + 1);
  assert_non_null(p);
  for (int got; (got = gzread(f, p + n, (unsigned)(cap - n))) != 0; n += (size_t)got) {
    if (got < 0) fail_msg("cannot read %s", path);
    if (n + (size_t)got == cap) assert_non_null(p = realloc(p, (cap *= 2) + 1));
  }
  p[n] = 0;
  gzclose(f);
  if (n_bytes) *n_bytes = n;
  return p;
}

int test_silence_begin(void) {
  int saved = dup(2), to = open(test_write("stderr", "", 0), O_WRONLY | O_TRUNC);
  dup2(to, 2);
  close(to);
  return saved;
}

void test_silence_end(int saved) {
  size_t n;
  char path[300];
  fflush(stderr);
  dup2(saved, 2);
  close(saved);
  snprintf(path, sizeof path, "%s/stderr", test_tmpdir());
  char *said = test_read(path, &n);
  if (n) fail_msg("printed: %s", said);
  free(said);
}

uint64_t test_rand(uint64_t *state) { /* splitmix64 */
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
int test_rand_int(uint64_t *state, int lo, int hi) { return lo + (int)(test_rand(state) % (uint64_t)(hi - lo + 1)); }
float test_rand_normal(uint64_t *state) {
  double u = ((double)(test_rand(state) >> 11) + 0.5) * 0x1p-53, v = (double)(test_rand(state) >> 11) * 0x1p-53;
  return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static size_t guard_span(size_t n_bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (n_bytes + page - 1) / page * page + page;
}
void *test_guard_alloc(size_t n_bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guard_span(n_bytes);
  char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(p != MAP_FAILED);
  assert_int_equal(mprotect(p + span - page, page, PROT_NONE), 0);
  return p + span - page - n_bytes;
}
void test_guard_free(void *p, size_t n_bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), span = guard_span(n_bytes);
  munmap((char *)p + n_bytes + page - span, span);
}

void test_compare(const float *a, const float *b, size_t n, double *rel_max, double *rel_l2) {
  double worst = 0, diff2 = 0, ref2 = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)a[i] - (double)b[i];
    if (!(fabs(d) <= worst)) worst = fabs(d);
    diff2 += d * d;
    ref2 += (double)b[i] * (double)b[i];
  }
  double rms = sqrt(ref2 / (double)(n ? n : 1));
  *rel_max = rms > 0 ? worst / rms : worst;
  *rel_l2 = ref2 > 0 ? sqrt(diff2 / ref2) : sqrt(diff2);
}

void test_put_file(const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s/%s", test_tmpdir(), path);
  for (char *slash = full + strlen(test_tmpdir()) + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    mkdir(full, 0777);
    *slash = '/';
  }
  FILE *f = fopen(full, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}
