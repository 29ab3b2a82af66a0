/* image.c — what kind of picture bytes are, the limits, and what all formats have in common once pixels are there: white behind
 * transparency, and turning by EXIF orientation. The rules are in image.h.
 */
#include "files/image.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "files/image_impl.h"

/* --- what it is ------------------------------------------------------------------------------------------------------- */

static bool starts(const uint8_t *p, size_t n, const char *magic, size_t magic_bytes) {
  return n >= magic_bytes && memcmp(p, magic, magic_bytes) == 0;
}

/* ISO base media: the box "ftyp" holds a major brand, a version, and further brands. */
static const char *iso_media_type(const uint8_t *p, size_t n) {
  if (n < 16 || memcmp(p + 4, "ftyp", 4) != 0) return NULL;
  size_t box = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
  const char *type = NULL;
  for (size_t at = 8; at + 4 <= MIN(box, MIN(n, 256)); at += at == 8 ? 8 : 4) {
    const char *brand = (const char *)p + at;
    if (memcmp(brand, "avif", 4) == 0 || memcmp(brand, "avis", 4) == 0) return "avif";
    if (memcmp(brand, "hei", 3) == 0 || memcmp(brand, "hev", 3) == 0 || memcmp(brand, "mif1", 4) == 0 || memcmp(brand, "msf1", 4) == 0)
      type = "heic";
  }
  return type;
}

/* Text whose first element is <svg>, after a declaration, comments and a document type. */
static bool is_svg(const uint8_t *p, size_t n) {
  size_t at = starts(p, n, "\xEF\xBB\xBF", 3) ? 3 : 0;
  n = MIN(n, 4096);
  while (at < n) {
    if (p[at] == ' ' || p[at] == '\t' || p[at] == '\r' || p[at] == '\n') {
      at++;
    } else if (starts(p + at, n - at, "<svg", 4)) {
      return true;
    } else if (starts(p + at, n - at, "<?", 2) || starts(p + at, n - at, "<!", 2)) {
      const uint8_t *end = memchr(p + at, '>', n - at);
      if (!end) return false;
      at = (size_t)(end - p) + 1;
    } else {
      return false;
    }
  }
  return false;
}

const char *image_type(const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  if (starts(p, n, "\xFF\xD8\xFF", 3)) return "jpeg";
  if (starts(p, n, "\x89PNG\r\n\x1A\n", 8)) return "png";
  if (starts(p, n, "GIF87a", 6) || starts(p, n, "GIF89a", 6)) return "gif";
  if (starts(p, n, "RIFF", 4) && n >= 12 && memcmp(p + 8, "WEBP", 4) == 0) return "webp";
  if (starts(p, n, "BM", 2) && n >= 18 && p[15] == 0 && p[16] == 0 && p[17] == 0 && p[14] >= 12) return "bmp"; /* "BM" alone may be text */
  if (starts(p, n, "II*\0", 4) || starts(p, n, "MM\0*", 4) || starts(p, n, "II+\0", 4) || starts(p, n, "MM\0+", 4)) return "tiff";
  if (starts(p, n, "\xFF\x0A", 2) || starts(p, n, "\0\0\0\x0CJXL \r\n\x87\n", 12)) return "jxl";
  if (starts(p, n, "%PDF-", 5)) return "pdf";
  if (iso_media_type(p, n)) return iso_media_type(p, n);
  return n && is_svg(p, n) ? "svg" : NULL;
}

/* --- what decoders share ---------------------------------------------------------------------------------------------- */

int image_take(struct image_job *j, int64_t width, int64_t height, int channels) {
  if (width < 1 || height < 1)
    return err_set(j->e, ERR_BAD_INPUT, "expected a size of at least 1 x 1, found %lld x %lld", (long long)width, (long long)height);
  if (width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX)
    return err_set(j->e, ERR_TOO_LARGE, "expected sides of at most %d pixels, found %lld x %lld", IMAGE_SIDE_MAX, (long long)width,
                   (long long)height);
  if (width * height > j->pixels_max)
    return err_set(j->e, ERR_TOO_LARGE, "expected at most %lld pixels, found %lld x %lld = %lld", (long long)j->pixels_max,
                   (long long)width, (long long)height, (long long)(width * height));
  size_t n_bytes = (size_t)(width * height) * (size_t)channels;
  CHECK(!j->im.rgb);
  j->im = (struct image){.width = (int)width, .height = (int)height, .rgb = mem_try_alloc(n_bytes)};
  if (!j->im.rgb) return err_set(j->e, ERR_NO_MEMORY, "cannot get memory for %lld x %lld pixels", (long long)width, (long long)height);
  return 0;
}

