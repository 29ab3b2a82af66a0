/* core.c — the emulator's state: profile, modes, objects, texts, figures, injected faults; the table that tests use. */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emu emu = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
static _Thread_local struct thread_state thread_state;
static _Thread_local char said[2048], told[2048];

struct thread_state *emu_thread(void) {
  return &thread_state;
}

/* ---- profile and environment ---------------------------------------------------------------------------------------------- */

static const struct profile {
  const char *name, *soc, *version;
  enum emu_chip chip;
  int cann;
} profiles[] = {
    {"A2-8.1", "Ascend910B3", "8.1.RC1", EMU_A2, 801},   {"A2-8.5", "Ascend910B3", "8.5.0", EMU_A2, 805},
    {"A2-9.1", "Ascend910B4", "9.1.0", EMU_A2, 901},     {"A3-9.1", "Ascend910_9392", "9.1.0", EMU_A3, 901},
    {"310P-8.5", "Ascend310P3", "8.5.0", EMU_310P, 805},
};

enum emu_chip emu_chip(void) { return emu.chip; }
int emu_cann(void) { return emu.table.cann; }
bool emu_defect(enum emu_defect d) { return (emu.defects & d) != 0; }
bool emu_other_order(void) { return emu.order != 0; }

static uint64_t size_of(const char *s) {
  char *end;
  uint64_t n = strtoull(s, &end, 10);
  return *end == 'k' ? n << 10 : *end == 'm' ? n << 20 : *end == 'g' ? n << 30 : n;
}
static int number_of(const char *name, int otherwise) {
  const char *s = getenv(name);
  return s && *s ? (int)strtol(s, NULL, 10) : otherwise;
}

static void read_defects(const char *s) {
  static const char *const names[] = {"mask512", "pse_shared", "uniform", "pse_inf", "band_off", "empty_garbage"};
  for (int i = 0; s && i < 6; i++)
    if (strstr(s, names[i])) emu.defects |= 1U << i;
}

static void add_fault(const char *where, int n, int code) {
  if (emu.n_faults == FAULTS_MAX) return;
  struct fault_rule *f = &emu.faults[emu.n_faults++];
  snprintf(f->where, sizeof f->where, "%s", where);
  f->left = n;
  f->code = code;
}
static void read_faults(const char *s) {
  char where[64];
  int n, code;
  while (s && sscanf(s, "%63[^:]:%d:%d", where, &n, &code) == 3) {
    add_fault(where, n, code);
    s = strchr(s, ',');
    if (s) s++;
  }
}

static void modes_from_environment(void) {
  const char *memory = getenv("ACL_EMU_MEMORY"), *seed = getenv("ACL_EMU_SEED");
  emu.budget = memory && *memory ? size_of(memory) : (uint64_t)256 << 20;
  emu.random = seed && *seed ? strtoull(seed, NULL, 10) : 1;
  emu.delay_us = number_of("ACL_EMU_DELAY_US", 0);
  emu.delay_one_in = number_of("ACL_EMU_DELAY_ONE_IN", 1);
  emu.lazy = number_of("ACL_EMU_LAZY", 0);
  emu.order = number_of("ACL_EMU_ORDER", 0);
  emu.hang_ms = number_of("ACL_EMU_HANG_MS", 10000);
  emu.quiet = number_of("ACL_EMU_QUIET", 0);
  emu.trace = number_of("ACL_EMU_TRACE", 0);
  emu.task_update = number_of("ACL_EMU_TASK_UPDATE", emu.chip != EMU_310P);
  emu.stream_limit = number_of("ACL_EMU_STREAMS", emu.chip == EMU_310P ? 1024 : 1984);
  emu.event_limit = number_of("ACL_EMU_EVENTS", emu.chip == EMU_310P ? 1023 : 65536);
  emu.defects = 0;
  read_defects(getenv("ACL_EMU_DEFECTS"));
  read_faults(getenv("ACL_EMU_FAULT"));
}

