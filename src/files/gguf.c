/* gguf.c — reading a GGUF file in one pass; see gguf.h for the layout and for what is refused. */
#include "files/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGNMENT_MIN = 8, ALIGNMENT_MAX = 1 << 20, KEY_BYTES_MAX = 65535, STRING_HEAD = 8 };

/* Least bytes that one entry can take: what a claimed count is compared with. */
enum { KV_BYTES_MIN = 8 + 1 + 4 + 1, TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8 };

static const struct {
  const char *name;
  int n_bytes; /* 0: not of fixed size */
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"uint8", 1},    [GGUF_I8] = {"int8", 1},       [GGUF_U16] = {"uint16", 2},  [GGUF_I16] = {"int16", 2},
    [GGUF_U32] = {"uint32", 4},  [GGUF_I32] = {"int32", 4},     [GGUF_F32] = {"float32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_U64] = {"uint64", 8},  [GGUF_STRING] = {"string", 0}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"int64", 8},
    [GGUF_F64] = {"float64", 8},
};
const char *gguf_type_name(enum gguf_type t) { return types[t].name; }

static int str_order(struct str a, struct str b) {
  int order = memcmp(a.p, b.p, MIN(a.n, b.n));
  return order ? order : (a.n > b.n) - (a.n < b.n);
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

/* One file being read. text: room for one escaped name in a message. */
struct opening {
  struct gguf *g;
  struct reader r;
  struct err *e;
  char label[200], text[160];
};

static const char *shown(struct opening *o, struct str name) { return str_escape(name, o->text, sizeof o->text); }
static size_t position(const struct opening *o) { return (size_t)(o->r.p - o->g->map->data); }

static int cut_short(struct opening *o, const char *what, size_t index) {
  return err_set(o->e, ERR_BAD_FILE, "%s: file has %zu bytes and ends or is damaged inside %s %zu, at byte %zu", o->label,
                 o->g->map->n_bytes, what, index, position(o));
}

/* Length-prefixed name of a key or tensor. */
static int read_name(struct opening *o, const char *what, size_t index, size_t bytes_max, struct str *name) {
  uint64_t n = reader_u64(&o->r);
  if (!o->r.bad && n > bytes_max && n <= reader_left(&o->r))
    return err_set(o->e, ERR_BAD_FILE, "%s: %s %zu: expected a name of at most %zu bytes, found %llu", o->label, what, index, bytes_max,
                   (unsigned long long)n);
  *name = reader_bytes(&o->r, n);
  if (o->r.bad) return cut_short(o, what, index);
  if (name->n == 0) return err_set(o->e, ERR_BAD_FILE, "%s: %s %zu: its name is empty", o->label, what, index);
  if (!utf8_valid(name->p, name->n))
    return err_set(o->e, ERR_BAD_FILE, "%s: %s %zu: its name is not UTF-8: %s", o->label, what, index, shown(o, *name));
  if (memchr(name->p, 0, name->n))
    return err_set(o->e, ERR_BAD_FILE, "%s: %s %zu: its name contains NUL: %s", o->label, what, index, shown(o, *name));
  return 0;
}

static int read_header(struct opening *o, uint64_t *n_tensors, uint64_t *n_kv) {
  struct gguf *g = o->g;
  struct str magic = reader_bytes(&o->r, 4);
  if (!str_is(magic, "GGUF")) {
    size_t n = MIN(g->map->n_bytes, (size_t)4);
    return err_set(o->e, ERR_BAD_FILE, "%s: not a GGUF file: expected it to begin with \"GGUF\", found \"%s\" (%zu bytes in all)", o->label,
                   shown(o, n ? str_of((const char *)g->map->data, n) : str_of("", 0)), g->map->n_bytes);
  }
  g->version = reader_u32(&o->r);
  if (!o->r.bad && g->version != 2 && g->version != 3) {
    if ((g->version & 0xffff) == 0 && g->version)
      return err_set(o->e, ERR_UNSUPPORTED, "%s: expected a little-endian GGUF file, found a big-endian one", o->label);
    return err_set(o->e, ERR_UNSUPPORTED, "%s: expected GGUF version 2 or 3, found %u", o->label, g->version);
  }
  *n_tensors = reader_u64(&o->r);
  *n_kv = reader_u64(&o->r);
  if (o->r.bad)
    return err_set(o->e, ERR_BAD_FILE, "%s: file has %zu bytes, needs at least 24: it was cut short", o->label, g->map->n_bytes);
  /* Both at once: neither may claim more than the whole rest of the file. */
  const struct {
    const char *what;
    uint64_t n, least, max;
  } claims[] = {{"keys", *n_kv, KV_BYTES_MIN, GGUF_KV_MAX}, {"tensors", *n_tensors, TENSOR_BYTES_MIN, GGUF_TENSORS_MAX}};
  for (size_t i = 0; i < ARRAY_LEN(claims); i++) {
    if (claims[i].n > reader_left(&o->r) / claims[i].least)
      return err_set(o->e, ERR_BAD_FILE, "%s: claims %llu %s, but only %zu bytes follow: cut short or damaged", o->label,
                     (unsigned long long)claims[i].n, claims[i].what, reader_left(&o->r));
    if (claims[i].n > claims[i].max)
      return err_set(o->e, ERR_TOO_LARGE, "%s: expected at most %llu %s, found %llu", o->label, (unsigned long long)claims[i].max,
                     claims[i].what, (unsigned long long)claims[i].n);
  }
  return 0;
}

static int read_value(struct opening *o, struct gguf_kv *kv, size_t index) {
  uint32_t type = reader_u32(&o->r);
  kv->n = 1;
  kv->is_array = type == GGUF_ARRAY;
  if (kv->is_array) {
    type = reader_u32(&o->r);
    kv->n = reader_u64(&o->r);
    if (!o->r.bad && type == GGUF_ARRAY)
      return err_set(o->e, ERR_UNSUPPORTED, "%s: key %s: arrays of arrays are not supported", o->label, shown(o, kv->key));
  }
  if (o->r.bad) return cut_short(o, "key", index);
  if (type >= GGUF_TYPE_COUNT)
    return err_set(o->e, ERR_BAD_FILE, "%s: key %s: expected a value type from 0 to %d, found %u", o->label, shown(o, kv->key),
                   GGUF_TYPE_COUNT - 1, type);
  kv->type = (enum gguf_type)type;
  kv->raw = o->r.p;
  uint64_t least = type == GGUF_STRING ? STRING_HEAD : (uint64_t)types[type].n_bytes;
  if (kv->n > reader_left(&o->r) / least)
    return err_set(o->e, ERR_BAD_FILE, "%s: key %s: claims %llu elements of type %s, but only %zu bytes follow: cut short or damaged",
                   o->label, shown(o, kv->key), (unsigned long long)kv->n, types[type].name, reader_left(&o->r));
  if (type == GGUF_STRING) {
    for (uint64_t i = 0; i < kv->n && !o->r.bad; i++) reader_bytes(&o->r, reader_u64(&o->r));
    if (o->r.bad)
      return err_set(o->e, ERR_BAD_FILE, "%s: key %s: a string reaches past the end of the file (%zu bytes)", o->label, shown(o, kv->key),
                     o->g->map->n_bytes);
  } else {
    reader_bytes(&o->r, kv->n * least);
  }
  kv->raw_bytes = (size_t)(o->r.p - kv->raw);
  return 0;
}

static int compare_kv(const void *a, const void *b) {
  return str_order(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static int read_metadata(struct opening *o, size_t n_kv) {
  struct gguf *g = o->g;
  if (n_kv && !(g->kv = mem_try_alloc(n_kv * sizeof *g->kv))) return err_set(o->e, ERR_NO_MEMORY, "%s: no memory for its keys", o->label);
  for (; g->n_kv < n_kv; g->n_kv++) {
    struct gguf_kv *kv = &g->kv[g->n_kv];
    if (read_name(o, "key", g->n_kv, KEY_BYTES_MAX, &kv->key) != 0 || read_value(o, kv, g->n_kv) != 0) return -1;
  }
  if (n_kv) qsort(g->kv, n_kv, sizeof *g->kv, compare_kv);
  for (size_t i = 1; i < n_kv; i++)
    if (str_eq(g->kv[i - 1].key, g->kv[i].key))
      return err_set(o->e, ERR_BAD_FILE, "%s: key %s: present twice", o->label, shown(o, g->kv[i].key));
  g->alignment = 32;
  uint32_t alignment = 0;
  int found = gguf_u32(g, "general.alignment", &alignment, o->e);
  if (found < 0) return -1;
  if (found) {
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
      return err_set(o->e, ERR_BAD_FILE, "%s: key general.alignment: expected a power of two from %d to %d, found %u", o->label,
                     ALIGNMENT_MIN, ALIGNMENT_MAX, alignment);
    g->alignment = alignment;
  }
  return 0;
}

/* Everything of one tensor but its address. Until place_tensors has run, data is NULL and the offset is in *offset. */
static int read_tensor(struct opening *o, struct gguf_tensor *t, size_t index, uint64_t *offset) {
  if (read_name(o, "tensor", index, GGUF_NAME_BYTES_MAX, &t->name) != 0) return -1;
  uint32_t n_dims = reader_u32(&o->r);
  if (o->r.bad) return cut_short(o, "tensor", index);
  if (n_dims < 1 || n_dims > GGUF_DIMS_MAX)
    return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: expected 1 to %d dimensions, found %u", o->label, shown(o, t->name), GGUF_DIMS_MAX,
                   n_dims);
  t->n_dims = (int)n_dims;
  uint64_t ne[GGUF_DIMS_MAX];
  for (uint32_t i = 0; i < n_dims; i++) ne[i] = reader_u64(&o->r);
  uint32_t type = reader_u32(&o->r);
  *offset = reader_u64(&o->r);
  if (o->r.bad) return cut_short(o, "tensor", index);
  t->dtype = dtype_from_gguf(type);
  if (t->dtype == DTYPE_NONE)
    return err_set(o->e, ERR_UNSUPPORTED, "%s: tensor %s: %s is not supported", o->label, shown(o, t->name), dtype_gguf_name(type));
  size_t rows = 1;
  for (uint32_t i = 0; i < n_dims; i++) {
    if (ne[i] == 0 || ne[i] > INT64_MAX)
      return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: dimension %u is %llu, expected 1 to 2^63-1", o->label, shown(o, t->name), i,
                     (unsigned long long)ne[i]);
    t->shape[n_dims - 1 - i] = (int64_t)ne[i];
    if (i > 0 && size_mul_overflows(rows, (size_t)ne[i], &rows))
      return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: its dimensions multiply to more than 2^64", o->label, shown(o, t->name));
  }
  int block = dtype_info(t->dtype)->block_elems;
  if (ne[0] % (uint64_t)block)
    return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: expected rows of a multiple of %d elements (%s), found %llu", o->label,
                   shown(o, t->name), block, dtype_info(t->dtype)->name, (unsigned long long)ne[0]);
  size_t row_bytes;
  if (!dtype_row_bytes(t->dtype, (size_t)ne[0], &row_bytes) || size_mul_overflows(row_bytes, rows, &t->n_bytes))
    return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: its dimensions multiply to more than 2^64 bytes", o->label, shown(o, t->name));
  if (*offset % o->g->alignment)
    return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: expected its offset to be a multiple of %zu, found %llu", o->label,
                   shown(o, t->name), o->g->alignment, (unsigned long long)*offset);
  return 0;
}

