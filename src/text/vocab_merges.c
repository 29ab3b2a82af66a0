/* vocab_merges.c — building the table of merges.
 *
 * There are half a million, and for each of them three pieces are looked up in tables that are larger than the caches near the core. So a merge
 * waits in a ring after it was pushed while the memory that its look-ups will need is asked for, one step each few merges:
 *
 *   push ──► slots of the hash table ──► where the pieces lie ──► the pieces ──► look-ups ──► slot of the table of merges
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/vocab.h"

enum { LEAD = 8, RING = 5 * LEAD, SHORT_BYTES = 48 };

struct pending_merge {
  char *joined; /* both sides as they stand in text; short_joined or owned */
  uint32_t left_bytes, joined_bytes;
  uint32_t hash[3]; /* of left, right, both */
  bool found;       /* id is set */
  int32_t id[3];
  char short_joined[SHORT_BYTES];
};
struct vocab_pending {
  uint64_t n_pushed, n_done;
  struct pending_merge ring[RING];
};

void vocab_merges_begin(struct vocab *v, size_t n) {
  CHECK(n <= VOCAB_MERGES_MAX);
  v->merges.pending = xcalloc(1, sizeof *v->merges.pending);
  if (v->style == VOCAB_BY_SCORE) return;
  size_t slots = 16;
  while (slots < n + n / 2) slots *= 2;
  v->merges.slots = xcalloc(slots, sizeof *v->merges.slots);
  v->merges.made = xmalloc((n + 1) * sizeof *v->merges.made);
  v->merges.mask = slots - 1;
}

void vocab_merges_drop_pending(struct vocab *v) {
  struct vocab_pending *p = v->merges.pending;
  for (; p && p->n_done < p->n_pushed; p->n_done++) {
    struct pending_merge *m = &p->ring[p->n_done % RING];
    if (m->joined != m->short_joined) free(m->joined);
  }
  free(p);
  v->merges.pending = NULL;
}

bool vocab_merge_split(struct str merge, struct str *left, struct str *right) {
  const char *gap = merge.n > 1 ? memchr(merge.p + 1, ' ', merge.n - 1) : NULL;
  if (!gap || gap + 1 == merge.p + merge.n) return false;
  *left = str_of(merge.p, (size_t)(gap - merge.p));
  *right = str_of(gap + 1, merge.n - left->n - 1);
  return true;
}

static int refuse(uint64_t index, struct str left, struct str right, const char *where, struct err *e) {
  char shown[2][64];
  return err_set(e, ERR_BAD_FILE, "%s: merges[%llu]: expected two pieces that make a third of the vocabulary, found %s and %s", where,
                 (unsigned long long)index, str_escape(left, shown[0], sizeof shown[0]), str_escape(right, shown[1], sizeof shown[1]));
}

/* The first of equal pairs stays. */
static void put(struct vocab *v, uint32_t rank, int32_t left, int32_t right, int32_t made) {
  struct vocab_merges *m = &v->merges;
  uint64_t pair = vocab_pair(left, right), i = vocab_pair_hash(pair) & m->mask;
  for (; m->slots[i]; i = (i + 1) & m->mask)
    if (m->slots[i] >> VOCAB_RANK_BITS == pair) return;
  m->slots[i] = pair << VOCAB_RANK_BITS | (rank + 1);
  m->made[rank] = made;
}

static void look_up(const struct vocab *v, struct pending_merge *m) {
  if (m->found) return;
  m->found = true;
  m->id[0] = vocab_find_hashed(v, m->hash[0], m->joined, m->left_bytes);
  m->id[1] = vocab_find_hashed(v, m->hash[1], m->joined + m->left_bytes, m->joined_bytes - m->left_bytes);
  m->id[2] = vocab_find_hashed(v, m->hash[2], m->joined, m->joined_bytes);
  if (v->merges.slots && m->id[0] >= 0 && m->id[1] >= 0)
    __builtin_prefetch(&v->merges.slots[vocab_pair_hash(vocab_pair(m->id[0], m->id[1])) & v->merges.mask], 1);
}

/* The merge that has waited longest. */
static int finish_one(struct vocab *v, const char *where, struct err *e) {
  struct vocab_pending *p = v->merges.pending;
  uint32_t rank = (uint32_t)p->n_done;
  struct pending_merge *m = &p->ring[p->n_done++ % RING];
  struct str both = str_of(m->joined, m->joined_bytes), l = str_of(both.p, m->left_bytes), r = str_of(both.p + l.n, both.n - l.n);
  look_up(v, m);
  int32_t left = m->id[0], right = m->id[1], made = m->id[2];
  int rc = 0;
  if (left < 0 || right < 0 || made < 0) {
    rc = refuse(rank, l, r, where, e);
  } else if (v->style == VOCAB_BY_SCORE) {
    if (v->kind[made] == PIECE_NORMAL && v->key[made] == VOCAB_NEVER) v->key[made] = rank;
  } else if (v->kind[left] == PIECE_NORMAL && v->kind[right] == PIECE_NORMAL && v->kind[made] == PIECE_NORMAL) {
    put(v, rank, left, right, made);
    vocab_note_join(v, l.p[l.n - 1], r.p[0]);
  }
  if (m->joined != m->short_joined) free(m->joined);
  return rc;
}

int vocab_merge_push(struct vocab *v, struct str left, struct str right, const char *where, struct err *e) {
  struct vocab_pending *p = v->merges.pending;
  struct pending_merge *m = &p->ring[p->n_pushed % RING];
  if (p->n_pushed - p->n_done == RING && finish_one(v, where, e) != 0) return -1;
  size_t a = 0, b = 0;
  m->joined = left.n + right.n <= SHORT_BYTES ? m->short_joined : xmalloc(left.n + right.n);
  bool read = vocab_normal_form(v, left, m->joined, &a) && vocab_normal_form(v, right, m->joined + a, &b);
  m->left_bytes = (uint32_t)a;
  m->joined_bytes = (uint32_t)(a + b);
  m->hash[0] = vocab_hash(m->joined, a);
  m->hash[1] = vocab_hash(m->joined + a, b);
  m->hash[2] = vocab_hash(m->joined, a + b);
  m->found = false;
  uint64_t index = p->n_pushed++;
  if (!read || !a || !b) return refuse(index, left, right, where, e);
  for (uint64_t stage = 0; stage < 3 && index >= stage * LEAD; stage++)
    for (int i = 0; i < 3; i++) vocab_find_ahead(v, p->ring[(index - stage * LEAD) % RING].hash[i], (int)stage);
  if (index >= 3 * LEAD) look_up(v, &p->ring[(index - 3 * LEAD) % RING]);
  return 0;
}

int vocab_merges_finish(struct vocab *v, const char *where, struct err *e) {
  struct vocab_pending *p = v->merges.pending;
  while (p->n_done < p->n_pushed)
    if (finish_one(v, where, e) != 0) return -1;
  vocab_merges_drop_pending(v);
  return 0;
}
