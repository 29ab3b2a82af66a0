/* core.h — what the emulator's own files share: one process-wide state under one lock, objects, queues of tasks.
 *
 * Threads: callers are any threads; one device thread executes tasks, one at a time, in an order that the seed decides among the queues whose
 * first task may run. Every field below is guarded by emu.lock, except what the executing task uses alone (its closure's run).
 *
 * Objects (streams, events, models, tensors, executors ...) are never given back to the heap: a handle that was destroyed is told from a live
 * one. Destroyed ones are used again first in, first out, and only when 4096 wait.
 *
 * Memory: device addresses are those of a reserved range without access rights; the same pages are mapped a second time where only tasks and
 * copies look (emu_reach).
 */
#ifndef ACL_EMU_CORE_H
#define ACL_EMU_CORE_H

#include <pthread.h>
#include <stdarg.h>

#include "acl_emu/acl_emu.h"
#include "acl_emu/emu.h"

typedef void *aclrtContext;
typedef void *aclrtEvent;
typedef void *aclmdlRI;
typedef void *aclrtTaskGrp;

enum { /* codes of the runtime */
       RC_INVALID_PARAM = 100000,
       RC_UNINITIALIZE = 100001,
       RC_REPEAT_INITIALIZE = 100002,
       RC_INVALID_FILE = 100003,
       RC_REPEAT_FINALIZE = 100037,
       RC_PARAM_INVALID = 107000,
       RC_INVALID_DEVICEID = 107001,
       RC_CONTEXT_NULL = 107002,
       RC_STREAM_CONTEXT = 107003,
       RC_MODEL_CONTEXT = 107004,
       RC_EVENT_TIMESTAMP_INVALID = 107006,
       RC_INVALID_HANDLE = 107017,
       RC_WAIT_TIMEOUT = 107019,
       RC_CAPTURE_DEPENDENCY = 107024,
       RC_STREAM_UNJOINED = 107025,
       RC_MODEL_CAPTURED = 107026,
       RC_STREAM_CAPTURED = 107027,
       RC_EVENT_CAPTURED = 107028,
       RC_STREAM_NOT_CAPTURED = 107029,
       RC_CAPTURE_MODE_NOT_SUPPORT = 107030,
       RC_STREAM_CAPTURE_IMPLICIT = 107031,
       RC_TASK_GROUP_STATUS = 107033,
       RC_TASK_GROUP_INTR = 107034,
       RC_STREAM_CAPTURE_UNMATCHED = 107036,
       RC_MODEL_RUNNING = 107037,
       RC_CAPTURE_WRONG_THREAD = 107038,
       RC_CAPTURE_BLOCK_ASYNC = 107041,
       RC_FEATURE_NOT_SUPPORT = 207000,
       RC_MEMORY_ALLOCATION = 207001,
       RC_NO_EVENT_RESOURCE = 207007,
       RC_NO_STREAM_RESOURCE = 207008,
       RC_NOT_SUPPORT_UPDATE_OP = 207019,
       RC_INTERNAL_ERROR = 507000,
       RC_TASK_TYPE_NOT_SUPPORT = 507009,
       RC_MODEL_EXECUTE = 507011,
       RC_AICORE_EXCEPTION = 507015,
       RC_STREAM_SYNC_TIMEOUT = 507046,
       RC_EVENT_SYNC_TIMEOUT = 507047,
       RC_DRV_INTERNAL = 507899,
       RC_CAPTURE_INVALIDATED = 507903,
       RC_INNER = 561000,
       RC_INNER_NULLPTR = 561103,
};
enum {
  EVENT_SYNC = 1,
  EVENT_CAPTURE_PROGRESS = 2,
  EVENT_TIME_LINE = 8,
  EVENT_DEVICE_USE_ONLY = 0x10,
  EVENT_EXTERNAL = 0x20,
  EVENT_IPC = 0x40
};
enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED };

/* ---- objects --------------------------------------------------------------------------------------------------------------- */

enum kind {
  K_NONE,
  K_CONTEXT,
  K_STREAM,
  K_EVENT,
  K_MODEL,
  K_GROUP,
  K_TENSOR,
  K_SCALAR,
  K_INTS,
  K_FLOATS,
  K_BOOLS,
  K_TENSORS,
  K_SCALARS,
  K_EXECUTOR,
  K_COUNT
};
struct object {   /* first in each */
  enum kind kind; /* K_NONE: destroyed */
  uint64_t serial;
  struct object *next, *previous; /* among the live of its kind; next: in the queue of the destroyed */
};
void *object_new(enum kind kind, size_t n_bytes); /* zeroed */
/* NULL unless handle is a live object of this kind; never looks where handle points unless that is an object's place. */
void *object_get(enum kind kind, const void *handle);
void object_drop(void *object); /* the caller has freed what it owns */
uint64_t object_count(enum kind kind);
void objects_each(enum kind kind, void (*each)(void *object, void *ctx), void *ctx);

struct context {
  struct object o;
  int device;
  bool primary;          /* made by aclrtSetDevice */
  struct stream *stream; /* the default one */
};

