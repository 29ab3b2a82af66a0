/* grammar_net.c — rules to a network of small automata ("parts") that call each other.
 *
 * What becomes a part of its own: rules that lead back to themselves from within (what leads back only from its end is a loop: regular); bodies of
 * repetitions that are counted rather than written out; and what is used in several places and either goes on without bound up to an end of its own (a
 * string with its quotes: masks are shared by all its places) or is large. All the rest is written out where it is used, the same before the same once.
 * So the network is not much larger than the rules, and stacks are as deep as the recursion of what is matched.
 *
 * A part's states are Thompson's: each is one thing. `fill` gives an empty state its thing, so that nothing here recurses.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

enum {
  SIZE_SHARED = 24,   /* used twice, goes on without bound and is larger than this: a part */
  SIZE_LARGE = 400,   /* used twice and larger than this: a part */
  SIZE_COUNTED = 192, /* a repetition that would be larger than this written out is counted */
  COPIES_MAX = 64     /* or that has more copies */
};

struct work { /* node is to be matched between state `from`, which is empty so far, and state `to` */
  int32_t node, from, to;
};

/* What is known of a node before the network is built. */
struct about {
  int32_t part;       /* its number, IS_PART before it has one, or NO_PART */
  uint32_t uses;      /* by other nodes */
  uint32_t size;      /* in states, about */
  int32_t order, low; /* of the search for cycles: when it was met, the oldest that it leads back to */
  int32_t cycle;      /* nodes that lead to each other have the same number */
  bool open, waiting, met_again, inner_use;
  bool unbounded; /* goes on without bound, or nearly */
  bool wide;      /* with characters of many kinds in it */
  bool open_end;  /* wide, and may be left after any character */
  bool counted;
};

struct builder {
  struct grammar_net *net;
  const struct grammar_vocab *v;
  const struct grammar_rules *r;
  struct err *e;
  struct about *about; /* [nodes] */
  int32_t *order;      /* nodes, children before parents as far as there are no cycles */
  int32_t n_order;
  bool *cycle_regular; /* [cycles] leads back from the ends only */
  int32_t n_cycles;
  struct work *work;
  int n_work, cap_work;
  struct work *begun; /* open addressing by node and to: what has been written out before */
  uint32_t n_begun, cap_begun;
  bool shares_ends; /* sizes: what is used at the ends of several nodes is written out once for all of them */
  bool too_large;
};
enum { NO_PART = -1, IS_PART = -2 };

/* Room for one more in a growing array of the network or the builder. */
#define GROW(v, n, cap)                                                                                                                    \
  do {                                                                                                                                     \
    if ((n) == (cap)) {                                                                                                                    \
      (cap) = (cap) ? 2 * (cap) : 64;                                                                                                      \
      (v) = xrealloc((v), (size_t)(cap) * sizeof *(v));                                                                                    \
    }                                                                                                                                      \
  } while (0)

/* --- which nodes are parts --------------------------------------------------------------------------------------------------------------- */

static int n_children(const struct rules_node *n) {
  return n->kind == RULES_SEQ || n->kind == RULES_ALT ? (int)n->n : n->kind == RULES_REPEAT || n->kind == RULES_RULE ? 1 : 0;
}
static int child(const struct grammar_rules *r, const struct rules_node *n, int i) {
  return n->kind == RULES_SEQ || n->kind == RULES_ALT ? r->ints[n->at + (uint32_t)i] : n->a;
}

static int rule_undefined(struct builder *b, const struct rules_node *n) {
  char name[100];
  return err_set(b->e, ERR_BAD_INPUT, "rule \"%s\" is used but not defined",
                 str_escape(str_of(b->r->bytes + n->at, n->n), name, sizeof name));
}

/* How many copies of the body stand there when the repetition is written out. */
static uint32_t repeat_copies(const struct rules_node *n) { return (uint32_t)(n->c >= 0 ? n->c : MAX(n->b, 1)); }

