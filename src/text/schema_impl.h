/* schema_impl.h — what the files of schema.c share: from a JSON schema to rules in four steps.
 *
 *   json ──schema_refs.c──► places: every subschema with its name for messages; $ref, $id, $anchor
 *        ──schema_read.c──► branches: what one kind of value must be, all keywords that speak about it put together (allOf, anyOf, oneOf, not, $ref)
 *        ──schema_shape.c──► shapes: branches whose children are shapes again, numbered, so that recursion ends; which of them have values at all
 *        ──schema_emit.c──► rules
 *
 * Rules
 *   1. A shape belongs to a set of schemas that must all hold. The same set is the same shape.
 *   2. Branches are values: their lists (struct schemas) are never changed once made, so copies share them.
 *   3. Everything lives as long as the builder: memory of one schema_pool, languages in `langs`.
 *   4. Recursion in C is bounded by the nesting of the schema; work by SCHEMA_WORK_MAX, beyond which the schema is refused.
 */
#ifndef CYGNET_SCHEMA_IMPL_H
#define CYGNET_SCHEMA_IMPL_H

#include "base/buf.h"
#include "text/schema.h"
#include "text/schema_lang.h"

enum {
  SCHEMA_WORK_MAX = 2 << 20,  /* steps of reading: keywords applied to branches, places, members */
  SCHEMA_NEST_MAX = 200,      /* $ref, allOf, anyOf within each other, without a value between them */
  SCHEMA_BRANCHES_MAX = 4096, /* of one shape */
  SCHEMA_SHAPES_MAX = 1 << 17,
  SCHEMA_PATTERNS_MAX = 8,      /* patternProperties that may meet in one object */
  SCHEMA_OPTIONAL_MAX = 2000,   /* optional members in a row: each is a path of its own where one begins */
  SCHEMA_COUNTED_MAX = 1 << 17, /* states of counting members */
  SCHEMA_PERMUTED_MAX = 8,      /* distinct items that may come in any order */
  SCHEMA_LEVELS = 40,           /* a value inside a value of the same recursive schema, so many times */
  SCHEMA_LEVELS_ANY = 16,       /* the same for values that no schema speaks about */
  SCHEMA_DEPTH_MAX = 62         /* containers within each other, as far as the levels above can be cut down for it: readers take 64 */
};

struct schemas { /* in order, no two alike */
  const json_t **v;
  int n;
};

enum kind { KIND_NULL, KIND_BOOL, KIND_NUMBER, KIND_STRING, KIND_ARRAY, KIND_OBJECT, KINDS };

/* 0.d1d2..dn * 10^point; no zeros at either end; n = 0 is zero. */
struct decimal {
  bool negative;
  int n, point;
  char digits[24];
};
struct bound {
  bool set, open; /* open: the bound itself is outside */
  struct decimal at;
};

/* All values of one kind that keywords so far let through. Lists hold the schema objects in which a keyword stands. */
struct branch {
  enum kind kind;
  bool integer, unique;
  int64_t multiple;          /* 0: any number */
  const json_t *multiple_in; /* for messages */
  struct bound lo, hi;
  int64_t min, max;        /* code points, items or members; max -1: any */
  struct schemas values;   /* enum, const: in all of them */
  struct schemas excluded; /* enum, const under not: in none of them */
  struct schemas texts;    /* pattern, format */
  struct schemas arrays;   /* items, prefixItems */
  struct schemas objects;  /* properties, patternProperties, additionalProperties */
  struct schemas names;    /* propertyNames: the schemas themselves */
  struct schemas required;
};
struct branches {
  struct branch *v; /* owned */
  int n, cap;
};

struct member {
  const char *key;
  size_t n_key;
  int shape;
  bool required;
};
struct extra { /* members that are not declared: names of this language */
  struct lang *keys;
  int shape;
};

/* A branch whose parts are known. */
struct form {
  struct branch b;
  bool empty;            /* nothing is left of it */
  bool valued;           /* values: those that remain, and nothing else */
  const json_t **values; /* [n_values] */
  int n_values;
  struct lang *text;                /* strings: NULL = any, of b.min..b.max code points */
  struct lang *positive, *negative; /* numbers: NULL both = any. negative: without its sign */
  bool small[2], large[2];     /* numbers, positive and negative ones: may be written with exponents, as below 1 and as 1e10 and more */
  int *prefix, n_prefix, rest; /* arrays: shapes; rest -1: none */
  struct member *members;      /* objects */
  int n_members;
  struct extra *extras;
  int n_extras;
};

struct shape {
  struct schemas key;
  struct form *forms; /* owned */
  int n_forms;
  const char *must_be_empty; /* NULL, or the message when it is not (oneOf) */
  int component;             /* shapes that contain each other */
  bool recursive;            /* its component has more than itself, or it contains itself */
  int height;                /* levels of recursion that the smallest value needs; SHAPE_NEVER */
};
enum { SHAPE_NEVER = 1 << 30 };

