/* parts.h — answers of conversations taken apart: content, thoughts, calls of functions. On the io thread.
 *
 * Each choice has a parser of its own (cygnet_parser), made with its first message. A message becomes o->parts, in the order in which the model wrote
 * them; what a dialect has to keep for the end it finds in the choice: reasoning and calls always, text only where it asks for that.
 *
 * Rules
 *   1. Where nothing is to be taken apart (job.apart), a message is one part of content.
 *   2. The parts of all messages put together do not depend on how the text came.
 *   3. A call has its id from the moment it is there: "call_" and 24 hexadecimal digits, unique.
 *   4. An answer that stopped by itself and has a call finishes with "tool_calls".
 */
#ifndef CYGNET_PARTS_H
#define CYGNET_PARTS_H

#include "server/api.h"

/* After api_take_numbers. keep_text: content is added to o->text. */
void parts_take(const struct api *a, struct choice *o, const struct message *m, bool keep_text);

/* A part (NULL: content without text) → the last of o->blocks, or a new one. *begun: which it was. Returns its number. */
int parts_block(struct choice *o, const struct part *p, bool *begun);

static inline struct str parts_text(const struct choice *o, const struct part *p) { return str_of(buf_cstr(&o->part_text) + p->at, p->n); }

#endif
