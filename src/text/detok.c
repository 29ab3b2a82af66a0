/* detok.c — a UTF-8 decoder that is fed token by token. */
#include "text/detok.h"

#include <string.h>

#include "text/vocab.h"

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special) {
  *d = (struct detok){.tok = t, .skip_special = skip_special};
}

/* Complete the pending sequence with bytes from the front of s. Afterwards either nothing is pending or s is used up. */
static void finish_pending(struct detok *d, struct str *s, struct buf *out) {
  while (d->n_pending && s->n) {
    d->pending[d->n_pending++] = (unsigned char)*s->p;
    const char *p = (const char *)d->pending;
    if (utf8_incomplete_tail(p, (size_t)d->n_pending) == d->n_pending) {
      s->p++;
      s->n--;
      continue; /* still only a beginning */
    }
    if (utf8_valid(p, (size_t)d->n_pending)) {
      buf_append(out, p, (size_t)d->n_pending);
      s->p++;
      s->n--;
    } else {
      buf_puts(out, "\xEF\xBF\xBD"); /* what was pending; the new byte is looked at again on its own */
    }
    d->n_pending = 0;
  }
}

void detok_push(struct detok *d, int32_t id, struct buf *out) {
  struct str s = tok_piece(d->tok, id);
  if (tok_is_control(d->tok, id)) {
    detok_finish(d, out);
    if (!d->skip_special) tok_clean_utf8(out, s.p, s.n);
    return;
  }
  finish_pending(d, &s, out);
  if (!s.n) return;
  int tail = utf8_incomplete_tail(s.p, s.n);
  tok_clean_utf8(out, s.p, s.n - (size_t)tail);
  memcpy(d->pending, s.p + s.n - (size_t)tail, (size_t)tail);
  d->n_pending = tail;
}

void detok_finish(struct detok *d, struct buf *out) {
  if (d->n_pending) buf_puts(out, "\xEF\xBF\xBD");
  d->n_pending = 0;
}
