/* b_grammar.c — what constrained answers cost: the vocabulary's trie, compiling, masks.
 *
 * Usage: b_grammar MODEL   (a model or vocabulary file; only its tokenizer is read)
 *
 * Masks: an answer of the grammar is gone through token by token, as the tokenizer writes it. "first" is the first time that the grammar meets a state,
 * "again" the same answer a second time with a new state object, so that everything is known. "work": most steps that a mask took, of GRAMMAR_WORK_MAX.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "text/grammar_impl.h"

/* Of this thread's own time: the machine may have other things to do. */
static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static double us(int64_t from) { return (double)(now_ns() - from) / 1e3; }

struct sample {
  enum grammar_kind kind;
  const char *name, *text, *answer;
};

#define STRING_GBNF "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\"\n"
#define JSON_GBNF                                                                                                                          \
  "root ::= value\n"                                                                                                                       \
  "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"                                                         \
  "object ::= \"{\" ws ( string \":\" ws value ws (\",\" ws string \":\" ws value ws)* )? \"}\"\n"                                         \
  "array ::= \"[\" ws ( value ws (\",\" ws value ws)* )? \"]\"\n" STRING_GBNF                                                              \
  "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\n"                                                        \
  "ws ::= [ \\t\\n]{0,20}\n"

static const struct sample samples[] = {
    {GRAMMAR_EBNF, "json (GBNF)", JSON_GBNF,
     "{\"name\": \"Ada Lovelace\", \"born\": 1815, \"works\": [\"Notes on the Analytical Engine\", \"letters\"], \"weight\": 61.5e0, \"nested\": {\"a\": "
     "{\"b\": [1, 2, 3, null, true, \"a somewhat longer text with many ordinary words in it, so that the inside of strings counts\"]}}}"},
    {GRAMMAR_REGEX, "regex, mixed", "[a-z]+ [A-Z][a-z]{2,200} [0-9]{4}-[0-9]{2}-[0-9]{2}( \\w+)*",
     "the Quick 2024-01-31 brown fox jumps over the lazy dog"},
    {GRAMMAR_REGEX, "regex .{0,4096}", ".{0,4096}",
     "The quick brown fox jumps over the lazy dog, and then it does so again and again until everybody is tired of it."},
    {GRAMMAR_JSON_SCHEMA, "any value", "{}", "{\"name\": \"Ada\", \"list\": [1, 2.5, true, null, {\"a\": \"some words in a string\"}]}"},
    {GRAMMAR_JSON_SCHEMA, "any object", "{\"type\":\"object\"}",
     "{\"name\": \"Ada\", \"list\": [1, 2.5, true, null, {\"a\": \"some words in a string\"}]}"},
    {GRAMMAR_JSON_SCHEMA, "person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\","
     "\"format\":\"email\"}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}",
     "{\"name\": \"Ada King, Countess of Lovelace\", \"age\": 36, \"email\": \"ada@example.org\"}"},
    {GRAMMAR_JSON_SCHEMA, "list of enums",
     "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\",\"dark red\"]},\"minItems\":1,\"maxItems\":20}",
     "[\"red\", \"dark red\", \"blue\", \"green\"]"},
    {GRAMMAR_JSON_SCHEMA, "maxLength 4096",
     "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"maxLength\":4096}},\"required\":[\"text\"]}",
     "{\"text\": \"It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.\"}"},
    {GRAMMAR_JSON_SCHEMA, "tree ($ref)",
     "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"number\"},\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}},"
     "\"required\":[\"value\",\"children\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/node\"}",
     "{\"value\": 1, \"children\": [{\"value\": -2.5, \"children\": []}, {\"value\": 3e7, \"children\": [{\"value\": 0, \"children\": []}]}]}"},
    {GRAMMAR_JSON_SCHEMA, "anyOf",
     "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[A-Z]{3}-[0-9]+$\"},{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}]}",
     "[true, false, true]"},
    {GRAMMAR_JSON_SCHEMA, "date and uuid",
     "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\"},\"at\":{\"type\":\"string\",\"format\":\"date-time\"}},\"required\":[\"id\",\"at\"],"
     "\"additionalProperties\":false}",
     "{\"id\": \"123e4567-e89b-12d3-a456-426614174000\", \"at\": \"2024-05-06T07:08:09Z\"}"},
    {GRAMMAR_JSON_SCHEMA, "extraction",
     "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"},\"authors\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"year\":{\"type\":\"integer\"},"
     "\"abstract\":{\"type\":\"string\",\"maxLength\":2000},\"keywords\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":40},\"maxItems\":10},"
     "\"open\":{\"type\":\"boolean\"},\"doi\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"title\",\"authors\",\"year\",\"abstract\",\"keywords\",\"open\",\"doi\"],"
     "\"additionalProperties\":false}",
     "{\"title\": \"On Computable Numbers\", \"authors\": [\"A. M. Turing\"], \"year\": 1936, \"abstract\": \"The computable numbers may be described briefly as the real "
     "numbers whose expressions as a decimal are calculable by finite means.\", \"keywords\": [\"computability\", \"decision problem\"], \"open\": true, \"doi\": null}"},
    {GRAMMAR_JSON_SCHEMA, "map", "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}",
     "{\"first thing\": 1.5, \"second thing\": -2, \"third\": 3e10}"},
};

