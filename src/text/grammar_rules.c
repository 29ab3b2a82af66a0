/* grammar_rules.c — the nodes of a grammar that is being written down.
 *
 * A node is found again by its contents, so equal parts are one node whoever wrote them; the compiler shares what is used often. Children are older
 * than their parents, rules excepted, which are defined later. After an error every constructor gives RULES_NEVER's node.
 */
#include "text/grammar_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

enum { NODE_EMPTY = 0, NODE_NEVER = 1, PARTS_MAX = 1 << 24 /* of ints, of bytes */ };

static int node_intern(struct grammar_rules *g, struct rules_node node, const void *parts);

struct grammar_rules *grammar_rules_new(void) {
  struct grammar_rules *g = xcalloc(1, sizeof *g);
  g->root = -1;
  g->n_slots = 64;
  g->slots = xmalloc((size_t)g->n_slots * sizeof *g->slots);
  memset(g->slots, 0xff, (size_t)g->n_slots * sizeof *g->slots);
  node_intern(g, (struct rules_node){.kind = RULES_EMPTY}, NULL);
  node_intern(g, (struct rules_node){.kind = RULES_NEVER}, NULL);
  return g;
}

void grammar_rules_delete(struct grammar_rules *g) {
  if (!g) return;
  free(g->nodes);
  free(g->ints);
  free(g->bytes);
  free(g->slots);
  free(g);
}

void rules_fail(struct grammar_rules *g, const char *fmt, ...) {
  if (g->error.code) return;
  char msg[sizeof g->error.msg];
  va_list args;
  va_start(args, fmt);
  vsnprintf(msg, sizeof msg, fmt, args);
  va_end(args);
  err_set(&g->error, ERR_BAD_INPUT, "%s", msg);
}

int rules_error(const struct grammar_rules *g, struct err *e) {
  if (!g->error.code) return 0;
  if (e) *e = g->error;
  return -1;
}

/* --- nodes by their contents ---------------------------------------------------------------------------------------------------------- */

static size_t part_bytes(enum rules_kind kind) { return kind == RULES_TEXT || kind == RULES_RULE ? 1 : sizeof(int32_t); }

static const void *node_parts(const struct grammar_rules *g, const struct rules_node *node) {
  if (!node->n) return NULL;
  return part_bytes(node->kind) == 1 ? (const void *)(g->bytes + node->at) : (const void *)(g->ints + node->at);
}

static bool node_equal(const struct grammar_rules *g, const struct rules_node *a, const struct rules_node *b, const void *parts) {
  return a->hash == b->hash && a->kind == b->kind && a->a == b->a && a->b == b->b && a->c == b->c && a->n == b->n &&
         (!a->n || !memcmp(node_parts(g, a), parts, a->n * part_bytes(a->kind)));
}

static void slots_grow(struct grammar_rules *g) {
  g->n_slots *= 2;
  g->slots = xrealloc(g->slots, (size_t)g->n_slots * sizeof *g->slots);
  memset(g->slots, 0xff, (size_t)g->n_slots * sizeof *g->slots);
  uint32_t mask = (uint32_t)g->n_slots - 1;
  for (int i = 0; i < g->n_nodes; i++) {
    if (g->nodes[i].kind == RULES_RULE) continue; /* never looked for */
    uint32_t slot = g->nodes[i].hash & mask;
    while (g->slots[slot] >= 0) slot = (slot + 1) & mask;
    g->slots[slot] = i;
  }
}

