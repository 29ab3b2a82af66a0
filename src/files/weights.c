/* weights.c — one table of tensors over either format; see weights.h. */
#include "files/weights.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "files/weights_names.h"
#include "files/weights_split.h"

/* One tensor, in file order. */
struct entry {
  char *name;       /* GGUF's name, owned; NULL when the checkpoint's is not in the table */
  const char *own;  /* as in the file; the same as name for a GGUF */
  const char *type; /* for messages */
  enum dtype dtype;
  int n_dims;
  int64_t shape[4]; /* of more dimensions, the first are multiplied into shape[0] */
  const void *data;
  size_t n_bytes;
  int file; /* which map */
  bool skipped, fetched;
  bool media; /* of an encoder: skipped, unless somebody fetches it */
  bool told;  /* a warning has named it */
  void *copy; /* owned, from mem_big_alloc: the data, when it is not aligned in the file */
};

struct weights {
  struct gguf_set set;   /* of a GGUF */
  struct safetensors st; /* of a checkpoint */
  bool is_gguf;
  struct map *maps; /* of whichever it is */
  int n_maps;
  struct entry *entries;
  size_t n_entries;
  struct entry **by_name; /* those with a name, sorted */
  size_t n_named;
  struct model_config *config; /* owned */
  char *folder;                /* owned */
  char format[64];
};

static const char *file_label(const struct weights *w, const struct entry *t, char text[200]) { return map_label(&w->maps[t->file], text); }

/* --- the table ---------------------------------------------------------------------------------------------------------- */

static int compare_name(const void *a, const void *b) {
  return strcmp((*(const struct entry *const *)a)->name, (*(const struct entry *const *)b)->name);
}

static struct entry *find(const struct weights *w, const char *name) {
  struct entry wanted = {.name = (char *)(uintptr_t)name};
  struct entry *key = &wanted;
  struct entry **found = w->n_named ? bsearch(&key, w->by_name, w->n_named, sizeof *w->by_name, compare_name) : NULL;
  return found ? *found : NULL;
}

static int alloc_table(struct weights *w, size_t n, struct err *e) {
  char label[200];
  if (!n) return 0;
  w->entries = mem_try_alloc(n * sizeof *w->entries);
  w->by_name = mem_try_alloc(n * sizeof *w->by_name);
  if (w->entries && w->by_name) return 0;
  return err_set(e, ERR_NO_MEMORY, "%s: no memory for a table of %zu tensors", map_label(&w->maps[0], label), n);
}

static int sort_table(struct weights *w, struct err *e) {
  for (size_t i = 0; i < w->n_entries; i++)
    if (w->entries[i].name) w->by_name[w->n_named++] = &w->entries[i];
  if (w->n_named) qsort(w->by_name, w->n_named, sizeof *w->by_name, compare_name);
  for (size_t i = 1; i < w->n_named; i++) {
    const struct entry *a = w->by_name[i - 1], *b = w->by_name[i];
    if (strcmp(a->name, b->name) != 0) continue;
    char label[200], one[100], other[100];
    return err_set(e, ERR_BAD_FILE, "%s: tensor %s: %s %s", file_label(w, b, label), str_escape(str_c(b->own), one, sizeof one),
                   strcmp(a->own, b->own) != 0 ? "stands for the same weight as" : "also present in another part as",
                   str_escape(str_c(a->own), other, sizeof other));
  }
  return 0;
}

/* "blk.12.attn_k.weight" is layer 12 and "attn_k.weight"; NULL when it is not of a layer. */
static const char *layer_part(const char *name, int n_layers, int *layer) {
  int64_t l;
  const char *dot = str_starts(str_c(name), "blk.") ? strchr(name + 4, '.') : NULL;
  if (!dot || !str_to_i64(str_of(name + 4, (size_t)(dot - name - 4)), 0, n_layers - 1, &l)) return NULL;
  *layer = (int)l;
  return dot + 1;
}

/* Keys and values of a layer that reads another one's: some files have them, nothing needs them. */
static bool is_redundant(const struct model_config *c, const char *name) {
  int l;
  const char *part = layer_part(name, c->n_layers, &l);
  return part && c->layers[l].kv_donor != l &&
         (!strcmp(part, "attn_k.weight") || !strcmp(part, "attn_v.weight") || !strcmp(part, "attn_k_norm.weight"));
}

