/* multipart.h — bodies in parts (multipart/form-data, RFC 7578), as forms send files. No allocation, no copy: parts are slices of the body.
 *
 * Strict: the body begins with the first boundary, lines end in CR LF, every part has a name and no name stands twice but "...[]", and the
 * last boundary is there. Two programs that read such a body read the same.
 */
#ifndef CYGNET_MULTIPART_H
#define CYGNET_MULTIPART_H

#include "base/err.h"
#include "base/str.h"

enum { MULTIPART_BOUNDARY_MAX = 70, MULTIPART_HEAD_BYTES = 8 << 10 };

struct multipart_part { /* borrows from the body */
  struct str name, data;
  bool is_file; /* it has a filename, whatever that says */
};

/* The boundary of a Content-Type; false: that is no multipart/form-data with one. */
bool multipart_boundary(struct str content_type, char out[MULTIPART_BOUNDARY_MAX + 1]);
/* Parts → parts[n_max]; their number, or -1 and *e (also for more of them). */
int multipart_parse(struct str body, const char *boundary, struct multipart_part *parts, int n_max, struct err *e);

#endif
