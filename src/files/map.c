/* map.c — read-only mappings and the bounded reader of map.h. */
#include "files/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

const char *path_label(const char *path, char text[200]) {
  size_t n = strlen(path), from = n;
  /* as much of the end as fits, escaped bytes taking four */
  for (size_t room = 199; from > 0; from--) {
    unsigned char c = (unsigned char)path[from - 1];
    size_t need = c >= 0x20 && c < 0x7f ? 1 : 4;
    if (need > room) break;
    room -= need;
  }
  if (from == 0) return str_escape(str_of(path, n), text, 200);
  memcpy(text, "...", 3);
  while (from < n && n - from > 49) from++; /* 49 bytes fit behind the dots however they are escaped */
  str_escape(str_of(path + from, n - from), text + 3, 197);
  return text;
}

const char *map_label(const struct map *m, char text[200]) { return path_label(m->path ? m->path : "(memory)", text); }

static int64_t mtime_of(const struct stat *st) { return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec; }

static const char *kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

int map_open(struct map *m, const char *path, struct err *e) {
  char label[200];
  *m = (struct map){0};
  path_label(path, label);
  /* O_NONBLOCK: opening a pipe must not wait for its writer */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return err_set(e, ERR_NOT_FOUND, "%s: no such file", label);
    return err_set(e, ERR_IO, "%s: cannot open: %s", label, strerror(errno));
  }
  struct stat st;
  int result = -1;
  if (fstat(fd, &st) != 0) {
    err_set(e, ERR_IO, "%s: cannot read its size: %s", label, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    err_set(e, ERR_BAD_FILE, "%s: expected a file, found %s", label, kind_of(st.st_mode));
  } else if ((uintmax_t)st.st_size > SIZE_MAX / 2) {
    err_set(e, ERR_TOO_LARGE, "%s: too large to be mapped: %ju bytes", label, (uintmax_t)st.st_size);
  } else {
    m->n_bytes = (size_t)st.st_size;
    m->mtime_ns = mtime_of(&st);
    result = 0;
    if (m->n_bytes) {
      void *p = mmap(NULL, m->n_bytes, PROT_READ, MAP_SHARED, fd, 0);
      if (p == MAP_FAILED) {
        result = err_set(e, errno == ENOMEM ? ERR_NO_MEMORY : ERR_IO, "%s: cannot map %zu bytes: %s", label, m->n_bytes, strerror(errno));
      } else {
        m->data = p;
        m->mapped = true;
      }
    }
  }
  close(fd);
  if (result == 0) m->path = xstrdup(path);
  else *m = (struct map){0};
  return result;
}

void map_close(struct map *m) {
  if (m->mapped) munmap((void *)(uintptr_t)m->data, m->n_bytes);
  free(m->path);
  *m = (struct map){0};
}

bool map_unchanged(const struct map *m) {
  if (!m->mapped && m->n_bytes) return true; /* plain memory has no file behind it */
  struct stat st;
  return m->path && stat(m->path, &st) == 0 && S_ISREG(st.st_mode) && (uintmax_t)st.st_size == m->n_bytes && mtime_of(&st) == m->mtime_ns;
}

void map_done_with(const struct map *m, const void *p, size_t n_bytes) {
  if (!m->mapped || !n_bytes) return;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  /* only pages that lie wholly inside: the others hold parts of neighbours */
  uintptr_t from = align_up((uintptr_t)p, page), to = ((uintptr_t)p + n_bytes) & ~(uintptr_t)(page - 1);
  if (from < to) madvise((void *)from, to - from, MADV_DONTNEED);
}

/* --- reader: the integers are put together byte by byte, so alignment and byte order of the machine do not matter ------- */

static const unsigned char *take(struct reader *r, uint64_t n) {
  if (r->bad || n > (uint64_t)(r->end - r->p)) {
    r->bad = true;
    return NULL;
  }
  const unsigned char *p = r->p;
  r->p += n;
  return p;
}

static uint64_t take_le(struct reader *r, int n) {
  const unsigned char *p = take(r, (uint64_t)n);
  uint64_t v = 0;
  for (int i = p ? n - 1 : -1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

uint8_t reader_u8(struct reader *r) { return (uint8_t)take_le(r, 1); }
uint16_t reader_u16(struct reader *r) { return (uint16_t)take_le(r, 2); }
uint32_t reader_u32(struct reader *r) { return (uint32_t)take_le(r, 4); }
uint64_t reader_u64(struct reader *r) { return take_le(r, 8); }
float reader_f32(struct reader *r) {
  uint32_t u = reader_u32(r);
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
double reader_f64(struct reader *r) {
  uint64_t u = reader_u64(r);
  double f;
  memcpy(&f, &u, sizeof f);
  return f;
}
struct str reader_bytes(struct reader *r, uint64_t n) {
  const unsigned char *p = take(r, n);
  return p ? str_of((const char *)p, (size_t)n) : str_of("", 0);
}
