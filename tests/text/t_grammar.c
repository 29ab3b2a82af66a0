/* t_grammar.c — masks, steps and ends of grammars against a twin that tries everything.
 *
 * The twin knows a grammar as a tree of its own and a text as a row of units (a byte of an ordinary token, or a whole control token). It asks of a part
 * from a place: where can it end (`ends`), and can the text run out inside it (`inside`). No automaton, no UTF-8 tables.
 */
#include "grammar_toy.h"

#include <stdio.h>

#include "text/grammar_impl.h"

/* --- the twin -------------------------------------------------------------------------------------------------------------------------------- */

enum kind { EMPTY, TEXT, CLASS, SEQ, ALT, REPEAT, TOKEN, OTHER, RULE };
enum { NODES_MAX = 256, KIDS = 4, RULES_MAX = 4, UNITS_MAX = 60, CALLS_MAX = 4000000 };

struct tree {
  enum kind kind;
  int kids[KIDS], n_kids;
  char text[16];
  struct rules_range ranges[4];
  int n_ranges;
  bool negated;
  int min, max;
  int rule;
  int32_t ids[3];
  int n_ids;
  bool productive;
};

typedef uint64_t places; /* bit i: before unit i */
struct twin {
  struct tree nodes[NODES_MAX];
  int n;
  int rules[RULES_MAX], n_rules, root;
  const struct toy *toy;
  unsigned char bytes[UNITS_MAX + 1]; /* units: */
  int32_t ids[UNITS_MAX + 1];         /* the token that the unit is of */
  bool control[UNITS_MAX + 1], begins[UNITS_MAX + 1];
  int n_units, depth;
  int64_t n_calls;
  bool deep;                              /* gave up: too deep, too long */
  places known[NODES_MAX][UNITS_MAX + 1]; /* ends that were found for the text that it has now */
  uint32_t known_for[NODES_MAX][UNITS_MAX + 1], text_number;
};

static bool class_has(const struct tree *n, uint32_t cp) {
  bool in = false;
  if (cp >= 0xD800 && cp <= 0xDFFF) return false;
  for (int i = 0; i < n->n_ranges; i++) in |= n->ranges[i].lo <= cp && cp <= n->ranges[i].hi;
  return in != n->negated;
}

/* Bytes that follow, up to n of them. */
static int following(const struct twin *w, int at, char *out, int n) {
  int k = 0;
  while (k < n && at + k < w->n_units && !w->control[at + k]) {
    out[k] = (char)w->bytes[at + k];
    k++;
  }
  return k;
}

static int class_end(const struct twin *w, const struct tree *n, int at) {
  char p[4];
  uint32_t cp;
  bool bad = false;
  int have = following(w, at, p, 4);
  if (!have) return -1;
  int step = utf8_step(p, (size_t)have, &cp, &bad);
  return !bad && class_has(n, cp) ? at + step : -1;
}

/* The text runs out inside a character: some character of the class begins like this. Enough to try are the first and last that begin so, and those at
 * the borders of the class and of what UTF-8 can write. */
static bool class_inside(const struct twin *w, const struct tree *n, int at) {
  char p[4], q[4];
  int have = following(w, at, p, 4);
  if (at + have != w->n_units || have > 3 || have < 1) return false;
  unsigned char lead = (unsigned char)p[0];
  if (lead < 0xC2 || lead > 0xF4) return false;
  int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (have > length) return false;
  uint32_t lo = lead & (lead >= 0xF0 ? 7u : lead >= 0xE0 ? 15u : 31u), tries[48] = {0x80, 0x800, 0xD7FF, 0xE000, 0x10000, 0x10FFFF};
  int n_tries = 6;
  for (int i = 1; i < have; i++) lo = lo << 6 | ((unsigned char)p[i] & 63u);
  uint32_t hi = (lo + 1) << 6 * (length - have);
  lo <<= 6 * (length - have);
  tries[n_tries++] = lo;
  tries[n_tries++] = hi - 1;
  for (int i = 0; i < n->n_ranges; i++)
    for (int k = -1; k <= 1; k++) {
      tries[n_tries++] = n->ranges[i].lo + (uint32_t)k;
      tries[n_tries++] = n->ranges[i].hi + (uint32_t)k;
    }
  for (int i = 0; i < n_tries; i++)
    if (tries[i] <= 0x10FFFF && class_has(n, tries[i]) && utf8_put(tries[i], q) > have && !memcmp(p, q, (size_t)have)) return true;
  return false;
}

