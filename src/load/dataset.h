/* dataset.h — prompts of a file: JSON lines, or ShareGPT's JSON. */
#ifndef CYGNET_LOAD_DATASET_H
#define CYGNET_LOAD_DATASET_H

#include "base/err.h"

struct dataset_row {
  char *prompt;      /* owned */
  int output_tokens; /* 0: the file does not say */
};
struct dataset {
  struct dataset_row *v; /* owned */
  int n;
};

/* Two kinds of files, told apart by their first byte that is no blank:
 *   {   a line for each prompt: {"prompt": "...", "output_len": 128}; output_len may be missing
 *   [   ShareGPT: [{"conversations": [{"value": "..."}, {"value": "..."}]}, ...]: the first two turns are a prompt and its answer, in an order that the seed
 *       shuffles. An answer's tokens are taken to be a quarter of its bytes; pairs with less than two tokens on a side are passed over.
 * 0, or -1 and *e. At least one row. */
int dataset_read(struct dataset *d, const char *path, uint64_t seed, struct err *e);
void dataset_free(struct dataset *d);

#endif
