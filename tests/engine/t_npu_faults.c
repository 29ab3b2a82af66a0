/* t_npu_faults.c — an emulated NPU on which anything may fail: any call of CANN's interface, either phase of any operator, its execution, a wait, a
 * replay, at any moment, for good or once.
 *
 * Whatever it is: a request fails with a sentence or gives the answer that it gives without faults; or the engine does not open, with a sentence;
 * or the device is lost, and everybody is told. Nothing hangs, nothing is left on the device, and requests that come afterwards are answered rightly.
 *
 * CYGNET_FAULTS=N: that many engines with faults, of each profile; CYGNET_FAULTS_EVERY=N: see every_call; CYGNET_FAULT_SEED=N: begin with that one; CYGNET_TEST_PROFILE: that one
 * alone; CYGNET_FAULTS_LOUD=1: with the log, and a line for each engine.
 */
#include "engine/media_asking.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "compute/ascend/acl.h"
#include "npu.h"

enum { TRIPS = 3, IDS_MAX = 40, WATCHDOG_S = 600, HANG_MS = 1000, FAULTS_LESS = 6, FAULTS = 24, ENOUGH = 100 };

static const struct acl_emu *emu;

static int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

/* ---- faults ---------------------------------------------------------------------------------------------------------------------- */

struct fault {
  const char *where;
  int most;     /* it happens at a moment of 1 .. most */
  int codes[3]; /* 0 ends */
};
static const struct fault faults[] = {
    {"aclrtMalloc", 60, {207001, 207018}},
    {"aclrtMallocHost", 8, {207001}},
    {"aclrtFree", 40, {107000, 507899}},
    {"aclrtMemcpyAsync", 400, {107000, 107003, 507899}},
    {"aclrtMemcpy2dAsync", 200, {107000, 507899}},
    {"aclrtMemsetAsync", 40, {107000}},
    {"aclrtMemcpy", 10, {107030, 507899}},
    {"aclrtSetCurrentContext", 200, {107002, 107000}},
    {"aclrtSetDevice", 2, {107001, 507899}},
    {"aclrtGetDeviceCount", 2, {507899}},
    {"aclrtCreateStreamWithConfig", 2, {207008}},
    {"aclrtCreateEventWithFlag", 40, {207007}},
    {"aclrtCreateEventExWithFlag", 4, {207007}},
    {"aclrtRecordEvent", 200, {107000, 507899}},
    {"aclrtResetEvent", 40, {107000}},
    {"aclrtStreamWaitEvent", 60, {107000, 107003}},
    {"aclrtSynchronizeStreamWithTimeout", 200, {107020, 507046, 507000}},
    {"aclmdlRICaptureBegin", 3, {107027, 207008}},
    {"aclmdlRICaptureEnd", 3, {507903, 207005}},
    {"aclmdlRIExecuteAsync", 20, {107027, 507011}},
    {"aclmdlRICaptureTaskGrpBegin", 20, {107033, 107029}},
    {"aclmdlRICaptureTaskGrpEnd", 20, {107034, 107033}},
    {"aclmdlRICaptureTaskUpdateBegin", 60, {107033}},
    {"aclmdlRICaptureTaskUpdateEnd", 60, {507000, 107033}},
    {"aclmdlRIDestroy", 3, {107037}},
    {"aclCreateTensor", 2000, {1}},
    {"aclCreateIntArray", 100, {1}},
    {"any op", 2000, {161002, 561002, 561003}},
    {"any launch", 2000, {361001, 561000, 507899}},
    {"any run", 2000, {507015, 507035}},
    {"sync", 200, {507015, 507011, 507014}},
    {"replay", 20, {507011}},
};

