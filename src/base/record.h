/* record.h — a step's parallel loops as a list, to be run again with a single fork-join.
 *
 * A *launch* is a loop over items on the worker pool: what a kernel launch is to an accelerator's stream. Arithmetic in this program happens in
 * launches only (workers_launch), so recording them records the step, as stream capture does there:
 *
 *   record:   workers_record(w, r) → launches run, and are appended → workers_record(w, NULL)
 *   replay:   workers_replay(w, r): all workers walk the list side by side, with a barrier between launches; the caller is worker 0
 *
 * Rules
 *   1. A launch has its whole context by value: it is copied into the record. Pointers in it lead to memory that stays where it is; what is
 *      there when replaying counts.
 *   2. The number of items is fixed, or read from a static int when the launch begins (n_items_at).
 *   3. While recording, workers_run outside a launch is a fault (CHECK): its arithmetic would be missing from the list.
 *   4. A replay gives the bits of the recorded run: launches in order, items in any order on any worker, as workers_run promises.
 *   5. All memory is taken by record_new; a list that does not fit is a fault (CHECK): its size is known from the model.
 */
#ifndef CYGNET_RECORD_H
#define CYGNET_RECORD_H

#include "base/workers.h"

struct record;

/* Room for launches with contexts of ctx_bytes together. Returns owned. */
struct record *record_new(int launches_max, size_t ctx_bytes_max, struct err *e);
void record_delete(struct record *r); /* NULL is fine */
void record_clear(struct record *r);
int record_launches(const struct record *r);
size_t record_bytes(int launches_max, size_t ctx_bytes_max);

/* Run fn over the items now, and append it to the record that is open, if one is. w may be NULL (then nothing can be recorded).
 * n_items_at: NULL, or where the number of items stands; n_items is then its value now. */
void workers_launch(struct workers *w, workers_fn fn, const void *ctx, size_t ctx_bytes, int n_items, const int *n_items_at);
void workers_record(struct workers *w, struct record *r); /* r NULL: stop */
void workers_replay(struct workers *w, const struct record *r);

#endif
