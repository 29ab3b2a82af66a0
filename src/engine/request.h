/* request.h — one request on its way through the engine, in three integers and what belongs to it.
 *
 *   0 ............ n_computed ............ n_tokens ............ n_limit
 *   │ keys and values valid │ known, to compute │ may still come    │
 *
 * to compute = n_tokens - n_computed; a request decodes when that is 1 and the prompt is behind it. Everything else is derived.
 * What comes behind n_tokens may be known before it is said: `ahead` holds n_forced tokens that are certain (a grammar leaves no choice, a thought is
 * to be closed), and in the step that is being put together n_draft guesses behind them. Rows of those are computed beside the last known token's.
 * States: WAITING (in the queue, holds no pages) → RUNNING (has a kv_seq) → DONE (in no list of the scheduler; lives until its last event has
 * been read).
 * Retraction takes a running one back to WAITING with n_computed = 0: its tokens stay, and it later continues to the bit as if nothing had
 * happened. Prompt rows that were reported to a callback are not reported again (n_reported), and what the prefix tree still has of it is
 * not computed again.
 *
 * Pictures and sounds. In `tokens` a row of one is a negative number, -2 - n, where n stands for what is in it (banks.h, names): so two
 * requests have the same tokens exactly where they see the same, and whoever compares tokens needs to know nothing of pictures. batch.c
 * puts in what the model is told. What an encoder made of them lies in banks, held from admission on until no row is left that needs them:
 *   rows of the prompt (Gemma)   a span each, in the store of soft rows; needed while the span is not computed
 *   cross-attention (mllama)     a bank for each group of neighbouring pictures, seen by all rows from its first token to the next group
 *
 * Output collects here until somebody reads it: text and tokens of several steps become one event when nobody has read in between.
 */
#ifndef CYGNET_REQUEST_H
#define CYGNET_REQUEST_H

#include "base/buf.h"
#include "cygnet.h"
#include "engine/draft.h"
#include "engine/sample.h"
#include "files/config.h"
#include "kv/banks.h"
#include "kv/radix.h"
#include "models/media.h"
#include "text/detok.h"
#include "text/grammar.h"
#include "text/stop.h"

enum { REQUEST_STOP_IDS_MAX = 256, REQUEST_AHEAD_MAX = 64, REQUEST_MEDIA_MAX = 4096 };

/* Which tokens of an answer are thoughts: between a family's opening and closing token. While those last that come before the answer (MAY, OPEN) the
 * grammar waits, and with a grammar nothing ends the request. */
struct thoughts {
  enum cygnet_thoughts kind; /* FREE where the family has none */
  int32_t open_id, close_id; /* -1: the family has none */
  bool open, over;           /* inside one now; the answer has begun, so that the grammar holds */
  int n_tokens;              /* so far, their control tokens included */
  int n_max;                 /* when n_tokens has come to it, one that is open is closed, and none is begun; -1 = no limit */
};

/* How the model takes pictures and sounds. */
struct media_rules {
  int32_t image_id, video_id, audio_id; /* placeholders of those that it takes; -1 */
  bool takes;                           /* any at all */
  bool cross;                           /* a picture is a bank to be looked at, and one token of the prompt */
  bool both_ways[KV_KINDS];             /* rows of one picture see each other in layers of that kind */
  int32_t token;                        /* what the model is told at a row of a picture or sound */
  int patches_max[2];                   /* of a picture, of a sound */
  int page_rows;                        /* rows of a page of the store, or of the cross pool */
  struct names *names;                  /* borrows */
};

/* What an id of a prompt stands for: enum media_kind, or -1: itself. */
int request_placeholder(const struct media_rules *m, int32_t id);

struct request_span {        /* a picture or a sound */
  int first, n;              /* rows of the prompt */
  const struct media *media; /* one reference */
  int32_t id;                /* its placeholder */
  bool whole;                /* its rows see each other, so they are computed in one step */
  int bank;                  /* the one that has it: index */
  int bank_end;              /* rows of that bank up to its last one */
};