/* Some files of encoders call the first product of an MLP ffn_down and the second ffn_up: the shape tells. */
static void unswap_encoder(struct weights *w, const struct model_config *c) {
  const struct vision_config *v = &c->vision;
  bool swapped = false;
  for (size_t i = 0; i < w->n_entries; i++) {
    const struct entry *t = &w->entries[i];
    swapped |= (v->kind == VISION_SIGLIP || v->kind == VISION_MLLAMA) && v->hidden != v->ffn && t->n_dims == 2 &&
               t->shape[0] == v->hidden && !strcmp(t->name, "v.blk.0.ffn_up.weight");
  }
  for (size_t i = 0; i < w->n_entries && swapped; i++) {
    struct entry *t = &w->entries[i];
    bool in_layer = str_starts(str_c(t->name), "v.blk.") || str_starts(str_c(t->name), "v.global.blk.");
    char *up = in_layer ? strstr(t->name, ".ffn_up.") : NULL, *down = in_layer ? strstr(t->name, ".ffn_down.") : NULL;
    if (!up && !down) continue;
    char name[WEIGHT_NAME_BYTES];
    const char *at = up ? up : down;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, up ? ".ffn_down" : ".ffn_up", strrchr(at, '.'));
    free(t->name);
    t->own = t->name = xstrdup(name);
  }
}

static int fill_from_gguf(struct weights *w, const struct model_config *c, struct err *e) {
  size_t n = 0;
  for (int p = 0; p < w->set.n_parts; p++) n += w->set.parts[p].n_tensors;
  if (alloc_table(w, n, e) != 0) return -1;
  for (int p = 0; p < w->set.n_parts; p++) {
    const struct gguf *g = &w->set.parts[p];
    for (size_t i = 0; i < g->n_tensors; i++) {
      const struct gguf_tensor *t = &g->tensors[i];
      struct entry *n_th = &w->entries[w->n_entries++];
      char own[GGUF_NAME_BYTES_MAX + 1], name[WEIGHT_NAME_BYTES];
      snprintf(own, sizeof own, "%.*s", (int)t->name.n, t->name.p);
      bool media = weight_is_media(own);
      if (media) weight_media_name_from_gguf(own, name);
      *n_th = (struct entry){.name = xstrdup(media ? name : own),
                             .type = dtype_info(t->dtype)->name,
                             .dtype = t->dtype,
                             .n_dims = t->n_dims,
                             .data = t->data,
                             .n_bytes = t->n_bytes,
                             .file = p};
      n_th->own = n_th->name;
      memcpy(n_th->shape, t->shape, sizeof n_th->shape);
      n_th->media = media;
      n_th->skipped = media || is_redundant(c, n_th->name);
    }
  }
  unswap_encoder(w, c);
  return sort_table(w, e);
}

/* File order of a checkpoint: by shard, then by address. */
static int compare_place(const void *a, const void *b) {
  const struct entry *x = a, *y = b;
  uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
  return x->file != y->file ? x->file - y->file : (p > q) - (p < q);
}