static bool token_matches(const struct twin *w, const struct tree *n, int at) {
  if (at >= w->n_units || !w->begins[at]) return false;
  int32_t id = w->ids[at];
  if (n->kind == TOKEN) return id == n->ids[0];
  if (id == TOY_EOS || id == TOY_END) return false;
  for (int i = 0; i < n->n_ids; i++)
    if (n->ids[i] == id) return false;
  return true;
}
static int token_end(const struct twin *w, int at) {
  int next = at + 1;
  while (next < w->n_units && !w->begins[next]) next++;
  return next;
}

static places ends(struct twin *w, int node, int at);
static places ends_all(struct twin *w, int node, places from) {
  places to = 0;
  for (int i = 0; i <= w->n_units; i++)
    if (from >> i & 1) to |= ends(w, node, i);
  return to;
}

static places ends(struct twin *w, int node, int at) {
  const struct tree *n = &w->nodes[node];
  places here = (places)1 << at, to = 0;
  if (w->known_for[node][at] == w->text_number) return w->known[node][at];
  if (++w->depth > 400 || ++w->n_calls > CALLS_MAX) w->deep = true;
  if (!w->deep) {
    size_t len = strlen(n->text);
    char p[16];
    switch (n->kind) {
    case EMPTY: to = here; break;
    case TEXT: to = following(w, at, p, (int)len) == (int)len && !memcmp(p, n->text, len) ? here << len : 0; break;
    case CLASS: to = class_end(w, n, at) >= 0 ? (places)1 << class_end(w, n, at) : 0; break;
    case SEQ:
      to = here;
      for (int i = 0; i < n->n_kids; i++) to = ends_all(w, n->kids[i], to);
      break;
    case ALT:
      for (int i = 0; i < n->n_kids; i++) to |= ends(w, n->kids[i], at);
      break;
    case REPEAT: {
      places now = here;
      if (n->min == 0) to = here;
      for (int i = 1; now && (n->max < 0 ? i <= n->min + w->n_units + 1 : i <= n->max); i++) {
        now = ends_all(w, n->kids[0], now);
        if (i >= n->min) to |= now;
      }
      break;
    }
    case TOKEN:
    case OTHER: to = token_matches(w, n, at) ? (places)1 << token_end(w, at) : 0; break;
    case RULE: to = ends(w, w->rules[n->rule], at); break;
    }
  }
  w->depth--;
  w->known_for[node][at] = w->text_number;
  return w->known[node][at] = to;
}

