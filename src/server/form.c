/* form.c — tools and formats of a request → a grammar. Runs on the prep thread. */
#include "server/form.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema.h"

enum { FORM_TEXT_MAX = 1 << 20 };

/* ---- formats ---------------------------------------------------------------------------------------------------------------- */

static void set_form(struct params *p, struct form *f, const char *field, enum cygnet_grammar_kind kind, const char *text, size_t n) {
  if (f->field) params_fail(p, field, "not allowed together with %s", f->field);
  if (n > FORM_TEXT_MAX) params_fail(p, field, "expected at most %d bytes, found %zu", FORM_TEXT_MAX, n);
  if (p->failed) return;
  f->field = field;
  f->kind = kind;
  buf_append(&f->text, text, n);
}

static void set_schema(struct params *p, struct form *f, const char *field, const json_t *schema) {
  struct buf text;
  if (!json_is_object(schema) && !json_is_boolean(schema)) params_fail(p, field, "expected a JSON schema, an object");
  if (p->failed) return;
  buf_init(&text, 0);
  json_put(&text, schema);
  set_form(p, f, field, CYGNET_GRAMMAR_JSON_SCHEMA, text.data, text.len);
  buf_free(&text);
}

static void check_no_schema(struct params *p, const char *field, const json_t *format) {
  static const char *const names[] = {"json_schema", "schema"};
  for (size_t i = 0; i < ARRAY_LEN(names); i++)
    if (params_is_given(json_object_get(format, names[i]))) params_fail(p, field, "%s: only allowed with type \"json_schema\"", names[i]);
}

/* {"type": "text" | "json_object" | "json_schema"}; the schema in "json_schema", as chat completions have it, or beside the type, as Responses do. */
static void read_response_format(struct params *p, struct form *f) {
  static const char field[] = "response_format", any_object[] = "{\"type\":\"object\"}";
  const json_t *format = NULL, *outer;
  char shown[60];
  if (!params_object(p, field, &format)) return;
  const char *type = json_string_value(json_object_get(format, "type"));
  outer = json_object_get(format, "json_schema");
  if (!type) {
    params_fail(p, field, "type: expected \"text\", \"json_object\" or \"json_schema\"");
  } else if (!strcmp(type, "text")) {
    check_no_schema(p, field, format);
  } else if (!strcmp(type, "json_object")) {
    check_no_schema(p, field, format);
    set_form(p, f, field, CYGNET_GRAMMAR_JSON_SCHEMA, any_object, strlen(any_object));
  } else if (!strcmp(type, "json_schema")) {
    const json_t *o = json_is_object(outer) ? outer : format, *schema = json_object_get(o, "schema");
    struct err why;
    bool strict;
    const char *name;
    if (json_get_bool(o, "strict", &strict, "json_schema", &why) < 0 || json_get_string(o, "name", &name, NULL, "json_schema", &why) < 0)
      params_fail(p, field, "%s", why.msg);
    if (!schema) params_fail(p, field, "json_schema.schema: expected a JSON schema, not found");
    set_schema(p, f, field, schema);
  } else if (!strcmp(type, "structural_tag")) {
    params_refuse(p, field, "\"structural_tag\" is not supported by this server");
  } else {
    params_fail(p, field, "type: expected \"text\", \"json_object\" or \"json_schema\", found \"%s\"",
                str_escape(str_c(type), shown, sizeof shown));
  }
}

static void read_text(struct params *p, struct form *f, const char *field, enum cygnet_grammar_kind kind, const char *what) {
  const json_t *v = json_object_get(p->object, field);
  const char *text;
  size_t n;
  if (params_string(p, field, FORM_TEXT_MAX, &text, &n)) set_form(p, f, field, kind, text, n);
  else if (json_is_string(v)) params_fail(p, field, "expected %s, found an empty string", what);
}

