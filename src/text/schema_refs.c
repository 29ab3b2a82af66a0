/* schema_refs.c — where every subschema stands, which keywords are known, and what $ref refers to. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "text/schema_impl.h"

enum { INDEX_NEST_MAX = 256 };

/* ---- memory ----------------------------------------------------------------------------------------------------------------------- */

struct pool_block {
  struct pool_block *next;
  size_t used, size;
  max_align_t data[];
};

void *pool_get(struct schema_pool *p, size_t n_bytes) {
  size_t n = (n_bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
  if (!p->last || p->last->size - p->last->used < n) {
    size_t size = MAX(n, (size_t)16384);
    struct pool_block *block = xcalloc(1, sizeof *block + size);
    block->size = size;
    block->next = p->last;
    p->last = block;
  }
  char *at = (char *)p->last->data + p->last->used;
  p->last->used += n;
  return at;
}

char *pool_text(struct schema_pool *p, const char *text, size_t n) {
  char *copy = pool_get(p, n + 1);
  memcpy(copy, text, n);
  return copy;
}

void pool_free(struct schema_pool *p) {
  for (struct pool_block *block = p->last, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  p->last = NULL;
}

/* ---- keywords --------------------------------------------------------------------------------------------------------------------- */

enum keyword_value {
  VALUE_ANY,
  VALUE_SCHEMA,
  VALUE_SCHEMAS,
  VALUE_ITEMS,
  VALUE_MAP,
  VALUE_COUNT,
  VALUE_NUMBER,
  VALUE_BOUND,
  VALUE_BOOL,
  VALUE_TEXT,
  VALUE_TEXTS,
  VALUE_TYPE,
  VALUE_LIST,
  VALUE_REFUSED,
  VALUE_REFUSED_MAP
};

static const struct keyword {
  const char *name;
  enum keyword_value value;
} keywords[] = {
    {"type", VALUE_TYPE},
    {"nullable", VALUE_BOOL},
    {"enum", VALUE_LIST},
    {"const", VALUE_ANY},
    {"properties", VALUE_MAP},
    {"required", VALUE_TEXTS},
    {"additionalProperties", VALUE_SCHEMA},
    {"patternProperties", VALUE_MAP},
    {"propertyNames", VALUE_SCHEMA},
    {"minProperties", VALUE_COUNT},
    {"maxProperties", VALUE_COUNT},
    {"items", VALUE_ITEMS},
    {"prefixItems", VALUE_SCHEMAS},
    {"additionalItems", VALUE_SCHEMA},
    {"minItems", VALUE_COUNT},
    {"maxItems", VALUE_COUNT},
    {"uniqueItems", VALUE_BOOL},
    {"minLength", VALUE_COUNT},
    {"maxLength", VALUE_COUNT},
    {"pattern", VALUE_TEXT},
    {"format", VALUE_TEXT},
    {"minimum", VALUE_NUMBER},
    {"maximum", VALUE_NUMBER},
    {"exclusiveMinimum", VALUE_BOUND},
    {"exclusiveMaximum", VALUE_BOUND},
    {"multipleOf", VALUE_NUMBER},
    {"anyOf", VALUE_SCHEMAS},
    {"oneOf", VALUE_SCHEMAS},
    {"allOf", VALUE_SCHEMAS},
    {"not", VALUE_SCHEMA},
    {"$ref", VALUE_TEXT},
    {"$defs", VALUE_MAP},
    {"definitions", VALUE_MAP},
    {"$anchor", VALUE_TEXT},
    {"$id", VALUE_TEXT},
    /* would change which values are valid, and are not known here */
    {"contains", VALUE_REFUSED},
    {"minContains", VALUE_REFUSED},
    {"maxContains", VALUE_REFUSED},
    {"if", VALUE_REFUSED},
    {"then", VALUE_REFUSED},
    {"else", VALUE_REFUSED},
    {"dependencies", VALUE_REFUSED_MAP},
    {"dependentSchemas", VALUE_REFUSED_MAP},
    {"dependentRequired", VALUE_REFUSED},
    {"unevaluatedItems", VALUE_REFUSED},
    {"unevaluatedProperties", VALUE_REFUSED},
    {"$dynamicRef", VALUE_REFUSED},
    {"$recursiveRef", VALUE_REFUSED},
    {"extends", VALUE_REFUSED},
    {"disallow", VALUE_REFUSED},
    {"divisibleBy", VALUE_REFUSED},
};

static const struct keyword *keyword_find(const char *name) {
  for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
    if (!strcmp(keywords[i].name, name)) return &keywords[i];
  return NULL;
}

/* ---- messages ---------------------------------------------------------------------------------------------------------------------- */

const char *schema_place(struct schema_builder *b, const json_t *schema) {
  int chain[64], n = 0, at = *lang_map_at(&b->place_of, (uint64_t)(uintptr_t)schema);
  for (; at >= 0 && n < 64; at = b->places[at].parent) chain[n++] = at;
  struct buf text;
  buf_init(&text, 400);
  buf_puts(&text, b->where);
  while (n--)
    if (*b->places[chain[n]].step) buf_printf(&text, ".%s", b->places[chain[n]].step);
  const char *kept = pool_text(&b->pool, buf_cstr(&text), text.len);
  buf_free(&text);
  return kept;
}

int schema_fail(struct schema_builder *b, const json_t *schema, const char *keyword, const char *fmt, ...) {
  char rest[300];
  va_list args;
  va_start(args, fmt);
  vsnprintf(rest, sizeof rest, fmt, args);
  va_end(args);
  return err_set(b->e, ERR_BAD_INPUT, "%s: keyword \"%s\"%s", schema_place(b, schema), keyword, rest);
}

int schema_too_large(struct schema_builder *b) {
  return err_set(b->e, ERR_BAD_INPUT, "%s: the schema is too large: its combinations need more than %d steps", b->where, SCHEMA_WORK_MAX);
}

/* ---- well-formed keywords ---------------------------------------------------------------------------------------------------------- */

static bool is_schema(const json_t *v) { return json_is_object(v) || json_is_boolean(v); }
static bool is_list_of_schemas(const json_t *v) {
  if (!json_is_array(v) || !json_array_size(v)) return false;
  for (size_t i = 0; i < json_array_size(v); i++)
    if (!is_schema(json_array_get(v, i))) return false;
  return true;
}
static bool is_map_of_schemas(const json_t *v) {
  const char *key;
  json_t *value;
  if (!json_is_object(v)) return false;
  json_object_foreach((json_t *)v, key, value) if (!is_schema(value)) return false;
  return true;
}
static bool is_count(const json_t *v) {
  if (json_is_integer(v)) return json_integer_value(v) >= 0;
  return json_is_real(v) && json_real_value(v) >= 0 && json_real_value(v) < 9e15 &&
         json_real_value(v) == (double)(int64_t)json_real_value(v);
}
static bool is_list_of_texts(const json_t *v) {
  if (!json_is_array(v)) return false;
  for (size_t i = 0; i < json_array_size(v); i++)
    if (!json_is_string(json_array_get(v, i))) return false;
  return true;
}
static bool is_type_name(const json_t *v) {
  static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  for (size_t i = 0; i < 7; i++)
    if (json_is_string(v) && !strcmp(json_string_value(v), names[i])) return true;
  return false;
}
static bool is_type(const json_t *v) {
  if (!json_is_array(v)) return is_type_name(v);
  for (size_t i = 0; i < json_array_size(v); i++)
    if (!is_type_name(json_array_get(v, i))) return false;
  return json_array_size(v) > 0;
}

static const char *keyword_expects(enum keyword_value value, const json_t *v) {
  switch (value) {
  case VALUE_SCHEMA: return is_schema(v) ? NULL : "a schema (an object, true or false)";
  case VALUE_SCHEMAS: return is_list_of_schemas(v) ? NULL : "an array of schemas, one at least";
  case VALUE_ITEMS:
    return is_schema(v) || is_list_of_schemas(v) || (json_is_array(v) && !json_array_size(v)) ? NULL : "a schema or an array of schemas";
  case VALUE_MAP: return is_map_of_schemas(v) ? NULL : "an object of schemas";
  case VALUE_COUNT: return is_count(v) ? NULL : "an integer from 0 up";
  case VALUE_NUMBER: return json_is_number(v) ? NULL : "a number";
  case VALUE_BOUND: return json_is_number(v) || json_is_boolean(v) ? NULL : "a number";
  case VALUE_BOOL: return json_is_boolean(v) ? NULL : "true or false";
  case VALUE_TEXT: return json_is_string(v) ? NULL : "a string";
  case VALUE_TEXTS: return is_list_of_texts(v) ? NULL : "an array of strings";
  case VALUE_TYPE: return is_type(v) ? NULL : "null, boolean, integer, number, string, array or object, or an array of these";
  case VALUE_LIST: return json_is_array(v) ? NULL : "an array";
  case VALUE_ANY:
  case VALUE_REFUSED:
  case VALUE_REFUSED_MAP: break;
  }
  return NULL;
}

int schema_check(struct schema_builder *b, const json_t *schema) {
  int *at = lang_map_at(&b->place_of, (uint64_t)(uintptr_t)schema);
  if (*at >= 0 && b->places[*at].checked) return 0;
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)schema, key, v) {
    const struct keyword *k = keyword_find(key);
    if (!k) { /* an annotation, unless it is a slip of the pen */
      for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (!strcasecmp(keywords[i].name, key)) return schema_fail(b, schema, key, " is not known; expected \"%s\"", keywords[i].name);
      continue;
    }
    if (k->value == VALUE_REFUSED || k->value == VALUE_REFUSED_MAP) return schema_fail(b, schema, key, " is not supported");
    const char *expected = keyword_expects(k->value, v);
    if (expected) return schema_fail(b, schema, key, ": expected %s", expected);
  }
  const json_t *multiple = json_object_get(schema, "multipleOf");
  if (multiple && json_number_value(multiple) <= 0) return schema_fail(b, schema, "multipleOf", ": expected a number above 0");
  if (*at >= 0) b->places[*at].checked = true;
  return 0;
}

