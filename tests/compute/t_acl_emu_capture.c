/* t_acl_emu_capture.c — capture, replay and task updates of the emulated NPU, rule by rule. */
#include "test.h"

#include "acl_programs.h"

/* ---- capture --------------------------------------------------------------------------------------------------------------------------------- */

static float *cx, *cy;
static unsigned capture_status(void) {
  unsigned status = 9;
  IS(0, acl.aclmdlRICaptureGetInfo(stream, &status, NULL));
  return status;
}
static void begin(unsigned mode) {
  IS(0, acl.aclmdlRICaptureBegin(stream, mode));
  assert_int_equal(capture_status(), 1);
}
/* The capture was made invalid by what came before; end it. */
static void end_invalid(void) {
  aclmdlRI m = &m;
  assert_int_equal(capture_status(), 2);
  IS(507903, scale(cx, 4, 2, stream));
  IS(507903, acl.aclmdlRICaptureEnd(stream, &m));
  assert_null(m);
  assert_int_equal(capture_status(), 0);
}
static void *end_in_thread(void *ctx) {
  aclmdlRI m;
  int *rc = ctx;
  *rc = acl.aclrtSetDevice(0);
  if (!*rc) *rc = acl.aclmdlRICaptureEnd(stream, &m);
  if (!*rc) *rc = acl.aclmdlRIDestroy(m);
  acl.aclrtResetDevice(0);
  return NULL;
}
static void *copy_in_thread(void *ctx) {
  int *rc = ctx;
  unsigned mode = (unsigned)*rc;
  *rc = acl.aclrtSetDevice(0);
  if (!*rc && mode) *rc = acl.aclmdlRICaptureThreadExchangeMode(&mode);
  if (!*rc) *rc = acl.aclrtMemset(cx, 64, 0, 64);
  acl.aclrtResetDevice(0);
  return NULL;
}

