/* output.h — what a model wrote, taken apart while it is being written: thoughts, tool calls, and what is left.
 *
 *   text of ordinary tokens  ──output_text──►  ┌────────┐   parts, in order: reasoning, content, whole tool calls
 *   control tokens, by id    ──output_mark──►  │ output │ ──────────────────────────────────────────────────────►  output_fn
 *   or text with the markers spelled out       └────────┘
 *                            ──output_raw──►
 *
 * Rules
 *   1. Nothing is lost and no marker is shown: every byte that is not part of a marker, a call or a thought's frame comes out as content or reasoning.
 *      What does not read as a call becomes content, its string delimiters as ".
 *   2. The parts put together do not depend on how the text was cut. What can be shown is shown at once: held back is only what may turn out to be the
 *      beginning of a marker (output_raw), a call that is not finished, and single characters that the frame of a thought may claim.
 *   3. With output_mark only control tokens are markers: text that spells one is text. A marker that the vocabulary has no token for (test models) is
 *      its spelling, as in chat.h. output_raw takes every spelling for the marker.
 *   4. A call is reported whole: name and arguments, which are a JSON object without blanks, keys in order of appearance, numbers as spelled.
 *   5. Work is linear in the text; nesting of arguments ends at 64 (deeper: content). Memory: a call, or for Llama the whole answer.
 *
 * Gemma 4:   <|channel>NAME\n ... <channel|>   <|tool_call>call:NAME{key:<|"|>text<|"|>,...}<tool_call|>
 * Llama 3.2: {"name": ..., "parameters": {...}} as the whole answer, or after <|python_tag|>; [f(a=1)]; f.call(query="...")
 * Gemma 3:   no markers of its own. JSON calls as Llama's when tools are on offer: its prompt asks for them in that form.
 * The full rules and why: docs/output.md. Cases: tests/golden/text/parse_*.jsonl.
 */
#ifndef CYGNET_OUTPUT_H
#define CYGNET_OUTPUT_H

#include "text/tok.h"

enum output_kind { OUTPUT_CONTENT, OUTPUT_REASONING, OUTPUT_CALL };

struct output_part {
  enum output_kind kind;
  struct str text; /* content, reasoning, or the arguments of a call; valid during the callback */
  struct str name; /* of the function that is called */
  int index;       /* of the call, from 0 */
};
typedef void (*output_fn)(void *ctx, const struct output_part *part);

struct output_options {
  enum tok_family family;
  bool tools; /* calls may come. Gemma 4: false = what looks like one is content. Llama: names says which count without a tag */
  const char *const *names; /* [n_names] functions on offer; copied */
  int n_names;
  bool in_thought; /* the prompt ended inside a thought (chat_rendered.in_thought) */
};

struct output; /* one answer */

/* t: for the ids of its markers; may be NULL when output_mark is not used. Both borrowed / copied. Returns owned. */
struct output *output_new(const struct tokenizer *t, const struct output_options *o, output_fn fn, void *ctx);
void output_delete(struct output *o); /* NULL is fine */

void output_text(struct output *o, const char *text, size_t n); /* UTF-8; what is ill-formed becomes U+FFFD */
void output_mark(struct output *o, int32_t id);                 /* a control token; those that mean nothing here are dropped */
void output_raw(struct output *o, const char *text, size_t n);  /* text and markers as one string, cut anywhere, within characters too */
/* The answer is over. Everything held back comes out. */
void output_finish(struct output *o);
int output_calls(const struct output *o); /* so far */
bool output_in_thought(const struct output *o);

#endif
