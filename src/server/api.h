/* api.h — the dialects: request bodies to jobs, engine events to answers.
 *
 * Rules for every dialect
 *   1. A field that is known and cannot be honoured is 400 with its name in error.param; it is never ignored. Fields nobody here has heard of are
 *      ignored, as OpenAI's clients expect. null, false, "", [] and {} count as "not given".
 *   2. Errors that can be known before the first byte of an answer are real 4xx and 5xx, streaming or not. Later ones are an error object in the
 *      stream, then [DONE].
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
};

/* Prep thread. As threads_prepare: 0, -1 and *e, or 1 and *reply. */
int openai_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e);
int ops_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e);

/* One string or array of text or ids → prompts of the job, sizes checked against the context. Shared by the dialects. */
int api_prompts(const struct api *a, const json_t *prompt, const char *param, struct job *j, struct api_error *e);
void api_make_choices(struct call *c);

/* io thread: one message → bytes on c->x, which must not be NULL. Sets c->x = NULL when the exchange is over. */
void openai_message(const struct api *a, struct call *c, const struct message *m);
/* io thread: ends the exchange of c with an error, as rule 2 says. */
void openai_fail(struct call *c, const struct api_error *e);

/* An error as a whole answer; adds Retry-After to 503 and WWW-Authenticate to 401. */
void api_reply_error(struct http_exchange *x, const struct api_error *e);

#endif
