/* grammar_impl.h — between the files of the grammar: the nodes that were written down, the network they become, the pool of states over it.
 *
 *   struct grammar_rules ──grammar_net.c──► struct grammar_net: parts (one per rule that is called), each a small automaton over bytes, tokens and calls
 *                                               │
 *                          grammar_pool.c: sets of its states, stacks, sets of stacks, all numbered, made when they are first met
 *                                               │
 *                          grammar.c: masks over the vocabulary's trie (grammar_vocab.c)
 */
#ifndef CYGNET_GRAMMAR_IMPL_H
#define CYGNET_GRAMMAR_IMPL_H

#include "text/grammar.h"

/* --- grammar_rules.c ------------------------------------------------------------------------------------------------------------------ */

enum rules_kind {
  RULES_EMPTY,
  RULES_NEVER,
  RULES_TEXT,
  RULES_CLASS,
  RULES_SEQ,
  RULES_ALT,
  RULES_REPEAT,
  RULES_TOKEN,
  RULES_OTHER,
  RULES_RULE
};

struct rules_node {
  enum rules_kind kind;
  int a, b, c;    /* REPEAT: node, min, max. TOKEN: id. RULE: its definition or -1 */
  uint32_t at, n; /* TEXT, RULE (its name): bytes[at..]. SEQ, ALT: n nodes in ints[at..]. CLASS: n/2 sorted ranges. OTHER: n sorted ids */
  uint32_t hash;
};

struct grammar_rules {
  struct rules_node *nodes;
  int n_nodes, cap_nodes;
  int32_t *ints;
  uint32_t n_ints, cap_ints;
  char *bytes;
  uint32_t n_bytes, cap_bytes;
  int32_t *slots; /* open addressing over nodes; -1 = free */
  int n_slots;
  int root; /* -1 = none */
  struct err error;
};

/* --- grammar_vocab.c ------------------------------------------------------------------------------------------------------------------ */

/* All ordinary pieces as a trie in depth-first order: the children of node i lie in (i, end), each with its own subtree behind it. */
struct vocab_node {
  uint32_t end;   /* first node behind this subtree */
  uint32_t token; /* whose bytes end here, or no_token: a bit behind the mask, so that walks need not ask */
  uint16_t depth; /* bytes from the root, this node's included */
  unsigned char byte;
  bool more; /* tokens with the same bytes: follow same[] */
};

struct grammar_vocab {
  const struct tokenizer *tokenizer;
  int n_tokens;
  size_t n_words; /* of a mask; walks need one more */
  uint32_t no_token;
  struct vocab_node *nodes;
  uint32_t n_nodes;
  bool *in_trie;       /* [n_tokens] */
  int32_t *same;       /* [n_tokens] next token with the same bytes, or -1 */
  uint32_t *any_token; /* mask: all tokens but the ends of generation */
  uint32_t longest;    /* bytes of the longest piece in the trie */
  bool has_byte[256];  /* there is a piece of this byte alone */
};

static inline bool mask_bit(const uint32_t *bits, int32_t id) { return bits[id >> 5] >> (id & 31) & 1; }
static inline void mask_set(uint32_t *bits, int32_t id) { bits[id >> 5] |= 1u << (id & 31); }
static inline void mask_clear(uint32_t *bits, int32_t id) { bits[id >> 5] &= ~(1u << (id & 31)); }
bool grammar_vocab_is_eog(const struct grammar_vocab *v, int32_t id);

/* --- grammar_net.c -------------------------------------------------------------------------------------------------------------------- */

enum net_kind { NET_SPLIT, NET_BYTE, NET_CALL, NET_LOOP, NET_TOKEN, NET_OTHER, NET_ACCEPT };
enum { NET_NEVER = UINT16_MAX };

struct net_state {
  unsigned char kind;   /* enum net_kind */
  unsigned char lo, hi; /* BYTE */
  bool skips;           /* CALL, LOOP: what is called may be empty: to is reached at once, too */
  int32_t to;           /* SPLIT: first of n in outs */
  int32_t arg;          /* SPLIT: n. CALL: part. LOOP: index in loops. TOKEN: id. OTHER: index in others */
  uint16_t need;        /* frames that must still fit on the stack to come from here to the part's end; NET_NEVER: there is no way */
};

