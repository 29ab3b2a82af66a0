/* grammar.c — a grammar, the places of answers in it, and masks.
 *
 * A mask is a walk over the vocabulary's trie with the state's steps. Two things make that rare. Counters are cut to what one token can tell apart
 * (pool_clamp), so that the inside of a string is one state however long the string is. And a state is cut where its part was called from (pool_cut):
 * what the part allows by itself is walked once ("apart"), with the places of the trie at which it is left; for another caller only those places are
 * gone on from.
 *
 * Everything inside is under one lock. Numbers of states change when the pool is collected, so those that are in use are kept where `collect` finds
 * them: in struct grammar_state, in `held`, in `path`.
 */
#include "text/grammar.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

enum {
  CUTS_MAX = 4,        /* more callers than this: walk the state as it is */
  EXITS_MAX = 1 << 14, /* as many places to leave a part at: so, too */
  NODES_PER_STEP = 8,  /* of the trie are gone through in the time of a step of work */
  HELD_MAX = 1 + 2 * CUTS_MAX
};

struct mask {
  int n_refs;
  uint32_t state;  /* whose it is, while it is kept */
  uint32_t *bits;  /* owned */
  uint32_t *exits; /* of an apart state; owned: nodes with children at which FRAME_ANY is left */
  uint32_t n_exits, cap_exits;
  bool wide; /* too many exits: not of use */
  struct mask *newer, *older;
};

struct grammar_state {
  struct grammar *g;
  uint32_t state;
  bool may_end, must_end, gave_up;
  int rest_bytes;    /* of a character that has begun */
  struct mask *mask; /* a reference, or NULL */
  struct grammar_state *next, *prev;
};

struct grammar {
  atomic_int n_refs;
  struct grammar_vocab *vocab; /* borrowed */
  struct grammar_net net;
  pthread_mutex_t lock; /* for all below */
  struct pool *pool;
  size_t pool_bytes_max; /* collected beyond this: pool_limit, or twice what was in use */
  size_t pool_limit, mask_limit, mask_bytes;
  uint64_t work_max;
  uint32_t exits_max;
  struct mask *newest, *oldest;
  struct grammar_state *states;
  uint32_t held[HELD_MAX];
  int n_held;
  uint32_t *path; /* [longest + 1] states from where a walk began, by depth */
  uint32_t path_from, path_to;
  struct grammar_state first; /* where answers begin, with its mask; holds no reference to g and is not among states */
};

void grammar_limit(struct grammar *g, size_t pool_bytes, size_t mask_bytes, uint32_t exits) {
  g->pool_limit = g->pool_bytes_max = pool_bytes;
  g->mask_limit = mask_bytes;
  g->exits_max = exits;
}
void grammar_limit_work(struct grammar *g, uint64_t work) { g->work_max = work; }

uint64_t grammar_work(struct grammar *g) {
  pthread_mutex_lock(&g->lock);
  uint64_t n = g->pool->work_done;
  pthread_mutex_unlock(&g->lock);
  return n;
}

static void state_enter_first(struct grammar *g);

/* --- grammars -------------------------------------------------------------------------------------------------------------------------------- */

struct grammar *grammar_compile(struct grammar_vocab *v, struct grammar_rules *r, struct err *e) {
  struct grammar *g = xcalloc(1, sizeof *g);
  int failed = grammar_net_init(&g->net, v, r, e);
  grammar_rules_delete(r);
  if (failed) {
    grammar_net_free(&g->net);
    free(g);
    return NULL;
  }
  atomic_init(&g->n_refs, 1);
  pthread_mutex_init(&g->lock, NULL);
  g->vocab = v;
  g->pool = pool_new(&g->net, v->longest);
  grammar_limit(g, GRAMMAR_CACHE_BYTES / 2, GRAMMAR_CACHE_BYTES / 2, EXITS_MAX);
  g->path = xcalloc((size_t)v->longest + 1, sizeof *g->path);
  g->work_max = GRAMMAR_WORK_MAX;
  state_enter_first(g);
  if (grammar_mask(&g->first)) return g;
  err_set(e, ERR_BAD_INPUT, "the grammar has too many readings: its first mask takes more than %d steps; make it less ambiguous",
          GRAMMAR_WORK_MAX);
  grammar_unref(g);
  return NULL;
}

struct grammar *grammar_ref(struct grammar *g) {
  atomic_fetch_add_explicit(&g->n_refs, 1, memory_order_relaxed);
  return g;
}

