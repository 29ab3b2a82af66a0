/* sched.h — who is computed in the next step.
 *
 * sched_next chooses rows for one step from the running and waiting requests and reserves their pages:
 *   1. every decoding request gets its one row (decoding users keep their pace);
 *   2. what is left of chunk_tokens rows goes to prompts, oldest first within priority; a prompt may be cut anywhere;
 *   3. a waiting request is admitted when a running place is free and its whole prompt's pages (kv_pages_for) fit beside what running requests
 *      still may need for the next page; a request that could never fit alone was refused at submission.
 * When pages run out for a decoding request, the youngest running request of the lowest priority is retracted until it fits (never the oldest: so
 * something always finishes).
 * A request that wants all prompt logits is cut into chunks of at most out_max rows.
 * Pure decisions over integers: no clock, no threads, no floats. Same requests in, same decisions out.
 */
#ifndef CYGNET_SCHED_H
#define CYGNET_SCHED_H

#include "engine/request.h"

struct sched_config {
  int chunk_tokens; /* prompt rows per step at most */
  int max_running, max_queued;
  int rows_max, out_max; /* of a batch */
};

struct sched_pick { /* n rows of r from its n_computed on */
  struct request *r;
  int n;
};

struct sched {
  struct sched_config config;
  struct kv *kv;                                /* borrows */
  struct request *running_first, *running_last; /* oldest first */
  struct request *waiting_first, *waiting_last; /* by priority, then arrival */
  int n_running, n_waiting;
  uint64_t n_retracted;
  struct sched_pick *picks; /* [max_running] */
};

int sched_init(struct sched *s, const struct sched_config *c, struct kv *kv, struct err *e);
void sched_free(struct sched *s);
bool sched_add(struct sched *s, struct request *r);    /* false: queue full */
void sched_remove(struct sched *s, struct request *r); /* from any state; gives its pages back */
/* Number of picks in s->picks, pages reserved. */
int sched_next(struct sched *s);
bool sched_check(const struct sched *s, struct err *e);

#endif
