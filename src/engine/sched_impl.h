/* sched_impl.h — what the files of the scheduler share: sched.c (lists, rows), sched_admit.c (who comes in), sched_media.c (pictures and
 * sounds), sched_check.c (invariants). */
#ifndef CYGNET_SCHED_IMPL_H
#define CYGNET_SCHED_IMPL_H

#include "engine/sched.h"

static inline bool sched_before(const struct request *a, const struct request *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}
void sched_list_insert(struct request_list *l, struct request *r);
void sched_list_remove(struct request_list *l, struct request *r);

/* What sched_fits says of pictures and sounds. */
bool sched_fits_media(const struct sched *s, const struct request *r, struct err *e);
/* Hold what rows of r from n on need of encoded pictures and sounds; false: there is no room, and nothing has changed. */
bool sched_hold(struct sched *s, struct request *r, int n);
/* Let go of what no row from n on needs; n INT_MAX = of all. */
void sched_let_go(struct sched *s, struct request *r, int n);
/* Rows from n_computed on that may be computed now, none of which needs what is not encoded. */
int sched_rows_ready(const struct sched *s, const struct request *r);
/* Would what w's rows from n on need fit beside what requests of at least that priority hold? It may say no although some of it is
 * shared. */
bool sched_has_bank_room(const struct sched *s, const struct request *w, int n, int priority);

/* Step 2 of sched.h: waiting requests become running ones, with what the tree has of them and the copies which that takes. */
void sched_admit(struct sched *s);

#endif
