/* cygnet.h — the whole public interface of the library: open a model, submit prompts, step, read events.
 *
 * The command line, the server, the bench and other people's programs are all built on these functions and nothing else.
 *
 *     struct cygnet_options o = {.model = "gemma.gguf"};
 *     struct cygnet_error e;
 *     struct cygnet *c = cygnet_open(&o, &e);                      // NULL: e.message says why
 *     int32_t *ids; size_t n;
 *     cygnet_encode(c, "The capital of France is", 24, 0, 1, &ids, &n);
 *     struct cygnet_request r = {.prompt = ids, .n_prompt = n, .max_tokens = 16};
 *     if (!cygnet_submit(c, &r, &e)) ...
 *     struct cygnet_event ev;
 *     while (cygnet_step(c))
 *       while (cygnet_next_event(c, &ev)) fwrite(ev.text, 1, ev.n_text, stdout);
 *     cygnet_free(ids); cygnet_close(c);
 *
 * Rules
 *   1. A struct cygnet belongs to one thread: open, submit, abort, step, next_event, stats, flush and close are called from it. What makes
 *      prompts (cygnet_encode, _decode, _piece, _render, _expand, cygnet_media_..., cygnet_grammar_..., cygnet_info) may be called from any
 *      thread at any time.
 *   2. Structures of options are zeroed first; zero means the default. Pointers inside them are borrowed for the call only.
 *   3. What is documented as "owned" is released with cygnet_free.
 *   4. A request can fail; then its last event says why. A call that fails returns 0, NULL or -1 and fills *e (which may be NULL).
 *   5. All memory of the engine is taken in cygnet_open; nothing grows with traffic but what callers hold: requests, media, grammars.
 *   6. Same model file, options of numerics (isa, kv_type) and seed: a request's tokens do not depend on what else is running, on how its
 *      prompt was cut into chunks, on what the prefix cache has of it, or on the number of threads.
 */
#ifndef CYGNET_H
#define CYGNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CYGNET_VERSION "0.1.0"
#define CYGNET_API     __attribute__((visibility("default")))

struct cygnet; /* a loaded model with its engine */

struct cygnet_error {
  int status;      /* as HTTP would say it: 400 bad input or file, 404, 413, 499, 500, 503 */
  int exit_status; /* 2: usage or input file; 1: the work failed */
  char message[512];
};

struct cygnet_options {
  const char *model;     /* GGUF file (first part of a split set), .safetensors file or folder. Required */
  int threads;           /* 0: what the affinity mask and the cgroup allow */
  int ctx_tokens;        /* longest sequence; 0: the model's own limit, or less if memory is short */
  const char *kv_type;   /* "auto" (default: bf16, or what the NPU takes), "bf16", "f16", "f32", "q8_0" */
  const char *isa;       /* "auto" (default), "ref", "avx2", "avx512" */
  const char *attn;      /* "auto" (default: the backend's own), "cpu", "ref", "ascend" */
  const char *backend;   /* "cpu" (default); "ascend" or "npu": a Huawei Ascend NPU, see docs/ascend.md */
  int device_id;         /* which of several NPUs; 0: the first */
  int page_tokens;       /* 1, 2, 4 ... 256; 0: 16, on an NPU 128 */
  int chunk_tokens;      /* most prompt tokens in one step; 0: 512 */
  int max_running;       /* requests computed at the same time; 0: 32 */
  int max_queued;        /* requests waiting; 0: 1024; more are refused with 503 */
  int step_ms;           /* aim for a step beside others who wait for tokens, or twice a decoding step; 4 times that alone; 0: no aim */
  double swa_full_ratio; /* tokens of the sliding pool per token of the full pool; 0: by itself */
  size_t mem_bytes;      /* limit for weights, scratch and cache together, of the device's memory; 0: what is free there */
  double mem_fraction;   /* share of free memory that may be taken when mem_bytes is 0; 0: 0.8 */
  /* "auto" (default): the file's, if it is known, else the family's; "gemma3", "gemma4-large", "gemma4-small", "llama32v" */
  const char *chat_template;
  const char *quant; /* NULL: weights as in the file; "q8_0", "q4_0": bf16, f16 and f32 matrices are quantised while they are loaded */
  int draft_tokens;  /* most tokens that are guessed ahead of a decoding request and checked in one step; 0: 8; -1: none */
  const char *draft_model; /* a drafter for the model (Gemma 4's *-assistant), file or folder; NULL: a request's own text guesses alone */
  /* GGUF with the part of the model that takes pictures and sound; NULL: a folder has it itself, if the model has one */
  const char *mmproj;
  int disable_media;        /* neither pictures nor sound; their encoders take no memory */
  size_t media_bytes;       /* for pictures and sounds that are encoded: as many stay as have room; 0: by itself */
  long long image_pixels;   /* most pixels that a picture may have; 0: 64 Mi */
  int disable_prefix_cache; /* nothing is reused between requests */
  int disable_shortlist; /* no coarse copy of the output matrix for finding the likeliest tokens (compute/shortlist.h): it takes memory */
  int disable_graph;     /* every step is prepared anew */
  int take_memory;       /* all memory is taken from the system at once, not when it is first used: for servers */
  int ignore_numa;       /* threads are bound to no memory node, and memory lies where the system puts it */
  int quiet;             /* no progress on stderr */
};

