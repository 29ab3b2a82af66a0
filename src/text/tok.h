/* tok.h — text to token ids and back.
 *
 * One struct tokenizer for every family; what differs is a vocabulary, a merge key (score or rank) and which spellings are frozen.
 *
 *   text ──► [control spellings → ids, only when asked] ──► segments ──► family: blanks → U+2581, user-defined pieces frozen
 *        ──► symbols in a linked list ──► heap of adjacent pairs, best key first, leftmost on ties ──► ids, bytes for what is unknown
 *
 * Rules
 *   1. User text never becomes a control token: with special = false no id of the control set can come out, whatever the
 *      text spells. What is control is decided by the family's own table (tok_family.c), never by a file's token types.
 *   2. Time is O(n log n) and stack use constant for any input. Working memory is one buffer that grows with n and 64 KiB for long texts.
 *   3. Bytes that are not UTF-8: each maximal ill-formed subpart becomes U+FFFD first.
 *   4. bos = true gives exactly one BOS in front, also when the ids already begin with it.
 *   5. A tokenizer is immutable after opening and may be used from many threads.
 *
 * Algorithms: SentencePiece BPE by score with byte fallback (Gemma 3); BPE by rank of merges with byte fallback (Gemma 4); pre-split words, then BPE
 * by rank over bytes (Llama 3, pretok.c).
 */
#ifndef CYGNET_TOK_H
#define CYGNET_TOK_H

#include "base/base.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "files/gguf.h"

enum tok_family { TOK_GEMMA3, TOK_GEMMA4, TOK_LLAMA3 };

struct tokenizer;

struct tok_ids { /* growable list of ids; zeroed is empty */
  int32_t *v;
  size_t n, cap;
};
void tok_ids_push(struct tok_ids *ids, int32_t id);
void tok_ids_free(struct tok_ids *ids);

/* From a GGUF's metadata (borrows nothing after the call: g may be closed). Returns owned. */
struct tokenizer *tok_from_gguf(const struct gguf *g, struct err *e);
/* From tokenizer.json (its text); where names it in messages. */
struct tokenizer *tok_from_json(const char *json, size_t n, const char *where, struct err *e);
/* What a model path offers: GGUF metadata (any part of a split set), or tokenizer.json in the folder or beside the .safetensors file. */
struct tokenizer *tok_open(const char *model_path, struct err *e);
void tok_close(struct tokenizer *t);
/* For a model that comes without a vocabulary: ids stand as "[17]", there is no BOS and no end, and no text has ids (tok_encode gives
 * none). */
struct tokenizer *tok_blank(int n_ids);
bool tok_is_blank(const struct tokenizer *t);

/* Append the ids of text to out. text.n <= TOK_TEXT_BYTES_MAX; working memory is about 48 bytes per byte of the longest stretch without a
 * possible word border (vocab.h), so callers bound what they accept. */
enum { TOK_TEXT_BYTES_MAX = 1 << 27 };
void tok_encode(const struct tokenizer *t, struct str text, bool special, bool bos, struct tok_ids *out);

enum tok_family tok_family(const struct tokenizer *t);
int tok_vocab(const struct tokenizer *t); /* number of ids; a model may have more rows */
bool tok_is_control(const struct tokenizer *t, int32_t id);
int32_t tok_bos(const struct tokenizer *t);                /* -1 = none */
const int32_t *tok_eog(const struct tokenizer *t, int *n); /* end-of-generation ids of the family: Gemma 3: 1, 106 */
/* Text of the chat template that came with it: tokenizer.chat_template, chat_template.jinja or tokenizer_config.json beside it; empty = none. */
struct str tok_chat_template(const struct tokenizer *t);
int32_t tok_find(const struct tokenizer *t, const char *spelling); /* control or ordinary piece by its spelling; -1 = none */

/* Bytes of one id as they stand in text: U+2581 is a blank, a byte piece its byte, a control token its spelling.
 * borrows; ids outside the vocabulary give an empty slice. */
struct str tok_piece(const struct tokenizer *t, int32_t id);
/* All ids as text; control tokens by their spelling, or left out with skip_special. Ill-formed UTF-8 becomes U+FFFD, as in detok.h. */
void tok_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out);

#endif
