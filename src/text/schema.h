/* schema.h — JSON schemas and tools to rules: an answer that validates, or a refusal that names the keyword.
 *
 * Rules
 *   1. A schema is enforced or refused, never ignored: a keyword that would change which values are valid and is not known here is ERR_BAD_INPUT
 *      with its place ("schema.properties.age: keyword \"multipleOf\" is not supported"). Annotations (title, description, default, examples,
 *      $comment, deprecated, readOnly, writeOnly, $schema, $id, format when unknown and not asserted) change nothing.
 *   2. What is generated is JSON in one canonical form: no blanks but, in SCHEMA_JSON, one after ':' and ','; properties in the schema's order, then
 *      additional ones when they are allowed; strings with the escapes that JSON needs and no others; numbers as JSON writes them.
 *   3. Everything that is generated validates under draft 2020-12 (the tests ask an independent validator). Everything that validates need not be
 *      generable: order, blanks and equal numbers in other spelling are not.
 *   4. A schema that nothing satisfies is refused.
 *   5. Nothing goes on for ever but strings, arrays and members without a limit of their own: numbers have few digits, recursion few levels (docs/schema.md).
 *
 * Keywords: type (and lists of types), enum, const, properties, required, additionalProperties, patternProperties, propertyNames (pattern),
 * minProperties, maxProperties, items, prefixItems, minItems, maxItems, uniqueItems (of enums; else refused), contains (refused), minLength,
 * maxLength, pattern, format (date-time, date, time, duration, email, hostname, ipv4, ipv6, uri, uri-reference, uri-template, uuid, json-pointer,
 * relative-json-pointer, the idn- and iri- ones as ASCII; others are annotations), minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (integers), anyOf, oneOf (where the branches cannot overlap, else as anyOf is wrong: refused), allOf (merged), not
 * (of enum, const, type), if/then/else (refused), $ref, $defs, definitions, $anchor, recursion; nullable (OpenAPI). Booleans as schemas.
 */
#ifndef CYGNET_SCHEMA_H
#define CYGNET_SCHEMA_H

#include "files/json.h"
#include "text/grammar.h"

enum schema_style {
  SCHEMA_JSON, /* {"city": "Oslo", "n": 1} */
  SCHEMA_GEMMA4_CALL /* {city:<|"|>Oslo<|"|>,n:1}: arguments of a call as Gemma 4 writes them. Strings hold anything but control tokens, unescaped */
};

/* Rules for a value of this schema. where names it in messages ("response_format.json_schema.schema"). Sets *node; 0, or -1 and *e. */
int schema_build(struct grammar_rules *g, const struct tokenizer *t, const json_t *schema, enum schema_style style, const char *where,
                 int *node, struct err *e);

/* Tools (tools.c). An answer under them:
 *   auto      free text and thoughts, and calls whenever the model begins one; a call that was begun is valid
 *   none      no calls
 *   required  one call or more, and nothing else
 *   named     that call
 * With parallel = false at most one call. A call is written in the family's own form: Gemma 4 <|tool_call>call:NAME{...}<tool_call|>, ended by
 * <|tool_response>, others {"name": "NAME", "parameters": {...}} as the whole answer (several: one after the other, "; " between them).
 * tools: OpenAI's array. A function's parameters are enforced in all but `none`; parameters without a schema are any object. */
enum tools_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };
int tools_build(struct grammar_rules *g, const struct tokenizer *t, const json_t *tools, enum tools_choice choice, const char *named,
                bool parallel, struct err *e);
/* tools checked as a request's field of that name: array of up to 256 {"type": "function", "function": {"name", "description", "parameters", "strict"}};
 * names of letters, digits, _ - . up to 64 bytes, no two alike. Errors begin with the field: "tools[1].function.name: ...". */
int tools_check(const json_t *tools, const char *field, struct err *e);

#endif
