/* guess.c — which source guesses for whom, and the drafter's rounds. The rules are in guess.h. */
#include "engine/guess.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

static struct batch_shape round_shape(const struct plan *p) {
  int n = p->sched.max_running;
  return (struct batch_shape){
      .rows_max = n, .seqs_max = n, .out_max = 1, .tokens_max = p->model.tokens_max, .page_tokens = p->model.page_tokens};
}

size_t guess_bytes(const struct plan *p) {
  if (!p->model.drafter) return 0;
  struct batch_shape shape = round_shape(p);
  size_t each = sizeof(struct guess_row) + sizeof(struct request *) + 2 * sizeof(int32_t);
  return drafter_scratch_bytes(p->model.drafter, p->sched.max_running, p->model.rows_max) + batch_bytes(&shape) +
         (size_t)p->sched.max_running * each;
}

int guess_open_file(struct guesser *g, const char *path, const struct model_config *target, struct err *e) {
  g->config = xcalloc(1, sizeof *g->config);
  if (!(g->weights = weights_open_drafter(path, g->config, e))) return err_prefix(e, "--draft-model");
  return drafter_check(g->config, target, e);
}

int guess_open(struct cygnet *c, struct err *e) {
  struct guesser *g = &c->guesser;
  struct batch_shape shape = round_shape(&c->plan);
  size_t n = (size_t)c->plan.sched.max_running;
  if (!g->weights) return 0;
  if (batch_init(&g->batch, &shape, e)) return -1;
  g->kept = mem_try_alloc(n * sizeof *g->kept);
  g->round = mem_try_alloc(n * sizeof *g->round);
  g->slots = mem_try_alloc(n * sizeof *g->slots);
  g->guesses = mem_try_alloc(n * sizeof *g->guesses);
  if (!g->kept || !g->round || !g->slots || !g->guesses) return err_set(e, ERR_NO_MEMORY, "engine: no memory to guess for %zu requests", n);
  if (!(g->drafter = drafter_open(g->config, g->weights, c->model, (int)n, e))) return -1;
  return weights_unchanged(g->weights, e);
}

void guess_close(struct guesser *g) {
  drafter_close(g->drafter);
  batch_free(&g->batch);
  free(g->kept);
  free(g->round);
  free(g->slots);
  free(g->guesses);
  weights_close(g->weights);
  free(g->config);
  memset(g, 0, sizeof *g);
}

/* ---- what pays ------------------------------------------------------------------------------------------------------------ */

struct worth {
  int n;       /* guesses that are worth more than they cost */
  double gain; /* of all of them, in ms; where that cannot be told, how likely one is right */
};

/* Of up to n guesses, each of which costs so many ms. */
static struct worth worth_of(const struct cygnet *c, int n, const struct draft_trust *trust, double cost, int n_decoding) {
  double worth = c->decode_ms / n_decoding, chance = draft_chance(trust) / 256.0, gain = 0;
  if (c->decode_ms < c->worth_from_ms) return (struct worth){n, chance};
  for (int i = 0; i < n; i++) {
    if ((worth *= chance) < cost) return (struct worth){i, gain};
    gain += worth - cost;
  }
  return (struct worth){MAX(n, 0), gain};
}

static double row_cost(const struct cygnet *c) { return c->ahead_ms > 0 ? c->ahead_ms : c->decode_ms / ENGINE_AHEAD_SHARE; }

/* While it is not known, what reading its weights takes, as the model's do. */
static double drafter_cost(const struct cygnet *c, int n_decoding) {
  const struct guesser *g = &c->guesser;
  if (g->drafter_ms > 0) return g->drafter_ms;
  return c->decode_ms * (double)drafter_model(g->drafter)->decode_bytes / (double)MAX(c->model->decode_bytes, 1) / n_decoding;
}

/* ---- the drafter's rounds -------------------------------------------------------------------------------------------------- */

void guess_keep(struct cygnet *c, const struct request *r, int out) {
  struct guesser *g = &c->guesser;
  if (!g->drafter) return;
  drafter_keep(g->drafter, r->kv.row, out);
  g->kept[r->kv.row] = (struct guess_row){r->number, r->n_tokens};
}

static bool is_kept(const struct guesser *g, const struct request *r) {
  const struct guess_row *k = &g->kept[r->kv.row];
  return k->number == r->number && k->n_tokens == r->n_tokens;
}

static void guard(bool up) {
#ifdef CYGNET_DEBUG
  if (up) mem_guard_begin("drafter");
  else mem_guard_end();
#else
  (void)up;
#endif
}

