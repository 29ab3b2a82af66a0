/* image_webp.c — WebP through libwebp: lossy, lossless, with alpha; the first frame of an animation, where it stands on its canvas. */
#ifndef CYGNET_NO_IMAGE

#include <webp/decode.h>
#include <webp/demux.h>

#include "files/image_impl.h"

/* The first frame into RGBA on a transparent canvas. */
static int read_frame(struct image_job *j, WebPDemuxer *demuxer) {
  WebPIterator frame = {0};
  int rc = -1;
  if (!WebPDemuxGetFrame(demuxer, 1, &frame) || !frame.complete) {
    err_set(j->e, ERR_BAD_INPUT, "it has no complete picture");
    goto end;
  }
  if (image_take(j, WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH), WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT), 4) != 0) goto end;
  if (frame.x_offset < 0 || frame.y_offset < 0 || frame.width > j->im.width - frame.x_offset ||
      frame.height > j->im.height - frame.y_offset) {
    err_set(j->e, ERR_BAD_INPUT, "a frame of %d x %d at %d, %d is not inside the picture of %d x %d", frame.width, frame.height,
            frame.x_offset, frame.y_offset, j->im.width, j->im.height);
    goto end;
  }
  size_t stride = (size_t)j->im.width * 4, skipped = (size_t)frame.y_offset * stride + (size_t)frame.x_offset * 4;
  size_t left = stride * (size_t)j->im.height - skipped;
  int width = 0, height = 0;
  if (!WebPGetInfo(frame.fragment.bytes, frame.fragment.size, &width, &height) || width != frame.width || height != frame.height ||
      !WebPDecodeRGBAInto(frame.fragment.bytes, frame.fragment.size, j->im.rgb + skipped, left, (int)stride)) {
    err_set(j->e, ERR_BAD_INPUT, "cannot be decoded: it is damaged or ends early");
    goto end;
  }
  image_flatten(j);
  rc = 0;
end:
  WebPDemuxReleaseIterator(&frame);
  return rc;
}

static void read_orientation(struct image_job *j, WebPDemuxer *demuxer) {
  WebPChunkIterator chunk = {0};
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk)) j->orientation = image_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
  WebPDemuxReleaseChunkIterator(&chunk);
}

int image_read_webp(struct image_job *j) {
  WebPDemuxer *demuxer = WebPDemux(&(WebPData){.bytes = j->bytes, .size = j->n});
  if (!demuxer) return err_set(j->e, ERR_BAD_INPUT, "cannot be decoded: it is damaged or ends early");
  int rc = read_frame(j, demuxer);
  if (rc == 0) read_orientation(j, demuxer);
  WebPDemuxDelete(demuxer);
  return rc;
}

#endif
