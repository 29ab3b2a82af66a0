/* vocab.h — the pieces of a tokenizer, as the files of this room share them.
 *
 * All pieces lie in one blob in the form in which they stand in text: U+2581 is already a blank and a byte piece is its byte. Text gets
 * the same treatment before it is matched (a literal U+2581 becomes a blank), so nothing is translated back and forth and
 * decoding is copying. Control pieces keep their exact spelling.
 *
 *   spelling ──► hash ──► id            open addressing, at most half full; byte pieces are not in it
 *   id ──► blob[at[id] .. at[id + 1])   kind[id]   key[id] = when this piece may be merged: low first, VOCAB_NEVER = not at all
 *
 * Only normal pieces have a key, so merging can yield neither control nor byte nor user-defined pieces.
 *
 * Word borders: joins holds one bit for each pair (last byte of a character, first byte of the next) that occurs inside some
 * normal piece. Where the bit is clear no merge can ever cross, so the text on both sides is encoded apart: the result is
 * the same, the heaps are small.
 */
#ifndef CYGNET_VOCAB_H
#define CYGNET_VOCAB_H

#include "text/tok.h"

enum { VOCAB_ID_BITS = 22, VOCAB_IDS_MAX = (1 << VOCAB_ID_BITS) - 1, VOCAB_PIECE_BYTES_MAX = 1 << 16 };
#define VOCAB_NEVER UINT32_MAX

enum piece_kind {
  PIECE_NORMAL,  /* reached by merging */
  PIECE_USER,    /* matched in any text before merging, never merges with its neighbours */
  PIECE_CONTROL, /* never reached by user text */
  PIECE_BYTE,    /* what a character without a piece falls back to */
  PIECE_UNUSED   /* has an id and a spelling, no text reaches it */
};

/* Longest match of a set of spellings, byte by byte. Roots are indexed by byte, further children are lists of siblings. */
struct trie_node {
  int32_t id; /* of the spelling that ends here, or -1 */
  int32_t child, sibling;
  unsigned char byte;
};
struct trie {
  struct trie_node *nodes;
  int n, cap;
  int32_t root[256]; /* node or -1 */
};

struct vocab {
  int n;               /* ids */
  char *blob;          /* owned, like all below */
  uint32_t *at;        /* [n + 1] */
  unsigned char *kind; /* [n], enum piece_kind */
  uint32_t *key;       /* [n] */
  uint32_t *slots;     /* 0 = free, else (id + 1) | some bits of the hash above VOCAB_ID_BITS */
  uint32_t slot_mask;
  uint32_t longest_bytes; /* of a normal piece */
  int32_t byte_id[256];
  uint64_t joins[256][4];
  struct trie user, control;
};

/* Life: init with the number of ids and the sum of the spellings' bytes, push every id in order, finish; only then look up. On failure of
 * any, and at the end, vocab_free. `where` stands in front of messages. */
void vocab_init(struct vocab *v, int n, size_t spelling_bytes);
int vocab_push(struct vocab *v, struct str spelling, enum piece_kind kind, uint32_t key, const char *where, struct err *e);
int vocab_finish(struct vocab *v, const char *where, struct err *e);
void vocab_free(struct vocab *v); /* fine on a zeroed one */

/* "<0x41>" -> 0x41, or -1. */
int vocab_byte_spelling(struct str spelling);

static inline struct str vocab_piece(const struct vocab *v, int32_t id) { return str_of(v->blob + v->at[id], v->at[id + 1] - v->at[id]); }
static inline bool vocab_joins(const struct vocab *v, unsigned char last, unsigned char first) {
  return v->joins[last][first >> 6] >> (first & 63) & 1;
}
/* Any but a byte piece, in text form; -1 = none. */
int32_t vocab_find(const struct vocab *v, const char *p, size_t n);
/* A normal piece only. */
int32_t vocab_find_normal(const struct vocab *v, const char *p, size_t n);

/* Id of the longest spelling that text starts with and its length, or -1. */
int32_t trie_longest(const struct trie *t, const char *p, size_t n, size_t *len);

/* --- tok_family.c: what a family fixes, whatever its files say ---------------------------------------------------------------- */

struct family_info {
  const char *name; /* "Gemma 3" */
  const char *bos;
  const char *eog[4]; /* spellings, NULL terminated */
};
const struct family_info *family_info(enum tok_family f);
/* What a piece is: the family's tables first, then what the file says. */
enum piece_kind family_piece_kind(enum tok_family f, struct str spelling, enum piece_kind in_file);

/* --- bpe.c --------------------------------------------------------------------------------------------------------------------- */

/* The piece that two neighbours merge into, -1 = none, and when (low first). joined = bytes of both. */
typedef int32_t (*bpe_merge_fn)(const struct vocab *v, int32_t left, int32_t right, const char *joined, size_t n, uint32_t *key);
int32_t bpe_merge_by_score(const struct vocab *v, int32_t left, int32_t right, const char *joined, size_t n, uint32_t *key);

struct bpe_work { /* working memory of one call of tok_encode; zeroed is empty */
  void *memory;
  size_t cap_symbols;
};
/* One word of well-formed UTF-8: characters, merged best key first, leftmost among equals, until nothing merges. */
void bpe_word(const struct vocab *v, bpe_merge_fn merge, const char *word, size_t n, struct bpe_work *w, struct tok_ids *out);
void bpe_work_free(struct bpe_work *w);

/* --- tok.c ---------------------------------------------------------------------------------------------------------------------- */

struct tokenizer {
  enum tok_family family;
  struct vocab vocab;
  bpe_merge_fn merge;
  int32_t bos; /* -1 = none */
  int32_t eog[4];
  int n_eog;
};
/* Append p with U+FFFD for each maximal ill-formed subpart. */
void tok_clean_utf8(struct buf *out, const char *p, size_t n);

#endif
