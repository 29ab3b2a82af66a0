/* weights_split.c — finding and checking the parts of a split GGUF. */
#include "files/weights_split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Bytes of "-00001-of-00003.gguf". */
enum { SUFFIX_BYTES = 20 };

static bool five_digits(const char *p, int *n) {
  int64_t v;
  if (!str_to_i64(str_of(p, 5), 0, 99999, &v)) return false;
  *n = (int)v;
  return true;
}

/* Does path end like a part? Then which of how many; *stem is the length before the suffix. */
static bool parse_part_name(const char *path, size_t *stem, int *number, int *count) {
  size_t n = strlen(path);
  if (n < SUFFIX_BYTES) return false;
  const char *s = path + n - SUFFIX_BYTES;
  *stem = n - SUFFIX_BYTES;
  return s[0] == '-' && five_digits(s + 1, number) && !memcmp(s + 6, "-of-", 4) && five_digits(s + 10, count) && !strcmp(s + 15, ".gguf");
}

static int open_part(struct gguf_set *s, const char *path, struct err *e) {
  struct map *m = &s->maps[s->n_parts];
  if (map_open(m, path, e) != 0) return -1;
  s->n_parts++; /* from here on gguf_set_close takes care of it */
  return gguf_open(&s->parts[s->n_parts - 1], m, e);
}

/* split.count and split.no, 1 and 0 when absent. */
static int split_keys(const struct gguf *g, uint32_t *count, uint32_t *no, struct err *e) {
  *count = 1;
  *no = 0;
  return gguf_u32(g, "split.count", count, e) < 0 || gguf_u32(g, "split.no", no, e) < 0 ? -1 : 0;
}

static int check_part(const struct gguf *g, uint32_t count, uint32_t no, struct err *e) {
  uint32_t own_count, own_no;
  char label[200];
  if (split_keys(g, &own_count, &own_no, e) != 0) return -1;
  if (own_count != count || own_no != no)
    return err_set(e, ERR_BAD_FILE, "%s: expected part %u of %u, its metadata says part %u of %u", map_label(g->map, label), no + 1, count,
                   own_no + 1, own_count);
  return 0;
}

/* Parts of one set were written together: what two of them say about the whole must be the same. */
static int check_same_set(const struct gguf *first, const struct gguf *g, struct err *e) {
  uint32_t total = 0, own_total = 0;
  struct str arch = {0}, own_arch = {0};
  char label[200], first_arch[64], found_arch[64];
  if (gguf_u32(g, "split.tensors.count", &own_total, e) < 0 || gguf_str(g, "general.architecture", &own_arch, e) < 0) return -1;
  if (gguf_u32(first, "split.tensors.count", &total, e) > 0 && own_total && own_total != total)
    return err_set(e, ERR_BAD_FILE, "%s: key split.tensors.count: expected %u as in the first part, file has %u: it belongs to another set",
                   map_label(g->map, label), total, own_total);
  if (gguf_str(first, "general.architecture", &arch, e) > 0 && own_arch.p && !str_eq(arch, own_arch))
    return err_set(
        e, ERR_BAD_FILE, "%s: key general.architecture: expected %s as in the first part, file has %s: it belongs to another set",
        map_label(g->map, label), str_escape(arch, first_arch, sizeof first_arch), str_escape(own_arch, found_arch, sizeof found_arch));
  return 0;
}

static int check_total(const struct gguf_set *s, struct err *e) {
  uint32_t expected = 0;
  size_t n = 0;
  int found = gguf_u32(&s->parts[0], "split.tensors.count", &expected, e);
  for (int i = 0; i < s->n_parts; i++) n += s->parts[i].n_tensors;
  char label[200];
  if (found > 0 && n != expected)
    return err_set(e, ERR_BAD_FILE, "%s: key split.tensors.count: expected %u tensors in all parts, found %zu",
                   map_label(s->parts[0].map, label), expected, n);
  return found < 0 ? -1 : 0;
}

/* All parts, given that `path` is one of them. */
static int open_parts(struct gguf_set *s, const char *path, uint32_t count, struct err *e) {
  char label[200];
  size_t stem;
  int number, named_count, result = -1;
  path_label(path, label);
  if (count < 2 || count > SPLIT_PARTS_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: key split.count: expected 2 to %d parts, file has %u", label, SPLIT_PARTS_MAX, count);
  if (!parse_part_name(path, &stem, &number, &named_count) || (uint32_t)named_count != count)
    return err_set(e, ERR_BAD_FILE, "%s: it is one of %u parts, expected a name that ends in -00001-of-%05u.gguf to find the others by",
                   label, count, count);
  s->maps = xcalloc(count, sizeof *s->maps);
  s->parts = xcalloc(count, sizeof *s->parts);
  char *part = xmalloc(stem + SUFFIX_BYTES + 1);
  for (uint32_t i = 0; i < count; i++) {
    snprintf(part, stem + SUFFIX_BYTES + 1, "%.*s-%05u-of-%05u.gguf", (int)stem, path, i + 1, count);
    if (open_part(s, part, e) != 0) {
      if (e && e->code == ERR_NOT_FOUND)
        err_set(e, ERR_NOT_FOUND, "%s: expected part %u of %u beside %s, no such file", path_label(part, (char[200]){0}), i + 1, count,
                i ? "the first part" : "the other parts");
      goto done;
    }
    if (check_part(&s->parts[i], count, i, e) != 0 || check_same_set(&s->parts[0], &s->parts[i], e) != 0) goto done;
  }
  result = check_total(s, e);
done:
  free(part);
  return result;
}

int gguf_set_open(struct gguf_set *s, const char *path, struct err *e) {
  *s = (struct gguf_set){0};
  s->maps = xcalloc(1, sizeof *s->maps);
  s->parts = xcalloc(1, sizeof *s->parts);
  uint32_t count, no;
  if (open_part(s, path, e) != 0 || split_keys(&s->parts[0], &count, &no, e) != 0) goto fail;
  if (count == 1) return 0;
  gguf_set_close(s);
  if (open_parts(s, path, count, e) == 0) return 0;
fail:
  gguf_set_close(s);
  return -1;
}

void gguf_set_close(struct gguf_set *s) {
  for (int i = 0; i < s->n_parts; i++) {
    gguf_close(&s->parts[i]);
    map_close(&s->maps[i]);
  }
  free(s->parts);
  free(s->maps);
  *s = (struct gguf_set){0};
}