struct request_bank { /* an entry of the store, or of the cross pool */
  struct bank_key key;
  int first_span, n_spans; /* whose media lie in it one after the other */
  int n_rows;
  int from, until; /* rows of the sequence that need it are inside; until INT_MAX = all that come */
  int32_t entry;   /* 0 = not held */
  int first_row;   /* cross-attention: where it lies in the sequence's table of banks, a multiple of the page; the same for the same key */
};

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_DONE };

struct request {
  uint64_t number; /* ascending in order of arrival */
  int priority;    /* higher first */
  enum request_state state;
  struct request *next, *prev; /* list of its state */

  int32_t *tokens; /* [tokens_cap]: prompt, then output; owned */
  int tokens_cap;
  int n_prompt, n_tokens, n_computed, n_limit;
  struct kv_seq kv;
  struct radix_space space; /* of the prefix tree */
  int n_reuse_max;          /* prompt rows before that may come from the tree; those from here on are wanted computed */
  int n_cached;             /* of the prompt, at its first admission; -1 = not admitted yet */
  int n_adopted;            /* tokens taken over from the tree when it was admitted last */
  int n_picked;             /* its rows in the step that is being put together */
  int n_late;               /* of those, the last ones whose logits wait for another step for lack of places (sched.h 5) */
  uint64_t leader;          /* a follower's memo (sched.h 2): number of the request that it follows, 0 = none, */
  int n_shared;             /* and how many tokens both begin with */

  struct request_span *spans; /* [n_spans], in order; owned */
  struct request_bank *banks; /* [n_banks], in order; owned */
  int n_spans, n_banks;
  int n_media_cached; /* spans that had been encoded, or were in the prefix tree, at its first admission */
  double encode_ms;

  int32_t ahead[REQUEST_AHEAD_MAX]; /* what follows tokens: */
  int n_forced, n_draft;            /* that many that are certain, then guesses of this step */
  struct draft draft;               /* of its own tokens; without memory until it decodes for the first time */
  struct draft_trust drafter_trust; /* in a drafter's guesses for it */
  bool by_drafter;                  /* this step's guesses are the drafter's */

  /* Its stop_ids are every id that ends the request: the caller's and, unless ignore_eos, the model's; with a grammar the tokenizer's, too. */
  struct sample_state sampling;
  struct grammar_state *grammar; /* where the answer is in what it must be; NULL = anything; owned */
  struct thoughts thoughts;
  int n_reasoning; /* tokens of thoughts among those that are said */
  bool keep_stop, ignore_eos;
  bool marks; /* control tokens leave as marks */
  struct detok detok;
  struct stop *stop; /* NULL = no stop strings; owned */

  /* callbacks for prompt rows, as in cygnet_request */
  void (*on_logits)(void *ctx, int position, const float *logits, int vocab);
  void (*on_hidden)(void *ctx, int layer, int position, const float *x, int hidden);
  void *callback_ctx;
  void *user;
  int n_reported;                     /* prompt rows whose callbacks have been called, or whose logprobs have been taken */
  int prompt_logprobs_from;           /* -1 = none; else those of prompt tokens from here on are wanted */
  struct cygnet_token *prompt_tokens; /* [n_prompt - prompt_logprobs_from], owned; NULL = none wanted */
  struct cygnet_logprob *prompt_top;  /* [n_prompt - prompt_logprobs_from, top_max], owned */
  bool prompt_shown;                  /* they were handed out */

  /* output not yet handed out */
  struct request *next_ready; /* queue of requests with an event */
  bool is_ready;
  struct buf text;
  struct cygnet_mark *marks_new; /* [n_marks], owned */
  int n_marks, marks_cap;
  struct cygnet_token *new_tokens; /* [n_new_tokens], owned; their `top` is set when they are handed out */
  struct cygnet_logprob *new_top;  /* [n_new_tokens, top_max], owned */
  int top_max;                     /* alternatives per token: 0 .. SAMPLE_TOP_MAX */
  int n_new_tokens, new_tokens_cap;
  enum cygnet_finish finish;
  int matched_stop;
  int32_t matched_id;
  struct err error;

  int n_retracted;
  int64_t arrived_ns, started_ns, first_token_ns, last_token_ns; /* 0 = not yet */
};