static uint32_t class_size(const struct grammar_rules *r, const struct rules_node *n) {
  uint32_t size = 1;
  for (uint32_t i = 0; i < n->n; i += 2) size += r->ints[n->at + i + 1] < 0x80 ? 1 : 3;
  return size;
}

static bool class_is_wide(const struct grammar_rules *r, const struct rules_node *n) {
  int64_t characters = 0;
  for (uint32_t i = 0; n->kind == RULES_CLASS && i < n->n; i += 2) characters += r->ints[n->at + i + 1] - r->ints[n->at + i] + 1;
  return characters > 1000;
}

/* Is what comes behind this child what comes behind the node? */
static bool at_end(const struct rules_node *n, int i) {
  if (n->kind == RULES_SEQ) return i + 1 == (int)n->n;
  return n->kind != RULES_REPEAT || n->c == 1;
}

/* Depth first from the root: uses, order, and cycles (Tarjan's: a cycle is complete when its oldest node is left). */
static int search(struct builder *b) {
  struct frame {
    int32_t node, next;
  } *stack = xmalloc(((size_t)b->r->n_nodes + 1) * sizeof *stack);
  int32_t *waiting = xmalloc(((size_t)b->r->n_nodes + 1) * sizeof *waiting);
  int depth = 0, n_waiting = 0, result = 0, met = 0;
  for (int32_t next = b->r->root; !result;) {
    if (next >= 0) {
      struct about *a = &b->about[next];
      a->order = a->low = ++met;
      a->open = a->waiting = true;
      waiting[n_waiting++] = next;
      stack[depth++] = (struct frame){next, 0};
      next = -1;
    }
    struct frame *f = &stack[depth - 1];
    const struct rules_node *n = &b->r->nodes[f->node];
    struct about *a = &b->about[f->node];
    if (n->kind == RULES_RULE && n->a < 0) {
      result = rule_undefined(b, n);
    } else if (f->next < n_children(n)) {
      int c = child(b->r, n, f->next);
      struct about *ac = &b->about[c];
      if (ac->uses < UINT32_MAX) ac->uses++;
      ac->inner_use |= !at_end(n, f->next++);
      ac->met_again |= ac->open;
      if (!ac->order) next = c;
      else if (ac->waiting) a->low = MIN(a->low, ac->order);
    } else {
      a->open = false;
      b->order[b->n_order++] = f->node;
      if (a->low == a->order) {
        int32_t member;
        do {
          member = waiting[--n_waiting];
          b->about[member].waiting = false;
          b->about[member].cycle = b->n_cycles;
        } while (member != f->node);
        b->n_cycles++;
      }
      if (--depth == 0) break;
      struct about *above = &b->about[stack[depth - 1].node];
      above->low = MIN(above->low, a->low);
    }
  }
  free(stack);
  free(waiting);
  return result;
}

