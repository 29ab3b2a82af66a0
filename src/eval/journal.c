/* journal.c — a log that can be continued. */
#include "eval/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "files/json.h"
#include "files/map.h"

static char *shown(const json_t *v, char *out, size_t n) {
  char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
  str_escape(str_c(text ? text : "nothing"), out, n);
  free(text);
  return out;
}

/* The first thing in which two headers differ. */
static int compare(const char *label, const json_t *there, const json_t *here, struct err *e) {
  const char *key;
  json_t *v;
  char a[80], b[80];
  json_object_foreach((json_t *)here, key, v) {
    const json_t *old = json_object_get(there, key);
    bool same = json_is_number(v) && json_is_number(old) ? json_number_value(v) == json_number_value(old)
                                                         : old && json_equal(v, (json_t *)old);
    if (!same)
      return err_set(e, ERR_BAD_INPUT, "--log: %s is of another run: its %s is %s, here it is %s. Give another file", label, key,
                     shown(old, a, sizeof a), shown(v, b, sizeof b));
  }
  return 0;
}

/* Lines that are whole; *n_bytes: up to the end of the last one. */
static int read_lines(const char *path, const json_t *header, int (*seen)(void *, const json_t *, struct err *), void *ctx, size_t *n_bytes,
                      struct err *e) {
  struct map m;
  char label[200], what[240];
  int status = 0, line = 0;
  *n_bytes = 0;
  if (map_open(&m, path, e)) return err_prefix(e, "--log");
  path_label(path, label);
  const char *p = (const char *)m.data, *end = p + m.n_bytes;
  for (const char *stop; !status && p < end && (stop = memchr(p, '\n', (size_t)(end - p))) != NULL; p = stop + 1) {
    line++;
    snprintf(what, sizeof what, "--log: %s: line %d", label, line);
    json_t *v = json_load_text(p, (size_t)(stop - p), true, what, e);
    if (!v || !json_is_object(v) || (line == 1 && !json_object_get(v, "eval")))
      status = err_set(e, ERR_BAD_INPUT, "%s is not of such a log: give another file", what);
    else if (line == 1) status = compare(label, v, header, e);
    else if (seen(ctx, v, e)) status = err_prefix(e, "%s", what);
    json_decref(v);
    *n_bytes = (size_t)(stop + 1 - (const char *)m.data);
  }
  if (!status && line == 0 && m.n_bytes) {
    static const char begin[] = "{\"eval\":"; /* the very first line was cut */
    size_t n = MIN(m.n_bytes, sizeof begin - 1);
    if (memcmp(m.data, begin, n)) status = err_set(e, ERR_BAD_INPUT, "--log: %s is not such a log: give another file", label);
  }
  map_close(&m);
  return status;
}

int journal_open(struct journal *j, const char *path, const json_t *header, int (*seen)(void *, const json_t *, struct err *), void *ctx,
                 struct err *e) {
  char label[200];
  struct stat st;
  size_t whole = 0;
  *j = (struct journal){.fd = -1};
  if (!path) return 0;
  path_label(path, label);
  j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (j->fd < 0 || fstat(j->fd, &st)) {
    err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_BAD_FILE, "--log: %s: %s", label, strerror(errno));
    journal_close(j);
    return -1;
  }
  j->path = xstrdup(label);
  int status = 0;
  if (!S_ISREG(st.st_mode)) status = err_set(e, ERR_BAD_INPUT, "--log: %s is no file", label);
  else if (flock(j->fd, LOCK_EX | LOCK_NB)) status = err_set(e, ERR_BAD_INPUT, "--log: %s is being written by another program", label);
  else if (st.st_size) status = read_lines(path, header, seen, ctx, &whole, e);
  if (!status && (off_t)whole < st.st_size && ftruncate(j->fd, (off_t)whole))
    status = err_set(e, ERR_IO, "--log: %s: %s", label, strerror(errno));
  if (!status && whole == 0) status = journal_add(j, header, e);
  if (status) journal_close(j);
  return status;
}

int journal_add(struct journal *j, const json_t *line, struct err *e) {
  if (j->fd < 0) return 0;
  struct buf b;
  int status = 0;
  buf_init(&b, 0);
  json_put(&b, line);
  buf_putc(&b, '\n');
  for (size_t at = 0; at < b.len && !status;) {
    ssize_t n = write(j->fd, b.data + at, b.len - at);
    if (n > 0) at += (size_t)n;
    else if (n < 0 && errno != EINTR) status = err_set(e, ERR_IO, "--log: %s: %s", j->path, strerror(errno));
  }
  buf_free(&b);
  return status;
}

void journal_close(struct journal *j) {
  if (j->fd >= 0) close(j->fd);
  free(j->path);
  *j = (struct journal){.fd = -1};
}