/* Can the text end inside this node (or before, or behind it) so that something can still complete it? */
static bool inside(struct twin *w, int node, int at) {
  const struct tree *n = &w->nodes[node];
  bool yes = false;
  if (!n->productive) return false;
  if (at == w->n_units) return true;
  if (++w->depth > 400 || ++w->n_calls > CALLS_MAX) w->deep = true;
  if (!w->deep) {
    size_t len = strlen(n->text);
    char p[16];
    places now = (places)1 << at;
    int have;
    switch (n->kind) {
    case EMPTY: break;
    case TEXT:
      have = following(w, at, p, (int)len);
      yes = at + have == w->n_units && !memcmp(p, n->text, (size_t)have);
      break;
    case CLASS: yes = class_inside(w, n, at) || class_end(w, n, at) == w->n_units; break;
    case SEQ:
      for (int i = 0; i < n->n_kids && !yes; i++) {
        for (int k = 0; k <= w->n_units; k++) yes |= (now >> k & 1) && inside(w, n->kids[i], k);
        now = ends_all(w, n->kids[i], now);
      }
      break;
    case ALT:
      for (int i = 0; i < n->n_kids; i++) yes |= inside(w, n->kids[i], at);
      break;
    case REPEAT: {
      int times = n->max < 0 ? n->min + w->n_units + 1 : n->max;
      for (int i = 0; i < times && now && !yes; i++) {
        for (int k = 0; k <= w->n_units; k++) yes |= (now >> k & 1) && inside(w, n->kids[0], k);
        now = ends_all(w, n->kids[0], now);
      }
      break;
    }
    case TOKEN:
    case OTHER: yes = token_matches(w, n, at) && token_end(w, at) == w->n_units; break;
    case RULE: yes = inside(w, w->rules[n->rule], at); break;
    }
  }
  w->depth--;
  return yes;
}

static void find_productive(struct twin *w) {
  for (int i = 0; i < w->n; i++) w->nodes[i].productive = false;
  for (bool more = true; more;) {
    more = false;
    for (int i = 0; i < w->n; i++) {
      struct tree *n = &w->nodes[i];
      bool yes = false;
      switch (n->kind) {
      case SEQ:
        yes = true;
        for (int k = 0; k < n->n_kids; k++) yes &= w->nodes[n->kids[k]].productive;
        break;
      case ALT:
        for (int k = 0; k < n->n_kids; k++) yes |= w->nodes[n->kids[k]].productive;
        break;
      case REPEAT: yes = n->min == 0 || w->nodes[n->kids[0]].productive; break;
      case RULE: yes = w->nodes[w->rules[n->rule]].productive; break;
      case CLASS:
        for (uint32_t cp = 0; cp <= 0x10FFFF && !n->productive && !yes; cp++) yes = class_has(n, cp);
        break;
      case TOKEN: yes = n->ids[0] < w->toy->t.vocab.n; break;
      case EMPTY:
      case TEXT:
      case OTHER: yes = true; break;
      }
      if (yes && !n->productive) n->productive = more = true;
    }
  }
}

/* --- random grammars ------------------------------------------------------------------------------------------------------------------------- */

static const char *const pieces[] = {"ab",
                                     "abc",
                                     "bc",
                                     "aa",
                                     "aaaa",
                                     "ba",
                                     "\xC3\xA9",
                                     "a\xC3\xA9",
                                     "\xA9"
                                     "b",
                                     "\xE6\x97",
                                     "\xE6\x97\xA5",
                                     "ca",
                                     "cc",
                                     "\xC3\xA9\xC3\xA9",
                                     "b\xE6",
                                     "\xA5"
                                     "c",
                                     "ab",
                                     "\xF0\x9F",
                                     "bb",
                                     "bbb",
                                     "acb"};
static const uint32_t letters[] = {'a', 'b', 'c', 'd', 0xE9, 0xEA, 0x65E5, 0x65E6, 0x1F600, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF};

static int grow(struct twin *w, uint64_t *r, int depth);

static void grow_class(struct tree *n, uint64_t *r) {
  n->kind = CLASS;
  n->n_ranges = test_rand_int(r, 0, 3);
  n->negated = test_rand_int(r, 0, 3) == 0;
  for (int i = 0; i < n->n_ranges; i++) {
    uint32_t lo = letters[test_rand_int(r, 0, test_rand_int(r, 0, 1) ? 3 : (int)ARRAY_LEN(letters) - 1)];
    uint32_t hi = test_rand_int(r, 0, 1) ? lo : letters[test_rand_int(r, 0, (int)ARRAY_LEN(letters) - 1)];
    n->ranges[i] = (struct rules_range){MIN(lo, hi), MAX(lo, hi)};
  }
}

