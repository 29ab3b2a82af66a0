/* grammar_net.c — rules to a network of small automata ("parts") that call each other.
 *
 * What becomes a part of its own: rules that lead back to themselves; bodies of repetitions that are counted rather than written out; and what
 * is used in several places and either goes on without bound (a string's inside: masks are shared by all its places) or is large. All the rest is
 * written out where it is used. So the network is never much larger than the rules, and stacks are as deep as the recursion of what is matched.
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

struct builder {
  struct grammar_net *net;
  const struct grammar_vocab *v;
  const struct grammar_rules *r;
  struct err *e;
  int32_t *part_of; /* [nodes] a part's number, IS_PART before it has one, or NO_PART */
  uint32_t *uses, *size;
  unsigned char *seen; /* enum seen */
  bool *unbounded, *counted;
  struct work *work;
  int n_work, cap_work;
  bool too_large;
};
enum { NO_PART = -1, IS_PART = -2 };
enum seen { SEEN_NOT, SEEN_OPEN, SEEN_DONE };

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
  return err_set(b->e, ERR_BAD_INPUT, "rule \"%s\" is used but not defined", str_escape(str_of(b->r->bytes + n->at, n->n), name, sizeof name));
}

/* How many copies of the body stand there when the repetition is written out. */
static uint32_t repeat_copies(const struct rules_node *n) { return (uint32_t)(n->c >= 0 ? n->c : MAX(n->b, 1)); }

static uint32_t class_size(const struct grammar_rules *r, const struct rules_node *n) {
  uint32_t size = 1;
  for (uint32_t i = 0; i < n->n; i += 2) size += r->ints[n->at + i + 1] < 0x80 ? 1 : 3;
  return size;
}

/* All children have sizes, those on the way back to an open rule excepted, which is a part. */
static void size_node(struct builder *b, int id) {
  const struct rules_node *n = &b->r->nodes[id];
  uint64_t size = 1;
  bool unbounded = false;
  if (n->kind == RULES_TEXT) size = n->n;
  else if (n->kind == RULES_CLASS) size = class_size(b->r, n);
  for (int i = 0; i < n_children(n); i++) {
    int c = child(b->r, n, i);
    size += b->part_of[c] == NO_PART ? b->size[c] : 1;
    unbounded |= b->part_of[c] != NO_PART || b->unbounded[c];
  }
  if (n->kind == RULES_REPEAT) {
    uint64_t written = repeat_copies(n) * size;
    unbounded |= n->c < 0 || n->c >= 16;
    if (repeat_copies(n) > 1 && (written > SIZE_COUNTED || repeat_copies(n) > COPIES_MAX)) {
      b->part_of[n->a] = b->part_of[n->a] == NO_PART ? IS_PART : b->part_of[n->a];
      b->counted[id] = true;
      size = 2;
    } else {
      size = written + 1;
    }
  }
  b->size[id] = (uint32_t)MIN(size, UINT32_MAX);
  b->unbounded[id] = unbounded;
  if (b->uses[id] > 1 && b->part_of[id] == NO_PART && ((unbounded && size > SIZE_SHARED) || size > SIZE_LARGE)) b->part_of[id] = IS_PART;
}

/* Depth first from the root, children before parents; a rule that is met while it is open leads back to itself. */
static int choose_parts(struct builder *b) {
  struct frame {
    int32_t node, next;
  } *stack = xmalloc(((size_t)b->r->n_nodes + 1) * sizeof *stack);
  int depth = 0, result = 0;
  stack[depth++] = (struct frame){b->r->root, 0};
  b->seen[b->r->root] = SEEN_OPEN;
  b->uses[b->r->root] = 1;
  while (depth && !result) {
    struct frame *f = &stack[depth - 1];
    const struct rules_node *n = &b->r->nodes[f->node];
    if (n->kind == RULES_RULE && n->a < 0) {
      result = rule_undefined(b, n);
    } else if (f->next < n_children(n)) {
      int c = child(b->r, n, f->next++);
      if (b->uses[c] < UINT32_MAX) b->uses[c]++;
      if (b->seen[c] == SEEN_OPEN) b->part_of[c] = IS_PART;
      if (b->seen[c] != SEEN_NOT) continue;
      b->seen[c] = SEEN_OPEN;
      stack[depth++] = (struct frame){c, 0};
    } else {
      b->seen[f->node] = SEEN_DONE;
      depth--;
    }
  }
  free(stack);
  return result;
}

