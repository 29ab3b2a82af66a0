/* responses.c — OpenAI's /v1/responses. */
#include "server/api.h"

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)a, (void)c, (void)body, (void)reply;
  return api_error_set(e, 501, "not_implemented", NULL, "not there yet");
}

const struct dialect dialect_responses = {
    .name = "responses", .id_prefix = "resp_", .prepare = prepare, .message = openai_message, .fail = openai_fail};
