/* stream.c — streams, events, asynchronous copies, and the device that executes what they hold.
 *
 * One thread executes one task at a time. Which: any queue's first task that may run, chosen by the seed; so two streams that nothing orders are
 * executed in any order. A delay, or laziness, lets the host run ahead.
 */
#include "acl_emu/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- tasks ----------------------------------------------------------------------------------------------------------------------- */

struct task *task_new(enum task_kind kind) {
  struct task *t = calloc(1, sizeof *t);
  if (!t) abort();
  t->kind = kind;
  return t;
}
void task_free(struct task *t) {
  if (t->kind == T_OP) closure_release(t->u.op);
  if (t->kind == T_UPDATE) closure_release(t->u.update.op);
  if (t->kind == T_EXECUTE) {
    free(t->u.execute.queues);
    free(t->u.execute.done);
  }
  free(t);
}

static bool op_ranges(const struct closure *c, bool (*fn)(const struct range *r, void *ctx), void *ctx) {
  for (int i = 0; i < c->n; i++) {
    struct range r = {.op = c->op, .name = c->t[i].name, .writes = c->t[i].writes};
    if (tensor_range(&c->t[i], &r.address, &r.n_bytes) && fn(&r, ctx)) return true;
  }
  struct range w = {.op = c->op, .name = "workspace", .address = c->workspace, .n_bytes = c->workspace_bytes, .writes = true};
  return c->workspace_bytes && fn(&w, ctx);
}
static bool copy_ranges(const struct task *t, bool (*fn)(const struct range *r, void *ctx), void *ctx) {
  size_t rows = t->u.copy.height - 1;
  struct range to = {.op = "rtMemcpyAsync", .name = "dst", .address = t->u.copy.dst, .host = !t->u.copy.dst_device, .writes = true};
  struct range from = {.op = "rtMemcpyAsync", .name = "src", .address = t->u.copy.src, .host = !t->u.copy.src_device};
  to.n_bytes = rows * t->u.copy.dpitch + t->u.copy.width;
  from.n_bytes = rows * t->u.copy.spitch + t->u.copy.width;
  return fn(&to, ctx) || fn(&from, ctx);
}
bool task_ranges(const struct task *t, bool (*fn)(const struct range *r, void *ctx), void *ctx) {
  switch (t->kind) {
  case T_OP: return op_ranges(t->u.op, fn, ctx);
  case T_COPY: return copy_ranges(t, fn, ctx);
  case T_SET: {
    struct range r = {.op = "rtMemsetAsync", .name = "ptr", .address = t->u.set.dst, .n_bytes = t->u.set.n, .writes = true};
    return fn(&r, ctx);
  }
  case T_EXECUTE:
    for (const struct branch *b = t->u.execute.model->branches; b; b = b->next)
      for (const struct task *k = b->first; k; k = k->next)
        if (task_ranges(k, fn, ctx)) return true;
    return false;
  default: return false;
  }
}

struct use {
  uint64_t address;
  size_t n;
  bool host, only_writes, found;
  char *what;
};
static bool uses(const struct range *r, void *ctx) {
  struct use *u = ctx;
  if (r->host != u->host || (u->only_writes && !r->writes) || r->address >= u->address + u->n || u->address >= r->address + r->n_bytes)
    return false;
  snprintf(u->what, 128, "%s of aclnn%s", r->name, r->op);
  return u->found = true;
}
static void stream_uses(void *object, void *ctx) {
  struct stream *s = object;
  struct use *u = ctx;
  for (struct task *t = s->queue.first; t && !u->found; t = t->next) task_ranges(t, uses, u);
}
bool pending_uses(uint64_t address, size_t n_bytes, bool host, bool only_writes, char what[128]) {
  struct use u = {.address = address, .n = n_bytes, .host = host, .only_writes = only_writes, .what = what};
  if (emu.n_pending) objects_each(K_STREAM, stream_uses, &u);
  return u.found;
}

/* ---- the device -------------------------------------------------------------------------------------------------------------------- */

static void queue_add(struct queue *q, struct task *t) {
  t->next = NULL;
  if (q->n++) q->last->next = t;
  else q->first = t;
  q->last = t;
}

