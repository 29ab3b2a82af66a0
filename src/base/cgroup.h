/* cgroup.h — the control groups this process lives in, version 1 and 2, from its own group up to the outermost visible.
 *
 * A container's limit may stand at any level of the tree, so whoever wants to know "how much may I use" looks at all of
 * them and takes the smallest. The roots replace "/proc" and "/sys" (tests use made-up trees).
 */
#ifndef CYGNET_CGROUP_H
#define CYGNET_CGROUP_H

#include "base/base.h"

/* One folder that may hold limit files of the controller; version is 1 or 2. */
typedef void (*cgroup_visitor)(void *ctx, const char *folder, int version);

/* Visit every level, innermost first, for one controller ("cpu", "memory"). Nothing is visited where there are none. */
void cgroup_walk(const char *proc_root, const char *sys_root, const char *controller, cgroup_visitor visit, void *ctx);

/* Read a small text file folder/name, NUL terminated and cut to fit. Returns false when it cannot be read or is empty. */
bool cgroup_read(const char *folder, const char *name, char *buf, size_t buf_bytes);

#endif