CYGNET_API struct cygnet *cygnet_open(const struct cygnet_options *o, struct cygnet_error *e);
CYGNET_API void cygnet_close(struct cygnet *c);
CYGNET_API void cygnet_free(void *owned);
CYGNET_API const char *cygnet_version(void);

/* ---- facts ------------------------------------------------------------------------------------------------------------ */

struct cygnet_info { /* strings live as long as the struct cygnet */
  const char *name, *architecture, *format, *kv_type, *chat_family;
  const char *isa;             /* of the processor's kernels; the backend's name where another device computes */
  const char *chat_template;   /* the one that is rendered: "gemma4-small" */
  const char *draft_model;     /* name of the drafter; NULL: none */
  int chat_thinks, chat_tools; /* conversations may ask for thoughts; have a place for tools */
  int vocab, hidden, n_layers, n_layers_sliding;
  int ctx_tokens, ctx_tokens_model, window_tokens;
  int threads, page_tokens, chunk_tokens, max_running;
  int pool_full_tokens, pool_sliding_tokens;
  int prefix_cache;  /* 1: what was computed is kept for other requests that begin alike, as long as there is room */
  int resume_points; /* windows for which the sliding pool has room beside those of all running requests; 0 also without sliding layers */
  int graph_buckets; /* kinds of decoding steps that are recorded and replayed; 0: none */
  size_t weight_bytes, packed_bytes, kv_bytes, scratch_bytes; /* weight_bytes: in the file */
  size_t kv_token_bytes_full, kv_token_bytes_sliding;         /* one token in all layers of a kind */
  int64_t products_per_token, products_per_logits;            /* multiply-adds with weights: a prompt token; one row of logits more */
  int64_t plain_per_token, plain_per_logits;                  /* of those, with bf16, f16 and f32 weights */
  int64_t key_per_token[2], key_per_logits[2]; /* multiply-adds of attention for each visible key: full layers [0], sliding ones [1] */
  size_t decode_bytes;                         /* weights that one decoding step reads */
  size_t shortlist_saves_bytes;                /* fewer are read when all rows want their likeliest token only (compute/shortlist.h), */
  int shortlist_rows;                          /* and there are no more than so many */
  double load_ms;
  /* pictures and sound */
  const char *vision, *audio;           /* names of the encoders: "siglip"; NULL: not taken */
  int32_t image_id, video_id, audio_id; /* the placeholder of one; -1: not taken */
  int image_tokens;                     /* rows of a picture by default; 0: it depends on its shape */
  int image_budgets[8];                 /* values of cygnet_media_options.max_tokens; 0 ends the list */
  int audio_seconds;                    /* of sound that is heard at once */
  size_t media_bytes;                   /* memory of encoders, and of what they made */
  int media_rows;                       /* rows of pictures and sounds that have room */
};
CYGNET_API void cygnet_info(const struct cygnet *c, struct cygnet_info *out);

