/* capture.c — recorded steps: capture, replay, and the renewal of what operators were given by value. The rules are in capture.h.
 *
 * One block of memory: struct device_record | places | contexts and known numbers.
 */
#include "compute/ascend/capture.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum {
  LAUNCHES_PER_PLACE = 4, /* at least; so a record has room for a quarter of its launches to be places */
  SETS_MAX = 16,          /* arrays of numbers that places depend on: one or two for each kind of layer */
  DELETE_WAIT_MS = 30000,
};

struct place { /* an operator with arguments by value */
  capture_issue_fn issue;
  size_t ctx; /* offset of its context */
  int set;    /* of numbers; -1: renewed every time */
  aclrtEvent renewed;
  aclrtTaskGrp group;
};

struct number_set {
  const int64_t *now;
  int n;
  size_t known; /* offset of those that the places were given last */
  bool is_known, differs;
};

struct device_record {
  struct ascend *d;
  aclmdlRI model;                 /* NULL: nothing is recorded */
  aclrtEvent done;                /* on the stream, behind the last replay */
  bool is_capturing, is_done_set; /* done is recorded, or was before */
  uint64_t launches_before;
  int n_launches, n_places, places_max, n_sets;
  size_t used, room; /* of the bytes behind the places */
  struct number_set sets[SETS_MAX];
  struct place places[];
};

static unsigned char *bytes_of(struct device_record *r, size_t offset) {
  return (unsigned char *)r + sizeof *r + (size_t)r->places_max * sizeof r->places[0] + offset;
}

/* Offset of n bytes, of which nothing is known; SIZE_MAX: they do not fit. */
static size_t take_bytes(struct device_record *r, size_t n) {
  size_t at = r->used, n_bytes = align_up(n, 16);
  if (n_bytes > r->room - at) return SIZE_MAX;
  r->used += n_bytes;
  return at;
}

/* ---- whether there are records, and their memory ----------------------------------------------------------------------------- */

const char *ascend_no_records(const struct device *device) {
  const struct ascend *d = (const struct ascend *)device;
  if (d->profile.chip == ASCEND_310P) return "the chip (310P) has no stream capture";
  if (!d->profile.has_capture) return "this CANN has no stream capture (8.1 is the first that has)";
  if (!d->profile.has_task_update) return "the driver cannot renew arguments of captured operators (25.0 is the first that can)";
  return NULL;
}

static int places_of(int launches_max) { return launches_max / LAUNCHES_PER_PLACE + 1; }

size_t ascend_record_bytes(int launches_max, size_t ctx_bytes_max) {
  return sizeof(struct device_record) + (size_t)places_of(launches_max) * sizeof(struct place) + align_up(ctx_bytes_max, 16);
}

struct device_record *ascend_record_new(struct device *device, int launches_max, size_t ctx_bytes_max, struct err *e) {
  size_t n_bytes = ascend_record_bytes(launches_max, ctx_bytes_max);
  struct device_record *r = mem_try_alloc(n_bytes);
  if (!r) {
    err_set(e, ERR_NO_MEMORY, "graph mode: no memory for a record of %zu bytes", n_bytes);
    return NULL;
  }
  r->d = ascend_of(device);
  r->places_max = places_of(launches_max);
  r->room = align_up(ctx_bytes_max, 16);
  return r;
}

/* Forget all that was captured; the device has done with it. Of a lost device nobody knows that: there it goes with the device's context. */
static void clear(struct device_record *r) {
  const struct acl *a = &r->d->acl;
  char why[256];
  if (!r->d->device.lost) {
    int rc = r->model ? a->aclmdlRIDestroy(r->model) : 0;
    if (rc) log_line(LOG_WARN, "ascend", "a recorded step could not be given back: %s", acl_error_text(a, rc, why));
    for (int i = 0; i < r->n_places; i++)
      if (r->places[i].renewed) a->aclrtDestroyEvent(r->places[i].renewed);
    if (r->done) a->aclrtDestroyEvent(r->done);
  }
  memset(r->places, 0, (size_t)r->n_places * sizeof r->places[0]);
  r->model = NULL;
  r->done = NULL;
  r->is_done_set = false;
  r->n_places = r->n_sets = r->n_launches = 0;
  r->used = 0;
}

