/* t_acl_emu.c — the emulated NPU's runtime refuses what the real one refuses, and sees what the real one makes one pay for later. */
#include "test.h"

#include "acl_programs.h"

/* ---- initialisation, contexts, profiles ---------------------------------------------------------------------------------------------- */

static void *without_context(void *ctx) {
  void *p, **out = ctx;
  int rc[4] = {acl.aclrtMalloc(&p, 64, 0), acl.aclrtSynchronizeDevice(), acl.aclrtSynchronizeStream(stream),
               scale_phase1(out, 1, 1, (aclOpExecutor **)&p)};
  for (int i = 0; i < 4; i++)
    if (rc[i] != 107002) return NULL;
  if (acl.aclrtSetDevice(0) || acl.aclrtMalloc(&p, 64, 0) || acl.aclrtFree(p) || acl.aclrtResetDevice(0)) return NULL;
  *out = out;
  return NULL;
}
static void body_contexts(void) {
  uint32_t n = 0;
  bool counted = strstr(npu_current(), "9.1");
  open_libraries();
  IS(100001, acl.aclrtSetDevice(0));
  IS(100001, acl.aclFinalize());
  IS(100003, acl.aclInit("/nowhere/acl.json"));
  IS(0, acl.aclInit(NULL));
  IS(counted ? 0 : 100002, acl.aclInit(NULL));
  if (counted) IS(0, acl.aclFinalize());
  IS(0, acl.aclrtGetDeviceCount(&n));
  assert_int_equal(n, 1);
  aclrtStream s = NULL;
  IS(107002, acl.aclrtCreateStream(&s));
  IS(107001, acl.aclrtSetDevice(1));
  IS(107001, acl.aclrtSetDevice(-1));
  IS(0, acl.aclrtSetDevice(0));
  IS(0, acl.aclrtCreateStream(&stream));
  void *worked = NULL;
  in_thread(without_context, &worked);
  assert_ptr_equal(worked, &worked);
  aclrtContext first, second, third;
  IS(0, acl.aclrtGetCurrentContext(&first));
  IS(0, more.aclrtCreateContext(&second, 0));
  IS(0, acl.aclrtGetCurrentContext(&third));
  assert_ptr_equal(second, third);
  IS(107003, acl.aclrtSynchronizeStream(stream)); /* another context's */
  IS(0, acl.aclrtCreateStream(&s));
  IS(0, acl.aclrtSetCurrentContext(first));
  IS(107003, acl.aclrtDestroyStream(s));
  IS(0, more.aclrtDestroyContext(second));
  IS(107017, acl.aclrtSynchronizeStream(s)); /* it went with its context */
  IS(107002, acl.aclrtSetCurrentContext(second));
  IS(0, acl.aclrtDestroyStream(stream));
  npu_check_clean();
  IS(0, acl.aclrtResetDevice(0));
  IS(107002, acl.aclrtSynchronizeDevice());
  IS(0, acl.aclFinalize());
  IS(100037, acl.aclFinalize());
}