/* What this machine can do at best with the threads and kernels of c, measured in about a second. */
struct cygnet_floor {
  double read_gb_s, int8_gop_s, float_gop_s;
  const char *float_name; /* "bf16" or "f32" */
};
CYGNET_API int cygnet_floor(const struct cygnet *c, struct cygnet_floor *out, struct cygnet_error *e);

/* ---- text --------------------------------------------------------------------------------------------------------------- */

/* 0, or -1 when the text is longer than 128 MiB.
 * special != 0: spellings of control tokens become those tokens. bos != 0: exactly one BOS in front. *ids is owned. */
CYGNET_API int cygnet_encode(const struct cygnet *c, const char *text, size_t n_text, int special, int bos, int32_t **ids, size_t *n_ids);
/* Text of ids, NUL terminated, owned. skip_special != 0 leaves control tokens out. */
CYGNET_API char *cygnet_decode(const struct cygnet *c, const int32_t *ids, size_t n_ids, int skip_special, size_t *n_text);
/* The bytes that one id stands for, as they are: not always whole characters. Lives as long as the struct cygnet; control tokens give their
 * spelling, ids outside the vocabulary nothing (NULL, *n = 0). */
CYGNET_API const char *cygnet_piece(const struct cygnet *c, int32_t id, size_t *n);
/* Ids of a conversation; 0, or -1 and *e. messages and tools are JSON in OpenAI form; tools and options may be NULL. options is a JSON object:
 * add_generation_prompt (true), continue_final_message (false), enable_thinking (false), preserve_thinking (false), tools_in_user_message (true), date.
 * raw (false): messages is one string, a plain prompt; special (false): its spellings of control tokens become those. A picture or sound,
 * by a part of its type or by its marker in a plain prompt, becomes the family's wrapping with one placeholder, in the order of the parts.
 * *ids is owned; *text (may be NULL) is owned. *thought (may be NULL): whether the prompt ends inside a thought. */
CYGNET_API int cygnet_render(const struct cygnet *c, const char *messages_json, const char *tools_json, const char *options_json,
                             int32_t **ids, size_t *n_ids, char **text, int *thought, struct cygnet_error *e);

/* ---- answers that must have a form ------------------------------------------------------------------------------------------ */

enum cygnet_grammar_kind {
  CYGNET_GRAMMAR_JSON_SCHEMA, /* text: a JSON schema; {} is any value, {"type": "object"} any object */
  CYGNET_GRAMMAR_REGEX,       /* the whole answer matches */
  CYGNET_GRAMMAR_EBNF,        /* GBNF, or EBNF with ::= */
  CYGNET_GRAMMAR_TOOLS        /* text: {"tools": [...], "choice": "auto" | "none" | "required" | {"name": NAME}, "parallel": bool} */
};
struct cygnet_grammar;
/* Any thread. Compiled ones are kept for a while, so asking again for the same costs little. Owned: cygnet_grammar_free. NULL and *e (400, names the
 * keyword or place): what cannot be enforced is refused. */
CYGNET_API struct cygnet_grammar *cygnet_grammar_new(const struct cygnet *c, enum cygnet_grammar_kind kind, const char *text, size_t n_text,
                                                     struct cygnet_error *e);
CYGNET_API void cygnet_grammar_free(struct cygnet_grammar *g); /* requests that use it keep it alive; NULL is fine */

/* Takes an answer apart while it is written. From any one thread at a time. */
enum cygnet_part_kind { CYGNET_PART_CONTENT, CYGNET_PART_REASONING, CYGNET_PART_CALL };
struct cygnet_part {
  enum cygnet_part_kind kind;
  const char
      *text; /* content, reasoning, or a call's arguments (a JSON object); n_text bytes, not NUL terminated, valid during the callback */
  size_t n_text;
  const char *name; /* of a call's function */
  size_t n_name;
  int index; /* of the call */
};
struct cygnet_mark { /* a control token between two bytes of text */
  size_t at;
  int32_t id;
};
struct cygnet_parser;
/* names: functions on offer (NULL, 0: none, so nothing is a call); in_thought as cygnet_render said. Owned: cygnet_parser_free. */
CYGNET_API struct cygnet_parser *cygnet_parser_new(const struct cygnet *c, const char *const *names, int n_names, int in_thought,
                                                   void (*fn)(void *ctx, const struct cygnet_part *part), void *ctx);
