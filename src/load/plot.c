/* plot.c — three panels: two curves over percentiles, and bars with a line over time.
 *
 * A curve shows at x = p the value that p % of all do not exceed. Its axis ends a little above p99, as one outlier would press all others flat; what the
 * longest was is said beside the title.
 */
#include "load/plot.h"

#include <math.h>
#include <stdio.h>

#define TEXT   "#1f2933"
#define SOFT   "#52606d"
#define GRID   "#e4e7eb"
#define BLUE   "#2563eb"
#define GREEN  "#0f766e"
#define BAR    "#bfd3f7"
#define ORANGE "#c2410c"

enum { WIDTH = 960, HEIGHT = 660, TICKS = 5, POINTS_MAX = 400 };

struct panel { /* where a panel's axes are, in pixels, and what they span, from 0 */
  double x, y, width, height, x_max, y_max;
};

static double at_x(const struct panel *p, double v) { return p->x + p->width * v / p->x_max; }
static double at_y(const struct panel *p, double v) { return p->y + p->height * (1 - v / p->y_max); }

/* Text of strangers inside markup. */
static void put_text(struct buf *b, const char *text) {
  for (; *text; text++) {
    if (*text == '&') buf_puts(b, "&amp;");
    else if (*text == '<') buf_puts(b, "&lt;");
    else if (*text == '>') buf_puts(b, "&gt;");
    else if ((unsigned char)*text >= ' ') buf_putc(b, *text);
  }
}

static void label(struct buf *b, double x, double y, const char *anchor, int size, const char *color, const char *weight,
                  const char *text) {
  buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\" font-weight=\"%s\">", x, y, anchor, size,
             color, weight);
  put_text(b, text);
  buf_puts(b, "</text>\n");
}

/* The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is at least v. */
static double nice(double v) {
  static const double steps[] = {1, 2, 2.5, 5, 10};
  double power = pow(10, floor(log10(v)));
  for (size_t i = 0; i < ARRAY_LEN(steps); i++)
    if (steps[i] * power >= v * (1 - 1e-9)) return steps[i] * power;
  return 10 * power;
}

/* Lines across with their values at the left, or at the right without lines. */
static void y_axis(struct buf *b, const struct panel *p, double step, bool right, const char *color) {
  char text[32];
  for (int i = 0; step * i <= p->y_max * (1 + 1e-9); i++) {
    double y = at_y(p, step * i);
    if (!right) buf_printf(b, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"%s\"/>\n", p->x, y, p->x + p->width, i ? GRID : "#9aa5b1");
    snprintf(text, sizeof text, "%g", step * i);
    label(b, right ? p->x + p->width + 8 : p->x - 8, y + 4, right ? "start" : "end", 12, color, "normal", text);
  }
}

static void x_axis(struct buf *b, const struct panel *p, double step, const char *name) {
  char text[32];
  for (int i = 0; step * i <= p->x_max * (1 + 1e-9); i++) {
    snprintf(text, sizeof text, "%g", step * i);
    label(b, at_x(p, step * i), p->y + p->height + 18, "middle", 12, SOFT, "normal", text);
  }
  label(b, p->x + p->width / 2, p->y + p->height + 36, "middle", 12, SOFT, "normal", name);
}

/* ---- percentiles --------------------------------------------------------------------------------------------------------------------- */

struct curve {
  const struct stat_values *values; /* milliseconds, ascending */
  const struct stat *stat;
  const char *name, *color;
  double scale; /* from milliseconds to what the axis counts */
};

static double value_at(const struct curve *c, double percent) { return c->scale * stat_percentile(c->values->v, c->values->n, percent); }

/* Dots at three percentiles, each with its value. */
static void dots(struct buf *b, const struct panel *p, const struct curve *c) {
  static const int percents[] = {50, 90, 99};
  char text[48];
  double last = INFINITY;
  for (size_t i = 0; i < ARRAY_LEN(percents); i++) {
    double value = value_at(c, percents[i]), x = at_x(p, percents[i]), y = at_y(p, value);
    snprintf(text, sizeof text, "p%d %.*f", percents[i], value < 100 ? 1 : 0, value);
    buf_printf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, c->color);
    double text_y = MIN(y - 8, last - 15); /* no label lies on another */
    last = text_y;
    label(b, x - 6, text_y, "end", 12, TEXT, "bold", text);
  }
}

static void line(struct buf *b, const struct panel *p, const struct curve *c) {
  int points = MIN(MAX(c->values->n, 2), POINTS_MAX);
  buf_printf(b, "<clipPath id=\"%s\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n", c->name, p->x, p->y - 2,
             p->width, p->height + 4);
  buf_printf(b, "<path clip-path=\"url(#%s)\" fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\" stroke-linejoin=\"round\" d=\"", c->name,
             c->color);
  for (int i = 0; i < points; i++) {
    double percent = 100.0 * i / (points - 1);
    buf_printf(b, "%c%.1f %.1f", i ? 'L' : 'M', at_x(p, percent), at_y(p, MIN(value_at(c, percent), 10 * p->y_max)));
  }
  buf_puts(b, "\"/>\n");
}

