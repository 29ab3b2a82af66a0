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

/* --- sets and cores ------------------------------------------------------------------------------------------------ */

int cpus_count(const struct cpu_set_bits *s) {
  int n = 0;
  for (size_t i = 0; i < ARRAY_LEN(s->bits); i++) n += __builtin_popcountll(s->bits[i]);
  return n;
}

void cpus_parse(struct cpu_set_bits *s, const char *list) {
  memset(s, 0, sizeof *s);
  for (const char *p = list; *p >= '0' && *p <= '9';) {
    int64_t from = leading_number(p, &p), to = from;
    if (*p == '-') to = leading_number(p + 1, &p);
    for (int64_t cpu = from; cpu >= 0 && cpu <= to && cpu < CPUS_MAX; cpu++) cpus_add(s, (int)cpu);
    if (*p == ',') p++;
  }
}

/* Smallest CPU in both; -1 if there is none. */
static int first_of_both(const struct cpu_set_bits *a, const struct cpu_set_bits *b) {
  for (size_t i = 0; i < ARRAY_LEN(a->bits); i++) {
    uint64_t both = a->bits[i] & b->bits[i];
    if (both) return (int)i * 64 + __builtin_ctzll(both);
  }
  return -1;
}

/* The smallest allowed CPU of a core stands for it. */
int cpus_cores(const char *sys_root, const struct cpu_set_bits *mask) {
  int cores = 0;
  for (int cpu = 0, seen = 0, n = cpus_count(mask); cpu < CPUS_MAX && seen < n; cpu++) {
    if (!cpus_has(mask, cpu)) continue;
    seen++;
    char folder[1024], list[1024];
    struct cpu_set_bits siblings = {0};
    int len = snprintf(folder, sizeof folder, "%s/devices/system/cpu/cpu%d/topology", sys_root, cpu);
    if (len > 0 && (size_t)len < sizeof folder && cgroup_read(folder, "thread_siblings_list", list, sizeof list))
      cpus_parse(&siblings, list);
    int first = first_of_both(&siblings, mask);
    cores += first < 0 || first == cpu; /* a CPU of unknown family counts as a core */
  }
  return MAX(cores, 1);
}

static int threads_in(const char *proc_root, const char *sys_root, const struct cpu_set_bits *mask, bool by_core) {
  int threads = by_core ? cpus_cores(sys_root, mask) : MAX(cpus_count(mask), 1);
  cgroup_walk(proc_root, sys_root, "cpu", visit_quota, &threads);
  return threads;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

void cpus_own_mask(struct cpu_set_bits *mask) {
  cpu_set_t set[CPUS_MAX / CPU_SETSIZE];
  memset(mask, 0, sizeof *mask);
  if (sched_getaffinity(0, sizeof set, set) != 0) {
    cpus_add(mask, 0); /* more CPUs than we can name, or no such call */
    return;
  }
  for (int cpu = 0; cpu < CPUS_MAX; cpu++)
    if (CPU_ISSET_S(cpu, sizeof set, set)) cpus_add(mask, cpu);
}

int cpus_usable(void) {
  struct cpu_set_bits mask;
  cpus_own_mask(&mask);
  return threads_in("/proc", "/sys", &mask, false);
}

int workers_default_threads(void) {
  struct cpu_set_bits mask;
  cpus_own_mask(&mask);
  return threads_in("/proc", "/sys", &mask, true);
}

int workers_threads_from(const char *proc_root, const char *sys_root, int n_affinity) {
  struct cpu_set_bits mask = {0};
  for (int cpu = 0; cpu < MIN(MAX(n_affinity, 1), CPUS_MAX); cpu++) cpus_add(&mask, cpu);
  return threads_in(proc_root, sys_root, &mask, true);
}
