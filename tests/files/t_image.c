/* t_image.c — pictures of every kind against what they were made from: files of tests/golden (the pixels that Pillow finds), and thousands
 * of small ones written here, whose pixels are known. Then damage: early ends, flipped bits, sizes that lie, memory that is short.
 */
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "files/image.h"
#include "files/safetensors.h"

#ifdef CYGNET_NO_IMAGE

static void refuses(void **s) {
  (void)s;
  struct image im;
  struct err e = {0};
  assert_int_equal(image_decode("\x89PNG\r\n\x1A\n0000", 12, 0, &im, &e), -1);
  assert_int_equal(e.code, ERR_UNSUPPORTED);
  assert_non_null(strstr(e.msg, "IMAGE=0"));
  image_free(&im);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(refuses)};

#else

#include <gif_lib.h>
#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

/* --- bytes, and decoding them where one byte too far faults ----------------------------------------------------------- */

struct bytes {
  unsigned char p[1 << 18];
  size_t n;
};
static struct bytes file; /* the file that a test writes */

static void put(const void *p, size_t n) {
  assert_true(file.n + n <= sizeof file.p);
  memcpy(file.p + file.n, p, n);
  file.n += n;
}
static void put8(unsigned v) { put(&(unsigned char){(unsigned char)v}, 1); }
static void put16(unsigned v) { put8(v & 255), put8(v >> 8 & 255); }
static void put32(uint32_t v) { put16(v & 0xFFFF), put16(v >> 16); }

static struct err error;
static int decode(const void *p, size_t n, int64_t pixels_max, struct image *im) {
  unsigned char *copy = test_guard_alloc(n);
  memcpy(copy, p, n);
  error = (struct err){0};
  int rc = image_decode(copy, n, pixels_max, im, &error);
  test_guard_free(copy, n);
  if (rc != 0) assert_true(error.msg[0] && error.code && !im->rgb);
  return rc;
}
static void expect(const unsigned char *rgb, int width, int height, int within) {
  struct image im;
  if (decode(file.p, file.n, 0, &im) != 0) fail_msg("%s", error.msg);
  assert_int_equal(im.width, width);
  assert_int_equal(im.height, height);
  for (int i = 0; i < width * height * 3; i++)
    if (abs(im.rgb[i] - rgb[i]) > within)
      fail_msg("pixel %d, %d colour %d: expected %d, found %d", i / 3 % width, i / 3 / width, i % 3, rgb[i], im.rgb[i]);
  image_free(&im);
}

static unsigned char on_white(int c, int a) { return (unsigned char)(int)((c * a + 255.0 * (255 - a)) / 255 + 0.5); }

static uint64_t seed;
static int random_to(int hi) { return test_rand_int(&seed, 0, hi); }
static void random_bytes(unsigned char *p, size_t n) {
  for (size_t i = 0; i < n; i++) p[i] = (unsigned char)random_to(255);
}

