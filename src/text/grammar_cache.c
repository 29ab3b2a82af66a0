#include "base/mem.h"
#include "text/grammar.h"
#include <stdlib.h>
struct grammar_cache {
  int unused;
};
struct grammar_cache *grammar_cache_new(const struct tokenizer *t) {
  (void)t;
  return xcalloc(1, sizeof(struct grammar_cache));
}
void grammar_cache_delete(struct grammar_cache *c) { free(c); }
struct grammar *grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, struct str text, struct err *e) {
  (void)c;
  (void)kind;
  (void)text;
  err_set(e, ERR_UNSUPPORTED, "grammars: not in this build");
  return NULL;
}
