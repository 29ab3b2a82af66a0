/* schema_shape.c — shapes: which schemas a value, a member, an item must satisfy together; and which shapes have values.
 *
 *     root ──► forms (branches with their parts) ──► sets of schemas for each part ──► shapes, until no new set comes up
 *
 * Then enum and const are held against everything else, and from the leaves up it is worked out how deep the smallest value of each shape is.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_impl.h"

enum { NAMES_LISTED = 64 };

/* ---- numbering ------------------------------------------------------------------------------------------------------------------------ */

static int by_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t) * (const json_t *const *)a, y = (uintptr_t) * (const json_t *const *)b;
  return x < y ? -1 : x > y;
}

static int shape_push(struct schema_builder *b, struct schemas key) {
  if (b->n_shapes >= SCHEMA_SHAPES_MAX || b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  if (b->n_shapes == b->cap_shapes) {
    b->cap_shapes = b->cap_shapes ? 2 * b->cap_shapes : 64;
    b->shapes = xrealloc(b->shapes, (size_t)b->cap_shapes * sizeof *b->shapes);
  }
  b->shapes[b->n_shapes] = (struct shape){.key = key, .height = SHAPE_NEVER};
  return b->n_shapes++;
}

/* Schemas that say nothing are left out of the set, so that all unconstrained values are one shape. */
static struct schemas without_empty(struct schema_builder *b, struct schemas key) {
  struct schemas out = {0};
  for (int i = 0; i < key.n; i++)
    if (!json_is_true(key.v[i]) && !(json_is_object(key.v[i]) && !json_object_size(key.v[i]))) out = schemas_add(b, out, key.v[i]);
  return out;
}

int schema_new_shape(struct schema_builder *b, struct schemas key) {
  key = without_empty(b, key);
  const json_t **sorted = pool_get(&b->pool, (size_t)(key.n + 1) * sizeof *sorted);
  if (key.n) {
    memcpy(sorted, key.v, (size_t)key.n * sizeof *sorted);
    qsort(sorted, (size_t)key.n, sizeof *sorted, by_address);
  }
  b->work += 1 + key.n;
  for (uint64_t hash = hash_bytes(sorted, (size_t)key.n * sizeof *sorted, 1) | 1;; hash += 2) {
    int *at = lang_map_at(&b->shape_of, hash | 1);
    if (*at < 0) {
      int shape = shape_push(b, key);
      if (shape >= 0) *at = shape;
      return shape;
    }
    const struct schemas *known = &b->shapes[*at].key;
    if (known->n != key.n) continue;
    bool same = true;
    for (int i = 0; i < key.n && same; i++) same = bsearch(&known->v[i], sorted, (size_t)key.n, sizeof *sorted, by_address) != NULL;
    if (same) return *at;
  }
}

static struct form *new_forms(const struct branches *list) {
  struct form *forms = xcalloc((size_t)list->n + 1, sizeof *forms);
  for (int i = 0; i < list->n; i++) forms[i] = (struct form){.b = list->v[i], .rest = -1};
  return forms;
}

int schema_forbid(struct schema_builder *b, const struct branches *list, const char *message) {
  int shape = shape_push(b, (struct schemas){0});
  if (shape < 0) return -1;
  b->shapes[shape].forms = new_forms(list);
  b->shapes[shape].n_forms = list->n;
  b->shapes[shape].must_be_empty = message;
  return 0;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------------------------------- */

static const json_t *prefix_of(const json_t *schema) {
  const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
  return prefix ? prefix : json_is_array(items) ? items : NULL;
}
static const json_t *rest_of(const json_t *schema) {
  const json_t *items = json_object_get(schema, "items");
  return json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

/* The schemas of item i; i -1: of all behind the prefixes. */
static struct schemas item_schemas(struct schema_builder *b, const struct branch *x, int i) {
  struct schemas set = {0};
  for (int k = 0; k < x->arrays.n; k++) {
    const json_t *prefix = prefix_of(x->arrays.v[k]), *rest = rest_of(x->arrays.v[k]);
    const json_t *one = i >= 0 && (size_t)i < json_array_size(prefix) ? json_array_get(prefix, (size_t)i) : rest;
    if (one) set = schemas_add(b, set, one);
  }
  return set;
}

static int form_array(struct schema_builder *b, struct form *f) {
  size_t n = 0;
  for (int k = 0; k < f->b.arrays.n; k++) n = MAX(n, json_array_size(prefix_of(f->b.arrays.v[k])));
  if (f->b.max >= 0 && n > (size_t)f->b.max) n = (size_t)f->b.max;
  f->n_prefix = (int)n;
  f->prefix = pool_get(&b->pool, (n + 1) * sizeof *f->prefix);
  for (int i = 0; i < f->n_prefix; i++)
    if ((f->prefix[i] = schema_new_shape(b, item_schemas(b, &f->b, i))) < 0) return -1;
  if (f->b.max >= 0 && (int64_t)n == f->b.max) return 0;
  return (f->rest = schema_new_shape(b, item_schemas(b, &f->b, -1))) < 0 ? -1 : 0;
}

/* ---- objects ---------------------------------------------------------------------------------------------------------------------------- */

/* What the names of members must be: NULL for any. */
static int names_language(struct schema_builder *b, const struct branch *x, struct lang **l) {
  struct branches list = {0};
  branches_push(&list, &(struct branch){.kind = KIND_STRING, .max = -1});
  int rc = 0;
  *l = NULL;
  for (int i = 0; i < x->names.n && rc == 0; i++) rc = schema_apply(b, x->names.v[i], NULL, &list);
  if (rc == 0 && list.n > 1) rc = schema_fail(b, x->names.v[0], "anyOf", " is not supported under propertyNames");
  if (rc == 0 && list.n == 0) *l = schema_keep(b, lang_texts(NULL, 0));
  if (rc == 0 && list.n == 1 && list.v[0].values.n) {
    int n = 0, cap = 0;
    struct str *texts = NULL;
    const json_t *v;
    for (size_t i = 0; rc == 0 && (v = schema_values(list.v[0].values.v[0], i)); i++) {
      bool yes = json_is_string(v);
      for (int k = 0; k < list.v[0].values.n && yes; k++) yes = schema_lists(list.v[0].values.v[k], v);
      for (int k = 0; k < list.v[0].excluded.n && yes; k++) yes = !schema_lists(list.v[0].excluded.v[k], v);
      struct str text = str_of(json_string_value(v), json_string_length(v));
      if (yes) rc = schema_text_accepts(b, &list.v[0], text, &yes);
      if (rc != 0 || !yes) continue;
      if (n == cap) texts = xrealloc(texts, (size_t)(cap = 2 * cap + 16) * sizeof *texts);
      texts[n++] = text;
    }
    if (rc == 0 && !(*l = schema_keep(b, lang_texts(texts, n)))) rc = schema_too_large(b);
    free(texts);
  } else if (rc == 0 && list.n == 1) {
    bool empty;
    rc = schema_text(b, &list.v[0], l, &empty);
    if (rc == 0 && !*l && (list.v[0].min > 0 || list.v[0].max >= 0)) {
      *l = schema_keep(b, lang_lengths(list.v[0].min, list.v[0].max));
      if (!*l) rc = schema_fail(b, x->names.v[0], "maxLength", ": expected at most %d", LANG_STATES_MAX - 1);
    }
  }
  free(list.v);
  return rc;
}

/* Does one object schema speak about this name by a pattern? Adds what it says. */
static int add_by_patterns(struct schema_builder *b, const json_t *schema, struct str key, struct schemas *set, bool *spoken) {
  const char *pattern;
  json_t *v;
  json_object_foreach(json_object_get(schema, "patternProperties"), pattern, v) {
    const struct lang *l;
    if (schema_pattern(b, schema, "patternProperties", str_c(pattern), &l) != 0) return -1;
    if (!l) return schema_fail(b, schema, "patternProperties", ": a pattern needs more than %d states", LANG_STATES_MAX);
    b->work++;
    if (!lang_has(l, key)) continue;
    *set = schemas_add(b, *set, v);
    *spoken = true;
  }
  return 0;
}

/* The schemas of the member with this name. */
static int member_schemas(struct schema_builder *b, const struct branch *x, struct str key, struct schemas *set) {
  *set = (struct schemas){0};
  for (int i = 0; i < x->objects.n; i++) {
    const json_t *schema = x->objects.v[i], *own = json_object_getn(json_object_get(schema, "properties"), key.p, key.n);
    const json_t *others = json_object_get(schema, "additionalProperties");
    bool spoken = own != NULL;
    if (own) *set = schemas_add(b, *set, own);
    if (add_by_patterns(b, schema, key, set, &spoken) != 0) return -1;
    if (!spoken && others) *set = schemas_add(b, *set, others);
  }
  return 0;
}

static bool has_false(struct schemas set) {
  for (int i = 0; i < set.n; i++)
    if (json_is_false(set.v[i])) return true;
  return false;
}

struct member_list {
  struct member *v; /* owned */
  int n, cap;
};

static int add_member(struct schema_builder *b, const struct branch *x, struct member_list *list, struct str key, bool required,
                      const struct lang *names) {
  struct schemas set;
  if (names && !lang_has(names, key)) set = schemas_add(b, (struct schemas){0}, json_false());
  else if (member_schemas(b, x, key, &set) != 0) return -1;
  if (has_false(set) && !required) return b->work++ > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
  if (has_false(set)) set = schemas_add(b, (struct schemas){0}, json_false());
  int shape = schema_new_shape(b, set);
  if (shape < 0) return -1;
  if (list->n == list->cap) list->v = xrealloc(list->v, (size_t)(list->cap = 2 * list->cap + 16) * sizeof *list->v);
  list->v[list->n++] = (struct member){key.p, key.n, shape, required};
  return 0;
}

/* The names of properties, in order, then the required ones that are no properties. */
static int declared_members(struct schema_builder *b, const struct branch *x, struct member_list *list, const struct lang *names,
                            json_t *seen) {
  json_t *required = json_object();
  int rc = 0;
  for (int i = 0; i < x->required.n; i++) {
    const json_t *keys = json_object_get(x->required.v[i], "required");
    for (size_t k = 0; k < json_array_size(keys); k++)
      json_object_set_new(required, json_string_value(json_array_get(keys, k)), json_true());
  }
  const char *key;
  json_t *v;
  for (int i = 0; i < x->objects.n && rc == 0; i++) {
    json_object_foreach(json_object_get(x->objects.v[i], "properties"), key, v) {
      if (json_object_get(seen, key)) continue;
      json_object_set_new(seen, key, json_true());
      rc = add_member(b, x, list, str_c(key), json_object_get(required, key) != NULL, names);
      if (rc != 0) break;
    }
  }
  json_object_foreach(required, key, v) {
    if (rc != 0 || json_object_get(seen, key)) continue;
    json_object_set_new(seen, key, json_true());
    rc = add_member(b, x, list, str_c(pool_text(&b->pool, key, strlen(key))), true, names);
  }
  json_decref(required);
  return rc;
}

/* All patterns that speak about names, each once. */
struct name_patterns {
  struct {
    const char *text;
    const struct lang *l;
  } v[SCHEMA_PATTERNS_MAX];
  int n;
};

static int name_patterns(struct schema_builder *b, const struct branch *x, struct name_patterns *p) {
  const char *pattern;
  json_t *v;
  p->n = 0;
  for (int i = 0; i < x->objects.n; i++) {
    json_object_foreach(json_object_get(x->objects.v[i], "patternProperties"), pattern, v) {
      bool known = false;
      for (int k = 0; k < p->n; k++) known |= !strcmp(p->v[k].text, pattern);
      if (known) continue;
      if (p->n == SCHEMA_PATTERNS_MAX)
        return schema_fail(b, x->objects.v[i], "patternProperties", ": expected at most %d patterns together", SCHEMA_PATTERNS_MAX);
      if (schema_pattern(b, x->objects.v[i], "patternProperties", str_c(pattern), &p->v[p->n].l) != 0) return -1;
      if (!p->v[p->n].l)
        return schema_fail(b, x->objects.v[i], "patternProperties", ": a pattern needs more than %d states", LANG_STATES_MAX);
      p->v[p->n++].text = pattern;
    }
  }
  return 0;
}

/* What is said about undeclared names that match exactly the patterns of `matched`. */
static struct schemas extra_schemas(struct schema_builder *b, const struct branch *x, const struct name_patterns *p, unsigned matched) {
  struct schemas set = {0};
  for (int i = 0; i < x->objects.n; i++) {
    const json_t *by_pattern = json_object_get(x->objects.v[i], "patternProperties"),
                 *others = json_object_get(x->objects.v[i], "additionalProperties");
    bool spoken = false;
    for (int k = 0; k < p->n; k++) {
      const json_t *one = matched >> k & 1 ? json_object_get(by_pattern, p->v[k].text) : NULL;
      if (one) set = schemas_add(b, set, one);
      spoken |= one != NULL;
    }
    if (!spoken && others) set = schemas_add(b, set, others);
  }
  return set;
}

static int add_extra(struct schema_builder *b, struct form *f, struct lang *keys, struct schemas set) {
  int shape = schema_new_shape(b, set);
  if (shape < 0) return -1;
  struct extra *v = pool_get(&b->pool, (size_t)(f->n_extras + 1) * sizeof *v);
  if (f->n_extras) memcpy(v, f->extras, (size_t)f->n_extras * sizeof *v);
  v[f->n_extras] = (struct extra){keys, shape};
  f->extras = v;
  f->n_extras++;
  return 0;
}

/* Split the names that are left by pattern k and those after it. */
static int split_names(struct schema_builder *b, struct form *f, const struct name_patterns *p, int k, unsigned matched,
                       struct lang *left) {
  if (lang_is_empty(left)) return 0;
  if (k == p->n) {
    struct schemas set = extra_schemas(b, &f->b, p, matched);
    return has_false(set) ? 0 : add_extra(b, f, left, set);
  }
  struct lang *in = schema_keep(b, lang_both(left, p->v[k].l)), *out = schema_keep(b, lang_without(left, p->v[k].l));
  if (!in || !out)
    return schema_fail(b, f->b.objects.v[0], "patternProperties", ": together they need more than %d states", LANG_STATES_MAX);
  if (b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  int rc = split_names(b, f, p, k + 1, matched | 1u << k, in);
  return rc != 0 ? rc : split_names(b, f, p, k + 1, matched, out);
}

/* Names that are neither declared nor forbidden. */
static int undeclared_members(struct schema_builder *b, struct form *f, const struct lang *names, const json_t *seen) {
  struct name_patterns p;
  if (name_patterns(b, &f->b, &p) != 0) return -1;
  if (!p.n && has_false(extra_schemas(b, &f->b, &p, 0))) return 0;
  struct str *texts = xcalloc(json_object_size(seen) + 1, sizeof *texts);
  int n = 0;
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)seen, key, v) texts[n++] = str_c(key);
  struct lang *declared = lang_texts(texts, n), *all = names ? NULL : lang_lengths(0, -1), *left = NULL;
  if (declared) left = schema_keep(b, lang_without(names ? names : all, declared));
  lang_delete(declared);
  lang_delete(all);
  free(texts);
  if (!left)
    return err_set(b->e, ERR_BAD_INPUT,
                   "%s: an object with additional properties: its declared names need more than %d states; "
                   "\"additionalProperties\": false does without",
                   b->where, LANG_STATES_MAX);
  return split_names(b, f, &p, 0, 0, left);
}

/* Additional names of which there are few become optional members: these can be counted, and come once. */
static int list_extras(struct schema_builder *b, struct form *f, struct member_list *list) {
  int kept = 0;
  for (int i = 0; i < f->n_extras; i++) {
    struct lang_text texts[NAMES_LISTED];
    int n = lang_list(f->extras[i].keys, NAMES_LISTED, texts);
    if (n < 0) {
      f->extras[kept++] = f->extras[i];
      continue;
    }
    for (int k = 0; k < n; k++) {
      if (list->n == list->cap) list->v = xrealloc(list->v, (size_t)(list->cap = 2 * list->cap + 16) * sizeof *list->v);
      list->v[list->n++] = (struct member){pool_text(&b->pool, texts[k].p, texts[k].n), texts[k].n, f->extras[i].shape, false};
      free(texts[k].p);
    }
  }
  f->n_extras = kept;
  return 0;
}

static int form_object(struct schema_builder *b, struct form *f) {
  struct member_list list = {0};
  struct lang *names = NULL;
  json_t *seen = json_object();
  int rc = f->b.names.n ? names_language(b, &f->b, &names) : 0;
  if (rc == 0) rc = declared_members(b, &f->b, &list, names, seen);
  if (rc == 0) rc = undeclared_members(b, f, names, seen);
  if (rc == 0) rc = list_extras(b, f, &list);
  if (rc == 0) {
    f->members = pool_get(&b->pool, (size_t)(list.n + 1) * sizeof *f->members);
    if (list.n) memcpy(f->members, list.v, (size_t)list.n * sizeof *list.v);
    f->n_members = list.n;
  }
  free(list.v);
  json_decref(seen);
  return rc;
}

/* ---- values that are listed -------------------------------------------------------------------------------------------------------------- */

static int shape_accepts(struct schema_builder *b, int shape, const json_t *v, bool *yes);

static int array_accepts(struct schema_builder *b, const struct form *f, const json_t *v, bool *yes) {
  size_t n = json_array_size(v);
  *yes = (int64_t)n >= f->b.min && (f->b.max < 0 || (int64_t)n <= f->b.max);
  for (size_t i = 0; i < n && *yes; i++) {
    int shape = i < (size_t)f->n_prefix ? f->prefix[i] : f->rest;
    if (shape < 0) *yes = false;
    else if (shape_accepts(b, shape, json_array_get(v, i), yes) != 0) return -1;
    for (size_t k = 0; k < i && *yes && f->b.unique; k++, b->work++) *yes = !json_same(json_array_get(v, i), json_array_get(v, k));
    if (b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  }
  return 0;
}

static int shape_of_member(const struct form *f, struct str key) {
  for (int i = 0; i < f->n_members; i++)
    if (str_eq(str_of(f->members[i].key, f->members[i].n_key), key)) return f->members[i].shape;
  for (int i = 0; i < f->n_extras; i++)
    if (lang_has(f->extras[i].keys, key)) return f->extras[i].shape;
  return -1;
}

static int object_accepts(struct schema_builder *b, const struct form *f, const json_t *v, bool *yes) {
  size_t n = json_object_size(v);
  *yes = (int64_t)n >= f->b.min && (f->b.max < 0 || (int64_t)n <= f->b.max);
  for (int i = 0; i < f->n_members && *yes; i++)
    if (f->members[i].required) *yes = json_object_getn(v, f->members[i].key, f->members[i].n_key) != NULL;
  const char *key;
  json_t *member;
  json_object_foreach((json_t *)v, key, member) {
    if (!*yes) break;
    b->work += f->n_members;
    int shape = shape_of_member(f, str_c(key));
    if (shape < 0) *yes = false;
    else if (shape_accepts(b, shape, member, yes) != 0) return -1;
  }
  return b->work > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
}

static bool number_accepted(const struct branch *x, const json_t *v) {
  struct decimal d = decimal_of(v);
  int lo = x->lo.set ? decimal_order(&d, &x->lo.at) : 1, hi = x->hi.set ? decimal_order(&d, &x->hi.at) : -1;
  int64_t whole;
  if (lo < 0 || (lo == 0 && x->lo.open) || hi > 0 || (hi == 0 && x->hi.open) || (x->integer && !decimal_is_integer(&d))) return false;
  return !x->multiple || (decimal_to_i64(&d, &whole) && whole % x->multiple == 0);
}

/* first: from which list of f->b.values on; those before it have v. */
static int form_accepts(struct schema_builder *b, const struct form *f, int first, const json_t *v, bool *yes) {
  *yes = json_kind(v) == f->b.kind;
  for (int i = first; i < f->b.values.n && *yes; i++) {
    b->work += (int64_t)json_array_size(json_object_get(f->b.values.v[i], "enum")) / 8;
    *yes = schema_lists(f->b.values.v[i], v);
  }
  for (int i = 0; i < f->b.excluded.n && *yes; i++) {
    b->work += (int64_t)json_array_size(json_object_get(f->b.excluded.v[i], "enum")) / 8;
    *yes = !schema_lists(f->b.excluded.v[i], v);
  }
  if (++b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  if (!*yes) return 0;
  switch (f->b.kind) {
  case KIND_NUMBER: *yes = number_accepted(&f->b, v); return 0;
  case KIND_STRING: return schema_text_accepts(b, &f->b, str_of(json_string_value(v), json_string_length(v)), yes);
  case KIND_ARRAY: return array_accepts(b, f, v, yes);
  case KIND_OBJECT: return object_accepts(b, f, v, yes);
  case KIND_NULL:
  case KIND_BOOL:
  case KINDS: break;
  }
  return 0;
}

static int shape_accepts(struct schema_builder *b, int shape, const json_t *v, bool *yes) {
  *yes = false;
  for (int i = 0; i < b->shapes[shape].n_forms && !*yes; i++)
    if (form_accepts(b, &b->shapes[shape].forms[i], 0, v, yes) != 0) return -1;
  return b->work > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
}

/* Keep the listed values that satisfy everything else. */
static int filter_values(struct schema_builder *b, struct form *f) {
  size_t n = 0;
  const json_t *listed = f->b.values.n ? f->b.values.v[0] : NULL, *v;
  if (!listed && f->b.kind != KIND_NULL && f->b.kind != KIND_BOOL) return 0;
  while (listed && schema_values(listed, n)) n++;
  f->valued = true;
  f->values = pool_get(&b->pool, (n + 2) * sizeof *f->values);
  if (!listed) n = f->b.kind == KIND_NULL ? 1 : 2;
  int known = listed && !json_object_get(listed, "const"); /* an enum has what comes from it; its type is in the branch */
  for (size_t i = 0; i < n; i++) {
    bool yes;
    v = listed ? schema_values(listed, i) : f->b.kind == KIND_NULL ? json_null() : i ? json_false() : json_true();
    if (form_accepts(b, f, known, v, &yes) != 0) return -1;
    for (int k = 0; k < f->n_values && yes && n < 500; k++) yes = !json_same(f->values[k], v);
    if (yes) f->values[f->n_values++] = v;
  }
  f->empty = !f->n_values;
  return 0;
}

int shape_values(struct schema_builder *b, int shape, const json_t ***values) {
  const struct shape *s = &b->shapes[shape];
  int n = 0, total = 0;
  for (int i = 0; i < s->n_forms; i++) {
    if (!s->forms[i].valued && !s->forms[i].empty) return -1;
    total += s->forms[i].n_values;
  }
  *values = pool_get(&b->pool, (size_t)(total + 1) * sizeof **values);
  for (int i = 0; i < s->n_forms; i++)
    for (int k = 0; k < s->forms[i].n_values; k++) {
      const json_t *v = s->forms[i].values[k];
      bool known = false;
      for (int j = 0; j < n && !known; j++) known = json_same((*values)[j], v);
      b->work += n;
      if (!known) (*values)[n++] = v;
    }
  return n;
}

/* ---- circles ------------------------------------------------------------------------------------------------------------------------------ */

/* The i-th shape within a form. */
static int form_part(const struct form *f, int i) {
  if (i < f->n_prefix) return f->prefix[i];
  i -= f->n_prefix;
  if (f->rest >= 0 && i-- == 0) return f->rest;
  return i < f->n_members ? f->members[i].shape : f->extras[i - f->n_members].shape;
}

/* Tarjan's strongly connected components, without recursion: `form` and `part` are where each shape on the way has got to. */
static void find_components(struct schema_builder *b) {
  struct visit {
    int order, low, form, part;
    bool waiting;
  } *v = xcalloc((size_t)b->n_shapes, sizeof *v);
  int *way = xcalloc((size_t)b->n_shapes, sizeof *way), *waiting = xcalloc((size_t)b->n_shapes, sizeof *waiting);
  int n_way = 0, n_waiting = 0, order = 0;
  for (int root = 0; root < b->n_shapes; root++) {
    if (v[root].order) continue;
    way[n_way++] = root;
    while (n_way) {
      int s = way[n_way - 1], next = -1;
      struct shape *shape = &b->shapes[s];
      if (!v[s].order) {
        v[s].order = v[s].low = ++order;
        v[s].waiting = true;
        waiting[n_waiting++] = s;
      }
      while (v[s].form < shape->n_forms && next < 0) {
        const struct form *f = &shape->forms[v[s].form];
        int n_parts = f->n_prefix + (f->rest >= 0) + f->n_members + f->n_extras;
        if (v[s].part >= n_parts) {
          v[s].form++;
          v[s].part = 0;
          continue;
        }
        int to = form_part(f, v[s].part++);
        if (to == s) shape->recursive = true;
        if (!v[to].order) next = to;
        else if (v[to].waiting) v[s].low = MIN(v[s].low, v[to].order);
      }
      if (next >= 0) {
        way[n_way++] = next;
        continue;
      }
      n_way--;
      if (n_way) v[way[n_way - 1]].low = MIN(v[way[n_way - 1]].low, v[s].low);
      if (v[s].low != v[s].order) continue;
      bool many = waiting[n_waiting - 1] != s;
      for (int last = -1; last != s;) {
        last = waiting[--n_waiting];
        v[last].waiting = false;
        b->shapes[last].component = s;
        b->shapes[last].recursive |= many;
      }
    }
  }
  free(v);
  free(way);
  free(waiting);
}

/* How deep containers may stand within each other with so many levels of recursion: over the shapes, circles taken as one, the longest way down. */
static int deepest(struct schema_builder *b, int *depth) {
  for (int s = 0; s < b->n_shapes; s++) depth[s] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (int s = b->n_shapes - 1; s >= 0; s--) {
      const struct shape *shape = &b->shapes[s];
      int own = !shape->recursive ? 1 : shape->key.n ? b->levels : b->levels_any, below = 0;
      for (int i = 0; i < shape->n_forms; i++) {
        const struct form *f = &shape->forms[i];
        int n_parts = f->n_prefix + (f->rest >= 0) + f->n_members + f->n_extras;
        for (int k = 0; k < n_parts; k++) {
          int part = form_part(f, k);
          bool same = b->shapes[part].component == shape->component;
          below = MAX(below, same ? depth[part] - own : depth[part]); /* within a circle all have the same way out */
        }
      }
      if (own + below <= depth[s]) continue;
      depth[s] = own + below;
      changed = true;
    }
  }
  return depth[0];
}

static void choose_levels(struct schema_builder *b) {
  int *depth = xcalloc((size_t)b->n_shapes, sizeof *depth);
  b->levels = SCHEMA_LEVELS;
  b->levels_any = SCHEMA_LEVELS_ANY;
  while (b->levels > 4 && deepest(b, depth) > SCHEMA_DEPTH_MAX) {
    b->levels = b->levels * 3 / 4;
    b->levels_any = MAX(4, b->levels_any * 3 / 4);
  }
  free(depth);
}

/* ---- which have values ----------------------------------------------------------------------------------------------------------------------- */

/* Levels that the part needs beyond its parent. */
static int part_height(const struct schema_builder *b, int shape, int part) {
  const struct shape *s = &b->shapes[shape], *p = &b->shapes[part];
  if (p->height == SHAPE_NEVER) return SHAPE_NEVER;
  return s->recursive && s->component == p->component ? p->height + 1 : 0;
}

static int by_height(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static int array_height(struct schema_builder *b, int shape, const struct form *f) {
  int height = 0;
  for (int64_t i = 0; i < f->b.min; i++) {
    int part = i < f->n_prefix ? f->prefix[i] : f->rest;
    height = part < 0 ? SHAPE_NEVER : MAX(height, part_height(b, shape, part));
    if (i >= f->n_prefix) break;
  }
  if (f->b.unique && f->b.min > 1 && height != SHAPE_NEVER && f->rest >= 0) {
    const json_t **values;
    int n = shape_values(b, f->rest, &values);
    if (n >= 0 && n < f->b.min) return SHAPE_NEVER;
  }
  return height;
}

static int object_height(struct schema_builder *b, int shape, const struct form *f) {
  int height = 0, n_optional = 0, needed, least = SHAPE_NEVER;
  int *optional = xcalloc((size_t)f->n_members + 1, sizeof *optional);
  int64_t n_required = 0;
  for (int i = 0; i < f->n_members; i++) {
    int h = part_height(b, shape, f->members[i].shape);
    if (f->members[i].required) height = MAX(height, h), n_required++;
    else optional[n_optional++] = h;
  }
  for (int i = 0; i < f->n_extras; i++) least = MIN(least, part_height(b, shape, f->extras[i].shape));
  if (f->n_extras) optional[n_optional++] = least;
  if (f->b.max >= 0 && n_required > f->b.max) height = SHAPE_NEVER;
  needed = (int)MIN(MAX(f->b.min - n_required, 0), (int64_t)n_optional + 1);
  if (needed) qsort(optional, (size_t)n_optional, sizeof *optional, by_height);
  if (needed > n_optional) height = SHAPE_NEVER;
  else if (needed) height = MAX(height, optional[needed - 1]);
  free(optional);
  return height;
}

static int form_height(struct schema_builder *b, int shape, const struct form *f) {
  if (f->empty) return SHAPE_NEVER;
  if (f->valued) return 0;
  return f->b.kind == KIND_ARRAY ? array_height(b, shape, f) : f->b.kind == KIND_OBJECT ? object_height(b, shape, f) : 0;
}

static int find_heights(struct schema_builder *b) {
  for (bool changed = true; changed;) {
    changed = false;
    for (int s = b->n_shapes - 1; s >= 0; s--) {
      struct shape *shape = &b->shapes[s];
      for (int i = 0; i < shape->n_forms; i++) {
        b->work += 1 + shape->forms[i].n_members;
        int height = form_height(b, s, &shape->forms[i]);
        if (height >= shape->height) continue;
        shape->height = height;
        changed = true;
      }
    }
    if (b->work > 8 * (int64_t)SCHEMA_WORK_MAX) return schema_too_large(b);
  }
  return 0;
}

/* More members than declared ones are asked for: names that are made up may come twice, so only one of them is sure to count. */
static int check_counts(struct schema_builder *b) {
  for (int s = 0; s < b->n_shapes; s++)
    for (int i = 0; i < b->shapes[s].n_forms; i++) {
      const struct form *f = &b->shapes[s].forms[i];
      if (f->b.kind != KIND_OBJECT || f->valued || !f->n_extras || f->b.min <= f->n_members + 1) continue;
      return err_set(b->e, ERR_BAD_INPUT,
                     "%s: keyword \"minProperties\": %lld are asked for and %d declared; more than one of any name is not supported",
                     b->shapes[s].key.n ? schema_place(b, b->shapes[s].key.v[0]) : b->where, (long long)f->b.min, f->n_members);
    }
  return 0;
}

static int check_unique(struct schema_builder *b) {
  for (int s = 0; s < b->n_shapes; s++)
    for (int i = 0; i < b->shapes[s].n_forms; i++) {
      const struct form *f = &b->shapes[s].forms[i];
      const json_t **values;
      if (f->b.kind != KIND_ARRAY || f->valued || !f->b.unique || (f->b.max >= 0 && f->b.max <= 1)) continue;
      if (!f->n_prefix && f->rest >= 0 && shape_values(b, f->rest, &values) >= 0) continue;
      return err_set(b->e, ERR_BAD_INPUT, "%s: keyword \"uniqueItems\" is supported for items of an enum only",
                     b->shapes[s].key.n ? schema_place(b, b->shapes[s].key.v[0]) : b->where);
    }
  return 0;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------------------------- */

static int read_shape(struct schema_builder *b, int shape) {
  if (!b->shapes[shape].forms) {
    struct branches list = {0};
    branches_any(&list);
    struct schemas key = b->shapes[shape].key;
    if (!shape && b->object_only) list.v[0] = list.v[list.n - 1], list.n = 1;
    int rc = 0;
    for (int i = 0; i < key.n && rc == 0; i++) rc = schema_apply(b, key.v[i], NULL, &list);
    b->shapes[shape].forms = new_forms(&list);
    b->shapes[shape].n_forms = rc == 0 ? list.n : 0;
    free(list.v);
    if (rc != 0) return -1;
  }
  struct form *forms = b->shapes[shape].forms; /* shapes may move, forms do not */
  for (int i = 0; i < b->shapes[shape].n_forms; i++) {
    struct form *f = &forms[i];
    int rc = 0;
    if (f->b.kind == KIND_ARRAY) rc = form_array(b, f);
    if (f->b.kind == KIND_OBJECT) rc = form_object(b, f);
    if (f->b.kind == KIND_STRING && !f->b.values.n) rc = schema_text(b, &f->b, &f->text, &f->empty);
    if (f->b.kind == KIND_NUMBER && !f->b.values.n) rc = schema_number(b, f);
    if (rc == 0 && f->b.excluded.n && !f->b.values.n && (f->b.kind == KIND_ARRAY || f->b.kind == KIND_OBJECT))
      rc = schema_fail(b, f->b.excluded.v[0], "not", " of arrays and objects is not supported");
    if (rc != 0) return -1;
  }
  return 0;
}

int schema_shapes(struct schema_builder *b) {
  /* the root is shape 0 and has its own forms when it must be an object; as a part of itself it need not be */
  struct schemas root = schemas_add(b, (struct schemas){0}, b->root);
  if ((b->object_only ? shape_push(b, root) : schema_new_shape(b, root)) < 0) return -1;
  for (int s = 0; s < b->n_shapes; s++)
    if (read_shape(b, s) != 0) return -1;
  for (int s = 0; s < b->n_shapes; s++)
    for (int i = 0; i < b->shapes[s].n_forms; i++)
      if (filter_values(b, &b->shapes[s].forms[i]) != 0) return -1;
  if (check_unique(b) != 0 || check_counts(b) != 0) return -1;
  find_components(b);
  choose_levels(b);
  return find_heights(b);
}
