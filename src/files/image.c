/* image.c — bytes of a picture to RGB. The rules are in image.h. */
#include "files/image.h"

#include <stdlib.h>

const char *image_type(const void *bytes, size_t n) {
  (void)bytes, (void)n;
  return NULL;
}

int image_decode(const void *bytes, size_t n, int64_t pixels_max, struct image *out, struct err *e) {
  (void)bytes, (void)n, (void)pixels_max;
  *out = (struct image){0};
  return err_set(e, ERR_UNSUPPORTED, "picture: no decoder");
}

void image_free(struct image *im) {
  free(im->rgb);
  *im = (struct image){0};
}
