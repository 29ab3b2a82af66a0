/* tools.c — tools on offer to rules: what an answer may be that can call them.
 *
 *   Gemma 4           <|tool_call>call:NAME{key:value,...}<tool_call|>   one after the other, at the end of the answer
 *   Llama 3, Gemma 3  {"name": "NAME", "parameters": {...}}              the whole answer; "; " between several
 *
 * auto, Gemma 4: anything that has no <|tool_call>, then calls or not; after calls nothing. Thoughts are part of "anything".
 * auto, JSON: calls, or text that does not begin as one. A text begins as one when it reads, blanks and an opening [ aside, {"name": or another first member
 * of a call ("function":, "parameters":, "arguments":, "type": "function"), or [NAME( with the name of a tool: what output.c could take for a call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/schema_impl.h"

enum { TOOLS_MAX = 256, TOOL_NAME_MAX = 64 };

/* ---- the request's field ------------------------------------------------------------------------------------------------------------- */

static bool name_is_good(const char *name) {
  size_t n = strlen(name);
  return n > 0 && n <= TOOL_NAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static bool absent(const json_t *v) { return !v || json_is_null(v); }

static int check_function(const json_t *function, const char *field, size_t i, struct err *e) {
  const json_t *name = json_object_get(function, "name"), *description = json_object_get(function, "description");
  const json_t *parameters = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
  char shown[100];
  if (!json_is_object(function)) return err_set(e, ERR_BAD_INPUT, "%s[%zu].function: expected an object", field, i);
  if (!json_is_string(name)) return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.name: expected a string", field, i);
  if (strlen(json_string_value(name)) != json_string_length(name) || !name_is_good(json_string_value(name)))
    return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.name: expected up to %d letters, digits, _ - and ., found \"%s\"", field, i,
                   TOOL_NAME_MAX, str_escape(str_of(json_string_value(name), json_string_length(name)), shown, sizeof shown));
  if (!absent(description) && !json_is_string(description))
    return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.description: expected a string", field, i);
  if (!absent(parameters) && !json_is_object(parameters))
    return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.parameters: expected a JSON schema, an object", field, i);
  if (!absent(strict) && !json_is_boolean(strict))
    return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.strict: expected true or false", field, i);
  return 0;
}

static const json_t *tool_function(const json_t *tools, size_t i) { return json_object_get(json_array_get(tools, i), "function"); }
static const char *tool_name(const json_t *tools, size_t i) { return json_string_value(json_object_get(tool_function(tools, i), "name")); }

