/* sample.c — the logit pipeline and sampling. The rules are in sample.h.
 *
 * Nothing here sorts the vocabulary. The row is cut into blocks of 64, whose greatest logits come with it or are found in one pass; every later question
 * ("who is at least this great?") looks only into blocks that can answer it. The order of rule 2 is then built from the top in bands of
 * logits, only as deep as the filters and the random number reach:
 *
 *    logit   max ........ band 0 ........ | ... band 1 ... | ... band 2 ... | not looked at
 *    mass    0            >               |        >  target inside: sort this band only
 *
 * A band whose whole mass is kept and skipped is never sorted. Bands come in layers, one pass over the row each; a layer with many
 * candidates (a flat row, a high temperature, the tail) is split into up to 64 bands first.
 */
#include "engine/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/sample_kern.h"

enum { BLOCK = PEAK_BLOCK, LAYERS = 5, SPLIT = 64, SPLIT_FROM = 2048, SORT_SMALL = 40, RADIX_BITS = 11, RADIX = 1 << RADIX_BITS };

static const double TEMPERATURE_GREEDY = 1e-6;

struct sample_candidate {
  float logit;
  int32_t id;
};

struct sample_edit {
  int32_t id;
  float before;
};

/* --- parameters ---------------------------------------------------------------------------------------------------- */

struct sample_params sample_params_default(void) {
  return (struct sample_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = -1, .max_tokens = -1, .n_logprobs = -1};
}

static int bad_number(struct err *e, const char *field, const char *range, double found) {
  return err_set(e, ERR_BAD_INPUT, "%s: expected %s, found %.10g", field, range, found);
}