/* Upright, from EXIF's own words: which edges of the picture the stored first row and first column are. */
static void turn(const unsigned char *stored, int w, int h, int orientation, unsigned char *upright, int *up_w, int *up_h) {
  static const char *row0[] = {"top", "top", "bottom", "bottom", "left", "right", "right", "left"};
  static const char *column0[] = {"left", "right", "right", "left", "top", "top", "bottom", "bottom"};
  const char *r = row0[orientation - 1], *c = column0[orientation - 1];
  bool swaps = r[0] == 'l' || r[0] == 'r';
  *up_w = swaps ? h : w, *up_h = swaps ? w : h;
  for (int y = 0; y < h; y++)
    for (int x = 0; x < w; x++) {
      int up_x = 0, up_y = 0;
      const char *edges[] = {r, c};
      int from[] = {y, x}; /* the distance from the first row's edge, from the first column's */
      for (int k = 0; k < 2; k++) {
        if (!strcmp(edges[k], "top")) up_y = from[k];
        if (!strcmp(edges[k], "bottom")) up_y = *up_h - 1 - from[k];
        if (!strcmp(edges[k], "left")) up_x = from[k];
        if (!strcmp(edges[k], "right")) up_x = *up_w - 1 - from[k];
      }
      memcpy(upright + 3 * (up_y * *up_w + up_x), stored + 3 * (y * w + x), 3);
    }
}
static size_t exif_block(unsigned char out[64], int orientation, bool big_endian, bool header) {
  static const unsigned char little[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  static const unsigned char big[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  size_t at = header ? 6 : 0;
  memcpy(out, "Exif\0", at);
  memcpy(out + at, big_endian ? big : little, sizeof big);
  out[at + 18 + big_endian] = (unsigned char)orientation;
  return at + sizeof big;
}

/* --- files of tests/golden -------------------------------------------------------------------------------------------- */

static void read_file(const char *path) {
  size_t n;
  char *bytes = test_read(path, &n);
  file.n = 0;
  put(bytes, n);
  free(bytes);
}

static int compare_folder(const char *folder, const char *suffix, const char *const *files, int n_files, int within) {
  struct safetensors golden;
  struct err e = {0};
  char path[256];
  int compared = 0;
  snprintf(path, sizeof path, "golden/%s/golden.safetensors", folder);
  if (safetensors_open(&golden, test_path(path), &e) != 0) fail_msg("%s", e.msg);
  for (size_t i = 0; i < golden.n_tensors; i++) {
    const struct st_tensor *t = &golden.tensors[i];
    size_t stem = strlen(t->name) - strlen(suffix);
    if (strlen(t->name) < strlen(suffix) || strcmp(t->name + stem, suffix) != 0) continue;
    snprintf(path, sizeof path, "golden/%s/%s", folder, t->name);
    for (int k = 0; k < n_files; k++)
      if (strncmp(files[k], t->name, stem) == 0) snprintf(path, sizeof path, "golden/%s/%s", folder, files[k]);
    read_file(test_path(path));
    expect(t->data, (int)t->shape[1], (int)t->shape[0], within);
    compared++;
  }
  safetensors_close(&golden);
  return compared;
}
static void pixels_are_those_of_pillow(void **s) {
  (void)s;
  static const char *const prep[] = {"photo.rgb.jpg", "turned.exif6.jpg"};
  assert_int_equal(compare_folder("media-prep", ".rgb", prep, 2, 2), 2);
  assert_int_equal(compare_folder("media-odd", "", NULL, 0, 2), 15);
}

/* --- PNG: all kinds --------------------------------------------------------------------------------------------------- */

static void png_put(png_structp png, png_bytep p, size_t n) {
  (void)png;
  put(p, n);
}
static void png_flush_nothing(png_structp png) { (void)png; }

static int sample_of(const unsigned char *row, int depth, int i) {
  if (depth == 16) return row[2 * i] << 8 | row[2 * i + 1];
  return row[i * depth / 8] >> (8 - depth - i * depth % 8) & ((1 << depth) - 1);
}
static int to_8_bits(int v, int depth) { return (int)((double)v * 255 / ((1 << depth) - 1) + 0.5); }

/* A random picture of the kind as a file, and the RGB that it means. orientation 0: no EXIF. */
static void write_png(int color, int depth, bool interlaced, bool transparent, int w, int h, int orientation, unsigned char *rgb) {
  static unsigned char rows[64][64 * 8];
  int channels = color == PNG_COLOR_TYPE_GRAY || color == PNG_COLOR_TYPE_PALETTE ? 1
                 : color == PNG_COLOR_TYPE_GRAY_ALPHA                            ? 2
                 : color == PNG_COLOR_TYPE_RGB                                   ? 3
                                                                                 : 4;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
  png_infop info = png_create_info_struct(png);
  png_color palette[256];
  png_byte alphas[256];
  int n_colors = 1 << (depth < 8 ? depth : 8), n_alphas = transparent ? random_to(n_colors - 1) + 1 : 0;
  for (int y = 0; y < h; y++) random_bytes(rows[y], sizeof rows[y]);
  random_bytes((unsigned char *)palette, sizeof palette);
  random_bytes(alphas, sizeof alphas);
  file.n = 0;
  png_set_write_fn(png, NULL, png_put, png_flush_nothing);
  png_set_IHDR(png, info, (png_uint_32)w, (png_uint_32)h, depth, color, interlaced, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette, n_colors);
  int key[3];
  for (int c = 0; c < 3; c++) key[c] = sample_of(rows[0], depth, color == PNG_COLOR_TYPE_RGB ? c : 0); /* the first pixel's colour */
  png_color_16 keyed = {.gray = (png_uint_16)key[0], .red = (png_uint_16)key[0], .green = (png_uint_16)key[1], .blue = (png_uint_16)key[2]};
  if (transparent && color == PNG_COLOR_TYPE_PALETTE) png_set_tRNS(png, info, alphas, n_alphas, NULL);
  else if (transparent) png_set_tRNS(png, info, NULL, 0, &keyed);
  unsigned char exif[64];
  if (orientation) png_set_eXIf_1(png, info, (png_uint_32)exif_block(exif, orientation, orientation & 1, false), exif);
  png_write_info(png, info);
  int passes = png_set_interlace_handling(png);
  for (int pass = 0; pass < passes; pass++)
    for (int y = 0; y < h; y++) png_write_row(png, rows[y]);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);

  for (int y = 0; y < h; y++)
    for (int x = 0; x < w; x++) {
      int v[4], a = 255, c[3];
      for (int k = 0; k < channels; k++) v[k] = sample_of(rows[y], depth, x * channels + k);
      if (color == PNG_COLOR_TYPE_PALETTE) {
        c[0] = palette[v[0]].red, c[1] = palette[v[0]].green, c[2] = palette[v[0]].blue;
        if (v[0] < n_alphas) a = alphas[v[0]];
      } else {
        for (int k = 0; k < 3; k++) c[k] = to_8_bits(v[channels > 2 ? k : 0], depth);
        if (channels == 2 || channels == 4) a = to_8_bits(v[channels - 1], depth);
        else if (transparent && v[0] == key[0] && (channels == 1 || (v[1] == key[1] && v[2] == key[2]))) a = 0;
      }
      for (int k = 0; k < 3; k++) rgb[3 * (y * w + x) + k] = on_white(c[k], a);
    }
}

static const struct {
  int color, depth;
} png_kinds[] = {{PNG_COLOR_TYPE_GRAY, 1},        {PNG_COLOR_TYPE_GRAY, 2},      {PNG_COLOR_TYPE_GRAY, 4},
                 {PNG_COLOR_TYPE_GRAY, 8},        {PNG_COLOR_TYPE_GRAY, 16},     {PNG_COLOR_TYPE_PALETTE, 1},
                 {PNG_COLOR_TYPE_PALETTE, 2},     {PNG_COLOR_TYPE_PALETTE, 4},   {PNG_COLOR_TYPE_PALETTE, 8},
                 {PNG_COLOR_TYPE_RGB, 8},         {PNG_COLOR_TYPE_RGB, 16},      {PNG_COLOR_TYPE_GRAY_ALPHA, 8},
                 {PNG_COLOR_TYPE_GRAY_ALPHA, 16}, {PNG_COLOR_TYPE_RGB_ALPHA, 8}, {PNG_COLOR_TYPE_RGB_ALPHA, 16}};
enum { N_PNG_KINDS = 15 };

static void png_of_every_kind(void **s) {
  (void)s;
  static unsigned char rgb[64 * 64 * 3], upright[64 * 64 * 3];
  seed = 1;
  for (int round = 0; round < 40; round++)
    for (int kind = 0; kind < N_PNG_KINDS; kind++)
      for (int interlaced = 0; interlaced < 2; interlaced++) {
        int color = png_kinds[kind].color, w = random_to(20) + 1, h = random_to(20) + 1, up_w, up_h, orientation = random_to(8);
        bool transparent = !(color & PNG_COLOR_MASK_ALPHA) && random_to(1);
        write_png(color, png_kinds[kind].depth, interlaced, transparent, w, h, orientation, rgb);
        turn(rgb, w, h, orientation ? orientation : 1, upright, &up_w, &up_h);
        expect(upright, up_w, up_h, 0);
      }
}

/* Every byte counts: a changed bit is refused, by the signature or a checksum. */
static void png_with_a_flipped_bit_is_refused(void **s) {
  (void)s;
  static unsigned char rgb[64 * 64 * 3];
  struct image im;
  seed = 2;
  for (int kind = 0; kind < N_PNG_KINDS; kind++) {
    write_png(png_kinds[kind].color, png_kinds[kind].depth, kind & 1, false, 5, 4, 3, rgb);
    for (size_t at = 0; at < file.n; at++) {
      unsigned char bit = (unsigned char)(1 << random_to(7));
      file.p[at] ^= bit;
      assert_int_equal(decode(file.p, file.n, 0, &im), -1);
      file.p[at] ^= bit;
    }
    assert_int_equal(decode(file.p, file.n, 0, &im), 0);
    image_free(&im);
  }
}

/* --- JPEG ------------------------------------------------------------------------------------------------------------- */

/* A smooth picture, at a quality that keeps it to a few levels. */
static void smooth(unsigned char *rgb, int w, int h, int phase) {
  for (int y = 0; y < h; y++)
    for (int x = 0; x < w; x++)
      for (int c = 0; c < 3; c++) rgb[3 * (y * w + x) + c] = (unsigned char)(60 + (x * (3 + c) + y * (5 - 2 * c) + 40 * c + phase) % 140);
}
/* pixels: [h, w, channels]. restart: MCUs between markers; -1: progressive by a few whole scans, which may stand twice. */
static void write_jpeg(const unsigned char *pixels, int w, int h, int channels, J_COLOR_SPACE in, J_COLOR_SPACE stored, bool progressive,
                       int restart, const unsigned char *exif, size_t exif_bytes) {
  struct jpeg_compress_struct jpeg;
  struct jpeg_error_mgr errors;
  unsigned char *out = NULL;
  unsigned long n = 0;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, &out, &n);
  jpeg.image_width = (JDIMENSION)w, jpeg.image_height = (JDIMENSION)h, jpeg.input_components = channels, jpeg.in_color_space = in;
  jpeg_set_defaults(&jpeg);
  jpeg_set_colorspace(&jpeg, stored);
  jpeg_set_quality(&jpeg, 100, TRUE);
  for (int c = 0; c < channels; c++) jpeg.comp_info[c].h_samp_factor = jpeg.comp_info[c].v_samp_factor = 1;
  static const jpeg_scan_info all_at_once[] = {
      {3, {0, 1, 2}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}, {1, {1}, 1, 63, 0, 0}, {1, {2}, 1, 63, 0, 0}};
  if (progressive && restart >= 0) jpeg_simple_progression(&jpeg);
  if (restart < 0) jpeg.scan_info = all_at_once, jpeg.num_scans = 4, restart = 0;
  jpeg.restart_interval = (unsigned)restart;
  jpeg_start_compress(&jpeg, TRUE);
  if (exif_bytes) jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, (unsigned)exif_bytes);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + jpeg.next_scanline * (size_t)(w * channels));
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  file.n = 0;
  put(out, n);
  free(out);
}