/* The same rules, but those that do not lead back to themselves are what they stand for: so what is equal is one node. */
static struct grammar_rules *tidy(const struct builder *b) {
  const struct grammar_rules *r = b->r;
  struct grammar_rules *to = grammar_rules_new();
  int *map = xmalloc((size_t)r->n_nodes * sizeof *map);
  int32_t *cycle_size = xcalloc((size_t)b->n_cycles + 1, sizeof *cycle_size);
  memset(map, 0xff, (size_t)r->n_nodes * sizeof *map);
  for (int32_t i = 0; i < b->n_order; i++) cycle_size[b->about[b->order[i]].cycle]++;
  for (int32_t i = 0; i < b->n_order; i++) { /* what is met on the way to itself is referred to */
    const struct rules_node *n = &r->nodes[b->order[i]];
    const struct about *a = &b->about[b->order[i]];
    if (!a->met_again && !(n->kind == RULES_RULE && cycle_size[a->cycle] > 1)) continue;
    char name[256] = "";
    if (n->kind == RULES_RULE) memcpy(name, r->bytes + n->at, n->n);
    map[b->order[i]] = rules_declare(to, name);
  }
  for (int32_t i = 0; i < b->n_order; i++) {
    const struct rules_node *n = &r->nodes[b->order[i]];
    int n_kids = n_children(n), *kids = xmalloc(((size_t)n_kids + 1) * sizeof *kids), made = 0;
    for (int k = 0; k < n_kids; k++) kids[k] = map[child(r, n, k)];
    switch (n->kind) {
    case RULES_EMPTY: made = rules_empty(to); break;
    case RULES_NEVER: made = rules_never(to); break;
    case RULES_TEXT: made = rules_text_n(to, r->bytes + n->at, n->n); break;
    case RULES_CLASS: made = rules_class(to, (const struct rules_range *)(const void *)(r->ints + n->at), (int)n->n / 2, false); break;
    case RULES_SEQ: made = rules_seq(to, kids, n_kids); break;
    case RULES_ALT: made = rules_alt(to, kids, n_kids); break;
    case RULES_REPEAT: made = rules_repeat(to, kids[0], n->b, n->c); break;
    case RULES_TOKEN: made = rules_token(to, n->a); break;
    case RULES_OTHER: made = rules_other_tokens(to, r->ints + n->at, (int)n->n); break;
    case RULES_RULE: made = kids[0]; break;
    }
    if (map[b->order[i]] >= 0) rules_define(to, map[b->order[i]], made);
    else map[b->order[i]] = made;
    free(kids);
  }
  rules_root(to, map[r->root]);
  free(map);
  free(cycle_size);
  return to;
}

/* A cycle that is gone round from the ends of its nodes only is a loop; in others the rules that lead back are called. */
static void choose_called(struct builder *b) {
  b->cycle_regular = xmalloc((size_t)b->n_cycles + 1);
  memset(b->cycle_regular, true, (size_t)b->n_cycles);
  for (int32_t i = 0; i < b->n_order; i++) {
    const struct rules_node *n = &b->r->nodes[b->order[i]];
    int32_t cycle = b->about[b->order[i]].cycle;
    for (int k = 0; k < n_children(n); k++)
      if (b->about[child(b->r, n, k)].cycle == cycle && !at_end(n, k)) b->cycle_regular[cycle] = false;
  }
  for (int32_t i = 0; i < b->n_order; i++) {
    struct about *a = &b->about[b->order[i]];
    if (a->met_again && !b->cycle_regular[a->cycle]) a->part = IS_PART;
  }
}

static void size_node(struct builder *b, int id) {
  const struct rules_node *n = &b->r->nodes[id];
  struct about *a = &b->about[id];
  uint64_t size = n->kind == RULES_TEXT ? n->n : n->kind == RULES_CLASS ? class_size(b->r, n) : 1;
  bool may_stop = false, goes_round = false;
  a->wide = class_is_wide(b->r, n);
  for (int i = 0; i < n_children(n); i++) {
    int c = child(b->r, n, i);
    const struct about *ac = &b->about[c];
    bool called = ac->part != NO_PART;
    size += called ? 1 : b->shares_ends && at_end(n, i) ? (ac->size + ac->uses - 1) / ac->uses : ac->size;
    goes_round |= !called && ac->cycle == a->cycle;
    a->unbounded |= called || ac->unbounded;
    a->wide |= !called && ac->wide;
    a->open_end |= at_end(n, i) && !called && ac->open_end;
    may_stop |= n->kind == RULES_ALT && b->r->nodes[c].kind == RULES_EMPTY;
  }
  if (n->kind == RULES_REPEAT) {
    uint64_t written = repeat_copies(n) * size;
    bool many = n->c < 0 || n->c >= 16;
    a->unbounded |= many;
    a->open_end |= many && a->wide;
    if (repeat_copies(n) > 1 && (written > SIZE_COUNTED || repeat_copies(n) > COPIES_MAX)) {
      struct about *body = &b->about[n->a];
      if (body->part == NO_PART) body->part = IS_PART;
      a->counted = true;
      written = 1;
    }
    size = written + 1;
  }
  a->unbounded |= goes_round;
  a->open_end |= a->wide && (goes_round || (may_stop && a->unbounded));
  a->size = (uint32_t)MIN(size, UINT32_MAX / 2);
  if (a->uses < 2 || a->part != NO_PART) return;
  bool large = size > SIZE_LARGE && (a->inner_use || !b->shares_ends);
  if (large || (a->unbounded && !a->open_end && size > SIZE_SHARED)) a->part = IS_PART;
}

