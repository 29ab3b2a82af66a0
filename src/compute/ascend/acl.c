/* acl.c — finding CANN: libraries, functions by name, aclInit once for the process, and return codes in words.
 *
 * All libraries come from the folder in which the first was found, and from the loader's path what is not there, so that two installations are
 * not mixed by accident. Of operators CANN has either a family of libraries or the one
 * big library; loading both in one process is forbidden.
 *
 * aclInit is counted: the first open calls it, the last close calls aclFinalize. acl_park leaves one open behind for the next acl_open to take over:
 * a process that only looks at the device first (planning memory) need not finalise CANN and start it again, which not every CANN survives.
 */
#include "compute/ascend/acl.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_open;     /* guarded by init_lock */
static bool is_parked; /* one of n_open belongs to nobody */
static bool init_ours; /* aclInit said 0, not that somebody else had called it */

/* ---- places ------------------------------------------------------------------------------------------------------------------ */

enum { PLACES_MAX = 4, PLACE_BYTES = 224 };

/* Folders in the order in which they are tried; "" is the loader's own path. */
static int list_places(char places[PLACES_MAX][PLACE_BYTES]) {
  const char *home = getenv("ASCEND_HOME_PATH");
  int n = 0;
  places[n++][0] = 0;
  if (home && *home && strlen(home) + 8 < PLACE_BYTES) snprintf(places[n++], PLACE_BYTES, "%s/lib64", home);
  snprintf(places[n++], PLACE_BYTES, "/usr/local/Ascend/cann/lib64");
  snprintf(places[n++], PLACE_BYTES, "/usr/local/Ascend/ascend-toolkit/latest/lib64");
  return n;
}

/* 1 when it was opened; place "" is the loader's path. */
static int open_library(struct acl *a, const char *place, const char *name) {
  char path[PLACE_BYTES + 64];
  snprintf(path, sizeof path, "%.223s%s%.40s", place, *place ? "/" : "", name);
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return 0;
  CHECK(a->n_libraries < (int)ARRAY_LEN(a->libraries));
  a->libraries[a->n_libraries++] = library;
  return 1;
}

/* The family of operators, or all in one; never both. How many. */
static int open_operators(struct acl *a, const char *place) {
  static const char *const family[] = {"libopapi_math.so", "libopapi_nn.so", "libopapi_transformer.so", "libopapi_legacy.so",
                                       "libopapi_cv.so"};
  int n = 0;
  for (size_t i = 0; i < ARRAY_LEN(family); i++) n += open_library(a, place, family[i]);
  return n ? n : open_library(a, place, "libopapi.so");
}

/* The folder of the first library: the loader may have found it on its path, or somebody may have loaded it before. */
static void find_origin(struct acl *a, const char *place) {
  char origin[PATH_MAX];
  snprintf(a->where, sizeof a->where, "%.223s", place);
  if (!*place && !dlinfo(a->libraries[0], RTLD_DI_ORIGIN, origin) && strlen(origin) < PLACE_BYTES)
    snprintf(a->where, sizeof a->where, "%.223s", origin);
}

/* dlerror's text, printable; of the call that failed last. */
static const char *loader_text(char *text, size_t n_bytes) {
  const char *why = dlerror();
  return str_escape(str_c(why ? why : "unknown reason"), text, n_bytes);
}

/* Why a place's library did not load, if it is there at all; else "". */
static const char *present_but(const char *place, const char *name, char *text, size_t n_bytes) {
  char path[PLACE_BYTES + 64], not_found[64];
  const char *why = dlerror(); /* begins with the name of what is missing */
  snprintf(path, sizeof path, "%.223s/%.40s", place, name);
  snprintf(not_found, sizeof not_found, "%.40s: cannot open", name);
  bool absent = *place ? access(path, F_OK) != 0 : !why || !strncmp(why, not_found, strlen(not_found));
  return absent ? "" : str_escape(str_c(why ? why : "unknown reason"), text, n_bytes);
}

/* The runtime's library of a place: 1 when it was opened, 0 when there is none, -1 with *e. Newer CANN has libacl_rt.so for it, beside the older
 * one or alone; where both are, either may lack functions. */
static int open_runtime(struct acl *a, const char *place, struct err *e) {
  static const char *const names[] = {"libascendcl.so", "libacl_rt.so"};
  char why[200];
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    if (open_library(a, place, names[i])) return 1;
    if (*present_but(place, names[i], why, sizeof why))
      return err_set(e, ERR_UNSUPPORTED, "CANN: %s is there but does not load: %s", names[i], why);
  }
  return 0;
}

