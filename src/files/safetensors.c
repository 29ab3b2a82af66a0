/* safetensors.c — reading checkpoints of one file or many; safetensors_write.c writes. */
#include "files/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "files/json.h"

enum { HEADER_BYTES_MAX = 64 << 20, INDEX_BYTES_MAX = 64 << 20, SHARDS_MAX = 1024, DIMS_MAX = 8, NAME_BYTES_MAX = 512 };

/* Every type of the format. */
static const struct element_type {
  const char *name;
  int n_bytes;
  enum dtype dtype;
} element_types[] = {
    {"F32", 4, DTYPE_F32},      {"F16", 2, DTYPE_F16},          {"BF16", 2, DTYPE_BF16},
    {"I32", 4, DTYPE_I32},      {"I64", 8, DTYPE_I64},          {"U8", 1, DTYPE_U8},
    {"F64", 8, DTYPE_F64},      {"BOOL", 1, DTYPE_NONE},        {"I8", 1, DTYPE_NONE},
    {"I16", 2, DTYPE_NONE},     {"U16", 2, DTYPE_NONE},         {"U32", 4, DTYPE_NONE},
    {"U64", 8, DTYPE_NONE},     {"F8_E4M3", 1, DTYPE_NONE},     {"F8_E5M2", 1, DTYPE_NONE},
    {"F8_E8M0", 1, DTYPE_NONE}, {"F8_E4M3FNUZ", 1, DTYPE_NONE}, {"F8_E5M2FNUZ", 1, DTYPE_NONE},
    {"C64", 8, DTYPE_NONE},
};

static const struct element_type *element_type(const char *name) {
  for (size_t i = 0; i < ARRAY_LEN(element_types); i++)
    if (!strcmp(name, element_types[i].name)) return &element_types[i];
  return NULL;
}

/* --- one file ----------------------------------------------------------------------------------------------------------- */

/* One header being read: `data` are the bytes behind it, `where` names file and tensor. */
struct shard_reader {
  const unsigned char *data;
  size_t data_bytes, file_bytes;
  const char *label;
  struct err *e;
};

/* Element i of an array as a whole number >= 0. */
static bool whole(const json_t *array, size_t i, uint64_t *out) {
  const json_t *v = json_array_get(array, i);
  if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
  *out = (uint64_t)json_integer_value(v);
  return true;
}

