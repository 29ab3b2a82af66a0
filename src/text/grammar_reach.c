/* grammar_reach.c — what the network's states can still come to.
 *
 * need of a state: the least number of frames that must fit on the stack so that its part can be finished from there (a call costs its return address
 * and, when counted, the counter). States that no way leads on from keep NET_NEVER and are never entered, so whatever is entered can be finished.
 * Both the empty and the shallow are found backwards, from the parts' ends: each edge is looked at a few times.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

struct edges { /* of state i: to[at[i]] .. to[at[i + 1]] */
  int32_t *at, *to;
};

struct reach {
  struct grammar_net *net;
  const struct grammar_vocab *v;
  struct edges before;  /* states that lead to a state, calls through their return */
  struct edges callers; /* call states of a part */
  bool *empty;          /* [states] the end may be reached with nothing */
  uint16_t *need[2];    /* [states] of reaching the end; [1]: with something */
  int32_t *queue;
  int n_queue;
};

static bool is_call(const struct net_state *s) { return s->kind == NET_CALL || s->kind == NET_LOOP; }
static int32_t callee_of(const struct grammar_net *net, const struct net_state *s) {
  return s->kind == NET_CALL ? s->arg : net->loops[s->arg].part;
}

/* Two passes over all edges: count, then place. */
static void edges_make(struct reach *w) {
  const struct grammar_net *net = w->net;
  size_t n = (size_t)net->n_states, n_parts = (size_t)net->n_parts;
  w->before.at = xcalloc(n + 2, sizeof(int32_t));
  w->callers.at = xcalloc(n_parts + 2, sizeof(int32_t));
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; i < net->n_states; i++) {
      const struct net_state *s = &net->states[i];
      int n_to = s->kind == NET_SPLIT ? s->arg : s->kind == NET_ACCEPT ? 0 : 1;
      for (int k = 0; k < n_to; k++) {
        int32_t to = s->kind == NET_SPLIT ? net->outs[s->to + k] : s->to;
        if (pass) w->before.to[w->before.at[to + 1]++] = i;
        else w->before.at[to + 2]++;
      }
      if (!is_call(s)) continue;
      if (pass) w->callers.to[w->callers.at[callee_of(net, s) + 1]++] = i;
      else w->callers.at[callee_of(net, s) + 2]++;
    }
    if (pass) return;
    for (size_t i = 2; i < n + 2; i++) w->before.at[i] += w->before.at[i - 1];
    for (size_t i = 2; i < n_parts + 2; i++) w->callers.at[i] += w->callers.at[i - 1];
    w->before.to = xmalloc(((size_t)w->before.at[n + 1] + 1) * sizeof(int32_t));
    w->callers.to = xmalloc(((size_t)w->callers.at[n_parts + 1] + 1) * sizeof(int32_t));
  }
}

/* --- what may be empty ------------------------------------------------------------------------------------------------------------------- */

static bool call_skips(const struct grammar_net *net, const struct net_state *s) {
  return (s->kind == NET_LOOP && net->loops[s->arg].min == 0) || net->parts[callee_of(net, s)].empty;
}

static void empty_push(struct reach *w, int32_t state) {
  if (w->empty[state]) return;
  w->empty[state] = true;
  w->queue[w->n_queue++] = state;
}

static void find_empty(struct reach *w) {
  struct grammar_net *net = w->net;
  int32_t *part_of_start = xmalloc((size_t)net->n_states * sizeof *part_of_start);
  memset(part_of_start, 0xff, (size_t)net->n_states * sizeof *part_of_start);
  for (int p = 0; p < net->n_parts; p++) part_of_start[net->parts[p].start] = p;
  for (int p = 0; p < net->n_parts; p++) empty_push(w, net->parts[p].accept);
  while (w->n_queue) {
    int32_t state = w->queue[--w->n_queue], part = part_of_start[state];
    for (int32_t k = w->before.at[state]; k < w->before.at[state + 1]; k++) {
      const struct net_state *s = &net->states[w->before.to[k]];
      if (s->kind == NET_SPLIT || (is_call(s) && call_skips(net, s))) empty_push(w, w->before.to[k]);
    }
    if (part < 0) continue;
    net->parts[part].empty = true;
    for (int32_t k = w->callers.at[part]; k < w->callers.at[part + 1]; k++)
      if (w->empty[net->states[w->callers.to[k]].to]) empty_push(w, w->callers.to[k]);
  }
  for (int32_t i = 0; i < net->n_states; i++)
    if (is_call(&net->states[i])) net->states[i].skips = call_skips(net, &net->states[i]);
  /* what may be empty can be repeated as often as one likes */
  for (int i = 0; i < net->n_loops; i++)
    if (net->parts[net->loops[i].part].empty) net->loops[i].min = 0;
  free(part_of_start);
}

/* --- what can be finished ------------------------------------------------------------------------------------------------------------------ */

