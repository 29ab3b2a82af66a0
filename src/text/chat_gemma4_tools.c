/* chat_gemma4_tools.c — how Gemma 4 writes values, and functions that it may call.
 *
 *   value        <|"|>text<|"|>   null true false   12 1e-07   [value,value]   {key:value,key:value}
 *   declaration  declaration:NAME{description:<|"|>TEXT<|"|>,parameters:{properties:{PROPERTY,PROPERTY},required:[<|"|>KEY<|"|>],type:<|"|>OBJECT<|"|>}}
 *   property     KEY:{description:<|"|>TEXT<|"|>,enum:[...],items:{...},nullable:true,properties:{...},required:[...],type:<|"|>STRING<|"|>}
 *
 * Keys are sorted, and bare but for those inside an enum or an item's other keywords. Neither texts nor keys are escaped: what keeps a text apart
 * from its frame is that <|"|> is a control token, which no text can become. Other keywords of a JSON schema are not written.
 * The template stops where a value is not of the kind that it walks over; here that is an error which names the tool.
 */
#include <stdlib.h>

#include "text/chat_impl.h"

static void write_str(struct chat_writer *w, const json_t *v) {
  struct buf b;
  buf_init(&b, TOK_TEXT_BYTES_MAX);
  chat_put_str(&b, v);
  w->too_long |= b.overflow;
  chat_write(w, str_of(buf_cstr(&b), b.len));
  buf_free(&b);
}

static void write_quoted(struct chat_writer *w, const json_t *v) {
  chat_write_control(w, "<|\"|>");
  write_str(w, v);
  chat_write_control(w, "<|\"|>");
}

static void write_quoted_upper(struct chat_writer *w, const json_t *v) {
  struct buf b;
  buf_init(&b, TOK_TEXT_BYTES_MAX);
  chat_put_upper(&b, v);
  w->too_long |= b.overflow;
  chat_write_control(w, "<|\"|>");
  chat_write(w, str_of(buf_cstr(&b), b.len));
  chat_write_control(w, "<|\"|>");
  buf_free(&b);
}

/* --- values -------------------------------------------------------------------------------------------------------------------------- */

static void write_members(struct chat_writer *w, const json_t *object, bool quote_keys) {
  size_t n;
  struct chat_entry *entries = chat_sorted(object, &n);
  for (size_t i = 0; i < n; i++) {
    if (i) chat_write_c(w, ",");
    if (quote_keys) chat_write_control(w, "<|\"|>");
    chat_write_c(w, entries[i].key);
    if (quote_keys) chat_write_control(w, "<|\"|>");
    chat_write_c(w, ":");
    chat_gemma4_value(w, entries[i].value, quote_keys);
  }
  free(entries);
}

void chat_gemma4_members(struct chat_writer *w, const json_t *object) { write_members(w, object, false); }

void chat_gemma4_value(struct chat_writer *w, const json_t *v, bool quote_keys) {
  switch (json_typeof(v)) {
  case JSON_NULL: chat_write_c(w, "null"); return;
  case JSON_TRUE: chat_write_c(w, "true"); return;
  case JSON_FALSE: chat_write_c(w, "false"); return;
  case JSON_INTEGER:
  case JSON_REAL: write_str(w, v); return;
  case JSON_STRING: (chat_is_number(v) ? write_str : write_quoted)(w, v); return;
  case JSON_ARRAY:
    chat_write_c(w, "[");
    for (size_t i = 0; i < json_array_size(v); i++) {
      if (i) chat_write_c(w, ",");
      chat_gemma4_value(w, json_array_get(v, i), quote_keys);
    }
    chat_write_c(w, "]");
    return;
  case JSON_OBJECT: break;
  }
  chat_write_c(w, "{");
  write_members(w, v, quote_keys);
  chat_write_c(w, "}");
}

/* --- declarations -------------------------------------------------------------------------------------------------------------------- */

struct declaration {
  struct chat_writer *w;
  size_t tool;
  struct err *e;
};

static int unfit(const struct declaration *d, const char *key, const char *expected) {
  return err_set(d->e, ERR_BAD_INPUT, "tools[%zu].function.parameters: expected every \"%s\" to be %s", d->tool, key, expected);
}

static int write_properties(const struct declaration *d, const json_t *properties, bool skip_keywords);

static bool is_type(const json_t *schema, const char *upper) {
  struct buf b;
  buf_init(&b, TOK_TEXT_BYTES_MAX);
  chat_put_upper(&b, json_object_get(schema, "type"));
  bool is = str_is(str_of(buf_cstr(&b), b.len), upper);
  buf_free(&b);
  return is;
}

static int write_required(const struct declaration *d, const json_t *names) {
  if (!json_is_array(names)) return unfit(d, "required", "an array of names");
  chat_write_c(d->w, "required:[");
  for (size_t i = 0; i < json_array_size(names); i++) {
    if (i) chat_write_c(d->w, ",");
    write_quoted(d->w, json_array_get(names, i));
  }
  chat_write_c(d->w, "]");
  return 0;
}

/* An item's type; of several, each in capitals. */
static int write_item_type(const struct declaration *d, const json_t *type) {
  chat_write_c(d->w, "type:");
  if (json_is_string(type)) {
    write_quoted_upper(d->w, type);
    return 0;
  }
  if (!json_is_array(type)) return unfit(d, "type", "a string or an array");
  chat_write_c(d->w, "[");
  for (size_t i = 0; i < json_array_size(type); i++) {
    if (i) chat_write_c(d->w, ",");
    write_quoted_upper(d->w, json_array_get(type, i));
  }
  chat_write_c(d->w, "]");
  return 0;
}

