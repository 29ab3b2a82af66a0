/* safetensors_write.c — writing one file: header padded to 8 bytes, wider elements first, so that all data is aligned. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "files/safetensors.h"

/* Name in the format, or NULL. */
static const char *type_name(enum dtype t) {
  switch (t) {
  case DTYPE_F32: return "F32";
  case DTYPE_F16: return "F16";
  case DTYPE_BF16: return "BF16";
  case DTYPE_I32: return "I32";
  case DTYPE_I64: return "I64";
  case DTYPE_F64: return "F64";
  case DTYPE_U8: return "U8";
  default: return NULL;
  }
}

static int tensor_bytes(const struct st_write *t, size_t *n_bytes, struct err *e) {
  char text[160];
  str_escape(str_c(t->name), text, sizeof text);
  if (!type_name(t->dtype)) return err_set(e, ERR_BAD_INPUT, "tensor %s: its type cannot be written to a safetensors file", text);
  if (t->n_dims < 0 || t->n_dims > (int)ARRAY_LEN(t->shape))
    return err_set(e, ERR_BAD_INPUT, "tensor %s: expected 0 to %zu dimensions, found %d", text, ARRAY_LEN(t->shape), t->n_dims);
  *n_bytes = (size_t)dtype_info(t->dtype)->block_bytes;
  for (int i = 0; i < t->n_dims; i++)
    if (t->shape[i] < 0 || size_mul_overflows(*n_bytes, (size_t)t->shape[i], n_bytes))
      return err_set(e, ERR_BAD_INPUT, "tensor %s: dimension %d is %lld: too large or negative", text, i, (long long)t->shape[i]);
  return 0;
}

/* One slot of the file: which tensor stands there. */
struct place {
  int index, elem_bytes;
  size_t n_bytes;
};
static int compare_place(const void *a, const void *b) {
  const struct place *x = a, *y = b;
  return x->elem_bytes != y->elem_bytes ? y->elem_bytes - x->elem_bytes : x->index - y->index;
}

static int put_header(struct buf *b, const struct st_write *t, const struct place *places, int n, struct err *e) {
  size_t at = 0;
  buf_puts(b, "{");
  for (int i = 0; i < n; i++) {
    const struct st_write *w = &t[places[i].index];
    buf_puts(b, i ? ",\"" : "\"");
    buf_json_escape(b, w->name, strlen(w->name));
    buf_printf(b, "\":{\"dtype\":\"%s\",\"shape\":[", type_name(w->dtype));
    for (int d = 0; d < w->n_dims; d++) buf_printf(b, d ? ",%lld" : "%lld", (long long)w->shape[d]);
    size_t end;
    if (size_add_overflows(at, places[i].n_bytes, &end)) return err_set(e, ERR_TOO_LARGE, "the tensors take more than 2^64 bytes");
    buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", at, end);
    at = end;
  }
  buf_puts(b, "}");
  while (b->len % 8 && !b->overflow) buf_putc(b, ' ');
  return b->overflow ? err_set(e, ERR_TOO_LARGE, "the header of the safetensors file is too large") : 0;
}

int safetensors_write(const char *path, const struct st_write *t, int n, struct err *e) {
  int result = -1;
  char label[200];
  path_label(path, label);
  FILE *f = NULL;
  struct buf header;
  buf_init(&header, 64 << 20);
  struct place *places = xcalloc(n > 0 ? (size_t)n : 1, sizeof *places);
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < i; j++)
      if (!strcmp(t[i].name, t[j].name)) {
        char text[160];
        err_set(e, ERR_BAD_INPUT, "%s: two tensors are called %s", label, str_escape(str_c(t[i].name), text, sizeof text));
        goto done;
      }
    places[i].index = i;
    if (tensor_bytes(&t[i], &places[i].n_bytes, e) != 0) goto done;
    places[i].elem_bytes = dtype_info(t[i].dtype)->block_bytes;
  }
  qsort(places, (size_t)n, sizeof *places, compare_place);
  if (put_header(&header, t, places, n, e) != 0) goto done;

  struct stat st;
  bool is_file = false; /* a device is written to, but never removed */
  f = fopen(path, "wbe");
  if (!f) {
    err_set(e, ERR_IO, "%s: cannot create: %s", label, strerror(errno));
    goto done;
  }
  is_file = fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode);
  unsigned char length[8];
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header.len >> (8 * i));
  bool ok = fwrite(length, 1, sizeof length, f) == sizeof length && fwrite(header.data, 1, header.len, f) == header.len;
  for (int i = 0; i < n && ok; i++)
    ok = places[i].n_bytes == 0 || fwrite(t[places[i].index].data, 1, places[i].n_bytes, f) == places[i].n_bytes;
  int saved = errno;
  if (fclose(f) != 0 && ok) {
    ok = false;
    saved = errno;
  }
  if (ok) result = 0;
  else {
    err_set(e, ERR_IO, "%s: cannot write: %s", label, strerror(saved));
    if (is_file) unlink(path);
  }
done:
  free(places);
  buf_free(&header);
  return result;
}
