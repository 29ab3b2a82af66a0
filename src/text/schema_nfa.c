/* schema_nfa.c — regular expressions, which regex.c reads into rules, as automata of schema_lang.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"
#include "text/schema_lang.h"

enum { NFA_STATES_MAX = 1 << 17, NFA_WORK_MAX = 30 << 20, NFA_NEST_MAX = 2000 };

/* ways: to[0] and to[1] without a character (-1: none), or to[0] by a character of `ranges`. */
struct nfa_state {
  int ranges; /* -1, or the first of n_ranges pairs in nfa.ranges */
  int n_ranges;
  int to[2];
};

struct nfa {
  struct nfa_state *states;
  struct rules_range *ranges;
  int n, cap, n_ranges, cap_ranges;
  bool failed; /* too large, or not regular */
  int64_t work;
};

static int nfa_state(struct nfa *a, int to0, int to1) {
  if (a->n >= NFA_STATES_MAX) {
    a->failed = true;
    return 0;
  }
  if (a->n == a->cap) {
    a->cap = a->cap ? 2 * a->cap : 64;
    a->states = xrealloc(a->states, (size_t)a->cap * sizeof *a->states);
  }
  a->states[a->n] = (struct nfa_state){-1, 0, {to0, to1}};
  return a->n++;
}

static void nfa_range(struct nfa *a, uint32_t lo, uint32_t hi) {
  if (hi == 0) return;
  if (a->n_ranges == a->cap_ranges) {
    a->cap_ranges = a->cap_ranges ? 2 * a->cap_ranges : 64;
    a->ranges = xrealloc(a->ranges, (size_t)a->cap_ranges * sizeof *a->ranges);
  }
  a->ranges[a->n_ranges++] = (struct rules_range){MAX(lo, 1u), hi};
}

static int nfa_char(struct nfa *a, int first_range, int next) {
  int s = nfa_state(a, next, -1);
  a->states[s].ranges = first_range;
  a->states[s].n_ranges = a->n_ranges - first_range;
  return s;
}

static int nfa_text(struct nfa *a, const char *p, size_t n, int next) {
  uint32_t cp;
  while (n) {
    size_t at = n - 1;
    while (at && ((unsigned char)p[at] & 0xc0) == 0x80) at--;
    utf8_step(p + at, n - at, &cp, NULL);
    int first = a->n_ranges;
    nfa_range(a, cp, cp);
    next = nfa_char(a, first, next);
    n = at;
  }
  return next;
}

static int nfa_node(struct nfa *a, const struct grammar_rules *g, int node, int next, int nest);

static int nfa_repeat(struct nfa *a, const struct grammar_rules *g, const struct rules_node *x, int next, int nest) {
  int s = next;
  if (x->c < 0) {
    s = nfa_state(a, -1, next);
    int body = nfa_node(a, g, x->a, s, nest);
    if (!a->failed) a->states[s].to[0] = body;
  }
  for (int i = x->b; i < x->c && !a->failed; i++) s = nfa_state(a, nfa_node(a, g, x->a, s, nest), next);
  for (int i = 0; i < x->b && !a->failed; i++) s = nfa_node(a, g, x->a, s, nest);
  return s;
}

/* The state from which `node` and then `next` is read. */
static int nfa_node(struct nfa *a, const struct grammar_rules *g, int node, int next, int nest) {
  const struct rules_node *x = &g->nodes[node];
  if (nest > NFA_NEST_MAX) a->failed = true;
  if (a->failed) return 0;
  switch (x->kind) {
  case RULES_EMPTY: return next;
  case RULES_NEVER: return nfa_state(a, -1, -1);
  case RULES_TEXT: return nfa_text(a, g->bytes + x->at, x->n, next);
  case RULES_CLASS: {
    int first = a->n_ranges;
    for (uint32_t i = 0; i < x->n; i += 2) nfa_range(a, (uint32_t)g->ints[x->at + i], (uint32_t)g->ints[x->at + i + 1]);
    return nfa_char(a, first, next);
  }
  case RULES_SEQ:
    for (uint32_t i = x->n; i-- > 0;) next = nfa_node(a, g, g->ints[x->at + i], next, nest + 1);
    return next;
  case RULES_ALT: {
    int s = -1;
    for (uint32_t i = 0; i < x->n; i++) s = nfa_state(a, nfa_node(a, g, g->ints[x->at + i], next, nest + 1), s);
    return s;
  }
  case RULES_REPEAT: return nfa_repeat(a, g, x, next, nest + 1);
  case RULES_RULE:
    if (x->a >= 0) return nfa_node(a, g, x->a, next, nest + 1);
    break;
  case RULES_TOKEN:
  case RULES_OTHER: break;
  }
  a->failed = true;
  return 0;
}

