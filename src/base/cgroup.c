/* cgroup.c — finding the folders of this process's control groups.
 *
 * /proc/self/cgroup names the group relative to a hierarchy ("4:memory:/a/b", version 2: "0::/a/b"); /proc/self/mountinfo
 * says where each hierarchy is mounted and which part of it (root) the mount shows:
 *   31 23 0:28 /a /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
 *              root mount point                       type         super options
 * The folder is mount point + (group without root). A group outside root is not visible: then only the mount point is.
 */
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, LINE_BYTES = 2048 };

struct cgroup_place {
  char group[PATH_BYTES]; /* from /proc/self/cgroup; "" = not in this hierarchy */
  char root[PATH_BYTES];
  char mount[PATH_BYTES]; /* "" = not mounted */
};

bool cgroup_read(const char *folder, const char *name, char *buf, size_t buf_bytes) {
  char path[PATH_BYTES * 2];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (n < 0 || (size_t)n >= sizeof path) return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t got = 0;
  for (ssize_t r; got + 1 < buf_bytes && (r = read(fd, buf + got, buf_bytes - 1 - got)) > 0;) got += (size_t)r;
  close(fd);
  buf[got] = 0;
  return got > 0;
}

/* Is word one of the comma-separated words of list? */
static bool list_has(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *p = list; *p;) {
    size_t len = strcspn(p, ",");
    if (len == n && memcmp(p, word, n) == 0) return true;
    p += len;
    if (*p) p++;
  }
  return false;
}

/* "4:memory:/a/b": take the path if the controllers match; version 2 is the line without controllers. */
static void read_group_line(char *line, const char *controller, struct cgroup_place *v1, struct cgroup_place *v2) {
  char *controllers = strchr(line, ':');
  char *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path) return;
  *controllers++ = 0;
  *path++ = 0;
  if (*controllers == 0) snprintf(v2->group, sizeof v2->group, "%.*s", PATH_BYTES - 1, path);
  else if (list_has(controllers, controller)) snprintf(v1->group, sizeof v1->group, "%.*s", PATH_BYTES - 1, path);
}

static void read_mount_line(char *line, const char *controller, struct cgroup_place *v1, struct cgroup_place *v2) {
  char root[PATH_BYTES], mount[PATH_BYTES], type[16], options[PATH_BYTES];
  char *tail = strstr(line, " - ");
  if (!tail) return;
  *tail = 0;
  if (sscanf(line, "%*s %*s %*s %1023s %1023s", root, mount) != 2) return;
  if (sscanf(tail + 3, "%15s %*s %1023s", type, options) != 2) return;
  struct cgroup_place *place = NULL;
  if (strcmp(type, "cgroup2") == 0) place = v2;
  if (strcmp(type, "cgroup") == 0 && list_has(options, controller)) place = v1;
  if (!place || place->mount[0]) return;
  memcpy(place->root, root, sizeof root);
  memcpy(place->mount, mount, sizeof mount);
}

typedef void (*line_reader)(char *line, const char *controller, struct cgroup_place *v1, struct cgroup_place *v2);

static void read_lines(const char *proc_root, const char *name, line_reader reader, const char *controller, struct cgroup_place *v1,
                       struct cgroup_place *v2) {
  char path[PATH_BYTES], line[LINE_BYTES];
  int n = snprintf(path, sizeof path, "%s/self/%s", proc_root, name);
  FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
  if (!f) return;
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    reader(line, controller, v1, v2);
  }
  fclose(f);
}

/* The group as a path below the mount point: what follows root. "" when the mount shows exactly the group, or not at all. */
static const char *below_root(const struct cgroup_place *place) {
  size_t n = strcmp(place->root, "/") == 0 ? 0 : strlen(place->root);
  const char *group = place->group;
  if (strncmp(group, place->root, n) != 0 || (group[n] != '/' && group[n] != 0) || strstr(group, "/..")) return "";
  return strcmp(group + n, "/") == 0 ? "" : group + n;
}

static void visit_levels(const struct cgroup_place *place, int version, const char *sys_root, cgroup_visitor visit, void *ctx) {
  if (!place->mount[0] || !place->group[0]) return;
  char folder[PATH_BYTES * 3];
  bool in_sys = strncmp(place->mount, "/sys/", 5) == 0;
  int n_mount = snprintf(folder, sizeof folder, "%s%s", in_sys ? sys_root : "", in_sys ? place->mount + 4 : place->mount);
  if (n_mount < 0 || (size_t)n_mount >= sizeof folder) return;
  int n = snprintf(folder + n_mount, sizeof folder - (size_t)n_mount, "%s", below_root(place));
  if (n < 0 || (size_t)n >= sizeof folder - (size_t)n_mount) return;
  for (;;) {
    visit(ctx, folder, version);
    char *slash = strrchr(folder + n_mount, '/');
    if (!slash) return;
    *slash = 0;
  }
}

void cgroup_walk(const char *proc_root, const char *sys_root, const char *controller, cgroup_visitor visit, void *ctx) {
  struct cgroup_place v1 = {0}, v2 = {0};
  read_lines(proc_root, "cgroup", read_group_line, controller, &v1, &v2);
  read_lines(proc_root, "mountinfo", read_mount_line, controller, &v1, &v2);
  visit_levels(&v2, 2, sys_root, visit, ctx);
  visit_levels(&v1, 1, sys_root, visit, ctx);
}
