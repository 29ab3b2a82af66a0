/* command_input.c — what several commands read: models, prompts, lists of ids and numbers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "commands.h"
#include "files/map.h"

enum { INPUT_BYTES_MAX = 256 << 20 };

int command_fail(const struct err *e) {
  fprintf(stderr, "cygnet: %s\n", e->msg);
  return err_exit_status(e->code);
}

int command_fail_public(const struct cygnet_error *e) {
  fprintf(stderr, "cygnet: %s\n", e->message);
  return e->exit_status ? e->exit_status : 1;
}

struct cygnet *command_open(const struct options *o, int *status) {
  struct err e = {0};
  struct cygnet_error pe = {0};
  if (!o->model) {
    err_set(&e, ERR_BAD_INPUT, "no model given: add -m PATH, a GGUF file or a folder with config.json and safetensors");
    *status = command_fail(&e);
    return NULL;
  }
  struct cygnet_options eo;
  options_engine(o, &eo);
  struct cygnet *c = cygnet_open(&eo, &pe);
  if (!c) *status = command_fail_public(&pe);
  return c;
}

char *command_read_all(int fd, const char *what, size_t max_bytes, size_t *n, struct err *e) {
  struct buf b;
  buf_init(&b, max_bytes);
  char block[65536];
  for (;;) {
    ssize_t got = read(fd, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      err_set(e, ERR_IO, "%s: %s", what, strerror(errno));
      break;
    }
    if (got == 0) {
      buf_append(&b, "", 0);
      return buf_take(&b, n);
    }
    if (!buf_append(&b, block, (size_t)got)) {
      err_set(e, ERR_TOO_LARGE, "%s: more than %zu bytes", what, max_bytes);
      break;
    }
  }
  buf_free(&b);
  return NULL;
}

char *command_read_file(const char *path, size_t *n, struct err *e) {
  if (!strcmp(path, "-")) return command_read_all(STDIN_FILENO, "standard input", INPUT_BYTES_MAX, n, e);
  char label[200];
  path_label(path, label);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_BAD_FILE, "%s: %s", label, strerror(errno));
    return NULL;
  }
  char *text = command_read_all(fd, label, INPUT_BYTES_MAX, n, e);
  close(fd);
  if (!text && e->code == ERR_IO) e->code = ERR_BAD_FILE;
  return text;
}

static bool is_between_ids(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

int command_ids(const char *list, int32_t **ids, size_t *n, struct err *e) {
  char *owned = NULL;
  size_t len = strlen(list);
  if (list[0] == '@') {
    owned = command_read_file(list + 1, &len, e);
    if (!owned) return -1;
    list = owned;
  }
  struct buf out;
  buf_init(&out, 0);
  size_t i = 0;
  int status = 0;
  while (i < len && !status) {
    while (i < len && is_between_ids(list[i])) i++;
    size_t start = i;
    while (i < len && !is_between_ids(list[i])) i++;
    if (i == start) continue;
    int64_t v;
    char shown[64];
    if (!str_to_i64(str_of(list + start, i - start), 0, INT32_MAX, &v))
      status = err_set(e, ERR_BAD_INPUT, "--ids: expected decimal token ids, found \"%s\"",
                       str_escape(str_of(list + start, i - start), shown, sizeof shown));
    else {
      int32_t id = (int32_t)v;
      buf_append(&out, &id, sizeof id);
    }
  }
  free(owned);
  if (!status && out.len == 0) status = err_set(e, ERR_BAD_INPUT, "--ids: expected at least one token id, found none");
  if (status) {
    buf_free(&out);
    return -1;
  }
  *n = out.len / sizeof(int32_t);
  size_t bytes;
  *ids = (int32_t *)buf_take(&out, &bytes);
  return 0;
}

int command_prompt(const struct options *o, const struct cygnet *c, int32_t **ids, size_t *n) {
  struct err e = {0};
  int given = (o->prompt != NULL) + (o->file != NULL) + (o->ids != NULL);
  if (given != 1) {
    err_set(&e, ERR_BAD_INPUT, "expected one prompt, found %s: give -p TEXT, -f FILE or --ids LIST", given ? "several" : "none");
    return command_fail(&e);
  }
  if (o->ids) return command_ids(o->ids, ids, n, &e) ? command_fail(&e) : 0;
  char *owned = NULL;
  size_t len = o->prompt ? strlen(o->prompt) : 0;
  if (o->file) {
    owned = command_read_file(o->file, &len, &e);
    if (!owned) return command_fail(&e);
  }
  int bad = cygnet_encode(c, owned ? owned : o->prompt, len, o->special, 1, ids, n);
  free(owned);
  if (bad) {
    err_set(&e, ERR_BAD_INPUT, "the prompt could not be tokenised");
    return command_fail(&e);
  }
  return 0;
}

int command_numbers(const char *list, const char *option, int64_t lo, int64_t hi, int64_t *out, int max, struct err *e) {
  int n = 0;
  for (const char *p = list; *p;) {
    size_t len = strcspn(p, ",");
    char shown[64];
    if (n == max) return err_set(e, ERR_BAD_INPUT, "%s: expected at most %d numbers", option, max);
    if (!str_to_i64(str_of(p, len), lo, hi, &out[n]))
      return err_set(e, ERR_BAD_INPUT, "%s: expected numbers from %lld to %lld, found \"%s\"", option, (long long)lo, (long long)hi,
                     str_escape(str_of(p, len), shown, sizeof shown));
    n++;
    p += len;
    if (*p == ',') p++;
  }
  if (n == 0) return err_set(e, ERR_BAD_INPUT, "%s: expected at least one number", option);
  return n;
}
