/* sched_impl.h — what the files of the scheduler share: sched.c (lists, rows), sched_admit.c (who comes in), sched_check.c (invariants). */
#ifndef CYGNET_SCHED_IMPL_H
#define CYGNET_SCHED_IMPL_H

#include "engine/sched.h"

static inline bool sched_before(const struct request *a, const struct request *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}
void sched_list_insert(struct request_list *l, struct request *r);
void sched_list_remove(struct request_list *l, struct request *r);

/* Step 2 of sched.h: waiting requests become running ones, with what the tree has of them and the copies which that takes. */
void sched_admit(struct sched *s);

#endif