/* ---- URIs ------------------------------------------------------------------------------------------------------------------------- */

static size_t scheme_length(const char *uri) {
  size_t n = 0;
  while ((uri[n] | 32) >= 'a' && (uri[n] | 32) <= 'z') n++;
  if (!n) return 0;
  while (((uri[n] | 32) >= 'a' && (uri[n] | 32) <= 'z') || (uri[n] >= '0' && uri[n] <= '9') || (uri[n] && strchr("+-.", uri[n]))) n++;
  return uri[n] == ':' ? n + 1 : 0;
}

/* "a/./b/../c" → "a/c", from `from` on. */
static void drop_dots(char *path) {
  char *in = path, *out = path;
  while (*in) {
    size_t n = strcspn(in, "/");
    bool slash = in[n] == '/';
    if (n == 2 && in[0] == '.' && in[1] == '.') {
      if (out > path) out--;
      while (out > path && out[-1] != '/') out--;
    } else if (!(n == 1 && in[0] == '.')) {
      memmove(out, in, n + slash);
      out += n + slash;
    }
    in += n + slash;
  }
  *out = 0;
}

/* ref without its fragment, seen from base. */
static const char *uri_join(struct schema_builder *b, const char *base, const char *ref, size_t n_ref) {
  char *text = pool_text(&b->pool, ref, n_ref);
  if (!n_ref) return base;
  size_t scheme = scheme_length(base), keep;
  if (scheme_length(text) || !*base) return text;
  size_t authority = scheme;
  if (!strncmp(base + scheme, "//", 2)) authority = scheme + 2 + strcspn(base + scheme + 2, "/");
  else if (scheme) return text; /* urn:... has no places beside it */
  const char *slash = strrchr(base, '/');
  if (!strncmp(text, "//", 2)) keep = scheme;
  else if (*text == '/') keep = authority;
  else keep = slash && (size_t)(slash - base) >= authority ? (size_t)(slash - base) + 1 : authority;
  bool add_slash = keep == authority && authority > scheme && *text != '/';
  char *joined = pool_get(&b->pool, keep + n_ref + 2);
  memcpy(joined, base, keep);
  if (add_slash) joined[keep] = '/';
  memcpy(joined + keep + add_slash, text, n_ref);
  size_t path = MIN(strlen(joined), authority); /* shorter where ref brought its own authority */
  drop_dots(joined + path + (joined[path] == '/'));
  return joined;
}