/* SGLang's fields. json_schema is a string with JSON in it, or the schema itself. */
void form_read_format(struct params *p, struct form *f) {
  const json_t *schema = json_object_get(p->object, "json_schema");
  if (json_is_string(schema)) {
    struct err why;
    json_t *read = json_load_text(json_string_value(schema), json_string_length(schema), false, "json_schema", &why);
    if (!read) params_fail(p, "json_schema", "%s", why.msg);
    else set_schema(p, f, "json_schema", read);
    json_decref(read);
  } else if (schema && !json_is_null(schema)) {
    set_schema(p, f, "json_schema", schema);
  }
  read_text(p, f, "regex", CYGNET_GRAMMAR_REGEX, "a regular expression");
  read_text(p, f, "ebnf", CYGNET_GRAMMAR_EBNF, "a grammar");
}

/* ---- tools -------------------------------------------------------------------------------------------------------------------- */

static const char *name_of(const json_t *tools, size_t i) {
  return json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
}

/* {"type", "function"} of each and nothing else. bare: the list is of functions. Returns owned. */
static json_t *as_tools(const json_t *list, bool bare) {
  json_t *tools = json_array();
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *item = json_array_get(list, i), *function = bare ? item : json_object_get(item, "function");
    json_array_append_new(tools, json_pack("{s:s, s:O*}", "type", "function", "function", function));
  }
  return tools;
}

static void read_tools(struct params *p, struct form *f) {
  const json_t *tools = NULL, *functions = NULL;
  params_array(p, "tools", &tools);
  params_array(p, "functions", &functions);
  if (json_array_size(tools) && json_array_size(functions)) params_fail(p, "functions", "not allowed together with tools");
  bool bare = !json_array_size(tools);
  const json_t *list = bare ? functions : tools;
  struct err why;
  f->tools_field = bare ? "functions" : "tools";
  if (p->failed || !json_array_size(list)) return;
  f->tools = as_tools(list, bare);
  if (tools_check(bare ? f->tools : list, f->tools_field, &why) == 0) return;
  json_decref(f->tools);
  f->tools = NULL;
  p->failed = true;
  api_error_set(p->e, 400, "invalid_value", f->tools_field, "%s: %s", p->where, why.msg);
}

static void choose_named(struct params *p, struct form *f, const char *key, const char *name) {
  char shown[80];
  for (size_t i = 0; i < json_array_size(f->tools); i++)
    if (!strcmp(name_of(f->tools, i), name)) f->named = name_of(f->tools, i);
  if (!f->named) params_fail(p, key, "there is no function \"%s\" in %s", str_escape(str_c(name), shown, sizeof shown), f->tools_field);
  f->choice = FORM_NAMED;
}

static void read_choice(struct params *p, struct form *f, const char *key) {
  static const char *const words[] = {"auto", "none", "required", "any"};
  static const enum form_choice choices[] = {FORM_AUTO, FORM_NONE, FORM_REQUIRED, FORM_REQUIRED};
  const json_t *v = json_object_get(p->object, key);
  const char *word = json_string_value(v), *type = json_string_value(json_object_get(v, "type"));
  if (!v || json_is_null(v) || p->failed) return;
  if (word) {
    size_t i = 0;
    while (i < ARRAY_LEN(words) && strcmp(words[i], word)) i++;
    if (i == ARRAY_LEN(words)) params_fail(p, key, "expected \"auto\", \"none\", \"required\" or a function");
    else f->choice = choices[i];
    if (!f->tools && i > 1) params_refuse(p, key, "no tools were given");
    return;
  }
  const json_t *name = json_object_get(v, "name");
  if (!name) name = json_object_get(json_object_get(v, "function"), "name");
  if (type && strcmp(type, "function"))
    params_refuse(p, key, "only functions and the words auto, none and required are supported by this server");
  else if (!json_is_string(name)) params_fail(p, key, "expected {\"type\": \"function\", \"function\": {\"name\": ...}} or a word");
  else if (!f->tools) params_refuse(p, key, "no tools were given");
  else choose_named(p, f, key, json_string_value(name));
}

void form_init(struct form *f) {
  *f = (struct form){.parallel = true};
  buf_init(&f->text, 0);
}

