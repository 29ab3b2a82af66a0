/* tok_work.h — a count of steps, so that tests can tell linear time from worse without a clock.
 *
 * Debug builds only. The counter is the calling thread's: characters looked at, look-ups, moves in the queue of merges.
 */
#ifndef CYGNET_TOK_WORK_H
#define CYGNET_TOK_WORK_H

#include "base/base.h"

#ifdef CYGNET_DEBUG
extern _Thread_local uint64_t tok_work_steps;
#define TOK_WORK(n) (tok_work_steps += (uint64_t)(n))
#else
#define TOK_WORK(n) ((void)0)
#endif

#endif
