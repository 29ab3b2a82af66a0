/* f_image.c — any bytes as a picture: decoded, every pixel read, the limit kept. */
#include <string.h>

#include "files/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile unsigned sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  enum { PIXELS_MAX = 1 << 18 };
  struct image im;
  struct err e = {0};
  const char *type = image_type(data, n);
  if (image_decode(data, n, PIXELS_MAX, &im, &e) == 0) {
    CHECK(type && im.width > 0 && im.height > 0 && (int64_t)im.width * im.height <= PIXELS_MAX);
    unsigned sum = 0;
    for (int i = 0; i < im.width * im.height * 3; i++) sum += im.rgb[i];
    sink = sum;
  } else {
    CHECK(e.msg[0] && e.code && !im.rgb);
    CHECK(!type || strncmp(e.msg, type, strlen(type)) == 0);
  }
  image_free(&im);
  return 0;
}
