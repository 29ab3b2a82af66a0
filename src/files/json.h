/* json.h — thin helpers over jansson: parse with limits, typed getters whose messages carry the path.
 *
 * json_load_text accepts UTF-8 only, one value with nothing after it, depth at most 64 levels (jansson's own limit is lowered by
 * a pre-scan), at most JSON_VALUES_MAX values of which JSON_CONTAINERS_MAX objects and arrays, duplicate keys refused, NUL in strings allowed only when allow_nul. Errors: "config.json: line 3: ...".
 */
#ifndef CYGNET_JSON_H
#define CYGNET_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

enum { JSON_DEPTH_MAX = 64, JSON_VALUES_MAX = 8 << 20, JSON_CONTAINERS_MAX = 1 << 20 };

/* Returns owned (json_decref). `what` names the source in messages. */
json_t *json_load_text(const char *text, size_t n, bool allow_nul, const char *what, struct err *e);
/* Whole file, at most max_bytes. */
json_t *json_load_path(const char *path, size_t max_bytes, struct err *e);

/* Getters on an object: 1 present, 0 absent or null, -1 wrong type or out of range with *e set
 * ("config.json: text_config.hidden_size: expected an integer from 1 to 1048576, found \"big\""). where: "config.json: text_config". */
int json_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, const char *where, struct err *e);
int json_get_float(const json_t *o, const char *key, double lo, double hi, double *out, const char *where,
                   struct err *e); /* takes integers too; finite */
int json_get_bool(const json_t *o, const char *key, bool *out, const char *where, struct err *e);
int json_get_string(const json_t *o, const char *key, const char **out, size_t *len, const char *where, struct err *e); /* borrows */
int json_get_object(const json_t *o, const char *key, const json_t **out, const char *where, struct err *e);
int json_get_array(const json_t *o, const char *key, const json_t **out, const char *where, struct err *e);

/* Compact text of a value appended to b: keys in their order, reals with the fewest digits that read back the same. */
bool json_put(struct buf *b, const json_t *v);

#endif
