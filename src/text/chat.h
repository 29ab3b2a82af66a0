/* chat.h — conversations to tokens, without ever going through re-tokenised markers.
 *
 * A renderer writes segments: control tokens as ids, everything between two control tokens (user text included) as one string that is encoded
 * with special = false. So a user who types "<end_of_turn>" gets those characters, never that token.
 * The renderers are written by hand per family and proven equal to the released templates on the golden conversations.
 * A template in a file is recognised by a hash of its text, only to warn when it is not the one that is rendered here.
 * A vocabulary without a family's turn markers (test models) gets their spelling as text, as its own tokenizer would read the template.
 */
#ifndef CYGNET_CHAT_H
#define CYGNET_CHAT_H

#include "files/json.h"
#include "text/tok.h"

struct chat_options {
  bool no_generation_prompt;   /* leave out the opening of the model's turn */
  bool continue_final_message; /* the last message is left open */
  bool enable_thinking;        /* families that know it */
  bool allow_media;            /* pictures become the family's placeholder token; without it they are refused */
};

struct chat_segment {
  int32_t id; /* control token, or -1: text */
  char *text; /* owned; NULL for a token */
  size_t n;
};

struct chat_rendered {
  struct chat_segment *segments;
  int n_segments;
};

/* messages: OpenAI form, JSON array of {"role", "content": string | parts}. Errors (ERR_BAD_INPUT) name the offending message:
 *   "messages[1].role: expected \"assistant\" after a user turn, found \"user\""
 * Media parts are refused unless allow_media. tools may be NULL. Result is owned: chat_rendered_free; empty after an error. */
int chat_render(const struct tokenizer *t, const json_t *messages, const json_t *tools, const struct chat_options *o,
                struct chat_rendered *out, struct err *e);
void chat_rendered_free(struct chat_rendered *r);

/* Whether the text of a chat template is the released one that chat_render stands for. */
bool chat_template_known(enum tok_family family, struct str text);

/* Ids of the segments (safe ids), and the text as the template prints it. */
void chat_ids(const struct tokenizer *t, const struct chat_rendered *r, struct tok_ids *out);
void chat_text(const struct tokenizer *t, const struct chat_rendered *r, struct buf *out);

#endif
