/* pages.c — a pool of page ids as a min-heap, with reference counts and the lists of idle pages. */
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
  p->kept = mem_try_alloc((size_t)n_pages + 1);
  p->links = mem_try_alloc(((size_t)n_pages + 1) * sizeof *p->links);
  p->seen = mem_try_alloc((size_t)n_pages + 1);
  if (!p->heap || !p->refs || !p->kept || !p->links || !p->seen) {
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

size_t pages_bytes(int n_pages) {
  struct pages p;
  return ((size_t)n_pages + 1) * (sizeof *p.heap + sizeof *p.refs + sizeof *p.kept + sizeof *p.links + sizeof *p.seen);
}

void pages_free(struct pages *p) {
  free(p->heap);
  free(p->refs);
  free(p->kept);
  free(p->links);
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

static void give_back(struct pages *p, int32_t id) {
  int at = p->n_free++;
  for (int parent; at > 0 && p->heap[parent = (at - 1) / 2] > id; at = parent) p->heap[at] = p->heap[parent];
  p->heap[at] = id;
}

/* ---- idle lists --------------------------------------------------------------------------------------------------------- */

enum { KEPT = 1, CLASS = 2 }; /* bits of kept */

static void idle_add(struct pages *p, int32_t id) {
  enum pages_class c = pages_class(p, id);
  p->links[id] = (struct pages_link){.older = p->newest[c]};
  *(p->newest[c] ? &p->links[p->newest[c]].newer : &p->oldest[c]) = id;
  p->newest[c] = id;
  p->n_idle[c]++;
}

static void idle_remove(struct pages *p, int32_t id) {
  enum pages_class c = pages_class(p, id);
  struct pages_link l = p->links[id];
  *(l.older ? &p->links[l.older].newer : &p->oldest[c]) = l.newer;
  *(l.newer ? &p->links[l.newer].older : &p->newest[c]) = l.older;
  p->n_idle[c]--;
}

/* ---- owners --------------------------------------------------------------------------------------------------------------- */

static void check_held(const struct pages *p, int32_t id) { CHECK(id > 0 && id <= p->n_pages && p->refs[id] > 0); }

void pages_ref(struct pages *p, int32_t id) {
  check_held(p, id);
  CHECK(p->refs[id] < UINT16_MAX);
  if (pages_is_idle(p, id)) idle_remove(p, id);
  p->refs[id]++;
}

bool pages_unref(struct pages *p, int32_t id) {
  check_held(p, id);
  CHECK(!pages_is_idle(p, id)); /* the last reference is the tree's */
  if (--p->refs[id] == 0) give_back(p, id);
  else if (pages_is_idle(p, id)) idle_add(p, id);
  return p->refs[id] == 0;
}

void pages_keep(struct pages *p, int32_t id, enum pages_class class) {
  check_held(p, id);
  CHECK(!pages_is_kept(p, id) && p->refs[id] < UINT16_MAX);
  p->refs[id]++;
  p->kept[id] = class == PAGES_WORTHY ? KEPT | CLASS : KEPT;
  p->n_kept++;
}

bool pages_unkeep(struct pages *p, int32_t id) {
  check_held(p, id);
  CHECK(pages_is_kept(p, id));
  if (pages_is_idle(p, id)) idle_remove(p, id);
  p->kept[id] = 0;
  p->n_kept--;
  if (--p->refs[id] == 0) give_back(p, id);
  return p->refs[id] == 0;
}

void pages_set_class(struct pages *p, int32_t id, enum pages_class class) {
  check_held(p, id);
  CHECK(pages_is_kept(p, id));
  bool idle = pages_is_idle(p, id);
  if (idle) idle_remove(p, id);
  p->kept[id] = class == PAGES_WORTHY ? KEPT | CLASS : KEPT;
  if (idle) idle_add(p, id);
}

/* ---- invariants ------------------------------------------------------------------------------------------------------------- */

static int check_idle(const struct pages *p, enum pages_class c, struct err *e) {
  int n = 0;
  int32_t older = 0;
  for (int32_t id = p->oldest[c]; id; older = id, id = p->links[id].newer, n++) {
    if (id < 0 || id > p->n_pages || n >= p->n_pages)
      return err_set(e, ERR_INTERNAL, "page pool: idle list holds id %d, expected 1 to %d", id, p->n_pages);
    if (!pages_is_idle(p, id) || pages_class(p, id) != c)
      return err_set(e, ERR_INTERNAL, "page pool: page %d is listed as idle and is not", id);
    if (p->links[id].older != older) return err_set(e, ERR_INTERNAL, "page pool: the idle list is torn at page %d", id);
  }
  if (p->newest[c] != older || p->n_idle[c] != n)
    return err_set(e, ERR_INTERNAL, "page pool: an idle list counts %d pages and has %d", p->n_idle[c], n);
  return 0;
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
  int n_idle = 0, n_kept = 0;
  for (int32_t id = 1; id <= p->n_pages; id++) {
    if (!p->refs[id] && !p->seen[id]) return err_set(e, ERR_INTERNAL, "page pool: page %d has no owner and is not free", id), false;
    if (!p->refs[id] && p->kept[id]) return err_set(e, ERR_INTERNAL, "page pool: page %d is free and kept", id), false;
    n_kept += pages_is_kept(p, id);
    n_idle += pages_is_idle(p, id);
  }
  if (check_idle(p, PAGES_LOOSE, e) || check_idle(p, PAGES_WORTHY, e)) return false;
  if (n_kept != p->n_kept || n_idle != pages_idle(p))
    return err_set(e, ERR_INTERNAL, "page pool: counts %d kept and %d idle pages, found %d and %d", p->n_kept, pages_idle(p), n_kept,
                   n_idle),
           false;
  return true;
}
