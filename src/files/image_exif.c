/* image_exif.c — which way up a picture is, through libexif. */
#ifndef CYGNET_NO_IMAGE

#include <stdlib.h>
#include <string.h>

#include <libexif/exif-data.h>
#undef MIN /* the library has its own */
#undef MAX

#include "base/mem.h"
#include "files/image_impl.h"

enum { EXIF_BYTES_MAX = 65533 - 2 }; /* what one JPEG segment holds; the orientation stands in front */

int image_exif_orientation(const uint8_t *block, size_t n) {
  static const uint8_t header[6] = "Exif\0";
  int orientation = 1;
  if (n >= sizeof header && memcmp(block, header, sizeof header) == 0) block += sizeof header, n -= sizeof header;
  n = MIN(n, EXIF_BYTES_MAX - sizeof header);
  ExifData *data = exif_data_new();
  if (!data) return orientation;
  exif_data_unset_option(data, EXIF_DATA_OPTION_FOLLOW_SPECIFICATION); /* it would repair entries, an orientation too */
  uint8_t *whole = xmalloc(sizeof header + n);                         /* the library wants the header, PNG and WebP leave it out */
  memcpy(whole, header, sizeof header);
  memcpy(whole + sizeof header, block, n);
  exif_data_load_data(data, whole, (unsigned)(sizeof header + n));
  free(whole);
  const ExifEntry *entry = exif_content_get_entry(data->ifd[EXIF_IFD_0], EXIF_TAG_ORIENTATION);
  if (entry && entry->components >= 1 && entry->data) {
    ExifByteOrder order = exif_data_get_byte_order(data);
    uint32_t value = 0;
    if (entry->format == EXIF_FORMAT_SHORT && entry->size >= 2) value = exif_get_short(entry->data, order);
    else if (entry->format == EXIF_FORMAT_LONG && entry->size >= 4) value = exif_get_long(entry->data, order);
    if (value >= 1 && value <= 8) orientation = (int)value;
  }
  exif_data_unref(data);
  return orientation;
}

#endif
