/* capture.h — recorded steps on the NPU: stream capture, replay, and arguments that the host passes by value.
 *
 * A captured operator keeps the host's arrays as they were (lengths of keys). Operators that have such arguments are launched through capture_update:
 * eagerly it only calls issue; while recording it makes a task group of the one operator that issue launches, and remembers issue and its context; at
 * each replay issue is called again, for the stream that renews arguments, and the captured step waits for that at this place:
 *
 *   capture on stream:  wait E, reset E, group begin, operator, group end
 *   replay:             execute on stream;  on side, for each group: update begin, issue, update end, record E
 *
 * So issue must launch the same operator on the same memory each time, and read what is new from where its context points.
 * What never changes (lengths that stay W) need not be issued: issue returns false before launching, and the place is left as it was.
 * Only AI-core kernels may be in a group: no copies.
 */
#ifndef CYGNET_ASCEND_CAPTURE_H
#define CYGNET_ASCEND_CAPTURE_H

#include "compute/ascend/ascend.h"

typedef bool (*capture_issue_fn)(struct ascend *d, const void *ctx, bool renew);

/* ctx is copied. renew: called for a replay; false = nothing changed since the last time, nothing launched. */
void capture_update(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes);

const char *ascend_no_records(const struct device *device);
struct device_record *ascend_record_new(struct device *device, int launches_max, size_t ctx_bytes_max, struct err *e);
void ascend_record_delete(struct device *device, struct device_record *r);
size_t ascend_record_bytes(int launches_max, size_t ctx_bytes_max);
void ascend_record_begin(struct device *device, struct device_record *r);
void ascend_record_end(struct device *device, struct device_record *r);
int ascend_record_launches(const struct device_record *r);
void ascend_record_replay(struct device *device, struct device_record *r);

#endif
