/* bpe.c — byte pair encoding of one word: symbols in a linked list, candidate merges in a queue.
 *
 * A symbol knows the piece that it and its right neighbour would make, if any, and that merge's key. A candidate is key and symbol
 * in one integer, so its order is best key first, then leftmost. Candidates are not removed when things change: one whose key is no
 * longer its symbol's is stale and passed over when it comes up.
 *
 * The queue is a heap, and in long words also lanes: lists of candidates of one key that came from left to right, as they mostly do.
 * Text that repeats itself, which is what very long words are made of, then needs no heap and is read in order.
 *
 * Bounds for n characters: n - 1 candidates at first and two more for each of at most n - 1 merges, so less than 3n ever;
 * O(n log n) time; 24 bytes a symbol and 8 a candidate, in one block that is kept from word to word.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tok_work.h"
#include "text/vocab.h"

struct symbol {
  uint32_t at;        /* first byte in the word */
  int32_t prev, next; /* -1 = none */
  int32_t id;         /* piece, or -1: a character without one */
  int32_t merged;     /* what this and the next one make */
  uint32_t key;       /* when; VOCAB_NEVER = they do not merge, or this symbol is part of its left neighbour now */
};

#ifdef CYGNET_DEBUG
enum { LANES = 4, LONG_WORD = 8 }; /* so small that tests see every case */
#else
enum { LANES = 256, LONG_WORD = 512 };
#endif
#define LANE_EMPTY UINT64_MAX

struct lanes {
  uint64_t first[LANES];            /* first candidate of each lane, or LANE_EMPTY; no two lanes have one key */
  int32_t head[LANES], tail[LANES]; /* nodes */
  int best;                         /* lane with the least first candidate */
  int n_active, active[LANES];      /* lanes that are not empty, in any order */
};
struct lane_node {
  int32_t symbol, next;
};

struct word {
  const struct vocab *vocab;
  bpe_merge_fn merge;
  const char *text;
  uint32_t n_bytes;
  struct symbol *symbols;
  /* One array of 3n for both: the heap grows from its front, nodes of lanes are taken from its back. */
  uint64_t *heap; /* the children of i are 4i + 1 .. 4i + 4 */
  size_t n_heap;
  struct lane_node *node_0; /* nodes are -1, -2, ... from here */
  int32_t n_nodes;
  struct lanes *lanes; /* NULL in a short word */
};

int32_t bpe_merge_by_score(const struct vocab *v, int32_t left, int32_t right, const char *joined, size_t n, uint32_t *key) {
  (void)left, (void)right; /* any split of a piece will do */
  int32_t id = vocab_find_normal(v, joined, n);
  if (id < 0 || v->key[id] == VOCAB_NEVER) return -1;
  *key = v->key[id];
  return id;
}

int32_t bpe_merge_by_rank(const struct vocab *v, int32_t left, int32_t right, const char *joined, size_t n, uint32_t *key) {
  (void)joined, (void)n;
  if (left < 0 || right < 0) return -1;
  const struct vocab_merges *m = &v->merges;
  uint64_t pair = vocab_pair(left, right);
  for (uint64_t i = vocab_pair_hash(pair) & m->mask; m->slots[i]; i = (i + 1) & m->mask) {
    TOK_WORK(1);
    if (m->slots[i] >> VOCAB_RANK_BITS != pair) continue;
    *key = (uint32_t)(m->slots[i] & VOCAB_MERGES_MAX) - 1;
    return m->made[*key];
  }
  return -1;
}

void bpe_work_free(struct bpe_work *w) {
  free(w->memory);
  *w = (struct bpe_work){0};
}

static uint32_t symbol_end(const struct word *w, int32_t s) {
  int32_t next = w->symbols[s].next;
  return next < 0 ? w->n_bytes : w->symbols[next].at;
}