static int find_libraries(struct acl *a, struct err *e) {
  char places[PLACES_MAX][PLACE_BYTES], why[200];
  int n = list_places(places), chosen = -1;
  for (int i = 0; i < n && chosen < 0; i++) {
    int opened = open_runtime(a, places[i], e);
    if (opened < 0) return -1;
    if (opened) chosen = i;
  }
  if (chosen < 0)
    return err_set(
        e, ERR_UNSUPPORTED,
        "CANN is not here: libascendcl.so, or libacl_rt.so, was looked for on the loader's path (LD_LIBRARY_PATH), in "
        "$ASCEND_HOME_PATH/lib64%s, %s and %s; install CANN and run its set_env.sh in this shell, or set ASCEND_HOME_PATH to its "
        "folder",
        getenv("ASCEND_HOME_PATH") ? "" : " (not set)", places[n - 2], places[n - 1]);
  find_origin(a, places[chosen]);
  open_library(a, a->where, "libacl_rt.so");
  if (!open_library(a, a->where, "libnnopbase.so") && !open_library(a, "", "libnnopbase.so"))
    return err_set(e, ERR_UNSUPPORTED, "CANN in %s: libnnopbase.so, which makes tensors, does not load: %s", a->where,
                   loader_text(why, sizeof why));
  if (!open_operators(a, a->where) && !open_operators(a, ""))
    return err_set(e, ERR_UNSUPPORTED,
                   "CANN in %s: no library of operators loads, neither libopapi_math.so and its like nor libopapi.so: %s", a->where,
                   loader_text(why, sizeof why));
  return 0;
}

/* ---- functions ---------------------------------------------------------------------------------------------------------------- */

static void *find_symbol(const struct acl *a, const char *name) {
  for (int i = 0; i < a->n_libraries; i++) {
    void *found = dlsym(a->libraries[i], name);
    if (found) return found;
  }
  return NULL;
}

/* to: where a function pointer stands; POSIX lets an object pointer be one. */
static void *find_into(const struct acl *a, const char *name, void *to) {
  void *found = find_symbol(a, name);
  memcpy(to, &found, sizeof found);
  return found;
}

/* An operator is both of its phases, or it is not there. */
static bool find_operator(struct acl *a, enum acl_op op, const char *name, void *phase_1) {
  char symbol[96];
  snprintf(symbol, sizeof symbol, "aclnn%sGetWorkspaceSize", name);
  void *first = find_into(a, symbol, phase_1);
  snprintf(symbol, sizeof symbol, "aclnn%s", name);
  if (first && find_into(a, symbol, &a->issue[op])) return true;
  memset(phase_1, 0, sizeof first);
  a->issue[op] = NULL;
  return false;
}

