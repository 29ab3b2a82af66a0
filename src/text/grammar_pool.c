/* grammar_pool.c — locals, frames and states, made when they are first met.
 *
 * A state holds the stacks that can go on with a byte or a token; stacks that only call or only return have been followed through (`enter`, `leave`).
 * Since parts match something when they are called and nothing is left-recursive, that following ends.
 * A return address behind which nothing comes is not pushed, so right recursion needs no depth.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

/* --- memory -------------------------------------------------------------------------------------------------------------------------------- */

static void list_reserve(struct pool_list *l, uint32_t n) {
  if (l->cap - l->n >= n) return;
  l->cap = MAX(2 * l->cap, l->n + n + 64);
  l->v = xrealloc(l->v, l->cap * sizeof *l->v);
}
static void list_push(struct pool_list *l, uint32_t x) {
  list_reserve(l, 1);
  l->v[l->n++] = x;
}

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
static void list_sort_unique(struct pool_list *l) {
  uint32_t kept = 0;
  if (l->n > 24) {
    qsort(l->v, l->n, sizeof *l->v, by_value);
  } else {
    for (uint32_t i = 1; i < l->n; i++) {
      uint32_t x = l->v[i], k = i;
      for (; k > 0 && l->v[k - 1] > x; k--) l->v[k] = l->v[k - 1];
      l->v[k] = x;
    }
  }
  for (uint32_t i = 0; i < l->n; i++)
    if (!kept || l->v[kept - 1] != l->v[i]) l->v[kept++] = l->v[i];
  l->n = kept;
}