static int read_entry(const struct shard_reader *r, const char *name, const json_t *entry, struct st_tensor *t) {
  char where[360], text[160];
  snprintf(where, sizeof where, "%s: tensor %s", r->label, str_escape(str_c(name), text, sizeof text));
  if (!*name || strlen(name) > NAME_BYTES_MAX)
    return err_set(r->e, ERR_BAD_FILE, "%s: expected a name of 1 to %d bytes", where, NAME_BYTES_MAX);
  if (!json_is_object(entry)) return err_set(r->e, ERR_BAD_FILE, "%s: expected an object", where);
  const json_t *shape = NULL, *offsets = NULL;
  const char *type = NULL;
  if (json_get_string(entry, "dtype", &type, NULL, where, r->e) < 0 || json_get_array(entry, "shape", &shape, where, r->e) < 0 ||
      json_get_array(entry, "data_offsets", &offsets, where, r->e) < 0)
    return -1;
  if (!type || !shape || !offsets) return err_set(r->e, ERR_BAD_FILE, "%s: expected dtype, shape and data_offsets", where);
  const struct element_type *element = element_type(type);
  if (!element) return err_set(r->e, ERR_BAD_FILE, "%s: unknown dtype \"%s\"", where, str_escape(str_c(type), text, sizeof text));
  t->dtype = element->dtype;
  t->type_name = element->name;
  if (json_array_size(shape) > DIMS_MAX)
    return err_set(r->e, ERR_BAD_FILE, "%s: expected at most %d dimensions, found %zu", where, DIMS_MAX, json_array_size(shape));
  t->n_dims = (int)json_array_size(shape);
  size_t n_bytes = (size_t)element->n_bytes;
  for (int i = 0; i < t->n_dims; i++) {
    uint64_t n;
    if (!whole(shape, (size_t)i, &n)) return err_set(r->e, ERR_BAD_FILE, "%s: shape[%d]: expected a whole number", where, i);
    t->shape[i] = (int64_t)n;
    if (size_mul_overflows(n_bytes, (size_t)n, &n_bytes))
      return err_set(r->e, ERR_BAD_FILE, "%s: its shape multiplies to more than 2^64 bytes", where);
  }
  uint64_t begin, end;
  if (json_array_size(offsets) != 2 || !whole(offsets, 0, &begin) || !whole(offsets, 1, &end))
    return err_set(r->e, ERR_BAD_FILE, "%s: data_offsets: expected two whole numbers", where);
  if (begin > end)
    return err_set(r->e, ERR_BAD_FILE, "%s: data_offsets: begin %llu is past end %llu", where, (unsigned long long)begin,
                   (unsigned long long)end);
  if (end - begin != n_bytes)
    return err_set(r->e, ERR_BAD_FILE, "%s: expected %zu bytes for its shape and type, data_offsets give %llu", where, n_bytes,
                   (unsigned long long)(end - begin));
  if (end > r->data_bytes) {
    uint64_t needs = end + (r->file_bytes - r->data_bytes);
    return err_set(r->e, ERR_BAD_FILE, "%s: file has %zu bytes, needs %llu: cut short or damaged", where, r->file_bytes,
                   (unsigned long long)needs);
  }
  t->data = r->data ? r->data + begin : NULL;
  t->n_bytes = n_bytes;
  t->name = xstrdup(name);
  return 0;
}

