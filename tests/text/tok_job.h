/* tok_job.h — one encode on a thread of its own with 256 KiB of stack, and its time. */
#ifndef CYGNET_TESTS_TOK_JOB_H
#define CYGNET_TESTS_TOK_JOB_H

#include <pthread.h>
#include <time.h>

#include "text/tok.h"
#include "text/tok_work.h"

struct job { /* one encode on a thread with a small stack */
  const struct tokenizer *tok;
  struct str text;
  bool special;
  struct tok_ids ids;
  double cpu_s;
  uint64_t steps; /* debug builds only */
};
static inline void *encode_job(void *p) {
  struct job *job = p;
  struct timespec a, b;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
  tok_encode(job->tok, job->text, job->special, false, &job->ids);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
  job->cpu_s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
#ifdef CYGNET_DEBUG
  job->steps = tok_work_steps;
#endif
  return NULL;
}
static inline void run_small_stack(struct job *job) {
  pthread_attr_t attr;
  pthread_t thread;
  pthread_attr_init(&attr);
  assert_int_equal(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
  assert_int_equal(pthread_create(&thread, &attr, encode_job, job), 0);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attr);
}

#endif
