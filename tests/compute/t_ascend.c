/* t_ascend.c — the NPU backend's own ground, on the emulated device in every profile: finding CANN, opening and closing, memory, copies, what is
 * held, launches, steps; and what each of them does when something fails. T_ASCEND_SAYS=1 prints what failures say, for a look by eye.
 */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "compute/ascend/ascend.h"
#include "npu.h"

static struct device_config config = {.n_threads = 2, .rows_max = 64, .cols_max = 512, .positions_max = 128};

static struct ascend *open_npu(void) {
  struct err e = {0};
  struct device *d = device_ascend_ops.open(&config, &e);
  if (!d) fail_msg("%s", e.msg);
  return ascend_of(d);
}

static void close_npu(struct ascend *d) { d->device.ops->close(&d->device); }

static void well(struct ascend *d) {
  struct err e = {0};
  if (ascend_finish(&d->device, &e)) fail_msg("%s", e.msg);
}

/* Nothing is left, and nothing was done that the emulator frowns upon. */
static void check_clean(void) {
  const struct acl_emu *emu = npu_emu();
  if (*emu->leaks()) fail_msg("left: %s", emu->leaks());
  if (*emu->finalize_leaks()) fail_msg("left at aclFinalize: %s", emu->finalize_leaks());
  if (emu->violations()) fail_msg("%s", emu->violation());
}

static struct acl_emu_counts counts(void) {
  struct acl_emu_counts c;
  npu_emu()->counts(&c);
  return c;
}

static const struct device_ops *const O = &device_ascend_ops;

/* Rounded as the device rounds. */
static float rounded(const struct ascend *d, float x) {
  return d->dtype == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(x)) : f16_to_f32(f32_to_f16(x));
}

/* ---- finding CANN ------------------------------------------------------------------------------------------------------------------- */

/* In a process of its own: the environment, and libraries that stay loaded. */
static void open_fails(const char *home, const char *name, const char *value, const char *const *says) {
  fflush(NULL);
  int ends[2], status;
  char text[600] = "";
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    struct err e = {0};
    if (home) setenv("ASCEND_HOME_PATH", home, 1);
    else unsetenv("ASCEND_HOME_PATH");
    if (name) setenv(name, value, 1);
    struct device *d = O->open(&config, &e);
    snprintf(text, sizeof text, "%d %s", d ? -1 : err_exit_status(e.code), d ? "opened" : e.msg);
    ssize_t n = write(ends[1], text, strlen(text));
    _exit(n > 0 ? 0 : 1);
  }
  close(ends[1]);
  ssize_t n = read(ends[0], text, sizeof text - 1);
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(n > 2);
  text[n] = 0;
  if (strncmp(text, "2 ", 2)) fail_msg("%s=%s: exit status is not 2: %s", name ? name : "", name ? value : "", text);
  for (; *says; says++)
    if (!strstr(text, *says)) fail_msg("\"%s\" is not said in: %s", *says, text);
}

static void without_libraries(void **state) {
  (void)state;
  const char *empty = test_tmpdir();
  open_fails(NULL, NULL, NULL,
             (const char *const[]){"CANN is not here", "libascendcl.so", "LD_LIBRARY_PATH", "ASCEND_HOME_PATH", "not set", NULL});
  open_fails(empty, NULL, NULL, (const char *const[]){"CANN is not here", "libascendcl.so", "set_env.sh", NULL});
}

/* A folder lib64 with these names: rubbish, or links to a library that has nothing of CANN. */
static const char *library_folder(char home[300], const char *what, const char *const *names, bool rubbish) {
  char path[400];
  snprintf(home, 300, "%s/%s", test_tmpdir(), what);
  snprintf(path, sizeof path, "mkdir -p %s/lib64", home);
  assert_int_equal(system(path), 0);
  for (; *names; names++) {
    snprintf(path, sizeof path, "%s/lib64/%s", home, *names);
    if (rubbish) {
      FILE *f = fopen(path, "w");
      assert_non_null(f);
      fputs("this is no library", f);
      fclose(f);
    } else if (symlink("/lib/x86_64-linux-gnu/libz.so.1", path) && symlink("/usr/lib/libz.so.1", path)) fail();
  }
  return home;
}

static void with_wrong_libraries(void **state) {
  (void)state;
  char home[300];
  library_folder(home, "rubbish", (const char *const[]){"libascendcl.so", NULL}, true);
  open_fails(home, NULL, NULL, (const char *const[]){"libascendcl.so is there but does not load", "rubbish/lib64", NULL});
  if (access("/lib/x86_64-linux-gnu/libz.so.1", R_OK)) return;
  library_folder(home, "half", (const char *const[]){"libascendcl.so", NULL}, false);
  open_fails(home, NULL, NULL, (const char *const[]){"half/lib64", "libnnopbase.so", "does not load", NULL});
  library_folder(home, "no-operators", (const char *const[]){"libascendcl.so", "libnnopbase.so", NULL}, false);
  open_fails(home, NULL, NULL, (const char *const[]){"no library of operators", "libopapi.so", NULL});
  library_folder(home, "others", (const char *const[]){"libascendcl.so", "libnnopbase.so", "libopapi.so", NULL}, false);
  open_fails(home, NULL, NULL, (const char *const[]){"functions that are needed are missing", "aclInit", "aclFinalize", "8.1", NULL});
}