static const char *random_fault(uint64_t *rng, int *n, int *code) {
  const struct fault *f = &faults[test_rand_int(rng, 0, (int)ARRAY_LEN(faults) - 1)];
  int n_codes = 0;
  while (n_codes < 3 && f->codes[n_codes]) n_codes++;
  *code = f->codes[test_rand_int(rng, 0, n_codes - 1)];
  /* early moments are as likely as late ones; now and then it is for good */
  *n = test_rand_int(rng, 0, 12) == 0 ? 0 : test_rand_int(rng, 1, test_rand_int(rng, 0, 1) ? f->most : MAX(1, f->most / 8));
  return f->where;
}

/* ---- one engine -------------------------------------------------------------------------------------------------------------------- */

struct ride {
  const struct scene *scene; /* NULL: text alone */
  struct trip trips[SCENE_CASES_MAX];
  int32_t ids[TRIPS][IDS_MAX];
  int n;
};

static void make_texts(struct ride *x, uint64_t *rng) {
  x->n = TRIPS;
  for (int i = 0; i < TRIPS; i++) {
    int n = test_rand_int(rng, 1, IDS_MAX);
    random_prompt(rng, x->ids[i], n);
    if (i > 0) memcpy(x->ids[i], x->ids[0], (size_t)test_rand_int(rng, 0, n) * sizeof x->ids[i][0]);
    x->trips[i].r = (struct cygnet_request){
        .prompt = x->ids[i], .n_prompt = (size_t)n, .max_tokens = test_rand_int(rng, 1, 5), .ignore_eos = 1, .logprobs = 1 + N_TOP};
  }
}

static void make_scene(struct ride *x, const struct scene *scene) {
  x->scene = scene;
  x->n = MIN(scene->n_cases, 3);
  for (int i = 0; i < x->n; i++) x->trips[i].r = scene_request(&scene->cases[i], 2 + i);
}

static struct cygnet *try_open(const struct ride *x, struct cygnet_options o, struct cygnet_error *e) {
  char folder[96];
  if (x->scene) snprintf(folder, sizeof folder, "golden/%s", x->scene->folder);
  o.model = x->scene ? test_path(folder) : narrow();
  o.threads = 1;
  o.ctx_tokens = 256;
  o.backend = "ascend";
  o.quiet = 1;
  return cygnet_open(&o, e);
}

static struct cygnet_options random_options(uint64_t *rng) {
  return (struct cygnet_options){.draft_tokens = test_rand_int(rng, 0, 1) ? -1 : 3,
                                 .chunk_tokens = test_rand_int(rng, 8, 40),
                                 .page_tokens = test_rand_int(rng, 0, 1) ? 16 : 128,
                                 .max_running = test_rand_int(rng, 1, 4),
                                 .disable_graph = test_rand_int(rng, 0, 3) == 0,
                                 .disable_prefix_cache = test_rand_int(rng, 0, 3) == 0};
}

struct outcomes {
  int n_right, n_failed, n_refused, n_lost, n_closed;
};

/* All at once. What came back is right, or an error with a sentence. */
static void ask_all(struct cygnet *c, struct ride *x, const char *what, struct outcomes *sum) {
  struct cygnet_error e = {0};
  for (int i = 0; i < x->n; i++) {
    struct answer *a = &x->trips[i].got;
    answer_init(a, &x->trips[i].r, false);
    a->number = cygnet_submit(c, &x->trips[i].r, &e);
    if (!a->number && !(cygnet_lost(c, NULL) && e.status == 503 && e.message[0])) fail_msg("%s: refused: %s", what, e.message);
    a->over = !a->number;
    sum->n_refused += a->over;
  }
  run(c);
  for (int i = 0; i < x->n; i++) {
    struct answer *a = &x->trips[i].got;
    if (!a->over) fail_msg("%s: request %d has no end", what, i);
    if (a->number && a->last.finish == CYGNET_FINISH_ERROR) {
      if (!a->last.error.message[0] || a->last.error.status < 500) fail_msg("%s: failed without a sentence", what);
      sum->n_failed++;
    } else if (a->number) {
      assert_alike(&x->trips[i].want, a, what);
      sum->n_right++;
    }
    answer_free(a);
  }
}

