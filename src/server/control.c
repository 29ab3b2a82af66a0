/* control.c — what asks the engine to do something else than to answer: flush the cache, prove that it lives. */
#include "server/api.h"

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  (void)a, (void)c, (void)body, (void)reply;
  return api_error_set(e, 501, "not_implemented", NULL, "not there yet");
}

const struct dialect dialect_flush = {.name = "flush", .id_prefix = "", .prepare = prepare, .message = openai_message, .fail = openai_fail};
const struct dialect dialect_health_generate = {
    .name = "health-generate", .id_prefix = "health-", .prepare = prepare, .message = openai_message, .fail = openai_fail};
