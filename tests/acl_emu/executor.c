/* executor.c — phase 1's plan, phase 2's launch, and the execution of an operator.
 *
 * An executor owns a closure until phase 2 gives it to a task. The closure holds everything by value: callers may destroy descriptors as soon as
 * phase 2 has returned, and change their arrays after phase 1.
 */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_emu/descriptors.h"

enum { ALIGNMENT = 32, POISON = 0xff, KEPT_MAX = 64 };

/* Of the plan that this thread is making. */
static _Thread_local const aclTensor *may_be_nz;
static _Thread_local struct {
  void *p[KEPT_MAX];
  int n;
} kept;
static _Thread_local int last_scalar_type;

static void *checked(void *p) {
  if (!p) {
    fprintf(stderr, "acl_emu: out of memory\n");
    abort();
  }
  return p;
}

/* ---- phase 1 -------------------------------------------------------------------------------------------------------------------- */

bool emu_refuse(struct emu_plan *p, aclnnStatus code, const char *fmt, ...) {
  char text[1024];
  va_list v;
  if (!p->ok) return false;
  va_start(v, fmt);
  vsnprintf(text, sizeof text, fmt, v);
  va_end(v);
  emu_say(code, "aclnn%s: %s", p->op, text);
  p->ok = false;
  p->code = code;
  return false;
}
bool emu_check(struct emu_plan *p, bool good, aclnnStatus code, const char *fmt, ...) {
  char text[1024];
  va_list v;
  if (!p->ok || good) return p->ok;
  va_start(v, fmt);
  vsnprintf(text, sizeof text, fmt, v);
  va_end(v);
  return emu_refuse(p, code, "%s", text);
}

void emu_begin(struct emu_plan *p, const char *op, uint64_t *workspace_size, aclOpExecutor **executor) {
  char name[96];
  int code = 0;
  memset(p, 0, sizeof *p);
  p->op = op;
  p->ok = true;
  p->workspace_size = workspace_size;
  p->executor = executor;
  p->t[0].name = "nothing";
  p->t[0].contiguous = true;
  may_be_nz = NULL;
  while (kept.n) free(kept.p[--kept.n]);
  snprintf(name, sizeof name, "aclnn%sGetWorkspaceSize", op);
  if (workspace_size) *workspace_size = 0;
  if (executor) *executor = NULL;
  if ((code = emu_enter(name, NEEDS_CONTEXT))) {
    p->ok = false;
    p->code = code;
    return;
  }
  if (emu_injected_op("op", op, &code)) emu_refuse(p, code, "fault injected");
  emu_leave(0);
  if (!workspace_size || !executor) emu_refuse(p, EMU_NULLPTR, "workspaceSize or executor is NULL");
}

void emu_allow_nz(struct emu_plan *p, const aclTensor *t) {
  (void)p;
  may_be_nz = t;
}

