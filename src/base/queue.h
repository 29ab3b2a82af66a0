/* queue.h — bounded queue of pointers with an eventfd: the only place where two threads meet.
 *
 * Many producers, one consumer. Push never blocks: a full queue is a result, the producer decides. The eventfd is
 * readable while something may be in the queue, so that a consumer can wait on it beside sockets.
 *
 * Only a queue_pop that returns NULL makes the eventfd unreadable again. A consumer therefore pops until NULL, then looks
 * at whatever else queue_wake may have been about (a stop flag), and only then waits: no wake is lost in that order.
 */
#ifndef CYGNET_QUEUE_H
#define CYGNET_QUEUE_H

#include "base/base.h"
#include "base/err.h"

struct queue;

struct queue *queue_new(int capacity, struct err *e); /* 1 to 1 048 576 items */
void queue_delete(struct queue *q);                   /* whatever is still inside is the caller's: pop first */
bool queue_push(struct queue *q, void *item);         /* false when full; takes item (never NULL) on success */
void *queue_pop(struct queue *q);                     /* NULL when empty; gives item */
int queue_fd(const struct queue *q);                  /* poll it for reading */
void queue_wait(struct queue *q, int timeout_ms);     /* until something may be in; -1 = for ever */
void queue_wake(struct queue *q);                     /* make a waiting consumer look again */

#endif
