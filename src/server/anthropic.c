/* anthropic.c — Anthropic's /v1/messages. */
#include "server/api.h"

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)a, (void)c, (void)body, (void)reply;
  return api_error_set(e, 501, "not_implemented", NULL, "not there yet");
}

const struct dialect dialect_anthropic = {
    .name = "anthropic", .id_prefix = "msg_", .prepare = prepare, .message = openai_message, .fail = openai_fail};
const struct dialect dialect_count_tokens = {
    .name = "count-tokens", .id_prefix = "", .prepare = prepare, .message = openai_message, .fail = openai_fail};
