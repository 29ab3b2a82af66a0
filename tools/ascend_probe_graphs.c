/* ascend_probe_graphs.c — capture and replay: copies from pinned memory, events from outside, memory, renewed arguments, and times. */
#include <stdlib.h>
#include <string.h>

#include "ascend_probe.h"
#include "base/clock.h"
#include "compute/ascend/capture.h"

enum { N = 1024, TIMES = 20 };

/* y = 2 x. */
static void twice(struct probe *p, void *y, const void *x) {
  struct ascend *d = p->d;
  ASCEND_LAUNCH(d, Muls, ascend_array(d, x, d->type, N), ascend_number(d, 2), ascend_array(d, y, d->type, N));
}

static bool begin(struct probe *p) {
  struct ascend *d = p->d;
  ascend_check(d, d->acl.aclmdlRICaptureBegin(d->stream, NPU_CAPTURE_THREAD_LOCAL), "aclmdlRICaptureBegin");
  return ascend_ok(d);
}

/* NULL: the capture failed, and it was said. Ends one in any case. */
static aclmdlRI end(struct probe *p) {
  struct ascend *d = p->d;
  aclmdlRI model = NULL;
  int rc = d->acl.aclmdlRICaptureEnd(d->stream, &model);
  ascend_check(d, rc, "aclmdlRICaptureEnd");
  if (ascend_ok(d) && model) return model;
  probe_done(p, PROBE_DIFFERS, "the capture");
  return NULL;
}

static void replay(struct probe *p, aclmdlRI model) {
  struct ascend *d = p->d;
  if (ascend_ok(d)) ascend_check(d, d->acl.aclmdlRIExecuteAsync(model, d->stream), "aclmdlRIExecuteAsync");
}

static bool all_are(struct probe *p, const void *device, float value) {
  float out[N];
  int n = 0;
  probe_get_numbers(p, out, device, N);
  for (int i = 0; i < N; i++) n += out[i] == value;
  return n == N;
}

static void fill(struct probe *p, uint16_t half[N], float value) {
  float x[N];
  for (int i = 0; i < N; i++) x[i] = value;
  dtype_from_f32(p->d->dtype, x, half, N);
}

static void pinned_copy(struct probe *p) {
  struct ascend *d = p->d;
  struct err e;
  if (!probe_has_capture(p)) return;
  uint16_t *pinned = ascend_alloc_host(d, N * sizeof *pinned, "a point", &e);
  void *x = probe_room(p, N * 2, 0), *y = probe_room(p, N * 2, 0);
  twice(p, y, x); /* what it needs is there from here on */
  if (!pinned || !probe_done(p, PROBE_FAILED, "")) return;
  fill(p, pinned, 1);
  if (!begin(p)) {
    probe_done(p, PROBE_DIFFERS, "");
    return;
  }
  ascend_check(d, d->acl.aclrtMemcpyAsync(x, N * 2, pinned, N * 2, NPU_HOST_TO_DEVICE, d->stream), "aclrtMemcpyAsync in a capture");
  twice(p, y, x);
  aclmdlRI model = end(p);
  if (!model) return;
  int right = 0;
  for (int i = 0; i < TIMES; i++) {
    fill(p, pinned, (float)(i + 3));
    replay(p, model);
    if (!probe_done(p, PROBE_DIFFERS, "the replay")) return;
    right += all_are(p, y, (float)(2 * (i + 3)));
  }
  probe_say(p, right == TIMES ? PROBE_EXPECTED : PROBE_DIFFERS, "%d of %d replays copied what was in pinned memory then", right, TIMES);
  d->acl.aclmdlRIDestroy(model);
}