/* The first task of q may run now. */
static bool may_run(const struct queue *q) {
  const struct task *t = q->first;
  if (!t || q->busy) return false;
  if (t->kind == T_EXECUTE) return !t->u.execute.queues; /* started: its queues are what runs */
  if (t->kind != T_WAIT || q->stream->stopped) return true;
  if (t->u.event.of) return q->execution->u.execute.done[t->u.event.of->u.event.index];
  struct event *e = object_get(K_EVENT, t->u.event.event);
  if (!e || e->o.serial != t->u.event.serial) return true;
  return e->event_class == EVENT_FLAG ? e->set : e->done >= t->u.event.number;
}

struct candidates {
  struct queue *q[256];
  int n;
};
static void offer(struct candidates *c, struct queue *q) {
  if (c->n < 256 && may_run(q)) c->q[c->n++] = q;
}
static void stream_offers(void *object, void *ctx) {
  struct stream *s = object;
  struct task *t = s->queue.first;
  offer(ctx, &s->queue);
  if (t && t->kind == T_EXECUTE && t->u.execute.queues)
    for (int i = 0; i < t->u.execute.n_queues; i++) offer(ctx, &t->u.execute.queues[i]);
}

static void keep_error(struct stream *s, int code, const char *text) {
  if (s->error) return;
  s->error = code;
  snprintf(s->error_text, sizeof s->error_text, "%s", text);
  if (s->stop_on_failure) s->stopped = true;
}

/* Under the lock, but given back while bytes move. */
static int run_copy(struct task *t, bool replay, char text[512]) {
  size_t rows = t->u.copy.height - 1;
  size_t d_bytes = rows * t->u.copy.dpitch + t->u.copy.width, s_bytes = rows * t->u.copy.spitch + t->u.copy.width;
  const struct block *d = t->u.copy.dst_device ? block_find(t->u.copy.dst, d_bytes) : NULL;
  const struct block *s = t->u.copy.src_device ? block_find(t->u.copy.src, s_bytes) : NULL;
  int code = replay ? RC_MODEL_EXECUTE : RC_DRV_INTERNAL;
  if ((t->u.copy.dst_device && (!d || d->serial != t->u.copy.dst_block)) ||
      (t->u.copy.src_device && (!s || s->serial != t->u.copy.src_block))) {
    snprintf(text, 512, "rtMemcpyAsync: the device memory is no longer what was there when it was queued");
    return code;
  }
  char *to = t->u.copy.dst_device ? emu_reach(t->u.copy.dst) : (char *)(uintptr_t)t->u.copy.dst;
  const char *from = t->u.copy.src_device ? emu_reach(t->u.copy.src) : (char *)(uintptr_t)t->u.copy.src;
  if ((!t->u.copy.dst_device && !host_find(to, d_bytes)) || (!t->u.copy.src_device && !host_find(from, s_bytes))) {
    snprintf(text, 512, "rtMemcpyAsync: the pinned host memory was freed before the copy ran");
    return code;
  }
  if (t->u.copy.has_sum && host_sum(from, t->u.copy.spitch, t->u.copy.width, t->u.copy.height) != t->u.copy.sum)
    emu_violate("the pinned host memory of an asynchronous copy of %zu bytes was written before the copy ran", s_bytes);
  t->u.copy.has_sum = false;
  for (size_t y = 0; y < t->u.copy.height; y++) memmove(to + y * t->u.copy.dpitch, from + y * t->u.copy.spitch, t->u.copy.width);
  return 0;
}
static int run_set(const struct task *t, bool replay, char text[512]) {
  const struct block *b = block_find(t->u.set.dst, t->u.set.n);
  if (!b || b->serial != t->u.set.block) {
    snprintf(text, 512, "rtMemsetAsync: the device memory is no longer what was there when it was queued");
    return replay ? RC_MODEL_EXECUTE : RC_DRV_INTERNAL;
  }
  memset(emu_reach(t->u.set.dst), t->u.set.value, t->u.set.n);
  return 0;
}

static void run_event(struct queue *q, const struct task *t) {
  if (t->kind == T_RECORD && q->execution && !t->u.event.global) {
    q->execution->u.execute.done[t->u.event.index] = true;
    return;
  }
  struct event *e = object_get(K_EVENT, t->u.event.event);
  if (t->u.event.of) return;
  if (!e || e->o.serial != t->u.event.serial) {
    emu_violate("a queued task uses an event that was destroyed");
    return;
  }
  if (t->kind == T_RECORD) {
    e->set = true;
    if (e->done < t->u.event.number) e->done = t->u.event.number;
    if (!t->u.event.number) e->done = e->recorded;
    e->done_ms = now_ms();
  } else if (t->kind == T_RESET) {
    e->set = false;
  }
}

