/* sched.h — who is computed in the next step.
 *
 * The order of all decisions is: higher priority first, then earlier arrival. Both lists are kept in it.
 *
 * sched_next chooses rows for one step and reserves their pages:
 *   0. every running request gives back what has left its windows;
 *   1. every decoding request gets its one row (decoding users keep their pace). When pages run out, the last running request in the order is
 *      retracted until it fits; so the first one always goes on, and something always finishes;
 *   2. waiting requests are admitted, first to last and none past another, while a running place is free, this step has a row for them, and
 *      the pages of all their known tokens fit beside what the running ones still need for theirs. Everybody is given ahead_tokens on top,
 *      so that a request that was retracted does not come back only to be retracted again. Alone, a request is always admitted: one that
 *      could never fit was refused at submission (sched_fits);
 *   3. chunk_tokens rows go to prompts in order; a prompt may be cut anywhere. One that finds no page waits for a later step, except
 *      that the first one retracts others when no decoding request will free any.
 * A request that wants all logits of its prompt gets no more rows than the batch's out places allow.
 *
 * Pure decisions over integers: no clock, no threads, no floats. Same requests in, same decisions out. Nothing is allocated after sched_init.
 */
#ifndef CYGNET_SCHED_H
#define CYGNET_SCHED_H

#include "engine/request.h"

struct sched_config {
  int chunk_tokens; /* prompt rows per step at most; decoding rows come on top */
  int max_running, max_queued;
  int rows_max, out_max; /* of a batch: >= chunk_tokens + max_running, >= max_running */
  int ahead_tokens;      /* room to grow that admission leaves to each running request; 0 is fine */
};

struct sched_pick { /* n rows of r from its n_computed on; the last n_out of them want logits */
  struct request *r;
  int n, n_out;
};

struct request_list {
  struct request *first, *last;
  int n;
};

struct sched {
  struct sched_config config;
  struct kv *kv;                        /* borrows */
  struct request_list running, waiting; /* in the order above */
  uint64_t n_retracted;
  struct sched_pick *picks; /* [max_running] */
  int n_picks;
};

int sched_init(struct sched *s, const struct sched_config *c, struct kv *kv, struct err *e);
void sched_free(struct sched *s); /* both lists are empty before; fine on a zeroed one */

/* Could r be computed if it were alone? A sentence if not. */
bool sched_fits(const struct sched *s, const struct request *r, struct err *e);
bool sched_add(struct sched *s, struct request *r);     /* takes a place in the queue; false: it is full */
void sched_remove(struct sched *s, struct request *r);  /* from either list; gives its pages back; r is DONE */
void sched_retract(struct sched *s, struct request *r); /* a running one goes back to waiting (a full queue does not matter) */
/* Number of picks in s->picks, their pages reserved; 0 = nothing to do. */
int sched_next(struct sched *s);
/* The step's rows of a pick are computed. */
void sched_commit(struct sched *s, const struct sched_pick *p);
/* Lists, states, integers and the cache agree. False and a sentence. For tests and debug builds: takes memory. */
bool sched_check(const struct sched *s, struct err *e);

#endif
