/* stop.c — one Knuth-Morris-Pratt automaton per stop string over the same stream of bytes.
 *
 * The state of an automaton is the length of the longest prefix of its string that the text ends with. The greatest state of all is exactly
 * what must be held back.
 */
#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct automaton {
  char *string; /* owned */
  int n;
  int *border; /* owned; border[k] = length of the longest proper prefix of string[0..k) that is also its suffix */
  int state;
};

struct stop {
  struct automaton of[STOP_STRINGS_MAX];
  int n;
  bool keep;
  int matched; /* index, or -1 */
  struct buf held;
};

static int advance(const struct automaton *a, int state, char c) {
  while (state && a->string[state] != c) state = a->border[state];
  return a->string[state] == c ? state + 1 : 0;
}

static void automaton_init(struct automaton *a, struct str s) {
  a->n = (int)s.n;
  a->string = xstrndup(s.p, s.n);
  a->border = xcalloc(s.n + 1, sizeof *a->border);
  for (int k = 1; k < a->n; k++) a->border[k + 1] = advance(a, a->border[k], a->string[k]);
}

struct stop *stop_new(const struct str *strings, int n, bool keep, struct err *e) {
  if (!n) return NULL;
  if (n > STOP_STRINGS_MAX) {
    err_set(e, ERR_BAD_INPUT, "stop: expected at most %d strings, found %d", STOP_STRINGS_MAX, n);
    return NULL;
  }
  struct stop *s = xcalloc(1, sizeof *s);
  s->keep = keep;
  s->matched = -1;
  buf_init(&s->held, 0);
  for (int i = 0; i < n; i++) {
    if (!strings[i].n || strings[i].n > STOP_BYTES_MAX) {
      err_set(e, ERR_BAD_INPUT, "stop[%d]: expected 1 to %d bytes, found %zu", i, STOP_BYTES_MAX, strings[i].n);
      goto fail;
    }
    if (!utf8_valid(strings[i].p, strings[i].n)) {
      err_set(e, ERR_BAD_INPUT, "stop[%d]: expected UTF-8", i);
      goto fail;
    }
    automaton_init(&s->of[s->n++], strings[i]);
  }
  return s;
fail:
  stop_delete(s);
  return NULL;
}

void stop_delete(struct stop *s) {
  if (!s) return;
  for (int i = 0; i < s->n; i++) {
    free(s->of[i].string);
    free(s->of[i].border);
  }
  buf_free(&s->held);
  free(s);
}

/* One byte for all automata: index of the longest string that is complete with it, or -1. */
static int step(struct stop *s, char c) {
  int found = -1;
  for (int k = 0; k < s->n; k++) {
    struct automaton *a = &s->of[k];
    a->state = advance(a, a->state, c);
    if (a->state == a->n && (found < 0 || a->n > s->of[found].n)) found = k;
  }
  return found;
}

int stop_push(struct stop *s, const char *text, size_t n, struct buf *out) {
  if (!s) {
    buf_append(out, text, n);
    return -1;
  }
  if (s->matched >= 0) return s->matched;
  size_t used = 0;
  while (used < n && s->matched < 0) s->matched = step(s, text[used++]);
  buf_append(&s->held, text, used);
  int hold = 0;
  if (s->matched >= 0) {
    hold = s->keep ? 0 : s->of[s->matched].n;
  } else {
    for (int k = 0; k < s->n; k++) hold = MAX(hold, s->of[k].state);
  }
  size_t shown = s->held.len - (size_t)hold;
  buf_append(out, buf_cstr(&s->held), shown);
  if (s->matched >= 0) buf_clear(&s->held);
  else buf_drop_front(&s->held, shown);
  return s->matched;
}

void stop_finish(struct stop *s, struct buf *out) {
  if (!s || s->matched >= 0) return;
  buf_append(out, buf_cstr(&s->held), s->held.len);
  buf_clear(&s->held);
  for (int k = 0; k < s->n; k++) s->of[k].state = 0;
}