static void jpeg_of_every_kind(void **s) {
  (void)s;
  static unsigned char rgb[40 * 40 * 3], pixels[40 * 40 * 4], upright[40 * 40 * 3];
  static const J_COLOR_SPACE spaces[][2] = {
      {JCS_RGB, JCS_YCbCr}, {JCS_RGB, JCS_RGB}, {JCS_GRAYSCALE, JCS_GRAYSCALE}, {JCS_CMYK, JCS_CMYK}, {JCS_CMYK, JCS_YCCK}};
  seed = 3;
  for (int round = 0; round < 200; round++) {
    int w = random_to(30) + 1, h = random_to(30) + 1, kind = round % 5, orientation = random_to(8), up_w, up_h;
    int channels = kind == 2 ? 1 : kind > 2 ? 4 : 3;
    smooth(rgb, w, h, random_to(20));
    for (int i = 0; i < w * h; i++) {
      unsigned char *p = rgb + 3 * i;
      if (kind == 2) p[1] = p[2] = pixels[i] = p[0];
      else if (channels == 3) memcpy(pixels + 3 * i, p, 3);
      else { /* inverted inks and black, as Adobe stores them: colour = ink * black / 255 */ memcpy(pixels + 4 * i, p, 3);
        pixels[4 * i + 3] = (unsigned char)(200 + i % w);
        for (int c = 0; c < 3; c++) p[c] = (unsigned char)(p[c] * pixels[4 * i + 3] / 255.0 + 0.5);
      }
    }
    unsigned char exif[64];
    size_t exif_bytes = orientation ? exif_block(exif, orientation, orientation & 1, true) : 0;
    write_jpeg(pixels, w, h, channels, spaces[kind][0], spaces[kind][1], round / 5 & 1, round % 3, exif, exif_bytes);
    turn(rgb, w, h, orientation ? orientation : 1, upright, &up_w, &up_h);
    expect(upright, up_w, up_h, kind == 4 ? 5 : 4);
  }
}

static void sample_jpeg(bool progressive, int restart) {
  static unsigned char rgb[24 * 20 * 3];
  smooth(rgb, 24, 20, 0);
  write_jpeg(rgb, 24, 20, 3, JCS_RGB, JCS_YCbCr, progressive, restart, NULL, 0);
}

/* Bytes before the end marker are padding, by cameras; a marker that is gone, or a hole in the data, is damage. */
static void jpeg_padding_is_no_damage(void **s) {
  (void)s;
  struct image im, good;
  sample_jpeg(false, 0);
  assert_int_equal(decode(file.p, file.n, 0, &good), 0);
  file.n -= 2;
  put("\0\0\x12\xFF\xD9 and what follows", 22);
  assert_int_equal(decode(file.p, file.n, 0, &im), 0);
  assert_memory_equal(im.rgb, good.rgb, 24 * 20 * 3);
  image_free(&im);
  image_free(&good);
  sample_jpeg(false, 0);
  struct bytes *whole = malloc(sizeof *whole);
  *whole = file;
  int refused = 0, holes = 0;
  for (size_t at = file.n - 300; at < whole->n - 62; at++, holes++) {
    memmove(file.p + at, whole->p + at + 60, whole->n - at - 60);
    file.n = whole->n - 60;
    if (decode(file.p, file.n, 0, &im) != 0) refused++;
    else image_free(&im);
    file = *whole;
  }
  free(whole);
  assert_true(holes > 200 && refused > holes * 9 / 10);
}