static void unknown_chips(void) {
  const char *home = getenv("ASCEND_HOME_PATH");
  static const char *const chips[] = {"Ascend910A", "Ascend950PR_9579", "Ascend310B1", "Ascend910B", "Ascend910B9", "\x1b[31mred"};
  for (size_t i = 0; i < ARRAY_LEN(chips); i++)
    open_fails(home, "ACL_EMU_SOC", chips[i], (const char *const[]){"expected Ascend910B1", "Ascend910_93", "Ascend310P", NULL});
  open_fails(home, "ACL_EMU_CANN", "8.0.0", (const char *const[]){"version 8.0", "8.1 to 9.x", NULL});
  open_fails(home, "ACL_EMU_CANN", "10.1.0", (const char *const[]){"version 10.1", NULL});
  config.number = 99;
  open_fails(home, NULL, NULL, (const char *const[]){"--device-id", "found 99", NULL});
  config.number = 0;
}

/* ---- profile, opening, closing ------------------------------------------------------------------------------------------------------ */

static void profile_is_read(void) {
  struct ascend *d = open_npu();
  const struct acl_emu *emu = npu_emu();
  const struct ascend_profile *p = &d->profile;
  char text[256];
  bool small = !strcmp(emu->profile, "310P-8.5"), newest = !strcmp(emu->profile, "A2-9.1") || !strcmp(emu->profile, "A3-9.1");
  assert_int_equal(p->cann, emu->cann);
  assert_string_equal(p->soc, emu->soc);
  assert_int_equal(p->chip, small ? ASCEND_310P : emu->profile[1] == '3' ? ASCEND_A3 : ASCEND_A2);
  assert_int_equal(p->has_bf16, !small);
  assert_int_equal(d->dtype, small ? DTYPE_F16 : DTYPE_BF16);
  assert_int_equal(p->fused, small ? 0 : p->cann == 801 ? 3 : 4);
  assert_int_equal(p->fused_wide_tnd, newest);
  assert_int_equal(p->has_scatter_paged, !small && p->cann > 801);
  assert_int_equal(p->has_capture, !small);
  assert_int_equal(p->has_task_update, !small);
  ascend_profile_text(p, text);
  assert_non_null(strstr(text, emu->soc));
  assert_non_null(strstr(text, small ? "no capture" : "capture with updates"));
  close_npu(d);
  check_clean();
}

/* Newer CANN has another name for the library of the runtime. */
static void open_renamed(const char *old_one) {
  char command[9200], home[300];
  const char *from = npu_folder(npu_current());
  snprintf(home, sizeof home, "%s/renamed%d/%s", test_tmpdir(), old_one != NULL, npu_current());
  snprintf(command, sizeof command, "mkdir -p %s/lib64 && ln -sf %s/../lib* %s/.. && cp %s/lib64/* %s/lib64 && cd %s/lib64 && mv %s %s",
           home, from, home, from, home, home, "libascendcl.so", "libacl_rt.so");
  assert_int_equal(system(command), 0);
  snprintf(command, sizeof command, "%s/lib64/libascendcl.so", home);
  if (old_one) assert_int_equal(symlink(old_one, command), 0);
  setenv("ASCEND_HOME_PATH", home, 1);
  struct ascend *d = open_npu();
  assert_non_null(strstr(d->acl.where, home));
  well(d);
  close_npu(d);
}
static void runtime_renamed(void) { open_renamed(NULL); }
/* The old one is there, but has not everything any more. */
static void runtime_beside(void) {
  const char *other = "/lib/x86_64-linux-gnu/libz.so.1";
  if (access(other, R_OK) == 0) open_renamed(other);
}

/* A stream that cannot be told to stop where something fails does as well. */
static void no_failure_mode(void) {
  npu_emu()->fault("aclrtSetStreamFailureMode", 1, 107000);
  struct ascend *d = open_npu();
  npu_emu()->fault(NULL, 0, 0);
  well(d);
  close_npu(d);
  check_clean();
}

static void open_and_close(void) {
  int rounds = strcmp(npu_current(), "A2-8.5") ? 10 : 100;
  for (int i = 0; i < rounds; i++) {
    struct ascend *d = open_npu();
    if (i % 3 == 0) { /* two at a time, closed in either order */
      struct ascend *other = open_npu();
      close_npu(i % 2 ? d : other);
      d = i % 2 ? other : d;
    }
    if (i % 5 == 0) {
      struct device_look l;
      struct err e = {0};
      if (O->look(0, &l, &e)) fail_msg("%s", e.msg);
      assert_true(l.free_bytes > 0 && l.free_bytes <= l.total_bytes && l.type == d->dtype && strstr(l.text, d->profile.soc));
    }
    well(d);
    close_npu(d);
  }
  struct acl a; /* takes over what the last look left running */
  struct err e = {0};
  if (acl_open(&a, &e)) fail_msg("%s", e.msg);
  acl_close(&a);
  check_clean();
}

