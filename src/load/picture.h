/* picture.h — pictures that nobody has seen before: squares of 16 pixels in random colours, as PNG or JPEG. They are as much work for a model as
 * any others of their size, and small to send. */
#ifndef CYGNET_LOAD_PICTURE_H
#define CYGNET_LOAD_PICTURE_H

#include "base/err.h"

/* "data:image/png;base64,...", owned; NULL and *e. Another number: another picture. */
char *picture_make(int width, int height, bool jpeg, uint64_t seed, uint64_t number, struct err *e);

#endif
