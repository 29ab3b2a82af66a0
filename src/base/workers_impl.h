/* workers_impl.h — between workers.c (who does what when), record.c (what is in a list) and tests. */
#ifndef CYGNET_WORKERS_IMPL_H
#define CYGNET_WORKERS_IMPL_H

#include "base/record.h"
#include "base/topology.h"

struct launch {
  workers_fn fn;
  void *ctx; /* in the record's own memory */
  int n_items;
  const int *n_items_at; /* NULL: n_items */
};

static inline int launch_items(const struct launch *l) { return l->n_items_at ? *l->n_items_at : l->n_items; }

/* workers_new on a machine like that; bind: helpers are bound to its CPUs, else only the items are shared out (tests). */
struct workers *workers_new_on(int n_threads, const struct topology *t, bool bind, struct err *e);

/* One fork-join that does all launches of the list in order, each when the one before is done. */
void workers_run_list(struct workers *w, const struct launch *list, int n_launches);

/* The record that is open, NULL when none is. Belongs to the thread that calls workers_run. */
struct record *workers_recording(const struct workers *w);
void workers_set_recording(struct workers *w, struct record *r);
/* workers_run without the question whether a record is open. */
void workers_run_now(struct workers *w, workers_fn fn, void *ctx, int n_items);

#endif
