/* radix_check.c — everything that the prefix tree keeps, worked out again the slow way. */
#include <string.h>

#include "kv/radix_impl.h"

static int bad(struct err *e, int32_t node, const char *what, int64_t found) {
  return err_set(e, ERR_INTERNAL, "prefix tree: node %d: %s (found %lld)", node, what, (long long)found);
}

static bool is_whole(const struct radix *t, int32_t node) { return t->nodes[node].n_tokens == t->page_tokens; }

/* A node by itself and beside its parent; its pages are the tree's and say so. */
static int check_node(const struct radix *t, int32_t node, struct err *e) {
  const struct radix_node *d = &t->nodes[node], *up = &t->nodes[d->parent];
  const struct pages *full = t->pool[KV_FULL], *swa = t->pool[KV_SLIDING];
  if (pages_is_kept(full, node) != (d->n_tokens > 0))
    return bad(e, node, "the tree is an owner of the pages of its nodes alone", d->n_tokens);
  if (!d->n_tokens) return d->swa || d->resume || d->child ? bad(e, node, "it is in no tree and has left something behind", d->swa) : 0;
  if (d->n_tokens > t->page_tokens) return bad(e, node, "expected no more tokens than a page holds", d->n_tokens);
  if (!is_whole(t, node) && d->child) return bad(e, node, "it is partly filled and has a child", d->child);
  if (!is_whole(t, node) && full->refs[node] > 2) return bad(e, node, "it is partly filled and several hold it", full->refs[node]);
  if (d->parent && !is_whole(t, d->parent)) return bad(e, node, "expected a whole page as its parent", d->parent);
  if (d->index != up->index + 1) return bad(e, node, "expected the index after its parent's", d->index);
  if (d->parent && !radix_is_idle(t, node) && radix_is_idle(t, d->parent)) return bad(e, node, "held, and its parent is not", d->parent);
  if (pages_class(full, node) != PAGES_LOOSE) return bad(e, node, "expected a loose full page", 1);
  if (!d->swa) return 0;
  if (d->swa < 0 || d->swa > swa->n_pages || !pages_is_kept(swa, d->swa)) return bad(e, node, "its sliding page is not the tree's", d->swa);
  if (t->node_of_swa[d->swa] != node) return bad(e, node, "its sliding page says that it belongs to another", t->node_of_swa[d->swa]);
  if (radix_is_idle(t, node) && !pages_is_idle(swa, d->swa)) return bad(e, node, "its sliding page is held alone", d->swa);
  if ((pages_class(swa, d->swa) == PAGES_WORTHY) != (d->n_windows > 0))
    return bad(e, node, "its sliding page has the wrong class", d->n_windows);
  return 0;
}

/* Lists of children and chains have every node once, and a whole node is the only one with its tokens. */
static int check_ways(const struct radix *t, struct err *e) {
  int n_pages = t->pool[KV_FULL]->n_pages, n_nodes = 0, n_whole = 0, n_chained = 0, n_listed = 0;
  memset(t->counted, 0, ((size_t)n_pages + 1) * sizeof *t->counted);
  for (int32_t node = 0; node <= n_pages; node++) {
    int32_t prev = 0;
    for (int32_t c = t->nodes[node].child; c; prev = c, c = t->nodes[c].next, n_listed++) {
      if (c < 0 || c > n_pages || t->counted[c]++) return bad(e, node, "its list of children is torn", c);
      if (t->nodes[c].n_tokens == 0 || t->nodes[c].parent != node || t->nodes[c].prev != prev)
        return bad(e, node, "no child of its own", c);
    }
    if (!node || !t->nodes[node].n_tokens) continue;
    n_nodes++;
    if (!is_whole(t, node)) continue;
    n_whole++;
    int32_t found = radix_find(t, t->nodes[node].parent, t->spaces[node], radix_page(t, node));
    if (found != node) return bad(e, node, "looking its tokens up finds another", found);
  }
  for (size_t b = 0; b < t->n_buckets; b++)
    for (int32_t node = t->buckets[b]; node; node = t->nodes[node].chain)
      if (n_chained++ > n_pages || !t->nodes[node].n_tokens || !is_whole(t, node))
        return bad(e, node, "a chain has what it should not", n_chained);
  if (n_nodes != t->stats.n_nodes || n_listed != n_nodes) return bad(e, 0, "nodes, counted and listed, do not agree", n_listed);
  if (n_chained != n_whole) return bad(e, 0, "whole nodes and chains do not agree", n_chained);
  return 0;
}