/* Sizes want the uses of all parents known: a second pass in the same order. */
static void size_nodes(struct builder *b) {
  struct frame {
    int32_t node, next;
  } *stack = xmalloc(((size_t)b->r->n_nodes + 1) * sizeof *stack);
  int depth = 0;
  memset(b->seen, SEEN_NOT, (size_t)b->r->n_nodes);
  stack[depth++] = (struct frame){b->r->root, 0};
  b->seen[b->r->root] = SEEN_OPEN;
  while (depth) {
    struct frame *f = &stack[depth - 1];
    const struct rules_node *n = &b->r->nodes[f->node];
    if (f->next < n_children(n)) {
      int c = child(b->r, n, f->next++);
      if (b->seen[c] != SEEN_NOT) continue;
      b->seen[c] = SEEN_OPEN;
      stack[depth++] = (struct frame){c, 0};
    } else {
      size_node(b, f->node);
      depth--;
    }
  }
  free(stack);
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
  if (b->part_of[node] >= 0) return b->part_of[node];
  struct grammar_net *net = b->net;
  int32_t start = state_new(b), accept = state_new(b);
  if (b->too_large) return 0;
  net->states[accept].kind = NET_ACCEPT;
  GROW(net->parts, net->n_parts, net->cap_parts);
  net->parts[net->n_parts] = (struct net_part){.start = start, .accept = accept, .need = NET_NEVER, .node = node};
  return b->part_of[node] = net->n_parts++;
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
    if (b->counted[node]) fill_counted(b, n, from, to);
    else fill_copies(b, n, from, to);
    break;
  case RULES_TOKEN: b->net->states[from] = (struct net_state){.kind = NET_TOKEN, .to = to, .arg = n->a, .need = NET_NEVER}; break;
  case RULES_OTHER: fill_other(b, n, from, to); break;
  case RULES_RULE: work_push(b, n->a, from, to); break;
  }
}

/* One part after the other; filling one may find further ones. */
static void fill_parts(struct builder *b) {
  struct grammar_net *net = b->net;
  part_of(b, b->r->root);
  for (int p = 0; p < net->n_parts && !b->too_large; p++) {
    fill(b, net->parts[p].node, net->parts[p].start, net->parts[p].accept);
    while (b->n_work && !b->too_large) {
      struct work w = b->work[--b->n_work];
      if (b->part_of[w.node] == NO_PART) {
        fill(b, w.node, w.from, w.to);
        continue;
      }
      int32_t callee = part_of(b, w.node);
      net->states[w.from] = (struct net_state){.kind = NET_CALL, .to = w.to, .arg = callee, .need = NET_NEVER};
    }
  }
}

int grammar_net_init(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, struct err *e) {
  *net = (struct grammar_net){0};
  if (rules_error(r, e)) return -1;
  if (r->root < 0) return err_set(e, ERR_BAD_INPUT, "the grammar has no root");
  struct builder b = {.net = net, .v = v, .r = r, .e = e};
  size_t n = (size_t)r->n_nodes;
  b.part_of = xmalloc(n * sizeof *b.part_of);
  for (size_t i = 0; i < n; i++) b.part_of[i] = NO_PART;
  b.uses = xcalloc(n, sizeof *b.uses);
  b.size = xcalloc(n, sizeof *b.size);
  b.seen = xcalloc(n, sizeof *b.seen);
  b.unbounded = xcalloc(n, sizeof *b.unbounded);
  b.counted = xcalloc(n, sizeof *b.counted);
  int result = choose_parts(&b);
  if (!result) {
    size_nodes(&b);
    fill_parts(&b);
    if (b.too_large) result = err_set(e, ERR_BAD_INPUT, "the grammar is too large: it needs more than %d states", GRAMMAR_NODES_MAX);
  }
  free(b.part_of);
  free(b.uses);
  free(b.size);
  free(b.seen);
  free(b.unbounded);
  free(b.counted);
  free(b.work);
  return result ? result : grammar_reach(net, v, r, e);
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
