/* capture.c — captured models: recording, replay, task groups whose arguments are renewed.
 *
 * A capture has branches: the stream it began on and the streams that joined by waiting for an event recorded in it. What comes to them is kept in
 * order and not executed. Executing the model runs every branch as a queue of its own; events inside are bits of that one execution, external
 * ones are the same flags as outside.
 */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void capture_invalidate(struct model *m) {
  if (m->status == CAPTURE_ACTIVE) m->status = CAPTURE_INVALIDATED;
}

/* ---- who is held by a capture ----------------------------------------------------------------------------------------------------- */

/* A capture of mode global holds every thread whose own mode is global, one that is not relaxed the thread that began it. */
static void holds(void *object, void *ctx) {
  struct model *m = object, **held = ctx;
  bool own = pthread_equal(m->thread, pthread_self());
  if (m->status == CAPTURE_NONE || m->mode == CAPTURE_RELAXED) return;
  if (own || (m->mode == CAPTURE_GLOBAL && emu_thread()->capture_mode == CAPTURE_GLOBAL)) *held = m;
}
static struct model *held_by(void) {
  struct model *held = NULL;
  if (emu_thread()->capture_mode != CAPTURE_RELAXED) objects_each(K_MODEL, holds, &held);
  return held;
}
int capture_forbids(const char *what) {
  struct model *m = held_by();
  if (!m) return 0;
  capture_invalidate(m);
  return emu_say(RC_CAPTURE_MODE_NOT_SUPPORT, "%s: not while stream %d is being captured, unless this thread's mode is relaxed", what,
                 m->origin->id);
}
struct model *capture_blocks_async(void) {
  return held_by();
}

/* ---- recording ---------------------------------------------------------------------------------------------------------------------- */

/* A stream of the hardware for this model, if one is left. */
static bool take_stream(struct model *m) {
  if ((int)object_count(K_STREAM) - 1 + emu.model_streams >= emu.stream_limit) return false;
  emu.model_streams++;
  m->queue_streams++;
  return true;
}
static struct branch *add_branch(struct model *m, struct stream *s) {
  struct branch *b = calloc(1, sizeof *b), **at = &m->branches;
  if (!b) abort();
  b->model = m;
  b->stream = s;
  while (*at) at = &(*at)->next;
  *at = b;
  s->branch = b;
  return b;
}

static int renew(struct stream *s, struct task *t) {
  const struct group *g = s->updating;
  int rc = 0;
  if (t->kind != T_OP || !t->u.op->kernel) rc = emu_say(RC_TASK_TYPE_NOT_SUPPORT, "a task update takes AI-core kernels only");
  else if (s->update_op) rc = emu_say(RC_INTERNAL_ERROR, "a task update got more operators than its group has (aclnn%s)", t->u.op->op);
  else if (strcmp(t->u.op->op, g->task->u.op->op) != 0)
    rc = emu_say(RC_INTERNAL_ERROR, "a task update got aclnn%s for a group of aclnn%s", t->u.op->op, g->task->u.op->op);
  if (rc) {
    s->update_failed = true;
    return rc;
  }
  s->update_op = t->u.op;
  s->update_op->references++;
  task_free(t);
  return 0;
}

static int into_group(struct stream *s, struct task *t) {
  struct group *g = s->group;
  if (s->group_broken) return emu_say(RC_TASK_GROUP_INTR, "the task group of stream %d failed before", s->id);
  if (t->kind != T_OP || !t->u.op->kernel) {
    s->group_broken = true;
    capture_invalidate(s->branch->model);
    return emu_say(RC_TASK_TYPE_NOT_SUPPORT, "a task group takes AI-core kernels only");
  }
  g->task = t;
  g->n++;
  t->group = g;
  return 0;
}

int capture_put(struct stream *s, struct task *t) {
  struct branch *b = s->branch;
  int rc;
  if (s->updating) return renew(s, t);
  struct model *m = b->model;
  if (s->group && (rc = into_group(s, t))) return rc;
  if (m->status == CAPTURE_INVALIDATED)
    return emu_say(RC_CAPTURE_INVALIDATED, "the capture of stream %d was invalidated by an earlier error", s->id);
  if (b->n == HARDWARE_QUEUE && !take_stream(m)) {
    capture_invalidate(m);
    return emu_say(RC_NO_STREAM_RESOURCE, "a captured model needs one more stream for its %d tasks, and all are in use", m->n_tasks);
  }
  if (t->kind == T_RECORD || t->kind == T_WAIT || t->kind == T_RESET) {
    struct event *e = t->u.event.event;
    t->u.event.global = e->event_class != EVENT_EX;
    if (t->kind == T_RECORD && !t->u.event.global) {
      t->u.event.index = m->n_records++;
      e->model = m;
      e->model_serial = m->o.serial;
      e->captured = t;
    } else if (t->kind == T_WAIT && !t->u.event.global) {
      t->u.event.of = e->captured;
    }
    t->u.event.number = 0;
  }
  t->next = NULL;
  if (b->n++) b->last->next = t;
  else b->first = t;
  b->last = t;
  if (b->n > HARDWARE_QUEUE) b->n = 1; /* counts within the current hardware queue */
  m->n_tasks++;
  return 0;
}