/* ---- subsets ---------------------------------------------------------------------------------------------------------------------- */

struct subsets {
  struct nfa *a;
  int *members; /* of all subsets, one after the other; sorted within each */
  int *first;   /* [n + 1] */
  int n, n_members, cap, cap_members;
  int *slots, n_slots;
  int *mark, stamp; /* per state of the NFA: the last closure it was met in */
  int *stack, *found, n_found;
};

static int by_int(const void *x, const void *y) { return *(const int *)x - *(const int *)y; }

/* Everything that is reached from `from` without a character, added to found. */
static void close_over(struct subsets *t, int from) {
  int n = 0;
  if (from < 0 || t->mark[from] == t->stamp) return;
  t->mark[t->stack[n++] = from] = t->stamp;
  while (n) {
    const struct nfa_state *s = &t->a->states[t->stack[--n]];
    t->a->work++;
    int id = (int)(s - t->a->states);
    if (s->ranges >= 0 || id == 0) t->found[t->n_found++] = id; /* 0 is the end */
    for (int k = 0; k < 2 && s->ranges < 0; k++)
      if (s->to[k] >= 0 && t->mark[s->to[k]] != t->stamp) t->mark[t->stack[n++] = s->to[k]] = t->stamp;
  }
}

/* The number of the subset in found. */
static int subset_number(struct subsets *t) {
  qsort(t->found, (size_t)t->n_found, sizeof *t->found, by_int);
  size_t bytes = (size_t)t->n_found * sizeof *t->found;
  if (2 * (t->n + 1) > t->n_slots) {
    t->n_slots = t->n_slots ? 2 * t->n_slots : 256;
    t->slots = xrealloc(t->slots, (size_t)t->n_slots * sizeof *t->slots);
    memset(t->slots, 0xff, (size_t)t->n_slots * sizeof *t->slots);
    for (int i = 0; i < t->n; i++) {
      uint64_t h = hash_bytes(t->members + t->first[i], (size_t)(t->first[i + 1] - t->first[i]) * sizeof(int), 0);
      int at = (int)((h ^ h >> 32) & (uint64_t)(t->n_slots - 1));
      while (t->slots[at] >= 0) at = (at + 1) & (t->n_slots - 1);
      t->slots[at] = i;
    }
  }
  uint64_t h = hash_bytes(t->found, bytes, 0);
  int at = (int)((h ^ h >> 32) & (uint64_t)(t->n_slots - 1));
  for (; t->slots[at] >= 0; at = (at + 1) & (t->n_slots - 1)) {
    int i = t->slots[at];
    if (t->first[i + 1] - t->first[i] == t->n_found && (!bytes || !memcmp(t->members + t->first[i], t->found, bytes))) return i;
  }
  if (t->n_members + t->n_found > t->cap_members) {
    t->cap_members = 2 * (t->n_members + t->n_found);
    t->members = xrealloc(t->members, (size_t)t->cap_members * sizeof *t->members);
  }
  if (t->n + 2 > t->cap) {
    t->cap = t->cap ? 2 * t->cap : 64;
    t->first = xrealloc(t->first, (size_t)t->cap * sizeof *t->first);
  }
  if (bytes) memcpy(t->members + t->n_members, t->found, bytes);
  t->n_members += t->n_found;
  t->first[t->n] = t->n_members - t->n_found;
  t->first[t->n + 1] = t->n_members;
  t->a->work += t->n_found;
  return t->slots[at] = t->n++;
}

