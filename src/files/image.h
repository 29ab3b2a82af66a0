/* image.h — bytes of a picture → RGB, upright, on white. Nothing is known of models here.
 *
 * JPEG (baseline, progressive, grey, CMYK and YCCK), PNG (all of it), WebP (first frame), GIF (first frame), BMP. What it is the bytes say,
 * never a label.
 *
 * Rules
 *   1. Sizes are read from the header and held against the limits before any pixel is decoded or memory taken.
 *   2. EXIF orientation (JPEG, PNG, WebP) is applied. Transparency, a palette's too, is composited on white: what is hidden cannot matter.
 *      16 bits become 8 by rounding. Colour profiles and gamma are not applied, as the references do not (docs/media.md).
 *   3. A file that ends early or is damaged is refused, not half decoded. What follows the picture (or the first frame) is not looked at.
 *   4. Any thread; no global state. Libraries' messages become the error's sentence, nothing is printed.
 */
#ifndef CYGNET_IMAGE_H
#define CYGNET_IMAGE_H

#include "base/err.h"

struct image {
  int width, height;
  uint8_t *rgb; /* [height, width, 3], owned */
};

enum { IMAGE_PIXELS_MAX = 64 << 20, IMAGE_SIDE_MAX = 65535 };

/* "jpeg", "png", "webp", "gif", "bmp"; what is known but not decoded: "heic", "avif", "svg", "tiff", "jxl", "pdf"; NULL: nothing that is
 * known. */
const char *image_type(const void *bytes, size_t n);
/* pixels_max: 0 = IMAGE_PIXELS_MAX. "jpeg: ...", with ERR_BAD_INPUT (damaged, or no picture at all), ERR_UNSUPPORTED (a kind that is not
 * decoded), ERR_TOO_LARGE, ERR_NO_MEMORY. */
int image_decode(const void *bytes, size_t n, int64_t pixels_max, struct image *out, struct err *e);
void image_free(struct image *im); /* fine on a zeroed one */

#endif