/* The captured stream waits for an event that another stream records in each replay, late. */
static void external_event(struct probe *p) {
  struct ascend *d = p->d;
  struct err e;
  aclrtEvent event = NULL;
  if (!probe_has_capture(p)) return;
  uint16_t *pinned = ascend_alloc_host(d, N * sizeof *pinned, "a point", &e);
  void *x = probe_room(p, N * 2, 0), *y = probe_room(p, N * 2, 0);
  const size_t long_bytes = p->small ? 1 << 20 : 256 << 20;
  char *wide = probe_room(p, 2 * long_bytes, 0);
  twice(p, y, x);
  ascend_check(d, d->acl.aclrtCreateEventWithFlag(&event, NPU_EVENT_EXTERNAL), "aclrtCreateEventWithFlag");
  if (!pinned || !probe_done(p, PROBE_DIFFERS, "")) return;
  if (!begin(p)) {
    probe_done(p, PROBE_DIFFERS, "");
    return;
  }
  ascend_check(d, d->acl.aclrtStreamWaitEvent(d->stream, event), "aclrtStreamWaitEvent in a capture");
  ascend_check(d, d->acl.aclrtResetEvent(event, d->stream), "aclrtResetEvent in a capture");
  twice(p, y, x);
  aclmdlRI model = end(p);
  if (!model) return;
  int right = 0;
  for (int i = 0; i < TIMES; i++) {
    fill(p, pinned, (float)(i + 3));
    replay(p, model);
    ascend_check(d, d->acl.aclrtMemcpyAsync(wide, long_bytes, wide + long_bytes, long_bytes, NPU_DEVICE_TO_DEVICE, d->side), "a long copy");
    ascend_check(d, d->acl.aclrtMemcpyAsync(x, N * 2, pinned, N * 2, NPU_HOST_TO_DEVICE, d->side), "a copy");
    ascend_check(d, d->acl.aclrtRecordEvent(event, d->side), "aclrtRecordEvent");
    if (!probe_done(p, PROBE_DIFFERS, "the replay")) return;
    right += all_are(p, y, (float)(2 * (i + 3)));
  }
  probe_say(p, right == TIMES ? PROBE_EXPECTED : PROBE_DIFFERS, "%d of %d replays waited for their own record", right, TIMES);
  d->acl.aclmdlRIDestroy(model);
  d->acl.aclrtDestroyEvent(event);
}

/* The backend never does it; what would happen if something else in the process did. */
static void memory_in_capture(struct probe *p) {
  struct ascend *d = p->d;
  void *taken = NULL;
  if (!probe_has_capture(p)) return;
  float one[N];
  for (int i = 0; i < N; i++) one[i] = 1;
  void *x = probe_put(p, one, N), *y = probe_room(p, N * 2, 0);
  twice(p, y, x);
  if (!probe_done(p, PROBE_FAILED, "")) return;
  if (!begin(p)) {
    probe_done(p, PROBE_DIFFERS, "");
    return;
  }
  int rc = d->acl.aclrtMalloc(&taken, 4 << 20, NPU_HUGE_FIRST), freed = taken ? d->acl.aclrtFree(taken) : -1;
  twice(p, y, x);
  probe_say(p, PROBE_FIGURE, "aclrtMalloc returns %d, aclrtFree %d", rc, freed);
  aclmdlRI model = end(p);
  if (!model) return;
  replay(p, model);
  if (!probe_done(p, PROBE_DIFFERS, "the replay")) return;
  probe_say(p, all_are(p, y, 2) ? PROBE_EXPECTED : PROBE_DIFFERS, "the capture is whole");
  d->acl.aclmdlRIDestroy(model);
}

/* An operator whose kernel this process never ran. */
static void first_in_capture(struct probe *p) {
  struct ascend *d = p->d;
  struct err e;
  float zero[N] = {0};
  if (!probe_has_capture(p)) return;
  void *x = probe_put(p, zero, N), *y = probe_room(p, N * 2, 0xff);
  ascend_workspace(d, 1 << 20);
  if (!probe_done(p, PROBE_FAILED, "") || !begin(p)) {
    probe_done(p, PROBE_DIFFERS, "");
    return;
  }
  ASCEND_LAUNCH(d, Sigmoid, ascend_array(d, x, d->type, N), ascend_array(d, y, d->type, N));
  aclmdlRI model = NULL;
  int rc = d->acl.aclmdlRICaptureEnd(d->stream, &model);
  ascend_check(d, rc, "aclmdlRICaptureEnd");
  if (model && ascend_ok(d)) replay(p, model);
  if (!probe_quietly_done(p, &e)) probe_say(p, PROBE_FIGURE, "not possible: %s", e.msg);
  else
    probe_say(p, all_are(p, y, 0.5f) ? PROBE_FIGURE : PROBE_DIFFERS, "possible, the result is %s", all_are(p, y, 0.5f) ? "right" : "WRONG");
  if (model) d->acl.aclmdlRIDestroy(model);
}

/* ---- renewed arguments ----------------------------------------------------------------------------------------------------------------- */

struct renewed {
  struct probe *p;
  struct fused_call call;
};

static bool issue(struct ascend *d, const void *ctx, bool renew) {
  const struct renewed *r = ctx;
  (void)d, (void)renew;
  probe_fused(r->p, &r->call);
  return true;
}