static int fill_from_safetensors(struct weights *w, const struct model_config *c, struct err *e) {
  if (alloc_table(w, w->st.n_tensors, e) != 0) return -1;
  for (size_t i = 0; i < w->st.n_tensors; i++) {
    const struct st_tensor *t = &w->st.tensors[i];
    char name[WEIGHT_NAME_BYTES];
    enum weight_use use = weight_name_from_hf(c->family, t->name, name);
    struct entry *n_th = &w->entries[w->n_entries++];
    *n_th = (struct entry){.own = t->name,
                           .type = t->type_name,
                           .dtype = t->dtype,
                           .data = t->data,
                           .n_bytes = t->n_bytes,
                           .file = t->shard,
                           .media = use == WEIGHT_MEDIA,
                           .skipped = use == WEIGHT_SKIPPED || use == WEIGHT_MEDIA};
    /* A tied model uses the embedding whether or not its writer also stored a head. */
    if (use == WEIGHT_TEXT && c->tied_head && !strcmp(name, "output.weight")) n_th->skipped = true;
    else if (use == WEIGHT_MEDIA) n_th->name = xstrdup(name);
    else if (use == WEIGHT_TEXT) n_th->name = xstrdup(name), n_th->skipped = is_redundant(c, name);
    n_th->n_dims = MIN(t->n_dims, 4);
    int extra = t->n_dims - n_th->n_dims; /* the product was checked against the bytes */
    n_th->shape[0] = 1;
    for (int d = 0; d <= extra && d < t->n_dims; d++) n_th->shape[0] *= t->shape[d];
    for (int d = 1; d < n_th->n_dims; d++) n_th->shape[d] = t->shape[d + extra];
  }
  if (w->n_entries) qsort(w->entries, w->n_entries, sizeof *w->entries, compare_place);
  return sort_table(w, e);
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

static char *folder_of(const char *file) {
  char *copy = xstrdup(file), *folder = xstrdup(dirname(copy));
  free(copy);
  return folder;
}

static int open_gguf(struct weights *w, const char *path, struct model_config *c, struct err *e) {
  w->is_gguf = true;
  if (gguf_set_open(&w->set, path, e) != 0) return -1;
  w->maps = w->set.maps;
  w->n_maps = w->set.n_parts;
  w->folder = folder_of(path);
  unsigned version = w->set.parts[0].version;
  if (w->n_maps > 1) snprintf(w->format, sizeof w->format, "GGUF v%u, %d parts", version, w->n_maps);
  else snprintf(w->format, sizeof w->format, "GGUF v%u", version);
  return config_from_gguf_parts(c, w->set.parts, w->set.n_parts, e) == 0 ? fill_from_gguf(w, c, e) : -1;
}

/* Is this one shard of a set that has an index beside it? */
static bool is_indexed_shard(const char *path, const char *folder) {
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  size_t n = strlen(folder) + sizeof "/model.safetensors.index.json";
  char *index = xmalloc(n);
  struct stat st;
  snprintf(index, n, "%s/model.safetensors.index.json", folder);
  bool found = strstr(name, "-of-") && stat(index, &st) == 0;
  free(index);
  return found;
}

static int open_safetensors(struct weights *w, const char *path, bool is_folder, struct model_config *c, struct err *e) {
  w->folder = is_folder ? xstrdup(path) : folder_of(path);
  if (config_from_folder(c, w->folder, e) != 0) return -1;
  bool whole_folder = is_folder || is_indexed_shard(path, w->folder);
  if (safetensors_open(&w->st, whole_folder ? w->folder : path, e) != 0) return -1;
  w->maps = w->st.maps;
  w->n_maps = w->st.n_maps;
  if (w->n_maps > 1) snprintf(w->format, sizeof w->format, "safetensors, %d shards", w->n_maps);
  else snprintf(w->format, sizeof w->format, "safetensors");
  return fill_from_safetensors(w, c, e);
}

/* A file is what its first bytes say, and failing that what its name says. */
static int sniff(const char *path, bool *is_gguf, struct err *e) {
  struct map m;
  char label[200];
  if (map_open(&m, path, e) != 0) return -1;
  *is_gguf = m.n_bytes >= 4 && !memcmp(m.data, "GGUF", 4);
  map_close(&m);
  if (*is_gguf || str_ends(str_c(path), ".safetensors")) return 0;
  if (str_ends(str_c(path), ".gguf")) {
    *is_gguf = true;
    return 0;
  }
  return err_set(e, ERR_BAD_FILE, "%s: expected a GGUF file, a .safetensors file or a folder with config.json, found something else",
                 path_label(path, label));
}

static struct weights *open_path(const char *path, struct model_config *config, struct err *e) {
  struct weights *w = xcalloc(1, sizeof *w);
  struct stat st;
  bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode), is_gguf = false;
  if (!is_folder && sniff(path, &is_gguf, e) != 0) goto fail;
  if ((is_gguf ? open_gguf(w, path, config, e) : open_safetensors(w, path, is_folder, config, e)) != 0) goto fail;
  w->config = xmalloc(sizeof *w->config);
  *w->config = *config;
  return w;
fail:
  weights_close(w);
  return NULL;
}

static struct weights *open_kind(const char *path, bool drafter, struct model_config *config, struct err *e) {
  struct weights *w = open_path(path, config, e);
  if (!w || (config->backbone_hidden > 0) == drafter) return w;
  char label[200];
  path_label(path, label);
  if (drafter)
    err_set(e, ERR_BAD_INPUT, "%s: expected a drafter (gemma4_assistant), found a model of its own, %s", label, config->architecture);
  else err_set(e, ERR_BAD_INPUT, "%s: this is a drafter, it only guesses for another model: use --draft-model beside that one", label);
  weights_close(w);
  return NULL;
}

