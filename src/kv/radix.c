/* radix.c — the prefix tree: its life, matching, adopting, entering. What leaves it again: radix_evict.c.
 *
 * Why an idle page is never above one that is held, which eviction counts on: a sequence's whole pages below n_entered are a path of the tree from the
 * root (rule 2), and its partly filled page, if the tree has it, hangs at the end of that path. So who holds a node holds all its ancestors, and
 * lets go of them later than of the node. Of two idle nodes on one path the lower one is older, and the oldest of all is a leaf.
 */
#include "kv/radix.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kv/radix_impl.h"

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

static size_t buckets_for(int n_pages_full) { return power_of_two((size_t)n_pages_full); }

size_t radix_bytes(int n_pages_full, int n_pages_sliding, int page_tokens) {
  struct radix t;
  size_t per_node = sizeof *t.nodes + sizeof *t.spaces + sizeof *t.path + sizeof *t.counted + (size_t)page_tokens * sizeof *t.tokens;
  return sizeof t + ((size_t)n_pages_full + 1) * per_node + buckets_for(n_pages_full) * sizeof *t.buckets +
         ((size_t)n_pages_sliding + 1) * sizeof *t.node_of_swa;
}

struct radix *radix_new(struct kv *kv, struct err *e) {
  struct kv_stats have = kv_stats(kv);
  int n_full = have.n_pages[KV_FULL], n_sliding = have.n_pages[KV_SLIDING];
  if (n_full == 0) return err_set(e, ERR_UNSUPPORTED, "prefix cache: expected a model with full attention layers, found none"), NULL;
  struct radix *t = xcalloc(1, sizeof *t);
  t->kv = kv;
  for (int k = 0; k < KV_KINDS; k++) t->pool[k] = kv_pool(kv, k);
  t->page_tokens = kv_page_tokens(kv);
  t->window_tokens = kv_window_tokens(kv);
  t->slides = n_sliding > 0;
  t->seed = rng_system_seed();
  t->n_buckets = buckets_for(n_full);
  size_t n_nodes = (size_t)n_full + 1;
  t->nodes = mem_try_alloc(n_nodes * sizeof *t->nodes);
  t->tokens = mem_try_alloc(n_nodes * (size_t)t->page_tokens * sizeof *t->tokens);
  t->spaces = mem_try_alloc(n_nodes * sizeof *t->spaces);
  t->buckets = mem_try_alloc(t->n_buckets * sizeof *t->buckets);
  t->node_of_swa = mem_try_alloc(((size_t)n_sliding + 1) * sizeof *t->node_of_swa);
  t->path = mem_try_alloc(n_nodes * sizeof *t->path);
  t->counted = mem_try_alloc(n_nodes * sizeof *t->counted);
  if (!t->nodes || !t->tokens || !t->spaces || !t->buckets || !t->node_of_swa || !t->path || !t->counted) {
    err_set(e, ERR_NO_MEMORY, "prefix cache: no memory for the tree over %d pages", n_full);
    goto fail;
  }
  t->nodes[0].index = -1;
  return t;
fail:
  radix_delete(t);
  return NULL;
}

void radix_delete(struct radix *t) {
  if (!t) return;
  if (t->stats.n_nodes) radix_flush(t);
  free(t->nodes);
  free(t->tokens);
  free(t->spaces);
  free(t->buckets);
  free(t->node_of_swa);
  free(t->path);
  free(t->counted);
  free(t);
}

struct radix_stats radix_stats(const struct radix *t) {
  return t->stats;
}