static void body_capture_rules(void) {
  bool old = strstr(npu_current(), "8.1");
  open_all();
  aclrtEvent ex, outside, flag;
  aclmdlRI m = NULL;
  unsigned status;
  float ms, z[4] = {0}, *host = pinned(64);
  cx = device(64);
  cy = device(64);
  fill(cx, 4, 1, 0);
  IS(0, acl.aclrtCreateEventExWithFlag(&ex, 1));
  IS(0, acl.aclrtCreateEventExWithFlag(&outside, 1));
  IS(0, acl.aclrtCreateEventWithFlag(&flag, 1));
  IS(0, acl.aclrtRecordEvent(outside, other));
  IS(107031, acl.aclmdlRICaptureBegin(NULL, 0));
  IS(107000, acl.aclmdlRICaptureBegin(stream, 3));
  aclrtStream odd;
  IS(0, acl.aclrtCreateStreamWithConfig(&odd, 0, 0x10));
  IS(507000, acl.aclmdlRICaptureBegin(odd, 0));
  IS(0, acl.aclrtDestroyStream(odd));
  IS(107029, acl.aclmdlRICaptureEnd(stream, &m));
  begin(0);
  IS(107027, acl.aclmdlRICaptureBegin(stream, 0));
  /* every mode: no synchronise, no query */
  for (unsigned mode = 0; mode < 3; mode++)
    for (int k = 0; k < 5; k++) {
      if (mode || k) begin(mode);
      IS(107027, k == 0   ? acl.aclrtSynchronizeStream(stream)
                 : k == 1 ? more.aclrtStreamQuery(stream, &status)
                 : k == 2 ? acl.aclrtDestroyStream(stream)
                 : k == 3 ? acl.aclrtSynchronizeDevice()
                          : acl.aclrtSynchronizeStreamWithTimeout(stream, 10));
      end_invalid();
    }
  for (int k = 0; k < 2; k++) {
    begin(2);
    IS(0, acl.aclrtRecordEvent(ex, stream));
    IS(107028, k ? acl.aclrtSynchronizeEvent(ex) : more.aclrtEventElapsedTime(&ms, ex, ex));
    end_invalid();
  }
  /* synchronous copies, by mode and thread */
  for (int k = 0; k < 3; k++)
    for (unsigned mode = 0; mode < 2; mode++) {
      begin(mode);
      IS(107030, k == 0   ? acl.aclrtMemcpy(cx, 16, z, 16, 1)
                 : k == 1 ? acl.aclrtMemset(cx, 16, 0, 16)
                          : more.aclrtMemcpy2d(cx, 8, z, 8, 4, 2, 1));
      end_invalid();
    }
  begin(2);
  IS(0, acl.aclrtMemcpy(cx, 16, z, 16, 1));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  IS(0, acl.aclmdlRIDestroy(m));
  begin(0);
  unsigned mode = 2;
  IS(0, acl.aclmdlRICaptureThreadExchangeMode(&mode)); /* this thread takes the exception */
  assert_int_equal(mode, 0);
  IS(0, acl.aclrtMemcpy(cx, 16, z, 16, 1));
  IS(0, acl.aclmdlRICaptureThreadExchangeMode(&mode));
  assert_int_equal(mode, 2);
  IS(107030, acl.aclrtMemcpy(cx, 16, z, 16, 1));
  end_invalid();
  mode = 3;
  IS(107000, acl.aclmdlRICaptureThreadExchangeMode(&mode));
  for (int k = 0; k < 4; k++) { /* another thread: held by a global capture unless its own mode is another */
    int rc = k == 2 ? 2 : 0;
    begin(k == 1 ? 1 : k == 3 ? 2 : 0);
    in_thread(copy_in_thread, &rc);
    assert_int_equal(rc, k == 0 ? 107030 : 0);
    if (k == 0) end_invalid();
    else {
      IS(0, acl.aclmdlRICaptureEnd(stream, &m));
      IS(0, acl.aclmdlRIDestroy(m));
    }
  }
  /* asynchronous copies of pageable memory */
  begin(2);
  IS(107000, acl.aclrtMemcpyAsync(cx, 16, z, 16, 1, stream));
  end_invalid();
  begin(0);
  IS(old ? 507000 : 107041, acl.aclrtMemcpyAsync(cx, 16, z, 16, 1, other));
  end_invalid();
  begin(2);
  IS(0, acl.aclrtMemcpyAsync(cx, 16, z, 16, 1, other));
  IS(0, acl.aclrtMemcpyAsync(cx, 16, host, 16, 1, stream));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  IS(0, acl.aclmdlRIDestroy(m));
  /* allocation is not refused, but is a violation */
  begin(2);
  expect_violations();
  void *p = device(64);
  assert_violated("while a stream is being captured");
  expect_violations();
  IS(0, acl.aclrtFree(p));
  assert_violated("while a stream is being captured");
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  IS(0, acl.aclmdlRIDestroy(m));
  /* events from outside */
  begin(2);
  IS(107024, acl.aclrtStreamWaitEvent(stream, outside));
  end_invalid();
  begin(2);
  IS(207000, acl.aclrtStreamWaitEvent(stream, flag));
  end_invalid();
  /* who may end it */
  begin(0);
  int rc = 0;
  in_thread(end_in_thread, &rc);
  assert_int_equal(rc, old ? 507000 : 107038);
  assert_int_equal(capture_status(), 0);
  begin(2);
  in_thread(end_in_thread, &rc);
  assert_int_equal(rc, 0);
  /* streams that join */
  for (int k = 0; k < 4; k++) {
    begin(2);
    IS(0, scale(cx, 4, 2, stream));
    IS(0, acl.aclrtRecordEvent(ex, stream));
    IS(0, acl.aclrtStreamWaitEvent(other, ex));
    IS(0, scale(cy, 4, 2, other));
    IS(107027, acl.aclrtSynchronizeStream(other) + 0 * k);
    IS(507903, acl.aclmdlRICaptureEnd(stream, &m));
    begin(2);
    IS(0, scale(cx, 4, 2, stream));
    IS(0, acl.aclrtRecordEvent(ex, stream));
    IS(0, acl.aclrtStreamWaitEvent(other, ex));
    IS(0, scale(cy, 4, 2, other));
    IS(old ? 507000 : 107036, acl.aclmdlRICaptureEnd(other, &m)); /* it began elsewhere */
    if (k >= 1) IS(0, acl.aclrtRecordEvent(ex, other));
    if (k >= 2) IS(0, acl.aclrtStreamWaitEvent(stream, ex));
    if (k == 3) IS(0, scale(cy, 4, 2, other)); /* after its last record */
    IS(k == 2 ? 0 : 107025, acl.aclmdlRICaptureEnd(stream, &m));
    if (k == 2) IS(0, acl.aclmdlRIDestroy(m));
  }
  assert_int_equal(acl.aclrtSynchronizeStream(other), 0); /* left the capture with it */
  /* the default stream cannot join */
  begin(2);
  IS(0, acl.aclrtRecordEvent(ex, stream));
  IS(107031, acl.aclrtStreamWaitEvent(NULL, ex));
  end_invalid();
  /* models */
  begin(2);
  IS(0, scale(cx, 4, 2, stream));
  aclmdlRI half = NULL;
  IS(0, acl.aclmdlRICaptureGetInfo(stream, &status, &half));
  IS(107026, acl.aclmdlRIExecuteAsync(half, other));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  assert_ptr_equal(m, half);
  IS(107000, acl.aclmdlRIExecuteAsync(stream, stream));
  begin(2);
  IS(107027, acl.aclmdlRIExecuteAsync(m, stream));
  end_invalid();
  IS(0, acl.aclmdlRIDestroy(m));
  IS(107000, acl.aclmdlRIDestroy(m));
  IS(0, acl.aclrtDestroyEvent(ex));
  IS(0, acl.aclrtDestroyEvent(outside));
  IS(0, acl.aclrtDestroyEvent(flag));
  IS(0, acl.aclrtFreeHost(host));
  IS(0, acl.aclrtFree(cx));
  IS(0, acl.aclrtFree(cy));
  close_all();
}

