/* queue.c — a ring under a mutex, and an eventfd that says "look".
 *
 * Invariant, whenever the mutex is free: the eventfd is readable exactly when `signalled` is set, and `signalled` is set
 * whenever the ring holds something. It is cleared only by a pop that finds the ring empty, so a burst of pushes costs
 * one write. The mutex is held for a few instructions (and that write), never while an item is used.
 */
#include "base/queue.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { QUEUE_CAPACITY_MAX = 1 << 20 };

struct queue {
  pthread_mutex_t mutex;
  void **items; /* [capacity] ring */
  int capacity;
  int first; /* index of the oldest */
  int count;
  bool signalled;
  int fd; /* eventfd */
};

struct queue *queue_new(int capacity, struct err *e) {
  if (capacity < 1 || capacity > QUEUE_CAPACITY_MAX) {
    err_set(e, ERR_BAD_INPUT, "queue: expected a capacity of 1 to %d, found %d", QUEUE_CAPACITY_MAX, capacity);
    return NULL;
  }
  struct queue *q = xcalloc(1, sizeof *q);
  q->capacity = capacity;
  q->items = xcalloc((size_t)capacity, sizeof *q->items);
  CHECK(pthread_mutex_init(&q->mutex, NULL) == 0);
  q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (q->fd < 0) {
    err_set(e, ERR_IO, "queue: cannot make an eventfd: %s", strerror(errno));
    queue_delete(q);
    return NULL;
  }
  return q;
}

void queue_delete(struct queue *q) {
  if (!q) return;
  if (q->fd >= 0) close(q->fd);
  pthread_mutex_destroy(&q->mutex);
  free(q->items);
  free(q);
}

/* Both with the mutex held. The count is 0 or 1, so neither can block or fail. */
static void signal_on(struct queue *q) {
  uint64_t one = 1;
  if (q->signalled) return;
  q->signalled = true;
  CHECK(write(q->fd, &one, sizeof one) == sizeof one);
}

static void signal_off(struct queue *q) {
  uint64_t count;
  if (!q->signalled) return;
  q->signalled = false;
  CHECK(read(q->fd, &count, sizeof count) == sizeof count);
}

bool queue_push(struct queue *q, void *item) {
  CHECK(item);
  pthread_mutex_lock(&q->mutex);
  bool fits = q->count < q->capacity;
  if (fits) {
    q->items[(q->first + q->count) % q->capacity] = item;
    q->count++;
    signal_on(q);
  }
  pthread_mutex_unlock(&q->mutex);
  return fits;
}

void *queue_pop(struct queue *q) {
  void *item = NULL;
  pthread_mutex_lock(&q->mutex);
  if (q->count > 0) {
    item = q->items[q->first];
    q->first = (q->first + 1) % q->capacity;
    q->count--;
  } else {
    signal_off(q);
  }
  pthread_mutex_unlock(&q->mutex);
  return item;
}

int queue_fd(const struct queue *q) { return q->fd; }

void queue_wait(struct queue *q, int timeout_ms) {
  int64_t end_ns = clock_ns() + (int64_t)timeout_ms * 1000000;
  struct pollfd p = {.fd = q->fd, .events = POLLIN};
  int left_ms = timeout_ms;
  while (poll(&p, 1, left_ms) < 0 && errno == EINTR) {
    if (timeout_ms < 0) continue;
    int64_t left_ns = end_ns - clock_ns();
    left_ms = left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0;
  }
}

void queue_wake(struct queue *q) {
  pthread_mutex_lock(&q->mutex);
  signal_on(q);
  pthread_mutex_unlock(&q->mutex);
}