/* ---- matching ------------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 32;
}

int32_t *radix_bucket(const struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens) {
  uint64_t h = mix(t->seed, (uint32_t)parent);
  if (!parent) h = mix(mix(h, space.a), space.b);
  for (int i = 0; i < t->page_tokens; i++) h = mix(h, (uint32_t)tokens[i]);
  return &t->buckets[mix(h, t->seed) & (t->n_buckets - 1)];
}

static bool belongs(const struct radix *t, int32_t node, struct radix_space space) {
  return t->nodes[node].parent || radix_space_equal(t->spaces[node], space);
}

int32_t radix_find(const struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens) {
  int32_t node = *radix_bucket(t, parent, space, tokens);
  size_t n_bytes = (size_t)t->page_tokens * sizeof *tokens;
  while (node && (t->nodes[node].parent != parent || !belongs(t, node, space) || memcmp(radix_page(t, node), tokens, n_bytes) != 0))
    node = t->nodes[node].chain;
  return node;
}

/* Tokens that a node and tokens[0, n) have in common. */
static int common(const struct radix *t, int32_t node, const int32_t *tokens, int n) {
  const int32_t *page = radix_page(t, node);
  int i = 0;
  for (n = MIN(n, t->nodes[node].n_tokens); i < n && page[i] == tokens[i]; i++) continue;
  return i;
}

/* Of the first *n tokens of the path that ends in node: how many are usable (becomes *n), and the node in which they end. */
static int32_t usable_end(const struct radix *t, int32_t node, int *n) {
  if (!t->slides) return node;
  int32_t end = node;
  int first = radix_first_seen(t, *n);
  for (int32_t at = node; t->nodes[at].index >= first; at = t->nodes[at].parent) {
    if (t->nodes[at].swa) continue;
    *n = t->nodes[at].index * t->page_tokens; /* whoever goes on further needs this page */
    end = t->nodes[at].parent;
    first = radix_first_seen(t, *n);
  }
  return end;
}

/* Of nodes that have equally much: rather one that serves, rather one that is remembered anyway. */
static int rank(const struct radix *t, int32_t node) { return (radix_is_dead(t, node) ? 0 : 2) + t->nodes[node].resume; }

struct radix_match radix_match(const struct radix *t, struct radix_space space, const int32_t *tokens, int limit) {
  CHECK(limit >= 0);
  int32_t whole = 0, best = 0, live = 0; /* best: has the most tokens of the next page; live: of those one can go on from */
  int n = 0, n_best = 0, n_live = 0, P = t->page_tokens;
  for (int32_t node; limit - n >= P && (node = radix_find(t, whole, space, tokens + n)); n += P) whole = node;
  bool parts = false;
  for (int32_t c = t->nodes[whole].child; c; c = t->nodes[c].next) {
    if (!belongs(t, c, space)) continue;
    int n_common = common(t, c, tokens + n, limit - n);
    bool goes_on = t->nodes[c].n_tokens > n_common;
    parts = n_common == n_best ? parts || goes_on : n_common > n_best ? goes_on : parts;
    if (n_common > n_best || (n_common && n_common == n_best && rank(t, c) > rank(t, best))) best = c, n_best = n_common;
    if (radix_is_dead(t, c)) continue;
    if (n_common > n_live || (n_common && n_common == n_live && rank(t, c) > rank(t, live))) live = c, n_live = n_common;
  }
  struct radix_match m = {.n_known = n + n_best, .known_node = n_best ? best : whole};
  m.parts = parts && m.n_known > 0 && m.n_known < limit;

  m.n_usable = n + n_live;
  m.node = usable_end(t, n_live ? live : whole, &m.n_usable);
  return m;
}

/* ---- adopting ------------------------------------------------------------------------------------------------------------- */

/* s takes the pages of the path that ends in node, with a window for going on at n. */
static void adopt_whole(struct radix *t, struct kv_seq *s, int32_t node, int n) {
  int n_pages = t->nodes[node].index + 1, P = t->page_tokens;
  for (int32_t at = node; at; at = t->nodes[at].parent) t->path[t->nodes[at].index] = (struct kv_page){.full = at, .swa = t->nodes[at].swa};
  int swa_from = t->slides ? (int)kv_window_lo(n, t->window_tokens) / P * P : 0;
  kv_seq_adopt(t->kv, s, t->path, n_pages * P, swa_from);
  s->n_entered = n_pages * P;
}