static void body_profiles(void) {
  static const struct {
    const char *profile, *soc, *version;
    int cann;
  } expected[] = {{"A2-8.1", "Ascend910B3", "8.1.RC1", 801},
                  {"A2-8.5", "Ascend910B3", "8.5.0", 805},
                  {"A2-9.1", "Ascend910B4", "9.1.0", 901},
                  {"A3-9.1", "Ascend910_9392", "9.1.0", 901},
                  {"310P-8.5", "Ascend310P3", "8.5.0", 805}};
  open_all();
  for (int i = 0; i < 5; i++) {
    if (strcmp(expected[i].profile, npu_current()) != 0) continue;
    aclCANNPackageVersion v;
    assert_string_equal(acl.aclrtGetSocName(), expected[i].soc);
    assert_int_equal(emu->cann, expected[i].cann);
    IS(0, acl.aclsysGetCANNVersion(NPU_PACKAGE_CANN, &v));
    assert_string_equal(v.version, expected[i].version);
    bool old = expected[i].cann < 805;
    assert_true(old == !acl.FusedInferAttentionScoreV4 && old == !acl.ScatterPaKvCache && old == !acl.GatherPaKvCache);
    assert_true(old == !acl.aclsysGetVersionStr && old == !acl.aclrtGetDeviceInfo && old == !acl.aclrtGetDeviceCapability);
    assert_true(old == !more.aclrtLaunchHostFunc);
    assert_non_null(acl.FusedInferAttentionScoreV3);
    assert_null(look_up("aclrtNoSuchThing"));
    assert_true(n_libraries == (old ? 3 : 5));
    if (expected[i].cann == 805) { /* both kinds are there, and are not to be mixed */
      expect_violations();
      open_library("libopapi.so");
      assert_int_equal(n_libraries, 6);
      assert_violated("libopapi");
    }
    if (expected[i].cann == 901) {
      open_library("libopapi.so");
      assert_int_equal(n_libraries, 5);
    }
  }
  /* every function that the backend requires is there */
#define X(returns, name, args) assert_non_null(acl.name);
  ACL_REQUIRED(X)
  ACL_BASE(X)
#undef X
#define X(op, ...) assert_true(!acl.op == !acl.issue[ACL_OP_##op]);
  ACLNN_OPERATORS(X)
#undef X
  if (emu->cann >= 805) { /* and has all operators */
#define X(op, ...) assert_non_null(acl.op);
    ACLNN_OPERATORS(X)
#undef X
  }
  close_all();
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------------------- */

static void body_memory(void) {
  void *p = NULL, *q = NULL;
  size_t free_bytes, total;
  char host[256] = {1};
  open_all();
  IS(107000, acl.aclrtMalloc(&p, 0, 0));
  IS(107000, acl.aclrtMalloc(NULL, 64, 0));
  IS(107000, acl.aclrtMalloc(&p, 64, 8));
  IS(107000, acl.aclrtMalloc(&p, 64, 0x101)); /* two policies */
  IS(0, acl.aclrtMalloc(&p, 100, 0x100));
  IS(0, acl.aclrtMalloc(&q, 1, 2));
  assert_int_equal((uintptr_t)p % 64, 0);
  assert_int_equal((uintptr_t)q % 64, 0);
  unsigned char raw[100];
  assert_true(emu->peek(p, raw, 100));
  for (int i = 0; i < 100; i++) assert_int_equal(raw[i], 0xff);
  assert_false(emu->peek(p, host, 101));
  IS(0, acl.aclrtMemcpy(p, 100, host, 100, 1));
  IS(107000, acl.aclrtMemcpy(p, 99, host, 100, 1));
  IS(107000, acl.aclrtMemcpy(p, 100, host, 100, 9));
  IS(107000, acl.aclrtMemcpy(p, 100, NULL, 100, 1));
  IS(507899, acl.aclrtMemcpy(p, 101, host, 101, 1)); /* beyond its end */
  assert_says("not inside a live block");
  IS(0, acl.aclrtMemcpy(p, 100, host, 100, 2)); /* the direction is what the addresses say */
  IS(0, acl.aclrtMemcpy(p, 100, p, 100, 3));
  IS(0, acl.aclrtMemset(p, 100, 7, 50));
  IS(107000, acl.aclrtMemset(p, 40, 7, 50));
  IS(107000, acl.aclrtMemset(host, 40, 7, 40)); /* not of ACL */
  IS(0, acl.aclrtMemcpy(host, 100, p, 100, 2));
  assert_true(host[0] == 7 && host[49] == 7 && host[50] == 0);
  for (int i = 0; i < 256; i++) host[i] = (char)i;
  IS(0, more.aclrtMemcpy2d(p, 10, host, 16, 8, 10, 1));
  IS(107000, more.aclrtMemcpy2d(p, 7, host, 16, 8, 10, 1));
  IS(107000, more.aclrtMemcpy2d(p, 10, host, 16, 8, 0, 1));
  IS(100000, more.aclrtMemcpy2d(p, 10, host, 16, 8, 10, 4));
  IS(507899, more.aclrtMemcpy2d(p, 10, host, 16, 10, 11, 1));
  assert_true(emu->peek(p, raw, 100));
  for (int i = 0; i < 100; i++)
    if (i % 10 < 8) assert_int_equal(raw[i], i / 10 * 16 + i % 10);
  IS(107000, acl.aclrtFree(NULL));
  IS(107000, acl.aclrtFree((char *)p + 32));
  IS(0, acl.aclrtFree(p));
  IS(107000, acl.aclrtFree(p));
  IS(507899, acl.aclrtMemcpy(p, 100, host, 100, 1));
  /* a chip without HBM answers for its DDR */
  bool hbm = strcmp(npu_current(), "310P-8.5") != 0;
  IS(0, acl.aclrtGetMemInfo(NPU_HBM_MEM, &free_bytes, &total));
  assert_int_equal(total, 256 << 20);
  assert_true(free_bytes < total && free_bytes > total - 4096);
  IS(0, acl.aclrtGetMemInfo(0, &free_bytes, &total));
  assert_int_equal(total, hbm ? 0 : 256 << 20);
  /* the budget, with the tail that the runtime adds */
  emu->memory(64 + 10016);
  IS(207001, acl.aclrtMalloc(&p, 10001, 0));
  assert_null(p);
  assert_says("free");
  IS(0, more.aclrtMallocAlign32(&p, 10000, 0));
  IS(0, acl.aclrtFree(p));
  IS(0, acl.aclrtFree(q));
  /* pinned memory */
  IS(107000, acl.aclrtMallocHost(&p, 0));
  IS(0, acl.aclrtMallocHost(&p, 100));
  assert_int_equal((uintptr_t)p % 64, 0);
  IS(0, acl.aclrtMemset(p, 100, 3, 100));
  assert_int_equal(((char *)p)[99], 3);
  IS(107000, acl.aclrtFreeHost((char *)p + 1));
  IS(0, acl.aclrtFreeHost(p));
  IS(107000, acl.aclrtFreeHost(p));
  close_all();
}

/* The host cannot look at device memory. */
static void body_separate(void) {
  open_all();
  volatile char *p = device(64);
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*p == 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  IS(0, acl.aclrtFree((void *)(uintptr_t)p));
  close_all();
}

static void note(void *ctx) {
  float **at = ctx;
  (*at)[1] = (*at)[0] + 1; /* on the device's thread, when its turn comes */
}
/* The caller's own memory can be pinned; host functions run in order with everything else. */
static void body_registered(void) {
  open_all();
  float *page = NULL, *d = device(64);
  void *seen = NULL, *p = NULL;
  assert_int_equal(posix_memalign(&p, 4096, 8192), 0);
  page = p;
  IS(107000, more.aclrtHostRegister(page + 1, 100, 0, &seen)); /* whole pages */
  IS(0, more.aclrtHostRegister(page, 8192, 0, &seen));
  IS(107000, more.aclrtHostRegister(page, 8192, 0, &seen));
  fill(d, 4, 5, 1);
  emu->lazy(1);
  IS(0, acl.aclrtMemcpyAsync(page, 16, d, 16, 2, stream)); /* asynchronous now */
  assert_true(page[0] != page[0]);
  if (more.aclrtLaunchHostFunc) IS(0, more.aclrtLaunchHostFunc(stream, note, &page));
  wait_for(stream);
  assert_true(page[0] == 5 && page[1] == 6 && page[3] == 8);
  IS(107000, acl.aclrtFreeHost(page));
  IS(0, more.aclrtHostUnregister(page));
  IS(107000, more.aclrtHostUnregister(page));
  free(page);
  IS(0, acl.aclrtFree(d));
  close_all();
}

static void body_async_copies(void) {
  open_all();
  char pageable[256] = {5}, *host = pinned(256), *back = pinned(256), c[2];
  void *d = device(256);
  emu->lazy(1);
  IS(207000, acl.aclrtMemcpyAsync(pageable, 100, host, 100, 0, stream));
  IS(107000, acl.aclrtMemcpyAsync(d, 99, host, 100, 1, stream));
  IS(507899, acl.aclrtMemcpyAsync(d, 257, host, 257, 1, stream));
  IS(0, acl.aclrtMemcpyAsync(d, 100, d, 100, 3, stream)); /* nothing to do */
  memset(host, 9, 256);
  IS(0, acl.aclrtMemcpyAsync(d, 256, host, 256, 1, stream));
  assert_true(emu->peek(d, c, 1) && (unsigned char)c[0] == 0xff); /* not yet */
  IS(0, acl.aclrtMemcpyAsync(back, 256, d, 256, 2, stream));
  assert_int_equal((unsigned char)back[0], 0xff); /* who reads too early sees poison */
  wait_for(stream);
  assert_true(back[0] == 9 && back[255] == 9);
  /* pageable memory: the stream is waited for, then copied at once */
  memset(host, 1, 256);
  IS(0, acl.aclrtMemcpyAsync(d, 256, host, 256, 1, stream));
  IS(0, acl.aclrtMemcpyAsync(pageable, 256, d, 256, 2, stream));
  assert_int_equal(pageable[255], 1);
  assert_true(emu->idle());
  IS(0, acl.aclrtMemset(host, 256, 2, 256));
  IS(0, acl.aclrtMemcpy2dAsync(d, 64, host, 64, 32, 4, 1, stream));
  IS(0, acl.aclrtMemsetAsync((char *)d + 32, 32, 3, 32, stream));
  wait_for(stream);
  assert_true(emu->peek((char *)d + 31, c, 2) && c[0] == 2 && c[1] == 3);

  expect_violations(); /* the source is written before the copy ran */
  IS(0, acl.aclrtMemcpyAsync(d, 256, host, 256, 1, stream));
  host[128] = 77;
  wait_for(stream);
  assert_violated("written before the copy ran");
  emu->lazy(1);
  expect_violations(); /* a synchronous copy waits for no stream */
  IS(0, acl.aclrtMemcpyAsync(d, 256, host, 256, 1, stream));
  IS(0, acl.aclrtMemcpy(pageable, 256, d, 256, 2));
  wait_for(stream);
  assert_violated("has yet to write");
  emu->lazy(1);
  expect_violations();
  IS(0, acl.aclrtMemcpyAsync(d, 256, host, 256, 1, stream));
  IS(0, acl.aclrtFreeHost(host));
  IS(507899, acl.aclrtSynchronizeStream(stream));
  assert_says("pinned host memory was freed");
  assert_violated("still uses");
  emu->lazy(1);
  expect_violations();
  IS(0, acl.aclrtMemsetAsync(d, 256, 0, 256, stream));
  IS(0, acl.aclrtFree(d));
  IS(507899, acl.aclrtSynchronizeStream(stream));
  assert_violated("still uses");
  IS(0, acl.aclrtFreeHost(back));
  close_all();
}

/* ---- streams and events ------------------------------------------------------------------------------------------------------------------ */

static void body_streams(void) {
  open_all();
  aclrtStream s = NULL, many[4];
  unsigned status = 9;
  float *x = device(1024);
  IS(107000, acl.aclrtCreateStreamWithConfig(&s, 8, 0));
  IS(107000, acl.aclrtCreateStreamWithConfig(&s, 0, 0x100));
  IS(107000, acl.aclrtDestroyStream(NULL));
  IS(107000, acl.aclrtSetStreamFailureMode(stream, 2));
  fill(x, 4, 1, 0);
  emu->lazy(1);
  for (int i = 0; i < 10; i++) IS(0, scale(x, 4, i % 2 ? 0.5F : 3, stream)); /* in order: (3/2)^5 */
  IS(0, more.aclrtStreamQuery(stream, &status));
  assert_int_equal(status, 1);
  assert_true(value(x, 0) == 1 || value(x, 0) == 3); /* a query lets one task run at most */
  wait_for(stream);
  assert_true(value(x, 0) == 7.59375F);
  IS(0, more.aclrtStreamQuery(stream, &status));
  assert_int_equal(status, 0);
  /* how many there are */
  emu->limits(4, 65536);
  IS(0, acl.aclrtCreateStream(&many[0]));
  IS(0, acl.aclrtCreateStream(&many[1]));
  IS(207008, acl.aclrtCreateStream(&many[2]));
  assert_says("all 4 streams");
  IS(0, acl.aclrtDestroyStream(many[0]));
  IS(107017, acl.aclrtDestroyStream(many[0]));
  emu->lazy(1);
  expect_violations();
  IS(0, scale(x, 4, 2, many[1]));
  IS(0, acl.aclrtDestroyStream(many[1]));
  assert_violated("tasks to do");
  IS(0, acl.aclrtFree(x));
  close_all();
}

/* Nothing orders two streams but events; with an event they are ordered under every seed. */
static void body_order(void) {
  int seen[2] = {0};
  open_all();
  aclrtEvent e;
  float *x = device(64);
  IS(0, acl.aclrtCreateEventExWithFlag(&e, NPU_EVENT_SYNC));
  for (int ordered = 0; ordered < 2; ordered++)
    for (int seed = 0; seed < 40; seed++) {
      float one = 1, *z = x + 8;
      emu->seed((uint64_t)seed);
      emu->lazy(1);
      IS(0, acl.aclrtMemcpy(x, 4, &one, 4, 1));
      IS(0, scale(x, 1, 3, stream));
      IS(0, acl.aclrtRecordEvent(e, stream));
      if (ordered) IS(0, acl.aclrtStreamWaitEvent(other, e));
      IS(0, acl.aclrtMemcpyAsync(z, 4, x, 4, 3, other));
      IS(0, acl.aclrtSynchronizeDevice());
      seen[ordered] |= value(z, 0) == 3 ? 1 : 2;
    }
  assert_int_equal(seen[0], 3); /* both orders came up */
  assert_int_equal(seen[1], 1);
  IS(0, acl.aclrtDestroyEvent(e));
  IS(0, acl.aclrtFree(x));
  close_all();
}

static void body_events(void) {
  open_all();
  aclrtEvent plain, flag, ex, timed, external, e;
  unsigned status;
  float ms;
  IS(107000, acl.aclrtCreateEventWithFlag(&e, 0));
  IS(107000, acl.aclrtCreateEventWithFlag(&e, 0x80));
  IS(107000, acl.aclrtCreateEventWithFlag(&e, 0x21)); /* external combines with nothing */
  IS(0, more.aclrtCreateEvent(&plain));
  IS(0, acl.aclrtCreateEventWithFlag(&flag, 1));
  IS(0, acl.aclrtCreateEventExWithFlag(&ex, 1));
  IS(0, acl.aclrtCreateEventWithFlag(&timed, 8));
  IS(0, acl.aclrtCreateEventWithFlag(&external, 0x20));
  IS(107000, acl.aclrtStreamWaitEvent(stream, timed)); /* without SYNC nobody can wait for it */
  IS(107000, acl.aclrtRecordEvent(NULL, stream));
  IS(107017, acl.aclrtRecordEvent(stream, stream));
  IS(207000, acl.aclrtResetEvent(ex, stream));
  IS(207000, acl.aclrtResetEvent(plain, stream));
  IS(207000, more.aclrtQueryEventStatus(ex, &status));
  /* a flag stays set until it is reset, and a wait may come before its record */
  emu->lazy(1);
  IS(0, acl.aclrtStreamWaitEvent(stream, flag));
  IS(0, acl.aclrtResetEvent(flag, stream));
  IS(507046, acl.aclrtSynchronizeStreamWithTimeout(stream, 30));
  assert_says("nobody records");
  IS(0, acl.aclrtRecordEvent(flag, other));
  wait_for(stream);
  IS(0, acl.aclrtStreamWaitEvent(stream, flag)); /* it was reset */
  emu->hang_ms(50);
  IS(507046, acl.aclrtSynchronizeStream(stream));
  IS(0, acl.aclrtRecordEvent(flag, other));
  wait_for(stream);
  emu->hang_ms(10000);
  /* one that can be recorded again: a wait is for the last record before it, so none at all without */
  IS(0, acl.aclrtStreamWaitEvent(stream, ex));
  wait_for(stream);
  IS(0, acl.aclrtRecordEvent(ex, other));
  IS(0, acl.aclrtSynchronizeEvent(ex));
  IS(0, acl.aclrtRecordEvent(plain, other));
  IS(0, acl.aclrtSynchronizeEvent(plain));
  IS(0, more.aclrtQueryEventStatus(plain, &status));
  assert_int_equal(status, 1);
  IS(107000, more.aclrtEventElapsedTime(&ms, ex, plain));
  IS(107006, more.aclrtEventElapsedTime(&ms, plain, timed));
  IS(0, acl.aclrtRecordEvent(timed, other));
  wait_for(other);
  IS(0, more.aclrtEventElapsedTime(&ms, plain, timed));
  assert_true(ms >= 0);
  emu->limits(1984, 5);
  IS(207007, acl.aclrtCreateEventWithFlag(&e, 1));
  emu->limits(1984, 65536);
  emu->lazy(1);
  expect_violations();
  IS(0, acl.aclrtRecordEvent(ex, stream));
  IS(0, acl.aclrtDestroyEvent(ex));
  wait_for(stream);
  assert_violated("still uses");
  IS(107017, acl.aclrtDestroyEvent(ex));
  IS(0, acl.aclrtDestroyEvent(plain));
  IS(0, acl.aclrtDestroyEvent(flag));
  IS(0, acl.aclrtDestroyEvent(timed));
  IS(0, acl.aclrtDestroyEvent(external));
  close_all();
}

/* Errors of the device come with the next wait. */
static void body_errors(void) {
  open_all();
  float *x = device(64), *y = device(64);
  int64_t *index = device(64), five = 5;
  fill(x, 4, 1, 1);
  IS(0, acl.aclrtMemcpy(index, 8, &five, 8, 1));
  IS(0, pick(y, x, 4, index, stream));
  IS(0, scale(x, 4, 2, stream)); /* goes on after a failure */
  IS(507015, acl.aclrtSynchronizeStream(stream));
  assert_says("IndexSelect");
  assert_null(acl.aclGetRecentErrMsg()); /* told once */
  assert_true(value(x, 3) == 8 && value(y, 0) != value(y, 0));
  wait_for(stream); /* also told once */
  IS(0, pick(y, x, 4, index, stream));
  wait_for(other); /* another stream's wait does not tell */
  IS(507015, acl.aclrtSynchronizeDevice());
  /* stop on failure: later tasks are dropped, every wait fails */
  IS(0, acl.aclrtSetStreamFailureMode(stream, 1));
  IS(0, pick(y, x, 4, index, stream));
  IS(0, scale(x, 4, 2, stream));
  IS(507015, acl.aclrtSynchronizeStream(stream));
  assert_true(value(x, 3) == 8);
  IS(507015, acl.aclrtSynchronizeStream(stream));
  IS(0, acl.aclrtFree(x));
  IS(0, acl.aclrtFree(y));
  IS(0, acl.aclrtFree(index));
  close_all();
}

/* ---- what tests switch --------------------------------------------------------------------------------------------------------- */

static void body_faults(void) {
  struct acl_emu_counts c;
  open_all();
  void *p;
  emu->reset();
  emu->fault("aclrtMalloc", 2, 207001);
  float *x = device(64);
  IS(207001, acl.aclrtMalloc(&p, 64, 0));
  assert_says("injected");
  float *y = device(64);
  fill(x, 4, 1, 0);
  emu->fault("op InplaceMuls", 1, 561103);
  IS(561103, scale(x, 4, 2, stream));
  emu->fault("launch InplaceMuls", 1, 561000);
  IS(561000, scale(x, 4, 2, stream));
  emu->fault("any run", 3, 507015);
  for (int i = 0; i < 3; i++) IS(0, scale(x, 4, 2, stream));
  IS(507015, acl.aclrtSynchronizeStream(stream));
  assert_true(value(x, 0) != value(x, 0)); /* poison */
  emu->fault("sync", 0, 507014);
  for (int i = 0; i < 3; i++) IS(507014, acl.aclrtSynchronizeStream(stream));
  emu->fault(NULL, 0, 0);
  wait_for(stream);
  emu->lose(507899);
  IS(507899, acl.aclrtMalloc(&p, 64, 0));
  IS(507899, scale(x, 4, 2, stream));
  IS(507899, acl.aclrtSynchronizeStream(stream));
  emu->lose(0);
  aclmdlRI m;
  if (strcmp(npu_current(), "310P-8.5") != 0) {
    IS(0, acl.aclmdlRICaptureBegin(stream, 0));
    IS(0, scale(x, 4, 2, stream));
    IS(0, acl.aclmdlRICaptureEnd(stream, &m));
    emu->fault("replay", 2, 507011);
    IS(0, acl.aclmdlRIExecuteAsync(m, stream));
    wait_for(stream);
    IS(0, acl.aclmdlRIExecuteAsync(m, stream));
    IS(507011, acl.aclrtSynchronizeStream(stream));
    IS(0, acl.aclmdlRIDestroy(m));
  }
  emu->counts(&c);
  assert_int_equal(emu->called("InplaceMuls"), c.launches);
  assert_int_equal(c.h2d_bytes, 16);
  assert_true(emu->called("aclrtMalloc") == 4 && c.waits > 4 && c.calls > 30 && c.device_blocks == 2);
  assert_int_equal(emu->called("aclrtNever"), 0);
  IS(0, acl.aclrtFree(x));
  IS(0, acl.aclrtFree(y));
  close_all();
}

/* Whole programs are told by the environment. */
static void body_environment(void) {
  size_t free_bytes, total;
  aclCANNPackageVersion v;
  void *p, *q;
  setenv("ACL_EMU_MEMORY", "96k", 1);
  setenv("ACL_EMU_FAULT", "aclrtMalloc:2:207001,op InplaceMuls:1:561103,sync:1:507015", 1);
  setenv("ACL_EMU_SOC", "Ascend999X", 1);
  setenv("ACL_EMU_CANN", "9.9.0", 1);
  setenv("ACL_EMU_STREAMS", "2", 1);
  setenv("ACL_EMU_LAZY", "1", 1);
  open_all();
  assert_string_equal(acl.aclrtGetSocName(), "Ascend999X");
  IS(0, acl.aclsysGetCANNVersion(NPU_PACKAGE_CANN, &v));
  assert_string_equal(v.version, "9.9.0");
  IS(0, acl.aclrtGetMemInfo(NPU_HBM_MEM, &free_bytes, &total));
  assert_int_equal(total, 96 << 10);
  IS(207008, acl.aclrtCreateStream(&p));
  IS(0, acl.aclrtMalloc(&p, 64, 0));
  IS(207001, acl.aclrtMalloc(&q, 64, 0));
  fill(p, 4, 1, 0);
  IS(561103, scale(p, 4, 2, stream));
  IS(0, scale(p, 4, 2, stream));
  assert_false(emu->idle());
  IS(507015, acl.aclrtSynchronizeStream(stream));
  wait_for(stream);
  IS(0, acl.aclrtFree(p));
  close_all();
}

EACH(contexts)
EACH(profiles)
EACH(memory)
EACH(separate)
EACH(registered)
EACH(async_copies)
EACH(streams)
EACH(order)
EACH(events)
EACH(errors)
EACH(faults)
static void test_environment(void **state) {
  (void)state;
  npu_profile("A3-9.1", body_environment);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_contexts), cmocka_unit_test(test_profiles),   cmocka_unit_test(test_memory),
    cmocka_unit_test(test_separate), cmocka_unit_test(test_registered), cmocka_unit_test(test_async_copies),
    cmocka_unit_test(test_streams),  cmocka_unit_test(test_order),      cmocka_unit_test(test_events),
    cmocka_unit_test(test_errors),   cmocka_unit_test(test_faults),     cmocka_unit_test(test_environment),
};
TEST_MAIN(tests)
