/* threads.c — the two loops: prep (on several threads) and engine.
 *
 * Prep threads take calls in the order of their arrival, each as soon as it is free: a call that takes long is overtaken by the next ones. The queue
 * has one consumer at a time, the thread that holds prep_mutex; a call itself is prepared without it.
 */
#include "server/threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"

enum { TO_IO_CAPACITY = 1 << 14, TURN_MS = 5 };

struct loop { /* a thread and what its end needs */
  struct threads *threads;
  pthread_t thread;
  bool started;
  atomic_bool done;
};

struct threads {
  struct port port;
  threads_prepare prepare;
  void *ctx;
  struct queue *to_prep, *to_engine, *to_io;
  struct loop *prep, engine; /* [n_prep] */
  int n_prep;
  pthread_mutex_t prep_mutex; /* who holds it is the consumer of to_prep */
  atomic_bool prep_stop, engine_stop;
  struct call *active;                /* engine thread: calls with running choices */
  struct call *controls;              /* engine thread: calls without choices that wait for their moment */
  struct message *spill, **spill_end; /* io thread: taken out of to_io while threads_stop waits */
  pthread_mutex_t stats_mutex;
  struct cygnet_stats stats;
  bool is_lost; /* like stats, under stats_mutex */
  struct cygnet_error lost;
  _Atomic int64_t step_started_ns; /* 0: not in a step */
};

/* ---- messages to the io thread ------------------------------------------------------------------------------------------ */