static int compare_name(const void *a, const void *b) {
  return str_order((*(const struct gguf_tensor *const *)a)->name, (*(const struct gguf_tensor *const *)b)->name);
}
static int compare_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t)(*(const struct gguf_tensor *const *)a)->data, y = (uintptr_t)(*(const struct gguf_tensor *const *)b)->data;
  return (x > y) - (x < y);
}

/* Turn offsets into addresses, or say how long the file should have been. */
static int place_tensors(struct opening *o, const uint64_t *offsets) {
  struct gguf *g = o->g;
  size_t data_at = align_up(position(o), g->alignment), needs = 0;
  const struct gguf_tensor *last = NULL;
  for (size_t i = 0; i < g->n_tensors; i++) {
    size_t end;
    if (size_add_overflows(data_at, offsets[i], &end) || size_add_overflows(end, g->tensors[i].n_bytes, &end)) {
      return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: its data would end past 2^64", o->label, shown(o, g->tensors[i].name));
    }
    if (end > needs) needs = end, last = &g->tensors[i];
  }
  if (needs > g->map->n_bytes)
    return err_set(o->e, ERR_BAD_FILE, "%s: file has %zu bytes, needs %zu for tensor %s: cut short or damaged", o->label, g->map->n_bytes,
                   needs, shown(o, last->name));
  for (size_t i = 0; i < g->n_tensors; i++) {
    g->tensors[i].data = g->map->data + data_at + offsets[i];
    g->by_name[i] = &g->tensors[i];
  }
  return 0;
}