struct place {
  const json_t *schema;
  int parent;       /* -1: the root */
  const char *step; /* "properties.age" */
  const char *base; /* URI that references are relative to */
  bool checked;
};
struct resource {           /* $id, $anchor */
  const char *uri, *anchor; /* anchor NULL: the resource itself */
  int place;
};
struct pattern {
  const char *text;
  size_t n;
  bool whole;
  struct lang *l; /* NULL: too large */
};

struct schema_pool {
  struct pool_block *last;
};
void *pool_get(struct schema_pool *p, size_t n_bytes); /* zeroed */
char *pool_text(struct schema_pool *p, const char *text, size_t n);
void pool_free(struct schema_pool *p);

struct schema_builder {
  struct grammar_rules *g;
  const struct tokenizer *t;
  enum schema_style style;
  int32_t quote; /* SCHEMA_GEMMA4_CALL: the string delimiter, -1: written as text */
  const char *where;
  const json_t *root;
  bool object_only; /* the root is an object, whatever else the schema allows */
  struct err *e;
  int64_t work;

  struct schema_pool pool;
  struct place *places;
  int n_places, cap_places;
  struct lang_map place_of; /* by address */
  struct resource *resources;
  int n_resources, cap_resources;
  struct lang_map pattern_of; /* by hash */
  struct pattern *patterns;
  int n_patterns, cap_patterns;
  struct lang **langs;
  int n_langs, cap_langs;

  struct shape *shapes;
  int n_shapes, cap_shapes;
  struct lang_map shape_of; /* by hash of its set */

  int levels, levels_any;  /* SCHEMA_LEVELS and SCHEMA_LEVELS_ANY, or what is left of them */
  struct lang_map rule_of; /* (shape, levels left) */
  struct emit_job {
    int shape, left, rule;
  } * jobs;
  int n_jobs, cap_jobs;
  int any_string, any_number, any_integer; /* nodes, -1: not yet */
};

/* schema_build, for a value that is an object in any case (arguments of a call). */
int schema_build_object(struct grammar_rules *g, const struct tokenizer *t, const json_t *schema, enum schema_style style,
                        const char *where, int *node, struct err *e);

/* ---- schema_refs.c */
int schema_index(struct schema_builder *b);
/* -1 and the message "PLACE: keyword "K": ...". */
int schema_fail(struct schema_builder *b, const json_t *schema, const char *keyword, const char *fmt, ...) PRINTF_LIKE(4, 5);
int schema_too_large(struct schema_builder *b);
const char *schema_place(struct schema_builder *b, const json_t *schema); /* for messages; in the pool */
int schema_check(struct schema_builder *b, const json_t *schema);         /* all keywords of one object known and well-formed */
int schema_resolve(struct schema_builder *b, const json_t *schema, const char *ref, const json_t **target);

/* ---- schema_read.c */
struct schemas schemas_add(struct schema_builder *b, struct schemas s, const json_t *schema);
void branches_any(struct branches *list); /* any value */
void branches_push(struct branches *list, const struct branch *x);
/* Leave what `schema` lets through. link NULL. */
struct schema_link;
int schema_apply(struct schema_builder *b, const json_t *schema, const struct schema_link *link, struct branches *list);
int schema_new_shape(struct schema_builder *b, struct schemas key);                            /* schema_shape.c; -1 on failure */
int schema_forbid(struct schema_builder *b, const struct branches *list, const char *message); /* schema_shape.c: must have no values */

/* ---- schema_value.c: numbers and values of JSON */
bool json_same(const json_t *a, const json_t *b); /* as JSON Schema has it: 1 is 1.0 */
enum kind json_kind(const json_t *v);
struct decimal decimal_of(const json_t *number);
int decimal_order(const struct decimal *a, const struct decimal *b);
bool decimal_is_integer(const struct decimal *d);
bool decimal_to_i64(const struct decimal *d, int64_t *out); /* integers only */
struct decimal decimal_of_i64(int64_t v);
const json_t *schema_values(const json_t *schema, size_t i); /* the i-th of enum and const together, NULL: no more */
bool schema_lists(const json_t *schema, const json_t *v);    /* v is one of them, and of the type that stands beside them */
int schema_type_mask(const json_t *schema);                  /* bits of kinds, TYPE_INTEGER; -1: no type */
enum { TYPE_INTEGER = 1 << KINDS };

/* ---- schema_number.c */
int schema_number(struct schema_builder *b, struct form *f);

/* ---- schema_string.c */
struct lang *schema_keep(struct schema_builder *b, struct lang *l); /* owned by b from now on */
/* The language of a pattern; *l NULL: too large. -1: no pattern. */
int schema_pattern(struct schema_builder *b, const json_t *schema, const char *keyword, struct str text, const struct lang **l);
bool schema_format_known(const char *format);
int schema_text(struct schema_builder *b, const struct branch *x, struct lang **l, bool *empty);
int schema_text_accepts(struct schema_builder *b, const struct branch *x, struct str text, bool *yes);

/* ---- schema_shape.c */
int schema_shapes(struct schema_builder *b); /* all that the root needs, and what is possible among them */
int shape_values(struct schema_builder *b, int shape, const json_t ***values); /* a finite set of values: how many; -1: it is none */

/* ---- schema_emit.c */
int schema_emit(struct schema_builder *b, int shape, int *node);

#endif
