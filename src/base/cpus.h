/* cpus.h — which CPUs this process may use, for workers.c. */
#ifndef CYGNET_CPUS_H
#define CYGNET_CPUS_H

/* Number of CPUs this process can keep busy at once: min(affinity mask, control group quota rounded up); at least 1. */
int cpus_usable(void);

#endif