static int add(struct emu_plan *p, const char *name, const aclTensor *t, bool writes) {
  struct emu_tensor v;
  uint64_t serial = 0;
  if (!p->ok) return 0;
  if (!t) return emu_refuse(p, EMU_NULLPTR, "%s is NULL", name), 0;
  pthread_mutex_lock(&emu.lock);
  bool alive = object_get(K_TENSOR, t) != NULL;
  if (alive) {
    v = t->v;
    serial = t->o.serial;
  }
  pthread_mutex_unlock(&emu.lock);
  if (!alive) return emu_refuse(p, EMU_PARAM_INVALID, "%s is not a live tensor", name), 0;
  v.name = name;
  v.writes = writes;
  int bits = emu_element_bits(v.type);
  if (!bits) return emu_refuse(p, EMU_PARAM_INVALID, "%s has data type %d, which is not supported", name, v.type), 0;
  if (v.type == EMU_BF16 && emu.chip == EMU_310P)
    return emu_refuse(p, EMU_PARAM_INVALID, "%s is BF16, which %s does not have", name, emu.soc), 0;
  if (v.format == EMU_NZ ? t != may_be_nz : v.format != EMU_ND && v.format != EMU_NCHW && v.format != 1 && v.format != 30 && v.format != 47)
    return emu_refuse(p, EMU_PARAM_INVALID, "%s has format %d, which this operator does not take", name, v.format), 0;
  if (v.n && !v.address) return emu_refuse(p, EMU_PARAM_INVALID, "%s has no data", name), 0;
  if (v.address % ALIGNMENT)
    return emu_refuse(p, EMU_PARAM_INVALID, "%s starts at 0x%llx, which is no multiple of %d", name, (unsigned long long)v.address,
                      ALIGNMENT),
           0;
  if (bits == 4 && v.n_dims && (v.offset % 2 || (v.strides[v.n_dims - 1] == 1 ? v.dims[v.n_dims - 1] % 2 : 0)))
    return emu_refuse(p, EMU_PARAM_INVALID, "%s: the last axis of an INT4 tensor must be even", name), 0;
  if (p->n == EMU_TENSORS_MAX) return emu_refuse(p, EMU_PARAM_INVALID, "more than %d tensors", EMU_TENSORS_MAX), 0;
  p->t[p->n] = v;
  p->from[p->n] = t;
  p->serial[p->n] = serial;
  return p->n++;
}
int emu_reads(struct emu_plan *p, const char *name, const aclTensor *t) { return add(p, name, t, false); }
int emu_writes(struct emu_plan *p, const char *name, const aclTensor *t) { return add(p, name, t, true); }
int emu_updates(struct emu_plan *p, const char *name, const aclTensor *t) { return add(p, name, t, true); }
int emu_reads_optional(struct emu_plan *p, const char *name, const aclTensor *t) { return t ? add(p, name, t, false) : -1; }
int emu_writes_optional(struct emu_plan *p, const char *name, const aclTensor *t) { return t ? add(p, name, t, true) : -1; }

static int add_list(struct emu_plan *p, const char *name, const aclTensorList *l, int *count, bool writes, bool optional) {
  *count = 0;
  if (!p->ok) return optional ? -1 : 0;
  if (!l && !optional) return emu_refuse(p, EMU_NULLPTR, "%s is NULL", name), 0;
  if (!l) return -1;
  pthread_mutex_lock(&emu.lock);
  const struct array *a = object_get(K_TENSORS, l);
  pthread_mutex_unlock(&emu.lock);
  if (!a) return emu_refuse(p, EMU_PARAM_INVALID, "%s is not a live list", name), 0;
  if (!a->n && optional) return -1;
  if (!a->n) return emu_refuse(p, EMU_NULLPTR, "%s is an empty list", name), 0;
  int first = p->n;
  const aclTensor *const *members = a->values;
  for (uint64_t i = 0; i < a->n && p->ok; i++) add(p, name, members[i], writes);
  if (!p->ok) return 0;
  *count = (int)a->n;
  return first;
}
int emu_reads_list(struct emu_plan *p, const char *name, const aclTensorList *l, int *count) {
  return add_list(p, name, l, count, false, false);
}
int emu_writes_list(struct emu_plan *p, const char *name, const aclTensorList *l, int *count) {
  return add_list(p, name, l, count, true, false);
}
int emu_reads_list_optional(struct emu_plan *p, const char *name, const aclTensorList *l, int *count) {
  return add_list(p, name, l, count, false, true);
}

bool emu_absent(struct emu_plan *p, const char *name, const void *argument) {
  return emu_check(p, !argument, EMU_TILING, "%s must be absent in this combination", name);
}

bool emu_scalar(struct emu_plan *p, const char *name, const aclScalar *s, double *x) {
  *x = 0;
  if (!p->ok) return false;
  if (!s) return emu_refuse(p, EMU_NULLPTR, "%s is NULL", name);
  pthread_mutex_lock(&emu.lock);
  bool alive = object_get(K_SCALAR, s) != NULL;
  struct emu_tensor one = {.n_dims = 0, .n = 1, .contiguous = true};
  _Alignas(8) char bytes[8];
  if (alive) {
    one.type = last_scalar_type = s->type;
    memcpy(bytes, s->bytes, sizeof bytes);
  }
  pthread_mutex_unlock(&emu.lock);
  if (!alive) return emu_refuse(p, EMU_PARAM_INVALID, "%s is not a live scalar", name);
  one.data = bytes;
  *x = emu_load(&one, 0);
  return true;
}
int emu_scalar_type(const aclScalar *s) { return s->type; }

