/* threads.c — the two loops. */
#include "server/threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/queue.h"

enum { TO_IO_CAPACITY = 1 << 14 };

struct threads {
  struct port port;
  threads_prepare prepare;
  void *ctx;
  struct queue *to_prep, *to_engine, *to_io;
  pthread_t prep_thread, engine_thread;
  bool prep_started, engine_started;
  atomic_bool prep_stop, engine_stop;
  struct call *active; /* engine thread: calls with running choices */
  atomic_bool prep_done, engine_done;
  struct message *spill, **spill_end; /* io thread: taken out of to_io while threads_stop waits */
  pthread_mutex_t stats_mutex;
  struct cygnet_stats stats;
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
  } else if (r > 0) {
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

static void *prep_main(void *arg) {
  struct threads *t = arg;
  for (;;) {
    struct call *c = queue_pop(t->to_prep);
    if (c) prepare_one(t, c);
    else if (atomic_load(&t->prep_stop)) break;
    else queue_wait(t->to_prep, -1);
  }
  atomic_store(&t->prep_done, true);
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
  const struct job *j = &o->call->job;
  const struct job_prompt *p = &j->prompts[o->prompt];
  struct cygnet_request r = {
      .prompt = p->ids,
      .n_prompt = p->n_ids,
      .max_tokens = p->max_tokens,
      .sampling = j->sampling,
      .stop = (const char *const *)j->stop,
      .n_stop = (size_t)j->n_stop,
      .stop_ids = j->stop_ids,
      .n_stop_ids = (size_t)j->n_stop_ids,
      .keep_stop = j->keep_stop,
      .ignore_eos = j->ignore_eos,
      .show_special = j->show_special,
      .logprobs = j->logprobs + 1,
      .user = o,
  };
  r.sampling.seed = seed_of_choice(r.sampling.seed, o->index % j->n);
  return t->port.submit(t->port.self, &r, e);
}

static void abort_choices(struct threads *t, struct call *c) {
  c->aborting = true;
  for (int i = 0; i < c->n_choices; i++)
    if (c->choices[i].request) t->port.abort(t->port.self, c->choices[i].request);
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
  if (c->failure.status) abort_choices(t, c); /* all or none; the error goes out with the last of them */
}

static void unlink_active(struct threads *t, struct call *c) {
  struct call **at = &t->active;
  while (*at != c) at = &(*at)->next_active;
  *at = c->next_active;
}

static void copy_tokens(struct message *m, const struct cygnet_event *ev) {
  size_t n_tops = 0;
  for (size_t i = 0; i < ev->n_tokens; i++) n_tops += (size_t)ev->tokens[i].n_top;
  m->tokens = xcalloc(ev->n_tokens + 1, sizeof *m->tokens);
  m->tops = xcalloc(n_tops + 1, sizeof *m->tops);
  m->n_tokens = (int)ev->n_tokens;
  int at = 0;
  for (size_t i = 0; i < ev->n_tokens; i++) {
    const struct cygnet_token *token = &ev->tokens[i];
    m->tokens[i] = (struct message_token){token->id, token->logprob, at, token->n_top};
    for (int k = 0; k < token->n_top; k++) m->tops[at++] = token->top[k];
  }
}

static void take_event(struct threads *t, const struct cygnet_event *ev) {
  struct choice *o = ev->user;
  struct call *c = o->call;
  if (ev->finish == CYGNET_FINISH_ERROR && !c->failure.status && !c->aborting) {
    error_from_engine(&c->failure, &ev->error);
    o->request = 0; /* it is over; only the others are to be aborted */
    abort_choices(t, c);
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
  if (c->job.logprobs >= 0 && ev->n_tokens) copy_tokens(m, ev);
  m->finish = ev->finish;
  m->matched_stop = ev->matched_stop;
  m->matched_id = ev->matched_id;
  m->prompt_tokens = ev->prompt_tokens;
  m->cached_tokens = ev->cached_tokens;
  m->completion_tokens = ev->completion_tokens;
  send_message(t, m);
}

static void publish_stats(struct threads *t) {
  struct cygnet_stats s;
  t->port.stats(t->port.self, &s);
  pthread_mutex_lock(&t->stats_mutex);
  t->stats = s;
  pthread_mutex_unlock(&t->stats_mutex);
}

static void *engine_main(void *arg) {
  struct threads *t = arg;
  for (;;) {
    for (struct call *c; (c = queue_pop(t->to_engine));) submit_call(t, c);
    bool stop = atomic_load(&t->engine_stop);
    if (stop && !t->active) break;
    for (struct call *c = t->active; c; c = c->next_active)
      if (!c->aborting && (stop || atomic_load(&c->cancelled))) abort_choices(t, c);

    atomic_store(&t->step_started_ns, clock_ns());
    int busy = t->port.step(t->port.self);
    atomic_store(&t->step_started_ns, 0);
    struct cygnet_event ev;
    while (t->port.next_event(t->port.self, &ev)) {
      take_event(t, &ev);
      busy = 1;
    }
    publish_stats(t);
    if (!busy) queue_wait(t->to_engine, t->active ? 5 : -1);
  }
  atomic_store(&t->engine_done, true);
  queue_wake(t->to_io);
  return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

struct threads *threads_start(const struct port *port, int calls_max, threads_prepare prepare, void *ctx, struct err *e) {
  struct threads *t = xcalloc(1, sizeof *t);
  t->port = *port;
  t->prepare = prepare;
  t->ctx = ctx;
  t->spill_end = &t->spill;
  pthread_mutex_init(&t->stats_mutex, NULL);
  t->to_prep = queue_new(calls_max, e);
  t->to_engine = t->to_prep ? queue_new(calls_max, e) : NULL;
  t->to_io = t->to_engine ? queue_new(TO_IO_CAPACITY, e) : NULL;
  if (!t->to_io) goto fail;
  if (pthread_create(&t->prep_thread, NULL, prep_main, t)) {
    err_set(e, ERR_IO, "cannot start a thread");
    goto fail;
  }
  t->prep_started = true;
  if (pthread_create(&t->engine_thread, NULL, engine_main, t)) {
    err_set(e, ERR_IO, "cannot start a thread");
    goto fail;
  }
  t->engine_started = true;
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
static void join(struct threads *t, pthread_t thread, atomic_bool *done) {
  for (;;) {
    bool finished = atomic_load(done);
    for (struct message *m; (m = queue_pop(t->to_io));) {
      *t->spill_end = m;
      t->spill_end = &m->next;
    }
    if (finished) break;
    if (!atomic_load(done)) queue_wait(t->to_io, -1); /* asked again: finding no message took the thread's last wake-up back */
  }
  pthread_join(thread, NULL);
}

void threads_stop(struct threads *t) {
  atomic_store(&t->prep_stop, true);
  if (t->to_prep) queue_wake(t->to_prep);
  if (t->prep_started) join(t, t->prep_thread, &t->prep_done);
  t->prep_started = false;
  atomic_store(&t->engine_stop, true); /* only now: what prep handed over is in its queue */
  if (t->to_engine) queue_wake(t->to_engine);
  if (t->engine_started) join(t, t->engine_thread, &t->engine_done);
  t->engine_started = false;
}

void threads_delete(struct threads *t) {
  if (!t) return;
  queue_delete(t->to_prep);
  queue_delete(t->to_engine);
  queue_delete(t->to_io);
  pthread_mutex_destroy(&t->stats_mutex);
  free(t);
}

void threads_stats(struct threads *t, struct cygnet_stats *out, double *step_ms) {
  pthread_mutex_lock(&t->stats_mutex);
  *out = t->stats;
  pthread_mutex_unlock(&t->stats_mutex);
  int64_t started = atomic_load(&t->step_started_ns);
  *step_ms = started ? clock_ms_since(started) : 0;
}
