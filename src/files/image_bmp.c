/* image_bmp.c — BMP: OS/2 and Windows headers, 1 .. 32 bits a pixel, palettes, bit fields, RLE8 and RLE4.
 *
 *   14 bytes: "BM", ..., u32 offset of the pixels | header: u32 its size, width, height, planes, bits, ... | masks, palette | pixels
 *
 * Rows stand from the bottom to the top unless the height is negative; each takes whole groups of 4 bytes. Alpha counts only where a header
 * of 56 bytes or more gives it a mask: in older files the fourth byte is left to chance. Pixels that an RLE file does not draw are white,
 * as those of a GIF.
 */
#ifndef CYGNET_NO_IMAGE

#include <string.h>

#include "files/image_impl.h"

enum { RGB = 0, RLE8 = 1, RLE4 = 2, BIT_FIELDS = 3, ALPHA_BIT_FIELDS = 6 };

struct bmp {
  struct image_job *job;
  size_t header_bytes, pixels_at;
  int64_t width, height;
  bool top_down;
  int bits, compression;
  uint32_t masks[4]; /* red, green, blue, alpha; 0: none */
  int n_colors;
  uint8_t colors[256][3]; /* RGB; those that the file lacks are black */
};

static uint32_t u16_at(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32_at(const uint8_t *p) { return u16_at(p) | u16_at(p + 2) << 16; }

static int damaged(const struct bmp *b, const char *what) { return err_set(b->job->e, ERR_BAD_INPUT, "%s", what); }

static int read_masks(struct bmp *b, const uint8_t *header, size_t n) {
  bool fields = b->compression == BIT_FIELDS || b->compression == ALPHA_BIT_FIELDS;
  int n_masks = b->compression == ALPHA_BIT_FIELDS || b->header_bytes >= 56 ? 4 : 3;
  if (!fields) { /* what stands in a newer header's masks does not count then */
    static const uint32_t masks16[] = {0x7C00, 0x3E0, 0x1F, 0}, masks32[] = {0xFF0000, 0xFF00, 0xFF, 0};
    memcpy(b->masks, b->bits == 16 ? masks16 : masks32, sizeof b->masks);
    return 0;
  }
  if (b->bits != 16 && b->bits != 32) return damaged(b, "bit fields go with 16 or 32 bits a pixel");
  if (n < 40 + 4 * (size_t)n_masks) return damaged(b, "it ends early, in its header");
  uint32_t all = 0;
  for (int c = 0; c < n_masks; c++) {
    uint32_t mask = b->masks[c] = u32_at(header + 40 + 4 * c);
    uint32_t low = mask & (0 - mask);
    if (mask & (mask + low)) return damaged(b, "a colour's bits do not stand together");
    if (mask & all || (b->bits == 16 && mask > 0xFFFF)) return damaged(b, "the bits of its colours overlap or lie outside of a pixel");
    all |= mask;
  }
  if (b->header_bytes == 40) b->header_bytes += 4 * (size_t)n_masks; /* they follow the old header */
  return 0;
}

static int read_header(struct bmp *b) {
  const uint8_t *file = b->job->bytes;
  if (b->job->n < 14 + 12) return damaged(b, "it ends early, in its header");
  const uint8_t *header = file + 14;
  size_t n = b->job->n - 14;
  b->pixels_at = u32_at(file + 10);
  b->header_bytes = u32_at(header);
  bool old = b->header_bytes == 12;
  if (!old && (b->header_bytes < 40 || b->header_bytes > 124))
    return err_set(b->job->e, ERR_UNSUPPORTED, "expected a header of 12 or 40 .. 124 bytes, found %zu", b->header_bytes);
  if (b->header_bytes > n) return damaged(b, "it ends early, in its header");
  b->width = old ? (int64_t)u16_at(header + 4) : (int32_t)u32_at(header + 4);
  b->height = old ? (int64_t)u16_at(header + 6) : (int32_t)u32_at(header + 8);
  b->top_down = b->height < 0;
  if (b->top_down) b->height = -b->height;
  b->bits = (int)u16_at(header + (old ? 10 : 14));
  uint32_t compression = old ? RGB : u32_at(header + 16), n_colors = old ? 0 : u32_at(header + 32);
  if (b->bits != 1 && b->bits != 4 && b->bits != 8 && b->bits != 16 && b->bits != 24 && b->bits != 32)
    return err_set(b->job->e, ERR_UNSUPPORTED, "expected 1, 4, 8, 16, 24 or 32 bits a pixel, found %d", b->bits);
  if (compression > ALPHA_BIT_FIELDS || compression == 4 || compression == 5 || (b->header_bytes == 64 && compression >= BIT_FIELDS))
    return err_set(b->job->e, ERR_UNSUPPORTED, "compression %u is not decoded, expected none, RLE or bit fields", compression);
  b->compression = (int)compression;
  if ((compression == RLE8 && b->bits != 8) || (compression == RLE4 && b->bits != 4) ||
      (b->top_down && (compression == RLE8 || compression == RLE4)))
    return damaged(b, "RLE8 goes with 8 bits a pixel, RLE4 with 4, and rows from the bottom to the top");
  if (b->bits > 8) return read_masks(b, header, n);
  if (compression >= BIT_FIELDS) return damaged(b, "bit fields go with 16 or 32 bits a pixel");
  b->n_colors = n_colors && n_colors < 1u << b->bits ? (int)n_colors : 1 << b->bits;
  return 0;
}

/* The palette is what stands between header and pixels, whatever number of colours the header says. */
static void read_colors(struct bmp *b) {
  size_t at = 14 + b->header_bytes, entry = b->header_bytes == 12 ? 3 : 4;
  for (int i = 0; i < b->n_colors && at + entry <= b->pixels_at; i++, at += entry)
    for (int c = 0; c < 3; c++) b->colors[i][c] = b->job->bytes[at + 2 - c];
}

/* Row y of the file, counted from its beginning, is this row of the picture. */
static uint8_t *row_of(const struct bmp *b, int64_t y, int channels) {
  return b->job->im.rgb + (size_t)(b->top_down ? y : b->height - 1 - y) * (size_t)b->width * channels;
}

static void indexed_row(const struct bmp *b, const uint8_t *from, uint8_t *to) {
  int mask = (1 << b->bits) - 1;
  for (int64_t x = 0; x < b->width; x++, to += 3) {
    int64_t bit = x * b->bits;
    memcpy(to, b->colors[from[bit >> 3] >> (8 - b->bits - (bit & 7)) & mask], 3);
  }
}

/* A field's value as a colour of 8 bits, rounded. */
static uint8_t field(uint32_t pixel, uint32_t mask) {
  if (!mask) return 0;
  int shift = __builtin_ctz(mask);
  uint64_t highest = mask >> shift;
  return (uint8_t)(((uint64_t)((pixel & mask) >> shift) * 255 + highest / 2) / highest);
}

static void field_row(const struct bmp *b, const uint8_t *from, uint8_t *to) {
  int bytes = b->bits / 8, channels = b->masks[3] ? 4 : 3;
  for (int64_t x = 0; x < b->width; x++, from += bytes, to += channels) {
    uint32_t pixel = bytes == 2 ? u16_at(from) : u32_at(from);
    for (int c = 0; c < channels; c++) to[c] = field(pixel, b->masks[c]);
  }
}

static void bgr_row(const struct bmp *b, const uint8_t *from, uint8_t *to) {
  for (int64_t x = 0; x < b->width; x++, from += 3, to += 3) to[0] = from[2], to[1] = from[1], to[2] = from[0];
}

static int read_rows(struct bmp *b) {
  int channels = b->bits > 8 && b->masks[3] ? 4 : 3;
  int64_t row_bits = b->width * b->bits;
  size_t row_bytes = (size_t)((row_bits + 31) / 32 * 4), last_bytes = (size_t)((row_bits + 7) / 8);
  size_t have = b->job->n - b->pixels_at;
  bool sized = b->width >= 1 && b->width <= IMAGE_SIDE_MAX && b->height >= 1 && b->height <= IMAGE_SIDE_MAX;
  if (sized && b->width * b->height <= b->job->pixels_max && have < row_bytes * (size_t)(b->height - 1) + last_bytes)
    return err_set(b->job->e, ERR_BAD_INPUT, "it ends early: expected %zu bytes of pixels, found %zu",
                   row_bytes * (size_t)(b->height - 1) + last_bytes, have);
  if (image_take(b->job, b->width, b->height, channels) != 0) return -1;
  for (int64_t y = 0; y < b->height; y++) {
    const uint8_t *from = b->job->bytes + b->pixels_at + (size_t)y * row_bytes;
    uint8_t *to = row_of(b, y, channels);
    if (b->bits <= 8) indexed_row(b, from, to);
    else if (b->bits == 24) bgr_row(b, from, to);
    else field_row(b, from, to);
  }
  if (channels == 4) image_flatten(b->job);
  return 0;
}

/* Runs: n > 0, value: n pixels (RLE4: of two colours in turn).  0, 0: next row.  0, 1: end.  0, 2, dx, dy: move.
 * 0, n: n pixels as they are, in whole groups of 2 bytes. */
static int read_runs(struct bmp *b) {
  if (image_take(b->job, b->width, b->height, 3) != 0) return -1;
  memset(b->job->im.rgb, 255, (size_t)b->width * (size_t)b->height * 3);
  const uint8_t *p = b->job->bytes + b->pixels_at, *end = b->job->bytes + b->job->n;
  bool four = b->compression == RLE4;
  int64_t x = 0, y = 0;
  while (end - p >= 2) {
    int n = p[0], value = p[1];
    p += 2;
    if (n == 0 && value == 1) return 0;
    if (n == 0 && value == 0) {
      x = 0, y++;
      continue;
    }
    if (n == 0 && value == 2) {
      if (end - p < 2) break;
      x += p[0], y += p[1];
      p += 2;
      continue;
    }
    bool plain = n == 0;
    if (plain) n = value;
    int bytes = plain ? (four ? (n + 1) / 2 : n) : 0;
    if (end - p < bytes) break;
    if (y >= b->height) return damaged(b, "a run leaves the picture");
    uint8_t *row = row_of(b, y, 3);
    for (int i = 0; i < n && x + i < b->width; i++) { /* some writers encode the row's padding too */
      int pair = plain ? p[four ? i / 2 : i] : value;
      memcpy(row + 3 * (x + i), b->colors[four ? (i & 1 ? pair & 15 : pair >> 4) : pair], 3);
    }
    x += n;
    p += MIN((bytes + 1) & ~1, end - p);
  }
  return y >= b->height || (y == b->height - 1 && x >= b->width) ? 0 : damaged(b, "it ends early, in its runs");
}

int image_read_bmp(struct image_job *j) {
  struct bmp b = {.job = j};
  if (read_header(&b) != 0) return -1;
  if (b.pixels_at < 14 + b.header_bytes || b.pixels_at > j->n)
    return err_set(j->e, ERR_BAD_INPUT, "expected its pixels between byte %zu and the end at %zu, found %zu", 14 + b.header_bytes, j->n,
                   b.pixels_at);
  read_colors(&b);
  return b.compression == RLE8 || b.compression == RLE4 ? read_runs(&b) : read_rows(&b);
}

#endif