struct entry {
  int32_t state, next;
  int kind; /* index of need */
};
struct buckets { /* entries by need: a need is final when its bucket is reached */
  struct entry *entries;
  int n, cap;
  int32_t first[GRAMMAR_DEPTH_MAX + 1];
};

static void relax(struct reach *w, struct buckets *b, int32_t state, int kind, int need) {
  if (need > GRAMMAR_DEPTH_MAX || need >= w->need[kind][state]) return;
  w->need[kind][state] = (uint16_t)need;
  if (b->n == b->cap) b->entries = xrealloc(b->entries, (size_t)(b->cap = b->cap ? 2 * b->cap : 256) * sizeof *b->entries);
  b->entries[b->n] = (struct entry){state, b->first[need], kind};
  b->first[need] = b->n++;
}

static int call_need(const struct grammar_net *net, const struct net_state *s) {
  int need = net->parts[callee_of(net, s)].need;
  return need == NET_NEVER ? NET_NEVER : need + (s->kind == NET_LOOP ? 2 : 1);
}

static bool token_exists(const struct reach *w, const struct net_state *s) {
  if (s->kind == NET_TOKEN) return s->arg < w->v->n_tokens;
  const struct net_other *o = &w->net->others[s->arg];
  for (size_t i = 0; i < w->v->n_words; i++)
    if (o->bits[i]) return true;
  return false;
}

/* The need of (state, kind) has become final: what does it say about a state before it? */
static void relax_before(struct reach *w, struct buckets *b, int32_t before, int kind, int need) {
  const struct net_state *s = &w->net->states[before];
  if (s->kind == NET_SPLIT || (is_call(s) && s->skips)) relax(w, b, before, kind, need);
  if (s->kind == NET_SPLIT || kind == 1) return;
  if ((s->kind == NET_TOKEN || s->kind == NET_OTHER) && !token_exists(w, s)) return;
  if (is_call(s)) need = MAX(need, call_need(w->net, s));
  relax(w, b, before, 0, need);
  relax(w, b, before, 1, need);
}

static void find_needs(struct reach *w) {
  struct grammar_net *net = w->net;
  struct buckets b = {0};
  memset(b.first, 0xff, sizeof b.first);
  int32_t *part_of_start = xmalloc((size_t)net->n_states * sizeof *part_of_start);
  memset(part_of_start, 0xff, (size_t)net->n_states * sizeof *part_of_start);
  for (int p = 0; p < net->n_parts; p++) part_of_start[net->parts[p].start] = p;
  for (int p = 0; p < net->n_parts; p++) relax(w, &b, net->parts[p].accept, 0, 0);
  for (int need = 0; need <= GRAMMAR_DEPTH_MAX; need++) {
    while (b.first[need] >= 0) {
      struct entry entry = b.entries[b.first[need]];
      b.first[need] = entry.next;
      if (w->need[entry.kind][entry.state] != need) continue;
      int32_t state = entry.state, part = part_of_start[state];
      for (int32_t k = w->before.at[state]; k < w->before.at[state + 1]; k++) relax_before(w, &b, w->before.to[k], entry.kind, need);
      if (part < 0 || entry.kind == 0) continue;
      net->parts[part].need = (uint16_t)need;
      for (int32_t k = w->callers.at[part]; k < w->callers.at[part + 1]; k++) {
        int32_t caller = w->callers.to[k];
        int after = w->need[0][net->states[caller].to];
        if (after == NET_NEVER || after > need) continue; /* its turn comes */
        int whole = MAX(after, call_need(net, &net->states[caller]));
        relax(w, &b, caller, 0, whole);
        relax(w, &b, caller, 1, whole);
      }
    }
  }
  for (int32_t i = 0; i < net->n_states; i++) net->states[i].need = w->need[0][i];
  free(b.entries);
  free(part_of_start);
}

/* --- left recursion ------------------------------------------------------------------------------------------------------------------------ */

/* Parts that a part calls before anything is matched, appended to out. mark[state] == p + 1: seen for part p. */
static void first_calls(const struct reach *w, int p, int32_t *mark, struct edges *out, int *n_out, int *cap_out) {
  const struct grammar_net *net = w->net;
  int n = 0;
  int32_t *stack = w->queue;
  stack[n++] = net->parts[p].start;
  mark[net->parts[p].start] = p + 1;
  while (n) {
    const struct net_state *s = &net->states[stack[--n]];
    if (is_call(s)) {
      if (*n_out == *cap_out) out->to = xrealloc(out->to, (size_t)(*cap_out = *cap_out ? 2 * *cap_out : 64) * sizeof *out->to);
      out->to[(*n_out)++] = callee_of(net, s);
    }
    int n_to = s->kind == NET_SPLIT ? s->arg : is_call(s) && s->skips ? 1 : 0;
    for (int k = 0; k < n_to; k++) {
      int32_t to = s->kind == NET_SPLIT ? net->outs[s->to + k] : s->to;
      if (mark[to] == p + 1) continue;
      mark[to] = p + 1;
      stack[n++] = to;
    }
  }
}