static const int64_t *ints_of(struct emu_plan *p, const char *name, const aclIntArray *a, int64_t *n, bool optional) {
  *n = 0;
  if (!p->ok || (!a && optional)) return NULL;
  if (!a) return emu_refuse(p, EMU_NULLPTR, "%s is NULL", name), NULL;
  pthread_mutex_lock(&emu.lock);
  const struct array *array = object_get(K_INTS, a);
  pthread_mutex_unlock(&emu.lock);
  if (!array) return emu_refuse(p, EMU_PARAM_INVALID, "%s is not a live array", name), NULL;
  *n = (int64_t)array->n;
  return array->values;
}
const int64_t *emu_ints(struct emu_plan *p, const char *name, const aclIntArray *a, int64_t *n) { return ints_of(p, name, a, n, false); }
const int64_t *emu_ints_optional(struct emu_plan *p, const char *name, const aclIntArray *a, int64_t *n) {
  return ints_of(p, name, a, n, true);
}

bool emu_types(struct emu_plan *p, int slot, const int *types) {
  char list[256] = "";
  size_t n = 0;
  if (!p->ok || slot < 0) return p->ok;
  for (int i = 0; types[i] != EMU_UNDEFINED; i++) {
    if (p->t[slot].type == types[i]) return true;
    if (n < sizeof list) n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", emu_type_name(types[i]));
  }
  return emu_refuse(p, EMU_PARAM_INVALID, "%s is %s; this operator takes %s there", p->t[slot].name, emu_type_name(p->t[slot].type), list);
}
bool emu_needs_contiguous(struct emu_plan *p, int slot, aclnnStatus code) {
  if (!p->ok || slot < 0) return p->ok;
  return emu_check(p, p->t[slot].contiguous, code, "%s must be contiguous, is %s", p->t[slot].name, emu_text(&p->t[slot]));
}
bool emu_needs_chip(struct emu_plan *p, bool supported) {
  return emu_check(p, supported, EMU_FIND_KERNEL, "EZ1001: binary_info_config.json of %s does not support opType %s", emu.soc, p->op);
}

void *emu_keep(struct emu_plan *p, const void *data, size_t n) {
  (void)p;
  if (kept.n == KEPT_MAX) {
    fprintf(stderr, "acl_emu: an operator keeps more than %d things\n", KEPT_MAX);
    abort();
  }
  void *copy = checked(malloc(n + 1));
  if (n) memcpy(copy, data, n);
  return kept.p[kept.n++] = copy;
}

/* An output may share bytes with nothing else, unless it is the same tensor's handle that the operator updates. */
static void check_overlaps(struct emu_plan *p) {
  for (int i = 0; i < p->n && p->ok; i++)
    for (int k = 0; k < p->n && p->ok; k++)
      if (i != k && p->t[i].writes && (!p->t[k].writes || k > i) && emu_overlap(&p->t[i], &p->t[k]))
        emu_refuse(p, EMU_PARAM_INVALID, "the memory of %s overlaps that of %s", p->t[i].name, p->t[k].name);
}

static void forget_kept(void) {
  while (kept.n) free(kept.p[--kept.n]);
}

