/* metrics.c — counters and histograms. What they mean is in metrics.h. */
#include "server/metrics.h"