void ascend_record_delete(struct device *device, struct device_record *r) {
  struct ascend *d = ascend_of(device);
  if (!r) return;
  CHECK(d->record != r);
  if (r->model && ascend_enter(d) && !d->device.lost) {
    d->acl.aclrtSynchronizeStreamWithTimeout(d->stream, DELETE_WAIT_MS);
    d->acl.aclrtSynchronizeStreamWithTimeout(d->side, DELETE_WAIT_MS);
  }
  clear(r);
  free(r);
}

int ascend_record_launches(const struct device_record *r) { return r->n_launches; }

/* ---- recording ----------------------------------------------------------------------------------------------------------------- */

void ascend_record_begin(struct device *device, struct device_record *r) {
  struct ascend *d = ascend_of(device);
  CHECK(!d->record && !r->model);
  d->record = r; /* also where something failed: launches do nothing then */
  r->launches_before = d->n_launches;
  if (!ascend_ok(d) || !ascend_enter(d)) return;
  if (!ascend_check(d, d->acl.aclrtCreateEventExWithFlag(&r->done, NPU_EVENT_SYNC), "recording a step: an event")) return;
  r->is_capturing = ascend_check(d, d->acl.aclmdlRICaptureBegin(d->stream, NPU_CAPTURE_THREAD_LOCAL), "recording a step: its beginning");
}

/* Also after an error, so that the stream is out of it. */
static void end_capture(struct ascend *d, struct device_record *r) {
  const struct acl *a = &d->acl;
  aclmdlRICaptureStatus status = 0;
  aclmdlRI model = NULL;
  int rc = a->aclmdlRICaptureEnd(d->stream, &r->model);
  if (!rc) return;
  ascend_check(d, rc, "recording a step: its end");
  if (!a->aclmdlRICaptureGetInfo || a->aclmdlRICaptureGetInfo(d->stream, &status, &model) || status == 0) return;
  if (a->aclmdlRICaptureEnd(d->stream, &r->model) && !a->aclmdlRICaptureGetInfo(d->stream, &status, &model) && status != 0)
    d->device.lost = true; /* what goes to the stream would never run */
}

void ascend_record_end(struct device *device, struct device_record *r) {
  struct ascend *d = ascend_of(device);
  CHECK(d->record == r);
  d->record = NULL;
  if (r->is_capturing) end_capture(d, r);
  r->is_capturing = false;
  r->n_launches = (int)(d->n_launches - r->launches_before);
  if (ascend_ok(d) && (!r->model || r->n_launches == 0)) ascend_fail(d, "recording a step: expected a captured model, found none");
  if (!ascend_ok(d)) clear(r);
}

/* The set of these numbers, which are what is captured now; -1: none, or too many. */
static int find_set(struct device_record *r, const int64_t *numbers, int n) {
  if (!numbers || n < 1) return -1;
  int i = 0;
  while (i < r->n_sets && (r->sets[i].now != numbers || r->sets[i].n != n)) i++;
  if (i < r->n_sets) return i;
  size_t known = i < SETS_MAX ? take_bytes(r, (size_t)n * sizeof *numbers) : SIZE_MAX;
  if (known == SIZE_MAX) return -1;
  memcpy(bytes_of(r, known), numbers, (size_t)n * sizeof *numbers);
  r->sets[r->n_sets++] = (struct number_set){.now = numbers, .n = n, .known = known, .is_known = true};
  return i;
}

static struct place *add_place(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes) {
  struct device_record *r = d->record;
  size_t at = r->n_places < r->places_max ? take_bytes(r, ctx_bytes) : SIZE_MAX;
  if (at == SIZE_MAX) {
    ascend_fail(d, "recording a step: expected at most %d operators with arguments by value in %zu bytes, found more", r->places_max,
                r->room);
    return NULL;
  }
  memcpy(bytes_of(r, at), ctx, ctx_bytes);
  struct place *p = &r->places[r->n_places++];
  *p = (struct place){.issue = issue, .ctx = at, .set = -1};
  return p;
}

