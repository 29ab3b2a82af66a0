/* map.h — a file as read-only memory, and a cursor that cannot leave it.
 *
 * Pages are shared with the page cache and never written. A file that shrinks while mapped would raise SIGBUS on access;
 * map_unchanged() is checked before a model is served, and map_open refuses what is not a regular file.
 */
#ifndef CYGNET_MAP_H
#define CYGNET_MAP_H

#include "base/base.h"
#include "base/err.h"
#include "base/str.h"

struct map {
  const unsigned char *data; /* NULL for an empty file */
  size_t n_bytes;
  char *path; /* owned */
  int64_t mtime_ns;
  bool mapped; /* data is a mapping that map_close undoes; false: plain memory of the caller (tests, fuzzing) */
};

int map_open(struct map *m, const char *path, struct err *e); /* ERR_NOT_FOUND, ERR_BAD_FILE (folder, device), ERR_IO */
void map_close(struct map *m);                                /* fine on a zeroed one */
bool map_unchanged(const struct map *m);                      /* same size and time on disk as when opened */
/* The path for messages: printable, and only its end when it is long. Returns text. */
const char *map_label(const struct map *m, char text[200]);
/* The same of any path. */
const char *path_label(const char *path, char text[200]);
/* Tell the system that [p, p+n) was read for the last time: its pages need not stay resident. */
void map_done_with(const struct map *m, const void *p, size_t n_bytes);

/* Little-endian reader over [p, end). After a read past the end `bad` is set and every later read gives 0. */
struct reader {
  const unsigned char *p, *end;
  bool bad;
};
uint8_t reader_u8(struct reader *r);
uint16_t reader_u16(struct reader *r);
uint32_t reader_u32(struct reader *r);
uint64_t reader_u64(struct reader *r);
float reader_f32(struct reader *r);
double reader_f64(struct reader *r);
struct str reader_bytes(struct reader *r, uint64_t n); /* borrows */
static inline size_t reader_left(const struct reader *r) { return r->bad ? 0 : (size_t)(r->end - r->p); }

#endif
