/* api.h — the dialects: request bodies to jobs, engine events to answers.
 *
 * Rules for every dialect
 *   1. A field that is known and cannot be honoured is 400 with its name in error.param; it is never ignored. Fields nobody here has heard of are
 *      ignored, as OpenAI's clients expect. null, false, "", [] and {} count as "not given".
 *   2. Errors that can be known before the first byte of an answer are real 4xx and 5xx, streaming or not. Later ones are an event of the stream in
 *      the dialect's own form, and its end.
 *   3. The deltas of a stream put together are the text of the same request without streaming.
 *   4. usage is counted once per prompt and summed over choices; prompt_tokens_details.cached_tokens is always there.
 */
#ifndef CYGNET_API_H
#define CYGNET_API_H

#include "files/json.h"
#include "server/call.h"

struct api {
  struct port port;
  struct cygnet_info info;
  char *model;                     /* served name; owned */
  struct buf model_json;           /* the same, escaped */
  int64_t created;                 /* when this server started */
  struct cygnet_sampling defaults; /* for what a request leaves out */
  int choices_max;                 /* n times the number of prompts */
  struct media_house *media;       /* of pictures and sounds; borrowed */
};

/* One API's way to ask and to answer. */
struct dialect {
  const char *name;      /* in logs and metrics: "chat", "completion", "generate", ... */
  const char *id_prefix; /* of call ids: "chatcmpl-" */
  bool empty_body;       /* no body is as good as {} */
  bool in_parts;         /* the body is multipart/form-data: prepare gets body NULL, and reads c->body */
  /* Prep thread; body is an object. 0: c->job and, if it stays c->n_choices = 0, one choice per prompt and n; 1: *reply is a whole body, or with
   * c->control the engine thread is asked; -1 and *e. */
  int (*prepare)(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e);
  /* io thread: one message → bytes on c->x, which must not be NULL. Sets c->x = NULL when the exchange is over. */
  void (*message)(const struct api *a, struct call *c, const struct message *m);
  /* io thread: ends the exchange of c with an error, as rule 2 says. */
  void (*fail)(struct call *c, const struct api_error *e);
};
extern const struct dialect dialect_chat, dialect_completion;                             /* openai.c */
extern const struct dialect dialect_transcribe;                                           /* transcribe.c */
extern const struct dialect dialect_generate;                                             /* native.c */
extern const struct dialect dialect_responses;                                            /* responses.c */
extern const struct dialect dialect_anthropic, dialect_count_tokens;                      /* anthropic.c */
extern const struct dialect dialect_tokenize, dialect_detokenize, dialect_apply_template; /* tokens.c */
extern const struct dialect dialect_flush, dialect_health_generate;                       /* control.c */

/* Prep thread: what threads_prepare wants, for every dialect. */
int api_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e);

/* openai_request.c: the body of a chat completion → c->job. Other dialects of conversations translate theirs into one and call it. */
int openai_prepare_chat(const struct api *a, struct call *c, const json_t *body, struct api_error *e);
int openai_prepare_completion(const struct api *a, struct call *c, const json_t *body, struct api_error *e);

/* One string or array of text or ids → prompts of the job. Shared by the dialects. */
int api_prompts(const struct api *a, const json_t *prompt, const char *param, struct job *j, struct api_error *e);
/* The same text as is continued, with pictures and sounds of the job, which are to have been loaded, at their markers or in front
 * (cygnet_render, raw). */
int api_media_prompt(const struct api *a, struct job *j, const char *text, size_t n, int first, int n_media, const char *param,
                     struct api_error *e);
void api_add_ids(struct job *j, const int32_t *ids, size_t n); /* one prompt more; j->prompts has the room */
/* n times the number of prompts against the server's limit. */
int api_check_choices(const struct api *a, const struct job *j, struct api_error *e);

void openai_fail(struct call *c, const struct api_error *e); /* dialect.fail of all whose errors look like OpenAI's */
/* For dialects that answer with whole bodies only (MESSAGE_REPLY and errors). */
void api_reply_message(const struct api *a, struct call *c, const struct message *m);

/* An error as a whole answer; adds Retry-After to 503 (unless it is there) and WWW-Authenticate to 401. The second one has a body of its own. */
void api_reply_error(struct http_exchange *x, const struct api_error *e);
void api_reply_error_body(struct http_exchange *x, int status, const struct buf *body);

enum { API_BODY_MAX = 256 << 20 };
/* The whole answer; out is freed. For one that outgrew its buffer (API_BODY_MAX) the dialect's fail answers 500. */
void api_reply_body(struct call *c, struct buf *out);
/* Everything of a message but the event of a choice: true when that was it. */
bool api_take_whole(struct call *c, const struct message *m);
/* The numbers of a message → its choice, which is returned. */
struct choice *api_take_numbers(struct call *c, const struct message *m);

/* Streams: the head, once; their end; and the end with [DONE] before it. */
void api_begin_stream(struct call *c);
void api_end_stream(struct call *c);
bool api_send_done(struct call *c);

/* Pieces of answers. */
/* `,"image_tokens":N,...` where the prompts have pictures or sounds; else nothing. */
void api_put_media_usage(struct buf *out, const struct call *c);
void api_put_comma(struct buf *out); /* unless out is empty: between the items of a list that is being collected */
void api_put_ids(struct buf *out, const int32_t *ids, size_t n);      /* [1,2] */
void api_put_string(struct buf *out, const char *s, size_t n);        /* quoted; bytes that are not UTF-8 become U+FFFD */
void api_put_token(const struct api *a, struct buf *out, int32_t id); /* its text, quoted */
void api_put_logprob(struct buf *out, float f);                       /* NaN: null; infinite: -9999, OpenAI's word for "never" */
/* More items for a list of OpenAI's chat log-probabilities: {"token","logprob","bytes","top_logprobs"}. */
void api_put_chat_logprobs(const struct api *a, struct buf *out, const struct message *m);
void api_put_matched(struct buf *out, const struct choice *o); /* the stop string, the token id, or null */

#endif