/* The list of resume points, and from it how many windows a page is in. */
static int check_resume_points(const struct radix *t, struct err *e) {
  int n = 0, n_pages = t->pool[KV_FULL]->n_pages, P = t->page_tokens;
  int32_t sooner = 0;
  memset(t->counted, 0, ((size_t)n_pages + 1) * sizeof *t->counted);
  for (int32_t node = t->resume_first; node; sooner = node, node = t->nodes[node].later, n++) {
    if (n >= n_pages || !t->nodes[node].resume || t->nodes[node].sooner != sooner)
      return bad(e, node, "the list of resume points is torn", n);
    int64_t next_q = (int64_t)t->nodes[node].index * P; /* the first that is to be served looks back furthest */
    for (int32_t at = node; at; at = t->nodes[at].parent) {
      int64_t last_key = ((int64_t)t->nodes[at].index + 1) * P - 1;
      t->counted[at] += next_q - last_key < t->window_tokens;
    }
  }
  if (t->resume_last != sooner || n != t->stats.n_resume_points) return bad(e, sooner, "resume points are miscounted", n);
  int n_tombstones = 0;
  for (int32_t node = 1; node <= n_pages; node++) {
    n -= t->nodes[node].resume;
    n_tombstones += t->nodes[node].n_tokens && radix_is_tombstone(t, node);
    if (t->nodes[node].n_tokens && t->nodes[node].n_windows != t->counted[node])
      return bad(e, node, "it is in a different number of windows", t->counted[node]);
  }
  if (n) return bad(e, 0, "a resume point is not listed", n);
  if (n_tombstones != t->stats.n_tombstones) return bad(e, 0, "tombstones are miscounted", n_tombstones);
  return 0;
}

/* Of idle pages on one path the lower one is older; every kept sliding page has its node. */
static int check_pages(const struct radix *t, struct err *e) {
  const struct pages *full = t->pool[KV_FULL], *swa = t->pool[KV_SLIDING];
  memset(t->counted, 0, ((size_t)full->n_pages + 1) * sizeof *t->counted);
  for (int32_t node = pages_oldest(full, PAGES_LOOSE); node; node = full->links[node].newer) {
    t->counted[node] = 1;
    for (int32_t c = t->nodes[node].child; c; c = t->nodes[c].next)
      if (!t->counted[c]) return bad(e, node, "it would be evicted before its child", c);
  }
  for (int32_t id = 1; id <= swa->n_pages; id++) {
    int32_t node = t->node_of_swa[id];
    if (pages_is_kept(swa, id) != (node != 0)) return bad(e, node, "a kept sliding page without a node, or the other way round", id);
    if (node && t->nodes[node].swa != id) return bad(e, node, "a sliding page says that it belongs to it", id);
  }
  return 0;
}

/* A sequence's place: its pages below n_entered are a path, its own last one at most hangs at the end, and the tokens are its own. */
static int check_seq(const struct radix *t, const struct kv_seq *s, const int32_t *tokens, struct err *e) {
  int P = t->page_tokens, n_entered = s->n_entered / P;
  int32_t parent = 0;
  for (int i = 0; i < s->n_pairs; i++) {
    int32_t node = s->pairs[i].full;
    bool kept = pages_is_kept(t->pool[KV_FULL], node);
    if (i < n_entered ? !kept || !is_whole(t, node) : kept && i > n_entered)
      return bad(e, node, "a sequence holds it at the wrong place", i);
    if (i >= n_entered && s->pairs[i].swa && pages_is_kept(t->pool[KV_SLIDING], s->pairs[i].swa) != kept)
      return bad(e, node, "a sequence's sliding page is the tree's and the full one is not, or the other way round", i);
    if (!kept) continue;
    const struct radix_node *d = &t->nodes[node];
    if (d->parent != parent || d->index != i) return bad(e, node, "a sequence's pages are no path", i);
    if (s->pairs[i].swa && s->pairs[i].swa != d->swa) return bad(e, node, "a sequence holds another sliding page for it", s->pairs[i].swa);
    if (i * P + d->n_tokens > s->n_tokens) return bad(e, node, "it knows more than the sequence has written", d->n_tokens);
    if (memcmp(radix_page(t, node), tokens + i * P, (size_t)d->n_tokens * sizeof *tokens) != 0)
      return bad(e, node, "a sequence holds it and has other tokens", i);
    parent = node;
  }
  return 0;
}

bool radix_check(const struct radix *t, struct kv_seq *const *seqs, const int32_t *const *tokens, int n_seqs, struct err *e) {
  if (!kv_check(t->kv, seqs, n_seqs, e)) return false;
  for (int32_t node = 1; node <= t->pool[KV_FULL]->n_pages; node++)
    if (check_node(t, node, e)) return false;
  if (check_ways(t, e) || check_resume_points(t, e) || check_pages(t, e)) return false;
  for (int i = 0; i < n_seqs; i++)
    if (check_seq(t, seqs[i], tokens[i], e)) return err_prefix(e, "sequence %d: ", i), false;
  return true;
}
