/* radix_evict.c — what leaves the prefix tree, and the resume points that decide about it. */
#include <string.h>

#include "kv/radix_impl.h"

/* ---- resume points -------------------------------------------------------------------------------------------------------- */

static void list_add(struct radix *t, int32_t node) {
  t->nodes[node].sooner = t->resume_last;
  t->nodes[node].later = 0;
  *(t->resume_last ? &t->nodes[t->resume_last].later : &t->resume_first) = node;
  t->resume_last = node;
}

static void list_remove(struct radix *t, int32_t node) {
  int32_t sooner = t->nodes[node].sooner, later = t->nodes[node].later;
  *(sooner ? &t->nodes[sooner].later : &t->resume_first) = later;
  *(later ? &t->nodes[later].sooner : &t->resume_last) = sooner;
}

/* One window more (by 1) or less (by -1) ends in this page. */
static void cover_window(struct radix *t, int32_t node, int by) {
  int first = radix_window_begin(t, t->nodes[node].index);
  for (int32_t at = node; t->nodes[at].index >= first; at = t->nodes[at].parent) {
    struct radix_node *d = &t->nodes[at];
    d->n_windows += by;
    bool turned = by > 0 ? d->n_windows == 1 : d->n_windows == 0;
    if (turned && d->swa) pages_set_class(t->pool[KV_SLIDING], d->swa, by > 0 ? PAGES_WORTHY : PAGES_LOOSE);
  }
}

void radix_resume(struct radix *t, int32_t node) {
  struct radix_node *d = &t->nodes[node];
  if (t->window_tokens <= 1 || !node) return; /* nobody looks back, or no limit to it */
  if (d->resume) {
    list_remove(t, node);
  } else {
    d->resume = true;
    t->stats.n_resume_points++;
    cover_window(t, node, 1);
  }
  list_add(t, node);
}

void radix_unresume(struct radix *t, int32_t node) {
  if (!t->nodes[node].resume) return;
  t->nodes[node].resume = false;
  t->stats.n_resume_points--;
  list_remove(t, node);
  cover_window(t, node, -1);
}

/* ---- leaving -------------------------------------------------------------------------------------------------------------- */

static void unchain(struct radix *t, int32_t node) {
  int32_t *at = radix_bucket(t, t->nodes[node].parent, t->spaces[node], radix_page(t, node));
  while (*at != node) at = &t->nodes[*at].chain;
  *at = t->nodes[node].chain;
}

void radix_remove(struct radix *t, int32_t node) {
  struct radix_node *d = &t->nodes[node];
  CHECK(d->n_tokens > 0 && !d->child);
  radix_unresume(t, node);
  if (d->n_tokens == t->page_tokens) unchain(t, node);
  *(d->prev ? &t->nodes[d->prev].next : &t->nodes[d->parent].child) = d->next;
  if (d->next) t->nodes[d->next].prev = d->prev;
  t->stats.n_nodes--;
  t->stats.n_tombstones -= radix_is_tombstone(t, node);
  if (d->swa) {
    t->node_of_swa[d->swa] = 0;
    pages_unkeep(t->pool[KV_SLIDING], d->swa);
  }
  *d = (struct radix_node){0};
  pages_unkeep(t->pool[KV_FULL], node);
}

static bool is_useless(const struct radix *t, int32_t node) {
  return !t->nodes[node].child && radix_is_dead(t, node) && radix_is_idle(t, node);
}

/* An idle leaf is evicted. Parents that are tombstones, idle and now leaves served only the way to it, and follow. */
static void evict_leaf(struct radix *t, int32_t node) {
  bool follows = true;
  for (int32_t parent; follows; node = parent) {
    parent = t->nodes[node].parent;
    t->stats.n_evicted[KV_FULL]++;
    t->stats.n_evicted[KV_SLIDING] += t->nodes[node].swa != 0;
    radix_remove(t, node);
    follows = parent && is_useless(t, parent);
  }
}

static bool evict_full(struct radix *t) {
  int32_t node = pages_oldest(t->pool[KV_FULL], PAGES_LOOSE);
  if (node) evict_leaf(t, node); /* the oldest is a leaf: the reason stands in radix.c */
  return node;
}

static bool evict_sliding(struct radix *t) {
  struct pages *pool = t->pool[KV_SLIDING];
  if (pages_idle(pool) == 0) return false;
  while (!pages_oldest(pool, PAGES_LOOSE)) {
    CHECK(t->resume_first); /* a worthy page is in the window of one */
    radix_unresume(t, t->resume_first);
  }
  int32_t swa = pages_oldest(pool, PAGES_LOOSE), node = t->node_of_swa[swa];
  t->nodes[node].swa = t->node_of_swa[swa] = 0;
  t->stats.n_tombstones++;
  t->stats.n_evicted[KV_SLIDING]++;
  pages_unkeep(pool, swa);
  if (is_useless(t, node)) evict_leaf(t, node);
  return true;
}

bool radix_evict(struct radix *t, struct kv_short wanted) {
  int goal[KV_KINDS];
  bool enough = true;
  for (int k = 0; k < KV_KINDS; k++) goal[k] = t->pool[k]->n_free + wanted.pages[k];
  while (t->pool[KV_FULL]->n_free < goal[KV_FULL] && enough) enough = evict_full(t);
  bool slides_enough = true;
  while (t->pool[KV_SLIDING]->n_free < goal[KV_SLIDING] && slides_enough) slides_enough = evict_sliding(t);
  return enough && slides_enough;
}

void radix_flush(struct radix *t) {
  CHECK(kv_stats(t->kv).n_seqs == 0);
  struct pages *full = t->pool[KV_FULL];
  uint64_t n_evicted[KV_KINDS];
  memcpy(n_evicted, t->stats.n_evicted, sizeof n_evicted);
  while (pages_oldest(full, PAGES_LOOSE)) evict_leaf(t, pages_oldest(full, PAGES_LOOSE));
  memcpy(t->stats.n_evicted, n_evicted, sizeof n_evicted); /* nobody needed the room */
  CHECK(t->stats.n_nodes == 0);
}
