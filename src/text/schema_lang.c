/* schema_lang.c — automata over code points: built, combined, listed, written down as rules. */
#include "text/schema_lang.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { EDGES_MAX = 1 << 20 };

/* ---- numbering ------------------------------------------------------------------------------------------------------------------ */

static size_t map_slot(const struct lang_map *m, uint64_t key) {
  size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (m->cap - 1);
  while (m->keys[i] && m->keys[i] != key) i = (i + 1) & (m->cap - 1);
  return i;
}

int *lang_map_at(struct lang_map *m, uint64_t key) {
  CHECK(key != 0);
  if (2 * (m->n + 1) > m->cap) {
    struct lang_map old = *m;
    m->cap = old.cap ? 2 * old.cap : 64;
    m->keys = xcalloc(m->cap, sizeof *m->keys);
    m->values = xcalloc(m->cap, sizeof *m->values);
    for (size_t i = 0; i < old.cap; i++) {
      if (!old.keys[i]) continue;
      size_t at = map_slot(m, old.keys[i]);
      m->keys[at] = old.keys[i];
      m->values[at] = old.values[i];
    }
    lang_map_free(&old);
  }
  size_t at = map_slot(m, key);
  if (!m->keys[at]) {
    m->keys[at] = key;
    m->values[at] = -1;
    m->n++;
  }
  return &m->values[at];
}

void lang_map_free(struct lang_map *m) {
  free(m->keys);
  free(m->values);
  *m = (struct lang_map){0};
}

/* ---- building ------------------------------------------------------------------------------------------------------------------- */

struct lang *lang_new(void) {
  struct lang *l = xcalloc(1, sizeof *l);
  l->cap_states = 8;
  l->states = xcalloc((size_t)l->cap_states, sizeof *l->states);
  return l;
}

void lang_delete(struct lang *l) {
  if (!l) return;
  free(l->states);
  free(l->edges);
  free(l);
}

int lang_state(struct lang *l, bool accept) {
  if (l->n_states + 2 > l->cap_states) {
    l->cap_states *= 2;
    l->states = xrealloc(l->states, (size_t)l->cap_states * sizeof *l->states);
  }
  l->states[l->n_states] = (struct lang_state){l->n_edges, accept};
  l->states[l->n_states + 1] = (struct lang_state){l->n_edges, false};
  return l->n_states++;
}

void lang_edge(struct lang *l, uint32_t lo, uint32_t hi, int to) {
  if (lo < 0xd800 && hi > 0xdfff) {
    lang_edge(l, lo, 0xd7ff, to);
    lo = 0xe000;
  }
  if (lo >= 0xd800 && lo <= 0xdfff) lo = 0xe000;
  if (hi >= 0xd800 && hi <= 0xdfff) hi = 0xd7ff;
  if (lo > hi) return;
  struct lang_edge *last = l->n_edges > l->states[l->n_states - 1].first ? &l->edges[l->n_edges - 1] : NULL;
  if (last && last->to == to && last->hi + 1 == lo) {
    last->hi = hi;
    return;
  }
  if (l->n_edges == l->cap_edges) {
    l->cap_edges = l->cap_edges ? 2 * l->cap_edges : 16;
    l->edges = xrealloc(l->edges, (size_t)l->cap_edges * sizeof *l->edges);
  }
  l->edges[l->n_edges++] = (struct lang_edge){lo, hi, to};
  l->states[l->n_states].first = l->n_edges;
}

/* Which states lead to an accepting one: a sweep against the edges, over lists of predecessors. */
static bool *useful_states(const struct lang *l) {
  bool *useful = xcalloc((size_t)l->n_states, sizeof *useful);
  int *first = xcalloc((size_t)l->n_states + 2, sizeof *first), *from = xcalloc((size_t)l->n_edges + 1, sizeof *from);
  int *queue = xcalloc((size_t)l->n_states, sizeof *queue), n_queue = 0;
  for (int i = 0; i < l->n_edges; i++) first[l->edges[i].to + 2]++;
  for (int s = 0; s < l->n_states; s++) first[s + 2] += first[s + 1];
  for (int s = 0; s < l->n_states; s++) {
    for (int i = l->states[s].first; i < l->states[s + 1].first; i++) from[first[l->edges[i].to + 1]++] = s;
    if (l->states[s].accept) useful[queue[n_queue++] = s] = true;
  }
  for (int q = 0; q < n_queue; q++)
    for (int i = first[queue[q]]; i < first[queue[q] + 1]; i++)
      if (!useful[from[i]]) useful[queue[n_queue++] = from[i]] = true;
  free(first);
  free(from);
  free(queue);
  return useful;
}