struct weights *weights_open(const char *path, struct model_config *config, struct err *e) {
  return open_kind(path, false, config, e);
}
struct weights *weights_open_drafter(const char *path, struct model_config *config, struct err *e) {
  return open_kind(path, true, config, e);
}

struct weights *weights_open_mmproj(const char *path, struct model_config *config, struct err *e) {
  struct weights *w = xcalloc(1, sizeof *w);
  w->is_gguf = true;
  if (gguf_set_open(&w->set, path, e) != 0) goto fail;
  w->maps = w->set.maps;
  w->n_maps = w->set.n_parts;
  w->folder = folder_of(path);
  snprintf(w->format, sizeof w->format, "GGUF v%u", w->set.parts[0].version);
  if (config_media_from_mmproj(config, w->set.parts, w->set.n_parts, e) != 0 || fill_from_gguf(w, config, e) != 0) goto fail;
  w->config = xmalloc(sizeof *w->config);
  *w->config = *config;
  w->config->norm_plus_one = false; /* the converter has added the 1, whatever the text model's file does */
  return w;
fail:
  weights_close(w);
  return NULL;
}

void weights_close(struct weights *w) {
  if (!w) return;
  for (size_t i = 0; i < w->n_entries; i++) {
    free(w->entries[i].name);
    mem_big_free(w->entries[i].copy, w->entries[i].n_bytes);
  }
  free(w->entries);
  free(w->by_name);
  free(w->folder);
  free(w->config);
  gguf_set_close(&w->set);
  safetensors_close(&w->st);
  free(w);
}

/* --- fetching ----------------------------------------------------------------------------------------------------------- */

static const char *shape_text(const int64_t *shape, int n_dims, char text[100]) {
  size_t at = (size_t)snprintf(text, 100, "[");
  for (int i = 0; i < n_dims; i++) at += (size_t)snprintf(text + at, 100 - at, i ? ", %lld" : "%lld", (long long)shape[i]);
  snprintf(text + at, 100 - at, "]");
  return text;
}

/* Does the tensor have these rows of cols elements? Leading dimensions count as rows; rows 0 is a vector, and one number may have none. */
static bool has_shape(const struct entry *t, int64_t rows, int64_t cols) {
  int64_t n = 1;
  for (int i = 0; i + 1 < t->n_dims; i++)
    if (__builtin_mul_overflow(n, t->shape[i], &n)) return false;
  if (t->n_dims == 0) return cols == 1 && rows <= 1;
  return t->shape[t->n_dims - 1] == cols && n == MAX(rows, 1);
}

/* Convolutions and tables of encoders have more dimensions: any cut of them into rows and columns will do. */
static bool has_media_shape(const struct entry *t, int64_t rows, int64_t cols) {
  if (!t->media || t->dtype == DTYPE_NONE || dtype_info(t->dtype)->quantised) return false;
  int64_t before = 1, all = 1;
  for (int i = 0; i < t->n_dims; i++)
    if (__builtin_mul_overflow(all, t->shape[i], &all)) return false;
  for (int i = 0; i < t->n_dims && before <= rows; i++) {
    if (before == MAX(rows, 1) && all / before == cols && all % before == 0) return true;
    before *= t->shape[i];
  }
  return false;
}

static int missing(const struct weights *w, const char *name, const char *expected, struct err *e) {
  char label[200];
  if (w->n_maps == 1) map_label(&w->maps[0], label);
  else path_label(w->folder, label);
  return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected %s, the file has no such tensor", label, name, expected);
}

/* Some checkpoints have headers of odd length, which leaves all their data unaligned. */
static int align_data(const struct weights *w, struct entry *t, struct err *e) {
  size_t elem_bytes = (size_t)dtype_info(t->dtype)->block_bytes;
  if (dtype_info(t->dtype)->quantised || (uintptr_t)t->data % elem_bytes == 0 || t->copy) return 0;
  char label[200];
  t->copy = mem_big_alloc(t->n_bytes, "unaligned tensor", e);
  if (!t->copy) return err_prefix(e, "%s: tensor %s", file_label(w, t, label), t->name);
  memcpy(t->copy, t->data, t->n_bytes);
  map_done_with(&w->maps[t->file], t->data, t->n_bytes);
  return 0;
}

