/* log.h — lines for the operator on stderr: "12:03:44.123 info  engine  started threads=2 ctx=32768".
 *
 * Colours only when stderr is a terminal and NO_COLOR is unset. Text from outside goes through str_escape first.
 * Safe from any thread: one write(2) per line.
 */
#ifndef CYGNET_LOG_H
#define CYGNET_LOG_H

#include "base/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level); /* default LOG_WARN; serve sets LOG_INFO */
enum log_level log_level(void);
void log_line(enum log_level level, const char *room, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Lines that strangers can cause have a limit. Is there room for one more in this second (per_second <= 0: always)? What was left out is counted,
 * and said in a line of its own, in a later second. One thread's; zeroed at first. */
struct log_limit {
  int64_t second;
  int n_lines, n_left_out;
};
bool log_has_room(struct log_limit *l, int per_second, const char *room);

/* Progress of something that may take over a second: draws "loading weights  43 %" in place on a terminal, at most
 * ten times a second, and nothing elsewhere. done >= total ends the line. */
void log_progress(const char *what, size_t done, size_t total);

#endif