static int find_functions(struct acl *a, struct err *e) {
  char missing[256] = "";
  int n_missing = 0, n_operators = 0;
  size_t used = 0;
#define NEED(returns, name, args)                                                                                                          \
  if (!find_into(a, #name, &a->name) && n_missing++ < 6)                                                                                   \
    used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used ? ", " : "", #name);
  ACL_REQUIRED(NEED)
  ACL_BASE(NEED)
#undef NEED
#define X(returns, name, args) find_into(a, #name, &a->name);
  ACL_OPTIONAL(X)
#undef X
#define X(op, ...) n_operators += find_operator(a, ACL_OP_##op, #op, &a->op);
  ACLNN_OPERATORS(X)
#undef X
  if (n_missing)
    return err_set(e, ERR_UNSUPPORTED, "CANN in %s: %d functions that are needed are missing: %s%s; CANN 8.1 and newer have them", a->where,
                   n_missing, missing, n_missing > 6 ? ", ..." : "");
  if (n_operators == 0) return err_set(e, ERR_UNSUPPORTED, "CANN in %s: its libraries have none of the operators", a->where);
  return 0;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------ */

int acl_open(struct acl *a, struct err *e) {
  memset(a, 0, sizeof *a);
  if (find_libraries(a, e) || find_functions(a, e)) goto fail;
  pthread_mutex_lock(&init_lock);
  int rc = 0;
  if (is_parked) is_parked = false;
  else if (n_open++ == 0) {
    rc = a->aclInit(NULL);
    init_ours = rc == 0;
    if (rc == NPU_REPEAT_INITIALIZE) rc = 0;
    if (rc) n_open = 0;
  }
  pthread_mutex_unlock(&init_lock);
  if (rc == 0) return 0;
  char text[256];
  err_set(e, ERR_IO, "CANN in %s does not start: aclInit: %s", a->where, acl_error_text(a, rc, text));
fail:
  memset(a, 0, sizeof *a);
  return -1;
}

void acl_close(struct acl *a) {
  if (!a->aclFinalize) return;
  pthread_mutex_lock(&init_lock);
  if (--n_open == 0 && init_ours) a->aclFinalize();
  pthread_mutex_unlock(&init_lock);
  memset(a, 0, sizeof *a);
}

void acl_park(struct acl *a) {
  pthread_mutex_lock(&init_lock);
  bool parked = a->aclFinalize && !is_parked;
  if (parked) is_parked = true;
  pthread_mutex_unlock(&init_lock);
  if (parked) memset(a, 0, sizeof *a);
  else acl_close(a);
}

/* ---- words -------------------------------------------------------------------------------------------------------------------------- */

const char *acl_op_name(enum acl_op op) {
  static const char *const names[] = {
#define X(op, ...) "aclnn" #op,
      ACLNN_OPERATORS(X)
#undef X
  };
  return names[op];
}

static const struct {
  int code;
  const char *text;
} codes[] = {
    {100000, "invalid argument"},
    {100001, "not initialised"},
    {100002, "initialised before"},
    {100003, "invalid file"},
    {100029, "no kernel was found"},
    {107000, "invalid argument"},
    {107001, "no such device"},
    {107002, "no current context"},
    {107003, "the stream belongs to another context"},
    {107008, "address not aligned"},
    {107016, "wrong kind of memory"},
    {107017, "invalid handle"},
    {107018, "invalid kind of allocation"},
    {107019, "a wait took too long"},
    {107020, "a task took too long"},
    {107022, "the device's tasks were aborted"},
    {107023, "the stream was aborted"},
    {107024, "a captured stream waits for an event from outside"},
    {107025, "a stream that joined the capture was not joined back"},
    {107026, "the model is being captured"},
    {107027, "the stream is being captured"},
    {107028, "the event was recorded in a capture"},
    {107029, "the stream is not being captured"},
    {107030, "not allowed while a stream is captured"},
    {107031, "the default stream cannot be captured"},
    {107032, "captures conflict"},
    {107033, "wrong order of task groups"},
    {107034, "the task group was given up"},
    {107036, "not the stream that began the capture"},
    {107037, "the recorded model is running"},
    {107038, "not the thread that began the capture"},
    {107041, "a blocking copy while a stream is captured"},
    {200000, "out of memory"},
    {200001, "not supported"},
    {207000, "not supported"},
    {207001, "out of device memory"},
    {207002, "memory cannot be freed"},
    {207004, "no device"},
    {207005, "out of resources"},
    {207006, "no permission"},
    {207007, "out of events"},
    {207008, "out of streams"},
    {207010, "out of recorded models"},
    {207018, "the device is out of memory"},
    {500000, "internal error"},
    {507000, "internal error of the device"},
    {507002, "the stream is full"},
    {507009, "a task of this kind cannot be in a task group"},
    {507011, "a recorded step failed"},
    {507014, "an operator took too long"},
    {507015, "an operator failed on the device: bad address or index"},
    {507018, "an operator failed on the device's own processor"},
    {507034, "an operator took too long"},
    {507035, "an operator failed on the device: bad address or index"},
    {507046, "the stream did not end in time"},
    {507053, "the device's memory is damaged"},
    {507054, "the device's memory is damaged"},
    {507899, "internal error of the driver"},
    {507903, "the capture was given up"},
    {161001, "a tensor is missing"},
    {161002, "shapes, types or values that the operator refuses"},
    {361001, "runtime error"},
    {561000, "internal error"},
    {561001, "shapes do not fit together"},
    {561002, "this combination has no plan (tiling)"},
    {561003, "no kernel for this chip"},
    {561101, "no executor could be made"},
    {561103, "internal error"},
    {561107, "the operators' folder was not found (ASCEND_OPP_PATH)"},
    {561112, "the package of kernels for this chip is not installed"},
};

/* CANN's own text has several lines: they become one. */
const char *acl_error_text(const struct acl *a, int code, char text[256]) {
  const char *known = "unknown code", *own = a && a->aclGetRecentErrMsg ? a->aclGetRecentErrMsg() : NULL;
  for (size_t i = 0; i < ARRAY_LEN(codes); i++)
    if (codes[i].code == code) known = codes[i].text;
  int used = snprintf(text, 256, "%d: %s", code, known);
  char line[200];
  int n = 0;
  for (bool gap = false; own && *own && n < (int)sizeof line - 2; own++) {
    if (*own == ' ' || (*own >= '\t' && *own <= '\r')) gap = n > 0;
    else {
      if (gap) line[n++] = ' ';
      gap = false;
      line[n++] = *own;
    }
  }
  if (n == 0 || used > 200) return text;
  memcpy(text + used, " (", 3);
  str_escape(str_of(line, (size_t)n), text + used + 2, (size_t)(256 - used - 3));
  strcat(text, ")");
  return text;
}
