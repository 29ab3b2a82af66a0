/* gguf.h — one GGUF file: header, metadata, tensor table. Versions 2 and 3, little-endian.
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_kv
 *   n_kv ×      string key   u32 type   value            string = u64 n, n bytes; array = u32 type, u64 n, n values
 *   n_tensors × string name  u32 n_dims  u64 ne[n_dims]  u32 ggml type  u64 offset
 *   padding to general.alignment (default 32), then the data; offsets count from there
 *
 * ne is fastest first: ne[0] is a row's length. We turn it into shape, slowest first: a linear weight is [out, in].
 *
 * Everything is checked while it is read, in one pass and without allocating by a count that the file only claims: counts
 * are compared with the bytes left first. Refused, with key or tensor named: zero or overflowing dimensions, more than 4,
 * unknown tensor types, rows that are no multiple of the block, data outside the file, overlapping or unaligned data,
 * empty, duplicate or non-UTF-8 names, nested arrays, strings past the end, big-endian files, a file cut short
 * ("file has N bytes, needs M").
 * Keys and names borrow from the map; the map must outlive the gguf.
 */
#ifndef CYGNET_GGUF_H
#define CYGNET_GGUF_H

#include "base/dtype.h"
#include "files/map.h"

enum gguf_type { /* as in the file */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64,
                 GGUF_TYPE_COUNT
};

enum { GGUF_KV_MAX = 65536, GGUF_TENSORS_MAX = 131072, GGUF_DIMS_MAX = 4, GGUF_NAME_BYTES_MAX = 255 };

struct gguf_kv {
  struct str key;
  enum gguf_type type; /* of the value, or of the array's elements */
  bool is_array;
  uint64_t n;               /* elements; 1 for a scalar */
  const unsigned char *raw; /* first element in the map; strings in their length-prefixed form */
  size_t raw_bytes;
};

struct gguf_tensor {
  struct str name;
  int n_dims;
  int64_t shape[4]; /* slowest first; [n_dims..] unused */
  enum dtype dtype;
  const void *data; /* in the map */
  size_t n_bytes;
};

struct gguf {
  const struct map *map; /* borrows */
  uint32_t version;
  size_t alignment;
  struct gguf_kv *kv; /* sorted by key */
  size_t n_kv;
  struct gguf_tensor *tensors; /* in file order */
  size_t n_tensors;
  const struct gguf_tensor **by_name; /* the same, sorted by name */
};

int gguf_open(struct gguf *g, const struct map *map, struct err *e);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL if absent */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
const char *gguf_type_name(enum gguf_type t); /* "uint32" */

/* Typed getters. Return 1 and fill *out when present, 0 when absent (out untouched), -1 and *e when present with a type
 * or value that does not fit ("key gemma3.block_count: expected an unsigned integer, file has string"). Integers of any
 * width convert when the value fits; to a float, f32, f64 (finite) and integers. */
int gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e);
int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *e);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_str(const struct gguf *g, const char *key, struct str *out, struct err *e);
/* Element i of an array (or of a scalar, i = 0). CHECKs i < n. The kv's type must be an integer, float or bool. */
int64_t gguf_kv_int(const struct gguf_kv *kv, uint64_t i);
double gguf_kv_float(const struct gguf_kv *kv, uint64_t i);
/* Walk an array of strings from *cursor (start with NULL): next element. */
struct str gguf_kv_next_string(const struct gguf_kv *kv, const unsigned char **cursor);

#endif
