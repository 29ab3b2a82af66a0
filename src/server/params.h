/* params.h — fields of a JSON object → parameters of a job: typed getters with one sticky error, and what the dialects have in common.
 *
 *     struct params p = params_of(body, "body", e);
 *     params_int(&p, "n", 1, 128, &n);
 *     params_bool(&p, "stream", &stream);
 *     return params_end(&p);                      // 0, or -1 and *e is the first that was wrong
 *
 * A getter returns whether it took a value: false when the field is absent or null, when it is wrong, and after an error. Errors are 400 with the
 * field's name in error.param.
 */
#ifndef CYGNET_PARAMS_H
#define CYGNET_PARAMS_H

#include "server/api.h"

struct params {
  const json_t *object; /* NULL: nothing is given */
  const char *where;    /* "body", "body: sampling_params" */
  struct api_error *e;
  bool failed;
};

struct params params_of(const json_t *object, const char *where, struct api_error *e);
int params_end(const struct params *p);

bool params_int(struct params *p, const char *key, int64_t lo, int64_t hi, int *out);
bool params_i64(struct params *p, const char *key, int64_t *out);
bool params_float(struct params *p, const char *key, double lo, double hi, double *out);
bool params_bool(struct params *p, const char *key, bool *out);
bool params_array(struct params *p, const char *key, const json_t **out);
bool params_object(struct params *p, const char *key, const json_t **out);
/* 1 .. max_bytes bytes; "" counts as not given. */
bool params_string(struct params *p, const char *key, size_t max_bytes, const char **out, size_t *n);

/* null, false, "", [] and {} are not. */
bool params_is_given(const json_t *v);
/* Refuse a field by name: code "invalid_value" or "unsupported_parameter". */
void params_fail(struct params *p, const char *key, const char *fmt, ...) PRINTF_LIKE(3, 4);
void params_refuse(struct params *p, const char *key, const char *why);
void params_missing(struct params *p, const char *key);                      /* one that has to be there */
void params_refuse_all(struct params *p, const char *const *keys, size_t n); /* those that are given */

void params_refuse_reasoning(struct params *p, const char *why); /* "reasoning_effort", "reasoning": {"effort", "enabled"} */

/* What a dialect calls the fields that have several names. */
struct params_names {
  const char *max_tokens, *min_tokens, *seed;
};

/* Each sets what it names in *j. */
void params_sampling(struct params *p, const struct api *a, const struct params_names *names, struct job *j); /* with logit_bias */
void params_stop(struct params *p, const struct api *a, struct job *j); /* and what an end looks like: ignore_eos, no_stop_trim, ... */
void params_stream(struct params *p, struct job *j);
void params_service(struct params *p, struct job *j); /* priority, cache_salt, extra_key */
void params_rid(struct params *p, char **rid);        /* *rid: owned, replaced when one is given */

/* Ids of an array; owned by malloc, NULL after an error. */
int32_t *params_ids(struct params *p, const char *key, const json_t *list, const struct api *a, size_t *n);

/* Room in the context for a prompt called `prompt`: sets t->max_tokens from what was asked for (-1: what fits). */
void params_fit(struct params *p, const struct api *a, const struct params_names *names, const char *prompt, int max_tokens, int min_tokens,
                struct job_prompt *t);

#endif
