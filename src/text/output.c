#include "text/output.h"
#include "base/mem.h"
#include <stdlib.h>
struct output {
  struct output_options o;
  output_fn fn;
  void *ctx;
};
struct output *output_new(const struct tokenizer *t, const struct output_options *o, output_fn fn, void *ctx) {
  (void)t;
  struct output *out = xcalloc(1, sizeof *out);
  out->o = *o;
  out->fn = fn;
  out->ctx = ctx;
  return out;
}
void output_delete(struct output *o) { free(o); }
void output_text(struct output *o, const char *text, size_t n) {
  o->fn(o->ctx, &(struct output_part){.kind = OUTPUT_CONTENT, .text = str_of(text, n)});
}
void output_mark(struct output *o, int32_t id) {
  (void)o;
  (void)id;
}
void output_raw(struct output *o, const char *text, size_t n) { output_text(o, text, n); }
void output_finish(struct output *o) { (void)o; }
int output_calls(const struct output *o) {
  (void)o;
  return 0;
}
bool output_in_thought(const struct output *o) { return o->o.in_thought; }