int tools_check(const json_t *tools, const char *field, struct err *e) {
  if (!json_is_array(tools)) return err_set(e, ERR_BAD_INPUT, "%s: expected an array", field);
  if (json_array_size(tools) > TOOLS_MAX)
    return err_set(e, ERR_BAD_INPUT, "%s: expected at most %d, found %zu", field, TOOLS_MAX, json_array_size(tools));
  for (size_t i = 0; i < json_array_size(tools); i++) {
    const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
    if (!json_is_object(tool)) return err_set(e, ERR_BAD_INPUT, "%s[%zu]: expected an object", field, i);
    if (!absent(type) && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
      return err_set(e, ERR_BAD_INPUT, "%s[%zu].type: expected \"function\"", field, i);
    if (check_function(json_object_get(tool, "function"), field, i, e) != 0) return -1;
    for (size_t k = 0; k < i; k++)
      if (!strcmp(tool_name(tools, i), tool_name(tools, k)))
        return err_set(e, ERR_BAD_INPUT, "%s[%zu].function.name: \"%s\" is the name of %s[%zu], too", field, i, tool_name(tools, i), field,
                       k);
  }
  return 0;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------------------------- */

/* A control token, or its spelling where the vocabulary has none. */
static int marker(struct grammar_rules *g, const struct tokenizer *t, const char *spelling) {
  int32_t id = tok_find(t, spelling);
  return id >= 0 ? rules_token(g, id) : rules_text(g, spelling);
}

/* One call of tool i. */
static int call_node(struct grammar_rules *g, const struct tokenizer *t, const json_t *tools, size_t i, int *node, struct err *e) {
  const json_t *parameters = json_object_get(tool_function(tools, i), "parameters");
  bool native = tok_family(t) == TOK_GEMMA4;
  json_t *any = absent(parameters) ? json_object() : NULL;
  char where[64], head[160];
  int arguments, n = snprintf(where, sizeof where, "tools[%zu].function.parameters", i);
  CHECK(n > 0 && (size_t)n < sizeof where);
  int rc = schema_build_object(g, t, any ? any : parameters, native ? SCHEMA_GEMMA4_CALL : SCHEMA_JSON, where, &arguments, e);
  json_decref(any);
  if (rc != 0) return -1;
  snprintf(head, sizeof head, native ? "call:%s" : "{\"name\": \"%s\", \"parameters\": ", tool_name(tools, i));
  if (native) *node = rules_seq(g, (int[]){marker(g, t, "<|tool_call>"), rules_text(g, head), arguments, marker(g, t, "<tool_call|>")}, 4);
  else *node = rules_seq(g, (int[]){rules_text(g, head), arguments, rules_text(g, "}")}, 3);
  return 0;
}

/* One call, of the named tool or any; with parallel several. */
static int calls_node(struct grammar_rules *g, const struct tokenizer *t, const json_t *tools, const char *named, bool parallel, int *node,
                      struct err *e) {
  size_t n = json_array_size(tools);
  int *ways = xcalloc(n + 1, sizeof *ways), n_ways = 0, rc = 0;
  for (size_t i = 0; i < n && rc == 0; i++)
    if (!named || !strcmp(named, tool_name(tools, i))) rc = call_node(g, t, tools, i, &ways[n_ways++], e);
  if (rc == 0) {
    int one = rules_declare(g, "call");
    rules_define(g, one, rules_alt(g, ways, n_ways));
    int next = tok_family(t) == TOK_GEMMA4 ? one : rules_seq2(g, rules_text(g, "; "), one);
    *node = parallel ? rules_seq2(g, one, rules_repeat(g, next, 0, -1)) : one;
  }
  free(ways);
  return rc;
}

/* ---- text ------------------------------------------------------------------------------------------------------------------------------ */

/* Tokens with which a call begins: never in what is no call. */
static int call_tokens(const struct tokenizer *t, int32_t ids[2]) {
  static const char *const spellings[] = {"<|tool_call>", "<|python_tag|>"};
  int n = 0;
  for (int i = 0; i < 2; i++) {
    int32_t id = tok_find(t, spellings[i]);
    if (id >= 0 && tok_is_control(t, id)) ids[n++] = id;
  }
  return n;
}

static int free_tokens(struct grammar_rules *g, const struct tokenizer *t) {
  int32_t ids[2];
  int n = call_tokens(t, ids);
  return rules_repeat(g, rules_other_tokens(g, ids, n), 0, -1);
}

/* All texts that do not match the pattern. */
static int text_without(struct grammar_rules *g, const char *pattern, int *node, struct err *e) {
  struct lang *all = lang_lengths(0, -1), *no = lang_pattern(str_c(pattern), false, e), *left = no ? lang_without(all, no) : NULL;
  if (left) *node = lang_emit(left, g, NULL, NULL);
  else if (no) err_set(e, ERR_BAD_INPUT, "tools: their names are too many to tell text from calls");
  lang_delete(all);
  lang_delete(no);
  bool good = left != NULL;
  lang_delete(left);
  return good ? 0 : -1;
}

/* Text of the JSON families that does not begin as a call. */
static int json_text_node(struct grammar_rules *g, const json_t *tools, int *node, struct err *e) {
  struct buf pattern;
  buf_init(&pattern, 0);
#define BLANKS "[ \\t\\r\\n]*"
  buf_puts(&pattern, "^" BLANKS "((\\[" BLANKS ")?\\{" BLANKS "\"((name|function|parameters|arguments)\"" BLANKS ":|type\"" BLANKS
                     ":" BLANKS "\"function\")");
  if (json_array_size(tools)) buf_puts(&pattern, "|\\[" BLANKS "(");
  for (size_t i = 0; i < json_array_size(tools); i++) {
    if (i) buf_putc(&pattern, '|');
    for (const char *p = tool_name(tools, i); *p; p++) buf_printf(&pattern, *p == '.' ? "\\%c" : "%c", *p);
  }
  if (json_array_size(tools)) buf_puts(&pattern, ")" BLANKS "\\(");
  buf_puts(&pattern, ")");
  int rc = text_without(g, buf_cstr(&pattern), node, e);
  buf_free(&pattern);
  return rc;
}

static int auto_node(struct grammar_rules *g, const struct tokenizer *t, const json_t *tools, int calls, int *node, struct err *e) {
  int text;
  if (tok_family(t) == TOK_GEMMA4) {
    int rc = 0;
    if (tok_find(t, "<|tool_call>") >= 0) text = free_tokens(g, t);
    else rc = text_without(g, "<\\|tool_call>", &text, e);
    if (rc != 0) return -1;
    *node = rules_seq2(g, text, rules_repeat(g, calls, 0, 1));
    return 0;
  }
  if (json_text_node(g, tools, &text, e) != 0) return -1;
  *node = rules_alt(g, (int[]){calls, text}, 2);
  return 0;
}

/* ---- all of it --------------------------------------------------------------------------------------------------------------------------- */

int tools_build(struct grammar_rules *g, const struct tokenizer *t, const json_t *tools, enum tools_choice choice, const char *named,
                bool parallel, struct err *e) {
  if (tools_check(tools, "tools", e) != 0) return -1;
  size_t n = json_array_size(tools), found = 0;
  while (found < n && named && strcmp(named, tool_name(tools, found)) != 0) found++;
  char shown[100];
  int node = -1, calls;
  switch (choice) {
  case TOOLS_NONE: node = free_tokens(g, t); break;
  case TOOLS_AUTO:
    if (!n) node = free_tokens(g, t);
    else if (calls_node(g, t, tools, NULL, parallel, &calls, e) != 0 || auto_node(g, t, tools, calls, &node, e) != 0) return -1;
    break;
  case TOOLS_REQUIRED:
    if (!n) return err_set(e, ERR_BAD_INPUT, "tool_choice: \"required\" needs tools");
    if (calls_node(g, t, tools, NULL, parallel, &node, e) != 0) return -1;
    break;
  case TOOLS_NAMED:
    if (!named || found == n)
      return err_set(e, ERR_BAD_INPUT, "tool_choice: no tool is called \"%s\"", named ? str_escape(str_c(named), shown, sizeof shown) : "");
    if (calls_node(g, t, tools, named, false, &node, e) != 0) return -1;
    break;
  }
  rules_root(g, node);
  return rules_error(g, e);
}