static int compare_address(const void *a, const void *b) {
  const struct st_tensor *x = a, *y = b;
  uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
  return p != q ? (p > q) - (p < q) : (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Tensors of one file must follow one another and fill it. */
static int check_layout(const struct shard_reader *r, struct st_tensor *t, size_t n) {
  char text[160];
  qsort(t, n, sizeof *t, compare_address);
  size_t at = 0;
  for (size_t i = 0; i < n; i++) {
    size_t begin = t[i].data ? (size_t)((const unsigned char *)t[i].data - r->data) : 0;
    if (begin != at)
      return err_set(r->e, ERR_BAD_FILE, "%s: tensor %s: expected its data at offset %zu, found it at %zu: %s", r->label,
                     str_escape(str_c(t[i].name), text, sizeof text), at, begin, begin < at ? "two tensors overlap" : "there is a gap");
    at += t[i].n_bytes;
  }
  if (at != r->data_bytes) return err_set(r->e, ERR_BAD_FILE, "%s: expected %zu bytes of data, found %zu", r->label, at, r->data_bytes);
  return 0;
}

/* Append the tensors of map m, which is shard number `shard`. */
static int read_shard(struct safetensors *s, const struct map *m, int shard, struct err *e) {
  char label[200];
  map_label(m, label);
  struct reader head = {m->data, m->data ? m->data + m->n_bytes : NULL, false};
  uint64_t header_bytes = reader_u64(&head);
  if (head.bad) return err_set(e, ERR_BAD_FILE, "%s: file has %zu bytes, needs at least 8: no safetensors file", label, m->n_bytes);
  if (header_bytes > reader_left(&head))
    return err_set(e, ERR_BAD_FILE, "%s: its header claims %llu bytes, but only %zu follow: cut short, damaged or no safetensors file",
                   label, (unsigned long long)header_bytes, reader_left(&head));
  if (header_bytes > HEADER_BYTES_MAX)
    return err_set(e, ERR_TOO_LARGE, "%s: expected a header of at most %d bytes, found %llu", label, HEADER_BYTES_MAX,
                   (unsigned long long)header_bytes);
  struct str text = reader_bytes(&head, header_bytes);
  struct shard_reader r = {.data = head.p, .data_bytes = reader_left(&head), .file_bytes = m->n_bytes, .label = label, .e = e};
  json_t *header = json_load_text(text.p, text.n, false, label, e);
  int result = -1;
  size_t first = s->n_tensors;
  if (!header) goto done;
  if (!json_is_object(header)) {
    err_set(e, ERR_BAD_FILE, "%s: expected its header to be a JSON object", label);
    goto done;
  }
  size_t n_new = json_object_size(header), total;
  if (size_add_overflows(first, n_new, &total) || size_mul_overflows(total, sizeof *s->tensors, &total)) goto no_memory;
  if (n_new) {
    struct st_tensor *grown = mem_try_alloc(total);
    if (!grown) goto no_memory;
    if (first) memcpy(grown, s->tensors, first * sizeof *grown);
    free(s->tensors);
    s->tensors = grown;
  }
  const char *name;
  json_t *entry;
  json_object_foreach(header, name, entry) {
    if (!strcmp(name, "__metadata__")) continue;
    struct st_tensor *t = &s->tensors[s->n_tensors];
    if (read_entry(&r, name, entry, t) != 0) goto done;
    t->shard = shard;
    s->n_tensors++;
  }
  if (s->n_tensors > first && check_layout(&r, s->tensors + first, s->n_tensors - first) != 0) goto done;
  result = 0;
  goto done;
no_memory:
  err_set(e, ERR_NO_MEMORY, "%s: no memory for a table of %zu tensors", label, n_new);
done:
  json_decref(header);
  /* what JSON calls bad input is here a bad file */
  if (result != 0 && e && e->code == ERR_BAD_INPUT) e->code = ERR_BAD_FILE;
  return result;
}

/* --- the whole checkpoint ----------------------------------------------------------------------------------------------- */

static int compare_name(const void *a, const void *b) {
  return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* Sort by name; a name that occurs twice (two shards) is refused. */
static int sort_names(struct safetensors *s, struct err *e) {
  if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_name);
  for (size_t i = 1; i < s->n_tensors; i++)
    if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name)) {
      char label[200], text[160];
      return err_set(e, ERR_BAD_FILE, "%s: tensor %s: also present in another part", map_label(&s->maps[s->tensors[i].shard], label),
                     str_escape(str_c(s->tensors[i].name), text, sizeof text));
    }
  return 0;
}

int safetensors_from_map(struct safetensors *s, struct map *m, struct err *e) {
  *s = (struct safetensors){0};
  s->maps = xmalloc(sizeof *s->maps);
  s->maps[0] = *m;
  *m = (struct map){0};
  s->n_maps = 1;
  if (read_shard(s, &s->maps[0], 0, e) == 0 && sort_names(s, e) == 0) return 0;
  safetensors_close(s);
  return -1;
}

/* A shard's name comes from a file: it must stay inside the folder. */
static bool plain_file_name(const char *name) {
  size_t n = strlen(name);
  return n > 0 && n < 256 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

static int compare_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The distinct file names of a weight_map, sorted. Fills names (borrowed), which has room for SHARDS_MAX. */
static int shard_names(const json_t *weight_map, const char *label, const char **names, int *n_names, struct err *e) {
  const char *tensor;
  json_t *file;
  int n = 0;
  json_object_foreach((json_t *)(uintptr_t)weight_map, tensor, file) {
    char text[160], other[160];
    str_escape(str_c(tensor), text, sizeof text);
    if (!json_is_string(file)) return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected the name of a file", label, text);
    const char *name = json_string_value(file);
    if (!plain_file_name(name))
      return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected the name of a file beside the index, found \"%s\"", label, text,
                     str_escape(str_c(name), other, sizeof other));
    if (n > 0 && bsearch(&name, names, (size_t)n, sizeof *names, compare_text)) continue;
    if (n == SHARDS_MAX) return err_set(e, ERR_TOO_LARGE, "%s: expected at most %d files", label, SHARDS_MAX);
    names[n++] = name;
    qsort(names, (size_t)n, sizeof *names, compare_text);
  }
  *n_names = n;
  return 0;
}

