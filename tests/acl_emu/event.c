/* event.c — events.
 *
 *   class          made by                       a wait waits for                      reset, query   in a capture
 *   plain          aclrtCreateEvent              the last record before it             query          no
 *   flag           ...WithFlag                   the flag; a record sets it, a reset   both           only external ones: they stay the
 *                                                clears it                                            same flag outside and inside
 *   re-recordable  ...ExWithFlag                 the last record before it             neither        yes: orders the streams of the capture
 */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>

static struct event *event_get(const char *name, aclrtEvent handle, int *rc) {
  struct event *e = object_get(K_EVENT, handle);
  *rc = 0;
  if (!e) *rc = emu_say(handle ? RC_INVALID_HANDLE : RC_PARAM_INVALID, "%s: %p is not a live event", name, handle);
  return e;
}

static int new_event(const char *name, aclrtEvent *event, unsigned flags, enum event_class event_class) {
  const unsigned known = EVENT_SYNC | EVENT_CAPTURE_PROGRESS | EVENT_TIME_LINE | EVENT_DEVICE_USE_ONLY | EVENT_EXTERNAL | EVENT_IPC;
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if (!event) return emu_leave(emu_say(RC_PARAM_INVALID, "%s: NULL", name));
  *event = NULL;
  if (event_class != EVENT_PLAIN && (!flags || (flags & ~known)))
    return emu_leave(emu_say(RC_PARAM_INVALID, "%s: flags 0x%x", name, flags));
  if ((flags & EVENT_EXTERNAL) && flags != EVENT_EXTERNAL)
    return emu_leave(emu_say(RC_PARAM_INVALID, "%s: ACL_EVENT_EXTERNAL cannot be combined with other flags (0x%x)", name, flags));
  if ((int)object_count(K_EVENT) >= emu.event_limit)
    return emu_leave(emu_say(RC_NO_EVENT_RESOURCE, "%s: all %d events are in use", name, emu.event_limit));
  struct event *e = object_new(K_EVENT, sizeof *e);
  e->context = emu_context();
  e->flags = flags;
  e->event_class = event_class;
  *event = e;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtCreateEvent(aclrtEvent *event);
EMU_API aclError emu_aclrtCreateEvent(aclrtEvent *event) {
  return new_event("aclrtCreateEvent", event, EVENT_SYNC | EVENT_TIME_LINE, EVENT_PLAIN);
}
EMU_API aclError emu_aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
EMU_API aclError emu_aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag) {
  return new_event("aclrtCreateEventWithFlag", event, flag, EVENT_FLAG);
}
EMU_API aclError emu_aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
EMU_API aclError emu_aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag) {
  return new_event("aclrtCreateEventExWithFlag", event, flag, EVENT_EX);
}

struct search {
  const struct event *event;
  bool found;
};
static bool task_of(const struct task *t, const struct event *e) {
  return (t->kind == T_RECORD || t->kind == T_WAIT || t->kind == T_RESET) && t->u.event.event == e && t->u.event.serial == e->o.serial;
}
static void search_stream(void *object, void *ctx) {
  struct search *s = ctx;
  for (const struct task *t = ((struct stream *)object)->queue.first; t && !s->found; t = t->next) s->found = task_of(t, s->event);
}
static void search_model(void *object, void *ctx) {
  struct search *s = ctx;
  for (const struct branch *b = ((struct model *)object)->branches; b; b = b->next)
    for (const struct task *t = b->first; t && !s->found; t = t->next) s->found = task_of(t, s->event) && t->u.event.global;
}
bool event_pending(const struct event *e) {
  struct search s = {.event = e};
  objects_each(K_STREAM, search_stream, &s);
  objects_each(K_MODEL, search_model, &s);
  return s.found;
}

EMU_API aclError emu_aclrtDestroyEvent(aclrtEvent event);
EMU_API aclError emu_aclrtDestroyEvent(aclrtEvent event) {
  int rc = emu_enter("aclrtDestroyEvent", NEEDS_CONTEXT);
  if (rc) return rc;
  struct event *e = event_get("aclrtDestroyEvent", event, &rc);
  if (!e) return emu_leave(rc);
  if (event_pending(e)) emu_violate("aclrtDestroyEvent of an event that a queued task or a captured model still uses");
  object_drop(e);
  return emu_leave(0);
}

