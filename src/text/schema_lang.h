/* schema_lang.h — regular languages of strings: what patterns, formats, lengths, bounds of numbers and names of members are to schema.c.
 *
 * A deterministic automaton over code points. State 0 is the start; edges of a state are disjoint and in order; a missing edge means no. All states but
 * the start are useful (something accepted can be reached), so a language is empty when its start neither accepts nor leads on.
 *
 * Rules
 *   1. Every operation is bounded by LANG_STATES_MAX states and gives NULL beyond it; callers say so in a message. Lists of texts may be longer, up to
 *      a million states: they are in memory already.
 *   2. U+0000 and surrogates are in no class; U+0000 is only where a text has it.
 */
#ifndef CYGNET_SCHEMA_LANG_H
#define CYGNET_SCHEMA_LANG_H

#include "base/base.h"
#include "base/str.h"
#include "text/grammar_rules.h"

enum { LANG_STATES_MAX = 1 << 15, LANG_CODE_MAX = 0x10ffff };

struct lang_edge {
  uint32_t lo, hi;
  int to;
};
struct lang_state {
  int first; /* of its edges; they end where the next state's begin */
  bool accept;
};
struct lang {
  struct lang_state *states; /* [n_states + 1] */
  struct lang_edge *edges;
  int n_states, n_edges, cap_states, cap_edges;
};

/* Built state by state: the edges of one before the next begins. */
struct lang *lang_new(void);      /* owned */
void lang_delete(struct lang *l); /* NULL is fine */
int lang_state(struct lang *l, bool accept);
void lang_edge(struct lang *l, uint32_t lo, uint32_t hi, int to); /* of the last state, after those it has */
struct lang *lang_finish(struct lang *l);                         /* drops useless states; takes l, returns owned */

struct lang *lang_texts(struct str *texts, int n);   /* these and no others; sorts them. NULL: too large */
struct lang *lang_lengths(int64_t min, int64_t max); /* in code points; max -1: without end. NULL: too large */
/* What a regular expression matches somewhere in a string (anchors honoured), or as a whole. NULL with e->code: not a regular expression that is known;
 * with ERR_TOO_LARGE: more than LANG_STATES_MAX states. */
struct lang *lang_pattern(struct str pattern, bool whole, struct err *e);
struct lang *lang_both(const struct lang *a, const struct lang *b);    /* in both. NULL: too large */
struct lang *lang_without(const struct lang *a, const struct lang *b); /* in a and not in b. NULL: too large */
bool lang_has(const struct lang *l, struct str text);
static inline bool lang_is_empty(const struct lang *l) { return !l->states[0].accept && l->n_edges == 0; }
/* Code points of its shortest and its longest string; *longest -1: without end. Not of an empty language. */
void lang_extent(const struct lang *l, int64_t *shortest, int64_t *longest);
/* Its strings if they are at most max: owned array of NUL-terminated texts, in pairs with lengths. -1: more, or without end. */
struct lang_text {
  char *p; /* owned */
  size_t n;
};
int lang_list(const struct lang *l, int max, struct lang_text *out); /* out: [max]; returns how many */

/* How characters are written: NULL for as they are; else a node for one character of these ranges. */
typedef int (*lang_class_fn)(void *ctx, const struct rules_range *ranges, int n);
/* A node that matches what l has, characters written by fn. */
int lang_emit(const struct lang *l, struct grammar_rules *g, lang_class_fn fn, void *ctx);

/* uint64 → int, for numbering states and the like. */
struct lang_map {
  uint64_t *keys; /* 0 is no key */
  int *values;
  size_t n, cap;
};
int *lang_map_at(struct lang_map *m, uint64_t key); /* its value, -1 when it is new */
void lang_map_free(struct lang_map *m);

#endif