struct request_limits {
  int vocab, ctx_tokens;
  int32_t eos[CONFIG_EOS_MAX]; /* the model's own end-of-generation ids, inside the vocabulary */
  int n_eos;
  int32_t thought_open, thought_close; /* control tokens around thoughts; -1 = the family has none */
  const struct tokenizer *tok;
  struct media_rules media;
};

/* Checks every field and copies what is borrowed. Bad ones: NULL and a sentence that names the field (ERR_BAD_INPUT). Returns owned. */
struct request *request_new(const struct cygnet_request *from, const struct request_limits *limits, struct err *e);
void request_delete(struct request *r); /* its kv_seq is closed before; NULL is fine */

void request_push(struct request *r, int32_t id);                            /* one more known token; n_tokens < n_limit */
void request_reserve(struct request *r, int n);                              /* room in tokens for n of them, n <= n_limit */
void request_put_token(struct request *r, const struct sample_result *from); /* one more token for its next event */
void request_put_mark(struct request *r, int32_t id);                        /* a control token behind the text so far */
void request_put_prompt_token(struct request *r, int position, const struct sample_result *from); /* log-probability of a prompt token */
void request_link_top(struct request *r);     /* set `top` of all new tokens, before they are handed out */
void request_clear_output(struct request *r); /* what was handed out has been read */

const struct request_span *request_span_at(const struct request *r, int position); /* NULL: text */
/* The picture that is cut between positions n - 1 and n and must not be; NULL: none is. */
const struct request_span *request_cut_at(const struct request *r, int n);
/* n, or the beginning of what is cut there. */
static inline int request_uncut(const struct request *r, int n) {
  const struct request_span *y = request_cut_at(r, n);
  return y ? y->first : n;
}

static inline bool request_samples(const struct request *r) { return r->n_tokens < r->n_limit; }
static inline bool request_decodes(const struct request *r) { return r->n_computed + 1 == r->n_tokens && r->n_tokens > r->n_prompt; }
static inline bool request_is_stop_id(const struct request *r, int32_t id) {
  for (int i = 0; i < r->sampling.params.n_stop_ids; i++)
    if (r->sampling.params.stop_ids[i] == id) return true;
  return false;
}
/* The grammar holds now. */
static inline bool request_in_grammar(const struct request *r) {
  return r->grammar && (r->thoughts.kind == CYGNET_THOUGHTS_FREE || r->thoughts.over);
}
/* For struct batch: how many of the greatest logits of each of its next rows are looked at; 0: all. */
static inline int request_n_best(const struct request *r) {
  bool all = r->grammar || r->on_logits || (r->prompt_tokens && r->n_reported < r->n_prompt);
  return all ? 0 : sample_n_best(&r->sampling);
}
/* Tokens whose keys and values it will need at most: the last one that is generated is never computed. */
static inline int request_kv_tokens(const struct request *r) { return r->n_limit > r->n_prompt ? r->n_limit - 1 : r->n_prompt; }
/* First prompt row whose logits are wanted for its own sake; n_prompt = none. A prompt token's log-probability comes from the row before. */
static inline int request_wanted_from(const struct request *r) {
  int from = r->on_logits ? 0 : r->prompt_tokens ? r->prompt_logprobs_from - 1 : r->n_prompt;
  return MIN(MAX(from, r->n_reported), r->n_prompt);
}
/* Tokens that may come from the prefix tree. Rows that were reported before a retraction need not be computed for anybody again. */
static inline int request_reuse_max(const struct request *r) {
  int most = r->n_reported >= r->n_prompt ? r->n_tokens : MAX(r->n_reuse_max, r->n_reported);
  return MIN(most, r->n_tokens - 1);
}
/* Of its next n rows, how many of the last ones want logits. Those in front of a token that is certain only for its log-probability. */
static inline int request_out_rows(const struct request *r, int n) {
  if (request_decodes(r)) return r->sampling.params.n_logprobs >= 0 ? n : MAX(0, n - r->n_forced);
  int end = r->n_computed + n, from = request_wanted_from(r);
  if (from < r->n_prompt && from < end) return end - MAX(from, r->n_computed);
  return end == r->n_tokens && request_samples(r) ? 1 : 0;
}

#endif