CYGNET_API void cygnet_parser_free(struct cygnet_parser *p);
/* Text of an event and its marks. */
CYGNET_API void cygnet_parser_push(struct cygnet_parser *p, const char *text, size_t n_text, const struct cygnet_mark *marks,
                                   size_t n_marks);
CYGNET_API void cygnet_parser_finish(struct cygnet_parser *p);

/* ---- pictures and sound ----------------------------------------------------------------------------------------------------- */

enum cygnet_media_kind { CYGNET_IMAGE, CYGNET_VIDEO_FRAME, CYGNET_AUDIO };
struct cygnet_media_options {
  int max_tokens;                /* Gemma 4's pictures: 70, 140, 280, 560 or 1120 rows at most; 0: the model's own number */
  double start_seconds, seconds; /* of a sound, this part; seconds 0: all that follows. A part that begins behind the end is refused */
};
struct cygnet_media; /* decoded and prepared; never changes */
/* Any thread. What bytes are is decided by looking at them. NULL and *e (400; 413: too large): not taken by this model, format not known,
 * damaged, too large, too long. Owned: cygnet_media_free. */
CYGNET_API struct cygnet_media *cygnet_media_new(const struct cygnet *c, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                                 const struct cygnet_media_options *o, struct cygnet_error *e);
/* A sound of any length, decoded once, in pieces of equal length of at most seconds_max each → their number; their length is *seconds of the
 * whole by that number. More than n_max: none is made. -1 and *e as above. Each is owned. */
CYGNET_API int cygnet_media_pieces(const struct cygnet *c, const void *bytes, size_t n, double seconds_max, struct cygnet_media **pieces,
                                   int n_max, double *seconds, struct cygnet_error *e);
CYGNET_API void cygnet_media_free(struct cygnet_media *m); /* requests that use it keep it alive; NULL is fine */
CYGNET_API int cygnet_media_tokens(const struct cygnet_media *m);
CYGNET_API double cygnet_media_seconds(const struct cygnet_media *m); /* of the whole sound, whatever part was asked for */
CYGNET_API size_t cygnet_media_memory(const struct cygnet_media *m);  /* bytes that it holds */
/* What the encoder gets of it, and what else belongs to it, as tensors of a safetensors file. */
CYGNET_API int cygnet_media_write(const struct cygnet *c, const struct cygnet_media *m, const char *path, struct cygnet_error *e);
/* A prompt with one placeholder for each of n media, in order → the same with all their rows; a count or kind that does not fit is an
 * error. *out is owned. */
CYGNET_API int cygnet_expand(const struct cygnet *c, const int32_t *ids, size_t n_ids, const struct cygnet_media *const *media,
                             size_t n_media, int32_t **out, size_t *n_out, struct cygnet_error *e);

/* ---- requests ------------------------------------------------------------------------------------------------------------- */

struct cygnet_bias {
  int32_t id;
  float bias; /* added to the logit; -100 .. 100, -100 bans */
};

struct cygnet_sampling {     /* zero = the value in brackets */
  double temperature;        /* 0 = greedy */
  int top_k;                 /* [all] */
  double top_p;              /* (0, 1] [1] */
  double min_p;              /* [0, 1] [0] */
  double frequency_penalty;  /* -2 .. 2 [0] */
  double presence_penalty;   /* -2 .. 2 [0] */
  double repetition_penalty; /* (0, 2] [1]; over generated tokens */
  int has_seed;
  uint64_t seed;  /* without has_seed: a fresh one, reported in the last event */
  int min_tokens; /* no end before that many */
  const struct cygnet_bias *bias;
  size_t n_bias;
};

