/* npu.c — helpers of npu.h. */
#include "test.h"

#include "npu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const npu_profiles[NPU_PROFILES] = {"A2-8.1", "A2-8.5", "A2-9.1", "A3-9.1", "310P-8.5"};
enum { BODY_S = 1200 }; /* nothing takes a tenth of that where the machine is not shared: what is still there then hangs */
static const char *current;
static void (*current_body)(void);

const char *npu_current(void) { return current; }

/* ---- a real NPU: nothing can be switched, looked into or counted ---------------------------------------------------------- */

static const char *real_profile(void) {
  const char *name = getenv("NPU_REAL");
  return name && *name ? name : NULL;
}

static void no_number(uint64_t x) { (void)x; }
static void no_switch(int x) { (void)x; }
static void no_bits(unsigned x) { (void)x; }
static void no_limits(int streams, int events) { (void)streams, (void)events; }
static void no_fault(const char *where, int n, int code) { (void)where, (void)n, (void)code; }
static void no_counts(struct acl_emu_counts *out) { *out = (struct acl_emu_counts){0}; }
static uint64_t called_once(const char *name) { return (void)name, 1; }
static uint64_t no_violations(void) { return 0; }
static const char *no_text(void) { return ""; }
static void no_reset(void) {}
static int no_peek(const void *device, void *out, size_t n) { return (void)device, (void)out, (void)n, 0; }
static int no_poke(void *device, const void *in, size_t n) { return (void)device, (void)in, (void)n, 0; }
static int is_idle(void) { return 1; }

static const struct acl_emu no_emu = {
    .profile = "",
    .soc = "",
    .memory = no_number,
    .seed = no_number,
    .delay_us = no_switch,
    .lazy = no_switch,
    .other_order = no_switch,
    .defects = no_bits,
    .limits = no_limits,
    .hang_ms = no_switch,
    .quiet = no_switch,
    .task_update = no_switch,
    .fault = no_fault,
    .lose = no_switch,
    .counts = no_counts,
    .called = called_once,
    .violations = no_violations,
    .violation = no_text,
    .leaks = no_text,
    .finalize_leaks = no_text,
    .reset = no_reset,
    .peek = no_peek,
    .poke = no_poke,
    .idle = is_idle,
};

/* ---- profiles --------------------------------------------------------------------------------------------------------------- */

const char *npu_folder(const char *profile) {
  static char ring[8][4200], self[4000];
  static unsigned at;
  char *p = ring[at++ % 8];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  for (int i = 0; i < 2; i++) { /* the program's name, its room */
    char *cut = strrchr(self, '/');
    if (cut) *cut = 0;
  }
  snprintf(p, sizeof ring[0], "%s/acl_emu/%s", self, profile);
  return p;
}

const struct acl_emu *npu_emu(void) {
  static const struct acl_emu *emu;
  char path[4300];
  acl_emu_fn fn = NULL;
  if (emu || !current) return emu;
  if (real_profile()) return emu = &no_emu;
  snprintf(path, sizeof path, "%s/lib64/libascendcl.so", npu_folder(current));
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail_msg("%s", dlerror());
  *(void **)&fn = dlsym(library, "acl_emu");
  if (!fn) fail_msg("%s has no acl_emu", path);
  return emu = fn();
}

bool npu_asked(void) {
  const char *backend = getenv("CYGNET_TEST_BACKEND");
  return backend && !strcmp(backend, "ascend");
}
void npu_use(void) {
  const char *profile = getenv("CYGNET_TEST_PROFILE");
  setenv("ASCEND_HOME_PATH", npu_folder(profile ? profile : "A2-8.5"), 1);
}

void npu_check_clean(void) {
  const struct acl_emu *e = npu_emu();
  if (e->violations()) fail_msg("%llu violations, the first: %s", (unsigned long long)e->violations(), e->violation());
  if (*e->leaks()) fail_msg("not freed: %s", e->leaks());
  assert_true(e->idle());
}

static void in_child(void **state) {
  (void)state;
  current_body();
}

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

void npu_profile(const char *profile, void (*body)(void)) {
  int status = 0;
  if (real_profile() && strcmp(real_profile(), profile)) return;
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) fail_msg("fork");
  if (!child) {
    char name[128];
    alarm(BODY_S);
    current = profile;
    current_body = body;
    if (!real_profile()) setenv("ASCEND_HOME_PATH", npu_folder(profile), 1);
    snprintf(name, sizeof name, "%s", profile);
    cmocka_set_test_filter(NULL);
    const struct CMUnitTest tests[] = {{name, in_child, NULL, NULL, NULL}};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fflush(NULL);
    if (!failed && __lsan_do_recoverable_leak_check) failed = __lsan_do_recoverable_leak_check();
    _exit(failed ? 1 : 0); /* what the parent registered for its exit is not the child's to do */
  }
  while (waitpid(child, &status, 0) < 0)
    ;
  if (WIFSIGNALED(status)) fail_msg("%s: signal %d", profile, WTERMSIG(status));
  if (WEXITSTATUS(status)) fail_msg("%s: failed, see above", profile);
}

/* Under sanitizers, which are several times as slow, the usual profile and the one without fused operators stand for all. */
static bool is_run(const char *profile) {
#ifdef CYGNET_DEBUG
  const char *all = getenv("NPU_ALL");
  return (all && !strcmp(all, "1")) || !strcmp(profile, "A2-8.5") || !strcmp(profile, "310P-8.5");
#else
  return profile != NULL;
#endif
}

void npu_each_profile(void (*body)(void)) {
  for (int i = 0; i < NPU_PROFILES; i++)
    if (is_run(npu_profiles[i])) npu_profile(npu_profiles[i], body);
}
