/* plot.h — a run as one picture: how TTFT and ITL are distributed, and what the server did from second to second. SVG, without script or fonts of its own. */
#ifndef CYGNET_LOAD_PLOT_H
#define CYGNET_LOAD_PLOT_H

#include "load/report.h"

void plot_svg(const struct load_report *r, struct buf *out);

#endif
