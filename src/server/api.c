/* api.c — what all dialects share. */
#include "server/api.h"

int api_prepare(const struct api *a, struct call *c, struct buf *reply, struct api_error *e) {
  struct err why;
  json_t *body = c->dialect->empty_body && c->body.len == 0
                     ? json_object()
                     : json_load_text(c->body.data ? c->body.data : "", c->body.len, false, "body", &why);
  if (!body) return api_error_set(e, err_http_status(why.code), "invalid_json", NULL, "%s", why.msg);
  int r = json_is_object(body) ? c->dialect->prepare(a, c, body, reply, e)
                               : api_error_set(e, 400, "invalid_json", NULL, "body: expected a JSON object");
  json_decref(body);
  if (r == 0 && c->n_choices == 0) api_make_choices(c);
  return r;
}

void api_reply_message(const struct api *a, struct call *c, const struct message *m) { openai_message(a, c, m); }