/* Called by the constructor of every thin library. library: 1 the whole libopapi.so, 2 one of the split ones, 0 another. */
EMU_API void emu_select(int profile, int library);
EMU_API void emu_select(int profile, int library) {
  static int selected = -1;
  static int operators;
  if (selected >= 0 && selected != profile) {
    fprintf(stderr, "acl_emu: libraries of %s and of %s in one process\n", profiles[selected].name, profiles[profile].name);
    abort();
  }
  if (selected < 0) {
    const struct profile *p = &profiles[profile];
    const char *soc = getenv("ACL_EMU_SOC"), *version = getenv("ACL_EMU_CANN");
    selected = profile;
    emu.chip = p->chip;
    emu.table.cann = p->cann;
    emu.table.profile = p->name;
    snprintf(emu.soc, sizeof emu.soc, "%s", soc && *soc ? soc : p->soc);
    snprintf(emu.version, sizeof emu.version, "%s", version && *version ? version : p->version);
    emu_start();
  }
  operators |= library;
  if (operators == 3) emu_violate("libopapi.so and the split libopapi_*.so are open in one process");
}

/* ---- objects ---------------------------------------------------------------------------------------------------------------- */

enum { PLACE_BYTES = 1280, PLACES_IN_CHUNK = 1024, CHUNKS_MAX = 4096, DESTROYED_KEPT = 4096 };
static char *chunks[CHUNKS_MAX];
static int n_chunks, used_in_last;
static struct object *destroyed_first, *destroyed_last;
static int n_destroyed;
static struct object *live[K_COUNT];
static uint64_t n_of_kind[K_COUNT], last_serial;

void *object_new(enum kind kind, size_t n_bytes) {
  struct object *o = NULL;
  if (n_bytes > PLACE_BYTES) {
    fprintf(stderr, "acl_emu: an object of %zu bytes does not fit its place\n", n_bytes);
    abort();
  }
  if (n_destroyed > DESTROYED_KEPT) {
    o = destroyed_first;
    destroyed_first = o->next;
    n_destroyed--;
  } else {
    if (!n_chunks || used_in_last == PLACES_IN_CHUNK) {
      if (n_chunks == CHUNKS_MAX || !(chunks[n_chunks] = malloc((size_t)PLACE_BYTES * PLACES_IN_CHUNK))) {
        fprintf(stderr, "acl_emu: out of memory for objects\n");
        abort();
      }
      n_chunks++;
      used_in_last = 0;
    }
    o = (struct object *)(void *)(chunks[n_chunks - 1] + (size_t)PLACE_BYTES * (size_t)used_in_last++);
  }
  memset(o, 0, n_bytes);
  o->kind = kind;
  o->serial = ++last_serial;
  o->next = live[kind];
  if (o->next) o->next->previous = o;
  live[kind] = o;
  n_of_kind[kind]++;
  return o;
}

void *object_get(enum kind kind, const void *handle) {
  const char *p = handle;
  for (int i = n_chunks - 1; i >= 0; i--) {
    int n = i == n_chunks - 1 ? used_in_last : PLACES_IN_CHUNK;
    if (p < chunks[i] || p >= chunks[i] + (size_t)PLACE_BYTES * (size_t)n) continue;
    size_t at = (size_t)(p - chunks[i]);
    struct object *o = (struct object *)(void *)(chunks[i] + at);
    return at % PLACE_BYTES == 0 && o->kind == kind ? o : NULL;
  }
  return NULL;
}

void object_drop(void *object) {
  struct object *o = object;
  n_of_kind[o->kind]--;
  if (o->next) o->next->previous = o->previous;
  if (o->previous) o->previous->next = o->next;
  else live[o->kind] = o->next;
  o->kind = K_NONE;
  o->next = NULL;
  if (n_destroyed++) destroyed_last->next = o;
  else destroyed_first = o;
  destroyed_last = o;
}

uint64_t object_count(enum kind kind) { return n_of_kind[kind]; }

void objects_each(enum kind kind, void (*each)(void *object, void *ctx), void *ctx) {
  for (struct object *o = live[kind], *next; o; o = next) {
    next = o->next;
    each(o, ctx);
  }
}

