/* banks.h — the store of what encoders made of pictures and sounds: who holds it, what is worth keeping, where its rows lie. Integers only.
 *
 * An entry is known by a key, a digest of all that its rows depend on, and spans whole pages of rows: of the store of soft rows, or of the
 * pool of keys and values for cross-attention. So the same picture in two prompts is encoded once and lies there once.
 *
 *   banks_add ──► held, not filled ──banks_fill──► held, filled ──last release──► idle: found by its key until room is needed,
 *                  └─last release──► gone               ▲────────banks_hold─────────┘     oldest first
 *
 * Rules
 *   1. Ids of pages are 1 .. n_pages, those of entries too; page 0 is never handed out.
 *   2. What is held is never moved nor given up. An entry that is not filled is held by somebody.
 *   3. Running short is a result: an entry gets all its pages or none, after as many idle entries have gone as that takes.
 *   4. Nothing is allocated after banks_new.
 *
 * names: a number for a key, for a while. A number is never given to two keys, so what is compared by number is never wrong; a key that was
 * forgotten, of NAMES_MAX the one used longest ago, gets another number when it is met again.
 */
#ifndef CYGNET_BANKS_H
#define CYGNET_BANKS_H

#include <string.h>

#include "base/base.h"
#include "base/digest.h"
#include "base/err.h"

struct bank_key {
  uint8_t digest[DIGEST_BYTES];
};

/* A digest is as good as random. */
static inline uint64_t bank_key_hash(const struct bank_key *key) {
  uint64_t h;
  memcpy(&h, key->digest, sizeof h);
  return h;
}

struct banks; /* opaque */

/* Takes all memory: banks_bytes. page_rows >= 1, n_pages >= 1. Returns owned. */
struct banks *banks_new(int page_rows, int n_pages, struct err *e);
void banks_delete(struct banks *b); /* NULL is fine */
size_t banks_bytes(int n_pages);

int32_t banks_find(const struct banks *b, const struct bank_key *key); /* 0 = none */
/* A new entry that nobody has; held once, not filled. n_rows >= 1. 0 = there is no room beside what is held. */
int32_t banks_add(struct banks *b, const struct bank_key *key, int n_rows);
void banks_hold(struct banks *b, int32_t id); /* once more */
void banks_release(struct banks *b, int32_t id);
void banks_fill(struct banks *b, int32_t id); /* its rows are there now; held */
bool banks_is_filled(const struct banks *b, int32_t id);
bool banks_is_held(const struct banks *b, int32_t id);
uint64_t banks_serial(const struct banks *b, int32_t id); /* no two entries have the same, ever */
int banks_n_rows(const struct banks *b, int32_t id);
int banks_pages_for(const struct banks *b, int n_rows);
int banks_page_rows(const struct banks *b);
int banks_room(const struct banks *b); /* pages that are not held */
/* Its pages in order; returns how many. Or where its rows [first, first + n) lie: page id * page_rows + offset. */
int banks_pages(const struct banks *b, int32_t id, int32_t *pages);
void banks_slots(const struct banks *b, int32_t id, int first, int n, int64_t *slots);
void banks_flush(struct banks *b); /* forget what is idle */

struct banks_stats {
  int n_pages, n_pages_held, n_pages_idle;
  int n_rows_held, n_rows_idle;
  int n_entries; /* held or idle */
};
struct banks_stats banks_stats(const struct banks *b);
/* Every rule above. holders: entries that are held, one for each time; all that exist. False and a sentence. For tests and debug builds:
 * takes memory. */
bool banks_check(const struct banks *b, const int32_t *holders, int n_holders, struct err *e);

enum { NAMES_MAX = 16384 };
struct names; /* opaque */

struct names *names_new(int n_max, struct err *e); /* 1 .. NAMES_MAX. Returns owned */
void names_delete(struct names *n);                /* NULL is fine */
size_t names_bytes(int n_max);
int32_t names_number(struct names *n, const struct bank_key *key); /* 0 ..; -1: numbers are used up */

#endif
