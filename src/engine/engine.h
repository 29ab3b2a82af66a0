/* engine.h — the engine behind cygnet.h: plan memory, own model, cache and requests, advance the world by one step.
 *
 *   engine_step:  sched_next → batch_build → model_forward → per out row: sample → token, detok, stop → events → kv_commit, kv_drop_window
 *
 * There is no other way to advance the world; a test of the whole engine has no threads in it.
 * Nothing is allocated between batch_build and the end of model_forward (mem_guard in test builds).
 */
#ifndef CYGNET_ENGINE_H
#define CYGNET_ENGINE_H

#include "engine/sched.h"
#include "models/model.h"
#include "text/chat.h"

/* batch.c: fill a batch from picks. */
struct batch_shape {
  int rows_max, seqs_max, out_max, tokens_max, page_tokens;
};
int batch_init(struct batch *b, const struct batch_shape *s, struct err *e);
void batch_free(struct batch *b);
void batch_build(struct batch *b, const struct kv *kv, const struct sched_pick *picks, int n_picks);

/* plan.c: how memory is shared out, decided before anything is loaded. */
struct plan {
  struct model_plan model;
  struct kv_config kv;
  struct sched_config sched;
  int ctx_tokens;
  size_t weight_bytes, kv_bytes, scratch_bytes, budget_bytes;
};
/* Fills *p from the options and the model; a sentence with what to change when it does not fit. */
int plan_make(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct weights *w, struct err *e);
/* The plan as a few lines for people ("keys and values  1.2 GiB  (32768 tokens full, 4096 sliding)"). */
void plan_print(const struct plan *p, const struct model_config *c, struct buf *out);

#endif
