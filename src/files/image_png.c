/* image_png.c — PNG through libpng: every depth, palette and interlace becomes 8-bit RGB, or RGBA where anything can be transparent. */
#ifndef CYGNET_NO_IMAGE

#include <setjmp.h>
#include <string.h>

#include <png.h>

#include "files/image_impl.h"

/* What one chunk but the picture may take in memory. */
enum { CHUNK_BYTES_MAX = 1 << 20 };

struct png_read {
  png_structp lib;
  png_infop info;
  struct image_job *job;
  size_t at; /* bytes consumed */
};

static void on_error(png_structp lib, png_const_charp message) {
  struct png_read *r = png_get_error_ptr(lib);
  image_library_error(r->job, message);
  png_longjmp(lib, 1);
}
static void on_warning(png_structp lib, png_const_charp message) { (void)lib, (void)message; }

static void read_bytes(png_structp lib, png_bytep out, size_t n) {
  struct png_read *r = png_get_io_ptr(lib);
  if (n > r->job->n - r->at) png_error(lib, "the file ends early");
  memcpy(out, r->job->bytes + r->at, n);
  r->at += n;
}

/* What would change nothing is skipped where it stands: compressed text and colour profiles are the ways to make a small file large. EXIF
 * too: libpng takes as much memory as its length says before it looks for the bytes. */
static void skip_metadata(png_structp lib) {
  static const png_byte names[] =
      "bKGD\0cHRM\0cICP\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0sTER\0tEXt\0tIME\0zTXt";
  png_set_keep_unknown_chunks(lib, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
  png_set_keep_unknown_chunks(lib, PNG_HANDLE_CHUNK_NEVER, names, (int)(sizeof names / 5));
}

/* Of a file that libpng has found whole. A chunk: u32 length, its name, that many bytes, u32 checksum; numbers have their highest byte
 * first. */
static void read_orientation(struct image_job *j) {
  for (size_t at = 8; j->n - at >= 12;) {
    const uint8_t *chunk = j->bytes + at;
    size_t n = (size_t)chunk[0] << 24 | (size_t)chunk[1] << 16 | (size_t)chunk[2] << 8 | chunk[3];
    if (n > j->n - at - 12 || memcmp(chunk + 4, "IEND", 4) == 0) return;
    if (memcmp(chunk + 4, "eXIf", 4) == 0) {
      j->orientation = image_exif_orientation(chunk + 8, n);
      return;
    }
    at += 12 + n;
  }
}

/* Comes back by longjmp into its setjmp wherever the library fails. No local variable is needed after that. */
static int read_picture(struct png_read *r) {
  png_structp lib = r->lib;
  struct image_job *j = r->job;
  if (setjmp(png_jmpbuf(lib))) return -1;
  png_set_read_fn(lib, r, read_bytes);
  png_set_user_limits(lib, 0x7fffffff, 0x7fffffff); /* image_take says it better */
  png_set_chunk_cache_max(lib, 128);
  png_set_chunk_malloc_max(lib, CHUNK_BYTES_MAX);
  png_set_crc_action(lib, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  skip_metadata(lib);
  png_read_info(lib, r->info);

  bool alpha = (png_get_color_type(lib, r->info) & PNG_COLOR_MASK_ALPHA) || png_get_valid(lib, r->info, PNG_INFO_tRNS);
  if (image_take(j, png_get_image_width(lib, r->info), png_get_image_height(lib, r->info), alpha ? 4 : 3) != 0) return -1;
  png_set_expand(lib); /* palette to colour, 1, 2, 4 bits to 8, tRNS to alpha */
  png_set_scale_16(lib);
  png_set_gray_to_rgb(lib);
  int passes = png_set_interlace_handling(lib);
  png_read_update_info(lib, r->info);
  size_t row_bytes = (size_t)j->im.width * (alpha ? 4 : 3);
  CHECK(png_get_rowbytes(lib, r->info) == row_bytes);
  for (int pass = 0; pass < passes; pass++)
    for (int y = 0; y < j->im.height; y++) png_read_row(lib, j->im.rgb + (size_t)y * row_bytes, NULL);
  png_read_end(lib, r->info);

  if (alpha) image_flatten(j);
  return 0;
}

int image_read_png(struct image_job *j) {
  struct png_read r = {.job = j};
  int rc = -1;
  r.lib = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  r.info = r.lib ? png_create_info_struct(r.lib) : NULL;
  if (r.info) rc = read_picture(&r);
  else err_set(j->e, ERR_NO_MEMORY, "cannot get memory to decode");
  png_destroy_read_struct(&r.lib, &r.info, NULL);
  if (rc == 0) read_orientation(j);
  return rc;
}

#endif
