/* grammar_rules.h — a grammar being written down: what regex.c, gbnf.c and schema.c build and grammar.c compiles.
 *
 * Nodes are numbers; a node may be used in several places (it is a value, not a place). Rules are named nodes that may refer to each other and to
 * themselves, left recursion excepted.
 *
 *     struct grammar_rules *g = grammar_rules_new();
 *     int digit = rules_class(g, (struct rules_range[]){{'0', '9'}}, 1, false);
 *     int list = rules_declare(g, "list");
 *     rules_define(g, list, rules_seq2(g, digit, rules_repeat(g, rules_seq2(g, rules_text(g, ","), digit), 0, -1)));
 *     rules_root(g, list);
 *
 * Characters are code points and become UTF-8 bytes; no rule can end inside a character. Control tokens are symbols of their own: rules_token.
 * Building cannot fail half-way: the first error (too large, out of range) sticks, and grammar_compile reports it.
 */
#ifndef CYGNET_GRAMMAR_RULES_H
#define CYGNET_GRAMMAR_RULES_H

#include "base/base.h"
#include "base/err.h"
#include "base/str.h"

enum { RULES_NODES_MAX = 1 << 20, RULES_REPEAT_MAX = 1 << 16 };

struct rules_range { /* of code points, both ends included; surrogates are left out by themselves */
  uint32_t lo, hi;
};

struct grammar_rules;
struct grammar_rules *grammar_rules_new(void);      /* owned */
void grammar_rules_delete(struct grammar_rules *g); /* NULL is fine */

int rules_empty(struct grammar_rules *g);
int rules_never(struct grammar_rules *g); /* matches nothing: an alternative that cannot be taken */
int rules_text(struct grammar_rules *g, const char *text);
int rules_text_n(struct grammar_rules *g, const char *text, size_t n);                           /* well-formed UTF-8 */
int rules_class(struct grammar_rules *g, const struct rules_range *ranges, int n, bool negated); /* one character */
int rules_any(struct grammar_rules *g);                                                          /* any one character */
int rules_seq(struct grammar_rules *g, const int *nodes, int n);
int rules_seq2(struct grammar_rules *g, int a, int b);
int rules_alt(struct grammar_rules *g, const int *nodes, int n);       /* n = 0: rules_never */
int rules_repeat(struct grammar_rules *g, int node, int min, int max); /* max -1 = without end */
int rules_token(struct grammar_rules *g, int32_t id);                  /* this token, whole: a control token */
/* Any one token but these; what free text is made of. Ends of generation are never among them. */
int rules_other_tokens(struct grammar_rules *g, const int32_t *except, int n);

int rules_declare(struct grammar_rules *g, const char *name); /* a node that refers to a rule; name for messages, need not be unique */
void rules_define(struct grammar_rules *g, int rule, int node);
void rules_root(struct grammar_rules *g, int node);

void rules_fail(struct grammar_rules *g, const char *fmt, ...) PRINTF_LIKE(2, 3); /* the sticky error; the first one stays */
int rules_error(const struct grammar_rules *g, struct err *e);                    /* -1 and *e when there is one */

#endif