/* ---- texts, figures, faults ----------------------------------------------------------------------------------------------------- */

int emu_say(int code, const char *fmt, ...) {
  va_list v;
  va_start(v, fmt);
  vsnprintf(said, sizeof said, fmt, v);
  va_end(v);
  thread_state.last_error = code;
  return code;
}
void emu_say_more(const char *fmt, ...) {
  size_t n = strlen(said);
  va_list v;
  va_start(v, fmt);
  vsnprintf(said + n, sizeof said - n, fmt, v);
  va_end(v);
}
/* Gives the text and forgets it, as the real one does. */
EMU_API const char *emu_aclGetRecentErrMsg(void);
EMU_API const char *emu_aclGetRecentErrMsg(void) {
  if (!said[0]) return NULL;
  memcpy(told, said, sizeof told);
  said[0] = 0;
  return told;
}
EMU_API aclError emu_aclrtPeekAtLastError(unsigned level);
EMU_API aclError emu_aclrtPeekAtLastError(unsigned level) { return level ? RC_PARAM_INVALID : thread_state.last_error; }
EMU_API aclError emu_aclrtGetLastError(unsigned level);
EMU_API aclError emu_aclrtGetLastError(unsigned level) {
  int code = thread_state.last_error;
  if (level) return RC_PARAM_INVALID;
  thread_state.last_error = 0;
  return code;
}

void emu_violate(const char *fmt, ...) {
  char text[512];
  va_list v;
  va_start(v, fmt);
  vsnprintf(text, sizeof text, fmt, v);
  va_end(v);
  if (!emu.n_violations++) memcpy(emu.violation, text, sizeof text);
  if (!emu.quiet) fprintf(stderr, "acl_emu: violation: %s\n", text);
}