/* The whole of a tensor as rows: leading dimensions are multiplied, in the shape that is expected and in the file's. One dimension: a vector. */
static int fetch(struct weights *w, struct entry *t, const int64_t *shape, int n_dims, struct weight_view *out, struct err *e) {
  char expected[100], found[100], label[200];
  int64_t rows = n_dims > 1 ? 1 : 0, cols = shape[n_dims - 1];
  for (int i = 0; i + 1 < n_dims; i++) rows *= shape[i];
  if (!has_shape(t, rows, cols) && !has_media_shape(t, rows, cols))
    return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected %s, file has %s", file_label(w, t, label), t->name,
                   shape_text(shape, n_dims, expected), shape_text(t->shape, t->n_dims, found));
  bool computes = t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16 ||
                  (t->dtype != DTYPE_NONE && dtype_info(t->dtype)->quantised);
  if (!computes)
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: expected a type to compute with (F32, F16, BF16 or a quantised one), file has %s",
                   file_label(w, t, label), t->name, t->type);
  size_t row_bytes;
  CHECK(dtype_row_bytes(t->dtype, (size_t)cols, &row_bytes)); /* the file was opened with this checked */
  if (align_data(w, t, e) != 0) return -1;
  t->fetched = true;
  *out = (struct weight_view){t->dtype, MAX(rows, 1), cols, row_bytes, t->copy ? t->copy : t->data};
  return 0;
}

/* rows rows of v from `first` on. */
static void cut(struct weight_view *v, int64_t first, int64_t rows) {
  CHECK(first >= 0 && rows > 0 && first + rows <= v->rows);
  v->data = (const char *)v->data + (size_t)first * v->row_bytes;
  v->rows = rows;
}

/* blk.N.attn_q/k/v.weight inside blk.N.attn_qkv.weight: which rows. NULL when it is not there. */
static struct entry *find_fused(const struct weights *w, const char *name, int64_t *first, int64_t *rows, int64_t *all) {
  static const char *const parts[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
  int l, i = 0;
  const char *part = layer_part(name, w->config->n_layers, &l);
  while (part && i < 3 && strcmp(part, parts[i]) != 0) i++;
  if (!part || i == 3) return NULL;
  char fused[WEIGHT_NAME_BYTES];
  snprintf(fused, sizeof fused, "blk.%d.attn_qkv.weight", l);
  const struct layer_config *y = &w->config->layers[l];
  int64_t q = (int64_t)y->n_q * y->head_dim, kv = (int64_t)y->n_kv * y->head_dim;
  *first = i == 0 ? 0 : q + (i - 1) * kv;
  *rows = i == 0 ? q : kv;
  *all = q + 2 * kv;
  return find(w, fused);
}

int weights_get(struct weights *w, const char *name, int64_t rows, int64_t cols, struct weight_view *out, struct err *e) {
  CHECK(rows >= 0 && cols > 0);
  const int64_t shape[2] = {rows, cols};
  struct entry *t = find(w, name);
  if (t) return fetch(w, t, rows ? shape : shape + 1, rows ? 2 : 1, out, e);
  int64_t first, fused_rows, all;
  if ((t = find_fused(w, name, &first, &fused_rows, &all)) && fused_rows == rows) {
    if (fetch(w, t, (const int64_t[]){all, cols}, 2, out, e) != 0) return -1;
    cut(out, first, rows);
    return 0;
  }
  char expected[100];
  return missing(w, name, shape_text(rows ? shape : shape + 1, rows ? 2 : 1, expected), e);
}

int weights_get_expert(struct weights *w, int layer, enum weights_expert which, int expert, int64_t rows, int64_t cols,
                       struct weight_view *out, struct err *e) {
  static const char *const names[] = {[EXPERT_GATE] = "ffn_gate", [EXPERT_UP] = "ffn_up", [EXPERT_DOWN] = "ffn_down"};
  int64_t n = w->config->n_experts;
  CHECK(rows > 0 && cols > 0 && expert >= 0 && expert < n);
  char name[WEIGHT_NAME_BYTES], expected[100];
  snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, names[which]);
  struct entry *t = find(w, name);
  if (t) {
    if (fetch(w, t, (const int64_t[]){n, rows, cols}, 3, out, e) != 0) return -1;
    cut(out, expert * rows, rows);
    return 0;
  }
  if (which != EXPERT_DOWN) snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", layer);
  if (which != EXPERT_DOWN && (t = find(w, name))) {
    if (fetch(w, t, (const int64_t[]){n, 2 * rows, cols}, 3, out, e) != 0) return -1;
    cut(out, (2 * expert + (which == EXPERT_UP)) * rows, rows);
    return 0;
  }
  char single[WEIGHT_NAME_BYTES];
  snprintf(single, sizeof single, "blk.%d.%s.%d.weight", layer, names[which], expert);
  if ((t = find(w, single))) return fetch(w, t, (const int64_t[]){rows, cols}, 2, out, e);
  return missing(w, name, shape_text((const int64_t[]){n, which == EXPERT_DOWN ? rows : 2 * rows, cols}, 3, expected), e);
}

