/* port.c — the real engine behind the port. */
#include "server/port.h"

static void port_info(void *self, struct cygnet_info *out) { cygnet_info(self, out); }
static int port_encode(void *self, const char *text, size_t n_text, int special, int bos, int32_t **ids, size_t *n_ids) {
  return cygnet_encode(self, text, n_text, special, bos, ids, n_ids);
}
static char *port_decode(void *self, const int32_t *ids, size_t n_ids, int skip_special, size_t *n_text) {
  return cygnet_decode(self, ids, n_ids, skip_special, n_text);
}
static const char *port_piece(void *self, int32_t id, size_t *n) { return cygnet_piece(self, id, n); }
static int port_render(void *self, const char *messages, const char *tools, const char *options, int32_t **ids, size_t *n_ids, int *thought,
                       struct cygnet_error *e) {
  return cygnet_render(self, messages, tools, options, ids, n_ids, NULL, thought, e);
}
static struct cygnet_grammar *port_grammar_new(void *self, enum cygnet_grammar_kind kind, const char *text, size_t n_text,
                                               struct cygnet_error *e) {
  return cygnet_grammar_new(self, kind, text, n_text, e);
}
static struct cygnet_parser *port_parser_new(void *self, const char *const *names, int n_names, int in_thought,
                                             void (*fn)(void *ctx, const struct cygnet_part *part), void *ctx) {
  return cygnet_parser_new(self, names, n_names, in_thought, fn, ctx);
}
static struct cygnet_media *port_media_new(void *self, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                           const struct cygnet_media_options *o, struct cygnet_error *e) {
  return cygnet_media_new(self, kind, bytes, n, o, e);
}
static int port_media_pieces(void *self, const void *bytes, size_t n, double seconds_max, struct cygnet_media **pieces, int n_max,
                             double *seconds, struct cygnet_error *e) {
  return cygnet_media_pieces(self, bytes, n, seconds_max, pieces, n_max, seconds, e);
}
static int port_expand(void *self, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media, size_t n_media, int32_t **out,
                       size_t *n_out, struct cygnet_error *e) {
  return cygnet_expand(self, ids, n_ids, media, n_media, out, n_out, e);
}
static uint64_t port_submit(void *self, const struct cygnet_request *r, struct cygnet_error *e) { return cygnet_submit(self, r, e); }
static void port_abort(void *self, uint64_t request) { cygnet_abort(self, request); }
static int port_step(void *self) { return cygnet_step(self); }
static int port_lost(void *self, struct cygnet_error *e) { return cygnet_lost(self, e); }
static int port_next_event(void *self, struct cygnet_event *ev) { return cygnet_next_event(self, ev); }
static void port_stats(void *self, struct cygnet_stats *out) { cygnet_stats(self, out); }
static int port_flush(void *self) { return cygnet_flush(self); }

struct port port_of(struct cygnet *c) {
  return (struct port){.self = c,
                       .info = port_info,
                       .encode = port_encode,
                       .decode = port_decode,
                       .piece = port_piece,
                       .render = port_render,
                       .release = cygnet_free,
                       .grammar_new = port_grammar_new,
                       .grammar_free = cygnet_grammar_free,
                       .parser_new = port_parser_new,
                       .parser_free = cygnet_parser_free,
                       .parser_push = cygnet_parser_push,
                       .parser_finish = cygnet_parser_finish,
                       .media_new = port_media_new,
                       .media_pieces = port_media_pieces,
                       .media_free = cygnet_media_free,
                       .media_tokens = cygnet_media_tokens,
                       .media_memory = cygnet_media_memory,
                       .expand = port_expand,
                       .submit = port_submit,
                       .abort = port_abort,
                       .step = port_step,
                       .lost = port_lost,
                       .next_event = port_next_event,
                       .stats = port_stats,
                       .flush = port_flush};
}
