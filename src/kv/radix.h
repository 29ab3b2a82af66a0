/* radix.h — the prefix tree: which beginnings of sequences are in the cache, and from where one can go on.
 *
 * One node is one page: P tokens and the pair of pages that hold their keys and values, below the node of the P tokens before. (A radix tree whose
 * radix is the page: nodes are never split, all have one size, and there is one per page of the full pool, so its memory is taken at start.)
 *
 *   root ── [The capital of ] ── [France is Paris.] ── [ And of Italy?]               full  3   5   9       every node has a full page
 *                 │                                                                   swa   0   4   8       0 = a tombstone
 *                 └────────────── [Spain is M]  a leaf may be partly filled: the end of a prompt or of an answer
 *
 * Matching goes to the token. Whole pages are shared; of the page in which the prefix ends, or in which two prompts part, the first tokens are
 * copied (struct kv_copy) into a page of the newcomer's own. So the second of two equal prompts computes one token.
 *
 * Usable. n tokens of a path are usable when every sliding page that a query at n sees is there: the pages of [kv_window_lo(n), n), and no others.
 * Before that a path may have tombstones.
 *
 * What is kept, and what goes first
 *   - Owning is the lock: a page that a sequence holds is not idle and cannot be evicted, and whoever holds a page holds all before it. Nothing is
 *     pinned but what is in use, by no count of its own.
 *   - A *resume point* is a node at which somebody is likely to go on: the end of a prompt, the end of an answer, a place where paths part. It
 *     serves every position in its page and the one right before it (who asks for the same prompt again has to compute its last token). The sliding
 *     pages that are seen from there are WORTHY; every other sliding page of the tree is LOOSE. Without sliding layers, and with a window of one
 *     token, there are none.
 *   - Full pages are evicted oldest first, which is from the ends of paths (pages.h rule 3): the node goes with both pages.
 *   - Sliding pages are evicted loose ones first, oldest first: the node becomes a tombstone. When nothing loose is idle, the resume point that was
 *     used longest ago is given up and its window becomes loose.
 *   - A leaf that is a tombstone serves nobody and goes at once, and its parents likewise, as far as they have become such leaves. (Not one that a
 *     sequence holds: it will have children. If that sequence is closed before, it goes when it is the oldest, like any other.)
 *   - A partly filled node goes when a page that knows more is entered beside it.
 *
 * Running requests enter their pages as these fill, so one can reuse the beginning of another that still runs or is still in its prompt.
 *
 * Rules
 *   1. Prefixes of different namespaces never match.
 *   2. After radix_insert a sequence holds the very pages of the tree below n_entered (duplicates are given back at once; a tombstone takes
 *      over the sequence's sliding page). So its node stays while it is open.
 *   3. A partly filled node has no children; its page belongs to one open sequence at most besides the tree, which may go on writing behind what
 *      the node knows.
 *   4. Nothing is allocated after radix_new. match costs a look-up per page and one walk over the siblings where the paths part.
 *   5. A model without full layers has no tree (radix_new refuses).
 */
#ifndef CYGNET_RADIX_H
#define CYGNET_RADIX_H

#include "kv/kv.h"

struct radix; /* opaque */

struct radix_space { /* a namespace: 128 bits of a digest; all zero = the common one */
  uint64_t a, b;
};

struct radix_match {
  int n_known;        /* tokens of the prefix that the tree knows, usable or not; <= limit */
  int n_usable;       /* <= n_known */
  bool parts;         /* n_known > 0, and the tree goes on behind it with other tokens than asked */
  int32_t node;       /* in which token n_usable - 1 lies; 0 with n_usable 0 */
  int32_t known_node; /* in which token n_known - 1 lies */
};

/* kv is borrowed. Takes all memory: radix_bytes. Returns owned. */
struct radix *radix_new(struct kv *kv, struct err *e);
void radix_delete(struct radix *t); /* sequences are closed before; gives every page back; NULL is fine */
size_t radix_bytes(int n_pages_full, int n_pages_sliding, int page_tokens);

/* The longest known beginning of tokens[0, limit). Changes nothing. */
struct radix_match radix_match(const struct radix *t, struct radix_space space, const int32_t *tokens, int limit);
/* s, open and empty, goes on from m, which comes from radix_match with nothing done in between. Appends to copies (room for KV_KINDS) what is to
 * be copied; returns how many. s then has m->n_usable tokens, or only the whole pages of it when no page is free or idle for the rest (or as many
 * of those as the windows before them permit).
 * The copies are to be carried out even if s is closed before: the tree may know the page by then.
 * A place where paths part becomes a resume point, and one that is resumed at becomes the latest. */
int radix_adopt(struct radix *t, const struct radix_match *m, struct kv_seq *s, struct kv_copy *copies);
/* Enter the whole pages of what s has committed. tokens: [s->n_tokens] those of s. Call it after every commit, before the next drop_window (what
 * has been dropped becomes a tombstone). */
void radix_insert(struct radix *t, struct radix_space space, struct kv_seq *s, const int32_t *tokens);
/* The same, with the last page although it is not full, and s->n_tokens becomes a resume point. */
void radix_mark(struct radix *t, struct radix_space space, struct kv_seq *s, const int32_t *tokens);
/* Make that many more pages free in each pool, as far as there are idle ones; false: not enough were. */
bool radix_evict(struct radix *t, struct kv_short wanted);
void radix_flush(struct radix *t); /* forget everything; no sequence is open */

struct radix_stats {
  int n_nodes, n_tombstones, n_resume_points;
  uint64_t n_evicted[KV_KINDS]; /* pages that made room, since radix_new */
};
struct radix_stats radix_stats(const struct radix *t);
/* Every invariant above, and kv_check over the same sequences. tokens[i]: those of seqs[i]. False and a sentence. For tests and idle. */
bool radix_check(const struct radix *t, struct kv_seq *const *seqs, const int32_t *const *tokens, int n_seqs, struct err *e);

#endif
