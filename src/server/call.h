/* call.h — one API request on its way through three threads.
 *
 *      io thread                    prep thread                       engine thread
 *   call_new, body ──► to_prep ──► parse, render, tokenise ──► to_engine ──► submit, step, events
 *   dialect's message ◄───────────────────── to_io ◄──────────────────────────────┘   (errors straight from prep too)
 *
 * Rules
 *   1. Who holds what: a group of fields below belongs to the thread named; handing a call through a queue publishes what was written before.
 *      After prep the job is read-only for everybody.
 *   2. The io thread creates and frees a call. It frees it when it has taken the message that is `last`, never before; every call gets exactly
 *      one such message and nothing after it, whatever happens.
 *   3. cancelled, abort_wanted and prepared are the only words written while others look. cancelled is set by the io thread when the client left;
 *      prep then answers `last` at once, the engine thread aborts within one step.
 *   4. Messages of one choice arrive in the order of its events.
 *   5. calls_max calls at most; the queues to prep and to the engine have room for all of them, so pushing there cannot fail. The queue to the io
 *      thread is bounded too; when it is full the engine thread waits.
 *   6. abort_wanted, of a call or of one choice, is set when somebody asked for it: by the io thread, or, where it was by a rid that stands in a body
 *      not yet read, by the prep thread that finds it there. The engine aborts within one step, and the client gets its answer so far with finish
 *      reason "abort".
 */
#ifndef CYGNET_CALL_H
#define CYGNET_CALL_H

#include <stdatomic.h>

#include "base/buf.h"
#include "server/http.h"
#include "server/port.h"

struct api; /* api.h */
struct dialect;

/* What goes into an error object. code may be NULL. */
struct api_error {
  int status;
  const char *code; /* static */
  char param[64];   /* empty: null */
  bool placed;      /* the message's place is in the client's own words already (translate.h) */
  char message[512];
};

struct job_media { /* a picture or a sound of a request */
  enum cygnet_media_kind kind;
  struct cygnet_media *media; /* owned */
  size_t charged;             /* bytes of media_house.held_bytes */
};

struct job_prompt {
  int32_t *ids; /* owned, by malloc; a placeholder stands once for all rows of its picture or sound */
  size_t n_ids;
  const struct cygnet_media **media; /* [n_media], in the order of the placeholders; owned, what is in it is borrowed from the job */
  int n_media, image_tokens, audio_tokens;
  size_t n_more_tokens; /* that the media have beyond their placeholders */
  char *text;           /* for echo, owned by malloc; NULL otherwise */
  size_t n_text;
  int max_tokens;  /* what was asked for, or what fits if that is less */
  char *rid;       /* what the client calls the answers to this one; owned; NULL: the call's rid */
  struct job *own; /* parameters of this prompt alone (from sampling on, and logprobs); owned; NULL: the job's */
};

struct job {
  struct job_prompt *prompts; /* [n_prompts] */
  int n_prompts;
  struct job_media *media; /* [n_media]; owned */
  int n_media;
  int n; /* choices of each prompt */
  bool stream, include_usage, continuous_usage, echo;
  int logprobs; /* -1: none; else how many alternatives */
  struct cygnet_sampling sampling;
  struct cygnet_bias *bias; /* owned */
  char **stop;              /* owned, and each */
  int n_stop;
  int32_t *stop_ids; /* owned */
  int n_stop_ids;
  bool keep_stop, ignore_eos, show_special;
  int prompt_logprobs;            /* -1: none; else from this prompt token on */
  struct cygnet_grammar *grammar; /* owned; NULL: anything may be answered */
  int thoughts, thinking_budget;  /* as in struct cygnet_request */
  int priority;
  char *cache_salt;    /* owned; NULL: the common cache */
  bool want_ids;       /* messages carry tokens, logprobs or not */
  bool cached_details; /* the answer says where cached tokens came from */
  bool as_list;        /* native.c: the answer is a list, items of a stream have an index */
  bool incremental;    /* native.c: a stream's items hold what is new, not all so far */
  bool text_in_logprobs, return_prompt_ids;
  /* conversations: how answers are taken apart (parts.h) */
  bool apart;
  bool in_thought;                    /* the prompt ends inside a thought */
  bool merge_thoughts, hold_thoughts; /* thoughts are content; they come in one piece, when they are over */
  char **names;                       /* [n_names] of the functions on offer; owned, and each */
  int n_names;
  double seconds; /* transcribe.c: of the whole sound */
  bool verbose, as_text;
  char *repeated; /* responses.c: fields that the answer repeats, as JSON without braces; owned */
};

/* Tokens of a prompt as they are counted and computed: with all rows of its pictures and sounds. */
static inline size_t job_prompt_tokens(const struct job_prompt *t) { return t->n_ids + t->n_more_tokens; }

/* The parameters of one prompt. */
static inline const struct job *job_of_prompt(const struct job *j, int prompt) {
  return j->prompts[prompt].own ? j->prompts[prompt].own : j;
}

enum control { /* what the engine thread does for a call that has no job */
               CONTROL_NONE,
               CONTROL_FLUSH, /* forget the prefix cache, at the latest at control_deadline_ns; the reply says whether it was idle by then */
};

struct call;

