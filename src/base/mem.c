/* mem.c — memory of four lifetimes, and the hooks that make it fail on demand.
 *
 * The countdown of mem_fail_after is process-wide and atomic; the guard is a thread-local word. Both cost one load when
 * they are off.
 */
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"

static _Atomic int64_t fail_countdown;          /* calls until one fails; 0 = disarmed */
static _Thread_local const char *guarded_phase; /* NULL = allocation allowed */

static void check_guard(void) {
  if (!guarded_phase) return;
  char what[128];
  snprintf(what, sizeof what, "no allocation during %.90s", guarded_phase);
  check_failed(__FILE__, __LINE__, what);
}

/* Does this call have to fail? */
static bool count_down(void) {
  int64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (left > 0) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

void mem_fail_after(int64_t n) { atomic_store(&fail_countdown, MAX(n, 0)); }
bool mem_fail_pending(void) { return atomic_load(&fail_countdown) > 0; }
void mem_guard_begin(const char *phase) { guarded_phase = phase; }
void mem_guard_end(void) { guarded_phase = NULL; }

/* --- small ------------------------------------------------------------------------------------------------------- */

static _Noreturn void out_of_memory(size_t n_bytes) {
  char what[64], human[32];
  snprintf(what, sizeof what, "out of memory (%s more wanted)", mem_human(n_bytes, human));
  check_failed(__FILE__, __LINE__, what);
}

void *xmalloc(size_t n_bytes) {
  check_guard();
  void *p = malloc(MAX(n_bytes, (size_t)1));
  if (!p) out_of_memory(n_bytes);
  return p;
}

void *xcalloc(size_t n, size_t elem_bytes) {
  check_guard();
  size_t n_bytes;
  if (size_mul_overflows(n, elem_bytes, &n_bytes)) out_of_memory(SIZE_MAX);
  void *p = calloc(MAX(n_bytes, (size_t)1), 1);
  if (!p) out_of_memory(n_bytes);
  return p;
}

void *xrealloc(void *p, size_t n_bytes) {
  check_guard();
  void *q = realloc(p, MAX(n_bytes, (size_t)1));
  if (!q) out_of_memory(n_bytes);
  return q;
}

char *xstrdup(const char *s) { return xstrndup(s, strlen(s)); }

char *xstrndup(const char *s, size_t n) {
  char *copy = xmalloc(n + 1);
  if (n > 0) memcpy(copy, s, n);
  copy[n] = 0;
  return copy;
}

void *mem_try_alloc(size_t n_bytes) {
  check_guard();
  return count_down() ? NULL : calloc(MAX(n_bytes, (size_t)1), 1);
}

/* --- big --------------------------------------------------------------------------------------------------------- */

enum {
  HUGE_PAGE_BYTES = 2 << 20,
  SHARED_LEAST = 64 << 10, /* smaller blocks are mapped by themselves: a huge page for them would be mostly waste */
  SHARED_MOST = 4 << 20,   /* larger ones, too: most of them lies in huge pages of its own */
  SHARED_REGION = 8 << 20, /* mapped at once for blocks between the two */
  MEMORY_NODES_MAX = 64,   /* bits of a word */
  POLICY_INTERLEAVE = 3,   /* MPOL_INTERLEAVE of linux/mempolicy.h, which is not everywhere */
};

static size_t page_bytes(void) {
  long n = sysconf(_SC_PAGESIZE);
  return n > 0 ? (size_t)n : 4096;
}

static void *map(size_t n_bytes) { return mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

/* Map n_bytes (whole huge pages) at a multiple of the huge page, so that every one can be huge: map more, cut both ends. */
static void *map_huge(size_t n_bytes) {
  size_t more;
  if (size_add_overflows(n_bytes, HUGE_PAGE_BYTES, &more)) return MAP_FAILED;
  unsigned char *p = map(more);
  if (p == MAP_FAILED) return MAP_FAILED;
  size_t before = align_up((uintptr_t)p, HUGE_PAGE_BYTES) - (uintptr_t)p;
  size_t after = HUGE_PAGE_BYTES - before;
  if (before > 0) munmap(p, before);
  if (after > 0) munmap(p + before + n_bytes, after);
  madvise(p + before, n_bytes, MADV_HUGEPAGE); /* a wish: refusal only costs speed */
  return p + before;
}

/* What is mapped and not given out, behind some block: the end of its last huge page, or the rest of a region. Memory that was given out once
 * is never given out again, so all of it is still zero; blocks are unmapped one by one, whatever lies beside them. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *spare;
static size_t spare_bytes;

/* Keep the larger of two rests. The lock is held. */
static void keep_spare(unsigned char *p, size_t n_bytes) {
  unsigned char *less = n_bytes > spare_bytes ? spare : p;
  size_t less_bytes = MIN(n_bytes, spare_bytes);
  if (n_bytes > spare_bytes) {
    spare = p;
    spare_bytes = n_bytes;
  }
  if (less_bytes > 0) munmap(less, less_bytes);
}

/* n_bytes are whole pages. Large blocks begin at a huge page, smaller ones share some. */
static void *map_big(size_t n_bytes) {
  unsigned char *p = MAP_FAILED;
  if (n_bytes < SHARED_LEAST || n_bytes > SIZE_MAX - HUGE_PAGE_BYTES) return map(n_bytes);
  pthread_mutex_lock(&spare_lock);
  if (n_bytes < SHARED_MOST && n_bytes <= spare_bytes) {
    p = spare;
    spare += n_bytes;
    spare_bytes -= n_bytes;
  } else {
    size_t whole = n_bytes < SHARED_MOST ? SHARED_REGION : align_up(n_bytes, HUGE_PAGE_BYTES);
    p = map_huge(whole);
    if (p != MAP_FAILED) keep_spare(p + n_bytes, whole - n_bytes);
  }
  pthread_mutex_unlock(&spare_lock);
  return p == MAP_FAILED ? map(n_bytes) : p;
}

static int big_failed(size_t n_bytes, const char *what, struct err *e) {
  char human[32];
  return err_set(e, ERR_NO_MEMORY, "%s: cannot get %s: %s", what, mem_human(n_bytes, human), strerror(ENOMEM));
}

static bool take_at_once;
static uint64_t spread_nodes;
void mem_big_take_at_once(bool on) { take_at_once = on; }
void mem_big_spread(uint64_t nodes) { spread_nodes = nodes; }

/* Failing is no harm: then pages come when they are written. */
static void take_now(char *p, size_t n_bytes) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
  if (madvise(p, n_bytes, MADV_POPULATE_WRITE) == 0) return;
  for (size_t at = 0; at < n_bytes; at += page_bytes()) ((volatile char *)p)[at] = 0;
}

/* Failing is no harm here, either. */
static void spread(void *p, size_t n_bytes) {
  unsigned long nodes[MEMORY_NODES_MAX / (8 * sizeof(unsigned long))];
  memcpy(nodes, &spread_nodes, sizeof nodes);
  syscall(SYS_mbind, p, n_bytes, POLICY_INTERLEAVE, nodes, (unsigned long)MEMORY_NODES_MAX + 1, 0UL);
}

void *mem_big_alloc_local(size_t n_bytes, const char *what, struct err *e) {
  if (n_bytes == 0) return NULL;
  check_guard();
  size_t page = page_bytes();
  if (!count_down() && n_bytes <= SIZE_MAX - page) {
    void *p = map_big(align_up(n_bytes, page));
    if (p != MAP_FAILED) return p;
  }
  big_failed(n_bytes, what, e);
  return NULL;
}

void *mem_big_alloc(size_t n_bytes, const char *what, struct err *e) {
  void *p = mem_big_alloc_local(n_bytes, what, e);
  size_t whole = align_up(n_bytes, page_bytes());
  if (p && spread_nodes) spread(p, whole);
  if (p && take_at_once) take_now(p, whole);
  return p;
}

bool mem_huge_pages(const char *sys_root) {
  char text[128];
  return !cgroup_read(sys_root, "kernel/mm/transparent_hugepage/enabled", text, sizeof text) || !strstr(text, "[never]");
}

void mem_big_free(void *p, size_t n_bytes) {
  if (!p || n_bytes == 0) return;
  CHECK(munmap(p, align_up(n_bytes, page_bytes())) == 0);
}

/* --- arena ------------------------------------------------------------------------------------------------------- */

int arena_init(struct arena *a, size_t n_bytes, const char *what, struct err *e) {
  memset(a, 0, sizeof *a);
  if (n_bytes == 0) return 0;
  a->base = mem_big_alloc(n_bytes, what, e);
  if (!a->base) return -1;
  a->n_bytes = n_bytes;
  return 0;
}

void arena_free(struct arena *a) {
  mem_big_free(a->base, a->n_bytes);
  memset(a, 0, sizeof *a);
}

void *arena_alloc(struct arena *a, size_t n_bytes) {
  size_t at = align_up(a->used_bytes, 64);
  CHECK(at <= a->n_bytes && n_bytes <= a->n_bytes - at);
  a->used_bytes = at + n_bytes;
  a->peak_bytes = MAX(a->peak_bytes, a->used_bytes);
  return a->base ? a->base + at : NULL;
}

/* --- what there is ------------------------------------------------------------------------------------------------ */

const char *mem_human(size_t n_bytes, char buf[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double v = (double)n_bytes;
  size_t u = 0;
  while (v >= 1023.95 && u + 1 < ARRAY_LEN(units)) { /* 1023.95 KiB would print as 1024.0 KiB */
    v /= 1024;
    u++;
  }
  if (n_bytes < 1024) snprintf(buf, 32, "%zu B", n_bytes);
  else snprintf(buf, 32, "%.1f %s", v, units[u]);
  return buf;
}

/* The number after "key" at the start of a line of text; false if there is none. */
static bool number_after(const char *text, const char *key, uint64_t *out) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    unsigned long long v;
    if (strncmp(line, key, n) == 0 && sscanf(line + n, "%llu", &v) == 1) {
      *out = v;
      return true;
    }
  }
  return false;
}

