/* grammar_vocab.c — the ordinary pieces of a vocabulary as a trie over their bytes.
 *
 * Pieces are sorted by their bytes, so the trie comes out in depth-first order and a walk is one pass over an array that jumps over what is dead.
 * Control tokens, ends of generation, pieces that no text reaches and empty ones are not in it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"
#include "text/vocab.h"

struct piece {
  uint64_t head; /* the first eight bytes, as a number that sorts like them */
  const unsigned char *p;
  uint32_t n;
  int32_t id;
};

static uint64_t head_of(const unsigned char *p, size_t n) {
  uint64_t head = 0;
  for (size_t i = 0; i < 8; i++) head = head << 8 | (i < n ? p[i] : 0);
  return head;
}

static int by_bytes(const void *a, const void *b) {
  const struct piece *x = a, *y = b;
  if (x->head != y->head) return x->head < y->head ? -1 : 1;
  int order = memcmp(x->p, y->p, MIN(x->n, y->n));
  if (order) return order;
  if (x->n != y->n) return x->n < y->n ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

bool grammar_vocab_is_eog(const struct grammar_vocab *v, int32_t id) {
  int n;
  const int32_t *eog = tok_eog(v->tokenizer, &n);
  for (int i = 0; i < n; i++)
    if (eog[i] == id) return true;
  return false;
}

static int pieces_collect(const struct grammar_vocab *v, struct piece *pieces) {
  int n = 0;
  for (int32_t id = 0; id < v->n_tokens; id++) {
    enum piece_kind kind = (enum piece_kind)v->tokenizer->vocab.kind[id];
    struct str s = tok_piece(v->tokenizer, id);
    if (kind == PIECE_CONTROL || kind == PIECE_UNUSED || !s.n || s.n >= UINT16_MAX || grammar_vocab_is_eog(v, id)) continue;
    const unsigned char *p = (const unsigned char *)s.p;
    pieces[n++] = (struct piece){.head = head_of(p, s.n), .p = p, .n = (uint32_t)s.n, .id = id};
  }
  qsort(pieces, (size_t)n, sizeof *pieces, by_bytes);
  return n;
}

/* open: for each depth the node that is being filled. */
static void trie_build(struct grammar_vocab *v, const struct piece *pieces, int n) {
  uint32_t cap = 1024, *open = xmalloc(((size_t)v->longest + 1) * sizeof *open), depth = 0;
  v->nodes = xmalloc(cap * sizeof *v->nodes);
  for (int i = 0; i < n; i++) {
    const struct piece *piece = &pieces[i];
    uint32_t common = 0, most = i ? MIN(piece->n, pieces[i - 1].n) : 0;
    while (common < most && piece->p[common] == pieces[i - 1].p[common]) common++;
    for (; depth > common; depth--) v->nodes[open[depth]].end = v->n_nodes;
    for (; depth < piece->n; depth++) {
      if (v->n_nodes == cap) v->nodes = xrealloc(v->nodes, (cap *= 2) * sizeof *v->nodes);
      open[depth + 1] = v->n_nodes;
      v->nodes[v->n_nodes++] = (struct vocab_node){.token = v->no_token, .depth = (uint16_t)(depth + 1), .byte = piece->p[depth]};
    }
    struct vocab_node *node = &v->nodes[open[depth]];
    v->in_trie[piece->id] = true;
    if (node->token != v->no_token) v->same[piece->id] = (int32_t)node->token;
    node->more = node->token != v->no_token;
    node->token = (uint32_t)piece->id;
    if (piece->n == 1) v->has_byte[piece->p[0]] = true;
  }
  for (; depth > 0; depth--) v->nodes[open[depth]].end = v->n_nodes;
  free(open);
}

struct grammar_vocab *grammar_vocab_new(const struct tokenizer *t) {
  struct grammar_vocab *v = xcalloc(1, sizeof *v);
  v->tokenizer = t;
  v->n_tokens = tok_vocab(t);
  v->n_words = grammar_mask_words(v->n_tokens);
  v->no_token = (uint32_t)(32 * v->n_words);
  v->same = xmalloc(((size_t)v->n_tokens + 1) * sizeof *v->same);
  v->in_trie = xcalloc((size_t)v->n_tokens + 1, sizeof *v->in_trie);
  v->any_token = xcalloc(v->n_words + 1, sizeof *v->any_token);
  for (int32_t id = 0; id < v->n_tokens; id++) {
    v->same[id] = -1;
    if (!grammar_vocab_is_eog(v, id)) mask_set(v->any_token, id);
  }
  struct piece *pieces = xmalloc(((size_t)v->n_tokens + 1) * sizeof *pieces);
  int n = pieces_collect(v, pieces);
  for (int i = 0; i < n; i++) v->longest = MAX(v->longest, pieces[i].n);
  trie_build(v, pieces, n);
  free(pieces);
  return v;
}

void grammar_vocab_delete(struct grammar_vocab *v) {
  if (!v) return;
  free(v->nodes);
  free(v->in_trie);
  free(v->same);
  free(v->any_token);
  free(v);
}