/* --- states ------------------------------------------------------------------------------------------------------------------------------- */

static int32_t state_new(struct builder *b) {
  struct grammar_net *net = b->net;
  if (net->n_states >= GRAMMAR_NODES_MAX) {
    b->too_large = true;
    return 0;
  }
  GROW(net->states, net->n_states, net->cap_states);
  net->states[net->n_states] = (struct net_state){.kind = NET_SPLIT, .need = NET_NEVER};
  return net->n_states++;
}

static void out_push(struct builder *b, int32_t from, int32_t to) {
  struct grammar_net *net = b->net;
  struct net_state *s = &net->states[from];
  if (net->n_outs >= 2 * GRAMMAR_NODES_MAX) {
    b->too_large = true;
    return;
  }
  GROW(net->outs, net->n_outs, net->cap_outs);
  if (!s->arg) s->to = net->n_outs;
  DCHECK(s->to + s->arg == net->n_outs); /* the outs of one state are pushed without others between them */
  net->outs[net->n_outs++] = to;
  s->arg++;
}

static void work_push(struct builder *b, int32_t node, int32_t from, int32_t to) {
  GROW(b->work, b->n_work, b->cap_work);
  b->work[b->n_work++] = (struct work){node, from, to};
}

static int32_t part_of(struct builder *b, int32_t node) {
  if (b->about[node].part >= 0) return b->about[node].part;
  struct grammar_net *net = b->net;
  int32_t start = state_new(b), accept = state_new(b);
  if (b->too_large) return 0;
  net->states[accept].kind = NET_ACCEPT;
  GROW(net->parts, net->n_parts, net->cap_parts);
  net->parts[net->n_parts] = (struct net_part){.start = start, .accept = accept, .need = NET_NEVER, .node = node};
  return b->about[node].part = net->n_parts++;
}

/* The state from which this node is matched up to this state, if it has been begun before; else -1, and it begins at w.from. */
static int32_t begun_before(struct builder *b, struct work w) {
  if (2 * (b->n_begun + 1) > b->cap_begun) {
    struct work *old = b->begun;
    uint32_t n_old = b->cap_begun;
    b->cap_begun = n_old ? 2 * n_old : 256;
    b->begun = xmalloc(b->cap_begun * sizeof *b->begun);
    for (uint32_t i = 0; i < b->cap_begun; i++) b->begun[i].node = -1;
    b->n_begun = 0;
    for (uint32_t i = 0; i < n_old; i++)
      if (old[i].node >= 0) begun_before(b, old[i]);
    free(old);
  }
  uint32_t slot = (uint32_t)((uint64_t)(uint32_t)w.node * 0x9E3779B97F4A7C15u >> 32) ^ (uint32_t)w.to * 2654435761u;
  for (slot &= b->cap_begun - 1; b->begun[slot].node >= 0; slot = (slot + 1) & (b->cap_begun - 1))
    if (b->begun[slot].node == w.node && b->begun[slot].to == w.to) return b->begun[slot].from;
  b->begun[slot] = w;
  b->n_begun++;
  return -1;
}

/* --- characters as bytes -------------------------------------------------------------------------------------------------------------------- */

