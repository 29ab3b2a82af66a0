/* weights_split.h — a GGUF of one or many parts, opened from any of them; private to this room.
 *
 * Parts are called NAME-00001-of-00003.gguf and carry split.no (from 0) and split.count; the first has the metadata.
 */
#ifndef CYGNET_WEIGHTS_SPLIT_H
#define CYGNET_WEIGHTS_SPLIT_H

#include "files/gguf.h"

enum { SPLIT_PARTS_MAX = 1024 };

struct gguf_set {
  struct map *maps; /* owned; parts[i].map points into it */
  struct gguf *parts;
  int n_parts;
};

int gguf_set_open(struct gguf_set *s, const char *path, struct err *e);
void gguf_set_close(struct gguf_set *s);

#endif