static int left_recursion(const struct reach *w, const struct grammar_rules *r, const int32_t *path, int depth, int from, struct err *e) {
  char name[100] = "?";
  for (int i = depth - 1; i >= 0; i--) {
    const struct rules_node *n = &r->nodes[w->net->parts[path[i]].node];
    if (n->kind == RULES_RULE) str_escape(str_of(r->bytes + n->at, n->n), name, sizeof name);
    if (path[i] == from) break;
  }
  return err_set(e, ERR_BAD_INPUT, "rule \"%s\" is left-recursive: it begins with itself; write it as a repetition", name);
}

static int check_left_recursion(struct reach *w, const struct grammar_rules *r, struct err *e) {
  const struct grammar_net *net = w->net;
  int n = net->n_parts, n_to = 0, cap_to = 0, result = 0;
  struct edges first = {.at = xcalloc((size_t)n + 1, sizeof(int32_t))};
  int32_t *mark = xcalloc((size_t)net->n_states, sizeof *mark);
  for (int p = 0; p < n; p++) {
    first_calls(w, p, mark, &first, &n_to, &cap_to);
    first.at[p + 1] = n_to;
  }
  unsigned char *seen = xcalloc((size_t)n, 1); /* 1 = on the path, 2 = done */
  int32_t *path = xmalloc((size_t)n * sizeof *path), *next = xmalloc((size_t)n * sizeof *next);
  for (int p = 0; p < n && !result; p++) {
    int depth = 0;
    if (seen[p]) continue;
    path[depth++] = p;
    seen[p] = 1;
    next[p] = first.at[p];
    while (depth && !result) {
      int32_t at = path[depth - 1];
      if (next[at] == first.at[at + 1]) {
        seen[at] = 2;
        depth--;
        continue;
      }
      int32_t to = first.to[next[at]++];
      if (seen[to] == 1) result = left_recursion(w, r, path, depth, to, e);
      if (seen[to]) continue;
      seen[to] = 1;
      next[to] = first.at[to];
      path[depth++] = to;
    }
  }
  free(first.at);
  free(first.to);
  free(mark);
  free(seen);
  free(path);
  free(next);
  return result;
}

/* --- bytes ---------------------------------------------------------------------------------------------------------------------------------- */

static int find_classes(struct grammar_net *net, const struct grammar_vocab *v, struct err *e) {
  bool border[257] = {true}, range_seen[256][256];
  int used[257] = {0}; /* ranges that begin here less those that ended before */
  memset(range_seen, 0, sizeof range_seen);
  for (int32_t i = 0; i < net->n_states; i++) {
    const struct net_state *s = &net->states[i];
    if (s->kind != NET_BYTE || s->need == NET_NEVER || range_seen[s->lo][s->hi]) continue;
    range_seen[s->lo][s->hi] = true;
    border[s->lo] = border[s->hi + 1] = true;
    used[s->lo]++;
    used[s->hi + 1]--;
  }
  for (int c = 0, n_used = 0; c < 256; c++) {
    if (border[c]) net->first_of[net->n_classes++] = (unsigned char)c;
    net->class_of[c] = (unsigned char)(net->n_classes - 1);
    n_used += used[c];
    if (n_used && !v->has_byte[c])
      return err_set(e, ERR_UNSUPPORTED, "grammars: the vocabulary has no piece for byte 0x%02X alone", (unsigned)c);
  }
  return 0;
}

int grammar_reach(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, struct err *e) {
  size_t n = (size_t)net->n_states;
  struct reach w = {.net = net, .v = v};
  w.empty = xcalloc(n, sizeof *w.empty);
  w.need[0] = xmalloc(n * sizeof *w.need[0]);
  w.need[1] = xmalloc(n * sizeof *w.need[1]);
  memset(w.need[0], 0xff, n * sizeof *w.need[0]);
  memset(w.need[1], 0xff, n * sizeof *w.need[1]);
  w.queue = xmalloc(n * sizeof *w.queue);
  edges_make(&w);
  find_empty(&w);
  find_needs(&w);
  int result = check_left_recursion(&w, r, e);
  const struct net_part *root = &net->parts[0];
  if (!result && root->need == NET_NEVER && !root->empty)
    result = err_set(e, ERR_BAD_INPUT, "nothing matches the grammar within %d nested rules", GRAMMAR_DEPTH_MAX);
  if (!result) result = find_classes(net, v, e);
  free(w.before.at);
  free(w.before.to);
  free(w.callers.at);
  free(w.callers.to);
  free(w.empty);
  free(w.need[0]);
  free(w.need[1]);
  free(w.queue);
  return result;
}