/* What callers forgot is given back. */
static void close_frees_everything(void) {
  struct ascend *d = open_npu();
  struct tensor t, host;
  struct err e = {0};
  static const float w[100] = {1};
  assert_int_equal(O->alloc(&d->device, &t, 10, 10, "a", &e), 0);
  assert_int_equal(O->host_alloc(&d->device, &host, 10, 10, "b", &e), 0);
  assert_int_equal(O->hold(&d->device, w, 100, &e), 0);
  assert_non_null(ascend_temp(d, 10 << 20));
  assert_non_null(ascend_workspace(d, 10 << 20));
  O->stage(&d->device, &t);
  close_npu(d);
  check_clean();
}

/* ---- tensors, both ways ---------------------------------------------------------------------------------------------------------------- */

static void fill(uint64_t *seed, const struct tensor *staged) {
  for (int r = 0; r < staged->rows; r++)
    for (int c = 0; c < staged->cols; c++) tensor_row(staged, r)[c] = test_rand_normal(seed);
}

static void send_and_fetch(void) {
  struct ascend *d = open_npu();
  struct err e = {0};
  uint64_t seed = 5;
  for (int round = 0; round < 60; round++) {
    bool large = round == 19; /* more than the pinned memory for copies */
    int rows = large ? 700 : test_rand_int(&seed, 1, 40), cols = large ? 6500 : test_rand_int(&seed, 1, 300);
    struct tensor t, host;
    if (O->alloc(&d->device, &t, rows, cols, "test", &e) || O->host_alloc(&d->device, &host, rows, cols, "test", &e)) fail_msg("%s", e.msg);
    assert_true(t.row_bytes % 64 == 0 && (uintptr_t)t.data % 64 == 0 && t.dtype == d->dtype);
    O->fetch(&d->device, &host, &t);
    assert_true(host.rows == rows && host.cols == cols);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < cols; c++) assert_true(tensor_row(&host, r)[c] == 0); /* fresh memory is zero */
    float *want = calloc((size_t)rows * (size_t)cols, sizeof *want);
    for (int part = 0; part < (large ? 1 : 4); part++) { /* parts at odd places; the rest stays */
      int row = part ? test_rand_int(&seed, 0, rows - 1) : 0, col = part ? test_rand_int(&seed, 0, cols - 1) : 0;
      struct tensor p = tensor_part(t, row, part ? test_rand_int(&seed, 1, rows - row) : rows, col,
                                    part ? test_rand_int(&seed, 1, cols - col) : cols);
      struct tensor staged = O->stage(&d->device, &p);
      assert_true(staged.rows == p.rows && staged.cols == p.cols && staged.dtype == DTYPE_F32);
      fill(&seed, &staged);
      for (int r = 0; r < p.rows; r++)
        for (int c = 0; c < p.cols; c++) want[(size_t)(row + r) * (size_t)cols + (size_t)(col + c)] = rounded(d, tensor_row(&staged, r)[c]);
      O->send(&d->device, &p, &staged);
      for (int r = 0; r < staged.rows; r++) memset(tensor_row(&staged, r), 0xff, (size_t)staged.cols * sizeof(float)); /* read already */
    }
    int row = test_rand_int(&seed, 0, rows - 1), col = test_rand_int(&seed, 0, cols - 1); /* a part comes back, too */
    struct tensor p = tensor_part(t, row, rows - row, col, cols - col);
    O->fetch(&d->device, &host, &p);
    for (int r = 0; r < p.rows; r++)
      for (int c = 0; c < p.cols; c++) assert_true(tensor_row(&host, r)[c] == want[(size_t)(row + r) * (size_t)cols + (size_t)(col + c)]);
    O->fetch(&d->device, &host, &t);
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < cols; c++) assert_true(tensor_row(&host, r)[c] == want[(size_t)r * (size_t)cols + (size_t)c]);
    free(want);
    O->free(&d->device, &t);
    O->host_free(&d->device, &host);
  }
  struct tensor t;
  assert_int_equal(O->alloc(&d->device, &t, 0, 10, "none", &e), 0);
  assert_null(t.data);
  O->free(&d->device, &t);
  well(d);
  close_npu(d);
  check_clean();
}

/* ---- what is held ----------------------------------------------------------------------------------------------------------------------- */