/* A part is called with a return address and then matches something that is not empty; that it may be empty is said by `skips` where it is called. */
struct net_part {
  int32_t start, accept; /* states */
  uint16_t need;         /* frames for something not empty */
  bool empty;            /* may be empty */
  int32_t node;          /* in the rules, for messages */
};
struct net_loop { /* part, from min to max times; max -1 = without end */
  int32_t part, min, max;
};
struct net_other {
  int32_t *except; /* owned, sorted */
  uint32_t n;
  uint32_t *bits; /* owned; mask of what it allows */
};

struct grammar_net {
  struct net_state *states;
  int n_states, cap_states;
  int32_t *outs;
  int n_outs, cap_outs;
  struct net_part *parts; /* 0 is the root */
  int n_parts, cap_parts;
  struct net_loop *loops;
  int n_loops, cap_loops;
  struct net_other *others;
  int n_others, cap_others;
  unsigned char class_of[256]; /* bytes that no edge tells apart */
  unsigned char first_of[256]; /* a byte of each class */
  int n_classes;
};

int grammar_net_init(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, struct err *e);
void grammar_net_free(struct grammar_net *net); /* fine on a zeroed one */
/* grammar_reach.c: what may be empty, what can be finished and in which depth, left recursion, bytes without a token, classes of bytes. */
int grammar_reach(struct grammar_net *net, const struct grammar_vocab *v, const struct grammar_rules *r, struct err *e);

/* --- grammar.c ----------------------------------------------------------------------------------------------------------------------------- */

size_t grammar_bytes(struct grammar *g); /* what it holds now */
/* Other limits than the header's; tests take small ones. Results never depend on them. */
void grammar_limit(struct grammar *g, size_t pool_bytes, size_t mask_bytes, uint32_t exits);
void grammar_limit_work(struct grammar *g,
                        uint64_t work);   /* instead of GRAMMAR_WORK_MAX; what gives up depends on it, what is answered does not */
uint64_t grammar_work(struct grammar *g); /* of the last call that had to work */

/* --- grammar_pool.c -------------------------------------------------------------------------------------------------------------------- */

/* All that is met while matching, each thing once and known by its number:
 *
 *   local   a set of the network's states of one part: where a match stands within the part. 0 = none
 *   frame   a local, or a counter of a repetition, on top of another frame: a stack, known by its top
 *   state   a set of stacks: where a match stands. 0 = dead: no way leads on
 *
 * Below every stack lies FRAME_END (leaving it ends the match) or FRAME_ANY (leaving it leaves what is known: masks of a part without its callers).
 * Equal states are equal numbers, so steps by a byte are looked up after the first time. Numbers are good until the pool is deleted.
 *
 * Work is counted: a step for each stack, frame and state of the network that is looked at. Beyond work_max, and with more than GRAMMAR_STACKS_MAX
 * stacks, gave_up is set: what is returned from then on means nothing, and nothing of it is looked up later. pool_allow begins anew. */
enum { LOCAL_NONE = 0, FRAME_END = 0, FRAME_ANY = 1, STATE_DEAD = 0 };
enum { STATE_ACCEPTS = 1, STATE_LEAVES = 2 }; /* FRAME_END, FRAME_ANY was left */
#define POOL_UNKNOWN UINT32_MAX
#define POOL_LEAVES  0x80000000u /* in a row: the state has STATE_LEAVES */

struct pool_local {
  uint32_t set, n_set; /* ints[set..]: sorted states of the network */
  uint32_t calls,
      n_calls; /* ints[calls..]: what is called (part, or -1 - loop) and the local behind it; POOL_UNKNOWN = not worked out yet */
  uint16_t need;
  bool accepts, has_edges, has_tokens;
};
struct pool_frame {
  uint32_t local; /* or part | FRAME_COUNTS */
  uint32_t parent;
  int32_t min,
      max; /* of a counter: repetitions that must, that may still be completed, this one included: min >= 1; max -1 = without end */
  uint32_t mark;
  uint32_t clamped;     /* the same stack with counters as far as one token can tell them apart, or POOL_UNKNOWN */
  uint32_t apart, rest; /* apart on top of rest is this stack, apart standing on FRAME_ANY; or POOL_UNKNOWN */
  uint32_t copied;      /* its number in the pool that this one is copied into, or POOL_UNKNOWN */
  uint32_t depth;
};
#define FRAME_COUNTS 0x80000000u