/* Thousands of empty scans, each a pass over the picture. */
static void jpeg_of_too_many_scans_is_refused(void **s) {
  (void)s;
  struct image im;
  sample_jpeg(true, -1);
  size_t sos = 0;
  for (size_t i = 0; i + 1 < file.n; i++)
    if (file.p[i] == 0xFF && file.p[i + 1] == 0xDA) sos = i;
  assert_true(sos > 0);
  struct bytes *first = malloc(sizeof *first);
  *first = file;
  size_t scan = first->n - 2 - sos; /* the last scan, again and again */
  file.n -= 2;
  for (int i = 0; i < 90; i++) put(first->p + sos, scan);
  put("\xFF\xD9", 2);
  assert_int_equal(decode(file.p, file.n, 0, &im), 0);
  image_free(&im);
  file.n -= 2;
  for (int i = 0; i < 10; i++) put(first->p + sos, scan);
  put("\xFF\xD9", 2);
  free(first);
  assert_int_equal(decode(file.p, file.n, 0, &im), -1);
  assert_non_null(strstr(error.msg, "expected at most 100 scans"));
}

/* --- WebP ------------------------------------------------------------------------------------------------------------- */

static void put_webp_chunk(const char *tag, const void *p, size_t n) {
  put(tag, 4), put32((uint32_t)n), put(p, n);
  if (n & 1) put8(0);
}
static void finish_riff(void) {
  uint32_t n = (uint32_t)file.n - 8;
  for (int i = 0; i < 4; i++) file.p[4 + i] = (unsigned char)(n >> (8 * i));
}
static void put24(unsigned v) { put16(v & 0xFFFF), put8(v >> 16); }

/* Lossless, still or as the first of two frames somewhere on a canvas, with EXIF. */
static void webp_of_every_kind(void **s) {
  (void)s;
  static unsigned char rgba[30 * 30 * 4], rgb[60 * 60 * 3], upright[60 * 60 * 3];
  seed = 4;
  for (int round = 0; round < 60; round++) {
    int w = random_to(20) + 1, h = random_to(20) + 1, kind = round % 3, x0 = kind == 2 ? 2 * random_to(5) : 0,
        y0 = kind == 2 ? 2 * random_to(5) : 0;
    int canvas_w = w + x0 + (kind == 2 ? random_to(3) : 0), canvas_h = h + y0, orientation = kind ? random_to(7) + 1 : 1, up_w, up_h;
    random_bytes(rgba, sizeof rgba);
    for (int i = 0; i < w * h; i++)
      if (random_to(2)) rgba[4 * i + 3] = random_to(1) ? 255 : 0;
    uint8_t *lossless = NULL;
    WebPPicture picture;
    WebPConfig config;
    WebPMemoryWriter writer;
    assert_true(WebPPictureInit(&picture) && WebPConfigInit(&config));
    config.lossless = 1, config.exact = 1;
    picture.use_argb = 1, picture.width = w, picture.height = h;
    WebPMemoryWriterInit(&writer);
    picture.writer = WebPMemoryWrite, picture.custom_ptr = &writer;
    assert_true(WebPPictureImportRGBA(&picture, rgba, 4 * w) && WebPEncode(&config, &picture));
    lossless = writer.mem;
    size_t n = writer.size;
    WebPPictureFree(&picture);

    memset(rgb, 255, sizeof rgb);
    for (int y = 0; y < h; y++)
      for (int x = 0; x < w; x++)
        for (int c = 0; c < 3; c++)
          rgb[3 * ((y0 + y) * canvas_w + x0 + x) + c] = on_white(rgba[4 * (y * w + x) + c], rgba[4 * (y * w + x) + 3]);
    file.n = 0;
    if (kind == 0) {
      put(lossless, n);
    } else {
      unsigned char exif[64];
      size_t exif_bytes = exif_block(exif, orientation, round & 1, round & 2);
      put("RIFF----WEBPVP8X", 16), put32(10), put32(0x10 | 0x08 | (kind == 2 ? 0x02 : 0)), put24((unsigned)canvas_w - 1),
          put24((unsigned)canvas_h - 1);
      if (kind == 1) {
        put(lossless + 12, n - 12);
      } else {
        put("ANIM", 4), put32(6), put32(0xFF00FF00), put16(0); /* a background that nobody shows */
        for (int frame = 0; frame < 2; frame++) {
          put("ANMF", 4), put32((uint32_t)(16 + n - 12)), put24((unsigned)x0 / 2), put24((unsigned)y0 / 2), put24((unsigned)w - 1),
              put24((unsigned)h - 1);
          put24(50), put8(0), put(lossless + 12, n - 12);
        }
      }
      put_webp_chunk("EXIF", exif, exif_bytes);
      finish_riff();
    }
    WebPMemoryWriterClear(&writer);
    turn(rgb, canvas_w, canvas_h, orientation, upright, &up_w, &up_h);
    expect(upright, up_w, up_h, 0);
  }
}

/* --- GIF -------------------------------------------------------------------------------------------------------------- */

static int gif_put(GifFileType *gif, const GifByteType *p, int n) {
  (void)gif;
  put(p, (size_t)n);
  return n;
}
static ColorMapObject *random_colors(int bits) {
  GifColorType colors[256];
  random_bytes((unsigned char *)colors, sizeof colors);
  return GifMakeMapObject(1 << bits, colors);
}