static void device_floats(struct ascend *d, const void *device, aclDataType type, int n, float *out) {
  char raw[4096];
  assert_true(ascend_wait(d));
  size_t elem = type == NPU_FLOAT ? 4 : 2;
  assert_int_equal(npu_emu()->peek(device, raw, (size_t)n * elem), 0 + 1);
  dtype_to_f32(type == NPU_FLOAT ? DTYPE_F32 : d->dtype, raw, out, (size_t)n);
}

static void check_vector(struct ascend *d, const float *w, int n, aclDataType type) {
  float found[1024];
  const void *device = ascend_vector(d, w, n, type);
  assert_non_null(device);
  assert_true((uintptr_t)device % 32 == 0);
  device_floats(d, device, type, n, found);
  for (int i = 0; i < n; i++) assert_true(found[i] == (type == NPU_FLOAT ? w[i] : rounded(d, w[i])));
}

static void vectors_are_held(void) {
  enum { ARENAS = 12, FLOATS = 700 };
  struct ascend *d = open_npu();
  struct err e = {0};
  uint64_t seed = 11;
  float *arenas[ARENAS];
  for (int i = 0; i < ARENAS; i++) {
    arenas[i] = malloc(FLOATS * sizeof(float));
    for (int k = 0; k < FLOATS; k++) arenas[i][k] = test_rand_normal(&seed);
    if (O->hold(&d->device, arenas[i], FLOATS, &e)) fail_msg("%s", e.msg);
  }
  well(d);
  uint64_t before = counts().h2d_bytes;
  for (int round = 0; round < 200; round++) { /* anywhere in a held range: nothing is sent */
    const float *w = arenas[test_rand_int(&seed, 0, ARENAS - 1)];
    int at = round % 2 ? test_rand_int(&seed, 0, FLOATS - 1) : test_rand_int(&seed, 0, FLOATS / 16 - 1) * 16;
    ascend_temp_reset(d);
    check_vector(d, w + at, test_rand_int(&seed, 1, FLOATS - at), round % 4 < 2 ? NPU_FLOAT : d->type);
  }
  assert_int_equal(counts().h2d_bytes, before);
  for (int k = 0; k < FLOATS; k++) arenas[3][k] = 9; /* as they were when they were held */
  float found[4];
  device_floats(d, ascend_vector(d, arenas[3], 4, NPU_FLOAT), NPU_FLOAT, 4, found);
  assert_true(found[0] != 9);
  for (int i = 0; i < ARENAS; i += 2) O->drop(&d->device, arenas[i]);
  for (int i = 0; i < ARENAS; i++)
    if (i != 3) check_vector(d, arenas[i], 100, NPU_FLOAT); /* dropped ones are sent now */
  float loose[50];
  for (int k = 0; k < 50; k++) loose[k] = (float)k;
  check_vector(d, loose, 50, d->type);
  O->drop(&d->device, loose); /* never held: nothing happens */
  for (int i = 1; i < ARENAS; i += 2) O->drop(&d->device, arenas[i]);
  for (int i = 0; i < ARENAS; i++) free(arenas[i]);
  well(d);
  close_npu(d);
  check_clean();
}

static void check_ints(struct ascend *d, const int32_t *host, int n) {
  int32_t found[128];
  const int32_t *device = ascend_int32(d, host, n);
  assert_non_null(device);
  assert_true((uintptr_t)device % 32 == 0 && ascend_wait(d));
  assert_int_equal(npu_emu()->peek(device, found, (size_t)n * sizeof *found), 1);
  assert_memory_equal(found, host, (size_t)n * sizeof *found);
}

static void check_sees(struct ascend *d, const int32_t *lo, const int32_t *hi, int n) {
  float found[128];
  device_floats(d, ascend_sees(d, lo, hi, n), d->type, n, found);
  for (int i = 0; i < n; i++) assert_true(found[i] == (lo[i] < hi[i] ? 1.0f : 0.0f));
}