static bool statm(unsigned long long *mapped_pages, unsigned long long *resident_pages) {
  char text[256];
  return cgroup_read("/proc/self", "statm", text, sizeof text) && sscanf(text, "%llu %llu", mapped_pages, resident_pages) == 2;
}

size_t mem_resident_bytes(void) {
  unsigned long long mapped, resident;
  return statm(&mapped, &resident) ? (size_t)resident * page_bytes() : 0;
}

size_t mem_peak_resident_bytes(void) {
  char text[4096];
  uint64_t kib;
  return cgroup_read("/proc/self", "status", text, sizeof text) && number_after(text, "VmHWM:", &kib) ? (size_t)kib * 1024 : 0;
}

/* What one control group leaves, the smallest so far in *ctx. File pages on the inactive list are counted as usage by the
 * kernel but given back before anything fails, so they do not count here (a model file just read would fill the group). */
static void visit_memory_limit(void *ctx, const char *folder, int version) {
  char text[8192];
  uint64_t *least = ctx, limit, usage, inactive = 0;
  if (!cgroup_read(folder, version == 2 ? "memory.max" : "memory.limit_in_bytes", text, sizeof text)) return;
  if (!number_after(text, "", &limit)) return; /* "max" */
  if (!cgroup_read(folder, version == 2 ? "memory.current" : "memory.usage_in_bytes", text, sizeof text)) return;
  if (!number_after(text, "", &usage)) return;
  if (cgroup_read(folder, "memory.stat", text, sizeof text))
    number_after(text, version == 2 ? "inactive_file " : "total_inactive_file ", &inactive);
  usage -= MIN(usage, inactive);
  *least = MIN(*least, limit - MIN(limit, usage));
}

size_t mem_available_bytes(void) {
  char text[4096];
  uint64_t least = SIZE_MAX, kib;
  if (cgroup_read("/proc", "meminfo", text, sizeof text) && number_after(text, "MemAvailable:", &kib)) least = kib * 1024;
  cgroup_walk("/proc", "/sys", "memory", visit_memory_limit, &least);
  struct rlimit space;
  unsigned long long mapped, resident;
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && statm(&mapped, &resident)) {
    uint64_t used = mapped * page_bytes();
    least = MIN(least, space.rlim_cur - MIN(space.rlim_cur, used));
  }
  return least == SIZE_MAX ? 0 : (size_t)least;
}