static void gif_of_every_kind(void **s) {
  (void)s;
  static unsigned char rgb[60 * 60 * 3], indices[30 * 30];
  seed = 5;
  for (int round = 0; round < 200; round++) {
    int w = random_to(20) + 1, h = random_to(20) + 1, x0 = random_to(3) ? 0 : random_to(9), y0 = random_to(3) ? 0 : random_to(9),
        bits = random_to(7) + 1;
    int screen_w = w + x0 + random_to(2), screen_h = h + y0 + random_to(2),
        transparent = random_to(1) ? random_to((1 << bits) - 1) : NO_TRANSPARENT_COLOR;
    if (round % 10 == 0) screen_w = w + x0 > 3 ? 3 : w + x0; /* a screen that is too small grows */
    bool interlaced = random_to(1), local = random_to(1);
    ColorMapObject *global_colors = random_colors(bits), *local_colors = local ? random_colors(bits) : NULL,
                   *colors = local ? local_colors : global_colors;
    for (int i = 0; i < w * h; i++) indices[i] = (unsigned char)random_to((1 << bits) - 1);
    int code, canvas_w = screen_w > w + x0 ? screen_w : w + x0, canvas_h = screen_h;
    file.n = 0;
    GifFileType *gif = EGifOpen(NULL, gif_put, &code);
    assert_non_null(gif);
    EGifSetGifVersion(gif, true);
    assert_int_equal(EGifPutScreenDesc(gif, screen_w, screen_h, 8, 0, global_colors), GIF_OK);
    for (int frame = 0; frame < 2; frame++) {
      GifByteType control[4];
      GraphicsControlBlock g = {.TransparentColor = transparent};
      assert_int_equal(EGifGCBToExtension(&g, control), 4);
      if (frame == 0) EGifPutExtension(gif, COMMENT_EXT_FUNC_CODE, 5, "hello");
      assert_int_equal(EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control), GIF_OK);
      assert_int_equal(EGifPutImageDesc(gif, x0, y0, w, h, interlaced, local_colors), GIF_OK);
      static const int first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
      for (int pass = 0; pass < (interlaced ? 4 : 1); pass++)
        for (int y = interlaced ? first[pass] : 0; y < h; y += interlaced ? step[pass] : 1)
          assert_int_equal(EGifPutLine(gif, indices + y * w, w), GIF_OK);
    }
    EGifCloseFile(gif, &code);
    memset(rgb, 255, sizeof rgb);
    for (int y = 0; y < h; y++)
      for (int x = 0; x < w; x++) {
        GifColorType c = colors->Colors[indices[y * w + x]];
        unsigned char *p = rgb + 3 * ((y0 + y) * canvas_w + x0 + x);
        if (indices[y * w + x] != transparent) p[0] = c.Red, p[1] = c.Green, p[2] = c.Blue;
      }
    GifFreeMapObject(global_colors);
    if (local) GifFreeMapObject(local_colors);
    expect(rgb, canvas_w, canvas_h, 0);
  }
}

/* --- BMP -------------------------------------------------------------------------------------------------------------- */

struct bmp_kind {
  unsigned header, bits, compression;
  uint32_t masks[4];
};
static const struct bmp_kind bmp_kinds[] = {
    {12, 1, 0, {0}},
    {12, 4, 0, {0}},
    {12, 8, 0, {0}},
    {12, 24, 0, {0}},
    {40, 1, 0, {0}},
    {40, 4, 0, {0}},
    {40, 8, 0, {0}},
    {40, 16, 0, {0x7C00, 0x3E0, 0x1F, 0}},
    {40, 24, 0, {0}},
    {40, 32, 0, {0xFF0000, 0xFF00, 0xFF, 0}},
    {40, 16, 3, {0xF800, 0x7E0, 0x1F, 0}},
    {40, 32, 3, {0x3FF00000, 0xFFC00, 0x3FF, 0}},
    {40, 32, 6, {0xFF, 0xFF00, 0xFF0000, 0xFF000000}},
    {52, 16, 3, {0x0F00, 0x00F0, 0x000F, 0}},
    {56, 16, 3, {0x0F00, 0x00F0, 0x000F, 0xF000}},
    {64, 8, 0, {0}},
    {108, 32, 3, {0xFF0000, 0xFF00, 0xFF, 0xFF000000}},
    {124, 32, 3, {0xFF000000, 0xFF0000, 0xFF00, 0xFF}},
    {124, 32, 0, {0xFF0000, 0xFF00, 0xFF, 0}}, /* no bit fields: the fourth byte means nothing */
    {124, 24, 0, {0}},
};

static void put_bmp_header(const struct bmp_kind *k, int w, int h, bool top_down, unsigned n_colors, uint32_t pixels_at) {
  file.n = 0;
  put("BM", 2), put32(0), put32(0), put32(pixels_at), put32(k->header);
  if (k->header == 12) {
    put16((unsigned)w), put16((unsigned)h), put16(1), put16(k->bits);
    return;
  }
  put32((uint32_t)w), put32((uint32_t)(top_down ? -h : h)), put16(1), put16(k->bits), put32(k->compression), put32(0), put32(2835),
      put32(2835), put32(n_colors), put32(0);
  size_t end = 14 + k->header;
  if (k->header >= 52)
    for (int c = 0; c < (k->header == 52 ? 3 : 4); c++) put32(k->masks[c]);
  while (file.n < end) put8(0);
  if (k->header == 40 && k->compression >= 3)
    for (int c = 0; c < (k->compression == 6 ? 4 : 3); c++) put32(k->masks[c]);
}
static int field_of(uint32_t pixel, uint32_t mask) {
  double low = mask & (0 - mask);
  return mask ? (int)((pixel & mask) / low * 255 / (mask / low) + 0.5) : 255;
}