struct part { /* of an answer, from one message */
  enum cygnet_part_kind kind;
  size_t at, n; /* in choice.part_text */
  int call;     /* its number in choice.calls */
};
struct block { /* of an answer, for APIs that list them: parts of one kind that follow each other */
  enum cygnet_part_kind kind;
  struct buf text, logprobs; /* logprobs: responses.c */
  int call;
};
struct answer_call {      /* that the model asks for */
  char id[32];            /* "call_..." */
  char *name, *arguments; /* owned; NUL terminated */
  size_t n_arguments;
};

struct choice {
  struct call *call;
  int index, prompt; /* index = prompt * n + which one */
  /* engine thread */
  uint64_t request;         /* 0: not running */
  atomic_bool abort_wanted; /* rule 6, of this choice alone */
  /* io thread */
  bool begun;
  struct buf text, logprobs; /* logprobs: for chat the inside of "content", for completions that of "tokens" */
  struct buf token_logprobs, top_logprobs, text_offsets;
  struct buf output_ids, input_logprobs, input_tops; /* native.c: the insides of the arrays */
  /* parts.c */
  struct cygnet_parser *parser;
  struct part *parts; /* owned; [n_parts], of the message at hand */
  int n_parts, cap_parts;
  struct buf part_text;
  struct buf reasoning, held_reasoning; /* all so far; what job.hold_thoughts holds back */
  struct block *blocks;                 /* owned; [n_blocks] */
  int n_blocks, cap_blocks;
  bool block_open;           /* in a stream: the last one is not over */
  struct answer_call *calls; /* owned; [n_calls] */
  int n_calls, cap_calls;
  int reasoning_tokens;
  struct buf unsent_logprobs; /* responses.c: of tokens that no delta has carried yet */
  int n_output_ids;
  size_t text_offset; /* completions: code points so far */
  const char *finish;
  int matched_stop;
  int32_t matched_id;
  int prompt_tokens, cached_tokens, completion_tokens, n_retractions;
  int n_media_cached; /* pictures and sounds that were encoded before */
  double queue_ms, prefill_ms, decode_ms, encode_ms;
  int64_t first_token_ns, last_token_ns; /* metrics.c */
};

struct call {
  const struct dialect *dialect;
  const struct api *api;               /* since prep; for freeing what the engine gave */
  atomic_bool cancelled, abort_wanted; /* rules 3 and 6 */
  char id[40];                         /* "chatcmpl-..." */
  char *rid; /* what the client calls it, for abort_request: the body's rid or the x-request-id header; prep; owned; NULL = id */
  int64_t created;
  struct buf body;      /* io, then prep */
  char boundary[72];    /* of a body in parts (multipart.h); empty: JSON */
  char query[128];      /* of the request's target, for dialects that can do without a body */
  atomic_bool prepared; /* prep is over: what it wrote may be read by the io thread, too */

  struct job job;       /* prep */
  enum control control; /* prep */
  int64_t control_deadline_ns;
  struct choice *choices; /* [n_choices]; made by prep */
  int n_choices;

  struct call *next_active; /* engine thread */
  int n_running;
  bool aborting;
  struct api_error failure; /* status 0: none */

  struct http_exchange *x; /* io thread; NULL: the client left */
  int64_t arrived_ns;      /* io thread: the whole body was there */
  int status;              /* io thread: what was answered, for log and metrics; 499 when the client left first */
  bool sse;
  int n_events; /* responses.c: sent so far; transcribe.c: bytes of text */
  struct call *next, *prev;
};

enum message_kind {
  MESSAGE_GONE,  /* nothing to say (cancelled) */
  MESSAGE_ERROR, /* error */
  MESSAGE_REPLY, /* text is a whole JSON body */
  MESSAGE_EVENT  /* of one choice */
};

struct message_token {
  int32_t id;
  float logprob;
  int first_top, n_top; /* in tops */
};

struct message {
  struct message *next; /* threads.c */
  struct call *call;
  enum message_kind kind;
  bool last;
  struct api_error error;
  int choice;
  struct buf text;
  struct cygnet_mark *marks; /* owned */
  size_t n_marks;
  int reasoning_tokens;
  struct message_token *tokens; /* only when logprobs were asked for */
  int n_tokens;
  struct cygnet_logprob *tops;
  enum cygnet_finish finish;
  int matched_stop;
  int32_t matched_id;
  int prompt_tokens, cached_tokens, completion_tokens, n_retractions;
  int n_media, n_media_cached;
  double queue_ms, prefill_ms, decode_ms, encode_ms;
  int64_t at_ns; /* when the engine thread had it */
  /* prompt logprobs, in the first event of a choice that asked: token i is prompt token job.prompt_logprobs + i; a logprob that does not exist is NaN */
  struct message_token *prompt;
  int n_prompt;
  struct cygnet_logprob *prompt_tops;
};

struct call *call_new(const struct dialect *dialect);
void call_random_id(char *out, size_t size, const char *prefix); /* prefix and 24 hexadecimal digits */
void call_free(struct call *c);
struct message *message_new(struct call *c, enum message_kind kind);
void message_free(struct message *m);

/* Fill *e and return -1. param: name of the offending field or NULL. */
int api_error_set(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...) PRINTF_LIKE(5, 6);
/* {"error":{"message":...,"type":...,"param":...,"code":...}}, the one shape of all errors of this server. */
void api_error_put(struct buf *out, const struct api_error *e);

#endif