uint64_t emu_random(void) { /* splitmix64 */
  uint64_t z = emu.random += 0x9e3779b97f4a7c15U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

static uint64_t *called_of(const char *name, bool add) {
  uint64_t h = 1469598103934665603U;
  for (const char *s = name; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211U;
  for (unsigned i = 0; i < CALLED_MAX; i++) {
    unsigned k = (unsigned)(h + i) % CALLED_MAX;
    if (!strncmp(emu.called[k].name, name, sizeof emu.called[k].name - 1)) return &emu.called[k].n;
    if (emu.called[k].name[0]) continue;
    if (!add) return NULL;
    snprintf(emu.called[k].name, sizeof emu.called[k].name, "%s", name);
    return &emu.called[k].n;
  }
  return NULL;
}
void emu_count_call(const char *name) {
  uint64_t *n = called_of(name, true);
  if (n) ++*n;
}

int emu_injected(const char *where) {
  for (int i = 0; i < emu.n_faults; i++) {
    struct fault_rule *f = &emu.faults[i];
    if (strcmp(f->where, where) != 0) continue;
    if (f->left == 0) return f->code;
    if (--f->left) continue;
    int code = f->code;
    *f = emu.faults[--emu.n_faults];
    return code;
  }
  return 0;
}
bool emu_injected_op(const char *what, const char *op, int *code) {
  char where[96];
  if (!emu.n_faults) return false;
  snprintf(where, sizeof where, "%s %s", what, op);
  *code = emu_injected(where);
  if (!*code) {
    snprintf(where, sizeof where, "any %s", what);
    *code = emu_injected(where);
  }
  return *code != 0;
}

int emu_code(int code) {
  if (emu.table.cann >= 805) return code;
  switch (code) { /* 8.1 does not know these; any of its own will do */
  case RC_STREAM_CAPTURE_UNMATCHED:
  case RC_MODEL_RUNNING:
  case RC_CAPTURE_WRONG_THREAD:
  case RC_CAPTURE_BLOCK_ASYNC: return RC_INTERNAL_ERROR;
  case RC_NOT_SUPPORT_UPDATE_OP: return RC_FEATURE_NOT_SUPPORT;
  default: return code;
  }
}

struct context *emu_context(void) {
  struct context *c = object_get(K_CONTEXT, thread_state.context);
  return c && c->o.serial == thread_state.context_serial ? c : NULL;
}

int emu_enter(const char *name, unsigned needs) {
  int code;
  pthread_mutex_lock(&emu.lock);
  emu.counts.calls++;
  emu_count_call(name);
  if (emu.trace) fprintf(stderr, "acl_emu: %s\n", name);
  if ((code = emu_injected(name))) emu_say(code, "%s: fault injected", name);
  else if ((needs & NEEDS_INIT) && !emu.initialised) code = emu_say(RC_UNINITIALIZE, "%s: aclInit was not called", name);
  else if ((needs & NEEDS_CONTEXT) && !emu_context())
    code = emu_say(RC_CONTEXT_NULL, "%s: this thread has no current context: aclrtSetDevice or aclrtSetCurrentContext first", name);
  else if ((needs & REACHES_DEVICE) && emu.lost) code = emu_say(emu.lost, "%s: the device is lost", name);
  if (code) pthread_mutex_unlock(&emu.lock);
  return code;
}
int emu_leave(int rc) {
  pthread_mutex_unlock(&emu.lock);
  return rc;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------- */

#define LOCKED(statement)                                                                                                                  \
  do {                                                                                                                                     \
    pthread_mutex_lock(&emu.lock);                                                                                                         \
    statement;                                                                                                                             \
    device_wake();                                                                                                                         \
    pthread_mutex_unlock(&emu.lock);                                                                                                       \
  } while (0)

static void set_memory(uint64_t n) { LOCKED(emu.budget = n); }
static void set_seed(uint64_t seed) { LOCKED(emu.random = seed); }
static void set_delay(int us) { LOCKED(emu.delay_us = us); }
static void set_lazy(int on) { LOCKED(emu.lazy = on); }
static void set_order(int on) { LOCKED(emu.order = on); }
static void set_defects(unsigned bits) { LOCKED(emu.defects = bits); }
static void set_limits(int streams, int events) { LOCKED(emu.stream_limit = streams; emu.event_limit = events); }
static void set_hang(int ms) { LOCKED(emu.hang_ms = ms); }
static void set_quiet(int on) { LOCKED(emu.quiet = on); }
static void set_task_update(int on) { LOCKED(emu.task_update = on); }
static void set_lost(int code) { LOCKED(emu.lost = code); }
static void set_fault(const char *where, int n, int code) { LOCKED(if (where) add_fault(where, n, code); else emu.n_faults = 0); }

static void figures_locked(struct acl_emu_counts *out) {
  *out = emu.counts;
  out->device_blocks = (uint64_t)emu.n_blocks;
  out->host_blocks = (uint64_t)emu.n_hosts;
  out->streams = n_of_kind[K_STREAM];
  out->events = n_of_kind[K_EVENT];
  out->tensors = n_of_kind[K_TENSOR];
  out->scalars = n_of_kind[K_SCALAR];
  out->arrays = n_of_kind[K_INTS] + n_of_kind[K_FLOATS] + n_of_kind[K_BOOLS];
  out->lists = n_of_kind[K_TENSORS] + n_of_kind[K_SCALARS];
  out->executors = n_of_kind[K_EXECUTOR];
  out->models = n_of_kind[K_MODEL];
  if (emu.primary && out->streams) out->streams--; /* the default stream is nobody's */
}
static void get_counts(struct acl_emu_counts *out) { LOCKED(figures_locked(out)); }
static uint64_t get_called(const char *name) {
  uint64_t n = 0, *found;
  LOCKED(found = called_of(name, false); if (found) n = *found);
  return n;
}
static uint64_t get_violations(void) {
  uint64_t n;
  LOCKED(n = emu.n_violations);
  return n;
}
static const char *get_violation(void) {
  static _Thread_local char text[512];
  LOCKED(memcpy(text, emu.violation, sizeof text));
  return text;
}

static void executor_name(void *object, void *ctx) {
  char *text = ctx;
  size_t n = strlen(text);
  struct executor_head {
    struct object o;
    const char *op;
  } *x = object;
  if (n < 300) snprintf(text + n, 100, "%saclnn%s", n ? ", " : "", x->op);
}

void leaks_locked(char *out, size_t n_bytes) {
  struct acl_emu_counts c;
  size_t n = 0, bytes = 0;
  char executors[512] = "";
  figures_locked(&c);
  objects_each(K_EXECUTOR, executor_name, executors);
  for (int i = 0; i < emu.n_blocks; i++) bytes += emu.blocks[i].n_bytes;
  out[0] = 0;
#define LEAK(number, what, more, ...)                                                                                                      \
  if (number)                                                                                                                              \
  n += (size_t)snprintf(out + n, n_bytes - n, "%s%llu %s%s" more, n ? ", " : "", (unsigned long long)(number), what,                       \
                        (number) == 1 ? "" : "s" __VA_ARGS__)
  LEAK(c.tensors, "tensor", "");
  LEAK(c.scalars, "scalar", "");
  LEAK(c.arrays, "array", "");
  LEAK(c.lists, "list", "");
  LEAK(c.executors, "executor", " (%s)", , executors);
  LEAK(c.device_blocks, "device block", " of %zu bytes", , bytes);
  LEAK(c.host_blocks, "host block", "");
  LEAK(c.streams, "stream", "");
  LEAK(c.events, "event", "");
  LEAK(c.models, "model", "");
#undef LEAK
}
static const char *get_leaks(void) {
  static _Thread_local char text[2048];
  LOCKED(leaks_locked(text, sizeof text));
  return text;
}
static const char *get_finalize_leaks(void) {
  static _Thread_local char text[2048];
  LOCKED(memcpy(text, emu.finalize_leaks, sizeof text));
  return text;
}

static void reset_all(void) {
  pthread_mutex_lock(&emu.lock);
  uint64_t bytes = emu.counts.device_bytes;
  memset(&emu.counts, 0, sizeof emu.counts);
  emu.counts.device_bytes = emu.counts.device_bytes_peak = bytes;
  memset(emu.called, 0, sizeof emu.called);
  emu.n_violations = 0;
  emu.violation[0] = emu.finalize_leaks[0] = 0;
  emu.n_faults = emu.lost = 0;
  emu.defects = 0;
  emu.delay_us = emu.lazy = emu.order = 0;
  device_wake();
  pthread_mutex_unlock(&emu.lock);
}
static int peek(const void *device, void *out, size_t n) {
  int found;
  LOCKED(found = block_find((uint64_t)(uintptr_t)device, n) != NULL; if (found) memcpy(out, emu_reach((uint64_t)(uintptr_t)device), n));
  return found;
}
static int poke(void *device, const void *in, size_t n) {
  int found;
  LOCKED(found = block_find((uint64_t)(uintptr_t)device, n) != NULL; if (found) memcpy(emu_reach((uint64_t)(uintptr_t)device), in, n));
  return found;
}
static int is_idle(void) {
  int n;
  LOCKED(n = emu.n_pending);
  return n == 0;
}

void emu_start(void) {
  modes_from_environment();
  emu.table = (struct acl_emu){
      .version = 1,
      .profile = emu.table.profile,
      .soc = emu.soc,
      .cann = emu.table.cann,
      .memory = set_memory,
      .seed = set_seed,
      .delay_us = set_delay,
      .lazy = set_lazy,
      .other_order = set_order,
      .defects = set_defects,
      .limits = set_limits,
      .hang_ms = set_hang,
      .quiet = set_quiet,
      .task_update = set_task_update,
      .fault = set_fault,
      .lose = set_lost,
      .counts = get_counts,
      .called = get_called,
      .violations = get_violations,
      .violation = get_violation,
      .leaks = get_leaks,
      .finalize_leaks = get_finalize_leaks,
      .reset = reset_all,
      .peek = peek,
      .poke = poke,
      .idle = is_idle,
  };
  memory_open();
}

EMU_API const struct acl_emu *emu_acl_emu(void);
EMU_API const struct acl_emu *emu_acl_emu(void) { return &emu.table; }