static void mask_unref(struct mask *m) {
  if (!m || --m->n_refs) return;
  free(m->bits);
  free(m->exits);
  free(m);
}

void grammar_unref(struct grammar *g) {
  if (!g || atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) != 1) return;
  CHECK(!g->states);
  mask_unref(g->first.mask);
  for (struct mask *m = g->newest, *older; m; m = older) {
    older = m->older;
    mask_unref(m);
  }
  pool_delete(g->pool);
  grammar_net_free(&g->net);
  pthread_mutex_destroy(&g->lock);
  free(g->path);
  free(g);
}

size_t grammar_bytes(struct grammar *g) {
  pthread_mutex_lock(&g->lock);
  size_t n = sizeof *g + (size_t)g->net.cap_states * sizeof *g->net.states + (size_t)g->net.cap_outs * sizeof *g->net.outs + g->mask_bytes +
             pool_bytes(g->pool);
  pthread_mutex_unlock(&g->lock);
  return n;
}

/* --- masks that are kept --------------------------------------------------------------------------------------------------------------------- */

static size_t mask_bytes(const struct grammar *g, const struct mask *m) {
  return sizeof *m + (m->bits ? g->vocab->n_words * sizeof *m->bits : 0) + m->cap_exits * sizeof *m->exits;
}

static void mask_unlink(struct grammar *g, struct mask *m) {
  *(m->newer ? &m->newer->older : &g->newest) = m->older;
  *(m->older ? &m->older->newer : &g->oldest) = m->newer;
}
static void mask_link_newest(struct grammar *g, struct mask *m) {
  m->newer = NULL;
  m->older = g->newest;
  *(g->newest ? &g->newest->newer : &g->oldest) = m;
  g->newest = m;
}

static void mask_drop(struct grammar *g, struct mask *m) {
  mask_unlink(g, m);
  g->mask_bytes -= mask_bytes(g, m);
  g->pool->states[m->state].mask = NULL;
  mask_unref(m);
}

/* Takes the reference. */
static void mask_keep(struct grammar *g, struct mask *m, uint32_t state) {
  m->state = state;
  g->pool->states[state].mask = m;
  mask_link_newest(g, m);
  g->mask_bytes += mask_bytes(g, m);
  while (g->mask_bytes > g->mask_limit && g->oldest != m) mask_drop(g, g->oldest);
}

static struct mask *mask_kept(struct grammar *g, uint32_t state) {
  struct mask *m = g->pool->states[state].mask;
  if (!m) return NULL;
  mask_unlink(g, m);
  mask_link_newest(g, m);
  return m;
}

/* A new pool with what is in use, and the states of the masks used last as far as they fit. */
static void collect(struct grammar *g) {
  struct pool *old = g->pool, *new = pool_new(&g->net, old->horizon);
  g->first.state = pool_copy(new, old, g->first.state);
  for (struct grammar_state *s = g->states; s; s = s->next) s->state = pool_copy(new, old, s->state);
  for (int i = 0; i < g->n_held; i++) g->held[i] = pool_copy(new, old, g->held[i]);
  for (uint32_t i = g->path_from; i < g->path_to; i++) g->path[i] = pool_copy(new, old, g->path[i]);
  bool fits = true;
  for (struct mask *m = g->newest, *older; m; m = older) {
    older = m->older;
    fits = fits && pool_bytes(new) < g->pool_limit / 2;
    if (!fits) {
      mask_drop(g, m);
      continue;
    }
    m->state = pool_copy(new, old, m->state);
    new->states[m->state].mask = m;
  }
  new->work_max = old->work_max;
  new->gave_up = old->gave_up;
  pool_spend(new, old->work_done);
  pool_delete(old);
  g->pool = new;
  g->pool_bytes_max = MAX(g->pool_limit, 2 * pool_bytes(new));
}

/* At the beginning of each call that may have to work. */
static void work_begin(struct grammar *g) {
  if (pool_bytes(g->pool) > g->pool_bytes_max) collect(g);
  pool_allow(g->pool, g->work_max);
}

static void hold(struct grammar *g, uint32_t state) { g->held[g->n_held++] = state; }

/* --- walks --------------------------------------------------------------------------------------------------------------------------------- */

static void exits_push(struct mask *m, uint32_t node) {
  if (m->n_exits == m->cap_exits) m->exits = xrealloc(m->exits, (m->cap_exits = m->cap_exits ? 2 * m->cap_exits : 64) * sizeof *m->exits);
  m->exits[m->n_exits++] = node;
}

