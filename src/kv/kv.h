/* kv.h — the hybrid cache's bookkeeping: who owns which page. Integers only: no floats, no device, no tokens.
 *
 * Two pools, one per kind of attention. A sequence holds *pairs* of page ids; pair i holds the same P tokens in both pools:
 *
 *   position    0 .. P-1   P .. 2P-1   2P .. 3P-1   3P ..
 *   pair.full      5           3            9          2         full layers: every token stays
 *   pair.swa       0           0            4          7         sliding layers: 0 = has left the window
 *                  └─ freed by kv_drop_window ─┘    ^ n_tokens
 *
 * A model without sliding layers has swa = 0 everywhere, one without full layers full = 0.
 *
 * Rules
 *   1. THE window rule: a key k is visible to a query q in a sliding layer iff k <= q and q - k < window_tokens. kv_window_lo is the
 *      only place that says so; every interval in the program comes from it.
 *   2. Pages are reserved before a step and committed after it; a step that fails leaves the sequence as it was.
 *   3. A sliding page is freed only when its last position is below every lo that the sequence will ever ask for. So for a sequence that
 *      goes on at n_tokens, everything in [kv_window_lo(n_tokens), n_tokens) is held in the sliding pool: swa_from <= that lo.
 *   4. What somebody else may read is never written: a sequence writes only at positions >= n_tokens, and shares whole pages with other
 *      sequences only below own_from, page-aligned. Its last, partly filled page may be known to the tree, which then reads no further than
 *      what was committed.
 *   5. Running short is a result, not an error: the scheduler decides who waits.
 *
 * One step of one sequence:  kv_drop_window(s, s->n_tokens) -> kv_reserve(s, rows) -> compute -> kv_commit(s, rows) or kv_cancel(s).
 * Dropping comes first, so that a sequence's own old pages serve its new rows; kv_pages_for counts on it.
 *
 * The prefix tree (radix.h) hands pages to sequences through kv_seq_adopt and takes them over by pages_keep. Pages that it alone owns are idle: a
 * shortage counts them as missing, and radix_evict makes them free.
 */
#ifndef CYGNET_KV_H
#define CYGNET_KV_H

#include "kv/pages.h"

enum kv_kind { KV_FULL, KV_SLIDING, KV_KINDS };

/* First visible key of a query at position q. window_tokens 0 = everything. */
static inline int64_t kv_window_lo(int64_t q, int window_tokens) {
  if (window_tokens == 0 || q + 1 <= window_tokens) return 0;
  return q + 1 - window_tokens;
}

struct kv_page {
  int32_t full, swa; /* 0 = none */
};

struct kv_seq {          /* zeroed is a closed sequence; owned by its request, read by everybody, changed only through the verbs below */
  struct kv_page *pairs; /* [n_pairs], borrowed from kv, room for tokens_max; NULL when closed */
  int row;               /* which of kv's tables that is */
  int n_pairs;           /* pages that n_reserved tokens span */
  int n_tokens;          /* committed: their keys and values are valid */
  int n_reserved;        /* tokens for which pages are held, >= n_tokens */
  int swa_from;          /* first position whose sliding page is still held; multiple of P; 0 without sliding layers */
  int own_from;          /* first position whose page no other sequence can hold; multiple of P, <= n_tokens */
  int n_entered;         /* tokens whose pages are the prefix tree's as well; multiple of P, <= own_from; 0 without a tree */
};

/* Contents to be copied from page to page, all of it, before anything is computed in this step; in the order of the list, one after the other. */
struct kv_copy {
  enum kv_kind kind;
  int32_t from, to;
};

struct kv; /* opaque */

struct kv_config {
  int page_tokens;       /* P: 1, 2, 4, ... 256 */
  int n_pages[KV_KINDS]; /* capacity of each pool without page 0; 0 = the model has no such layers (not both) */
  int window_tokens;     /* >= 1, exactly when there are sliding layers, else 0 */
  int seqs_max;          /* sequences open at the same time; 1 .. 65534 */
  int tokens_max;        /* longest sequence */
};

