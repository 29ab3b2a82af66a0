/* log.c — lines for the operator on stderr.
 *
 * The one piece of process-wide state besides the allocation hooks: the level, and what the terminal shows. All of it is
 * atomic, so lines of several threads may interleave as whole lines but never mix.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static _Atomic int level_now = LOG_WARN;
static _Atomic bool progress_shown;      /* an unfinished progress line is on the terminal */
static _Atomic int64_t progress_last_ns; /* when it was last drawn */

void log_set_level(enum log_level level) { atomic_store_explicit(&level_now, level, memory_order_relaxed); }

enum log_level log_level(void) { return (enum log_level)atomic_load_explicit(&level_now, memory_order_relaxed); }

static bool on_terminal(void) { return isatty(2) == 1; }

static bool in_colour(void) {
  const char *no_color = getenv("NO_COLOR");
  return on_terminal() && !(no_color && *no_color);
}

static void write_all(const char *p, size_t n) {
  while (n > 0) {
    ssize_t wrote = write(2, p, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return; /* nowhere to complain */
    p += wrote;
    n -= (size_t)wrote;
  }
}

static size_t append(char *line, size_t cap, size_t at, const char *s) {
  size_t n = MIN(strlen(s), cap - at);
  memcpy(line + at, s, n);
  return at + n;
}

/* A terminal shows the time of day; a file outlives the day. */
static size_t append_time(char *line, size_t cap, size_t at) {
  struct timespec t;
  struct tm tm;
  char text[32];
  clock_gettime(CLOCK_REALTIME, &t);
  localtime_r(&t.tv_sec, &tm);
  if (!on_terminal() && strftime(text, sizeof text, "%Y-%m-%d ", &tm)) at = append(line, cap, at, text);
  snprintf(text, sizeof text, "%02d:%02d:%02d.%03d ", tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(t.tv_nsec / 1000000));
  return append(line, cap, at, text);
}

void log_line(enum log_level level, const char *room, const char *fmt, ...) {
  if (level > log_level()) return;
  static const char *const names[] = {"error ", "warn  ", "info  ", "debug "};
  static const char *const colours[] = {"\033[31m", "\033[33m", "\033[32m", "\033[90m"};
  char line[2048], head[32];
  const size_t cap = sizeof line - 8; /* room for the end of a colour and the newline */
  size_t at = 0;
  int saved_errno = errno;
  if (atomic_exchange(&progress_shown, false)) at = append(line, cap, at, "\r\033[K");
  at = append_time(line, cap, at);
  bool colour = in_colour();
  if (colour) at = append(line, cap, at, colours[level]);
  at = append(line, cap, at, names[level]);
  if (colour) at = append(line, cap, at, "\033[0m");
  snprintf(head, sizeof head, "%-7s ", room);
  at = append(line, cap, at, head);

  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(line + at, cap - at, fmt, args);
  va_end(args);
  size_t end = n < 0 ? at : MIN(at + (size_t)n, cap - 1);
  for (; at < end; at++) {
    if ((unsigned char)line[at] < 0x20 || line[at] == 0x7f) line[at] = ' '; /* one line is one line */
  }
  line[at++] = '\n';
  write_all(line, at);
  errno = saved_errno;
}

bool log_has_room(struct log_limit *l, int per_second, const char *room) {
  int64_t second = clock_ns() / 1000000000;
  if (second != l->second) {
    if (l->n_left_out) log_line(LOG_INFO, room, "%d more requests were answered", l->n_left_out);
    *l = (struct log_limit){.second = second};
  }
  if (per_second <= 0) return true;
  if (l->n_lines < per_second) return l->n_lines++, true;
  l->n_left_out++;
  return false;
}

void log_progress(const char *what, size_t done, size_t total) {
  if (!on_terminal()) return;
  bool finished = done >= total;
  int64_t now = clock_ns(), last = atomic_load(&progress_last_ns);
  if (!finished) {
    if (last != 0 && now - last < 100000000) return;
    if (!atomic_compare_exchange_strong(&progress_last_ns, &last, now)) return; /* another thread draws just now */
  } else {
    if (!atomic_load(&progress_shown)) return; /* it was over before anything was drawn */
    atomic_store(&progress_last_ns, 0);
  }
  char line[256];
  int percent = finished ? 100 : (int)((double)done * 100.0 / (double)total);
  int n = snprintf(line, sizeof line, "\r\033[K%.200s  %d %%%s", what, percent, finished ? "\n" : "");
  atomic_store(&progress_shown, !finished);
  if (n > 0) write_all(line, (size_t)n);
}
