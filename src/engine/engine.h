/* engine.h — the engine behind cygnet.h: plan memory, own model, cache and requests, advance the world by one step.
 *
 *   engine_step:  guesses → sched_next → copies → batch_build → graph_forward → commit → per request: say_tokens → text, stop, commit → events
 *                 → units of encoders (encode.h)
 *
 * Drafts: a decoding request may have several rows in a step: its last token, what certainly follows it (say.h), and what probably does (guess.h).
 * Only what was confirmed is committed, so nobody ever sees the others' keys and values; tokens and their log-probabilities are those of one row at a
 * time, to the bit.
 *
 * Pace: with step_ms set, the time per prompt row and per decoding step is measured, and the scheduler's chunk_rows and beside_rows follow
 * from it. Results never depend on it. Units of encoders are done as long as they fit in what prompt rows may take beside decoding
 * requests, else as long as the aim; one in every step at least, and exactly one without an aim.
 *
 * Devices that fail: after the rows of a step, a unit of an encoder and a round of guesses the device is asked whether all went well. If not, those
 * whose rows or media were in it end with its sentence, and nothing of it is committed; the others go on. When it is lost all requests end, new
 * ones are refused, and steps do nothing.
 *
 * There is no other way to advance the world; a test of the whole engine has no threads in it.
 * Nothing is allocated between batch_build and the end of model_forward (mem_guard in debug builds).
 * In debug builds engine_check runs after every step.
 */
#ifndef CYGNET_ENGINE_H
#define CYGNET_ENGINE_H

#include "engine/encode.h"
#include "engine/graph.h"
#include "engine/guess.h"
#include "engine/say.h"
#include "engine/sched.h"
#include "text/chat.h"
#include "text/grammar.h"

/* ---- batch.c: fill a batch from picks ---------------------------------------------------------------------------------- */

struct batch_shape {
  int rows_max, seqs_max, out_max, tokens_max, page_tokens;
  int cross_pages_max; /* pages that the banks of one sequence span; 0 = no cross-attention */
};
struct batch_media { /* zeroed: none */
  const struct media_rules *rules;
  const struct banks *banks;
};
int batch_init(struct batch *b, const struct batch_shape *s, struct err *e);
void batch_free(struct batch *b); /* fine on a zeroed one */
size_t batch_bytes(const struct batch_shape *s);
/* Pages of every pick are reserved, and what its rows need of pictures and sounds is held. Sequence i of the batch is picks[i]. */
void batch_build(struct batch *b, const struct kv *kv, struct batch_media media, const struct sched_pick *picks, int n_picks);
/* One row for each of n decoding requests: its newest token, which sees what is committed, writes nowhere, and wants no logits. */
void batch_build_round(struct batch *b, const struct kv *kv, struct request *const *requests, int n);

/* ---- plan.c: how memory is shared out, decided before anything is loaded ------------------------------------------------ */

struct plan {
  struct model_plan model;
  struct kv_config kv;
  struct sched_config sched;
  struct batch_shape batch;
  bool has_prefix_cache, has_graph;
  int step_ms;         /* cygnet_options */
  int n_samplers;      /* threads that sample at the same time */
  const char *kv_type; /* "bf16", static */
  int ctx_tokens;
  bool ctx_reduced;                /* the model's own limit did not fit */
  bool shortlist_left_out;         /* it did not fit beside the least that is needed */
  size_t token_bytes[BATCH_KINDS]; /* keys and values of one token, or row of a bank, in all layers of a kind */
  size_t shortlist_bytes;          /* of weight_bytes: compute/shortlist.h */
  size_t weight_bytes;             /* in memory, as the chosen instruction set wants them; the drafter's, too */
  size_t drafter_bytes;            /* of those, the drafter's */
  size_t lookup_bytes;             /* beside that: pages of the file that looking up embeddings may touch; the system can take them back */
  size_t kv_bytes;
  size_t tree_bytes;    /* of scratch: the prefix tree */
  int n_resume;         /* windows for which the sliding pool has room beside those of all running requests: places to go on from */
  size_t scratch_bytes; /* activations, logits, page tables, sampling, prefix tree, recorded steps */
  size_t budget_bytes;  /* what may be taken */
  /* far devices: all of the above is their memory, but host_bytes; otherwise 0 and "" */
  struct device_look look;
  struct device_config device; /* as far as weights' sizes depend on it */
  size_t host_bytes;           /* of the host's memory: page tables, sampling, prefix tree, what logits are fetched to */
  /* pictures and sound; 0 without */
  int media_page_rows, media_pages;                   /* of the store of what was encoded */
  size_t media_row_bytes;                             /* of one of its rows; of kv_bytes with cross-attention, else of scratch_bytes */
  size_t encoder_weight_bytes, encoder_scratch_bytes; /* of weight_bytes, of scratch_bytes */
};
/* What can be refused without a model, before a large one is read: where it shall run, and what does not go with that. */
int plan_check(const struct cygnet_options *o, struct err *e);
/* Fills *p from the options and the model; a sentence with what to change when it does not fit. Logs when the context had to be reduced. */
int plan_make(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct weights *w, struct err *e);
struct plan_beside {                  /* what may come with a model; zeroed: nothing */
  const struct model_config *drafter; /* the plan refers to it afterwards */
  const struct weights *drafter_weights;
  const struct weights *media_weights; /* of the encoders, where the model's own file has none */
};
int plan_make_beside(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct weights *w,
                     const struct plan_beside *beside, struct err *e);
