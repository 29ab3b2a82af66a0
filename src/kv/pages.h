/* pages.h — one pool of pages: which ids are free, who shares them, which are only remembered.
 *
 * Ids are 1 .. n_pages; page 0 is never handed out: it means "none", and the memory behind it absorbs stray writes of padding rows.
 * A page has a reference count, so that several sequences and the prefix tree can share it. Low ids are handed out first, so that an idle pool
 * touches little memory.
 *
 *   free ──take──► held by sequences (refs >= 1) ──last unref──► free
 *                    │ keep: the tree is an owner, too                      a kept page that no sequence holds is *idle*: its contents are
 *                    └──► kept ──last sequence lets go──► idle ──ref──►     worth something, but it is there for the asking
 *                                                          └─unkeep──► free
 *
 * Rules
 *   1. The tree is at most one of a page's owners; pages_keep adds it, pages_unkeep takes it back. Every other reference is a sequence's.
 *   2. Idle pages stand in the order in which they became idle, oldest first, in one of two lists: LOOSE goes first when pages are needed, WORTHY
 *      only when nothing loose is left. A page keeps its class while it is held; a change of class while idle makes it the newest of its list.
 *   3. Sequences let go of their pages from the last to the first (kv_seq_close). So of two idle pages on one path the later one is older: taking
 *      the oldest always takes from the end of a path.
 *   4. Nothing is allocated after pages_init; every verb takes constant time but take and unref, which sift a heap.
 */
#ifndef CYGNET_PAGES_H
#define CYGNET_PAGES_H

#include "base/base.h"
#include "base/err.h"

enum pages_class { PAGES_LOOSE, PAGES_WORTHY, PAGES_CLASSES };

struct pages_link {     /* of an idle page in its list */
  int32_t older, newer; /* 0 = end */
};

struct pages {
  int n_pages; /* without page 0 */
  int n_free;
  int n_idle[PAGES_CLASSES];
  int n_kept;               /* pages that the tree owns, idle or not */
  int32_t *heap;            /* [n_pages] min-heap of free ids, the first n_free of it */
  uint16_t *refs;           /* [n_pages + 1]; 0 = free; the tree counts as one */
  uint8_t *kept;            /* [n_pages + 1] bit 0: the tree is an owner; bit 1: its class */
  struct pages_link *links; /* [n_pages + 1] */
  int32_t oldest[PAGES_CLASSES], newest[PAGES_CLASSES];
  uint8_t *seen; /* [n_pages + 1] scratch of pages_check */
};

int pages_init(struct pages *p, int n_pages, struct err *e); /* n_pages 0 is a pool that never has a page */
void pages_free(struct pages *p);                            /* fine on a zeroed one */
size_t pages_bytes(int n_pages);                             /* what pages_init takes */

int32_t pages_take(struct pages *p);           /* 0 when none is free; reference count 1 */
void pages_ref(struct pages *p, int32_t id);   /* one more sequence holds it; an idle page leaves its list */
bool pages_unref(struct pages *p, int32_t id); /* one sequence less; true when the page became free */

void pages_keep(struct pages *p, int32_t id, enum pages_class class);      /* the tree becomes an owner; some sequence holds it now */
bool pages_unkeep(struct pages *p, int32_t id);                            /* the tree lets go; true when the page became free */
void pages_set_class(struct pages *p, int32_t id, enum pages_class class); /* of a kept page */
static inline bool pages_is_kept(const struct pages *p, int32_t id) { return p->kept[id] & 1; }
static inline enum pages_class pages_class(const struct pages *p, int32_t id) { return p->kept[id] & 2 ? PAGES_WORTHY : PAGES_LOOSE; }
static inline bool pages_is_idle(const struct pages *p, int32_t id) { return pages_is_kept(p, id) && p->refs[id] == 1; }
static inline int32_t pages_oldest(const struct pages *p, enum pages_class class) { return p->oldest[class]; } /* 0 = none idle */

/* Held by sequences: neither free nor idle. */
static inline int pages_idle(const struct pages *p) { return p->n_idle[PAGES_LOOSE] + p->n_idle[PAGES_WORTHY]; }
static inline int pages_used(const struct pages *p) { return p->n_pages - p->n_free - pages_idle(p); }
/* Free list, idle lists and counts agree, no id twice; returns false and a sentence. For tests and idle checks. */
bool pages_check(const struct pages *p, struct err *e);

#endif