struct lang *lang_finish(struct lang *l) {
  bool *useful = useful_states(l);
  int *number = xcalloc((size_t)l->n_states, sizeof *number), n = 1;
  for (int s = 1; s < l->n_states; s++) number[s] = useful[s] ? n++ : -1;
  struct lang *out = lang_new();
  for (int s = 0; s < l->n_states; s++) {
    if (s && !useful[s]) continue;
    lang_state(out, l->states[s].accept);
    for (int i = l->states[s].first; i < l->states[s + 1].first; i++)
      if (useful[l->edges[i].to]) lang_edge(out, l->edges[i].lo, l->edges[i].hi, number[l->edges[i].to]);
  }
  free(useful);
  free(number);
  lang_delete(l);
  return out;
}

static int by_text(const void *a, const void *b) {
  const struct str *x = a, *y = b;
  int order = memcmp(x->p, y->p, MIN(x->n, y->n));
  return order ? order : x->n < y->n ? -1 : x->n > y->n;
}

/* A trie. Each state is a run of the sorted texts that agree in their first `at` bytes; UTF-8 keeps the order of code points. */
struct lang *lang_texts(struct str *texts, int n) {
  struct run {
    int from, to;
    size_t at;
  } *runs = NULL;
  int n_runs = 1, cap_runs = 64;
  if (n) qsort(texts, (size_t)n, sizeof *texts, by_text);
  runs = xcalloc((size_t)cap_runs, sizeof *runs);
  runs[0] = (struct run){0, n, 0};
  struct lang *l = lang_new();
  for (int r = 0; r < n_runs; r++) {
    struct run run = runs[r];
    int i = run.from;
    while (i < run.to && texts[i].n == run.at) i++;
    lang_state(l, i > run.from);
    while (i < run.to) {
      uint32_t cp, other;
      int bytes = utf8_step(texts[i].p + run.at, texts[i].n - run.at, &cp, NULL), from = i;
      for (; i < run.to; i++)
        if (utf8_step(texts[i].p + run.at, texts[i].n - run.at, &other, NULL), other != cp) break;
      if (n_runs == EDGES_MAX) {
        free(runs);
        lang_delete(l);
        return NULL;
      }
      if (n_runs == cap_runs) {
        cap_runs *= 2;
        runs = xrealloc(runs, (size_t)cap_runs * sizeof *runs);
      }
      runs[n_runs] = (struct run){from, i, run.at + (size_t)bytes};
      lang_edge(l, cp, cp, n_runs++);
    }
  }
  free(runs);
  return l;
}

struct lang *lang_lengths(int64_t min, int64_t max) {
  int64_t last = max < 0 ? min : max;
  if (last >= LANG_STATES_MAX) return NULL;
  struct lang *l = lang_new();
  for (int64_t i = 0; i <= last; i++) {
    lang_state(l, i >= min && (max < 0 || i <= max));
    if (i < last) lang_edge(l, 1, LANG_CODE_MAX, (int)i + 1);
    else if (max < 0) lang_edge(l, 1, LANG_CODE_MAX, (int)i);
  }
  return lang_finish(l);
}

/* ---- asking --------------------------------------------------------------------------------------------------------------------- */

static int lang_step(const struct lang *l, int state, uint32_t cp) {
  int lo = l->states[state].first, hi = l->states[state + 1].first;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (l->edges[mid].hi < cp) lo = mid + 1;
    else hi = mid;
  }
  return lo < l->states[state + 1].first && l->edges[lo].lo <= cp ? l->edges[lo].to : -1;
}

bool lang_has(const struct lang *l, struct str text) {
  int state = 0;
  for (size_t i = 0; i < text.n && state >= 0;) {
    uint32_t cp;
    i += (size_t)utf8_step(text.p + i, text.n - i, &cp, NULL);
    state = lang_step(l, state, cp);
  }
  return state >= 0 && l->states[state].accept;
}

