/* dialect.h — the three APIs: what a request looks like, and what an event of its stream says.
 *
 *   LOAD_OPENAI  POST /v1/completions       text; choices[0].text; usage
 *   LOAD_CHAT    POST /v1/chat/completions  messages; choices[0].delta.content, reasoning_content; usage
 *   LOAD_SGLANG  POST /generate             text; the whole text so far; meta_info
 */
#ifndef CYGNET_LOAD_DIALECT_H
#define CYGNET_LOAD_DIALECT_H

#include "load/load.h"

/* What a conversation has said so far. */
struct dialect_history {
  json_t *messages; /* chats; owned */
  struct buf text;  /* the others */
};
void dialect_history_free(struct dialect_history *h);

const char *dialect_path(enum load_api api);
/* The request as JSON, appended to b. It is added to h, if there is one. */
void dialect_body(const struct load_settings *s, const struct load_request *q, struct dialect_history *h, struct buf *b);
/* An answer to it. */
void dialect_answer(enum load_api api, struct dialect_history *h, const char *text, size_t n);

struct dialect_piece { /* borrows from the event */
  const char *text;    /* NULL: none */
  size_t n_text;
  bool whole;     /* text is everything so far (SGLang), not what is new */
  bool ended;     /* it says why the answer ended */
  bool aborted;   /* and it was given up */
  bool has_usage; /* the counts below are there */
  int prompt_tokens, completion_tokens, cached_tokens;
  const char *error; /* the server's sentence */
};
/* What an event says; false: it is none of this API. */
bool dialect_read(enum load_api api, const json_t *event, struct dialect_piece *out);

#endif
