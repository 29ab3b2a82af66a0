/* pages.h — one pool of pages: which ids are free, how many.
 *
 * Ids are 1 .. n_pages; page 0 is never handed out: it means "none", and the memory behind it absorbs stray writes of padding rows.
 * A page has a reference count, so that several sequences and (later) the prefix tree can share it. Low ids are handed out first, so that
 * an idle pool touches little memory.
 */
#ifndef CYGNET_PAGES_H
#define CYGNET_PAGES_H

#include "base/base.h"
#include "base/err.h"

struct pages {
  int n_pages; /* without page 0 */
  int n_free;
  int32_t *heap;  /* [n_pages] min-heap of free ids, the first n_free of it */
  uint16_t *refs; /* [n_pages + 1]; 0 = free */
  uint8_t *seen;  /* [n_pages + 1] scratch of pages_check */
};

int pages_init(struct pages *p, int n_pages, struct err *e); /* n_pages 0 is a pool that never has a page */
void pages_free(struct pages *p);                            /* fine on a zeroed one */
int32_t pages_take(struct pages *p);                         /* 0 when none is free; reference count 1 */
void pages_ref(struct pages *p, int32_t id);                 /* one more owner */
bool pages_unref(struct pages *p, int32_t id);               /* one owner less; true when the page became free */
static inline int pages_used(const struct pages *p) { return p->n_pages - p->n_free; }
/* Free list and counts agree, no id twice; returns false and a sentence. For tests and idle checks. */
bool pages_check(const struct pages *p, struct err *e);

#endif
