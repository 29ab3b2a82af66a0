/* banks.c — entries by key, their pages as linked lists, idle entries in the order in which they became idle. The rules are in banks.h. */
#include "kv/banks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct entry {
  struct bank_key key;
  uint64_t serial;
  int32_t chain;        /* next of its bucket; of a free one: next free one */
  int32_t older, newer; /* of an idle one; 0 = end */
  int32_t page;         /* first of its list */
  int n_rows;           /* 0 = free */
  int n_held;
  bool filled;
};

struct banks {
  int page_rows, n_pages;
  struct entry *entries; /* [n_pages + 1] */
  int32_t *next;         /* [n_pages + 1] page after this one, of its entry or of the free ones; 0 = end */
  int32_t *buckets;      /* [n_buckets] */
  size_t n_buckets;      /* power of two */
  int32_t free_entry, free_page;
  int32_t oldest, newest;
  uint64_t n_made;
  struct banks_stats stats;
};

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

size_t banks_bytes(int n_pages) {
  struct banks *b;
  return sizeof *b + ((size_t)n_pages + 1) * (sizeof *b->entries + sizeof *b->next) + power_of_two((size_t)n_pages) * sizeof *b->buckets;
}

struct banks *banks_new(int page_rows, int n_pages, struct err *e) {
  CHECK(page_rows >= 1 && n_pages >= 1 && n_pages < INT32_MAX / 2);
  struct banks *b = xcalloc(1, sizeof *b);
  b->page_rows = page_rows;
  b->n_pages = b->stats.n_pages = n_pages;
  b->n_buckets = power_of_two((size_t)n_pages);
  b->entries = mem_try_alloc(((size_t)n_pages + 1) * sizeof *b->entries);
  b->next = mem_try_alloc(((size_t)n_pages + 1) * sizeof *b->next);
  b->buckets = mem_try_alloc(b->n_buckets * sizeof *b->buckets);
  if (!b->entries || !b->next || !b->buckets) {
    err_set(e, ERR_NO_MEMORY, "pictures and sounds: no memory for the lists of %d pages", n_pages);
    banks_delete(b);
    return NULL;
  }
  for (int32_t i = 1; i < n_pages; i++) b->next[i] = b->entries[i].chain = i + 1;
  b->free_entry = b->free_page = 1;
  return b;
}

void banks_delete(struct banks *b) {
  if (!b) return;
  free(b->entries);
  free(b->next);
  free(b->buckets);
  free(b);
}

/* ---- lists ---------------------------------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct banks *b, const struct bank_key *key) {
  return &b->buckets[bank_key_hash(key) & (b->n_buckets - 1)];
}

int32_t banks_find(const struct banks *b, const struct bank_key *key) {
  int32_t id = *bucket_of(b, key);
  while (id && memcmp(&b->entries[id].key, key, sizeof *key) != 0) id = b->entries[id].chain;
  return id;
}

static const struct entry *entry_at(const struct banks *b, int32_t id) {
  CHECK(id >= 1 && id <= b->n_pages && b->entries[id].n_rows > 0);
  return &b->entries[id];
}

static void count(struct banks *b, const struct entry *y, int held, int idle) {
  int n = banks_pages_for(b, y->n_rows);
  b->stats.n_pages_held += held * n;
  b->stats.n_rows_held += held * y->n_rows;
  b->stats.n_pages_idle += idle * n;
  b->stats.n_rows_idle += idle * y->n_rows;
}

static void make_idle(struct banks *b, int32_t id) {
  struct entry *y = &b->entries[id];
  y->older = b->newest;
  y->newer = 0;
  *(b->newest ? &b->entries[b->newest].newer : &b->oldest) = id;
  b->newest = id;
  count(b, y, -1, 1);
}

static void leave_idle(struct banks *b, int32_t id) {
  struct entry *y = &b->entries[id];
  *(y->older ? &b->entries[y->older].newer : &b->oldest) = y->newer;
  *(y->newer ? &b->entries[y->newer].older : &b->newest) = y->older;
  y->older = y->newer = 0;
  count(b, y, 1, -1);
}

/* An entry that is not in the idle list and counts as held. */
static void forget(struct banks *b, int32_t id) {
  struct entry *y = &b->entries[id];
  int32_t *at = bucket_of(b, &y->key), last = y->page;
  while (*at != id) at = &b->entries[*at].chain;
  *at = y->chain;
  while (b->next[last]) last = b->next[last];
  b->next[last] = b->free_page;
  b->free_page = y->page;
  count(b, y, -1, 0);
  b->stats.n_entries--;
  *y = (struct entry){.chain = b->free_entry};
  b->free_entry = id;
}

