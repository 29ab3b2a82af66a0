/* record.c — lists of launches. The memory of one is a single block: the struct, then its launches, then their contexts.
 *
 * While recording, a launch runs from its copy: what is replayed later is what has been run now.
 */
#include <string.h>

#include "base/mem.h"
#include "base/workers_impl.h"

enum { CTX_ALIGN = 16 };

struct record {
  size_t n_bytes; /* of the block */
  int n_launches, launches_max;
  size_t ctx_used, ctx_max;
  struct launch *launches;
  unsigned char *ctxs;
};

size_t record_bytes(int launches_max, size_t ctx_bytes_max) {
  size_t launches, padding = (size_t)launches_max * (CTX_ALIGN - 1), n_bytes;
  if (size_mul_overflows((size_t)launches_max, sizeof(struct launch), &launches) ||
      size_add_overflows(ctx_bytes_max, padding + launches + align_up(sizeof(struct record), CTX_ALIGN), &n_bytes)) {
    return SIZE_MAX;
  }
  return n_bytes;
}

struct record *record_new(int launches_max, size_t ctx_bytes_max, struct err *e) {
  CHECK(launches_max >= 0);
  size_t n_bytes = record_bytes(launches_max, ctx_bytes_max), head = align_up(sizeof(struct record), CTX_ALIGN);
  struct record *r = mem_big_alloc(n_bytes, "recorded steps", e);
  if (!r) return NULL;
  r->n_bytes = n_bytes;
  r->launches_max = launches_max;
  r->launches = (struct launch *)(void *)((unsigned char *)r + head);
  r->ctxs = (unsigned char *)(r->launches + launches_max);
  r->ctx_max = n_bytes - head - (size_t)launches_max * sizeof(struct launch);
  return r;
}

void record_delete(struct record *r) {
  if (r) mem_big_free(r, r->n_bytes);
}

void record_clear(struct record *r) {
  r->n_launches = 0;
  r->ctx_used = 0;
}

int record_launches(const struct record *r) { return r->n_launches; }

static const struct launch *record_append(struct record *r, const struct launch *l, size_t ctx_bytes) {
  CHECK(r->n_launches < r->launches_max);
  CHECK(align_up(ctx_bytes, CTX_ALIGN) <= r->ctx_max - r->ctx_used);
  struct launch *to = &r->launches[r->n_launches++];
  *to = *l;
  to->ctx = r->ctxs + r->ctx_used;
  memcpy(to->ctx, l->ctx, ctx_bytes);
  r->ctx_used += align_up(ctx_bytes, CTX_ALIGN);
  return to;
}

void workers_launch(struct workers *w, workers_fn fn, const void *ctx, size_t ctx_bytes, int n_items, const int *n_items_at) {
  struct launch here = {fn, (void *)(size_t)ctx, n_items, n_items_at}; /* no item writes into its context */
  const struct launch *l = &here;
  struct record *r = workers_recording(w);
  CHECK(n_items >= 0 && (!n_items_at || *n_items_at == n_items));
  if (r) l = record_append(r, l, ctx_bytes);
  workers_run_now(w, l->fn, l->ctx, n_items);
}

void workers_record(struct workers *w, struct record *r) {
  CHECK(w && (!r || !workers_recording(w)));
  workers_set_recording(w, r);
}

void workers_replay(struct workers *w, const struct record *r) {
  CHECK(w && !workers_recording(w));
  workers_run_list(w, r->launches, r->n_launches);
}
