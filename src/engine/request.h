/* request.h — one request on its way through the engine, in three integers and what belongs to it.
 *
 *   0 ............ n_computed ............ n_tokens ............ n_limit
 *   │ keys and values valid │ known, to compute │ may still come    │
 *
 * to compute = n_tokens - n_computed; a request decodes when that is 1 and n_computed >= n_prompt. Everything else is derived.
 * States: WAITING (in the queue, holds no pages) → RUNNING (has a kv_seq) → DONE (its last event is out, the struct is gone).
 * Retraction takes a running one back to WAITING with n_computed = 0: its tokens stay, and it later continues to the bit as if nothing had happened.
 */
#ifndef CYGNET_REQUEST_H
#define CYGNET_REQUEST_H

#include "cygnet.h"
#include "engine/sample.h"
#include "kv/kv.h"
#include "text/detok.h"
#include "text/stop.h"

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_DONE };

struct request {
  uint64_t number;
  enum request_state state;
  struct request *next, *prev; /* list of its state */

  int32_t *tokens; /* [n_limit]: prompt, then output; owned */
  int n_prompt, n_tokens, n_computed, n_limit;
  struct kv_seq kv;

  struct sample_state sampling; /* parameters, counts, seed */
  int32_t *stop_ids;            /* owned */
  int n_stop_ids;
  bool ignore_eos, keep_stop;
  struct detok detok;
  struct stop *stop;
  int logprobs; /* as in cygnet_request */
  int priority;

  /* callbacks for prompt rows */
  void (*on_logits)(void *ctx, int position, const float *logits, int vocab);
  void (*on_hidden)(void *ctx, int layer, int position, const float *x, int hidden);
  void *callback_ctx;
  void *user;

  /* output not yet handed out: one event at most per request and step */
  struct buf text;
  struct cygnet_token *new_tokens; /* [1] per step */
  int n_new_tokens;
  enum cygnet_finish finish;
  int matched_stop;
  int32_t matched_id;
  struct err error;
  bool event_ready;

  int n_retracted;
  int64_t arrived_ns, started_ns, first_token_ns;
};

#endif