struct byte_range {
  unsigned char lo, hi;
};
enum { ENDS_KEPT = 256 };
struct class_work {
  int32_t to;
  int32_t *firsts; /* states that begin a character */
  int n_firsts, cap_firsts;
  int32_t ends[ENDS_KEPT]; /* states made for this class, found by their contents: shared tails */
};

static int32_t byte_state(struct builder *b, struct class_work *w, struct byte_range range, int32_t to) {
  uint32_t slot = (((uint32_t)range.lo * 31 + range.hi) * 31 + (uint32_t)to) * 2654435761u >> 24;
  struct net_state *s = w->ends[slot] >= 0 ? &b->net->states[w->ends[slot]] : NULL;
  if (s && s->lo == range.lo && s->hi == range.hi && s->to == to) return w->ends[slot];
  int32_t id = state_new(b);
  if (b->too_large) return 0;
  b->net->states[id] = (struct net_state){.kind = NET_BYTE, .lo = range.lo, .hi = range.hi, .to = to, .need = NET_NEVER};
  return w->ends[slot] = id;
}

static void class_bytes(struct builder *b, struct class_work *w, const struct byte_range *bytes, int n) {
  int32_t to = w->to;
  for (int i = n - 1; i >= 0; i--) to = byte_state(b, w, bytes[i], to);
  GROW(w->firsts, w->n_firsts, w->cap_firsts);
  w->firsts[w->n_firsts++] = to;
}

/* Characters lo..hi of one length: cut until all bytes but those behind the first differing one run over their whole range. */
static void class_range(struct builder *b, struct class_work *w, uint32_t lo, uint32_t hi) {
  static const uint32_t last_of_length[] = {0x7F, 0x7FF, 0xFFFF};
  for (size_t i = 0; i < ARRAY_LEN(last_of_length); i++)
    if (lo <= last_of_length[i] && hi > last_of_length[i]) {
      class_range(b, w, lo, last_of_length[i]);
      class_range(b, w, last_of_length[i] + 1, hi);
      return;
    }
  char a[4], z[4];
  int n = utf8_put(lo, a);
  for (int i = 1; i < n; i++) {
    uint32_t tail = (1u << 6 * i) - 1;
    if ((lo & ~tail) == (hi & ~tail)) break;
    if (lo & tail) {
      class_range(b, w, lo, lo | tail);
      class_range(b, w, (lo | tail) + 1, hi);
      return;
    }
    if ((hi & tail) != tail) {
      class_range(b, w, lo, (hi & ~tail) - 1);
      class_range(b, w, hi & ~tail, hi);
      return;
    }
  }
  utf8_put(hi, z);
  struct byte_range bytes[4];
  for (int i = 0; i < n; i++) bytes[i] = (struct byte_range){(unsigned char)a[i], (unsigned char)z[i]};
  class_bytes(b, w, bytes, n);
}

static void fill_class(struct builder *b, const struct rules_node *n, int32_t from, int32_t to) {
  struct class_work w = {.to = to};
  memset(w.ends, 0xff, sizeof w.ends);
  for (uint32_t i = 0; i < n->n && !b->too_large; i += 2)
    class_range(b, &w, (uint32_t)b->r->ints[n->at + i], (uint32_t)b->r->ints[n->at + i + 1]);
  for (int i = 0; i < w.n_firsts; i++) out_push(b, from, w.firsts[i]);
  free(w.firsts);
}

static void fill_text(struct builder *b, const struct rules_node *n, int32_t from, int32_t to) {
  for (uint32_t i = 0; i < n->n && !b->too_large; i++) {
    unsigned char byte = (unsigned char)b->r->bytes[n->at + i];
    int32_t next = i + 1 < n->n ? state_new(b) : to;
    b->net->states[from] = (struct net_state){.kind = NET_BYTE, .lo = byte, .hi = byte, .to = next, .need = NET_NEVER};
    from = next;
  }
}

/* --- the other nodes ------------------------------------------------------------------------------------------------------------------------ */