static void grow_text(struct tree *n, uint64_t *r) {
  int len = test_rand_int(r, 1, 3);
  char *p = n->text;
  n->kind = TEXT;
  for (int i = 0; i < len; i++) p += utf8_put(letters[test_rand_int(r, 0, test_rand_int(r, 0, 3) ? 2 : 8)], p);
  *p = 0;
}

static int grow(struct twin *w, uint64_t *r, int depth) {
  int id = w->n++;
  struct tree n = {0};
  int what = test_rand_int(r, 0, depth <= 0 || w->n > NODES_MAX - 60 ? 5 : 15);
  if (what <= 2) {
    grow_text(&n, r);
  } else if (what == 3) {
    grow_class(&n, r);
  } else if (what == 4) {
    n.kind = test_rand_int(r, 0, 1) ? EMPTY : TOKEN;
    n.ids[0] = test_rand_int(r, 0, 9) ? test_rand_int(r, TOY_A, TOY_B) : test_rand_int(r, 0, 1) ? 400 : TOY_PIECES + test_rand_int(r, 0, 5);
  } else if (what == 5) {
    n.kind = w->n_rules ? RULE : TEXT;
    n.rule = w->n_rules ? test_rand_int(r, 0, w->n_rules - 1) : 0;
    strcpy(n.text, "b");
    if (test_rand_int(r, 0, 5) == 0) {
      n.kind = OTHER;
      n.n_ids = test_rand_int(r, 0, 2);
      for (int i = 0; i < n.n_ids; i++) n.ids[i] = test_rand_int(r, TOY_PAD, TOY_PIECES + 4);
    }
    if (n.kind != TEXT) n.text[0] = 0;
  } else if (what <= 9) {
    n.kind = SEQ;
    n.n_kids = test_rand_int(r, 1, KIDS);
  } else if (what <= 12) {
    n.kind = ALT;
    n.n_kids = test_rand_int(r, 0, 9) ? test_rand_int(r, 2, KIDS) : 0;
  } else {
    static const int mins[] = {0, 0, 1, 2, 3, 7, 70}, spans[] = {-1, -1, 0, 1, 2, 5, 90};
    n.kind = REPEAT;
    n.n_kids = 1;
    n.min = mins[test_rand_int(r, 0, test_rand_int(r, 0, 3) ? 3 : 6)];
    int span = spans[test_rand_int(r, 0, 6)];
    n.max = span < 0 ? -1 : n.min + span;
  }
  if (n.kind == CLASS || n.kind == TOKEN || n.kind == EMPTY) n.text[0] = 0;
  for (int i = 0; i < n.n_kids; i++) n.kids[i] = grow(w, r, depth - 1);
  w->nodes[id] = n;
  return id;
}

static int build(const struct twin *w, struct grammar_rules *g, const int *rules, int node) {
  const struct tree *n = &w->nodes[node];
  int kids[KIDS];
  for (int i = 0; i < n->n_kids; i++) kids[i] = build(w, g, rules, n->kids[i]);
  switch (n->kind) {
  case EMPTY: return rules_empty(g);
  case TEXT: return rules_text(g, n->text);
  case CLASS: return rules_class(g, n->ranges, n->n_ranges, n->negated);
  case SEQ: return rules_seq(g, kids, n->n_kids);
  case ALT: return rules_alt(g, kids, n->n_kids);
  case REPEAT: return rules_repeat(g, kids[0], n->min, n->max);
  case TOKEN: return rules_token(g, n->ids[0]);
  case OTHER: return rules_other_tokens(g, n->ids, n->n_ids);
  case RULE: return rules[n->rule];
  }
  return 0;
}