/* ---- verbs ---------------------------------------------------------------------------------------------------------------- */

int banks_pages_for(const struct banks *b, int n_rows) { return n_rows / b->page_rows + (n_rows % b->page_rows != 0); }
int banks_page_rows(const struct banks *b) { return b->page_rows; }
int banks_room(const struct banks *b) { return b->n_pages - b->stats.n_pages_held; }

int32_t banks_add(struct banks *b, const struct bank_key *key, int n_rows) {
  CHECK(n_rows >= 1 && !banks_find(b, key));
  int n = banks_pages_for(b, n_rows);
  if (n > banks_room(b)) return 0;
  while (b->n_pages - b->stats.n_pages_held - b->stats.n_pages_idle < n) {
    int32_t oldest = b->oldest;
    leave_idle(b, oldest);
    forget(b, oldest);
  }
  int32_t id = b->free_entry, last = b->free_page, *bucket = bucket_of(b, key);
  struct entry *y = &b->entries[id];
  b->free_entry = y->chain;
  *y = (struct entry){.key = *key, .serial = ++b->n_made, .chain = *bucket, .page = b->free_page, .n_rows = n_rows, .n_held = 1};
  *bucket = id;
  while (--n > 0) last = b->next[last];
  b->free_page = b->next[last];
  b->next[last] = 0;
  count(b, y, 1, 0);
  b->stats.n_entries++;
  return id;
}

void banks_hold(struct banks *b, int32_t id) {
  entry_at(b, id);
  if (b->entries[id].n_held++ == 0) leave_idle(b, id);
}

void banks_release(struct banks *b, int32_t id) {
  struct entry *y = &b->entries[id];
  CHECK(entry_at(b, id)->n_held > 0);
  if (--y->n_held > 0) return;
  if (y->filled) make_idle(b, id);
  else forget(b, id);
}

void banks_fill(struct banks *b, int32_t id) {
  CHECK(entry_at(b, id)->n_held > 0);
  b->entries[id].filled = true;
}

void banks_flush(struct banks *b) {
  for (int32_t id; (id = b->oldest);) {
    leave_idle(b, id);
    forget(b, id);
  }
}

/* ---- observers ------------------------------------------------------------------------------------------------------------ */

bool banks_is_filled(const struct banks *b, int32_t id) { return entry_at(b, id)->filled; }
bool banks_is_held(const struct banks *b, int32_t id) { return entry_at(b, id)->n_held > 0; }
uint64_t banks_serial(const struct banks *b, int32_t id) { return entry_at(b, id)->serial; }
int banks_n_rows(const struct banks *b, int32_t id) { return entry_at(b, id)->n_rows; }
struct banks_stats banks_stats(const struct banks *b) {
  return b->stats;
}

int banks_pages(const struct banks *b, int32_t id, int32_t *pages) {
  int n = 0;
  for (int32_t page = entry_at(b, id)->page; page; page = b->next[page]) pages[n++] = page;
  return n;
}

void banks_slots(const struct banks *b, int32_t id, int first, int n, int64_t *slots) {
  CHECK(first >= 0 && n >= 0 && n <= entry_at(b, id)->n_rows - first);
  int32_t page = b->entries[id].page;
  for (int i = b->page_rows; i <= first; i += b->page_rows) page = b->next[page];
  for (int row = first, i = 0; i < n; i++) {
    slots[i] = (int64_t)page * b->page_rows + row % b->page_rows;
    if (++row % b->page_rows == 0) page = b->next[page];
  }
}