enum cygnet_thoughts {
  CYGNET_THOUGHTS_FREE, /* the grammar, if there is one, covers the whole answer; a budget counts in thoughts that the model opens */
  CYGNET_THOUGHTS_MAY,  /* the answer may begin with a thought, which the grammar does not cover */
  CYGNET_THOUGHTS_OPEN  /* the prompt ended inside a thought: the grammar begins after it */
};

struct cygnet_request {
  const int32_t *prompt;                   /* taken as they are: no BOS is added */
  size_t n_prompt;                         /* >= 1 */
  const struct cygnet_media *const *media; /* one for each placeholder of the prompt, which stands once for all rows of it, in order */
  size_t n_media;
  int max_tokens; /* tokens to generate; 0 = none (with prompt logits), -1 = as many as the context holds (more ends there, too) */
  struct cygnet_sampling sampling;
  const char *const *stop; /* stop strings, at most 16 */
  size_t n_stop;
  const int32_t *stop_ids; /* beside the model's own end-of-generation ids */
  size_t n_stop_ids;
  int keep_stop;    /* the stop string or token stays in the output */
  int ignore_eos;   /* the model's own end ids do not end it */
  int show_special; /* control tokens appear in the text */
  int marks;        /* control tokens come as marks beside the text. Stop strings never reach across one. Not with show_special */
  const struct cygnet_grammar *grammar; /* what the answer must be; NULL: anything */
  int thoughts;                         /* enum cygnet_thoughts */
  int thinking_budget;                  /* 0: no limit, else 1 + the most tokens of thoughts; then the thought is closed for the model */
  int logprobs;                         /* 0 = none, 1 + N = the sampled token's and the N best (N <= 20) */
  /* 0 = none, 1 + K = those of prompt tokens K and on, too, each given all before it; with `logprobs`. K counts rows of media */
  int prompt_logprobs;
  int priority;           /* higher first */
  const char *cache_salt; /* prompts with different salts share nothing in the prefix cache, not even its timing; NULL = the common one */
  size_t n_cache_salt;
  /* For every row of the prompt, in order and once: its logits, valid during the call. For evaluations and `logits`. */
  void (*on_logits)(void *ctx, int position, const float *logits, int vocab);
  /* Hidden states of every prompt row: layer 0 = scaled embedding, l + 1 = output of layer l. */
  void (*on_hidden)(void *ctx, int layer, int position, const float *x, int hidden);
  void *callback_ctx;
  void *user; /* comes back in every event */
};

/* Returns the request's number (> 0), or 0: bad parameters, can never fit (400), queue full (503). */
CYGNET_API uint64_t cygnet_submit(struct cygnet *c, const struct cygnet_request *r, struct cygnet_error *e);
/* Ends a request; its last event has finish CYGNET_FINISH_ABORT. Unknown numbers are ignored. */
CYGNET_API void cygnet_abort(struct cygnet *c, uint64_t request);

/* One step: admit, fill a batch, compute, sample. Returns 0 when there was nothing to do and nothing was aborted since the last step. Events that
 * nobody reads in between are joined to one per request. */
CYGNET_API int cygnet_step(struct cygnet *c);
/* 1 and *e when the device that computes is lost: all requests have ended with an error, new ones are refused (503), steps do nothing, and
 * only opening the model in a new process helps. Else 0. e may be NULL. */
CYGNET_API int cygnet_lost(const struct cygnet *c, struct cygnet_error *e);

enum cygnet_finish {
  CYGNET_FINISH_NONE,   /* not yet: a delta */
  CYGNET_FINISH_STOP,   /* end-of-generation id, stop id or stop string */
  CYGNET_FINISH_LENGTH, /* max_tokens or the context is used up; wins over STOP when both come with the same token */
  CYGNET_FINISH_ABORT,
  CYGNET_FINISH_ERROR /* error says why */
};

CYGNET_API const char *cygnet_finish_name(enum cygnet_finish f); /* "none", "stop", "length", "abort", "error" */

