/* chat_impl.h — what the renderers of all families share: reading OpenAI messages, writing segments.
 *
 * Readers check what they read; their errors name the place ("messages[1].content[0]: ..."). A content that is a string reads as one text
 * part, an absent or null one as no parts.
 */
#ifndef CYGNET_CHAT_IMPL_H
#define CYGNET_CHAT_IMPL_H

#include "text/chat.h"

/* The last two are what the families themselves call an assistant (Gemma) and a tool (Llama). */
enum chat_role { CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_MODEL, CHAT_IPYTHON };
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
/* The part that a continued message is cut after. */
int chat_last_text(const struct chat_message *m, size_t i, int *last, struct err *e);
/* An error that says what is not taken. */
int chat_refuse_part(enum chat_part_kind kind, size_t i, int part, struct err *e);
/* Member of an object; null is as good as absent, and so is anything of what is no object. */
const json_t *chat_get(const json_t *object, const char *key);
/* A past call's function.arguments as an object of its own (json_decref): parsed if they are a string; {} for none. NULL: not an object. */
json_t *chat_arguments(const json_t *call);
/* Who is called, by id: of an array of calls (or NULL), owned (json_decref). Of calls with one id, or without any, the last counts. */
json_t *chat_callees(const json_t *calls);
/* Name of the function that a tool message answers for: by its tool_call_id, else the message's own name. -1: that is no string. NULL: nobody said. */
int chat_callee(const json_t *callees, const json_t *message, size_t i, const json_t **name, struct err *e);

/* Segments in the making: neighbouring texts become one. */
struct chat_writer {
  const struct tokenizer *tok;
  struct chat_rendered *out;
  int cap;
  struct buf text;        /* not yet a segment */
  bool stopped, too_long; /* nothing more is written; some text did not fit */
  struct chat_place {     /* of a picture or sound that was written */
    size_t message;
    int part;
  } * media; /* owned; [n_media] */
  int n_media, cap_media;
};
void chat_write(struct chat_writer *w, struct str text);
void chat_write_c(struct chat_writer *w, const char *text);
/* The control token of that spelling, or the spelling as text where the vocabulary has no such token. */
void chat_write_control(struct chat_writer *w, const char *spelling);
/* Part k of message i, a picture, sound or video. spelling: the template's own marker, NULL: it has none. */
int chat_write_media(struct chat_writer *w, const struct chat_options *o, enum chat_part_kind kind, const char *spelling, size_t i, int k,
                     struct err *e);
/* The last message is left open here: whatever is written after this is dropped. trim: white space at the end goes, too. */
void chat_stop(struct chat_writer *w, bool trim);
void chat_write_end(struct chat_writer *w);

/* --- chat_values.c: JSON values as the templates' language prints them ---------------------------------------------------------------- */

/* One value; numbers that jansson does not hold stay as they are spelled. Returns owned, NULL: not JSON. */
json_t *chat_load_values(struct str text);
bool chat_is_number(const json_t *v);                              /* those included */
bool chat_truthy(const json_t *v);                                 /* NULL is not */
void chat_put_str(struct buf *b, const json_t *v);                 /* as str(v); NULL: nothing */
void chat_put_upper(struct buf *b, const json_t *v);               /* as str(v).upper() */
void chat_put_json(struct buf *b, const json_t *v, int indent);    /* as json.dumps(v, ensure_ascii=False); indent 0 = one line */
void chat_put_json_inside(struct buf *b, const char *s, size_t n); /* a string of that without its quotes */

struct chat_entry {
  const char *key;
  const json_t *value;
};
/* Members of an object by lower-cased key, equals in their order. Returns owned (free). */
struct chat_entry *chat_sorted(const json_t *object, size_t *n);

/* As Python's str.strip() and str.rstrip(), which the templates rely on: Unicode white space. */
struct str chat_trim(struct str s);
struct str chat_trim_right(struct str s);

/* --- the families: messages is an array that is not empty, tools NULL or an array of objects with function.name, not empty --------------- */

int chat_gemma3(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, struct err *e);
int chat_gemma4(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, bool small,
                struct err *e);
int chat_llama(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, struct err *e);
/* chat_gemma4_tools.c */
int chat_gemma4_declare(struct chat_writer *w, const json_t *tool, size_t i, struct err *e);
void chat_gemma4_members(struct chat_writer *w, const json_t *object); /* key:value,key:value */
void chat_gemma4_value(struct chat_writer *w, const json_t *v, bool quote_keys);

#endif