struct mask;
struct pool_state {
  uint32_t tops, n_tops; /* ints[tops..]: sorted frames with edges */
  uint32_t clamped;      /* state, or POOL_UNKNOWN */
  unsigned flags;
  struct mask *mask; /* grammar.c's, NULL = not worked out */
};

struct pool_table { /* open addressing over numbers */
  uint32_t *slots;
  uint32_t n_slots;
};
struct pool_list { /* growable */
  uint32_t *v;
  uint32_t n, cap;
};

struct pool {
  const struct grammar_net *net;
  uint32_t horizon; /* bytes of the longest token */
  struct pool_local *locals;
  struct pool_frame *frames;
  struct pool_state *states;
  uint32_t n_locals, cap_locals, n_frames, cap_frames, n_states, cap_states;
  struct pool_table local_table, frame_table, state_table;
  struct pool_list ints;
  uint32_t *local_rows; /* [locals, classes] local or POOL_UNKNOWN */
  uint32_t *rows;       /* [states, classes] state | POOL_LEAVES or POOL_UNKNOWN */
  uint32_t *starts;     /* [parts] local or POOL_UNKNOWN */
  uint32_t *net_mark, net_epoch, frame_epoch;
  struct pool_list set, work, pending, tops; /* being put together */
  unsigned flags;
  uint64_t work_done, work_max;
  bool gave_up;
};

static inline void pool_allow(struct pool *p, uint64_t work) {
  p->work_done = 0;
  p->work_max = work;
  p->gave_up = false;
}
/* False: it is too much. */
static inline bool pool_spend(struct pool *p, uint64_t work) {
  p->work_done += work;
  p->gave_up |= p->work_done > p->work_max;
  return !p->gave_up;
}

struct pool *pool_new(const struct grammar_net *net, uint32_t horizon); /* net borrowed; owned */
void pool_delete(struct pool *p);                                       /* masks must be gone */
size_t pool_bytes(const struct pool *p);

uint32_t pool_start(struct pool *p);
uint32_t pool_step_class(struct pool *p, uint32_t state, unsigned class); /* not known yet: works it out and enters it into rows */
static inline uint32_t pool_step(struct pool *p, uint32_t state, unsigned char byte) {
  unsigned class = p->net->class_of[byte];
  uint32_t to = p->rows[(size_t)state * (size_t)p->net->n_classes + class];
  return (to == POOL_UNKNOWN ? pool_step_class(p, state, class) : to) & ~POOL_LEAVES;
}
uint32_t pool_step_token(struct pool *p, uint32_t state, int32_t id); /* by token edges */
uint32_t pool_union(struct pool *p, uint32_t a, uint32_t b);
uint32_t pool_clamp(struct pool *p, uint32_t state);
uint32_t pool_leave(struct pool *p, uint32_t frame); /* what was on top of this frame is through */
/* The stacks of a state, cut where their parts have been called from: apart[i] on top of rest[i]. Their number, or -1: more than max, or so deep that the
 * bound of depth is near. */
int pool_cut(struct pool *p, uint32_t state, uint32_t *apart, uint32_t *rest, int max);
/* The one byte that all stacks go on with; -1: several, or none, or a token may come. */
int pool_only_byte(struct pool *p, uint32_t state);
/* The one token that token edges go on with; -1: none or several. */
int32_t pool_only_token(const struct pool *p, uint32_t state);
void pool_add_tokens(struct pool *p, uint32_t state, uint32_t *bits, size_t n_words, int n_tokens);
uint32_t pool_copy(struct pool *to, struct pool *from, uint32_t state); /* to the same pool each time */

#endif