struct kv_short { /* pages missing, by kind; both 0 = enough */
  int pages[KV_KINDS];
};

/* All memory is taken here; no other function allocates. */
struct kv *kv_new(const struct kv_config *c, struct err *e);
void kv_delete(struct kv *kv); /* sequences still open are not to be used any more; NULL is fine */

bool kv_seq_open(struct kv *kv, struct kv_seq *s);  /* s closed; false: seqs_max are open */
void kv_seq_close(struct kv *kv, struct kv_seq *s); /* gives everything back; fine on a closed one */
/* Hold pages for n more tokens after n_tokens (n_tokens + n <= tokens_max); what is reserved already counts. All or nothing: on shortage
 * nothing changes and the missing counts come back. */
struct kv_short kv_reserve(struct kv *kv, struct kv_seq *s, int n);
void kv_commit(struct kv *kv, struct kv_seq *s, int n); /* n of the reserved tokens are valid now; the others stay reserved */
void kv_cancel(struct kv *kv, struct kv_seq *s);        /* give back what is reserved and not committed */
/* Free sliding pages that no query at position >= next_q will see; next_q <= n_tokens. A next_q below n_tokens keeps the way open for
 * kv_truncate down to next_q. */
void kv_drop_window(struct kv *kv, struct kv_seq *s, int next_q);
/* Forget the tail: keep the first n <= n_tokens tokens and nothing reserved. False (nothing changed) when computing on from there would be
 * wrong: the window before n is no longer held, or n lies inside a page that somebody else holds too, be it the tree. n = 0 and n_tokens always
 * work. The tree keeps what it has of the tail. */
bool kv_truncate(struct kv *kv, struct kv_seq *s, int n);
/* Take over the first n (multiple of P) tokens that somebody else holds: references are added. s is open and empty. Sliding pages below
 * swa_from are left alone; from there on every pair must have them. It is a multiple of P, <= n and <= kv_window_lo of the position at which s
 * goes on: n, or less than a page further when the beginning of that page is reserved and committed next, with contents that are copied. The
 * holder must not write into these pages as long as they are shared; kv_truncate sees to that by itself. */
void kv_seq_adopt(struct kv *kv, struct kv_seq *s, const struct kv_page *pairs, int n, int swa_from);
/* Hold page `id` for the i-th P tokens instead of the one held now, which has the same contents. For radix_insert. */
void kv_seq_replace(struct kv *kv, struct kv_seq *s, int i, enum kv_kind kind, int32_t id);

/* Slot of position pos: page id * P + offset; 0 when no page is held for it, positions outside 0 .. n_reserved-1 included. */
int64_t kv_slot(const struct kv *kv, const struct kv_seq *s, enum kv_kind kind, int pos);
/* Pages that a sequence of n tokens needs at most at once when it is computed in steps of at most chunk tokens, each step as drawn above.
 * Exact: with these pages it never runs short when alone, with one less some cut into steps would. */
struct kv_short kv_pages_for(const struct kv *kv, int n, int chunk);

struct kv_stats {
  int n_pages[KV_KINDS], n_used[KV_KINDS], n_used_peak[KV_KINDS]; /* used: held by sequences */
  int n_idle[KV_KINDS];                                           /* kept by the tree alone; the rest of n_pages is free */
  int n_seqs;
};
struct kv_stats kv_stats(const struct kv *kv);
int kv_page_tokens(const struct kv *kv);
struct pages *kv_pool(struct kv *kv, enum kv_kind kind); /* for the tree, which is an owner of pages like a sequence */
int kv_window_tokens(const struct kv *kv);
/* Every invariant above over the given open sequences (all that exist) and the tree's ownership: counts, references, alignment, window. False and
 * a sentence that names the sequence by its index. For tests and idle. */
bool kv_check(const struct kv *kv, struct kv_seq *const *seqs, int n_seqs, struct err *e);

#endif