static struct grammar_rules *grow_grammar(struct twin *w, const struct toy *toy, uint64_t *r) {
  struct grammar_rules *g = grammar_rules_new();
  int rules[RULES_MAX];
  memset(w, 0, sizeof *w);
  w->toy = toy;
  w->text_number = 1;
  w->n_rules = test_rand_int(r, 0, RULES_MAX - 1);
  for (int i = 0; i < w->n_rules; i++) rules[i] = rules_declare(g, "rule");
  for (int i = 0; i < w->n_rules; i++) w->rules[i] = grow(w, r, 2);
  w->root = grow(w, r, 3);
  for (int i = 0; i < w->n_rules; i++) rules_define(g, rules[i], build(w, g, rules, w->rules[i]));
  rules_root(g, build(w, g, rules, w->root));
  find_productive(w);
  return g;
}

/* --- the comparison ---------------------------------------------------------------------------------------------------------------------------- */

static bool twin_push(struct twin *w, int32_t id) {
  struct str piece = tok_piece(&w->toy->t, id);
  bool control = tok_is_control(&w->toy->t, id) || w->toy->t.vocab.kind[id] == PIECE_UNUSED || !piece.n;
  size_t n = control ? 1 : piece.n;
  if (w->n_units + (int)n > UNITS_MAX) return false;
  w->text_number++;
  for (size_t i = 0; i < n; i++, w->n_units++) {
    w->bytes[w->n_units] = control ? 0 : (unsigned char)piece.p[i];
    w->ids[w->n_units] = id;
    w->control[w->n_units] = control;
    w->begins[w->n_units] = i == 0;
  }
  return true;
}

static bool twin_matches(struct twin *w) { return ends(w, w->root, 0) >> w->n_units & 1; }

static bool twin_allows(struct twin *w, int32_t id) {
  int before = w->n_units;
  bool yes = false;
  if (id == TOY_EOS || id == TOY_END) return twin_matches(w);
  if (twin_push(w, id)) yes = inside(w, w->root, 0);
  w->n_units = before;
  w->text_number++;
  return yes;
}

/* Most bytes are like others; all are tried now and then. */
static bool worth_trying(int32_t id, int n_states) {
  static const unsigned char bytes[] = {0,    'a',  'b',  'c',  'd',  'e',  0x7F, 0x80, 0x8F, 0x90, 0x97, 0x9F, 0xA0, 0xA5, 0xA6,
                                        0xA9, 0xAA, 0xBF, 0xC0, 0xC2, 0xC3, 0xDF, 0xE0, 0xE6, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF};
  if (id < TOY_BYTE || id >= TOY_PIECES || n_states % 64 == 0) return true;
  return memchr(bytes, id - TOY_BYTE, sizeof bytes) != NULL;
}

static struct { int grammars, refused, nothing, gave_up, states, allowed, forced, interrupted; } seen;

/* What every continuation begins with, by the twin: one byte at a time, none if a token or an end may come. */
static void check_forced(struct twin *w, struct grammar_state *s) {
  struct buf out;
  int32_t id;
  int before = w->n_units;
  buf_init(&out, 0);
  grammar_forced(s, 6, &out, &id);
  assert_true(out.len <= 6);
  if (out.len) {
    assert_int_equal(id, -1);
    assert_int_equal(utf8_incomplete_tail(out.data, out.len), 0);
  }
  for (size_t i = 0; i < out.len && w->n_units < UNITS_MAX; i++) {
    for (int32_t t = 0; t < TOY_PIECES; t++) { /* controls and bytes */
      if (!worth_trying(t, seen.states)) continue;
      bool allows = twin_allows(w, t);
      if (!w->deep && allows != (t == TOY_BYTE + (unsigned char)out.data[i])) fail_msg("byte %d is not forced: %d", (int)i, (int)t);
    }
    twin_push(w, TOY_BYTE + (unsigned char)out.data[i]);
  }
  for (int32_t t = 0; id >= 0 && t < w->toy->t.vocab.n; t++) {
    bool allows = twin_allows(w, t);
    if (!w->deep && allows != (t == id)) fail_msg("token %d is not forced: %d", (int)id, (int)t);
  }
  seen.forced += (int)out.len + (id >= 0);
  w->n_units = before;
  w->text_number++;
  buf_free(&out);
}