static bool bad(struct err *e, int32_t id, const char *what, int found) {
  err_set(e, ERR_INTERNAL, "pictures and sounds: entry %d: %s (found %d)", id, what, found);
  return false;
}

static bool check_entries(const struct banks *b, const int *n_holders, uint8_t *page_seen, struct banks_stats *st, struct err *e) {
  for (int32_t id = 1; id <= b->n_pages; id++) {
    const struct entry *y = &b->entries[id];
    if (y->n_rows == 0) {
      if (n_holders[id]) return bad(e, id, "is held and does not exist", n_holders[id]);
      continue;
    }
    if (banks_find(b, &y->key) != id) return bad(e, id, "is not found by its key", banks_find(b, &y->key));
    if (y->n_held != n_holders[id]) return bad(e, id, "expected as many holders as it counts", n_holders[id]);
    if (!y->filled && y->n_held == 0) return bad(e, id, "expected somebody to hold it, it is not filled", 0);
    int n = 0;
    for (int32_t page = y->page; page; page = b->next[page], n++)
      if (page < 1 || page > b->n_pages || page_seen[page]++) return bad(e, id, "its page is somebody else's too", page);
    if (n != banks_pages_for(b, y->n_rows)) return bad(e, id, "expected the pages that its rows span", n);
    st->n_entries++;
    *(y->n_held ? &st->n_pages_held : &st->n_pages_idle) += n;
    *(y->n_held ? &st->n_rows_held : &st->n_rows_idle) += y->n_rows;
  }
  return true;
}

static bool check_lists(const struct banks *b, uint8_t *page_seen, struct err *e) {
  int n_free = 0, n_entries = 0, n_idle = 0;
  int32_t newest = 0;
  for (int32_t page = b->free_page; page; page = b->next[page], n_free++)
    if (page_seen[page]++) return bad(e, page, "is a page that is free and in use", page);
  if (n_free != b->n_pages - b->stats.n_pages_held - b->stats.n_pages_idle) return bad(e, 0, "free pages are miscounted", n_free);
  for (int32_t id = b->free_entry; id; id = b->entries[id].chain, n_entries++)
    if (b->entries[id].n_rows || n_entries > b->n_pages) return bad(e, id, "is in use and in the list of free ones", n_entries);
  if (n_entries != b->n_pages - b->stats.n_entries) return bad(e, 0, "free entries are miscounted", n_entries);
  for (int32_t id = b->oldest; id; newest = id, id = b->entries[id].newer) {
    if (b->entries[id].n_held || b->entries[id].older != newest) return bad(e, id, "the list of idle entries is torn", newest);
    n_idle += banks_pages_for(b, b->entries[id].n_rows);
  }
  if (newest != b->newest || n_idle != b->stats.n_pages_idle) return bad(e, newest, "idle entries are miscounted", n_idle);
  return true;
}

bool banks_check(const struct banks *b, const int32_t *holders, int n_holders, struct err *e) {
  int *n = xcalloc((size_t)b->n_pages + 1, sizeof *n);
  uint8_t *seen = xcalloc((size_t)b->n_pages + 1, 1);
  struct banks_stats st = {.n_pages = b->n_pages};
  bool ok = true;
  for (int i = 0; i < n_holders && ok; i++) {
    ok = holders[i] >= 1 && holders[i] <= b->n_pages;
    if (ok) n[holders[i]]++;
    else bad(e, holders[i], "is held and does not exist", i);
  }
  ok = ok && check_entries(b, n, seen, &st, e);
  if (ok && memcmp(&st, &b->stats, sizeof st) != 0) ok = bad(e, 0, "rows or pages are miscounted", b->stats.n_pages_held);
  ok = ok && check_lists(b, seen, e);
  free(n);
  free(seen);
  return ok;
}