/* Copy the parts in; false when they do not fit. */
static bool parts_push(struct grammar_rules *g, struct rules_node *node, const void *parts) {
  if (!node->n) return true;
  bool text = part_bytes(node->kind) == 1;
  uint32_t used = text ? g->n_bytes : g->n_ints, cap = text ? g->cap_bytes : g->cap_ints;
  if (node->n > PARTS_MAX - used) return false;
  if (used + node->n > cap) {
    cap = MAX(2 * cap, used + node->n + 64);
    if (text) g->bytes = xrealloc(g->bytes, g->cap_bytes = cap);
    else g->ints = xrealloc(g->ints, (g->cap_ints = cap) * sizeof *g->ints);
  }
  node->at = used;
  if (text) {
    memcpy(g->bytes + used, parts, node->n);
    g->n_bytes += node->n;
  } else {
    memcpy(g->ints + used, parts, node->n * sizeof *g->ints);
    g->n_ints += node->n;
  }
  return true;
}

static int node_push(struct grammar_rules *g, struct rules_node node, const void *parts) {
  if (g->n_nodes >= RULES_NODES_MAX || !parts_push(g, &node, parts)) {
    rules_fail(g, "the grammar is too large: more than %d nodes or %d characters", RULES_NODES_MAX, PARTS_MAX);
    return NODE_NEVER;
  }
  if (g->n_nodes == g->cap_nodes) {
    g->cap_nodes = g->cap_nodes ? 2 * g->cap_nodes : 64;
    g->nodes = xrealloc(g->nodes, (size_t)g->cap_nodes * sizeof *g->nodes);
  }
  g->nodes[g->n_nodes] = node;
  return g->n_nodes++;
}

static int node_intern(struct grammar_rules *g, struct rules_node node, const void *parts) {
  if (g->error.code) return NODE_NEVER;
  int32_t head[5] = {(int32_t)node.kind, node.a, node.b, node.c, (int32_t)node.n};
  uint64_t hash = hash_bytes(head, sizeof head, 0);
  if (node.n) hash = hash_bytes(parts, node.n * part_bytes(node.kind), hash);
  node.hash = (uint32_t)(hash ^ hash >> 32);
  if (2 * (g->n_nodes + 1) > g->n_slots) slots_grow(g);
  uint32_t mask = (uint32_t)g->n_slots - 1, slot = node.hash & mask;
  for (; g->slots[slot] >= 0; slot = (slot + 1) & mask)
    if (node_equal(g, &g->nodes[g->slots[slot]], &node, parts)) return g->slots[slot];
  int id = node_push(g, node, parts);
  if (id != NODE_NEVER || node.kind == RULES_NEVER) g->slots[slot] = id;
  return id;
}

static bool nodes_known(struct grammar_rules *g, const int *nodes, int n) {
  for (int i = 0; i < n; i++)
    if (nodes[i] < 0 || nodes[i] >= g->n_nodes) {
      rules_fail(g, "node %d does not exist", nodes[i]);
      return false;
    }
  return true;
}

/* --- characters ------------------------------------------------------------------------------------------------------------------------ */

int rules_empty(struct grammar_rules *g) {
  (void)g;
  return NODE_EMPTY;
}
int rules_never(struct grammar_rules *g) {
  (void)g;
  return NODE_NEVER;
}

int rules_text(struct grammar_rules *g, const char *text) { return rules_text_n(g, text, strlen(text)); }

int rules_text_n(struct grammar_rules *g, const char *text, size_t n) {
  if (!n) return NODE_EMPTY;
  if (n > PARTS_MAX || !utf8_valid(text, n)) {
    rules_fail(g, n > PARTS_MAX ? "a text of more than %d bytes" : "a text is not UTF-8", PARTS_MAX);
    return NODE_NEVER;
  }
  return node_intern(g, (struct rules_node){.kind = RULES_TEXT, .n = (uint32_t)n}, text);
}

static int by_lo(const void *a, const void *b) {
  uint32_t x = ((const struct rules_range *)a)->lo, y = ((const struct rules_range *)b)->lo;
  return x < y ? -1 : x > y;
}

