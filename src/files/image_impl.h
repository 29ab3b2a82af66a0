/* image_impl.h — what image.c and the decoders of the formats share. */
#ifndef CYGNET_IMAGE_IMPL_H
#define CYGNET_IMAGE_IMPL_H

#include "files/image.h"

/* One picture on its way. A decoder reads the header, calls image_take with the size, and fills `im`. */
struct image_job {
  const uint8_t *bytes; /* borrowed, n of them */
  size_t n;
  int64_t pixels_max;
  struct image im; /* image_decode frees it when a decoder fails */
  int orientation; /* EXIF, 1 .. 8; what is stored has still to be turned by it */
  struct err *e;
};

/* Hold a size against the limits and take [height, width, channels] zeroed bytes as j->im.rgb; channels 4 until image_flatten. */
int image_take(struct image_job *j, int64_t width, int64_t height, int channels);
/* j->im.rgb from RGBA to RGB on white, in place. */
void image_flatten(struct image_job *j);
/* The sentence of a library, whose bytes may be anything. Returns -1. */
int image_library_error(struct image_job *j, const char *message);

/* Each returns 0, or -1 with the reason in j->e (without the format's name). */
int image_read_jpeg(struct image_job *j);
int image_read_png(struct image_job *j);
int image_read_webp(struct image_job *j);
int image_read_gif(struct image_job *j);
int image_read_bmp(struct image_job *j);

/* Orientation out of an EXIF block, with or without its "Exif\0\0" in front; 1 where it has none that is valid. */
int image_exif_orientation(const uint8_t *block, size_t n);

#endif
