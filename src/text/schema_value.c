/* schema_value.c — values of JSON as schemas compare them: numbers as decimals, exactly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/schema_impl.h"

enum kind json_kind(const json_t *v) {
  switch (json_typeof(v)) {
  case JSON_NULL: return KIND_NULL;
  case JSON_TRUE:
  case JSON_FALSE: return KIND_BOOL;
  case JSON_INTEGER:
  case JSON_REAL: return KIND_NUMBER;
  case JSON_STRING: return KIND_STRING;
  case JSON_ARRAY: return KIND_ARRAY;
  case JSON_OBJECT: break;
  }
  return KIND_OBJECT;
}

/* ---- decimals ----------------------------------------------------------------------------------------------------------------------- */

/* digits[0..n) with the point behind `point` of them → without zeros at the ends. */
static void normalize(struct decimal *d) {
  int zeros = 0;
  while (zeros < d->n && d->digits[zeros] == '0') zeros++;
  memmove(d->digits, d->digits + zeros, (size_t)(d->n - zeros));
  d->n -= zeros;
  d->point -= zeros;
  while (d->n && d->digits[d->n - 1] == '0') d->n--;
  if (!d->n) d->point = 0, d->negative = false;
}

struct decimal decimal_of_i64(int64_t v) {
  struct decimal d = {.negative = v < 0};
  char text[32];
  d.n = snprintf(text, sizeof text, "%llu", v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v);
  memcpy(d.digits, text, (size_t)d.n);
  d.point = d.n;
  normalize(&d);
  return d;
}

/* A real is the shortest decimal that reads back as the same: what was written, as a rule. */
struct decimal decimal_of(const json_t *number) {
  if (json_is_integer(number)) return decimal_of_i64(json_integer_value(number));
  double v = json_real_value(number);
  struct decimal d = {.negative = v < 0};
  char text[40];
  for (int precision = 14; precision <= 16; precision++) {
    snprintf(text, sizeof text, "%.*e", precision, fabs(v));
    if (strtod(text, NULL) == fabs(v)) break;
  }
  for (const char *p = text; *p && *p != 'e'; p++)
    if (*p >= '0' && *p <= '9') d.digits[d.n++] = *p;
  d.point = 1 + atoi(strchr(text, 'e') + 1);
  normalize(&d);
  return d;
}

static int order_of_size(const struct decimal *a, const struct decimal *b) {
  if (!a->n || !b->n) return (a->n > 0) - (b->n > 0);
  if (a->point != b->point) return a->point < b->point ? -1 : 1;
  int order = memcmp(a->digits, b->digits, (size_t)MIN(a->n, b->n));
  return order ? order : a->n - b->n;
}

int decimal_order(const struct decimal *a, const struct decimal *b) {
  if (a->negative != b->negative) return a->negative ? -1 : 1;
  return a->negative ? order_of_size(b, a) : order_of_size(a, b);
}

bool decimal_is_integer(const struct decimal *d) { return d->n <= d->point || !d->n; }

bool decimal_to_i64(const struct decimal *d, int64_t *out) {
  char text[32];
  if (!decimal_is_integer(d) || d->point > 19) return false;
  int n = 0;
  if (d->negative) text[n++] = '-';
  for (int i = 0; i < d->point; i++) text[n++] = i < d->n ? d->digits[i] : '0';
  if (!d->n) text[n++] = '0';
  return str_to_i64(str_of(text, (size_t)n), INT64_MIN, INT64_MAX, out);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------- */

bool json_same(const json_t *a, const json_t *b) {
  if (json_kind(a) != json_kind(b)) return false;
  switch (json_kind(a)) {
  case KIND_NULL: return true;
  case KIND_BOOL: return json_is_true(a) == json_is_true(b);
  case KIND_NUMBER: {
    struct decimal x = decimal_of(a), y = decimal_of(b);
    return decimal_order(&x, &y) == 0;
  }
  case KIND_STRING:
    return json_string_length(a) == json_string_length(b) && !memcmp(json_string_value(a), json_string_value(b), json_string_length(a));
  case KIND_ARRAY:
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++)
      if (!json_same(json_array_get(a, i), json_array_get(b, i))) return false;
    return true;
  case KIND_OBJECT: {
    const char *key;
    json_t *v;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, v) {
      const json_t *other = json_object_get(b, key);
      if (!other || !json_same(v, other)) return false;
    }
    return true;
  }
  case KINDS: break;
  }
  return false;
}

const json_t *schema_values(const json_t *schema, size_t i) {
  const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
  if (i < json_array_size(list)) return json_array_get(list, i);
  return one && i == json_array_size(list) ? one : NULL;
}

static int type_bit(const char *name) {
  static const char *const names[KINDS] = {"null", "boolean", "number", "string", "array", "object"};
  for (int k = 0; k < KINDS; k++)
    if (!strcmp(name, names[k])) return 1 << k;
  return TYPE_INTEGER;
}

int schema_type_mask(const json_t *schema) {
  const json_t *type = json_object_get(schema, "type");
  if (!type) return -1;
  int mask = json_is_true(json_object_get(schema, "nullable")) ? 1 << KIND_NULL : 0;
  if (json_is_string(type)) return mask | type_bit(json_string_value(type));
  for (size_t i = 0; i < json_array_size(type); i++) mask |= type_bit(json_string_value(json_array_get(type, i)));
  return mask;
}

static bool type_fits(int mask, const json_t *v) {
  if (mask & 1 << json_kind(v)) return true;
  if (!json_is_number(v) || !(mask & TYPE_INTEGER)) return false;
  struct decimal d = decimal_of(v);
  return decimal_is_integer(&d);
}

/* enum and const beside each other must both hold. */
bool schema_lists(const json_t *schema, const json_t *v) {
  const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
  bool listed = !list;
  for (size_t i = 0; !listed && i < json_array_size(list); i++) listed = json_same(json_array_get(list, i), v);
  return listed && (!one || json_same(one, v)) && type_fits(schema_type_mask(schema), v);
}
