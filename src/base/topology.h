/* topology.h — which CPUs lie at which memory: the nodes of a machine with several sockets, or several memory controllers that show as nodes.
 *
 * A node here is memory with the CPUs that this process may use next to it. CPUs of a node without memory count with the nearest that has some;
 * memory without CPUs counts with nobody; CPUs that are offline do not count.
 *
 * There are nodes only where they can be relied on: the process may use every CPU of the machine that is online, and these lie at two nodes
 * or more. Otherwise (one node, a narrower mask, files that are missing or odd, more nodes than we can name) n_nodes is 1: then nothing is bound,
 * and all is as on a machine with one memory. A second process with the same mask would bind to the same CPUs; one that may use the whole
 * machine has it to itself, as a rule.
 */
#ifndef CYGNET_TOPOLOGY_H
#define CYGNET_TOPOLOGY_H

#include "base/cpus.h"

enum { TOPOLOGY_NODES_MAX = 16 };

struct topology_node {
  int id;      /* the system's number; of its memory */
  int n_cores; /* physical */
  struct cpu_set_bits cpus;
};

struct topology {
  int n_nodes;                                    /* at least 1 */
  struct topology_node nodes[TOPOLOGY_NODES_MAX]; /* ascending by id; nothing is said of a single one */
};

/* mask: CPUs that may be used. sys_root replaces "/sys" (tests use made-up trees). */
void topology_read(struct topology *t, const char *sys_root, const struct cpu_set_bits *mask);

/* n_threads shared out over the nodes by their cores: those of node k are [first[k], first[k + 1]). */
void topology_threads(const struct topology *t, int n_threads, int first[TOPOLOGY_NODES_MAX + 1]);

#endif