static void check_state(struct twin *w, struct grammar_state *s, const char *where) {
  const uint32_t *mask = grammar_mask(s);
  int n_allowed = 0;
  bool may_end = twin_matches(w);
  for (int32_t id = 0; id < w->toy->t.vocab.n && !w->deep; id++) {
    if (!worth_trying(id, seen.states)) {
      n_allowed += toy_allows(mask, id);
      continue;
    }
    bool want = twin_allows(w, id);
    if (w->deep) return;
    n_allowed += want && id != TOY_EOS && id != TOY_END;
    if (toy_allows(mask, id) != want) {
      struct str p = tok_piece(&w->toy->t, id);
      fail_msg("%s, %d units: token %d \"%.*s\": expected %d", where, w->n_units, (int)id, (int)p.n, p.p, want);
    }
  }
  for (size_t id = (size_t)w->toy->t.vocab.n; id < 32 * grammar_mask_words(w->toy->t.vocab.n); id++)
    assert_false(toy_allows(mask, (int32_t)id));
  if (w->deep) return;
  assert_int_equal(grammar_may_end(s), may_end);
  assert_int_equal(grammar_must_end(s), may_end && !n_allowed);
  assert_true(may_end || n_allowed);
  seen.states++;
  seen.allowed += n_allowed;
  check_forced(w, s);
}

/* Calls that give up anywhere leave nothing behind that the twin would not agree with. */
static void interrupt(struct grammar *g, const struct grammar_state *s, int n_tokens, uint64_t *r) {
  struct grammar_state *t = grammar_state_copy(s);
  for (int i = 0; i < 6; i++) {
    struct buf out;
    int32_t id, token = test_rand_int(r, 0, n_tokens - 1);
    bool ends = grammar_may_end(s), masked = false;
    grammar_limit_work(g, (uint64_t)test_rand_int(r, 0, i < 3 ? 12 : 150));
    grammar_state_set(t, s);
    buf_init(&out, 0);
    if (i % 3 == 0) masked = grammar_mask(t) != NULL;
    else if (i % 3 == 1) grammar_accept(t, token);
    else grammar_forced(t, 6, &out, &id);
    if (i % 3 == 0) assert_int_equal(masked, !grammar_gave_up(t));
    if (grammar_gave_up(t)) {
      seen.interrupted++;
      assert_true(out.len == 0 && (i % 3 != 2 || id == -1) && grammar_may_end(t) == ends);
      grammar_limit_work(g, GRAMMAR_WORK_MAX);
      assert_null(grammar_mask(t)); /* once is enough */
      assert_false(grammar_accept(t, token));
    }
    buf_free(&out);
  }
  grammar_limit_work(g, GRAMMAR_WORK_MAX);
  grammar_state_delete(t);
}

/* One answer: allowed tokens at random. Copies go ahead and are set back; refused tokens change nothing. */
static void walk(struct twin *w, struct grammar *g, uint64_t *r, bool interrupted, const char *where) {
  struct grammar_state *s = grammar_state_new(g), *ahead = grammar_state_copy(s);
  int n_tokens = w->toy->t.vocab.n;
  w->n_units = 0;
  w->text_number++;
  for (int step = 0; step < 7; step++) {
    if (interrupted) interrupt(g, s, n_tokens, r);
    check_state(w, s, where);
    if (w->deep) break;
    int32_t allowed[1024];
    int n = 0;
    uint32_t *mask = xmalloc(grammar_mask_words(n_tokens) * sizeof *mask);
    memcpy(mask, grammar_mask(s), grammar_mask_words(n_tokens) * sizeof *mask);
    for (int32_t id = 0; id < n_tokens; id++)
      if (toy_allows(mask, id)) allowed[n++] = id;
    for (int i = 0; i < 20; i++) {
      int32_t id = test_rand_int(r, -1, n_tokens);
      bool allows = id >= 0 && id < n_tokens && toy_allows(mask, id);
      grammar_state_set(ahead, s);
      assert_int_equal(grammar_accept(ahead, id), allows);
      if (!allows) assert_memory_equal(grammar_mask(ahead), mask, grammar_mask_words(n_tokens) * sizeof *mask);
    }
    free(mask);
    int32_t id = allowed[test_rand_int(r, 0, n - 1)];
    for (int i = 0; i < 3 && (id < TOY_PIECES || id == TOY_EOS); i++) id = allowed[test_rand_int(r, 0, n - 1)];
    if (w->n_units + 8 > UNITS_MAX) break;
    assert_true(grammar_accept(s, id));
    if (id != TOY_EOS && id != TOY_END) twin_push(w, id);
  }
  grammar_state_delete(ahead);
  grammar_state_delete(s);
}