static uint32_t hash_words(const uint32_t *v, uint32_t n, uint32_t seed) {
  uint64_t h = seed + 0x9E3779B97F4A7C15u;
  for (uint32_t i = 0; i < n; i++) {
    h = (h ^ v[i]) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  return (uint32_t)h;
}

/* The slots in which a thing with this hash may stand; they hold its number + 1. */
#define TABLE_EACH(table, hash, slot)                                                                                                      \
  for (uint32_t slot = (hash) & ((table).n_slots - 1); (table).slots[slot]; slot = (slot + 1) & ((table).n_slots - 1))

static void table_put(struct pool_table *t, uint32_t hash, uint32_t number) {
  uint32_t slot = hash & (t->n_slots - 1);
  while (t->slots[slot]) slot = (slot + 1) & (t->n_slots - 1);
  t->slots[slot] = number + 1;
}

static uint32_t local_hash(const struct pool *p, uint32_t i) { return hash_words(p->ints.v + p->locals[i].set, p->locals[i].n_set, 1); }
static uint32_t frame_hash_of(uint32_t local, uint32_t parent, int32_t min, int32_t max) {
  return hash_words((uint32_t[]){local, parent, (uint32_t)min, (uint32_t)max}, 4, 2);
}
static uint32_t frame_hash(const struct pool *p, uint32_t i) {
  const struct pool_frame *f = &p->frames[i];
  return frame_hash_of(f->local, f->parent, f->min, f->max);
}
static uint32_t state_hash(const struct pool *p, uint32_t i) {
  return hash_words(p->ints.v + p->states[i].tops, p->states[i].n_tops, 3 + p->states[i].flags);
}

/* Keep a table at most half full with n things in it. */
static void table_fit(struct pool *p, struct pool_table *t, uint32_t n, uint32_t (*hash)(const struct pool *, uint32_t)) {
  if (t->n_slots && 2 * (n + 1) <= t->n_slots) return;
  t->n_slots = t->n_slots ? 2 * t->n_slots : 256;
  free(t->slots);
  t->slots = xcalloc(t->n_slots, sizeof *t->slots);
  for (uint32_t i = 0; i < n; i++) table_put(t, hash(p, i), i);
}

size_t pool_bytes(const struct pool *p) {
  size_t row = (size_t)p->net->n_classes * sizeof(uint32_t);
  return p->n_locals * (sizeof *p->locals + row) + p->n_states * (sizeof *p->states + row) + p->n_frames * sizeof *p->frames +
         (p->ints.n + p->local_table.n_slots + p->frame_table.n_slots + p->state_table.n_slots) * sizeof(uint32_t);
}

/* --- locals --------------------------------------------------------------------------------------------------------------------------------- */

static bool net_is_call(const struct net_state *s) { return s->kind == NET_CALL || s->kind == NET_LOOP; }
static int32_t net_callee(const struct grammar_net *net, const struct net_state *s) {
  return s->kind == NET_CALL ? s->arg : net->loops[s->arg].part;
}
static uint32_t net_need(const struct grammar_net *net, const struct net_state *s) {
  if (!net_is_call(s)) return s->need;
  uint32_t callee = net->parts[net_callee(net, s)].need, after = net->states[s->to].need;
  if (callee == NET_NEVER || after == NET_NEVER) return NET_NEVER;
  return MAX(callee + (s->kind == NET_LOOP ? 2 : 1), after);
}

static void set_begin(struct pool *p) {
  p->set.n = 0;
  if (++p->net_epoch) return;
  memset(p->net_mark, 0, (size_t)p->net->n_states * sizeof *p->net_mark);
  p->net_epoch = 1;
}

/* Into p->set: the states with an edge of their own (or the end, when wanted) that are reached from here with nothing. */
static void set_add(struct pool *p, int32_t from, bool with_end) {
  const struct grammar_net *net = p->net;
  list_push(&p->work, (uint32_t)from);
  while (p->work.n) {
    uint32_t at = p->work.v[--p->work.n];
    const struct net_state *s = &net->states[at];
    if (!pool_spend(p, 1)) {
      p->work.n = 0;
      return;
    }
    if (s->need == NET_NEVER || p->net_mark[at] == p->net_epoch) continue;
    p->net_mark[at] = p->net_epoch;
    if (s->kind == NET_SPLIT) {
      for (int k = 0; k < s->arg; k++) list_push(&p->work, (uint32_t)net->outs[s->to + k]);
      continue;
    }
    if (net_is_call(s) && s->skips) list_push(&p->work, (uint32_t)s->to);
    if (net_is_call(s) && net_need(net, s) == NET_NEVER) continue;
    if (s->kind == NET_ACCEPT && !with_end) continue;
    list_push(&p->set, at);
  }
}

static void local_push(struct pool *p) {
  const struct grammar_net *net = p->net;
  if (p->n_locals == p->cap_locals) {
    p->cap_locals = p->cap_locals ? 2 * p->cap_locals : 64;
    p->locals = xrealloc(p->locals, p->cap_locals * sizeof *p->locals);
    p->local_rows = xrealloc(p->local_rows, (size_t)p->cap_locals * (size_t)net->n_classes * sizeof *p->local_rows);
  }
  struct pool_local l = {.set = p->ints.n, .n_set = p->set.n, .calls = POOL_UNKNOWN, .need = NET_NEVER};
  list_reserve(&p->ints, p->set.n);
  if (p->set.n) memcpy(p->ints.v + p->ints.n, p->set.v, p->set.n * sizeof *p->set.v);
  p->ints.n += p->set.n;
  for (uint32_t i = 0; i < p->set.n; i++) {
    const struct net_state *s = &net->states[p->set.v[i]];
    l.need = (uint16_t)MIN(l.need, net_need(net, s));
    l.accepts |= s->kind == NET_ACCEPT;
    l.has_tokens |= s->kind == NET_TOKEN || s->kind == NET_OTHER;
    l.has_edges |= s->kind == NET_BYTE || s->kind == NET_TOKEN || s->kind == NET_OTHER;
  }
  memset(p->local_rows + (size_t)p->n_locals * (size_t)net->n_classes, 0xff, (size_t)net->n_classes * sizeof *p->local_rows);
  p->locals[p->n_locals++] = l;
}

static uint32_t set_intern(struct pool *p) {
  list_sort_unique(&p->set);
  table_fit(p, &p->local_table, p->n_locals, local_hash);
  uint32_t hash = hash_words(p->set.v, p->set.n, 1);
  TABLE_EACH(p->local_table, hash, slot) {
    const struct pool_local *l = &p->locals[p->local_table.slots[slot] - 1];
    if (l->n_set == p->set.n && (!l->n_set || !memcmp(p->ints.v + l->set, p->set.v, l->n_set * sizeof *p->set.v)))
      return p->local_table.slots[slot] - 1;
  }
  table_put(&p->local_table, hash, p->n_locals);
  local_push(p);
  return p->n_locals - 1;
}

static uint32_t local_step(struct pool *p, uint32_t local, unsigned class) {
  size_t at = (size_t)local * (size_t)p->net->n_classes + class;
  if (p->local_rows[at] != POOL_UNKNOWN) return p->local_rows[at];
  unsigned char byte = p->net->first_of[class];
  struct pool_local l = p->locals[local];
  set_begin(p);
  for (uint32_t i = 0; i < l.n_set; i++) {
    const struct net_state *s = &p->net->states[p->ints.v[l.set + i]];
    if (s->kind == NET_BYTE && s->lo <= byte && byte <= s->hi) set_add(p, s->to, true);
  }
  if (!pool_spend(p, l.n_set)) return LOCAL_NONE;
  uint32_t to = set_intern(p);
  return p->local_rows[at] = to;
}

static bool other_allows(const struct grammar_net *net, const struct net_state *s, int32_t id) {
  return mask_bit(net->others[s->arg].bits, id);
}

static uint32_t local_step_token(struct pool *p, uint32_t local, int32_t id) {
  struct pool_local l = p->locals[local];
  if (!l.has_tokens) return LOCAL_NONE;
  set_begin(p);
  for (uint32_t i = 0; i < l.n_set; i++) {
    const struct net_state *s = &p->net->states[p->ints.v[l.set + i]];
    if ((s->kind == NET_TOKEN && s->arg == id) || (s->kind == NET_OTHER && other_allows(p->net, s, id))) set_add(p, s->to, true);
  }
  return pool_spend(p, l.n_set) ? set_intern(p) : LOCAL_NONE;
}

static uint32_t local_start(struct pool *p, int32_t part) {
  if (p->starts[part] != POOL_UNKNOWN) return p->starts[part];
  set_begin(p);
  set_add(p, p->net->parts[part].start, false);
  if (p->gave_up) return LOCAL_NONE;
  uint32_t local = set_intern(p);
  return p->starts[part] = local;
}

/* What a local calls, each callee once, with the local that all its returns together make. False: given up. */
static bool local_find_calls(struct pool *p, uint32_t local) {
  struct pool_local l = p->locals[local];
  struct pool_list calls = {0};
  for (uint32_t i = 0; i < l.n_set && pool_spend(p, 1 + calls.n / 16); i++) {
    const struct net_state *s = &p->net->states[p->ints.v[l.set + i]];
    if (!net_is_call(s)) continue;
    int32_t what = s->kind == NET_CALL ? s->arg : -1 - s->arg;
    uint32_t k = 0;
    while (k < calls.n && (int32_t)calls.v[k] != what) k += 2;
    if (k == calls.n) {
      list_push(&calls, (uint32_t)what);
      list_push(&calls, 0);
    }
  }
  for (uint32_t k = 0; k < calls.n && pool_spend(p, 1 + l.n_set / 8); k += 2) {
    int32_t what = (int32_t)calls.v[k];
    set_begin(p);
    for (uint32_t i = 0; i < l.n_set; i++) {
      const struct net_state *s = &p->net->states[p->ints.v[l.set + i]];
      if ((s->kind == NET_CALL && s->arg == what) || (s->kind == NET_LOOP && -1 - s->arg == what)) set_add(p, s->to, true);
    }
    calls.v[k + 1] = set_intern(p);
  }
  if (!p->gave_up) {
    p->locals[local].calls = p->ints.n;
    p->locals[local].n_calls = calls.n / 2;
    list_reserve(&p->ints, calls.n);
    if (calls.n) memcpy(p->ints.v + p->ints.n, calls.v, calls.n * sizeof *calls.v);
    p->ints.n += calls.n;
  }
  free(calls.v);
  return !p->gave_up;
}

/* --- frames -------------------------------------------------------------------------------------------------------------------------------- */

static uint32_t frame_push(struct pool *p, uint32_t local, uint32_t parent, int32_t min, int32_t max) {
  pool_spend(p, 1);
  table_fit(p, &p->frame_table, p->n_frames, frame_hash);
  uint32_t hash = frame_hash_of(local, parent, min, max);
  TABLE_EACH(p->frame_table, hash, slot) {
    const struct pool_frame *f = &p->frames[p->frame_table.slots[slot] - 1];
    if (f->local == local && f->parent == parent && f->min == min && f->max == max) return p->frame_table.slots[slot] - 1;
  }
  if (p->n_frames == p->cap_frames) {
    p->cap_frames = p->cap_frames ? 2 * p->cap_frames : 256;
    p->frames = xrealloc(p->frames, p->cap_frames * sizeof *p->frames);
  }
  table_put(&p->frame_table, hash, p->n_frames);
  p->frames[p->n_frames] = (struct pool_frame){.local = local,
                                               .parent = parent,
                                               .min = min,
                                               .max = max,
                                               .clamped = POOL_UNKNOWN,
                                               .apart = POOL_UNKNOWN,
                                               .rest = POOL_UNKNOWN,
                                               .copied = POOL_UNKNOWN,
                                               .depth = p->n_frames > FRAME_ANY ? p->frames[parent].depth + 1 : 0};
  return p->n_frames++;
}

static bool frame_counts(const struct pool_frame *f) { return f->local & FRAME_COUNTS; }

static void gather_begin(struct pool *p) {
  p->tops.n = p->pending.n = 0;
  p->flags = 0;
  if (++p->frame_epoch) return;
  for (uint32_t i = 0; i < p->n_frames; i++) p->frames[i].mark = 0;
  p->frame_epoch = 1;
}

/* A frame that a match now stands at; those it leads to are followed by gather_end. */
static void gather_frame(struct pool *p, uint32_t frame) {
  if (p->frames[frame].mark == p->frame_epoch) return;
  p->frames[frame].mark = p->frame_epoch;
  list_push(&p->pending, frame);
}

static void enter(struct pool *p, uint32_t local, uint32_t parent) {
  if (local == LOCAL_NONE || p->frames[parent].depth + p->locals[local].need >= GRAMMAR_DEPTH_MAX) return;
  gather_frame(p, frame_push(p, local, parent, 0, 0));
}

static void leave(struct pool *p, uint32_t frame) {
  while (pool_spend(p, 1)) {
    if (frame == FRAME_END || frame == FRAME_ANY) {
      p->flags |= frame == FRAME_END ? STATE_ACCEPTS : STATE_LEAVES;
      return;
    }
    struct pool_frame f = p->frames[frame];
    if (!frame_counts(&f)) {
      gather_frame(p, frame);
      return;
    }
    if (f.mark == p->frame_epoch) return;
    p->frames[frame].mark = p->frame_epoch;
    if (f.max != 1) { /* once more */
      uint32_t again = frame_push(p, f.local, f.parent, MAX(f.min - 1, 1), f.max < 0 ? -1 : f.max - 1);
      enter(p, local_start(p, (int32_t)(f.local & ~FRAME_COUNTS)), again);
    }
    if (f.min > 1) return;
    frame = f.parent;
  }
}

static bool local_is_end(const struct pool_local *l) { return l->accepts && l->n_set == 1; }

static void call(struct pool *p, int32_t what, uint32_t back, uint32_t parent) {
  if (!local_is_end(&p->locals[back])) parent = frame_push(p, back, parent, 0, 0);
  if (what >= 0) {
    enter(p, local_start(p, what), parent);
    return;
  }
  const struct net_loop *loop = &p->net->loops[-1 - what];
  parent = frame_push(p, (uint32_t)loop->part | FRAME_COUNTS, parent, MAX(loop->min, 1), loop->max);
  enter(p, local_start(p, loop->part), parent);
}

static uint32_t state_intern(struct pool *p) {
  list_sort_unique(&p->tops);
  if (p->tops.n > GRAMMAR_STACKS_MAX) p->gave_up = true;
  table_fit(p, &p->state_table, p->n_states, state_hash);
  uint32_t hash = hash_words(p->tops.v, p->tops.n, 3 + p->flags);
  TABLE_EACH(p->state_table, hash, slot) {
    const struct pool_state *s = &p->states[p->state_table.slots[slot] - 1];
    if (s->n_tops == p->tops.n && s->flags == p->flags &&
        (!s->n_tops || !memcmp(p->ints.v + s->tops, p->tops.v, s->n_tops * sizeof *p->tops.v)))
      return p->state_table.slots[slot] - 1;
  }
  size_t row = (size_t)p->net->n_classes;
  if (p->n_states == p->cap_states) {
    p->cap_states = p->cap_states ? 2 * p->cap_states : 64;
    p->states = xrealloc(p->states, p->cap_states * sizeof *p->states);
    p->rows = xrealloc(p->rows, p->cap_states * row * sizeof *p->rows);
  }
  table_put(&p->state_table, hash, p->n_states);
  p->states[p->n_states] = (struct pool_state){.tops = p->ints.n, .n_tops = p->tops.n, .clamped = POOL_UNKNOWN, .flags = p->flags};
  list_reserve(&p->ints, p->tops.n);
  if (p->tops.n) memcpy(p->ints.v + p->ints.n, p->tops.v, p->tops.n * sizeof *p->tops.v);
  p->ints.n += p->tops.n;
  memset(p->rows + p->n_states * row, p->n_states == STATE_DEAD ? 0 : 0xff, row * sizeof *p->rows);
  return p->n_states++;
}

/* Follow calls and returns; the state of all that was gathered. */
static uint32_t gather_end(struct pool *p) {
  while (p->pending.n && pool_spend(p, 1)) {
    uint32_t frame = p->pending.v[--p->pending.n], local = p->frames[frame].local, parent = p->frames[frame].parent;
    if (p->locals[local].calls == POOL_UNKNOWN && !local_find_calls(p, local)) break;
    struct pool_local l = p->locals[local];
    if (l.has_edges) list_push(&p->tops, frame);
    if (p->tops.n > GRAMMAR_STACKS_MAX) p->gave_up = true;
    for (uint32_t i = 0; i < l.n_calls && !p->gave_up; i++)
      call(p, (int32_t)p->ints.v[l.calls + 2 * i], p->ints.v[l.calls + 2 * i + 1], parent);
    if (l.accepts) leave(p, parent);
  }
  return p->gave_up ? STATE_DEAD : state_intern(p);
}

/* --- states ---------------------------------------------------------------------------------------------------------------------------------- */

struct pool *pool_new(const struct grammar_net *net, uint32_t horizon) {
  struct pool *p = xcalloc(1, sizeof *p);
  p->net = net;
  p->horizon = horizon;
  pool_allow(p, UINT64_MAX);
  p->net_mark = xcalloc((size_t)net->n_states, sizeof *p->net_mark);
  p->starts = xmalloc((size_t)net->n_parts * sizeof *p->starts);
  memset(p->starts, 0xff, (size_t)net->n_parts * sizeof *p->starts);
  set_begin(p);
  set_intern(p);                      /* LOCAL_NONE */
  frame_push(p, UINT32_MAX, 0, 0, 0); /* FRAME_END: no local has these numbers */
  frame_push(p, UINT32_MAX, 1, 0, 0); /* FRAME_ANY */
  gather_begin(p);
  state_intern(p); /* STATE_DEAD */
  return p;
}

void pool_delete(struct pool *p) {
  if (!p) return;
  free(p->locals);
  free(p->frames);
  free(p->states);
  free(p->local_table.slots);
  free(p->frame_table.slots);
  free(p->state_table.slots);
  free(p->ints.v);
  free(p->local_rows);
  free(p->rows);
  free(p->starts);
  free(p->net_mark);
  free(p->set.v);
  free(p->work.v);
  free(p->pending.v);
  free(p->tops.v);
  free(p);
}

uint32_t pool_start(struct pool *p) {
  gather_begin(p);
  enter(p, local_start(p, 0), FRAME_END);
  if (p->net->parts[0].empty) p->flags |= STATE_ACCEPTS;
  return gather_end(p);
}

uint32_t pool_step_class(struct pool *p, uint32_t state, unsigned class) {
  struct pool_state s = p->states[state];
  gather_begin(p);
  for (uint32_t i = 0; i < s.n_tops && pool_spend(p, 1); i++) {
    struct pool_frame f = p->frames[p->ints.v[s.tops + i]];
    enter(p, local_step(p, f.local, class), f.parent);
  }
  uint32_t to = gather_end(p);
  if (p->gave_up) return STATE_DEAD;
  uint32_t leaves = p->states[to].flags & STATE_LEAVES ? POOL_LEAVES : 0;
  return p->rows[(size_t)state * (size_t)p->net->n_classes + class] = to | leaves;
}

uint32_t pool_step_token(struct pool *p, uint32_t state, int32_t id) {
  struct pool_state s = p->states[state];
  gather_begin(p);
  for (uint32_t i = 0; i < s.n_tops && pool_spend(p, 1); i++) {
    struct pool_frame f = p->frames[p->ints.v[s.tops + i]];
    enter(p, local_step_token(p, f.local, id), f.parent);
  }
  return gather_end(p);
}

uint32_t pool_union(struct pool *p, uint32_t a, uint32_t b) {
  if (a == b || b == STATE_DEAD) return a;
  if (a == STATE_DEAD) return b;
  gather_begin(p);
  uint32_t both[2] = {a, b};
  for (int k = 0; k < 2; k++) {
    struct pool_state s = p->states[both[k]];
    for (uint32_t i = 0; i < s.n_tops; i++) list_push(&p->tops, p->ints.v[s.tops + i]);
    p->flags |= s.flags;
  }
  return state_intern(p);
}

uint32_t pool_leave(struct pool *p, uint32_t frame) {
  gather_begin(p);
  leave(p, frame);
  return gather_end(p);
}

/* --- stacks rebuilt ------------------------------------------------------------------------------------------------------------------------- */

static uint32_t clamp_frame(struct pool *p, uint32_t frame) {
  struct pool_list chain = {0};
  uint32_t at = frame;
  for (; at > FRAME_ANY && p->frames[at].clamped == POOL_UNKNOWN; at = p->frames[at].parent) list_push(&chain, at);
  uint32_t below = at > FRAME_ANY ? p->frames[at].clamped : at;
  while (chain.n) {
    at = chain.v[--chain.n];
    struct pool_frame f = p->frames[at];
    int32_t most = (int32_t)p->horizon + 1;
    below = frame_push(p, f.local, below, MIN(f.min, most), MIN(f.max, most));
    p->frames[at].clamped = below;
  }
  free(chain.v);
  return below;
}

uint32_t pool_clamp(struct pool *p, uint32_t state) {
  if (p->states[state].clamped != POOL_UNKNOWN) return p->states[state].clamped;
  struct pool_state s = p->states[state];
  gather_begin(p);
  for (uint32_t i = 0; i < s.n_tops; i++) list_push(&p->tops, clamp_frame(p, p->ints.v[s.tops + i]));
  p->flags = s.flags;
  uint32_t clamped = state_intern(p);
  p->states[clamped].clamped = clamped;
  return p->states[state].clamped = clamped;
}

/* Frames of one call stay together: the local on top, and as long as it is inside counted repetitions the counters and the local they belong to. */
static void cut_frame(struct pool *p, uint32_t frame) {
  struct pool_list chain = {0};
  uint32_t at = frame;
  if (p->frames[frame].apart != POOL_UNKNOWN) return;
  for (;;) {
    list_push(&chain, at);
    at = p->frames[at].parent;
    if (at <= FRAME_ANY || !frame_counts(&p->frames[at])) break;
    for (; at > FRAME_ANY && frame_counts(&p->frames[at]); at = p->frames[at].parent) list_push(&chain, at);
    if (at <= FRAME_ANY) break;
  }
  uint32_t rest = at, below = FRAME_ANY;
  while (chain.n) {
    struct pool_frame f = p->frames[chain.v[--chain.n]];
    below = frame_push(p, f.local, below, f.min, f.max);
  }
  p->frames[frame].apart = below;
  p->frames[frame].rest = rest;
  free(chain.v);
}

int pool_cut(struct pool *p, uint32_t state, uint32_t *apart, uint32_t *rest, int max) {
  struct pool_state s = p->states[state];
  int n = 0;
  for (uint32_t i = 0; i < s.n_tops; i++) {
    uint32_t top = p->ints.v[s.tops + i];
    if (p->frames[top].depth > GRAMMAR_DEPTH_MAX / 2) return -1; /* standing on FRAME_ANY it could go deeper than it can */
    cut_frame(p, top);
    int k = 0;
    while (k < n && rest[k] != p->frames[top].rest) k++;
    if (k < n) continue;
    if (n == max) return -1;
    rest[n++] = p->frames[top].rest;
  }
  for (int k = 0; k < n; k++) {
    gather_begin(p);
    for (uint32_t i = 0; i < s.n_tops; i++) {
      const struct pool_frame *top = &p->frames[p->ints.v[s.tops + i]];
      if (top->rest == rest[k]) list_push(&p->tops, top->apart);
    }
    apart[k] = state_intern(p);
  }
  return n;
}

/* --- what a state goes on with ------------------------------------------------------------------------------------------------------------- */

static const struct net_state *top_edge(const struct pool *p, uint32_t top, uint32_t i) {
  return &p->net->states[p->ints.v[p->locals[p->frames[top].local].set + i]];
}

int pool_only_byte(struct pool *p, uint32_t state) {
  const struct pool_state *s = &p->states[state];
  int byte = -1;
  for (uint32_t i = 0; i < s->n_tops; i++) {
    uint32_t top = p->ints.v[s->tops + i];
    const struct pool_local *l = &p->locals[p->frames[top].local];
    if (l->has_tokens || !pool_spend(p, 1 + l->n_set / 8)) return -1;
    for (uint32_t k = 0; k < l->n_set; k++) {
      const struct net_state *edge = top_edge(p, top, k);
      if (edge->kind != NET_BYTE) continue;
      if (edge->lo != edge->hi || (byte >= 0 && byte != edge->lo)) return -1;
      byte = edge->lo;
    }
  }
  return byte;
}

int32_t pool_only_token(const struct pool *p, uint32_t state) {
  const struct pool_state *s = &p->states[state];
  int32_t id = -1;
  for (uint32_t i = 0; i < s->n_tops; i++) {
    uint32_t top = p->ints.v[s->tops + i];
    for (uint32_t k = 0; k < p->locals[p->frames[top].local].n_set; k++) {
      const struct net_state *edge = top_edge(p, top, k);
      if (edge->kind == NET_BYTE || edge->kind == NET_OTHER || (edge->kind == NET_TOKEN && id >= 0 && edge->arg != id)) return -1;
      if (edge->kind == NET_TOKEN) id = edge->arg;
    }
  }
  return id;
}

void pool_add_tokens(struct pool *p, uint32_t state, uint32_t *bits, size_t n_words, int n_tokens) {
  const struct pool_state *s = &p->states[state];
  for (uint32_t i = 0; i < s->n_tops; i++) {
    uint32_t top = p->ints.v[s->tops + i];
    const struct pool_local *l = &p->locals[p->frames[top].local];
    for (uint32_t k = 0; l->has_tokens && k < l->n_set; k++) {
      const struct net_state *edge = top_edge(p, top, k);
      if (edge->kind == NET_TOKEN && edge->arg < n_tokens) mask_set(bits, edge->arg);
      if (edge->kind != NET_OTHER || !pool_spend(p, n_words / 64)) continue;
      const uint32_t *other = p->net->others[edge->arg].bits;
      for (size_t w = 0; w < n_words; w++) bits[w] |= other[w];
    }
  }
}

/* --- into another pool ------------------------------------------------------------------------------------------------------------------------ */

static uint32_t copy_local(struct pool *to, const struct pool *from, uint32_t local) {
  const struct pool_local *l = &from->locals[local];
  set_begin(to);
  for (uint32_t i = 0; i < l->n_set; i++) list_push(&to->set, from->ints.v[l->set + i]);
  return set_intern(to);
}

static uint32_t copy_frame(struct pool *to, struct pool *from, uint32_t frame) {
  struct pool_list chain = {0};
  for (; frame > FRAME_ANY && from->frames[frame].copied == POOL_UNKNOWN; frame = from->frames[frame].parent) list_push(&chain, frame);
  if (frame > FRAME_ANY) frame = from->frames[frame].copied;
  while (chain.n) {
    struct pool_frame *f = &from->frames[chain.v[--chain.n]];
    uint32_t local = frame_counts(f) ? f->local : copy_local(to, from, f->local);
    f->copied = frame = frame_push(to, local, frame, f->min, f->max);
  }
  free(chain.v);
  return frame;
}

uint32_t pool_copy(struct pool *to, struct pool *from, uint32_t state) {
  const struct pool_state *s = &from->states[state];
  struct pool_list tops = {0};
  for (uint32_t i = 0; i < s->n_tops; i++) list_push(&tops, copy_frame(to, from, from->ints.v[s->tops + i]));
  gather_begin(to);
  to->flags = s->flags;
  for (uint32_t i = 0; i < tops.n; i++) list_push(&to->tops, tops.v[i]);
  free(tops.v);
  return state_intern(to);
}