/* The plan as a few lines for people ("keys and values  1.2 GiB  (32768 tokens full, 4096 sliding)"). */
void plan_print(const struct plan *p, const struct model_config *c, struct buf *out);

/* ---- engine.c ------------------------------------------------------------------------------------------------------------ */

enum {
  ENGINE_ROWS_STEP =
      16, /* prompt rows per step are a multiple of it (or all of chunk_tokens); steps with fewer say nothing about the pace */
  ENGINE_ROWS_UNKNOWN = 128, /* beside others while the pace is not known */
  ENGINE_DRAFT_TOKENS = 8,   /* guesses per request and step, by default */
  ENGINE_AHEAD_SHARE = 8,    /* of a decoding step, what a row ahead is taken to cost while that is not known */
};

struct engine_sample {  /* rows of logits of one request to look at in this step */
  int prompt_token;     /* position of the prompt token whose log-probability is wanted; 0 = what it says next */
  struct say_rows rows; /* with prompt_token: one, and its result in said[0] */
};

struct cygnet {
  /* fixed after engine_open */
  struct weights *weights;
  struct weights *mmproj; /* NULL: encoders, if any, are in weights */
  struct model_config config;
  struct tokenizer *tok;
  enum chat_template chat_template;
  struct grammar_cache *grammars;
  struct plan plan;
  struct model *model;
  struct kv *kv;
  struct banks *banks; /* NULL: neither pictures nor sound */
  struct names *names; /* the same */
  struct radix *radix; /* NULL with disable_prefix_cache, and for models without full layers */
  struct request_limits limits;
  struct say_model say;
  int draft_tokens; /* guesses per request and step at most; 0 = none */
  struct guesser guesser;
  double load_ms;
  int64_t image_pixels; /* most of a picture; 0: the decoder's own limit */

  /* changed by steps */
  struct sched sched;
  struct batch batch;
  struct graph *graph;        /* NULL with disable_graph */
  double row_ms, decode_ms;   /* lately, per prompt row and of a step that only decodes; 0 = not known yet */
  double worth_from_ms;       /* decoding steps shorter than that are not worth asking what guesses cost */
  double ahead_ms;            /* lately, per row ahead of a decoding request; 0 = not known yet */
  struct say_scratch *sayers; /* [n_sayers]: one per worker that samples */
  int n_sayers;
  struct encode encode;
  double unit_ms;                /* lately, per unit of an encoder */
  struct tensor logits;          /* of this step */
  struct engine_sample *samples; /* [out_max + max_running] */
  struct said *said;             /* [rows_max] */
  struct buf piece;              /* text of one token */
  uint64_t n_requests;           /* number of the last one */

  /* requests with an event, in the order in which they got it; the one handed out last is still being read by the caller */
  struct request *ready_first, *ready_last, *lent;
  bool has_news; /* an event came from outside a step: the next step reports activity */

  struct err lost;           /* code ERR_NONE: the device is there; else why not, for whoever asks */
  struct cygnet_stats stats; /* counters only */
};

struct cygnet *engine_open(const struct cygnet_options *o, struct err *e);
void engine_close(struct cygnet *c); /* NULL is fine; requests that are still there are dropped without an event */
uint64_t engine_submit(struct cygnet *c, const struct cygnet_request *r, struct err *e);
void engine_abort(struct cygnet *c, uint64_t number);
bool engine_step(struct cygnet *c);
bool engine_next_event(struct cygnet *c, struct cygnet_event *ev);
bool engine_flush(struct cygnet *c); /* false: busy */
/* For encode.c: a request that is waiting or running, or NULL; all that hold an entry of the store end with an error. */
struct request *engine_find(struct cygnet *c, uint64_t number);
void engine_fail_bank(struct cygnet *c, int32_t entry, const char *what);
/* For encode.c and guess.c: what was launched is done, or failed (counted and logged; *e says why). */
bool engine_finish_device(struct cygnet *c, struct err *e);
/* Every invariant of requests, scheduler and cache. For tests and debug builds: takes memory. */
bool engine_check(const struct cygnet *c, struct err *e);

/* ---- cygnet.c, cygnet_text.c ------------------------------------------------------------------------------------------------------------ */

/* The public form of an error; to may be NULL. */
void cygnet_error_set(struct cygnet_error *to, const struct err *from);

#endif