static void start_execution(struct stream *s, struct task *t) {
  struct model *m = t->u.execute.model;
  int n = 0, code;
  for (struct branch *b = m->branches; b; b = b->next) n++;
  emu.counts.replays++;
  t->u.execute.done = calloc((size_t)m->n_records + 1, sizeof *t->u.execute.done);
  t->u.execute.queues = calloc((size_t)n + 1, sizeof *t->u.execute.queues);
  if (!t->u.execute.done || !t->u.execute.queues) abort();
  t->u.execute.n_queues = n;
  n = 0;
  for (struct branch *b = m->branches; b; b = b->next)
    t->u.execute.queues[n++] = (struct queue){.first = b->first, .last = b->last, .n = b->n, .execution = t, .stream = s};
  if ((code = emu_injected("replay"))) keep_error(s, code, "aclmdlRIExecuteAsync: fault injected");
}
static bool execution_done(const struct task *t) {
  for (int i = 0; i < t->u.execute.n_queues; i++)
    if (t->u.execute.queues[i].first) return false;
  return true;
}

/* The stream's first task is done. */
static void stream_pop(struct stream *s) {
  struct task *t = s->queue.first;
  s->queue.first = t->next;
  s->queue.n--;
  emu.n_pending--;
  if (t->kind == T_EXECUTE && --t->u.execute.model->pending == 0) t->u.execute.model->pending_on = NULL;
  task_free(t);
}

static void run_task(struct queue *q) {
  struct stream *s = q->stream;
  struct task *t = q->first;
  bool replay = q->execution != NULL;
  char text[512] = "";
  int code = 0;
  q->busy = true;
  if (!s->stopped || t->kind == T_EXECUTE) {
    switch (t->kind) {
    case T_OP: {
      struct closure *c = t->u.op; /* an update may put another one there while this runs */
      c->references++;
      pthread_mutex_unlock(&emu.lock);
      code = closure_run(c, replay, text);
      pthread_mutex_lock(&emu.lock);
      closure_release(c);
      break;
    }
    case T_COPY: code = run_copy(t, replay, text); break;
    case T_SET: code = run_set(t, replay, text); break;
    case T_HOST:
      pthread_mutex_unlock(&emu.lock);
      t->u.host.fn(t->u.host.args);
      pthread_mutex_lock(&emu.lock);
      break;
    case T_UPDATE: group_apply(t); break;
    case T_EXECUTE:
      if (!s->stopped) start_execution(s, t);
      break;
    default: run_event(q, t);
    }
  } else if (t->kind == T_RECORD || t->kind == T_RESET) {
    run_event(q, t); /* nobody is to wait for ever */
  }
  q->busy = false;
  if (code) keep_error(s, code, text);
  if (replay) { /* the captured task stays in its model */
    q->first = t->next;
    q->n--;
    if (execution_done(q->execution)) stream_pop(s); /* q is gone */
  } else if (t->kind != T_EXECUTE || !t->u.execute.queues || execution_done(t)) {
    stream_pop(s);
  }
  emu.progress++;
  pthread_cond_broadcast(&emu.done);
}

void device_wake(void) {
  emu.stuck = false;
  pthread_cond_signal(&emu.work);
}

static void *device_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&emu.lock);
  for (;;) {
    struct candidates c = {.n = 0};
    bool hold = emu.lazy && !emu.waiting && !emu.tokens && emu.n_pending < HARDWARE_QUEUE;
    if (emu.n_pending && !hold) {
      if (emu.delay_us > 0 && (emu.delay_one_in < 2 || emu_random() % (uint64_t)emu.delay_one_in == 0)) {
        struct timespec t = {0, (long)(emu_random() % (uint64_t)emu.delay_us) * 1000};
        pthread_mutex_unlock(&emu.lock);
        nanosleep(&t, NULL);
        pthread_mutex_lock(&emu.lock);
      }
      objects_each(K_STREAM, stream_offers, &c);
    }
    if (!c.n) {
      emu.stuck = true;
      pthread_cond_wait(&emu.work, &emu.lock);
      continue;
    }
    if (emu.tokens) emu.tokens--;
    run_task(c.q[c.n == 1 ? 0 : (int)(emu_random() % (uint64_t)c.n)]);
    if (!emu.n_pending) emu.tokens = 0;
  }
  return NULL;
}
void device_start(void) {
  pthread_t thread;
  if (emu.device_thread) return;
  if (pthread_create(&thread, NULL, device_main, NULL)) {
    fprintf(stderr, "acl_emu: no thread\n");
    abort();
  }
  pthread_detach(thread);
  emu.device_thread = true;
}

