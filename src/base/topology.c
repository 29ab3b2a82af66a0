/* topology.c — reading /sys/devices/system/node.
 *
 *   node/online, node/has_memory   lists of nodes       (has_memory is missing in old kernels: then all have some)
 *   node/nodeN/cpulist             CPUs of node N, without those that are offline
 *   node/nodeN/distance            to each node that is online, ascending by number: "10 21 31"
 *   cpu/online                     list of CPUs
 */
#include "base/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"

enum { PATH_BYTES = 1024, LIST_BYTES = 4096, NODES_SEEN_MAX = 1024 /* the kernel's own bound */ };

/* A list in folder/name; false when there is none. */
static bool read_list(struct cpu_set_bits *s, const char *folder, const char *name) {
  char text[LIST_BYTES];
  if (!cgroup_read(folder, name, text, sizeof text)) return false;
  cpus_parse(s, text);
  return true;
}

static bool is_subset(const struct cpu_set_bits *part, const struct cpu_set_bits *whole) {
  for (size_t i = 0; i < ARRAY_LEN(part->bits); i++)
    if (part->bits[i] & ~whole->bits[i]) return false;
  return true;
}

/* The nearest node that has memory; -1 if the distances do not tell. */
static int nearest_memory(const char *folder, const struct cpu_set_bits *online, const struct cpu_set_bits *with_memory) {
  char text[LIST_BYTES];
  long best = 0;
  int nearest = -1;
  if (!cgroup_read(folder, "distance", text, sizeof text)) return -1;
  const char *p = text;
  for (int node = 0; node < NODES_SEEN_MAX; node++) {
    if (!cpus_has(online, node)) continue;
    char *end;
    long distance = strtol(p, &end, 10);
    if (end == p) break;
    p = end;
    if (!cpus_has(with_memory, node) || (nearest >= 0 && distance >= best)) continue;
    nearest = node;
    best = distance;
  }
  return nearest;
}

/* The entry of node id, made where it belongs; NULL when there are too many. */
static struct topology_node *entry_of(struct topology *t, int id) {
  int at = 0;
  while (at < t->n_nodes && t->nodes[at].id < id) at++;
  if (at < t->n_nodes && t->nodes[at].id == id) return &t->nodes[at];
  if (t->n_nodes == TOPOLOGY_NODES_MAX) return NULL;
  memmove(&t->nodes[at + 1], &t->nodes[at], (size_t)(t->n_nodes - at) * sizeof t->nodes[0]);
  t->n_nodes++;
  t->nodes[at] = (struct topology_node){.id = id};
  return &t->nodes[at];
}

/* All nodes with CPUs of `cpus`; false when the files do not account for every one of them. */
static bool read_nodes(struct topology *t, const char *node_root, const struct cpu_set_bits *cpus) {
  struct cpu_set_bits online, with_memory, here;
  int n_found = 0;
  if (!read_list(&online, node_root, "online")) return false;
  if (!read_list(&with_memory, node_root, "has_memory")) with_memory = online;
  for (int node = 0; node < NODES_SEEN_MAX; node++) {
    char folder[PATH_BYTES];
    if (!cpus_has(&online, node)) continue;
    int n = snprintf(folder, sizeof folder, "%s/node%d", node_root, node);
    if (n < 0 || (size_t)n >= sizeof folder || !read_list(&here, folder, "cpulist")) continue;
    for (size_t i = 0; i < ARRAY_LEN(here.bits); i++) here.bits[i] &= cpus->bits[i];
    int n_here = cpus_count(&here), home = cpus_has(&with_memory, node) ? node : -1;
    if (n_here == 0) continue;
    if (home < 0) home = nearest_memory(folder, &online, &with_memory);
    struct topology_node *entry = home < 0 ? NULL : entry_of(t, home);
    if (!entry) return false;
    for (size_t i = 0; i < ARRAY_LEN(here.bits); i++) entry->cpus.bits[i] |= here.bits[i];
    n_found += n_here;
  }
  return n_found == cpus_count(cpus);
}

void topology_read(struct topology *t, const char *sys_root, const struct cpu_set_bits *mask) {
  char cpu_root[PATH_BYTES], node_root[PATH_BYTES];
  struct cpu_set_bits online;
  memset(t, 0, sizeof *t);
  snprintf(cpu_root, sizeof cpu_root, "%s/devices/system/cpu", sys_root);
  snprintf(node_root, sizeof node_root, "%s/devices/system/node", sys_root);
  bool known = read_list(&online, cpu_root, "online") && is_subset(&online, mask) && read_nodes(t, node_root, &online) && t->n_nodes > 1;
  if (!known) {
    memset(t, 0, sizeof *t);
    t->n_nodes = 1;
    return;
  }
  for (int k = 0; k < t->n_nodes; k++) t->nodes[k].n_cores = cpus_cores(sys_root, &t->nodes[k].cpus);
}

void topology_threads(const struct topology *t, int n_threads, int first[TOPOLOGY_NODES_MAX + 1]) {
  int64_t cores = 0, before = 0;
  for (int k = 0; k < t->n_nodes; k++) cores += MAX(t->nodes[k].n_cores, 1);
  for (int k = 0; k < t->n_nodes; k++) {
    first[k] = (int)(n_threads * before / cores);
    before += MAX(t->nodes[k].n_cores, 1);
  }
  first[t->n_nodes] = n_threads;
}
