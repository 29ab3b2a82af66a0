/* grammar_cache.c — the grammars of one model, found again by what was asked for.
 *
 * An entry is made by whoever asks first; those who come meanwhile wait for it. What cannot be compiled is kept as its error. Entries that are being
 * made are not dropped.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_impl.h"
#include "text/schema.h"

enum { CACHE_BYTES_MAX = 512 << 20 }; /* of all grammars together, looked at when one is made; the one asked for last stays */

struct entry {
  enum grammar_kind kind;
  char *text; /* owned */
  size_t n;
  uint64_t hash;
  bool ready;
  struct grammar *grammar; /* a reference; NULL with error */
  struct err error;
  uint64_t used; /* by the cache's clock */
  int n_waiting;
};

struct grammar_cache {
  const struct tokenizer *tokenizer;
  pthread_mutex_t lock;
  pthread_cond_t ready;
  struct grammar_vocab *vocab; /* NULL until it is needed */
  bool vocab_wanted;           /* somebody is building it */
  struct entry *entries[GRAMMARS_KEPT];
  int n_entries;
  uint64_t clock;
};

struct grammar_cache *grammar_cache_new(const struct tokenizer *t) {
  struct grammar_cache *c = xcalloc(1, sizeof *c);
  c->tokenizer = t;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->ready, NULL);
  return c;
}

static void entry_delete(struct entry *x) {
  grammar_unref(x->grammar);
  free(x->text);
  free(x);
}

