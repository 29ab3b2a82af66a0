/* image_jpeg.c — JPEG through libjpeg-turbo's classic interface, which tells one warning from another; its TurboJPEG interface does not.
 *
 * Decoded as every reference decodes: accurate integer DCT, smooth ("fancy") chroma upsampling. CMYK and YCCK are stored inverted, as all
 * writers do.
 */
#ifndef CYGNET_NO_IMAGE

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "files/image_impl.h"

/* A progressive picture costs a pass over all its coefficients per scan, however short the scan; encoders make about ten. */
enum { SCANS_MAX = 100, PADDING_BYTES_MAX = 16 };

struct jpeg_read {
  struct jpeg_decompress_struct lib;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf jump;
  struct image_job *job;
};

static void fail(j_common_ptr lib) {
  struct jpeg_read *r = lib->client_data;
  char message[JMSG_LENGTH_MAX];
  lib->err->format_message(lib, message);
  if (lib->err->msg_code == JERR_OUT_OF_MEMORY) err_set(r->job->e, ERR_NO_MEMORY, "cannot get memory to decode");
  else image_library_error(r->job, message);
  longjmp(r->jump, 1);
}

/* level -1: a warning. The library would go on with grey or repeated pixels; these few leave every pixel as it was meant. */
static void on_message(j_common_ptr lib, int level) {
  if (level >= 0) return;
  switch (lib->err->msg_code) {
  case JWRN_EXTRANEOUS_DATA: /* cameras pad by a few bytes; more is what is left of a scan that went out of step */
    if (lib->err->msg_parm.i[0] > PADDING_BYTES_MAX) fail(lib);
    return;
  case JWRN_NOT_SEQUENTIAL: /* a baseline scan's parameters for progressive ones, which mean nothing there */
  case JWRN_JFIF_MAJOR:
  case JWRN_ADOBE_XFORM:
  case JWRN_BOGUS_ICC: return;
  default: fail(lib);
  }
}

static void print_nothing(j_common_ptr lib) { (void)lib; }

static void on_progress(j_common_ptr lib) {
  struct jpeg_read *r = lib->client_data;
  if (r->lib.input_scan_number <= SCANS_MAX) return;
  err_set(r->job->e, ERR_BAD_INPUT, "expected at most %d scans, found more", SCANS_MAX);
  longjmp(r->jump, 1);
}

/* One row [width, 4] of inverted CMYK into RGB: a colour is (1 - ink) * (1 - black). */
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, int width) {
  for (int x = 0; x < width; x++, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)((cmyk[c] * cmyk[3] + 127) / 255);
}

static void read_orientation(struct jpeg_read *r) {
  for (jpeg_saved_marker_ptr m = r->lib.marker_list; m; m = m->next) {
    if (m->marker != JPEG_APP0 + 1 || m->data_length < 6 || memcmp(m->data, "Exif\0", 6) != 0) continue;
    r->job->orientation = image_exif_orientation(m->data, m->data_length);
    return;
  }
}

/* Returns 0, or -1; comes back by longjmp into setjmp below wherever the library fails. No local variable is needed after that. */
static int read_picture(struct jpeg_read *r) {
  struct jpeg_decompress_struct *lib = &r->lib;
  struct image_job *j = r->job;
  if (setjmp(r->jump)) return -1;
  jpeg_create_decompress(lib);
  lib->client_data = r;
  lib->progress = &r->progress;
  jpeg_mem_src(lib, j->bytes, j->n);
  jpeg_save_markers(lib, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(lib, TRUE);
  read_orientation(r);

  bool cmyk = lib->jpeg_color_space == JCS_CMYK || lib->jpeg_color_space == JCS_YCCK;
  if (lib->jpeg_color_space == JCS_UNKNOWN)
    return err_set(j->e, ERR_UNSUPPORTED, "expected grey, colour or CMYK, found %d channels", lib->num_components);
  if (image_take(j, lib->image_width, lib->image_height, 3) != 0) return -1;
  lib->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  lib->dct_method = JDCT_ISLOW;
  lib->do_fancy_upsampling = TRUE;
  jpeg_start_decompress(lib);
  JSAMPARRAY inks = cmyk ? lib->mem->alloc_sarray((j_common_ptr)lib, JPOOL_IMAGE, 4 * lib->output_width, 1) : NULL;
  while (lib->output_scanline < lib->output_height) {
    JSAMPROW row = j->im.rgb + (size_t)lib->output_scanline * (size_t)j->im.width * 3;
    jpeg_read_scanlines(lib, cmyk ? inks : &row, 1);
    if (cmyk) cmyk_to_rgb(inks[0], row, j->im.width);
  }
  jpeg_finish_decompress(lib); /* reads on to the end marker: a file without it ended early */
  return 0;
}

int image_read_jpeg(struct image_job *j) {
  struct jpeg_read r = {.job = j};
  r.lib.err = jpeg_std_error(&r.errors);
  r.lib.client_data = &r;
  r.errors.error_exit = fail;
  r.errors.emit_message = on_message;
  r.errors.output_message = print_nothing;
  r.progress.progress_monitor = on_progress;
  int rc = read_picture(&r);
  jpeg_destroy_decompress(&r.lib);
  return rc;
}

#endif
