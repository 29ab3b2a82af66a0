/* cygnet_media.c — pictures and sound in the public interface. */
#include <stdlib.h>

#include "engine/engine.h"

struct cygnet_media *cygnet_media_new(const struct cygnet *c, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                      const struct cygnet_media_options *o, struct cygnet_error *e) {
  struct err from;
  (void)c, (void)kind, (void)bytes, (void)n, (void)o;
  err_set(&from, ERR_UNSUPPORTED, "this model takes neither pictures nor sound");
  cygnet_error_set(e, &from);
  return NULL;
}

void cygnet_media_free(struct cygnet_media *m) { (void)m; }
int cygnet_media_tokens(const struct cygnet_media *m) { return (void)m, 0; }
double cygnet_media_seconds(const struct cygnet_media *m) { return (void)m, 0; }
size_t cygnet_media_memory(const struct cygnet_media *m) { return (void)m, 0; }

int cygnet_media_write(const struct cygnet *c, const struct cygnet_media *m, const char *path, struct cygnet_error *e) {
  (void)c, (void)m, (void)path, (void)e;
  return -1;
}

int cygnet_expand(const struct cygnet *c, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media, size_t n_media,
                  int32_t **out, size_t *n_out, struct cygnet_error *e) {
  (void)c, (void)ids, (void)n_ids, (void)media, (void)n_media, (void)e;
  *out = NULL;
  *n_out = 0;
  return -1;
}