static void check_clean(const char *what) {
  if (emu->leaks()[0]) fail_msg("%s: left behind: %s", what, emu->leaks());
  if (emu->finalize_leaks()[0]) fail_msg("%s: left behind at the end: %s", what, emu->finalize_leaks());
  if (emu->violations()) fail_msg("%s: %s", what, emu->violation());
}

/* Opened, asked with the fault, asked without, closed. */
static void ride(struct ride *x, struct cygnet_options o, const char *where, int n, int code, bool at_open, const char *what,
                 struct outcomes *sum) {
  struct cygnet_error e = {0};
  int64_t begun = clock_ns();
  if (at_open) emu->fault(where, n, code);
  struct cygnet *c = try_open(x, o, &e);
  if (!c && !at_open) fail_msg("%s: %s", what, e.message);
  if (!c && !e.message[0]) fail_msg("%s: no sentence", what);
  sum->n_closed += !c;
  if (!at_open) emu->fault(where, n, code);
  if (c) {
    ask_all(c, x, what, sum);
    emu->fault(NULL, 0, 0);
    struct outcomes clean = {0};
    ask_all(c, x, what, &clean);
    if (cygnet_lost(c, NULL)) sum->n_lost++;
    else if (clean.n_right != x->n) fail_msg("%s: %d of %d are right afterwards", what, clean.n_right, x->n);
    cygnet_close(c);
  }
  check_clean(what);
  if (getenv("CYGNET_FAULTS_LOUD")) printf("%s: %s; %.1f s\n", emu->profile, what, clock_ms_since(begun) / 1e3);
}

static void ride_with_fault(struct ride *x, uint64_t seed, struct outcomes *sum) {
  uint64_t rng = seed;
  char what[256];
  struct cygnet_options o = random_options(&rng);
  emu->reset();
  emu->seed(seed);
  emu->delay_us(test_rand_int(&rng, 0, 7) ? 0 : 40);
  emu->hang_ms(HANG_MS);
  bool at_open = test_rand_int(&rng, 0, 3) == 0;
  int n, code;
  const char *where = random_fault(&rng, &n, &code);
  snprintf(what, sizeof what, "seed %llu%s: %s, time %d, code %d", (unsigned long long)seed, at_open ? ", while opening" : "", where, n,
           code);
  ride(x, o, where, n, code, at_open, what, sum);
}

/* ---- every call ------------------------------------------------------------------------------------------------------------------- */

/* Functions that give something back are not among them: what they fail to give back is left behind, and nobody can mend that. */
struct call {
  const char *where, *name;
  int code;
};
static const struct call calls[] = {
#define X(op, ...) {"op " #op, #op, 561002}, {"launch " #op, #op, 361001}, {"run " #op, #op, 507015},
    ACLNN_OPERATORS(X)
#undef X
#define X(returns, name, args) {#name, #name, 107000},
        ACL_REQUIRED(X) ACL_OPTIONAL(X) ACL_BASE(X)
#undef X
};
static bool gives_back(const char *name) {
  return strstr(name, "Destroy") || strstr(name, "Free") || strstr(name, "Finalize") || !strcmp(name, "aclrtResetDevice");
}

/* A request with a picture, from opening to closing: each function and each operator fails at one of its calls, or with CYGNET_FAULTS_EVERY=N at
 * every N-th of them. */
