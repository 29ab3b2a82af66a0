/* radix_impl.h — inside of the prefix tree; only radix*.c include it.
 *
 * A node's number is the id of its full page, so that a page's node and a sequence's place in the tree need no look-up; 0 is the root, the
 * parent of all first pages. The whole tree is these arrays, indexed by it.
 *
 * Two ways lead down: `chain` links the nodes of P tokens in a hash table by (parent, tokens, below the root the namespace too), for whole pages;
 * `child` and `next` list all children, for the longest common beginning where paths part.
 */
#ifndef CYGNET_RADIX_IMPL_H
#define CYGNET_RADIX_IMPL_H

#include "kv/radix.h"

struct radix_node {
  int32_t parent, child; /* child: the newest; 0 = none */
  int32_t next, prev;    /* siblings, newest first */
  int32_t chain;         /* next node of the same bucket */
  int32_t swa;           /* sliding page; 0 = a tombstone, or no sliding layers */
  int32_t later, sooner; /* resume points by their last use */
  int index;             /* holds positions index * P ..; the root -1 */
  int n_tokens;          /* 1 .. P; 0 = no node of the tree */
  int n_windows;         /* resume points whose window has this page: > 0 exactly when the sliding page is WORTHY */
  bool resume;
};

struct radix {
  struct kv *kv;
  struct pages *pool[KV_KINDS]; /* of kv */
  int page_tokens, window_tokens;
  bool slides; /* the model has sliding layers */
  uint64_t seed;
  struct radix_node *nodes;          /* [n_pages_full + 1] */
  int32_t *tokens;                   /* [n_pages_full + 1, P] */
  struct radix_space *spaces;        /* [n_pages_full + 1], of the children of the root */
  int32_t *buckets;                  /* [n_buckets] heads of chains */
  size_t n_buckets;                  /* a power of two */
  int32_t *node_of_swa;              /* [n_pages_sliding + 1] */
  struct kv_page *path;              /* [n_pages_full] scratch of radix_adopt */
  int *counted;                      /* [n_pages_full + 1] scratch of radix_check */
  int32_t resume_first, resume_last; /* used longest ago, latest */
  struct radix_stats stats;
};

static inline int32_t *radix_page(const struct radix *t, int32_t node) { return t->tokens + (size_t)node * (size_t)t->page_tokens; }
static inline bool radix_space_equal(struct radix_space x, struct radix_space y) { return x.a == y.a && x.b == y.b; }
static inline bool radix_is_tombstone(const struct radix *t, int32_t node) { return t->slides && !t->nodes[node].swa; }
/* Nobody can go on behind any token of it. With a window of one token nobody looks back. */
static inline bool radix_is_dead(const struct radix *t, int32_t node) { return t->window_tokens > 1 && !t->nodes[node].swa; }
/* No sequence holds it. (Who holds a sliding page holds the full one.) */
static inline bool radix_is_idle(const struct radix *t, int32_t node) { return pages_is_idle(t->pool[KV_FULL], node); }
/* The node of the last page below s->n_entered. */
static inline int32_t radix_cursor(const struct radix *t, const struct kv_seq *s) {
  return s->n_entered ? s->pairs[s->n_entered / t->page_tokens - 1].full : 0;
}
/* Index of the first page whose sliding layers a query at n sees, of the pages before n; past them if it sees none. */
static inline int radix_first_seen(const struct radix *t, int n) {
  int64_t lo = kv_window_lo(n, t->window_tokens);
  return lo == n ? div_up(n, t->page_tokens) : (int)lo / t->page_tokens;
}
/* Where the window of a resume point in page i begins. It serves everybody who goes on in that page or right before it: who asks for the same
 * prompt again has to compute its last token, which may be the first of the page. */
static inline int radix_window_begin(const struct radix *t, int i) { return radix_first_seen(t, i * t->page_tokens); }

/* radix.c */
/* Where the chain begins that has the node of these P tokens below parent, if there is one. */
int32_t *radix_bucket(const struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens);
/* That node; 0 = there is none. */
int32_t radix_find(const struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens);
/* radix_evict.c */
void radix_resume(struct radix *t, int32_t node);   /* becomes a resume point, or the latest one */
void radix_unresume(struct radix *t, int32_t node); /* fine when it is none */
void radix_remove(struct radix *t, int32_t node);   /* a leaf leaves the tree and gives up its pages */

#endif
