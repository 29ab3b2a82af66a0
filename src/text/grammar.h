/* grammar.h — which tokens may come next, so that an answer is what was asked for.
 *
 *   regex.c   gbnf.c   schema.c (JSON schema, tools)
 *        └───────┴────────┘
 *         grammar_rules.h ──grammar_compile──► struct grammar: an automaton over bytes and control tokens, shared by requests
 *                                                    │
 *                    struct grammar_state: where one answer is ──► a mask over the vocabulary, forced bytes, may it end here
 *
 * Rules
 *   1. A token is allowed exactly when its bytes, after those so far, are the beginning of something that matches. Ends of generation (tok_eog) are
 *      allowed exactly when what is there matches as a whole. The slow twin in the tests says so for every token of small vocabularies.
 *   2. There is always something allowed: a state from which nothing can be completed with the vocabulary's tokens is not entered (every byte has a
 *      token in the families served; vocabularies without byte pieces are checked while compiling: ERR_UNSUPPORTED).
 *   3. A grammar is immutable to its users and may be used from many threads; masks that were worked out are kept inside (with a lock), up to
 *      GRAMMAR_CACHE_BYTES per grammar, beyond which the oldest go. Which tokens are allowed never depends on what is in that cache.
 *   4. A state is small and is copied by grammar_state_copy: speculation goes ahead on a copy.
 *   5. Bounds: compiling refuses (ERR_BAD_INPUT, a sentence) what needs more than GRAMMAR_NODES_MAX states. Stacks are at most GRAMMAR_DEPTH_MAX deep:
 *      paths beyond are not taken, and none is taken that could not be finished within. A call that would take more than GRAMMAR_WORK_MAX steps of work,
 *      or come to more than GRAMMAR_STACKS_MAX readings of the text, gives up: then the state is of no more use (until grammar_state_set), whoever
 *      waits for that answer is told so, and nothing is kept of what was half done. Nothing is ever left out instead. The first mask is worked out by
 *      grammar_compile, which refuses where it gives up; a state at the beginning has it. What was worked out before is not worked out again, so
 *      whether a call gives up may depend on earlier calls: an answer never does.
 *   6. Ordinary tokens go on by their bytes, control tokens where rules_token names them; rules_other_tokens takes either whole. Pieces that no text
 *      reaches (unused) go on by rules_other_tokens only.
 *
 * How it works and what it costs: docs/grammar.md.
 */
#ifndef CYGNET_GRAMMAR_H
#define CYGNET_GRAMMAR_H

#include "text/grammar_rules.h"
#include "text/tok.h"

enum { GRAMMAR_NODES_MAX = 1 << 20, GRAMMAR_DEPTH_MAX = 512, GRAMMAR_STACKS_MAX = 4096, GRAMMAR_CACHE_BYTES = 32 << 20 };
enum { GRAMMAR_WORK_MAX = 1 << 20 }; /* steps of one call: some 50 ms; no clock is asked */

/* The vocabulary as a trie over bytes: built once per tokenizer, shared by all its grammars. */
struct grammar_vocab;
struct grammar_vocab *grammar_vocab_new(const struct tokenizer *t); /* t borrowed; owned */
void grammar_vocab_delete(struct grammar_vocab *v);                 /* after all grammars made with it; NULL is fine */

struct grammar;
/* r is taken, whatever happens. Returns owned: one reference. NULL and *e: what the rules said, that they are too large, or have too many readings. */
struct grammar *grammar_compile(struct grammar_vocab *v, struct grammar_rules *r, struct err *e);
struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */

struct grammar_state;
struct grammar_state *grammar_state_new(struct grammar *g); /* at the beginning; holds a reference. Owned */
struct grammar_state *grammar_state_copy(const struct grammar_state *s);
void grammar_state_set(struct grammar_state *s, const struct grammar_state *from); /* same grammar; allocates nothing when s has the room */
void grammar_state_delete(struct grammar_state *s);                                /* NULL is fine */

/* One bit per id, bit id & 31 of word id >> 5; words of the vocabulary, rounded up. What is returned lives until s changes or is deleted.
 * NULL: there are too many readings of the text at this place; it gave up. */
const uint32_t *grammar_mask(struct grammar_state *s);
static inline size_t grammar_mask_words(int vocab) { return ((size_t)vocab + 31) / 32; }
/* Go on with this token. False, and nothing changed: it is not allowed, or it gave up. An end of generation leaves the state as it is. */
bool grammar_accept(struct grammar_state *s, int32_t id);
bool grammar_gave_up(const struct grammar_state *s);  /* mask is NULL, accept false, nothing is forced */
bool grammar_may_end(const struct grammar_state *s);  /* an end of generation is allowed */
bool grammar_must_end(const struct grammar_state *s); /* and nothing else is */
/* Bytes that must come next whatever is chosen, as far as at most max bytes, ending at a character's border, appended to out; control tokens end it.
 * *id: the control token that must come next if there are no such bytes, or -1. Nothing at all if it gave up. */
void grammar_forced(struct grammar_state *s, size_t max, struct buf *out, int32_t *id);

/* ---- all grammars of one model (grammar_cache.c) ----------------------------------------------------------------------------------------- */

enum grammar_kind { GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_EBNF, GRAMMAR_TOOLS }; /* as in cygnet.h, the text of each too */

/* The last GRAMMARS_KEPT that were asked for, by kind and text, failures included; and the vocabulary, built when it is needed first. Any thread; two
 * that ask for the same at once compile it once. */
enum { GRAMMARS_KEPT = 64 };
struct grammar_cache;
struct grammar_cache *grammar_cache_new(const struct tokenizer *t); /* t borrowed; owned */
void grammar_cache_delete(struct grammar_cache *c);                 /* after all its grammars; NULL is fine */
struct grammar *grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, struct str text,
                                  struct err *e); /* a reference, or NULL */

/* ---- what can be asked for ------------------------------------------------------------------------------------------------------------ */

/* Each fills rules; 0, or -1 and *e (ERR_BAD_INPUT: where in the text, expected, found). */

/* regex.c: anchored at both ends. The common subset of ECMA-262, Python re and RE2: literals, ., classes, \d \w \s and their negations, groups, alternation,
 * * + ? {m,n} (greedy or lazy: the same set of strings), \uXXXX \xXX, general categories \p{L}, ^ and $ wherever they can hold. Where readers differ the
 * narrower reading: \d \w \s are ASCII. Refused by name: look-around, back references, word borders, flags, anchors inside a repetition. */
int regex_parse(struct grammar_rules *g, struct str text, int *node, struct err *e);
/* The same for "somewhere in the string", over characters of `any` (a node that matches one). Anchors are honoured. */
int regex_search(struct grammar_rules *g, struct str text, int *node, struct err *e);

/* gbnf.c: llama.cpp's GBNF and the EBNF that other servers take ("root ::= ..."). Tokens outside quotes: <spelling> as the vocabulary spells them, <[id]>,
 * and with ! in front any token but that one. */
int gbnf_parse(struct grammar_rules *g, const struct tokenizer *t, struct str text, struct err *e);

#endif