/* Long times are counted in seconds. */
static void percentiles(struct buf *b, struct panel *p, struct curve *c) {
  enum { LONG_MS = 10000 };
  char text[160];
  c->scale = c->stat->p99 < LONG_MS ? 1 : 0.001;
  snprintf(text, sizeof text, "%s, %s", c->name, c->stat->p99 < LONG_MS ? "ms" : "s");
  label(b, p->x - 44, p->y - 18, "start", 15, TEXT, "bold", text);
  if (!c->values->n) {
    label(b, p->x + p->width / 2, p->y + p->height / 2, "middle", 14, SOFT, "normal", "no answers");
    return;
  }
  snprintf(text, sizeof text, "mean %.1f, longest %.1f", c->scale * c->stat->mean, c->scale * c->stat->max);
  label(b, p->x + p->width, p->y - 18, "end", 12, SOFT, "normal", text);
  double step = nice(MAX(1.3 * c->scale * c->stat->p99, 1e-3) / TICKS);
  p->x_max = 100;
  p->y_max = step * TICKS;
  y_axis(b, p, step, false, SOFT);
  x_axis(b, p, 25, "percentile");
  line(b, p, c);
  dots(b, p, c);
}

/* ---- time ---------------------------------------------------------------------------------------------------------------------------- */

static double largest(const double *v, int n) {
  double most = 0;
  for (int i = 0; i < n; i++) most = MAX(most, v[i]);
  return most;
}

/* Means over `width` seconds: a long run has no more bars than can be seen. The last one may have less than its width, and counts what it has. */
static int fold(const double *v, int n, int width, double seconds, double *out) {
  int bars = div_up(n, width);
  for (int i = 0; i < bars; i++) {
    double sum = 0, from = (double)i * width, to = MIN(from + width, MAX(seconds, from + 1e-3));
    for (int k = i * width; k < MIN((i + 1) * width, n); k++) sum += v[k];
    out[i] = sum / MAX(to - from, 0.25); /* a last sliver of a second would make a tower */
  }
  return bars;
}

static void over_time(struct buf *b, struct panel *p, const struct load_summary *s) {
  double output[POINTS_MAX], running[POINTS_MAX], seconds = MAX(s->duration_s, 1e-3);
  int width = div_up(s->n_seconds, POINTS_MAX), n = fold(s->output_of_second, s->n_seconds, width, seconds, output);
  fold(s->running_of_second, s->n_seconds, width, seconds, running);
  label(b, p->x - 44, p->y - 18, "start", 15, BLUE, "bold", "Output tokens per second");
  label(b, p->x + p->width + 44, p->y - 18, "end", 15, ORANGE, "bold", "Requests on their way");

  p->x_max = seconds;
  double step = nice(MAX(1.1 * largest(output, n), 1) / TICKS);
  p->y_max = step * TICKS;
  y_axis(b, p, step, false, BLUE);
  x_axis(b, p, nice(seconds / 8), "seconds");
  for (int i = 0; i < n; i++) {
    double from = at_x(p, (double)i * width), to = at_x(p, MIN((double)(i + 1) * width, seconds));
    if (to > from) /* a gap only where bars are wide enough to lose it */
      buf_printf(b, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n", from, at_y(p, output[i]),
                 MAX(to - from - (to - from > 6 ? 1.5 : 0), 0.5), p->y + p->height - at_y(p, output[i]), BAR);
  }

  struct panel right = *p;
  step = MAX(nice(MAX(1.1 * largest(running, n), 1) / TICKS), 1);
  right.y_max = step * TICKS;
  y_axis(b, &right, step, true, ORANGE);
  buf_printf(b, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", ORANGE);
  for (int i = 0; i < n; i++)
    buf_printf(b, "%c%.2f %.1fH%.2f", i ? 'L' : 'M', at_x(p, (double)i * width), at_y(&right, running[i]),
               at_x(p, MIN((double)(i + 1) * width, seconds)));
  buf_puts(b, "\"/>\n");
}

/* ---- the whole ----------------------------------------------------------------------------------------------------------------------- */

static void heading(const struct load_report *r, struct buf *b) {
  const struct load_summary *s = r->summary;
  struct buf what;
  char figures[240];
  buf_init(&what, 0);
  report_describe(r, &what);
  snprintf(figures, sizeof figures,
           "%.2f requests/s, %.0f input + %.0f output tokens/s, %.1f on their way on average; %d of %d answered in %.1f s", s->requests_s,
           s->input_s, s->output_s, s->concurrency, s->done, s->total, s->duration_s);
  label(b, 28, 38, "start", 20, TEXT, "bold", r->run->settings->model ? r->run->settings->model : r->run->settings->u->base);
  label(b, 28, 60, "start", 14, SOFT, "normal", buf_cstr(&what));
  label(b, 28, 82, "start", 14, TEXT, "normal", figures);
  buf_free(&what);
}

void plot_svg(const struct load_report *r, struct buf *b) {
  const struct load_summary *s = r->summary;
  struct panel ttft = {.x = 72, .y = 140, .width = 372, .height = 190}, itl = {.x = 540, .y = 140, .width = 372, .height = 190};
  struct panel time = {.x = 72, .y = 430, .width = 816, .height = 170};
  buf_printf(
      b,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"system-ui, 'Segoe UI', Roboto, "
      "'DejaVu Sans', Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      WIDTH, HEIGHT, WIDTH, HEIGHT);
  heading(r, b);
  percentiles(b, &ttft, &(struct curve){.values = &s->ttfts, .stat = &s->ttft, .name = "TTFT", .color = BLUE});
  percentiles(b, &itl, &(struct curve){.values = &s->itls, .stat = &s->itl, .name = "ITL", .color = GREEN});
  over_time(b, &time, s);
  buf_puts(b, "</svg>\n");
}
