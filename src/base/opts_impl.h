/* opts_impl.h — what opts.c, opts_config.c, opts_help.c and opts_pages.c share. For these files only. */
#ifndef CYGNET_OPTS_IMPL_H
#define CYGNET_OPTS_IMPL_H

#include "base/opts.h"
#include "base/str.h"

enum { OPTS_ENV_BYTES = 128 };

/* The environment's name of an option, "CYGNET_KV_TYPE", or NULL when there is none. */
const char *opts_env_name(const struct opts_table *t, const struct opt *o, char name[OPTS_ENV_BYTES]);

/* Walk over "a|b|c" (or any separator): the next word, or false at the end. Start with *at = list. */
bool opts_next_word(const char **at, char separator, struct str *word);

/* The headings under which a command has options, in the table's order: begin with *at = 0; NULL is the end. */
const char *opts_next_group(const struct opts_table *t, unsigned command, int *at);
bool opts_in_group(const struct opts_table *t, int i, const char *group, unsigned command);
/* "(default 2; 1 to 64; one of a, b; CYGNET_X)", or nothing. */
void opts_put_facts(const struct opts_table *t, const struct opt *o, bool with_env, struct buf *out);

enum opts_config_kind {
  OPTS_CONFIG_STRING,
  OPTS_CONFIG_NUMBER, /* value is the number as written */
  OPTS_CONFIG_BOOL,   /* "true", "false" */
  OPTS_CONFIG_NULL,
  OPTS_CONFIG_LIST, /* an array begins; its strings follow as ITEM */
  OPTS_CONFIG_ITEM,
};
typedef int (*opts_config_visitor)(void *ctx, const char *name, enum opts_config_kind kind, const char *value, struct err *e);

/* Parse one flat JSON object and hand over each member; strict RFC 8259 otherwise. The visitor's error ends it. */
int opts_config_parse(const char *text, size_t n, opts_config_visitor visit, void *ctx, struct err *e);

#endif