struct cygnet_logprob {
  int32_t id;
  float logprob;
};
struct cygnet_token { /* one generated token, or one of the prompt */
  int32_t id;
  float logprob;                    /* when asked for */
  const struct cygnet_logprob *top; /* best first, n_top of them */
  int n_top;
};

struct cygnet_event { /* pointers are valid until the next call on the same struct cygnet */
  uint64_t request;
  void *user;
  const char *text; /* new text, complete UTF-8, NUL terminated */
  size_t n_text;
  const struct cygnet_mark *marks; /* in ascending order of `at`, 0 .. n_text */
  size_t n_marks;
  const struct cygnet_token *tokens; /* new tokens; a token may come before its text; an id that ends the request only with keep_stop */
  size_t n_tokens;
  /* with prompt_logprobs: in the first event, all at once. The very first token of a prompt has nothing before it: logprob NaN, n_top 0. So
   * have rows of pictures and sounds, whose id is the placeholder's */
  const struct cygnet_token *prompt;
  size_t n_prompt;
  enum cygnet_finish finish; /* anything but NONE: the last event of this request */
  int matched_stop;          /* index of the stop string, or -1 */
  int32_t matched_id;        /* id that ended it, or -1 */
  struct cygnet_error error;
  uint64_t seed;
  /* usage so far */
  int reasoning_tokens;        /* of completion_tokens, those inside thoughts, their control tokens included */
  int n_media, n_media_cached; /* pictures and sounds; of those, how many were encoded before */
  double encode_ms;            /* spent encoding for this request */
  /* all rows of pictures and sounds included; a token that ended it is counted, shown or not; cached <= prompt */
  int prompt_tokens, cached_tokens, completion_tokens;
  int n_retractions;
  /* timings in ms: waiting, prompt, generation */
  double queue_ms, prefill_ms, decode_ms;
};
/* 1 and *ev, or 0 when there is none. */
CYGNET_API int cygnet_next_event(struct cygnet *c, struct cygnet_event *ev);

struct cygnet_stats {
  int n_running, n_waiting;
  /* tokens in the pools: held by requests; kept by the prefix cache alone, so free for the asking */
  int pool_full_used_tokens, pool_sliding_used_tokens;
  int pool_full_cached_tokens, pool_sliding_cached_tokens;
  /* since the start */
  uint64_t n_steps, n_graph_steps; /* steps that replayed a recorded list */
  uint64_t n_failed_steps;         /* in which the device failed, units of encoders and rounds of guesses included */
  uint64_t n_requests, n_finished, n_aborted, n_failed, n_retracted;
  uint64_t prompt_tokens;   /* of requests that have begun, each once */
  uint64_t cached_tokens;   /* of those, taken from the prefix cache */
  uint64_t computed_tokens; /* prompt rows computed, those again after a retraction included */
  uint64_t generated_tokens;
  uint64_t drafted_tokens, accepted_tokens;                 /* guessed ahead and computed; of those, what the model then said */
  uint64_t draft_model_tokens, draft_model_accepted_tokens; /* of both, what the drafter guessed */
  uint64_t forced_tokens;                                   /* of generated_tokens, those that a grammar left no choice about */
  /* prompt tokens that were computed although their beginning was known, by reason */
  uint64_t lost_window_tokens; /* the prefix is known, but the sliding window before its end was given up */
  uint64_t lost_wanted_tokens; /* the request wants the logits of its prompt */
  uint64_t evicted_full_tokens, evicted_sliding_tokens;
  uint64_t n_media, n_media_cached, n_encoded; /* of requests that have begun; of those found encoded; encoded in fact */
  uint64_t media_rows_encoded;
  double encode_ms;
  int media_rows_used, media_rows_cached; /* of the store: held by requests; kept for others */
  int n_resume_points;                    /* places whose window is kept */
  uint64_t n_fork_joins;
};
CYGNET_API void cygnet_stats(const struct cygnet *c, struct cygnet_stats *out);
/* Forget all that the prefix cache keeps. 0, or -1 and nothing done while requests are running or waiting. */
CYGNET_API int cygnet_flush(struct cygnet *c);

#ifdef __cplusplus
}
#endif

#endif
