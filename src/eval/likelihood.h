/* likelihood.h — how likely a model finds a text (perplexity), and how far its distributions are from a reference's (KL divergence).
 *
 * Perplexity: the text's tokens are read in windows; each token is scored once, given all that stands before it in the first window that
 * reaches it. A model that begins texts with BOS has one in front of each window. The log-probabilities are those of the engine, of all of
 * the vocabulary.
 * KL: of the reference against the model, at every position of the reference's prompts, in double precision. A reference that keeps only the
 * likeliest tokens is compared over these and, as one more outcome, all others.
 */
#ifndef CYGNET_EVAL_LIKELIHOOD_H
#define CYGNET_EVAL_LIKELIHOOD_H

#include "cygnet.h"
#include "eval/url.h"

/* ---- perplexity ------------------------------------------------------------------------------------------------------------------ */

struct scorer { /* who gives log-probabilities of prompts: a model in this process, or SGLang's /generate */
  struct cygnet *c;
  const struct url *u; /* where c is NULL */
};
/* out[i] of n - from: log-probability of ids[from + i] given all before it. from >= 1. */
int scorer_score(const struct scorer *s, const int32_t *ids, int n, int from, double *out, struct err *e);
/* Ids of a text (owned, free()), without BOS, and the BOS that goes in front of each window, -1: none. */
int scorer_encode(const struct scorer *s, const char *text, size_t n_text, int32_t **ids, size_t *n, int32_t *bos, struct err *e);

struct perplexity {
  double nll, squares; /* sums over tokens */
  int64_t tokens;
  int windows;
};
struct perplexity_options {
  int window, stride, limit; /* limit: most windows; 0: all */
  int32_t bos;               /* -1: none */
  bool progress;
  bool (*stopped)(void);
};
int perplexity(const struct scorer *s, const int32_t *ids, size_t n, const struct perplexity_options *o, struct perplexity *out,
               struct err *e);
/* What a .jsonl's rows say in "text", an empty line between; other files as they are; a folder's one after another. Owned. */
char *perplexity_text(const char *path, size_t *n, struct err *e);

/* ---- KL divergence ----------------------------------------------------------------------------------------------------------------- */

struct kl_prompt {
  char *name; /* owned; "" where the file has one prompt without a name */
  double sum, largest;
  int positions, same_best;
};
struct kl {
  struct kl_prompt *prompts; /* owned */
  int n;
};
/* path: a safetensors file with NAME.ids int32 [T] and either NAME.logits f32 [T, vocab] or NAME.top_ids int32 [T, K] and NAME.top_logprobs
 * f32 [T, K], best first; without NAME and the point for one prompt, as `cygnet logits` writes it. */
int kl_compare(struct cygnet *c, const char *path, bool (*stopped)(void), struct kl *out, struct err *e);
void kl_free(struct kl *k);

#endif