/* A record, wait or reset of e on s as a task; outside or inside a capture. */
static int put(struct stream *s, enum task_kind kind, struct event *e) {
  struct task *t = task_new(kind);
  t->u.event.event = e;
  t->u.event.serial = e->o.serial;
  t->u.event.number = e->recorded;
  return stream_put(s, t);
}

EMU_API aclError emu_aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
EMU_API aclError emu_aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  int rc = emu_enter("aclrtRecordEvent", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct event *e = event_get("aclrtRecordEvent", event, &rc);
  struct stream *s = e ? stream_get(stream, &rc) : NULL;
  if (!s) return emu_leave(rc);
  if (s->branch && e->event_class != EVENT_EX && !(e->flags & EVENT_EXTERNAL)) {
    capture_invalidate(s->branch->model);
    return emu_leave(
        emu_say(RC_FEATURE_NOT_SUPPORT, "aclrtRecordEvent: in a capture only events of aclrtCreateEventExWithFlag and external ones"));
  }
  if (!s->branch) {
    e->recorded++;
    e->model = NULL;
  }
  return emu_leave(put(s, T_RECORD, e));
}

static int check_wait(struct stream *s, struct event *e) {
  if (!(e->flags & (EVENT_SYNC | EVENT_EXTERNAL)))
    return emu_say(RC_PARAM_INVALID, "aclrtStreamWaitEvent: the event was made without ACL_EVENT_SYNC (flags 0x%x)", e->flags);
  if (!s->branch || (e->flags & EVENT_EXTERNAL)) return 0;
  struct model *m = e->model && object_get(K_MODEL, e->model) && e->model->o.serial == e->model_serial ? e->model : NULL;
  if (e->event_class != EVENT_EX) {
    capture_invalidate(s->branch->model);
    return emu_say(RC_FEATURE_NOT_SUPPORT,
                   "aclrtStreamWaitEvent: in a capture only events of aclrtCreateEventExWithFlag and external ones");
  }
  if (m == s->branch->model) return 0;
  capture_invalidate(s->branch->model);
  return emu_say(RC_CAPTURE_DEPENDENCY, "aclrtStreamWaitEvent: stream %d is being captured, the event was recorded outside of the capture",
                 s->id);
}
EMU_API aclError emu_aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
EMU_API aclError emu_aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  int rc = emu_enter("aclrtStreamWaitEvent", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct event *e = event_get("aclrtStreamWaitEvent", event, &rc);
  struct stream *s = e ? stream_get(stream, &rc) : NULL;
  if (!s || (rc = check_wait(s, e))) return emu_leave(rc);
  if (!s->branch && (rc = capture_join(s, e))) return emu_leave(rc);
  return emu_leave(put(s, T_WAIT, e));
}
EMU_API aclError emu_aclrtStreamWaitEventWithTimeout(aclrtStream stream, aclrtEvent event, int32_t timeoutMs);
EMU_API aclError emu_aclrtStreamWaitEventWithTimeout(aclrtStream stream, aclrtEvent event, int32_t timeoutMs) {
  return timeoutMs < 0 ? RC_PARAM_INVALID : emu_aclrtStreamWaitEvent(stream, event);
}
EMU_API aclError emu_aclrtResetEvent(aclrtEvent event, aclrtStream stream);
EMU_API aclError emu_aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  int rc = emu_enter("aclrtResetEvent", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct event *e = event_get("aclrtResetEvent", event, &rc);
  struct stream *s = e ? stream_get(stream, &rc) : NULL;
  if (!s) return emu_leave(rc);
  if (e->event_class != EVENT_FLAG)
    return emu_leave(emu_say(RC_FEATURE_NOT_SUPPORT, "aclrtResetEvent: only events of aclrtCreateEventWithFlag can be reset"));
  if (s->branch && !(e->flags & EVENT_EXTERNAL)) {
    capture_invalidate(s->branch->model);
    return emu_leave(emu_say(RC_FEATURE_NOT_SUPPORT, "aclrtResetEvent: in a capture only external events"));
  }
  return emu_leave(put(s, T_RESET, e));
}

