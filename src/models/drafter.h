/* drafter.h — a small model that guesses what its target says next: Gemma 4's *-assistant checkpoints. docs/models/gemma4.md has the steps.
 *
 *   target ──hidden row of the last confirmed token──► kept ─┐
 *   newest token t ──target's embedding──────────────────────┴► step ─► guess 1 ─┐
 *                                        └─ next hidden row ────────┴─► step ─► guess 2 ...
 *
 * Its attention layers are numbered behind the target's own and read the target's keys and values (model_plan.drafter); it writes none. In all steps of a
 * round its one row per sequence stands at the position of t and sees what is committed before it. It computes on the target's device, and in
 * the memory of the target's logits. Whatever it says, the target checks.
 *
 * No function but open and close allocates.
 */
#ifndef CYGNET_DRAFTER_H
#define CYGNET_DRAFTER_H

#include "models/model.h"

struct drafter;

/* Is it a drafter for this target? A sentence if not. Before anything else below. */
int drafter_check(const struct model_config *c, const struct model_config *target, struct err *e);
/* Its attention layers, owners being layers of the target; layers has room for CONFIG_LAYERS_MAX. Returns their number. */
int drafter_attn_layers(const struct model_config *c, const struct model_config *target, struct attn_layer *layers);
int drafter_cols_max(const struct model_config *c); /* widest input of its products */
/* Activations and kept rows; ropes: rows of the target's device. */
size_t drafter_scratch_bytes(const struct model_config *c, int rows_max, int rope_rows);

/* The target was opened with plan.drafter = c. At most rows_max sequences in a round (no more than the target's out_max) and slots of kept rows. w is
 * borrowed while it opens, and on the reference level until it is closed. Returns owned. */
struct drafter *drafter_open(const struct model_config *c, struct weights *w, struct model *target, int rows_max, struct err *e);
void drafter_close(struct drafter *d);                      /* before its target; NULL is fine */
const struct model *drafter_model(const struct drafter *d); /* its configuration and what its weights cost; nothing to run */

/* Keep the hidden row that the target's last forward computed for b->out[out]. */
void drafter_keep(struct drafter *d, int slot, int out);
/* A round: one row per sequence, its newest token, which is not computed yet, and that token's position; row i goes on from kept row slots[i]. b: no
 * slots, no out rows; it is borrowed for the round. */
void drafter_begin(struct drafter *d, const struct batch *b, const int32_t *slots);
/* The next guess for each of the first `rows` rows, no more than in the step before. */
void drafter_step(struct drafter *d, int rows, int32_t *guesses);

#endif
