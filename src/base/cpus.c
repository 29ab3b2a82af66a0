/* cpus.c — how many threads are worth having: the affinity mask, the quota of the control groups, the physical cores.
 *
 * Two hardware threads of one core share its multipliers: a second one on dense arithmetic adds waiting, not work.
 */
#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/str.h"
#include "base/workers.h"

enum { CPUS_MAX = 8192 };

struct cpu_mask {
  bool allowed[CPUS_MAX];
  int count;
};

static int min_threads(int a, int64_t b) { return b < a ? (int)MAX(b, 1) : a; }

/* --- quota ------------------------------------------------------------------------------------------------------- */

/* A whole number at the start of text, behind blanks; -1 if there is none ("max", or -1 itself: no limit). */
static int64_t leading_number(const char *text, const char **end) {
  while (*text == ' ' || *text == '\n') text++;
  size_t n = strspn(text, "0123456789");
  int64_t v = -1;
  if (!str_to_i64(str_of(text, n), 0, INT64_MAX, &v)) v = -1;
  if (end) *end = text + n;
  return v;
}

static void visit_quota(void *ctx, const char *folder, int version) {
  int *threads = ctx;
  char text[128], period_text[128];
  int64_t quota, period;
  if (version == 2) {
    const char *rest; /* "150000 100000", or "max 100000" */
    if (!cgroup_read(folder, "cpu.max", text, sizeof text)) return;
    quota = leading_number(text, &rest);
    period = leading_number(rest, NULL);
  } else {
    if (!cgroup_read(folder, "cpu.cfs_quota_us", text, sizeof text)) return;
    if (!cgroup_read(folder, "cpu.cfs_period_us", period_text, sizeof period_text)) return;
    quota = leading_number(text, NULL);
    period = leading_number(period_text, NULL);
  }
  if (quota <= 0 || period <= 0) return;
  *threads = min_threads(*threads, quota / period + (quota % period != 0));
}

/* --- cores ------------------------------------------------------------------------------------------------------- */

/* Smallest allowed CPU in "0,4" or "0-1,8-9"; -1 if the list has none. It stands for the whole core. */
static int first_allowed(const char *list, const struct cpu_mask *mask) {
  for (const char *p = list; *p >= '0' && *p <= '9';) {
    int64_t from = leading_number(p, &p), to = from;
    if (*p == '-') to = leading_number(p + 1, &p);
    for (int64_t cpu = from; cpu >= 0 && cpu <= to && cpu < CPUS_MAX; cpu++) {
      if (mask->allowed[cpu]) return (int)cpu;
    }
    if (*p == ',') p++;
  }
  return -1;
}

static int count_cores(const char *sys_root, const struct cpu_mask *mask) {
  int cores = 0;
  for (int cpu = 0, seen = 0; cpu < CPUS_MAX && seen < mask->count; cpu++) {
    if (!mask->allowed[cpu]) continue;
    seen++;
    char folder[1024], siblings[1024];
    int n = snprintf(folder, sizeof folder, "%s/devices/system/cpu/cpu%d/topology", sys_root, cpu);
    bool known = n > 0 && (size_t)n < sizeof folder && cgroup_read(folder, "thread_siblings_list", siblings, sizeof siblings);
    int first = known ? first_allowed(siblings, mask) : -1;
    if (first < 0 || first == cpu) cores++; /* a CPU of unknown family counts as a core */
  }
  return MAX(cores, 1);
}

static int threads_in(const char *proc_root, const char *sys_root, const struct cpu_mask *mask, bool by_core) {
  int threads = MAX(by_core ? count_cores(sys_root, mask) : mask->count, 1);
  cgroup_walk(proc_root, sys_root, "cpu", visit_quota, &threads);
  return threads;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

static void own_mask(struct cpu_mask *mask) {
  cpu_set_t set[CPUS_MAX / CPU_SETSIZE];
  memset(mask, 0, sizeof *mask);
  if (sched_getaffinity(0, sizeof set, set) != 0) {
    mask->allowed[0] = true; /* more CPUs than we can name, or no such call */
    mask->count = 1;
    return;
  }
  for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
    mask->allowed[cpu] = CPU_ISSET_S(cpu, sizeof set, set);
    mask->count += mask->allowed[cpu];
  }
}

int cpus_usable(void) {
  struct cpu_mask mask;
  own_mask(&mask);
  return threads_in("/proc", "/sys", &mask, false);
}

int workers_default_threads(void) {
  struct cpu_mask mask;
  own_mask(&mask);
  return threads_in("/proc", "/sys", &mask, true);
}

int workers_threads_from(const char *proc_root, const char *sys_root, int n_affinity) {
  struct cpu_mask mask = {.count = MIN(MAX(n_affinity, 1), CPUS_MAX)};
  for (int cpu = 0; cpu < mask.count; cpu++) mask.allowed[cpu] = true;
  return threads_in(proc_root, sys_root, &mask, true);
}
