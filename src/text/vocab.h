/* vocab.h — the pieces of a tokenizer, as the files of this room share them.
 *
 * All pieces lie in one blob in the form in which they stand in text: U+2581 is already a blank and a byte piece is its byte; pieces spelled
 * byte by byte (Llama 3: "\u0120the" is " the") are those bytes. Text of the Gemmas gets the same treatment before it is matched (a literal U+2581
 * becomes a blank), so nothing is translated back and forth and decoding is copying. Control pieces keep their exact spelling.
 *
 *   spelling ──► hash ──► id            open addressing, at most half full; byte pieces are not in it
 *   id ──► blob[at[id] .. at[id + 1])   kind[id]   key[id] = when this piece may be merged: low first, VOCAB_NEVER = not at all
 *
 * Two ways to merge. By score: two neighbours merge if together they are a normal piece, its key says when. By rank: if their pair is in the list
 * of merges, its place there says when. Either way only normal pieces take part, so merging can yield neither control nor byte nor
 * user-defined pieces.
 *
 * Merges lie in a hash table with 64 bits a slot: left id, right id, rank + 1 (0 = free); made[rank] is the piece they make.
 *
 * Word borders: joins holds one bit for each pair (last byte of one symbol, first byte of the next) where some merge may happen: by score those
 * inside some normal piece, by rank those between the two sides of some merge. Where the bit is clear no merge can ever cross, so the text on
 * both sides is encoded apart: the result is the same, the heaps are small.
 */
#ifndef CYGNET_VOCAB_H
#define CYGNET_VOCAB_H

#include "text/tok.h"

enum { VOCAB_ID_BITS = 22, VOCAB_IDS_MAX = (1 << VOCAB_ID_BITS) - 1, VOCAB_PIECE_BYTES_MAX = 1 << 16 };
enum { VOCAB_RANK_BITS = 64 - 2 * VOCAB_ID_BITS, VOCAB_MERGES_MAX = (1 << VOCAB_RANK_BITS) - 1 };
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

enum vocab_style {
  VOCAB_BY_SCORE, /* blanks are U+2581, byte pieces are <0x41> */
  VOCAB_BY_RANK,  /* the same, with a list of merges */
  VOCAB_BYTES     /* normal pieces are spelled byte by byte, each byte has one; with a list of merges */
};

struct vocab_merges {
  uint64_t *slots;
  uint64_t mask;
  int32_t *made;                 /* by rank */
  struct vocab_pending *pending; /* while they are pushed */
};

struct vocab {
  enum vocab_style style;
  int n;               /* ids */
  char *blob;          /* owned, like all below */
  uint32_t *at;        /* [n + 1] */
  unsigned char *kind; /* [n], enum piece_kind */
  uint32_t *key;       /* [n] */
  uint32_t *slots;     /* 0 = free, else (id + 1) | some bits of the hash above VOCAB_ID_BITS */
  uint32_t slot_mask;
  uint32_t longest_bytes; /* of a normal piece */
  int32_t byte_id[256];
  struct vocab_merges merges; /* by rank */
  uint64_t joins[256][4];
  struct trie user, control;
};

/* Life: init with the number of ids and the sum of the spellings' bytes, push every id in order, finish; only then look up, and push the merges,
 * first one first, and finish them. On failure of any, and at the end, vocab_free. `where` stands in front of messages. */
void vocab_init(struct vocab *v, enum vocab_style style, int n, size_t spelling_bytes);
int vocab_push(struct vocab *v, struct str spelling, enum piece_kind kind, uint32_t key, const char *where, struct err *e);
int vocab_finish(struct vocab *v, const char *where, struct err *e);
/* n <= VOCAB_MERGES_MAX merges are going to be pushed. One whose pieces are known but not all normal is passed over. By score, a merge
 * only gives the piece it makes its key, unless an earlier one did. */
void vocab_merges_begin(struct vocab *v, size_t n);
/* "left right": at the first blank that is not the very first byte. */
bool vocab_merge_split(struct str merge, struct str *left, struct str *right);
int vocab_merge_push(struct vocab *v, struct str left, struct str right, const char *where, struct err *e);
int vocab_merges_finish(struct vocab *v, const char *where, struct err *e);
void vocab_merges_drop_pending(struct vocab *v);
void vocab_free(struct vocab *v); /* fine on a zeroed one */

/* "<0x41>" -> 0x41, or -1. */
int vocab_byte_spelling(struct str spelling);

static inline struct str vocab_piece(const struct vocab *v, int32_t id) { return str_of(v->blob + v->at[id], v->at[id + 1] - v->at[id]); }
static inline bool vocab_joins(const struct vocab *v, unsigned char last, unsigned char first) {
  return v->joins[last][first >> 6] >> (first & 63) & 1;
}
static inline void vocab_note_join(struct vocab *v, char last, char first) {
  unsigned char a = (unsigned char)last, b = (unsigned char)first;
  v->joins[a][b >> 6] |= (uint64_t)1 << (b & 63);
}

/* Bytes of a normal piece as it stands in text, at most as many as it is spelled with. False: not a spelling of this vocabulary's style. */
bool vocab_normal_form(const struct vocab *v, struct str spelling, char *to, size_t *n);
/* Any but a byte piece, in text form; -1 = none. */
int32_t vocab_find(const struct vocab *v, const char *p, size_t n);
/* The same in steps, for many at a time: hash, ask for the memory in stages 0, 1, 2, find. */
uint32_t vocab_hash(const char *p, size_t n);
void vocab_find_ahead(const struct vocab *v, uint32_t hash, int stage);
int32_t vocab_find_hashed(const struct vocab *v, uint32_t hash, const char *p, size_t n);
/* A normal piece only. */
int32_t vocab_find_normal(const struct vocab *v, const char *p, size_t n);

/* Id of the longest spelling that text starts with and its length, or -1. */
int32_t trie_longest(const struct trie *t, const char *p, size_t n, size_t *len);

static inline uint64_t vocab_pair(int32_t left, int32_t right) { return (uint64_t)left << VOCAB_ID_BITS | (uint64_t)right; }
/* Only this process ever sees the values. */
static inline uint64_t vocab_pair_hash(uint64_t pair) {
  pair *= 0x9e3779b97f4a7c15u;
  return pair >> 40 ^ pair >> 20;
}

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
int32_t bpe_merge_by_rank(const struct vocab *v, int32_t left, int32_t right, const char *joined, size_t n, uint32_t *key);

struct bpe_work { /* working memory of one call of tok_encode; zeroed is empty */
  void *memory;
  size_t cap_symbols;
};
/* One word of well-formed UTF-8: its characters (VOCAB_BYTES: its bytes), merged best key first, leftmost among equals, until nothing merges. */
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
  char *chat_template; /* owned; NULL = none */
  size_t chat_template_bytes;
  bool blank; /* tok_blank */
};
/* --- tok_load.c, tok_json.c --------------------------------------------------------------------------------------------------- */

/* Life of a tokenizer while it is read: tok_new, vocab_push each piece, tok_finish_pieces, merges, template. */
struct tokenizer *tok_new(enum tok_family family, int n_ids, size_t spelling_bytes);
int tok_finish_pieces(struct tokenizer *t, const char *where, struct err *e);
int tok_set_template(struct tokenizer *t, struct str text, const char *where, struct err *e); /* copies */
/* As tok_from_json; family: which it is if the pieces do not say. */
struct tokenizer *tok_read_json(const char *json, size_t n, enum tok_family family, const char *where, struct err *e);

/* Append p with U+FFFD for each maximal ill-formed subpart. */
void tok_clean_utf8(struct buf *out, const char *p, size_t n);

#endif