bool wait_until(until_fn until, void *ctx, int timeout_ms) {
  double begun = now_ms(), moved = begun;
  uint64_t progress = emu.progress;
  bool held = true;
  emu.waiting++;
  device_wake();
  while (!until(ctx)) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 20 * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    pthread_cond_timedwait(&emu.done, &emu.lock, &t);
    double now = now_ms();
    if (progress != emu.progress || !emu.stuck) progress = emu.progress, moved = now; /* a busy machine is no hang */
    if ((timeout_ms >= 0 && now - begun >= timeout_ms) || now - moved >= emu.hang_ms) {
      held = until(ctx);
      break;
    }
  }
  emu.waiting--;
  return held;
}

/* ---- streams --------------------------------------------------------------------------------------------------------------------- */

struct stream *stream_get(aclrtStream handle, int *rc) {
  struct context *c = emu_context();
  struct stream *s = handle ? object_get(K_STREAM, handle) : c->stream;
  *rc = 0;
  if (!s) return *rc = emu_say(RC_INVALID_HANDLE, "%p is not a live stream", handle), NULL;
  if (s->context != c) return *rc = emu_say(RC_STREAM_CONTEXT, "stream %d belongs to another context than the current one", s->id), NULL;
  return s;
}
struct stream *stream_new(struct context *c, unsigned flags) {
  struct stream *s = object_new(K_STREAM, sizeof *s);
  s->context = c;
  s->id = emu.next_stream_id++;
  s->flags = flags;
  s->queue.stream = s;
  return s;
}
static bool is_busy(const struct stream *s) {
  const struct task *t = s->queue.first;
  bool busy = s->queue.busy;
  for (int i = 0; t && t->kind == T_EXECUTE && i < t->u.execute.n_queues; i++) busy |= t->u.execute.queues[i].busy;
  return busy;
}
void stream_delete(struct stream *s) {
  struct task *next;
  while (is_busy(s)) /* the task that runs now stays the device's until it is done */
    pthread_cond_wait(&emu.done, &emu.lock);
  for (struct task *t = s->queue.first; t; t = next) {
    next = t->next;
    emu.n_pending--;
    if (t->kind == T_EXECUTE && --t->u.execute.model->pending == 0) t->u.execute.model->pending_on = NULL;
    task_free(t);
  }
  s->queue = (struct queue){0};
  closure_release(s->update_op);
  if (s->updating) s->updating->updated_by = NULL;
  object_drop(s);
}

int stream_put(struct stream *s, struct task *t) {
  int rc = 0;
  if (s->branch || s->updating) {
    if ((rc = capture_put(s, t))) task_free(t);
    return rc;
  }
  if (t->kind == T_COPY && !t->u.copy.src_device) {
    t->u.copy.sum = host_sum((void *)(uintptr_t)t->u.copy.src, t->u.copy.spitch, t->u.copy.width, t->u.copy.height);
    t->u.copy.has_sum = true;
  }
  queue_add(&s->queue, t);
  emu.n_pending++;
  device_wake();
  return 0;
}

static int new_stream(const char *name, aclrtStream *stream, uint32_t priority, uint32_t flags) {
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if (!stream || priority > 7 || flags > 0x3f)
    return emu_leave(emu_say(RC_PARAM_INVALID, "%s: NULL, or priority %u, or flags 0x%x", name, priority, flags));
  *stream = NULL;
  if ((int)object_count(K_STREAM) - 1 + emu.model_streams >= emu.stream_limit)
    return emu_leave(emu_say(RC_NO_STREAM_RESOURCE, "%s: all %d streams are in use, %d of them by captured models", name, emu.stream_limit,
                             emu.model_streams));
  *stream = stream_new(emu_context(), flags);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtCreateStream(aclrtStream *stream);
EMU_API aclError emu_aclrtCreateStream(aclrtStream *stream) { return new_stream("aclrtCreateStream", stream, 0, 0); }
EMU_API aclError emu_aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
EMU_API aclError emu_aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag) {
  return new_stream("aclrtCreateStreamWithConfig", stream, priority, flag);
}

