/* detok.h — ids to text, one at a time, never half a character.
 *
 * Only complete UTF-8 leaves. A sequence that can no longer become valid turns at once into one U+FFFD per maximal subpart; what is
 * still incomplete at the end is one U+FFFD. A control token first flushes what is pending, shown or not.
 * State is at most three bytes: no token is decoded twice.
 */
#ifndef CYGNET_DETOK_H
#define CYGNET_DETOK_H

#include "text/tok.h"

struct detok {
  const struct tokenizer *tok; /* borrows */
  bool skip_special;
  unsigned char pending[4];
  int n_pending;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_push(struct detok *d, int32_t id, struct buf *out); /* appends what became certain */
void detok_finish(struct detok *d, struct buf *out);

#endif