/* ---- tasks ----------------------------------------------------------------------------------------------------------------- */

enum task_kind { T_OP, T_COPY, T_SET, T_RECORD, T_WAIT, T_RESET, T_HOST, T_EXECUTE, T_UPDATE };

struct closure { /* an operator with its arguments; shared by executor and tasks */
  int references;
  const char *op;
  emu_run_fn run;
  void *ctx;
  int n;
  struct emu_tensor *t;
  uint64_t *block; /* serial of the allocation of each tensor at phase 2; 0: none */
  uint64_t workspace_bytes, workspace_given;
  uint64_t workspace, workspace_block;
  bool kernel;
  void **kept;
  int n_kept;
  struct closure *parent; /* of a repeatable executor: owns ctx and kept */
};

struct task {
  enum task_kind kind;
  struct task *next; /* in a queue or a captured stream */
  struct group *group;
  union {
    struct closure *op;
    struct {
      uint64_t dst, src; /* device address, or a host address */
      bool dst_device, src_device;
      bool dst_pinned, src_pinned;
      size_t dpitch, spitch, width, height;
      uint64_t dst_block, src_block;
      uint64_t sum; /* of the host source, when enqueued */
      bool has_sum;
    } copy;
    struct {
      uint64_t dst, block;
      int value;
      size_t n;
    } set;
    struct {
      struct event *event;
      uint64_t serial; /* of the event, to see that it was destroyed */
      uint64_t number; /* records of an event are counted; a wait waits for one */
      struct task *of; /* captured wait: the captured record */
      int index;       /* captured record: its bit of an execution */
      bool global;     /* captured, but of an external event */
    } event;
    struct {
      void (*fn)(void *);
      void *args;
    } host;
    struct {
      struct model *model;
      struct queue *queues; /* while it runs */
      int n_queues;
      bool *done; /* of captured records */
    } execute;
    struct {
      struct group *group;
      uint64_t group_serial;
      struct closure *op;
    } update;
  } u;
};

struct queue { /* FIFO; a stream's, or one captured stream's while its model runs */
  struct task *first, *last;
  int n;
  struct task *execution; /* the T_EXECUTE this belongs to */
  struct stream *stream;
  bool busy; /* its first task is being executed */
};

struct stream {
  struct object o;
  struct context *context;
  int id;
  bool is_default;
  unsigned flags;
  struct queue queue;
  int error; /* the first since the last wait */
  char error_text[512];
  bool stop_on_failure, stopped;
  struct branch *branch; /* capturing: where tasks go */
  struct group *group;   /* captured: the open task group */
  bool group_broken;
  struct group *updating; /* open update, and what came for it */
  struct closure *update_op;
  bool update_failed;
};

enum event_class { EVENT_PLAIN, EVENT_FLAG, EVENT_EX };
struct event {
  struct object o;
  struct context *context;
  enum event_class event_class;
  unsigned flags;
  bool set;                /* EVENT_FLAG */
  uint64_t recorded, done; /* numbers of records */
  double done_ms;          /* when the last was executed */
  struct model *model;     /* recorded in this capture */
  uint64_t model_serial;
  struct task *captured; /* the record */
};

/* ---- capture ----------------------------------------------------------------------------------------------------------------- */

struct branch { /* one stream of a captured model */
  struct model *model;
  struct stream *stream;
  struct task *first, *last;
  int n;
  struct branch *next;
};
struct model {
  struct object o;
  struct context *context;
  struct branch *branches; /* origin first */
  struct stream *origin;
  unsigned mode;
  pthread_t thread;
  int status; /* CAPTURE_ACTIVE, _INVALIDATED, _NONE: ready */
  int n_records;
  int n_tasks;
  int queue_streams; /* of the hardware: what it takes of the budget */
  int pending;       /* executions queued or running */
  struct stream *pending_on;
};
struct group {
  struct object o;
  struct model *model;
  uint64_t model_serial;
  struct task *task; /* the one operator */
  int n;
  struct stream *updated_by;
};

/* ---- memory -------------------------------------------------------------------------------------------------------------------- */

struct block {
  uint64_t address, serial;
  size_t n_bytes, taken; /* asked for; with rounding and tail */
  bool tail;
};
struct host_block {
  char *p;
  size_t n_bytes;
  bool registered; /* the caller's memory, only pinned */
};

/* ---- the state ----------------------------------------------------------------------------------------------------------------- */