static bool stream_empty(void *ctx) { return !((struct stream *)ctx)->queue.first; }

static int in_capture(const char *name, struct stream *s) {
  if (!s->branch) return 0;
  capture_invalidate(s->branch->model);
  return emu_say(RC_STREAM_CAPTURED, "%s: stream %d is being captured", name, s->id);
}

static int destroy_stream(const char *name, aclrtStream handle, bool force) {
  int rc = emu_enter(name, NEEDS_CONTEXT);
  if (rc) return rc;
  if (!handle) return emu_leave(emu_say(RC_PARAM_INVALID, "%s: the default stream cannot be destroyed", name));
  struct stream *s = stream_get(handle, &rc);
  if (!s || (rc = in_capture(name, s))) return emu_leave(rc);
  if (s->is_default) return emu_leave(emu_say(RC_PARAM_INVALID, "%s: the default stream cannot be destroyed", name));
  if (s->queue.first && !force) emu_violate("%s of a stream that has %d tasks to do", name, s->queue.n);
  stream_delete(s);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtDestroyStream(aclrtStream stream);
EMU_API aclError emu_aclrtDestroyStream(aclrtStream stream) { return destroy_stream("aclrtDestroyStream", stream, false); }
EMU_API aclError emu_aclrtDestroyStreamForce(aclrtStream stream);
EMU_API aclError emu_aclrtDestroyStreamForce(aclrtStream stream) { return destroy_stream("aclrtDestroyStreamForce", stream, true); }

/* What a wait gives back: the stored error, told once unless the stream stops on failure. */
static int stream_error(struct stream *s) {
  int rc = s->error;
  if (!rc) return 0;
  emu_say(rc, "%s", s->error_text);
  if (!s->stopped) s->error = 0;
  return rc;
}
static const char *stuck_on(const struct stream *s) {
  const struct task *t = s->queue.first;
  if (t && t->kind == T_WAIT) return "waits for an event that nobody records";
  if (t && t->kind == T_EXECUTE) return "executes a model that waits for an event nobody records";
  return "does not get on";
}
int stream_wait(struct stream *s, int timeout_ms) {
  if (!wait_until(stream_empty, s, timeout_ms))
    return emu_say(RC_STREAM_SYNC_TIMEOUT, "stream %d %s; %d tasks are left", s->id, stuck_on(s), s->queue.n);
  return stream_error(s);
}

static int synchronize_stream(const char *name, aclrtStream handle, int timeout_ms) {
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  emu.counts.waits++;
  struct stream *s = stream_get(handle, &rc);
  if (!s || (rc = in_capture(name, s))) return emu_leave(rc);
  if (timeout_ms < -1) return emu_leave(emu_say(RC_PARAM_INVALID, "%s: timeout %d", name, timeout_ms));
  rc = stream_wait(s, timeout_ms);
  int injected = emu_injected("sync");
  if (injected) rc = emu_say(injected, "%s: fault injected", name);
  return emu_leave(rc);
}
EMU_API aclError emu_aclrtSynchronizeStream(aclrtStream stream);
EMU_API aclError emu_aclrtSynchronizeStream(aclrtStream stream) { return synchronize_stream("aclrtSynchronizeStream", stream, -1); }
EMU_API aclError emu_aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeoutMs);
EMU_API aclError emu_aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeoutMs) {
  return synchronize_stream("aclrtSynchronizeStreamWithTimeout", stream, timeoutMs);
}

