/* released.h — the real vocabularies of every family.
 *
 * They are not in the tree: Gemma 3's is in the sample model, the others are put into build/vocab by tools/vocab.py (CYGNET_VOCAB names another
 * folder). What is missing is said, and its tests are skipped.
 */
#ifndef CYGNET_TESTS_RELEASED_H
#define CYGNET_TESTS_RELEASED_H

#include "sample.h"

struct source {
  const char *family; /* key in the lines, end of the file's name */
  const char *file;   /* in build/vocab; NULL: the sample model */
  int n_vocab;
  double open_s; /* longest time for opening it, several times what a quiet machine takes */
  struct tokenizer *tok;
};
static struct source sources[] = {
    {"gemma3", NULL, 262144, 0.2, NULL},
    {"gemma4", "ggml-vocab-gemma-4.gguf", 262144, 0.8, NULL},
    {"llama3", "llama3", 128257, 1.0, NULL},
    {"llama3", "ggml-vocab-llama-bpe.gguf", 128256, 0.6, NULL},
};
static struct source *const gemma3 = &sources[0], *const gemma4 = &sources[1], *const llama3 = &sources[2],
                            *const llama3_first = &sources[3];

/* Skips the calling test when the file is not there. */
static inline const char *source_path(const struct source *s) {
  static char path[4096];
  const char *folder = getenv("CYGNET_VOCAB");
  if (!s->file) {
    if (sample_path()) return sample_path();
    print_message("no sample model (set CYGNET_SAMPLE_MODEL): skipped\n");
    skip();
  }
  snprintf(path, sizeof path, "%s/%s", folder && *folder ? folder : test_path("../build/vocab"), s->file);
  if (access(path, R_OK) != 0) {
    print_message("no %s in build/vocab (tools/vocab.py fetches it): skipped\n", s->file);
    skip();
  }
  return path;
}

static inline const struct tokenizer *open_source(struct source *s) {
  struct err e = {0};
  const char *path = source_path(s);
  if (!s->tok) s->tok = tok_open(path, &e);
  if (!s->tok) fail_msg("%s", e.msg);
  return s->tok;
}

/* Teardown of a program's last test. */
static inline int close_sources(void **state) {
  (void)state;
  for (size_t k = 0; k < ARRAY_LEN(sources); k++) {
    tok_close(sources[k].tok);
    sources[k].tok = NULL;
  }
  return 0;
}

#endif
