/* chat.h — conversations to tokens, without ever going through re-tokenised markers.
 *
 * A renderer writes segments: control tokens as ids, everything between two control tokens (user text included) as one string that is encoded
 * with special = false. So a user who types "<end_of_turn>" gets those characters, never that token.
 * The renderers are written by hand per family and proven equal to the released templates on the golden conversations.
 * A template in a file is recognised by a hash of its text: it says which of a family's templates to follow, and an unknown one is reported.
 * Any template can be asked for with any vocabulary: markers that the vocabulary does not have (test models, another family's
 * template) are spelled as text. Which template is followed when, and what each is known for: docs/chat.md.
 */
#ifndef CYGNET_CHAT_H
#define CYGNET_CHAT_H

#include "files/json.h"
#include "text/tok.h"

enum chat_template {
  CHAT_AUTO, /* the default of the tokenizer's family */
  CHAT_GEMMA3,
  CHAT_GEMMA4_LARGE, /* 12B, 26B-A4B, 31B */
  CHAT_GEMMA4_SMALL, /* E2B, E4B: no empty thought in front of an answer without thinking */
  CHAT_LLAMA32V,
  CHAT_TEMPLATES
};
const char *chat_template_name(enum chat_template t); /* "auto", "gemma3", "gemma4-large", "gemma4-small", "llama32v" */
/* Also "llama3.2" = llama32v, "gemma4-large-unsloth" and "-small-unsloth", which write the same, and "gemma4" = CHAT_AUTO: which of the two is for
 * the model to say. false: no such one. */
bool chat_template_by_name(const char *name, enum chat_template *t);
/* By the text of a file's template: CHAT_AUTO = none that is known. *exact: its output is what chat_render writes; false for older releases. */
enum chat_template chat_template_find(struct str text, bool *exact);
/* What CHAT_AUTO means for a tokenizer; small: a model with per-layer embeddings. */
enum chat_template chat_template_default(const struct tokenizer *t, bool small);
/* What a template knows. */
bool chat_has_thinking(enum chat_template t);
bool chat_has_tools(enum chat_template t);

struct chat_options {
  enum chat_template template;
  bool no_generation_prompt;   /* leave out the opening of the model's turn */
  bool continue_final_message; /* the last message is left open */
  bool enable_thinking;        /* families that know it */
  bool preserve_thinking;      /* Gemma 4: thoughts of earlier tool calls stay in the history */
  bool tools_in_system;        /* Llama: tools_in_user_message = false */
  bool describe_tools;         /* Gemma 3, whose template has no place for tools: they are told in the first user turn (docs/chat.md) */
  const char *date;            /* Llama: "26 Jul 2024" written for this day, YYYY-MM-DD; NULL = today */
  bool allow_media;            /* pictures, sound and video become the template's own marker, as far as it has one */
  const struct chat_wrapping *image, *audio; /* what the model is given in place of one; NULL: refused, unless allow_media */
};

/* What stands for a picture or a sound in a prompt: ids, -1 = none. They come from the model's configuration: text never spells them. */
struct chat_wrapping {
  int32_t begin, placeholder, end;
  bool newlines; /* Gemma 3: an empty line before and after, tokenised with the text around */
};

struct chat_segment {
  int32_t id; /* control token, or -1: text */
  char *text; /* owned; NULL for a token */
  size_t n;
  bool special; /* chat_raw: spellings of control tokens in the text become those tokens */
};

struct chat_rendered {
  struct chat_segment *segments;
  int n_segments;
  bool in_thought; /* the prompt ends inside a thought: the answer goes on with reasoning */
};

/* messages: OpenAI form, JSON array of {"role", "content": string | parts, "tool_calls", "tool_call_id", "name", "reasoning_content"}. Errors
 * (ERR_BAD_INPUT) name the offending message, or tool:
 *   "messages[1].role: expected \"assistant\" after a user turn, found \"user\""
 * With `image` and `audio` every picture and every sound of the messages has its placeholder once, in the order of messages and parts;
 * where a template would leave one out, or put it elsewhere, the conversation is refused. tools: NULL, null or an array. Result is owned:
 * chat_rendered_free; empty after an error. */
int chat_render(const struct tokenizer *t, const json_t *messages, const json_t *tools, const struct chat_options *o,
                struct chat_rendered *out, struct err *e);
/* Text without turns, as it is continued: messages is one message, whose pictures and sounds are put where its text spells their markers
 * ("<|image|>", "<|audio|>", "<start_of_image>", wrapped already or not), or in front of the text when it spells none of that kind. Needs
 * special: otherwise spellings are text. BOS comes first. */
int chat_raw(const struct tokenizer *t, const json_t *messages, bool special, const struct chat_options *o, struct chat_rendered *out,
             struct err *e);
void chat_rendered_free(struct chat_rendered *r);

/* Ids of the segments (safe ids), and the text as the template prints it. */
void chat_ids(const struct tokenizer *t, const struct chat_rendered *r, struct tok_ids *out);
void chat_text(const struct tokenizer *t, const struct chat_rendered *r, struct buf *out);

#endif