static void batch_is_held(void) {
  enum { ROWS = 100, SEQS = 12, OUT = 30 };
  struct ascend *d = open_npu();
  struct err e = {0};
  uint64_t seed = 3;
  int32_t memory[6 + 2 * BATCH_KINDS][ROWS];
  for (int cross = 0; cross < 2; cross++) {
    struct batch b = {.rows_max = ROWS,
                      .seqs_max = SEQS,
                      .out_max = OUT,
                      .token = memory[0],
                      .soft = cross ? memory[1] : NULL,
                      .pos = memory[2],
                      .seq = memory[3]};
    b.q_start = memory[4];
    b.out = memory[5];
    for (int k = 0; k < BATCH_KINDS; k++)
      if (k != BATCH_CROSS || cross) b.lo[k] = memory[6 + k], b.hi[k] = memory[6 + BATCH_KINDS + k];
    if (O->hold_batch(&d->device, &b, &e)) fail_msg("%s", e.msg);
    const void *token = NULL;
    for (int step = 0; step < 60; step++) {
      b.n_rows = test_rand_int(&seed, 1, ROWS);
      b.n_seqs = test_rand_int(&seed, 1, MIN(SEQS, b.n_rows));
      b.n_out = test_rand_int(&seed, 1, MIN(OUT, b.n_rows));
      for (size_t i = 0; i < ARRAY_LEN(memory); i++)
        for (int r = 0; r < ROWS; r++) memory[i][r] = test_rand_int(&seed, 0, 5);
      struct acl_emu_counts before = counts();
      O->step(&d->device, &b);
      struct acl_emu_counts after = counts();
      assert_int_equal(after.copies, before.copies + 1); /* one, and as much as is in use */
      assert_true(after.h2d_bytes - before.h2d_bytes <= (uint64_t)(7 + 2 * BATCH_KINDS) * (uint64_t)MAX(b.n_rows, b.n_seqs + 1) * 4);
      check_ints(d, b.token, b.n_rows);
      check_ints(d, b.pos, b.n_rows);
      check_ints(d, b.q_start, b.n_seqs + 1);
      check_ints(d, b.out, b.n_out);
      if (cross) check_ints(d, b.soft, b.n_rows);
      for (int k = 0; k < KV_KINDS; k++) check_ints(d, b.lo[k], b.n_rows), check_ints(d, b.hi[k], b.n_rows);
      int from = test_rand_int(&seed, 0, b.n_rows - 1);
      check_ints(d, b.pos + from, b.n_rows - from);
      if (cross) check_sees(d, b.lo[BATCH_CROSS], b.hi[BATCH_CROSS], b.n_rows);
      if (cross) check_sees(d, b.lo[BATCH_CROSS] + from, b.hi[BATCH_CROSS] + from, b.n_rows - from);
      assert_int_equal(counts().h2d_bytes, after.h2d_bytes);
      check_sees(d, b.lo[KV_FULL], b.hi[KV_FULL], b.n_rows); /* nobody holds that */
      int32_t loose[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
      check_ints(d, loose, 9);
      const void *now = ascend_int32(d, b.token, b.n_rows);
      assert_true(!token || token == now); /* recorded steps know the place */
      token = now;
      well(d);
    }
  }
  O->step(&d->device, NULL);
  well(d);
  assert_int_equal(O->hold_batch(&d->device, NULL, &e), 0);
  close_npu(d);
  check_clean();
}

/* ---- temporary memory ------------------------------------------------------------------------------------------------------------------------ */

static void temporary_memory(void) {
  struct ascend *d = open_npu();
  uint64_t seed = 9;
  char *first[300];
  size_t sizes[300];
  for (int i = 0; i < 300; i++) sizes[i] = (size_t)test_rand_int(&seed, 0, i % 50 == 49 ? 3 << 20 : 5000);
  for (int round = 0; round < 4; round++) {
    ascend_temp_reset(d);
    char *p[300];
    for (int i = 0; i < 300; i++) {
      p[i] = ascend_temp(d, sizes[i]);
      assert_non_null(p[i]);
      assert_int_equal((uintptr_t)p[i] % 64, 0);
      for (int k = 0; k < i; k++)
        assert_true(p[k] + sizes[k] + 32 <= p[i] || p[i] + sizes[i] + 32 <= p[k]); /* kernels read 32 bytes too far */
      if (round > 0) assert_ptr_equal(p[i], first[i]);                             /* the same operations get the same places */
      first[i] = p[i];
    }
  }
  uint64_t blocks = counts().device_blocks;
  char *workspace = ascend_workspace(d, 1000);
  assert_ptr_equal(ascend_workspace(d, 2000), workspace);
  assert_ptr_not_equal(ascend_workspace(d, 64 << 20), NULL);
  assert_int_equal(counts().device_blocks, blocks + 2); /* the first one stays: recorded steps may know it */
  well(d);
  assert_null(ascend_temp(d, SIZE_MAX - 5));
  struct err e = {0};
  assert_int_equal(ascend_finish(&d->device, &e), -1);
  assert_non_null(strstr(e.msg, "too many"));
  close_npu(d);
  check_clean();
}

/* ---- launches -------------------------------------------------------------------------------------------------------------------------------- */

struct program { /* z = 2 (x + y), and what the answer is */
  struct tensor x, y, z, host;
  float w[64];
};
enum { P_ROWS = 5, P_COLS = 37 };

static int program_open(struct ascend *d, struct program *p, struct err *e) {
  struct device *v = &d->device;
  memset(p, 0, sizeof *p);
  for (int i = 0; i < 64; i++) p->w[i] = (float)i;
  return O->alloc(v, &p->x, P_ROWS, P_COLS, "x", e) || O->alloc(v, &p->y, P_ROWS, P_COLS, "y", e) ||
                 O->alloc(v, &p->z, P_ROWS, P_COLS, "z", e) || O->host_alloc(v, &p->host, P_ROWS, P_COLS, "host", e) ||
                 O->hold(v, p->w, 64, e) || O->finish(v, e)
             ? -1
             : 0;
}
static void program_close(struct ascend *d, struct program *p) {
  struct device *v = &d->device;
  O->drop(v, p->w);
  O->free(v, &p->x);
  O->free(v, &p->y);
  O->free(v, &p->z);
  O->host_free(v, &p->host);
}
static void program_send(struct ascend *d, const struct tensor *t, float f) {
  struct tensor s = O->stage(&d->device, t);
  for (int r = 0; r < s.rows; r++)
    for (int c = 0; c < s.cols; c++) tensor_row(&s, r)[c] = f * (float)(r - c % 7);
  O->send(&d->device, t, &s);
}
static void program_run(struct ascend *d, struct program *p, float f) {
  O->step(&d->device, NULL);
  program_send(d, &p->x, f);
  program_send(d, &p->y, 1);
  ascend_temp_reset(d);
  struct tensor sum = p->z;
  sum.data = ascend_temp(d, (size_t)sum.rows * sum.row_bytes);
  ASCEND_LAUNCH(d, Add, ascend_tensor(d, &p->x), ascend_tensor(d, &p->y), ascend_number(d, 1), ascend_tensor(d, &sum));
  ASCEND_LAUNCH(d, Muls, ascend_tensor(d, &sum), ascend_number(d, 2), ascend_tensor(d, &p->z));
  O->fetch(&d->device, &p->host, &p->z);
}
static bool program_right(const struct program *p, float f) {
  for (int r = 0; r < P_ROWS; r++)
    for (int c = 0; c < P_COLS; c++)
      if (tensor_row(&p->host, r)[c] != 2 * (f + 1) * (float)(r - c % 7)) return false;
  return true;
}
static bool program_nan(const struct program *p) {
  for (int r = 0; r < P_ROWS; r++)
    for (int c = 0; c < P_COLS; c++)
      if (!isnan(tensor_row(&p->host, r)[c])) return false;
  return true;
}

static void launches_work(void) {
  struct ascend *d = open_npu();
  struct program p;
  struct err e = {0};
  npu_emu()->delay_us(200);
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  for (int i = 1; i < 20; i++) {
    program_run(d, &p, (float)i);
    assert_true(program_right(&p, (float)i));
    well(d);
    struct acl_emu_counts c = counts();
    assert_true(c.tensors == 0 && c.scalars == 0 && c.executors == 0 && c.lists == 0 && c.arrays == 0);
  }
  assert_int_equal(d->n_launches, 2 * 19);
  program_close(d, &p);
  close_npu(d);
  check_clean();
}

static void refusals_are_told(void) {
  struct ascend *d = open_npu();
  struct program p;
  struct err e = {0};
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  struct tensor narrow = tensor_part(p.y, 0, P_ROWS, 0, 3);
  npu_emu()->quiet(1);
  ASCEND_LAUNCH(d, Add, ascend_tensor(d, &p.x), ascend_tensor(d, &narrow), ascend_number(d, 1), ascend_tensor(d, &p.z));
  assert_false(ascend_ok(d));
  uint64_t n = d->n_launches;
  ASCEND_LAUNCH(d, Muls, ascend_tensor(d, &p.x), ascend_number(d, 2), ascend_tensor(d, &p.z)); /* does nothing any more */
  assert_int_equal(d->n_launches, n);
  assert_null(ascend_temp(d, 100));
  O->fetch(&d->device, &p.host, &p.z);
  assert_true(program_nan(&p));
  assert_int_equal(ascend_finish(&d->device, &e), -1);
  assert_non_null(strstr(e.msg, "aclnnAdd"));
  assert_non_null(strstr(e.msg, "161002"));
  assert_non_null(strstr(e.msg, "[5, 37]"));
  assert_non_null(strstr(e.msg, "[5, 3] (part)"));
  assert_non_null(strstr(e.msg, d->dtype == DTYPE_BF16 ? "bfloat16" : "float16"));
  well(d); /* told once */
  program_run(d, &p, 3);
  assert_true(program_right(&p, 3));
  enum acl_op missing = ACL_OP_COUNT;
  for (int op = 0; op < ACL_OP_COUNT && missing == ACL_OP_COUNT; op++)
    if (!ascend_has(d, (enum acl_op)op)) missing = (enum acl_op)op;
  if (missing != ACL_OP_COUNT) {
    assert_false(ascend_begin_launch(d, missing));
    ascend_end_launch(d, missing, 0, 0, NULL);
    assert_int_equal(ascend_finish(&d->device, &e), -1);
    assert_non_null(strstr(e.msg, acl_op_name(missing)));
    assert_non_null(strstr(e.msg, "does not have this operator"));
  }
  program_close(d, &p);
  close_npu(d);
  check_clean();
}

/* An operator that fails later is named when somebody asks for it. */
static void sync_names_the_operator(void) {
  setenv("CYGNET_ASCEND_SYNC", "1", 1);
  struct ascend *d = open_npu();
  struct program p;
  struct err e = {0};
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  npu_emu()->quiet(1);
  npu_emu()->fault("run Muls", 1, 507015);
  program_run(d, &p, 1);
  assert_true(program_nan(&p));
  assert_int_equal(ascend_finish(&d->device, &e), -1);
  assert_non_null(strstr(e.msg, "aclnnMuls"));
  assert_non_null(strstr(e.msg, "507015"));
  assert_true(d->device.lost);
  program_close(d, &p);
  close_npu(d);
  unsetenv("CYGNET_ASCEND_SYNC");
  check_clean();
}

/* ---- failures ------------------------------------------------------------------------------------------------------------------------------ */

static void memory_runs_out(void) {
  struct ascend *d = open_npu();
  struct err e = {0};
  struct tensor t[64] = {{0}};
  struct program p;
  int n = 0;
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  npu_emu()->quiet(1);
  while (n < 64 && !O->alloc(&d->device, &t[n], 4096, 4096, "the test's tensors", &e)) n++;
  assert_true(n > 0 && n < 64);
  assert_int_equal(e.code, ERR_NO_MEMORY);
  assert_non_null(strstr(e.msg, "the test's tensors"));
  assert_non_null(strstr(e.msg, "32.0 MiB of device memory"));
  assert_non_null(strstr(e.msg, "207001"));
  well(d); /* a size that was refused is no failed step */
  ascend_temp_reset(d);
  assert_null(ascend_temp(d, 300 << 20));
  assert_int_equal(ascend_finish(&d->device, &e), -1);
  assert_int_equal(e.code, ERR_NO_MEMORY);
  assert_non_null(strstr(e.msg, "temporary memory"));
  assert_int_equal(O->alloc(&d->device, &t[63], INT32_MAX, INT32_MAX, "too much", &e), -1);
  for (int i = 0; i < n; i++) O->free(&d->device, &t[i]);
  program_run(d, &p, 2);
  assert_true(program_right(&p, 2));
  well(d);
  program_close(d, &p);
  close_npu(d);
  check_clean();
}

/* The whole program with the n-th call of something failing, for every n until none fails any more: a sentence, or the right answer. */
static int program_with_fault(const char *where, int n, int code) {
  const struct acl_emu *emu = npu_emu();
  struct err e = {0};
  struct program p;
  int failed = 0;
  emu->fault(where, n, code);
  struct device *device = O->open(&config, &e);
  if (!device) {
    assert_true(e.code != ERR_NONE && *e.msg);
    emu->fault(NULL, 0, 0);
    if (getenv("T_ASCEND_SAYS")) fprintf(stderr, "%s %d: %s\n", where, n, e.msg);
    return 1;
  }
  struct ascend *d = ascend_of(device);
  if (program_open(d, &p, &e)) {
    assert_true(e.code != ERR_NONE && *e.msg);
    failed = 1;
  } else
    for (int step = 0; step < 3; step++) {
      program_run(d, &p, (float)step);
      bool right = program_right(&p, (float)step);
      memset(&e, 0, sizeof e);
      if (ascend_finish(device, &e) == 0) assert_true(right);
      else {
        assert_true(*e.msg && strstr(e.msg, "NPU"));
        failed++;
        if (getenv("T_ASCEND_SAYS")) fprintf(stderr, "%s %d: %s\n", where, n, e.msg);
        if (device->lost) assert_non_null(strstr(e.msg, "lost"));
      }
    }
  bool lost = device->lost;
  emu->fault(NULL, 0, 0);
  if (!failed) assert_false(lost);
  if (failed && !lost) { /* it goes on as if nothing had been */
    ascend_finish(device, NULL);
    if (p.host.data && p.z.data && p.y.data && p.x.data) {
      program_run(d, &p, 5);
      assert_true(program_right(&p, 5));
      well(d);
    }
  }
  program_close(d, &p);
  close_npu(d);
  return failed;
}

static void everything_fails_once(void) {
  static const struct {
    const char *where;
    int code;
  } faults[] = {{"aclInit", 500000},
                {"aclrtGetDeviceCount", 507899},
                {"aclrtSetDevice", 507899},
                {"aclrtGetCurrentContext", 107002},
                {"aclrtSetCurrentContext", 107002},
                {"aclrtMalloc", 207001},
                {"aclrtMallocHost", 207001},
                {"aclrtCreateStreamWithConfig", 207008},
                {"aclrtMemcpyAsync", 107000},
                {"aclrtMemcpy2dAsync", 507899},
                {"aclrtMemsetAsync", 107000},
                {"aclCreateTensor", 1},
                {"aclCreateScalar", 1},
                {"any op", 161002},
                {"any op", 561002},
                {"any launch", 361001},
                {"aclnnMuls", 361001},
                {"any run", 507015},
                {"any run", 507035},
                {"sync", 507014},
                {"sync", 107019},
                {"sync", 500000},
                {"sync", 207003},
                {"aclrtSynchronizeStreamWithTimeout", 507046}};
  npu_emu()->quiet(1);
  for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
    int n = 1, seen = 0;
    for (; n < 200; n++) {
      int failed = program_with_fault(faults[i].where, n, faults[i].code);
      seen += failed > 0;
      if (npu_emu()->violations()) fail_msg("%s %d: %s", faults[i].where, n, npu_emu()->violation());
      if (*npu_emu()->leaks()) fail_msg("%s %d left: %s", faults[i].where, n, npu_emu()->leaks());
      if (!failed) break;
    }
    if (n == 200) fail_msg("%s never stops failing", faults[i].where);
    if (!seen) fail_msg("%s is never called", faults[i].where);
  }
}