struct of_context {
  struct context *context;
  bool captured, empty;
  int rc;
};
static void look_at_stream(void *object, void *ctx) {
  struct stream *s = object;
  struct of_context *o = ctx;
  if (s->context != o->context) return;
  if (s->branch) {
    o->captured = true;
    capture_invalidate(s->branch->model);
  }
  if (s->queue.first) o->empty = false;
}
static void take_error(void *object, void *ctx) {
  struct stream *s = object;
  struct of_context *o = ctx;
  if (s->context == o->context && !o->rc) o->rc = stream_error(s);
}
static bool context_empty(void *ctx) {
  struct of_context *o = ctx;
  o->empty = true;
  objects_each(K_STREAM, look_at_stream, o);
  return o->empty;
}
static int synchronize_device(const char *name, int timeout_ms) {
  int rc = emu_enter(name, NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct of_context o = {.context = emu_context()};
  emu.counts.waits++;
  context_empty(&o);
  if (o.captured) return emu_leave(emu_say(RC_STREAM_CAPTURED, "%s: a stream of this context is being captured", name));
  if (!wait_until(context_empty, &o, timeout_ms)) return emu_leave(emu_say(RC_STREAM_SYNC_TIMEOUT, "%s: a stream does not get on", name));
  objects_each(K_STREAM, take_error, &o);
  int injected = emu_injected("sync");
  if (injected) o.rc = emu_say(injected, "%s: fault injected", name);
  return emu_leave(o.rc);
}
EMU_API aclError emu_aclrtSynchronizeDevice(void);
EMU_API aclError emu_aclrtSynchronizeDevice(void) { return synchronize_device("aclrtSynchronizeDevice", -1); }
EMU_API aclError emu_aclrtSynchronizeDeviceWithTimeout(int32_t timeoutMs);
EMU_API aclError emu_aclrtSynchronizeDeviceWithTimeout(int32_t timeoutMs) {
  return synchronize_device("aclrtSynchronizeDeviceWithTimeout", timeoutMs);
}

EMU_API aclError emu_aclrtStreamQuery(aclrtStream stream, unsigned *status);
EMU_API aclError emu_aclrtStreamQuery(aclrtStream stream, unsigned *status) {
  int rc = emu_enter("aclrtStreamQuery", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s || (rc = in_capture("aclrtStreamQuery", s))) return emu_leave(rc);
  if (!status) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtStreamQuery: NULL"));
  *status = s->queue.first ? 1 : 0;
  emu.tokens = emu.n_pending ? emu.tokens + 1 : 0;
  device_wake();
  return emu_leave(0);
}
EMU_API aclError emu_aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode);
EMU_API aclError emu_aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  int rc = emu_enter("aclrtSetStreamFailureMode", NEEDS_CONTEXT);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  if (mode > 1 || s->is_default)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtSetStreamFailureMode: mode %llu, or the default stream", (unsigned long long)mode));
  s->stop_on_failure = mode == 1;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetStreamAvailableNum(uint32_t *count);