static int write_items(const struct declaration *d, const json_t *items) {
  size_t n;
  int rc = 0;
  bool first = true;
  struct chat_entry *entries = chat_sorted(items, &n);
  chat_write_c(d->w, "items:{");
  for (size_t i = 0; i < n && rc == 0; i++) {
    struct str key = str_c(entries[i].key);
    const json_t *value = entries[i].value;
    if (json_is_null(value)) continue;
    if (!first) chat_write_c(d->w, ",");
    first = false;
    if (str_is(key, "properties")) {
      chat_write_c(d->w, "properties:{");
      if (json_is_object(value)) rc = write_properties(d, value, false);
      chat_write_c(d->w, "}");
    } else if (str_is(key, "required")) {
      rc = write_required(d, value);
    } else if (str_is(key, "type")) {
      rc = write_item_type(d, value);
    } else {
      chat_write(d->w, key);
      chat_write_c(d->w, ":");
      chat_gemma4_value(d->w, value, true);
    }
  }
  chat_write_c(d->w, "}");
  free(entries);
  return rc;
}

/* An object without properties has its other keywords written as if they were some. */
static int write_object(const struct declaration *d, const json_t *schema) {
  const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
  chat_write_c(d->w, "properties:{");
  if (write_properties(d, json_is_object(properties) ? properties : schema, !json_is_object(properties)) != 0) return -1;
  chat_write_c(d->w, "},");
  if (!chat_truthy(required)) return 0;
  if (write_required(d, required) != 0) return -1;
  chat_write_c(d->w, ",");
  return 0;
}

/* schema: any value; what is no object has no keywords. */
static int write_property(const struct declaration *d, const char *key, const json_t *schema) {
  const json_t *description = json_object_get(schema, "description"), *enumeration = json_object_get(schema, "enum"),
               *items = json_object_get(schema, "items");
  chat_write_c(d->w, key);
  chat_write_c(d->w, ":{");
  if (chat_truthy(description)) {
    chat_write_c(d->w, "description:");
    write_quoted(d->w, description);
    chat_write_c(d->w, ",");
  }
  if (is_type(schema, "STRING") && chat_truthy(enumeration)) {
    chat_write_c(d->w, "enum:");
    chat_gemma4_value(d->w, enumeration, true);
    chat_write_c(d->w, ",");
  }
  if (is_type(schema, "ARRAY") && json_is_object(items) && json_object_size(items)) {
    if (write_items(d, items) != 0) return -1;
    chat_write_c(d->w, ",");
  }
  if (chat_truthy(json_object_get(schema, "nullable"))) chat_write_c(d->w, "nullable:true,");
  if (is_type(schema, "OBJECT") && write_object(d, schema) != 0) return -1;
  chat_write_c(d->w, "type:");
  write_quoted_upper(d->w, json_object_get(schema, "type"));
  chat_write_c(d->w, "}");
  return 0;
}

static int write_properties(const struct declaration *d, const json_t *properties, bool skip_keywords) {
  static const char *const keywords[] = {"description", "type", "properties", "required", "nullable"};
  size_t n;
  int rc = 0;
  bool first = true;
  struct chat_entry *entries = chat_sorted(properties, &n);
  for (size_t i = 0; i < n && rc == 0; i++) {
    bool skip = false;
    for (size_t k = 0; skip_keywords && k < ARRAY_LEN(keywords); k++) skip |= str_is(str_c(entries[i].key), keywords[k]);
    if (skip) continue;
    if (!first) chat_write_c(d->w, ",");
    first = false;
    rc = write_property(d, entries[i].key, entries[i].value);
  }
  free(entries);
  return rc;
}

/* Without a type the template does not close the brace. */
static int write_parameters(const struct declaration *d, const json_t *parameters) {
  const json_t *properties = json_object_get(parameters, "properties"), *required = json_object_get(parameters, "required"),
               *type = json_object_get(parameters, "type");
  chat_write_c(d->w, ",parameters:{");
  if (chat_truthy(properties)) {
    if (!json_is_object(properties)) return unfit(d, "properties", "an object");
    chat_write_c(d->w, "properties:{");
    if (write_properties(d, properties, false) != 0) return -1;
    chat_write_c(d->w, "},");
  }
  if (chat_truthy(required)) {
    if (write_required(d, required) != 0) return -1;
    chat_write_c(d->w, ",");
  }
  if (!chat_truthy(type)) return 0;
  chat_write_c(d->w, "type:");
  write_quoted_upper(d->w, type);
  chat_write_c(d->w, "}");
  return 0;
}

static void write_response(struct chat_writer *w, const json_t *response) {
  chat_write_c(w, ",response:{");
  if (chat_truthy(json_object_get(response, "description"))) {
    chat_write_c(w, "description:");
    write_quoted(w, json_object_get(response, "description"));
    chat_write_c(w, ",");
  }
  if (!is_type(response, "OBJECT")) return;
  chat_write_c(w, "type:");
  write_quoted_upper(w, json_object_get(response, "type"));
  chat_write_c(w, "}");
}

int chat_gemma4_declare(struct chat_writer *w, const json_t *tool, size_t i, struct err *e) {
  const struct declaration d = {.w = w, .tool = i, .e = e};
  const json_t *function = json_object_get(tool, "function"), *parameters = json_object_get(function, "parameters");
  chat_write_control(w, "<|tool>");
  chat_write_c(w, "declaration:");
  write_str(w, json_object_get(function, "name"));
  chat_write_c(w, "{description:");
  write_quoted(w, json_object_get(function, "description"));
  if (chat_truthy(parameters) && write_parameters(&d, parameters) != 0) return -1;
  if (json_object_get(function, "response")) write_response(w, json_object_get(function, "response"));
  chat_write_c(w, "}");
  chat_write_control(w, "<tool|>");
  return 0;
}