/* Attention of one query, its number of keys renewed in each replay: keys are 0, value j is j, so the result is the mean of 0 .. n - 1. */
static void renewed_lengths(struct probe *p) {
  enum { HEAD = 128, KEYS = 256, PAGE = 128 };
  struct ascend *d = p->d;
  const char *none = ascend_no_records(&d->device);
  struct err e = {0};
  static float v[KEYS * HEAD];
  int64_t keys = KEYS;
  if (none || !d->profile.fused) {
    probe_say(p, PROBE_SKIPPED, "%s", none ? none : "no fused attention");
    return;
  }
  for (int i = 0; i < KEYS * HEAD; i++) v[i] = (float)(i / HEAD);
  const int32_t ids[] = {1, 2};
  const size_t page_bytes = (size_t)PAGE * HEAD * 2;
  struct renewed r = {.p = p,
                      .call = {.layout = "BSH", .batch = 1, .rows = 1, .n_q = 2, .n_kv = 1, .head_dim = HEAD, .pages = 3, .page = PAGE}};
  struct fused_call *c = &r.call;
  char *pool = probe_room(p, 3 * page_bytes, 0);
  c->v = pool, c->k = probe_room(p, 3 * page_bytes, 0), c->q = probe_room(p, 2 * HEAD * 2, 0), c->out = probe_room(p, 2 * HEAD * 2, 0xff);
  c->table = probe_put_bytes(p, ids, sizeof ids), c->width = 2, c->pre = c->next = 2147483647, c->keys = &keys;
  if (ascend_ok(d)) probe_write(p, pool + page_bytes, v, ARRAY_LEN(v));
  probe_fused(p, c);
  struct device_record *record = ascend_record_new(&d->device, 8, 1024, &e);
  if (!probe_done(p, PROBE_FAILED, "") || !record) return;
  ascend_record_begin(&d->device, record);
  capture_update_numbers(d, issue, &r, sizeof r, &keys, 1);
  ascend_record_end(&d->device, record);
  if (!probe_done(p, PROBE_DIFFERS, "recording")) return;
  int right = 0;
  for (int i = 0; i < TIMES; i++) {
    float out[2 * HEAD];
    keys = 1 + (i * 37) % KEYS;
    ascend_record_replay(&d->device, record);
    if (!probe_done(p, PROBE_DIFFERS, "the replay")) return;
    probe_get_numbers(p, out, c->out, ARRAY_LEN(out));
    float mean = (float)(keys - 1) / 2, off = out[0] - mean;
    right += off <= mean / 64 && -off <= mean / 64;
  }
  probe_say(p, right == TIMES ? PROBE_EXPECTED : PROBE_DIFFERS, "%d of %d replays used their own lengths", right, TIMES);
  ascend_record_delete(&d->device, record);
}

/* ---- times --------------------------------------------------------------------------------------------------------------------------------- */

static void replay_time(struct probe *p) {
  struct ascend *d = p->d;
  const int launches = p->small ? 50 : 400, rounds = p->small ? 5 : 50;
  if (!probe_has_capture(p)) return;
  void *x = probe_room(p, N * 2, 0), *y = probe_room(p, N * 2, 0);
  twice(p, y, x);
  if (!probe_done(p, PROBE_FAILED, "")) return;
  int64_t start = clock_ns();
  for (int i = 0; i < launches; i++) twice(p, y, x);
  double eager_host = (double)(clock_ns() - start) / 1e3;
  if (!probe_done(p, PROBE_FAILED, "")) return;
  double eager = (double)(clock_ns() - start) / 1e3;
  if (!begin(p)) {
    probe_done(p, PROBE_DIFFERS, "");
    return;
  }
  for (int i = 0; i < launches; i++) twice(p, y, x);
  aclmdlRI model = end(p);
  if (!model) return;
  double host = 0, all = 0;
  for (int i = -1; i < rounds; i++) {
    start = clock_ns();
    replay(p, model);
    double issued = (double)(clock_ns() - start) / 1e3;
    if (!probe_done(p, PROBE_DIFFERS, "the replay")) return;
    if (i >= 0) host += issued / rounds, all += (double)(clock_ns() - start) / 1e3 / rounds;
  }
  probe_say(p, PROBE_FIGURE, "%d launches: eagerly %.0f us (%.0f to issue them); one replay %.0f us (%.0f to issue it)", launches, eager,
            eager_host, all, host);
  d->acl.aclmdlRIDestroy(model);
}

const struct point probe_graphs[] = {
    {"pinned-copy", "a captured copy from pinned memory reads it anew in each replay", pinned_copy},
    {"external-event", "a captured stream waits for an event recorded from outside, in every replay", external_event},
    {"capture-memory", "aclrtMalloc and aclrtFree within a capture leave it whole", memory_in_capture},
    {"first-in-capture", "nothing: whether a kernel may run for the first time within a capture", first_in_capture},
    {"renewed-lengths", "attention uses the lengths that a replay was given", renewed_lengths},
    {"replay-time", "what a replay costs beside eager launches", replay_time},
    {0},
};
