/* chat_impl.h — what the renderers of all families share: reading OpenAI messages, writing segments.
 *
 * Readers check what they read; their errors name the place ("messages[1].content[0]: ..."). A content that is a string reads as one text
 * part, an absent or null one as no parts.
 */
#ifndef CYGNET_CHAT_IMPL_H
#define CYGNET_CHAT_IMPL_H

#include "text/chat.h"

enum chat_role { CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };
const char *chat_role_name(enum chat_role r);

enum chat_part_kind { CHAT_TEXT, CHAT_IMAGE, CHAT_AUDIO, CHAT_VIDEO };
struct chat_part {
  enum chat_part_kind kind;
  struct str text; /* borrows */
};

struct chat_message {
  enum chat_role role;
  const json_t *content; /* string, array or NULL */
  int n_parts;
};

/* Message i, its tool calls checked too: past arguments must be JSON objects or strings that hold one. */
int chat_message_read(const json_t *messages, size_t i, struct chat_message *m, struct err *e);
int chat_part_read(const struct chat_message *m, size_t i, int part, struct chat_part *out, struct err *e);
/* All parts joined without separator; anything but text is refused. */
int chat_text_only(const struct chat_message *m, size_t i, struct buf *out, struct err *e);

/* Segments in the making: neighbouring texts become one. */
struct chat_writer {
  const struct tokenizer *tok;
  struct chat_rendered *out;
  int cap;
  struct buf text; /* not yet a segment */
};
void chat_write(struct chat_writer *w, struct str text);
/* The control token of that spelling, or the spelling as text where the vocabulary has no such token. */
void chat_write_control(struct chat_writer *w, const char *spelling);
void chat_write_end(struct chat_writer *w);

/* As Python's str.strip() and str.rstrip(), which the templates rely on: Unicode white space. */
struct str chat_trim(struct str s);
struct str chat_trim_right(struct str s);

/* chat_gemma.c */
int chat_gemma3(struct chat_writer *w, const json_t *messages, const struct chat_options *o, struct err *e);

#endif