static void check_random(int n_grammars, uint64_t seed, bool small, bool interrupted) {
  static struct toy toy;
  static struct twin w;
  toy_init(&toy, pieces, ARRAY_LEN(pieces));
  struct grammar_vocab *v = grammar_vocab_new(&toy.t);
  for (int i = 0; i < n_grammars; i++) {
    uint64_t r = seed + (uint64_t)i;
    char where[64];
    struct err e = {0};
    snprintf(where, sizeof where, "grammar %d", (int)(seed + (uint64_t)i));
    struct grammar *g = grammar_compile(v, grow_grammar(&w, &toy, &r), &e);
    seen.grammars++;
    if (!g) {
      assert_int_equal(e.code, ERR_BAD_INPUT);
      if (strstr(e.msg, "left-recursive")) seen.refused++;
      else if (w.nodes[w.root].productive) fail_msg("%s: %s", where, e.msg);
      else seen.nothing++;
      continue;
    }
    assert_true(w.nodes[w.root].productive);
    if (small)
      grammar_limit(g, (size_t)test_rand_int(&r, 0, 1) * 4096, (size_t)test_rand_int(&r, 0, 2) * 100, (uint32_t)test_rand_int(&r, 0, 3));
    w.n_calls = 0;
    for (int k = 0; k < 3 && !w.deep; k++) walk(&w, g, &r, interrupted, where);
    seen.gave_up += w.deep;
    grammar_unref(g);
  }
  grammar_vocab_delete(v);
  vocab_free(&toy.t.vocab);
}

static void test_random(void **state) {
  (void)state;
  const char *n = getenv("CYGNET_TEST_GRAMMARS"), *seed = getenv("CYGNET_TEST_SEED");
  check_random(n ? atoi(n) : 400 / TEST_LESS, seed ? (uint64_t)atoll(seed) : 1000, false, false);
  print_message("grammars %d, left-recursive %d, matching nothing %d, too long for the twin %d; states %d, tokens allowed %d, forced %d\n",
                seen.grammars, seen.refused, seen.nothing, seen.gave_up, seen.states, seen.allowed, seen.forced);
  assert_true(seen.states > 1000 / TEST_LESS || n);
}

/* Caches so small that they are thrown away all the time, in the middle of walks, too. */
static void test_random_small_caches(void **state) {
  (void)state;
  const char *n = getenv("CYGNET_TEST_GRAMMARS");
  check_random(n ? atoi(n) : 150 / TEST_LESS, 500000, true, false);
}

/* Work that is given up at any place, with caches large and small. */
static void test_random_interrupted(void **state) {
  (void)state;
  const char *n = getenv("CYGNET_TEST_GRAMMARS");
  check_random(n ? atoi(n) : 150 / TEST_LESS, 700000, false, true);
  check_random(n ? atoi(n) : 80 / TEST_LESS, 800000, true, true);
  print_message("given up %d times\n", seen.interrupted);
  assert_true(seen.interrupted > 500 / TEST_LESS || n);
}

const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_random_small_caches),
                                   cmocka_unit_test(test_random_interrupted)};
TEST_MAIN(tests)
