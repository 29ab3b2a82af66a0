/* cpus.h — which CPUs this process may use, for workers.c and topology.c. */
#ifndef CYGNET_CPUS_H
#define CYGNET_CPUS_H

#include "base/base.h"

enum { CPUS_MAX = 8192 };

struct cpu_set_bits {
  uint64_t bits[CPUS_MAX / 64];
};
static inline bool cpus_has(const struct cpu_set_bits *s, int cpu) { return s->bits[cpu / 64] >> (cpu % 64) & 1; }
static inline void cpus_add(struct cpu_set_bits *s, int cpu) { s->bits[cpu / 64] |= UINT64_C(1) << (cpu % 64); }
int cpus_count(const struct cpu_set_bits *s);

/* CPUs of a kernel's list, "0-3,8\n"; what is no list, and CPUs beyond CPUS_MAX, are left out. */
void cpus_parse(struct cpu_set_bits *s, const char *list);
/* The mask of the calling thread; CPU 0 where the system does not tell. */
void cpus_own_mask(struct cpu_set_bits *mask);
/* Physical cores that have a CPU in mask. sys_root replaces "/sys". */
int cpus_cores(const char *sys_root, const struct cpu_set_bits *mask);

/* Number of CPUs this process can keep busy at once: min(affinity mask, control group quota rounded up); at least 1. */
int cpus_usable(void);

#endif
