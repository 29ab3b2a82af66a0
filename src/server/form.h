/* form.h — what form an answer must have: the tools on offer and which of them is to be called, JSON, a schema, a regular expression, a grammar.
 *
 *   tools, tool_choice, parallel_tool_calls (functions, function_call)        ┐
 *   response_format, json_schema, regex, ebnf                                 ┴─ form_read ──► struct form ── form_compile ──► job.grammar, job.names
 *
 * Rules
 *   1. Everything is checked before anything is computed, and enforced by a grammar or refused with the field's name; never ignored.
 *   2. One form at most. Beside tools: with tool_choice "none" it is the answer's; with "required" or a named function the answer is calls alone and has
 *      no content that it could apply to; with "auto" it is refused.
 *   3. tool_choice "auto": what the model begins as a call becomes a valid one. There, and only there, the arguments of a function that is not
 *      "strict" may be any object, if its parameters are a schema that cannot be enforced: OpenAI promises no more.
 *   4. With tool_choice "none" the model is not told of the tools.
 */
#ifndef CYGNET_FORM_H
#define CYGNET_FORM_H

#include "server/params.h"

enum form_choice { FORM_AUTO, FORM_NONE, FORM_REQUIRED, FORM_NAMED };

struct form {
  json_t *tools;           /* OpenAI's array; owned; NULL: none */
  const char *tools_field; /* "tools" or "functions" */
  enum form_choice choice;
  const char *named; /* borrowed from tools */
  bool parallel;
  const char *field; /* that asks for a form; static; NULL: none */
  enum cygnet_grammar_kind kind;
  struct buf text;
};

/* Sets *f in any case; form_free. allow_tools: else they are refused. */
void form_read(struct params *p, bool allow_tools, struct form *f);
void form_free(struct form *f);
/* "json_schema", "regex" and "ebnf" alone, as SGLang's sampling_params have them; after form_init. */
void form_init(struct form *f);
void form_read_format(struct params *p, struct form *f);
static inline bool form_offers_tools(const struct form *f) { return f->tools && f->choice != FORM_NONE; }
void form_compile(struct params *p, const struct api *a, const struct form *f, struct job *j);

#endif