/* Guesses for all whose n_draft says how many the drafter is to make; n_most is the greatest. */
static void run_round(struct cygnet *c, int n_most) {
  struct guesser *g = &c->guesser;
  int rows = 0, n_guesses = 0;
  int64_t start_ns = clock_ns();
  for (int n = n_most; n >= 1; n--)
    for (struct request *r = c->sched.running.first; r; r = r->next)
      if (r->by_drafter && r->n_draft == n) g->slots[rows] = r->kv.row, g->round[rows++] = r;
  guard(true);
  batch_build_round(&g->batch, c->kv, g->round, rows);
  drafter_begin(g->drafter, &g->batch, g->slots);
  for (int i = 0; i < n_most; i++) {
    while (g->round[rows - 1]->n_draft <= i) rows--;
    drafter_step(g->drafter, rows, g->guesses);
    for (int k = 0; k < rows; k++) g->round[k]->ahead[i] = g->guesses[k];
    n_guesses += rows;
  }
  guard(false);
  struct err why = {0};
  if (!engine_finish_device(c, &why)) { /* what was guessed is worth nothing; the requests go on without */
    for (struct request *r = c->sched.running.first; r; r = r->next)
      if (r->by_drafter) r->n_draft = 0;
    return;
  }
  g->n_drawn += (uint64_t)n_guesses;
  double ms = clock_ms_since(start_ns) / n_guesses;
  g->drafter_ms = g->drafter_ms > 0 ? g->drafter_ms + (ms - g->drafter_ms) / 4 : ms;
}

/* ---- the whole --------------------------------------------------------------------------------------------------------------- */

/* From r's own tokens; none is a row of a picture. */
static int look_up(struct request *r, int n) {
  int n_known = r->n_tokens + r->n_forced;
  if (n <= 0 || (!r->draft.last && draft_init(&r->draft, n_known + n_known / 2, NULL))) return 0;
  request_reserve(r, n_known);
  memcpy(r->tokens + r->n_tokens, r->ahead, (size_t)r->n_forced * sizeof *r->tokens);
  int n_found = draft_next(&r->draft, r->tokens, n_known, n, r->ahead + r->n_forced), n_text = 0;
  while (n_text < n_found && r->ahead[r->n_forced + n_text] >= 0) n_text++;
  return n_text;
}

/* How many guesses r wants of the drafter instead of the n_found that its own tokens gave. */
static int ask_drafter(const struct cygnet *c, struct request *r, int n_most, int n_found, int n_decoding) {
  const struct guesser *g = &c->guesser;
  if (!g->drafter || r->n_forced || n_most < 1 || !is_kept(g, r)) return 0;
  struct worth found = worth_of(c, n_found, &r->draft.trust, row_cost(c), n_decoding);
  struct worth drawn = worth_of(c, n_most, &r->drafter_trust, row_cost(c) + drafter_cost(c, n_decoding), n_decoding);
  if (drawn.n < 1 || (n_found > 0 && found.gain >= drawn.gain)) return 0;
  return MIN(drawn.n, draft_offer(&r->drafter_trust));
}

void guess_offer(struct cygnet *c) {
  int n_decoding = 0, n_most = 0;
  if (!c->draft_tokens) return;
  int places = c->sched.config.out_max - c->sched.running.n; /* for rows ahead; the scheduler gives them out in this order */
  for (const struct request *r = c->sched.running.first; r; r = r->next) n_decoding += request_decodes(r);
  for (struct request *r = c->sched.running.first; r; r = r->next) {
    r->by_drafter = false;
    if (!request_decodes(r)) continue;
    int room = MIN(MIN(c->draft_tokens, REQUEST_AHEAD_MAX - r->n_forced), r->n_limit - 1 - r->n_tokens - r->n_forced);
    r->n_draft = look_up(r, worth_of(c, room, &r->draft.trust, row_cost(c), n_decoding).n);
    int n = ask_drafter(c, r, MIN(room, places - r->n_forced), r->n_draft, n_decoding);
    if (n > 0) {
      r->by_drafter = true;
      r->n_draft = n;
      n_most = MAX(n_most, n);
    }
    places -= r->n_forced + r->n_draft;
  }
  if (n_most > 0) run_round(c, n_most);
  else c->guesser.drafter_ms -= c->guesser.drafter_ms / 64; /* forgotten slowly, so that it is asked again */
}

void guess_learn(struct cygnet *c, struct request *r, int n_guessed, int n_right) {
  c->stats.drafted_tokens += (uint64_t)n_guessed;
  c->stats.accepted_tokens += (uint64_t)n_right;
  draft_learn(r->by_drafter ? &r->drafter_trust : &r->draft.trust, n_guessed, n_right);
  if (!r->by_drafter) return;
  c->stats.draft_model_tokens += (uint64_t)n_guessed;
  c->stats.draft_model_accepted_tokens += (uint64_t)n_right;
}