bool weights_has(const struct weights *w, const char *name) {
  int64_t first, rows, all;
  return find(w, name) || find_fused(w, name, &first, &rows, &all);
}

int weights_get_vector(struct weights *w, const char *name, int64_t cols, float *out, struct err *e) {
  struct weight_view v;
  if (weights_get(w, name, 0, cols, &v, e) != 0) return -1;
  dtype_to_f32(v.dtype, v.data, out, (size_t)cols);
  float shift = w->config->norm_plus_one && str_ends(str_c(name), "norm.weight") ? 1.0f : 0.0f;
  for (int64_t i = 0; i < cols; i++) {
    if (!isfinite(out[i])) {
      char label[200];
      return err_set(e, ERR_BAD_FILE, "%s: tensor %s: element %lld is not a finite number", file_label(w, find(w, name), label), name,
                     (long long)i);
    }
    out[i] += shift;
  }
  return 0;
}

int weights_get_order(struct weights *w, const char *name, int n, int limit, int32_t *out, struct err *e) {
  char label[200], found[100];
  struct entry *t = find(w, name);
  if (!t) return missing(w, name, shape_text((const int64_t[]){n}, 1, found), e);
  file_label(w, t, label);
  if (!has_shape(t, 0, n) || (t->dtype != DTYPE_I64 && t->dtype != DTYPE_I32))
    return err_set(e, ERR_BAD_FILE, "%s: tensor %s: expected I64 [%d], file has %s %s", label, name, n, t->type,
                   shape_text(t->shape, t->n_dims, found));
  bool *seen = xcalloc((size_t)limit, sizeof *seen);
  int i = 0;
  for (; i < n; i++) {
    int64_t v = 0;
    int32_t narrow = 0;
    if (t->dtype == DTYPE_I64) memcpy(&v, (const char *)t->data + (size_t)i * sizeof v, sizeof v);
    else memcpy(&narrow, (const char *)t->data + (size_t)i * sizeof narrow, sizeof narrow), v = narrow;
    if (v < 0 || v >= limit || seen[v]) {
      err_set(e, ERR_BAD_FILE, "%s: tensor %s: element %d: expected a number from 0 to %d that did not come before, found %lld", label,
              name, i, limit - 1, (long long)v);
      break;
    }
    seen[v] = true;
    out[i] = (int32_t)v;
  }
  free(seen);
  t->fetched = true;
  return i == n ? 0 : -1;
}

void weights_done_with(struct weights *w, const struct weight_view *v) {
  const unsigned char *p = v->data;
  for (int i = 0; i < w->n_maps; i++)
    if (w->maps[i].data && p >= w->maps[i].data && p < w->maps[i].data + w->maps[i].n_bytes)
      map_done_with(&w->maps[i], p, (size_t)v->rows * v->row_bytes);
}

void weights_rest(const struct weights *w) {
  for (int i = 0; i < w->n_maps; i++)
    if (w->maps[i].data) map_done_with(&w->maps[i], w->maps[i].data, w->maps[i].n_bytes);
}

/* --- what is left over -------------------------------------------------------------------------------------------------- */

/* The name with numbers between dots replaced: blk.*.attn_q.bias is one kind. */
static void kind_of(const char *name, char kind[160]) {
  size_t at = 0;
  for (const char *p = name; *p && at < 150;) {
    if ((p == name || p[-1] == '.') && *p >= '0' && *p <= '9') {
      kind[at++] = '*';
      while (*p >= '0' && *p <= '9') p++;
    } else kind[at++] = *p++;
  }
  kind[at] = 0;
}

struct leftover {
  char kind[160];
  const struct entry *first;
  size_t n;
};

/* "v.", "mm." and "a." are two encoders; one that was left out altogether is not missed. */
static bool is_of_sound(const struct entry *t) { return str_starts(str_c(t->name), "a.") || str_starts(str_c(t->name), "mm.a."); }
static bool has_fetched(const struct weights *w, bool of_sound) {
  for (size_t i = 0; i < w->n_entries; i++)
    if (w->entries[i].media && w->entries[i].fetched && is_of_sound(&w->entries[i]) == of_sound) return true;
  return false;
}

