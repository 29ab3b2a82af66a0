/* base64.h — bytes that came as text: base64 as strangers write it, and data: addresses.
 *
 * Taken: either alphabet (+/ and -_), with padding or without, white space anywhere, percent-encoded characters. Anything else is an error
 * that says where.
 */
#ifndef CYGNET_BASE64_H
#define CYGNET_BASE64_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

int base64_decode(struct str text, struct buf *out, struct err *e); /* appended; ERR_TOO_LARGE beyond the cap of out */
/* "data:[TYPE][;PARAMETER]...[;base64],DATA": the type is not looked at. */
bool base64_is_data_url(struct str text);
int base64_data_url(struct str text, struct buf *out, struct err *e);
/* Percent-encoded text as it was meant. */
int base64_percent_decode(struct str text, struct buf *out, struct err *e);

#endif