void capture_update_numbers(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes, const int64_t *numbers, int n) {
  static const char what[] = "recording a step: an operator whose arguments change";
  const struct acl *a = &d->acl;
  if (!d->record) {
    issue(d, ctx, false);
    return;
  }
  struct place *p = ascend_ok(d) ? add_place(d, issue, ctx, ctx_bytes) : NULL;
  if (!p) return;
  p->set = find_set(d->record, numbers, n);
  if (!ascend_check(d, a->aclrtCreateEventWithFlag(&p->renewed, NPU_EVENT_EXTERNAL), "recording a step: an external event")) return;
  if (!ascend_check(d, a->aclrtStreamWaitEvent(d->stream, p->renewed), what)) return;
  if (!ascend_check(d, a->aclrtResetEvent(p->renewed, d->stream), what)) return;
  if (!ascend_check(d, a->aclmdlRICaptureTaskGrpBegin(d->stream), what)) return;
  uint64_t before = d->n_launches;
  issue(d, ctx, false);
  int rc = a->aclmdlRICaptureTaskGrpEnd(d->stream, &p->group); /* also after an error: an open group would outlive the capture */
  if (!ascend_ok(d)) return;
  if (ascend_check(d, rc, what) && d->n_launches - before != 1)
    ascend_fail(d, "%s: expected one launch, found %llu", what, (unsigned long long)(d->n_launches - before));
}

void capture_update(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes) {
  capture_update_numbers(d, issue, ctx, ctx_bytes, NULL, 0);
}

/* ---- replay ---------------------------------------------------------------------------------------------------------------------- */

static void compare_numbers(struct device_record *r) {
  for (int i = 0; i < r->n_sets; i++) {
    struct number_set *s = &r->sets[i];
    s->differs = !s->is_known || memcmp(bytes_of(r, s->known), s->now, (size_t)s->n * sizeof *s->now) != 0;
    s->is_known = !s->differs; /* until all its places have been renewed */
  }
}

static void know_numbers(struct device_record *r) {
  for (int i = 0; i < r->n_sets; i++) {
    struct number_set *s = &r->sets[i];
    if (s->differs) memcpy(bytes_of(r, s->known), s->now, (size_t)s->n * sizeof *s->now);
    s->is_known = true;
  }
}

/* The place's operator is put together anew, for the group. */
static void renew(struct ascend *d, struct device_record *r, struct place *p) {
  static const char what[] = "replaying a step: renewal of an operator's arguments";
  const struct acl *a = &d->acl;
  const void *ctx = bytes_of(r, p->ctx);
  uint64_t before = d->n_launches;
  if (!ascend_check(d, a->aclmdlRICaptureTaskUpdateBegin(d->side, p->group), what)) return;
  d->into = d->side;
  if (!p->issue(d, ctx, true) && d->n_launches == before) p->issue(d, ctx, false); /* an update that was begun wants its operator */
  d->into = d->stream;
  int rc = a->aclmdlRICaptureTaskUpdateEnd(d->side);
  if (rc) a->aclmdlRICaptureTaskUpdateEnd(d->side); /* an update that stays open would keep the side stream from what follows */
  ascend_check(d, rc, what);
}

/* The captured step goes on at this place. */
static void release_place(struct ascend *d, struct place *p) {
  int rc = d->acl.aclrtRecordEvent(p->renewed, d->side);
  if (!rc) return;
  ascend_check(d, rc, "replaying a step: an event");
  if (!d->acl.aclrtRecordEvent(p->renewed, d->side)) return;
  d->device.lost = true; /* the stream stands still for good */
}

void ascend_record_replay(struct device *device, struct device_record *r) {
  struct ascend *d = ascend_of(device);
  const struct acl *a = &d->acl;
  CHECK(r->n_launches > 0 && !d->record);
  if (!ascend_ok(d)) return;
  /* What is renewed for this replay must not be seen by the one before. */
  if (r->is_done_set && !ascend_check(d, a->aclrtStreamWaitEvent(d->side, r->done), "replaying a step: waiting for the one before")) return;
  if (!ascend_check(d, a->aclmdlRIExecuteAsync(r->model, d->stream), "replaying a step")) return;
  compare_numbers(r);
  for (int i = 0; i < r->n_places; i++) {
    struct place *p = &r->places[i];
    if (ascend_ok(d) && (p->set < 0 || r->sets[p->set].differs)) renew(d, r, p);
    release_place(d, p);
  }
  if (ascend_ok(d)) know_numbers(r);
  r->is_done_set |= ascend_check(d, a->aclrtRecordEvent(r->done, d->stream), "replaying a step: an event behind it");
}
