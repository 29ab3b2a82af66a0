/* config_read.h — what the readers of single families (config_NAME.c) are made of; private to this room.
 *
 * To add a family: write config_NAME.c with its two readers, declare them below, and name them in the table of config.c.
 * A reader is called with *c zeroed but for family, architecture and name; it fills the rest. config_check then looks at what
 * concerns several fields together; ranges of single fields are checked by the getters, which name the key.
 */
#ifndef CYGNET_CONFIG_READ_H
#define CYGNET_CONFIG_READ_H

#include <math.h>

#include "files/config.h"
#include "files/json.h"

/* Defaults that mean "the key must be there". */
#define CONFIG_REQUIRED_INT   INT64_MIN
#define CONFIG_REQUIRED_FLOAT ((double)NAN)

/* Limits of numbers that are not counts. */
#define CONFIG_EPS_MIN    1e-12
#define CONFIG_EPS_MAX    1e-1
#define CONFIG_THETA_MIN  1.0
#define CONFIG_THETA_MAX  1e12
#define CONFIG_FACTOR_MIN 1e-3
#define CONFIG_FACTOR_MAX 1e6
#define CONFIG_CAP_MAX    1e6

struct config_json;
struct config_gguf;

struct config_family {
  const char *architecture; /* GGUF's general.architecture or config.json's model_type */
  enum model_family family;
  int (*from_json)(struct model_config *c, const struct config_json *s, struct err *e); /* NULL: cannot */
  int (*from_gguf)(struct model_config *c, const struct config_gguf *s, struct err *e); /* NULL: cannot */
  const char *advice;                                                                   /* ends the refusal, or NULL */
};

/* --- config.json -------------------------------------------------------------------------------------------------------- */

struct config_json {
  const json_t *top;        /* config.json */
  const json_t *text;       /* its text_config, or top itself */
  const json_t *generation; /* generation_config.json, or NULL */
  const char *where_top, *where_text, *where_generation;
  const json_t *image_processor; /* of preprocessor_config.json or processor_config.json, or NULL */
  const char *where_processor;
};

/* Of s->text. dflt is used when the key is absent or null. */
int config_json_int(const struct config_json *s, const char *key, int64_t lo, int64_t hi, int64_t dflt, int *out, struct err *e);
int config_json_float(const struct config_json *s, const char *key, double lo, double hi, double dflt, double *out, struct err *e);
/* Refuses a switch that this build does not know: true, or (for others) anything but absent, null, false and 0. */
int config_json_must_be_off(const struct config_json *s, const char *key, struct err *e);
int config_json_must_be(const struct config_json *s, const char *key, const char *value, struct err *e);
int config_json_not_quantised(const struct config_json *s, struct err *e);
/* layer_types into c->layers[].kind: 1, or 0 when absent. Needs c->n_layers. */
int config_json_layer_types(struct model_config *c, const struct config_json *s, struct err *e);
/* suppress_tokens of generation_config.json. Needs c->vocab. */
int config_json_suppressed(struct model_config *c, const struct config_json *s, struct err *e);
/* bos, pad and eos, from generation_config.json, config.json, text_config, the defaults, in this order. Needs c->vocab. */
int config_json_ids(struct model_config *c, const struct config_json *s, int bos, int pad, int eos, struct err *e);

/* --- GGUF metadata ------------------------------------------------------------------------------------------------------ */

struct config_gguf {
  const struct gguf *parts; /* metadata in the first */
  int n_parts;
  const char *arch; /* prefix of the keys: "gemma3" */
};

/* name follows "ARCH." */
int config_gguf_int(const struct config_gguf *s, const char *name, int64_t lo, int64_t hi, int64_t dflt, int *out, struct err *e);
int config_gguf_float(const struct config_gguf *s, const char *name, double lo, double hi, double dflt, double *out, struct err *e);
/* A key that is one number for all layers or an array with one per layer. */
int config_gguf_layer_int(const struct config_gguf *s, const char *name, int layer, int n_layers, int64_t lo, int64_t hi, int64_t dflt,
                          int *out, struct err *e);
/* attention.sliding_window_pattern: a period, or one bool per layer (true = sliding). Absent: `period`; 0: it must be there. */
int config_gguf_layer_kinds(struct model_config *c, const struct config_gguf *s, int period, struct err *e);
int config_gguf_suppressed(struct model_config *c, const struct config_gguf *s, struct err *e); /* needs c->vocab */
/* 1 and *out, 0 when absent. */
int config_gguf_text(const struct config_gguf *s, const char *name, struct str *out, struct err *e);
int config_gguf_refuse(const struct config_gguf *s, const char *name, enum err_code code, const char *what, struct err *e);
const struct gguf_tensor *config_gguf_tensor(const struct config_gguf *s, const char *name);
int config_gguf_vocab(struct model_config *c, const struct config_gguf *s, struct err *e); /* also tied_head; needs c->hidden */
int config_gguf_ids(struct model_config *c, const struct config_gguf *s, int bos, int pad, int eos, struct err *e);

/* --- both --------------------------------------------------------------------------------------------------------------- */

/* NULL and *e when this build cannot run it. */
const struct config_family *config_family_find(const char *architecture, bool gguf, const char *where, struct err *e);
static inline enum layer_kind config_kind_by_period(int layer, int period) { return (layer + 1) % period ? LAYER_SLIDING : LAYER_FULL; }
bool config_add_eos(struct model_config *c, int32_t id); /* false when full; an id twice is kept once */
int config_check(const struct model_config *c, const char *where, struct err *e);

/* Encoders of pictures and sound; after the family's own reader. none: everything of them empty. */
void config_media_none(struct model_config *c);
int config_media_from_json(struct model_config *c, const struct config_json *s, struct err *e);
int config_media_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e);

int config_mllama_from_json(struct model_config *c, const struct config_json *s, struct err *e);
int config_mllama_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e);
int config_gemma3_from_json(struct model_config *c, const struct config_json *s, struct err *e);
int config_gemma3_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e);
int config_gemma4_from_json(struct model_config *c, const struct config_json *s, struct err *e);
int config_gemma4_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e);
int config_gemma4_drafter_from_json(struct model_config *c, const struct config_json *s, struct err *e);
int config_gemma4_drafter_from_gguf(struct model_config *c, const struct config_gguf *s, struct err *e);

#endif