/* Append lo..hi without the surrogates. */
static int range_put(int32_t *out, int n, uint32_t lo, uint32_t hi) {
  if (lo < 0xD800 && hi > 0xDFFF) {
    n = range_put(out, n, lo, 0xD7FF);
    return range_put(out, n, 0xE000, hi);
  }
  if (lo >= 0xD800 && lo <= 0xDFFF) lo = 0xE000;
  if (hi >= 0xD800 && hi <= 0xDFFF) hi = 0xD7FF;
  if (lo > hi) return n;
  out[n++] = (int32_t)lo;
  out[n++] = (int32_t)hi;
  return n;
}

int rules_class(struct grammar_rules *g, const struct rules_range *ranges, int n, bool negated) {
  if (n < 0 || n > PARTS_MAX / 8) {
    rules_fail(g, "a class of %d ranges", n);
    return NODE_NEVER;
  }
  for (int i = 0; i < n; i++)
    if (ranges[i].lo > ranges[i].hi || ranges[i].hi > 0x10FFFF) {
      rules_fail(g, "a class: %#x..%#x is no range of characters", (unsigned)ranges[i].lo, (unsigned)ranges[i].hi);
      return NODE_NEVER;
    }
  struct rules_range *sorted = xmalloc(((size_t)n + 1) * sizeof *sorted);
  int32_t *out = xmalloc((4 * (size_t)n + 8) * sizeof *out);
  if (n) memcpy(sorted, ranges, (size_t)n * sizeof *sorted);
  qsort(sorted, (size_t)n, sizeof *sorted, by_lo);
  int n_merged = 0, n_out = 0;
  for (int i = 0; i < n; i++) {
    if (n_merged && sorted[i].lo <= sorted[n_merged - 1].hi + 1) sorted[n_merged - 1].hi = MAX(sorted[n_merged - 1].hi, sorted[i].hi);
    else sorted[n_merged++] = sorted[i];
  }
  uint32_t next = 0; /* first code point behind the ranges so far */
  for (int i = 0; i < n_merged; i++) {
    if (!negated) n_out = range_put(out, n_out, sorted[i].lo, sorted[i].hi);
    else if (sorted[i].lo > next) n_out = range_put(out, n_out, next, sorted[i].lo - 1);
    next = sorted[i].hi + 1;
  }
  if (negated && next <= 0x10FFFF) n_out = range_put(out, n_out, next, 0x10FFFF);
  int id = n_out ? node_intern(g, (struct rules_node){.kind = RULES_CLASS, .n = (uint32_t)n_out}, out) : NODE_NEVER;
  free(sorted);
  free(out);
  return id;
}

int rules_any(struct grammar_rules *g) { return rules_class(g, NULL, 0, true); }

/* --- combinations ------------------------------------------------------------------------------------------------------------------------ */

int rules_seq(struct grammar_rules *g, const int *nodes, int n) {
  if (n < 0 || !nodes_known(g, nodes, n)) return NODE_NEVER;
  int32_t *kept = xmalloc(((size_t)n + 1) * sizeof *kept);
  uint32_t n_kept = 0;
  int id = -1;
  for (int i = 0; i < n; i++) {
    if (nodes[i] == NODE_NEVER) id = NODE_NEVER;
    if (nodes[i] != NODE_EMPTY) kept[n_kept++] = nodes[i];
  }
  if (id < 0 && n_kept < 2) id = n_kept ? kept[0] : NODE_EMPTY;
  if (id < 0) id = node_intern(g, (struct rules_node){.kind = RULES_SEQ, .n = n_kept}, kept);
  free(kept);
  return id;
}

int rules_seq2(struct grammar_rules *g, int a, int b) { return rules_seq(g, (int[]){a, b}, 2); }