EMU_API aclError emu_aclrtGetStreamAvailableNum(uint32_t *count) {
  int rc = emu_enter("aclrtGetStreamAvailableNum", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!count) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetStreamAvailableNum: NULL"));
  int left = emu.stream_limit - ((int)object_count(K_STREAM) - 1 + emu.model_streams);
  *count = left > 0 ? (uint32_t)left : 0;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtStreamGetId(aclrtStream stream, int32_t *id);
EMU_API aclError emu_aclrtStreamGetId(aclrtStream stream, int32_t *id) {
  int rc = emu_enter("aclrtStreamGetId", NEEDS_CONTEXT);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  if (!id) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtStreamGetId: NULL"));
  *id = s->id;
  return emu_leave(0);
}

/* ---- asynchronous copies --------------------------------------------------------------------------------------------------------- */

static int copy_async(const char *name, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                      aclrtStream handle) {
  int rc;
  struct stream *s = stream_get(handle, &rc);
  bool to = address_is_device(dst), from = address_is_device(src);
  size_t d_bytes = dpitch * (height - 1) + width, s_bytes = spitch * (height - 1) + width;
  if (!s) return rc;
  if (!dst || !src) return emu_say(RC_PARAM_INVALID, "%s: dst or src is NULL", name);
  if (dst == src) return 0;
  if (!to && !from) return emu_say(RC_FEATURE_NOT_SUPPORT, "%s: from host to host", name);
  struct block *d = to ? block_find((uint64_t)(uintptr_t)dst, d_bytes) : NULL;
  struct block *b = from ? block_find((uint64_t)(uintptr_t)src, s_bytes) : NULL;
  if ((to && !d) || (from && !b)) return emu_say(RC_DRV_INTERNAL, "%s: not inside a live block of the device", name);
  bool pinned = (to || host_find(dst, d_bytes)) && (from || host_find(src, s_bytes));
  if (!pinned && s->branch) {
    capture_invalidate(s->branch->model);
    return emu_say(RC_PARAM_INVALID, "%s: host memory that is not pinned, on a stream that is being captured", name);
  }
  struct model *m = pinned ? NULL : capture_blocks_async();
  if (m) {
    capture_invalidate(m);
    return emu_say(emu_code(RC_CAPTURE_BLOCK_ASYNC), "%s: host memory that is not pinned, while another stream is being captured", name);
  }
  count_copy(from, to, width * height);
  if (!pinned) { /* waits for the stream, then copies at once */
    if ((rc = stream_wait(s, -1))) return rc;
    char *d_at = to ? emu_reach((uint64_t)(uintptr_t)dst) : dst;
    const char *s_at = from ? emu_reach((uint64_t)(uintptr_t)src) : src;
    for (size_t y = 0; y < height; y++) memmove(d_at + y * dpitch, s_at + y * spitch, width);
    return 0;
  }
  char what[128];
  if (!to && !s->branch && !pending_uses((uint64_t)(uintptr_t)dst, d_bytes, true, false, what))
    for (size_t y = 0; y < height; y++) /* who reads it before the copy ran shall see it */
      memset((char *)dst + y * dpitch, 0xff, width);
  struct task *t = task_new(T_COPY);
  t->u.copy.dst = (uint64_t)(uintptr_t)dst;
  t->u.copy.src = (uint64_t)(uintptr_t)src;
  t->u.copy.dst_device = to;
  t->u.copy.src_device = from;
  t->u.copy.dpitch = dpitch;
  t->u.copy.spitch = spitch;
  t->u.copy.width = width;
  t->u.copy.height = height;
  t->u.copy.dst_block = d ? d->serial : 0;
  t->u.copy.src_block = b ? b->serial : 0;
  return stream_put(s, t);
}
EMU_API aclError emu_aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, unsigned kind, aclrtStream stream);
EMU_API aclError emu_aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, unsigned kind, aclrtStream stream) {
  int rc = emu_enter("aclrtMemcpyAsync", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if (!count || destMax < count || kind > 7)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMemcpyAsync: count %zu, destMax %zu, kind %u", count, destMax, kind));
  return emu_leave(copy_async("aclrtMemcpyAsync", dst, count, src, count, count, 1, stream));
}
EMU_API aclError emu_aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                                        unsigned kind, aclrtStream stream);
EMU_API aclError emu_aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                                        unsigned kind, aclrtStream stream) {
  int rc = emu_enter("aclrtMemcpy2dAsync", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if ((rc = check_pitches("aclrtMemcpy2dAsync", dpitch, spitch, width, height, kind))) return emu_leave(rc);
  return emu_leave(copy_async("aclrtMemcpy2dAsync", dst, dpitch, src, spitch, width, height, stream));
}
EMU_API aclError emu_aclrtMemsetAsync(void *ptr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
EMU_API aclError emu_aclrtMemsetAsync(void *ptr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  int rc = emu_enter("aclrtMemsetAsync", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  struct block *b = address_is_device(ptr) ? block_find((uint64_t)(uintptr_t)ptr, count) : NULL;
  if (!b || !count || maxCount < count)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMemsetAsync: %zu bytes of %zu at %p", count, maxCount, ptr));
  struct task *t = task_new(T_SET);
  t->u.set.dst = (uint64_t)(uintptr_t)ptr;
  t->u.set.block = b->serial;
  t->u.set.value = value;
  t->u.set.n = count;
  return emu_leave(stream_put(s, t));
}
EMU_API aclError emu_aclrtLaunchHostFunc(aclrtStream stream, void (*fn)(void *), void *args);
EMU_API aclError emu_aclrtLaunchHostFunc(aclrtStream stream, void (*fn)(void *), void *args) {
  int rc = emu_enter("aclrtLaunchHostFunc", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  struct stream *s = stream_get(stream, &rc);
  if (!s) return emu_leave(rc);
  if (!fn) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtLaunchHostFunc: NULL"));
  struct task *t = task_new(T_HOST);
  t->u.host.fn = fn;
  t->u.host.args = args;
  return emu_leave(stream_put(s, t));
}
