/* pages.c — a pool of page ids as a min-heap, with reference counts. */
#include "kv/pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int pages_init(struct pages *p, int n_pages, struct err *e) {
  memset(p, 0, sizeof *p);
  if (n_pages < 0 || n_pages > INT32_MAX / 2)
    return err_set(e, ERR_BAD_INPUT, "page pool: expected 0 to %d pages, found %d", INT32_MAX / 2, n_pages);
  p->heap = mem_try_alloc((size_t)MAX(n_pages, 1) * sizeof *p->heap);
  p->refs = mem_try_alloc(((size_t)n_pages + 1) * sizeof *p->refs);
  p->seen = mem_try_alloc((size_t)n_pages + 1);
  if (!p->heap || !p->refs || !p->seen) {
    err_set(e, ERR_NO_MEMORY, "page pool: no memory for the bookkeeping of %d pages", n_pages);
    goto fail;
  }
  p->n_pages = p->n_free = n_pages;
  for (int i = 0; i < n_pages; i++) p->heap[i] = i + 1; /* ascending order is a heap */
  return 0;
fail:
  pages_free(p);
  return -1;
}

void pages_free(struct pages *p) {
  free(p->heap);
  free(p->refs);
  free(p->seen);
  memset(p, 0, sizeof *p);
}

int32_t pages_take(struct pages *p) {
  if (p->n_free == 0) return 0;
  int32_t *heap = p->heap, id = heap[0], last = heap[--p->n_free];
  int at = 0;
  for (int child; (child = 2 * at + 1) < p->n_free; at = child) {
    if (child + 1 < p->n_free && heap[child + 1] < heap[child]) child++;
    if (last <= heap[child]) break;
    heap[at] = heap[child];
  }
  heap[at] = last;
  DCHECK(p->refs[id] == 0);
  p->refs[id] = 1;
  return id;
}

void pages_ref(struct pages *p, int32_t id) {
  CHECK(id > 0 && id <= p->n_pages && p->refs[id] > 0 && p->refs[id] < UINT16_MAX);
  p->refs[id]++;
}

bool pages_unref(struct pages *p, int32_t id) {
  CHECK(id > 0 && id <= p->n_pages && p->refs[id] > 0);
  if (--p->refs[id] > 0) return false;
  int at = p->n_free++;
  for (int parent; at > 0 && p->heap[parent = (at - 1) / 2] > id; at = parent) p->heap[at] = p->heap[parent];
  p->heap[at] = id;
  return true;
}

bool pages_check(const struct pages *p, struct err *e) {
  if (p->n_free < 0 || p->n_free > p->n_pages)
    return err_set(e, ERR_INTERNAL, "page pool: expected 0 to %d free pages, found %d", p->n_pages, p->n_free), false;
  if (p->n_pages > 0 && p->refs[0]) return err_set(e, ERR_INTERNAL, "page pool: page 0 has %d owners, expected none", p->refs[0]), false;
  memset(p->seen, 0, (size_t)p->n_pages + 1);
  for (int i = 0; i < p->n_free; i++) {
    int32_t id = p->heap[i];
    if (id < 1 || id > p->n_pages)
      return err_set(e, ERR_INTERNAL, "page pool: free list holds id %d, expected 1 to %d", id, p->n_pages), false;
    if (p->seen[id]) return err_set(e, ERR_INTERNAL, "page pool: page %d is free twice", id), false;
    if (p->refs[id]) return err_set(e, ERR_INTERNAL, "page pool: page %d is free and has %d owners", id, p->refs[id]), false;
    if (i > 0 && p->heap[(i - 1) / 2] > id)
      return err_set(e, ERR_INTERNAL, "page pool: free list is no heap at index %d (page %d)", i, id), false;
    p->seen[id] = 1;
  }
  for (int32_t id = 1; id <= p->n_pages; id++)
    if (!p->refs[id] && !p->seen[id]) return err_set(e, ERR_INTERNAL, "page pool: page %d has no owner and is not free", id), false;
  return true;
}