static void send_message(struct threads *t, struct message *m) {
  while (!queue_push(t->to_io, m)) { /* the io thread is behind: wait for it, it always comes */
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

static void send_last(struct threads *t, struct call *c, enum message_kind kind, const struct api_error *e) {
  struct message *m = message_new(c, kind);
  if (e) m->error = *e;
  m->last = true;
  send_message(t, m);
}

/* ---- prep --------------------------------------------------------------------------------------------------------------- */

static void prepare_one(struct threads *t, struct call *c) {
  struct api_error e = {0};
  struct buf reply;
  if (atomic_load(&c->cancelled)) {
    send_last(t, c, MESSAGE_GONE, NULL);
    return;
  }
  buf_init(&reply, 0);
  int r = t->prepare(t->ctx, c, &reply, &e);
  buf_free(&c->body);
  if (r < 0) {
    send_last(t, c, MESSAGE_ERROR, &e);
  } else if (r > 0 && !c->control) {
    struct message *m = message_new(c, MESSAGE_REPLY);
    m->text = reply;
    m->last = true;
    buf_init(&reply, 0);
    send_message(t, m);
  } else {
    CHECK(queue_push(t->to_engine, c));
  }
  buf_free(&reply);
}

/* NULL: it is over, and the queue is empty. */
static struct call *next_to_prepare(struct threads *t) {
  struct call *c;
  pthread_mutex_lock(&t->prep_mutex);
  while (!(c = queue_pop(t->to_prep)) && !atomic_load(&t->prep_stop)) queue_wait(t->to_prep, -1);
  pthread_mutex_unlock(&t->prep_mutex);
  return c;
}

static void *prep_main(void *arg) {
  struct loop *loop = arg;
  struct threads *t = loop->threads;
  for (struct call *c; (c = next_to_prepare(t));) prepare_one(t, c);
  atomic_store(&loop->done, true);
  queue_wake(t->to_io);
  return NULL;
}

/* ---- engine ------------------------------------------------------------------------------------------------------------- */

static void error_from_engine(struct api_error *out, const struct cygnet_error *e) {
  int status = e->status >= 400 && e->status != 499 ? e->status : 500;
  api_error_set(out, status,
                status == 503   ? "busy"
                : status >= 500 ? "internal_error"
                                : NULL,
                NULL, "%s", e->message[0] ? e->message : "the computation failed");
}

/* Seeds of the choices of one prompt: the first is the client's own, the others are spread from it (splitmix64). */
static uint64_t seed_of_choice(uint64_t seed, int which) {
  if (which == 0) return seed;
  uint64_t z = seed + (uint64_t)which * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t submit_choice(struct threads *t, struct choice *o, struct cygnet_error *e) {
  const struct job *shared = &o->call->job, *j = job_of_prompt(shared, o->prompt);
  const struct job_prompt *p = &shared->prompts[o->prompt];
  struct cygnet_request r = {
      .prompt = p->ids,
      .n_prompt = p->n_ids,
      .media = p->media,
      .n_media = (size_t)p->n_media,
      .max_tokens = p->max_tokens,
      .sampling = j->sampling,
      .stop = (const char *const *)j->stop,
      .n_stop = (size_t)j->n_stop,
      .stop_ids = j->stop_ids,
      .n_stop_ids = (size_t)j->n_stop_ids,
      .keep_stop = j->keep_stop,
      .ignore_eos = j->ignore_eos,
      .show_special = j->show_special,
      .marks = shared->apart,
      .grammar = j->grammar,
      .thoughts = j->thoughts,
      .thinking_budget = j->thinking_budget,
      .logprobs = j->logprobs + 1,
      .prompt_logprobs = j->prompt_logprobs + 1,
      .priority = shared->priority,
      .cache_salt = shared->cache_salt,
      .n_cache_salt = shared->cache_salt ? strlen(shared->cache_salt) : 0,
      .user = o,
  };
  r.sampling.seed = seed_of_choice(r.sampling.seed, o->index % shared->n);
  return t->port.submit(t->port.self, &r, e);
}

static void abort_choices(struct threads *t, struct call *c) {
  for (int i = 0; i < c->n_choices; i++)
    if (c->choices[i].request) t->port.abort(t->port.self, c->choices[i].request);
}

/* Nobody will read what is still to come. */
static void drop_call(struct threads *t, struct call *c) {
  c->aborting = true;
  abort_choices(t, c);
}

static void submit_call(struct threads *t, struct call *c) {
  struct cygnet_error e = {0};
  if (atomic_load(&c->cancelled) || atomic_load(&t->engine_stop)) {
    send_last(t, c, MESSAGE_GONE, NULL);
    return;
  }
  for (int i = 0; i < c->n_choices; i++) {
    c->choices[i].request = submit_choice(t, &c->choices[i], &e);
    if (!c->choices[i].request) {
      error_from_engine(&c->failure, &e);
      break;
    }
    c->n_running++;
  }
  if (c->n_running == 0) {
    send_last(t, c, MESSAGE_ERROR, &c->failure);
    return;
  }
  c->next_active = t->active;
  t->active = c;
  if (c->failure.status) drop_call(t, c); /* all or none; the error goes out with the last of them */
}

static void unlink_active(struct threads *t, struct call *c) {
  struct call **at = &t->active;
  while (*at != c) at = &(*at)->next_active;
  *at = c->next_active;
}

/* n tokens with their alternatives; both owned. */
static int copy_tokens(const struct cygnet_token *from, size_t n, struct message_token **tokens, struct cygnet_logprob **tops) {
  size_t n_tops = 0;
  for (size_t i = 0; i < n; i++) n_tops += (size_t)from[i].n_top;
  *tokens = xcalloc(n + 1, sizeof **tokens);
  *tops = xcalloc(n_tops + 1, sizeof **tops);
  int at = 0;
  for (size_t i = 0; i < n; i++) {
    (*tokens)[i] = (struct message_token){from[i].id, from[i].logprob, at, from[i].n_top};
    for (int k = 0; k < from[i].n_top; k++) (*tops)[at++] = from[i].top[k];
  }
  return (int)n;
}

static void take_event(struct threads *t, const struct cygnet_event *ev) {
  struct choice *o = ev->user;
  struct call *c = o->call;
  if (ev->finish == CYGNET_FINISH_ERROR && !c->failure.status && !c->aborting) {
    error_from_engine(&c->failure, &ev->error);
    o->request = 0; /* it is over; only the others are to be aborted */
    drop_call(t, c);
  }
  if (ev->finish) {
    o->request = 0;
    c->n_running--;
  }
  bool last = c->n_running == 0;
  if (last) unlink_active(t, c);
  if (c->failure.status || c->aborting) { /* nobody reads the rest */
    if (last) send_last(t, c, c->failure.status ? MESSAGE_ERROR : MESSAGE_GONE, c->failure.status ? &c->failure : NULL);
    return;
  }
  struct message *m = message_new(c, MESSAGE_EVENT);
  m->last = last;
  m->choice = o->index;
  buf_append(&m->text, ev->text, ev->n_text);
  if (ev->n_marks) {
    m->marks = xcalloc(ev->n_marks, sizeof *m->marks);
    memcpy(m->marks, ev->marks, ev->n_marks * sizeof *m->marks);
    m->n_marks = ev->n_marks;
  }
  m->reasoning_tokens = ev->reasoning_tokens;
  if (ev->n_tokens && (c->job.want_ids || job_of_prompt(&c->job, o->prompt)->logprobs >= 0))
    m->n_tokens = copy_tokens(ev->tokens, ev->n_tokens, &m->tokens, &m->tops);
  if (ev->n_prompt) m->n_prompt = copy_tokens(ev->prompt, ev->n_prompt, &m->prompt, &m->prompt_tops);
  m->finish = ev->finish;
  m->matched_stop = ev->matched_stop;
  m->matched_id = ev->matched_id;
  m->prompt_tokens = ev->prompt_tokens;
  m->cached_tokens = ev->cached_tokens;
  m->completion_tokens = ev->completion_tokens;
  m->n_retractions = ev->n_retractions;
  m->n_media = ev->n_media;
  m->n_media_cached = ev->n_media_cached;
  m->encode_ms = ev->encode_ms;
  m->queue_ms = ev->queue_ms;
  m->prefill_ms = ev->prefill_ms;
  m->decode_ms = ev->decode_ms;
  m->at_ns = clock_ns();
  send_message(t, m);
}

static void publish_stats(struct threads *t) {
  struct cygnet_stats s;
  t->port.stats(t->port.self, &s);
  pthread_mutex_lock(&t->stats_mutex);
  t->stats = s;
  pthread_mutex_unlock(&t->stats_mutex);
}

/* Once, when it happens. */
static void publish_loss(struct threads *t) {
  struct cygnet_error e = {0};
  if (t->is_lost || !t->port.lost || !t->port.lost(t->port.self, &e)) return;
  pthread_mutex_lock(&t->stats_mutex);
  t->is_lost = true;
  t->lost = e;
  pthread_mutex_unlock(&t->stats_mutex);
  queue_wake(t->to_io);
}

bool threads_lost(struct threads *t, struct cygnet_error *e) {
  pthread_mutex_lock(&t->stats_mutex);
  bool is_lost = t->is_lost;
  if (is_lost) *e = t->lost;
  pthread_mutex_unlock(&t->stats_mutex);
  return is_lost;
}

/* Rules 3 and 6 of call.h. */
static void look_at_active(struct threads *t, bool stop) {
  for (struct call *c = t->active; c; c = c->next_active) {
    if (c->aborting) continue;
    if (stop || atomic_load(&c->cancelled)) {
      drop_call(t, c);
      continue;
    }
    bool all = atomic_load(&c->abort_wanted) && atomic_exchange(&c->abort_wanted, false); /* once is enough */
    for (int i = 0; i < c->n_choices; i++) {
      struct choice *o = &c->choices[i];
      if (o->request && (all || (atomic_load(&o->abort_wanted) && atomic_exchange(&o->abort_wanted, false))))
        t->port.abort(t->port.self, o->request);
    }
  }
}

/* Answers the control calls whose moment has come: done, too late, or nobody wants to know any more. */
static void look_at_controls(struct threads *t, bool stop) {
  for (struct call **at = &t->controls, *c; (c = *at);) {
    enum message_kind kind = MESSAGE_GONE;
    struct api_error e;
    if (!stop && !atomic_load(&c->cancelled)) {
      struct cygnet_stats now;
      t->port.stats(t->port.self, &now);
      if (t->port.flush(t->port.self) == 0) {
        publish_stats(t);
        kind = MESSAGE_REPLY;
      } else if (clock_ns() >= c->control_deadline_ns) {
        api_error_set(&e, 400, "not_idle", NULL, "the cache was not flushed: %d requests are running and %d are waiting", now.n_running,
                      now.n_waiting);
        kind = MESSAGE_ERROR;
      } else {
        at = &c->next_active;
        continue;
      }
    }
    *at = c->next_active;
    send_last(t, c, kind, kind == MESSAGE_ERROR ? &e : NULL);
  }
}

static void take_call(struct threads *t, struct call *c) {
  if (!c->control) {
    submit_call(t, c);
    return;
  }
  c->next_active = t->controls;
  t->controls = c;
}

static void *engine_main(void *arg) {
  struct loop *loop = arg;
  struct threads *t = loop->threads;
  for (;;) {
    for (struct call *c; (c = queue_pop(t->to_engine));) take_call(t, c);
    bool stop = atomic_load(&t->engine_stop);
    if (stop && !t->active && !t->controls) break;
    look_at_active(t, stop);

    atomic_store(&t->step_started_ns, clock_ns());
    int busy = t->port.step(t->port.self);
    atomic_store(&t->step_started_ns, 0);
    publish_stats(t); /* before the events: who has an answer does not find its request still running */
    struct cygnet_event ev;
    while (t->port.next_event(t->port.self, &ev)) {
      take_event(t, &ev);
      busy = 1;
    }
    publish_loss(t);
    look_at_controls(t, stop);
    if (!busy) queue_wait(t->to_engine, t->active || t->controls || stop ? TURN_MS : -1);
  }
  atomic_store(&loop->done, true);
  queue_wake(t->to_io);
  return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

static int loop_start(struct threads *t, struct loop *loop, void *(*loop_main)(void *), struct err *e) {
  loop->threads = t;
  if (pthread_create(&loop->thread, NULL, loop_main, loop)) return err_set(e, ERR_IO, "cannot start a thread");
  loop->started = true;
  return 0;
}

struct threads *threads_start(const struct port *port, int calls_max, int n_prep, threads_prepare prepare, void *ctx, struct err *e) {
  struct threads *t = xcalloc(1, sizeof *t);
  t->port = *port;
  t->prepare = prepare;
  t->ctx = ctx;
  t->spill_end = &t->spill;
  pthread_mutex_init(&t->stats_mutex, NULL);
  pthread_mutex_init(&t->prep_mutex, NULL);
  t->n_prep = n_prep;
  t->prep = xcalloc((size_t)n_prep, sizeof *t->prep);
  t->to_prep = queue_new(calls_max, e);
  t->to_engine = t->to_prep ? queue_new(calls_max, e) : NULL;
  t->to_io = t->to_engine ? queue_new(TO_IO_CAPACITY, e) : NULL;
  if (!t->to_io) goto fail;
  for (int i = 0; i < n_prep; i++)
    if (loop_start(t, &t->prep[i], prep_main, e)) goto fail;
  if (loop_start(t, &t->engine, engine_main, e)) goto fail;
  return t;
fail:
  threads_stop(t);
  threads_delete(t);
  return NULL;
}

void threads_submit(struct threads *t, struct call *c) { CHECK(queue_push(t->to_prep, c)); }

void threads_cancel(struct threads *t, struct call *c) {
  atomic_store(&c->cancelled, true);
  queue_wake(t->to_engine);
}

void threads_abort(struct threads *t, atomic_bool *wanted) {
  atomic_store(wanted, true);
  queue_wake(t->to_engine);
}

int threads_fd(const struct threads *t) { return queue_fd(t->to_io); }
struct message *threads_next(struct threads *t) {
  struct message *m = t->spill;
  if (!m) return queue_pop(t->to_io);
  t->spill = m->next;
  if (!t->spill) t->spill_end = &t->spill;
  return m;
}
void threads_wake(struct threads *t) { queue_wake(t->to_io); }

/* Wait for a thread to say that it is done, keeping to_io empty so that it cannot get stuck on a full queue. */
static void join(struct threads *t, struct loop *loop) {
  while (loop->started) {
    bool finished = atomic_load(&loop->done);
    for (struct message *m; (m = queue_pop(t->to_io));) {
      *t->spill_end = m;
      t->spill_end = &m->next;
    }
    if (finished) {
      pthread_join(loop->thread, NULL);
      loop->started = false;
    } else if (!atomic_load(&loop->done)) {
      queue_wait(t->to_io, -1); /* asked again: finding no message took the thread's last wake-up back */
    }
  }
}

void threads_stop(struct threads *t) {
  atomic_store(&t->prep_stop, true);
  if (t->to_prep) queue_wake(t->to_prep);
  for (int i = 0; i < t->n_prep; i++) join(t, &t->prep[i]);
  atomic_store(&t->engine_stop, true); /* only now: what prep handed over is in its queue */
  if (t->to_engine) queue_wake(t->to_engine);
  join(t, &t->engine);
}

void threads_delete(struct threads *t) {
  if (!t) return;
  queue_delete(t->to_prep);
  queue_delete(t->to_engine);
  queue_delete(t->to_io);
  free(t->prep);
  pthread_mutex_destroy(&t->stats_mutex);
  pthread_mutex_destroy(&t->prep_mutex);
  free(t);
}

void threads_stats(struct threads *t, struct cygnet_stats *out, double *step_ms) {
  pthread_mutex_lock(&t->stats_mutex);
  *out = t->stats;
  pthread_mutex_unlock(&t->stats_mutex);
  int64_t started = atomic_load(&t->step_started_ns);
  *step_ms = started ? clock_ms_since(started) : 0;
}
