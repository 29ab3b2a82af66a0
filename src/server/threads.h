/* threads.h — the prep threads and the engine thread behind their queues (call.h has the picture and the rules).
 *
 * The engine thread is the only one that touches the engine after threads_start. It sleeps on its queue when there is nothing to compute, so an
 * idle server uses no processor. Prep threads work on different calls at the same time: what one does with a long prompt delays nobody else.
 */
#ifndef CYGNET_THREADS_H
#define CYGNET_THREADS_H

#include "base/err.h"
#include "server/call.h"

struct threads;

/* prepare: runs on a prep thread, several at a time; fills call->job and call->choices and returns 0, or -1 and *e, or 1: *reply is a whole body and no
 * engine is needed, or call->control says what it is to do. */
typedef int (*threads_prepare)(void *ctx, struct call *c, struct buf *reply, struct api_error *e);

struct threads *threads_start(const struct port *port, int calls_max, int n_prep, threads_prepare prepare, void *ctx,
                              struct err *e);               /* returns owned */
void threads_submit(struct threads *t, struct call *c);     /* io thread; the call comes back with its last message */
void threads_cancel(struct threads *t, struct call *c);     /* io thread; sets cancelled and makes the engine look */
void threads_abort(struct threads *t, atomic_bool *wanted); /* sets abort_wanted of a call or of a choice and makes the engine look */
int threads_fd(const struct threads *t);                    /* readable when there may be messages */
struct message *threads_next(struct threads *t);            /* io thread; NULL: none. message_free */
void threads_wake(struct threads *t);                       /* any thread: make threads_fd readable */
void threads_stop(struct threads *t);   /* cancels everything; threads_next then gives what is left, all last ones included */
void threads_delete(struct threads *t); /* after threads_stop and draining */

/* Any thread. step_ms: how long the current step has been running, 0 when idle. */
void threads_stats(struct threads *t, struct cygnet_stats *out, double *step_ms);
/* Any thread. Whether the engine has lost its device (cygnet_lost), and what it says of that. The engine makes threads_fd readable when it
 * happens, behind the messages of all that it failed. */
bool threads_lost(struct threads *t, struct cygnet_error *e);

#endif