int capture_join(struct stream *s, struct event *e) {
  struct model *m = e->model && object_get(K_MODEL, e->model) && e->model->o.serial == e->model_serial ? e->model : NULL;
  if (!m) return 0;
  if (m->status == CAPTURE_NONE)
    return emu_say(RC_EVENT_CAPTURED, "aclrtStreamWaitEvent: the event was recorded in a capture that is over");
  if (m->status == CAPTURE_INVALIDATED) return emu_say(RC_CAPTURE_INVALIDATED, "aclrtStreamWaitEvent: the event's capture was invalidated");
  if (s->is_default || s->updating) {
    capture_invalidate(m);
    return emu_say(RC_STREAM_CAPTURE_IMPLICIT, "aclrtStreamWaitEvent: the default stream cannot join a capture");
  }
  if (!take_stream(m)) {
    capture_invalidate(m);
    return emu_say(RC_NO_STREAM_RESOURCE, "aclrtStreamWaitEvent: no stream is left for another branch of the capture");
  }
  add_branch(m, s);
  return 0;
}

void model_free(struct model *m) {
  struct branch *b = m->branches, *next;
  for (; b; b = next) {
    next = b->next;
    for (struct task *t = b->first, *after; t; t = after) {
      after = t->next;
      task_free(t);
    }
    if (b->stream && b->stream->branch == b) {
      struct stream *s = b->stream;
      s->branch = NULL;
      if (s->group) object_drop(s->group);
      s->group = NULL;
      s->group_broken = false;
    }
    free(b);
  }
  emu.model_streams -= m->queue_streams;
  object_drop(m);
}
static void drop_group(void *object, void *ctx) {
  struct group *g = object;
  if (g->model == ctx) object_drop(g);
}

static struct stream *capture_stream(const char *name, aclrtStream handle, int *rc) {
  struct stream *s = stream_get(handle, rc);
  if (s && !s->branch) return *rc = emu_say(RC_STREAM_NOT_CAPTURED, "%s: stream %d is not being captured", name, s->id), NULL;
  return s;
}

