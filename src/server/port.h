/* port.h — what the server needs of an engine, as functions: the real one (port_of) or a scripted one in tests.
 *
 * Same meaning and same return values as the functions of cygnet.h that bear these names.
 *   any thread      info encode decode piece render expand grammar_new grammar_free media_..., and what concerns parsers: one thread at a
 *                   time for each of them
 *   engine thread   submit abort step lost next_event stats flush
 */
#ifndef CYGNET_PORT_H
#define CYGNET_PORT_H

#include "cygnet.h"

struct port {
  void *self;
  void (*info)(void *self, struct cygnet_info *out);
  int (*encode)(void *self, const char *text, size_t n_text, int special, int bos, int32_t **ids, size_t *n_ids);
  char *(*decode)(void *self, const int32_t *ids, size_t n_ids, int skip_special, size_t *n_text);
  const char *(*piece)(void *self, int32_t id, size_t *n);
  int (*render)(void *self, const char *messages, const char *tools, const char *options, int32_t **ids, size_t *n_ids, int *thought,
                struct cygnet_error *e);
  struct cygnet_grammar *(*grammar_new)(void *self, enum cygnet_grammar_kind kind, const char *text, size_t n_text, struct cygnet_error *e);
  void (*grammar_free)(struct cygnet_grammar *g);
  struct cygnet_parser *(*parser_new)(void *self, const char *const *names, int n_names, int in_thought,
                                      void (*fn)(void *ctx, const struct cygnet_part *part), void *ctx);
  void (*parser_free)(struct cygnet_parser *p);
  void (*parser_push)(struct cygnet_parser *p, const char *text, size_t n_text, const struct cygnet_mark *marks, size_t n_marks);
  void (*parser_finish)(struct cygnet_parser *p);
  void (*release)(void *owned); /* of ids and text */
  struct cygnet_media *(*media_new)(void *self, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                    const struct cygnet_media_options *o, struct cygnet_error *e);
  int (*media_pieces)(void *self, const void *bytes, size_t n, double seconds_max, struct cygnet_media **pieces, int n_max, double *seconds,
                      struct cygnet_error *e);
  void (*media_free)(struct cygnet_media *m);
  int (*media_tokens)(const struct cygnet_media *m);
  size_t (*media_memory)(const struct cygnet_media *m);
  int (*expand)(void *self, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media, size_t n_media, int32_t **out,
                size_t *n_out, struct cygnet_error *e);
  uint64_t (*submit)(void *self, const struct cygnet_request *r, struct cygnet_error *e);
  void (*abort)(void *self, uint64_t request);
  int (*step)(void *self);
  int (*lost)(void *self, struct cygnet_error *e); /* NULL: never */
  int (*next_event)(void *self, struct cygnet_event *ev);
  void (*stats)(void *self, struct cygnet_stats *out);
  int (*flush)(void *self);
};

struct port port_of(struct cygnet *c);

#endif
