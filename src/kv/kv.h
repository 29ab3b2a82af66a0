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
 *   3. A sliding page is freed only when its last position is below every lo that the sequence will ever ask for.
 *   4. A page shared with somebody else (refs > 1) is never written: a sequence writes only at positions >= own_from, page-aligned.
 *   5. Running short is a result, not an error: the scheduler decides who waits.
 *
 * The prefix tree (radix.h, to come) adopts and donates page pairs through kv_seq_adopt; its place is the reference counts of pages.h.
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

struct kv_seq {          /* zeroed is an empty sequence; owned by its request */
  struct kv_page *pairs; /* [pairs_cap]: borrowed from kv (fixed at start) */
  int row;               /* which table of kv's; -1 when closed */
  int n_pairs;
  int n_tokens;   /* committed: their keys and values are valid */
  int n_reserved; /* tokens for which pages are held, >= n_tokens */
  int swa_from;   /* first position whose sliding page is still held; multiple of P */
  int own_from;   /* first position that this sequence may write; multiple of P */
};

struct kv; /* opaque */

struct kv_config {
  int page_tokens;       /* P: 1, 2, 4, ... 256 */
  int n_pages[KV_KINDS]; /* capacity of each pool; 0 = the model has no such layers */
  int window_tokens;     /* 0 when there are no sliding layers */
  int seqs_max;          /* sequences open at the same time */
  int tokens_max;        /* longest sequence */
};

struct kv_short { /* pages missing, by kind; both 0 = enough */
  int pages[KV_KINDS];
};

struct kv *kv_new(const struct kv_config *c, struct err *e);
void kv_delete(struct kv *kv);

bool kv_seq_open(struct kv *kv, struct kv_seq *s);  /* false: seqs_max are open */
void kv_seq_close(struct kv *kv, struct kv_seq *s); /* gives everything back; fine on a closed one */
/* Hold pages for n more tokens after n_tokens. All or nothing: on shortage nothing changes and the missing counts come back. Only pages
 * that the coming rows write are taken: sliding pages wholly below the window of the first coming row are not. */
struct kv_short kv_reserve(struct kv *kv, struct kv_seq *s, int n);
void kv_commit(struct kv *kv, struct kv_seq *s, int n); /* n of the reserved tokens are valid now */
void kv_cancel(struct kv *kv, struct kv_seq *s);        /* give back what is reserved and not committed */
/* Free sliding pages that no query at position >= next_q will see. */
void kv_drop_window(struct kv *kv, struct kv_seq *s, int next_q);
/* Forget the tail: keep the first n tokens. False (nothing changed) when the window before n is no longer held, so that computing on from
 * there would be wrong. */
bool kv_truncate(struct kv *kv, struct kv_seq *s, int n);
/* Take over n (multiple of P) tokens that somebody else holds: references are added. */
void kv_seq_adopt(struct kv *kv, struct kv_seq *s, const struct kv_page *pairs, int n, int swa_from);

/* Slot of position pos: page id * P + offset; 0 when there is no page. */
int64_t kv_slot(const struct kv *kv, const struct kv_seq *s, enum kv_kind kind, int pos);
/* Pages that a sequence of n tokens needs at most at once when prefilled in chunks of at most chunk tokens. */
struct kv_short kv_pages_for(const struct kv *kv, int n, int chunk);

struct kv_stats {
  int n_pages[KV_KINDS], n_used[KV_KINDS], n_used_peak[KV_KINDS];
  int n_seqs;
};
struct kv_stats kv_stats(const struct kv *kv);
int kv_page_tokens(const struct kv *kv);
int kv_window_tokens(const struct kv *kv);
/* Every invariant above over the given open sequences (all that exist): counts, references, alignment, window. For tests and idle. */
bool kv_check(const struct kv *kv, struct kv_seq *const *seqs, int n_seqs, struct err *e);

#endif
