/* translate.h — conversations of other APIs → bodies of chat completions, and errors about those in the other API's words.
 *
 *   translate_open → translate_add ... → translate_prepare (openai_prepare_chat) → translate_close
 *
 * Rules
 *   1. Fields that the other API does not know and a chat completion does (samplers, priority, ...) pass through under their own names.
 *   2. Fields of a chat completion that the other API has under another name or not at all are refused by name, never ignored.
 *   3. Everything runs on the prep thread.
 */
#ifndef CYGNET_TRANSLATE_H
#define CYGNET_TRANSLATE_H

#include "server/params.h"

struct translate_shape {
  const char *list, *system; /* its names for the turns and for the instructions: "input", "instructions" */
  const char *const *own;    /* fields that its translator reads itself; ends in NULL */
  struct translate_rename {
    const char *own, *chat;
  } renames[3], errors[6]; /* those that are a chat completion's under another name; what errors about its fields are about here */
};

struct translation {
  const struct translate_shape *shape;
  json_t *chat, *messages; /* chat is owned, messages is part of it */
  int *origins;            /* [messages]: index in the other API's list, -1: the instructions; owned */
  size_t n_origins;
  struct buf joined; /* while joining: the content of the last message so far */
  bool joining;
};

/* All functions do nothing after an error (params.h). translate_open sets *t in any case, and translate_close is called in any case. */
void translate_open(struct params *p, struct translation *t, const struct translate_shape *shape);
void translate_close(struct translation *t);

/* A message more. content: string or array of parts; taken. merge: a turn of the same role as the last one continues that, after an
 * empty line (a system or developer message always does). */
void translate_add(struct translation *t, const char *role, json_t *content, int origin, bool merge);
/* What the assistant thought; a function that it called, arguments taken; what that gave, content taken. Thoughts, text and calls that follow each other
 * are one turn. id may be NULL. */
void translate_add_thought(struct translation *t, const char *text, size_t n, int origin);
void translate_add_call(struct translation *t, const char *id, const char *name, json_t *arguments, int origin);
void translate_add_result(struct translation *t, const char *id, json_t *content, int origin);
/* {"name", "description", what they call the parameters, "strict"} → a tool in OpenAI's form; returns owned. */
json_t *translate_tool(const json_t *tool, const char *parameters);
/* All text of a content. */
void translate_flatten(const json_t *content, struct buf *out);

/* content: a string or an array of parts of the types named (ends in NULL) with "text" → for translate_add; NULL after an error.
 * path: "input[3].content"; param: what the error is about. */
json_t *translate_content(struct params *p, const json_t *content, const char *path, const char *param, const char *const *types);

/* The same with pictures and sounds: media makes a part of one (translate_media), or returns NULL where that is another kind of part, or
 * after an error. */
typedef json_t *(*translate_media_fn)(struct params *p, const json_t *part, const char *path, size_t i);
json_t *translate_content_with(struct params *p, const json_t *content, const char *path, const char *param, const char *const *types,
                               translate_media_fn media);
/* Part i of path as a chat completion has it: type "image_url" or "input_audio"; where: its address, borrowed. Knows its place in the
 * client's own words. Returns owned. */
json_t *translate_media(const char *type, json_t *where, const char *detail, const char *path, size_t i);
bool translate_has_media(const json_t *content);

/* One part of such an array, the i-th; returns owned. */
json_t *translate_part(struct params *p, const json_t *part, const char *path, size_t i, const char *param, const char *const *types);

/* openai_prepare_chat, with errors in the words of the shape. */
void translate_prepare(struct params *p, const struct api *a, struct call *c, struct translation *t);
bool translate_too_long(const struct api_error *e); /* the prompt does not fit; c->job.prompts[0] has it all the same */

bool translate_is_one(const char *word, const char *const *words); /* word may be NULL; words end in NULL */
/* A string that is absent or one of the words (ends in NULL). Returns it, or NULL. */
const char *translate_word(struct params *p, const char *key, const char *const *words);

/* Errors: about a field, but with a place of its own in front; and inside an object: param "format" becomes
 * "text.format". */
void translate_fail(struct params *p, const char *param, const char *fmt, ...) PRINTF_LIKE(3, 4);
void translate_nest(struct api_error *e, const char *outer);

#endif
