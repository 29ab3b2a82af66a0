/* vocab.c — the piece table: one blob, one hash table, two tries. */
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tok_work.h"

/* Eight bytes at a time; only this process ever sees the values. */
uint32_t vocab_hash(const char *p, size_t n) {
  const uint64_t odd = 0x9e3779b97f4a7c15u;
  uint64_t h = n * odd, x;
  for (; n >= 8; p += 8, n -= 8) {
    memcpy(&x, p, 8);
    h = (h ^ x) * odd;
    h ^= h >> 29;
  }
  x = 0;
  for (size_t i = 0; i < n; i++) x |= (uint64_t)(unsigned char)p[i] << 8 * i;
  h = (h ^ x) * odd;
  h ^= h >> 32;
  return (uint32_t)(h * odd >> 32);
}

/* --- trie ------------------------------------------------------------------------------------------------------------------------ */

static int32_t trie_node_new(struct trie *t, unsigned char byte, int32_t sibling) {
  if (t->n == t->cap) {
    t->cap = t->cap ? 2 * t->cap : 64;
    t->nodes = xrealloc(t->nodes, (size_t)t->cap * sizeof *t->nodes);
  }
  t->nodes[t->n] = (struct trie_node){.id = -1, .child = -1, .sibling = sibling, .byte = byte};
  return t->n++;
}

