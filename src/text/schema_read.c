/* schema_read.c — keywords → branches: what one kind of value must be, everything that speaks about it put together.
 *
 * Keywords that all hold (those of one object, allOf, $ref) narrow each branch; anyOf and oneOf multiply them. oneOf is enforced as anyOf, after every two
 * of its branches together were noted as "must be empty" (schema_forbid).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_impl.h"

/* The way by $ref, allOf, anyOf from a value to a schema: to find circles. */
struct schema_link {
  const json_t *schema;
  const struct schema_link *up;
  int depth;
};

struct choice {
  const json_t *schema; /* in which it stands */
  const struct schema_link *link;
};

/* What must hold, without its choices. */
struct flat {
  struct schemas atoms;
  struct choice *choices; /* owned */
  int n_choices;
  bool never;
};

/* ---- lists ------------------------------------------------------------------------------------------------------------------------ */

struct schemas schemas_add(struct schema_builder *b, struct schemas s, const json_t *schema) {
  for (int i = 0; i < s.n; i++)
    if (s.v[i] == schema) return s;
  const json_t **v = pool_get(&b->pool, (size_t)(s.n + 1) * sizeof *v);
  if (s.n) memcpy(v, s.v, (size_t)s.n * sizeof *v);
  v[s.n] = schema;
  b->work += s.n;
  return (struct schemas){v, s.n + 1};
}

static bool schemas_same(struct schemas a, struct schemas b) {
  return a.n == b.n && (!a.n || !memcmp(a.v, b.v, (size_t)a.n * sizeof *a.v));
}

static bool bound_same(const struct bound *a, const struct bound *b) {
  return a->set == b->set && a->open == b->open && decimal_order(&a->at, &b->at) == 0;
}

static bool branch_same(const struct branch *a, const struct branch *b) {
  return a->kind == b->kind && a->integer == b->integer && a->unique == b->unique && a->multiple == b->multiple && a->min == b->min &&
         a->max == b->max && bound_same(&a->lo, &b->lo) && bound_same(&a->hi, &b->hi) && schemas_same(a->values, b->values) &&
         schemas_same(a->excluded, b->excluded) && schemas_same(a->texts, b->texts) && schemas_same(a->arrays, b->arrays) &&
         schemas_same(a->objects, b->objects) && schemas_same(a->names, b->names) && schemas_same(a->required, b->required);
}

void branches_push(struct branches *list, const struct branch *x) {
  if (list->n == list->cap) {
    list->cap = list->cap ? 2 * list->cap : 8;
    list->v = xrealloc(list->v, (size_t)list->cap * sizeof *list->v);
  }
  list->v[list->n++] = *x;
}

void branches_any(struct branches *list) {
  for (int kind = 0; kind < KINDS; kind++) branches_push(list, &(struct branch){.kind = (enum kind)kind, .max = -1});
}

static int branches_add_new(struct schema_builder *b, struct branches *list, const struct branches *from, const json_t *schema) {
  for (int i = 0; i < from->n; i++) {
    bool known = false;
    for (int k = 0; k < list->n && !known; k++) known = branch_same(&list->v[k], &from->v[i]);
    b->work += list->n / 8 + 1;
    if (!known) branches_push(list, &from->v[i]);
  }
  if (list->n > SCHEMA_BRANCHES_MAX)
    return err_set(b->e, ERR_BAD_INPUT, "%s: its combinations of anyOf and oneOf are more than %d", schema_place(b, schema),
                   SCHEMA_BRANCHES_MAX);
  return b->work > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
}

static struct branches branches_copy(const struct branches *from) {
  struct branches list = {0};
  for (int i = 0; i < from->n; i++) branches_push(&list, &from->v[i]);
  return list;
}

/* ---- one schema object upon one branch ---------------------------------------------------------------------------------------------- */

static int64_t count_of(const json_t *schema, const char *key, int64_t otherwise) {
  const json_t *v = json_object_get(schema, key);
  return json_is_integer(v) ? json_integer_value(v) : json_is_real(v) ? (int64_t)json_real_value(v) : otherwise;
}

