/* radix_world.h — the prefix tree with a shadow of the memory that it hands out, and the verbs of a scheduler. For t_radix.c and t_radix_cases.c.
 *
 * The shadow: every slot of every page of either kind holds the hash of the whole prefix (namespace and tokens up to that position) whose key and
 * value would be there. Copies are carried out in order. Whatever a sequence can see must be the hash of its own prefix, when it adopts and
 * whenever it computes; and so must be everything that the tree believes to have. A page that is given away too early, shared in the wrong place,
 * written while somebody reads it or matched in the wrong namespace shows as a hash that is not where it should be.
 */
#ifndef CYGNET_RADIX_WORLD_H
#define CYGNET_RADIX_WORLD_H

#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "kv/radix_impl.h"

enum { SEQS = 5, TOKENS = 72, PAGES = 90, PAGE_MAX = 16, STRINGS = 4096 };

struct world_seq {
  struct kv_seq kv;
  struct radix_space space;
  int32_t tokens[TOKENS];
  uint64_t hash[TOKENS]; /* of the prefix that ends with this token */
  int n_total;           /* tokens that it is to have */
  bool late;             /* something committed is not entered yet: the window should stay */
  bool careless;         /* and does not */
};

struct string { /* what was entered */
  struct radix_space space;
  int n;
  int32_t tokens[TOKENS];
};

struct world {
  struct kv *kv;
  struct radix *t;
  struct kv_config c;
  struct world_seq seq[SEQS];
  uint64_t content[KV_KINDS][(PAGES + 1) * PAGE_MAX];
  struct string *strings; /* since the last flush */
  int n_strings;
  bool forgot; /* more strings than we can remember, or something was not entered in time */
  int n_adopted, n_copied, n_fallen_back, n_short, n_lost_window, n_evictions, n_evict_failed, n_truncated, n_flushed, n_parted;
  int n_tombstones, n_given_up;
};

static const int sizes[] = {1, 2, 4, 16}, windows[] = {0, 1, 2, 3, 5, 8, 16, 33};
static const struct radix_space spaces[] = {{0, 0}, {1, 0}, {0, 1}};

static inline uint64_t hash_next(uint64_t h, uint64_t v) {
  h = (h + v + 1) * 0xd6e8feb86659fd93u;
  return (h ^ h >> 29) | 1;
}

static inline void hash_from(struct world_seq *s, int from) {
  for (int i = from; i < TOKENS; i++)
    s->hash[i] = hash_next(i ? s->hash[i - 1] : hash_next(hash_next(7, s->space.a), s->space.b), (uint64_t)s->tokens[i]);
}

/* The window rule in the words of the definition. */
static inline bool visible(const struct world *w, int key, int q) {
  return key <= q && (w->c.window_tokens == 0 || q - key < w->c.window_tokens);
}
static inline int common_prefix(const int32_t *a, int n_a, const int32_t *b, int n_b) {
  int n = 0;
  while (n < n_a && n < n_b && a[n] == b[n]) n++;
  return n;
}

/* ---- checks --------------------------------------------------------------------------------------------------------------- */

static inline void check_world(struct world *w) {
  struct kv_seq *open[SEQS];
  const int32_t *tokens[SEQS];
  int n_open = 0;
  for (int i = 0; i < SEQS; i++)
    if (w->seq[i].kv.pairs) tokens[n_open] = w->seq[i].tokens, open[n_open++] = &w->seq[i].kv;
  struct err e = {0};
  if (!radix_check(w->t, open, tokens, n_open, &e)) fail_msg("%s", e.msg);
  struct radix_stats st = radix_stats(w->t);
  w->n_tombstones = MAX(w->n_tombstones, st.n_tombstones);
}

