/* capture.h — recorded steps on the NPU: stream capture, replay, and arguments that the host passes by value.
 *
 * A captured operator keeps the host's arrays as they were (lengths of keys). Operators that have such arguments are launched through capture_update:
 * eagerly it only calls issue; while recording it makes a task group of the one operator that issue launches, and remembers issue and its context; at
 * each replay issue is called again, for the stream that renews arguments, and the captured step waits for that at this place:
 *
 *   capture on stream:  wait E, reset E, group begin, operator, group end
 *   replay:             side waits for the replay before; execute on stream;
 *                       on side, for each place: update begin, issue, update end, record E
 *
 * So issue must launch the same operator on the same memory each time, and read what is new from where its context points.
 * Only AI-core kernels may be in a group: no copies.
 *
 * A place that was given numbers (capture_update_numbers: all that issue passes by value) is renewed only when they differ from those of the
 * record's last replay: windows that are full cost the host nothing. Which numbers a record knows is the record's own, not the step's.
 *
 * Rules
 *   1. E is recorded at every place in every replay, whatever failed: a captured step that waits for ever would hang the program.
 *   2. A recording that failed leaves an empty record, and the step has failed (device_ops.finish). Who records does not try again: what a broken
 *      capture leaves behind is not known. Records that were complete stay.
 *   3. Memory is taken in record_new; a record holds addresses and numbers, no descriptors.
 */
#ifndef CYGNET_ASCEND_CAPTURE_H
#define CYGNET_ASCEND_CAPTURE_H

#include "compute/ascend/ascend.h"

/* renew: called for a replay. False: nothing was launched because nothing had changed (where it is known better than by numbers); if the record
 * needs it nevertheless, issue is called again with renew false. */
typedef bool (*capture_issue_fn)(struct ascend *d, const void *ctx, bool renew);

/* ctx is copied. */
void capture_update(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes);
/* numbers: memory that stays where it is while records live; the same for all places that depend on the same ones. */
void capture_update_numbers(struct ascend *d, capture_issue_fn issue, const void *ctx, size_t ctx_bytes, const int64_t *numbers, int n);

const char *ascend_no_records(const struct device *device);
struct device_record *ascend_record_new(struct device *device, int launches_max, size_t ctx_bytes_max, struct err *e);
void ascend_record_delete(struct device *device, struct device_record *r);
size_t ascend_record_bytes(int launches_max, size_t ctx_bytes_max);
void ascend_record_begin(struct device *device, struct device_record *r);
void ascend_record_end(struct device *device, struct device_record *r);
int ascend_record_launches(const struct device_record *r);
void ascend_record_replay(struct device *device, struct device_record *r);

#endif