/* An event that was recorded in a capture cannot be asked while that lasts. */
static int captured(const char *name, struct event *e) {
  struct model *m = e->model && object_get(K_MODEL, e->model) && e->model->o.serial == e->model_serial ? e->model : NULL;
  if (!m || m->status == CAPTURE_NONE) return 0;
  capture_invalidate(m);
  return emu_say(RC_EVENT_CAPTURED, "%s: the event was recorded in a capture", name);
}
static bool event_done(void *ctx) {
  const struct event *e = ctx;
  return e->done >= e->recorded;
}
static int synchronize_event(const char *name, aclrtEvent event, int timeout_ms) {
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  emu.counts.waits++;
  struct event *e = event_get(name, event, &rc);
  if (!e || (rc = captured(name, e))) return emu_leave(rc);
  if (!wait_until(event_done, e, timeout_ms))
    return emu_leave(emu_say(RC_EVENT_SYNC_TIMEOUT, "%s: the event's record does not come", name));
  int injected = emu_injected("sync");
  return emu_leave(injected ? emu_say(injected, "%s: fault injected", name) : 0);
}
EMU_API aclError emu_aclrtSynchronizeEvent(aclrtEvent event);
EMU_API aclError emu_aclrtSynchronizeEvent(aclrtEvent event) { return synchronize_event("aclrtSynchronizeEvent", event, -1); }
EMU_API aclError emu_aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeoutMs);
EMU_API aclError emu_aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeoutMs) {
  return synchronize_event("aclrtSynchronizeEventWithTimeout", event, timeoutMs);
}

static int query(const char *name, aclrtEvent event, unsigned *status, unsigned done, unsigned not_done) {
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct event *e = event_get(name, event, &rc);
  if (!e || (rc = captured(name, e))) return emu_leave(rc);
  if (!status) return emu_leave(emu_say(RC_PARAM_INVALID, "%s: NULL", name));
  if (e->event_class == EVENT_EX)
    return emu_leave(emu_say(RC_FEATURE_NOT_SUPPORT, "%s: not for events of aclrtCreateEventExWithFlag", name));
  *status = event_done(e) ? done : not_done;
  emu.tokens = emu.n_pending ? emu.tokens + 1 : 0;
  device_wake();
  return emu_leave(0);
}
EMU_API aclError emu_aclrtQueryEventStatus(aclrtEvent event, unsigned *status);
EMU_API aclError emu_aclrtQueryEventStatus(aclrtEvent event, unsigned *status) {
  return query("aclrtQueryEventStatus", event, status, 1, 0);
}
EMU_API aclError emu_aclrtQueryEventWaitStatus(aclrtEvent event, unsigned *status);
EMU_API aclError emu_aclrtQueryEventWaitStatus(aclrtEvent event, unsigned *status) {
  return query("aclrtQueryEventWaitStatus", event, status, 0, 1);
}
EMU_API aclError emu_aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end);
EMU_API aclError emu_aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end) {
  int rc = emu_enter("aclrtEventElapsedTime", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct event *a = event_get("aclrtEventElapsedTime", start, &rc), *b = a ? event_get("aclrtEventElapsedTime", end, &rc) : NULL;
  if (!b || (rc = captured("aclrtEventElapsedTime", a)) || (rc = captured("aclrtEventElapsedTime", b))) return emu_leave(rc);
  if (!ms || !(a->flags & EVENT_TIME_LINE) || !(b->flags & EVENT_TIME_LINE))
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtEventElapsedTime: both events need ACL_EVENT_TIME_LINE"));
  if (!a->done || !b->done || !event_done(a) || !event_done(b))
    return emu_leave(emu_say(RC_EVENT_TIMESTAMP_INVALID, "aclrtEventElapsedTime: an event has not been executed"));
  *ms = (float)(b->done_ms - a->done_ms);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetEventAvailNum(uint32_t *count);
EMU_API aclError emu_aclrtGetEventAvailNum(uint32_t *count) {
  int rc = emu_enter("aclrtGetEventAvailNum", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!count) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetEventAvailNum: NULL"));
  int left = emu.event_limit - (int)object_count(K_EVENT);
  *count = left > 0 ? (uint32_t)left : 0;
  return emu_leave(0);
}