static int present_twice(struct opening *o, const struct gguf_tensor *t) {
  return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: present twice", o->label, shown(o, t->name));
}

static int check_overlaps(struct opening *o) {
  struct gguf *g = o->g;
  qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_address);
  for (size_t i = 1; i < g->n_tensors; i++) {
    const struct gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
    if ((const unsigned char *)b->data < (const unsigned char *)a->data + a->n_bytes) {
      char other[100];
      if (str_eq(a->name, b->name)) return present_twice(o, b);
      return err_set(o->e, ERR_BAD_FILE, "%s: tensor %s: its data overlaps that of %s", o->label, shown(o, b->name),
                     str_escape(a->name, other, sizeof other));
    }
  }
  return 0;
}

static int read_tensors(struct opening *o, size_t n_tensors) {
  struct gguf *g = o->g;
  if (!n_tensors) return 0;
  uint64_t *offsets = mem_try_alloc(n_tensors * sizeof *offsets);
  g->tensors = mem_try_alloc(n_tensors * sizeof *g->tensors);
  g->by_name = mem_try_alloc(n_tensors * sizeof *g->by_name);
  int result = -1;
  if (!offsets || !g->tensors || !g->by_name) {
    err_set(o->e, ERR_NO_MEMORY, "%s: no memory for a table of %zu tensors", o->label, n_tensors);
    goto done;
  }
  for (; g->n_tensors < n_tensors; g->n_tensors++)
    if (read_tensor(o, &g->tensors[g->n_tensors], g->n_tensors, &offsets[g->n_tensors]) != 0) goto done;
  if (place_tensors(o, offsets) != 0 || check_overlaps(o) != 0) goto done;
  qsort(g->by_name, n_tensors, sizeof *g->by_name, compare_name);
  for (size_t i = 1; i < n_tensors; i++)
    if (str_eq(g->by_name[i - 1]->name, g->by_name[i]->name)) {
      present_twice(o, g->by_name[i]);
      goto done;
    }
  result = 0;
done:
  free(offsets);
  return result;
}