int weights_report_unused(struct weights *w, bool strict, struct err *e) {
  enum { KINDS_MAX = 20 };
  struct leftover kinds[KINDS_MAX];
  size_t n_kinds = 0, n_all = 0;
  const struct entry *first = NULL;
  const bool encodes[2] = {has_fetched(w, false), has_fetched(w, true)};
  for (size_t i = 0; i < w->n_entries; i++) {
    struct entry *t = &w->entries[i];
    if (t->fetched || (t->told && !strict) || (t->media ? !encodes[is_of_sound(t)] : t->skipped)) continue;
    if (!first) first = t;
    t->told = !strict;
    n_all++;
    char kind[160];
    kind_of(t->own, kind);
    size_t k = 0;
    while (k < n_kinds && strcmp(kinds[k].kind, kind) != 0) k++;
    if (k == KINDS_MAX) continue;
    if (k == n_kinds) {
      memcpy(kinds[k].kind, kind, sizeof kind);
      kinds[k].first = t;
      kinds[k].n = 0;
      n_kinds++;
    }
    kinds[k].n++;
  }
  if (!n_all) return 0;
  char label[200], text[200];
  if (strict)
    return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: not part of a %s model as this build knows it (%zu such tensors)",
                   file_label(w, first, label), str_escape(str_c(first->own), text, sizeof text), model_family_name(w->config->family),
                   n_all);
  size_t told = 0;
  for (size_t k = 0; k < n_kinds; k++) {
    log_line(LOG_WARN, "weights", "%s: unused: %s (%zu tensors)", file_label(w, kinds[k].first, label),
             str_escape(str_c(kinds[k].kind), text, sizeof text), kinds[k].n);
    told += kinds[k].n;
  }
  if (told < n_all) log_line(LOG_WARN, "weights", "and %zu more unused tensors", n_all - told);
  return 0;
}

/* --- quantising at load -------------------------------------------------------------------------------------------------- */

enum dtype weights_type(const char *name, enum dtype own, int64_t cols, enum dtype quant) {
  bool plain = own == DTYPE_F32 || own == DTYPE_F16 || own == DTYPE_BF16;
  if (quant == DTYPE_NONE || quant == DTYPE_F32 || !plain || cols % dtype_info(quant)->block_elems) return own;
  struct str s = str_c(name);
  if (str_ends(s, "ffn_gate_inp.weight")) return own; /* a router: no file has it rounded */
  if (weight_is_media(name)) return own;              /* encoders: a small part of the bytes, and what is lost there nothing brings back */
  if (str_is(s, "per_layer_token_embd.weight")) return own; /* only looked up: it takes no memory */
  if (str_is(s, "token_embd.weight") || str_is(s, "output.weight")) return DTYPE_Q8_0;
  return quant;
}

/* --- observers ---------------------------------------------------------------------------------------------------------- */

const struct gguf *weights_gguf(const struct weights *w) { return w->is_gguf ? &w->set.parts[0] : NULL; }
const char *weights_folder(const struct weights *w) { return w->folder; }
const char *weights_format(const struct weights *w) { return w->format; }
size_t weights_count(const struct weights *w) { return w->n_entries; }

size_t weights_total_bytes(const struct weights *w) {
  size_t n = 0; /* no more than the files' sizes, which fit together in the address space */
  for (size_t i = 0; i < w->n_entries; i++) n += w->entries[i].n_bytes;
  return n;
}

struct weight_entry weights_at(const struct weights *w, size_t i) {
  CHECK(i < w->n_entries);
  const struct entry *t = &w->entries[i];
  struct weight_entry out = {.name = t->own,
                             .gguf_name = t->name,
                             .dtype = t->dtype,
                             .n_dims = t->n_dims,
                             .n_bytes = t->n_bytes,
                             .skipped = t->skipped,
                             .media = t->media};
  memcpy(out.shape, t->shape, sizeof out.shape);
  return out;
}

int weights_unchanged(const struct weights *w, struct err *e) {
  char label[200];
  for (int i = 0; i < w->n_maps; i++)
    if (!map_unchanged(&w->maps[i]))
      return err_set(e, ERR_IO, "%s: the file on disk is no longer the one that was opened", map_label(&w->maps[i], label));
  return 0;
}