static uint32_t walk_step(struct grammar *g, const struct vocab_node *node, uint32_t path_from) {
  uint32_t from = g->path[node->depth - 1], class = g->net.class_of[node->byte];
  uint32_t to = pool_step_class(g->pool, from, class);
  if (pool_bytes(g->pool) <= g->pool_bytes_max || g->pool->gave_up) return to;
  uint32_t leaves = to & POOL_LEAVES;
  g->path_from = path_from;
  g->path_to = node->depth + 1u;
  g->path[node->depth] = to & ~POOL_LEAVES;
  collect(g);
  g->path_from = g->path_to = 0;
  return g->path[node->depth] | leaves;
}

/* The nodes begin..end, path[depth before them] being set: bits of the tokens that the state allows, and where FRAME_ANY is left if m wants that.
 * False: there were too many of those, or it gave up. A large vocabulary has half a million nodes: no branches here but those that nearly always go
 * one way. */
static bool walk(struct grammar *g, uint32_t begin, uint32_t end, uint32_t *bits, struct mask *m) {
  const struct grammar_vocab *v = g->vocab;
  const unsigned char *class_of = g->net.class_of;
  const size_t n_classes = (size_t)g->net.n_classes;
  const uint32_t *rows = g->pool->rows;
  uint32_t *path = g->path;
  if (begin >= end) return true;
  const uint32_t path_from = v->nodes[begin].depth - 1u;
  uint32_t n_nodes = 0;
  for (uint32_t i = begin; i < end; n_nodes++) {
    const struct vocab_node *node = &v->nodes[i];
    uint32_t to = rows[path[node->depth - 1] * n_classes + class_of[node->byte]];
    if (to == STATE_DEAD) {
      i = node->end;
      continue;
    }
    if (to & POOL_LEAVES) { /* or not known */
      if (to == POOL_UNKNOWN) {
        to = walk_step(g, node, path_from);
        if (g->pool->gave_up) return false;
        rows = g->pool->rows;
        if (to == STATE_DEAD) continue; /* it is known now */
      }
      if (m && to & POOL_LEAVES && node->end > i + 1) {
        if (m->n_exits == g->exits_max) {
          pool_spend(g->pool, n_nodes / NODES_PER_STEP);
          return false;
        }
        exits_push(m, i);
      }
    }
    path[node->depth] = to & ~POOL_LEAVES;
    bits[node->token >> 5] |= 1u << (node->token & 31);
    if (node->more)
      for (int32_t token = v->same[node->token]; token >= 0; token = v->same[token]) mask_set(bits, token);
    i++;
  }
  return pool_spend(g->pool, 1 + n_nodes / NODES_PER_STEP);
}

static struct mask *mask_new(struct grammar *g) {
  struct mask *m = xcalloc(1, sizeof *m);
  m->n_refs = 1;
  m->bits = xcalloc(g->vocab->n_words + 1, sizeof *m->bits);
  return m;
}

/* What the held state allows apart from its callers. Kept. NULL: gave up. */
static struct mask *mask_apart(struct grammar *g, int held) {
  struct mask *m = mask_kept(g, g->held[held]);
  if (m) return m;
  m = mask_new(g);
  g->path[0] = g->held[held];
  m->wide = !walk(g, 0, g->vocab->n_nodes, m->bits, m);
  if (!m->wide) pool_add_tokens(g->pool, g->held[held], m->bits, g->vocab->n_words, g->vocab->n_tokens);
  if (g->pool->gave_up) {
    mask_unref(m);
    return NULL;
  }
  if (m->wide) {
    free(m->bits);
    free(m->exits);
    m->bits = m->exits = NULL;
    m->n_exits = m->cap_exits = 0;
  }
  mask_keep(g, m, g->held[held]);
  return m;
}

/* bits |= what `apart` allows, and behind its exits what the state it is left for does. False: it cannot be found in this way, or it gave up. */
static bool mask_join(struct grammar *g, uint32_t *bits, int apart, int after) {
  struct mask *m = mask_apart(g, apart);
  if (!m || m->wide) return false;
  for (size_t w = 0; w < g->vocab->n_words; w++) bits[w] |= m->bits[w];
  if (!g->pool->states[g->held[after]].n_tops) return true;
  m->n_refs++; /* walking may drop it */
  for (uint32_t i = 0; i < m->n_exits && !g->pool->gave_up; i++) {
    const struct vocab_node *node = &g->vocab->nodes[m->exits[i]];
    g->path[node->depth] = g->held[after];
    walk(g, m->exits[i] + 1, node->end, bits, NULL);
  }
  mask_unref(m);
  return true;
}