int gguf_open(struct gguf *g, const struct map *map, struct err *e) {
  *g = (struct gguf){.map = map};
  struct opening o = {.g = g, .r = {map->data, map->data ? map->data + map->n_bytes : NULL, false}, .e = e};
  map_label(map, o.label);
  uint64_t n_tensors = 0, n_kv = 0;
  if (read_header(&o, &n_tensors, &n_kv) != 0) goto fail;
  if (read_metadata(&o, (size_t)n_kv) != 0) goto fail;
  if (read_tensors(&o, (size_t)n_tensors) != 0) goto fail;
  return 0;
fail:
  gguf_close(g);
  return -1;
}

void gguf_close(struct gguf *g) {
  free(g->kv);
  free(g->tensors);
  free(g->by_name);
  *g = (struct gguf){0};
}

/* --- looking up --------------------------------------------------------------------------------------------------------- */

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
  struct gguf_kv wanted = {.key = str_c(key)};
  return g->n_kv ? bsearch(&wanted, g->kv, g->n_kv, sizeof *g->kv, compare_kv) : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
  struct gguf_tensor wanted = {.name = str_c(name)};
  const struct gguf_tensor *key = &wanted;
  const struct gguf_tensor **found = g->n_tensors ? bsearch(&key, g->by_name, g->n_tensors, sizeof *g->by_name, compare_name) : NULL;
  return found ? *found : NULL;
}