/* What the index says must be so. */
static int check_index(const struct safetensors *s, const json_t *weight_map, const char **names, const char *label, struct err *e) {
  const char *tensor;
  json_t *file;
  json_object_foreach((json_t *)(uintptr_t)weight_map, tensor, file) {
    const struct st_tensor *t = safetensors_find(s, tensor);
    char text[160];
    if (!t || strcmp(names[t->shard], json_string_value(file)) != 0)
      return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected it in %.160s, %s", label, str_escape(str_c(tensor), text, sizeof text),
                     json_string_value(file), t ? "it is in another file" : "it is not there");
  }
  return 0;
}

static int open_index(struct safetensors *s, const char *folder, const char *index_path, struct err *e) {
  char label[200];
  path_label(index_path, label);
  json_t *index = json_load_path(index_path, INDEX_BYTES_MAX, e);
  if (!index) {
    if (e && e->code == ERR_BAD_INPUT) e->code = ERR_BAD_FILE;
    return -1;
  }
  int result = -1, n_names = 0;
  const char **names = xcalloc(SHARDS_MAX, sizeof *names);
  const json_t *weight_map = json_object_get(index, "weight_map");
  if (!json_is_object(weight_map) || json_object_size(weight_map) == 0) {
    err_set(e, ERR_BAD_FILE, "%s: expected an object \"weight_map\" that names the files", label);
    goto done;
  }
  if (shard_names(weight_map, label, names, &n_names, e) != 0) goto done;
  s->maps = xcalloc((size_t)n_names, sizeof *s->maps);
  for (int i = 0; i < n_names; i++) {
    size_t n = strlen(folder) + strlen(names[i]) + 2;
    char *path = xmalloc(n);
    snprintf(path, n, "%s/%s", folder, names[i]);
    int opened = map_open(&s->maps[i], path, e);
    free(path);
    if (opened != 0) {
      err_prefix(e, "part %d of %d", i + 1, n_names);
      goto done;
    }
    s->n_maps++;
    if (read_shard(s, &s->maps[i], i, e) != 0) goto done;
  }
  if (sort_names(s, e) != 0 || check_index(s, weight_map, names, label, e) != 0) goto done;
  result = 0;
done:
  free(names);
  json_decref(index);
  return result;
}

static bool is_file(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

int safetensors_open(struct safetensors *s, const char *path, struct err *e) {
  *s = (struct safetensors){0};
  struct stat st;
  char label[200];
  if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
    struct map m;
    if (map_open(&m, path, e) != 0) return -1;
    return safetensors_from_map(s, &m, e);
  }
  size_t n = strlen(path) + sizeof "/model.safetensors.index.json";
  char *file = xmalloc(n);
  int result = -1;
  snprintf(file, n, "%s/model.safetensors", path);
  if (is_file(file)) {
    result = safetensors_open(s, file, e);
  } else {
    snprintf(file, n, "%s/model.safetensors.index.json", path);
    if (is_file(file)) result = open_index(s, path, file, e);
    else
      err_set(e, ERR_NOT_FOUND, "%s: expected model.safetensors or model.safetensors.index.json in this folder, found neither",
              path_label(path, label));
  }
  free(file);
  if (result != 0) safetensors_close(s);
  return result;
}

void safetensors_close(struct safetensors *s) {
  for (size_t i = 0; i < s->n_tensors; i++) free(s->tensors[i].name);
  for (int i = 0; i < s->n_maps; i++) map_close(&s->maps[i]);
  free(s->tensors);
  free(s->maps);
  *s = (struct safetensors){0};
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name) {
  struct st_tensor wanted = {.name = (char *)(uintptr_t)name};
  return s->n_tensors ? bsearch(&wanted, s->tensors, s->n_tensors, sizeof wanted, compare_name) : NULL;
}
