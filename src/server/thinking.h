/* thinking.h — whether a model is to think before it answers, for how long, and what its thoughts are in the answer.
 *
 * On or off: enable_thinking (a field, or in chat_template_kwargs, there also as "thinking"), reasoning_effort, reasoning {"effort", "enabled",
 * "max_tokens"}. Those that are given must agree. Without any of them it is off, as the released templates have it.
 * How long: thinking_budget (a field, in chat_template_kwargs or in custom_params), reasoning.max_tokens; else what the effort stands for.
 */
#ifndef CYGNET_THINKING_H
#define CYGNET_THINKING_H

#include "server/params.h"

struct thinking {
  const char *field; /* that decided; static; NULL: none */
  bool on, preserve; /* preserve: thoughts of earlier turns stay in the prompt (preserve_thinking) */
  int budget;        /* tokens; -1: no limit */
};

void thinking_read(struct params *p, const struct api *a, struct thinking *t, struct job *j);

#endif
