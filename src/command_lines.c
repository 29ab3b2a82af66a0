/* command_lines.c — JSON lines in, JSON lines out, for commands that need no more of a model than its vocabulary. */
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "files/json.h"

struct tokenizer *command_tokenizer(const struct options *o, int *status) {
  struct err e = {0};
  struct tokenizer *t = NULL;
  if (!o->model) err_set(&e, ERR_BAD_INPUT, "no model given: add -m PATH, a GGUF file or a folder with tokenizer.json");
  else t = tok_open(o->model, &e);
  if (!t) *status = command_fail(&e);
  return t;
}

static void print_line(const json_t *v) {
  struct buf b;
  buf_init(&b, 0);
  json_put(&b, v);
  buf_putc(&b, '\n');
  fwrite(b.data, 1, b.len, stdout);
  buf_free(&b);
}

static bool do_line(const char *line, size_t n, command_line_fn fn, void *ctx) {
  struct err e = {0};
  json_t *in = json_load_text(line, n, true, "line", &e), *out = in ? fn(ctx, in, &e) : NULL;
  bool good = out != NULL;
  if (!good) {
    out = json_object();
    json_object_set_new(out, "error", json_string(e.msg));
  }
  print_line(out);
  json_decref(out);
  json_decref(in);
  return good;
}

int command_lines(command_line_fn fn, void *ctx) {
  char *line = NULL;
  size_t cap = 0;
  int status = 0;
  for (ssize_t n; (n = getline(&line, &cap, stdin)) >= 0;) {
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    if (n && !do_line(line, (size_t)n, fn, ctx)) status = 2;
  }
  free(line);
  return status;
}