/* held[0] is a clamped state. NULL: gave up. */
static struct mask *mask_make(struct grammar *g) {
  struct mask *m = mask_new(g);
  uint32_t apart[CUTS_MAX], rest[CUTS_MAX];
  int n = pool_cut(g->pool, g->held[0], apart, rest, CUTS_MAX);
  bool joined = n >= 0;
  for (int i = 0; i < n; i++) hold(g, apart[i]);
  for (int i = 0; i < n; i++) hold(g, pool_leave(g->pool, rest[i]));
  for (int i = 0; i < n && joined; i++) joined = mask_join(g, m->bits, 1 + i, 1 + n + i);
  if (!joined && !g->pool->gave_up) {
    g->path[0] = g->held[0];
    walk(g, 0, g->vocab->n_nodes, m->bits, NULL);
    pool_add_tokens(g->pool, g->held[0], m->bits, g->vocab->n_words, g->vocab->n_tokens);
  }
  if (g->pool->gave_up) {
    mask_unref(m);
    return NULL;
  }
  if (g->pool->states[g->held[0]].flags & STATE_ACCEPTS) {
    int n_eog;
    const int32_t *eog = tok_eog(g->vocab->tokenizer, &n_eog);
    for (int i = 0; i < n_eog; i++)
      if (eog[i] >= 0 && eog[i] < g->vocab->n_tokens) mask_set(m->bits, eog[i]);
  }
  return m;
}

const uint32_t *grammar_mask(struct grammar_state *s) {
  if (s->gave_up) return NULL;
  if (s->mask) return s->mask->bits;
  struct grammar *g = s->g;
  pthread_mutex_lock(&g->lock);
  work_begin(g);
  uint32_t clamped = pool_clamp(g->pool, s->state);
  struct mask *m = mask_kept(g, clamped);
  if (!m) {
    g->n_held = 0;
    hold(g, clamped);
    m = mask_make(g);
    if (m) mask_keep(g, m, g->held[0]);
    g->n_held = 0;
  }
  if (m) m->n_refs++;
  s->mask = m;
  s->gave_up = !m;
  pthread_mutex_unlock(&g->lock);
  return m ? m->bits : NULL;
}

/* --- states ---------------------------------------------------------------------------------------------------------------------------------- */

/* Any byte or token that goes on. False, too, if it gave up. */
static bool goes_on(struct grammar *g, uint32_t state) {
  const struct pool_state *s = &g->pool->states[state];
  if (!s->n_tops) return false;
  for (uint32_t i = 0; i < s->n_tops; i++)
    if (g->pool->locals[g->pool->frames[g->pool->ints.v[s->tops + i]].local].has_tokens) return true;
  for (int c = 0; c < g->net.n_classes && !g->pool->gave_up; c++)
    if (pool_step(g->pool, state, g->net.first_of[c]) != STATE_DEAD) return true;
  return false;
}

/* Under the lock. False, and nothing changed: gave up. */
static bool state_enter(struct grammar_state *s, uint32_t state) {
  bool may_end = s->g->pool->states[state].flags & STATE_ACCEPTS, must_end = may_end && !goes_on(s->g, state);
  if (s->g->pool->gave_up) return false;
  s->state = state;
  s->may_end = may_end;
  s->must_end = must_end;
  mask_unref(s->mask);
  s->mask = NULL;
  return true;
}

static void state_enter_first(struct grammar *g) {
  g->first.g = g;
  work_begin(g);
  g->first.gave_up = !state_enter(&g->first, pool_start(g->pool));
}

static struct grammar_state *state_link(struct grammar *g) {
  struct grammar_state *s = xcalloc(1, sizeof *s);
  s->g = grammar_ref(g);
  s->next = g->states;
  if (g->states) g->states->prev = s;
  g->states = s;
  return s;
}

/* Under the lock. */
static void state_assign(struct grammar_state *s, const struct grammar_state *from) {
  struct mask *old = s->mask;
  if (from->mask) from->mask->n_refs++;
  s->state = from->state;
  s->may_end = from->may_end;
  s->must_end = from->must_end;
  s->gave_up = from->gave_up;
  s->rest_bytes = from->rest_bytes;
  s->mask = from->mask;
  mask_unref(old);
}

