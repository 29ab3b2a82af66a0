/* b_draft.c — what guesses and certain tokens buy: steps and time of whole answers with and without, and what looking up and masking cost.
 *
 * Usage: b_draft [model file [threads [pairs [users]]]]
 * Answers that copy their prompt, answers in JSON by a schema, and free ones, 120 tokens each, greedy. Both ways take turns; medians of the pairs.
 * Without a model: the index and the mask alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cygnet.h"
#include "engine/draft.h"
#include "engine/sample.h"

enum { TOKENS = 120, PAIRS_MOST = 100, VOCAB = 262144, INDEXED = 30000 };

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, compare);
  return n ? x[n / 2] : 0;
}

static int die(const char *message) {
  fprintf(stderr, "b_draft: %s\n", message);
  return 1;
}

/* ---- alone ---------------------------------------------------------------------------------------------------------------- */

static int time_index(void) {
  struct draft d;
  int32_t *tokens = xmalloc(INDEXED * sizeof *tokens), out[DRAFT_TOKENS_MAX];
  uint32_t x = 1;
  for (int i = 0; i < INDEXED; i++)
    tokens[i] = i < INDEXED / 2 ? (int32_t)((x = x * 1664525 + 1013904223) >> 8) % VOCAB : tokens[i - INDEXED / 2];
  if (draft_init(&d, INDEXED, NULL)) return die("no memory");
  int64_t start = clock_ns();
  draft_next(&d, tokens, INDEXED / 2, 8, out);
  double add = (double)(clock_ns() - start) / (INDEXED / 2.0);
  int n_found = 0;
  start = clock_ns();
  for (int n = INDEXED / 2 + 4; n < INDEXED; n++) n_found += draft_next(&d, tokens, n, 8, out) > 0;
  printf("index: a token %.0f ns to add; %.0f ns to add and look up, %d of %d found\n", add,
         (double)(clock_ns() - start) / (INDEXED / 2.0 - 4), n_found, INDEXED / 2 - 4);
  draft_free(&d);
  free(tokens);
  return 0;
}

static int time_mask(void) {
  struct sample_scratch sc;
  struct sample_state s;
  struct sample_params p = sample_params_default();
  struct sample_result r;
  p.temperature = 0;
  if (sample_scratch_init(&sc, VOCAB, NULL) || sample_state_init(&s, &p, VOCAB, 1, NULL)) return die("no memory");
  float *logits = xmalloc(VOCAB * sizeof *logits);
  uint32_t *mask = xcalloc(VOCAB / 32, sizeof *mask), x = 1;
  for (int i = 0; i < VOCAB; i++) logits[i] = (float)((x = x * 1664525 + 1013904223) >> 8) * 1e-6f;
  for (int allowed = -1; allowed <= VOCAB; allowed = allowed < 0 ? 10 : allowed * 162) {
    for (int i = 0; i < VOCAB / 32; i++) mask[i] = allowed >= VOCAB ? UINT32_MAX : 0;
    for (int i = 0; i < allowed && allowed < VOCAB; i++) mask[i * (VOCAB / allowed) >> 5] |= 1u << (i * (VOCAB / allowed) & 31);
    s.allowed = allowed < 0 ? NULL : mask;
    s.n_allowed = VOCAB;
    double us[51];
    for (int i = 0; i < 51; i++) {
      int64_t start = clock_ns();
      sample_token(&sc, &s, logits, NULL, (uint64_t)i, &r, NULL);
      us[i] = (double)(clock_ns() - start) / 1e3;
    }
    if (allowed < 0) printf("greedy over %d logits: %.0f us\n", VOCAB, median(us, 51));
    else printf("  with a mask of %d ids: %.0f us\n", MIN(allowed, VOCAB), median(us, 51));
  }
  s.allowed = NULL;
  sample_state_free(&s);
  sample_scratch_free(&sc);
  free(logits);
  free(mask);
  return 0;
}

/* ---- whole answers ---------------------------------------------------------------------------------------------------------- */