static void fill_seq(struct builder *b, const int32_t *nodes, uint32_t n, int32_t from, int32_t to) {
  for (uint32_t i = 0; i < n && !b->too_large; i++) {
    int32_t next = i + 1 < n ? state_new(b) : to;
    work_push(b, nodes[i], from, next);
    from = next;
  }
}

static void fill_alt(struct builder *b, const int32_t *nodes, uint32_t n, int32_t from, int32_t to) {
  for (uint32_t i = 0; i < n && !b->too_large; i++) {
    int32_t begin = state_new(b);
    out_push(b, from, begin);
    work_push(b, nodes[i], begin, to);
  }
}

static void fill_counted(struct builder *b, const struct rules_node *n, int32_t from, int32_t to) {
  struct grammar_net *net = b->net;
  int32_t part = part_of(b, n->a);
  if (b->too_large) return;
  GROW(net->loops, net->n_loops, net->cap_loops);
  net->loops[net->n_loops] = (struct net_loop){part, n->b, n->c};
  net->states[from] = (struct net_state){.kind = NET_LOOP, .to = to, .arg = net->n_loops++, .need = NET_NEVER};
}

/* Written out: min copies one after the other, then as many that may be left out, or one that is gone through again and again. */
static void fill_copies(struct builder *b, const struct rules_node *n, int32_t from, int32_t to) {
  int copies = (int)repeat_copies(n);
  for (int i = 0; i < copies && !b->too_large; i++) {
    bool last = i + 1 == copies, again = last && n->c < 0;
    int32_t begin = from, end = last && !again ? to : state_new(b);
    if (i >= n->b) { /* may be left out */
      begin = state_new(b);
      if (b->too_large) return;
      out_push(b, from, begin);
      out_push(b, from, to);
    }
    if (again && i < n->b) { /* the last one that must be there */
      begin = state_new(b);
      if (b->too_large) return;
      out_push(b, from, begin);
    }
    if (b->too_large) return;
    work_push(b, n->a, begin, end);
    if (again) {
      out_push(b, end, begin);
      out_push(b, end, to);
    }
    from = end;
  }
}

static void fill_other(struct builder *b, const struct rules_node *n, int32_t from, int32_t to) {
  struct grammar_net *net = b->net;
  const int32_t *except = b->r->ints + n->at;
  int32_t k = 0;
  while (k < net->n_others && (net->others[k].n != n->n || (n->n && memcmp(net->others[k].except, except, n->n * sizeof *except)))) k++;
  if (k == net->n_others) {
    GROW(net->others, net->n_others, net->cap_others);
    struct net_other *o = &net->others[net->n_others++];
    *o = (struct net_other){.n = n->n};
    o->except = xmalloc(((size_t)n->n + 1) * sizeof *o->except);
    o->bits = xmalloc((b->v->n_words + 1) * sizeof *o->bits);
    if (n->n) memcpy(o->except, except, n->n * sizeof *except);
    memcpy(o->bits, b->v->any_token, b->v->n_words * sizeof *o->bits);
    for (uint32_t i = 0; i < n->n; i++)
      if (except[i] >= 0 && except[i] < b->v->n_tokens) mask_clear(o->bits, except[i]);
  }
  net->states[from] = (struct net_state){.kind = NET_OTHER, .to = to, .arg = k, .need = NET_NEVER};
}

static void fill(struct builder *b, int32_t node, int32_t from, int32_t to) {
  const struct rules_node *n = &b->r->nodes[node];
  switch (n->kind) {
  case RULES_NEVER: break; /* a split without outs */
  case RULES_EMPTY: out_push(b, from, to); break;
  case RULES_TEXT: fill_text(b, n, from, to); break;
  case RULES_CLASS: fill_class(b, n, from, to); break;
  case RULES_SEQ: fill_seq(b, b->r->ints + n->at, n->n, from, to); break;
  case RULES_ALT: fill_alt(b, b->r->ints + n->at, n->n, from, to); break;
  case RULES_REPEAT:
    if (b->about[node].counted) fill_counted(b, n, from, to);
    else fill_copies(b, n, from, to);
    break;
  case RULES_TOKEN: b->net->states[from] = (struct net_state){.kind = NET_TOKEN, .to = to, .arg = n->a, .need = NET_NEVER}; break;
  case RULES_OTHER: fill_other(b, n, from, to); break;
  case RULES_RULE: work_push(b, n->a, from, to); break;
  }
}

