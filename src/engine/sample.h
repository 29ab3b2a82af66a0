/* sample.h — from one row of logits to one token.
 *
 * Rules
 *   1. The steps, in this order; each is off at its default:
 *        frequency, presence   x -= count * frequency + (count > 0) * presence     counts of *generated* tokens, never of the prompt
 *        min_tokens            x = -inf for stop ids until that many tokens were generated
 *        repetition            x = x < 0 ? x * r : x / r                           for every id generated before
 *        allowed               x = -inf for ids that the grammar does not allow
 *        bias                  x += bias; -100 bans (x = -inf)
 *        suppressed            x = -inf                                            last, so that nothing brings such an id back
 *        temperature           weight = exp((x - max) / temperature)
 *        top-k, top-p, min-p   below
 *   2. Candidates have one order: logit descending, then id ascending. Each filter keeps a prefix of it, measured on the whole softmax
 *      whatever the other filters do, and the shortest prefix is what is sampled from:
 *        top-k   the first k
 *        top-p   while the probability before a candidate is <= top_p, so that the one which crosses top_p still belongs
 *        min-p   while the probability is >= min_p * that of the first
 *   3. The choice is the inverse of the cumulative distribution over that prefix, in that order, at rng_uniform(seed, position): equal
 *      logits, parameters, seed and position give the same token whatever else is in the batch, in this process or another.
 *   4. Greedy (temperature < 1e-6, or top_k 1) is the first candidate: the greatest logit, the lowest id among equals.
 *   5. Log-probabilities are log-softmax of the logits as the model gave them: before every step of rule 1.
 *   6. NaN or +inf anywhere in the row fails that request with ERR_INTERNAL; -inf is a token that is never sampled. A row where nothing is
 *      left to sample fails, too (ERR_BAD_INPUT when it is the grammar and the request's other wishes together that leave nothing).
 *   7. Nothing is allocated per token. One scratch serves any number of requests, one at a time: one per thread that samples.
 */
#ifndef CYGNET_SAMPLE_H
#define CYGNET_SAMPLE_H

#include "base/base.h"
#include "base/err.h"
#include "compute/kern.h"

enum {
  SAMPLE_TOP_MAX = 20,    /* alternatives that come with log-probabilities */
  SAMPLE_BIAS_MAX = 1024, /* entries of logit_bias */
  SAMPLE_BAN = -100,      /* a bias of this bans */
};

struct sample_bias {
  int32_t id;
  float bias; /* -100 .. 100 */
};

struct sample_params {
  double temperature;        /* >= 0; default 1 */
  double top_p;              /* (0, 1]; default 1 */
  double min_p;              /* [0, 1]; default 0 */
  double frequency_penalty;  /* [-2, 2]; default 0 */
  double presence_penalty;   /* [-2, 2]; default 0 */
  double repetition_penalty; /* (0, 2]; default 1 */
  int top_k;                 /* >= 1, or -1 = all; default -1 */
  int min_tokens;            /* 0 .. max_tokens; default 0 */
  int max_tokens;            /* >= 0, or -1 = no limit of its own; default -1 */
  int n_logprobs;            /* -1 = none, 0 = of the sampled token, n = and of the n best; default -1 */
  uint64_t seed;
  const struct sample_bias *bias; /* [n_bias], borrowed */
  int n_bias;
  const int32_t *stop_ids; /* [n_stop_ids], borrowed: what min_tokens holds back */
  int n_stop_ids;
  const int32_t *suppressed; /* [n_suppressed], borrowed: ids that the model must never say, such as placeholders of pictures */
  int n_suppressed;
};

struct sample_count {
  int32_t id, count;
};

/* One request's side of sampling; owned by the request, survives its retraction. */
struct sample_state {
  struct sample_params params; /* checked; its lists are owned copies */
  const uint32_t *allowed; /* one bit per id, borrowed, of the grammar for this one token; NULL = all. What it bans comes back by nothing */
  int n_allowed;           /* ids that it has bits for; those beyond are banned, too */
  int n_generated;
  int n_ids;                /* different ids among them; counted only when a penalty asks for it */
  int ids_max;              /* 0 = no penalty */
  struct sample_count *ids; /* [ids_max], in order of first appearance */
  int32_t *table;           /* [table_mask + 1] open addressing: index into ids + 1, 0 = empty */
  uint32_t table_mask;
};

struct sample_logprob {
  int32_t id;
  float logprob;
};
struct sample_result {
  int32_t id;
  float logprob; /* of id; this and the rest only when n_logprobs >= 0 */
  int n_top;     /* fewer than asked when fewer ids are possible */
  struct sample_logprob top[SAMPLE_TOP_MAX];
};

struct sample_scratch {
  const struct sample_kern *kern;
  void (*peaks)(float *restrict peaks, const float *restrict x, int n); /* compute/kern.h */
  int vocab, n_blocks;
  float max;                     /* of the row that was scanned last */
  float *block_max;              /* [n_blocks] */
  float *heap;                   /* [n_blocks] */
  struct sample_candidate *list; /* [vocab + 1] */
  struct sample_candidate *swap; /* [vocab] */
  float *weights;                /* [vocab], of the list */
  float *masked;                 /* [vocab]: the row without what a grammar bans; -inf throughout between calls */
  bool masked_is_clear;          /* at first it is not */
  struct sample_edit *edits;     /* [vocab]: logits as they were, to put them back; each id once */
  uint64_t *edited;              /* one bit per id: is it among the edits? */
  int n_edits;
};

struct sample_params sample_params_default(void);
/* Every number against its range, every id against the vocabulary. The sentence names the field as the HTTP interface spells it. */
int sample_params_check(const struct sample_params *p, int vocab, struct err *e);

/* 33 bytes per id, most of it touched only when needed. */
int sample_scratch_init(struct sample_scratch *sc, int vocab, struct err *e);
void sample_scratch_free(struct sample_scratch *sc); /* fine on a zeroed one */

/* Checks p, copies what it borrows, makes room to count tokens_max generated tokens. */
int sample_state_init(struct sample_state *s, const struct sample_params *p, int vocab, int tokens_max, struct err *e);
void sample_state_free(struct sample_state *s);               /* fine on a zeroed one */
void sample_state_add(struct sample_state *s, int32_t token); /* after each token that stays in the output */

/* Choose the token for `position` (its index in the whole sequence, prompt included). logits [vocab] are edited in place and put back
 * before return, after a failure too. peaks: what came with them (compute/head.h); NULL: they are looked for. */
int sample_token(struct sample_scratch *sc, const struct sample_state *s, float *logits, const float *peaks, uint64_t position,
                 struct sample_result *out, struct err *e);
/* How many of the greatest logits sample_token looks at, whatever they are: the rest may be left out, as compute/head.h says. 0: it needs all. */
int sample_n_best(const struct sample_state *s);
/* Whether the request's own wishes forbid id as its next token: logit_bias, suppressed, or an end before min_tokens. */
bool sample_bans(const struct sample_state *s, int32_t id);
/* Log-probability of a given token and the n_top best (rule 5), for prompts. id -1 = none, logprob is then 0. */
int sample_logprobs(struct sample_scratch *sc, const float *logits, const float *peaks, int32_t id, int n_top, struct sample_result *out,
                    struct err *e);

#endif