/* ---- places ----------------------------------------------------------------------------------------------------------------------- */

static void add_resource(struct schema_builder *b, const char *uri, const char *anchor, int place) {
  if (b->n_resources == b->cap_resources) {
    b->cap_resources = b->cap_resources ? 2 * b->cap_resources : 16;
    b->resources = xrealloc(b->resources, (size_t)b->cap_resources * sizeof *b->resources);
  }
  b->resources[b->n_resources++] = (struct resource){uri, anchor, place};
}

static int add_place(struct schema_builder *b, const json_t *schema, int parent, const char *step, int nest);

static int add_list(struct schema_builder *b, const json_t *list, int parent, const char *name, int nest) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    char step[64];
    int n = snprintf(step, sizeof step, "%s[%zu]", name, i);
    if (add_place(b, json_array_get(list, i), parent, pool_text(&b->pool, step, (size_t)n), nest) != 0) return -1;
  }
  return 0;
}

static int add_map(struct schema_builder *b, const json_t *map, int parent, const char *name, int nest) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)map, key, value) {
    char step[160], shown[100];
    int n = snprintf(step, sizeof step, "%s.%s", name, str_escape(str_c(key), shown, sizeof shown));
    if (add_place(b, value, parent, pool_text(&b->pool, step, (size_t)n), nest) != 0) return -1;
  }
  return 0;
}