static int check_ids(const char *field, const int32_t *ids, int n, int vocab, struct err *e) {
  if (n < 0 || n > vocab) return err_set(e, ERR_BAD_INPUT, "%s: expected at most %d ids, found %d", field, vocab, n);
  for (int i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return err_set(e, ERR_BAD_INPUT, "%s[%d]: expected an id from 0 to %d, found %d", field, i, vocab - 1, ids[i]);
  return 0;
}

int sample_params_check(const struct sample_params *p, int vocab, struct err *e) {
  /* written so that NaN fails every test */
  if (!(p->temperature >= 0 && p->temperature <= DBL_MAX)) return bad_number(e, "temperature", "a finite number >= 0", p->temperature);
  if (!(p->top_p > 0 && p->top_p <= 1)) return bad_number(e, "top_p", "more than 0 and at most 1", p->top_p);
  if (!(p->min_p >= 0 && p->min_p <= 1)) return bad_number(e, "min_p", "0 to 1", p->min_p);
  if (!(p->frequency_penalty >= -2 && p->frequency_penalty <= 2))
    return bad_number(e, "frequency_penalty", "-2 to 2", p->frequency_penalty);
  if (!(p->presence_penalty >= -2 && p->presence_penalty <= 2)) return bad_number(e, "presence_penalty", "-2 to 2", p->presence_penalty);
  if (!(p->repetition_penalty > 0 && p->repetition_penalty <= 2))
    return bad_number(e, "repetition_penalty", "more than 0 and at most 2", p->repetition_penalty);
  if (p->top_k != -1 && p->top_k < 1) return bad_number(e, "top_k", "-1 (all) or 1 and more", p->top_k);
  if (p->max_tokens < -1) return bad_number(e, "max_tokens", "0 or more", p->max_tokens);
  if (p->min_tokens < 0) return bad_number(e, "min_tokens", "0 or more", p->min_tokens);
  if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
    return err_set(e, ERR_BAD_INPUT, "min_tokens: expected at most max_tokens (%d), found %d", p->max_tokens, p->min_tokens);
  if (p->n_logprobs < -1 || p->n_logprobs > SAMPLE_TOP_MAX) return bad_number(e, "top_logprobs", "0 to 20", p->n_logprobs);
  if (p->n_bias < 0 || p->n_bias > SAMPLE_BIAS_MAX) return bad_number(e, "logit_bias", "at most 1024 entries", p->n_bias);
  for (int i = 0; i < p->n_bias; i++) {
    const struct sample_bias *b = &p->bias[i];
    if (b->id < 0 || b->id >= vocab)
      return err_set(e, ERR_BAD_INPUT, "logit_bias: expected an id from 0 to %d, found %d", vocab - 1, b->id);
    if (!(b->bias >= -100 && b->bias <= 100))
      return err_set(e, ERR_BAD_INPUT, "logit_bias[%d]: expected -100 to 100, found %.10g", b->id, (double)b->bias);
  }
  if (check_ids("stop_token_ids", p->stop_ids, p->n_stop_ids, vocab, e)) return -1;
  return check_ids("suppressed ids", p->suppressed, p->n_suppressed, vocab, e);
}

/* --- one request --------------------------------------------------------------------------------------------------- */

/* Owned copy; *failed is set when there is no memory, and stays as it was otherwise. */
static void *copy_list(const void *from, size_t n_bytes, bool *failed) {
  if (n_bytes == 0) return NULL;
  void *p = mem_try_alloc(n_bytes);
  if (p) memcpy(p, from, n_bytes);
  *failed |= !p;
  return p;
}

int sample_state_init(struct sample_state *s, const struct sample_params *p, int vocab, int tokens_max, struct err *e) {
  memset(s, 0, sizeof *s);
  if (sample_params_check(p, vocab, e)) return -1;
  bool failed = false;
  s->params = *p;
  s->params.bias = copy_list(p->bias, (size_t)p->n_bias * sizeof *p->bias, &failed);
  s->params.stop_ids = copy_list(p->stop_ids, (size_t)p->n_stop_ids * sizeof *p->stop_ids, &failed);
  s->params.suppressed = copy_list(p->suppressed, (size_t)p->n_suppressed * sizeof *p->suppressed, &failed);
  if (failed) goto fail;
  if (p->frequency_penalty == 0 && p->presence_penalty == 0 && p->repetition_penalty == 1) return 0;

  s->ids_max = MAX(1, MIN(vocab, tokens_max));
  size_t n_table = 4; /* at most half full */
  while (n_table < 2 * (size_t)s->ids_max) n_table *= 2;
  s->table_mask = (uint32_t)(n_table - 1);
  s->ids = mem_try_alloc((size_t)s->ids_max * sizeof *s->ids);
  s->table = mem_try_alloc(n_table * sizeof *s->table);
  if (!s->ids || !s->table) goto fail;
  return 0;
fail:
  err_set(e, ERR_NO_MEMORY, "sampling: no memory for the lists of a request of %d tokens", tokens_max);
  sample_state_free(s);
  return -1;
}

void sample_state_free(struct sample_state *s) {
  free((void *)s->params.bias); /* ours since the copy */
  free((void *)s->params.stop_ids);
  free((void *)s->params.suppressed);
  free(s->ids);
  free(s->table);
  memset(s, 0, sizeof *s);
}

void sample_state_add(struct sample_state *s, int32_t token) {
  s->n_generated++;
  if (!s->ids_max) return;
  uint32_t at = (uint32_t)token * 2654435769u;
  for (at ^= at >> 16;; at++) {
    int32_t *entry = &s->table[at &= s->table_mask];
    if (*entry == 0) {
      CHECK(s->n_ids < s->ids_max);
      s->ids[s->n_ids] = (struct sample_count){.id = token, .count = 1};
      *entry = ++s->n_ids;
      return;
    }
    if (s->ids[*entry - 1].id == token) {
      s->ids[*entry - 1].count++;
      return;
    }
  }
}

/* --- scratch ------------------------------------------------------------------------------------------------------- */

int sample_scratch_init(struct sample_scratch *sc, int vocab, struct err *e) {
  memset(sc, 0, sizeof *sc);
  if (vocab < 1 || vocab > INT32_MAX / 8)
    return err_set(e, ERR_BAD_INPUT, "vocabulary: expected 1 to %d ids, found %d", INT32_MAX / 8, vocab);
  sc->vocab = vocab;
  sc->kern = sample_kern_best();
  sc->peaks = kern_select(ISA_AUTO, NULL)->peaks;
  sc->n_blocks = div_up(vocab, BLOCK);
  sc->block_max = mem_try_alloc((size_t)sc->n_blocks * sizeof *sc->block_max);
  sc->heap = mem_try_alloc((size_t)sc->n_blocks * sizeof *sc->heap);
  sc->list = mem_try_alloc(((size_t)vocab + 1) * sizeof *sc->list);
  sc->swap = mem_try_alloc((size_t)vocab * sizeof *sc->swap);
  sc->weights = mem_try_alloc((size_t)vocab * sizeof *sc->weights);
  sc->masked = mem_try_alloc((size_t)vocab * sizeof *sc->masked);
  sc->edits = mem_try_alloc((size_t)vocab * sizeof *sc->edits);
  sc->edited = mem_try_alloc((size_t)div_up(vocab, 64) * sizeof *sc->edited);
  if (sc->block_max && sc->heap && sc->list && sc->swap && sc->weights && sc->masked && sc->edits && sc->edited) return 0;
  sample_scratch_free(sc);
  return err_set(e, ERR_NO_MEMORY, "sampling: no memory for a vocabulary of %d ids", vocab);
}

void sample_scratch_free(struct sample_scratch *sc) {
  free(sc->block_max);
  free(sc->heap);
  free(sc->list);
  free(sc->swap);
  free(sc->weights);
  free(sc->masked);
  free(sc->edits);
  free(sc->edited);
  memset(sc, 0, sizeof *sc);
}

/* --- one row: greatest logits, weights ----------------------------------------------------------------------------- */

/* The ids of a row's last block, when it is not a whole one, filled up with -inf. False: all blocks are whole. */
static bool last_block(const struct sample_scratch *sc, const float *logits, float padded[BLOCK]) {
  int whole = sc->vocab / BLOCK * BLOCK, n = sc->vocab - whole;
  for (int i = 0; i < BLOCK; i++) padded[i] = i < n ? logits[whole + i] : -INFINITY;
  return n > 0;
}

static int block_ids(const struct sample_scratch *sc, int b) { return MIN(BLOCK, sc->vocab - b * BLOCK); }

/* block_max is that of the row. */
static int not_finite(const struct sample_scratch *sc, const float *logits, struct err *e) {
  int b = 0;
  while (sc->block_max[b] < INFINITY) b++;
  int id = b * BLOCK;
  while (logits[id] < INFINITY) id++;
  return err_set(e, ERR_INTERNAL, "logits: expected finite numbers, found %s at id %d", isnan(logits[id]) ? "NaN" : "infinity", id);
}

/* The greatest of block_max, NaN where one of them is. */
static float greatest(struct sample_scratch *sc) {
  float max = -INFINITY, *of_blocks = sc->heap;
  sc->peaks(of_blocks, sc->block_max, sc->n_blocks);
  for (int i = 0; i < div_up(sc->n_blocks, PEAK_BLOCK); i++)
    if (of_blocks[i] > max || isnan(of_blocks[i])) max = of_blocks[i];
  return max;
}

/* Fill block_max and max; peaks may be NULL. Fails on NaN and +inf. */
static int scan_row(struct sample_scratch *sc, const float *logits, const float *peaks, struct err *e) {
  if (peaks) memcpy(sc->block_max, peaks, (size_t)sc->n_blocks * sizeof *peaks);
  else sc->peaks(sc->block_max, logits, sc->vocab);
  sc->max = greatest(sc);
  return sc->max < INFINITY ? 0 : not_finite(sc, logits, e);
}

static void scan_block(struct sample_scratch *sc, const float *logits, int b) {
  sc->peaks(sc->block_max + b, logits + (size_t)b * BLOCK, block_ids(sc, b));
}

static int32_t find_first(const struct sample_scratch *sc, const float *logits, float value) {
  int b = 0;
  while (sc->block_max[b] != value) b++;
  int32_t id = b * BLOCK;
  while (logits[id] != value) id++;
  return id;
}

/* Sum of all weights; its order is fixed (sample_kern.h). */
static double sum_weights(const struct sample_scratch *sc, const float *logits, float inverse_temperature) {
  float padded[BLOCK];
  double sum = sc->kern->sum(0, logits, sc->vocab / BLOCK, sc->max, inverse_temperature);
  return last_block(sc, logits, padded) ? sc->kern->sum(sum, padded, 1, sc->max, inverse_temperature) : sum;
}

/* A logit that at least k of the row reach: the k-th greatest block maximum (a heap of the k greatest, the least on top). */
static float reached_by(struct sample_scratch *sc, int k) {
  if (k > sc->n_blocks) return -FLT_MAX;
  float *heap = sc->heap;
  int n = 0;
  for (int b = 0; b < sc->n_blocks; b++) {
    float value = sc->block_max[b];
    int at;
    if (n < k) {
      at = n++;
      for (int parent; at > 0 && heap[parent = (at - 1) / 2] > value; at = parent) heap[at] = heap[parent];
    } else {
      if (value <= heap[0]) continue;
      at = 0;
      for (int child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) break;
        heap[at] = heap[child];
      }
    }
    heap[at] = value;
  }
  return MAX(heap[0], -FLT_MAX);
}