static void every_call(struct ride *x, struct outcomes *sum) {
  enum { CALLS = (int)ARRAY_LEN(calls) };
  static int n_calls[ARRAY_LEN(calls)];
  struct cygnet_options o = {.page_tokens = 16};
  int every = setting("CYGNET_FAULTS_EVERY", 0), number = 0;
  struct outcomes plain = {0};
  ride(x, o, "nothing", 1, 1, true, "without a fault", &plain); /* a first time, with what is done once for a process */
  emu->reset();
  ride(x, o, "nothing", 1, 1, true, "without a fault", &plain);
  emu->hang_ms(HANG_MS);
  assert_int_equal(plain.n_right, 2 * x->n);
  for (int i = 0; i < CALLS; i++) n_calls[i] = gives_back(calls[i].name) ? 0 : (int)emu->called(calls[i].name);
  for (int i = 0; i < CALLS; i++) {
    int step = every ? every : MAX(1, n_calls[i]);
    for (int n = 1 + (step - 1) / 2; n <= n_calls[i]; n += step) {
      char what[160];
      if (!every && number++ % (LESS ? 20 : 2)) continue;
      alarm(WATCHDOG_S);
      emu->reset();
      snprintf(what, sizeof what, "%s, time %d of %d", calls[i].where, n, n_calls[i]);
      ride(x, o, calls[i].where, n, calls[i].code, true, what, sum);
    }
  }
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------------------ */

static void on_alarm(int sig) {
  (void)sig;
  static const char text[] = "t_npu_faults: it hangs\n";
  (void)!write(STDOUT_FILENO, text, sizeof text - 1);
  abort();
}

/* What they say without faults. */
static void ask_plainly(struct ride *x) {
  struct cygnet_error e = {0};
  emu->reset();
  struct cygnet *c = try_open(x, (struct cygnet_options){.page_tokens = 16, .disable_prefix_cache = 1, .disable_graph = 1}, &e);
  if (!c) fail_msg("%s", e.message);
  for (int i = 0; i < x->n; i++) ask(c, &x->trips[i].r, &x->trips[i].want, false);
  cygnet_close(c);
  check_clean("no faults");
}

/* Every fault is a line in the log, which is right, and no use here: what the test itself says goes another way. */
static void hush(void) {
  FILE *loud = fdopen(dup(STDERR_FILENO), "w");
  int to = open("/dev/null", O_WRONLY);
  if (!loud || to < 0 || getenv("CYGNET_FAULTS_LOUD")) return;
  setvbuf(loud, NULL, _IONBF, 0);
  dup2(to, STDERR_FILENO);
  close(to);
  stderr = loud;
}

static void rides(void) {
  static struct ride texts, pictures[2];
  static const int which[] = {GEMMA3, MLLAMA};
  uint64_t rng = 1;
  struct outcomes sum = {0};
  struct device_look look;
  struct err e = {0};
  if (device_ascend_ops.look(0, &look, &e)) fail_msg("%s", e.msg); /* the backend finds CANN first, as it does without tests */
  emu = npu_emu();
  emu->quiet(1);
  int n = setting("CYGNET_FAULTS", LESS ? FAULTS_LESS : FAULTS), first = setting("CYGNET_FAULT_SEED", 1);
  if (!LESS) hush(); /* sanitizers speak there, too */
  make_texts(&texts, &rng);
  ask_plainly(&texts);
  for (int i = 0; i < 2; i++) {
    make_scene(&pictures[i], &scenes[which[i]]);
    ask_plainly(&pictures[i]);
  }
  signal(SIGALRM, on_alarm);
  for (int i = 0; i < n; i++) {
    int seed = first + i;
    alarm(WATCHDOG_S);
    ride_with_fault(seed % 6 == 5 ? &pictures[seed / 6 % 2] : &texts, (uint64_t)seed, &sum);
  }
  struct outcomes random = sum;
  if (!strcmp(emu->profile, "A2-8.5") || getenv("CYGNET_FAULTS_EVERY")) every_call(&pictures[0], &sum);
  alarm(0);
  printf("  %s: %d right, %d failed, %d refused; %d engines did not open, %d lost their device\n", emu->profile, sum.n_right, sum.n_failed,
         sum.n_refused, sum.n_closed, sum.n_lost);
  if (n >= ENOUGH) assert_true(random.n_right > 0 && random.n_failed > 0 && random.n_closed > 0 && random.n_lost > 0);
}

static void whatever_fails_somebody_is_told(void **state) {
  (void)state;
  const char *one = getenv("CYGNET_TEST_PROFILE");
  if (one) npu_profile(one, rides);
  else npu_each_profile(rides);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whatever_fails_somebody_is_told),
};
SCENES_MAIN(tests)