/* Once lost, always lost, and closing does not hang. */
static void device_is_lost(void) {
  struct ascend *d = open_npu();
  struct program p;
  struct err e = {0};
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  npu_emu()->quiet(1);
  npu_emu()->lose(507899);
  for (int i = 0; i < 3; i++) {
    program_run(d, &p, 1);
    assert_true(program_nan(&p));
    memset(&e, 0, sizeof e);
    assert_int_equal(ascend_finish(&d->device, &e), -1);
    assert_non_null(strstr(e.msg, "lost"));
    assert_true(d->device.lost);
    struct tensor t;
    assert_int_equal(O->alloc(&d->device, &t, 1, 1, "more", &e), -1);
  }
  npu_emu()->lose(0);
  program_close(d, &p);
  close_npu(d);
  check_clean();
}

struct errand {
  struct ascend *d;
  struct program *p;
  bool right;
};
static void *run_errand(void *ctx) {
  struct errand *x = ctx;
  program_run(x->d, x->p, 4);
  x->right = program_right(x->p, 4) && ascend_finish(&x->d->device, NULL) == 0;
  return NULL;
}

/* Any thread, one at a time: nobody but device.c has to know. */
static void threads_take_turns(void) {
  struct ascend *d = open_npu();
  struct program p;
  struct err e = {0};
  if (program_open(d, &p, &e)) fail_msg("%s", e.msg);
  for (int i = 0; i < 10; i++) {
    pthread_t t;
    struct errand x = {d, &p, false};
    assert_int_equal(pthread_create(&t, NULL, run_errand, &x), 0);
    pthread_join(t, NULL);
    assert_true(x.right);
    run_errand(&x);
    assert_true(x.right);
  }
  program_close(d, &p);
  close_npu(d);
  check_clean();
}