aclnnStatus emu_finish(struct emu_plan *p, emu_run_fn run, const void *ctx, size_t ctx_bytes, uint64_t workspace_bytes) {
  check_overlaps(p);
  if (!p->ok) {
    forget_kept();
    return p->code;
  }
  struct closure *c = checked(calloc(1, sizeof *c));
  c->references = 1;
  c->op = p->op;
  c->run = run;
  c->ctx = checked(malloc(ctx_bytes + 1));
  if (ctx_bytes) memcpy(c->ctx, ctx, ctx_bytes);
  c->n = p->n;
  c->t = checked(calloc((size_t)p->n + 1, sizeof *c->t));
  c->block = checked(calloc((size_t)p->n + 1, sizeof *c->block));
  memcpy(c->t, p->t, sizeof *c->t * (size_t)p->n);
  c->workspace_bytes = workspace_bytes;
  c->kernel = !p->not_a_kernel;
  if (kept.n) {
    c->kept = checked(malloc(sizeof *c->kept * (size_t)kept.n));
    memcpy(c->kept, kept.p, sizeof *c->kept * (size_t)kept.n);
    c->n_kept = kept.n;
    kept.n = 0;
  }
  pthread_mutex_lock(&emu.lock);
  aclOpExecutor *x = object_new(K_EXECUTOR, sizeof *x);
  x->op = p->op;
  x->closure = c;
  memcpy(x->from, p->from, sizeof *x->from * (size_t)p->n);
  memcpy(x->serial, p->serial, sizeof *x->serial * (size_t)p->n);
  pthread_mutex_unlock(&emu.lock);
  *p->workspace_size = workspace_bytes;
  *p->executor = x;
  return 0;
}

void closure_release(struct closure *c) {
  if (!c || --c->references) return;
  if (c->parent) {
    closure_release(c->parent);
    c->ctx = NULL;
    c->kept = NULL;
    c->n_kept = 0;
  }
  for (int i = 0; i < c->n_kept; i++) free(c->kept[i]);
  free(c->kept);
  free(c->ctx);
  free(c->t);
  free(c->block);
  free(c);
}

static void executor_drop(aclOpExecutor *x) {
  closure_release(x->closure);
  object_drop(x);
}

/* ---- phase 2 ---------------------------------------------------------------------------------------------------------------------- */

/* A repeatable executor is launched again with other addresses: each launch has its own copy of those. */
static struct closure *closure_copy(struct closure *c) {
  struct closure *d = checked(malloc(sizeof *d));
  *d = *c;
  d->references = 1;
  d->t = checked(malloc(sizeof *d->t * (size_t)(c->n + 1)));
  d->block = checked(calloc((size_t)c->n + 1, sizeof *d->block));
  memcpy(d->t, c->t, sizeof *d->t * (size_t)c->n);
  d->parent = c;
  c->references++;
  return d;
}

static int check_workspace(const char *op, struct closure *c, void *workspace, uint64_t given) {
  if (!c->workspace_bytes && !workspace) return 0;
  if (!c->workspace_bytes) return 0; /* what is given is not looked at */
  if (!workspace)
    return emu_say(EMU_NULLPTR, "aclnn%s: workspace is NULL, phase 1 asked for %llu bytes", op, (unsigned long long)c->workspace_bytes);
  if (given < c->workspace_bytes)
    return emu_say(EMU_PARAM_INVALID, "aclnn%s: workspace of %llu bytes, phase 1 asked for %llu", op, (unsigned long long)given,
                   (unsigned long long)c->workspace_bytes);
  if (!address_is_device(workspace)) return emu_say(EMU_PARAM_INVALID, "aclnn%s: workspace %p is not device memory", op, workspace);
  struct block *b = block_find((uint64_t)(uintptr_t)workspace, given);
  if (!b)
    return emu_say(EMU_PARAM_INVALID, "aclnn%s: %llu bytes of workspace at %p are not inside a live block", op, (unsigned long long)given,
                   workspace);
  if ((uintptr_t)workspace % ALIGNMENT) return emu_say(EMU_PARAM_INVALID, "aclnn%s: workspace %p is not 32-byte aligned", op, workspace);
  c->workspace = (uint64_t)(uintptr_t)workspace;
  c->workspace_given = given;
  c->workspace_block = b->serial;
  for (int i = 0; i < c->n; i++) {
    uint64_t address;
    size_t n;
    if (tensor_range(&c->t[i], &address, &n) && address < c->workspace + c->workspace_bytes && c->workspace < address + n)
      return emu_say(EMU_PARAM_INVALID, "aclnn%s: the workspace overlaps %s", op, c->t[i].name);
  }
  return 0;
}