static int32_t trie_child(const struct trie *t, int32_t node, unsigned char byte) {
  int32_t c = t->nodes[node].child;
  while (c >= 0 && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
  return c;
}

static void trie_add(struct trie *t, struct str spelling, int32_t id) {
  unsigned char first = (unsigned char)spelling.p[0];
  if (t->root[first] < 0) t->root[first] = trie_node_new(t, first, -1);
  int32_t at = t->root[first];
  for (size_t i = 1; i < spelling.n; i++) {
    unsigned char byte = (unsigned char)spelling.p[i];
    int32_t next = trie_child(t, at, byte);
    if (next < 0) {
      next = trie_node_new(t, byte, t->nodes[at].child);
      t->nodes[at].child = next;
    }
    at = next;
  }
  if (t->nodes[at].id < 0) t->nodes[at].id = id;
}

int32_t trie_longest(const struct trie *t, const char *p, size_t n, size_t *len) {
  int32_t best = -1, at = n ? t->root[(unsigned char)p[0]] : -1;
  for (size_t i = 1; at >= 0; i++) {
    TOK_WORK(1);
    if (t->nodes[at].id >= 0) {
      best = t->nodes[at].id;
      *len = i;
    }
    at = i < n ? trie_child(t, at, (unsigned char)p[i]) : -1;
  }
  return best;
}

/* --- building ---------------------------------------------------------------------------------------------------------------------- */

void vocab_init(struct vocab *v, enum vocab_style style, int n, size_t spelling_bytes) {
  memset(v, 0, sizeof *v);
  v->style = style;
  uint32_t slots = 16;
  while (slots < 2 * (uint32_t)n) slots *= 2;
  v->slot_mask = slots - 1;
  v->slots = xcalloc(slots, sizeof *v->slots);
  v->blob = xmalloc(spelling_bytes + 1);
  v->at = xmalloc(((size_t)n + 1) * sizeof *v->at);
  v->kind = xmalloc((size_t)n + 1);
  v->key = xmalloc(((size_t)n + 1) * sizeof *v->key);
  v->at[0] = 0;
  memset(v->byte_id, 0xff, sizeof v->byte_id);
  memset(v->user.root, 0xff, sizeof v->user.root);
  memset(v->control.root, 0xff, sizeof v->control.root);
}

void vocab_free(struct vocab *v) {
  free(v->blob);
  free(v->at);
  free(v->kind);
  free(v->key);
  free(v->slots);
  free(v->user.nodes);
  free(v->control.nodes);
  free(v->merges.slots);
  free(v->merges.made);
  vocab_merges_drop_pending(v);
  memset(v, 0, sizeof *v);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
int vocab_byte_spelling(struct str s) {
  if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>') return -1;
  int high = hex_digit(s.p[3]), low = hex_digit(s.p[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Copy with U+2581 turned into a blank. */
static size_t copy_text_form(char *to, struct str s) {
  size_t n = 0;
  for (size_t i = 0; i < s.n;) {
    if (s.n - i >= 3 && !memcmp(s.p + i, "\xE2\x96\x81", 3)) {
      to[n++] = ' ';
      i += 3;
    } else {
      to[n++] = s.p[i++];
    }
  }
  return n;
}

/* Spelling byte by byte: printable bytes of Latin-1 stand for themselves, the others for U+0100, U+0101, ... in order. -1 = stands for none. */
static int byte_of_character(uint32_t cp) {
  if ((cp > 0x20 && cp < 0x7F) || (cp > 0xA0 && cp < 0x100 && cp != 0xAD)) return (int)cp;
  uint32_t k = cp - 0x100;
  if (cp < 0x100 || k > 67) return -1;
  return k <= 0x20 ? (int)k : k < 67 ? (int)k - 0x21 + 0x7F : 0xAD;
}

bool vocab_normal_form(const struct vocab *v, struct str spelling, char *to, size_t *n) {
  if (v->style != VOCAB_BYTES) {
    *n = copy_text_form(to, spelling);
    return true;
  }
  *n = 0;
  for (size_t i = 0; i < spelling.n;) {
    uint32_t cp;
    i += (size_t)utf8_step(spelling.p + i, spelling.n - i, &cp, NULL);
    int byte = byte_of_character(cp);
    if (byte < 0) return false;
    to[(*n)++] = (char)byte;
  }
  return true;
}

static void note_joins_inside(struct vocab *v, struct str piece) {
  for (size_t i = 1; i < piece.n; i++)
    if (((unsigned char)piece.p[i] & 0xC0) != 0x80) vocab_note_join(v, piece.p[i - 1], piece.p[i]);
}

int vocab_push(struct vocab *v, struct str spelling, enum piece_kind kind, uint32_t key, const char *where, struct err *e) {
  char shown[64];
  int32_t id = v->n;
  if (spelling.n > VOCAB_PIECE_BYTES_MAX)
    return err_set(e, ERR_BAD_FILE, "%s: piece %d: expected at most %d bytes, found %zu", where, (int)id, VOCAB_PIECE_BYTES_MAX,
                   spelling.n);
  char *to = v->blob + v->at[id];
  size_t n = spelling.n;
  if (kind == PIECE_BYTE) {
    int byte = vocab_byte_spelling(spelling);
    if (byte < 0 || v->byte_id[byte] >= 0)
      return err_set(e, ERR_BAD_FILE, "%s: piece %d: expected a byte piece like <0x41> that occurs once, found %s", where, (int)id,
                     str_escape(spelling, shown, sizeof shown));
    v->byte_id[byte] = id;
    *to = (char)byte;
    n = 1;
  } else if (kind == PIECE_CONTROL || (kind != PIECE_NORMAL && v->style == VOCAB_BYTES)) {
    memcpy(to, spelling.p, n);
  } else if (!vocab_normal_form(v, spelling, to, &n)) {
    return err_set(e, ERR_BAD_FILE, "%s: piece %d: expected a spelling with one character for each byte, found %s", where, (int)id,
                   str_escape(spelling, shown, sizeof shown));
  }
  v->n++;
  v->at[id + 1] = v->at[id] + (uint32_t)n;
  v->kind[id] = (unsigned char)kind;
  v->key[id] = kind == PIECE_NORMAL ? key : VOCAB_NEVER;
  if (kind == PIECE_BYTE || !n) return 0;
  struct str piece = vocab_piece(v, id);
  if (kind == PIECE_USER) trie_add(&v->user, piece, id);
  if (kind == PIECE_CONTROL) trie_add(&v->control, piece, id);
  if (kind == PIECE_NORMAL) {
    if (v->style == VOCAB_BY_SCORE) note_joins_inside(v, piece);
    if (v->style == VOCAB_BYTES && n == 1 && v->byte_id[(unsigned char)*piece.p] < 0) v->byte_id[(unsigned char)*piece.p] = id;
    v->longest_bytes = MAX(v->longest_bytes, (uint32_t)n);
  }
  return 0;
}

static uint32_t slot_value(uint32_t hash, int32_t id) { return (uint32_t)(id + 1) | hash >> VOCAB_ID_BITS << VOCAB_ID_BITS; }
static int32_t slot_id(uint32_t slot) { return (int32_t)(slot & VOCAB_IDS_MAX) - 1; }
/* Different hashes show in the slot most of the time, so the piece itself need rarely be looked at. */
static bool slot_may_be(uint32_t slot, uint32_t hash) { return (slot ^ hash) >> VOCAB_ID_BITS == 0; }

/* Of two ids with one spelling the one that text may reach is found, then the lower one. */
static void slot_put(struct vocab *v, int32_t id, uint32_t hash) {
  struct str piece = vocab_piece(v, id);
  uint32_t i = hash & v->slot_mask;
  for (; v->slots[i]; i = (i + 1) & v->slot_mask) {
    int32_t other = slot_id(v->slots[i]);
    if (!slot_may_be(v->slots[i], hash) || !str_eq(vocab_piece(v, other), piece)) continue;
    if (v->kind[id] == PIECE_NORMAL && v->kind[other] != PIECE_NORMAL && v->kind[other] != PIECE_USER) v->slots[i] = slot_value(hash, id);
    return;
  }
  v->slots[i] = slot_value(hash, id);
}

/* The table is larger than the caches near the core: each slot is asked for a few pieces before it is needed. */
static void fill_slots(struct vocab *v) {
  enum { AHEAD = 16 };
  uint32_t hashes[AHEAD];
  for (int32_t i = 0; i < v->n + AHEAD; i++) {
    int32_t id = i - AHEAD;
    if (id >= 0 && v->kind[id] != PIECE_BYTE && v->at[id] < v->at[id + 1]) slot_put(v, id, hashes[id % AHEAD]);
    if (i >= v->n) continue;
    struct str piece = vocab_piece(v, i);
    hashes[i % AHEAD] = vocab_hash(piece.p, piece.n);
    __builtin_prefetch(&v->slots[hashes[i % AHEAD] & v->slot_mask], 1);
  }
}

int vocab_finish(struct vocab *v, const char *where, struct err *e) {
  for (int byte = 0; byte < 256; byte++)
    if (v->byte_id[byte] < 0) return err_set(e, ERR_BAD_FILE, "%s: expected 256 byte pieces, <0x%02X> is missing", where, (unsigned)byte);
  fill_slots(v);
  return 0;
}

/* --- looking up ---------------------------------------------------------------------------------------------------------------------- */

int32_t vocab_find_hashed(const struct vocab *v, uint32_t hash, const char *p, size_t n) {
  for (uint32_t i = hash & v->slot_mask; v->slots[i]; i = (i + 1) & v->slot_mask) {
    TOK_WORK(1 + n / 8);
    if (!slot_may_be(v->slots[i], hash)) continue;
    int32_t id = slot_id(v->slots[i]);
    struct str piece = vocab_piece(v, id);
    if (piece.n == n && !memcmp(piece.p, p, n)) return id;
  }
  return -1;
}

int32_t vocab_find(const struct vocab *v, const char *p, size_t n) { return vocab_find_hashed(v, vocab_hash(p, n), p, n); }

void vocab_find_ahead(const struct vocab *v, uint32_t hash, int stage) {
  const uint32_t *slot = &v->slots[hash & v->slot_mask];
  if (stage == 0) {
    __builtin_prefetch(slot);
    return;
  }
  int32_t id = slot_id(*slot);
  if (id < 0) return;
  if (stage == 1) {
    __builtin_prefetch(&v->at[id]);
    __builtin_prefetch(&v->kind[id]);
  } else {
    __builtin_prefetch(v->blob + v->at[id]);
  }
}

int32_t vocab_find_normal(const struct vocab *v, const char *p, size_t n) {
  if (n > v->longest_bytes) return -1;
  int32_t id = vocab_find(v, p, n);
  return id >= 0 && v->kind[id] == PIECE_NORMAL ? id : -1;
}
