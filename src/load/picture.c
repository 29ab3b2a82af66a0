/* picture.c — random squares, through libpng and libjpeg. */
#include "load/picture.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"

#ifdef CYGNET_NO_IMAGE

char *picture_make(int width, int height, bool jpeg, uint64_t seed, uint64_t number, struct err *e) {
  (void)width, (void)height, (void)jpeg, (void)seed, (void)number;
  err_set(e, ERR_UNSUPPORTED, "--workload image: this program was built without pictures (IMAGE=0)");
  return NULL;
}

#else

#include <jpeglib.h>
#include <png.h>

enum { SQUARE = 16, QUALITY = 85 };

/* [height, width, 3] */
static unsigned char *paint(int width, int height, uint64_t seed, uint64_t number) {
  int across = div_up(width, SQUARE);
  unsigned char *rgb = xmalloc((size_t)width * (size_t)height * 3);
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x += SQUARE) {
      uint32_t r[4];
      rng_block(seed, number, (uint32_t)(y / SQUARE * across + x / SQUARE), r);
      for (int i = x; i < MIN(x + SQUARE, width); i++)
        for (int c = 0; c < 3; c++) rgb[((size_t)y * (size_t)width + (size_t)i) * 3 + (size_t)c] = (unsigned char)(r[c] >> 24);
    }
  return rgb;
}

static bool write_png(const unsigned char *rgb, int width, int height, void **out, size_t *n) {
  png_image image = {.version = PNG_IMAGE_VERSION, .width = (png_uint_32)width, .height = (png_uint_32)height, .format = PNG_FORMAT_RGB};
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  *out = xmalloc(size);
  bool fine = png_image_write_to_memory(&image, *out, &size, 0, rgb, 0, NULL);
  *n = size;
  return fine;
}

static bool write_jpeg(const unsigned char *rgb, int width, int height, void **out, size_t *n) {
  struct jpeg_compress_struct c;
  struct jpeg_error_mgr errors;
  unsigned char *bytes = NULL;
  unsigned long size = 0;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  jpeg_mem_dest(&c, &bytes, &size);
  c.image_width = (JDIMENSION)width;
  c.image_height = (JDIMENSION)height;
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, QUALITY, TRUE);
  jpeg_start_compress(&c, TRUE);
  while (c.next_scanline < c.image_height) {
    JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)c.next_scanline * (size_t)width * 3);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  *out = bytes;
  *n = size;
  return true;
}

char *picture_make(int width, int height, bool jpeg, uint64_t seed, uint64_t number, struct err *e) {
  void *bytes;
  size_t n;
  unsigned char *rgb = paint(width, height, seed, number);
  bool fine = (jpeg ? write_jpeg : write_png)(rgb, width, height, &bytes, &n);
  free(rgb);
  if (!fine) {
    free(bytes);
    err_set(e, ERR_INTERNAL, "libpng: cannot write a picture of %dx%d", width, height);
    return NULL;
  }
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "data:image/%s;base64,", jpeg ? "jpeg" : "png");
  unsigned char *text = xmalloc(n / 3 * 4 + 8);
  buf_append(&b, text, (size_t)EVP_EncodeBlock(text, bytes, (int)n));
  free(text);
  free(bytes);
  return buf_take(&b, NULL);
}

#endif