#define EVERYWHERE(body)                                                                                                                   \
  static void body##_everywhere(void **state) {                                                                                            \
    (void)state;                                                                                                                           \
    npu_each_profile(body);                                                                                                                \
  }
EVERYWHERE(unknown_chips)
EVERYWHERE(profile_is_read)
EVERYWHERE(open_and_close)
EVERYWHERE(runtime_renamed)
EVERYWHERE(runtime_beside)
EVERYWHERE(no_failure_mode)
EVERYWHERE(close_frees_everything)
EVERYWHERE(send_and_fetch)
EVERYWHERE(vectors_are_held)
EVERYWHERE(batch_is_held)
EVERYWHERE(temporary_memory)
EVERYWHERE(launches_work)
EVERYWHERE(refusals_are_told)
EVERYWHERE(sync_names_the_operator)
static void memory_runs_out_everywhere(void **state) {
  (void)state;
  npu_profile("A2-8.1", memory_runs_out);
  npu_profile("310P-8.5", memory_runs_out);
}
static void everything_fails_once_everywhere(void **state) {
  (void)state;
  npu_profile("A2-9.1", everything_fails_once);
  npu_profile("310P-8.5", everything_fails_once);
}
EVERYWHERE(device_is_lost)
EVERYWHERE(threads_take_turns)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(without_libraries),
    cmocka_unit_test(with_wrong_libraries),
    cmocka_unit_test(unknown_chips_everywhere),
    cmocka_unit_test(profile_is_read_everywhere),
    cmocka_unit_test(open_and_close_everywhere),
    cmocka_unit_test(runtime_renamed_everywhere),
    cmocka_unit_test(runtime_beside_everywhere),
    cmocka_unit_test(no_failure_mode_everywhere),
    cmocka_unit_test(close_frees_everything_everywhere),
    cmocka_unit_test(send_and_fetch_everywhere),
    cmocka_unit_test(vectors_are_held_everywhere),
    cmocka_unit_test(batch_is_held_everywhere),
    cmocka_unit_test(temporary_memory_everywhere),
    cmocka_unit_test(launches_work_everywhere),
    cmocka_unit_test(refusals_are_told_everywhere),
    cmocka_unit_test(sync_names_the_operator_everywhere),
    cmocka_unit_test(memory_runs_out_everywhere),
    cmocka_unit_test(everything_fails_once_everywhere),
    cmocka_unit_test(device_is_lost_everywhere),
    cmocka_unit_test(threads_take_turns_everywhere),
};

TEST_MAIN(tests)
