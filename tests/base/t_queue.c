/* t_queue.c — order, bounds, the eventfd, and four producers against one consumer. */
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/queue.h"

static bool readable(const struct queue *q) {
  struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
  return poll(&p, 1, 0) == 1;
}

static void bounds(void **state) {
  (void)state;
  struct err e = {0};
  assert_null(queue_new(0, &e));
  assert_int_equal(e.code, ERR_BAD_INPUT);
  assert_null(queue_new(-1, NULL));
  assert_null(queue_new((1 << 20) + 1, NULL));
  queue_delete(NULL);
}

/* Random pushes and pops against a plain array; the eventfd is readable whenever something is inside. */
static void against_model(void **state) {
  (void)state;
  uint64_t seed = 8;
  static char things[64];
  for (int capacity = 1; capacity <= 5; capacity++) {
    struct queue *q = queue_new(capacity, NULL);
    void *model[8];
    int n = 0;
    assert_false(readable(q));
    for (int step = 0; step < 3000; step++) {
      void *item = &things[test_rand_int(&seed, 0, 63)];
      if (test_rand_int(&seed, 0, 1)) {
        bool fits = n < capacity;
        assert_int_equal(queue_push(q, item), fits);
        if (fits) model[n++] = item;
      } else {
        assert_ptr_equal(queue_pop(q), n ? model[0] : NULL);
        if (n == 0) assert_false(readable(q));
        for (int i = 1; i < n; i++) model[i - 1] = model[i];
        n -= n > 0;
      }
      if (n > 0) assert_true(readable(q));
    }
    while (queue_pop(q)) {}
    assert_false(readable(q));
    queue_wake(q);
    queue_wake(q);
    assert_true(readable(q));
    queue_wait(q, -1);
    assert_null(queue_pop(q));
    assert_false(readable(q));
    int64_t start = clock_ns();
    queue_wait(q, 20);
    assert_true(clock_ms_since(start) >= 19);
    queue_delete(q);
  }
}

enum { PRODUCERS = 4, PER_PRODUCER = 20000 };

struct producer {
  struct queue *q;
  int id;
  int *items; /* [PER_PRODUCER] values, so that each pointer is one message */
};

static void *produce(void *arg) {
  struct producer *p = arg;
  for (int i = 0; i < PER_PRODUCER; i++) {
    p->items[i] = p->id * PER_PRODUCER + i;
    while (!queue_push(p->q, &p->items[i])) sched_yield();
  }
  return NULL;
}

/* Every item arrives once, and those of one producer in its order; waiting never misses a push. */
static void four_producers(void **state) {
  (void)state;
  struct queue *q = queue_new(64, NULL);
  struct producer producers[PRODUCERS];
  pthread_t threads[PRODUCERS];
  int next[PRODUCERS] = {0};
  for (int i = 0; i < PRODUCERS; i++) {
    producers[i] = (struct producer){q, i, calloc(PER_PRODUCER, sizeof(int))};
    assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
  }
  for (int got = 0; got < PRODUCERS * PER_PRODUCER;) {
    int *item = queue_pop(q);
    if (!item) {
      queue_wait(q, -1);
      continue;
    }
    assert_int_equal(*item % PER_PRODUCER, next[*item / PER_PRODUCER]++);
    got++;
  }
  assert_null(queue_pop(q));
  for (int i = 0; i < PRODUCERS; i++) {
    pthread_join(threads[i], NULL);
    free(producers[i].items);
  }
  queue_delete(q);
}

struct waker {
  struct queue *q;
  _Atomic bool stop;
};

static void *wake_later(void *arg) {
  struct waker *w = arg;
  usleep(1000);
  atomic_store(&w->stop, true);
  queue_wake(w->q);
  return NULL;
}

static void wake_reaches_the_consumer(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++) {
    struct waker w = {.q = queue_new(2, NULL)};
    pthread_t thread;
    static char thing;
    assert_int_equal(pthread_create(&thread, NULL, wake_later, &w), 0);
    for (;;) {
      queue_push(w.q, &thing);
      while (queue_pop(w.q)) {}
      if (atomic_load(&w.stop)) break;
      queue_wait(w.q, -1);
    }
    pthread_join(thread, NULL);
    queue_delete(w.q);
  }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(bounds),
    cmocka_unit_test(against_model),
    cmocka_unit_test(four_producers),
    cmocka_unit_test(wake_reaches_the_consumer),
};
TEST_MAIN(tests)