static void go_through(struct grammar *g, const struct tokenizer *t, const struct sample *sample, double *mean, double *worst,
                       uint64_t *work) {
  struct tok_ids ids = {0};
  struct grammar_state *s = grammar_state_new(g);
  double sum = 0;
  *worst = 0;
  tok_encode(t, str_c(sample->answer), false, false, &ids);
  for (size_t i = 0; i < ids.n; i++) {
    int64_t from = now_ns();
    grammar_mask(s);
    double took = us(from);
    sum += took;
    *worst = MAX(*worst, took);
    *work = MAX(*work, grammar_work(g));
    if (!grammar_accept(s, ids.v[i])) {
      struct str p = tok_piece(t, ids.v[i]);
      fprintf(stderr, "%s: token %zu \"%.*s\" is refused\n", sample->name, i, (int)p.n, p.p);
      exit(1);
    }
  }
  if (!grammar_may_end(s)) fprintf(stderr, "%s: the answer may not end\n", sample->name);
  *mean = sum / (double)ids.n;
  tok_ids_free(&ids);
  grammar_state_delete(s);
}

int main(int argc, char **argv) {
  struct err e = {0};
  if (argc < 2) {
    printf("b_grammar: give a model file\n");
    return 0;
  }
  struct tokenizer *t = tok_open(argv[1], &e);
  if (!t) {
    fprintf(stderr, "%s\n", e.msg);
    return 1;
  }
  int64_t from = now_ns();
  struct grammar_vocab *v = grammar_vocab_new(t);
  printf("vocabulary: %d tokens, %u nodes, longest piece %u bytes: %.1f ms\n", tok_vocab(t), v->n_nodes, v->longest, us(from) / 1e3);
  grammar_vocab_delete(v);
  struct grammar_cache *cache = grammar_cache_new(t);
  grammar_unref(grammar_cache_get(cache, GRAMMAR_REGEX, str_c("x"), &e)); /* builds the vocabulary */
  printf("%-18s %12s %30s %30s %10s %10s\n", "grammar", "compile ms", "masks first: mean, worst us", "masks again: mean, worst us", "work",
         "holds");
  for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
    double took, mean[2], worst[2];
    from = now_ns();
    struct grammar *g = grammar_cache_get(cache, samples[i].kind, str_c(samples[i].text), &e);
    took = us(from) / 1e3;
    if (!g) {
      fprintf(stderr, "%s: %s\n", samples[i].name, e.msg);
      continue;
    }
    uint64_t work = grammar_work(g); /* the first mask's */
    for (int k = 0; k < 2; k++) go_through(g, t, &samples[i], &mean[k], &worst[k], &work);
    printf("%-18s %12.2f %18.1f %11.0f %18.2f %11.1f %10llu %6zu KiB\n", samples[i].name, took, mean[0], worst[0], mean[1], worst[1],
           (unsigned long long)work, grammar_bytes(g) >> 10);
    grammar_unref(g);
  }
  grammar_cache_delete(cache);
  tok_close(t);
  return 0;
}