static void bmp_of_every_kind(void **s) {
  (void)s;
  static unsigned char rgb[30 * 30 * 3];
  seed = 6;
  for (int round = 0; round < 20; round++)
    for (size_t kind = 0; kind < ARRAY_LEN(bmp_kinds); kind++) {
      const struct bmp_kind *k = &bmp_kinds[kind];
      int w = random_to(20) + 1, h = random_to(20) + 1;
      bool top_down = k->header > 12 && random_to(1);
      unsigned n_colors = k->bits <= 8 ? 1u << k->bits : 0, entry = k->header == 12 ? 3 : 4;
      if (n_colors && k->header > 12) n_colors = (unsigned)random_to((int)n_colors - 1) + 1;
      unsigned char colors[256][4];
      random_bytes(&colors[0][0], sizeof colors);
      put_bmp_header(k, w, h, top_down, n_colors, 0);
      for (unsigned i = 0; i < n_colors; i++) put(colors[i], entry);
      file.p[10] = (unsigned char)(file.n & 255), file.p[11] = (unsigned char)(file.n >> 8);
      size_t row_bytes = (size_t)((w * (int)k->bits + 31) / 32 * 4);
      for (int y = 0; y < h; y++) {
        unsigned char row[128];
        random_bytes(row, sizeof row);
        for (int x = 0; x < w; x++) {
          unsigned char *p = rgb + 3 * ((top_down ? y : h - 1 - y) * w + x);
          if (k->bits <= 8) {
            unsigned i = row[x * (int)k->bits / 8] >> (8 - k->bits - (unsigned)x * k->bits % 8) & ((1u << k->bits) - 1);
            for (int c = 0; c < 3; c++) p[c] = i < n_colors ? colors[i][2 - c] : 0;
          } else if (k->bits == 24) {
            for (int c = 0; c < 3; c++) p[c] = row[3 * x + 2 - c];
          } else {
            uint32_t pixel = row[x * (int)k->bits / 8] | (uint32_t)row[x * (int)k->bits / 8 + 1] << 8;
            if (k->bits == 32) pixel |= (uint32_t)row[4 * x + 2] << 16 | (uint32_t)row[4 * x + 3] << 24;
            int a = k->compression ? field_of(pixel, k->masks[3]) : 255;
            for (int c = 0; c < 3; c++) p[c] = on_white(field_of(pixel, k->masks[c]), a);
          }
        }
        put(row, row_bytes);
      }
      expect(rgb, w, h, 0);
    }
}

/* Random runs of every sort, with a drawing of our own beside them. */
static void bmp_in_runs(void **s) {
  (void)s;
  static unsigned char rgb[30 * 30 * 3];
  seed = 7;
  for (int round = 0; round < 300; round++) {
    bool four = round & 1;
    struct bmp_kind k = {40, four ? 4 : 8, four ? 2 : 1, {0}};
    int w = random_to(20) + 1, h = random_to(20) + 1, n_colors = four ? 16 : 256;
    unsigned char colors[256][4];
    random_bytes(&colors[0][0], sizeof colors);
    put_bmp_header(&k, w, h, false, 0, (uint32_t)(54 + 4 * n_colors));
    put(colors, 4 * (size_t)n_colors);
    memset(rgb, 255, sizeof rgb);
    int x = 0, y = 0;
    while (y < h) {
      int what = random_to(9), n = random_to(w - x);
      if (what == 0 || x == w) {
        put8(0), put8(0);
        x = 0, y++;
        continue;
      }
      if (what == 1) {
        int dy = random_to(h - 1 - y);
        put8(0), put8(2), put8((unsigned)n), put8((unsigned)dy);
        x += n, y += dy;
        continue;
      }
      bool plain = what < 5 && n >= 3;
      unsigned char values[64];
      if (n == 0) continue;
      put8(plain ? 0 : (unsigned)n), put8(plain ? (unsigned)n : (unsigned)random_to(255));
      int bytes = plain ? (four ? (n + 1) / 2 : n) : 1;
      random_bytes(values, sizeof values);
      if (plain) put(values, (size_t)((bytes + 1) / 2 * 2));
      else values[0] = file.p[file.n - 1];
      for (int i = 0; i < n; i++) {
        int v = plain ? values[four ? i / 2 : i] : values[0];
        if (four) v = i & 1 ? v & 15 : v >> 4;
        for (int c = 0; c < 3; c++) rgb[3 * ((h - 1 - y) * w + x + i) + c] = colors[v][2 - c];
      }
      x += n;
    }
    put8(0), put8(1);
    expect(rgb, w, h, 0);
  }
}