/* Breadth first for the shortest; for the longest in an order in which every state comes after those that lead to it: a circle has none. */
void lang_extent(const struct lang *l, int64_t *shortest, int64_t *longest) {
  size_t n = (size_t)l->n_states;
  int *near = xcalloc(n, sizeof *near), *far = xcalloc(n, sizeof *far), *in = xcalloc(n, sizeof *in),
      *queue = xcalloc(n + 1, sizeof *queue);
  int n_queue = 0;
  *shortest = *longest = -1;
  near[0] = 1; /* distance + 1 */
  queue[n_queue++] = 0;
  for (int q = 0; q < n_queue && *shortest < 0; q++) {
    int s = queue[q];
    if (l->states[s].accept) *shortest = near[s] - 1;
    for (int i = l->states[s].first; i < l->states[s + 1].first; i++)
      if (!near[l->edges[i].to]) near[queue[n_queue++] = l->edges[i].to] = near[s] + 1;
  }
  for (int i = 0; i < l->n_edges; i++) in[l->edges[i].to]++;
  n_queue = 0;
  for (int s = 0; s < l->n_states; s++)
    if (!in[s]) queue[n_queue++] = s;
  for (int q = 0; q < n_queue; q++) {
    int s = queue[q];
    if (l->states[s].accept) *longest = MAX(*longest, (int64_t)far[s]);
    for (int i = l->states[s].first; i < l->states[s + 1].first; i++) {
      int to = l->edges[i].to;
      far[to] = MAX(far[to], far[s] + 1);
      if (!--in[to]) queue[n_queue++] = to;
    }
  }
  if (n_queue < l->n_states) *longest = -1;
  free(near);
  free(far);
  free(in);
  free(queue);
}

/* Depth first, bounded: more than max strings, or one longer than there are states, ends it. */
struct listing {
  const struct lang *l;
  struct lang_text *out;
  int n, max;
  char *text;
  size_t len, cap;
};

static bool list_from(struct listing *t, int state, int depth) {
  const struct lang *l = t->l;
  if (depth > 1000 || depth > l->n_states) return false;
  if (l->states[state].accept) {
    if (t->n == t->max) return false;
    t->out[t->n++] = (struct lang_text){xstrndup(t->text ? t->text : "", t->len), t->len};
  }
  for (int i = l->states[state].first; i < l->states[state + 1].first; i++) {
    const struct lang_edge *edge = &l->edges[i];
    if (edge->hi - edge->lo >= (uint32_t)t->max) return false;
    for (uint32_t cp = edge->lo; cp <= edge->hi; cp++) {
      if (t->len + 4 > t->cap) t->text = xrealloc(t->text, t->cap = 2 * t->cap + 16);
      size_t before = t->len;
      t->len += (size_t)utf8_put(cp, t->text + t->len);
      bool good = list_from(t, edge->to, depth + 1);
      t->len = before;
      if (!good) return false;
    }
  }
  return true;
}

int lang_list(const struct lang *l, int max, struct lang_text *out) {
  struct listing t = {.l = l, .out = out, .max = max};
  bool good = lang_is_empty(l) || list_from(&t, 0, 0);
  free(t.text);
  if (good) return t.n;
  for (int i = 0; i < t.n; i++) free(out[i].p);
  return -1;
}

/* ---- two at once ------------------------------------------------------------------------------------------------------------------ */

struct pairs {
  struct lang_map map;
  int (*v)[2];
  int n, cap;
};

static int pair_number(struct pairs *p, int a, int b) {
  int *at = lang_map_at(&p->map, (uint64_t)(a + 1) << 32 | (uint64_t)(b + 2));
  if (*at >= 0) return *at;
  if (p->n == p->cap) {
    p->cap = p->cap ? 2 * p->cap : 64;
    p->v = xrealloc(p->v, (size_t)p->cap * sizeof *p->v);
  }
  p->v[p->n][0] = a;
  p->v[p->n][1] = b;
  return *at = p->n++;
}

/* b may be -1: nothing of it is left. */
static void pair_edges(struct lang *out, struct pairs *p, const struct lang *la, const struct lang *lb, int a, int b, bool without) {
  int i = la->states[a].first, i_end = la->states[a + 1].first;
  int j = b < 0 ? 0 : lb->states[b].first, j_end = b < 0 ? 0 : lb->states[b + 1].first;
  for (uint32_t at = 0; i < i_end;) {
    const struct lang_edge *x = &la->edges[i], *y = j < j_end ? &lb->edges[j] : NULL;
    uint32_t lo = MAX(at, x->lo), hi = x->hi;
    if (y && y->hi < lo) {
      j++;
      continue;
    }
    int to_b = -1;
    if (y && y->lo <= lo) {
      to_b = y->to;
      hi = MIN(hi, y->hi);
    } else if (y && y->lo <= hi) {
      hi = y->lo - 1;
    }
    if (to_b >= 0 || without) lang_edge(out, lo, hi, pair_number(p, x->to, to_b));
    at = hi + 1;
    if (hi == x->hi) i++;
  }
}