struct stream_ctx {
  const struct stream *not_of;
  uint64_t address;
  size_t n;
  const char *op;
  bool found;
};
static bool same_workspace(const struct range *r, void *ctx) {
  struct stream_ctx *s = ctx;
  if (!r->host && !strcmp(r->name, "workspace") && r->address < s->address + s->n && s->address < r->address + r->n_bytes) {
    emu_violate("aclnn%s and aclnn%s use one workspace and are queued on two streams", s->op, r->op);
    s->found = true;
  }
  return s->found;
}
static void other_stream(void *object, void *ctx) {
  struct stream *stream = object;
  struct stream_ctx *s = ctx;
  if (stream == s->not_of) return;
  for (struct task *t = stream->queue.first; t && !s->found; t = t->next) task_ranges(t, same_workspace, s);
}

aclnnStatus emu_launch(const char *op, void *workspace, uint64_t workspace_size, aclOpExecutor *executor, aclrtStream stream) {
  char name[96];
  int rc;
  snprintf(name, sizeof name, "aclnn%s", op);
  if ((rc = emu_enter(name, NEEDS_CONTEXT))) { /* the executor is consumed, whatever comes */
    pthread_mutex_lock(&emu.lock);
    aclOpExecutor *unused = executor ? object_get(K_EXECUTOR, executor) : NULL;
    if (unused && !unused->repeatable) executor_drop(unused);
    return emu_leave(rc);
  }
  emu.counts.launches++;
  emu_count_call(op);
  if (!executor) return emu_leave(emu_say(RC_INNER_NULLPTR, "aclnn%s: executor is NULL", op));
  aclOpExecutor *x = object_get(K_EXECUTOR, executor);
  if (!x) return emu_leave(emu_say(RC_INNER, "aclnn%s: the executor was used already, or destroyed", op));
  if (strcmp(x->op, op) != 0) return emu_leave(emu_say(EMU_PARAM_INVALID, "aclnn%s: the executor is one of aclnn%s", op, x->op));
  struct stream *s = NULL;
  if (emu_injected_op("launch", op, &rc)) emu_say(rc, "aclnn%s: fault injected", op);
  else if ((rc = emu.lost)) emu_say(rc, "aclnn%s: the device is lost", op);
  else s = stream_get(stream, &rc);
  struct closure *c = x->closure;
  if (!s) {
    if (!x->repeatable) executor_drop(x);
    return emu_leave(rc);
  }
  for (int i = 0; i < c->n; i++) {
    const aclTensor *t = object_get(K_TENSOR, x->from[i]);
    if (!x->readdressed && (!t || t->o.serial != x->serial[i])) {
      rc = emu_say(EMU_PARAM_INVALID, "aclnn%s: %s was destroyed between the two phases", op, c->t[i].name);
      executor_drop(x);
      return emu_leave(rc);
    }
  }
  if (x->repeatable) {
    c = closure_copy(c);
  } else { /* the closure is this call's now */
    c->references++;
    executor_drop(x);
  }
  rc = check_workspace(op, c, workspace, workspace_size);
  for (int i = 0; i < c->n && !rc; i++) {
    uint64_t address;
    size_t n;
    struct block *b = tensor_range(&c->t[i], &address, &n) ? block_find(address, n) : NULL;
    c->block[i] = b ? b->serial : 0; /* what is not inside a live block faults when it runs */
  }
  if (!rc && c->workspace_bytes && !s->branch && !s->updating) {
    struct stream_ctx ctx = {.not_of = s, .address = c->workspace, .n = c->workspace_bytes, .op = op};
    objects_each(K_STREAM, other_stream, &ctx);
  }
  if (!rc) {
    struct task *t = task_new(T_OP);
    t->u.op = c;
    c->references++;
    rc = stream_put(s, t);
  }
  closure_release(c);
  return emu_leave(rc);
}