/* $id, $anchor: what a place may be called. */
static void add_names(struct schema_builder *b, int place) {
  const json_t *schema = b->places[place].schema;
  const char *id = json_string_value(json_object_get(schema, "$id")), *draft = json_string_value(json_object_get(b->root, "$schema"));
  bool beside_ref = draft && strstr(draft, "draft-0") && json_object_get(schema, "$ref"); /* up to draft 7 it means nothing there */
  if (id && !beside_ref) {
    size_t n = strcspn(id, "#");
    if (n) {
      b->places[place].base = uri_join(b, b->places[place].base, id, n);
      add_resource(b, b->places[place].base, NULL, place);
    }
    if (id[n] == '#' && id[n + 1] && id[n + 1] != '/') add_resource(b, b->places[place].base, id + n + 1, place); /* draft 7 */
  }
  static const char *const anchors[] = {"$anchor", "$dynamicAnchor"};
  for (int i = 0; i < 2; i++) {
    const char *anchor = json_string_value(json_object_get(schema, anchors[i]));
    if (anchor) add_resource(b, b->places[place].base, anchor, place);
  }
}

static int add_place(struct schema_builder *b, const json_t *schema, int parent, const char *step, int nest) {
  if (!json_is_object(schema)) return 0;
  if (nest > INDEX_NEST_MAX) return err_set(b->e, ERR_BAD_INPUT, "%s: schemas nested deeper than %d levels", b->where, INDEX_NEST_MAX);
  if (++b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
  int *known = lang_map_at(&b->place_of, (uint64_t)(uintptr_t)schema);
  if (*known >= 0) return 0;
  if (b->n_places == b->cap_places) {
    b->cap_places = b->cap_places ? 2 * b->cap_places : 64;
    b->places = xrealloc(b->places, (size_t)b->cap_places * sizeof *b->places);
  }
  int place = *known = b->n_places++;
  b->places[place] = (struct place){.schema = schema, .parent = parent, .step = step, .base = parent < 0 ? "" : b->places[parent].base};
  if (parent < 0) add_resource(b, "", NULL, place);
  add_names(b, place);
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)schema, key, v) {
    const struct keyword *k = keyword_find(key);
    if (!k) continue;
    int rc = 0;
    if (k->value == VALUE_SCHEMA || k->value == VALUE_ITEMS || k->value == VALUE_REFUSED)
      rc = json_is_array(v) ? add_list(b, v, place, k->name, nest + 1) : add_place(b, v, place, k->name, nest + 1);
    else if (k->value == VALUE_SCHEMAS) rc = add_list(b, v, place, k->name, nest + 1);
    else if (k->value == VALUE_MAP || k->value == VALUE_REFUSED_MAP) rc = add_map(b, v, place, k->name, nest + 1);
    if (rc != 0) return rc;
  }
  return 0;
}