enum { FAULTS_MAX = 32, CALLED_MAX = 512, DEVICES = 1, HARDWARE_QUEUE = 1024 };
struct fault_rule {
  char where[64];
  int left; /* 0: always */
  int code;
};
struct emu {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  struct acl_emu table;
  enum emu_chip chip;
  char soc[64], version[64];
  bool initialised, was_finalised, device_thread;
  int inits;
  /* modes */
  uint64_t budget;
  uint64_t random;
  int delay_us, delay_one_in, lazy, order;
  unsigned defects;
  int stream_limit, event_limit, hang_ms, quiet, trace, task_update;
  struct fault_rule faults[FAULTS_MAX];
  int n_faults;
  int lost;
  /* figures */
  struct acl_emu_counts counts;
  struct {
    char name[64];
    uint64_t n;
  } called[CALLED_MAX];
  uint64_t n_violations;
  char violation[512];
  char finalize_leaks[2048];
  /* state */
  struct context *primary; /* of device 0 */
  int set_devices;         /* aclrtSetDevice without aclrtResetDevice */
  int waiting;             /* threads that wait for tasks */
  int tokens;              /* lazy: tasks that may run all the same */
  uint64_t progress;       /* tasks executed */
  bool stuck;              /* the device looked for a task that may run, found none, and nothing has changed since */
  int n_pending;
  struct block *blocks;
  int n_blocks, cap_blocks;
  struct host_block *hosts;
  int n_hosts, cap_hosts;
  uint64_t base, limit, next; /* of device addresses */
  char *alias;
  int model_streams;
  int next_stream_id;
};
extern struct emu emu;

/* Of the calling thread. */
struct thread_state {
  struct context *context;
  uint64_t context_serial;
  unsigned capture_mode; /* the thread's; CAPTURE_GLOBAL at first */
  int last_error;
};
struct thread_state *emu_thread(void);

/* core.c */
enum { NEEDS_INIT = 1, NEEDS_CONTEXT = 2, REACHES_DEVICE = 4 };
/* Every function of the interface starts with it: counts, injected faults, a lost device, initialisation, a current context. 0 or the code.
 * Takes the lock and keeps it when it returns 0. */
int emu_enter(const char *name, unsigned needs);
int emu_leave(int rc);                                        /* gives the lock back */
int emu_say(int code, const char *fmt, ...) EMU_PRINTF(2, 3); /* the thread's text; returns code */
void emu_say_more(const char *fmt, ...) EMU_PRINTF(1, 2);
void emu_violate(const char *fmt, ...) EMU_PRINTF(1, 2); /* under the lock */
int emu_injected(const char *where);                     /* the code of a rule that is due, 0: none; under the lock */
bool emu_injected_op(const char *what, const char *op, int *code);
void emu_count_call(const char *name);
uint64_t emu_random(void); /* under the lock */
void emu_start(void);      /* once */
struct context *emu_context(void);
void leaks_locked(char *out, size_t n_bytes); /* what is alive, in words */
int emu_code(int code);                       /* what this CANN returns where newer ones have this code */

/* memory.c */
void memory_open(void);
struct block *block_find(uint64_t address, size_t n_bytes); /* the live one that holds all of it; NULL */
bool address_is_device(const void *p);
void *emu_reach(uint64_t address); /* where a device address can be reached */
struct host_block *host_find(const void *p, size_t n_bytes);
/* A pending task, or a model, that uses this range: "aclnnMm's out"; NULL: none. */
bool pending_uses(uint64_t address, size_t n_bytes, bool host, bool only_writes, char what[128]);
void count_copy(bool from_device, bool to_device, size_t n);
int check_pitches(const char *name, size_t dpitch, size_t spitch, size_t width, size_t height, unsigned kind);
uint64_t host_sum(const void *p, size_t spitch, size_t width, size_t height);

/* stream.c */
struct stream *stream_get(aclrtStream handle, int *rc); /* NULL handle: the context's default stream; checks its context */
struct task *task_new(enum task_kind kind);
void task_free(struct task *t);
/* Put the task where it belongs: the stream's queue, its capture. */
int stream_put(struct stream *s, struct task *t);
int stream_wait(struct stream *s, int timeout_ms); /* under the lock; returns the stored error */
struct stream *stream_new(struct context *c, unsigned flags);
void stream_delete(struct stream *s);
void device_start(void);
void device_wake(void); /* under the lock, after a change: there may be work */
typedef bool (*until_fn)(void *ctx);
/* Wait, with the lock, until the condition holds; false: for hang_ms no task could run, or timeout. */
bool wait_until(until_fn until, void *ctx, int timeout_ms);
/* Each range that a task touches. fn returns true to stop. */
struct range {
  const char *op, *name;
  uint64_t address;
  size_t n_bytes;
  bool host, writes;
};
bool task_ranges(const struct task *t, bool (*fn)(const struct range *r, void *ctx), void *ctx);
bool event_pending(const struct event *e);

/* capture.c */
int capture_put(struct stream *s, struct task *t);
/* A stream that is not captured waits for e: it joins the capture that recorded e, if one did. */
int capture_join(struct stream *s, struct event *e);
void capture_invalidate(struct model *m);
/* 0, or 107030 when a synchronous call is not allowed for this thread now. */
int capture_forbids(const char *what);
struct model *capture_blocks_async(void); /* a capture that is not relaxed and holds this thread */
void model_free(struct model *m);
void group_apply(struct task *update);

/* executor.c */
void closure_release(struct closure *c);
int closure_run(struct closure *c, bool replay, char text[512]); /* without the lock; 0 or the fault */
bool tensor_range(const struct emu_tensor *t, uint64_t *address, size_t *n_bytes);
#endif