static struct lang *lang_pair(const struct lang *la, const struct lang *lb, bool without) {
  struct pairs p = {0};
  struct lang *out = lang_new();
  pair_number(&p, 0, 0);
  for (int s = 0; s < p.n && p.n <= LANG_STATES_MAX && out->n_edges <= EDGES_MAX; s++) {
    int a = p.v[s][0], b = p.v[s][1];
    bool in_b = b >= 0 && lb->states[b].accept;
    lang_state(out, la->states[a].accept && in_b != without);
    pair_edges(out, &p, la, lb, a, b, without);
  }
  bool good = out->n_states == p.n;
  free(p.v);
  lang_map_free(&p.map);
  if (good) return lang_finish(out);
  lang_delete(out);
  return NULL;
}

struct lang *lang_both(const struct lang *a, const struct lang *b) {
  return lang_pair(a, b, false);
}
struct lang *lang_without(const struct lang *a, const struct lang *b) {
  return lang_pair(a, b, true);
}

/* ---- as rules ----------------------------------------------------------------------------------------------------------------------- */

struct emission {
  const struct lang *l;
  struct grammar_rules *g;
  lang_class_fn fn;
  void *ctx;
  int *rules; /* per state: its rule, or -1 for one that is written into the only place that leads to it */
};

static int emit_class(struct emission *m, const struct rules_range *ranges, int n) {
  return m->fn ? m->fn(m->ctx, ranges, n) : rules_class(m->g, ranges, n, false);
}

/* All edges of a state to one target, as one character. */
static int emit_edges(struct emission *m, int state, int to) {
  int first = m->l->states[state].first, end = m->l->states[state + 1].first, n = 0;
  struct rules_range *ranges = xcalloc((size_t)(end - first) + 1, sizeof *ranges);
  for (int i = first; i < end; i++)
    if (m->l->edges[i].to == to) ranges[n++] = (struct rules_range){m->l->edges[i].lo, m->l->edges[i].hi};
  int node = emit_class(m, ranges, n);
  free(ranges);
  return node;
}

static bool state_is_chain(const struct lang *l, int s) {
  return !l->states[s].accept && l->states[s + 1].first - l->states[s].first == 1 && l->edges[l->states[s].first].to != s;
}

/* From a state on: single edges in a row become one sequence, up to a state that has a rule or ends. */
static int emit_target(struct emission *m, int s) {
  int *parts = NULL, n = 0, cap = 0, node;
  for (;; s = m->l->edges[m->l->states[s].first].to) {
    if (n + 2 > cap) parts = xrealloc(parts, (size_t)(cap = 2 * cap + 16) * sizeof *parts);
    if (m->rules[s] >= 0) parts[n++] = m->rules[s];
    if (m->rules[s] >= 0 || !state_is_chain(m->l, s)) break; /* the latter: accepts, without edges */
    parts[n++] = emit_edges(m, s, m->l->edges[m->l->states[s].first].to);
  }
  node = rules_seq(m->g, parts, n);
  free(parts);
  return node;
}

static int emit_state(struct emission *m, int s) {
  const struct lang *l = m->l;
  int first = l->states[s].first, end = l->states[s + 1].first, n = 0, loop = rules_empty(m->g);
  int *ways = xcalloc((size_t)(end - first) + 1, sizeof *ways);
  struct lang_map seen = {0};
  if (l->states[s].accept) ways[n++] = rules_empty(m->g);
  for (int i = first; i < end; i++) {
    int to = l->edges[i].to, *before = lang_map_at(&seen, (uint64_t)to + 1);
    if (*before >= 0) continue;
    *before = 1;
    int edges = emit_edges(m, s, to);
    if (to == s) loop = rules_repeat(m->g, edges, 0, -1);
    else ways[n++] = rules_seq2(m->g, edges, emit_target(m, to));
  }
  int node = rules_seq2(m->g, loop, rules_alt(m->g, ways, n));
  lang_map_free(&seen);
  free(ways);
  return node;
}

int lang_emit(const struct lang *l, struct grammar_rules *g, lang_class_fn fn, void *ctx) {
  if (lang_is_empty(l)) return rules_never(g);
  struct emission m = {l, g, fn, ctx, xcalloc((size_t)l->n_states, sizeof *m.rules)};
  int *in = xcalloc((size_t)l->n_states, sizeof *in);
  for (int i = 0; i < l->n_edges; i++) in[l->edges[i].to] += in[l->edges[i].to] < 2;
  in[0] = 2;
  for (int s = 0; s < l->n_states; s++) {
    bool ends = l->states[s].first == l->states[s + 1].first;
    bool in_place = (ends && s) || (state_is_chain(l, s) && in[s] < 2);
    m.rules[s] = in_place ? -1 : rules_declare(g, "string");
  }
  for (int s = 0; s < l->n_states; s++)
    if (m.rules[s] >= 0) rules_define(g, m.rules[s], emit_state(&m, s));
  int node = m.rules[0];
  free(m.rules);
  free(in);
  return node;
}