/* Everything the tree believes to have is there. */
static inline void check_contents(const struct world *w) {
  int P = w->c.page_tokens;
  static uint64_t last[PAGES + 1]; /* hash of a node's last token */
  for (int depth = 0, n_found = 1; n_found; depth++) {
    n_found = 0;
    for (int32_t node = 1; node <= w->c.n_pages[KV_FULL]; node++) {
      const struct radix_node *d = &w->t->nodes[node];
      if (!d->n_tokens || d->index != depth) continue;
      n_found++;
      uint64_t h = depth ? last[d->parent] : hash_next(hash_next(7, w->t->spaces[node].a), w->t->spaces[node].b);
      for (int i = 0; i < d->n_tokens; i++) {
        h = hash_next(h, (uint64_t)radix_page(w->t, node)[i]);
        if (w->content[KV_FULL][node * P + i] != h) fail_msg("node %d token %d: the full page has something else", node, i);
        /* with a window of one token a page may begin with what nobody will read */
        if (d->swa && w->c.window_tokens > 1 && w->content[KV_SLIDING][d->swa * P + i] != h)
          fail_msg("node %d token %d: the sliding page has something else", node, i);
      }
      last[node] = h;
    }
  }
}

/* What a query at q sees of the tokens before `end` is the sequence's own prefix. */
static inline void check_visible(const struct world *w, const struct world_seq *s, int q, int end) {
  for (int k = 0; k < KV_KINDS; k++)
    for (int key = 0; key < end && w->c.n_pages[k]; key++) {
      if (k == KV_SLIDING && !visible(w, key, q)) continue;
      int64_t slot = kv_slot(w->kv, &s->kv, k, key);
      assert_true(slot > 0);
      if (w->content[k][slot] != s->hash[key]) fail_msg("query %d sees something else at %d (kind %d)", q, key, k);
    }
}

/* radix_match once more: all nodes, no hash table, the definition of usable. */
static inline void check_match(struct world *w, const struct world_seq *s, int limit, struct radix_match m) {
  const struct radix *t = w->t;
  int P = w->c.page_tokens, n_pages = w->c.n_pages[KV_FULL], n_known = 0, n_usable = 0;
  bool parts = false;
  for (int pass = 0; pass < 2; pass++) /* what is known; then whether the tree goes on there, and what of it is usable */
    for (int32_t node = 1; node <= n_pages; node++) {
      if (!t->nodes[node].n_tokens) continue;
      int32_t path[TOKENS], string[TOKENS], at = node;
      int n = t->nodes[node].index * P + t->nodes[node].n_tokens;
      if (t->nodes[node].index * P >= TOKENS) continue;
      for (; t->nodes[at].parent; at = t->nodes[at].parent) path[t->nodes[at].index] = at;
      path[0] = at;
      if (!radix_space_equal(t->spaces[at], s->space)) continue;
      for (int i = 0; i < n; i++) string[i] = radix_page(t, path[i / P])[i % P];
      int n_common = common_prefix(string, n, s->tokens, limit);
      if (pass == 0) {
        n_known = MAX(n_known, n_common);
        continue;
      }
      parts |= n_common == n_known && n > n_common && n_common < limit && n_common > 0;
      if (n_common < n_known / P * P) continue; /* beside the path */
      for (int end = n_common; end > n_usable; end--) {
        bool all = true;
        for (int key = 0; key < end && w->c.window_tokens; key++) all &= !visible(w, key, end) || t->nodes[path[key / P]].swa;
        if (all) n_usable = end;
      }
    }
  assert_int_equal(m.n_known, n_known);
  assert_int_equal(m.n_usable, n_usable);
  assert_int_equal(m.parts, parts);
  int n_remembered = 0;
  for (int i = 0; i < w->n_strings; i++)
    if (radix_space_equal(w->strings[i].space, s->space))
      n_remembered = MAX(n_remembered, common_prefix(w->strings[i].tokens, w->strings[i].n, s->tokens, limit));
  if (w->n_strings < STRINGS) assert_true(m.n_known <= n_remembered);
  if (w->forgot) return;
  struct radix_stats st = radix_stats(t);
  if (st.n_evicted[KV_FULL] + st.n_evicted[KV_SLIDING] == 0) { /* nothing that was entered is lost, and no length is special */
    assert_int_equal(m.n_known, n_remembered);
    assert_int_equal(m.n_usable, n_remembered);
  }
}

/* ---- verbs: what the scheduler does with a sequence -------------------------------------------------------------------------- */

static inline void world_new(struct world *w, struct kv_config c) {
  struct string *strings = w->strings ? w->strings : xcalloc(STRINGS, sizeof *strings);
  *w = (struct world){.c = c, .strings = strings};
  struct err e = {0};
  w->kv = kv_new(&c, &e);
  if (!w->kv) fail_msg("%s", e.msg);
  w->t = radix_new(w->kv, &e);
  if (!w->t) fail_msg("%s", e.msg);
}

