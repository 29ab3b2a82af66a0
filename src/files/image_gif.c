/* image_gif.c — the first frame of a GIF through giflib, on its logical screen. What the frame does not cover, and its transparent index,
 * is white. */
#ifndef CYGNET_NO_IMAGE

#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "base/mem.h"
#include "files/image_impl.h"

struct gif_read {
  GifFileType *lib;
  struct image_job *job;
  size_t at;       /* bytes consumed */
  int transparent; /* index of the colour, NO_TRANSPARENT_COLOR */
};

static int read_bytes(GifFileType *lib, GifByteType *out, int n) {
  struct gif_read *r = lib->UserData;
  int can = (int)MIN((size_t)MAX(n, 0), r->job->n - r->at);
  memcpy(out, r->job->bytes + r->at, (size_t)can);
  r->at += (size_t)can;
  return can; /* fewer than asked for is the library's sign of an early end */
}

static int gif_error(struct gif_read *r, int code) {
  const char *message = GifErrorString(code);
  return image_library_error(r->job, message ? message : "it is damaged");
}

/* Up to the first frame's own header. An extension of the graphics kind before it may name a transparent colour. */
static int find_frame(struct gif_read *r) {
  for (;;) {
    GifRecordType type;
    if (DGifGetRecordType(r->lib, &type) == GIF_ERROR) return gif_error(r, r->lib->Error);
    if (type == IMAGE_DESC_RECORD_TYPE) return 0;
    if (type != EXTENSION_RECORD_TYPE) return err_set(r->job->e, ERR_BAD_INPUT, "it has no picture");
    int code;
    GifByteType *block; /* its length, then its bytes */
    if (DGifGetExtension(r->lib, &code, &block) == GIF_ERROR) return gif_error(r, r->lib->Error);
    GraphicsControlBlock control;
    if (code == GRAPHICS_EXT_FUNC_CODE && block && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
      r->transparent = control.TransparentColor;
    while (block)
      if (DGifGetExtensionNext(r->lib, &block) == GIF_ERROR) return gif_error(r, r->lib->Error);
  }
}

static void put_row(struct gif_read *r, const GifPixelType *indices, const ColorMapObject *colors, int y) {
  const GifImageDesc *frame = &r->lib->Image;
  uint8_t *to = r->job->im.rgb + 3 * ((size_t)(frame->Top + y) * (size_t)r->job->im.width + (size_t)frame->Left);
  for (int x = 0; x < frame->Width; x++, to += 3) {
    if (indices[x] == r->transparent) continue;
    GifColorType c = indices[x] < colors->ColorCount ? colors->Colors[indices[x]] : (GifColorType){0, 0, 0};
    to[0] = c.Red, to[1] = c.Green, to[2] = c.Blue;
  }
}

static int read_frame(struct gif_read *r) {
  struct image_job *j = r->job;
  GifFileType *lib = r->lib;
  if (find_frame(r) != 0) return -1;
  if (DGifGetImageDesc(lib) == GIF_ERROR) return gif_error(r, lib->Error);
  const GifImageDesc *frame = &lib->Image;
  const ColorMapObject *colors = frame->ColorMap ? frame->ColorMap : lib->SColorMap;
  if (!colors) return err_set(j->e, ERR_BAD_INPUT, "it has no palette");
  if (frame->Left < 0 || frame->Top < 0 || frame->Width < 1 || frame->Height < 1)
    return err_set(j->e, ERR_BAD_INPUT, "expected a frame of at least 1 x 1, found %d x %d", frame->Width, frame->Height);
  /* some writers say less of the screen than their frame covers */
  int64_t width = MAX((int64_t)lib->SWidth, (int64_t)frame->Left + frame->Width),
          height = MAX((int64_t)lib->SHeight, (int64_t)frame->Top + frame->Height);
  if (image_take(j, width, height, 3) != 0) return -1;
  memset(j->im.rgb, 255, (size_t)width * (size_t)height * 3);

  GifPixelType *indices = xmalloc((size_t)frame->Width);
  static const int first[] = {0, 4, 2, 1, 0}, step[] = {8, 8, 4, 2, 1}; /* the passes of an interlaced frame; the last: all rows in order */
  int rc = 0;
  for (int pass = frame->Interlace ? 0 : 4, end = frame->Interlace ? 4 : 5; rc == 0 && pass < end; pass++) {
    for (int y = first[pass]; rc == 0 && y < frame->Height; y += step[pass]) {
      if (DGifGetLine(lib, indices, frame->Width) == GIF_ERROR) rc = gif_error(r, lib->Error);
      else put_row(r, indices, colors, y);
    }
  }
  free(indices);
  return rc;
}

int image_read_gif(struct image_job *j) {
  struct gif_read r = {.job = j, .transparent = NO_TRANSPARENT_COLOR};
  int code = 0;
  r.lib = DGifOpen(&r, read_bytes, &code);
  if (!r.lib) return gif_error(&r, code);
  int rc = read_frame(&r);
  DGifCloseFile(r.lib, NULL);
  return rc;
}

#endif