int schema_index(struct schema_builder *b) { return add_place(b, b->root, -1, "", 0); }

/* ---- $ref ------------------------------------------------------------------------------------------------------------------------- */

/* One step of a JSON pointer, %XX and ~0 ~1 undone; *p moves behind it. */
static char *pointer_step(struct schema_builder *b, const char **p) {
  size_t n = strcspn(*p, "/"), len = 0;
  const char *from = *p;
  char *text = pool_get(&b->pool, n + 1);
  for (size_t i = 0; i < n; i++) {
    if (from[i] == '%' && i + 2 < n && str_hex_digit(from[i + 1]) >= 0 && str_hex_digit(from[i + 2]) >= 0) {
      text[len++] = (char)(str_hex_digit(from[i + 1]) << 4 | str_hex_digit(from[i + 2]));
      i += 2;
    } else {
      text[len++] = from[i];
    }
  }
  text[len] = 0;
  char *out = text;
  for (const char *in = text; *in; in++) {
    bool escaped = *in == '~' && (in[1] == '0' || in[1] == '1');
    *out++ = escaped ? (in[1] == '0' ? '~' : '/') : *in;
    in += escaped;
  }
  *out = 0;
  *p += n;
  return text;
}

static const json_t *follow_pointer(struct schema_builder *b, const json_t *from, const char *pointer) {
  const json_t *at = from;
  while (at && *pointer == '/') {
    pointer++;
    const char *step = pointer_step(b, &pointer);
    int64_t index;
    if (json_is_array(at)) at = str_to_i64(str_c(step), 0, INT32_MAX, &index) ? json_array_get(at, (size_t)index) : NULL;
    else at = json_object_get(at, step);
  }
  return at;
}

int schema_resolve(struct schema_builder *b, const json_t *schema, const char *ref, const json_t **target) {
  char shown[160];
  str_escape(str_c(ref), shown, sizeof shown);
  int from = *lang_map_at(&b->place_of, (uint64_t)(uintptr_t)schema), resource = -1;
  const char *base = from < 0 ? "" : b->places[from].base, *fragment = ref + strcspn(ref, "#");
  const char *uri = uri_join(b, base, ref, (size_t)(fragment - ref));
  if (*fragment) fragment++;
  bool anchor = *fragment && *fragment != '/';
  for (int i = 0; i < b->n_resources && resource < 0; i++) {
    const struct resource *r = &b->resources[i];
    if (!strcmp(r->uri, uri) && (anchor ? r->anchor && !strcmp(r->anchor, fragment) : !r->anchor)) resource = i;
  }
  b->work += b->n_resources / 8;
  if (resource < 0) {
    if (fragment != ref && *ref != '#')
      return schema_fail(b, schema, "$ref", ": \"%s\" is not a part of this schema, and others are not fetched", shown);
    return schema_fail(b, schema, "$ref", ": there is nothing at \"%s\"", shown);
  }
  int place = b->resources[resource].place;
  *target = b->places[place].schema;
  if (anchor || !*fragment) return 0;
  *target = follow_pointer(b, *target, fragment);
  if (!*target || !is_schema(*target))
    return schema_fail(b, schema, "$ref", ": there is %s at \"%s\"", *target ? "no schema" : "nothing", shown);
  return add_place(b, *target, place, pool_text(&b->pool, fragment + 1, strlen(fragment + 1)), 0);
}