EMU_API aclnnStatus emu_aclDestroyAclOpExecutor(aclOpExecutor *executor);
EMU_API aclnnStatus emu_aclDestroyAclOpExecutor(aclOpExecutor *executor) {
  int rc = emu_enter("aclDestroyAclOpExecutor", 0);
  if (rc) return rc;
  if (!executor) return emu_leave(emu_say(RC_INNER_NULLPTR, "aclDestroyAclOpExecutor: executor is NULL"));
  aclOpExecutor *x = object_get(K_EXECUTOR, executor);
  if (!x) return emu_leave(emu_say(RC_INNER, "aclDestroyAclOpExecutor: the executor was used already, or destroyed"));
  executor_drop(x);
  return emu_leave(0);
}

/* ---- repeatable executors ----------------------------------------------------------------------------------------------------------- */

static aclOpExecutor *executor_get(const char *name, aclOpExecutor *executor, int *rc) {
  aclOpExecutor *x = object_get(K_EXECUTOR, executor);
  *rc = 0;
  if (!executor) *rc = emu_say(RC_INNER_NULLPTR, "%s: executor is NULL", name);
  else if (!x) *rc = emu_say(RC_INNER, "%s: the executor was used already, or destroyed", name);
  return x;
}
EMU_API aclnnStatus emu_aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
EMU_API aclnnStatus emu_aclSetAclOpExecutorRepeatable(aclOpExecutor *executor) {
  int rc = emu_enter("aclSetAclOpExecutorRepeatable", 0);
  if (rc) return rc;
  aclOpExecutor *x = executor_get("aclSetAclOpExecutorRepeatable", executor, &rc);
  if (x && !x->closure->kernel) rc = emu_say(EMU_PARAM_INVALID, "aclSetAclOpExecutorRepeatable: not for aclnn%s", x->op);
  else if (x) x->repeatable = true;
  return emu_leave(rc);
}
/* which: 0 inputs, 1 outputs, 2 inputs then outputs; the index counts among those. */
static aclnnStatus set_address(const char *name, aclOpExecutor *executor, size_t index, aclTensor *tensor, void *address, int which) {
  int rc = emu_enter(name, 0);
  if (rc) return rc;
  aclOpExecutor *x = executor_get(name, executor, &rc);
  if (!x) return emu_leave(rc);
  if (!x->repeatable) return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: the executor is not repeatable", name));
  if (!tensor || !object_get(K_TENSOR, tensor)) return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: not a live tensor", name));
  if (!address || (uintptr_t)address % ALIGNMENT)
    return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: address %p is not 32-byte aligned", name, address));
  size_t at = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < x->closure->n; i++) {
      struct emu_tensor *t = &x->closure->t[i];
      if (t->writes != (pass == 1) || (which != 2 && which != pass) || at++ != index) continue;
      t->address = (uint64_t)(uintptr_t)address;
      tensor->v.address = t->address;
      x->readdressed = true;
      return emu_leave(0);
    }
  return emu_leave(emu_say(EMU_PARAM_INVALID, "%s: aclnn%s has no tensor %zu, or it was NULL in phase 1", name, x->op, index));
}
EMU_API aclnnStatus emu_aclSetInputTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address);
EMU_API aclnnStatus emu_aclSetInputTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address) {
  return set_address("aclSetInputTensorAddr", executor, index, t, address, 0);
}
EMU_API aclnnStatus emu_aclSetOutputTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address);
EMU_API aclnnStatus emu_aclSetOutputTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address) {
  return set_address("aclSetOutputTensorAddr", executor, index, t, address, 1);
}
EMU_API aclnnStatus emu_aclSetTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address);
EMU_API aclnnStatus emu_aclSetTensorAddr(aclOpExecutor *executor, size_t index, aclTensor *t, void *address) {
  return set_address("aclSetTensorAddr", executor, index, t, address, 2);
}

/* ---- execution -------------------------------------------------------------------------------------------------------------------- */

struct run { /* emu_call.internal */
  int code;
  char text[512];
  void **scratch;
  int n_scratch, cap_scratch;
};

