/* sched.h — who is computed in the next step.
 *
 * The order of all decisions is: higher priority first, then earlier arrival. Both lists are kept in it.
 *
 * sched_next chooses rows for one step and reserves their pages:
 *   0. every running request gives back what has left its windows;
 *   1. every decoding request gets its one row (decoding users keep their pace). When pages run out, first those that only the prefix tree
 *      keeps are evicted, then the last running request in the order is retracted until it fits; so the first one always goes on, and
 *      something always finishes;
 *   2. waiting requests are admitted, first to last, while a running place is free and the pages of all their known tokens fit beside what
 *      the running ones still need for theirs (pages that only the tree keeps count as free). Everybody is given ahead_tokens on top, so
 *      that a request that was retracted does not come back only to be retracted again. Alone, a request is always admitted: one that could
 *      never fit was refused at submission (sched_fits). Two exceptions to the order:
 *        - a *follower* is passed over: it begins like a running prompt before it in the order which is still being computed, by a page or
 *          more further than what the tree has of it. It will find that beginning in the tree soon, and nobody computes it twice;
 *        - a newcomer of higher priority than the last running request takes its place: that one is retracted, with its row of this step.
 *      Of the waiting ones, a limited number is looked at per step (followers known as such cost next to nothing).
 *      At admission the request takes over from the prefix tree what it can, of its prompt and, after a retraction, of its answer;
 *      What pictures and sounds need of the store of encoded ones (banks.h) is held from there on, or it waits as for pages;
 *   3. prompt rows: chunk_rows of them, or beside_rows when anybody else runs. Of these the first prompt in the order gets at least half. The
 *      other half goes to the prompts of the same priority with the fewest rows left, if fewer than the first's: a short question does not
 *      wait for a book. What is left over goes to prompts in order. A prompt may be cut anywhere. One that finds no page waits for a later
 *      step, except that the first one retracts others when no decoding request will free any.
 *   4. a decoding request gets rows for what is expected behind its last token (request.h: ahead), as far as the batch has rows and places for logits
 *      left and pages are free or idle: nobody is retracted for it.
 *   5. pictures and sounds: nobody gets rows that need one which is not encoded yet; whoever has none for that reason is passed over as if
 *      it were not there, and keeps its pages. A picture whose rows see each other is never cut, neither by a step nor by what is taken
 *      over from the tree: rows end before it, and the first prompt in the order gets it whole, even if that is more than its share (up to
 *      step_tokens rows).
 * A request that wants logits of its prompt gets no more rows than the batch's out places allow. A picture that may not be cut comes as
 * often as it takes: each time as many of its rows as there are places get their logits, and only the last time it is committed.
 *
 * Whatever has been computed is in the tree at once, whole page by whole page; ends (of a prompt, of an answer, of what was retracted) are
 * marked as resume points there.
 *
 * Pure decisions over integers: no clock, no threads, no floats. Same requests in, same decisions out. Nothing is allocated after
 * sched_init.
 */
#ifndef CYGNET_SCHED_H
#define CYGNET_SCHED_H

#include "engine/request.h"

struct sched_config {
  int chunk_tokens; /* prompt rows per step; decoding rows come on top */
  int step_tokens;  /* most prompt rows of a step: more than chunk_tokens where a picture takes more; 0 = the same */
  int max_running, max_queued;
  int rows_max, out_max; /* of a batch: >= step_tokens + max_running, >= max_running */
  int ahead_tokens;      /* room to grow that admission leaves to each running request; 0 is fine */
};

struct sched_pick { /* n rows of r from position `first` on, its n_computed, those behind n_tokens of what is expected */
  struct request *r;
  int first, n;
  int n_out, n_late; /* n_out of them, before the last n_late, want logits. With n_late nothing is committed: the same rows come again */
  bool is_decoding;
};

struct request_list {
  struct request *first, *last;
  int n;
};

struct sched_counts { /* of prompt tokens, since the start: cygnet_stats has their meaning */
  uint64_t prompt, cached, lost_window, lost_wanted;
  uint64_t media, media_cached; /* pictures and sounds */
};

struct sched {
  struct sched_config config;
  struct kv *kv;                        /* borrows */
  struct radix *radix;                  /* borrows; NULL = nothing is reused */
  struct banks *banks;                  /* borrows; NULL = no request has pictures or sounds. Set after sched_init */
  struct request_list running, waiting; /* in the order above */
  int chunk_rows, beside_rows; /* 1 .. chunk_tokens; may be set before a step. At first chunk_tokens, and a quarter of it but 32 at least */
  uint64_t n_retracted;
  struct sched_counts counts;
  struct sched_pick *picks; /* [max_running] */
  int n_picks;
  int n_out;     /* of the step that is being put together: rows that want logits, and one for each running request that has no row yet */
  int n_blocked; /* running requests that wait for an encoder */
  struct kv_copy *copies; /* [max_running * KV_KINDS]: to be done in this order before the step's rows are computed */
  int n_copies;
};

/* radix may be NULL. */
int sched_init(struct sched *s, const struct sched_config *c, struct kv *kv, struct radix *radix, struct err *e);
void sched_free(struct sched *s); /* both lists are empty before; fine on a zeroed one */

/* Could r be computed if it were alone? A sentence if not. */
bool sched_fits(const struct sched *s, const struct request *r, struct err *e);
bool sched_add(struct sched *s, struct request *r); /* takes a place in the queue; false: it is full */
/* From either list; its end becomes a resume point, unless it failed; its pages go back; r is DONE. */
void sched_remove(struct sched *s, struct request *r);
void sched_retract(struct sched *s, struct request *r); /* a running one goes back to waiting (a full queue does not matter) */
/* Number of picks in s->picks, their pages reserved, and copies in s->copies; 0 = no rows: nothing to do, or all wait for
 * an encoder (n_blocked). The copies are to be done in any case. */
int sched_next(struct sched *s);
/* The first p->n of the step's rows of p->r are computed, and the tokens of them known by now. Enters them into the prefix tree; the end of a prompt becomes a resume point. */
void sched_commit(struct sched *s, const struct sched_pick *p);
/* Lists, states, integers, the cache and the tree agree. False and a sentence. For tests and debug builds: takes memory. */
bool sched_check(const struct sched *s, struct err *e);

#endif