static void narrow_counts(struct branch *x, const json_t *schema, const char *min_key, const char *max_key) {
  x->min = MAX(x->min, count_of(schema, min_key, 0));
  int64_t max = count_of(schema, max_key, -1);
  if (max >= 0 && (x->max < 0 || max < x->max)) x->max = max;
}

static void narrow_bound(struct bound *at, const json_t *v, bool open, int sign) {
  if (!json_is_number(v)) return;
  struct decimal d = decimal_of(v);
  int order = at->set ? sign * decimal_order(&d, &at->at) : 1;
  if (order > 0) *at = (struct bound){true, open, d};
  else if (order == 0) at->open |= open;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

static int narrow_multiple(struct schema_builder *b, const json_t *schema, struct branch *x) {
  const json_t *v = json_object_get(schema, "multipleOf");
  if (!v) return 0;
  struct decimal d = decimal_of(v);
  int64_t m;
  if (!decimal_to_i64(&d, &m)) return schema_fail(b, schema, "multipleOf", " is supported for integers only");
  x->integer = true;
  x->multiple_in = schema;
  if (!x->multiple) x->multiple = m;
  else {
    int64_t step = x->multiple / gcd(x->multiple, m), both;
    if (__builtin_mul_overflow(step, m, &both)) return schema_fail(b, schema, "multipleOf", ": the common multiple is too large");
    x->multiple = both;
  }
  return 0;
}

static int narrow_number(struct schema_builder *b, const json_t *schema, struct branch *x) {
  const json_t *over = json_object_get(schema, "exclusiveMinimum"), *under = json_object_get(schema, "exclusiveMaximum");
  narrow_bound(&x->lo, json_object_get(schema, "minimum"), json_is_true(over), 1);
  narrow_bound(&x->hi, json_object_get(schema, "maximum"), json_is_true(under), -1);
  narrow_bound(&x->lo, over, true, 1);
  narrow_bound(&x->hi, under, true, -1);
  return narrow_multiple(b, schema, x);
}

static int narrow_string(struct schema_builder *b, const json_t *schema, struct branch *x) {
  narrow_counts(x, schema, "minLength", "maxLength");
  const char *format = json_string_value(json_object_get(schema, "format"));
  if (json_object_get(schema, "pattern") || (format && schema_format_known(format))) x->texts = schemas_add(b, x->texts, schema);
  return 0;
}

static int narrow_array(struct schema_builder *b, const json_t *schema, struct branch *x) {
  narrow_counts(x, schema, "minItems", "maxItems");
  x->unique |= json_is_true(json_object_get(schema, "uniqueItems"));
  if (json_object_get(schema, "items") || json_object_get(schema, "prefixItems")) x->arrays = schemas_add(b, x->arrays, schema);
  return 0;
}

static int narrow_object(struct schema_builder *b, const json_t *schema, struct branch *x) {
  narrow_counts(x, schema, "minProperties", "maxProperties");
  if (json_object_get(schema, "properties") || json_object_get(schema, "patternProperties") ||
      json_object_get(schema, "additionalProperties"))
    x->objects = schemas_add(b, x->objects, schema);
  if (json_object_get(schema, "required")) x->required = schemas_add(b, x->required, schema);
  const json_t *names = json_object_get(schema, "propertyNames");
  if (names) x->names = schemas_add(b, x->names, names);
  return 0;
}

/* 1: goes on, 0: nothing of the branch is left, -1: failed. types: of the schema; kinds: those of its enum and const, -1 when it has none. */
static int narrow(struct schema_builder *b, const json_t *schema, int types, int kinds, struct branch *x) {
  if (++b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  if (types >= 0 && !(types & 1 << x->kind)) {
    if (x->kind != KIND_NUMBER || !(types & TYPE_INTEGER)) return 0;
    x->integer = true;
  }
  if (kinds >= 0) {
    if (!(kinds & 1 << x->kind)) return 0;
    x->values = schemas_add(b, x->values, schema);
  }
  int rc = 0;
  if (x->kind == KIND_NUMBER) rc = narrow_number(b, schema, x);
  if (x->kind == KIND_STRING) rc = narrow_string(b, schema, x);
  if (x->kind == KIND_ARRAY) rc = narrow_array(b, schema, x);
  if (x->kind == KIND_OBJECT) rc = narrow_object(b, schema, x);
  return rc != 0 ? -1 : x->max < 0 || x->min <= x->max;
}

static int kinds_of_values(const json_t *schema) {
  if (!json_object_get(schema, "enum") && !json_object_get(schema, "const")) return -1;
  int kinds = 0;
  const json_t *v;
  for (size_t i = 0; (v = schema_values(schema, i)); i++) kinds |= 1 << json_kind(v);
  return kinds;
}

static int apply_atom(struct schema_builder *b, const json_t *schema, struct branches *list) {
  int n = 0, types = schema_type_mask(schema), kinds = kinds_of_values(schema);
  for (int i = 0; i < list->n; i++) {
    int rc = narrow(b, schema, types, kinds, &list->v[i]);
    if (rc < 0) return -1;
    if (rc) list->v[n++] = list->v[i];
  }
  list->n = n;
  return 0;
}

/* ---- not ---------------------------------------------------------------------------------------------------------------------------- */

static bool is_annotation(const char *key) {
  static const char *const words[] = {"type",     "enum",    "const",      "title",      "description", "$comment",
                                      "examples", "default", "deprecated", "readOnly",   "writeOnly",   "$schema",
                                      "$id",      "$anchor", "$defs",      "definitions"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcmp(words[i], key)) return true;
  return false;
}

/* Without the values of enum or const (and of the type beside it). */
static void exclude_values(struct schema_builder *b, const json_t *no, struct branches *list) {
  int kinds = kinds_of_values(no);
  for (int i = 0; i < list->n; i++)
    if (kinds & 1 << list->v[i].kind) list->v[i].excluded = schemas_add(b, list->v[i].excluded, no);
}

static int exclude_types(struct schema_builder *b, const json_t *schema, int types, struct branches *list) {
  int n = 0;
  for (int i = 0; i < list->n; i++) {
    struct branch *x = &list->v[i];
    bool out = types & 1 << x->kind;
    if (x->kind == KIND_NUMBER && types & TYPE_INTEGER && !out) {
      if (!x->integer) return schema_fail(b, schema, "not", ": numbers that are no integers are not supported");
      out = true;
    }
    if (!out) list->v[n++] = *x;
  }
  list->n = n;
  return 0;
}

static int apply_not(struct schema_builder *b, const json_t *schema, const json_t *no, int depth, struct branches *list) {
  if (json_is_false(no)) return 0;
  if (json_is_true(no)) list->n = 0;
  if (!json_is_object(no)) return 0;
  if (depth > SCHEMA_NEST_MAX) return schema_fail(b, schema, "not", " is nested deeper than %d levels", SCHEMA_NEST_MAX);
  if (schema_check(b, no) != 0) return -1;
  const json_t *any = json_object_get(no, "anyOf");
  const char *ref = json_string_value(json_object_get(no, "$ref")), *key;
  json_t *v;
  int others = 0;
  json_object_foreach((json_t *)no, key, v) others += !is_annotation(key);
  int types = schema_type_mask(no), kinds = kinds_of_values(no);
  if (others == 1 && types < 0 && kinds < 0 && ref) {
    const json_t *target;
    return schema_resolve(b, no, ref, &target) != 0 ? -1 : apply_not(b, schema, target, depth + 1, list);
  }
  if (others == 1 && types < 0 && kinds < 0 && any) {
    for (size_t i = 0; i < json_array_size(any); i++)
      if (apply_not(b, schema, json_array_get(any, i), depth + 1, list) != 0) return -1;
    return 0;
  }
  if (others) return schema_fail(b, schema, "not", " is supported for type, enum and const only");
  if (kinds >= 0) exclude_values(b, no, list);
  else if (types >= 0) return exclude_types(b, schema, types, list);
  else list->n = 0;
  return 0;
}

/* ---- what holds together -------------------------------------------------------------------------------------------------------------- */

static int flatten(struct schema_builder *b, const json_t *schema, const struct schema_link *link, struct flat *f) {
  if (json_is_true(schema)) return 0;
  if (!json_is_object(schema)) {
    f->never = true;
    return 0;
  }
  if (++b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  for (const struct schema_link *l = link; l; l = l->up)
    if (l->schema == schema)
      return err_set(b->e, ERR_BAD_INPUT, "%s: this schema refers to itself without an end", schema_place(b, schema));
  if (link && link->depth >= SCHEMA_NEST_MAX)
    return err_set(b->e, ERR_BAD_INPUT, "%s: $ref, allOf and anyOf are nested deeper than %d levels", schema_place(b, schema),
                   SCHEMA_NEST_MAX);
  int before = f->atoms.n;
  f->atoms = schemas_add(b, f->atoms, schema);
  if (f->atoms.n == before) return 0;
  if (schema_check(b, schema) != 0) return -1;
  struct schema_link *here = pool_get(&b->pool, sizeof *here);
  *here = (struct schema_link){schema, link, link ? link->depth + 1 : 1};

  const char *ref = json_string_value(json_object_get(schema, "$ref"));
  if (ref) {
    const json_t *target;
    if (schema_resolve(b, schema, ref, &target) != 0 || flatten(b, target, here, f) != 0) return -1;
  }
  const json_t *all = json_object_get(schema, "allOf");
  for (size_t i = 0; i < json_array_size(all); i++)
    if (flatten(b, json_array_get(all, i), here, f) != 0) return -1;
  if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf") || json_object_get(schema, "not")) {
    f->choices = xrealloc(f->choices, (size_t)(f->n_choices + 1) * sizeof *f->choices);
    f->choices[f->n_choices++] = (struct choice){schema, here};
  }
  return 0;
}

static int apply_any(struct schema_builder *b, const struct choice *c, const json_t *options, struct branches *list) {
  struct branches out = {0};
  int rc = 0;
  for (size_t i = 0; i < json_array_size(options) && rc == 0; i++) {
    struct branches one = branches_copy(list);
    rc = schema_apply(b, json_array_get(options, i), c->link, &one);
    if (rc == 0) rc = branches_add_new(b, &out, &one, c->schema);
    free(one.v);
  }
  free(list->v);
  *list = out;
  return rc;
}

/* Every two options together must have no value. */
static int forbid_overlaps(struct schema_builder *b, const struct choice *c, const json_t *options, const struct branches *list) {
  const char *place = schema_place(b, c->schema);
  int rc = 0;
  for (size_t i = 0; i < json_array_size(options) && rc == 0; i++) {
    struct branches one = branches_copy(list);
    rc = schema_apply(b, json_array_get(options, i), c->link, &one);
    for (size_t k = i + 1; k < json_array_size(options) && rc == 0; k++) {
      struct branches two = branches_copy(&one);
      rc = schema_apply(b, json_array_get(options, k), c->link, &two);
      char message[400];
      snprintf(message, sizeof message,
               "%s: keyword \"oneOf\": a value may satisfy both [%zu] and [%zu], which cannot be told apart while it is written", place, i,
               k);
      if (rc == 0 && two.n) rc = schema_forbid(b, &two, pool_text(&b->pool, message, strlen(message)));
      free(two.v);
    }
    free(one.v);
  }
  return rc;
}

int schema_apply(struct schema_builder *b, const json_t *schema, const struct schema_link *link, struct branches *list) {
  struct flat f = {0};
  int rc = flatten(b, schema, link, &f);
  if (f.never) list->n = 0;
  for (int i = 0; i < f.atoms.n && rc == 0; i++) rc = apply_atom(b, f.atoms.v[i], list);
  for (int i = 0; i < f.n_choices && rc == 0; i++) {
    const json_t *no = json_object_get(f.choices[i].schema, "not");
    if (no) rc = apply_not(b, f.choices[i].schema, no, 0, list);
  }
  for (int i = 0; i < f.n_choices && rc == 0; i++) {
    const json_t *any = json_object_get(f.choices[i].schema, "anyOf");
    if (any) rc = apply_any(b, &f.choices[i], any, list);
  }
  for (int i = 0; i < f.n_choices && rc == 0; i++) {
    const json_t *one = json_object_get(f.choices[i].schema, "oneOf");
    if (one) rc = forbid_overlaps(b, &f.choices[i], one, list);
    if (one && rc == 0) rc = apply_any(b, &f.choices[i], one, list);
  }
  free(f.choices);
  return rc;
}