struct border {
  uint32_t at;
  int to, delta; /* the state `to` comes in or goes out here */
};
static int by_border(const void *a, const void *b) {
  const struct border *x = a, *y = b;
  return x->at < y->at ? -1 : x->at > y->at;
}

/* Edges of subset i: between any two borders of its ranges the same states are reached. */
static void subset_edges(struct subsets *t, struct lang *out, int i) {
  struct nfa *a = t->a;
  int n = 0, cap = 0, n_live = 0, n_members = t->first[i + 1] - t->first[i];
  for (int k = 0; k < n_members; k++) cap += MAX(a->states[t->members[t->first[i] + k]].n_ranges, 0);
  struct border *borders = xcalloc(2 * (size_t)cap + 1, sizeof *borders);
  int *live = xcalloc((size_t)cap + 1, sizeof *live);
  for (int k = 0; k < n_members; k++) {
    const struct nfa_state *s = &a->states[t->members[t->first[i] + k]];
    for (int r = 0; r < s->n_ranges; r++) {
      borders[n++] = (struct border){a->ranges[s->ranges + r].lo, s->to[0], 1};
      borders[n++] = (struct border){a->ranges[s->ranges + r].hi + 1, s->to[0], -1};
    }
  }
  qsort(borders, (size_t)n, sizeof *borders, by_border);
  for (int k = 0; k < n && a->work < NFA_WORK_MAX;) {
    uint32_t at = borders[k].at;
    for (; k < n && borders[k].at == at; k++) {
      if (borders[k].delta > 0) {
        live[n_live++] = borders[k].to;
        continue;
      }
      int x = 0;
      while (x < n_live && live[x] != borders[k].to) x++;
      if (x < n_live) live[x] = live[--n_live];
    }
    if (!n_live || k == n) continue;
    t->stamp++;
    t->n_found = 0;
    for (int x = 0; x < n_live; x++) close_over(t, live[x]);
    a->work += n_live;
    if (t->n_found) lang_edge(out, at, borders[k].at - 1, subset_number(t));
  }
  free(borders);
  free(live);
}

/* a: state 0 is the end; start: where it begins. */
static struct lang *determinize(struct nfa *a, int start) {
  struct subsets t = {.a = a};
  t.mark = xcalloc((size_t)a->n, sizeof *t.mark);
  t.stack = xcalloc((size_t)a->n, sizeof *t.stack);
  t.found = xcalloc((size_t)a->n, sizeof *t.found);
  struct lang *out = lang_new();
  t.stamp = 1;
  close_over(&t, start);
  subset_number(&t);
  for (int i = 0; i < t.n && t.n <= LANG_STATES_MAX && a->work < NFA_WORK_MAX; i++) {
    lang_state(out, t.first[i + 1] > t.first[i] && t.members[t.first[i]] == 0);
    subset_edges(&t, out, i);
  }
  bool good = out->n_states == t.n && a->work < NFA_WORK_MAX;
  free(t.mark);
  free(t.stack);
  free(t.found);
  free(t.members);
  free(t.first);
  free(t.slots);
  if (good) return lang_finish(out);
  lang_delete(out);
  return NULL;
}

struct lang *lang_pattern(struct str pattern, bool whole, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  struct nfa a = {0};
  struct lang *l = NULL;
  int node;
  if ((whole ? regex_parse(g, pattern, &node, e) : regex_search(g, pattern, &node, e)) == 0 && rules_error(g, e) == 0) {
    int end = nfa_state(&a, -1, -1), start = nfa_node(&a, g, node, end, 0);
    if (!a.failed) l = determinize(&a, start);
    if (!l) err_set(e, ERR_TOO_LARGE, "the pattern needs more than %d states", LANG_STATES_MAX);
  }
  free(a.states);
  free(a.ranges);
  grammar_rules_delete(g);
  return l;
}