static const struct kind {
  const char *name, *question, *schema;
} kinds[] = {
    {"copies its prompt",
     "Repeat this text word for word: The quick brown fox jumps over the lazy dog while the seven wizards of the old tower watch from the northern "
     "window and write everything into a large green book which nobody has ever read. In the morning they close the book, drink their tea and go to "
     "sleep until the bells of the town ring nine times.",
     NULL},
    {"JSON by a schema", "Describe a person.",
     "{\"type\":\"object\",\"properties\":{\"first_name\":{\"type\":\"string\",\"maxLength\":20},\"last_name\":{\"type\":\"string\",\"maxLength\":20},"
     "\"age_in_years\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},\"is_married\":{\"type\":\"boolean\"},\"favourite_colour\":{\"enum\":[\"red\","
     "\"green\",\"blue\"]}},\"required\":[\"first_name\",\"last_name\",\"age_in_years\",\"is_married\",\"favourite_colour\"],\"additionalProperties\":false}"},
    {"free", "Why is the sky blue, and why is it red in the evening? Explain it to a child.", NULL},
};

struct measure {
  double ms;
  uint64_t n_steps, n_tokens, n_drafted, n_accepted, n_forced;
};

/* One answer per user; the clock runs from the first token on. */
static int answer(struct cygnet *c, const struct kind *k, int users, struct measure *m) {
  struct cygnet_error e = {0};
  char messages[1024];
  int32_t *ids = NULL;
  size_t n = 0;
  struct cygnet_grammar *g = NULL;
  snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"%s\"}]", k->question);
  if (cygnet_render(c, messages, NULL, NULL, &ids, &n, NULL, NULL, &e)) return die(e.message);
  if (k->schema && !(g = cygnet_grammar_new(c, CYGNET_GRAMMAR_JSON_SCHEMA, k->schema, strlen(k->schema), &e))) return die(e.message);
  struct cygnet_request r = {.prompt = ids, .n_prompt = n, .max_tokens = TOKENS, .ignore_eos = !g, .grammar = g};
  for (int i = 0; i < users; i++)
    if (!cygnet_submit(c, &r, &e)) return die(e.message);
  struct cygnet_stats before, after;
  struct cygnet_event ev;
  int64_t start = 0;
  cygnet_stats(c, &before);
  while (cygnet_step(c)) {
    if (!start) start = clock_ns(), cygnet_stats(c, &before);
    while (cygnet_next_event(c, &ev)) continue;
  }
  m->ms = (double)(clock_ns() - start) / 1e6;
  cygnet_stats(c, &after);
  m->n_steps = after.n_steps - before.n_steps;
  m->n_tokens = after.generated_tokens - before.generated_tokens;
  m->n_drafted = after.drafted_tokens - before.drafted_tokens;
  m->n_accepted = after.accepted_tokens - before.accepted_tokens;
  m->n_forced = after.forced_tokens - before.forced_tokens;
  cygnet_grammar_free(g);
  cygnet_free(ids);
  return 0;
}

static int time_answers(const char *model, int threads, int n_pairs, int users) {
  struct cygnet *c[2];
  struct cygnet_error e = {0};
  for (int with = 0; with < 2; with++) {
    struct cygnet_options o = {
        .model = model, .threads = threads, .ctx_tokens = 1024, .max_running = MAX(users, 2), .quiet = 1, .draft_tokens = with ? 0 : -1};
    if (!(c[with] = cygnet_open(&o, &e))) return die(e.message);
  }
  for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
    double rate[2][PAIRS_MOST], ratio[PAIRS_MOST];
    struct measure m[2];
    for (int i = 0; i < n_pairs; i++) {
      for (int turn = 0; turn < 2; turn++) {
        int with = (i + turn) % 2;
        if (answer(c[with], &kinds[k], users, &m[with])) return 1;
        rate[with][i] = 1000 * (double)m[with].n_tokens / m[with].ms;
      }
      ratio[i] = rate[1][i] / rate[0][i];
    }
    printf(
        "%-18s %d users, %4d tokens: %4d steps %6.1f tokens/s without guesses, %4d steps %6.1f with; %.2f x; %d of %d guesses right, %d certain\n",
        kinds[k].name, users, (int)m[0].n_tokens, (int)m[0].n_steps, median(rate[0], n_pairs), (int)m[1].n_steps, median(rate[1], n_pairs),
        median(ratio, n_pairs), (int)m[1].n_accepted, (int)m[1].n_drafted, (int)m[1].n_forced);
  }
  for (int with = 0; with < 2; with++) cygnet_close(c[with]);
  return 0;
}

int main(int argc, char **argv) {
  int threads = argc > 2 ? atoi(argv[2]) : 0, pairs = argc > 3 ? atoi(argv[3]) : 3, users = argc > 4 ? atoi(argv[4]) : 1;
  if (time_index() || time_mask()) return 1;
  return argc > 1 ? time_answers(argv[1], threads, MIN(MAX(pairs, 1), PAIRS_MOST), MAX(users, 1)) : 0;
}