static void body_no_capture(void) {
  open_all();
  IS(207000, acl.aclmdlRICaptureBegin(stream, 0));
  close_all();
}

static void body_replay(void) {
  bool old = strstr(npu_current(), "8.1");
  open_all();
  aclmdlRI m, big;
  aclrtEvent ex;
  float *host = pinned(64), *back = pinned(64);
  cx = device(64);
  cy = device(64);
  IS(0, acl.aclrtCreateEventExWithFlag(&ex, 1));
  fill(cx, 4, 5, 0);
  fill(cy, 4, 7, 0);
  back[0] = 0;
  begin(0);
  IS(0, acl.aclrtMemcpyAsync(cx, 16, host, 16, 1, stream));
  IS(0, scale(cx, 4, 2, stream));
  IS(0, acl.aclrtRecordEvent(ex, stream));
  IS(0, acl.aclrtStreamWaitEvent(other, ex));
  IS(0, acl.aclrtMemcpyAsync(cy, 16, cx, 16, 3, other));
  IS(0, scale(cy, 4, 10, other));
  IS(0, acl.aclrtRecordEvent(ex, other));
  IS(0, acl.aclrtMemsetAsync((char *)cx + 16, 16, 0, 16, stream));
  IS(0, acl.aclrtStreamWaitEvent(stream, ex));
  IS(0, acl.aclrtMemcpyAsync(back, 16, cy, 16, 2, stream));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  wait_for(stream);
  assert_true(value(cx, 0) == 5 && value(cy, 0) == 7 && back[0] == 0); /* nothing was executed */
  for (int i = 0; i < 30; i++) {
    emu->seed((uint64_t)i);
    emu->lazy(i % 2);
    for (int k = 0; k < 4; k++) host[k] = (float)(i + k);
    IS(0, acl.aclmdlRIExecuteAsync(m, i % 3 ? stream : other));
    IS(0, acl.aclrtSynchronizeDevice());
    for (int k = 0; k < 4; k++) assert_true(back[k] == (float)(20 * (i + k)) && value(cx, k) == (float)(2 * (i + k)));
  }
  emu->lazy(1);
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  IS(0, acl.aclmdlRIExecuteAsync(m, stream)); /* one after the other: allowed */
  IS(old ? 507000 : 107037, acl.aclmdlRIExecuteAsync(m, other));
  IS(0, acl.aclmdlRIDestroy(m)); /* waits for both */
  wait_for(stream);
  begin(0);
  IS(0, acl.aclrtMemcpyAsync(cx, 16, host, 16, 1, stream));
  IS(0, scale(cx, 4, 2, stream));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  emu->lazy(1);
  expect_violations();
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  host[1] = 99;
  wait_for(stream);
  assert_violated("written before the copy ran");
  /* memory that the model uses */
  expect_violations();
  float *gone = cx;
  IS(0, acl.aclrtFree(cx));
  cx = device(64);
  assert_ptr_not_equal(gone, cx);
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  IS(507011, acl.aclrtSynchronizeStream(stream));
  emu->reset();
  emu->quiet(0);
  IS(0, acl.aclmdlRIDestroy(m));
  /* a fault inside comes out as one of the model */
  int64_t *index = device(64), five = 5;
  IS(0, acl.aclrtMemcpy(index, 8, &five, 8, 1));
  begin(0);
  IS(0, pick(cy, cx, 4, index, stream));
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  IS(507011, acl.aclrtSynchronizeStream(stream));
  assert_says("IndexSelect");
  five = 2;
  IS(0, acl.aclrtMemcpy(index, 8, &five, 8, 1)); /* contents are live */
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  wait_for(stream);
  /* streams that models take */
  emu->limits(6, 65536); /* two of ours, one of the model */
  IS(0, acl.aclmdlRICaptureBegin(other, 2));
  begin(2);
  aclrtStream s;
  IS(0, acl.aclrtCreateStream(&s));
  IS(207008, acl.aclmdlRICaptureBegin(s, 2));
  for (int i = 0; i < 1024; i++) IS(0, scale(cx, 1, 1, stream));
  IS(207008, scale(cx, 1, 1, stream)); /* more than one queue of the hardware holds */
  end_invalid();
  IS(0, acl.aclmdlRICaptureBegin(s, 2)); /* gave its stream back */
  IS(0, acl.aclmdlRICaptureEnd(s, &big));
  IS(0, acl.aclmdlRIDestroy(big));
  IS(0, acl.aclmdlRICaptureEnd(other, &big));
  IS(0, acl.aclmdlRIDestroy(big));
  IS(0, acl.aclrtDestroyStream(s));
  emu->limits(1984, 65536);
  begin(2);
  for (int i = 0; i < 2500; i++) IS(0, scale(cx, 1, i % 2 ? 0.5F : 2, stream));
  IS(0, acl.aclmdlRICaptureEnd(stream, &big));
  fill(cx, 4, 3, 0);
  IS(0, acl.aclmdlRIExecuteAsync(big, stream));
  wait_for(stream);
  assert_true(value(cx, 0) == 3);
  IS(0, acl.aclmdlRIDestroy(big));
  IS(0, acl.aclmdlRIDestroy(m));
  void *all[] = {cx, cy, index};
  for (int i = 0; i < 3; i++) IS(0, acl.aclrtFree(all[i]));
  IS(0, acl.aclrtFreeHost(host));
  IS(0, acl.aclrtFreeHost(back));
  IS(0, acl.aclrtDestroyEvent(ex));
  close_all();
}