static void bmp_that_lies_is_refused(void **s) {
  (void)s;
  static const struct {
    struct bmp_kind kind;
    int w, h;
    uint32_t pixels_at;
    const char *says;
  } cases[] = {
      {{40, 24, 0, {0}}, 0, 4, 54, "at least 1 x 1"},
      {{40, 24, 0, {0}}, -4, 4, 54, "at least 1 x 1"},
      {{40, 24, 0, {0}}, 4, INT32_MIN, 54, "found 4 x 2147483648"},
      {{40, 24, 0, {0}}, 4, 4, 53, "between byte 54"},
      {{40, 24, 0, {0}}, 4, 4, 0xFFFFFFFF, "between byte 54"},
      {{40, 24, 0, {0}}, 400, 400, 54, "ends early"},
      {{40, 7, 0, {0}}, 4, 4, 54, "found 7"},
      {{40, 24, 4, {0}}, 4, 4, 54, "compression 4"},
      {{40, 8, 2, {0}}, 4, 4, 54, "RLE4 with 4"},
      {{40, 8, 1, {0}}, 4, 4, 54, "in its runs"},
      {{40, 32, 3, {0xF0F, 0xF0, 0xF000, 0}}, 4, 4, 66, "do not stand together"},
      {{40, 32, 3, {0xFF, 0xF0, 0xF000, 0}}, 4, 4, 66, "overlap"},
      {{40, 24, 3, {0}}, 4, 4, 66, "bit fields"},
      {{200, 24, 0, {0}}, 4, 4, 214, "found 200"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct image im;
    put_bmp_header(&cases[i].kind, cases[i].w, cases[i].h, false, 0, cases[i].pixels_at);
    for (int k = 0; k < 80; k++) put8(9);
    assert_int_equal(decode(file.p, file.n, 0, &im), -1);
    if (!strstr(error.msg, cases[i].says)) fail_msg("case %zu: %s", i, error.msg);
  }
}

/* --- what must not matter --------------------------------------------------------------------------------------------- */

/* Two PNG with the same visible pixels and other ones under alpha 0. */
static void hidden_pixels_do_not_matter(void **s) {
  (void)s;
  struct image a, b;
  for (int variant = 0; variant < 2; variant++) {
    file.n = 0;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(png, NULL, png_put, png_flush_nothing);
    png_set_IHDR(png, info, 8, 8, 8, PNG_COLOR_TYPE_RGB_ALPHA, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int y = 0; y < 8; y++) {
      unsigned char row[32];
      for (int x = 0; x < 8; x++) {
        bool hidden = (x + y) % 3 == 0;
        for (int c = 0; c < 3; c++) row[4 * x + c] = (unsigned char)(hidden ? (variant ? 255 - 7 * x : 11 * y) : 20 * x + y);
        row[4 * x + 3] = hidden ? 0 : 255;
      }
      png_write_row(png, row);
    }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    assert_int_equal(decode(file.p, file.n, 0, variant ? &b : &a), 0);
  }
  assert_memory_equal(a.rgb, b.rgb, 8 * 8 * 3);
  assert_int_equal(a.rgb[0], 255);
  assert_int_equal(a.rgb[3], 20);
  image_free(&a);
  image_free(&b);
}

static void types_are_told_by_bytes(void **s) {
  (void)s;
  static const struct {
    const char *bytes;
    size_t n;
    const char *type;
  } cases[] = {
      {"\xFF\xD8\xFF\xE0", 4, "jpeg"},
      {"\x89PNG\r\n\x1A\n", 8, "png"},
      {"GIF89a", 6, "gif"},
      {"GIF87a", 6, "gif"},
      {"RIFF....WEBPVP8 ", 16, "webp"},
      {"RIFF....WAVEfmt ", 16, NULL},
      {"BM............\x28\0\0\0", 18, "bmp"},
      {"BM is a car, not a picture", 26, NULL},
      {"II*\0", 4, "tiff"},
      {"MM\0*", 4, "tiff"},
      {"\0\0\0\x18"
       "ftypheic\0\0\0\0mif1heic",
       24, "heic"},
      {"\0\0\0\x1C"
       "ftypmif1\0\0\0\0mif1avifmiaf",
       28, "avif"},
      {"\0\0\0\x18"
       "ftypisom\0\0\0\0mp41avc1",
       24, NULL},
      {"\xFF\x0A", 2, "jxl"},
      {"\0\0\0\x0CJXL \r\n\x87\n", 12, "jxl"},
      {"%PDF-1.7", 8, "pdf"},
      {"<svg xmlns=", 11, "svg"},
      {"\xEF\xBB\xBF <?xml version='1.0'?>\n<!-- c --><!DOCTYPE svg>\n<svg>", 56, "svg"},
      {"<?xml version='1.0'?><html>", 27, NULL},
      {"<!", 2, NULL},
      {"just text", 9, NULL},
      {"", 0, NULL},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    unsigned char *copy = test_guard_alloc(cases[i].n);
    memcpy(copy, cases[i].bytes, cases[i].n);
    const char *type = image_type(copy, cases[i].n);
    if (!type != !cases[i].type || (type && strcmp(type, cases[i].type) != 0))
      fail_msg("case %zu: expected %s, found %s", i, cases[i].type, type);
    test_guard_free(copy, cases[i].n);
    struct image im;
    assert_int_equal(decode(cases[i].bytes, cases[i].n, 0, &im), -1);
    assert_non_null(strstr(error.msg, type ? type : "expected a picture (JPEG, PNG, WebP, GIF or BMP)"));
  }
  assert_null(image_type(NULL, 0));
}

/* --- damage ----------------------------------------------------------------------------------------------------------- */

static const char *const samples[] = {
    "golden/media-odd/plain420.jpg", "golden/media-odd/progressive.jpg", "golden/media-odd/cmyk.jpg",
    "golden/media-odd/grey.jpg",     "golden/media-odd/lossy.webp",      "golden/media-odd/lossy_alpha.webp",
    "golden/media-odd/moving.webp",  "golden/media-odd/moving.png",      "golden/media-odd/moving.gif",
    "golden/media-odd/rle8.bmp",     "golden/media-prep/dot.rgb.png",    "golden/media-prep/palette.p.png"};

/* A file that ends early never decodes; only what follows the pixels may be missing: a GIF's other frames, the end mark of RLE. */
static void early_ends_are_refused(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    struct image im;
    read_file(test_path(samples[i]));
    size_t enough = strstr(samples[i], ".gif") ? file.n / 2 : strstr(samples[i], ".bmp") ? file.n - 8 : file.n;
    assert_int_equal(decode(file.p, file.n, 0, &im), 0);
    image_free(&im);
    for (size_t n = 0; n < file.n; n++) {
      if (decode(file.p, n, 0, &im) == 0) {
        if (n < enough) fail_msg("%s: decoded from %zu of %zu bytes", samples[i], n, file.n);
        image_free(&im);
      }
    }
  }
}

static void damage_does_no_harm(void **s) {
  (void)s;
  int saved = test_silence_begin();
  seed = 8;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    read_file(test_path(samples[i]));
    struct bytes *good = malloc(sizeof *good);
    *good = file;
    for (int round = 0; round < 150; round++) {
      struct image im;
      memcpy(file.p, good->p, good->n);
      for (int k = random_to(3); k >= 0; k--)
        file.p[random_to((int)file.n - 1)] = (unsigned char)(random_to(2) ? random_to(255) : 255 * random_to(1));
      if (decode(file.p, file.n, 1 << 20, &im) == 0) {
        assert_true(im.width > 0 && im.height > 0 && (int64_t)im.width * im.height <= 1 << 20);
        image_free(&im);
      }
    }
    free(good);
  }
  test_silence_end(saved);
}

/* Threads decode the samples, whole and cut, and find what one alone finds. */
static struct bytes *shared[ARRAY_LEN(samples)];
static void *decode_all(void *out) {
  uint64_t sum = 0;
  for (size_t i = 0; i < 2 * ARRAY_LEN(samples); i++) {
    struct image im;
    struct err e = {0};
    const struct bytes *b = shared[i / 2];
    if (image_decode(b->p, i & 1 ? b->n / 3 : b->n, 0, &im, &e) == 0) sum = hash_bytes(im.rgb, (size_t)(im.width * im.height) * 3, sum);
    else sum = hash_bytes(e.msg, strlen(e.msg), sum);
    image_free(&im);
  }
  *(uint64_t *)out = sum;
  return NULL;
}
static void threads_do_not_meet(void **s) {
  (void)s;
  pthread_t threads[4];
  uint64_t alone, sums[4];
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    read_file(test_path(samples[i]));
    shared[i] = malloc(sizeof file);
    *shared[i] = file;
  }
  decode_all(&alone);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, decode_all, &sums[i]), 0);
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    assert_true(sums[i] == alone);
  }
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) free(shared[i]);
}