void form_read(struct params *p, bool allow_tools, struct form *f) {
  form_init(f);
  read_response_format(p, f);
  form_read_format(p, f);
  if (!allow_tools) {
    static const char *const names[] = {"tools", "functions"};
    params_refuse_all(p, names, ARRAY_LEN(names));
  } else {
    read_tools(p, f);
  }
  if (f->tools && params_is_given(json_object_get(p->object, "function_call")) &&
      params_is_given(json_object_get(p->object, "tool_choice")))
    params_fail(p, "function_call", "not allowed together with tool_choice");
  read_choice(p, f, "tool_choice");
  read_choice(p, f, "function_call");
  params_bool(p, "parallel_tool_calls", &f->parallel);
  if (!p->failed && f->field && f->tools && f->choice == FORM_AUTO)
    params_refuse(p, f->field, "beside tools it needs a tool_choice other than \"auto\": an answer is either calls or in that form");
}

void form_free(struct form *f) {
  json_decref(f->tools);
  buf_free(&f->text);
  *f = (struct form){0};
}

/* ---- compiling ---------------------------------------------------------------------------------------------------------------- */

static struct cygnet_grammar *compile(const struct api *a, enum cygnet_grammar_kind kind, const struct buf *text,
                                      struct cygnet_error *why) {
  *why = (struct cygnet_error){0};
  return a->port.grammar_new(a->port.self, kind, buf_cstr(text), text->len, why);
}

static void put_tools(const struct form *f, const json_t *tools, struct buf *out) {
  static const char *const choices[] = {"\"auto\"", "\"none\"", "\"required\""};
  buf_clear(out);
  buf_puts(out, "{\"tools\":");
  json_put(out, tools);
  buf_puts(out, ",\"choice\":");
  if (f->choice == FORM_NAMED) buf_printf(out, "{\"name\":\"%s\"}", f->named); /* tools_check: nothing to escape */
  else buf_puts(out, choices[f->choice]);
  buf_printf(out, ",\"parallel\":%s}", f->parallel ? "true" : "false");
}

/* Rule 3. Returns owned. */
static json_t *without_loose_schemas(const json_t *tools) {
  json_t *copy = json_deep_copy(tools);
  for (size_t i = 0; i < json_array_size(copy); i++) {
    json_t *function = json_object_get(json_array_get(copy, i), "function");
    if (!json_is_true(json_object_get(function, "strict"))) json_object_del(function, "parameters");
  }
  return copy;
}

static struct cygnet_grammar *compile_tools(const struct api *a, const struct form *f, struct cygnet_error *why) {
  struct buf text;
  buf_init(&text, 0);
  put_tools(f, f->tools, &text);
  struct cygnet_grammar *g = compile(a, CYGNET_GRAMMAR_TOOLS, &text, why);
  if (!g && f->choice == FORM_AUTO && why->status == 400) {
    json_t *loose = without_loose_schemas(f->tools);
    struct cygnet_error again;
    put_tools(f, loose, &text);
    g = compile(a, CYGNET_GRAMMAR_TOOLS, &text, &again);
    json_decref(loose);
  }
  buf_free(&text);
  return g;
}

void form_compile(struct params *p, const struct api *a, const struct form *f, struct job *j) {
  struct cygnet_error why;
  bool tools = f->tools && (f->choice != FORM_NONE || (a->info.chat_tools && !f->field));
  const char *field = tools ? f->tools_field : f->field;
  if (p->failed) return;
  if (form_offers_tools(f)) {
    size_t n = json_array_size(f->tools);
    j->names = xcalloc(n, sizeof *j->names);
    for (size_t i = 0; i < n; i++) j->names[j->n_names++] = xstrdup(name_of(f->tools, i));
  }
  if (!field) return;
  bool whole = !tools || f->choice == FORM_REQUIRED || f->choice == FORM_NAMED, json = tools || f->kind == CYGNET_GRAMMAR_JSON_SCHEMA;
  if (whole && j->ignore_eos) params_fail(p, "ignore_eos", "not allowed together with %s: such an answer has an end", field);
  if (whole && json && j->n_stop) params_fail(p, "stop", "not allowed together with %s: it could cut the JSON short", field);
  if (p->failed) return;
  j->grammar = tools ? compile_tools(a, f, &why) : compile(a, f->kind, &f->text, &why);
  if (j->grammar) return;
  p->failed = true;
  api_error_set(p->e, why.status >= 400 ? why.status : 400, "invalid_value", field, "%s%s%s: %s", p->where,
                strchr(p->where, ':') ? "." : ": ", field, why.message);
}