/* ---- task groups ---------------------------------------------------------------------------------------------------------------- */

static void body_groups(void) {
  open_all();
  aclmdlRI m;
  aclrtTaskGrp g = NULL, h;
  aclrtEvent e;
  int32_t can = 0;
  cx = device(64);
  cy = device(64);
  fill(cx, 4, 1, 0);
  fill(cy, 4, 1, 0);
  IS(0, acl.aclrtCreateEventWithFlag(&e, NPU_EVENT_EXTERNAL));
  if (acl.aclrtGetDeviceCapability) IS(0, acl.aclrtGetDeviceCapability(0, NPU_FEATURE_TASK_UPDATE, &can));
  assert_int_equal(can, acl.aclrtGetDeviceCapability != NULL);
  IS(107029, acl.aclmdlRICaptureTaskGrpBegin(stream));
  IS(107029, acl.aclmdlRICaptureTaskGrpEnd(stream, &g));
  begin(0);
  IS(107033, acl.aclmdlRICaptureTaskGrpEnd(stream, &g));
  end_invalid();
  begin(0);
  IS(0, acl.aclmdlRICaptureTaskGrpBegin(stream));
  IS(107033, acl.aclmdlRICaptureTaskGrpBegin(stream));
  IS(107033, acl.aclmdlRICaptureEnd(stream, &m)); /* with an open group */
  assert_int_equal(capture_status(), 0);
  for (int k = 0; k < 3; k++) { /* only kernels in a group */
    begin(0);
    IS(0, acl.aclmdlRICaptureTaskGrpBegin(stream));
    IS(507009, k == 0   ? acl.aclrtMemcpyAsync(cx, 16, cy, 16, 3, stream)
               : k == 1 ? acl.aclrtMemsetAsync(cx, 16, 0, 16, stream)
                        : acl.aclrtRecordEvent(e, stream));
    IS(107034, scale(cx, 4, 2, stream));
    IS(107034, acl.aclmdlRICaptureTaskGrpEnd(stream, &g));
    assert_null(g);
    end_invalid();
  }
  for (int n = 0; n < 3; n += 2) { /* one operator, neither none nor two */
    begin(0);
    IS(0, acl.aclmdlRICaptureTaskGrpBegin(stream));
    for (int i = 0; i < n; i++) IS(0, scale(cx, 4, 2, stream));
    IS(107033, acl.aclmdlRICaptureTaskGrpEnd(stream, &g));
    end_invalid();
  }
  /* wait E, reset E, group; the update comes from the other stream and records E */
  begin(0);
  IS(0, scale(cy, 4, 2, stream));
  IS(0, acl.aclrtStreamWaitEvent(stream, e));
  IS(0, acl.aclrtResetEvent(e, stream));
  IS(0, acl.aclmdlRICaptureTaskGrpBegin(stream));
  IS(0, scale(cx, 4, 2, stream));
  IS(0, acl.aclmdlRICaptureTaskGrpEnd(stream, &g));
  IS(107026, acl.aclmdlRICaptureTaskUpdateBegin(other, g)); /* not before the capture is over */
  IS(0, acl.aclmdlRICaptureEnd(stream, &m));
  for (int i = 0; i < 40; i++) {
    fill(cx, 4, 1, 0);
    emu->seed((uint64_t)i);
    emu->lazy(i % 2);
    IS(0, acl.aclmdlRIExecuteAsync(m, stream));
    IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
    IS(0, scale(cx, 4, (float)i, other));
    IS(0, acl.aclmdlRICaptureTaskUpdateEnd(other));
    IS(0, acl.aclrtRecordEvent(e, other));
    wait_for(stream);
    assert_true(value(cx, 0) == (float)i);
  }
  /* without the order of E an update may come too late: both happen. E is set first, so the model does not wait. */
  int seen = 0;
  for (int i = 0; i < 40; i++) {
    fill(cx, 4, 1, 0);
    emu->seed((uint64_t)i);
    emu->lazy(1);
    IS(0, acl.aclrtRecordEvent(e, other));
    wait_for(other);
    IS(0, acl.aclmdlRIExecuteAsync(m, stream));
    IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
    IS(0, scale(cx, 4, (float)(100 + i), other));
    IS(0, acl.aclmdlRICaptureTaskUpdateEnd(other));
    IS(0, acl.aclrtSynchronizeDevice());
    seen |= value(cx, 0) == (float)(100 + i) ? 1 : 2;
  }
  assert_int_equal(seen, 3);
  /* a model that waits for ever is not destroyed */
  IS(0, acl.aclmdlRIExecuteAsync(m, stream));
  IS(emu->cann < 805 ? 507000 : 107037, acl.aclmdlRIDestroy(m));
  emu->hang_ms(50);
  IS(507046, acl.aclrtSynchronizeStream(stream));
  assert_says("executes a model that waits");
  emu->hang_ms(10000);
  IS(0, acl.aclrtRecordEvent(e, other));
  wait_for(stream);
  /* rules of updates */
  IS(107000, acl.aclmdlRICaptureTaskUpdateBegin(other, NULL));
  IS(107000, acl.aclmdlRICaptureTaskUpdateBegin(other, stream));
  IS(107033, acl.aclmdlRICaptureTaskUpdateEnd(other));
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(107033, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(107033, acl.aclmdlRICaptureTaskUpdateBegin(stream, g)); /* one stream at a time */
  IS(507000, acl.aclmdlRICaptureTaskUpdateEnd(other));       /* too few */
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(0, scale(cx, 4, 3, other));
  IS(507000, scale(cx, 4, 3, other)); /* too many */
  IS(507000, acl.aclmdlRICaptureTaskUpdateEnd(other));
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  void *w = device(1024);
  IS(507000, product(NPU_FLOAT16, cy, cx, cx, 2, w, -1, other)); /* another operator */
  IS(507000, acl.aclmdlRICaptureTaskUpdateEnd(other));
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(507009, acl.aclrtMemsetAsync(cx, 16, 0, 16, other));
  IS(507000, acl.aclmdlRICaptureTaskUpdateEnd(other));
  begin(2);
  IS(107027, acl.aclmdlRICaptureTaskUpdateBegin(stream, g));
  IS(0, acl.aclmdlRICaptureEnd(stream, &h));
  IS(0, acl.aclmdlRIDestroy(h));
  expect_violations();
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(0, scale(cy, 4, 3, other));
  IS(0, acl.aclmdlRICaptureTaskUpdateEnd(other));
  wait_for(other);
  assert_violated("changes an address");
  emu->task_update(0);
  IS(emu->cann < 805 ? 207000 : 207019, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  emu->task_update(1);
  /* the event of a model goes after it */
  expect_violations();
  IS(0, acl.aclrtDestroyEvent(e));
  assert_violated("still uses");
  emu->lazy(1);
  expect_violations();
  IS(0, acl.aclmdlRICaptureTaskUpdateBegin(other, g));
  IS(0, scale(cx, 4, 3, other));
  IS(0, acl.aclmdlRICaptureTaskUpdateEnd(other));
  IS(0, acl.aclmdlRIDestroy(m));
  wait_for(other); /* the update comes too late */
  assert_violated("after its model was destroyed");
  IS(107000, acl.aclmdlRICaptureTaskUpdateBegin(other, g)); /* went with its model */
  IS(0, acl.aclrtFree(cx));
  IS(0, acl.aclrtFree(cy));
  IS(0, acl.aclrtFree(w));
  close_all();
}

CAPTURING(capture_rules)
CAPTURING(replay)
CAPTURING(groups)
static void test_no_capture(void **state) {
  (void)state;
  npu_profile("310P-8.5", body_no_capture);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_capture_rules),
    cmocka_unit_test(test_replay),
    cmocka_unit_test(test_groups),
    cmocka_unit_test(test_no_capture),
};
TEST_MAIN(tests)