/* round((a*c + (255-a)*255) / 255) */
static uint8_t on_white(unsigned c, unsigned a) { return (uint8_t)((c * a + (255 - a) * 255 + 127) / 255); }

void image_flatten(struct image_job *j) {
  size_t n = (size_t)j->im.width * (size_t)j->im.height;
  uint8_t *to = j->im.rgb;
  for (const uint8_t *from = to, *end = to + 4 * n; from < end; from += 4, to += 3) {
    unsigned a = from[3];
    if (a == 255) memmove(to, from, 3);
    else
      for (int c = 0; c < 3; c++) to[c] = on_white(from[c], a);
  }
  uint8_t *shorter = realloc(j->im.rgb, 3 * n);
  if (shorter) j->im.rgb = shorter;
}

int image_library_error(struct image_job *j, const char *message) {
  char escaped[256];
  return err_set(j->e, ERR_BAD_INPUT, "cannot be decoded: %s", str_escape(str_c(message), escaped, sizeof escaped));
}

/* --- upright ---------------------------------------------------------------------------------------------------------- */

/* EXIF orientation says where the stored first row and column belong. Stored pixel (x, y) → upright, W and H the stored size:
 *   1 (x, y)     2 (W-1-x, y)   3 (W-1-x, H-1-y)   4 (x, H-1-y)
 *   5 (y, x)     6 (H-1-y, x)   7 (H-1-y, W-1-x)   8 (y, W-1-x)
 * Goes over blocks, because one of the two sides is walked across rows. */
static int turn(struct image_job *j) {
  enum { BLOCK = 32 };
  int w = j->im.width, h = j->im.height, o = j->orientation;
  bool swaps = o >= 5, flips_x = o == 2 || o == 3 || o == 6 || o == 7, flips_y = o == 3 || o == 4 || o == 7 || o == 8;
  struct image up = {.width = swaps ? h : w, .height = swaps ? w : h, .rgb = mem_try_alloc((size_t)w * (size_t)h * 3)};
  if (!up.rgb) return err_set(j->e, ERR_NO_MEMORY, "cannot get memory to turn %d x %d pixels", w, h);
  for (int top = 0; top < h; top += BLOCK)
    for (int left = 0; left < w; left += BLOCK)
      for (int y = top; y < MIN(h, top + BLOCK); y++)
        for (int x = left; x < MIN(w, left + BLOCK); x++) {
          int to_x = swaps ? y : x, to_y = swaps ? x : y;
          if (flips_x) to_x = up.width - 1 - to_x;
          if (flips_y) to_y = up.height - 1 - to_y;
          memcpy(up.rgb + 3 * ((size_t)to_y * (size_t)up.width + (size_t)to_x), j->im.rgb + 3 * ((size_t)y * (size_t)w + (size_t)x), 3);
        }
  image_free(&j->im);
  j->im = up;
  return 0;
}

/* --- all together ----------------------------------------------------------------------------------------------------- */

#ifdef CYGNET_NO_IMAGE
static int read_type(struct image_job *j, const char *type) {
  (void)type;
  return err_set(j->e, ERR_UNSUPPORTED, "this build has no picture decoders (it was made with IMAGE=0)");
}
#else
static int read_type(struct image_job *j, const char *type) {
  static const struct {
    const char *type;
    int (*read)(struct image_job *j);
  } readers[] = {
      {"jpeg", image_read_jpeg}, {"png", image_read_png}, {"webp", image_read_webp}, {"gif", image_read_gif}, {"bmp", image_read_bmp}};
  for (size_t i = 0; i < ARRAY_LEN(readers); i++)
    if (strcmp(readers[i].type, type) == 0) return readers[i].read(j);
  return err_set(j->e, ERR_UNSUPPORTED, "pictures of this format are not decoded, expected JPEG, PNG, WebP, GIF or BMP");
}
#endif

int image_decode(const void *bytes, size_t n, int64_t pixels_max, struct image *out, struct err *e) {
  *out = (struct image){0};
  struct image_job j = {.bytes = bytes, .n = n, .pixels_max = pixels_max ? pixels_max : IMAGE_PIXELS_MAX, .orientation = 1, .e = e};
  const char *type = image_type(bytes, n);
  if (!type) return err_set(e, ERR_BAD_INPUT, "expected a picture (JPEG, PNG, WebP, GIF or BMP), found %zu bytes that are none", n);
  if (read_type(&j, type) != 0 || (j.orientation != 1 && turn(&j) != 0)) {
    image_free(&j.im);
    return err_prefix(e, "%s", type);
  }
  *out = j.im;
  return 0;
}

void image_free(struct image *im) {
  free(im->rgb);
  *im = (struct image){0};
}