static uint64_t element_bits(const struct gguf_kv *kv, uint64_t i) {
  CHECK(i < kv->n && types[kv->type].n_bytes);
  size_t n = (size_t)types[kv->type].n_bytes;
  struct reader r = {kv->raw + i * n, kv->raw + i * n + n, false};
  return n == 1 ? reader_u8(&r) : n == 2 ? reader_u16(&r) : n == 4 ? reader_u32(&r) : reader_u64(&r);
}

static bool is_float(enum gguf_type t) { return t == GGUF_F32 || t == GGUF_F64; }

double gguf_kv_float(const struct gguf_kv *kv, uint64_t i) {
  uint64_t bits = element_bits(kv, i);
  if (kv->type == GGUF_F32) {
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, sizeof f);
    return (double)f;
  }
  if (kv->type == GGUF_F64) {
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
  }
  if (kv->type == GGUF_U64) return (double)bits;
  return (double)gguf_kv_int(kv, i);
}

int64_t gguf_kv_int(const struct gguf_kv *kv, uint64_t i) {
  uint64_t bits = element_bits(kv, i);
  switch (kv->type) {
  case GGUF_BOOL: return bits != 0;
  case GGUF_I8: return (int8_t)bits;
  case GGUF_I16: return (int16_t)bits;
  case GGUF_I32: return (int32_t)bits;
  case GGUF_U64: return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
  case GGUF_F32:
  case GGUF_F64: {
    double f = gguf_kv_float(kv, i);
    return isnan(f) ? 0 : f >= 0x1p63 ? INT64_MAX : f < -0x1p63 ? INT64_MIN : (int64_t)f;
  }
  default: return (int64_t)bits;
  }
}

struct str gguf_kv_next_string(const struct gguf_kv *kv, const unsigned char **cursor) {
  CHECK(kv->type == GGUF_STRING);
  struct reader r = {*cursor ? *cursor : kv->raw, kv->raw + kv->raw_bytes, false};
  struct str s = reader_bytes(&r, reader_u64(&r));
  *cursor = r.p;
  return s;
}

/* "model.gguf: key gemma3.block_count: expected an unsigned integer, file has string" */
static int wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *expected, struct err *e) {
  char label[200], text[160];
  return err_set(e, ERR_BAD_FILE, "%s: key %s: expected %s, file has %s%s", map_label(g->map, label),
                 str_escape(kv->key, text, sizeof text), expected, kv->is_array ? "an array of " : "", types[kv->type].name);
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *out, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) return 0;
  if (kv->is_array || kv->type == GGUF_STRING || kv->type == GGUF_BOOL || is_float(kv->type))
    return wrong_type(g, kv, "an unsigned integer", e);
  int64_t v = gguf_kv_int(kv, 0);
  if (v < 0 || v > UINT32_MAX) {
    char label[200], text[160];
    return err_set(e, ERR_BAD_FILE, "%s: key %s: expected an integer from 0 to 4294967295, file has %lld", map_label(g->map, label),
                   str_escape(kv->key, text, sizeof text), (long long)v);
  }
  *out = (uint32_t)v;
  return 1;
}

int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) return 0;
  if (kv->is_array || kv->type == GGUF_STRING || kv->type == GGUF_BOOL) return wrong_type(g, kv, "a number", e);
  double v = gguf_kv_float(kv, 0);
  if (!(fabs(v) <= 3.4028234663852886e38)) {
    char label[200], text[160];
    return err_set(e, ERR_BAD_FILE, "%s: key %s: expected a finite float32, file has %g", map_label(g->map, label),
                   str_escape(kv->key, text, sizeof text), v);
  }
  *out = (float)v;
  return 1;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) return 0;
  if (kv->is_array || kv->type != GGUF_BOOL) return wrong_type(g, kv, "a bool", e);
  *out = gguf_kv_int(kv, 0) != 0;
  return 1;
}

int gguf_str(const struct gguf *g, const char *key, struct str *out, struct err *e) {
  const struct gguf_kv *kv = gguf_find(g, key);
  if (!kv) return 0;
  if (kv->is_array || kv->type != GGUF_STRING) return wrong_type(g, kv, "a string", e);
  const unsigned char *cursor = NULL;
  *out = gguf_kv_next_string(kv, &cursor);
  return 1;
}
