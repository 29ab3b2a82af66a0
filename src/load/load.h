/* load.h — load on a server that speaks OpenAI's or SGLang's API: many requests, when each is sent, and when each piece of its answer came.
 *
 *   workload.h  what is asked          dialect.h  how an API says it, and what its events mean
 *   load.h      when, and what came    stats.h    what that comes to      report.h, plot.h  how it is shown
 *
 * Rules
 *   1. One thread, any number of connections: sockets are waited for with epoll, and libcurl does the rest.
 *   2. A time is taken when libcurl hands over bytes, before anybody looks into them. Times are nanoseconds since the run began.
 *   3. Nothing is computed while it is timed that could be computed before: first turns are JSON already. Only later turns are made on the way,
 *      as they contain answers.
 *   4. No request is lost: each ends as done, as failed with a kind and a sentence, or as never sent.
 *   5. Tokens are the server's own counts, where it tells them. Otherwise each piece of text counts as one token, and that is said.
 *   6. Nothing is tried again: a refusal is a result.
 */
#ifndef CYGNET_LOAD_LOAD_H
#define CYGNET_LOAD_LOAD_H

#include "eval/url.h"
#include "load/workload.h"

enum load_api { LOAD_OPENAI, LOAD_CHAT, LOAD_SGLANG };

struct load_settings {
  const struct url *u;
  const char *model; /* what requests call it; NULL: SGLang's API needs none */
  enum load_api api;
  bool ignore_eos; /* answers have the length that is asked for; asked for with fields that OpenAI's own API does not have */
  double rate;     /* conversations begun per second, at random (Poisson); INFINITY: all at once */
  int parallel;    /* most requests on their way at the same time; 0: any number */
  uint64_t seed;   /* of the arrivals */
  bool progress;   /* a line on the standard error, kept up to date */
  bool (*stopped)(void);
};

enum load_state { LOAD_UNSENT, LOAD_RUNNING, LOAD_DONE, LOAD_FAILED }; /* unsent: or given up when the run was stopped */

struct load_mark { /* one piece of an answer */
  int64_t ns;
  int tokens; /* of the answer so far; -1: the server did not say */
};

struct load_result {
  enum load_state state;
  int64_t due_ns, sent_ns, first_ns, last_ns; /* due: when it should have been sent; first: text; last: byte, or the failure */
  int prompt_tokens, cached_tokens, completion_tokens;
  bool has_usage;
  struct load_mark *marks; /* owned; pieces with text or tokens, in order; after the run each has its tokens */
  int n_marks, cap_marks;
  char kind[24]; /* of a failure: "HTTP 500", "hang-up", ... */
  char *message; /* owned; NULL: it did not fail */
};

struct load_run {
  const struct load_settings *settings;
  const struct workload *work;
  struct load_result *results; /* owned, [work->n] */
  int64_t duration_ns;         /* until the last answer or failure */
  int peak;                    /* most requests that were on their way at the same time */
  bool interrupted;
};

/* Sends everything that w has and waits for it, or until settings->stopped(): then what is still on its way counts as never sent. Both are borrowed as
 * long as the run is looked at. 0, or -1 and *e when the system refuses. */
int load_run(struct load_run *r, const struct load_settings *s, const struct workload *w, struct err *e);
void load_free(struct load_run *r);

/* Seconds between conversation i - 1 and i >= 1: exponential with mean 1 / rate, a function of (seed, i). 0 for an infinite rate. */
double load_gap(uint64_t seed, int i, double rate);

#endif