struct grammar_state *grammar_state_new(struct grammar *g) {
  pthread_mutex_lock(&g->lock);
  struct grammar_state *s = state_link(g);
  state_assign(s, &g->first);
  pthread_mutex_unlock(&g->lock);
  return s;
}

struct grammar_state *grammar_state_copy(const struct grammar_state *from) {
  pthread_mutex_lock(&from->g->lock);
  struct grammar_state *s = state_link(from->g);
  state_assign(s, from);
  pthread_mutex_unlock(&from->g->lock);
  return s;
}

void grammar_state_set(struct grammar_state *s, const struct grammar_state *from) {
  CHECK(s->g == from->g);
  pthread_mutex_lock(&s->g->lock);
  state_assign(s, from);
  pthread_mutex_unlock(&s->g->lock);
}

void grammar_state_delete(struct grammar_state *s) {
  if (!s) return;
  struct grammar *g = s->g;
  pthread_mutex_lock(&g->lock);
  *(s->prev ? &s->prev->next : &g->states) = s->next;
  if (s->next) s->next->prev = s->prev;
  mask_unref(s->mask);
  pthread_mutex_unlock(&g->lock);
  free(s);
  grammar_unref(g);
}

/* Bytes of a character that are still to come after this one. */
static int rest_after(int rest_bytes, unsigned char byte) {
  if (rest_bytes > 0) return rest_bytes - 1;
  return byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
}

bool grammar_accept(struct grammar_state *s, int32_t id) {
  struct grammar *g = s->g;
  const struct grammar_vocab *v = g->vocab;
  if (id < 0 || id >= v->n_tokens || s->gave_up) return false;
  bool end = grammar_vocab_is_eog(v, id);
  if (end && s->may_end) return true;
  pthread_mutex_lock(&g->lock);
  work_begin(g);
  uint32_t by_bytes = STATE_DEAD, by_token = pool_step_token(g->pool, s->state, id);
  int rest_bytes = s->rest_bytes;
  if (v->in_trie[id]) {
    struct str piece = tok_piece(v->tokenizer, id);
    by_bytes = s->state;
    for (size_t i = 0; i < piece.n && by_bytes != STATE_DEAD; i++) {
      by_bytes = pool_step(g->pool, by_bytes, (unsigned char)piece.p[i]);
      rest_bytes = rest_after(rest_bytes, (unsigned char)piece.p[i]);
    }
  }
  uint32_t to = pool_union(g->pool, by_bytes, by_token);
  bool taken = to != STATE_DEAD && state_enter(s, to);
  if (taken) s->rest_bytes = by_bytes != STATE_DEAD ? rest_bytes : 0;
  s->gave_up = g->pool->gave_up;
  pthread_mutex_unlock(&g->lock);
  return taken;
}

bool grammar_may_end(const struct grammar_state *s) { return s->may_end; }
bool grammar_must_end(const struct grammar_state *s) { return s->must_end; }
bool grammar_gave_up(const struct grammar_state *s) { return s->gave_up; }

void grammar_forced(struct grammar_state *s, size_t max, struct buf *out, int32_t *id) {
  struct grammar *g = s->g;
  size_t before = out->len, whole = before, n = 0; /* whole: length up to the last border of a character */
  int rest_bytes = s->rest_bytes;
  *id = -1;
  if (s->gave_up) return;
  pthread_mutex_lock(&g->lock);
  work_begin(g);
  uint32_t state = s->state;
  for (; n < max && !(g->pool->states[state].flags & STATE_ACCEPTS); n++) {
    int byte = pool_only_byte(g->pool, state);
    uint32_t to = byte >= 0 ? pool_step(g->pool, state, (unsigned char)byte) : STATE_DEAD;
    if (to == STATE_DEAD || !buf_putc(out, (char)byte)) break;
    state = to;
    rest_bytes = rest_after(rest_bytes, (unsigned char)byte);
    if (!rest_bytes) whole = out->len;
  }
  if (n == 0 && !s->may_end) *id = pool_only_token(g->pool, s->state);
  s->gave_up = g->pool->gave_up;
  if (s->gave_up) {
    *id = -1;
    whole = before;
  }
  pthread_mutex_unlock(&g->lock);
  if (out->len > whole) {
    out->len = whole;
    out->data[whole] = 0;
  }
}
