/* output_impl.h — what the files of output.c share: values written in three ways, read into one small tree and written as JSON.
 *
 * Rules
 *   1. Reading is linear in the text and recurses at most VALUES_DEPTH_MAX deep. Numbers stay as they are spelled.
 *   2. Of two members with one key the last one counts, in the place of the first.
 */
#ifndef CYGNET_OUTPUT_IMPL_H
#define CYGNET_OUTPUT_IMPL_H

#include "base/buf.h"
#include "text/output.h"

enum output_marker {
  MARK_CHANNEL,      /* <|channel>: a thought begins */
  MARK_CHANNEL_END,  /* <channel|> */
  MARK_CALL,         /* <|tool_call> */
  MARK_CALL_END,     /* <tool_call|> */
  MARK_RESPONSE,     /* <|tool_response> */
  MARK_RESPONSE_END, /* <tool_response|> */
  MARK_QUOTE,        /* <|"|> */
  MARK_PYTHON,       /* <|python_tag|> of Llama */
  MARKS
};
extern const char *const output_spellings[MARKS];
void output_take_marker(struct output *o, enum output_marker m); /* what output_mark does, whatever its id is */

enum { VALUES_DEPTH_MAX = 64 };
/* The string delimiter <|"|> of Gemma 4 in the text of a call: a byte that UTF-8 has not. */
#define OUTPUT_QUOTE ((char)0xff)

enum syntax {
  SYNTAX_JSON,
  SYNTAX_PYTHON, /* literals: 'text' and "text", True, False, None, and JSON's own words */
  SYNTAX_GEMMA4  /* keys bare or quoted, OUTPUT_QUOTE or JSON strings, anything else up to , } ] a string; commas may trail */
};

enum value_kind { VALUE_WORD /* a number, true, false, null */, VALUE_STRING, VALUE_ARRAY, VALUE_OBJECT };

struct value {
  enum value_kind kind;
  bool dropped;                      /* rule 2 */
  uint32_t key, n_key, text, n_text; /* in values.text; decoded; text: of words and strings */
  int first, last, next, n;          /* children and the next sibling, -1: none; how many children */
};

struct values {
  struct value *v; /* owned; [n] */
  int n, cap;
  struct buf text;
};

/* A place in a text, and where values go. */
struct values_reader {
  const char *p, *end;
  enum syntax syntax;
  struct values *out;
};

void values_init(struct values *t);
void values_free(struct values *t);
void values_clear(struct values *t);                                /* keeps the memory */
int values_add(struct values *t, enum value_kind kind, int parent); /* parent -1: none */

/* One value from r->p on, after blanks. Its number, or -1 and r->p anywhere. depth: of containers around it. */
int values_read(struct values_reader *r, int depth, int parent);
bool values_read_string(struct values_reader *r, uint32_t *at, uint32_t *n); /* r->p at its opening quote; JSON's or Python's */
void values_skip_blanks(struct values_reader *r);
struct str values_key(const struct values *t, int i);
struct str values_text(const struct values *t, int i);
int values_find(const struct values *t, int object, const char *key); /* -1: there is no such member */
void values_settle(struct values *t, int object);                     /* rule 2, once all members are there */
void values_put(const struct values *t, int i, struct buf *out);      /* as JSON without blanks */

static inline bool output_is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool output_all_blank(struct str s);

/* A call that was read: to whoever collects them. */
typedef void (*output_call_fn)(void *ctx, struct str name, struct str arguments);

/* output_gemma4.c: the text between <|tool_call> and its end. True: it was a call, and fn had it. */
bool output_gemma4_call(struct str raw, struct values *scratch, output_call_fn fn, void *ctx);

/* output_llama.c: the body of an answer. names: those that count when it is not tagged. Returns how many calls it had; *rest is what is left over, the
 * whole body if there were none. */
int output_llama_calls(struct str body, bool tagged, const struct output_options *o, struct values *scratch, output_call_fn fn, void *ctx,
                       struct str *rest);
/* What an answer begins with (blanks in front are fine) cannot become a call without a tag, whatever follows. */
bool output_llama_hopeless(struct str beginning);

#endif