static inline void world_delete(struct world *w) {
  for (int i = 0; i < SEQS; i++) kv_seq_close(w->kv, &w->seq[i].kv);
  radix_delete(w->t);
  assert_int_equal(kv_pool(w->kv, KV_FULL)->n_free, w->c.n_pages[KV_FULL]); /* everything came back */
  assert_int_equal(kv_pool(w->kv, KV_SLIDING)->n_free, w->c.n_pages[KV_SLIDING]);
  kv_delete(w->kv);
}

static inline void copy_pages(struct world *w, const struct kv_copy *copies, int n) {
  size_t P = (size_t)w->c.page_tokens;
  for (int i = 0; i < n; i++) {
    assert_true(copies[i].from > 0 && copies[i].to > 0 && copies[i].from != copies[i].to);
    memcpy(&w->content[copies[i].kind][(size_t)copies[i].to * P], &w->content[copies[i].kind][(size_t)copies[i].from * P],
           P * sizeof w->content[0][0]);
  }
}

/* s->space, tokens and n_total are set; goes on from what the tree has of the first `limit` tokens. Returns how many it took over. */
static inline int adopt(struct world *w, struct world_seq *s, int limit) {
  assert_true(kv_seq_open(w->kv, &s->kv));
  s->late = false;
  hash_from(s, 0);
  struct radix_match m = radix_match(w->t, s->space, s->tokens, limit);
  check_match(w, s, limit, m);
  struct kv_copy copies[KV_KINDS];
  int n_copies = radix_adopt(w->t, &m, &s->kv, copies);
  copy_pages(w, copies, n_copies);
  int P = w->c.page_tokens, n = s->kv.n_tokens;
  assert_true(n == m.n_usable || (n <= m.n_usable / P * P && n % P == 0 && !n_copies));
  if (n_copies == 0) assert_int_equal(n % P, 0);
  w->n_adopted += n > 0;
  w->n_copied += n_copies > 0;
  w->n_fallen_back += n < m.n_usable;
  w->n_lost_window += m.n_usable < m.n_known;
  w->n_parted += m.parts;
  check_visible(w, s, n, n);
  return n;
}

static inline void remember(struct world *w, const struct world_seq *s, int n) {
  if (w->n_strings == STRINGS) w->forgot = true;
  if (w->n_strings == STRINGS || n == 0) return;
  struct string *to = &w->strings[w->n_strings++];
  *to = (struct string){.space = s->space, .n = n};
  memcpy(to->tokens, s->tokens, sizeof to->tokens);
}

static inline void insert(struct world *w, struct world_seq *s) {
  radix_insert(w->t, s->space, &s->kv, s->tokens);
  s->late = false;
  assert_int_equal(s->kv.n_entered, s->kv.n_tokens / w->c.page_tokens * w->c.page_tokens);
  remember(w, s, s->kv.n_entered);
}

static inline void mark(struct world *w, struct world_seq *s) {
  radix_mark(w->t, s->space, &s->kv, s->tokens);
  s->late = false;
  remember(w, s, s->kv.n_tokens);
}

static inline bool reserve(struct world *w, struct world_seq *s, int n) {
  if (!s->late || s->careless) kv_drop_window(w->kv, &s->kv, s->kv.n_tokens);
  w->forgot |= s->late && s->careless;
  struct kv_short lack = kv_reserve(w->kv, &s->kv, n);
  if (!lack.pages[KV_FULL] && !lack.pages[KV_SLIDING]) return true;
  struct kv_stats before = kv_stats(w->kv);
  struct radix_stats tree = radix_stats(w->t);
  bool ok = radix_evict(w->t, lack);
  struct kv_stats after = kv_stats(w->kv);
  w->n_short++;
  *(ok ? &w->n_evictions : &w->n_evict_failed) += 1;
  w->n_given_up += radix_stats(w->t).n_resume_points < tree.n_resume_points;
  bool expected = true;
  for (int k = 0; k < KV_KINDS; k++) {
    int freed = (after.n_pages[k] - after.n_used[k] - after.n_idle[k]) - (before.n_pages[k] - before.n_used[k] - before.n_idle[k]);
    expected &= freed >= lack.pages[k];
    assert_int_equal(radix_stats(w->t).n_evicted[k] - tree.n_evicted[k], freed);
    assert_int_equal(after.n_used[k], before.n_used[k]);
    if (freed < lack.pages[k]) assert_int_equal(after.n_idle[k], 0);
  }
  assert_int_equal(ok, expected);
  if (!ok) return false;
  lack = kv_reserve(w->kv, &s->kv, n);
  assert_int_equal(lack.pages[KV_FULL] + lack.pages[KV_SLIDING], 0);
  return true;
}