/* Append the ids with low <= logit < below to the list, which has n already, ids ascending; returns the new n. low > -inf. */
static int gather(struct sample_scratch *sc, const float *logits, float low, float below, int n) {
  for (int b = 0; b < sc->n_blocks; b++) {
    if (sc->block_max[b] < low) continue;
    int end = MIN(sc->vocab, (b + 1) * BLOCK);
    for (int32_t id = b * BLOCK; id < end; id++) { /* always written, kept or not: a branch here is a coin toss */
      sc->list[n] = (struct sample_candidate){.logit = logits[id], .id = id};
      n += (logits[id] >= low) & (logits[id] < below);
    }
  }
  return n;
}

/* Bits that ascend as the logit descends; -0 and 0 are equal. */
static uint32_t descending_key(float logit) {
  float x = logit + 0.0f;
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* Into the order of rule 2. v comes with ids ascending, and both ways are stable. */
static void sort_candidates(struct sample_candidate *v, int n, struct sample_candidate *swap) {
  if (n <= SORT_SMALL) {
    for (int i = 1; i < n; i++) {
      struct sample_candidate c = v[i];
      int at = i;
      for (; at > 0 && v[at - 1].logit < c.logit; at--) v[at] = v[at - 1];
      v[at] = c;
    }
    return;
  }
  int start[3][RADIX] = {{0}};
  for (int i = 0; i < n; i++) {
    uint32_t key = descending_key(v[i].logit);
    for (int digit = 0; digit < 3; digit++) start[digit][key >> (digit * RADIX_BITS) & (RADIX - 1)]++;
  }
  struct sample_candidate *from = v, *to = swap;
  for (int digit = 0; digit < 3; digit++) {
    int *at = start[digit], sum = 0;
    for (int r = 0; r < RADIX; r++) {
      int count = at[r];
      at[r] = sum;
      sum += count;
    }
    for (int i = 0; i < n; i++) to[at[descending_key(from[i].logit) >> (digit * RADIX_BITS) & (RADIX - 1)]++] = from[i];
    struct sample_candidate *other = from;
    from = to;
    to = other;
  }
  memcpy(v, from, (size_t)n * sizeof *v);
}

/* --- the steps of rule 1 that change logits ------------------------------------------------------------------------ */

static void put(struct sample_scratch *sc, float *logits, int32_t id, float value) {
  uint64_t *word = &sc->edited[id / 64], bit = UINT64_C(1) << id % 64;
  if (!(*word & bit)) {
    *word |= bit;
    sc->edits[sc->n_edits++] = (struct sample_edit){.id = id, .before = logits[id]};
  }
  logits[id] = value;
}

/* In double and back into range: a penalty must not make a +inf of its own. -inf stays. */
static float penalised(float logit, int count, const struct sample_params *p) {
  if (logit == -INFINITY) return logit;
  double x = (double)logit - (count * p->frequency_penalty + p->presence_penalty);
  x = x < 0 ? x * p->repetition_penalty : x / p->repetition_penalty;
  return (float)MAX(-(double)FLT_MAX, MIN((double)FLT_MAX, x));
}

static void edit_logits(struct sample_scratch *sc, const struct sample_state *s, float *logits) {
  const struct sample_params *p = &s->params;
  sc->n_edits = 0;
  /* A stop id that is held back is -inf before and after the division, so the two loops over counts may be one. What a grammar bans is -inf in
   * the row already, and no step brings that back. */
  for (int i = 0; i < s->n_ids; i++) put(sc, logits, s->ids[i].id, penalised(logits[s->ids[i].id], s->ids[i].count, p));
  if (s->n_generated < p->min_tokens)
    for (int i = 0; i < p->n_stop_ids; i++) put(sc, logits, p->stop_ids[i], -INFINITY);
  for (int i = 0; i < p->n_bias; i++) {
    const struct sample_bias *b = &p->bias[i];
    put(sc, logits, b->id, b->bias <= (float)SAMPLE_BAN ? -INFINITY : logits[b->id] + b->bias);
  }
  for (int i = 0; i < p->n_suppressed; i++) put(sc, logits, p->suppressed[i], -INFINITY);
}

/* Bits of 32 ids from id on, those beyond the mask or the vocabulary clear. */
static uint32_t allowed_bits(const struct sample_scratch *sc, const struct sample_state *s, int id) {
  int n = MIN(s->n_allowed, sc->vocab) - id;
  if (n <= 0) return 0;
  uint32_t bits = s->allowed[id / 32];
  return n < 32 ? bits & ((1u << n) - 1) : bits;
}

/* The row without what the grammar bans, in memory of its own that is -inf throughout between calls: what is banned is nearly all and costs nothing. */
static float *mask_logits(struct sample_scratch *sc, const struct sample_state *s, const float *logits) {
  float *out = sc->masked;
  if (!sc->masked_is_clear)
    for (int id = 0; id < sc->vocab; id++) out[id] = -INFINITY;
  sc->masked_is_clear = true;
  for (int id = 0; id < sc->vocab; id += 32) {
    uint32_t bits = allowed_bits(sc, s, id);
    if (bits == UINT32_MAX) memcpy(out + id, logits + id, 32 * sizeof *out);
    else
      for (; bits; bits &= bits - 1) out[id + __builtin_ctz(bits)] = logits[id + __builtin_ctz(bits)];
  }
  return out;
}

static void clear_masked(struct sample_scratch *sc, const struct sample_state *s) {
  for (int id = 0; id < sc->vocab; id += 32)
    if (allowed_bits(sc, s, id))
      for (int i = id; i < MIN(id + 32, sc->vocab); i++) sc->masked[i] = -INFINITY;
}

/* scan_row after edits of a row that was scanned before them: only where something changed. A block that was all -inf, or was left out, stays so: no edit
 * brings -inf back. */
static int scan_edited(struct sample_scratch *sc, const float *logits, struct err *e) {
  bool all = sc->n_edits > sc->n_blocks / 2;
  for (int i = 0; i < (all ? sc->n_blocks : sc->n_edits); i++) {
    int b = all ? i : sc->edits[i].id / BLOCK;
    if (sc->block_max[b] > -INFINITY) scan_block(sc, logits, b);
  }
  sc->max = greatest(sc);
  return sc->max < INFINITY ? 0 : not_finite(sc, logits, e);
}

/* scan_row of the masked row, after edits: only where something is allowed. */
static int scan_masked(struct sample_scratch *sc, const struct sample_state *s, struct err *e) {
  sc->max = -INFINITY;
  for (int b = 0; b < sc->n_blocks; b++) {
    bool any = allowed_bits(sc, s, b * BLOCK) || allowed_bits(sc, s, b * BLOCK + 32);
    if (any) scan_block(sc, sc->masked, b);
    else sc->block_max[b] = -INFINITY;
    sc->max = MAX(sc->max, sc->block_max[b]);
  }
  return sc->max < INFINITY ? 0 : err_set(e, ERR_INTERNAL, "logits: expected finite numbers, found infinity after logit_bias");
}

bool sample_bans(const struct sample_state *s, int32_t id) {
  const struct sample_params *p = &s->params;
  for (int i = 0; i < p->n_bias; i++)
    if (p->bias[i].id == id && p->bias[i].bias <= (float)SAMPLE_BAN) return true;
  for (int i = 0; i < p->n_suppressed; i++)
    if (p->suppressed[i] == id) return true;
  for (int i = 0; i < p->n_stop_ids && s->n_generated < p->min_tokens; i++)
    if (p->stop_ids[i] == id) return true;
  return false;
}

int sample_n_best(const struct sample_state *s) {
  const struct sample_params *p = &s->params;
  bool greedy = p->temperature < TEMPERATURE_GREEDY || p->top_k == 1;
  if (s->allowed || s->ids_max > 0 || p->n_bias > 0 || p->n_logprobs >= 0) return 0;
  if (!greedy && (p->top_k == -1 || p->top_p < 1)) return 0; /* top-p is measured on all of them */
  int n_banned = p->n_suppressed + (s->n_generated < p->min_tokens ? p->n_stop_ids : 0);
  return (greedy ? 1 : p->top_k) + n_banned;
}

static void restore_logits(struct sample_scratch *sc, float *logits) {
  while (sc->n_edits > 0) {
    const struct sample_edit *undo = &sc->edits[--sc->n_edits];
    logits[undo->id] = undo->before;
    sc->edited[undo->id / 64] &= ~(UINT64_C(1) << undo->id % 64);
  }
}

/* --- the choice ---------------------------------------------------------------------------------------------------- */

struct band {
  int start, end; /* in sc->list */
  bool sorted;
  double mass;
};

struct choice {
  struct sample_scratch *sc;
  const struct sample_params *p;
  float inverse_temperature;
  double keep_mass; /* top-p: a candidate with more mass before it is dropped */
  double enough;    /* no band is needed any more when the mass is greater */
  double mass;      /* of the candidates that are kept so far */
  int n_bands;
  struct band bands[LAYERS * SPLIT];
};

/* Weights of the candidates from start to end, in their present order. */
static void weigh(const struct choice *ch, int start, int end) {
  const struct sample_scratch *sc = ch->sc;
  enum { PIECE = 256 };
  float x[PIECE];
  for (int from = start; from < end; from += PIECE) {
    int n = MIN(PIECE, end - from), padded = (int)align_up((size_t)n, 8);
    for (int i = 0; i < padded; i++) x[i] = i < n ? sc->list[from + i].logit : -INFINITY;
    sc->kern->weigh(x, padded, sc->max, ch->inverse_temperature);
    memcpy(sc->weights + from, x, (size_t)n * sizeof *x);
  }
}

static void sort_band(struct choice *ch, struct band *b) {
  if (b->sorted) return;
  sort_candidates(ch->sc->list + b->start, b->end - b->start, ch->sc->swap);
  weigh(ch, b->start, b->end);
  b->sorted = true;
}

/* Take the candidates from b->start to the end of the list into the kept prefix, as far as the filters allow. False: the prefix ends in
 * this band, which has been cut there. */
static bool keep_band(struct choice *ch, struct band *b) {
  const struct sample_params *p = ch->p;
  const float *weights = ch->sc->weights;
  int k = p->top_k == -1 ? INT32_MAX : p->top_k;
  float least = 1;
  weigh(ch, b->start, b->end);
  for (int i = b->start; i < b->end; i++) {
    b->mass += (double)weights[i];
    least = MIN(least, weights[i]);
  }
  if (b->end <= k && (double)least >= p->min_p && ch->mass + b->mass <= ch->keep_mass) {
    ch->mass += b->mass;
    return true;
  }
  sort_band(ch, b);
  b->mass = 0;
  for (int i = b->start; i < b->end; i++) {
    double w = (double)weights[i];
    if (i >= k || w < p->min_p || ch->mass > ch->keep_mass) {
      b->end = i;
      return false;
    }
    b->mass += w;
    ch->mass += w;
  }
  return true;
}

/* The first candidate with more than target mass up to and including itself; the last with any weight where rounding hides it. */
static int32_t candidate_at(struct choice *ch, double target) {
  double before = 0;
  for (int k = 0; k < ch->n_bands; k++) {
    struct band *b = &ch->bands[k];
    if (before + b->mass <= target) {
      before += b->mass;
      continue;
    }
    sort_band(ch, b);
    for (int i = b->start; i < b->end; i++)
      if ((before += (double)ch->sc->weights[i]) > target) return ch->sc->list[i].id;
  }
  for (int k = ch->n_bands - 1; k >= 0; k--) {
    sort_band(ch, &ch->bands[k]);
    for (int i = ch->bands[k].end - 1; i >= ch->bands[k].start; i--)
      if (ch->sc->weights[i] > 0) return ch->sc->list[i].id;
  }
  return ch->sc->list[0].id; /* not reached: the first weighs 1 */
}

/* The candidates from start to end, in bands: by equal steps of the logit when they are many. Order within a band stays that of the ids. */
static void add_bands(struct choice *ch, int start, int end) {
  struct sample_candidate *list = ch->sc->list, *swap = ch->sc->swap;
  float high = -INFINITY, low = INFINITY;
  for (int i = start; i < end; i++) {
    high = MAX(high, list[i].logit);
    low = MIN(low, list[i].logit);
  }
  float range = high - low;
  if (end - start < SPLIT_FROM || !(range > 1e-30f && range < FLT_MAX)) {
    ch->bands[ch->n_bands++] = (struct band){.start = start, .end = end};
    return;
  }
  float scale = SPLIT / range;
  int at[SPLIT + 1] = {0};
  for (int i = start; i < end; i++) at[MIN(SPLIT - 1, (int)((high - list[i].logit) * scale)) + 1]++;
  at[0] = start;
  for (int i = 1; i < SPLIT; i++) at[i] += at[i - 1];
  for (int i = start; i < end; i++) swap[at[MIN(SPLIT - 1, (int)((high - list[i].logit) * scale))]++] = list[i];
  memcpy(list + start, swap + start, (size_t)(end - start) * sizeof *list);
  for (int i = 0; i < SPLIT; start = at[i++]) ch->bands[ch->n_bands++] = (struct band){.start = start, .end = at[i]};
}

/* Take one more layer; false when no further one is needed. */
static bool keep_layer(struct choice *ch, int start, int end) {
  int band = ch->n_bands;
  add_bands(ch, start, end);
  for (; band < ch->n_bands; band++)
    if (!keep_band(ch, &ch->bands[band]) || ch->mass > ch->enough) {
      ch->n_bands = band + 1;
      return false;
    }
  return true;
}

static int32_t choose(struct sample_scratch *sc, const struct sample_params *p, const float *logits, double u) {
  /* How far below the greatest logit each layer reaches, in units of the temperature; the last one takes everything. */
  static const float depths[LAYERS - 1] = {4, 8, 14, 24};
  const float temperature = (float)MIN(p->temperature, (double)FLT_MAX);
  bool filters = p->top_k != -1 || p->top_p < 1 || p->min_p > 0;
  struct choice ch = {.sc = sc, .p = p, .inverse_temperature = (float)(1 / p->temperature), .keep_mass = INFINITY};
  double all = p->top_p < 1 || !filters ? sum_weights(sc, logits, ch.inverse_temperature) : 0;
  if (p->top_p < 1) ch.keep_mass = p->top_p * all;
  ch.enough = filters ? ch.keep_mass : u * all;

  if (p->top_k != -1) {
    keep_layer(&ch, 0, gather(sc, logits, reached_by(sc, p->top_k), INFINITY, 0));
  } else {
    float below = INFINITY;
    for (int layer = 0, n = 0; layer < LAYERS; layer++) {
      float low = layer < LAYERS - 1 ? MAX(sc->max - depths[layer] * temperature, -FLT_MAX) : -FLT_MAX;
      int end = gather(sc, logits, low, below, n);
      if (!keep_layer(&ch, n, end)) break;
      n = end;
      below = low;
    }
  }
  return candidate_at(&ch, filters ? u * ch.mass : u * all);
}

/* --- log-probabilities --------------------------------------------------------------------------------------------- */

/* The row was scanned. */
static void fill_top(struct sample_scratch *sc, const float *logits, double log_sum, int n_top, struct sample_result *out) {
  int n = n_top > 0 ? gather(sc, logits, reached_by(sc, n_top), INFINITY, 0) : 0;
  sort_candidates(sc->list, n, sc->swap);
  out->n_top = MIN(n, n_top);
  for (int i = 0; i < out->n_top; i++)
    out->top[i] = (struct sample_logprob){.id = sc->list[i].id, .logprob = (float)((double)sc->list[i].logit - log_sum)};
}

static double log_sum_exp(const struct sample_scratch *sc, const float *logits) {
  return (double)sc->max + log(sum_weights(sc, logits, 1.0f));
}

static int nothing_left(struct err *e) { return err_set(e, ERR_INTERNAL, "logits: expected a token that may be sampled, all are -inf"); }

static int nothing_allowed(const struct sample_state *s, struct err *e) {
  if (!s->allowed) return nothing_left(e);
  return err_set(e, ERR_BAD_INPUT, "grammar: expected a token that it allows, logit_bias and min_tokens leave none after %d tokens",
                 s->n_generated);
}

int sample_logprobs(struct sample_scratch *sc, const float *logits, const float *peaks, int32_t id, int n_top, struct sample_result *out,
                    struct err *e) {
  CHECK(id >= -1 && id < sc->vocab && n_top >= 0 && n_top <= SAMPLE_TOP_MAX);
  *out = (struct sample_result){.id = id};
  if (scan_row(sc, logits, peaks, e)) return -1;
  if (sc->max == -INFINITY) return nothing_left(e);
  double log_sum = log_sum_exp(sc, logits);
  fill_top(sc, logits, log_sum, n_top, out);
  if (id >= 0) out->logprob = (float)((double)logits[id] - log_sum);
  return 0;
}

int sample_token(struct sample_scratch *sc, const struct sample_state *s, float *logits, const float *peaks, uint64_t position,
                 struct sample_result *out, struct err *e) {
  const struct sample_params *p = &s->params;
  *out = (struct sample_result){.id = -1};
  if (scan_row(sc, logits, peaks, e)) return -1; /* before edits, which could hide a NaN */
  if (sc->max == -INFINITY) return nothing_left(e);
  double log_sum = 0;
  if (p->n_logprobs >= 0) {
    log_sum = log_sum_exp(sc, logits);
    fill_top(sc, logits, log_sum, p->n_logprobs, out);
  }
  float *row = s->allowed ? mask_logits(sc, s, logits) : logits;
  edit_logits(sc, s, row);
  int rc = s->allowed ? scan_masked(sc, s, e) : sc->n_edits ? scan_edited(sc, row, e) : 0;
  if (rc == 0 && sc->max == -INFINITY) rc = nothing_allowed(s, e);
  if (rc == 0) {
    bool greedy = p->temperature < TEMPERATURE_GREEDY || p->top_k == 1;
    out->id = greedy ? find_first(sc, row, sc->max) : choose(sc, p, row, rng_uniform(p->seed, position, 0));
  }
  restore_logits(sc, row);
  if (s->allowed) clear_masked(sc, s);
  if (rc == 0 && p->n_logprobs >= 0) out->logprob = (float)((double)logits[out->id] - log_sum);
  return rc;
}