EMU_API aclError emu_aclmdlRICaptureBegin(aclrtStream stream, unsigned mode);
EMU_API aclError emu_aclmdlRICaptureBegin(aclrtStream stream, unsigned mode) {
  int rc = emu_enter("aclmdlRICaptureBegin", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  if (emu.chip == EMU_310P) return emu_leave(emu_say(RC_FEATURE_NOT_SUPPORT, "aclmdlRICaptureBegin: %s does not capture", emu.soc));
  if (mode > CAPTURE_RELAXED) return emu_leave(emu_say(RC_PARAM_INVALID, "aclmdlRICaptureBegin: mode %u", mode));
  if (s->is_default) return emu_leave(emu_say(RC_STREAM_CAPTURE_IMPLICIT, "aclmdlRICaptureBegin: the default stream cannot be captured"));
  if (s->branch) return emu_leave(emu_say(RC_STREAM_CAPTURED, "aclmdlRICaptureBegin: stream %d is being captured already", s->id));
  if (s->updating) return emu_leave(emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureBegin: stream %d has a task update open", s->id));
  if (s->flags & 0x30)
    return emu_leave(emu_say(RC_INTERNAL_ERROR, "aclmdlRICaptureBegin: a stream with flags 0x%x cannot be captured", s->flags));
  struct model *m = object_new(K_MODEL, sizeof *m);
  if (!take_stream(m)) {
    object_drop(m);
    return emu_leave(emu_say(RC_NO_STREAM_RESOURCE, "aclmdlRICaptureBegin: all %d streams are in use, %d of them by captured models",
                             emu.stream_limit, emu.model_streams));
  }
  m->context = s->context;
  m->origin = s;
  m->mode = mode;
  m->thread = pthread_self();
  m->status = CAPTURE_ACTIVE;
  add_branch(m, s);
  return emu_leave(0);
}

EMU_API aclError emu_aclmdlRICaptureGetInfo(aclrtStream stream, unsigned *status, aclmdlRI *model);
EMU_API aclError emu_aclmdlRICaptureGetInfo(aclrtStream stream, unsigned *status, aclmdlRI *model) {
  int rc = emu_enter("aclmdlRICaptureGetInfo", NEEDS_CONTEXT);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  if (status) *status = (unsigned)(s->branch ? s->branch->model->status : CAPTURE_NONE);
  if (model) *model = s->branch && s->branch->model->status == CAPTURE_ACTIVE ? s->branch->model : NULL;
  return emu_leave(0);
}

/* Every branch but the origin must end in a record that a joined branch, or the origin, waits for. */
static bool waited_for(const struct branch *b, const struct task *record) {
  for (const struct task *t = b->first; t; t = t->next)
    if (t->kind == T_WAIT && t->u.event.of == record) return true;
  return false;
}
static const struct stream *unjoined(const struct model *m) {
  enum { MOST = 64 };
  const struct branch *joined[MOST] = {m->branches};
  int n = 1;
  for (bool more = true; more;) {
    more = false;
    for (const struct branch *b = m->branches->next; b; b = b->next) {
      bool is = false, ends = b->last && b->last->kind == T_RECORD;
      for (int i = 0; i < n; i++) is |= joined[i] == b;
      for (int i = 0; i < n && !is && ends; i++)
        if (waited_for(joined[i], b->last) && n < MOST) {
          joined[n++] = b;
          more = true;
          break;
        }
    }
  }
  int branches = 0;
  for (const struct branch *b = m->branches; b; b = b->next) branches++;
  if (branches == n) return NULL;
  for (const struct branch *b = m->branches; b; b = b->next) {
    bool is = false;
    for (int i = 0; i < n; i++) is |= joined[i] == b;
    if (!is) return b->stream;
  }
  return NULL;
}

EMU_API aclError emu_aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *model);
EMU_API aclError emu_aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *model) {
  int rc = emu_enter("aclmdlRICaptureEnd", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = capture_stream("aclmdlRICaptureEnd", stream, &rc);
  if (!s) return emu_leave(rc);
  if (!model) return emu_leave(emu_say(RC_PARAM_INVALID, "aclmdlRICaptureEnd: NULL"));
  *model = NULL;
  struct model *m = s->branch->model;
  if (m->origin != s)
    return emu_leave(emu_say(emu_code(RC_STREAM_CAPTURE_UNMATCHED), "aclmdlRICaptureEnd: the capture began on stream %d, not on %d",
                             m->origin->id, s->id));
  /* from here on the capture is over, whatever comes */
  const struct stream *loose;
  if (m->mode != CAPTURE_RELAXED && !pthread_equal(m->thread, pthread_self()))
    rc = emu_say(emu_code(RC_CAPTURE_WRONG_THREAD), "aclmdlRICaptureEnd: another thread began this capture");
  for (struct branch *b = m->branches; b && !rc; b = b->next)
    if (b->stream->group) rc = emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureEnd: a task group is open on stream %d", b->stream->id);
  if (!rc && m->status == CAPTURE_INVALIDATED)
    rc = emu_say(RC_CAPTURE_INVALIDATED, "aclmdlRICaptureEnd: the capture was invalidated by an earlier error");
  if (!rc && (loose = unjoined(m)))
    rc = emu_say(RC_STREAM_UNJOINED, "aclmdlRICaptureEnd: stream %d joined the capture and was not joined back, or has tasks after that",
                 loose->id);
  if (rc) {
    objects_each(K_GROUP, drop_group, m);
    for (struct branch *b = m->branches; b; b = b->next) b->stream->group = NULL;
    model_free(m);
    return emu_leave(rc);
  }
  for (struct branch *b = m->branches; b; b = b->next) {
    b->stream->branch = NULL;
    b->stream = NULL;
    b->n = 0;
    for (struct task *t = b->first; t; t = t->next) b->n++;
  }
  m->status = CAPTURE_NONE;
  *model = m;
  return emu_leave(0);
}

EMU_API aclError emu_aclmdlRICaptureThreadExchangeMode(unsigned *mode);
EMU_API aclError emu_aclmdlRICaptureThreadExchangeMode(unsigned *mode) {
  int rc = emu_enter("aclmdlRICaptureThreadExchangeMode", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!mode || *mode > CAPTURE_RELAXED) return emu_leave(emu_say(RC_PARAM_INVALID, "aclmdlRICaptureThreadExchangeMode: NULL, or no mode"));
  unsigned old = emu_thread()->capture_mode;
  emu_thread()->capture_mode = *mode;
  *mode = old;
  return emu_leave(0);
}

/* ---- replay ------------------------------------------------------------------------------------------------------------------------- */

static struct model *model_get(const char *name, aclmdlRI handle, int *rc) {
  struct model *m = object_get(K_MODEL, handle);
  *rc = 0;
  if (!m) return *rc = emu_say(RC_PARAM_INVALID, "%s: %p is not a live model", name, handle), NULL;
  if (m->context != emu_context()) return *rc = emu_say(RC_MODEL_CONTEXT, "%s: the model belongs to another context", name), NULL;
  if (m->status != CAPTURE_NONE) return *rc = emu_say(RC_MODEL_CAPTURED, "%s: the model is being captured", name), NULL;
  return m;
}

/* What captured copies will read from the host must stay until they have run. */
static void sum_sources(struct model *m) {
  for (struct branch *b = m->branches; b; b = b->next)
    for (struct task *t = b->first; t; t = t->next) {
      if (t->kind != T_COPY || t->u.copy.src_device || !host_find((void *)(uintptr_t)t->u.copy.src, 1)) continue;
      uint64_t sum = host_sum((void *)(uintptr_t)t->u.copy.src, t->u.copy.spitch, t->u.copy.width, t->u.copy.height);
      if (t->u.copy.has_sum && t->u.copy.sum != sum)
        emu_violate("the pinned host memory of a captured copy was written between two executions that are both queued");
      t->u.copy.sum = sum;
      t->u.copy.has_sum = true;
    }
}

static int execute(const char *name, aclmdlRI model, struct stream *s) {
  int rc;
  struct model *m = model_get(name, model, &rc);
  if (!m) return rc;
  if (s->branch) {
    capture_invalidate(s->branch->model);
    return emu_say(RC_STREAM_CAPTURED, "%s: stream %d is being captured", name, s->id);
  }
  if (s->updating) return emu_say(RC_TASK_GROUP_STATUS, "%s: stream %d has a task update open", name, s->id);
  if (m->pending && m->pending_on != s)
    return emu_say(emu_code(RC_MODEL_RUNNING), "%s: the model is executing on stream %d", name, m->pending_on->id);
  sum_sources(m);
  m->pending++;
  m->pending_on = s;
  struct task *t = task_new(T_EXECUTE);
  t->u.execute.model = m;
  return stream_put(s, t);
}
EMU_API aclError emu_aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream);
EMU_API aclError emu_aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  int rc = emu_enter("aclmdlRIExecuteAsync", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  return emu_leave(s ? execute("aclmdlRIExecuteAsync", model, s) : rc);
}
EMU_API aclError emu_aclmdlRIExecute(aclmdlRI model, int32_t timeoutMs);
EMU_API aclError emu_aclmdlRIExecute(aclmdlRI model, int32_t timeoutMs) {
  int rc = emu_enter("aclmdlRIExecute", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(NULL, &rc);
  if (!s || (rc = execute("aclmdlRIExecute", model, s))) return emu_leave(rc);
  return emu_leave(stream_wait(s, timeoutMs));
}

static bool not_pending(void *ctx) { return !((struct model *)ctx)->pending; }
EMU_API aclError emu_aclmdlRIDestroy(aclmdlRI model);
EMU_API aclError emu_aclmdlRIDestroy(aclmdlRI model) {
  int rc = emu_enter("aclmdlRIDestroy", NEEDS_CONTEXT);
  if (rc) return rc;
  struct model *m = model_get("aclmdlRIDestroy", model, &rc);
  if (!m) return emu_leave(rc);
  if (!wait_until(not_pending, m, 500)) return emu_leave(emu_say(emu_code(RC_MODEL_RUNNING), "aclmdlRIDestroy: the model is executing"));
  objects_each(K_GROUP, drop_group, m);
  model_free(m);
  return emu_leave(0);
}

/* ---- task groups --------------------------------------------------------------------------------------------------------------------- */

EMU_API aclError emu_aclmdlRICaptureTaskGrpBegin(aclrtStream stream);
EMU_API aclError emu_aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  int rc = emu_enter("aclmdlRICaptureTaskGrpBegin", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = capture_stream("aclmdlRICaptureTaskGrpBegin", stream, &rc);
  if (!s) return emu_leave(rc);
  if (s->group) {
    capture_invalidate(s->branch->model);
    return emu_leave(emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureTaskGrpBegin: a group is open on stream %d", s->id));
  }
  s->group = object_new(K_GROUP, sizeof *s->group);
  s->group->model = s->branch->model;
  s->group->model_serial = s->branch->model->o.serial;
  s->group_broken = false;
  return emu_leave(0);
}
EMU_API aclError emu_aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *handle);
EMU_API aclError emu_aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *handle) {
  int rc = emu_enter("aclmdlRICaptureTaskGrpEnd", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = capture_stream("aclmdlRICaptureTaskGrpEnd", stream, &rc);
  if (!s) return emu_leave(rc);
  if (handle) *handle = NULL;
  if (!s->group) {
    capture_invalidate(s->branch->model);
    return emu_leave(emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureTaskGrpEnd: no group is open on stream %d", s->id));
  }
  struct group *g = s->group;
  s->group = NULL;
  if (s->group_broken) rc = emu_say(RC_TASK_GROUP_INTR, "aclmdlRICaptureTaskGrpEnd: a launch in the group failed");
  else if (!handle) rc = emu_say(RC_PARAM_INVALID, "aclmdlRICaptureTaskGrpEnd: NULL");
  else if (g->n != 1) rc = emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureTaskGrpEnd: %d operators in the group instead of one", g->n);
  if (rc) {
    capture_invalidate(s->branch->model);
    object_drop(g);
    return emu_leave(rc);
  }
  *handle = g;
  return emu_leave(0);
}
EMU_API aclError emu_aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle);
EMU_API aclError emu_aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
  int rc = emu_enter("aclmdlRICaptureTaskUpdateBegin", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  struct group *g = object_get(K_GROUP, handle);
  if (!emu.task_update)
    return emu_leave(emu_say(emu_code(RC_NOT_SUPPORT_UPDATE_OP), "aclmdlRICaptureTaskUpdateBegin: this driver does not update tasks"));
  if (!g) return emu_leave(emu_say(RC_PARAM_INVALID, "aclmdlRICaptureTaskUpdateBegin: %p is not a live task group", handle));
  if (s->branch) return emu_leave(emu_say(RC_STREAM_CAPTURED, "aclmdlRICaptureTaskUpdateBegin: stream %d is being captured", s->id));
  if (g->model->status != CAPTURE_NONE)
    return emu_leave(emu_say(RC_MODEL_CAPTURED, "aclmdlRICaptureTaskUpdateBegin: the group's model is being captured"));
  if (s->updating || g->updated_by)
    return emu_leave(emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureTaskUpdateBegin: the stream or the group has an update open"));
  s->updating = g;
  s->update_failed = false;
  g->updated_by = s;
  return emu_leave(0);
}
EMU_API aclError emu_aclmdlRICaptureTaskUpdateEnd(aclrtStream stream);
EMU_API aclError emu_aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
  int rc = emu_enter("aclmdlRICaptureTaskUpdateEnd", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  struct group *g = s->updating;
  if (!g) return emu_leave(emu_say(RC_TASK_GROUP_STATUS, "aclmdlRICaptureTaskUpdateEnd: stream %d has no update open", s->id));
  struct closure *op = s->update_op;
  s->updating = NULL;
  s->update_op = NULL;
  g->updated_by = NULL;
  if (!op || s->update_failed) {
    closure_release(op);
    return emu_leave(emu_say(RC_INTERNAL_ERROR, "aclmdlRICaptureTaskUpdateEnd: %s",
                             op ? "a launch in the update failed" : "no operator came for the group"));
  }
  emu.counts.updates++;
  struct task *t = task_new(T_UPDATE);
  t->u.update.group = g;
  t->u.update.group_serial = g->o.serial;
  t->u.update.op = op;
  return emu_leave(stream_put(s, t));
}

/* The update's turn on its stream: from now on the captured task has these arguments. */
void group_apply(struct task *update) {
  struct group *g = object_get(K_GROUP, update->u.update.group);
  struct closure *now = update->u.update.op;
  if (!g || g->o.serial != update->u.update.group_serial) {
    emu_violate("a task update of aclnn%s comes after its model was destroyed", now->op);
    return;
  }
  struct closure *old = g->task->u.op;
  bool same = old->n == now->n && (!now->workspace_bytes || (old->workspace == now->workspace));
  for (int i = 0; same && i < now->n; i++) same = old->t[i].address == now->t[i].address;
  if (!same) emu_violate("a task update of aclnn%s changes an address", now->op);
  g->task->u.op = now;
  now->references++;
  closure_release(old);
}
