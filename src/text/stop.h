/* stop.h — stop strings found across token borders, holding back no more than must be.
 *
 * Text goes in as it is decoded; what comes out can no longer be the beginning of a stop string. The earliest position at which any
 * stop string is complete wins; among those that end at the same byte the longest (the one that starts first). The text ends right
 * before the match, or right after it with keep.
 * Cost: amortised O(1) per byte and stop string (one Knuth-Morris-Pratt automaton each).
 */
#ifndef CYGNET_STOP_H
#define CYGNET_STOP_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

enum { STOP_STRINGS_MAX = 16, STOP_BYTES_MAX = 1024 };

struct stop; /* NULL = no stop strings */

/* Copies the strings; refuses more than STOP_STRINGS_MAX, empty ones, longer ones than STOP_BYTES_MAX and what is not UTF-8 (so that
 * nothing is ever held back in the middle of a character). Returns owned; n = 0 gives NULL and leaves *e alone. */
struct stop *stop_new(const struct str *strings, int n, bool keep, struct err *e);
void stop_delete(struct stop *s);

/* Feed n bytes; appends what may be shown to out. Returns the index of the stop string that matched, or -1. After a match nothing more is
 * accepted or shown: later calls return the same index. s may be NULL: everything is shown. */
int stop_push(struct stop *s, const char *text, size_t n, struct buf *out);
/* The text is over: what was held back is shown. */
void stop_finish(struct stop *s, struct buf *out);

#endif
