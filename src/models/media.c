/* media.c — pictures and sounds as models want them. The rules are in media.h. */
#include "models/media.h"

#include <stdlib.h>

struct media *media_from_image(const struct model_config *c, const struct image *im, const struct media_options *o, struct err *e) {
  (void)c, (void)im, (void)o;
  err_set(e, ERR_UNSUPPORTED, "picture: this model takes none");
  return NULL;
}

struct media *media_from_audio(const struct model_config *c, const struct audio *a, int64_t first, int64_t n, struct err *e) {
  (void)c, (void)a, (void)first, (void)n;
  err_set(e, ERR_UNSUPPORTED, "sound: this model takes none");
  return NULL;
}

void media_retain(const struct media *m) { (void)m; }
void media_release(const struct media *m) { (void)m; }