static int by_value(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

static uint32_t sort_unique(int32_t *v, uint32_t n) {
  uint32_t kept = 0;
  qsort(v, n, sizeof *v, by_value);
  for (uint32_t i = 0; i < n; i++)
    if (!kept || v[kept - 1] != v[i]) v[kept++] = v[i];
  return kept;
}

int rules_alt(struct grammar_rules *g, const int *nodes, int n) {
  if (n < 0 || !nodes_known(g, nodes, n)) return NODE_NEVER;
  int32_t *kept = xmalloc(((size_t)n + 1) * sizeof *kept);
  uint32_t n_kept = 0;
  for (int i = 0; i < n; i++)
    if (nodes[i] != NODE_NEVER) kept[n_kept++] = nodes[i];
  n_kept = sort_unique(kept, n_kept);
  int id;
  if (n_kept < 2) id = n_kept ? kept[0] : NODE_NEVER;
  else id = node_intern(g, (struct rules_node){.kind = RULES_ALT, .n = n_kept}, kept);
  free(kept);
  return id;
}

/* (a{p,q}){min,max} is a{..} again when p <= 1: the counts that sums of min..max numbers of p..q reach have no gaps. */
static bool repeat_merge(const struct rules_node *inner, int *min, int *max) {
  if (inner->kind != RULES_REPEAT || inner->b > 1) return false;
  int64_t most = *max < 0 || inner->c < 0 ? -1 : (int64_t)*max * inner->c;
  if (most > RULES_REPEAT_MAX) return false;
  *min = inner->b ? *min : 0;
  *max = (int)most;
  return true;
}

int rules_repeat(struct grammar_rules *g, int node, int min, int max) {
  if (!nodes_known(g, &node, 1)) return NODE_NEVER;
  if (min < 0 || max < -1 || (max >= 0 && max < min) || min > RULES_REPEAT_MAX || max > RULES_REPEAT_MAX) {
    rules_fail(g, "a repetition {%d,%d}: expected numbers from 0 to %d, the first one not the greater", min, max, RULES_REPEAT_MAX);
    return NODE_NEVER;
  }
  if (node == NODE_NEVER) return min ? NODE_NEVER : NODE_EMPTY;
  if (max == 0 || node == NODE_EMPTY) return NODE_EMPTY;
  if (repeat_merge(&g->nodes[node], &min, &max)) node = g->nodes[node].a;
  if (min == 1 && max == 1) return node;
  return node_intern(g, (struct rules_node){.kind = RULES_REPEAT, .a = node, .b = min, .c = max}, NULL);
}

/* --- tokens and rules -------------------------------------------------------------------------------------------------------------------- */

int rules_token(struct grammar_rules *g, int32_t id) {
  if (id < 0) return NODE_NEVER;
  return node_intern(g, (struct rules_node){.kind = RULES_TOKEN, .a = id}, NULL);
}

int rules_other_tokens(struct grammar_rules *g, const int32_t *except, int n) {
  int32_t *sorted = xmalloc(((size_t)MAX(n, 0) + 1) * sizeof *sorted);
  if (n > 0) memcpy(sorted, except, (size_t)n * sizeof *sorted);
  uint32_t kept = n > 0 ? sort_unique(sorted, (uint32_t)n) : 0;
  int id = node_intern(g, (struct rules_node){.kind = RULES_OTHER, .n = kept}, sorted);
  free(sorted);
  return id;
}

int rules_declare(struct grammar_rules *g, const char *name) {
  if (g->error.code) return NODE_NEVER;
  size_t n = strlen(name);
  return node_push(g, (struct rules_node){.kind = RULES_RULE, .a = -1, .n = (uint32_t)MIN(n, 200)}, name);
}

void rules_define(struct grammar_rules *g, int rule, int node) {
  if (g->error.code || !nodes_known(g, (int[]){rule, node}, 2)) return;
  struct rules_node *r = &g->nodes[rule];
  CHECK(r->kind == RULES_RULE);
  if (r->a >= 0) {
    char name[64];
    rules_fail(g, "rule \"%s\" is defined twice", str_escape(str_of(g->bytes + r->at, r->n), name, sizeof name));
    return;
  }
  r->a = node;
}

void rules_root(struct grammar_rules *g, int node) {
  if (nodes_known(g, &node, 1)) g->root = node;
}