static void do_work(struct builder *b, struct work w) {
  const struct about *a = &b->about[w.node];
  if (a->part != NO_PART) {
    int32_t callee = part_of(b, w.node);
    b->net->states[w.from] = (struct net_state){.kind = NET_CALL, .to = w.to, .arg = callee, .need = NET_NEVER};
    return;
  }
  int32_t begun = a->uses > 1 ? begun_before(b, w) : -1;
  if (begun >= 0) out_push(b, w.from, begun);
  else fill(b, w.node, w.from, w.to);
}

/* One part after the other; filling one may find further ones. */
static void fill_parts(struct builder *b) {
  struct grammar_net *net = b->net;
  part_of(b, b->r->root);
  for (int p = 0; p < net->n_parts && !b->too_large; p++) {
    fill(b, net->parts[p].node, net->parts[p].start, net->parts[p].accept);
    while (b->n_work && !b->too_large) do_work(b, b->work[--b->n_work]);
  }
}

static int builder_init(struct builder *b, const struct grammar_rules *r, struct err *e) {
  *b = (struct builder){.r = r, .e = e};
  b->about = xcalloc((size_t)r->n_nodes, sizeof *b->about);
  b->order = xmalloc((size_t)r->n_nodes * sizeof *b->order);
  for (int i = 0; i < r->n_nodes; i++) b->about[i].part = NO_PART;
  b->about[r->root].uses = 1;
  return search(b);
}

static void builder_free(struct builder *b) {
  free(b->about);
  free(b->order);
  free(b->cycle_regular);
  free(b->work);
  free(b->begun);
}

/* False: too large. */
static bool build(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, bool shares_ends) {
  struct builder b;
  *net = (struct grammar_net){0};
  int result = builder_init(&b, r, NULL);
  CHECK(result == 0); /* all rules are defined: tidy has seen them */
  b.net = net;
  b.v = v;
  b.shares_ends = shares_ends;
  choose_called(&b);
  for (int32_t i = 0; i < b.n_order; i++) size_node(&b, b.order[i]);
  fill_parts(&b);
  bool fits = !b.too_large;
  builder_free(&b);
  return fits;
}

int grammar_net_init(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, struct err *e) {
  struct builder b;
  *net = (struct grammar_net){0};
  if (rules_error(r, e)) return -1;
  if (r->root < 0) return err_set(e, ERR_BAD_INPUT, "the grammar has no root");
  struct grammar_rules *tidied = builder_init(&b, r, e) ? NULL : tidy(&b);
  builder_free(&b);
  if (!tidied) return -1;
  bool fits = build(net, v, tidied, true);
  if (!fits) { /* ends were not shared as often as hoped: call more, write out less */
    grammar_net_free(net);
    fits = build(net, v, tidied, false);
  }
  int result = fits ? grammar_reach(net, v, tidied, e)
                    : err_set(e, ERR_BAD_INPUT, "the grammar is too large: it needs more than %d states", GRAMMAR_NODES_MAX);
  grammar_rules_delete(tidied);
  return result;
}

void grammar_net_free(struct grammar_net *net) {
  for (int i = 0; i < net->n_others; i++) {
    free(net->others[i].except);
    free(net->others[i].bits);
  }
  free(net->states);
  free(net->outs);
  free(net->parts);
  free(net->loops);
  free(net->others);
  *net = (struct grammar_net){0};
}