void emu_fault(struct emu_call *c, aclError code, const char *fmt, ...) {
  struct run *r = c->internal;
  va_list v;
  if (r->code) return;
  r->code = code;
  int n = snprintf(r->text, sizeof r->text, "aclnn%s: ", c->op);
  va_start(v, fmt);
  vsnprintf(r->text + n, sizeof r->text - (size_t)n, fmt, v);
  va_end(v);
}
void *emu_scratch(struct emu_call *c, size_t n_bytes) {
  struct run *r = c->internal;
  if (r->n_scratch == r->cap_scratch) {
    r->cap_scratch = r->cap_scratch ? 2 * r->cap_scratch : 8;
    r->scratch = checked(realloc(r->scratch, sizeof *r->scratch * (size_t)r->cap_scratch));
  }
  return r->scratch[r->n_scratch++] = checked(malloc(n_bytes + 1));
}

static void poison_view(const struct emu_tensor *t) {
  size_t bytes = (size_t)emu_element_bits(t->type) / 8;
  if (bytes && t->contiguous) memset(t->data, POISON, bytes * (size_t)t->n);
  else if (bytes)
    for (int64_t i = 0; i < t->n; i++) memset(t->data + emu_at(t, i) * (int64_t)bytes, POISON, bytes);
}

/* Every address of c must still be the memory that it was when the operator was launched. Under the lock. */
static bool alive(const struct closure *c, char text[512]) {
  for (int i = 0; i < c->n; i++) {
    uint64_t address;
    size_t n;
    if (!tensor_range(&c->t[i], &address, &n)) continue;
    struct block *b = block_find(address, n);
    if (b && b->serial == c->block[i]) continue;
    snprintf(text, 512, "aclnn%s: %s: %zu bytes at 0x%llx are %s", c->op, c->t[i].name, n, (unsigned long long)address,
             c->block[i] ? "no longer the memory that was there at its launch" : "not inside a live block of the device");
    return false;
  }
  if (!c->workspace_bytes) return true;
  struct block *b = block_find(c->workspace, c->workspace_bytes);
  if (b && b->serial == c->workspace_block) return true;
  snprintf(text, 512, "aclnn%s: its workspace was freed", c->op);
  return false;
}

int closure_run(struct closure *c, bool replay, char text[512]) {
  struct run r = {0};
  int code = 0;
  pthread_mutex_lock(&emu.lock);
  emu.counts.runs++;
  bool good = alive(c, text);
  if (good && emu_injected_op("run", c->op, &code)) snprintf(text, 512, "aclnn%s: fault injected", c->op);
  pthread_mutex_unlock(&emu.lock);
  if (!good) return replay ? RC_MODEL_EXECUTE : RC_AICORE_EXCEPTION;
  struct emu_tensor *t = checked(malloc(sizeof *t * (size_t)(c->n + 1)));
  memcpy(t, c->t, sizeof *t * (size_t)c->n);
  for (int i = 0; i < c->n; i++)
    t[i].data = t[i].address ? (char *)emu_reach(t[i].address) + t[i].offset * emu_element_bits(t[i].type) / 8 : NULL;
  void *workspace = c->workspace_bytes ? emu_reach(c->workspace) : NULL;
  struct emu_call call = {.op = c->op, .n = c->n, .t = t, .workspace = workspace, .workspace_bytes = c->workspace_bytes, .internal = &r};
  if (workspace) memset(workspace, POISON, c->workspace_bytes);
  if (!code) c->run(&call, c->ctx);
  if (workspace) memset(workspace, POISON, c->workspace_bytes);
  if (r.code) {
    code = r.code;
    memcpy(text, r.text, sizeof r.text);
  }
  if (code)
    for (int i = 0; i < c->n; i++)
      if (t[i].writes && t[i].data) poison_view(&t[i]);
  for (int i = 0; i < r.n_scratch; i++) free(r.scratch[i]);
  free(r.scratch);
  free(t);
  return code && replay ? RC_MODEL_EXECUTE : code;
}