void grammar_cache_delete(struct grammar_cache *c) {
  if (!c) return;
  for (int i = 0; i < c->n_entries; i++) entry_delete(c->entries[i]);
  grammar_vocab_delete(c->vocab);
  pthread_cond_destroy(&c->ready);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

/* --- from text to grammar ----------------------------------------------------------------------------------------------------------------------- */

static json_t *parse_json(struct str text, const char *what, struct err *e) {
  json_error_t error;
  json_t *root = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (!root) err_set(e, ERR_BAD_INPUT, "%s: at byte %d: %s", what, error.position, error.text);
  return root;
}

static int build_schema(struct grammar_rules *g, const struct tokenizer *t, struct str text, struct err *e) {
  int node;
  json_t *schema = parse_json(text, "schema", e);
  if (!schema) return -1;
  int result = schema_build(g, t, schema, SCHEMA_JSON, "schema", &node, e);
  if (!result) rules_root(g, node);
  json_decref(schema);
  return result;
}

static int build_tools(struct grammar_rules *g, const struct tokenizer *t, struct str text, struct err *e) {
  json_t *root = parse_json(text, "tools", e);
  if (!root) return -1;
  const json_t *tools = json_object_get(root, "tools"), *choice = json_object_get(root, "choice"),
               *parallel = json_object_get(root, "parallel");
  const char *word = json_string_value(choice), *named = json_string_value(json_object_get(choice, "name"));
  enum tools_choice how = TOOLS_AUTO;
  int result = 0;
  if (named) how = TOOLS_NAMED;
  else if (!choice || (word && !strcmp(word, "auto"))) how = TOOLS_AUTO;
  else if (word && !strcmp(word, "none")) how = TOOLS_NONE;
  else if (word && !strcmp(word, "required")) how = TOOLS_REQUIRED;
  else result = err_set(e, ERR_BAD_INPUT, "tools: choice: expected auto, none, required or {\"name\": ...}");
  if (!result && !json_is_array(tools)) result = err_set(e, ERR_BAD_INPUT, "tools: expected an array");
  if (!result) result = tools_build(g, t, tools, how, named, !json_is_false(parallel), e);
  json_decref(root);
  return result;
}

static struct grammar *build(struct grammar_cache *c, struct grammar_vocab *v, enum grammar_kind kind, struct str text, struct err *e) {
  struct grammar_rules *g = grammar_rules_new();
  int node, result = -1;
  switch (kind) {
  case GRAMMAR_JSON_SCHEMA: result = build_schema(g, c->tokenizer, text, e); break;
  case GRAMMAR_REGEX:
    result = regex_parse(g, text, &node, e);
    if (!result) rules_root(g, node);
    break;
  case GRAMMAR_EBNF: result = gbnf_parse(g, c->tokenizer, text, e); break;
  case GRAMMAR_TOOLS: result = build_tools(g, c->tokenizer, text, e); break;
  }
  if (!result) return grammar_compile(v, g, e);
  grammar_rules_delete(g);
  return NULL;
}

/* --- entries ---------------------------------------------------------------------------------------------------------------------------------------- */

/* Under the lock, which is let go while it is built. */
static struct grammar_vocab *vocab_get(struct grammar_cache *c) {
  while (!c->vocab) {
    if (c->vocab_wanted) {
      pthread_cond_wait(&c->ready, &c->lock);
      continue;
    }
    c->vocab_wanted = true;
    pthread_mutex_unlock(&c->lock);
    struct grammar_vocab *v = grammar_vocab_new(c->tokenizer);
    pthread_mutex_lock(&c->lock);
    c->vocab = v;
    pthread_cond_broadcast(&c->ready);
  }
  return c->vocab;
}

static struct entry *find(struct grammar_cache *c, enum grammar_kind kind, struct str text, uint64_t hash) {
  for (int i = 0; i < c->n_entries; i++) {
    struct entry *x = c->entries[i];
    if (x->hash == hash && x->kind == kind && x->n == text.n && !memcmp(x->text, text.p, text.n)) return x;
  }
  return NULL;
}

/* Drop the entry that was not asked for longest, but for one. False: there is none. */
static bool drop_oldest(struct grammar_cache *c, const struct entry *but) {
  int oldest = -1;
  for (int i = 0; i < c->n_entries; i++) {
    const struct entry *x = c->entries[i];
    if (x == but || !x->ready || x->n_waiting) continue;
    if (oldest < 0 || x->used < c->entries[oldest]->used) oldest = i;
  }
  if (oldest < 0) return false;
  entry_delete(c->entries[oldest]);
  c->entries[oldest] = c->entries[--c->n_entries];
  return true;
}

static size_t cache_bytes(const struct grammar_cache *c) {
  size_t n = 0;
  for (int i = 0; i < c->n_entries; i++)
    if (c->entries[i]->grammar) n += grammar_bytes(c->entries[i]->grammar) + c->entries[i]->n;
  return n;
}

/* NULL: all entries are being made; then the caller makes its own, which is not kept. */
static struct entry *entry_new(struct grammar_cache *c, enum grammar_kind kind, struct str text, uint64_t hash) {
  if (c->n_entries == GRAMMARS_KEPT && !drop_oldest(c, NULL)) return NULL;
  struct entry *x = xcalloc(1, sizeof *x);
  x->kind = kind;
  x->text = xstrndup(text.p, text.n);
  x->n = text.n;
  x->hash = hash;
  return c->entries[c->n_entries++] = x;
}

struct grammar *grammar_cache_get(struct grammar_cache *c, enum grammar_kind kind, struct str text, struct err *e) {
  if (!text.n) text.p = "";
  uint64_t hash = hash_bytes(text.p, text.n, (uint64_t)kind);
  struct err error = {0};
  pthread_mutex_lock(&c->lock);
  struct grammar_vocab *v = vocab_get(c);
  struct entry *x = find(c, kind, text, hash);
  if (!x) {
    x = entry_new(c, kind, text, hash);
    pthread_mutex_unlock(&c->lock);
    struct grammar *made = build(c, v, kind, text, &error);
    if (!x) {
      if (!made && e) *e = error;
      return made;
    }
    pthread_mutex_lock(&c->lock);
    x->grammar = made;
    x->error = error;
    x->ready = true;
    pthread_cond_broadcast(&c->ready);
    x->used = ++c->clock;
    while (cache_bytes(c) > CACHE_BYTES_MAX && drop_oldest(c, x)) continue;
  }
  x->n_waiting++;
  while (!x->ready) pthread_cond_wait(&c->ready, &c->lock);
  x->n_waiting--;
  x->used = ++c->clock;
  struct grammar *g = x->grammar ? grammar_ref(x->grammar) : NULL;
  if (!g && e) *e = x->error;
  pthread_mutex_unlock(&c->lock);
  return g;
}