static bool reserve(struct radix *t, struct kv_seq *s, int n) {
  struct kv_short lack = kv_reserve(t->kv, s, n);
  if (!lack.pages[KV_FULL] && !lack.pages[KV_SLIDING]) return true;
  if (!radix_evict(t, lack)) return false;
  lack = kv_reserve(t->kv, s, n);
  CHECK(!lack.pages[KV_FULL] && !lack.pages[KV_SLIDING]);
  return true;
}

/* s takes a page of its own for the rest tokens of node. The node is held meanwhile: making room must not take it. */
static int adopt_rest(struct radix *t, struct kv_seq *s, int32_t node, int rest, struct kv_copy *copies) {
  const struct kv_page from = {.full = node, .swa = t->nodes[node].swa};
  pages_ref(t->pool[KV_FULL], from.full);
  if (from.swa) pages_ref(t->pool[KV_SLIDING], from.swa);
  int n_copies = 0;
  if (reserve(t, s, rest)) {
    const struct kv_page to = s->pairs[s->n_pairs - 1];
    kv_commit(t->kv, s, rest);
    copies[n_copies++] = (struct kv_copy){.kind = KV_FULL, .from = from.full, .to = to.full};
    if (from.swa) copies[n_copies++] = (struct kv_copy){.kind = KV_SLIDING, .from = from.swa, .to = to.swa};
  }
  pages_unref(t->pool[KV_FULL], from.full);
  if (from.swa) pages_unref(t->pool[KV_SLIDING], from.swa);
  return n_copies;
}

int radix_adopt(struct radix *t, const struct radix_match *m, struct kv_seq *s, struct kv_copy *copies) {
  CHECK(s->pairs && s->n_reserved == 0);
  if (m->parts) radix_resume(t, m->known_node);
  if (t->nodes[m->node].resume) radix_resume(t, m->node);
  int rest = m->n_usable % t->page_tokens, n = m->n_usable - rest;
  int32_t whole = rest ? t->nodes[m->node].parent : m->node;
  adopt_whole(t, s, whole, m->n_usable);
  int n_copies = rest ? adopt_rest(t, s, m->node, rest, copies) : 0;
  if (rest && !n_copies) { /* without the rest the window begins earlier, and may not be there */
    kv_truncate(t->kv, s, 0);
    whole = usable_end(t, whole, &n);
    adopt_whole(t, s, whole, n);
  }
  return n_copies;
}

/* ---- entering ------------------------------------------------------------------------------------------------------------- */

static void keep_swa(struct radix *t, int32_t node, int32_t swa) {
  if (!swa) return;
  t->nodes[node].swa = swa;
  t->node_of_swa[swa] = node;
  pages_keep(t->pool[KV_SLIDING], swa, t->nodes[node].n_windows ? PAGES_WORTHY : PAGES_LOOSE);
}

/* The node knows the first n tokens of its page now. */
static void learn(struct radix *t, int32_t node, struct radix_space space, const int32_t *tokens, int n) {
  struct radix_node *d = &t->nodes[node];
  DCHECK(d->n_tokens < n);
  memcpy(radix_page(t, node), tokens, (size_t)n * sizeof *tokens);
  d->n_tokens = n;
  if (n < t->page_tokens) return;
  int32_t *bucket = radix_bucket(t, d->parent, space, tokens);
  d->chain = *bucket;
  *bucket = node;
}

static void add(struct radix *t, int32_t parent, struct radix_space space, struct kv_page pair, const int32_t *tokens, int n) {
  struct radix_node *d = &t->nodes[pair.full], *up = &t->nodes[parent];
  DCHECK(d->n_tokens == 0 && (parent == 0 || up->n_tokens == t->page_tokens));
  *d = (struct radix_node){.parent = parent, .next = up->child, .index = up->index + 1};
  if (up->child) t->nodes[up->child].prev = pair.full;
  up->child = pair.full;
  t->spaces[pair.full] = space;
  pages_keep(t->pool[KV_FULL], pair.full, PAGES_LOOSE);
  keep_swa(t, pair.full, pair.swa);
  learn(t, pair.full, space, tokens, n);
  t->stats.n_nodes++;
  t->stats.n_tombstones += radix_is_tombstone(t, pair.full);
}