static void short_memory_is_an_error(void **s) {
  (void)s;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    read_file(test_path(samples[i]));
    for (int at = 1;; at++) {
      struct image im;
      struct err e = {0};
      mem_fail_after(at);
      int rc = image_decode(file.p, file.n, 0, &im, &e);
      bool reached = !mem_fail_pending();
      mem_fail_after(0);
      if (!reached) {
        assert_int_equal(rc, 0);
        assert_true(at > 1);
        image_free(&im);
        break;
      }
      assert_int_equal(rc, -1);
      assert_int_equal(e.code, ERR_NO_MEMORY);
      assert_null(im.rgb);
    }
  }
}

/* --- limits ----------------------------------------------------------------------------------------------------------- */

static void put_be32(uint32_t v) { put8(v >> 24), put8(v >> 16 & 255), put8(v >> 8 & 255), put8(v & 255); }

/* Headers of giants, 50 kB behind each: refused at once, and nothing is taken. */
static void giants_are_refused_by_their_header(void **s) {
  (void)s;
  for (int kind = 0; kind < 7; kind++) {
    file.n = 0;
    if (kind == 6) { /* a small PNG whose EXIF says that it is a giant */
      static unsigned char rgb[64 * 64 * 3];
      write_png(PNG_COLOR_TYPE_RGB, 8, 0, false, 3, 3, 1, rgb);
      file.n = 33; /* signature and IHDR */
      put_be32(0x7FFFFFFF), put("eXIf", 4);
    } else if (kind == 0 || kind == 5) { /* PNG; 5: at the format's own limit */
      uint32_t side = kind == 0 ? 60000 : 0x7FFFFFFF;
      png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
      png_infop info = png_create_info_struct(png);
      png_set_user_limits(png, 0x7FFFFFFF, 0x7FFFFFFF);
      png_set_write_fn(png, NULL, png_put, png_flush_nothing);
      png_set_IHDR(png, info, side, side, 1, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                   PNG_FILTER_TYPE_DEFAULT);
      png_write_info(png, info);
      png_destroy_write_struct(&png, &info);
      put_be32(50000), put("IDAT\x78\x9C", 6);
    } else if (kind == 1) {
      put("GIF89a", 6), put16(65535), put16(65535), put8(0x80), put8(0), put8(0), put("\0\0\0\1\1\1", 6), put8(','), put16(0), put16(0),
          put16(65535), put16(65535), put8(0), put8(2);
    } else if (kind == 2) { /* lossless: 14 bits a side */
      put("RIFF----WEBPVP8L", 16), put32(50000 - 20), put8(0x2F), put32(0x3FFF | 0x3FFFu << 14);
    } else if (kind == 3) {
      put_bmp_header(&(struct bmp_kind){40, 8, 1, {0}}, 65535, 65535, false, 0, 54);
    } else if (kind == 4) {
      put("\xFF\xD8\xFF\xC2\x00\x11\x08\xFF\xDC\xFF\xDC\x03\x01\x44\x00\x02\x11\x01\x03\x11\x01\xFF\xDA\x00\x0C\x03\x01\x00\x02\x11\x03\x11\x00\x3F\x00",
          35);
    }
    while (file.n < 50000) put8((unsigned)file.n & 63);
    if (kind == 2) finish_riff();
    struct image im;
    size_t before = mem_resident_bytes();
    int64_t start = clock_ns();
    assert_int_equal(decode(file.p, file.n, 0, &im), -1);
    double ms = (double)(clock_ns() - start) / 1e6;
    size_t after = mem_resident_bytes();
    print_message("%s (%.2f ms)\n", error.msg, ms);
    assert_true(after <= before + (10 << 20));
    assert_true(ms < 200);
    if (error.code != (kind == 6 ? ERR_BAD_INPUT : ERR_TOO_LARGE)) fail_msg("%s", error.msg);
  }
}

static void limit_is_exact(void **s) {
  (void)s;
  struct image im;
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    read_file(test_path(samples[i]));
    assert_int_equal(decode(file.p, file.n, 0, &im), 0);
    int64_t pixels = (int64_t)im.width * im.height;
    image_free(&im);
    assert_int_equal(decode(file.p, file.n, pixels, &im), 0);
    image_free(&im);
    if (pixels == 1) continue;
    assert_int_equal(decode(file.p, file.n, pixels - 1, &im), -1);
    assert_int_equal(error.code, ERR_TOO_LARGE);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pixels_are_those_of_pillow),
    cmocka_unit_test(png_of_every_kind),
    cmocka_unit_test(png_with_a_flipped_bit_is_refused),
    cmocka_unit_test(jpeg_of_every_kind),
    cmocka_unit_test(jpeg_padding_is_no_damage),
    cmocka_unit_test(jpeg_of_too_many_scans_is_refused),
    cmocka_unit_test(webp_of_every_kind),
    cmocka_unit_test(gif_of_every_kind),
    cmocka_unit_test(bmp_of_every_kind),
    cmocka_unit_test(bmp_in_runs),
    cmocka_unit_test(bmp_that_lies_is_refused),
    cmocka_unit_test(hidden_pixels_do_not_matter),
    cmocka_unit_test(types_are_told_by_bytes),
    cmocka_unit_test(early_ends_are_refused),
    cmocka_unit_test(damage_does_no_harm),
    cmocka_unit_test(threads_do_not_meet),
    cmocka_unit_test(short_memory_is_an_error),
    cmocka_unit_test(giants_are_refused_by_their_header),
    cmocka_unit_test(limit_is_exact),
};

#endif

TEST_MAIN(tests)
