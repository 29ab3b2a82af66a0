/* safetensors.h — a safetensors checkpoint: one file, or shards named by model.safetensors.index.json.
 *
 *   u64 n   n bytes of JSON {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}   data
 *
 * Checked: header length against the file, JSON depth and duplicate names, known dtypes (all of the format are
 * carried, only F32, F16 and BF16 become weights), begin <= end <= size, product of shape × element size = end - begin, no overlap
 * or gap, shard names without path separators, every tensor of the index present in its shard and in no other.
 */
#ifndef CYGNET_SAFETENSORS_H
#define CYGNET_SAFETENSORS_H

#include "base/dtype.h"
#include "files/map.h"

struct st_tensor {
  char *name;            /* owned */
  enum dtype dtype;      /* DTYPE_NONE for types of the format that dtype.h lacks (F8_E4M3, I16, ...) */
  const char *type_name; /* as in the file: "BF16"; static */
  int n_dims;
  int64_t shape[8];
  const void *data; /* in a map; aligned as in the file, which may be not at all */
  size_t n_bytes;
  int shard;
};

struct safetensors {
  struct map *maps; /* one per shard, owned */
  int n_maps;
  struct st_tensor *tensors; /* sorted by name */
  size_t n_tensors;
};

/* path: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json. */
int safetensors_open(struct safetensors *s, const char *path, struct err *e);
/* One file that is in memory already. Takes *m, also on failure. */
int safetensors_from_map(struct safetensors *s, struct map *m, struct err *e);
void safetensors_close(struct safetensors *s);
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);

/* Write tensors (logits, tests), wider elements first so that every tensor is aligned. Names are escaped; data is borrowed. */
struct st_write {
  const char *name;
  enum dtype dtype; /* F32, I32, I64, U8, BF16, F16 */
  int n_dims;
  int64_t shape[4];
  const void *data;
};
int safetensors_write(const char *path, const struct st_write *t, int n, struct err *e);

#endif
