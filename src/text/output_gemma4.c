/* output_gemma4.c — call:NAME{key:value,...}, as Gemma 4 writes calls between its markers. */
#include <string.h>

#include "text/output_impl.h"

static bool ends_name(char c) {
  return (unsigned char)c <= ' ' || c == '{' || c == '}' || c == '<' || c == '>' || c == '\x7f' || c == OUTPUT_QUOTE;
}

bool output_gemma4_call(struct str raw, struct values *scratch, output_call_fn fn, void *ctx) {
  static const char word[] = "call:";
  struct values_reader r = {.p = raw.p, .end = raw.p + raw.n, .syntax = SYNTAX_GEMMA4, .out = scratch};
  values_clear(scratch);
  values_skip_blanks(&r);
  if ((size_t)(r.end - r.p) < strlen(word) || memcmp(r.p, word, strlen(word))) return false;
  r.p += strlen(word);
  values_skip_blanks(&r);
  struct str name = str_of(r.p, 0);
  while (r.p < r.end && !ends_name(*r.p)) r.p++;
  name.n = (size_t)(r.p - name.p);
  values_skip_blanks(&r);
  if (!name.n || r.p == r.end || *r.p != '{') return false;
  int i = values_read(&r, 0, -1);
  values_skip_blanks(&r);
  if (i < 0 || r.p != r.end) return false;
  struct buf arguments;
  buf_init(&arguments, 0);
  values_put(scratch, i, &arguments);
  fn(ctx, name, str_of(buf_cstr(&arguments), arguments.len));
  buf_free(&arguments);
  return true;
}