/* A page with the first n tokens below parent is to become a node. It takes the place of those children that know only a beginning of
 * it (a sequence that holds one goes on with a page of its own); and of a dead one that is where paths part it takes over to be the resume point.
 * Returns whether it is to be one. */
static bool supersede(struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens, int n) {
  bool resume = false;
  for (int32_t c = t->nodes[parent].child, next; c; c = next) {
    const struct radix_node *d = &t->nodes[c];
    next = d->next;
    if (!belongs(t, c, space)) continue;
    int n_common = common(t, c, tokens, n);
    bool outgrown = n_common == d->n_tokens; /* not P: who has the same whole page gave it up */
    bool moves = d->resume && radix_is_dead(t, c) && n_common > 0;
    resume |= d->resume && (outgrown || moves);
    if (outgrown) radix_remove(t, c);
    else if (moves) radix_unresume(t, c);
  }
  return resume;
}

/* The tree takes over a page of s that has the first n tokens below parent: s's own node grows, or there is a new one. */
static int32_t take_over(struct radix *t, int32_t parent, struct radix_space space, struct kv_page pair, const int32_t *tokens, int n) {
  if (pages_is_kept(t->pool[KV_FULL], pair.full)) {
    learn(t, pair.full, space, tokens, n);
    return pair.full;
  }
  bool resume = supersede(t, parent, space, tokens, n);
  add(t, parent, space, pair, tokens, n);
  if (resume) radix_resume(t, pair.full);
  return pair.full;
}

/* s holds a page with the same tokens as node, which is the tree's: now it holds the tree's. */
static void give_up_duplicate(struct radix *t, int32_t node, struct kv_seq *s, int i) {
  struct kv_page mine = s->pairs[i];
  if (pages_is_kept(t->pool[KV_FULL], mine.full)) { /* entered when partly filled, beside a tombstone */
    bool resume = t->nodes[mine.full].resume;
    radix_remove(t, mine.full);
    if (resume) radix_resume(t, node);
  }
  kv_seq_replace(t->kv, s, i, KV_FULL, node);
  if (!mine.swa) return;
  if (t->nodes[node].swa) {
    kv_seq_replace(t->kv, s, i, KV_SLIDING, t->nodes[node].swa);
  } else {
    keep_swa(t, node, mine.swa);
    t->stats.n_tombstones--;
  }
}

void radix_insert(struct radix *t, struct radix_space space, struct kv_seq *s, const int32_t *tokens) {
  CHECK(s->pairs);
  int P = t->page_tokens;
  int32_t cursor = radix_cursor(t, s);
  for (; s->n_tokens - s->n_entered >= P; s->n_entered += P) {
    const int32_t *page = tokens + s->n_entered;
    int i = s->n_entered / P;
    int32_t node = radix_find(t, cursor, space, page);
    if (node) give_up_duplicate(t, node, s, i);
    else node = take_over(t, cursor, space, s->pairs[i], page, P);
    cursor = node;
  }
  s->own_from = MAX(s->own_from, s->n_entered);
}

/* A child of parent that knows tokens[0, n) and serves who goes on behind them. */
static int32_t covering(const struct radix *t, int32_t parent, struct radix_space space, const int32_t *tokens, int n) {
  int32_t best = 0;
  for (int32_t c = t->nodes[parent].child; c; c = t->nodes[c].next)
    if (t->nodes[c].n_tokens >= n && belongs(t, c, space) && !radix_is_dead(t, c) && common(t, c, tokens, n) == n &&
        (!best || rank(t, c) > rank(t, best)))
      best = c;
  return best;
}

void radix_mark(struct radix *t, struct radix_space space, struct kv_seq *s, const int32_t *tokens) {
  radix_insert(t, space, s, tokens);
  int32_t node = radix_cursor(t, s);
  int rest = s->n_tokens - s->n_entered;
  if (rest) {
    const int32_t *page = tokens + s->n_entered;
    int32_t there = covering(t, node, space, page, rest);
    node = there ? there : take_over(t, node, space, s->pairs[s->n_entered / t->page_tokens], page, rest);
  }
  if (node) radix_resume(t, node);
}