/* The first n of the reserved rows: all are written, then each reads what it sees. */
static inline void compute(struct world *w, struct world_seq *s, int n) {
  int from = s->kv.n_tokens;
  for (int pos = from; pos < from + n; pos++)
    for (int k = 0; k < KV_KINDS; k++)
      if (w->c.n_pages[k]) w->content[k][kv_slot(w->kv, &s->kv, k, pos)] = s->hash[pos];
  for (int pos = from; pos < from + n; pos++) check_visible(w, s, pos, pos + 1);
}

static inline void commit(struct world *w, struct world_seq *s, int n) {
  compute(w, s, n);
  kv_commit(w->kv, &s->kv, n);
  s->late |= n > 0;
}

/* A whole request: adopts, computes in chunks up to n_total, marks the end of its prompt and of its answer, is closed. Returns what it reused. */
static inline int run(struct world *w, struct world_seq *s, int n_prompt, int chunk, bool close) {
  int n_cached = adopt(w, s, n_prompt - 1);
  while (s->kv.n_tokens < s->n_total) {
    int before = s->kv.n_tokens, end = before < n_prompt ? n_prompt : s->n_total;
    int n = MIN(before < n_prompt ? chunk : 1, end - before);
    assert_true(reserve(w, s, n));
    commit(w, s, n);
    if (s->kv.n_tokens == n_prompt) mark(w, s);
    else insert(w, s);
    check_world(w);
  }
  mark(w, s);
  check_world(w);
  if (close) kv_seq_close(w->kv, &s->kv);
  check_contents(w);
  check_world(w);
  return n_cached;
}

static struct world w; /* large */

static inline void set_tokens(struct world_seq *s, int n_total, uint64_t seed) {
  s->n_total = n_total;
  s->space = spaces[0];
  for (int i = 0; i < TOKENS; i++) s->tokens[i] = (int32_t)(test_rand(&seed) >> 40);
}

/* Everything idle can be evicted, and then nothing is left. */
static inline void empty(struct world *world) {
  struct kv_stats st = kv_stats(world->kv);
  assert_int_equal(st.n_used[KV_FULL] + st.n_used[KV_SLIDING], 0);
  assert_true(radix_evict(world->t, (struct kv_short){{st.n_idle[KV_FULL], st.n_idle[KV_SLIDING]}}));
  struct radix_stats rs = radix_stats(world->t);
  assert_int_equal(rs.n_nodes + rs.n_tombstones + rs.n_resume_points, 0);
  for (int k = 0; k < KV_KINDS; k++) assert_int_equal(kv_pool(world->kv, k)->n_free, world->c.n_pages[k]);
  check_world(world);
}

static inline void world_of(int P, int W, int n_full, int n_sliding) {
  world_new(&w, (struct kv_config){P, {n_full, W ? n_sliding : 0}, W, SEQS, TOKENS});
}

static inline struct radix_match match(const struct world_seq *s, int limit) { return radix_match(w.t, s->space, s->tokens, limit); }

/* Sliding pages that no resume point protects go, all that are idle. */
static inline void evict_loose(void) {
  int n = kv_pool(w.kv, KV_SLIDING)->n_idle[PAGES_LOOSE];
  int n_resume = radix_stats(w.t).n_resume_points;
  assert_true(radix_evict(w.t, (struct kv_short){{0, n}}));
  assert_int_equal(kv_pool(w.kv, KV_SLIDING)->n_idle[PAGES_LOOSE], 0);
  assert_int_equal(radix_stats(w.t).n_resume_points, n_resume);
  check_world(&w);
}

static inline void forget(void) { w.forgot = true; } /* what was evicted is not expected any more */

#endif