/* Index of the least child of i. Which one it is cannot be predicted, so it is computed without branches. */
static size_t least_child(const uint64_t *heap, size_t n, size_t i) {
  size_t a = 4 * i + 1;
  if (a + 3 < n) {
    size_t b = a + 2;
    a += heap[a + 1] < heap[a];
    b += heap[b + 1] < heap[b];
    return a + (b - a) * (heap[b] < heap[a]);
  }
  for (size_t k = a + 1; k < n; k++) a = heap[k] < heap[a] ? k : a;
  return a;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
  uint64_t moved = heap[i];
  while (4 * i + 1 < n) {
    size_t child = least_child(heap, n, i);
    TOK_WORK(1);
    if (moved <= heap[child]) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = moved;
}

static void sift_up(uint64_t *heap, size_t i) {
  uint64_t moved = heap[i];
  for (size_t parent; i > 0 && moved < heap[parent = (i - 1) / 4]; i = parent) {
    TOK_WORK(1);
    heap[i] = heap[parent];
  }
  heap[i] = moved;
}

/* The hole at the top goes down to a leaf without looking at what will fill it: the last entry nearly always belongs that far down. */
static uint64_t heap_pop(struct word *w) {
  uint64_t *heap = w->heap, best = heap[0], last = heap[--w->n_heap];
  size_t n = w->n_heap, i = 0;
  if (!n) return best;
  while (4 * i + 1 < n) {
    size_t child = least_child(heap, n, i);
    heap[i] = heap[child];
    i = child;
    TOK_WORK(1);
  }
  heap[i] = last;
  sift_up(heap, i);
  return best;
}

/* False: this one has to go through the heap. */
static bool lane_push(struct word *w, uint64_t candidate) {
  struct lanes *l = w->lanes;
  uint32_t key = (uint32_t)(candidate >> 32);
  int32_t symbol = (int32_t)(uint32_t)candidate, node = -(w->n_nodes + 1);
  size_t k = (key * 0x9e3779b1u >> 16) % LANES;
  if (l->first[k] == LANE_EMPTY) {
    l->first[k] = candidate;
    l->head[k] = node;
    l->active[l->n_active++] = (int)k;
    if (candidate < l->first[l->best]) l->best = (int)k;
  } else {
    int32_t last = w->node_0[l->tail[k]].symbol;
    if ((uint32_t)(l->first[k] >> 32) != key || symbol < last) return false;
    if (symbol == last) return true; /* it is waiting there already */
    w->node_0[l->tail[k]].next = node;
  }
  l->tail[k] = node;
  w->node_0[node] = (struct lane_node){.symbol = symbol};
  w->n_nodes++;
  return true;
}

static uint64_t lane_pop(struct word *w) {
  struct lanes *l = w->lanes;
  int k = l->best;
  uint64_t popped = l->first[k];
  if (l->head[k] != l->tail[k]) {
    l->head[k] = w->node_0[l->head[k]].next;
    l->first[k] = popped >> 32 << 32 | (uint32_t)w->node_0[l->head[k]].symbol;
    return popped;
  }
  l->first[k] = LANE_EMPTY;
  for (int i = 0; i < l->n_active; i++) {
    TOK_WORK(1);
    if (l->active[i] == k) l->active[i] = l->active[--l->n_active];
    if (i < l->n_active && l->first[l->active[i]] < l->first[l->best]) l->best = l->active[i];
  }
  return popped;
}

/* Least candidate; false when there is none. */
static bool queue_pop(struct word *w, uint64_t *candidate) {
  uint64_t lane = w->lanes ? w->lanes->first[w->lanes->best] : LANE_EMPTY;
  if (w->n_heap && w->heap[0] < lane) *candidate = heap_pop(w);
  else if (lane != LANE_EMPTY) *candidate = lane_pop(w);
  else return false;
  return true;
}

/* Look up what a symbol and its neighbour make and queue it; sorted false leaves the heap's order to be made later. */
static void candidate_push(struct word *w, int32_t left, bool sorted) {
  struct symbol *l = &w->symbols[left];
  l->key = VOCAB_NEVER;
  if (l->next < 0) return;
  uint32_t key;
  l->merged = w->merge(w->vocab, l->id, w->symbols[l->next].id, w->text + l->at, symbol_end(w, l->next) - l->at, &key);
  if (l->merged < 0) return;
  l->key = key;
  uint64_t candidate = (uint64_t)key << 32 | (uint32_t)left;
  if (w->lanes && lane_push(w, candidate)) return;
  w->heap[w->n_heap++] = candidate;
  if (sorted) sift_up(w->heap, w->n_heap - 1);
}

static void merge_all(struct word *w) {
  uint64_t best;
  while (queue_pop(w, &best)) {
    TOK_WORK(1);
    int32_t left = (int32_t)(uint32_t)best;
    struct symbol *l = &w->symbols[left];
    if (l->key != (uint32_t)(best >> 32)) continue;
    struct symbol *r = &w->symbols[l->next];
    l->id = l->merged;
    l->next = r->next;
    r->key = VOCAB_NEVER;
    if (l->next >= 0) w->symbols[l->next].prev = left;
    if (l->prev >= 0) candidate_push(w, l->prev, true);
    candidate_push(w, left, true);
  }
}

static int32_t split_bytes(struct word *w) {
  int32_t n = (int32_t)w->n_bytes;
  for (int32_t i = 0; i < n; i++)
    w->symbols[i] = (struct symbol){.at = (uint32_t)i, .prev = i - 1, .next = i + 1, .id = w->vocab->byte_id[(unsigned char)w->text[i]]};
  w->symbols[n - 1].next = -1;
  return n;
}

static int32_t split_characters(struct word *w) {
  int32_t n = 0;
  for (uint32_t i = 0; i < w->n_bytes; n++) {
    uint32_t at = i++;
    while (i < w->n_bytes && ((unsigned char)w->text[i] & 0xC0) == 0x80) i++;
    w->symbols[n] = (struct symbol){.at = at, .prev = n - 1, .next = n + 1, .id = vocab_find_normal(w->vocab, w->text + at, i - at)};
  }
  w->symbols[n - 1].next = -1;
  return n;
}

static void work_reserve(struct bpe_work *work, size_t n_symbols) {
  if (n_symbols <= work->cap_symbols) return;
  size_t cap = MAX(MAX(n_symbols, 2 * work->cap_symbols), (size_t)256);
  bpe_work_free(work);
  work->memory = xmalloc(sizeof(struct lanes) + cap * (3 * sizeof(uint64_t) + sizeof(struct symbol)));
  work->cap_symbols = cap;
}

void bpe_word(const struct vocab *v, bpe_merge_fn merge, const char *text, size_t n, struct bpe_work *work, struct tok_ids *out) {
  if (!n) return;
  CHECK(n <= INT32_MAX / 3);
  work_reserve(work, n);
  struct word w = {.vocab = v, .merge = merge, .text = text, .n_bytes = (uint32_t)n};
  struct lanes *lanes = work->memory;
  w.heap = (uint64_t *)(lanes + 1);
  w.symbols = (struct symbol *)(w.heap + 3 * work->cap_symbols);
  w.node_0 = (struct lane_node *)w.symbols;
  int32_t n_symbols = v->style == VOCAB_BYTES ? split_bytes(&w) : split_characters(&w);
  if (n_symbols >= LONG_WORD) {
    w.lanes = lanes;
    memset(lanes->first, 0xff, sizeof lanes->first);
    lanes->best = 0;
    lanes->n_active = 0;
  }
  TOK_WORK(n_symbols);
  for (int32_t i = 0; i < n_symbols; i++) candidate_push(&w, i, false);
  for (size_t i = (w.n_heap + 2) / 4; i-- > 0;) sift_down(w.heap, w.n_heap, i);
  merge_all(&w);
  for (int32_t i = 0; i >= 0; i = w.symbols[i].next) {
    if (w.symbols[i].id >= 0) {
      tok_ids_push(out, w.symbols[i].id);
      continue;
    }
    for (uint32_t b = w.symbols[i].at, end = symbol_end(&w, i); b < end; b++) tok_ids_push(out, v->byte_id[(unsigned char)text[b]]);
  }
}
